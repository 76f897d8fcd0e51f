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

#include "device/device_parts.h"

#define FIFO_ITEMS 1024 /* of a stream; a step of a plan enqueues fewer than it waits for */

typedef struct {
    tsr_device base;
    double progress_time; /* when the last item ended, on any stream */
    int tail_waiters;     /* threads that wait for the end of items of a stream */
    int stream_count;
} cpu_device;

/* ---- stream_cpu.c: the slots of the CPU's table ---- */

tsr_status tsr_cpu_stream_create(tsr_stream **out, tsr_device *device, const char *name);
void tsr_cpu_stream_destroy(tsr_stream *stream);
tsr_status tsr_cpu_stream_synchronize(tsr_stream *stream);
tsr_status tsr_cpu_stream_call(tsr_stream *stream, tsr_call *function, const void *args,
                               uint32_t args_bytes);
tsr_status tsr_cpu_stream_copy(tsr_stream *stream, void *destination, const void *source,
                               uint64_t bytes);
tsr_status tsr_cpu_stream_fill(tsr_stream *stream, void *destination, uint8_t value,
                               uint64_t bytes);
tsr_status tsr_cpu_stream_wait(tsr_stream *stream, tsr_event *event, uint64_t generation);
tsr_status tsr_cpu_event_create(tsr_event **out, tsr_device *device, bool timed);
void tsr_cpu_event_destroy(tsr_event *event);
tsr_status tsr_cpu_event_record(tsr_event *event, tsr_stream *stream);
tsr_status tsr_cpu_event_wait_host(tsr_event *event, uint64_t generation);
double tsr_cpu_event_time(tsr_event *event);

#endif
