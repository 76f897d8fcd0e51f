/*
 * The whole model forward against Hugging Face's: logits, logsumexp, losses and hidden states of
 * tiny-llama on dense and padded rows and on packed documents, plain (load_in_4bit: false) and NF4.
 * Golden: tests/golden/forward_tiny_llama, packed_tiny_llama, tiny-llama/golden_logits.
 * Tolerances: logits, logsumexp and nll 1e-4, mean loss 1e-5, hidden states 2e-5 of the largest.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "model/model_parts.h"
#include "support/golden.h"
#include "support/head.h"
#include "support/rows.h"
#include "support/scratch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MODEL  TSR_SOURCE_DIR "/examples/tiny-llama"
#define GOLDEN TSR_SOURCE_DIR "/tests/golden/"

#define LOGIT_TOLERANCE  1e-4
#define LOSS_TOLERANCE   1e-5
#define HIDDEN_TOLERANCE 2e-5 /* of the largest */

enum { D = 256, VOCAB = 4096, LAYERS = 6 };

static test_head head;

static int setup(void **state)
{
    (void)state;
    scratch_make();
    test_head_load(&head, MODEL, "lm_head.weight");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    test_head_free(&head);
    scratch_remove();
    return 0;
}

static job_spec evaluation(const char *data, const char *base)
{
    job_spec spec = {.purpose = TSR_JOB_EVALUATE};
    job_set(&spec, "model_name_or_path=%s", MODEL);
    job_set(&spec, "eval_dataset=%s", data);
    job_set(&spec, "per_device_eval_batch_size=4");
    job_set(&spec, "dtype=float32");
    job_set(&spec, "load_in_4bit=%s", strcmp(base, "nf4") ? "false" : "true");
    return spec;
}

/* Golden values of one case, rows of `stride` tokens. */
typedef struct {
    float *logsumexp, *nll, *loss, *logits_at, *logits_columns;
    int32_t *columns;
    uint64_t column_count, stride;
} expected;

static expected read_expected(tsr_safetensors *file, const char *name, uint64_t stride)
{
    char full[64];
    expected e = {.stride = stride};
    e.logsumexp = golden_f32(NULL, file, "%s.logsumexp", name);
    e.nll = golden_f32(NULL, file, "%s.nll", name);
    e.loss = golden_f32(NULL, file, "%s.loss", name);
    e.logits_at = golden_f32(NULL, file, "%s.logits_at", name);
    e.columns = golden_i32(&e.column_count, file, "columns");
    snprintf(full, sizeof full, "%s.logits_columns", name);
    if (tsr_safetensors_find(file, full))
        e.logits_columns = golden_f32(NULL, file, "%s", full);
    return e;
}

static void free_expected(expected *e)
{
    free(e->logsumexp);
    free(e->nll);
    free(e->loss);
    free(e->logits_at);
    free(e->logits_columns);
    free(e->columns);
}

/* The worst deviations of one case, and the sum of its losses. */
typedef struct {
    double logsumexp, nll, logits, loss_sum;
    int64_t loss_count;
} deviations;

/* Token `t` of row `row`; `index` counts the label rows of the micro-batch. next: the token that
 * follows in its document, -1 for its last. at: its row of logits_at, -1 for none. */
static void compare_token(deviations *worst, const expected *e, const test_rows *got, int64_t index,
                          uint64_t row, uint64_t t, int32_t next, int64_t at)
{
    double logits[VOCAB];
    uint64_t flat = row * e->stride + t;
    test_head_logits(logits, &head, got->rows + index * D);
    double lse = test_logsumexp(logits, VOCAB);
    worst->logsumexp = worse(fabs(lse - (double)e->logsumexp[flat]), worst->logsumexp);
    if (next >= 0) {
        double nll = (double)e->nll[row * (e->stride - 1) + t];
        worst->nll = worse(fabs(got->nll[index] - nll), worst->nll);
        worst->nll = worse(fabs(got->nll[index] - (lse - logits[next])), worst->nll);
        worst->loss_sum += got->nll[index];
        worst->loss_count++;
    }
    for (uint64_t c = 0; e->logits_columns && c < e->column_count; c++)
        worst->logits = worse(
            fabs(logits[e->columns[c]] - (double)e->logits_columns[flat * e->column_count + c]),
            worst->logits);
    for (int v = 0; at >= 0 && v < VOCAB; v++)
        worst->logits =
            worse(fabs(logits[v] - (double)e->logits_at[at * VOCAB + v]), worst->logits);
}

