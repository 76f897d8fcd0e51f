/*
 * executor_issue.c: one op of the plan onto its stream: its waits, its work, its records.
 */
#include "base/clock.h"
#include "device/range.h"
#include "shard/executor_parts.h"

#include <string.h>

_Static_assert(sizeof(tsr_op_call) <= TSR_CALL_BYTES, "an op's call fits a stream's argument");

static tsr_stream *stream_of(const tsr_executor *executor, const tsr_plan_op *op)
{
    return executor->options.streams->stream[op->stream];
}

/* ---- waits ---- */

/* I4: a generation that was not recorded, or is no longer the latest, is a bug of the plan. */
static tsr_status wait_one(tsr_executor *executor, const tsr_plan_op *op, const tsr_plan_wait *wait)
{
    uint64_t generation = executor->base[wait->event] + wait->count;
    uint64_t recorded = tsr_event_recorded(executor->event[wait->event]);
    if (generation == 0 || generation != recorded) {
        char name[16];
        tsr_event_name(name, wait->event);
        return tsr_fail(TSR_EINTERNAL,
                        "plan: %s of unit %d waits for record %llu of %s, which has %llu",
                        tsr_op_name((tsr_op_kind)op->kind), op->unit,
                        (unsigned long long)generation, name, (unsigned long long)recorded);
    }
    return tsr_stream_wait(stream_of(executor, op), executor->event[wait->event], generation);
}

static tsr_status place(tsr_executor *executor, const tsr_plan_op *op, tsr_mark_kind kind,
                        tsr_wait_cause cause)
{
    tsr_op_record record = {.step = executor->trace_step,
                            .kind = op->kind,
                            .stream = op->stream,
                            .phase = op->phase,
                            .empty = executor->empty,
                            .unit = op->unit,
                            .op = executor->op,
                            .bytes = op->bytes,
                            .issue = executor->trace_step < 0 ? 0 : tsr_now()};
    if (kind == TSR_MARK_BEGIN || kind == TSR_MARK_END)
        record.type = TSR_RECORD_OP;
    else
        record.type = TSR_RECORD_EXPOSED;
    return tsr_mark_place(executor, &(tsr_mark){.executor = executor,
                                                .kind = kind,
                                                .cause = cause,
                                                .slot = op->slot,
                                                .record = record});
}

tsr_status tsr_executor_exchange(void *user, bool over)
{
    tsr_executor *executor = user;
    return place(executor, executor->op, over ? TSR_MARK_WAITED : TSR_MARK_WAIT,
                 TSR_CAUSE_EXCHANGE);
}

static tsr_status wait_all(tsr_executor *executor, const tsr_plan_op *op)
{
    bool measured = op->stream == TSR_STREAM_COMPUTE && op->wait_count > 0;
    if (measured)
        TSR_TRY(place(executor, op, TSR_MARK_WAIT, TSR_CAUSE_OTHER));
    /* The stage last, so that what a gather waits after its slot is the copy alone. */
    for (int i = 0; i < op->wait_count; i++) {
        int event = op->wait[i].event;
        bool staged =
            op->kind == TSR_OP_GATHER && op->stage >= 0 && event == TSR_EVENT_FILLED + op->stage;
        if (staged)
            TSR_TRY(place(executor, op, TSR_MARK_STAGE, TSR_CAUSE_H2D));
        TSR_TRY(wait_one(executor, op, &op->wait[i]));
        if (staged)
            TSR_TRY(place(executor, op, TSR_MARK_STAGED, TSR_CAUSE_H2D));
        if (measured)
            TSR_TRY(place(executor, op, TSR_MARK_WAITED, tsr_event_cause(event)));
    }
    return TSR_OK;
}

/* ---- work ---- */

static tsr_status poison(const tsr_executor *executor, const tsr_plan_op *op, char *data,
                         uint64_t bytes)
{
    if (!executor->options.debug.poison_slots || bytes == 0)
        return TSR_OK;
    return tsr_stream_fill(stream_of(executor, op), data, 0xff, bytes);
}

