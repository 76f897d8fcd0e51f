/*
 * rms_norm_ref.c: contract rms_norm.h. A task is a block of tokens; a row is walked in tiles of 64
 * columns, so that frozen bf16 vectors are widened in a register-sized buffer.
 */
#include "kernels/rms_norm.h"

#include "kernels/loops.h"

#include <math.h>

#define TILE TSR_STRIP

tsr_status tsr_rms_norm_check(const tsr_rms_norm_args *args)
{
    TSR_TRY(tsr_expect_dtype("rms_norm", args->dtype));
    TSR_EXPECT(args->tokens >= 0 && args->d > 0, "rms_norm", "tokens < 0 or d < 1");
    TSR_EXPECT(args->eps >= 0, "rms_norm", "eps is negative");
    TSR_EXPECT(args->z || (!args->g && !args->bias.data), "rms_norm", "g or bias without z");
    TSR_EXPECT(tsr_frozen_valid(args->w) && tsr_frozen_valid(args->bias), "rms_norm",
               "w or bias is not F32 or BF16");
    TSR_EXPECT(!args->h == !args->w.data, "rms_norm", "h and w belong together");
    TSR_EXPECT(args->h || args->x_out, "rms_norm", "nothing to compute");
    TSR_EXPECT(args->tokens == 0 || args->h != args->x_out, "rms_norm", "h is x_out");
    TSR_EXPECT(args->tokens == 0 || args->x || args->z, "rms_norm", "x and z are NULL");
    TSR_EXPECT(args->h || !args->h8.out, "rms_norm", "h8 without h");
    return tsr_fp8_rows_check("rms_norm", args->h8, args->dtype);
}

tsr_status tsr_rms_norm_backward_check(const tsr_rms_norm_backward_args *args)
{
    TSR_TRY(tsr_expect_dtype("rms_norm_backward", args->dtype));
    TSR_EXPECT(args->tokens >= 0 && args->d > 0, "rms_norm_backward", "tokens < 0 or d < 1");
    TSR_EXPECT(tsr_frozen_valid(args->w), "rms_norm_backward", "w is not F32 or BF16");
    TSR_EXPECT(args->tokens == 0 || (args->dh && args->x && args->rstd && args->w.data && args->dx),
               "rms_norm_backward", "a pointer is NULL");
    TSR_EXPECT(args->tokens == 0 || args->overwrite || args->dx != args->dh, "rms_norm_backward",
               "dx is dh but shall be added to");
    return tsr_fp8_rows_check("rms_norm_backward", args->dx8, args->dtype);
}

/* out = x + scale (g z + bias); returns the sum of squares of out. */
TSR_INLINE double residual_row(float *out, const tsr_rms_norm_args *args, int64_t t)
{
    int64_t d = args->d;
    const float *x = args->x ? (const float *)args->x + t * d : NULL;
    const float *z = args->z ? (const float *)args->z + t * d : NULL;
    float g_buffer[TILE], bias_buffer[TILE], lane[TSR_LANES] = {0};
    float scale = args->scale != 0 ? args->scale : 1;
    double total = 0;
    for (int64_t j = 0; j < d; j += TILE) {
        int64_t count = tsr_min(TILE, d - j), i = 0;
        if (z) {
            const float *g = tsr_vector_load(g_buffer, args->g, j, count, 1.0f);
            const float *bias = tsr_frozen_load(bias_buffer, args->bias, j, count, 0.0f);
            for (i = 0; i < count && x; i++)
                out[j + i] = x[j + i] + scale * (g[i] * z[j + i] + bias[i]);
            for (i = 0; i < count && !x; i++)
                out[j + i] = scale * (g[i] * z[j + i] + bias[i]);
        } else if (out != x) {
            memcpy(out + j, x + j, (size_t)count * sizeof(float));
        }
        for (i = 0; i + TSR_LANES <= count; i += TSR_LANES)
            for (int l = 0; l < TSR_LANES; l++)
                lane[l] += out[j + i + l] * out[j + i + l];
        for (; i < count; i++)
            total += (double)out[j + i] * (double)out[j + i];
    }
    for (int l = 0; l < TSR_LANES; l++)
        total += (double)lane[l];
    return total;
}

