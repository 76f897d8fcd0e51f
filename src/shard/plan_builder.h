/*
 * shard/plan_builder.h: one program while it is compiled: its ops and what each may take for granted.
 *
 * An op says which events it wants; of these the builder keeps as waits what neither the past of its
 * stream nor another wait implies. For that each op carries a vector clock. Inside src/shard only.
 *
 * Order    tsr_op_reserve; then for each op tsr_op_begin, its fields, wants and records, tsr_op_end.
 */
#ifndef TSR_SHARD_PLAN_BUILDER_H
#define TSR_SHARD_PLAN_BUILDER_H

#include "shard/plan_parts.h"

/* A set of events. */
typedef struct {
    uint64_t bits[2];
} tsr_plan_events;

static inline void tsr_events_add(tsr_plan_events *set, int event)
{
    set->bits[event / 64] |= 1ull << event % 64;
}

static inline void tsr_events_join(tsr_plan_events *into, const tsr_plan_events *from)
{
    into->bits[0] |= from->bits[0];
    into->bits[1] |= from->bits[1];
}

static inline bool tsr_events_have(const tsr_plan_events *set, int event)
{
    return (set->bits[event / 64] >> event % 64 & 1) != 0;
}

/* What is known to have completed: ops of this program, and the last records before it. */
typedef struct {
    int op[TSR_STREAM_COUNT]; /* the latest op of each stream; -1: none */
    tsr_plan_events before;   /* as they were before the program */
} tsr_plan_clock;

typedef struct {
    uint8_t phase;
    bool trains;    /* the gradient of the unit is added to */
    bool ends;      /* the last use of its layer in this phase */
    int16_t number; /* among these, from 0 */
    int unit, layer;
    int again;   /* the next use of the unit; the horizon: none */
    int wanting; /* the first use from here on whose unit needs a slot; the horizon: none */
} tsr_plan_use;

/* What a program asks of a unit again and again. */
typedef struct {
    int first_use; /* the horizon: none */
    int kept_turn; /* of what is kept, by its number: a use waits for its own gather while the next one is under way */
} tsr_plan_part;

/* What a layer saves: its region and whether it travels (shard/unit.h). */
typedef struct {
    int region;
    bool travels;
} tsr_plan_saved;

typedef struct {
    const tsr_plan *plan;
    const tsr_unit *unit;
    int ranks, slots;
    tsr_program_kind kind;
    tsr_plan_state *state;
    tsr_plan_use *use;
    int use_count, horizon; /* [0, use_count) of this program, [.., horizon) of the next */
    tsr_plan_part *part;    /* [unit]; of a micro-batch */
    tsr_plan_saved *saved;  /* [layer]; likewise; NULL: nothing is saved */
    tsr_plan_op *op;
    tsr_plan_clock *clock; /* [op]: after it */
    int op_count, op_capacity;
    tsr_plan_clock stream[TSR_STREAM_COUNT];
    /* Knowing an event before the program means knowing these too. */
    tsr_plan_events implied[TSR_EVENT_COUNT];
    uint32_t records[TSR_EVENT_COUNT];
    int last_user[TSR_SLOTS_MAX];  /* COMPUTE that used the slot last; -1 */
    int kept;                      /* the last unit whose kept part was gathered; -1 */
    int written, reduced;          /* gradient buffers of this micro-batch */
    int recorder[TSR_EVENT_COUNT]; /* op of the last record; -1: before the program */
} tsr_builder;

/* The op is the builder's until tsr_op_end. unit -1: none. */
tsr_plan_op *tsr_op_begin(tsr_builder *b, tsr_op_kind kind, tsr_stream_id stream, int unit);

/* The latest record of an event must have happened. An event of the op's own stream always has. */
void tsr_op_wants(tsr_plan_op *op, int event);
void tsr_op_records(tsr_plan_op *op, int event);

/* Drops the waits that the stream's past or the other waits imply. */
void tsr_op_end(tsr_builder *b, tsr_plan_op *op);

/* Lists the uses of a micro-batch: `use`, its counts, `part` and `saved`. */
tsr_status tsr_builder_list_uses(tsr_builder *b);

/* Room for everything that one use or one end of a step issues. */
tsr_status tsr_op_reserve(tsr_builder *b);

#endif
