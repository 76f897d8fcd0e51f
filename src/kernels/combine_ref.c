/*
 * combine_ref.c: contract combine.h. A task is a block of tokens.
 */
#include "kernels/combine.h"

#include "kernels/loops.h"

static tsr_status check_shape(const char *op, int64_t tokens, int64_t k, int64_t width,
                              tsr_dtype dtype)
{
    TSR_TRY(tsr_expect_dtype(op, dtype));
    if (tokens < 0 || k < 1 || width < 1)
        return tsr_fail(TSR_EINVAL, "%s: %lld tokens, %lld experts each, width %lld", op,
                        (long long)tokens, (long long)k, (long long)width);
    return TSR_OK;
}

tsr_status tsr_combine_check(const tsr_combine_args *args)
{
    TSR_TRY(check_shape("combine", args->tokens, args->k, args->h, args->dtype));
    TSR_EXPECT(args->tokens == 0 || (args->y && args->z && args->row), "combine",
               "y, z or row is NULL");
    return TSR_OK;
}

tsr_status tsr_combine_backward_check(const tsr_combine_backward_args *args)
{
    const char *op = "combine_backward";
    TSR_TRY(check_shape(op, args->tokens, args->k, args->h, args->dtype));
    TSR_EXPECT(args->tokens == 0 ||
                   (args->dp && args->id && args->row && args->bias.data && args->dy),
               op, "a pointer is NULL");
    TSR_EXPECT(tsr_frozen_valid(args->bias), op, "bias is not F32 or BF16");
    return TSR_OK;
}

TSR_INLINE void combine_token(const tsr_combine_args *args, int64_t t)
{
    int64_t h = args->h, k = args->k;
    float *y = (float *)args->y + t * h;
    for (int64_t column = 0; column < h; column += TSR_STRIP) {
        int64_t width = tsr_min(TSR_STRIP, h - column);
        float sum[TSR_STRIP] = {0};
        for (int64_t j = 0; j < k; j++) {
            int64_t row = args->row[t * k + j];
            if (row < 0)
                continue;
            const float *z = (const float *)args->z + row * h + column;
            float p = args->p ? args->p[t * k + j] : 1;
            for (int64_t i = 0; i < width; i++)
                sum[i] += p * z[i];
        }
        for (int64_t i = 0; i < width; i++)
            y[column + i] = args->add ? y[column + i] + sum[i] : sum[i];
    }
}

TSR_CLONES static void combine_block(void *context, int index)
{
    const tsr_combine_args *args = context;
    int64_t tokens = tsr_block_rows(args->k * args->h);
    int64_t last = tsr_min(args->tokens, (index + 1) * tokens);
    for (int64_t t = index * tokens; t < last; t++)
        combine_token(args, t);
}

tsr_status tsr_combine_ref(const tsr_combine_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_combine_check(args));
    return tsr_run_f32("combine", args->dtype, pool,
                       tsr_block_count(args->tokens, tsr_block_rows(args->k * args->h)),
                       combine_block, args);
}

/* <a, b>, b frozen from element `first` on. */
TSR_INLINE float dot(const float *a, tsr_frozen b, int64_t first, int64_t count)
{
    float lane[TSR_LANES] = {0}, buffer[TSR_STRIP];
    for (int64_t column = 0; column < count; column += TSR_STRIP) {
        int64_t width = tsr_min(TSR_STRIP, count - column), i = 0;
        const float *v = tsr_frozen_load(buffer, b, first + column, width, 0);
        for (; i + TSR_LANES <= width; i += TSR_LANES)
            for (int l = 0; l < TSR_LANES; l++)
                lane[l] += a[column + i + l] * v[i + l];
        for (int l = 0; i + l < width; l++)
            lane[l] += a[column + i + l] * v[i + l];
    }
    return tsr_lanes_sum(lane);
}

TSR_CLONES static void backward_block(void *context, int index)
{
    const tsr_combine_backward_args *args = context;
    int64_t slots = tsr_block_rows(args->h), h = args->h;
    int64_t last = tsr_min(args->tokens * args->k, (index + 1) * slots);
    for (int64_t s = index * slots; s < last; s++) {
        const float *dy = (const float *)args->dy + s / args->k * h;
        args->dp[s] = args->row[s] < 0 ? 0 : dot(dy, args->bias, args->id[s] * h, h);
    }
}

tsr_status tsr_combine_backward_ref(const tsr_combine_backward_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_combine_backward_check(args));
    return tsr_run_f32("combine_backward", args->dtype, pool,
                       tsr_block_count(args->tokens * args->k, tsr_block_rows(args->h)),
                       backward_block, args);
}
