#include "config/keys.h"

#include "base/log.h"
#include "config/config.h"

#include <math.h>
#include <string.h>

#define END                                                                                        \
    {                                                                                              \
        NULL, 0, NULL                                                                              \
    }

static const char not_here[] = "is not in this version";

static const tsr_key_word choice_words[] = {
    {"auto", TSR_CONFIG_CHOICE_AUTO, NULL},
    {"true", TSR_CONFIG_CHOICE_YES, NULL},
    {"false", TSR_CONFIG_CHOICE_NO, NULL},
    END,
};
static const char only_nf4[] = "is not supported: the base is stored as nf4";
static const tsr_key_word quant_words[] = {{"nf4", 0, NULL}, {"fp4", 1, only_nf4}, END};

static const char no_float16[] = "is not supported: it needs loss scaling; use float32 or bfloat16";
static const tsr_key_word dtype_words[] = {
    {"auto", TSR_CONFIG_DTYPE_AUTO, NULL},
    {"float32", TSR_CONFIG_DTYPE_FLOAT32, NULL},
    {"bfloat16", TSR_CONFIG_DTYPE_BFLOAT16, NULL},
    {"float16", -1, no_float16},
    END,
};
static const tsr_key_word base_compute_words[] = {
    {"dtype", TSR_CONFIG_BASE_COMPUTE_DTYPE, NULL},
    {"fp8", TSR_CONFIG_BASE_COMPUTE_FP8, NULL},
    {"fp8_fast", TSR_CONFIG_BASE_COMPUTE_FP8_FAST, NULL},
    END,
};
static const tsr_key_word format_words[] = {
    {"auto", TSR_CONFIG_FORMAT_AUTO, NULL},
    {"messages", TSR_CONFIG_FORMAT_MESSAGES, NULL},
    {"pretokenized", TSR_CONFIG_FORMAT_PRETOKENIZED, NULL},
    {"sharegpt", TSR_CONFIG_FORMAT_SHAREGPT, NULL},
    {"alpaca", TSR_CONFIG_FORMAT_ALPACA, NULL},
    {"prompt_completion", TSR_CONFIG_FORMAT_PROMPT_COMPLETION, NULL},
    {"input_output", TSR_CONFIG_FORMAT_INPUT_OUTPUT, NULL},
    {"text", TSR_CONFIG_FORMAT_TEXT, NULL},
    {"preference", TSR_CONFIG_FORMAT_PREFERENCE, NULL},
    {"preference_ids", TSR_CONFIG_FORMAT_PREFERENCE_IDS, NULL},
    {"unpaired", TSR_CONFIG_FORMAT_UNPAIRED, NULL},
    END,
};
static const tsr_key_word eot_words[] = {
    {"turn", TSR_CONFIG_EOT_TURN, NULL},
    {"all", TSR_CONFIG_EOT_ALL, NULL},
    {"last", TSR_CONFIG_EOT_LAST, NULL},
    {"none", TSR_CONFIG_EOT_NONE, NULL},
    {"true", TSR_CONFIG_EOT_TURN, NULL},
    {"false", TSR_CONFIG_EOT_NONE, NULL},
    END,
};
static const tsr_key_word mixing_words[] = {
    {"concatenate", TSR_CONFIG_MIXING_CONCATENATE, NULL},
    {"interleave", TSR_CONFIG_MIXING_INTERLEAVE, NULL},
    END,
};
static const tsr_key_word adapters_words[] = {
    {"none", TSR_CONFIG_ADAPTERS_APART, NULL},
    {"tokens", TSR_CONFIG_ADAPTERS_MIXED, NULL},
    END,
};
static const tsr_key_word adapter_schedule_words[] = {
    {"auto", TSR_CONFIG_SCHEDULE_AUTO, NULL},
    {"greedy", TSR_CONFIG_SCHEDULE_GREEDY, NULL},
    {"milp", TSR_CONFIG_SCHEDULE_MILP, NULL},
    END,
};
static const tsr_key_word balance_words[] = {
    {"rows", TSR_CONFIG_BALANCE_ROWS, NULL},
    {"tokens", TSR_CONFIG_BALANCE_TOKENS, NULL},
    END,
};
static const tsr_key_word token_words[] = {
    {"bos_token", 0, NULL}, {"eos_token", 0, NULL}, {"unk_token", 0, NULL},  {"pad_token", 0, NULL},
    {"sep_token", 0, NULL}, {"cls_token", 0, NULL}, {"mask_token", 0, NULL}, END,
};
static const tsr_key_word property_words[] = {
    {"role", 0, NULL},       {"content", 0, NULL},  {"reasoning_content", 0, NULL},
    {"tool_calls", 0, NULL}, {"name", 0, NULL},     {"tool_call_id", 0, NULL},
    {"weight", 0, NULL},     {"training", 0, NULL}, END,
};
static const tsr_key_word role_words[] = {
    {"system", 0, NULL}, {"user", 0, NULL}, {"assistant", 0, NULL}, {"tool", 0, NULL}, END,
};
static const tsr_key_word truncation_words[] = {
    {"error", TSR_CONFIG_TRUNCATION_ERROR, NULL},
    {"right", TSR_CONFIG_TRUNCATION_RIGHT, NULL},
    {"drop", TSR_CONFIG_TRUNCATION_DROP, NULL},
    {"split", TSR_CONFIG_TRUNCATION_SPLIT, NULL},
    END,
};
static const tsr_key_word packing_words[] = {
    {"bfd", 0, NULL},         {"bfd_split", 1, not_here}, {"bfd-requeue", 1, not_here},
    {"wrapped", 1, not_here}, {"ffd", 1, not_here},       END,
};

static const tsr_key_word optim_words[] = {
    {"adamw_torch", TSR_CONFIG_OPTIM_ADAMW, NULL},
    {"adamw", TSR_CONFIG_OPTIM_ADAMW, NULL},
    {"adamw_torch_fused", TSR_CONFIG_OPTIM_ADAMW, NULL},
    {"adamw_8bit", TSR_CONFIG_OPTIM_ADAMW_8BIT, NULL},
    {"adamw_bnb_8bit", TSR_CONFIG_OPTIM_ADAMW_8BIT, NULL},
    {"paged_adamw_8bit", TSR_CONFIG_OPTIM_ADAMW_8BIT, NULL},
    END,
};
static const char follows_loss[] =
    "follows the loss of an evaluation; schedules here are known before the run: cosine or "
    "warmup_stable_decay";
