#include "kernels/fixed_point.h"

#include "kernels/loops.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

/* 2^exponent, exact. */
static float power_of_two(int exponent)
{
    return ldexpf(1, exponent);
}

float tsr_fixed_limit(int shift, uint64_t contributions)
{
    float limit = ldexpf(1.0f / (float)contributions, TSR_FIXED_SUM_LOG - shift);
    return nextafterf(limit, 0); /* 1 / contributions may have been rounded up */
}

uint64_t tsr_fixed_part_count(uint64_t count, uint64_t ranks)
{
    return tsr_ceil_div(tsr_ceil_div(count, TSR_GRANULE), ranks) * TSR_GRANULE;
}

/* g * scale is exact (scale is a power of two, and an underflow rounds to 0 as it should), rintf
 * rounds ties to even, and the conversion of an integral float is exact. The comparison is false
 * for a NaN too. Returns how many elements were refused. */
TSR_CLONES static uint64_t convert(int64_t *restrict out, const float *restrict g, uint64_t count,
                                   float scale, float limit)
{
    uint64_t refused = 0;
    for (uint64_t i = 0; i < count; i++) {
        int good = fabsf(g[i]) <= limit;
        float value = good ? g[i] : 0.0f;
        out[i] = (int64_t)rintf(value * scale);
        refused += !good;
    }
    return refused;
}

bool tsr_fixed_from_f32(int64_t *out, const float *g, uint64_t count, int shift, float limit)
{
    return convert(out, g, count, power_of_two(shift), limit) == 0;
}

TSR_CLONES void tsr_fixed_add(int64_t *accumulator, const int64_t *part, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        accumulator[i] += part[i];
}

/* Wide ones. Returns how many were lost. */
TSR_CLONES static uint64_t add_wide(int64_t *restrict sum, const int64_t *restrict g,
                                    uint64_t count)
{
    uint64_t lost = 0;
    for (uint64_t i = 0; i < count; i++) {
        int bad = g[i] == TSR_FIXED_LOST;
        sum[i] += bad ? 0 : g[i];
        lost += bad;
    }
    return lost;
}

/* The integer is rounded once; the product with a power of two is exact, for the least integer, 1,
 * is far from fp32's subnormals. */
TSR_CLONES static void widen(float *restrict g, const int64_t *restrict acc, uint64_t count,
                             float unit)
{
    for (uint64_t i = 0; i < count; i++)
        g[i] = (float)acc[i] * unit;
}

void tsr_fixed_to_f32(float *g, const int64_t *acc, uint64_t count, int shift)
{
    widen(g, acc, count, power_of_two(-shift));
}

tsr_status tsr_fixed_sum_check(const tsr_fixed_sum_args *args)
{
    TSR_EXPECT((args->accumulator || args->rounded) && args->gradient && args->part &&
                   args->overflow && (args->received || args->ranks == 1),
               "fixed_sum", "a buffer is NULL");
    TSR_EXPECT(args->store || !args->rounded, "fixed_sum", "rounded sums cannot be added to");
    TSR_EXPECT(args->rank < args->ranks && args->shift >= 0 && args->shift <= 62, "fixed_sum",
               "rank or shift out of range");
    TSR_EXPECT(args->part_count >= 0 && args->part_count <= TSR_FIXED_PARTS, "fixed_sum",
               "too many parts");
    for (int i = 0; i < args->part_count; i++)
        TSR_EXPECT(args->part[i].real <= args->part[i].count && args->part[i].mark > 0, "fixed_sum",
                   "a part has more elements than it has room for, or no mark");
    return TSR_OK;
}

#define SUM_BLOCK 4096 /* elements of a block of work: its sums stay in the cache */

typedef struct {
    const tsr_fixed_sum_args *args;
    const tsr_fixed_part *part;
    _Atomic bool refused;
} sum_work;

