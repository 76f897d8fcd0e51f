/*
 * peer_axolotl.c: axolotl's keys (its src/axolotl/utils/schemas, 2026). Data sets: peer_axolotl_data.c; preferences:
 * peer_axolotl_rl.c.
 */
#include "config/peer_axolotl.h"
#include "config/config_number.h"

#include <string.h>

static const tsr_key_translation dtype_map[] = {
    {"auto", "auto"}, {"full", "auto"}, {"true", "auto"}, {"false", "float32"}, {0}};
static const tsr_key_translation half_map[] = {{"true", "auto"}, {"false", NULL}, {0}};
static const tsr_key_translation length_map[] = {
    {"drop", "drop"}, {"truncate", "right"}, {"raise", "error"}, {0}};
static const tsr_key_translation resume_map[] = {{"true", "true"}, {"false", NULL}, {0}};
static const tsr_key_translation curriculum_map[] = {{"true", "false"}, {"false", "true"}, {0}};
static const tsr_key_translation tensorboard_map[] = {
    {"true", "tensorboard"}, {"false", NULL}, {0}};
static const tsr_key_translation inputs_map[] = {{"true", "true"}, {"false", NULL}, {0}};

static const char true_or_false[] = "expected true or false";

static const tsr_key_alias renamed[] = {
    {"base_model", "model_name_or_path", NULL, 0, NULL},
    {"sequence_len", "max_length", NULL, 0, NULL},
    {"excess_length_strategy", "truncation", length_map, 0, "expected drop, truncate or raise"},
    {"micro_batch_size", "per_device_train_batch_size", NULL, 0, NULL},
    {"eval_batch_size", "per_device_eval_batch_size", NULL, 0, NULL},
    {"num_epochs", "num_train_epochs", NULL, 0, NULL},
    {"eval_sample_packing", "eval_packing", NULL, 0, NULL},
    {"lr_scheduler", "lr_scheduler_type", NULL, 0, NULL},
    {"bf16", "dtype", dtype_map, 0, "expected auto, full, true or false"},
    {"bfloat16", "dtype", half_map, 0, true_or_false},
    {"lora_modules_to_save", "modules_to_save", NULL, 0, NULL},
    {"lora_rank_pattern", "rank_pattern", NULL, 0, NULL},
    {"lora_alpha_pattern", "alpha_pattern", NULL, 0, NULL},
    {"peft_use_dora", "use_dora", NULL, 0, NULL},
    {"peft_use_rslora", "use_rslora", NULL, 0, NULL},
    {"peft_layers_to_transform", "layers_to_transform", NULL, 0, NULL},
    {"peft_init_lora_weights", "init_lora_weights", NULL, 0, NULL},
    {"peft_trainable_token_indices", "trainable_token_indices", NULL, 0, NULL},
    {"noisy_embedding_alpha", "neftune_noise_alpha", NULL, 0, NULL},
    {"default_system_message", "default_system", NULL, 0, NULL},
    {"train_on_inputs", "train_on_inputs", inputs_map, 0, true_or_false},
    {"auto_resume_from_checkpoints", "resume_from_checkpoint", resume_map, 0, true_or_false},
    {"curriculum_sampling", "shuffle", curriculum_map, 0, true_or_false},
    {"use_tensorboard", "report_to", tensorboard_map, 0, true_or_false},
    {"loraplus_lr_ratio", "loraplus_lr_ratio", NULL, 0, NULL},
    {"loraplus_lr_embedding", "loraplus_lr_embedding", NULL, 0, NULL},
    {"early_stopping_patience", "early_stopping_patience", NULL, 0, NULL},
    {"sequence_parallel_degree", "context_parallel_size", NULL, 0, NULL}, /* its older name */
    {0},
};

/* ---- keys whose value has another shape ---- */

static void convert_adapter(tsr_peers_work *work, const tsr_config_entry *entry)
{
    if (!tsr_peers_is_one_of(&entry->value, "lora qlora"))
        tsr_peers_refuse(
            work, entry, &entry->value,
            "only adapters are trained: write adapter: qlora (with load_in_4bit: true) "
            "or lora");
}

