/*
 * executor_marks.c: times of places in the streams, for exposed time and for the trace.
 *
 * On the CPU a mark is a call of the stream, which takes the time there. On a GPU a call would halt
 * the stream, so a mark records a timed event, and the host reads it later: the waits of a step
 * before the word of that step, which the device reaches after them, so that reading costs the step
 * nothing; the others when their place in the ring is wanted again. Marks are read in the order in
 * which they were placed, so what a mark says of those before it is the same either way.
 *
 * A timed event costs the host about a microsecond to record and two to read, the stream about one.
 * A step of 32 sharded layers has some 300.
 */
#include "base/clock.h"
#include "shard/executor_parts.h"

#include <stdlib.h>

/* More than a GPU's driver lets a stream have under way, so the ring is full only where many works
 * are queued behind the oldest mark: waiting for it starves nothing. */
#define MARKS 2048
/* Events of a stream that is not compute. */
#define FEW_MARKS 512

/* ---- what a mark's time says ---- */

static void log_append(tsr_executor *executor, const tsr_op_record *what, double start, double end)
{
    if (what->step < 0 || !executor->log)
        return;
    tsr_op_record record = *what;
    record.start = start;
    record.end = end;
    pthread_mutex_lock(&executor->log_lock);
    executor->log[executor->log_count++ % executor->options.log_count] = record;
    pthread_mutex_unlock(&executor->log_lock);
}

static void add_exposed(const tsr_mark *mark, tsr_wait_cause cause, double from, double to)
{
    tsr_op_record record = mark->record;
    if (!(to > from))
        return;
    atomic_fetch_add(&mark->executor->exposed_ns[cause], (uint64_t)((to - from) * 1e9));
    record.name = tsr_cause_name(cause);
    record.bytes = 0;
    log_append(mark->executor, &record, from, to);
}

static double between(double low, double value, double high)
{
    return value < low ? low : value > high ? high : value;
}

/* A gather that stood waiting for its stage passes that part of the blame on to the copy. */
static void waited(const tsr_mark *mark, double now)
{
    tsr_executor *executor = mark->executor;
    double from = executor->wait_start, begin = now, end = now;
    if (mark->cause == TSR_CAUSE_GATHER && mark->slot >= 0) {
        begin = between(from, executor->stage_wait[mark->slot][0], now);
        end = between(begin, executor->stage_wait[mark->slot][1], now);
    }
    add_exposed(mark, mark->cause, from, begin);
    add_exposed(mark, TSR_CAUSE_H2D, begin, end);
    add_exposed(mark, mark->cause, end, now);
    executor->wait_start = now;
}

static void reached(const tsr_mark *mark, double now)
{
    tsr_executor *executor = mark->executor;
    const tsr_op_record *record = &mark->record;
    double *began = &executor->began[record->stream][record->type == TSR_RECORD_KERNEL];
    switch (mark->kind) {
    case TSR_MARK_WAIT:
        executor->wait_start = now;
        break;
    case TSR_MARK_WAITED:
        waited(mark, now);
        break;
    case TSR_MARK_STAGE:
        executor->stage_wait_start = now;
        break;
    case TSR_MARK_STAGED:
        executor->stage_wait[mark->slot][0] = executor->stage_wait_start;
        executor->stage_wait[mark->slot][1] = now;
        break;
    case TSR_MARK_BEGIN:
        *began = now;
        break;
    case TSR_MARK_END:
        log_append(executor, record, *began, now);
        break;
    }
}

/* ---- marks that are calls ---- */

static tsr_status mark_call(void *args, tsr_pool *pool)
{
    (void)pool;
    reached(args, tsr_now());
    return TSR_OK;
}

_Static_assert(sizeof(tsr_mark) <= TSR_CALL_BYTES, "a mark fits a stream's argument");

/* ---- marks that are timed events ---- */

/* The oldest. Its event has no later record: it is used again only after this. */
static tsr_status read_one(tsr_executor *executor)
{
    const tsr_mark *mark = &executor->mark[executor->marks_read % MARKS];
    tsr_mark_timer *timer = &executor->timer[mark->record.stream];
    TSR_TRY(tsr_event_wait_host(mark->event, tsr_event_recorded(mark->event)));
    /* Between two settings of a GPU's clock times may fall back by a little. */
    double now = tsr_event_time(mark->event);
    timer->last = now > timer->last ? now : timer->last;
    timer->read++;
    executor->marks_read++;
    reached(mark, timer->last);
    return TSR_OK;
}

