/*
 * rope_qkv_ref.c: contract rope_qkv.h. A task is one head of one projection, of a block of tokens
 * (forward) or of all of them (backward, which sums dm over the tokens).
 */
#include "kernels/rope_qkv.h"

#include "kernels/loops.h"

#include <math.h>

#define MAX_HEAD    512
#define TASK_TOKENS 256

static tsr_status check_shape(const char *op, const tsr_rope_shape *s)
{
    TSR_TRY(tsr_expect_dtype(op, s->dtype));
    if (s->tokens < 0 || s->q_heads < 1 || s->kv_heads < 0 || s->head_dim < 2 || s->head_dim % 2 ||
        s->head_dim > MAX_HEAD)
        return tsr_fail(TSR_EINVAL,
                        "%s: %lld tokens, %d and %d heads of %d (must be even, at most %d)", op,
                        (long long)s->tokens, s->q_heads, s->kv_heads, s->head_dim, MAX_HEAD);
    TSR_EXPECT(s->tokens == 0 || (s->cosine && s->sine && s->positions), op,
               "cosine, sine or positions is NULL");
    TSR_EXPECT(!s->q_cosine == !s->q_sine, op, "q_cosine and q_sine belong together");
    TSR_EXPECT(s->rotary_dim >= 0 && s->rotary_dim % 2 == 0 && s->rotary_dim <= s->head_dim, op,
               "rotary_dim is odd or above head_dim");
    return TSR_OK;
}

/* Whether the call has part `p`, whose out or dz is `out`. */
static bool has_part(const tsr_rope_shape *s, int p, const void *out)
{
    return p == 0 || (s->kv_heads && (p == 1 || out));
}

static tsr_status check_vectors(const char *op, int p, tsr_frozen bias, tsr_frozen norm)
{
    TSR_EXPECT(tsr_frozen_valid(bias) && tsr_frozen_valid(norm), op,
               "bias or norm is not F32 or BF16");
    TSR_EXPECT(p != 2 || !norm.data, op, "v has no norm");
    return TSR_OK;
}

tsr_status tsr_rope_qkv_check(const tsr_rope_qkv_args *args)
{
    const char *op = "rope_qkv";
    TSR_TRY(check_shape(op, &args->shape));
    for (int p = 0; p < 3; p++) {
        const tsr_rope_part *part = &args->part[p];
        if (!has_part(&args->shape, p, part->out))
            continue;
        TSR_EXPECT(args->shape.tokens == 0 || (part->z && part->out), op, "z or out is NULL");
        TSR_TRY(check_vectors(op, p, part->bias, part->norm));
    }
    return TSR_OK;
}

tsr_status tsr_rope_qkv_backward_check(const tsr_rope_qkv_backward_args *args)
{
    const char *op = "rope_qkv_backward";
    int64_t tokens = args->shape.tokens;
    TSR_TRY(check_shape(op, &args->shape));
    for (int p = 0; p < 3; p++) {
        const tsr_rope_backward_part *part = &args->part[p];
        if (!has_part(&args->shape, p, part->dz))
            continue;
        TSR_EXPECT(tokens == 0 || (part->dout && part->dz), op, "dout or dz is NULL");
        TSR_EXPECT(tokens == 0 || part->z || (!part->dm && !part->norm.data), op,
                   "dm or norm needs z");
        TSR_EXPECT(!part->dm || part->n, op, "dm needs n");
        TSR_TRY(check_vectors(op, p, part->bias, part->norm));
    }
    return TSR_OK;
}

static tsr_status check_positions(const char *op, const tsr_rope_shape *s)
{
    for (int64_t t = 0; t < s->tokens; t++)
        if (s->positions[t] < 0 || s->positions[t] >= s->position_count)
            return tsr_fail(TSR_EINTERNAL, "%s: token %lld has position %d of %d", op, (long long)t,
                            s->positions[t], s->position_count);
    return TSR_OK;
}

/* One head of one projection: heads are counted q first, then k, then v. How its columns turn: pair i is (i step,
 * i step + far). */
typedef struct {
    int part;                   /* 0 q, 1 k, 2 v */
    int64_t head, dim;          /* head: in its part */
    int64_t stride, wide;       /* of the rows of out and dout, and of z and dz */
    const float *cosine, *sine; /* NULL: none turns */
    int64_t pairs, step, far;
} head_place;

