#include "shard/plan.h"

#include "shard/plan_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- names ---- */

const char *tsr_op_name(tsr_op_kind kind)
{
    static const char *const name[TSR_OP_COUNT] = {
        [TSR_OP_H2D] = "H2D",
        [TSR_OP_GATHER] = "GATHER",
        [TSR_OP_GATHER_T] = "GATHER_T",
        [TSR_OP_NORM] = "NORM",
        [TSR_OP_COMPUTE] = "COMPUTE",
        [TSR_OP_REDUCE] = "REDUCE",
        [TSR_OP_SAVE] = "SAVE",
        [TSR_OP_LOAD] = "LOAD",
        [TSR_OP_GRAD_NORM] = "GRAD_NORM",
        [TSR_OP_TALLY] = "TALLY",
        [TSR_OP_CONTROL] = "CONTROL",
        [TSR_OP_OPTIM] = "OPTIM",
        [TSR_OP_LOAD_STATE] = "LOAD_STATE",
        [TSR_OP_SAVE_STATE] = "SAVE_STATE",
        [TSR_OP_WORD] = "WORD",
    };
    return (unsigned)kind < TSR_OP_COUNT ? name[kind] : "?";
}

const char *tsr_program_name(tsr_program_kind kind)
{
    static const char *const name[TSR_PROGRAM_COUNT] = {
        [TSR_PROGRAM_PROLOGUE] = "PROLOGUE",     [TSR_PROGRAM_TRAIN_FIRST] = "TRAIN_FIRST",
        [TSR_PROGRAM_TRAIN_NEXT] = "TRAIN_NEXT", [TSR_PROGRAM_EVAL_FIRST] = "EVAL_FIRST",
        [TSR_PROGRAM_EVAL_NEXT] = "EVAL_NEXT",   [TSR_PROGRAM_STEP_END] = "STEP_END",
        [TSR_PROGRAM_EVAL_END] = "EVAL_END",
    };
    return (unsigned)kind < TSR_PROGRAM_COUNT ? name[kind] : "?";
}

void tsr_event_name(char out[16], int event)
{
    static const struct {
        int first;
        const char *name;
        bool indexed;
    } group[] = {
        {TSR_EVENT_STORED, "stored", true},       {TSR_EVENT_UPDATED, "updated", true},
        {TSR_EVENT_FETCHED, "fetched", true},     {TSR_EVENT_RESTORED, "restored", true},
        {TSR_EVENT_SAVED, "saved", true},         {TSR_EVENT_USED, "used", true},
        {TSR_EVENT_WORDED, "worded", false},      {TSR_EVENT_OPTIMIZED, "optimized", true},
        {TSR_EVENT_REFRESHED, "refreshed", true}, {TSR_EVENT_CONTROLLED, "controlled", false},
        {TSR_EVENT_TALLIED, "tallied", false},    {TSR_EVENT_COMPUTED, "computed", false},
        {TSR_EVENT_REDUCED, "reduced", true},     {TSR_EVENT_WRITTEN, "written", true},
        {TSR_EVENT_DRAINED, "drained", true},     {TSR_EVENT_FILLED, "filled", true},
        {TSR_EVENT_LOADED, "loaded", true},       {TSR_EVENT_READY, "ready", true},
        {TSR_EVENT_FREED, "freed", true},
    };
    size_t g = 0;
    while (event < group[g].first)
        g++;
    if (group[g].indexed)
        snprintf(out, 16, "%s[%u]", group[g].name, (unsigned)(event - group[g].first) & 0xffu);
    else
        snprintf(out, 16, "%s", group[g].name);
}

tsr_wait_cause tsr_event_cause(int event)
{
    if ((event >= TSR_EVENT_READY && event < TSR_EVENT_LOADED) ||
        (event >= TSR_EVENT_REFRESHED && event < TSR_EVENT_OPTIMIZED))
        return TSR_CAUSE_GATHER;
    if (event >= TSR_EVENT_LOADED && event < TSR_EVENT_FILLED)
        return TSR_CAUSE_H2D;
    if (event >= TSR_EVENT_REDUCED && event < TSR_EVENT_COMPUTED)
        return TSR_CAUSE_REDUCE;
    if (event >= TSR_EVENT_SAVED && event < TSR_EVENT_RESTORED)
        return TSR_CAUSE_SAVE;
    if (event >= TSR_EVENT_RESTORED && event < TSR_EVENT_FETCHED)
        return TSR_CAUSE_LOAD;
    return TSR_CAUSE_OTHER;
}

