/*
 * node_experts.c: the frozen weights of all experts with their adapters, times the rows of the tokens that go to each
 * (kernels/grouped_gemm.h).
 *
 * W_e + s B_e A_e is made as NF4 is decoded, in the forward and again in the backward: for some experts at a time, or,
 * without an adapter, as a GPU's kernel multiplies. What is rounded there is rounded in any case. Plain weights and MXFP4 are
 * exact in the compute dtype, and with small updates added they would lose these: what adapters add to a row is then
 * multiplied apart, and comes first.
 */
#include "base/checked.h"
#include "model/expert_parts.h"

/* NF4 with double quantization. */
#define NF4_BYTES (0.5 + 1.0 / 64)

static int64_t group_of(const tsr_node *node, tsr_dtype dtype)
{
    const tsr_experts_spec *spec = &node->spec.experts;
    uint64_t one = (uint64_t)spec->out * (uint64_t)spec->in * tsr_dtype_bytes(dtype);
    int64_t group = (int64_t)(TSR_EXPERT_WEIGHT_BYTES / one);
    group = group < 1 ? 1 : group;
    return group < spec->experts ? group : spec->experts;
}

uint64_t tsr_expert_weight_bytes(const tsr_node *node, int64_t tokens, uint64_t r, tsr_dtype dtype)
{
    const tsr_experts_spec *spec = &node->spec.experts;
    uint64_t one = (uint64_t)spec->out * (uint64_t)spec->in * tsr_dtype_bytes(dtype);
    uint64_t low = tsr_expert_rows_bytes(node, tokens, (int64_t)r, dtype);
    uint64_t weights = tsr_align_up((uint64_t)group_of(node, dtype) * one, TSR_ALIGNMENT);
    return weights > low ? weights : low;
}

uint64_t tsr_expert_rows_bytes(const tsr_node *node, int64_t tokens, int64_t width, tsr_dtype dtype)
{
    uint64_t rows = (uint64_t)tokens * (uint64_t)node->spec.experts.chosen;
    return tsr_align_up(rows * (uint64_t)width * tsr_dtype_bytes(dtype), TSR_ALIGNMENT);
}

tsr_expert_work tsr_expert_work_begin(const tsr_pass *pass, const tsr_node *node, int16_t routes)
{
    const tsr_experts_spec *spec = &node->spec.experts;
    const tsr_expert_stack *stack = &pass->stack[node->weight[0]];
    const tsr_linear_context *context = pass->context;
    uint64_t taken = tsr_expert_weight_bytes(node, context->tokens, stack->r, context->dtype);
    return (tsr_expert_work){.pass = pass,
                             .node = node,
                             .shape = &pass->block->stack[node->weight[0]],
                             .stack = stack,
                             .routes = tsr_routes_at(pass->value[routes], pass->context->tokens,
                                                     spec->chosen, spec->experts),
                             .group = group_of(node, pass->context->dtype),
                             .rest = (char *)pass->workspace + taken,
                             .rest_bytes = pass->workspace_bytes - taken};
}

tsr_expert_rows tsr_expert_rows_of(const tsr_expert_work *w, bool gather)
{
    return (tsr_expert_rows){.offset = w->routes.offset,
                             .slot = gather ? w->routes.slot : NULL,
                             .most = w->pass->context->tokens * w->node->spec.experts.chosen,
                             .k = w->node->spec.experts.chosen,
                             .experts = w->node->spec.experts.experts};
}

/* Whether what the adapters add is multiplied apart. */
static bool is_apart(const tsr_expert_stack *s)
{
    return s->r && (!s->codes || s->mxfp4);
}

