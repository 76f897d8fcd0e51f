/*
 * job/mixer.h: micro-batches that rows of several adapters share (adapter_mixing: tokens). The rows of all steps are packed
 * before the first one (data/adapter_schedule.h). A mixer has a model, a plan and an executor of its own, in which every unit
 * holds A and B of all adapters; gradients go into each adapter's own sums. Everything else of an adapter, from its update to
 * its checkpoints, is its job's.
 *
 *     base of the jobs  ->  mixer  ->  a job that has no adapter: it only runs micro-batches
 *
 * A round is the micro-batches that the ranks run at once: the next of the schedule, as far as none has an adapter's rows of
 * two steps. What goes into an adapter's sums depends on the schedule alone, and so do its bits, on any number of ranks.
 *
 * Sums       Losses and marks of a step are the mixer's until the step is complete: meanwhile an adapter may be evaluated.
 * Order      create when the jobs are planned, start with the last of them, then steps; the end of one job is the mixer's.
 *            The job with the fewest steps is stepped next.
 * Collective, all but tsr_mixer_end. Threads: the jobs'.
 */
#ifndef TSR_JOB_MIXER_H
#define TSR_JOB_MIXER_H

#include "base/status.h"
#include "shard/executor.h"
#include "tessera.h"

typedef struct tsr_mixer tsr_mixer;
struct tsr_job;

/* For a base and those that share it, whose inputs are read. TSR_ECONFIG: they cannot share micro-batches, as said. */
tsr_status tsr_mixer_create(struct tsr_job *base);

/* A job was started: after the last of them its memory is taken. Nothing to do where no micro-batches are shared. */
tsr_status tsr_mixer_start(struct tsr_job *job);

/* TSR_EINVAL: not all jobs are started, or one has been destroyed. */
tsr_status tsr_mixer_check(const struct tsr_job *job);

/* Rounds until all rows of the job's next step are in its sums, and its update, unless that is issued already. TSR_EINVAL: it
 * needs more than one step of another job first, which ends all of them. */
tsr_status tsr_mixer_step(struct tsr_job *job);

/* What runs the job's micro-batches with those of others; NULL: nothing does. */
const tsr_executor *tsr_mixer_executor(const struct tsr_job *job);

/* So many seconds of the job were spent on something else than steps: they are no part of its next step's time, nor, where
 * they share micro-batches, of the others'. */
void tsr_mixer_pause(struct tsr_job *job, double seconds);

/* Nothing is left of it, if this is a job that was mixed. */
void tsr_mixer_end(struct tsr_job *job);

/* What a plan says of it; nothing without data. */
void tsr_mixer_tell(tsr_job_plan_info *out, const struct tsr_job *job);

/* Of the schedule, for a checkpoint; 0: no micro-batches are shared. */
uint64_t tsr_mixer_hash(const struct tsr_job *job);

#endif
