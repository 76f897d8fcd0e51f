/*
 * kernels_cuda.c: the CUDA table, and the libraries behind it.
 */
#include "kernels/kernels_cuda.h"

#include <stdlib.h>

/* The shapes of a run, those of the head written out; the caller frees. */
static tsr_status list_matmuls(tsr_gemm_args **out, int *count, const tsr_prepare_args *args)
{
    size_t most = (size_t)args->gemm_count + (size_t)args->head_count * TSR_HEAD_MATMULS;
    tsr_gemm_args *list = malloc((most + 1) * sizeof *list);
    if (!list)
        return tsr_fail(TSR_ENOMEM, "out of memory for a list of matmuls");
    *count = 0;
    for (int i = 0; i < args->gemm_count; i++)
        list[(*count)++] = args->gemm[i];
    for (int i = 0; i < args->head_count; i++)
        *count += tsr_head_matmuls_cuda(list + *count, &args->head[i]);
    *out = list;
    return TSR_OK;
}

/* The run's own text is obeyed for all, a cache for what would be timed: what other jobs have left there
 * since changes nothing else. */
static tsr_status choose_matmuls(tsr_blas *blas, const tsr_prepare_args *args)
{
    tsr_gemm_args *shape = NULL;
    int all = 0;
    TSR_TRY(list_matmuls(&shape, &all, args));
    tsr_blas_recall(blas, args->known, shape, all, false);
    int count = tsr_blas_select(blas, shape, all);
    tsr_blas_recall(blas, args->cached, shape, count, true);
    count = tsr_blas_fitting(shape, count, args->scratch_bytes);
    tsr_status status =
        tsr_blas_tune(blas, args->stream, shape, count, args->scratch, args->scratch_bytes);
    if (status == TSR_OK)
        tsr_blas_settle(blas, shape, all);
    free(shape);
    return status;
}

static tsr_status prepare(tsr_device *device, const tsr_prepare_args *args)
{
    const tsr_kernels_context *context = tsr_device_kept(device);
    int index = tsr_device_cuda_properties(device)->index;
    TSR_TRY(tsr_cuda_status(cudaSetDevice(index), "cudaSetDevice"));
    if (args->attention)
        TSR_TRY(tsr_sdpa_prepare(context->sdpa, args->attention));
    if (args->agreed)
        TSR_TRY(tsr_blas_import(context->blas, args->agreed));
    if (args->gemm_count || args->head_count)
        TSR_TRY(choose_matmuls(context->blas, args));
    if (args->chosen)
        tsr_blas_export(args->chosen, context->blas);
    if (args->cache)
        tsr_blas_merge(args->cache, context->blas, args->cached);
    return TSR_OK;
}

static tsr_status turn(tsr_device *device, int job)
{
    const tsr_kernels_context *context = tsr_device_kept(device);
    if (job < 0 || job >= TSR_KERNELS_TURNS)
        return tsr_fail(TSR_EINVAL, "job %d of those that share a device", job);
    tsr_sdpa_turn(context->sdpa, job);
    return tsr_blas_turn(context->blas, job);
}

#define CUDA_SLOT(op) .op = tsr_##op##_cuda,

static const tsr_kernels cuda_kernels = {
    .name = "cuda",
    TSR_KERNEL_OPS(CUDA_SLOT).attention_workspace_bytes = tsr_attention_workspace_bytes_cuda,
    .delta_rule_workspace_bytes = tsr_delta_rule_workspace_bytes_cuda,
    .head_workspace_bytes = tsr_head_workspace_bytes_cuda,
    .attention_lse_by_token = tsr_attention_lse_by_token_cuda,
    .attention_sharing = tsr_attention_sharing_cuda,
    .partial_rows = TSR_CUDA_PARTIAL_ROWS,
    .prepare = prepare,
    .turn = turn,
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
    context->boxes = tsr_nf4_merge_boxes(device);
    tsr_device_keep(device, context, close_libraries);
    return TSR_OK;
}
