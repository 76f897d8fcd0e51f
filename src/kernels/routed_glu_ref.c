/*
 * routed_glu_ref.c: contract routed_glu.h. A task is a block of slots.
 */
#include "kernels/routed_glu.h"

#include "kernels/loops.h"
#include "kernels/swiglu_parts.h"

tsr_status tsr_routed_glu_backward_check(const tsr_routed_glu_backward_args *args)
{
    const char *op = "routed_glu_backward";
    TSR_TRY(tsr_expect_dtype(op, args->dtype));
    if (args->tokens < 0 || args->k < 1 || args->f < 1)
        return tsr_fail(TSR_EINVAL, "%s: %lld tokens, %lld experts each, width %lld", op,
                        (long long)args->tokens, (long long)args->k, (long long)args->f);
    TSR_EXPECT(args->tokens == 0 ||
                   (args->dp && args->dz && args->z && args->dact && args->p && args->row),
               op, "a pointer is NULL");
    return TSR_OK;
}

/* At most a strip of columns of a row, of act and of dz; dact is scaled by p. */
typedef struct {
    _Alignas(64) float act[TSR_STRIP];
    float gate[TSR_STRIP], up[TSR_STRIP];
} strip_values;

TSR_INLINE void backward_strip(strip_values *out, const float *gate, const float *up,
                               const float *dact, float p, int64_t count, tsr_activation activation)
{
    for (int64_t i = 0; i < count; i++) {
        float f, slope = swiglu_slope(&f, gate[i], activation), d = p * dact[i];
        float factor = swiglu_up_factor(up[i], activation);
        out->act[i] = swiglu_activate(gate[i], activation) * factor;
        out->up[i] = d * swiglu_up_gradient(f, up[i], activation);
        out->gate[i] = d * factor * slope;
    }
}

TSR_INLINE void add_products(float lane[TSR_LANES], const float *a, const float *b, int64_t count)
{
    int64_t i = 0;
    for (; i + TSR_LANES <= count; i += TSR_LANES)
        for (int l = 0; l < TSR_LANES; l++)
            lane[l] += a[i + l] * b[i + l];
    for (int l = 0; i + l < count; l++)
        lane[l] += a[i + l] * b[i + l];
}

TSR_INLINE void backward_row(const tsr_routed_glu_backward_args *args, int64_t slot,
                             tsr_activation activation)
{
    int64_t row = args->row[slot], f = args->f;
    const float *dact = (const float *)args->dact + row * f;
    const float *gate = (const float *)args->z + row * 2 * f, *up = gate + f;
    float *dz = (float *)args->dz + row * 2 * f, lane[TSR_LANES] = {0};
    for (int64_t column = 0; column < f; column += TSR_STRIP) {
        int64_t width = tsr_min(TSR_STRIP, f - column);
        strip_values v;
        backward_strip(&v, gate + column, up + column, dact + column, args->p[slot], width,
                       activation);
        add_products(lane, v.act, dact + column, width);
        memcpy(dz + column, v.gate, (size_t)width * sizeof(float));
        memcpy(dz + f + column, v.up, (size_t)width * sizeof(float));
    }
    args->dp[slot] = (args->add ? args->dp[slot] : 0) + tsr_lanes_sum(lane);
}

TSR_CLONES static void backward_block(void *context, int index)
{
    const tsr_routed_glu_backward_args *args = context;
    int64_t slots = tsr_block_rows(args->f);
    int64_t last = tsr_min(args->tokens * args->k, (index + 1) * slots);
    for (int64_t s = index * slots; s < last; s++) {
        if (args->row[s] < 0)
            args->dp[s] = args->add ? args->dp[s] : 0;
        else if (args->activation == TSR_SILU)
            backward_row(args, s, TSR_SILU);
        else if (args->activation == TSR_GELU_TANH)
            backward_row(args, s, TSR_GELU_TANH);
        else
            backward_row(args, s, TSR_SILU_CLAMPED);
    }
}

tsr_status tsr_routed_glu_backward_ref(const tsr_routed_glu_backward_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_routed_glu_backward_check(args));
    return tsr_run_f32("routed_glu_backward", args->dtype, pool,
                       tsr_block_count(args->tokens * args->k, tsr_block_rows(args->f)),
                       backward_block, args);
}
