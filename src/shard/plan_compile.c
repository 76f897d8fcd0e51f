/*
 * plan_compile.c: one program. The order of use is a list; at each use the units to come are
 * prefetched into slots that are wanted later than they are, and every op gets the waits that order
 * its conflicts.
 */
#include "shard/plan_builder.h"

#include <stdlib.h>

#define LATE 8 /* the last of so many parts of a backward */

static void add_events_of(tsr_plan_events *set, tsr_stream_id stream)
{
    for (int e = 0; e < TSR_EVENT_COUNT; e++)
        if (tsr_event_stream(e) == stream)
            tsr_events_add(set, e);
}

/* ---- slots ---- */

static bool needs_slot(const tsr_builder *b, int unit)
{
    return tsr_unit_slot_bytes(&b->unit[unit], b->ranks) > 0;
}

static int slot_of(const tsr_builder *b, int unit)
{
    for (int s = 0; s < b->slots; s++)
        if (b->state->unit[s] == unit)
            return s;
    return -1;
}

/* The first use of `unit` after use `p`; the horizon if there is none. */
static int next_use(const tsr_builder *b, int unit, int p)
{
    int q = b->part[unit].first_use;
    while (q <= p)
        q = b->use[q].again;
    return q;
}

/* An op that fills `slot`: its readers must be done. What was put there was read, too: see gather.
 */
static void wants_slot(tsr_plan_op *op, int slot)
{
    op->slot = (int8_t)slot;
    tsr_op_wants(op, TSR_EVENT_FREED + slot);
}

static void gather_frozen(tsr_builder *b, const tsr_unit *u, int slot, bool trainable_follows)
{
    if (u->home == TSR_HOME_HOST_FULL) {
        tsr_plan_op *op = tsr_op_begin(b, TSR_OP_H2D, TSR_STREAM_H2D, u->id);
        wants_slot(op, slot);
        op->bytes = u->frozen.gathered_bytes;
        tsr_op_records(op, TSR_EVENT_LOADED + slot);
        tsr_op_end(b, op);
        return;
    }
    int stage = -1;
    if (u->home == TSR_HOME_HOST_SHARDED) {
        stage = b->state->stage;
        b->state->stage = (uint8_t)((stage + 1) % b->plan->options.stages);
        tsr_plan_op *copy = tsr_op_begin(b, TSR_OP_H2D, TSR_STREAM_H2D, u->id);
        copy->stage = (int8_t)stage;
        copy->bytes = u->frozen.shard_bytes;
        tsr_op_wants(copy, TSR_EVENT_DRAINED + stage);
        tsr_op_records(copy, TSR_EVENT_FILLED + stage);
        tsr_op_end(b, copy);
    }
    tsr_plan_op *op = tsr_op_begin(b, TSR_OP_GATHER, TSR_STREAM_COMM, u->id);
    op->comm = TSR_COMM_SHARD;
    op->bytes = u->frozen.gathered_bytes;
    wants_slot(op, slot);
    if (stage >= 0) {
        op->stage = (int8_t)stage;
        tsr_op_wants(op, TSR_EVENT_FILLED + stage);
        tsr_op_records(op, TSR_EVENT_DRAINED + stage);
    }
    if (!trainable_follows)
        tsr_op_records(op, TSR_EVENT_READY + slot);
    tsr_op_end(b, op);
}

/* The unit as of the last update. `behind`: of the op's stream. */
static void wants_updated(const tsr_builder *b, tsr_plan_op *op, const tsr_unit *u, uint8_t *behind)
{
    int parts = b->plan->optim_parts, part = tsr_plan_unit_part(b->plan, u->id);
    if (part < parts - *behind)
        return;
    tsr_op_wants(op, TSR_EVENT_OPTIMIZED + part);
    *behind = (uint8_t)(parts - 1 - part);
}

/* Into a slot; -1: into its own place. */
static void gather_trainable(tsr_builder *b, const tsr_unit *u, int slot)
{
    tsr_plan_op *op = tsr_op_begin(b, TSR_OP_GATHER_T, TSR_STREAM_COMM, u->id);
    op->comm = TSR_COMM_SHARD;
    op->bytes = u->trainable.gathered_bytes;
    if (slot >= 0)
        wants_slot(op, slot);
    wants_updated(b, op, u, &b->state->comm_behind);
    tsr_op_records(op, slot >= 0 ? TSR_EVENT_READY + slot
                                 : TSR_EVENT_REFRESHED + b->part[u->id].kept_turn);
    tsr_op_end(b, op);
    if (slot >= 0)
        b->state->ready_awaited[slot] = false;
}

