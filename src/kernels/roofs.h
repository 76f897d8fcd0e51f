/*
 * kernels/roofs.h: what a device sustains, measured through the very ops and copies that a run uses:
 * the figures that times of steps are held against, in `tessera env --measure`, in plans and in
 * benchmarks.
 *
 * A rate is the median over samples of many calls each, after a warm-up, for about `seconds`; `best` is
 * that of the fastest sample, which other work on the machine disturbs least. Data is random: a GPU's
 * clock under load depends on it.
 *
 * Order    open, measure, close. Waits; allocates; no part of a run.
 */
#ifndef TSR_KERNELS_ROOFS_H
#define TSR_KERNELS_ROOFS_H

#include "kernels/kernels.h"

typedef struct tsr_roofs tsr_roofs;

typedef struct {
    double rate, best; /* FLOP/s or bytes/s */
} tsr_roof;

/* `bytes` of device memory for operands, filled; tsr_roofs_matmul_bytes says what a matmul needs. */
tsr_status tsr_roofs_open(tsr_roofs **out, const tsr_kernels *kernels, tsr_device *device,
                          uint64_t bytes);
void tsr_roofs_close(tsr_roofs *roofs);

/* y [m, n] = x w: w is [n, k] if `transposed` (a forward), else [k, n] (its backward). */
typedef struct {
    int64_t m, n, k;
    bool transposed;
    tsr_dtype dtype; /* of all three; F8_E4M3: of x and w, y is BF16, or F32 on the CPU */
} tsr_roofs_matmul_shape;

uint64_t tsr_roofs_matmul_bytes(const tsr_roofs_matmul_shape *shape);

/* 2 m n k FLOPs a call. On a GPU its kernel is chosen first, as a run's start does. TSR_EUNSUPPORTED:
 * there is no such matmul in e4m3 here (kernels/fp8_gemm.h); they are all `transposed`. */
tsr_status tsr_roofs_matmul(tsr_roof *out, tsr_roofs *roofs, const tsr_roofs_matmul_shape *shape,
                            double seconds);

typedef enum {
    TSR_ROOF_COPY_OP,        /* in device memory by an op; reads and writes count */
    TSR_ROOF_COPY_STREAM,    /* in device memory by the stream's copy; reads and writes count */
    TSR_ROOF_HOST_TO_DEVICE, /* from pinned memory; on the CPU both are memory of the host */
    TSR_ROOF_DEVICE_TO_HOST
} tsr_roof_copy;

/* Of half the operands' memory; to and from the host at most 256 MiB at a time. */
tsr_status tsr_roofs_copy(tsr_roof *out, tsr_roofs *roofs, tsr_roof_copy kind, double seconds);

/* Causal attention over rows of one length. */
typedef struct {
    int64_t rows, length;
    int32_t heads, kv_heads, head_dim;
    tsr_dtype dtype;
    bool atomics; /* as in tsr_attention_bounds; so is wider */
    int wider;
} tsr_roofs_attention_shape;

/* What it needs of the operands' memory; makes the kernels' plans for it on a GPU. */
tsr_status tsr_roofs_attention_bytes(uint64_t *out, const tsr_kernels *kernels, tsr_device *device,
                                     const tsr_roofs_attention_shape *shape);

/* FLOP/s of the forward and of the backward; only the visible half of the scores counts. */
tsr_status tsr_roofs_attention(tsr_roof *forward, tsr_roof *backward, tsr_roofs *roofs,
                               const tsr_roofs_attention_shape *shape, double seconds);

#endif
