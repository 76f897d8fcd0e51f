#include "adapters/graph.h"

#include "kernels/low_rank_backward.h"
#include "kernels/nf4_quantize.h"

#include <math.h>
#include <stdio.h>

const tsr_graph tsr_forward_graph[TSR_FORWARD_GRAPHS] = {
    {.name = "F1"},
    {.name = "F2", .merged = true},
};

const tsr_graph tsr_backward_graph[TSR_BACKWARD_GRAPHS] = {
    {.name = "B1"},
    {.name = "B2", .outer_db = true},
    {.name = "B3", .outer_db = true, .outer_da = true},
    {.name = "B4", .outer_db = true, .outer_da = true, .merged = true},
    {.name = "B5", .merged = true},
};

/* ---- what is allowed ---- */

bool tsr_graph_same_shape(const tsr_graph_shape *a, const tsr_graph_shape *b)
{
    return a->tokens == b->tokens && a->in == b->in && a->out == b->out && a->r == b->r &&
           a->dtype == b->dtype && a->merges == b->merges && a->drops == b->drops;
}

bool tsr_graph_allowed(const tsr_graph_shape *shape, const tsr_graph *graph)
{
    return (!graph->merged || (shape->merges && !shape->drops)) &&
           graph->outer_db == graph->outer_da;
}

bool tsr_graph_allowed_once(const tsr_graph_shape *shape, const tsr_graph *graph)
{
    uint64_t partial =
        tsr_low_rank_backward_bytes(shape->dtype, shape->tokens, shape->out, shape->r);
    uint64_t weight = (uint64_t)(shape->out * shape->in) * tsr_dtype_bytes(shape->dtype);
    return !graph->outer_db && partial > 0 && partial <= weight;
}

bool tsr_graph_allowed_choice(const tsr_graph_shape *shape, tsr_graph_choice choice)
{
    const tsr_graph *backward = &tsr_backward_graph[choice.backward];
    return tsr_graph_allowed(shape, &tsr_forward_graph[choice.forward]) &&
           tsr_graph_allowed(shape, backward) &&
           (!choice.once || tsr_graph_allowed_once(shape, backward));
}

/* ---- what it costs ---- */

/* What an H200 sustains at the shapes of an 8B layer, and the shares of it that kernels reach
 * (h200_one_gpu.json, h200x2_merged.json). Only what differs between graphs decides. */
#define FLOPS           700e12
#define COPY            4.2e12
#define LAUNCH_SECONDS  3e-6
#define NARROW          0.88 /* a matmul with the rank as one side */
#define ADDED           0.55 /* a product that is written, and read again by the one added to it */
#define DECODED         0.82 /* NF4 to bf16 */
#define MERGED          0.60 /* the same with s B A, beside its FLOPs */
#define ONE_PASS        0.77 /* low_rank_backward in one kernel, beside: */
#define ONE_PASS_ALWAYS 8e-6 /* partial sums, added by another one */
#define CODE_BYTES      (0.5 + 1.0 / TSR_NF4_BLOCK)

typedef struct {
    const tsr_graph_shape *shape;
    tsr_graph_cost cost;
    double element, t, in, out, r;
} tally;

static tally begin(const tsr_graph_shape *shape)
{
    return (tally){.shape = shape,
                   .element = tsr_dtype_bytes(shape->dtype),
                   .t = (double)shape->tokens,
                   .in = (double)shape->in,
                   .out = (double)shape->out,
                   .r = (double)shape->r};
}

/* One kernel, which reaches a share of both roofs. */
static void add(tally *y, double flops, double bytes, double reached)
{
    y->cost.flops += flops;
    y->cost.bytes += bytes;
    y->cost.price += y->shape->dtype == TSR_F32
                         ? flops
                         : fmax(flops / FLOPS, bytes / COPY) / reached + LAUNCH_SECONDS;
}

