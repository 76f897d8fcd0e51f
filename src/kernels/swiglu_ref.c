/*
 * swiglu_ref.c: contract swiglu.h. With a dm a task owns 64 columns of all tokens.
 */
#include "kernels/swiglu.h"

#include "kernels/loops.h"
#include "kernels/swiglu_parts.h"

tsr_status tsr_swiglu_check(const tsr_swiglu_args *args)
{
    TSR_TRY(tsr_expect_dtype("swiglu", args->dtype));
    TSR_EXPECT(args->tokens >= 0 && args->f > 0, "swiglu", "tokens < 0 or f < 1");
    TSR_EXPECT(args->tokens == 0 || (args->z_gate && args->z_up && args->act), "swiglu",
               "z_gate, z_up or act is NULL");
    TSR_EXPECT(tsr_frozen_valid(args->bias_gate) && tsr_frozen_valid(args->bias_up), "swiglu",
               "a bias is not F32 or BF16");
    TSR_EXPECT(args->stride == 0 || args->stride >= args->f, "swiglu", "stride below f");
    return tsr_fp8_rows_check("swiglu", args->act8, args->dtype);
}

tsr_status tsr_swiglu_backward_check(const tsr_swiglu_backward_args *args)
{
    TSR_TRY(tsr_expect_dtype("swiglu_backward", args->dtype));
    TSR_EXPECT(args->tokens >= 0 && args->f > 0, "swiglu_backward", "tokens < 0 or f < 1");
    TSR_EXPECT(args->tokens == 0 ||
                   (args->dact && args->z_gate && args->z_up && args->dz_gate && args->dz_up),
               "swiglu_backward", "a pointer is NULL");
    TSR_EXPECT(args->tokens == 0 || args->dz_gate != args->dz_up, "swiglu_backward",
               "dz_gate is dz_up");
    TSR_EXPECT((!args->dm_gate || args->n_gate) && (!args->dm_up || args->n_up), "swiglu_backward",
               "a dm needs its n");
    TSR_EXPECT(tsr_frozen_valid(args->bias_gate) && tsr_frozen_valid(args->bias_up),
               "swiglu_backward", "a bias is not F32 or BF16");
    TSR_EXPECT(args->stride == 0 || args->stride >= args->f, "swiglu_backward", "stride below f");
    TSR_EXPECT(args->stride == 0 || args->stride == args->f ||
                   (!args->dz_gate8.out && !args->dz_up8.out),
               "swiglu_backward", "e4m3 of rows that are not dense");
    TSR_TRY(tsr_fp8_rows_check("swiglu_backward", args->dz_gate8, args->dtype));
    return tsr_fp8_rows_check("swiglu_backward", args->dz_up8, args->dtype);
}

/* The vectors of a strip, with 1 and 0 where there are none. */
typedef struct {
    _Alignas(64) float g_gate[TSR_STRIP];
    float g_up[TSR_STRIP], bias_gate[TSR_STRIP], bias_up[TSR_STRIP];
} strip_vectors;

TSR_INLINE void copy_vector(float *out, const float *vector, tsr_tile tile, float fill)
{
    for (int64_t i = 0; i < tile.columns; i++)
        out[i] = vector ? vector[tile.column + i] : fill;
}

TSR_INLINE void copy_bias(float *out, tsr_frozen bias, tsr_tile tile)
{
    const float *values = tsr_frozen_load(out, bias, tile.column, tile.columns, 0.0f);
    if (values != out)
        memcpy(out, values, (size_t)tile.columns * sizeof(float));
}

TSR_INLINE void forward_tile(const tsr_swiglu_args *args, tsr_tile tile, tsr_activation activation)
{
    strip_vectors v;
    copy_vector(v.g_gate, args->g_gate, tile, 1.0f);
    copy_vector(v.g_up, args->g_up, tile, 1.0f);
    copy_bias(v.bias_gate, args->bias_gate, tile);
    copy_bias(v.bias_up, args->bias_up, tile);
    for (int64_t t = tile.token; t < tile.token_end; t++) {
        int64_t at = t * args->f + tile.column;
        int64_t from = t * (args->stride ? args->stride : args->f) + tile.column;
        const float *z_gate = (const float *)args->z_gate + from;
        const float *z_up = (const float *)args->z_up + from;
        _Alignas(64) float row[TSR_STRIP];
        for (int64_t i = 0; i < tile.columns; i++) {
            float gate = v.g_gate[i] * z_gate[i] + v.bias_gate[i];
            float up = v.g_up[i] * z_up[i] + v.bias_up[i];
            row[i] = swiglu_activate(gate, activation) * swiglu_up_factor(up, activation);
        }
        memcpy((float *)args->act + at, row, (size_t)tile.columns * sizeof(float));
    }
}

