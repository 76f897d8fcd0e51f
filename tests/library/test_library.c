/*
 * The shared library as an embedder sees it: only include/tessera.h. What it must leave alone (the
 * terminal, signals, the working directory, the locale, threads, files), its errors, and ranks that
 * find each other through a bootstrap table.
 */
#include "library/fixture.h"

#include <fcntl.h>
#include <fenv.h>
#include <locale.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- manners ---- */

typedef struct {
    struct sigaction handler[32];
    sigset_t blocked;
    char where[4096], locale[256];
    mode_t mask;
    int threads, files;
} surroundings;

static void look_around(surroundings *s)
{
    memset(s, 0, sizeof *s);
    for (int i = 1; i < 32; i++)
        sigaction(i, NULL, &s->handler[i]);
    pthread_sigmask(SIG_SETMASK, NULL, &s->blocked);
    assert_non_null(getcwd(s->where, sizeof s->where));
    snprintf(s->locale, sizeof s->locale, "%s", setlocale(LC_ALL, NULL));
    s->mask = umask(0);
    umask(s->mask);
    s->threads = library_entries("/proc/self/task");
    s->files = library_entries("/proc/self/fd");
}

static void assert_unchanged(const surroundings *before, int finished)
{
    surroundings now;
    look_around(&now);
    for (int i = 1; i < 32; i++) {
        assert_ptr_equal(now.handler[i].sa_handler, before->handler[i].sa_handler);
        assert_int_equal(now.handler[i].sa_flags, before->handler[i].sa_flags);
    }
    for (int i = 1; i < 32; i++)
        assert_int_equal(sigismember(&now.blocked, i), sigismember(&before->blocked, i));
    assert_string_equal(now.where, before->where);
    assert_string_equal(now.locale, before->locale);
    assert_int_equal(now.mask, before->mask);
    if (finished) {
        assert_int_equal(now.threads, before->threads);
        assert_int_equal(now.files, before->files);
    }
}

/* Both streams into one file, for as long as a job lives. */
static int capture(int saved[2], const char *path)
{
    fflush(NULL);
    int file = open(path, O_CREAT | O_TRUNC | O_RDWR, 0600);
    for (int i = 0; i < 2; i++) {
        saved[i] = dup(1 + i);
        dup2(file, 1 + i);
    }
    return file;
}

static long release(int saved[2], int file)
{
    fflush(NULL);
    for (int i = 0; i < 2; i++) {
        dup2(saved[i], 1 + i);
        close(saved[i]);
    }
    long bytes = (long)lseek(file, 0, SEEK_END);
    close(file);
    return bytes;
}

/* Two jobs one after the other, the second one refused: not a byte is printed, nothing changes. */
static void leaves_no_trace(void **state)
{
    surroundings before;
    char path[64];
    library_result r, again;
    int saved[2];
    (void)state;
    setlocale(LC_ALL, "C.UTF-8");
    tsr_job_options options = library_options(library_config),
                    bad = library_options("learning_rat: 1\n");
    snprintf(path, sizeof path, "%s/printed", library_directory);
    library_run(&r, &options); /* whatever is set up once in a process is set up now */
    look_around(&before);
    int file = capture(saved, path);
    library_run(&again, &options);
    int refused = library_run(&(library_result){0}, &bad);
    long printed = release(saved, file);
    assert_int_equal(printed, 0);
    assert_unchanged(&before, 1);
    assert_true(refused < 0);
    library_trained(&r);
    library_trained(&again);
    assert_memory_equal(r.loss, again.loss, sizeof r.loss);
}

/* While it lives it has threads, and nothing else of the process's. */
static void borrows_only_threads(void **state)
{
    surroundings before;
    tsr_job *job = NULL;
    (void)state;
    tsr_job_options options = library_options(library_config);
    options.progress = library_look_at_descriptors;
    look_around(&before);
    library_note_descriptors();
    assert_int_equal(tsr_job_create(&job, &options), 0);
    assert_int_equal(tsr_job_start(job), 0);
    assert_true(library_descriptors_seen > 0);
    assert_true(library_entries("/proc/self/task") > before.threads);
    assert_unchanged(&before, 0);
    tsr_job_destroy(job);
    assert_unchanged(&before, 1);
    tsr_job_destroy(NULL);
}

/* ---- errors ---- */

