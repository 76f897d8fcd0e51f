/*
 * peer_llamafactory_pairs.c: LLaMA-Factory's stages dpo and kto (its train/dpo/trainer.py, train/kto/trainer.py and
 * data/converter.py, 2026), where this program can say the same.
 */
#include "config/config_number.h"
#include "config/peer_llamafactory.h"

#include <math.h>
#include <string.h>

#define LEAST 1e-6 /* a weight up to this is none there */

static bool is_stage(const tsr_peers_work *work, const char *stage)
{
    const tsr_config_entry *entry = tsr_peers_find(work, "stage");
    return entry && tsr_peers_is_one_of(&entry->value, stage);
}

bool tsr_llamafactory_has_pairs(const tsr_peers_work *work)
{
    return is_stage(work, "dpo kto");
}

static bool is_loss(const tsr_peers_work *work, const char *losses)
{
    const tsr_config_entry *entry = tsr_peers_find(work, "pref_loss");
    static const tsr_yaml_value usual = {.kind = TSR_YAML_SCALAR, .text = "sigmoid"};
    return is_stage(work, "dpo") && tsr_peers_is_one_of(entry ? &entry->value : &usual, losses);
}

/* ---- losses ---- */

static tsr_yaml_value number(const tsr_peers_work *work, double value)
{
    tsr_text text = {0};
    tsr_number_put(&text, value, 0);
    tsr_yaml_value out = tsr_peers_text(work, tsr_text_string(&text));
    work->store->failed |= text.failed;
    tsr_text_free(&text);
    return out;
}

/* The weight of the chosen answers' own loss: there the mean of the pairs' means, here the mean of all tokens, which is the
 * same of one pair. */
static double ftx_of(tsr_peers_work *work)
{
    const tsr_config_entry *entry = tsr_peers_find(work, "pref_ftx");
    double weight = tsr_peers_number(work, "pref_ftx", 0);
    if (!(weight > LEAST))
        return 0;
    if (tsr_peers_number(work, "per_device_train_batch_size", 8) != 1)
        tsr_peers_refuse(work, entry, &entry->value,
                         "it weighs all pairs of a micro-batch alike there, and all tokens here: "
                         "write per_device_train_batch_size: 1, and more "
                         "gradient_accumulation_steps");
    return weight;
}

/* (1 - e) A + e B, of A = -log s(x) and B = -log s(-x), is 2 (1 - e) A - (1 - 2 e) robust. */
static double smoothing_of(tsr_peers_work *work)
{
    const tsr_config_entry *entry = tsr_peers_find(work, "dpo_label_smoothing");
    double share = tsr_peers_number(work, "dpo_label_smoothing", 0);
    if (!(share > LEAST))
        return 0;
    if (is_loss(work, "sigmoid") && share < 0.5)
        return share;
    tsr_peers_refuse(work, entry, &entry->value,
                     "expected a number below 0.5, with pref_loss: sigmoid");
    return 0;
}

static void give_losses(tsr_peers_work *work, const tsr_config_entry *from, const char *loss)
{
    const tsr_config_entry *smooth = tsr_peers_find(work, "dpo_label_smoothing");
    double ftx = ftx_of(work), share = smoothing_of(work);
    tsr_yaml_value losses = tsr_peers_room(work, TSR_YAML_LIST, 3);
    tsr_yaml_value weights = tsr_peers_room(work, TSR_YAML_LIST, 3);
    tsr_peers_push(&losses, tsr_peers_text(work, loss));
    tsr_peers_push(&weights, number(work, share > 0 ? 2 - 2 * share : 1));
    if (share > 0) {
        tsr_peers_push(&losses, tsr_peers_text(work, "robust"));
        tsr_peers_push(&weights, number(work, 2 * share - 1));
        tsr_peers_give(work, smooth, "label_smoothing", smooth->value);
    }
    if (ftx > 0) {
        tsr_peers_push(&losses, tsr_peers_text(work, "sft"));
        tsr_peers_push(&weights, number(work, ftx));
    }
    tsr_peers_give(work, from, "loss_type", losses.count > 1 ? losses : tsr_peers_text(work, loss));
    if (losses.count > 1)
        tsr_peers_give(work, from, "loss_weights", weights);
}

