/*
 * neftune_noise_alpha in whole jobs: what the first layer gets is what it gets without, and the noise of each token's
 * sample and position, as large as the rows of its micro-batch are long; of an embedding that is scaled, before or after
 * that as in Transformers. Nothing in evaluations.
 */
#include "support/job.h"
#include "support/scratch.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MOST_MICRO 8
#define ALPHA      7.5
#define SEED       5

/* What the first layer got, of each micro-batch. */
typedef struct {
    int count;
    int64_t tokens[MOST_MICRO], longest[MOST_MICRO], columns;
    int64_t *samples[MOST_MICRO];
    int32_t *positions[MOST_MICRO];
    float *x[MOST_MICRO];
} inputs_seen;

static void see(void *user, tsr_job *job, const tsr_micro_batch *micro, int64_t index)
{
    inputs_seen *out = user;
    int64_t tokens = micro->token_count, columns = out->columns;
    out->samples[index] = malloc((size_t)tokens * sizeof(int64_t));
    out->positions[index] = malloc((size_t)tokens * sizeof(int32_t));
    out->x[index] = malloc((size_t)(tokens * columns) * sizeof(float));
    out->tokens[index] = tokens;
    out->count = (int)index + 1;
    for (int d = 0; d < micro->document_count; d++) {
        int32_t begin = micro->cu_seqlens[d], end = micro->cu_seqlens[d + 1];
        out->longest[index] = end - begin > out->longest[index] ? end - begin : out->longest[index];
        for (int32_t t = begin; t < end; t++) {
            out->samples[index][t] = micro->sample[d];
            out->positions[index][t] = t - begin;
        }
    }
    memcpy(out->x[index], tsr_model_layer_input(job->model, 0),
           (size_t)(tokens * columns) * sizeof(float));
}

static tsr_status look(tsr_job *job, void *user)
{
    inputs_seen *out = user;
    out->columns = (int64_t)job->inputs.layout.config.hidden_size;
    return job_micro_batches(job, true, 0, see, out);
}

static void run(inputs_seen *out, const char *model, bool packing, double alpha)
{
    job_spec spec = {.purpose = TSR_JOB_TRAIN};
    *out = (inputs_seen){0};
    job_set(&spec, "model_name_or_path=%s", model);
    job_set(&spec, "dataset=%s", scratch_path("rows.jsonl"));
    job_set(&spec, "output_dir=%s", scratch_path("output"));
    job_set(&spec, "overwrite_output_dir=true");
    job_set(&spec, "per_device_train_batch_size=2");
    job_set(&spec, "gradient_accumulation_steps=%d", packing ? 1 : 3);
    job_set(&spec, "packing=%s", packing ? "true" : "false");
    job_set(&spec, "max_length=32");
    job_set(&spec, "seed=%d", SEED);
    if (alpha > 0)
        job_set(&spec, "neftune_noise_alpha=%g", alpha);
    job_run(&spec, look, out);
}

static void forget(inputs_seen *seen)
{
    for (int i = 0; i < seen->count; i++) {
        free(seen->samples[i]);
        free(seen->positions[i]);
        free(seen->x[i]);
    }
}

static void expect_noise(const inputs_seen *with, const inputs_seen *without, int i, bool packing,
                         double scale)
{
    int64_t tokens = with->tokens[i], d = with->columns;
    double length = (double)(packing ? tokens : with->longest[i]);
    float size = (float)(ALPHA / sqrt(length * (double)d) * scale);
    tsr_device *device;
    assert_int_equal(tsr_device_create_cpu(&device, &(tsr_device_options){.thread_count = 1}),
                     TSR_OK);
    tsr_noise_args args = {.x = without->x[i],
                           .samples = with->samples[i],
                           .positions = with->positions[i],
                           .key = tsr_noise_key(SEED, 0),
                           .size = size,
                           .tokens = tokens,
                           .columns = d};
    assert_int_equal(tsr_noise_ref(&args, tsr_device_pool(device)), TSR_OK);
    for (int64_t j = 0; j < tokens * d; j++)
        if (with->x[i][j] != without->x[i][j])
            fail_msg("micro-batch %d of %lld tokens: element %lld is %a, want %a", i,
                     (long long)tokens, (long long)j, (double)with->x[i][j],
                     (double)without->x[i][j]);
    tsr_device_destroy(device);
}

static const struct {
    const char *path;
    double scale; /* of what follows the embedding */
} models[] = {
    {TSR_SOURCE_DIR "/examples/tiny-llama", 1},
    {TSR_SOURCE_DIR "/tests/golden/families/granite/checkpoint", 12},
    {TSR_SOURCE_DIR "/tests/golden/families/gemma3/checkpoint", 1},
};

static void noise_is_on_what_the_embedding_gives(void **state)
{
    (void)state;
    for (size_t m = 0; m < 2 * sizeof models / sizeof *models; m++) {
        bool packing = m % 2;
        inputs_seen with, without;
        run(&with, models[m / 2].path, packing, ALPHA);
        run(&without, models[m / 2].path, packing, 0);
        assert_int_equal(with.count, packing ? 1 : 3);
        for (int i = 0; i < with.count; i++) {
            assert_true(packing || with.tokens[i] > with.longest[i]);
            assert_true(memcmp(with.x[i], without.x[i],
                               (size_t)(with.tokens[i] * with.columns) * sizeof(float)) != 0);
            expect_noise(&with, &without, i, packing, models[m / 2].scale);
        }
        forget(&with), forget(&without);
    }
}

/* An evaluation of a training that has noise. */
static tsr_status losses(tsr_job *job, void *user)
{
    tsr_job_evaluation evaluation = TSR_JOB_EVALUATION_INIT;
    TSR_TRY(tsr_job_evaluate(job, &evaluation));
    *(double *)user = evaluation.loss;
    return TSR_OK;
}

static void evaluations_have_none(void **state)
{
    (void)state;
    double loss[2];
    for (int i = 0; i < 2; i++) {
        job_spec spec = {.purpose = TSR_JOB_TRAIN};
        job_set(&spec, "model_name_or_path=%s", models[0].path);
        job_set(&spec, "dataset=%s", scratch_path("rows.jsonl"));
        job_set(&spec, "eval_dataset=%s", scratch_path("rows.jsonl"));
        job_set(&spec, "output_dir=%s", scratch_path("output"));
        job_set(&spec, "overwrite_output_dir=true");
        if (i)
            job_set(&spec, "neftune_noise_alpha=%g", ALPHA);
        job_run(&spec, losses, &loss[i]);
    }
    assert_true(loss[0] == loss[1]);
}

static int set_up(void **state)
{
    static const int lengths[] = {9, 14, 5, 11, 7, 8};
    (void)state;
    scratch_make();
    FILE *file = fopen(scratch_path("rows.jsonl"), "w");
    assert_non_null(file);
    for (int row = 0; row < 6; row++) {
        fputs("{\"input_ids\": [", file);
        for (int i = 0; i < lengths[row]; i++)
            fprintf(file, "%s%d", i ? ", " : "", 3 + (row * 41 + i * i * 37 + i) % 200);
        fputs("]}\n", file);
    }
    return fclose(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(noise_is_on_what_the_embedding_gives),
        cmocka_unit_test(evaluations_have_none),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_teardown);
}
