/*
 * grouped_fp8.cu: contract grouped_fp8.h; reference grouped_fp8_ref.c. Which way is taken.
 */
#include "kernels/grouped_gemm.cuh"
#include "kernels/kernels_cuda.h"

static tsr_status multiply_stored(tsr_stream *stream, const tsr_grouped_fp8_args *args)
{
    const tsr_grouped_gemm_args *gemm = &args->gemm;
    for (int64_t first = gemm->first; first < gemm->first + gemm->count; first += gemm->held) {
        tsr_expert_fp8_args weight;
        tsr_grouped_fp8_args part = tsr_grouped_fp8_part(&weight, args, first);
        TSR_TRY(tsr_expert_fp8_cuda(stream, &weight));
        TSR_TRY(tsr_grouped_fp8_cuda(stream, &part));
    }
    return TSR_OK;
}

extern "C" tsr_status tsr_grouped_fp8_cuda(tsr_stream *stream, const tsr_grouped_fp8_args *args)
{
    const tsr_grouped_gemm_args *gemm = &args->gemm;
    tsr_status status;
    TSR_TRY(tsr_grouped_fp8_check(args));
    TSR_TRY(tsr_expert_limit("grouped_fp8", gemm->count));
    if (gemm->rows.most == 0 || gemm->count == 0)
        return TSR_OK;
    if (!gemm->w)
        return multiply_stored(stream, args);
    if (!tsr_grouped_fp8_vectors(gemm))
        return tsr_grouped_plain(stream, args);
    if (tsr_grouped_fp8_wgmma(stream, args, &status))
        return status;
    return tsr_fp8_mma_here(tsr_stream_device(stream)) ? tsr_grouped_fp8_mma(stream, args)
                                                       : tsr_grouped_plain(stream, args);
}
