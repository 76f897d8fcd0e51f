/*
 * inputs/adapter_experts.h: adapters on the parameters of experts, as PEFT's files have them (target_parameters).
 *
 * PEFT wraps the module once for each parameter that has an adapter, and names tensors by the wrapper. With two,
 * "mlp.experts.base_layer" is the model's first parameter (gate_up_proj) and "mlp.experts" the second. With one,
 * "mlp.experts" is whichever target_parameters names.
 */
#ifndef TSR_INPUTS_ADAPTER_EXPERTS_H
#define TSR_INPUTS_ADAPTER_EXPERTS_H

#include "inputs/adapter.h"

/* Joins init's adapters on linears that experts once were into adapters on experts, as PEFT 0.21 does. Its configuration
 * then names the parameters. */
tsr_status tsr_adapter_experts_join(tsr_peft *init, const tsr_adapter_module *modules,
                                    uint64_t module_count, const char *directory);

/* Renames the experts' modules of adapter->init to their parameters. Call it once the set is made. */
tsr_status tsr_adapter_experts_name(tsr_train_adapter *adapter, const tsr_adapter_module *modules);

/* Checks the stored shapes of one of them. */
tsr_status tsr_adapter_experts_check(const tsr_peft_module *stored, const tsr_adapter *a,
                                     const tsr_adapter_module *module, const char *directory);

/* For a stored module that matches no adapter of the set. TSR_EDATA: it belongs to experts. */
tsr_status tsr_adapter_experts_unknown(const tsr_train_adapter *adapter, const char *path,
                                       const tsr_adapter_module *modules, uint64_t module_count,
                                       const char *directory);

/* Whether both lists of names select the same parameters of a model; whether a list selects all of them; whether a pattern's
 * key is one of the names, or a path that ends in one. */
bool tsr_adapter_experts_same(const tsr_config_strings *own, const tsr_peft_match *other,
                              const tsr_adapter_module *modules, uint64_t module_count);
bool tsr_adapter_experts_all(const tsr_peft_match *names, const tsr_adapter_module *modules,
                             uint64_t module_count);
bool tsr_adapter_experts_has(const tsr_peft_match *names, const char *key);

/* What all-linear includes beside the linears, and how PEFT's differs; NULL: nothing to note. Static. */
const char *tsr_adapter_experts_note(const tsr_train_adapter *adapter,
                                     const tsr_adapter_module *modules, uint64_t module_count);

/* TSR_ECONFIG: a key that cannot be combined with adapters on experts, or differs from those of init_adapter. */
tsr_status tsr_adapter_experts_agree(const tsr_train_adapter *adapter, const tsr_config *config,
                                     const tsr_adapter_module *modules, uint64_t module_count);

#endif
