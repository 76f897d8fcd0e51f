/*
 * peer_llamafactory.c: LLaMA-Factory's keys (its src/llamafactory/hparams, 2026). Data sets: peer_llamafactory_data.c;
 * preferences: peer_llamafactory_pairs.c.
 * Those of Transformers' TrainingArguments, which it has too, are in keys_peers.c.
 */
#include "config/peer_llamafactory.h"
#include "config/config_number.h"

#include <string.h>

static const tsr_key_translation bf16_map[] = {{"true", "auto"}, {"false", "float32"}, {0}};
static const tsr_key_translation pure_map[] = {{"true", "auto"}, {"false", NULL}, {0}};
static const tsr_key_translation recompute_map[] = {{"true", "none"}, {"false", "auto"}, {0}};
static const tsr_key_translation shuffle_map[] = {{"true", "false"}, {"false", "true"}, {0}};
static const tsr_key_translation prompt_map[] = {{"true", "true"}, {"false", NULL}, {0}};
static const tsr_key_translation mix_map[] = {
    {"concat", NULL}, {"interleave_under", "interleave"}, {0}};

static const char true_or_false[] = "expected true or false";

static const tsr_key_alias renamed[] = {
    {"cutoff_len", "max_length", NULL, 0, NULL},
    {"double_quantization", "use_bnb_nested_quant", NULL, 0, NULL},
    {"quantization_type", "bnb_4bit_quant_type", NULL, 0, NULL},
    {"disable_gradient_checkpointing", "gradient_checkpointing", recompute_map, 0, true_or_false},
    {"disable_shuffling", "shuffle", shuffle_map, 0, true_or_false},
    {"bf16", "dtype", bf16_map, 0, true_or_false},
    {"pure_bf16", "dtype", pure_map, 0, true_or_false},
    {"neftune_alpha", "neftune_noise_alpha", NULL, 0, NULL},
    {"moe_aux_loss_coef", "router_aux_loss_coef", NULL, 0, NULL},
    {"early_stopping_steps", "early_stopping_patience", NULL, 0, NULL},
    {"train_on_prompt", "train_on_inputs", prompt_map, 0, true_or_false},
    {"mix_strategy", "dataset_mixing", mix_map, 0,
     "expected concat or interleave_under (no data set is read twice)"},
    {"loraplus_lr_ratio", "loraplus_lr_ratio", NULL, 0, NULL},
    {"loraplus_lr_embedding", "loraplus_lr_embedding", NULL, 0, NULL},
    {"default_system", "default_system", NULL, 0, NULL},
    {0},
};

/* Texts are packed there unless that is turned off. */
static void convert_stage(tsr_peers_work *work, const tsr_config_entry *entry)
{
    if (tsr_peers_is_one_of(&entry->value, "pt") && !tsr_peers_find(work, "packing") &&
        !tsr_peers_find(work, "neat_packing")) {
        tsr_peers_give_text(work, entry, "packing", "true");
        tsr_peers_remark(work, "a text beyond cutoff_len is not cut into several rows");
    }
    if (tsr_llamafactory_has_pairs(work))
        tsr_llamafactory_objective(work, entry);
    else if (!tsr_peers_is_one_of(&entry->value, "sft pt"))
        tsr_peers_refuse(
            work, entry, &entry->value,
            "expected sft (answers), pt (texts), dpo or kto (preferences); of rm write a "
            "job.yaml with objective: reward; nothing is generated while training");
}

static void convert_type(tsr_peers_work *work, const tsr_config_entry *entry)
{
    if (!tsr_peers_is_one_of(&entry->value, "lora"))
        tsr_peers_refuse(work, entry, &entry->value,
                         "only LoRA and DoRA adapters are trained: write finetuning_type: lora");
}

static void convert_bits(tsr_peers_work *work, const tsr_config_entry *entry)
{
    if (tsr_peers_is_one_of(&entry->value, "4"))
        tsr_peers_give_text(work, entry, "load_in_4bit", "true");
    else if (tsr_peers_is_one_of(&entry->value, "8"))
        tsr_peers_give_text(work, entry, "load_in_8bit", "true");
    else
        tsr_peers_refuse(
            work, entry, &entry->value,
            "the base is NF4 (write 4), int8 (8) or as the checkpoint has it (leave it "
            "out)");
}

