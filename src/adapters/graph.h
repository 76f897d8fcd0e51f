/*
 * adapters/graph.h: in which order the products of an adapter are multiplied (RunLoRA; design
 * FORMATS 4), what each order costs, and which one is taken for a shape.
 *
 * With X [T, in], dY [T, out], W [out, in], A [r, in], B [out, r], and s left out:
 *
 *     F1   X W' + (X A') B'
 *     F2   X (W + B A)'
 *     B1   dB = dY' (X A'), dS = dY B, dA = dS' X, dX = dY W + dS A
 *     B2   B1 with dB = (dY' X) A'
 *     B3   B1 with dB = (dY' X) A', dA = B' (dY' X)
 *     B4   B3 with dX = dY (W + B A)
 *     B5   B1 with dX = dY (W + B A)
 *
 * Where dB and dS come from dY, one pass over it can make both (kernels/low_rank_backward.h): "B1.once",
 * "B5.once". Forward and backward of a linear are chosen each for itself. Where no forward can merge, each
 * makes X A' and leaves it for the backward (tsr_graph_keeps_low), whose cost is then without it.
 *
 * Not all of them are for every shape (tsr_graph_allowed):
 *     W + B A       only in bf16, where the weight is made from codes anyway and rounded once, with s B A
 *                   in it (kernels/nf4_merge.h). A plain bf16 W is exact as it is: rounded with s B A in it, it loses small
 *                   updates, and z is up to 1.4 times as far off (tests/adapters/test_merge_guard measures both). Not
 *                   in fp32, where a token's bits do not depend on how many lie beside it. With dropout, where
 *                   A has another X than W, only of DoRA, which multiplies W with both, and forward only
 *                   (linear.h).
 *     dY' X         [out, in] of the compute dtype lies where the weight is made later: no memory is added.
 *     B2            never, and so it is only counted here: it takes more FLOPs than another one for every
 *                   linear of 8B and 70B models, ranks 8 to 1024, 128 to 16384 tokens (test_adapters_graph).
 *                   There B4 takes least for some ranks from 432 on, B3 from 912 on where W + B A is not
 *                   allowed; of k and v only, since 2 r (in + out) must pass in out.
 *
 * DoRA     The norms of W + s B A come with it, once a step; a forward that multiplies with W makes it for
 *          them alone, which is part of its price, shared out over the micro-batches of a step.
 *
 * Which    What was measured at start-up (graph_time.h), else the cheapest by this table: FLOPs in fp32,
 *          FLOPs and bytes at the speed of an H200 in bf16. It depends on the shape alone and does not
 *          change within a run, so the same job has the same bits on any number of ranks.
 */
#ifndef TSR_ADAPTERS_GRAPH_H
#define TSR_ADAPTERS_GRAPH_H

#include "base/dtype.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum { TSR_F1, TSR_F2, TSR_B1, TSR_B2, TSR_B3, TSR_B4, TSR_B5, TSR_GRAPHS } tsr_graph_id;

typedef struct {
    const char *name;
    bool backward, merged;   /* merged: multiplies with W + s B A */
    bool outer_db, outer_da; /* from dY' X, [out, in], not from X A' and dS */
} tsr_graph;

extern const tsr_graph tsr_graph_table[TSR_GRAPHS];

/* All that a choice may depend on; compared field by field. */
typedef struct {
    int64_t tokens, in, out, r;
    tsr_dtype dtype;
    bool backward;
    bool merges;   /* W + s B A can be made, rounded once */
    bool drops;    /* dropout is active */
    bool composes; /* and there is a magnitude: the base is multiplied twice each way */
    /* DoRA's norms are made in one forward of so many, with W + s B A even where only W is multiplied with
     * (linear.h); 0: none are, or not so. */
    int64_t norms_every;
} tsr_graph_shape;

/* Whether no forward of such a linear can merge: then each makes X A', of the dropped X with dropout, and
 * leaves it for the backward (linear.h). By what a plan knows, not by what is chosen. */
static inline bool tsr_graph_keeps_low(bool merges, bool drops, bool composes)
{
    return !merges || (drops && !composes);
}

bool tsr_graph_same_shape(const tsr_graph_shape *a, const tsr_graph_shape *b);

/* What a linear does in one direction. */
typedef struct {
    tsr_graph_id graph;
    bool once; /* one pass over dY for dB and dS */
} tsr_graph_choice;

/* All there are, for loops. */
#define TSR_GRAPH_CHOICES (2 * TSR_GRAPHS)
static inline tsr_graph_choice tsr_graph_choice_at(int index)
{
    return (tsr_graph_choice){(tsr_graph_id)(index % TSR_GRAPHS), index >= TSR_GRAPHS};
}

static inline bool tsr_graph_same_choice(tsr_graph_choice a, tsr_graph_choice b)
{
    return a.graph == b.graph && a.once == b.once;
}

/* Whether a linear of this shape does it; `once` only where a kernel does it and its partial sums fit into
 * the memory of the weight. */
bool tsr_graph_allowed(const tsr_graph_shape *shape, tsr_graph_choice choice);

/* What merging adds to decoding even at the smallest rank, as bytes for each element of W: 21 us for 14336 x
 * 4096 on an H200 (bench/results/h200_one_gpu.json: nf4_merge less nf4_dequant, r 16). */
#define TSR_GRAPH_MERGE_BYTES 1.3

/* FLOPs of FORMATS 4, allowed or not, less those of X A' where that is kept; and the bytes that the
 * products read and write, with the codes of the weight. */
typedef struct {
    double flops, bytes;
    double price; /* seconds in bf16, FLOPs in fp32; with the norms */
    double work;  /* the same without what it takes to launch kernels */
} tsr_graph_cost;

/* Of the price, what norms alone take: 0 for a graph that merges. */
double tsr_graph_norms_price(const tsr_graph_shape *shape, tsr_graph_choice choice);

tsr_graph_cost tsr_graph_cost_of(const tsr_graph_shape *shape, tsr_graph_choice choice);

/* The allowed one with the least price; of equal ones the first. */
tsr_graph_choice tsr_graph_cheapest(const tsr_graph_shape *shape);

/* F1 or B1, whatever the shape: x A^T, then B, as PEFT multiplies. */
tsr_graph_choice tsr_graph_plain(const tsr_graph_shape *shape);

/* How those of a run are chosen. */
typedef enum {
    TSR_GRAPHS_AUTO,   /* TIMED, but the cheapest of a small shape (graph_time.h) */
    TSR_GRAPHS_TIMED,  /* on a GPU the fastest of those in doubt, else the cheapest */
    TSR_GRAPHS_PRICED, /* the cheapest */
    TSR_GRAPHS_PLAIN
} tsr_graph_rule;

/* "B5.once" */
#define TSR_GRAPH_NAME 16
void tsr_graph_name(char out[TSR_GRAPH_NAME], tsr_graph_choice choice);

#endif
