#include "base/aside.h"

void tsr_aside_begin(tsr_aside *aside)
{
    if (aside->aside)
        return;
    aside->aside = true;
    aside->c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (aside->c_locale)
        aside->locale = uselocale(aside->c_locale);
    fegetenv(&aside->arithmetic);
    fesetenv(FE_DFL_ENV);
}

void tsr_aside_end(tsr_aside *aside)
{
    if (!aside->aside)
        return;
    aside->aside = false;
    fesetenv(&aside->arithmetic);
    if (!aside->c_locale)
        return;
    uselocale(aside->locale);
    freelocale(aside->c_locale);
}
