/*
 * attention_heads.c: shared attention where each rank computes all rows of some heads (attention_shared.h).
 *
 * Rows become heads, and heads rows: a rank has pieces of its own rows for each other rank's heads, which land among all rows
 * there, in the order of tokens; results come back the same way. The kernels' calls are those of a micro-batch that is not
 * shared. Some key heads with their query heads go at a time: a turn. Every rank has the same number of turns. While one is
 * computed the rows of the next one arrive, and the results of the last one leave, so the node's workspace holds two turns of
 * these values. They lie at the same places on every rank, so that copy engines do it where they can (comm/comm.h).
 *
 *     comm       rows of 0 | rows of 1              | results of 0, rows of 2 | results of 1 ..
 *     compute                turn 0                 | turn 1                  | turn 2 ..
 *
 * lse stays where its heads are computed: the backward alone reads it.
 */
#include "model/attention_ways.h"

/* ---- what lies in the workspace ---- */

enum { Q, K, V, D_O, DELTA, O, D_Q, D_K, D_V, VALUES };

/* Of a value: rows of all ranks with the columns of a turn's own heads, turns alternate; and own rows with those of the turn's
 * heads of each rank. Both have rows that are nobody's where spans are short (kernels/spans.h). */
typedef struct {
    void *all[2]; /* [ranks dealt, columns] */
    void *pieces; /* [ranks, dealt, columns] */
    int64_t columns;
    tsr_dtype dtype;
} turn_rows;

typedef struct {
    tsr_attention_bounds call;
    int32_t turns;
    int64_t dealt; /* rows of a rank */
    turn_rows value[VALUES];
    float *own_delta; /* [dealt, Hq] */
    float *lse;       /* of all rows and a turn's own heads */
    void *workspace;  /* of the kernels */
    uint64_t workspace_bytes;
    tsr_attention_room room;
} layout;

static bool is_there(int value, bool backward)
{
    if (value == O)
        return !backward;
    return backward || value <= V;
}

static void take_rows(layout *l, turn_rows *r, int32_t ranks)
{
    uint64_t bytes = (uint64_t)(l->dealt * ranks * r->columns) * tsr_dtype_bytes(r->dtype);
    r->all[0] = r->all[1] = tsr_attention_take(&l->room, bytes);
    if (l->turns > 1)
        r->all[1] = tsr_attention_take(&l->room, bytes);
    r->pieces = tsr_attention_take(&l->room, bytes);
}

/* From `base` on, for so many rows of all ranks; bounds: of the run. */
static layout lay_out(char *base, const tsr_kernels *kernels, const tsr_attention_bounds *bounds,
                      int64_t tokens, bool backward)
{
    const tsr_attention_sharing sharing = kernels->attention_sharing(bounds);
    layout l = {.call = tsr_attention_call(bounds, &sharing),
                .turns = tsr_attention_calls(bounds, &sharing),
                .dealt = tsr_spans_dealt_rows(&bounds->spans, tokens),
                .room = {base, 0}};
    const tsr_attention_bounds *c = &l.call;
    const int64_t v_dim = tsr_attention_v_dim(c->v_dim, c->head_dim);
    const int64_t q = c->q_heads * c->head_dim, k = c->kv_heads * c->head_dim;
    const int64_t v = c->kv_heads * v_dim, o = c->q_heads * v_dim;
    const int64_t columns[VALUES] = {[Q] = q, [K] = k,   [V] = v,   [D_O] = o, [DELTA] = c->q_heads,
                                     [O] = o, [D_Q] = q, [D_K] = k, [D_V] = v};
    for (int i = 0; i < VALUES; i++) {
        l.value[i].columns = columns[i];
        l.value[i].dtype = i == DELTA ? TSR_F32 : c->dtype;
        if (is_there(i, backward))
            take_rows(&l, &l.value[i], bounds->spans.ranks);
    }
    if (backward)
        l.own_delta =
            tsr_attention_take(&l.room, (uint64_t)(l.dealt * bounds->q_heads) * sizeof(float));
    l.lse = tsr_attention_take(&l.room, (uint64_t)(tokens * c->q_heads) * sizeof(float));
    l.workspace_bytes = kernels->attention_workspace_bytes(c);
    l.workspace = tsr_attention_take(&l.room, l.workspace_bytes);
    return l;
}

uint64_t tsr_attention_heads_bytes(const tsr_kernels *kernels, const tsr_attention_bounds *bounds,
                                   bool backward)
{
    return lay_out(NULL, kernels, bounds, bounds->tokens, backward).room.bytes;
}

/* ---- a call ---- */

