/*
 * The key `trace`, through `tessera train` under mpirun: the file is a Chrome trace that has every
 * operation of the traced steps on every rank, whose times can be true, and whose counters of memory are
 * the plan's.
 *
 *     test_multi_trace LAUNCH_RUN TESSERA BACKEND RANKS ...
 *
 * With the backend cuda, numbers above that of the GPUs are left out; without any it ends with 77.
 */
#include "support/scratch.h"

#include "device/device.h"
#include "job/trace.h"
#include "tessera.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define LAYERS  6 /* of examples/tiny-llama */
#define MICRO   4 /* micro-batches of a step, all ranks */
#define ROWS    8
#define EXPOSED 7

/* Counters of memory. */
#define GRADIENT "device gradient: of a unit each, before they are reduced"
#define KEPT     "device layer * x: input of the layer, kept for the backward"
#define KEPT_ON_HOST                                                                               \
    "host layer * saved activations: what the layer keeps for its backward, meanwhile"

static const char *launch, *program, *backend;
static int rank_count[8], rank_counts;

/* An event that lasts. Times in ns. */
typedef struct {
    const char *name, *category, *op;
    int rank, row, step;
    long long start, end;
} event;

/* The next value of a counter of memory; used -1: it is not told. */
typedef struct {
    const char *name;
    int rank;
    bool first; /* of the counter */
    long long time, planned, used;
} reading;

typedef struct {
    json_t *root;
    event *event; /* sorted by rank, row, start; the longer first */
    int count;
    reading *value; /* in the file's order */
    int value_count;
    int ranks, first, last; /* steps */
    bool named[8][ROWS];
} trace;

/* ---- running ---- */

/* host: activations and optimizer state go to host memory too. */
static void write_job(const char *path, int steps, const char *offload, bool host)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(
        file,
        "model_name_or_path: %s/examples/tiny-llama\ndataset: %s/tests/golden/traces/padded.jsonl\n"
        "backend: %s\nlora_r: 4\nuse_dora: true\ntotal_batch_size: %d\nmax_steps: %d\n"
        "resident_units: 0\noffload: %s\nactivation_offloading: %s\noptimizer_offload: "
        "%s\noutput_dir: "
        "%s\noverwrite_output_dir: true\ntrace: %s\n",
        TSR_SOURCE_DIR, TSR_SOURCE_DIR, backend, MICRO, steps, offload, host ? "true" : "false",
        host ? "true" : "false", scratch_path("out"), scratch_path("out/trace.json"));
    assert_int_equal(fclose(file), 0);
}

static void train(int ranks, const char *job)
{
    char count[16];
    const char *log = scratch_path("log");
    int status;
    snprintf(count, sizeof count, "%d", ranks);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        int file = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0666);
        dup2(file, 1);
        dup2(file, 2);
        execl(launch, launch, "-n", count, program, "train", job, (char *)NULL);
        _exit(127);
    }
    while (waitpid(child, &status, 0) < 0)
        assert_int_equal(errno, EINTR);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return;
    uint64_t bytes;
    fail_msg("%d ranks end with wait status %#x:\n%s", ranks, (unsigned)status,
             read_whole(&bytes, log));
}

/* ---- reading ---- */

static long long nanoseconds(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    assert_true(json_is_number(value));
    return llround(1e3 * json_number_value(value));
}

static int integer(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    assert_true(json_is_integer(value));
    return (int)json_integer_value(value);
}

