/*
 * trace_memory.c: each stream's operations follow each other, so one cursor a stream, and always the earliest start or
 * end of them, is the order of time; what operations share was ordered by the plan.
 */
#include "job/trace_memory.h"

#include "planner/purposes.h"

#include <stdlib.h>
#include <string.h>

/* Places that are filled and emptied: these, then of each unit what it keeps on the device and what it saves on the
 * host, then the gradient buffers. */
enum {
    SLOTS = 0,
    STAGES = SLOTS + TSR_SLOTS_MAX,
    STATES = STAGES + TSR_STAGES_MAX,
    REGIONS = STATES + TSR_STATE_BUFFERS,
    KEPT = REGIONS + TSR_REGIONS
};

/* What a place has of one buffer. */
typedef struct {
    int place, purpose;
    uint64_t bytes;
} share;

typedef struct {
    const tsr_op_record *op; /* NULL: none is left */
    uint64_t next;           /* record behind it */
    bool began;
} cursor;

struct tsr_trace_memory {
    const tsr_plan *plan;
    tsr_purposes purposes;
    share *share;
    int share_count;
    bool *held; /* [places] */
    tsr_trace_counter *counter;
    bool *changed; /* [purposes]: since it was told */
    /* While it is read. */
    tsr_executor *executor;
    cursor cursor[TSR_STREAM_COUNT];
    double from, now;
    bool told, over; /* whether counters are told yet; whether no operation is left */
    int next_purpose;
};

/* ---- places ---- */

static int kept_of(int layer)
{
    return KEPT + layer;
}

static int saved_of(const tsr_trace_memory *m, int layer)
{
    return KEPT + m->plan->options.layer_count + layer;
}

static int gradient_of(const tsr_trace_memory *m, int buffer)
{
    return KEPT + 2 * m->plan->options.layer_count + buffer;
}

static int place_count(const tsr_trace_memory *m)
{
    return gradient_of(m, m->plan->gradient_buffers);
}

/* "slot[1]" is number 1 of "slot["; of fewer than `count`. */
static bool is_numbered(int *number, const char *name, const char *before, int count)
{
    size_t length = strlen(before);
    if (strncmp(name, before, length) != 0)
        return false;
    *number = atoi(name + length);
    return *number >= 0 && *number < count;
}

/* -1: it is neither filled nor emptied by operations. */
static int place_of(const tsr_trace_memory *m, const tsr_buffer *b)
{
    int i, layers = m->plan->options.layer_count;
    if (b->place == TSR_PLACE_HOST)
        return is_numbered(&i, b->name, "layer ", layers) ? saved_of(m, i) : -1;
    if (b->place != TSR_PLACE_DEVICE)
        return -1;
    if (is_numbered(&i, b->name, "slot[", TSR_SLOTS_MAX))
        return SLOTS + i;
    if (is_numbered(&i, b->name, "stage[", TSR_STAGES_MAX))
        return STAGES + i;
    if (is_numbered(&i, b->name, "optimizer state[", TSR_STATE_BUFFERS))
        return STATES + i;
    if (is_numbered(&i, b->name, "saved activations ", TSR_REGIONS))
        return REGIONS + i;
    return is_numbered(&i, b->name, "layer ", layers) ? kept_of(i) : -1;
}

static void add_share(tsr_trace_memory *m, int place, int purpose, uint64_t bytes)
{
    m->share[m->share_count++] = (share){place, purpose, bytes};
    m->counter[purpose].used_known = true;
}

static void make_shares(tsr_trace_memory *m, const tsr_memory_plan *memory)
{
    int buffers = m->plan->gradient_buffers;
    for (int i = 0; i < memory->count; i++) {
        const tsr_buffer *b = &memory->buffer[i];
        int place = place_of(m, b);
        if (place >= 0)
            add_share(m, place, m->purposes.of[i], b->bytes);
        /* One buffer of the plan holds them all. */
        bool gradient = b->place == TSR_PLACE_DEVICE && strcmp(b->name, "gradient") == 0;
        for (int g = 0; gradient && g < buffers; g++)
            add_share(m, gradient_of(m, g), m->purposes.of[i], b->bytes / (uint64_t)buffers);
    }
}

