#include "shard/checker.h"

#include "shard/random_plan.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HOST   TSR_STREAM_COUNT /* the host's component of a clock */
#define CLOCKS (TSR_STREAM_COUNT + 1)

typedef struct {
    uint32_t at[CLOCKS];
} vector;

/* ---- what is accessed ---- */

enum {
    SLOT = 0,
    STAGE = SLOT + TSR_SLOTS_MAX,
    GRADIENT = STAGE + TSR_STAGES_MAX,
    RECEIVED = GRADIENT + MAX_UNITS,
    PARTIAL,
    WORD,    /* of the device */
    SUMS,    /* of losses */
    REFUSED, /* whether a gradient is finite */
    HOST_WORD,
    BASE = HOST_WORD + 2,      /* shards and host copies of the frozen part */
    WORK = BASE + MAX_UNITS,   /* working copies */
    MASTER = WORK + MAX_UNITS, /* with the moments */
    ACCUMULATOR = MASTER + MAX_UNITS,
    KEPT = ACCUMULATOR + MAX_UNITS, /* gathered working copies that stay */
    NORMS = KEPT + MAX_UNITS,       /* g */
    SAVED = NORMS + MAX_UNITS,      /* activations */
    REGION = SAVED + MAX_LAYERS,    /* where those go that travel */
    HOST_SAVED = REGION + TSR_REGIONS,
    STATE = HOST_SAVED + MAX_LAYERS,        /* a chunk of masters and moments */
    HOST_STATE = STATE + TSR_STATE_BUFFERS, /* by elements */
    RESOURCES = HOST_STATE + 1
};

#define MAX_CHUNKS 64

#define MAX_ENTRIES 64

typedef struct {
    uint32_t index; /* of the op on its stream */
    uint8_t who;
    bool write;
    uint64_t low, high;
} entry;

typedef struct {
    entry entry[MAX_ENTRIES];
    int count;
} history;

typedef struct {
    int unit;
    uint64_t update;
} content;

typedef struct {
    check_result *result;
    const tsr_plan *plan;
    history history[RESOURCES];
    vector stream[CLOCKS];
    vector *event[TSR_EVENT_COUNT]; /* [generation] */
    uint32_t recorded[TSR_EVENT_COUNT], base[TSR_EVENT_COUNT], capacity[TSR_EVENT_COUNT];
    vector word[2];
    uint64_t made, read, updates;
    content frozen[TSR_SLOTS_MAX], trainable[TSR_SLOTS_MAX];
    int stage[TSR_STAGES_MAX], gradient[MAX_UNITS];
    uint64_t kept[MAX_UNITS];         /* update + 1 of what is kept */
    uint64_t normed[MAX_UNITS];       /* update + 1 of the norms */
    uint64_t micro_batch;             /* its number, from 1 */
    content region[TSR_REGIONS];      /* update: of which micro-batch */
    uint64_t host_saved[MAX_LAYERS];  /* micro-batch */
    content state[TSR_STATE_BUFFERS]; /* unit: the chunk */
    uint64_t host_state[MAX_CHUNKS];  /* update */
    uint64_t elements;                /* updated, over all steps */
    unsigned live;
    const char *program;
} replay;

static void __attribute__((format(printf, 2, 3))) failed(replay *r, const char *format, ...)
{
    if (r->result->failed)
        return;
    r->result->failed = true;
    va_list args;
    va_start(args, format);
    vsnprintf(r->result->message, sizeof r->result->message, format, args);
    va_end(args);
}

static void join(vector *into, const vector *from)
{
    for (int i = 0; i < CLOCKS; i++)
        if (from->at[i] > into->at[i])
            into->at[i] = from->at[i];
}

