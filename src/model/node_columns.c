/*
 * node_columns.c: a linear's result with everything, in two: its first columns, and the rest. Where a norm reads only some
 * of them.
 */
#include "model/node_parts.h"
#include "model/work_parts.h"

/* Columns [*from, *from + the width of output `i`) are its. */
static int64_t columns_of(int64_t *from, const tsr_pass *p, const tsr_node *node, int i)
{
    *from = i ? (int64_t)p->block->value[node->out[0]].width : 0;
    return (int64_t)p->block->value[node->out[i]].width;
}

static void *at(const tsr_pass *p, const void *rows, int64_t column)
{
    return (char *)rows + (uint64_t)column * tsr_dtype_bytes(p->context->dtype);
}

static tsr_status forward(const tsr_pass *p, const tsr_step *step)
{
    const tsr_node *node = &p->block->node[step->node];
    tsr_output y = tsr_pass_output(p, node->in[0]);
    for (int i = 0; i < 2; i++) {
        int64_t from, columns = columns_of(&from, p, node, i);
        tsr_frozen bias = y.bias;
        if (bias.data)
            bias.data = (const char *)bias.data + (uint64_t)from * tsr_dtype_bytes(bias.dtype);
        TSR_TRY(p->context->kernels->copy_columns(
            p->context->stream,
            &(tsr_copy_columns_args){.out = p->value[node->out[i]],
                                     .in = at(p, y.z, from),
                                     .rows = p->context->tokens,
                                     .columns = columns,
                                     .out_stride = columns,
                                     .in_stride = (int64_t)p->block->value[node->in[0]].width,
                                     .in_dtype = p->context->dtype,
                                     .dtype = p->context->dtype,
                                     .scale = 1,
                                     .g = y.g ? y.g + from : NULL,
                                     .bias = bias}));
    }
    return TSR_OK;
}

static tsr_status backward(const tsr_pass *p, const tsr_step *step)
{
    const tsr_node *node = &p->block->node[step->node];
    for (int i = 0; i < 2; i++) {
        int64_t from, columns = columns_of(&from, p, node, i);
        TSR_TRY(p->context->kernels->copy_columns(
            p->context->stream,
            &(tsr_copy_columns_args){.out = at(p, p->gradient[node->in[0]], from),
                                     .in = p->gradient[node->out[i]],
                                     .rows = p->context->tokens,
                                     .columns = columns,
                                     .out_stride = (int64_t)p->block->value[node->in[0]].width,
                                     .in_stride = columns,
                                     .in_dtype = p->context->dtype,
                                     .dtype = p->context->dtype,
                                     .scale = 1}));
    }
    return TSR_OK;
}

static void needs(tsr_needs *out, const tsr_block *block, const tsr_node *node,
                  const tsr_matrix_traits *traits)
{
    (void)out;
    (void)block;
    (void)node;
    (void)traits;
}

static void cost(const tsr_costing *c, const tsr_node *node, const tsr_step *step,
                 tsr_pass_kind pass)
{
    (void)step;
    tsr_cost_bytes(c,
                   pass == TSR_PASS_BACKWARD ? TSR_WORK_MEMORY_BACKWARD : TSR_WORK_MEMORY_FORWARD,
                   2 * tsr_cost_column(c) * tsr_cost_width(c, node->in[0]));
}

const tsr_node_kind tsr_node_columns = {.name = "columns",
                                        .row_wise = true,
                                        .rows = TSR_NONE,
                                        .forward = forward,
                                        .backward = backward,
                                        .needs = needs,
                                        .cost = cost};
