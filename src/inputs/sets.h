/*
 * inputs/sets.h: the data sets of a configuration, each by its own members where it has them, as one for training and one for
 * evaluation. Private to inputs.
 */
#ifndef TSR_INPUTS_SETS_H
#define TSR_INPUTS_SETS_H

#include "inputs/inputs.h"

/* Fills inputs->dataset and inputs->files, and inputs->eval_dataset with what validation_split holds out. */
tsr_status tsr_inputs_load_training(tsr_inputs *inputs);

/* Fills inputs->eval_dataset and inputs->eval_files, unless it is held out of the training data. */
tsr_status tsr_inputs_load_evaluation(tsr_inputs *inputs);

/* Whether a chat template has asked for the date so far. */
bool tsr_inputs_dated(const tsr_inputs *inputs);

#endif
