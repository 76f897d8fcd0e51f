/*
 * router_bias.c: the routers' correction biases of a run (router_bias_update_rate, or beside init_adapter): every rank has
 * all of them and moves them alike, rank 0 writes them beside the adapter, wherever that is written.
 */
#include "job/parts.h"

#include "base/auto.h"
#include "inputs/experts.h"
#include "io/peft.h"
#include "model/router_bias.h"

#include <stdlib.h>

/* On the host; the caller's. */
static tsr_status make_values(float **out, const tsr_job *job)
{
    *out = calloc(tsr_router_bias_count(&job->inputs.layout) + 1, sizeof **out);
    return *out ? TSR_OK : tsr_fail(TSR_ENOMEM, "out of memory for the routers' biases");
}

static tsr_status put(tsr_job *job, const float *values)
{
    return tsr_device_write(job->device, tsr_model_router_bias(job->model), values,
                            tsr_router_bias_count(&job->inputs.layout) * sizeof *values);
}

tsr_status tsr_job_load_router_bias(tsr_job *job)
{
    const tsr_inputs *inputs = &job->inputs;
    TSR_AUTO_FREE float *values = NULL;
    if (!tsr_model_router_bias(job->model))
        return TSR_OK;
    TSR_TRY(make_values(&values, job));
    if (inputs->router_bias) {
        TSR_TRY(tsr_router_bias_read(values, inputs->router_bias, &inputs->layout));
        tsr_log(TSR_LOG_INFO, "the routers' correction biases come from %s",
                tsr_safetensors_path(inputs->router_bias));
    } else if (!job->fill) { /* made-up weights: zeros */
        TSR_TRY(tsr_router_bias_of_model(values, &inputs->layout));
    }
    return put(job, values);
}

tsr_status tsr_job_restore_router_bias(tsr_job *job, const tsr_snapshot *snapshot)
{
    TSR_AUTO_FREE float *values = NULL;
    tsr_safetensors *file = NULL;
    if (!tsr_model_router_bias(job->model))
        return TSR_OK;
    TSR_TRY(make_values(&values, job));
    TSR_TRY(
        tsr_safetensors_open_in(&file, tsr_snapshot_folder(snapshot), TSR_PEFT_ROUTER_BIAS_FILE));
    tsr_status status = tsr_router_bias_read(values, file, &job->inputs.layout);
    tsr_safetensors_close(file);
    return status == TSR_OK ? put(job, values) : status;
}

tsr_status tsr_job_move_router_bias(tsr_job *job, const int64_t *word)
{
    double rate = job->inputs.config.router_bias_update_rate;
    if (!(rate > 0))
        return TSR_OK;
    return tsr_model_move_bias(job->model, job->streams.stream[TSR_STREAM_OPTIM],
                               word + TSR_WORD_COUNT, &job->sums->control.skip, (float)rate);
}

void tsr_job_router_bias_free(tsr_job_router_bias *bias)
{
    free(bias->values);
    free(bias->sources);
    *bias = (tsr_job_router_bias){0};
}

static tsr_status check_finite(const tsr_job *job, const tsr_job_router_bias *bias)
{
    for (uint64_t i = 0; i < bias->beside.bias_count; i++) {
        const tsr_tensor_source *source = &bias->sources[i];
        TSR_TRY(tsr_job_check_finite(job, source->name, source->data, 0, source->shape[0]));
    }
    return TSR_OK;
}

tsr_status tsr_job_take_router_bias(tsr_job_router_bias *out, const tsr_job *job)
{
    const tsr_layout *layout = &job->inputs.layout;
    const float *device = tsr_model_router_bias(job->model);
    tsr_job_router_bias bias = {0};
    *out = bias;
    if (!device)
        return TSR_OK;
    TSR_TRY(make_values(&bias.values, job));
    bias.sources = calloc((size_t)layout->layer_count + 1, sizeof *bias.sources);
    tsr_status status =
        bias.sources ? TSR_OK
                     : tsr_fail(TSR_ENOMEM, "%s: no memory to write it", TSR_PEFT_ROUTER_BIAS_FILE);
    if (status == TSR_OK)
        status = tsr_device_read(job->device, bias.values, device,
                                 tsr_router_bias_count(layout) * sizeof *bias.values);
    if (status == TSR_OK) {
        bias.beside = (tsr_peft_beside){bias.sources,
                                        tsr_router_bias_sources(bias.sources, bias.values, layout)};
        status = check_finite(job, &bias);
    }
    if (status == TSR_OK)
        *out = bias;
    else
        tsr_job_router_bias_free(&bias);
    return status;
}
