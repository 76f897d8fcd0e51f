/*
 * A base in LLM.int8: codes, scales and weights of every linear as bitsandbytes has them (CRCs), losses and logsumexps of
 * Transformers on these weights, the same bits from a checkpoint that is in int8 already, on 1 and 3 ranks, in host memory, with
 * LoRA, DoRA and PiSSA; and what is refused by name.
 * Golden: tests/golden/int8_tiny_llama. Tolerance of losses, logsumexps and logits 3e-4.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "io/file.h"
#include "io/json.h"
#include "kernels/byte_decode.h"
#include "model/factors.h"
#include "quant/int8.h"
#include "support/golden.h"
#include "support/head.h"
#include "support/job.h"
#include "support/rows.h"
#include "support/scratch.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#define MODEL     TSR_SOURCE_DIR "/examples/tiny-llama"
#define GOLDEN    TSR_SOURCE_DIR "/tests/golden/int8_tiny_llama"
#define TOLERANCE 3e-4

enum { D = 256, VOCAB = 4096, ROWS = 4, LENGTH = 96 };

static void RUN(tsr_status status)
{
    if (status < 0)
        fail_msg("%s", tsr_last_error());
}

static tsr_device *device; /* whose threads read */

/* ---- codes ---- */

typedef struct {
    uint64_t rows, columns;
    int8_t *codes;
    float *scale;
} int8_weight;

static int8_weight quantized(const tsr_checkpoint *checkpoint, const char *module)
{
    char name[200];
    tsr_weight source;
    tsr_weight_reader *reader;
    snprintf(name, sizeof name, "%s.weight", module);
    RUN(tsr_checkpoint_weight(&source, checkpoint, name));
    int8_weight w = {.rows = source.shape[0], .columns = source.shape[1]};
    float *values = malloc(source.element_count * sizeof *values);
    w.codes = malloc(source.element_count);
    w.scale = malloc(w.rows * sizeof *w.scale);
    assert_true(values && w.codes && w.scale);
    RUN(tsr_weight_reader_open(&reader, &source));
    RUN(tsr_weight_reader_read(values, reader, 0, source.element_count, tsr_device_pool(device)));
    tsr_weight_reader_close(reader);
    for (uint64_t i = 0; i < w.rows; i++)
        assert_true(tsr_int8_quantize_row(w.codes + i * w.columns, &w.scale[i],
                                          values + i * w.columns, w.columns));
    free(values);
    return w;
}

static void free_weight(int8_weight *w)
{
    free(w->codes);
    free(w->scale);
}

static void assert_crc(const json_t *module, const char *key, const void *data, uint64_t bytes)
{
    uint32_t want = (uint32_t)json_integer_value(json_object_get(module, key));
    assert_int_equal(crc32(0, data, (uInt)bytes), want);
}

static void test_codes(void **state)
{
    (void)state;
    json_t *golden, *module;
    const char *name;
    tsr_checkpoint *checkpoint;
    RUN(tsr_json_load_object(&golden, GOLDEN ".json"));
    RUN(tsr_checkpoint_open(&checkpoint, MODEL));
    int count = 0;
    json_object_foreach(json_object_get(golden, "modules"), name, module)
    {
        int8_weight w = quantized(checkpoint, name);
        uint64_t elements = w.rows * w.columns;
        float *decoded = malloc(elements * sizeof *decoded);
        const tsr_byte_decode_args args = {
            decoded, w.codes, w.scale, (int64_t)w.rows, (int64_t)w.columns, TSR_I8, TSR_F32};
        RUN(tsr_byte_decode_ref(&args, tsr_device_pool(device)));
        assert_crc(module, "codes_crc32", w.codes, elements);
        assert_crc(module, "SCB_crc32", w.scale, w.rows * sizeof *w.scale);
        assert_crc(module, "dequantized_f32_crc32", decoded, elements * sizeof *decoded);
        free(decoded);
        free_weight(&w);
        count++;
    }
    assert_int_equal(count, 42);
    tsr_checkpoint_close(checkpoint);
    json_decref(golden);
}

static void test_rows_that_cannot_be(void **state)
{
    (void)state;
    const float zeros[3] = {0}, large[2] = {1, 65520}, most[2] = {-65504, 0.001f};
    int8_t codes[3];
    float scale;
    assert_true(tsr_int8_quantize_row(codes, &scale, zeros, 3));
    assert_true(scale == 0 && codes[0] == 0 && codes[2] == 0);
    assert_true(tsr_int8_quantize_row(codes, &scale, most, 2));
    assert_true(scale == 65504 && codes[0] == -127 && codes[1] == 0);
    assert_false(tsr_int8_quantize_row(codes, &scale, large, 2));
    assert_false(tsr_int8_quantize_row(NULL, &scale, &(float){NAN}, 1));
}

/* ---- a checkpoint in int8 ---- */

#define MOST_TENSORS 400