static void *last_error_elsewhere(void *user)
{
    *(int *)user = (int)strlen(tsr_last_error());
    return NULL;
}

static void refused(const char *text, int exit_code, const char *expected)
{
    tsr_job *job = (tsr_job *)&library_directory;
    tsr_job_options options = library_options(text);
    int status = tsr_job_create(&job, &options);
    assert_true(status < 0);
    assert_ptr_equal(job, &library_directory); /* untouched */
    assert_int_equal(tsr_job_exit_code(status), exit_code);
    if (!strstr(tsr_last_error(), expected))
        fail_msg("\"%s\" is not in: %s", expected, tsr_last_error());
    assert_int_equal(tsr_job_reports(), 1);
}

static void errors_say_what_and_where(void **state)
{
    char text[4096];
    pthread_t thread;
    int elsewhere = -1;
    (void)state;
    refused("learning_rat: 1\n", 78, "learning_rate");
    refused("max_steps: many\n", 78, "max_steps");
    refused("", 78, "model_name_or_path");
    refused("- a\n", 78, "");
    snprintf(text, sizeof text, "%sdataset: /nowhere/rows.jsonl\n", library_config);
    refused(text, 78, "dataset"); /* a key given twice */
    refused(
        "model_name_or_path: /nowhere\ndataset: /nowhere/rows.jsonl\noutput_dir: /nowhere/out\n",
        65, "/nowhere");
    pthread_create(&thread, NULL, last_error_elsewhere, &elsewhere);
    pthread_join(thread, NULL);
    assert_int_equal(elsewhere, 0); /* messages belong to a thread */
    assert_int_equal(tsr_job_exit_code(0), 0);
    assert_int_equal(tsr_job_exit_code(TSR_JOB_DONE), 0);
    assert_int_equal(tsr_job_exit_code(-12345), 70);
}

static void options_are_checked(void **state)
{
    tsr_job *job = NULL;
    (void)state;
    tsr_job_options good = library_options(library_config), bad;
    assert_int_equal(tsr_job_exit_code(tsr_job_create(NULL, &good)), 70);
    assert_int_equal(tsr_job_exit_code(tsr_job_create(&job, NULL)), 70);
#define REFUSED(field, value, expected)                                                            \
    do {                                                                                           \
        bad = good;                                                                                \
        bad.field = value;                                                                         \
        assert_int_equal(tsr_job_exit_code(tsr_job_create(&job, &bad)), 70);                       \
        assert_non_null(strstr(tsr_last_error(), expected));                                       \
        assert_null(job);                                                                          \
    } while (0)
    REFUSED(purpose, 4, "purpose 4");
    REFUSED(purpose, -1, "purpose -1");
    REFUSED(config_path, "job.yaml", "both set");
    REFUSED(override_count, -1, "override_count -1");
    REFUSED(overrides, NULL, "overrides NULL");
    REFUSED(threads, -1, "threads -1");
    REFUSED(timeout_seconds, -2, "timeout_seconds -2");
    REFUSED(plan_ranks, -2, "plan_ranks -2");
    REFUSED(first_gpu, -3, "first_gpu -3");
    REFUSED(bootstrap.size, 2, "all_gather");
    tsr_job_bootstrap outside = {.rank = 2, .size = 2};
    REFUSED(bootstrap, outside, "rank 2 of 2");
}

static void calls_have_an_order(void **state)
{
    tsr_job *job = NULL;
    tsr_job_report report = TSR_JOB_REPORT_INIT;
    tsr_job_evaluation evaluation = TSR_JOB_EVALUATION_INIT;
    char *text = NULL;
    (void)state;
    tsr_job_options options = library_options(library_config);
    assert_int_equal(tsr_job_create(&job, &options), 0);
    assert_true(tsr_job_step(job, &report) < 0);
    assert_non_null(strstr(tsr_last_error(), "started"));
    assert_true(tsr_job_evaluate(job, &evaluation) < 0);
    assert_true(tsr_job_save(job) < 0);
    /* None of these mistakes has done any harm. */
    assert_int_equal(tsr_job_start(job), 0);
    assert_true(tsr_job_start(job) < 0);
    assert_non_null(strstr(tsr_last_error(), "before"));
    assert_int_equal(tsr_job_print_plan(job, 1, &text), 0);
    assert_int_equal(text[0], '{');
    free(text);
    assert_int_equal(tsr_job_print_summary(job, &text), 0);
    assert_non_null(strstr(text, "LoRA"));
    free(text);
    for (int i = 0; i < LIBRARY_STEPS; i++) {
        assert_int_equal(tsr_job_step(job, &report), 0);
        assert_int_equal(report.step, i + 1);
        assert_int_equal(report.last, i == LIBRARY_STEPS - 1);
    }
    assert_int_equal(tsr_job_step(job, &report), TSR_JOB_DONE);
    assert_int_equal(tsr_job_step(job, &report), TSR_JOB_DONE);
    tsr_job_destroy(job);
}

