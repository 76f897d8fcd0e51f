/*
 * inputs/shared.h: micro-batches that several ranks share (context_parallel_size).
 */
#ifndef TSR_INPUTS_SHARED_H
#define TSR_INPUTS_SHARED_H

#include "inputs/inputs.h"

/* Among how many groups of ranks micro-batches are dealt: ranks, unless several share one. */
int tsr_inputs_groups(const tsr_inputs *inputs, int ranks);

/* After the model is read. TSR_ECONFIG: the ranks do not divide into such groups, or something in the job needs whole
 * micro-batches. */
tsr_status tsr_inputs_check_shared(const tsr_inputs *inputs, int ranks);

#endif
