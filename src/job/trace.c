/*
 * trace.c: a Chrome trace (the array format) of what the executors of all ranks have logged.
 *
 * Rank 0 writes. The order of events in the file means nothing, so every rank brings its lines in
 * blocks of one size, and rank 0 appends what comes: no rank ever holds more than a block of each.
 */
#include "job/trace.h"

#include "base/clock.h"
#include "inputs/shared.h"
#include "io/file.h"
#include "job/parts.h"
#include "job/trace_memory.h"
#include "kernels/watch.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK_BYTES (64 << 10)
#define LINE_BYTES  512
/* Kernels of one use of a unit, at most, and records the trace holds at most (calloc's pages cost
 * nothing until they are written). */
#define KERNELS_OF_USE 128
#define RECORDS_OF_OP  8 /* itself, and a wait in parts */
#define MOST_RECORDS   (1u << 20)

#define EXPOSED_ROW TSR_STREAM_COUNT

typedef struct {
    int64_t used, more; /* bytes of `text`, and whether another block follows */
    char text[BLOCK_BYTES - 2 * sizeof(int64_t)];
} block;

struct tsr_trace {
    tsr_job *job;
    tsr_kernels kernels; /* the job's, watched */
    tsr_trace_memory *memory;
    block *own, *all;   /* [1], [ranks] */
    tsr_folder *folder; /* of rank 0: the file's, unless that is output_dir */
    tsr_file *file;     /* of rank 0, while it is not written */
    bool written;
    /* while it is written */
    int64_t first_step;
    int64_t shift; /* ns, added to this rank's times */
    uint64_t next; /* record */
    int next_row;  /* to be named */
    bool counted;  /* whether all counters are told */
};

/* ---- where ---- */

/* A directory of the path without "./" before and "/" behind; "." if there is none. */
static void directory_of(char out[PATH_MAX], const char *path, bool parent)
{
    while (path[0] == '.' && path[1] == '/')
        for (path += 2; *path == '/'; path++)
            ;
    snprintf(out, PATH_MAX, "%s", path);
    char *slash = strrchr(out, '/');
    if (parent && slash)
        slash[slash == out] = 0;
    else if (parent || !*out)
        strcpy(out, ".");
    for (size_t n = strlen(out); n > 1 && out[n - 1] == '/'; n--)
        out[n - 1] = 0;
}

static bool is_in_output(const tsr_config *config)
{
    char directory[PATH_MAX], output[PATH_MAX];
    directory_of(directory, config->trace, true);
    directory_of(output, config->output_dir ? config->output_dir : "", false);
    return config->output_dir && !strcmp(directory, output);
}

tsr_status tsr_trace_check(const tsr_config *config)
{
    char directory[PATH_MAX];
    const char *where = tsr_config_where(config, "trace"), *path = config->trace;
    struct stat info;
    if (strlen(path) >= PATH_MAX - 16)
        return tsr_fail(TSR_ECONFIG, "%s: trace: the path %.80s... is too long", where, path);
    if (path[strlen(path) - 1] == '/' || (stat(path, &info) == 0 && S_ISDIR(info.st_mode)))
        return tsr_fail(TSR_ECONFIG, "%s: trace: %s is a directory; name a file in it", where,
                        path);
    if (!tsr_file_replaceable(path))
        return tsr_fail(TSR_ECONFIG, "%s: trace: %s is a device, a pipe or a socket; name a file",
                        where, path);
    if (is_in_output(config))
        return TSR_OK; /* the run makes it */
    directory_of(directory, path, true);
    if (stat(directory, &info) != 0)
        return tsr_fail(TSR_ECONFIG,
                        "%s: trace: %s cannot be written: there is no directory %s (%s); make it, "
                        "or name a file in output_dir",
                        where, path, directory, strerror(errno));
    if (!S_ISDIR(info.st_mode) || access(directory, W_OK | X_OK) != 0)
        return tsr_fail(
            TSR_ECONFIG, "%s: trace: %s cannot be written: %s is %s", where, path, directory,
            S_ISDIR(info.st_mode) ? "a directory that cannot be written to" : "not a directory");
    return TSR_OK;
}

/* ---- life ---- */

