/*
 * Files of axolotl, LLaMA-Factory and TRL as job.yaml: which key becomes which, with which value, and what is refused
 * where.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "config/peers.h"
#include "config/translate_case.h"
#include "support/scratch.h"

#define AXOLOTL "base_model: m\nadapter: lora\noutput_dir: o\n"
#define SETS    "datasets: [{path: d.jsonl, type: alpaca}]\n"
#define FACTORY "model_name_or_path: m\nstage: sft\nfinetuning_type: lora\noutput_dir: o\n"
#define NAMES   "dataset: mine.jsonl\n"

static void test_axolotl(void **state)
{
    (void)state;
    static const expected cases[] = {
        {AXOLOTL SETS,
         NULL,
         {"a file of axolotl", "model_name_or_path: m  # base_model",
          "\ndataset: d.jsonl  # datasets\n", "dataset_format: alpaca",
          "load_in_4bit: false  # default (axolotl)", "max_length: 512  # default (axolotl)"}},
        {AXOLOTL SETS,
         NULL,
         {"truncation: drop", "lr_scheduler_type: cosine", "warmup_steps: 0.03",
          "lora_target_modules: null", "!eval_", "!save_"}},
        {AXOLOTL SETS
         "load_in_4bit: true\nwarmup_ratio: 0.1\nsequence_len: 64\nlr_scheduler: linear\n",
         NULL,
         {"load_in_4bit: true\n", "warmup_steps: 0.1  # warmup_ratio",
          "max_length: 64  # sequence_len", "lr_scheduler_type: linear  # lr_scheduler", "!0.03"}},
        /* one name with us, and an older one */
        {AXOLOTL SETS "context_parallel_size: 4\n", NULL, {"\ncontext_parallel_size: 4\n"}},
        {AXOLOTL SETS "sequence_parallel_degree: 2\ncontext_parallel_size:\n",
         NULL,
         {"context_parallel_size: 2  # sequence_parallel_degree"}},
        /* null is "not given" */
        {AXOLOTL SETS
         "warmup_steps:\nlora_target_linear:\nlora_model_dir:\nwandb_project:\nmax_steps:\n",
         NULL,
         {"warmup_steps: 0.03", "!init_adapter", "!wandb", "!max_steps"}},
        {AXOLOTL SETS "lora_target_linear: true\nlora_target_modules: [q_proj]\n",
         NULL,
         {"lora_target_modules: all-linear  # lora_target_linear", "!q_proj"}},
        {AXOLOTL SETS "lora_target_linear: false\nlora_target_modules: [q_proj]\n",
         NULL,
         {"lora_target_modules: [q_proj]\n"}},
        /* experts */
        {AXOLOTL SETS "lora_target_parameters: [mlp.experts.down_proj]\nuse_scattermoe: true\n"
                      "model_config: {output_router_logits: true, router_aux_loss_coef: 0.02}\n",
         NULL,
         {"lora_target_parameters: [mlp.experts.down_proj]\n",
          "router_aux_loss_coef: 0.02  # model_config", "#   use_scattermoe"}},
        {AXOLOTL SETS "overrides_of_model_config: {router_aux_loss_coef: 0.02}\n",
         NULL,
         {"!router_aux_loss_coef: 0.02", "no effect without output_router_logits"}},
        {AXOLOTL SETS "model_config: {}\n", NULL, {"!router_aux_loss_coef"}},
        /* times an epoch */
        {AXOLOTL SETS "val_set_size: 0.1\nevals_per_epoch: 4\nsaves_per_epoch: 1\nnum_epochs: 2\n",
         NULL,
         {"validation_split: 0.1  # val_set_size", "eval_strategy: steps", "eval_steps: 0.125",
          "save_strategy: steps", "save_steps: 0.5"}},
        {AXOLOTL SETS "val_set_size: 0.1\nevals_per_epoch: 1\nsaves_per_epoch: 0\n",
         NULL,
         {"eval_strategy: epoch", "!eval_steps", "save_strategy: no", "!save_steps"}},
        {AXOLOTL SETS "val_set_size: 0.0\nevals_per_epoch: 4\neval_steps: 10\n",
         NULL,
         {"!validation_split", "!eval_strategy", "#   evals_per_epoch: 4  (no val_set_size",
          "#   eval_steps: 10"}},
        /* an override of theirs, with what depends on it; of ours */
        {AXOLOTL SETS "saves_per_epoch: 1\nnum_epochs: 2\nmicro_batch_size: 2\n",
         "num_epochs=4",
         {"num_train_epochs: 4", "save_steps: 0.25", "!num_train_epochs: 2"}},
        {AXOLOTL SETS "micro_batch_size: 2\n",
         "per_device_train_batch_size=8",
         {"per_device_train_batch_size: 8", "!per_device_train_batch_size: 2"}},
        {AXOLOTL SETS, "max_length=128", {"max_length: 128", "!512"}},
        {AXOLOTL SETS "optimizer: paged_adamw_8bit\n",
         NULL,
         {"optim: paged_adamw_8bit  # optimizer", "!32-bit"}},
        {AXOLOTL SETS "optimizer: ao_adamw_8bit\n",
         NULL,
         {"optim: adamw_torch  # optimizer",
          "# Not as there:", "ao_adamw_8bit is AdamW with 32-bit"}},
        {AXOLOTL SETS "optimizer: adamw_torch_fused\n",
         NULL,
         {"optim: adamw_torch_fused", "!fused is AdamW"}},
        {AXOLOTL SETS "optimizer: lion\n", NULL, {"optim: lion"}}, /* which the reader refuses */
        {AXOLOTL SETS "chat_template: llama3\n", NULL, {"chat_template: llama3\n"}},
        {AXOLOTL SETS "chat_template: qwen3\n",
         NULL,
         {"chat_template: tokenizer_default", "qwen3 is the model's own template"}},
        {AXOLOTL SETS "chat_template: jinja\nchat_template_jinja: chat.jinja\n",
         NULL,
         {"chat_template: chat.jinja", "!chat_template: jinja"}},
        {AXOLOTL SETS "cosine_min_lr_ratio: 0.1\n",
         NULL,
         {"lr_scheduler_type: cosine_with_min_lr", "!default (axolotl)\nlr_scheduler_type"}},
        {AXOLOTL SETS "cosine_min_lr_ratio: 0.1\nlr_scheduler: cosine\n",
         NULL,
         {"lr_scheduler_type: cosine_with_min_lr", "lr_scheduler_kwargs: {min_lr_rate: 0.1}"}},
        {AXOLOTL SETS "gradient_checkpointing: offload\n",
         NULL,
         {"gradient_checkpointing: true", "activation_offloading: true"}},
        {AXOLOTL SETS "bf16: true\ntf32: true\n", NULL, {"dtype: auto  # bf16", "#   tf32: true"}},
        {AXOLOTL SETS "bf16: false\n", NULL, {"dtype: float32"}},
        {AXOLOTL SETS "special_tokens: {pad_token: <pad>, eos_token: </s>, bos_token: null}\n",
         NULL,
         {"eos_token: \"</s>\"  # special_tokens", "!bos_token", "!pad_token"}},
        {AXOLOTL SETS "special_tokens: {bos_token: <s>}\n",
         NULL,
         {"special_tokens: {bos_token: \"<s>\"}"}},
        {AXOLOTL SETS "bnb_config_kwargs: {bnb_4bit_use_double_quant: false}\n",
         NULL,
         {"use_bnb_nested_quant: false  # bnb_config_kwargs"}},
        {AXOLOTL SETS
         "dataset_prepared_path: last\nplugins: [axolotl.integrations.liger.LigerPlugin]\n",
         NULL,
         {"plugins: [axolotl.integrations.liger.LigerPlugin]", "!\nplugins"}},
        {AXOLOTL SETS "default_system_message: Be brief.\n",
         NULL,
         {"default_system: \"Be brief.\"  # default_system_message"}},
        {AXOLOTL SETS "train_on_inputs: false\nfsdp: [full_shard]\nfsdp_config: {a: {b: c}}\n",
         NULL,
         {"!\ntrain_on_inputs", "#   fsdp: [full_shard]  (sharding is built in)", "{a: {b: c}}"}},
    };
    check_each(cases, COUNT(cases));
}