typedef struct {
    tsr_tensor_source item[MOST_TENSORS];
    char name[MOST_TENSORS][200];
    int count;
} sources;

static void add(sources *s, const char *name, tsr_dtype dtype, int ndim, const uint64_t *shape,
                const void *data)
{
    tsr_tensor_source *item = &s->item[s->count];
    snprintf(s->name[s->count], sizeof s->name[0], "%s", name);
    *item =
        (tsr_tensor_source){.name = s->name[s->count], .dtype = dtype, .ndim = ndim, .data = data};
    for (int i = 0; i < ndim; i++)
        item->shape[i] = shape[i];
    s->count++;
}

/* As Transformers saves it. */
static void add_linear(sources *s, const tsr_checkpoint *checkpoint, const char *module)
{
    static const uint8_t row_by_row = 0;
    char name[200];
    int8_weight w = quantized(checkpoint, module);
    snprintf(name, sizeof name, "%s.weight", module);
    add(s, name, TSR_I8, 2, (uint64_t[]){w.rows, w.columns}, w.codes);
    snprintf(name, sizeof name, "%s.SCB", module);
    add(s, name, TSR_F32, 1, &w.rows, w.scale);
    snprintf(name, sizeof name, "%s.weight_format", module);
    add(s, name, TSR_U8, 0, NULL, &row_by_row);
}

static void write_config(const char *directory)
{
    char path[700];
    json_t *config;
    RUN(tsr_json_load_object(&config, MODEL "/config.json"));
    json_t *quantization =
        json_pack("{sbsbsfsnss}", "load_in_4bit", 0, "load_in_8bit", 1, "llm_int8_threshold", 6.0,
                  "llm_int8_skip_modules", "quant_method", "bitsandbytes");
    json_object_set_new(config, "quantization_config", quantization);
    snprintf(path, sizeof path, "%s/config.json", directory);
    assert_int_equal(json_dump_file(config, path, 0), 0);
    json_decref(config);
}

static char int8_model[600];

static void make_int8_model(void)
{
    static sources s;
    char path[700];
    tsr_checkpoint *checkpoint;
    snprintf(int8_model, sizeof int8_model, "%s", scratch_path("int8-model"));
    assert_int_equal(mkdir(int8_model, 0777), 0);
    write_config(int8_model);
    RUN(tsr_checkpoint_open(&checkpoint, MODEL));
    for (uint64_t i = 0; i < tsr_checkpoint_count(checkpoint); i++) {
        const tsr_tensor *t = tsr_checkpoint_at(checkpoint, i);
        char module[160];
        snprintf(module, sizeof module, "%s", t->name);
        if (strstr(module, "_proj.weight")) {
            *strstr(module, ".weight") = 0;
            add_linear(&s, checkpoint, module);
            continue;
        }
        void *data = malloc(t->bytes);
        RUN(tsr_safetensors_read(data, t, 0, t->bytes));
        add(&s, t->name, t->dtype, t->ndim, t->shape, data);
    }
    snprintf(path, sizeof path, "%s/model.safetensors", int8_model);
    RUN(tsr_safetensors_write(path, s.item, (uint64_t)s.count));
    for (int i = 0; i < s.count; i++)
        if (s.item[i].ndim)
            free((void *)(uintptr_t)s.item[i].data);
    tsr_checkpoint_close(checkpoint);
}

/* ---- the forward ---- */

static void write_rows(bool extra)
{
    tsr_safetensors *file = golden_open(GOLDEN ".safetensors");
    int32_t *ids = golden_i32(NULL, file, "input_ids"), length = LENGTH;
    test_data data;
    test_data_begin(&data, scratch_path(extra ? "extra.jsonl" : "rows.jsonl"));
    for (int row = 0; row < ROWS; row++)
        test_data_row(&data, ids + (size_t)row * LENGTH, NULL, &length, 1, extra);
    test_data_end(&data);
    free(ids);
    tsr_safetensors_close(file);
}

static job_spec spec_of(int purpose, const char *model)
{
    job_spec spec = {.purpose = purpose};
    job_set(&spec, "model_name_or_path=%s", model);
    job_set(&spec, "dtype=float32");
    job_set(&spec, "load_in_8bit=true");
    return spec;
}

