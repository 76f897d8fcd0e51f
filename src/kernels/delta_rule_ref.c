/*
 * delta_rule_ref.c: contract delta_rule.h. Forward: a task is a value head, backward a key head with its value heads in
 * order; either walks the documents chunk by chunk (delta_rule_chunk.c), the backward from the last chunk to the first
 * with the states that enter them.
 *
 * Backward of a chunk, d of what leaves it being D = dS and dO: from O = diag(grow) Q S + P U, S' = grow_last S + K'^T U with
 * K' = diag(left) K, and (1 + A) U = diag(beta) rest, rest = V - diag(grow) K S:
 *     dU = P^T dO + K' D,  (1 + A)^T Y = dU,  dV = diag(beta) Y,  dA = -Y U^T below the diagonal,  dP = dO U^T
 *     dq_i = grow_i S dO_i + sum over j of dP_ij E_ij k_j
 *     k has two parts, as it is read (row i) and as it is written (row j):
 *     read  -grow_i S dV_i + sum over j of dA_ij beta_i E_ij k_j
 *     wrote  left_j D u_j + sum over i of (dP_ij E_ij q_i + dA_ij beta_i E_ij k_i)
 *     dc_i = q_i.dq_i + k_i.read_i - k_i.wrote_i, of the last one also sum over j of left_j k_j.D u_j + grow_last S.D
 *     dbeta_i = Y_i.rest_i + sum over j of dA_ij E_ij k_i.k_j
 *     dS = grow_last D + (diag(grow) Q)^T dO - (diag(grow) K)^T dV
 */
#include "kernels/delta_rule.h"

#include "kernels/delta_rule_chunk.h"
#include "kernels/loops.h"

#include <math.h>

#define CHUNK TSR_DELTA_CHUNK

/* ---- checks ---- */

static tsr_status check(const char *op, const tsr_delta_rule_shape *s,
                        const tsr_delta_rule_inputs *in)
{
    TSR_TRY(tsr_expect_dtype(op, s->dtype));
    if (s->tokens < 0 || s->documents < 0 || s->key_heads < 1 || s->value_heads < 1 ||
        s->value_heads % s->key_heads || s->key_dim < 1 || s->value_dim < 1 ||
        s->key_dim > TSR_DELTA_MOST || s->value_dim > TSR_DELTA_MOST)
        return tsr_fail(TSR_EINVAL,
                        "%s: %lld tokens, %d documents, %d key heads of %d, %d value heads of %d "
                        "(at most %d columns)",
                        op, (long long)s->tokens, s->documents, s->key_heads, s->key_dim,
                        s->value_heads, s->value_dim, TSR_DELTA_MOST);
    TSR_EXPECT(s->documents == 0 || s->cu_seqlens, op, "cu_seqlens is NULL");
    TSR_EXPECT(s->tokens == 0 ||
                   (in->mixed && in->b && in->a && in->a_log.data && in->dt_bias.data),
               op, "a pointer is NULL");
    TSR_EXPECT(tsr_frozen_valid(in->a_log) && tsr_frozen_valid(in->dt_bias), op,
               "a_log or dt_bias is not F32 or BF16");
    return TSR_OK;
}

tsr_status tsr_delta_rule_check(const tsr_delta_rule_args *args)
{
    TSR_TRY(check("delta_rule", &args->shape, &args->in));
    TSR_EXPECT(args->shape.tokens == 0 || args->o, "delta_rule", "a pointer is NULL");
    return TSR_OK;
}

tsr_status tsr_delta_rule_backward_check(const tsr_delta_rule_backward_args *args)
{
    const char *op = "delta_rule_backward";
    TSR_TRY(check(op, &args->shape, &args->in));
    TSR_EXPECT(args->shape.tokens == 0 || (args->d_o && args->d_mixed && args->d_b && args->d_a),
               op, "a pointer is NULL");
    return TSR_OK;
}

/* ---- memory ---- */

/* What the backward of a chunk has beside the chunk. */
typedef struct {
    float *d_state;           /* [dk, dv]: D, then dS */
    float *dq, *read, *wrote; /* [64, dk] */
    float *y;                 /* [64, dv]: dU, Y */
    float *dp, *da;           /* [64, 64]: dP_ij E_ij, dA_ij E_ij */
    float *states;            /* [chunks, dk, dv]: before each chunk of a document */
} gradients;

