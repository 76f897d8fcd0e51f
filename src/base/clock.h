/*
 * base/clock.h: monotonic time in seconds, for deadlines and measurements.
 */
#ifndef TSR_BASE_CLOCK_H
#define TSR_BASE_CLOCK_H

#include <time.h>

static inline double tsr_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The absolute CLOCK_MONOTONIC time `seconds` from now, for pthread_cond_clockwait-style waits. */
static inline struct timespec tsr_deadline(double seconds)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    if (seconds > 1e9)
        seconds = 1e9;
    t.tv_sec += (time_t)seconds;
    t.tv_nsec += (long)((seconds - (double)(time_t)seconds) * 1e9);
    if (t.tv_nsec >= 1000000000L) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000L;
    }
    return t;
}

#endif
