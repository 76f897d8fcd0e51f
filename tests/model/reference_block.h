/*
 * tests/model/reference_block.h: a block in double precision: a second opinion on every kind of node, forward only,
 * written for clarity and without a line of src.
 */
#ifndef TSR_TESTS_MODEL_REFERENCE_BLOCK_H
#define TSR_TESTS_MODEL_REFERENCE_BLOCK_H

#include "model/node.h"
#include "model/reference_experts.h"

/* One linear. r 0: no adapter; m NULL: no magnitude; mask [tokens, in]: 1 where dropout keeps x; NULL: no dropout. */
typedef struct {
    const double *w, *bias, *a, *b, *m, *n;
    const uint8_t *mask;
    double scale, kept; /* kept: the share that dropout keeps */
    uint64_t r;
} reference_linear;

typedef struct {
    const tsr_block *block;
    const reference_linear *linear;       /* [matrix_count] */
    const double *const *vector;          /* [vector_count] */
    const reference_expert_linear *stack; /* [stack_count] */
    double capacity_factor;               /* of experts, over their mean load in a tile; 0: none */
    int tile_rows;                        /* 0: all are one */
    const double
        *aux; /* [experts]: *aux_sum becomes the sum of aux softmax(logits) over tokens; or NULL */
    double *aux_sum;
    const double *x;          /* [tokens, width] */
    const int32_t *positions; /* [tokens], in their documents: 0 begins one */
    double theta;             /* of the rotation */
    int tokens;
} reference_block;

/* out [tokens, width]: the residual stream that leaves the block, added up. */
void reference_block_run(double *out, const reference_block *r);

#endif