/* The weights of MXFP4, which are exact in any dtype. */
static tsr_status decode_mxfp4(const tsr_expert_work *w, int64_t first, int64_t count)
{
    const tsr_expert_stack *s = w->stack;
    const tsr_linear_context *context = w->pass->context;
    int64_t parts = w->shape->parts;
    return context->kernels->mxfp4_dequant(
        context->stream, &(tsr_mxfp4_dequant_args){.out = w->pass->workspace,
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
                                    .a = s->a,
                                    .b = s->b,
                                    .parts = w->shape->parts,
                                    .rows = (int64_t)w->shape->out,
                                    .columns = (int64_t)w->shape->in,
                                    .r = is_apart(s) ? 0 : (int64_t)s->r,
                                    .scale = (float)s->scale,
                                    .format = s->codes ? TSR_EXPERTS_NF4 : TSR_EXPERTS_PLAIN,
                                    .nested = s->codes && s->nested,
                                    .dtype = w->pass->context->dtype};
}

/* Plain weights are multiplied with where they lie. */
static const void *plain_of(const tsr_expert_work *w)
{
    bool same = w->stack->plain.dtype == w->pass->context->dtype;
    return same ? w->stack->plain.data : NULL;
}

static tsr_status multiply_mxfp4(const tsr_expert_work *w, tsr_grouped_gemm_args *args)
{
    const tsr_linear_context *context = w->pass->context;
    args->w = w->pass->workspace;
    for (int64_t first = 0; first < args->rows.experts; first += w->group) {
        args->first = first;
        args->count = args->rows.experts - first < w->group ? args->rows.experts - first : w->group;
        TSR_TRY(decode_mxfp4(w, first, args->count));
        TSR_TRY(context->kernels->grouped_gemm(context->stream, args));
    }
    return TSR_OK;
}

/* z = scale x A^T B^T, backward scale x B A: in two products, the first where weights are decoded afterwards. */
static tsr_status multiply_adapters(const tsr_expert_work *w, const tsr_grouped_gemm_args *base)
{
    const tsr_linear_context *context = w->pass->context;
    const tsr_expert_stack *s = w->stack;
    int64_t r = (int64_t)s->r;
    tsr_grouped_gemm_args low = {.z = w->pass->workspace,
                                 .x = base->x,
                                 .w = base->backward ? s->b : s->a,
                                 .rows = base->rows,
                                 .count = base->count,
                                 .out = base->backward ? base->out : r,
                                 .in = base->backward ? r : base->in,
                                 .backward = base->backward,
                                 .scale = (float)s->scale,
                                 .dtype = base->dtype};
    tsr_grouped_gemm_args high = {.z = base->z,
                                  .x = w->pass->workspace,
                                  .w = base->backward ? s->a : s->b,
                                  .rows = tsr_expert_rows_of(w, false),
                                  .count = base->count,
                                  .out = base->backward ? r : base->out,
                                  .in = base->backward ? base->in : r,
                                  .backward = base->backward,
                                  .dtype = base->dtype};
    TSR_TRY(context->kernels->grouped_gemm(context->stream, &low));
    return context->kernels->grouped_gemm(context->stream, &high);
}

tsr_status tsr_expert_multiply(const tsr_expert_work *w, void *z, const void *x, bool gather,
                               bool backward)
{
    const tsr_linear_context *context = w->pass->context;
    tsr_grouped_gemm_args args = {.z = z,
                                  .x = x,
                                  .w = plain_of(w),
                                  .stored = stored_of(w),
                                  .scratch = w->pass->workspace,
                                  .held = w->group,
                                  .bias = backward ? (tsr_frozen){NULL, TSR_F32} : w->stack->bias,
                                  .rows = tsr_expert_rows_of(w, gather),
                                  .out = (int64_t)w->shape->out,
                                  .in = (int64_t)w->shape->in,
                                  .backward = backward,
                                  .add = is_apart(w->stack),
                                  .dtype = context->dtype};
    args.count = args.rows.experts;
    if (args.add)
        TSR_TRY(multiply_adapters(w, &args));
    if (w->stack->mxfp4)
        return multiply_mxfp4(w, &args);
    return context->kernels->grouped_gemm(context->stream, &args);
}

uint64_t tsr_expert_low_bytes(const tsr_node *node, const tsr_matrix_traits *traits,
                              tsr_attention_bounds bounds)
{
    uint64_t r = traits[tsr_stack_weight(node->weight[0])].r;
    if (!r || !bounds.train)
        return 0;
    return tsr_expert_low_rank_backward_bytes(
        bounds.dtype, bounds.tokens * node->spec.experts.chosen, (int64_t)r);
}

tsr_status tsr_expert_adapters(const tsr_expert_work *w, const void *x, const void *dz,
                               const float *p)
{
    const tsr_layer_gradients *gradients =
        &w->pass->gradients[tsr_stack_weight(w->node->weight[0])];
    return w->pass->context->kernels->expert_low_rank_backward(
        w->pass->context->stream,
        &(tsr_expert_low_rank_backward_args){.x = x,
                                             .dz = dz,
                                             .a = w->stack->a,
                                             .b = w->stack->b,
                                             .da = gradients->a,
                                             .db = gradients->b,
                                             .scratch = w->rest,
                                             .scratch_bytes = w->rest_bytes,
                                             .p = p,
                                             .rows = tsr_expert_rows_of(w, true),
                                             .out = (int64_t)w->shape->out,
                                             .in = (int64_t)w->shape->in,
                                             .r = (int64_t)w->stack->r,
                                             .scale = (float)w->stack->scale,
                                             .spread = p != NULL,
                                             .dtype = w->pass->context->dtype});
}

/* ---- gate and up ---- */

static tsr_status forward(const tsr_pass *p, const tsr_step *step)
{
    const tsr_node *node = &p->block->node[step->node];
    tsr_expert_work work = tsr_expert_work_begin(p, node, node->in[TSR_EXPERTS_ROUTES]);
    return tsr_expert_multiply(&work, p->value[node->out[0]], p->value[node->in[TSR_EXPERTS_X]],
                               true, false);
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
    TSR_TRY(tsr_expert_multiply(&work, work.rest, dz, false, true));
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
    (void)block;
    tsr_needs_read(out, node->in[TSR_EXPERTS_ROUTES]);
    if (traits[tsr_stack_weight(node->weight[0])].r)
        tsr_needs_read(out, node->in[TSR_EXPERTS_X]);
}

static uint64_t workspace(const tsr_node *node, const tsr_matrix_traits *traits,
                          const tsr_kernels *kernels, tsr_attention_bounds bounds)
{
    const tsr_experts_spec *spec = &node->spec.experts;
    uint64_t rows = tsr_expert_rows_bytes(node, bounds.tokens, spec->in, bounds.dtype);
    uint64_t low = tsr_expert_low_bytes(node, traits, bounds);
    (void)kernels;
    uint64_t r = traits[tsr_stack_weight(node->weight[0])].r;
    return tsr_expert_weight_bytes(node, bounds.tokens, r, bounds.dtype) + (!bounds.train ? 0
                                                                            : rows > low  ? rows
                                                                                          : low);
}

/* ---- cost ---- */

static void cost_adapters(const tsr_costing *c, const tsr_node *node, double rows, double r)
{
    const tsr_experts_spec *spec = &node->spec.experts;
    double in = (double)spec->in, out = (double)spec->out;
    const tsr_work_amount work = {4 * rows * r * (in + out), c->layer->element * rows * (in + out)};
    tsr_cost_both(c, TSR_WORK_ADAPTERS_BACKWARD, TSR_WORK_NARROW, work, work);
}

/* What adapters add one way: at least their products; here as the weights are decoded, or apart, where the first reads a row and
 * the second writes one that the base's adds to. */
static void cost_product(const tsr_costing *c, const tsr_node *node, double rows, bool back)
{
    const tsr_experts_spec *spec = &node->spec.experts;
    const tsr_work_stack *stack = &c->layer->stack[node->weight[0]];
    double in = (double)spec->in, out = (double)spec->out;
    const tsr_work_term term = back ? TSR_WORK_ADAPTERS_BACKWARD : TSR_WORK_ADAPTERS_FORWARD;
    const tsr_work_amount least = {2 * rows * stack->r * (in + out), 0};
    const tsr_work_amount apart = {least.flops,
                                   c->layer->element * rows * (back ? out + 2 * in : in + 2 * out)};
    if (stack->nf4)
        tsr_cost_both(c, term, TSR_WORK_MERGED, least,
                      (tsr_work_amount){2 * spec->experts * in * out * stack->r, 0});
    else
        tsr_cost_both(c, term, TSR_WORK_NARROW, least, apart);
}

void tsr_cost_experts(const tsr_costing *c, const tsr_node *node, tsr_pass_kind pass, bool dx)
{
    const tsr_experts_spec *spec = &node->spec.experts;
    double rows = c->layer->tokens * spec->chosen;
    double active = rows < spec->experts ? rows : spec->experts;
    double weight = (double)spec->in * (double)spec->out;
    bool back = pass == TSR_PASS_BACKWARD;
    const tsr_work_stack *stack = &c->layer->stack[node->weight[0]];
    if (back && stack->r > 0)
        cost_adapters(c, node, rows, stack->r);
    if (back && !dx)
        return;
    const tsr_work_amount work = {2 * rows * weight,
                                  c->layer->element *
                                      (rows * (double)(spec->in + spec->out) + active * weight)};
    const tsr_work_amount least = {0, active * weight * (NF4_BYTES + c->layer->element)};
    const tsr_work_amount here = {0, spec->experts * weight * (NF4_BYTES + c->layer->element)};
    tsr_cost_both(c, back ? TSR_WORK_LINEARS_BACKWARD : TSR_WORK_LINEARS_FORWARD, TSR_WORK_MATMUL,
                  work, work);
    if (stack->nf4)
        tsr_cost_both(c, TSR_WORK_NF4, TSR_WORK_DECODE, least, here);
    if (stack->r > 0)
        cost_product(c, node, rows, back);
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
                                        .adds = true,
                                        .rows = TSR_NONE,
                                        .forward = forward,
                                        .backward = backward,
                                        .needs = needs,
                                        .cost = cost,
                                        .workspace = workspace};