/* Both: the union, which is all linear modules. */
static void convert_targets(tsr_peers_work *work, const tsr_config_entry *entry)
{
    const tsr_config_entry *linear = tsr_peers_find(work, "lora_target_linear");
    bool all = linear && tsr_peers_is_true(&linear->value);
    if (entry == linear && all)
        tsr_peers_give_text(work, entry, "lora_target_modules", "all-linear");
    else if (entry != linear && !all)
        tsr_peers_give(work, entry, "lora_target_modules", entry->value);
}

static bool has_eval_data(const tsr_peers_work *work)
{
    const tsr_config_entry *share = tsr_peers_find(work, "val_set_size");
    return tsr_peers_find(work, "test_datasets") || tsr_peers_find(work, "eval_dataset") ||
           tsr_peers_find(work, "validation_split") ||
           (share && !tsr_peers_is_one_of(&share->value, "0"));
}

static double epochs_of(const tsr_peers_work *work)
{
    const tsr_config_entry *entry = tsr_peers_find(work, "num_epochs");
    double epochs;
    return entry && entry->value.kind == TSR_YAML_SCALAR &&
                   tsr_number_parse(&epochs, entry->value.text) && epochs > 0
               ? epochs
               : 1;
}

static void convert_saves_per_epoch(tsr_peers_work *work, const tsr_config_entry *entry)
{
    tsr_peers_give_times(work, entry, "save_steps", "save_strategy", epochs_of(work));
}

/* evals_per_epoch, eval_steps, eval_strategy: of what there is to evaluate. */
static void convert_evals(tsr_peers_work *work, const tsr_config_entry *entry)
{
    if (!has_eval_data(work))
        tsr_peers_idle(work, entry, "no val_set_size and no test_datasets");
    else if (strcmp(entry->name, "evals_per_epoch") != 0)
        tsr_peers_give(work, entry, entry->name, entry->value);
    else
        tsr_peers_give_times(work, entry, "eval_steps", "eval_strategy", epochs_of(work));
}

static void convert_special_tokens(tsr_peers_work *work, const tsr_config_entry *entry)
{
    const tsr_yaml_value *map = &entry->value;
    if (map->kind != TSR_YAML_MAP) {
        tsr_peers_refuse(work, entry, map, "expected a map, such as {pad_token: <pad>}");
        return;
    }
    tsr_yaml_value left = tsr_peers_room(work, TSR_YAML_MAP, map->count);
    for (int i = 0; i < map->count; i++) {
        const char *name = map->keys[i].text;
        if (tsr_yaml_is_null(&map->items[i]))
            continue;
        if (!strcmp(name, "eos_token"))
            tsr_peers_give(work, entry, name, map->items[i]);
        else if (strcmp(name, "pad_token") != 0) /* padding changes nothing */
            tsr_peers_put(work, &left, name, map->items[i]);
    }
    if (left.count)
        tsr_peers_give(work, entry, "special_tokens", left);
}

static void convert_checkpointing(tsr_peers_work *work, const tsr_config_entry *entry)
{
    bool offload = tsr_peers_is_one_of(&entry->value, "offload offload_disk");
    if (offload)
        tsr_peers_give_text(work, entry, "activation_offloading", "true");
    tsr_peers_give(work, entry, "gradient_checkpointing",
                   offload ? tsr_peers_text(work, "true") : entry->value);
}

static void convert_offloading(tsr_peers_work *work, const tsr_config_entry *entry)
{
    if (tsr_peers_is_one_of(&entry->value, "legacy disk hidden_states"))
        tsr_peers_give_text(work, entry, entry->name, "true");
    else
        tsr_peers_give(work, entry, entry->name, entry->value);
}

static void convert_bnb(tsr_peers_work *work, const tsr_config_entry *entry)
{
    const tsr_yaml_value *map = &entry->value;
    for (int i = 0; map->kind == TSR_YAML_MAP && i < map->count; i++) {
        const char *name = map->keys[i].text;
        if (!strcmp(name, "bnb_4bit_use_double_quant"))
            tsr_peers_give(work, entry, "use_bnb_nested_quant", map->items[i]);
        else if (!strcmp(name, "bnb_4bit_quant_type"))
            tsr_peers_give(work, entry, name, map->items[i]);
        else if (strncmp(name, "bnb_4bit_", 9) != 0) /* dtypes: bf16 decides */
            tsr_peers_refuse(work, entry, &map->keys[i],
                             "expected bnb_4bit_use_double_quant or bnb_4bit_quant_type");
    }
    if (map->kind != TSR_YAML_MAP)
        tsr_peers_refuse(work, entry, map, "expected a map");
}

