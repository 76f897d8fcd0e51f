/*
 * compose_ref.c: contract compose.h. With dm a task owns 64 columns of all tokens.
 */
#include "kernels/compose.h"

#include "kernels/loops.h"

tsr_status tsr_compose_check(const tsr_compose_args *args)
{
    TSR_TRY(tsr_expect_dtype("compose", args->dtype));
    TSR_EXPECT(args->tokens >= 0 && args->d > 0, "compose", "tokens < 0 or d < 1");
    TSR_EXPECT(args->g, "compose", "g is NULL");
    TSR_EXPECT(args->tokens == 0 || (args->base && args->lora && args->y), "compose",
               "base, lora or y is NULL");
    TSR_EXPECT(args->tokens == 0 || args->inner != args->y, "compose", "inner is y");
    TSR_EXPECT(tsr_frozen_valid(args->bias), "compose", "bias is not F32 or BF16");
    return TSR_OK;
}

tsr_status tsr_compose_merged_check(const tsr_compose_merged_args *args)
{
    TSR_TRY(tsr_expect_dtype("compose_merged", args->dtype));
    TSR_EXPECT(args->tokens >= 0 && args->d > 0, "compose_merged", "tokens < 0 or d < 1");
    TSR_EXPECT(args->g, "compose_merged", "g is NULL");
    TSR_EXPECT(args->tokens == 0 || (args->base && args->inner && args->y), "compose_merged",
               "base, inner or y is NULL");
    TSR_EXPECT(tsr_frozen_valid(args->bias), "compose_merged", "bias is not F32 or BF16");
    return TSR_OK;
}

tsr_status tsr_compose_backward_check(const tsr_compose_backward_args *args)
{
    TSR_TRY(tsr_expect_dtype("compose_backward", args->dtype));
    TSR_EXPECT(args->tokens >= 0 && args->d > 0, "compose_backward", "tokens < 0 or d < 1");
    TSR_EXPECT(args->g || !args->d_base_dropped, "compose_backward", "g is NULL");
    TSR_EXPECT(args->d_base_dropped || args->d_lora || args->dm, "compose_backward",
               "nothing to compute");
    TSR_EXPECT(args->tokens == 0 || !args->d_lora || args->d_lora != args->d_base_dropped,
               "compose_backward", "d_lora is d_base_dropped");
    TSR_EXPECT(!args->dm || args->n, "compose_backward", "dm needs n");
    TSR_EXPECT(args->tokens == 0 || (args->dy && (!args->dm || args->inner)), "compose_backward",
               "dy, or inner for dm, is NULL");
    return TSR_OK;
}

TSR_INLINE void forward_tile(const tsr_compose_args *args, tsr_tile tile)
{
    float bias_buffer[TSR_STRIP], y[TSR_STRIP], inner[TSR_STRIP];
    const float *bias = tsr_frozen_load(bias_buffer, args->bias, tile.column, tile.columns, 0.0f);
    const float *g = args->g + tile.column;
    const float s = args->scale;
    for (int64_t t = tile.token; t < tile.token_end; t++) {
        int64_t at = t * args->d + tile.column;
        const float *base = (const float *)args->base + at;
        const float *dropped = args->base_dropped ? (const float *)args->base_dropped + at : base;
        const float *lora = (const float *)args->lora + at;
        for (int64_t i = 0; i < tile.columns; i++) {
            float scaled = s * lora[i];
            y[i] = (base[i] + bias[i]) + ((g[i] - 1.0f) * dropped[i] + g[i] * scaled);
            inner[i] = scaled + dropped[i];
        }
        memcpy((float *)args->y + at, y, (size_t)tile.columns * sizeof(float));
        if (args->inner)
            memcpy((float *)args->inner + at, inner, (size_t)tile.columns * sizeof(float));
    }
}

TSR_STRIP_TASK(forward_task, tsr_compose_args, d, false, forward_tile)

TSR_INLINE void merged_tile(const tsr_compose_merged_args *args, tsr_tile tile)
{
    float bias_buffer[TSR_STRIP];
    const float *bias = tsr_frozen_load(bias_buffer, args->bias, tile.column, tile.columns, 0.0f);
    const float *g = args->g + tile.column;
    for (int64_t t = tile.token; t < tile.token_end; t++) {
        int64_t at = t * args->d + tile.column;
        const float *base = (const float *)args->base + at;
        const float *inner = (const float *)args->inner + at;
        float *y = (float *)args->y + at;
        for (int64_t i = 0; i < tile.columns; i++)
            y[i] = (base[i] + bias[i]) + g[i] * inner[i];
    }
}

TSR_STRIP_TASK(merged_task, tsr_compose_merged_args, d, false, merged_tile)

TSR_INLINE void backward_tile(const tsr_compose_backward_args *args, tsr_tile tile)
{
    float g_buffer[TSR_STRIP];
    const float *g = tsr_vector_load(g_buffer, args->g, tile.column, tile.columns, 1.0f);
    const float s = args->scale;
    tsr_strip_sum sum = {.held = 0};
    for (int64_t t = tile.token; t < tile.token_end; t++) {
        int64_t at = t * args->d + tile.column;
        const float *dy = (const float *)args->dy + at;
        if (args->dm) {
            const float *inner = (const float *)args->inner + at;
            for (int64_t i = 0; i < tile.columns; i++)
                sum.part[i] += dy[i] * inner[i];
            tsr_strip_next(&sum);
        }
        if (args->d_base_dropped) {
            float *out = (float *)args->d_base_dropped + at;
            for (int64_t i = 0; i < tile.columns; i++)
                out[i] = (g[i] - 1.0f) * dy[i];
        }
        if (args->d_lora) {
            float *out = (float *)args->d_lora + at;
            for (int64_t i = 0; i < tile.columns; i++)
                out[i] = (g[i] * s) * dy[i];
        }
    }
    if (args->dm)
        tsr_strip_divide(args->dm + tile.column, &sum, args->n + tile.column, tile.columns);
}

TSR_STRIP_TASK(backward_task, tsr_compose_backward_args, d, args->dm != NULL, backward_tile)

tsr_status tsr_compose_ref(const tsr_compose_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_compose_check(args));
    return tsr_run_f32("compose", args->dtype, pool, tsr_tile_tasks(args->tokens, args->d, false),
                       forward_task, args);
}

tsr_status tsr_compose_merged_ref(const tsr_compose_merged_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_compose_merged_check(args));
    return tsr_run_f32("compose_merged", args->dtype, pool,
                       tsr_tile_tasks(args->tokens, args->d, false), merged_task, args);
}

tsr_status tsr_compose_backward_ref(const tsr_compose_backward_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_compose_backward_check(args));
    return tsr_run_f32("compose_backward", args->dtype, pool,
                       tsr_tile_tasks(args->tokens, args->d, args->dm != NULL), backward_task,
                       args);
}
