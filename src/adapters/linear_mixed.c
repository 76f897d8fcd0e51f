/*
 * linear_mixed.c: a linear whose tokens are of several adapters, each of a range of them. The base's matmuls are of all
 * tokens; what each adapter adds comes first, as where there is one: what is rounded in between is then not W x. It is computed
 * for each range, or for several at once (linear_stacked.c).
 */
#include "adapters/linear_parts.h"

/* One range as a linear of its own. */
typedef struct {
    tsr_linear_context context;
    tsr_linear linear;
    int64_t first;
} view;

static void *rows_at(const view *v, const void *rows, uint64_t columns)
{
    return tsr_linear_rows_at(&v->context, rows, v->first, columns);
}

static view view_of(const tsr_linear_context *context, const tsr_linear *linear,
                    const tsr_linear_range *range)
{
    view v = {.context = *context, .linear = *linear, .first = range->first};
    v.context.tokens = range->tokens;
    v.context.samples = context->samples ? context->samples + range->first : NULL;
    v.context.positions = context->positions ? context->positions + range->first : NULL;
    v.context.low = rows_at(&v, context->low, tsr_linear_low_columns(linear));
    v.context.d_low = rows_at(&v, context->d_low, tsr_linear_low_columns(linear));
    v.linear.range = NULL;
    v.linear.range_count = 0;
    v.linear.apart = true;
    v.linear.r = range->r;
    v.linear.scale = range->scale;
    v.linear.a = range->a;
    v.linear.b = range->b;
    v.linear.drops = range->drops;
    v.linear.dropout = range->dropout;
    return v;
}

static tsr_status clear(const view *v, void *rows, uint64_t columns)
{
    if (!v->context.stream) /* matmuls are but listed */
        return TSR_OK;
    return tsr_stream_fill(v->context.stream, rows, 0,
                           (uint64_t)v->context.tokens * columns *
                               tsr_dtype_bytes(v->context.dtype));
}

/* What A is multiplied with: x, or what dropout leaves of it. */
static tsr_status input_of(const void **out, const view *v, const void *x)
{
    *out = rows_at(v, x, v->linear.in);
    if (!v->linear.drops)
        return TSR_OK;
    TSR_TRY(tsr_linear_drop(&v->context, &v->linear, v->context.dropped, *out, false));
    *out = v->context.dropped;
    return TSR_OK;
}

/* z = s B A x of one range; `columns` of what is kept. */
static tsr_status range_forward(const view *v, const void *x, void *z, void *kept, uint64_t columns)
{
    const tsr_linear *l = &v->linear;
    const void *input;
    void *its = rows_at(v, z, l->out), *low = kept ? rows_at(v, kept, columns) : v->context.low;
    if (!l->r)
        return clear(v, its, l->out);
    TSR_TRY(input_of(&input, v, x));
    TSR_TRY(tsr_linear_project(&v->context, low, input, l->a, l->r, l->in, 1, 0));
    return tsr_linear_project(&v->context, its, low, l->b, l->out, l->r, (float)l->scale, 0);
}

tsr_status tsr_linear_mixed_forward(const tsr_linear_context *context, const tsr_linear *linear,
                                    const void *x, void *z, void *low)
{
    const void *w;
    for (int i = 0, stacked; i < linear->range_count; i += stacked ? stacked : 1) {
        view v = view_of(context, linear, &linear->range[i]);
        stacked = tsr_linear_stack_count(context, linear, i);
        TSR_TRY(stacked ? tsr_linear_stacked_forward(context, linear, i, stacked, x, z, low)
                        : range_forward(&v, x, z, low, tsr_linear_low_columns(linear)));
    }
    TSR_TRY(tsr_linear_base_weight(&w, context, linear, false, (tsr_fp8_rows){0}));
    return tsr_linear_base_forward(context, linear, z, x, w, 1);
}

/* da and db of one range, and where nothing drops its share of dx. */
static tsr_status range_backward(const view *v, const tsr_linear_range *range,
                                 const tsr_linear_gradients *gradients, uint64_t columns)
{
    const tsr_linear *l = &v->linear;
    const void *input;
    void *dx = rows_at(v, gradients->dx, l->in);
    if (l->r) {
        tsr_linear_gradients its = {
            .low = rows_at(v, gradients->low, columns), .dx = dx, .da = range->da, .db = range->db};
        TSR_TRY(input_of(&input, v, gradients->x));
        TSR_TRY(tsr_linear_adapter_backward(&v->context, l, &its, rows_at(v, gradients->dz, l->out),
                                            input, (float)l->scale));
    }
    if (dx && l->r && !l->drops)
        return tsr_linear_project_back(&v->context, dx, v->context.d_low, l->a, l->r, l->in, 1,
                                       gradients->add);
    return dx && !gradients->add ? clear(v, dx, l->in) : TSR_OK;
}

/* With dropout it comes last, since it is masked. */
static tsr_status add_dropped(const view *v, void *dx)
{
    const tsr_linear *l = &v->linear;
    void *masked = v->context.d_dropped;
    TSR_TRY(
        tsr_linear_project_back(&v->context, masked, v->context.d_low, l->a, l->r, l->in, 1, 0));
    return tsr_linear_drop(&v->context, l, rows_at(v, dx, l->in), masked, true);
}

tsr_status tsr_linear_mixed_backward(const tsr_linear_context *context, const tsr_linear *linear,
                                     const tsr_linear_gradients *gradients)
{
    const void *w;
    for (int i = 0, stacked; i < linear->range_count; i += stacked ? stacked : 1) {
        view v = view_of(context, linear, &linear->range[i]);
        stacked = tsr_linear_stack_count(context, linear, i);
        TSR_TRY(stacked ? tsr_linear_stacked_backward(context, linear, i, stacked, gradients)
                        : range_backward(&v, &linear->range[i], gradients,
                                         tsr_linear_low_columns(linear)));
    }
    if (!gradients->dx)
        return TSR_OK;
    TSR_TRY(tsr_linear_base_weight(&w, context, linear, true, gradients->dz8));
    TSR_TRY(tsr_linear_base_backward(context, linear, gradients->dx, gradients->dz, w, 1,
                                     gradients->dz8));
    for (int i = 0; i < linear->range_count; i++) {
        view v = view_of(context, linear, &linear->range[i]);
        if (v.linear.r && v.linear.drops)
            TSR_TRY(add_dropped(&v, gradients->dx));
    }
    return TSR_OK;
}
