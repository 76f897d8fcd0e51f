/*
 * plain_cublaslt.cu: what we use of cuBLASLt, with a kernel of one thread an element, as a library of its
 * name. compute-sanitizer's racecheck ends a process on an illegal access inside cuBLASLt's own kernels;
 * with this in front on LD_LIBRARY_PATH (bench/run_gpu sanitize) it gets through to ours.
 */
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <string.h>

/* Not in the headers of CUDA 12.4 to 12.8, whose library would not be asked for them. */
#if CUBLAS_VERSION < 120900
#define CUBLASLT_MATMUL_DESC_A_SCALE_MODE 31
#define CUBLASLT_MATMUL_DESC_B_SCALE_MODE 32
#endif

#define THREADS 256
#define API     extern "C" __attribute__((visibility("default")))

/* The scales are of e4m3: by row of the product and by its column. */
typedef struct {
    int32_t trans_a, trans_b;
    const float *scale_a, *scale_b;
} description;

/* Column-major, as cuBLASLt has it. */
typedef struct {
    uint64_t rows, columns;
    int64_t ld;
    cudaDataType type;
} layout;

typedef struct {
    const void *data;
    layout of;
    int transposed;
} operand;

static __device__ float element(operand from, uint64_t row, uint64_t column)
{
    uint64_t at =
        from.transposed ? column + row * (uint64_t)from.of.ld : row + column * (uint64_t)from.of.ld;
    if (from.of.type == CUDA_R_32F)
        return ((const float *)from.data)[at];
    if (from.of.type == CUDA_R_16BF)
        return __bfloat162float(((const __nv_bfloat16 *)from.data)[at]);
    if (from.of.type == CUDA_R_8F_E4M3)
        return (float)((const __nv_fp8_e4m3 *)from.data)[at];
    return __half2float(((const __half *)from.data)[at]);
}

static __global__ void multiply(operand a, operand b, operand c, void *out, layout d,
                                uint64_t inner, float alpha, float beta, description how)
{
    uint64_t i = blockIdx.x * (uint64_t)THREADS + threadIdx.x;
    if (i >= d.rows * d.columns)
        return;
    uint64_t row = i % d.rows, column = i / d.rows, at = row + column * (uint64_t)d.ld;
    float sum = 0;
    for (uint64_t k = 0; k < inner; k++)
        sum += element(a, row, k) * element(b, k, column);
    if (how.scale_a)
        sum *= how.scale_a[row] * how.scale_b[column];
    sum = alpha * sum + (beta != 0 ? beta * element(c, row, column) : 0);
    if (d.type == CUDA_R_32F)
        ((float *)out)[at] = sum;
    else if (d.type == CUDA_R_16BF)
        ((__nv_bfloat16 *)out)[at] = __float2bfloat16(sum);
    else
        ((__half *)out)[at] = __float2half(sum);
}

API cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t how,
                                  const void *alpha, const void *a, cublasLtMatrixLayout_t a_of,
                                  const void *b, cublasLtMatrixLayout_t b_of, const void *beta,
                                  const void *c, cublasLtMatrixLayout_t c_of, void *d,
                                  cublasLtMatrixLayout_t d_of, const cublasLtMatmulAlgo_t *algo,
                                  void *workspace, size_t bytes, cudaStream_t stream)
{
    (void)handle, (void)algo, (void)workspace, (void)bytes;
    const description *trans = (const description *)how;
    operand left = {a, *(const layout *)a_of, trans->trans_a};
    operand right = {b, *(const layout *)b_of, trans->trans_b};
    operand old = {c, *(const layout *)c_of, 0};
    layout out = *(const layout *)d_of;
    uint64_t inner = trans->trans_a ? left.of.rows : left.of.columns;
    multiply<<<(unsigned)((out.rows * out.columns + THREADS - 1) / THREADS), THREADS, 0, stream>>>(
        left, right, old, d, out, inner, *(const float *)alpha, *(const float *)beta, *trans);
    return cudaGetLastError() == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                             : CUBLAS_STATUS_EXECUTION_FAILED;
}

API cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t out, size_t bytes,
                                                   cublasComputeType_t compute, cudaDataType scale)
{
    (void)compute, (void)scale;
    memset(out, 0, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

API cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t out,
                                                  cublasLtMatmulDescAttributes_t what,
                                                  const void *value, size_t bytes)
{
    description *d = (description *)out;
    int32_t trans = bytes == sizeof(int32_t) && *(const int32_t *)value == CUBLAS_OP_T;
    if (what == CUBLASLT_MATMUL_DESC_TRANSA)
        d->trans_a = trans;
    else if (what == CUBLASLT_MATMUL_DESC_TRANSB)
        d->trans_b = trans;
    else if (what == CUBLASLT_MATMUL_DESC_A_SCALE_POINTER)
        memcpy(&d->scale_a, value, bytes);
    else if (what == CUBLASLT_MATMUL_DESC_B_SCALE_POINTER)
        memcpy(&d->scale_b, value, bytes);
    else if (what != CUBLASLT_MATMUL_DESC_A_SCALE_MODE &&
             what != CUBLASLT_MATMUL_DESC_B_SCALE_MODE && what != CUBLASLT_MATMUL_DESC_FAST_ACCUM)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    return CUBLAS_STATUS_SUCCESS;
}

API cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t out, size_t bytes,
                                                     cudaDataType type, uint64_t rows,
                                                     uint64_t columns, int64_t ld)
{
    layout made = {rows, columns, ld, type};
    if (bytes < sizeof made)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(out, &made, sizeof made);
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- the one algorithm ---- */

API cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t handle, cublasLtMatmulDesc_t how, cublasLtMatrixLayout_t a,
    cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
    cublasLtMatmulPreference_t wish, int most, cublasLtMatmulHeuristicResult_t out[], int *count)
{
    (void)handle, (void)how, (void)a, (void)b, (void)c, (void)d, (void)wish;
    *count = most > 0;
    if (most > 0)
        memset(out, 0, sizeof *out);
    return CUBLAS_STATUS_SUCCESS;
}

API cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t how,
                                           cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                           cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                           const cublasLtMatmulAlgo_t *algo,
                                           cublasLtMatmulHeuristicResult_t *out)
{
    (void)handle, (void)how, (void)a, (void)b, (void)c, (void)d, (void)algo;
    memset(out, 0, sizeof *out);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t nothing_special(void *value, size_t bytes, size_t *written)
{
    memset(value, 0, bytes);
    *written = bytes;
    return CUBLAS_STATUS_SUCCESS;
}

API cublasStatus_t cublasLtMatmulAlgoCapGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                     cublasLtMatmulAlgoCapAttributes_t what,
                                                     void *value, size_t bytes, size_t *written)
{
    (void)algo, (void)what;
    return nothing_special(value, bytes, written);
}

API cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                        cublasLtMatmulAlgoConfigAttributes_t what,
                                                        void *value, size_t bytes, size_t *written)
{
    (void)algo, (void)what;
    return nothing_special(value, bytes, written);
}

API cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t out,
                                                         size_t bytes)
{
    memset(out, 0, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

API cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t out,
                                                        cublasLtMatmulPreferenceAttributes_t what,
                                                        const void *value, size_t bytes)
{
    (void)out, (void)what, (void)value, (void)bytes;
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- the library ---- */

API cublasStatus_t cublasLtCreate(cublasLtHandle_t *out)
{
    static int handle;
    *out = (cublasLtHandle_t)&handle;
    return CUBLAS_STATUS_SUCCESS;
}

API cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    (void)handle;
    return CUBLAS_STATUS_SUCCESS;
}

API size_t cublasLtGetVersion(void)
{
    return CUBLAS_VERSION;
}

API const char *cublasLtGetStatusName(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_SUCCESS ? "CUBLAS_STATUS_SUCCESS" : "a status of the stand-in";
}

API const char *cublasLtGetStatusString(cublasStatus_t status)
{
    return cublasLtGetStatusName(status);
}