static tsr_status issue_h2d(tsr_executor *executor, const tsr_plan_op *op)
{
    const tsr_store *store = executor->options.store;
    char *to = op->stage >= 0 ? store->stage[op->stage] : store->slot[op->slot];
    return tsr_stream_copy(stream_of(executor, op), to, store->frozen[op->unit], op->bytes);
}

static tsr_status issue_gather(tsr_executor *executor, const tsr_plan_op *op)
{
    const tsr_plan_options *o = &executor->plan->options;
    const tsr_store *store = executor->options.store;
    const tsr_unit *unit = &o->units[op->unit];
    bool trainable = op->kind == TSR_OP_GATHER_T;
    const tsr_unit_part *part = trainable ? &unit->trainable : &unit->frozen;
    int copies = !trainable && unit->home == TSR_HOME_HOST_SHARDED ? o->stages : 1;
    bool kept = op->slot < 0;
    int copy = kept ? 0 : op->slot * copies + (op->stage >= 0 ? op->stage : 0);
    uint64_t first = executor->range_at[op->unit * TSR_PART_COUNT +
                                        (trainable ? TSR_PART_TRAINABLE : TSR_PART_FROZEN)] +
                     (uint64_t)copy * (uint64_t)part->segment_count;
    if (trainable)
        TSR_TRY(poison(executor, op,
                       kept ? store->kept[op->unit]
                            : store->slot[op->slot] + tsr_unit_slot_trainable(unit, o->ranks),
                       op->bytes));
    /* A frozen shard in device memory never changes: peers may read it whenever they want. */
    if (!trainable && unit->home == TSR_HOME_SHARDED)
        return tsr_comm_pull(executor->options.shard, stream_of(executor, op),
                             executor->range + first, part->segment_count);
    return tsr_comm_all_gather(executor->options.shard, stream_of(executor, op),
                               executor->range + first, part->segment_count);
}

/* The region of a use: all that the micro-batch has of it, in debug runs. */
static tsr_status poison_region(const tsr_executor *executor, const tsr_plan_op *op)
{
    const tsr_executor_callbacks *callbacks = &executor->options.callbacks;
    if (!executor->options.debug.poison_slots || op->region < 0)
        return TSR_OK;
    tsr_saved saved = callbacks->saved(callbacks->user, op->layer);
    return poison(executor, op, saved.device, saved.bytes);
}

static tsr_status issue_compute(tsr_executor *executor, const tsr_plan_op *op)
{
    const tsr_executor_callbacks *callbacks = &executor->options.callbacks;
    tsr_store *store = executor->options.store;
    tsr_unit_view view = tsr_store_view(store, op->unit, op->slot);
    if (op->kind == TSR_OP_NORM)
        return callbacks->norm(callbacks->user, op->layer, &view);
    tsr_use use = {.phase = (tsr_use_phase)op->phase,
                   .layer = op->layer,
                   .number = op->use,
                   .micro_batch = executor->micro_batch,
                   .train = executor->train,
                   .empty = executor->empty,
                   .first = op->first,
                   .last = op->last};
    if (op->phase == TSR_USE_FORWARD && op->use == 0)
        TSR_TRY(poison_region(executor, op));
    TSR_TRY(callbacks->compute(callbacks->user, &use, &view,
                               op->buffer >= 0 ? tsr_store_gradient(store, op->buffer) : NULL));
    if (op->phase == TSR_USE_BACKWARD && op->ends)
        TSR_TRY(poison_region(executor, op));
    if (!op->releases)
        return TSR_OK;
    return poison(executor, op, store->slot[op->slot], executor->plan->slot_bytes);
}

/* SAVE and LOAD. */
static tsr_status issue_saved(tsr_executor *executor, const tsr_plan_op *op)
{
    const tsr_executor_callbacks *callbacks = &executor->options.callbacks;
    bool save = op->kind == TSR_OP_SAVE;
    tsr_saved saved = callbacks->saved(callbacks->user, op->layer);
    if (op->bytes == 0)
        return TSR_OK;
    return tsr_stream_copy(stream_of(executor, op), save ? saved.host : saved.device,
                           save ? saved.device : saved.host, op->bytes);
}

