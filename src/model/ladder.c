#include "model/ladder.h"

#include "model/work_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What can be made again by itself: a node; of linears one of them; of a norm its sum apart from the rest, for which
 * it is enough to read the sum; and x A^T of a linear, or of experts, that do not run. */
enum {
    MOST_UNITS = 2 * TSR_BLOCK_NODES + 2 * TSR_BLOCK_MATRICES + TSR_BLOCK_STACKS,
    SOURCE = 0, /* what runs again is on this side */
    SINK,
    UNITS,
    VALUES = UNITS + MOST_UNITS, /* read by whoever runs */
    POINTS = VALUES + TSR_BLOCK_VALUES,
    MOST_EDGES = 2 * (MOST_UNITS * (TSR_NODE_PORTS + 3) + 2 * TSR_BLOCK_VALUES)
};

#define NEVER     1e30 /* seconds */
#define ANY_PRICE 1e9  /* of a byte, in seconds: whatever it takes */
#define EXACTNESS 1e-9 /* of sums of seconds */

typedef struct {
    int16_t to, next;
    double bytes, seconds; /* its capacity: bytes times their price, and seconds */
    double left;
} edge;

typedef struct {
    const tsr_work_layer *layer;
    const tsr_work_rates *rates;
    double seconds;                  /* of the node whose cost is asked for */
    int16_t maker[TSR_BLOCK_VALUES]; /* the unit; TSR_NONE: it is there */
    int16_t first[POINTS], via[POINTS];
    edge edge[MOST_EDGES]; /* in pairs, there and back */
    int edge_count, unit_count;
} network;

/* ---- units and what they read ---- */

static void connect(network *n, int from, int to, double bytes, double seconds)
{
    const edge pair[2] = {{(int16_t)to, n->first[from], bytes, seconds, 0},
                          {(int16_t)from, n->first[to], 0, 0, 0}};
    for (int i = 0; i < 2; i++)
        n->edge[n->edge_count + i] = pair[i];
    n->first[from] = (int16_t)n->edge_count;
    n->first[to] = (int16_t)(n->edge_count + 1);
    n->edge_count += 2;
}

static int add_unit(network *n, double seconds)
{
    int unit = UNITS + n->unit_count++;
    connect(n, unit, SINK, 0, seconds);
    return unit;
}

static void add_seconds(void *user, const tsr_work_op *op)
{
    network *n = user;
    n->seconds += tsr_work_seconds(n->rates, op);
}

static tsr_costing costing_of(network *n)
{
    n->seconds = 0;
    return (tsr_costing){.layer = n->layer, .call = add_seconds, .user = n, .again = true};
}

static double seconds_of(network *n, int node, int outputs, bool has_sum)
{
    const tsr_costing c = costing_of(n);
    const tsr_step step = {.node = (int16_t)node, .outputs = (uint8_t)outputs, .has_sum = has_sum};
    tsr_cost_step(&c, &step, TSR_PASS_REMADE);
    return n->seconds;
}

/* What enters the block is gone when it is made again. */
static void reads(network *n, int unit, int16_t value)
{
    const tsr_block *b = n->layer->program->block;
    if (value == b->in.x || value == b->in.pending)
        connect(n, unit, SINK, 0, NEVER);
    else if (value != TSR_NONE)
        connect(n, unit, VALUES + value, 0, NEVER);
}

static void makes(network *n, int unit, int16_t value)
{
    const tsr_block *b = n->layer->program->block;
    if (value != TSR_NONE && value != b->root && b->value[value].slot == TSR_NONE)
        n->maker[value] = (int16_t)unit;
}

static double bytes_of(const network *n, int value)
{
    bool statistic = n->layer->program->block->value[value].statistic;
    double width = (double)tsr_value_width(n->layer->program, value);
    return width * n->layer->tokens * (statistic ? sizeof(float) : n->layer->element);
}

/* x A^T, in as many seconds: the backward makes it again if the unit that makes it has not run. */
static void add_low(network *n, int unit, int16_t value, double seconds)
{
    int low = add_unit(n, 0);
    connect(n, low, unit, 0, seconds);
    connect(n, unit, low, 0, NEVER);
    makes(n, low, value);
}

static void add_linear(network *n, int index, int port)
{
    const tsr_layer_program *p = n->layer->program;
    const tsr_node *node = &p->block->node[index];
    const tsr_matrix *m = &p->block->matrix[node->weight[port]];
    int unit = add_unit(n, seconds_of(n, index, 1 << port, false));
    reads(n, unit, node->in[0]);
    makes(n, unit, m->result);
    makes(n, unit, m->inner);
    if (!p->needed[m->low])
        return;
    const tsr_costing c = costing_of(n);
    tsr_cost_low(&c, node, port);
    add_low(n, unit, m->low, n->seconds);
}

static void add_norm(network *n, int index)
{
    const tsr_node *node = &n->layer->program->block->node[index];
    bool norms = node->out[TSR_NORM_H] != TSR_NONE;
    double rest = norms ? seconds_of(n, index, 1 << TSR_NORM_H, true) : 0;
    int sum = add_unit(n, seconds_of(n, index, 1 << TSR_NORM_SUM, false) - rest);
    reads(n, sum, node->in[TSR_NORM_X]);
    reads(n, sum, node->in[TSR_NORM_PENDING]);
    makes(n, sum, node->out[TSR_NORM_SUM]);
    if (!norms)
        return;
    int normed = add_unit(n, rest);
    reads(n, normed, node->out[TSR_NORM_SUM]);
    makes(n, normed, node->out[TSR_NORM_H]);
    makes(n, normed, node->out[TSR_NORM_RSTD]);
    connect(n, sum, normed, 0, NEVER); /* who adds up norms as well */
}