static bool is_first(const tsr_builder *b)
{
    return b->kind == TSR_PROGRAM_TRAIN_FIRST || b->kind == TSR_PROGRAM_EVAL_FIRST;
}

/* In the first micro-batch after OPTIM: what is kept of the units up to `unit`, and of the next one. */
static tsr_status refresh_kept(tsr_builder *b, int unit)
{
    if (!is_first(b))
        return TSR_OK;
    int end = b->plan->options.head_unit;
    for (int u = b->kept + 1; b->kept <= unit; u++) {
        if (u >= end) { /* none is left */
            b->kept = end;
        } else if (tsr_unit_trainable_kept(&b->unit[u], b->ranks)) {
            TSR_TRY(tsr_op_reserve(b));
            gather_trainable(b, &b->unit[u], -1);
            b->kept = u;
        }
    }
    return TSR_OK;
}

/* What is gathered is always used before it leaves: a prefetch fetches the first unit that is
 * missing, and takes no slot that is wanted sooner. */
static tsr_status check_was_used(const tsr_builder *b, int slot)
{
    if (b->state->ready_awaited[slot] && b->state->loaded_awaited[slot])
        return TSR_OK;
    return tsr_fail(TSR_EINTERNAL, "plan: unit %d leaves slot %d before its use",
                    b->state->unit[slot], slot);
}

static tsr_status gather(tsr_builder *b, int unit, int slot)
{
    const tsr_unit *u = &b->unit[unit];
    tsr_plan_state *state = b->state;
    TSR_TRY(tsr_op_reserve(b));
    TSR_TRY(check_was_used(b, slot));
    if (b->last_user[slot] >= 0)
        b->op[b->last_user[slot]].releases = true;
    b->last_user[slot] = -1;
    bool frozen = tsr_unit_frozen_gathered(u, b->ranks);
    bool trainable = tsr_unit_trainable_gathered(u, b->ranks);
    if (frozen) {
        gather_frozen(b, u, slot, trainable);
        if (u->home == TSR_HOME_HOST_FULL)
            state->loaded_awaited[slot] = false;
        else
            state->ready_awaited[slot] = false;
    }
    if (trainable)
        gather_trainable(b, u, slot);
    state->unit[slot] = (int16_t)unit;
    return TSR_OK;
}

/* Fills slots for later uses, nearest first, as long as one is wanted later than what would come.
 */
static tsr_status prefetch(tsr_builder *b, int p)
{
    for (;;) {
        int q = b->use[p + 1].wanting;
        while (q < b->horizon && slot_of(b, b->use[q].unit) >= 0)
            q = b->use[q + 1].wanting;
        if (q == b->horizon)
            return TSR_OK;
        int victim = -1, farthest = q;
        for (int s = 0; s < b->slots; s++) {
            int occupant = b->state->unit[s];
            if (occupant == b->use[p].unit)
                continue;
            int next = occupant < 0 ? b->horizon + 1 : next_use(b, occupant, p);
            if (next > farthest) {
                farthest = next;
                victim = s;
            }
        }
        if (victim < 0)
            return TSR_OK;
        TSR_TRY(gather(b, b->use[q].unit, victim));
    }
}

/* ---- uses ---- */

static void wants_unit(tsr_builder *b, tsr_plan_op *op, const tsr_unit *u, int slot)
{
    op->slot = (int8_t)slot;
    if (slot >= 0 && !b->state->ready_awaited[slot])
        tsr_op_wants(op, TSR_EVENT_READY + slot);
    if (slot >= 0 && !b->state->loaded_awaited[slot])
        tsr_op_wants(op, TSR_EVENT_LOADED + slot);
    if (u->trainable.gathered_bytes > 0 && b->ranks == 1)
        wants_updated(b, op, u, &b->state->compute_behind);
    if (is_first(b) && op->phase == TSR_USE_FORWARD && tsr_unit_trainable_kept(u, b->ranks))
        tsr_op_wants(op, TSR_EVENT_REFRESHED + b->part[u->id].kept_turn);
}

static void mark_awaited(tsr_builder *b, int slot)
{
    if (slot >= 0)
        b->state->ready_awaited[slot] = b->state->loaded_awaited[slot] = true;
}

