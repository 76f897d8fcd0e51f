#include "shard/streams.h"

const char *tsr_stream_id_name(tsr_stream_id id)
{
    static const char *const name[TSR_STREAM_COUNT] = {
        [TSR_STREAM_COMPUTE] = "compute", [TSR_STREAM_COMM] = "comm",   [TSR_STREAM_H2D] = "h2d",
        [TSR_STREAM_D2H] = "d2h",         [TSR_STREAM_OPTIM] = "optim",
    };
    return (unsigned)id < TSR_STREAM_COUNT ? name[id] : "?";
}

tsr_status tsr_streams_create(tsr_streams *out, tsr_device *device, tsr_stream *comm)
{
    tsr_streams streams = {.borrowed_comm = comm != NULL};
    streams.stream[TSR_STREAM_COMM] = comm;
    for (int i = 0; i < TSR_STREAM_COUNT; i++) {
        if (streams.stream[i])
            continue;
        tsr_status status =
            tsr_stream_create(&streams.stream[i], device, tsr_stream_id_name((tsr_stream_id)i));
        if (status < 0) {
            tsr_streams_destroy(&streams);
            return status;
        }
    }
    *out = streams;
    return TSR_OK;
}

void tsr_streams_destroy(tsr_streams *streams)
{
    if (!streams)
        return;
    for (int i = 0; i < TSR_STREAM_COUNT; i++) {
        if (streams->stream[i] && !(i == TSR_STREAM_COMM && streams->borrowed_comm))
            tsr_stream_destroy(streams->stream[i]);
        streams->stream[i] = NULL;
    }
}

tsr_status tsr_streams_synchronize(const tsr_streams *streams)
{
    tsr_status first = TSR_OK;
    for (int i = 0; i < TSR_STREAM_COUNT; i++) {
        tsr_status status = tsr_stream_synchronize(streams->stream[i]);
        if (first == TSR_OK)
            first = status;
    }
    return first;
}
