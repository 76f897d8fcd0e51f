/*
 * Wrong configurations: each must be refused with TSR_ECONFIG, naming the place, what was found and
 * what is allowed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/text.h"
#include "config/config.h"

#define BASE "model_name_or_path: m\ndataset: d.jsonl\noutput_dir: o\n" /* three lines */

typedef struct {
    const char *text;     /* appended to BASE; "!" first: the whole file */
    const char *override; /* NULL: none */
    const char *words[5]; /* each must be in the message */
} wrong;

static const wrong table[] = {
    /* unknown and misspelt keys */
    {"learning_rat: 1e-3", NULL, {"job.yaml:4", "no key 'learning_rat'", "learning_rate?"}},
    {"lora_rank: 8", NULL, {"job.yaml:4", "lora_r?"}},
    {"micro_batch_size: 8", NULL, {"per_device_train_batch_size?"}},
    {"qqqqqqqqqqqqqqqqqqqq: 8", NULL, {"no key 'qqqqqqqqqqqqqqqqqqqq'", "--help"}},
    {"Lora_R: 8", NULL, {"no key", "lora_r?"}},
    {"max_lenght: 8", NULL, {"max_length?"}},
    {NULL, "learning_rate_=1", {"override learning_rate_=1", "learning_rate?"}},
    /* types */
    {"lora_r: abc", NULL, {"job.yaml:4: lora_r: found 'abc'", "a whole number from 1 to 8192"}},
    {"lora_r: 8.5", NULL, {"lora_r: found '8.5'", "whole number"}},
    {"lora_r: [8]", NULL, {"lora_r: found a list", "whole number"}},
    {"lora_r:", NULL, {"lora_r: found nothing", "whole number"}},
    {"learning_rate: fast", NULL, {"learning_rate: found 'fast'", "a number from 0"}},
    {"learning_rate: 0x1p3", NULL, {"found '0x1p3'"}},
    {"learning_rate: nan", NULL, {"found 'nan'"}},
    {"learning_rate: .inf", NULL, {"found '.inf'"}},
    {"learning_rate: 1,5", NULL, {"found '1,5'"}},
    {"learning_rate: 2e-4x", NULL, {"found '2e-4x'"}},
    {"packing: maybe", NULL, {"packing: found 'maybe'", "true or false"}},
    {"packing: 1", NULL, {"packing: found '1'", "true or false"}},
    {"dataset_text_field: {a: b}", NULL, {"found a map", "a text"}},
    {"lr_scheduler_type: cosin", NULL, {"found 'cosin'", "linear, cosine, cosine_with_restarts"}},
    {"lr_scheduler_type: greedy", NULL, {"found 'greedy'", "follows the loss"}},
    {"eval_strategy: sometimes", NULL, {"found 'sometimes'", "no, steps, epoch"}},
    {"rank_pattern: [1, 2]", NULL, {"rank_pattern: found a list", "map"}},
    {"rank_pattern: {q_proj: x}", NULL, {"rank_pattern: found 'x'"}},
    {"rank_pattern: {q_proj: 2.5}", NULL, {"rank_pattern: found '2.5'", "whole"}},
    {"rank_pattern: {q_proj: 2, q_proj: 3}", NULL, {"'q_proj' appears twice"}},
    {"layers_to_transform: [1, 1]", NULL, {"1 is listed twice"}},
    {"layers_to_transform: [1, -2]", NULL, {"found '-2'"}},
    {"lora_target_modules: []", NULL, {"lora_target_modules: found a list", "all-linear"}},
    {"lora_target_modules: {q: v}", NULL, {"found a map", "regular expression"}},
    {"memory_budget: 22 gigs", NULL, {"memory_budget: found '22 gigs'", "22GiB"}},
    {"memory_budget: 8",
     NULL,
     {"memory_budget: found '8'", "unit is missing", "write memory_budget: 8GiB"}},
    {"memory_budget: 0.5", NULL, {"memory_budget: found '0.5'", "write memory_budget: 0.5GiB"}},
    {"memory_budget: 23622320128", NULL, {"found '23622320128'", "memory_budget: 23622320128B"}},
    {"memory_budget: 2e9", NULL, {"memory_budget: found '2e9'", "memory_budget: 2000000000B"}},
    {"memory_budget: 0", NULL, {"memory_budget: found '0'", "22GiB"}},
    {"memory_budget: -5", NULL, {"memory_budget: found '-5'"}},
    {"memory_budget: 1e30", NULL, {"memory_budget: found '1e30'"}},
    {"ddp_timeout: 0", NULL, {"ddp_timeout: found '0'", "from 1 to"}},
    {"ddp_timeout: 2.5", NULL, {"ddp_timeout: found '2.5'", "whole"}},
    {"ddp_timeout: 30m", NULL, {"ddp_timeout: found '30m'"}},
    {"time_limit: soon", NULL, {"time_limit: found 'soon'", "1h30m"}},
    {"time_limit: '01:99:00'", NULL, {"time_limit: found '01:99:00'"}},
    {"time_limit: '-1:30:00'", NULL, {"time_limit: found '-1:30:00'"}},
    {"lr_scheduler_kwargs: {cycles: 2}", NULL, {"no member 'cycles'", "num_cycles"}},
    /* ranges */
    {"lora_r: 0", NULL, {"lora_r: found '0'", "from 1"}},
    {"lora_r: 99999999999999999999999", NULL, {"lora_r: found"}},
    {"lora_alpha: 0", NULL, {"lora_alpha: found '0'", "above 0"}},
    {"adam_epsilon: 0", NULL, {"adam_epsilon: found '0'", "from 1e-45"}},
    {"adam_epsilon: 1e-50", NULL, {"adam_epsilon: found '1e-50'", "from 1e-45"}},
    {"lora_dropout: 1", NULL, {"lora_dropout: found '1'", "to less than 1"}},
    {"lora_dropout: -0.1", NULL, {"lora_dropout: found '-0.1'"}},
    {"learning_rate: 1e999", NULL, {"learning_rate: found '1e999'"}},
    {"slots: 1", NULL, {"slots: found '1'", "from 2"}},
    {"slots: 9", NULL, {"slots: found '9'", "from 2 to 8"}},
    {"unit_policy: 0", NULL, {"unit_policy: found '0'", "a number of layers (1 or more)"}},
    {"unit_policy: -2", NULL, {"unit_policy: found '-2'", "bytes (64MiB)"}},
    {"unit_policy: 1.5", NULL, {"unit_policy: found '1.5'", "names of modules"}},
    {"unit_policy: 0MiB", NULL, {"unit_policy: found '0MiB'"}},
    {"unit_policy: 64 layers", NULL, {"unit_policy: found '64 layers'"}},
    {"unit_policy: ''", NULL, {"unit_policy: found ''"}},
    {"unit_policy: []", NULL, {"unit_policy: found"}},
    {"unit_policy: 'mlp,,self_attn'", NULL, {"unit_policy: found 'mlp,,self_attn'"}},
    {"unit_policy: {mlp: 1}", NULL, {"unit_policy: found"}},
    {"fsdp_min_num_params: 1000", NULL, {"fsdp_min_num_params: found '1000'", "unit_policy"}},
    {"lora_r: 8193", NULL, {"lora_r: found '8193'", "from 1 to 8192"}},
    {"rank_pattern: {q_proj: 8193}", NULL, {"found '8193'", "from 1 to 8192"}},
    {"max_length: 0", NULL, {"max_length: found '0'", "or null"}},
    {"max_steps: 0", NULL, {"max_steps: found '0'", "-1"}},
    {"num_train_epochs: 0", NULL, {"num_train_epochs: found '0'", "above 0"}},
    {"adam_beta2: 1.0", NULL, {"adam_beta2: found '1.0'"}},
    {"eval_steps: 0", NULL, {"eval_steps: found '0'", "share below 1"}},
    {"eval_steps: 2.5", NULL, {"eval_steps: found '2.5'"}},
    {"warmup_steps: -1", NULL, {"warmup_steps: found '-1'"}},
    {"warmup_ratio: 3", NULL, {"warmup_ratio: found '3'", "warmup_steps"}},
    {"seed: -1", NULL, {"seed: found '-1'"}},
    /* conflicts */
    {"packing: true\nmax_length: null", NULL, {"job.yaml:4: packing", "job.yaml:5", "null"}},
    {"total_batch_size: 6\nper_device_train_batch_size: 4",
     NULL,
     {"total_batch_size: 6 is not a multiple", "4 (job.yaml:5)"}},
    {"total_batch_size: 6\ngradient_accumulation_steps: 2",
     NULL,
     {"leave out one", "job.yaml:4", "job.yaml:5"}},
    {"warmup_steps: 10\nwarmup_ratio: 0.1",
     NULL,
     {"job.yaml:5: warmup_ratio", "warmup_steps (job.yaml:4)", "keep one"}},
    {"bf16: true\ndtype: float32", NULL, {"job.yaml:5: dtype", "bf16 (job.yaml:4)", "keep one"}},
    {"max_length: 8\nmax_seq_length: 9", NULL, {"max_seq_length", "keep one"}},
    {"dataset_name: e.jsonl", NULL, {"job.yaml:4: dataset_name", "dataset (job.yaml:2)"}},
    {"layers_to_transform: [0]\nlora_target_modules: '.*q_proj'",
     NULL,
     {"layers_to_transform", "regular expression", ".*q_proj"}},
    {"eval_strategy: steps", NULL, {"eval_strategy: needs an eval_dataset"}},
    {"eval_on_start: true", NULL, {"eval_on_start: true needs an eval_dataset"}},
    {"validation_split: 0", NULL, {"validation_split: found '0'"}},
    {"validation_split: 1.5", NULL, {"validation_split: found '1.5'"}},
    {"validation_split: 0.1\neval_dataset: e.jsonl",
     NULL,
     {"job.yaml:4: validation_split (job.yaml:4)", "eval_dataset (job.yaml:5)", "leave out one"}},
    {"train_on_inputs: true\nassistant_only_loss: true",
     NULL,
     {"job.yaml:4: train_on_inputs", "assistant_only_loss is true (job.yaml:5)"}},
    {"eval_dataset: [{path: e.jsonl, fromat: text}]",
     NULL,
     {"eval_dataset[0]: no member 'fromat'", "expected one of path, name, split, format"}},
    {"eval_dataset: [e.jsonl, {format: text}]", NULL, {"eval_dataset[1]: has no path"}},
    {"eval_dataset: [{path: e.jsonl, format: alp}]",
     NULL,
     {"eval_dataset[0].format: found 'alp'", "pretokenized"}},
    {"eval_dataset: {path: e.jsonl, weight: 0}", NULL, {"eval_dataset[0].weight: found '0'"}},
    {"eval_dataset: [{path: e.jsonl, roles: {boss: [a]}}]",
     NULL,
     {"eval_dataset[0].roles: found 'boss'", "system, user, assistant, tool"}},
    {"special_tokens: {start: a}", NULL, {"special_tokens: found 'start'", "bos_token, eos_token"}},
    {"max_train_samples: 0", NULL, {"max_train_samples: found '0'"}},
    {"lr_scheduler_type: cosine_with_min_lr", NULL, {"needs min_lr or min_lr_rate"}},
    {"lr_scheduler_kwargs: {min_lr: 1e-5}", NULL, {"takes no min_lr", "cosine_with_min_lr"}},
    {"lr_scheduler_kwargs: {num_cycles: 2}",
     NULL,
     {"linear takes no num_cycles; these do: cosine"}},
    {"lr_scheduler_type: cosine_with_min_lr\nlr_scheduler_kwargs: {min_lr: 1}",
     NULL,
     {"min_lr 1 is above the learning_rate"}},
    {"lr_scheduler_type: warmup_stable_decay\nlr_scheduler_kwargs: {decay_type: fast}",
     NULL,
     {"decay_type: expected one of linear, cosine, 1-sqrt"}},
    {"lr_scheduler_type: cosine_with_min_lr\nlr_scheduler_kwargs: {min_lr: 0, min_lr_rate: 0}",
     NULL,
     {"leave out one"}},
    {"init_adapter: o", NULL, {"output_dir: 'o' is also init_adapter (job.yaml:4)"}},
    {"objective: dpo\nref_adapter: o", NULL, {"output_dir: 'o' is also ref_adapter (job.yaml:5)"}},
    /* required */
    {"!dataset: d.jsonl\noutput_dir: o", NULL, {"model_name_or_path: required", "missing"}},
    {"!model_name_or_path: m\noutput_dir: o", NULL, {"dataset: required"}},
    {"!model_name_or_path: m\ndataset: d.jsonl\noutput_dir: null",
     NULL,
     {"job.yaml:3: output_dir: required", "null"}},
    {"!", NULL, {"3 errors", "model_name_or_path", "dataset", "output_dir"}},
    {"!model_name_or_path: ''\ndataset: d.jsonl\noutput_dir: o",
     NULL,
     {"model_name_or_path: found ''", "not empty"}},
    /* Hub names */
    {"!model_name_or_path: meta-llama/Llama-3-8B\ndataset: d.jsonl\noutput_dir: o",
     NULL,
     {"job.yaml:1", "meta-llama/Llama-3-8B",
      "hf download meta-llama/Llama-3-8B --local-dir Llama-3-8B", "huggingface-cli download"}},
    {"!model_name_or_path: m\ndataset: trl-lib/Capybara\noutput_dir: o",
     NULL,
     {"job.yaml:2", "hf download --repo-type dataset trl-lib/Capybara"}},
    {"init_lora_weights: olora", NULL, {"job.yaml:4", "olora is not in this version", "pissa"}},
    {"init_lora_weights: eva", NULL, {"eva needs a pass over the data", "pissa"}},
    {"init_lora_weights: kaiming", NULL, {"found 'kaiming'", "gaussian, pissa or pissa_niter_N"}},
    {"init_lora_weights: pissa_niter_", NULL, {"found 'pissa_niter_'", "0 to 999"}},
    {"init_lora_weights: pissa_niter_1000", NULL, {"found 'pissa_niter_1000'", "0 to 999"}},
    {"init_lora_weights: pissa_niter_4x", NULL, {"found 'pissa_niter_4x'"}},
    {"init_lora_weights: null", NULL, {"init_lora_weights"}},
    {"init_lora_weights: [pissa]", NULL, {"init_lora_weights: found a list"}},
    {"init_lora_weights: pissa\nlora_r: 5000", NULL, {"twice the rank", "5000; at most 4096"}},
    {"init_lora_weights: pissa\nrank_pattern: {q_proj: 4097}", NULL, {"twice the rank", "4097"}},
    {"init_adapter: someone/adapter", NULL, {"init_adapter", "hf download someone/adapter"}},
    {"chat_template_date: today", NULL, {"chat_template_date: found 'today'", "2024-07-26"}},
    {"chat_template_date: 2023-02-29", NULL, {"found '2023-02-29'", "expected a date"}},
    {"chat_template_date: 2024-07-26T24:00:00", NULL, {"expected a date"}},
    {"chat_template_date: 1970-01-01", NULL, {"from 1971 on"}},
    {"dataset_format: csv", NULL, {"found 'csv'", "alpaca", "prompt_completion"}},
    {"train_on_eot: both", NULL, {"train_on_eot: found 'both'", "turn, all, last, none"}},
    {"roles_to_train: {a: b}", NULL, {"roles_to_train: found a map", "a list of names"}},
    {"response_template: ''", NULL, {"response_template", "not empty"}},
    {"response_template: '###'\nassistant_only_loss: true",
     NULL,
     {"response_template (job.yaml:", "assistant_only_loss: true (job.yaml:", "leave out one"}},
    {"response_template: '###'\ntrain_on_inputs: true", NULL, {"train_on_inputs: true"}},
    {"default_system: [a]", NULL, {"default_system: found a list"}},
    {"save_strategy: best", NULL, {"save_strategy: found 'best'", "no, steps, epoch"}},
    {"save_total_limit: 0", NULL, {"save_total_limit", "1 or more"}},
    {"save_steps: 0", NULL, {"save_steps", "above 0"}},
    /* not built */
    {"base_compute: e4m3", NULL, {"base_compute: found 'e4m3'", "dtype, fp8, fp8_fast"}},
    {"trace: ''", NULL, {"trace", "not empty"}},
    {"report_to: [paper]", NULL, {"report_to: found 'paper'", "none, tensorboard"}},
    {"lora_graph: best", NULL, {"lora_graph: found 'best'", "auto, fixed, flops, time"}},
    {"activation_offloading: sharded", NULL, {"activation_offloading", "auto, true", "sharded"}},
    {"optimizer_offload: 2", NULL, {"optimizer_offload", "auto, true"}},
    {"backend: cuda", NULL, {"backend", "this build has no CUDA backend"}},
    {"dtype: bfloat16", NULL, {"dtype", "CPU backend computes in float32"}},
    {"bf16: true", NULL, {"bf16", "CPU backend computes in float32"}},
    {"dtype: float16", NULL, {"float16", "not supported"}},
    {"bnb_4bit_quant_type: fp4", NULL, {"fp4", "not supported", "nf4"}},
    {"packing_strategy: wrapped", NULL, {"packing_strategy", "not in this version", "bfd"}},
    {"optim: lion_8bit", NULL, {"optim: found 'lion_8bit'", "adamw_torch"}},
    {"optim: sgd", NULL, {"optim: found 'sgd'", "adamw_torch"}},
    /* peers' keys */
    {"fp16: true", NULL, {"fp16: found 'true'", "only false", "bfloat16"}},
    {"label_smoothing_factor: 1.1", NULL, {"label_smoothing_factor: found '1.1'", "from 0 to 1"}},
    {"label_smoothing_factor: -0.1", NULL, {"label_smoothing_factor: found '-0.1'"}},
    {"neftune_noise_alpha: -5", NULL, {"neftune_noise_alpha: found '-5'", "or null"}},
    {"lora_target_parameters: {a: b}", NULL, {"lora_target_parameters: found a map", "list"}},
    {"lora_target_parameters: [mlp.experts.down_proj]\nlora_dropout: 0.1",
     NULL,
     {"lora_dropout: found 0.1 (job.yaml:5)", "lora_target_parameters (job.yaml:4)",
      "write lora_dropout: 0"}},
    {"expert_lora_r: 0", NULL, {"expert_lora_r: found '0'", "or null"}},
    {"expert_lora_alpha: 0", NULL, {"expert_lora_alpha: found '0'", "above 0", "or null"}},
    {"router_aux_loss_coef: -0.1", NULL, {"router_aux_loss_coef: found '-0.1'", "or null"}},
    {"router_bias_update_rate: null", NULL, {"router_bias_update_rate: found null"}},
    {"router_bias_update_rate: -1", NULL, {"router_bias_update_rate: found '-1'"}},
    {"moe_capacity_factor: 0", NULL, {"moe_capacity_factor: found '0'", "or null"}},
    {"exclude_modules: [all-linear-peft]\nlora_target_modules: {all-linear-peft: 1}",
     NULL,
     {"lora_target_modules: found a map", "all-linear-peft, a list"}},
    {"balance: tokens\npacking: true", NULL, {"balance: tokens (job.yaml:4)", "packing: true"}},
    {"balance: tokens\nobjective: dpo", NULL, {"balance: tokens", "objective: dpo (job.yaml:5)"}},
    {"truncation: split\nobjective: dpo",
     NULL,
     {"job.yaml:4: truncation: found split", "objective: dpo (job.yaml:5)",
      "write right, drop or error"}},
    {"truncation: split\nobjective: kto", NULL, {"truncation: found split", "objective: kto"}},
    {"truncation: split\nobjective: reward",
     NULL,
     {"truncation: found split", "objective: reward", "write drop or error"}},
    {"max_length: null\ntruncation: split",
     NULL,
     {"truncation: split (job.yaml:5) needs a max_length", "null (job.yaml:4)"}},
    {"truncation: chop", NULL, {"truncation: found 'chop'", "error, right, drop, split"}},
    {"balance: work", NULL, {"balance: found 'work'", "rows, tokens"}},
    {"loss_type: dft", NULL, {"loss_type: found [dft]", "whose only loss is nll"}},
    {"load_in_8bit: true\nload_in_4bit: true",
     NULL,
     {"load_in_8bit (job.yaml:4)", "load_in_4bit (job.yaml:5)", "are both true"}},
    {"deepspeed: ds.json", NULL, {"deepspeed: found 'ds.json'", "sharding is built in"}},
    {"fsdp: full_shard", NULL, {"fsdp: found 'full_shard'"}},
    {"use_peft: false", NULL, {"use_peft: found 'false'", "only true"}},
    {"dataset_streaming: true", NULL, {"dataset_streaming"}},
    {"auto_find_batch_size: true", NULL, {"auto_find_batch_size"}},
    {"optim_args: x=1", NULL, {"optim_args"}},
    {"truncation_mode: keep_end", NULL, {"truncation_mode: found 'keep_end'", "keep_start"}},
    {"train_sampling_strategy: group_by_length", NULL, {"random or sequential"}},
    /* YAML itself */
    {"lora_r: 8\nlora_r: 9", NULL, {"job.yaml:5: lora_r: appears twice", "line 4 and line 5"}},
    {"a: [1, 2", NULL, {"job.yaml:", "not YAML"}},
    {"a: b: c", NULL, {"job.yaml:4:5", "not YAML", "is quoted"}},
    {"seed:2\nlora_r: 8",
     NULL,
     {"job.yaml:4:1: not YAML", "a key is followed by a colon and a space"}},
    {"\ttab: 1", NULL, {"job.yaml:4:1", "not YAML", "indent with spaces"}},
    {"{\"text\": \"a\"}\n{}", NULL, {"not YAML", "expected"}},
    {"x: \xff", NULL, {"job.yaml:4:4", "not YAML", "expected a job.yaml in UTF-8"}},
    {"? [a, b]\n: c", NULL, {"job.yaml:4", "a key is a list"}},
    {"rank_pattern: {a: {b: {c: {d: 1}}}}", NULL, {"rank_pattern: found a map"}},
    {"dataset: [[[[[[[[[[[[[[[[d]]]]]]]]]]]]]]]]", NULL, {"nested too deep"}},
    {"seed: \"a\\0b\"", NULL, {"job.yaml:4", "zero byte"}},
    {"...\n---\nseed: 2", NULL, {"second document"}},
    {"seed: *nothing", NULL, {"not YAML", "alias"}},
    {"!just words", NULL, {"job.yaml:1", "key: value"}},
    {"!- a\n- b", NULL, {"job.yaml:1", "key: value"}},
    /* overrides */
    {NULL, "lora_r", {"override lora_r", "key=value"}},
    {NULL, "=8", {"override =8", "key=value"}},
    {NULL, "--lora_r=8", {"expected key=value", "such as lora_r=8"}},
    {NULL, "lora_r=", {"override lora_r=: lora_r: found nothing"}},
    {NULL, "lora_r=eight", {"override lora_r=eight: lora_r: found 'eight'"}},
    {NULL, "rank_pattern={q: 1", {"override rank_pattern={q: 1", "not YAML"}},
    {NULL, "output_dir=\xff\xfe", {"not UTF-8"}},
};

