/*
 * NF4 bases: a pre-quantized bitsandbytes checkpoint read as it is, on any number of ranks, and
 * every way of keeping a base against the same weights given as plain fp32.
 * Golden: tests/golden/prequantized-tiny-llama, logits within 3e-4. The rest: no tolerance.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "device/device_parts.h"
#include "model/fixture.h"
#include "quant/nf4_pack.h"
#include "support/golden.h"
#include "support/head.h"
#include "support/rows.h"
#include "support/scratch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define PREQUANTIZED TSR_SOURCE_DIR "/tests/golden/prequantized-tiny-llama"

enum { D = 256, VOCAB = 384, TOKENS = 32, ROWS = 5 };

/* ---- pre-quantized ---- */

/* What micro-batch `index` left, whichever rank computed it. */
typedef struct {
    float rows[ROWS][TOKENS * D];
    double nll[ROWS][TOKENS];
    double loss;
    uint64_t read; /* bytes of the base read by rank 0 */
} by_micro_batch;

static void keep(void *user, tsr_job *job, const tsr_micro_batch *micro, int64_t index)
{
    by_micro_batch *out = user;
    size_t count = (size_t)micro->label_count;
    memcpy(out->rows[index], tsr_model_label_rows(job->model), count * D * sizeof(float));
    memcpy(out->nll[index], tsr_model_nll(job->model), count * sizeof(double));
}

static tsr_status evaluate_all(tsr_job *job, void *user)
{
    by_micro_batch *out = user;
    tsr_job_evaluation evaluation = TSR_JOB_EVALUATION_INIT;
    TSR_TRY(tsr_job_evaluate(job, &evaluation));
    if (tsr_job_rank(job) == 0) {
        out->loss = evaluation.loss;
        out->read = tsr_checkpoint_bytes_read(job->inputs.checkpoint);
    }
    return job_micro_batches(job, false, 0, keep, out);
}

static by_micro_batch *run_prequantized(int ranks)
{
    by_micro_batch *out = calloc(1, sizeof *out);
    job_spec spec = {.purpose = TSR_JOB_EVALUATE, .ranks = ranks};
    assert_non_null(out);
    job_set(&spec, "model_name_or_path=%s", PREQUANTIZED);
    job_set(&spec, "eval_dataset=%s", scratch_path("rows.jsonl"));
    job_set(&spec, "per_device_eval_batch_size=1");
    job_set(&spec, "dtype=float32");
    job_run(&spec, evaluate_all, out);
    return out;
}

/* The same row five times: with five ranks every rank computes it, from parts of all. */
static void test_prequantized(void **state)
{
    (void)state;
    static const int ranks[] = {2, 3, 5};
    tsr_safetensors *file = golden_open(PREQUANTIZED "/golden_logits.safetensors");
    int32_t *ids = golden_i32(NULL, file, "input_ids"), length = TOKENS;
    float *want = golden_f32(NULL, file, "logits_from_f32_weights");
    double worst = 0, logits[VOCAB];
    test_head head;
    test_data data;
    test_data_begin(&data, scratch_path("rows.jsonl"));
    for (int i = 0; i < ROWS; i++)
        test_data_row(&data, ids, NULL, &length, 1, true);
    test_data_end(&data);
    by_micro_batch *one = run_prequantized(1);
    test_head_load(&head, PREQUANTIZED, "lm_head.weight");
    for (int t = 0; t < TOKENS; t++) {
        test_head_logits(logits, &head, one->rows[0] + t * D);
        for (int v = 0; v < VOCAB; v++)
            worst = worse(fabs(logits[v] - (double)want[t * VOCAB + v]), worst);
    }
    judge("prequantized logits", worst, 3e-4);
    for (int i = 1; i < ROWS; i++)
        assert_memory_equal(one->rows[i], one->rows[0], sizeof one->rows[0]);
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
        by_micro_batch *more = run_prequantized(ranks[i]);
        assert_memory_equal(more->rows, one->rows, sizeof one->rows);
        assert_memory_equal(more->nll, one->nll, sizeof one->nll);
        assert_true(more->loss == one->loss);
        assert_true(more->read < one->read);
        free(more);
    }
    test_head_free(&head);
    free(one);
    free(ids);
    free(want);
    tsr_safetensors_close(file);
}
/* ---- every way of keeping a base ---- */