static void test_axolotl_data(void **state)
{
    (void)state;
    static const expected cases[] = {
        {AXOLOTL "datasets:\n  - path: a.jsonl\n    type: chat_template\n  - path: b.jsonl\n    "
                 "type: chat_template\n",
         NULL,
         {"dataset: [a.jsonl, b.jsonl]", "dataset_format: messages"}},
        {AXOLOTL
         "datasets: [{path: a.jsonl, type: alpaca}, {path: b.jsonl, type: chat_template}]\n",
         NULL,
         {"dataset:  # datasets\n  - path: a.jsonl\n    format: alpaca\n  - path: b.jsonl\n    "
          "format: messages\n",
          "!dataset_format"}},
        {AXOLOTL "datasets: [{path: a.jsonl, type: chat_template, field_messages: conversations, "
                 "message_property_mappings: {role: from, content: value}}]\n",
         NULL,
         {"dataset: a.jsonl", "dataset_format: sharegpt", "!field_messages"}},
        {AXOLOTL "datasets: [{path: a.jsonl, type: chat_template, field_messages: turns, "
                 "message_property_mappings: {role: who, content: what}, roles: {user: [asker]}, "
                 "split: 'train[:10%]', roles_to_train: [assistant], train_on_eos: last}]\n",
         NULL,
         {"train_on_eot: last"}},
        {AXOLOTL "datasets: [{path: a.jsonl, type: chat_template, roles_to_train: [human, gpt], "
                 "train_on_eos: all, train_on_eot: none, drop_system_message: true}, "
                 "{path: b.jsonl, type: input_output, drop_system_message: false}]\n",
         NULL,
         {"roles_to_train: [human, gpt]", "train_on_eot: none", "!train_on_eos", "!: all",
          "format: input_output\n"}},
        {AXOLOTL
         "datasets: [{path: a.jsonl, type: chat_template, message_field_training: train}]\n",
         NULL,
         {"dataset: a.jsonl", "!message_property_mappings"}},
        {AXOLOTL "datasets: [{path: a.jsonl, type: chat_template, message_field_training: learn, "
                 "field_thinking: thoughts}]\n",
         NULL,
         {"message_property_mappings: {training: learn, reasoning_content: thoughts}"}},
        {AXOLOTL "datasets: [{path: a.jsonl, type: chat_template, message_field_training: learn, "
                 "field_messages: conversations, message_field_role: from, "
                 "message_field_content: value}]\n",
         NULL,
         {"field_messages: conversations",
          "message_property_mappings: {role: from, content: value, training: learn}"}},
        {AXOLOTL "datasets: [{path: a.jsonl, type: chat_template, drop_system_message: true}]\n",
         NULL,
         {"drop_system: true"}},
        {AXOLOTL "datasets: [{path: a.jsonl, type: chat_template, field_messages: turns, "
                 "message_property_mappings: {role: who, content: what}, roles: {user: [asker]}, "
                 "split: 'train[:10%]', roles_to_train: [assistant], train_on_eos: last}]\n",
         NULL,
         {"field_messages: turns", "message_property_mappings: {role: who, content: what}",
          "roles: {user: [asker]}", "split: \"train[:10%]\"", "!roles_to_train",
          "train_on_eot: last"}},
        {AXOLOTL "datasets: [{path: c.jsonl, type: completion, field: body, split: train}]\n",
         NULL,
         {"dataset: c.jsonl", "dataset_format: text", "dataset_text_field: body", "!split"}},
        {AXOLOTL
         "datasets: [{path: json, data_files: [x.jsonl, y.jsonl], type: alpaca, ds_type: json}]\n",
         NULL,
         {"dataset: [x.jsonl, y.jsonl]"}},
        {AXOLOTL "datasets: [{path: folder, data_files: x.jsonl, type: alpaca}]\n",
         NULL,
         {"dataset: folder/x.jsonl"}},
        {AXOLOTL SETS "test_datasets: [{path: e.jsonl, type: alpaca}]\neval_steps: 5\n",
         NULL,
         {"eval_dataset: e.jsonl  # test_datasets", "eval_steps: 5"}},
        {AXOLOTL SETS "test_datasets: [{path: e.jsonl, type: chat_template}]\n",
         NULL,
         {"dataset_format: alpaca",
          "eval_dataset:  # test_datasets\n  - path: e.jsonl\n    format: messages"}},
        {AXOLOTL "datasets: [{path: a.jsonl, type: chat_template, chat_template: chatml}]\n",
         NULL,
         {"- path: a.jsonl", "chat_template: chatml"}},
        {AXOLOTL "sequence_len: 8\npretraining_dataset: [{path: p.jsonl, text_column: body}]\n",
         NULL,
         {"dataset: p.jsonl  # pretraining_dataset", "dataset_format: text",
          "dataset_text_field: body"}},
    };
    static const expected refused[] = {
        {AXOLOTL "datasets: [{path: a.jsonl, type: {format: '{instruction}'}}]\n",
         NULL,
         {"their.yaml:4: datasets: found a map", "a prompt of its own", "completion"}},
        {AXOLOTL "datasets:\n  - path: a.jsonl\n    type: alpaca:phi\n",
         NULL,
         {"their.yaml:6: datasets: found 'alpaca:phi'", "expected alpaca, chat_template"}},
        {AXOLOTL "datasets:\n  - type: alpaca\n", NULL, {"expected a path"}},
        {AXOLOTL "datasets: a.jsonl\n", NULL, {"found 'a.jsonl'", "a list of maps"}},
        {AXOLOTL "datasets: [{path: a, type: alpaca, colour: red}]\n",
         NULL,
         {"found 'colour'", "no such member"}},
        {AXOLOTL "datasets: [{path: a, type: chat_template, input_transform: x}]\n",
         NULL,
         {"input_transform: rewrite"}},
    };
    check_each(cases, COUNT(cases));
    check_refused(refused, COUNT(refused));
}

