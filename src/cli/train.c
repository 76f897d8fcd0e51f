/*
 * train.c: the training of one job, or of several on one base.
 */
#include "cli/run.h"

#include "base/auto.h"
#include "base/called.h"
#include "base/text.h"
#include "comm/launcher.h"
#include "model/arch/config.h"
#include "report/summary.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char stops_at_step[] =
    "stopping after this step, with a checkpoint; a second time stops at once\n";

static int save_checkpoint(const tsr_run *r, int64_t step)
{
    char what[64];
    snprintf(what, sizeof what, "saving checkpoint-%lld", (long long)step);
    if (r->first)
        tsr_progress_announce(r->progress, what);
    int status = tsr_job_checkpoint(r->job);
    if (r->first)
        tsr_progress_announced(r->progress);
    return status;
}

static void show_step(tsr_run *r, const tsr_job_report *report)
{
    char line[96];
    if (!r->first)
        return;
    tsr_progress_resize(r->progress, tsr_run_columns());
    tsr_progress_step(r->progress, report);
    if (!report->skipped)
        return;
    snprintf(line, sizeof line, "step %lld: a gradient was not finite; nothing was updated",
             (long long)report->step);
    tsr_progress_line(r->progress, line);
}

static int evaluate(tsr_run *r, int64_t step)
{
    tsr_job_evaluation e = TSR_JOB_EVALUATION_INIT;
    int status = tsr_job_evaluate(r->job, &e);
    r->stopped = status == 0 && e.stopped;
    if (status < 0 || r->stopped)
        return status;
    if (r->first)
        tsr_progress_eval(r->progress, step, e.loss, e.label_tokens);
    if (step == 0)
        r->first_loss = e.loss;
    r->last_loss = r->best_counts && e.best_step ? e.best_loss : e.loss;
    return e.save ? save_checkpoint(r, step) : 0;
}

/* What starts as many ranks again: launch/run says so itself, mpirun is known by what it sets. Of another
 * launcher it is not known: one rank will do. `out` has room. */
static const char *find_launcher(char out[128], int ranks)
{
    const char *launched = getenv("TESSERA_LAUNCH");
    if (ranks == 1 || (!launched && !getenv("OMPI_COMM_WORLD_SIZE")))
        return "";
    if (launched)
        return launched;
    snprintf(out, 128, "mpirun%s --oversubscribe --bind-to none -n %d",
             geteuid() == 0 ? " --allow-run-as-root" : "", ranks);
    return out;
}

static void print_end(const tsr_run *r)
{
    const tsr_config *config = &r->config;
    tsr_model_config model = {0};
    (void)tsr_model_config_load(&model, config->model_name_or_path);
    tsr_auto_text text = {0};
    char directory[PATH_MAX] = "", launcher[128];
    if (!getcwd(directory, sizeof directory))
        strcpy(directory, ".");
    const tsr_summary_call call = {.program = r->program,
                                   .launcher = find_launcher(launcher, tsr_job_ranks(r->job)),
                                   .directory = directory,
                                   .beside_towers = model.composite != NULL};
    tsr_summary_end(&text, config, &call, r->first_loss, r->last_loss);
    tsr_run_say(tsr_text_string(&text));
}

/* What comes before the first step: the evaluation that the configuration asks for. */
static int begin_steps(tsr_run *r)
{
    tsr_job_report report = TSR_JOB_REPORT_INIT;
    int resumed = tsr_job_resumed(r->job, &report);
    if (resumed < 0)
        return resumed;
    r->done = report.step;
    r->best_counts = r->config.load_best_model_at_end;
    bool due = resumed ? report.evaluate : r->config.eval_on_start != TSR_CONFIG_CHOICE_NO;
    return tsr_config_evaluates(&r->config) && due ? evaluate(r, report.step) : 0;
}

/* What comes after the last one. */
static int end_steps(tsr_run *r)
{
    r->ended = true;
    tsr_progress_finish(r->progress);
    int status = r->stopped ? 0 : tsr_job_save(r->job);
    if (status == 0 && !r->stopped && r->first)
        print_end(r);
    return status;
}

/* One, with what the configuration asks for after it. */
static int run_step(tsr_run *r)
{
    tsr_job_report report = TSR_JOB_REPORT_INIT;
    int status = tsr_job_step(r->job, &report);
    if (status == TSR_JOB_DONE)
        return end_steps(r);
    if (status < 0)
        return status;
    r->done = report.step;
    show_step(r, &report);
    /* Stopped: whoever stops it waits. The evaluation is made up for when the run goes on. */
    if (tsr_config_evaluates(&r->config) && !report.stopped && (report.evaluate || report.last))
        status = evaluate(r, report.step);
    if (status == 0 && (report.save || r->stopped))
        status = save_checkpoint(r, report.step);
    r->stopped |= report.stopped;
    return status == 0 && r->stopped ? end_steps(r) : status;
}

