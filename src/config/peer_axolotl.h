/*
 * config/peer_axolotl.h: what axolotl's table takes from peer_axolotl_data.c. Private to config.
 */
#ifndef TSR_CONFIG_PEER_AXOLOTL_H
#define TSR_CONFIG_PEER_AXOLOTL_H

#include "config/peers.h"

/* datasets, test_datasets, pretraining_dataset */
void tsr_axolotl_datasets(tsr_peers_work *work, const tsr_config_entry *entry);

/* chat_template, chat_template_jinja */
void tsr_axolotl_template(tsr_peers_work *work, const tsr_config_entry *entry);

#endif