/* An access by `who`, whose clock is already that of the op. */
static void touch(replay *r, int resource, int who, bool write, uint64_t low, uint64_t high)
{
    history *h = &r->history[resource];
    const vector *clock = &r->stream[who];
    if (low >= high)
        return;
    int kept = 0;
    for (int i = 0; i < h->count; i++) {
        entry *e = &h->entry[i];
        bool overlaps = e->low < high && low < e->high;
        if (overlaps && (write || e->write) && clock->at[e->who] < e->index) {
            failed(r,
                   "%s: resource %d [%llu, %llu): op %u of stream %d and op %u of stream %d race",
                   r->program, resource, (unsigned long long)low, (unsigned long long)high,
                   e->index, e->who, clock->at[who], who);
            return;
        }
        bool covered = low <= e->low && e->high <= high;
        bool replaced = covered && (write || (e->who == who && !e->write));
        if (!replaced)
            h->entry[kept++] = *e;
    }
    h->count = kept;
    if (kept == MAX_ENTRIES) {
        failed(r, "the checker's history of resource %d is full", resource);
        return;
    }
    h->entry[h->count++] = (entry){
        .index = clock->at[who], .who = (uint8_t)who, .write = write, .low = low, .high = high};
}

static void reads(replay *r, int resource, int who)
{
    touch(r, resource, who, false, 0, 1);
}

static void writes(replay *r, int resource, int who)
{
    touch(r, resource, who, true, 0, 1);
}

/* ---- what each op touches, and what it must find ---- */

static void slot_lives(replay *r, int slot)
{
    r->live |= 1u << slot;
    int count = __builtin_popcount(r->live);
    if (count > r->result->live_most)
        r->result->live_most = count;
}

static void fill(replay *r, const tsr_plan_op *op)
{
    const tsr_unit *u = &r->plan->options.units[op->unit];
    int who = op->stream, ranks = r->plan->options.ranks;
    if (op->kind == TSR_OP_H2D && op->stage >= 0) {
        reads(r, BASE + op->unit, who);
        writes(r, STAGE + op->stage, who);
        r->stage[op->stage] = op->unit;
        return;
    }
    if (tsr_unit_trainable_kept(u, ranks) && op->kind == TSR_OP_GATHER_T) {
        reads(r, WORK + op->unit, who);
        writes(r, KEPT + op->unit, who);
        r->kept[op->unit] = r->updates + 1;
        if (op->slot >= 0)
            failed(r, "%s: what is kept of unit %d goes to slot %d", r->program, op->unit,
                   op->slot);
        return;
    }
    uint64_t low = op->kind == TSR_OP_GATHER_T ? tsr_unit_slot_trainable(u, ranks) : 0;
    touch(r, SLOT + op->slot, who, true, low, low + op->bytes);
    slot_lives(r, op->slot);
    if (op->kind == TSR_OP_GATHER_T) {
        reads(r, WORK + op->unit, who);
        r->trainable[op->slot] = (content){op->unit, r->updates};
        return;
    }
    if (op->stage >= 0) {
        reads(r, STAGE + op->stage, who);
        if (r->stage[op->stage] != op->unit)
            failed(r, "%s: stage %d holds unit %d, not %d", r->program, op->stage,
                   r->stage[op->stage], op->unit);
    } else {
        reads(r, BASE + op->unit, who);
    }
    r->frozen[op->slot].unit = op->unit;
}

static void see_unit(replay *r, const tsr_plan_op *op)
{
    const tsr_unit *u = &r->plan->options.units[op->unit];
    int who = op->stream, ranks = r->plan->options.ranks;
    bool frozen = tsr_unit_frozen_gathered(u, ranks);
    bool trainable = tsr_unit_trainable_gathered(u, ranks);
    if ((frozen || trainable) != (op->slot >= 0)) {
        failed(r, "%s: unit %d and slot %d", r->program, op->unit, op->slot);
        return;
    }
    /* A slot belongs to its unit as a whole until it is freed (debug runs poison all of it then).
     */
    if (op->slot >= 0)
        touch(r, SLOT + op->slot, who, false, 0, r->plan->slot_bytes);
    if (frozen) {
        if (r->frozen[op->slot].unit != op->unit)
            failed(r, "%s: unit %d is read in slot %d, which holds %d", r->program, op->unit,
                   op->slot, r->frozen[op->slot].unit);
    } else {
        reads(r, BASE + op->unit, who);
    }
    if (trainable) {
        content *c = &r->trainable[op->slot];
        if (c->unit != op->unit || c->update != r->updates)
            failed(r, "%s: unit %d of update %llu is read in slot %d, which holds %d of %llu",
                   r->program, op->unit, (unsigned long long)r->updates, op->slot, c->unit,
                   (unsigned long long)c->update);
    } else if (tsr_unit_trainable_kept(u, ranks)) {
        reads(r, KEPT + op->unit, who);
        if (r->kept[op->unit] != r->updates + 1)
            failed(r, "%s: what is kept of unit %d is of another update", r->program, op->unit);
    } else if (u->trainable.gathered_bytes > 0) {
        reads(r, WORK + op->unit, who);
    }
}

