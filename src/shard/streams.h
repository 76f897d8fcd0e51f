/*
 * shard/streams.h: the five streams of a run.
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
    TSR_STREAM_COUNT
} tsr_stream_id;

typedef struct {
    tsr_stream *stream[TSR_STREAM_COUNT];
    bool borrowed_comm;
} tsr_streams;

/* comm: the device's stream of collectives, borrowed; NULL: one is created too. On success the
 * caller destroys *out. */
tsr_status tsr_streams_create(tsr_streams *out, tsr_device *device, tsr_stream *comm);
void tsr_streams_destroy(tsr_streams *streams);

/* Waits until every stream is idle; the device's first error. */
tsr_status tsr_streams_synchronize(const tsr_streams *streams);

const char *tsr_stream_id_name(tsr_stream_id id);

#endif
