#include "job/mixer_parts.h"

#include "base/auto.h"
#include "base/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the rows ---- */

/* Those of one adapter, of all its steps. */
typedef struct {
    int64_t *first;
    int32_t *tokens;
} row_list;

static tsr_status list_rows(row_list *out, tsr_adapter_rows *rows, tsr_job *job)
{
    tsr_batch *batch = job->inputs.batch;
    int64_t steps = tsr_batch_run_of(batch)->steps, count = 0;
    out->first = calloc((size_t)steps + 1, sizeof *out->first);
    if (!out->first)
        return tsr_fail(TSR_ENOMEM, "out of memory for the rows of %lld steps", (long long)steps);
    for (int64_t step = 0; step < steps; step++)
        out->first[step + 1] = count += tsr_batch_rows(batch, step);
    out->tokens = calloc((size_t)count + 1, sizeof *out->tokens);
    if (!out->tokens)
        return tsr_fail(TSR_ENOMEM, "out of memory for %lld rows", (long long)count);
    for (int64_t step = 0; step < steps; step++)
        for (int64_t i = out->first[step]; i < out->first[step + 1]; i++)
            out->tokens[i] = tsr_batch_row_of(batch, step, i - out->first[step]).tokens;
    *rows = (tsr_adapter_rows){steps, out->first, out->tokens};
    return TSR_OK;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Of one micro-batch of the schedule. */
static void widen(tsr_mixer *mixer, int64_t index)
{
    const tsr_schedule_micro *micro = &mixer->schedule.micro[index];
    int64_t documents = 0, label_rows = 0;
    for (int64_t i = micro->first_piece; i < micro[1].first_piece; i++) {
        const tsr_schedule_piece *piece = &mixer->schedule.pieces[i];
        tsr_batch_row row =
            tsr_batch_row_of(mixer->job[piece->adapter]->inputs.batch, piece->step, piece->row);
        documents += row.documents;
        label_rows += row.label_rows;
    }
    mixer->bounds.tokens = larger(mixer->bounds.tokens, micro->tokens);
    mixer->bounds.documents = larger(mixer->bounds.documents, documents);
    mixer->bounds.label_rows = larger(mixer->bounds.label_rows, label_rows);
}

static const char *name_of(const tsr_mixer *mixer, int adapter)
{
    return mixer->job[adapter]->inputs.config.adapter_name;
}

/* Tokens of the longest row of all steps. */
static int32_t longest_row(tsr_job *job)
{
    int32_t most = 0;
    for (int64_t step = 0; step < tsr_batch_run_of(job->inputs.batch)->steps; step++)
        for (int64_t i = 0; i < tsr_batch_rows(job->inputs.batch, step); i++) {
            int32_t tokens = tsr_batch_row_of(job->inputs.batch, step, i).tokens;
            most = tokens > most ? tokens : most;
        }
    return most;
}

/* Tokens of a micro-batch, at most. */
static tsr_status find_capacity(int64_t *out, const tsr_mixer *mixer)
{
    const tsr_config *config = &mixer->job[0]->inputs.config;
    int64_t most = 0, asked = config->adapter_capacity;
    for (int k = 0; k < mixer->count; k++) {
        most = larger(most, tsr_batch_run_of(mixer->job[k]->inputs.batch)->most_tokens);
        int32_t longest = asked ? longest_row(mixer->job[k]) : 0;
        if (longest > asked)
            return tsr_fail(TSR_ECONFIG,
                            "%s: adapter_capacity: %lld tokens, but the longest row of adapter %s "
                            "has %d; write at least that, or null",
                            tsr_config_where(config, "adapter_capacity"), (long long)asked,
                            name_of(mixer, k), longest);
    }
    *out = asked ? asked : most;
    return TSR_OK;
}

static tsr_adapter_schedule_kind kind_of(const tsr_config *config)
{
    bool milp = config->adapter_schedule == TSR_CONFIG_SCHEDULE_MILP;
    return milp ? TSR_ADAPTER_SCHEDULE_MILP : TSR_ADAPTER_SCHEDULE_GREEDY;
}

static tsr_status solve(void *user)
{
    tsr_mixer *mixer = user;
    TSR_AUTO_FREE tsr_adapter_rows *rows = calloc((size_t)mixer->count, sizeof *rows);
    TSR_AUTO_FREE row_list *list = calloc((size_t)mixer->count, sizeof *list);
    tsr_status status = rows && list ? TSR_OK : tsr_fail(TSR_ENOMEM, "out of memory for rows");
    int64_t capacity = 0;
    double before = tsr_now();
    for (int k = 0; k < mixer->count && status == TSR_OK; k++)
        status = list_rows(&list[k], &rows[k], mixer->job[k]);
    if (status == TSR_OK)
        status = find_capacity(&capacity, mixer);
    if (status == TSR_OK)
        status = tsr_adapter_schedule_make(&mixer->schedule, rows, mixer->count, capacity,
                                           kind_of(&mixer->job[0]->inputs.config));
    for (int k = 0; list && k < mixer->count; k++) {
        free(list[k].first);
        free(list[k].tokens);
    }
    mixer->solved_s = tsr_now() - before;
    return status;
}

/* Rank 0's schedule for all: a solver computes in floating point, and machines may differ. */
static tsr_status share_schedule(tsr_mixer *mixer)
{
    tsr_job *own = mixer->own;
    tsr_adapter_schedule *s = &mixer->schedule;
    tsr_adapter_schedule whole = *s;
    TSR_TRY(tsr_comm_broadcast(own->world, own->control, &whole, sizeof whole, 0));
    TSR_TRY(tsr_stream_synchronize(own->control));
    if (own->view.rank) {
        *s = whole;
        s->micro = calloc((size_t)s->count + 1, sizeof *s->micro);
        s->pieces = calloc((size_t)s->piece_count + 1, sizeof *s->pieces);
    }
    bool made = s->micro && s->pieces;
    TSR_TRY(tsr_job_agree(mixer->job[0],
                          made ? TSR_OK : tsr_fail(TSR_ENOMEM, "no memory for a schedule")));
    TSR_TRY(tsr_comm_broadcast(own->world, own->control, s->micro,
                               ((uint64_t)s->count + 1) * sizeof *s->micro, 0));
    TSR_TRY(tsr_comm_broadcast(own->world, own->control, s->pieces,
                               (uint64_t)s->piece_count * sizeof *s->pieces, 0));
    return tsr_stream_synchronize(own->control);
}

/* Without data: micro-batches of the capacity, with as many documents and labels a token as an adapter's own. */
static void fill_bounds(tsr_mixer *mixer)
{
    tsr_batch_bounds *b = &mixer->bounds;
    int64_t capacity = mixer->job[0]->inputs.config.adapter_capacity;
    if (capacity <= b->tokens || b->tokens <= 0)
        return;
    b->documents = (b->documents * capacity + b->tokens - 1) / b->tokens;
    b->label_rows = (b->label_rows * capacity + b->tokens - 1) / b->tokens;
    b->tokens = capacity;
}

/* What micro-batches hold at most: of the schedule, or without data what one adapter's would. */
static tsr_status make_schedule(tsr_mixer *mixer)
{
    tsr_job *own = mixer->own;
    bool data = true;
    for (int k = 0; k < mixer->count; k++) {
        const tsr_batch_bounds *its = &mixer->job[k]->inputs.bounds;
        data &= mixer->job[k]->inputs.batch != NULL;
        mixer->bounds.tokens = larger(mixer->bounds.tokens, its->tokens);
        mixer->bounds.documents = larger(mixer->bounds.documents, its->documents);
        mixer->bounds.label_rows = larger(mixer->bounds.label_rows, its->label_rows);
        mixer->bounds.longest = larger(mixer->bounds.longest, its->longest);
    }
    if (!data) {
        fill_bounds(mixer);
        return TSR_OK;
    }
    bool meets = own->view.ranks > 1 && own->options.purpose != TSR_JOB_PLAN;
    TSR_TRY(tsr_job_agree(mixer->job[0],
                          meets ? tsr_job_let_work(own, own->view.rank == 0, solve, mixer)
                                : solve(mixer)));
    if (meets)
        TSR_TRY(share_schedule(mixer));
    mixer->bounds.tokens = mixer->bounds.documents = mixer->bounds.label_rows = 0;
    for (int64_t i = 0; i < mixer->schedule.count; i++)
        widen(mixer, i);
    return TSR_OK;
}

void tsr_mixer_tell(tsr_job_plan_info *out, const tsr_job *job)
{
    const tsr_mixer *mixer = tsr_job_base_of(job)->mixer;
    if (!mixer || mixer->over || !mixer->schedule.micro)
        return;
    const tsr_adapter_schedule *s = &mixer->schedule;
    const tsr_expectation *e = &mixer->own->decision.expected;
    out->mixed_count = s->count;
    out->mixed_capacity = s->capacity;
    out->mixed_fill = s->fill;
    out->mixed_packing_s = mixer->solved_s;
    /* Expected is a step of full micro-batches. */
    int64_t ranks = mixer->own->view.ranks;
    if (e->known && e->rounds)
        out->mixed_expected_s = e->simulation.step / (double)e->rounds * s->fill *
                                (double)((s->count + ranks - 1) / ranks);
}

uint64_t tsr_mixer_hash(const tsr_job *job)
{
    const tsr_mixer *mixer = tsr_job_base_of(job)->mixer;
    return mixer && !mixer->over ? mixer->schedule.hash : 0;
}

static void log_schedule(const tsr_mixer *mixer)
{
    const tsr_adapter_schedule *s = &mixer->schedule;
    if (!s->micro || mixer->own->view.rank != 0)
        return;
    tsr_log(TSR_LOG_INFO,
            "%lld micro-batches of at most %lld tokens, %.1f %% full, for the rows of %d adapters: "
            "%lld windows of %lld groups, packed by %s in %.2f s, %lld as greedy packs them, %lld "
            "merged",
            (long long)s->count, (long long)s->capacity, 100 * s->fill, mixer->count,
            (long long)s->windows, (long long)s->groups,
            kind_of(&mixer->job[0]->inputs.config) == TSR_ADAPTER_SCHEDULE_MILP ? "milp" : "greedy",
            mixer->solved_s, (long long)s->greedy, (long long)(s->unmerged - s->count));
}

/* ---- its life ---- */

/* Why an adapter cannot be mixed, as far as its configuration does not say so; NULL: it can. */
static const char *hindrance(const tsr_inputs *inputs)
{
    const char *what = NULL;
    for (uint64_t i = 0; i < inputs->adapter.set.count; i++) {
        const tsr_adapter *adapter = &inputs->adapter.set.adapter[i];
        what = adapter->dora ? "it has magnitudes (DoRA)" : what; /* of init_adapter */
        what = adapter->experts ? "it is on experts" : what;
    }
    if (inputs->layout.head_trained || inputs->layout.embedding_count)
        what = "it trains a table";
    if (inputs->router_bias)
        what = "init_adapter has biases of routers";
    return inputs->adapter.present ? what : "it has no adapter";
}

static tsr_status check(const tsr_mixer *mixer)
{
    for (int k = 0; k < mixer->count; k++) {
        const tsr_inputs *inputs = &mixer->job[k]->inputs;
        const char *what = hindrance(inputs);
        if (!tsr_inputs_mixes(inputs)) /* of a file of its own */
            return tsr_fail(TSR_ECONFIG,
                            "%s: adapter_mixing: tokens is for adapters of one list, and another "
                            "job shares this base",
                            tsr_config_where(&mixer->job[0]->inputs.config, "adapter_mixing"));
        if (what)
            return tsr_fail(TSR_ECONFIG,
                            "%s: adapter_mixing: tokens is not for adapter %s: %s; write "
                            "adapter_mixing: none",
                            tsr_config_where(&inputs->config, "adapter_mixing"),
                            inputs->config.adapter_name, what);
    }
    return TSR_OK;
}

static tsr_status list_jobs(tsr_mixer *mixer, tsr_job *base)
{
    for (tsr_job *j = base; j; j = j->sharer)
        mixer->count++;
    size_t count = (size_t)mixer->count;
    mixer->job = calloc(count, sizeof(tsr_job *));
    mixer->adapter = calloc(count, sizeof *mixer->adapter);
    mixer->owner = calloc(count, sizeof *mixer->owner);
    mixer->begins = calloc(count, sizeof *mixer->begins);
    mixer->left = calloc(count, sizeof *mixer->left);
    mixer->step = calloc(count, sizeof *mixer->step);
    mixer->range = calloc(count + 1, sizeof *mixer->range);
    if (!mixer->job || !mixer->adapter || !mixer->owner || !mixer->begins || !mixer->left ||
        !mixer->step || !mixer->range)
        return tsr_fail(TSR_ENOMEM, "out of memory for %d adapters", mixer->count);
    int k = 0;
    for (tsr_job *j = base; j; j = j->sharer, k++) {
        mixer->job[k] = j;
        mixer->adapter[k] = (tsr_model_adapter){.dropout = j->inputs.config.lora_dropout,
                                                .seed = (uint64_t)j->inputs.config.seed};
    }
    return check(mixer);
}

/* auto is milp where that is built in. All adapters' job.yaml say what it was. */
static tsr_status resolve_schedule(tsr_mixer *mixer)
{
    bool milp = tsr_adapter_schedule_has_milp();
    for (int k = 0; k < mixer->count; k++) {
        tsr_config *config = &mixer->job[k]->inputs.config;
        if (config->adapter_schedule == TSR_CONFIG_SCHEDULE_AUTO)
            config->adapter_schedule = milp ? TSR_CONFIG_SCHEDULE_MILP : TSR_CONFIG_SCHEDULE_GREEDY;
    }
    if (milp || mixer->job[0]->inputs.config.adapter_schedule != TSR_CONFIG_SCHEDULE_MILP)
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG,
                    "%s: adapter_schedule: milp needs CBC, and this build has none "
                    "(coinor-libcbc-dev); write greedy",
                    tsr_config_where(&mixer->job[0]->inputs.config, "adapter_schedule"));
}

