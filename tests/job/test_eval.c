/*
 * `tessera eval` and tsr_job_evaluate against Hugging Face's evaluation of the first 64 rows of
 * GSM8K: plain and NF4 base, assistant's and all labels, through the program on 1 and 2 ranks, and
 * row by row through the library.
 * Golden: tests/golden/eval_tiny_llama.json. Tolerances: means 1e-5, tokens exact, the sum of a
 * row's losses 1e-5 a token.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "io/json.h"
#include "support/golden.h"
#include "support/job.h"
#include "support/scratch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define MODEL     TSR_SOURCE_DIR "/examples/tiny-llama"
#define DATA      TSR_SOURCE_DIR "/examples/data/gsm8k_eval.jsonl"
#define TOLERANCE 1e-5

enum { ROWS = 64 };

/* Row by row the first of them; the program has all. Under a sanitizer fewer rows, and the program on one case. */
#ifdef TSR_SANITIZED
enum { LIBRARY_ROWS = 6, PROGRAM_CASES = 1 };
#else
enum { LIBRARY_ROWS = 16, PROGRAM_CASES = 4 };
#endif

static json_t *golden;

static int setup(void **state)
{
    (void)state;
    scratch_make();
    return tsr_json_load_object(&golden, TSR_SOURCE_DIR "/tests/golden/eval_tiny_llama.json");
}

static int teardown(void **state)
{
    (void)state;
    json_decref(golden);
    scratch_remove();
    return 0;
}

typedef struct {
    const char *name; /* in the golden file */
    const char *four_bit, *assistant;
} eval_case;

static const eval_case cases[] = {
    {"bf16.assistant", "false", "true"},
    {"bf16.full", "false", "false"},
    {"nf4.assistant", "true", "true"},
    {"nf4.full", "true", "false"},
};

static const json_t *expected(const eval_case *c)
{
    const json_t *result = json_object_get(json_object_get(golden, "results"), c->name);
    assert_non_null(result);
    return result;
}

static double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

/* ---- the program ---- */

/* The program starts MPI, which leaks a little and is not built for ThreadSanitizer. */
#ifdef TSR_SANITIZED
#define ENVIRONMENT "ASAN_OPTIONS=detect_leaks=0 "
#else
#define ENVIRONMENT ""
#endif

/* Standard output of a command that must end with 0. The caller frees. */
static char *output_of(const char *command)
{
    uint64_t bytes;
    char redirected[2000];
    snprintf(redirected, sizeof redirected, "%s >'%s' 2>'%s'", command, scratch_path("stdout"),
             scratch_path("stderr"));
    int status = system(redirected);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail_msg("%s: status %d: %s", command, status, read_whole(&bytes, scratch_path("stderr")));
    char *text = read_whole(&bytes, scratch_path("stdout"));
    text = realloc(text, bytes + 1);
    text[bytes] = 0;
    return text;
}

static void check_program(const eval_case *c, int ranks)
{
    char command[1500], launch[200] = "", what[64];
    const json_t *want = expected(c);
    json_t *got = NULL;
    if (ranks > 1)
        snprintf(launch, sizeof launch, "%s/launch/run -n %d ", TSR_SOURCE_DIR, ranks);
    snprintf(command, sizeof command,
             ENVIRONMENT "%s'%s' eval '%s' load_in_4bit=%s assistant_only_loss=%s --json", launch,
             TSR_PROGRAM, scratch_path("job.yaml"), c->four_bit, c->assistant);
    char *text = output_of(command);
    if (tsr_json_parse(&got, text, strlen(text), "the program's output") < 0)
        fail_msg("%s: %s", tsr_last_error(), text);
    assert_int_equal(number(got, "eval_label_tokens"), number(want, "tokens"));
    assert_int_equal(number(got, "rows"), ROWS);
    snprintf(what, sizeof what, "%s on %d ranks, loss", c->name, ranks);
    judge(what, fabs(number(got, "eval_loss") - number(want, "mean_loss")), TOLERANCE);
    snprintf(what, sizeof what, "%s on %d ranks, perplexity / it", c->name, ranks);
    judge(what, fabs(number(got, "perplexity") / number(want, "perplexity") - 1), TOLERANCE);
    /* Their values: test_head.c. */
    assert_true(number(got, "eval_mean_token_accuracy") > 0.4);
    assert_true(number(got, "eval_mean_token_accuracy") < 0.8);
    assert_true(number(got, "eval_entropy") > 1 && number(got, "eval_entropy") < 2);
    json_decref(got);
    free(text);
}

__attribute__((unused)) static void test_program(void **state)
{
    (void)state;
    FILE *file = fopen(scratch_path("job.yaml"), "w");
    assert_non_null(file);
    fprintf(file,
            "model_name_or_path: %s\neval_dataset: %s\nmax_eval_samples: %d\n"
            "dtype: float32\nper_device_eval_batch_size: 2\n",
            MODEL, DATA, ROWS);
    assert_int_equal(fclose(file), 0);
    for (int i = 0; i < PROGRAM_CASES; i++)
        check_program(&cases[i], 2);
    check_program(&cases[2], 1);
    if (PROGRAM_CASES > 1)
        check_program(&cases[1], 1);
}