TSR_INLINE head_place place_of(const tsr_rope_shape *s, int head)
{
    int part = head < s->q_heads ? 0 : head < s->q_heads + s->kv_heads ? 1 : 2;
    int64_t stride = (part == 0 ? s->q_heads : s->kv_heads) * (int64_t)s->head_dim;
    int64_t pairs = (s->rotary_dim ? s->rotary_dim : s->head_dim) / 2;
    bool own = part == 0 && s->q_cosine;
    return (head_place){.part = part,
                        .head = head - (part > 0 ? s->q_heads : 0) - (part > 1 ? s->kv_heads : 0),
                        .dim = s->head_dim,
                        .stride = stride,
                        .wide = s->stride ? s->stride : stride,
                        .cosine = own ? s->q_cosine : s->cosine,
                        .sine = own ? s->q_sine : s->sine,
                        .pairs = pairs,
                        .step = s->neighbours ? 2 : 1,
                        .far = s->neighbours ? 1 : pairs};
}

/* Vectors of one head: 1 and 0 where there are none. */
typedef struct {
    _Alignas(64) float g[MAX_HEAD];
    float bias[MAX_HEAD], norm[MAX_HEAD];
    int64_t dim;
    bool normalized;
} head_vectors;

TSR_INLINE void load_head(head_vectors *v, const float *g, tsr_frozen bias, tsr_frozen norm,
                          int64_t head)
{
    int64_t dim = v->dim;
    for (int64_t i = 0; i < dim; i++)
        v->g[i] = g ? g[head * dim + i] : 1.0f;
    memset(v->bias, 0, (size_t)dim * sizeof(float));
    if (bias.data)
        tsr_frozen_copy(v->bias, bias, head * dim, dim);
    v->normalized = norm.data != NULL;
    if (norm.data)
        tsr_frozen_copy(v->norm, norm, 0, dim);
}

/* y = g z + bias; returns rstd(y) if the head is normalized. */
TSR_INLINE float linear_head(float *y, const float *z, const head_vectors *v, float eps)
{
    for (int64_t i = 0; i < v->dim; i++)
        y[i] = v->g[i] * z[i] + v->bias[i];
    if (!v->normalized)
        return 1.0f;
    double squares = 0;
    for (int64_t i = 0; i < v->dim; i++)
        squares += (double)y[i] * (double)y[i];
    return 1.0f / sqrtf((float)(squares / (double)v->dim) + eps);
}

/* y, turned; `back`: by the negative angles. */
TSR_INLINE void turn_pairs(float *out, const float *y, const float *c, const float *s,
                           int64_t pairs, int64_t step, int64_t far, bool back)
{
    for (int64_t i = 0; i < pairs; i++) {
        int64_t a = i * step, b = a + far;
        float sine = back ? -s[i] : s[i];
        out[a] = y[a] * c[i] - y[b] * sine;
        out[b] = y[b] * c[i] + y[a] * sine;
    }
}

/* Constants where they make a vector of it. */
TSR_INLINE void turn_head(float *out, const float *y, const head_place *p, int32_t position,
                          bool back)
{
    const float *c = p->cosine + position * p->pairs, *s = p->sine + position * p->pairs;
    int64_t turned = p->part == 2 ? 0 : 2 * p->pairs;
    if (turned && p->step == 1)
        turn_pairs(out, y, c, s, p->pairs, 1, p->far, back);
    else if (turned)
        turn_pairs(out, y, c, s, p->pairs, 2, 1, back);
    for (int64_t i = turned; i < p->dim; i++)
        out[i] = y[i];
}