static void convert_target(tsr_peers_work *work, const tsr_config_entry *entry)
{
    if (tsr_peers_is_one_of(&entry->value, "all"))
        tsr_peers_give_text(work, entry, "lora_target_modules", "all-linear");
    else if (entry->value.kind == TSR_YAML_SCALAR && !strchr(entry->value.text, ',')) {
        tsr_yaml_value list =
            tsr_peers_room(work, TSR_YAML_LIST, 1); /* a text would be a pattern */
        tsr_peers_push(&list, entry->value);
        tsr_peers_give(work, entry, "lora_target_modules", list);
    } else
        tsr_peers_give(work, entry, "lora_target_modules", tsr_peers_split(work, &entry->value));
}

static void convert_additional(tsr_peers_work *work, const tsr_config_entry *entry)
{
    tsr_peers_give(work, entry, "modules_to_save", tsr_peers_split(work, &entry->value));
}

/* Twice the rank, unless it is given. */
static void convert_rank(tsr_peers_work *work, const tsr_config_entry *entry)
{
    double rank;
    tsr_text alpha = {0};
    tsr_peers_give(work, entry, "lora_r", entry->value);
    if (tsr_peers_find(work, "lora_alpha") || entry->value.kind != TSR_YAML_SCALAR ||
        !tsr_number_parse(&rank, entry->value.text))
        return;
    tsr_number_put(&alpha, 2 * rank, 0);
    tsr_peers_give_text(work, entry, "lora_alpha", tsr_text_string(&alpha));
    work->store->failed |= alpha.failed;
    tsr_text_free(&alpha);
}

static void convert_pissa(tsr_peers_work *work, const tsr_config_entry *entry)
{
    const tsr_config_entry *rounds = tsr_peers_find(work, "pissa_iter");
    tsr_text value = {0};
    if (!tsr_peers_is_true(&entry->value))
        return;
    tsr_text_puts(&value, "pissa");
    if (!rounds || !tsr_peers_is_one_of(&rounds->value, "-1"))
        tsr_text_printf(&value, "_niter_%s",
                        rounds && rounds->value.kind == TSR_YAML_SCALAR ? rounds->value.text
                                                                        : "16");
    tsr_peers_give_text(work, entry, "init_lora_weights", tsr_text_string(&value));
    work->store->failed |= value.failed;
    tsr_text_free(&value);
}

/* packing and neat_packing: here documents in a row never see each other. */
static void convert_packing(tsr_peers_work *work, const tsr_config_entry *entry)
{
    if (tsr_llamafactory_has_pairs(work)) {
        tsr_peers_idle(work, entry, "stages dpo and kto pack no rows");
        return;
    }
    const tsr_config_entry *neat = tsr_peers_find(work, "neat_packing");
    bool both = neat && tsr_peers_is_true(&neat->value);
    if (both != (entry == neat))
        return;
    tsr_peers_give(work, entry, "packing", entry->value);
    if (!both && tsr_peers_is_true(&entry->value))
        tsr_peers_remark(work, "packed documents do not see each other, as with neat_packing");
}

/* Its files have 180000000 seconds, for a first rank that prepares the data alone: here none waits for that. */
static void convert_timeout(tsr_peers_work *work, const tsr_config_entry *entry)
{
    double seconds;
    if (entry->value.kind == TSR_YAML_SCALAR && tsr_number_parse(&seconds, entry->value.text) &&
        seconds > 1e6)
        tsr_peers_idle(work, entry, "ranks wait for each other for 300 s");
    else
        tsr_peers_give(work, entry, entry->name, entry->value);
}

/* A key that another one's conversion reads. */
static void convert_with_other(tsr_peers_work *work, const tsr_config_entry *entry)
{
    (void)work;
    (void)entry;
}