/* By pref_loss. */
static void give_dpo(tsr_peers_work *work, const tsr_config_entry *stage)
{
    const tsr_config_entry *given = tsr_peers_find(work, "pref_loss");
    const tsr_config_entry *from = given ? given : stage;
    bool simpo = is_loss(work, "simpo");
    tsr_peers_give_text(work, stage, "objective", simpo ? "cpo" : "dpo");
    if (simpo) {
        smoothing_of(work);
        tsr_peers_give_text(work, from, "loss_type", "simpo");
        tsr_peers_give(work, from, "cpo_alpha", number(work, ftx_of(work)));
        tsr_peers_give_text(work, stage, "wrap_conversations", "false"); /* the template's text */
    } else if (is_loss(work, "sigmoid hinge ipo")) {
        if (!is_loss(work, "sigmoid")) /* it leaves TRL's argument loss_type out */
            tsr_peers_remark(work,
                             "pref_loss is what it says; LLaMA-Factory with TRL 0.20 or later "
                             "computes sigmoid for hinge and ipo");
        give_losses(work, from,
                    is_loss(work, "hinge") ? "hinge"
                    : is_loss(work, "ipo") ? "ipo"
                                           : "sigmoid");
    } else if (is_loss(work, "orpo")) {
        tsr_peers_refuse(work, from, &from->value,
                         "the chosen answer's own loss is over the answer's tokens there, and over "
                         "the prompt's too in objective: orpo, which is TRL's; expected sigmoid, "
                         "hinge, ipo or simpo");
    } else {
        tsr_peers_refuse(work, from, &from->value,
                         "expected sigmoid, hinge, ipo or simpo (kto_pair: stage: kto)");
    }
}

/* z is of the mismatched answers of a micro-batch. */
static void give_kto(tsr_peers_work *work, const tsr_config_entry *stage)
{
    const tsr_config_entry *ftx = tsr_peers_find(work, "pref_ftx");
    tsr_peers_give_text(work, stage, "objective", "kto");
    if (tsr_peers_number(work, "per_device_train_batch_size", 8) < 2)
        tsr_peers_refuse(work, stage, &stage->value,
                         "it compares answers of a micro-batch here: write "
                         "per_device_train_batch_size: 2 or more");
    if (tsr_peers_number(work, "pref_ftx", 0) > LEAST)
        tsr_peers_refuse(work, ftx, &ftx->value,
                         "objective: kto has no loss of good answers beside its own; expected 0");
    if (!tsr_peers_find(work, "disable_shuffling") && !tsr_peers_find(work, "shuffle"))
        tsr_peers_give_text(work, stage, "shuffle", "true");
    tsr_peers_remark(work, "kto sees a prompt with the answer before it too, and the first of "
                           "per_device_train_batch_size rows gets that of their last");
}

void tsr_llamafactory_objective(tsr_peers_work *work, const tsr_config_entry *stage)
{
    if (!tsr_peers_find(
            work, "learning_rate")) /* as said, since an objective's own default is another one */
        tsr_peers_give_text(work, stage, "learning_rate", "5e-5");
    if (is_stage(work, "kto"))
        give_kto(work, stage);
    else
        give_dpo(work, stage);
}

/* ---- keys ---- */

static const char no_stage[] = "it belongs to stages dpo and kto";

void tsr_llamafactory_with_stage(tsr_peers_work *work, const tsr_config_entry *entry)
{
    bool smoothing = !strcmp(entry->name, "dpo_label_smoothing");
    bool weight = smoothing || !strcmp(entry->name, "pref_ftx");
    bool dpo = smoothing || !strcmp(entry->name, "pref_loss");
    if (!tsr_llamafactory_has_pairs(work))
        tsr_peers_idle(work, entry, no_stage);
    else if (dpo && !is_stage(work, "dpo"))
        tsr_peers_idle(work, entry, "it belongs to stage: dpo");
    else if (!tsr_peers_find(work, "ref_model") && !strncmp(entry->name, "ref_", 4))
        tsr_peers_idle(work, entry, "it belongs to ref_model");
    else if (weight && isnan(tsr_peers_number(work, entry->name, NAN)))
        tsr_peers_refuse(work, entry, &entry->value, "expected a number");
}

