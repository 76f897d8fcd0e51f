/*
 * program_place.c: where the values and gradients of a layer lie, by how long they are read.
 *
 * Time is the index of a step: of the forward on its own; of what is made again and the backward together. A
 * thing that takes memory is an item: what lies in the same place is one item, for as long as any of it is read.
 * Items that do not overlap in time may overlap in memory: the largest first, each as low as it can lie.
 *
 * Where steps go through tiles together, what is there for all rows lasts for all of them, however early one of them
 * reads it last: the next tile's come after.
 */
#include "base/checked.h"
#include "model/node_parts.h"
#include "model/program_parts.h"

#include <stdlib.h>
#include <string.h>

#define MOST_ITEMS (2 * TSR_BLOCK_VALUES + 4 * TSR_BLOCK_NODES)

typedef struct {
    uint64_t bytes, offset;
    int begin, end; /* steps, both included */
    int16_t group;  /* it has the rows of one of that group's tiles; TSR_NO_GROUP: all */
} item;

/* The items of one pass. */
typedef struct {
    item item[MOST_ITEMS];
    int count;
    tsr_tile_groups groups;
    int16_t place[TSR_BLOCK_VALUES]; /* the group of all values that share the place of one */
} plan;

typedef struct {
    tsr_layer_program *program;
    const tsr_layer_program_sizes *sizes;
    int16_t same[TSR_BLOCK_VALUES]; /* the value in whose place this one is made, or itself */
    bool taken[TSR_BLOCK_VALUES];   /* a gradient lies in its place */
    plan forward, backward;
    /* Items; -1: none. */
    int value_forward[TSR_BLOCK_VALUES], value_backward[TSR_BLOCK_VALUES],
        gradient[TSR_BLOCK_VALUES];
    int workspace[TSR_PASSES][TSR_BLOCK_NODES], codes[TSR_BLOCK_NODES], sums[TSR_BLOCK_NODES];
} placing;

static const tsr_node *node_of(const placing *p, const tsr_step *step)
{
    return &p->program->block->node[step->node];
}

uint64_t tsr_value_width(const tsr_layer_program *program, int value)
{
    const tsr_value *v = &program->block->value[value];
    if (v->stack != TSR_NONE)
        return program->traits[tsr_stack_weight(v->stack)].low;
    if (v->matrix == TSR_NONE)
        return v->width;
    const tsr_matrix *m = &program->block->matrix[v->matrix];
    const tsr_matrix_traits *traits = &program->traits[v->matrix];
    if (value == m->low)
        return traits->low;
    return value == m->inner && !traits->composes ? 0 : m->out;
}

static uint64_t rows_bytes(uint64_t width, int64_t tokens, uint64_t element)
{
    return tsr_align_up(width * (uint64_t)tokens * element, TSR_ALIGNMENT);
}

uint64_t tsr_value_bytes(const tsr_layer_program *program, int value, int64_t tokens,
                         tsr_dtype dtype)
{
    const tsr_value *v = &program->block->value[value];
    uint64_t element = v->statistic ? sizeof(float) : tsr_dtype_bytes(dtype);
    uint64_t tiles = 1; /* of which each has what is fixed beside its own rows */
    if (program->tile_rows)
        tiles = tsr_ceil_div((uint64_t)tokens, (uint64_t)program->tile_rows);
    uint64_t count = tsr_value_width(program, value) * (uint64_t)tokens + tiles * v->fixed;
    return tsr_align_up(count * element, TSR_ALIGNMENT);
}

/* Rows of an item of a group. */
static int64_t rows_of(const placing *p, int16_t group)
{
    return group < 0 ? tsr_attention_own_tokens(&p->sizes->attention) : p->program->tile_rows;
}

static uint64_t bytes_of(const placing *p, int value)
{
    return tsr_value_bytes(p->program, value, rows_of(p, TSR_NO_GROUP), p->sizes->dtype);
}

