#include "model/attention_shared.h"

#include "base/checked.h"

/* In this order, those that are sent first. */
enum { Q, K, V, D_O, DELTA, O, D_Q, D_K, D_V, LSE, PACKED, VALUES };

static bool in_forward(int value)
{
    return value <= V || value == O || value == LSE;
}

/* All rows of each value; lse: [Hq, tokens], and packed the same span by span. */
typedef struct {
    tsr_context_rows value[VALUES];
    uint64_t bytes;
} all_rows;

/* From `base` on. */
static all_rows lay_out(char *base, const tsr_attention_shape *s, bool train, bool needs_o)
{
    const int64_t v_dim = tsr_attention_v_dim(s->v_dim, s->head_dim);
    const uint64_t element = tsr_dtype_bytes(s->dtype);
    const uint64_t q = (uint64_t)(s->q_heads * s->head_dim) * element;
    const uint64_t k = (uint64_t)(s->kv_heads * s->head_dim) * element;
    const uint64_t v = (uint64_t)(s->kv_heads * v_dim) * element;
    const uint64_t o = (uint64_t)(s->q_heads * v_dim) * element;
    const uint64_t lse = (uint64_t)s->q_heads * sizeof(float);
    const uint64_t row[VALUES] = {q, k, v, o, lse, o, q, k, v, lse, lse};
    const int unused = needs_o ? DELTA : O; /* by the backward */
    all_rows out = {0};
    for (int i = 0; i < VALUES; i++) {
        if (train ? i == unused : !in_forward(i))
            continue;
        out.value[i] = (tsr_context_rows){base ? base + out.bytes : NULL, row[i]};
        out.bytes += tsr_align_up((uint64_t)s->tokens * row[i], TSR_ALIGNMENT);
    }
    return out;
}

/* Room for both directions: a forward's rows are no more than a backward's. */
uint64_t tsr_attention_shared_bytes(const tsr_kernels *kernels, const tsr_attention_bounds *bounds)
{
    if (!tsr_spans_shared(&bounds->spans))
        return 0;
    const tsr_attention_shape shape = {.tokens = bounds->tokens,
                                       .q_heads = bounds->q_heads,
                                       .kv_heads = bounds->kv_heads,
                                       .head_dim = bounds->head_dim,
                                       .v_dim = bounds->v_dim,
                                       .dtype = bounds->dtype};
    return lay_out(NULL, &shape, bounds->train, kernels->attention_sharing(bounds).needs_o).bytes;
}

/* In front of the kernels' workspace. */
static all_rows take_rows(tsr_attention_shape *shape, bool train, bool needs_o)
{
    all_rows rows = lay_out(shape->workspace, shape, train, needs_o);
    shape->workspace = (char *)shape->workspace + rows.bytes;
    shape->workspace_bytes -= rows.bytes;
    return rows;
}

/* ---- lse, whose rows may be columns ---- */

/* Whether it is [tokens, Hq] in this run. */
static bool is_by_token(const tsr_pass *pass, const tsr_attention_shape *s)
{
    const tsr_linear_context *context = pass->context;
    return context->kernels->attention_lse_by_token(context->stream, s);
}

static tsr_status copy_span(const tsr_pass *pass, float *out, int64_t out_stride, const float *in,
                            int64_t in_stride, int64_t heads, int64_t rows)
{
    return pass->context->kernels->copy_columns(pass->context->stream,
                                                &(tsr_copy_columns_args){.out = out,
                                                                         .in = in,
                                                                         .rows = heads,
                                                                         .columns = rows,
                                                                         .out_stride = out_stride,
                                                                         .in_stride = in_stride,
                                                                         .in_dtype = TSR_F32,
                                                                         .dtype = TSR_F32,
                                                                         .scale = 1});
}

typedef enum { OWN_OUT_OF_ALL, OWN_INTO_PACKED, PACKED_INTO_ALL } lse_way;

/* Span by span, of own rows or, into all, of everybody's. own: [Hq, own tokens]. */
static tsr_status move_lse(const tsr_pass *pass, const tsr_attention_shape *s, float *own,
                           const all_rows *all, lse_way way)
{
    int64_t heads = s->q_heads, own_tokens = pass->batch->tokens;
    float *whole = all->value[LSE].all, *packed = all->value[PACKED].all; /* NULL in a forward */
    for (int64_t first = 0; first < s->tokens; first += s->spans.rows) {
        int64_t rest = s->tokens - first, rows = rest < s->spans.rows ? rest : s->spans.rows;
        int64_t place = tsr_spans_place(&s->spans, first);
        if (way == PACKED_INTO_ALL)
            TSR_TRY(copy_span(pass, whole + first, s->tokens, packed + first * heads, rows, heads,
                              rows));
        else if (place >= 0 && way == OWN_INTO_PACKED)
            TSR_TRY(copy_span(pass, packed + first * heads, rows, own + place, own_tokens, heads,
                              rows));
        else if (place >= 0)
            TSR_TRY(
                copy_span(pass, own + place, own_tokens, whole + first, s->tokens, heads, rows));
    }
    return TSR_OK;
}