const char *tsr_cause_name(tsr_wait_cause cause)
{
    static const char *const name[TSR_CAUSE_COUNT] = {
        [TSR_CAUSE_H2D] = "h2d",       [TSR_CAUSE_GATHER] = "gather",
        [TSR_CAUSE_REDUCE] = "reduce", [TSR_CAUSE_LOAD] = "load",
        [TSR_CAUSE_SAVE] = "save",     [TSR_CAUSE_EXCHANGE] = "exchange",
        [TSR_CAUSE_OTHER] = "other"};
    return name[cause];
}

static const char phase_letter[] = {
    [TSR_USE_FORWARD] = 'F', [TSR_USE_HEAD] = 'H', [TSR_USE_AGAIN] = 'A', [TSR_USE_BACKWARD] = 'B'};

void tsr_op_label(char out[TSR_OP_LABEL_BYTES], const tsr_plan *plan, const tsr_plan_op *op)
{
    char use[] = {' ', phase_letter[op->phase], 0}, layer[24] = "", unit[24] = "";
    int head = plan->options.head_unit;
    bool same = !plan->options.layers;
    if (op->kind != TSR_OP_COMPUTE)
        *use = 0;
    if (op->unit >= head)
        snprintf(unit, sizeof unit, " head %d", op->unit - head);
    else if (op->layer >= 0 || (same && op->unit >= 0))
        snprintf(layer, sizeof layer, " layer %d", op->layer >= 0 ? op->layer : op->unit);
    bool moves = op->kind == TSR_OP_SAVE || op->kind == TSR_OP_LOAD; /* all of a layer's */
    if (op->unit >= 0 && op->unit < head && !same && !moves)
        snprintf(unit, sizeof unit, " unit %d", op->unit);
    snprintf(out, TSR_OP_LABEL_BYTES, "%s%s%s%s", tsr_op_name((tsr_op_kind)op->kind), use, layer,
             unit);
}

void tsr_plan_op_print(tsr_text *out, const tsr_plan_op *op)
{
    static const char *const comm[] = {[TSR_COMM_NONE] = "",
                                       [TSR_COMM_SHARD] = " over shards",
                                       [TSR_COMM_REPLICA] = " over replicas",
                                       [TSR_COMM_WORLD] = " over world"};
    tsr_text_printf(out, "%-7s %s", tsr_stream_id_name((tsr_stream_id)op->stream),
                    tsr_op_name((tsr_op_kind)op->kind));
    if (op->kind == TSR_OP_COMPUTE)
        tsr_text_printf(out, " %c", phase_letter[op->phase]);
    if (op->unit >= 0)
        tsr_text_printf(out, " unit %d", op->unit);
    if (op->use > 0)
        tsr_text_printf(out, " use %d", op->use);
    if (op->slot >= 0)
        tsr_text_printf(out, " slot %d", op->slot);
    if (op->stage >= 0)
        tsr_text_printf(out, " stage %d", op->stage);
    if (op->buffer >= 0)
        tsr_text_printf(out, " gradient %d", op->buffer);
    if (op->region >= 0)
        tsr_text_printf(out, " region %d", op->region);
    if (op->chunk >= 0)
        tsr_text_printf(out, " chunk %d", op->chunk);
    if (op->bytes > 0)
        tsr_text_printf(out, " %llu bytes", (unsigned long long)op->bytes);
    tsr_text_puts(out, comm[op->comm]);
    char name[16];
    for (int i = 0; i < op->wait_count; i++) {
        tsr_event_name(name, op->wait[i].event);
        tsr_text_printf(out, "%s%s +%u", i ? ", " : "; waits ", name, op->wait[i].count);
    }
    for (int i = 0; i < op->record_count; i++) {
        tsr_event_name(name, op->record[i]);
        tsr_text_printf(out, "%s%s", i ? ", " : "; records ", name);
    }
}

