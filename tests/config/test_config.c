/*
 * What a configuration holds after loading: defaults, values typed by their key, overrides, names
 * of peers, TRL's defaults, and the written job.yaml that reads back the same.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/near.h"
#include "base/text.h"
#include "config/config.h"
#include "config/config_number.h"
#include "config/config_store.h"
#include "config/keys.h"
#include "support/comma_locale.h"

#define BASE "model_name_or_path: m\ndataset: d.jsonl\noutput_dir: o\n"

static tsr_config load(const char *text, const char *const *overrides, int count)
{
    tsr_config config;
    tsr_config_source source = {
        .text = text, .name = "job.yaml", .overrides = overrides, .override_count = count};
    if (tsr_config_load(&config, &source) < 0)
        fail_msg("%s\n%s", text, tsr_last_error());
    return config;
}

static void has_note(const tsr_config *config, const char *words)
{
    for (int i = 0; i < config->notes.count; i++)
        if (strstr(config->notes.items[i], words))
            return;
    for (int i = 0; i < config->notes.count; i++)
        print_error("note: %s\n", config->notes.items[i]);
    fail_msg("no note with '%s'", words);
}

static void test_defaults(void **state)
{
    (void)state;
    tsr_config c = load(BASE, NULL, 0);
    assert_string_equal(c.model_name_or_path, "m");
    assert_int_equal(c.dataset.count, 1);
    assert_string_equal(c.dataset.items[0], "d.jsonl");
    assert_true(c.load_in_4bit && c.use_bnb_nested_quant);
    assert_int_equal(c.dtype, TSR_CONFIG_DTYPE_AUTO);
    assert_int_equal(c.eval_dataset.count, 0);
    assert_int_equal(c.max_eval_samples, 0);
    assert_int_equal(c.dataset_format, TSR_CONFIG_FORMAT_AUTO);
    assert_string_equal(c.dataset_text_field, "text");
    assert_string_equal(c.dataset_train_split, "train");
    assert_string_equal(c.dataset_test_split, "test");
    assert_int_equal(c.max_length, 2048);
    assert_int_equal(c.truncation, TSR_CONFIG_TRUNCATION_ERROR);
    assert_false(c.packing);
    assert_int_equal(c.eval_packing, TSR_CONFIG_CHOICE_NO);
    assert_int_equal(c.assistant_only_loss, TSR_CONFIG_CHOICE_AUTO);
    assert_int_equal(c.completion_only_loss, TSR_CONFIG_CHOICE_AUTO);
    assert_true(c.shuffle);
    assert_int_equal(c.seed, 42);
    assert_int_equal(c.data_seed, 42);
    assert_null(c.chat_template);
    assert_int_equal(c.lora_r, 16);
    assert_float_equal(c.lora_alpha, 32, 0);
    assert_float_equal(c.lora_dropout, 0, 0);
    assert_int_equal(c.lora_target_modules.kind, TSR_CONFIG_MODULES_ALL_LINEAR);
    assert_int_equal(c.exclude_modules.kind, TSR_CONFIG_MODULES_NONE);
    assert_null(c.lora_target_parameters.items);
    assert_int_equal(c.expert_lora_r, 0);
    assert_float_equal(c.expert_lora_alpha, 0, 0);
    assert_float_equal(c.router_aux_loss_coef, 0, 0);
    assert_float_equal(c.router_bias_update_rate, 0, 0);
    assert_float_equal(c.moe_capacity_factor, 0, 0);
    assert_false(c.use_rslora || c.use_dora);
    assert_float_equal(c.learning_rate, 2e-4, 0);
    assert_float_equal(c.adam_beta1, 0.9, 0);
    assert_float_equal(c.adam_beta2, 0.999, 0);
    assert_float_equal(c.adam_epsilon, 1e-8, 0);
    assert_float_equal(c.weight_decay, 0, 0);
    assert_float_equal(c.max_grad_norm, 1, 0);
    assert_int_equal(c.lr_scheduler_type, TSR_SCHEDULE_LINEAR);
    assert_float_equal(c.warmup_steps, 0, 0);
    assert_true(isnan(c.lr_scheduler_kwargs.value[TSR_SCHEDULE_NUM_CYCLES]) &&
                isnan(c.lr_scheduler_kwargs.value[TSR_SCHEDULE_MIN_LR]));
    assert_float_equal(c.num_train_epochs, 1, 0);
    assert_int_equal(c.max_steps, -1);
    assert_int_equal(c.per_device_train_batch_size, 1);
    assert_int_equal(c.per_device_eval_batch_size, 1);
    assert_int_equal(c.gradient_accumulation_steps, 1);
    assert_int_equal(c.total_batch_size, 0);
    assert_int_equal(c.eval_strategy, TSR_CONFIG_EVERY_NO);
    assert_int_equal(c.eval_on_start, TSR_CONFIG_CHOICE_NO);
    assert_float_equal(c.logging_steps, 1, 0);
    assert_float_equal(c.save_steps, 500, 0);
    assert_int_equal(c.save_strategy, TSR_CONFIG_EVERY_NO);
    assert_int_equal(c.max_skipped_steps, 5);
    assert_int_equal(c.ddp_timeout, 300);
    assert_int_equal(c.gradient_checkpointing, TSR_CONFIG_RECOMPUTE_AUTO);
    assert_int_equal(c.memory_budget, 0);
    assert_int_equal(c.offload, TSR_CONFIG_OFFLOAD_AUTO);
    assert_int_equal(c.activation_offloading, TSR_CONFIG_CHOICE_AUTO);
    assert_int_equal(c.optimizer_offload, TSR_CONFIG_CHOICE_AUTO);
    assert_int_equal(c.resident_units, -1);
    assert_int_equal(c.decoded_layers, -1);
    assert_int_equal(c.slots, 2);
    assert_int_equal(c.unit_policy.layers, 1);
    assert_int_equal(c.unit_policy.bytes, 0);
    assert_int_equal(c.unit_policy.names.count, 0);
    assert_int_equal(c.shard_group_size, 0);
    assert_int_equal(c.log_level, TSR_LOG_INFO);
    assert_true(c.deterministic);
    assert_false(c.overwrite_output_dir);
    assert_false(tsr_config_is_set(&c, "lora_r"));
    assert_true(tsr_config_is_set(&c, "dataset"));
    assert_string_equal(tsr_config_where(&c, "dataset"), "job.yaml:2");
    assert_string_equal(tsr_config_where(&c, "lora_r"), "default");
    assert_false(tsr_config_is_set(&c, "no_such_key"));
    tsr_config_free(&c);
}

static const char everything[] =
    BASE "eval_dataset: [e.jsonl, 'f g.jsonl']\n"
         "learning_rate: 2e-4\nadam_epsilon: 1.E-6\nlora_alpha: +16\n"
         "eval_strategy: no\npacking: yes\nshuffle: Off\n"
         "max_steps: 1e2\nmax_length: 8.0\nlora_dropout: .5\n"
         "gradient_checkpointing: True\nmax_grad_norm: null\nwarmup_ratio: 0.03\n"
         "memory_budget: 22GiB\ntime_limit: 1h30m\n"
         "rank_pattern: {layers.1.q_proj: 4, '.*v_proj': 8}\nalpha_pattern: {q_proj: 2.5}\n"
         "layers_to_transform: [1, 4]\nlora_target_modules:\n  - q_proj\n  - v_proj\n"
         "lr_scheduler_type: cosine_with_min_lr\n"
         "lr_scheduler_kwargs: {min_lr_rate: 0.1, num_cycles: 1}\n"
         "report_to: [none]\nresume_from_checkpoint: false\nlog_level: warning\n"
         "logging_steps: 0.1\ntotal_batch_size: 8\nper_device_train_batch_size: 2\n"
         "data_seed: 7\nuse_dora: true\noffload: sharded\nresident_units: 3\n"
         "decoded_layers: 2\nprogress: lines\n"
         "activation_offloading: yes\noptimizer_offload: false\n"
         "chat_template_path: \"t \\u00fc\\t.jinja\"\neos_token: <|im_end|>\n";

static void test_typed_by_key(void **state)
{
    (void)state;
    tsr_config c = load(everything, NULL, 0);
    assert_int_equal(c.eval_dataset.count, 2);
    assert_string_equal(c.eval_dataset.items[1], "f g.jsonl");
    assert_float_equal(c.learning_rate, 2e-4, 0);
    assert_float_equal(c.adam_epsilon, 1e-6, 0);
    assert_float_equal(c.lora_alpha, 16, 0);
    assert_int_equal(c.eval_strategy, TSR_CONFIG_EVERY_NO);
    assert_true(c.packing);
    assert_int_equal(c.eval_packing, TSR_CONFIG_CHOICE_YES);
    assert_int_equal(c.eval_on_start, TSR_CONFIG_CHOICE_YES);
    assert_false(c.shuffle);
    assert_int_equal(c.max_steps, 100);
    assert_int_equal(c.max_length, 8);
    assert_float_equal(c.lora_dropout, 0.5, 0);
    assert_int_equal(c.gradient_checkpointing, TSR_CONFIG_RECOMPUTE_FULL);
    assert_float_equal(c.max_grad_norm, 0, 0);
    assert_float_equal(c.warmup_steps, 0.03, 0);
    assert_int_equal(c.memory_budget, (uint64_t)22 << 30);
    assert_float_equal(c.time_limit, 5400, 0);
    assert_int_equal(c.rank_pattern.count, 2);
    assert_string_equal(c.rank_pattern.items[0].name, "layers.1.q_proj");
    assert_float_equal(c.rank_pattern.items[1].value, 8, 0);
    assert_float_equal(c.alpha_pattern.items[0].value, 2.5, 0);
    assert_int_equal(c.layers_to_transform.count, 2);
    assert_int_equal(c.layers_to_transform.items[1], 4);
    assert_int_equal(c.lora_target_modules.kind, TSR_CONFIG_MODULES_LIST);
    assert_string_equal(c.lora_target_modules.names.items[1], "v_proj");
    assert_float_equal(c.lr_scheduler_kwargs.value[TSR_SCHEDULE_MIN_LR_RATE], 0.1, 0);
    assert_float_equal(c.lr_scheduler_kwargs.value[TSR_SCHEDULE_NUM_CYCLES], 1, 0);
    assert_true(isnan(c.lr_scheduler_kwargs.value[TSR_SCHEDULE_MIN_LR]));
    assert_null(c.resume_from_checkpoint);
    assert_int_equal(c.log_level, TSR_LOG_WARNING);
    assert_float_equal(c.logging_steps, 0.1, 0);
    assert_float_equal(c.eval_steps, 0.1, 0);
    assert_int_equal(c.data_seed, 7);
    assert_int_equal(c.per_device_eval_batch_size, 2);
    assert_int_equal(c.offload, TSR_CONFIG_OFFLOAD_SHARDED);
    assert_int_equal(c.activation_offloading, TSR_CONFIG_CHOICE_YES);
    assert_int_equal(c.optimizer_offload, TSR_CONFIG_CHOICE_NO);
    assert_true(c.resident_units == 3 && c.decoded_layers == 2);
    assert_string_equal(c.chat_template, "t \xc3\xbc\t.jinja");
    assert_string_equal(c.eos_token, "<|im_end|>");
    assert_true(tsr_config_is_set(&c, "warmup_steps"));
    tsr_config_free(&c);
}

static void test_sizes_and_times(void **state)
{
    (void)state;
    static const struct {
        const char *override;
        double expected;
    } cases[] = {
        {"memory_budget=500MB", 5e8},    {"memory_budget=1.5 GiB", 1.5 * 0x1p30},
        {"memory_budget=2000 MB", 2e9},  {"memory_budget=12345B", 12345},
        {"memory_budget=64 kib", 65536}, {"memory_budget=auto", 0},
        {"memory_budget=null", 0},       {"time_limit=90", 90},
        {"time_limit=01:30:05", 5405},   {"time_limit=2d", 172800},
        {"time_limit=1h 5s", -1},        {"time_limit=10min", 600},
        {"time_limit=1h2m3s", 3723},     {"time_limit=null", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsr_config c;
        tsr_config_source source = {
            .text = BASE, .overrides = &cases[i].override, .override_count = 1};
        tsr_status status = tsr_config_load(&c, &source);
        if (cases[i].expected < 0) {
            assert_int_equal(status, TSR_ECONFIG);
            continue;
        }
        assert_int_equal(status, TSR_OK);
        bool memory = cases[i].override[0] == 'm';
        assert_float_equal(memory ? (double)c.memory_budget : c.time_limit, cases[i].expected, 0);
        tsr_config_free(&c);
    }
}

/* Quotes make no other value of a word, and yes, on and True are true where true has a meaning. */
static void test_words_however_written(void **state)
{
    (void)state;
    static const char *const yes[] = {"true", "True", "yes", "on", "ON", "'true'"};
    tsr_config c = load(BASE "memory_budget: \"auto\"\nresident_units: 'auto'\nmax_steps: '-1'\n"
                             "shard_group_size: \"auto\"\n",
                        NULL, 0);
    assert_int_equal(c.memory_budget, 0);
    assert_int_equal(c.resident_units, -1);
    assert_int_equal(c.max_steps, -1);
    assert_int_equal(c.shard_group_size, 0);
    tsr_config_free(&c);
    for (size_t i = 0; i < sizeof yes / sizeof *yes; i++) {
        char override[64];
        const char *const overrides[] = {override};
        tsr_text text = {0};
        snprintf(override, sizeof override, "resume_from_checkpoint=%s", yes[i]);
        c = load(BASE, overrides, 1);
        assert_string_equal(c.resume_from_checkpoint, "true");
        assert_int_equal(tsr_config_value_text(&text, &c, "resume_from_checkpoint"), TSR_OK);
        assert_string_equal(tsr_text_string(&text), "true");
        tsr_text_free(&text);
        tsr_config_free(&c);
    }
    c = load(BASE "resume_from_checkpoint: ./yes\ntrace: yes\neos_token: 'null'\n", NULL, 0);
    assert_string_equal(c.resume_from_checkpoint, "./yes");
    assert_string_equal(c.trace, "yes"); /* a path and nothing else */
    assert_string_equal(c.eos_token, "null");
    tsr_config_free(&c);
}

