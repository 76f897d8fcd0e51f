/*
 * What `inspect` says of traces: a small one whose figures were computed by hand, two of them against each other, and
 * files that are no traces. A real run's is in tests/multi/test_trace.
 */
#include "support/scratch.h"

#include "io/json.h"
#include "report/trace_read.h"
#include "tessera.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ROW(tid, name)                                                                             \
    "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":0,\"tid\":" #tid ",\"args\":{\"name\":\"" name \
    "\"}},\n"
#define ROWS ROW(0, "compute") ROW(1, "comm") ROW(2, "h2d") ROW(5, "exposed: compute waits")
#define EVENT(name, cat, rank, tid, ts, dur, step)                                                 \
    "{\"name\":\"" name "\",\"cat\":\"" cat "\",\"ph\":\"X\",\"pid\":" #rank ",\"tid\":" #tid      \
    ",\"ts\":" #ts ",\"dur\":" #dur ",\"args\":{\"step\":" #step "}},\n"
#define COUNTER(name, rank, ts, args)                                                              \
    "{\"name\":\"" name "\",\"cat\":\"memory\",\"ph\":\"C\",\"pid\":" #rank ",\"ts\":" #ts         \
    ",\"args\":{" args "}},\n"
#define END "{\"name\":\"foreign\",\"ph\":\"b\"}"

/* One rank, step 2 from 1000 us (its first wait) to 2000 us (the end of a gather):
 *
 *     compute   [900, 1000) of step 1, [1100, 1400), [1500, 1900)
 *     comm      [950, 1200) of step 1, [1350, 1550), [1950, 2000)
 *     h2d       [1380, 1450)
 */
#define COMPUTE_AND_COMM                                                                           \
    EVENT("COMPUTE F layer 0", "op", 0, 0, 900, 100, 1)                                            \
    EVENT("GATHER layer 1", "op", 0, 1, 950.000, 250.000, 1)                                       \
    EVENT("gather", "exposed", 0, 5, 1000, 100, 2)                                                 \
    EVENT("COMPUTE F layer 1", "op", 0, 0, 1100, 300, 2)                                           \
    EVENT("GATHER layer 2", "op", 0, 1, 1350, 200, 2)                                              \
    EVENT("gather", "exposed", 0, 5, 1400, 75.5, 2)                                                \
    EVENT("h2d", "exposed", 0, 5, 1475.5, 24.5, 2)                                                 \
    EVENT("COMPUTE F layer 2", "op", 0, 0, 1500, 400, 2)                                           \
    EVENT("GATHER layer 3", "op", 0, 1, 1950, 50, 2)                                               \
    EVENT("H2D layer 3", "op", 0, 2, 1380, 70, 2)
#define KERNELS                                                                                    \
    EVENT("gemm", "kernel", 0, 0, 910, 50, 1)                                                      \
    EVENT("gemm", "kernel", 0, 0, 1100, 200, 2)                                                    \
    EVENT("rope", "kernel", 0, 0, 1300, 50, 2) EVENT("gemm", "kernel", 0, 0, 1500, 150, 2)
/* The slots had 30 in step 1 and have at most 20 in step 2, whose first part still has what was before it. */
#define MEMORY                                                                                     \
    COUNTER("slot", 0, 0, "\"used\":30,\"planned\":40")                                            \
    COUNTER("slot", 0, 960, "\"used\":20,\"planned\":40")                                          \
    COUNTER("slot", 0, 1010, "\"used\":10,\"planned\":40")                                         \
    COUNTER("weights", 0, 0, "\"planned\":25")                                                     \
    COUNTER("late", 0, 0, "\"used\":0,\"planned\":60")                                             \
    COUNTER("late", 0, 2000.001, "\"used\":60,\"planned\":60")

static const char one[] = "[\n" ROWS COMPUTE_AND_COMM KERNELS MEMORY END "]\n";

static void succeed(int status)
{
    if (status < 0)
        fail_msg("%s", tsr_last_error());
}

static const char *file_of(const char *name, const char *text)
{
    const char *path = scratch_path(name);
    write_text(path, text);
    return path;
}

