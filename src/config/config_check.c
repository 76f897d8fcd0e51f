/*
 * config_check.c: what does not go together, and defaults that follow other keys.
 */
#include "base/called.h"
#include "config/config_store.h"

#include <ctype.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    tsr_config *config;
    const tsr_config_source *source;
    tsr_config_errors *errors;
} checker;

static const tsr_config_origin *origin(const checker *c, const char *key)
{
    return &c->config->store->origin[tsr_keys_find(key)];
}

/* A key whose value was an error is not judged twice. */
static bool usable(const checker *c, const char *key)
{
    return !origin(c, key)->bad;
}

static bool is_set(const checker *c, const char *key)
{
    return tsr_config_is_set(c->config, key);
}

static const char *where(const checker *c, const char *key)
{
    return tsr_config_where(c->config, key);
}

/* Of two keys that clash the one that was set: an override before a line, a line before a default.
 */
static const char *where_set(const checker *c, const char *first, const char *second)
{
    return origin(c, first)->layer >= origin(c, second)->layer ? where(c, first) : where(c, second);
}

/* Whether output_dir is written to. */
static bool writes(const checker *c)
{
    return c->source->use != TSR_CONFIG_PLAN && c->source->use != TSR_CONFIG_EVAL;
}

/* What merge lacks: mostly the run of this very job.yaml is meant. */
static const char *say_adapter(char out[PATH_MAX + 128], const tsr_config *config)
{
    char path[PATH_MAX];
    const char *run = config->output_dir ? config->output_dir : "";
    bool there = snprintf(path, sizeof path, "%s/metrics.jsonl", run) < (int)sizeof path &&
                 access(path, F_OK) == 0;
    snprintf(out, PATH_MAX + 128,
             "the directory of an adapter; or name the run instead of the "
             "job.yaml: tessera merge %s",
             there ? run : "runs/first");
    return out;
}

static void check_required(const checker *c)
{
    const tsr_config *config = c->config;
    tsr_config_use use = c->source->use;
    char adapter[PATH_MAX + 128];
    const struct {
        const char *key, *what;
        bool needed, given;
    } keys[] = {
        {"model_name_or_path", "the directory of a Hugging Face checkpoint", true,
         config->model_name_or_path},
        {"dataset", "a file or directory of rows",
         use == TSR_CONFIG_TRAIN || use == TSR_CONFIG_DATA,
         config->dataset.count || (use == TSR_CONFIG_DATA && config->eval_dataset.count)},
        {"eval_dataset", "a file or directory of rows", use == TSR_CONFIG_EVAL,
         tsr_config_evaluates(config)},
        {"init_adapter", say_adapter(adapter, config), use == TSR_CONFIG_MERGE,
         config->init_adapter},
        {"output_dir", "the directory to write to", writes(c), config->output_dir},
    };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (keys[i].needed && !keys[i].given && usable(c, keys[i].key))
            tsr_config_error(
                c->errors,
                is_set(c, keys[i].key) ? where(c, keys[i].key) : tsr_config_source_name(c->source),
                "%s: required, but it is %s; write %s: %s", keys[i].key,
                is_set(c, keys[i].key) ? "null" : "missing", keys[i].key, keys[i].what);
}

/* owner/name: what the Hub calls a model, and no file of that name is here. */
static bool looks_like_hub_id(const char *text)
{
    const char *slash = strchr(text, '/');
    if (!slash || slash == text || !slash[1] || strchr(slash + 1, '/'))
        return false;
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                  "/._-";
    size_t length = strlen(text);
    if (strspn(text, letters) < length)
        return false;
    const char *endings[] = {".jsonl",   ".ndjson", ".json", ".yaml", ".txt", ".jinja",
                             ".parquet", ".csv",    ".tsv",  ".gz",   ".zst"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        size_t e = strlen(endings[i]);
        if (length > e && !strcmp(text + length - e, endings[i]))
            return false;
    }
    struct stat info;
    return isalnum((unsigned char)*text) && isalnum((unsigned char)slash[1]) &&
           stat(text, &info) != 0;
}

/* Whether a/b is a path, though nothing is there: a is a directory, or called as directories are. */
static bool is_path(const char *text)
{
    static const char *const words[] = {"examples", "models", "data",   "runs",
                                        "out",      "output", "outputs"};
    char first[NAME_MAX + 1];
    struct stat info;
    if (snprintf(first, sizeof first, "%.*s", (int)strcspn(text, "/"), text) > NAME_MAX)
        return true;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcmp(first, words[i]))
            return true;
    return stat(first, &info) == 0;
}

