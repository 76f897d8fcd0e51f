/*
 * attention_rows.c: shared attention where each rank computes what its own rows get, of all heads (attention_shared.h).
 *
 * Before it the ranks give each other their rows of k and v, and before its backward those of q, d_o, delta = <d_o, o> and
 * lse too (o instead of delta for kernels that need it). Some key heads with their query heads go at a time: a group. While
 * one is computed the rows of the next one arrive, and the sums of dq of the one before are added up; so two groups of most
 * values lie in the node's workspace.
 *
 *     comm       rows of 0 | rows of 1              | dq of 0, rows of 2 | dq of 1 ..
 *     compute                group 0                | group 1            | group 2 ..
 */
#include "model/attention_ways.h"

/* ---- what lies in the workspace ---- */

enum { Q, K, V, D_O, DELTA, O, LSE, PACKED, D_Q, D_K, D_V, VALUES };

/* Of a group of heads: all rows of a value, [tokens, columns], but lse as the kernels have it; packed is lse span by span.
 * Consecutive groups alternate between the two buffers. */
typedef struct {
    void *all[2];
    int64_t columns;
    tsr_dtype dtype;
} group_rows;

/* Of one direction. */
typedef struct {
    tsr_attention_bounds group; /* of the run, for the heads of one */
    int32_t groups;
    group_rows value[VALUES];
    float *own_delta;   /* [own tokens, Hq] */
    void *workspace[2]; /* of the kernels */
    uint64_t workspace_bytes;
    tsr_attention_room room;
} layout;

/* Two where one is in use while that of the next group comes, or that of the last one leaves. */
static void take_both(void *out[2], layout *l, uint64_t bytes, int copies)
{
    out[0] = out[1] = copies ? tsr_attention_take(&l->room, bytes) : NULL;
    if (copies == 2 && l->groups > 1)
        out[1] = tsr_attention_take(&l->room, bytes);
}

static int copies_of(int value, bool backward, bool needs_o)
{
    static const int forward[VALUES] = {[Q] = 1, [K] = 2, [V] = 2, [O] = 1, [LSE] = 1};
    static const int back[VALUES] = {
        [Q] = 2,   [K] = 2,      [V] = 2,   [D_O] = 2, [DELTA] = 2, [O] = 2,
        [LSE] = 2, [PACKED] = 2, [D_Q] = 2, [D_K] = 1, [D_V] = 1};
    if (!backward)
        return forward[value];
    return value == (needs_o ? DELTA : O) ? 0 : back[value];
}

/* From `base` on, for so many rows of all ranks and of this one; bounds: of the run. */
static layout lay_out(char *base, const tsr_kernels *kernels, const tsr_attention_bounds *bounds,
                      int64_t tokens, int64_t own_tokens, bool backward)
{
    const tsr_attention_sharing sharing = kernels->attention_sharing(bounds);
    layout l = {.group = tsr_attention_call(bounds, &sharing),
                .groups = tsr_attention_calls(bounds, &sharing),
                .room = {base, 0}};
    const tsr_attention_bounds *g = &l.group;
    const int64_t v_dim = tsr_attention_v_dim(g->v_dim, g->head_dim);
    const int64_t q = g->q_heads * g->head_dim, k = g->kv_heads * g->head_dim;
    const int64_t v = g->kv_heads * v_dim, o = g->q_heads * v_dim, one = g->q_heads;
    const int64_t columns[VALUES] = {
        [Q] = q,     [K] = k,        [V] = v,   [D_O] = o, [DELTA] = one, [O] = o,
        [LSE] = one, [PACKED] = one, [D_Q] = q, [D_K] = k, [D_V] = v};
    for (int i = 0; i < VALUES; i++) {
        group_rows *r = &l.value[i];
        r->columns = columns[i];
        r->dtype = i == DELTA || i == LSE || i == PACKED ? TSR_F32 : g->dtype;
        take_both(r->all, &l, (uint64_t)(tokens * r->columns) * tsr_dtype_bytes(r->dtype),
                  copies_of(i, backward, sharing.needs_o));
    }
    if (backward && !sharing.needs_o)
        l.own_delta =
            tsr_attention_take(&l.room, (uint64_t)(own_tokens * bounds->q_heads) * sizeof(float));
    l.workspace_bytes = kernels->attention_workspace_bytes(g);
    take_both(l.workspace, &l, l.workspace_bytes, backward ? 2 : 1);
    return l;
}

uint64_t tsr_attention_rows_bytes(const tsr_kernels *kernels, const tsr_attention_bounds *bounds,
                                  bool backward)
{
    return lay_out(NULL, kernels, bounds, bounds->tokens, tsr_attention_own_tokens(bounds),
                   backward)
        .room.bytes;
}

/* ---- a call ---- */

typedef struct {
    const tsr_pass *pass;
    const tsr_kernels *kernels;
    tsr_stream *stream; /* compute */
    tsr_context *context;
    layout at;
    tsr_attention_shape shape; /* of a group, but for sinks and workspace */
    bool by_token;             /* lse is [tokens, Hq] */
} work;