static void sum_block(void *context, int index)
{
    sum_work *work = context;
    const tsr_fixed_sum_args *a = work->args;
    const tsr_fixed_part *part = work->part;
    uint64_t first = (uint64_t)index * SUM_BLOCK, left = part->count - first;
    uint64_t count = left < SUM_BLOCK ? left : SUM_BLOCK;
    uint64_t real = part->real > first ? part->real - first : 0, refused = 0;
    int64_t converted[SUM_BLOCK], kept[SUM_BLOCK];
    int64_t *sum = a->rounded ? kept : a->accumulator + part->offset + first;
    real = real < count ? real : count;
    if (a->store)
        memset(sum, 0, count * sizeof *sum);
    for (uint64_t rank = 0; rank < a->ranks; rank++) {
        const void *from = a->gradient;
        uint64_t at = a->ranks * part->offset + rank * part->count + first;
        if (rank != a->rank) {
            from = a->received;
            at = (a->ranks - 1) * part->offset + (rank - (rank > a->rank)) * part->count + first;
        }
        if (a->wide) {
            refused += add_wide(sum, (const int64_t *)from + at, real);
            continue;
        }
        refused +=
            convert(converted, (const float *)from + at, real, power_of_two(a->shift), a->limit);
        tsr_fixed_add(sum, converted, real);
    }
    if (a->rounded)
        tsr_fixed_to_f32(a->rounded + part->offset + first, sum, count, a->shift);
    if (refused)
        atomic_store(&work->refused, true);
}

tsr_status tsr_fixed_sum_ref(const tsr_fixed_sum_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_fixed_sum_check(args));
    for (int i = 0; i < args->part_count; i++) {
        sum_work work = {.args = args, .part = &args->part[i]};
        tsr_pool_run(pool, (int)tsr_ceil_div(work.part->count, SUM_BLOCK), sum_block, &work);
        if (atomic_load(&work.refused) &&
            (*args->overflow == 0 || *args->overflow > work.part->mark))
            *args->overflow = work.part->mark;
    }
    return TSR_OK;
}

tsr_status tsr_fixed_accumulate_check(const tsr_fixed_accumulate_args *args)
{
    TSR_EXPECT(args->count == 0 || (args->sum && args->g), "fixed_accumulate", "a pointer is NULL");
    TSR_EXPECT(args->shift >= 0 && args->shift <= 62, "fixed_accumulate", "shift out of range");
    return TSR_OK;
}

/* As convert, for the integers too; what was lost stays so. */
TSR_CLONES static void accumulate(int64_t *restrict sum, const float *restrict g, uint64_t count,
                                  float scale, float limit)
{
    for (uint64_t i = 0; i < count; i++) {
        int good = (fabsf(g[i]) <= limit) & (sum[i] != TSR_FIXED_LOST);
        int64_t more = (int64_t)rintf((good ? g[i] : 0.0f) * scale);
        sum[i] = good ? sum[i] + more : TSR_FIXED_LOST;
    }
}

static void accumulate_block(void *context, int index)
{
    const tsr_fixed_accumulate_args *a = context;
    uint64_t first = (uint64_t)index * SUM_BLOCK, left = a->count - first;
    uint64_t count = left < SUM_BLOCK ? left : SUM_BLOCK;
    if (a->store)
        memset(a->sum + first, 0, count * sizeof *a->sum);
    accumulate(a->sum + first, a->g + first, count, power_of_two(a->shift), a->limit);
}

tsr_status tsr_fixed_accumulate_ref(const tsr_fixed_accumulate_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_fixed_accumulate_check(args));
    tsr_pool_run(pool, (int)tsr_ceil_div(args->count, SUM_BLOCK), accumulate_block, (void *)args);
    return TSR_OK;
}

tsr_status tsr_fixed_add_check(const tsr_fixed_add_args *args)
{
    TSR_EXPECT(args->count == 0 || (args->accumulator && args->part), "fixed_add",
               "a pointer is NULL");
    return TSR_OK;
}

tsr_status tsr_fixed_add_ref(const tsr_fixed_add_args *args, tsr_pool *pool)
{
    (void)pool;
    TSR_TRY(tsr_fixed_add_check(args));
    if (!args->store)
        tsr_fixed_add(args->accumulator, args->part, args->count);
    else if (args->count)
        memcpy(args->accumulator, args->part, args->count * sizeof *args->part);
    return TSR_OK;
}
