/*
 * head_finish.cu: the end of contract head.h on a GPU: the loss and what is reported of rows, in one block, whose order
 * depends on the rows alone; and the gradient of h, a block a row.
 */
#include "kernels/cuda.cuh"

#define THREADS      256
#define LOSS_THREADS 1024
#define LOSS_LIMIT   536870912.0 /* as in head_ref.c */

/* As in head_ref.c. */
static __device__ double nll_of(double max, double sum, double label_logit)
{
    double lead = label_logit - max;
    if (!isfinite(label_logit))
        return NAN;
    return lead > 0 ? log1p(sum * exp(-lead)) : log(sum + exp(lead)) - lead;
}

/* As in head_ref.c. */
static __device__ double entropy_of(double max, double sum, double spread, double label_logit)
{
    double lead = label_logit - max, weight = exp(-fabs(lead));
    if (!(sum > 0))
        return isfinite(label_logit) && sum == 0 ? 0 : NAN;
    if (lead > 0)
        return log1p(sum * weight) - (spread - lead * sum) * weight / (1 + sum * weight);
    return log(sum + weight) - (spread + weight * lead) / (sum + weight);
}

/* As in head_ref.c. */
static __device__ double log_squares_of(double max, double sum, double squares, double label_logit)
{
    double lead = label_logit - max, weight = exp(-fabs(lead));
    if (!isfinite(label_logit))
        return NAN;
    if (!(sum > 0))
        return 0;
    return lead > 0 ? log1p(squares * weight * weight) - 2 * log1p(sum * weight)
                    : log(squares + weight * weight) - 2 * log(sum + weight);
}

/* As take_mean_row of head_ref.c, the same bits. */
static __global__ void __launch_bounds__(THREADS) take_mean_row(tsr_head_finish_args a)
{
    tsr_kernel_begin();
    int64_t column = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    double sum = 0;
    if (column >= a.d)
        return;
    for (int64_t part = 0; part < TSR_HEAD_PARTS; part++)
        sum += (double)a.state.row_parts[part * a.d + column];
    a.mean_row[column] = (float)(sum / (double)a.vocabulary);
}

/* A block a row: its mean logit, where its nll will be. */
static __global__ void __launch_bounds__(THREADS) take_mean_logits(tsr_head_finish_args a)
{
    tsr_kernel_begin();
    __shared__ double part[THREADS];
    int64_t row = blockIdx.x;
    double sum = 0;
    for (int64_t i = threadIdx.x; i < a.d; i += THREADS)
        sum += (double)tsr_load(a.h, row * a.d + i, a.dtype) * (double)a.mean_row[i];
    part[threadIdx.x] = sum;
    for (int half = THREADS / 2; half; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half)
            part[threadIdx.x] += part[threadIdx.x + half];
    }
    if (threadIdx.x == 0)
        a.nll[row] = part[0];
}

/* The sum over the block's threads in a fixed order, in thread 0. `part` may be used again at once. */
static __device__ double sum_in_order(double value, double *part)
{
    __syncthreads();
    part[threadIdx.x] = value;
    for (int half = LOSS_THREADS / 2; half; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half)
            part[threadIdx.x] += part[threadIdx.x + half];
    }
    return part[0];
}

/* One block: nll of every row, and their sum in an order that depends on the rows alone; so with what is reported
 * beside it. The count of correct rows is exact as a double. */