/* The directory above the configuration file where the path is; "": nowhere. */
static void find_above(char out[PATH_MAX], const char *file, const char *path)
{
    char full[2 * PATH_MAX];
    struct stat info;
    if (!file || !realpath(file, out))
        *out = 0;
    for (char *slash; (slash = strrchr(out, '/'));) {
        *slash = 0;
        snprintf(full, sizeof full, "%s/%s", out, path);
        if (stat(full, &info) == 0)
            return;
    }
    *out = 0;
}

static void check_hub_id(const checker *c, const char *key, const char *value, bool dataset)
{
    if (!value || !usable(c, key) || !looks_like_hub_id(value))
        return;
    const char *name = strchr(value, '/') + 1;
    const char *type = dataset ? "--repo-type dataset " : "";
    const char *spelled = origin(c, key)->spelled;
    char above[PATH_MAX];
    find_above(above, c->source->path, value);
    /* As the file calls it: datasets of axolotl are maps, each with a path. */
    const char *called = !spelled ? key : strstr(spelled, "datasets") ? "path" : spelled;
    if (*above)
        tsr_config_error(c->errors, where(c, key),
                         "%s: found '%s', which is not in the working directory but in %s: start "
                         "there, or write %s: %s/%s",
                         called, value, above, called, above, value);
    if (*above || is_path(value)) /* which is missed where it is opened */
        return;
    tsr_config_error(c->errors, where(c, key),
                     "%s: found '%s', and there is no such %s here. If it is a name on the Hugging "
                     "Face Hub, download it first: `hf download %s%s --local-dir %s` (older: "
                     "huggingface-cli download), then write %s: %s",
                     called, value, dataset ? "file or directory" : "directory", type, value, name,
                     called, name);
}

/* However the two are spelled. */
static bool same_place(const char *a, const char *b)
{
    struct stat x, y;
    return !strcmp(a, b) ||
           (stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino);
}

/* Whether `path` is in one of the checkpoints of `output`. */
static bool in_checkpoint(const char *path, const char *output)
{
    static const char checkpoint[] = "/checkpoint-";
    char inner[PATH_MAX], outer[PATH_MAX];
    if (!realpath(path, inner) || !realpath(output, outer))
        return false;
    size_t length = strcmp(outer, "/") ? strlen(outer) : 0;
    return !strncmp(inner, outer, length) &&
           !strncmp(inner + length, checkpoint, sizeof checkpoint - 1);
}

/* What is read must not be what is written, or removed for it. */
static void check_output(const checker *c)
{
    const tsr_config *config = c->config;
    const char *sources[] = {"model_name_or_path", "init_adapter", "ref_adapter"};
    const char *paths[] = {config->model_name_or_path, config->init_adapter,
                           tsr_config_reference(config)};
    bool clears = config->overwrite_output_dir && c->source->use == TSR_CONFIG_TRAIN;
    for (int i = 0; i < 3; i++) {
        if (paths[i] && same_place(paths[i], config->output_dir))
            tsr_config_error(c->errors, where(c, "output_dir"),
                             "output_dir: '%s' is also %s (%s); write to another directory",
                             config->output_dir, sources[i], where(c, sources[i]));
        else if (paths[i] && clears && in_checkpoint(paths[i], config->output_dir))
            tsr_config_error(c->errors, where(c, "output_dir"),
                             "output_dir: overwrite_output_dir (%s) removes the checkpoints in "
                             "'%s', and %s (%s) is one of them; write to another directory",
                             where(c, "overwrite_output_dir"), config->output_dir, sources[i],
                             where(c, sources[i]));
    }
}

static void check_paths(const checker *c)
{
    const tsr_config *config = c->config;
    check_hub_id(c, "model_name_or_path", config->model_name_or_path, false);
    check_hub_id(c, "init_adapter", config->init_adapter, false);
    check_hub_id(c, "ref_adapter", tsr_config_reference(config), false);
    bool files = !c->source->rows_given;
    for (int i = 0; files && i < config->dataset.count; i++)
        check_hub_id(c, "dataset", config->dataset.items[i], true);
    for (int i = 0; files && i < config->eval_dataset.count; i++)
        check_hub_id(c, "eval_dataset", config->eval_dataset.items[i], true);
    if (config->output_dir && writes(c))
        check_output(c);
}