tsr_status tsr_trace_create(tsr_trace **out, tsr_job *job)
{
    tsr_trace *trace = calloc(1, sizeof *trace);
    if (!trace)
        return tsr_fail(TSR_ENOMEM, "out of memory for the trace");
    *out = trace;
    trace->job = job;
    trace->own = calloc(1, sizeof *trace->own);
    trace->all = calloc((size_t)tsr_comm_size(job->world), sizeof *trace->all);
    if (!trace->own || !trace->all)
        return tsr_fail(TSR_ENOMEM, "out of memory for the trace's blocks");
    TSR_TRY(tsr_trace_memory_create(&trace->memory, job->decision.plan, &job->decision.memory));
    trace->kernels = tsr_kernels_watched(job->kernels);
    job->kernels = job->decision.model.kernels = &trace->kernels;
    return TSR_OK;
}

tsr_status tsr_trace_place(tsr_trace *trace)
{
    if (!trace)
        return TSR_OK;
    const tsr_job *job = trace->job;
    const tsr_folder *folder = job->output;
    const char *path = job->inputs.config.trace, *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    if (!folder || !is_in_output(&job->inputs.config)) {
        TSR_TRY(tsr_folder_open_parent(&trace->folder, &name, path));
        folder = trace->folder;
    }
    (void)tsr_file_tidy_one(folder, name); /* no reason not to start */
    return tsr_file_prepare(&trace->file, folder, name);
}

void tsr_trace_destroy(tsr_trace *trace)
{
    if (!trace)
        return;
    tsr_file_discard(trace->file);
    tsr_folder_close(trace->folder);
    tsr_trace_memory_destroy(trace->memory);
    free(trace->own);
    free(trace->all);
    free(trace);
}

uint32_t tsr_trace_records(const tsr_trace *trace)
{
    const tsr_job *job = trace->job;
    const tsr_plan *plan = job->decision.plan;
    int most = 0;
    for (int i = 0; i < plan->program_count; i++)
        most = plan->program[i].op_count > most ? plan->program[i].op_count : most;
    const tsr_plan_options *o = &plan->options;
    uint64_t uses = 3 * (uint64_t)(o->layer_count + o->unit_count - o->head_unit);
    uint64_t micro = RECORDS_OF_OP * (uint64_t)most + KERNELS_OF_USE * uses;
    const tsr_batch *batch = job->train ? job->inputs.batch : job->inputs.eval_batch;
    uint64_t groups = (uint64_t)tsr_inputs_groups(&job->inputs, job->view.ranks);
    uint64_t rounds = ((uint64_t)tsr_batch_run_of(batch)->step_micro + groups - 1) / groups;
    /* The end of a step counts as a micro-batch; and the steps before the ones that are kept are
     * logged too, until it is known which are the last. */
    uint64_t records = (TSR_TRACE_STEPS + 1) * (rounds + 1) * micro;
    return records < MOST_RECORDS ? (uint32_t)records : MOST_RECORDS;
}

void tsr_trace_issue(tsr_trace *trace, int64_t step)
{
    if (trace)
        tsr_executor_trace(trace->job->executor, step <= TSR_TRACE_LAST ? step : -1);
}

/* ---- one rank's events ---- */

static int64_t nanoseconds(const tsr_trace *trace, double seconds)
{
    return (int64_t)(seconds * 1e9) + trace->shift;
}

/* Microseconds with all their digits. */
static int put_time(char *out, size_t bytes, const char *name, int64_t ns)
{
    return snprintf(out, bytes, ",\"%s\":%lld.%03d", name, (long long)(ns / 1000),
                    (int)(ns % 1000));
}

static int put_row(char *out, const tsr_trace *trace, int row)
{
    int rank = trace->job->view.rank;
    const char *name =
        row == EXPOSED_ROW ? "exposed: compute waits" : tsr_stream_id_name((tsr_stream_id)row);
    return snprintf(out, LINE_BYTES,
                    ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,"
                    "\"args\":{\"name\":\"%s\"}},\n{\"name\":\"thread_sort_index\",\"ph\":\"M\","
                    "\"pid\":%d,\"tid\":%d,\"args\":{\"sort_index\":%d}}",
                    rank, row, name, rank, row, row);
}

