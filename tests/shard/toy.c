#include "shard/toy.h"

#include "base/hash.h"
#include "shard/load.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- values ---- */

static void frozen_bytes(char *out, const tsr_segment *s, uint64_t first, uint64_t count)
{
    for (uint64_t i = 0; i < count * s->granule_bytes; i += 8) {
        uint64_t value = tsr_mix((uint64_t)s->param << 40 ^ (first * s->granule_bytes + i));
        memcpy(out + i, &value, 8);
    }
}

static float first_master(uint32_t param, uint64_t element)
{
    uint64_t bits = tsr_mix((uint64_t)param << 40 ^ element ^ 0x5eedu);
    return (float)(int32_t)(bits >> 40) * 0x1p-24f - 0.5f;
}

static uint64_t micro_seed(bool train, int step, int micro_batch)
{
    return tsr_mix((uint64_t)step << 20 ^ (uint64_t)micro_batch ^ (train ? 0 : 1ull << 50));
}

static void store_work(void *work, tsr_dtype dtype, uint64_t i, float value)
{
    if (dtype == TSR_F32)
        ((float *)work)[i] = value;
    else
        ((uint16_t *)work)[i] = tsr_f32_to_bf16(value);
}

/* The real bytes of a part, in tensor order: the same for any number of ranks. */
static uint64_t hash_part(uint64_t hash, const tsr_unit_part *part, const char *base)
{
    for (int i = 0; i < part->segment_count; i++) {
        const tsr_segment *s = &part->segment[i];
        hash = tsr_hash(hash, base + s->gathered_offset, s->granule_count * s->granule_bytes);
    }
    return hash;
}

static uint64_t hash_view(const tsr_unit *unit, const tsr_unit_view *view)
{
    return hash_part(hash_part(TSR_HASH_START, &unit->frozen, view->frozen), &unit->trainable,
                     view->trainable);
}

static int64_t gradient_at(uint64_t dx, uint32_t param, uint64_t element)
{
    return (int64_t)(tsr_mix(dx ^ (uint64_t)param << 32 ^ element) % 2001) - 1000;
}

/* One element's update, from the exact sum and the exact norm. */
static void update(float *master, float *m, int64_t sum, double norm)
{
    float g = (float)((double)sum / (1.0 + norm));
    *m = 0.75f * *m + g;
    *master -= 0.125f * *m;
}

/* ---- what a micro-batch does, serial or not ---- */

typedef struct {
    uint64_t x, dx, saved[MAX_UNITS], norm[MAX_UNITS];
    int64_t loss;
} toy_state;

static void toy_use(toy_state *t, const tsr_unit *unit, tsr_use_phase phase, uint64_t hash,
                    uint64_t seed, bool first)
{
    hash ^= unit->has_norm ? t->norm[unit->id] : 0;
    if (first)
        t->x = seed;
    if (phase == TSR_USE_BACKWARD) {
        t->dx = tsr_mix(t->dx ^ hash ^ t->saved[unit->id]);
        return;
    }
    t->x = tsr_mix(t->x ^ hash);
    t->saved[unit->id] = t->x;
    if (phase == TSR_USE_HEAD) {
        t->loss += (int64_t)(t->x >> 40);
        t->dx = t->x;
    }
}

/* ---- outcome ---- */

static uint64_t element_base(const random_model *model, int unit, int segment)
{
    uint64_t base = 0;
    for (int u = 0; u < model->options.unit_count; u++)
        for (int i = 0; i < model->unit[u].trainable.segment_count; i++) {
            if (u == unit && i == segment)
                return base;
            base += model->unit[u].trainable.segment[i].granule_count * TSR_GRANULE_ELEMENTS;
        }
    return base;
}

void toy_outcome_make(toy_outcome *out, const random_model *model)
{
    memset(out, 0, sizeof *out);
    out->element_count = element_base(model, -1, -1);
    for (int i = 0; i < 2; i++) {
        out->master[i] = calloc(out->element_count + 1, sizeof(float));
        if (!out->master[i])
            abort();
    }
}

void toy_outcome_free(toy_outcome *outcome)
{
    free(outcome->master[0]);
    free(outcome->master[1]);
}

bool toy_outcome_equal(const toy_outcome *a, const toy_outcome *b)
{
    size_t bytes = a->element_count * sizeof(float);
    return a->word_count == b->word_count && a->element_count == b->element_count &&
           memcmp(a->word, b->word, (size_t)a->word_count * sizeof a->word[0]) == 0 &&
           memcmp(a->master[0], b->master[0], bytes) == 0 &&
           memcmp(a->master[1], b->master[1], bytes) == 0;
}

