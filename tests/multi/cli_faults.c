/*
 * Runs that are cut short: a rank killed, signals, the time limit, a full stop of the numbers, an
 * output directory that is taken away. mpirun ends with the right code, soon, and leaves nothing.
 * mpirun_signalled, which has two seconds for a checkpoint, is run by its name, as a test of its own.
 */
#include "multi/cli.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LONG      "train job.yaml max_steps=1000000 logging_steps=1000000"
#define TELLS_PID "echo $$ >pid.$RANK.new; mv pid.$RANK.new pid.$RANK; exec \"$@\""

static int lines_of(const char *path)
{
    char *text = cli_read(path, NULL);
    int count = text ? cli_count(text, "\n") : 0;
    free(text);
    return count;
}

static pid_t pid_of(int rank)
{
    char name[16];
    snprintf(name, sizeof name, "pid.%d", rank);
    char *text = cli_read(name, NULL);
    pid_t pid = text ? (pid_t)atoi(text) : 0;
    free(text);
    return pid;
}

/* Starts a run that takes very long, and waits until it is in the midst of it. */
static void start_long(cli_process *process, int ranks)
{
    cli_case_begin(CLI_TINY_LLAMA);
    cli_start(process, ranks, TELLS_PID, LONG);
    for (double end = cli_now() + 20; lines_of("out/metrics.jsonl") < 4; cli_sleep(0.01))
        if (cli_now() > end) {
            cli_fail("no third step after 20 seconds");
            return;
        }
}

static void check_end(const char *status)
{
    char words[64];
    char *text = cli_read("out/metrics.jsonl", NULL);
    snprintf(words, sizeof words, "{\"event\":\"end\",\"status\":\"%s\"}\n", status);
    size_t length = text ? strlen(text) : 0;
    if (!text || length < strlen(words) || strcmp(text + length - strlen(words), words) != 0)
        cli_fail("metrics.jsonl does not end with %s", words);
    free(text);
}

static void check_adapter(bool there)
{
    static const char *const names[] = {"out/adapter_model.safetensors", "out/adapter_config.json"};
    for (int i = 0; i < 2; i++)
        if (cli_exists(names[i]) != there)
            cli_fail("%s is %s", names[i], there ? "missing" : "there");
}

static void check_code(const cli_output *output, int code)
{
    if (output->code != code)
        cli_fail("exit code %d, expected %d\n%s", output->code, code, output->err);
}

static void check_once(const cli_output *output, const char *words)
{
    if (cli_count(output->err, words) != 1)
        cli_fail("expected '%s' once in\n%s", words, output->err);
}

/* mpirun has ended: so have its ranks, or do at once. */
static void check_gone(int ranks)
{
    for (int i = 0; i < ranks; i++)
        for (double end = cli_now() + 5; kill(pid_of(i), 0) == 0; cli_sleep(0.01))
            if (cli_now() > end) {
                cli_fail("rank %d is still there", i);
                break;
            }
}

static void end(cli_output *output)
{
    cli_output_free(output);
    cli_case_end();
}

static void rank_killed(void)
{
    for (int rank = 0; rank < 2; rank++) {
        cli_process process;
        cli_output output;
        start_long(&process, 3);
        kill(pid_of(rank), SIGKILL);
        cli_wait(&output, &process, 20);
        check_code(&output, 128 + SIGKILL);
        check_gone(3);
        check_adapter(false);
        end(&output);
    }
}

/* There is one checkpoint, and whole: a run goes on from it. */
static void check_checkpoint(int ranks)
{
    cli_output output;
    char *before = cli_listing();
    if (cli_count(before, "/manifest.json\n") != 1 || cli_count(before, ".tmp") != 0)
        cli_fail("expected one checkpoint in\n%s", before);
    free(before);
    cli_run(&output, ranks, NULL, LONG " resume_from_checkpoint=true time_limit=0.01");
    if (output.code != 75)
        cli_fail("resumed: exit code %d\n%s", output.code, output.err);
    cli_output_free(&output);
}

/* A signal to one rank stops all of them, after the step under way. */
static void signalled(int ranks, int rank, int number)
{
    cli_process process;
    cli_output output;
    start_long(&process, ranks);
    for (int i = 0; i < ranks; i++)
        if (i == rank || rank < 0)
            kill(pid_of(i), number);
    cli_wait(&output, &process, 20);
    check_code(&output, 75);
    check_once(&output, "tessera: stopped early, with a checkpoint; to continue: ");
    check_end("saved");
    check_adapter(false);
    check_gone(ranks);
    check_checkpoint(ranks);
    end(&output);
}

static void stopped(void)
{
    signalled(1, 0, SIGTERM);
    signalled(1, 0, SIGINT);
    signalled(1, 0, SIGHUP);
    signalled(3, 2, SIGTERM);
    signalled(2, 0, SIGUSR1);
    signalled(2, -1, SIGINT);
}

/* Ctrl-C and batch systems signal launch/run. */
static void launcher_signalled(void)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    for (int i = 0; i < 3; i++) {
        cli_process process;
        cli_output output;
        start_long(&process, 2);
        kill(process.pid, signals[i]);
        cli_wait(&output, &process, 20);
        check_code(&output, 75);
        check_end("saved");
        check_gone(2);
        check_checkpoint(2);
        end(&output);
    }
}

