/*
 * dropout.cu: contract dropout.h; reference dropout_ref.c, the same mask and the same fp32 values,
 * rounded once to dtype.
 *
 * Split    A thread keeps 8 columns, one call of Philox, for TURNS rows: one 16-byte access each way
 *          of a 16-bit dtype and row, all asked for at the start. As many threads along a row as it
 *          has groups of 8 for, to a power of two from 32 to 256; the rest of a block's 256 are
 *          further rows.
 * Philox   What of the first three rounds belongs to the row or to the column alone is computed once
 *          for it (17 of 20 wide multiplications are left), and the rounds' keys are operands from
 *          constant memory: 5 instructions a column.
 * Cost     2 elements moved (3 where out is added to, or with what is left) and some 9 instructions: 32 lanes of 132
 *          multiprocessors at 4 a clock need a third of the time of the copy.
 */
#include "kernels/vectors.cuh"

#define THREADS 256
#define BLOCKS  4 /* of a multiprocessor, at least: 64 registers a thread */
#define ROUNDS  10
#define TURNS   4 /* rows of a thread: loads in flight */
#define ROWS    (THREADS / TSR_WARP * TURNS)

typedef struct {
    uint32_t k0[ROUNDS], k1[ROUNDS]; /* of the rounds */
    uint32_t threshold;              /* of 2^32 */
    int64_t groups;                  /* of TSR_VECTOR columns, in a row */
    unsigned strips;
} drop_plan;

/* ---- Philox4x32-10 of base/philox.h, with counter words column / 8, position, sample ---- */

static __device__ __forceinline__ uint64_t wide_even(uint32_t a)
{
    return (uint64_t)0xD2511F53u * a;
}

static __device__ __forceinline__ uint64_t wide_odd(uint32_t c)
{
    return (uint64_t)0xCD9E8D57u * c;
}

/* What a row brings to the first three rounds. */
static __device__ __forceinline__ uint4 row_words(const drop_plan *plan, uint64_t sample,
                                                  uint32_t position)
{
    uint64_t odd = wide_odd((uint32_t)sample);
    uint64_t even = wide_even((uint32_t)(odd >> 32) ^ position ^ plan->k0[0]);
    return make_uint4((uint32_t)(sample >> 32) ^ plan->k1[0], (uint32_t)odd ^ plan->k0[1],
                      (uint32_t)(even >> 32) ^ plan->k1[1], (uint32_t)even ^ plan->k1[2]);
}

/* column: the first round's product of the column. */
static __device__ __forceinline__ void philox(uint32_t *word, const drop_plan *plan, uint4 row,
                                              uint64_t column)
{
    uint64_t odd = wide_odd((uint32_t)(column >> 32) ^ row.x);
    uint32_t a = (uint32_t)(odd >> 32) ^ row.y, b = (uint32_t)odd;
    uint32_t c = (uint32_t)column ^ row.z, d = row.w;
#pragma unroll
    for (int round = 2; round < ROUNDS; round++) {
        uint64_t even = wide_even(a);
        odd = wide_odd(c);
        a = (uint32_t)(odd >> 32) ^ b ^ plan->k0[round];
        c = (uint32_t)(even >> 32) ^ d ^ (round == 2 ? 0 : plan->k1[round]);
        b = (uint32_t)odd;
        d = (uint32_t)even;
    }
    word[0] = a, word[1] = b, word[2] = c, word[3] = d;
}

/* ---- the op ---- */

/* 16 bits a column, compared in the upper half of a word: what is below them there decides nothing. */
static __device__ __forceinline__ void keep8(float *value, const uint32_t *word, uint32_t threshold,
                                             float scale)
{
#pragma unroll
    for (int i = 0; i < TSR_VECTOR; i++) {
        uint32_t drawn = i % 2 ? word[i / 2] : word[i / 2] << 16;
        value[i] = drawn >= threshold ? __fmul_rn(value[i], scale) : 0;
    }
}

static __device__ __forceinline__ void add8(float *value, tsr_raw8 old, tsr_dtype dtype)
{
    float before[TSR_VECTOR];
    tsr_raw_widen(before, old, dtype);
#pragma unroll
    for (int i = 0; i < TSR_VECTOR; i++)
        value[i] = __fadd_rn(before[i], value[i]);
}

