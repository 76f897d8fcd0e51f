/*
 * job/trace.h: the key `trace`: a few steps of a run as a Chrome trace, which chrome://tracing and
 * https://ui.perfetto.dev open.
 *
 * What     One process a rank and one row a stream: an event for each operation of the plan, and
 *          inside it one for each kernel; on a row of its own what compute waited for. Ranks of one
 *          node share a clock; those of others are set by it when the file is written, as well as a
 *          barrier can.
 * Which    The last TSR_TRACE_STEPS of a run's first TSR_TRACE_LAST steps, or of all if it ends
 *          sooner; evaluations in between are left out. Of `tessera eval` the evaluation.
 * When     It is written after the last of these steps, between two steps: a long run need not be
 *          waited for. Until then the traced steps pay for the times that are taken.
 * Memory   Of the host, taken at the start.
 */
#ifndef TSR_JOB_TRACE_H
#define TSR_JOB_TRACE_H

#include "config/config.h"
#include "tessera.h"

#define TSR_TRACE_LAST  6
#define TSR_TRACE_STEPS 3

typedef struct tsr_trace tsr_trace;

/* TSR_ECONFIG unless config->trace can be a file: its directory exists, or is the output_dir. */
tsr_status tsr_trace_check(const tsr_config *config);

/* Before the model and the executor are made of what the job knows: the job's kernels are watched
 * from then on. */
tsr_status tsr_trace_create(tsr_trace **out, tsr_job *job);
void tsr_trace_destroy(tsr_trace *trace);

/* On rank 0, once output_dir is there: opens the directory that the file is written to, so that all of it is
 * reached from there, and takes what memory that needs. NULL is fine. */
tsr_status tsr_trace_place(tsr_trace *trace);

/* What the executor is to hold. */
uint32_t tsr_trace_records(const tsr_trace *trace);

/* What is issued next is of training step `step`, from 1 (0: of the run's evaluation), or of nothing
 * that is traced (-1). NULL is fine. */
void tsr_trace_issue(tsr_trace *trace, int64_t step);

/* After each step, or the run's evaluation: writes the file when that was the last that is traced;
 * `last`: of the run. Then all ranks wait for their streams and meet. NULL is fine. */
tsr_status tsr_trace_done(tsr_trace *trace, int64_t step, bool last);

#endif
