/*
 * config/peer_llamafactory.h: what LLaMA-Factory's table takes from peer_llamafactory_data.c. Private to config.
 */
#ifndef TSR_CONFIG_PEER_LLAMAFACTORY_H
#define TSR_CONFIG_PEER_LLAMAFACTORY_H

#include "config/peers.h"

/* dataset, eval_dataset: names that dataset_dir/dataset_info.json explains, or files. Reads that file. */
void tsr_llamafactory_data(tsr_peers_work *work, const tsr_config_entry *entry);

/* template */
void tsr_llamafactory_template(tsr_peers_work *work, const tsr_config_entry *entry);

#endif
