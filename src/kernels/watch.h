/*
 * kernels/watch.h: a table whose ops say when they begin and end, for traces.
 *
 * The watcher is the calling thread's, so that ranks that are threads do not see each other's ops.
 * Without one a watched table does what the device's own does.
 */
#ifndef TSR_KERNELS_WATCH_H
#define TSR_KERNELS_WATCH_H

#include "kernels/kernels.h"

/* Called by the thread that calls the op, before and after it enqueues; what they enqueue on
 * `stream` runs just before and after the op. `op` is a constant: "gemm". */
typedef struct {
    tsr_status (*begin)(void *user, tsr_stream *stream, const char *op);
    tsr_status (*end)(void *user, tsr_stream *stream, const char *op);
    void *user;
} tsr_kernel_watcher;

/* `table` with all its ops watched. */
tsr_kernels tsr_kernels_watched(const tsr_kernels *table);

/* Of the calling thread; NULL: none. Borrowed until the next call. */
void tsr_kernels_watch(const tsr_kernel_watcher *watcher);

#endif
