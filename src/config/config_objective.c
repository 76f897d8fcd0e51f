/*
 * config_objective.c: the losses of an objective, its defaults, and what does not go with it.
 */
#include "config/config_number.h"
#include "config/config_store.h"

#include <math.h>
#include <string.h>

#define DPO  (1u << TSR_OBJECTIVE_DPO)
#define ORPO (1u << TSR_OBJECTIVE_ORPO)
#define CPO  (1u << TSR_OBJECTIVE_CPO)
#define KTO  (1u << TSR_OBJECTIVE_KTO)

#define REWARD (1u << TSR_OBJECTIVE_REWARD)

static const char *const kinds[] = {
    [TSR_OBJECTIVE_SFT] = "sft", [TSR_OBJECTIVE_DPO] = "dpo", [TSR_OBJECTIVE_ORPO] = "orpo",
    [TSR_OBJECTIVE_CPO] = "cpo", [TSR_OBJECTIVE_KTO] = "kto", [TSR_OBJECTIVE_REWARD] = "reward"};

/* Words of loss_type, and the objectives that have them. */
static const struct {
    const char *word;
    tsr_prefer loss;
    unsigned objectives;
} losses[] = {
    {"sigmoid", TSR_PREFER_SIGMOID, DPO | CPO},
    {"hinge", TSR_PREFER_HINGE, DPO | CPO},
    {"ipo", TSR_PREFER_IPO, DPO | CPO},
    {"robust", TSR_PREFER_ROBUST, DPO},
    {"exo_pair", TSR_PREFER_EXO_PAIR, DPO},
    {"nca_pair", TSR_PREFER_NCA_PAIR, DPO},
    {"bco_pair", TSR_PREFER_BCO_PAIR, DPO},
    {"sppo_hard", TSR_PREFER_SPPO_HARD, DPO},
    {"apo_zero", TSR_PREFER_APO_ZERO, DPO},
    {"apo_down", TSR_PREFER_APO_DOWN, DPO},
    {"aot", TSR_PREFER_AOT, DPO},
    {"aot_unpaired", TSR_PREFER_AOT_UNPAIRED, DPO},
    {"discopop", TSR_PREFER_DISCOPOP, DPO},
    {"sigmoid_norm", TSR_PREFER_SIGMOID_NORM, DPO},
    {"sft", TSR_PREFER_SFT, DPO},
    {"simpo", TSR_PREFER_SIMPO, CPO},
    {"alphapo", TSR_PREFER_SIMPO, CPO},
    {"kto", TSR_PREFER_KTO, KTO},
    {"apo_zero_unpaired", TSR_PREFER_APO_ZERO_UNPAIRED, KTO},
};

#define LOSSES (sizeof losses / sizeof *losses)

/* Keys that say nothing with other objectives than these. */
static const struct {
    const char *key;
    unsigned objectives;
} keys[] = {
    {"loss_type", DPO | CPO | KTO},
    {"loss_weights", DPO},
    {"beta", DPO | ORPO | CPO | KTO},
    {"label_smoothing", DPO | CPO},
    {"ref_adapter", DPO | KTO},
    {"answer_begin", DPO | ORPO | CPO | KTO},
    {"wrap_conversations", ORPO | CPO},
    {"ld_alpha", DPO},
    {"use_weighting", DPO},
    {"f_divergence_type", DPO},
    {"f_alpha_divergence_coef", DPO},
    {"discopop_tau", DPO},
    {"cpo_alpha", CPO},
    {"simpo_gamma", CPO},
    {"alpha", CPO},
    {"desirable_weight", KTO},
    {"undesirable_weight", KTO},
    {"center_rewards_coefficient", REWARD},
};

const char *tsr_config_objective_name(tsr_objective_kind kind)
{
    return kinds[kind];
}

const char *tsr_config_reference(const tsr_config *config)
{
    bool named = config->ref_adapter && strcmp(config->ref_adapter, "base") != 0;
    return named ? config->ref_adapter : NULL;
}

/* The first loss of this name that the objective has; LOSSES: there is none. */
static size_t find_loss(const char *word, tsr_objective_kind kind)
{
    size_t i = 0;
    while (i < LOSSES &&
           (strcmp(losses[i].word, word) != 0 || !(losses[i].objectives & 1u << kind)))
        i++;
    return i;
}

/* Whether all of them are. */
static bool take_losses(tsr_objective *objective, const tsr_config_strings *words)
{
    bool known = words->count <= TSR_PREFER_LOSSES;
    for (int i = 0; i < words->count && known; i++) {
        size_t found = find_loss(words->items[i], objective->kind);
        known = found < LOSSES;
        if (!known)
            break;
        objective->loss[i] = losses[found].loss;
        objective->loss_weight[i] = 1;
        if (!strcmp(words->items[i], "alphapo"))
            objective->cpo_alpha = 0;
    }
    objective->count = known ? words->count : 0;
    return known;
}

