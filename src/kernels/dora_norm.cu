/*
 * dora_norm.cu: contract dora_norm.h; reference dora_norm_ref.c, which adds a row's products in fp32:
 * here they are added in fp64 and rounded once; what follows is the reference's arithmetic.
 *
 * Split    8 lanes a row, a lane has groups of 8 neighbouring columns, TURNS of them in flight, and
 *          adds even and odd columns apart. A row's bits depend on r only: where rows are not on 16
 *          bytes the same sums are read one by one. Blocks are small, for 14,336 rows are only 7 of
 *          these blocks on each of 132 multiprocessors.
 * Cost     3 rows r elements read; a product is a conversion to fp64 (16 a clock and multiprocessor)
 *          and a multiply-add: a third of the time of the reads.
 */
#include "kernels/vectors.cuh"

#define THREADS 128
#define BLOCKS  7 /* of a multiprocessor, at least */
#define LANES   8 /* of a row */
#define TURNS   2 /* groups of a lane under way: 160 bytes with b in bf16 */

typedef struct {
    float twice, square; /* 2s and s^2 */
} dora_scales;

/* The sum over the lanes of a row, in all of them. */
static __device__ __forceinline__ double lanes_sum(double value)
{
#pragma unroll
    for (int offset = LANES / 2; offset; offset /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

/* sum[0] of even, sum[1] of odd columns. */
static __device__ __forceinline__ void add_products(double *sum, const float *b, tsr_raw8 raw)
{
    float other[TSR_VECTOR];
    tsr_raw_widen(other, raw, TSR_F32);
#pragma unroll
    for (int i = 0; i < TSR_VECTOR; i++)
        sum[i % 2] = fma((double)b[i], (double)other[i], sum[i % 2]);
}

static __device__ __forceinline__ void
dora_norms(const tsr_dora_norm_args *a, const dora_scales *scales, tsr_dtype dtype, bool whole)
{
    int lane = threadIdx.x % LANES;
    int64_t row = (int64_t)blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES;
    double cross[2] = {0, 0}, ba[2] = {0, 0};
    for (int64_t k = lane * TSR_VECTOR; row < a->rows && k < a->r;
         k += LANES * TURNS * TSR_VECTOR) {
        tsr_raw8 b[TURNS], u[TURNS], bg[TURNS];
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            int64_t column = k + turn * LANES * TSR_VECTOR, at = row * a->r + column;
            int count = (int)min((int64_t)TSR_VECTOR, a->r - column);
            if (count <= 0)
                break;
            b[turn] = tsr_raw_load(a->b, at, count, dtype, whole);
            u[turn] = tsr_raw_load(a->u, at, count, TSR_F32, whole);
            bg[turn] = tsr_raw_load(a->bg, at, count, TSR_F32, whole);
        }
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            float value[TSR_VECTOR];
            if (k + turn * LANES * TSR_VECTOR >= a->r)
                break;
            tsr_raw_widen(value, b[turn], dtype);
            add_products(cross, value, u[turn]);
            add_products(ba, value, bg[turn]);
        }
    }
    float rounded_cross = (float)lanes_sum(cross[0] + cross[1]);
    float rounded_ba = (float)lanes_sum(ba[0] + ba[1]);
    if (row >= a->rows || lane != 0)
        return;
    float w2 = a->squares[row];
    if (a->row_scale) {
        float c = a->row_scale[row];
        w2 = __fmul_rn(c, __fmul_rn(c, w2));
        rounded_cross = __fmul_rn(c, rounded_cross);
    }
    float value = __fadd_rn(__fadd_rn(w2, __fmul_rn(scales->twice, rounded_cross)),
                            __fmul_rn(scales->square, rounded_ba));
    float n = __fsqrt_rn(value < 0 ? 0 : value); /* a NaN is not below 0 and stays */
    a->n[row] = n;
    a->g[row] = a->m ? __fdiv_rn(a->m[row], n) : 1;
}

TSR_KERNELS_OF(dora_norms, dora_norms, tsr_dora_norm_args, dora_scales, THREADS, BLOCKS)

extern "C" tsr_status tsr_dora_norm_cuda(tsr_stream *stream, const tsr_dora_norm_args *args)
{
    TSR_TRY(tsr_dora_norm_check(args));
    if (args->rows == 0)
        return TSR_OK;
    bool whole = tsr_vectors(args->r, args->u, args->bg, args->b);
    dora_scales scales = {(float)(2 * args->scale), (float)(args->scale * args->scale)};
    TSR_LAUNCH_OF(dora_norms, whole, args->dtype, tsr_blocks(args->rows, THREADS / LANES), THREADS,
                  stream, *args, scales);
    return tsr_launched("dora_norm");
}
