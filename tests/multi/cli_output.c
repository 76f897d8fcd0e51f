/*
 * output_dir, through the whole program: what a run's own job.yaml may replace, what a refused resume leaves
 * and says, and who has the directory.
 */
#include "multi/cli.h"

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
    refused("train out/job.yaml learning_rate=1", "holds a run already",
            "out/adapter_model.safetensors");
    run_ok("quantize job.yaml output_dir=nf4");
    refused("merge out/job.yaml init_adapter=out output_dir=nf4", "holds a model already",
            "nf4/model.safetensors");
    refused("quantize out/job.yaml output_dir=nf4", "holds a model already",
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
    static const char says[] = "what came after step 1 was removed: the checkpoints up to "
                               "checkpoint-3";
    cli_case_begin(CLI_TINY_LLAMA);
    for (int i = 0; i < 3; i++) {
        cli_output output;
        cli_run(&output, 1, NULL, words[i]);
        if (output.code != (i == 1 ? 78 : 0) || cli_count(output.err, says) != (i == 2) ||
            cli_count(output.err, "removed") != (i == 2))
            cli_fail("%s: exit code %d\n%s", words[i], output.code, output.err);
        if (cli_exists("out/checkpoint-3") != (i < 2))
            cli_fail("%s: checkpoint-3 is %s", words[i], i < 2 ? "gone" : "still there");
        cli_output_free(&output);
    }
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
