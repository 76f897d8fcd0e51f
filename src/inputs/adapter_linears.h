/*
 * inputs/adapter_linears.h: linears whose names PEFT 0.21 takes for the experts'.
 *
 * Where experts once were linears (adapters/set.h), PEFT turns those names in target_modules into target_parameters of the
 * experts. No linear of such a name gets an adapter, neither in a dense layer's MLP nor in a shared expert. So these linears
 * are written in target_parameters, by their weight ("mlp.gate_proj.weight"), which makes the same tensors under the same
 * keys. PEFT has neither DoRA nor dropout there.
 */
#ifndef TSR_INPUTS_ADAPTER_LINEARS_H
#define TSR_INPUTS_ADAPTER_LINEARS_H

#include "inputs/adapter.h"

/* Turns linears that init names by their weight into targets by their whole paths, and the keys of its patterns likewise. */
tsr_status tsr_adapter_linears_take(tsr_peft *init, const tsr_adapter_module *modules,
                                    uint64_t module_count);

/* Makes the names for adapter_config.json: the set's, with those linears among the parameters, and patterns for their rank
 * and alpha. */
tsr_status tsr_adapter_linears_name(tsr_train_adapter *adapter, const tsr_adapter_module *modules,
                                    uint64_t module_count);
void tsr_adapter_linears_free(tsr_train_adapter *adapter);

/* The first such linear of the set whose adapter PEFT cannot read because of DoRA or dropout; NULL: there is none. */
const char *tsr_adapter_linears_unread(const tsr_train_adapter *adapter,
                                       const tsr_adapter_module *modules, uint64_t module_count);

#endif