/* The file's value, then the override's, which wins whatever name it uses. */
static void test_overrides_win(void **state)
{
    (void)state;
    const char *overrides[] = {"lora_target_modules=[q_proj,v_proj]",
                               "rank_pattern={q_proj: 4}",
                               "lora_r=8",
                               "lora_r=9",
                               "output_dir=out # 1: x",
                               "max_seq_length=null",
                               "bf16=false",
                               "exclude_modules=.*\\.(q|v)_proj",
                               "eos_token=\"a\\n\"",
                               "eval_dataset='[x].jsonl'"};
    tsr_config c = load(BASE "lora_r: 4\ndtype: auto\nmax_length: 77\n", overrides, 10);
    assert_int_equal(c.lora_r, 9);
    assert_int_equal(c.lora_target_modules.names.count, 2);
    assert_float_equal(c.rank_pattern.items[0].value, 4, 0);
    assert_string_equal(c.output_dir, "out # 1: x");
    assert_int_equal(c.max_length, 0);
    assert_int_equal(c.dtype, TSR_CONFIG_DTYPE_FLOAT32);
    assert_int_equal(c.exclude_modules.kind, TSR_CONFIG_MODULES_REGEX);
    assert_string_equal(c.exclude_modules.names.items[0], ".*\\.(q|v)_proj");
    assert_string_equal(c.eos_token, "a\n");
    assert_string_equal(c.eval_dataset.items[0], "[x].jsonl");
    assert_string_equal(tsr_config_where(&c, "lora_r"), "override lora_r=9");
    assert_string_equal(tsr_config_where(&c, "dtype"), "override bf16=false");
    tsr_config_free(&c);
}

