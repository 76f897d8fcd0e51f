/*
 * node_norm.c: sum = x + scale (g z + bias), h = norm(sum): the residual stream is added up and normed in one pass;
 * without a weight only added up, without x a linear's result is normed or scaled. With a head_dim every head is a row
 * of its own.
 *
 * Backward, in place of the gradient of the sum: d sum += the norm's backward of dh. What was pending has that
 * gradient too. Without x that is its own, scaled.
 */
#include "model/node_parts.h"
#include "model/work_parts.h"

static tsr_fp8_rows rows_of(const tsr_pass *p, const tsr_step *step)
{
    return step->makes_rows ? tsr_linear_rows(p->context) : (tsr_fp8_rows){0};
}

static bool norms(const tsr_node *node)
{
    return node->out[TSR_NORM_H] != TSR_NONE;
}

/* What is normed as one. */
static int64_t row_width(const tsr_pass *p, const tsr_node *node)
{
    int32_t head = node->spec.norm.head_dim;
    return head ? head : (int64_t)p->block->value[node->out[TSR_NORM_SUM]].width;
}

static int64_t row_count(const tsr_pass *p, const tsr_node *node)
{
    int64_t width = (int64_t)p->block->value[node->out[TSR_NORM_SUM]].width;
    return p->context->tokens * (width / row_width(p, node));
}

static tsr_frozen weight_of(const tsr_pass *p, const tsr_node *node)
{
    if (node->weight[0] == TSR_NONE)
        return (tsr_frozen){p->tables->ones, TSR_F32};
    return p->vector[node->weight[0]];
}

static tsr_status forward(const tsr_pass *p, const tsr_step *step)
{
    const tsr_node *node = &p->block->node[step->node];
    void *sum = p->value[node->out[TSR_NORM_SUM]];
    tsr_rms_norm_args args = {.x_out = sum,
                              .tokens = row_count(p, node),
                              .d = row_width(p, node),
                              .eps = node->spec.norm.eps,
                              .scale = node->spec.norm.scale,
                              .dtype = p->context->dtype,
                              .h8 = rows_of(p, step)};
    if (norms(node)) {
        args.w = weight_of(p, node);
        args.h = p->value[node->out[TSR_NORM_H]];
        args.rstd = p->value[node->out[TSR_NORM_RSTD]];
    }
    if (node->in[TSR_NORM_X] != TSR_NONE)
        args.x = p->value[node->in[TSR_NORM_X]];
    if (step->has_sum) {
        args.x = sum;
        args.x_out = NULL;
    } else if (node->in[TSR_NORM_PENDING] != TSR_NONE) {
        tsr_output pending = tsr_pass_output(p, node->in[TSR_NORM_PENDING]);
        args.z = pending.z;
        args.g = pending.g;
        args.bias = pending.bias;
    }
    return p->context->kernels->rms_norm(p->context->stream, &args);
}

/* The gradient of what is scaled. */
static tsr_status scale_back(const tsr_pass *p, const tsr_node *node)
{
    int64_t width = (int64_t)p->block->value[node->out[TSR_NORM_SUM]].width;
    return p->context->kernels->widen(
        p->context->stream, &(tsr_widen_args){.out = p->gradient[node->in[TSR_NORM_PENDING]],
                                              .in = p->gradient[node->out[TSR_NORM_SUM]],
                                              .count = p->context->tokens * width,
                                              .in_dtype = p->context->dtype,
                                              .dtype = p->context->dtype,
                                              .scale = node->spec.norm.scale});
}

static tsr_status backward(const tsr_pass *p, const tsr_step *step)
{
    const tsr_node *node = &p->block->node[step->node];
    tsr_fp8_rows none = {0}, *rows = &none;
    bool alone = node->in[TSR_NORM_X] == TSR_NONE;
    bool adds = alone && step->adds & 1u << TSR_NORM_PENDING;
    if (adds && !(step->outputs & 1u << TSR_NORM_H))
        return tsr_fail(TSR_EINTERNAL, "the gradient of what is scaled is added to another's");
    if (!(step->outputs & 1u << TSR_NORM_H)) /* the sum's gradient is all there is */
        return alone ? scale_back(p, node) : TSR_OK;
    if (step->makes_rows) { /* the linear that was added multiplies by the gradient next, as it is */
        int matrix = p->block->value[node->in[TSR_NORM_PENDING]].matrix;
        rows = &p->made8[matrix];
        TSR_TRY(tsr_linear_gradient_rows(rows, p->context, &p->linear[matrix], p->context->fp8.rows,
                                         0));
    }
    return p->context->kernels->rms_norm_backward(
        p->context->stream,
        &(tsr_rms_norm_backward_args){
            .dh = p->gradient[node->out[TSR_NORM_H]],
            .x = p->value[node->out[TSR_NORM_SUM]],
            .rstd = p->value[node->out[TSR_NORM_RSTD]],
            .w = weight_of(p, node),
            .dx = p->gradient[alone ? node->in[TSR_NORM_PENDING] : node->out[TSR_NORM_SUM]],
            .tokens = row_count(p, node),
            .d = row_width(p, node),
            .overwrite = alone && !adds,
            .dtype = p->context->dtype,
            .dx8 = *rows});
}

static void needs(tsr_needs *out, const tsr_block *block, const tsr_node *node,
                  const tsr_matrix_traits *traits)
{
    (void)block;
    (void)traits;
    int16_t sum = node->out[TSR_NORM_SUM], pending = node->in[TSR_NORM_PENDING];
    if (norms(node)) {
        tsr_needs_read(out, sum);
        tsr_needs_read(out, node->out[TSR_NORM_RSTD]);
    }
    if (node->in[TSR_NORM_X] == TSR_NONE) {
        tsr_needs_over(out, sum, pending);
        return;
    }
    tsr_needs_over(out, sum, node->in[TSR_NORM_X]);
    tsr_needs_share(out, node->in[TSR_NORM_X], sum, true);
    if (norms(node) && pending != TSR_NONE)
        tsr_needs_over(out, node->out[TSR_NORM_H], pending);
    if (pending != TSR_NONE)
        tsr_needs_share(out, pending, sum, true);
}

/* x + z and its norm read two and write two; where the sum is there one is read and one written. A sum alone writes
 * one. The backward reads
 * dh, the sum and its gradient, and writes that. */
static void cost(const tsr_costing *c, const tsr_node *node, const tsr_step *step,
                 tsr_pass_kind pass)
{
    double one = tsr_cost_column(c) * tsr_cost_width(c, node->out[TSR_NORM_SUM]);
    bool backward = pass == TSR_PASS_BACKWARD;
    if (!backward || step->outputs & 1u << TSR_NORM_H)
        tsr_cost_bytes(c, backward ? TSR_WORK_MEMORY_BACKWARD : TSR_WORK_MEMORY_FORWARD,
                       (step->has_sum  ? 2
                        : !norms(node) ? 3
                                       : 4) *
                           one);
}

const tsr_node_kind tsr_node_norm = {.name = "norm",
                                     .row_wise = true,
                                     .adds = TSR_NODE_ALL_PORTS,
                                     .rows = TSR_NORM_H,
                                     .forward = forward,
                                     .backward = backward,
                                     .needs = needs,
                                     .cost = cost};
