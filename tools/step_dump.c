/*
 * tools/step_dump.c: what one training step computes, for holding Tessera against other programs.
 *
 *     step_dump OUT.safetensors JOB.yaml [key=value ...]
 *
 * One rank, either backend. The job's eval_dataset is evaluated first, in one micro-batch, then one step is
 * run; rows of both are usually the same. Written:
 *
 *     <PEFT's name>   F32     gradient of the step's loss by each A, B and magnitude, before clipping
 *     label_rows      [R, d]  the final norm's output where a token predicts a label, as it is stored
 *     nll             [R] F64 the loss of each of them
 *     loss            [2] F64 of the evaluation, of the step
 *     grad_norm       [1] F64
 *
 * Logits are label_rows times the head: the program itself never holds them.
 */
#include "io/peft.h"
#include "job/parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_TENSORS 8192

/* What will be written; names and data are its own. */
typedef struct {
    tsr_tensor_source tensor[MOST_TENSORS];
    uint64_t count;
} collection;

static void forget(collection *c)
{
    for (uint64_t i = 0; i < c->count; i++) {
        free((char *)c->tensor[i].name);
        free((void *)c->tensor[i].data);
    }
}

/* Adds a tensor [rows, columns], or [rows] with columns 0, and gives its memory. */
static tsr_status add(void **data, collection *c, char *name, tsr_dtype dtype, uint64_t rows,
                      uint64_t columns)
{
    uint64_t count = rows * (columns ? columns : 1);
    *data = malloc(count * tsr_dtype_bytes(dtype) + 1);
    if (!*data || !name || c->count == MOST_TENSORS) {
        free(*data);
        free(name);
        return tsr_fail(TSR_ENOMEM, "no room for another tensor");
    }
    c->tensor[c->count++] = (tsr_tensor_source){.name = name,
                                                .dtype = dtype,
                                                .ndim = columns ? 2 : 1,
                                                .shape = {rows, columns},
                                                .data = *data};
    return TSR_OK;
}

static tsr_status add_doubles(collection *c, const char *name, const double *values, uint64_t count)
{
    void *data;
    TSR_TRY(add(&data, c, strdup(name), TSR_F64, count, 0));
    memcpy(data, values, count * sizeof *values);
    return TSR_OK;
}

/* ---- forward ---- */

static tsr_status take_rows(collection *c, tsr_job *job, const tsr_job_evaluation *evaluation)
{
    tsr_dtype dtype = job->inputs.compute;
    uint64_t rows = (uint64_t)evaluation->label_tokens, d = job->inputs.model.hidden_size;
    tsr_batch_step_info info;
    void *data;
    TSR_TRY(tsr_batch_step(job->inputs.eval_batch, 0, &info));
    if (info.rounds != 1)
        return tsr_fail(TSR_ECONFIG,
                        "the evaluation has %lld micro-batches: raise per_device_eval_batch_size",
                        (long long)info.rounds);
    TSR_TRY(tsr_streams_synchronize(&job->streams));
    TSR_TRY(add(&data, c, strdup("label_rows"), dtype, rows, d));
    TSR_TRY(tsr_device_read(job->device, data, tsr_model_label_rows(job->model),
                            rows * d * tsr_dtype_bytes(dtype)));
    TSR_TRY(add(&data, c, strdup("nll"), TSR_F64, rows, 0));
    return tsr_device_read(job->device, data, tsr_model_nll(job->model), rows * sizeof(double));
}

/* ---- gradients ---- */

/* As AdamW reads it. */
static tsr_status read_gradient(float *out, const tsr_job *job, uint64_t begin, uint64_t count)
{
    const tsr_trainable *trainable = &job->decision.store.trainable;
    if (trainable->rounded)
        return tsr_device_read(job->device, out, trainable->rounded + begin, count * sizeof *out);
    int64_t *sums = malloc(count * sizeof *sums);
    if (!sums)
        return tsr_fail(TSR_ENOMEM, "out of memory for sums of gradients");
    tsr_status status =
        tsr_device_read(job->device, sums, trainable->accumulator + begin, count * sizeof *sums);
    tsr_fixed_to_f32(out, sums, count, TSR_FIXED_SHIFT);
    free(sums);
    return status;
}

