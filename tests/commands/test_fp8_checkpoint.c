/*
 * A checkpoint in e4m3 with a scale for each block of 128 x 128 (DeepSeek-V3's published form) against the same model in
 * BF16, whose values are computed here: of a model with latent attention and experts, plain and in NF4, on one and three
 * ranks: losses, trainings, and what quantize and merge write have the same bits. inspect says what is stored. A layer
 * behind the last one, which predicts further tokens, is left out with one line.
 */
#include "support/job.h"
#include "support/scratch.h"

#include "base/log.h"
#include "io/fp8_blocks.h"
#include "io/json.h"
#include "model/layout.h"
#include "tessera.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define GOLDEN  TSR_SOURCE_DIR "/tests/golden/families/deepseek_v3"
#define STEPS   2
#define FURTHER "model.layers.3.eh_proj.weight"
#define MOST    256 /* tensors, and those written of them */

static const char *coded, *plain; /* both models */

/* ---- two models ---- */

/* e4m3 */
static double value_of(int code)
{
    int exponent = code >> 3 & 15;
    double size = (exponent ? 8 + code % 8 : code % 8) * pow(2, (exponent ? exponent : 1) - 10);
    return code & 128 ? -size : size;
}

static int nearest(double value)
{
    int best = 0;
    for (int code = 0; code < 256; code++)
        if (code % 128 != 127 && fabs(value_of(code) - value) < fabs(value_of(best) - value))
            best = code;
    return best;
}

typedef struct {
    tsr_tensor_source coded[2 * MOST], plain[MOST];
    char name[MOST][128];
    int coded_count, plain_count;
} models;

/* Adds a matrix to both, as `called`: codes and scales, and their products rounded to bf16. */
static void add_matrix(models *m, const tsr_tensor *tensor, const char *called)
{
    uint64_t rows = tensor->shape[0], columns = tensor->shape[1];
    uint64_t down = (rows + 127) / 128, across = (columns + 127) / 128;
    float *values = malloc(rows * columns * sizeof *values),
          *scales = malloc(down * across * sizeof *scales);
    uint8_t *codes = malloc(rows * columns);
    uint16_t *narrow = malloc(rows * columns * sizeof *narrow);
    assert_true(values && scales && codes && narrow);
    assert_int_equal(tsr_safetensors_read_f32(values, tensor, 0, rows * columns), TSR_OK);
    for (uint64_t b = 0; b < down * across; b++)
        scales[b] = 1e-3f + 1e-5f * (float)b;
    for (uint64_t i = 0; i < rows * columns; i++) {
        float scale = scales[i / columns / 128 * across + i % columns / 128];
        codes[i] = (uint8_t)nearest((double)values[i] / (double)scale);
        narrow[i] = tsr_f32_to_bf16((float)value_of(codes[i]) * scale);
    }
    free(values);
    char *name = m->name[m->plain_count];
    snprintf(name, sizeof m->name[0], "%s%s", called, TSR_FP8_SCALE_SUFFIX);
    tsr_tensor_source source = {
        .name = called, .ndim = 2, .shape = {rows, columns}, .dtype = TSR_BF16};
    source.data = narrow;
    m->plain[m->plain_count++] = source;
    source.data = codes;
    source.dtype = TSR_F8_E4M3;
    m->coded[m->coded_count++] = source;
    m->coded[m->coded_count++] = (tsr_tensor_source){
        .name = name, .ndim = 2, .shape = {down, across}, .dtype = TSR_F32, .data = scales};
}

static void add_other(models *m, const tsr_tensor *tensor)
{
    void *data = malloc(tensor->bytes + 1);
    assert_non_null(data);
    assert_int_equal(tsr_safetensors_read(data, tensor, 0, tensor->bytes), TSR_OK);
    tsr_tensor_source source = {
        .name = tensor->name, .dtype = tensor->dtype, .ndim = tensor->ndim, .data = data};
    memcpy(source.shape, tensor->shape, sizeof source.shape);
    m->coded[m->coded_count++] = m->plain[m->plain_count++] = source;
}

static void write_config(const char *directory, bool fp8)
{
    char path[640];
    json_t *root = json_load_file(GOLDEN "/checkpoint/config.json", 0, NULL);
    assert_non_null(root);
    if (fp8)
        json_object_set_new(root, "quantization_config",
                            json_pack("{ss ss ss s[ii]}", "activation_scheme", "dynamic", "fmt",
                                      "e4m3", "quant_method", "fp8", "weight_block_size", 128,
                                      128));
    snprintf(path, sizeof path, "%s/config.json", directory);
    assert_int_equal(json_dump_file(root, path, 0), 0);
    json_decref(root);
}