void tsr_config_derive_objective(tsr_config *config)
{
    tsr_objective *objective = &config->objective;
    if (objective->kind == TSR_OBJECTIVE_SFT)
        return;
    objective->count = 1;
    objective->loss[0] = objective->kind == TSR_OBJECTIVE_KTO ? TSR_PREFER_KTO : TSR_PREFER_SIGMOID;
    objective->loss_weight[0] = 1;
    if (config->loss_type.count)
        take_losses(objective, &config->loss_type);
    for (int i = 0; i < config->loss_weights.count && i < objective->count; i++)
        tsr_number_parse(&objective->loss_weight[i], config->loss_weights.items[i]);
    bool scores = objective->kind == TSR_OBJECTIVE_REWARD;
    if (!tsr_config_is_set(config, "learning_rate"))
        config->learning_rate = scores ? 1e-4 : 1e-6;
    if (scores && !tsr_config_is_set(config, "truncation"))
        config->truncation = TSR_CONFIG_TRUNCATION_DROP;
    if (objective->kind == TSR_OBJECTIVE_KTO && !tsr_config_is_set(config, "shuffle"))
        config->shuffle = false;
    if (config->disable_dropout)
        config->lora_dropout = 0;
}

bool tsr_config_objective_decides(const tsr_config *config, const char *name)
{
    tsr_objective_kind kind = config->objective.kind;
    return (kind != TSR_OBJECTIVE_SFT && !strcmp(name, "learning_rate")) ||
           (kind == TSR_OBJECTIVE_REWARD && !strcmp(name, "truncation")) ||
           (kind == TSR_OBJECTIVE_KTO && !strcmp(name, "shuffle"));
}

/* ---- checks ---- */

static void check_loss_type(const tsr_config *config, tsr_config_errors *errors)
{
    const tsr_config_strings *words = &config->loss_type;
    tsr_objective objective = config->objective;
    tsr_auto_text known = {0}, found = {0};
    if (take_losses(&objective, words) &&
        (words->count == 1 || objective.kind == TSR_OBJECTIVE_DPO))
        return;
    for (size_t i = 0; i < LOSSES; i++)
        if (losses[i].objectives & 1u << objective.kind)
            tsr_text_printf(&known, "%s%s", known.length ? ", " : "", losses[i].word);
    for (int i = 0; i < words->count; i++)
        tsr_text_printf(&found, "%s%s", i ? ", " : "", words->items[i]);
    if (!words->count)
        tsr_text_puts(&found, "an empty list");
    tsr_config_error(
        errors, tsr_config_where(config, "loss_type"), "loss_type: found '%s'; %s has %s%s",
        tsr_text_string(&found), kinds[objective.kind], tsr_text_string(&known),
        objective.kind == TSR_OBJECTIVE_DPO ? ", or a list of up to 8 of them" : ", one of them");
}

static void check_weights(const tsr_config *config, tsr_config_errors *errors)
{
    const tsr_config_strings *words = &config->loss_weights;
    const char *where = tsr_config_where(config, "loss_weights");
    double weight;
    for (int i = 0; i < words->count; i++)
        if (!tsr_number_parse(&weight, words->items[i]) || !(fabs(weight) <= 1e6)) {
            tsr_config_error(errors, where, "loss_weights: found '%s', expected numbers",
                             words->items[i]);
            return;
        }
    if (words->items && words->count != config->objective.count)
        tsr_config_error(errors, where,
                         "loss_weights: found %d of them, but loss_type (%s) has %d losses; one "
                         "weight is needed for each",
                         words->count, tsr_config_where(config, "loss_type"),
                         config->objective.count);
}

static bool has_loss(const tsr_objective *objective, tsr_prefer loss)
{
    for (int i = 0; i < objective->count; i++)
        if (objective->loss[i] == loss)
            return true;
    return false;
}

/* Values that a loss cannot be made with. */
static void check_values(const tsr_config *config, tsr_config_errors *errors)
{
    const tsr_objective *objective = &config->objective;
    if (has_loss(objective, TSR_PREFER_EXO_PAIR) && !(objective->label_smoothing > 0))
        tsr_config_error(errors, tsr_config_where(config, "label_smoothing"),
                         "label_smoothing: found 0, but the loss exo_pair (%s) takes its "
                         "logarithm; write a number above 0, such as 1e-3",
                         tsr_config_where(config, "loss_type"));
    if (objective->divergence == TSR_DIVERGENCE_ALPHA && objective->f_alpha_divergence_coef == 1)
        tsr_config_error(errors, tsr_config_where(config, "f_alpha_divergence_coef"),
                         "f_alpha_divergence_coef: found 1, by whose distance from 1 the "
                         "divergence is divided; write f_divergence_type: reverse_kl");
}