/* ---- activations ---- */

static uint64_t saved_bytes(const replay *r, int layer)
{
    const tsr_plan_options *o = &r->plan->options;
    return o->saved_bytes && layer < o->layer_count ? o->saved_bytes[layer] : 0;
}

static void expect_region(replay *r, const tsr_plan_op *op)
{
    const content *c = &r->region[op->region];
    if (c->unit != op->layer || c->update != r->micro_batch)
        failed(r, "%s: region %d holds layer %d of micro-batch %llu, not %d of %llu", r->program,
               op->region, c->unit, (unsigned long long)c->update, op->layer,
               (unsigned long long)r->micro_batch);
}

static void use_region(replay *r, const tsr_plan_op *op)
{
    if (op->region < 0) {
        failed(r, "%s: layer %d has no region", r->program, op->layer);
        return;
    }
    if (op->phase == TSR_USE_FORWARD)
        r->region[op->region] = (content){op->layer, r->micro_batch};
    expect_region(r, op);
    writes(r, REGION + op->region, op->stream); /* a backward consumes what it reads */
}

/* The residual: a layer, and the head, read what the layer below has left. */
static void see_below(replay *r, const tsr_plan_op *op)
{
    int below = op->layer - 1;
    if (op->phase == TSR_USE_BACKWARD || below < 0)
        return;
    if (saved_bytes(r, below) == 0) {
        reads(r, SAVED + below, op->stream);
        return;
    }
    int region = 0;
    while (region < TSR_REGIONS &&
           (r->region[region].unit != below || r->region[region].update != r->micro_batch))
        region++;
    if (region == TSR_REGIONS)
        failed(r, "%s: layer %d is in no region when the next one reads it", r->program, below);
    else
        reads(r, REGION + region, op->stream);
}

static void move_saved(replay *r, const tsr_plan_op *op)
{
    bool save = op->kind == TSR_OP_SAVE;
    touch(r, REGION + op->region, op->stream, !save, 0, 1);
    touch(r, HOST_SAVED + op->layer, op->stream, save, 0, 1);
    if (save) {
        expect_region(r, op);
        r->host_saved[op->layer] = r->micro_batch;
        return;
    }
    if (r->host_saved[op->layer] != r->micro_batch)
        failed(r, "%s: layer %d comes back from micro-batch %llu", r->program, op->layer,
               (unsigned long long)r->host_saved[op->layer]);
    r->region[op->region] = (content){op->layer, r->micro_batch};
}

/* ---- optimizer state ---- */

static void move_state(replay *r, const tsr_plan_op *op)
{
    bool save = op->kind == TSR_OP_SAVE_STATE;
    int buffer = op->chunk % r->plan->state_buffers;
    tsr_plan_range range = tsr_plan_chunk(r->plan, op->chunk);
    content *c = &r->state[buffer];
    touch(r, STATE + buffer, op->stream, !save, 0, 1);
    touch(r, HOST_STATE, op->stream, save, range.begin, range.begin + range.count);
    if (save && c->unit != op->chunk)
        failed(r, "%s: chunk %d is saved, but %d is here", r->program, op->chunk, c->unit);
    if (save)
        r->host_state[op->chunk] = c->update;
    else
        *c = (content){op->chunk, r->host_state[op->chunk]};
}

