/*
 * Who has output_dir: another command that goes on refuses this one at once; one that was killed, or whose mpirun
 * was, is waited for; a lock that nobody holds stops nobody.
 */
#include "support/folder.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/process.h"
#include "job/output.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static tsr_config config;
static tsr_folder *folder;
static const tsr_output_patience short_one = {0.3, NULL, NULL}, long_one = {20, NULL, NULL};
static char said[4096];

static void keep_line(void *user, tsr_log_level level, const char *line)
{
    (void)user, (void)level;
    snprintf(said, sizeof said, "%s", line);
}

static int begin(void **state)
{
    char text[1200];
    folder = open_folder(scratch_make());
    snprintf(text, sizeof text, "model_name_or_path: m\ndataset: d\noutput_dir: %s\n",
             scratch_path(""));
    const tsr_config_source source = {.text = text, .name = "job.yaml"};
    (void)state;
    *said = 0;
    tsr_log_set(keep_line, NULL, TSR_LOG_INFO);
    return tsr_config_load(&config, &source);
}

static int end(void **state)
{
    tsr_log_set(NULL, NULL, TSR_LOG_ERROR);
    tsr_config_free(&config);
    tsr_folder_close(folder);
    return scratch_teardown(state);
}

/* ---- holders ---- */

typedef struct {
    pid_t launcher, rank;
} job;

/* Takes the directory, says its number, and stays. */
static _Noreturn void hold(int told, bool elsewhere)
{
    static const char other[] = "process 1 started 1 launcher 0 started 0 host 1 elsewhere\n";
    int lock;
    pid_t own = getpid();
    if (tsr_output_take(&lock, folder, &config, &short_one) != TSR_OK)
        _exit(1);
    if (elsewhere && (ftruncate(lock, 0) != 0 || write(lock, other, strlen(other)) < 0))
        _exit(2);
    if (write(told, &own, sizeof own) != sizeof own)
        _exit(3);
    for (;;)
        pause();
}

/* `launched`: what has it is a rank of what is started, as of mpirun. */
static job start_job(bool launched, bool elsewhere)
{
    job j = {0};
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    j.launcher = fork();
    assert_true(j.launcher >= 0);
    if (j.launcher == 0) {
        if (!launched)
            hold(ends[1], elsewhere);
        if (fork() == 0) {
            setenv("PMIX_NAMESPACE", "a job", 1);
            hold(ends[1], elsewhere);
        }
        for (;;)
            pause();
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], &j.rank, sizeof j.rank), sizeof j.rank);
    close(ends[0]);
    return j;
}

static void kill_launcher(const job *j)
{
    kill(j->launcher, SIGKILL);
    assert_int_equal(waitpid(j->launcher, NULL, 0), j->launcher);
}

static void check_refused(tsr_status status, tsr_status expected, double began, bool waited)
{
    double took = tsr_now() - began;
    check_error("held", status, expected,
                (const char *const[MOST_WORDS]){
                    waited ? "has not let go" : "another job is writing", "output_dir"});
    if (waited ? took < short_one.seconds : took > 5)
        fail_msg("after %g seconds", took);
}

/* By asking and by taking alike. */
static void expect_refused(const tsr_output_patience *patience, tsr_status expected, bool waited)
{
    int lock = -1;
    double began = tsr_now();
    check_refused(tsr_output_ask(folder, &config, patience), expected, began, waited);
    began = tsr_now();
    check_refused(tsr_output_take(&lock, folder, &config, patience), expected, began, waited);
    assert_int_equal(lock, -1);
}

/* ---- tests ---- */

static void test_nobody(void **state)
{
    int lock, second;
    struct stat info;
    (void)state;
    assert_int_equal(tsr_output_ask(folder, &config, &short_one), TSR_OK);
    assert_false(tsr_folder_stat(&info, folder, TSR_OUTPUT_LOCK)); /* asking leaves nothing */
    write_text(scratch_path(TSR_OUTPUT_LOCK), "left by what was killed");
    assert_int_equal(tsr_output_ask(folder, &config, &short_one), TSR_OK);
    assert_int_equal(tsr_output_take(&lock, folder, &config, &short_one), TSR_OK);
    assert_string_equal(said, "");
    expect_refused(&long_one, TSR_ECONFIG, false); /* this process itself */
    tsr_output_leave(lock, folder);
    assert_false(tsr_folder_stat(&info, folder, TSR_OUTPUT_LOCK));
    assert_int_equal(tsr_output_take(&second, folder, &config, &short_one), TSR_OK);
    tsr_output_leave(second, folder);
    tsr_output_leave(-1, folder);
}