/* Keys of SFT that mean nothing for pairs. */
static void check_others(const tsr_config *config, tsr_config_errors *errors)
{
    const char *name = kinds[config->objective.kind];
    bool scores = config->objective.kind == TSR_OBJECTIVE_REWARD;
    const char *trained = scores ? "leave it out: the last token of a document is scored"
                                 : "leave it out: an answer's tokens are trained, no prompt's";
    const struct {
        const char *key;
        bool found;
        const char *instead;
    } others[] = {
        {"label_smoothing_factor", config->label_smoothing_factor > 0,
         "leave it out (label_smoothing is that of preferences)"},
        {"train_on_inputs", config->train_on_inputs, trained},
        {"assistant_only_loss", config->assistant_only_loss == TSR_CONFIG_CHOICE_YES,
         scores ? trained : "leave it out: all of an answer is trained"},
        {"completion_only_loss",
         tsr_config_is_set(config, "completion_only_loss") &&
             config->completion_only_loss == TSR_CONFIG_CHOICE_NO && !config->train_on_inputs,
         trained},
        {"response_template", config->response_template != NULL, "leave it out"},
        {"roles_to_train", config->roles_to_train.items != NULL, "leave it out"},
        {"neftune_noise_alpha", config->neftune_noise_alpha > 0,
         scores ? "leave it out" : "leave it out: the reference has no noise"},
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (others[i].found)
            tsr_config_error(errors, tsr_config_where(config, others[i].key),
                             "%s does not go with objective: %s (%s); %s", others[i].key, name,
                             tsr_config_where(config, "objective"), others[i].instead);
}

/* What is scored is the end of a document, so none is cut. */
static void check_scored(const tsr_config *config, tsr_config_errors *errors)
{
    if (config->objective.kind != TSR_OBJECTIVE_REWARD)
        return;
    if (config->adapter_mixing == TSR_CONFIG_ADAPTERS_MIXED)
        tsr_config_error(
            errors, tsr_config_where(config, "adapter_mixing"),
            "adapter_mixing: tokens does not go with objective: reward (%s), whose head "
            "is trained; write none",
            tsr_config_where(config, "objective"));
    if (config->truncation != TSR_CONFIG_TRUNCATION_RIGHT)
        return;
    tsr_config_error(errors, tsr_config_where(config, "truncation"),
                     "truncation: found right, but objective: reward (%s) scores the last token of "
                     "a document, which it cuts off; write drop, which TRL does, or error",
                     tsr_config_where(config, "objective"));
}

/* Documents of preferences are compared whole: the later parts of an answer would have no prompt. */
static void check_split(const tsr_config *config, tsr_config_errors *errors)
{
    bool scores = config->objective.kind == TSR_OBJECTIVE_REWARD;
    if (config->truncation == TSR_CONFIG_TRUNCATION_SPLIT)
        tsr_config_error(errors, tsr_config_where(config, "truncation"),
                         "truncation: found split, but objective: %s (%s) compares whole answers "
                         "to a prompt; write %sdrop or error",
                         tsr_config_objective_name(config->objective.kind),
                         tsr_config_where(config, "objective"), scores ? "" : "right, ");
}

/* A key of an objective, with another one. */
static void check_idle(const tsr_config *config, tsr_config_errors *errors)
{
    tsr_objective_kind kind = config->objective.kind;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const tsr_key *key = tsr_keys_at(tsr_keys_find(keys[i].key));
        tsr_auto_text value = {0}, names = {0};
        if (keys[i].objectives & 1u << kind || !tsr_config_is_set(config, key->name))
            continue;
        tsr_config_put(&value, config, key);
        if (tsr_config_same_text(config, key, tsr_text_string(&value), key->initial))
            continue;
        if (kind == TSR_OBJECTIVE_SFT && config->loss_type.count == 1 &&
            !strcmp(key->name, "loss_type") && !strcmp(config->loss_type.items[0], "nll"))
            continue;
        for (int k = 0; k < (int)(sizeof kinds / sizeof *kinds); k++)
            if (keys[i].objectives & 1u << k)
                tsr_text_printf(&names, "%s%s", names.length ? ", " : "", kinds[k]);
        tsr_config_error(errors, tsr_config_where(config, key->name),
                         "%s: found %s, but objective is %s (%s)%s; the key belongs to %s%s",
                         key->name, tsr_text_string(&value), kinds[kind],
                         tsr_config_where(config, "objective"),
                         kind == TSR_OBJECTIVE_SFT && !strcmp(key->name, "loss_type")
                             ? ", whose only loss is nll"
                             : "",
                         tsr_text_string(&names),
                         !strcmp(key->name, "alpha") ? "; the adapter's is lora_alpha" : "");
    }
}

void tsr_config_check_objective(const tsr_config *config, tsr_config_errors *errors)
{
    check_idle(config, errors);
    if (config->objective.kind == TSR_OBJECTIVE_SFT)
        return;
    bool one = config->objective.kind == TSR_OBJECTIVE_ORPO ||
               config->objective.kind == TSR_OBJECTIVE_REWARD;
    if (config->loss_type.items && !one)
        check_loss_type(config, errors);
    check_weights(config, errors);
    check_values(config, errors);
    check_others(config, errors);
    check_scored(config, errors);
    check_split(config, errors);
}
