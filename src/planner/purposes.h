/*
 * planner/purposes.h: the buffers of a memory plan by what they are for, as `tessera plan` has it: one purpose for all
 * buffers of a place with the same words, such as the outputs of all linears that layers keep.
 *
 * Sizes    A purpose counts the bytes that were asked for; what arenas round up is not in it.
 * Threads  Read-only after tsr_purposes_make.
 */
#ifndef TSR_PLANNER_PURPOSES_H
#define TSR_PLANNER_PURPOSES_H

#include "shard/memory_plan.h"

#include <stdbool.h>

#define TSR_PURPOSE_NAME_BYTES 256

typedef struct {
    /* "device slot[*]: one unit, gathered for its use"; without the buffers' name where it is not
     * the same of all: "device output of the linear, kept for the backward" */
    char name[TSR_PURPOSE_NAME_BYTES];
    bool named; /* whether the buffers have one name */
    uint64_t bytes;
} tsr_purpose;

typedef struct {
    tsr_purpose *purpose; /* in the order of their first buffers */
    int count;
    int *of; /* [buffers of the plan]: the purpose of each */
} tsr_purposes;

/* On success free with tsr_purposes_free. TSR_ENOMEM. */
tsr_status tsr_purposes_make(tsr_purposes *out, const tsr_memory_plan *memory);
void tsr_purposes_free(tsr_purposes *purposes);

#endif
