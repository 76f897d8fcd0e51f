/*
 * node_experts.c: the frozen weights of all experts with their adapters, times the rows of the tokens that go to each
 * (kernels/grouped_gemm.h).
 *
 * NF4 and MXFP4 are decoded in the forward and again in the backward: for some experts at a time, or as a GPU's kernel
 * multiplies. Where there is memory for it they are decoded once, by the first pass. With an fp8 base NF4 is decoded to
 * e4m3, and rows are quantized for each matmul (kernels/grouped_fp8.h).
 *
 * Adapters are never merged, and add no pass over the results: s x A^T, or s dz B, is made first, and is more summands of
 * the same matmul. The gradients of A and B are sums over the rows of both, of which the forward keeps the first, or the
 * backward makes it again.
 */
#include "base/checked.h"
#include "model/expert_parts.h"

/* NF4 with double quantization. */
#define NF4_BYTES (0.5 + 1.0 / 64)

#define FP8_RATE 2 /* of the compute dtype's, about */

/* Summands that a tile would multiply in the time in which it begins and ends (planner/speeds.c). */
#define TILE_ENDS 600

/* Experts whose weights of `element` bytes are there at a time; and the bytes of these weights. */
static int64_t group_of(const tsr_node *node, uint64_t element)
{
    const tsr_experts_spec *spec = &node->spec.experts;
    uint64_t one = (uint64_t)spec->out * (uint64_t)spec->in * element;
    int64_t group = (int64_t)(TSR_EXPERT_WEIGHT_BYTES / one);
    group = group < 1 ? 1 : group;
    return group < spec->experts ? group : spec->experts;
}

static uint64_t weight_bytes(const tsr_node *node, uint64_t element)
{
    const tsr_experts_spec *spec = &node->spec.experts;
    uint64_t one = (uint64_t)spec->out * (uint64_t)spec->in * element;
    return tsr_align_up((uint64_t)group_of(node, element) * one, TSR_ALIGNMENT);
}

static const tsr_matrix_traits *traits_of(const tsr_node *node, const tsr_matrix_traits *traits)
{
    return &traits[tsr_stack_weight(node->weight[0])];
}

static uint64_t element_of(const tsr_matrix_traits *own, tsr_dtype dtype)
{
    return own->fp8 ? 1 : tsr_dtype_bytes(dtype);
}

/* What lies where in the workspace. */
typedef struct {
    uint64_t weight_scale, low, row_scale, row_codes, end;
} taken_places;

static taken_places places_of(const tsr_node *node, int64_t tokens, const tsr_matrix_traits *traits,
                              tsr_dtype dtype)
{
    const tsr_matrix_traits *own = traits_of(node, traits);
    const tsr_experts_spec *spec = &node->spec.experts;
    uint64_t rows = (uint64_t)tokens * (uint64_t)spec->chosen;
    uint64_t widest = (uint64_t)(spec->in > spec->out ? spec->in : spec->out);
    uint64_t scales = own->fp8 ? (uint64_t)group_of(node, 1) * sizeof(float) : 0;
    taken_places at;
    at.weight_scale = weight_bytes(node, element_of(own, dtype));
    at.low = at.weight_scale + tsr_align_up(scales, TSR_ALIGNMENT);
    at.row_scale = at.low + tsr_expert_rows_bytes(node, tokens, (int64_t)own->r, dtype);
    at.row_codes = at.end = at.row_scale;
    if (own->fp8) {
        at.row_codes += tsr_align_up(rows * sizeof(float), TSR_ALIGNMENT);
        at.end = at.row_codes + tsr_align_up(rows * widest, TSR_ALIGNMENT);
    }
    return at;
}

uint64_t tsr_expert_taken_bytes(const tsr_node *node, int64_t tokens,
                                const tsr_matrix_traits *traits, tsr_dtype dtype)
{
    return places_of(node, tokens, traits, dtype).end;
}