/* Whether one may lie in the other's place, row by row. */
static bool same_bytes(const placing *p, int a, int b)
{
    const tsr_value *x = &p->program->block->value[a], *y = &p->program->block->value[b];
    bool rows = x->statistic == y->statistic &&
                tsr_value_width(p->program, a) == tsr_value_width(p->program, b);
    return bytes_of(p, a) == bytes_of(p, b) && (rows || !p->program->tile_rows);
}

static int add_item(plan *to, uint64_t bytes, int begin, int end, int16_t group)
{
    to->item[to->count] = (item){.bytes = bytes, .begin = begin, .end = end, .group = group};
    return to->count++;
}

/* An item with the rows of a value. */
static int add_rows(placing *p, plan *to, int value, int begin, int end, int16_t group)
{
    uint64_t bytes = tsr_value_bytes(p->program, value, rows_of(p, group), p->sizes->dtype);
    return add_item(to, bytes, begin, end, group);
}

static void extend(plan *of, int index, int begin, int end)
{
    item *i = &of->item[index];
    i->begin = begin < i->begin ? begin : i->begin;
    i->end = end > i->end ? end : i->end;
}

/* ---- which values share a place ---- */

static bool is_shared(const placing *p, int value)
{
    return p->program->block->value[value].slot != TSR_NONE;
}

static int16_t same_of(const placing *p, int16_t value)
{
    while (p->same[value] != value)
        value = p->same[value];
    return value;
}

/* The last step of a pass that reads a value; -1: none. */
static int last_reader(const placing *p, const tsr_steps *steps, int value)
{
    for (int i = steps->count - 1; i >= 0; i--)
        for (int port = 0; port < TSR_NODE_PORTS; port++)
            if (node_of(p, &steps->step[i])->in[port] == value)
                return i;
    return -1;
}

/* Whether nobody but this step reads it from here on: it is not needed, and does not leave the block. What enters
 * may still be kept by the layer before, unless nothing is. */
static bool is_free_after(const placing *p, int16_t value, int step)
{
    const tsr_block *b = p->program->block;
    bool entered = value == b->in.pending || (value == b->in.x && p->program->trains);
    return !entered && !p->program->needed[value] && !p->program->kept[value] &&
           value != b->out.x && value != b->out.pending &&
           last_reader(p, &p->program->forward, value) == step;
}

static void find_same(placing *p)
{
    for (int16_t v = 0; v < p->program->block->value_count; v++)
        p->same[v] = v;
    for (int i = 0; i < p->program->forward.count; i++) {
        const tsr_node *node = node_of(p, &p->program->forward.step[i]);
        tsr_needs needs = {0};
        node->kind->needs(&needs, p->program->block, node, p->program->traits);
        for (int j = 0; j < needs.over_count; j++) {
            int16_t out = needs.over[j].output, in = needs.over[j].input;
            if (!is_shared(p, in) && !is_shared(p, out) && is_free_after(p, in, i) &&
                same_bytes(p, in, out))
                p->same[out] = same_of(p, in);
        }
    }
}

/* What shares a place is there for a tile only if all of it is, but what is kept, which lies elsewhere in a backward. */
static void find_groups(placing *p, plan *of, bool backward)
{
    tsr_program_find_groups(&of->groups, p->program, backward);
    for (int v = 0; v < p->program->block->value_count; v++)
        of->place[v] = TSR_UNSEEN_GROUP;
    for (int16_t v = 0; v < p->program->block->value_count; v++)
        if (!backward || !p->program->kept[v])
            tsr_tile_group_join(&of->place[same_of(p, v)], of->groups.value[v]);
}

/* The value of a set of such that shares the place of this one; TSR_NONE: none does. */
static int16_t find_kept(const placing *p, int16_t value)
{
    for (int16_t v = 0; v < p->program->block->value_count; v++)
        if (p->program->kept[v] && same_of(p, v) == same_of(p, value))
            return v;
    return TSR_NONE;
}

