/*
 * kernels/expert_low_rank.cuh: the kernels of expert_low_rank and expert_low_rank_backward.
 */
#ifndef TSR_KERNELS_EXPERT_LOW_RANK_CUH
#define TSR_KERNELS_EXPERT_LOW_RANK_CUH

#include "kernels/cuda.cuh"
#include "kernels/expert_low_rank.h"
#include "kernels/expert_low_rank_backward.h"

/* expert_low_rank_mma.cu: bf16 in vectors. */
tsr_status tsr_expert_low_rank_mma(tsr_stream *stream, const tsr_expert_low_rank_args *args);
tsr_status tsr_expert_low_rank_backward_mma(tsr_stream *stream,
                                            const tsr_expert_low_rank_backward_args *args);

#endif
