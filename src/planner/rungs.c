#include "planner/rungs.h"

#include "planner/expect.h"

#include <stdlib.h>

/* What `selective` gives for a byte where memory is not short: the time of reading and writing it three times. On a
 * card that is what norms, RoPE and gated units cost, and no matmul. */
#define AT_EASE 6

/* A step that all layers of a ladder take. */
typedef struct {
    int ladder, rung;
    double price; /* seconds a byte */
} move;

static int by_price(const void *left, const void *right)
{
    const move *a = left, *b = right;
    if (a->price != b->price)
        return a->price < b->price ? -1 : 1;
    return a->ladder != b->ladder ? a->ladder - b->ladder : a->rung - b->rung;
}

static double price_of(const tsr_ladder *ladder, int rung)
{
    const tsr_rung *from = &ladder->rung[rung - 1], *to = from + 1;
    return (to->seconds - from->seconds) / (from->bytes - to->bytes);
}

static int list_moves(move *out, const tsr_rungs *r)
{
    int count = 0;
    for (int i = 0; i < r->ladder_count; i++)
        for (int j = 1; j < r->ladder[i].count; j++)
            out[count++] = (move){i, j, price_of(&r->ladder[i], j)};
    qsort(out, (size_t)count, sizeof *out, by_price);
    return count;
}

static void list_steps(tsr_rungs *r, const move *moves, int count)
{
    r->end[r->end_count++] = 0;
    for (int i = 0; i < count; i++) {
        for (int layer = 0; layer < r->layer_count; layer++) {
            if (r->of_layer[layer] != moves[i].ladder)
                continue;
            r->step[r->step_count].layer = layer;
            r->step[r->step_count++].rung = moves[i].rung;
        }
        r->end[r->end_count++] = r->step_count;
    }
}

static int find_ease(const tsr_ladder *ladder, double byte_seconds)
{
    int rung = 1;
    while (rung + 2 < ladder->count && price_of(ladder, rung + 1) <= AT_EASE * byte_seconds)
        rung++;
    return rung;
}

static tsr_status fill_ladders(tsr_rungs *r, const tsr_inputs *inputs, const tsr_decision *d,
                               const tsr_topology_view *view, const tsr_speeds *speeds)
{
    r->ladder_count = d->programs->count;
    for (int i = 0, layer = 0; i < r->ladder_count; i++) {
        double byte_seconds;
        while (d->programs->of_layer[layer] != i) /* they are numbered as layers come */
            layer++;
        TSR_TRY(tsr_expect_ladder(&r->ladder[i], &byte_seconds, inputs, d, view, speeds, layer));
        r->ease[i] = find_ease(&r->ladder[i], byte_seconds);
    }
    return TSR_OK;
}

static tsr_status fill(tsr_rungs *r, const tsr_inputs *inputs, const tsr_decision *d,
                       const tsr_topology_view *view, const tsr_speeds *speeds)
{
    size_t layers = (size_t)r->layer_count, ladders = (size_t)d->programs->count;
    size_t most = ladders * TSR_LADDER_RUNGS;
    move *moves = calloc(most, sizeof *moves);
    r->ladder = calloc(ladders, sizeof *r->ladder);
    r->ease = calloc(ladders, sizeof *r->ease);
    r->of_layer = calloc(layers, sizeof *r->of_layer);
    r->step = calloc(layers * TSR_LADDER_RUNGS, sizeof *r->step);
    r->end = calloc(most + 1, sizeof *r->end);
    tsr_status status = moves && r->ladder && r->ease && r->of_layer && r->step && r->end
                            ? fill_ladders(r, inputs, d, view, speeds)
                            : tsr_fail(TSR_ENOMEM, "out of memory for what layers may keep");
    for (int i = 0; i < r->layer_count && status == TSR_OK; i++)
        r->of_layer[i] = d->programs->of_layer[i];
    if (status == TSR_OK)
        list_steps(r, moves, list_moves(moves, r));
    free(moves);
    return status;
}

tsr_status tsr_rungs_make(tsr_rungs **out, const tsr_inputs *inputs, const tsr_decision *decision,
                          const tsr_topology_view *view, const tsr_speeds *speeds)
{
    tsr_rungs *r = calloc(1, sizeof *r);
    if (!r)
        return tsr_fail(TSR_ENOMEM, "out of memory for what layers may keep");
    r->layer_count = inputs->layout.layer_count;
    tsr_status status = fill(r, inputs, decision, view, speeds);
    if (status < 0) {
        tsr_rungs_free(r);
        return status;
    }
    *out = r;
    return TSR_OK;
}

void tsr_rungs_free(tsr_rungs *rungs)
{
    if (!rungs)
        return;
    free(rungs->ladder);
    free(rungs->ease);
    free(rungs->of_layer);
    free(rungs->step);
    free(rungs->end);
    free(rungs);
}

void tsr_rungs_after(int *rung, const tsr_rungs *rungs, int steps, bool partly)
{
    for (int i = 0; i < rungs->layer_count; i++)
        rung[i] = 0;
    for (int i = 0; i < steps && i < rungs->step_count; i++)
        rung[rungs->step[i].layer] = rungs->step[i].rung;
    for (int i = 0; i < rungs->layer_count && partly; i++) {
        int ladder = rungs->of_layer[i], last = rungs->ladder[ladder].count - 1;
        int least = rungs->ease[ladder] < last ? rungs->ease[ladder] : last;
        int most = last - 1 > least ? last - 1 : least;
        rung[i] = rung[i] < least ? least : rung[i] > most ? most : rung[i];
    }
}

tsr_again tsr_rungs_again(const tsr_rungs *rungs, int layer, int rung)
{
    int last = rungs->ladder[rungs->of_layer[layer]].count - 1;
    return rung == 0 ? TSR_AGAIN_NONE : rung < last ? TSR_AGAIN_PART : TSR_AGAIN_ALL;
}