static void test_axolotl_refused(void **state)
{
    (void)state;
    static const expected cases[] = {
        {AXOLOTL SETS "rl: grpo\n",
         NULL,
         {"their.yaml:5: rl: found 'grpo'", "expected dpo, ipo, orpo, kto or simpo", "!alpaca"}},
        {AXOLOTL SETS "overrides_of_model_config: {rope_theta: 1e6}\n",
         NULL,
         {"their.yaml:5: overrides_of_model_config: found 'rope_theta'", "config.json decides",
          "router_aux_loss_coef"}},
        {AXOLOTL SETS "model_config: {output_router_logits: true}\n",
         NULL,
         {"model_config: found 'true'", "write router_aux_loss_coef beside it"}},
        {AXOLOTL SETS "model_config: big\n", NULL, {"found 'big'", "expected a map"}},
        {AXOLOTL SETS "relora: true\n", NULL, {"ReLoRA is not in this version"}},
        {AXOLOTL SETS "peft: {loftq_config: {loftq_bits: 4}}\n",
         NULL,
         {"LoftQ is not in this version"}},
        {"base_model: m\nadapter: llama-adapter\n" SETS,
         NULL,
         {"adapter: found 'llama-adapter'", "qlora"}},
        {AXOLOTL SETS "fp16: true\n", NULL, {"fp16: found 'true'", "bfloat16"}},
        {AXOLOTL SETS "chat_template: nonesuch\n", NULL, {"found 'nonesuch'", "docs/data.md"}},
        {AXOLOTL SETS "chat_template_jinja: '{{ x }}'\n", NULL, {"a template is read from a file"}},
        {AXOLOTL SETS "plugins: [my.own.Plugin]\n", NULL, {"found 'my.own.Plugin'"}},
        {AXOLOTL SETS "sequnce_len: 8\n",
         NULL,
         {"their.yaml:5: no key 'sequnce_len'", "sequence_len?"}},
        {AXOLOTL SETS, "micro_batch_siz=8", {"override micro_batch_siz=8", "micro_batch_size?"}},
    };
    check_refused(cases, COUNT(cases));
}

