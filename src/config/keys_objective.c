/*
 * keys_objective.c: the keys of objectives: losses over preferences, what they are compared with, and how their rows are read.
 */
#include "config/config.h"
#include "config/keys.h"

#define END                                                                                        \
    {                                                                                              \
        NULL, 0, NULL                                                                              \
    }
#define G         .group = "objective"
#define AT(field) .offset = offsetof(tsr_config, field)

static const tsr_key_word objective_words[] = {
    {"sft", TSR_OBJECTIVE_SFT, NULL},
    {"dpo", TSR_OBJECTIVE_DPO, NULL},
    {"orpo", TSR_OBJECTIVE_ORPO, NULL},
    {"cpo", TSR_OBJECTIVE_CPO, NULL},
    {"kto", TSR_OBJECTIVE_KTO, NULL},
    {"reward", TSR_OBJECTIVE_REWARD, NULL},
    END,
};
static const tsr_key_word divergence_words[] = {
    {"reverse_kl", TSR_DIVERGENCE_REVERSE_KL, NULL},
    {"forward_kl", TSR_DIVERGENCE_FORWARD_KL, NULL},
    {"js_divergence", TSR_DIVERGENCE_JS, NULL},
    {"alpha_divergence", TSR_DIVERGENCE_ALPHA, NULL},
    END,
};

const tsr_key tsr_objective_keys[] = {
    {"objective", G, TSR_KEY_WORD, AT(objective.kind), objective_words, .flags = TSR_KEY_RESULT,
     .initial = "sft",
     .help = "what is learned from: sft: labels; dpo, orpo, cpo: pairs of a chosen and a rejected "
             "answer; kto: answers labelled good or bad; reward: pairs, whose answers get a number "
             "each"},
    {"loss_type", G, TSR_KEY_STRINGS, AT(loss_type), .flags = TSR_KEY_RESULT, .none = "null",
     .initial = "null",
     .help = "the loss of the objective; dpo also takes a list and adds the losses; null: sigmoid, "
             "or kto for kto (docs/objectives.md)"},
    {"loss_weights", G, TSR_KEY_STRINGS, AT(loss_weights), .flags = TSR_KEY_RESULT, .none = "null",
     .initial = "null", .help = "the weight of each loss in a list; null: 1"},
    {"beta", G, TSR_KEY_NUMBER, AT(objective.beta), .low = 0, .high = 1e6,
     .flags = TSR_KEY_RESULT | TSR_KEY_LOW_OPEN, .initial = "0.1",
     .help = "how strongly the model is kept near the reference; for orpo, the weight of the odds"},
    {"label_smoothing", G, TSR_KEY_NUMBER, AT(objective.label_smoothing), .low = 0, .high = 0.5,
     .flags = TSR_KEY_RESULT | TSR_KEY_HIGH_OPEN, .initial = "0",
     .help = "share of pairs assumed to be labelled the wrong way round; for robust, exo_pair, "
             "aot, aot_unpaired, and for cpo with sigmoid or simpo"},
    {"ref_adapter", G, TSR_KEY_STRING, AT(ref_adapter), .flags = TSR_KEY_PATH | TSR_KEY_RESULT,
     .none = "null", .initial = "null",
     .help = "the reference of dpo and kto; null: the model before step 1; base: the model without "
             "an adapter, even with init_adapter; DIR: the model with the adapter in DIR, which "
             "has the trained one's shape"},
    {"answer_begin", G, TSR_KEY_STRING, AT(answer_begin), .flags = TSR_KEY_PATH | TSR_KEY_RESULT,
     .none = "null", .initial = "null",
     .help = "the text that ends the prompt in rows of text without one, such as "
             "\"\\n\\nAssistant:\"; null: the prompt is all that both answers begin with"},
    {"wrap_conversations", G, TSR_KEY_BOOL, AT(wrap_conversations), .flags = TSR_KEY_RESULT,
     .initial = "true",
     .help = "orpo and cpo: add bos and eos to conversations whose chat template does not, as TRL "
             "does; false: use the template alone"},
    {"disable_dropout", G, TSR_KEY_BOOL, AT(disable_dropout), .flags = TSR_KEY_RESULT,
     .initial = "true", .help = "turn lora_dropout off for objectives other than sft"},
    {"ld_alpha", G, TSR_KEY_NUMBER, AT(objective.ld_alpha), .low = 0, .high = 1,
     .flags = TSR_KEY_RESULT, .none = "null", .none_value = 1, .initial = "null",
     .help = "dpo: the weight of an answer's tokens beyond the length of the pair's shorter "
             "answer; null: 1"},
    {"use_weighting", G, TSR_KEY_BOOL, AT(objective.weighting), .flags = TSR_KEY_RESULT,
     .initial = "false",
     .help = "dpo: weight each pair by the probability that the model gives its answers (WPO)"},
    {"f_divergence_type", G, TSR_KEY_WORD, AT(objective.divergence), divergence_words,
     .flags = TSR_KEY_RESULT, .initial = "reverse_kl",
     .help = "dpo: the divergence that measures the distance from the reference"},
    {"f_alpha_divergence_coef", G, TSR_KEY_NUMBER, AT(objective.f_alpha_divergence_coef),
     .low = -1e3, .high = 1e3, .flags = TSR_KEY_RESULT, .initial = "0.5",
     .help = "alpha of alpha_divergence; not 1"},
    {"discopop_tau", G, TSR_KEY_NUMBER, AT(objective.discopop_tau), .low = 0, .high = 1e6,
     .flags = TSR_KEY_RESULT | TSR_KEY_LOW_OPEN, .initial = "0.05",
     .help = "the temperature of discopop"},
    {"cpo_alpha", G, TSR_KEY_NUMBER, AT(objective.cpo_alpha), .low = 0, .high = 1e6,
     .flags = TSR_KEY_RESULT, .initial = "1",
     .help = "cpo: the weight of the chosen answers' negative log-likelihood"},
    {"simpo_gamma", G, TSR_KEY_NUMBER, AT(objective.simpo_gamma), .low = 0, .high = 1e6,
     .flags = TSR_KEY_RESULT, .initial = "0.5", .help = "the target margin of simpo"},
    {"alpha", G, TSR_KEY_NUMBER, AT(objective.alpha), .low = -1e3, .high = 1e3,
     .flags = TSR_KEY_RESULT, .initial = "0",
     .help = "alpha of alphapo; 0: plain log-probabilities"},
    {"desirable_weight", G, TSR_KEY_NUMBER, AT(objective.desirable_weight), .low = 0, .high = 1e6,
     .flags = TSR_KEY_RESULT, .initial = "1", .help = "kto: the weight of good answers"},
    {"undesirable_weight", G, TSR_KEY_NUMBER, AT(objective.undesirable_weight), .low = 0,
     .high = 1e6, .flags = TSR_KEY_RESULT, .initial = "1",
     .help = "kto: the weight of bad answers"},
    {"center_rewards_coefficient", G, TSR_KEY_NUMBER, AT(objective.center), .low = 0, .high = 1e6,
     .flags = TSR_KEY_RESULT, .none = "null", .none_value = 0, .initial = "null",
     .help =
         "reward: the weight of the squared sum of a pair's rewards, which keeps them around 0; "
         "null: 0"},
};