static void purposes_limit_the_calls(void **state)
{
    tsr_job *job = NULL;
    tsr_job_report report = TSR_JOB_REPORT_INIT;
    tsr_job_evaluation evaluation = TSR_JOB_EVALUATION_INIT;
    tsr_job_plan_info info[2] = {TSR_JOB_PLAN_INFO_INIT, TSR_JOB_PLAN_INFO_INIT};
    char *text = NULL, *upwards = NULL;
    (void)state;
    tsr_job_options options = library_options(library_config);
    options.purpose = TSR_JOB_PLAN;
    for (int i = 0; i < 2; i++) {
        options.plan_ranks = i ? 4 : 0;
        assert_int_equal(tsr_job_create(&job, &options), 0);
        assert_int_equal(tsr_job_plan(job, &info[i]), 0);
        assert_int_equal(tsr_job_print_plan(job, 0, &text), 0);
        assert_true(tsr_job_start(job) < 0);
        assert_non_null(strstr(tsr_last_error(), "planned"));
        free(text);
        tsr_job_destroy(job);
    }
    assert_int_equal(info[0].trainable_count, info[1].trainable_count);
    assert_true(info[1].device_peak_bytes < info[0].device_peak_bytes);

    options.purpose = TSR_JOB_DATA;
    assert_int_equal(tsr_job_create(&job, &options), 0);
    assert_int_equal(tsr_job_print_data(job, 1, TSR_JOB_JSON, &text), 0);
    assert_non_null(strstr(text, "\"trained_tokens\""));
    free(text);
    assert_int_equal(tsr_job_print_data(job, 0, TSR_JOB_PLAIN, &text), 0);
    fesetround(FE_UPWARD); /* a caller's rounding is not the library's */
    assert_int_equal(tsr_job_print_data(job, 0, TSR_JOB_PLAIN, &upwards), 0);
    assert_int_equal(fegetround(), FE_UPWARD);
    fesetround(FE_TONEAREST);
    assert_string_equal(text, upwards);
    free(text);
    free(upwards);
    assert_int_equal(tsr_job_print_data(job, 1, TSR_JOB_HTML, &text), 0);
    assert_ptr_equal(strstr(text, "<!DOCTYPE html>"), text);
    free(text);
    assert_true(tsr_job_print_data(job, 1, TSR_JOB_HTML + 1, &text) < 0);
    assert_true(tsr_job_print_data(job, -1, TSR_JOB_PLAIN, &text) < 0);
    assert_true(tsr_job_plan(job, &info[0]) < 0);
    assert_true(tsr_job_start(job) < 0);
    assert_true(tsr_job_print_summary(job, &text) < 0);
    assert_non_null(strstr(tsr_last_error(), "data"));
    tsr_job_destroy(job);

    options.purpose = TSR_JOB_EVALUATE;
    assert_int_equal(tsr_job_create(&job, &options), 0);
    assert_true(tsr_job_print_data(job, 0, TSR_JOB_PLAIN, &text) < 0);
    assert_int_equal(tsr_job_start(job), 0);
    assert_true(tsr_job_step(job, &report) < 0);
    assert_true(tsr_job_save(job) < 0);
    assert_int_equal(tsr_job_evaluate(job, &evaluation), 0);
    assert_true(evaluation.loss > 0 && evaluation.label_tokens > 0 && evaluation.rows == 2);
    tsr_job_destroy(job);
}

