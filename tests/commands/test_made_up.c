/*
 * A family that nobody publishes, described here and nowhere else: layers of two kinds, of 11 linears and of 5, without
 * two of the usual norms, the MLP before attention. All that the program does with a model it does with this one: it
 * trains, with the same bits on three ranks, recomputed, and resumed; it is planned without weights; it is quantized,
 * and merged.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/philox.h"
#include "io/safetensors.h"
#include "model/arch/arch.h"
#include "model/arch/decoder.h"
#include "support/golden.h"
#include "support/head.h"
#include "support/job.h"
#include "support/rows.h"
#include "support/scratch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define LAYERS       4
#define MOST_TENSORS 128
#define STEPS        8

/* ---- the family ---- */

static tsr_status read(tsr_model_config *out, const json_t *root, const char *place)
{
    (void)out;
    (void)root;
    (void)place;
    return TSR_OK;
}

static int16_t gated(tsr_block *b, int16_t x, const char *const name[3], const tsr_model_config *c)
{
    const tsr_matrix both[2] = {
        {.name = name[0], .out = c->intermediate_size, .in = c->hidden_size},
        {.name = name[1], .out = c->intermediate_size, .in = c->hidden_size}};
    int16_t value[TSR_NODE_PORTS];
    tsr_block_linears(b, value, x, both, 2);
    int16_t act = tsr_block_glu(b, value[0], value[1], TSR_SILU);
    return tsr_block_linear(b, act, name[2], c->hidden_size, false);
}

/* Of 5 linears, without norms: the MLP, then attention with one matrix for q, k and v. */
static void even_layer(tsr_block *b, tsr_residual *r, const tsr_model_config *c, int layer)
{
    static const char *const mlp[3] = {"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"};
    tsr_model_config one = *c;
    one.one_qkv = true;
    int16_t x = tsr_block_sum(b, r, (tsr_value_name){"x", "input of the layer"});
    tsr_block_add(b, r, gated(b, x, mlp, c));
    x = tsr_block_sum(b, r, (tsr_value_name){"x_mid", "the residual after the MLP"});
    tsr_block_add(b, r, tsr_decoder_attention(b, x, &one, layer));
}

/* Of 11 linears: two MLPs, attention, and one linear alone. */
static void odd_layer(tsr_block *b, tsr_residual *r, const tsr_model_config *c, int layer)
{
    static const char *const mlp[2][3] = {
        {"first.gate_proj", "first.up_proj", "first.down_proj"},
        {"second.gate_proj", "second.up_proj", "second.down_proj"}};
    float eps = (float)c->rms_norm_eps;
    int16_t h = tsr_block_norm(b, r, "norm_a", eps, (tsr_value_name){"x", "input of the layer"},
                               (tsr_value_name){"h", "the normed input of the MLP"});
    tsr_block_add(b, r, gated(b, h, mlp[0], c));
    h = tsr_block_norm(b, r, "norm_b", eps, (tsr_value_name){"x_mid", "the residual after the MLP"},
                       (tsr_value_name){"h2", "the normed input of attention"});
    tsr_block_add(b, r, tsr_decoder_attention(b, h, c, layer));
    int16_t x = tsr_block_sum(b, r, (tsr_value_name){"x_o", "the residual after attention"});
    tsr_block_add(b, r, gated(b, x, mlp[1], c));
    x = tsr_block_sum(b, r, (tsr_value_name){"x_2", "the residual after the second MLP"});
    tsr_block_add(b, r, tsr_block_linear(b, x, "mix", c->hidden_size, false));
}

static tsr_status block(tsr_block *out, const tsr_model_config *c, int layer)
{
    tsr_residual r = tsr_block_begin(out, c->hidden_size);
    if (layer % 2)
        odd_layer(out, &r, c, layer);
    else
        even_layer(out, &r, c, layer);
    return tsr_block_end(out, r, "a layer that is made up");
}

static const char *const keys[] = {NULL};

static const tsr_arch made_up = {.model_type = "made_up",
                                 .architecture = "MadeUpForCausalLM",
                                 .models = "none",
                                 .max_position = 256,
                                 .bos = -1,
                                 .eos = -1,
                                 .eps = 1e-5,
                                 .theta = 10000,
                                 .activation = TSR_SILU,
                                 .keys = keys,
                                 .read = read,
                                 .block = block};