/* The auxiliary loss of experts is all that these may change. */
static void convert_model_config(tsr_peers_work *work, const tsr_config_entry *entry)
{
    const tsr_yaml_value *map = &entry->value,
                         *asked = tsr_peers_member(map, "output_router_logits"),
                         *weight = tsr_peers_member(map, "router_aux_loss_coef");
    bool on = asked && tsr_peers_is_true(asked);
    for (int i = 0; map->kind == TSR_YAML_MAP && i < map->count; i++)
        if (strcmp(map->keys[i].text, "output_router_logits") != 0 &&
            strcmp(map->keys[i].text, "router_aux_loss_coef") != 0)
            tsr_peers_refuse(work, entry, &map->keys[i],
                             "the checkpoint's config.json decides; expected output_router_logits "
                             "or router_aux_loss_coef");
    if (map->kind != TSR_YAML_MAP)
        tsr_peers_refuse(work, entry, map, "expected a map");
    else if (on && !weight)
        tsr_peers_refuse(work, entry, asked,
                         "write router_aux_loss_coef beside it, as config.json has it");
    else if (on)
        tsr_peers_give(work, entry, "router_aux_loss_coef", *weight);
    else if (weight)
        tsr_peers_remark(work, "router_aux_loss_coef has no effect without output_router_logits");
}

static void convert_min_lr(tsr_peers_work *work, const tsr_config_entry *entry)
{
    const tsr_config_entry *type = tsr_peers_find(work, "lr_scheduler");
    if (type && !tsr_peers_is_one_of(&type->value, "cosine cosine_with_min_lr")) {
        tsr_peers_refuse(work, entry, &entry->value, "it belongs to lr_scheduler: cosine");
        return;
    }
    if (!type) /* cosine, which is the default there */
        tsr_peers_give_text(work, entry, "lr_scheduler_type", "cosine_with_min_lr");
    tsr_yaml_value kwargs = tsr_peers_room(work, TSR_YAML_MAP, 1);
    tsr_peers_put(work, &kwargs, "min_lr_rate", entry->value);
    tsr_peers_give(work, entry, "lr_scheduler_kwargs", kwargs);
}

static void convert_scheduler(tsr_peers_work *work, const tsr_config_entry *entry)
{
    bool floor =
        tsr_peers_find(work, "cosine_min_lr_ratio") && tsr_peers_is_one_of(&entry->value, "cosine");
    if (floor)
        tsr_peers_give_text(work, entry, "lr_scheduler_type", "cosine_with_min_lr");
    else
        tsr_peers_give(work, entry, "lr_scheduler_type", entry->value);
}

/* Plug-ins that compute the same in another way. */
static void convert_plugins(tsr_peers_work *work, const tsr_config_entry *entry)
{
    static const char *const same[] = {
        ".cut_cross_entropy.",   ".liger.",    ".swanlab.", ".kernels.",
        "CutCrossEntropyPlugin", "LigerPlugin"};
    const tsr_yaml_value *list = &entry->value;
    for (int i = 0; list->kind == TSR_YAML_LIST && i < list->count; i++) {
        bool known = false;
        for (size_t k = 0; k < sizeof same / sizeof *same; k++)
            known |= list->items[i].kind == TSR_YAML_SCALAR && strstr(list->items[i].text, same[k]);
        if (!known) {
            tsr_peers_refuse(work, entry, &list->items[i],
                             "plug-ins cannot be loaded; leave it out if the result is the same "
                             "without it");
            return;
        }
    }
    tsr_peers_idle(work, entry, NULL);
}

static void convert_mistral_common(tsr_peers_work *work, const tsr_config_entry *entry)
{
    tsr_peers_idle(work, entry, NULL);
    if (tsr_peers_is_true(&entry->value))
        tsr_peers_remark(work, "chats are rendered by the model's template, not by mistral-common");
}

