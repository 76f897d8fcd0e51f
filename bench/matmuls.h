/*
 * bench/matmuls.h: the matmuls that a linear runs: noted instead of run, and their kernels chosen as a run does at start-up.
 */
#ifndef BENCH_MATMULS_H
#define BENCH_MATMULS_H

#include "kernels/kernels.h"

/* A table that notes matmuls and does nothing else; none is noted yet. One list a program. */
const tsr_kernels *bench_matmuls_note(void);

/* Chooses the kernels of those that were noted. scratch: device memory, overwritten. Waits. */
tsr_status bench_matmuls_prepare(const tsr_kernels *kernels, tsr_stream *stream, void *scratch,
                                 uint64_t scratch_bytes);

#endif
