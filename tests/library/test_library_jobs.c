/*
 * test_library_jobs.c [cuda [2]]: jobs side by side in one process, a stop from a signal handler, and callers who were built with
 * another version's header. With `cuda` the jobs side by side alone, both on the first GPU, with 2 each on its own; 77 if there are fewer.
 */
#include "library/fixture.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- several jobs in one process ---- */

static pthread_barrier_t both;
static const char *backend = "backend=cpu", *budget = "memory_budget=2GiB";
static int gpus;

typedef struct {
    const char *overrides[5];
    int meets, met[2]; /* in evaluations, in training steps */
    int gpu;
    char *adapter;
    size_t adapter_bytes;
    library_result result;
    char message[512];
} neighbour;

/* Comes only while both jobs are inside a call, of the same phase: a training step or an evaluation. */
static void meet(void *user, const char *phase, double done, double total)
{
    (void)done;
    (void)total;
    if (strcmp(phase, "evaluating") && strcmp(phase, TSR_JOB_TRAINING))
        return;
    ((neighbour *)user)->met[!strcmp(phase, TSR_JOB_TRAINING)]++;
    pthread_barrier_wait(&both);
}

static int keep_adapter(void *user, const char *name, const void *data, size_t bytes, int last)
{
    neighbour *n = user;
    (void)last;
    if (strcmp(name, "adapter_model.safetensors"))
        return 0;
    n->adapter = realloc(n->adapter, n->adapter_bytes + bytes);
    memcpy(n->adapter + n->adapter_bytes, data, bytes);
    n->adapter_bytes += bytes;
    return 0;
}

static void *run_neighbour(void *user)
{
    neighbour *n = user;
    tsr_job_options options = library_options(library_config);
    options.overrides = n->overrides;
    options.override_count = 5;
    options.first_gpu = n->gpu;
    options.user = n;
    options.progress = n->meets ? meet : NULL;
    options.adapter = keep_adapter;
    library_run(&n->result, &options);
    snprintf(n->message, sizeof n->message, "%s", tsr_last_error());
    return NULL;
}

/* Each in its directory, with its own adapter; each has the bits that it has alone. On a GPU the jobs alone, which replace the
 * others, take the matmuls that those have chosen and left in their directories. */
