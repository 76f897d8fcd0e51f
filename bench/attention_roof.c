/*
 * attention_roof.c: attention alone at a run's shape: the roof of the floor's attention terms, with
 * the same library and the same determinism as in the run.
 */
#include "kernels/roofs.h"
#include "model.h"

#define SECONDS 0.2
#define KNOWN   64 /* shapes */

/* Documents of different lengths as so many of one. */
static tsr_roofs_attention_shape shape_of(const bench_run *run, const bench_attention *how)
{
    const bench_shape *s = &run->shape;
    tsr_roofs_attention_shape shape = {.rows = run->batch,
                                       .length = run->length,
                                       .heads = (int32_t)s->heads,
                                       .kv_heads = (int32_t)s->kv_heads,
                                       .head_dim = (int32_t)s->head_dim,
                                       .dtype = how->dtype,
                                       .atomics = how->atomics,
                                       .wider = how->wider};
    int64_t tokens = run->batch * run->length, squares = 0;
    if (!run->documents)
        return shape;
    for (int64_t i = 0; i < run->row_count; i++)
        squares += run->row[i] * run->row[i];
    shape.length = squares / tokens;
    shape.rows = tokens / shape.length;
    return shape;
}

static bool same_shape(const tsr_roofs_attention_shape *a, const tsr_roofs_attention_shape *b)
{
    return a->rows == b->rows && a->length == b->length && a->heads == b->heads &&
           a->kv_heads == b->kv_heads && a->head_dim == b->head_dim && a->dtype == b->dtype &&
           a->atomics == b->atomics && a->wider == b->wider;
}

static tsr_status measure(double *forward, double *backward,
                          const tsr_roofs_attention_shape *attention)
{
    const tsr_roofs_attention_shape shape = *attention;
    const tsr_kernels *kernels;
    tsr_device *device = NULL;
    tsr_roofs *roofs = NULL;
    tsr_roof one = {0}, other = {0};
    uint64_t bytes = 0;
    tsr_status status = tsr_device_create_cuda(&device, NULL);
    if (status == TSR_OK)
        status = tsr_kernels_open(&kernels, device);
    if (status == TSR_OK)
        status = tsr_roofs_attention_bytes(&bytes, kernels, device, &shape);
    if (status == TSR_OK)
        status = tsr_roofs_open(&roofs, kernels, device, bytes);
    if (status == TSR_OK)
        status = tsr_roofs_attention(&one, &other, roofs, &shape, SECONDS);
    tsr_roofs_close(roofs);
    tsr_device_destroy(device);
    *forward = one.rate;
    *backward = other.rate;
    return status;
}

tsr_status bench_attention_roof(double *forward, double *backward, const bench_run *run,
                                const bench_attention *how)
{
    static struct {
        tsr_roofs_attention_shape shape;
        double forward, backward;
    } known[KNOWN];
    static int count;
    const tsr_roofs_attention_shape shape = shape_of(run, how);
    for (int i = 0; i < count; i++)
        if (same_shape(&known[i].shape, &shape)) {
            *forward = known[i].forward;
            *backward = known[i].backward;
            return TSR_OK;
        }
    TSR_TRY(measure(forward, backward, &shape));
    if (count < KNOWN) {
        known[count].shape = shape;
        known[count].forward = *forward;
        known[count++].backward = *backward;
    }
    return TSR_OK;
}
