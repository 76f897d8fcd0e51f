#include "support/job.h"
#include "support/kept_gradient.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void job_set(job_spec *spec, const char *format, ...)
{
    va_list args;
    char text[400];
    va_start(args, format);
    int bytes = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    assert_true(bytes > 0 && bytes < (int)sizeof text);
    size_t name = strcspn(text, "=") + 1;
    for (int i = 0; i < spec->count; i++)
        if (!strncmp(spec->key[i], text, name)) {
            strcpy(spec->key[i], text);
            return;
        }
    assert_true(spec->count < JOB_KEYS);
    strcpy(spec->key[spec->count++], text);
}

typedef struct {
    const job_spec *spec;
    tsr_comm *comm;
    tsr_status (*body)(tsr_job *job, void *user);
    void *user;
    tsr_status status;
    char message[1024];
} rank_run;

static void *run_rank(void *argument)
{
    rank_run *run = argument;
    const char *overrides[JOB_KEYS + 1] = {"backend=cpu"};
    tsr_job *job = NULL;
    for (int i = 0; i < run->spec->count; i++)
        overrides[i + 1] = run->spec->key[i];
    tsr_job_options options = {.size = sizeof(tsr_job_options),
                               .overrides = overrides,
                               .override_count = run->spec->count + 1,
                               .purpose = run->spec->purpose,
                               .threads = 1,
                               .timeout_seconds = 60};
    run->status = tsr_job_create_on(&job, &options, run->comm);
    if (run->status == TSR_OK)
        run->status = tsr_job_start(job);
    if (run->status == TSR_OK)
        run->status = run->body(job, run->user);
    if (run->status < 0)
        snprintf(run->message, sizeof run->message, "%s", tsr_last_error());
    tsr_job_destroy(job);
    return NULL;
}

void job_run(const job_spec *spec, tsr_status (*body)(tsr_job *job, void *user), void *user)
{
    rank_run run[JOB_MOST_RANKS] = {{0}};
    tsr_comm *comm[JOB_MOST_RANKS] = {NULL};
    pthread_t thread[JOB_MOST_RANKS];
    int ranks = spec->ranks > 1 ? spec->ranks : 1;
    assert_true(ranks <= JOB_MOST_RANKS);
    if (ranks > 1)
        assert_int_equal(tsr_comm_create_threads(comm, ranks, 60), TSR_OK);
    for (int i = 0; i < ranks; i++) {
        run[i] = (rank_run){.spec = spec, .comm = comm[i], .body = body, .user = user};
        if (ranks > 1)
            assert_int_equal(pthread_create(&thread[i], NULL, run_rank, &run[i]), 0);
    }
    if (ranks == 1)
        run_rank(&run[0]);
    for (int i = 0; i < ranks && ranks > 1; i++)
        assert_int_equal(pthread_join(thread[i], NULL), 0);
    for (int i = 0; i < ranks; i++)
        if (run[i].status < 0)
            fail_msg("rank %d of %d: %s", i, ranks, run[i].message);
}

void job_convert(job_command *call, const job_spec *spec)
{
    const char *overrides[JOB_KEYS];
    char *text = NULL;
    for (int i = 0; i < spec->count; i++)
        overrides[i] = spec->key[i];
    tsr_job_options options = {
        .size = sizeof options, .overrides = overrides, .override_count = spec->count};
    if (call(&options, 1, &text) < 0)
        fail_msg("%s", tsr_last_error());
    free(text);
}

tsr_status job_micro_batches(tsr_job *job, bool train, int64_t step, job_seen *seen, void *user)
{
    tsr_batch *batch = train ? job->inputs.batch : job->inputs.eval_batch;
    tsr_micro_batch *micro = train ? &job->micro : &job->eval_micro;
    tsr_batch_step_info info;
    TSR_TRY(tsr_batch_step(batch, step, &info));
    for (int64_t round = 0; round < info.rounds; round++) {
        int64_t index = round * job->view.ranks + job->view.rank;
        TSR_TRY(tsr_batch_fill(micro, batch, step, index));
        TSR_TRY(tsr_job_stage_micro(job, micro, &info, train));
        TSR_TRY(tsr_job_issue_micro(job, train));
        TSR_TRY(tsr_streams_synchronize(tsr_job_streams(job)));
        if (micro->token_count && seen)
            seen(user, job, micro, index);
    }
    return TSR_OK;
}

double *job_gradient(uint64_t *count, const tsr_job *job, int unit, int segment)
{
    const tsr_trainable *trainable = &job->decision.store.trainable;
    tsr_trainable_span span = tsr_job_trainable(job, unit, segment);
    const tsr_layout_segment *s = &job->inputs.layout.unit[unit].trainable[segment];
    uint64_t width = trainable->rounded ? sizeof(float) : sizeof(int64_t);
    char *kept = malloc(s->element_count * width);
    tsr_trainable here = {.rounded = trainable->rounded ? (float *)kept : NULL,
                          .accumulator = trainable->rounded ? NULL : (int64_t *)kept};
    uint64_t outside = 0; /* gradients that are not 0 where there is padding */
    *count = (s->stack ? s->stack : 1) * s->stored_rows * s->stored_columns;
    double *out = calloc(*count, sizeof *out);
    assert_true(kept && out);
    assert_true(span.first == 0 && span.real >= s->element_count);
    assert_int_equal(tsr_streams_synchronize(tsr_job_streams(job)), TSR_OK);
    const char *from =
        trainable->rounded ? (char *)trainable->rounded : (char *)trainable->accumulator;
    assert_int_equal(
        tsr_device_read(job->device, kept, from + span.begin * width, s->element_count * width),
        TSR_OK);
    for (tsr_stored_run run = {0}; tsr_stored_next(&run, s, 0, s->element_count);)
        for (uint64_t i = 0; i < run.count; i++)
            out[run.stored + i] = kept_gradient(&here, run.memory + i);
    for (uint64_t i = 0; i < s->element_count; i++)
        outside += kept_gradient(&here, i) != 0;
    for (uint64_t i = 0; i < *count; i++)
        outside -= out[i] != 0;
    assert_int_equal(outside, 0);
    free(kept);
    return out;
}
