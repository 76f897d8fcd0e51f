/*
 * model/node_parts.h: what the kinds of nodes share. Inside src/model only.
 */
#ifndef TSR_MODEL_NODE_PARTS_H
#define TSR_MODEL_NODE_PARTS_H

#include "model/node.h"

/* What the consumer of a linear's result reads: z with magnitude and bias, or, composed, all of it. */
typedef struct {
    const void *z;
    const float *g;
    tsr_frozen bias;
} tsr_output;

/* Of any value; what is no linear's result is as it is. */
tsr_output tsr_pass_output(const tsr_pass *pass, int value);

/* What the backward of a consumer that scales is given of it: where dm goes, or NULL; and n. */
float *tsr_pass_dm(const tsr_pass *pass, int value);
const float *tsr_pass_n(const tsr_pass *pass, int value);

/* Whether all that read this value apply magnitude and bias in their backward too. */
bool tsr_block_reader_scales(const tsr_block *block, int value);

/* Whether the linear of a matrix turns the gradient of g z into that of z itself. */
bool tsr_matrix_scales_back(const tsr_block *block, const tsr_matrix_traits *traits, int matrix);

/* Whether the backward of a reader that scales reads z, for dm. */
bool tsr_value_has_dm(const tsr_block *block, const tsr_matrix_traits *traits, int value);

/* What a step of a backward reads: of a linear node that of the matrices whose results have a gradient. */
void tsr_needs_of(tsr_needs *out, const tsr_block *block, const tsr_matrix_traits *traits,
                  const tsr_step *step);

void tsr_needs_read(tsr_needs *needs, int16_t value);
void tsr_needs_over(tsr_needs *needs, int16_t output, int16_t input);
void tsr_needs_share(tsr_needs *needs, int16_t input, int16_t with, bool gradient);

#endif