static __global__ void __launch_bounds__(LOSS_THREADS) finish_loss(tsr_head_finish_args a)
{
    tsr_kernel_begin();
    __shared__ double part[LOSS_THREADS];
    const tsr_head_state *s = &a.state;
    double sum = 0, entropy = 0, correct = 0;
    for (int64_t i = threadIdx.x; i < a.rows; i += LOSS_THREADS) {
        double nll = nll_of(s->max[i], s->sum[i], s->label_logit[i]);
        if (a.row_logit)
            a.row_logit[i] = (float)a.nll[i]; /* of take_mean_logits */
        if (a.smoothing > 0)
            nll += a.smoothing * ((double)s->label_logit[i] - a.nll[i]);
        a.nll[i] = nll;
        if (s->squares)
            a.log_squares[i] =
                (float)log_squares_of(s->max[i], s->sum[i], s->squares[i], s->label_logit[i]);
        sum += nll;
        if (s->rival) {
            double own = entropy_of(s->max[i], s->sum[i], s->spread[i], s->label_logit[i]);
            bool right = s->label_logit[i] >= s->rival[i];
            entropy += own;
            correct += right;
            if (a.row_entropy)
                a.row_entropy[i] = (float)own;
            if (a.row_correct)
                a.row_correct[i] = right;
        }
    }
    sum = sum_in_order(sum, part);
    if (s->rival) {
        entropy = sum_in_order(entropy, part);
        correct = sum_in_order(correct, part);
    }
    if (threadIdx.x != 0)
        return;
    if (!(sum < LOSS_LIMIT && sum > -LOSS_LIMIT)) {
        *a.loss_overflow = 1;
        return;
    }
    *a.loss += __double2ll_rn(sum * (double)(1ll << TSR_LOSS_SHIFT));
    if (s->rival) {
        *a.correct += (int64_t)correct;
        *a.entropy += __double2ll_rn(entropy * (double)(1ll << TSR_LOSS_SHIFT));
    }
}

/* A block a row. An element of dh is written by the thread that read it: dh may be acc or wy. */
template <bool SMOOTH>
static __global__ void __launch_bounds__(THREADS) finish_rows(tsr_head_finish_args a, bool vectors)
{
    tsr_kernel_begin();
    int64_t row = blockIdx.x, base = row * a.d;
    float inverse = 1.0f / (a.state.sum[row] + expf(a.state.label_logit[row] - a.state.max[row]));
    float others = a.state.sum[row] * inverse, smooth = a.scale * (float)a.smoothing;
    if (vectors) {
        float acc[TSR_VECTOR], wy[TSR_VECTOR];
        for (int64_t i = (int64_t)threadIdx.x * TSR_VECTOR; i < a.d; i += THREADS * TSR_VECTOR) {
            tsr_load8(acc, a.state.acc, base + i, TSR_F32);
            tsr_load8(wy, a.state.wy, base + i, a.state.wy_dtype);
#pragma unroll
            for (int j = 0; j < TSR_VECTOR; j++)
                acc[j] = a.scale * (acc[j] * inverse - others * wy[j]);
#pragma unroll
            for (int j = 0; SMOOTH && j < TSR_VECTOR; j++)
                acc[j] += smooth * (wy[j] - a.mean_row[i + j]);
            tsr_store8(a.dh, base + i, acc, a.dtype);
        }
        return;
    }
    for (int64_t i = threadIdx.x; i < a.d; i += THREADS) {
        float acc = a.state.acc[base + i], wy = tsr_load(a.state.wy, base + i, a.state.wy_dtype);
        float value = a.scale * (acc * inverse - others * wy);
        if (SMOOTH)
            value += smooth * (wy - a.mean_row[i]);
        tsr_store(a.dh, base + i, value, a.dtype);
    }
}

extern "C" tsr_status tsr_head_finish_cuda(tsr_stream *stream, const tsr_head_finish_args *args)
{
    TSR_TRY(tsr_head_finish_check(args));
    const tsr_head_state *s = &args->state;
    if (args->rows == 0)
        return TSR_OK;
    if (args->dh && args->dtype != TSR_F32 && (args->dh == s->acc || args->dh == s->wy))
        return tsr_fail(TSR_EUNSUPPORTED, "head_finish: dh is acc or wy, but not F32");
    if (s->row_parts)
        TSR_LAUNCH(take_mean_row, tsr_blocks(args->d, THREADS), THREADS, stream, *args);
    if (args->smoothing > 0 || args->row_logit)
        TSR_LAUNCH(take_mean_logits, (unsigned)args->rows, THREADS, stream, *args);
    TSR_LAUNCH(finish_loss, 1, LOSS_THREADS, stream, *args);
    if (args->dh) {
        bool vectors = tsr_vectors(args->d, args->dh, s->acc, s->wy);
        TSR_LAUNCH(args->smoothing > 0 ? finish_rows<true> : finish_rows<false>,
                   (unsigned)args->rows, THREADS, stream, *args, vectors);
    }
    return tsr_launched("head_finish");
}