static uint64_t gradient_floats(int64_t dk, int64_t dv)
{
    return (uint64_t)(dk * dv + CHUNK * (3 * dk + dv + 2 * CHUNK));
}

static void place_gradients(gradients *out, float *memory, int64_t dk, int64_t dv)
{
    out->d_state = memory;
    out->dq = out->d_state + dk * dv;
    out->read = out->dq + CHUNK * dk;
    out->wrote = out->read + CHUNK * dk;
    out->y = out->wrote + CHUNK * dk;
    out->dp = out->y + CHUNK * dv;
    out->da = out->dp + CHUNK * CHUNK;
    out->states = out->da + CHUNK * CHUNK;
}

/* Floats of one task. */
static uint64_t forward_floats(int64_t dk, int64_t dv)
{
    return tsr_align_up(tsr_delta_chunk_floats(dk, dv), 64);
}

static uint64_t backward_floats(int64_t dk, int64_t dv, int64_t longest)
{
    uint64_t chunks = (uint64_t)(longest + CHUNK - 1) / CHUNK;
    return tsr_align_up(tsr_delta_chunk_floats(dk, dv) + gradient_floats(dk, dv) +
                            chunks * (uint64_t)(dk * dv),
                        64);
}

uint64_t tsr_delta_rule_workspace_bytes(const tsr_delta_rule_bounds *bounds)
{
    int64_t dk = bounds->key_dim, dv = bounds->value_dim;
    uint64_t forward = (uint64_t)bounds->value_heads * forward_floats(dk, dv);
    uint64_t backward = (uint64_t)bounds->key_heads * backward_floats(dk, dv, bounds->longest);
    return (bounds->train && backward > forward ? backward : forward) * sizeof(float);
}

static int64_t longest_of(const tsr_delta_rule_shape *s)
{
    int64_t most = 0;
    for (int32_t i = 0; i < s->documents; i++) {
        int64_t length = s->cu_seqlens[i + 1] - s->cu_seqlens[i];
        most = length > most ? length : most;
    }
    return most;
}

/* What only this backend needs, and that the documents lie one after the other inside the tokens. */
static tsr_status check_host(const char *op, const tsr_delta_rule_shape *s, bool train)
{
    TSR_TRY(tsr_expect_f32(op, s->dtype));
    bool good =
        s->documents == 0 || (s->cu_seqlens[0] == 0 && s->cu_seqlens[s->documents] <= s->tokens);
    for (int32_t i = 0; i < s->documents; i++)
        good = good && s->cu_seqlens[i] <= s->cu_seqlens[i + 1];
    if (!good)
        return tsr_fail(TSR_EINTERNAL,
                        "%s: cu_seqlens does not rise from 0 to at most %lld in %d documents", op,
                        (long long)s->tokens, s->documents);
    uint64_t need =
        tsr_delta_rule_workspace_bytes(&(tsr_delta_rule_bounds){.longest = longest_of(s),
                                                                .key_heads = s->key_heads,
                                                                .value_heads = s->value_heads,
                                                                .key_dim = s->key_dim,
                                                                .value_dim = s->value_dim,
                                                                .train = train});
    if (!s->workspace || s->workspace_bytes < need)
        return tsr_fail(TSR_EINVAL, "%s: a workspace of %llu bytes, %llu are needed", op,
                        (unsigned long long)s->workspace_bytes, (unsigned long long)need);
    return TSR_OK;
}

/* ---- forward ---- */

static void begin_document(tsr_delta_chunk *c)
{
    memset(c->state, 0, (size_t)(c->shape->key_dim * c->shape->value_dim) * sizeof(float));
}

static void forward_head(void *opaque, int head)
{
    const tsr_delta_rule_args *a = opaque;
    const tsr_delta_rule_shape *s = &a->shape;
    int64_t dv = s->value_dim, stride = s->value_heads * dv;
    tsr_delta_chunk c = {
        .in = &a->in, .shape = s, .head = head, .key_head = head / (s->value_heads / s->key_heads)};
    tsr_delta_chunk_place(&c,
                          (float *)s->workspace + (uint64_t)head * forward_floats(s->key_dim, dv),
                          s->key_dim, dv);
    for (int32_t document = 0; document < s->documents; document++) {
        int64_t end = s->cu_seqlens[document + 1];
        begin_document(&c);
        for (c.first = s->cu_seqlens[document]; c.first < end; c.first += CHUNK) {
            c.length = tsr_min(CHUNK, end - c.first);
            tsr_delta_chunk_solve(&c);
            tsr_delta_chunk_output((float *)a->o + c.first * stride + head * dv, stride, &c);
            tsr_delta_chunk_advance(&c);
        }
    }
}

