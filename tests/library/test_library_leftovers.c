/*
 * After a job nothing of it is left in the process: no thread, child, descriptor, byte of the heap,
 * mapping, shared memory object or temporary file; whether it came to its end, was stopped, was
 * refused, failed on the way, or lost a rank. Each way is gone twice: what a process sets up once is
 * set up the first time (the regex library, the topology, caches of libc), and the second must leave
 * everything as it found it.
 *
 * Bytes are counted by libc (told to keep no caches of its own; the loader's count goes up and down
 * when hwloc loads its plugins and drops them, so it finds none), with a sanitizer by its allocator;
 * valgrind counts by itself, and knows of every block that nobody points at any more. It takes
 * minutes, so name one way:
 *
 *     GLIBC_TUNABLES= valgrind --leak-check=full --error-exitcode=1 \
 *         build/tests/library/test_library_leftovers "a broken row"
 */
#include "library/fixture.h"

#include <dirent.h>
#include <errno.h>
#include <malloc.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#ifdef TSR_SANITIZED
size_t __sanitizer_get_current_allocated_bytes(void);
#endif

#define KEEPS_NOTHING                                                                              \
    "glibc.malloc.tcache_count=0:glibc.malloc.arena_max=1:glibc.pthread.stack_cache_size=0"

/* ---- what there is ---- */

typedef struct {
    int threads, descriptors, objects, temporary, here;
    size_t heap, mapped;
} belongings;

/* Of the shared memory objects those that this process made. */
static int own_objects(void)
{
    char prefix[32];
    int count = 0;
    DIR *entries = opendir("/dev/shm");
    snprintf(prefix, sizeof prefix, "tessera-%ld-", (long)getpid());
    for (struct dirent *entry; entries && (entry = readdir(entries));)
        count += strncmp(entry->d_name, prefix, strlen(prefix)) == 0;
    if (entries)
        closedir(entries);
    return count;
}

static size_t heap_bytes(void)
{
#ifdef TSR_SANITIZED
    return __sanitizer_get_current_allocated_bytes();
#else
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
#endif
}

/* OpenBLAS keeps so much address space for each thread that has ever computed beside others. */
#define BLAS_BUFFER ((size_t)32 << 22)

/* All mappings but the heap and the stack, which grow and shrink as libc likes, modulo those of
 * OpenBLAS; 0 with a sanitizer or valgrind, whose own come and go. */
static size_t mapped_bytes(void)
{
    size_t total = 0;
#ifndef TSR_SANITIZED
    char line[4352];
    unsigned long long begin, end;
    if (getenv("LD_PRELOAD")) /* as valgrind does */
        return 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    assert_non_null(maps);
    while (fgets(line, sizeof line, maps))
        if (!strstr(line, "[heap]") && !strstr(line, "[stack]") &&
            sscanf(line, "%llx-%llx", &begin, &end) == 2)
            total += end - begin;
    fclose(maps);
#endif
    return total % BLAS_BUFFER;
}

/* A thread that was joined may be seen for a moment. */
static int settled_threads(int expected)
{
    int count = 0;
    for (int i = 0; i < 500 && (count = library_entries("/proc/self/task")) > expected; i++)
        nanosleep(&(struct timespec){.tv_nsec = 4000000}, NULL);
    return count;
}

static void take_stock(belongings *b, int threads_expected)
{
    *b = (belongings){.threads = settled_threads(threads_expected),
                      .descriptors = library_entries("/proc/self/fd"),
                      .objects = own_objects(),
                      .temporary = library_entries(getenv("TMPDIR")),
                      .here = library_entries("."),
                      .mapped = mapped_bytes()};
    b->heap = heap_bytes();
}

static int failures;
static const char *only; /* the one job to run; NULL: all, and the calls */

static void same(const char *way, const char *what, size_t before, size_t after)
{
    if (before == after)
        return;
    print_error("%s: %s: %zu before, %zu after\n", way, what, before, after);
    failures++;
}

/* ---- jobs ---- */

