/*
 * device/cpu_parts.h: what the files of the CPU device share.
 *
 * One mutex guards the FIFOs, the events and the poison of a device; one condition variable tells
 * whoever waits for an event, for room in a FIFO or for an idle stream that something has changed.
 * It is signalled only where somebody waits for just that: to wake every waiting thread after every
 * item costs a small step a tenth of its time.
 * The work itself runs without the mutex.
 */
#ifndef TSR_DEVICE_CPU_PARTS_H
#define TSR_DEVICE_CPU_PARTS_H

#include "device/device.h"
#include "device/topology.h"

#include <pthread.h>
#include <stdatomic.h>

#define FIFO_ITEMS 1024 /* of a stream; a step of a plan enqueues fewer than it waits for */

struct tsr_device {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    double progress_time; /* when the last item ended, on any stream */
    int tail_waiters;     /* threads that wait for the end of items of a stream */
    int stream_count;
    _Atomic bool poisoned;
    tsr_error error; /* written once, before `poisoned` */

    tsr_device_options options;
    tsr_topology *topology;
    tsr_pool *pool;
    char description[192];
};

/* A wait with a deadline that starts again whenever the device gets something done: what counts is
 * how long nothing has moved, not how much work lies before the awaited one. */
typedef struct {
    struct timespec limit;
    double begin;
} tsr_device_wait;

/* Both with the device's mutex held. Sleeps until `changed`; false after the deadline. */
void tsr_device_wait_begin(tsr_device_wait *wait, const tsr_device *device);
bool tsr_device_wait_changed(tsr_device_wait *wait, tsr_device *device);

/* Starts a thread of this name that takes no signals, so that they reach the program's own. */
tsr_status tsr_thread_start(pthread_t *out, const char *name, void *(*function)(void *), void *arg);

/* ---- pool.c ---- */

/* `topology` NULL: threads are not bound; else borrowed. `spin`: idle threads wait in a loop a
 * little before they sleep. */
tsr_status tsr_pool_create(tsr_pool **out, int thread_count, const tsr_topology *topology,
                           bool spin);
void tsr_pool_destroy(tsr_pool *pool);

#endif
