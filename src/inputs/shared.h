/*
 * inputs/shared.h: micro-batches that several ranks share (context_parallel_size).
 */
#ifndef TSR_INPUTS_SHARED_H
#define TSR_INPUTS_SHARED_H

#include "inputs/inputs.h"

/* Among how many groups of ranks micro-batches are dealt: ranks, unless several share one. */
int tsr_inputs_groups(const tsr_inputs *inputs, int ranks);

/* The spans of a micro-batch, and the first of the ranks that share it. */
tsr_spans tsr_inputs_spans(const tsr_config *config);

/* Of so many tokens, or of the largest micro-batch as the inputs have it, what the rank with the most has. */
int64_t tsr_inputs_own_tokens(const tsr_config *config, int64_t tokens);
tsr_batch_bounds tsr_inputs_own_bounds(const tsr_config *config, const tsr_batch_bounds *whole);

/* To a gradient in a step, at most: one of each tile of its micro-batches, or two where embedding and head are one table. */
uint64_t tsr_inputs_contributions(const tsr_inputs *inputs, const tsr_batch_bounds *whole);

/* After the model is read. TSR_ECONFIG: the ranks do not divide into such groups, or something in the job needs whole
 * micro-batches. */
tsr_status tsr_inputs_check_shared(const tsr_inputs *inputs, int ranks);

#endif