static void too_little_memory(void **state)
{
    tsr_job *job = NULL;
    tsr_job_plan_info info = TSR_JOB_PLAN_INFO_INIT;
    char text[4096];
    (void)state;
    snprintf(text, sizeof text, "%smemory_budget: 1MiB\n", library_config);
    tsr_job_options options = library_options(text);
    assert_int_equal(tsr_job_create(&job, &options), 0);
    int status = tsr_job_plan(job, &info);
    assert_int_equal(tsr_job_exit_code(status), 78);
    assert_non_null(strstr(tsr_last_error(), "memory_budget"));
    assert_true(tsr_job_start(job) < 0); /* a failed job can only be destroyed */
    tsr_job_destroy(job);
}

/* ---- callbacks ---- */

typedef struct {
    int warnings, infos, phases, graphs;
    double done, total;
} heard;

static void on_log(void *user, int severity, const char *line)
{
    heard *h = user;
    assert_non_null(line);
    h->warnings += severity == TSR_JOB_WARNING;
    h->infos += severity == TSR_JOB_INFO;
    h->graphs += !strncmp(line, "adapters forward by ", 20);
}

static void on_progress(void *user, const char *phase, double done, double total)
{
    heard *h = user;
    assert_non_null(phase);
    assert_true(done >= 0 && done <= total);
    h->phases++;
    h->done = done;
    h->total = total;
}

static void callbacks_and_stop(void **state)
{
    static volatile int stop;
    tsr_job *job = NULL;
    tsr_job_report report = TSR_JOB_REPORT_INIT;
    heard h = {0};
    char text[4096];
    (void)state;
    snprintf(text, sizeof text, "%struncation: right\nmax_length: 40\n", library_config);
    tsr_job_options options = library_options(text);
    options.log = on_log;
    options.progress = on_progress;
    options.user = &h;
    options.stop = &stop;
    const char *longer[] = {"max_steps=50", "lora_r=4"};
    options.overrides = longer;
    options.override_count = 2;
    assert_int_equal(tsr_job_create(&job, &options), 0);
    assert_int_equal(tsr_job_total_steps(job), 50);
    assert_int_equal(tsr_job_ranks(job), 1);
    assert_int_equal(tsr_job_rank(job), 0);
    assert_int_equal(h.graphs, 0);
    assert_int_equal(tsr_job_start(job), 0);
    assert_true(h.graphs > 0);   /* what the start itself has to say */
    assert_true(h.warnings > 0); /* rows were cut */
    assert_true(h.infos > 0);    /* defaults that are not TRL's */
    assert_true(h.phases > 1 && h.done == h.total);
    assert_int_equal(tsr_job_step(job, &report), 0);
    assert_int_equal(report.last, 0);
    stop = 1;
    assert_int_equal(tsr_job_step(job, &report), 0);
    assert_int_equal(report.last, 1);
    assert_int_equal(report.stopped, 1);
    assert_int_equal(report.save, 1);
    assert_int_equal(tsr_job_step(job, &report), TSR_JOB_DONE);
    assert_int_equal(tsr_job_save(job), 0);
    tsr_job_destroy(job);
}

/* How often `words` stands in metrics.jsonl of `name`. */
static int metrics_say(const char *name, const char *words)
{
    char path[128], line[4096];
    int count = 0;
    snprintf(path, sizeof path, "%s/%s/metrics.jsonl", library_directory, name);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file))
        count += strstr(line, words) != NULL;
    fclose(file);
    return count;
}

/* A saved adapter is the run's end only after its last step; "saved" means that it can be gone on with. */
static void the_end_comes_once(void **state)
{
    static const char end[] = "\"event\":\"end\"", done[] = "\"status\":\"done\"";
    static volatile int stop;
    (void)state;
    for (int stopped = 0; stopped < 3; stopped++) { /* 1: stopped; 2: with a checkpoint */
        tsr_job *job = NULL;
        tsr_job_report report = TSR_JOB_REPORT_INIT;
        tsr_job_options options = library_options(library_config);
        options.stop = &stop;
        stop = 0;
        assert_int_equal(tsr_job_create(&job, &options), 0);
        assert_int_equal(tsr_job_start(job), 0);
        assert_int_equal(tsr_job_step(job, &report), 0);
        assert_int_equal(tsr_job_save(job), 0);
        assert_int_equal(metrics_say("out", end), 0);
        stop = stopped > 0;
        while (tsr_job_step(job, &report) == 0)
            continue;
        assert_int_equal(report.stopped, stopped > 0);
        assert_int_equal(metrics_say("out", end), 0);
        if (stopped == 2)
            assert_int_equal(tsr_job_checkpoint(job), 0);
        assert_int_equal(tsr_job_save(job), 0);
        tsr_job_destroy(job);
        assert_int_equal(metrics_say("out", end), 1);
        assert_int_equal(metrics_say("out", done), stopped < 2);
        assert_int_equal(metrics_say("out", "\"status\":\"saved\""), stopped == 2);
    }
}