static void optim(replay *r, const tsr_plan_op *op)
{
    const tsr_plan_options *o = &r->plan->options;
    int who = op->stream;
    tsr_plan_range range = tsr_plan_chunk(r->plan, op->chunk);
    uint64_t begin = 0;
    reads(r, WORD, who);
    for (int u = 0; u < o->unit_count; u++) {
        uint64_t end = begin + o->units[u].trainable.gradient_count;
        if (begin < range.begin + range.count && range.begin < end) {
            reads(r, ACCUMULATOR + u, who);
            writes(r, WORK + u, who);
            if (op->chunk < 0)
                writes(r, MASTER + u, who);
        }
        begin = end;
    }
    if (op->chunk >= 0) {
        content *c = &r->state[op->chunk % r->plan->state_buffers];
        writes(r, STATE + op->chunk % r->plan->state_buffers, who);
        if (c->unit != op->chunk || c->update != r->updates)
            failed(r, "%s: chunk %d of update %llu is here, not %d of %llu", r->program, c->unit,
                   (unsigned long long)c->update, op->chunk, (unsigned long long)r->updates);
        c->update++;
    }
    r->elements += range.count;
    if (!op->last)
        return;
    r->updates++;
    if (r->elements != r->updates * r->plan->owned)
        failed(r, "%s: an update that is not of all elements once", r->program);
}

static void compute(replay *r, const tsr_plan_op *op)
{
    const tsr_unit *u = &r->plan->options.units[op->unit];
    see_unit(r, op);
    if (op->kind == TSR_OP_NORM) {
        writes(r, NORMS + op->unit, op->stream);
        r->normed[op->unit] = r->updates + 1;
        return;
    }
    if (u->has_norm) {
        reads(r, NORMS + op->unit, op->stream);
        if (r->normed[op->unit] != r->updates + 1)
            failed(r, "%s: unit %d has norms of another update", r->program, op->unit);
    }
    r->micro_batch += op->first;
    if (saved_bytes(r, op->layer) > 0)
        use_region(r, op);
    else if (op->phase != TSR_USE_BACKWARD)
        writes(r, SAVED + op->layer, op->stream);
    else
        reads(r, SAVED + op->layer, op->stream);
    if (op->phase == TSR_USE_FORWARD || op->phase == TSR_USE_AGAIN ||
        op->layer == r->plan->options.layer_count)
        see_below(r, op);
    if (op->phase == TSR_USE_HEAD) /* the loss */
        writes(r, SUMS, op->stream);
    if (op->buffer >= 0) {
        writes(r, GRADIENT + op->buffer, op->stream);
        r->gradient[op->buffer] = op->unit;
    }
    if (op->releases)
        r->live &= ~(1u << op->slot);
}

static void reduce(replay *r, const tsr_plan_op *op)
{
    const tsr_plan_options *o = &r->plan->options;
    reads(r, GRADIENT + op->buffer, op->stream);
    if (o->ranks > 1)
        writes(r, RECEIVED, op->stream);
    if (o->replicas > 1)
        writes(r, PARTIAL, op->stream);
    writes(r, REFUSED, op->stream);
    writes(r, ACCUMULATOR + op->unit, op->stream);
    if (r->gradient[op->buffer] != op->unit)
        failed(r, "%s: gradient %d is of unit %d, not %d", r->program, op->buffer,
               r->gradient[op->buffer], op->unit);
}

static void each_trainable(replay *r, int resource, int who)
{
    for (int u = 0; u < r->plan->options.unit_count; u++)
        if (r->plan->options.units[u].trainable.gradient_count > 0)
            reads(r, resource + u, who);
}

static void accesses(replay *r, const tsr_plan_op *op)
{
    int who = op->stream;
    switch ((tsr_op_kind)op->kind) {
    case TSR_OP_H2D:
    case TSR_OP_GATHER:
    case TSR_OP_GATHER_T:
        fill(r, op);
        break;
    case TSR_OP_NORM:
    case TSR_OP_COMPUTE:
        compute(r, op);
        break;
    case TSR_OP_REDUCE:
        reduce(r, op);
        break;
    case TSR_OP_GRAD_NORM:
        each_trainable(r, ACCUMULATOR, who);
        /* fall through */
    case TSR_OP_TALLY:
        writes(r, SUMS, who);
        writes(r, REFUSED, who);
        writes(r, WORD, who);
        break;
    case TSR_OP_CONTROL:
        writes(r, WORD, who);
        break;
    case TSR_OP_OPTIM:
        optim(r, op);
        break;
    case TSR_OP_SAVE:
    case TSR_OP_LOAD:
        move_saved(r, op);
        break;
    case TSR_OP_LOAD_STATE:
    case TSR_OP_SAVE_STATE:
        move_state(r, op);
        break;
    case TSR_OP_WORD:
        reads(r, WORD, who);
        writes(r, HOST_WORD + (int)(r->made % 2), who);
        r->word[r->made % 2] = r->stream[who];
        r->made++;
        break;
    default:
        failed(r, "an op of kind %d", op->kind);
    }
}