/* Both compare evaluations on the way; without any, nothing ever is the best. */
static void check_best(const checker *c, bool evaluates)
{
    const tsr_config *config = c->config;
    const char *key = config->load_best_model_at_end    ? "load_best_model_at_end"
                      : config->early_stopping_patience ? "early_stopping_patience"
                                                        : NULL;
    if (key && !evaluates && usable(c, "eval_strategy") && c->source->use == TSR_CONFIG_TRAIN)
        tsr_config_error(
            c->errors, where(c, key),
            "%s: needs evaluations during the run; set eval_dataset or validation_split, "
            "and eval_strategy: steps or epoch",
            key);
}

/* Two keys that say what is evaluated. */
static void check_split(const checker *c)
{
    const tsr_config *config = c->config;
    if (config->validation_split > 0 && config->eval_dataset.count)
        tsr_config_error(c->errors, where_set(c, "validation_split", "eval_dataset"),
                         "validation_split (%s) holds rows of dataset out to evaluate, but "
                         "eval_dataset (%s) has such rows; leave out one (validation_split: null)",
                         where(c, "validation_split"), where(c, "eval_dataset"));
}

/* train_on_inputs against what trains a part of the row alone. */
static void check_inputs(const checker *c)
{
    const char *keys[] = {"assistant_only_loss", "completion_only_loss"};
    const tsr_config_choice choices[] = {c->config->assistant_only_loss,
                                         c->config->completion_only_loss};
    for (int i = 0; i < 2 && c->config->train_on_inputs; i++)
        if (choices[i] == TSR_CONFIG_CHOICE_YES)
            tsr_config_error(c->errors, where_set(c, "train_on_inputs", keys[i]),
                             "train_on_inputs: true (%s) trains all tokens of a row, but %s is "
                             "true (%s); leave out one",
                             where(c, "train_on_inputs"), keys[i], where(c, keys[i]));
}

/* response_template against what else says which part of a row is trained. */
static void check_response(const checker *c)
{
    const tsr_config *config = c->config;
    const struct {
        const char *key;
        bool against;
    } others[] = {
        {"assistant_only_loss", config->assistant_only_loss == TSR_CONFIG_CHOICE_YES},
        {"completion_only_loss", config->completion_only_loss == TSR_CONFIG_CHOICE_YES},
        {"train_on_inputs", config->train_on_inputs},
    };
    for (size_t i = 0; i < sizeof others / sizeof *others && config->response_template; i++)
        if (others[i].against)
            tsr_config_error(c->errors, where_set(c, "response_template", others[i].key),
                             "response_template (%s) says what of a row is trained, and so does "
                             "%s: true (%s); leave out one",
                             where(c, "response_template"), others[i].key, where(c, others[i].key));
}

static void check_data(const checker *c)
{
    const tsr_config *config = c->config;
    if (config->max_length == 0 && usable(c, "max_length")) {
        const char *keys[] = {"packing", "eval_packing"};
        const bool packed[] = {config->packing, config->eval_packing == TSR_CONFIG_CHOICE_YES};
        for (int i = 0; i < 2; i++)
            if (packed[i] && usable(c, keys[i]) && (i == 0 || is_set(c, keys[i])))
                tsr_config_error(
                    c->errors, where_set(c, keys[i], "max_length"),
                    "%s: true (%s) needs a max_length, which is null (%s): a packed row "
                    "has that many tokens",
                    keys[i], where(c, keys[i]), where(c, "max_length"));
    }
    if (config->max_length == 0 && config->truncation == TSR_CONFIG_TRUNCATION_SPLIT &&
        usable(c, "max_length") && usable(c, "truncation"))
        tsr_config_error(c->errors, where_set(c, "truncation", "max_length"),
                         "truncation: split (%s) needs a max_length, which is null (%s): no row is "
                         "longer",
                         where(c, "truncation"), where(c, "max_length"));
    int64_t date;
    if (config->chat_template_date && !tsr_config_date(&date, config->chat_template_date))
        tsr_config_error(c->errors, where(c, "chat_template_date"),
                         "chat_template_date: found '%s'; expected a date from 1971 on, such as "
                         "2024-07-26, or with a time, 2024-07-26T12:30:00",
                         config->chat_template_date);
    bool known = usable(c, "dataset") && usable(c, "eval_dataset") && usable(c, "validation_split");
    bool evaluates = tsr_config_evaluates(config) || !known;
    if (config->eval_strategy != TSR_CONFIG_EVERY_NO && !evaluates && is_set(c, "eval_strategy"))
        tsr_config_error(c->errors, where(c, "eval_strategy"),
                         "eval_strategy: needs an eval_dataset or validation_split; add one or "
                         "write eval_strategy: no");
    if (config->eval_on_start == TSR_CONFIG_CHOICE_YES && !evaluates && is_set(c, "eval_on_start"))
        tsr_config_error(c->errors, where(c, "eval_on_start"),
                         "eval_on_start: true needs an eval_dataset or validation_split");
    if (known) /* eval_steps alone does not ask for evaluations of a data set that is not there */
        check_best(c, evaluates && config->eval_strategy != TSR_CONFIG_EVERY_NO);
}