typedef struct {
    const char *name;
    const char *keys; /* key=value, separated by spaces */
    int ranks;
    int purpose;
    int fail_at;  /* the all-gather that fails */
    int stops;    /* the stop flag is set after the first step */
    int deserter; /* the last rank makes no second step */
    int code;     /* expected exit code, and what the message must have */
    const char *expected;
} way;

typedef struct {
    const way *way;
    library_seat seat;
    pthread_barrier_t *ending;
    int code;
    char message[1024];
} part;

static void on_log(void *user, int severity, const char *line)
{
    (void)user, (void)severity, (void)line;
}

static int work(tsr_job *job, const part *p, volatile int *stop)
{
    tsr_job_report report = TSR_JOB_REPORT_INIT;
    tsr_job_evaluation evaluation = TSR_JOB_EVALUATION_INIT;
    char *text = NULL;
    int status = tsr_job_print_summary(job, &text);
    free(text);
    if (status == 0)
        status = tsr_job_evaluate(job, &evaluation);
    if (p->way->purpose == TSR_JOB_EVALUATE)
        return status;
    for (int steps = 0; status == 0 && (status = tsr_job_step(job, &report)) == 0;) {
        *stop = p->way->stops;
        if (++steps == 1 && p->way->deserter && p->seat.rank == p->way->ranks - 1)
            return 0;
        if (report.save && (status = tsr_job_checkpoint(job)) != 0)
            return status;
    }
    return status == TSR_JOB_DONE ? tsr_job_save(job) : status;
}

static int look(tsr_job *job, int purpose)
{
    char *text = NULL;
    tsr_job_plan_info info = TSR_JOB_PLAN_INFO_INIT;
    int status = 0;
    if (purpose == TSR_JOB_DATA)
        status = tsr_job_print_data(job, 2, TSR_JOB_COLOUR, &text);
    else if ((status = tsr_job_plan(job, &info)) == 0)
        status = tsr_job_print_plan(job, 0, &text);
    free(text);
    return status;
}

static int split(const char *words[16], char copy[512], const char *keys)
{
    int count = 0;
    char *state = NULL;
    snprintf(copy, 512, "%s", keys);
    for (char *word = strtok_r(copy, " ", &state); word; word = strtok_r(NULL, " ", &state))
        words[count++] = word;
    return count;
}

static void *take_part(void *user)
{
    part *p = user;
    char keys[512];
    const char *overrides[16];
    volatile int stop = 0;
    tsr_job *job = NULL;
    tsr_job_options options = {.size = sizeof(tsr_job_options),
                               .config_text = library_config,
                               .overrides = overrides,
                               .override_count = split(overrides, keys, p->way->keys),
                               .threads = 2,
                               .timeout_seconds = p->way->deserter ? 2 : 600, /* valgrind is slow */
                               .purpose = p->way->purpose,
                               .log = on_log,
                               .stop = &stop};
    if (p->way->ranks > 1)
        options.bootstrap =
            (tsr_job_bootstrap){p->seat.rank, p->way->ranks, library_all_gather, &p->seat};
    int looks = p->way->purpose == TSR_JOB_PLAN || p->way->purpose == TSR_JOB_DATA;
    int status = tsr_job_create(&job, &options);
    if (status == 0)
        status = looks ? look(job, p->way->purpose) : tsr_job_start(job);
    if (status == 0 && !looks)
        status = work(job, p, &stop);
    p->code = tsr_job_exit_code(status);
    snprintf(p->message, sizeof p->message, "%s", status < 0 ? tsr_last_error() : "");
    if (p->way->deserter)
        pthread_barrier_wait(p->ending);
    tsr_job_destroy(job);
    if (status < 0 && strncmp(p->message, tsr_last_error(), sizeof p->message - 1) != 0) {
        print_error("%s, rank %d: \"%s\" became \"%s\"\n", p->way->name, p->seat.rank, p->message,
                    tsr_last_error());
        p->code = -1;
    }
    return NULL;
}

