/*
 * two_slots.cu: does the two-slot limiter hide its gathers? The questions that the CUDA backend is built on, asked with
 * as little code as possible: an 8B layer's frozen part (7 NF4 weights, double quantized: 14 segments) is gathered over
 * N GPUs straight into one of two slots, dequantized weight by weight, and multiplied with 8192 tokens, layer after layer,
 * with events alone between the streams.
 *
 *     two_slots [layers [tokens [ctas [gpus]]]] > result.json
 *
 * One process, a thread for each GPU, from `gpus` (1) on doubled up to all; NCCL_NVLS_ENABLE=0. ctas: thread blocks that
 * NCCL may use (0: its choice).
 *
 * Measured: copy and GEMM roofs of the same run; one gather (plain and registered slots); dequantization; a layer's
 * matmuls; the whole forward with resident weights, with prefetched gathers and with gathers in line; medians.
 * Cost of a layer: 112.5 MB gathered, 436 MB written and read by dequantization, 2 x 218.1 M x tokens FLOPs.
 */
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <nccl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_GPUS 8
#define REPEATS  15
#define LINEARS  7
#define SLOTS    2
#define ALIGN(x) (((x) + 255) & ~(size_t)255)

#define CHECK(call)                                                                                \
    do {                                                                                           \
        int status_ = (int)(call);                                                                 \
        if (status_) {                                                                             \
            fprintf(stderr, "%s:%d: %s gave %d\n", __FILE__, __LINE__, #call, status_);            \
            exit(71);                                                                              \
        }                                                                                          \
    } while (0)

static const int shape[LINEARS][2] = {{4096, 4096},  {1024, 4096},  {1024, 4096}, {4096, 4096},
                                      {14336, 4096}, {14336, 4096}, {4096, 14336}};

/* ---- dequantization: 8 codes a thread and turn, 16 bytes stored; bandwidth bound ---- */

#define THREADS 256
#define TURNS   4

__constant__ float level_table[16] = {-1,
                                      -0.6961928009986877f,
                                      -0.5250730514526367f,
                                      -0.39491748809814453f,
                                      -0.28444138169288635f,
                                      -0.18477343022823334f,
                                      -0.09105003625154495f,
                                      0,
                                      0.07958029955625534f,
                                      0.16093020141124725f,
                                      0.24611230194568634f,
                                      0.33791524171829224f,
                                      0.44070982933044434f,
                                      0.5626170039176941f,
                                      0.7229568362236023f,
                                      1};

__global__ void __launch_bounds__(THREADS)
    nf4_dequant(uint4 *__restrict__ out, const uint32_t *__restrict__ codes,
                const uint8_t *__restrict__ absmax, const float *__restrict__ nested,
                const float *__restrict__ map, float offset, int64_t words)
{
    __shared__ float level[16], nested_map[256];
    if (threadIdx.x < 16)
        level[threadIdx.x] = level_table[threadIdx.x];
    nested_map[threadIdx.x] = map[threadIdx.x];
    __syncthreads();
    int64_t first = (int64_t)blockIdx.x * THREADS * TURNS + threadIdx.x;
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        int64_t word = first + (int64_t)turn * THREADS;
        if (word >= words)
            return;
        uint32_t packed = codes[word];
        int64_t block = word >> 3; /* 64 codes are 8 words */
        float scale = __fadd_rn(__fmul_rn(nested_map[absmax[block]], nested[block >> 8]), offset);
        union {
            uint4 vector;
            __nv_bfloat162 pair[4];
        } value;
#pragma unroll
        for (int byte = 0; byte < 4; byte++) {
            uint32_t b = packed >> (8 * byte);
            value.pair[byte] =
                __floats2bfloat162_rn(level[(b >> 4) & 15] * scale, level[b & 15] * scale);
        }
        out[word] = value.vector;
    }
}

__global__ void fill(uint32_t *out, int64_t words, uint32_t seed)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < words;
         i += (int64_t)gridDim.x * blockDim.x) {
        uint32_t x = (uint32_t)i * 2654435761u + seed;
        x ^= x >> 15;
        x *= 2246822519u;
        out[i] = x ^ (x >> 13);
    }
}

__global__ void fill_bf16(__nv_bfloat16 *out, int64_t count, uint32_t seed)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * blockDim.x) {
        uint32_t x = (uint32_t)i * 2654435761u + seed;
        x ^= x >> 15;
        x *= 2246822519u;
        out[i] = __float2bfloat16((float)(x >> 8) * 0x1p-23f - 1.0f);
    }
}

/* ---- one GPU ---- */

