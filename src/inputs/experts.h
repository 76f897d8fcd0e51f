/*
 * inputs/experts.h: keys of models with experts.
 */
#ifndef TSR_INPUTS_EXPERTS_H
#define TSR_INPUTS_EXPERTS_H

#include "inputs/inputs.h"

/* TSR_ECONFIG: a key asks for something of experts, and the model has none; or of routers' correction biases, and they have
 * none. */
tsr_status tsr_inputs_check_experts(const tsr_config *config, const tsr_model_config *model);

/* inputs->router_bias, once the layout is made. TSR_EDATA: it is not of this model. */
tsr_status tsr_inputs_open_router_bias(tsr_inputs *inputs);

/* Whether routers have biases of their own (model/router_bias.h): they are moved, or were. */
bool tsr_inputs_has_router_bias(const tsr_inputs *inputs, bool train);

#endif