static const tsr_peer_converted converted[] = {
    {"datasets", "dataset", tsr_axolotl_datasets, "a map each, see below"},
    {"test_datasets", "eval_dataset", tsr_axolotl_datasets, "as `datasets`"},
    {"pretraining_dataset", "dataset", tsr_axolotl_datasets, "as `datasets`, `format: text`"},
    {"chat_template", "chat_template", tsr_axolotl_template,
     "names of `data.md` stay; those of models (`qwen3`, `gemma4`, ...): the model's own"},
    {"chat_template_jinja", "chat_template", tsr_axolotl_template, "a file; text is refused"},
    {"val_set_size", "validation_split", tsr_peers_convert_share, "0: none"},
    {"evals_per_epoch", "eval_steps", convert_evals, "a share of all steps; once in all: epoch"},
    {"eval_steps", "eval_steps", convert_evals, "without effect where nothing is held out"},
    {"eval_strategy", "eval_strategy", convert_evals, "the same"},
    {"saves_per_epoch", "save_steps", convert_saves_per_epoch, "as `evals_per_epoch`"},
    {"adapter", "load_in_4bit", convert_adapter,
     "lora, qlora; `load_in_4bit` decides about the base"},
    {"lora_model_dir", "init_adapter", tsr_axolotl_convert_adapter_dir,
     "refused with `rl: dpo`, `ipo` and `kto`, which do not read its values"},
    {"sample_packing", "packing", tsr_axolotl_convert_packing, "true is refused with `rl`"},
    {"rl", "objective", tsr_axolotl_convert_rl,
     "dpo, orpo, kto; ipo: dpo with `loss_type: ipo`; simpo: cpo with `loss_type: simpo`; others "
     "are refused"},
    {"rl_beta", "beta", tsr_axolotl_convert_beta, ""},
    {"dpo_beta", "beta", tsr_axolotl_convert_beta, "without `rl_beta`"},
    {"orpo_alpha", "beta", tsr_axolotl_convert_beta, "without `rl_beta`"},
    {"trl", "beta", tsr_axolotl_convert_beta, "its beta, before `rl_beta`; else without effect"},
    {"dpo_loss_type", "loss_type", tsr_axolotl_convert_rl_key, "with `rl: dpo` alone"},
    {"dpo_loss_weights", "loss_weights", tsr_axolotl_convert_rl_key, "the same"},
    {"dpo_label_smoothing", "label_smoothing", tsr_axolotl_convert_rl_key, "of `rl: dpo`"},
    {"dpo_use_weighting", "use_weighting", tsr_axolotl_convert_rl_key, "of `rl: dpo` and `ipo`"},
    {"simpo_gamma", "simpo_gamma", tsr_axolotl_convert_rl_key, "of `rl: simpo`"},
    {"cpo_alpha", "cpo_alpha", tsr_axolotl_convert_rl_key, "of `rl: simpo`"},
    {"kto_desirable_weight", "desirable_weight", tsr_axolotl_convert_rl_key, "of `rl: kto`; 0: 1"},
    {"kto_undesirable_weight", "undesirable_weight", tsr_axolotl_convert_rl_key, "the same"},
    {"lora_target_linear", "lora_target_modules", convert_targets, "true: all-linear"},
    {"lora_target_modules", "lora_target_modules", convert_targets,
     "with `lora_target_linear: true`: all-linear"},
    {"optimizer", "optim", tsr_peers_convert_optimizer,
     "bitsandbytes' 8-bit AdamW: the same; any other AdamW: adamw_torch, 32-bit state"},
    {"lr_scheduler", "lr_scheduler_type", convert_scheduler,
     "with `cosine_min_lr_ratio`: cosine_with_min_lr"},
    {"cosine_min_lr_ratio", "lr_scheduler_kwargs", convert_min_lr, "min_lr_rate"},
    {"gradient_checkpointing", "gradient_checkpointing", convert_checkpointing,
     "offload: true, with activation_offloading"},
    {"activation_offloading", "activation_offloading", convert_offloading,
     "legacy, disk, hidden_states: true"},
    {"bnb_config_kwargs", "use_bnb_nested_quant", convert_bnb, "bnb_4bit_use_double_quant"},
    {"model_config", "router_aux_loss_coef", convert_model_config,
     "router_aux_loss_coef with `output_router_logits: true`; others are refused"},
    {"overrides_of_model_config", "router_aux_loss_coef", convert_model_config,
     "as `model_config`"},
    {"special_tokens", "special_tokens", convert_special_tokens,
     "eos_token: that key; pad_token: without effect"},
    {"dataset_prepared_path", "dataset_cache", tsr_peers_convert_cache, ""},
    {"plugins", NULL, convert_plugins, "cut_cross_entropy, liger, swanlab: without effect"},
    {"ray_num_workers", NULL, tsr_peers_convert_processes, "start as many ranks"},
    {"tokenizer_use_mistral_common", NULL, convert_mistral_common,
     "without effect: the model's template"},
    {0},
};

