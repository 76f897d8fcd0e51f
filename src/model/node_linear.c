/*
 * node_linear.c: frozen linears with their adapters (adapters/linear.h), all of one input.
 */
#include "model/node_parts.h"
#include "model/work_parts.h"

static bool is_bare(const tsr_matrix_traits *traits)
{
    return traits->r && traits->dora && !traits->composes;
}

/* Whether whoever reads the result leaves the gradient of g z to the linear. */
bool tsr_matrix_scales_back(const tsr_block *block, const tsr_matrix_traits *traits, int matrix)
{
    return is_bare(&traits[matrix]) &&
           !tsr_block_reader_scales(block, block->matrix[matrix].result);
}

static tsr_status forward(const tsr_pass *p, const tsr_step *step)
{
    const tsr_node *node = &p->block->node[step->node];
    const void *x = p->value[node->in[0]];
    if (step->needs_rows)
        TSR_TRY(tsr_linear_input(p->context, x, (int64_t)p->block->value[node->in[0]].width));
    for (int i = 0; i < TSR_NODE_PORTS; i++) {
        if (!(step->outputs & 1u << i))
            continue;
        int16_t matrix = node->weight[i];
        const tsr_matrix *m = &p->block->matrix[matrix];
        bool composes = tsr_linear_composes(&p->linear[matrix]); /* not in an evaluation */
        void *result = p->value[m->result];
        TSR_TRY(tsr_linear_forward(p->context, &p->linear[matrix], x,
                                   composes ? p->value[m->inner] : result, composes ? result : NULL,
                                   p->value[m->low]));
    }
    return TSR_OK;
}

/* dz = g dy and dm, where dy is the gradient of g z. */
static tsr_status scale_back(const tsr_pass *p, int matrix, void *dz)
{
    const tsr_linear *linear = &p->linear[matrix];
    const tsr_matrix *m = &p->block->matrix[matrix];
    return p->context->kernels->compose_backward(
        p->context->stream, &(tsr_compose_backward_args){.dy = p->gradient[m->result],
                                                         .inner = p->value[m->result],
                                                         .g = linear->g,
                                                         .n = linear->n,
                                                         .d_lora = dz,
                                                         .scale = 1,
                                                         .dm = p->gradients[matrix].m,
                                                         .partials = p->context->partials,
                                                         .tokens = p->context->tokens,
                                                         .d = (int64_t)linear->out,
                                                         .dtype = p->context->dtype});
}

static tsr_status backward_one(const tsr_pass *p, const tsr_node *node, int matrix, void *dx,
                               bool add)
{
    const tsr_matrix *m = &p->block->matrix[matrix];
    const tsr_matrix_traits *traits = &p->traits[matrix];
    void *dz = p->gradient[m->result];
    if (tsr_matrix_scales_back(p->block, p->traits, matrix)) {
        dz = p->gradient[m->inner];
        TSR_TRY(scale_back(p, matrix, dz));
    }
    tsr_linear_gradients gradients = {.x = p->value[node->in[0]],
                                      .low = p->value[m->low],
                                      .dz8 = p->made8[matrix],
                                      .dz = dz,
                                      .z = traits->composes ? p->value[m->inner] : NULL,
                                      .dx = dx,
                                      .add = add,
                                      .da = p->gradients[matrix].a,
                                      .db = p->gradients[matrix].b,
                                      .dm = p->gradients[matrix].m};
    return tsr_linear_backward(p->context, &p->linear[matrix], &gradients);
}

static tsr_status backward(const tsr_pass *p, const tsr_step *step)
{
    const tsr_node *node = &p->block->node[step->node];
    void *dx = step->inputs & 1 ? p->gradient[node->in[0]] : NULL;
    bool add = step->adds & 1;
    for (int i = 0; i < TSR_NODE_PORTS; i++) {
        if (!(step->outputs & 1u << i) || (!dx && !p->traits[node->weight[i]].r))
            continue;
        TSR_TRY(backward_one(p, node, node->weight[i], dx, add));
        add = true;
    }
    return TSR_OK;
}

static void needs(tsr_needs *out, const tsr_block *block, const tsr_node *node,
                  const tsr_matrix_traits *traits)
{
    bool adapted = false;
    for (int i = 0; i < TSR_NODE_PORTS && node->weight[i] != TSR_NONE; i++) {
        int16_t matrix = node->weight[i];
        const tsr_matrix *m = &block->matrix[matrix];
        adapted |= traits[matrix].r > 0;
        if (traits[matrix].composes)
            tsr_needs_read(out, m->inner);
        if (traits[matrix].low)
            tsr_needs_read(out, m->low);
        if (tsr_matrix_scales_back(block, traits, matrix))
            tsr_needs_read(out, m->result);
    }
    if (adapted) /* for the gradient of A */
        tsr_needs_read(out, node->in[0]);
}

static void cost(const tsr_costing *c, const tsr_node *node, const tsr_step *step,
                 tsr_pass_kind pass)
{
    if (pass == TSR_PASS_BACKWARD)
        tsr_cost_linears_backward(c, node, step);
    else
        tsr_cost_linears_forward(c, node, step);
}

const tsr_node_kind tsr_node_linear = {.name = "linear",
                                       .row_wise = true,
                                       .rows = TSR_NONE,
                                       .forward = forward,
                                       .backward = backward,
                                       .needs = needs,
                                       .cost = cost};
