/*
 * expert_low_rank_backward.cu: contract expert_low_rank_backward.h; reference expert_low_rank_backward_ref.c.
 */
#include "kernels/cuda.cuh"

extern "C" tsr_status
tsr_expert_low_rank_backward_cuda(tsr_stream *stream, const tsr_expert_low_rank_backward_args *args)
{
    (void)stream;
    TSR_TRY(tsr_expert_low_rank_backward_check(args));
    return tsr_fail(TSR_EUNSUPPORTED, "expert_low_rank_backward: not on a GPU yet");
}