/* A job that shares the base and has no adapter of its own. */
static tsr_status make_own(tsr_mixer *mixer, tsr_job *base)
{
    tsr_job *own = calloc(1, sizeof *own);
    if (!own)
        return tsr_fail(TSR_ENOMEM, "out of memory for a job");
    mixer->own = own;
    own->options = base->options;
    own->train = true;
    own->saved = own->output_lock = -1;
    own->speeds = base->speeds;
    tsr_job_base_join(own, base);
    if (own->turn >= TSR_KERNELS_TURNS)
        return tsr_fail(TSR_ECONFIG, "adapter_mixing: tokens: %d adapters, and %d are possible",
                        mixer->count, TSR_KERNELS_TURNS - 1);
    return tsr_job_backend_open(own);
}

static tsr_status make_inputs(tsr_mixer *mixer)
{
    TSR_AUTO_FREE const tsr_inputs **inputs = calloc((size_t)mixer->count, sizeof *inputs);
    tsr_inputs *own = &mixer->own->inputs;
    if (!inputs)
        return tsr_fail(TSR_ENOMEM, "out of memory for %d adapters", mixer->count);
    for (int k = 0; k < mixer->count; k++)
        inputs[k] = &mixer->job[k]->inputs;
    TSR_TRY(tsr_inputs_mixed(own, inputs, mixer->count, &mixer->bounds));
    own->mixed = mixer->adapter;
    if (own->layout.plan_unit_count == inputs[0]->layout.plan_unit_count)
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG,
                    "%s: unit_policy cuts a layer with all adapters otherwise than with one; write "
                    "layer, or adapter_mixing: none",
                    tsr_config_where(&own->config, "unit_policy"));
}