/* Nothing above the log_level of the configuration is told, by any call. */
static void log_level_is_heeded(void **state)
{
    static const char *const levels[] = {"log_level=warning", "log_level=error"};
    char text[4096];
    (void)state;
    snprintf(text, sizeof text, "%struncation: right\nmax_length: 40\n", library_config);
    for (int i = 0; i < 2; i++) {
        tsr_job *job = NULL;
        heard h = {0};
        tsr_job_options options = library_options(text);
        options.log = on_log;
        options.user = &h;
        options.overrides = &levels[i];
        assert_int_equal(tsr_job_create(&job, &options), 0);
        assert_int_equal(tsr_job_start(job), 0);
        tsr_job_destroy(job);
        assert_int_equal(h.infos, 0);
        assert_int_equal(h.warnings > 0, i == 0);
    }
}

/* ---- one directory, several jobs ---- */

/* A job that writes to `name` of the test's directory; `last`: one more override. */
static int create_in(tsr_job **job, const char *name, const char *last)
{
    char output[128];
    snprintf(output, sizeof output, "output_dir=%s/%s", library_directory, name);
    const char *overrides[] = {"lora_r=4", "save_strategy=steps",        "save_steps=2",
                               output,     "overwrite_output_dir=false", last};
    tsr_job_options options = library_options(library_config);
    options.overrides = overrides;
    options.override_count = last ? 6 : 5;
    return tsr_job_create(job, &options);
}

static void train_and_destroy(tsr_job *job)
{
    tsr_job_report report = TSR_JOB_REPORT_INIT;
    int status = tsr_job_start(job);
    while (status == 0 && (status = tsr_job_step(job, &report)) == 0)
        if (report.save)
            assert_int_equal(tsr_job_checkpoint(job), 0);
    if (status == TSR_JOB_DONE)
        status = tsr_job_save(job);
    if (status != 0)
        fail_msg("%s", tsr_last_error());
    tsr_job_destroy(job);
}

static void assert_refused(int status, const char *expected)
{
    assert_int_equal(tsr_job_exit_code(status), 78);
    if (!strstr(tsr_last_error(), expected))
        fail_msg("\"%s\" is not in: %s", expected, tsr_last_error());
}

/* Its files, and when they were written. */
static void look_at(char *out, size_t bytes, const char *name)
{
    char command[256];
    snprintf(command, sizeof command,
             "find %s/%s -type f -printf '%%P %%s %%T@\\n' | LC_ALL=C sort", library_directory,
             name);
    FILE *listing = popen(command, "r");
    assert_non_null(listing);
    out[fread(out, 1, bytes - 1, listing)] = 0;
    pclose(listing);
}

/* Two jobs find a directory empty. One is done before the other starts, which then leaves it alone. */
static void a_finished_run_is_left_alone(void **state)
{
    static const char *const ways[] = {NULL, "resume_from_checkpoint=true"};
    static const char *const words[] = {"already holds a run", "another job has continued"};
    char name[16], before[4096], after[4096];
    (void)state;
    for (int i = 0; i < 2; i++) {
        tsr_job *first = NULL, *second = NULL;
        snprintf(name, sizeof name, "shared%d", i);
        assert_int_equal(create_in(&first, name, NULL), 0);
        assert_int_equal(create_in(&second, name, ways[i]), 0);
        train_and_destroy(first);
        look_at(before, sizeof before, name);
        assert_non_null(strstr(before, "checkpoint-2/manifest.json"));
        assert_refused(tsr_job_start(second), words[i]);
        tsr_job_destroy(second);
        look_at(after, sizeof after, name);
        assert_string_equal(before, after);
    }
}

/* Until it is destroyed no other job starts there, whatever its keys allow; a child that it has not
 * made does not keep the directory. */
