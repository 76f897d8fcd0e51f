/*
 * model/router_bias.h: the correction biases of a model's routers in files and in memory. In memory they are fp32
 * [routers, experts], one router for each layer that has one. The adapter's file (io/peft.h: TSR_PEFT_ROUTER_BIAS_FILE) has
 * F32 tensors [experts], named as in the model's checkpoint.
 */
#ifndef TSR_MODEL_ROUTER_BIAS_H
#define TSR_MODEL_ROUTER_BIAS_H

#include "model/layout.h"

/* How many values there are; 0: the model's routers have no corrections. */
uint64_t tsr_router_bias_count(const tsr_layout *layout);

/* Reads those of the model's checkpoint. */
tsr_status tsr_router_bias_of_model(float *out, const tsr_layout *layout);

/* Checks that an open file has one for each router of the model, and nothing else; TSR_EDATA otherwise. */
tsr_status tsr_router_bias_check(const tsr_safetensors *file, const tsr_layout *layout);

/* Reads those of a file, which is checked first. */
tsr_status tsr_router_bias_read(float *out, const tsr_safetensors *file, const tsr_layout *layout);

/* Fills the tensors that a file of `values` has and returns how many, at most layout->layer_count. Both are borrowed. */
uint64_t tsr_router_bias_sources(tsr_tensor_source *out, const float *values,
                                 const tsr_layout *layout);

#endif