static const char *string(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

static int order(const void *a, const void *b)
{
    const event *x = a, *y = b;
    if (x->rank != y->rank)
        return x->rank - y->rank;
    if (x->row != y->row)
        return x->row - y->row;
    if (x->start != y->start)
        return x->start < y->start ? -1 : 1;
    if (x->end != y->end)
        return x->end > y->end ? -1 : 1;
    /* The op before what lasts exactly as long. */
    return strcmp(y->category, x->category);
}

static void read_metadata(trace *t, const json_t *object)
{
    if (strcmp(string(object, "name"), "thread_name") != 0)
        return;
    int rank = integer(object, "pid"), row = integer(object, "tid");
    assert_in_range(rank, 0, t->ranks - 1);
    assert_in_range(row, 0, ROWS - 1);
    t->named[rank][row] = true;
}

static void read_event(trace *t, const json_t *object)
{
    const json_t *args = json_object_get(object, "args");
    event e = {.name = string(object, "name"),
               .category = string(object, "cat"),
               .op = string(args, "op"),
               .rank = integer(object, "pid"),
               .row = integer(object, "tid"),
               .step = integer(args, "step"),
               .start = nanoseconds(object, "ts")};
    e.end = e.start + nanoseconds(object, "dur");
    assert_non_null(e.name);
    assert_non_null(e.category);
    assert_in_range(e.rank, 0, t->ranks - 1);
    assert_in_range(e.row, 0, ROWS - 1);
    assert_in_range(e.step, t->first, t->last);
    assert_true(e.start >= 0 && e.start <= e.end);
    assert_int_equal(e.row == EXPOSED, !strcmp(e.category, "exposed"));
    assert_int_equal(e.op == NULL, !strcmp(e.category, "op"));
    t->event[t->count++] = e;
}

static void read_value(trace *t, const json_t *object)
{
    const json_t *args = json_object_get(object, "args"), *used = json_object_get(args, "used");
    reading v = {.name = string(object, "name"),
                 .rank = integer(object, "pid"),
                 .first = true,
                 .time = nanoseconds(object, "ts"),
                 .planned = integer(args, "planned"),
                 .used = used ? integer(args, "used") : -1};
    assert_string_equal(string(object, "cat"), "memory");
    for (int i = 0; i < t->value_count; i++)
        v.first &= t->value[i].rank != v.rank || strcmp(t->value[i].name, v.name) != 0;
    t->value[t->value_count++] = v;
}

static void read_trace(trace *t, int ranks, int steps)
{
    json_error_t error;
    *t = (trace){.ranks = ranks};
    t->last = steps < TSR_TRACE_LAST ? steps : TSR_TRACE_LAST;
    t->first = t->last > TSR_TRACE_STEPS ? t->last - TSR_TRACE_STEPS + 1 : 1;
    t->root = json_load_file(scratch_path("out/trace.json"), JSON_REJECT_DUPLICATES, &error);
    if (!t->root)
        fail_msg("trace.json, line %d: %s", error.line, error.text);
    assert_true(json_is_array(t->root));
    t->event = calloc(json_array_size(t->root), sizeof *t->event);
    t->value = calloc(json_array_size(t->root), sizeof *t->value);
    assert_true(t->event && t->value);
    for (size_t i = 0; i < json_array_size(t->root); i++) {
        const json_t *object = json_array_get(t->root, i);
        if (!strcmp(string(object, "ph"), "M"))
            read_metadata(t, object);
        else if (!strcmp(string(object, "ph"), "C"))
            read_value(t, object);
        else
            read_event(t, object);
    }
    qsort(t->event, (size_t)t->count, sizeof *t->event, order);
}

static void free_trace(trace *t)
{
    free(t->event);
    free(t->value);
    json_decref(t->root);
}

/* ---- judging ---- */

static int count_of(const trace *t, int rank, int step, const char *name)
{
    int count = 0;
    for (int i = 0; i < t->count; i++)
        count += t->event[i].rank == rank && t->event[i].step == step &&
                 !strcmp(t->event[i].category, "op") && !strcmp(t->event[i].name, name);
    return count;
}

static void expect(const trace *t, int rank, int step, int count, const char *name)
{
    int found = count_of(t, rank, step, name);
    if (found != count)
        fail_msg("rank %d, step %d: %d times %s, expected %d", rank, step, found, name, count);
}

/* All that a step is made of, but for gathers and copies, whose number is the plan's. */
static void judge_step(const trace *t, int rank, int step, bool host)
{
    static const char *const uses[] = {"COMPUTE F", "COMPUTE B", "REDUCE"};
    static const char *const moves[] = {"SAVE", "LOAD"};
    static const char *const once[] = {"GRAD_NORM", "CONTROL", "WORD"};
    int rounds = (MICRO + t->ranks - 1) / t->ranks;
    char name[64];
    for (int layer = 0; layer < LAYERS; layer++) {
        for (int i = 0; i < 3; i++) {
            snprintf(name, sizeof name, "%s layer %d", uses[i], layer);
            expect(t, rank, step, rounds, name);
        }
        /* The last two layers' activations stay. */
        for (int i = 0; i < 2; i++) {
            snprintf(name, sizeof name, "%s layer %d", moves[i], layer);
            expect(t, rank, step, host && layer < LAYERS - 2 ? rounds : 0, name);
        }
        snprintf(name, sizeof name, "NORM layer %d", layer);
        expect(t, rank, step, 1, name);
    }
    expect(t, rank, step, rounds, "COMPUTE H head 0");
    for (int i = 0; i < 3; i++)
        expect(t, rank, step, 1, once[i]);
    int chunks = host ? count_of(t, rank, step, "LOAD_STATE") : 1;
    assert_true(!host || chunks > 1);
    expect(t, rank, step, chunks, "OPTIM");
    expect(t, rank, step, host ? chunks : 0, "LOAD_STATE");
    expect(t, rank, step, host ? chunks : 0, "SAVE_STATE");
}

/* Events of a row neither overlap nor go back to an earlier step; kernels lie inside their op. */
static void judge_rows(const trace *t)
{
    const event *op = NULL, *kernel = NULL, *wait = NULL;
    for (int i = 0; i < t->count; i++) {
        const event *e = &t->event[i];
        bool is_kernel = !strcmp(e->category, "kernel");
        const event **before = is_kernel ? &kernel : e->row == EXPOSED ? &wait : &op;
        if (*before && (*before)->rank == e->rank && (*before)->row == e->row &&
            ((*before)->end > e->start || (*before)->step > e->step))
            fail_msg("rank %d, row %d: %s of step %d at %lld ns begins before %s of step %d ends",
                     e->rank, e->row, e->name, e->step, e->start, (*before)->name, (*before)->step);
        *before = e;
        if (is_kernel && (!op || op->rank != e->rank || op->row != e->row || e->start < op->start ||
                          e->end > op->end || strcmp(op->name, e->op) != 0))
            fail_msg("rank %d, row %d: kernel %s at %lld ns of %s is not inside it", e->rank,
                     e->row, e->name, e->start, e->op);
    }
}

static bool has(const trace *t, int rank, int row, const char *category, const char *begin)
{
    for (int i = 0; i < t->count; i++) {
        const event *e = &t->event[i];
        if (e->rank == rank && e->row == row && !strcmp(e->category, category) &&
            !strncmp(e->name, begin, strlen(begin)))
            return true;
    }
    return false;
}

static void judge_streams(const trace *t, const char *offload, bool host)
{
    bool copies = strcmp(offload, "none") != 0;
    for (int rank = 0; rank < t->ranks; rank++) {
        for (int row = 0; row < ROWS; row++)
            assert_true(t->named[rank][row]);
        assert_true(has(t, rank, 0, "op", "COMPUTE"));
        assert_true(has(t, rank, 0, "kernel", "gemm"));
        assert_true(has(t, rank, 0, "kernel", "attention_backward"));
        assert_true(has(t, rank, 1, "op", "REDUCE"));
        assert_true(has(t, rank, 1, "kernel", "fixed_sum"));
        assert_true(has(t, rank, 3, "op", "WORD"));
        assert_true(has(t, rank, 4, "kernel", "adamw"));
        assert_int_equal(has(t, rank, 2, "op", "H2D layer"), copies);
        assert_int_equal(has(t, rank, 2, "op", "LOAD layer"), host);
        assert_int_equal(has(t, rank, 5, "op", "LOAD_STATE"), host);
        assert_int_equal(has(t, rank, 3, "op", "SAVE layer"), host);
        assert_false(has(t, rank, 2, "op", "LOAD_STATE") || has(t, rank, 3, "op", "SAVE_STATE"));
        assert_int_equal(has(t, rank, 6, "op", "SAVE_STATE"), host);
        assert_int_equal(has(t, rank, 1, "op", "GATHER layer"), t->ranks > 1 || copies);
        assert_int_equal(has(t, rank, 1, "op", "GATHER_T layer"), t->ranks > 1);
    }
}

/* Of rank 0, which writes them both: the waits of a step are its exposed_s. */
static void judge_exposed(const trace *t)
{
    uint64_t bytes;
    char *text = read_whole(&bytes, scratch_path("out/metrics.jsonl")), *rest = text, *line;
    int judged = 0;
    while ((line = strsep(&rest, "\n")) && *line) {
        json_t *object = json_loads(line, 0, NULL);
        int step = (int)json_integer_value(json_object_get(object, "step"));
        double exposed = json_number_value(json_object_get(object, "exposed_s")), sum = 0;
        double step_s = json_number_value(json_object_get(object, "step_s"));
        json_decref(object);
        if (step < t->first || step > t->last)
            continue;
        for (int i = 0; i < t->count; i++) {
            const event *e = &t->event[i];
            if (e->rank == 0 && e->row == EXPOSED && e->step == step && strcmp(e->name, "other"))
                sum += 1e-9 * (double)(e->end - e->start);
        }
        judged++;
        print_message("  step %d: %.1f us of %.1f exposed\n", step, 1e6 * sum, 1e6 * step_s);
        if (!(fabs(sum - exposed) <= 2e-6) || !(exposed <= step_s))
            fail_msg("step %d: the trace shows %.9g s of waits, exposed_s is %.9g of %.9g", step,
                     sum, exposed, step_s);
    }
    assert_int_equal(judged, t->last - t->first + 1);
    free(text);
}

/* ---- counters ---- */

/* Of a rank's counter: its first value, how often it rises, its highest and its last. */
typedef struct {
    long long planned, most, last, time;
    int values, rises;
} course;

static course follow(const trace *t, int rank, const char *name)
{
    course c = {0};
    for (int i = 0; i < t->value_count; i++) {
        const reading *v = &t->value[i];
        if (v->rank != rank || strcmp(v->name, name) != 0)
            continue;
        assert_true(c.values == 0 ? v->time == 0 : v->time >= c.time);
        assert_true(c.values == 0 || (v->planned == c.planned && v->used >= 0));
        assert_true(v->used <= v->planned);
        c.rises += c.values > 0 && v->used > c.last;
        c.most = v->used > c.most ? v->used : c.most;
        c.planned = v->planned;
        c.last = v->used;
        c.time = v->time;
        c.values++;
    }
    return c;
}

/* Every purpose of rank 0's plan.json, and no other; their bytes, and of its buffers. */
static void judge_planned(const trace *t)
{
    json_error_t error;
    json_t *plan = json_load_file(scratch_path("out/plan.json"), 0, &error), *buffer;
    const json_t *buffers = json_object_get(plan, "buffers");
    long long planned = 0, told = 0;
    size_t i;
    assert_true(json_array_size(buffers) > 20);
    json_array_foreach(buffers, i, buffer)
    {
        bool found = false;
        char why[200];
        snprintf(why, sizeof why, "%s", string(buffer, "why"));
        for (int v = 0; v < t->value_count && !found; v++) {
            const char *name = t->value[v].name, *place = string(buffer, "place");
            size_t length = strlen(name), end = strlen(why);
            found = t->value[v].rank == 0 && !strncmp(name, place, strlen(place)) && length > end &&
                    !strcmp(name + length - end, why);
        }
        if (!found)
            fail_msg("no counter for %s of %s", why, string(buffer, "name"));
        planned += integer(buffer, "bytes");
    }
    json_decref(plan);
    for (int v = 0; v < t->value_count; v++)
        told += t->value[v].rank == 0 && t->value[v].first ? t->value[v].planned : 0;
    assert_int_equal(told, planned);
}

/* A counter that rises `rises` times, to at least `least`, and is 0 in the end. */
static void expect_course(const trace *t, int rank, const char *name, int rises, long long least)
{
    course c = follow(t, rank, name);
    if (c.values == 0 || c.rises != rises || c.most < least || c.last != 0)
        fail_msg("rank %d: %s has %d values, rises %d times (expected %d), up to %lld of %lld, "
                 "ends at %lld",
                 rank, name, c.values, c.rises, rises, c.most, c.planned, c.last);
}

static long long planned_for(const trace *t, int rank, const char *name)
{
    return follow(t, rank, name).planned;
}

/* When the events of a rank's last step begin and end. */
static void last_step(const trace *t, int rank, long long *begin, long long *end)
{
    *begin = LLONG_MAX;
    *end = 0;
    for (int i = 0; i < t->count; i++) {
        const event *e = &t->event[i];
        if (e->rank != rank || e->step != t->last)
            continue;
        *begin = e->start < *begin ? e->start : *begin;
        *end = e->end > *end ? e->end : *end;
    }
}

/* The highest that a counter of a rank is while the last step lasts. */
static long long most_in_last_step(const trace *t, int rank, const char *name)
{
    long long begin, end, before = 0, most = 0;
    last_step(t, rank, &begin, &end);
    for (int i = 0; i < t->value_count; i++) {
        const reading *v = &t->value[i];
        if (v->rank != rank || strcmp(v->name, name) != 0 || v->time > end)
            continue;
        if (v->time > begin)
            most = v->used > most ? v->used : most;
        else
            before = v->used;
    }
    return before > most ? before : most;
}

/* A rank without a micro-batch of its own goes through the operations, but keeps nothing. */
static void judge_memory(const trace *t, const char *offload, bool host)
{
    int steps = t->last - t->first + 1, rounds = (MICRO + t->ranks - 1) / t->ranks;
    judge_planned(t);
    for (int rank = 0; rank < t->ranks; rank++) {
        int uses = steps * LAYERS * rounds, own = 0;
        for (int micro = rank; micro < MICRO; micro += t->ranks)
            own += steps;
        /* Two units' gradients are there at once only where reducing one outlasts the next backward. */
        expect_course(t, rank, GRADIENT, uses, planned_for(t, rank, GRADIENT) / 2);
        const char *kept = host ? KEPT_ON_HOST : KEPT;
        expect_course(t, rank, kept, own * (host ? LAYERS - 2 : LAYERS),
                      planned_for(t, rank, kept));
        course slot = follow(t, rank, "device slot[*]: one unit, gathered for its use");
        bool gathered = t->ranks > 1 || strcmp(offload, "none") != 0;
        assert_int_equal(slot.values > 1, gathered);
        assert_int_equal(slot.most, gathered ? slot.planned : 0);
    }
}

/* ---- inspect ---- */

static double in_table(const json_t *report, const char *table, const char *key, const char *name,
                       const char *figure)
{
    const json_t *row;
    size_t i;
    json_array_foreach(json_object_get(report, table), i, row)
    {
        if (!strcmp(string(row, key), name))
            return json_number_value(json_object_get(row, figure));
    }
    return 0;
}

static void expect_close(const char *what, double found, double expected)
{
    if (!(fabs(found - expected) <= 1e-9 * fabs(expected)))
        fail_msg("inspect says %.12g of %s, expected %.12g", found, what, expected);
}

/* The part of [start, end) in which compute of a rank runs nothing. */
static double without_compute(const trace *t, int rank, long long start, long long end)
{
    long long left = end - start;
    for (int i = 0; i < t->count; i++) {
        const event *e = &t->event[i];
        if (e->rank != rank || e->row != 0 || strcmp(e->category, "op") != 0)
            continue;
        long long from = e->start > start ? e->start : start, to = e->end < end ? e->end : end;
        left -= to > from ? to - from : 0;
    }
    return 1e-6 * (double)left;
}

/* Operations on comm while the last step lasts, which may be another step's. */
static void add_comm(const trace *t, int rank, double *busy, double *exposed)
{
    long long begin, end;
    last_step(t, rank, &begin, &end);
    for (int i = 0; i < t->count; i++) {
        const event *e = &t->event[i];
        long long from = e->start > begin ? e->start : begin, to = e->end < end ? e->end : end;
        if (e->rank != rank || e->row != 1 || strcmp(e->category, "op") != 0 || to <= from)
            continue;
        *busy += 1e-6 * (double)(to - from);
        *exposed += without_compute(t, rank, from, to);
    }
}

/* The last step as its events have it: means over the ranks. */
static void judge_inspect(const trace *t)
{
    char *text;
    double gemms = 0, gemm_ms = 0, waits = 0, comm_busy = 0, comm_exposed = 0;
    assert_int_equal(tsr_inspect(scratch_path("out/trace.json"), NULL, 1, &text), 0);
    json_t *report = json_loads(text, 0, NULL);
    free(text);
    for (int i = 0; i < t->count; i++) {
        const event *e = &t->event[i];
        double ms = 1e-6 * (double)(e->end - e->start);
        if (e->step != t->last)
            continue;
        if (!strcmp(e->category, "kernel") && !strcmp(e->name, "gemm")) {
            gemms++;
            gemm_ms += ms;
        }
        if (e->row == EXPOSED && !strcmp(e->name, "gather"))
            waits += ms;
    }
    for (int rank = 0; rank < t->ranks; rank++)
        add_comm(t, rank, &comm_busy, &comm_exposed);
    assert_int_equal(integer(report, "step"), t->last);
    assert_int_equal(integer(report, "ranks"), t->ranks);
    expect_close("gemms", in_table(report, "kernels", "kernel", "gemm", "count"), gemms / t->ranks);
    expect_close("gemm", in_table(report, "kernels", "kernel", "gemm", "total_ms"),
                 gemm_ms / t->ranks);
    expect_close("gather", in_table(report, "waits", "compute_waits_for", "gather", "ms"),
                 waits / t->ranks);
    assert_true(comm_busy > 0);
    expect_close("comm, busy", in_table(report, "streams", "stream", "comm", "busy_ms"),
                 comm_busy / t->ranks);
    expect_close("comm, exposed", in_table(report, "streams", "stream", "comm", "exposed_ms"),
                 comm_exposed / t->ranks);
    long long most = 0;
    for (int rank = 0; rank < t->ranks; rank++) {
        long long of_rank = most_in_last_step(t, rank, GRADIENT);
        most = of_rank > most ? of_rank : most;
    }
    expect_close("gradient", in_table(report, "peaks", "purpose", GRADIENT, "used_bytes"),
                 (double)most);
    json_decref(report);
}

static void assert_nothing_half_written(void)
{
    DIR *directory = opendir(scratch_path("out"));
    assert_non_null(directory);
    for (const struct dirent *entry; (entry = readdir(directory));)
        if (strstr(entry->d_name, ".tmp"))
            fail_msg("%s was left behind", entry->d_name);
    closedir(directory);
}

static void judge(int ranks, int steps, const char *offload, bool host)
{
    trace t;
    char job[300];
    snprintf(job, sizeof job, "%s", scratch_path("job.yaml"));
    write_job(job, steps, offload, host);
    train(ranks, job);
    read_trace(&t, ranks, steps);
    print_message("  %d ranks, offload %s: %d events\n", ranks, offload, t.count);
    judge_rows(&t);
    judge_streams(&t, offload, host);
    for (int rank = 0; rank < ranks; rank++)
        for (int step = t.first; step <= t.last; step++)
            judge_step(&t, rank, step, host);
    judge_exposed(&t);
    judge_memory(&t, offload, host);
    judge_inspect(&t);
    free_trace(&t);
    assert_nothing_half_written();
}

static void test_steps_four_to_six(void **state)
{
    (void)state;
    for (int i = 0; i < rank_counts; i++)
        judge(rank_count[i], 7, "none", false);
}

static void test_host_memory(void **state)
{
    (void)state;
    judge(rank_count[rank_counts - 1], 7, "sharded", true);
}

static void test_short_run(void **state)
{
    (void)state;
    judge(rank_count[rank_counts - 1], 2, "none", false);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_steps_four_to_six),
                                       cmocka_unit_test(test_host_memory),
                                       cmocka_unit_test(test_short_run)};
    int gpus = 0;
    if (argc < 5 || argc > 12)
        return 64;
    launch = argv[1];
    program = argv[2];
    backend = argv[3];
    bool cuda = !strcmp(backend, "cuda");
    if (cuda && tsr_device_cuda_count(&gpus) != TSR_OK)
        gpus = 0;
    for (int i = 4; i < argc; i++)
        if (!cuda || atoi(argv[i]) <= gpus)
            rank_count[rank_counts++] = atoi(argv[i]);
    if (rank_counts == 0) {
        printf("skipped: %d GPUs\n", gpus);
        return 77;
    }
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
