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

/* reference.c: opens the adapter that ref_adapter names, if any, into inputs->reference. TSR_ECONFIG: its shape differs from that of
 * the trained one; TSR_EDATA: it does not fit this model. */
tsr_status tsr_inputs_open_reference(tsr_inputs *inputs);

/* TSR_ECONFIG: the adapter trains what this objective cannot; or, without `train`, has nothing to evaluate. */
tsr_status tsr_inputs_check_objective(const tsr_inputs *inputs, bool train);

#endif
