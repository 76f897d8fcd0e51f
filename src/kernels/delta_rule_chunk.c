/* delta_rule_chunk.c: the forward of one chunk, which the backward runs too. */
#include "kernels/delta_rule_chunk.h"

#include "kernels/gemm_block.h"
#include "kernels/loops.h"

#include <math.h>

#define CHUNK    TSR_DELTA_CHUNK
#define NORM_EPS 1e-6 /* of q and k */

uint64_t tsr_delta_chunk_floats(int64_t dk, int64_t dv)
{
    int64_t wide = dk > dv ? dk : dv;
    return (uint64_t)(CHUNK * (2 * dk + 2 * dv + 3 * CHUNK + 2 * wide) + dk * dv);
}

static float *take(float **memory, int64_t count)
{
    float *out = *memory;
    *memory += count;
    return out;
}

float *tsr_delta_chunk_place(tsr_delta_chunk *out, float *memory, int64_t dk, int64_t dv)
{
    int64_t wide = dk > dv ? dk : dv;
    out->q = take(&memory, CHUNK * dk);
    out->k = take(&memory, CHUNK * dk);
    out->rest = take(&memory, CHUNK * dv);
    out->u = take(&memory, CHUNK * dv);
    out->kk = take(&memory, CHUNK * CHUNK);
    out->p = take(&memory, CHUNK * CHUNK);
    out->e = take(&memory, CHUNK * CHUNK);
    out->state = take(&memory, dk * dv);
    out->wide = take(&memory, CHUNK * wide);
    out->narrow = take(&memory, CHUNK * wide);
    return memory;
}

void tsr_delta_multiply(float *c, int64_t ldc, const float *a, int64_t lda, bool trans_a,
                        const float *b, int64_t ldb, bool trans_b, const int64_t mnk[3], float beta)
{
    tsr_gemm_block(&(tsr_gemm_block_args){.m = mnk[0],
                                          .n = mnk[1],
                                          .k = mnk[2],
                                          .trans_a = trans_a,
                                          .trans_b = trans_b,
                                          .a = a,
                                          .lda = lda,
                                          .b = b,
                                          .ldb = ldb,
                                          .c = c,
                                          .ldc = ldc,
                                          .alpha = 1,
                                          .beta = beta});
}

/* ---- reading ---- */

/* One head of queries or keys, normed and scaled. */
static void read_normed(float *out, float *rstd, const tsr_delta_chunk *c, int64_t column,
                        float scale)
{
    int64_t columns = tsr_delta_rule_columns(c->shape), dk = c->shape->key_dim;
    for (int64_t i = 0; i < c->length; i++) {
        const float *x = (const float *)c->in->mixed + (c->first + i) * columns + column;
        double squares = 0;
        for (int64_t j = 0; j < dk; j++)
            squares += (double)x[j] * (double)x[j];
        rstd[i] = (float)(1 / sqrt(squares + NORM_EPS));
        for (int64_t j = 0; j < dk; j++)
            out[i * dk + j] = x[j] * rstd[i] * scale;
    }
}

static float frozen_at(tsr_frozen f, int64_t i)
{
    float value;
    tsr_frozen_copy(&value, f, i, 1);
    return value;
}

static float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* beta, and decays with their sums. */
static void read_gates(tsr_delta_chunk *c)
{
    int64_t heads = c->shape->value_heads, h = c->head;
    float rate = -expf(frozen_at(c->in->a_log, h)), shift = frozen_at(c->in->dt_bias, h);
    float total = 0;
    for (int64_t i = 0; i < c->length; i++) {
        int64_t at = (c->first + i) * heads + h;
        float b = ((const float *)c->in->b)[at], a = ((const float *)c->in->a)[at];
        float x = (c->in->g_a ? c->in->g_a[h] * a : a) + shift;
        float softplus = x > 20.0f ? x : log1pf(expf(x));
        c->beta[i] = sigmoid(c->in->g_b ? c->in->g_b[h] * b : b);
        c->slope[i] = rate * sigmoid(x);
        c->sum[i] = total += rate * softplus;
    }
    for (int64_t i = 0; i < c->length; i++) {
        c->grow[i] = expf(c->sum[i]);
        c->left[i] = expf(total - c->sum[i]);
    }
}

/* ---- products ---- */

/* Both kinds of scores with their decay. */
static void score(tsr_delta_chunk *c)
{
    int64_t n = c->length, dk = c->shape->key_dim;
    const int64_t mnk[3] = {n, n, dk};
    tsr_delta_multiply(c->kk, CHUNK, c->k, dk, false, c->k, dk, true, mnk, 0);
    tsr_delta_multiply(c->p, CHUNK, c->q, dk, false, c->k, dk, true, mnk, 0);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            int64_t at = i * CHUNK + j;
            c->e[at] = j <= i ? expf(c->sum[i] - c->sum[j]) : 0.0f;
            c->kk[at] = j < i ? c->e[at] * c->kk[at] : 0.0f;
            c->p[at] = j <= i ? c->e[at] * c->p[at] : 0.0f;
        }
}

void tsr_delta_chunk_solve(tsr_delta_chunk *c)
{
    const tsr_delta_rule_shape *s = c->shape;
    int64_t dk = s->key_dim, dv = s->value_dim, columns = tsr_delta_rule_columns(s);
    int64_t keys = (int64_t)s->key_heads * dk;
    read_normed(c->q, c->q_rstd, c, c->key_head * dk, (float)(1 / sqrt((double)dk)));
    read_normed(c->k, c->k_rstd, c, keys + c->key_head * dk, 1.0f);
    read_gates(c);
    score(c);
    tsr_delta_multiply(c->rest, dv, c->k, dk, false, c->state, dv, false,
                       (const int64_t[3]){c->length, dv, dk}, 0);
    for (int64_t i = 0; i < c->length; i++) {
        const float *v =
            (const float *)c->in->mixed + (c->first + i) * columns + 2 * keys + c->head * dv;
        float *rest = c->rest + i * dv, *u = c->u + i * dv;
        for (int64_t j = 0; j < dv; j++) {
            rest[j] = v[j] - c->grow[i] * rest[j];
            u[j] = rest[j];
        }
        for (int64_t before = 0; before < i; before++) {
            float weight = c->kk[i * CHUNK + before];
            for (int64_t j = 0; j < dv; j++)
                u[j] -= weight * c->u[before * dv + j];
        }
        for (int64_t j = 0; j < dv; j++)
            u[j] *= c->beta[i];
    }
}

void tsr_delta_chunk_output(float *o, int64_t stride, const tsr_delta_chunk *c)
{
    int64_t dk = c->shape->key_dim, dv = c->shape->value_dim, n = c->length;
    tsr_delta_multiply(o, stride, c->q, dk, false, c->state, dv, false,
                       (const int64_t[3]){n, dv, dk}, 0);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < dv; j++)
            o[i * stride + j] *= c->grow[i];
    tsr_delta_multiply(o, stride, c->p, CHUNK, false, c->u, dv, false, (const int64_t[3]){n, dv, n},
                       1);
}

void tsr_delta_chunk_advance(tsr_delta_chunk *c)
{
    int64_t dk = c->shape->key_dim, dv = c->shape->value_dim, n = c->length;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < dk; j++)
            c->wide[i * dk + j] = c->left[i] * c->k[i * dk + j];
    tsr_delta_multiply(c->state, dv, c->wide, dk, true, c->u, dv, false,
                       (const int64_t[3]){dk, dv, n}, c->grow[n - 1]);
}