void tsr_plan_print(tsr_text *out, const tsr_plan *plan)
{
    const tsr_plan_options *o = &plan->options;
    tsr_text_printf(out,
                    "plan %016llx: %d units (%d layers), %d ranks x %d replicas, %d slots of "
                    "%llu bytes, %d stages of %llu bytes\n",
                    (unsigned long long)plan->hash, o->unit_count, o->layer_count, o->ranks,
                    o->replicas, o->slots, (unsigned long long)plan->slot_bytes, o->stages,
                    (unsigned long long)plan->stage_bytes);
    for (int i = 0; i < plan->program_count; i++) {
        const tsr_program *program = &plan->program[i];
        tsr_text_printf(out, "%s, state %d to %d\n", tsr_program_name(program->kind),
                        program->entry, program->exit);
        for (int k = 0; k < program->op_count; k++) {
            tsr_text_puts(out, "  ");
            tsr_plan_op_print(out, &program->op[k]);
            tsr_text_puts(out, "\n");
        }
    }
}

/* ---- compilation ---- */

static bool state_equal(const tsr_plan_state *a, const tsr_plan_state *b)
{
    return a->after == b->after && a->stage == b->stage && a->fetched == b->fetched &&
           a->comm_behind == b->comm_behind && a->compute_behind == b->compute_behind &&
           memcmp(a->unit, b->unit, sizeof a->unit) == 0 &&
           memcmp(a->ready_awaited, b->ready_awaited, sizeof a->ready_awaited) == 0 &&
           memcmp(a->loaded_awaited, b->loaded_awaited, sizeof a->loaded_awaited) == 0;
}

/* The index of *state, added if it is new. */
static tsr_status state_index(int *out, tsr_plan *plan, const tsr_plan_state *state)
{
    for (int i = 0; i < plan->state_count; i++)
        if (state_equal(&plan->state[i], state)) {
            *out = i;
            return TSR_OK;
        }
    int count = plan->state_count + 1;
    tsr_plan_state *grown = realloc(plan->state, (size_t)count * sizeof *grown);
    if (grown)
        plan->state = grown;
    int *at = realloc(plan->program_at, (size_t)count * TSR_PROGRAM_COUNT * sizeof *at);
    if (at)
        plan->program_at = at;
    if (!grown || !at)
        return tsr_fail(TSR_ENOMEM, "no memory for %d states of the plan", count);
    plan->state[count - 1] = *state;
    for (int k = 0; k < TSR_PROGRAM_COUNT; k++)
        plan->program_at[(count - 1) * TSR_PROGRAM_COUNT + k] = -1;
    *out = plan->state_count;
    plan->state_count = count;
    return TSR_OK;
}

static bool may_follow(const tsr_plan *plan, tsr_after after, tsr_program_kind kind)
{
    bool train = plan->options.train;
    switch (kind) {
    case TSR_PROGRAM_PROLOGUE:
        return after == TSR_AFTER_NOTHING;
    case TSR_PROGRAM_TRAIN_FIRST:
        return train && after == TSR_AFTER_UPDATE;
    case TSR_PROGRAM_EVAL_FIRST:
        return after == TSR_AFTER_UPDATE;
    case TSR_PROGRAM_TRAIN_NEXT:
        return train && (after == TSR_AFTER_TRAIN || after == TSR_AFTER_TALLY);
    case TSR_PROGRAM_EVAL_NEXT:
        return after == TSR_AFTER_EVAL || after == TSR_AFTER_TALLY;
    case TSR_PROGRAM_STEP_END:
        return after == TSR_AFTER_TRAIN ||
               (plan->options.ends_alone &&
                (after == TSR_AFTER_UPDATE || after == TSR_AFTER_TALLY));
    case TSR_PROGRAM_EVAL_END:
        return after == TSR_AFTER_EVAL;
    default:
        return false;
    }
}

static tsr_status add_program(tsr_plan *plan, int entry, tsr_program_kind kind)
{
    tsr_plan_state state = plan->state[entry];
    tsr_program program;
    TSR_TRY(tsr_program_compile(&program, plan, kind, &state));
    program.entry = entry;
    tsr_program *grown = realloc(plan->program, ((size_t)plan->program_count + 1) * sizeof *grown);
    if (!grown) {
        free(program.op);
        return tsr_fail(TSR_ENOMEM, "no memory for %d programs", plan->program_count + 1);
    }
    plan->program = grown;
    int index = plan->program_count++;
    plan->program[index] = program;
    TSR_TRY(state_index(&plan->program[index].exit, plan, &state));
    plan->program_at[entry * TSR_PROGRAM_COUNT + (int)kind] = index;
    return TSR_OK;
}

