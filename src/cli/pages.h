/*
 * cli/pages.h: man pages and completions of shells, from the tables that --help is made of.
 */
#ifndef TSR_CLI_PAGES_H
#define TSR_CLI_PAGES_H

#include "base/status.h"
#include "cli/usage.h"

/* tessera.1 */
tsr_status tsr_pages_overview(tsr_text *out);

/* tessera-VERB.1 */
tsr_status tsr_pages_verb(tsr_text *out, const tsr_usage_verb *verb);

/* tessera-job.5: every key. */
tsr_status tsr_pages_job(tsr_text *out);

/* A completion script from its template, whose lines @VERBS@, @OPTIONS@, @KEYS@ and @VALUES@ are replaced: for bash and
 * zsh by words and lines of a `case`, for fish (`fish`) by calls of `complete`. */
tsr_status tsr_pages_completion(tsr_text *out, const char *pattern, bool fish);

#endif