/* ---- replay ---- */

static void record(replay *r, int event, const vector *clock)
{
    if (r->recorded[event] + 1 >= r->capacity[event]) {
        r->capacity[event] = 2 * r->capacity[event] + 64;
        r->event[event] = realloc(r->event[event], r->capacity[event] * sizeof(vector));
        if (!r->event[event])
            abort();
    }
    r->event[event][++r->recorded[event]] = *clock;
}

/* The host reads the oldest word. */
static void read_word(replay *r)
{
    vector *host = &r->stream[HOST];
    join(host, &r->word[r->read % 2]);
    host->at[HOST]++;
    reads(r, HOST_WORD + (int)(r->read % 2), HOST);
    r->read++;
}

static void replay_op(replay *r, const tsr_plan_op *op, int left_out)
{
    vector *clock = &r->stream[op->stream];
    r->stream[HOST].at[HOST]++;
    join(clock, &r->stream[HOST]);
    const vector *left = NULL;
    for (int i = 0; i < op->wait_count; i++) {
        int event = op->wait[i].event;
        uint32_t generation = r->base[event] + op->wait[i].count;
        if (generation == 0 || generation > r->recorded[event]) {
            failed(r, "%s: a wait for record %u of event %d, which has %u", r->program, generation,
                   event, r->recorded[event]);
            return;
        }
        if (i == left_out)
            left = &r->event[event][generation];
        else
            join(clock, &r->event[event][generation]);
    }
    if (left) {
        bool implied = true;
        for (int s = 0; s < TSR_STREAM_COUNT; s++)
            implied &= clock->at[s] >= left->at[s];
        r->result->edge_count++;
        r->result->edge_implied += implied;
    }
    clock->at[op->stream]++;
    accesses(r, op);
    for (int i = 0; i < op->record_count; i++)
        record(r, op->record[i], clock);
    r->result->ops++;
}

static void replay_program(replay *r, const tsr_program *program, const check_edge *without)
{
    int index = (int)(program - r->plan->program);
    r->program = tsr_program_name(program->kind);
    while (r->made - r->read >= 2)
        read_word(r);
    memcpy(r->base, r->recorded, sizeof r->base);
    for (int i = 0; i < program->op_count && !r->result->failed; i++) {
        bool here = without && without->program == index && without->op == i;
        replay_op(r, &program->op[i], here ? without->wait : -1);
    }
}

void check_sequence(check_result *out, const tsr_plan *plan, const uint8_t *kinds, int count,
                    const check_edge *without)
{
    replay *r = calloc(1, sizeof *r);
    if (!r)
        abort();
    memset(out, 0, sizeof *out);
    r->result = out;
    r->plan = plan;
    for (int s = 0; s < TSR_SLOTS_MAX; s++)
        r->frozen[s].unit = r->trainable[s].unit = -1;
    for (int i = 0; i < TSR_REGIONS; i++)
        r->region[i].unit = -1;
    for (int i = 0; i < TSR_STATE_BUFFERS; i++)
        r->state[i].unit = -1;
    vector zero = {0};
    for (int e = 0; e < TSR_EVENT_COUNT; e++)
        record(r, e, &zero);
    int state = 0;
    for (int i = 0; i < count && !out->failed; i++) {
        const tsr_program *program = tsr_plan_program(plan, state, (tsr_program_kind)kinds[i]);
        if (!program) {
            failed(r, "program %d cannot follow in state %d", kinds[i], state);
            break;
        }
        replay_program(r, program, without);
        state = program->exit;
    }
    for (int e = 0; e < TSR_EVENT_COUNT; e++)
        free(r->event[e]);
    free(r);
}
