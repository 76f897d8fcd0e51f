/*
 * latent_qkv_ref.c: contract latent_qkv.h. A task is a block of tokens, head by head.
 */
#include "kernels/latent_qkv.h"

#include "kernels/loops.h"

typedef tsr_latent_shape shape;

static tsr_status check_shape(const char *op, const shape *s)
{
    TSR_TRY(tsr_expect_dtype(op, s->dtype));
    if (s->tokens < 0 || s->heads < 1 || s->nope_dim < 0 || s->rope_dim < 2 || s->rope_dim % 2 ||
        s->rope_dim > TSR_LATENT_MOST_ROPE || s->v_dim < 1)
        return tsr_fail(
            TSR_EINVAL,
            "%s: %lld tokens, %d heads of %d + %d columns (the latter even, at most %d), "
            "values of %d",
            op, (long long)s->tokens, s->heads, s->nope_dim, s->rope_dim, TSR_LATENT_MOST_ROPE,
            s->v_dim);
    TSR_EXPECT(s->tokens == 0 || (s->cosine && s->sine && s->positions), op,
               "cosine, sine or positions is NULL");
    return TSR_OK;
}

tsr_status tsr_latent_qkv_check(const tsr_latent_qkv_args *args)
{
    const char *op = "latent_qkv";
    TSR_TRY(check_shape(op, &args->shape));
    TSR_EXPECT(args->shape.tokens == 0 ||
                   (args->q_z && args->kv_z && args->shared && args->q && args->k && args->v),
               op, "a pointer is NULL");
    TSR_EXPECT(tsr_frozen_valid(args->q_bias) && tsr_frozen_valid(args->kv_bias), op,
               "a bias is not F32 or BF16");
    return TSR_OK;
}

tsr_status tsr_latent_qkv_backward_check(const tsr_latent_qkv_backward_args *args)
{
    const char *op = "latent_qkv_backward";
    TSR_TRY(check_shape(op, &args->shape));
    TSR_EXPECT(args->shape.tokens == 0 || (args->dq && args->dk && args->dv && args->q_dy &&
                                           args->kv_dy && args->d_shared),
               op, "a pointer is NULL");
    return TSR_OK;
}

static tsr_status check_positions(const char *op, const shape *s)
{
    for (int64_t t = 0; t < s->tokens; t++)
        if (s->positions[t] < 0 || s->positions[t] >= s->position_count)
            return tsr_fail(TSR_EINTERNAL, "%s: token %lld has position %d of %d", op, (long long)t,
                            s->positions[t], s->position_count);
    return TSR_OK;
}

/* out = in, turned by the position of a token; `back`: by the negative angles. out may be in. */
TSR_INLINE void turn(float *out, const float *in, const shape *s, int64_t token, bool back)
{
    int64_t pairs = s->rope_dim / 2, step = s->neighbours ? 2 : 1, far = s->neighbours ? 1 : pairs;
    const float *cosine = s->cosine + s->positions[token] * pairs;
    const float *sine = s->sine + s->positions[token] * pairs;
    for (int64_t i = 0; i < pairs; i++) {
        float a = in[i * step], b = in[i * step + far], angle = back ? -sine[i] : sine[i];
        out[i * step] = a * cosine[i] - b * angle;
        out[i * step + far] = b * cosine[i] + a * angle;
    }
}

/* out = g in + bias, columns from `column` on. */
TSR_INLINE void settle(float *out, const float *in, const float *g, tsr_frozen bias, int64_t column,
                       int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        out[i] = g ? g[column + i] * in[i] : in[i];
    for (int64_t i = 0; i < count && bias.data; i++)
        out[i] += bias.dtype == TSR_F32
                      ? ((const float *)bias.data)[column + i]
                      : tsr_bf16_to_f32(((const uint16_t *)bias.data)[column + i]);
}

