/*
 * Each family of models against Transformers and PEFT: tests/golden/families/<family>, whose tolerances these are.
 * Losses of rows alone and packed, of every token, and logits, on the plain and the NF4 base; what enters each layer,
 * what the last one leaves and what the final norm makes of it; both traces of training, the gradient of every tensor at
 * step 1, and the same bits with all recomputed, on three ranks and with other units; the same model from config.json as it is
 * published.
 *
 * On a GPU the traces run in bf16 too: losses and norms of gradients near those in fp32 (measured on an H100:
 * 6e-3, 3e-3 of the norm at step 1, later 4e-3, of Gemma 4 5e-2).
 *
 *     test_model_families FAMILY [cuda]     cuda: on the first GPU; without one it exits with 77
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "io/json.h"
#include "io/peft.h"
#include "model/golden_trace.h"
#include "model/model_parts.h"
#include "support/golden.h"
#include "support/head.h"
#include "support/job.h"
#include "support/rows.h"
#include "support/scratch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LOSS_TOLERANCE      1e-5
#define LOGIT_TOLERANCE     3e-4 /* of nll too */
#define HIDDEN_TOLERANCE    5e-4
#define TRACE_TOLERANCE     3e-5
#define GRADIENT_TOLERANCE  3e-4 /* of the tensor's largest */
#define L2_TOLERANCE        1e-4 /* relative */
#define FINAL_TOLERANCE     5e-3
#define FINAL_RMS_TOLERANCE 3e-4
#define MOST_TOKENS         128
#define ROWS                2
#define STEPS               8

/* Golden logits and hidden states are of tokens 6, 13, 20, .. */
#define FIRST_TOKEN  6
#define TOKEN_STRIDE 7

static const char *family, *backend = "cpu", *dtype = "float32";