/* mpirun itself sends the ranks SIGTERM, kills them a second later and ends with 1; the small
 * model's checkpoint is complete by then. */
static void mpirun_signalled(void)
{
    cli_process process;
    cli_output output;
    start_long(&process, 2);
    kill(cli_parent(pid_of(0)), SIGTERM);
    cli_wait(&output, &process, 20);
    check_code(&output, 1);
    check_end("saved");
    check_gone(2);
    check_checkpoint(2);
    end(&output);
}

/* The second signal of a kind ends a rank at once, and the others see that it has gone. */
static void signalled_twice(void)
{
    cli_process process;
    cli_output output;
    start_long(&process, 2);
    for (int i = 0; i < 2; i++)
        kill(pid_of(i), SIGSTOP); /* so that the first one cannot end the run before */
    kill(pid_of(1), SIGUSR1);
    kill(pid_of(1), SIGCONT);
    cli_sleep(0.3); /* rank 1 has taken it, and waits for rank 0 */
    kill(pid_of(1), SIGUSR1);
    kill(pid_of(0), SIGCONT);
    cli_wait(&output, &process, 20);
    check_code(&output, 128 + SIGUSR1);
    check_gone(2);
    check_adapter(false);
    end(&output);
}

/* Ctrl-C ends `| tee log` at once, and then there is nobody to tell: the checkpoint is written all the same. */
static void reader_gone(void)
{
    cli_output output;
    cli_case_begin(CLI_TINY_LLAMA);
    cli_run(&output, 1, "mkfifo log; head -c 1 <log >/dev/null & exec \"$@\" 2>log",
            LONG " logging_steps=1 time_limit=0.5");
    check_code(&output, 75);
    check_end("saved");
    check_checkpoint(1);
    end(&output);
}

static void time_limit(void)
{
    cli_output output;
    cli_case_begin(CLI_TINY_LLAMA);
    cli_run(&output, 2, NULL, LONG " time_limit=0.5");
    check_code(&output, 75);
    check_end("saved");
    if (lines_of("out/metrics.jsonl") < 4)
        cli_fail("no steps within the time limit");
    check_checkpoint(2);
    end(&output);
}

static void not_finite(void)
{
    for (int ranks = 1; ranks <= 3; ranks += 2) {
        cli_output output;
        cli_case_begin(CLI_TINY_LLAMA);
        cli_run(&output, ranks, NULL,
                "train job.yaml max_steps=50 learning_rate=1000 lora_alpha=1e9 "
                "lr_scheduler_type=constant max_skipped_steps=3");
        check_code(&output, 71);
        check_once(&output, "not finite in 4 steps in a row (max_skipped_steps is 3)");
        check_end("failed");
        check_adapter(false);
        end(&output);
    }
}

/* No file may grow beyond 4 MiB, as on a disk that is full: said with path and reason, and the
 * checkpoint of before is whole. One rank: mpirun itself needs larger files. */
static void disk_full(void)
{
    cli_output output;
    cli_case_begin(CLI_TINY_LLAMA);
    cli_edit("job.yaml", "lora_r: 2", "lora_r: 64");
    cli_run(&output, 1, NULL, LONG " time_limit=0.01");
    check_code(&output, 75);
    cli_output_free(&output);
    cli_run(&output, 1, "ulimit -f 8192; exec \"$@\"",
            LONG " time_limit=0.01 resume_from_checkpoint=true");
    check_code(&output, 71);
    check_once(&output, "\ntessera: out/.checkpoint-");
    check_once(&output, "File too large");
    check_end("failed");
    check_checkpoint(1);
    end(&output);
}

/* The checkpoint cannot be written: said once, and no rank waits for another. */
static void output_taken_away(void)
{
    cli_process process;
    cli_output output;
    start_long(&process, 2);
    cli_remove("out");
    cli_write("out", "");
    kill(pid_of(1), SIGTERM);
    cli_wait(&output, &process, 20);
    check_code(&output, 71);
    check_once(&output, "\ntessera: ");
    check_once(&output, "out/.checkpoint-");
    check_gone(2);
    end(&output);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
        bool alone; /* only where it is named */
    } tests[] = {
        {"rank_killed", rank_killed},
        {"stopped", stopped},
        {"launcher_signalled", launcher_signalled},
        {"mpirun_signalled", mpirun_signalled, true},
        {"signalled_twice", signalled_twice},
        {"reader_gone", reader_gone},
        {"time_limit", time_limit},
        {"not_finite", not_finite},
        {"disk_full", disk_full},
        {"output_taken_away", output_taken_away},
    };
    cli_open(argc, argv);
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        if (cli_only() ? strcmp(cli_only(), tests[i].name) != 0 : tests[i].alone)
            continue;
        cli_name(tests[i].name);
        double start = cli_now();
        tests[i].run();
        printf("%s: %.1f s\n", tests[i].name, cli_now() - start);
    }
    cli_close();
    return cli_failures() > 0;
}