static const tsr_key_word lr_words[] = {
    {"linear", TSR_SCHEDULE_LINEAR, NULL},
    {"cosine", TSR_SCHEDULE_COSINE, NULL},
    {"cosine_with_restarts", TSR_SCHEDULE_COSINE_WITH_RESTARTS, NULL},
    {"cosine_with_min_lr", TSR_SCHEDULE_COSINE_WITH_MIN_LR, NULL},
    {"cosine_warmup_with_min_lr", TSR_SCHEDULE_COSINE_WARMUP_WITH_MIN_LR, NULL},
    {"polynomial", TSR_SCHEDULE_POLYNOMIAL, NULL},
    {"inverse_sqrt", TSR_SCHEDULE_INVERSE_SQRT, NULL},
    {"constant", TSR_SCHEDULE_CONSTANT, NULL},
    {"constant_with_warmup", TSR_SCHEDULE_CONSTANT_WITH_WARMUP, NULL},
    {"warmup_stable_decay", TSR_SCHEDULE_WARMUP_STABLE_DECAY, NULL},
    {"reduce_lr_on_plateau", -1, follows_loss},
    {"greedy", -1, follows_loss},
    END,
};
static const tsr_key_word every_words[] = {
    {"no", TSR_CONFIG_EVERY_NO, NULL},
    {"steps", TSR_CONFIG_EVERY_STEPS, NULL},
    {"epoch", TSR_CONFIG_EVERY_EPOCH, NULL},
    END,
};
static const tsr_key_word best_words[] = {
    {"loss", 0, NULL},
    {"eval_loss", 0, NULL},
    END,
};
static const tsr_key_word recompute_words[] = {
    {"auto", TSR_CONFIG_RECOMPUTE_AUTO, NULL},           {"none", TSR_CONFIG_RECOMPUTE_NONE, NULL},
    {"selective", TSR_CONFIG_RECOMPUTE_SELECTIVE, NULL}, {"full", TSR_CONFIG_RECOMPUTE_FULL, NULL},
    {"sqrt", TSR_CONFIG_RECOMPUTE_SQRT, NULL},           {"true", TSR_CONFIG_RECOMPUTE_FULL, NULL},
    {"false", TSR_CONFIG_RECOMPUTE_NONE, NULL},          END,
};
static const tsr_key_word offload_words[] = {
    {"auto", TSR_CONFIG_OFFLOAD_AUTO, NULL},
    {"none", TSR_CONFIG_OFFLOAD_NONE, NULL},
    {"sharded", TSR_CONFIG_OFFLOAD_SHARDED, NULL},
    {"full", TSR_CONFIG_OFFLOAD_FULL, NULL},
    END,
};
static const tsr_key_word backend_words[] = {
    {"auto", TSR_CONFIG_BACKEND_AUTO, NULL},
    {"cpu", TSR_CONFIG_BACKEND_CPU, NULL},
    {"cuda", TSR_CONFIG_BACKEND_CUDA, NULL}, /* refused by a check where the build has none */
    END,
};
static const tsr_key_word graph_words[] = {
    {"auto", TSR_CONFIG_GRAPH_AUTO, NULL},
    {"fixed", TSR_CONFIG_GRAPH_FIXED, NULL},
    {"flops", TSR_CONFIG_GRAPH_FLOPS, NULL},
    {"time", TSR_CONFIG_GRAPH_TIME, NULL},
    END,
};
static const tsr_key_word report_words[] = {
    {"none", TSR_CONFIG_REPORT_NONE, NULL},
    {"tensorboard", TSR_CONFIG_REPORT_TENSORBOARD, NULL},
    END,
};
static const tsr_key_word log_words[] = {
    {"info", TSR_LOG_INFO, NULL},
    {"debug", TSR_LOG_DEBUG, NULL},
    {"warning", TSR_LOG_WARNING, NULL},
    {"error", TSR_LOG_ERROR, NULL},
    {"passive", TSR_LOG_INFO, NULL},
    {"critical", TSR_LOG_ERROR, NULL},
    END,
};
static const tsr_key_word progress_words[] = {
    {"auto", TSR_CONFIG_PROGRESS_AUTO, NULL},
    {"bar", TSR_CONFIG_PROGRESS_BAR, NULL},
    {"lines", TSR_CONFIG_PROGRESS_LINES, NULL},
    {"none", TSR_CONFIG_PROGRESS_NONE, NULL},
    END,
};
static const tsr_key_word defaults_words[] = {
    {"tessera", TSR_CONFIG_DEFAULTS_TESSERA, NULL},
    {"trl", TSR_CONFIG_DEFAULTS_TRL, NULL},
    END,
};

#define AT(field) .offset = offsetof(tsr_config, field)
#define ANY       HUGE_VAL
#define INT_TOP   9007199254740992.0 /* 2^53: exact as a double */

