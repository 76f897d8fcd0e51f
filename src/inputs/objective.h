/*
 * inputs/objective.h: what an objective over preferences asks of data and adapter.
 */
#ifndef TSR_INPUTS_OBJECTIVE_H
#define TSR_INPUTS_OBJECTIVE_H

#include "inputs/inputs.h"

/* How its rows are read. */
tsr_pairs tsr_inputs_pairs(const tsr_config *config);

/* Whether losses compare the model with a reference. */
bool tsr_inputs_has_reference(const tsr_config *config);

/* reference.c. Whether ref_adapter names a directory. */
bool tsr_inputs_reference_is_adapter(const tsr_config *config);

/* Opens that adapter into inputs->reference. TSR_ECONFIG: it has not the shape of the one that is trained; TSR_EDATA: it is no
 * adapter of this model. */
tsr_status tsr_inputs_open_reference(tsr_inputs *inputs);

/* TSR_ECONFIG: the adapter trains what this objective cannot. */
tsr_status tsr_inputs_check_objective(const tsr_inputs *inputs);

#endif
