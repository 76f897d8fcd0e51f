/*
 * kernels/nf4_merge.cuh: the two kernels of nf4_merge.
 */
#ifndef TSR_KERNELS_NF4_MERGE_CUH
#define TSR_KERNELS_NF4_MERGE_CUH

#include "kernels/nf4_scale.cuh"

/* nf4_merge_low.cu: ranks up to this, whose part of A stays in registers. */
#define TSR_NF4_MERGE_LOW 32
void tsr_nf4_merge_low(tsr_stream *stream, const tsr_nf4_merge_args *args);

#endif
