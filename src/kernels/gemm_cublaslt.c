/*
 * gemm_cublaslt.c: contract gemm.h on a GPU, by cuBLASLt; 32-bit accumulation, no TF32.
 *
 * cuBLASLt is column-major: a row-major C = op(A) op(B) is its C^T = op(B)^T op(A)^T, so B goes
 * where it wants A, and nothing is transposed.
 *
 * Choice   Asking the heuristic for an algorithm costs tens of microseconds, so a table keeps one for
 *          each shape. The number of tokens varies between micro-batches: it is rounded up to a bucket,
 *          and the algorithm is the one for the bucket's upper end. It depends on the bucket alone and
 *          never changes once used: same job, same bits. gemm_tune.c times candidates at start-up
 *          instead of taking the heuristic's first.
 * Bits     Split sums are fp32 parts in the workspace, added in a fixed order. A 16-bit C is rounded
 *          once, but kernels of cuBLASLt's round alpha AB to C's dtype before they add beta C, and
 *          nothing that it tells of an algorithm says which do: half an ulp of alpha AB more, as
 *          gemm.h allows.
 * Memory   One workspace, for one stream at a time: the compute stream multiplies. A change of stream
 *          waits for the device. A call allocates nothing; descriptors live on the stack.
 * Threads  One at a time.
 */
#include "kernels/gemm_cublaslt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORKSPACE_BYTES (32u << 20) /* what NVIDIA recommends on sm_90 */
#define TABLE_MOST      3584        /* choices; beyond, the heuristic is asked at every call */

/* ---- open and close ---- */

static tsr_status lt_status(cublasStatus_t status, const char *what)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return TSR_OK;
    return tsr_fail(status == CUBLAS_STATUS_ALLOC_FAILED ? TSR_ENOMEM : TSR_EDEVICE, "%s: %s: %s",
                    what, tsr_cublaslt_lib.GetStatusName(status),
                    tsr_cublaslt_lib.GetStatusString(status));
}

static tsr_status describe(tsr_blas *blas)
{
    for (unsigned i = 0; i < 4; i++) {
        cublasLtMatmulDesc_t d = &blas->description[i];
        int32_t op_a = i & TSR_MATMUL_TRANS_B ? CUBLAS_OP_T : CUBLAS_OP_N;
        int32_t op_b = i & TSR_MATMUL_TRANS_A ? CUBLAS_OP_T : CUBLAS_OP_N;
        cublasStatus_t status =
            tsr_cublaslt_lib.MatmulDescInit_internal(d, sizeof *d, CUBLAS_COMPUTE_32F, CUDA_R_32F);
        if (status == CUBLAS_STATUS_SUCCESS)
            status =
                tsr_cublaslt_lib.MatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_TRANSA, &op_a, 4);
        if (status == CUBLAS_STATUS_SUCCESS)
            status =
                tsr_cublaslt_lib.MatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_TRANSB, &op_b, 4);
        TSR_TRY(lt_status(status, "cublasLtMatmulDescInit"));
    }
    return TSR_OK;
}

/* What a matmul of a large model reaches, from the generation and the number of multiprocessors: for
 * judging beforehand how long one takes. */
static void set_speed(tsr_blas *blas, const tsr_cuda_properties *p)
{
    bool large = p->major > 8 || (p->major == 8 && p->minor == 0);
    blas->bf16_flops = p->sm_count * (p->major > 8 ? 5e12 : large ? 2e12 : 1e12);
    blas->f32_flops = p->sm_count * 0.3e12;
}

static tsr_status open_blas(tsr_blas *blas, tsr_device *device)
{
    const tsr_cuda_properties *p = tsr_device_cuda_properties(device);
    struct cudaDeviceProp properties;
    TSR_TRY(tsr_cublaslt_load(NULL));
    TSR_TRY(tsr_cuda_status(cudaSetDevice(p->index), "cudaSetDevice"));
    TSR_TRY(
        tsr_cuda_status(cudaGetDeviceProperties(&properties, p->index), "cudaGetDeviceProperties"));
    TSR_TRY(lt_status(tsr_cublaslt_lib.Create(&blas->handle), "cublasLtCreate"));
    TSR_TRY(tsr_cuda_status(cudaMalloc(&blas->workspace, WORKSPACE_BYTES),
                            "the matmuls' workspace of 32 MiB"));
    snprintf(blas->made_for, sizeof blas->made_for,
             "tessera matmuls 1, %s, sm_%d%d, %d, cuBLASLt %zu", properties.name, p->major,
             p->minor, p->sm_count, tsr_cublaslt_lib.GetVersion());
    blas->l2_bytes = p->l2_bytes;
    set_speed(blas, p);
    TSR_TRY(tsr_blas_open_fp8(blas, device));
    return describe(blas);
}

