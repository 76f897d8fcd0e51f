#include "kernels/fixed_point.h"

#include "kernels/loops.h"

#include <math.h>
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

bool tsr_fixed_scatter(int64_t *buffer, const tsr_fixed_layout *layout, uint64_t offset,
                       const float *g, uint64_t count)
{
    uint64_t part = tsr_fixed_part_count(count, layout->ranks), refused = 0;
    for (uint64_t rank = 0; rank < layout->ranks; rank++) {
        uint64_t first = rank * part < count ? rank * part : count;
        uint64_t own = count - first < part ? count - first : part;
        int64_t *out = buffer + rank * layout->rank_stride + offset;
        refused += convert(out, g + first, own, power_of_two(layout->shift), layout->limit);
        memset(out + own, 0, (part - own) * sizeof *out);
    }
    return refused == 0;
}

TSR_CLONES void tsr_fixed_add(int64_t *accumulator, const int64_t *part, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        accumulator[i] += part[i];
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

tsr_status tsr_fixed_scatter_check(const tsr_fixed_scatter_args *args)
{
    TSR_EXPECT(args->buffer && args->overflow && (args->g || !args->count), "fixed_scatter",
               "a buffer is NULL");
    TSR_EXPECT(args->layout.ranks > 0 && args->layout.shift >= 0 && args->layout.shift <= 62,
               "fixed_scatter", "ranks or shift out of range");
    return TSR_OK;
}

tsr_status tsr_fixed_scatter_ref(const tsr_fixed_scatter_args *args, tsr_pool *pool)
{
    (void)pool;
    TSR_TRY(tsr_fixed_scatter_check(args));
    int64_t mark = args->mark ? args->mark : 1;
    if (!tsr_fixed_scatter(args->buffer, &args->layout, args->offset, args->g, args->count) &&
        (*args->overflow == 0 || *args->overflow > mark))
        *args->overflow = mark;
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
