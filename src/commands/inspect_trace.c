/*
 * inspect_trace.c: what a file of the key `trace` says of one step, and what differs between two.
 */
#include "commands/inspect.h"

#include "report/trace_read.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LONGEST_KERNELS 10

bool tsr_inspect_is_trace(const char *path)
{
    size_t length = strlen(path), end = sizeof ".json" - 1;
    if (length > end && strcmp(path + length - end, ".json") == 0)
        return true;
    char head[8]; /* of a safetensors file a small number: no text */
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t bytes = file < 0 ? 0 : read(file, head, sizeof head);
    if (file >= 0)
        close(file);
    return bytes > 0 && (head[0] == '[' || head[0] == '{') && !memchr(head, 0, (size_t)bytes);
}

/* ---- one ---- */

static void add_step(json_t *report, const tsr_trace_sums *s)
{
    tsr_report_int(report, "step", (uint64_t)s->step);
    tsr_report_int(report, "ranks", (uint64_t)s->ranks);
    tsr_report_real(report, "step_ms", 1e3 * s->time);
    tsr_report_real(report, "compute_idle_ms", 1e3 * s->idle);
}

static void add_streams(json_t *report, const tsr_trace_sums *s)
{
    json_t *rows = tsr_report_array(report, "streams");
    for (uint64_t i = 0; i < s->stream_count; i++) {
        const tsr_trace_time *stream = &s->stream[i];
        json_t *row = tsr_report_row(rows);
        tsr_report_string(row, "stream", stream->name);
        tsr_report_real(row, "busy_ms", 1e3 * stream->time);
        tsr_report_real(row, "exposed_ms", 1e3 * stream->exposed);
        if (s->ranks < 2)
            continue;
        tsr_report_real(row, "most_exposed_ms", 1e3 * stream->exposed_most);
        tsr_report_int(row, "of_rank", (uint64_t)stream->exposed_rank);
    }
    rows = tsr_report_array(report, "waits");
    for (uint64_t i = 0; i < s->wait_count; i++) {
        json_t *row = tsr_report_row(rows);
        tsr_report_string(row, "compute_waits_for", s->wait[i].name);
        tsr_report_real(row, "ms", 1e3 * s->wait[i].time);
    }
}

static void add_kernels(json_t *report, const tsr_trace_sums *s)
{
    json_t *rows = tsr_report_array(report, "kernels");
    for (uint64_t i = 0; i < s->kernel_count && i < LONGEST_KERNELS; i++) {
        const tsr_trace_time *kernel = &s->kernel[i];
        json_t *row = tsr_report_row(rows);
        tsr_report_string(row, "kernel", kernel->name);
        tsr_report_real(row, "count", kernel->count);
        tsr_report_real(row, "total_ms", 1e3 * kernel->time);
        tsr_report_real(row, "share", kernel->time / s->kernel_time);
    }
}

static void add_peaks(json_t *report, const tsr_trace_sums *s)
{
    if (s->peak_count == 0) {
        tsr_report_string(report, "peaks", "no counters of memory are in it");
        return;
    }
    json_t *rows = tsr_report_array(report, "peaks");
    for (uint64_t i = 0; i < s->peak_count; i++) {
        const tsr_trace_peak *peak = &s->peak[i];
        json_t *row = tsr_report_row(rows);
        tsr_report_int(row, "planned_bytes", peak->planned_bytes);
        if (peak->used_known)
            tsr_report_int(row, "used_bytes", peak->used_bytes);
        else
            tsr_report_string(row, "used_bytes", NULL);
        tsr_report_string(row, "purpose", peak->name);
    }
}

tsr_status tsr_inspect_trace(json_t *report, const char *path)
{
    tsr_trace_sums sums;
    TSR_TRY(tsr_trace_sums_read(&sums, path));
    add_step(report, &sums);
    add_streams(report, &sums);
    add_kernels(report, &sums);
    add_peaks(report, &sums);
    tsr_trace_sums_free(&sums);
    return TSR_OK;
}

/* ---- two ---- */

/* One figure of one trace, and then of both: 0 where one has no such thing. */
typedef struct {
    const char *what, *name;
    bool bytes;
    double value[2]; /* seconds or bytes */
} figure;

typedef struct {
    figure *figure;
    size_t count;
    int side; /* whose figures are added: 0 or 1 */
} figures;

static void add(figures *f, const char *what, const char *name, bool bytes, double value)
{
    figure *at = &f->figure[f->count++];
    at->what = what;
    at->name = name;
    at->bytes = bytes;
    at->value[f->side] = value;
}