static json_t *inspect(const char *path, const char *other)
{
    char *text = NULL;
    json_t *root;
    succeed(other ? tsr_inspect_traces(path, other, NULL, 1, &text)
                  : tsr_inspect(path, NULL, 1, &text));
    succeed(tsr_json_parse(&root, text, strlen(text), "the report"));
    free(text);
    return root;
}

/* Row number `i` of a table, as JSON on one line. */
static void is_row(const json_t *report, const char *table, size_t i, const char *expected)
{
    char *text;
    const json_t *row = json_array_get(json_object_get(report, table), i);
    if (!row)
        fail_msg("%s has no row %zu", table, i);
    succeed(tsr_json_format(&text, row, 0));
    assert_string_equal(text, expected);
    free(text);
}

static void is_number(const json_t *object, const char *key, double expected)
{
    double found = json_number_value(json_object_get(object, key));
    if (!(fabs(found - expected) <= 1e-12 * fabs(expected)))
        fail_msg("%s is %.17g, expected %.17g", key, found, expected);
}

/* Row number `i` of a table, which has that name. */
static const json_t *named(const json_t *report, const char *table, size_t i, const char *key,
                           const char *name)
{
    const json_t *row = json_array_get(json_object_get(report, table), i);
    assert_non_null(row);
    assert_string_equal(json_string_value(json_object_get(row, key)), name);
    return row;
}

static void is_stream(const json_t *report, size_t i, const char *name, double busy, double exposed)
{
    const json_t *row = named(report, "streams", i, "stream", name);
    is_number(row, "busy_ms", busy);
    is_number(row, "exposed_ms", exposed);
}

static void is_kernel(const json_t *report, size_t i, const char *name, double count, double total,
                      double share)
{
    const json_t *row = named(report, "kernels", i, "kernel", name);
    is_number(row, "count", count);
    is_number(row, "total_ms", total);
    is_number(row, "share", share);
}

/* ---- one ---- */

static void judge_one(const json_t *r)
{
    assert_string_equal(json_string_value(json_object_get(r, "kind")), "trace");
    is_number(r, "step", 2);
    is_number(r, "ranks", 1);
    is_number(r, "step_ms", 1);
    is_number(r, "compute_idle_ms", 0.3);
    /* comm: [1000, 1100) of the gather of step 1, [1400, 1500), [1950, 2000); h2d: [1400, 1450) */
    assert_int_equal(json_array_size(json_object_get(r, "streams")), 3);
    is_stream(r, 0, "compute", 0.7, 0);
    is_stream(r, 1, "comm", 0.45, 0.25);
    is_stream(r, 2, "h2d", 0.07, 0.05);
    assert_int_equal(json_array_size(json_object_get(r, "waits")), 2);
    is_number(named(r, "waits", 0, "compute_waits_for", "gather"), "ms", 0.1755);
    is_number(named(r, "waits", 1, "compute_waits_for", "h2d"), "ms", 0.0245);
    assert_int_equal(json_array_size(json_object_get(r, "kernels")), 2);
    is_kernel(r, 0, "gemm", 2, 0.35, 0.875);
    is_kernel(r, 1, "rope", 1, 0.05, 0.125);
    assert_int_equal(json_array_size(json_object_get(r, "peaks")), 3);
    is_row(r, "peaks", 0,
           "{\"planned_bytes\": 25, \"used_bytes\": null, \"purpose\": \"weights\"}");
    is_row(r, "peaks", 1, "{\"planned_bytes\": 40, \"used_bytes\": 20, \"purpose\": \"slot\"}");
    is_row(r, "peaks", 2, "{\"planned_bytes\": 60, \"used_bytes\": 0, \"purpose\": \"late\"}");
}