/* ---- gradients ---- */

/* Buffers that are reduced late share their events: whoever knows the last WRITTEN knows all of them. */
static int gradient_turn(const tsr_plan *plan, int buffer)
{
    return plan->reduces_late ? 0 : buffer;
}

static void writes_gradient(tsr_builder *b, tsr_plan_op *op)
{
    const tsr_plan *plan = b->plan;
    int buffer = b->written % plan->gradient_buffers, turn = gradient_turn(plan, buffer);
    op->buffer = (int16_t)buffer;
    if (!plan->reduces_late || b->written == 0)
        tsr_op_wants(op, TSR_EVENT_REDUCED + turn);
    tsr_op_records(op, TSR_EVENT_WRITTEN + turn);
}

static void reduce(tsr_builder *b, const tsr_unit *u, int buffer)
{
    int turn = gradient_turn(b->plan, buffer);
    tsr_plan_op *op = tsr_op_begin(b, TSR_OP_REDUCE, TSR_STREAM_COMM, u->id);
    op->comm = TSR_COMM_SHARD;
    op->buffer = (int16_t)buffer;
    op->bytes = tsr_unit_gradient_bytes(u, b->ranks);
    tsr_op_wants(op, TSR_EVENT_WRITTEN + turn);
    tsr_op_records(op, TSR_EVENT_REDUCED + turn);
    tsr_op_end(b, op);
}

/* After the backward of `unit`: what is to be reduced by now. Late is when so little of the backward is left
 * that its compute still hides most of it. */
static tsr_status reduce_written(tsr_builder *b, int unit)
{
    int count = b->plan->gradient_buffers, left = count - ++b->written;
    if (b->plan->reduces_late && left > (count + LATE - 1) / LATE)
        return TSR_OK;
    int u = unit;
    for (int waiting = b->written - b->reduced; waiting > 1; u++)
        waiting -= b->unit[u + 1].trainable.gradient_count > 0;
    for (; u >= unit; u--) {
        if (b->unit[u].trainable.gradient_count == 0)
            continue;
        TSR_TRY(tsr_op_reserve(b));
        reduce(b, &b->unit[u], b->reduced++ % count);
    }
    return TSR_OK;
}

/* ---- activations that go through the device ---- */

static bool saves(const tsr_builder *b, int layer)
{
    return b->saved && layer < b->plan->options.layer_count && b->saved[layer].region >= 0;
}

static bool travels(const tsr_builder *b, int layer)
{
    return saves(b, layer) && b->saved[layer].travels;
}

/* SAVE or LOAD. */
static tsr_plan_op *begin_saved(tsr_builder *b, tsr_op_kind kind, tsr_stream_id stream, int layer)
{
    const tsr_layer_uses *uses = b->plan->options.layers;
    tsr_plan_op *op = tsr_op_begin(b, kind, stream, uses ? uses[layer].forward[0].unit : layer);
    op->layer = layer;
    op->region = (int8_t)b->saved[layer].region;
    op->bytes = b->plan->options.saved_bytes[layer];
    return op;
}

static void save(tsr_builder *b, int layer)
{
    tsr_plan_op *op = begin_saved(b, TSR_OP_SAVE, TSR_STREAM_D2H, layer);
    int region = op->region;
    tsr_op_wants(op, TSR_EVENT_USED + region);
    tsr_op_records(op, TSR_EVENT_SAVED + region);
    tsr_op_end(b, op);
}

/* While layer `above` is in its backward, the next one below it that travels comes back, into the
 * region that the one before `above` has left. It stands behind the prefetch of frozen parts, whose
 * copies would else wait with it; and behind those of layers in between that save nothing, which are wanted
 * sooner (docs/scheduler.md, "Activations and optimizer state in host memory"). */
static void load_below(tsr_builder *b, int above)
{
    int below = above - 1;
    if (!saves(b, above))
        return;
    while (below >= 0 && !saves(b, below))
        below--;
    if (below < 0 || !travels(b, below))
        return;
    tsr_plan_op *op = begin_saved(b, TSR_OP_LOAD, TSR_STREAM_H2D, below);
    int region = op->region;
    tsr_op_wants(op, TSR_EVENT_USED + region);
    tsr_op_records(op, TSR_EVENT_RESTORED + region);
    tsr_op_end(b, op);
}

