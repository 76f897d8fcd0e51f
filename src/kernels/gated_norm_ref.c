/*
 * gated_norm_ref.c: contract gated_norm.h. A task is a block of rows.
 */
#include "kernels/gated_norm.h"

#include "kernels/loops.h"

#include <math.h>

static tsr_status check(const char *op, int64_t tokens, int32_t heads, int32_t width, float eps,
                        tsr_frozen w, tsr_dtype dtype)
{
    TSR_TRY(tsr_expect_dtype(op, dtype));
    TSR_EXPECT(tsr_frozen_valid(w), op, "w is not F32 or BF16");
    if (tokens < 0 || heads < 1 || width < 1 || width > TSR_GATED_NORM_MOST || eps < 0)
        return tsr_fail(TSR_EINVAL, "%s: %lld tokens of %d heads of %d columns (at most %d)", op,
                        (long long)tokens, heads, width, TSR_GATED_NORM_MOST);
    return TSR_OK;
}

tsr_status tsr_gated_norm_check(const tsr_gated_norm_args *args)
{
    const char *op = "gated_norm";
    TSR_TRY(check(op, args->tokens, args->heads, args->width, args->eps, args->w, args->dtype));
    TSR_EXPECT(args->tokens == 0 || (args->x && args->z && args->w.data && args->out), op,
               "a pointer is NULL");
    return TSR_OK;
}

tsr_status tsr_gated_norm_backward_check(const tsr_gated_norm_backward_args *args)
{
    const char *op = "gated_norm_backward";
    TSR_TRY(check(op, args->tokens, args->heads, args->width, args->eps, args->w, args->dtype));
    TSR_EXPECT(args->tokens == 0 ||
                   (args->dout && args->x && args->z && args->w.data && args->dx && args->dy),
               op, "a pointer is NULL");
    return TSR_OK;
}

static float rstd_of(const float *x, int32_t width, float eps)
{
    double squares = 0;
    for (int32_t i = 0; i < width; i++)
        squares += (double)x[i] * (double)x[i];
    return (float)(1 / sqrt(squares / (double)width + (double)eps));
}

TSR_INLINE float sigmoid(float x)
{
    return 1.0f / (1.0f + tsr_expf(-x));
}

static void forward_block(void *opaque, int index)
{
    const tsr_gated_norm_args *a = opaque;
    int64_t width = a->width, rows = tsr_block_rows(width), first = index * rows;
    int64_t end = tsr_min(a->tokens * a->heads, first + rows);
    float buffer[TSR_GATED_NORM_MOST];
    const float *w = tsr_frozen_load(buffer, a->w, 0, width, 1.0f);
    for (int64_t r = first; r < end; r++) {
        const float *x = (const float *)a->x + r * width, *z = (const float *)a->z + r * width;
        const float *g = a->g ? a->g + r % a->heads * width : NULL;
        float rstd = rstd_of(x, a->width, a->eps);
        for (int64_t i = 0; i < width; i++) {
            float y = g ? g[i] * z[i] : z[i];
            ((float *)a->out)[r * width + i] = x[i] * rstd * w[i] * (y * sigmoid(y));
        }
    }
}

static void backward_row(const tsr_gated_norm_backward_args *a, const float *w, int64_t r)
{
    int64_t width = a->width, at = r * width;
    const float *x = (const float *)a->x + at, *z = (const float *)a->z + at;
    const float *dout = (const float *)a->dout + at;
    const float *g = a->g ? a->g + r % a->heads * width : NULL;
    float rstd = rstd_of(x, a->width, a->eps);
    double projection = 0;
    for (int64_t i = 0; i < width; i++) {
        float y = g ? g[i] * z[i] : z[i];
        projection += (double)(dout[i] * w[i] * (y * sigmoid(y))) * (double)x[i];
    }
    float shift = (float)(projection / (double)width) * rstd * rstd;
    for (int64_t i = 0; i < width; i++) {
        float y = g ? g[i] * z[i] : z[i], s = sigmoid(y);
        float normed = x[i] * rstd * w[i], d = dout[i];
        ((float *)a->dy)[at + i] = d * normed * s * (1.0f + y * (1.0f - s));
        ((float *)a->dx)[at + i] = rstd * (d * w[i] * (y * s) - x[i] * shift);
    }
}

static void backward_block(void *opaque, int index)
{
    const tsr_gated_norm_backward_args *a = opaque;
    int64_t rows = tsr_block_rows(a->width), first = index * rows;
    int64_t end = tsr_min(a->tokens * a->heads, first + rows);
    float buffer[TSR_GATED_NORM_MOST];
    const float *w = tsr_frozen_load(buffer, a->w, 0, a->width, 1.0f);
    for (int64_t r = first; r < end; r++)
        backward_row(a, w, r);
}

tsr_status tsr_gated_norm_ref(const tsr_gated_norm_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_gated_norm_check(args));
    return tsr_run_f32("gated_norm", args->dtype, pool,
                       tsr_block_count(args->tokens * args->heads, tsr_block_rows(args->width)),
                       forward_block, args);
}

tsr_status tsr_gated_norm_backward_ref(const tsr_gated_norm_backward_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_gated_norm_backward_check(args));
    return tsr_run_f32("gated_norm_backward", args->dtype, pool,
                       tsr_block_count(args->tokens * args->heads, tsr_block_rows(args->width)),
                       backward_block, args);
}
