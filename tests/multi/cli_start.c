/*
 * How ranks come together: on processors of several kinds, inside a scheduler's allocation, or not at all, where one
 * of them never starts, or mpirun stands still.
 */
#include "multi/cli.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void same_files(const char *a, const char *b)
{
    size_t a_bytes = 0, b_bytes = 0;
    char *x = cli_read(a, &a_bytes), *y = cli_read(b, &b_bytes);
    if (!x || !y || a_bytes != b_bytes || memcmp(x, y, a_bytes) != 0)
        cli_fail("%s and %s differ", a, b);
    free(x);
    free(y);
}

static void run_ok(const char *words)
{
    cli_output output;
    cli_run(&output, 1, NULL, words);
    if (output.code != 0)
        cli_fail("%s: exit code %d\n%s", words, output.code, output.err);
    cli_output_free(&output);
}

/* Ranks on two kinds of processors take the kernels that both have: the bits are those of all on the lesser one. */
static void kernels_in_common(void)
{
    cli_output output;
    cli_case_begin(CLI_TINY_LLAMA);
    cli_run(&output, 2, "if [ $RANK = 1 ]; then export OPENBLAS_CORETYPE=Prescott; fi; exec \"$@\"",
            "train job.yaml output_dir=mixed -v");
    if (output.code != 0 || !strstr(output.err, "all ranks take those for Prescott") ||
        !strstr(output.err, ", OpenBLAS Prescott"))
        cli_fail("exit code %d\n%s", output.code, output.err);
    cli_output_free(&output);
    setenv("OPENBLAS_CORETYPE", "Prescott", 1);
    run_ok("train job.yaml output_dir=alike");
    unsetenv("OPENBLAS_CORETYPE");
    same_files("alike/adapter_model.safetensors", "mixed/adapter_model.safetensors");
    cli_case_end();
}

/* A batch script's process is numbered, and knows how many tasks a step would have: it is one rank all the same. So is
 * one of a step of one task, and what mpirun starts alone inside a step of several. */
static void inside_an_allocation(void)
{
    static const char *const variables[] = {
        "SLURM_JOB_ID=7 SLURM_NTASKS=4 SLURM_NPROCS=4 SLURM_PROCID=0 SLURM_LOCALID=0",
        "SLURM_JOB_ID=7 SLURM_NTASKS=4 SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=1",
        "SLURM_JOB_ID=7 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 OMPI_COMM_WORLD_SIZE=1"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        char wrapper[256];
        cli_output output;
        cli_case_begin(CLI_TINY_LLAMA);
        snprintf(wrapper, sizeof wrapper, "export %s; exec \"$@\"", variables[i]);
        cli_run(&output, 1, wrapper, "train job.yaml max_steps=1");
        if (output.code != 0)
            cli_fail("%s: exit code %d\n%s", variables[i], output.code, output.err);
        cli_output_free(&output);
        cli_case_end();
    }
}

/* MPI_Init waits for ever for it. */
static void never_starts(void)
{
    cli_output output;
    cli_case_begin(CLI_TINY_LLAMA);
    cli_run(&output, 3, "if [ $RANK = 1 ]; then exec sleep 60; fi; exec \"$@\"",
            "train job.yaml ddp_timeout=1");
    if (output.code != 71 || !strstr(output.err, " of 3 on ") ||
        !strstr(output.err, " has waited 1 s (ddp_timeout) inside MPI_Init"))
        cli_fail("exit code %d\n%s", output.code, output.err);
    if (output.seconds > 10)
        cli_fail("ended after %.1f s", output.seconds);
    cli_output_free(&output);
    cli_case_end();
}

/* What `file` says, as soon as it is there. */
static int number_in(const char *file)
{
    for (double end = cli_now() + 30; cli_now() < end; cli_sleep(0.02)) {
        char *text = cli_read(file, NULL);
        int number = text ? atoi(text) : 0;
        free(text);
        if (text)
            return number;
    }
    cli_fail("there is no %s", file);
    return -1;
}

/* Who asks mpirun waits for ever: inside MPI_Init, and where MPI ends. */
static void mpirun_stopped(bool at_end)
{
    char wrapper[256], words[128];
    cli_process process;
    cli_output output;
    cli_case_begin(CLI_TINY_LLAMA);
    snprintf(wrapper, sizeof wrapper,
             "%s echo $PPID >new.$RANK; mv new.$RANK mpirun.$RANK; \"$@\" 2>err.$RANK; code=$?; "
             "echo $code >new.$RANK; mv new.$RANK code.$RANK; exit $code",
             at_end ? "" : "if [ $RANK = 1 ]; then kill -STOP $PPID; fi;");
    snprintf(words, sizeof words,
             "train job.yaml max_steps=1000000 logging_steps=1000000 time_limit=1 ddp_timeout=%d",
             at_end ? 5 : 1);
    cli_start(&process, 2, wrapper, words);
    if (at_end)
        number_in("out/metrics.jsonl");
    int mpirun = number_in("mpirun.1"); /* it has started all */
    if (mpirun > 1)
        kill(mpirun, SIGSTOP);
    for (int rank = 0; rank < 2; rank++) {
        const char *file = rank ? "err.1" : "err.0";
        int code = number_in(rank ? "code.1" : "code.0");
        char *text = cli_read(file, NULL);
        if (code != (at_end ? 75 : 71) || !text || !strstr(text, " of 2 on ") ||
            !strstr(text,
                    at_end ? "(ddp_timeout) for MPI to end" : "(ddp_timeout) inside MPI_Init"))
            cli_fail("rank %d ended with %d: %s", rank, code, text ? text : "");
        free(text);
    }
    /* Open MPI 4.1's own may not end where ranks were gone before it answered them: PMIx. */
    if (mpirun > 1)
        kill(mpirun, at_end ? SIGCONT : SIGKILL);
    cli_wait(&output, &process, 20);
    if (output.code <= 0)
        cli_fail("mpirun ended with %d\n%s", output.code, output.err);
    cli_output_free(&output);
    cli_case_end();
}

static void mpirun_stands_still(void)
{
    mpirun_stopped(false);
    mpirun_stopped(true);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } tests[] = {
        {"kernels_in_common", kernels_in_common},
        {"inside_an_allocation", inside_an_allocation},
        {"never_starts", never_starts},
        {"mpirun_stands_still", mpirun_stands_still},
    };
    cli_open(argc, argv);
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        if (cli_only() && strcmp(cli_only(), tests[i].name) != 0)
            continue;
        cli_name(tests[i].name);
        double start = cli_now();
        tests[i].run();
        printf("%s: %.1f s\n", tests[i].name, cli_now() - start);
    }
    cli_close();
    return cli_failures() > 0;
}
