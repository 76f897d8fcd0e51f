/*
 * linear_stacked.c: what the adapters of neighbouring ranges add to a linear, as one adapter of all their ranks
 * (kernels/low_rank_stack.h): beside the base's four launches forward and seven backward, however many ranges. Range by range it is
 * two and four each, of so few tokens that most of a GPU idles.
 *
 *     forward    A and B are stacked; low = x A^T, masked; z = low B^T
 *     backward   A and B are stacked; dB and d_low of dz in one go; d_low, masked; dA = d_low^T x; dA and dB are taken apart;
 *                dx = d_low A
 *
 * Which    A product with R columns makes R FLOPs for each byte of x, z, dz or dx that it reads or writes, whatever the ranges; an
 *          H100 makes some 230 while it moves a byte. Up to TSR_LINEAR_STACK columns, half of that, the zeros cost nothing
 *          beside what is moved in any case. Ranges with dropout have inputs of their own, and stay alone.
 *          All this depends on the ranges of a micro-batch alone, so that its gradients are the same on every rank.
 */
#include "adapters/linear_parts.h"

/* Ranges as a linear of their tokens, with the stacked adapter. */
typedef struct {
    tsr_linear_context context;
    tsr_linear linear;
    const tsr_linear_range *range;
    int count;
    int64_t first;
} stacked;

int tsr_linear_stack_count(const tsr_linear_context *context, const tsr_linear *linear, int first)
{
    uint64_t r = 0;
    int count = 0, adapters = 0;
    if (!context->stack.a)
        return 0;
    for (int i = first; i < linear->range_count; i++, count++) {
        const tsr_linear_range *range = &linear->range[i];
        bool fits = r + range->r <= TSR_LINEAR_STACK && adapters < TSR_LOW_RANK_STACK;
        if ((range->r && range->drops) || !fits)
            break;
        r += range->r;
        adapters += range->r > 0;
    }
    return adapters > 1 ? count : 0;
}

static void *rows_at(const stacked *s, const void *rows, uint64_t columns)
{
    return tsr_linear_rows_at(&s->context, rows, s->first, columns);
}

static stacked stack_of(const tsr_linear_context *context, const tsr_linear *linear, int first,
                        int count)
{
    stacked s = {.context = *context,
                 .linear = *linear,
                 .range = linear->range + first,
                 .count = count,
                 .first = linear->range[first].first};
    s.context.low = rows_at(&s, context->low, tsr_linear_low_columns(linear));
    s.context.d_low = rows_at(&s, context->d_low, tsr_linear_low_columns(linear));
    s.context.tokens = s.range[count - 1].first + s.range[count - 1].tokens - s.first;
    s.linear.range = NULL;
    s.linear.range_count = 0;
    s.linear.apart = true;
    s.linear.drops = false;
    s.linear.a = context->stack.a;
    s.linear.b = context->stack.b;
    s.linear.r = 0;
    for (int i = 0; i < count; i++)
        s.linear.r += s.range[i].r;
    return s;
}

/* A and B into the stack; or, apart, their gradients out of it. */
static tsr_status move(const stacked *s, bool apart)
{
    const tsr_linear_context *context = &s->context;
    tsr_low_rank_stack_args args = {.a = apart ? context->stack.da : context->stack.a,
                                    .b = apart ? context->stack.db : context->stack.b,
                                    .apart = apart,
                                    .in = (int64_t)s->linear.in,
                                    .out = (int64_t)s->linear.out,
                                    .dtype = apart ? TSR_F32 : context->dtype};
    for (int i = 0; i < s->count; i++) {
        const tsr_linear_range *range = &s->range[i];
        if (range->r)
            args.part[args.count++] =
                (tsr_low_rank_part){apart ? range->da : (void *)range->a,
                                    apart ? range->db : (void *)range->b, (int64_t)range->r};
    }
    return context->kernels->low_rank_stack(context->stream, &args);
}

/* Leaves each token its own adapter's columns, times the scale. */
static tsr_status mask(const stacked *s, void *low)
{
    tsr_low_rank_mask_args args = {.low = low,
                                   .tokens = s->context.tokens,
                                   .columns = (int64_t)s->linear.r,
                                   .dtype = s->context.dtype};
    int32_t column = 0;
    for (int i = 0; i < s->count; i++) {
        const tsr_linear_range *range = &s->range[i];
        int32_t first = (int32_t)(range->first - s->first), columns = (int32_t)range->r;
        if (range->r)
            args.owner[args.count++] = (tsr_low_rank_owner){first, first + (int32_t)range->tokens,
                                                            column, columns, (float)range->scale};
        column += columns;
    }
    return s->context.kernels->low_rank_mask(s->context.stream, &args);
}

static tsr_status make_low(const stacked *s, void *low, const void *x)
{
    TSR_TRY(tsr_linear_project(&s->context, low, x, s->linear.a, s->linear.r, s->linear.in, 1, 0));
    return mask(s, low);
}

tsr_status tsr_linear_stacked_forward(const tsr_linear_context *context, const tsr_linear *linear,
                                      int first, int count, const void *x, void *z, void *low)
{
    stacked s = stack_of(context, linear, first, count);
    const tsr_linear *l = &s.linear;
    low = low ? rows_at(&s, low, tsr_linear_low_columns(linear)) : s.context.low;
    TSR_TRY(move(&s, false));
    TSR_TRY(make_low(&s, low, rows_at(&s, x, l->in)));
    return tsr_linear_project(&s.context, rows_at(&s, z, l->out), low, l->b, l->out, l->r, 1, 0);
}

tsr_status tsr_linear_stacked_backward(const tsr_linear_context *context, const tsr_linear *linear,
                                       int first, int count, const tsr_linear_gradients *gradients)
{
    stacked s = stack_of(context, linear, first, count);
    const tsr_linear *l = &s.linear;
    const void *x = rows_at(&s, gradients->x, l->in), *dz = rows_at(&s, gradients->dz, l->out);
    const void *low = rows_at(&s, gradients->low, tsr_linear_low_columns(linear));
    void *dx = rows_at(&s, gradients->dx, l->in);
    TSR_TRY(move(&s, false));
    if (!low) {
        TSR_TRY(make_low(&s, s.context.low, x));
        low = s.context.low;
    }
    TSR_TRY(tsr_linear_low_backward(&s.context, l, context->stack.db, dz, low, 1));
    TSR_TRY(mask(&s, s.context.d_low));
    TSR_TRY(tsr_linear_outer(&s.context, context->stack.da, s.context.d_low, x, l->r, l->in));
    TSR_TRY(move(&s, true));
    if (!dx)
        return TSR_OK;
    return tsr_linear_project_back(&s.context, dx, s.context.d_low, l->a, l->r, l->in, 1,
                                   gradients->add);
}
