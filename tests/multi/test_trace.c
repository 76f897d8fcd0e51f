/*
 * The key `trace`, through `tessera train` under mpirun: the file is a Chrome trace that has every
 * operation of the traced steps on every rank, and whose times can be true.
 *
 *     test_multi_trace LAUNCH_RUN TESSERA BACKEND RANKS ...
 *
 * With the backend cuda, numbers above that of the GPUs are left out; without any it ends with 77.
 */
#include "support/scratch.h"

#include "device/device.h"
#include "job/trace.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define LAYERS  6 /* of examples/tiny-llama */
#define MICRO   4 /* micro-batches of a step, all ranks */
#define ROWS    6
#define EXPOSED 5

static const char *launch, *program, *backend;
static int rank_count[8], rank_counts;

/* An event that lasts. Times in ns. */
typedef struct {
    const char *name, *category, *op;
    int rank, row, step;
    long long start, end;
} event;

typedef struct {
    json_t *root;
    event *event; /* sorted by rank, row, start; the longer first */
    int count;
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
    assert_non_null(t->event);
    for (size_t i = 0; i < json_array_size(t->root); i++) {
        const json_t *object = json_array_get(t->root, i);
        if (!strcmp(string(object, "ph"), "M"))
            read_metadata(t, object);
        else
            read_event(t, object);
    }
    qsort(t->event, (size_t)t->count, sizeof *t->event, order);
}

static void free_trace(trace *t)
{
    free(t->event);
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
        assert_int_equal(has(t, rank, 2, "op", "LOAD_STATE"), host);
        assert_int_equal(has(t, rank, 3, "op", "SAVE layer"), host);
        assert_int_equal(has(t, rank, 3, "op", "SAVE_STATE"), host);
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
