/*
 * gemm_tune.c: which matmuls of a run are timed at start-up, and the timing.
 *
 * Which    Those of at least WORTH_SECONDS, in the caller's order, until the time that all of it will
 *          take, judged from shapes and the kind of card alone, has reached MOST_SECONDS. So the list
 *          is the same each time, whatever is found of it; what is not on it, or does not fit into the
 *          memory of this run, takes the heuristic's first.
 * How      The heuristic's candidates in turn, so that they share what the card's clock does; from
 *          the second round on without those that are far behind. Operands are random (zeros are
 *          faster) and rotate through more memory than the L2 cache. The heuristic's first stays
 *          unless another is clearly faster: what two runs measure differs by about a percent.
 */
#include "kernels/gemm_cublaslt.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/phase.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS        5      /* timed, after one to warm up */
#define MOST_SETS     16     /* of operands that a timing rotates through */
#define ROUND_SECONDS 100e-6 /* of one measurement: short matmuls are repeated */
#define MOST_REPEATS  20
#define BEHIND        1.15f /* of the best of the first round: not timed again */
#define FASTER        0.98f /* of the heuristic's first */
#define WORTH_SECONDS 10e-6
#define MOST_SECONDS  1.0
#define COPY_BYTES    2e12 /* a second: for judging only */

typedef struct {
    uint64_t a, b, c, all; /* bytes */
} matmul_sizes;

static uint64_t padded(int64_t rows, int32_t ld, tsr_dtype dtype)
{
    uint64_t bytes = (uint64_t)rows * (uint64_t)ld * tsr_dtype_bytes(dtype);
    return (bytes + TSR_ALIGNMENT - 1) / TSR_ALIGNMENT * TSR_ALIGNMENT;
}

static matmul_sizes sizes_of(const tsr_matmul_key *key)
{
    bool trans_a = key->flags & TSR_MATMUL_TRANS_A, trans_b = key->flags & TSR_MATMUL_TRANS_B;
    matmul_sizes s = {.a = padded(trans_a ? key->k : key->m, key->lda, tsr_matmul_dtype(key)),
                      .b = padded(trans_b ? key->n : key->k, key->ldb, tsr_matmul_dtype(key)),
                      .c = padded(key->m, key->ldc, tsr_matmul_c_dtype(key))};
    s.all = s.a + s.b + s.c;
    return s;
}