static bool evaluates(const toy_job *job, int step)
{
    return job->eval_micro_batches > 0 && step % 2 == 1;
}

/* ---- serial ---- */

typedef struct {
    const toy_job *job;
    const random_model *model;
    toy_outcome *out;
    toy_state state;
    char *frozen[MAX_UNITS], *trainable[MAX_UNITS];
    int64_t *sum;
} serial_run;

static void serial_work(serial_run *r)
{
    for (int u = 0; u < r->model->options.unit_count; u++)
        for (int i = 0; i < r->model->unit[u].trainable.segment_count; i++) {
            const tsr_segment *s = &r->model->unit[u].trainable.segment[i];
            const float *master = r->out->master[0] + element_base(r->model, u, i);
            for (uint64_t e = 0; e < s->granule_count * TSR_GRANULE_ELEMENTS; e++)
                store_work(r->trainable[u] + s->gathered_offset, s->dtype, e, master[e]);
        }
    for (int u = 0; u < r->model->options.unit_count; u++) {
        tsr_unit_view view = {r->frozen[u], r->trainable[u]};
        r->state.norm[u] = hash_view(&r->model->unit[u], &view);
    }
}

static void serial_begin(serial_run *r)
{
    r->sum = calloc(r->out->element_count + 1, sizeof *r->sum);
    for (int u = 0; u < r->model->options.unit_count; u++) {
        const tsr_unit *unit = &r->model->unit[u];
        r->frozen[u] = calloc(1, unit->frozen.gathered_bytes + 1);
        r->trainable[u] = calloc(1, unit->trainable.gathered_bytes + 1);
        if (!r->frozen[u] || !r->trainable[u] || !r->sum)
            abort();
        for (int i = 0; i < unit->frozen.segment_count; i++) {
            const tsr_segment *s = &unit->frozen.segment[i];
            frozen_bytes(r->frozen[u] + s->gathered_offset, s, 0, s->granule_count);
        }
        for (int i = 0; i < unit->trainable.segment_count; i++) {
            const tsr_segment *s = &unit->trainable.segment[i];
            float *master = r->out->master[0] + element_base(r->model, u, i);
            for (uint64_t e = 0; e < s->granule_count * TSR_GRANULE_ELEMENTS; e++)
                master[e] = first_master(s->param, e);
        }
    }
    serial_work(r);
}

static void serial_use(serial_run *r, int u, tsr_use_phase phase, uint64_t seed)
{
    tsr_unit_view view = {r->frozen[u], r->trainable[u]};
    toy_use(&r->state, &r->model->unit[u], phase, hash_view(&r->model->unit[u], &view), seed,
            u == 0 && phase == TSR_USE_FORWARD);
}

static void serial_micro_batch(serial_run *r, bool train, uint64_t seed)
{
    const tsr_plan_options *o = &r->model->options;
    int lowest = 0;
    while (lowest < o->layer_count && o->units[lowest].trainable.gradient_count == 0)
        lowest++;
    for (int u = 0; u < o->unit_count; u++)
        serial_use(r, u, u < o->layer_count ? TSR_USE_FORWARD : TSR_USE_HEAD, seed);
    for (int u = o->layer_count - 1; train && u >= lowest; u--) {
        serial_use(r, u, TSR_USE_BACKWARD, seed);
        for (int i = 0; i < o->units[u].trainable.segment_count; i++) {
            const tsr_segment *s = &o->units[u].trainable.segment[i];
            int64_t *sum = r->sum + element_base(r->model, u, i);
            for (uint64_t e = 0; e < s->granule_count * TSR_GRANULE_ELEMENTS; e++)
                sum[e] += gradient_at(r->state.dx, s->param, e);
        }
    }
}

static int64_t *serial_word(serial_run *r)
{
    int64_t *word = r->out->word[r->out->word_count++];
    word[TSR_WORD_LOSS] = r->state.loss;
    r->state.loss = 0;
    return word;
}

static void serial_step_end(serial_run *r, int step)
{
    int64_t *word = serial_word(r);
    bool discard = step > 0 && step == r->job->discard_step;
    word[TSR_WORD_ERROR] = discard;
    tsr_exact_sum *norm = tsr_word_norm(word);
    for (uint64_t e = 0; e < r->out->element_count; e++)
        tsr_exact_add(norm, (double)r->sum[e] * (double)r->sum[e]);
    double rounded = tsr_exact_round(norm);
    for (uint64_t e = 0; e < r->out->element_count; e++) {
        if (!discard)
            update(&r->out->master[0][e], &r->out->master[1][e], r->sum[e], rounded);
        r->sum[e] = 0;
    }
    serial_work(r);
}