static void write_model(const char *directory, const tsr_tensor_source *tensors, int count,
                        bool fp8)
{
    char path[640];
    assert_int_equal(mkdir(directory, 0755), 0);
    snprintf(path, sizeof path, "%s/model.safetensors", directory);
    if (tsr_safetensors_write(path, tensors, (uint64_t)count) < 0)
        fail_msg("%s", tsr_last_error());
    write_config(directory, fp8);
}

static int setup(void **state)
{
    static models m;
    static char names[2][600];
    tsr_safetensors *file;
    scratch_make();
    *state = NULL;
    assert_int_equal(tsr_safetensors_open(&file, GOLDEN "/checkpoint/model.safetensors"), TSR_OK);
    assert_true(tsr_safetensors_count(file) <= MOST);
    for (uint64_t i = 0; i < tsr_safetensors_count(file); i++) {
        const tsr_tensor *tensor = tsr_safetensors_at(file, i);
        bool linear = tensor->ndim == 2 && strstr(tensor->name, "_proj");
        if (linear)
            add_matrix(&m, tensor, tensor->name);
        else
            add_other(&m, tensor);
        if (!strcmp(tensor->name, "model.layers.2.self_attn.o_proj.weight"))
            add_matrix(&m, tensor, FURTHER);
    }
    snprintf(names[0], sizeof names[0], "%s", scratch_path("coded"));
    snprintf(names[1], sizeof names[1], "%s", scratch_path("plain"));
    coded = names[0];
    plain = names[1];
    write_model(coded, m.coded, m.coded_count, true);
    write_model(plain, m.plain, m.plain_count, false);
    for (int i = 0; i < m.plain_count; i++)
        free((void *)m.plain[i].data);
    for (int i = 0; i < m.coded_count; i++)
        if (m.coded[i].dtype == TSR_F8_E4M3 || strstr(m.coded[i].name, TSR_FP8_SCALE_SUFFIX))
            free((void *)m.coded[i].data);
    tsr_safetensors_close(file);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    scratch_remove();
    return 0;
}

/* ---- the same bits: in NF4, and where the weights stay in e4m3 ---- */

typedef struct {
    double loss[STEPS], grad_norm[STEPS], eval_loss;
} trace;

static uint64_t device_bytes; /* of the last run */

static tsr_status train(tsr_job *job, void *user)
{
    trace *out = user;
    tsr_job_evaluation evaluation = TSR_JOB_EVALUATION_INIT;
    for (int i = 0; i < STEPS; i++) {
        tsr_job_report report = TSR_JOB_REPORT_INIT;
        TSR_TRY(tsr_job_step(job, &report));
        if (tsr_job_rank(job) == 0) {
            device_bytes = report.device_bytes;
            out->loss[i] = report.loss;
            out->grad_norm[i] = report.grad_norm;
        }
    }
    TSR_TRY(tsr_job_evaluate(job, &evaluation));
    if (tsr_job_rank(job) == 0)
        out->eval_loss = evaluation.loss;
    return tsr_job_save(job);
}

static trace run(const char *model, const char *output, bool in_4bit, int ranks)
{
    trace out = {{0}};
    job_spec spec = {.purpose = TSR_JOB_TRAIN, .ranks = ranks};
    job_set(&spec, "model_name_or_path=%s", model);
    job_set(&spec, "dataset=%s/train.jsonl", GOLDEN);
    job_set(&spec, "eval_dataset=%s/train.jsonl", GOLDEN);
    job_set(&spec, "output_dir=%s", output);
    job_set(&spec, "load_in_4bit=%s", in_4bit ? "true" : "false");
    job_set(&spec,
            "lora_target_modules=[q_a_proj, q_b_proj, kv_a_proj_with_mqa, kv_b_proj, o_proj]");
    job_set(&spec, "dtype=float32");
    job_set(&spec, "per_device_train_batch_size=1");
    job_set(&spec, "per_device_eval_batch_size=1");
    job_set(&spec, "total_batch_size=6");
    job_set(&spec, "max_steps=%d", STEPS);
    job_set(&spec, "learning_rate=2e-2");
    job_run(&spec, train, &out);
    return out;
}

