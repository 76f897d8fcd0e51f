#include "shard/executor.h"

#include "device/range.h"
#include "shard/executor_parts.h"
#include "shard/plan_parts.h"

#include <stdlib.h>
#include <string.h>

/* ---- creation ---- */

static tsr_status check_options(const tsr_executor_options *o)
{
    if (!o->store || !o->device || !o->streams || !o->world || !o->shard || !o->kernels)
        return tsr_fail(TSR_EINVAL, "an executor needs a store, a device, streams, kernels and "
                                    "communicators");
    const tsr_plan_options *plan = &o->store->plan->options;
    if (tsr_comm_size(o->shard) != plan->ranks || tsr_comm_rank(o->shard) != o->store->rank)
        return tsr_fail(TSR_EINVAL,
                        "rank %d of %d in the shard group, but the plan is for rank %d "
                        "of %d",
                        tsr_comm_rank(o->shard), tsr_comm_size(o->shard), o->store->rank,
                        plan->ranks);
    if (plan->replicas > 1 && (!o->replica || tsr_comm_size(o->replica) != plan->replicas))
        return tsr_fail(TSR_EINVAL, "%d replicas in the plan, %d ranks in the replica group",
                        plan->replicas, o->replica ? tsr_comm_size(o->replica) : 0);
    if (o->store->plan->chunk_count > 0 && !o->streams->stream[TSR_STREAM_STATE_OUT])
        return tsr_fail(TSR_EINVAL, "optimizer state that travels needs streams of its own");
    const tsr_executor_callbacks *c = &o->callbacks;
    bool norm = false, saves = o->store->plan->saved_bytes > 0;
    for (int u = 0; u < plan->unit_count; u++)
        norm |= plan->units[u].has_norm;
    if (!c->compute || !c->tally || (norm && !c->norm) || (saves && !c->saved) ||
        (plan->train && !plan->mixed && (!c->grad_norm || !c->optim || !o->gradient_overflow)) ||
        plan->mixed != (o->owner_count > 0))
        return tsr_fail(TSR_EINVAL, "a callback of the executor is missing, or where it tells of "
                                    "gradients that do not fit");
    return TSR_OK;
}

/* Ranges of one part: for each slot (and each stage it can come from), or for its own place, all its
 * segments. */
static uint64_t make_ranges(tsr_executor *executor, int unit, int part, tsr_gather_range *out)
{
    const tsr_store *store = executor->options.store;
    const tsr_plan_options *o = &executor->plan->options;
    const tsr_unit *u = &o->units[unit];
    bool trainable = part == TSR_PART_TRAINABLE;
    bool kept = trainable && tsr_unit_trainable_kept(u, o->ranks);
    const tsr_unit_part *p = trainable ? &u->trainable : &u->frozen;
    bool gathered = trainable
                        ? tsr_unit_trainable_gathered(u, o->ranks)
                        : tsr_unit_frozen_gathered(u, o->ranks) && u->home != TSR_HOME_HOST_FULL;
    if (!gathered && !kept)
        return 0;
    bool staged = !trainable && u->home == TSR_HOME_HOST_SHARDED;
    int copies = staged ? o->stages : 1;
    uint64_t count = 0;
    for (int slot = 0; slot < (kept ? 1 : o->slots); slot++)
        for (int copy = 0; copy < copies; copy++)
            for (int i = 0; i < p->segment_count; i++, count++) {
                const tsr_segment *s = &p->segment[i];
                if (!out)
                    continue;
                const char *from = staged ? store->stage[copy]
                                   : trainable
                                       ? store->trainable.work + store->trainable.work_offset[unit]
                                       : store->frozen[unit];
                uint64_t at = trainable ? tsr_unit_slot_trainable(u, o->ranks) : 0;
                char *to = kept ? store->kept[unit] : store->slot[slot] + at;
                out[count] = (tsr_gather_range){.send = from + s->shard_offset,
                                                .receive = to + s->gathered_offset,
                                                .bytes = s->shard_bytes};
            }
    return count;
}

static tsr_status make_all_ranges(tsr_executor *executor)
{
    int parts = executor->plan->options.unit_count * TSR_PART_COUNT;
    executor->range_at = calloc((size_t)parts + 1, sizeof *executor->range_at);
    executor->kept_update = calloc((size_t)parts, sizeof *executor->kept_update);
    if (!executor->range_at || !executor->kept_update)
        return tsr_fail(TSR_ENOMEM, "no memory for the ranges of %d parts", parts);
    for (int i = 0; i < parts; i++)
        executor->range_at[i + 1] =
            executor->range_at[i] +
            make_ranges(executor, i / TSR_PART_COUNT, i % TSR_PART_COUNT, NULL);
    executor->range = calloc(executor->range_at[parts] + 1, sizeof *executor->range);
    if (!executor->range)
        return tsr_fail(TSR_ENOMEM, "no memory for %llu ranges",
                        (unsigned long long)executor->range_at[parts]);
    for (int i = 0; i < parts; i++)
        make_ranges(executor, i / TSR_PART_COUNT, i % TSR_PART_COUNT,
                    executor->range + executor->range_at[i]);
    return TSR_OK;
}