/* Every SAVE of a region is awaited by the next forward in it, and every LOAD by its backward: at
 * the end of a program compute knows them all, so that no wait goes beyond it. */
static void use_region(const tsr_builder *b, tsr_plan_op *op, bool backward)
{
    if (!saves(b, op->layer))
        return;
    op->region = (int8_t)b->saved[op->layer].region;
    if (!backward && b->recorder[TSR_EVENT_SAVED + op->region] >= 0)
        tsr_op_wants(op, TSR_EVENT_SAVED + op->region);
    if (backward && travels(b, op->layer))
        tsr_op_wants(op, TSR_EVENT_RESTORED + op->region);
    if (b->kind == TSR_PROGRAM_TRAIN_FIRST || b->kind == TSR_PROGRAM_TRAIN_NEXT)
        tsr_op_records(op, TSR_EVENT_USED + op->region);
}

/* Whether a later use of the micro-batch adds to the same gradient. */
static bool trains_again(const tsr_builder *b, int p)
{
    for (int q = b->use[p].again; q < b->use_count; q = b->use[q].again)
        if (b->use[q].trains)
            return true;
    return false;
}

static tsr_status compute(tsr_builder *b, int p)
{
    const tsr_plan_use *now = &b->use[p];
    const tsr_unit *u = &b->unit[now->unit];
    bool eval = b->kind == TSR_PROGRAM_EVAL_FIRST || b->kind == TSR_PROGRAM_EVAL_NEXT;
    bool backward = now->phase == TSR_USE_BACKWARD;
    int slot = slot_of(b, now->unit);
    TSR_TRY(tsr_op_reserve(b));
    if (slot < 0 && needs_slot(b, now->unit))
        return tsr_fail(TSR_EINTERNAL, "plan: unit %d is used but in no slot", now->unit);
    if (is_first(b) && now->phase == TSR_USE_FORWARD && u->has_norm) {
        tsr_plan_op *norm = tsr_op_begin(b, TSR_OP_NORM, TSR_STREAM_COMPUTE, now->unit);
        norm->layer = now->layer;
        norm->use = now->number;
        wants_unit(b, norm, u, slot);
        tsr_op_end(b, norm);
    }
    if (backward && now->number == 0)
        load_below(b, now->layer);
    tsr_plan_op *op = tsr_op_begin(b, TSR_OP_COMPUTE, TSR_STREAM_COMPUTE, now->unit);
    op->phase = now->phase;
    op->layer = now->layer;
    op->use = now->number;
    op->ends = now->ends;
    op->first = p == 0;
    op->last = p == b->use_count - 1;
    wants_unit(b, op, u, slot);
    /* TALLY takes the losses of an evaluation, which the head adds to. */
    if (now->phase == TSR_USE_HEAD && b->state->after == TSR_AFTER_TALLY)
        tsr_op_wants(op, TSR_EVENT_TALLIED);
    if (slot >= 0) {
        tsr_op_records(op, TSR_EVENT_FREED + slot);
        b->last_user[slot] = b->op_count;
    }
    use_region(b, op, backward);
    if (now->trains)
        writes_gradient(b, op);
    if (eval && op->last)
        tsr_op_records(op, TSR_EVENT_COMPUTED);
    tsr_op_end(b, op);
    mark_awaited(b, slot);
    if (now->phase == TSR_USE_FORWARD && now->ends && !eval && travels(b, now->layer))
        save(b, now->layer);
    return now->trains && !trains_again(b, p) ? reduce_written(b, now->unit) : TSR_OK;
}

/* ---- optimizer state that goes through the device ---- */

/* A chunk of the state into its buffer, which the chunk before it there must have left. */
static void load_state(tsr_builder *b, int chunk)
{
    int buffer = chunk % b->plan->state_buffers;
    tsr_plan_op *op = tsr_op_begin(b, TSR_OP_LOAD_STATE, TSR_STREAM_STATE_IN, -1);
    op->chunk = chunk;
    op->bytes = tsr_plan_state_bytes(b->plan, chunk);
    tsr_op_wants(op, TSR_EVENT_STORED + buffer);
    tsr_op_records(op, TSR_EVENT_FETCHED + buffer);
    tsr_op_end(b, op);
}