tsr_status tsr_mixer_create(tsr_job *base)
{
    if (base->mixer)
        return tsr_fail(TSR_EINVAL, "the jobs on this base have failed to be planned before");
    tsr_mixer *mixer = calloc(1, sizeof *mixer);
    if (!mixer)
        return tsr_job_agree(base, tsr_fail(TSR_ENOMEM, "out of memory for a mixer"));
    base->mixer = mixer;
    tsr_status status = list_jobs(mixer, base);
    if (status == TSR_OK)
        status = resolve_schedule(mixer);
    if (status == TSR_OK)
        status = make_own(mixer, base);
    TSR_TRY(tsr_job_agree(base, status));
    TSR_TRY(make_schedule(mixer));
    TSR_TRY(tsr_job_agree(base, make_inputs(mixer)));
    log_schedule(mixer);
    return TSR_OK;
}

/* Micro-batches that add to the sums of one step, at most: as many as the step has rows. */
static uint64_t contributions(const tsr_job *job)
{
    int64_t most = 1;
    for (int64_t step = 0; step < tsr_batch_run_of(job->inputs.batch)->steps; step++)
        most = larger(most, tsr_batch_rows(job->inputs.batch, step));
    return (uint64_t)most;
}

static tsr_status make_micro(tsr_mixer *mixer)
{
    const tsr_batch_bounds *bounds = &mixer->bounds;
    return tsr_micro_batch_create(&mixer->micro,
                                  &(tsr_batch_run){.most_tokens = (int32_t)bounds->tokens,
                                                   .most_documents = (int32_t)bounds->documents,
                                                   .most_label_rows = (int32_t)bounds->label_rows});
}

