/*
 * job/mixer_parts.h: a mixer, as mixer.c (its life) and mixer_rounds.c (its work) share it. Inside src/job only.
 */
#ifndef TSR_JOB_MIXER_PARTS_H
#define TSR_JOB_MIXER_PARTS_H

#include "data/adapter_schedule.h"
#include "job/parts.h"

struct tsr_mixer {
    tsr_job *own;       /* runs the micro-batches; shares the base like the others */
    bool started, over; /* over: a job has been destroyed */
    int count;
    tsr_job **job;              /* [count] */
    tsr_model_adapter *adapter; /* [count] */
    tsr_executor_owner *owner;  /* [count] */
    bool *begins;               /* [count]: no round has had rows of the step yet */
    int64_t *left;              /* [count]: rows of the step that no round had */
    int64_t *step;              /* [count]: what a round has of each; -1: nothing */
    tsr_model_range *range;     /* [count] */
    tsr_batch_bounds bounds;
    tsr_micro_batch micro;
    tsr_adapter_schedule schedule; /* micro NULL: there are no data */
    double solved_s;
    int64_t next, rounds; /* micro-batch of the schedule; rounds so far */
};

/* The working copies of one adapter, as its last update left them, into those of the mixer. */
tsr_status tsr_mixer_take_work(tsr_mixer *mixer, int adapter);

/* What micro-batches add to for an adapter until its step is complete. */
tsr_run_sums *tsr_mixer_sums(const tsr_mixer *mixer, int adapter);

/* The job's step has begun: none of its rows is in its sums. */
void tsr_mixer_begin_step(tsr_mixer *mixer, int adapter);

#endif
