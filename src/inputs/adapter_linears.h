/*
 * inputs/adapter_linears.h: linears of which PEFT 0.21 takes the name for the experts'.
 *
 * Where experts once were linears (adapters/set.h), PEFT makes target_parameters of the experts of their names in
 * target_modules, and gives no linear that is called so an adapter: none of a dense layer's MLP or of a shared expert. So
 * these are written in target_parameters, by their weight ("mlp.gate_proj.weight"), which makes the same tensors under the
 * same keys. PEFT has neither DoRA nor dropout there.
 */
#ifndef TSR_INPUTS_ADAPTER_LINEARS_H
#define TSR_INPUTS_ADAPTER_LINEARS_H

#include "inputs/adapter.h"

/* Linears that init names by their weight become targets, by their whole paths; likewise the keys of its patterns. */
tsr_status tsr_adapter_linears_take(tsr_peft *init, const tsr_adapter_module *modules,
                                    uint64_t module_count);

/* The names of adapter_config.json: the set's, with those linears among the parameters, and what is to be said of their
 * rank and alpha. */
tsr_status tsr_adapter_linears_name(tsr_train_adapter *adapter, const tsr_adapter_module *modules,
                                    uint64_t module_count);
void tsr_adapter_linears_free(tsr_train_adapter *adapter);

/* The first such linear of the set that PEFT does not read, for its DoRA or dropout; NULL: there is none. */
const char *tsr_adapter_linears_unread(const tsr_train_adapter *adapter,
                                       const tsr_adapter_module *modules, uint64_t module_count);

#endif