/* The other name of a value may stand beside it when both say the same. */
static void test_names_that_agree(void **state)
{
    (void)state;
    tsr_config c = load(BASE "bf16: false\ndtype: float32\nwarmup_steps: 0\nwarmup_ratio: 0.1\n"
                             "fp16: false\nbnb_4bit_compute_dtype: float32\n",
                        NULL, 0);
    assert_int_equal(c.dtype, TSR_CONFIG_DTYPE_FLOAT32);
    assert_float_equal(c.warmup_steps, 0.1, 0);
    tsr_config_free(&c);
    c = load(BASE "warmup_ratio: 0.1\nwarmup_steps: 0\nbf16: null\n", NULL, 0);
    assert_float_equal(c.warmup_steps, 0.1, 0);
    tsr_config_free(&c);
}

static void test_uses(void **state)
{
    (void)state;
    tsr_config c;
    tsr_config_source source = {.text = "model_name_or_path: m\n", .use = TSR_CONFIG_PLAN};
    assert_int_equal(tsr_config_load(&c, &source), TSR_OK);
    tsr_config_free(&c);
    source.use = TSR_CONFIG_EVAL;
    assert_int_equal(tsr_config_load(&c, &source), TSR_ECONFIG);
    const char *eval = "eval_dataset=e.jsonl";
    source.overrides = &eval;
    source.override_count = 1;
    assert_int_equal(tsr_config_load(&c, &source), TSR_OK);
    tsr_config_free(&c);
    const char *cuda[] = {"backend=cuda", "dtype=bfloat16"};
    source =
        (tsr_config_source){.text = BASE, .overrides = cuda, .override_count = 2, .has_cuda = true};
    assert_int_equal(tsr_config_load(&c, &source), TSR_OK);
    assert_int_equal(c.dtype, TSR_CONFIG_DTYPE_BFLOAT16);
    tsr_config_free(&c);
}