/* The first chunks of an update, as many as there are buffers: they need neither gradients nor the norm. */
static tsr_status fetch_state(tsr_builder *b)
{
    int count = b->plan->state_buffers;
    if (b->state->fetched || count == 0)
        return TSR_OK;
    b->state->fetched = true;
    TSR_TRY(tsr_op_reserve(b));
    for (int i = 0; i < count; i++) /* chunks are stored one after the other */
        for (int k = 0; k < count; k++)
            if (tsr_plan_last_chunk(b->plan, k) < tsr_plan_last_chunk(b->plan, i))
                tsr_events_add(&b->implied[TSR_EVENT_STORED + i], TSR_EVENT_STORED + k);
    for (int chunk = 0; chunk < count; chunk++)
        load_state(b, chunk);
    return TSR_OK;
}

/* The first backward after an update is when its buffers are empty and links are idle. */
static bool may_fetch(const tsr_builder *b, int p)
{
    return b->use[p].phase == TSR_USE_AGAIN || b->use[p].phase == TSR_USE_BACKWARD;
}

/* ---- a micro-batch ---- */

static tsr_status micro_batch(tsr_builder *b)
{
    for (int p = 0; p < b->use_count; p++) {
        if (may_fetch(b, p))
            TSR_TRY(fetch_state(b));
        if (b->use[p].phase == TSR_USE_FORWARD)
            TSR_TRY(refresh_kept(b, b->use[p].unit));
        TSR_TRY(prefetch(b, p));
        TSR_TRY(compute(b, p));
    }
    return TSR_OK;
}

/* ---- ends ---- */

static void optim(tsr_builder *b, int chunk, bool last)
{
    int part = tsr_plan_chunk_part(b->plan, chunk);
    tsr_plan_op *op = tsr_op_begin(b, TSR_OP_OPTIM, TSR_STREAM_OPTIM, -1);
    op->chunk = chunk;
    op->first = chunk <= 0;
    op->last = last;
    tsr_op_wants(op, TSR_EVENT_CONTROLLED);
    if (chunk >= 0) {
        tsr_op_wants(op, TSR_EVENT_FETCHED + chunk % b->plan->state_buffers);
        tsr_op_records(op, TSR_EVENT_UPDATED + chunk % b->plan->state_buffers);
    }
    if (last || tsr_plan_chunk_part(b->plan, chunk + 1) > part)
        tsr_op_records(op, TSR_EVENT_OPTIMIZED + part);
    tsr_op_end(b, op);
}

static void save_state(tsr_builder *b, int chunk)
{
    int buffer = chunk % b->plan->state_buffers;
    tsr_plan_op *op = tsr_op_begin(b, TSR_OP_SAVE_STATE, TSR_STREAM_STATE_OUT, -1);
    op->chunk = chunk;
    op->bytes = tsr_plan_state_bytes(b->plan, chunk);
    tsr_op_wants(op, TSR_EVENT_UPDATED + buffer);
    tsr_op_records(op, TSR_EVENT_STORED + buffer);
    tsr_op_end(b, op);
}

/* The update, which the control word of this program lets happen or not. */
static tsr_status update(tsr_builder *b)
{
    int count = b->plan->chunk_count, buffers = b->plan->state_buffers;
    if (count == 0)
        optim(b, -1, true);
    for (int chunk = 0; chunk < count; chunk++) {
        TSR_TRY(tsr_op_reserve(b));
        optim(b, chunk, chunk == count - 1);
        save_state(b, chunk);
        if (chunk + buffers < count)
            load_state(b, chunk + buffers);
    }
    b->state->fetched = false;
    return TSR_OK;
}

/* The control word's way: filled on optim, reduced on comm, copied to the host. */
static void control_word(tsr_builder *b, tsr_op_kind fill, int after)
{
    tsr_plan_op *op = tsr_op_begin(b, fill, TSR_STREAM_OPTIM, -1);
    tsr_op_wants(op, after);
    tsr_op_wants(op, TSR_EVENT_WORDED);
    tsr_op_records(op, TSR_EVENT_TALLIED);
    tsr_op_end(b, op);

    op = tsr_op_begin(b, TSR_OP_CONTROL, TSR_STREAM_COMM, -1);
    op->comm = TSR_COMM_WORLD;
    tsr_op_wants(op, TSR_EVENT_TALLIED);
    tsr_op_records(op, TSR_EVENT_CONTROLLED);
    tsr_op_end(b, op);

    op = tsr_op_begin(b, TSR_OP_WORD, TSR_STREAM_D2H, -1);
    tsr_op_wants(op, TSR_EVENT_CONTROLLED);
    tsr_op_records(op, TSR_EVENT_WORDED);
    tsr_op_end(b, op);
}