static void two_jobs_at_a_time(void **state)
{
    char place[2][600];
    neighbour pair[2], alone[2];
    pthread_t thread[2];
    (void)state;
    pthread_barrier_init(&both, NULL, 2);
    for (int i = 0; i < 2; i++) {
        snprintf(place[i], sizeof place[i], "output_dir=%s/neighbour%d", library_directory, i);
        pair[i] = (neighbour){{place[i], backend, budget, i ? "lora_r=4" : "lora_r=8",
                               i ? "use_dora=true" : "use_dora=false"},
                              .meets = 1,
                              .gpu = gpus > 1 ? i : 0};
        alone[i] = pair[i];
        alone[i].meets = 0;
        pthread_create(&thread[i], NULL, run_neighbour, &pair[i]);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    pthread_barrier_destroy(&both);
    for (int i = 0; i < 2; i++) {
        if (pair[i].result.status != 0)
            fail_msg("job %d: %s", i, pair[i].message);
        assert_true(pair[i].met[0] > 1);
        assert_true(pair[i].met[1] >= LIBRARY_STEPS);
        library_trained(&pair[i].result);
        run_neighbour(&alone[i]);
        assert_memory_equal(pair[i].result.loss, alone[i].result.loss, sizeof alone[i].result.loss);
        assert_true(pair[i].result.eval_loss == alone[i].result.eval_loss);
        assert_true(alone[i].adapter_bytes > 0);
        assert_int_equal(pair[i].adapter_bytes, alone[i].adapter_bytes);
        assert_memory_equal(pair[i].adapter, alone[i].adapter, alone[i].adapter_bytes);
        free(pair[i].adapter);
        free(alone[i].adapter);
    }
    assert_true(pair[0].result.loss[2] != pair[1].result.loss[2]);
}

/* An error is its thread's. */
static void *fail_elsewhere(void *user)
{
    tsr_job_options options = library_options("learning_rat: 1\n");
    library_run(user, &options);
    return NULL;
}

static void errors_stay_with_their_thread(void **state)
{
    library_result other;
    pthread_t thread;
    (void)state;
    tsr_job_options options = library_options("warmup_step: 1\n");
    library_run(&(library_result){0}, &options);
    assert_non_null(strstr(tsr_last_error(), "warmup_step"));
    pthread_create(&thread, NULL, fail_elsewhere, &other);
    pthread_join(thread, NULL);
    assert_int_equal(other.status, TSR_ECONFIG);
    assert_non_null(strstr(tsr_last_error(), "warmup_step"));
}

/* ---- 0.2 ---- */

static tsr_job *asked;

static void ask(int number)
{
    (void)number;
    tsr_job_request_stop(asked);
}

static void a_signal_handler_may_stop_a_job(void **state)
{
    tsr_job_report report = TSR_JOB_REPORT_INIT;
    struct sigaction handler = {.sa_handler = ask}, before;
    (void)state;
    tsr_job_options options = library_options(library_config);
    if (tsr_job_create(&asked, &options) < 0 || tsr_job_start(asked) < 0)
        fail_msg("%s", tsr_last_error());
    sigaction(SIGUSR1, &handler, &before);
    raise(SIGUSR1);
    sigaction(SIGUSR1, &before, NULL);
    assert_int_equal(tsr_job_step(asked, &report), TSR_OK);
    assert_true(report.last && report.stopped && report.save);
    assert_int_equal(tsr_job_step(asked, &report), TSR_JOB_DONE);
    tsr_job_destroy(asked);
}

static void *ask_for_a_stop(void *user)
{
    tsr_job_request_stop(user);
    return NULL;
}

/* While the job steps: whenever the request comes, it is heeded, and ThreadSanitizer sees no race. */
static void another_thread_may_stop_a_job(void **state)
{
    tsr_job *job;
    tsr_job_report report = TSR_JOB_REPORT_INIT;
    pthread_t thread;
    int status = 0;
    const char *const longer[] = {"max_steps=100000", "eval_strategy=no"};
    (void)state;
    tsr_job_options options = library_options(library_config);
    options.overrides = longer;
    options.override_count = 2;
    if (tsr_job_create(&job, &options) < 0 || tsr_job_start(job) < 0)
        fail_msg("%s", tsr_last_error());
    assert_int_equal(tsr_job_step(job, &report), TSR_OK);
    assert_false(report.last);
    pthread_create(&thread, NULL, ask_for_a_stop, job);
    while ((status = tsr_job_step(job, &report)) == TSR_OK)
        assert_true(report.step < 100000);
    pthread_join(thread, NULL);
    assert_int_equal(status, TSR_JOB_DONE);
    assert_true(report.last && report.stopped && report.save);
    tsr_job_destroy(job);
}

static void *start_job(void *user)
{
    return tsr_job_start(user) == TSR_OK ? user : NULL;
}

static void *step_job(void *user)
{
    tsr_job_report report = TSR_JOB_REPORT_INIT;
    return tsr_job_step(user, &report) == TSR_OK ? user : NULL;
}

/* Made by one, started and stepped by others that are gone afterwards. */
static void threads_take_turns(void **state)
{
    void *(*const turns[])(void *) = {start_job, step_job, step_job};
    tsr_job *job;
    pthread_t thread;
    void *result;
    (void)state;
    tsr_job_options options = library_options(library_config);
    if (tsr_job_create(&job, &options) < 0)
        fail_msg("%s", tsr_last_error());
    for (size_t i = 0; i < sizeof turns / sizeof *turns; i++) {
        pthread_create(&thread, NULL, turns[i], job);
        pthread_join(thread, &result);
        assert_ptr_equal(result, job);
    }
    assert_non_null(step_job(job));
    assert_int_equal(tsr_job_save(job), TSR_OK);
    tsr_job_destroy(job);
}

/* Asks for a stop as soon as the job says that it waits. */
static void stop_the_waiting(void *user, int severity, const char *line)
{
    (void)severity;
    if (!strstr(line, "is still locked by"))
        return;
    ++*(int *)user;
    tsr_job_request_stop(asked);
}

/* output_dir is held by somebody who cannot be seen: without the stop that takes 30 seconds, and another status. */
static void a_stop_ends_the_wait_for_output_dir(void **state)
{
    char place[600], path[640];
    int waited = 0;
    const char *const overrides[] = {place};
    (void)state;
    snprintf(place, sizeof place, "output_dir=%s/held", library_directory);
    snprintf(path, sizeof path, "%s/held/.tessera.lock", library_directory);
    tsr_job_options options = library_options(library_config);
    options.overrides = overrides;
    options.log = stop_the_waiting;
    options.user = &waited;
    mkdir(place + strlen("output_dir="), 0777);
    if (tsr_job_create(&asked, &options) < 0)
        fail_msg("%s", tsr_last_error());
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    assert_int_equal(tsr_job_start(asked), TSR_ESTOPPED_UNSAVED);
    assert_int_equal(waited, 1);
    tsr_job_destroy(asked);
    close(fd);
}

/* A callback may run a job of its own; what its caller's has to say is heard afterwards. */
typedef struct {
    int lines, nests;
} nest;

static void run_another(void *user, int severity, const char *line)
{
    nest *n = user;
    tsr_job *inner = NULL;
    (void)severity;
    (void)line;
    if (n->lines++ || !n->nests)
        return;
    nest quiet = {0};
    tsr_job_options options = library_options(library_config);
    options.log = run_another;
    options.user = &quiet;
    assert_int_equal(tsr_job_create(&inner, &options), TSR_OK);
    tsr_job_destroy(inner);
}

static void a_callback_may_run_a_job(void **state)
{
    nest alone = {0}, nested = {.nests = 1};
    (void)state;
    for (int i = 0; i < 2; i++) {
        tsr_job *job = NULL;
        tsr_job_options options = library_options(library_config);
        options.log = run_another;
        options.user = i ? &nested : &alone;
        assert_int_equal(tsr_job_create(&job, &options), TSR_OK);
        tsr_job_destroy(job);
    }
    assert_true(alone.lines > 1);
    assert_int_equal(nested.lines, alone.lines);
}

static void options_may_be_older_or_newer(void **state)
{
    struct {
        tsr_job_options known;
        int64_t more;
    } newer = {.known = library_options(library_config)};
    tsr_job *job = NULL;
    char *text = NULL;
    (void)state;
    newer.known.size = sizeof newer;
    assert_int_equal(tsr_job_create(&job, &newer.known), TSR_OK);
    tsr_job_destroy(job);
    newer.more = 1;
    assert_int_equal(tsr_job_create(&job, &newer.known), TSR_EINVAL);
    assert_non_null(strstr(tsr_last_error(), "newer tessera.h"));
    tsr_job_options older = library_options(library_config), none = older;
    older.size = offsetof(tsr_job_options, log); /* what is behind is not looked at */
    older.log = (void (*)(void *, int, const char *))(uintptr_t)1;
    assert_int_equal(tsr_job_create(&job, &older), TSR_OK);
    tsr_job_destroy(job);
    none.size = (size_t)1 << 30; /* never set: what is behind is not read */
    assert_int_equal(tsr_job_create(&job, &none), TSR_EINVAL);
    none.size = 0;
    assert_int_equal(tsr_job_create(&job, &none), TSR_EINVAL);
    assert_non_null(strstr(tsr_last_error(), "TSR_JOB_OPTIONS_INIT"));
    assert_int_equal(tsr_merge(&none, 0, &text), TSR_EINVAL);
    assert_int_equal(tsr_environment(&none, 0, 0, &text), TSR_EINVAL);
    const tsr_job_options empty = TSR_JOB_OPTIONS_INIT;
    assert_int_equal(tsr_inspect("/nowhere", &empty, 0, &text) < 0, 1);
    assert_int_equal(tsr_environment(&empty, 0, 0, &text), TSR_OK);
    tsr_free(text);
    tsr_free(NULL);
}

/* ---- structs that the library fills, of a caller with another version's header ---- */

typedef union {
    size_t size;
    tsr_job_report report;
    tsr_job_evaluation evaluation;
    tsr_job_plan_info info;
    unsigned char bytes[512];
} filled;

#define UNTOUCHED 0xa5 /* in bytes that the caller did not offer, or that no call has filled yet */

static tsr_status fill_report(tsr_job *job, filled *out)
{
    return tsr_job_step(job, out ? &out->report : NULL);
}

static tsr_status fill_resumed(tsr_job *job, filled *out)
{
    return (tsr_status)tsr_job_resumed(job, out ? &out->report : NULL);
}

static tsr_status fill_evaluation(tsr_job *job, filled *out)
{
    return tsr_job_evaluate(job, out ? &out->evaluation : NULL);
}

static tsr_status fill_info(tsr_job *job, filled *out)
{
    return tsr_job_plan(job, out ? &out->info : NULL);
}

typedef struct {
    const char *name, *initialiser;
    size_t bytes, first;                        /* of the struct; where its second member begins */
    tsr_status (*fill)(tsr_job *, filled *out); /* NULL: no struct */
} filled_type;

/* With a size that the caller's header has: filled that far and no further, the rest of a newer caller's with zeros. */
static void fill_with_size(tsr_job *job, const filled_type *type, size_t size)
{
    filled out;
    size_t known = size < type->bytes ? size : type->bytes, seen = 0;
    memset(&out, UNTOUCHED, sizeof out);
    out.size = size;
    if (type->fill(job, &out) != TSR_OK)
        fail_msg("%s of %zu bytes: %s", type->name, size, tsr_last_error());
    assert_int_equal(out.size, size);
    for (size_t i = sizeof size; i < sizeof out.bytes; i++)
        if (i >= known && out.bytes[i] != (i < size ? 0 : UNTOUCHED))
            fail_msg("%s of %zu bytes: byte %zu is %d", type->name, size, i, out.bytes[i]);
    for (size_t i = sizeof size; i < known; i++)
        seen += out.bytes[i] != UNTOUCHED;
    assert_true(seen >= sizeof(int64_t));
}

static void refuse_sizes(tsr_job *job, const filled_type *type)
{
    const size_t wrong[] = {0, 1, sizeof(size_t), (size_t)1 << 30, SIZE_MAX};
    filled out;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        memset(&out, UNTOUCHED, sizeof out);
        out.size = wrong[i];
        assert_int_equal(type->fill(job, &out), TSR_EINVAL);
        assert_non_null(strstr(tsr_last_error(), type->name));
        assert_true(wrong[i] != 0 || strstr(tsr_last_error(), type->initialiser));
        for (size_t k = sizeof(size_t); k < sizeof out.bytes; k++)
            assert_int_equal(out.bytes[k], UNTOUCHED);
    }
    assert_int_equal(type->fill(job, NULL), TSR_EINVAL);
    assert_non_null(strstr(tsr_last_error(), type->name));
}

