/*
 * Gemma 4 whose layers that see all have no v_proj (attention_k_eq_v), of which there is no golden model without experts:
 * it must train as the model whose v_proj has the weights of its k_proj. The adapter is on other linears, so that the
 * gradients of keys and values meet in k_proj on their way to the layer below.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/golden.h"
#include "support/job.h"
#include "support/scratch.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define GOLDEN       TSR_SOURCE_DIR "/tests/golden/families/gemma4"
#define FULL_LAYER   "model.layers.1.self_attn." /* the one with keys of its own */
#define MOST_TENSORS 160
#define STEPS        8

static void write_config(const char *directory, bool shared)
{
    char path[600];
    json_t *root = json_load_file(GOLDEN "/checkpoint/config.json", 0, NULL);
    assert_non_null(root);
    json_object_set_new(root, "attention_k_eq_v", json_boolean(shared));
    snprintf(path, sizeof path, "%s/config.json", directory);
    assert_int_equal(json_dump_file(root, path, 0), 0);
    json_decref(root);
}

/* The golden checkpoint with that v_proj left out, or replaced by k_proj. */
static void write_model(const char *directory, bool shared)
{
    tsr_tensor_source source[MOST_TENSORS] = {{0}};
    uint64_t count = 0, elements;
    char path[600];
    tsr_safetensors *file = golden_open(GOLDEN "/checkpoint/model.safetensors");
    assert_int_equal(mkdir(directory, 0700), 0);
    write_config(directory, shared);
    assert_in_range(tsr_safetensors_count(file), 1, MOST_TENSORS);
    for (uint64_t i = 0; i < tsr_safetensors_count(file); i++) {
        const tsr_tensor *tensor = tsr_safetensors_at(file, i);
        bool values = !strcmp(tensor->name, FULL_LAYER "v_proj.weight");
        if (values && shared)
            continue;
        source[count++] = (tsr_tensor_source){
            .name = tensor->name,
            .dtype = TSR_F32,
            .ndim = tensor->ndim,
            .shape = {tensor->shape[0], tensor->shape[1]},
            .data = golden_f32(&elements, file, "%s",
                               values ? FULL_LAYER "k_proj.weight" : tensor->name)};
    }
    snprintf(path, sizeof path, "%s/model.safetensors", directory);
    assert_int_equal(tsr_safetensors_write(path, source, count), TSR_OK);
    for (uint64_t i = 0; i < count; i++)
        free((void *)source[i].data);
    tsr_safetensors_close(file);
}

typedef struct {
    double loss[STEPS], grad_norm[STEPS];
} trace;

static tsr_status train(tsr_job *job, void *user)
{
    trace *out = user;
    for (int i = 0; i < STEPS; i++) {
        tsr_job_report report = TSR_JOB_REPORT_INIT;
        TSR_TRY(tsr_job_step(job, &report));
        if (job->view.rank)
            continue;
        out->loss[i] = report.loss;
        out->grad_norm[i] = report.grad_norm;
    }
    return TSR_OK;
}

static trace run(const char *model, const char *recompute, int ranks)
{
    job_spec spec = {.purpose = TSR_JOB_TRAIN, .ranks = ranks};
    trace out;
    job_set(&spec, "model_name_or_path=%s", model);
    job_set(&spec, "dataset=%s/train.jsonl", GOLDEN);
    job_set(&spec, "output_dir=%s_out_%s_%d", model, recompute, ranks);
    job_set(&spec, "gradient_checkpointing=%s", recompute);
    job_set(&spec, "dtype=float32");
    job_set(&spec, "load_in_4bit=false");
    job_set(&spec, "lora_target_modules=[q_proj,o_proj,gate_proj,per_layer_projection]");
    job_set(&spec, "lora_r=4");
    job_set(&spec, "per_device_train_batch_size=1");
    job_set(&spec, "total_batch_size=4");
    job_set(&spec, "max_steps=%d", STEPS);
    job_set(&spec, "learning_rate=2e-3");
    job_run(&spec, train, &out);
    return out;
}

static void test_values_are_keys(void **state)
{
    (void)state;
    char one[512], two[512];
    double loss = 0, norm = 0;
    snprintf(one, sizeof one, "%s", scratch_path("shared"));
    snprintf(two, sizeof two, "%s", scratch_path("apart"));
    write_model(one, true);
    write_model(two, false);
    trace shared = run(one, "none", 1), apart = run(two, "none", 1);
    for (int i = 0; i < STEPS; i++) {
        loss = worse(fabs(shared.loss[i] - apart.loss[i]), loss);
        norm = worse(fabs(shared.grad_norm[i] / apart.grad_norm[i] - 1), norm);
    }
    judge("losses", loss, 3e-5);
    judge("norm of the gradient", norm, 1e-4);
    assert_true(fabs(shared.loss[STEPS - 1] - shared.loss[0]) > 1e-2);
    trace again = run(one, "full", 3);
    assert_memory_equal(&again, &shared, sizeof shared);
    again = run(one, "sqrt", 1);
    assert_memory_equal(&again, &shared, sizeof shared);
}

/* What cannot be run is named. */
static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *key, *value, *word;
    } wrong[] = {{"num_kv_shared_layers", "3", "num_kv_shared_layers"},
                 {"enable_moe_block", "true", "num_experts"},
                 {"vocab_size_per_layer_input", "255", "vocab_size_per_layer_input"},
                 {"use_bidirectional_attention", "\"all\"", "use_bidirectional_attention"},
                 {"per_layer_config", "{\"0\": {\"head_dim\": 32}}", "per_layer_config"},
                 {"per_layer_config", "{\"1\": {\"head_dim\": 32}}", "per_layer_config"},
                 {"per_layer_config", "{\"1\": {\"sliding_window\": 3}}", "sliding_window"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        tsr_model_config config;
        json_t *root = json_load_file(GOLDEN "/checkpoint/config.json", 0, NULL);
        json_object_set_new(root, wrong[i].key, json_loads(wrong[i].value, JSON_DECODE_ANY, NULL));
        char *text = json_dumps(root, 0);
        const char *const words[MOST_WORDS] = {"config.json", wrong[i].word, NULL};
        check_error(wrong[i].key,
                    tsr_model_config_parse(&config, text, strlen(text), "config.json"), TSR_EDATA,
                    words);
        free(text);
        json_decref(root);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_values_are_keys, scratch_setup, scratch_teardown),
        cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
