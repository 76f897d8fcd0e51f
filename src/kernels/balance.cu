/*
 * balance.cu: contract balance.h; reference balance_ref.c, the same bits: the sums are of integers, but that of the loss,
 * which one thread takes in the order of the experts.
 *
 * Split    loads: a thread each; the auxiliary loss: a thread an expert of one block.
 */
#include "kernels/cuda.cuh"

#include "kernels/route.h"

#define THREADS 256

static __global__ void __launch_bounds__(THREADS)
    add_loads(const __grid_constant__ tsr_balance_args a)
{
    tsr_kernel_begin();
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < a.layers * a.experts)
        a.load[i] += a.count[i];
}

static __global__ void __launch_bounds__(THREADS)
    auxiliary_loss(const __grid_constant__ tsr_balance_args a)
{
    tsr_kernel_begin();
    __shared__ double part[TSR_ROUTE_MOST_EXPERTS];
    int64_t all = a.layers * a.tokens;
    for (int64_t e = threadIdx.x; e < a.experts; e += THREADS) {
        int64_t count = 0;
        for (int64_t m = 0; m < a.layers; m++)
            count += a.count[m * a.experts + e];
        double f = all ? __ddiv_rn((double)count, (double)all) : 0;
        double sum = scalbn((double)a.prob[e], -TSR_ROUTE_PROB_SHIFT);
        double weighted = __dmul_rn(__dmul_rn(a.weight, (double)a.experts), f);
        a.gradient[e] = all ? (float)__ddiv_rn(weighted, (double)all) : 0;
        part[e] = all ? __dmul_rn(f, __ddiv_rn(sum, (double)all)) : 0;
    }
    __syncthreads();
    if (threadIdx.x || !a.loss)
        return;
    double aux = 0;
    for (int64_t e = 0; e < a.experts; e++)
        aux = __dadd_rn(aux, part[e]);
    *a.loss += __double2ll_rn(scalbn(__dmul_rn((double)a.experts, aux), TSR_BALANCE_SHIFT));
}

extern "C" tsr_status tsr_balance_cuda(tsr_stream *stream, const tsr_balance_args *args)
{
    TSR_TRY(tsr_balance_check(args));
    int64_t count = args->layers * args->experts;
    if (args->load)
        TSR_LAUNCH(add_loads, (unsigned)((count + THREADS - 1) / THREADS), THREADS, stream, *args);
    if (args->gradient)
        TSR_LAUNCH(auxiliary_loss, 1, THREADS, stream, *args);
    return tsr_launched("balance");
}

/* A block a layer. */
static __global__ void __launch_bounds__(THREADS)
    move_biases(const __grid_constant__ tsr_balance_bias_args a)
{
    tsr_kernel_begin();
    __shared__ unsigned long long total;
    const int64_t *load = a.load + blockIdx.x * a.experts;
    if (*a.skip)
        return;
    if (threadIdx.x == 0)
        total = 0;
    __syncthreads();
    for (int64_t e = threadIdx.x; e < a.experts; e += THREADS)
        atomicAdd(&total, (unsigned long long)load[e]); /* of integers: in any order */
    __syncthreads();
    for (int64_t e = threadIdx.x; e < a.experts; e += THREADS) {
        int64_t own = load[e] * a.experts, all = (int64_t)total;
        a.bias[blockIdx.x * a.experts + e] += own < all ? a.rate : own > all ? -a.rate : 0;
    }
}

extern "C" tsr_status tsr_balance_bias_cuda(tsr_stream *stream, const tsr_balance_bias_args *args)
{
    TSR_TRY(tsr_balance_bias_check(args));
    TSR_LAUNCH(move_biases, (unsigned)args->layers, THREADS, stream, *args);
    return tsr_launched("balance_bias");
}
