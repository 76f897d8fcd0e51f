/*
 * kernels/grouped_gemm.cuh: the kernels of grouped_gemm and grouped_fp8.
 */
#ifndef TSR_KERNELS_GROUPED_GEMM_CUH
#define TSR_KERNELS_GROUPED_GEMM_CUH

#include "kernels/expert_tiles.cuh"
#include "kernels/grouped_fp8.h"
#include "kernels/mma.cuh"

/* grouped_gemm_wide.cu: bf16 in vectors, of rows that lie in order, on sm_90a. False: not on this card, and nothing was
 * done. */
bool tsr_grouped_gemm_wide(tsr_stream *stream, const tsr_grouped_gemm_args *args,
                           tsr_status *status);

/* grouped_gemm_wgmma.cu: the same of rows that are gathered; and of args->stored, decoded as it is multiplied with: false also
 * where its matrices leave gaps. */
bool tsr_grouped_gemm_wgmma(tsr_stream *stream, const tsr_grouped_gemm_args *args,
                            tsr_status *status);
bool tsr_grouped_gemm_codes(tsr_stream *stream, const tsr_grouped_gemm_args *args,
                            tsr_status *status);

/* grouped_gemm_mma.cu: bf16 in vectors, on any card. */
tsr_status tsr_grouped_gemm_mma(tsr_stream *stream, const tsr_grouped_gemm_args *args);

/* The same of grouped_fp8, of e4m3 with z in bf16, where tsr_fp8_mma_here. */
tsr_status tsr_grouped_fp8_mma(tsr_stream *stream, const tsr_grouped_fp8_args *args);

/* Whether z is bf16 and all in vectors, x and w in e4m3. */
static inline bool tsr_grouped_fp8_vectors(const tsr_grouped_gemm_args *args)
{
    return args->dtype == TSR_BF16 && args->in % 16 == 0 && args->out % 16 == 0 &&
           tsr_vectors(16, args->z, args->x, args->w) &&
           tsr_vectors(args->r, args->low, args->factor);
}

/* grouped_plain.cu: anything; without x_scale grouped_gemm. */
tsr_status tsr_grouped_plain(tsr_stream *stream, const tsr_grouped_fp8_args *args);

/* grouped_fp8_wgmma.cu: e4m3 in vectors, on sm_90a. False: not on this card, and nothing was done. */
bool tsr_grouped_fp8_wgmma(tsr_stream *stream, const tsr_grouped_fp8_args *args,
                           tsr_status *status);

/* ---- results: of a warp, 16 rows and 32 columns as mma's accumulators hold them ---- */

#define TSR_GROUPED_STRIP 32

/* bias[m]: of the lane's two columns of the strip's group m of 8. */
static __device__ __forceinline__ void tsr_grouped_bias(float bias[4][2],
                                                        const tsr_grouped_gemm_args *args,
                                                        int outer, int expert, int column)
{
    const tsr_frozen *from = &args->bias;
    int64_t row = (args->first + expert) * outer;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int at = column + i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2;
        bias[i / 2][i % 2] =
            from->data && at < outer ? tsr_load(from->data, row + at, from->dtype) : 0;
    }
}

/* c[m] is the strip's group m of 8. Quads exchange what they have, so that a lane stores eight columns at
 * once. All lanes call. */
static __device__ __forceinline__ void tsr_grouped_write(const tsr_grouped_gemm_args *args,
                                                         int outer, const tsr_expert_tile *tile,
                                                         int row, int column, const float c[4][4])
{
    int own = column + threadIdx.x % 4 * TSR_VECTOR;
    float bias[4][2];
    if (column >= outer)
        return;
    tsr_grouped_bias(bias, args, outer, tile->expert, column);
    row += threadIdx.x % TSR_WARP / 4;
#pragma unroll
    for (int upper = 0; upper < 2; upper++) {
        bool valid = row + upper * 8 < tile->row_end && own < outer;
        int64_t at = (int64_t)(row + upper * 8) * outer + own;
        uint32_t word[4];
#pragma unroll
        for (int m = 0; m < 4; m++)
            word[m] = tsr_pack_bf16(c[m][2 * upper] + bias[m][0], c[m][2 * upper + 1] + bias[m][1]);
        tsr_quad_words(word);
        if (valid)
            *(uint4 *)((uint16_t *)args->z + at) = make_uint4(word[0], word[1], word[2], word[3]);
    }
}

#endif
