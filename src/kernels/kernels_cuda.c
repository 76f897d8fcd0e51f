/*
 * kernels_cuda.c: the CUDA table, and the libraries behind it.
 */
#include "kernels/kernels_cuda.h"

#include <stdlib.h>

static tsr_status prepare(tsr_device *device, const tsr_attention_bounds *attention)
{
    const tsr_kernels_context *context = tsr_device_kept(device);
    return tsr_sdpa_prepare(context->sdpa, attention);
}

#define CUDA_SLOT(op) .op = tsr_##op##_cuda,

static const tsr_kernels cuda_kernels = {
    .name = "cuda",
    TSR_KERNEL_OPS(CUDA_SLOT).attention_workspace_bytes = tsr_attention_workspace_bytes_cuda,
    .head_workspace_bytes = tsr_head_workspace_bytes_cuda,
    .partial_rows = TSR_CUDA_PARTIAL_ROWS,
    .prepare = prepare,
};

const tsr_kernels *tsr_kernels_cuda(void)
{
    return &cuda_kernels;
}

static void close_libraries(void *user)
{
    tsr_kernels_context *context = user;
    tsr_blas_close(context->blas);
    tsr_sdpa_close(context->sdpa);
    free(context);
}

tsr_status tsr_kernels_open_cuda(tsr_device *device)
{
    tsr_kernels_context *context = calloc(1, sizeof *context);
    if (!context)
        return tsr_fail(TSR_ENOMEM, "out of memory for the kernels' libraries");
    tsr_status status = tsr_blas_open(&context->blas, device);
    if (status == TSR_OK)
        status = tsr_sdpa_open(&context->sdpa, device);
    if (status < 0) {
        close_libraries(context);
        return status;
    }
    tsr_device_keep(device, context, close_libraries);
    return TSR_OK;
}
