/*
 * A rank that stands still (SIGSTOP) or dies is named by every other one, with host, step and
 * operation, within two seconds of the deadline; and nothing is left of the job.
 */
#include "multi/cli.h"
#include "multi/deadline.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RANKS 3

static pid_t pid_of(int rank)
{
    char name[16];
    snprintf(name, sizeof name, "pid.%d", rank);
    char *text = cli_read(name, NULL);
    pid_t pid = text ? (pid_t)atoi(text) : 0;
    free(text);
    return pid;
}

static void check_gone(void)
{
    for (int rank = 0; rank < RANKS; rank++)
        for (double end = cli_now() + 5; kill(pid_of(rank), 0) == 0; cli_sleep(0.01))
            if (cli_now() > end) {
                cli_fail("rank %d is still there", rank);
                kill(pid_of(rank), SIGKILL);
                break;
            }
}

static void check_survivor(const cli_output *output, int rank, int victim, const char *host)
{
    char begin[32], named[64];
    double after;
    snprintf(begin, sizeof begin, "peer %d after ", rank);
    snprintf(named, sizeof named, "rank %d (last seen at step ", victim);
    const char *line = strstr(output->err, begin);
    if (!line || sscanf(line + strlen(begin), "%lf", &after) != 1) {
        cli_fail("rank %d says nothing in\n%s", rank, output->err);
        return;
    }
    char *text = strndup(line, strcspn(line, "\n"));
    if (after > DEADLINE + 2)
        cli_fail("not within 2 s of the deadline: %s", text);
    const char *seen = strstr(text, named);
    int step = seen ? atoi(seen + strlen(named)) : 0;
    if (step < 5 || step > 6 || !strstr(seen, ", on ") || !strstr(seen, host))
        cli_fail("expected %s5 or 6, operation, on %s) in: %s", named, host, text);
    free(text);
}

static void lose(const char *how, int victim)
{
    char words[32], host[128] = "";
    cli_process process;
    cli_output output;
    gethostname(host, sizeof host - 1);
    cli_case_begin(CLI_TINY_LLAMA);
    snprintf(words, sizeof words, "%s %d", how, victim);
    cli_name(words);
    cli_start(&process, RANKS, "echo $$ >pid.$RANK; exec \"$@\"", words);
    cli_wait(&output, &process, 60);
    for (int rank = 0; rank < RANKS; rank++)
        if (rank != victim)
            check_survivor(&output, rank, victim, host);
    if (strcmp(how, "stop") == 0 && output.code != 71)
        cli_fail("exit code %d", output.code);
    check_gone();
    cli_output_free(&output);
    cli_case_end();
}

/* A library does not change what its process computes with: it refuses ranks that would give other bits. */
static void other_kernels(void)
{
    cli_output output;
    cli_name("other kernels");
    cli_case_begin(CLI_TINY_LLAMA);
    cli_run(&output, RANKS,
            "if [ $RANK = 1 ]; then export OPENBLAS_CORETYPE=Prescott; fi; exec \"$@\"", "stop -1");
    if (output.code != 76)
        cli_fail("exit code %d\n%s", output.code, output.err);
    if (!strstr(output.err, "has Prescott") ||
        !strstr(output.err, "the ranks have different kernels of OpenBLAS") ||
        !strstr(output.err, "OPENBLAS_CORETYPE=Prescott"))
        cli_fail("expected both sides in\n%s", output.err);
    cli_output_free(&output);
    cli_case_end();
}

/* The library's own deadline, before there is a communicator. */
static void never_meets(void)
{
    cli_output output;
    char waited[64];
    snprintf(waited, sizeof waited, " has waited %d s for rank 1 after MPI started", DEADLINE);
    cli_name("never meets");
    cli_case_begin(CLI_TINY_LLAMA);
    cli_run(&output, RANKS, "if [ $RANK = 1 ]; then exec \"$1\" bystander; fi; exec \"$@\"",
            "stop -1");
    if (output.code != 71 || !strstr(output.err, waited))
        cli_fail("exit code %d\n%s", output.code, output.err);
    if (output.seconds > DEADLINE + 5)
        cli_fail("ended after %.1f s", output.seconds);
    cli_output_free(&output);
    cli_case_end();
}

int main(int argc, char **argv)
{
    cli_open(argc, argv);
    lose("stop", 0);
    lose("stop", 2);
    other_kernels();
    never_meets();
    /* mpirun ends all ranks when one has died: here the others shall come to their own end. */
    setenv("OMPI_MCA_orte_abort_on_non_zero_status", "0", 1);
    setenv("OMPI_MCA_orte_enable_recovery", "1", 1);
    lose("die", 0);
    lose("die", 2);
    cli_close();
    return cli_failures() > 0;
}
