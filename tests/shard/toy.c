#include "base/philox.h"
#include "shard/load.h"
#include "shard/toy_parts.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONTRIBUTIONS 1024 /* to a gradient in a step */
#define SPANS         3    /* of a micro-batch, for a wide unit */

/* ---- one rank ---- */

typedef struct {
    const toy_job *job;
    const random_model *model;
    toy_report *report;
    toy_outcome *out;
    toy_state state; /* on streams only */
    tsr_device *device;
    tsr_streams streams;
    tsr_comm *world, *shard, *replica;
    tsr_plan *plan;
    tsr_store store;
    tsr_memory_plan memory;
    tsr_arena *arena, *host_arena;
    tsr_executor *executor;
    void *region[TSR_REGIONS], *host_saved[MAX_UNITS];
    int64_t refused;
    uint64_t seed; /* of the micro-batch that is issued */
    bool empty;    /* likewise */
} toy_rank;

typedef struct {
    toy_rank *rank;
    tsr_use use;
    tsr_unit_view view;
    void *gradient;
    int64_t *word;
    uint64_t seed;
    int chunk;
} toy_call;

static tsr_status run_norm(void *args, tsr_pool *pool)
{
    (void)pool;
    toy_call *c = args;
    const tsr_unit *unit = &c->rank->model->unit[c->use.layer];
    c->rank->state.norm[unit->id] = toy_hash_view(unit, &c->view);
    return TSR_OK;
}

/* What span `span` of a micro-batch adds to an element: all of them together toy_gradient_at. */
static float span_gradient(const toy_call *c, const tsr_segment *s, uint64_t e, int span, int spans)
{
    uint64_t dx = c->rank->state.dx;
    int64_t g = span == 0 ? toy_gradient_at(dx, s->param, e) : 0;
    if (c->use.empty)
        return 0;
    if (span == spans / 2 && toy_lost(c->rank->job, c->seed, s, e))
        return NAN;
    for (int other = 1; other < spans; other++) {
        int64_t moved = toy_gradient_at(tsr_mix(dx + (uint64_t)other), s->param, e);
        g += span == other ? moved : span == 0 ? -moved : 0;
    }
    return (float)g;
}

static void fill_gradient(float *g, const toy_call *c, const tsr_segment *s, int span, int spans)
{
    for (uint64_t e = 0; e < s->element_count; e++)
        g[e] = span_gradient(c, s, e, span, spans);
}

static void sum_spans(int64_t *sum, const toy_call *c, const tsr_segment *s)
{
    float *g = malloc(s->element_count * sizeof *g);
    if (!g)
        abort();
    for (int span = 0; span < SPANS; span++) {
        tsr_fixed_accumulate_args args = {.sum = sum,
                                          .g = g,
                                          .count = s->element_count,
                                          .limit = tsr_fixed_limit(0, CONTRIBUTIONS),
                                          .store = span == 0};
        fill_gradient(g, c, s, span, SPANS);
        if (tsr_fixed_accumulate_ref(&args, NULL) < 0)
            abort();
    }
    free(g);
}

static void write_gradient(const toy_call *c, const tsr_unit *unit)
{
    int ranks = c->rank->model->options.ranks;
    uint64_t bytes = tsr_unit_gradient_bytes(unit, ranks);
    memset(c->gradient, unit->wide ? 0x80 : 0xff, bytes); /* padding may hold anything */
    for (int i = 0; i < unit->trainable.segment_count; i++) {
        const tsr_segment *s = &unit->trainable.segment[i];
        uint64_t at = tsr_unit_gradient_at(s, ranks);
        if (unit->wide)
            sum_spans((int64_t *)c->gradient + at, c, s);
        else
            fill_gradient((float *)c->gradient + at, c, s, 0, 1);
    }
}

/* What a unit saved, from its region. */
static void recall(const toy_call *c, int unit)
{
    const random_model *model = c->rank->model;
    int region = tsr_saved_region(model->saved_bytes, unit);
    if (region >= 0)
        c->rank->state.saved[unit] =
            toy_read_region(c->rank->region[region], toy_saved_bytes(model, unit, c->seed));
}

/* The layers at one place of their spans share what they save in. */
static void lend(const toy_call *c, int unit)
{
    const tsr_stride stride = c->rank->plan->stride;
    int place = tsr_stride_place(stride, unit);
    for (int u = stride.lowest + place; place > 0 && u < stride.layers; u += stride.stride)
        if (u != unit)
            c->rank->state.saved[u] = 0;
}

