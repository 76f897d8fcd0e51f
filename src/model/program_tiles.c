/*
 * program_tiles.c: which nodes of a layer go through tiles of rows, and what exists for one tile only.
 */
#include "model/program_parts.h"

#include "base/checked.h"
#include "model/node_parts.h"

#include <string.h>

/* Behind the root: what that is made from is not there when a backward makes values again. */
void tsr_program_find_tiled(tsr_layer_program *p, const tsr_layer_program_options *options)
{
    const tsr_block *b = p->block;
    p->tile_rows = options->tile_rows;
    for (int i = b->value[b->root].node + 1; i < b->node_count && p->tile_rows; i++)
        p->tiled[i] = b->node[i].kind->row_wise;
    if (options->part)
        memcpy(p->part, options->part, (size_t)b->node_count * sizeof *p->part);
}

bool tsr_program_together(const tsr_layer_program *p, const tsr_step *a, const tsr_step *b)
{
    bool tiled = p->tiled[a->node];
    return tiled == p->tiled[b->node] && (!tiled || p->part[a->node] == p->part[b->node]);
}

int tsr_step_count(const tsr_layer_program *p, bool backward)
{
    return backward ? p->remade.count + p->backward.count : p->forward.count;
}

const tsr_step *tsr_step_at(const tsr_layer_program *p, bool backward, int index)
{
    if (!backward)
        return &p->forward.step[index];
    return index < p->remade.count ? &p->remade.step[index]
                                   : &p->backward.step[index - p->remade.count];
}

int tsr_tile_end(const tsr_layer_program *p, bool backward, int first, int end)
{
    int count = tsr_step_count(p, backward);
    if (!p->tiled[tsr_step_at(p, backward, first)->node])
        return first;
    end = end < count ? end : count;
    int last = first;
    while (last + 1 < end && tsr_program_together(p, tsr_step_at(p, backward, last),
                                                  tsr_step_at(p, backward, last + 1)))
        last++;
    return last + 1;
}

int tsr_tile_kinds(tsr_tile_kind out[2], const tsr_layer_program *p, int node, int64_t tokens)
{
    out[0] = (tsr_tile_kind){tokens, 1};
    if (!p->tiled[node] || tokens <= p->tile_rows)
        return 1;
    out[0] = (tsr_tile_kind){p->tile_rows, tokens / p->tile_rows};
    out[1] = (tsr_tile_kind){tokens % p->tile_rows, 1};
    return out[1].tokens ? 2 : 1;
}

/* ---- gradients of adapters ---- */

static bool has_stack(const tsr_node *node)
{
    bool experts = node->kind == &tsr_node_experts || node->kind == &tsr_node_combine;
    return experts && node->weight[0] != TSR_NONE;
}

/* Of the experts of a stack. */
static int stack_gradients(tsr_step_gradient out[2], const tsr_layer_program *p,
                           const tsr_node *node)
{
    if (!has_stack(node))
        return 0;
    int16_t weight = (int16_t)tsr_stack_weight(node->weight[0]);
    const tsr_stack *stack = &p->block->stack[node->weight[0]];
    uint64_t rows = stack->experts * p->traits[weight].r;
    if (!rows)
        return 0;
    out[0] = (tsr_step_gradient){weight, TSR_GRADIENT_A, rows, stack->in};
    out[1] = (tsr_step_gradient){weight, TSR_GRADIENT_B, rows, stack->out};
    return 2;
}

int tsr_step_gradients(tsr_step_gradient out[TSR_STEP_GRADIENTS], const tsr_layer_program *p,
                       const tsr_step *step)
{
    const tsr_block *b = p->block;
    const tsr_node *node = &b->node[step->node];
    int count = stack_gradients(out, p, node);
    for (int i = 0; i < TSR_NODE_PORTS; i++) {
        if (node->kind->scales && node->in[i] != TSR_NONE &&
            tsr_value_has_dm(b, p->traits, node->in[i])) {
            int16_t matrix = b->value[node->in[i]].matrix;
            out[count++] = (tsr_step_gradient){matrix, TSR_GRADIENT_M, 1, b->matrix[matrix].out};
        }
        int16_t matrix =
            node->kind == &tsr_node_linear && step->outputs & 1u << i ? node->weight[i] : TSR_NONE;
        if (matrix == TSR_NONE || !p->traits[matrix].r)
            continue;
        const tsr_matrix *m = &b->matrix[matrix];
        const tsr_matrix_traits *traits = &p->traits[matrix];
        out[count++] = (tsr_step_gradient){matrix, TSR_GRADIENT_A, traits->r, m->in};
        out[count++] = (tsr_step_gradient){matrix, TSR_GRADIENT_B, traits->r, m->out};
        if (traits->composes || tsr_matrix_scales_back(b, p->traits, matrix))
            out[count++] = (tsr_step_gradient){matrix, TSR_GRADIENT_M, 1, m->out};
    }
    return count;
}