typedef struct {
    const tsr_pass *pass;
    const tsr_kernels *kernels;
    tsr_context *context;
    layout at;
    tsr_attention_shape shape; /* of a turn, but for sinks */
    tsr_spans spans;
    int64_t tokens, own_tokens;
} work;

/* Marks of the context, of turns in turn. */
#define ARRIVED(turn)  ((turn) % 2)
#define RETURNED(turn) (2 + (turn) % 2)

static tsr_status begin(work *w, const tsr_pass *pass, const tsr_node *node,
                        const tsr_attention_shape *s, bool backward)
{
    const tsr_attention_bounds bounds = tsr_attention_bounds_of(node, pass->batch->attention);
    *w = (work){.pass = pass,
                .kernels = pass->context->kernels,
                .context = pass->batch->shared,
                .shape = *s,
                .spans = s->spans,
                .tokens = s->tokens,
                .own_tokens = pass->batch->tokens};
    w->at = lay_out(s->workspace, w->kernels, &bounds, s->tokens, backward);
    TSR_TRY(tsr_attention_fits(&w->at.room, s));
    tsr_attention_give_heads(&w->shape, &w->at.call);
    w->shape.spans = w->at.call.spans;
    w->shape.workspace = w->at.workspace;
    w->shape.workspace_bytes = w->at.workspace_bytes;
    return TSR_OK;
}

/* Heads lie turn by turn, and of a turn rank by rank. */
static int32_t group_of(const work *w, int turn, int32_t rank)
{
    return turn * w->spans.ranks + rank;
}

static tsr_attention_shape shape_of(const work *w, int turn)
{
    tsr_attention_shape s = w->shape;
    s.sinks = tsr_attention_sinks(s.sinks, (int64_t)group_of(w, turn, w->spans.rank) * s.q_heads);
    return s;
}

/* A turn's lse to where all are kept, turn by turn, or from there: kernels want it on a boundary, which a turn may not begin
 * on. */
static tsr_status move_lse(const work *w, const float *kept, int turn, bool back)
{
    uint64_t count = (uint64_t)w->shape.q_heads * (uint64_t)w->tokens;
    void *at = (float *)kept + (uint64_t)turn * count;
    return tsr_stream_copy(w->pass->context->stream, back ? w->at.lse : at, back ? at : w->at.lse,
                           count * sizeof(float));
}

/* ---- rows and heads ---- */

/* A rank's columns of a turn: own rows [rows, C] against packed ones. */
static tsr_status move(const work *w, const turn_rows *r, int32_t group, void *packed,
                       const void *own, int64_t first, int64_t rows, bool back)
{
    int64_t stride = r->columns * w->at.turns * w->spans.ranks;
    char *at =
        (char *)own + (uint64_t)(first * stride + group * r->columns) * tsr_dtype_bytes(r->dtype);
    tsr_attention_columns c = {packed, at, rows, r->columns, r->columns, stride, r->dtype};
    if (back)
        c = (tsr_attention_columns){at, packed, rows, r->columns, stride, r->columns, r->dtype};
    return tsr_attention_move(w->pass, &c);
}

/* Own rows of own heads, to their places among all rows or from there. */
static tsr_status move_own(const work *w, const turn_rows *r, const void *own, int turn, bool back)
{
    int64_t row_bytes = r->columns * (int64_t)tsr_dtype_bytes(r->dtype), span = w->spans.rows;
    int32_t group = group_of(w, turn, w->spans.rank);
    for (int64_t i = 0; i * span < w->own_tokens; i++) {
        int64_t rest = w->own_tokens - i * span;
        char *all = (char *)r->all[turn % 2] + tsr_spans_own(&w->spans, i) * span * row_bytes;
        TSR_TRY(move(w, r, group, all, own, i * span, rest < span ? rest : span, back));
    }
    return TSR_OK;
}

/* Own rows with the columns that a turn's heads have, into pieces and places, or back. */
static tsr_status move_all(const work *w, int value, const void *own, int turn, bool back)
{
    const turn_rows *r = &w->at.value[value];
    uint64_t piece_bytes = (uint64_t)(w->at.dealt * r->columns) * tsr_dtype_bytes(r->dtype);
    for (int32_t rank = 0; rank < w->spans.ranks && w->own_tokens > 0; rank++)
        TSR_TRY(rank == w->spans.rank ? move_own(w, r, own, turn, back)
                                      : move(w, r, group_of(w, turn, rank),
                                             (char *)r->pieces + (uint64_t)rank * piece_bytes, own,
                                             0, w->own_tokens, back));
    return TSR_OK;
}