static void use(const toy_call *c, const tsr_unit *unit)
{
    toy_state *t = &c->rank->state;
    int region = tsr_saved_region(c->rank->model->saved_bytes, unit->id);
    bool backward = c->use.phase == TSR_USE_BACKWARD;
    if (backward)
        recall(c, unit->id);
    else if (unit->id > 0)
        recall(c, unit->id - 1);
    lend(c, unit->id);
    toy_use(t, unit, c->use.phase, toy_hash_view(unit, &c->view), c->seed, c->use.first);
    if (region < 0)
        return;
    uint64_t bytes = toy_saved_bytes(c->rank->model, unit->id, c->seed);
    t->saved[unit->id] = 0;
    if (backward)
        memset(c->rank->region[region], 0, bytes); /* consumed */
    else
        toy_write_region(c->rank->region[region], bytes, t->x);
}

static tsr_status run_compute(void *args, tsr_pool *pool)
{
    (void)pool;
    toy_call *c = args;
    const tsr_unit *unit = &c->rank->model->unit[c->use.layer];
    if (!c->use.empty)
        use(c, unit);
    if (c->gradient)
        write_gradient(c, unit);
    return TSR_OK;
}

static tsr_status run_tally(void *args, tsr_pool *pool)
{
    (void)pool;
    toy_call *c = args;
    c->word[TSR_WORD_LOSS] = c->rank->state.loss;
    c->word[TSR_WORD_NON_FINITE] = c->rank->refused != 0;
    c->rank->state.loss = c->rank->refused = 0;
    return TSR_OK;
}

/* Integers that fp32 has too. */
static int64_t sum_at(const tsr_trainable *t, uint64_t e)
{
    return t->rounded ? (int64_t)t->rounded[e] : t->accumulator[e];
}

static tsr_status run_grad_norm(void *args, tsr_pool *pool)
{
    toy_call *c = args;
    const tsr_trainable *t = &c->rank->store.trainable;
    for (uint64_t e = 0; e < t->count; e++)
        tsr_exact_add(tsr_word_norm(c->word), (double)sum_at(t, e) * (double)sum_at(t, e));
    return run_tally(args, pool);
}

/* The working copies of a part's elements, from its masters. */
static void write_work(const toy_rank *r, const tsr_optim_part *part)
{
    const tsr_trainable *t = &r->store.trainable;
    for (int u = 0; u < t->unit_count; u++)
        for (int i = 0; i < t->units[u].trainable.segment_count; i++) {
            tsr_trainable_span span = tsr_trainable_at(t, u, i);
            for (uint64_t e = 0; e < span.count; e++) {
                uint64_t at = span.begin + e - part->begin;
                if (span.begin + e >= part->begin && at < part->count)
                    toy_store_work(span.work, span.segment->dtype, e,
                                   part->master
                                       ? part->master[at]
                                       : toy_first_master(span.segment->param, span.first + e));
            }
        }
}

static tsr_status run_optim(void *args, tsr_pool *pool)
{
    (void)pool;
    toy_call *c = args;
    const tsr_trainable *t = &c->rank->store.trainable;
    if (tsr_word_discards(c->word))
        return TSR_OK;
    c->rank->report->updates++;
    double norm = tsr_exact_round(tsr_word_norm(c->word));
    tsr_optim_part part = tsr_store_part(&c->rank->store, c->chunk);
    for (uint64_t e = 0; e < part.count; e++)
        toy_update(&part.master[e], (float *)part.m + e, sum_at(t, part.begin + e), norm);
    write_work(c->rank, &part);
    return TSR_OK;
}

static tsr_status on_norm(void *user, int layer, const tsr_unit_view *view)
{
    toy_rank *r = user;
    toy_call call = {.rank = r, .use.layer = layer, .view = *view};
    return tsr_stream_call(r->streams.stream[TSR_STREAM_COMPUTE], run_norm, &call, sizeof call);
}

static tsr_status on_compute(void *user, const tsr_use *use, const tsr_unit_view *view,
                             void *gradient)
{
    toy_rank *r = user;
    toy_call call = {.rank = r, .use = *use, .view = *view, .gradient = gradient, .seed = r->seed};
    return tsr_stream_call(r->streams.stream[TSR_STREAM_COMPUTE], run_compute, &call, sizeof call);
}

static tsr_status on_optim_stream(toy_rank *r, tsr_call *function, const int64_t *word, int chunk)
{
    toy_call call = {.rank = r, .word = (int64_t *)word, .chunk = chunk};
    return tsr_stream_call(r->streams.stream[TSR_STREAM_OPTIM], function, &call, sizeof call);
}

