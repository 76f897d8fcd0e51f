#include "adapters/linear_fp8.h"
#include "adapters/linear_parts.h"

/* C[m, n] = alpha op(A) op(B) + beta C, dense. */
static tsr_status matmul(const tsr_linear_context *context, tsr_gemm_args args)
{
    args.dtype = context->dtype;
    return context->kernels->gemm(context->stream, &args);
}

static tsr_nf4_dequant_args codes_of(const tsr_linear_context *context, const tsr_linear *linear)
{
    const tsr_base_weight *w = &linear->weight;
    return (tsr_nf4_dequant_args){.out = context->weight,
                                  .codes = w->codes,
                                  .absmax = w->absmax,
                                  .nested_absmax = w->nested_absmax,
                                  .nested_map = w->nested_map,
                                  .level = w->level,
                                  .count = (int64_t)(linear->out * linear->in),
                                  .columns = (int64_t)linear->in,
                                  .offset = w->offset,
                                  .nested = w->nested,
                                  .settled = true, /* gathered by another stream */
                                  .dtype = context->dtype};
}

tsr_status tsr_linear_weight(const void **out, const tsr_linear_context *context,
                             const tsr_linear *linear)
{
    const tsr_base_weight *w = &linear->weight;
    *out = context->weight;
    if (w->data && w->dtype == context->dtype) {
        *out = w->data;
        return TSR_OK;
    }
    if (w->data && w->code_scale)
        return context->kernels->byte_decode(context->stream,
                                             &(tsr_byte_decode_args){.out = context->weight,
                                                                     .code = w->data,
                                                                     .scale = w->code_scale,
                                                                     .rows = (int64_t)linear->out,
                                                                     .columns = (int64_t)linear->in,
                                                                     .code_dtype = w->dtype,
                                                                     .dtype = context->dtype});
    if (w->data)
        return context->kernels->widen(
            context->stream, &(tsr_widen_args){.out = context->weight,
                                               .in = w->data,
                                               .count = (int64_t)(linear->out * linear->in),
                                               .in_dtype = w->dtype,
                                               .dtype = context->dtype});
    tsr_nf4_dequant_args codes = codes_of(context, linear);
    return context->kernels->nf4_dequant(context->stream, &codes);
}

static bool merges(const tsr_linear_context *context, const tsr_linear *linear)
{
    return !linear->apart && tsr_linear_merges(context->dtype, context->fp8.on,
                                               !linear->weight.data, linear->in, linear->r);
}

tsr_graph_shape tsr_linear_graph_shape(const tsr_linear_context *context, const tsr_linear *linear,
                                       bool backward)
{
    bool merging = merges(context, linear), norms = merging && linear->g;
    return (tsr_graph_shape){.tokens = context->tokens,
                             .in = (int64_t)linear->in,
                             .out = (int64_t)linear->out,
                             .r = (int64_t)linear->r,
                             .dtype = context->dtype,
                             .backward = backward,
                             .merges = merging,
                             .drops = linear->drops,
                             .composes = tsr_linear_composes(linear),
                             .norms_every = norms && !backward ? context->step_micro : 0};
}

/* Of a linear without an adapter F1 and B1, of which only the base's products are left. */
static tsr_graph_choice choice_of(const tsr_linear_context *context, const tsr_linear *linear,
                                  bool backward)
{
    tsr_graph_shape shape = tsr_linear_graph_shape(context, linear, backward);
    if (linear->r == 0)
        return (tsr_graph_choice){backward ? TSR_B1 : TSR_F1, false};
    return tsr_graph_choose(context->graphs, &shape);
}

/* Merging; with the norms, if they are asked for. */
static tsr_nf4_merge_args merge_of(const tsr_linear_context *context, const tsr_linear *linear,
                                   const tsr_linear_norm_args *norm)
{
    tsr_nf4_merge_args args = {.weight = codes_of(context, linear),
                               .a = linear->a,
                               .b = linear->b,
                               .r = (int64_t)linear->r,
                               .scale = (float)linear->scale};
    if (norm)
        args.norms = (tsr_nf4_merge_norms){
            .n = norm->n, .g = norm->g, .m = norm->m, .partials = norm->partials};
    return args;
}

