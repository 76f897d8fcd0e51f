/*
 * config/peer_llamafactory.h: what LLaMA-Factory's table takes from peer_llamafactory_data.c and peer_llamafactory_pairs.c. Private to config.
 */
#ifndef TSR_CONFIG_PEER_LLAMAFACTORY_H
#define TSR_CONFIG_PEER_LLAMAFACTORY_H

#include "config/peers.h"

/* dataset, eval_dataset: names that dataset_dir/dataset_info.json explains, or files. Reads that file. */
void tsr_llamafactory_data(tsr_peers_work *work, const tsr_config_entry *entry);

/* template */
void tsr_llamafactory_template(tsr_peers_work *work, const tsr_config_entry *entry);

/* The name of a template here; NULL: it is not known. */
const char *tsr_llamafactory_template_name(const tsr_yaml_value *value);

/* Whether stage is dpo or kto. */
bool tsr_llamafactory_has_pairs(const tsr_peers_work *work);

/* What these stages train (peer_llamafactory_pairs.c). */
void tsr_llamafactory_objective(tsr_peers_work *work, const tsr_config_entry *stage);

/* Keys of theirs: renamed; read by stage or ref_model; without a counterpart. */
void tsr_llamafactory_key(tsr_peers_work *work, const tsr_config_entry *entry);
void tsr_llamafactory_with_stage(tsr_peers_work *work, const tsr_config_entry *entry);
void tsr_llamafactory_refused(tsr_peers_work *work, const tsr_config_entry *entry);

/* ref_model and adapter_name_or_path */
void tsr_llamafactory_reference(tsr_peers_work *work, const tsr_config_entry *entry);
void tsr_llamafactory_adapter(tsr_peers_work *work, const tsr_config_entry *entry);

/* The members of a data set for these stages, as dataset_info.json describes it, beside path, roles and split; false: it is
 * refused. */
bool tsr_llamafactory_put_pairs(tsr_peers_work *work, tsr_yaml_value *out,
                                const tsr_config_entry *entry, const tsr_yaml_value *name,
                                const tsr_yaml_value *set);

#endif