static const char *shard_of[MAX_GPUS]; /* every GPU's shards, for the gathers by copy engine */

typedef struct {
    int rank, size, layers, tokens, ctas;
    ncclUniqueId id;
    pthread_barrier_t *barrier;
    double result[24]; /* by the RESULT_ names */
} job;

enum {
    COPY,
    GEMM_ROOF,
    GATHER,
    GATHER_REGISTERED,
    DEQUANT,
    LAYER_GEMM,
    RESIDENT,
    PREFETCHED,
    IN_LINE,
    REGISTERED,
    GATHER_COPIED,
    COPIED,
    RESULTS
};

typedef struct {
    job *j;
    bool by_copy; /* gather with copy engines instead of NCCL */
    ncclComm_t comm;
    cudaStream_t compute, transfer;
    cudaEvent_t ready[SLOTS], freed[SLOTS], begin, end;
    cublasLtHandle_t lt;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t w[LINEARS], x[LINEARS], y[LINEARS];
    cublasLtMatmulAlgo_t algorithm[LINEARS];
    void *workspace;
    char *arena, *slot[SLOTS], *plain[SLOTS], *registered[SLOTS];
    char *shard;                                      /* [layers] of shard_bytes */
    size_t segment[2 * LINEARS], offset[2 * LINEARS]; /* gathered bytes and place in a slot */
    size_t slot_bytes, shard_bytes;
    __nv_bfloat16 *weight, *activation[2];
    float *nested, *map;
} gpu;

#define WORKSPACE ((size_t)64 << 20)

static void lay_out(gpu *g)
{
    size_t at = 0;
    for (int i = 0; i < LINEARS; i++) {
        size_t count = (size_t)shape[i][0] * shape[i][1];
        g->segment[2 * i] = count / 2;
        g->segment[2 * i + 1] = count / 64;
    }
    for (int i = 0; i < 2 * LINEARS; i++) {
        g->offset[i] = at;
        at += ALIGN(g->segment[i]);
    }
    g->slot_bytes = at;
    g->shard_bytes = ALIGN(at / (size_t)g->j->size);
}

