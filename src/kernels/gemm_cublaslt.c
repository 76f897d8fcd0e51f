/*
 * gemm_cublaslt.c: contract gemm.h on a GPU, by cuBLASLt; 32-bit accumulation, no TF32.
 *
 * cuBLASLt is column-major: a row-major C = op(A) op(B) is its C^T = op(B)^T op(A)^T, so B goes
 * where it wants A, and nothing is transposed.
 *
 * Choice   Asking the heuristic for an algorithm costs tens of microseconds, so a table keeps one for
 *          each shape. The number of tokens varies between micro-batches: it is rounded up to a bucket,
 *          and the algorithm is the one for the bucket's upper end. It depends on the bucket alone and
 *          never changes once used: same job, same bits. tsr_blas_tune times candidates instead of
 *          taking the heuristic's first.
 * Bits     Split sums go through the workspace in a fixed order; a bf16 C is rounded once.
 * Memory   One workspace, for one stream at a time: the compute stream multiplies. A change of stream
 *          waits for the device. A call allocates nothing; descriptors live on the stack.
 * Threads  One at a time.
 */
#include "kernels/kernels_cuda.h"

#include <cublasLt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORKSPACE_BYTES (32u << 20) /* what NVIDIA recommends on sm_90 */
#define TABLE_COUNT     4096        /* choices; a power of two */
#define TABLE_MOST      3584        /* beyond, the heuristic is asked at every call */
#define CANDIDATES      8
#define ROUNDS          7      /* timed, after one to warm up */
#define MOST_SETS       16     /* of operands that a timing rotates through */
#define ROUND_SECONDS   100e-6 /* of one measurement: short matmuls are repeated */
#define MOST_REPEATS    20

/* A shape, as it is or of its bucket. No padding: compared as bytes. */
typedef struct {
    int32_t m, n, k, lda, ldb, ldc;
    uint32_t flags;
} matmul_key;

/* flags: TRANS_A, TRANS_B, ADD; from bit 4 dtype, c_dtype, log2 of the alignment of A, B, C. */
#define TRANS_A 1u
#define TRANS_B 2u
#define ADD     4u

typedef struct {
    matmul_key key;
    cublasLtMatmulAlgo_t algo;
    bool used, tuned;
} matmul_choice;

struct tsr_blas {
    cublasLtHandle_t handle;
    void *workspace;
    tsr_stream *last;                          /* stream that has the workspace */
    cublasLtMatmulDescOpaque_t description[4]; /* by TRANS_A and TRANS_B */
    char made_for[384];                        /* device and library, the head of an export */
    uint64_t l2_bytes;
    int used;
    matmul_choice choice[TABLE_COUNT];
};

/* ---- open and close ---- */

static tsr_status lt_status(cublasStatus_t status, const char *what)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return TSR_OK;
    return tsr_fail(status == CUBLAS_STATUS_ALLOC_FAILED ? TSR_ENOMEM : TSR_EDEVICE, "%s: %s: %s",
                    what, cublasLtGetStatusName(status), cublasLtGetStatusString(status));
}

static tsr_status describe(tsr_blas *blas)
{
    for (unsigned i = 0; i < 4; i++) {
        cublasLtMatmulDesc_t d = &blas->description[i];
        int32_t op_a = i & TRANS_B ? CUBLAS_OP_T : CUBLAS_OP_N;
        int32_t op_b = i & TRANS_A ? CUBLAS_OP_T : CUBLAS_OP_N;
        cublasStatus_t status = cublasLtMatmulDescInit(d, CUBLAS_COMPUTE_32F, CUDA_R_32F);
        if (status == CUBLAS_STATUS_SUCCESS)
            status = cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_TRANSA, &op_a, 4);
        if (status == CUBLAS_STATUS_SUCCESS)
            status = cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_TRANSB, &op_b, 4);
        TSR_TRY(lt_status(status, "cublasLtMatmulDescInit"));
    }
    return TSR_OK;
}

static tsr_status open_blas(tsr_blas *blas, tsr_device *device)
{
    const tsr_cuda_properties *p = tsr_device_cuda_properties(device);
    struct cudaDeviceProp properties;
    TSR_TRY(tsr_cuda_status(cudaSetDevice(p->index), "cudaSetDevice"));
    TSR_TRY(
        tsr_cuda_status(cudaGetDeviceProperties(&properties, p->index), "cudaGetDeviceProperties"));
    TSR_TRY(lt_status(cublasLtCreate(&blas->handle), "cublasLtCreate"));
    TSR_TRY(tsr_cuda_status(cudaMalloc(&blas->workspace, WORKSPACE_BYTES),
                            "the matmuls' workspace of 32 MiB"));
    snprintf(blas->made_for, sizeof blas->made_for,
             "tessera matmuls 1, %s, sm_%d%d, %d, cuBLASLt %zu", properties.name, p->major,
             p->minor, p->sm_count, cublasLtGetVersion());
    blas->l2_bytes = p->l2_bytes;
    return describe(blas);
}

