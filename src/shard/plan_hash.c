/*
 * plan_hash.c: the plan and its layout as a list of hashes, one for each segment and each op, so
 * that ranks which disagree can say where.
 */
#include "base/auto.h"
#include "base/hash.h"
#include "shard/plan_parts.h"

#include <stdlib.h>
#include <string.h>

/* An item of the list: a segment of a unit, or an op of a program. */
typedef struct {
    const tsr_unit *unit;
    const tsr_segment *segment;
    bool trainable;
    const tsr_program *program;
    const tsr_plan_op *op;
} item;

static uint64_t hash_number(uint64_t hash, uint64_t number)
{
    return tsr_hash(hash, &number, sizeof number);
}

static uint64_t hash_segment(const item *i)
{
    const tsr_segment *s = i->segment;
    uint64_t number[] = {(uint64_t)i->unit->id,
                         (uint64_t)i->unit->home,
                         i->unit->has_norm,
                         i->unit->keeps_trainable,
                         i->unit->wide,
                         i->trainable,
                         s->param,
                         (uint64_t)s->dtype,
                         s->granule_bytes,
                         s->granule_count,
                         s->element_count,
                         s->gathered_offset,
                         s->gathered_bytes,
                         s->shard_offset,
                         s->gradient_offset,
                         s->coded};
    uint64_t hash = tsr_hash(TSR_HASH_START, number, sizeof number);
    return tsr_hash(hash, s->name, strlen(s->name));
}

static uint64_t hash_op(const item *i)
{
    const tsr_plan_op *op = i->op;
    uint64_t number[] = {(uint64_t)i->program->kind,
                         (uint64_t)i->program->entry,
                         (uint64_t)i->program->exit,
                         op->kind,
                         op->stream,
                         op->comm,
                         op->phase,
                         (uint64_t)op->slot,
                         (uint64_t)op->stage,
                         (uint64_t)op->buffer,
                         (uint64_t)op->region,
                         (uint64_t)op->unit,
                         (uint64_t)op->chunk,
                         op->bytes};
    uint64_t hash = tsr_hash(TSR_HASH_START, number, sizeof number);
    for (int w = 0; w < op->wait_count; w++)
        hash = hash_number(hash_number(hash, op->wait[w].event), op->wait[w].count);
    for (int r = 0; r < op->record_count; r++)
        hash = hash_number(hash, op->record[r] + 1000u);
    return hash;
}

static uint64_t hash_item(const item *i)
{
    return i->segment ? hash_segment(i) : hash_op(i);
}

/* Where the list has been read to. Zero-initialise. */
typedef struct {
    int part, index; /* the parts are the two of each unit, then the programs */
} cursor;

/* The next item; false past the end. */
static bool next_item(item *out, cursor *c, const tsr_plan *plan)
{
    int parts = 2 * plan->options.unit_count;
    for (; c->part < parts; c->part++, c->index = 0) {
        const tsr_unit *unit = &plan->options.units[c->part / 2];
        bool trainable = c->part % 2;
        const tsr_unit_part *part = trainable ? &unit->trainable : &unit->frozen;
        if (c->index == part->segment_count)
            continue;
        *out = (item){.unit = unit, .segment = &part->segment[c->index++], .trainable = trainable};
        return true;
    }
    for (; c->part - parts < plan->program_count; c->part++, c->index = 0) {
        const tsr_program *program = &plan->program[c->part - parts];
        if (c->index == program->op_count)
            continue;
        *out = (item){.program = program, .op = &program->op[c->index++]};
        return true;
    }
    return false;
}

static uint64_t item_count(const tsr_plan *plan)
{
    uint64_t count = 0;
    for (int u = 0; u < plan->options.unit_count; u++)
        count += (uint64_t)(plan->options.units[u].frozen.segment_count +
                            plan->options.units[u].trainable.segment_count);
    for (int p = 0; p < plan->program_count; p++)
        count += (uint64_t)plan->program[p].op_count;
    return count;
}

