/*
 * cli/options.h: the options of a command, from the lines of its help.
 */
#ifndef TSR_CLI_OPTIONS_H
#define TSR_CLI_OPTIONS_H

#include "base/text.h"
#include "cli/usage.h"

typedef struct {
    char name[32];     /* "--ranks", "-v", "OTHER" */
    char argument[32]; /* "N"; "": none */
    tsr_text what;
} tsr_option;

/* The option that begins at *line, which moves behind it; false: none is left, and *line is the other text, "" if there
 * is none. On true free out->what. */
bool tsr_option_next(tsr_option *out, const char **line);

#endif
