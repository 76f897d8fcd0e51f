#include "inputs/inputs.h"

#include "base/auto.h"
#include "base/hash.h"
#include "base/log.h"
#include "inputs/earlier.h"
#include "inputs/experts.h"
#include "inputs/fp8.h"
#include "inputs/kind.h"
#include "inputs/objective.h"
#include "inputs/positions.h"
#include "inputs/sets.h"
#include "inputs/shared.h"
#include "io/missing.h"
#include "model/arch/arch.h"
#include "model/units.h"

#include <errno.h>
#include <glob.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

tsr_status tsr_inputs_read_config(tsr_inputs *inputs, const tsr_config_source *source)
{
    return tsr_earlier_config(&inputs->config, source);
}

static bool holds_gguf(const char *directory)
{
    char pattern[PATH_MAX + 16];
    glob_t found = {0};
    snprintf(pattern, sizeof pattern, "%s/*.gguf", directory);
    bool holds = glob(pattern, GLOB_NOSORT, NULL, &found) == 0;
    globfree(&found);
    return holds;
}

/* What people name in place of a checkpoint. */
static tsr_status no_config(const char *where, const char *path)
{
    tsr_kind kind = tsr_kind_of(path);
    if (kind == TSR_KIND_RUN || kind == TSR_KIND_CHECKPOINT || kind == TSR_KIND_ADAPTER)
        return tsr_fail(TSR_EDATA,
                        "%s: model_name_or_path: %s holds an adapter and no model; name its base "
                        "model here, and the adapter with init_adapter: %s",
                        where, path, path);
    if (holds_gguf(path))
        return tsr_fail(TSR_EDATA,
                        "%s: model_name_or_path: %s holds GGUF files, which are not read; name the "
                        "directory of the original model, with config.json and *.safetensors",
                        where, path);
    return tsr_fail(TSR_EDATA,
                    "%s: model_name_or_path: %s holds no config.json; expected the directory of a "
                    "Hugging Face checkpoint (in the Hub's cache: models--.../snapshots/"
                    "<revision>)",
                    where, path);
}

static tsr_status check_directory(const tsr_config *config)
{
    const char *path = config->model_name_or_path;
    const char *where = tsr_config_where(config, "model_name_or_path");
    char hint[TSR_MISSING_BYTES];
    struct stat info;
    if (stat(path, &info) != 0) {
        int error = errno;
        return tsr_fail(tsr_status_of_open(error), "%s: model_name_or_path: %s: %s%s", where, path,
                        strerror(error), tsr_missing_hint(hint, path, error));
    }
    if (!S_ISDIR(info.st_mode))
        return tsr_fail(TSR_EDATA,
                        "%s: model_name_or_path: %s is a file; expected the directory of a Hugging "
                        "Face checkpoint",
                        where, path);
    char file[PATH_MAX];
    int length = snprintf(file, sizeof file, "%s/config.json", path);
    if (length < (int)sizeof file && access(file, F_OK) != 0 && errno == ENOENT)
        return no_config(where, path);
    return TSR_OK;
}

/* A plan can be made before the weights are there. */
static tsr_status open_checkpoint(tsr_inputs *inputs, bool planned)
{
    const char *directory = inputs->config.model_name_or_path;
    if (!planned || tsr_checkpoint_has_weights(directory))
        return tsr_checkpoint_open(&inputs->checkpoint, directory);
    tsr_log(TSR_LOG_INFO, "%s has no weights: planned for what its config.json describes, in %s",
            directory, tsr_dtype_name(inputs->model.dtype));
    return tsr_model_describe(&inputs->checkpoint, directory, &inputs->model);
}

/* The mean slope of capped logits differs by row, so that their gradient would be another product. */
static tsr_status check_smoothing(const tsr_inputs *inputs)
{
    const tsr_config *config = &inputs->config;
    if (!(config->label_smoothing_factor > 0) || !(inputs->model.logits_softcap > 0))
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG,
                    "%s: label_smoothing_factor: found %g, but %s caps its logits "
                    "(final_logit_softcapping %g), and labels are not smoothed with that in this "
                    "version; write label_smoothing_factor: 0",
                    tsr_config_where(config, "label_smoothing_factor"),
                    config->label_smoothing_factor, config->model_name_or_path,
                    inputs->model.logits_softcap);
}