/* LOAD_STATE and SAVE_STATE. */
static tsr_status issue_state(tsr_executor *executor, const tsr_plan_op *op)
{
    const tsr_store *store = executor->options.store;
    const tsr_trainable *t = &store->trainable;
    tsr_optim_part part = tsr_store_part(store, op->chunk);
    uint64_t bytes = part.count * sizeof(float);
    bool save = op->kind == TSR_OP_SAVE_STATE;
    const struct {
        void *home, *here;
        uint64_t bytes;
    } array[TSR_STATE_ARRAYS] = {{t->master + part.begin, part.master, bytes},
                                 {t->m + part.moment, part.m, part.moment_bytes},
                                 {t->v + part.moment, part.v, part.moment_bytes}};
    for (int i = 0; i < TSR_STATE_ARRAYS; i++)
        TSR_TRY(tsr_stream_copy(stream_of(executor, op), save ? array[i].home : array[i].here,
                                save ? array[i].here : array[i].home, array[i].bytes));
    return save ? poison(executor, op, (char *)part.master, op->bytes) : TSR_OK;
}

/* The kernel takes TSR_FIXED_PARTS tensors at a time. */
static tsr_status sum_parts(const tsr_executor *executor, tsr_stream *stream,
                            tsr_fixed_sum_args args, int count)
{
    for (int done = 0; done < count; done += args.part_count) {
        args.part += done ? args.part_count : 0;
        args.part_count = count - done < TSR_FIXED_PARTS ? count - done : TSR_FIXED_PARTS;
        TSR_TRY(executor->options.kernels->fixed_sum(stream, &args));
    }
    return TSR_OK;
}

/* Whose sums a run's are. */
static const tsr_trainable *owner_of(const tsr_executor *executor, const tsr_sum_run *run)
{
    const tsr_store *store =
        run->owner < 0 ? executor->options.store : executor->options.owner[run->owner].store;
    return &store->trainable;
}

/* Whether they begin with this micro-batch. */
static bool begins(const tsr_executor *executor, const tsr_sum_run *run)
{
    return run->owner < 0 ? executor->train_batches == 0
                          : *executor->options.owner[run->owner].begins;
}

/* A run's gradients into their owner's sums, or those of this replica into `partial`. */
static tsr_status sum_run(tsr_executor *executor, const tsr_plan_op *op, const tsr_sum_run *run)
{
    const tsr_executor_options *e = &executor->options;
    const tsr_store *store = e->store;
    const tsr_executor_owner *owner = run->owner < 0 ? NULL : &e->owner[run->owner];
    const tsr_fixed_part *part = executor->part + run->first;
    const tsr_unit *unit = &executor->plan->options.units[op->unit];
    uint64_t ranks = (uint64_t)executor->plan->options.ranks;
    uint64_t ahead = run->offset - part->offset; /* no adapter's tensor is further on than here */
    uint64_t bytes = ahead * tsr_unit_gradient_element(unit);
    char *received = store->received;
    uint64_t contributions = owner ? owner->contributions : e->contributions;
    bool replicas = executor->plan->options.replicas > 1;
    const tsr_trainable *sums = owner_of(executor, run);
    uint64_t begin = sums->begin[op->unit];
    return sum_parts(
        executor, stream_of(executor, op),
        (tsr_fixed_sum_args){
            .accumulator = replicas        ? store->partial + ahead
                           : sums->rounded ? NULL
                                           : sums->accumulator + begin,
            .rounded = !replicas && sums->rounded ? sums->rounded + begin : NULL,
            .gradient = (char *)tsr_store_gradient(store, op->buffer) + ranks * bytes,
            .received = received ? received + (ranks - 1) * bytes : NULL,
            .wide = unit->wide,
            .part = part,
            .ranks = ranks,
            .rank = (uint64_t)store->rank,
            .shift = e->gradient_shift,
            .limit = tsr_fixed_limit(e->gradient_shift, contributions ? contributions : 1),
            .store = replicas || begins(executor, run),
            .overflow = owner ? owner->gradient_overflow : e->gradient_overflow},
        run->count);
}