uint64_t tsr_expert_rows_bytes(const tsr_node *node, int64_t tokens, int64_t width, tsr_dtype dtype)
{
    uint64_t rows = (uint64_t)tokens * (uint64_t)node->spec.experts.chosen;
    return tsr_align_up(rows * (uint64_t)width * tsr_dtype_bytes(dtype), TSR_ALIGNMENT);
}

tsr_expert_work tsr_expert_work_begin(const tsr_pass *pass, const tsr_node *node, int16_t routes)
{
    const tsr_experts_spec *spec = &node->spec.experts;
    const tsr_linear_context *context = pass->context;
    const tsr_matrix_traits *own = traits_of(node, pass->traits);
    const taken_places at = places_of(node, context->tokens, pass->traits, context->dtype);
    char *workspace = pass->workspace;
    return (tsr_expert_work){
        .pass = pass,
        .node = node,
        .shape = &pass->block->stack[node->weight[0]],
        .stack = &pass->stack[node->weight[0]],
        .routes = tsr_routes_at(pass->value[routes], context->tokens, spec->chosen, spec->experts),
        .group = group_of(node, element_of(own, context->dtype)),
        .fp8 = own->fp8,
        .low = workspace + at.low,
        .kept = pass->value[pass->block->stack[node->weight[0]].low],
        .weight_scale = (float *)(void *)(workspace + at.weight_scale),
        .row_scale = (float *)(void *)(workspace + at.row_scale),
        .row_codes = workspace + at.row_codes,
        .rest = workspace + at.end};
}

tsr_expert_rows tsr_expert_rows_of(const tsr_expert_work *w, bool gather)
{
    return (tsr_expert_rows){.offset = w->routes.offset,
                             .slot = gather ? w->routes.slot : NULL,
                             .most = w->pass->context->tokens * w->node->spec.experts.chosen,
                             .k = w->node->spec.experts.chosen,
                             .experts = w->node->spec.experts.experts};
}

/* The weights of MXFP4, which are exact in any dtype. */
static tsr_status decode_mxfp4(const tsr_expert_work *w, void *out, int64_t first, int64_t count)
{
    const tsr_expert_stack *s = w->stack;
    const tsr_linear_context *context = w->pass->context;
    int64_t parts = w->shape->parts;
    return context->kernels->mxfp4_dequant(
        context->stream, &(tsr_mxfp4_dequant_args){.out = out,
                                                   .codes = s->codes,
                                                   .scales = s->absmax,
                                                   .first = first * parts,
                                                   .count = count * parts,
                                                   .rows = (int64_t)w->shape->out / parts,
                                                   .columns = (int64_t)w->shape->in,
                                                   .dtype = context->dtype});
}

/* What kernels/expert_weight.h decodes. */
static tsr_expert_weight_args stored_of(const tsr_expert_work *w)
{
    const tsr_expert_stack *s = w->stack;
    return (tsr_expert_weight_args){.plain = s->plain,
                                    .codes = s->codes,
                                    .absmax = s->absmax,
                                    .nested_absmax = s->nested_absmax,
                                    .nested_map = s->nested_map,
                                    .offset = s->offset,
                                    .level = s->level,
                                    .parts = w->shape->parts,
                                    .rows = (int64_t)w->shape->out,
                                    .columns = (int64_t)w->shape->in,
                                    .format = s->codes ? TSR_EXPERTS_NF4 : TSR_EXPERTS_PLAIN,
                                    .nested = s->codes && s->nested,
                                    .dtype = w->pass->context->dtype};
}

/* All of a stack, for its first use in a direction. */
static tsr_status decode_all(const tsr_expert_work *w, void *out, bool backward)
{
    const tsr_linear_context *context = w->pass->context;
    int64_t all = w->node->spec.experts.experts;
    tsr_expert_weight_args weight = stored_of(w);
    if (w->stack->mxfp4)
        return decode_mxfp4(w, out, 0, all);
    weight.out = out;
    weight.count = all;
    if (!w->fp8)
        return context->kernels->expert_weight(context->stream, &weight);
    weight.dtype = TSR_F8_E4M3;
    return context->kernels->expert_fp8(context->stream,
                                        &(tsr_expert_fp8_args){.weight = weight,
                                                               .scale = w->stack->decoded->scale,
                                                               .transposed = backward});
}