/* Where segment `i` of a unit has its sums; number: of those before it how many are the same adapter's. */
static tsr_status place_sums(tsr_fixed_part *out, const tsr_executor *executor, int unit, int i,
                             int number)
{
    const tsr_segment *s = &executor->plan->options.units[unit].trainable.segment[i];
    if (!executor->options.owner_count) {
        *out = tsr_trainable_part(&executor->options.store->trainable, unit, i);
        return TSR_OK;
    }
    const tsr_trainable *its = s->adapter < executor->options.owner_count
                                   ? &executor->options.owner[s->adapter].store->trainable
                                   : NULL;
    const tsr_unit_part *part = its && unit < its->unit_count ? &its->units[unit].trainable : NULL;
    if (!part || number >= part->segment_count ||
        part->segment[number].element_count != s->element_count ||
        part->segment[number].gradient_count != s->gradient_count)
        return tsr_fail(TSR_EINTERNAL, "adapter %d has no tensor %d of unit %d like %s", s->adapter,
                        number, unit, s->name);
    *out = tsr_trainable_part(its, unit, number);
    return TSR_OK;
}

/* A segment goes on with the last run of its unit, or begins another. */
static void add_to_run(tsr_executor *executor, int unit, int i, uint64_t part)
{
    const tsr_segment *s = &executor->plan->options.units[unit].trainable.segment[i];
    uint64_t *end = &executor->run_at[unit + 1];
    int owner = executor->options.owner_count ? s->adapter : -1;
    if (*end == executor->run_at[unit] || executor->run[*end - 1].owner != owner)
        executor->run[(*end)++] =
            (tsr_sum_run){.owner = owner, .first = part, .offset = s->gradient_offset};
    executor->run[*end - 1].count++;
    executor->run[*end - 1].elements += s->gradient_count;
}

/* What REDUCE of a unit exchanges and sums. */
static tsr_status make_parts_of(tsr_executor *executor, int unit)
{
    const tsr_store *store = executor->options.store;
    const tsr_unit *u = &executor->plan->options.units[unit];
    const tsr_unit_part *part = &u->trainable;
    int ranks = executor->plan->options.ranks;
    uint64_t first = executor->part_at[unit], element = tsr_unit_gradient_element(u);
    int buffers = executor->plan->gradient_buffers;
    tsr_exchange_range *piece = executor->piece + first * (uint64_t)buffers;
    for (int i = 0; i < part->segment_count; i++) {
        int before = 0;
        for (int k = 0; k < i; k++)
            before += part->segment[k].adapter == part->segment[i].adapter;
        TSR_TRY(place_sums(&executor->part[first + (uint64_t)i], executor, unit, i, before));
        add_to_run(executor, unit, i, first + (uint64_t)i);
    }
    for (int buffer = 0; buffer < buffers; buffer++)
        for (int i = 0; i < part->segment_count; i++) {
            const tsr_segment *s = &part->segment[i];
            *piece++ = (tsr_exchange_range){.send = (char *)tsr_store_gradient(store, buffer) +
                                                    element * tsr_unit_gradient_at(s, ranks),
                                            .receive = (char *)store->received +
                                                       element * tsr_unit_received_at(s, ranks),
                                            .bytes = element * s->gradient_count};
        }
    return TSR_OK;
}

static tsr_status make_parts(tsr_executor *executor)
{
    const tsr_plan_options *o = &executor->plan->options;
    executor->part_at = calloc((size_t)o->unit_count + 1, sizeof *executor->part_at);
    executor->run_at = calloc((size_t)o->unit_count + 1, sizeof *executor->run_at);
    if (!executor->part_at || !executor->run_at)
        return tsr_fail(TSR_ENOMEM, "no memory for the parts of %d units", o->unit_count);
    for (int u = 0; u < o->unit_count; u++) {
        int count = o->train ? o->units[u].trainable.segment_count : 0;
        executor->part_at[u + 1] = executor->part_at[u] + (uint64_t)count;
    }
    size_t count = executor->part_at[o->unit_count];
    executor->part = calloc(count + 1, sizeof *executor->part);
    executor->run = calloc(count + 1, sizeof *executor->run);
    executor->piece =
        calloc((size_t)executor->plan->gradient_buffers * count + 1, sizeof *executor->piece);
    if (!executor->part || !executor->run || !executor->piece)
        return tsr_fail(TSR_ENOMEM, "no memory for the parts of %zu tensors", count);
    for (int u = 0; u < o->unit_count; u++) {
        executor->run_at[u + 1] = executor->run_at[u];
        if (o->train)
            TSR_TRY(make_parts_of(executor, u));
    }
    return TSR_OK;
}

