/*
 * Files of axolotl and LLaMA-Factory that train on preferences: the objective, the loss and the rows that they become, and
 * what is refused because it means something else there. What is translated loads, and has the values of the file itself.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "config/translate_case.h"
#include "support/scratch.h"

#define AXOLOTL "base_model: m\nadapter: lora\noutput_dir: o\nlearning_rate: 1e-5\n"
#define SETS    "datasets: [{path: d.jsonl}]\n"
#define FACTORY "model_name_or_path: m\nfinetuning_type: lora\noutput_dir: o\n"
#define NAMES   "dataset: mine.jsonl\n"

static void check_loads(const expected *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        tsr_text text = {0};
        tsr_config own, again;
        const tsr_config_source theirs = {.text = cases[i].text,
                                          .name = "their.yaml",
                                          .overrides = &cases[i].override,
                                          .override_count = cases[i].override != NULL};
        assert_int_equal(translate(&text, cases[i].text, cases[i].override), TSR_OK);
        const tsr_config_source ours = {.text = tsr_text_string(&text), .name = "job.yaml"};
        if (tsr_config_load(&own, &theirs) < 0 || tsr_config_load(&again, &ours) < 0)
            fail_msg("%s\n%s\n%s", cases[i].text, tsr_text_string(&text), tsr_last_error());
        assert_true(own.objective.kind != TSR_OBJECTIVE_SFT);
        if (tsr_config_hash(&own) != tsr_config_hash(&again))
            fail_msg("%s\nhas other values than\n%s", cases[i].text, tsr_text_string(&text));
        tsr_config_free(&own);
        tsr_config_free(&again);
        tsr_text_free(&text);
    }
}

static void check_good(const expected *cases, size_t count)
{
    check_each(cases, count);
    check_loads(cases, count);
}

static void test_axolotl_losses(void **state)
{
    (void)state;
    static const expected cases[] = {
        {AXOLOTL SETS "rl: dpo\nrl_beta: 0.2\ndpo_label_smoothing: 0\n",
         NULL,
         {"objective: dpo  # rl\n", "beta: 0.2  # rl_beta", "dataset_format: preference",
          "!loss_type", "!label_smoothing: 0  #", "learning_rate: 1e-5"}},
        {AXOLOTL SETS "rl: dpo\ndpo_loss_type: [robust, sft]\ndpo_loss_weights: [1, 0.5]\n"
                      "dpo_label_smoothing: 0.1\ndpo_use_weighting: true\nrl_beta: null\n",
         NULL,
         {"loss_type: [robust, sft]  # dpo_loss_type", "loss_weights: [1, 0.5]  # dpo_loss_weights",
          "label_smoothing: 0.1", "!beta", "use_weighting: true  # dpo_use_weighting"}},
        {AXOLOTL SETS "rl: ipo\ndpo_beta: 0.3\ndpo_label_smoothing: 0.1\n",
         NULL,
         {"objective: dpo  # rl", "loss_type: ipo  # rl", "beta: 0.3  # dpo_beta",
          "#   dpo_label_smoothing: 0.1  (it belongs to rl: dpo)"}},
        {AXOLOTL SETS "rl: orpo\norpo_alpha: 0.4\nrpo_alpha:\n",
         NULL,
         {"objective: orpo", "beta: 0.4  # orpo_alpha", "!rpo_alpha: "}},
        {AXOLOTL SETS "rl: orpo\norpo_alpha: 0.4\ntrl: {beta: 0.5}\nrl_beta: 0.5\n",
         NULL,
         {"beta: 0.5  # trl", "#   orpo_alpha: 0.4  (another key gives beta)",
          "#   rl_beta: 0.5  (another key gives beta)", "!beta: 0.4"}},
        {AXOLOTL SETS "rl: kto\nmicro_batch_size: 2\nkto_desirable_weight: 0.2\n"
                      "kto_undesirable_weight: 0\ncpo_alpha: 0.3\n",
         NULL,
         {"objective: kto", "dataset_format: unpaired", "desirable_weight: 0.2",
          "#   kto_undesirable_weight: 0  (0 is", "#   cpo_alpha: 0.3  (it belongs to rl: simpo)"}},
        {AXOLOTL SETS "rl: kto\n", "micro_batch_size=4", {"objective: kto"}},
        {AXOLOTL SETS "rl: simpo\nrl_beta: 2\nsimpo_gamma: 1\ncpo_alpha: 0.05\nlora_model_dir: a\n",
         NULL,
         {"objective: cpo  # rl", "loss_type: simpo  # rl", "beta: 2", "simpo_gamma: 1",
          "cpo_alpha: 0.05", "init_adapter: a"}},
        {AXOLOTL SETS
         "rl: dpo\nsample_packing: false\nprecompute_ref_log_probs: true\n"
         "dpo_padding_free: true\nmax_prompt_len: 9\nexcess_length_strategy: truncate\n",
         NULL,
         {"packing: false", "#   dpo_padding_free: true", "#   precompute_ref_log_probs: true",
          "#   max_prompt_len: 9", "truncation: right"}},
    };
    static const expected refused[] = {
        {AXOLOTL SETS "rl: gdpo\ntrl: {beta: 0.1}\n",
         NULL,
         {"their.yaml:6: rl: found 'gdpo'", "expected dpo, ipo, orpo, kto or simpo", "!type"}},
        {AXOLOTL SETS "rl: kto\n", NULL, {"rl: found 'kto'", "write micro_batch_size: 2"}},
        {AXOLOTL SETS "rl: ipo\ndpo_loss_type: [hinge]\n",
         NULL,
         {"dpo_loss_type: found", "it belongs to rl: dpo"}},
        {AXOLOTL SETS "rl: dpo\nrpo_alpha: 0.2\n",
         NULL,
         {"rpo_alpha: found '0.2'", "dpo_loss_type: [sigmoid, sft]"}},
        {AXOLOTL SETS "rl: dpo\ndpo_norm_loss: true\n",
         NULL,
         {"dpo_norm_loss: found 'true'", "[sigmoid_norm]"}},
        {AXOLOTL SETS "rl: dpo\nsample_packing: true\n",
         NULL,
         {"sample_packing: found 'true'", "rl packs no rows"}},
        {AXOLOTL SETS "rl: dpo\nlora_model_dir: a\n",
         NULL,
         {"lora_model_dir: found 'a'", "write init_adapter"}},
        {AXOLOTL SETS "rl: dpo\nreward_model: true\n", NULL, {"reward_model: found 'true'"}},
        {AXOLOTL SETS "rl: dpo\ndpo_beat: 1\n", NULL, {"no key 'dpo_beat'", "dpo_beta?"}},
    };
    check_good(cases, COUNT(cases));
    check_refused(refused, COUNT(refused));
}

#define DPO(set)  AXOLOTL "rl: dpo\nchat_template: gemma\ndatasets: [{path: d.jsonl, " set "}]\n"
#define KTO(set)  AXOLOTL "rl: kto\nmicro_batch_size: 2\ndatasets: [{path: d.jsonl, " set "}]\n"
#define ORPO(set) AXOLOTL "rl: orpo\ndatasets: [{path: d.jsonl, " set "}]\n"

static void test_axolotl_rows(void **state)
{
    (void)state;
    static const expected cases[] = {
        {DPO("type: chat_template.default, field_messages: conversation, field_chosen: good, "
             "message_property_mappings: {role: from, content: value}, "
             "roles: {user: [human], assistant: [gpt]}, split: train"),
         NULL,
         {"format: preference\n    field_chosen: good\n    message_property_mappings: {role: "
          "from, content: value}\n    field_prompt: conversation\n    chat_template: gemma",
          "roles: {user: [human], assistant: [gpt]}", "!field_rejected", "!split",
          "the newline that it may write"}},
        {DPO("type: chat_template, field_chosen: chosen, chat_template: llama3"),
         NULL,
         {"field_prompt: messages", "chat_template: llama3", "!field_chosen"}},
        {DPO("type: chat_template.argilla_chat"),
         NULL,
         {"format: preference\n    chat_template: gemma\n", "!field_prompt"}},
        {DPO("type: chatml.intel"),
         NULL,
         {"field_prompt: question\n    field_system: system\n    chat_template: chatml",
          "no eos_token"}},
        {DPO("type: llama3.icr"), NULL, {"field_prompt: input", "chat_template: llama3"}},
        {DPO("type: chatml.argilla_chat"), NULL, {"chat_template: chatml", "!field_"}},
        {DPO("type: passthrough"), NULL, {"dataset: d.jsonl", "dataset_format: preference"}},
        {DPO("type: {field_prompt: q, field_system: s, field_chosen: chosen, field_rejected: n, "
             "prompt_format: '{prompt}', chosen_format: ''}"),
         NULL,
         {"field_prompt: q\n    field_rejected: n\n", "!field_chosen", "!field_system",
          "format: preference", "!    chat_template"}},
        {KTO("type: llama3.ultra"),
         NULL,
         {"format: unpaired\n    field_prompt: prompt\n    field_system: system\n    "
          "chat_template: llama3"}},
        {KTO("type: chatml.argilla"), NULL, {"field_prompt: instruction"}},
        {KTO("type: {field_completion: text, field_label: good, completion_format: "
             "'{completion}'}"),
         NULL,
         {"field_completion: text\n    field_label: good\n", "!field_prompt"}},
        {ORPO("type: chat_template.argilla"),
         NULL,
         {"field_prompt: prompt", "field_system: system", "chat_template: tokenizer_default",
          "!newline"}},
        {AXOLOTL "rl: simpo\ndatasets: [{path: d.jsonl, type: chatml.prompt_pairs}]\n"
                 "test_datasets: [{path: e.jsonl, type: chatml.ultra}]\n",
         NULL,
         {"- path: e.jsonl\n    format: preference\n    field_prompt: prompt", "!no eos_token"}},
    };
    static const expected refused[] = {
        {DPO("type: alpaca"),
         NULL,
         {"their.yaml:7: datasets: found 'alpaca'", "chat_template.default", "no type where"}},
        {DPO("type: chatml"), NULL, {"found 'chatml'", "prompt_pairs"}},
        {DPO("type: zephyr.nectar"), NULL, {"found 'zephyr.nectar'"}},
        {KTO("type: chatml.icr"), NULL, {"found 'chatml.icr'", "prompt_pairs or ultra"}},
        {ORPO("type: chatml.intel"), NULL, {"expected chat_template.argilla, or no type"}},
        {ORPO("type: {field_prompt: q}"), NULL, {"found a map", "chat_template.argilla"}},
        {DPO("type: {prompt_format: 'Q: {prompt}'}"),
         NULL,
         {"prompt_format: a text around a column", "\"rejected\""}},
        {KTO("type: {field_answer: a}"), NULL, {"found 'field_answer'", "field_label"}},
        {DPO("type: chatml.intel, roles_to_train: [user]"),
         NULL,
         {"found 'roles_to_train'", "of preferences has no such member"}},
    };
    check_good(cases, COUNT(cases));
    check_refused(refused, COUNT(refused));
}

static void test_llamafactory_losses(void **state)
{
    (void)state;
    static const expected cases[] = {
        {FACTORY NAMES "stage: dpo\npref_beta: 0.2\n",
         NULL,
         {"objective: dpo  # stage", "loss_type: sigmoid  # stage", "beta: 0.2  # pref_beta",
          "!loss_weights", "!wrap_", "!what it says"}},
        {FACTORY NAMES "stage: dpo\npref_loss: hinge\n",
         NULL,
         {"loss_type: hinge  # pref_loss", "learning_rate: 5e-5  # stage",
          "pref_loss is what it says"}},
        {FACTORY NAMES "stage: dpo\npref_loss: ipo\npref_ftx: 0.5\n",
         "per_device_train_batch_size=1",
         {"loss_type: [ipo, sft]", "loss_weights: [1, 0.5]"}},
        {FACTORY NAMES "stage: dpo\ndpo_label_smoothing: 0.25\npref_bco_weight: 0.0\n",
         NULL,
         {"loss_type: [sigmoid, robust]", "loss_weights: [1.5, \"-0.5\"]",
          "label_smoothing: 0.25  # dpo_label_smoothing"}},
        {FACTORY NAMES "stage: dpo\npref_loss: simpo\nsimpo_gamma: 0.4\nref_model: other\n",
         NULL,
         {"objective: cpo", "loss_type: simpo  # pref_loss", "cpo_alpha: 0  #", "simpo_gamma: 0.4",
          "wrap_conversations: false", "#   ref_model: other  (there is no"}},
        {FACTORY NAMES "stage: kto\nkto_chosen_weight: 0.5\nkto_rejected_weight: 2\n"
                       "pref_beta: 0.3\npref_loss: orpo\nsimpo_gamma: 1\n",
         NULL,
         {"objective: kto", "desirable_weight: 0.5", "undesirable_weight: 2", "beta: 0.3",
          "shuffle: true  # stage", "#   pref_loss: orpo  (it belongs to stage: dpo)"}},
        {FACTORY NAMES "stage: kto\ndisable_shuffling: true\npacking: true\n",
         NULL,
         {"shuffle: false", "!shuffle: true", "#   packing: true  (stages dpo and kto pack no"}},
        /* the reference */
        {FACTORY NAMES "stage: dpo\nadapter_name_or_path: a\n",
         NULL,
         {"init_adapter: a", "ref_adapter: base  # adapter_name_or_path"}},
        {FACTORY NAMES "stage: dpo\npref_loss: simpo\nadapter_name_or_path: a\n",
         NULL,
         {"init_adapter: a", "!ref_adapter"}},
        {FACTORY NAMES "stage: dpo\nadapter_name_or_path: a\nref_model: m\nquantization_bit: 4\n"
                       "ref_model_adapters: b\nref_model_quantization_bit: 4\n",
         NULL,
         {"init_adapter: a", "ref_adapter: b  # ref_model_adapters", "!base  #"}},
        {FACTORY NAMES "stage: kto\nref_model: m\n", NULL, {"ref_adapter: base  # ref_model"}},
        {FACTORY NAMES "stage: kto\nref_model_adapters: b\n",
         NULL,
         {"!ref_adapter:", "#   ref_model_adapters: b  (it belongs to ref_model)"}},
    };
    static const expected refused[] = {
        {FACTORY NAMES "stage: rm\n",
         NULL,
         {"their.yaml:5: stage: found 'rm'", "expected sft (answers), pt (texts), dpo or kto"}},
        {FACTORY NAMES "stage: dpo\npref_loss: orpo\n",
         NULL,
         {"their.yaml:6: pref_loss: found 'orpo'", "over the answer's tokens", "or simpo"}},
        {FACTORY NAMES "stage: dpo\npref_loss: kto_pair\n", NULL, {"(kto_pair: stage: kto)"}},
        {FACTORY NAMES "stage: dpo\npref_ftx: some\n",
         NULL,
         {"pref_ftx: found 'some'; expected a number"}},
        {FACTORY NAMES "stage: dpo\npref_ftx: 0.1\n",
         NULL,
         {"pref_ftx: found '0.1'", "per_device_train_batch_size: 1"}},
        {FACTORY NAMES "stage: dpo\npref_bco_weight: 0.1\n",
         NULL,
         {"pref_bco_weight: found '0.1'", "running mean"}},
        {FACTORY NAMES "stage: dpo\nld_alpha: 0.5\n",
         NULL,
         {"ld_alpha: found '0.5'", "expected 1"}},
        {FACTORY NAMES "stage: dpo\npref_loss: hinge\ndpo_label_smoothing: 0.1\n",
         NULL,
         {"dpo_label_smoothing: found '0.1'", "with pref_loss: sigmoid"}},
        {FACTORY NAMES "stage: kto\npref_ftx: 0.1\n",
         NULL,
         {"pref_ftx: found '0.1'", "expected 0"}},
        {FACTORY NAMES "stage: kto\n",
         "per_device_train_batch_size=1",
         {"stage: found 'kto'", "per_device_train_batch_size: 2"}},
        {FACTORY NAMES "stage: dpo\nref_model: other\n",
         NULL,
         {"ref_model: found 'other'", "without an adapter or with another one"}},
        {FACTORY NAMES "stage: dpo\nref_model: m\nquantization_bit: 4\n",
         NULL,
         {"ref_model: found 'm'", "ref_model_quantization_bit as quantization_bit"}},
    };
    check_good(cases, COUNT(cases));
    check_refused(refused, COUNT(refused));
}