/* W + s B A, or, apart, W; with the norms, if they are asked for. */
static tsr_status merged_weight(const void **out, const tsr_linear_context *context,
                                const tsr_linear *linear, const tsr_linear_norm_args *norm,
                                bool apart)
{
    tsr_nf4_merge_args args = merge_of(context, linear, norm);
    args.apart = apart;
    *out = context->weight;
    return context->kernels->nf4_merge(context->stream, &args);
}

/* y [T, rows] = alpha x [T, columns] w^T + beta y, w [rows, columns]. */
tsr_status tsr_linear_project(const tsr_linear_context *context, void *y, const void *x,
                              const void *w, uint64_t rows, uint64_t columns, float alpha,
                              float beta)
{
    return matmul(context, (tsr_gemm_args){.m = context->tokens,
                                           .n = (int64_t)rows,
                                           .k = (int64_t)columns,
                                           .a = x,
                                           .b = w,
                                           .c = y,
                                           .trans_b = true,
                                           .alpha = alpha,
                                           .beta = beta,
                                           .c_dtype = context->dtype});
}

/* dx [T, columns] = alpha dy [T, rows] w + beta dx: the gradient of project's x. */
tsr_status tsr_linear_project_back(const tsr_linear_context *context, void *dx, const void *dy,
                                   const void *w, uint64_t rows, uint64_t columns, float alpha,
                                   float beta)
{
    return matmul(context, (tsr_gemm_args){.m = context->tokens,
                                           .n = (int64_t)columns,
                                           .k = (int64_t)rows,
                                           .a = dy,
                                           .b = w,
                                           .c = dx,
                                           .alpha = alpha,
                                           .beta = beta,
                                           .c_dtype = context->dtype});
}

static const tsr_fp8_rows not_made;

/* The base's weight for one of its matmuls, forward or backward; in fp8 in context->fp8. */
tsr_status tsr_linear_base_weight(const void **w, const tsr_linear_context *context,
                                  const tsr_linear *linear, bool backward, tsr_fp8_rows made)
{
    tsr_nf4_dequant_args codes = codes_of(context, linear);
    *w = NULL;
    return context->fp8.on ? tsr_linear_fp8_weight(context, &codes, backward, made)
                           : tsr_linear_weight(w, context, linear);
}

tsr_status tsr_linear_gradient_rows(tsr_fp8_rows *out, const tsr_linear_context *context,
                                    const tsr_linear *linear, void *codes, int which)
{
    tsr_nf4_dequant_args weight = codes_of(context, linear);
    *out = not_made;
    if (!context->fp8.on || tsr_linear_composes(linear))
        return TSR_OK;
    *out = (tsr_fp8_rows){codes, context->fp8.made_row_scale[which],
                          context->fp8.made_weight_scale[which]};
    return tsr_linear_fp8_scales(context, context->fp8.made_weight_scale[which], &weight);
}

/* The weight that DoRA's norm is of: in fp8 without its scales. */
static tsr_status norm_weight(const void **w, const tsr_linear_context *context,
                              const tsr_linear *linear)
{
    tsr_nf4_dequant_args codes = codes_of(context, linear);
    *w = codes.out;
    return context->fp8.on ? tsr_linear_fp8_values(context, &codes)
                           : tsr_linear_weight(w, context, linear);
}

/* z = W x + beta z. */
tsr_status tsr_linear_base_forward(const tsr_linear_context *context, const tsr_linear *linear,
                                   void *z, const void *x, const void *w, float beta)
{
    if (context->fp8.on) /* of the x that was put there last */
        return tsr_linear_fp8_forward(context, linear, z, beta);
    return tsr_linear_project(context, z, x, w, linear->out, linear->in, 1, beta);
}

/* dx = W^T dz + beta dx. */
tsr_status tsr_linear_base_backward(const tsr_linear_context *context, const tsr_linear *linear,
                                    void *dx, const void *dz, const void *w, float beta,
                                    tsr_fp8_rows made)
{
    if (context->fp8.on)
        return tsr_linear_fp8_backward(context, linear, dx, dz, beta, made);
    return tsr_linear_project_back(context, dx, dz, w, linear->out, linear->in, 1, beta);
}