/* Where the sum is not kept, h holds it until it is scaled. */
TSR_INLINE float *sum_row(const tsr_rms_norm_args *args, int64_t t)
{
    return (float *)(args->x_out ? args->x_out : args->h) + t * args->d;
}

TSR_CLONES static void forward_block(void *context, int index)
{
    const tsr_rms_norm_args *args = context;
    int64_t rows = tsr_block_rows(args->d), d = args->d;
    int64_t last = tsr_min(args->tokens, (index + 1) * rows);
    float buffer[TILE];
    for (int64_t t = index * rows; t < last; t++) {
        const float *x = sum_row(args, t);
        double squares = residual_row(sum_row(args, t), args, t);
        if (!args->h)
            continue;
        float rstd = 1.0f / sqrtf((float)(squares / (double)d) + args->eps);
        if (args->rstd)
            args->rstd[t] = rstd;
        float *h = (float *)args->h + t * d;
        for (int64_t j = 0; j < d; j += TILE) {
            int64_t count = tsr_min(TILE, d - j);
            const float *w = tsr_frozen_load(buffer, args->w, j, count, 1.0f);
            for (int64_t i = 0; i < count; i++)
                h[j + i] = x[j + i] * rstd * w[i];
        }
    }
}

/* The sum over the row of w dh x. */
TSR_INLINE double projection(const float *dh, const float *x, tsr_frozen w, int64_t d)
{
    float buffer[TILE], lane[TSR_LANES] = {0};
    double total = 0;
    for (int64_t j = 0; j < d; j += TILE) {
        int64_t count = tsr_min(TILE, d - j), i = 0;
        const float *v = tsr_frozen_load(buffer, w, j, count, 1.0f);
        for (; i + TSR_LANES <= count; i += TSR_LANES)
            for (int l = 0; l < TSR_LANES; l++)
                lane[l] += dh[j + i + l] * v[i + l] * x[j + i + l];
        for (; i < count; i++)
            total += (double)(dh[j + i] * v[i] * x[j + i]);
    }
    for (int l = 0; l < TSR_LANES; l++)
        total += (double)lane[l];
    return total;
}

TSR_CLONES static void backward_block(void *context, int index)
{
    const tsr_rms_norm_backward_args *args = context;
    int64_t rows = tsr_block_rows(args->d), d = args->d;
    int64_t last = tsr_min(args->tokens, (index + 1) * rows);
    float buffer[TILE];
    for (int64_t t = index * rows; t < last; t++) {
        const float *dh = (const float *)args->dh + t * d, *x = (const float *)args->x + t * d;
        float *dx = (float *)args->dx + t * d;
        float rstd = args->rstd[t];
        float shift = (float)(projection(dh, x, args->w, d) / (double)d) * rstd * rstd;
        for (int64_t j = 0; j < d; j += TILE) {
            int64_t count = tsr_min(TILE, d - j);
            const float *w = tsr_frozen_load(buffer, args->w, j, count, 1.0f);
            if (args->overwrite)
                for (int64_t i = 0; i < count; i++)
                    dx[j + i] = rstd * (dh[j + i] * w[i] - x[j + i] * shift);
            else
                for (int64_t i = 0; i < count; i++)
                    dx[j + i] += rstd * (dh[j + i] * w[i] - x[j + i] * shift);
        }
    }
}

tsr_status tsr_rms_norm_ref(const tsr_rms_norm_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_rms_norm_check(args));
    TSR_TRY(tsr_run_f32("rms_norm", args->dtype, pool,
                        tsr_block_count(args->tokens, tsr_block_rows(args->d)), forward_block,
                        args));
    return tsr_fp8_rows_ref(args->h8, args->h, args->tokens, args->d, pool);
}

tsr_status tsr_rms_norm_backward_ref(const tsr_rms_norm_backward_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_rms_norm_backward_check(args));
    TSR_TRY(tsr_run_f32("rms_norm_backward", args->dtype, pool,
                        tsr_block_count(args->tokens, tsr_block_rows(args->d)), backward_block,
                        args));
    return tsr_fp8_rows_ref(args->dx8, args->dx, args->tokens, args->d, pool);
}