TSR_CLONES static void forward_task(void *context, int task)
{
    const tsr_swiglu_args *args = context;
    bool whole = false;
    for (int strip = 0; strip < tsr_task_strips(args->f, whole); strip++) {
        tsr_tile tile = tsr_tile_at(task, strip, args->tokens, args->f, whole);
        if (args->activation == TSR_SILU)
            forward_tile(args, tile, TSR_SILU);
        else if (args->activation == TSR_GELU_TANH)
            forward_tile(args, tile, TSR_GELU_TANH);
        else
            forward_tile(args, tile, TSR_SILU_CLAMPED);
    }
}

TSR_INLINE void add_products(tsr_strip_sum *sum, const float *dy, const float *z, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        sum->part[i] += dy[i] * z[i];
    tsr_strip_next(sum);
}

TSR_INLINE void scale_row(float *out, const float *g, const float *dy, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        out[i] = g[i] * dy[i];
}

TSR_INLINE void backward_tile(const tsr_swiglu_backward_args *args, tsr_tile tile,
                              tsr_activation activation)
{
    strip_vectors v;
    copy_vector(v.g_gate, args->g_gate, tile, 1.0f);
    copy_vector(v.g_up, args->g_up, tile, 1.0f);
    copy_bias(v.bias_gate, args->bias_gate, tile);
    copy_bias(v.bias_up, args->bias_up, tile);
    tsr_strip_sum gate_sum = {.held = 0}, up_sum = {.held = 0};
    for (int64_t t = tile.token; t < tile.token_end; t++) {
        int64_t at = t * (args->stride ? args->stride : args->f) + tile.column;
        const float *z_gate = (const float *)args->z_gate + at;
        const float *z_up = (const float *)args->z_up + at;
        const float *dact = (const float *)args->dact + t * args->f + tile.column;
        _Alignas(64) float dy_gate[TSR_STRIP];
        _Alignas(64) float dy_up[TSR_STRIP];
        for (int64_t i = 0; i < tile.columns; i++) {
            float gate = v.g_gate[i] * z_gate[i] + v.bias_gate[i];
            float up = v.g_up[i] * z_up[i] + v.bias_up[i];
            float f, factor = swiglu_slope(&f, gate, activation);
            dy_up[i] = dact[i] * swiglu_up_gradient(f, up, activation);
            dy_gate[i] = dact[i] * swiglu_up_factor(up, activation) * factor;
        }
        if (args->dm_gate)
            add_products(&gate_sum, dy_gate, z_gate, tile.columns);
        if (args->dm_up)
            add_products(&up_sum, dy_up, z_up, tile.columns);
        scale_row((float *)args->dz_gate + at, v.g_gate, dy_gate, tile.columns);
        scale_row((float *)args->dz_up + at, v.g_up, dy_up, tile.columns);
    }
    int64_t j = tile.column;
    if (args->dm_gate)
        tsr_strip_divide(args->dm_gate + j, &gate_sum, args->n_gate + j, tile.columns);
    if (args->dm_up)
        tsr_strip_divide(args->dm_up + j, &up_sum, args->n_up + j, tile.columns);
}

TSR_CLONES static void backward_task(void *context, int task)
{
    const tsr_swiglu_backward_args *args = context;
    bool whole = args->dm_gate || args->dm_up;
    for (int strip = 0; strip < tsr_task_strips(args->f, whole); strip++) {
        tsr_tile tile = tsr_tile_at(task, strip, args->tokens, args->f, whole);
        if (args->activation == TSR_SILU)
            backward_tile(args, tile, TSR_SILU);
        else if (args->activation == TSR_GELU_TANH)
            backward_tile(args, tile, TSR_GELU_TANH);
        else
            backward_tile(args, tile, TSR_SILU_CLAMPED);
    }
}

tsr_status tsr_swiglu_ref(const tsr_swiglu_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_swiglu_check(args));
    TSR_TRY(tsr_run_f32("swiglu", args->dtype, pool, tsr_tile_tasks(args->tokens, args->f, false),
                        forward_task, args));
    return tsr_fp8_rows_ref(args->act8, args->act, args->tokens, args->f, pool);
}

tsr_status tsr_swiglu_backward_ref(const tsr_swiglu_backward_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_swiglu_backward_check(args));
    TSR_TRY(tsr_expect_f32("swiglu_backward", args->dtype));
    bool whole = args->dm_gate || args->dm_up;
    tsr_pool_run(pool, tsr_tile_tasks(args->tokens, args->f, whole), backward_task, (void *)args);
    TSR_TRY(tsr_fp8_rows_ref(args->dz_gate8, args->dz_gate, args->tokens, args->f, pool));
    return tsr_fp8_rows_ref(args->dz_up8, args->dz_up, args->tokens, args->f, pool);
}
