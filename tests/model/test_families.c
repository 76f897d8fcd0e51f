/*
 * Each family of models against Transformers and PEFT: tests/golden/families/<family>, whose tolerances these are.
 * Losses of rows alone and packed, of every token, and logits, on the plain and the NF4 base; what enters each layer,
 * what the last one leaves and what the final norm makes of it; the codes of NF4 weights; of experts, which ones every
 * token goes to, and with which weights; the traces of training, the gradient of every tensor at step 1, and the same bits
 * with all recomputed, on three ranks and with other units; the same model from config.json as it is published.
 *
 * Which of these there are depends on the family's files: gpt_oss_mxfp4 has a forward alone.
 *
 * On a GPU the traces run in bf16 too: losses and norms of gradients near those in fp32 (measured on an H100:
 * 6e-3, 3e-3 of the norm at step 1, later 4e-3, of Gemma 4 5e-2; of Qwen 3.5 more: family_traces.c).
 *
 *     test_model_families FAMILY [cuda]     cuda: on the first GPU; without one it exits with 77
 */
#include "model/family_runs.h"

#include "model/model_parts.h"
#include "support/scratch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LOSS_TOLERANCE   1e-5
#define LOGIT_TOLERANCE  3e-4 /* of nll too */
#define HIDDEN_TOLERANCE 5e-4

/* ---- losses ---- */

static void judge_rows(const char *base)
{
    row rows[ROWS];
    json_t *facts = load(golden("forward.json")), *of_base = json_object_get(facts, base);
    const json_t *losses = json_object_get(of_base, "loss");
    const json_t *packing = json_object_get(facts, "packing");
    bool exact = packing && !strcmp(json_string_value(packing), "exact");
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
    if (packing) {
        test_evaluated got = evaluate(rows, ROWS, base, golden("checkpoint"));
        snprintf(what, sizeof what, "%s loss of both, packed", base);
        judge(what, fabs(got.evaluation.loss - json_number_value(packed)), LOSS_TOLERANCE);
        test_rows_free(&got.rows);
    }
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
    TSR_TRY(tsr_job_evaluate(job, &unused));
    TSR_TRY(job_micro_batches(job, false, 0, take_top, user));
    TSR_TRY(tsr_executor_eval_end(job->executor, &(tsr_host_flags){0}));
    TSR_TRY(tsr_executor_wait_word(job->executor, job->word));
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

/* A test, and the file or directory of the family that it is of; NULL: every family has it. */
typedef struct {
    const char *file;
    struct CMUnitTest test;
} family_test;

#define EXPERTS ":experts"
#define OF(file, test)                                                                             \
    {                                                                                              \
        file, cmocka_unit_test_setup_teardown(test, setup, teardown)                               \
    }

static const family_test on_cpu[] = {
    OF(NULL, test_plain),
    OF("nf4.json", test_nf4),
    OF(NULL, test_logits_plain),
    OF("nf4.json", test_logits_nf4),
    OF("nf4.json", test_codes),
    OF("nf4.json", test_hidden),
#ifdef TEST_ROUTES
    OF(EXPERTS, test_routes),
#endif
    OF("config_published_style.json", test_published),
    OF("a_lora_attention", test_lora),
    OF("a_lora_attention", test_second),
    OF("c_lora_aux_loss", test_auxiliary),
};

static const family_test of_gpu[] = {
    OF(NULL, test_plain),
    OF("nf4.json", test_nf4),
    OF("a_lora_attention", test_lora),
    OF("a_lora_attention", test_second),
    OF("c_lora_aux_loss", test_auxiliary),
    OF("a_lora_attention", test_bf16),
};

/* Some layer has experts. */
static bool has_experts(void)
{
    tsr_safetensors *file = golden_open(golden("forward.safetensors"));
    bool found = false;
    for (uint64_t i = 0; i < tsr_safetensors_count(file); i++)
        found |= strstr(tsr_safetensors_at(file, i)->name, ".ids") != NULL;
    tsr_safetensors_close(file);
    return found;
}

static bool is_of(const char *file)
{
    return !file || (strcmp(file, EXPERTS) ? golden_has(file) : has_experts());
}

static int run(const family_test *tests, size_t count)
{
    struct CMUnitTest chosen[16];
    size_t chosen_count = 0;
    for (size_t i = 0; i < count; i++)
        if (is_of(tests[i].file))
            chosen[chosen_count++] = tests[i].test;
    return _cmocka_run_group_tests(family, chosen, chosen_count, NULL, NULL);
}

int main(int argc, char **argv)
{
    if (argc < 2 || argc > 3) {
        fprintf(stderr, "test_model_families FAMILY [cuda]\n");
        return 64;
    }
    family = argv[1];
    backend = argc > 2 ? argv[2] : backend;
    int gpus = 0;
    if (on_gpu() && (tsr_device_cuda_count(&gpus) != TSR_OK || gpus < 1))
        return 77;
    return on_gpu() ? run(of_gpu, sizeof of_gpu / sizeof *of_gpu)
                    : run(on_cpu, sizeof on_cpu / sizeof *on_cpu);
}