static int put_record(char *out, const tsr_trace *trace, const tsr_op_record *r)
{
    static const char *const category[] = {
        [TSR_RECORD_OP] = "op", [TSR_RECORD_KERNEL] = "kernel", [TSR_RECORD_EXPOSED] = "exposed"};
    char label[TSR_OP_LABEL_BYTES];
    int64_t start = nanoseconds(trace, r->start), end = nanoseconds(trace, r->end);
    int64_t issue = nanoseconds(trace, r->issue);
    tsr_op_label(label, trace->job->decision.plan, r->op);
    int n = snprintf(
        out, LINE_BYTES, ",\n{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d",
        r->type == TSR_RECORD_OP ? label : r->name, category[r->type], trace->job->view.rank,
        r->type == TSR_RECORD_EXPOSED ? EXPOSED_ROW : r->stream);
    n += put_time(out + n, LINE_BYTES - (size_t)n, "ts", start);
    n += put_time(out + n, LINE_BYTES - (size_t)n, "dur", end - start);
    n += snprintf(out + n, LINE_BYTES - (size_t)n, ",\"args\":{\"step\":%lld", (long long)r->step);
    if (r->type != TSR_RECORD_OP)
        n += snprintf(out + n, LINE_BYTES - (size_t)n, ",\"op\":\"%s\"", label);
    if (r->unit >= 0)
        n += snprintf(out + n, LINE_BYTES - (size_t)n, ",\"unit\":%d", r->unit);
    if (r->type == TSR_RECORD_OP && r->bytes > 0)
        n += snprintf(out + n, LINE_BYTES - (size_t)n, ",\"bytes\":%llu",
                      (unsigned long long)r->bytes);
    if (r->type != TSR_RECORD_EXPOSED) /* how far ahead of the stream the host was */
        n += put_time(out + n, LINE_BYTES - (size_t)n, "queued_us",
                      start > issue ? start - issue : 0);
    return n + snprintf(out + n, LINE_BYTES - (size_t)n, "}}");
}

/* chrome://tracing stacks the values of a counter: what is used lies at the bottom. */
static int put_counter(char *out, const tsr_trace *trace, const tsr_trace_counter *counter)
{
    int64_t time = nanoseconds(trace, counter->time);
    int n =
        snprintf(out, LINE_BYTES, ",\n{\"name\":\"%s\",\"cat\":\"memory\",\"ph\":\"C\",\"pid\":%d",
                 counter->name, trace->job->view.rank);
    n += put_time(out + n, LINE_BYTES - (size_t)n, "ts", time > 0 ? time : 0);
    n += snprintf(out + n, LINE_BYTES - (size_t)n, ",\"args\":{");
    if (counter->used_known)
        n += snprintf(out + n, LINE_BYTES - (size_t)n, "\"used\":%llu,",
                      (unsigned long long)counter->used_bytes);
    return n + snprintf(out + n, LINE_BYTES - (size_t)n, "\"planned\":%llu}}",
                        (unsigned long long)counter->planned_bytes);
}

/* As many lines as the block takes: rows, records, counters. */
static void fill_block(tsr_trace *trace)
{
    block *own = trace->own;
    uint64_t count = 0;
    tsr_executor_log(trace->job->executor, 0, &count);
    own->used = 0;
    while (own->used + LINE_BYTES <= (int64_t)sizeof own->text) {
        char *out = own->text + own->used;
        if (trace->next_row <= EXPOSED_ROW) {
            own->used += put_row(out, trace, trace->next_row++);
            continue;
        }
        if (trace->next < count) {
            const tsr_op_record *r = tsr_executor_log(trace->job->executor, trace->next++, &count);
            if (r->step >= trace->first_step)
                own->used += put_record(out, trace, r);
            continue;
        }
        tsr_trace_counter counter;
        trace->counted = !tsr_trace_memory_next(trace->memory, &counter);
        if (trace->counted)
            break;
        own->used += put_counter(out, trace, &counter);
    }
    own->more = !trace->counted;
}

/* ---- all ranks' ---- */