/* A file as TRL's own examples have it, with what cannot be here overridden. */
static const char trl_file[] = "# Model arguments\n"
                               "model_name_or_path: m\n"
                               "model_revision: main\n"
                               "torch_dtype: float32\n"
                               "attn_implementation: flash_attention_2\n"
                               "trust_remote_code: false\n"
                               "use_peft: true\n"
                               "load_in_4bit: true\n"
                               "bnb_4bit_quant_storage: uint8\n"
                               "lora_r: 16\n"
                               "lora_alpha: 32\n"
                               "lora_modules_to_save: null\n"
                               "# Data\n"
                               "dataset_name: d.jsonl\n"
                               "dataset_num_proc: 8\n"
                               "# SFT trainer config\n"
                               "fp16: false\n"
                               "do_train: true\n"
                               "evaluation_strategy: \"no\"\n"
                               "gradient_accumulation_steps: 2\n"
                               "gradient_checkpointing: true\n"
                               "gradient_checkpointing_kwargs:\n"
                               "  use_reentrant: false\n"
                               "hub_model_id: x\n"
                               "hub_strategy: every_save\n"
                               "learning_rate: 2.0e-04\n"
                               "log_level: info\n"
                               "lr_scheduler_type: cosine\n"
                               "max_seq_length: 512\n"
                               "max_steps: -1\n"
                               "num_train_epochs: 1\n"
                               "output_dir: data/out\n"
                               "overwrite_output_dir: true\n"
                               "packing: true\n"
                               "padding_free: true\n"
                               "per_device_eval_batch_size: 4\n"
                               "push_to_hub: false\n"
                               "remove_unused_columns: true\n"
                               "report_to:\n"
                               "- none\n"
                               "save_strategy: \"no\"\n"
                               "save_total_limit: null\n"
                               "seed: 42\n"
                               "tf32: true\n"
                               "use_liger_kernel: true\n"
                               "ddp_timeout: 1800\n"
                               "ddp_backend: nccl\n"
                               "dataloader_num_workers: 4\n"
                               "torch_compile: false\n"
                               "neftune_noise_alpha: null\n"
                               "label_smoothing_factor: 0.0\n"
                               "optim: adamw_torch_fused\n"
                               "warmup_ratio: 0.1\n"
                               "weight_decay: 0.01\n";

