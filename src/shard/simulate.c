#include "shard/simulate.h"

#define STEPS_BEFORE 2 /* until everything runs in */
#define STEPS        4 /* that are averaged: what is in the slots may take turns */
#define LEAST_SPEED  0.1
#define MOST_ROUNDS  8 /* of a step; further ones are like those before */

/* A stream: where it is in the sequence of all ops, and the op under way. Streams walk on their own, since
 * one may be far ahead of another. */
typedef struct {
    const tsr_program *program;
    int state;      /* that the program was entered with */
    int64_t number; /* of the program in its step */
    int64_t step;
    int next;                         /* its next op in the program */
    uint64_t before[TSR_EVENT_COUNT]; /* records of each event in the programs before */
    bool active;
    double left, slows; /* of the op under way */
    double idle_since;
} walker;

typedef struct {
    const tsr_plan *plan;
    tsr_op_cost_call *cost;
    void *user;
    int64_t rounds;
    double now;
    walker stream[TSR_STREAM_COUNT];
    uint64_t recorded[TSR_EVENT_COUNT]; /* how often, */
    double at[TSR_EVENT_COUNT];         /* and when last */
    double staged[TSR_SLOTS_MAX][2];    /* from when to when a gather stood waiting for its stage */
    int64_t ended;                      /* steps */
    tsr_simulation sum;
} simulator;

/* ---- the sequence ---- */

/* The program of a step after `number` others; NULL after the last. */
static tsr_status enter_program(simulator *s, walker *w)
{
    bool train = s->plan->options.train, ends = w->number == s->rounds;
    tsr_program_kind first = train ? TSR_PROGRAM_TRAIN_FIRST : TSR_PROGRAM_EVAL_FIRST;
    tsr_program_kind next = train ? TSR_PROGRAM_TRAIN_NEXT : TSR_PROGRAM_EVAL_NEXT;
    tsr_program_kind end = train ? TSR_PROGRAM_STEP_END : TSR_PROGRAM_EVAL_END;
    w->next = 0;
    w->program = NULL;
    if (w->step > STEPS_BEFORE + STEPS) /* one more, which others may be ahead in */
        return TSR_OK;
    w->program = tsr_plan_program(s->plan, w->state, ends ? end : first);
    if (!w->program && !ends)
        w->program = tsr_plan_program(s->plan, w->state, next);
    if (!w->program)
        return tsr_fail(TSR_EINTERNAL, "simulation: %s cannot follow in state %d of the plan",
                        tsr_program_name(ends ? end : first), w->state);
    return TSR_OK;
}

static tsr_status leave_program(simulator *s, walker *w)
{
    for (int i = 0; i < w->program->op_count; i++)
        for (int k = 0; k < w->program->op[i].record_count; k++)
            w->before[w->program->op[i].record[k]]++;
    w->state = w->program->exit;
    if (w->program->kind != TSR_PROGRAM_PROLOGUE && w->number++ == s->rounds) {
        w->number = 0;
        w->step++;
    }
    return enter_program(s, w);
}

/* The op that the stream is at; NULL at the end. */
static tsr_status find_op(const tsr_plan_op **out, simulator *s, int stream)
{
    walker *w = &s->stream[stream];
    while (w->program) {
        for (; w->next < w->program->op_count; w->next++)
            if (w->program->op[w->next].stream == stream) {
                *out = &w->program->op[w->next];
                return TSR_OK;
            }
        TSR_TRY(leave_program(s, w));
    }
    *out = NULL;
    return TSR_OK;
}

/* ---- waits ---- */

static bool may_begin(const simulator *s, const walker *w, const tsr_plan_op *op)
{
    for (int i = 0; i < op->wait_count; i++)
        if (s->recorded[op->wait[i].event] < w->before[op->wait[i].event] + op->wait[i].count)
            return false;
    return true;
}

static double between(double low, double value, double high)
{
    return value < low ? low : value > high ? high : value;
}

