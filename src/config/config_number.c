#include "config/config_number.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *skip_digits(const char *p)
{
    while (*p >= '0' && *p <= '9')
        p++;
    return p;
}

/* [+-] digits [. digits] [e [+-] digits], with a digit on at least one side of the point. */
static bool is_decimal(const char *p)
{
    p += *p == '+' || *p == '-';
    const char *whole = p;
    p = skip_digits(p);
    bool any = p > whole;
    if (*p == '.') {
        const char *part = ++p;
        p = skip_digits(p);
        any |= p > part;
    }
    if (!any)
        return false;
    if (*p == 'e' || *p == 'E') {
        p++;
        p += *p == '+' || *p == '-';
        const char *exponent = p;
        p = skip_digits(p);
        if (p == exponent)
            return false;
    }
    return *p == 0;
}

bool tsr_number_parse(double *out, const char *text)
{
    if (!is_decimal(text))
        return false;
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!c)
        return false;
    *out = strtod_l(text, NULL, c);
    freelocale(c);
    return true;
}

bool tsr_number_parse_whole(int64_t *out, const char *text)
{
    const char *digits = text + (*text == '+' || *text == '-');
    if (*digits && !*skip_digits(digits)) {
        *out = strtoll(text, NULL, 10); /* clamps */
        return true;
    }
    double value;
    if (!tsr_number_parse(&value, text) || value != floor(value))
        return false;
    *out = value >= 0x1p63 ? INT64_MAX : value < -0x1p63 ? INT64_MIN : (int64_t)value;
    return true;
}

/* snprintf under the C locale, which is set for this thread only and put back at once. */
static void put(tsr_text *out, const char *format, int precision, double value)
{
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!c) {
        out->failed = true;
        return;
    }
    locale_t before = uselocale(c);
    tsr_text_printf(out, format, precision, value); /* formats are the two literals below */
    uselocale(before);
    freelocale(c);
}

void tsr_number_put(tsr_text *out, double value, int digits)
{
    if (digits > 0) {
        put(out, "%.*g", digits, value);
        return;
    }
    if (value == floor(value) && fabs(value) < 1e15) { /* 20, where %g has 2e+01 */
        put(out, "%.*f", 0, value);
        return;
    }
    for (int d = 1; d <= 17; d++) {
        tsr_text text = {0};
        double again = 0;
        put(&text, "%.*g", d, value);
        bool same = d == 17 || (tsr_number_parse(&again, tsr_text_string(&text)) && again == value);
        if (same)
            tsr_text_puts(out, tsr_text_string(&text));
        out->failed |= text.failed;
        tsr_text_free(&text);
        if (same)
            return;
    }
}

void tsr_number_put_fixed(tsr_text *out, double value, int decimals)
{
    put(out, "%.*f", decimals, value);
}