tsr_status tsr_blas_open(tsr_blas **out, tsr_device *device)
{
    tsr_blas *blas = calloc(1, sizeof *blas);
    if (!blas)
        return tsr_fail(TSR_ENOMEM, "out of memory for cuBLASLt's table");
    tsr_status status = open_blas(blas, device);
    if (status < 0) {
        tsr_blas_close(blas);
        return status;
    }
    *out = blas;
    return TSR_OK;
}

void tsr_blas_close(tsr_blas *blas)
{
    if (!blas)
        return;
    if (blas->handle)
        cublasLtDestroy(blas->handle);
    cudaFree(blas->workspace);
    free(blas);
}

/* ---- shapes ---- */

/* log2 of what the address is aligned to: 8 at a buffer's beginning, else at most 4, which is as much
 * as a kernel asks for. */
static uint32_t alignment_log(const void *p)
{
    uint32_t log = 0;
    if ((uintptr_t)p % TSR_ALIGNMENT == 0)
        return 8;
    while (log < 4 && (uintptr_t)p % (2u << log) == 0)
        log++;
    return log;
}

static matmul_key exact_key(const tsr_gemm_args *args)
{
    int64_t lda = args->lda ? args->lda : args->trans_a ? args->m : args->k;
    int64_t ldb = args->ldb ? args->ldb : args->trans_b ? args->k : args->n;
    int64_t ldc = args->ldc ? args->ldc : args->n;
    return (matmul_key){.m = (int32_t)args->m,
                        .n = (int32_t)args->n,
                        .k = (int32_t)args->k,
                        .lda = (int32_t)lda,
                        .ldb = (int32_t)ldb,
                        .ldc = (int32_t)ldc,
                        .flags = (args->trans_a ? TRANS_A : 0) | (args->trans_b ? TRANS_B : 0) |
                                 (args->beta != 0 ? ADD : 0) | (uint32_t)args->dtype << 4 |
                                 (uint32_t)args->c_dtype << 8 | alignment_log(args->a) << 12 |
                                 alignment_log(args->b) << 16 | alignment_log(args->c) << 20};
}

static tsr_dtype key_dtype(const matmul_key *key)
{
    return (tsr_dtype)(key->flags >> 4 & 15);
}

static tsr_dtype key_c_dtype(const matmul_key *key)
{
    return (tsr_dtype)(key->flags >> 8 & 15);
}

/* Up to 64 itself; then up to a multiple of an eighth of the power of two below: at most 1/8 more. */
static int32_t bucket_end(int32_t count)
{
    int64_t step = 8;
    if (count <= 64)
        return count;
    while (step * 16 <= count)
        step *= 2;
    int64_t end = (count + step - 1) / step * step;
    return end < INT32_MAX ? (int32_t)end : INT32_MAX;
}

/* The tokens are rows of A and C, or, in the gradient of a weight, of A and B. Whichever they are,
 * they lie a leading dimension apart, so that their number changes no alignment. */
static matmul_key bucket_of(matmul_key key)
{
    if (!(key.flags & TRANS_A))
        key.m = bucket_end(key.m);
    else if (!(key.flags & TRANS_B))
        key.k = bucket_end(key.k);
    return key;
}

typedef struct {
    cublasLtMatrixLayoutOpaque_t a, b, c;
} matmul_layouts;

/* A row of ours is a column of theirs. */
static tsr_status lay_out_one(cublasLtMatrixLayout_t out, tsr_dtype dtype, int32_t rows,
                              int32_t columns, int32_t ld)
{
    cudaDataType type = dtype == TSR_F32    ? CUDA_R_32F
                        : dtype == TSR_BF16 ? CUDA_R_16BF
                                            : CUDA_R_16F;
    return lt_status(cublasLtMatrixLayoutInit(out, type, (uint64_t)columns, (uint64_t)rows, ld),
                     "cublasLtMatrixLayoutInit");
}