/* Marks of the context, of groups in turn. */
#define ARRIVED(group) ((group) % 2)
#define DONE(group)    (2 + (group) % 2)

static tsr_status begin(work *w, const tsr_pass *pass, const tsr_node *node,
                        const tsr_attention_shape *s, bool backward)
{
    const tsr_attention_bounds bounds = tsr_attention_bounds_of(node, pass->batch->attention);
    *w = (work){.pass = pass,
                .kernels = pass->context->kernels,
                .stream = pass->context->stream,
                .context = pass->batch->shared,
                .shape = *s};
    w->at = lay_out(s->workspace, w->kernels, &bounds, s->tokens, pass->batch->tokens, backward);
    TSR_TRY(tsr_attention_fits(&w->at.room, s));
    tsr_attention_give_heads(&w->shape, &w->at.group);
    w->by_token = w->kernels->attention_lse_by_token(w->stream, &w->shape);
    return TSR_OK;
}

static tsr_attention_shape shape_of(const work *w, int group)
{
    tsr_attention_shape s = w->shape;
    s.sinks = tsr_attention_sinks(s.sinks, (int64_t)group * s.q_heads);
    s.workspace = w->at.workspace[group % 2];
    s.workspace_bytes = w->at.workspace_bytes;
    return s;
}

static tsr_status copy(const work *w, tsr_dtype dtype, void *out, int64_t out_stride,
                       const void *in, int64_t in_stride, int64_t rows, int64_t columns)
{
    return tsr_attention_move(
        w->pass, &(tsr_attention_columns){out, in, rows, columns, out_stride, in_stride, dtype});
}

/* Rows of a span; the last one may be short. */
static int64_t span_rows(const work *w, int64_t first)
{
    int64_t rest = w->shape.tokens - first;
    return rest < w->shape.spans.rows ? rest : w->shape.spans.rows;
}

/* A group's columns of own rows, to their places among all rows or from there. */
static tsr_status move(const work *w, int value, const void *own, int group, bool out)
{
    const group_rows *r = &w->at.value[value];
    const tsr_spans *s = &w->shape.spans;
    int64_t columns = r->columns, stride = columns * w->at.groups, first;
    uint64_t element = tsr_dtype_bytes(r->dtype);
    for (int64_t i = 0; (first = tsr_spans_own(s, i) * s->rows) < w->shape.tokens; i++) {
        char *in_all = (char *)r->all[group % 2] + (uint64_t)(first * columns) * element;
        char *in_own = (char *)own + (uint64_t)(i * s->rows * stride + group * columns) * element;
        int64_t rows = span_rows(w, first);
        TSR_TRY(out ? copy(w, r->dtype, in_own, stride, in_all, columns, rows, columns)
                    : copy(w, r->dtype, in_all, columns, in_own, stride, rows, columns));
    }
    return TSR_OK;
}

static tsr_status place(const work *w, int value, const void *own, int group)
{
    return move(w, value, own, group, false);
}

static tsr_status give(const work *w, int value, void *own, int group)
{
    return move(w, value, own, group, true);
}

/* Sends what compute has placed so far. */
static tsr_status gather(const work *w, const int *values, int count, int group)
{
    tsr_context_rows rows[VALUES];
    for (int i = 0; i < count; i++) {
        const group_rows *r = &w->at.value[values[i]];
        rows[i] =
            (tsr_context_rows){r->all[group % 2], (uint64_t)r->columns * tsr_dtype_bytes(r->dtype)};
    }
    TSR_TRY(tsr_context_gather(w->context, rows, count, w->shape.tokens));
    return tsr_context_mark(w->context, ARRIVED(group));
}

/* ---- lse, whose rows may be columns ---- */

typedef enum { OWN_OUT_OF_ALL, OWN_INTO_PACKED, PACKED_INTO_ALL } lse_way;

/* Span by span, of own rows or, into all, of everybody's. own: [Hq, own tokens]. */
static tsr_status move_lse(const work *w, float *own, int group, lse_way way)
{
    int64_t heads = w->shape.q_heads, tokens = w->shape.tokens, own_tokens = w->pass->batch->tokens;
    float *whole = w->at.value[LSE].all[group % 2], *packed = w->at.value[PACKED].all[group % 2];
    for (int64_t first = 0; first < tokens; first += w->shape.spans.rows) {
        int64_t rows = span_rows(w, first), at = tsr_spans_place(&w->shape.spans, first);
        float *mine = at >= 0 ? own + group * heads * own_tokens + at : NULL;
        if (way == PACKED_INTO_ALL)
            TSR_TRY(
                copy(w, TSR_F32, whole + first, tokens, packed + first * heads, rows, heads, rows));
        else if (mine && way == OWN_INTO_PACKED)
            TSR_TRY(copy(w, TSR_F32, packed + first * heads, rows, mine, own_tokens, heads, rows));
        else if (mine)
            TSR_TRY(copy(w, TSR_F32, mine, own_tokens, whole + first, tokens, heads, rows));
    }
    return TSR_OK;
}