static void judge_all(const char *name, const deviations *worst, const expected *e)
{
    char what[96];
    snprintf(what, sizeof what, "%s logits", name);
    judge(what, worst->logits, LOGIT_TOLERANCE);
    snprintf(what, sizeof what, "%s logsumexp", name);
    judge(what, worst->logsumexp, LOGIT_TOLERANCE);
    snprintf(what, sizeof what, "%s nll", name);
    judge(what, worst->nll, LOGIT_TOLERANCE);
    snprintf(what, sizeof what, "%s loss", name);
    judge(what, fabs(worst->loss_sum / (double)worst->loss_count - (double)e->loss[0]),
          LOSS_TOLERANCE);
}

static void write_rows(const char *path, const int32_t *ids, const int32_t *lengths, bool extra)
{
    test_data data;
    test_data_begin(&data, path);
    for (int row = 0; row < 4; row++)
        test_data_row(&data, ids + (size_t)row * 96, NULL, &lengths[row], 1, extra);
    test_data_end(&data);
}

static int64_t find_position(const int32_t *positions, uint64_t count, int32_t t)
{
    for (uint64_t i = 0; i < count; i++)
        if (positions[i] == t)
            return (int64_t)i;
    return -1;
}

static void check_rows(const char *input, const char *base)
{
    tsr_safetensors *file = golden_open(GOLDEN "forward_tiny_llama.safetensors");
    uint64_t position_count;
    int32_t *ids = golden_i32(NULL, file, "%s.input_ids", input);
    int32_t *lengths = golden_i32(NULL, file, "%s.lengths", input);
    int32_t *positions = golden_i32(&position_count, file, "positions");
    bool dense = !strcmp(input, "dense");
    char name[64];
    test_evaluated got = {0}, plain = {0};
    deviations worst = {0};
    int64_t index = 0;
    snprintf(name, sizeof name, "%s.%s", input, base);
    expected e = read_expected(file, name, 96);
    write_rows(scratch_path("rows.jsonl"), ids, lengths, true);
    job_spec spec = evaluation(scratch_path("rows.jsonl"), base);
    job_run(&spec, test_evaluate, &got);
    for (int32_t row = 0; row < 4; row++)
        for (int32_t t = 0; t < lengths[row]; t++, index++) {
            bool last = t + 1 == lengths[row];
            int64_t at = find_position(positions, position_count, t);
            at = dense ? (at < 0 ? -1 : row * (int64_t)position_count + at) : last ? row : -1;
            compare_token(&worst, &e, &got.rows, index, (uint64_t)row, (uint64_t)t,
                          last ? -1 : ids[row * 96 + t + 1], at);
        }
    assert_int_equal(index, got.rows.count);
    judge_all(name, &worst, &e);
    /* Without the extra token tsr_job_evaluate's mean is the golden one. */
    write_rows(scratch_path("plain.jsonl"), ids, lengths, false);
    job_set(&spec, "eval_dataset=%s", scratch_path("plain.jsonl"));
    job_run(&spec, test_evaluate, &plain);
    assert_int_equal(plain.evaluation.label_tokens, worst.loss_count);
    snprintf(name, sizeof name, "%s.%s loss of tsr_job_evaluate", input, base);
    judge(name, fabs(plain.evaluation.loss - (double)e.loss[0]), LOSS_TOLERANCE);
    test_rows_free(&got.rows);
    test_rows_free(&plain.rows);
    free_expected(&e);
    free(ids);
    free(lengths);
    free(positions);
    tsr_safetensors_close(file);
}

static void test_dense_plain(void **state)
{
    (void)state;
    check_rows("dense", "bf16");
}

static void test_dense_nf4(void **state)
{
    (void)state;
    check_rows("dense", "nf4");
}

static void test_padded_plain(void **state)
{
    (void)state;
    check_rows("padded", "bf16");
}

static void test_padded_nf4(void **state)
{
    (void)state;
    check_rows("padded", "nf4");
}

/* ---- documents in one row ---- */

static void check_packed(const char *name)
{
    tsr_safetensors *file = golden_open(GOLDEN "packed_tiny_llama.safetensors");
    uint64_t tokens, ends;
    int32_t *ids = golden_i32(&tokens, file, "%s.input_ids", name);
    int32_t *cu = golden_i32(&ends, file, "%s.cu_seqlens", name);
    int32_t lengths[8];
    int documents = (int)ends - 1;
    test_evaluated got = {0};
    deviations worst = {0};
    test_data data;
    int64_t index = 0;
    expected e = read_expected(file, name, tokens);
    for (int i = 0; i < documents; i++)
        lengths[i] = cu[i + 1] - cu[i];
    test_data_begin(&data, scratch_path("packed.jsonl"));
    test_data_row(&data, ids, NULL, lengths, documents, true);
    test_data_end(&data);
    job_spec spec = evaluation(scratch_path("packed.jsonl"), "nf4");
    job_run(&spec, test_evaluate, &got);
    for (int i = 0; i < documents; i++)
        for (int32_t t = cu[i]; t < cu[i + 1]; t++, index++) {
            bool last = t + 1 == cu[i + 1];
            compare_token(&worst, &e, &got.rows, index, 0, (uint64_t)t, last ? -1 : ids[t + 1],
                          last ? i : -1);
        }
    assert_int_equal(index, got.rows.count);
    judge_all(name, &worst, &e);
    test_rows_free(&got.rows);
    free_expected(&e);
    free(ids);
    free(cu);
    tsr_safetensors_close(file);
}