static const char info[] =
    "{\"pairs\": {\"file_name\": \"p.json\", \"ranking\": true, \"formatting\": \"sharegpt\", "
    "\"columns\": {\"messages\": \"conversations\", \"chosen\": \"chosen\", \"rejected\": "
    "\"rejected\", \"system\": \"s\"}, \"tags\": {\"user_tag\": \"asker\"}}, "
    "\"plain\": {\"file_name\": \"a.json\", \"ranking\": true, \"num_samples\": 7, \"columns\": "
    "{\"prompt\": \"q\", \"query\": \"more\", \"chosen\": \"good\", \"rejected\": \"bad\"}}, "
    "\"labelled\": {\"file_name\": \"k.json\", \"formatting\": \"sharegpt\", \"columns\": "
    "{\"messages\": \"messages\", \"kto_tag\": \"good\"}, \"tags\": {\"role_tag\": \"role\", "
    "\"content_tag\": \"content\"}}, "
    "\"answers\": {\"file_name\": \"l.json\", \"columns\": {\"prompt\": \"q\", \"response\": "
    "\"a\", \"kto_tag\": \"label\", \"history\": \"h\"}}, "
    "\"bare\": {\"file_name\": \"b.json\", \"ranking\": true}, "
    "\"plain_sft\": {\"file_name\": \"b.json\"}}\n";