tsr_status tsr_plan_close(tsr_plan *plan)
{
    tsr_plan_state empty = {.after = TSR_AFTER_NOTHING};
    for (int s = 0; s < TSR_SLOTS_MAX; s++) {
        empty.unit[s] = -1;
        empty.ready_awaited[s] = empty.loaded_awaited[s] = true;
    }
    int index;
    TSR_TRY(state_index(&index, plan, &empty));
    for (int entry = 0; entry < plan->state_count; entry++)
        for (int kind = 0; kind < TSR_PROGRAM_COUNT; kind++)
            if (may_follow(plan, (tsr_after)plan->state[entry].after, (tsr_program_kind)kind))
                TSR_TRY(add_program(plan, entry, (tsr_program_kind)kind));
    return TSR_OK;
}

static tsr_status check_options(const tsr_plan_options *o)
{
    if (!o->units || o->unit_count < 1 || o->unit_count > INT16_MAX || o->layer_count < 1 ||
        o->head_unit < 1 || o->head_unit >= o->unit_count)
        return tsr_fail(TSR_EINVAL, "a plan of %d units, %d of them of %d layers", o->unit_count,
                        o->head_unit, o->layer_count);
    if (o->slots < 2 || o->slots > TSR_SLOTS_MAX)
        return tsr_fail(TSR_EINVAL, "%d slots: 2 to %d are possible", o->slots, TSR_SLOTS_MAX);
    if (o->stages < 1 || o->stages > TSR_STAGES_MAX)
        return tsr_fail(TSR_EINVAL, "%d stages: 1 to %d are possible", o->stages, TSR_STAGES_MAX);
    if (o->stride < 0 || o->stride > o->layer_count)
        return tsr_fail(TSR_EINVAL, "a stride of %d among %d layers", o->stride, o->layer_count);
    if (o->state_buffers < 1 || o->state_buffers > TSR_STATE_BUFFERS)
        return tsr_fail(TSR_EINVAL, "%d buffers of optimizer state: 1 to %d are possible",
                        o->state_buffers, TSR_STATE_BUFFERS);
    if (o->ranks < 1 || o->replicas < 1)
        return tsr_fail(TSR_EINVAL, "%d ranks x %d replicas", o->ranks, o->replicas);
    for (int u = 0; u < o->unit_count; u++) {
        if (o->units[u].id != u)
            return tsr_fail(TSR_EINVAL, "unit %d has the id %d", u, o->units[u].id);
        if (u >= o->head_unit && o->units[u].trainable.segment_count > 0 && !o->layers)
            return tsr_fail(TSR_EINVAL,
                            "unit %d is a chunk of the head, and no layer's backward trains it", u);
        if (o->units[u].wide && o->mixed)
            return tsr_fail(TSR_EINTERNAL, "unit %d is wide, in a plan of several adapters", u);
    }
    if (o->chunk_elements % TSR_GRANULE_ELEMENTS)
        return tsr_fail(TSR_EINVAL,
                        "chunks of %llu elements of the optimizer's state: a multiple of %d is "
                        "needed",
                        (unsigned long long)o->chunk_elements, TSR_GRANULE_ELEMENTS);
    return TSR_OK;
}

