/* Several runs: those in a directory, one a row; and two beside each other. */
#include "commands/inspect.h"

#include "config/config.h"
#include "config/keys.h"
#include "inputs/kind.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#define MOST_ROWS 12 /* of a curve */

static const char *const sides[] = {"a", "b"};

/* Evaluations at step 0 come before any training. */
static double last_evaluation(const tsr_run_metrics *m)
{
    return m->evaluation_count ? m->evaluations[m->evaluation_count - 1].loss : NAN;
}

static int64_t steps_done(const tsr_run_metrics *m)
{
    return m->step_count ? m->steps[m->step_count - 1].step : 0;
}

/* What a row and a side of a comparison have. */
static void add_facts(json_t *row, const tsr_run_metrics *m)
{
    json_t *model = json_object_get(m->start, "model"),
           *total = json_object_get(m->start, "total_steps");
    json_object_set(row, "model", model ? model : json_null());
    tsr_report_int(row, "steps", (uint64_t)steps_done(m));
    json_object_set(row, "of", total ? total : json_null());
    tsr_report_real(row, "loss", m->step_count ? m->steps[m->step_count - 1].loss : NAN);
    tsr_report_real(row, "eval_loss", last_evaluation(m));
    tsr_report_string(row, "state", m->status[0] ? m->status : TSR_INSPECT_OPEN);
}

tsr_status tsr_inspect_runs(json_t *report, const char *directory)
{
    tsr_kind_runs runs;
    TSR_TRY(tsr_kind_runs_find(&runs, directory));
    json_t *rows = tsr_report_array(report, "runs");
    for (int i = 0; i < runs.count; i++) {
        char path[TSR_INSPECT_PATH_BYTES];
        tsr_run_metrics metrics;
        json_t *row = tsr_report_row(rows);
        tsr_report_string(row, "name", runs.names[i]);
        if (tsr_inspect_join(path, directory, runs.names[i]) < 0 ||
            tsr_inspect_metrics(&metrics, path) < 0) {
            tsr_report_string(row, "state", tsr_last_error());
            continue;
        }
        add_facts(row, &metrics);
        tsr_run_metrics_free(&metrics);
    }
    bool none = runs.count == 0;
    tsr_kind_runs_free(&runs);
    return none ? tsr_kind_refuse(TSR_EDATA, directory) : TSR_OK;
}

/* ---- two runs ---- */

static tsr_status load_job(tsr_config *out, const char *directory)
{
    char path[TSR_INSPECT_PATH_BYTES];
    TSR_TRY(tsr_inspect_join(path, directory, "job.yaml"));
    const tsr_config_source source = {.path = path, .use = TSR_CONFIG_PLAN, .has_cuda = true};
    return tsr_config_load(out, &source);
}

static tsr_status add_keys(json_t *report, const tsr_config config[2])
{
    json_t *rows = tsr_report_array(report, "keys_that_differ");
    for (int i = 0; i < tsr_keys_count(); i++) {
        const char *key = tsr_keys_at(i)->name;
        tsr_auto_text a = {0}, b = {0};
        TSR_TRY(tsr_config_value_text(&a, &config[0], key));
        TSR_TRY(tsr_config_value_text(&b, &config[1], key));
        if (!strcmp(key, "output_dir") || !strcmp(tsr_text_string(&a), tsr_text_string(&b)))
            continue;
        json_t *row = tsr_report_row(rows);
        tsr_report_string(row, "key", key);
        tsr_report_string(row, sides[0], tsr_text_string(&a));
        tsr_report_string(row, sides[1], tsr_text_string(&b));
    }
    return TSR_OK;
}

static tsr_status compare_keys(json_t *report, const char *const paths[2])
{
    tsr_config config[2] = {0};
    tsr_status status = load_job(&config[0], paths[0]);
    if (status == TSR_OK)
        status = load_job(&config[1], paths[1]);
    if (status == TSR_OK)
        status = add_keys(report, config);
    tsr_config_free(&config[0]);
    tsr_config_free(&config[1]);
    return status;
}

/* The mean loss of the steps in (after, to]; NaN: none. */
static double mean_loss(const tsr_run_metrics *m, int64_t after, int64_t to)
{
    double sum = 0;
    int64_t count = 0;
    for (uint64_t i = 0; i < m->step_count; i++)
        if (m->steps[i].step > after && m->steps[i].step <= to && isfinite(m->steps[i].loss)) {
            sum += m->steps[i].loss;
            count++;
        }
    return count ? sum / (double)count : NAN;
}

/* The last evaluation in (after, to]; NaN: none. */
static double eval_loss(const tsr_run_metrics *m, int64_t after, int64_t to)
{
    double loss = NAN;
    for (uint64_t i = 0; i < m->evaluation_count; i++)
        if (m->evaluations[i].step > after && m->evaluations[i].step <= to)
            loss = m->evaluations[i].loss;
    return loss;
}

static void add_curves(json_t *report, const tsr_run_metrics m[2])
{
    json_t *rows = tsr_report_array(report, "curves");
    int64_t a = steps_done(&m[0]), b = steps_done(&m[1]), most = a > b ? a : b;
    int64_t count = most < MOST_ROWS ? most : MOST_ROWS, after = -1;
    bool before = isfinite(eval_loss(&m[0], -1, 0)) || isfinite(eval_loss(&m[1], -1, 0));
    for (int64_t i = before ? 0 : 1; i <= count; i++) {
        int64_t to = count ? most * i / count : 0;
        json_t *row = tsr_report_row(rows);
        tsr_report_int(row, "to_step", (uint64_t)to);
        for (int s = 0; s < 2; s++)
            tsr_report_real(row, s ? "loss_b" : "loss_a", mean_loss(&m[s], after, to));
        for (int s = 0; s < 2; s++)
            tsr_report_real(row, s ? "eval_loss_b" : "eval_loss_a", eval_loss(&m[s], after, to));
        after = to;
    }
}

static tsr_status read_run(tsr_run_metrics *out, const char *path)
{
    if (tsr_kind_of(path) != TSR_KIND_RUN)
        return tsr_fail(TSR_EDATA,
                        "%s is not a run; two directories are compared where both are runs", path);
    return tsr_inspect_metrics(out, path);
}

tsr_status tsr_inspect_two_runs(json_t *report, const char *path, const char *other)
{
    const char *const paths[] = {path, other};
    tsr_run_metrics metrics[2] = {0};
    tsr_report_string(report, "kind", "two runs");
    tsr_status status = read_run(&metrics[0], path);
    if (status == TSR_OK)
        status = read_run(&metrics[1], other);
    for (int i = 0; i < 2 && status == TSR_OK; i++) {
        json_t *side = tsr_report_object(report, sides[i]);
        tsr_report_string(side, "path", paths[i]);
        add_facts(side, &metrics[i]);
    }
    if (status == TSR_OK)
        status = compare_keys(report, paths);
    if (status == TSR_OK)
        add_curves(report, metrics);
    tsr_run_metrics_free(&metrics[0]);
    tsr_run_metrics_free(&metrics[1]);
    return status;
}