static void test_lives(void **state)
{
    (void)state;
    for (int launched = 0; launched < 2; launched++) {
        job j = start_job(launched, false);
        char number[32];
        expect_refused(&long_one, TSR_ECONFIG, false);
        snprintf(number, sizeof number, "(process %d on ", (int)j.rank);
        assert_non_null(strstr(tsr_last_error(), number));
        assert_string_equal(said, "");
        kill(j.rank, SIGKILL);
        kill_launcher(&j);
    }
}

/* A rank that has not noticed yet that its mpirun is gone: waited for, in vain or not. */
static void test_launcher_killed(void **state)
{
    int lock;
    (void)state;
    job j = start_job(true, false);
    kill_launcher(&j);
    expect_refused(&short_one, TSR_EIO, true);
    assert_non_null(strstr(said, "waiting"));
    pid_t killer = fork();
    assert_true(killer >= 0);
    if (killer == 0) {
        usleep(300000);
        kill(j.rank, SIGKILL);
        _exit(0);
    }
    assert_int_equal(tsr_output_take(&lock, folder, &config, &long_one), TSR_OK);
    assert_int_equal(waitpid(killer, NULL, 0), killer);
    tsr_output_leave(lock, folder);
}

/* Nothing can be seen of another machine's processes. */
static void test_elsewhere(void **state)
{
    (void)state;
    volatile int stop = 1;
    job j = start_job(false, true);
    expect_refused(&short_one, TSR_EIO, true);
    assert_non_null(strstr(tsr_last_error(), "process 1 on elsewhere"));
    const tsr_output_patience stopped = {20, &stop, NULL};
    assert_int_equal(tsr_output_ask(folder, &config, &stopped), TSR_ESTOPPED_UNSAVED);
    kill_launcher(&j);
}

/* Who has it is not written over what somebody else has under another name. */
static void test_other_names(void **state)
{
    int lock = -1;
    uint64_t bytes;
    (void)state;
    write_text(scratch_path("precious"), "precious");
    assert_int_equal(link(scratch_path("precious"), scratch_path(TSR_OUTPUT_LOCK)), 0);
    assert_int_equal(tsr_output_take(&lock, folder, &config, &short_one), TSR_EIO);
    assert_int_equal(lock, -1);
    char *text = read_whole(&bytes, scratch_path("precious"));
    assert_string_equal(text, "precious");
    free(text);
}

static void test_process(void **state)
{
    (void)state;
    tsr_process own = tsr_process_self(), none = {0}, later = own;
    assert_int_equal(own.pid, getpid());
    assert_true(tsr_process_lives(&own));
    assert_false(tsr_process_lives(&none));
    later.start++; /* the number, given again */
    assert_false(tsr_process_lives(&later));
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(0);
    siginfo_t info;
    assert_int_equal(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT), 0);
    char path[64], text[1024] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)child);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(fgets(text, sizeof text, file));
    fclose(file);
    assert_non_null(strstr(text, ") Z "));
    unsigned long long start;
    assert_int_equal(sscanf(strrchr(text, ')'),
                            ") Z %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d "
                            "%*d %*d %llu",
                            &start),
                     1);
    const tsr_process zombie = {child, start};
    assert_false(tsr_process_lives(&zombie));
    assert_int_equal(waitpid(child, NULL, 0), child);
}

int main(void)
{
    unsetenv("PMIX_NAMESPACE");
#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, end)
    const struct CMUnitTest tests[] = {TEST(test_nobody),          TEST(test_lives),
                                       TEST(test_launcher_killed), TEST(test_elsewhere),
                                       TEST(test_other_names),     TEST(test_process)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
