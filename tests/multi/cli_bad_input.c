/*
 * Broken inputs through the whole program: one message that names the place and the fix, the right
 * exit code on mpirun's side, nothing written, no hang.
 */
#include "multi/cli.h"
#include "multi/cli_bad.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int seen;

/* The message stands once, holds the words, and nothing of mpirun's follows it. */
static void check_message(const cli_bad_case *c, const cli_output *o)
{
    const char *message = strncmp(o->err, "tessera: ", 9) ? strstr(o->err, "\ntessera: ") : o->err;
    int count = cli_count(o->err, "\ntessera: ") + (message == o->err);
    if (count != 1)
        cli_fail("%d messages, expected one\n%s", count, o->err);
    if (strstr(o->err, "MPI_ABORT") || strstr(o->err, "mpirun has") || strstr(o->err, "-----"))
        cli_fail("mpirun has its say too\n%s", o->err);
    for (int i = 0; i < 3 && c->says[i] && message; i++)
        if (!strstr(message, c->says[i]))
            cli_fail("expected '%s' in\n%s", c->says[i], message);
    cli_check_harmless(o->err);
    if (getenv("CLI_SHOW"))
        fprintf(stderr, "%s (%d, %.2f s): %s\n", c->name, o->code, o->seconds, message);
}

static void check(const cli_bad_case *c, const cli_output *o, const char *before)
{
    char *after = cli_listing();
    if (o->code != c->code)
        cli_fail("exit code %d, expected %d\n%s", o->code, c->code, o->err);
    check_message(c, o);
    if (o->out[0] &&
        strncmp(o->out, "too big ", 8) != 0) /* the screen of a plan that does not fit */
        cli_fail("standard output has %s", o->out);
    if (strcmp(before, after) != 0)
        cli_fail("the files were\n%sand are\n%s", before, after);
    free(after);
}

static void run_case(const cli_bad_case *c)
{
    char words[1024];
    cli_output output;
    if (cli_only() && strcmp(cli_only(), c->name) != 0)
        return;
    cli_name(c->name);
    cli_case_begin(c->model ? c->model : CLI_TINY_LLAMA);
    if (c->breaks)
        c->breaks();
    char *before = cli_listing();
    snprintf(words, sizeof words, "%s %s", c->command ? c->command : "train job.yaml",
             c->words ? c->words : "");
    cli_run(&output, c->ranks ? c->ranks : 1, c->wrapper, words);
    check(c, &output, before);
    cli_output_free(&output);
    free(before);
    cli_case_end();
    seen++;
}

int main(int argc, char **argv)
{
    cli_open(argc, argv);
    for (size_t i = 0; i < cli_bad_config_count; i++)
        run_case(&cli_bad_config[i]);
    for (size_t i = 0; i < cli_bad_data_count; i++)
        run_case(&cli_bad_data[i]);
    for (size_t i = 0; i < cli_bad_model_count; i++)
        run_case(&cli_bad_model[i]);
    for (size_t i = 0; i < cli_bad_adapter_count; i++)
        run_case(&cli_bad_adapter[i]);
    for (size_t i = 0; i < cli_bad_tools_count; i++)
        run_case(&cli_bad_tools[i]);
    for (size_t i = 0; i < cli_bad_escape_count; i++)
        run_case(&cli_bad_escape[i]);
    cli_close();
    printf("%d broken inputs, %d failures\n", seen, cli_failures());
    return cli_failures() || !seen;
}