tsr_status __wrap_tsr_arch_find(const tsr_arch **out, const char *model_type, const char *place);
tsr_status __real_tsr_arch_find(const tsr_arch **out, const char *model_type, const char *place);
tsr_status __wrap_tsr_arch_find(const tsr_arch **out, const char *model_type, const char *place)
{
    if (strcmp(model_type, made_up.model_type))
        return __real_tsr_arch_find(out, model_type, place);
    *out = &made_up;
    return TSR_OK;
}

/* ---- a model of it ---- */

static char checkpoint[512], rows[512];

static void write_config(const char *directory)
{
    assert_int_equal(mkdir(directory, 0700), 0);
    char path[600];
    snprintf(path, sizeof path, "%s/config.json", directory);
    write_text(path, "{\"model_type\": \"made_up\", \"architectures\": [\"MadeUpForCausalLM\"],\n"
                     " \"vocab_size\": 128, \"hidden_size\": 64, \"intermediate_size\": 96,\n"
                     " \"num_hidden_layers\": 4, \"num_attention_heads\": 4,\n"
                     " \"num_key_value_heads\": 2, \"torch_dtype\": \"float32\"}\n");
}

/* The tensors that the description asks for, around 0, or, of norms, around 1. */
static void write_checkpoint(const char *directory)
{
    tsr_tensor_source source[MOST_TENSORS] = {{0}};
    tsr_checkpoint *described;
    tsr_model_config config;
    char path[600];
    assert_int_equal(tsr_model_config_load(&config, directory), TSR_OK);
    assert_int_equal(tsr_model_describe(&described, directory, &config), TSR_OK);
    uint64_t count = tsr_checkpoint_count(described);
    assert_in_range(count, 1, MOST_TENSORS);
    for (uint64_t i = 0; i < count; i++) {
        const tsr_tensor *t = tsr_checkpoint_at(described, i);
        uint64_t elements = t->ndim == 2 ? t->shape[0] * t->shape[1] : t->shape[0];
        float *data = malloc(elements * sizeof *data);
        assert_non_null(data);
        for (uint64_t j = 0; j < elements; j++) {
            float uniform = 2 * tsr_philox_uniform(tsr_philox_at(i + 1, 7, j).word[0]) - 1;
            data[j] = t->ndim == 2 ? 0.15f * uniform : 1 + 0.2f * uniform;
        }
        source[i] = (tsr_tensor_source){.name = t->name,
                                        .dtype = TSR_F32,
                                        .ndim = t->ndim,
                                        .shape = {t->shape[0], t->shape[1]},
                                        .data = data};
    }
    snprintf(path, sizeof path, "%s/model.safetensors", directory);
    assert_int_equal(tsr_safetensors_write(path, source, count), TSR_OK);
    for (uint64_t i = 0; i < count; i++)
        free((void *)source[i].data);
    tsr_checkpoint_close(described);
}

static void write_rows(const char *path)
{
    test_data data;
    test_data_begin(&data, path);
    for (int i = 0; i < 8; i++) {
        int32_t ids[40], labels[40], length = 12 + 3 * i;
        for (int32_t t = 0; t < length; t++)
            ids[t] = labels[t] =
                (int32_t)(tsr_philox_at(9, (uint64_t)i, (uint64_t)t).word[0] % 128);
        labels[0] = -100;
        test_data_row(&data, ids, labels, &length, 1, false);
    }
    test_data_end(&data);
}

static int setup(void **state)
{
    (void)state;
    scratch_make();
    snprintf(checkpoint, sizeof checkpoint, "%s", scratch_path("model"));
    snprintf(rows, sizeof rows, "%s", scratch_path("rows.jsonl"));
    write_config(checkpoint);
    write_checkpoint(checkpoint);
    write_rows(rows);
    return 0;
}

/* ---- training ---- */

typedef struct {
    double loss[STEPS];
    int first, count;
    bool saves;
} trace;

static tsr_status train(tsr_job *job, void *user)
{
    trace *out = user;
    for (int i = out->first; i < out->first + out->count; i++) {
        tsr_job_report report = TSR_JOB_REPORT_INIT;
        TSR_TRY(tsr_job_step(job, &report));
        if (job->view.rank == 0)
            out->loss[i] = report.loss;
    }
    TSR_TRY(tsr_job_checkpoint(job));
    return out->saves ? tsr_job_save(job) : TSR_OK;
}