/* The weights that are there whole, or NULL: plain ones, or those that stay decoded. */
static tsr_status find_whole(const void **out, const tsr_expert_work *w, bool backward)
{
    const tsr_expert_stack *s = w->stack;
    int order = w->fp8 && backward;
    *out = s->plain.dtype == w->pass->context->dtype ? s->plain.data : NULL;
    if (!s->decoded || !s->decoded->whole[order])
        return TSR_OK;
    *out = s->decoded->whole[order];
    if (s->decoded->is_made[order])
        return TSR_OK;
    s->decoded->is_made[order] = true;
    return decode_all(w, s->decoded->whole[order], backward);
}

static tsr_status multiply_mxfp4(const tsr_expert_work *w, tsr_grouped_gemm_args *args)
{
    const tsr_linear_context *context = w->pass->context;
    args->w = w->pass->workspace;
    for (int64_t first = 0; first < args->rows.experts; first += w->group) {
        args->first = first;
        args->count = args->rows.experts - first < w->group ? args->rows.experts - first : w->group;
        TSR_TRY(decode_mxfp4(w, w->pass->workspace, first, args->count));
        TSR_TRY(context->kernels->grouped_gemm(context->stream, args));
    }
    return TSR_OK;
}

/* What is multiplied lies in rows, or where it is gathered in tokens. */
static tsr_status multiply_fp8(const tsr_expert_work *w, tsr_grouped_gemm_args *args)
{
    const tsr_linear_context *context = w->pass->context;
    const tsr_fp8_rows codes = {.out = w->row_codes, .scale = w->row_scale};
    tsr_fp8_quantize_args quantize =
        tsr_fp8_rows_pass(codes, args->x, args->rows.slot ? context->tokens : args->rows.most,
                          args->backward ? args->out : args->in, context->dtype);
    TSR_TRY(context->kernels->fp8_quantize(context->stream, &quantize));
    args->x = w->row_codes;
    float *w_scale = args->w ? w->stack->decoded->scale : w->weight_scale;
    return context->kernels->grouped_fp8(
        context->stream,
        &(tsr_grouped_fp8_args){
            .gemm = *args, .x_scale = w->row_scale, .w_scale = w_scale, .fast = context->fp8.fast});
}

static tsr_status multiply(const tsr_expert_work *w, void *z, const void *x, const void *low,
                           bool gather, bool backward)
{
    const tsr_linear_context *context = w->pass->context;
    const tsr_expert_stack *s = w->stack;
    tsr_grouped_gemm_args args = {.z = z,
                                  .x = x,
                                  .stored = stored_of(w),
                                  .scratch = w->pass->workspace,
                                  .held = w->group,
                                  .low = low,
                                  .factor = backward ? s->a : s->b,
                                  .r = (int64_t)s->r,
                                  .bias = backward ? (tsr_frozen){NULL, TSR_F32} : s->bias,
                                  .rows = tsr_expert_rows_of(w, gather),
                                  .out = (int64_t)w->shape->out,
                                  .in = (int64_t)w->shape->in,
                                  .backward = backward,
                                  .dtype = context->dtype};
    args.count = args.rows.experts;
    TSR_TRY(find_whole(&args.w, w, backward));
    if (s->mxfp4 && !args.w)
        return multiply_mxfp4(w, &args);
    return w->fp8 ? multiply_fp8(w, &args) : context->kernels->grouped_gemm(context->stream, &args);
}

