/*
 * nf4_quantize_ref.c: contract nf4_quantize.h. Every operation is rounded by itself (the build
 * contracts nothing), so the bits are the same on any machine and for any split.
 */
#include "kernels/nf4_quantize.h"

#include "base/clones.h"
#include "base/exact_sum.h"
#include "kernels/loops.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#define ZERO_CODE   7           /* the level 0 */
#define INF_BITS    0x7f800000u /* |x| at or above it, as bits, is an infinity or a NaN */
#define TASK_VALUES 32768
#define TASK_BLOCKS (32 * TSR_NF4_NESTED_BLOCK)

/* ---- quantize ---- */

tsr_status tsr_nf4_quantize_check(const tsr_nf4_quantize_args *args)
{
    TSR_TRY(tsr_expect_dtype("nf4_quantize", args->dtype));
    TSR_EXPECT(args->count >= 0, "nf4_quantize", "count is negative");
    TSR_EXPECT(args->count == 0 || (args->codes && args->absmax && args->bad && args->values),
               "nf4_quantize", "codes, absmax, bad or values is NULL");
    return TSR_OK;
}

/* The largest |x| of a block as bits, which are ordered as the values are. */
TSR_CLONES TSR_FIXED_LOOP static uint32_t largest_bits(const float x[TSR_NF4_BLOCK])
{
    uint32_t largest = 0;
    for (int i = 0; i < TSR_NF4_BLOCK; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        bits &= 0x7fffffffu;
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

/* code = thresholds below x * reciprocal; a NaN (0 times an infinite reciprocal) is below none. */
TSR_CLONES TSR_FIXED_LOOP static void block_codes(int32_t code[TSR_NF4_BLOCK],
                                                  const float x[TSR_NF4_BLOCK], float reciprocal)
{
    float scaled[TSR_NF4_BLOCK];
    for (int i = 0; i < TSR_NF4_BLOCK; i++) {
        scaled[i] = x[i] * reciprocal;
        code[i] = 0;
    }
    for (int t = 0; t < 15; t++)
        for (int i = 0; i < TSR_NF4_BLOCK; i++)
            code[i] += scaled[i] > tsr_nf4_threshold[t];
}

static void pack(uint8_t *codes, int32_t code[TSR_NF4_BLOCK], uint64_t count)
{
    if (count % 2)
        code[count] = ZERO_CODE;
    for (uint64_t i = 0; i < count; i += 2)
        codes[i / 2] = (uint8_t)(code[i] << 4 | code[i + 1]);
}

uint64_t tsr_nf4_quantize_values(uint8_t *codes, float *absmax, const void *values, tsr_dtype dtype,
                                 uint64_t count)
{
    uint64_t element_bytes = tsr_dtype_bytes(dtype);
    for (uint64_t first = 0; first < count; first += TSR_NF4_BLOCK) {
        uint64_t n = count - first < TSR_NF4_BLOCK ? count - first : TSR_NF4_BLOCK;
        float x[TSR_NF4_BLOCK] = {0}, scale;
        int32_t code[TSR_NF4_BLOCK];
        tsr_widen_f32(x, (const char *)values + first * element_bytes, dtype, n);
        uint32_t bits = largest_bits(x);
        if (bits >= INF_BITS) {
            uint64_t i = 0;
            while (isfinite(x[i]))
                i++;
            return first + i;
        }
        memcpy(&scale, &bits, sizeof scale);
        absmax[first / TSR_NF4_BLOCK] = scale;
        if (bits)
            block_codes(code, x, 1.0f / scale);
        else
            for (int i = 0; i < TSR_NF4_BLOCK; i++)
                code[i] = ZERO_CODE;
        pack(codes + first / 2, code, n);
    }
    return count;
}

static void lower(uint64_t *bad, uint64_t index)
{
    _Atomic uint64_t *word = (_Atomic uint64_t *)bad;
    uint64_t last = atomic_load(word);
    while (index < last && !atomic_compare_exchange_weak(word, &last, index)) {
    }
}

static void quantize_task(void *context, int index)
{
    const tsr_nf4_quantize_args *args = context;
    int64_t first = (int64_t)index * TASK_VALUES;
    uint64_t count = (uint64_t)tsr_min(TASK_VALUES, args->count - first);
    uint64_t good = tsr_nf4_quantize_values(
        args->codes + first / 2, args->absmax + first / TSR_NF4_BLOCK,
        (const char *)args->values + first * tsr_dtype_bytes(args->dtype), args->dtype, count);
    if (good < count)
        lower(args->bad, args->first + (uint64_t)first + good);
}

tsr_status tsr_nf4_quantize_ref(const tsr_nf4_quantize_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_nf4_quantize_check(args));
    tsr_pool_run(pool, tsr_block_count(args->count, TASK_VALUES), quantize_task, (void *)args);
    return TSR_OK;
}

/* ---- nest ---- */

tsr_status tsr_nf4_nest_check(const tsr_nf4_nest_args *args)
{
    TSR_EXPECT(args->blocks > 0 && args->blocks <= TSR_NF4_NEST_BLOCKS, "nf4_nest",
               "blocks must be 1 to 2^29");
    TSR_EXPECT(args->first >= 0 && args->count >= 0 && args->first <= args->blocks &&
                   args->count <= args->blocks - args->first,
               "nf4_nest", "first and count are not a range of the blocks");
    TSR_EXPECT(args->nested_absmax && args->offset && args->absmax && args->map, "nf4_nest",
               "nested_absmax, offset, absmax or map is NULL");
    TSR_EXPECT(args->q || args->count == 0, "nf4_nest", "q is NULL");
    return TSR_OK;
}

/* The number of midpoints below v: the nearest value's code; 0 for a NaN. */
static uint8_t nearest(float v, const float midpoint[255])
{
    unsigned low = 0; /* midpoints below `low` are below v */
    for (unsigned step = 128; step; step /= 2)
        if (v > midpoint[low + step - 1])
            low += step;
    return (uint8_t)low;
}

void tsr_nf4_nest_values(uint8_t *q, float *nested_absmax, const float *absmax, const float *map,
                         uint64_t blocks, uint64_t first, uint64_t count, float offset)
{
    float midpoint[255];
    for (int i = 0; i < 255; i++)
        midpoint[i] = (map[i] + map[i + 1]) / 2;
    for (uint64_t begin = 0; begin < blocks; begin += TSR_NF4_NESTED_BLOCK) {
        uint64_t end =
            blocks - begin < TSR_NF4_NESTED_BLOCK ? blocks : begin + TSR_NF4_NESTED_BLOCK;
        float largest = 0;
        for (uint64_t i = begin; i < end; i++)
            largest = fmaxf(largest, fabsf(absmax[i] - offset));
        nested_absmax[begin / TSR_NF4_NESTED_BLOCK] = largest;
        float reciprocal = 1.0f / largest;
        uint64_t from = begin > first ? begin : first,
                 to = end < first + count ? end : first + count;
        for (uint64_t i = from; i < to; i++)
            q[i - first] = nearest((absmax[i] - offset) * reciprocal, midpoint);
    }
}

/* The same of a piece of the tensor: its own blocks, and of the wanted range what lies in it. */
static void nest_task(void *context, int index)
{
    const tsr_nf4_nest_args *args = context;
    int64_t begin = (int64_t)index * TASK_BLOCKS, end = tsr_min(args->blocks, begin + TASK_BLOCKS);
    int64_t from = args->first > begin ? args->first : begin;
    int64_t to = tsr_min(args->first + args->count, end);
    bool some = from < to;
    tsr_nf4_nest_values(some ? args->q + (from - args->first) : NULL,
                        args->nested_absmax + begin / TSR_NF4_NESTED_BLOCK, args->absmax + begin,
                        args->map, (uint64_t)(end - begin), some ? (uint64_t)(from - begin) : 0,
                        some ? (uint64_t)(to - from) : 0, *args->offset);
}

tsr_status tsr_nf4_nest_ref(const tsr_nf4_nest_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_nf4_nest_check(args));
    tsr_exact_sum sum;
    tsr_exact_clear(&sum);
    for (int64_t i = 0; i < args->blocks; i++)
        tsr_exact_add(&sum, args->absmax[i]);
    *args->offset = tsr_exact_mean_f32(&sum, (uint64_t)args->blocks);
    tsr_pool_run(pool, tsr_block_count(args->blocks, TASK_BLOCKS), nest_task, (void *)args);
    return TSR_OK;
}