static void a_run_has_its_directory_alone(void **state)
{
    tsr_job *first = NULL, *second = NULL, *third = NULL;
    static const char over[] = "overwrite_output_dir=true";
    (void)state;
    assert_int_equal(create_in(&first, "alone", over), 0);
    assert_int_equal(create_in(&second, "alone", over), 0);
    assert_int_equal(tsr_job_start(first), 0);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* if the test fails before */
        pause();
        _exit(0);
    }
    assert_refused(tsr_job_start(second), "another job is writing to output_dir");
    assert_refused(create_in(&third, "alone", over), "another job is writing to output_dir");
    tsr_job_destroy(second);
    tsr_job_destroy(first);
    assert_int_equal(create_in(&third, "alone", over), 0);
    train_and_destroy(third);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

/* ---- ranks through a bootstrap table ---- */

typedef struct {
    library_seat seat;
    heard heard;
    library_result result;
    char message[512];
} rank;

static void *run_rank(void *user)
{
    rank *r = user;
    tsr_job_options options = library_options(library_config);
    options.bootstrap =
        (tsr_job_bootstrap){r->seat.rank, LIBRARY_RANKS, library_all_gather, &r->seat};
    options.log = on_log;
    options.user = &r->heard;
    options.timeout_seconds = 20;
    library_run(&r->result, &options);
    snprintf(r->message, sizeof r->message, "%s", tsr_last_error());
    return NULL;
}

static void run_ranks(rank *ranks, int fail_at)
{
    static library_meeting m;
    pthread_t threads[LIBRARY_RANKS];
    m = (library_meeting){.fail_at = fail_at};
    pthread_barrier_init(&m.barrier, NULL, LIBRARY_RANKS);
    for (int i = 0; i < LIBRARY_RANKS; i++) {
        ranks[i] = (rank){.seat = {&m, i}};
        pthread_create(&threads[i], NULL, run_rank, &ranks[i]);
    }
    for (int i = 0; i < LIBRARY_RANKS; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&m.barrier);
}

/* The ranks get the numbers of one rank, bit for bit. */
static void ranks_meet_through_a_callback(void **state)
{
    rank *ranks = calloc(LIBRARY_RANKS, sizeof *ranks);
    library_result alone;
    (void)state;
    tsr_job_options options = library_options(library_config);
    library_run(&alone, &options);
    library_trained(&alone);
    run_ranks(ranks, 0);
    for (int i = 0; i < LIBRARY_RANKS; i++) {
        if (ranks[i].result.status != 0)
            fail_msg("rank %d: %s", i, ranks[i].message);
        assert_memory_equal(ranks[i].result.loss, alone.loss, sizeof alone.loss);
        assert_true(ranks[i].result.eval_loss == alone.eval_loss);
        assert_int_equal(ranks[i].heard.infos > 0, i == 0); /* rank 0 alone talks */
    }
    free(ranks);
}

static void a_failing_callback_ends_the_job(void **state)
{
    rank *ranks = calloc(LIBRARY_RANKS, sizeof *ranks);
    surroundings before;
    (void)state;
    look_around(&before);
    const int calls[] = {1, 40};
    for (int k = 0; k < 2; k++) {
        run_ranks(ranks, calls[k]);
        for (int i = 0; i < LIBRARY_RANKS; i++) {
            assert_int_equal(tsr_job_exit_code(ranks[i].result.status), 71);
            if (!strstr(ranks[i].message, "all_gather"))
                fail_msg("rank %d: %s", i, ranks[i].message);
        }
    }
    assert_unchanged(&before, 1);
    free(ranks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(leaves_no_trace),
        cmocka_unit_test(borrows_only_threads),
        cmocka_unit_test(errors_say_what_and_where),
        cmocka_unit_test(options_are_checked),
        cmocka_unit_test(calls_have_an_order),
        cmocka_unit_test(purposes_limit_the_calls),
        cmocka_unit_test(too_little_memory),
        cmocka_unit_test(callbacks_and_stop),
        cmocka_unit_test(the_end_comes_once),
        cmocka_unit_test(log_level_is_heeded),
        cmocka_unit_test(a_finished_run_is_left_alone),
        cmocka_unit_test(a_run_has_its_directory_alone),
        cmocka_unit_test(ranks_meet_through_a_callback),
        cmocka_unit_test(a_failing_callback_ends_the_job),
    };
    return cmocka_run_group_tests(tests, library_set_up, library_tear_down);
}
