/*
 * model/ladder.h: what a layer may keep for its backward, from all that it reads to its input alone, by what memory
 * costs.
 *
 * A set of values that are kept has bytes, and the seconds that it takes to make again what the backward reads
 * besides, with everything that this is made from. The rungs of a ladder are the corners of the lower convex hull of
 * all sets: for any price of a byte in seconds the set for which both together cost the least is a rung, and what
 * layers save between two rungs, some on the one and some on the other, no other sets save in less time. From rung
 * to rung bytes fall, seconds grow, and each byte that is saved costs more than those before it.
 *
 * At a given price the best set is a minimum cut: nodes that run again on the one side, those that do not on the
 * other. Each that runs costs its seconds, and each value that is read, but not made again, its bytes. (A closure of
 * least weight: Picard, Maximal Closure of a Graph, Management Science 22 (11), 1976; for recomputation as in the
 * partitioner of PyTorch's AOTAutograd.) So no node and no value is named anywhere: o and lse stay on a rung of their
 * own where rows are long because attention's cost says so.
 */
#ifndef TSR_MODEL_LADDER_H
#define TSR_MODEL_LADDER_H

#include "model/work.h"

#define TSR_LADDER_RUNGS 64

typedef struct {
    tsr_keep keep;
    double bytes, seconds; /* kept; of making the rest again */
} tsr_rung;

/* The first rung keeps everything that the backward reads, the last one the first sum of the residual stream alone;
 * of a layer without a backward they are one. */
typedef struct {
    tsr_rung rung[TSR_LADDER_RUNGS];
    int count;
} tsr_ladder;

/* layer->program keeps everything (TSR_KEEP_ALL). *out is written. TSR_ENOMEM. */
tsr_status tsr_ladder_make(tsr_ladder *out, const tsr_work_layer *layer,
                           const tsr_work_rates *rates);

#endif