/* ---- keys that are not here ---- */

static const char no_tokens[] = "tokens cannot be added, since the embedding keeps its rows";
static const char other_loss[] = "the loss is the mean over label tokens";
static const char sharded[] = "sharding is built in";
static const char each_step[] = "metrics.jsonl has every step";
static const char of_rl[] = "it belongs to rl";

static const tsr_key_peer others[] = {
    {"gptq", "false null",
     "GPTQ weights are not read; name the unquantized model, with load_in_4bit: true"},
    {"gptq_*", NULL, NULL},
    {"peft", "null {}",
     "LoftQ is not in this version; peft_init_lora_weights: pissa is the nearest"},
    {"relora", "false null", "ReLoRA is not in this version; one LoRA is trained"},
    {"relora_*", NULL, NULL},
    {"jagged_restart_*", "null false 0", "the schedule has no restarts; leave them out"},
    {"reward_model", "false null",
     "reward models are not translated in this version; write a job.yaml with objective: reward"},
    {"process_reward_model", "false null", "only answers are trained on"},
    {"qat", "null {}", "the base is NF4 or as the checkpoint has it"},
    {"quantization", "null {}", "`tessera quantize` writes a quantized model"},
    {"fp8", "false null", "base_compute: fp8 is the nearest, on compute capability 8.9 or newer"},
    {"float16", "false null", "float16 needs loss scaling; use bf16: auto"},
    {"float32", "false null", "write bf16: false instead"},
    {"overrides_of_model_kwargs", "null {}", "the checkpoint's config.json decides"},
    {"rope_scaling", "null {}", "the checkpoint's config.json decides"},
    {"tokens", "null []", no_tokens},
    {"added_tokens_overrides", "null {}", no_tokens},
    {"dataset_exact_deduplication", "false null", "remove rows that appear twice beforehand"},
    {"sample_packing_sequentially", "false null",
     "rows are packed best fit first; leave it out, or sample_packing: false"},
    {"pretraining_sample_concatenation", "false null",
     "a document stays whole; sample_packing: true"},
    {"min_sample_len", "null", "remove short rows beforehand"},
    {"eval_sequence_len", "null", "sequence_len counts for both"},
    {"batch_size", "null", "write gradient_accumulation_steps, batch_size / micro_batch_size"},
    {"chat_template_kwargs", "null {}",
     "name a template (chat_template_jinja: a file) with the values"},
    {"lr_quadratic_warmup", "false null", "warm-up is linear"},
    {"lr_groups", "null []",
     "all adapters have one learning rate; loraplus_lr_ratio is the nearest"},
    {"lr_div_factor", "null", "it belongs to a schedule that is not here"},
    {"cosine_constant_lr_ratio", "null", "cosine_min_lr_ratio is the nearest"},
    {"embedding_lr", "null", "all that is trained has one learning rate"},
    {"embedding_lr_scale", "null", "all that is trained has one learning rate"},
    {"use_eaft", "false null", other_loss},
    {"chunked_cross_entropy*", NULL, NULL}, /* as the head is computed here */
    {"use_pose", "false null", "positions are those of the document"},
    {"scaling_softmax", "false null", "attention is the model's own"},
    {"streaming", "false null", "the data set is read whole"},
    {"reinit_weights", "false null", "only adapters are trained"},
    {"lora_fan_in_fan_out", "false null", "the weights of linear modules have one layout"},
    {"peft_layers_pattern", "null []", "peft_layers_to_transform names the layers"},
    {"peft_layer_replication", "null []", "the model keeps its layers"},
    {"peft_ensure_weight_tying", "false null", "adapters of tied weights are not tied"},
    {"lisa_*", "null 0", "all adapters are trained in each step"},
    {"trainer_cls", "null", "there is one trainer"},
    {"fix_untrained_tokens", "null 0 []", no_tokens},
    {"dataset_shard_num", "null", "split: train[:10%] of a data set takes a part"},
    {"model_quantization_config", "null", "the base is NF4 or as the checkpoint has it"},
    {"use_onebitllms", "false null", "the base is NF4 or as the checkpoint has it"},
    {"use_scattermoe", NULL, NULL}, /* experts have kernels of their own */
    {"use_sonicmoe", NULL, NULL},
    {"expert_parallel_*", "null 1", sharded},
    {"diffusion", "null {}", "the loss is that of the next token"},
    {"llmcompressor", "null {}", "the base is NF4 or as the checkpoint has it"},
    {"tensor_parallel_size", "null 1", sharded},
    {"push_dataset_to_hub", NULL, "nothing is sent anywhere"},
    {"deepspeed", NULL, sharded},
    {"fsdp*", NULL, sharded},
    {"dp_*", NULL, sharded},
    {"use_ray", NULL, "ranks are started by launch/run"},
    {"lora_on_cpu", NULL, NULL},
    {"merge_lora", NULL, "`tessera merge` writes the merged model"},
    {"use_wandb", NULL, each_step},
    {"wandb_*", NULL, each_step},
    {"use_mlflow", NULL, each_step},
    {"mlflow_*", NULL, each_step},
    {"hf_mlflow_log_artifacts", NULL, each_step},
    {"use_comet", NULL, each_step},
    {"comet_*", NULL, each_step},
    {"use_swanlab", NULL, each_step},
    {"swanlab_*", NULL, each_step},
    {"use_trackio", NULL, each_step},
    {"use_otel_metrics", NULL, each_step},
    {"otel_*", NULL, each_step},
    {"gradio_*", NULL, NULL},
    {"loss_watchdog_*", NULL, "max_skipped_steps ends a run whose gradients are not finite"},
    {"unfrozen_parameters", NULL, NULL}, /* of a base that adapters freeze */
    {"freeze_mm_modules", NULL, NULL},   /* towers are not trained */
    {"eot_tokens", NULL, NULL},          /* the template's end of turn is trained */
    {"pad_to_sequence_len", NULL, NULL},
    {"batch_flattening", NULL, NULL},
    {"multipack_real_batches", NULL, NULL},
    {"sample_packing_*", NULL, NULL},
    {"flash_*", NULL, NULL},
    {"attn_*", NULL, NULL},
    {"sdp_attention", NULL, NULL},
    {"sdpa_varlen", NULL, NULL},
    {"sage_attention", NULL, NULL},
    {"flex_att*", NULL, NULL},
    {"eager_attention", NULL, NULL},
    {"xformers_attention", NULL, NULL},
    {"large_head_attention", NULL, NULL},
    {"gemma4_hybrid_attn_impl", NULL, NULL},
    {"fused_attn_kernel", NULL, NULL},
    {"lora_*_kernel", NULL, NULL},
    {"use_kernels", NULL, NULL},
    {"liger_*", NULL, NULL},
    {"cut_cross_entropy*", NULL, NULL},
    {"tiled_mlp*", NULL, NULL},
    {"layer_offloading", NULL, "offload decides"},
    {"selective_checkpointing", NULL, "gradient_checkpointing decides"},
    {"model_type", NULL, NULL},
    {"tokenizer_*", NULL, NULL},
    {"processor_type", NULL, NULL},
    {"base_model_config", NULL, NULL},
    {"base_model_ignore_patterns", NULL, NULL},
    {"is_*_derived_model", NULL, NULL},
    {"revision_of_model", NULL, "the model is a local directory"},
    {"strict", NULL, NULL},
    {"skip_prepare_dataset", NULL, NULL},
    {"shuffle_merged_datasets", NULL, NULL}, /* the order of an epoch is random either way */
    {"shuffle_before_merging_datasets", NULL, NULL},
    {"dataset_processes", NULL, NULL},
    {"dataset_keep_in_memory", NULL, NULL},
    {"resize_token_embeddings_to_32x", NULL, NULL}, /* no token is added */
    {"mean_resizing_embeddings", NULL, NULL},
    {"shrink_embeddings", NULL, NULL},
    {"embeddings_skip_upcast", NULL, NULL},
    {"fp32_norm*", NULL, NULL},
    {"low_cpu_mem_usage", NULL, NULL},
    {"max_memory", NULL, "memory_budget limits it"},
    {"gpu_memory_limit", NULL, "memory_budget limits it"},
    {"gc_*", NULL, NULL},
    {"ddp", NULL, NULL},
    {"device*", NULL, NULL},
    {"world_size", NULL, NULL},
    {"hf_use_auth_token", NULL, NULL},
    {"torchdistx_path", NULL, NULL},
    {"save_first_step", NULL, "save_steps=1 saves every step"},
    {"eval_table_size", NULL, "nothing is generated"},
    {"eval_max_new_tokens", NULL, NULL},
    {"eval_causal_lm_metrics", NULL, NULL},
    {"do_causal_lm_eval", NULL, "eval_loss is the metric"},
    {"do_bench_eval", NULL, "eval_loss is the metric"},
    {"bench_*", NULL, NULL},
    {"generate_samples", NULL, "nothing is generated"},
    {"generation_*", NULL, NULL},
    {"profiler_*", NULL, "trace writes a Chrome trace"},
    {"include_tkps", NULL, NULL},
    {"dynamic_checkpoint", NULL, "SIGUSR1 ends a run with a checkpoint"},
    {"qlora_sharded_model_loading", NULL, NULL},
    {"peft_autocast_adapter_dtype", NULL, NULL}, /* adapters are fp32 */
    {"deepcompile", NULL, NULL},
    {"fp8_*", NULL, NULL},
    {"pose_*", NULL, NULL},
    {"scaling_softmax_*", NULL, NULL},
    {"pretrain_multipack_*", NULL, NULL},
    {"streaming_multipack_*", NULL, NULL},
    {"dataset_shard_idx", NULL, NULL},
    {"num_dataset_shards_to_save", NULL, NULL},
    {"adam_beta3", NULL, NULL}, /* of other optimizers */
    {"adam_epsilon2", NULL, NULL},
    {"dion_*", NULL, NULL},
    {"qgalore_*", NULL, NULL},
    {"image_*", NULL, "rows are text"},
    {"role_boundaries", NULL, "rows are text"},
    {"heads_k_stride", NULL, NULL},
    {"ring_attn_func", NULL, NULL},
    {"eaft_*", NULL, NULL},
    {"experts_implementation", NULL, NULL},
    {"llama4_linearized_experts", NULL, NULL},
    {"experimental_skip_move_to_device", NULL, NULL},
    {"model_quantization_config_kwargs", NULL, NULL},
    {"num_labels", NULL, NULL},
    {"cls_model_config", NULL, NULL},
    {"vllm", NULL, of_rl},
    {"ebft", NULL, of_rl},
    {"center_rewards_coefficient", NULL, of_rl},
    {"quantize_moe_experts", NULL, NULL},
    {"dpo_use_liger_kernel", NULL, of_rl},
    {"dpo_padding_free", NULL, of_rl},
    {"dpo_use_logits_to_keep", NULL, of_rl},
    {"dpo_generate_during_eval", NULL, "nothing is generated"},
    {"rpo_alpha", "null",
     "write dpo_loss_type: [sigmoid, sft], and dpo_loss_weights: [1, "
     "0.1] with its value as the second"},
    {"dpo_norm_loss", "null false", "write dpo_loss_type: [sigmoid_norm]"},
    {"max_prompt_len", NULL, of_rl},
    {"precompute_ref_log_probs", NULL, of_rl},
    /* keys that axolotl does not have either, in files that it publishes */
    {"adam_eps", NULL, NULL},
    {"test_value", NULL, NULL},
    {0},
};

static const tsr_peer_default defaults[] = {
    {"load_in_4bit", "load_in_4bit", "false"},
    {"sequence_len", "max_length", "512"},
    {"excess_length_strategy", "truncation", "drop"},
    {"lr_scheduler", "lr_scheduler_type", "cosine"},
    {"warmup_steps warmup_ratio", "warmup_steps", "0.03"},
    {"lora_target_linear lora_target_modules", "lora_target_modules", "null"},
    {"output_dir", "output_dir", "./model-out"},
    {0},
};

const tsr_peer tsr_peer_axolotl = {
    .name = "axolotl",
    .needs = "base_model",
    .marks = "datasets pretraining_dataset micro_batch_size sequence_len adapter num_epochs "
             "sample_packing lora_target_linear val_set_size optimizer",
    .least = 2,
    .renamed = renamed,
    .converted = converted,
    .others = others,
    .defaults = defaults,
};