static const char *golden(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A path below the family's directory; the last four stay. */
static const char *golden(const char *format, ...)
{
    static char path[4][512];
    static int next;
    char *out = path[next++ % 4];
    va_list args;
    int used = snprintf(out, 512, "%s/tests/golden/families/%s/", TSR_SOURCE_DIR, family);
    va_start(args, format);
    vsnprintf(out + used, 512 - (size_t)used, format, args);
    va_end(args);
    return out;
}

static json_t *load(const char *path)
{
    json_t *root = json_load_file(path, 0, NULL);
    assert_non_null(root);
    return root;
}

static int setup(void **state)
{
    (void)state;
    scratch_make();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    scratch_remove();
    return 0;
}

/* ---- forward ---- */

typedef struct {
    int32_t id[MOST_TOKENS], label[MOST_TOKENS], length;
} row;

/* The rows of forward.jsonl. */
static void read_rows(row rows[ROWS])
{
    FILE *file = fopen(golden("forward.jsonl"), "r");
    assert_non_null(file);
    for (int i = 0; i < ROWS; i++) {
        json_t *line = json_loadf(file, JSON_DISABLE_EOF_CHECK, NULL);
        json_t *ids = json_object_get(line, "input_ids"), *labels = json_object_get(line, "labels");
        rows[i].length = (int32_t)json_array_size(ids);
        assert_in_range(rows[i].length, 2, MOST_TOKENS);
        for (int32_t t = 0; t < rows[i].length; t++) {
            rows[i].id[t] = (int32_t)json_integer_value(json_array_get(ids, (size_t)t));
            rows[i].label[t] = (int32_t)json_integer_value(json_array_get(labels, (size_t)t));
        }
        json_decref(line);
    }
    fclose(file);
}

/* How many tokens of a row have golden logits and hidden states. */
static uint64_t golden_tokens(int32_t length)
{
    return (uint64_t)(length - FIRST_TOKEN + TOKEN_STRIDE - 1) / TOKEN_STRIDE;
}

static bool on_gpu(void)
{
    return !strcmp(backend, "cuda");
}

static tsr_status evaluate_alone(tsr_job *job, void *user)
{
    test_evaluated *out = user;
    out->evaluation.size = sizeof out->evaluation;
    return tsr_job_evaluate(job, &out->evaluation);
}

/* An evaluation of the data in rows.jsonl. */
static job_spec evaluation(const char *base, const char *model)
{
    job_spec spec = {.purpose = TSR_JOB_EVALUATE};
    job_set(&spec, "backend=%s", backend);
    job_set(&spec, "model_name_or_path=%s", model);
    job_set(&spec, "eval_dataset=%s", scratch_path("rows.jsonl"));
    job_set(&spec, "per_device_eval_batch_size=1");
    job_set(&spec, "dtype=float32");
    job_set(&spec, "load_in_4bit=%s", strcmp(base, "nf4") ? "false" : "true");
    return spec;
}

/* The evaluation of rows [first, first + count) as documents of one row. */
static test_evaluated evaluate(const row *rows, int count, const char *base, const char *model)
{
    int32_t ids[ROWS * MOST_TOKENS], labels[ROWS * MOST_TOKENS], lengths[ROWS], at = 0;
    test_evaluated got = {0};
    test_data data;
    job_spec spec = evaluation(base, model);
    for (int i = 0; i < count; i++) {
        memcpy(ids + at, rows[i].id, (size_t)rows[i].length * sizeof *ids);
        memcpy(labels + at, rows[i].label, (size_t)rows[i].length * sizeof *labels);
        labels[at] = -100;
        at += lengths[i] = rows[i].length;
    }
    test_data_begin(&data, scratch_path("rows.jsonl"));
    test_data_row(&data, ids, labels, lengths, count, false);
    test_data_end(&data);
    job_run(&spec, on_gpu() ? evaluate_alone : test_evaluate, &got);
    return got;
}

/* rows.jsonl becomes one row, each of whose tokens is followed by a label. */
static void write_whole(const row *one)
{
    test_data data;
    test_data_begin(&data, scratch_path("rows.jsonl"));
    test_data_row(&data, one->id, NULL, &one->length, 1, true);
    test_data_end(&data);
}

static void judge_rows(const char *base)
{
    row rows[ROWS];
    json_t *facts = load(golden("forward.json")), *of_base = json_object_get(facts, base);
    const json_t *losses = json_object_get(of_base, "loss");
    bool exact = !strcmp(json_string_value(json_object_get(facts, "packing")), "exact");
    const json_t *packed =
        json_object_get(of_base, exact ? "packed_loss" : "packed_loss_of_documents_alone");
    char what[64];
    read_rows(rows);
    for (int i = 0; i < ROWS; i++) {
        test_evaluated got = evaluate(&rows[i], 1, base, golden("checkpoint"));
        snprintf(what, sizeof what, "%s loss of row %d", base, i);
        judge(what,
              fabs(got.evaluation.loss - json_number_value(json_array_get(losses, (size_t)i))),
              LOSS_TOLERANCE);
        test_rows_free(&got.rows);
    }
    test_evaluated got = evaluate(rows, ROWS, base, golden("checkpoint"));
    snprintf(what, sizeof what, "%s loss of both, packed", base);
    judge(what, fabs(got.evaluation.loss - json_number_value(packed)), LOSS_TOLERANCE);
    test_rows_free(&got.rows);
    json_decref(facts);
}

static void test_plain(void **state)
{
    (void)state;
    judge_rows("plain");
}

static void test_nf4(void **state)
{
    (void)state;
    judge_rows("nf4");
}

/* ---- logits ---- */

/* The model as its config.json says, and its head. */
typedef struct {
    tsr_model_config config;
    test_head head;
} top;

static top load_top(void)
{
    top out;
    const char *checkpoint = golden("checkpoint");
    assert_int_equal(tsr_model_config_load(&out.config, checkpoint), TSR_OK);
    test_head_load(&out.head, checkpoint,
                   out.config.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight");
    return out;
}

/* The farthest that logits [count, vocab] are from those of rows [count, d], `stride` rows from one to the next, which
 * logits_divisor has divided. */
static double logits_apart(const top *t, const float *want, const float *rows, uint64_t count,
                           uint64_t stride)
{
    double worst = 0, cap = t->config.logits_softcap;
    double *logits = malloc(t->head.vocab * sizeof *logits);
    assert_non_null(logits);
    for (uint64_t i = 0; i < count; i++) {
        test_head_logits(logits, &t->head, rows + i * stride * t->head.d);
        for (uint64_t v = 0; v < t->head.vocab; v++) {
            double got = cap != 0 ? cap * tanh(logits[v] / cap) : logits[v];
            worst = worse(fabs(got - (double)want[i * t->head.vocab + v]), worst);
        }
    }
    free(logits);
    return worst;
}

/* The loss of every token of row i. */
static void judge_tokens(tsr_safetensors *file, const char *base, int i, const test_evaluated *got)
{
    uint64_t count;
    double worst = 0;
    float *nll = golden_f32(&count, file, "%s.row%d.nll", base, i);
    assert_int_equal(count, got->rows.count - 1);
    for (uint64_t j = 0; j < count; j++)
        worst = worse(fabs(got->rows.nll[j] - (double)nll[j]), worst);
    judge("loss of a token", worst, LOGIT_TOLERANCE);
    free(nll);
}

static test_evaluated evaluate_whole(const row *one, const char *base)
{
    test_evaluated got = {0};
    write_whole(one);
    job_spec spec = evaluation(base, golden("checkpoint"));
    job_run(&spec, test_evaluate, &got);
    assert_int_equal(got.rows.count, one->length);
    return got;
}

/* On the plain base. */
static void test_logits_plain(void **state)
{
    (void)state;
    row rows[ROWS];
    tsr_safetensors *file = golden_open(golden("forward.safetensors"));
    top t = load_top();
    read_rows(rows);
    for (int i = 0; i < ROWS; i++) {
        uint64_t count;
        float *want = golden_f32(&count, file, "plain.row%d.logits", i);
        test_evaluated got = evaluate_whole(&rows[i], "plain");
        assert_int_equal(count, golden_tokens(rows[i].length) * t.head.vocab);
        judge("logits",
              logits_apart(&t, want, got.rows.rows + FIRST_TOKEN * t.head.d,
                           golden_tokens(rows[i].length), TOKEN_STRIDE),
              LOGIT_TOLERANCE);
        judge_tokens(file, "plain", i, &got);
        test_rows_free(&got.rows);
        free(want);
    }
    test_head_free(&t.head);
    tsr_safetensors_close(file);
}

/* On the NF4 base of the first row's last four tokens. */
static void test_logits_nf4(void **state)
{
    (void)state;
    row rows[ROWS];
    uint64_t count;
    tsr_safetensors *file = golden_open(golden("forward.safetensors"));
    top t = load_top();
    float *last = golden_f32(&count, file, "nf4.row0.logits_last4");
    assert_int_equal(count, 4 * t.head.vocab);
    read_rows(rows);
    for (int i = 0; i < ROWS; i++) {
        test_evaluated got = evaluate_whole(&rows[i], "nf4");
        const float *four = got.rows.rows + (uint64_t)(rows[i].length - 4) * t.head.d;
        judge_tokens(file, "nf4", i, &got);
        if (i == 0)
            judge("logits of the last four tokens", logits_apart(&t, last, four, 4, 1),
                  LOGIT_TOLERANCE);
        test_rows_free(&got.rows);
    }
    free(last);
    test_head_free(&t.head);
    tsr_safetensors_close(file);
}

/* ---- hidden states ---- */

/* [layers + 2, tokens, d]: what each layer gets, what the last one leaves, and that after the final norm. */
typedef struct {
    float *states;
    uint64_t layers, tokens, d;
} hidden;

static void copy_states(hidden *out, uint64_t entry, const void *from)
{
    uint64_t count = out->tokens * out->d;
    memcpy(out->states + entry * count, from, count * sizeof *out->states);
}

/* An evaluation keeps what the head got, a training step what each layer got. */
static void take_top(void *user, tsr_job *job, const tsr_micro_batch *micro, int64_t index)
{
    hidden *out = user;
    (void)micro;
    (void)index;
    copy_states(out, out->layers, job->model->activations.head.x);
    copy_states(out, out->layers + 1, job->model->activations.head.h);
}

static void take_layers(void *user, tsr_job *job, const tsr_micro_batch *micro, int64_t index)
{
    hidden *out = user;
    (void)micro;
    (void)index;
    for (uint64_t i = 0; i < out->layers; i++)
        copy_states(out, i, tsr_model_layer_input(job->model, (int)i));
}

/* The adapter's B is 0: it adds nothing. */
static tsr_status take_hidden(tsr_job *job, void *user)
{
    tsr_job_evaluation unused = TSR_JOB_EVALUATION_INIT;
    int64_t word[TSR_WORD_COUNT];
    TSR_TRY(tsr_job_evaluate(job, &unused));
    TSR_TRY(job_micro_batches(job, false, 0, take_top, user));
    TSR_TRY(tsr_executor_eval_end(job->executor, &(tsr_host_flags){0}));
    TSR_TRY(tsr_executor_wait_word(job->executor, word));
    return job_micro_batches(job, true, 0, take_layers, user);
}

/* The farthest that an entry is from the golden one, [golden tokens, d]. */
static double hidden_apart(const hidden *got, uint64_t entry, const float *want, double divisor)
{
    const float *states = got->states + entry * got->tokens * got->d;
    double worst = 0;
    for (uint64_t t = FIRST_TOKEN; t < got->tokens; t += TOKEN_STRIDE)
        for (uint64_t i = 0; i < got->d; i++)
            worst = worse(fabs((double)states[t * got->d + i] * divisor - (double)*want++), worst);
    return worst;
}

static void test_hidden(void **state)
{
    (void)state;
    row rows[ROWS];
    uint64_t count;
    tsr_model_config config;
    tsr_safetensors *file = golden_open(golden("forward.safetensors"));
    float *want = golden_f32(&count, file, "plain.row0.hidden");
    assert_int_equal(tsr_model_config_load(&config, golden("checkpoint")), TSR_OK);
    read_rows(rows);
    hidden got = {
        .layers = config.layer_count, .tokens = (uint64_t)rows[0].length, .d = config.hidden_size};
    assert_int_equal(count, (got.layers + 2) * golden_tokens(rows[0].length) * got.d);
    got.states = calloc((got.layers + 2) * got.tokens * got.d, sizeof *got.states);
    assert_non_null(got.states);
    write_whole(&rows[0]);
    job_spec spec = evaluation("plain", golden("checkpoint"));
    spec.purpose = TSR_JOB_TRAIN;
    job_set(&spec, "dataset=%s", scratch_path("rows.jsonl"));
    job_set(&spec, "per_device_train_batch_size=1");
    job_set(&spec, "gradient_checkpointing=none");
    job_set(&spec, "output_dir=%s", scratch_path("hidden"));
    job_run(&spec, take_hidden, &got);
    for (uint64_t entry = 0; entry < got.layers + 2; entry++) {
        double divisor =
            entry > got.layers && config.logits_divisor != 0 ? config.logits_divisor : 1;
        char what[64];
        snprintf(what, sizeof what, "hidden states %d of %d", (int)entry, (int)got.layers + 1);
        judge(what, hidden_apart(&got, entry, want + entry * (count / (got.layers + 2)), divisor),
              HIDDEN_TOLERANCE);
    }
    free(got.states);
    free(want);
    tsr_safetensors_close(file);
}

/* ---- config.json ---- */

/* The keys that published files have mean the same. */
static void test_published(void **state)
{
    (void)state;
    row rows[ROWS];
    const char *model = scratch_path("published");
    char command[2048];
    snprintf(command, sizeof command,
             "mkdir -p %s && cp %s/model.safetensors %s && cp %s %s/config.json", model,
             golden("checkpoint"), model, golden("config_published_style.json"), model);
    assert_int_equal(system(command), 0);
    read_rows(rows);
    test_evaluated a = evaluate(rows, 1, "plain", golden("checkpoint"));
    test_evaluated b = evaluate(rows, 1, "plain", model);
    assert_int_equal(a.rows.count, b.rows.count);
    assert_memory_equal(a.rows.nll, b.rows.nll, (size_t)a.rows.count * sizeof *a.rows.nll);
    test_rows_free(&a.rows);
    test_rows_free(&b.rows);
}

/* ---- training ---- */

typedef struct {
    const char
        *gradients; /* the golden trace whose gradients those of step 1 must be; NULL: none */
    double loss[STEPS], grad_norm[STEPS];
    int64_t label_tokens[STEPS];
} trace;

/* Every tensor of the adapter, and no other, has the golden gradient. */
static void judge_gradients(const char *name, const tsr_job *job)
{
    golden_trace facts;
    golden_trace_open(&facts, golden("%s", name));
    const tsr_layout *layout = &job->inputs.layout;
    double worst[2] = {0};
    uint64_t compared = 0;
    for (int unit = 0; unit < layout->layer_count; unit++)
        for (int i = 0; i < tsr_layout_linears(&layout->unit[unit]); i++) {
            const tsr_layout_linear *linear = &layout->unit[unit].linear[i];
            const int segment[] = {linear->a, linear->b, linear->m};
            for (int part = 0; linear->r && part < 2 + linear->dora; part++) {
                uint64_t count;
                char *tensor;
                double *got = job_gradient(&count, job, unit, segment[part]);
                assert_int_equal(tsr_peft_tensor_name(&tensor, linear->path, (tsr_peft_part)part),
                                 TSR_OK);
                golden_gradient_apart(worst, golden_trace_find(&facts, tensor), got, count);
                compared++;
                free(tensor);
                free(got);
            }
        }
    assert_int_equal(compared, facts.count);
    judge("gradients at step 1, of a tensor's largest", worst[0], GRADIENT_TOLERANCE);
    judge("their norms", worst[1], L2_TOLERANCE);
    golden_trace_close(&facts);
}

static tsr_status train(tsr_job *job, void *user)
{
    trace *out = user;
    if (!on_gpu()) /* as every run on a GPU does: all layers with kernels that do nothing */
        TSR_TRY(tsr_model_prepare(job->model, &(tsr_batch_shape){32, 16, true}, 1,
                                  &(tsr_prepare_args){0}));
    for (int i = 0; i < STEPS; i++) {
        tsr_job_report report = TSR_JOB_REPORT_INIT;
        TSR_TRY(tsr_job_step(job, &report));
        if (i == 0 && out->gradients)
            judge_gradients(out->gradients, job);
        if (job->view.rank)
            continue;
        out->loss[i] = report.loss;
        out->grad_norm[i] = report.grad_norm;
        out->label_tokens[i] = report.label_tokens;
    }
    return tsr_job_save(job);
}

static trace run_trace(const char *name, int ranks, const char *recompute, const char *units,
                       const char *output)
{
    job_spec spec = {.purpose = TSR_JOB_TRAIN, .ranks = ranks};
    trace out = {.gradients = ranks == 1 && !strcmp(dtype, "float32") ? name : NULL};
    job_set(&spec, "backend=%s", backend);
    job_set(&spec, "model_name_or_path=%s", golden("checkpoint"));
    job_set(&spec, "dataset=%s", golden("train.jsonl"));
    job_set(&spec, "init_adapter=%s", golden("%s/init", name));
    job_set(&spec, "output_dir=%s", output);
    job_set(&spec, "gradient_checkpointing=%s", recompute);
    job_set(&spec, "unit_policy=%s", units);
    job_set(&spec, "dtype=%s", dtype);
    job_set(&spec, "shuffle=false");
    job_set(&spec, "per_device_train_batch_size=1");
    job_set(&spec, "total_batch_size=4");
    job_set(&spec, "max_steps=%d", STEPS);
    job_set(&spec, "learning_rate=2e-3");
    job_set(&spec, "max_grad_norm=0");
    job_set(&spec, "lr_scheduler_type=constant");
    job_run(&spec, train, &out);
    return out;
}

/* How far a trace may be from the golden one. */
typedef struct {
    double loss, first, later;
} nearness;

static void judge_steps(const char *name, const trace *got, nearness most)
{
    json_t *facts = load(golden("%s/trace.json", name)), *steps = json_object_get(facts, "steps");
    double loss = 0, first = 0, later = 0;
    assert_int_equal(json_array_size(steps), STEPS);
    for (int i = 0; i < STEPS; i++) {
        const json_t *step = json_array_get(steps, (size_t)i);
        double norm = json_number_value(json_object_get(step, "grad_norm"));
        double apart = fabs(got->grad_norm[i] / norm - 1);
        assert_int_equal(got->label_tokens[i],
                         json_integer_value(json_object_get(step, "label_tokens")));
        loss = worse(fabs(got->loss[i] - json_number_value(json_object_get(step, "loss"))), loss);
        first = i == 0 ? apart : first;
        later = worse(apart, later);
    }
    judge("losses", loss, most.loss);
    judge("norm of the gradient at step 1", first, most.first);
    judge("norm of the gradient", later, most.later);
    json_decref(facts);
}

static void judge_final(const char *name, const char *written)
{
    golden_trace facts;
    golden_trace_open(&facts, golden("%s", name));
    golden_trace_judge_final(&facts, written, FINAL_TOLERANCE, FINAL_RMS_TOLERANCE);
    golden_trace_close(&facts);
}

static void judge_trace(const char *name)
{
    char alone[512], other[600];
    const struct {
        int ranks;
        const char *recompute, *units;
    } ways[] = {{1, "full", "down_proj"}, {on_gpu() ? 1 : 3, "selective", "self_attn, mlp"}};
    snprintf(alone, sizeof alone, "%s", scratch_path("alone"));
    trace first = run_trace(name, 1, "none", "layer", alone);
    judge_steps(name, &first, (nearness){TRACE_TOLERANCE, 2e-5, 1e-4});
    judge_final(name, alone);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        snprintf(other, sizeof other, "%s_%zu", alone, i);
        trace got = run_trace(name, ways[i].ranks, ways[i].recompute, ways[i].units, other);
        assert_memory_equal(got.loss, first.loss, sizeof got.loss);
        assert_memory_equal(got.grad_norm, first.grad_norm, sizeof got.grad_norm);
        golden_same_adapter(alone, other);
    }
}

static void test_lora(void **state)
{
    (void)state;
    judge_trace("a_lora_attention");
}

static void test_dora(void **state)
{
    (void)state;
    judge_trace("b_dora_all_linear");
}

/* Tensor cores, and the kernels that serve bf16 alone. */
static void test_bf16(void **state)
{
    (void)state;
    static const char *const names[] = {"a_lora_attention", "b_dora_all_linear"};
    dtype = "bfloat16";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char output[512];
        snprintf(output, sizeof output, "%s", scratch_path(names[i]));
        trace got = run_trace(names[i], 1, "none", "layer", output);
        judge_steps(names[i], &got, (nearness){1.5e-2, 1e-2, 1e-1});
    }
    dtype = "float32";
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_plain, setup, teardown),
        cmocka_unit_test_setup_teardown(test_nf4, setup, teardown),
        cmocka_unit_test_setup_teardown(test_logits_plain, setup, teardown),
        cmocka_unit_test_setup_teardown(test_logits_nf4, setup, teardown),
        cmocka_unit_test_setup_teardown(test_hidden, setup, teardown),
        cmocka_unit_test_setup_teardown(test_published, setup, teardown),
        cmocka_unit_test_setup_teardown(test_lora, setup, teardown),
        cmocka_unit_test_setup_teardown(test_dora, setup, teardown),
    };
    const struct CMUnitTest gpu[] = {
        cmocka_unit_test_setup_teardown(test_plain, setup, teardown),
        cmocka_unit_test_setup_teardown(test_nf4, setup, teardown),
        cmocka_unit_test_setup_teardown(test_lora, setup, teardown),
        cmocka_unit_test_setup_teardown(test_dora, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bf16, setup, teardown),
    };
    if (argc < 2 || argc > 3) {
        fprintf(stderr, "test_model_families FAMILY [cuda]\n");
        return 64;
    }
    family = argv[1];
    backend = argc > 2 ? argv[2] : backend;
    int gpus = 0;
    if (on_gpu() && (tsr_device_cuda_count(&gpus) != TSR_OK || gpus < 1))
        return 77;
    return on_gpu() ? cmocka_run_group_tests(gpu, NULL, NULL)
                    : cmocka_run_group_tests(tests, NULL, NULL);
}
