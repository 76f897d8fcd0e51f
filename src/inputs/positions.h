/*
 * inputs/positions.h: whether a model has positions for the documents of a job.
 */
#ifndef TSR_INPUTS_POSITIONS_H
#define TSR_INPUTS_POSITIONS_H

#include "inputs/inputs.h"

/* Warns where the longest document of inputs->bounds has more tokens than the model was made for (tsr_model_positions): RoPE has
 * angles for them too, and training may be what extends it. */
void tsr_inputs_warn_of_positions(const tsr_inputs *inputs);

/* The same; TSR_EDATA: more than RoPE of the type dynamic is the same for. */
tsr_status tsr_inputs_check_positions(const tsr_inputs *inputs);

#endif
