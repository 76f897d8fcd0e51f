/*
 * config/config.h: one job's configuration, as a plain struct.
 *
 * Every key of the interface is a field, typed, with its default. It is read from a job.yaml and
 * from overrides `key=value`; scalars are typed by their key, not by YAML (`2e-4` is a number, `no`
 * a word). One table (config/keys.h) decides names, types, ranges, defaults, help and what is
 * refused. All errors of a configuration are reported together.
 *
 * Order    tsr_config_load, then read fields; tsr_config_free at the end. Resolving a field after
 *          loading (dtype, resident units, the adapter's r) is assigning to it: the written
 *          job.yaml says which values were set, defaulted or resolved.
 * Threads  No globals; one configuration is not locked.
 */
#ifndef TSR_CONFIG_H
#define TSR_CONFIG_H

#include "adapters/init.h"
#include "base/status.h"
#include "base/text.h"
#include "kernels/objective.h"
#include "optim/schedule.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Keys that may be true, false or left to the runtime. */
typedef enum {
    TSR_CONFIG_CHOICE_AUTO = -1,
    TSR_CONFIG_CHOICE_NO = 0,
    TSR_CONFIG_CHOICE_YES = 1
} tsr_config_choice;

typedef enum {
    TSR_CONFIG_DTYPE_AUTO,
    TSR_CONFIG_DTYPE_FLOAT32,
    TSR_CONFIG_DTYPE_BFLOAT16
} tsr_config_dtype;
typedef enum {
    TSR_CONFIG_BASE_COMPUTE_DTYPE,
    TSR_CONFIG_BASE_COMPUTE_FP8,
    TSR_CONFIG_BASE_COMPUTE_FP8_FAST /* sums of tensor cores alone (kernels/fp8_gemm.h) */
} tsr_config_base_compute;
typedef enum {
    TSR_CONFIG_FORMAT_AUTO,
    TSR_CONFIG_FORMAT_MESSAGES,
    TSR_CONFIG_FORMAT_SHAREGPT,
    TSR_CONFIG_FORMAT_ALPACA,
    TSR_CONFIG_FORMAT_PROMPT_COMPLETION,
    TSR_CONFIG_FORMAT_INPUT_OUTPUT,
    TSR_CONFIG_FORMAT_TEXT,
    TSR_CONFIG_FORMAT_PRETOKENIZED,
    TSR_CONFIG_FORMAT_PREFERENCE,
    TSR_CONFIG_FORMAT_PREFERENCE_IDS,
    TSR_CONFIG_FORMAT_UNPAIRED
} tsr_config_format;
typedef enum {
    TSR_CONFIG_TRUNCATION_ERROR,
    TSR_CONFIG_TRUNCATION_RIGHT,
    TSR_CONFIG_TRUNCATION_DROP,
    TSR_CONFIG_TRUNCATION_SPLIT
} tsr_config_truncation;
typedef enum {
    TSR_CONFIG_EOT_UNSET, /* of a data set: as the job says */
    TSR_CONFIG_EOT_TURN,
    TSR_CONFIG_EOT_ALL,
    TSR_CONFIG_EOT_LAST,
    TSR_CONFIG_EOT_NONE
} tsr_config_eot;
typedef enum {
    TSR_CONFIG_MODULES_NONE,
    TSR_CONFIG_MODULES_ALL_LINEAR,
    TSR_CONFIG_MODULES_ALL_LINEAR_PEFT,
    TSR_CONFIG_MODULES_LIST,
    TSR_CONFIG_MODULES_REGEX
} tsr_config_modules_kind;
typedef enum {
    TSR_CONFIG_EVERY_NO,
    TSR_CONFIG_EVERY_STEPS,
    TSR_CONFIG_EVERY_EPOCH
} tsr_config_every;
typedef enum {
    TSR_CONFIG_RECOMPUTE_AUTO,
    TSR_CONFIG_RECOMPUTE_NONE,
    TSR_CONFIG_RECOMPUTE_SELECTIVE,
    TSR_CONFIG_RECOMPUTE_FULL,
    TSR_CONFIG_RECOMPUTE_SQRT
} tsr_config_recompute;
typedef enum {
    TSR_CONFIG_OFFLOAD_AUTO,
    TSR_CONFIG_OFFLOAD_NONE,
    TSR_CONFIG_OFFLOAD_SHARDED,
    TSR_CONFIG_OFFLOAD_FULL
} tsr_config_offload;
typedef enum {
    TSR_CONFIG_BACKEND_AUTO,
    TSR_CONFIG_BACKEND_CPU,
    TSR_CONFIG_BACKEND_CUDA
} tsr_config_backend;
typedef enum {
    TSR_CONFIG_GRAPH_AUTO,
    TSR_CONFIG_GRAPH_FIXED,
    TSR_CONFIG_GRAPH_FLOPS,
    TSR_CONFIG_GRAPH_TIME
} tsr_config_graph;
typedef enum { TSR_CONFIG_REPORT_NONE, TSR_CONFIG_REPORT_TENSORBOARD } tsr_config_report;
typedef enum {
    TSR_CONFIG_PROGRESS_AUTO,
    TSR_CONFIG_PROGRESS_BAR,
    TSR_CONFIG_PROGRESS_LINES,
    TSR_CONFIG_PROGRESS_NONE
} tsr_config_progress;
typedef enum { TSR_CONFIG_DEFAULTS_TESSERA, TSR_CONFIG_DEFAULTS_TRL } tsr_config_defaults;
typedef enum { TSR_CONFIG_OPTIM_ADAMW, TSR_CONFIG_OPTIM_ADAMW_8BIT } tsr_config_optim;