void tsr_llamafactory_key(tsr_peers_work *work, const tsr_config_entry *entry)
{
    static const struct {
        const char *name, *here, *stage;
    } keys[] = {{"pref_beta", "beta", "dpo kto"},
                {"simpo_gamma", "simpo_gamma", "dpo"},
                {"kto_chosen_weight", "desirable_weight", "kto"},
                {"kto_rejected_weight", "undesirable_weight", "kto"}};
    int i = 0;
    while (i < 3 && strcmp(keys[i].name, entry->name) != 0)
        i++;
    if (is_stage(work, keys[i].stage) && (i != 1 || is_loss(work, "simpo")))
        tsr_peers_give(work, entry, keys[i].here, entry->value);
    else
        tsr_peers_idle(work, entry, no_stage);
}

void tsr_llamafactory_refused(tsr_peers_work *work, const tsr_config_entry *entry)
{
    bool bco = !strcmp(entry->name, "pref_bco_weight");
    double value = tsr_peers_number(work, entry->name, bco ? 1 : 0);
    if (!is_stage(work, "dpo"))
        tsr_peers_idle(work, entry, no_stage);
    else if (bco && value > LEAST)
        tsr_peers_refuse(work, entry, &entry->value,
                         "its loss subtracts a running mean of the rewards, which bco_pair does "
                         "not; expected 0");
    else if (!bco && value != 1)
        tsr_peers_refuse(work, entry, &entry->value,
                         "it weighs the model's tokens alone there, and the reference's too here; "
                         "expected 1, or leave it out");
}

/* ---- the reference ---- */

/* Whether the stage compares with a reference. */
static bool has_reference(const tsr_peers_work *work)
{
    return is_stage(work, "kto") || is_loss(work, "sigmoid hinge ipo");
}

static bool same_value(const tsr_peers_work *work, const char *a, const char *b)
{
    const tsr_config_entry *first = tsr_peers_find(work, a), *second = tsr_peers_find(work, b);
    if (!first || !second)
        return !first && !second;
    return first->value.kind == TSR_YAML_SCALAR && second->value.kind == TSR_YAML_SCALAR &&
           !strcmp(first->value.text, second->value.text);
}

void tsr_llamafactory_reference(tsr_peers_work *work, const tsr_config_entry *entry)
{
    const tsr_config_entry *adapters = tsr_peers_find(work, "ref_model_adapters");
    const tsr_config_entry *bits = tsr_peers_find(work, "ref_model_quantization_bit");
    if (!has_reference(work))
        tsr_peers_idle(work, entry, "there is no reference");
    else if (!same_value(work, "ref_model", "model_name_or_path"))
        tsr_peers_refuse(work, entry, &entry->value,
                         "the reference is the model that is trained, without an adapter or with "
                         "another one: write model_name_or_path's directory, or leave it out");
    else if (!same_value(work, "ref_model_quantization_bit", "quantization_bit"))
        tsr_peers_refuse(work, bits ? bits : entry, bits ? &bits->value : &entry->value,
                         "the reference has the weights of the model that is trained; write "
                         "ref_model_quantization_bit as quantization_bit");
    else if (adapters)
        tsr_peers_give(work, adapters, "ref_adapter", adapters->value);
    else
        tsr_peers_give_text(work, entry, "ref_adapter", "base");
}

/* The reference is the base there. */
void tsr_llamafactory_adapter(tsr_peers_work *work, const tsr_config_entry *entry)
{
    tsr_peers_give(work, entry, "init_adapter", entry->value);
    if (has_reference(work) && !tsr_peers_find(work, "ref_model"))
        tsr_peers_give_text(work, entry, "ref_adapter", "base");
}