/* dw [rows, columns] fp32 = dy^T x: the gradient of project's w. */
tsr_status tsr_linear_outer(const tsr_linear_context *context, float *dw, const void *dy,
                            const void *x, uint64_t rows, uint64_t columns)
{
    return matmul(context, (tsr_gemm_args){.m = (int64_t)rows,
                                           .n = (int64_t)columns,
                                           .k = context->tokens,
                                           .a = dy,
                                           .b = x,
                                           .c = dw,
                                           .trans_a = true,
                                           .alpha = 1,
                                           .c_dtype = TSR_F32});
}

/* db and d_low from the gradient dy of scale low B^T. One pass over dy has its sums pass through the
 * memory of the weight: no call leaves one there, and this call makes its own later, for dx. */
static tsr_status low_rank_backward(const tsr_linear_context *context, const tsr_linear *linear,
                                    float *db, const void *dy, const void *low, float scale,
                                    bool once)
{
    tsr_low_rank_backward_args args = {.dy = dy,
                                       .low = low,
                                       .b = linear->b,
                                       .db = db,
                                       .d_low = context->d_low,
                                       .tokens = context->tokens,
                                       .out = (int64_t)linear->out,
                                       .r = (int64_t)linear->r,
                                       .scale = scale,
                                       .dtype = context->dtype};
    if (once) {
        args.scratch = context->weight;
        args.scratch_bytes = linear->out * linear->in * tsr_dtype_bytes(context->dtype);
    }
    return context->kernels->low_rank_backward(context->stream, &args);
}

tsr_status tsr_linear_low_backward(const tsr_linear_context *context, const tsr_linear *linear,
                                   float *db, const void *dy, const void *low, float scale)
{
    tsr_graph_choice choice = choice_of(context, linear, true);
    return low_rank_backward(context, linear, db, dy, low, scale, choice.once);
}

/* da = scale B^T (dy^T x), db = scale (dy^T x) A^T; the product in the middle lies in the memory of the
 * weight. */
static tsr_status outer_backward(const tsr_linear_context *context, const tsr_linear *linear,
                                 const tsr_linear_gradients *gradients, const void *dy,
                                 const void *x, float scale)
{
    int64_t out = (int64_t)linear->out, in = (int64_t)linear->in, r = (int64_t)linear->r;
    TSR_TRY(matmul(context, (tsr_gemm_args){.m = out,
                                            .n = in,
                                            .k = context->tokens,
                                            .a = dy,
                                            .b = x,
                                            .c = context->weight,
                                            .trans_a = true,
                                            .alpha = 1,
                                            .c_dtype = context->dtype}));
    TSR_TRY(matmul(context, (tsr_gemm_args){.m = r,
                                            .n = in,
                                            .k = out,
                                            .a = linear->b,
                                            .b = context->weight,
                                            .c = gradients->da,
                                            .trans_a = true,
                                            .alpha = scale,
                                            .c_dtype = TSR_F32}));
    return matmul(context, (tsr_gemm_args){.m = out,
                                           .n = r,
                                           .k = in,
                                           .a = context->weight,
                                           .b = linear->a,
                                           .c = gradients->db,
                                           .trans_b = true,
                                           .alpha = scale,
                                           .c_dtype = TSR_F32});
}

/* da and db of dy, the gradient of scale B A x; and d_low, where dx or they need it. gradients->low is of
 * this x. */
tsr_status tsr_linear_adapter_backward(const tsr_linear_context *context, const tsr_linear *linear,
                                       const tsr_linear_gradients *gradients, const void *dy,
                                       const void *x, float scale)
{
    uint64_t out = linear->out, in = linear->in, r = linear->r;
    const void *low = gradients->low ? gradients->low : context->low;
    tsr_graph_choice choice = choice_of(context, linear, true);
    const tsr_graph *graph = &tsr_graph_table[choice.graph];
    if (graph->outer_da) {
        TSR_TRY(outer_backward(context, linear, gradients, dy, x, scale));
        if (graph->merged || !gradients->dx)
            return TSR_OK;
        return tsr_linear_project_back(context, context->d_low, dy, linear->b, out, r, scale, 0);
    }
    if (!gradients->low)
        TSR_TRY(tsr_linear_project(context, context->low, x, linear->a, r, in, 1, 0));
    TSR_TRY(low_rank_backward(context, linear, gradients->db, dy, low, scale, choice.once));
    return tsr_linear_outer(context, gradients->da, context->d_low, x, r, in);
}