/* ---- both directions ---- */

tsr_status tsr_attention_shared(const tsr_pass *pass, const tsr_node *node,
                                const tsr_attention_args *args)
{
    (void)node;
    tsr_context *context = pass->batch->shared;
    tsr_attention_args whole = *args;
    int64_t tokens = args->shape.tokens;
    all_rows all = take_rows(&whole.shape, false, true);
    const void *own[] = {args->q, args->k, args->v};
    for (int i = Q; i <= V; i++)
        TSR_TRY(tsr_context_place(context, &all.value[i], own[i], tokens));
    TSR_TRY(tsr_context_gather(context, &all.value[K], 2, tokens));
    whole.q = all.value[Q].all;
    whole.k = all.value[K].all;
    whole.v = all.value[V].all;
    whole.o = all.value[O].all;
    whole.lse = all.value[LSE].all;
    TSR_TRY(pass->context->kernels->attention(pass->context->stream, &whole));
    TSR_TRY(tsr_context_take(context, args->o, &all.value[O], tokens));
    return is_by_token(pass, &whole.shape)
               ? tsr_context_take(context, args->lse, &all.value[LSE], tokens)
               : move_lse(pass, &args->shape, args->lse, &all, OWN_OUT_OF_ALL);
}

/* Of own rows, where a result will lie. */
static tsr_status make_delta(const tsr_pass *pass, void **out,
                             const tsr_attention_backward_args *args, const all_rows *all)
{
    const tsr_linear_context *context = pass->context;
    const tsr_attention_shape *s = &args->shape;
    *out = all->value[D_Q].all;
    return context->kernels->attention_delta(
        context->stream,
        &(tsr_attention_delta_args){.out = *out,
                                    .o = args->o,
                                    .d_o = args->d_o,
                                    .tokens = pass->batch->tokens,
                                    .q_heads = s->q_heads,
                                    .v_dim = tsr_attention_v_dim(s->v_dim, s->head_dim),
                                    .dtype = s->dtype});
}

/* shape: as the kernels are given it. */
static tsr_status gather_for_backward(const tsr_pass *pass, const tsr_attention_shape *shape,
                                      const tsr_attention_backward_args *args, const all_rows *all)
{
    tsr_context *context = pass->batch->shared;
    int64_t tokens = args->shape.tokens;
    const int last = all->value[O].all ? O : DELTA;
    void *delta = NULL;
    if (!all->value[O].all)
        TSR_TRY(make_delta(pass, &delta, args, all));
    const void *own[] = {args->q, args->k, args->v, args->d_o, delta, args->o};
    for (int i = Q; i <= last; i++)
        if (all->value[i].all)
            TSR_TRY(tsr_context_place(context, &all->value[i], own[i], tokens));
    TSR_TRY(tsr_context_gather(context, &all->value[Q], D_O + 1, tokens));
    TSR_TRY(tsr_context_gather(context, &all->value[last], 1, tokens));
    if (is_by_token(pass, shape)) {
        TSR_TRY(tsr_context_place(context, &all->value[LSE], args->lse, tokens));
        return tsr_context_gather(context, &all->value[LSE], 1, tokens);
    }
    TSR_TRY(move_lse(pass, shape, (float *)args->lse, all, OWN_INTO_PACKED));
    TSR_TRY(tsr_context_gather(context, &all->value[PACKED], 1, tokens));
    return move_lse(pass, shape, NULL, all, PACKED_INTO_ALL);
}

tsr_status tsr_attention_shared_backward(const tsr_pass *pass, const tsr_node *node,
                                         const tsr_attention_backward_args *args)
{
    const tsr_attention_bounds bounds = tsr_attention_bounds_of(node, pass->batch->attention);
    tsr_attention_backward_args whole = *args;
    bool needs_o = pass->context->kernels->attention_sharing(&bounds).needs_o;
    all_rows all = take_rows(&whole.shape, true, needs_o);
    TSR_TRY(gather_for_backward(pass, &whole.shape, args, &all));
    whole.shape.sum = (tsr_attention_sum){tsr_context_sum_narrow, pass->batch->shared};
    whole.q = all.value[Q].all;
    whole.k = all.value[K].all;
    whole.v = all.value[V].all;
    whole.o = all.value[O].all;
    whole.delta = all.value[DELTA].all;
    whole.d_o = all.value[D_O].all;
    whole.lse = all.value[LSE].all;
    whole.dq = all.value[D_Q].all;
    whole.dk = all.value[D_K].all;
    whole.dv = all.value[D_V].all;
    TSR_TRY(pass->context->kernels->attention_backward(pass->context->stream, &whole));
    void *const result[] = {args->dq, args->dk, args->dv};
    for (int i = 0; i < 3; i++)
        TSR_TRY(tsr_context_take(pass->batch->shared, result[i], &all.value[D_Q + i],
                                 args->shape.tokens));
    return TSR_OK;
}
