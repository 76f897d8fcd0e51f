#include "report/trace_read.h"

#include "base/auto.h"
#include "io/file.h"
#include "io/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_RANKS 65536
#define MOST_US    1e12 /* eleven days; nanoseconds of it are exact in a double */
#define MOST_BYTES ((int64_t)1 << 50)

typedef enum { OP, KERNEL, EXPOSED, TYPES } event_type;

/* Times in ns. */
typedef struct {
    event_type type;
    int rank, row;
    int64_t step;
    const char *name;
    double start, end;
} event;

typedef struct {
    const char *name;
    int rank;
    double time;
    size_t order; /* in the file */
    uint64_t planned, used;
    bool used_known;
} reading;

typedef struct {
    double begin, end;
} span;

typedef struct {
    const char *path;
    event *event;
    reading *reading;
    size_t event_count, reading_count;
    const char *row[TSR_TRACE_ROWS]; /* names */
    int compute;                     /* row */
    int rank_end;                    /* above all ranks */
    span *window;                    /* [rank_end]: of the step; begin > end: not there */
    span *busy[2];                   /* [event_count] */
    tsr_trace_sums *sums;
} reader;

/* ---- reading ---- */

static tsr_status read_time(double *out, const json_t *object, const char *key, const char *place)
{
    TSR_TRY(tsr_json_number(out, object, key, 0, MOST_US, place));
    *out = round(1e3 * *out);
    return TSR_OK;
}

static tsr_status read_rank(int *out, reader *r, const json_t *object, const char *place)
{
    int64_t rank = 0;
    TSR_TRY(tsr_json_int(&rank, object, "pid", 0, MOST_RANKS - 1, place));
    *out = (int)rank;
    r->rank_end = *out >= r->rank_end ? *out + 1 : r->rank_end;
    return TSR_OK;
}

static bool is(const json_t *object, const char *key, const char *text)
{
    const char *value = json_string_value(json_object_get(object, key));
    return value && strcmp(value, text) == 0;
}

/* The name of a row, the same on all ranks. */
static void read_row(reader *r, const json_t *object)
{
    const json_t *row = json_object_get(object, "tid");
    const char *name = json_string_value(json_object_get(json_object_get(object, "args"), "name"));
    if (!is(object, "name", "thread_name") || !json_is_integer(row) || !name)
        return;
    json_int_t at = json_integer_value(row);
    if (at >= 0 && at < TSR_TRACE_ROWS)
        r->row[at] = name;
}

static tsr_status read_event(reader *r, const json_t *object, const char *place)
{
    static const char *const types[TYPES] = {"op", "kernel", "exposed"};
    event e = {0};
    int64_t row = 0;
    double duration = 0;
    json_t *args;
    while (e.type < TYPES && !is(object, "cat", types[e.type]))
        e.type++;
    if (e.type == TYPES)
        return TSR_OK;
    TSR_TRY(tsr_json_string(&e.name, object, "name", place));
    TSR_TRY(read_rank(&e.rank, r, object, place));
    TSR_TRY(tsr_json_int(&row, object, "tid", 0, TSR_TRACE_ROWS - 1, place));
    TSR_TRY(read_time(&e.start, object, "ts", place));
    TSR_TRY(read_time(&duration, object, "dur", place));
    TSR_TRY(tsr_json_object(&args, object, "args", place));
    TSR_TRY(tsr_json_int(&e.step, args, "step", 0, INT64_MAX, place));
    e.row = (int)row;
    e.end = e.start + duration;
    r->event[r->event_count++] = e;
    return TSR_OK;
}

static tsr_status read_counter(reader *r, const json_t *object, const char *place)
{
    reading c = {.order = r->reading_count};
    int64_t planned = 0, used = 0;
    json_t *args;
    if (!is(object, "cat", "memory"))
        return TSR_OK;
    TSR_TRY(tsr_json_string(&c.name, object, "name", place));
    TSR_TRY(read_rank(&c.rank, r, object, place));
    TSR_TRY(read_time(&c.time, object, "ts", place));
    TSR_TRY(tsr_json_object(&args, object, "args", place));
    TSR_TRY(tsr_json_int(&planned, args, "planned", 0, MOST_BYTES, place));
    c.used_known = tsr_json_has(args, "used");
    if (c.used_known)
        TSR_TRY(tsr_json_int(&used, args, "used", 0, MOST_BYTES, place));
    c.planned = (uint64_t)planned;
    c.used = (uint64_t)used;
    r->reading[r->reading_count++] = c;
    return TSR_OK;
}