/* Where a value lies outside of the scratch in the forward: of the layer's own, or between layers. */
static tsr_place_kind outside(const placing *p, int16_t value)
{
    const tsr_block *b = p->program->block;
    int16_t place = same_of(p, value);
    if (is_shared(p, value))
        return TSR_PLACE_SHARED;
    if (find_kept(p, value) != TSR_NONE)
        return TSR_PLACE_KEPT;
    if (place == same_of(p, b->in.x) || place == same_of(p, b->out.x))
        return TSR_PLACE_CARRIED_X;
    bool pends = b->out.pending != TSR_NONE && place == same_of(p, b->out.pending);
    return pends ? TSR_PLACE_CARRIED_Z : TSR_PLACE_NOWHERE;
}

/* ---- how long ---- */

static bool is_low(const placing *p, int value)
{
    int matrix = p->program->block->value[value].matrix;
    if (p->program->block->value[value].stack != TSR_NONE)
        return true;
    return matrix != TSR_NONE && p->program->block->matrix[matrix].low == value;
}

static int16_t low_of_experts(const placing *p, const tsr_node *node)
{
    bool experts = node->kind == &tsr_node_experts || node->kind == &tsr_node_combine;
    return experts ? p->program->block->stack[node->weight[0]].low : TSR_NONE;
}

/* What a step makes: its outputs, and of linears and experts what goes with them. */
static int list_made(int16_t out[3 * TSR_NODE_PORTS], const placing *p, const tsr_step *step)
{
    const tsr_node *node = node_of(p, step);
    int count = 0;
    for (int i = 0; i < TSR_NODE_PORTS; i++) {
        if (!(step->outputs & 1u << i))
            continue;
        out[count++] = node->out[i];
        int16_t low = low_of_experts(p, node);
        if (low != TSR_NONE && tsr_value_width(p->program, low))
            out[count++] = low;
        if (node->kind != &tsr_node_linear)
            continue;
        const tsr_matrix *m = &p->program->block->matrix[node->weight[i]];
        if (tsr_value_width(p->program, m->inner))
            out[count++] = m->inner;
        if (tsr_value_width(p->program, m->low))
            out[count++] = m->low;
    }
    return count;
}

static bool backward_reads(const placing *p, const tsr_step *step, int value)
{
    tsr_needs needs;
    tsr_needs_of(&needs, p->program->block, p->program->traits, step);
    for (int i = 0; i < needs.read_count; i++)
        if (needs.read[i] == value)
            return true;
    return false;
}

/* The last moment of the backward that reads a value; -1: none. */
static int last_in_backward(const placing *p, int value)
{
    const tsr_layer_program *program = p->program;
    for (int i = program->backward.count - 1; i >= 0; i--)
        if (backward_reads(p, &program->backward.step[i], value))
            return program->remade.count + i;
    return last_reader(p, &program->remade, value);
}

/* Values that a pass makes, as items from their making to their last reading. */
static void add_values(placing *p, plan *to, int item_of[TSR_BLOCK_VALUES], const tsr_steps *steps,
                       bool forward)
{
    for (int i = 0; i < steps->count; i++) {
        int16_t made[3 * TSR_NODE_PORTS];
        int count = list_made(made, p, &steps->step[i]);
        for (int j = 0; j < count; j++) {
            int16_t v = made[j], first = same_of(p, v);
            tsr_place_kind where = outside(p, v);
            int last = forward ? last_reader(p, steps, v) : last_in_backward(p, v);
            /* What is made again must leave a kept value alone that was made in its place. */
            bool kept = where == TSR_PLACE_KEPT && (forward || p->program->kept[v]);
            if (kept || where == TSR_PLACE_SHARED || (forward && where != TSR_PLACE_NOWHERE) ||
                (is_low(p, v) && last < 0))
                continue;
            last = last < i ? i : last;
            if (item_of[first] < 0)
                item_of[first] = add_rows(p, to, v, i, last, to->place[first]);
            extend(to, item_of[first], i, last);
            item_of[v] = item_of[first];
        }
    }
}

static void add_workspaces(placing *p, plan *to, const tsr_steps *steps, int from,
                           int item_of[TSR_BLOCK_NODES])
{
    for (int i = 0; i < steps->count; i++) {
        int at = steps->step[i].node;
        if (p->program->workspace_bytes[at])
            item_of[at] =
                add_item(to, p->program->workspace_bytes[at], from + i, from + i, TSR_NO_GROUP);
    }
}

