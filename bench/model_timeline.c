/*
 * model_timeline.c: what the time between the begins of two traced steps is spent on.
 *
 * The trace (job/trace.h) has each kernel of the compute stream between two timed events. From the
 * first kernel of a step to the first of the next, every moment is one of
 *
 *     kernel     between the events of a kernel, told by its name
 *     others     between two kernels, while other streams have one: at a step's end the optimizer's
 *     host       of the rest, until the host has issued the second
 *     wait       after that, while the compute stream waits for another one, told by the cause
 *     between    what is left: what the events themselves take, and a kernel's start
 *
 * so that these add up to the time. The other streams' kernels are also told by their names.
 * Events keep a kernel from coming in while the one before it ends, and cost the host and the stream
 * about a microsecond each: a traced step is longer than one that is not, which has less of "host" and
 * "between".
 */
#include "job/parts.h"
#include "model.h"
#include "shard/streams.h"

#include <stdlib.h>
#include <string.h>

#define MOST_ROWS 128

typedef struct {
    const char *kind, *name;
    double seconds;
    int64_t count;
} row;

typedef struct {
    row row[MOST_ROWS];
    int count, steps;
    double seconds; /* of the steps */
    /* Records of the steps, in the order of their begins. */
    const tsr_op_record **kernel, **wait, **other; /* other: streams' kernels */
    int64_t kernels, waits, others;
} timeline;

static void add(timeline *t, const char *kind, const char *name, double seconds)
{
    int i = 0;
    while (i < t->count && (strcmp(t->row[i].kind, kind) != 0 || strcmp(t->row[i].name, name) != 0))
        i++;
    if (i == t->count) {
        if (i == MOST_ROWS)
            return;
        t->row[t->count++] = (row){kind, name, 0, 0};
    }
    t->row[i].seconds += seconds;
    t->row[i].count++;
}

static int by_begin(const void *a, const void *b)
{
    const tsr_op_record *x = *(const tsr_op_record *const *)a;
    const tsr_op_record *y = *(const tsr_op_record *const *)b;
    return (x->start > y->start) - (x->start < y->start);
}

/* Of the time from `from` to `to`, what other streams have kernels in. */
static double covered(const timeline *t, double from, double to)
{
    double sum = 0;
    for (int64_t i = 0; i < t->others && t->other[i]->start < to; i++) {
        double begin = t->other[i]->start > from ? t->other[i]->start : from;
        double end = t->other[i]->end < to ? t->other[i]->end : to;
        if (end <= begin)
            continue;
        sum += end - begin;
        from = end;
    }
    return sum;
}

/* Between the end of a kernel and the begin of `next`. */
static void add_gap(timeline *t, double from, const tsr_op_record *next)
{
    double issue = next->issue < next->start ? next->issue : next->start;
    double host = issue > from ? issue - from - covered(t, from, issue) : 0, waits = 0;
    double others = covered(t, from, next->start), left = issue > from ? issue : from;
    for (int64_t i = 0; i < t->waits && t->wait[i]->start < next->start; i++) {
        double begin = t->wait[i]->start > left ? t->wait[i]->start : left;
        double end = t->wait[i]->end < next->start ? t->wait[i]->end : next->start;
        if (end <= begin)
            continue;
        double part = end - begin - covered(t, begin, end);
        add(t, "wait", t->wait[i]->name, part);
        waits += part;
    }
    if (others > 0)
        add(t, "others", "", others);
    if (host > 0)
        add(t, "host", "", host);
    add(t, "between", "", next->start - from - others - host - waits);
}

/* From the first kernel of step `first` to the first of step `last`. */
static void add_steps(timeline *t, int64_t first, int64_t last)
{
    double begin = 0, end = 0;
    for (int64_t i = 0; i < t->kernels; i++) {
        const tsr_op_record *r = t->kernel[i];
        if (r->step < first)
            continue;
        if (end > 0)
            add_gap(t, end, r);
        else
            begin = r->start;
        end = r->end;
        if (r->step == last) {
            t->seconds = r->start - begin;
            break;
        }
        add(t, "kernel", r->name, r->end - r->start);
    }
    t->steps = (int)(last - first);
}

static void add_others(timeline *t, int64_t first, int64_t last)
{
    for (int64_t i = 0; i < t->others; i++) {
        const tsr_op_record *r = t->other[i];
        if (r->step >= first && r->step < last)
            add(t, tsr_stream_id_name((tsr_stream_id)r->stream), r->name, r->end - r->start);
    }
}

/* Kernels, and the compute stream's waits; the first and the last step of which all is there. */
static int collect(timeline *t, tsr_job *job, int64_t *first, int64_t *last)
{
    uint64_t count = 0;
    tsr_executor_log(job->executor, 0, &count);
    t->kernel = calloc(count + 1, sizeof *t->kernel);
    t->wait = calloc(count + 1, sizeof *t->wait);
    t->other = calloc(count + 1, sizeof *t->other);
    if (!t->kernel || !t->wait || !t->other)
        return -1;
    *last = 0;
    for (uint64_t i = 0; i < count; i++) {
        const tsr_op_record *r = tsr_executor_log(job->executor, i, &count);
        *last = r->step > *last ? r->step : *last;
        if (r->type == TSR_RECORD_EXPOSED)
            t->wait[t->waits++] = r;
        else if (r->type == TSR_RECORD_KERNEL && r->stream == TSR_STREAM_COMPUTE)
            t->kernel[t->kernels++] = r;
        else if (r->type == TSR_RECORD_KERNEL)
            t->other[t->others++] = r;
    }
    qsort(t->kernel, (size_t)t->kernels, sizeof *t->kernel, by_begin);
    qsort(t->wait, (size_t)t->waits, sizeof *t->wait, by_begin);
    qsort(t->other, (size_t)t->others, sizeof *t->other, by_begin);
    *first = *last - TSR_TRACE_STEPS + 1;
    return *first > 0 && t->kernels > 0 ? 0 : -1;
}

static int by_time(const void *a, const void *b)
{
    const row *x = a, *y = b;
    int kinds = strcmp(x->kind, y->kind);
    return kinds ? kinds : (x->seconds < y->seconds) - (x->seconds > y->seconds);
}

static json_t *write_rows(timeline *t)
{
    json_t *rows = json_array();
    double ms = 1e3 / t->steps, kernels = 0;
    qsort(t->row, (size_t)t->count, sizeof *t->row, by_time);
    for (int i = 0; i < t->count; i++) {
        const row *r = &t->row[i];
        kernels += strcmp(r->kind, "kernel") ? 0 : r->seconds;
        double times = (double)r->count / t->steps;
        json_array_append_new(rows, json_pack("{ss ss sf sf}", "kind", r->kind, "name", r->name,
                                              "times", times, "ms", ms * r->seconds));
    }
    return json_pack("{sf sf so}", "traced_step_ms", ms * t->seconds, "kernels_ms", ms * kernels,
                     "rows", rows);
}

json_t *bench_timeline(tsr_job *job)
{
    timeline t = {0};
    int64_t first, last;
    json_t *out = NULL;
    if (collect(&t, job, &first, &last) == 0) {
        add_steps(&t, first, last);
        add_others(&t, first, last);
        if (t.seconds > 0)
            out = write_rows(&t);
    }
    free(t.kernel);
    free(t.wait);
    free(t.other);
    return out;
}