static void clear_padding(void *rows, const tsr_delta_rule_shape *s, int64_t width)
{
    int64_t used = s->documents ? s->cu_seqlens[s->documents] : 0;
    memset((float *)rows + used * width, 0, (size_t)((s->tokens - used) * width) * sizeof(float));
}

tsr_status tsr_delta_rule_ref(const tsr_delta_rule_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_delta_rule_check(args));
    const tsr_delta_rule_shape *s = &args->shape;
    if (s->tokens == 0)
        return TSR_OK;
    TSR_TRY(check_host("delta_rule", s, false));
    tsr_pool_run(pool, s->value_heads, forward_head, (void *)args);
    clear_padding(args->o, s, (int64_t)s->value_heads * s->value_dim);
    return TSR_OK;
}

/* ---- backward ---- */

static float dot(const float *a, const float *b, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += (double)a[i] * (double)b[i];
    return (float)sum;
}

/* dU, then Y in its place; dV. */
static void back_solve(const tsr_delta_chunk *c, const gradients *g, const float *d_o, float *d_v)
{
    const tsr_delta_rule_shape *s = c->shape;
    int64_t dk = s->key_dim, dv = s->value_dim, n = c->length, columns = tsr_delta_rule_columns(s);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < dk; j++)
            c->wide[i * dk + j] = c->left[i] * c->k[i * dk + j];
    tsr_delta_multiply(g->y, dv, c->p, CHUNK, true, d_o, s->value_heads * dv, false,
                       (const int64_t[3]){n, dv, n}, 0);
    tsr_delta_multiply(g->y, dv, c->wide, dk, false, g->d_state, dv, false,
                       (const int64_t[3]){n, dv, dk}, 1);
    for (int64_t i = n - 1; i >= 0; i--) {
        float *y = g->y + i * dv;
        for (int64_t after = i + 1; after < n; after++) {
            float weight = c->beta[after] * c->kk[after * CHUNK + i];
            for (int64_t j = 0; j < dv; j++)
                y[j] -= weight * g->y[after * dv + j];
        }
        for (int64_t j = 0; j < dv; j++)
            d_v[i * columns + j] = c->beta[i] * y[j];
    }
}

/* dP_ij E_ij, dA_ij E_ij; dbeta. */
static void back_scores(float *d_beta, const tsr_delta_chunk *c, const gradients *g,
                        const float *d_o)
{
    int64_t dv = c->shape->value_dim, n = c->length;
    const int64_t mnk[3] = {n, n, dv};
    tsr_delta_multiply(g->dp, CHUNK, d_o, c->shape->value_heads * dv, false, c->u, dv, true, mnk,
                       0);
    tsr_delta_multiply(g->da, CHUNK, g->y, dv, false, c->u, dv, true, mnk, 0);
    for (int64_t i = 0; i < n; i++) {
        double sum = (double)dot(g->y + i * dv, c->rest + i * dv, dv);
        for (int64_t j = 0; j < n; j++) {
            int64_t at = i * CHUNK + j;
            float da = j < i ? -g->da[at] : 0.0f;
            sum += (double)da * (double)c->kk[at];
            g->da[at] = da * c->e[at] * c->beta[i];
            g->dp[at] *= c->e[at];
        }
        d_beta[i] = (float)sum;
    }
}