typedef struct {
    const char **items; /* NULL: not given */
    int count;
} tsr_config_strings;

typedef struct {
    int64_t *items;
    int count;
} tsr_config_ints;

/* Rows of tables: a list alone is the embedding's. */
typedef struct {
    tsr_config_ints embedding, head;
} tsr_config_tokens;

/* name -> words, in the order of the file. */
typedef struct {
    const char *name;
    tsr_config_strings words;
} tsr_config_name;

typedef struct {
    tsr_config_name *items;
    int count;
} tsr_config_names;

/* A data set that was given as a map (docs/data.md, Several data sets). NULL, 0 and FORMAT_AUTO: not given, and the keys of
 * the whole job count. */
typedef struct {
    const char *path;
    const char *name;  /* a folder in path */
    const char *split; /* "train", "train[:10%]" */
    tsr_config_format format;
    double weight;
    int64_t samples; /* the first rows */
    const char *text_field;
    const char *chat_template;
    const char *field_messages, *field_system, *field_tools, *field_instruction, *field_input,
        *field_output, *field_history;
    const char *field_prompt, *field_chosen, *field_rejected, *field_completion, *field_label;
    const char *field_human, *field_model;      /* words for user and assistant */
    tsr_config_names message_property_mappings; /* what the reader calls it -> what the rows do */
    tsr_config_names roles;                     /* role -> words for it */
    tsr_config_strings roles_to_train;          /* as the job's */
    tsr_config_eot train_on_eot;
    bool drop_system;
} tsr_config_set;

typedef struct {
    const char **items; /* paths */
    int count;
    tsr_config_set *sets; /* [count]; NULL: there are paths alone */
} tsr_config_data;

typedef enum { TSR_CONFIG_BALANCE_ROWS, TSR_CONFIG_BALANCE_TOKENS } tsr_config_balance;
typedef enum { TSR_CONFIG_ADAPTERS_APART, TSR_CONFIG_ADAPTERS_MIXED } tsr_config_adapter_mixing;
typedef enum {
    TSR_CONFIG_SCHEDULE_AUTO,
    TSR_CONFIG_SCHEDULE_GREEDY,
    TSR_CONFIG_SCHEDULE_MILP
} tsr_config_adapter_schedule;
typedef enum { TSR_CONFIG_MIXING_CONCATENATE, TSR_CONFIG_MIXING_INTERLEAVE } tsr_config_mixing;

/* The one of these that was said; layers 1 is `layer`. */
typedef struct {
    int64_t layers;           /* of a unit; 0: not so */
    uint64_t bytes;           /* of a unit, at most; 0: not so */
    tsr_config_strings names; /* of modules that are units */
} tsr_config_units;

/* name -> number, in the order of the file (the first matching pattern wins in PEFT). */
typedef struct {
    const char *name;
    double value;
} tsr_config_pattern;

