/*
 * cli/usage.h: the command line of the program, parsed; nothing is printed and nothing exits.
 */
#ifndef TSR_CLI_USAGE_H
#define TSR_CLI_USAGE_H

#include "base/status.h"
#include "base/text.h"

#include <stdbool.h>
#include <stdint.h>

#define TSR_USAGE_RANKS 16

typedef enum {
    TSR_COMMAND_TEXT, /* --help, version: `text` is all there is to do, for stdout */
    TSR_COMMAND_TRAIN,
    TSR_COMMAND_PLAN,
    TSR_COMMAND_EVAL,
    TSR_COMMAND_DATA,
    TSR_COMMAND_TRANSLATE,
    TSR_COMMAND_MERGE,
    TSR_COMMAND_QUANTIZE,
    TSR_COMMAND_INSPECT,
    TSR_COMMAND_ENV
} tsr_command;

typedef struct {
    tsr_command command;
    /* The job.yaml, or that of the directory that was named; of inspect, the path; NULL: overrides alone. Owned. */
    char *job_path;
    const char **overrides; /* "key=value", from a directory, that or --key value; owned */
    int override_count;
    int ranks[TSR_USAGE_RANKS]; /* plan --ranks N,N,...; [0] 0: not given */
    int rank_count;
    int64_t node;      /* plan --node N; 0: not given */
    const char *roofs; /* plan --roofs FILE; borrowed from argv; NULL: not given */
    int64_t show;      /* data --show N */
    const char *html;  /* data --html FILE; borrowed from argv; NULL: not given */
    bool json;         /* --json */
    bool all;          /* plan --all: every buffer */
    bool longest;      /* plan --longest: of the longest row that fits */
    bool verbose;      /* -v: how it was decided, before the first step */
    bool measure;      /* env --measure */
    const char *other; /* inspect: a second trace; borrowed from argv; NULL: not given */
    const char *plot;  /* inspect --plot FILE.svg; borrowed from argv; NULL: not given */
    tsr_text text;
} tsr_usage;

/* A command, as its help, its man page and the shells' completions have it. Options and the example are lines, each with
 * its newline: of an option "    --ranks N   plan for N ranks", with deeper lines that go on; after an empty line other
 * text; of the example "    tessera ...". */
typedef struct {
    const char *name;
    tsr_command command;
    const char *line, *what, *options, *example; /* options NULL: none */
    const char *also;                            /* another name; NULL: none */
    bool resumes;
} tsr_usage_verb;

/* All commands by index; NULL: past the last. */
const tsr_usage_verb *tsr_usage_verb_at(int index);

/* Whether its line names a job.yaml, with keys after it. */
bool tsr_usage_takes_job(const tsr_usage_verb *verb);

/* Parses argv. On success free *out with tsr_usage_free. TSR_EUSAGE: the message says what was
 * wrong and shows the line to type. Commands of later versions are refused by name. */
tsr_status tsr_usage_parse(tsr_usage *out, int argc, char *const *argv);

void tsr_usage_free(tsr_usage *usage);

#endif
