#include "model/program.h"

#include "model/node_parts.h"
#include "model/program_parts.h"

#include <string.h>

static const tsr_node *node_of(const tsr_layer_program *p, const tsr_step *step)
{
    return &p->block->node[step->node];
}

static int outputs_of(const tsr_node *node)
{
    int mask = 0;
    for (int i = 0; i < TSR_NODE_PORTS; i++)
        mask |= (node->out[i] != TSR_NONE) << i;
    return mask;
}

static void run_all(tsr_layer_program *p)
{
    for (int i = 0; i < p->block->node_count; i++)
        p->forward.step[p->forward.count++] =
            (tsr_step){.node = (int16_t)i, .outputs = (uint8_t)outputs_of(&p->block->node[i])};
}

/* ---- the backward: what leads to an adapter ---- */

/* Whether what a node's port multiplies with has an adapter. */
static bool has_adapter(const tsr_layer_program *p, const tsr_node *node, int port)
{
    bool stack = node->kind == &tsr_node_experts || node->kind == &tsr_node_combine;
    int weight = node->weight[port];
    if (weight == TSR_NONE || (!stack && node->kind != &tsr_node_linear))
        return false;
    return p->traits[stack ? tsr_stack_weight(weight) : weight].r > 0;
}

static bool is_taken(const tsr_value *value)
{
    return value->slot != TSR_NONE && value->node == TSR_NONE;
}

static bool is_given(const tsr_value *value)
{
    return value->slot != TSR_NONE && value->node != TSR_NONE;
}

/* wanted: of each value, whether its gradient leads to one. */
static void follow(bool wanted[TSR_BLOCK_VALUES], const tsr_layer_program *p, bool below)
{
    wanted[p->block->in.x] = wanted[p->block->in.pending] = below;
    for (int v = 0; v < p->block->value_count; v++)
        if (is_taken(&p->block->value[v]))
            wanted[v] = p->wanted_slots >> p->block->value[v].slot & 1;
    for (int i = 0; i < p->block->node_count; i++) {
        const tsr_node *node = &p->block->node[i];
        bool any = false;
        for (int port = 0; port < TSR_NODE_PORTS; port++)
            any |= node->in[port] != TSR_NONE && wanted[node->in[port]];
        for (int port = 0; port < TSR_NODE_PORTS; port++) {
            if (node->out[port] != TSR_NONE && !p->block->value[node->out[port]].index)
                wanted[node->out[port]] = any || has_adapter(p, node, port);
        }
    }
}

/* What a block gives may be taken further up in it: so twice. */
static void find_wanted(bool wanted[TSR_BLOCK_VALUES], tsr_layer_program *p, bool below)
{
    follow(wanted, p, below);
    for (int v = 0; v < p->block->value_count; v++)
        if (is_given(&p->block->value[v]) && wanted[v])
            p->wanted_slots |= (uint8_t)(1u << p->block->value[v].slot);
    follow(wanted, p, below);
}

/* The gradients that layers above have left. */
static void find_begun(bool there[TSR_BLOCK_VALUES], const tsr_layer_program *p, unsigned begun)
{
    for (int v = 0; v < p->block->value_count; v++) {
        const tsr_value *value = &p->block->value[v];
        if (value->slot != TSR_NONE && !value->of_layer)
            there[v] = begun & p->wanted_slots & 1u << value->slot;
    }
}

/* What a node's backward has to do, where `there` says which values have a gradient by now. */
static tsr_step backward_step(const tsr_layer_program *p, int index,
                              const bool there[TSR_BLOCK_VALUES],
                              const bool wanted[TSR_BLOCK_VALUES])
{
    const tsr_node *node = &p->block->node[index];
    tsr_step step = {.node = (int16_t)index};
    bool any = false;
    for (int i = 0; i < TSR_NODE_PORTS; i++) {
        any |= node->in[i] != TSR_NONE && wanted[node->in[i]];
        if (node->out[i] != TSR_NONE && there[node->out[i]])
            step.outputs |= (uint8_t)(1u << i);
    }
    for (int i = 0; i < TSR_NODE_PORTS && any; i++) {
        if (node->in[i] == TSR_NONE || p->block->value[node->in[i]].index)
            continue;
        step.inputs |= (uint8_t)(1u << i);
        step.adds |= (uint8_t)(there[node->in[i]] << i);
    }
    return step;
}