typedef struct {
    tsr_config_pattern *items;
    int count;
} tsr_config_patterns;

/* LIST: names, matched as suffixes. REGEX: items[0], a full match. ALL_LINEAR, ALL_LINEAR_PEFT and NONE: empty.
 * ALL_LINEAR_PEFT: what PEFT makes of all-linear for a model with experts. */
typedef struct {
    tsr_config_modules_kind kind;
    tsr_config_strings names;
} tsr_config_modules;

/* Strings are borrowed from the configuration; an optional one that was not given is NULL. */
typedef struct {
    /* model */
    const char *model_name_or_path;
    bool load_in_4bit, load_in_8bit; /* not both */
    bool use_bnb_nested_quant;
    tsr_config_dtype dtype;
    tsr_config_base_compute base_compute;
    int bnb_4bit_quant_type; /* 0: nf4, the only one */
    /* data */
    tsr_config_data dataset, eval_dataset;
    tsr_config_mixing dataset_mixing;
    const char *dataset_train_split, *dataset_test_split; /* of directories */
    int64_t max_train_samples, max_eval_samples;          /* 0: all */
    double validation_split; /* samples of dataset to hold out; below 1: a share; 0: none */
    tsr_config_format dataset_format;
    const char *dataset_text_field;
    const char *dataset_cache; /* "true": the user's; NULL: none */
    int64_t max_length;        /* 0: none */
    tsr_config_truncation truncation;
    bool packing;
    int packing_strategy;           /* 0: bfd, the only one */
    tsr_config_choice eval_packing; /* never AUTO after loading: `packing` */
    tsr_config_choice assistant_only_loss, completion_only_loss; /* NO with train_on_inputs */
    bool train_on_inputs;
    tsr_config_strings roles_to_train; /* items NULL: not given; an empty list: turns that say so */
    tsr_config_eot train_on_eot;
    const char *response_template; /* NULL: none */
    const char *default_system;    /* NULL: none */
    bool shuffle, group_by_length;
    tsr_config_balance balance;
    int64_t data_seed;         /* after loading: `seed` unless given */
    const char *chat_template; /* a name or a file; NULL: the model's own */
    const char *eos_token;
    tsr_config_names special_tokens; /* a word each */
    /* tsr_config_date reads it; NULL: the day the run begins, which the job sets where a template asks for it */
    const char *chat_template_date;
    /* objective */
    tsr_objective objective; /* after loading with its losses */
    tsr_config_strings loss_type, loss_weights;
    const char *ref_adapter;  /* NULL: the model before step 1; "base": without an adapter */
    const char *answer_begin; /* of texts without a prompt; NULL: what both begin with */
    bool wrap_conversations;
    bool disable_dropout; /* after loading, with an objective: lora_dropout is 0 */
    /* adapter */
    int64_t lora_r;
    double lora_alpha, lora_dropout;
    tsr_config_modules lora_target_modules, exclude_modules;
    tsr_config_strings lora_target_parameters; /* empty: none */
    int64_t expert_lora_r;                     /* 0: lora_r */
    double expert_lora_alpha;                  /* 0: lora_alpha */
    bool use_rslora, use_dora;
    tsr_config_patterns rank_pattern, alpha_pattern;
    tsr_config_ints layers_to_transform; /* empty: all */
    tsr_config_strings modules_to_save;
    tsr_config_tokens trainable_token_indices;
    const char *init_adapter;
    const char
        *init_lora_weights; /* tsr_config_start reads it; "true" where init_adapter decides */
    /* optimizer */
    double learning_rate;
    double loraplus_lr_ratio; /* 0: none */
    double loraplus_lr_embedding;
    tsr_config_optim optim;
    double adam_beta1, adam_beta2, adam_epsilon, weight_decay;
    double max_grad_norm; /* 0: no clipping */
    tsr_schedule_kind lr_scheduler_type;
    double warmup_steps; /* below 1: a share, see tsr_config_steps */
    tsr_schedule_arguments lr_scheduler_kwargs;
    /* loop */
    double num_train_epochs;
    int64_t max_steps; /* -1: num_train_epochs decides */
    int64_t per_device_train_batch_size, gradient_accumulation_steps;
    int64_t total_batch_size; /* 0: gradient_accumulation_steps x ranks micro-batches a step */
    bool dataloader_drop_last;
    double label_smoothing_factor;                       /* 0: none */
    double neftune_noise_alpha;                          /* 0: none */
    double router_aux_loss_coef;                         /* 0: none */
    double router_bias_update_rate, moe_capacity_factor; /* 0: none */
    int64_t
        per_device_eval_batch_size; /* after loading: per_device_train_batch_size unless given */
    tsr_config_every eval_strategy;
    double eval_steps; /* below 1: a share; after loading: logging_steps unless given */
    tsr_config_choice eval_on_start; /* after loading: as tsr_config_evaluates, unless given */
    bool load_best_model_at_end;
    int metric_for_best_model;       /* 0: the loss of an evaluation, the only one */
    int64_t early_stopping_patience; /* evaluations; 0: as many as there are */
    double early_stopping_threshold;
    double logging_steps;
    bool logging_first_step;
    tsr_config_every save_strategy;
    double save_steps;
    int64_t save_total_limit; /* 0: all */
    int64_t seed;
    const char *resume_from_checkpoint;
    double time_limit;   /* seconds; 0: none */
    int64_t ddp_timeout; /* seconds */
    int64_t max_skipped_steps;
    /* memory */
    tsr_config_recompute gradient_checkpointing;
    uint64_t memory_budget, host_memory_budget; /* bytes; 0: auto */
    tsr_config_offload offload;
    tsr_config_choice activation_offloading, optimizer_offload;
    int64_t resident_units; /* -1: auto */
    int64_t decoded_layers; /* -1: auto */
    int64_t slots;
    int64_t context_span; /* rows of a micro-batch that row-wise nodes of a layer have at a time */
    int64_t context_parallel_size; /* ranks that share a micro-batch */
    tsr_config_units unit_policy;
    int64_t shard_group_size; /* 0: the ranks of a node */
    /* run */
    const char *output_dir;
    bool overwrite_output_dir;
    tsr_config_backend backend;
    bool deterministic;
    tsr_config_graph lora_graph;
    const char *trace;
    tsr_config_report report_to;
    int log_level; /* tsr_log_level */
    tsr_config_progress progress;
    tsr_config_defaults defaults;

    tsr_config_adapter_mixing adapter_mixing;
    tsr_config_adapter_schedule adapter_schedule;
    int64_t adapter_capacity; /* 0: null */
    /* Of a file with `adapters:` the name of the entry that this is, and how many there are; else NULL, 0. */
    const char *adapter_name;
    int adapter_count;

    /* What the user should be told once, a line each: peers' keys without effect, keys that were
     * mapped, defaults that differ from TRL's. */
    tsr_config_strings notes;
    int trl_differences;            /* how many defaults are in use that are not TRL's */
    struct tsr_config_store *store; /* private: memory, and where each key was set */
} tsr_config;