/* Of a run that goes on: its micro-batches may be others. mixer NULL: they are its own. */
static void compare_schedule(const tsr_mixer *mixer, const tsr_job *job)
{
    char now[24] = "none";
    if (!job->resume || job->view.rank != 0)
        return;
    const char *was =
        json_string_value(json_object_get(tsr_snapshot_state(job->resume), "adapter_schedule"));
    if (mixer)
        snprintf(now, sizeof now, "%016" PRIx64, mixer->schedule.hash);
    if (strcmp(was ? was : "none", now) != 0)
        tsr_log(
            TSR_LOG_WARNING,
            "%s: its micro-batches hold other rows than when its checkpoint was written: results "
            "agree with those of a run that was never stopped within rounding",
            job->inputs.config.output_dir);
}

static tsr_status take_jobs(tsr_mixer *mixer)
{
    for (int k = 0; k < mixer->count; k++) {
        tsr_job *job = mixer->job[k];
        tsr_run_sums *sums = tsr_mixer_sums(mixer, k);
        compare_schedule(mixer, job);
        tsr_model_set_sums(mixer->own->model, k, tsr_job_model_sums(sums));
        mixer->owner[k] = (tsr_executor_owner){.store = &job->decision.store,
                                               .gradient_overflow = &sums->gradient_overflow,
                                               .contributions = contributions(job),
                                               .begins = &mixer->begins[k]};
        tsr_mixer_begin_step(mixer, k);
        TSR_TRY(tsr_mixer_take_work(mixer, k));
    }
    return tsr_streams_synchronize(tsr_job_streams(mixer->own));
}

