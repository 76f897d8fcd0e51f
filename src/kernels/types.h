/*
 * kernels/types.h: what the contracts of the device operations share.
 *
 * Conventions of every op X
 *   Args     tsr_X_args, at most TSR_CALL_BYTES. Zero-initialise: an optional pointer is NULL.
 *   Layout   Row-major and dense unless a leading dimension is given. Counts are of elements.
 *   Types    Activations and their gradients are `void *` of `dtype` (the CPU takes TSR_F32 only,
 *            else TSR_EUNSUPPORTED); statistics, g, n and gradients of parameters are float.
 *   Empty    Zero tokens, rows or elements are fine: sums are then zero, nothing else is touched.
 *   Alias    Buffers do not overlap, unless the op says which may be the same.
 *   Bits     The split over threads depends on shapes only, sums run in a fixed order: any number
 *            of threads gives the same bits (per CPU kernel set, see tsr_kernels_cpu_set).
 *   Partials The column sums of a backward (dm) over tokens: a backend that splits the tokens keeps
 *            its partial sums in `partials`, [tsr_kernels.partial_rows, columns] floats, scratch
 *            from the caller; others ignore it.
 *   Calls    tsr_X_check judges the arguments (TSR_EINVAL, TSR_EUNSUPPORTED), for every backend.
 *            tsr_X_ref checks and runs on the calling thread and the pool: it is the CPU backend
 *            and the oracle of the others. tsr_kernels_cpu()->X enqueues it on a stream.
 *            tsr_X_cuda checks and launches on a CUDA stream; a CUDA-only limit is its own.
 */
#ifndef TSR_KERNELS_TYPES_H
#define TSR_KERNELS_TYPES_H

#include "base/dtype.h"
#include "base/status.h"
#include "device/device.h"

#include <stdbool.h>
#include <stdint.h>

/* Frozen parameters as the checkpoint has them: data is BF16 or F32 as dtype says; NULL: none. */
typedef struct {
    const void *data;
    tsr_dtype dtype;
} tsr_frozen;

#endif