static void test_one(void **state)
{
    (void)state;
    json_t *r = inspect(file_of("one.json", one), NULL);
    judge_one(r);
    json_decref(r);
    /* whatever its name, and as an object */
    r = inspect(file_of("one", one), NULL);
    judge_one(r);
    json_decref(r);
    char *object = malloc(sizeof one + 100);
    assert_non_null(object);
    snprintf(object, sizeof one + 100, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":%s}", one);
    r = inspect(file_of("object.json", object), NULL);
    judge_one(r);
    json_decref(r);
    free(object);
    /* for people: a column of bytes may begin with one that is not known */
    char *text;
    succeed(tsr_inspect(scratch_path("one"), NULL, 0, &text));
    assert_non_null(strstr(text, "  25 bytes           -  weights\n"
                                 "  40 bytes    20 bytes  slot\n"));
    free(text);
}

/* A second rank, which does without h2d, and is 1 ms late: means of times, the largest peak. */
static void test_ranks(void **state)
{
    (void)state;
    json_t *r =
        inspect(file_of("ranks.json",
                        "[" ROWS COMPUTE_AND_COMM KERNELS MEMORY EVENT("COMPUTE F layer 0", "op", 3,
                                                                       0, 2000, 200, 2)
                            EVENT("GATHER layer 1", "op", 3, 1, 2100, 400, 2)
                                EVENT("gemm", "kernel", 3, 0, 2000, 100, 2)
                                    COUNTER("slot", 3, 0, "\"used\":35,\"planned\":40")
                                        EVENT("COMPUTE F layer 0", "op", 7, 0, 0, 1, 1) END "]"),
                NULL);
    is_number(r, "ranks", 2);
    is_number(r, "step_ms", 0.75);
    is_number(r, "compute_idle_ms", 0.3);
    is_stream(r, 0, "compute", 0.45, 0);
    is_stream(r, 1, "comm", 0.425, 0.275);
    is_stream(r, 2, "h2d", 0.035, 0.025);
    const json_t *comm = json_array_get(json_object_get(r, "streams"), 1);
    is_number(comm, "most_exposed_ms", 0.3);
    is_number(comm, "of_rank", 3);
    is_kernel(r, 0, "gemm", 1.5, 0.225, 0.9);
    is_row(r, "peaks", 0, "{\"planned_bytes\": 40, \"used_bytes\": 35, \"purpose\": \"slot\"}");
    json_decref(r);
}

/* A trace of an evaluation (step 0), and one from before there were counters. */
static void test_without_counters(void **state)
{
    (void)state;
    json_t *r = inspect(
        file_of("old.json", "[" ROWS EVENT("COMPUTE F layer 0", "op", 0, 0, 5, 0, 0) END "]"),
        NULL);
    is_number(r, "step", 0);
    is_number(r, "step_ms", 0);
    assert_int_equal(json_array_size(json_object_get(r, "kernels")), 0);
    assert_non_null(strstr(json_string_value(json_object_get(r, "peaks")), "no counters"));
    json_decref(r);
}

/* Ten of twelve kernels; the shares are of all of them. */
static void test_longest(void **state)
{
    (void)state;
    tsr_text text = {0};
    tsr_text_puts(&text, "[" ROWS EVENT("COMPUTE F layer 0", "op", 0, 0, 0, 78, 1));
    for (int i = 1; i <= 12; i++)
        tsr_text_printf(&text,
                        "{\"name\":\"k%d\",\"cat\":\"kernel\",\"ph\":\"X\",\"pid\":0,\"tid\":0,"
                        "\"ts\":0,\"dur\":%d,\"args\":{\"step\":1}},\n",
                        i, i);
    tsr_text_puts(&text, END "]");
    json_t *r = inspect(file_of("long.json", tsr_text_string(&text)), NULL);
    assert_int_equal(json_array_size(json_object_get(r, "kernels")), 10);
    is_kernel(r, 0, "k12", 1, 0.012, 12.0 / 78);
    is_kernel(r, 9, "k3", 1, 0.003, 3.0 / 78);
    json_decref(r);
    tsr_text_free(&text);
}

/* ---- two ---- */

