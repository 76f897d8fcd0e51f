/*
 * keys_peers.c: names that other trainers use, and the nearest known name to a misspelt one.
 */
#include "config/keys.h"

#include "base/near.h"
#include "config/peers.h"

#include <stdlib.h>
#include <string.h>

static const tsr_key_translation bf16_map[] = {{"true", "bfloat16"}, {"false", "float32"}, {0}};
static const tsr_key_translation sampling_map[] = {
    {"random", "true"}, {"sequential", "false"}, {0}};
/* TRL shuffles the rows once, before packing and before its sampler, which is random whatever this says. */
static const tsr_key_translation shuffle_dataset_map[] = {{"true", "true"}, {"false", NULL}, {0}};
static const tsr_key_translation use_cpu_map[] = {{"true", "cpu"}, {"false", "auto"}, {0}};
static const tsr_key_translation truncation_map[] = {{"keep_start", "right"}, {0}};

static const tsr_key_alias aliases[] = {
    {"dataset_name", "dataset", NULL, 0, NULL},
    {"shuffle_dataset", "shuffle", shuffle_dataset_map, 0, "expected true or false"},
    {"chat_template_path", "chat_template", NULL, 0, NULL},
    {"train_on_eos", "train_on_eot", NULL, 0, NULL},
    {"train_sampling_strategy", "shuffle", sampling_map, 0,
     "expected random or sequential (as well: group_by_length: true)"},
    {"truncation_mode", "truncation", truncation_map, 0,
     "expected keep_start (truncation also takes error and drop)"},
    {"max_seq_length", "max_length", NULL, 0, NULL},
    {"evaluation_strategy", "eval_strategy", NULL, 0, NULL},
    {"bf16", "dtype", bf16_map, 0, "expected true or false"},
    {"torch_dtype", "dtype", NULL, 0, NULL},
    {"bnb_4bit_compute_dtype", "dtype", NULL, 0, NULL},
    {"warmup_ratio", "warmup_steps", NULL, 1, NULL},
    {"lora_modules_to_save", "modules_to_save", NULL, 0, NULL},
    {"activation_checkpointing", "gradient_checkpointing", NULL, 0, NULL},
    {"use_cpu", "backend", use_cpu_map, 0, "expected true or false"},
    {0},
};

/* Names ending in * are prefixes; the exact ones come first. */
static const tsr_key_peer peers[] = {
    {"fp16", "false null", "float16 needs loss scaling; use dtype: bfloat16 or float32"},
    {"auto_find_batch_size", "false null", "the plan decides what fits before the run"},
    {"lora_task_type", "CAUSAL_LM null", "this trains causal language models"},
    {"deepspeed", "null false {}", "sharding is built in"},
    {"fsdp", "null false [] {}", "sharding is built in"},
    {"fsdp_config", "null {}", "sharding is built in; its wrapping policy is unit_policy"},
    {"fsdp_min_num_params", "0 null", "write unit_policy: 64MiB, or as many bytes"},
    {"fsdp_transformer_layer_cls_to_wrap", NULL, "every decoder layer is a unit (unit_policy)"},
    {"optim_args", "null {}", "the optimizer's settings have keys of their own"},
    {"dataset_streaming", "false null", "the dataset is read whole"},
    {"greater_is_better", "false null", "metric_for_best_model is a loss: less is better"},
    {"use_peft", "true null", "only adapters are trained"},
    {"dataset_config", "null", "datasets are local files"},
    {"model_revision", "main null", "the model is a local directory"},
    {"dataset_kwargs", "null {}", "datasets are prepared in one way"},
    {"model_init_kwargs", "null {}", "the checkpoint's config.json decides"},
    {"logging_strategy", "steps null", "every step is in metrics.jsonl"},
    {"save_safetensors", "true null", "adapters are written as safetensors"},
    {"average_tokens_across_devices", "true null", "the loss is the mean over all ranks' labels"},
    {"bf16_full_eval", "false null", "an evaluation computes in the training's dtype"},
    {"fp16_full_eval", "false null", "an evaluation computes in the training's dtype"},
    {"eval_delay", "0 null", "eval_on_start and eval_strategy say when the first evaluation is"},
    {"ignore_data_skip", "false null", "a resumed run continues with the data it has not seen"},
    {"optim_target_modules", "null []", "it belongs to optimizers that are not supported"},
    {"accelerator_config", "null {}", "a micro-batch is of one rank"},
    {"precompute_ref_log_probs", NULL,
     "the reference's log-probabilities are computed once, before step 1"},
    {"precompute_ref_batch_size", NULL, "per_device_train_batch_size is that of the reference too"},
    {"padding_free", NULL, "documents are never padded"},
    {"sync_ref_model", "false null", "the reference stays as it is"},
    {"generate_during_eval", "false null", "nothing is generated"},
    {"push_to_hub", NULL, "nothing is sent anywhere; upload output_dir yourself"},
    {"accelerate_config", NULL, "sharding is built in"},
    {"env", NULL, "set variables in the shell"},
    {"tf32", NULL, NULL},
    {"logging_dir", NULL, NULL},
    {"do_eval", NULL, NULL},
    {"pad_token", NULL, NULL}, /* padding changes nothing */
    {"eval_accumulation_steps", NULL, NULL},
    {"save_only_model", NULL, NULL},
    {"gradient_checkpointing_use_reentrant", NULL, NULL},
    {"dataloader_num_workers", NULL, NULL},
    {"dataloader_pin_memory", NULL, NULL},
    {"dataloader_persistent_workers", NULL, NULL},
    {"dataloader_prefetch_factor", NULL, NULL},
    {"gradient_checkpointing_kwargs", NULL, NULL},
    {"activation_checkpointing_kwargs", NULL, NULL},
    {"dataloader_multiprocessing_context", NULL, NULL},
    {"dataloader_in_order", NULL, NULL},
    {"liger_kernel_config", NULL, NULL},
    {"torch_empty_cache_steps", NULL, NULL},
    {"log_level_replica", NULL, NULL},
    {"log_on_each_node", NULL, NULL},
    {"save_on_each_node", NULL, NULL},
    {"logging_nan_inf_filter", NULL, NULL},
    {"include_num_input_tokens_seen", NULL, NULL},
    {"include_tokens_per_second", NULL, NULL},
    {"include_for_metrics", NULL, NULL},
    {"length_column_name", NULL, NULL}, /* lengths are counted */
    {"label_names", NULL, NULL},
    {"prediction_loss_only", NULL, NULL},
    {"batch_eval_metrics", NULL, NULL},
    {"eval_do_concat_batches", NULL, NULL},
    {"eval_use_gather_object", NULL, NULL},
    {"enable_jit_checkpoint", NULL, NULL},
    {"restore_callback_states_from_checkpoint", NULL, NULL},
    {"full_determinism", NULL, NULL},
    {"skip_memory_metrics", NULL, NULL},
    {"ignore_bias_buffers", NULL, NULL},
    {"do_predict", NULL, NULL},
    {"local_rank", NULL, NULL},
    {"debug", NULL, NULL},
    {"project", NULL, NULL},
    {"trackio_*", NULL, NULL},
    {"use_liger_kernel", NULL, NULL},
    {"pad_to_multiple_of", NULL, NULL},
    {"dataset_num_proc", NULL, NULL},
    {"remove_unused_columns", NULL, NULL},
    {"use_cache", NULL, NULL},
    {"disable_tqdm", NULL, NULL},
    {"run_name", NULL, NULL},
    {"do_train", NULL, NULL},
    {"trust_remote_code", NULL, NULL},
    {"attn_implementation", NULL, NULL},
    {"bnb_4bit_quant_storage", NULL, NULL},
    {"ddp_backend", NULL, NULL},
    {"ddp_broadcast_buffers", NULL, NULL},
    {"ddp_bucket_cap_mb", NULL, NULL},
    {"ddp_find_unused_parameters", NULL, NULL},
    {"ddp_static_graph", NULL, NULL},
    {"torch_compile*", NULL, NULL},
    {"hub_*", NULL, NULL},
};

