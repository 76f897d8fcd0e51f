#include "kernels/watch.h"

static _Thread_local const tsr_kernel_watcher *watcher;

void tsr_kernels_watch(const tsr_kernel_watcher *new_watcher)
{
    watcher = new_watcher;
}

static const tsr_kernels *table_of(tsr_stream *stream)
{
    bool cpu = tsr_device_kind_of(tsr_stream_device(stream)) == TSR_DEVICE_CPU;
    return cpu ? tsr_kernels_cpu() : tsr_kernels_cuda();
}

#define WATCHED_OP(op)                                                                             \
    static tsr_status op##_watched(tsr_stream *stream, const tsr_##op##_args *args)                \
    {                                                                                              \
        const tsr_kernel_watcher *w = watcher;                                                     \
        if (!w)                                                                                    \
            return table_of(stream)->op(stream, args);                                             \
        TSR_TRY(w->begin(w->user, stream, #op));                                                   \
        TSR_TRY(table_of(stream)->op(stream, args));                                               \
        return w->end(w->user, stream, #op);                                                       \
    }

TSR_KERNEL_OPS(WATCHED_OP)

#define WATCHED_SLOT(op) watched.op = op##_watched;

tsr_kernels tsr_kernels_watched(const tsr_kernels *table)
{
    tsr_kernels watched = *table;
    TSR_KERNEL_OPS(WATCHED_SLOT)
    return watched;
}