/* SAID: plain weights whose config.json still says 4 bits. */
typedef enum { PLAIN, FOUR_BIT, STORED, MIXED, SAID } base_form;

/* Whether a 4-bit checkpoint left it as it was. */
static bool is_left(base_form base, int layer, int kind)
{
    return base == MIXED && ((layer == 1 && kind == LLAMA_UP) || (layer == 0 && kind == LLAMA_Q));
}

/* The doubles of all linears that are not left become what NF4 makes of them. */
static void dequantize(random_model *m, base_form base, bool nested)
{
    for (int layer = 0; layer < m->spec.layers; layer++)
        for (int kind = 0; kind < LLAMA_LINEARS; kind++) {
            if (is_left(base, layer, kind))
                continue;
            model_tensor *w = m->linear[layer][kind].w;
            uint64_t count = w->rows * w->columns, blocks = (count + 63) / 64;
            float *values = malloc(count * sizeof *values), *absmax = malloc(blocks * 4);
            uint8_t *codes = malloc(count), *q = malloc(blocks);
            float nested_absmax[64], offset;
            for (uint64_t i = 0; i < count; i++)
                values[i] = (float)w->data[i];
            assert_true(blocks <= 64 * 256);
            assert_int_equal(tsr_nf4_quantize(codes, absmax, values, TSR_F32, count), TSR_OK);
            assert_int_equal(
                tsr_nf4_quantize_absmax(q, nested_absmax, &offset, absmax, blocks, 0, blocks),
                TSR_OK);
            tsr_nf4_scales scales = {
                .nested = nested, .offset = offset, .nested_absmax = nested_absmax};
            tsr_nf4_view view = {codes, nested ? (void *)q : (void *)absmax, &scales};
            assert_int_equal(tsr_nf4_dequantize(values, TSR_F32, &view, 0, count, NULL, w->columns),
                             TSR_OK);
            for (uint64_t i = 0; i < count; i++)
                w->data[i] = (double)values[i];
            free(values);
            free(absmax);
            free(codes);
            free(q);
        }
}

static void write_quantized_config(const fixture *f, const char *directory)
{
    char from[400], to[400];
    uint64_t bytes;
    snprintf(from, sizeof from, "%s/config.json", f->checkpoint);
    snprintf(to, sizeof to, "%s/config.json", directory);
    char *text = read_whole(&bytes, from);
    FILE *file = fopen(to, "w");
    assert_non_null(file);
    assert_int_equal(text[0], '{');
    fprintf(file,
            "{\"quantization_config\": {\"quant_method\": \"bitsandbytes\", \"load_in_4bit\": true,"
            "\"bnb_4bit_quant_type\": \"nf4\", \"bnb_4bit_use_double_quant\": true, "
            "\"llm_int8_skip_modules\": [\"lm_head\"]},%.*s",
            (int)bytes - 1, text + 1);
    assert_int_equal(fclose(file), 0);
    free(text);
}

static tsr_tensor_source plain_source(const tsr_tensor *tensor)
{
    void *data = malloc(tensor->bytes);
    tsr_tensor_source source = {
        .name = tensor->name, .dtype = tensor->dtype, .ndim = tensor->ndim, .data = data};
    memcpy(source.shape, tensor->shape, sizeof source.shape);
    assert_int_equal(tsr_safetensors_read(data, tensor, 0, tensor->bytes), TSR_OK);
    return source;
}

static bool is_packed(const random_model *m, base_form base, const char *name)
{
    for (int layer = 0; layer < m->spec.layers; layer++)
        for (int kind = 0; kind < LLAMA_LINEARS; kind++)
            if (!strcmp(m->linear[layer][kind].w->name, name))
                return base != SAID && !is_left(base, layer, kind);
    return false;
}

