/*
 * base/thread.h: threads of the library's own.
 */
#ifndef TSR_BASE_THREAD_H
#define TSR_BASE_THREAD_H

#include "base/status.h"

#include <pthread.h>

/* Starts a thread of this name that takes no signals, so that they reach the program's own. TSR_EDEVICE. */
tsr_status tsr_thread_start(pthread_t *out, const char *name, void *(*function)(void *), void *arg);

#endif
