/*
 * base/aside.h: the calling thread's locale and arithmetic, put aside while the library works.
 *
 * A decimal comma would change what a chat template makes of 0.75, and make plan.json no JSON. Another rounding would
 * change the results, and a trap end the program where a division by zero is expected; threads have what the one has
 * that starts them.
 */
#ifndef TSR_BASE_ASIDE_H
#define TSR_BASE_ASIDE_H

#include <fenv.h>
#include <locale.h>
#include <stdbool.h>

/* Zero-initialised: nothing is put aside. */
typedef struct {
    bool aside;
    locale_t locale, c_locale; /* the caller's, and the one that it has meanwhile */
    fenv_t arithmetic;         /* the caller's */
} tsr_aside;

/* The C locale, rounding to nearest, no traps. Nothing if that is so already. Without memory for a locale the caller's
 * stays. */
void tsr_aside_begin(tsr_aside *aside);

/* The caller's again, on the same thread. */
void tsr_aside_end(tsr_aside *aside);

#endif
