/*
 * ops_fp8_tiles.c: see ops_fp8.h. How fast cuBLASLt multiplies e4m3 with a scale for each 128 elements of
 * x and each 128 x 128 of W, which no op of ours uses: to know what the finer scales would cost. All scales
 * are ones, so that their layout does not matter.
 */
#include "ops_fp8.h"

#include "base/clock.h"
#include "device/cuda.h"
#include "kernels/cublaslt_library.h"
#include "ops_memory.h"
#include "ops_report.h"

#include <stdio.h>
#include <stdlib.h>

#define CANDIDATES      8
#define TRIAL           10
#define WORKSPACE_BYTES ((uint64_t)32 << 20)

#if defined(CUBLAS_VERSION) && CUBLAS_VERSION >= 120900

typedef struct {
    cublasLtHandle_t handle;
    cublasLtMatmulDescOpaque_t how;
    cublasLtMatrixLayoutOpaque_t a, b, c;
    cublasLtMatmulAlgo_t algo;
    void *x, *w, *out, *workspace;
    tsr_stream *stream;
} tiles;

static void lt_must(cublasStatus_t status, const char *what)
{
    if (status != CUBLAS_STATUS_SUCCESS) {
        fprintf(stderr, "bench_ops: %s: %s\n", what, tsr_cublaslt_lib.GetStatusName(status));
        ops_die(what);
    }
}

static void set(tiles *t, cublasLtMatmulDescAttributes_t attribute, const void *value, size_t bytes)
{
    lt_must(tsr_cublaslt_lib.MatmulDescSetAttribute(&t->how, attribute, value, bytes), "describe");
}

static void describe(tiles *t, const float *ones, bool fast)
{
    int32_t transposed = CUBLAS_OP_T, of_w = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    int32_t of_x = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    int8_t accumulate_fast = fast;
    lt_must(tsr_cublaslt_lib.MatmulDescInit_internal(&t->how, sizeof t->how, CUBLAS_COMPUTE_32F,
                                                     CUDA_R_32F),
            "describe");
    set(t, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
    set(t, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &of_w, sizeof of_w);
    set(t, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &of_x, sizeof of_x);
    set(t, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &ones, sizeof ones);
    set(t, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &ones, sizeof ones);
    set(t, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &accumulate_fast, sizeof accumulate_fast);
}

static void lay_out(tiles *t, const tsr_fp8_gemm_args *shape)
{
    uint64_t m = (uint64_t)shape->m, n = (uint64_t)shape->n, k = (uint64_t)shape->k;
    const struct {
        cublasLtMatrixLayoutOpaque_t *out;
        cudaDataType type;
        uint64_t rows, columns;
    } part[] = {
        {&t->a, CUDA_R_8F_E4M3, k, n}, {&t->b, CUDA_R_8F_E4M3, k, m}, {&t->c, CUDA_R_16BF, n, m}};
    for (size_t i = 0; i < sizeof part / sizeof *part; i++)
        lt_must(tsr_cublaslt_lib.MatrixLayoutInit_internal(part[i].out, sizeof *part[i].out,
                                                           part[i].type, part[i].rows,
                                                           part[i].columns, (int64_t)part[i].rows),
                "lay out");
}

static cublasStatus_t multiply(const tiles *t)
{
    const float alpha = 1e-3f, beta = 0;
    tiles call = *t;
    return tsr_cublaslt_lib.Matmul(t->handle, &call.how, &alpha, t->w, &call.a, t->x, &call.b,
                                   &beta, t->out, &call.c, t->out, &call.c, &t->algo, t->workspace,
                                   WORKSPACE_BYTES, tsr_stream_cuda(t->stream));
}

static tsr_status run_tiles(const void *args)
{
    return multiply(args) == CUBLAS_STATUS_SUCCESS ? TSR_OK
                                                   : tsr_fail(TSR_EDEVICE, "cublasLtMatmul");
}

static double trial_seconds(const tiles *t)
{
    double start = 0;
    for (int i = -2; i < TRIAL; i++) {
        if (i == 0) {
            ops_must(tsr_stream_synchronize(t->stream), "a trial");
            start = tsr_now();
        }
        if (multiply(t) != CUBLAS_STATUS_SUCCESS)
            return 1e9;
    }
    ops_must(tsr_stream_synchronize(t->stream), "a trial");
    return tsr_now() - start;
}

/* The fastest of the heuristic's candidates; false, and said: there is none. */
static bool choose(tiles *t)
{
    cublasLtMatmulPreferenceOpaque_t wish;
    cublasLtMatmulHeuristicResult_t result[CANDIDATES];
    uint64_t workspace = WORKSPACE_BYTES;
    int found = 0;
    lt_must(tsr_cublaslt_lib.MatmulPreferenceInit_internal(&wish, sizeof wish), "prefer");
    lt_must(tsr_cublaslt_lib.MatmulPreferenceSetAttribute(
                &wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace),
            "prefer");
    cublasStatus_t status = tsr_cublaslt_lib.MatmulAlgoGetHeuristic(
        t->handle, &t->how, &t->a, &t->b, &t->c, &t->c, &wish, CANDIDATES, result, &found);
    if (status != CUBLAS_STATUS_SUCCESS || found == 0) {
        fprintf(stderr, "fp8 by tiles: no algorithm: %s\n", tsr_cublaslt_lib.GetStatusName(status));
        return false;
    }
    double least = 1e9;
    cublasLtMatmulAlgo_t best = result[0].algo;
    for (int i = 0; i < found; i++) {
        t->algo = result[i].algo;
        double seconds = trial_seconds(t);
        if (seconds < least) {
            least = seconds;
            best = t->algo;
        }
    }
    t->algo = best;
    return true;
}

static const float *new_ones(int64_t count)
{
    float *host = malloc((size_t)count * sizeof *host);
    if (!host)
        ops_die("memory");
    for (int64_t i = 0; i < count; i++)
        host[i] = 1;
    const float *out = ops_host_copy(host, (uint64_t)count * sizeof *host);
    free(host);
    return out;
}

void ops_fp8_tiles(tsr_stream *stream, const tsr_fp8_gemm_args *shape, const char *text)
{
    tiles t = {.x = (void *)shape->a,
               .w = (void *)shape->b,
               .out = shape->c,
               .workspace = ops_take(WORKSPACE_BYTES),
               .stream = stream};
    double m = (double)shape->m, n = (double)shape->n, k = (double)shape->k;
    int64_t scales = (shape->m + 128) * (shape->k / 128 + 4);
    const float *ones = new_ones(scales);
    lt_must(tsr_cublaslt_lib.Create(&t.handle), "cublasLtCreate");
    describe(&t, ones, shape->fast);
    lay_out(&t, shape);
    if (choose(&t))
        ops_report_fp8(shape->fast ? "fp8 by tiles, fast" : "fp8 by tiles", text,
                       m * k + n * k + 2 * m * n, 2 * m * n * k, run_tiles, &t, sizeof t, 1);
    ops_must(tsr_stream_synchronize(stream), "fp8 by tiles");
    tsr_cublaslt_lib.Destroy(t.handle);
}

#else

void ops_fp8_tiles(tsr_stream *stream, const tsr_fp8_gemm_args *shape, const char *text)
{
    (void)stream, (void)shape;
    fprintf(stderr, "fp8 by tiles %s: built with headers before CUDA 12.9\n", text);
}

#endif
