#include "shard/streams.h"

const char *tsr_stream_id_name(tsr_stream_id id)
{
    static const char *const name[TSR_STREAM_COUNT] = {
        [TSR_STREAM_COMPUTE] = "compute",
        [TSR_STREAM_COMM] = "comm",
        [TSR_STREAM_H2D] = "h2d",
        [TSR_STREAM_D2H] = "d2h",
        [TSR_STREAM_OPTIM] = "optim",
        [TSR_STREAM_STATE_IN] = "state in",
        [TSR_STREAM_STATE_OUT] = "state out",
    };
    return (unsigned)id < TSR_STREAM_COUNT ? name[id] : "?";
}

/* Those of [first, end) that are not there. */
static tsr_status make(tsr_streams *streams, tsr_device *device, int first, int end)
{
    for (int i = first; i < end; i++)
        if (!streams->stream[i])
            TSR_TRY(tsr_stream_create(&streams->stream[i], device,
                                      tsr_stream_id_name((tsr_stream_id)i)));
    return TSR_OK;
}

tsr_status tsr_streams_create(tsr_streams *out, tsr_device *device, tsr_stream *comm)
{
    tsr_streams streams = {.borrowed_comm = comm != NULL};
    streams.stream[TSR_STREAM_COMM] = comm;
    tsr_status status = make(&streams, device, 0, TSR_STREAM_STATE_IN);
    if (status < 0)
        tsr_streams_destroy(&streams);
    else
        *out = streams;
    return status;
}

tsr_status tsr_streams_add_state(tsr_streams *streams)
{
    return make(streams, tsr_stream_device(streams->stream[TSR_STREAM_COMPUTE]),
                TSR_STREAM_STATE_IN, TSR_STREAM_COUNT);
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
        tsr_status status =
            streams->stream[i] ? tsr_stream_synchronize(streams->stream[i]) : TSR_OK;
        if (first == TSR_OK)
            first = status;
    }
    return first;
}