static void test_training(void **state)
{
    (void)state;
    for (int way = 0; way < 2; way++) {
        trace want = run(plain, scratch_path(way ? "plain-nf4" : "plain-bf16"), way, 1);
        uint64_t bytes = device_bytes;
        trace one = run(coded, scratch_path(way ? "coded-nf4" : "coded-e4m3"), way, 1);
        assert_true(way ? device_bytes == bytes : device_bytes < bytes);
        trace three = run(coded, scratch_path(way ? "three-nf4" : "three-e4m3"), way, 3);
        assert_true(want.loss[0] > 0 && want.grad_norm[0] > 0 && want.eval_loss > 0);
        assert_memory_equal(&want, &one, sizeof want);
        assert_memory_equal(&want, &three, sizeof want);
    }
}

/* ---- layers further on ---- */

static char lines[1000];

static void add_line(void *user, tsr_log_level level, const char *line)
{
    (void)user;
    (void)level;
    strncat(lines, line, sizeof lines - strlen(lines) - 1);
}

static void test_further_layers(void **state)
{
    (void)state;
    tsr_model_config config;
    tsr_checkpoint *checkpoint;
    tsr_layout layout;
    char wanted[800];
    const tsr_layout_options options = {.compute = TSR_F32};
    assert_int_equal(tsr_model_config_load(&config, coded), TSR_OK);
    assert_int_equal(tsr_checkpoint_open(&checkpoint, coded), TSR_OK);
    assert_non_null(tsr_checkpoint_find(checkpoint, FURTHER));
    tsr_log_set(add_line, NULL, TSR_LOG_INFO);
    tsr_status status = tsr_layout_make(&layout, &config, checkpoint, NULL, &options);
    tsr_log_set(NULL, NULL, TSR_LOG_ERROR);
    assert_int_equal(status, TSR_OK);
    snprintf(wanted, sizeof wanted,
             "%s: 1 tensors of layers from 3 on are not used: they predict tokens further on "
             "(num_nextn_predict_layers)",
             coded);
    assert_string_equal(lines, wanted);
    tsr_layout_free(&layout);
    tsr_checkpoint_close(checkpoint);
}

/* ---- commands ---- */

static void same_files(const char *a, const char *b)
{
    uint64_t bytes[2];
    char *data[2] = {read_whole(&bytes[0], a), read_whole(&bytes[1], b)};
    assert_int_equal(bytes[0], bytes[1]);
    assert_memory_equal(data[0], data[1], bytes[0]);
    free(data[0]);
    free(data[1]);
}

/* What `call` writes of both. */
static void check_converted(job_command *call, const char *name, const char *adapter)
{
    const char *both[2] = {coded, plain};
    char directory[2][600], path[2][1300];
    for (int i = 0; i < 2; i++) {
        job_spec spec = {0};
        snprintf(directory[i], sizeof directory[i], "%s-%d", scratch_path(name), i);
        job_set(&spec, "model_name_or_path=%s", both[i]);
        job_set(&spec, "output_dir=%s", directory[i]);
        if (adapter)
            job_set(&spec, "init_adapter=%s", adapter);
        job_convert(call, &spec);
    }
    static const char *const files[] = {"model.safetensors", "config.json"};
    for (int f = 0; f < 2; f++) {
        for (int i = 0; i < 2; i++)
            snprintf(path[i], sizeof path[i], "%s/%s", directory[i], files[f]);
        same_files(path[0], path[1]);
    }
}

static void test_quantize(void **state)
{
    (void)state;
    check_converted(tsr_quantize, "quantized", NULL);
}

static void test_merge(void **state)
{
    (void)state;
    const char *adapter = scratch_path("adapter");
    run(plain, adapter, true, 1);
    check_converted(tsr_merge, "merged", adapter);
}

static void test_inspect(void **state)
{
    (void)state;
    char *text;
    json_t *root;
    if (tsr_inspect(coded, NULL, 1, &text) < 0)
        fail_msg("%s", tsr_last_error());
    assert_int_equal(tsr_json_parse(&root, text, strlen(text), "the report"), TSR_OK);
    const json_t *dtypes = json_object_get(root, "dtypes");
    assert_non_null(
        strstr(json_string_value(json_object_get(root, "quantization")), "fp8 e4m3, a scale"));
    assert_true(json_integer_value(json_object_get(dtypes, "F8_E4M3_bytes")) > 10000);
    assert_true(json_is_true(json_object_get(root, "supported")));
    json_decref(root);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_training), cmocka_unit_test(test_further_layers),
        cmocka_unit_test(test_quantize), cmocka_unit_test(test_merge),
        cmocka_unit_test(test_inspect),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