/* ---- gradients ---- */

/* Where a value lies in the backward; its item, if that is in the scratch. */
static tsr_value_place place_in_backward(const placing *p, int16_t value, int *index)
{
    int16_t kept = find_kept(p, value);
    *index = p->value_backward[value];
    if (kept != TSR_NONE && *index < 0)
        return p->program->in_forward[kept];
    return (tsr_value_place){.kind = *index < 0 ? TSR_PLACE_NOWHERE : TSR_PLACE_SCRATCH};
}

/* Whether nobody reads what lies in the place of a value after `now`, and no gradient took it before. */
static bool is_free_at(const placing *p, int16_t value, int now)
{
    const tsr_block *b = p->program->block;
    for (int16_t v = 0; v < b->value_count; v++)
        if (same_of(p, v) == same_of(p, value) && (last_in_backward(p, v) > now || p->taken[v]))
            return false;
    return true;
}

/* Whether what an item has is enough for the gradient of a value. */
static bool is_enough(const placing *p, int index, int16_t value)
{
    int16_t group = index < 0 ? TSR_NO_GROUP : p->backward.item[index].group;
    return group == TSR_NO_GROUP || group == p->backward.groups.gradient[value];
}

static bool share(placing *p, int16_t input, int16_t with, bool gradient, int now)
{
    tsr_layer_program *program = p->program;
    int index = gradient ? p->gradient[with] : p->value_backward[with];
    if (!same_bytes(p, with, input) || !is_enough(p, index, input))
        return false;
    if (gradient) {
        program->gradient[input] = program->gradient[with];
        p->gradient[input] = p->gradient[with];
    } else {
        tsr_value_place place = place_in_backward(p, with, &index);
        if (place.kind == TSR_PLACE_NOWHERE || !is_free_at(p, with, now))
            return false;
        program->gradient[input] = place;
        p->gradient[input] = index;
        p->taken[with] = true;
    }
    if (p->gradient[input] >= 0)
        extend(&p->backward, p->gradient[input], now, now);
    return program->gradient[input].kind != TSR_PLACE_NOWHERE;
}

/* Whether a layer below, or this one, wants the gradient of what is shared. */
static bool is_wanted_shared(const placing *p, int value)
{
    return is_shared(p, value) &&
           p->program->wanted_slots >> p->program->block->value[value].slot & 1;
}

static tsr_value_place shared_place(const placing *p, int value, tsr_place_kind kind)
{
    return (tsr_value_place){.at = (uint64_t)p->program->block->value[value].slot, .kind = kind};
}

/* A place for the gradient of an input that this step writes first. */
static void place_gradient(placing *p, const tsr_node *node, int16_t input, int now)
{
    tsr_needs needs = {0};
    if (is_wanted_shared(p, input)) {
        p->program->gradient[input] = shared_place(p, input, TSR_PLACE_SHARED_GRADIENT);
        return;
    }
    node->kind->needs(&needs, p->program->block, node, p->program->traits);
    for (int i = 0; i < needs.share_count; i++)
        if (needs.share[i].input == input &&
            share(p, input, needs.share[i].with, needs.share[i].gradient, now))
            return;
    int16_t group = p->backward.groups.gradient[input];
    p->gradient[input] = add_rows(p, &p->backward, input, now, now, group);
    p->program->gradient[input] = (tsr_value_place){.kind = TSR_PLACE_SCRATCH};
}

/* Gradients in e4m3, from the step that makes them to the next, which multiplies by them: where what the node made
 * lies, if that is as large and nobody reads it any more. */
