/*
 * kernels/expert_low_rank.cuh: the kernels of expert_low_rank_backward.
 */
#ifndef TSR_KERNELS_EXPERT_LOW_RANK_CUH
#define TSR_KERNELS_EXPERT_LOW_RANK_CUH

#include "kernels/cuda.cuh"
#include "kernels/expert_low_rank_backward.h"

/* expert_low_rank_mma.cu: bf16 in vectors. */
tsr_status tsr_expert_low_rank_mma(tsr_stream *stream,
                                   const tsr_expert_low_rank_backward_args *args);

/* Both are [rows, r] of dtype in the scratch, each on 16 bytes. */
static __device__ __forceinline__ void *tsr_expert_low(const tsr_expert_low_rank_backward_args *a)
{
    return a->scratch;
}

static __device__ __forceinline__ void *tsr_expert_d_low(const tsr_expert_low_rank_backward_args *a)
{
    int64_t bytes = a->rows.most * a->r * (a->dtype == TSR_F32 ? 4 : 2);
    return (char *)a->scratch + (bytes + 15) / 16 * 16;
}

#endif
