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

TSR_CLONES void tsr_dora_norm(float *n, const float *squares, const float *u, const float *bg,
                              const float *b, uint64_t rows, uint64_t r, double s)
{
    float twice = (float)(2 * s), square = (float)(s * s);
    for (uint64_t j = 0; j < rows; j++) {
        float cross = dot(b + j * r, u + j * r, r);
        float ba = dot(b + j * r, bg + j * r, r);
        float value = (squares[j] + twice * cross) + square * ba;
        n[j] = sqrtf(value < 0 ? 0 : value); /* a NaN is not below 0 and stays */
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
    uint64_t count = (uint64_t)(left < ROWS_PER_BLOCK ? left : ROWS_PER_BLOCK);
    tsr_dora_norm(a->n + first, a->squares + first, a->u + first * a->r, a->bg + first * a->r,
                  (const float *)a->b + first * a->r, count, (uint64_t)a->r, a->scale);
    if (a->m)
        tsr_dora_gain(a->g + first, a->m + first, a->n + first, count);
    for (uint64_t j = 0; !a->m && j < count; j++)
        a->g[first + (int64_t)j] = 1;
}

tsr_status tsr_dora_norm_ref(const tsr_dora_norm_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_dora_norm_check(args));
    TSR_TRY(tsr_expect_f32("dora_norm", args->dtype));
    tsr_dora_norm_args copy = *args;
    tsr_pool_run(pool, (int)tsr_ceil_div((uint64_t)args->rows, ROWS_PER_BLOCK), norm_block, &copy);
    return TSR_OK;
}