/* dq, and both parts of dk; returns what the last sum of decays gets beside. */
static float back_heads(const tsr_delta_chunk *c, const gradients *g, const float *d_o,
                        const float *d_v)
{
    const tsr_delta_rule_shape *s = c->shape;
    int64_t dk = s->key_dim, dv = s->value_dim, n = c->length;
    const int64_t from_state[3] = {n, dk, dv}, from_rows[3] = {n, dk, n};
    double last = 0;
    tsr_delta_multiply(g->dq, dk, d_o, s->value_heads * dv, false, c->state, dv, true, from_state,
                       0);
    tsr_delta_multiply(g->read, dk, d_v, tsr_delta_rule_columns(s), false, c->state, dv, true,
                       from_state, 0);
    tsr_delta_multiply(g->wrote, dk, c->u, dv, false, g->d_state, dv, true, from_state, 0);
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < dk; j++) {
            g->dq[i * dk + j] *= c->grow[i];
            g->read[i * dk + j] *= -c->grow[i];
            g->wrote[i * dk + j] *= c->left[i];
        }
        last += (double)dot(c->k + i * dk, g->wrote + i * dk, dk);
    }
    tsr_delta_multiply(g->dq, dk, g->dp, CHUNK, false, c->k, dk, false, from_rows, 1);
    tsr_delta_multiply(g->read, dk, g->da, CHUNK, false, c->k, dk, false, from_rows, 1);
    tsr_delta_multiply(g->wrote, dk, g->dp, CHUNK, true, c->q, dk, false, from_rows, 1);
    tsr_delta_multiply(g->wrote, dk, g->da, CHUNK, true, c->k, dk, false, from_rows, 1);
    return (float)(last + (double)(c->grow[n - 1] * dot(c->state, g->d_state, dk * dv)));
}

/* The gradients of the gates, from dbeta, those of heads and `last`. */
static void back_gates(const tsr_delta_rule_backward_args *a, const tsr_delta_chunk *c,
                       const gradients *g, const float *d_beta, float last)
{
    int64_t dk = c->shape->key_dim, heads = c->shape->value_heads;
    double sum = (double)last;
    for (int64_t i = c->length - 1; i >= 0; i--) {
        int64_t at = (c->first + i) * heads + c->head;
        sum += (double)dot(c->q + i * dk, g->dq + i * dk, dk) +
               (double)dot(c->k + i * dk, g->read + i * dk, dk) -
               (double)dot(c->k + i * dk, g->wrote + i * dk, dk);
        ((float *)a->d_a)[at] = (float)sum * c->slope[i];
        ((float *)a->d_b)[at] = d_beta[i] * c->beta[i] * (1.0f - c->beta[i]);
    }
}

/* D becomes dS. */
static void back_state(const tsr_delta_chunk *c, const gradients *g, const float *d_o,
                       const float *d_v)
{
    const tsr_delta_rule_shape *s = c->shape;
    int64_t dk = s->key_dim, dv = s->value_dim, n = c->length;
    const int64_t mnk[3] = {dk, dv, n};
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < dk; j++) {
            c->wide[i * dk + j] = c->grow[i] * c->q[i * dk + j];
            c->narrow[i * dk + j] = -c->grow[i] * c->k[i * dk + j];
        }
    tsr_delta_multiply(g->d_state, dv, c->wide, dk, true, d_o, s->value_heads * dv, false, mnk,
                       c->grow[n - 1]);
    tsr_delta_multiply(g->d_state, dv, c->narrow, dk, true, d_v, tsr_delta_rule_columns(s), false,
                       mnk, 1);
}

/* Adds a value head's gradients of normed queries and keys; `first`: writes them. */
static void add_heads(const tsr_delta_rule_backward_args *a, const tsr_delta_chunk *c,
                      const gradients *g, bool first)
{
    const tsr_delta_rule_shape *s = c->shape;
    int64_t dk = s->key_dim, columns = tsr_delta_rule_columns(s);
    for (int64_t i = 0; i < c->length; i++) {
        float *q = (float *)a->d_mixed + (c->first + i) * columns + c->key_head * dk;
        float *k = q + s->key_heads * dk;
        for (int64_t j = 0; j < dk; j++) {
            q[j] = (first ? 0.0f : q[j]) + g->dq[i * dk + j];
            k[j] = (first ? 0.0f : k[j]) + (g->read[i * dk + j] + g->wrote[i * dk + j]);
        }
    }
}

