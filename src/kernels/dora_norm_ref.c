#include "kernels/dora_norm.h"

#include "kernels/loops.h"

#include <math.h>

TSR_INLINE float dot(const float *x, const float *y, uint64_t n)
{
    float lane[TSR_LANES] = {0};
    uint64_t i = 0;
    for (; i + TSR_LANES <= n; i += TSR_LANES)
        for (int l = 0; l < TSR_LANES; l++)
            lane[l] += x[i + (uint64_t)l] * y[i + (uint64_t)l];
    for (int l = 0; i < n; i++, l++)
        lane[l] += x[i] * y[i];
    return tsr_lanes_sum(lane);
}

TSR_CLONES void tsr_dora_norm(const tsr_dora_norm_args *args, int64_t first, int64_t count)
{
    double s = args->scale;
    float twice = (float)(2 * s), square = (float)(s * s);
    for (int64_t j = first; j < first + count; j++) {
        const float *b = (const float *)args->b + j * args->r;
        float cross = dot(b, args->u + j * args->r, (uint64_t)args->r);
        float ba = dot(b, args->bg + j * args->r, (uint64_t)args->r);
        float w2 = args->squares[j];
        if (args->row_scale) {
            w2 = args->row_scale[j] * (args->row_scale[j] * w2);
            cross *= args->row_scale[j];
        }
        float value = (w2 + twice * cross) + square * ba;
        args->n[j] = sqrtf(value < 0 ? 0 : value); /* a NaN is not below 0 and stays */
    }
}

TSR_CLONES void tsr_dora_gain(float *g, const float *m, const float *n, uint64_t rows)
{
    for (uint64_t j = 0; j < rows; j++)
        g[j] = m[j] / n[j];
}

tsr_status tsr_dora_norm_check(const tsr_dora_norm_args *args)
{
    TSR_EXPECT(args->rows >= 0 && args->r > 0, "dora_norm", "a count is out of range");
    TSR_EXPECT(args->n && args->g && args->squares && args->u && args->bg && args->b, "dora_norm",
               "a buffer is NULL");
    return tsr_expect_dtype("dora_norm", args->dtype);
}

#define ROWS_PER_BLOCK 32

static void norm_block(void *context, int index)
{
    const tsr_dora_norm_args *a = context;
    int64_t first = (int64_t)index * ROWS_PER_BLOCK, left = a->rows - first;
    int64_t count = left < ROWS_PER_BLOCK ? left : ROWS_PER_BLOCK;
    tsr_dora_norm(a, first, count);
    if (a->m)
        tsr_dora_gain(a->g + first, a->m + first, a->n + first, (uint64_t)count);
    for (int64_t j = 0; !a->m && j < count; j++)
        a->g[first + j] = 1;
}

tsr_status tsr_dora_norm_ref(const tsr_dora_norm_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_dora_norm_check(args));
    TSR_TRY(tsr_expect_f32("dora_norm", args->dtype));
    tsr_dora_norm_args copy = *args;
    tsr_pool_run(pool, (int)tsr_ceil_div((uint64_t)args->rows, ROWS_PER_BLOCK), norm_block, &copy);
    return TSR_OK;
}
