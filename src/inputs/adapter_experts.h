/*
 * inputs/adapter_experts.h: adapters on the parameters of experts, as PEFT's files have them (target_parameters).
 *
 * PEFT wraps the module of the parameters once for each that has an adapter, and names a tensor by the wrapper: of two,
 * "mlp.experts.base_layer" is the model's first (gate_up_proj), "mlp.experts" the second; of one alone "mlp.experts" is
 * whichever target_parameters names.
 */
#ifndef TSR_INPUTS_ADAPTER_EXPERTS_H
#define TSR_INPUTS_ADAPTER_EXPERTS_H

#include "inputs/adapter.h"

/* Gives the modules of adapter->init that are of experts the names of their parameters; the set is made. */
tsr_status tsr_adapter_experts_name(tsr_train_adapter *adapter, const tsr_adapter_module *modules);

/* That what is stored of one of them has its shapes. */
tsr_status tsr_adapter_experts_check(const tsr_peft_module *stored, const tsr_adapter *a,
                                     const tsr_adapter_module *module, const char *directory);

/* A stored module that no adapter of the set is: TSR_EDATA, if it is of experts. */
tsr_status tsr_adapter_experts_unknown(const tsr_train_adapter *adapter, const char *path,
                                       const tsr_adapter_module *modules, uint64_t module_count,
                                       const char *directory);

#endif
