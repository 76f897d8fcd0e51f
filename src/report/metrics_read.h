/*
 * report/metrics_read.h: a run's metrics.jsonl, read back: for `inspect` and its plot.
 *
 * A last line without its end is still being written and is left out. A run that was resumed goes on
 * in the same file, from its "resumed_step": what the file has of later steps was done again.
 */
#ifndef TSR_REPORT_METRICS_READ_H
#define TSR_REPORT_METRICS_READ_H

#include "base/status.h"

#include <jansson.h>
#include <stdint.h>

/* NaN: null in the file. */
typedef struct {
    int64_t step;
    double epoch, loss, grad_norm, learning_rate, tokens_per_s, step_s;
    int64_t input_tokens, device_bytes;
    double mean_token_accuracy, entropy; /* NaN: also of a version that did not report them */
    double expert_load_over_mean, expert_empty_share, aux_loss; /* NaN: also without experts */
    int64_t expert_dropped;
} tsr_run_step;

typedef struct {
    int64_t step;
    double loss, mean_token_accuracy, entropy; /* as of a step */
} tsr_run_evaluation;

typedef struct {
    json_t *start; /* the start event, an object; NULL: none */
    tsr_run_step *steps;
    tsr_run_evaluation *evaluations;
    uint64_t step_count, evaluation_count;
    int start_count; /* more than 1: it was resumed */
    char status[16]; /* of the end event; "": there is none */
} tsr_run_metrics;

/* On success free *out with tsr_run_metrics_free. TSR_EDATA: no such file, or a line that is no
 * metrics', by its number. */
tsr_status tsr_run_metrics_read(tsr_run_metrics *out, const char *path);
void tsr_run_metrics_free(tsr_run_metrics *metrics);

#endif