static tsr_status check_graphs(const tsr_inputs *inputs)
{
    if (inputs->config.lora_graph != TSR_CONFIG_GRAPH_TIME || inputs->cuda)
        return TSR_OK;
    return tsr_fail(
        TSR_ECONFIG,
        "%s: lora_graph: found time, which is of a GPU, but this job is for the CPU; write "
        "lora_graph: flops, or auto, which times on a GPU only",
        tsr_config_where(&inputs->config, "lora_graph"));
}

/* What must be the same on all ranks and is too much to read before the ranks share it. */
static tsr_status sample_weights(tsr_inputs *inputs)
{
    const tsr_peft *adapter = inputs->adapter.init;
    TSR_TRY(tsr_checkpoint_sample(&inputs->weights, inputs->checkpoint));
    inputs->adapter_weights = TSR_HASH_START;
    for (uint64_t i = 0; adapter && i < tsr_peft_module_count(adapter); i++) {
        const tsr_peft_module *module = tsr_peft_module_at(adapter, i);
        const tsr_tensor *tensors[] = {module->a, module->b, module->magnitude, module->whole,
                                       module->rows};
        for (int part = 0; part < 5; part++)
            if (tensors[part])
                TSR_TRY(tsr_safetensors_sample(&inputs->adapter_weights, tensors[part]));
    }
    for (uint64_t i = 0; inputs->router_bias && i < tsr_safetensors_count(inputs->router_bias); i++)
        TSR_TRY(tsr_safetensors_sample(&inputs->adapter_weights,
                                       tsr_safetensors_at(inputs->router_bias, i)));
    return TSR_OK;
}

static tsr_status group_units(tsr_layout *layout, const tsr_config *config)
{
    const tsr_config_units *units = &config->unit_policy;
    return tsr_layout_group(layout,
                            &(tsr_unit_policy){.kind = units->names.count ? TSR_UNITS_MODULES
                                                       : units->bytes     ? TSR_UNITS_BYTES
                                                                          : TSR_UNITS_LAYERS,
                                               .layers = units->layers,
                                               .bytes = units->bytes,
                                               .module = units->names.items,
                                               .module_count = units->names.count,
                                               .where = tsr_config_where(config, "unit_policy")});
}

static tsr_status check_ids(const tsr_inputs *inputs, const tsr_layout_rows *rows)
{
    for (int i = 0; i < rows->count; i++)
        if ((uint64_t)rows->id[i] >= inputs->model.vocab_size)
            return tsr_fail(
                TSR_ECONFIG,
                "%s: trainable_token_indices: found %lld; the model has tokens 0 to %llu",
                tsr_config_where(&inputs->config, "trainable_token_indices"),
                (long long)rows->id[i], (unsigned long long)inputs->model.vocab_size - 1);
    return TSR_OK;
}

/* What init_adapter has of tables is of this model's shape. */
static tsr_status check_whole(const tsr_inputs *inputs)
{
    const tsr_peft *init = inputs->adapter.init;
    uint64_t d = inputs->model.hidden_size;
    uint64_t rows = inputs->adapter.trains_score ? 1 : inputs->model.vocab_size;
    TSR_TRY(check_ids(inputs, &inputs->adapter.embedding_rows));
    TSR_TRY(check_ids(inputs, &inputs->adapter.head_rows));
    for (uint64_t i = 0; init && i < tsr_peft_module_count(init); i++) {
        const tsr_peft_module *module = tsr_peft_module_at(init, i);
        if (module->rows && module->in_features != d)
            return tsr_fail(TSR_EDATA,
                            "%s: the rows of %s have the width %llu, but the model's %llu",
                            inputs->config.init_adapter, module->path,
                            (unsigned long long)module->in_features, (unsigned long long)d);
        if (module->whole && (module->out_features != rows || module->in_features != d))
            return tsr_fail(
                TSR_EDATA, "%s: the weight of %s is [%llu, %llu], but the model's is [%llu, %llu]",
                inputs->config.init_adapter, module->path, (unsigned long long)module->out_features,
                (unsigned long long)module->in_features, (unsigned long long)rows,
                (unsigned long long)d);
    }
    return TSR_OK;
}