static void add_all(figures *f, const tsr_trace_sums *s, int side)
{
    f->side = side;
    add(f, "step", "", false, s->time);
    add(f, "idle", "compute", false, s->idle);
    for (uint64_t i = 0; i < s->stream_count; i++) {
        add(f, "busy", s->stream[i].name, false, s->stream[i].time);
        add(f, "exposed", s->stream[i].name, false, s->stream[i].exposed);
    }
    for (uint64_t i = 0; i < s->wait_count; i++)
        add(f, "waits for", s->wait[i].name, false, s->wait[i].time);
    for (uint64_t i = 0; i < s->kernel_count; i++)
        add(f, "kernel", s->kernel[i].name, false, s->kernel[i].time);
    for (uint64_t i = 0; i < s->peak_count; i++) {
        const tsr_trace_peak *peak = &s->peak[i];
        add(f, "planned", peak->name, true, (double)peak->planned_bytes);
        if (peak->used_known)
            add(f, "used", peak->name, true, (double)peak->used_bytes);
    }
}

static size_t most_figures(const tsr_trace_sums *s)
{
    return (size_t)(2 + 2 * s->stream_count + s->wait_count + s->kernel_count + 2 * s->peak_count);
}

static int by_name(const void *left, const void *right)
{
    const figure *a = left, *b = right;
    int order = strcmp(a->what, b->what);
    return order ? order : strcmp(a->name, b->name);
}

static int by_difference(const void *left, const void *right)
{
    const figure *a = left, *b = right;
    double of_a = fabs(a->value[1] - a->value[0]), of_b = fabs(b->value[1] - b->value[0]);
    return of_a != of_b ? (of_a > of_b ? -1 : 1) : by_name(left, right);
}

/* The figures of one name together, what differs most first. */
static void pair(figures *f)
{
    size_t count = 0;
    qsort(f->figure, f->count, sizeof *f->figure, by_name);
    for (size_t i = 0; i < f->count; i++) {
        const figure *next = &f->figure[i];
        figure *last = count ? &f->figure[count - 1] : NULL;
        if (!last || by_name(last, next) != 0) {
            f->figure[count++] = *next;
            continue;
        }
        last->value[0] += next->value[0];
        last->value[1] += next->value[1];
    }
    f->count = count;
    qsort(f->figure, f->count, sizeof *f->figure, by_difference);
}

static void add_differences(json_t *rows, const figures *f, bool bytes)
{
    for (size_t i = 0; i < f->count; i++) {
        const figure *at = &f->figure[i];
        double a = at->value[0], b = at->value[1];
        if (at->bytes != bytes || a == b)
            continue;
        json_t *row = tsr_report_row(rows);
        if (bytes) {
            tsr_report_int(row, "a_bytes", (uint64_t)a);
            tsr_report_int(row, "b_bytes", (uint64_t)b);
        } else {
            tsr_report_real(row, "a_ms", 1e3 * a);
            tsr_report_real(row, "b_ms", 1e3 * b);
            tsr_report_real(row, "difference_ms", 1e3 * (b - a));
        }
        tsr_report_real(row, "ratio", b / a); /* null where a has none */
        tsr_report_string(row, "what", at->what);
        tsr_report_string(row, "name", at->name);
    }
}

static tsr_status compare(json_t *report, const tsr_trace_sums sums[2], const char *const paths[2])
{
    static const char *const sides[] = {"a", "b"};
    figures f = {.figure =
                     calloc(most_figures(&sums[0]) + most_figures(&sums[1]), sizeof *f.figure)};
    if (!f.figure)
        return tsr_fail(TSR_ENOMEM, "%s: out of memory", paths[0]);
    for (int i = 0; i < 2; i++) {
        json_t *side = tsr_report_object(report, sides[i]);
        tsr_report_string(side, "path", paths[i]);
        add_step(side, &sums[i]);
        add_all(&f, &sums[i], i);
    }
    pair(&f);
    add_differences(tsr_report_array(report, "times"), &f, false);
    add_differences(tsr_report_array(report, "peaks"), &f, true);
    free(f.figure);
    return TSR_OK;
}

static tsr_status read_one_of_two(tsr_trace_sums *out, const char *path)
{
    struct stat info;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        return tsr_fail(TSR_EDATA,
                        "%s is a directory; of two paths both must be runs, or both traces: files "
                        "that the key trace has written",
                        path);
    return tsr_trace_sums_read(out, path);
}

tsr_status tsr_inspect_two_traces(json_t *report, const char *path, const char *other)
{
    const char *const paths[] = {path, other};
    tsr_trace_sums sums[2] = {0};
    tsr_report_string(report, "kind", "two traces");
    tsr_status status = read_one_of_two(&sums[0], path);
    if (status == TSR_OK)
        status = read_one_of_two(&sums[1], other);
    if (status == TSR_OK)
        status = compare(report, sums, paths);
    tsr_trace_sums_free(&sums[0]);
    tsr_trace_sums_free(&sums[1]);
    return status;
}