static void test_trl_file_runs(void **state)
{
    (void)state;
    tsr_config c = load(trl_file, NULL, 0);
    assert_int_equal(c.dtype, TSR_CONFIG_DTYPE_FLOAT32);
    assert_int_equal(c.max_length, 512);
    assert_int_equal(c.ddp_timeout, 1800);
    assert_string_equal(c.dataset.items[0], "d.jsonl");
    assert_float_equal(c.warmup_steps, 0.1, 0);
    has_note(&c, "max_seq_length as max_length 512");
    has_note(&c, "torch_dtype as dtype float32");
    has_note(&c, "evaluation_strategy as eval_strategy no");
    static const char *const idle[] = {"attn_implementation",
                                       "trust_remote_code",
                                       "bnb_4bit_quant_storage",
                                       "dataset_num_proc",
                                       "do_train",
                                       "gradient_checkpointing_kwargs",
                                       "hub_model_id",
                                       "hub_strategy",
                                       "padding_free",
                                       "remove_unused_columns",
                                       "tf32",
                                       "use_liger_kernel",
                                       "ddp_backend",
                                       "dataloader_num_workers",
                                       "torch_compile"};
    int line = 0;
    while (line < c.notes.count && strncmp(c.notes.items[line], "without effect", 14))
        line++;
    assert_true(line < c.notes.count); /* all in this one line */
    for (size_t i = 0; i < sizeof idle / sizeof *idle; i++)
        if (!strstr(c.notes.items[line], idle[i]))
            fail_msg("%s is not in: %s", idle[i], c.notes.items[line]);
    static const char *const different[] = {"assistant_only_loss auto (TRL false)",
                                            "use_bnb_nested_quant true (TRL false)",
                                            "lora_dropout 0 (TRL 0.05)",
                                            "lora_target_modules all-linear (TRL [q_proj",
                                            "per_device_train_batch_size 1 (TRL 8)",
                                            "logging_steps 1 (TRL 10)",
                                            "truncation error (TRL right)"};
    for (size_t i = 0; i < sizeof different / sizeof *different; i++)
        has_note(&c, different[i]);
    for (int i = 0; i < c.notes.count; i++) { /* what the file sets is no difference */
        assert_null(strstr(c.notes.items[i], "learning_rate"));
        assert_null(strstr(c.notes.items[i], "load_in_4bit"));
        assert_null(strstr(c.notes.items[i], "max_length 2048"));
    }
    tsr_config_free(&c);
}