/* The other one has no h2d, half the time of gemm, another kernel, and more in its slots. */
static void test_two(void **state)
{
    (void)state;
    file_of("a.json", one);
    file_of("b.json",
            "[" ROWS EVENT("COMPUTE F layer 1", "op", 0, 0, 0, 700, 2) EVENT("GATHER layer 2", "op",
                                                                             0, 1, 550, 450, 2)
                EVENT("gemm", "kernel", 0, 0, 0, 175, 2) EVENT("rope", "kernel", 0, 0, 175, 50, 2)
                    EVENT("swiglu", "kernel", 0, 0, 225, 125, 2)
                        COUNTER("slot", 0, 0, "\"used\":30,\"planned\":40")
                            COUNTER("weights", 0, 0, "\"planned\":25")
                                COUNTER("late", 0, 0, "\"used\":0,\"planned\":60") END "]");
    json_t *r = inspect(scratch_path("a.json"), scratch_path("b.json"));
    assert_string_equal(json_string_value(json_object_get(r, "kind")), "two traces");
    is_number(json_object_get(r, "a"), "step_ms", 1);
    is_number(json_object_get(r, "b"), "compute_idle_ms", 0.3);
    static const struct {
        double a, b;
        const char *what, *name;
    } times[] = {{0.1755, 0, "waits for", "gather"}, {0.35, 0.175, "kernel", "gemm"},
                 {0, 0.125, "kernel", "swiglu"},     {0.07, 0, "busy", "h2d"},
                 {0.25, 0.3, "exposed", "comm"},     {0.05, 0, "exposed", "h2d"},
                 {0.0245, 0, "waits for", "h2d"}};
    size_t count = sizeof times / sizeof *times;
    assert_int_equal(json_array_size(json_object_get(r, "times")), count);
    for (size_t i = 0; i < count; i++) {
        const json_t *row = json_array_get(json_object_get(r, "times"), i);
        assert_string_equal(json_string_value(json_object_get(row, "what")), times[i].what);
        assert_string_equal(json_string_value(json_object_get(row, "name")), times[i].name);
        is_number(row, "a_ms", times[i].a);
        is_number(row, "b_ms", times[i].b);
        if (times[i].a > 0)
            is_number(row, "ratio", times[i].b / times[i].a);
        else
            assert_true(json_is_null(json_object_get(row, "ratio")));
    }
    assert_int_equal(json_array_size(json_object_get(r, "peaks")), 1);
    is_row(r, "peaks", 0,
           "{\"a_bytes\": 20, \"b_bytes\": 30, \"ratio\": 1.5, \"what\": \"used\", \"name\": "
           "\"slot\"}");
    json_decref(r);
    r = inspect(scratch_path("a.json"), scratch_path("a.json"));
    assert_int_equal(json_array_size(json_object_get(r, "times")), 0);
    assert_int_equal(json_array_size(json_object_get(r, "peaks")), 0);
    json_decref(r);
}

/* ---- bad input ---- */

#define OP EVENT("COMPUTE F layer 0", "op", 0, 0, 5, 1, 2)

