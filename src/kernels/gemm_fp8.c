/*
 * gemm_fp8.c: contract fp8_gemm.h on a GPU. On Hopper by cuBLASLt: what it is told of e4m3 operands with a scale for
 * each row, and what must be there for it; elsewhere by fp8_gemm_mma.cu. Algorithms are chosen, timed and kept as for gemm
 * (gemm_cublaslt.c, gemm_tune.c): the dtype and `fast` are part of a shape.
 *
 * C^T = B A^T of cuBLASLt: its A is our B, transposed, and its B our A, which is the one layout that e4m3
 * has on Hopper. Where a matmul has no scale_b, it gets ones: both scales are vectors, or neither.
 *
 * Finer scales, one for 128 elements of x and one for 128 x 128 of W, are slower (bench_ops, "fp8 by tiles", an
 * H200 with CUDA 13.0: 905 us for [8192, 14336] by 4096, where a scale a row takes 815, `fast` 724 and bf16
 * 1424), and have no `fast`.
 */
#include "kernels/gemm_cublaslt.h"

#include <stdlib.h>

/* As cublasLt.h of CUDA 12.9 and later has them; that of 12.4 does not. The library that is loaded may be
 * newer than the header, and is asked for its version. */
#define OLDEST_LIBRARY 120900
#define A_SCALE_MODE   31
#define B_SCALE_MODE   32
#define OUTER_VECTOR   3
#if defined(CUBLAS_VERSION) && CUBLAS_VERSION >= OLDEST_LIBRARY
_Static_assert(A_SCALE_MODE == CUBLASLT_MATMUL_DESC_A_SCALE_MODE, "cublasLt.h");
_Static_assert(B_SCALE_MODE == CUBLASLT_MATMUL_DESC_B_SCALE_MODE, "cublasLt.h");
_Static_assert(OUTER_VECTOR == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F, "cublasLt.h");
#endif

#define E4M3_ARCH 89 /* the oldest with instructions for e4m3 */

#define GRAIN 16 /* bytes: what tensor cores and copies take of a row of e4m3 */