static tsr_status read_one(reader *r, const json_t *object, size_t number)
{
    char place[4200];
    snprintf(place, sizeof place, "%s: event %zu", r->path, number);
    if (!json_is_object(object))
        return tsr_fail(TSR_EDATA, "%s is %s, expected an object {...}", place,
                        tsr_json_kind(object));
    if (is(object, "ph", "X"))
        return read_event(r, object, place);
    if (is(object, "ph", "C"))
        return read_counter(r, object, place);
    if (is(object, "ph", "M"))
        read_row(r, object);
    return TSR_OK;
}

static tsr_status no_trace(const reader *r, const char *found)
{
    return tsr_fail(TSR_EDATA,
                    "%s: no trace of this program: %s; expected what the key trace has written: a "
                    "list of events, or an object with it as \"traceEvents\"",
                    r->path, found);
}

static tsr_status read_events(reader *r)
{
    const json_t *root = r->sums->root, *object;
    const json_t *all = json_is_object(root) ? json_object_get(root, "traceEvents") : root;
    size_t count = json_array_size(all), i;
    if (!json_is_array(all))
        return no_trace(r, json_is_object(root) ? "it has no list \"traceEvents\""
                                                : "it is neither a list nor an object");
    r->event = calloc(count + 1, sizeof *r->event);
    r->reading = calloc(count + 1, sizeof *r->reading);
    if (!r->event || !r->reading)
        return tsr_fail(TSR_ENOMEM, "%s: out of memory", r->path);
    json_array_foreach(all, i, object) TSR_TRY(read_one(r, object, i));
    return TSR_OK;
}

/* ---- the step ---- */

static int by_row_and_start(const void *left, const void *right)
{
    const event *a = left, *b = right;
    if (a->rank != b->rank)
        return a->rank < b->rank ? -1 : 1;
    if (a->row != b->row)
        return a->row < b->row ? -1 : 1;
    return (a->start > b->start) - (a->start < b->start);
}

static tsr_status find_step(reader *r)
{
    tsr_trace_sums *sums = r->sums;
    sums->step = -1;
    for (size_t i = 0; i < r->event_count; i++) {
        const event *e = &r->event[i];
        if (e->type != OP)
            continue;
        if (!r->row[e->row])
            return tsr_fail(
                TSR_EDATA,
                "%s: row %d has operations, but no \"thread_name\" says which stream it "
                "is",
                r->path, e->row);
        sums->step = e->step > sums->step ? e->step : sums->step;
    }
    if (sums->step < 0)
        return no_trace(r, "no event of it is an operation (\"cat\": \"op\")");
    while (r->compute < TSR_TRACE_ROWS &&
           !(r->row[r->compute] && strcmp(r->row[r->compute], "compute") == 0))
        r->compute++;
    if (r->compute == TSR_TRACE_ROWS)
        return no_trace(r, "no row of it is named \"compute\"");
    return TSR_OK;
}

static tsr_status find_windows(reader *r)
{
    tsr_trace_sums *sums = r->sums;
    r->window = calloc((size_t)r->rank_end + 1, sizeof *r->window);
    r->busy[0] = calloc(r->event_count + 1, sizeof *r->busy[0]);
    r->busy[1] = calloc(r->event_count + 1, sizeof *r->busy[1]);
    if (!r->window || !r->busy[0] || !r->busy[1])
        return tsr_fail(TSR_ENOMEM, "%s: out of memory", r->path);
    for (int rank = 0; rank < r->rank_end; rank++)
        r->window[rank] = (span){INFINITY, -INFINITY};
    for (size_t i = 0; i < r->event_count; i++) {
        const event *e = &r->event[i];
        span *w = &r->window[e->rank];
        if (e->step != sums->step)
            continue;
        w->begin = fmin(w->begin, e->start);
        w->end = fmax(w->end, e->end);
    }
    for (int rank = 0; rank < r->rank_end; rank++) {
        const span *w = &r->window[rank];
        sums->ranks += w->begin <= w->end;
        sums->time += w->begin <= w->end ? 1e-9 * (w->end - w->begin) : 0;
    }
    sums->time /= sums->ranks;
    return TSR_OK;
}

/* ---- streams ---- */

/* Where operations of one stream run inside the window: `events` are its own, by their start. */
static size_t find_busy(span *out, const event *events, size_t count, span window)
{
    size_t spans = 0;
    for (size_t i = 0; i < count; i++) {
        const event *e = &events[i];
        span s = {fmax(e->start, window.begin), fmin(e->end, window.end)};
        if (e->type != OP || !(s.begin < s.end))
            continue;
        if (spans > 0 && s.begin <= out[spans - 1].end)
            out[spans - 1].end = fmax(out[spans - 1].end, s.end);
        else
            out[spans++] = s;
    }
    return spans;
}