static void add_node(network *n, int index)
{
    const tsr_node *node = &n->layer->program->block->node[index];
    if (node->kind == &tsr_node_norm) {
        add_norm(n, index);
        return;
    }
    if (node->kind == &tsr_node_linear) {
        for (int i = 0; i < TSR_NODE_PORTS && node->weight[i] != TSR_NONE; i++)
            add_linear(n, index, i);
        return;
    }
    int unit = add_unit(n, seconds_of(n, index, (1 << TSR_NODE_PORTS) - 1, false));
    for (int i = 0; i < TSR_NODE_PORTS; i++) {
        reads(n, unit, node->in[i]);
        makes(n, unit, node->out[i]);
    }
    if (node->kind != &tsr_node_experts && node->kind != &tsr_node_combine)
        return;
    int16_t low = n->layer->program->block->stack[node->weight[0]].low;
    if (!n->layer->program->needed[low])
        return;
    const tsr_costing c = costing_of(n);
    tsr_cost_low_of_experts(&c, node);
    add_low(n, unit, low, n->seconds);
}

static void build(network *n)
{
    const tsr_layer_program *p = n->layer->program;
    memset(n->first, 0xff, sizeof n->first);
    memset(n->maker, 0xff, sizeof n->maker);
    for (int i = 0; i < p->block->node_count; i++)
        add_node(n, i);
    for (int v = 0; v < p->block->value_count; v++) {
        if (n->maker[v] == TSR_NONE)
            continue;
        connect(n, VALUES + v, n->maker[v], bytes_of(n, v), 0);
        if (p->needed[v])
            connect(n, SOURCE, VALUES + v, 0, NEVER);
    }
}

/* ---- the cheapest set at a price ---- */

/* By the shortest path; marks what can be reached. */
static bool find_path(network *n)
{
    int16_t queue[POINTS];
    int count = 1;
    memset(n->via, 0xff, sizeof n->via);
    queue[0] = SOURCE;
    for (int i = 0; i < count; i++)
        for (int16_t e = n->first[queue[i]]; e != TSR_NONE; e = n->edge[e].next) {
            int16_t to = n->edge[e].to;
            if (to == SOURCE || n->via[to] != TSR_NONE || n->edge[e].left <= 0)
                continue;
            n->via[to] = e;
            queue[count++] = to;
        }
    return n->via[SINK] != TSR_NONE;
}

static void fill_path(network *n)
{
    double most = NEVER;
    for (int at = SINK; at != SOURCE; at = n->edge[n->via[at] ^ 1].to)
        most = fmin(most, n->edge[n->via[at]].left);
    for (int at = SINK; at != SOURCE; at = n->edge[n->via[at] ^ 1].to) {
        n->edge[n->via[at]].left -= most;
        n->edge[n->via[at] ^ 1].left += most;
    }
}

static bool runs(const network *n, int point)
{
    return n->via[point] != TSR_NONE;
}

/* What the source's side stands for. */
static tsr_rung rung_of(const network *n)
{
    tsr_rung out = {.keep = TSR_KEEP_ALL};
    for (int from = UNITS; from < POINTS; from++)
        for (int16_t e = n->first[from]; e != TSR_NONE && runs(n, from); e = n->edge[e].next) {
            if (runs(n, n->edge[e].to) || n->edge[e].to == SOURCE)
                continue;
            out.bytes += n->edge[e].bytes;
            out.seconds += n->edge[e].seconds;
        }
    for (int v = 0; v < n->layer->program->block->value_count; v++)
        if (n->maker[v] != TSR_NONE && runs(n, n->maker[v]))
            out.keep.bit[v / 64] &= ~(UINT64_C(1) << v % 64);
    return out;
}

static tsr_rung cheapest(network *n, double byte_seconds)
{
    for (int i = 0; i < n->edge_count; i++)
        n->edge[i].left = n->edge[i].bytes * byte_seconds + n->edge[i].seconds;
    while (find_path(n))
        fill_path(n);
    return rung_of(n);
}

/* ---- the ladder ---- */

/* The rungs between two, and the lower one. */
static void climb(tsr_ladder *out, network *n, const tsr_rung *from, const tsr_rung *to)
{
    double price = (to->seconds - from->seconds) / (from->bytes - to->bytes);
    tsr_rung between = cheapest(n, price);
    double ends = from->seconds + price * from->bytes;
    bool better = between.seconds + price * between.bytes < (1 - EXACTNESS) * ends;
    if (better && out->count < TSR_LADDER_RUNGS - 1) {
        climb(out, n, from, &between);
        climb(out, n, &between, to);
    } else {
        out->rung[out->count++] = *to;
    }
}

tsr_status tsr_ladder_make(tsr_ladder *out, const tsr_work_layer *layer,
                           const tsr_work_rates *rates)
{
    network *n = calloc(1, sizeof *n);
    if (!n)
        return tsr_fail(TSR_ENOMEM, "out of memory for what a layer may keep");
    n->layer = layer;
    n->rates = rates;
    build(n);
    tsr_rung all = cheapest(n, 0), least = cheapest(n, ANY_PRICE);
    all.keep = TSR_KEEP_ALL;
    least.keep = TSR_KEEP_NONE;
    out->count = 1;
    out->rung[0] = all;
    if (least.bytes < all.bytes)
        climb(out, n, &all, &least);
    free(n);
    return TSR_OK;
}
