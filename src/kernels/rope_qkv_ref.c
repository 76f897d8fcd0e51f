/*
 * rope_qkv_ref.c: contract rope_qkv.h. A task is one head of one projection, of a block of tokens
 * (forward) or of all of them (backward, which sums dm over the tokens).
 */
#include "kernels/rope_qkv.h"

#include "kernels/loops.h"

#include <math.h>

#define MAX_HEAD    512
#define TASK_TOKENS 256

static tsr_status check_shape(const char *op, int64_t tokens, int32_t q_heads, int32_t kv_heads,
                              int32_t head_dim)
{
    if (tokens < 0 || q_heads < 1 || kv_heads < 0 || head_dim < 2 || head_dim % 2 ||
        head_dim > MAX_HEAD)
        return tsr_fail(TSR_EINVAL,
                        "%s: %lld tokens, %d and %d heads of %d (must be even, at most %d)", op,
                        (long long)tokens, q_heads, kv_heads, head_dim, MAX_HEAD);
    return TSR_OK;
}

tsr_status tsr_rope_qkv_check(const tsr_rope_qkv_args *args)
{
    TSR_TRY(tsr_expect_dtype("rope_qkv", args->dtype));
    TSR_TRY(check_shape("rope_qkv", args->tokens, args->q_heads, args->kv_heads, args->head_dim));
    TSR_EXPECT(args->tokens == 0 || (args->cosine && args->sine && args->positions), "rope_qkv",
               "cosine, sine or positions is NULL");
    for (int p = 0; p < 3; p++) {
        const tsr_rope_part *part = &args->part[p];
        if ((p && !args->kv_heads) || (p == 2 && !part->out))
            continue;
        TSR_EXPECT(args->tokens == 0 || (part->z && part->out), "rope_qkv", "z or out is NULL");
        TSR_EXPECT(tsr_frozen_valid(part->bias) && tsr_frozen_valid(part->norm), "rope_qkv",
                   "bias or norm is not F32 or BF16");
    }
    TSR_EXPECT(!args->part[2].norm.data, "rope_qkv", "v has no norm");
    TSR_EXPECT(!args->q_cosine == !args->q_sine, "rope_qkv", "q_cosine and q_sine belong together");
    TSR_EXPECT(args->rotary_dim >= 0 && args->rotary_dim % 2 == 0 &&
                   args->rotary_dim <= args->head_dim,
               "rope_qkv", "rotary_dim is odd or above head_dim");
    return TSR_OK;
}

tsr_status tsr_rope_qkv_backward_check(const tsr_rope_qkv_backward_args *args)
{
    const char *op = "rope_qkv_backward";
    TSR_TRY(tsr_expect_dtype(op, args->dtype));
    TSR_TRY(check_shape(op, args->tokens, args->q_heads, args->kv_heads, args->head_dim));
    TSR_EXPECT(args->tokens == 0 || (args->cosine && args->sine && args->positions), op,
               "cosine, sine or positions is NULL");
    for (int p = 0; p < 3; p++) {
        const tsr_rope_backward_part *part = &args->part[p];
        if ((p && !args->kv_heads) || (p == 2 && !part->dz))
            continue;
        TSR_EXPECT(args->tokens == 0 || (part->dout && part->dz), op, "dout or dz is NULL");
        TSR_EXPECT(args->tokens == 0 || part->z || (!part->dm && !part->norm.data), op,
                   "dm or norm needs z");
        TSR_EXPECT(!part->dm || part->n, op, "dm needs n");
        TSR_EXPECT(tsr_frozen_valid(part->bias) && tsr_frozen_valid(part->norm), op,
                   "bias or norm is not F32 or BF16");
    }
    TSR_EXPECT(!args->part[2].norm.data, op, "v has no norm");
    return TSR_OK;
}

static tsr_status check_positions(const char *op, const int32_t *positions, int64_t tokens,
                                  int32_t position_count)
{
    for (int64_t t = 0; t < tokens; t++)
        if (positions[t] < 0 || positions[t] >= position_count)
            return tsr_fail(TSR_EINTERNAL, "%s: token %lld has position %d of %d", op, (long long)t,
                            positions[t], position_count);
    return TSR_OK;
}

/* How the columns of a head turn: pair i is (i step, i step + far). */
typedef struct {
    int64_t pairs, step, far;
} turning;

static turning turning_of(int32_t head_dim, int32_t rotary_dim, bool neighbours)
{
    int64_t pairs = (rotary_dim ? rotary_dim : head_dim) / 2;
    return neighbours ? (turning){pairs, 2, 1} : (turning){pairs, 1, pairs};
}

