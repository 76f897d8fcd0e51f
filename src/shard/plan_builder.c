#include "shard/plan_builder.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(TSR_EVENT_COUNT <= 128, "a clock keeps one bit for each event");

tsr_stream_id tsr_event_stream(int event)
{
    static const struct {
        int end; /* of the events from the entry before on */
        tsr_stream_id stream;
    } group[] = {
        {TSR_EVENT_READY, TSR_STREAM_COMPUTE},    {TSR_EVENT_LOADED, TSR_STREAM_COMM},
        {TSR_EVENT_DRAINED, TSR_STREAM_H2D},      {TSR_EVENT_WRITTEN, TSR_STREAM_COMM},
        {TSR_EVENT_REDUCED, TSR_STREAM_COMPUTE},  {TSR_EVENT_COMPUTED, TSR_STREAM_COMM},
        {TSR_EVENT_TALLIED, TSR_STREAM_COMPUTE},  {TSR_EVENT_CONTROLLED, TSR_STREAM_OPTIM},
        {TSR_EVENT_OPTIMIZED, TSR_STREAM_COMM},   {TSR_EVENT_WORDED, TSR_STREAM_OPTIM},
        {TSR_EVENT_USED, TSR_STREAM_D2H},         {TSR_EVENT_SAVED, TSR_STREAM_COMPUTE},
        {TSR_EVENT_RESTORED, TSR_STREAM_D2H},     {TSR_EVENT_FETCHED, TSR_STREAM_H2D},
        {TSR_EVENT_UPDATED, TSR_STREAM_STATE_IN}, {TSR_EVENT_STORED, TSR_STREAM_OPTIM},
        {TSR_EVENT_COUNT, TSR_STREAM_STATE_OUT},
    };
    int g = 0;
    while (event >= group[g].end)
        g++;
    return group[g].stream;
}

static void clock_merge(tsr_plan_clock *into, const tsr_plan_clock *from)
{
    for (int s = 0; s < TSR_STREAM_COUNT; s++)
        if (from->op[s] > into->op[s])
            into->op[s] = from->op[s];
    tsr_events_join(&into->before, &from->before);
}

/* The clock that a wait for the latest record of `event` brings. */
static tsr_plan_clock clock_of(const tsr_builder *b, int event)
{
    if (b->recorder[event] >= 0)
        return b->clock[b->recorder[event]];
    tsr_plan_clock clock = {.before = b->implied[event]};
    tsr_events_add(&clock.before, event);
    for (int s = 0; s < TSR_STREAM_COUNT; s++)
        clock.op[s] = -1;
    return clock;
}

/* Whether `clock` already covers the latest record of `event`. */
static bool clock_covers(const tsr_builder *b, const tsr_plan_clock *clock, int event)
{
    tsr_stream_id owner = tsr_event_stream(event);
    if (b->recorder[event] >= 0)
        return clock->op[owner] >= b->recorder[event];
    /* Any op of this program on the owner comes after everything before the program. */
    return clock->op[owner] >= 0 || tsr_events_have(&clock->before, event);
}

/* ---- ops ---- */

tsr_plan_op *tsr_op_begin(tsr_builder *b, tsr_op_kind kind, tsr_stream_id stream, int unit)
{
    /* tsr_op_reserve made room. */
    tsr_plan_op *op = &b->op[b->op_count];
    memset(op, 0, sizeof *op);
    op->kind = (uint8_t)kind;
    op->stream = (uint8_t)stream;
    op->slot = op->stage = op->buffer = op->region = -1;
    op->unit = unit;
    op->layer = -1;
    op->chunk = -1;
    return op;
}

void tsr_op_wants(tsr_plan_op *op, int event)
{
    op->wait[op->wait_count++].event = (uint16_t)event;
}

void tsr_op_records(tsr_plan_op *op, int event)
{
    op->record[op->record_count++] = (uint16_t)event;
}

void tsr_op_end(tsr_builder *b, tsr_plan_op *op)
{
    tsr_plan_clock *now = &b->stream[op->stream];
    tsr_plan_wait wanted[TSR_OP_WAITS];
    int wanted_count = op->wait_count;
    memcpy(wanted, op->wait, sizeof wanted);
    memset(op->wait, 0, sizeof op->wait);
    op->wait_count = 0;
    for (int i = 0; i < wanted_count; i++) {
        int event = wanted[i].event;
        bool implied =
            tsr_event_stream(event) == (tsr_stream_id)op->stream || clock_covers(b, now, event);
        for (int j = 0; j < wanted_count && !implied; j++) {
            tsr_plan_clock other = clock_of(b, wanted[j].event);
            implied = j != i && clock_covers(b, &other, event);
        }
        if (!implied)
            op->wait[op->wait_count++] =
                (tsr_plan_wait){.event = (uint16_t)event, .count = b->records[event]};
    }
    for (int i = 0; i < op->wait_count; i++) {
        tsr_plan_clock other = clock_of(b, op->wait[i].event);
        clock_merge(now, &other);
    }
    int index = b->op_count++;
    now->op[op->stream] = index;
    b->clock[index] = *now;
    for (int i = 0; i < op->record_count; i++) {
        b->records[op->record[i]]++;
        b->recorder[op->record[i]] = index;
    }
}

tsr_status tsr_op_reserve(tsr_builder *b)
{
    int room = 4 * TSR_SLOTS_MAX + 8;
    if (b->op_count + room <= b->op_capacity)
        return TSR_OK;
    int capacity = 2 * b->op_capacity + room;
    tsr_plan_op *op = realloc(b->op, (size_t)capacity * sizeof *op);
    if (op)
        b->op = op;
    tsr_plan_clock *clock = realloc(b->clock, (size_t)capacity * sizeof *clock);
    if (clock)
        b->clock = clock;
    if (!op || !clock)
        return tsr_fail(TSR_ENOMEM, "no memory for a program of %d operations", capacity);
    b->op_capacity = capacity;
    return TSR_OK;
}
