/*
 * device/cuda_parts.h: what the files of the CUDA device share.
 *
 * Nothing here waits without an end: instead of CUDA's own waits, events and streams are polled
 * until they are done, the device is poisoned or its deadline has passed. A call that CUDA may make
 * wait for running work (freeing memory) comes after such a wait, and not at all when it fails: a
 * device on which something never ends is left as it is, for the end of the process to clear away.
 */
#ifndef TSR_DEVICE_CUDA_PARTS_H
#define TSR_DEVICE_CUDA_PARTS_H

#include "device/cuda.h"
#include "device/device_parts.h"

typedef struct cuda_stream cuda_stream;

typedef struct {
    tsr_device base;
    tsr_cuda_properties properties; /* index -1 until the card is this process's */
    char name[64];
    tsr_stream *own;    /* of writes, reads, clears and the clock */
    _Atomic bool stuck; /* work that has not ended within the deadline */

    pthread_mutex_t streams_lock;
    cuda_stream *streams; /* all, to wait for before memory is freed */
    int stream_count;

    /* The card's clock: `mark` was recorded at mark_time of tsr_now. */
    pthread_mutex_t clock_lock;
    cudaEvent_t mark, spare;
    double mark_time, mark_tried;
    bool clock_set;
} cuda_device;

/* Until all of `stream` has run, or for one record only if `event`, or if `count` until it has
 * reached `target`. */
typedef struct {
    cudaStream_t stream;
    cudaEvent_t event;
    const _Atomic uint64_t *count;
    uint64_t target;
    bool drain; /* wait even if the device is poisoned */
} tsr_cuda_awaited;

/* cudaSuccess: it has; cudaErrorNotReady: it has not within the deadline, or the device is poisoned;
 * else what went wrong. */
cudaError_t tsr_cuda_poll(cuda_device *device, const tsr_cuda_awaited *awaited);

/* TSR_OK, or poisons the device with what CUDA says of `what` and `stream`, and returns that. */
tsr_status tsr_cuda_enqueued(tsr_device *device, cudaError_t error, const char *what,
                             const char *stream);

/* Waits for all streams, poisoned or not; false, and the device is stuck, after the deadline. */
bool tsr_cuda_drain(cuda_device *device);

/* Makes the device the calling thread's. */
void tsr_cuda_enter(const tsr_device *device);

/* ---- stream_cuda.c: slots of CUDA's table, and the clock ---- */

tsr_status tsr_cuda_stream_create(tsr_stream **out, tsr_device *device, const char *name);
void tsr_cuda_stream_destroy(tsr_stream *stream);
tsr_status tsr_cuda_stream_synchronize(tsr_stream *stream);
tsr_status tsr_cuda_stream_call(tsr_stream *stream, tsr_call *function, const void *args,
                                uint32_t args_bytes);
tsr_status tsr_cuda_stream_copy(tsr_stream *stream, void *destination, const void *source,
                                uint64_t bytes);
tsr_status tsr_cuda_stream_fill(tsr_stream *stream, void *destination, uint8_t value,
                                uint64_t bytes);
tsr_status tsr_cuda_stream_wait(tsr_stream *stream, tsr_event *event, uint64_t generation);
tsr_status tsr_cuda_event_create(tsr_event **out, tsr_device *device, bool timed);
void tsr_cuda_event_destroy(tsr_event *event);
tsr_status tsr_cuda_event_record(tsr_event *event, tsr_stream *stream);
tsr_status tsr_cuda_event_wait_host(tsr_event *event, uint64_t generation);
double tsr_cuda_event_time(tsr_event *event);

tsr_status tsr_cuda_clock_create(cuda_device *device);
void tsr_cuda_clock_destroy(cuda_device *device);

#endif
