/*
 * inputs/same.h: all ranks were given the same job: the same keys, the same model, the same data.
 *
 * Both are collective on `stream` and block. TSR_ERANKS, on every rank, names the key or the files
 * that differ.
 */
#ifndef TSR_INPUTS_SAME_H
#define TSR_INPUTS_SAME_H

#include "comm/comm.h"
#include "inputs/inputs.h"

tsr_status tsr_same_config(const tsr_config *config, tsr_comm *world, tsr_stream *stream);
tsr_status tsr_same_inputs(const tsr_inputs *inputs, tsr_comm *world, tsr_stream *stream);

#endif