tsr_status tsr_blas_turn(tsr_blas *blas, int job)
{
    if (!blas->table[job])
        blas->table[job] = calloc(1, sizeof *blas->table[job]);
    if (!blas->table[job])
        return tsr_fail(TSR_ENOMEM, "out of memory for a table of matmuls");
    blas->turn = job;
    return TSR_OK;
}

tsr_status tsr_blas_open(tsr_blas **out, tsr_device *device)
{
    tsr_blas *blas = calloc(1, sizeof *blas);
    if (!blas)
        return tsr_fail(TSR_ENOMEM, "out of memory for cuBLASLt's table");
    tsr_status status = tsr_blas_turn(blas, 0);
    if (status == TSR_OK)
        status = open_blas(blas, device);
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
        tsr_cublaslt_lib.Destroy(blas->handle);
    cudaFree(blas->workspace);
    cudaFree(blas->ones);
    for (int i = 0; i < TSR_KERNELS_TURNS; i++)
        free(blas->table[i]);
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

static tsr_matmul_key exact_key(const tsr_gemm_args *args)
{
    int64_t lda = args->lda ? args->lda : args->trans_a ? args->m : args->k;
    int64_t ldb = args->ldb ? args->ldb : args->trans_b ? args->k : args->n;
    int64_t ldc = args->ldc ? args->ldc : args->n;
    return (tsr_matmul_key){
        .m = (int32_t)args->m,
        .n = (int32_t)args->n,
        .k = (int32_t)args->k,
        .lda = (int32_t)lda,
        .ldb = (int32_t)ldb,
        .ldc = (int32_t)ldc,
        .flags = (args->trans_a ? TSR_MATMUL_TRANS_A : 0) |
                 (args->trans_b ? TSR_MATMUL_TRANS_B : 0) | (args->beta != 0 ? TSR_MATMUL_ADD : 0) |
                 (args->dtype == TSR_F8_E4M3 && args->fast ? TSR_MATMUL_FAST : 0) |
                 (uint32_t)args->dtype << 4 | (uint32_t)args->c_dtype << 8 |
                 alignment_log(args->a) << 12 | alignment_log(args->b) << 16 |
                 alignment_log(args->c) << 20};
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
static tsr_matmul_key bucket_of(tsr_matmul_key key)
{
    if (!(key.flags & TSR_MATMUL_TRANS_A))
        key.m = bucket_end(key.m);
    else if (!(key.flags & TSR_MATMUL_TRANS_B))
        key.k = bucket_end(key.k);
    return key;
}

tsr_matmul_key tsr_matmul_bucket(const tsr_gemm_args *shape)
{
    tsr_gemm_args args = *shape;
    args.a = args.b = args.c = NULL;
    return bucket_of(exact_key(&args));
}

typedef struct {
    cublasLtMatrixLayoutOpaque_t a, b, c;
} matmul_layouts;

/* A row of ours is a column of theirs. */
static tsr_status lay_out_one(cublasLtMatrixLayout_t out, tsr_dtype dtype, int32_t rows,
                              int32_t columns, int32_t ld)
{
    cudaDataType type = dtype == TSR_F32       ? CUDA_R_32F
                        : dtype == TSR_BF16    ? CUDA_R_16BF
                        : dtype == TSR_F8_E4M3 ? CUDA_R_8F_E4M3
                                               : CUDA_R_16F;
    return lt_status(tsr_cublaslt_lib.MatrixLayoutInit_internal(
                         out, sizeof *out, type, (uint64_t)columns, (uint64_t)rows, ld),
                     "cublasLtMatrixLayoutInit");
}

static tsr_status lay_out(matmul_layouts *out, const tsr_matmul_key *key)
{
    bool trans_a = key->flags & TSR_MATMUL_TRANS_A, trans_b = key->flags & TSR_MATMUL_TRANS_B;
    TSR_TRY(lay_out_one(&out->a, tsr_matmul_dtype(key), trans_a ? key->k : key->m,
                        trans_a ? key->m : key->k, key->lda));
    TSR_TRY(lay_out_one(&out->b, tsr_matmul_dtype(key), trans_b ? key->n : key->k,
                        trans_b ? key->k : key->n, key->ldb));
    return lay_out_one(&out->c, tsr_matmul_c_dtype(key), key->m, key->n, key->ldc);
}

/* The description of a call: one that is kept, or, with scales, one of its own in `room`. */
static cublasLtMatmulDesc_t description_of(cublasLtMatmulDescOpaque_t *room, tsr_blas *blas,
                                           const tsr_matmul_key *key,
                                           const tsr_matmul_scales *scales)
{
    const tsr_matmul_scales ones = {blas->ones, blas->ones};
    if (tsr_matmul_dtype(key) != TSR_F8_E4M3)
        return &blas->description[key->flags & (TSR_MATMUL_TRANS_A | TSR_MATMUL_TRANS_B)];
    if (!blas->ones ||
        tsr_matmul_describe_fp8(room, key, scales ? scales : &ones) != CUBLAS_STATUS_SUCCESS)
        return NULL;
    return room;
}

/* ---- the table ---- */

tsr_matmul_choice *tsr_matmul_find(tsr_blas *blas, const tsr_matmul_key *key)
{
    const uint8_t *bytes = (const uint8_t *)key;
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (size_t i = 0; i < sizeof *key; i++)
        hash = (hash ^ bytes[i]) * 16777619u;
    tsr_matmul_table *table = blas->table[blas->turn];
    for (uint32_t i = 0; i < TSR_BLAS_TABLE; i++) {
        tsr_matmul_choice *choice = &table->choice[(hash + i) % TSR_BLAS_TABLE];
        if (choice->origin && memcmp(&choice->key, key, sizeof *key) == 0)
            return choice;
        if (!choice->origin)
            return table->used < TABLE_MOST ? choice : NULL;
    }
    return NULL;
}

void tsr_matmul_keep(tsr_blas *blas, const tsr_matmul_key *key, const cublasLtMatmulAlgo_t *algo,
                     tsr_matmul_origin origin)
{
    tsr_matmul_choice *choice = tsr_matmul_find(blas, key);
    if (!choice)
        return;
    blas->table[blas->turn]->used += !choice->origin;
    *choice = (tsr_matmul_choice){.key = *key, .algo = *algo, .origin = origin};
}

/* How sums may be split. In parts of a 16-bit C they would be rounded more than once. */
static uint32_t reductions_of(const tsr_matmul_key *key)
{
    return tsr_matmul_c_dtype(key) == TSR_F32 ? CUBLASLT_REDUCTION_SCHEME_MASK
                                              : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
}

static tsr_status prefer(cublasLtMatmulPreference_t out, const tsr_matmul_key *key)
{
    uint64_t workspace = WORKSPACE_BYTES;
    uint32_t reductions = reductions_of(key);
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
    TSR_TRY(lt_status(tsr_cublaslt_lib.MatmulPreferenceInit_internal(out, sizeof *out),
                      "cublasLtMatmulPreferenceInit"));
    for (size_t i = 0; i < sizeof wish / sizeof *wish; i++)
        TSR_TRY(lt_status(tsr_cublaslt_lib.MatmulPreferenceSetAttribute(
                              out, wish[i].attribute, wish[i].value, wish[i].bytes),
                          "cublasLtMatmulPreferenceSetAttribute"));
    return TSR_OK;
}

static uint32_t config_of(const cublasLtMatmulAlgo_t *algo,
                          cublasLtMatmulAlgoConfigAttributes_t what, size_t bytes)
{
    uint32_t value = 0; /* what a library does not know stays 0 */
    size_t written;
    tsr_cublaslt_lib.MatmulAlgoConfigGetAttribute(algo, what, &value, bytes, &written);
    return value;
}

static uint64_t flags_of(const cublasLtMatmulAlgo_t *algo)
{
    uint64_t value = 0;
    size_t written;
    tsr_cublaslt_lib.MatmulAlgoCapGetAttribute(algo, CUBLASLT_ALGO_CAP_NUMERICAL_IMPL_FLAGS, &value,
                                               sizeof value, &written);
    return value;
}

/* By what an algorithm tells of itself: sums in fp32, of operands as they are, whole or in fp32
 * parts. */
static bool exact_enough(const cublasLtMatmulAlgo_t *algo, const tsr_matmul_key *key)
{
    uint64_t refused = CUBLASLT_NUMERICAL_IMPL_FLAGS_ACCUMULATOR_16F;
    uint32_t reduction = config_of(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 4);
    bool split = config_of(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4) != 1;
    if (tsr_matmul_dtype(key) == TSR_F32)
        refused |= CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_TF32 |
                   CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_16BF |
                   CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_16F;
    return !(flags_of(algo) & refused) && !(split && (reduction & ~reductions_of(key)));
}

tsr_status tsr_matmul_ask(cublasLtMatmulAlgo_t *out, int *count, tsr_blas *blas,
                          const tsr_matmul_key *key, int most)
{
    matmul_layouts l;
    cublasLtMatmulPreferenceOpaque_t preference;
    cublasLtMatmulHeuristicResult_t result[TSR_BLAS_CANDIDATES];
    cublasLtMatmulDescOpaque_t room;
    cublasLtMatmulDesc_t description = description_of(&room, blas, key, NULL);
    cublasStatus_t status = CUBLAS_STATUS_NOT_SUPPORTED;
    int found = 0;
    *count = 0;
    TSR_TRY(lay_out(&l, key));
    TSR_TRY(prefer(&preference, key));
    if (description)
        status = tsr_cublaslt_lib.MatmulAlgoGetHeuristic(
            blas->handle, description, &l.b, &l.a, &l.c, &l.c, &preference, most, result, &found);
    for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < found; i++)
        if (result[i].state == CUBLAS_STATUS_SUCCESS &&
            result[i].workspaceSize <= WORKSPACE_BYTES && exact_enough(&result[i].algo, key))
            out[(*count)++] = result[i].algo;
    if (*count > 0)
        return TSR_OK;
    return tsr_fail(
        TSR_EUNSUPPORTED,
        "gemm: cuBLASLt has no algorithm for [%d, %d] by %d, leading dimensions %d, %d, "
        "%d, of %s into %s, flags %x, that sums in fp32 (%d found: %s)",
        key->m, key->n, key->k, key->lda, key->ldb, key->ldc, tsr_dtype_name(tsr_matmul_dtype(key)),
        tsr_dtype_name(tsr_matmul_c_dtype(key)), key->flags, found,
        tsr_cublaslt_lib.GetStatusName(status));
}

tsr_status tsr_matmul_ask_first(cublasLtMatmulAlgo_t *out, tsr_blas *blas,
                                const tsr_matmul_key *key)
{
    cublasLtMatmulAlgo_t algo[TSR_BLAS_CANDIDATES];
    int count;
    if (tsr_matmul_ask(algo, &count, blas, key, 1) < 0) /* one is cheaper to ask for */
        TSR_TRY(tsr_matmul_ask(algo, &count, blas, key, TSR_BLAS_CANDIDATES));
    *out = algo[0];
    return TSR_OK;
}

bool tsr_matmul_runs(tsr_blas *blas, const tsr_matmul_choice *choice)
{
    matmul_layouts l;
    cublasLtMatmulHeuristicResult_t result;
    cublasLtMatmulDescOpaque_t room;
    const tsr_matmul_key *key = &choice->key;
    cublasLtMatmulDesc_t description = description_of(&room, blas, key, NULL);
    return description && lay_out(&l, key) == TSR_OK &&
           tsr_cublaslt_lib.MatmulAlgoCheck(blas->handle, description, &l.b, &l.a, &l.c, &l.c,
                                            &choice->algo, &result) == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= WORKSPACE_BYTES && exact_enough(&choice->algo, key);
}

/* ---- the op ---- */

cublasStatus_t tsr_matmul_run(tsr_blas *blas, const tsr_matmul_key *key, const tsr_gemm_args *args,
                              const tsr_matmul_scales *scales, const cublasLtMatmulAlgo_t *algo,
                              cudaStream_t stream)
{
    matmul_layouts l;
    cublasLtMatmulDescOpaque_t room;
    cublasLtMatmulDesc_t description = description_of(&room, blas, key, scales);
    if (!description || lay_out(&l, key) < 0)
        return CUBLAS_STATUS_INTERNAL_ERROR;
    return tsr_cublaslt_lib.Matmul(blas->handle, description, &args->alpha, args->b, &l.b, args->a,
                                   &l.a, &args->beta, args->c, &l.c, args->c, &l.c, algo,
                                   blas->workspace, WORKSPACE_BYTES, stream);
}

tsr_status tsr_blas_own_workspace(tsr_blas *blas, tsr_stream *stream)
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

static tsr_status choose(cublasLtMatmulAlgo_t *out, tsr_blas *blas, const tsr_matmul_key *bucket)
{
    const tsr_matmul_choice *choice = tsr_matmul_find(blas, bucket);
    if (choice && choice->origin) {
        *out = choice->algo;
        return TSR_OK;
    }
    TSR_TRY(tsr_matmul_ask_first(out, blas, bucket));
    tsr_matmul_keep(blas, bucket, out, TSR_MATMUL_ASKED);
    return TSR_OK;
}

tsr_status tsr_matmul_call(tsr_stream *stream, const tsr_gemm_args *args,
                           const tsr_matmul_scales *scales)
{
    tsr_blas *blas = tsr_kernels_kept(stream)->blas;
    cudaStream_t cuda = tsr_stream_cuda(stream);
    TSR_TRY(tsr_blas_own_workspace(blas, stream));
    tsr_matmul_key key = exact_key(args), bucket = bucket_of(key);
    cublasLtMatmulAlgo_t algo;
    TSR_TRY(choose(&algo, blas, &bucket));
    cublasStatus_t status = tsr_matmul_run(blas, &key, args, scales, &algo, cuda);
    if (refused(status)) { /* what fits the bucket's end does not fit this number of tokens */
        TSR_TRY(tsr_matmul_ask_first(&algo, blas, &key));
        status = tsr_matmul_run(blas, &key, args, scales, &algo, cuda);
    }
    return lt_status(status, "gemm: cublasLtMatmul");
}

tsr_status tsr_gemm_cuda(tsr_stream *stream, const tsr_gemm_args *args)
{
    TSR_TRY(tsr_gemm_check(args));
    if (args->m == 0 || args->n == 0)
        return TSR_OK;
    if (args->k == 0)
        return tsr_gemm_scale(stream, args);
    return tsr_matmul_call(stream, args, NULL);
}

/* ---- what runs, for messages ---- */

static void print_algorithm(char *text, uint64_t bytes, const cublasLtMatmulAlgo_t *algo)
{
    static const struct {
        const char *name;
        cublasLtMatmulAlgoConfigAttributes_t attribute;
        size_t bytes;
    } part[] = {{"algorithm", CUBLASLT_ALGO_CONFIG_ID, 4},
                {"tile", CUBLASLT_ALGO_CONFIG_TILE_ID, 4},
                {"stages", CUBLASLT_ALGO_CONFIG_STAGES_ID, 4},
                {"split-k", CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4},
                {"reduction", CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 4},
                {"swizzling", CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, 4},
                {"custom", CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, 4},
                {"inner shape", CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, 2},
                {"cluster", CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2}};
    uint64_t at = 0;
    for (size_t i = 0; i < sizeof part / sizeof *part && at < bytes; i++)
        at += (uint64_t)snprintf(text + at, bytes - at, "%s %u, ", part[i].name,
                                 config_of(algo, part[i].attribute, part[i].bytes));
    if (at < bytes)
        snprintf(text + at, bytes - at, "implementation %llx", (unsigned long long)flags_of(algo));
}

void tsr_blas_describe(char *text, uint64_t bytes, tsr_blas *blas, const tsr_gemm_args *args)
{
    tsr_matmul_key bucket = bucket_of(exact_key(args));
    cublasLtMatmulAlgo_t algo;
    if (choose(&algo, blas, &bucket) == TSR_OK)
        print_algorithm(text, bytes, &algo);
    else
        snprintf(text, bytes, "no algorithm");
}

tsr_status tsr_kernels_cublaslt_version(tsr_library_version *out)
{
    return tsr_cublaslt_load(out);
}