static tsr_status deal(const work *w, const int *values, int count, int turn, bool back)
{
    tsr_context_columns columns[VALUES];
    for (int i = 0; i < count; i++) {
        const turn_rows *r = &w->at.value[values[i]];
        columns[i] = (tsr_context_columns){r->pieces, r->all[turn % 2],
                                           (uint64_t)r->columns * tsr_dtype_bytes(r->dtype)};
    }
    TSR_TRY(tsr_context_deal(w->context, columns, count, w->tokens, back));
    return tsr_context_mark(w->context, back ? RETURNED(turn) : ARRIVED(turn));
}

/* Values that go one way, and where own rows of them are. */
typedef struct {
    int value[5];
    const void *own[5];
    int count;
} values;

static tsr_status send(const work *w, const values *in, int turn)
{
    if (turn >= w->at.turns)
        return TSR_OK;
    for (int i = 0; i < in->count; i++)
        TSR_TRY(move_all(w, in->value[i], in->own[i], turn, false));
    return deal(w, in->value, in->count, turn, false);
}

/* Waits for the results of a turn's heads for own rows. */
static tsr_status take(const work *w, const values *out, int turn)
{
    if (turn < 0)
        return TSR_OK;
    TSR_TRY(tsr_context_await(w->context, RETURNED(turn)));
    for (int i = 0; i < out->count; i++)
        TSR_TRY(move_all(w, out->value[i], out->own[i], turn, true));
    return TSR_OK;
}

/* One direction: what is sent, a turn's call, and what comes back. Pieces are free to be filled again when they have arrived,
 * and have been taken. */
static tsr_status run(const work *w, const values *in, const values *out,
                      tsr_status (*call)(const work *w, const void *args, int turn),
                      const void *args)
{
    TSR_TRY(send(w, in, 0));
    for (int turn = 0; turn < w->at.turns; turn++) {
        TSR_TRY(tsr_context_await(w->context, ARRIVED(turn)));
        TSR_TRY(send(w, in, turn + 1));
        TSR_TRY(call(w, args, turn));
        TSR_TRY(take(w, out, turn - 1));
        TSR_TRY(deal(w, out->value, out->count, turn, true));
    }
    return take(w, out, w->at.turns - 1);
}

/* ---- both directions ---- */

static tsr_status attend(const work *w, const void *args, int turn)
{
    const tsr_attention_args *a = args;
    const turn_rows *value = w->at.value;
    int at = turn % 2;
    const tsr_attention_args call = {.q = value[Q].all[at],
                                     .k = value[K].all[at],
                                     .v = value[V].all[at],
                                     .o = value[O].all[at],
                                     .lse = w->at.lse,
                                     .shape = shape_of(w, turn)};
    TSR_TRY(w->kernels->attention(w->pass->context->stream, &call));
    return move_lse(w, a->lse, turn, false);
}

tsr_status tsr_attention_heads(const tsr_pass *pass, const tsr_node *node,
                               const tsr_attention_args *args)
{
    work w;
    const values in = {{Q, K, V}, {args->q, args->k, args->v}, 3}, out = {{O}, {args->o}, 1};
    TSR_TRY(begin(&w, pass, node, &args->shape, false));
    return run(&w, &in, &out, attend, args);
}

static tsr_status attend_backward(const work *w, const void *args, int turn)
{
    const tsr_attention_backward_args *a = args;
    const turn_rows *value = w->at.value;
    int at = turn % 2;
    const tsr_attention_backward_args call = {.q = value[Q].all[at],
                                              .k = value[K].all[at],
                                              .v = value[V].all[at],
                                              .d_o = value[D_O].all[at],
                                              .lse = w->at.lse,
                                              .delta = value[DELTA].all[at],
                                              .dq = value[D_Q].all[at],
                                              .dk = value[D_K].all[at],
                                              .dv = value[D_V].all[at],
                                              .shape = shape_of(w, turn)};
    TSR_TRY(move_lse(w, a->lse, turn, true));
    return w->kernels->attention_backward(w->pass->context->stream, &call);
}

tsr_status tsr_attention_heads_backward(const tsr_pass *pass, const tsr_node *node,
                                        const tsr_attention_backward_args *args)
{
    work w;
    TSR_TRY(begin(&w, pass, node, &args->shape, true));
    const values in = {
        {Q, K, V, D_O, DELTA}, {args->q, args->k, args->v, args->d_o, w.at.own_delta}, 5};
    const values out = {{D_Q, D_K, D_V}, {args->dq, args->dk, args->dv}, 3};
    if (w.own_tokens > 0)
        TSR_TRY(tsr_attention_own_delta(pass, args, w.at.own_delta));
    return run(&w, &in, &out, attend_backward, args);
}