static void place_codes(placing *p, const tsr_node *node, int now)
{
    int index, at = (int)(node - p->program->block->node);
    int16_t group = p->backward.groups.of_step[now];
    int64_t rows = rows_of(p, group);
    uint64_t bytes = 0;
    for (int i = 0; i < TSR_NODE_PORTS; i++)
        if (node->in[i] != TSR_NONE)
            bytes += rows_bytes(p->program->block->value[node->in[i]].width, rows, 1);
    tsr_value_place made = place_in_backward(p, node->out[0], &index);
    bool same_rows = group == (index < 0 ? TSR_NO_GROUP : p->backward.item[index].group);
    if (made.kind != TSR_PLACE_NOWHERE && same_rows &&
        tsr_value_bytes(p->program, node->out[0], rows, p->sizes->dtype) >= bytes &&
        is_free_at(p, node->out[0], now)) {
        p->program->codes[at] = made;
        p->codes[at] = index;
    } else {
        p->program->codes[at] = (tsr_value_place){.kind = TSR_PLACE_SCRATCH};
        p->codes[at] = add_item(&p->backward, bytes, now, now + 1, group);
    }
    if (p->codes[at] >= 0)
        extend(&p->backward, p->codes[at], now, now + 1);
}

/* dz of the linears that scale their gradient themselves, at the moment that they do. */
static void place_scaled(placing *p, const tsr_node *node, const tsr_step *step, int now)
{
    const tsr_block *b = p->program->block;
    for (int i = 0; i < TSR_NODE_PORTS && node->kind == &tsr_node_linear; i++) {
        if (!(step->outputs & 1u << i) ||
            !tsr_matrix_scales_back(b, p->program->traits, node->weight[i]))
            continue;
        const tsr_matrix *m = &b->matrix[node->weight[i]];
        int16_t group = p->backward.groups.of_step[now];
        p->gradient[m->inner] = add_rows(p, &p->backward, m->result, now, now, group);
        p->program->gradient[m->inner] = (tsr_value_place){.kind = TSR_PLACE_SCRATCH};
    }
}

/* Gradients of adapters, of a tile or of what has all rows, until they are added to the sums. */
static void place_sums(placing *p, const tsr_step *step, int now)
{
    tsr_step_gradient written[TSR_STEP_GRADIENTS];
    int count = tsr_step_gradients(written, p->program, step);
    uint64_t bytes = 0;
    int16_t group = p->backward.groups.of_step[now];
    for (int i = 0; i < count; i++)
        bytes += tsr_step_gradient_bytes(&written[i]);
    if (bytes && p->program->tile_rows)
        p->sums[step->node] = add_item(&p->backward, bytes, now, now, group);
}

static tsr_status place_gradients(placing *p)
{
    tsr_layer_program *program = p->program;
    const tsr_block *b = program->block;
    program->gradient[b->out.x] = (tsr_value_place){.kind = TSR_PLACE_DX};
    if (b->out.pending != TSR_NONE)
        program->gradient[b->out.pending] = program->gradient[b->out.x];
    for (int v = 0; v < b->value_count; v++)
        if (is_wanted_shared(p, v))
            program->gradient[v] = shared_place(p, v, TSR_PLACE_SHARED_GRADIENT);
    for (int i = 0; i < program->backward.count; i++) {
        const tsr_step *step = &program->backward.step[i];
        const tsr_node *node = node_of(p, step);
        int now = program->remade.count + i;
        for (int port = 0; port < TSR_NODE_PORTS; port++)
            if (step->outputs & 1u << port && p->gradient[node->out[port]] >= 0)
                extend(&p->backward, p->gradient[node->out[port]], now, now);
        for (int port = 0; port < TSR_NODE_PORTS; port++) {
            if (!(step->inputs & 1u << port))
                continue;
            bool adds = step->adds & 1u << port;
            if (!adds)
                place_gradient(p, node, node->in[port], now);
            else if (node->kind != &tsr_node_linear && !(node->kind->adds & 1u << port))
                return tsr_fail(TSR_EINTERNAL, "the gradient of a %s is added to another's",
                                node->kind->name);
            else if (p->gradient[node->in[port]] >= 0)
                extend(&p->backward, p->gradient[node->in[port]], now, now);
        }
        place_scaled(p, node, step, now);
        place_sums(p, step, now);
        if (step->makes_rows && node->kind->scales)
            place_codes(p, node, now);
    }
    return TSR_OK;
}

/* ---- packing ---- */

static int by_bytes(const void *a, const void *b)
{
    const item *x = *(item *const *)a, *y = *(item *const *)b;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? 1 : -1;
    return x < y ? -1 : 1;
}

