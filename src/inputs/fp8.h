/*
 * inputs/fp8.h: what base_compute: fp8 asks of a model. Inside src/inputs only.
 */
#ifndef TSR_INPUTS_FP8_H
#define TSR_INPUTS_FP8_H

#include "inputs/inputs.h"

/* What e4m3 is made of, and what a GPU's matmuls of it take; else TSR_ECONFIG with the linear or the experts. */
tsr_status tsr_inputs_check_fp8(const tsr_inputs *inputs);

#endif