void toy_run_serial(toy_outcome *out, const toy_job *job)
{
    serial_run *r = calloc(1, sizeof *r);
    if (!r)
        abort();
    *r = (serial_run){.job = job, .model = job->model, .out = out};
    serial_begin(r);
    for (int step = 0; step < job->steps; step++) {
        for (int k = 0; job->model->options.train && k < job->micro_batches; k++)
            serial_micro_batch(r, true, micro_seed(true, step, k));
        if (job->model->options.train)
            serial_step_end(r, step);
        for (int k = 0; evaluates(job, step) && k < job->eval_micro_batches; k++)
            serial_micro_batch(r, false, micro_seed(false, step, k));
        if (evaluates(job, step))
            serial_word(r);
    }
    for (int u = 0; u < MAX_UNITS; u++) {
        free(r->frozen[u]);
        free(r->trainable[u]);
    }
    free(r->sum);
    free(r);
}

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
    uint64_t seed; /* of the micro-batch that is issued */
} toy_rank;

typedef struct {
    toy_rank *rank;
    tsr_use use;
    tsr_unit_view view;
    int64_t *gradient, *word;
    uint64_t seed;
} toy_call;

static tsr_status run_norm(void *args, tsr_pool *pool)
{
    (void)pool;
    toy_call *c = args;
    const tsr_unit *unit = &c->rank->model->unit[c->use.unit];
    c->rank->state.norm[unit->id] = hash_view(unit, &c->view);
    return TSR_OK;
}

static void write_gradient(const toy_call *c, const tsr_unit *unit)
{
    uint64_t ranks = (uint64_t)c->rank->model->options.ranks;
    uint64_t stride = unit->trainable.gradient_count;
    memset(c->gradient, 0, ranks * stride * sizeof(int64_t));
    if (c->use.empty)
        return;
    for (int i = 0; i < unit->trainable.segment_count; i++) {
        const tsr_segment *s = &unit->trainable.segment[i];
        for (uint64_t e = 0; e < s->granule_count * TSR_GRANULE_ELEMENTS; e++) {
            uint64_t owner = e / s->gradient_count, at = e % s->gradient_count;
            c->gradient[owner * stride + s->gradient_offset + at] =
                gradient_at(c->rank->state.dx, s->param, e);
        }
    }
}

static tsr_status run_compute(void *args, tsr_pool *pool)
{
    (void)pool;
    toy_call *c = args;
    const tsr_unit *unit = &c->rank->model->unit[c->use.unit];
    uint64_t hash = hash_view(unit, &c->view);
    if (!c->use.empty)
        toy_use(&c->rank->state, unit, c->use.phase, hash, c->seed, c->use.first);
    if (c->gradient)
        write_gradient(c, unit);
    return TSR_OK;
}

static tsr_status run_tally(void *args, tsr_pool *pool)
{
    (void)pool;
    toy_call *c = args;
    c->word[TSR_WORD_LOSS] = c->rank->state.loss;
    c->rank->state.loss = 0;
    return TSR_OK;
}

static tsr_status run_grad_norm(void *args, tsr_pool *pool)
{
    toy_call *c = args;
    const tsr_trainable *t = &c->rank->store.trainable;
    for (uint64_t e = 0; e < t->count; e++)
        tsr_exact_add(tsr_word_norm(c->word),
                      (double)t->accumulator[e] * (double)t->accumulator[e]);
    return run_tally(args, pool);
}