/* ---- forward ---- */

static tsr_status send_keys(const work *w, const tsr_attention_args *args, int group)
{
    static const int values[] = {K, V};
    TSR_TRY(place(w, K, args->k, group));
    TSR_TRY(place(w, V, args->v, group));
    return gather(w, values, 2, group);
}

static tsr_status attend(const work *w, const tsr_attention_args *args, int group)
{
    const group_rows *value = w->at.value;
    int turn = group % 2;
    const tsr_attention_args whole = {.q = value[Q].all[turn],
                                      .k = value[K].all[turn],
                                      .v = value[V].all[turn],
                                      .o = value[O].all[turn],
                                      .lse = value[LSE].all[turn],
                                      .shape = shape_of(w, group)};
    TSR_TRY(place(w, Q, args->q, group));
    TSR_TRY(tsr_context_await(w->context, ARRIVED(group)));
    TSR_TRY(w->kernels->attention(w->stream, &whole));
    TSR_TRY(give(w, O, args->o, group));
    return w->by_token ? give(w, LSE, args->lse, group)
                       : move_lse(w, args->lse, group, OWN_OUT_OF_ALL);
}

tsr_status tsr_attention_rows(const tsr_pass *pass, const tsr_node *node,
                              const tsr_attention_args *args)
{
    work w;
    TSR_TRY(begin(&w, pass, node, &args->shape, false));
    TSR_TRY(send_keys(&w, args, 0));
    for (int group = 0; group < w.at.groups; group++) {
        if (group + 1 < w.at.groups)
            TSR_TRY(send_keys(&w, args, group + 1));
        TSR_TRY(attend(&w, args, group));
    }
    return TSR_OK;
}

/* ---- backward ---- */

static tsr_status send_all(const work *w, const tsr_attention_backward_args *args, int group)
{
    const int third = w->at.own_delta ? DELTA : O, last = w->by_token ? LSE : PACKED;
    const int values[] = {Q, K, V, D_O, third, last};
    TSR_TRY(place(w, Q, args->q, group));
    TSR_TRY(place(w, K, args->k, group));
    TSR_TRY(place(w, V, args->v, group));
    TSR_TRY(place(w, D_O, args->d_o, group));
    TSR_TRY(place(w, third, third == DELTA ? w->at.own_delta : args->o, group));
    TSR_TRY(w->by_token ? place(w, LSE, args->lse, group)
                        : move_lse(w, (float *)args->lse, group, OWN_INTO_PACKED));
    return gather(w, values, 6, group);
}

static tsr_status attend_backward(const work *w, const tsr_attention_backward_args *args, int group)
{
    const group_rows *value = w->at.value;
    int turn = group % 2;
    tsr_attention_backward_args whole = {.q = value[Q].all[turn],
                                         .k = value[K].all[turn],
                                         .v = value[V].all[turn],
                                         .o = value[O].all[turn],
                                         .d_o = value[D_O].all[turn],
                                         .lse = value[LSE].all[turn],
                                         .delta = value[DELTA].all[turn],
                                         .dq = value[D_Q].all[turn],
                                         .dk = value[D_K].all[turn],
                                         .dv = value[D_V].all[turn],
                                         .shape = shape_of(w, group)};
    whole.shape.sum = (tsr_attention_sum){tsr_context_sum_narrow, w->context};
    TSR_TRY(tsr_context_await(w->context, ARRIVED(group)));
    if (!w->by_token)
        TSR_TRY(move_lse(w, NULL, group, PACKED_INTO_ALL));
    TSR_TRY(w->kernels->attention_backward(w->stream, &whole));
    TSR_TRY(tsr_context_mark(w->context, DONE(group)));
    TSR_TRY(give(w, D_K, args->dk, group));
    return give(w, D_V, args->dv, group);
}

/* Once its sums are those of all ranks. */
static tsr_status give_dq(const work *w, const tsr_attention_backward_args *args, int group)
{
    TSR_TRY(tsr_context_await(w->context, DONE(group)));
    return give(w, D_Q, args->dq, group);
}

tsr_status tsr_attention_rows_backward(const tsr_pass *pass, const tsr_node *node,
                                       const tsr_attention_backward_args *args)
{
    work w;
    TSR_TRY(begin(&w, pass, node, &args->shape, true));
    if (w.at.own_delta)
        TSR_TRY(tsr_attention_own_delta(pass, args, w.at.own_delta));
    TSR_TRY(send_all(&w, args, 0));
    for (int group = 0; group < w.at.groups; group++) {
        if (group + 1 < w.at.groups)
            TSR_TRY(send_all(&w, args, group + 1));
        TSR_TRY(attend_backward(&w, args, group));
        if (group > 0)
            TSR_TRY(give_dq(&w, args, group - 1));
    }
    return give_dq(&w, args, w.at.groups - 1);
}