/* Every event of a stream that there is: each is recorded once, so that the first wait for it finds a record. */
static tsr_status make_events(tsr_executor *executor)
{
    for (int e = 0; e < TSR_EVENT_COUNT; e++) {
        tsr_stream *stream = executor->options.streams->stream[tsr_event_stream(e)];
        TSR_TRY(tsr_event_create(&executor->event[e], executor->options.device));
        if (stream)
            TSR_TRY(tsr_event_record(executor->event[e], stream));
    }
    return TSR_OK;
}

tsr_status tsr_executor_create(tsr_executor **out, const tsr_executor_options *options)
{
    TSR_TRY(check_options(options));
    tsr_executor *executor = calloc(1, sizeof *executor);
    if (!executor)
        return tsr_fail(TSR_ENOMEM, "no memory for an executor");
    executor->options = *options;
    executor->plan = options->store->plan;
    executor->watched = tsr_device_kind_of(options->device) == TSR_DEVICE_CPU ||
                        options->debug.fault != TSR_FAULT_NONE || options->debug.check;
    executor->timed = tsr_device_kind_of(options->device) != TSR_DEVICE_CPU || options->debug.timed;
    executor->ranges = tsr_ranges_built() && tsr_device_kind_of(options->device) != TSR_DEVICE_CPU;
    executor->trace_step = -1;
    pthread_mutex_init(&executor->log_lock, NULL);
    tsr_status status = TSR_OK;
    if (options->log_count > 0) {
        executor->log = calloc(options->log_count, sizeof *executor->log);
        if (!executor->log)
            status =
                tsr_fail(TSR_ENOMEM, "no memory for a trace of %u records", options->log_count);
    }
    if (status == TSR_OK)
        status = make_all_ranges(executor);
    if (status == TSR_OK)
        status = make_parts(executor);
    if (status == TSR_OK)
        status = make_events(executor);
    if (status == TSR_OK)
        status = tsr_marks_create(executor);
    if (status < 0) {
        tsr_executor_destroy(executor);
        return status;
    }
    *out = executor;
    return TSR_OK;
}

void tsr_executor_destroy(tsr_executor *executor)
{
    if (!executor)
        return;
    tsr_streams_synchronize(executor->options.streams);
    for (int e = 0; e < TSR_EVENT_COUNT; e++)
        if (executor->event[e])
            tsr_event_destroy(executor->event[e]);
    tsr_marks_destroy(executor);
    pthread_mutex_destroy(&executor->log_lock);
    free(executor->range);
    free(executor->range_at);
    free(executor->kept_update);
    free(executor->part);
    free(executor->piece);
    free(executor->part_at);
    free(executor->run);
    free(executor->run_at);
    free(executor->log);
    free(executor);
}

/* ---- errors ---- */

tsr_status tsr_executor_fail(tsr_executor *executor, tsr_status status)
{
    if (executor->failed)
        return status;
    executor->failed = true;
    tsr_error_take(&executor->error, status);
    tsr_device_poison(executor->options.device, status, executor->error.message);
    tsr_comm_abort(executor->options.world, status, executor->error.message);
    return tsr_error_put(&executor->error);
}

/* After a failure nothing is issued any more. */
static tsr_status check_alive(tsr_executor *executor)
{
    tsr_status status = tsr_device_check(executor->options.device);
    return status < 0 ? tsr_executor_fail(executor, status) : TSR_OK;
}

/* ---- programs ---- */

static tsr_status run_program(tsr_executor *executor, tsr_program_kind kind)
{
    const tsr_program *program = tsr_plan_program(executor->plan, executor->state, kind);
    if (!program)
        return tsr_fail(TSR_EINVAL, "%s cannot follow here: see the order of calls",
                        tsr_program_name(kind));
    for (int e = 0; e < TSR_EVENT_COUNT; e++)
        executor->base[e] = tsr_event_recorded(executor->event[e]);
    for (int i = 0; i < program->op_count; i++) {
        tsr_status status = tsr_op_issue(executor, &program->op[i]);
        if (status < 0)
            return tsr_executor_fail(executor, status);
    }
    executor->state = program->exit;
    return TSR_OK;
}

tsr_status tsr_executor_prologue(tsr_executor *executor)
{
    TSR_TRY(check_alive(executor));
    tsr_status status = tsr_streams_synchronize(executor->options.streams);
    if (status < 0)
        return tsr_executor_fail(executor, status);
    executor->state = 0;
    executor->norm_due = true;
    executor->micro_batch = executor->train_batches = 0;
    atomic_store(&executor->live, 0);
    return run_program(executor, TSR_PROGRAM_PROLOGUE);
}