static tsr_dropout_args mask_of(const tsr_linear_context *context, const tsr_linear *linear)
{
    return (tsr_dropout_args){.samples = context->samples,
                              .positions = context->positions,
                              .dropout = linear->dropout,
                              .tokens = context->tokens,
                              .columns = (int64_t)linear->in,
                              .dtype = context->dtype};
}

/* out = tsr_linear_drop(x), or out += that. */
tsr_status tsr_linear_drop(const tsr_linear_context *context, const tsr_linear *linear, void *out,
                           const void *x, bool add)
{
    tsr_dropout_args args = mask_of(context, linear);
    args.out = out;
    args.x = x;
    args.add = add;
    return context->kernels->dropout(context->stream, &args);
}

/* DoRA with dropout: z = W xd + s B A xd and, beside it, W x. */
static tsr_status forward_composed(const tsr_linear_context *context, const tsr_linear *linear,
                                   const void *x, const void *w, void *z, void *y, const void *low)
{
    const void *xd = context->dropped;
    int64_t in = (int64_t)linear->in, out = (int64_t)linear->out;
    TSR_TRY(tsr_linear_input(context, xd, in));
    TSR_TRY(tsr_linear_base_forward(context, linear, z, xd, w, 0));
    TSR_TRY(tsr_linear_input(context, x, in)); /* as it was: others read x too */
    TSR_TRY(tsr_linear_base_forward(context, linear, y, x, w, 0));
    TSR_TRY(
        tsr_linear_project(context, context->lora, low, linear->b, linear->out, linear->r, 1, 0));
    return context->kernels->compose(context->stream,
                                     &(tsr_compose_args){.base = y,
                                                         .base_dropped = z,
                                                         .lora = context->lora,
                                                         .g = linear->g,
                                                         .bias = linear->bias,
                                                         .y = y,
                                                         .inner = z,
                                                         .tokens = context->tokens,
                                                         .d = out,
                                                         .scale = (float)linear->scale,
                                                         .dtype = context->dtype});
}

/* The same as W (x - xd) + g z, z = (W + s B A) xd. Both weights lie in the same memory, one after the
 * other, the norms with the first. */
static tsr_status forward_composed_merged(const tsr_linear_context *context,
                                          const tsr_linear *linear, const void *x, void *z, void *y)
{
    const void *w;
    tsr_dropout_args split = mask_of(context, linear);
    split.out = context->dropped;
    split.x = x;
    split.left = context->d_dropped;
    TSR_TRY(merged_weight(&w, context, linear, linear->norm, false));
    TSR_TRY(context->kernels->dropout(context->stream, &split));
    TSR_TRY(tsr_linear_project(context, z, split.out, w, linear->out, linear->in, 1, 0));
    TSR_TRY(tsr_linear_weight(&w, context, linear));
    TSR_TRY(tsr_linear_project(context, y, split.left, w, linear->out, linear->in, 1, 0));
    return context->kernels->compose_merged(context->stream,
                                            &(tsr_compose_merged_args){.base = y,
                                                                       .inner = z,
                                                                       .g = linear->g,
                                                                       .bias = linear->bias,
                                                                       .y = y,
                                                                       .tokens = context->tokens,
                                                                       .d = (int64_t)linear->out,
                                                                       .dtype = context->dtype});
}

tsr_status tsr_linear_forward(const tsr_linear_context *context, const tsr_linear *linear,
                              const void *x, void *z, void *y, void *low)
{
    const void *w, *input = x;
    uint64_t out = linear->out, in = linear->in, r = linear->r;
    if (linear->range_count)
        return tsr_linear_mixed_forward(context, linear, x, z, low);
    bool merged = tsr_graph_table[choice_of(context, linear, false).graph].merged;
    if (merged && tsr_linear_composes(linear))
        return forward_composed_merged(context, linear, x, z, y);
    if (merged || linear->norm)
        TSR_TRY(merged_weight(&w, context, linear, linear->norm, !merged));
    else
        TSR_TRY(tsr_linear_base_weight(&w, context, linear, false, not_made));
    if (merged)
        return tsr_linear_project(context, z, x, w, out, in, 1, 0);
    if (r && linear->drops) {
        TSR_TRY(tsr_linear_drop(context, linear, context->dropped, x, false));
        input = context->dropped;
    }
    low = low ? low : context->low;
    if (r)
        TSR_TRY(tsr_linear_project(context, low, input, linear->a, r, in, 1, 0));
    if (!tsr_linear_composes(linear)) {
        /* The small product first: what is rounded to the compute dtype in between is not W x. */
        if (r)
            TSR_TRY(
                tsr_linear_project(context, z, low, linear->b, out, r, (float)linear->scale, 0));
        return tsr_linear_base_forward(context, linear, z, x, w, r > 0);
    }
    return forward_composed(context, linear, x, w, z, y, low);
}