/* [m, k] x [k, n]. */
static void add_matmul(tally *y, double m, double n, double k, double reached)
{
    add(y, 2 * m * n * k, y->element * (m * k + k * n + m * n), reached);
}

/* The weight, then [T, inner] x [inner, columns] with it; and unless it has the adapter in it, S B' or
 * dS A beside, which the base's is added to. Dropout puts its mask in between; that passes as much. */
static void add_base(tally *y, const tsr_graph *graph, double inner, double columns)
{
    double weight = y->out * y->in, codes = (CODE_BYTES + y->element) * weight;
    if (graph->merged) {
        add(y, 0, codes, MERGED);
        add(y, 2 * weight * y->r, 0, 1);
    } else {
        add(y, 0, codes, DECODED);
        add(y, 2 * y->t * columns * y->r,
            y->element * (y->t * y->r + y->r * columns + 2 * y->t * columns), ADDED);
    }
    add_matmul(y, y->t, columns, inner, 1);
}

tsr_graph_cost tsr_graph_forward_cost(const tsr_graph_shape *shape, const tsr_graph *graph)
{
    tally y = begin(shape);
    if (!graph->merged)
        add_matmul(&y, y.t, y.r, y.in, NARROW);
    add_base(&y, graph, y.in, y.out);
    return y.cost;
}

/* dB and dS of one pass; partial sums stay in the L2 cache. */
static void add_once(tally *y)
{
    add(y, 4 * y->t * y->out * y->r, y->element * (y->t * y->out + 2 * (y->t + y->out) * y->r),
        ONE_PASS);
    y->cost.price += y->shape->dtype == TSR_F32 ? 0 : ONE_PASS_ALWAYS;
}

tsr_graph_cost tsr_graph_backward_cost(const tsr_graph_shape *shape, const tsr_graph *graph,
                                       bool once)
{
    tally y = begin(shape);
    bool low = !graph->outer_db, d_low = !graph->outer_da || !graph->merged;
    if (graph->outer_db || graph->outer_da)
        add_matmul(&y, y.out, y.in, y.t, 1);
    if (low)
        add_matmul(&y, y.t, y.r, y.in, NARROW);
    if (once)
        add_once(&y);
    if (!once)
        add_matmul(&y, y.out, y.r, graph->outer_db ? y.in : y.t, NARROW);
    if (d_low && !once)
        add_matmul(&y, y.t, y.r, y.out, NARROW);
    add_matmul(&y, y.r, y.in, graph->outer_da ? y.out : y.t, NARROW);
    add_base(&y, graph, y.out, y.in);
    return y.cost;
}

/* ---- which ---- */

tsr_graph_choice tsr_graph_cheapest(const tsr_graph_shape *shape)
{
    tsr_graph_choice best = {0};
    double forward = INFINITY, backward = INFINITY;
    for (int i = 0; i < TSR_FORWARD_GRAPHS; i++) {
        const tsr_graph *graph = &tsr_forward_graph[i];
        double price = tsr_graph_forward_cost(shape, graph).price;
        if (tsr_graph_allowed(shape, graph) && price < forward) {
            forward = price;
            best.forward = i;
        }
    }
    for (int i = 0; i < 2 * TSR_BACKWARD_GRAPHS; i++) {
        const tsr_graph *graph = &tsr_backward_graph[i / 2];
        bool once = i % 2;
        double price = tsr_graph_backward_cost(shape, graph, once).price;
        if (tsr_graph_allowed(shape, graph) && (!once || tsr_graph_allowed_once(shape, graph)) &&
            price < backward) {
            backward = price;
            best.backward = i / 2;
            best.once = once;
        }
    }
    return best;
}

void tsr_graph_name(char out[TSR_GRAPH_NAME], tsr_graph_choice choice)
{
    snprintf(out, TSR_GRAPH_NAME, "%s %s%s", tsr_forward_graph[choice.forward].name,
             tsr_backward_graph[choice.backward].name, choice.once ? ".once" : "");
}