static tsr_status lay_out(matmul_layouts *out, const matmul_key *key)
{
    bool trans_a = key->flags & TRANS_A, trans_b = key->flags & TRANS_B;
    TSR_TRY(lay_out_one(&out->a, key_dtype(key), trans_a ? key->k : key->m,
                        trans_a ? key->m : key->k, key->lda));
    TSR_TRY(lay_out_one(&out->b, key_dtype(key), trans_b ? key->n : key->k,
                        trans_b ? key->k : key->n, key->ldb));
    return lay_out_one(&out->c, key_c_dtype(key), key->m, key->n, key->ldc);
}

/* ---- the table ---- */

/* The place of a shape, used or free; NULL: not in a table that is full. */
static matmul_choice *find(tsr_blas *blas, const matmul_key *key)
{
    const uint8_t *bytes = (const uint8_t *)key;
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (size_t i = 0; i < sizeof *key; i++)
        hash = (hash ^ bytes[i]) * 16777619u;
    for (uint32_t i = 0; i < TABLE_COUNT; i++) {
        matmul_choice *choice = &blas->choice[(hash + i) % TABLE_COUNT];
        if (choice->used && memcmp(&choice->key, key, sizeof *key) == 0)
            return choice;
        if (!choice->used)
            return blas->used < TABLE_MOST ? choice : NULL;
    }
    return NULL;
}

static void keep(tsr_blas *blas, const matmul_key *key, const cublasLtMatmulAlgo_t *algo,
                 bool tuned)
{
    matmul_choice *choice = find(blas, key);
    if (!choice)
        return;
    blas->used += !choice->used;
    *choice = (matmul_choice){.key = *key, .algo = *algo, .used = true, .tuned = tuned};
}

static tsr_status prefer(cublasLtMatmulPreference_t out, const matmul_key *key)
{
    uint64_t workspace = WORKSPACE_BYTES;
    /* A sum in bf16 parts would be rounded more than once. */
    uint32_t reductions = key_c_dtype(key) == TSR_F32 ? CUBLASLT_REDUCTION_SCHEME_MASK
                                                      : CUBLASLT_REDUCTION_SCHEME_NONE;
    uint32_t a = 1u << (key->flags >> 16 & 15), b = 1u << (key->flags >> 12 & 15);
    uint32_t c = 1u << (key->flags >> 20 & 15);
    const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        const void *value;
        size_t bytes;
    } wish[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &a, sizeof a},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &b, sizeof b},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &c, sizeof c},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &c, sizeof c},
    };
    TSR_TRY(lt_status(cublasLtMatmulPreferenceInit(out), "cublasLtMatmulPreferenceInit"));
    for (size_t i = 0; i < sizeof wish / sizeof *wish; i++)
        TSR_TRY(lt_status(cublasLtMatmulPreferenceSetAttribute(out, wish[i].attribute,
                                                               wish[i].value, wish[i].bytes),
                          "cublasLtMatmulPreferenceSetAttribute"));
    return TSR_OK;
}

/* The heuristic's algorithms for a shape, the best first. At least one, or TSR_EUNSUPPORTED. */
static tsr_status ask(cublasLtMatmulAlgo_t *out, int *count, tsr_blas *blas, const matmul_key *key,
                      int most)
{
    matmul_layouts l;
    cublasLtMatmulPreferenceOpaque_t preference;
    cublasLtMatmulHeuristicResult_t result[CANDIDATES];
    int found = 0;
    *count = 0;
    TSR_TRY(lay_out(&l, key));
    TSR_TRY(prefer(&preference, key));
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        blas->handle, &blas->description[key->flags & (TRANS_A | TRANS_B)], &l.b, &l.a, &l.c, &l.c,
        &preference, most, result, &found);
    for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < found; i++)
        if (result[i].state == CUBLAS_STATUS_SUCCESS && result[i].workspaceSize <= WORKSPACE_BYTES)
            out[(*count)++] = result[i].algo;
    if (*count > 0)
        return TSR_OK;
    return tsr_fail(
        TSR_EUNSUPPORTED,
        "gemm: cuBLASLt has no algorithm for [%d, %d] by %d, leading dimensions %d, %d, "
        "%d, of %s into %s, flags %x: %s",
        key->m, key->n, key->k, key->lda, key->ldb, key->ldc, tsr_dtype_name(key_dtype(key)),
        tsr_dtype_name(key_c_dtype(key)), key->flags, cublasLtGetStatusName(status));
}

/* ---- the op ---- */

