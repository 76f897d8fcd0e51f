/*
 * convolution_ref.c: contract convolution.h. A task is a block of tokens; the backward computes the slopes of the tokens
 * behind it again.
 */
#include "kernels/convolution.h"

#include "kernels/loops.h"

#define TASK_TOKENS 32

static tsr_status check(const char *op, int64_t tokens, int64_t channels, int32_t taps,
                        tsr_frozen w, tsr_dtype dtype)
{
    TSR_TRY(tsr_expect_dtype(op, dtype));
    TSR_EXPECT(tsr_frozen_valid(w), op, "w is not F32 or BF16");
    if (tokens < 0 || channels < 0 || taps < 1 || taps > TSR_CONVOLUTION_MOST)
        return tsr_fail(TSR_EINVAL, "%s: %lld tokens of %lld channels, %d taps (1 to %d)", op,
                        (long long)tokens, (long long)channels, taps, TSR_CONVOLUTION_MOST);
    return TSR_OK;
}

tsr_status tsr_convolution_check(const tsr_convolution_args *args)
{
    const char *op = "convolution";
    TSR_TRY(check(op, args->tokens, args->channels, args->taps, args->w, args->dtype));
    TSR_EXPECT(args->tokens == 0 || args->channels == 0 ||
                   (args->z && args->w.data && args->positions && args->out),
               op, "a pointer is NULL");
    return TSR_OK;
}

tsr_status tsr_convolution_backward_check(const tsr_convolution_backward_args *args)
{
    const char *op = "convolution_backward";
    TSR_TRY(check(op, args->tokens, args->channels, args->taps, args->w, args->dtype));
    TSR_EXPECT(args->tokens == 0 || args->channels == 0 ||
                   (args->dout && args->z && args->w.data && args->positions && args->dy),
               op, "a pointer is NULL");
    return TSR_OK;
}

/* The taps of one channel. */
static const float *taps_of(float buffer[TSR_CONVOLUTION_MOST], tsr_frozen w, int64_t channel,
                            int32_t taps)
{
    return tsr_frozen_load(buffer, w, channel * taps, taps, 0.0f);
}

/* What the convolution makes of channel c at token t. */
TSR_INLINE float convolve(const float *z, const float *w, const int32_t *positions, int64_t t,
                          int64_t c, int64_t channels, int32_t taps, float gain)
{
    float sum = 0;
    for (int32_t j = 0; j < taps; j++) {
        int32_t back = taps - 1 - j;
        if (back <= positions[t] && back <= t)
            sum += w[j] * z[(t - back) * channels + c];
    }
    return gain * sum;
}

TSR_INLINE float sigmoid(float x)
{
    return 1.0f / (1.0f + tsr_expf(-x));
}

static void forward_block(void *opaque, int index)
{
    const tsr_convolution_args *a = opaque;
    int64_t first = (int64_t)index * TASK_TOKENS, end = tsr_min(a->tokens, first + TASK_TOKENS);
    for (int64_t c = 0; c < a->channels; c++) {
        float buffer[TSR_CONVOLUTION_MOST];
        const float *w = taps_of(buffer, a->w, c, a->taps);
        for (int64_t t = first; t < end; t++) {
            float pre =
                convolve(a->z, w, a->positions, t, c, a->channels, a->taps, a->g ? a->g[c] : 1.0f);
            ((float *)a->out)[t * a->channels + c] = pre * sigmoid(pre);
        }
    }
}

/* d pre of token t. */
TSR_INLINE float slope(const tsr_convolution_backward_args *a, const float *w, int64_t t, int64_t c)
{
    float pre = convolve(a->z, w, a->positions, t, c, a->channels, a->taps, a->g ? a->g[c] : 1.0f);
    float s = sigmoid(pre);
    return ((const float *)a->dout)[t * a->channels + c] * s * (1.0f + pre * (1.0f - s));
}

static void backward_block(void *opaque, int index)
{
    const tsr_convolution_backward_args *a = opaque;
    int64_t first = (int64_t)index * TASK_TOKENS, end = tsr_min(a->tokens, first + TASK_TOKENS);
    int64_t last = tsr_min(a->tokens, end + a->taps - 1);
    for (int64_t c = 0; c < a->channels; c++) {
        float buffer[TSR_CONVOLUTION_MOST], d[TASK_TOKENS + TSR_CONVOLUTION_MOST];
        const float *w = taps_of(buffer, a->w, c, a->taps);
        for (int64_t t = first; t < last; t++)
            d[t - first] = slope(a, w, t, c);
        for (int64_t t = first; t < end; t++) {
            float sum = 0;
            for (int32_t back = 0; back < a->taps && t + back < a->tokens; back++)
                if (back <= a->positions[t + back])
                    sum += w[a->taps - 1 - back] * d[t + back - first];
            ((float *)a->dy)[t * a->channels + c] = sum;
        }
    }
}

tsr_status tsr_convolution_ref(const tsr_convolution_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_convolution_check(args));
    return tsr_run_f32("convolution", args->dtype, pool, tsr_block_count(args->tokens, TASK_TOKENS),
                       forward_block, args);
}

tsr_status tsr_convolution_backward_ref(const tsr_convolution_backward_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_convolution_backward_check(args));
    return tsr_run_f32("convolution_backward", args->dtype, pool,
                       tsr_block_count(args->tokens, TASK_TOKENS), backward_block, args);
}