static void write_all_work(const toy_rank *r)
{
    const tsr_trainable *t = &r->store.trainable;
    for (int u = 0; u < t->unit_count; u++)
        for (int i = 0; i < t->units[u].trainable.segment_count; i++) {
            tsr_trainable_span span = tsr_trainable_at(t, u, i);
            for (uint64_t e = 0; e < span.count; e++)
                store_work(span.work, span.segment->dtype, e,
                           t->master ? t->master[span.begin + e]
                                     : first_master(span.segment->param, span.first + e));
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
    for (uint64_t e = 0; e < t->count; e++)
        update(&t->master[e], &t->m[e], t->accumulator[e], norm);
    write_all_work(c->rank);
    return TSR_OK;
}

static tsr_status on_norm(void *user, int unit, const tsr_unit_view *view)
{
    toy_rank *r = user;
    toy_call call = {.rank = r, .use.unit = unit, .view = *view};
    return tsr_stream_call(r->streams.stream[TSR_STREAM_COMPUTE], run_norm, &call, sizeof call);
}

static tsr_status on_compute(void *user, const tsr_use *use, const tsr_unit_view *view,
                             int64_t *gradient)
{
    toy_rank *r = user;
    toy_call call = {.rank = r, .use = *use, .view = *view, .gradient = gradient, .seed = r->seed};
    return tsr_stream_call(r->streams.stream[TSR_STREAM_COMPUTE], run_compute, &call, sizeof call);
}

static tsr_status on_optim_stream(toy_rank *r, tsr_call *function, const int64_t *word)
{
    toy_call call = {.rank = r, .word = (int64_t *)word};
    return tsr_stream_call(r->streams.stream[TSR_STREAM_OPTIM], function, &call, sizeof call);
}

static tsr_status on_grad_norm(void *user, int64_t *word)
{
    return on_optim_stream(user, run_grad_norm, word);
}

static tsr_status on_tally(void *user, int64_t *word)
{
    return on_optim_stream(user, run_tally, word);
}

static tsr_status on_optim(void *user, const int64_t *word)
{
    return on_optim_stream(user, run_optim, word);
}

/* ---- start-up ---- */

static tsr_status fill_frozen(void *user, int unit, const tsr_load_place *place)
{
    (void)user;
    (void)unit;
    frozen_bytes(place->data, place->segment, place->first_granule, place->granule_count);
    return TSR_OK;
}

static void fill_masters(toy_rank *r)
{
    tsr_trainable *t = &r->store.trainable;
    for (int u = 0; t->master && u < t->unit_count; u++)
        for (int i = 0; i < t->units[u].trainable.segment_count; i++) {
            tsr_trainable_span span = tsr_trainable_at(t, u, i);
            for (uint64_t e = 0; e < span.real; e++)
                t->master[span.begin + e] = first_master(span.segment->param, span.first + e);
        }
    write_all_work(r);
}

static tsr_status make_memory(toy_rank *r)
{
    tsr_taker planning = {.plan = &r->memory};
    TSR_TRY(tsr_store_walk(&r->store, &planning));
    TSR_TRY(tsr_arena_create(&r->arena, r->device, TSR_MEMORY_DEVICE,
                             r->memory.total[TSR_PLACE_DEVICE]));
    TSR_TRY(tsr_arena_create(&r->host_arena, r->device, TSR_MEMORY_HOST,
                             r->memory.total[TSR_PLACE_HOST]));
    tsr_taker running = {.plan = &r->memory, .device = r->arena, .host = r->host_arena};
    TSR_TRY(tsr_store_walk(&r->store, &running));
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
    TSR_TRY(tsr_streams_create(&r->streams, r->device));
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
    tsr_executor_options options = {.store = &r->store,
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
                                                  .optim = on_optim},
                                    .debug = job->debug,
                                    .log_count = 64};
    if (rank != job->fault_rank)
        options.debug.fault = TSR_FAULT_NONE;
    TSR_TRY(tsr_executor_create(&r->executor, &options));
    return tsr_executor_prologue(r->executor);
}

/* ---- steps ---- */

static tsr_status issue_all(toy_rank *r, bool train, int step, int count)
{
    int size = tsr_comm_size(r->world), rank = tsr_comm_rank(r->world);
    for (int round = 0; round * size < count; round++) {
        int k = round * size + rank;
        r->seed = micro_seed(train, step, k);
        TSR_TRY(tsr_executor_micro_batch(r->executor, train, k >= count));
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
        if (evaluates(job, step)) {
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
            uint64_t base = element_base(r->model, u, i) + span.first;
            memcpy(r->out->master[0] + base, t->master + span.begin, span.real * sizeof(float));
            memcpy(r->out->master[1] + base, t->m + span.begin, span.real * sizeof(float));
        }
}

static void end(toy_rank *r)
{
    if (r->executor) {
        tsr_executor_live_slots(r->executor, &r->report->live_most);
        r->report->exposed = tsr_executor_exposed(r->executor);
        uint64_t count;
        tsr_executor_log(r->executor, 0, &count);
        r->report->logged = count;
        if (count > 0 && r->report->status == TSR_OK)
            r->report->last = *tsr_executor_log(r->executor, count - 1, &count);
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