static int64_t block_tokens(const shape *s)
{
    return tsr_block_rows((int64_t)s->heads * (s->nope_dim + s->rope_dim + s->v_dim));
}

TSR_CLONES static void forward_block(void *context, int index)
{
    const tsr_latent_qkv_args *a = context;
    const shape *s = &a->shape;
    int64_t nope = s->nope_dim, rope = s->rope_dim, wide = nope + rope, both = nope + s->v_dim;
    int64_t first = index * block_tokens(s), end = tsr_min(s->tokens, first + block_tokens(s));
    float turned[TSR_LATENT_MOST_ROPE];
    for (int64_t t = first; t < end; t++) {
        turn(turned, (const float *)a->shared + t * rope, s, t, false);
        for (int64_t h = 0; h < s->heads; h++) {
            int64_t row = t * s->heads + h;
            float *q = (float *)a->q + row * wide, *k = (float *)a->k + row * wide;
            const float *kv = (const float *)a->kv_z + row * both;
            settle(q, (const float *)a->q_z + row * wide, a->q_g, a->q_bias, h * wide, wide);
            turn(q + nope, q + nope, s, t, false);
            settle(k, kv, a->kv_g, a->kv_bias, h * both, nope);
            memcpy(k + nope, turned, (size_t)rope * sizeof *k);
            settle((float *)a->v + row * s->v_dim, kv + nope, a->kv_g, a->kv_bias, h * both + nope,
                   s->v_dim);
        }
    }
}

TSR_CLONES static void backward_block(void *context, int index)
{
    const tsr_latent_qkv_backward_args *a = context;
    const shape *s = &a->shape;
    int64_t nope = s->nope_dim, rope = s->rope_dim, wide = nope + rope, both = nope + s->v_dim;
    int64_t first = index * block_tokens(s), end = tsr_min(s->tokens, first + block_tokens(s));
    float *d_shared = a->d_shared;
    for (int64_t t = first; t < end; t++) {
        double sum[TSR_LATENT_MOST_ROPE] = {0};
        for (int64_t h = 0; h < s->heads; h++) {
            int64_t row = t * s->heads + h;
            const float *dk = (const float *)a->dk + row * wide;
            float *dq = (float *)a->q_dy + row * wide, *dkv = (float *)a->kv_dy + row * both;
            if (a->q_dy != a->dq)
                memcpy(dq, (const float *)a->dq + row * wide, (size_t)wide * sizeof *dq);
            turn(dq + nope, dq + nope, s, t, true);
            memcpy(dkv, dk, (size_t)nope * sizeof *dkv);
            memcpy(dkv + nope, (const float *)a->dv + row * s->v_dim,
                   (size_t)s->v_dim * sizeof *dkv);
            for (int64_t i = 0; i < rope; i++)
                sum[i] += (double)dk[nope + i];
        }
        for (int64_t i = 0; i < rope; i++)
            d_shared[t * rope + i] = (float)sum[i];
        turn(d_shared + t * rope, d_shared + t * rope, s, t, true);
    }
}

tsr_status tsr_latent_qkv_ref(const tsr_latent_qkv_args *args, tsr_pool *pool)
{
    const shape *s = &args->shape;
    TSR_TRY(tsr_latent_qkv_check(args));
    TSR_TRY(check_positions("latent_qkv", s));
    return tsr_run_f32("latent_qkv", s->dtype, pool, tsr_block_count(s->tokens, block_tokens(s)),
                       forward_block, args);
}

tsr_status tsr_latent_qkv_backward_ref(const tsr_latent_qkv_backward_args *args, tsr_pool *pool)
{
    const shape *s = &args->shape;
    TSR_TRY(tsr_latent_qkv_backward_check(args));
    TSR_TRY(check_positions("latent_qkv_backward", s));
    return tsr_run_f32("latent_qkv_backward", s->dtype, pool,
                       tsr_block_count(s->tokens, block_tokens(s)), backward_block, args);
}
