#include "shard/simulate.h"

#define STEPS_BEFORE 2 /* until everything runs in */
#define STEPS        4 /* that are averaged: what is in the slots may take turns */

/* Ops of one stream that a later one of compute may still run beside. Far fewer are ever ahead. */
#define RECENT 32

typedef struct {
    double begin, end, slows;
} interval;

typedef struct {
    const tsr_plan *plan;
    tsr_op_cost_call *cost;
    void *user;
    int state;
    double free[TSR_STREAM_COUNT];    /* when the stream has done all of its ops so far */
    double recorded[TSR_EVENT_COUNT]; /* when the latest record happened */
    interval staged[TSR_SLOTS_MAX];   /* what fills the slot stood waiting for its stage */
    interval recent[TSR_STREAM_COUNT][RECENT];
    unsigned count[TSR_STREAM_COUNT];
    tsr_simulation sum;
} simulator;

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static double overlap(double begin, double end, interval with)
{
    double low = larger(begin, with.begin), high = end < with.end ? end : with.end;
    return high > low ? high - low : 0;
}

/* ---- waits ---- */

/* Compute stood waiting for `event` from `from` on. A gather that itself stood waiting for its stage,
 * or for the update, passes that part on. */
static void blame(simulator *s, const tsr_plan_op *op, int event, double from)
{
    double until = s->recorded[event];
    tsr_wait_cause cause = tsr_event_cause(event);
    if (until <= from)
        return;
    if (cause == TSR_CAUSE_GATHER) {
        double update = overlap(from, until, (interval){0, s->recorded[TSR_EVENT_OPTIMIZED], 0});
        from += update;
        double copy = overlap(from, until, s->staged[op->slot]);
        s->sum.exposed[TSR_CAUSE_OTHER] += update;
        s->sum.exposed[TSR_CAUSE_H2D] += copy;
        from += copy;
    }
    s->sum.exposed[cause] += until - from;
}

/* When the op may begin. A wait is always for the latest record (tsr_plan_compile; the executor
 * checks it). */
static double begin_of(simulator *s, const tsr_plan_op *op)
{
    double begin = s->free[op->stream], staged = begin;
    for (int i = 0; i < op->wait_count; i++) {
        int event = op->wait[i].event;
        if (op->stream == TSR_STREAM_COMPUTE)
            blame(s, op, event, begin);
        if (op->stage < 0 || event != TSR_EVENT_FILLED + op->stage)
            staged = larger(staged, s->recorded[event]);
        begin = larger(begin, s->recorded[event]);
    }
    if (op->kind == TSR_OP_GATHER)
        s->staged[op->slot] = (interval){staged, begin, 0};
    return begin;
}

/* ---- computation beside others ---- */

/* What others take of compute's speed at `time`, and how long it stays so. */
static double slowdown_at(const simulator *s, double time, double *until)
{
    double slows = 0;
    for (int stream = 0; stream < TSR_STREAM_COUNT; stream++)
        for (int i = 0; stream != TSR_STREAM_COMPUTE && i < RECENT; i++) {
            const interval *r = &s->recent[stream][i];
            if (r->begin <= time && time < r->end)
                slows += r->slows;
            double next = time < r->begin ? r->begin : r->end;
            if (next > time && next < *until)
                *until = next;
        }
    return slows < 0.9 ? slows : 0.9;
}

/* When compute has done work of so many seconds. */
static double end_of_compute(const simulator *s, double begin, double seconds)
{
    double time = begin;
    for (;;) {
        double until = 1e300, speed = 1 - slowdown_at(s, time, &until);
        if (time + seconds / speed <= until)
            return time + seconds / speed;
        seconds -= (until - time) * speed;
        time = until;
    }
}

/* ---- programs ---- */

static void run_op(simulator *s, const tsr_plan_op *op)
{
    tsr_op_cost cost = s->cost(s->user, op);
    double begin = begin_of(s, op), end = begin + cost.seconds;
    if (op->stream == TSR_STREAM_COMPUTE) {
        end = end_of_compute(s, begin, cost.seconds);
        s->sum.slowed += end - begin - cost.seconds;
    } else if (end > begin && cost.slows > 0) {
        s->recent[op->stream][s->count[op->stream]++ % RECENT] = (interval){begin, end, cost.slows};
    }
    s->free[op->stream] = end;
    s->sum.busy[op->stream] += end - begin;
    for (int i = 0; i < op->record_count; i++)
        s->recorded[op->record[i]] = end;
}

/* Runs the first of two programs that may follow. */
static tsr_status run_program(simulator *s, tsr_program_kind kind, tsr_program_kind otherwise)
{
    const tsr_program *program = tsr_plan_program(s->plan, s->state, kind);
    if (!program)
        program = tsr_plan_program(s->plan, s->state, otherwise);
    if (!program)
        return tsr_fail(TSR_EINTERNAL, "simulation: %s cannot follow in state %d of the plan",
                        tsr_program_name(kind), s->state);
    for (int i = 0; i < program->op_count; i++)
        run_op(s, &program->op[i]);
    s->state = program->exit;
    return TSR_OK;
}

static tsr_status run_step(simulator *s, int64_t rounds)
{
    bool train = s->plan->options.train;
    for (int64_t i = 0; i < rounds; i++)
        TSR_TRY(train ? run_program(s, TSR_PROGRAM_TRAIN_FIRST, TSR_PROGRAM_TRAIN_NEXT)
                      : run_program(s, TSR_PROGRAM_EVAL_FIRST, TSR_PROGRAM_EVAL_NEXT));
    tsr_program_kind end = train ? TSR_PROGRAM_STEP_END : TSR_PROGRAM_EVAL_END;
    return run_program(s, end, end);
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

tsr_status tsr_plan_simulate(tsr_simulation *out, const tsr_plan *plan, int64_t rounds,
                             tsr_op_cost_call *cost, void *user)
{
    simulator s = {.plan = plan, .cost = cost, .user = user};
    double begin = 0;
    TSR_TRY(run_program(&s, TSR_PROGRAM_PROLOGUE, TSR_PROGRAM_PROLOGUE));
    for (int step = 0; step < STEPS_BEFORE + STEPS; step++) {
        if (step == STEPS_BEFORE) {
            begin = s.recorded[TSR_EVENT_WORDED];
            s.sum = (tsr_simulation){0};
        }
        TSR_TRY(run_step(&s, rounds));
    }
    s.sum.step = s.recorded[TSR_EVENT_WORDED] - begin;
    *out = per_step(&s.sum);
    return TSR_OK;
}