/* The largest of each buffer over all units. */
static void measure(tsr_plan *plan)
{
    const tsr_plan_options *o = &plan->options;
    uint64_t part = 0, bytes = 0; /* of one rank, at most: elements, and of a gradient bytes */
    for (int u = 0; u < o->unit_count; u++) {
        const tsr_unit *unit = &o->units[u];
        uint64_t slot = tsr_unit_slot_bytes(unit, o->ranks);
        uint64_t stage = unit->home == TSR_HOME_HOST_SHARDED ? unit->frozen.shard_bytes : 0;
        plan->slot_bytes = slot > plan->slot_bytes ? slot : plan->slot_bytes;
        plan->stage_bytes = stage > plan->stage_bytes ? stage : plan->stage_bytes;
        uint64_t gradient = o->train ? tsr_unit_gradient_bytes(unit, 1) : 0;
        bytes = gradient > bytes ? gradient : bytes;
        if (gradient > 0 && unit->trainable.gradient_count > part)
            part = unit->trainable.gradient_count;
        plan->wide |= gradient > 0 && unit->wide;
        plan->owned += unit->trainable.gradient_count;
    }
    for (int l = 0; o->saved_bytes && l < o->layer_count; l++)
        if (o->saved_bytes[l] > plan->saved_bytes)
            plan->saved_bytes = o->saved_bytes[l];
    if (o->train && o->chunk_elements > 0) {
        plan->chunk_count = (int)((plan->owned + o->chunk_elements - 1) / o->chunk_elements);
        for (int i = 0; i < plan->chunk_count; i++) {
            uint64_t state = tsr_plan_state_bytes(plan, i);
            plan->state_bytes = state > plan->state_bytes ? state : plan->state_bytes;
        }
    }
    plan->state_buffers =
        plan->chunk_count < o->state_buffers ? plan->chunk_count : o->state_buffers;
    plan->optim_parts = plan->chunk_count < TSR_OPTIM_PARTS ? plan->chunk_count : TSR_OPTIM_PARTS;
    if (plan->optim_parts == 0)
        plan->optim_parts = 1;
    plan->gradient_bytes = bytes * (uint64_t)o->ranks;
    plan->receive_bytes = bytes * (uint64_t)(o->ranks - 1);
    plan->partial_bytes = o->replicas > 1 ? part * sizeof(int64_t) : 0;
}

/* The lowest layer with a backward. */
static int lowest_layer(const tsr_plan_options *o, int lowest_unit)
{
    int layer = 0;
    if (!o->layers)
        return lowest_unit;
    while (layer < o->layer_count && o->layers[layer].backward_count == 0)
        layer++;
    return layer;
}

/* Every gradient has to be reduced, and the last one at the very end of a backward: what follows a
 * micro-batch waits for that alone. */
static tsr_status check_trained(const tsr_plan *plan)
{
    const tsr_plan_options *o = &plan->options;
    for (int u = 0; o->layers && o->train && u < o->unit_count; u++) {
        bool trains = o->units[u].trainable.gradient_count == 0;
        for (int l = 0; l < o->layer_count; l++)
            for (int i = 0; i < o->layers[l].backward_count; i++)
                trains |= o->layers[l].backward[i].trains && o->layers[l].backward[i].unit == u;
        if (!trains)
            return tsr_fail(TSR_EINVAL, "unit %d has a trainable part, but no use trains it", u);
    }
    if (!o->layers || !o->train)
        return TSR_OK;
    const tsr_layer_uses *lowest = &o->layers[plan->lowest_backward];
    if (lowest->backward[lowest->backward_count - 1].trains)
        return TSR_OK;
    return tsr_fail(TSR_EINVAL, "the last use of a backward, in layer %d, trains nothing",
                    plan->lowest_backward);
}

/* Where a backward ends, and which gradient buffers it uses. */
static tsr_status find_backward(tsr_plan *plan)
{
    const tsr_plan_options *o = &plan->options;
    plan->lowest_backward = o->layer_count;
    int reduces = 0, kept = 0, lowest = o->head_unit;
    for (int u = o->unit_count - 1; o->train && u >= 0; u--)
        if (o->units[u].trainable.gradient_count > 0) {
            lowest = u;
            reduces++;
            kept += tsr_unit_trainable_kept(&o->units[u], o->ranks);
        }
    if (o->train && reduces == 0)
        return tsr_fail(TSR_EINVAL, "a plan for training, but no unit has a trainable part");
    if (o->train)
        plan->lowest_backward = lowest_layer(o, lowest);
    if (o->train && plan->lowest_backward == o->layer_count)
        return tsr_fail(TSR_EINVAL, "a plan for training, but no layer has a backward");
    plan->reduces_late = reduces > 0 && kept == reduces;
    plan->gradient_buffers = plan->reduces_late ? reduces : TSR_GRADIENT_BUFFERS;
    plan->last_buffer = reduces ? (reduces - 1) % plan->gradient_buffers : 0;
    plan->stride = (tsr_stride){plan->lowest_backward, o->layer_count, o->train ? o->stride : 0};
    for (int l = 0; o->saved_bytes && l < o->layer_count; l++)
        if (o->saved_bytes[l] > 0 && l < plan->lowest_backward)
            return tsr_fail(TSR_EINVAL, "layer %d saves activations, but has no backward", l);
        else if (o->saved_bytes[l] > 0 && plan->stride.stride > 1)
            return tsr_fail(TSR_EINVAL, "layer %d saves activations, but has them made again", l);
    return check_trained(plan);
}