static bool is_worth_it(const tsr_layer_program *p, const tsr_step *step)
{
    const tsr_node *node = node_of(p, step);
    bool trains = false;
    for (int i = 0; i < TSR_NODE_PORTS; i++)
        trains |= step->outputs & 1u << i && has_adapter(p, node, i);
    return step->outputs && (step->inputs || trains);
}

static void find_backward(tsr_layer_program *p, const tsr_layer_program_options *options)
{
    bool wanted[TSR_BLOCK_VALUES] = {0}, there[TSR_BLOCK_VALUES] = {0};
    find_wanted(wanted, p, options->below);
    find_begun(there, p, options->begun_slots);
    there[p->block->out.x] = true;
    if (p->block->out.pending != TSR_NONE)
        there[p->block->out.pending] = true;
    for (int i = p->block->node_count - 1; i >= 0; i--) {
        tsr_step step = backward_step(p, i, there, wanted);
        if (!is_worth_it(p, &step))
            continue;
        for (int port = 0; port < TSR_NODE_PORTS; port++)
            if (step.inputs & 1u << port)
                there[p->block->node[i].in[port]] = true;
        p->backward.step[p->backward.count++] = step;
    }
}

/* ---- what is kept, and what is made again ---- */

static void find_needed(tsr_layer_program *p)
{
    for (int i = 0; i < p->backward.count; i++) {
        tsr_needs needs;
        tsr_needs_of(&needs, p->block, p->traits, &p->backward.step[i]);
        for (int j = 0; j < needs.read_count; j++)
            p->needed[needs.read[j]] = true;
    }
}

/* What a node has to make of what is used and not kept; what it reads is used then too. */
static tsr_step remade_step(const tsr_layer_program *p, int index, bool used[TSR_BLOCK_VALUES])
{
    const tsr_node *node = &p->block->node[index];
    tsr_step step = {.node = (int16_t)index};
    for (int i = 0; i < TSR_NODE_PORTS; i++) {
        int16_t out = node->out[i], inner = TSR_NONE;
        if (node->kind == &tsr_node_linear && node->weight[i] != TSR_NONE)
            inner = p->block->matrix[node->weight[i]].inner;
        bool made = out != TSR_NONE && used[out] && !p->kept[out];
        if (made || (inner != TSR_NONE && used[inner] && !p->kept[inner]))
            step.outputs |= (uint8_t)(1u << i);
    }
    if (!step.outputs)
        return step;
    step.has_sum = node->kind == &tsr_node_norm && p->kept[node->out[TSR_NORM_SUM]];
    if (step.has_sum)
        used[node->out[TSR_NORM_SUM]] = true;
    for (int i = 0; i < TSR_NODE_PORTS && !step.has_sum; i++)
        if (node->in[i] != TSR_NONE)
            used[node->in[i]] = true;
    if (node->kind != &tsr_node_linear) /* one makes the others; but a sum that is there */
        step.outputs = (uint8_t)(outputs_of(node) & ~(step.has_sum << TSR_NORM_SUM));
    return step;
}

/* The nodes that make what is needed from what is kept, in the order of the forward; used: all that is read. */
static void find_remade(tsr_layer_program *p, bool used[TSR_BLOCK_VALUES])
{
    tsr_step step[TSR_BLOCK_NODES];
    int count = 0;
    for (int i = p->block->node_count - 1; i >= 0; i--) {
        step[count] = remade_step(p, i, used);
        count += step[count].outputs != 0;
    }
    p->remade.count = count;
    for (int i = 0; i < count; i++)
        p->remade.step[i] = step[count - 1 - i];
}