/* The one with the fewest steps of those that have some left. */
static tsr_run *next_of(tsr_run *runs, int count)
{
    tsr_run *next = NULL;
    for (int i = 0; i < count; i++)
        if (!runs[i].ended && (!next || runs[i].done < next->done))
            next = &runs[i];
    return next;
}

/* A step of each that has one left, until none has. */
static int run_steps(tsr_run *runs, int count)
{
    int status = 0;
    for (int i = 0; i < count && status == 0; i++)
        if (!runs[i].ended)
            status = begin_steps(&runs[i]);
    for (tsr_run *r = next_of(runs, count); r && status == 0; r = next_of(runs, count))
        status = run_step(r);
    return status;
}

void tsr_run_print_stopped(const tsr_run *runs, int count)
{
    char launcher[128];
    tsr_auto_text text = {0};
    const tsr_run *r = runs;
    while (!r->job)
        r++;
    const char *start = find_launcher(launcher, tsr_job_ranks(r->job));
    tsr_text_printf(&text, "tessera: stopped early, with a checkpoint%s; to continue: %s%s%s ",
                    count > 1 ? " of each adapter" : "", start, *start ? " " : "", tsr_called());
    tsr_text_puts(&text, count > 1 ? "train " : "resume ");
    tsr_shell_quote(&text, count > 1 ? r->usage->job_path : r->config.output_dir);
    tsr_text_puts(&text, count > 1 ? " resume_from_checkpoint=true\n" : "\n");
    tsr_run_say(tsr_text_string(&text));
}

void tsr_run_print_finished(const tsr_run *r)
{
    const tsr_config *config = &r->config;
    tsr_text text = {0};
    tsr_text_printf(&text,
                    "tessera: the run in %s is finished: all of its %lld steps are done; raise "
                    "%s to train on\n",
                    config->output_dir, (long long)tsr_job_total_steps(r->job),
                    config->max_steps > 0 ? "max_steps" : "num_train_epochs");
    tsr_run_say(tsr_text_string(&text));
    tsr_text_free(&text);
    print_end(r);
}

/* Memory, weights and the adapter's first values; what the run is. */
static int start(tsr_run *r)
{
    TSR_AUTO_FREE char *summary = NULL;
    int status = tsr_job_start(r->job);
    /* One that cannot be made is no reason to end, and the other ranks would not know. */
    if (status == 0 && r->first && tsr_job_print_summary(r->job, &summary) == 0)
        tsr_run_say(summary);
    int64_t steps = tsr_job_total_steps(r->job);
    tsr_progress_expect(r->progress, steps, tsr_config_steps(r->config.logging_steps, steps, 1),
                        r->config.logging_first_step);
    return status;
}

/* Of several adapters, how they share the base and what that does to their results. */
static int say_sharing(const tsr_run *runs, int count)
{
    tsr_job_plan_info info = TSR_JOB_PLAN_INFO_INIT;
    tsr_auto_text line = {0};
    const tsr_run *r = NULL;
    int live = 0;
    for (int i = count - 1; i >= 0; i--)
        if (runs[i].job) {
            r = &runs[i];
            live++;
        }
    int status = r ? tsr_job_plan(r->job, &info) : 0;
    if (status != 0 || live < 2 || !r->first)
        return status;
    tsr_text_printf(&line, "adapters %d, ", live);
    if (info.mixed_count)
        tsr_run_put_mixed(&line, &info);
    tsr_text_puts(&line, info.mixed_count
                             ? "; each has the results of a run of its own within rounding\n"
                             : "a step of each in turns; each has the bits of a run of its own\n");
    tsr_run_say(tsr_text_string(&line));
    return 0;
}

int tsr_run_train(tsr_run *runs, int count)
{
    tsr_job_plan_info info = TSR_JOB_PLAN_INFO_INIT;
    int status = 0;
    for (int i = 0; i < count && status == 0; i++)
        status = runs[i].job ? tsr_job_plan(runs[i].job, &info) : 0;
    for (int i = 0; i < count && status == 0; i++)
        status = runs[i].job ? start(&runs[i]) : 0;
    for (int i = 0; i < count; i++) {
        runs[i].details = true; /* what comes from here on is news */
        if (runs[i].first)
            tsr_run_answer(stops_at_step);
    }
    if (status == 0)
        status = say_sharing(runs, count);
    if (status == 0)
        status = run_steps(runs, count);
    tsr_run_answer(NULL);
    return status;
}
