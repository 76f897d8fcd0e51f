/*
 * matmuls.c: how a run's matmuls are done, and in which order those of the adapters (their graphs),
 * chosen once at start-up: rank 0 takes what was chosen before or times the rest, and all ranks take
 * its choices.
 *
 *     matmuls.txt of the checkpoint                     that the run goes on from: looked at first
 *     output_dir/matmuls.txt                            of this run; looked at first when it is
 *                                                       replaced, so that a repeated run repeats
 *     ~/.cache/tessera/matmul-<device>.txt              of all runs on such a device with these
 *                                                       libraries (planner/cache.h)
 */
#include "base/auto.h"
#include "job/parts.h"

#include "base/log.h"
#include "io/file.h"
#include "planner/cache.h"

#include <stdlib.h>
#include <string.h>

#define MOST_BYTES (16u << 20) /* of a file of choices */

/* ---- choosing ---- */

static tsr_status time_matmuls(tsr_job *job, tsr_prepare_args *args)
{
    tsr_batch_shape shapes[TSR_DECIDE_SHAPES];
    int count = tsr_decide_shapes(shapes, &job->inputs, job->train);
    return tsr_model_prepare(job->model, shapes, count, args);
}

static char *read_choices(const tsr_folder *folder)
{
    char *text = NULL;
    uint64_t bytes;
    (void)tsr_file_read_in(&text, &bytes, folder, TSR_MATMULS_FILE, MOST_BYTES);
    return text;
}

/* Of the run that this one goes on with or replaces. NULL: there are none. The caller frees. */
static char *read_known(const tsr_job *job)
{
    char *known = NULL;
    if (job->resume)
        known = read_choices(tsr_snapshot_folder(job->resume));
    if (!known && job->output)
        known = read_choices(job->output);
    return known;
}

/* Of rank 0. `device`: what the choices are for. */
static tsr_status choose(tsr_job *job, const tsr_text *device)
{
    char *known = read_known(job), *cached = NULL;
    tsr_text cache = {0};
    tsr_cache_place place;
    bool has_place = tsr_cache_find(&place, "matmul", device, "txt");
    int lock = has_place ? tsr_cache_lock(&place) : -1;
    if (has_place)
        cached = tsr_cache_read(place.file);
    tsr_prepare_args args = {
        .known = known, .cached = cached, .chosen = &job->matmuls, .cache = &cache};
    tsr_status status = time_matmuls(job, &args);
    if (status == TSR_OK && (job->matmuls.failed || cache.failed))
        status = tsr_fail(TSR_ENOMEM, "out of memory for the choices of matmuls");
    if (status == TSR_OK && has_place && (!cached || strcmp(cached, tsr_text_string(&cache)) != 0))
        tsr_cache_write(&place, tsr_text_string(&cache), cache.length);
    tsr_cache_unlock(lock);
    tsr_text_free(&cache);
    free(known);
    free(cached);
    return status;
}

static tsr_status broadcast(tsr_job *job, void *data, uint64_t bytes)
{
    TSR_TRY(tsr_comm_broadcast(job->world, job->control, data, bytes, 0));
    return tsr_stream_synchronize(job->control);
}

/* The text of rank 0 for all the others. */
static tsr_status take_choices(tsr_job *job)
{
    int64_t length = (int64_t)job->matmuls.length;
    TSR_TRY(broadcast(job, &length, sizeof length));
    TSR_AUTO_FREE char *text = calloc((size_t)length + 1, 1);
    tsr_status status = TSR_OK;
    if (!text)
        status = tsr_fail(TSR_ENOMEM, "out of memory for the choices of matmuls");
    else if (job->view.rank == 0)
        memcpy(text, job->matmuls.data, (size_t)length);
    status = tsr_job_agree(job, status);
    if (status == TSR_OK)
        status = broadcast(job, text, (uint64_t)length);
    if (status == TSR_OK && job->view.rank != 0)
        status = tsr_model_agree(job->model, text);
    return tsr_job_agree(job, status);
}

/* Says which graphs the adapters take. */
static tsr_status tell_graphs(const tsr_job *job)
{
    tsr_batch_shape shapes[TSR_DECIDE_SHAPES];
    tsr_auto_text text = {0};
    int count = tsr_decide_shapes(shapes, &job->inputs, job->train);
    tsr_status status =
        tsr_model_print_graphs(&text, &job->decision.model, job->model, shapes, count, false);
    for (const char *line = tsr_text_string(&text); *line && status == TSR_OK;) {
        size_t length = strcspn(line, "\n");
        tsr_log(TSR_LOG_INFO, "%.*s", (int)length, line);
        line += length + (line[length] == '\n');
    }
    return status;
}

static tsr_status choose_for_all(tsr_job *job)
{
    tsr_auto_text device = {0};
    tsr_status status = job->kernels->prepare(job->device, &(tsr_prepare_args){.chosen = &device});
    if (status == TSR_OK && device.failed)
        status = tsr_fail(TSR_ENOMEM, "out of memory for the choices of matmuls");
    else if (status == TSR_OK && !device.length)
        return TSR_OK; /* this backend has nothing to choose, on no rank */
    status = tsr_job_agree(job, status);
    if (status == TSR_OK)
        status = tsr_job_agree(job, job->view.rank == 0 ? choose(job, &device) : TSR_OK);
    return status == TSR_OK && job->view.ranks > 1 ? take_choices(job) : status;
}

tsr_status tsr_job_choose_matmuls(tsr_job *job)
{
    TSR_TRY(choose_for_all(job));
    return tsr_job_agree(job, job->view.rank == 0 ? tell_graphs(job) : TSR_OK);
}
