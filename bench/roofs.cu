/*
 * roofs.cu: what this GPU sustains, for the figures of the same run to be held against.
 *
 *     bench_roofs [--seconds S] [--tokens T] [--device N] [--all] > roofs.json
 *
 * bf16 matmuls through cuBLASLt on random data at the shapes of an 8B layer and as a cube of 8192: up to 16 candidates
 * are timed, the fastest runs for half a second to warm up and then for S seconds (2), median of the time between events around
 * groups of launches. Copies: a plain kernel and the copy engine on 1 GiB (bytes read + written), pinned host memory to and
 * from the device (256 MiB, one direction at a time). Buffers are larger than L2; weights and inputs rotate over two sets.
 *
 * gemm_tflop_s, copy_gb_s: the largest of each kind; the roofs of floor.h. --all: the small shapes too.
 */
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CANDIDATES   16
#define SETS         2
#define WORKSPACE    ((size_t)64 << 20)
#define COPY_BYTES   ((size_t)1 << 30)
#define PINNED_BYTES ((size_t)256 << 20)
#define REPEATS      20
#define MAX_GROUPS   4096
#define WARM_SECONDS 0.5
#define THREADS      256

#define CHECK(call)                                                                                \
    do {                                                                                           \
        int status_ = (int)(call);                                                                 \
        if (status_) {                                                                             \
            fprintf(stderr, "%s:%d: %s gave %d\n", __FILE__, __LINE__, #call, status_);            \
            exit(71);                                                                              \
        }                                                                                          \
    } while (0)

/* ---- data ---- */

__device__ static float uniform(uint64_t index, uint64_t seed)
{
    uint64_t z = index * 0x9e3779b97f4a7c15ull + seed;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return (float)((z ^ (z >> 31)) >> 40) * 0x1p-24f;
}

/* About normal: the sum of four uniform numbers, of variance 1/3, scaled. */
static __global__ void fill_normal(__nv_bfloat16 *out, int64_t count, float deviation,
                                   uint64_t seed)
{
    int64_t stride = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += stride) {
        float sum = -2;
        for (uint64_t part = 0; part < 4; part++)
            sum += uniform((uint64_t)i * 4 + part, seed);
        out[i] = __float2bfloat16(sum * 1.7320508f * deviation);
    }
}

static __nv_bfloat16 *random_matrix(int64_t count, float deviation, uint64_t seed)
{
    void *out;
    CHECK(cudaMalloc(&out, (size_t)count * sizeof(__nv_bfloat16)));
    fill_normal<<<1024, THREADS>>>((__nv_bfloat16 *)out, count, deviation, seed);
    CHECK(cudaGetLastError());
    return (__nv_bfloat16 *)out;
}

static int compare(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

typedef struct {
    float median, least, most;
} spread;

/* Sorts. */
static spread spread_of(float *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, compare);
    spread s = {count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2,
                values[0], values[count - 1]};
    return s;
}

/* ---- matmuls ---- */

typedef struct {
    const char *name;
    int64_t m, n, k;
    bool weight_transposed; /* y = x w^T, w [n, k]; else dx = dy w, w [k, n] */
} gemm_shape;

typedef struct {
    gemm_shape shape;
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t w_layout, x_layout, y_layout;
    cublasLtMatmulHeuristicResult_t candidate[CANDIDATES];
    int candidate_count, best;
    __nv_bfloat16 *x[SETS], *w[SETS], *y;
    void *workspace;
} gemm;