static tsr_status on_grad_norm(void *user, int64_t *word)
{
    return on_optim_stream(user, run_grad_norm, word, -1);
}

static tsr_status on_tally(void *user, int64_t *word)
{
    return on_optim_stream(user, run_tally, word, -1);
}

static tsr_status on_optim(void *user, const int64_t *word, int chunk)
{
    return on_optim_stream(user, run_optim, word, chunk);
}

static tsr_saved on_saved(void *user, int unit)
{
    toy_rank *r = user;
    return (tsr_saved){.device = r->region[tsr_saved_region(r->model->saved_bytes, unit)],
                       .host = r->host_saved[unit],
                       .bytes = r->empty ? 0 : toy_saved_bytes(r->model, unit, r->seed)};
}

/* ---- start-up ---- */

static tsr_status fill_frozen(void *user, int unit, const tsr_load_place *place)
{
    (void)user;
    (void)unit;
    toy_frozen_bytes(place->data, place->segment, place->first_granule, place->granule_count);
    return TSR_OK;
}

static void fill_masters(toy_rank *r)
{
    tsr_trainable *t = &r->store.trainable;
    for (int u = 0; t->master && u < t->unit_count; u++)
        for (int i = 0; i < t->units[u].trainable.segment_count; i++) {
            tsr_trainable_span span = tsr_trainable_at(t, u, i);
            for (uint64_t e = 0; e < span.real; e++)
                t->master[span.begin + e] = toy_first_master(span.segment->param, span.first + e);
        }
    tsr_optim_part all = tsr_store_part(&r->store, -1);
    write_work(r, &all);
}

static tsr_status walk(toy_rank *r, tsr_taker *taker)
{
    const tsr_plan_options *o = &r->model->options;
    char name[32];
    TSR_TRY(tsr_store_walk(&r->store, taker));
    for (int i = 0; i < TSR_REGIONS; i++) {
        snprintf(name, sizeof name, "region %d", i);
        TSR_TRY(tsr_taker_take(taker, &r->region[i], TSR_PLACE_DEVICE, name, "",
                               tsr_array_of_bytes(r->plan->saved_bytes)));
    }
    for (int u = 0; u < o->layer_count; u++) {
        snprintf(name, sizeof name, "saved by %d", u);
        if (tsr_saved_travels(o->saved_bytes, o->layer_count, u))
            TSR_TRY(tsr_taker_take(taker, &r->host_saved[u], TSR_PLACE_HOST, name, "",
                                   tsr_array_of_bytes(o->saved_bytes[u])));
    }
    return TSR_OK;
}

static tsr_status make_memory(toy_rank *r)
{
    tsr_taker planning = {.plan = &r->memory};
    TSR_TRY(walk(r, &planning));
    TSR_TRY(tsr_arena_create(&r->arena, r->device, TSR_MEMORY_DEVICE,
                             r->memory.total[TSR_PLACE_DEVICE]));
    TSR_TRY(tsr_arena_create(&r->host_arena, r->device, TSR_MEMORY_HOST,
                             r->memory.total[TSR_PLACE_HOST]));
    tsr_taker running = {.plan = &r->memory, .device = r->arena, .host = r->host_arena};
    TSR_TRY(walk(r, &running));
    return tsr_taker_finish(&running);
}