/* What TRL's own files have where nothing is chosen. */
static void test_trl_nothing_chosen(void **state)
{
    (void)state;
    static const char *const dtypes[] = {"torch_dtype: auto\nbf16: false\n",
                                         "bf16: false\ntorch_dtype: auto\n",
                                         "torch_dtype: null\nbnb_4bit_compute_dtype: float32\n"};
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        char text[256];
        snprintf(text, sizeof text, BASE "%s", dtypes[i]);
        tsr_config c = load(text, NULL, 0);
        assert_int_equal(c.dtype, TSR_CONFIG_DTYPE_FLOAT32);
        tsr_config_free(&c);
    }
    tsr_config c = load(BASE "dtype: null\nwarmup_steps: 3\nwarmup_ratio: null\nreport_to: []\n"
                             "lora_target_modules: [all-linear]\n",
                        NULL, 0);
    assert_int_equal(c.dtype, TSR_CONFIG_DTYPE_AUTO);
    assert_float_equal(c.warmup_steps, 3, 0);
    assert_int_equal(c.report_to, TSR_CONFIG_REPORT_NONE);
    assert_int_equal(c.lora_target_modules.kind, TSR_CONFIG_MODULES_ALL_LINEAR);
    tsr_config_free(&c);
}

static void test_trl_defaults(void **state)
{
    (void)state;
    tsr_config c = load(BASE "defaults: trl\nlora_dropout: 0\n", NULL, 0);
    assert_int_equal(c.assistant_only_loss, TSR_CONFIG_CHOICE_NO);
    assert_false(c.load_in_4bit);
    assert_int_equal(c.lora_target_modules.kind, TSR_CONFIG_MODULES_LIST);
    assert_int_equal(c.lora_target_modules.names.count, 2);
    assert_string_equal(c.lora_target_modules.names.items[0], "q_proj");
    assert_float_equal(c.lora_dropout, 0, 0);
    assert_float_equal(c.learning_rate, 2e-5, 0);
    assert_float_equal(c.num_train_epochs, 3, 0);
    assert_int_equal(c.per_device_train_batch_size, 8);
    assert_int_equal(c.per_device_eval_batch_size, 8);
    assert_int_equal(c.max_length, 1024);
    assert_float_equal(c.logging_steps, 10, 0);
    assert_int_equal(c.dtype, TSR_CONFIG_DTYPE_AUTO);
    assert_int_equal(c.save_strategy, TSR_CONFIG_EVERY_STEPS);
    has_note(&c, "defaults: trl took");
    has_note(&c, "dtype auto (TRL bfloat16)");
    assert_false(tsr_config_is_set(&c, "learning_rate"));
    tsr_text text = {0};
    assert_int_equal(tsr_config_write(&text, &c), TSR_OK);
    assert_non_null(strstr(text.data, "learning_rate: 2e-05  # default (TRL)\n"));
    tsr_text_free(&text);
    tsr_config_free(&c);
    /* null targets are PEFT's default */
    c = load(BASE "lora_target_modules: null\n", NULL, 0);
    assert_int_equal(c.lora_target_modules.names.count, 2);
    tsr_config_free(&c);
}

static void same(const tsr_config *a, const tsr_config *b)
{
    for (int i = 0; i < tsr_keys_count(); i++) {
        tsr_text left = {0}, right = {0};
        if (tsr_keys_at(i)->flags & TSR_KEY_ONE_START)
            continue;
        assert_int_equal(tsr_config_value_text(&left, a, tsr_keys_at(i)->name), TSR_OK);
        assert_int_equal(tsr_config_value_text(&right, b, tsr_keys_at(i)->name), TSR_OK);
        assert_string_equal(left.data, right.data);
        tsr_text_free(&left);
        tsr_text_free(&right);
    }
}