static tsr_status start(tsr_mixer *mixer)
{
    tsr_job *own = mixer->own;
    TSR_TRY(tsr_job_agree(own, make_micro(mixer)));
    TSR_TRY(tsr_job_start_model(own));
    TSR_TRY(tsr_job_agree(own, take_jobs(mixer)));
    TSR_TRY(tsr_job_start_executor(own, mixer->owner, mixer->count));
    own->state = TSR_JOB_STARTED;
    mixer->started = true;
    for (int k = 0; k < mixer->count; k++)
        mixer->job[k]->word_time = tsr_now();
    return TSR_OK;
}

tsr_status tsr_mixer_start(tsr_job *job)
{
    tsr_mixer *mixer = tsr_job_base_of(job)->mixer;
    tsr_job_listen(job, true);
    if (!mixer)
        compare_schedule(NULL, job);
    tsr_job_listen(job, false);
    if (!mixer || mixer->over)
        return mixer ? tsr_mixer_check(job) : TSR_OK;
    for (int k = 0; k < mixer->count; k++)
        if (mixer->job[k]->state != TSR_JOB_STARTED)
            return TSR_OK;
    tsr_job_listen(job, true);
    tsr_status status = start(mixer);
    tsr_job_listen(job, false);
    if (status < 0)
        job->state = TSR_JOB_FAILED;
    return status;
}

void tsr_mixer_end(tsr_job *job)
{
    tsr_job *base = tsr_job_base_of(job);
    tsr_mixer *mixer = base->mixer;
    if (!mixer || mixer->over)
        return;
    mixer->over = true;
    tsr_job_destroy(mixer->own);
    mixer->own = NULL;
    tsr_micro_batch_free(&mixer->micro);
    tsr_adapter_schedule_free(&mixer->schedule);
    free(mixer->job);
    free(mixer->adapter);
    free(mixer->owner);
    free(mixer->begins);
    free(mixer->left);
    free(mixer->step);
    free(mixer->range);
    mixer->job = NULL;
}
