/*
 * gate.cu: contract gate.h; reference gate_ref.c.
 *
 * Split    Gates of single columns, and halves of heads: a thread has eight columns. Gates of groups: a warp has a group, whose
 *          sum is that of its lanes in a fixed order.
 * Cost     as the contract says.
 */
#include "kernels/column_sum.cuh"

#define THREADS 256
#define WARPS   (THREADS / TSR_WARP)

/* ---- gates of columns ---- */

/* y = g z + bias of eight gates from `at` on. */
static __device__ __forceinline__ void gate8(float y[8], const void *z, const float *g,
                                             tsr_frozen bias, int64_t at, int64_t gates, int count,
                                             tsr_dtype dtype, bool whole)
{
    float gain[8], shift[8];
    tsr_raw_widen(y, tsr_raw_load(z, at, count, dtype, whole), dtype);
    if (whole) {
        tsr_float8(gain, g, at % gates, count, 1, true);
        tsr_frozen8(shift, bias, at % gates, count, 0, true);
    } else {
#pragma unroll
        for (int j = 0; j < 8; j++) { /* they may be of two tokens */
            int64_t gate = (at + (j < count ? j : 0)) % gates;
            gain[j] = g ? g[gate] : 1;
            shift[j] = bias.data ? tsr_load(bias.data, gate, bias.dtype) : 0;
        }
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
        y[j] = gain[j] * y[j] + shift[j];
}

static __device__ __forceinline__ int eight_of(int64_t *at, int64_t all)
{
    *at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * TSR_VECTOR;
    return *at < all ? (int)min(all - *at, (int64_t)TSR_VECTOR) : 0;
}

static __global__ void __launch_bounds__(THREADS)
    forward_columns(const __grid_constant__ tsr_gate_args a, bool whole)
{
    tsr_kernel_begin();
    float x[8], y[8];
    int64_t at;
    int count = eight_of(&at, a.tokens * a.gates);
    if (!count)
        return;
    gate8(y, a.z, a.g, a.bias, at, a.gates, count, a.dtype, whole);
    tsr_raw_widen(x, tsr_raw_load(a.x, at, count, a.dtype, whole), a.dtype);
#pragma unroll
    for (int j = 0; j < 8; j++)
        x[j] /= 1.0f + expf(-y[j]);
    tsr_raw_store(a.out, at, count, x, a.dtype, whole);
}

static __global__ void __launch_bounds__(THREADS)
    back_columns(const __grid_constant__ tsr_gate_backward_args a, bool whole)
{
    tsr_kernel_begin();
    float x[8], y[8], d[8];
    int64_t at;
    int count = eight_of(&at, a.tokens * a.gates);
    if (!count)
        return;
    gate8(y, a.z, a.g, a.bias, at, a.gates, count, a.dtype, whole);
    tsr_raw_widen(x, tsr_raw_load(a.x, at, count, a.dtype, whole), a.dtype);
    tsr_raw_widen(d, tsr_raw_load(a.dout, at, count, a.dtype, whole), a.dtype);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float s = 1.0f / (1.0f + expf(-y[j]));
        y[j] = d[j] * x[j] * s * (1.0f - s);
        d[j] *= s;
    }
    tsr_raw_store(a.dx, at, count, d, a.dtype, whole);
    tsr_raw_store(a.dy, at, count, y, a.dtype, whole);
}

/* ---- gates of groups ---- */

static __device__ __forceinline__ float gate_of(int64_t index, const void *z, const float *g,
                                                tsr_frozen bias, int64_t gates, tsr_dtype dtype)
{
    int64_t gate = index % gates;
    float y = (g ? g[gate] : 1) * tsr_load(z, index, dtype);
    return 1.0f / (1.0f + expf(-(y + (bias.data ? tsr_load(bias.data, gate, bias.dtype) : 0))));
}

static __global__ void __launch_bounds__(THREADS)
    forward_groups(const __grid_constant__ tsr_gate_args a, bool whole)
{
    tsr_kernel_begin();
    int64_t index = (int64_t)blockIdx.x * WARPS + threadIdx.x / TSR_WARP;
    if (index >= a.tokens * a.gates)
        return;
    float s = gate_of(index, a.z, a.g, a.bias, a.gates, a.dtype), x[8];
    for (int64_t i = threadIdx.x % TSR_WARP * TSR_VECTOR; i < a.group; i += TSR_WARP * TSR_VECTOR) {
        int count = (int)min(a.group - i, (int64_t)TSR_VECTOR);
        int64_t at = index * a.group + i;
        tsr_raw_widen(x, tsr_raw_load(a.x, at, count, a.dtype, whole), a.dtype);
#pragma unroll
        for (int j = 0; j < 8; j++)
            x[j] *= s;
        tsr_raw_store(a.out, at, count, x, a.dtype, whole);
    }
}

static __global__ void __launch_bounds__(THREADS)
    back_groups(const __grid_constant__ tsr_gate_backward_args a, bool whole)
{
    tsr_kernel_begin();
    int64_t index = (int64_t)blockIdx.x * WARPS + threadIdx.x / TSR_WARP;
    if (index >= a.tokens * a.gates)
        return;
    float s = gate_of(index, a.z, a.g, a.bias, a.gates, a.dtype), x[8], d[8], sum = 0;
    for (int64_t i = threadIdx.x % TSR_WARP * TSR_VECTOR; i < a.group; i += TSR_WARP * TSR_VECTOR) {
        int count = (int)min(a.group - i, (int64_t)TSR_VECTOR);
        int64_t at = index * a.group + i;
        tsr_raw_widen(x, tsr_raw_load(a.x, at, count, a.dtype, whole), a.dtype);
        tsr_raw_widen(d, tsr_raw_load(a.dout, at, count, a.dtype, whole), a.dtype);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            sum += j < count ? d[j] * x[j] : 0;
            d[j] *= s;
        }
        tsr_raw_store(a.dx, at, count, d, a.dtype, whole);
    }
    sum = tsr_warp_sum(sum);
    if (threadIdx.x % TSR_WARP == 0)
        tsr_store(a.dy, index, sum * s * (1.0f - s), a.dtype);
}

