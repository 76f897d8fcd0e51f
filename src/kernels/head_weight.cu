/*
 * head_weight.cu: contract head_weight.h on a GPU.
 *
 * In blocks of up to 2048 label rows, as head.cu: logits = h W_c^T into fp32 by cuBLASLt, one kernel that turns a row of
 * them into what they pull where it stands, and dw += pulls^T h by cuBLASLt.
 *
 * pull_rows   A block a row of up to 16384 logits, which stay in registers until all are read: a pull of the compute
 *             dtype is written over logits that other threads have read. 6 bytes a logit with bf16.
 */
#include "kernels/cuda.cuh"

#define BLOCK_ROWS  2048 /* as in head.cu, whose workspace this is */
#define ROW_THREADS 512
#define ROW_LOGITS  32                         /* of a thread */
#define TILE_VOCAB  (ROW_THREADS * ROW_LOGITS) /* 16384 */

static int64_t rounded(int64_t count, int64_t step)
{
    return (count + step - 1) / step * step;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

typedef struct {
    float *logits; /* [rows, stride]; the pulls of a row lie at its beginning */
    int64_t stride;
    const float *max, *sum, *label_logit; /* of the first row */
    const int32_t *labels;
    int64_t first, count;
    float scale, softcap;
    tsr_dtype dtype;
} pull_args;

static __device__ __forceinline__ float pull_of(const pull_args *a, int64_t row, float logit,
                                                bool label, float inverse)
{
    float slope = 1;
    if (a->softcap > 0) {
        float share = tanhf(logit / a->softcap);
        logit = a->softcap * share;
        slope = 1 - share * share;
    }
    float pull = label ? -a->sum[row] : expf(logit - a->max[row]);
    return a->scale * slope * (pull * inverse);
}

static __global__ void __launch_bounds__(ROW_THREADS) pull_rows(const __grid_constant__ pull_args a)
{
    tsr_kernel_begin();
    int64_t row = blockIdx.x, label = (int64_t)a.labels[row] - a.first;
    float *logits = a.logits + row * a.stride;
    float inverse = 1.0f / (a.sum[row] + expf(a.label_logit[row] - a.max[row]));
    float v[ROW_LOGITS];
#pragma unroll
    for (int j = 0; j < ROW_LOGITS; j++) {
        int64_t at = (int64_t)j * ROW_THREADS + threadIdx.x;
        v[j] = at < a.count ? logits[at] : 0;
    }
    __syncthreads(); /* from here on the row may be overwritten */
#pragma unroll
    for (int j = 0; j < ROW_LOGITS; j++) {
        int64_t at = (int64_t)j * ROW_THREADS + threadIdx.x;
        if (at < a.count)
            tsr_store(logits, at, pull_of(&a, row, v[j], at == label, inverse), a.dtype);
    }
}

typedef struct {
    tsr_stream *stream;
    const tsr_head_weight_args *args;
    int64_t at, vocab; /* of the tile, in the chunk */
} weight_tile;

static tsr_status run_rows(const weight_tile *tile, int64_t row, int64_t rows)
{
    const tsr_head_weight_args *args = tile->args;
    int64_t d = args->d, bytes = tsr_dtype_bytes(args->dtype), stride = rounded(tile->vocab, 64);
    tsr_gemm_args gemm = {.m = rows, .n = tile->vocab, .k = d};
    gemm.a = (const char *)args->h + row * d * bytes;
    gemm.b = (const char *)args->w + tile->at * d * bytes;
    gemm.c = args->workspace;
    gemm.ldc = stride;
    gemm.trans_b = true;
    gemm.alpha = 1;
    gemm.dtype = args->dtype;
    gemm.c_dtype = TSR_F32;
    TSR_TRY(tsr_gemm_cuda(tile->stream, &gemm));
    pull_args pull = {(float *)args->workspace, stride};
    pull.max = args->max + row;
    pull.sum = args->sum + row;
    pull.label_logit = args->label_logit + row;
    pull.labels = args->labels + row;
    pull.first = args->first + tile->at;
    pull.count = tile->vocab;
    pull.scale = args->scale;
    pull.softcap = args->softcap;
    pull.dtype = args->dtype;
    TSR_LAUNCH(pull_rows, (unsigned)rows, ROW_THREADS, tile->stream, pull);
    TSR_TRY(tsr_launched("head_weight"));
    int64_t columns = args->z ? args->z_columns : d, z_stride = args->z ? args->z_stride : d;
    tsr_gemm_args sum = {.m = tile->vocab, .n = columns, .k = rows};
    sum.a = args->workspace;
    sum.b = (const char *)(args->z ? args->z : args->h) + row * z_stride * bytes;
    sum.c = args->dw + tile->at * columns;
    sum.ldb = z_stride;
    sum.lda = stride * (int64_t)sizeof(float) / bytes;
    sum.trans_a = true;
    sum.alpha = 1;
    sum.beta = row > 0;
    sum.dtype = args->dtype;
    sum.c_dtype = TSR_F32;
    return tsr_gemm_cuda(tile->stream, &sum);
}

extern "C" tsr_status tsr_head_weight_cuda(tsr_stream *stream, const tsr_head_weight_args *args)
{
    TSR_TRY(tsr_head_weight_check(args));
    if (args->count == 0)
        return TSR_OK;
    if (args->rows == 0)
        return tsr_cuda_status(
            cudaMemsetAsync(args->dw, 0,
                            (size_t)(args->count * (args->z ? args->z_columns : args->d)) *
                                sizeof(float),
                            tsr_stream_cuda(stream)),
            "head_weight");
    tsr_head_bounds bounds = {args->rows, args->d, args->count, args->dtype, true};
    uint64_t need = tsr_head_workspace_bytes_cuda(&bounds);
    if (args->workspace_bytes < need)
        return tsr_fail(TSR_EINVAL, "head_weight: a workspace of %llu bytes, %llu are needed",
                        (unsigned long long)args->workspace_bytes, (unsigned long long)need);
    weight_tile tile = {stream, args};
    int64_t blocks = (args->rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
    int64_t block = rounded((args->rows + blocks - 1) / blocks, 128);
    for (tile.at = 0; tile.at < args->count; tile.at += TILE_VOCAB) {
        tile.vocab = least(TILE_VOCAB, args->count - tile.at);
        for (int64_t row = 0; row < args->rows; row += block)
            TSR_TRY(run_rows(&tile, row, least(block, args->rows - row)));
    }
    return TSR_OK;
}