static tsr_status load(const char *text, size_t bytes, const char *override)
{
    tsr_config config;
    tsr_config_source source = {.text = text,
                                .text_bytes = bytes,
                                .name = "job.yaml",
                                .overrides = &override,
                                .override_count = override != NULL};
    tsr_status status = tsr_config_load(&config, &source);
    if (status == TSR_OK)
        tsr_config_free(&config);
    return status;
}

static void expect(const char *message, const char *word, const char *text)
{
    if (!text || !message || !word) /* sanitizers check, and then the compiler wonders */
        fail();
    else if (!strstr(message, word))
        fail_msg("configuration\n%s\ngave\n%s\nwithout '%s'", text, message, word);
}

static void test_each_is_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        tsr_text text = {0};
        const char *lines = table[i].text ? table[i].text : "";
        tsr_text_printf(&text, "%s%s\n", *lines == '!' ? "" : BASE, lines + (*lines == '!'));
        tsr_status status = load(text.data, text.length, table[i].override);
        if (status != TSR_ECONFIG)
            fail_msg("%s %s: status %d, %s", text.data, table[i].override, status,
                     tsr_last_error());
        for (int w = 0; w < 5 && table[i].words[w]; w++)
            expect(tsr_last_error(), table[i].words[w], text.data);
        tsr_text_free(&text);
    }
}

