/*
 * cli/progress.h: what a person sees while a run goes on; rank 0 only.
 *
 * On a terminal one bar that is redrawn, and whose line leaves out what there is no room for, the time left last; elsewhere one line per logging_steps. Between steps, long
 * work (reading, hashing, packing, saving) has the place of the bar until it ends, or a line every few
 * seconds. Everything goes through the callback that was given: nothing is printed here. Time is summed
 * from step_s, or given, so the text depends on the reports alone.
 * Threads  Not locked: one thread at a time.
 */
#ifndef TSR_CLI_PROGRESS_H
#define TSR_CLI_PROGRESS_H

#include "base/status.h"
#include "config/config.h"
#include "tessera.h"

typedef struct tsr_progress tsr_progress; /* opaque: see progress.c */

typedef void tsr_progress_write(void *user, const char *text, size_t bytes);

typedef struct {
    tsr_progress_write *write; /* NULL: nothing is shown */
    void *user;
    tsr_config_progress mode; /* AUTO: a bar if `terminal`, lines otherwise */
    bool terminal;            /* whether `write` ends at a terminal */
    int columns;              /* its width; 0: 80 */
    const char
        *label; /* before each step, evaluation and announcement: of which adapter; NULL: nothing */
} tsr_progress_options;

/* Copies *options. TSR_ENOMEM. */
tsr_status tsr_progress_create(tsr_progress **out, const tsr_progress_options *options);

/* Before the first step. total_steps 0: unknown; a line every logging_steps (0: 1), and for step 1 too
 * where first_step is true. */
void tsr_progress_expect(tsr_progress *progress, int64_t total_steps, int64_t logging_steps,
                         bool first_step);

/* How far long work has come at `now` (base/clock.h); done == total ends it. */
void tsr_progress_phase(tsr_progress *progress, const char *phase, double done, double total,
                        double now);

/* After each optimizer step. */
void tsr_progress_step(tsr_progress *progress, const tsr_job_report *step);

/* After each evaluation. */
void tsr_progress_eval(tsr_progress *progress, int64_t step, double eval_loss,
                       int64_t eval_label_tokens);

/* What begins now and may take its time ("saving checkpoint-200"), shown at once: in place of the bar until
 * tsr_progress_announced or what comes next, elsewhere as a line. */
void tsr_progress_announce(tsr_progress *progress, const char *what);
void tsr_progress_announced(tsr_progress *progress);

/* The terminal has as many columns from now on; 0: it does not say. */
void tsr_progress_resize(tsr_progress *progress, int columns);

/* Whether there is, or may be, a bar on the last line. */
bool tsr_progress_is_bar(const tsr_progress *progress);

/* A line of text (without its newline) that must not be torn by the bar: log messages. Written in
 * every mode. */
void tsr_progress_line(tsr_progress *progress, const char *line);

/* Leaves the last bar on the screen and ends its line. */
void tsr_progress_finish(tsr_progress *progress);

/* NULL is fine; finishes first. */
void tsr_progress_destroy(tsr_progress *progress);

#endif