static cublasStatus_t multiply(tsr_blas *blas, const matmul_key *key, const tsr_gemm_args *args,
                               const cublasLtMatmulAlgo_t *algo, cudaStream_t stream)
{
    matmul_layouts l;
    if (lay_out(&l, key) < 0)
        return CUBLAS_STATUS_INTERNAL_ERROR;
    return cublasLtMatmul(blas->handle, &blas->description[key->flags & (TRANS_A | TRANS_B)],
                          &args->alpha, args->b, &l.b, args->a, &l.a, &args->beta, args->c, &l.c,
                          args->c, &l.c, algo, blas->workspace, WORKSPACE_BYTES, stream);
}

static tsr_status own_workspace(tsr_blas *blas, tsr_stream *stream)
{
    if (blas->last == stream)
        return TSR_OK;
    if (blas->last)
        TSR_TRY(tsr_cuda_status(cudaDeviceSynchronize(), "gemm"));
    blas->last = stream;
    return TSR_OK;
}

static bool refused(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
           status == CUBLAS_STATUS_ARCH_MISMATCH;
}

tsr_status tsr_gemm_cuda(tsr_stream *stream, const tsr_gemm_args *args)
{
    TSR_TRY(tsr_gemm_check(args));
    if (args->m == 0 || args->n == 0)
        return TSR_OK;
    if (args->k == 0)
        return tsr_gemm_scale(stream, args);
    tsr_blas *blas = tsr_kernels_kept(stream)->blas;
    cudaStream_t cuda = tsr_stream_cuda(stream);
    TSR_TRY(own_workspace(blas, stream));
    matmul_key key = exact_key(args), bucket = bucket_of(key);
    cublasLtMatmulAlgo_t algo;
    int count;
    const matmul_choice *choice = find(blas, &bucket);
    if (choice && choice->used) {
        algo = choice->algo;
    } else {
        TSR_TRY(ask(&algo, &count, blas, &bucket, 1));
        keep(blas, &bucket, &algo, false);
    }
    cublasStatus_t status = multiply(blas, &key, args, &algo, cuda);
    if (refused(status)) { /* what fits the bucket's end does not fit this number of tokens */
        TSR_TRY(ask(&algo, &count, blas, &key, 1));
        status = multiply(blas, &key, args, &algo, cuda);
    }
    return lt_status(status, "gemm: cublasLtMatmul");
}

/* ---- tuning ---- */

typedef struct {
    uint64_t a, b, c, all; /* bytes */
} matmul_sizes;

static uint64_t padded(int64_t rows, int32_t ld, tsr_dtype dtype)
{
    uint64_t bytes = (uint64_t)rows * (uint64_t)ld * tsr_dtype_bytes(dtype);
    return (bytes + TSR_ALIGNMENT - 1) / TSR_ALIGNMENT * TSR_ALIGNMENT;
}

static matmul_sizes sizes_of(const matmul_key *key)
{
    matmul_sizes s = {.a = padded(key->flags & TRANS_A ? key->k : key->m, key->lda, key_dtype(key)),
                      .b = padded(key->flags & TRANS_B ? key->n : key->k, key->ldb, key_dtype(key)),
                      .c = padded(key->m, key->ldc, key_c_dtype(key))};
    s.all = s.a + s.b + s.c;
    return s;
}

/* Where a shape is timed: for its bucket's end, with aligned operands. */
static matmul_key tuned_key(const tsr_gemm_args *shape)
{
    tsr_gemm_args args = *shape;
    args.a = args.b = args.c = NULL;
    return bucket_of(exact_key(&args));
}

uint64_t tsr_blas_tune_bytes(const tsr_gemm_args *shape, int count)
{
    uint64_t most = 0;
    for (int i = 0; i < count; i++) {
        matmul_key key = tuned_key(&shape[i]);
        uint64_t bytes = sizes_of(&key).all;
        most = bytes > most ? bytes : most;
    }
    return most;
}

typedef struct {
    tsr_blas *blas;
    tsr_stream *stream;
    char *scratch;
    matmul_key key;
    tsr_gemm_args args;
    matmul_sizes sizes;
    int sets, repeats, next;
    cudaEvent_t event[CANDIDATES + 1];
    cublasLtMatmulAlgo_t algo[CANDIDATES];
    float time[CANDIDATES][ROUNDS]; /* milliseconds */
    int count;
} tuner;