/* Those that are there for all rows last for whole groups. */
static void widen_to_groups(plan *of)
{
    const tsr_tile_groups *g = &of->groups;
    for (int i = 0; i < of->count; i++) {
        item *it = &of->item[i];
        int16_t first = g->of_step[it->begin], last = g->of_step[it->end];
        if (it->group == TSR_NO_GROUP && first != TSR_NO_GROUP)
            it->begin = g->group[first].first;
        if (it->group == TSR_NO_GROUP && last != TSR_NO_GROUP)
            it->end = g->group[last].end - 1;
    }
}

static bool meet(const item *a, const item *b)
{
    return a->begin <= b->end && b->begin <= a->end;
}

/* The lowest offset at which an item overlaps none of those that were placed. */
static uint64_t lowest(const item *it, item *const *placed, int count)
{
    uint64_t offset = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int i = 0; i < count; i++) {
            const item *other = placed[i];
            if (meet(it, other) && offset < other->offset + other->bytes &&
                other->offset < offset + it->bytes) {
                offset = other->offset + other->bytes;
                moved = true;
            }
        }
    }
    return offset;
}

/* Returns the bytes that all take. */
static uint64_t pack(plan *of)
{
    item *order[MOST_ITEMS];
    uint64_t bytes = 0;
    widen_to_groups(of);
    for (int i = 0; i < of->count; i++)
        order[i] = &of->item[i];
    qsort(order, (size_t)of->count, sizeof *order, by_bytes);
    for (int i = 0; i < of->count; i++) {
        order[i]->offset = lowest(order[i], order, i);
        uint64_t end = order[i]->offset + order[i]->bytes;
        bytes = end > bytes ? end : bytes;
    }
    return bytes;
}

/* ---- all of it ---- */

/* The buffers that the layer keeps, one for the values that share a place. */
static void number_kept(placing *p)
{
    tsr_layer_program *program = p->program;
    for (int16_t v = 0; v < program->block->value_count; v++)
        if (program->kept[v] && !is_shared(p, v) && find_kept(p, v) == v)
            program->kept_buffer[program->kept_count++] = v;
    for (int16_t v = 0; v < program->block->value_count; v++) {
        int16_t kept = is_shared(p, v) ? TSR_NONE : find_kept(p, v);
        if (is_shared(p, v))
            program->in_forward[v] = shared_place(p, v, TSR_PLACE_SHARED);
        for (int i = 0; kept != TSR_NONE && i < program->kept_count; i++)
            if (program->kept_buffer[i] == kept)
                program->in_forward[v] =
                    (tsr_value_place){.at = (uint64_t)i, .kind = TSR_PLACE_KEPT};
    }
}

static tsr_value_place settled(const plan *of, int index, tsr_value_place place)
{
    if (index >= 0)
        return (tsr_value_place){of->item[index].offset, TSR_PLACE_SCRATCH,
                                 of->item[index].group != TSR_NO_GROUP};
    return place;
}

static void settle(placing *p)
{
    tsr_layer_program *program = p->program;
    for (int16_t v = 0; v < program->block->value_count; v++) {
        tsr_place_kind where = outside(p, v);
        bool stays = where == TSR_PLACE_KEPT || where == TSR_PLACE_SHARED;
        program->in_backward[v] =
            stays ? program->in_forward[v] : (tsr_value_place){.kind = TSR_PLACE_NOWHERE};
        program->in_backward[v] =
            settled(&p->backward, p->value_backward[v], program->in_backward[v]);
        if (!stays)
            program->in_forward[v] =
                settled(&p->forward, p->value_forward[v], (tsr_value_place){.kind = where});
        program->gradient[v] = settled(&p->backward, p->gradient[v], program->gradient[v]);
    }
    for (int i = 0; i < program->block->node_count; i++) {
        for (int pass = 0; pass < TSR_PASSES; pass++)
            program->workspace[pass][i] =
                settled(pass == TSR_PASS_FORWARD ? &p->forward : &p->backward,
                        p->workspace[pass][i], (tsr_value_place){.kind = TSR_PLACE_NOWHERE});
        program->codes[i] = settled(&p->backward, p->codes[i], program->codes[i]);
        program->sums[i] =
            settled(&p->backward, p->sums[i], (tsr_value_place){.kind = TSR_PLACE_NOWHERE});
    }
}