static void check_bits(const checker *c)
{
    if (c->config->load_in_8bit && c->config->load_in_4bit && usable(c, "load_in_8bit") &&
        usable(c, "load_in_4bit"))
        tsr_config_error(
            c->errors, where_set(c, "load_in_8bit", "load_in_4bit"),
            "load_in_8bit (%s) and load_in_4bit (%s) are both true; the base is stored "
            "one way: write false for one of them",
            where(c, "load_in_8bit"), where(c, "load_in_4bit"));
}

/* A command for one adapter, given a list of them. */
static void check_adapters(const checker *c)
{
    tsr_config_use use = c->source->use;
    bool several = use == TSR_CONFIG_TRAIN || use == TSR_CONFIG_PLAN || use == TSR_CONFIG_DATA;
    if (c->config->adapter_count && !several && use != TSR_CONFIG_QUANTIZE)
        tsr_config_error(c->errors, tsr_config_source_name(c->source),
                         "adapters: this command is for one adapter; give it that adapter's own "
                         "job.yaml, as in `%s %s %s/job.yaml`",
                         tsr_called(), use == TSR_CONFIG_EVAL ? "eval" : "merge",
                         c->config->output_dir ? c->config->output_dir : "DIRECTORY");
}

/* What a micro-batch that several adapters share cannot do for one of them. */
static void check_mixing(const checker *c)
{
    const tsr_config *config = c->config;
    if (config->adapter_mixing != TSR_CONFIG_ADAPTERS_MIXED || config->adapter_count < 2)
        return;
    if (config->adapter_count == TSR_CONFIG_MAX_ADAPTERS)
        tsr_config_error(c->errors, where(c, "adapter_mixing"),
                         "adapter_mixing: tokens is for at most %d adapters; write none, or train "
                         "fewer",
                         TSR_CONFIG_MAX_ADAPTERS - 1);
    const struct {
        bool asked;
        const char *key, *why;
    } refused[] = {
        {config->objective.kind != TSR_OBJECTIVE_SFT, "objective",
         "the loss of pairs is computed over whole micro-batches"},
        {config->use_dora, "use_dora", "DoRA's magnitudes apply to every token of a linear"},
        {config->label_smoothing_factor > 0, "label_smoothing_factor",
         "it applies to the labels of all adapters"},
        {config->neftune_noise_alpha > 0, "neftune_noise_alpha",
         "the noise depends on what else is in the micro-batch"},
        {config->unit_policy.bytes > 0, "unit_policy",
         "a unit's bytes would include the other adapters"},
        {config->router_aux_loss_coef > 0, "router_aux_loss_coef",
         "the loss covers the tokens of all adapters"},
        {config->router_bias_update_rate > 0, "router_bias_update_rate",
         "the routers would change for all adapters"},
        {config->moe_capacity_factor > 0, "moe_capacity_factor",
         "which tokens are left out depends on the micro-batch"},
        {config->modules_to_save.count > 0, "modules_to_save",
         "the other adapters would use the same table"},
        {config->trainable_token_indices.embedding.count > 0 ||
             config->trainable_token_indices.head.count > 0,
         "trainable_token_indices", "the other adapters would use the same table"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (refused[i].asked)
            tsr_config_error(c->errors, where_set(c, "adapter_mixing", refused[i].key),
                             "adapter_mixing: tokens (%s) does not go with %s (%s): %s; leave it "
                             "out, or write adapter_mixing: none",
                             where(c, "adapter_mixing"), refused[i].key, where(c, refused[i].key),
                             refused[i].why);
}

/* balance: tokens makes micro-batches of unequal numbers of rows. */
static void check_balance(const checker *c)
{
    const tsr_config *config = c->config;
    if (config->balance != TSR_CONFIG_BALANCE_TOKENS)
        return;
    if (config->packing)
        tsr_config_error(
            c->errors, where_set(c, "balance", "packing"),
            "balance: tokens (%s) does not go with packing: true (%s), whose rows have "
            "about the same length already; leave one out",
            where(c, "balance"), where(c, "packing"));
    if (config->objective.kind != TSR_OBJECTIVE_SFT)
        tsr_config_error(c->errors, where_set(c, "balance", "objective"),
                         "balance: tokens (%s) does not go with objective: %s (%s), whose loss "
                         "averages micro-batches of equal numbers of pairs; leave balance out",
                         where(c, "balance"), tsr_config_objective_name(config->objective.kind),
                         where(c, "objective"));
}

static void check_batch(const checker *c)
{
    const tsr_config *config = c->config;
    if (!config->total_batch_size || !usable(c, "total_batch_size"))
        return;
    if (usable(c, "per_device_train_batch_size") &&
        config->total_batch_size % config->per_device_train_batch_size)
        tsr_config_error(c->errors, where(c, "total_batch_size"),
                         "total_batch_size: %lld is not a multiple of per_device_train_batch_size "
                         "%lld (%s); a step is made of whole micro-batches",
                         (long long)config->total_batch_size,
                         (long long)config->per_device_train_batch_size,
                         where(c, "per_device_train_batch_size"));
    if (usable(c, "gradient_accumulation_steps") && config->gradient_accumulation_steps != 1)
        tsr_config_error(
            c->errors, where_set(c, "gradient_accumulation_steps", "total_batch_size"),
            "total_batch_size (%s) and gradient_accumulation_steps %lld (%s) both give "
            "the size of a step; leave out one",
            where(c, "total_batch_size"), (long long)config->gradient_accumulation_steps,
            where(c, "gradient_accumulation_steps"));
}

static void check_adapter(const checker *c)
{
    const tsr_config *config = c->config;
    if (config->lora_target_parameters.count && config->lora_dropout > 0)
        tsr_config_error(
            c->errors, where_set(c, "lora_dropout", "lora_target_parameters"),
            "lora_dropout: found %g (%s) with lora_target_parameters (%s); adapters of "
            "experts have no dropout, and PEFT reads no adapter with both; write "
            "lora_dropout: 0",
            config->lora_dropout, where(c, "lora_dropout"), where(c, "lora_target_parameters"));
    if (config->layers_to_transform.count && usable(c, "lora_target_modules") &&
        config->lora_target_modules.kind == TSR_CONFIG_MODULES_REGEX)
        tsr_config_error(c->errors, where_set(c, "layers_to_transform", "lora_target_modules"),
                         "layers_to_transform (%s) does not go with a regular expression as "
                         "lora_target_modules (%s); name the layers in the expression, or list the "
                         "modules: [%s]",
                         where(c, "layers_to_transform"), where(c, "lora_target_modules"),
                         config->lora_target_modules.names.items[0]);
}

/* The largest rank that the keys ask for. */
static double largest_rank(const tsr_config *config)
{
    double most = (double)config->lora_r;
    for (int i = 0; i < config->rank_pattern.count; i++)
        if (config->rank_pattern.items[i].value > most)
            most = config->rank_pattern.items[i].value;
    return most;
}

/* How the adapter starts; with init_adapter, as that says. */
static void check_start(const checker *c)
{
    const tsr_config *config = c->config;
    tsr_adapter_start start;
    const char *key = "init_lora_weights", *text = config->init_lora_weights, *reason = NULL;
    int64_t rounds;
    if (!usable(c, key))
        return;
    if (!tsr_config_start(&start, &rounds, &reason, text)) {
        if (reason)
            tsr_config_error(c->errors, where(c, key), "%s: %s %s", key, text, reason);
        else
            tsr_config_error(c->errors, where(c, key),
                             "%s: found '%s', expected true, false, gaussian, pissa or "
                             "pissa_niter_N with N rounds of iteration, 0 to 999 (16 are usual)",
                             key, text);
        return;
    }
    if (config->init_adapter) {
        if (start != TSR_START_KAIMING && c->source->use == TSR_CONFIG_TRAIN)
            tsr_config_note(c->config,
                            "init_lora_weights does nothing where the adapter starts from "
                            "init_adapter");
        return;
    }
    if (start == TSR_START_PRINCIPAL && 2 * largest_rank(config) > TSR_CONFIG_MAX_RANK)
        tsr_config_error(c->errors, where(c, key),
                         "%s: %s is saved as an adapter of twice the rank, and lora_r or "
                         "rank_pattern asks for %.0f; at most %d",
                         key, text, largest_rank(config), TSR_CONFIG_MAX_RANK / 2);
}

static void check_schedule(const checker *c)
{
    const tsr_config *config = c->config;
    const tsr_schedule_options options = {.kind = config->lr_scheduler_type,
                                          .learning_rate = config->learning_rate,
                                          .arguments = config->lr_scheduler_kwargs};
    tsr_schedule schedule;
    if (!usable(c, "lr_scheduler_kwargs") || !usable(c, "lr_scheduler_type") ||
        !usable(c, "learning_rate"))
        return;
    if (tsr_schedule_make(&schedule, &options, 1) < 0)
        tsr_config_error(c->errors, where(c, "lr_scheduler_type"), "%s", tsr_last_error());
    if (config->lr_scheduler_type == TSR_SCHEDULE_CONSTANT && config->warmup_steps > 0)
        tsr_config_note(c->config,
                        "lr_scheduler_type constant has no warm-up, so warmup_steps does "
                        "nothing; constant_with_warmup has one");
}

static void check_device(const checker *c)
{
    const tsr_config *config = c->config;
    bool cuda = c->source->has_cuda && config->backend != TSR_CONFIG_BACKEND_CPU;
    if (config->backend == TSR_CONFIG_BACKEND_CUDA && !c->source->has_cuda)
        tsr_config_error(c->errors, where(c, "backend"),
                         "backend: found 'cuda', but this build has no CUDA backend; write cpu or "
                         "auto");
    else if (config->dtype == TSR_CONFIG_DTYPE_BFLOAT16 && !cuda && usable(c, "dtype") &&
             usable(c, "backend"))
        tsr_config_error(c->errors, where(c, "dtype"),
                         "%s: bfloat16 was asked for, but the CPU backend computes in float32; "
                         "write dtype: float32 or auto (a bfloat16 checkpoint is widened)",
                         origin(c, "dtype")->spelled ? origin(c, "dtype")->spelled : "dtype");
}

/* What quantize cannot do. */
static void check_quantize(const checker *c)
{
    const tsr_config *config = c->config;
    if (c->source->use != TSR_CONFIG_QUANTIZE)
        return;
    if (config->init_adapter && usable(c, "init_adapter"))
        tsr_config_error(c->errors, where(c, "init_adapter"),
                         "init_adapter: quantize writes the base alone; leave the key out "
                         "(init_adapter=null), or merge the adapter first and quantize the result");
    if (!config->load_in_4bit && usable(c, "load_in_4bit"))
        tsr_config_error(c->errors, where(c, "load_in_4bit"),
                         "load_in_4bit: false, but quantize writes 4-bit weights; leave the key "
                         "out");
}

/* Keys whose feature is not built: only the default, which does nothing, is allowed. */
static void check_later(const checker *c)
{
    for (int i = 0; i < tsr_keys_count(); i++) {
        const tsr_key *key = tsr_keys_at(i);
        if (!key->later || !usable(c, key->name) || !is_set(c, key->name))
            continue;
        tsr_text value = {0};
        tsr_config_put(&value, c->config, key);
        if (strcmp(tsr_text_string(&value), key->initial))
            tsr_config_error(c->errors, where(c, key->name),
                             "%s: found %s; %s, so only %s is allowed", key->name,
                             tsr_text_string(&value), key->later, key->initial);
        tsr_text_free(&value);
    }
}

/* ~ and ~/x: a shell expands them in no file, and rarely behind key=. */
static const char *expand(const tsr_config *config, const char *path)
{
    const char *home = getenv("HOME");
    if (!path || *path != '~' || (path[1] && path[1] != '/') || !home || !*home)
        return path;
    tsr_auto_text full = {0};
    tsr_text_printf(&full, "%s%s", home, path + 1);
    const char *copy = tsr_config_store_copy(config->store, tsr_text_string(&full));
    config->store->failed |= full.failed;
    return copy ? copy : path;
}

static void expand_paths(tsr_config *config)
{
    const char **paths[] = {&config->model_name_or_path, &config->chat_template,
                            &config->init_adapter,       &config->resume_from_checkpoint,
                            &config->output_dir,         &config->trace,
                            &config->dataset_cache,      &config->ref_adapter};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        *paths[i] = expand(config, *paths[i]);
    tsr_config_data *data[] = {&config->dataset, &config->eval_dataset};
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < data[d]->count; i++) {
            data[d]->items[i] = expand(config, data[d]->items[i]);
            if (data[d]->sets)
                data[d]->sets[i].path = data[d]->items[i];
        }
}

void tsr_config_derive(tsr_config *config)
{
    expand_paths(config);
    if (config->load_in_8bit && !tsr_config_is_set(config, "load_in_4bit"))
        config->load_in_4bit = false;
    if (config->data_seed < 0)
        config->data_seed = config->seed;
    if (config->per_device_eval_batch_size == 0)
        config->per_device_eval_batch_size = config->per_device_train_batch_size;
    tsr_config_choice *losses[] = {&config->assistant_only_loss, &config->completion_only_loss};
    for (int i = 0; i < 2 && config->train_on_inputs; i++)
        if (*losses[i] == TSR_CONFIG_CHOICE_AUTO)
            *losses[i] = TSR_CONFIG_CHOICE_NO;
    if (config->eval_packing == TSR_CONFIG_CHOICE_AUTO)
        config->eval_packing = config->packing ? TSR_CONFIG_CHOICE_YES : TSR_CONFIG_CHOICE_NO;
    if (config->eval_on_start == TSR_CONFIG_CHOICE_AUTO)
        config->eval_on_start =
            tsr_config_evaluates(config) ? TSR_CONFIG_CHOICE_YES : TSR_CONFIG_CHOICE_NO;
    if (config->eval_steps == 0)
        config->eval_steps = config->logging_steps;
    tsr_config_derive_objective(config);
}

void tsr_config_check(tsr_config *config, const tsr_config_source *source,
                      tsr_config_errors *errors)
{
    const checker c = {config, source, errors};
    check_later(&c);
    check_required(&c);
    check_paths(&c);
    check_data(&c);
    check_split(&c);
    check_inputs(&c);
    check_response(&c);
    check_balance(&c);
    check_mixing(&c);
    check_adapters(&c);
    check_bits(&c);
    check_batch(&c);
    check_adapter(&c);
    check_start(&c);
    check_schedule(&c);
    tsr_config_check_objective(config, errors);
    check_quantize(&c);
    if (source->use != TSR_CONFIG_MERGE && source->use != TSR_CONFIG_QUANTIZE)
        check_device(&c); /* these two compute on the host whatever the keys say */
}

bool tsr_config_evaluates(const tsr_config *config)
{
    return config->eval_dataset.count || (config->validation_split > 0 && config->dataset.count);
}

bool tsr_config_date(int64_t *out, const char *text)
{
    static const char shape[] = "dddd-dd-ddTdd:dd:dd";
    int field[6] = {0}; /* year, month, day, hour, minute, second */
    size_t length = strlen(text);
    if (length != 10 && length != sizeof shape - 1)
        return false;
    for (size_t i = 0, f = 0; i < length; i++) {
        bool digit = text[i] >= '0' && text[i] <= '9';
        if (shape[i] == 'd' ? !digit : text[i] != shape[i])
            return false;
        if (digit)
            field[f] = 10 * field[f] + (text[i] - '0');
        else
            f++;
    }
    struct tm day = {.tm_year = field[0] - 1900,
                     .tm_mon = field[1] - 1,
                     .tm_mday = field[2],
                     .tm_hour = field[3],
                     .tm_min = field[4],
                     .tm_sec = field[5]};
    int64_t seconds = (int64_t)timegm(&day); /* normalises what is out of range */
    *out = seconds;
    return field[0] > 1970 && day.tm_mon == field[1] - 1 && day.tm_mday == field[2] &&
           field[3] < 24 && field[4] < 60 && field[5] < 60;
}

int64_t tsr_config_steps(double value, int64_t total_steps, int64_t least)
{
    int64_t steps = (int64_t)(value >= 1 ? value : ceil(value * (double)total_steps));
    return steps < least ? least : steps;
}
