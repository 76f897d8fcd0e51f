/*
 * How ranks come together: on processors of several kinds, inside a scheduler's allocation.
 */
#include "multi/cli.h"

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
            "train job.yaml output_dir=mixed");
    if (output.code != 0 || !strstr(output.err, "all ranks take those for Prescott") ||
        !strstr(output.err, ", OpenBLAS Prescott; "))
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

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } tests[] = {
        {"kernels_in_common", kernels_in_common},
        {"inside_an_allocation", inside_an_allocation},
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