/* cuBLASLt stores by columns: the row-major y [m, n] is its n x m, and the weight its first factor. */
static void gemm_open(gemm *g, const gemm_shape *shape, void *workspace)
{
    memset(g, 0, sizeof *g);
    g->shape = *shape;
    g->workspace = workspace;
    int64_t m = shape->m, n = shape->n, k = shape->k;
    cublasOperation_t transpose = shape->weight_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtMatmulPreference_t preference;
    size_t bytes = WORKSPACE;
    CHECK(cublasLtCreate(&g->handle));
    CHECK(cublasLtMatmulDescCreate(&g->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    CHECK(cublasLtMatmulDescSetAttribute(g->operation, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
                                         sizeof transpose));
    CHECK(cublasLtMatrixLayoutCreate(
        &g->w_layout, CUDA_R_16BF, (uint64_t)(shape->weight_transposed ? k : n),
        (uint64_t)(shape->weight_transposed ? n : k), shape->weight_transposed ? k : n));
    CHECK(cublasLtMatrixLayoutCreate(&g->x_layout, CUDA_R_16BF, (uint64_t)k, (uint64_t)m, k));
    CHECK(cublasLtMatrixLayoutCreate(&g->y_layout, CUDA_R_16BF, (uint64_t)n, (uint64_t)m, n));
    CHECK(cublasLtMatmulPreferenceCreate(&preference));
    CHECK(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                               &bytes, sizeof bytes));
    CHECK(cublasLtMatmulAlgoGetHeuristic(g->handle, g->operation, g->w_layout, g->x_layout,
                                         g->y_layout, g->y_layout, preference, CANDIDATES,
                                         g->candidate, &g->candidate_count));
    if (!g->candidate_count) {
        fprintf(stderr, "no cuBLASLt algorithm for %s\n", shape->name);
        exit(71);
    }
    cublasLtMatmulPreferenceDestroy(preference);
    for (int i = 0; i < SETS; i++) {
        g->x[i] = random_matrix(m * k, 1, 11 + (uint64_t)i);
        g->w[i] = random_matrix(k * n, 0.02f, 97 + (uint64_t)i);
    }
    CHECK(cudaMalloc((void **)&g->y, (size_t)(m * n) * sizeof *g->y));
}

static void gemm_close(gemm *g)
{
    for (int i = 0; i < SETS; i++) {
        cudaFree(g->x[i]);
        cudaFree(g->w[i]);
    }
    cudaFree(g->y);
    cublasLtMatrixLayoutDestroy(g->w_layout);
    cublasLtMatrixLayoutDestroy(g->x_layout);
    cublasLtMatrixLayoutDestroy(g->y_layout);
    cublasLtMatmulDescDestroy(g->operation);
    cublasLtDestroy(g->handle);
}

static cublasStatus_t gemm_run(const gemm *g, int candidate, int set)
{
    float one = 1, zero = 0;
    return cublasLtMatmul(g->handle, g->operation, &one, g->w[set], g->w_layout, g->x[set],
                          g->x_layout, &zero, g->y, g->y_layout, g->y, g->y_layout,
                          &g->candidate[candidate].algo, g->workspace, WORKSPACE, 0);
}

/* Seconds of one launch of a candidate, the mean of a few; a huge number if it does not run. */
static float gemm_try(const gemm *g, int candidate, int launches)
{
    cudaEvent_t begin, end;
    float ms;
    if (gemm_run(g, candidate, 0) != CUBLAS_STATUS_SUCCESS)
        return 1e9f;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    CHECK(cudaEventRecord(begin, 0));
    for (int i = 0; i < launches; i++)
        CHECK(gemm_run(g, candidate, i % SETS));
    CHECK(cudaEventRecord(end, 0));
    CHECK(cudaEventSynchronize(end));
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    return ms * 1e-3f / (float)launches;
}

/* Seconds of one launch, sustained: groups of launches between events, the stream never empty. */
static spread gemm_sustain(gemm *g, double seconds)
{
    static float sample[MAX_GROUPS];
    static cudaEvent_t event[MAX_GROUPS + 1];
    float best = 1e9f;
    for (int i = 0; i < g->candidate_count; i++) {
        float time = gemm_try(g, i, 5);
        if (time < best) {
            best = time;
            g->best = i;
        }
    }
    int launches = (int)(0.004f / best) + 1; /* about 4 ms: the event costs nothing then */
    float group = best * (float)launches;
    int warm = (int)(WARM_SECONDS / group) + 1, count = (int)(seconds / group) + 8;
    if (count > MAX_GROUPS)
        count = MAX_GROUPS;
    for (int i = 0; i < warm * launches; i++)
        CHECK(gemm_run(g, g->best, i % SETS));
    for (int i = 0; i <= count; i++) {
        CHECK(cudaEventCreate(&event[i]));
        CHECK(cudaEventRecord(event[i], 0));
        for (int j = 0; j < launches && i < count; j++)
            CHECK(gemm_run(g, g->best, j % SETS));
    }
    CHECK(cudaDeviceSynchronize());
    for (int i = 0; i < count; i++) {
        CHECK(cudaEventElapsedTime(&sample[i], event[i], event[i + 1]));
        sample[i] *= 1e-3f / (float)launches;
    }
    for (int i = 0; i <= count; i++)
        cudaEventDestroy(event[i]);
    return spread_of(sample, count);
}

/* Large ones first: one of them has the largest rate. */
#define LARGE_SHAPES 4

static void measure_gemms(int64_t tokens, double seconds, bool all)
{
    const gemm_shape shapes[] = {{"gate, up", tokens, 14336, 4096, true},
                                 {"down", tokens, 4096, 14336, true},
                                 {"dX of gate, up", tokens, 4096, 14336, false},
                                 {"cube", 8192, 8192, 8192, true},
                                 {"q, o", tokens, 4096, 4096, true},
                                 {"k, v", tokens, 1024, 4096, true},
                                 {"dX of down", tokens, 14336, 4096, false},
                                 {"dX of q, o", tokens, 4096, 4096, false}};
    int count = all ? (int)(sizeof shapes / sizeof *shapes) : LARGE_SHAPES;
    double most = 0;
    void *workspace;
    CHECK(cudaMalloc(&workspace, WORKSPACE));
    printf("\"gemm\":[");
    for (int i = 0; i < count; i++) {
        gemm g;
        gemm_open(&g, &shapes[i], workspace);
        spread s = gemm_sustain(&g, seconds);
        double flops = 2.0 * (double)g.shape.m * (double)g.shape.n * (double)g.shape.k;
        double rate = flops / s.median * 1e-12;
        printf("%s{\"name\":\"%s\",\"m\":%lld,\"n\":%lld,\"k\":%lld,\"candidates\":%d,\"best\":%d,"
               "\"ms\":%.4f,\"ms_min\":%.4f,\"ms_max\":%.4f,\"tflop_s\":%.1f}",
               i ? "," : "", g.shape.name, (long long)g.shape.m, (long long)g.shape.n,
               (long long)g.shape.k, g.candidate_count, g.best, 1e3 * s.median, 1e3 * s.least,
               1e3 * s.most, rate);
        fprintf(stderr, "gemm %-16s %6.1f TFLOP/s\n", g.shape.name, rate);
        most = rate > most ? rate : most;
        gemm_close(&g);
    }
    cudaFree(workspace);
    printf("],\"gemm_tflop_s\":%.1f,\n", most);
}

/* ---- copies ---- */

#define COPY_TURNS 4

static __global__ void __launch_bounds__(THREADS)
    copy_kernel(uint4 *__restrict__ out, const uint4 *__restrict__ in)
{
    int64_t first = (int64_t)blockIdx.x * THREADS * COPY_TURNS + threadIdx.x;
    uint4 value[COPY_TURNS];
#pragma unroll
    for (int i = 0; i < COPY_TURNS; i++)
        value[i] = __ldcs(&in[first + i * THREADS]);
#pragma unroll
    for (int i = 0; i < COPY_TURNS; i++)
        __stcs(&out[first + i * THREADS], value[i]);
}

typedef enum { COPY_KERNEL, COPY_ENGINE, HOST_TO_DEVICE, DEVICE_TO_HOST, COPY_KINDS } copy_kind;

static void copy_once(copy_kind kind, char *a, char *b, char *host)
{
    if (kind == COPY_KERNEL) {
        unsigned blocks = (unsigned)(COPY_BYTES / (THREADS * COPY_TURNS * sizeof(uint4)));
        copy_kernel<<<blocks, THREADS>>>((uint4 *)a, (const uint4 *)b);
        CHECK(cudaGetLastError());
    } else if (kind == COPY_ENGINE) {
        CHECK(cudaMemcpyAsync(a, b, COPY_BYTES, cudaMemcpyDeviceToDevice, 0));
    } else if (kind == HOST_TO_DEVICE) {
        CHECK(cudaMemcpyAsync(a, host, PINNED_BYTES, cudaMemcpyHostToDevice, 0));
    } else {
        CHECK(cudaMemcpyAsync(host, a, PINNED_BYTES, cudaMemcpyDeviceToHost, 0));
    }
}

/* Bytes a second; a copy on the device counts what it reads and what it writes. */
static double copy_rate(copy_kind kind, char *a, char *b, char *host)
{
    float sample[REPEATS];
    cudaEvent_t begin, end;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    for (int i = -3; i < REPEATS; i++) {
        CHECK(cudaEventRecord(begin, 0));
        copy_once(kind, a, b, host);
        CHECK(cudaEventRecord(end, 0));
        CHECK(cudaEventSynchronize(end));
        float ms;
        CHECK(cudaEventElapsedTime(&ms, begin, end));
        if (i >= 0)
            sample[i] = ms;
    }
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    double bytes = kind < HOST_TO_DEVICE ? 2.0 * (double)COPY_BYTES : (double)PINNED_BYTES;
    return bytes / (1e-3 * spread_of(sample, REPEATS).median);
}

static void measure_copies(void)
{
    char *a, *b, *host;
    double rate[COPY_KINDS];
    CHECK(cudaMalloc((void **)&a, COPY_BYTES));
    CHECK(cudaMalloc((void **)&b, COPY_BYTES));
    CHECK(cudaHostAlloc((void **)&host, PINNED_BYTES, cudaHostAllocDefault));
    fill_normal<<<1024, THREADS>>>((__nv_bfloat16 *)b, (int64_t)(COPY_BYTES / 2), 1, 5);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(host, b, PINNED_BYTES, cudaMemcpyDeviceToHost));
    for (int kind = 0; kind < COPY_KINDS; kind++)
        rate[kind] = copy_rate((copy_kind)kind, a, b, host);
    double most = rate[COPY_KERNEL] > rate[COPY_ENGINE] ? rate[COPY_KERNEL] : rate[COPY_ENGINE];
    printf("\"copy_kernel_gb_s\":%.0f,\"copy_engine_gb_s\":%.0f,\"copy_gb_s\":%.0f,"
           "\"h2d_gb_s\":%.1f,\"d2h_gb_s\":%.1f",
           1e-9 * rate[COPY_KERNEL], 1e-9 * rate[COPY_ENGINE], 1e-9 * most,
           1e-9 * rate[HOST_TO_DEVICE], 1e-9 * rate[DEVICE_TO_HOST]);
    fprintf(stderr, "copy kernel %.0f, engine %.0f GB/s; pinned H2D %.1f, D2H %.1f GB/s\n",
            1e-9 * rate[COPY_KERNEL], 1e-9 * rate[COPY_ENGINE], 1e-9 * rate[HOST_TO_DEVICE],
            1e-9 * rate[DEVICE_TO_HOST]);
    cudaFree(a);
    cudaFree(b);
    cudaFreeHost(host);
}