static void go(const void *what)
{
    const way *w = what;
    static library_meeting meeting;
    pthread_barrier_t ending;
    pthread_t threads[LIBRARY_MOST];
    part parts[LIBRARY_MOST];
    meeting = (library_meeting){.fail_at = w->fail_at, .ranks = w->ranks};
    pthread_barrier_init(&meeting.barrier, NULL, (unsigned)w->ranks);
    pthread_barrier_init(&ending, NULL, (unsigned)w->ranks);
    for (int i = 0; i < w->ranks; i++) {
        parts[i] = (part){.way = w, .seat = {&meeting, i}, .ending = &ending};
        if (w->ranks == 1)
            take_part(&parts[i]);
        else
            assert_int_equal(pthread_create(&threads[i], NULL, take_part, &parts[i]), 0);
    }
    for (int i = 0; i < w->ranks && w->ranks > 1; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&meeting.barrier);
    pthread_barrier_destroy(&ending);
    for (int i = 0; i < w->ranks; i++) {
        if (w->deserter && i == w->ranks - 1)
            continue;
        if (parts[i].code != w->code || !strstr(parts[i].message, w->expected ? w->expected : ""))
            fail_msg("%s, rank %d: exit code %d: %s", w->name, i, parts[i].code, parts[i].message);
    }
}

/* ---- the ways ---- */

#define SAVING  "save_strategy=steps save_steps=1 save_total_limit=2"
#define THE_RUN "use_dora=true lora_dropout=0.1 packing=true"
#define OFFLOAD "activation_offloading=true optimizer_offload=true offload=full"
#define THREE   LIBRARY_RANKS

/* Started in here/, beside what set_up has made. */
static const way ways[] = {
    {"one rank", THE_RUN " " SAVING, 1},
    {"gone on with",
     THE_RUN " overwrite_output_dir=false resume_from_checkpoint=../out/checkpoint-2", 1},
    {"three ranks", OFFLOAD " " SAVING, THREE},
    {"with a trace and events", "trace=../trace.json report_to=tensorboard", 1},
    {"stopped", SAVING, 1, .stops = 1},
    {"an evaluation", "", 1, TSR_JOB_EVALUATE},
    {"a plan", "", 1, TSR_JOB_PLAN},
    {"a look at the data", "", 1, TSR_JOB_DATA},
    /* refused or failed before the start */
    {"an unknown key", "learning_rat=1", 1, .code = 78, .expected = "learning_rate"},
    {"no model", "model_name_or_path=../nowhere", 1, .code = 65, .expected = "nowhere"},
    {"a broken row", "dataset=../bad.jsonl", 1, .code = 65, .expected = "bad.jsonl:2"},
    {"a broken template", "chat_template_path=../bad.jinja", 1, .code = 65,
     .expected = "bad.jinja"},
    {"a trace in no directory", "trace=../nowhere/a.json", 1, .code = 78, .expected = "nowhere"},
    {"too little memory", "memory_budget=1MiB", 1, .code = 78, .expected = "memory_budget"},
    {"no meeting at first", "", THREE, .fail_at = 1, .code = 71, .expected = "all_gather"},
    {"no meeting for the board", "", THREE, .fail_at = 4, .code = 71, .expected = "all_gather"},
    /* while it starts */
    {"two groups that share rows", "context_parallel_size=2", LIBRARY_MOST, .code = 78,
     .expected = "write 4 or 1"},
    {"a shard cut short", "model_name_or_path=../bad-model", 1, .code = 65, .expected = "00004"},
    {"a broken adapter", "init_adapter=../bad", 1, .code = 65, .expected = "adapter_config"},
    {"a broken checkpoint", "overwrite_output_dir=false resume_from_checkpoint=../bad", 1,
     .code = 65, .expected = "manifest"},
    {"no meeting while it reads", "", THREE, .fail_at = 40, .code = 71, .expected = "all_gather"},
    /* in a step */
    {"no meeting in a step", "", THREE, .fail_at = 400, .code = 71, .expected = "all_gather"},
    {"a rank that stays away", "", THREE, .deserter = 1, .code = 71, .expected = "rank 2"},
};