static void make_products(gpu *g)
{
    cublasOperation_t transposed = CUBLAS_OP_T;
    cublasLtMatmulPreference_t preference;
    size_t workspace = WORKSPACE;
    float one = 1, zero = 0;
    CHECK(cublasLtCreate(&g->lt));
    CHECK(cublasLtMatmulDescCreate(&g->product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    CHECK(cublasLtMatmulDescSetAttribute(g->product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                         sizeof transposed));
    CHECK(cublasLtMatmulPreferenceCreate(&preference));
    CHECK(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                               &workspace, sizeof workspace));
    for (int i = 0; i < LINEARS; i++) {
        int out = shape[i][0], in = shape[i][1], count = 0;
        cublasLtMatmulHeuristicResult_t candidate[8];
        float best = 1e30f;
        CHECK(cublasLtMatrixLayoutCreate(&g->w[i], CUDA_R_16BF, in, out, in));
        CHECK(cublasLtMatrixLayoutCreate(&g->x[i], CUDA_R_16BF, in, g->j->tokens, in));
        CHECK(cublasLtMatrixLayoutCreate(&g->y[i], CUDA_R_16BF, out, g->j->tokens, out));
        CHECK(cublasLtMatmulAlgoGetHeuristic(g->lt, g->product, g->w[i], g->x[i], g->y[i], g->y[i],
                                             preference, 8, candidate, &count));
        for (int c = 0; c < count; c++) {
            float ms;
            for (int turn = 0; turn < 3; turn++) {
                CHECK(cudaEventRecord(g->begin, g->compute));
                CHECK(cublasLtMatmul(g->lt, g->product, &one, g->weight, g->w[i], g->activation[0],
                                     g->x[i], &zero, g->activation[1], g->y[i], g->activation[1],
                                     g->y[i], &candidate[c].algo, g->workspace, WORKSPACE,
                                     g->compute));
                CHECK(cudaEventRecord(g->end, g->compute));
                CHECK(cudaEventSynchronize(g->end));
                CHECK(cudaEventElapsedTime(&ms, g->begin, g->end));
            }
            if (ms < best) {
                best = ms;
                g->algorithm[i] = candidate[c].algo;
            }
        }
    }
}

static void set_up(gpu *g)
{
    job *j = g->j;
    CHECK(cudaSetDevice(j->rank));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    if (j->ctas > 0)
        config.minCTAs = config.maxCTAs = j->ctas;
    CHECK(ncclCommInitRankConfig(&g->comm, j->size, j->id, j->rank, &config));
    int least, greatest;
    CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    CHECK(cudaStreamCreateWithFlags(&g->compute, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithPriority(&g->transfer, cudaStreamNonBlocking, greatest));
    for (int i = 0; i < SLOTS; i++) {
        CHECK(cudaEventCreateWithFlags(&g->ready[i], cudaEventDisableTiming));
        CHECK(cudaEventCreateWithFlags(&g->freed[i], cudaEventDisableTiming));
    }
    CHECK(cudaEventCreate(&g->begin));
    CHECK(cudaEventCreate(&g->end));
    lay_out(g);
    size_t widest = (size_t)j->tokens * 14336 * 2, weight = (size_t)14336 * 4096 * 2;
    size_t parts[] = {SLOTS * g->slot_bytes,
                      g->shard_bytes * (size_t)j->layers,
                      weight,
                      widest,
                      widest,
                      (size_t)14336 * 4096 / 64 / 256 * 4 + 4096,
                      1024,
                      WORKSPACE};
    size_t total = 0;
    for (int i = 0; i < 8; i++)
        total += ALIGN(parts[i]);
    CHECK(cudaMalloc((void **)&g->arena, total));
    char *place[8], *at = g->arena;
    for (int i = 0; i < 8; i++, at += ALIGN(parts[i - 1]))
        place[i] = at;
    for (int i = 0; i < SLOTS; i++) {
        g->plain[i] = place[0] + (size_t)i * g->slot_bytes;
        CHECK(ncclMemAlloc((void **)&g->registered[i], g->slot_bytes));
        void *handle;
        CHECK(ncclCommRegister(g->comm, g->registered[i], g->slot_bytes, &handle));
        g->slot[i] = g->plain[i];
    }
    g->shard = place[1];
    g->weight = (__nv_bfloat16 *)place[2];
    g->activation[0] = (__nv_bfloat16 *)place[3];
    g->activation[1] = (__nv_bfloat16 *)place[4];
    g->nested = (float *)place[5];
    g->map = (float *)place[6];
    g->workspace = place[7];
    fill<<<1024, 256, 0, g->compute>>>((uint32_t *)g->arena,
                                       (int64_t)((parts[0] + ALIGN(parts[1])) / 4), 7u + j->rank);
    for (int i = 0; i < 2; i++)
        fill_bf16<<<1024, 256, 0, g->compute>>>(g->activation[i], (int64_t)widest / 2, 11u + i);
    fill_bf16<<<1024, 256, 0, g->compute>>>(g->weight, (int64_t)weight / 2, 5u);
    float host[256 + 3584 + 1024];
    for (int i = 0; i < 256; i++)
        host[i] = (float)(i - 127) / 128;
    CHECK(cudaMemcpy(g->map, host, 1024, cudaMemcpyHostToDevice));
    for (int i = 0; i < 3584 + 1024; i++)
        host[i] = 0.002f;
    CHECK(cudaMemcpy(g->nested, host, parts[5] < sizeof host ? parts[5] : sizeof host,
                     cudaMemcpyHostToDevice));
    CHECK(cudaDeviceSynchronize());
    shard_of[j->rank] = g->shard;
    pthread_barrier_wait(j->barrier);
    for (int peer = 0; peer < j->size; peer++)
        if (peer != j->rank)
            CHECK(cudaDeviceEnablePeerAccess(peer, 0));
    make_products(g);
}

/* Frozen shards never change, so a peer's can be read at any time: no rendezvous and no kernel. */
static void gather_by_copy(gpu *g, int layer, int slot, cudaStream_t stream)
{
    for (int turn = 0; turn < g->j->size; turn++) {
        int peer = (g->j->rank + turn) % g->j->size;
        const char *shard = shard_of[peer] + (size_t)layer * g->shard_bytes;
        for (int i = 0; i < 2 * LINEARS; i++) {
            size_t bytes = g->segment[i] / (size_t)g->j->size;
            CHECK(cudaMemcpyAsync(g->slot[slot] + g->offset[i] + (size_t)peer * bytes, shard, bytes,
                                  cudaMemcpyDefault, stream));
            shard += bytes;
        }
    }
}

static void gather(gpu *g, int layer, int slot, cudaStream_t stream)
{
    if (g->by_copy) {
        gather_by_copy(g, layer, slot, stream);
        return;
    }
    const char *shard = g->shard + (size_t)layer * g->shard_bytes;
    size_t at = 0, size = (size_t)g->j->size;
    CHECK(ncclGroupStart());
    for (int i = 0; i < 2 * LINEARS; i++) {
        size_t bytes = g->segment[i] / size;
        CHECK(ncclAllGather(shard + at, g->slot[slot] + g->offset[i], bytes, ncclUint8, g->comm,
                            stream));
        at += bytes;
    }
    CHECK(ncclGroupEnd());
}

static void dequantize(gpu *g, const char *unit, int i)
{
    int64_t words = (int64_t)shape[i][0] * shape[i][1] / 8;
    int blocks = (int)((words + THREADS * TURNS - 1) / (THREADS * TURNS));
    nf4_dequant<<<blocks, THREADS, 0, g->compute>>>(
        (uint4 *)g->weight, (const uint32_t *)(unit + g->offset[2 * i]),
        (const uint8_t *)unit + g->offset[2 * i + 1], g->nested, g->map, 0.01f, words);
    CHECK(cudaGetLastError());
}

static void multiply(gpu *g, int i)
{
    float one = 1, zero = 0;
    CHECK(cublasLtMatmul(g->lt, g->product, &one, g->weight, g->w[i], g->activation[0], g->x[i],
                         &zero, g->activation[1], g->y[i], g->activation[1], g->y[i],
                         &g->algorithm[i], g->workspace, WORKSPACE, g->compute));
}

static void layer(gpu *g, int slot)
{
    for (int i = 0; i < LINEARS; i++) {
        dequantize(g, g->slot[slot], i);
        multiply(g, i);
    }
}

/* ---- what is measured ---- */

static void copy_once(gpu *g)
{
    size_t bytes = (size_t)g->j->tokens * 14336 * 2;
    CHECK(cudaMemcpyAsync(g->activation[1], g->activation[0], bytes, cudaMemcpyDeviceToDevice,
                          g->compute));
}

static void gather_once(gpu *g)
{
    gather(g, 0, 0, g->compute);
}

static void dequantize_once(gpu *g)
{
    for (int i = 0; i < LINEARS; i++)
        dequantize(g, g->slot[0], i);
}

static void multiply_once(gpu *g)
{
    for (int i = 0; i < LINEARS; i++)
        multiply(g, i);
}

static void run_resident(gpu *g)
{
    for (int l = 0; l < g->j->layers; l++)
        layer(g, l % SLOTS);
}

static void run_in_line(gpu *g)
{
    for (int l = 0; l < g->j->layers; l++) {
        gather(g, l, l % SLOTS, g->compute);
        layer(g, l % SLOTS);
    }
}

/* The limiter: a gather waits until the slot was freed, a layer until it was filled; nothing else. */
static void run_prefetched(gpu *g)
{
    for (int i = 0; i < SLOTS; i++)
        CHECK(cudaEventRecord(g->freed[i], g->compute));
    for (int l = 0; l <= g->j->layers; l++) {
        if (l < g->j->layers) {
            CHECK(cudaStreamWaitEvent(g->transfer, g->freed[l % SLOTS], 0));
            gather(g, l, l % SLOTS, g->transfer);
            CHECK(cudaEventRecord(g->ready[l % SLOTS], g->transfer));
        }
        if (l == 0)
            continue;
        CHECK(cudaStreamWaitEvent(g->compute, g->ready[(l - 1) % SLOTS], 0));
        layer(g, (l - 1) % SLOTS);
        CHECK(cudaEventRecord(g->freed[(l - 1) % SLOTS], g->compute));
    }
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median milliseconds of one call. */
static double median(gpu *g, void (*once)(gpu *))
{
    double ms[REPEATS];
    for (int i = -3; i < REPEATS; i++) {
        float time;
        CHECK(cudaDeviceSynchronize());
        pthread_barrier_wait(g->j->barrier);
        CHECK(cudaEventRecord(g->begin, g->compute));
        once(g);
        CHECK(cudaEventRecord(g->end, g->compute));
        CHECK(cudaEventSynchronize(g->end));
        CHECK(cudaEventElapsedTime(&time, g->begin, g->end));
        if (i >= 0)
            ms[i] = time;
    }
    qsort(ms, REPEATS, sizeof *ms, compare);
    return ms[REPEATS / 2];
}

static void use_slots(gpu *g, char **slots)
{
    for (int i = 0; i < SLOTS; i++)
        g->slot[i] = slots[i];
}

static void *run(void *argument)
{
    gpu g = {};
    g.j = (job *)argument;
    double *r = g.j->result;
    set_up(&g);
    r[COPY] = median(&g, copy_once);
    r[LAYER_GEMM] = median(&g, multiply_once);
    r[DEQUANT] = median(&g, dequantize_once);
    r[RESIDENT] = median(&g, run_resident);
    r[GATHER] = median(&g, gather_once);
    r[IN_LINE] = median(&g, run_in_line);
    r[PREFETCHED] = median(&g, run_prefetched);
    use_slots(&g, g.registered);
    r[GATHER_REGISTERED] = median(&g, gather_once);
    r[REGISTERED] = median(&g, run_prefetched);
    use_slots(&g, g.plain);
    g.by_copy = true;
    r[GATHER_COPIED] = median(&g, gather_once);
    r[COPIED] = median(&g, run_prefetched);
    r[GEMM_ROOF] = median(&g, multiply_once); /* again, warm: the card throttles */
    CHECK(ncclCommDestroy(g.comm));
    return NULL;
}

static void print(const job *j, int gpus, int first)
{
    const double *r = j->result;
    double elements = 0, slot = 0;
    for (int i = 0; i < LINEARS; i++)
        elements += (double)shape[i][0] * shape[i][1];
    slot = elements / 2 + elements / 64;
    double flops = 2 * elements * j->tokens;
    printf("%s\n{\"gpus\":%d,\"nccl_ctas\":%d,\"layers\":%d,\"tokens\":%d,\"copy_gb_s\":%.0f,"
           "\"layer_gemm_ms\":%.3f,\"layer_gemm_tflop_s\":%.0f,\"layer_gemm_warm_ms\":%.3f,"
           "\"dequant_ms\":%.3f,\"dequant_gb_s\":%.0f,\"dequant_of_copy\":%.3f,"
           "\"gather_ms\":%.3f,\"gather_gb_s\":%.0f,\"gather_registered_ms\":%.3f,"
           "\"resident_ms\":%.2f,\"in_line_ms\":%.2f,\"prefetched_ms\":%.2f,"
           "\"prefetched_registered_ms\":%.2f,\"gather_copied_ms\":%.3f,"
           "\"prefetched_copied_ms\":%.2f}",
           first ? "" : ",", gpus, j->ctas, j->layers, j->tokens,
           2.0 * j->tokens * 14336 * 2 / r[COPY] * 1e-6, r[LAYER_GEMM],
           flops / r[LAYER_GEMM] * 1e-9, r[GEMM_ROOF], r[DEQUANT],
           (slot + 2 * elements) / r[DEQUANT] * 1e-6,
           (slot + 2 * elements) / r[DEQUANT] / (2.0 * j->tokens * 14336 * 2 / r[COPY]), r[GATHER],
           slot / r[GATHER] * 1e-6, r[GATHER_REGISTERED], r[RESIDENT], r[IN_LINE], r[PREFETCHED],
           r[REGISTERED], r[GATHER_COPIED], r[COPIED]);
}

int main(int argc, char **argv)
{
    int devices, layers = argc > 1 ? atoi(argv[1]) : 16, tokens = argc > 2 ? atoi(argv[2]) : 8192;
    int ctas = argc > 3 ? atoi(argv[3]) : 0, least = argc > 4 ? atoi(argv[4]) : 1;
    static job jobs[MAX_GPUS];
    CHECK(cudaGetDeviceCount(&devices));
    cudaDeviceProp properties;
    int driver, runtime, nccl;
    CHECK(cudaGetDeviceProperties(&properties, 0));
    CHECK(cudaDriverGetVersion(&driver));
    CHECK(cudaRuntimeGetVersion(&runtime));
    CHECK(ncclGetVersion(&nccl));
    printf("{\"bench\":\"two_slots\",\"device\":\"%s\",\"driver\":%d,\"cuda\":%d,\"nccl\":%d,"
           "\"cublaslt\":%zu,\"runs\":[",
           properties.name, driver, runtime, nccl, cublasLtGetVersion());
    for (int size = least, first = 1; size <= devices && size <= MAX_GPUS; size *= 2, first = 0) {
        pthread_t thread[MAX_GPUS];
        pthread_barrier_t barrier;
        ncclUniqueId id;
        pthread_barrier_init(&barrier, NULL, (unsigned)size);
        CHECK(ncclGetUniqueId(&id));
        for (int rank = 0; rank < size; rank++) {
            jobs[rank] = (job){rank, size, layers, tokens, ctas, id, &barrier, {0}};
            pthread_create(&thread[rank], NULL, run, &jobs[rank]);
        }
        for (int rank = 0; rank < size; rank++)
            pthread_join(thread[rank], NULL);
        pthread_barrier_destroy(&barrier);
        print(&jobs[0], size, first);
    }
    printf("]}\n");
    return 0;
}