/* What plain habit calls our keys; what axolotl and LLaMA-Factory do is in their tables. */
static const tsr_key_translation elsewhere[] = {
    {"model", "model_name_or_path"},
    {"model_path", "model_name_or_path"},
    {"train_dataset", "dataset"},
    {"train_file", "dataset"},
    {"test_dataset", "eval_dataset"},
    {"seq_length", "max_length"},
    {"r", "lora_r"},
    {"rank", "lora_r"},
    {"target_modules", "lora_target_modules"},
    {"lr", "learning_rate"},
    {"warmup", "warmup_steps"},
    {"epochs", "num_train_epochs"},
    {"batch_size", "per_device_train_batch_size"},
    {"train_batch_size", "per_device_train_batch_size"},
    {"global_batch_size", "total_batch_size"},
    {"gradient_clipping", "max_grad_norm"},
    {"dora", "use_dora"},
    {"rslora", "use_rslora"},
    {"output", "output_dir"},
};

#define COUNT(array) (int)(sizeof(array) / sizeof *(array))

const tsr_key_alias *tsr_keys_alias(const char *name)
{
    for (int i = 0; aliases[i].name; i++)
        if (!strcmp(aliases[i].name, name))
            return &aliases[i];
    return NULL;
}

const tsr_key_alias *tsr_keys_aliases(void)
{
    return aliases;
}

bool tsr_keys_matches(const char *row, const char *name)
{
    const char *star = strchr(row, '*');
    if (!star)
        return !strcmp(row, name);
    size_t begin = (size_t)(star - row), end = strlen(star + 1), length = strlen(name);
    return length >= begin + end && !strncmp(row, name, begin) &&
           !strcmp(name + length - end, star + 1);
}

const tsr_key_peer *tsr_keys_peer(const char *name)
{
    for (int i = 0; i < COUNT(peers); i++)
        if (tsr_keys_matches(peers[i].name, name))
            return &peers[i];
    return NULL;
}

void tsr_keys_consider(const char **best, int *distance, const char *name, const char *candidate)
{
    if (!strchr(candidate, '*'))
        tsr_near_consider(best, distance, name, candidate);
}

const char *tsr_keys_nearest(const char *name)
{
    const char *called = tsr_peers_called(name);
    for (int i = 0; i < COUNT(elsewhere) && !called; i++)
        if (!strcmp(elsewhere[i].from, name))
            called = elsewhere[i].to;
    if (called && tsr_keys_find(called) >= 0)
        return called;
    int distance = tsr_near_too_far(name);
    const char *best = NULL;
    for (int i = 0; i < tsr_keys_count(); i++)
        tsr_keys_consider(&best, &distance, name, tsr_keys_at(i)->name);
    for (int i = 0; aliases[i].name; i++)
        tsr_keys_consider(&best, &distance, name, aliases[i].name);
    for (int i = 0; i < COUNT(peers); i++)
        tsr_keys_consider(&best, &distance, name, peers[i].name);
    return best;
}