uint64_t tsr_blas_tune_bytes(const tsr_gemm_args *shape, int count)
{
    uint64_t most = 0;
    for (int i = 0; i < count; i++) {
        tsr_matmul_key key = tsr_matmul_bucket(&shape[i]);
        uint64_t bytes = sizes_of(&key).all;
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* ---- which ---- */

/* About how long one takes. */
static double seconds_of(const tsr_blas *blas, const tsr_matmul_key *key)
{
    double flops = 2.0 * key->m * key->n * key->k, rate = blas->bf16_flops;
    if (tsr_matmul_dtype(key) == TSR_F32)
        rate = blas->f32_flops;
    else if (tsr_matmul_dtype(key) == TSR_F8_E4M3)
        rate = 2 * blas->bf16_flops;
    return flops / rate + (double)sizes_of(key).all / COPY_BYTES;
}

/* How long timing it takes: half of the candidates are still there after the first round. */
static double tuning_seconds(double seconds)
{
    double round = fmax(seconds, ROUND_SECONDS);
    return TSR_BLAS_CANDIDATES * (seconds + round + (ROUNDS - 1) * round / 2);
}

bool tsr_matmul_listed(const tsr_gemm_args *shape, int count, const tsr_matmul_key *key)
{
    for (int i = 0; i < count; i++) {
        tsr_matmul_key other = tsr_matmul_bucket(&shape[i]);
        if (memcmp(&other, key, sizeof other) == 0)
            return true;
    }
    return false;
}

static bool is_worth_timing(const tsr_blas *blas, const tsr_gemm_args *shape)
{
    tsr_matmul_key key = tsr_matmul_bucket(shape);
    return key.m > 0 && key.n > 0 && key.k > 0 && seconds_of(blas, &key) >= WORTH_SECONDS &&
           tsr_blas_takes(blas, shape);
}

static void swap(tsr_gemm_args *a, tsr_gemm_args *b)
{
    tsr_gemm_args kept = *a;
    *a = *b;
    *b = kept;
}

int tsr_blas_select(const tsr_blas *blas, tsr_gemm_args *shape, int count)
{
    int selected = 0;
    double spent = 0;
    for (int i = 0; i < count; i++) {
        tsr_matmul_key key = tsr_matmul_bucket(&shape[i]);
        double cost = tuning_seconds(seconds_of(blas, &key));
        if (spent + cost > MOST_SECONDS || !is_worth_timing(blas, &shape[i]) ||
            tsr_matmul_listed(shape, selected, &key))
            continue;
        spent += cost;
        swap(&shape[selected++], &shape[i]);
    }
    return selected;
}

int tsr_blas_fitting(tsr_gemm_args *shape, int count, uint64_t scratch_bytes)
{
    int fitting = 0;
    for (int i = 0; i < count; i++)
        if (tsr_blas_tune_bytes(&shape[i], 1) <= scratch_bytes)
            swap(&shape[fitting++], &shape[i]);
    return fitting;
}

void tsr_blas_settle(tsr_blas *blas, const tsr_gemm_args *shape, int count)
{
    for (int i = 0; i < count; i++) {
        cublasLtMatmulAlgo_t algo;
        tsr_matmul_key key = tsr_matmul_bucket(&shape[i]);
        const tsr_matmul_choice *place = tsr_matmul_find(blas, &key);
        if (place && place->origin < TSR_MATMUL_SETTLED && is_worth_timing(blas, &shape[i]) &&
            tsr_matmul_ask_first(&algo, blas, &key) ==
                TSR_OK) /* else the step that needs it says so */
            tsr_matmul_keep(blas, &key, &algo, TSR_MATMUL_SETTLED);
    }
}

/* ---- how ---- */

typedef struct {
    tsr_blas *blas;
    tsr_stream *stream;
    char *scratch;
    tsr_matmul_key key;
    tsr_gemm_args args;
    matmul_sizes sizes;
    int sets, repeats, next;
    cudaEvent_t event[TSR_BLAS_CANDIDATES + 1];
    cublasLtMatmulAlgo_t algo[TSR_BLAS_CANDIDATES];
    float time[TSR_BLAS_CANDIDATES][ROUNDS]; /* milliseconds */
    bool out[TSR_BLAS_CANDIDATES];           /* failed, or far behind */
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
    t->repeats = (int)fmin(MOST_REPEATS, ceil(ROUND_SECONDS / seconds_of(t->blas, &t->key)));
    return TSR_OK;
}

static void repeat(tuner *t, int candidate, int times)
{
    cudaStream_t stream = tsr_stream_cuda(t->stream);
    for (int i = 0; i < times && !t->out[candidate]; i++) {
        char *a = t->scratch + (uint64_t)t->next * t->sizes.all;
        t->next = (t->next + 1) % t->sets;
        t->args.a = a;
        t->args.b = a + t->sizes.a;
        t->args.c = a + t->sizes.a + t->sizes.b;
        t->out[candidate] = tsr_matmul_run(t->blas, &t->key, &t->args, NULL, &t->algo[candidate],
                                           stream) != CUBLAS_STATUS_SUCCESS;
    }
}

/* Every candidate once; round -1 loads their code. */
static tsr_status time_round(tuner *t, int round)
{
    cudaStream_t stream = tsr_stream_cuda(t->stream);
    for (int i = 0; i < t->count; i++) {
        TSR_TRY(tsr_cuda_status(cudaEventRecord(t->event[i], stream), "gemm"));
        repeat(t, i, round < 0 ? 1 : t->repeats);
    }
    TSR_TRY(tsr_cuda_status(cudaEventRecord(t->event[t->count], stream), "gemm"));
    TSR_TRY(tsr_cuda_status(cudaEventSynchronize(t->event[t->count]), "gemm"));
    for (int i = 0; i < t->count && round >= 0; i++) {
        t->time[i][round] = INFINITY;
        if (!t->out[i])
            TSR_TRY(tsr_cuda_status(
                cudaEventElapsedTime(&t->time[i][round], t->event[i], t->event[i + 1]), "gemm"));
    }
    return TSR_OK;
}

static void drop_slow(tuner *t)
{
    float best = INFINITY;
    for (int i = 0; i < t->count; i++)
        best = fminf(best, t->time[i][0]);
    for (int i = 0; i < t->count; i++)
        t->out[i] = t->out[i] || t->time[i][0] > BEHIND * best;
}

static int compare(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static float median(tuner *t, int candidate)
{
    qsort(t->time[candidate], ROUNDS, sizeof(float), compare);
    return t->time[candidate][ROUNDS / 2];
}

static tsr_status tune_shape(tuner *t, const tsr_gemm_args *shape, uint64_t scratch_bytes)
{
    t->args = *shape;
    t->key = tsr_matmul_bucket(shape);
    t->sizes = sizes_of(&t->key);
    if (t->sizes.all > scratch_bytes)
        return tsr_fail(TSR_EINVAL, "gemm: %" PRIu64 " bytes to time a matmul of %" PRIu64,
                        scratch_bytes, t->sizes.all);
    TSR_TRY(fill_operands(t, scratch_bytes));
    TSR_TRY(tsr_matmul_ask(t->algo, &t->count, t->blas, &t->key, TSR_BLAS_CANDIDATES));
    memset(t->out, 0, sizeof t->out);
    for (int round = -1; round < ROUNDS; round++) {
        TSR_TRY(time_round(t, round));
        if (round == 0)
            drop_slow(t);
    }
    int best = 0;
    float first = median(t, 0), least = FASTER * first;
    for (int i = 1; i < t->count; i++)
        if (median(t, i) < least) {
            best = i;
            least = median(t, i);
        }
    tsr_log(TSR_LOG_DEBUG, "matmul [%d, %d] by %d: %.1f us, candidate %d of %d; the first %.1f us",
            t->key.m, t->key.n, t->key.k, 1e3 * (double)median(t, best) / t->repeats, best,
            t->count, 1e3 * (double)first / t->repeats);
    tsr_matmul_keep(t->blas, &t->key, &t->algo[best], TSR_MATMUL_TIMED);
    return TSR_OK;
}

/* A shape of a list as its op judges it. */
static tsr_status judge(const tsr_gemm_args *shape)
{
    tsr_gemm_args args = *shape;
    if (args.dtype == TSR_F8_E4M3)
        args.dtype = TSR_BF16;
    return tsr_gemm_check(&args);
}

static bool is_chosen(tsr_blas *blas, const tsr_gemm_args *shape)
{
    tsr_matmul_key key = tsr_matmul_bucket(shape);
    const tsr_matmul_choice *choice = tsr_matmul_find(blas, &key);
    return choice && choice->origin >= TSR_MATMUL_SETTLED;
}

tsr_status tsr_blas_tune(tsr_blas *blas, tsr_stream *stream, const tsr_gemm_args *shape, int count,
                         void *scratch, uint64_t scratch_bytes)
{
    tuner t = {.blas = blas, .stream = stream, .scratch = scratch};
    double start = tsr_now();
    int timed = 0;
    tsr_stream_cuda(stream); /* its device */
    tsr_status status = tsr_blas_own_workspace(blas, stream);
    for (int i = 0; i <= TSR_BLAS_CANDIDATES && status == TSR_OK; i++)
        status = tsr_cuda_status(cudaEventCreate(&t.event[i]), "cudaEventCreate");
    for (int i = 0; i < count && status == TSR_OK; i++) {
        tsr_gemm_args args = shape[i];
        args.a = args.b = args.c = scratch;
        status = judge(&args);
        if (status < 0 || !tsr_blas_takes(blas, &args) || args.m == 0 || args.n == 0 ||
            args.k == 0 || is_chosen(blas, &args))
            continue;
        tsr_phase_at("timing matmuls", i, count);
        status = tune_shape(&t, &args, scratch_bytes);
        timed++;
    }
    tsr_phase_at("timing matmuls", count, count);
    for (int i = 0; i <= TSR_BLAS_CANDIDATES; i++)
        if (t.event[i])
            cudaEventDestroy(t.event[i]);
    if (status == TSR_OK && timed)
        status = tsr_stream_fill(stream, scratch, 0, scratch_bytes);
    if (status == TSR_OK)
        status = tsr_stream_synchronize(stream);
    if (status == TSR_OK && timed)
        tsr_log(TSR_LOG_INFO, "%d matmuls timed in %.2f s", timed, tsr_now() - start);
    return status;
}