TSR_CLONES static void forward_task(void *context, int index)
{
    const tsr_rope_qkv_args *args = context;
    const tsr_rope_shape *s = &args->shape;
    int heads = tsr_rope_heads(s, args->part[2].out);
    int64_t first = (int64_t)(index / heads) * TASK_TOKENS;
    int64_t last = tsr_min(s->tokens, first + TASK_TOKENS);
    head_place place = place_of(s, index % heads);
    const tsr_rope_part *part = &args->part[place.part];
    int64_t dim = place.dim, column = place.head * dim;
    head_vectors v;
    v.dim = dim;
    load_head(&v, part->g, part->bias, part->norm, place.head);
    _Alignas(64) float y[MAX_HEAD];
    for (int64_t t = first; t < last; t++) {
        const float *z = (const float *)part->z + t * place.wide + column;
        float *out = (float *)part->out + t * place.stride + column;
        float rstd = linear_head(y, z, &v, s->norm_eps);
        if (v.normalized)
            for (int64_t i = 0; i < dim; i++)
                y[i] = y[i] * rstd * v.norm[i];
        turn_head(out, y, &place, s->positions[t], false);
    }
}

/* dy -> rstd (w dy - y rstd^2 mean(w dy y)) */
TSR_INLINE void norm_head_backward(float *dy, const float *y, float rstd, const head_vectors *v)
{
    double projection = 0;
    for (int64_t i = 0; i < v->dim; i++)
        projection += (double)(dy[i] * v->norm[i] * y[i]);
    float shift = (float)(projection / (double)v->dim) * rstd * rstd;
    for (int64_t i = 0; i < v->dim; i++)
        dy[i] = rstd * (dy[i] * v->norm[i] - y[i] * shift);
}

typedef struct {
    _Alignas(64) float part[MAX_HEAD];
    double total[MAX_HEAD];
} head_sum;

TSR_INLINE void flush_sum(head_sum *sum, int64_t dim)
{
    for (int64_t i = 0; i < dim; i++) {
        sum->total[i] += (double)sum->part[i];
        sum->part[i] = 0;
    }
}

TSR_CLONES static void backward_task(void *context, int index)
{
    const tsr_rope_qkv_backward_args *args = context;
    const tsr_rope_shape *s = &args->shape;
    head_place place = place_of(s, index);
    const tsr_rope_backward_part *part = &args->part[place.part];
    int64_t dim = place.dim, column = place.head * dim;
    head_vectors v;
    v.dim = dim;
    load_head(&v, part->g, part->bias, part->norm, place.head);
    head_sum sum;
    memset(&sum, 0, sizeof sum);
    _Alignas(64) float y[MAX_HEAD];
    _Alignas(64) float dy[MAX_HEAD];
    for (int64_t t = 0; t < s->tokens; t++) {
        int64_t at = t * place.wide + column;
        const float *z = part->z ? (const float *)part->z + at : NULL;
        float *dz = (float *)part->dz + at;
        turn_head(dy, (const float *)part->dout + t * place.stride + column, &place,
                  s->positions[t], true);
        if (v.normalized) {
            float rstd = linear_head(y, z, &v, s->norm_eps);
            norm_head_backward(dy, y, rstd, &v);
        }
        if (part->dm) {
            for (int64_t i = 0; i < dim; i++)
                sum.part[i] += dy[i] * z[i];
            if (t % TSR_SUM_TOKENS == TSR_SUM_TOKENS - 1)
                flush_sum(&sum, dim);
        }
        for (int64_t i = 0; i < dim; i++)
            dz[i] = v.g[i] * dy[i];
    }
    if (!part->dm)
        return;
    flush_sum(&sum, dim);
    for (int64_t i = 0; i < dim; i++)
        part->dm[column + i] = (float)sum.total[i] / part->n[column + i];
}

static tsr_status run(const char *op, const tsr_rope_shape *s, tsr_pool *pool, int tasks,
                      void (*task)(void *, int), const void *args)
{
    TSR_TRY(check_positions(op, s));
    return tsr_run_f32(op, s->dtype, pool, tasks, task, args);
}

tsr_status tsr_rope_qkv_ref(const tsr_rope_qkv_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_rope_qkv_check(args));
    int tasks = tsr_rope_heads(&args->shape, args->part[2].out) *
                tsr_block_count(args->shape.tokens, TASK_TOKENS);
    return run("rope_qkv", &args->shape, pool, tasks, forward_task, args);
}

tsr_status tsr_rope_qkv_backward_ref(const tsr_rope_qkv_backward_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_rope_qkv_backward_check(args));
    return run("rope_qkv_backward", &args->shape, pool,
               tsr_rope_heads(&args->shape, args->part[2].dz), backward_task, args);
}