/* The sums of all replicas, which lie in `partial`, into their owner's. */
static tsr_status add_run(tsr_executor *executor, const tsr_plan_op *op, const tsr_sum_run *run)
{
    const tsr_executor_options *e = &executor->options;
    const tsr_fixed_part *part = executor->part + run->first;
    const tsr_trainable *sums = owner_of(executor, run);
    uint64_t begin = sums->begin[op->unit];
    const int64_t *partial = e->store->partial + run->offset;
    if (sums->rounded)
        return sum_parts(executor, stream_of(executor, op),
                         (tsr_fixed_sum_args){.rounded = sums->rounded + begin,
                                              .gradient = e->store->partial,
                                              .wide = true,
                                              .part = part,
                                              .ranks = 1,
                                              .shift = e->gradient_shift,
                                              .store = true,
                                              .overflow = e->gradient_overflow},
                         run->count);
    return e->kernels->fixed_add(
        stream_of(executor, op),
        &(tsr_fixed_add_args){.accumulator = sums->accumulator + begin + part->offset,
                              .part = partial,
                              .count = run->elements,
                              .store = begins(executor, run)});
}

/* The owner takes its part from all ranks of the shard group and sums it, with what earlier
 * micro-batches left; the first one of a step overwrites that. With replicas the sums of one
 * micro-batch go over these before they are added. */
static tsr_status issue_reduce(tsr_executor *executor, const tsr_plan_op *op)
{
    const tsr_executor_options *e = &executor->options;
    const tsr_plan_options *o = &executor->plan->options;
    tsr_stream *stream = stream_of(executor, op);
    const tsr_unit_part *unit = &o->units[op->unit].trainable;
    uint64_t piece = executor->part_at[op->unit] * (uint64_t)executor->plan->gradient_buffers +
                     (uint64_t)(op->buffer * unit->segment_count);
    const tsr_sum_run *run = executor->run + executor->run_at[op->unit];
    const tsr_sum_run *end = executor->run + executor->run_at[op->unit + 1];
    if (o->ranks > 1)
        TSR_TRY(tsr_comm_exchange(e->shard, stream, executor->piece + piece, unit->segment_count));
    for (const tsr_sum_run *r = run; r < end; r++)
        TSR_TRY(sum_run(executor, op, r));
    if (o->replicas == 1)
        return TSR_OK;
    TSR_TRY(
        tsr_comm_all_reduce(e->replica, stream, e->store->partial, unit->gradient_count, TSR_SUM));
    for (const tsr_sum_run *r = run; r < end; r++)
        TSR_TRY(add_run(executor, op, r));
    return TSR_OK;
}

/* The word begins with the host's flags. Their place is free again when the word is read. */
static tsr_status copy_flags(tsr_executor *executor, tsr_stream *stream)
{
    const tsr_host_flags *flags = &executor->flags;
    int64_t *from = executor->options.store->host_flags[executor->words_made % 2];
    uint64_t bytes = tsr_store_words(executor->options.store) * sizeof *from;
    memset(from, 0, bytes);
    from[TSR_WORD_STOP] = flags->stop;
    from[TSR_WORD_ERROR] = flags->error;
    from[TSR_WORD_TIME_LIMIT] = flags->time_limit;
    from[TSR_WORD_LABEL_TOKENS] = flags->label_tokens;
    from[TSR_WORD_INPUT_TOKENS] = flags->input_tokens;
    return tsr_stream_copy(stream, executor->options.store->word, from, bytes);
}

static tsr_status issue_fill_word(tsr_executor *executor, const tsr_plan_op *op)
{
    const tsr_executor_callbacks *callbacks = &executor->options.callbacks;
    int64_t *word = executor->options.store->word;
    tsr_stream *stream = stream_of(executor, op);
    TSR_TRY(copy_flags(executor, stream));
    if (op->kind == TSR_OP_TALLY)
        return callbacks->tally(callbacks->user, word);
    TSR_TRY(callbacks->grad_norm(callbacks->user, word));
    /* Replicas hold the same sums: one of them counts. */
    if (executor->plan->options.replicas > 1 && tsr_comm_rank(executor->options.replica) > 0)
        return tsr_stream_fill(stream, word + TSR_WORD_NORM, 0, sizeof(tsr_exact_sum));
    return TSR_OK;
}