/* ---- life ---- */

static tsr_status make(tsr_trace_memory *m, const tsr_memory_plan *memory)
{
    TSR_TRY(tsr_purposes_make(&m->purposes, memory));
    size_t purposes = (size_t)m->purposes.count + 1;
    m->share = calloc((size_t)(memory->count + m->plan->gradient_buffers) + 1, sizeof *m->share);
    m->held = calloc((size_t)place_count(m), sizeof *m->held);
    m->counter = calloc(purposes, sizeof *m->counter);
    m->changed = calloc(purposes, sizeof *m->changed);
    if (!m->share || !m->held || !m->counter || !m->changed)
        return tsr_fail(TSR_ENOMEM, "out of memory for the trace's counters");
    for (int i = 0; i < m->purposes.count; i++)
        m->counter[i] = (tsr_trace_counter){.name = m->purposes.purpose[i].name,
                                            .planned_bytes = m->purposes.purpose[i].bytes};
    make_shares(m, memory);
    return TSR_OK;
}

tsr_status tsr_trace_memory_create(tsr_trace_memory **out, const tsr_plan *plan,
                                   const tsr_memory_plan *memory)
{
    tsr_trace_memory *m = calloc(1, sizeof *m);
    if (!m)
        return tsr_fail(TSR_ENOMEM, "out of memory for the trace's counters");
    m->plan = plan;
    tsr_status status = make(m, memory);
    if (status < 0)
        tsr_trace_memory_destroy(m);
    else
        *out = m;
    return status;
}

void tsr_trace_memory_destroy(tsr_trace_memory *m)
{
    if (!m)
        return;
    tsr_purposes_free(&m->purposes);
    free(m->share);
    free(m->held);
    free(m->counter);
    free(m->changed);
    free(m);
}

/* ---- what operations fill and empty ---- */

static void hold(tsr_trace_memory *m, int place, bool held)
{
    if (m->held[place] == held)
        return;
    m->held[place] = held;
    for (int i = 0; i < m->share_count; i++) {
        const share *s = &m->share[i];
        if (s->place != place)
            continue;
        m->counter[s->purpose].used_bytes += held ? s->bytes : -s->bytes;
        m->changed[s->purpose] = true;
    }
}

/* Whether the forward of a unit leaves something for a backward. */
static bool keeps(const tsr_trace_memory *m, const tsr_op_record *r)
{
    return m->plan->options.train && r->phase == TSR_USE_FORWARD && !r->empty &&
           r->op->layer >= m->plan->lowest_backward;
}

/* A slot that is used was filled, maybe before the first operation of the log. */
static void begins(tsr_trace_memory *m, const tsr_op_record *r)
{
    const tsr_plan_op *op = r->op;
    if (op->slot >= 0)
        hold(m, SLOTS + op->slot, true);
    if (op->kind == TSR_OP_H2D && op->stage >= 0)
        hold(m, STAGES + op->stage, true);
    if (op->kind == TSR_OP_LOAD_STATE)
        hold(m, STATES + op->chunk % m->plan->state_buffers, true);
    if (op->kind == TSR_OP_COMPUTE && op->buffer >= 0)
        hold(m, gradient_of(m, op->buffer), true);
    if (op->kind == TSR_OP_COMPUTE && keeps(m, r))
        hold(m, op->region >= 0 ? REGIONS + op->region : kept_of(op->layer), true);
    if (op->kind == TSR_OP_LOAD && !r->empty)
        hold(m, REGIONS + op->region, true);
    if (op->kind == TSR_OP_SAVE && !r->empty)
        hold(m, saved_of(m, op->layer), true);
}