static void test_packed_two(void **state)
{
    (void)state;
    check_packed("two");
}

static void test_packed_three(void **state)
{
    (void)state;
    check_packed("three");
}

/* A document gives the same bits alone, behind others and before others. */
static void test_documents_do_not_attend_across(void **state)
{
    (void)state;
    int32_t ids[60], other[60];
    const int32_t first[] = {20, 40}, second[] = {40};
    test_data data;
    test_evaluated got = {0};
    for (int i = 0; i < 60; i++) {
        ids[i] = 6 + i * 67 % 4000;
        other[i] = i < 20 ? 6 + i * 31 % 4000 : ids[i];
    }
    test_data_begin(&data, scratch_path("across.jsonl"));
    test_data_row(&data, ids, NULL, first, 2, false);
    test_data_row(&data, other, NULL, first, 2, false);
    test_data_row(&data, ids + 20, NULL, second, 1, false);
    test_data_end(&data);
    job_spec spec = evaluation(scratch_path("across.jsonl"), "nf4");
    job_set(&spec, "per_device_eval_batch_size=1");
    job_run(&spec, test_evaluate, &got);
    assert_int_equal(got.rows.count, 58 + 58 + 39);
    assert_memory_equal(got.rows.nll + 19, got.rows.nll + 58 + 19, 39 * sizeof(double));
    /* Alone it is a smaller matmul, of which a BLAS may take another kernel for the last rows. */
    double apart = 0;
    for (int i = 0; i < 39; i++)
        apart = worse(fabs(got.rows.nll[19 + i] - got.rows.nll[116 + i]), apart);
    judge("a document alone and behind another, losses", apart, LOGIT_TOLERANCE);
    assert_true(got.rows.nll[3] != got.rows.nll[58 + 3]);
    test_rows_free(&got.rows);
}

/* ---- what the layers pass on ---- */

/* The residual before each layer, from a training micro-batch with B = 0 (the adapter adds 0). */
static void copy_residuals(void *user, tsr_job *job, const tsr_micro_batch *micro, int64_t index)
{
    float *out = user;
    (void)index;
    for (int layer = 0; layer < LAYERS; layer++)
        memcpy(out + (size_t)layer * 4 * 97 * D, tsr_model_layer_input(job->model, layer),
               (size_t)micro->token_count * D * sizeof *out);
}

typedef struct {
    test_rows rows;
    float *residual; /* [LAYERS, 4 * 97, D] */
} residuals;

static tsr_status take_residuals(tsr_job *job, void *user)
{
    residuals *out = user;
    tsr_job_evaluation unused = TSR_JOB_EVALUATION_INIT;
    TSR_TRY(tsr_job_evaluate(job, &unused));
    TSR_TRY(job_micro_batches(job, false, 0, test_rows_take, &out->rows));
    int64_t word[TSR_WORD_COUNT];
    TSR_TRY(tsr_executor_eval_end(job->executor, &(tsr_host_flags){0}));
    TSR_TRY(tsr_executor_wait_word(job->executor, word));
    return job_micro_batches(job, true, 0, copy_residuals, out->residual);
}

