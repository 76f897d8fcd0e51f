/*
 * checker.h: is every pair of conflicting accesses of a sequence of programs ordered?
 *
 * Replays the ops in the order of issue with vector clocks: one component for each stream and one
 * for the host, which issues all ops and reads each control word as late as it may. What an op
 * touches is written down here from its kind alone, not taken from the compiler. Beside races the
 * contents are followed: which unit a slot, a stage or a gradient buffer holds, and of which
 * update.
 */
#ifndef TEST_SHARD_CHECKER_H
#define TEST_SHARD_CHECKER_H

#include "shard/plan.h"

/* A wait of the plan: op `op` of program `program` (an index of plan->program). */
typedef struct {
    int program, op, wait;
} check_edge;

typedef struct {
    bool failed;
    char message[256]; /* of the first failure */
    uint64_t ops;
    /* Of the edge that was left out: how often it came, and how often it was implied by others. */
    uint64_t edge_count, edge_implied;
    int live_most; /* slots in use at once */
} check_result;

/* `without` may be NULL. */
void check_sequence(check_result *out, const tsr_plan *plan, const uint8_t *kinds, int count,
                    const check_edge *without);

#endif