static tsr_status start(toy_rank *r)
{
    const tsr_plan_options *o = &r->model->options;
    const toy_job *job = r->job;
    int rank = tsr_comm_rank(r->world);
    double timeout = job->timeout_seconds > 0 ? job->timeout_seconds : 60;
    tsr_device_options device = {.thread_count = 1,
                                 .no_pinning = true,
                                 .timeout_seconds = timeout,
                                 .delay_seed =
                                     job->delay_seed ? job->delay_seed + (uint64_t)rank : 0,
                                 .delay_max_us = 120};
    TSR_TRY(tsr_device_create_cpu(&r->device, &device));
    TSR_TRY(tsr_streams_create(&r->streams, r->device, NULL));
    TSR_TRY(tsr_streams_add_state(&r->streams));
    tsr_stream *comm = r->streams.stream[TSR_STREAM_COMM];
    TSR_TRY(tsr_comm_split(&r->shard, r->world, comm, rank / o->ranks));
    TSR_TRY(tsr_comm_split(&r->replica, r->world, comm, rank % o->ranks));
    TSR_TRY(tsr_plan_compile(&r->plan, o));
    TSR_TRY(tsr_plan_check_ranks(r->plan, r->world, comm));
    if (job->tamper)
        job->tamper(r->plan);
    TSR_TRY(tsr_store_make(&r->store, r->plan, rank % o->ranks));
    TSR_TRY(make_memory(r));
    TSR_TRY(tsr_store_share(&r->store, r->world, comm));
    TSR_TRY(tsr_load_all(&r->store, r->world, fill_frozen, NULL));
    TSR_TRY(tsr_load_finish(&r->store, r->world, r->shard, comm));
    fill_masters(r);
    tsr_executor_options options = {.kernels = tsr_kernels_cpu(),
                                    .contributions = CONTRIBUTIONS,
                                    .gradient_overflow = &r->refused,
                                    .store = &r->store,
                                    .device = r->device,
                                    .streams = &r->streams,
                                    .world = r->world,
                                    .shard = r->shard,
                                    .replica = r->replica,
                                    .callbacks = {.user = r,
                                                  .norm = on_norm,
                                                  .compute = on_compute,
                                                  .grad_norm = on_grad_norm,
                                                  .tally = on_tally,
                                                  .optim = on_optim,
                                                  .saved = on_saved},
                                    .debug = job->debug,
                                    .log_count = job->log_count ? job->log_count : 64};
    if (rank != job->fault_rank)
        options.debug.fault = TSR_FAULT_NONE;
    TSR_TRY(tsr_executor_create(&r->executor, &options));
    tsr_executor_trace(r->executor, 0);
    return tsr_executor_prologue(r->executor);
}

/* ---- steps ---- */

static tsr_status issue_all(toy_rank *r, bool train, int step, int count)
{
    int size = tsr_comm_size(r->world), rank = tsr_comm_rank(r->world);
    for (int round = 0; round * size < count; round++) {
        int k = round * size + rank;
        r->seed = toy_micro_seed(train, step, k);
        r->empty = k >= count;
        TSR_TRY(tsr_executor_micro_batch(r->executor, train, r->empty));
    }
    return TSR_OK;
}

static tsr_status read_word(toy_rank *r, int *count)
{
    int64_t word[TSR_WORD_COUNT];
    TSR_TRY(tsr_executor_wait_word(r->executor, word));
    if (r->out && r->store.rank == 0) {
        memcpy(r->out->word[*count], word, sizeof word);
        r->out->word_count = *count + 1;
    }
    (*count)++;
    return TSR_OK;
}

/* A call that must be refused and change nothing. */
static tsr_status refused(tsr_status status)
{
    if (status == TSR_EINVAL)
        return TSR_OK;
    return tsr_fail(TSR_EINTERNAL, "a call out of order gives %s", tsr_status_name(status));
}

/* Words are read one behind, as a run would. */
static tsr_status end_one(toy_rank *r, int step, bool train, int *made, int *read)
{
    tsr_host_flags flags = {.error = train && step > 0 && step == r->job->discard_step &&
                                     tsr_comm_rank(r->world) == 0};
    if (r->job->misuse && train && r->plan->options.one_round)
        TSR_TRY(refused(tsr_executor_micro_batch(r->executor, true, false)));
    if (r->job->misuse)
        TSR_TRY(refused(train ? tsr_executor_eval_end(r->executor, &flags)
                              : tsr_executor_step_end(r->executor, &flags)));
    TSR_TRY(train ? tsr_executor_step_end(r->executor, &flags)
                  : tsr_executor_eval_end(r->executor, &flags));
    if ((*made)++ <= *read)
        return TSR_OK;
    if (r->job->misuse)
        TSR_TRY(refused(tsr_executor_micro_batch(r->executor, train, false)));
    return read_word(r, read);
}

static tsr_status run_steps(toy_rank *r)
{
    const toy_job *job = r->job;
    int made = 0, read = 0;
    for (int step = 0; step < job->steps; step++) {
        if (step > 0 && step == job->restart_step) {
            while (read < made)
                TSR_TRY(read_word(r, &read));
            TSR_TRY(tsr_executor_prologue(r->executor));
        }
        if (r->model->options.train) {
            TSR_TRY(issue_all(r, true, step, job->micro_batches));
            TSR_TRY(end_one(r, step, true, &made, &read));
        }
        if (toy_evaluates(job, step)) {
            TSR_TRY(issue_all(r, false, step, job->eval_micro_batches));
            TSR_TRY(end_one(r, step, false, &made, &read));
        }
    }
    while (read < made)
        TSR_TRY(read_word(r, &read));
    if (job->misuse)
        TSR_TRY(refused(tsr_executor_wait_word(r->executor, (int64_t[TSR_WORD_COUNT]){0})));
    return tsr_streams_synchronize(&r->streams);
}