/* What the configuration is for decides which keys are required. */
typedef enum {
    TSR_CONFIG_TRAIN, /* model_name_or_path, dataset, output_dir */
    TSR_CONFIG_PLAN,  /* model_name_or_path */
    TSR_CONFIG_EVAL, /* model_name_or_path, and an eval_dataset or a dataset with validation_split */
    TSR_CONFIG_DATA,    /* model_name_or_path, and a dataset or eval_dataset */
    TSR_CONFIG_MERGE,   /* model_name_or_path, init_adapter, output_dir */
    TSR_CONFIG_QUANTIZE /* model_name_or_path, output_dir; no init_adapter */
} tsr_config_use;

/* Zero: no file and no overrides, for training. Everything is borrowed during the load only. */
typedef struct {
    const char *path;             /* NULL: `text` */
    const char *text;             /* NULL: overrides alone */
    size_t text_bytes;            /* 0: text is zero-terminated */
    const char *name;             /* what messages call it; NULL: the path, or "configuration" */
    const char *const *overrides; /* "key=value" */
    int override_count;
    tsr_config_use use;
    bool of_run;         /* `path` is a run's resolved job.yaml, whose trace is the run's file */
    const char *adapter; /* init_adapter, before what the file says; NULL: as that says */
    bool rows_given;     /* dataset and eval_dataset name no files (tsr_job_options.row) */
    bool has_cuda;       /* whether this build has a CUDA backend */
    int entry; /* which of `adapters:` it is, from 0; of a file without that list nothing */
} tsr_config_source;

