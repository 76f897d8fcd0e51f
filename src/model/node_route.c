/*
 * node_route.c: which experts a token goes to, with which weights, and the rows that follows from it (kernels/route.h,
 * route_sort.h). Its router is frozen; the gradient of the weights leads to x.
 */
#include "model/node_parts.h"
#include "model/work_parts.h"

#include <math.h>

static tsr_frozen vector_of(const tsr_pass *p, const tsr_node *node, int port)
{
    return node->weight[port] == TSR_NONE ? (tsr_frozen){NULL, TSR_F32}
                                          : p->vector[node->weight[port]];
}

static tsr_routing routing_of(const tsr_pass *p, const tsr_node *node)
{
    const tsr_route_spec *spec = &node->spec.route;
    const float *moved = p->batch->correction;
    return (tsr_routing){.experts = spec->experts,
                         .k = spec->chosen,
                         .scoring = spec->scoring,
                         .normalise = spec->normalise,
                         .scale = spec->scale,
                         .expert_scale = vector_of(p, node, TSR_ROUTE_SCALE),
                         .correction =
                             moved ? moved : vector_of(p, node, TSR_ROUTE_CORRECTION).data,
                         .n_group = spec->groups,
                         .topk_group = spec->chosen_groups};
}

static tsr_routes routes_of(const tsr_pass *p, const tsr_node *node)
{
    return tsr_routes_at(p->value[node->out[TSR_ROUTE_ROUTES]], p->context->tokens,
                         node->spec.route.chosen, node->spec.route.experts);
}

/* Rows of an expert: so many times the mean load, rounded up, at least one. 0: any. */
static int64_t capacity_of(const tsr_pass *p, const tsr_route_spec *spec)
{
    double factor = p->tables->capacity_factor;
    double mean = (double)p->context->tokens * spec->chosen / spec->experts;
    if (!(factor > 0) || factor * mean >= (double)p->context->tokens)
        return 0;
    return factor * mean > 1 ? (int64_t)ceil(factor * mean) : 1;
}

static tsr_status count(const tsr_pass *p, const tsr_node *node, tsr_routes routes)
{
    const tsr_router_counts *to = p->batch->counts;
    return p->context->kernels->route_stats(
        p->context->stream, &(tsr_route_stats_args){.id = routes.id,
                                                    .row = routes.row,
                                                    .logits = p->value[node->out[TSR_ROUTE_LOGITS]],
                                                    .count = to->count,
                                                    .prob = to->prob,
                                                    .dropped = to->dropped,
                                                    .tokens = p->context->tokens,
                                                    .k = node->spec.route.chosen,
                                                    .experts = node->spec.route.experts});
}

static tsr_status forward(const tsr_pass *p, const tsr_step *step)
{
    const tsr_node *node = &p->block->node[step->node];
    const tsr_route_spec *spec = &node->spec.route;
    const tsr_kernels *kernels = p->context->kernels;
    tsr_routes routes = routes_of(p, node);
    int64_t tokens = p->context->tokens;
    TSR_TRY(kernels->route(p->context->stream,
                           &(tsr_route_args){.x = p->value[node->in[0]],
                                             .weight = vector_of(p, node, TSR_ROUTE_WEIGHT),
                                             .bias = vector_of(p, node, TSR_ROUTE_BIAS),
                                             .how = routing_of(p, node),
                                             .logits = p->value[node->out[TSR_ROUTE_LOGITS]],
                                             .p = p->value[node->out[TSR_ROUTE_P]],
                                             .id = routes.id,
                                             .tokens = tokens,
                                             .h = (int64_t)p->block->value[node->in[0]].width,
                                             .dtype = p->context->dtype}));
    TSR_TRY(kernels->route_sort(p->context->stream,
                                &(tsr_route_sort_args){.routes = routes,
                                                       .tokens = tokens,
                                                       .k = spec->chosen,
                                                       .experts = spec->experts,
                                                       .capacity = capacity_of(p, spec)}));
    return p->batch->counts ? count(p, node, routes) : TSR_OK;
}

static tsr_status backward(const tsr_pass *p, const tsr_step *step)
{
    const tsr_node *node = &p->block->node[step->node];
    float *logits = p->value[node->out[TSR_ROUTE_LOGITS]];
    return p->context->kernels->route_backward(
        p->context->stream,
        &(tsr_route_backward_args){.dp = p->gradient[node->out[TSR_ROUTE_P]],
                                   .logits = logits,
                                   .id = routes_of(p, node).id,
                                   .aux = p->batch->aux,
                                   .weight = vector_of(p, node, TSR_ROUTE_WEIGHT),
                                   .how = routing_of(p, node),
                                   .dlogits = logits, /* nobody reads them afterwards */
                                   .dx = p->gradient[node->in[0]],
                                   .tokens = p->context->tokens,
                                   .h = (int64_t)p->block->value[node->in[0]].width,
                                   .add = step->adds & 1,
                                   .dtype = p->context->dtype});
}

static void needs(tsr_needs *out, const tsr_block *block, const tsr_node *node,
                  const tsr_matrix_traits *traits)
{
    (void)block;
    (void)traits;
    tsr_needs_read(out, node->out[TSR_ROUTE_ROUTES]);
    tsr_needs_read(out, node->out[TSR_ROUTE_LOGITS]);
}

static void cost(const tsr_costing *c, const tsr_node *node, const tsr_step *step,
                 tsr_pass_kind pass)
{
    double experts = node->spec.route.experts, width = tsr_cost_width(c, node->in[0]);
    double tokens = c->layer->tokens, k = node->spec.route.chosen;
    bool back = pass == TSR_PASS_BACKWARD;
    (void)step;
    const tsr_work_amount logits = {2 * tokens * experts * width,
                                    c->layer->element * (tokens + experts) * width +
                                        4 * tokens * experts};
    tsr_cost_both(c, back ? TSR_WORK_LINEARS_BACKWARD : TSR_WORK_LINEARS_FORWARD, TSR_WORK_MATMUL,
                  logits, logits);
    tsr_cost_bytes(c, back ? TSR_WORK_MEMORY_BACKWARD : TSR_WORK_MEMORY_FORWARD,
                   4 * tokens * (experts + 6 * k));
}

const tsr_node_kind tsr_node_route = {.name = "route",
                                      .row_wise = true,
                                      .adds = TSR_NODE_ALL_PORTS,
                                      .rows = TSR_NONE,
                                      .forward = forward,
                                      .backward = backward,
                                      .needs = needs,
                                      .cost = cost};