static void test_broken(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        const char *const words[MOST_WORDS];
    } cases[] = {
        {"", {"bad.json", "line 1"}},
        {"[\n{\"name\":\"x\",", {"bad.json", "line 2"}},
        {"[]", {"bad.json", "no trace of this program", "\"cat\": \"op\"", "key trace"}},
        {"{}", {"bad.json", "no list \"traceEvents\""}},
        {"{\"traceEvents\":{}}", {"bad.json", "no list \"traceEvents\""}},
        {"3", {"bad.json", "neither a list nor an object"}},
        {"[" ROWS END "]", {"bad.json", "no event of it is an operation"}},
        {"[" ROWS "7]", {"bad.json: event 4 is an integer", "expected an object"}},
        {"[" OP END "]", {"bad.json", "row 0", "thread_name"}},
        {"[" ROW(0, "comm") OP END "]", {"bad.json", "no row of it is named \"compute\""}},
        {"[" ROWS EVENT("x", "op", 65536, 0, 5, 1, 2) END "]", {"event 4", "'pid'", "65536"}},
        {"[" ROWS EVENT("x", "op", -1, 0, 5, 1, 2) END "]", {"event 4", "'pid'", "-1"}},
        {"[" ROWS EVENT("x", "op", 0, 16, 5, 1, 2) END "]", {"event 4", "'tid'", "16"}},
        {"[" ROWS EVENT("x", "op", 0, 0, -5, 1, 2) END "]", {"event 4", "'ts'", "-5"}},
        {"[" ROWS EVENT("x", "op", 0, 0, "5", 1, 2) END "]", {"event 4", "'ts'"}},
        {"[" ROWS EVENT("x", "op", 0, 0, 5, 1e300, 2) END "]", {"event 4", "'dur'", "1e300"}},
        {"[" ROWS EVENT("x", "op", 0, 0, 5, 1e999, 2) END "]", {"bad.json", "line 5"}},
        {"[" ROWS EVENT("x", "op", 0, 0, 5, 1, 2.5) END "]", {"event 4", "'step'", "2.5"}},
        {"[" ROWS EVENT("x", "op", 0, 0, 5, 1, 99999999999999999999) END "]", {"bad.json", "line"}},
        {"[" ROWS "{\"ph\":\"X\",\"cat\":\"op\",\"name\":\"x\",\"pid\":0,\"tid\":0,\"ts\":1}]",
         {"event 4", "'dur' is missing"}},
        {"[" ROWS OP COUNTER("m", 0, 0, "\"used\":3") END "]", {"event 5", "'planned' is missing"}},
        {"[" ROWS OP COUNTER("m", 0, 0, "\"planned\":-1") END "]", {"event 5", "'planned'", "-1"}},
        {"[" ROWS OP COUNTER("m", 0, 0, "\"planned\":1,\"used\":1e9") END "]",
         {"event 5", "'used'"}},
    };
    char *text;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *path = file_of("bad.json", cases[i].text);
        check_error(cases[i].text, tsr_inspect(path, NULL, 1, &text), TSR_EDATA, cases[i].words);
    }
    /* the other one of two; what is no file; a tensor's file; one that is too large */
    file_of("a.json", one);
    static const char *const other[MOST_WORDS] = {"bad.json", "event 5"};
    check_error(
        "two", tsr_inspect_traces(scratch_path("a.json"), scratch_path("bad.json"), NULL, 1, &text),
        TSR_EDATA, other);
    static const char *const missing[MOST_WORDS] = {"nowhere.json", "No such file"};
    check_error(
        "nothing",
        tsr_inspect_traces(scratch_path("nowhere.json"), scratch_path("a.json"), NULL, 1, &text),
        TSR_EDATA, missing);
    static const char *const directory[MOST_WORDS] = {"is a directory",
                                                      "both must be runs, or both traces"};
    check_error("a directory",
                tsr_inspect_traces(scratch_path("a.json"), scratch_path("."), NULL, 1, &text),
                TSR_EDATA, directory);
    write_safetensors(scratch_path("a.safetensors"), "{}", TRUE_LENGTH, 0);
    static const char *const tensors[MOST_WORDS] = {"a.safetensors", "zero"};
    check_error(
        "tensors",
        tsr_inspect_traces(scratch_path("a.json"), scratch_path("a.safetensors"), NULL, 1, &text),
        TSR_EDATA, tensors);
    assert_int_equal(truncate(scratch_path("bad.json"), TSR_TRACE_FILE_BYTES + 1), 0);
    static const char *const large[MOST_WORDS] = {"bad.json", "268435456"};
    check_error("large", tsr_inspect(scratch_path("bad.json"), NULL, 1, &text), TSR_EDATA, large);
    assert_int_equal(tsr_inspect_traces(NULL, "a", NULL, 1, &text), TSR_EINVAL);
    assert_int_equal(tsr_inspect_traces("a", NULL, NULL, 1, &text), TSR_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_one),
                                       cmocka_unit_test(test_ranks),
                                       cmocka_unit_test(test_without_counters),
                                       cmocka_unit_test(test_longest),
                                       cmocka_unit_test(test_two),
                                       cmocka_unit_test(test_broken)};
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
