/*
 * grouped_gemm.cu: contract grouped_gemm.h; reference grouped_gemm_ref.c.
 */
#include "kernels/cuda.cuh"

extern "C" tsr_status tsr_grouped_gemm_cuda(tsr_stream *stream, const tsr_grouped_gemm_args *args)
{
    (void)stream;
    TSR_TRY(tsr_grouped_gemm_check(args));
    return tsr_fail(TSR_EUNSUPPORTED, "grouped_gemm: not on a GPU yet");
}