static const tsr_peer_converted converted[] = {
    {"stage", "objective", convert_stage,
     "sft; pt: rows are text, packed; dpo; kto; others are refused"},
    {"pref_loss", "loss_type", tsr_llamafactory_with_stage,
     "sigmoid, hinge, ipo; simpo: `objective: cpo` with `cpo_alpha: 0`; others are refused"},
    {"pref_beta", "beta", tsr_llamafactory_key, "of stages dpo and kto"},
    {"simpo_gamma", "simpo_gamma", tsr_llamafactory_key, "of `pref_loss: simpo`"},
    {"kto_chosen_weight", "desirable_weight", tsr_llamafactory_key, "of stage kto"},
    {"kto_rejected_weight", "undesirable_weight", tsr_llamafactory_key, "of stage kto"},
    {"dpo_label_smoothing", "loss_weights", tsr_llamafactory_with_stage,
     "of `pref_loss: sigmoid`: `loss_type: [sigmoid, robust]`, weights 2 - 2e and 2e - 1"},
    {"pref_ftx", "loss_weights", tsr_llamafactory_with_stage,
     "of stage dpo: the weight of the loss `sft` (simpo: `cpo_alpha`), where a micro-batch is of "
     "one pair"},
    {"pref_bco_weight", NULL, tsr_llamafactory_refused, "of stage dpo: 0; others are refused"},
    {"ld_alpha", NULL, tsr_llamafactory_refused, "of stage dpo: 1; others are refused"},
    {"ref_model", "ref_adapter", tsr_llamafactory_reference,
     "`model_name_or_path`: base, or `ref_model_adapters`; others are refused"},
    {"ref_model_adapters", "ref_adapter", tsr_llamafactory_with_stage, "of `ref_model`"},
    {"ref_model_quantization_bit", NULL, tsr_llamafactory_with_stage,
     "of `ref_model`: as `quantization_bit`"},
    {"adapter_name_or_path", "init_adapter", tsr_llamafactory_adapter,
     "stages dpo and kto: with `ref_adapter: base`"},
    {"finetuning_type", NULL, convert_type, "lora"},
    {"quantization_bit", "load_in_4bit", convert_bits,
     "4: true; 8: `load_in_8bit`; without it: false"},
    {"lora_rank", "lora_r", convert_rank, "and lora_alpha, twice that, unless given"},
    {"lora_target", "lora_target_modules", convert_target, "all: all-linear; a,b: a list"},
    {"additional_target", "modules_to_save", convert_additional, "a,b: a list"},
    {"pissa_init", "init_lora_weights", convert_pissa,
     "pissa_niter_N, of `pissa_iter` [16]; -1: pissa"},
    {"dataset", "dataset", tsr_llamafactory_data,
     "names of dataset_info.json, or files: see below"},
    {"eval_dataset", "eval_dataset", tsr_llamafactory_data, "as `dataset`"},
    {"dataset_dir", "dataset", convert_with_other, "where dataset_info.json is [data]"},
    {"max_samples", "max_train_samples", convert_with_other, "of several sets: `samples` of each"},
    {"interleave_probs", "dataset", convert_with_other, "`weight` of each"},
    {"pissa_iter", "init_lora_weights", convert_with_other, "of `pissa_init`"},
    {"template", "chat_template", tsr_llamafactory_template, "see below"},
    {"packing", "packing", convert_packing, "documents do not see each other"},
    {"neat_packing", "packing", convert_packing, ""},
    {"val_size", "validation_split", tsr_peers_convert_share, "0: none"},
    {"tokenized_path", "dataset_cache", tsr_peers_convert_cache, ""},
    {"ddp_timeout", "ddp_timeout", convert_timeout, "above 1000000: without effect"},
    {"ray_num_workers", NULL, tsr_peers_convert_processes, "start as many ranks"},
    {0},
};

static const char no_tokens[] = "tokens cannot be added, since the embedding keeps its rows";
static const char other_loss[] = "the loss is the mean over label tokens";
static const char adamw[] = "the optimizer is AdamW; leave it out";
static const char nothing_generated[] =
    "nothing is generated; `tessera eval` gives loss and perplexity of eval_dataset";
static const char each_step[] = "metrics.jsonl has every step";

