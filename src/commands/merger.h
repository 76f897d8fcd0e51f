/*
 * commands/merger.h: the merged weights of a model in fp32, some rows of one at a time: the base's,
 * plain or 4-bit, with the adapter's (adapters/merge.h).
 *
 * Memory   Fixed by the largest weight: A, a chunk of rows of W and B, and of a 4-bit weight its scales. For
 *          experts, the whole A and B of a layer's stacks and, if their tensor is transposed, one expert of it.
 */
#ifndef TSR_COMMANDS_MERGER_H
#define TSR_COMMANDS_MERGER_H

#include "inputs/inputs.h"

typedef struct tsr_merger tsr_merger;

/* `inputs` has the model and init_adapter, and is borrowed. chunk_elements of W at a time; 0: 4 Mi. */
tsr_status tsr_merger_create(tsr_merger **out, const tsr_inputs *inputs, tsr_pool *pool,
                             uint64_t chunk_elements);
void tsr_merger_destroy(tsr_merger *merger);

/* Rows [first, first + *count) of `linear`, of inputs->layout, to *rows [*count, in], which stay until
 * the next call: as many as a chunk holds. A linear without an adapter gives its base. */
tsr_status tsr_merger_rows(const float **rows, uint64_t *count, tsr_merger *merger,
                           const tsr_layout_linear *linear, uint64_t first);

/* The same of one matrix of a stack (model/stack_reader.h), [out / parts, in]. */
tsr_status tsr_merger_expert_rows(const float **rows, uint64_t *count, tsr_merger *merger,
                                  const tsr_layout_stack *stack, uint64_t matrix, uint64_t first);

#endif