static tsr_layout_options layout_options(const tsr_inputs *inputs, bool nested)
{
    const tsr_config *config = &inputs->config;
    return (tsr_layout_options){.load_in_4bit = config->load_in_4bit,
                                .load_in_8bit = config->load_in_8bit,
                                .nested = nested,
                                .keeps_fp8 = !tsr_train_adapter_is_principal(&inputs->adapter),
                                .compute = inputs->compute,
                                .train_head = inputs->adapter.trains_head,
                                .train_embedding = inputs->adapter.trains_embedding,
                                .train_score = inputs->adapter.trains_score,
                                .coded_moments = config->optim == TSR_CONFIG_OPTIM_ADAMW_8BIT,
                                .embedding_rows = inputs->adapter.embedding_rows,
                                .head_rows = inputs->adapter.head_rows};
}

tsr_status tsr_inputs_read_model(tsr_inputs *inputs, bool train, bool planned)
{
    tsr_config *config = &inputs->config;
    TSR_TRY(check_directory(config));
    TSR_TRY(check_graphs(inputs));
    TSR_TRY(tsr_model_config_load(&inputs->model, config->model_name_or_path));
    TSR_TRY(check_smoothing(inputs));
    TSR_TRY(tsr_inputs_check_experts(config, &inputs->model));
    TSR_TRY(open_checkpoint(inputs, planned));
    TSR_TRY(tsr_layout_modules(&inputs->modules, &inputs->module_count, &inputs->model));
    TSR_TRY(tsr_train_adapter_open(&inputs->adapter, config, train, inputs->modules,
                                   inputs->module_count, inputs->model.composite,
                                   inputs->model.tie_word_embeddings));
    tsr_layout_options options = layout_options(inputs, config->use_bnb_nested_quant);
    TSR_TRY(check_whole(inputs));
    TSR_TRY(tsr_layout_make(&inputs->layout, &inputs->model, inputs->checkpoint,
                            inputs->adapter.present ? &inputs->adapter.set : NULL, &options));
    TSR_TRY(tsr_inputs_check_objective(inputs, train));
    TSR_TRY(tsr_inputs_open_reference(inputs));
    TSR_TRY(tsr_inputs_open_router_bias(inputs));
    TSR_TRY(group_units(&inputs->layout, config));
    if (config->base_compute != TSR_CONFIG_BASE_COMPUTE_DTYPE)
        TSR_TRY(tsr_inputs_check_fp8(inputs));
    return planned ? TSR_OK : sample_weights(inputs);
}

void tsr_inputs_like_close(tsr_inputs *inputs)
{
    tsr_layout_free(&inputs->layout);
    tsr_adapter_set_free(&inputs->adapter.set);
    tsr_layout_modules_free(inputs->modules, inputs->module_count);
    tsr_checkpoint_close(inputs->checkpoint);
}

/* Layers beyond those there are have experts where those have them, again from the first on. */
static void repeat_sparse(tsr_layer_set *sparse, uint64_t count, uint64_t layers)
{
    for (uint64_t i = count; i < layers; i++)
        if (tsr_layer_is_in(sparse, i % count))
            tsr_layer_put_in(sparse, i);
}

tsr_status tsr_inputs_like(tsr_inputs *out, const tsr_inputs *inputs, uint64_t layers)
{
    tsr_inputs like = *inputs;
    bool nested = inputs->model.prequantized ? inputs->model.double_quant
                                             : inputs->config.use_bnb_nested_quant;
    tsr_layout_options options = layout_options(inputs, nested);
    like.model.layer_count = layers;
    repeat_sparse(&like.model.experts.sparse, inputs->model.layer_count, layers);
    like.model.prequantized = false;
    like.checkpoint = NULL;
    like.modules = NULL;
    like.module_count = 0;
    like.adapter.set = (tsr_adapter_set){0};
    like.layout = (tsr_layout){0};
    tsr_status status =
        tsr_model_describe(&like.checkpoint, inputs->config.model_name_or_path, &like.model);
    if (status == TSR_OK)
        status = tsr_layout_modules(&like.modules, &like.module_count, &like.model);
    if (status == TSR_OK)
        status = tsr_train_adapter_like(&like.adapter.set, &inputs->adapter, like.modules,
                                        like.module_count);
    if (status == TSR_OK)
        status = tsr_layout_make(&like.layout, &like.model, like.checkpoint, &like.adapter.set,
                                 &options);
    if (status == TSR_OK)
        status = group_units(&like.layout, &inputs->config);
    if (status < 0) {
        tsr_inputs_like_close(&like);
        return status;
    }
    *out = like;
    return TSR_OK;
}