static void test_llamafactory_rows(void **state)
{
    (void)state;
    static const expected cases[] = {
        {FACTORY "stage: dpo\ndataset: pairs,plain\ndataset_dir: .\ntemplate: llama3\n",
         NULL,
         {"- path: \"./p.json\"\n    format: preference\n    field_prompt: conversations\n    "
          "message_property_mappings: {role: from, content: value}\n    field_system: s\n",
          "chat_template: llama3\n    roles: {user: [asker]}\n",
          "field_instruction: q\n    field_input: more\n    field_chosen: good\n    "
          "field_rejected: bad\n    chat_template: llama3\n    samples: 7\n"}},
        {FACTORY "stage: kto\ndataset: labelled\ndataset_dir: .\n",
         NULL,
         {"format: unpaired\n    field_completion: messages\n", "{role: role, content: content}",
          "field_label: good", "chat_template: tokenizer_default"}},
        {FACTORY "stage: kto\ndataset: answers\ndataset_dir: .\n",
         NULL,
         {"field_instruction: q\n    field_history: h\n    field_completion: a\n    field_label: "
          "label\n"}},
    };
    static const expected refused[] = {
        {FACTORY "stage: kto\ndataset: pairs\ndataset_dir: .\n",
         NULL,
         {"dataset: found 'pairs'", "stage: kto takes data sets without \"ranking\"", "kto_tag"}},
        {FACTORY "stage: dpo\ndataset: labelled\ndataset_dir: .\n",
         NULL,
         {"dataset: found 'labelled'", "\"ranking\": true", "messages, chosen and rejected"}},
        {FACTORY "stage: dpo\ndataset: bare\ndataset_dir: .\n",
         NULL,
         {"dataset: found 'bare'", "prompt, chosen and rejected"}},
        {FACTORY "stage: sft\ndataset: pairs\ndataset_dir: .\n",
         NULL,
         {"it has preferences: write stage: dpo"}},
    };
    char back[4096];
    assert_non_null(getcwd(back, sizeof back));
    assert_int_equal(chdir(scratch_path("")), 0);
    FILE *file = fopen("dataset_info.json", "w");
    assert_non_null(file);
    fputs(info, file);
    assert_int_equal(fclose(file), 0);
    check_good(cases, COUNT(cases));
    check_refused(refused, COUNT(refused));
    assert_int_equal(chdir(back), 0);
}