#define G .group = "model"
static const tsr_key model_keys[] = {
    {"model_name_or_path", G, TSR_KEY_STRING, AT(model_name_or_path),
     .flags = TSR_KEY_OF_BASE | TSR_KEY_PATH, .none = "null", .initial = "null",
     .help = "directory of a Hugging Face checkpoint (required)"},
    {"load_in_4bit", G, TSR_KEY_BOOL, AT(load_in_4bit), .flags = TSR_KEY_OF_BASE | TSR_KEY_RESULT,
     .initial = "true", .trl = "false", .help = "store the frozen base as NF4"},
    {"load_in_8bit", G, TSR_KEY_BOOL, AT(load_in_8bit), .flags = TSR_KEY_OF_BASE | TSR_KEY_RESULT,
     .initial = "false", .help = "store it as LLM.int8 instead: 8-bit codes, one scale a row"},
    {"bnb_4bit_quant_type", G, TSR_KEY_WORD, AT(bnb_4bit_quant_type), quant_words,
     .flags = TSR_KEY_OF_BASE, .initial = "nf4", .help = "4-bit code"},
    {"use_bnb_nested_quant", G, TSR_KEY_BOOL, AT(use_bnb_nested_quant),
     .flags = TSR_KEY_OF_BASE | TSR_KEY_RESULT, .initial = "true", .trl = "false",
     .help = "quantize the scales too"},
    {"dtype", G, TSR_KEY_WORD, AT(dtype), dtype_words, .none = "auto",
     .none_value = TSR_CONFIG_DTYPE_AUTO, .initial = "auto", .trl = "bfloat16",
     .flags = TSR_KEY_OF_BASE | TSR_KEY_RESULT | TSR_KEY_TRL_SAID_ONLY,
     .help = "compute dtype; auto: bfloat16 on a GPU, float32 on a CPU"},
    {"base_compute", G, TSR_KEY_WORD, AT(base_compute), base_compute_words,
     .flags = TSR_KEY_OF_BASE | TSR_KEY_RESULT, .initial = "dtype",
     .help = "dtype of the base's matmuls; dtype: that of the key dtype; fp8: e4m3, "
             "on cards of compute capability 8.9 or newer; "
             "fp8_fast: with less exact sums"},
};
#undef G
#define G .group = "data"
static const tsr_key data_keys[] = {
    {"dataset", G, TSR_KEY_DATA, AT(dataset), .none = "null", .initial = "null",
     .help = "file, directory or pattern, or a list of these or of maps (required); also "
             "dataset_name"},
    {"dataset_mixing", G, TSR_KEY_WORD, AT(dataset_mixing), mixing_words, .flags = TSR_KEY_RESULT,
     .initial = "concatenate",
     .help = "order of several data sets before shuffling; interleave: by their weight, until one "
             "is used up"},
    {"eval_dataset", G, TSR_KEY_DATA, AT(eval_dataset), .none = "null", .initial = "null",
     .help = "likewise, of held-out rows"},
    {"dataset_train_split", G, TSR_KEY_STRING, AT(dataset_train_split), .flags = TSR_KEY_PATH,
     .initial = "train", .help = "the split of dataset, where that is a directory"},
    {"dataset_test_split", G, TSR_KEY_STRING, AT(dataset_test_split), .flags = TSR_KEY_PATH,
     .initial = "test", .help = "the split of eval_dataset, where that is a directory"},
    {"validation_split", G, TSR_KEY_STEPS, AT(validation_split), .low = 0, .high = INT_TOP,
     .flags = TSR_KEY_LOW_OPEN | TSR_KEY_RESULT, .none = "null", .initial = "null",
     .help = "without eval_dataset: samples of dataset to evaluate and not to train, chosen by "
             "data_seed; below 1: a share"},
    {"max_train_samples", G, TSR_KEY_INT, AT(max_train_samples), .low = 1, .high = INT_TOP,
     .none = "null", .initial = "null",
     .help = "use only this many rows of dataset, the first; null: all"},
    {"max_eval_samples", G, TSR_KEY_INT, AT(max_eval_samples), .low = 1, .high = INT_TOP,
     .none = "null", .initial = "null", .help = "evaluate only this many samples; null: all"},
    {"dataset_format", G, TSR_KEY_WORD, AT(dataset_format), format_words, .initial = "auto",
     .help = "format of a row; auto: detected from the first row"},
    {"dataset_text_field", G, TSR_KEY_STRING, AT(dataset_text_field), .flags = TSR_KEY_PATH,
     .initial = "text", .help = "the key of a text row"},
    {"dataset_cache", G, TSR_KEY_STRING, AT(dataset_cache),
     .flags = TSR_KEY_FALSE_IS_NONE | TSR_KEY_TRUE_TOO | TSR_KEY_PATH, .none = "null",
     .initial = "true",
     .help = "where tokens are kept between runs: a directory; true: the user's cache, for data of "
             "4 MiB and more; false: nowhere"},
    {"max_length", G, TSR_KEY_INT, AT(max_length), .low = 2, .high = 1 << 24, .none = "null",
     .flags = TSR_KEY_RESULT, .initial = "2048", .trl = "1024",
     .help = "most tokens of a sample, or of a packed row; null: no limit"},
    {"truncation", G, TSR_KEY_WORD, AT(truncation), truncation_words, .flags = TSR_KEY_RESULT,
     .initial = "error", .trl = "right",
     .help =
         "what to do with a longer sample; right: cut it; split: make several of it; default with "
         "objective: reward: drop"},
    {"packing", G, TSR_KEY_BOOL, AT(packing), .flags = TSR_KEY_RESULT, .initial = "false",
     .help = "put several samples into a row; they do not see each other"},
    {"packing_strategy", G, TSR_KEY_WORD, AT(packing_strategy), packing_words,
     .flags = TSR_KEY_RESULT, .initial = "bfd",
     .help = "how rows are filled: best fit, decreasing"},
    {"eval_packing", G, TSR_KEY_WORD, AT(eval_packing), choice_words, .none = "auto",
     .none_value = TSR_CONFIG_CHOICE_AUTO, .initial = "auto", .derived = "packing",
     .help = "packing of eval_dataset"},
    {"assistant_only_loss", G, TSR_KEY_WORD, AT(assistant_only_loss), choice_words, .none = "auto",
     .none_value = TSR_CONFIG_CHOICE_AUTO, .flags = TSR_KEY_RESULT, .initial = "auto",
     .trl = "false", .help = "train only the assistant's turns; auto: yes for conversations"},
    {"completion_only_loss", G, TSR_KEY_WORD, AT(completion_only_loss), choice_words,
     .none = "auto", .none_value = TSR_CONFIG_CHOICE_AUTO, .flags = TSR_KEY_RESULT,
     .initial = "auto",
     .help = "train only the completion; auto: yes for prompt/completion and alpaca"},
    {"train_on_inputs", G, TSR_KEY_BOOL, AT(train_on_inputs), .flags = TSR_KEY_RESULT,
     .initial = "false",
     .help = "train all tokens of a row: assistant_only_loss and completion_only_loss are false"},
    {"roles_to_train", G, TSR_KEY_STRINGS, AT(roles_to_train),
     .flags = TSR_KEY_RESULT | TSR_KEY_EMPTY_TOO, .none = "null", .initial = "null",
     .help =
         "roles whose turns in chats are trained; null: the assistant's; []: the turns that say "
         "train: true"},
    {"train_on_eot", G, TSR_KEY_WORD, AT(train_on_eot), eot_words, .flags = TSR_KEY_RESULT,
     .initial = "turn",
     .help = "which ends of turns (<|im_end|>, </s>) are trained: of trained turns, of all, of the "
             "last trained one (also train_on_eos)"},
    {"response_template", G, TSR_KEY_STRING, AT(response_template),
     .flags = TSR_KEY_PATH | TSR_KEY_RESULT, .none = "null", .initial = "null",
     .help = "train what follows the last place of this text in a row, and nothing else"},
    {"default_system", G, TSR_KEY_STRING, AT(default_system),
     .flags = TSR_KEY_PATH | TSR_KEY_RESULT, .none = "null", .initial = "null",
     .help = "system prompt of chats that have none"},
    {"shuffle", G, TSR_KEY_BOOL, AT(shuffle), .flags = TSR_KEY_RESULT, .initial = "true",
     .help = "a new order each epoch; false: file order"},
    {"group_by_length", G, TSR_KEY_BOOL, AT(group_by_length), .flags = TSR_KEY_RESULT,
     .initial = "false", .help = "steps of rows of nearly one length; nothing with packing"},
    {"balance", G, TSR_KEY_WORD, AT(balance), balance_words, .flags = TSR_KEY_RESULT,
     .initial = "rows",
     .help = "what micro-batches of a step have equal amounts of; tokens: rows are assigned by "
             "length, so that the largest micro-batch needs less memory"},
    {"data_seed", G, TSR_KEY_INT, AT(data_seed), .high = INT_TOP, .none = "null", .none_value = -1,
     .flags = TSR_KEY_RESULT, .initial = "null", .derived = "seed",
     .help = "seed of the data order, of packing and of validation_split"},
    {"chat_template", G, TSR_KEY_STRING, AT(chat_template), .flags = TSR_KEY_PATH, .none = "null",
     .initial = "null",
     .help = "a name (chatml, llama3, mistral, ...: docs/data.md) or a Jinja file; null: the "
             "model's own (also chat_template_path)"},
    {"chat_template_date", G, TSR_KEY_STRING, AT(chat_template_date),
     .flags = TSR_KEY_PATH | TSR_KEY_RESULT, .none = "null", .initial = "null",
     .help = "date for a template that asks for one: 2024-07-26, or 2024-07-26T12:30:00; null: the "
             "day the run begins, in UTC"},
    {"eos_token", G, TSR_KEY_STRING, AT(eos_token), .flags = TSR_KEY_PATH, .none = "null",
     .initial = "null", .help = "null: the tokenizer's"},
    {"special_tokens", G, TSR_KEY_NAMES, AT(special_tokens), token_words, .none = "null",
     .flags = TSR_KEY_ONE_EACH, .initial = "null",
     .help = "the tokens that the tokenizer must have; others than its own are refused"},
};
#undef G
#define G .group = "adapter"
static const tsr_key adapter_keys[] = {
    {"lora_r", G, TSR_KEY_INT, AT(lora_r), .low = 1, .high = TSR_CONFIG_MAX_RANK,
     .flags = TSR_KEY_RESULT, .initial = "16", .help = "rank"},
    {"lora_alpha", G, TSR_KEY_NUMBER, AT(lora_alpha), .low = 0, .high = 1e9,
     .flags = TSR_KEY_RESULT | TSR_KEY_LOW_OPEN, .initial = "32",
     .help = "LoRA alpha; the update is scaled by alpha / r"},
    {"lora_dropout", G, TSR_KEY_NUMBER, AT(lora_dropout), .low = 0, .high = 1,
     .flags = TSR_KEY_RESULT | TSR_KEY_HIGH_OPEN, .initial = "0", .trl = "0.05",
     .help = "dropout of the adapter's input"},
    {"lora_target_modules", G, TSR_KEY_MODULES, AT(lora_target_modules),
     .flags = TSR_KEY_RESULT | TSR_KEY_ALL_LINEAR, .none = "null", .initial = "all-linear",
     .trl = "[q_proj, v_proj]",
     .help =
         "all-linear, all-linear-peft (with experts: what PEFT selects for all-linear), a list of "
         "name endings, or a regular expression of whole names"},
    {"exclude_modules", G, TSR_KEY_MODULES, AT(exclude_modules), .none = "null",
     .flags = TSR_KEY_RESULT, .initial = "null",
     .help = "targets to leave out: a list of name endings or a regular expression"},
    {"lora_target_parameters", G, TSR_KEY_STRINGS, AT(lora_target_parameters), .none = "null",
     .flags = TSR_KEY_RESULT | TSR_KEY_EMPTY_TOO, .initial = "null",
     .help = "parameters of experts that get an adapter: endings of their names, such as "
             "mlp.experts.gate_up_proj and mlp.experts.down_proj"},
    {"expert_lora_r", G, TSR_KEY_INT, AT(expert_lora_r), .low = 1, .high = TSR_CONFIG_MAX_RANK,
     .flags = TSR_KEY_RESULT, .none = "null", .initial = "null", .derived = "lora_r",
     .help = "rank of the experts' adapters"},
    {"expert_lora_alpha", G, TSR_KEY_NUMBER, AT(expert_lora_alpha), .low = 0, .high = 1e9,
     .flags = TSR_KEY_RESULT | TSR_KEY_LOW_OPEN, .none = "null", .initial = "null",
     .derived = "lora_alpha", .help = "LoRA alpha of the experts' adapters"},
    {"use_rslora", G, TSR_KEY_BOOL, AT(use_rslora), .flags = TSR_KEY_RESULT, .initial = "false",
     .help = "scale the update by alpha / sqrt(r)"},
    {"use_dora", G, TSR_KEY_BOOL, AT(use_dora), .flags = TSR_KEY_RESULT, .initial = "false",
     .help = "train a magnitude per output too (DoRA)"},
    {"rank_pattern", G, TSR_KEY_PATTERNS, AT(rank_pattern), .low = 1, .high = TSR_CONFIG_MAX_RANK,
     .flags = TSR_KEY_RESULT | TSR_KEY_WHOLE, .none = "null", .initial = "null",
     .help = "map of name patterns to r"},
    {"alpha_pattern", G, TSR_KEY_PATTERNS, AT(alpha_pattern), .low = 0, .high = 1e9,
     .flags = TSR_KEY_RESULT | TSR_KEY_LOW_OPEN, .none = "null", .initial = "null",
     .help = "map of name patterns to alpha"},
    {"layers_to_transform", G, TSR_KEY_INTS, AT(layers_to_transform), .low = 0, .high = 1e6,
     .none = "null", .flags = TSR_KEY_RESULT, .initial = "null",
     .help = "layers with an adapter; null: all"},
    {"modules_to_save", G, TSR_KEY_STRINGS, AT(modules_to_save), .none = "null",
     .flags = TSR_KEY_RESULT | TSR_KEY_EMPTY_TOO, .initial = "null",
     .help = "what is trained whole beside the adapters: lm_head, embed_tokens; with "
             "objective: reward, score always"},
    {"trainable_token_indices", G, TSR_KEY_TOKENS, AT(trainable_token_indices), .low = 0,
     .high = INT32_MAX, .none = "null", .flags = TSR_KEY_RESULT, .initial = "null",
     .help = "tokens whose rows are trained: a list (of the embedding), or {embed_tokens: [..], "
             "lm_head: [..]}"},
    {"init_adapter", G, TSR_KEY_STRING, AT(init_adapter), .flags = TSR_KEY_PATH, .none = "none",
     .initial = "null",
     .help = "directory of a PEFT adapter to start from (eval, merge: the adapter to use; with a "
             "run's own job.yaml, by default that run's)"},
    {"init_lora_weights", G, TSR_KEY_STRING, AT(init_lora_weights),
     .flags = TSR_KEY_RESULT | TSR_KEY_TRUE_TOO | TSR_KEY_PATH, .initial = "true",
     .help =
         "first A and B; true: random A, B = 0; gaussian: normal A; false: random B too; pissa: "
         "the weight's principal part; pissa_niter_N: found by N rounds of iteration"},
};
#undef G
#define G .group = "optimizer"
static const tsr_key optimizer_keys[] = {
    {"learning_rate", G, TSR_KEY_NUMBER, AT(learning_rate), .low = 0, .high = 1e3,
     .flags = TSR_KEY_RESULT, .initial = "2e-4", .trl = "2e-5", .help = "the schedule's peak"},
    {"loraplus_lr_ratio", G, TSR_KEY_NUMBER, AT(loraplus_lr_ratio), .low = 0, .high = 1e6,
     .flags = TSR_KEY_RESULT | TSR_KEY_LOW_OPEN, .none = "null", .initial = "null",
     .help = "LoRA+: B and magnitudes learn so many times as fast as A"},
    {"loraplus_lr_embedding", G, TSR_KEY_NUMBER, AT(loraplus_lr_embedding), .low = 0, .high = 1e3,
     .flags = TSR_KEY_RESULT | TSR_KEY_LOW_OPEN, .initial = "1e-6",
     .help = "LoRA+: the rate of a LoRA of embed_tokens"},
    {"optim", G, TSR_KEY_WORD, AT(optim), optim_words, .flags = TSR_KEY_RESULT,
     .initial = "adamw_torch",
     .help = "the first three: AdamW with 32-bit state; the others: bitsandbytes' AdamW with 8-bit "
             "state"},
    {"adam_beta1", G, TSR_KEY_NUMBER, AT(adam_beta1), .low = 0, .high = 1,
     .flags = TSR_KEY_RESULT | TSR_KEY_HIGH_OPEN, .initial = "0.9",
     .help = "decay of the first moment"},
    {"adam_beta2", G, TSR_KEY_NUMBER, AT(adam_beta2), .low = 0, .high = 1,
     .flags = TSR_KEY_RESULT | TSR_KEY_HIGH_OPEN, .initial = "0.999",
     .help = "decay of the second moment"},
    {"adam_epsilon", G, TSR_KEY_NUMBER, AT(adam_epsilon), .low = 1e-45, .high = 1,
     .flags = TSR_KEY_RESULT, .initial = "1e-8",
     .help = "added to the root of the second moment, in fp32"},
    {"weight_decay", G, TSR_KEY_NUMBER, AT(weight_decay), .low = 0, .high = 1e3,
     .flags = TSR_KEY_RESULT, .initial = "0", .help = "decoupled, on A, B and magnitudes"},
    {"max_grad_norm", G, TSR_KEY_NUMBER, AT(max_grad_norm), .low = 0, .high = ANY, .none = "null",
     .flags = TSR_KEY_RESULT, .initial = "1",
     .help = "clip gradients to this global norm; 0 or null: no clipping"},
    {"lr_scheduler_type", G, TSR_KEY_WORD, AT(lr_scheduler_type), lr_words, .flags = TSR_KEY_RESULT,
     .initial = "linear", .help = "schedule of the learning rate"},
    {"warmup_steps", G, TSR_KEY_STEPS, AT(warmup_steps), .low = 0, .high = INT_TOP,
     .flags = TSR_KEY_RESULT, .initial = "0",
     .help = "steps of warm-up; below 1: a share of all steps, rounded up (also warmup_ratio)"},
    {"lr_scheduler_kwargs", G, TSR_KEY_LR_KWARGS, AT(lr_scheduler_kwargs), .none = "null",
     .flags = TSR_KEY_RESULT, .initial = "null",
     .help = "map of what the schedule takes besides, such as {num_cycles: 2}"},
};
#undef G
#define G .group = "loop"
static const tsr_key loop_keys[] = {
    {"num_train_epochs", G, TSR_KEY_NUMBER, AT(num_train_epochs), .low = 0, .high = 1e9,
     .flags = TSR_KEY_LOW_OPEN, .initial = "1", .trl = "3",
     .help = "passes over the data; may be a fraction"},
    {"max_steps", G, TSR_KEY_INT, AT(max_steps), .low = 1, .high = INT_TOP, .none = "-1",
     .none_value = -1, .initial = "-1",
     .help = "optimizer steps instead of num_train_epochs; -1: none"},
    {"per_device_train_batch_size", G, TSR_KEY_INT, AT(per_device_train_batch_size), .low = 1,
     .high = 65536, .flags = TSR_KEY_RESULT, .initial = "1", .trl = "8",
     .help = "samples (with packing: rows) in a micro-batch"},
    {"gradient_accumulation_steps", G, TSR_KEY_INT, AT(gradient_accumulation_steps), .low = 1,
     .high = 1e6, .initial = "1", .help = "micro-batches per rank and step"},
    {"total_batch_size", G, TSR_KEY_INT, AT(total_batch_size), .low = 1, .high = INT_TOP,
     .none = "null", .initial = "null",
     .help = "samples per step over all ranks, instead of gradient_accumulation_steps"},
    {"dataloader_drop_last", G, TSR_KEY_BOOL, AT(dataloader_drop_last), .flags = TSR_KEY_RESULT,
     .initial = "false", .help = "drop the smaller last step of an epoch"},
    {"label_smoothing_factor", G, TSR_KEY_NUMBER, AT(label_smoothing_factor), .low = 0, .high = 1,
     .flags = TSR_KEY_RESULT, .none = "null", .initial = "0",
     .help = "share of the loss that goes to all of the vocabulary alike, in evaluations too"},
    {"neftune_noise_alpha", G, TSR_KEY_NUMBER, AT(neftune_noise_alpha), .low = 0, .high = 1e6,
     .flags = TSR_KEY_RESULT, .none = "null", .initial = "null",
     .help = "NEFTune: uniform noise on the embedded tokens of a training, up to this over the "
             "root of (tokens of a row x hidden size)"},
    {"router_aux_loss_coef", G, TSR_KEY_NUMBER, AT(router_aux_loss_coef), .low = 0, .high = 1e6,
     .flags = TSR_KEY_RESULT, .none = "null", .initial = "null",
     .help = "weight of the experts' load-balancing loss in the loss; null: none, whatever "
             "config.json says"},
    {"router_bias_update_rate", G, TSR_KEY_NUMBER, AT(router_bias_update_rate), .low = 0,
     .high = 1e3, .flags = TSR_KEY_RESULT, .initial = "0",
     .help = "how far routers' correction biases move each step, towards even loads"},
    {"moe_capacity_factor", G, TSR_KEY_NUMBER, AT(moe_capacity_factor), .low = 0, .high = 1e6,
     .flags = TSR_KEY_RESULT | TSR_KEY_LOW_OPEN, .none = "null", .initial = "null",
     .help = "limits an expert to this many times the mean load of a micro-batch (or tile) and "
             "drops the rest; null: no limit"},
    {"per_device_eval_batch_size", G, TSR_KEY_INT, AT(per_device_eval_batch_size), .low = 1,
     .high = 65536, .none = "null", .initial = "null", .derived = "per_device_train_batch_size",
     .help = "samples in a micro-batch of an evaluation"},
    {"eval_strategy", G, TSR_KEY_WORD, AT(eval_strategy), every_words, .initial = "no",
     .help = "when to evaluate during the run; default with eval_steps: steps"},
    {"eval_steps", G, TSR_KEY_STEPS, AT(eval_steps), .low = 0, .high = INT_TOP,
     .flags = TSR_KEY_LOW_OPEN, .none = "null", .initial = "null", .derived = "logging_steps",
     .help = "steps between evaluations; below 1: a share of all steps"},
    {"eval_on_start", G, TSR_KEY_WORD, AT(eval_on_start), choice_words, .none = "auto",
     .none_value = TSR_CONFIG_CHOICE_AUTO, .initial = "auto", .derived = "eval_dataset",
     .help = "evaluate before step 1; auto: yes with eval_dataset or validation_split"},
    {"load_best_model_at_end", G, TSR_KEY_BOOL, AT(load_best_model_at_end), .initial = "false",
     .help = "write the adapter of the evaluation with the least loss; each such evaluation is "
             "followed by a checkpoint"},
    {"metric_for_best_model", G, TSR_KEY_WORD, AT(metric_for_best_model), best_words,
     .none = "null", .initial = "loss",
     .help = "what load_best_model_at_end and early_stopping_patience compare"},
    {"early_stopping_patience", G, TSR_KEY_INT, AT(early_stopping_patience), .low = 1,
     .high = INT_TOP, .none = "null", .initial = "null",
     .help = "end the run after so many evaluations in a row that were no better than the best"},
    {"early_stopping_threshold", G, TSR_KEY_NUMBER, AT(early_stopping_threshold), .low = 0,
     .high = 1e9, .initial = "0",
     .help = "by how much an evaluation must be better to count for early_stopping_patience"},
    {"logging_steps", G, TSR_KEY_STEPS, AT(logging_steps), .low = 0, .high = INT_TOP,
     .flags = TSR_KEY_LOW_OPEN, .initial = "1", .trl = "10",
     .help = "steps between progress lines; below 1: a share (metrics.jsonl has every step)"},
    {"logging_first_step", G, TSR_KEY_BOOL, AT(logging_first_step), .initial = "false",
     .help = "also print a progress line for step 1"},
    {"save_strategy", G, TSR_KEY_WORD, AT(save_strategy), every_words, .initial = "no",
     .trl = "steps",
     .help = "when to write checkpoints, in addition to one at the end; default with save_steps: "
             "steps"},
    {"save_steps", G, TSR_KEY_STEPS, AT(save_steps), .low = 0, .high = INT_TOP,
     .flags = TSR_KEY_LOW_OPEN, .initial = "500",
     .help = "steps between checkpoints; below 1: a share"},
    {"save_total_limit", G, TSR_KEY_INT, AT(save_total_limit), .low = 1, .high = INT_TOP,
     .none = "null", .initial = "null", .help = "checkpoints to keep; null: all"},
    {"adapter_mixing", G, TSR_KEY_WORD, AT(adapter_mixing), adapters_words,
     .flags = TSR_KEY_OF_BASE, .initial = "none",
     .help = "whether a micro-batch mixes rows of several adapters; none: adapters take turns"},
    {"adapter_schedule", G, TSR_KEY_WORD, AT(adapter_schedule), adapter_schedule_words,
     .flags = TSR_KEY_OF_BASE, .initial = "auto",
     .help =
         "how mixed micro-batches are packed; auto: milp where it is built in (CBC), else greedy"},
    {"adapter_capacity", G, TSR_KEY_INT, AT(adapter_capacity), .low = 1, .high = INT_TOP,
     .flags = TSR_KEY_OF_BASE, .none = "null", .initial = "null",
     .help =
         "tokens of a mixed micro-batch, at most; null: those of the adapters' largest own one"},
    {"seed", G, TSR_KEY_INT, AT(seed), .low = 0, .high = INT_TOP, .flags = TSR_KEY_RESULT,
     .initial = "42", .help = "seed of the adapter's initial values, dropout and data order"},
    {"resume_from_checkpoint", G, TSR_KEY_STRING, AT(resume_from_checkpoint),
     .flags = TSR_KEY_FALSE_IS_NONE | TSR_KEY_TRUE_TOO | TSR_KEY_PATH | TSR_KEY_ONE_START,
     .none = "null", .initial = "null", .help = "true or a directory"},
    {"time_limit", G, TSR_KEY_DURATION, AT(time_limit), .low = 0, .high = 1e9,
     .flags = TSR_KEY_LOW_OPEN, .none = "null", .initial = "null",
     .help = "stop after this time: 3600, 1h30m or 01:30:00"},
    {"ddp_timeout", G, TSR_KEY_INT, AT(ddp_timeout), .flags = TSR_KEY_OF_BASE, .low = 1,
     .high = 1e6, .initial = "300",
     .help = "seconds that a rank waits for another before the run fails"},
    {"max_skipped_steps", G, TSR_KEY_INT, AT(max_skipped_steps), .low = 0, .high = INT_TOP,
     .initial = "5", .help = "steps in a row whose gradient is not finite before the run fails"},
};
#undef G
#define G .group = "memory"
static const tsr_key memory_keys[] = {
    {"gradient_checkpointing", G, TSR_KEY_WORD, AT(gradient_checkpointing), recompute_words,
     .none = "auto", .none_value = TSR_CONFIG_RECOMPUTE_AUTO, .initial = "auto",
     .help = "what the backward pass recomputes; selective: what is cheap for the memory it frees, "
             "more if "
             "memory_budget requires it; sqrt: all, and of the layers' inputs all but every "
             "sqrt(layers)-th; auto: as the fastest plan that fits needs"},
    {"memory_budget", G, TSR_KEY_BYTES, AT(memory_budget), .flags = TSR_KEY_OF_BASE, .low = 1,
     .high = ANY, .none = "auto", .initial = "auto",
     .help = "memory per device, with its unit: 22GiB, 500MB"},
    {"host_memory_budget", G, TSR_KEY_BYTES, AT(host_memory_budget), .flags = TSR_KEY_OF_BASE,
     .low = 1, .high = ANY, .none = "auto", .initial = "auto",
     .help = "host memory that a rank with a GPU may use, with its unit; auto: its share of what "
             "the control group leaves"},
    {"offload", G, TSR_KEY_WORD, AT(offload), offload_words, .flags = TSR_KEY_OF_BASE,
     .initial = "auto",
     .help = "keep base weights in host memory; sharded: each rank its shard; full: one copy a "
             "node; auto: none, or sharded if that is faster or needed"},
    {"activation_offloading", G, TSR_KEY_WORD, AT(activation_offloading), choice_words,
     .none = "auto", .none_value = TSR_CONFIG_CHOICE_AUTO, .initial = "auto",
     .help = "keep activations saved for the backward in host memory, except two layers'; auto: "
             "of as many layers as is the fastest within memory_budget"},
    {"optimizer_offload", G, TSR_KEY_WORD, AT(optimizer_offload), choice_words, .none = "auto",
     .none_value = TSR_CONFIG_CHOICE_AUTO, .initial = "auto",
     .help = "keep fp32 masters and moments in host memory; auto: if memory_budget requires it"},
    {"resident_units", G, TSR_KEY_INT, AT(resident_units), .flags = TSR_KEY_OF_BASE, .low = 0,
     .high = 1e6, .none = "auto", .none_value = -1, .initial = "auto",
     .help = "units that stay gathered on the device, evenly spread; auto: as many as fit the "
             "given memory_budget, or a GPU's free memory"},
    {"decoded_layers", G, TSR_KEY_INT, AT(decoded_layers), .flags = TSR_KEY_OF_BASE, .low = 0,
     .high = 1e6, .none = "auto", .none_value = -1, .initial = "auto",
     .help =
         "layers whose 4-bit experts are decoded once and stay so on the device; auto: on a GPU, "
         "as many as fit in memory that nothing else needs"},
    {"slots", G, TSR_KEY_INT, AT(slots), .flags = TSR_KEY_OF_BASE, .low = 2,
     .high = TSR_CONFIG_MAX_SLOTS, .initial = "2", .help = "units gathered at a time"},
    {"context_span", G, TSR_KEY_INT, AT(context_span), .low = 16, .high = 1 << 20, .step = 16,
     .flags = TSR_KEY_RESULT, .initial = "8192",
     .help = "tokens of a long micro-batch that linears, and ranks that share it, take at a time"},
    {"context_parallel_size", G, TSR_KEY_INT, AT(context_parallel_size), .flags = TSR_KEY_OF_BASE,
     .low = 1, .high = 1 << 10, .initial = "1",
     .help = "ranks that share each micro-batch, span by span, for rows too long for one"},
    {"unit_policy", G, TSR_KEY_UNITS, AT(unit_policy), .flags = TSR_KEY_OF_BASE, .initial = "layer",
     .help = "what is gathered and released together, as FSDP's wrapping policy"},
    {"shard_group_size", G, TSR_KEY_INT, AT(shard_group_size), .flags = TSR_KEY_OF_BASE, .low = 1,
     .high = 1 << 20, .none = "auto", .initial = "auto",
     .help = "ranks that share one copy of the base; auto: the ranks of a node"},
};
#undef G
#define G .group = "run"
static const tsr_key run_keys[] = {
    {"output_dir", G, TSR_KEY_STRING, AT(output_dir), .flags = TSR_KEY_PATH, .none = "null",
     .initial = "null", .help = "directory for adapter, metrics and plan (required)"},
    {"overwrite_output_dir", G, TSR_KEY_BOOL, AT(overwrite_output_dir), .flags = TSR_KEY_ONE_START,
     .initial = "false", .help = "replace the run in output_dir; other files there are kept"},
    {"backend", G, TSR_KEY_WORD, AT(backend), backend_words, .flags = TSR_KEY_OF_BASE,
     .initial = "auto", .help = "auto: the first that works"},
    {"deterministic", G, TSR_KEY_BOOL, AT(deterministic), .flags = TSR_KEY_OF_BASE | TSR_KEY_RESULT,
     .initial = "true", .help = "the same bits each time and for any number of ranks"},
    {"lora_graph", G, TSR_KEY_WORD, AT(lora_graph), graph_words, .flags = TSR_KEY_RESULT,
     .initial = "auto",
     .help =
         "order of the adapter's products; time: the fastest on this GPU; flops: the cheapest by "
         "FLOPs and bytes; fixed: PEFT's; auto: time on a GPU except for tiny linears, else flops"},
    {"trace", G, TSR_KEY_STRING, AT(trace),
     .flags = TSR_KEY_OF_BASE | TSR_KEY_PATH | TSR_KEY_FALSE_IS_NONE, .none = "null",
     .initial = "null",
     .help = "file for a Chrome trace of steps 4 to 6, or of a shorter run's last three (open it "
             "in Perfetto)"},
    {"report_to", G, TSR_KEY_WORD, AT(report_to), report_words, .flags = TSR_KEY_LIST_OF_ONE,
     .none = "none", .initial = "none",
     .help = "logs in addition to metrics.jsonl; tensorboard: in output_dir/runs"},
    {"log_level", G, TSR_KEY_WORD, AT(log_level), log_words, .flags = TSR_KEY_OF_BASE,
     .initial = "info", .help = "level of the messages on stderr"},
    {"progress", G, TSR_KEY_WORD, AT(progress), progress_words, .flags = TSR_KEY_OF_BASE,
     .initial = "auto",
     .help = "progress on stderr; auto: a bar on a terminal (behind mpirun where TESSERA_TERMINAL "
             "has its "
             "columns, as launch/run sets it), lines elsewhere"},
    {"defaults", G, TSR_KEY_WORD, AT(defaults), defaults_words, .flags = TSR_KEY_OF_BASE,
     .initial = "tessera", .help = "defaults of omitted keys; trl: TRL's"},
};
#undef G