/* ---- data sets ---- */

static void put_text(const tsr_peers_work *work, tsr_yaml_value *out, const char *key,
                     const char *text)
{
    tsr_peers_put(work, out, key, tsr_peers_text(work, text));
}

static void put_column(const tsr_peers_work *work, tsr_yaml_value *out,
                       const tsr_yaml_value *columns, const char *theirs, const char *here)
{
    const tsr_yaml_value *column = tsr_peers_member(columns, theirs);
    if (column)
        tsr_peers_put(work, out, here, *column);
}

/* The prompt's columns, of which there are no others than those that are named. */
static void put_prompt(const tsr_peers_work *work, tsr_yaml_value *out,
                       const tsr_yaml_value *columns, const tsr_yaml_value *set, bool chat,
                       bool kto)
{
    const tsr_yaml_value *tags = tsr_peers_member(set, "tags");
    const tsr_yaml_value *role = tags ? tsr_peers_member(tags, "role_tag") : NULL;
    const tsr_yaml_value *content = tags ? tsr_peers_member(tags, "content_tag") : NULL;
    if (!chat) {
        put_column(work, out, columns, "prompt", "field_instruction");
        put_column(work, out, columns, "query", "field_input");
        put_column(work, out, columns, "history", "field_history");
    } else {
        tsr_yaml_value map = tsr_peers_room(work, TSR_YAML_MAP, 2);
        put_column(work, out, columns, "messages", kto ? "field_completion" : "field_prompt");
        tsr_peers_put(work, &map, "role", role ? *role : tsr_peers_text(work, "from"));
        tsr_peers_put(work, &map, "content", content ? *content : tsr_peers_text(work, "value"));
        tsr_peers_put(work, out, "message_property_mappings", map);
    }
    put_column(work, out, columns, "system", "field_system");
    put_column(work, out, columns, "tools", "field_tools");
}

bool tsr_llamafactory_put_pairs(tsr_peers_work *work, tsr_yaml_value *out,
                                const tsr_config_entry *entry, const tsr_yaml_value *name,
                                const tsr_yaml_value *set)
{
    static const tsr_yaml_value none = {.kind = TSR_YAML_MAP};
    bool kto = is_stage(work, "kto");
    const tsr_yaml_value *given = tsr_peers_member(set, "columns"),
                         *columns = given ? given : &none;
    const tsr_yaml_value *format = tsr_peers_member(set, "formatting");
    const tsr_yaml_value *ranking = tsr_peers_member(set, "ranking");
    const tsr_config_entry *template = tsr_peers_find(work, "template");
    const char *word = template ? tsr_llamafactory_template_name(&template->value) : NULL;
    bool chat = format && tsr_peers_is_one_of(format, "sharegpt openai");
    bool ranked = ranking && tsr_peers_is_true(ranking);
    bool answers =
        kto ? tsr_peers_member(columns, "kto_tag") != NULL
            : tsr_peers_member(columns, "chosen") && tsr_peers_member(columns, "rejected");
    const char *first = chat ? "messages" : "prompt";
    if (ranked == kto || !answers || !tsr_peers_member(columns, first)) {
        tsr_peers_refuse(work, entry, name,
                         kto ? "stage: kto takes data sets without \"ranking\" whose \"columns\" "
                               "have %s and kto_tag"
                             : "stage: dpo takes data sets with \"ranking\": true whose "
                               "\"columns\" have %s, chosen and rejected",
                         first);
        return false;
    }
    put_text(work, out, "format", kto ? "unpaired" : "preference");
    put_prompt(work, out, columns, set, chat, kto);
    put_column(work, out, columns, "chosen", "field_chosen");
    put_column(work, out, columns, "rejected", "field_rejected");
    if (kto && !chat)
        put_column(work, out, columns, "response", "field_completion");
    put_column(work, out, columns, "kto_tag", "field_label");
    put_text(work, out, "chat_template", word ? word : "tokenizer_default");
    return true;
}