/* GATHER_T of the units in slots that the next micro-batch begins with, as far as none is missing.
 * Another one might have to leave before its use: it is given up. */
static tsr_status refresh_slots(tsr_builder *b)
{
    bool complete = true;
    for (int u = 0; u < b->plan->options.unit_count; u++) {
        int slot = slot_of(b, u);
        complete &= slot >= 0 || !needs_slot(b, u);
        if (slot < 0 || !tsr_unit_trainable_gathered(&b->unit[u], b->ranks))
            continue;
        if (complete) {
            gather_trainable(b, &b->unit[u], slot);
            continue;
        }
        TSR_TRY(check_was_used(b, slot));
        b->state->unit[slot] = -1;
    }
    return TSR_OK;
}

static tsr_status step_end(tsr_builder *b)
{
    TSR_TRY(tsr_op_reserve(b));
    /* A micro-batch ends with B and REDUCE of its last unit: whoever knows that REDUCE knows all of
     * compute and comm. */
    int last = TSR_EVENT_REDUCED + gradient_turn(b->plan, b->plan->last_buffer);
    add_events_of(&b->implied[last], TSR_STREAM_COMPUTE);
    add_events_of(&b->implied[last], TSR_STREAM_COMM);
    TSR_TRY(fetch_state(b)); /* where no backward has */
    control_word(b, TSR_OP_GRAD_NORM, last);
    TSR_TRY(update(b));
    bool gathered = false, direct = false;
    for (int u = 0; u < b->plan->options.unit_count; u++) {
        gathered |= b->unit[u].trainable.gathered_bytes > 0 && b->ranks > 1;
        direct |= b->unit[u].trainable.gathered_bytes > 0 && b->ranks == 1;
    }
    b->state->comm_behind = gathered ? (uint8_t)b->plan->optim_parts : 0;
    b->state->compute_behind = direct ? (uint8_t)b->plan->optim_parts : 0;
    TSR_TRY(refresh_slots(b));
    b->state->after = TSR_AFTER_UPDATE;
    return TSR_OK;
}

/* ---- programs ---- */

static void begin_clocks(tsr_builder *b)
{
    for (int s = 0; s < TSR_STREAM_COUNT; s++)
        for (int t = 0; t < TSR_STREAM_COUNT; t++)
            b->stream[s].op[t] = -1;
    for (int e = 0; e < TSR_EVENT_COUNT; e++)
        b->recorder[e] = -1;
    for (int s = 0; s < TSR_SLOTS_MAX; s++)
        b->last_user[s] = -1;
}

static tsr_status run_builder(tsr_builder *b)
{
    TSR_TRY(tsr_op_reserve(b));
    switch (b->kind) {
    case TSR_PROGRAM_PROLOGUE:
        b->state->after = TSR_AFTER_UPDATE;
        return needs_slot(b, 0) ? gather(b, 0, 0) : TSR_OK;
    case TSR_PROGRAM_STEP_END:
        return step_end(b);
    case TSR_PROGRAM_EVAL_END:
        control_word(b, TSR_OP_TALLY, TSR_EVENT_COMPUTED);
        b->state->after = TSR_AFTER_TALLY;
        return TSR_OK;
    default:
        TSR_TRY(tsr_builder_list_uses(b));
        TSR_TRY(micro_batch(b));
        bool train = b->kind == TSR_PROGRAM_TRAIN_FIRST || b->kind == TSR_PROGRAM_TRAIN_NEXT;
        b->state->after = train ? TSR_AFTER_TRAIN : TSR_AFTER_EVAL;
        return TSR_OK;
    }
}

tsr_status tsr_program_compile(tsr_program *out, const tsr_plan *plan, tsr_program_kind kind,
                               tsr_plan_state *state)
{
    tsr_builder b = {.plan = plan,
                     .unit = plan->options.units,
                     .ranks = plan->options.ranks,
                     .slots = plan->options.slots,
                     .kind = kind,
                     .state = state,
                     .kept = -1};
    begin_clocks(&b);
    tsr_status status = run_builder(&b);
    free(b.use);
    free(b.part);
    free(b.saved);
    free(b.clock);
    if (status < 0) {
        free(b.op);
        return status;
    }
    *out = (tsr_program){.kind = kind, .op = b.op, .op_count = b.op_count};
    return TSR_OK;
}
