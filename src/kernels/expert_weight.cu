/*
 * expert_weight.cu: contract expert_weight.h; reference expert_weight_ref.c.
 */
#include "kernels/cuda.cuh"

extern "C" tsr_status tsr_expert_weight_cuda(tsr_stream *stream, const tsr_expert_weight_args *args)
{
    (void)stream;
    TSR_TRY(tsr_expert_weight_check(args));
    return tsr_fail(TSR_EUNSUPPORTED, "expert_weight: not on a GPU yet");
}