/* s x A^T; backward s dz B. */
static tsr_expert_low_rank_args low_of(const tsr_expert_work *w, const void *x, bool gather,
                                       bool backward)
{
    return (tsr_expert_low_rank_args){.x = x,
                                      .factor = backward ? w->stack->b : w->stack->a,
                                      .rows = tsr_expert_rows_of(w, true),
                                      .width = (int64_t)(backward ? w->shape->out : w->shape->in),
                                      .r = (int64_t)w->stack->r,
                                      .scale = (float)w->stack->scale,
                                      .in_order = !gather,
                                      .by_column = backward,
                                      .dtype = w->pass->context->dtype};
}

static tsr_status make_low(const tsr_expert_work *w, const tsr_expert_low_rank_args *args)
{
    const tsr_linear_context *context = w->pass->context;
    return context->kernels->expert_low_rank(context->stream, args);
}

tsr_status tsr_expert_forward(const tsr_expert_work *w, void *z, const void *x, const float *p)
{
    tsr_expert_low_rank_args low = low_of(w, x, !p, false);
    low.low = w->kept && !p ? w->kept : w->low;
    low.weighted = p ? w->kept : NULL;
    low.p = p;
    if (w->stack->r)
        TSR_TRY(make_low(w, &low));
    return multiply(w, z, x, low.low, !p, false);
}

tsr_status tsr_expert_backward(const tsr_expert_work *w, void *dx, const void *dz, bool gather)
{
    return multiply(w, dx, dz, w->low, gather, true);
}

uint64_t tsr_expert_low_bytes(const tsr_node *node, const tsr_matrix_traits *traits,
                              tsr_attention_bounds bounds, int count)
{
    uint64_t r = traits_of(node, traits)->r;
    if (!bounds.train)
        return 0;
    return (uint64_t)count *
           tsr_expert_rows_bytes(node, tsr_attention_own_tokens(&bounds), (int64_t)r, bounds.dtype);
}

tsr_status tsr_expert_adapters(const tsr_expert_work *w, const void *x, const void *dz,
                               const float *p)
{
    const tsr_layer_gradients *gradients =
        &w->pass->gradients[tsr_stack_weight(w->node->weight[0])];
    const tsr_linear_context *context = w->pass->context;
    uint64_t each =
        tsr_expert_rows_bytes(w->node, context->tokens, (int64_t)w->stack->r, context->dtype);
    void *low = w->kept ? w->kept : w->rest, *d_low = p ? w->rest + each : w->low;
    tsr_expert_low_rank_args of_x = low_of(w, x, !p, false), of_dz = low_of(w, dz, p, true);
    of_x.p = of_dz.p = p;
    of_dz.low = w->low;
    if (p)
        of_x.weighted = low, of_dz.weighted = d_low;
    else
        of_x.low = low;
    if (!w->kept)
        TSR_TRY(make_low(w, &of_x));
    TSR_TRY(make_low(w, &of_dz));
    return context->kernels->expert_low_rank_backward(
        context->stream, &(tsr_expert_low_rank_backward_args){.x = x,
                                                              .dz = dz,
                                                              .low = low,
                                                              .d_low = d_low,
                                                              .da = gradients->a,
                                                              .db = gradients->b,
                                                              .rows = tsr_expert_rows_of(w, true),
                                                              .out = (int64_t)w->shape->out,
                                                              .in = (int64_t)w->shape->in,
                                                              .r = (int64_t)w->stack->r,
                                                              .spread = p != NULL,
                                                              .dtype = context->dtype});
}

/* ---- gate and up ---- */

static tsr_status forward(const tsr_pass *p, const tsr_step *step)
{
    const tsr_node *node = &p->block->node[step->node];
    tsr_expert_work work = tsr_expert_work_begin(p, node, node->in[TSR_EXPERTS_ROUTES]);
    return tsr_expert_forward(&work, p->value[node->out[0]], p->value[node->in[TSR_EXPERTS_X]],
                              NULL);
}