/* Which projection and head a task has; heads are counted q first, then k, then v. */
TSR_INLINE int part_of(int *head, int q_heads, int kv_heads)
{
    if (*head < q_heads)
        return 0;
    *head -= q_heads;
    if (*head < kv_heads)
        return 1;
    *head -= kv_heads;
    return 2;
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

/* y, turned; and back. */
TSR_INLINE void turn_pairs(float *out, const float *y, const float *c, const float *s,
                           int64_t pairs, int64_t step, int64_t far)
{
    for (int64_t i = 0; i < pairs; i++) {
        int64_t a = i * step, b = a + far;
        out[a] = y[a] * c[i] - y[b] * s[i];
        out[b] = y[b] * c[i] + y[a] * s[i];
    }
}

TSR_INLINE void turn_back_pairs(float *dy, const float *dout, const float *c, const float *s,
                                int64_t pairs, int64_t step, int64_t far)
{
    for (int64_t i = 0; i < pairs; i++) {
        int64_t a = i * step, b = a + far;
        dy[a] = dout[a] * c[i] + dout[b] * s[i];
        dy[b] = dout[b] * c[i] - dout[a] * s[i];
    }
}

/* Constants where they make a vector of it. */
TSR_INLINE void turn_head(float *out, const float *y, const float *c, const float *s, turning t,
                          int64_t dim)
{
    if (t.step == 1)
        turn_pairs(out, y, c, s, t.pairs, 1, t.far);
    else
        turn_pairs(out, y, c, s, t.pairs, 2, 1);
    for (int64_t i = 2 * t.pairs; i < dim; i++)
        out[i] = y[i];
}

TSR_INLINE void turn_back_head(float *dy, const float *dout, const float *c, const float *s,
                               turning t, int64_t dim)
{
    if (t.step == 1)
        turn_back_pairs(dy, dout, c, s, t.pairs, 1, t.far);
    else
        turn_back_pairs(dy, dout, c, s, t.pairs, 2, 1);
    for (int64_t i = 2 * t.pairs; i < dim; i++)
        dy[i] = dout[i];
}

TSR_CLONES static void forward_task(void *context, int index)
{
    const tsr_rope_qkv_args *args = context;
    int heads = tsr_rope_heads(args->q_heads, args->kv_heads, args->part[2].out);
    int head = index % heads;
    int64_t first = (int64_t)(index / heads) * TASK_TOKENS;
    int64_t last = tsr_min(args->tokens, first + TASK_TOKENS);
    int p = part_of(&head, args->q_heads, args->kv_heads);
    const tsr_rope_part *part = &args->part[p];
    int64_t dim = args->head_dim, stride = (p == 0 ? args->q_heads : args->kv_heads) * dim;
    turning turn = turning_of(args->head_dim, args->rotary_dim, args->neighbours);
    head_vectors v;
    v.dim = dim;
    load_head(&v, part->g, part->bias, part->norm, head);
    _Alignas(64) float y[MAX_HEAD];
    for (int64_t t = first; t < last; t++) {
        int64_t from = t * (args->stride ? args->stride : stride) + head * dim;
        const float *z = (const float *)part->z + from;
        float *out = (float *)part->out + t * stride + head * dim;
        float rstd = linear_head(y, z, &v, args->norm_eps);
        if (v.normalized)
            for (int64_t i = 0; i < dim; i++)
                y[i] = y[i] * rstd * v.norm[i];
        if (p == 2) {
            memcpy(out, y, (size_t)dim * sizeof(float));
            continue;
        }
        bool own = p == 0 && args->q_cosine;
        int64_t row = args->positions[t] * turn.pairs;
        const float *c = (own ? args->q_cosine : args->cosine) + row;
        const float *s = (own ? args->q_sine : args->sine) + row;
        turn_head(out, y, c, s, turn, dim);
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
    int head = index;
    int p = part_of(&head, args->q_heads, args->kv_heads);
    const tsr_rope_backward_part *part = &args->part[p];
    int64_t dim = args->head_dim, stride = (p == 0 ? args->q_heads : args->kv_heads) * dim;
    turning turn = turning_of(args->head_dim, args->rotary_dim, args->neighbours);
    head_vectors v;
    v.dim = dim;
    load_head(&v, part->g, part->bias, part->norm, head);
    head_sum sum;
    memset(&sum, 0, sizeof sum);
    _Alignas(64) float y[MAX_HEAD];
    _Alignas(64) float dy[MAX_HEAD];
    for (int64_t t = 0; t < args->tokens; t++) {
        const float *dout = (const float *)part->dout + t * stride + head * dim;
        int64_t from = t * (args->stride ? args->stride : stride) + head * dim;
        const float *z = part->z ? (const float *)part->z + from : NULL;
        float *dz = (float *)part->dz + from;
        if (p == 2) {
            memcpy(dy, dout, (size_t)dim * sizeof(float));
        } else {
            bool own = p == 0 && args->q_cosine;
            int64_t row = args->positions[t] * turn.pairs;
            turn_back_head(dy, dout, (own ? args->q_cosine : args->cosine) + row,
                           (own ? args->q_sine : args->sine) + row, turn, dim);
        }
        if (v.normalized) {
            float rstd = linear_head(y, z, &v, args->norm_eps);
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
        part->dm[head * dim + i] = (float)sum.total[i] / part->n[head * dim + i];
}

tsr_status tsr_rope_qkv_ref(const tsr_rope_qkv_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_rope_qkv_check(args));
    TSR_TRY(tsr_expect_f32("rope_qkv", args->dtype));
    TSR_TRY(check_positions("rope_qkv", args->positions, args->tokens, args->position_count));
    int heads = tsr_rope_heads(args->q_heads, args->kv_heads, args->part[2].out);
    tsr_pool_run(pool, heads * tsr_block_count(args->tokens, TASK_TOKENS), forward_task,
                 (void *)args);
    return TSR_OK;
}

tsr_status tsr_rope_qkv_backward_ref(const tsr_rope_qkv_backward_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_rope_qkv_backward_check(args));
    TSR_TRY(tsr_expect_f32("rope_qkv_backward", args->dtype));
    TSR_TRY(
        check_positions("rope_qkv_backward", args->positions, args->tokens, args->position_count));
    tsr_pool_run(pool, tsr_rope_heads(args->q_heads, args->kv_heads, args->part[2].dz),
                 backward_task, (void *)args);
    return TSR_OK;
}
