/*
 * gate_ref.c: contract gate.h. A task is a block of tokens.
 */
#include "kernels/gate.h"

#include "kernels/loops.h"

static tsr_status check(const char *op, int64_t tokens, int64_t columns, int64_t group,
                        tsr_frozen bias, tsr_dtype dtype)
{
    TSR_TRY(tsr_expect_dtype(op, dtype));
    TSR_EXPECT(tsr_frozen_valid(bias), op, "bias is not F32 or BF16");
    if (tokens < 0 || columns < 1 || group < 1)
        return tsr_fail(TSR_EINVAL, "%s: %lld tokens of %lld by %lld columns", op,
                        (long long)tokens, (long long)columns, (long long)group);
    return TSR_OK;
}

tsr_status tsr_gate_check(const tsr_gate_args *args)
{
    TSR_TRY(check("gate", args->tokens, args->gates, args->group, args->bias, args->dtype));
    TSR_EXPECT(args->tokens == 0 || (args->x && args->z && args->out), "gate", "a pointer is NULL");
    return TSR_OK;
}

tsr_status tsr_gate_backward_check(const tsr_gate_backward_args *args)
{
    const char *op = "gate_backward";
    TSR_TRY(check(op, args->tokens, args->gates, args->group, args->bias, args->dtype));
    TSR_EXPECT(args->tokens == 0 || (args->dout && args->x && args->z && args->dx && args->dy), op,
               "a pointer is NULL");
    return TSR_OK;
}

tsr_status tsr_split_heads_check(const tsr_split_heads_args *args)
{
    const char *op = "split_heads";
    TSR_TRY(check(op, args->tokens, args->heads, args->width, args->bias, args->dtype));
    TSR_EXPECT(args->tokens == 0 || (args->z && args->first && args->second), op,
               "a pointer is NULL");
    return TSR_OK;
}

tsr_status tsr_split_heads_backward_check(const tsr_split_heads_backward_args *args)
{
    const char *op = "split_heads_backward";
    const tsr_frozen none = {NULL, TSR_F32};
    TSR_TRY(check(op, args->tokens, args->heads, args->width, none, args->dtype));
    TSR_EXPECT(args->tokens == 0 || (args->dy && args->first && args->second), op,
               "a pointer is NULL");
    return TSR_OK;
}

TSR_INLINE float sigmoid(float x)
{
    return 1.0f / (1.0f + tsr_expf(-x));
}

/* g z + bias of column i of `at`. */
TSR_INLINE float linear(const void *z, int64_t at, const float *g, tsr_frozen bias, int64_t i)
{
    float buffer, y = ((const float *)z)[at];
    return (g ? g[i] * y : y) + *tsr_frozen_load(&buffer, bias, i, 1, 0.0f);
}

static void gate_block(void *opaque, int index)
{
    const tsr_gate_args *a = opaque;
    int64_t rows = tsr_block_rows(a->gates * a->group), first = index * rows;
    int64_t end = tsr_min(a->tokens, first + rows);
    for (int64_t t = first; t < end; t++)
        for (int64_t i = 0; i < a->gates; i++) {
            int64_t at = t * a->gates + i;
            float s = sigmoid(linear(a->z, at, a->g, a->bias, i));
            for (int64_t j = at * a->group; j < (at + 1) * a->group; j++)
                ((float *)a->out)[j] = ((const float *)a->x)[j] * s;
        }
}

static void gate_backward_block(void *opaque, int index)
{
    const tsr_gate_backward_args *a = opaque;
    int64_t rows = tsr_block_rows(a->gates * a->group), first = index * rows;
    int64_t end = tsr_min(a->tokens, first + rows);
    for (int64_t t = first; t < end; t++)
        for (int64_t i = 0; i < a->gates; i++) {
            int64_t at = t * a->gates + i;
            float s = sigmoid(linear(a->z, at, a->g, a->bias, i));
            double sum = 0;
            for (int64_t j = at * a->group; j < (at + 1) * a->group; j++) {
                float d = ((const float *)a->dout)[j];
                sum += (double)(d * ((const float *)a->x)[j]);
                ((float *)a->dx)[j] = d * s;
            }
            ((float *)a->dy)[at] = (float)sum * s * (1.0f - s);
        }
}

static void split_block(void *opaque, int index)
{
    const tsr_split_heads_args *a = opaque;
    int64_t rows = tsr_block_rows(2 * a->heads * a->width), first = index * rows;
    int64_t end = tsr_min(a->tokens, first + rows), columns = 2 * a->heads * a->width;
    for (int64_t t = first; t < end; t++)
        for (int64_t i = 0; i < columns; i++) {
            int64_t head = i / (2 * a->width), in = i % (2 * a->width);
            void *half = in < a->width ? a->first : a->second;
            ((float *)half)[(t * a->heads + head) * a->width + in % a->width] =
                linear(a->z, t * columns + i, a->g, a->bias, i);
        }
}

static void split_backward_block(void *opaque, int index)
{
    const tsr_split_heads_backward_args *a = opaque;
    int64_t rows = tsr_block_rows(2 * a->heads * a->width), first = index * rows;
    int64_t end = tsr_min(a->tokens, first + rows), columns = 2 * a->heads * a->width;
    for (int64_t t = first; t < end; t++)
        for (int64_t i = 0; i < columns; i++) {
            int64_t head = i / (2 * a->width), in = i % (2 * a->width);
            const void *half = in < a->width ? a->first : a->second;
            ((float *)a->dy)[t * columns + i] =
                ((const float *)half)[(t * a->heads + head) * a->width + in % a->width];
        }
}

tsr_status tsr_gate_ref(const tsr_gate_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_gate_check(args));
    return tsr_run_f32("gate", args->dtype, pool,
                       tsr_block_count(args->tokens, tsr_block_rows(args->gates * args->group)),
                       gate_block, args);
}

tsr_status tsr_gate_backward_ref(const tsr_gate_backward_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_gate_backward_check(args));
    return tsr_run_f32("gate_backward", args->dtype, pool,
                       tsr_block_count(args->tokens, tsr_block_rows(args->gates * args->group)),
                       gate_backward_block, args);
}

tsr_status tsr_split_heads_ref(const tsr_split_heads_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_split_heads_check(args));
    return tsr_run_f32("split_heads", args->dtype, pool,
                       tsr_block_count(args->tokens, tsr_block_rows(2 * args->heads * args->width)),
                       split_block, args);
}

tsr_status tsr_split_heads_backward_ref(const tsr_split_heads_backward_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_split_heads_backward_check(args));
    return tsr_run_f32("split_heads_backward", args->dtype, pool,
                       tsr_block_count(args->tokens, tsr_block_rows(2 * args->heads * args->width)),
                       split_backward_block, args);
}
