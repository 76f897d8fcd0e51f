#include "adapters/graph.h"

#include "kernels/low_rank_backward.h"
#include "kernels/nf4_quantize.h"

#include <math.h>
#include <stdio.h>

const tsr_graph tsr_graph_table[TSR_GRAPHS] = {
    [TSR_F1] = {.name = "F1"},
    [TSR_F2] = {.name = "F2", .merged = true},
    [TSR_B1] = {.name = "B1", .backward = true},
    [TSR_B2] = {.name = "B2", .backward = true, .outer_db = true},
    [TSR_B3] = {.name = "B3", .backward = true, .outer_db = true, .outer_da = true},
    [TSR_B4] = {.name = "B4", .backward = true, .outer_db = true, .outer_da = true, .merged = true},
    [TSR_B5] = {.name = "B5", .backward = true, .merged = true},
};

/* ---- what is allowed ---- */

bool tsr_graph_same_shape(const tsr_graph_shape *a, const tsr_graph_shape *b)
{
    return a->tokens == b->tokens && a->in == b->in && a->out == b->out && a->r == b->r &&
           a->dtype == b->dtype && a->backward == b->backward && a->merges == b->merges &&
           a->drops == b->drops && a->composes == b->composes && a->norms_every == b->norms_every;
}

static bool once_fits(const tsr_graph_shape *shape)
{
    uint64_t partial =
        tsr_low_rank_backward_bytes(shape->dtype, shape->tokens, shape->out, shape->r);
    uint64_t weight = (uint64_t)(shape->out * shape->in) * tsr_dtype_bytes(shape->dtype);
    return partial > 0 && partial <= weight;
}

/* The backward of DoRA with dropout is not: dx would be 1.2 times as far off (linear.h). */
static bool may_merge(const tsr_graph_shape *shape)
{
    return !tsr_graph_keeps_low(shape->merges, shape->drops, shape->composes) &&
           !(shape->composes && shape->backward);
}

bool tsr_graph_allowed(const tsr_graph_shape *shape, tsr_graph_choice choice)
{
    const tsr_graph *graph = &tsr_graph_table[choice.graph];
    return graph->backward == shape->backward && (!graph->merged || may_merge(shape)) &&
           graph->outer_db == graph->outer_da &&
           (!choice.once || (graph->backward && !graph->outer_db && once_fits(shape)));
}

/* ---- what it costs ---- */

/* What an H200 sustains, and how its kernels depart from that in a linear: shares and seconds with which the
 * cheapest of each shape of bench/results/h200_graphs.json takes 1 % longer than its fastest, in the mean. */
#define FLOPS          684.5e12
#define COPY           4192e9
#define LAUNCH_SECONDS 12e-6 /* a kernel more, in a chain of small ones */
#define NARROW         0.95  /* a matmul with the rank as one side */
#define ADDED          1.0   /* a product that is written, and read again by the one added to it */
#define DECODED        0.88  /* NF4 to bf16 */
#define MERGED         0.60  /* what s B A adds to that */
#define ONE_PASS       0.30  /* low_rank_backward in one kernel, beside: */
#define PARTIAL_SUMS   5e-6  /* added by another one */
#define CODE_BYTES     (0.5 + 1.0 / TSR_NF4_BLOCK)

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

/* Work that reaches a share of both roofs. */
static void add_work(tally *y, double flops, double bytes, double reached)
{
    y->cost.flops += flops;
    y->cost.bytes += bytes;
    double work = y->shape->dtype == TSR_F32 ? flops : fmax(flops / FLOPS, bytes / COPY) / reached;
    y->cost.work += work;
    y->cost.price += work;
}

static void add_seconds(tally *y, double seconds)
{
    y->cost.price += y->shape->dtype == TSR_F32 ? 0 : seconds;
}

/* s B A, for the weight that is decoded. */
static void add_merged(tally *y)
{
    double weight = y->out * y->in;
    add_work(y, 2 * weight * y->r, TSR_GRAPH_MERGE_BYTES * weight, MERGED);
}

/* One kernel. */
static void add(tally *y, double flops, double bytes, double reached)
{
    add_work(y, flops, bytes, reached);
    add_seconds(y, LAUNCH_SECONDS);
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
    double weight = y->out * y->in;
    add(y, 0, (CODE_BYTES + y->element) * weight, DECODED);
    if (graph->merged)
        add_merged(y);
    else
        add(y, 2 * y->t * columns * y->r,
            y->element * (y->t * y->r + y->r * columns + 2 * y->t * columns), ADDED);
    add_matmul(y, y->t, columns, inner, 1);
}