static void test_all_errors_at_once(void **state)
{
    (void)state;
    static const char text[] = "model_name_or_path: a/b\n"
                               "dataset: d.jsonl\n"
                               "lora_r: -1\n"
                               "lerning_rate: 1\n"
                               "fp16: true\n"
                               "packing: true\n"
                               "max_length: null\n"
                               "seed: 1\n"
                               "seed: 2\n";
    assert_int_equal(load(text, 0, "slots=1"), TSR_ECONFIG);
    const char *message = tsr_last_error();
    static const char *const words[] = {
        "8 errors",
        "job.yaml:1: model_name_or_path",
        "job.yaml:3: lora_r",
        "job.yaml:4: no",
        "job.yaml:5: fp16",
        "job.yaml:6: packing",
        "job.yaml:9: seed",
        "override slots=1: slots",
        "output_dir: required",
    };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        expect(message, words[i], text);
    assert_int_equal(strncmp(message, "8 errors", 8), 0);
}

static void test_many_errors_are_counted(void **state)
{
    (void)state;
    tsr_text text = {0};
    for (int i = 0; i < 500; i++)
        tsr_text_printf(&text, "unknown_%d: 1\n", i);
    assert_int_equal(load(text.data, text.length, NULL), TSR_ECONFIG);
    expect(tsr_last_error(), "503 errors", "");
    expect(tsr_last_error(), "and more", "");
    assert_true(strlen(tsr_last_error()) < TSR_ERROR_BYTES - 1);
    tsr_text_free(&text);
}