static tsr_status issue_word(tsr_executor *executor, const tsr_plan_op *op)
{
    tsr_store *store = executor->options.store;
    uint64_t ring = executor->words_made++ % 2;
    executor->word_generation[ring] = tsr_event_recorded(executor->event[TSR_EVENT_WORDED]) + 1;
    executor->word_marks[ring] = executor->marks_waits;
    return tsr_stream_copy(stream_of(executor, op), store->host_word[ring], store->word,
                           tsr_store_words(store) * sizeof(int64_t));
}

static tsr_status issue_work(tsr_executor *executor, const tsr_plan_op *op)
{
    const tsr_executor_callbacks *callbacks = &executor->options.callbacks;
    tsr_store *store = executor->options.store;
    switch ((tsr_op_kind)op->kind) {
    case TSR_OP_H2D:
        return issue_h2d(executor, op);
    case TSR_OP_GATHER:
    case TSR_OP_GATHER_T:
        return issue_gather(executor, op);
    case TSR_OP_NORM:
    case TSR_OP_COMPUTE:
        return issue_compute(executor, op);
    case TSR_OP_REDUCE:
        return issue_reduce(executor, op);
    case TSR_OP_SAVE:
    case TSR_OP_LOAD:
        return issue_saved(executor, op);
    case TSR_OP_LOAD_STATE:
    case TSR_OP_SAVE_STATE:
        return issue_state(executor, op);
    case TSR_OP_GRAD_NORM:
    case TSR_OP_TALLY:
        return issue_fill_word(executor, op);
    case TSR_OP_CONTROL:
        return tsr_comm_all_reduce(executor->options.world, stream_of(executor, op), store->word,
                                   tsr_store_words(store), TSR_SUM);
    case TSR_OP_OPTIM:
        executor->updates += op->last;
        return callbacks->optim(callbacks->user, store->word, op->chunk);
    case TSR_OP_WORD:
        return issue_word(executor, op);
    default:
        return tsr_fail(TSR_EINTERNAL, "plan: operation of kind %d", op->kind);
    }
}

/* ---- slots, as of what was issued ---- */

/* A region holds what a layer has saved from its forward, or its LOAD, until its backward. */
static tsr_status note_region(tsr_executor *executor, const tsr_plan_op *op)
{
    if (op->region < 0)
        return TSR_OK;
    int *layer = &executor->issued_region[op->region];
    if (op->kind == TSR_OP_LOAD || (op->kind == TSR_OP_COMPUTE && op->phase == TSR_USE_FORWARD))
        *layer = op->layer;
    if (*layer == op->layer)
        return TSR_OK;
    return tsr_fail(TSR_EINTERNAL, "plan: %s of layer %d finds layer %d in region %d",
                    tsr_op_name((tsr_op_kind)op->kind), op->layer, *layer, op->region);
}

/* What is kept is of the last update. */
static tsr_status note_kept(tsr_executor *executor, const tsr_plan_op *op)
{
    const tsr_plan_options *o = &executor->plan->options;
    if (op->unit < 0 || !tsr_unit_trainable_kept(&o->units[op->unit], o->ranks))
        return TSR_OK;
    uint64_t *update = &executor->kept_update[op->unit];
    if (op->kind == TSR_OP_GATHER_T)
        *update = executor->updates + 1;
    if ((op->kind != TSR_OP_COMPUTE && op->kind != TSR_OP_NORM) || *update == executor->updates + 1)
        return TSR_OK;
    return tsr_fail(TSR_EINTERNAL,
                    "plan: what is kept of unit %d is used after update %llu, but was gathered "
                    "after %lld",
                    op->unit, (unsigned long long)executor->updates, (long long)*update - 1);
}