/* Whether a backward step changes the gradient of the residual stream, in place. */
static bool changes_dx(const tsr_layer_program *p, const tsr_step *step)
{
    const tsr_node *node = &p->block->node[step->node];
    if (node->kind == &tsr_node_norm)
        return node->in[TSR_NORM_X] != TSR_NONE && step->outputs & 1u << TSR_NORM_H;
    return step->inputs & 1 && p->gradient[node->in[0]].kind == TSR_PLACE_DX;
}

/* What is added to the residual stream has its gradient, until the node that made it has read that. */
static tsr_status check(const tsr_layer_program *p)
{
    const tsr_block *b = p->block;
    bool lent[TSR_BLOCK_VALUES] = {0};
    if (b->out.pending != TSR_NONE)
        lent[b->out.pending] = true;
    for (int i = 0; i < p->backward.count; i++) {
        const tsr_step *step = &p->backward.step[i];
        const tsr_node *node = &b->node[step->node];
        for (int port = 0; port < TSR_NODE_PORTS; port++)
            if (step->outputs & 1u << port)
                lent[node->out[port]] = false;
        for (int v = 0; v < b->value_count; v++)
            if (lent[v] && changes_dx(p, step))
                return tsr_fail(TSR_EINTERNAL,
                                "%s is added to the residual stream after its "
                                "gradient was changed",
                                b->value[v].name);
        if (node->kind == &tsr_node_norm && node->in[TSR_NORM_X] != TSR_NONE &&
            node->in[TSR_NORM_PENDING] != TSR_NONE)
            lent[node->in[TSR_NORM_PENDING]] = node->in[TSR_NORM_PENDING] != b->in.pending;
    }
    return TSR_OK;
}

static void place_all(placing *p)
{
    tsr_layer_program *program = p->program;
    for (int i = 0; i < program->block->node_count; i++) {
        const tsr_node *node = &program->block->node[i];
        tsr_attention_bounds bounds = p->sizes->attention;
        if (program->tiled[i])
            bounds.own_tokens = program->tile_rows;
        if (node->kind->workspace) /* what lies behind it begins on a boundary too */
            program->workspace_bytes[i] = tsr_align_up(
                node->kind->workspace(node, program->traits, p->sizes->kernels, bounds),
                TSR_ALIGNMENT);
    }
    add_values(p, &p->forward, p->value_forward, &program->forward, true);
    add_values(p, &p->backward, p->value_backward, &program->remade, false);
    add_workspaces(p, &p->forward, &program->forward, 0, p->workspace[TSR_PASS_FORWARD]);
    add_workspaces(p, &p->backward, &program->remade, 0, p->workspace[TSR_PASS_REMADE]);
    add_workspaces(p, &p->backward, &program->backward, program->remade.count,
                   p->workspace[TSR_PASS_BACKWARD]);
}

tsr_status tsr_layer_program_place(tsr_layer_program *program, const tsr_layer_program_sizes *sizes)
{
    placing *p = malloc(sizeof *p);
    if (!p)
        return tsr_fail(TSR_ENOMEM, "out of memory for the plan of a layer");
    memset(p, 0xff, sizeof *p); /* no items */
    p->program = program;
    p->sizes = sizes;
    p->forward.count = p->backward.count = 0;
    memset(p->taken, 0, sizeof p->taken);
    find_same(p);
    find_groups(p, &p->forward, false);
    find_groups(p, &p->backward, true);
    number_kept(p);
    place_all(p);
    tsr_status status = place_gradients(p);
    if (status == TSR_OK) {
        uint64_t forward = pack(&p->forward), backward = pack(&p->backward);
        program->scratch_bytes = forward > backward ? forward : backward;
        settle(p);
        status = check(program);
    }
    free(p);
    return status;
}