static double length(const span *spans, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += spans[i].end - spans[i].begin;
    return sum;
}

/* The time in both. */
static double overlap(const span *a, size_t a_count, const span *b, size_t b_count)
{
    double sum = 0;
    for (size_t i = 0, j = 0; i < a_count && j < b_count;) {
        double both = fmin(a[i].end, b[j].end) - fmax(a[i].begin, b[j].begin);
        sum += both > 0 ? both : 0;
        if (a[i].end < b[j].end)
            i++;
        else
            j++;
    }
    return sum;
}

/* Adds a stream of one rank; compute's spans are busy[0]. */
static void add_stream(reader *r, size_t compute_spans, const event *events, size_t count)
{
    tsr_trace_sums *sums = r->sums;
    tsr_trace_time *stream = &sums->stream[events->row];
    size_t spans = find_busy(r->busy[1], events, count, r->window[events->rank]);
    double busy = length(r->busy[1], spans);
    double exposed = 1e-9 * (busy - overlap(r->busy[0], compute_spans, r->busy[1], spans));
    stream->time += 1e-9 * busy / sums->ranks;
    stream->exposed += exposed / sums->ranks;
    if (exposed > stream->exposed_most) {
        stream->exposed_most = exposed;
        stream->exposed_rank = events->rank;
    }
}

/* Events [first, end) of one rank. */
static void add_rank(reader *r, size_t first, size_t end)
{
    const event *e = r->event;
    span window = r->window[e[first].rank];
    size_t begin = first, spans = 0;
    if (window.begin > window.end)
        return;
    for (size_t i = first; i < end; i = begin) {
        for (begin = i; begin < end && e[begin].row == e[i].row; begin++)
            ;
        if (e[i].row == r->compute)
            spans = find_busy(r->busy[0], e + i, begin - i, window);
    }
    double idle = window.end - window.begin - length(r->busy[0], spans);
    r->sums->idle += 1e-9 * idle / r->sums->ranks;
    for (size_t i = first; i < end; i = begin) {
        for (begin = i; begin < end && e[begin].row == e[i].row; begin++)
            ;
        add_stream(r, spans, e + i, begin - i);
    }
}

static tsr_status sum_streams(reader *r)
{
    tsr_trace_sums *sums = r->sums;
    sums->stream = calloc(TSR_TRACE_ROWS, sizeof *sums->stream);
    if (!sums->stream)
        return tsr_fail(TSR_ENOMEM, "%s: out of memory", r->path);
    qsort(r->event, r->event_count, sizeof *r->event, by_row_and_start);
    for (size_t i = 0, end; i < r->event_count; i = end) {
        for (end = i; end < r->event_count && r->event[end].rank == r->event[i].rank; end++)
            ;
        add_rank(r, i, end);
    }
    for (int row = 0; row < TSR_TRACE_ROWS; row++) {
        tsr_trace_time stream = sums->stream[row];
        stream.name = r->row[row];
        if (stream.time > 0)
            sums->stream[sums->stream_count++] = stream;
    }
    return TSR_OK;
}

/* ---- kernels and waits ---- */

static int by_type_and_name(const void *left, const void *right)
{
    const event *a = left, *b = right;
    return a->type != b->type ? (a->type < b->type ? -1 : 1) : strcmp(a->name, b->name);
}

static int longest_first(const void *left, const void *right)
{
    const tsr_trace_time *a = left, *b = right;
    if (a->time != b->time)
        return a->time > b->time ? -1 : 1;
    return strcmp(a->name, b->name);
}

/* Those of one type in the step, by name; the events are sorted by type and name. */
static tsr_status sum_names(tsr_trace_time **out, uint64_t *count, const reader *r, event_type type)
{
    double ranks = r->sums->ranks;
    tsr_trace_time *row = calloc(r->event_count + 1, sizeof *row), *last = NULL;
    if (!row)
        return tsr_fail(TSR_ENOMEM, "%s: out of memory", r->path);
    for (size_t i = 0; i < r->event_count; i++) {
        const event *e = &r->event[i];
        if (e->type != type || e->step != r->sums->step)
            continue;
        if (!last || strcmp(last->name, e->name) != 0) {
            last = &row[(*count)++];
            last->name = e->name;
        }
        last->count++;
        last->time += e->end - e->start;
    }
    for (uint64_t i = 0; i < *count; i++) {
        row[i].count /= ranks;
        row[i].time *= 1e-9 / ranks;
    }
    qsort(row, *count, sizeof *row, longest_first);
    *out = row;
    return TSR_OK;
}

