/*
 * model/work_parts.h: how the kinds of nodes say what they cost (model/work.h). Inside src/model only.
 *
 * "least" is what any implementation does, "here" what this one does.
 */
#ifndef TSR_MODEL_WORK_PARTS_H
#define TSR_MODEL_WORK_PARTS_H

#include "model/work.h"

struct tsr_costing {
    const tsr_work_layer *layer;
    tsr_work_call *call;
    void *user;
    bool again; /* a forward that the backward runs */
    double
        calls; /* of so many tiles of `layer`'s tokens, what they do here; 0: of all tokens at once */
    bool least_only; /* what is done here is told apart */
};

/* Bytes of one of the compute dtype in each token. */
static inline double tsr_cost_column(const tsr_costing *c)
{
    return c->layer->element * c->layer->tokens;
}

static inline double tsr_cost_width(const tsr_costing *c, int value)
{
    return (double)c->layer->program->block->value[value].width;
}

void tsr_cost_both(const tsr_costing *c, tsr_work_term term, tsr_work_kind kind,
                   tsr_work_amount least, tsr_work_amount here);
/* A step of a pass, in tiles where it is done so. */
void tsr_cost_step(const tsr_costing *c, const tsr_step *step, tsr_pass_kind pass);

void tsr_cost_bytes(const tsr_costing *c, tsr_work_term term, double bytes);

/* Of [tokens, width], for the base's matmul in e4m3; made where the rows are, or from them. */
void tsr_cost_quantize(const tsr_costing *c, double width, bool made);

/* work_linear.c: the linears of a node. */
void tsr_cost_linears_forward(const tsr_costing *c, const tsr_node *node, const tsr_step *step);
void tsr_cost_linears_backward(const tsr_costing *c, const tsr_node *node, const tsr_step *step);
/* x A^T of one of them, which its backward makes again. */
void tsr_cost_low(const tsr_costing *c, const tsr_node *node, int port);
/* node_experts.c: the same of experts. */
void tsr_cost_low_of_experts(const tsr_costing *c, const tsr_node *node);
/* DoRA's norms of one linear, once a step. */
void tsr_cost_norm(const tsr_costing *c, const tsr_work_linear *x);

#endif
