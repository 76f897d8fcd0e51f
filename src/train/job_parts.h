/*
 * train/job_parts.h: a job's state, shared by job.c (its life), job_start.c (memory and weights),
 * job_step.c (steps and evaluation) and job_save.c (the adapter). Inside src/train, and for tests
 * that look inside.
 */
#ifndef TSR_TRAIN_JOB_PARTS_H
#define TSR_TRAIN_JOB_PARTS_H

#include "model/load.h"
#include "optim/schedule.h"
#include "shard/executor.h"
#include "shard/load.h"
#include "tessera.h"
#include "train/decide.h"
#include "train/metrics.h"

/* The run's few words of device memory. */
typedef struct {
    int64_t loss, gradient_overflow;
    int32_t loss_overflow;
    tsr_adamw_control control;
} tsr_run_sums;

_Static_assert(sizeof(tsr_run_sums) <= TSR_RUN_SUMS_BYTES, "the plan has room for the sums");

typedef enum { TSR_JOB_CREATED, TSR_JOB_PLANNED, TSR_JOB_STARTED, TSR_JOB_FAILED } tsr_job_state;

struct tsr_job {
    tsr_job_options options;
    tsr_job_state state;
    bool train; /* false: evaluation only */
    tsr_comm *world, *shard, *replica, *node;
    tsr_device *device;
    tsr_streams streams;
    tsr_topology_view view;
    tsr_inputs inputs;
    tsr_decision decision;
    tsr_arena *device_arena, *host_arena;
    tsr_run_buffers buffers;
    tsr_run_sums *sums;
    char *embedding;
    tsr_model *model;
    tsr_executor *executor;
    tsr_micro_batch micro, eval_micro;
    /* optimizer */
    tsr_schedule schedule;
    tsr_adamw_span span;
    tsr_adamw_step adamw;
    /* progress of the run */
    int64_t total_steps, issued, done, skipped;
    int64_t last_step; /* no step after it is issued: total_steps, or less after a stop */
    double word_time, exposed_before, started_at;
    bool stopped;
    tsr_metrics *metrics; /* rank 0, while training */
    int64_t logged_eval_step;
};

/* The stream of all collectives. */
static inline tsr_stream *tsr_job_comm_stream(const tsr_job *job)
{
    return job->streams.stream[TSR_STREAM_COMM];
}

/* Ends a phase that may have failed on some ranks only: every rank returns the lowest failing
 * rank's status. */
tsr_status tsr_job_agree(tsr_job *job, tsr_status status);

/* tsr_job_create over ranks that the caller made: world (owned by the job from then on, NULL: as
 * the options say). */
tsr_status tsr_job_create_on(tsr_job **out, const tsr_job_options *options, tsr_comm *world);

/* Reads all inputs and decides the memory; used by tsr_job_create and by `plan`, which has no
 * ranks. */
tsr_status tsr_job_decide(tsr_job *job);

/* output_dir: refused if it holds a run, created, cleared where that is asked for. Rank 0 only. */
tsr_status tsr_job_open_output(tsr_job *job);
tsr_status tsr_job_write_output(tsr_job *job);

/* Stages and issues one micro-batch of a step (job_step.c). label_tokens: of the whole step. */
tsr_status tsr_job_issue_micro(tsr_job *job, const tsr_micro_batch *micro, double label_tokens,
                               bool train);

/* executor callbacks (job_step.c) */
extern const tsr_executor_callbacks tsr_job_callbacks;

#endif