/* DoRA with dropout: dx += W^T dy + tsr_linear_drop(W^T d_base_dropped + A^T B^T d_lora). */
static tsr_status backward_composed(const tsr_linear_context *context, const tsr_linear *linear,
                                    const tsr_linear_gradients *gradients)
{
    const void *w;
    uint64_t out = linear->out, in = linear->in, r = linear->r;
    TSR_TRY(context->kernels->compose_backward(
        context->stream, &(tsr_compose_backward_args){.dy = gradients->dz,
                                                      .inner = gradients->z,
                                                      .g = linear->g,
                                                      .n = linear->n,
                                                      .d_base_dropped = gradients->z,
                                                      .d_lora = context->lora,
                                                      .dm = gradients->dm,
                                                      .partials = context->partials,
                                                      .tokens = context->tokens,
                                                      .d = (int64_t)out,
                                                      .scale = (float)linear->scale,
                                                      .dtype = context->dtype}));
    TSR_TRY(tsr_linear_drop(context, linear, context->dropped, gradients->x, false));
    TSR_TRY(tsr_linear_adapter_backward(context, linear, gradients, context->lora, context->dropped,
                                        1));
    if (!gradients->dx)
        return TSR_OK;
    TSR_TRY(tsr_linear_base_weight(&w, context, linear, true, not_made));
    TSR_TRY(tsr_linear_base_backward(context, linear, gradients->dx, gradients->dz, w,
                                     gradients->add, not_made));
    TSR_TRY(tsr_linear_base_backward(context, linear, context->d_dropped, gradients->z, w, 0,
                                     not_made));
    TSR_TRY(tsr_linear_project_back(context, context->d_dropped, context->d_low, linear->a, r, in,
                                    1, 1));
    return tsr_linear_drop(context, linear, gradients->dx, context->d_dropped, true);
}

static tsr_status backward_alone(const tsr_linear_context *context, const tsr_linear *linear,
                                 const tsr_linear_gradients *gradients)
{
    const void *w, *input = gradients->x;
    uint64_t out = linear->out, in = linear->in, r = linear->r;
    if (tsr_linear_composes(linear))
        return backward_composed(context, linear, gradients);
    if (r) {
        if (linear->drops) {
            TSR_TRY(tsr_linear_drop(context, linear, context->dropped, gradients->x, false));
            input = context->dropped;
        }
        TSR_TRY(tsr_linear_adapter_backward(context, linear, gradients, gradients->dz, input,
                                            (float)linear->scale));
    }
    if (!gradients->dx)
        return TSR_OK;
    if (tsr_graph_table[choice_of(context, linear, true).graph].merged) {
        TSR_TRY(merged_weight(&w, context, linear, NULL, false));
        return tsr_linear_project_back(context, gradients->dx, gradients->dz, w, out, in, 1,
                                       gradients->add);
    }
    TSR_TRY(tsr_linear_base_weight(&w, context, linear, true, gradients->dz8));
    bool small_first = r && !linear->drops;
    if (small_first)
        TSR_TRY(tsr_linear_project_back(context, gradients->dx, context->d_low, linear->a, r, in, 1,
                                        gradients->add));
    TSR_TRY(tsr_linear_base_backward(context, linear, gradients->dx, gradients->dz, w,
                                     gradients->add || small_first, gradients->dz8));
    if (!r || !linear->drops)
        return TSR_OK;
    TSR_TRY(tsr_linear_project_back(context, context->d_dropped, context->d_low, linear->a, r, in,
                                    1, 0));
    return tsr_linear_drop(context, linear, gradients->dx, context->d_dropped, true);
}

