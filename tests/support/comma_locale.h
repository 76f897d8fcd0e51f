/*
 * tests/support/comma_locale.h: a locale with a decimal comma, as an embedding program may have one.
 */
#ifndef TSR_TESTS_COMMA_LOCALE_H
#define TSR_TESTS_COMMA_LOCALE_H

#include "support/scratch.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef __SANITIZE_ADDRESS__ /* glibc 2.36 loses what it makes of LOCPATH */
#include <sanitizer/lsan_interface.h>
#define UNLEAKED(call) (__lsan_disable(), call, __lsan_enable())
#else
#define UNLEAKED(call) (call)
#endif

/* One that is installed, else made in the scratch directory; 0: neither can be done. The caller frees it. */
static inline locale_t comma_locale(void)
{
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "de_DE"};
    char command[1200];
    locale_t comma = (locale_t)0;
    for (int made = 0; made < 2 && !comma; made++) {
        for (int i = 0; i < 4 && !comma; i++)
            UNLEAKED(comma = newlocale(LC_ALL_MASK, names[i], (locale_t)0));
        snprintf(command, sizeof command, "localedef -i de_DE -f UTF-8 '%s' >/dev/null 2>&1",
                 scratch_path("de_DE.UTF-8"));
        if (!comma && system(command) == 0)
            setenv("LOCPATH", scratch_path(""), 1);
    }
    return comma;
}

#endif