uint64_t tsr_step_gradient_bytes(const tsr_step_gradient *gradient)
{
    return tsr_align_up(gradient->rows * gradient->columns * sizeof(float), TSR_ALIGNMENT);
}

/* ---- groups ---- */

static void find_group_of_steps(tsr_tile_groups *g, const tsr_layer_program *p, bool backward)
{
    int count = tsr_step_count(p, backward);
    for (int i = 0; i < count;) {
        int end = tsr_tile_end(p, backward, i, count);
        if (end == i) {
            g->of_step[i++] = TSR_NO_GROUP;
            continue;
        }
        g->group[g->count] = (tsr_tile_group){i, end};
        for (; i < end; i++)
            g->of_step[i] = (int16_t)g->count;
        g->count++;
    }
}

void tsr_tile_group_join(int16_t *of, int16_t group)
{
    if (group != TSR_UNSEEN_GROUP)
        *of = *of == TSR_UNSEEN_GROUP || *of == group ? group : TSR_NO_GROUP;
}

/* A step that runs forward: what it makes, and what it reads. */
static void see_forward(tsr_tile_groups *g, const tsr_block *b, const tsr_step *step, int16_t group)
{
    const tsr_node *node = &b->node[step->node];
    for (int i = 0; i < TSR_NODE_PORTS; i++) {
        if (node->in[i] != TSR_NONE && !step->has_sum)
            tsr_tile_group_join(&g->value[node->in[i]], group);
        if (node->out[i] == TSR_NONE)
            continue;
        tsr_tile_group_join(&g->value[node->out[i]], group);
        if (has_stack(node))
            tsr_tile_group_join(&g->value[b->stack[node->weight[0]].low], group);
        if (node->kind == &tsr_node_linear) {
            tsr_tile_group_join(&g->value[b->matrix[node->weight[i]].low], group);
            tsr_tile_group_join(&g->value[b->matrix[node->weight[i]].inner], group);
        }
    }
}

static void see_backward(tsr_tile_groups *g, const tsr_layer_program *p, const tsr_step *step,
                         int16_t group)
{
    const tsr_node *node = &p->block->node[step->node];
    tsr_needs needs;
    tsr_needs_of(&needs, p->block, p->traits, step);
    for (int i = 0; i < needs.read_count; i++)
        tsr_tile_group_join(&g->value[needs.read[i]], group);
    for (int i = 0; i < TSR_NODE_PORTS; i++) {
        if (step->outputs & 1u << i)
            tsr_tile_group_join(&g->gradient[node->out[i]], group);
        if (step->inputs & 1u << i)
            tsr_tile_group_join(&g->gradient[node->in[i]], group);
    }
}

/* What is kept, shared with other layers or left to the next is there for all rows. */
static void see_outside(tsr_tile_groups *g, const tsr_layer_program *p, bool backward)
{
    const tsr_block *b = p->block;
    for (int v = 0; v < b->value_count; v++) {
        bool shared = b->value[v].slot != TSR_NONE, leaves = v == b->out.x || v == b->out.pending;
        if (p->kept[v] || shared || (leaves && !backward))
            g->value[v] = TSR_NO_GROUP;
        if (leaves || shared)
            g->gradient[v] = TSR_NO_GROUP;
    }
}

/* A gradient that may lie where another does is there for as many rows. Returns whether one of the two was for fewer. */
static bool join_shared(tsr_tile_groups *g, const tsr_layer_program *p, const tsr_step *step)
{
    const tsr_node *node = &p->block->node[step->node];
    tsr_needs needs = {0};
    bool joined = false;
    node->kind->needs(&needs, p->block, node, p->traits);
    for (int i = 0; i < needs.share_count; i++) {
        int16_t *input = &g->gradient[needs.share[i].input];
        int16_t *with = &g->gradient[needs.share[i].with];
        bool seen = *input != TSR_UNSEEN_GROUP && *with != TSR_UNSEEN_GROUP;
        if (!needs.share[i].gradient || !seen || *input == *with)
            continue;
        *input = *with = TSR_NO_GROUP;
        joined = true;
    }
    return joined;
}

void tsr_program_find_groups(tsr_tile_groups *out, const tsr_layer_program *p, bool backward)
{
    int count = tsr_step_count(p, backward);
    out->count = 0;
    for (int v = 0; v < TSR_BLOCK_VALUES; v++)
        out->value[v] = out->gradient[v] = TSR_UNSEEN_GROUP;
    find_group_of_steps(out, p, backward);
    for (int i = 0; i < count; i++) {
        const tsr_step *step = tsr_step_at(p, backward, i);
        if (!backward || i < p->remade.count)
            see_forward(out, p->block, step, out->of_step[i]);
        else
            see_backward(out, p, step, out->of_step[i]);
    }
    see_outside(out, p, backward);
    for (bool joined = backward; joined;) {
        joined = false;
        for (int i = 0; i < p->backward.count; i++)
            joined |= join_shared(out, p, &p->backward.step[i]);
    }
}