int main(int count, char **arguments)
{
    double seconds = 2;
    int64_t tokens = 8192;
    int device = 0, driver, runtime;
    bool all = false;
    for (int i = 1; i < count; i++) {
        const char *value = i + 1 < count ? arguments[i + 1] : "";
        if (!strcmp(arguments[i], "--all"))
            all = true;
        else if (!strcmp(arguments[i], "--seconds") && (seconds = atof(value)) > 0)
            i++;
        else if (!strcmp(arguments[i], "--tokens") && (tokens = atoll(value)) > 0)
            i++;
        else if (!strcmp(arguments[i], "--device") && *value)
            device = atoi(arguments[++i]);
        else {
            fprintf(stderr, "usage: bench_roofs [--seconds S] [--tokens T] [--device N] [--all]\n");
            return 64;
        }
    }
    struct cudaDeviceProp properties;
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || device >= devices) {
        fprintf(stderr, "bench_roofs: no such GPU\n");
        return 77;
    }
    CHECK(cudaSetDevice(device));
    CHECK(cudaGetDeviceProperties(&properties, device));
    CHECK(cudaDriverGetVersion(&driver));
    CHECK(cudaRuntimeGetVersion(&runtime));
    printf("{\"bench\":\"roofs\",\"device\":\"%s\",\"driver\":%d,\"cuda\":%d,\"cublaslt\":%zu,"
           "\"tokens\":%lld,\"seconds\":%.1f,\n",
           properties.name, driver, runtime, cublasLtGetVersion(), (long long)tokens, seconds);
    measure_gemms(tokens, seconds, all);
    measure_copies();
    printf("}\n");
    return 0;
}