/* Compute stood waiting for an event from `from` until `until`. A gather that itself stood waiting for the
 * update, or for its stage, passes that part on. */
static void blame(simulator *s, const tsr_plan_op *op, int event, double from, double until)
{
    tsr_wait_cause cause = tsr_event_cause(event);
    double *exposed = s->sum.exposed;
    if (cause == TSR_CAUSE_GATHER) {
        int part = op->unit < 0 ? 0 : tsr_plan_unit_part(s->plan, op->unit);
        double updated = between(from, s->at[TSR_EVENT_OPTIMIZED + part], until);
        exposed[TSR_CAUSE_OTHER] += updated - from;
        from = updated;
    }
    if (cause == TSR_CAUSE_GATHER && op->slot >= 0) {
        double begin = between(from, s->staged[op->slot][0], until);
        double end = between(begin, s->staged[op->slot][1], until);
        exposed[TSR_CAUSE_H2D] += end - begin;
        from += end - begin;
    }
    exposed[cause] += until - from;
}

static void waited(simulator *s, const walker *w, const tsr_plan_op *op)
{
    double from = w->idle_since, slot = from;
    for (int i = 0; i < op->wait_count; i++) {
        int event = op->wait[i].event;
        double until = s->at[event];
        if (op->kind == TSR_OP_GATHER && until > slot && event != TSR_EVENT_FILLED + op->stage)
            slot = until;
        if (op->stream == TSR_STREAM_COMPUTE && until > from) {
            blame(s, op, event, from, until);
            from = until;
        }
    }
    if (op->kind == TSR_OP_GATHER) {
        s->staged[op->slot][0] = slot;
        s->staged[op->slot][1] = s->now;
    }
}

/* ---- time ---- */

/* Begins what can begin; how many streams are at work. */
static tsr_status begin_ops(int *active, simulator *s)
{
    *active = 0;
    for (int stream = 0; stream < TSR_STREAM_COUNT; stream++) {
        walker *w = &s->stream[stream];
        const tsr_plan_op *op = NULL;
        if (!w->active)
            TSR_TRY(find_op(&op, s, stream));
        if (op && may_begin(s, w, op)) {
            tsr_op_cost cost = s->cost(s->user, op);
            waited(s, w, op);
            s->sum.exposed[TSR_CAUSE_EXCHANGE] += cost.waits;
            w->active = true;
            w->left = cost.seconds;
            w->slows = cost.slows;
        }
        *active += w->active;
    }
    return TSR_OK;
}

/* The other stream whose copies go over the same link in the same direction; itself: none. */
static int beside(int stream)
{
    switch (stream) {
    case TSR_STREAM_H2D:
        return TSR_STREAM_STATE_IN;
    case TSR_STREAM_STATE_IN:
        return TSR_STREAM_H2D;
    case TSR_STREAM_D2H:
        return TSR_STREAM_STATE_OUT;
    case TSR_STREAM_STATE_OUT:
        return TSR_STREAM_D2H;
    default:
        return stream;
    }
}

/* Of a stream that copies: two at once have half of the link each. */
static double speed_of(const simulator *s, int stream)
{
    int other = beside(stream);
    return other != stream && s->stream[other].active ? 0.5 : 1;
}

static double speed_of_compute(const simulator *s)
{
    double speed = 1;
    for (int stream = 0; stream < TSR_STREAM_COUNT; stream++)
        if (stream != TSR_STREAM_COMPUTE && s->stream[stream].active)
            speed -= s->stream[stream].slows * speed_of(s, stream);
    return speed > LEAST_SPEED ? speed : LEAST_SPEED;
}

static void end_op(simulator *s, int stream)
{
    walker *w = &s->stream[stream];
    const tsr_plan_op *op = &w->program->op[w->next++];
    w->active = false;
    w->idle_since = s->now;
    for (int i = 0; i < op->record_count; i++) {
        s->recorded[op->record[i]]++;
        s->at[op->record[i]] = s->now;
    }
    s->ended += op->kind == TSR_OP_WORD;
}

