/*
 * cli.h: the program itself, run through launch/run in a directory of its own.
 */
#ifndef TESTS_MULTI_CLI_H
#define TESTS_MULTI_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define CLI_TINY_LLAMA   TSR_SOURCE_DIR "/examples/tiny-llama"
#define CLI_PREQUANTIZED TSR_SOURCE_DIR "/tests/golden/prequantized-tiny-llama"
#define CLI_TRACES       TSR_SOURCE_DIR "/tests/golden/traces"
#define CLI_FAMILIES     TSR_SOURCE_DIR "/tests/golden/families"

/* argv of the test program: launch/run, tessera, and maybe the one case to run. */
void cli_open(int argc, char **argv);
void cli_close(void);
const char *cli_only(void);                         /* the one case, or NULL */
const char *cli_launcher(void), *cli_program(void); /* absolute */

/* ---- files, all relative to the case's directory, which is the working directory ---- */

/* A fresh directory with: model/ (links to a checkpoint's files), data.jsonl, job.yaml. */
void cli_case_begin(const char *model);
void cli_case_end(void);
const char *cli_here(void); /* its absolute path */

void cli_write(const char *path, const char *text);
char *cli_read(const char *path,
               size_t *bytes); /* the caller's; with a zero behind it; NULL: none */
bool cli_exists(const char *path);
/* A link becomes a copy in which `find` is `replace` (all places; fails the test if none). */
void cli_edit(const char *path, const char *find, const char *replace);
/* The same in the JSON header of a safetensors file, whose length is corrected. */
void cli_edit_header(const char *path, const char *find, const char *replace);
/* A link becomes a copy that ends after `bytes`; negative: that many before its end. */
void cli_cut(const char *path, long bytes);
/* A link becomes a copy with `bytes` at `offset` overwritten. */
void cli_poke(const char *path, long offset, const void *data, size_t bytes);
void cli_remove(const char *path);
/* Links to all files of a directory. */
void cli_link_all(const char *from, const char *to);

/* Names of all files below the working directory, sorted, a line each; the caller's. */
char *cli_listing(void);

/* ---- runs ---- */

typedef struct {
    int code; /* exit code; 128 + signal; -1: it hung and was ended */
    char *out, *err;
    double seconds;
} cli_output;

typedef struct {
    pid_t pid;
    double started;
} cli_process;

/* Words after the program's name, separated by spaces. `wrapper` (may be NULL): text of a shell
 * script that stands before the program: its $@ is the program with its words, RANK the rank. */
void cli_start(cli_process *process, int ranks, const char *wrapper, const char *words);
/* Waits; what is still there after `timeout` seconds is killed. */
void cli_wait(cli_output *output, cli_process *process, double timeout);
/* Seconds after which a run hangs: env --measure computes for ten on two idle cores. */
#define CLI_PATIENCE 60
void cli_run(cli_output *output, int ranks, const char *wrapper, const char *words);
void cli_output_free(cli_output *output);

/* A line as a person types it into a shell, in another directory. */
void cli_type(cli_output *output, const char *line);
/* What follows `begin` in the line of `text` that begins with it; the caller's. Fails the test if none
 * does. */
char *cli_line(const char *text, const char *begin);
pid_t cli_parent(pid_t pid);

/* How often `words` stands in `text`. */
int cli_count(const char *text, const char *words);

/* Fails where a terminal would obey what is printed, or a reader not see it. */
void cli_check_harmless(const char *text);

double cli_now(void);
void cli_sleep(double seconds);

/* ---- verdicts ---- */

/* Reports a failure of the case that runs; the program goes on. */
void cli_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
void cli_name(const char *name);
int cli_failures(void);

#endif