static void ends(tsr_trace_memory *m, const tsr_op_record *r)
{
    const tsr_plan_op *op = r->op;
    if (op->releases)
        hold(m, SLOTS + op->slot, false);
    if (op->kind == TSR_OP_GATHER && op->stage >= 0)
        hold(m, STAGES + op->stage, false);
    if (op->kind == TSR_OP_SAVE_STATE)
        hold(m, STATES + op->chunk % m->plan->state_buffers, false);
    if (op->kind == TSR_OP_REDUCE)
        hold(m, gradient_of(m, op->buffer), false);
    if (op->kind == TSR_OP_COMPUTE && r->phase == TSR_USE_BACKWARD && op->ends)
        hold(m, op->region >= 0 ? REGIONS + op->region : kept_of(op->layer), false);
    if (op->kind == TSR_OP_SAVE)
        hold(m, REGIONS + op->region, false);
    if (op->kind == TSR_OP_LOAD)
        hold(m, saved_of(m, op->layer), false);
}

/* ---- the order of time ---- */

/* To the next operation of the cursor's stream. */
static void advance(tsr_trace_memory *m, int stream)
{
    cursor *c = &m->cursor[stream];
    uint64_t count = 0;
    c->op = NULL;
    c->began = false;
    tsr_executor_log(m->executor, 0, &count);
    while (!c->op && c->next < count) {
        const tsr_op_record *r = tsr_executor_log(m->executor, c->next++, &count);
        if (r->type == TSR_RECORD_OP && r->stream == stream)
            c->op = r;
    }
}

static double time_of(const cursor *c)
{
    return c->began ? c->op->end : c->op->start;
}

/* The stream of the earliest start or end, of several an end: what is left is filled again after it. -1: none. */
static int earliest(const tsr_trace_memory *m)
{
    int first = -1;
    for (int i = 0; i < TSR_STREAM_COUNT; i++) {
        const cursor *c = &m->cursor[i], *best = first < 0 ? NULL : &m->cursor[first];
        if (!c->op)
            continue;
        if (!best || time_of(c) < time_of(best) ||
            (time_of(c) == time_of(best) && c->began && !best->began))
            first = i;
    }
    return first;
}

static void tell_all(tsr_trace_memory *m)
{
    m->told = true;
    m->now = m->from;
    for (int i = 0; i < m->purposes.count; i++)
        m->changed[i] = true;
}

/* One start or end of an operation; or that counters are told from now on. */
static void go_on(tsr_trace_memory *m)
{
    int stream = earliest(m);
    m->over = stream < 0;
    if (!m->told && (m->over || time_of(&m->cursor[stream]) >= m->from)) {
        tell_all(m);
        return;
    }
    if (m->over)
        return;
    cursor *c = &m->cursor[stream];
    m->now = time_of(c);
    if (c->began) {
        ends(m, c->op);
        advance(m, stream);
    } else {
        begins(m, c->op);
        c->began = true;
    }
}

void tsr_trace_memory_begin(tsr_trace_memory *m, tsr_executor *executor, double from)
{
    m->executor = executor;
    m->from = from;
    m->told = m->over = false;
    m->next_purpose = m->purposes.count;
    for (int i = 0; i < place_count(m); i++)
        hold(m, i, false);
    for (int i = 0; i < TSR_STREAM_COUNT; i++) {
        m->cursor[i] = (cursor){0};
        advance(m, i);
    }
}

bool tsr_trace_memory_next(tsr_trace_memory *m, tsr_trace_counter *out)
{
    for (;;) {
        for (; m->told && m->next_purpose < m->purposes.count; m->next_purpose++) {
            int i = m->next_purpose;
            if (!m->changed[i])
                continue;
            m->changed[i] = false;
            *out = m->counter[i];
            out->time = m->now;
            return true;
        }
        if (m->over)
            return false;
        go_on(m);
        m->next_purpose = 0;
    }
}