/* As many operands as keep the L2 cache from holding what the next repetition reads. */
static tsr_status fill_operands(tuner *t, uint64_t scratch_bytes)
{
    uint64_t room = scratch_bytes / t->sizes.all, wanted = 2 * t->blas->l2_bytes / t->sizes.all + 2;
    uint64_t sets = wanted < MOST_SETS ? wanted : MOST_SETS;
    t->sets = (int)(sets < room ? sets : room);
    t->next = 0;
    for (int i = 0; i < t->sets; i++) {
        char *a = t->scratch + (uint64_t)i * t->sizes.all, *c = a + t->sizes.a + t->sizes.b;
        uint32_t bytes = tsr_dtype_bytes(t->args.dtype), c_bytes = tsr_dtype_bytes(t->args.c_dtype);
        TSR_TRY(tsr_gemm_randomize(t->stream, a, (int64_t)((t->sizes.a + t->sizes.b) / bytes),
                                   t->args.dtype, (uint32_t)i));
        TSR_TRY(tsr_gemm_randomize(t->stream, c, (int64_t)(t->sizes.c / c_bytes), t->args.c_dtype,
                                   (uint32_t)i));
    }
    double flops = 2.0 * t->key.m * t->key.n * t->key.k;
    double seconds = flops / 5e14 + (double)t->sizes.all / 3e12 + 2e-6;
    t->repeats = (int)fmin(MOST_REPEATS, ceil(ROUND_SECONDS / seconds));
    return TSR_OK;
}

/* Every candidate once: they share what the card's clock does. One that does not run is out. */
static tsr_status time_round(tuner *t, int round)
{
    cudaStream_t stream = tsr_stream_cuda(t->stream);
    bool failed[CANDIDATES] = {false};
    for (int i = 0; i < t->count; i++) {
        TSR_TRY(tsr_cuda_status(cudaEventRecord(t->event[i], stream), "gemm"));
        for (int j = 0; j < t->repeats && !failed[i]; j++) {
            char *a = t->scratch + (uint64_t)t->next * t->sizes.all;
            t->next = (t->next + 1) % t->sets;
            t->args.a = a;
            t->args.b = a + t->sizes.a;
            t->args.c = a + t->sizes.a + t->sizes.b;
            failed[i] =
                multiply(t->blas, &t->key, &t->args, &t->algo[i], stream) != CUBLAS_STATUS_SUCCESS;
        }
    }
    TSR_TRY(tsr_cuda_status(cudaEventRecord(t->event[t->count], stream), "gemm"));
    TSR_TRY(tsr_cuda_status(cudaEventSynchronize(t->event[t->count]), "gemm"));
    for (int i = 0; i < t->count && round >= 0; i++) {
        t->time[i][round] = INFINITY;
        if (!failed[i])
            TSR_TRY(tsr_cuda_status(
                cudaEventElapsedTime(&t->time[i][round], t->event[i], t->event[i + 1]), "gemm"));
    }
    return TSR_OK;
}

