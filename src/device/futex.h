/*
 * device/futex.h: sleep until a 32-bit word changes. Works between threads and, in shared memory,
 * between processes.
 */
#ifndef TSR_DEVICE_FUTEX_H
#define TSR_DEVICE_FUTEX_H

#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Returns when woken, when *word is not `seen` (any more), after `seconds`, or for no reason: the
 * caller looks at its condition again. */
static inline void tsr_futex_wait(_Atomic uint32_t *word, uint32_t seen, double seconds)
{
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    syscall(SYS_futex, word, FUTEX_WAIT, seen, &t, NULL, 0);
}

static inline void tsr_futex_wake(_Atomic uint32_t *word, int count)
{
    syscall(SYS_futex, word, FUTEX_WAKE, count, NULL, NULL, 0);
}

static inline void tsr_futex_wake_all(_Atomic uint32_t *word)
{
    tsr_futex_wake(word, INT_MAX);
}

/* Tells the core that this is a waiting loop. */
static inline void tsr_cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
