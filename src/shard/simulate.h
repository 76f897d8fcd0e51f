/*
 * shard/simulate.h: how long a step of a plan takes, if one knows how long each of its ops takes.
 *
 * The executor, without anything to execute: an op begins when its stream has come to it and
 * everything it waits for was recorded, and its stream goes on when its time is over. The host issues
 * far ahead and costs nothing. Copies of two streams in one direction share the link. What runs beside computation slows it down: while an op of another
 * stream is under way, compute advances by 1 - its `slows` a second.
 *
 * Threads  Allocates nothing, changes nothing.
 */
#ifndef TSR_SHARD_SIMULATE_H
#define TSR_SHARD_SIMULATE_H

#include "shard/plan.h"

typedef struct {
    double seconds; /* of the op alone */
    double slows;   /* the share of compute's speed that it takes meanwhile, 0 .. 1 */
    double waits;   /* of its seconds: compute stands waiting for other ranks */
} tsr_op_cost;

typedef tsr_op_cost tsr_op_cost_call(void *user, const tsr_plan_op *op);

/* Of one step, in seconds. */
typedef struct {
    double step;                     /* from the end of a step to the end of the next */
    double busy[TSR_STREAM_COUNT];   /* ops under way */
    double exposed[TSR_CAUSE_COUNT]; /* compute stood waiting; other: for the update */
    double slowed;                   /* compute took longer beside other streams */
} tsr_simulation;

/* A step of `rounds` micro-batches once everything runs in; of a plan that does not train, an
 * evaluation of as many. */
tsr_status tsr_plan_simulate(tsr_simulation *out, const tsr_plan *plan, int64_t rounds,
                             tsr_op_cost_call *cost, void *user);

#endif