tsr_status tsr_linear_backward(const tsr_linear_context *context, const tsr_linear *linear,
                               const tsr_linear_gradients *gradients)
{
    tsr_linear_gradients those = *gradients;
    if (linear->range_count)
        return tsr_linear_mixed_backward(context, linear, gradients);
    /* Where micro-batches are mixed there is memory for it in any case. */
    if (!tsr_graph_keeps_low(merges(context, linear), linear->drops, tsr_linear_composes(linear)))
        those.low = NULL;
    return backward_alone(context, linear, &those);
}

/* bg = B G: G is fp32, and so B is widened. */
static tsr_status multiply_gram(const tsr_linear_context *context, const tsr_linear *linear,
                                const tsr_linear_norm_args *args)
{
    int64_t out = (int64_t)linear->out, r = (int64_t)linear->r;
    const void *b = linear->b;
    if (context->dtype != TSR_F32) {
        b = args->b;
        TSR_TRY(
            context->kernels->widen(context->stream, &(tsr_widen_args){.out = args->b,
                                                                       .in = linear->b,
                                                                       .count = out * r,
                                                                       .in_dtype = context->dtype,
                                                                       .dtype = TSR_F32}));
    }
    return context->kernels->gemm(context->stream, &(tsr_gemm_args){.m = out,
                                                                    .n = r,
                                                                    .k = r,
                                                                    .a = b,
                                                                    .b = args->gram,
                                                                    .c = args->bg,
                                                                    .alpha = 1,
                                                                    .dtype = TSR_F32,
                                                                    .c_dtype = TSR_F32});
}

static tsr_status factored_norm(const tsr_linear_context *context, const tsr_linear *linear,
                                const tsr_linear_norm_args *args)
{
    const void *w;
    const float *row_scale = context->fp8.on ? context->fp8.weight_scale : NULL;
    const tsr_kernels *kernels = context->kernels;
    int64_t out = (int64_t)linear->out, in = (int64_t)linear->in, r = (int64_t)linear->r;
    TSR_TRY(norm_weight(&w, context, linear));
    if (!args->known)
        TSR_TRY(kernels->row_square_norm(context->stream,
                                         &(tsr_row_square_norm_args){.out = args->squares,
                                                                     .w = w,
                                                                     .rows = out,
                                                                     .columns = in,
                                                                     .dtype = context->dtype}));
    TSR_TRY(matmul(context, (tsr_gemm_args){.m = out,
                                            .n = r,
                                            .k = in,
                                            .a = w,
                                            .b = linear->a,
                                            .c = args->u,
                                            .trans_b = true,
                                            .alpha = 1,
                                            .c_dtype = TSR_F32}));
    TSR_TRY(matmul(context, (tsr_gemm_args){.m = r,
                                            .n = r,
                                            .k = in,
                                            .a = linear->a,
                                            .b = linear->a,
                                            .c = args->gram,
                                            .trans_b = true,
                                            .alpha = 1,
                                            .c_dtype = TSR_F32}));
    TSR_TRY(multiply_gram(context, linear, args));
    return kernels->dora_norm(context->stream, &(tsr_dora_norm_args){.n = args->n,
                                                                     .g = args->g,
                                                                     .m = args->m,
                                                                     .squares = args->squares,
                                                                     .u = args->u,
                                                                     .bg = args->bg,
                                                                     .row_scale = row_scale,
                                                                     .b = linear->b,
                                                                     .rows = out,
                                                                     .r = r,
                                                                     .scale = linear->scale,
                                                                     .dtype = context->dtype});
}

/* Of the weight that e4m3 can hold, which is not made for it; its scales are. */
static tsr_status norm_in_e4m3(const tsr_linear_context *context, const tsr_linear *linear,
                               const tsr_linear_norm_args *norm)
{
    tsr_nf4_merge_args args = merge_of(context, linear, norm);
    TSR_TRY(tsr_linear_fp8_scales(context, context->fp8.weight_scale, &args.weight));
    args.weight.out = NULL;
    args.e4m3_scale = context->fp8.weight_scale;
    return context->kernels->nf4_merge(context->stream, &args);
}

tsr_status tsr_linear_norm(const tsr_linear_context *context, const tsr_linear *linear,
                           const tsr_linear_norm_args *args)
{
    const void *unused;
    if (!tsr_linear_norm_merges(context->dtype, !linear->weight.data, linear->in, linear->r))
        return factored_norm(context, linear, args);
    return context->fp8.on ? norm_in_e4m3(context, linear, args)
                           : merged_weight(&unused, context, linear, args, false);
}