static void back_chunk(const tsr_delta_rule_backward_args *a, tsr_delta_chunk *c,
                       const gradients *g, bool first)
{
    const tsr_delta_rule_shape *s = c->shape;
    int64_t dv = s->value_dim, columns = tsr_delta_rule_columns(s);
    float d_beta[CHUNK];
    const float *d_o = (const float *)a->d_o + (c->first * s->value_heads + c->head) * dv;
    float *d_v = (float *)a->d_mixed + c->first * columns + 2 * (int64_t)s->key_heads * s->key_dim +
                 c->head * dv;
    tsr_delta_chunk_solve(c);
    back_solve(c, g, d_o, d_v);
    back_scores(d_beta, c, g, d_o);
    float last = back_heads(c, g, d_o, d_v);
    back_gates(a, c, g, d_beta, last);
    back_state(c, g, d_o, d_v);
    add_heads(a, c, g, first);
}

/* One document of a value head. */
static void back_document(const tsr_delta_rule_backward_args *a, tsr_delta_chunk *c,
                          const gradients *g, int32_t document, bool first)
{
    const tsr_delta_rule_shape *s = c->shape;
    int64_t start = s->cu_seqlens[document], end = s->cu_seqlens[document + 1];
    int64_t chunks = (end - start + CHUNK - 1) / CHUNK, floats = (int64_t)s->key_dim * s->value_dim;
    begin_document(c);
    for (int64_t i = 0; i < chunks; i++) {
        memcpy(g->states + i * floats, c->state, (size_t)floats * sizeof(float));
        c->first = start + i * CHUNK;
        c->length = tsr_min(CHUNK, end - c->first);
        if (i == chunks - 1)
            break;
        tsr_delta_chunk_solve(c);
        tsr_delta_chunk_advance(c);
    }
    memset(g->d_state, 0, (size_t)floats * sizeof(float));
    for (int64_t i = chunks - 1; i >= 0; i--) {
        memcpy(c->state, g->states + i * floats, (size_t)floats * sizeof(float));
        c->first = start + i * CHUNK;
        c->length = tsr_min(CHUNK, end - c->first);
        back_chunk(a, c, g, first);
    }
}

/* The gradients of a key head's normed queries or keys become those of what they are normed from. */
static void back_norm(const tsr_delta_rule_backward_args *a, int64_t column, double scale)
{
    const tsr_delta_rule_shape *s = &a->shape;
    int64_t columns = tsr_delta_rule_columns(s), dk = s->key_dim;
    int64_t used = s->documents ? s->cu_seqlens[s->documents] : 0;
    for (int64_t t = 0; t < used; t++) {
        const float *x = (const float *)a->in.mixed + t * columns + column;
        float *d = (float *)a->d_mixed + t * columns + column;
        double rstd = 1 / sqrt((double)dot(x, x, dk) + 1e-6);
        double along = (double)dot(x, d, dk) * rstd * rstd;
        for (int64_t j = 0; j < dk; j++)
            d[j] = (float)(scale * rstd * ((double)d[j] - (double)x[j] * along));
    }
}

static void backward_head(void *opaque, int key_head)
{
    const tsr_delta_rule_backward_args *a = opaque;
    const tsr_delta_rule_shape *s = &a->shape;
    int64_t dk = s->key_dim, dv = s->value_dim;
    int32_t group = s->value_heads / s->key_heads;
    tsr_delta_chunk c = {.in = &a->in, .shape = s, .key_head = key_head};
    gradients g;
    float *memory =
        (float *)s->workspace + (uint64_t)key_head * backward_floats(dk, dv, longest_of(s));
    place_gradients(&g, tsr_delta_chunk_place(&c, memory, dk, dv), dk, dv);
    for (int32_t i = 0; i < group; i++) {
        c.head = key_head * group + i;
        for (int32_t document = 0; document < s->documents; document++)
            back_document(a, &c, &g, document, i == 0);
    }
    back_norm(a, key_head * dk, 1 / sqrt((double)dk));
    back_norm(a, (s->key_heads + key_head) * dk, 1);
}

tsr_status tsr_delta_rule_backward_ref(const tsr_delta_rule_backward_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_delta_rule_backward_check(args));
    const tsr_delta_rule_shape *s = &args->shape;
    if (s->tokens == 0)
        return TSR_OK;
    TSR_TRY(check_host("delta_rule_backward", s, true));
    tsr_pool_run(pool, s->key_heads, backward_head, (void *)args);
    clear_padding(args->d_mixed, s, tsr_delta_rule_columns(s));
    clear_padding(args->d_b, s, s->value_heads);
    clear_padding(args->d_a, s, s->value_heads);
    return TSR_OK;
}
