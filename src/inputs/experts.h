/*
 * inputs/experts.h: checks of the keys for models with experts, and the routers' correction biases beside an adapter.
 */
#ifndef TSR_INPUTS_EXPERTS_H
#define TSR_INPUTS_EXPERTS_H

#include "inputs/inputs.h"

/* TSR_ECONFIG: a key needs experts or routers with correction biases, and the model has none. */
tsr_status tsr_inputs_check_experts(const tsr_config *config, const tsr_model_config *model);

/* Opens inputs->router_bias, once the layout is made. TSR_EDATA: it does not fit this model. */
tsr_status tsr_inputs_open_router_bias(tsr_inputs *inputs);

/* Whether routers have biases of their own (model/router_bias.h): this run moves them, or an earlier one did. */
bool tsr_inputs_has_router_bias(const tsr_inputs *inputs, bool train);

#endif