/* The checkpoint with its linears, or those that are not left, in NF4. */
static void write_quantized(const fixture *f, base_form base, bool nested, const char *directory)
{
    tsr_tensor_source source[TSR_NF4_PACKED_TENSORS * MODEL_MOST_TENSORS];
    const void *data[MODEL_MOST_TENSORS];
    tsr_nf4_pack_options options = {.nested = nested};
    tsr_checkpoint *checkpoint;
    tsr_nf4_packer *packer;
    char path[400];
    uint64_t count = 0, copied = 0;
    assert_int_equal(mkdir(directory, 0700), 0);
    write_quantized_config(f, directory);
    assert_int_equal(tsr_pool_create(&options.pool, 1, NULL, false), TSR_OK);
    assert_int_equal(tsr_checkpoint_open(&checkpoint, f->checkpoint), TSR_OK);
    assert_int_equal(tsr_nf4_packer_create(&packer, &options), TSR_OK);
    for (uint64_t i = 0; i < tsr_checkpoint_count(checkpoint); i++) {
        const tsr_tensor *tensor = tsr_checkpoint_at(checkpoint, i);
        const tsr_nf4_packed *packed;
        if (is_packed(&f->model, base, tensor->name)) {
            assert_int_equal(tsr_nf4_packer_add(&packed, packer, tensor), TSR_OK);
            count += (uint64_t)tsr_nf4_packed_sources(&source[count], packed);
        } else {
            source[count] = plain_source(tensor);
            data[copied++] = source[count++].data;
        }
    }
    snprintf(path, sizeof path, "%s/model.safetensors", directory);
    assert_int_equal(tsr_safetensors_write(path, source, count), TSR_OK);
    while (copied)
        free((void *)data[--copied]);
    tsr_nf4_packer_destroy(packer);
    tsr_checkpoint_close(checkpoint);
    tsr_pool_destroy(options.pool);
}

static void compare(const char *what, const fixture_result *got, const fixture_result *want)
{
    const test_rows *a = &got->evaluated.rows, *b = &want->evaluated.rows;
    print_message("    %s\n", what);
    assert_true(a->count > 0 && a->count == b->count);
    assert_memory_equal(a->nll, b->nll, (size_t)a->count * sizeof *a->nll);
    assert_memory_equal(a->rows, b->rows, (size_t)a->count * 64 * sizeof *a->rows);
    for (int layer = 0; layer < 2; layer++)
        for (int kind = 0; kind < LLAMA_LINEARS; kind++)
            for (int part = 0; part < 3; part++)
                assert_memory_equal(got->gradient[layer][kind][part],
                                    want->gradient[layer][kind][part],
                                    got->count[layer][kind][part] * sizeof(double));
}

/* NF4 (nested or not; made here, or stored, with all linears or two left out) against a plain fp32
 * checkpoint of the dequantized weights, and the plain checkpoint in BF16 against the same in fp32: the
 * same bits in losses and gradients. Rows of 100 and 36 elements, so that blocks cross rows. */
static void check_base(const char *name, base_form base, bool nested)
{
    model_spec spec = {.type = "llama",
                       .d = 64,
                       .f = 100,
                       .layers = 2,
                       .heads = 3,
                       .kv_heads = 1,
                       .head_dim = 12,
                       .vocab = 300,
                       .theta = 10000,
                       .eps = 1e-5,
                       .dtype = TSR_BF16,
                       .r = 4,
                       .alpha = 8,
                       .dora = true,
                       .targets = 127,
                       .seed = 21};
    fixture f;
    fixture_result got = {0}, want = {0};
    char plain[320], packed[320];
    fixture_make(&f, name, &spec, 0.1);
    snprintf(plain, sizeof plain, "%s-float", f.checkpoint);
    job_spec job = fixture_job(&f, "stored");
    snprintf(packed, sizeof packed, "%s-packed", f.checkpoint);
    job_set(&job, "load_in_4bit=%s", base == PLAIN ? "false" : "true");
    job_set(&job, "use_bnb_nested_quant=%s", nested ? "true" : "false");
    if (base >= STORED) {
        write_quantized(&f, base, nested, packed);
        job_set(&job, "model_name_or_path=%s", packed);
    }
    job_run(&job, fixture_compute, &got);
    if (base != PLAIN)
        dequantize(&f.model, base, nested);
    model_write(&f.model, plain, TSR_F32);
    job = fixture_job(&f, "plain");
    job_set(&job, "model_name_or_path=%s", plain);
    job_run(&job, fixture_compute, &want);
    compare(name, &got, &want);
    fixture_result_free(&got);
    fixture_result_free(&want);
    fixture_free(&f);
}

static void test_bases(void **state)
{
    (void)state;
    check_base("bf16", PLAIN, true);
    check_base("nf4-nested", FOUR_BIT, true);
    check_base("nf4", FOUR_BIT, false);
    check_base("stored-nested", STORED, true);
    check_base("mixed-nested", MIXED, true);
    check_base("mixed", MIXED, false);
    check_base("said", SAID, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prequantized),
        cmocka_unit_test(test_bases),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