static int compare(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static tsr_status tune_shape(tuner *t, const tsr_gemm_args *shape, uint64_t scratch_bytes)
{
    int best = 0;
    t->args = *shape;
    t->key = tuned_key(shape);
    t->sizes = sizes_of(&t->key);
    const matmul_choice *choice = find(t->blas, &t->key);
    if (choice && choice->tuned)
        return TSR_OK;
    if (t->sizes.all > scratch_bytes)
        return tsr_fail(TSR_EINVAL, "gemm: %" PRIu64 " bytes to time a matmul of %" PRIu64,
                        scratch_bytes, t->sizes.all);
    TSR_TRY(fill_operands(t, scratch_bytes));
    TSR_TRY(ask(t->algo, &t->count, t->blas, &t->key, CANDIDATES));
    for (int round = -1; round < ROUNDS; round++)
        TSR_TRY(time_round(t, round));
    for (int i = 0; i < t->count; i++) {
        qsort(t->time[i], ROUNDS, sizeof(float), compare);
        if (t->time[i][ROUNDS / 2] < t->time[best][ROUNDS / 2])
            best = i;
    }
    keep(t->blas, &t->key, &t->algo[best], true);
    return TSR_OK;
}

tsr_status tsr_blas_tune(tsr_blas *blas, tsr_stream *stream, const tsr_gemm_args *shape, int count,
                         void *scratch, uint64_t scratch_bytes)
{
    tuner t = {.blas = blas, .stream = stream, .scratch = scratch};
    tsr_stream_cuda(stream); /* its device */
    tsr_status status = own_workspace(blas, stream);
    for (int i = 0; i <= CANDIDATES && status == TSR_OK; i++)
        status = tsr_cuda_status(cudaEventCreate(&t.event[i]), "cudaEventCreate");
    for (int i = 0; i < count && status == TSR_OK; i++) {
        tsr_gemm_args args = shape[i];
        args.a = args.b = args.c = scratch;
        status = tsr_gemm_check(&args);
        if (status == TSR_OK && args.m > 0 && args.n > 0 && args.k > 0)
            status = tune_shape(&t, &args, scratch_bytes);
    }
    for (int i = 0; i <= CANDIDATES; i++)
        if (t.event[i])
            cudaEventDestroy(t.event[i]);
    return status;
}

/* ---- choices as text: a head line, then one line a shape, all in hex ---- */

#define WORDS (sizeof(cublasLtMatmulAlgo_t) / sizeof(uint64_t))

uint64_t tsr_blas_export(const tsr_blas *blas, char *text, uint64_t bytes)
{
    char line[320];
    uint64_t at = 0;
    for (int i = -1; i < TABLE_COUNT; i++) {
        const matmul_choice *choice = i < 0 ? NULL : &blas->choice[i];
        if (choice && !choice->tuned)
            continue;
        int length = 0;
        if (choice) {
            const matmul_key *k = &choice->key;
            length = snprintf(line, sizeof line, "%x %x %x %x %x %x %x", (unsigned)k->m,
                              (unsigned)k->n, (unsigned)k->k, (unsigned)k->lda, (unsigned)k->ldb,
                              (unsigned)k->ldc, k->flags);
            for (size_t w = 0; w < WORDS; w++)
                length += snprintf(line + length, sizeof line - (size_t)length, " %" PRIx64,
                                   choice->algo.data[w]);
            length += snprintf(line + length, sizeof line - (size_t)length, "\n");
        } else {
            length = snprintf(line, sizeof line, "%.300s\n", blas->made_for);
        }
        if (at + (uint64_t)length < bytes)
            memcpy(text + at, line, (size_t)length);
        at += (uint64_t)length;
    }
    if (at < bytes)
        text[at] = 0;
    return at + 1;
}

/* One line; false: not a choice. *end is after it. */
static bool parse_choice(matmul_choice *out, const char *line, const char **end)
{
    uint64_t value[7 + WORDS];
    for (size_t i = 0; i < 7 + WORDS; i++) {
        char *stop;
        value[i] = strtoull(line, &stop, 16);
        if (stop == line || *stop != (i + 1 < 7 + WORDS ? ' ' : '\n') ||
            (i < 6 && (value[i] == 0 || value[i] > INT32_MAX)) || (i == 6 && value[i] > UINT32_MAX))
            return false;
        line = stop + 1;
    }
    out->key =
        (matmul_key){(int32_t)value[0], (int32_t)value[1], (int32_t)value[2], (int32_t)value[3],
                     (int32_t)value[4], (int32_t)value[5], (uint32_t)value[6]};
    memcpy(out->algo.data, value + 7, sizeof out->algo.data);
    *end = line;
    return true;
}

static bool runs(tsr_blas *blas, const matmul_choice *choice)
{
    matmul_layouts l;
    cublasLtMatmulHeuristicResult_t result;
    const matmul_key *key = &choice->key;
    return lay_out(&l, key) == TSR_OK &&
           cublasLtMatmulAlgoCheck(blas->handle,
                                   &blas->description[key->flags & (TRANS_A | TRANS_B)], &l.b, &l.a,
                                   &l.c, &l.c, &choice->algo, &result) == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= WORKSPACE_BYTES;
}

tsr_status tsr_blas_import(tsr_blas *blas, const char *text)
{
    char head[sizeof blas->made_for];
    int length = snprintf(head, sizeof head, "%.300s\n", blas->made_for);
    if (strncmp(text, head, (size_t)length) != 0)
        return tsr_fail(TSR_EDATA, "choices of matmuls are for \"%.*s\", this is \"%s\"",
                        (int)(strcspn(text, "\n") < 300 ? strcspn(text, "\n") : 300), text,
                        blas->made_for);
    for (int pass = 0; pass < 2; pass++) {
        const char *line = text + length;
        for (int number = 2; *line; number++) {
            matmul_choice choice;
            if (!parse_choice(&choice, line, &line) || !runs(blas, &choice))
                return tsr_fail(TSR_EDATA, "choices of matmuls: line %d is wrong", number);
            if (pass == 1)
                keep(blas, &choice.key, &choice.algo, true);
        }
    }
    return TSR_OK;
}
