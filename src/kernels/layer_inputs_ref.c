/*
 * layer_inputs_ref.c: contract layer_inputs.h. A task is a block of tokens, a layer's part of a token a row.
 */
#include "kernels/layer_inputs.h"

#include "kernels/loops.h"

#include <math.h>

#define TASK_TOKENS 32

static tsr_status check(const char *op, int64_t tokens, int64_t width, int32_t layers, float eps,
                        tsr_dtype dtype)
{
    TSR_TRY(tsr_expect_dtype(op, dtype));
    if (tokens < 0 || layers < 1 || width < 1 || width > TSR_LAYER_INPUTS_MOST || eps < 0)
        return tsr_fail(TSR_EINVAL, "%s: %lld tokens, %d layers of %lld columns (at most %d)", op,
                        (long long)tokens, layers, (long long)width, TSR_LAYER_INPUTS_MOST);
    return TSR_OK;
}

tsr_status tsr_layer_inputs_check(const tsr_layer_inputs_args *args)
{
    const char *op = "layer_inputs";
    TSR_TRY(check(op, args->tokens, args->width, args->layers, args->eps, args->dtype));
    TSR_TRY(tsr_expect_dtype(op, args->rows_dtype));
    TSR_EXPECT(args->tokens == 0 || (args->z && args->rows && args->w.data && args->out), op,
               "a pointer is NULL");
    TSR_EXPECT(tsr_frozen_valid(args->w) && tsr_frozen_valid(args->bias), op,
               "w or bias is not F32 or BF16");
    return TSR_OK;
}

tsr_status tsr_layer_inputs_backward_check(const tsr_layer_inputs_backward_args *args)
{
    const char *op = "layer_inputs_backward";
    TSR_TRY(check(op, args->tokens, args->width, args->layers, args->eps, args->dtype));
    TSR_EXPECT(args->tokens == 0 || (args->dout && args->z && args->w.data && args->dy), op,
               "a pointer is NULL");
    TSR_EXPECT(tsr_frozen_valid(args->w) && tsr_frozen_valid(args->bias), op,
               "w or bias is not F32 or BF16");
    return TSR_OK;
}

/* y of one row, scaled; returns its rstd. */
TSR_INLINE float linear_row(float *y, const void *z, const float *g, tsr_frozen bias, int64_t at,
                            int64_t column, int64_t width, float scale, float eps)
{
    float buffer[TSR_LAYER_INPUTS_MOST];
    const float *b = tsr_frozen_load(buffer, bias, column, width, 0.0f);
    const float *in = (const float *)z + at;
    double squares = 0;
    for (int64_t i = 0; i < width; i++)
        y[i] = scale * ((g ? g[column + i] : 1.0f) * in[i] + b[i]);
    for (int64_t i = 0; i < width; i++)
        squares += (double)y[i] * (double)y[i];
    return 1.0f / sqrtf((float)(squares / (double)width) + eps);
}

static void forward_block(void *context, int index)
{
    const tsr_layer_inputs_args *a = context;
    float y[TSR_LAYER_INPUTS_MOST], row[TSR_LAYER_INPUTS_MOST], norm[TSR_LAYER_INPUTS_MOST];
    const float *w = tsr_frozen_load(norm, a->w, 0, a->width, 1.0f);
    int64_t first = (int64_t)index * TASK_TOKENS, end = tsr_min(a->tokens, first + TASK_TOKENS);
    for (int64_t t = first; t < end; t++)
        for (int32_t layer = 0; layer < a->layers; layer++) {
            int64_t column = layer * a->width, at = t * a->layers * a->width + column;
            float *out = (float *)a->out + (layer * a->tokens + t) * a->width;
            float rstd = linear_row(y, a->z, a->g, a->bias, at, column, a->width, a->scale, a->eps);
            tsr_frozen_copy(row, (tsr_frozen){a->rows, a->rows_dtype}, at, a->width);
            for (int64_t i = 0; i < a->width; i++)
                out[i] = a->sum_scale * (y[i] * rstd * w[i] + a->row_scale * row[i]);
        }
}

/* dy = scale rstd (w d - y rstd^2 mean(w d y)), d = sum_scale dout. */
static void backward_block(void *context, int index)
{
    const tsr_layer_inputs_backward_args *a = context;
    float y[TSR_LAYER_INPUTS_MOST], norm[TSR_LAYER_INPUTS_MOST];
    const float *w = tsr_frozen_load(norm, a->w, 0, a->width, 1.0f);
    int64_t first = (int64_t)index * TASK_TOKENS, end = tsr_min(a->tokens, first + TASK_TOKENS);
    for (int64_t t = first; t < end; t++)
        for (int32_t layer = 0; layer < a->layers; layer++) {
            int64_t column = layer * a->width, at = t * a->layers * a->width + column;
            const float *dout = (const float *)a->dout + (layer * a->tokens + t) * a->width;
            float *dy = (float *)a->dy + at;
            float rstd = linear_row(y, a->z, a->g, a->bias, at, column, a->width, a->scale, a->eps);
            double projection = 0;
            for (int64_t i = 0; i < a->width; i++)
                projection += (double)(w[i] * a->sum_scale * dout[i] * y[i]);
            float shift = (float)(projection / (double)a->width) * rstd * rstd;
            for (int64_t i = 0; i < a->width; i++)
                dy[i] = a->scale * rstd * (w[i] * a->sum_scale * dout[i] - y[i] * shift);
        }
}

tsr_status tsr_layer_inputs_ref(const tsr_layer_inputs_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_layer_inputs_check(args));
    return tsr_run_f32("layer_inputs", args->dtype, pool,
                       tsr_block_count(args->tokens, TASK_TOKENS), forward_block, args);
}

tsr_status tsr_layer_inputs_backward_ref(const tsr_layer_inputs_backward_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_layer_inputs_backward_check(args));
    return tsr_run_f32("layer_inputs_backward", args->dtype, pool,
                       tsr_block_count(args->tokens, TASK_TOKENS), backward_block, args);
}