/* Sets `shift`, so that all times count from the first event of all. */
static tsr_status set_clock(tsr_trace *trace)
{
    tsr_job *job = trace->job;
    int64_t node = tsr_comm_node(job->world), root[2] = {0, node}, first = INT64_MAX;
    TSR_TRY(tsr_comm_barrier(job->world, job->control));
    TSR_TRY(tsr_stream_synchronize(job->control));
    int64_t now = root[0] = (int64_t)(tsr_now() * 1e9);
    TSR_TRY(tsr_comm_broadcast(job->world, job->control, root, sizeof root, 0));
    TSR_TRY(tsr_stream_synchronize(job->control));
    trace->shift = node == root[1] ? 0 : root[0] - now;
    uint64_t count = 0;
    tsr_executor_log(job->executor, 0, &count);
    for (uint64_t i = 0; i < count; i++) {
        const tsr_op_record *r = tsr_executor_log(job->executor, i, &count);
        int64_t start = nanoseconds(trace, r->start);
        if (r->step >= trace->first_step && start < first)
            first = start;
    }
    TSR_TRY(tsr_comm_all_reduce(job->world, job->control, &first, 1, TSR_MIN));
    TSR_TRY(tsr_stream_synchronize(job->control));
    trace->shift -= first;
    return TSR_OK;
}

/* `file` NULL: another rank than 0; or writing has failed, and what still comes is let go. */
static tsr_status append(tsr_file *file, const tsr_trace *trace, bool *more)
{
    *more = false;
    for (int rank = 0; rank < tsr_comm_size(trace->job->world); rank++) {
        const block *b = &trace->all[rank];
        *more |= b->more != 0;
        if (file)
            TSR_TRY(tsr_file_append(file, b->text, (uint64_t)b->used));
    }
    return TSR_OK;
}

static tsr_status exchange(tsr_trace *trace, tsr_file *file)
{
    tsr_job *job = trace->job;
    tsr_status status = TSR_OK;
    bool more = true;
    while (more) {
        fill_block(trace);
        tsr_gather_range range = {trace->own, trace->all, sizeof *trace->own};
        TSR_TRY(tsr_comm_all_gather(job->world, job->control, &range, 1));
        TSR_TRY(tsr_stream_synchronize(job->control));
        tsr_status appended = append(status == TSR_OK ? file : NULL, trace, &more);
        status = status == TSR_OK ? appended : status;
    }
    return status;
}

/* The array's first element; every other begins with a comma. */
static tsr_status begin_file(const tsr_trace *trace)
{
    char line[LINE_BYTES];
    TSR_TRY(tsr_file_open(trace->file));
    int n = snprintf(line, sizeof line,
                     "[\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":0,"
                     "\"args\":{\"name\":\"rank 0\"}}");
    for (int rank = 1; rank < tsr_comm_size(trace->job->world); rank++) {
        TSR_TRY(tsr_file_append(trace->file, line, (uint64_t)n));
        n = snprintf(line, sizeof line,
                     ",\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,"
                     "\"args\":{\"name\":\"rank %d\"}}",
                     rank, rank);
    }
    return tsr_file_append(trace->file, line, (uint64_t)n);
}

/* A failure of rank 0 alone does not keep it from the exchange. */
static tsr_status write_file(tsr_trace *trace)
{
    tsr_file *file = trace->file;
    tsr_status status = file ? begin_file(trace) : TSR_OK;
    tsr_status exchanged = exchange(trace, status == TSR_OK ? file : NULL);
    status = status == TSR_OK ? exchanged : status;
    if (status == TSR_OK && file)
        status = tsr_file_append(file, "\n]\n", 3);
    if (status == TSR_OK && file)
        status = tsr_file_finish(file);
    if (status == TSR_OK && file)
        status = tsr_file_publish(file);
    tsr_file_discard(file);
    trace->file = NULL;
    return status;
}

tsr_status tsr_trace_done(tsr_trace *trace, int64_t step, bool last)
{
    if (!trace || trace->written || (step < TSR_TRACE_LAST && !last))
        return TSR_OK;
    trace->written = true;
    trace->first_step = step - TSR_TRACE_STEPS + 1;
    trace->next = 0;
    trace->next_row = 0;
    tsr_executor_trace(trace->job->executor, -1);
    TSR_TRY(tsr_streams_synchronize(tsr_job_streams(trace->job)));
    TSR_TRY(set_clock(trace));
    tsr_trace_memory_begin(trace->memory, trace->job->executor, -1e-9 * (double)trace->shift);
    return write_file(trace);
}
