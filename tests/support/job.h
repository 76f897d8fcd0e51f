/*
 * tests/support/job.h: jobs that a test makes, on one rank or on several threads of this process,
 * with a look inside after every micro-batch.
 */
#ifndef TSR_TESTS_SUPPORT_JOB_H
#define TSR_TESTS_SUPPORT_JOB_H

#include "job/parts.h"

#define JOB_KEYS       40
#define JOB_MOST_RANKS 8

typedef struct {
    int purpose; /* TSR_JOB_TRAIN or TSR_JOB_EVALUATE */
    int ranks;   /* 0: 1 */
    int count;
    char key[JOB_KEYS][400]; /* "key=value" */
} job_spec;

/* Adds one "key=value", as printf; of a key given twice the last counts. */
__attribute__((format(printf, 2, 3))) void job_set(job_spec *spec, const char *format, ...);

/* Creates the job on every rank, starts it and calls body(job, user): with one rank on the calling
 * thread, else on a thread for each rank (where nothing may be asserted). Fails the test with the
 * message of the lowest rank that failed. */
void job_run(const job_spec *spec, tsr_status (*body)(tsr_job *job, void *user), void *user);

/* tsr_quantize or tsr_merge, called with the keys of `spec`; fails the test with its message. */
typedef int job_command(const tsr_job_options *options, int json, char **text);
void job_convert(job_command *call, const job_spec *spec);

/* Called when micro-batch `index` of the step has been computed and the streams are idle. */
typedef void job_seen(void *user, tsr_job *job, const tsr_micro_batch *micro, int64_t index);

/* This rank's micro-batches of training step `step`, or of the evaluation, without the end of the
 * step: gradients stay where they are kept. Empty ones are run but not shown. Nothing may be
 * asked of the job afterwards but further micro-batches of the same kind. */
tsr_status job_micro_batches(tsr_job *job, bool train, int64_t step, job_seen *seen, void *user);

/* A copy of the gradient of one segment (a, b or m of a linear), real elements only, [count] of the
 * tensor; a job of one rank. The caller frees. */
double *job_gradient(uint64_t *count, const tsr_job *job, int unit, int segment);

#endif