/* An adapter whose last numbers are the largest that there are: what is printed is JSON still. */
__attribute__((unused)) static void test_not_finite(void **state)
{
    (void)state;
    static const char adapter[] = TSR_SOURCE_DIR "/tests/golden/traces/init/lora_r8/";
    char command[1500];
    uint64_t bytes;
    json_t *got = NULL;
    snprintf(command, sizeof command, "cp -r '%s' '%s'", adapter, scratch_path("adapter"));
    assert_int_equal(system(command), 0);
    char *data = read_whole(&bytes, scratch_path("adapter/adapter_model.safetensors"));
    memset(data + bytes - 256, 0x7F, 256); /* in bf16 and in fp32 */
    write_bytes(scratch_path("adapter/adapter_model.safetensors"), data, bytes);
    free(data);
    snprintf(command, sizeof command,
             ENVIRONMENT "'%s' eval '%s' max_eval_samples=1 init_adapter='%s' --json", TSR_PROGRAM,
             scratch_path("job.yaml"), scratch_path("adapter"));
    char *text = output_of(command);
    if (tsr_json_parse(&got, text, strlen(text), "the program's output") < 0)
        fail_msg("%s: %s", tsr_last_error(), text);
    assert_true(json_is_null(json_object_get(got, "eval_loss")));
    assert_true(json_is_null(json_object_get(got, "perplexity")));
    assert_true(json_is_null(json_object_get(got, "eval_mean_token_accuracy")));
    assert_true(json_is_null(json_object_get(got, "eval_entropy")));
    json_decref(got);
    free(text);
}

/* ---- the library ---- */

typedef struct {
    double sum[ROWS];
    int64_t tokens[ROWS];
    tsr_job_evaluation evaluation[2]; /* of each rank */
} row_sums;

static void take_row(void *user, tsr_job *job, const tsr_micro_batch *micro, int64_t index)
{
    row_sums *out = user;
    const double *nll = tsr_model_nll(job->model);
    out->tokens[index] = micro->label_count;
    for (int32_t i = 0; i < micro->label_count; i++)
        out->sum[index] += nll[i];
}

static tsr_status evaluate(tsr_job *job, void *user)
{
    row_sums *out = user;
    tsr_job_evaluation *evaluation = &out->evaluation[tsr_job_rank(job)];
    evaluation->size = sizeof *evaluation;
    TSR_TRY(tsr_job_evaluate(job, evaluation));
    return job_micro_batches(job, false, 0, take_row, out);
}

static row_sums *run(const eval_case *c, int ranks, int rows)
{
    row_sums *out = calloc(1, sizeof *out);
    job_spec spec = {.purpose = TSR_JOB_EVALUATE, .ranks = ranks};
    assert_non_null(out);
    job_set(&spec, "model_name_or_path=%s", MODEL);
    job_set(&spec, "eval_dataset=%s", DATA);
    job_set(&spec, "max_eval_samples=%d", rows);
    job_set(&spec, "per_device_eval_batch_size=1");
    job_set(&spec, "dtype=float32");
    job_set(&spec, "load_in_4bit=%s", c->four_bit);
    job_set(&spec, "assistant_only_loss=%s", c->assistant);
    job_run(&spec, evaluate, out);
    return out;
}

static void check_rows(const eval_case *c)
{
    const json_t *tokens = json_object_get(expected(c), "row_tokens");
    const json_t *sums = json_object_get(expected(c), "row_loss_sum");
    row_sums *got = run(c, 1, LIBRARY_ROWS);
    double worst = 0, total = 0;
    int64_t count = 0;
    char what[64];
    assert_int_equal(json_array_size(tokens), ROWS);
    for (size_t row = 0; row < LIBRARY_ROWS; row++) {
        double sum = json_number_value(json_array_get(sums, row));
        assert_int_equal(got->tokens[row], json_integer_value(json_array_get(tokens, row)));
        worst = worse(fabs(got->sum[row] - sum) / (double)got->tokens[row], worst);
        total += sum;
        count += got->tokens[row];
    }
    snprintf(what, sizeof what, "%s worst row, a token", c->name);
    judge(what, worst, TOLERANCE);
    snprintf(what, sizeof what, "%s loss of tsr_job_evaluate", c->name);
    judge(what, fabs(got->evaluation[0].loss - total / (double)count), TOLERANCE);
    assert_int_equal(got->evaluation[0].label_tokens, count);
    assert_int_equal(got->evaluation[0].rows, LIBRARY_ROWS);
    free(got);
}

static void test_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_rows(&cases[i]);
}

/* Two ranks compute the same bits as one, each row and the mean, and tell both the same. */
static void test_two_ranks_same_bits(void **state)
{
    (void)state;
    row_sums *one = run(&cases[2], 1, 5), *two = run(&cases[2], 2, 5);
    assert_memory_equal(two->sum, one->sum, sizeof one->sum);
    assert_true(two->evaluation[0].loss == one->evaluation[0].loss);
    assert_true(two->evaluation[1].loss == one->evaluation[0].loss);
    assert_int_equal(two->evaluation[1].label_tokens, one->evaluation[0].label_tokens);
    free(one);
    free(two);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#ifndef __SANITIZE_THREAD__
        cmocka_unit_test(test_program),
        cmocka_unit_test(test_not_finite),
#endif
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_two_ranks_same_bits),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