cublasStatus_t tsr_matmul_describe_fp8(cublasLtMatmulDesc_t out, const tsr_matmul_key *key,
                                       const tsr_matmul_scales *scales)
{
    int32_t transposed = CUBLAS_OP_T, mode = OUTER_VECTOR;
    int8_t fast = (key->flags & TSR_MATMUL_FAST) != 0;
    const struct {
        int attribute;
        const void *value;
        size_t bytes;
    } part[] = {
        {CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed},
        {A_SCALE_MODE, &mode, sizeof mode},
        {B_SCALE_MODE, &mode, sizeof mode},
        {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &scales->b, sizeof scales->b},
        {CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &scales->a, sizeof scales->a},
        {CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast},
    };
    cublasStatus_t status =
        tsr_cublaslt_lib.MatmulDescInit_internal(out, sizeof *out, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    for (size_t i = 0; i < sizeof part / sizeof *part && status == CUBLAS_STATUS_SUCCESS; i++)
        status = tsr_cublaslt_lib.MatmulDescSetAttribute(
            out, (cublasLtMatmulDescAttributes_t)part[i].attribute, part[i].value, part[i].bytes);
    return status;
}

/* ---- what must be there ---- */

/* Whether cuBLASLt multiplies rows with scales there. */
static bool is_hopper(const tsr_cuda_properties *p)
{
    return p->major == 9 && p->minor == 0;
}

bool tsr_fp8_mma_here(tsr_device *device)
{
    const tsr_cuda_properties *p = tsr_device_cuda_properties(device);
    return 10 * p->major + p->minor >= E4M3_ARCH && p->arch >= E4M3_ARCH;
}

static tsr_status check_library(void)
{
    tsr_library_version found;
    TSR_TRY(tsr_cublaslt_load(&found));
    if (tsr_cublaslt_lib.GetVersion() < OLDEST_LIBRARY)
        return tsr_fail(TSR_EUNSUPPORTED,
                        "fp8_gemm needs cuBLASLt 12.9 (CUDA 12.9) or newer, this is %d.%d.%d",
                        found.major, found.minor, found.patch);
    return TSR_OK;
}

tsr_status tsr_fp8_gemm_supported(tsr_device *device)
{
    const tsr_cuda_properties *p = tsr_device_cuda_properties(device);
    if (10 * p->major + p->minor < E4M3_ARCH)
        return tsr_fail(
            TSR_EUNSUPPORTED,
            "fp8_gemm needs a card of compute capability 8.9 (Ada) or newer, this is %d.%d",
            p->major, p->minor);
    if (!tsr_fp8_mma_here(device))
        return tsr_fail(TSR_EUNSUPPORTED,
                        "fp8_gemm needs code for compute capability 8.9 or newer, this build has "
                        "that of %d.%d: build with 89-virtual among TSR_CUDA_ARCHS",
                        p->arch / 10, p->arch % 10);
    return is_hopper(p) ? check_library() : TSR_OK;
}

tsr_status tsr_blas_open_fp8(tsr_blas *blas, tsr_device *device)
{
    uint64_t bytes = TSR_FP8_GEMM_MOST_ONES * sizeof(float);
    if (!is_hopper(tsr_device_cuda_properties(device)) || tsr_fp8_gemm_supported(device) < 0)
        return TSR_OK; /* said when it is asked for */
    float *ones = malloc(bytes);
    if (!ones)
        return tsr_fail(TSR_ENOMEM, "out of memory for the scales of matmuls");
    for (int i = 0; i < TSR_FP8_GEMM_MOST_ONES; i++)
        ones[i] = 1;
    tsr_status status =
        tsr_cuda_status(cudaMalloc((void **)&blas->ones, bytes), "the scales of matmuls");
    if (status == TSR_OK)
        status = tsr_cuda_status(cudaMemcpy(blas->ones, ones, bytes, cudaMemcpyHostToDevice),
                                 "cudaMemcpy");
    free(ones);
    return status;
}

bool tsr_blas_takes(const tsr_blas *blas, const tsr_gemm_args *shape)
{
    if (shape->dtype != TSR_F8_E4M3)
        return true;
    return blas->ones && shape->n % GRAIN == 0 && shape->k % GRAIN == 0 &&
           shape->n <= TSR_FP8_GEMM_MOST_ONES && shape->m <= TSR_FP8_GEMM_MOST_ONES;
}

static bool aligned(const void *p)
{
    return (uintptr_t)p % GRAIN == 0;
}

static tsr_status judge_shape(const tsr_fp8_gemm_args *args, const float *ones)
{
    if (args->k % GRAIN || args->n % GRAIN)
        return tsr_fail(TSR_EUNSUPPORTED,
                        "fp8_gemm: n %lld and k %lld must be multiples of 16 on a GPU",
                        (long long)args->n, (long long)args->k);
    if (!aligned(args->a) || !aligned(args->b) || !aligned(args->c) || !aligned(args->scale_a) ||
        !aligned(args->scale_b))
        return tsr_fail(TSR_EUNSUPPORTED,
                        "fp8_gemm: a matrix or a scale does not begin on 16 bytes, as a GPU needs");
    if (ones && !args->scale_b && args->n > TSR_FP8_GEMM_MOST_ONES)
        return tsr_fail(TSR_EUNSUPPORTED, "fp8_gemm: n %lld without scale_b is more than %d",
                        (long long)args->n, TSR_FP8_GEMM_MOST_ONES);
    return TSR_OK;
}

tsr_status tsr_fp8_gemm_cuda(tsr_stream *stream, const tsr_fp8_gemm_args *args)
{
    const float *ones = tsr_kernels_kept(stream)->blas->ones;
    TSR_TRY(tsr_fp8_gemm_check(args));
    if (!ones)
        TSR_TRY(tsr_fp8_gemm_supported(tsr_stream_device(stream)));
    TSR_TRY(judge_shape(args, ones));
    tsr_gemm_args shape = tsr_fp8_gemm_shape(args);
    if (args->m == 0 || args->n == 0)
        return TSR_OK;
    if (args->k == 0)
        return tsr_gemm_scale(stream, &shape);
    if (!ones)
        return tsr_fp8_gemm_mma(stream, args);
    tsr_matmul_scales scales = {args->scale_a, args->scale_b ? args->scale_b : ones};
    return tsr_matmul_call(stream, &shape, &scales);
}