/* Loads and checks. On success the caller frees *out with tsr_config_free; on failure it is
 * untouched. TSR_ECONFIG: one message with every error of the file and the overrides; TSR_EIO: the
 * file cannot be read. Touches no file but `path` and, where it is LLaMA-Factory's, dataset_info.json; asks only whether a/b, which looks like a Hub
 * id, exists here or above `path`, and whether output_dir is another name of what is read. */
tsr_status tsr_config_load(tsr_config *out, const tsr_config_source *source);

/* The file of `source`, axolotl's, LLaMA-Factory's or TRL's, as a job.yaml: our keys, each with what the file calls it, and
 * as comments those without effect here, and what is not quite as there. Only names and values that cannot be had are
 * judged: TSR_ECONFIG as above. Also what a file of ours gives. */
tsr_status tsr_config_translate(tsr_text *out, const tsr_config_source *source);

/* Frees what *config owns; a zero struct is fine. */
void tsr_config_free(tsr_config *config);

/* Whether the file or an override set this key (by any of its names). False for unknown keys. */
bool tsr_config_is_set(const tsr_config *config, const char *key);

/* Where: "job.yaml:12", "override lora_r=8" or "default". Borrowed. */
const char *tsr_config_where(const tsr_config *config, const char *key);

/* "dpo". Static. */
const char *tsr_config_objective_name(tsr_objective_kind kind);

/* The directory of ref_adapter; NULL: it names none. */
const char *tsr_config_reference(const tsr_config *config);

/* Whether there are rows to evaluate: an eval_dataset, or what validation_split holds out of dataset. */
bool tsr_config_evaluates(const tsr_config *config);

/* The most of lora_r and rank_pattern, and of slots: as src/adapters and src/shard have them. */
#define TSR_CONFIG_MAX_RANK  8192
#define TSR_CONFIG_MAX_SLOTS 8

/* Entries of `adapters:`, and bytes of a name there. */
#define TSR_CONFIG_MAX_ADAPTERS 64
#define TSR_CONFIG_ADAPTER_NAME 64

/* The first line of what tsr_config_write makes. */
#define TSR_CONFIG_HEADER "# The configuration of this run, every key written out.\n"

/* The resolved configuration as YAML, every key written out; a value nobody set carries the comment
 * "# default", or "# resolved" if it was assigned after loading. Reading it again gives the same
 * values, but for those that were meant for one start: resume_from_checkpoint, overwrite_output_dir.
 * TSR_ENOMEM. */
tsr_status tsr_config_write(tsr_text *out, const tsr_config *config);

/* The value of one key as the YAML that tsr_config_write prints ("[q_proj, v_proj]", "null").
 * TSR_EINVAL: no such key. */
tsr_status tsr_config_value_text(tsr_text *out, const tsr_config *config, const char *key);

/* A hash of all values (not of comments or of where they came from): equal on all ranks, or they
 * were given different configurations. */
uint64_t tsr_config_hash(const tsr_config *config);

/* The help text: every key by group, with its default, its values and what it does. */
void tsr_config_help(tsr_text *out);

/* What init_lora_weights means, and of pissa the rounds of iteration (adapters/principal.h). false: nothing
 * that is known; *reason (may be NULL) is then why a word of PEFT's is none here, or NULL. */
bool tsr_config_start(tsr_adapter_start *start, int64_t *rounds, const char **reason,
                      const char *text);

/* One key, ours or another trainer's, in full: what it does, its type, default (and TRL's), what it accepts, other names.
 * TSR_EUSAGE: there is none; the message has the nearest. */
tsr_status tsr_config_help_key(tsr_text *out, const char *name);

/* "2024-07-26" or "2024-07-26T12:30:00" in seconds from 1970 of a calendar without time zones;
 * false: another form, no such day, or not in 1971 to 9999. */
bool tsr_config_date(int64_t *out, const char *text);

/* warmup_steps, eval_steps, save_steps or logging_steps as a number of steps: a share (below 1) of
 * total_steps is rounded up, and is at least `least`. */
int64_t tsr_config_steps(double value, int64_t total_steps, int64_t least);

#endif
