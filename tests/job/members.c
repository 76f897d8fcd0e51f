#include "job/members.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

void members_put_key(tsr_text *out, const char *before, const char *line)
{
    tsr_text_puts(out, before);
    const char *place = strchr(line, '%');
    tsr_text_append(out, line, place ? (size_t)(place - line) : strlen(line));
    if (place && place[1] == 's')
        tsr_text_printf(out, "%s%s", scratch_path("."), place + 2);
    else if (place)
        tsr_text_printf(out, "%d", job_tokens(200));
    tsr_text_puts(out, "\n");
}

/* Nothing of the memory that all share is needed by the next one, even if it is the same. */
static void poison(tsr_job *base)
{
    tsr_arena *arena[] = {base->scratch_device, base->scratch_host};
    for (int i = 0; i < 2; i++) {
        void *bytes;
        tsr_arena_rewind(arena[i]);
        assert_int_equal(tsr_arena_take(&bytes, arena[i], "all", tsr_arena_bytes(arena[i])),
                         TSR_OK);
        if (bytes)
            memset(bytes, 0xff, tsr_arena_bytes(arena[i]));
    }
    base->active = NULL;
}

static int evaluate(tsr_job *job, job_result *r)
{
    if (!tsr_config_evaluates(&job->inputs.config))
        return 0;
    r->eval[r->eval_count].size = sizeof r->eval[0];
    return tsr_job_evaluate(job, &r->eval[r->eval_count++]);
}

/* 1: the last one was done before. */
static int step(members_run *run, tsr_job *job, job_result *r)
{
    tsr_job_report report = TSR_JOB_REPORT_INIT;
    int status = tsr_job_step(job, &report);
    if (status != 0)
        return status;
    if (run->poison && !job_on_gpu()) {
        tsr_streams_synchronize(tsr_job_streams(job));
        poison(tsr_job_base_of(job));
    }
    r->step[r->step_count++] = report;
    r->stopped = report.stopped;
    if (report.evaluate && !report.stopped)
        status = evaluate(job, r);
    return status == 0 && report.save ? tsr_job_checkpoint(job) : status;
}

/* The one with the fewest steps of those that have some left; -1: none has. */
static int next_member(const members_run *run, tsr_job **job, const bool *ended)
{
    int next = -1;
    for (int m = 0; m < run->count; m++)
        if (!ended[m] && (next < 0 || job[m]->done < job[next]->done))
            next = m;
    return next;
}

static int run_members(members_run *run, tsr_job **job)
{
    int status = 0;
    bool ended[MEMBERS_MAX] = {false};
    for (int m = 0; m < run->count && status == 0; m++) {
        ended[m] = !job[m];
        if (job[m] && !run->resume)
            status = evaluate(job[m], &run->result[m]);
    }
    for (int m = next_member(run, job, ended); m >= 0 && status == 0;
         m = next_member(run, job, ended)) {
        job_result *r = &run->result[m];
        run->stop = run->rank == 0 && run->stop_after && r->step_count >= run->stop_after;
        status = step(run, job[m], r);
        ended[m] = status == TSR_JOB_DONE || r->stopped;
        if (status == TSR_JOB_DONE)
            status = tsr_job_save(job[m]);
    }
    return status;
}

static int create(members_run *run, tsr_job **job)
{
    const char *overrides[JOB_BACKEND_KEYS + 3];
    char output[600];
    job_backend_keys(overrides);
    snprintf(output, sizeof output, "output_dir=%s", scratch_path("all"));
    overrides[JOB_BACKEND_KEYS] = output;
    overrides[JOB_BACKEND_KEYS + 1] =
        run->resume ? "resume_from_checkpoint=true" : "overwrite_output_dir=true";
    overrides[JOB_BACKEND_KEYS + 2] = "save_strategy=no";
    tsr_job_options options = {.size = sizeof options,
                               .config_text = run->config,
                               .overrides = overrides,
                               .override_count = JOB_BACKEND_KEYS + 3,
                               .threads = 1,
                               .timeout_seconds = 60,
                               .stop = &run->stop};
    for (int m = 0; m < run->count; m++) {
        options.entry = m;
        int status = tsr_job_create_on(&job[m], &options, options.base ? NULL : run->world);
        if (status < 0)
            return status;
        assert_int_equal(tsr_job_adapters(job[m]), run->count);
        assert_true(!strncmp(tsr_job_adapter_name(job[m]), "member", 6));
        if (run->resume && tsr_job_finished(job[m])) {
            tsr_job_destroy(job[m]);
            job[m] = NULL;
        }
        options.base = options.base ? options.base : job[m];
    }
    return 0;
}

static void *run_rank(void *user)
{
    members_run *run = user;
    tsr_job *job[MEMBERS_MAX] = {NULL};
    tsr_job_plan_info info = TSR_JOB_PLAN_INFO_INIT;
    int status = create(run, job);
    int any = run->count - 1; /* of those that go on */
    while (any > 0 && !job[any])
        any--;
    if (status == 0)
        status = tsr_job_plan(job[any], &info);
    for (int m = 0; m < run->count && status == 0; m++)
        status = job[m] ? tsr_job_start(job[m]) : 0;
    if (status == 0)
        status = run_members(run, job);
    if (status == 0)
        run->taken = tsr_job_base_taken(job[any]);
    run->planned = info.device_peak_bytes;
    run->status = status;
    snprintf(run->message, sizeof run->message, "%s", tsr_last_error());
    for (int m = 0; m < run->count; m++) /* the base goes with the last */
        tsr_job_destroy(job[m]);
    return NULL;
}

static void read_adapters(members_run *run)
{
    for (int m = 0; m < run->count; m++) {
        char name[64];
        uint64_t bytes = 0;
        snprintf(name, sizeof name, "all/member%d/adapter_model.safetensors", m);
        if (run->result[m].stopped)
            continue;
        run->result[m].adapter = (uint8_t *)read_whole(&bytes, scratch_path(name));
        run->result[m].adapter_bytes = bytes;
    }
}

void members_run_all(members_run *out, int ranks, members_run prototype)
{
    tsr_comm *comms[JOB_RANKS_MAX] = {0};
    pthread_t threads[JOB_RANKS_MAX];
    members_run *runs = calloc((size_t)ranks, sizeof *runs);
    assert_non_null(runs);
    assert_int_equal(tsr_comm_create_threads(comms, ranks, 60), TSR_OK);
    for (int i = 0; i < ranks; i++) {
        runs[i] = prototype;
        runs[i].world = comms[i];
        runs[i].rank = i;
        assert_int_equal(pthread_create(&threads[i], NULL, run_rank, &runs[i]), 0);
    }
    for (int i = 0; i < ranks; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < ranks; i++) {
        if (runs[i].status != 0)
            fail_msg("rank %d ended with %d after %d %d %d %d steps: %s", i, runs[i].status,
                     runs[i].result[0].step_count, runs[i].result[1].step_count,
                     runs[i].result[2].step_count, runs[i].result[3].step_count, runs[i].message);
        assert_int_equal(runs[i].planned, runs[i].taken);
    }
    *out = runs[0];
    free(runs);
    read_adapters(out);
}

void members_free(members_run *run)
{
    for (int m = 0; m < run->count; m++)
        job_result_free(&run->result[m]);
}