/* left = x - out, of the out that is written. */
static __device__ __forceinline__ void leave8(const tsr_dropout_args *a, int64_t at, int count,
                                              tsr_raw8 x, const float *out, tsr_dtype dtype,
                                              bool whole)
{
    float left[TSR_VECTOR], written[TSR_VECTOR];
    tsr_raw_widen(left, x, dtype);
    tsr_raw_widen(written, tsr_raw_narrow(out, dtype), dtype);
#pragma unroll
    for (int i = 0; i < TSR_VECTOR; i++)
        left[i] = __fsub_rn(left[i], written[i]);
    tsr_raw_store(a->left, at, count, left, dtype, whole);
}

/* Out may be x: a thread has read its elements before it writes. */
static __device__ __forceinline__ void drop_rows(const tsr_dropout_args *a, const drop_plan *plan,
                                                 tsr_dtype dtype, bool whole)
{
    __shared__ uint4 rows[ROWS];
    int64_t group = blockIdx.x % plan->strips * blockDim.x + threadIdx.x;
    int64_t first = (int64_t)(blockIdx.x / plan->strips) * blockDim.y * TURNS;
    int64_t column = group * TSR_VECTOR, step = blockDim.y * a->columns;
    int64_t at = (first + threadIdx.y) * a->columns + column;
    int count = (int)max((int64_t)0, min((int64_t)TSR_VECTOR, a->columns - column));
    int row = threadIdx.y, end = (int)min((int64_t)ROWS, a->tokens - first);
    tsr_raw8 x[TURNS], old[TURNS];
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        bool mine = count > 0 && row + turn * (int)blockDim.y < end;
        if (mine)
            x[turn] = tsr_raw_load(a->x, at + turn * step, count, dtype, whole);
        if (mine && a->add)
            old[turn] = tsr_raw_load(a->out, at + turn * step, count, dtype, whole);
    }
    int thread = threadIdx.y * blockDim.x + threadIdx.x;
    if (thread < min(end, (int)blockDim.y * TURNS))
        rows[thread] = row_words(plan, (uint64_t)a->samples[first + thread],
                                 (uint32_t)a->positions[first + thread]);
    __syncthreads();
    uint64_t column_word = wide_even((uint32_t)group);
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++, row += blockDim.y) {
        if (count == 0 || row >= end)
            break;
        uint32_t word[TSR_VECTOR / 2];
        float value[TSR_VECTOR];
        philox(word, plan, rows[row], column_word);
        tsr_raw_widen(value, x[turn], dtype);
        keep8(value, word, plan->threshold, a->dropout.scale);
        if (a->add)
            add8(value, old[turn], dtype);
        tsr_raw_store(a->out, at + turn * step, count, value, dtype, whole);
        if (a->left)
            leave8(a, at + turn * step, count, x[turn], value, dtype, whole);
    }
}

TSR_KERNELS_OF(drop_rows, drop_rows, tsr_dropout_args, drop_plan, THREADS, BLOCKS)

extern "C" tsr_status tsr_dropout_cuda(tsr_stream *stream, const tsr_dropout_args *args)
{
    TSR_TRY(tsr_dropout_check(args));
    if (args->tokens == 0 || args->columns == 0)
        return TSR_OK;
    bool whole = tsr_vectors(args->columns, args->x, args->out, args->left);
    drop_plan plan = {};
    plan.threshold = args->dropout.threshold << 16;
    plan.groups = (args->columns + TSR_VECTOR - 1) / TSR_VECTOR;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        plan.k0[round] = (uint32_t)args->dropout.key + round * 0x9E3779B9u;
        plan.k1[round] = (uint32_t)(args->dropout.key >> 32) + round * 0xBB67AE85u;
    }
    unsigned along = TSR_WARP;
    while (along < THREADS && along < plan.groups)
        along *= 2;
    dim3 block(along, THREADS / along);
    plan.strips = tsr_blocks(plan.groups, along);
    unsigned blocks = plan.strips * tsr_blocks(args->tokens, (int64_t)block.y * TURNS);
    TSR_LAUNCH_OF(drop_rows, whole, args->dtype, blocks, block, stream, *args, plan);
    return tsr_launched("dropout");
}