static void keep_outcome(toy_rank *r)
{
    const tsr_trainable *t = &r->store.trainable;
    for (int u = 0; r->out && t->master && u < t->unit_count; u++)
        for (int i = 0; i < t->units[u].trainable.segment_count; i++) {
            tsr_trainable_span span = tsr_trainable_at(t, u, i);
            uint64_t base = toy_element_base(r->model, u, i) + span.first;
            memcpy(r->out->master[0] + base, t->master + span.begin, span.real * sizeof(float));
            memcpy(r->out->master[1] + base, t->m + span.moment, span.real * sizeof(float));
        }
}

static void keep_log(toy_rank *r)
{
    static const char *const causes[] = {"h2d", "gather", "reduce", "load", "save", "other"};
    double ended[TSR_STREAM_COUNT] = {0};
    toy_report *report = r->report;
    tsr_executor_log(r->executor, 0, &report->logged);
    for (uint64_t i = 0; i < report->logged; i++) {
        const tsr_op_record *record = tsr_executor_log(r->executor, i, &report->logged);
        bool op = record->type == TSR_RECORD_OP;
        report->disorders += !(record->start <= record->end);
        for (int c = 0; c < 6 && !op; c++)
            if (!strcmp(record->name, causes[c]))
                report->logged_exposed[c] += record->end - record->start;
        if (!op)
            continue;
        report->logged_of_kind[record->kind]++;
        report->disorders +=
            record->start < ended[record->stream] || !(record->issue <= record->end);
        ended[record->stream] = record->end;
    }
}

static void end(toy_rank *r)
{
    if (r->executor) {
        tsr_streams_synchronize(&r->streams); /* after a failure work may still be under way */
        tsr_executor_live_slots(r->executor, &r->report->live_most);
        r->report->exposed = tsr_executor_exposed(r->executor);
        keep_log(r);
    }
    tsr_executor_destroy(r->executor);
    tsr_comm_destroy(r->replica);
    tsr_comm_destroy(r->shard);
    tsr_arena_destroy(r->arena);
    tsr_arena_destroy(r->host_arena);
    tsr_store_free(&r->store);
    tsr_memory_plan_free(&r->memory);
    tsr_plan_destroy(r->plan);
}

void toy_run_rank(toy_report *report, toy_outcome *out, const toy_job *job, tsr_comm *world)
{
    toy_rank *r = calloc(1, sizeof *r);
    if (!r)
        abort();
    *r = (toy_rank){.job = job, .model = job->model, .report = report, .out = out, .world = world};
    memset(report, 0, sizeof *report);
    report->status = start(r);
    if (report->status == TSR_OK)
        report->status = run_steps(r);
    if (report->status == TSR_OK)
        keep_outcome(r);
    else
        snprintf(report->message, sizeof report->message, "%.1000s", tsr_last_error());
    end(r);
    tsr_comm_destroy(world);
    tsr_streams_destroy(&r->streams);
    tsr_device_destroy(r->device);
    free(r);
}

/* ---- ranks as threads ---- */

typedef struct {
    pthread_t thread;
    toy_report *report;
    toy_outcome *out;
    const toy_job *job;
    tsr_comm *comm;
} toy_thread;

static void *thread_main(void *argument)
{
    toy_thread *t = argument;
    toy_run_rank(t->report, t->out, t->job, t->comm);
    return NULL;
}

void toy_run_threads(toy_report *report, toy_outcome *out, const toy_job *job)
{
    const tsr_plan_options *o = &job->model->options;
    int size = o->ranks * o->replicas;
    tsr_comm *comm[64];
    toy_thread thread[64];
    double timeout = job->timeout_seconds > 0 ? job->timeout_seconds : 60;
    if (tsr_comm_create_threads(comm, size, timeout) < 0)
        abort();
    for (int i = 0; i < size; i++) {
        thread[i] = (toy_thread){.report = &report[i],
                                 .out = out ? &out[i / o->ranks] : NULL,
                                 .job = job,
                                 .comm = comm[i]};
        if (pthread_create(&thread[i].thread, NULL, thread_main, &thread[i]) != 0)
            abort();
    }
    for (int i = 0; i < size; i++)
        pthread_join(thread[i].thread, NULL);
}
