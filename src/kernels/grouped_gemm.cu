/*
 * grouped_gemm.cu: contract grouped_gemm.h; reference grouped_gemm_ref.c. Which way is taken.
 */
#include "kernels/grouped_gemm.cuh"
#include "kernels/kernels_cuda.h"

static bool in_vectors(const tsr_grouped_gemm_args *args)
{
    return args->dtype == TSR_BF16 && args->out % TSR_VECTOR == 0 &&
           tsr_vectors(args->in, args->z, args->x, args->w) &&
           tsr_vectors(args->r, args->low, args->factor);
}

static tsr_status multiply_stored(tsr_stream *stream, const tsr_grouped_gemm_args *args)
{
    tsr_status status;
    if (in_vectors(args) && tsr_grouped_gemm_codes(stream, args, &status))
        return status;
    for (int64_t first = args->first; first < args->first + args->count; first += args->held) {
        tsr_expert_weight_args weight;
        tsr_grouped_gemm_args part = tsr_grouped_gemm_part(&weight, args, first);
        TSR_TRY(tsr_expert_weight_cuda(stream, &weight));
        TSR_TRY(tsr_grouped_gemm_cuda(stream, &part));
    }
    return TSR_OK;
}

extern "C" tsr_status tsr_grouped_gemm_cuda(tsr_stream *stream, const tsr_grouped_gemm_args *args)
{
    tsr_status status;
    TSR_TRY(tsr_grouped_gemm_check(args));
    TSR_TRY(tsr_expert_limit("grouped_gemm", args->count));
    if (args->rows.most == 0 || args->count == 0)
        return TSR_OK;
    if (!args->w)
        return multiply_stored(stream, args);
    if (!in_vectors(args)) {
        tsr_grouped_fp8_args plain = {};
        plain.gemm = *args;
        return tsr_grouped_plain(stream, &plain);
    }
    if (tsr_grouped_gemm_wide(stream, args, &status) ||
        tsr_grouped_gemm_wgmma(stream, args, &status))
        return status;
    return tsr_grouped_gemm_mma(stream, args);
}