static const tsr_key_peer others[] = {
    {"pissa_convert", NULL, NULL},
    {"quantization_method", "bnb null", "the base is stored as bitsandbytes' NF4"},
    {"quantization_device_map", NULL, NULL},
    {"mask_history", "false null", "give the other turns `\"weight\": 0`"},
    {"do_predict", "false null", nothing_generated},
    {"predict_with_generate", "false null", nothing_generated},
    {"streaming", "false null", "the data set is read whole"},
    {"tool_format", "null", "the chat template formats tools"},
    {"enable_thinking", "true null", "the chat template decides"},
    {"preserve_thinking", "false null", "the chat template decides"},
    {"resize_vocab", "false null", no_tokens},
    {"add_tokens", "null", no_tokens},
    {"add_special_tokens", "null", no_tokens},
    {"new_special_tokens_config", "null", no_tokens},
    {"split_special_tokens", "false null", "special tokens stay whole"},
    {"rope_scaling", "null", "the checkpoint's config.json decides"},
    {"shift_attn", "false null", "attention is the model's own"},
    {"mixture_of_depths", "null", "layers are the model's own"},
    {"train_from_scratch", "false null", "only adapters are trained"},
    {"use_dft_loss", "false null", other_loss},
    {"use_asft_loss", "false null", other_loss},
    {"use_eaft_loss", "false null", other_loss},
    {"use_galore", "false null", adamw},
    {"use_apollo", "false null", adamw},
    {"use_badam", "false null", adamw},
    {"use_adam_mini", "false null", adamw},
    {"use_muon", "false null", adamw},
    {"use_llama_pro", "false null", "only adapters are trained"},
    {"use_mca", "false null", "sharding is built in"},
    {"use_megatron_bridge", "false null", "sharding is built in"},
    {"use_hyper_parallel", "false null", "sharding is built in"},
    {"use_kt", "false null", "what does not fit is offloaded as memory_budget says"},
    {"fp8", "false null", "base_compute: fp8 is the nearest, on compute capability 8.9 or newer"},
    {"freeze_language_model", "false null", "it is what is trained"},
    {"galore_*", NULL, NULL},
    {"apollo_*", NULL, NULL},
    {"badam_*", NULL, NULL},
    {"oft_*", NULL, NULL},
    {"freeze_*", NULL, NULL}, /* towers are not trained */
    {"asft_alpha", NULL, NULL},
    {"init_special_tokens", NULL, NULL},
    {"module_dropout", NULL, NULL},
    {"crop_to_patches", NULL, "rows are text"},
    {"use_audio_in_video", NULL, "rows are text"},
    {"eaft_alpha", NULL, NULL},
    {"fp8_*", NULL, NULL},
    {"ppo_*", NULL, "it belongs to stage: ppo"},
    {"reward_model*", NULL, "it belongs to stage: ppo"},
    {"image_*", NULL, "rows are text"},
    {"video_*", NULL, "rows are text"},
    {"audio_*", NULL, "rows are text"},
    {"media_dir", NULL, "rows are text"},
    {"export_*", NULL, "`tessera merge` writes the merged model"},
    {"infer_*", NULL, NULL},
    {"vllm_*", NULL, NULL},
    {"sglang_*", NULL, NULL},
    {"plot_loss", NULL, "`tessera inspect RUN --plot loss.svg` draws it"},
    {"use_swanlab", NULL, each_step},
    {"swanlab_*", NULL, each_step},
    {"deepspeed", NULL, "sharding is built in"},
    {"fsdp*", NULL, "sharding is built in"},
    {"preprocessing_*", NULL, NULL},
    {"overwrite_cache", NULL, NULL},
    {"buffer_size", NULL, NULL},
    {"data_shared_file_system", NULL, NULL},
    {"ignore_pad_token_for_loss", NULL, NULL},
    {"eval_num_beams", NULL, NULL},
    {"eval_on_each_dataset", NULL, "one loss over all of eval_dataset"},
    {"compute_accuracy", NULL, "eval_loss is the metric"},
    {"flash_attn", NULL, NULL},
    {"enable_liger_kernel", NULL, NULL},
    {"use_unsloth*", NULL, NULL},
    {"use_reentrant_gc", NULL, NULL},
    {"use_v1_kernels", NULL, NULL},
    {"use_kv_cache", NULL, NULL},
    {"use_fast_tokenizer", NULL, NULL},
    {"upcast_*", NULL, NULL}, /* norms and the head compute in fp32 */
    {"low_cpu_mem_usage", NULL, NULL},
    {"offload_folder", NULL, NULL},
    {"cache_dir", NULL, NULL},
    {"adapter_folder", NULL, NULL},
    {"create_new_adapter", "false null",
     "`tessera merge` the first adapter, and train on that model"},
    {"print_param_status", NULL, NULL},
    {"*_hub_token", NULL, NULL},
    {"include_effective_tokens_per_second", NULL, NULL},
    {"ray_*", NULL, "ranks are started by launch/run"},
    {"master_*", NULL, "ranks are started by launch/run"},
    {"enable_torch_profiler", NULL, "trace writes a Chrome trace"},
    {"profiler_*", NULL, NULL},
    {"profile_modules", NULL, NULL},
    {0},
};

static const tsr_peer_default defaults[] = {
    {"quantization_bit load_in_4bit", "load_in_4bit", "false"},
    {"lora_rank lora_r", "lora_r", "8"},
    {"lora_alpha lora_rank", "lora_alpha", "16"},
    {"learning_rate", "learning_rate", "5e-5"},
    {"num_train_epochs max_steps", "num_train_epochs", "3"},
    {"per_device_train_batch_size", "per_device_train_batch_size", "8"},
    {"truncation", "truncation", "right"},
    {"output_dir", "output_dir", "trainer_output"},
    {0},
};

const tsr_peer tsr_peer_llamafactory = {
    .name = "LLaMA-Factory",
    .marks = "stage finetuning_type cutoff_len lora_target lora_rank template dataset_dir "
             "quantization_bit preprocessing_num_workers",
    .least = 2,
    .renamed = renamed,
    .converted = converted,
    .others = others,
    .defaults = defaults,
};
