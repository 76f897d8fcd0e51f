/*
 * base/clones.h: one loop compiled for several instruction sets, chosen when the program starts.
 * Every clone gives the same bits: nothing is contracted and no reduction is reordered. Off under
 * sanitizers, whose run-time is not up yet when the choice is made.
 */
#ifndef TSR_BASE_CLONES_H
#define TSR_BASE_CLONES_H

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(TSR_SANITIZED)
#define TSR_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define TSR_CLONES
#endif

/* For a loop over arrays of a fixed length that the caller has: a sanitizer has nothing to find in it, and looks at every
 * element. */
#if defined(TSR_SANITIZED) && defined(__GNUC__) && !defined(__clang__)
#define TSR_FIXED_LOOP __attribute__((no_sanitize("address,undefined,thread")))
#else
#define TSR_FIXED_LOOP
#endif

#endif
