/*
 * ops_fp8.h: the ops of e4m3 at the shapes of bench_ops, and their matmuls beside those of bf16.
 */
#ifndef TSR_BENCH_OPS_FP8_H
#define TSR_BENCH_OPS_FP8_H

#include "kernels/kernels.h"

/* Matmuls are tuned first, as a run's start does. What the card has not is said and left out. */
void ops_fp8(tsr_device *device, tsr_stream *stream, const tsr_kernels *kernels);

/* The matmul of these codes with scales by tiles instead. */
void ops_fp8_tiles(tsr_stream *stream, const tsr_fp8_gemm_args *args, const char *shape);

#endif