tsr_status tsr_inputs_mixed(tsr_inputs *out, const tsr_inputs *const *jobs, int count,
                            const tsr_batch_bounds *bounds)
{
    tsr_inputs mixed = *jobs[0];
    tsr_layout_options options = layout_options(&mixed, mixed.config.use_bnb_nested_quant);
    TSR_AUTO_FREE const tsr_adapter_set **sets = calloc((size_t)count, sizeof *sets);
    if (!sets)
        return tsr_fail(TSR_ENOMEM, "out of memory for %d adapters", count);
    for (int i = 0; i < count; i++) {
        sets[i] = &jobs[i]->adapter.set;
        mixed.config.lora_dropout = fmax(mixed.config.lora_dropout, jobs[i]->config.lora_dropout);
    }
    options.mixed = sets;
    options.mixed_count = count;
    options.coded_moments = false;
    mixed.config.adapter_name = NULL;
    mixed.config.optimizer_offload = TSR_CONFIG_CHOICE_NO;
    mixed.batch = mixed.eval_batch = mixed.reference_batch = NULL;
    mixed.dataset = mixed.eval_dataset = NULL;
    mixed.bounds = *bounds;
    mixed.layout = (tsr_layout){0};
    tsr_log_mute(true); /* what is amiss with the checkpoint was said */
    tsr_status status =
        tsr_layout_make(&mixed.layout, &mixed.model, mixed.checkpoint, NULL, &options);
    tsr_log_mute(false);
    if (status == TSR_OK)
        status = group_units(&mixed.layout, &mixed.config);
    if (status == TSR_OK)
        *out = mixed;
    else
        tsr_layout_free(&mixed.layout);
    return status;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static void widen_bounds(tsr_inputs *inputs, const tsr_batch *batch)
{
    const tsr_batch_run *run = tsr_batch_run_of(batch);
    tsr_batch_bounds *bounds = &inputs->bounds;
    bounds->tokens = larger(bounds->tokens, run->most_tokens);
    bounds->documents = larger(bounds->documents, run->most_documents);
    bounds->label_rows = larger(bounds->label_rows, run->most_label_rows);
    bounds->longest = larger(bounds->longest, run->longest_document);
}

/* The date that a template asked for becomes the run's. */
static void keep_date(tsr_inputs *inputs)
{
    time_t today = (time_t)inputs->today;
    struct tm day;
    if (!tsr_inputs_dated(inputs) || inputs->config.chat_template_date || !gmtime_r(&today, &day))
        return;
    strftime(inputs->date, sizeof inputs->date, "%Y-%m-%d", &day);
    inputs->config.chat_template_date = inputs->date;
}

/* How well rows of max_length are filled, once they are made. */
static void say_packing(const tsr_batch *batch, const tsr_dataset *dataset, const char *name,
                        int64_t max_length)
{
    const tsr_batch_run *run = tsr_batch_run_of(batch);
    tsr_log(TSR_LOG_INFO, "%s: %lld samples packed into %lld rows of %lld tokens, %.1f %% filled",
            name, (long long)run->samples, (long long)run->units, (long long)max_length,
            100.0 * (double)tsr_dataset_stats_of(dataset)->tokens /
                ((double)run->units * (double)max_length));
}

static bool same_file(const char *a, const char *b)
{
    struct stat one, other;
    return stat(a, &one) == 0 && stat(b, &other) == 0 && one.st_dev == other.st_dev &&
           one.st_ino == other.st_ino;
}

/* One file under both keys: what is measured is what was trained. */
static void warn_of_same_data(const tsr_inputs *inputs)
{
    const tsr_config *config = &inputs->config;
    const tsr_paths *files = &inputs->files, *held_out = &inputs->eval_files;
    for (int i = 0; i < files->count; i++)
        for (int j = 0; j < held_out->count; j++)
            if (inputs->rows.next ? !strcmp(files->items[i], held_out->items[j])
                                  : same_file(files->items[i], held_out->items[j]))
                tsr_log(TSR_LOG_WARNING,
                        "%s: eval_dataset: %s is trained on too (dataset, %s), so its loss is not "
                        "that of held-out data",
                        tsr_config_where(config, "eval_dataset"), held_out->items[j],
                        tsr_config_where(config, "dataset"));
}

/* As the schedule counts it. */
static void warn_of_warmup(const tsr_config *config, int64_t steps)
{
    int64_t warmup = tsr_config_steps(config->warmup_steps, steps, 0);
    if (warmup < steps || config->lr_scheduler_type == TSR_SCHEDULE_CONSTANT)
        return;
    tsr_log(TSR_LOG_WARNING,
            "%s: warmup_steps: a warm-up of %lld steps does not end within this run's %lld: the "
            "learning rate rises to %.3g at the last step, and never reaches %.3g",
            tsr_config_where(config, "warmup_steps"), (long long)warmup, (long long)steps,
            config->learning_rate * (double)(steps - 1) / (double)warmup, config->learning_rate);
}

/* What an objective has of a micro-batch's documents. */
static void set_pairs(tsr_batch_options *options, const tsr_config *config)
{
    options->pairs = tsr_inputs_pairs(config);
    options->whole_chosen = config->objective.kind == TSR_OBJECTIVE_ORPO;
    options->marks_ties = config->objective.kind != TSR_OBJECTIVE_KTO;
    options->split_beyond =
        config->objective.kind == TSR_OBJECTIVE_DPO && config->objective.ld_alpha < 1;
}

/* Of KTO, whose batches are of rows that were put together before they are shuffled. */
static tsr_status mismatch(tsr_dataset **data, const tsr_config *config, int64_t group)
{
    return config->objective.kind == TSR_OBJECTIVE_KTO
               ? tsr_dataset_mismatch(data, group, config->max_length)
               : TSR_OK;
}

/* All samples once, in their order. */
static tsr_status make_reference(tsr_inputs *inputs, int ranks)
{
    const tsr_config *config = &inputs->config;
    tsr_batch_options options = {.dataset = inputs->dataset,
                                 .name = "dataset",
                                 .packing = config->packing,
                                 .max_length = config->max_length,
                                 .per_device = config->per_device_train_batch_size,
                                 .ranks = ranks,
                                 .evaluation = true};
    if (!tsr_inputs_has_reference(config))
        return TSR_OK;
    set_pairs(&options, config);
    TSR_TRY(tsr_batch_create(&inputs->reference_batch, &options));
    widen_bounds(inputs, inputs->reference_batch);
    return TSR_OK;
}

static tsr_status make_training(tsr_inputs *inputs, int ranks)
{
    const tsr_config *config = &inputs->config;
    TSR_TRY(mismatch(&inputs->dataset, config, config->per_device_train_batch_size));
    tsr_batch_options options = {.dataset = inputs->dataset,
                                 .name = "dataset",
                                 .shuffle = config->shuffle,
                                 .group_by_length = config->group_by_length,
                                 .balance = config->balance == TSR_CONFIG_BALANCE_TOKENS,
                                 .seed = (uint64_t)config->data_seed,
                                 .packing = config->packing,
                                 .max_length = config->max_length,
                                 .per_device = config->per_device_train_batch_size,
                                 .accumulation = config->gradient_accumulation_steps,
                                 .total_batch = config->total_batch_size,
                                 .ranks = ranks,
                                 .drop_last = config->dataloader_drop_last,
                                 .epochs = config->num_train_epochs,
                                 .max_steps = config->max_steps};
    set_pairs(&options, config);
    TSR_TRY(tsr_batch_create(&inputs->batch, &options));
    warn_of_warmup(config, tsr_batch_run_of(inputs->batch)->steps);
    if (config->packing)
        say_packing(inputs->batch, inputs->dataset, "dataset", config->max_length);
    inputs->contributions = (uint64_t)tsr_batch_run_of(inputs->batch)->step_micro;
    widen_bounds(inputs, inputs->batch);
    return make_reference(inputs, ranks);
}

static tsr_status make_evaluation(tsr_inputs *inputs, int ranks)
{
    const tsr_config *config = &inputs->config;
    const char *name = config->eval_dataset.count ? "eval_dataset" : "validation_split";
    TSR_TRY(tsr_inputs_load_evaluation(inputs));
    TSR_TRY(mismatch(&inputs->eval_dataset, config, config->per_device_eval_batch_size));
    tsr_batch_options options = {.dataset = inputs->eval_dataset,
                                 .name = name,
                                 .packing = config->eval_packing == TSR_CONFIG_CHOICE_YES,
                                 .max_length = config->max_length,
                                 .per_device = config->per_device_eval_batch_size,
                                 .ranks = ranks,
                                 .evaluation = true};
    set_pairs(&options, config);
    TSR_TRY(tsr_batch_create(&inputs->eval_batch, &options));
    if (options.packing)
        say_packing(inputs->eval_batch, inputs->eval_dataset, name, config->max_length);
    widen_bounds(inputs, inputs->eval_batch);
    return TSR_OK;
}

tsr_status tsr_inputs_read_data(tsr_inputs *inputs, bool train, int ranks)
{
    const tsr_config *config = &inputs->config;
    if (train || config->validation_split > 0)
        TSR_TRY(tsr_inputs_load_training(inputs));
    if (train)
        TSR_TRY(make_training(inputs, ranks));
    if (tsr_config_evaluates(config))
        TSR_TRY(make_evaluation(inputs, ranks));
    if (train)
        warn_of_same_data(inputs);
    keep_date(inputs);
    return tsr_inputs_check_positions(inputs);
}

tsr_status tsr_inputs_read_data_alone(tsr_inputs *inputs)
{
    const tsr_config *config = &inputs->config;
    TSR_TRY(check_directory(config));
    TSR_TRY(tsr_model_config_load(&inputs->model, config->model_name_or_path));
    if (config->dataset.count)
        TSR_TRY(tsr_inputs_load_training(inputs));
    if (config->eval_dataset.count)
        TSR_TRY(tsr_inputs_load_evaluation(inputs));
    keep_date(inputs);
    warn_of_same_data(inputs);
    if (!inputs->tokenizer && tsr_tokenizer_open(&inputs->tokenizer, config->model_name_or_path,
                                                 inputs->model.arch->tokenizer_by_class) < 0)
        inputs->tokenizer = NULL;
    return TSR_OK;
}

void tsr_inputs_put_chat(tsr_text *out, const tsr_inputs *inputs)
{
    const tsr_chat *chat = inputs->chat;
    const tsr_config *config = &inputs->config;
    if (!chat)
        return;
    const char *end = tsr_chat_turn_end(chat), *lacking = tsr_chat_lacking_tokens(chat);
    const char *eos = config->eos_token ? config->eos_token
                                        : tsr_tokenizer_special(inputs->tokenizer, "eos_token");
    if (tsr_inputs_dated(inputs))
        tsr_text_printf(out, "; chats of %s (chat_template_date)", config->chat_template_date);
    if (*lacking)
        tsr_text_printf(out, "; the chat template writes what is no token: %s", lacking);
    if (end)
        tsr_text_printf(out, "; %s ends a turn with %s, eos_token is %s", config->chat_template,
                        end, eos ? eos : "not known");
}

static void assume_bounds(tsr_inputs *inputs)
{
    const tsr_config *config = &inputs->config;
    int64_t length = config->max_length ? config->max_length : 2048;
    int64_t documents =
        config->per_device_train_batch_size * (config->objective.kind == TSR_OBJECTIVE_SFT ? 1 : 2);
    int64_t tokens = documents * length;
    bool scores = config->objective.kind == TSR_OBJECTIVE_REWARD;
    inputs->bounds = (tsr_batch_bounds){.tokens = tokens,
                                        .documents = documents,
                                        .label_rows = scores ? documents : tokens,
                                        .longest = length};
    inputs->contributions = 1024;
}

void tsr_inputs_assume_data(tsr_inputs *inputs)
{
    if (inputs->config.max_steps > 0)
        warn_of_warmup(&inputs->config, inputs->config.max_steps);
    assume_bounds(inputs);
    if (tsr_config_is_set(&inputs->config, "max_length"))
        tsr_inputs_warn_of_positions(inputs);
}

void tsr_inputs_assume_row(tsr_inputs *inputs, int64_t length)
{
    inputs->config.per_device_train_batch_size = 1;
    inputs->config.max_length = length;
    assume_bounds(inputs);
}

int64_t tsr_inputs_step_micro(const tsr_inputs *inputs, int ranks)
{
    const tsr_config *config = &inputs->config;
    if (inputs->batch)
        return tsr_batch_run_of(inputs->batch)->step_micro;
    return config->total_batch_size
               ? config->total_batch_size / config->per_device_train_batch_size
               : config->gradient_accumulation_steps * tsr_inputs_groups(inputs, ranks);
}

/* What 0.1 did not know: nothing is added for its models, whose checkpoints resume. */
static uint64_t hash_more(uint64_t hash, const tsr_model_config *model)
{
    const tsr_rope_scaling *first = &model->rope[0], *second = &model->rope[1];
    double factors = 0;
    for (int i = 0; i < TSR_ROPE_MOST_PAIRS; i++)
        factors += (double)(first->short_factor[i] + 3 * first->long_factor[i]) * (i + 1);
    const double numbers[] = {model->attention_scale,
                              model->embedding_scale,
                              model->residual_scale,
                              model->logits_divisor,
                              model->attention_softcap,
                              model->logits_softcap,
                              first->beta_fast,
                              first->beta_slow,
                              first->attention_factor,
                              first->exact_ends,
                              first->query_beta,
                              (double)first->rotary_dim,
                              first->neighbours,
                              factors,
                              model->rope_count > 1 ? second->type : 0,
                              model->rope_count > 1 ? second->theta : 0,
                              model->rope_count > 1 ? second->factor : 0,
                              first->share,
                              (double)model->full_head_dim,
                              (double)model->full_kv_head_count,
                              (double)model->layer_input_width,
                              (double)model->shared_layer_count,
                              model->values_are_keys};
    bool any = false;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        any |= numbers[i] != 0;
    return any ? tsr_hash(hash, numbers, sizeof numbers) : hash;
}

uint64_t tsr_inputs_model_hash(const tsr_inputs *inputs)
{
    const tsr_model_config *model = &inputs->model;
    const tsr_rope_scaling *rope = &model->rope[0];
    const tsr_adapter_spec *spec = &inputs->adapter.spec;
    const uint64_t sizes[] = {inputs->layout.parameter_count,
                              inputs->layout.trainable_count,
                              model->head_count,
                              model->kv_head_count,
                              model->sliding_window,
                              (uint64_t)rope->type,
                              (uint64_t)rope->original_max_positions};
    const double numbers[] = {
        model->rms_norm_eps,         rope->theta, rope->factor, rope->low_frequency_factor,
        rope->high_frequency_factor, spec->alpha, spec->dropout};
    uint64_t hash = tsr_hash(TSR_HASH_START, sizes, sizeof sizes);
    hash = tsr_hash(hash, numbers, sizeof numbers);
    hash = hash_more(hash, model);
    for (uint64_t i = 0; i < tsr_checkpoint_count(inputs->checkpoint); i++) {
        const tsr_tensor *tensor = tsr_checkpoint_at(inputs->checkpoint, i);
        hash = tsr_hash(hash, tensor->name, strlen(tensor->name));
        hash = tsr_hash(hash, tensor->shape, sizeof tensor->shape[0] * (uint64_t)tensor->ndim);
    }
    return hash;
}

void tsr_inputs_close(tsr_inputs *inputs)
{
    if (inputs->layout.mixed_count) { /* the rest is borrowed */
        tsr_layout_free(&inputs->layout);
        *inputs = (tsr_inputs){0};
        return;
    }
    tsr_batch_destroy(inputs->batch);
    tsr_batch_destroy(inputs->eval_batch);
    tsr_batch_destroy(inputs->reference_batch);
    tsr_dataset_destroy(inputs->dataset);
    tsr_dataset_destroy(inputs->eval_dataset);
    tsr_paths_free(&inputs->files);
    tsr_paths_free(&inputs->eval_files);
    for (int i = 0; i < inputs->chat_count; i++)
        tsr_chat_destroy(inputs->chats[i].chat);
    free(inputs->chats);
    tsr_tokenizer_destroy(inputs->tokenizer);
    tsr_layout_free(&inputs->layout);
    tsr_safetensors_close(inputs->router_bias);
    tsr_train_adapter_close(&inputs->adapter);
    tsr_train_adapter_close(&inputs->reference);
    tsr_layout_modules_free(inputs->modules, inputs->module_count);
    tsr_checkpoint_close(inputs->checkpoint);
    tsr_config_free(&inputs->config);
    *inputs = (tsr_inputs){0};
}
