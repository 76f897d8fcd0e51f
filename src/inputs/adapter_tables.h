/*
 * inputs/adapter_tables.h: what an adapter trains of the tables of the vocabulary: the head and the embedding whole
 * (modules_to_save), rows of tokens (trainable_token_indices), a LoRA where a target names one. Of inputs/adapter.c.
 */
#ifndef TSR_INPUTS_ADAPTER_TABLES_H
#define TSR_INPUTS_ADAPTER_TABLES_H

#include "inputs/adapter.h"

/* What is trained whole, or rows of. TSR_ECONFIG: another module, or keys that exclude each other. */
tsr_status tsr_adapter_tables_choose(tsr_train_adapter *adapter, const tsr_config *config);

/* That init_adapter is of a model with the head that the objective trains. TSR_ECONFIG: it is a reward model's, and the
 * objective is another. */
tsr_status tsr_adapter_tables_task(const tsr_config *config, const tsr_peft_config *peft);

/* A LoRA of a table, of the set, against what else is trained of it. */
tsr_status tsr_adapter_tables_check(const tsr_train_adapter *adapter, const tsr_config *config);

/* Whether a module of init_adapter's file is one that is trained whole, or that tokens' rows are trained of. */
bool tsr_adapter_tables_has(const tsr_train_adapter *adapter, const tsr_peft_module *stored);

/* What modules_to_save and trainable_token_indices name is in init_adapter's file, and nothing else of that kind; how many.
 * tied: the head's rows may be the embedding's. TSR_EDATA: something is missing, or there is more. */
tsr_status tsr_adapter_tables_count(uint64_t *out, const tsr_train_adapter *adapter,
                                    const tsr_config *config, bool tied);

#endif