static void test_forward(void **state)
{
    (void)state;
    test_head head;
    test_evaluated got = {0};
    tsr_safetensors *file = golden_open(GOLDEN ".safetensors");
    float *nll = golden_f32(NULL, file, "int8.nll"),
          *logsumexp = golden_f32(NULL, file, "int8.logsumexp");
    double worst[2] = {0}, logits[VOCAB], sum = 0;
    test_head_load(&head, MODEL, "lm_head.weight");
    job_spec spec = spec_of(TSR_JOB_EVALUATE, MODEL);
    job_set(&spec, "eval_dataset=%s", scratch_path("extra.jsonl"));
    job_set(&spec, "per_device_eval_batch_size=4");
    job_run(&spec, test_evaluate, &got);
    assert_int_equal(got.rows.count, ROWS * LENGTH);
    for (int i = 0; i < ROWS * LENGTH; i++) {
        int row = i / LENGTH, t = i % LENGTH;
        test_head_logits(logits, &head, got.rows.rows + (size_t)i * D);
        worst[0] = worse(fabs(test_logsumexp(logits, VOCAB) - (double)logsumexp[i]), worst[0]);
        if (t == LENGTH - 1)
            continue;
        double want = (double)nll[row * (LENGTH - 1) + t];
        worst[1] = worse(fabs(got.rows.nll[i] - want), worst[1]);
        sum += got.rows.nll[i];
    }
    judge("logsumexp", worst[0], TOLERANCE);
    judge("nll", worst[1], TOLERANCE);
    float *loss = golden_f32(NULL, file, "int8.loss");
    judge("loss", fabs(sum / (ROWS * (LENGTH - 1)) - (double)*loss), TOLERANCE);
    test_rows_free(&got.rows);
    test_head_free(&head);
    free(nll), free(logsumexp), free(loss);
    tsr_safetensors_close(file);
}

/* ---- training ---- */

#define STEPS 3

typedef struct {
    double loss[STEPS], norm[STEPS];
} trained;

static tsr_status train(tsr_job *job, void *user)
{
    trained *out = user;
    tsr_job_report report = TSR_JOB_REPORT_INIT;
    for (int i = 0; i < STEPS; i++) {
        TSR_TRY(tsr_job_step(job, &report));
        if (tsr_job_rank(job) == 0) {
            out->loss[i] = report.loss;
            out->norm[i] = report.grad_norm;
        }
    }
    return TSR_OK;
}

static trained run(const char *model, int ranks, const char *const *keys)
{
    trained out = {0};
    job_spec spec = spec_of(TSR_JOB_TRAIN, model);
    spec.ranks = ranks;
    job_set(&spec, "dataset=%s", scratch_path("rows.jsonl"));
    job_set(&spec, "output_dir=%s", scratch_path("output"));
    job_set(&spec, "overwrite_output_dir=true");
    job_set(&spec, "max_steps=%d", STEPS);
    job_set(&spec, "total_batch_size=3");
    for (int i = 0; keys && keys[i]; i++)
        job_set(&spec, "%s", keys[i]);
    job_run(&spec, train, &out);
    return out;
}

static void test_same_bits(void **state)
{
    (void)state;
    static const char *const kinds[][3] = {
        {NULL}, {"use_dora=true", "lora_r=5"}, {"init_lora_weights=pissa", "lora_r=4"}};
    static const char *const sharded[] = {"offload=sharded", "unit_policy=self_attn, mlp", NULL};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        trained one = run(MODEL, 1, kinds[k]), three = run(MODEL, 3, kinds[k]);
        trained stored = run(int8_model, 3, kinds[k]);
        assert_memory_equal(&one, &three, sizeof one);
        if (k < 2) /* PiSSA begins with another base */
            assert_memory_equal(&one, &stored, sizeof one);
        assert_true(one.loss[STEPS - 1] < one.loss[0]);
    }
    trained one = run(MODEL, 1, NULL), host = run(MODEL, 2, sharded);
    assert_memory_equal(&one, &host, sizeof one);
}

/* ---- what cannot be ---- */

static void expect_refused(const char *model, const char *key, tsr_status wanted, const char *words)
{
    char name[700], data[700], output[700];
    snprintf(name, sizeof name, "model_name_or_path=%s", model);
    snprintf(data, sizeof data, "dataset=%s", scratch_path("rows.jsonl"));
    snprintf(output, sizeof output, "output_dir=%s", scratch_path("refused"));
    const char *overrides[] = {name, data, output, key};
    tsr_job_options options = {.size = sizeof options, .overrides = overrides, .override_count = 4};
    tsr_job *job = NULL;
    tsr_status status = tsr_job_create(&job, &options);
    if (status != wanted || !strstr(tsr_last_error(), words))
        fail_msg("%s: %d: %s; expected %d: %s", key, status, tsr_last_error(), wanted, words);
    tsr_job_destroy(job);
}

static void test_refusals(void **state)
{
    (void)state;
    expect_refused(int8_model, "load_in_4bit=true", TSR_ECONFIG,
                   "is stored as int8; write load_in_8bit: true");
    expect_refused(TSR_SOURCE_DIR "/tests/golden/prequantized-tiny-llama", "load_in_8bit=true",
                   TSR_ECONFIG, "is stored as NF4; load_in_8bit needs");
}

static int set_up(void **state)
{
    (void)state;
    scratch_make();
    RUN(tsr_device_create_cpu(&device, &(tsr_device_options){.thread_count = 2}));
    write_rows(false);
    write_rows(true);
    make_int8_model();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    tsr_device_destroy(device);
    scratch_remove();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_codes), cmocka_unit_test(test_rows_that_cannot_be),
        cmocka_unit_test(test_forward), cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