#define COUNT(array) (int)(sizeof(array) / sizeof *(array))

#define IN_SET(field) .offset = offsetof(tsr_config_set, field), .initial = "null", .none = "null"
#define TEXT(field)                                                                                \
    {                                                                                              \
#field, .type = TSR_KEY_STRING, IN_SET(field), .flags = TSR_KEY_PATH                       \
    }
static const tsr_key set_members[] = {
    {"path", .type = TSR_KEY_STRING, .offset = offsetof(tsr_config_set, path),
     .flags = TSR_KEY_PATH, .initial = "null"},
    TEXT(name),
    TEXT(split),
    {"format", .type = TSR_KEY_WORD, .offset = offsetof(tsr_config_set, format),
     .words = format_words, .initial = "auto"},
    {"weight", .type = TSR_KEY_NUMBER, IN_SET(weight), .high = 1e6, .flags = TSR_KEY_LOW_OPEN},
    {"samples", .type = TSR_KEY_INT, IN_SET(samples), .low = 1, .high = INT_TOP},
    TEXT(text_field),
    TEXT(chat_template),
    TEXT(field_messages),
    TEXT(field_system),
    TEXT(field_tools),
    TEXT(field_instruction),
    TEXT(field_input),
    TEXT(field_output),
    TEXT(field_history),
    TEXT(field_prompt),
    TEXT(field_chosen),
    TEXT(field_rejected),
    TEXT(field_completion),
    TEXT(field_label),
    TEXT(field_human),
    TEXT(field_model),
    {"message_property_mappings", .type = TSR_KEY_NAMES, IN_SET(message_property_mappings),
     .words = property_words, .flags = TSR_KEY_ONE_EACH},
    {"roles", .type = TSR_KEY_NAMES, IN_SET(roles), .words = role_words},
    {"roles_to_train", .type = TSR_KEY_STRINGS, IN_SET(roles_to_train), .flags = TSR_KEY_EMPTY_TOO},
    {"train_on_eot", .type = TSR_KEY_WORD, IN_SET(train_on_eot), .words = eot_words},
    {"drop_system", .type = TSR_KEY_BOOL, .offset = offsetof(tsr_config_set, drop_system),
     .initial = "false"},
};

