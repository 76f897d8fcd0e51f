/*
 * config/peer_axolotl.h: what axolotl's table takes from peer_axolotl_data.c and peer_axolotl_rl.c, and what these share.
 * Private to config.
 */
#ifndef TSR_CONFIG_PEER_AXOLOTL_H
#define TSR_CONFIG_PEER_AXOLOTL_H

#include "config/peers.h"

/* datasets, test_datasets, pretraining_dataset */
void tsr_axolotl_datasets(tsr_peers_work *work, const tsr_config_entry *entry);

/* chat_template, chat_template_jinja */
void tsr_axolotl_template(tsr_peers_work *work, const tsr_config_entry *entry);

/* The name or file of the template of a data set, or else of the whole; NULL: it is refused. */
const char *tsr_axolotl_template_of(tsr_peers_work *work, const tsr_config_entry *entry,
                                    const tsr_yaml_value *set);

/* Objectives there. */
typedef enum {
    TSR_AXOLOTL_NONE, /* answers alone */
    TSR_AXOLOTL_DPO = 1,
    TSR_AXOLOTL_IPO = 2,
    TSR_AXOLOTL_ORPO = 4,
    TSR_AXOLOTL_KTO = 8,
    TSR_AXOLOTL_SIMPO = 16,
    TSR_AXOLOTL_OTHER = 32 /* which is refused */
} tsr_axolotl_rl;

tsr_axolotl_rl tsr_axolotl_rl_of(const tsr_peers_work *work);

/* rl and the keys that belong to it (peer_axolotl_rl.c) */
void tsr_axolotl_convert_rl(tsr_peers_work *work, const tsr_config_entry *entry);
void tsr_axolotl_convert_beta(tsr_peers_work *work, const tsr_config_entry *entry);
void tsr_axolotl_convert_rl_key(tsr_peers_work *work, const tsr_config_entry *entry);
void tsr_axolotl_convert_packing(tsr_peers_work *work, const tsr_config_entry *entry);
void tsr_axolotl_convert_adapter_dir(tsr_peers_work *work, const tsr_config_entry *entry);

/* The members of a data set of preferences that say what its rows are, by its type; false: it is refused.
 * (peer_axolotl_pairs.c) */
bool tsr_axolotl_put_pairs(tsr_peers_work *work, tsr_yaml_value *out, const tsr_config_entry *entry,
                           const tsr_yaml_value *set);

#endif