static job_spec training(const char *output, int ranks, const char *recompute)
{
    job_spec spec = {.purpose = TSR_JOB_TRAIN, .ranks = ranks};
    job_set(&spec, "model_name_or_path=%s", checkpoint);
    job_set(&spec, "dataset=%s", rows);
    job_set(&spec, "output_dir=%s", scratch_path(output));
    job_set(&spec, "gradient_checkpointing=%s", recompute);
    job_set(&spec, "dtype=float32");
    job_set(&spec, "use_dora=true");
    job_set(&spec, "lora_r=4");
    job_set(&spec, "per_device_train_batch_size=1");
    job_set(&spec, "total_batch_size=4");
    job_set(&spec, "max_steps=%d", STEPS);
    job_set(&spec, "learning_rate=2e-2");
    return spec;
}

static trace run(const char *output, int ranks, const char *recompute)
{
    job_spec spec = training(output, ranks, recompute);
    trace out = {.count = STEPS, .saves = true};
    job_run(&spec, train, &out);
    return out;
}

static void same_losses(const trace *a, const trace *b)
{
    assert_memory_equal(a->loss, b->loss, sizeof a->loss);
}

static void test_trains(void **state)
{
    (void)state;
    trace alone = run("alone", 1, "none"), three = run("three", 3, "selective");
    trace full = run("full", 1, "full");
    assert_true(alone.loss[0] > alone.loss[STEPS - 1] + 0.1);
    same_losses(&alone, &three);
    same_losses(&alone, &full);
}

static void test_resumes(void **state)
{
    (void)state;
    trace whole = run("whole", 1, "none"), parts = {.count = 2};
    job_spec first = training("parts", 1, "none"), second = training("parts", 1, "none");
    job_run(&first, train, &parts);
    parts.first = 2;
    parts.count = STEPS - 2;
    job_set(&second, "resume_from_checkpoint=true");
    job_run(&second, train, &parts);
    same_losses(&whole, &parts);
}

/* ---- the rest ---- */

static double evaluate(const char *model, const char *adapter, bool in_4bit)
{
    test_evaluated got = {0};
    job_spec spec = {.purpose = TSR_JOB_EVALUATE};
    job_set(&spec, "model_name_or_path=%s", model);
    job_set(&spec, "eval_dataset=%s", rows);
    job_set(&spec, "per_device_eval_batch_size=1");
    job_set(&spec, "dtype=float32");
    job_set(&spec, "load_in_4bit=%s", in_4bit ? "true" : "false");
    if (adapter)
        job_set(&spec, "init_adapter=%s", adapter);
    job_run(&spec, test_evaluate, &got);
    test_rows_free(&got.rows);
    return got.evaluation.loss;
}

static void convert(job_command *call, const char *output, const char *adapter)
{
    job_spec spec = {0};
    job_set(&spec, "model_name_or_path=%s", checkpoint);
    job_set(&spec, "output_dir=%s", scratch_path(output));
    job_set(&spec, "dtype=float32");
    if (adapter)
        job_set(&spec, "init_adapter=%s", adapter);
    job_convert(call, &spec);
}

static void test_is_quantized(void **state)
{
    (void)state;
    convert(tsr_quantize, "nf4", NULL);
    double here = evaluate(checkpoint, NULL, true),
           there = evaluate(scratch_path("nf4"), NULL, true);
    assert_true(here == there);
    assert_true(here != evaluate(checkpoint, NULL, false));
}

static void test_is_merged(void **state)
{
    (void)state;
    (void)run("trained", 1, "none");
    convert(tsr_merge, "merged", scratch_path("trained"));
    double base = evaluate(checkpoint, NULL, true);
    double with = evaluate(checkpoint, scratch_path("trained"), true);
    double merged = evaluate(scratch_path("merged"), NULL, false);
    judge("the merged model's loss, of what the adapter changed",
          fabs(with - merged) / fabs(with - base), 0.03); /* it is rounded to bf16 */
}

/* From config.json alone. */
static void test_is_planned(void **state)
{
    (void)state;
    char model[600], *text;
    tsr_job *job;
    write_config(scratch_path("shape"));
    snprintf(model, sizeof model, "model_name_or_path=%s", scratch_path("shape"));
    const char *const overrides[] = {model, "max_length=32"};
    const tsr_job_options options = {.size = sizeof(tsr_job_options),
                                     .overrides = overrides,
                                     .override_count = 2,
                                     .purpose = TSR_JOB_PLAN};
    if (tsr_job_create(&job, &options) < 0 || tsr_job_print_plan(job, 0, &text) < 0)
        fail_msg("%s", tsr_last_error());
    assert_non_null(strstr(text, "second.down_proj"));
    assert_non_null(strstr(text, "the residual after the second MLP"));
    free(text);
    tsr_job_destroy(job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_trains, setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_resumes, setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_is_quantized, setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_is_merged, setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_is_planned, setup, scratch_teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