static tsr_status check_words(const tsr_executor *executor)
{
    if (executor->words_made - executor->words_read < 2)
        return TSR_OK;
    return tsr_fail(TSR_EINVAL, "two control words are unread: read one before issuing more");
}

tsr_status tsr_executor_micro_batch(tsr_executor *executor, bool train, bool empty)
{
    TSR_TRY(check_alive(executor));
    TSR_TRY(check_words(executor));
    if (train && executor->train_batches && executor->plan->options.one_round)
        return tsr_fail(TSR_EINVAL, "a second micro-batch of a step that was planned with one");
    executor->train = train;
    executor->empty = empty;
    bool first = executor->norm_due;
    TSR_TRY(run_program(executor, train
                                      ? (first ? TSR_PROGRAM_TRAIN_FIRST : TSR_PROGRAM_TRAIN_NEXT)
                                      : (first ? TSR_PROGRAM_EVAL_FIRST : TSR_PROGRAM_EVAL_NEXT)));
    executor->norm_due = false;
    executor->micro_batch++;
    executor->train_batches += train;
    return TSR_OK;
}

static tsr_status run_end(tsr_executor *executor, tsr_program_kind kind,
                          const tsr_host_flags *flags)
{
    TSR_TRY(check_alive(executor));
    TSR_TRY(check_words(executor));
    executor->flags = *flags;
    TSR_TRY(run_program(executor, kind));
    executor->micro_batch = 0;
    return TSR_OK;
}

tsr_status tsr_executor_step_end(tsr_executor *executor, const tsr_host_flags *flags)
{
    TSR_TRY(run_end(executor, TSR_PROGRAM_STEP_END, flags));
    executor->train_batches = 0;
    executor->norm_due = true;
    return TSR_OK;
}

tsr_status tsr_executor_eval_end(tsr_executor *executor, const tsr_host_flags *flags)
{
    return run_end(executor, TSR_PROGRAM_EVAL_END, flags);
}

tsr_status tsr_executor_wait_word(tsr_executor *executor, int64_t *word)
{
    if (executor->words_read == executor->words_made)
        return tsr_fail(TSR_EINVAL, "no control word is on its way");
    uint64_t ring = executor->words_read % 2;
    /* First the times of the step's waits: most of it is still to run. */
    tsr_status status = tsr_marks_read(executor, executor->word_marks[ring]);
    if (status == TSR_OK)
        status =
            tsr_event_wait_host(executor->event[TSR_EVENT_WORDED], executor->word_generation[ring]);
    if (status < 0)
        return tsr_executor_fail(executor, status);
    /* A poisoned device completes its events without having done the work. */
    TSR_TRY(check_alive(executor));
    const tsr_store *store = executor->options.store;
    memcpy(word, store->host_word[ring], tsr_store_words(store) * sizeof *word);
    executor->words_read++;
    return TSR_OK;
}

/* ---- figures ---- */

tsr_exposed tsr_executor_exposed(const tsr_executor *executor)
{
    double seconds[TSR_CAUSE_COUNT];
    for (int c = 0; c < TSR_CAUSE_COUNT; c++)
        seconds[c] = 1e-9 * (double)atomic_load(&executor->exposed_ns[c]);
    return (tsr_exposed){.h2d = seconds[TSR_CAUSE_H2D],
                         .gather = seconds[TSR_CAUSE_GATHER],
                         .reduce = seconds[TSR_CAUSE_REDUCE],
                         .load = seconds[TSR_CAUSE_LOAD],
                         .save = seconds[TSR_CAUSE_SAVE],
                         .exchange = seconds[TSR_CAUSE_EXCHANGE],
                         .other = seconds[TSR_CAUSE_OTHER]};
}

int tsr_executor_live_slots(const tsr_executor *executor, int *most)
{
    if (most)
        *most = atomic_load(&executor->live_most);
    return __builtin_popcount(atomic_load(&executor->live));
}

void tsr_executor_name_step(tsr_executor *executor, uint64_t step)
{
    executor->named_step = step;
}

void tsr_executor_trace(tsr_executor *executor, int64_t step)
{
    executor->trace_step = executor->log ? step : -1;
}

const tsr_op_record *tsr_executor_log(tsr_executor *executor, uint64_t i, uint64_t *count)
{
    tsr_marks_read(executor, executor->marks_made); /* as far as they can be */
    uint64_t kept = executor->log_count < executor->options.log_count ? executor->log_count
                                                                      : executor->options.log_count;
    *count = kept;
    if (i >= kept)
        return NULL;
    return &executor->log[(executor->log_count - kept + i) % executor->options.log_count];
}