static void test_round_trip(void **state)
{
    (void)state;
    static const char *const texts[] = {
        BASE,
        everything,
        BASE "defaults: trl\n",
        BASE "unit_policy: 4\n",
        BASE "unit_policy: 64MiB\n",
        BASE "unit_policy: self_attn, mlp.up_proj\n",
        "model_name_or_path: \"null\"\ndataset: [\"a: b\", '[', \"\\u2028"
        "\\U0001F600\\\"\\\\\\x01\\x7f\\xa0\\ufeff\"]\noutput_dir: '#x'\n"
        "learning_rate: 0.30000000000000004\nlora_alpha: 1e-300\n"
        "memory_budget: 123456789B\nmax_steps: 9007199254740992\n"
        "lora_target_modules: '.*\\.(q|v)_proj$'\n"
        "warmup_steps: 12\n"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        tsr_config first = load(texts[i], NULL, 0);
        tsr_text written = {0}, again = {0};
        assert_int_equal(tsr_config_write(&written, &first), TSR_OK);
        tsr_config second = load(written.data, NULL, 0);
        same(&first, &second);
        assert_int_equal(tsr_config_hash(&first), tsr_config_hash(&second));
        assert_string_equal(first.output_dir, second.output_dir);
        for (int j = 0; j < first.dataset.count; j++)
            assert_string_equal(first.dataset.items[j], second.dataset.items[j]);
        assert_memory_equal(&first.learning_rate, &second.learning_rate, sizeof(double));
        assert_int_equal(tsr_config_write(&again, &second), TSR_OK);
        assert_null(strstr(again.data, "# default"));
        tsr_text_free(&written);
        tsr_text_free(&again);
        tsr_config_free(&first);
        tsr_config_free(&second);
    }
}