static void write_info(const char *text)
{
    FILE *file = fopen("dataset_info.json", "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static void test_llamafactory(void **state)
{
    (void)state;
    static const expected cases[] = {
        {FACTORY NAMES,
         NULL,
         {"a file of LLaMA-Factory", "dataset: mine.jsonl\n", "load_in_4bit: false  # default",
          "lora_r: 8  # default", "lora_alpha: 16  # default", "learning_rate: 5e-5"}},
        {FACTORY NAMES,
         NULL,
         {"num_train_epochs: 3", "per_device_train_batch_size: 8", "truncation: right"}},
        {FACTORY NAMES
         "lora_rank: 4\nlora_target: all\nquantization_bit: 4\ndouble_quantization: false\n",
         NULL,
         {"lora_r: 4  # lora_rank", "lora_alpha: 8  # lora_rank", "lora_target_modules: all-linear",
          "load_in_4bit: true  # quantization_bit", "use_bnb_nested_quant: false"}},
        {FACTORY NAMES "lora_rank: 4\nlora_alpha: 5\nlora_target: q_proj,v_proj\n",
         NULL,
         {"lora_alpha: 5", "!lora_alpha: 8", "lora_target_modules: [q_proj, v_proj]"}},
        {FACTORY NAMES "lora_target: q_proj\nadditional_target: embed_tokens,lm_head\n",
         NULL,
         {"lora_target_modules: [q_proj]", "modules_to_save: [embed_tokens, lm_head]"}},
        {FACTORY NAMES "neat_packing: true\npacking: false\n",
         NULL,
         {"packing: true  # neat_packing", "!packing: false"}},
        {FACTORY NAMES "packing: true\n", NULL, {"packing: true\n", "as with neat_packing"}},
        {FACTORY NAMES "moe_aux_loss_coef: 0.001\n",
         NULL,
         {"router_aux_loss_coef: 0.001  # moe_aux_loss_coef"}},
        {FACTORY NAMES "pissa_init: true\n", NULL, {"init_lora_weights: pissa_niter_16"}},
        {FACTORY NAMES "pissa_init: true\npissa_iter: -1\n",
         NULL,
         {"init_lora_weights: pissa  # pissa_init"}},
        {FACTORY NAMES "val_size: 0.1\nmax_samples: 100\ncutoff_len: 64\n",
         NULL,
         {"validation_split: 0.1", "max_train_samples: 100  # dataset",
          "max_length: 64  # cutoff_len"}},
        {FACTORY NAMES "train_on_prompt: true\nplot_loss: true\nflash_attn: fa2\n",
         NULL,
         {"train_on_inputs: true", "#   plot_loss: true  (`tessera inspect",
          "#   flash_attn: fa2"}},
        {FACTORY NAMES "ddp_timeout: 180000000\nbf16: true\n",
         NULL,
         {"#   ddp_timeout: 180000000  (ranks wait", "dtype: auto"}},
        {FACTORY NAMES "ddp_timeout: 600\n", NULL, {"ddp_timeout: 600\n"}},
        {FACTORY NAMES "template: qwen3_nothink\n", NULL, {"chat_template: chatml  # template"}},
        {FACTORY NAMES "template: glm4\n",
         NULL,
         {"chat_template: tokenizer_default", "glm4 is the model's own template"}},
        /* names of dataset_info.json */
        {FACTORY "dataset: plain,chats\ndataset_dir: .\ntemplate: llama3\nmax_samples: 9\n",
         NULL,
         {"- path: \"./p.json\"\n    format: alpaca\n    chat_template: llama3\n    samples: 9\n",
          "- path: \"./c.json\"\n    format: sharegpt\n    samples: 9\n"}},
        {FACTORY "dataset: [columns]\ndataset_dir: .\n",
         NULL,
         {"field_instruction: q", "field_output: a", "field_system: s", "field_history: before",
          "chat_template: tokenizer_default", "split: part"}},
        {FACTORY "dataset: [columns]\ndataset_dir: .\ndefault_system: Short\n",
         NULL,
         {"samples: 3", "default_system: Short"}},
        {FACTORY "dataset: tags\ndataset_dir: .\n",
         NULL,
         {"format: messages", "!field_messages",
          "message_property_mappings: {role: role, content: text}", "roles: {user: [asker]}",
          "!assistant:"}},
        {FACTORY "dataset: openai\ndataset_dir: .\n",
         NULL,
         {"dataset: \"./o.json\"", "dataset_format: messages"}},
        {"model_name_or_path: m\nstage: pt\nfinetuning_type: lora\ndataset: web\ndataset_dir: .\n",
         NULL,
         {"dataset: \"./w.json\"", "dataset_format: text", "dataset_text_field: body",
          "output_dir: trainer_output  # default", "packing: true  # stage",
          "not cut into several rows"}},
        {FACTORY "dataset: plain,chats\ndataset_dir: .\nmix_strategy: "
                 "interleave_under\ninterleave_probs: 0.7,0.3\n",
         NULL,
         {"dataset_mixing: interleave", "weight: 0.7", "weight: 0.3"}},
        {FACTORY NAMES "eval_dataset: chats\ndataset_dir: .\n",
         NULL,
         {"eval_dataset: \"./c.json\"", "dataset_format: sharegpt"}},
    };
    static const expected refused[] = {
        {FACTORY "dataset: nonesuch\ndataset_dir: .\n",
         NULL,
         {"their.yaml:5: dataset: found 'nonesuch'", "./dataset_info.json has no such data set"}},
        {FACTORY "dataset: hub\ndataset_dir: .\n",
         NULL,
         {"hf download --repo-type dataset someone/rows --local-dir ./hub", "file_name"}},
        {FACTORY "dataset: pairs\ndataset_dir: .\n",
         NULL,
         {"it has preferences: write stage: dpo"}},
        {FACTORY "dataset: pictures\ndataset_dir: .\n",
         NULL,
         {"column \"images\"", "rows are text"}},
        {FACTORY "dataset: mine\ndataset_dir: elsewhere\n",
         NULL,
         {"dataset_dir", "elsewhere/dataset_info.json"}},
        {FACTORY "dataset: mine\ndataset_dir: REMOTE:a/b\n",
         NULL,
         {"hf download --repo-type dataset a/b"}},
        {FACTORY NAMES "quantization_bit: 3\n",
         NULL,
         {"quantization_bit: found '3'", "NF4 (write 4), int8 (8)"}},
        {FACTORY NAMES "template: nonesuch\n",
         NULL,
         {"template: found 'nonesuch'", "chat_template:"}},
        {FACTORY NAMES "mask_history: true\n",
         NULL,
         {"mask_history: found 'true'", "\"weight\": 0"}},
        {FACTORY NAMES "mix_strategy: interleave_over\n", NULL, {"found 'interleave_over'"}},
        {"model_name_or_path: m\nstage: rm\nfinetuning_type: full\n" NAMES,
         NULL,
         {"2 errors", "stage: found 'rm'", "finetuning_type: found 'full'"}},
        {FACTORY NAMES "lora_rnak: 8\n", NULL, {"no key 'lora_rnak'", "lora_rank?"}},
    };
    char back[4096];
    assert_non_null(getcwd(back, sizeof back));
    assert_int_equal(chdir(scratch_path("")), 0);
    write_info(
        "{\"plain\": {\"file_name\": \"p.json\"}, "
        "\"chats\": {\"file_name\": \"c.json\", \"formatting\": \"sharegpt\"}, "
        "\"columns\": {\"file_name\": \"k.json\", \"split\": \"part\", \"num_samples\": 3, "
        "\"columns\": {\"prompt\": \"q\", \"response\": \"a\", \"system\": \"s\", \"history\": "
        "\"before\"}}, "
        "\"tags\": {\"file_name\": \"t.json\", \"formatting\": \"sharegpt\", "
        "\"columns\": {\"messages\": \"messages\"}, \"tags\": {\"role_tag\": \"role\", "
        "\"content_tag\": \"text\", \"user_tag\": \"asker\", \"assistant_tag\": \"assistant\"}}, "
        "\"openai\": {\"file_name\": \"o.json\", \"formatting\": \"openai\", "
        "\"columns\": {\"messages\": \"messages\"}, "
        "\"tags\": {\"role_tag\": \"role\", \"content_tag\": \"content\"}}, "
        "\"web\": {\"file_name\": \"w.json\", \"columns\": {\"prompt\": \"body\"}}, "
        "\"hub\": {\"hf_hub_url\": \"someone/rows\"}, "
        "\"pairs\": {\"file_name\": \"d.json\", \"ranking\": true}, "
        "\"pictures\": {\"file_name\": \"i.json\", \"columns\": {\"images\": \"images\"}}}\n");
    check_each(cases, COUNT(cases));
    check_refused(refused, COUNT(refused));
    assert_int_equal(chdir(back), 0);
}

static void test_trl(void **state)
{
    (void)state;
    static const expected cases[] = {
        {"model_name_or_path: m\ndataset_name: d.jsonl\nreport_to: wandb\npush_to_hub: true\n",
         NULL,
         {"a file of TRL", "dataset: d.jsonl  # dataset_name",
          "output_dir: trainer_output  # default (TRL)", "report_to: none",
          "wandb is not written to", "#   push_to_hub: true  (nothing is sent"}},
        {"model_name_or_path: m\noutput_dir: o\ndatasets:\n  - path: a.jsonl\n  - path: b.jsonl\n",
         NULL,
         {"dataset: [a.jsonl, b.jsonl]  # datasets"}},
        {"model_name_or_path: m\ndatasets: [{path: a, fraction: 0.3}, {path: b, fraction: 0.7}]\n",
         NULL,
         {"- path: a\n    weight: 0.3"}},
        {"model_name_or_path: m\ndataset_name: d.jsonl\nreport_to: [tensorboard, wandb]\n",
         NULL,
         {"report_to: [tensorboard]"}},
        {"model_name_or_path: m\ndataset_name: d.jsonl\noptim: adamw_8bit\nnum_processes: 4\n",
         NULL,
         {"optim: adamw_8bit", "!32-bit", "launch/run -n 4"}},
        {"model_name_or_path: m\ndataset_name: d.jsonl\n"
         "parallelism_config: {cp_size: 2, dp_shard_size: 4, tp_size: 1, cp_backend: torch}\n",
         NULL,
         {"context_parallel_size: 2  # parallelism_config"}},
        {"model_name_or_path: m\ndataset_name: d.jsonl\nparallelism_config:\n"
         "  parallelism_config_sp_size: 8\n  parallelism_config_dp_replicate_size: 2\n",
         NULL,
         {"context_parallel_size: 8  # parallelism_config"}},
        {"model_name_or_path: m\ndataset_name: d.jsonl\nparallelism_config: {dp_shard_size: 8}\n",
         NULL,
         {"!context_parallel_size", "(sharding is built in)"}},
        /* a job.yaml of ours stays what it is */
        {"model_name_or_path: m\ndataset: d.jsonl\noutput_dir: o\nbf16: false\n",
         NULL,
         {"their.yaml, a job.yaml", "dtype: float32  # bf16", "!default"}},
    };
    static const expected refused[] = {
        /* one foreign key makes no foreign file */
        {"model_name_or_path: m\ndataset: d.jsonl\noutput_dir: o\nmicro_batch_size: 2\n",
         NULL,
         {"no key 'micro_batch_size'", "per_device_train_batch_size?"}},
        {"model_name_or_path: m\ndataset: d.jsonl\noutput_dir: o\ntemplate: llama3\n",
         NULL,
         {"no key 'template'", "chat_template?"}},
        {"datasets: [{name: x}]\n", NULL, {"expected a path"}},
        {"dataset_name: d\nparallelism_config: {tp_size: 2}\n", NULL, {"found 'tp_size'"}},
        {"dataset_name: d\nparallelism_config: {cp_size: 2, sp_size: 2}\n",
         NULL,
         {"found 'sp_size'"}},
        {"dataset_name: d\nparallelism_config: 2\n", NULL, {"found '2'", "cp_size"}},
        {"datasets: [{path: x, data_dir: y}]\n", NULL, {"found 'data_dir'"}},
    };
    check_each(cases, COUNT(cases));
    check_refused(refused, COUNT(refused));
}

static bool has_note(const tsr_config *config, const char *words)
{
    for (int i = 0; i < config->notes.count; i++)
        if (strstr(config->notes.items[i], words))
            return true;
    return false;
}

/* What a load says of it, and that an override of another layer wins. */
static void test_loaded(void **state)
{
    (void)state;
    static const char *const overrides[] = {"micro_batch_size=3", "output_dir=elsewhere"};
    tsr_config c;
    const tsr_config_source source = {.text = AXOLOTL SETS
                                      "micro_batch_size: 2\ntf32: true\noptimizer: adamw_8bit\n",
                                      .name = "their.yaml",
                                      .overrides = overrides,
                                      .override_count = 2};
    if (tsr_config_load(&c, &source) < 0)
        fail_msg("%s", tsr_last_error());
    assert_int_equal(c.per_device_train_batch_size, 3);
    assert_string_equal(c.output_dir, "elsewhere");
    assert_string_equal(tsr_config_where(&c, "per_device_train_batch_size"),
                        "override micro_batch_size=3");
    assert_string_equal(tsr_config_where(&c, "model_name_or_path"), "their.yaml:1");
    assert_false(c.load_in_4bit);
    assert_false(tsr_config_is_set(&c, "load_in_4bit"));
    assert_true(has_note(&c, "a file of axolotl: 5 keys translated"));
    assert_true(has_note(&c, "defaults taken: load_in_4bit false, max_length 512"));
    assert_true(has_note(&c, "without effect here: tf32"));
    assert_true(has_note(&c, "not as in axolotl: "));
    assert_false(has_note(&c, "differ from TRL"));
    tsr_config_free(&c);
    /* their names in what the check of the whole says */
    const tsr_config_source hub = {.text = "base_model: owner/model\nadapter: lora\noutput_dir: o\n"
                                           "datasets: [{path: owner/rows, type: alpaca}]\n",
                                   .name = "their.yaml"};
    assert_int_equal(tsr_config_load(&c, &hub), TSR_ECONFIG);
    assert_non_null(strstr(tsr_last_error(), "their.yaml:1: base_model: found 'owner/model'"));
    assert_non_null(strstr(tsr_last_error(), "then write base_model: model"));
    assert_non_null(strstr(tsr_last_error(), "their.yaml:4: path: found 'owner/rows'"));
    /* and in the message about our key */
    const tsr_config_source wrong = {.text = AXOLOTL SETS "micro_batch_size: none\n",
                                     .name = "their.yaml"};
    assert_int_equal(tsr_config_load(&c, &wrong), TSR_ECONFIG);
    assert_non_null(
        strstr(tsr_last_error(), "their.yaml:5: micro_batch_size: found 'none'; expected a whole"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_axolotl),
        cmocka_unit_test(test_axolotl_data),
        cmocka_unit_test(test_axolotl_refused),
        cmocka_unit_test(test_llamafactory),
        cmocka_unit_test(test_trl),
        cmocka_unit_test(test_loaded),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
