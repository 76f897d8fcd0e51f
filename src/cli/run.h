/*
 * cli/run.h: what one job of a command passes along, between main.c and train.c. Inside src/cli.
 */
#ifndef TSR_CLI_RUN_H
#define TSR_CLI_RUN_H

#include "cli/progress.h"
#include "cli/usage.h"
#include "config/config.h"
#include "tessera.h"

typedef struct {
    const tsr_usage *usage;
    const char *program; /* argv[0] */
    tsr_config config;
    tsr_job *job;
    tsr_progress *progress;
    bool first;   /* rank 0: the one that talks */
    int64_t done; /* steps */
    double first_loss, last_loss;
    bool best_counts; /* the adapter is that of the best evaluation */
    bool stopped, ended;
    bool details; /* what only details are is shown */
} tsr_run;

/* main.c: what this rank prints on stderr, escaped; how wide the terminal is (0: it does not say); what a signal is
 * answered with from now on (NULL: nothing). */
void tsr_run_say(const char *text);
void tsr_run_put_mixed(tsr_text *out,
                       const tsr_job_plan_info *info); /* which micro-batches adapters share */
int tsr_run_columns(void);
void tsr_run_answer(const char *text);

/* train.c: trains the jobs, which share a base if there are several, in turns, a step of each. Those whose steps are all done
 * already are `ended` and have no job. */
int tsr_run_train(tsr_run *runs, int count);
/* Asked to go on with what has come to its end: says so. */
void tsr_run_print_finished(const tsr_run *run);
/* After a stop: how to go on. */
void tsr_run_print_stopped(const tsr_run *runs, int count);

#endif