/* Anchors may be used, but not to grow without bound. */
static void test_anchors_are_bounded(void **state)
{
    (void)state;
    tsr_text text = {0};
    tsr_text_puts(&text, "a: &a [");
    for (int i = 0; i < 3000; i++)
        tsr_text_puts(&text, "x,");
    tsr_text_puts(&text, "x]\nb: [");
    for (int i = 0; i < 3000; i++)
        tsr_text_puts(&text, "*a,");
    tsr_text_puts(&text, "*a]\n");
    assert_int_equal(load(text.data, text.length, NULL), TSR_ECONFIG);
    expect(tsr_last_error(), "more than 10000 values", "");
    static const char cycle[] = "a: &a [*a]\n";
    assert_int_equal(load(cycle, 0, NULL), TSR_ECONFIG);
    tsr_text_free(&text);
}

/* What libyaml takes long for, a megabyte of it, ends at once. */
static void test_shapes_are_bounded(void **state)
{
    (void)state;
    static const struct {
        const char *begin, *piece, *error; /* a # in the piece is its number */
    } shapes[] = {
        {"a: ", "[", "nested too deep"},
        {"a: ", "{b: ", "nested too deep"},
        {"", "- ", "nested too deep"},
        {"", "- &a# 1\n", "more than 10000 values"},
        {"", "&a# k#: 1\n", "more than 10000 values"},
        {"", "%TAG !a#! x\n", "more than 100 lines begin with %"},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        tsr_text text = {0};
        tsr_text_puts(&text, shapes[i].begin);
        for (int j = 0; text.length < 1000000; j++) {
            for (const char *c = shapes[i].piece; *c; c++)
                tsr_text_printf(&text, *c == '#' ? "%d" : "%c", *c == '#' ? j : *c);
        }
        clock_t begin = clock();
        assert_int_equal(load(text.data, text.length, NULL), TSR_ECONFIG);
        double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
        expect(tsr_last_error(), shapes[i].error, "");
        if (seconds > 1)
            fail_msg("a megabyte of %s took %.1f s", shapes[i].piece, seconds);
        tsr_text_free(&text);
    }
}

static void test_files(void **state)
{
    (void)state;
    tsr_config config;
    tsr_config_source source = {.path = TSR_SOURCE_DIR "/no/such/job.yaml"};
    assert_int_equal(tsr_config_load(&config, &source), TSR_ECONFIG);
    expect(tsr_last_error(), "no/such/job.yaml: No such file", "");
    source.path = TSR_SOURCE_DIR;
    assert_int_equal(tsr_config_load(&config, &source), TSR_ECONFIG);
    expect(tsr_last_error(), "directory", "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_is_refused),         cmocka_unit_test(test_all_errors_at_once),
        cmocka_unit_test(test_many_errors_are_counted), cmocka_unit_test(test_anchors_are_bounded),
        cmocka_unit_test(test_shapes_are_bounded),      cmocka_unit_test(test_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