uint64_t tsr_plan_hash(const tsr_plan *plan)
{
    const tsr_plan_options *o = &plan->options;
    uint64_t number[] = {(uint64_t)o->unit_count,
                         (uint64_t)o->layer_count,
                         (uint64_t)o->ranks,
                         (uint64_t)o->replicas,
                         (uint64_t)o->slots,
                         (uint64_t)o->stages,
                         o->train,
                         o->chunk_elements,
                         plan->slot_bytes,
                         plan->stage_bytes,
                         plan->gradient_bytes,
                         (uint64_t)plan->gradient_buffers,
                         plan->receive_bytes,
                         plan->partial_bytes,
                         plan->saved_bytes};
    uint64_t hash = tsr_hash(TSR_HASH_START, number, sizeof number);
    item i;
    for (cursor c = {0}; next_item(&i, &c, plan);)
        hash = hash_number(hash, hash_item(&i));
    return hash;
}

/* min and max of each value over all ranks: data holds value, ~value pairs; one MIN reduction gives
 * min(value) and ~max(value). */
static tsr_status reduce_pairs(int64_t *data, uint64_t pairs, tsr_comm *world, tsr_stream *stream)
{
    TSR_TRY(tsr_comm_all_reduce(world, stream, data, 2 * pairs, TSR_MIN));
    return tsr_stream_synchronize(stream);
}

static bool pair_same(const int64_t *pair)
{
    return pair[0] == ~pair[1];
}

static void describe(tsr_text *out, const item *i)
{
    if (i->segment) {
        tsr_text_printf(
            out, "the plan's unit %d, %s tensor %s (%s, %llu granules of %llu bytes here)",
            i->unit->id, i->trainable ? "trainable" : "frozen", i->segment->name,
            tsr_dtype_name(i->segment->dtype), (unsigned long long)i->segment->granule_count,
            (unsigned long long)i->segment->granule_bytes);
        return;
    }
    tsr_text_printf(out,
                    "the plan's op %d of %s from state %d (here: ", (int)(i->op - i->program->op),
                    tsr_program_name(i->program->kind), i->program->entry);
    tsr_plan_op_print(out, i->op);
    tsr_text_puts(out, ")");
}

static const char advice[] = "give every rank the same model, configuration and memory";

static tsr_status name_difference(const tsr_plan *plan, int64_t *data, uint64_t common,
                                  tsr_comm *world, tsr_stream *stream)
{
    item i;
    cursor c = {0};
    for (uint64_t k = 0; k < common && next_item(&i, &c, plan); k++) {
        data[2 * k] = (int64_t)hash_item(&i);
        data[2 * k + 1] = ~data[2 * k];
    }
    if (common > 0)
        TSR_TRY(reduce_pairs(data, common, world, stream));
    uint64_t k = 0;
    while (k < common && pair_same(&data[2 * k]))
        k++;
    c = (cursor){0};
    for (uint64_t n = 0; n <= k && next_item(&i, &c, plan); n++)
        ;
    if (k == common)
        return tsr_comm_check_same(world, stream, plan->hash, "the plan", advice);
    tsr_auto_text text = {0};
    describe(&text, &i);
    return tsr_comm_check_same(world, stream, hash_item(&i), tsr_text_string(&text), advice);
}

tsr_status tsr_plan_check_ranks(const tsr_plan *plan, tsr_comm *world, tsr_stream *stream)
{
    uint64_t count = item_count(plan);
    TSR_AUTO_FREE int64_t *data = calloc(2 * count + 4, sizeof *data);
    if (!data)
        return tsr_fail(TSR_ENOMEM, "no memory for %llu hashes of the plan",
                        (unsigned long long)count);
    int64_t head[4] = {(int64_t)plan->hash, ~(int64_t)plan->hash, (int64_t)count, ~(int64_t)count};
    memcpy(data, head, sizeof head);
    TSR_TRY(reduce_pairs(data, 2, world, stream));
    return !pair_same(data) ? name_difference(plan, data, (uint64_t)data[2], world, stream)
                            : TSR_OK;
}