const tsr_key *tsr_keys_of_set(int *count)
{
    *count = COUNT(set_members);
    return set_members;
}

static const struct {
    const tsr_key *keys;
    int count;
} groups[] = {
    {model_keys, COUNT(model_keys)},          {data_keys, COUNT(data_keys)},
    {tsr_objective_keys, TSR_OBJECTIVE_KEYS}, {adapter_keys, COUNT(adapter_keys)},
    {optimizer_keys, COUNT(optimizer_keys)},  {loop_keys, COUNT(loop_keys)},
    {memory_keys, COUNT(memory_keys)},        {run_keys, COUNT(run_keys)},
};

_Static_assert(COUNT(model_keys) + COUNT(data_keys) + TSR_OBJECTIVE_KEYS + COUNT(adapter_keys) +
                       COUNT(optimizer_keys) + COUNT(loop_keys) + COUNT(memory_keys) +
                       COUNT(run_keys) <=
                   TSR_KEYS_MAX,
               "TSR_KEYS_MAX");

int tsr_keys_count(void)
{
    int count = 0;
    for (int g = 0; g < COUNT(groups); g++)
        count += groups[g].count;
    return count;
}

const tsr_key *tsr_keys_at(int index)
{
    for (int g = 0; g < COUNT(groups); g++) {
        if (index < groups[g].count)
            return &groups[g].keys[index];
        index -= groups[g].count;
    }
    return NULL;
}

int tsr_keys_find(const char *name)
{
    for (int i = 0; i < tsr_keys_count(); i++)
        if (!strcmp(tsr_keys_at(i)->name, name))
            return i;
    return -1;
}
