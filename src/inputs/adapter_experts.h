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

/* Joins the adapters of init on linears that experts once were, as those on experts that PEFT 0.21 makes of them; its
 * configuration then names the parameters. */
tsr_status tsr_adapter_experts_join(tsr_peft *init, const tsr_adapter_module *modules,
                                    uint64_t module_count, const char *directory);

/* Gives the modules of adapter->init that are of experts the names of their parameters; the set is made. */
tsr_status tsr_adapter_experts_name(tsr_train_adapter *adapter, const tsr_adapter_module *modules);

/* That what is stored of one of them has its shapes. */
tsr_status tsr_adapter_experts_check(const tsr_peft_module *stored, const tsr_adapter *a,
                                     const tsr_adapter_module *module, const char *directory);

/* A stored module that no adapter of the set is: TSR_EDATA, if it is of experts. */
tsr_status tsr_adapter_experts_unknown(const tsr_train_adapter *adapter, const char *path,
                                       const tsr_adapter_module *modules, uint64_t module_count,
                                       const char *directory);

/* Whether names of parameters mean the same ones, or all that there are, of a model; whether a pattern's key is one of the
 * names, or a path that ends in one. */
bool tsr_adapter_experts_same(const tsr_config_strings *own, const tsr_peft_match *other,
                              const tsr_adapter_module *modules, uint64_t module_count);
bool tsr_adapter_experts_all(const tsr_peft_match *names, const tsr_adapter_module *modules,
                             uint64_t module_count);
bool tsr_adapter_experts_has(const tsr_peft_match *names, const char *key);

/* What all-linear is beside the linears, and PEFT's; NULL: nothing to say. Static. */
const char *tsr_adapter_experts_note(const tsr_train_adapter *adapter,
                                     const tsr_adapter_module *modules, uint64_t module_count);

/* TSR_ECONFIG: a key that does not go with adapters on experts, or is not what init_adapter's are. */
tsr_status tsr_adapter_experts_agree(const tsr_train_adapter *adapter, const tsr_config *config,
                                     const tsr_adapter_module *modules, uint64_t module_count);

#endif