static void what_is_filled_may_be_older_or_newer(void **state)
{
    static const filled_type types[] = {
        {"tsr_job_plan_info", "TSR_JOB_PLAN_INFO_INIT", sizeof(tsr_job_plan_info),
         offsetof(tsr_job_plan_info, host_peak_bytes), fill_info},
        {"tsr_job_evaluation", "TSR_JOB_EVALUATION_INIT", sizeof(tsr_job_evaluation),
         offsetof(tsr_job_evaluation, perplexity), fill_evaluation},
        {"tsr_job_report", "TSR_JOB_REPORT_INIT", sizeof(tsr_job_report),
         offsetof(tsr_job_report, total_steps), fill_report},
    };
    static const filled_type resumed = {
        .name = "tsr_job_report", .initialiser = "TSR_JOB_REPORT_INIT", .fill = fill_resumed};
    const char *const steps[] = {"max_steps=3"};
    tsr_job *job = NULL;
    (void)state;
    tsr_job_options options = library_options(library_config);
    options.overrides = steps;
    if (tsr_job_create(&job, &options) < 0)
        fail_msg("%s", tsr_last_error());
    for (int i = 0; i < 3; i++) {
        if (i == 1 && tsr_job_start(job) < 0)
            fail_msg("%s", tsr_last_error());
        refuse_sizes(job, &types[i]);
        fill_with_size(job, &types[i], types[i].first);
        fill_with_size(job, &types[i], types[i].bytes);
        fill_with_size(job, &types[i], types[i].bytes + 24);
    }
    refuse_sizes(job, &resumed);
    tsr_job_report report = TSR_JOB_REPORT_INIT; /* refused calls were no steps */
    assert_int_equal(tsr_job_step(job, &report), TSR_JOB_DONE);
    assert_int_equal(report.step, 0);
    tsr_job_destroy(job);
}