extern "C" tsr_status tsr_gate_cuda(tsr_stream *stream, const tsr_gate_args *args)
{
    TSR_TRY(tsr_gate_check(args));
    int64_t gates = args->tokens * args->gates;
    if (gates == 0)
        return TSR_OK;
    if (args->group == 1)
        TSR_LAUNCH(forward_columns, tsr_blocks(gates, THREADS * TSR_VECTOR), THREADS, stream, *args,
                   tsr_vectors(args->gates, args->x, args->z, args->out, args->g, args->bias.data));
    else
        TSR_LAUNCH(forward_groups, tsr_blocks(gates, WARPS), THREADS, stream, *args,
                   tsr_vectors(args->group, args->x, args->out));
    return tsr_launched("gate");
}

extern "C" tsr_status tsr_gate_backward_cuda(tsr_stream *stream, const tsr_gate_backward_args *args)
{
    TSR_TRY(tsr_gate_backward_check(args));
    int64_t gates = args->tokens * args->gates;
    if (gates == 0)
        return TSR_OK;
    if (args->group == 1)
        TSR_LAUNCH(back_columns, tsr_blocks(gates, THREADS * TSR_VECTOR), THREADS, stream, *args,
                   tsr_vectors(args->gates, args->x, args->z, args->dout, args->dx, args->dy,
                               args->g, args->bias.data));
    else
        TSR_LAUNCH(back_groups, tsr_blocks(gates, WARPS), THREADS, stream, *args,
                   tsr_vectors(args->group, args->x, args->dout, args->dx));
    return tsr_launched("gate_backward");
}

/* ---- halves of heads ---- */

/* Eight columns of a half: which half, and where in it; columns of a thread are of one half where `whole`. */
static __device__ __forceinline__ int64_t half_at(int *second, int64_t at, int64_t heads,
                                                  int64_t width)
{
    int64_t column = at % (2 * heads * width), token = at / (2 * heads * width);
    int64_t head = column / (2 * width), in = column % (2 * width);
    *second = in >= width;
    return (token * heads + head) * width + in % width;
}

static __global__ void __launch_bounds__(THREADS)
    split_columns(const __grid_constant__ tsr_split_heads_args a, bool whole)
{
    tsr_kernel_begin();
    float y[8];
    int64_t at, columns = 2 * a.heads * a.width;
    int second, count = eight_of(&at, a.tokens * columns);
    if (!count)
        return;
    gate8(y, a.z, a.g, a.bias, at, columns, count, a.dtype, whole);
    if (whole) {
        int64_t to = half_at(&second, at, a.heads, a.width);
        tsr_raw_store(second ? a.second : a.first, to, count, y, a.dtype, true);
        return;
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
        if (j < count) {
            int64_t to = half_at(&second, at + j, a.heads, a.width);
            tsr_store(second ? a.second : a.first, to, y[j], a.dtype);
        }
}

static __global__ void __launch_bounds__(THREADS)
    join_columns(const __grid_constant__ tsr_split_heads_backward_args a, bool whole)
{
    tsr_kernel_begin();
    float y[8];
    int64_t at, columns = 2 * a.heads * a.width;
    int second, count = eight_of(&at, a.tokens * columns);
    if (!count)
        return;
    if (whole) {
        int64_t from = half_at(&second, at, a.heads, a.width);
        tsr_raw_widen(y, tsr_raw_load(second ? a.second : a.first, from, count, a.dtype, true),
                      a.dtype);
        tsr_raw_store(a.dy, at, count, y, a.dtype, true);
        return;
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
        if (j < count) {
            int64_t from = half_at(&second, at + j, a.heads, a.width);
            tsr_store(a.dy, at + j, tsr_load(second ? a.second : a.first, from, a.dtype), a.dtype);
        }
}

extern "C" tsr_status tsr_split_heads_cuda(tsr_stream *stream, const tsr_split_heads_args *args)
{
    TSR_TRY(tsr_split_heads_check(args));
    int64_t all = 2 * args->tokens * args->heads * args->width;
    if (all == 0)
        return TSR_OK;
    TSR_LAUNCH(
        split_columns, tsr_blocks(all, THREADS * TSR_VECTOR), THREADS, stream, *args,
        tsr_vectors(args->width, args->z, args->first, args->second, args->g, args->bias.data));
    return tsr_launched("split_heads");
}

extern "C" tsr_status tsr_split_heads_backward_cuda(tsr_stream *stream,
                                                    const tsr_split_heads_backward_args *args)
{
    TSR_TRY(tsr_split_heads_backward_check(args));
    int64_t all = 2 * args->tokens * args->heads * args->width;
    if (all == 0)
        return TSR_OK;
    TSR_LAUNCH(join_columns, tsr_blocks(all, THREADS * TSR_VECTOR), THREADS, stream, *args,
               tsr_vectors(args->width, args->first, args->second, args->dy));
    return tsr_launched("split_heads_backward");
}
