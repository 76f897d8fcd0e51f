/*
 * shard/streams.h: the streams of a run: five, and two more where optimizer state travels.
 */
#ifndef TSR_SHARD_STREAMS_H
#define TSR_SHARD_STREAMS_H

#include "device/device.h"

typedef enum {
    TSR_STREAM_COMPUTE,
    TSR_STREAM_COMM, /* every collective of every communicator, in plan order */
    TSR_STREAM_H2D,
    TSR_STREAM_D2H,
    TSR_STREAM_OPTIM,
    /* Optimizer state that lives in host memory, to the device and back. Such copies follow each other for most of a
     * step, so that whatever stood behind them would wait for all of it: what a forward needs goes over H2D and
     * D2H. */
    TSR_STREAM_STATE_IN,
    TSR_STREAM_STATE_OUT,
    TSR_STREAM_COUNT
} tsr_stream_id;

typedef struct {
    tsr_stream *stream[TSR_STREAM_COUNT]; /* NULL: not made */
    bool borrowed_comm;
} tsr_streams;

/* All but those of the state. comm: the device's stream of collectives, borrowed; NULL: one is created too. On
 * success the caller destroys *out. */
tsr_status tsr_streams_create(tsr_streams *out, tsr_device *device, tsr_stream *comm);
/* Makes those of the state; nothing where they are there. A GPU has a few queues that streams share beyond, so
 * there are no more streams than a run has work for. */
tsr_status tsr_streams_add_state(tsr_streams *streams);
void tsr_streams_destroy(tsr_streams *streams);

/* Waits until every stream is idle; the device's first error. */
tsr_status tsr_streams_synchronize(const tsr_streams *streams);

const char *tsr_stream_id_name(tsr_stream_id id);

#endif