/* Until the first op ends: that one, and those that end with it. */
static void advance(simulator *s)
{
    double speed[TSR_STREAM_COUNT], least = 1e300;
    for (int i = 0; i < TSR_STREAM_COUNT; i++) {
        walker *w = &s->stream[i];
        speed[i] = i == TSR_STREAM_COMPUTE ? speed_of_compute(s) : speed_of(s, i);
        if (w->active && w->left / speed[i] < least)
            least = w->left / speed[i];
    }
    s->now += least;
    bool ends[TSR_STREAM_COUNT];
    for (int i = 0; i < TSR_STREAM_COUNT; i++) {
        walker *w = &s->stream[i];
        ends[i] = w->active && w->left / speed[i] <= least;
        w->left -= least * speed[i];
        s->sum.busy[i] += w->active ? least : 0;
    }
    if (s->stream[TSR_STREAM_COMPUTE].active)
        s->sum.slowed += least * (1 - speed[TSR_STREAM_COMPUTE]);
    for (int i = 0; i < TSR_STREAM_COUNT; i++)
        if (ends[i])
            end_op(s, i);
}

static tsr_simulation per_step(const tsr_simulation *sum)
{
    tsr_simulation one = {.step = sum->step / STEPS, .slowed = sum->slowed / STEPS};
    for (int i = 0; i < TSR_STREAM_COUNT; i++)
        one.busy[i] = sum->busy[i] / STEPS;
    for (int i = 0; i < TSR_CAUSE_COUNT; i++)
        one.exposed[i] = sum->exposed[i] / STEPS;
    return one;
}

static tsr_status simulate(tsr_simulation *out, const tsr_plan *plan, int64_t rounds,
                           tsr_op_cost_call *cost, void *user)
{
    simulator s = {.plan = plan, .cost = cost, .user = user, .rounds = rounds};
    double begin = 0;
    for (int stream = 0; stream < TSR_STREAM_COUNT; stream++)
        s.stream[stream].program = tsr_plan_program(plan, 0, TSR_PROGRAM_PROLOGUE);
    while (s.ended < STEPS_BEFORE + STEPS) {
        int active;
        int64_t ended = s.ended;
        TSR_TRY(begin_ops(&active, &s));
        if (active == 0)
            return tsr_fail(TSR_EINTERNAL, "simulation: no operation of the plan can begin");
        advance(&s);
        if (ended < STEPS_BEFORE && s.ended == STEPS_BEFORE) {
            begin = s.now;
            s.sum = (tsr_simulation){0};
        }
    }
    s.sum.step = s.now - begin;
    *out = per_step(&s.sum);
    return TSR_OK;
}

/* What `more` further rounds add to *s, which has MOST_ROUNDS of them; *half has half as many. */
static void extend(tsr_simulation *s, const tsr_simulation *half, int64_t more)
{
    double share = (double)more / (MOST_ROUNDS - MOST_ROUNDS / 2);
    s->step += share * (s->step - half->step);
    s->slowed += share * (s->slowed - half->slowed);
    for (int i = 0; i < TSR_STREAM_COUNT; i++)
        s->busy[i] += share * (s->busy[i] - half->busy[i]);
    for (int i = 0; i < TSR_CAUSE_COUNT; i++)
        s->exposed[i] += share * (s->exposed[i] - half->exposed[i]);
}

tsr_status tsr_plan_simulate(tsr_simulation *out, const tsr_plan *plan, int64_t rounds,
                             tsr_op_cost_call *cost, void *user)
{
    tsr_simulation half;
    if (rounds <= MOST_ROUNDS)
        return simulate(out, plan, rounds, cost, user);
    TSR_TRY(simulate(&half, plan, MOST_ROUNDS / 2, cost, user));
    TSR_TRY(simulate(out, plan, MOST_ROUNDS, cost, user));
    extend(out, &half, rounds - MOST_ROUNDS);
    return TSR_OK;
}
