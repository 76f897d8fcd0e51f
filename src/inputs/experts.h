/*
 * inputs/experts.h: keys of models with experts.
 */
#ifndef TSR_INPUTS_EXPERTS_H
#define TSR_INPUTS_EXPERTS_H

#include "config/config.h"
#include "model/arch/config.h"

/* TSR_ECONFIG: a key asks for something of experts, and the model has none; or of routers' correction biases, and they have
 * none. */
tsr_status tsr_inputs_check_experts(const tsr_config *config, const tsr_model_config *model);

#endif