static tsr_status backward(const tsr_pass *p, const tsr_step *step)
{
    const tsr_node *node = &p->block->node[step->node];
    tsr_expert_work work = tsr_expert_work_begin(p, node, node->in[TSR_EXPERTS_ROUTES]);
    const void *dz = p->gradient[node->out[0]];
    if (work.stack->r)
        TSR_TRY(tsr_expert_adapters(&work, p->value[node->in[TSR_EXPERTS_X]], dz, NULL));
    if (!(step->inputs & 1u << TSR_EXPERTS_X))
        return TSR_OK;
    TSR_TRY(tsr_expert_backward(&work, work.rest, dz, false));
    return p->context->kernels->combine(
        p->context->stream, &(tsr_combine_args){.y = p->gradient[node->in[TSR_EXPERTS_X]],
                                                .z = work.rest,
                                                .row = work.routes.row,
                                                .tokens = p->context->tokens,
                                                .k = node->spec.experts.chosen,
                                                .h = node->spec.experts.in,
                                                .add = step->adds & 1u << TSR_EXPERTS_X,
                                                .dtype = p->context->dtype});
}

static void needs(tsr_needs *out, const tsr_block *block, const tsr_node *node,
                  const tsr_matrix_traits *traits)
{
    tsr_needs_read(out, node->in[TSR_EXPERTS_ROUTES]);
    if (!traits_of(node, traits)->r)
        return;
    tsr_needs_read(out, node->in[TSR_EXPERTS_X]);
    tsr_needs_read(out, block->stack[node->weight[0]].low);
}

static uint64_t workspace(const tsr_node *node, const tsr_matrix_traits *traits,
                          const tsr_kernels *kernels, tsr_attention_bounds bounds)
{
    const tsr_experts_spec *spec = &node->spec.experts;
    uint64_t rows =
        tsr_expert_rows_bytes(node, tsr_attention_own_tokens(&bounds), spec->in, bounds.dtype);
    uint64_t low = tsr_expert_low_bytes(node, traits, bounds, 1);
    (void)kernels;
    return tsr_expert_taken_bytes(node, tsr_attention_own_tokens(&bounds), traits, bounds.dtype) +
           (!bounds.train ? 0
            : rows > low  ? rows
                          : low);
}

/* ---- cost ---- */

static void cost_low(const tsr_costing *c, const tsr_node *node, tsr_work_term term)
{
    double amount = c->layer->tokens * node->spec.experts.chosen * (double)node->spec.experts.in;
    double flops = 2 * amount * c->layer->stack[node->weight[0]].r;
    tsr_cost_both(c, term, TSR_WORK_NARROW, (tsr_work_amount){flops, 0},
                  (tsr_work_amount){flops, c->layer->element * amount});
}

void tsr_cost_low_of_experts(const tsr_costing *c, const tsr_node *node)
{
    cost_low(c, node, TSR_WORK_RECOMPUTE);
}

/* Whether low is there no more: not kept, and the forward is not run again. */
static bool lost_low(const tsr_costing *c, const tsr_node *node)
{
    const tsr_layer_program *p = c->layer->program;
    for (int i = 0; i < p->remade.count; i++)
        if (&p->block->node[p->remade.step[i].node] == node)
            return false;
    return !tsr_keep_has(&p->keep, p->block->stack[node->weight[0]].low);
}

/* What adapters add beside the summands of the base's matmul: low of x, or of dz and the sums of their gradients. */
static void cost_adapters(const tsr_costing *c, const tsr_node *node, double rows, bool back)
{
    const tsr_experts_spec *spec = &node->spec.experts;
    double in = (double)spec->in, out = (double)spec->out, element = c->layer->element;
    double r = c->layer->stack[node->weight[0]].r;
    const tsr_work_amount least = {2 * rows * r * (in + 2 * out), element * rows * (in + out)};
    const tsr_work_amount here = {least.flops, element * rows * (in + 2 * out)};
    if (!back) {
        cost_low(c, node, TSR_WORK_ADAPTERS_FORWARD);
        return;
    }
    if (lost_low(c, node))
        tsr_cost_low_of_experts(c, node);
    tsr_cost_both(c, TSR_WORK_ADAPTERS_BACKWARD, TSR_WORK_NARROW, least, here);
}