/* What the losses are after loading. */
static void test_values(void **state)
{
    (void)state;
    tsr_config c;
    const tsr_config_source smooth = {.text = FACTORY NAMES
                                      "stage: dpo\ndpo_label_smoothing: 0.1\npref_ftx: 0.25\n"
                                      "per_device_train_batch_size: 1\n",
                                      .name = "their.yaml"};
    if (tsr_config_load(&c, &smooth) < 0)
        fail_msg("%s", tsr_last_error());
    const tsr_objective *o = &c.objective;
    assert_int_equal(o->count, 3);
    assert_int_equal(o->loss[0], TSR_PREFER_SIGMOID);
    assert_int_equal(o->loss[1], TSR_PREFER_ROBUST);
    assert_int_equal(o->loss[2], TSR_PREFER_SFT);
    /* (1 - e) A + e B = w0 A + w1 ((1 - e) A - e B) / (1 - 2 e) */
    double e = o->label_smoothing, w0 = o->loss_weight[0], w1 = o->loss_weight[1];
    assert_true(e == 0.1);
    assert_true(c.learning_rate == 5e-5);
    assert_float_equal(w0 + w1 * (1 - e) / (1 - 2 * e), 1 - e, 1e-12);
    assert_float_equal(-w1 * e / (1 - 2 * e), e, 1e-12);
    assert_true(o->loss_weight[2] == 0.25);
    tsr_config_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_axolotl_losses),
        cmocka_unit_test(test_axolotl_rows),
        cmocka_unit_test(test_llamafactory_losses),
        cmocka_unit_test(test_llamafactory_rows),
        cmocka_unit_test(test_values),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
