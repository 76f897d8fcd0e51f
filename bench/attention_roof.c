/*
 * attention_roof.c: attention alone at a run's shape: the roof of the floor's attention terms, with
 * the same library and the same determinism as in the run.
 */
#include "kernels/roofs.h"
#include "model.h"

#define SECONDS 0.2

tsr_status bench_attention_roof(double *forward, double *backward, const bench_run *run,
                                tsr_dtype dtype)
{
    const bench_shape *s = &run->shape;
    const tsr_roofs_attention_shape shape = {run->batch,           run->length,
                                             (int32_t)s->heads,    (int32_t)s->kv_heads,
                                             (int32_t)s->head_dim, dtype};
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