/* A checkpoint of an older version has 2e+01 where this one writes 20. */
static void test_same_text(void **state)
{
    (void)state;
    tsr_config c = load(BASE, NULL, 0);
    static const struct {
        const char *key, *was, *now;
        bool same;
    } texts[] = {{"lora_alpha", "2e+01", "20", true},
                 {"lora_alpha", "20", "20", true},
                 {"lora_alpha", "2e+01", "21", false},
                 {"lora_alpha", "[", "20", false},
                 {"rank_pattern", "{q_proj: 1e+01}", "{q_proj: 10}", true},
                 {"rank_pattern", "null", "{q_proj: 10}", false},
                 {"lr_scheduler_type", "linear", "cosine", false},
                 {"lora_target_modules", "[q_proj]", "[q_proj]", true}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (tsr_config_same_text(&c, tsr_keys_at(tsr_keys_find(texts[i].key)), texts[i].was,
                                 texts[i].now) != texts[i].same)
            fail_msg("%s: %s and %s", texts[i].key, texts[i].was, texts[i].now);
    assert_int_equal(c.rank_pattern.count, 0);
    tsr_config_free(&c);
}

/* A key's default is what its own reader makes of `initial`, and every key has a field. */
static void test_table(void **state)
{
    (void)state;
    tsr_config c = load(BASE, NULL, 0);
    for (int i = 0; i < tsr_keys_count(); i++) {
        const tsr_key *key = tsr_keys_at(i);
        assert_int_equal(tsr_keys_find(key->name), i);
        assert_true(key->offset < offsetof(tsr_config, notes));
        for (int j = 0; j < i; j++)
            assert_true(tsr_keys_at(j)->offset != key->offset);
        assert_null(tsr_keys_alias(key->name));
        assert_null(tsr_keys_peer(key->name));
    }
    assert_null(tsr_keys_at(tsr_keys_count()));
    tsr_text help = {0};
    tsr_config_help(&help);
    for (int i = 0; i < tsr_keys_count(); i++)
        assert_non_null(strstr(help.data, tsr_keys_at(i)->name));
    assert_non_null(strstr(help.data, "learning_rate [2e-4; TRL: 2e-5]"));
    assert_non_null(strstr(help.data, "not in this version: bfd_split"));
    tsr_text_free(&help);
    tsr_config_free(&c);
}

static void test_distance(void **state)
{
    (void)state;
    assert_int_equal(tsr_near_distance("abc", "abc", 3), 0);
    assert_int_equal(tsr_near_distance("abc", "acb", 3), 1);
    assert_int_equal(tsr_near_distance("kitten", "sitting", 5), 3);
    assert_int_equal(tsr_near_distance("", "abc", 5), 3);
    assert_int_equal(tsr_near_distance("abc", "wxyz", 2), 3);

    /* Whatever the limit: the same, or beyond it. */
    static const char *const near[] = {"learning_rate", "laerning_rate", "elarnnig_rtae", "rate",
                                       "r"};
    for (size_t i = 0; i < sizeof near / sizeof *near; i++)
        for (int k = 0, all; k < tsr_keys_count(); k++) {
            const char *key = tsr_keys_at(k)->name;
            all = tsr_near_distance(near[i], key, 64);
            for (int limit = 0; limit < 12; limit++)
                assert_int_equal(tsr_near_distance(near[i], key, limit),
                                 all <= limit ? all : limit + 1);
        }
    assert_null(tsr_keys_nearest("zzzzzzzz"));
}

static void test_steps(void **state)
{
    (void)state;
    assert_int_equal(tsr_config_steps(0, 100, 0), 0);
    assert_int_equal(tsr_config_steps(0.03, 50, 0), 2); /* rounded up */
    assert_int_equal(tsr_config_steps(7, 50, 0), 7);
    assert_int_equal(tsr_config_steps(0.001, 0, 1), 1);
}

/* An embedder with a comma as its decimal point changes nothing. */
static void test_locale(void **state)
{
    (void)state;
    locale_t comma = comma_locale();
    locale_t before = comma ? uselocale(comma) : (locale_t)0;
    tsr_config c = load(BASE "learning_rate: 1.5e-3\n", NULL, 0);
    tsr_text text = {0};
    tsr_config_value_text(&text, &c, "learning_rate");
    locale_t during = comma ? uselocale((locale_t)0) : comma;
    if (comma) {
        uselocale(before);
        freelocale(comma);
    }
    assert_true(during == comma); /* put back as it was */
    assert_float_equal(c.learning_rate, 1.5e-3, 0);
    assert_string_equal(text.data, "0.0015");
    tsr_text_free(&text);
    tsr_config_free(&c);
    if (!comma) {
        print_message("no locale with a decimal comma is installed\n");
        skip();
    }
}

static void test_numbers(void **state)
{
    (void)state;
    double d;
    int64_t n;
    static const char *const bad[] = {"",    "+",   ".",  "e5", "1e",  "1e+",   "0x10",
                                      "inf", "nan", "1 ", " 1", "1_0", "1.2.3", "--1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_false(tsr_number_parse(&d, bad[i]));
        assert_false(tsr_number_parse_whole(&n, bad[i]));
    }
    assert_true(tsr_number_parse(&d, "-1.5E+2") && d == -150);
    assert_true(tsr_number_parse(&d, "5.") && d == 5);
    assert_true(tsr_number_parse_whole(&n, "-3") && n == -3);
    assert_true(tsr_number_parse_whole(&n, "9223372036854775807") && n == INT64_MAX);
    assert_true(tsr_number_parse_whole(&n, "1e30") && n == INT64_MAX);
    assert_false(tsr_number_parse_whole(&n, "1.5"));
    tsr_text text = {0};
    tsr_number_put(&text, 0.1, 0);
    tsr_text_puts(&text, " ");
    tsr_number_put(&text, 1.0 / 3, 9);
    tsr_text_puts(&text, " ");
    tsr_number_put_fixed(&text, 2.5, 1);
    const double whole[] = {20, 500, 1e15, 5e-5, -100, 0};
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
        tsr_text_puts(&text, " ");
        tsr_number_put(&text, whole[i], 0);
    }
    assert_string_equal(text.data, "0.1 0.333333333 2.5 20 500 1e+15 5e-05 -100 0");
    tsr_text_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_typed_by_key),
        cmocka_unit_test(test_sizes_and_times),
        cmocka_unit_test(test_words_however_written),
        cmocka_unit_test(test_overrides_win),
        cmocka_unit_test(test_names_that_agree),
        cmocka_unit_test(test_uses),
        cmocka_unit_test(test_trl_file_runs),
        cmocka_unit_test(test_trl_nothing_chosen),
        cmocka_unit_test(test_trl_defaults),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_same_text),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_distance),
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_locale),
        cmocka_unit_test(test_numbers),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
