/*
 * objective.cu: contract objective.h; reference objective_ref.c. Both use objective_math.h; only the order of the sums over rows
 * differs.
 *
 * objective   One block: a warp per part of a document, a thread per pair, and one thread for what is pooled, in the order of
 *             the pairs. A micro-batch of 8192 label rows is 64 KB read and 32 KB written by one multiprocessor.
 * scale_rows  A block per row, in vectors if alignment allows.
 */
#include "kernels/cuda.cuh"

#include "kernels/objective_math.h"

#define THREADS     512
#define ROW_THREADS 256

typedef struct {
    tsr_objective objective;
    tsr_objective_args args; /* its objective is the host's */
} objective_args;

static __device__ void sum_parts(const tsr_objective_args *a)
{
    int lane = threadIdx.x % TSR_WARP;
    for (int64_t p = threadIdx.x / TSR_WARP; p < TSR_PARTS * a->documents;
         p += THREADS / TSR_WARP) {
        double sum = 0;
        for (int32_t i = a->part[p] + lane; i < a->part[p + 1]; i += TSR_WARP)
            sum -= a->nll[i];
        sum = tsr_warp_sum_double(sum);
        if (lane == 0)
            a->sums[p] = sum;
    }
}

/* As take_confidence of objective_ref.c. */
static __device__ void take_confidence(double *out, const tsr_objective_args *a)
{
    int lane = threadIdx.x % TSR_WARP;
    for (int64_t d = threadIdx.x / TSR_WARP; d < a->documents; d += THREADS / TSR_WARP) {
        const int32_t *part = a->part + TSR_PARTS * d;
        double sum = 0;
        for (int32_t i = part[TSR_PART_COMPLETION] + lane; i < part[TSR_PARTS]; i += TSR_WARP)
            sum -= a->nll[i] + (double)a->log_squares[i];
        sum = tsr_warp_sum_double(sum);
        if (lane == 0)
            out[d] = sum / (double)(part[TSR_PARTS] - part[TSR_PART_COMPLETION]);
    }
}

static __device__ double sum_rows(const float *values, int32_t first, int32_t end)
{
    double sum = 0;
    for (int32_t i = first + (int32_t)(threadIdx.x % TSR_WARP); i < end && values; i += TSR_WARP)
        sum += (double)values[i];
    return tsr_warp_sum_double(sum);
}

/* As take_tokens of objective_ref.c. */
static __device__ void take_tokens(double *out, const tsr_objective_args *a)
{
    for (int64_t d = threadIdx.x / TSR_WARP; d < a->documents; d += THREADS / TSR_WARP) {
        int32_t first = a->part[TSR_PARTS * d + TSR_PART_COMPLETION];
        int32_t end = a->part[TSR_PARTS * (d + 1)];
        double entropy = sum_rows(a->row_entropy, first, end);
        double correct = sum_rows(a->row_correct, first, end);
        double logit = sum_rows(a->row_logit, first, end);
        if (threadIdx.x % TSR_WARP)
            continue;
        out[TSR_OF_DOCUMENT * d + TSR_DOCUMENT_ENTROPY] = entropy;
        out[TSR_OF_DOCUMENT * d + TSR_DOCUMENT_CORRECT] = correct;
        out[TSR_OF_DOCUMENT * d + TSR_DOCUMENT_LOGIT] = logit;
    }
}

static __device__ void weigh_rows(const tsr_objective_args *a, const double *weights, bool fine)
{
    int lane = threadIdx.x % TSR_WARP;
    for (int64_t p = threadIdx.x / TSR_WARP; p < TSR_PARTS * a->documents; p += THREADS / TSR_WARP)
        for (int32_t i = a->part[p] + lane; i < a->part[p + 1]; i += TSR_WARP)
            a->weight[i] = fine ? (float)(-a->scale * weights[p]) : 0;
}

static __global__ void __launch_bounds__(THREADS) prefer(const __grid_constant__ objective_args all)
{
    tsr_kernel_begin();
    __shared__ tsr_prefer_pool pool;
    __shared__ double words[TSR_PREFERENCE_WORDS + 1];
    __shared__ int fine;
    const tsr_objective_args *a = &all.args;
    int64_t sums = TSR_PARTS * a->documents;
    double *weights = a->sums + sums, *of = weights + sums;
    sum_parts(a);
    if (!a->weight)
        return;
    double *tokens = of + TSR_PREFERENCE_OF_PAIR * (a->documents / 2);
    double *confidence = all.objective.weighting ? tokens + TSR_OF_DOCUMENT * a->documents : NULL;
    take_tokens(tokens, a);
    if (confidence)
        take_confidence(confidence, a);
    tsr_prefer_batch batch = {&all.objective, a->part,    a->sums, a->reference,
                              a->desirable,   confidence, tokens,  a->documents};
    __syncthreads();
    if (threadIdx.x == 0)
        pool = tsr_prefer_pooled(&batch);
    __syncthreads();
    for (int64_t i = threadIdx.x; i < a->documents / 2; i += THREADS)
        tsr_prefer_pair(of + TSR_PREFERENCE_OF_PAIR * i, weights, &batch, &pool, i);
    __syncthreads();
    if (threadIdx.x == 0) {
        tsr_prefer_words(words, &batch, &pool, of);
        fine = tsr_prefer_add(a, words);
    }
    __syncthreads();
    weigh_rows(a, weights, fine != 0);
}

extern "C" tsr_status tsr_objective_cuda(tsr_stream *stream, const tsr_objective_args *args)
{
    TSR_TRY(tsr_objective_check(args));
    objective_args all = {};
    if (args->documents == 0)
        return TSR_OK;
    if (args->weight)
        all.objective = *args->objective;
    all.args = *args;
    TSR_LAUNCH(prefer, 1, THREADS, stream, all);
    return tsr_launched("objective");
}

/* ---- scale_rows ---- */

static __global__ void __launch_bounds__(ROW_THREADS)
    scale_row(const __grid_constant__ tsr_scale_rows_args a, bool vectors)
{
    tsr_kernel_begin();
    int64_t row = blockIdx.x, base = row * a.d;
    float weight = a.weight[row];
    if (vectors) {
        float x[TSR_VECTOR];
        for (int64_t i = (int64_t)threadIdx.x * TSR_VECTOR; i < a.d;
             i += ROW_THREADS * TSR_VECTOR) {
            tsr_load8(x, a.x, base + i, a.dtype);
#pragma unroll
            for (int j = 0; j < TSR_VECTOR; j++)
                x[j] *= weight;
            tsr_store8(a.x, base + i, x, a.dtype);
        }
        return;
    }
    for (int64_t i = threadIdx.x; i < a.d; i += ROW_THREADS)
        tsr_store(a.x, base + i, weight * tsr_load(a.x, base + i, a.dtype), a.dtype);
}

extern "C" tsr_status tsr_scale_rows_cuda(tsr_stream *stream, const tsr_scale_rows_args *args)
{
    TSR_TRY(tsr_scale_rows_check(args));
    if (args->rows == 0)
        return TSR_OK;
    TSR_LAUNCH(scale_row, (unsigned)args->rows, ROW_THREADS, stream, *args,
               tsr_vectors(args->d, args->x, args->x, args->x));
    return tsr_launched("scale_rows");
}