/* The second time leaves what the first one left. */
static void leaves_nothing(const char *name, void (*function)(const void *), const void *what)
{
    belongings before, after;
    if (only && strcmp(only, name) != 0)
        return;
    function(what);
    take_stock(&before, 1);
    function(what);
    take_stock(&after, 1);
    same(name, "threads", 1, (size_t)after.threads);
    same(name, "descriptors", (size_t)before.descriptors, (size_t)after.descriptors);
    same(name, "bytes of the heap", before.heap, after.heap);
    same(name, "mapped bytes", before.mapped, after.mapped);
    same(name, "shared memory objects", 0, (size_t)after.objects);
    same(name, "temporary files", 0, (size_t)after.temporary);
    same(name, "files where it was started", 0, (size_t)after.here);
    same(name, "children", 0, waitpid(-1, NULL, WNOHANG) != -1 || errno != ECHILD);
}

static void test_jobs(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        leaves_nothing(ways[i].name, go, &ways[i]);
    assert_int_equal(failures, 0);
}

/* ---- the calls without ranks ---- */

static void call(const void *what)
{
    static const char *const quantize[] = {"output_dir=../nf4"};
    static const char *const merge[] = {"output_dir=../merged", "init_adapter=../out"};
    const char *name = what;
    char *text = NULL;
    int status = 0;
    tsr_job_options options = {
        .size = sizeof(tsr_job_options), .config_text = library_config, .override_count = 1};
    if (strcmp(name, "quantize") == 0) {
        options.overrides = quantize;
        status = tsr_quantize(&options, 0, &text);
    } else if (strcmp(name, "merge") == 0) {
        options.overrides = merge;
        options.override_count = 2;
        status = tsr_merge(&options, 1, &text);
    } else if (strcmp(name, "plot") == 0) {
        status = tsr_plot("../out", "../plot.svg");
    } else if (strcmp(name, "env") == 0) {
        status = tsr_environment(NULL, 0, 1, &text);
    } else {
        status = tsr_inspect(name, NULL, 0, &text);
    }
    free(text);
    int expected = strstr(name, "missing") || strstr(name, "bad") ? 65 : 0;
    if (tsr_job_exit_code(status) != expected)
        fail_msg("%s: %s", name, tsr_last_error());
}

static void test_calls(void **state)
{
    static const char *const calls[] = {"quantize", "merge",        "plot",   "env",       "../out",
                                        "../nf4",   "../bad-model", "../bad", "../missing"};
    (void)state;
    if (only)
        return;
    go(&ways[0]); /* an adapter in out/ */
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        leaves_nothing(calls[i], call, calls[i]);
    assert_int_equal(failures, 0);
}

static int set_up(void **state)
{
    static const char script[] =
        "mkdir here tmp bad && echo '{' | tee bad/manifest.json >bad/adapter_config.json && "
        "{ head -n 1 train.jsonl && echo '{\"messages\": ['; } >bad.jsonl && echo '{% if %}' "
        ">bad.jinja && "
        "cp -r '" TSR_SOURCE_DIR "/examples/tiny-llama' bad-model && "
        "truncate -s 1000000 bad-model/model-00004-of-00004.safetensors";
    char path[64];
    if (library_set_up(state) != 0 || chdir(library_directory) != 0 || system(script) != 0)
        return -1;
    snprintf(path, sizeof path, "%s/tmp", library_directory);
    return setenv("TMPDIR", path, 1) != 0 || chdir("here") != 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_jobs), cmocka_unit_test(test_calls)};
    only = argc > 1 ? argv[1] : NULL;
    if (!getenv("GLIBC_TUNABLES")) { /* read when a process starts */
        setenv("GLIBC_TUNABLES", KEEPS_NOTHING, 1);
        setenv("HWLOC_PLUGINS_PATH", "/nowhere", 1);
        execv(argv[0], argv);
    }
    return cmocka_run_group_tests(tests, set_up, library_tear_down);
}