tsr_status tsr_marks_read(tsr_executor *executor, uint64_t until)
{
    while (executor->marks_read < until)
        TSR_TRY(read_one(executor));
    return TSR_OK;
}

tsr_status tsr_mark_place(tsr_executor *executor, const tsr_mark *mark)
{
    tsr_stream_id id = (tsr_stream_id)mark->record.stream;
    tsr_stream *stream = executor->options.streams->stream[id];
    if (!executor->timed)
        return tsr_stream_call(stream, mark_call, mark, sizeof *mark);
    tsr_mark_timer *timer = &executor->timer[id];
    while (executor->marks_made - executor->marks_read == MARKS ||
           timer->made - timer->read == timer->count)
        TSR_TRY(read_one(executor));
    tsr_event *event = timer->event[timer->made % timer->count];
    TSR_TRY(tsr_event_record(event, stream));
    tsr_mark *kept = &executor->mark[executor->marks_made++ % MARKS];
    *kept = *mark;
    kept->event = event;
    timer->made++;
    if (mark->kind < TSR_MARK_BEGIN)
        executor->marks_waits = executor->marks_made;
    return TSR_OK;
}

/* ---- kernels ---- */

static tsr_status kernel_mark(tsr_executor *executor, tsr_mark_kind kind)
{
    return tsr_mark_place(executor, &(tsr_mark){.executor = executor,
                                                .kind = kind,
                                                .slot = -1,
                                                .record = executor->kernel_record});
}

static tsr_status kernel_begin(void *user, tsr_stream *stream, const char *name)
{
    tsr_executor *executor = user;
    const tsr_plan_op *op = executor->op;
    /* One of no stream of the plan's is not for the trace. */
    if (stream != executor->options.streams->stream[op->stream])
        return TSR_OK;
    executor->kernel_record = (tsr_op_record){.step = executor->trace_step,
                                              .type = TSR_RECORD_KERNEL,
                                              .kind = op->kind,
                                              .stream = op->stream,
                                              .phase = op->phase,
                                              .unit = op->unit,
                                              .op = op,
                                              .name = name,
                                              .issue = tsr_now()};
    return kernel_mark(executor, TSR_MARK_BEGIN);
}

static tsr_status kernel_end(void *user, tsr_stream *stream, const char *name)
{
    tsr_executor *executor = user;
    (void)name;
    if (stream != executor->options.streams->stream[executor->op->stream])
        return TSR_OK;
    return kernel_mark(executor, TSR_MARK_END);
}

/* ---- creation ---- */

static tsr_status make_timer(tsr_executor *executor, tsr_stream_id id, uint64_t count)
{
    tsr_mark_timer *timer = &executor->timer[id];
    timer->event = calloc(count + 1, sizeof *timer->event);
    if (!timer->event)
        return tsr_fail(TSR_ENOMEM, "no memory for %llu events", (unsigned long long)count);
    for (; timer->count < count; timer->count++)
        TSR_TRY(tsr_event_create_timed(&timer->event[timer->count], executor->options.device));
    return TSR_OK;
}

tsr_status tsr_marks_create(tsr_executor *executor)
{
    executor->watcher =
        (tsr_kernel_watcher){.begin = kernel_begin, .end = kernel_end, .user = executor};
    if (!executor->timed)
        return TSR_OK;
    executor->mark = calloc(MARKS, sizeof *executor->mark);
    if (!executor->mark)
        return tsr_fail(TSR_ENOMEM, "no memory for the marks of streams");
    for (int id = 0; id < TSR_STREAM_COUNT; id++) {
        bool compute = id == TSR_STREAM_COMPUTE;
        bool needed = compute || id == TSR_STREAM_COMM || executor->log;
        if (needed && executor->options.streams->stream[id])
            TSR_TRY(make_timer(executor, (tsr_stream_id)id, compute ? MARKS : FEW_MARKS));
    }
    return TSR_OK;
}

void tsr_marks_destroy(tsr_executor *executor)
{
    for (int id = 0; id < TSR_STREAM_COUNT; id++) {
        tsr_mark_timer *timer = &executor->timer[id];
        for (uint64_t i = 0; i < timer->count; i++)
            tsr_event_destroy(timer->event[i]);
        free(timer->event);
    }
    free(executor->mark);
}