static void check_hidden(const char *base)
{
    tsr_safetensors *file = golden_open(GOLDEN "forward_tiny_llama.safetensors");
    uint64_t count;
    int32_t *ids = golden_i32(NULL, file, "dense.input_ids");
    int32_t *positions = golden_i32(&count, file, "positions");
    float *hidden = golden_f32(NULL, file, "dense.%s.hidden_at", base);
    const int32_t lengths[4] = {96, 96, 96, 96};
    residuals got = {.residual = malloc((size_t)LAYERS * 4 * 97 * D * sizeof(float))};
    write_rows(scratch_path("rows.jsonl"), ids, lengths, true);
    job_spec spec = evaluation(scratch_path("rows.jsonl"), base);
    spec.purpose = TSR_JOB_TRAIN;
    job_set(&spec, "dataset=%s", scratch_path("rows.jsonl"));
    job_set(&spec, "per_device_train_batch_size=4");
    job_set(&spec, "shuffle=false");
    job_set(&spec, "gradient_checkpointing=none");
    job_set(&spec, "output_dir=%s", scratch_path(base));
    job_run(&spec, take_residuals, &got);
    for (int layer = 0; layer <= LAYERS; layer++) {
        double difference = 0, largest = 0;
        char what[64];
        for (uint64_t i = 0; i < 4 * count * D; i++) {
            uint64_t row = i / (count * D), t = (uint64_t)positions[i / D % count], k = i % D;
            double want = (double)hidden[(uint64_t)layer * 4 * count * D + i];
            double have = layer < LAYERS
                              ? (double)got.residual[(((uint64_t)layer * 4 + row) * 97 + t) * D + k]
                              : (double)got.rows.rows[(row * 96 + t) * D + k];
            difference = worse(fabs(have - want), difference);
            largest = fmax(largest, fabs(want));
        }
        snprintf(what, sizeof what, "dense.%s hidden %d / largest", base, layer);
        judge(what, difference / largest, HIDDEN_TOLERANCE);
    }
    test_rows_free(&got.rows);
    free(got.residual);
    free(ids);
    free(positions);
    free(hidden);
    tsr_safetensors_close(file);
}

static void test_hidden_plain(void **state)
{
    (void)state;
    check_hidden("bf16");
}

static void test_hidden_nf4(void **state)
{
    (void)state;
    check_hidden("nf4");
}

/* ---- the model's own golden logits ---- */

static double round_to_bf16(double x)
{
    float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
    memcpy(&f, &bits, sizeof f);
    return (double)f;
}

/* golden_logits was made by model.to(bfloat16).float(), which rounds RoPE's inverse frequencies too
 * (0.6641 for 0.6637...): from_pretrained keeps them in fp32, and Transformers itself is then 0.105
 * away from the file, as we are. So this file is compared with tables of the rounded frequencies;
 * the tables themselves are held against the other golden files and in the kernels' tests. */
static tsr_status evaluate_with_rounded_frequencies(tsr_job *job, void *user)
{
    tsr_model *model = job->model;
    int64_t half = (int64_t)job->inputs.model.head_dim / 2;
    for (int64_t i = 0; i < half; i++) {
        double theta = job->inputs.model.rope[0].theta;
        double frequency = round_to_bf16(pow(theta, -(double)i / (double)half));
        for (int64_t t = 0; t < model->tables.rope[0].position_count; t++) {
            model->cosine[t * half + i] = (float)cos((double)t * frequency);
            model->sine[t * half + i] = (float)sin((double)t * frequency);
        }
    }
    return test_evaluate(job, user);
}

static void test_golden_logits(void **state)
{
    (void)state;
    tsr_safetensors *file = golden_open(GOLDEN "tiny-llama/golden_logits.safetensors");
    int32_t *ids = golden_i32(NULL, file, "input_ids");
    float *want = golden_f32(NULL, file, "logits");
    int32_t *mask = golden_i32(NULL, file, "mask"), length = 0;
    test_evaluated got = {0};
    test_data data;
    double worst = 0, logits[VOCAB];
    while (length < 192 && mask[length])
        length++;
    assert_int_equal(length, 101);
    test_data_begin(&data, scratch_path("golden.jsonl"));
    test_data_row(&data, ids, NULL, &length, 1, true);
    test_data_end(&data);
    job_spec spec = evaluation(scratch_path("golden.jsonl"), "bf16");
    job_run(&spec, evaluate_with_rounded_frequencies, &got);
    assert_int_equal(got.rows.count, length);
    for (int32_t t = 0; t < length; t += 3) { /* the file has every third */
        test_head_logits(logits, &head, got.rows.rows + t * D);
        for (int v = 0; v < VOCAB; v++)
            worst = worse(fabs(logits[v] - (double)want[t / 3 * VOCAB + v]), worst);
    }
    judge("tiny-llama golden_logits", worst, LOGIT_TOLERANCE);
    test_rows_free(&got.rows);
    free(ids);
    free(want);
    free(mask);
    tsr_safetensors_close(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense_plain),
        cmocka_unit_test(test_dense_nf4),
        cmocka_unit_test(test_padded_plain),
        cmocka_unit_test(test_padded_nf4),
        cmocka_unit_test(test_packed_two),
        cmocka_unit_test(test_packed_three),
        cmocka_unit_test(test_documents_do_not_attend_across),
        cmocka_unit_test(test_hidden_plain),
        cmocka_unit_test(test_hidden_nf4),
        cmocka_unit_test(test_golden_logits),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