/* Of DoRA with dropout (linear.h): what streams, so many passes over [T, in] and over [T, out]. */
static void add_passes(tally *y, double inputs, double outputs)
{
    add(y, 0, y->element * y->t * inputs * y->in, 1);
    add(y, 0, y->element * y->t * outputs * y->out, 1);
}

/* The base once more; beside W + s B A, W itself is decoded for it. Forward x is dropped, apart or with what
 * is left of it, and y composed of three or of two. Backward x is dropped again, dy taken apart, and the
 * gradient behind the mask added to dx. */
static void add_composed(tally *y, const tsr_graph *graph)
{
    if (graph->backward) {
        add_passes(y, 2 + 3, 4);
        add_matmul(y, y->t, y->in, y->out, 1);
        return;
    }
    add_passes(y, graph->merged ? 3 : 2, graph->merged ? 3 : 5);
    if (graph->merged)
        add(y, 0, (CODE_BYTES + y->element) * y->out * y->in, DECODED);
    add_matmul(y, y->t, y->out, y->in, 1);
}

static void add_forward(tally *y, const tsr_graph *graph)
{
    if (!graph->merged)
        add_matmul(y, y->t, y->r, y->in, NARROW);
    add_base(y, graph, y->in, y->out);
}

/* dB and dS of one pass. */
static void add_once(tally *y)
{
    add(y, 4 * y->t * y->out * y->r, y->element * (y->t * y->out + 2 * (y->t + y->out) * y->r),
        ONE_PASS);
    add_seconds(y, PARTIAL_SUMS);
}

static void add_backward(tally *y, const tsr_graph *graph, bool once)
{
    if (graph->outer_db)
        add_matmul(y, y->out, y->in, y->t, 1);
    else if (!tsr_graph_keeps_low(y->shape->merges, y->shape->drops, y->shape->composes))
        add_matmul(y, y->t, y->r, y->in, NARROW);
    if (once)
        add_once(y);
    else
        add_matmul(y, y->out, y->r, graph->outer_db ? y->in : y->t, NARROW);
    if (!once && (!graph->outer_da || !graph->merged))
        add_matmul(y, y->t, y->r, y->out, NARROW);
    add_matmul(y, y->r, y->in, graph->outer_da ? y->out : y->t, NARROW);
    add_base(y, graph, y->out, y->in);
}

double tsr_graph_norms_price(const tsr_graph_shape *shape, tsr_graph_choice choice)
{
    tally y = begin(shape);
    if (shape->norms_every <= 0 || tsr_graph_table[choice.graph].merged)
        return 0;
    add_merged(&y);
    return y.cost.price / (double)shape->norms_every;
}

tsr_graph_cost tsr_graph_cost_of(const tsr_graph_shape *shape, tsr_graph_choice choice)
{
    const tsr_graph *graph = &tsr_graph_table[choice.graph];
    tally y = begin(shape);
    if (graph->backward)
        add_backward(&y, graph, choice.once);
    else
        add_forward(&y, graph);
    if (shape->composes)
        add_composed(&y, graph);
    y.cost.price += tsr_graph_norms_price(shape, choice);
    return y.cost;
}

/* ---- which ---- */

tsr_graph_choice tsr_graph_plain(const tsr_graph_shape *shape)
{
    return (tsr_graph_choice){shape->backward ? TSR_B1 : TSR_F1, false};
}

tsr_graph_choice tsr_graph_cheapest(const tsr_graph_shape *shape)
{
    tsr_graph_choice best = tsr_graph_plain(shape);
    double least = INFINITY;
    for (int i = 0; i < TSR_GRAPH_CHOICES; i++) {
        tsr_graph_choice choice = tsr_graph_choice_at(i);
        double price = tsr_graph_cost_of(shape, choice).price;
        if (tsr_graph_allowed(shape, choice) && price < least) {
            least = price;
            best = choice;
        }
    }
    return best;
}

void tsr_graph_name(char out[TSR_GRAPH_NAME], tsr_graph_choice choice)
{
    snprintf(out, TSR_GRAPH_NAME, "%s%s", tsr_graph_table[choice.graph].name,
             choice.once ? ".once" : "");
}