/* Of what may be kept all that is of use: what the backward reads, and what that is made again from. What is shared
 * lies where all layers find it. */
static void find_kept_and_remade(tsr_layer_program *p)
{
    bool used[TSR_BLOCK_VALUES];
    for (int v = 0; v < p->block->value_count; v++) {
        const tsr_value *value = &p->block->value[v];
        bool made = value->node != TSR_NONE && tsr_keep_has(&p->keep, v);
        p->kept[v] = made || v == p->block->root || value->slot != TSR_NONE;
    }
    memcpy(used, p->needed, sizeof used);
    find_remade(p, used);
    for (int v = 0; v < p->block->value_count; v++) {
        bool shared = p->block->value[v].slot != TSR_NONE;
        p->kept[v] &= used[v] || v == p->block->root || shared;
    }
}

/* ---- e4m3 on the way ---- */

/* Whoever makes the input of a linear that runs next puts it into e4m3 for it; for the others that read it after
 * that it is there. */
static void find_rows(const tsr_layer_program *p, tsr_steps *steps)
{
    for (int i = 0; i < steps->count; i++) {
        const tsr_node *node = node_of(p, &steps->step[i]);
        tsr_step *before = i > 0 ? &steps->step[i - 1] : NULL;
        before = before && tsr_program_together(p, before, &steps->step[i]) ? before : NULL;
        const tsr_node *maker = before ? node_of(p, before) : NULL;
        if (node->kind != &tsr_node_linear)
            continue;
        bool made =
            maker && maker->kind->rows != TSR_NONE && maker->out[maker->kind->rows] == node->in[0];
        bool there = maker && maker->kind == &tsr_node_linear && maker->in[0] == node->in[0];
        if (made)
            before->makes_rows = true;
        steps->step[i].needs_rows = !made && !there;
    }
}

/* The results of the linear that runs next, whose gradients this node makes as they are multiplied. */
static bool makes_gradients_of(const tsr_layer_program *p, const tsr_node *node,
                               const tsr_node *linear)
{
    bool residual = node->kind == &tsr_node_norm;
    if (linear->kind != &tsr_node_linear || node->kind->rows == TSR_NONE ||
        (residual && node->weight[0] == TSR_NONE))
        return false;
    if (residual)
        return linear->out[1] == TSR_NONE && node->in[TSR_NORM_PENDING] == linear->out[0] &&
               !tsr_matrix_scales_back(p->block, p->traits, linear->weight[0]);
    for (int i = 0; i < TSR_NODE_PORTS; i++)
        if (node->in[i] != linear->out[i])
            return false;
    return node->in[1] != TSR_NONE; /* halves of one result are not rows */
}

static void find_gradient_rows(const tsr_layer_program *p, tsr_steps *steps)
{
    for (int i = 0; i + 1 < steps->count; i++)
        steps->step[i].makes_rows =
            tsr_program_together(p, &steps->step[i], &steps->step[i + 1]) &&
            makes_gradients_of(p, node_of(p, &steps->step[i]), node_of(p, &steps->step[i + 1]));
}

void tsr_layer_program_make(tsr_layer_program *out, const tsr_layer_program_options *options)
{
    tsr_layer_program *p = out;
    memset(p, 0, sizeof *p);
    p->block = options->block;
    p->trains = options->trains;
    p->keep = options->keep;
    tsr_program_find_tiled(p, options);
    memcpy(p->traits, options->traits, (size_t)p->block->matrix_count * sizeof *p->traits);
    if (p->block->stack_count)
        memcpy(p->traits + tsr_stack_weight(0), options->traits + tsr_stack_weight(0),
               (size_t)p->block->stack_count * sizeof *p->traits);
    run_all(p);
    if (options->trains) {
        p->wanted_slots = options->wanted_slots;
        find_backward(p, options);
        find_needed(p);
        find_kept_and_remade(p);
    }
    if (options->fp8) {
        find_rows(p, &p->forward);
        find_rows(p, &p->remade);
        find_gradient_rows(p, &p->backward);
    }
}