/* ---- memory ---- */

static int by_counter_and_time(const void *left, const void *right)
{
    const reading *a = left, *b = right;
    int order = strcmp(a->name, b->name);
    if (order != 0)
        return order;
    if (a->rank != b->rank)
        return a->rank < b->rank ? -1 : 1;
    if (a->time != b->time)
        return a->time < b->time ? -1 : 1;
    return a->order < b->order ? -1 : 1;
}

static int largest_first(const void *left, const void *right)
{
    const tsr_trace_peak *a = left, *b = right;
    uint64_t of_a = a->used_known ? a->used_bytes : a->planned_bytes;
    uint64_t of_b = b->used_known ? b->used_bytes : b->planned_bytes;
    if (of_a != of_b)
        return of_a > of_b ? -1 : 1;
    return strcmp(a->name, b->name);
}

/* What a counter says until the next one of its rank; whether any of that is in the step. */
static bool counts(const reader *r, size_t i)
{
    const reading *c = &r->reading[i], *next = c + 1;
    span window = r->window[c->rank];
    bool last = i + 1 == r->reading_count || next->rank != c->rank || strcmp(next->name, c->name);
    return window.begin <= window.end && c->time <= window.end &&
           (last || next->time > window.begin);
}

static tsr_status find_peaks(reader *r)
{
    tsr_trace_sums *sums = r->sums;
    tsr_trace_peak *peak = NULL;
    sums->peak = calloc(r->reading_count + 1, sizeof *sums->peak);
    if (!sums->peak)
        return tsr_fail(TSR_ENOMEM, "%s: out of memory", r->path);
    qsort(r->reading, r->reading_count, sizeof *r->reading, by_counter_and_time);
    for (size_t i = 0; i < r->reading_count; i++) {
        const reading *c = &r->reading[i];
        if (!counts(r, i))
            continue;
        if (!peak || strcmp(peak->name, c->name) != 0) {
            peak = &sums->peak[sums->peak_count++];
            peak->name = c->name;
        }
        peak->used_known |= c->used_known;
        peak->used_bytes = c->used > peak->used_bytes ? c->used : peak->used_bytes;
        peak->planned_bytes = c->planned > peak->planned_bytes ? c->planned : peak->planned_bytes;
    }
    qsort(sums->peak, sums->peak_count, sizeof *sums->peak, largest_first);
    return TSR_OK;
}

/* ---- all of it ---- */

static tsr_status load(json_t **out, const char *path)
{
    TSR_AUTO_FREE char *text = NULL;
    uint64_t bytes;
    TSR_TRY(tsr_file_read(&text, &bytes, path, TSR_TRACE_FILE_BYTES));
    return tsr_json_parse(out, text, bytes, path);
}

static tsr_status sum_up(reader *r)
{
    tsr_trace_sums *sums = r->sums;
    TSR_TRY(load(&sums->root, r->path));
    TSR_TRY(read_events(r));
    TSR_TRY(find_step(r));
    TSR_TRY(find_windows(r));
    TSR_TRY(sum_streams(r));
    qsort(r->event, r->event_count, sizeof *r->event, by_type_and_name);
    TSR_TRY(sum_names(&sums->kernel, &sums->kernel_count, r, KERNEL));
    TSR_TRY(sum_names(&sums->wait, &sums->wait_count, r, EXPOSED));
    for (uint64_t i = 0; i < sums->kernel_count; i++)
        sums->kernel_time += sums->kernel[i].time;
    return find_peaks(r);
}

tsr_status tsr_trace_sums_read(tsr_trace_sums *out, const char *path)
{
    tsr_trace_sums sums = {0};
    reader r = {.path = path, .sums = &sums};
    tsr_status status = sum_up(&r);
    free(r.event);
    free(r.reading);
    free(r.window);
    free(r.busy[0]);
    free(r.busy[1]);
    if (status < 0)
        tsr_trace_sums_free(&sums);
    else
        *out = sums;
    return status;
}

void tsr_trace_sums_free(tsr_trace_sums *sums)
{
    json_decref(sums->root);
    free(sums->stream);
    free(sums->wait);
    free(sums->kernel);
    free(sums->peak);
    *sums = (tsr_trace_sums){0};
}