static void statuses_have_names(void **state)
{
    (void)state;
    assert_string_equal(tsr_status_name(TSR_OK), "TSR_OK");
    assert_string_equal(tsr_status_name(TSR_JOB_DONE), "TSR_JOB_DONE");
    assert_string_equal(tsr_status_name(TSR_EDATA), "TSR_EDATA");
    for (int status = TSR_EDEVICE; status < 0; status++)
        assert_string_not_equal(tsr_status_name((tsr_status)status), "TSR_OK");
}

static int usable_gpus(void)
{
    char *text = NULL;
    int found = 0;
    if (tsr_environment(NULL, 0, 1, &text) != TSR_OK)
        return 0;
    for (const char *p = strstr(text, "\"gpus\""); p && (p = strstr(p, "\"memory_free_bytes\""));
         p++)
        found++;
    tsr_free(text);
    return found;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest on_gpu[] = {cmocka_unit_test(two_jobs_at_a_time)};
    if (argc > 1 && !strcmp(argv[1], "cuda")) {
        backend = "backend=cuda";
        budget = "memory_budget=4GiB"; /* 1 GiB of it is for what CUDA takes itself */
        gpus = argc > 2 ? atoi(argv[2]) : 1;
        if (usable_gpus() >= gpus)
            return cmocka_run_group_tests(on_gpu, library_set_up, library_tear_down);
        printf("skipped: %d GPUs can be used\n", usable_gpus());
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_jobs_at_a_time),
        cmocka_unit_test(errors_stay_with_their_thread),
        cmocka_unit_test(a_signal_handler_may_stop_a_job),
        cmocka_unit_test(another_thread_may_stop_a_job),
        cmocka_unit_test(threads_take_turns),
        cmocka_unit_test(a_stop_ends_the_wait_for_output_dir),
        cmocka_unit_test(a_callback_may_run_a_job),
        cmocka_unit_test(options_may_be_older_or_newer),
        cmocka_unit_test(what_is_filled_may_be_older_or_newer),
        cmocka_unit_test(statuses_have_names),
    };
    return cmocka_run_group_tests(tests, library_set_up, library_tear_down);
}
