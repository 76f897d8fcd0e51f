/*
 * dropout.cu: contract dropout.h; reference dropout_ref.c, the same mask and the same fp32 values,
 * rounded once to dtype.
 *
 * Split    A thread takes 8 columns: two calls of Philox, one 16-byte access each way of a 16-bit
 *          dtype. As many threads along a row as it has groups of 8 for, to a power of two from 32
 *          to 256; the rest of a block's 256 are further rows.
 * Cost     2 elements moved (3 where out is added to). Ten rounds of Philox for 4 columns are 20
 *          wide multiplications, and x / keep is a true division: with 5 fused steps where neither
 *          it nor its remainder can underflow.
 */
#include "kernels/vectors.cuh"

#define THREADS 256
#define CALL    4 /* columns of a Philox call */
#define TURNS   2 /* groups of a thread: loads in flight */

/* base/philox.h: Philox4x32-10. */
static __device__ __forceinline__ void philox(uint32_t *word, uint64_t key, uint64_t sample,
                                              uint32_t position, uint32_t column)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t a = column, b = position, c = (uint32_t)sample, d = (uint32_t)(sample >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * a, p1 = (uint64_t)0xCD9E8D57u * c;
        a = (uint32_t)(p1 >> 32) ^ b ^ k0;
        c = (uint32_t)(p0 >> 32) ^ d ^ k1;
        b = (uint32_t)p1;
        d = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    word[0] = a, word[1] = b, word[2] = c, word[3] = d;
}

/* RN(x / keep). With r = RN(1 / keep), x r is within two ulps; the first step makes it faithful, and
 * from there a step with an exact remainder rounds correctly (Markstein 1990). The remainder is
 * exact where it is no subnormal: with keep >= 2^-24 where |x| >= 2^-60, and |x| < 2^100 keeps the
 * quotient finite. */
typedef struct {
    float r, least; /* |x| below `least` is divided as hardware does */
} reciprocal;

static reciprocal make_reciprocal(float keep)
{
    reciprocal r = {1 / keep, keep >= 0x1p-24f ? 0x1p-60f : INFINITY};
    return r;
}

static __device__ __forceinline__ float divide(float x, float keep, reciprocal r)
{
    if (!(fabsf(x) >= r.least && fabsf(x) < 0x1p100f))
        return __fdiv_rn(x, keep);
    float q = __fmul_rn(x, r.r);
    q = __fmaf_rn(__fmaf_rn(-q, keep, x), r.r, q);
    return __fmaf_rn(__fmaf_rn(-q, keep, x), r.r, q);
}

static __device__ __forceinline__ float drop(float x, uint32_t word, const tsr_dropout &d,
                                             reciprocal r)
{
    return word >= d.threshold ? divide(x, d.keep, r) : 0;
}

typedef struct {
    int64_t groups; /* of TSR_VECTOR columns, in a row */
    reciprocal keep;
} drop_plan;

/* Out may be x. */
static __device__ __forceinline__ void drop_group(float *out, const float *x, const float *old,
                                                  const uint32_t *word, const tsr_dropout_args &a,
                                                  reciprocal keep)
{
#pragma unroll
    for (int i = 0; i < TSR_VECTOR; i++) {
        float dropped = drop(x[i], word[i], a.dropout, keep);
        out[i] = a.add ? __fadd_rn(old[i], dropped) : dropped;
    }
}

static __device__ __forceinline__ void drop_rows(const tsr_dropout_args &a, const drop_plan &plan,
                                                 tsr_dtype dtype, bool whole)
{
    int64_t token = (int64_t)blockIdx.x * blockDim.y + threadIdx.y, row = token * a.columns;
    if (token >= a.tokens)
        return;
    uint64_t sample = (uint64_t)a.samples[token];
    uint32_t position = (uint32_t)a.positions[token];
    for (int64_t group = threadIdx.x; group < plan.groups; group += blockDim.x * TURNS) {
        tsr_raw8 x[TURNS], old[TURNS];
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            int64_t column = (group + turn * blockDim.x) * TSR_VECTOR;
            int count = (int)min((int64_t)TSR_VECTOR, a.columns - column);
            if (count > 0)
                x[turn] = tsr_raw_load(a.x, row + column, count, dtype, whole);
            if (count > 0 && a.add)
                old[turn] = tsr_raw_load(a.out, row + column, count, dtype, whole);
        }
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            int64_t column = (group + turn * blockDim.x) * TSR_VECTOR;
            int count = (int)min((int64_t)TSR_VECTOR, a.columns - column);
            if (count <= 0)
                break;
            uint32_t word[TSR_VECTOR];
            float value[TSR_VECTOR], before[TSR_VECTOR];
            philox(word, a.dropout.key, sample, position, (uint32_t)(column / CALL));
            philox(word + CALL, a.dropout.key, sample, position, (uint32_t)(column / CALL) + 1);
            tsr_raw_widen(value, x[turn], dtype);
            tsr_raw_widen(before, old[turn], dtype);
            drop_group(value, value, before, word, a, plan.keep);
            tsr_raw_store(a.out, row + column, count, value, dtype, whole);
        }
    }
}

TSR_KERNELS_OF(drop_rows, tsr_dropout_args, drop_plan, THREADS, 4)

extern "C" tsr_status tsr_dropout_cuda(tsr_stream *stream, const tsr_dropout_args *args)
{
    TSR_TRY(tsr_dropout_check(args));
    if (args->tokens == 0 || args->columns == 0)
        return TSR_OK;
    bool whole = tsr_vectors(args->x, args->columns) && tsr_vectors(args->out, args->columns);
    drop_plan plan = {(args->columns + TSR_VECTOR - 1) / TSR_VECTOR,
                      make_reciprocal(args->dropout.keep)};
    unsigned along = TSR_WARP;
    while (along < THREADS && along * TURNS < plan.groups)
        along *= 2;
    dim3 block(along, THREADS / along);
    unsigned blocks = tsr_blocks(args->tokens, block.y);
    TSR_LAUNCH(drop_rows, whole, args->dtype, blocks, block, stream, *args, plan);
    return tsr_launched("dropout");
}
