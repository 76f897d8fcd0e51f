/*
 * output_dir, through the whole program: what a run's own job.yaml may replace, what a refused resume leaves
 * and says, and who has the directory.
 */
#include "multi/cli.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void run_ok(const char *words)
{
    cli_output output;
    cli_run(&output, 1, NULL, words);
    if (output.code != 0)
        cli_fail("%s: exit code %d\n%s", words, output.code, output.err);
    cli_output_free(&output);
}

/* Refused with 78 and these words, and the file is as it was. */
static void refused(const char *words, const char *says, const char *file)
{
    cli_output output;
    size_t before = 0, after = 0;
    char *old = cli_read(file, &before);
    cli_run(&output, 1, NULL, words);
    char *now = cli_read(file, &after);
    if (output.code != 78 || !strstr(output.err, says))
        cli_fail("%s: exit code %d\n%s", words, output.code, output.err);
    if (!old || !now || before != after || memcmp(old, now, before) != 0)
        cli_fail("%s: %s was replaced", words, file);
    cli_output_free(&output);
    free(old);
    free(now);
}

/* A run that replaced another has a job.yaml that replaces nothing: neither the run, by another training, nor
 * a model, by a merge. */
static void replaced_once(void)
{
    cli_case_begin(CLI_TINY_LLAMA);
    run_ok("train job.yaml overwrite_output_dir=true");
    refused("train out/job.yaml learning_rate=1", "already holds a run",
            "out/adapter_model.safetensors");
    run_ok("quantize job.yaml output_dir=nf4");
    refused("merge out/job.yaml init_adapter=out output_dir=nf4", "already holds a model",
            "nf4/model.safetensors");
    refused("quantize out/job.yaml output_dir=nf4", "already holds a model",
            "nf4/model.safetensors");
    cli_case_end();
}

/* That later checkpoints go is said when they have gone, not before the run may yet be refused. */
static void older_named(void)
{
    static const char *const words[] = {
        "train job.yaml max_steps=3 save_strategy=steps save_steps=1",
        "train job.yaml max_steps=3 resume_from_checkpoint=out/checkpoint-1 lora_r=4",
        "train job.yaml max_steps=3 resume_from_checkpoint=out/checkpoint-1"};
    static const char says[] = "resuming from checkpoint-1; the later ones, up to checkpoint-3, "
                               "were deleted";
    cli_case_begin(CLI_TINY_LLAMA);
    for (int i = 0; i < 3; i++) {
        cli_output output;
        cli_run(&output, 1, NULL, words[i]);
        if (output.code != (i == 1 ? 78 : 0) || cli_count(output.err, says) != (i == 2) ||
            cli_count(output.err, "deleted") != (i == 2))
            cli_fail("%s: exit code %d\n%s", words[i], output.code, output.err);
        if (cli_exists("out/checkpoint-3") != (i < 2))
            cli_fail("%s: checkpoint-3 is %s", words[i], i < 2 ? "gone" : "still there");
        cli_output_free(&output);
    }
    cli_case_end();
}

/* ---- who has it ---- */

#define LONG      "train job.yaml max_steps=1000000 logging_steps=1000000 save_total_limit=1 "
#define TELLS_PID "echo $$ >pid.$RANK.new; mv pid.$RANK.new pid.$RANK; exec \"$@\""

static pid_t pid_of(int rank)
{
    char name[16];
    snprintf(name, sizeof name, "pid.%d", rank);
    char *text = cli_read(name, NULL);
    pid_t pid = text ? (pid_t)atoi(text) : 0;
    free(text);
    return pid;
}

static void wait_for(const char *path, const char *words)
{
    bool found = false;
    for (double end = cli_now() + 20; !found && cli_now() < end; cli_sleep(0.01)) {
        char *text = cli_read(path, NULL);
        found = text && strstr(text, words);
        free(text);
    }
    if (!found)
        cli_fail("%s does not say: %s", path, words);
}

/* A run that is started again while a rank of the killed one is still there waits for it, and goes on; beside one
 * that lives it is refused at once. */
static void restarted(void)
{
    cli_process process;
    cli_output output;
    cli_case_begin(CLI_TINY_LLAMA);
    cli_start(&process, 2, TELLS_PID, LONG "save_strategy=steps save_steps=1");
    for (double end = cli_now() + 20; !cli_exists("out/checkpoint-3"); cli_sleep(0.01))
        if (cli_now() > end) {
            cli_fail("no third checkpoint after 20 seconds");
            break;
        }
    pid_t rank[] = {pid_of(0), pid_of(1)};
    refused("train job.yaml max_steps=4 resume_from_checkpoint=true", "another job is writing to",
            "out/job.yaml");
    pid_t mpirun = cli_parent(rank[0]);
    kill(mpirun, SIGKILL);
    while (kill(mpirun, 0) == 0 && cli_parent(rank[0]) == mpirun)
        cli_sleep(0.001);
    kill(rank[0], SIGSTOP); /* it would notice soon */
    cli_wait(&output, &process, 20);
    cli_output_free(&output);
    cli_start(&process, 2, "exec \"$@\" 2>said.$RANK",
              LONG "save_strategy=steps save_steps=1 resume_from_checkpoint=true time_limit=0.01");
    wait_for("said.0", "is still locked by process");
    kill(rank[0], SIGKILL);
    kill(rank[1], SIGKILL);
    cli_wait(&output, &process, 40);
    if (output.code != 75)
        cli_fail("started again: exit code %d\n%s", output.code, output.err);
    if (cli_exists("out/.tessera.lock"))
        cli_fail("the lock is still there");
    cli_output_free(&output);
    cli_case_end();
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } tests[] = {
        {"replaced_once", replaced_once},
        {"older_named", older_named},
        {"restarted", restarted},
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
