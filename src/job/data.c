/*
 * data.c: the data are read. Where tokens are kept in a file, the first rank of each node makes it, on all its
 * ranks' cores, and the others map it.
 */
#include "job/parts.h"

#include "base/clock.h"
#include "base/phase.h"
#include "inputs/shared.h"

/* A rank that works, and says to those that wait that it is alive: each wait of theirs has a deadline. */
typedef struct {
    tsr_job *job;
    tsr_phase_listener listener; /* who hears of progress otherwise */
    double last;
    tsr_status status; /* of the meetings */
} reader;

static tsr_status read(tsr_job *job, int threads)
{
    job->inputs.threads = threads;
    return job->options.purpose == TSR_JOB_DATA
               ? tsr_inputs_read_data_alone(&job->inputs)
               : tsr_inputs_read_data(&job->inputs, job->train,
                                      tsr_inputs_groups(&job->inputs, job->view.ranks));
}

/* All ranks meet; *reading: whether some rank still does. */
static tsr_status meet(int64_t *reading, tsr_job *job)
{
    TSR_TRY(tsr_comm_all_reduce(job->world, job->control, reading, 1, TSR_MAX));
    return tsr_stream_synchronize(job->control);
}

static void beat(void *user, const char *phase, double done, double total)
{
    reader *r = user;
    int64_t reading = 1;
    double now = tsr_now();
    if (r->listener.sink)
        r->listener.sink(r->listener.user, phase, done, total);
    if (r->status < 0 || now - r->last < r->job->options.timeout_seconds / 8)
        return;
    r->last = now;
    r->status = meet(&reading, r->job);
}

tsr_status tsr_job_let_work(tsr_job *job, bool works, tsr_status (*work)(void *user), void *user)
{
    reader r = {.job = job, .listener = tsr_phase_get(), .last = tsr_now()};
    tsr_status status = TSR_OK;
    if (works) {
        tsr_phase_set(beat, &r);
        status = work(user);
        tsr_phase_set(r.listener.sink, r.listener.user);
    }
    for (int64_t working = 1; working && r.status >= 0;) {
        working = 0;
        r.status = meet(&working, job);
    }
    return r.status < 0 ? r.status : status;
}

/* On all cores of the node. */
static tsr_status read_for_node(void *user)
{
    tsr_job *job = user;
    int threads = tsr_pool_thread_count(tsr_device_pool(job->host));
    return read(job, threads * tsr_comm_local_size(job->world));
}

tsr_status tsr_job_read_data(tsr_job *job)
{
    int threads = tsr_pool_thread_count(tsr_device_pool(job->host));
    bool first = tsr_comm_local_rank(job->world) == 0;
    bool plain = !job->inputs.config.dataset_cache || job->inputs.rows.next;
    if (plain || tsr_comm_size(job->world) == 1)
        return tsr_job_agree(job, read(job, threads));
    TSR_TRY(tsr_job_agree(job, tsr_job_let_work(job, first, read_for_node, job)));
    return tsr_job_agree(job, first ? TSR_OK : read(job, threads));
}