tsr_status tsr_plan_outline(tsr_plan **out, const tsr_plan_options *options)
{
    tsr_plan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return tsr_fail(TSR_ENOMEM, "no memory for a plan");
    plan->options = *options;
    tsr_plan_options *o = &plan->options;
    o->ranks = o->ranks ? o->ranks : 1;
    o->replicas = o->replicas ? o->replicas : 1;
    o->slots = o->slots ? o->slots : 2;
    o->stages = o->stages ? o->stages : 2;
    o->state_buffers = o->state_buffers ? o->state_buffers : TSR_STATE_BUFFERS;
    o->head_unit = o->head_unit ? o->head_unit : o->layer_count;
    tsr_status status = check_options(o);
    if (status == TSR_OK)
        status = find_backward(plan);
    if (status < 0) {
        tsr_plan_destroy(plan);
        return status;
    }
    measure(plan);
    *out = plan;
    return TSR_OK;
}

tsr_status tsr_plan_complete(tsr_plan *plan)
{
    if (plan->program_count)
        return TSR_OK;
    TSR_TRY(tsr_plan_close(plan));
    plan->hash = tsr_plan_hash(plan);
    return TSR_OK;
}

tsr_status tsr_plan_compile(tsr_plan **out, const tsr_plan_options *options)
{
    tsr_plan *plan;
    TSR_TRY(tsr_plan_outline(&plan, options));
    tsr_status status = tsr_plan_complete(plan);
    if (status < 0)
        tsr_plan_destroy(plan);
    else
        *out = plan;
    return status;
}

void tsr_plan_destroy(tsr_plan *plan)
{
    if (!plan)
        return;
    for (int i = 0; i < plan->program_count; i++)
        free(plan->program[i].op);
    free(plan->program);
    free(plan->state);
    free(plan->program_at);
    free(plan);
}

const tsr_program *tsr_plan_program(const tsr_plan *plan, int state, tsr_program_kind kind)
{
    int index = plan->program_at[state * TSR_PROGRAM_COUNT + (int)kind];
    return index < 0 ? NULL : &plan->program[index];
}

tsr_plan_range tsr_plan_chunk(const tsr_plan *plan, int chunk)
{
    uint64_t size = chunk < 0 ? plan->owned : plan->options.chunk_elements;
    uint64_t begin = chunk < 0 ? 0 : (uint64_t)chunk * size;
    uint64_t left = plan->owned - begin;
    return (tsr_plan_range){begin, left < size ? left : size};
}

int tsr_plan_last_chunk(const tsr_plan *plan, int buffer)
{
    return plan->chunk_count - 1 - (plan->chunk_count - 1 - buffer) % plan->state_buffers;
}

int tsr_plan_chunk_part(const tsr_plan *plan, int chunk)
{
    return chunk < 0 ? 0 : (int)((int64_t)chunk * plan->optim_parts / plan->chunk_count);
}

int tsr_plan_unit_part(const tsr_plan *plan, int unit)
{
    uint64_t end = 0;
    for (int u = 0; u <= unit; u++)
        end += plan->options.units[u].trainable.gradient_count;
    bool whole = plan->chunk_count == 0 || end == 0;
    return whole ? 0 : tsr_plan_chunk_part(plan, (int)((end - 1) / plan->options.chunk_elements));
}

uint64_t tsr_plan_state_bytes(const tsr_plan *plan, int chunk)
{
    const tsr_plan_options *o = &plan->options;
    tsr_plan_range range = tsr_plan_chunk(plan, chunk);
    uint64_t before = tsr_unit_moment_bytes(o->units, o->unit_count, range.begin);
    uint64_t end = tsr_unit_moment_bytes(o->units, o->unit_count, range.begin + range.count);
    return range.count * sizeof(float) + 2 * (end - before);
}
