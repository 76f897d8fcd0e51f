#include "report/metrics_read.h"

#include "io/file.h"
#include "io/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_BYTES (4ull << 30)

static double number(const json_t *line, const char *key)
{
    const json_t *value = json_object_get(line, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static int64_t integer(const json_t *line, const char *key)
{
    return (int64_t)json_integer_value(json_object_get(line, key));
}

/* A place for one more of `count` elements; NULL: no memory. */
static void *grow(void *array, uint64_t count, size_t element)
{
    bool full = count == 0 || (count & (count - 1)) == 0;
    return full ? realloc(array, (count ? 2 * count : 1) * element) : array;
}

static tsr_status add_step(tsr_run_metrics *m, const json_t *line, int64_t step, const char *place)
{
    tsr_run_step *steps = grow(m->steps, m->step_count, sizeof *steps);
    if (!steps)
        return tsr_fail(TSR_ENOMEM, "%s: out of memory", place);
    m->steps = steps;
    steps[m->step_count++] =
        (tsr_run_step){.step = step,
                       .epoch = number(line, "epoch"),
                       .loss = number(line, "loss"),
                       .grad_norm = number(line, "grad_norm"),
                       .learning_rate = number(line, "learning_rate"),
                       .tokens_per_s = number(line, "tokens_per_s"),
                       .step_s = number(line, "step_s"),
                       .input_tokens = integer(line, "input_tokens"),
                       .device_bytes = integer(line, "device_bytes"),
                       .mean_token_accuracy = number(line, "mean_token_accuracy"),
                       .entropy = number(line, "entropy"),
                       .expert_load_over_mean = number(line, "expert_load_over_mean"),
                       .expert_empty_share = number(line, "expert_empty_share"),
                       .aux_loss = number(line, "aux_loss"),
                       .expert_dropped = integer(line, "expert_dropped")};
    return TSR_OK;
}

static tsr_status add_evaluation(tsr_run_metrics *m, const json_t *line, int64_t step,
                                 const char *place)
{
    tsr_run_evaluation *all = grow(m->evaluations, m->evaluation_count, sizeof *all);
    if (!all)
        return tsr_fail(TSR_ENOMEM, "%s: out of memory", place);
    m->evaluations = all;
    all[m->evaluation_count++] = (tsr_run_evaluation){step, number(line, "eval_loss"),
                                                      number(line, "eval_mean_token_accuracy"),
                                                      number(line, "eval_entropy")};
    return TSR_OK;
}

/* What came after the step that a run goes on from is done again. */
static void forget_after(tsr_run_metrics *m, int64_t step)
{
    while (m->step_count && m->steps[m->step_count - 1].step > step)
        m->step_count--;
    while (m->evaluation_count && m->evaluations[m->evaluation_count - 1].step > step)
        m->evaluation_count--;
}

static void add_event(tsr_run_metrics *m, json_t *line, const char *event)
{
    const char *status = json_string_value(json_object_get(line, "status"));
    if (!strcmp(event, "start")) {
        forget_after(m, integer(line, "resumed_step"));
        json_decref(m->start);
        m->start = json_incref(line);
        m->start_count++;
        m->status[0] = 0;
    } else if (!strcmp(event, "end") && status) {
        snprintf(m->status, sizeof m->status, "%s", status);
    }
}

static tsr_status add_line(tsr_run_metrics *m, const char *text, size_t length, const char *place)
{
    json_auto_t *line = NULL;
    TSR_TRY(tsr_json_parse(&line, text, length, place));
    const char *event = json_string_value(json_object_get(line, "event"));
    const json_t *step = json_object_get(line, "step");
    tsr_status status = TSR_OK;
    if (event)
        add_event(m, line, event);
    else if (!json_is_integer(step))
        status = tsr_fail(
            TSR_EDATA, "%s: expected a line of a run's metrics.jsonl, with \"event\" or \"step\"",
            place);
    else if (json_object_get(line, "eval_loss"))
        status = add_evaluation(m, line, (int64_t)json_integer_value(step), place);
    else
        status = add_step(m, line, (int64_t)json_integer_value(step), place);
    return status;
}

tsr_status tsr_run_metrics_read(tsr_run_metrics *out, const char *path)
{
    tsr_run_metrics metrics = {0};
    char *text, place[4200];
    uint64_t bytes;
    TSR_TRY(tsr_file_read(&text, &bytes, path, MOST_BYTES));
    tsr_status status = TSR_OK;
    long number_of_line = 0;
    for (char *line = text, *end; status == TSR_OK; line = end + 1) {
        end = memchr(line, '\n', bytes - (uint64_t)(line - text));
        if (!end)
            break;
        snprintf(place, sizeof place, "%s:%ld", path, ++number_of_line);
        status = add_line(&metrics, line, (size_t)(end - line), place);
    }
    free(text);
    if (status < 0)
        tsr_run_metrics_free(&metrics);
    else
        *out = metrics;
    return status;
}

void tsr_run_metrics_free(tsr_run_metrics *metrics)
{
    json_decref(metrics->start);
    free(metrics->steps);
    free(metrics->evaluations);
    *metrics = (tsr_run_metrics){0};
}
