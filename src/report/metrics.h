/*
 * report/metrics.h: metrics.jsonl, one JSON object a line, each line written with one system call.
 *
 * Numbers have 9 significant digits; what is not finite is null. Written by rank 0 alone.
 * Order    create, start, then steps and evaluations, end, destroy.
 * Threads  Not locked: one thread at a time.
 */
#ifndef TSR_REPORT_METRICS_H
#define TSR_REPORT_METRICS_H

#include "io/folder.h"
#include "tessera.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct tsr_metrics tsr_metrics; /* opaque: see metrics.c */

/* Strings that are NULL are left out. */
typedef struct {
    const char *version, *commit;
    int ranks;
    const char *device; /* "cpu: 16 cores, AVX2" and the like */
    uint64_t plan_hash, config_hash;
    const char *model;
    int64_t total_steps, trainable_count;
    int64_t resumed_step; /* 0: a fresh run */
} tsr_metrics_start;

typedef enum { TSR_METRICS_DONE, TSR_METRICS_SAVED, TSR_METRICS_FAILED } tsr_metrics_status;

/* Creates the file `name`, or appends to it. Borrows nothing. TSR_EIO names the path. */
tsr_status tsr_metrics_create(tsr_metrics **out, const tsr_folder *folder, const char *name,
                              bool append);

/* {"event":"start","version":..,"commit":..,"ranks":..,"device":..,"plan_hash":"16 hex digits",..}
 */
tsr_status tsr_metrics_write_start(tsr_metrics *metrics, const tsr_metrics_start *start);

/* What an objective reports, by TRL's names; static. */
typedef struct {
    const char *name;
    double value;
} tsr_metrics_value;

#define TSR_METRICS_PREFERENCE 15
/* Those that the objective has; how many. */
int tsr_metrics_preference(tsr_metrics_value out[TSR_METRICS_PREFERENCE],
                           const tsr_job_preference *preference);

/* {"step":1,"epoch":0.01,"loss":2.3456789,"grad_norm":..,"learning_rate":..,"label_tokens":..,
 * "input_tokens":..,"tokens_per_s":..,"step_s":..,"device_bytes":..,"exposed_s":..,"mean_token_accuracy":..,
 * "entropy":..}
 * of a model with experts "expert_load_over_mean", "expert_empty_share", "expert_dropped" and, where it is
 * computed, "aux_loss"; and, of a step that was skipped, "skipped_steps": how many were until now */
tsr_status tsr_metrics_write_step(tsr_metrics *metrics, const tsr_job_report *step);

/* {"step":50,"eval_loss":..,"eval_label_tokens":..,"eval_mean_token_accuracy":..,"eval_entropy":..} */
tsr_status tsr_metrics_write_eval(tsr_metrics *metrics, int64_t step,
                                  const tsr_job_evaluation *evaluation);

/* {"event":"end","status":"done"}, "saved" or "failed". */
tsr_status tsr_metrics_write_end(tsr_metrics *metrics, tsr_metrics_status status);

/* Brings what was written to the disk; *bytes of it. */
tsr_status tsr_metrics_sync(uint64_t *bytes, tsr_metrics *metrics);

/* Before a run goes on with a file that is there: only its first `bytes` bytes stay (whole lines of
 * them), the rest is gone at once; one that has other names (hard links) becomes a copy. Nothing to do
 * where there is no file. */
tsr_status tsr_metrics_cut(const tsr_folder *folder, const char *name, uint64_t bytes);

/* Closes the file; NULL is fine. */
void tsr_metrics_destroy(tsr_metrics *metrics);

#endif
