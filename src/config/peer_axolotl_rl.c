/*
 * peer_axolotl_rl.c: axolotl's objectives (its src/axolotl/core/builders/rl.py, 2026), which are TRL's.
 */
#include "config/peer_axolotl.h"

#include <string.h>

#define DPO   TSR_AXOLOTL_DPO
#define IPO   TSR_AXOLOTL_IPO
#define ORPO  TSR_AXOLOTL_ORPO
#define KTO   TSR_AXOLOTL_KTO
#define SIMPO TSR_AXOLOTL_SIMPO

static const struct {
    const char *rl;
    tsr_axolotl_rl kind;
    const char *objective, *loss; /* NULL: that of the objective */
} objectives[] = {
    {"dpo", DPO, "dpo", NULL}, {"ipo", IPO, "dpo", "ipo"},       {"orpo", ORPO, "orpo", NULL},
    {"kto", KTO, "kto", NULL}, {"simpo", SIMPO, "cpo", "simpo"},
};

#define COUNT(array) (sizeof(array) / sizeof *(array))

tsr_axolotl_rl tsr_axolotl_rl_of(const tsr_peers_work *work)
{
    const tsr_config_entry *rl = tsr_peers_find(work, "rl");
    if (!rl || tsr_peers_is_one_of(&rl->value, "false"))
        return TSR_AXOLOTL_NONE;
    for (size_t i = 0; i < COUNT(objectives); i++)
        if (tsr_peers_is_one_of(&rl->value, objectives[i].rl))
            return objectives[i].kind;
    return TSR_AXOLOTL_OTHER;
}

/* TRL takes the other answers of a micro-batch for z, and refuses one of a single row. */
static void check_kto_batch(tsr_peers_work *work, const tsr_config_entry *entry)
{
    double rows = tsr_peers_number(work, "per_device_train_batch_size",
                                   tsr_peers_number(work, "micro_batch_size", 1));
    if (rows < 2)
        tsr_peers_refuse(work, entry, &entry->value,
                         "it compares the answers of a micro-batch: write micro_batch_size: 2 or "
                         "more");
}

void tsr_axolotl_convert_rl(tsr_peers_work *work, const tsr_config_entry *entry)
{
    tsr_axolotl_rl kind = tsr_axolotl_rl_of(work);
    if (kind == TSR_AXOLOTL_OTHER)
        tsr_peers_refuse(work, entry, &entry->value,
                         "expected dpo, ipo, orpo, kto or simpo; nothing is generated while "
                         "training, so there is no grpo, gdpo or ebft");
    for (size_t i = 0; i < COUNT(objectives); i++)
        if (objectives[i].kind == kind) {
            tsr_peers_give_text(work, entry, "objective", objectives[i].objective);
            if (objectives[i].loss)
                tsr_peers_give_text(work, entry, "loss_type", objectives[i].loss);
        }
    if (kind == KTO)
        check_kto_batch(work, entry);
}

/* ---- beta ---- */

/* trl.beta, rl_beta (once dpo_beta) and orpo_alpha are one parameter: of several the first counts. */
static const char *const betas[] = {"trl", "rl_beta", "dpo_beta", "orpo_alpha"};

static const tsr_yaml_value *beta_in(const tsr_config_entry *entry)
{
    return strcmp(entry->name, "trl") != 0 ? &entry->value
                                           : tsr_peers_member(&entry->value, "beta");
}

static bool has_stronger(const tsr_peers_work *work, const char *name)
{
    for (size_t i = 0; i < COUNT(betas) && strcmp(betas[i], name) != 0; i++) {
        const tsr_config_entry *other = tsr_peers_find(work, betas[i]);
        if (other && beta_in(other))
            return true;
    }
    return false;
}

void tsr_axolotl_convert_beta(tsr_peers_work *work, const tsr_config_entry *entry)
{
    tsr_axolotl_rl kind = tsr_axolotl_rl_of(work);
    const tsr_yaml_value *beta = beta_in(entry);
    if (!kind || kind == TSR_AXOLOTL_OTHER || !beta)
        tsr_peers_idle(work, entry, "it belongs to rl");
    else if (has_stronger(work, entry->name))
        tsr_peers_idle(work, entry, "another key gives beta");
    else
        tsr_peers_give(work, entry, "beta", *beta);
}

/* ---- others ---- */

static const struct {
    const char *name, *here;
    unsigned kinds; /* that it belongs to */
    bool only;      /* it is an error elsewhere there */
    bool nothing;   /* false and 0 are "not given" */
    const char *idle;
} keys[] = {
    {"dpo_loss_type", "loss_type", DPO, true, false, NULL},
    {"dpo_loss_weights", "loss_weights", DPO, true, false, NULL},
    {"dpo_label_smoothing", "label_smoothing", DPO, false, true, "it belongs to rl: dpo"},
    {"dpo_use_weighting", "use_weighting", DPO | IPO, false, false, "it belongs to rl: dpo"},
    {"simpo_gamma", "simpo_gamma", SIMPO, false, false, "it belongs to rl: simpo"},
    {"cpo_alpha", "cpo_alpha", SIMPO, false, false, "it belongs to rl: simpo"},
    {"kto_desirable_weight", "desirable_weight", KTO, false, true, "it belongs to rl: kto"},
    {"kto_undesirable_weight", "undesirable_weight", KTO, false, true, "it belongs to rl: kto"},
};

void tsr_axolotl_convert_rl_key(tsr_peers_work *work, const tsr_config_entry *entry)
{
    size_t i = 0;
    while (i < COUNT(keys) - 1 && strcmp(keys[i].name, entry->name) != 0)
        i++;
    bool own = keys[i].kinds & (unsigned)tsr_axolotl_rl_of(work);
    if (!own && keys[i].only)
        tsr_peers_refuse(work, entry, &entry->value, "it belongs to rl: dpo; leave it out");
    else if (!own)
        tsr_peers_idle(work, entry, keys[i].idle);
    else if (keys[i].nothing && tsr_peers_is_one_of(&entry->value, "0"))
        tsr_peers_idle(work, entry, "0 is as if it was not given");
    else
        tsr_peers_give(work, entry, keys[i].here, entry->value);
}

void tsr_axolotl_convert_packing(tsr_peers_work *work, const tsr_config_entry *entry)
{
    if (tsr_axolotl_rl_of(work) && tsr_peers_is_true(&entry->value))
        tsr_peers_refuse(work, entry, &entry->value,
                         "rl packs no rows there; leave it out, or write packing: true for rows "
                         "packed here");
    else
        tsr_peers_give(work, entry, "packing", entry->value);
}

/* For these three only the adapter's shape is taken there, and TRL makes a new one. */
void tsr_axolotl_convert_adapter_dir(tsr_peers_work *work, const tsr_config_entry *entry)
{
    if ((unsigned)tsr_axolotl_rl_of(work) & (DPO | IPO | KTO))
        tsr_peers_refuse(work, entry, &entry->value,
                         "with rl: dpo, ipo and kto its values are not read there, and a new "
                         "adapter is trained; leave it out, or write init_adapter: its directory "
                         "to go on with it");
    else
        tsr_peers_give(work, entry, "init_adapter", entry->value);
}