static tsr_status note_slot(tsr_executor *executor, const tsr_plan_op *op, tsr_op_call *call)
{
    if (op->slot < 0)
        return TSR_OK;
    tsr_slot_stamp *issued = executor->issued[op->slot];
    const tsr_unit *unit = &executor->plan->options.units[op->unit];
    int ranks = executor->plan->options.ranks;
    if (op->kind == TSR_OP_GATHER_T) {
        issued[TSR_PART_TRAINABLE] = (tsr_slot_stamp){op->unit, executor->serial};
        executor->issued_update[op->slot] = executor->updates;
        return TSR_OK;
    }
    if (op->kind == TSR_OP_GATHER || op->kind == TSR_OP_H2D) {
        issued[TSR_PART_FROZEN] = (tsr_slot_stamp){op->unit, executor->serial};
        return TSR_OK;
    }
    bool frozen = tsr_unit_frozen_gathered(unit, ranks);
    bool trainable = tsr_unit_trainable_gathered(unit, ranks);
    if ((frozen && issued[TSR_PART_FROZEN].unit != op->unit) ||
        (trainable && (issued[TSR_PART_TRAINABLE].unit != op->unit ||
                       executor->issued_update[op->slot] != executor->updates)))
        return tsr_fail(TSR_EINTERNAL,
                        "plan: unit %d is used in slot %d, which holds units %d and %d, update "
                        "%llu of %llu",
                        op->unit, op->slot, issued[TSR_PART_FROZEN].unit,
                        issued[TSR_PART_TRAINABLE].unit,
                        (unsigned long long)executor->issued_update[op->slot],
                        (unsigned long long)executor->updates);
    call->expected[TSR_PART_FROZEN] = frozen ? issued[TSR_PART_FROZEN].serial : 0;
    call->expected[TSR_PART_TRAINABLE] = trainable ? issued[TSR_PART_TRAINABLE].serial : 0;
    return TSR_OK;
}

static tsr_status issue(tsr_executor *executor, const tsr_plan_op *op)
{
    const tsr_executor_debug *debug = &executor->options.debug;
    tsr_stream *stream = stream_of(executor, op);
    bool traced = executor->trace_step >= 0;
    tsr_op_call call = {.executor = executor,
                        .op = *op,
                        .step = executor->named_step ? executor->named_step : executor->words_made,
                        .serial = ++executor->serial};
    if (debug->fault != TSR_FAULT_NONE && debug->kind == op->kind &&
        debug->index == executor->of_kind[op->kind])
        call.fault = debug->fault;
    executor->of_kind[op->kind]++;
    TSR_TRY(note_slot(executor, op, &call));
    TSR_TRY(note_kept(executor, op));
    TSR_TRY(note_region(executor, op));
    TSR_TRY(wait_all(executor, op));
    if (traced)
        TSR_TRY(place(executor, op, TSR_MARK_BEGIN, TSR_CAUSE_OTHER));
    if (executor->watched)
        TSR_TRY(tsr_stream_call(stream, tsr_op_call_begin, &call, sizeof call));
    else if (op->stream == TSR_STREAM_COMM)
        tsr_comm_publish(executor->options.world, call.step, tsr_op_name((tsr_op_kind)op->kind),
                         op->unit);
    TSR_TRY(issue_work(executor, op));
    if (executor->watched)
        TSR_TRY(tsr_stream_call(stream, tsr_op_call_end, &call, sizeof call));
    if (traced)
        TSR_TRY(place(executor, op, TSR_MARK_END, TSR_CAUSE_OTHER));
    for (int i = 0; i < op->record_count; i++)
        TSR_TRY(tsr_event_record(executor->event[op->record[i]], stream));
    return TSR_OK;
}

tsr_status tsr_op_issue(tsr_executor *executor, const tsr_plan_op *op)
{
    if (executor->ranges) {
        char label[TSR_OP_LABEL_BYTES];
        tsr_op_label(label, executor->plan, op);
        tsr_range_begin(label);
    }
    tsr_plan_op now = *op;
    if (op->kind == TSR_OP_SAVE || op->kind == TSR_OP_LOAD) /* what this micro-batch has of it */
        now.bytes =
            executor->options.callbacks.saved(executor->options.callbacks.user, op->layer).bytes;
    executor->op = op;
    tsr_kernels_watch(executor->trace_step >= 0 ? &executor->watcher : NULL);
    tsr_status status = issue(executor, &now);
    tsr_kernels_watch(NULL);
    if (executor->ranges)
        tsr_range_end();
    return status;
}
