/*
 * A run whose ranks are killed at random moments, again and again, and gone on with on other numbers
 * of ranks, ends as one that was never disturbed: the same adapter, the same line of metrics.jsonl
 * for each step.
 *
 *     TESSERA_KILLS=200 TESSERA_SEED=1 test_multi_cli_kills ...      (20 kills, seed 1 without them)
 */
#include "multi/cli.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TELLS_PID  "echo $$ >pid.$RANK.new; mv pid.$RANK.new pid.$RANK; exec \"$@\""
#define MOST_RANKS 3
#define STEPS      40
#define PATIENCE   240 /* seconds for a run, on a machine that does other things too */
#define KEYS                                                                                       \
    "max_steps=40 use_dora=true lora_dropout=0.1 eval_dataset=data.jsonl eval_strategy=steps "     \
    "eval_steps=10 logging_steps=1000"

static unsigned long state = 1;

static unsigned below(unsigned bound)
{
    state = state * 6364136223846793005ul + 1442695040888963407ul;
    return (unsigned)(state >> 33) % bound;
}

static long number_of(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text && *text ? atol(text) : otherwise;
}

/* ---- what a run did ---- */

/* From "step" to the figures that hang on the clock, and to the end of an evaluation's line. */
static char *figures(const char *path)
{
    char *text = cli_read(path, NULL), *save = NULL;
    char *out = calloc(1, text ? strlen(text) + 1 : 1);
    if (!text || !out)
        return out;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        if (strncmp(line, "{\"step\":", 8) != 0)
            continue;
        line[strcspn(line, "\n")] = 0;
        char *clock = strstr(line, ",\"tokens_per_s\"");
        if (clock)
            *clock = 0;
        strcat(strcat(out, line), "\n");
    }
    free(text);
    return out;
}

static void compare(const char *what)
{
    size_t a_bytes = 0, b_bytes = 0;
    char *a = cli_read("whole/adapter_model.safetensors", &a_bytes);
    char *b = cli_read("out/adapter_model.safetensors", &b_bytes);
    if (!a || !b || a_bytes != b_bytes || memcmp(a, b, a_bytes) != 0)
        cli_fail("%s: another adapter", what);
    free(a);
    free(b);
    a = figures("whole/metrics.jsonl");
    b = figures("out/metrics.jsonl");
    if (!a || !b || cli_count(a, "\n") != STEPS + STEPS / 10 + 1 || strcmp(a, b) != 0)
        cli_fail("%s: other figures:\n%s\ninstead of\n%s", what, b, a);
    free(a);
    free(b);
}

/* ---- a kill ---- */

static pid_t pid_of(int rank)
{
    char name[16];
    snprintf(name, sizeof name, "pid.%d", rank);
    char *text = cli_read(name, NULL);
    pid_t pid = text ? (pid_t)atoi(text) : 0;
    free(text);
    return pid;
}

static void remove_pids(void)
{
    char name[16];
    for (int rank = 0; rank < MOST_RANKS; rank++) {
        snprintf(name, sizeof name, "pid.%d", rank);
        cli_remove(name);
    }
}

/* Ranks of the last start: none is left before the next one. */
static void wait_gone(int ranks)
{
    double end = cli_now() + 10;
    for (int rank = 0; rank < ranks; rank++)
        for (pid_t pid = pid_of(rank); pid && kill(pid, 0) == 0 && cli_now() < end;)
            cli_sleep(0.005);
}

static bool all_started(int ranks)
{
    for (int rank = 0; rank < ranks; rank++)
        if (!pid_of(rank))
            return false;
    return true;
}

/* Where a rank dies just while it connects to mpirun, in its first tenth of a second, Open MPI 4.1's may
 * stand still in its own end (PMIx_server_finalize waits for a lock), the ranks being gone. It is known by
 * what it says, and is ended; the run goes on with as ever. */
static bool launcher_hangs(const cli_output *output, int ranks)
{
    if (output->code >= 0 || !output->err || !strstr(output->err, "PMIX ERROR"))
        return false;
    printf("mpirun stood still:\n%s\n", output->err);
    for (int rank = 0; rank < ranks; rank++) {
        pid_t pid = pid_of(rank);
        if (pid > 0 && kill(pid, 0) == 0 && cli_parent(pid) > 1)
            kill(cli_parent(pid), SIGKILL);
    }
    return true;
}

/* One start, with a random number of ranks; a random one, or all, killed at a random moment. True:
 * the run came to its end before. */
static bool start_and_kill(int kills)
{
    cli_process process;
    cli_output output;
    int ranks = 1 + (int)below(MOST_RANKS), victim = (int)below((unsigned)ranks + 1);
    double moment = 1e-3 * below(1500);
    remove_pids();
    cli_start(&process, ranks, TELLS_PID,
              "train job.yaml " KEYS " save_strategy=steps save_steps=1 save_total_limit=2 "
              "resume_from_checkpoint=true");
    for (double end = cli_now() + 10; !all_started(ranks) && cli_now() < end;)
        cli_sleep(0.002);
    cli_sleep(moment);
    for (int rank = 0; rank < ranks; rank++)
        if (victim == ranks || victim == rank)
            kill(pid_of(rank), SIGKILL);
    cli_wait(&output, &process, PATIENCE);
    bool hangs = launcher_hangs(&output, ranks);
    wait_gone(ranks);
    if (!hangs && output.code != 0 && output.code != 128 + SIGKILL)
        cli_fail("after %d kills, on %d ranks, rank %d after %.3f s: exit code %d\n%s", kills,
                 ranks, victim, moment, output.code, output.err);
    bool ended = output.code == 0;
    cli_output_free(&output);
    return ended;
}

int main(int argc, char **argv)
{
    cli_process process;
    cli_output output;
    long wanted = number_of("TESSERA_KILLS", 20), kills = 0, runs = 0;
    state = (unsigned long)number_of("TESSERA_SEED", 1);
    cli_open(argc, argv);
    cli_name("kills");
    cli_case_begin(CLI_TINY_LLAMA);
    cli_start(&process, 1, NULL, "train job.yaml output_dir=whole " KEYS);
    cli_wait(&output, &process, PATIENCE);
    if (output.code != 0)
        cli_fail("exit code %d\n%s", output.code, output.err);
    cli_output_free(&output);
    for (bool ended = false; cli_failures() == 0 && (kills < wanted || !ended);) {
        ended = start_and_kill((int)kills);
        if (!ended) {
            kills++;
            continue;
        }
        compare("after kills");
        cli_remove("out");
        runs++;
    }
    printf("%ld kills, %ld runs that came to their end, %d differences\n", kills, runs,
           cli_failures());
    cli_case_end();
    cli_close();
    return cli_failures() > 0;
}