static tsr_status take_gradient(collection *c, tsr_job *job, const tsr_layout_linear *linear,
                                int unit, tsr_peft_part part)
{
    const tsr_trainable *trainable = &job->decision.store.trainable;
    int segment = part == TSR_PEFT_A ? linear->a : part == TSR_PEFT_B ? linear->b : linear->m;
    const tsr_layout_segment *s = &job->inputs.layout.unit[unit].trainable[segment];
    tsr_trainable_span span = tsr_trainable_at(trainable, unit, segment);
    uint64_t count = s->element_count;
    char *name = NULL;
    void *data;
    if (span.first != 0 || span.real < count)
        return tsr_fail(TSR_EINTERNAL, "%s is not whole on this rank", linear->path);
    TSR_TRY(tsr_peft_tensor_name(&name, linear->path, part));
    TSR_TRY(add(&data, c, name, TSR_F32, s->stored_rows,
                part == TSR_PEFT_MAGNITUDE ? 0 : s->stored_columns));
    float *kept = calloc(count, sizeof *kept);
    if (!kept)
        return tsr_fail(TSR_ENOMEM, "out of memory for the gradients of %s", linear->path);
    tsr_status status = read_gradient(kept, job, span.begin, count);
    for (tsr_stored_run run = {0}; status == TSR_OK && tsr_stored_next(&run, s, 0, count);)
        memcpy((float *)data + run.stored, kept + run.memory, run.count * sizeof *kept);
    free(kept);
    return status;
}

static tsr_status take_gradients(collection *c, tsr_job *job)
{
    const tsr_layout *layout = &job->inputs.layout;
    for (int unit = 0; unit < layout->layer_count; unit++)
        for (int i = 0; i < tsr_layout_linears(&layout->unit[unit]); i++) {
            const tsr_layout_linear *linear = &layout->unit[unit].linear[i];
            if (!linear->r)
                continue;
            TSR_TRY(take_gradient(c, job, linear, unit, TSR_PEFT_A));
            TSR_TRY(take_gradient(c, job, linear, unit, TSR_PEFT_B));
            if (linear->dora)
                TSR_TRY(take_gradient(c, job, linear, unit, TSR_PEFT_MAGNITUDE));
        }
    return TSR_OK;
}

/* A step's gradient is kept until the next step overwrites it. */
static tsr_status dump(collection *c, tsr_job *job)
{
    tsr_job_evaluation evaluation = TSR_JOB_EVALUATION_INIT;
    tsr_job_report report = TSR_JOB_REPORT_INIT;
    TSR_TRY(tsr_job_start(job));
    TSR_TRY(tsr_job_evaluate(job, &evaluation));
    TSR_TRY(take_rows(c, job, &evaluation));
    TSR_TRY(tsr_job_step(job, &report));
    TSR_TRY(tsr_streams_synchronize(&job->streams));
    TSR_TRY(take_gradients(c, job));
    TSR_TRY(add_doubles(c, "loss", (double[]){evaluation.loss, report.loss}, 2));
    return add_doubles(c, "grad_norm", &report.grad_norm, 1);
}

int main(int argc, char **argv)
{
    static collection all;
    tsr_job *job = NULL;
    if (argc < 3) {
        fprintf(stderr, "usage: step_dump OUT.safetensors JOB.yaml [key=value ...]\n");
        return 64;
    }
    tsr_job_options options = {.size = sizeof options,
                               .config_path = argv[2],
                               .overrides = (const char *const *)argv + 3,
                               .override_count = argc - 3,
                               .purpose = TSR_JOB_TRAIN};
    int status = tsr_job_create(&job, &options);
    if (status == 0)
        status = dump(&all, job);
    if (status == 0)
        status = tsr_safetensors_write(argv[1], all.tensor, all.count);
    if (status < 0)
        fprintf(stderr, "step_dump: %s\n", tsr_last_error());
    forget(&all);
    tsr_job_destroy(job);
    return tsr_job_exit_code(status);
}