/* weights: of experts that have a row. In e4m3 the adapter's summands are in the compute dtype all the same. */
static void cost_matmul(const tsr_costing *c, const tsr_node *node, double rows, double weights,
                        bool back)
{
    const tsr_experts_spec *spec = &node->spec.experts;
    tsr_work_term term = back ? TSR_WORK_LINEARS_BACKWARD : TSR_WORK_LINEARS_FORWARD;
    double in = (double)spec->in, out = (double)spec->out, element = c->layer->element;
    const tsr_work_stack *stack = &c->layer->stack[node->weight[0]];
    double low = 2 * rows * stack->r * (back ? in : out);
    double products = 2 * rows * in * out;
    double inner = back ? out : in, outer = back ? in : out;
    if (!stack->fp8) {
        const tsr_work_amount least = {products + low, element * (rows * (in + out) + weights)};
        const tsr_work_amount here = {least.flops * (1 + TILE_ENDS / inner), least.bytes};
        tsr_cost_both(c, term, TSR_WORK_GROUPED, least, here);
        return;
    }
    bool gathered = back == (node->kind == &tsr_node_combine);
    double elements = (gathered ? c->layer->tokens : rows) * inner;
    const tsr_work_amount work = {products + FP8_RATE * low,
                                  rows * (inner + element * outer) + weights};
    tsr_cost_both(c, term, TSR_WORK_GROUPED_FP8, work, work);
    tsr_cost_both(c, TSR_WORK_QUANTIZE, TSR_WORK_STREAM, (tsr_work_amount){0, elements},
                  (tsr_work_amount){0, elements * (1 + element)});
}

void tsr_cost_experts(const tsr_costing *c, const tsr_node *node, tsr_pass_kind pass, bool dx)
{
    const tsr_experts_spec *spec = &node->spec.experts;
    double rows = c->layer->tokens * spec->chosen;
    double active = rows < spec->experts ? rows : spec->experts;
    double weight = (double)spec->in * (double)spec->out;
    bool back = pass == TSR_PASS_BACKWARD;
    const tsr_work_stack *stack = &c->layer->stack[node->weight[0]];
    if (stack->r > 0)
        cost_adapters(c, node, rows, back);
    if (back && !dx)
        return;
    cost_matmul(c, node, rows, active * weight, back);
    if (stack->nf4) {
        double element = NF4_BYTES + (stack->fp8 ? 1 : c->layer->element);
        tsr_cost_both(c, TSR_WORK_NF4, TSR_WORK_DECODE,
                      (tsr_work_amount){0, active * weight * element},
                      (tsr_work_amount){0, stack->decoded ? 0 : spec->experts * weight * element});
    }
}

static void cost(const tsr_costing *c, const tsr_node *node, const tsr_step *step,
                 tsr_pass_kind pass)
{
    const tsr_experts_spec *spec = &node->spec.experts;
    bool dx = step->inputs & 1u << TSR_EXPERTS_X;
    tsr_cost_experts(c, node, pass, dx);
    if (pass == TSR_PASS_BACKWARD && dx)
        tsr_cost_both(
            c, TSR_WORK_MEMORY_BACKWARD, TSR_WORK_STREAM, (tsr_work_amount){0, 0},
            (tsr_work_amount){0, tsr_cost_column(c) * (double)spec->in * (spec->chosen + 1)});
}

const tsr_node_kind tsr_node_experts = {.name = "experts",
                                        .row_wise = true,
                                        .adds = TSR_NODE_ALL_PORTS,
                                        .rows = TSR_NONE,
                                        .forward = forward,
                                        .backward = backward,
                                        .needs = needs,
                                        .cost = cost,
                                        .workspace = workspace};
