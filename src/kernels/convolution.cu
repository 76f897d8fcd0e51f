/*
 * convolution.cu: contract convolution.h; reference convolution_ref.c.
 *
 * Split    A thread has eight channels of TOKENS consecutive tokens and walks them with what its taps reach in registers.
 *          Backward it begins as many taps earlier and ends as many later: the slopes of the tokens behind.
 * Cost     forward 2 tokens channels elements and a share of (taps - 1) / TOKENS more, backward 3 and twice that.
 */
#include "kernels/column_sum.cuh"

#define THREADS 128
#define TOKENS  32
#define BATCH   4 /* tokens whose loads are under way together */

/* Within 2 ulp, as in swiglu.cu. */
static __device__ __forceinline__ float sigmoid(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(1.0f + expf(-x)));
    return y;
}

/* What a thread has of the call: channels [column, column + count), their taps, of which there are at most MOST, and
 * gains. */
template <int MOST> struct lane {
    int64_t column;
    int count, taps;
    float w[MOST][TSR_VECTOR], gain[TSR_VECTOR];
};

template <int MOST>
static __device__ __forceinline__ bool lane_of(lane<MOST> *out, int64_t channels, int taps,
                                               tsr_frozen w, const float *g)
{
    out->column = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * TSR_VECTOR;
    if (out->column >= channels)
        return false;
    out->count = (int)min(channels - out->column, (int64_t)TSR_VECTOR);
    out->taps = taps;
#pragma unroll
    for (int i = 0; i < TSR_VECTOR; i++) {
        bool there = i < out->count;
        out->gain[i] = there && g ? g[out->column + i] : 1.0f;
#pragma unroll
        for (int back = 0; back < MOST; back++)
            out->w[back][i] =
                there && back < taps
                    ? tsr_load(w.data, (out->column + i) * taps + taps - 1 - back, w.dtype)
                    : 0.0f;
    }
    return true;
}

/* What is read of a few tokens, before any of it is used: zeros outside of [0, tokens). */
template <int MOST>
static __device__ __forceinline__ void read_tokens(tsr_raw8 out[BATCH], const void *z,
                                                   int64_t first, int64_t tokens, int64_t channels,
                                                   const lane<MOST> *l, tsr_dtype dtype, bool whole)
{
    const tsr_raw8 none = {};
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
        int64_t t = first + i;
        out[i] = t >= 0 && t < tokens
                     ? tsr_raw_load(z, t * channels + l->column, l->count, dtype, whole)
                     : none;
    }
}

static __device__ __forceinline__ int position_of(const int32_t *positions, int64_t t,
                                                  int64_t tokens)
{
    return t >= 0 && t < tokens ? positions[t] : 0;
}

/* The newest of a few tokens goes in front. */
template <int MOST>
static __device__ __forceinline__ void push(float held[MOST][TSR_VECTOR],
                                            const float newest[TSR_VECTOR])
{
#pragma unroll
    for (int back = MOST - 1; back > 0; back--)
#pragma unroll
        for (int i = 0; i < TSR_VECTOR; i++)
            held[back][i] = held[back - 1][i];
#pragma unroll
    for (int i = 0; i < TSR_VECTOR; i++)
        held[0][i] = newest[i];
}

template <int MOST>
static __device__ __forceinline__ void convolve(float out[TSR_VECTOR],
                                                const float held[MOST][TSR_VECTOR],
                                                const lane<MOST> *l, int position)
{
    tsr_zero8(out);
#pragma unroll
    for (int back = MOST - 1; back >= 0; back--)
#pragma unroll
        for (int i = 0; i < TSR_VECTOR; i++)
            if (back < l->taps && back <= position)
                out[i] += l->w[back][i] * held[back][i];
#pragma unroll
    for (int i = 0; i < TSR_VECTOR; i++)
        out[i] *= l->gain[i];
}

template <int MOST>
static __global__ void __launch_bounds__(THREADS)
    forward_tokens(const __grid_constant__ tsr_convolution_args a, bool whole)
{
    tsr_kernel_begin();
    lane<MOST> l;
    int64_t first = (int64_t)blockIdx.y * TOKENS, end = min(a.tokens, first + TOKENS);
    float held[MOST][TSR_VECTOR] = {}, x[TSR_VECTOR];
    if (!lane_of<MOST>(&l, a.channels, a.taps, a.w, a.g))
        return;
    for (int64_t t0 = first - a.taps + 1; t0 < end; t0 += BATCH) {
        tsr_raw8 bits[BATCH];
        read_tokens<MOST>(bits, a.z, t0, end, a.channels, &l, a.dtype, whole);
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            int64_t t = t0 + i;
            tsr_raw_widen(x, bits[i], a.dtype);
            push<MOST>(held, x);
            if (t < first || t >= end)
                continue;
            convolve<MOST>(x, held, &l, a.positions[t]);
#pragma unroll
            for (int j = 0; j < TSR_VECTOR; j++)
                x[j] *= sigmoid(x[j]);
            tsr_raw_store(a.out, t * a.channels + l.column, l.count, x, a.dtype, whole);
        }
    }
}

/* dout becomes d pre: times the slope of SiLU. */
static __device__ __forceinline__ void slope(float out[TSR_VECTOR], const float pre[TSR_VECTOR])
{
#pragma unroll
    for (int i = 0; i < TSR_VECTOR; i++) {
        float s = sigmoid(pre[i]);
        out[i] *= s * (1.0f + pre[i] * (1.0f - s));
    }
}

/* What token t gives to those before it that its taps reach: sum[back] is what t - back has so far. */
template <int MOST>
static __device__ __forceinline__ void
spread(float sum[MOST][TSR_VECTOR], const float d[TSR_VECTOR], const lane<MOST> *l, int position)
{
    float zero[TSR_VECTOR];
    tsr_zero8(zero);
    push<MOST>(sum, zero);
#pragma unroll
    for (int back = 0; back < MOST; back++)
#pragma unroll
        for (int i = 0; i < TSR_VECTOR; i++)
            if (back < l->taps && back <= position)
                sum[back][i] += l->w[back][i] * d[i];
}

/* Behind its last tap the sum of a token is whole. */
template <int MOST>
static __global__ void __launch_bounds__(THREADS)
    backward_tokens(const __grid_constant__ tsr_convolution_backward_args a, bool whole)
{
    tsr_kernel_begin();
    lane<MOST> l;
    int64_t first = (int64_t)blockIdx.y * TOKENS, end = min(a.tokens, first + TOKENS);
    int64_t last = min(a.tokens, end + a.taps - 1);
    float held[MOST][TSR_VECTOR] = {}, sum[MOST][TSR_VECTOR] = {}, x[TSR_VECTOR], d[TSR_VECTOR];
    if (!lane_of<MOST>(&l, a.channels, a.taps, a.w, a.g))
        return;
    for (int64_t t0 = first - a.taps + 1; t0 < end + a.taps - 1; t0 += BATCH) {
        tsr_raw8 bits[BATCH], d_bits[BATCH];
        read_tokens<MOST>(bits, a.z, t0, last, a.channels, &l, a.dtype, whole);
        read_tokens<MOST>(d_bits, a.dout, t0, last, a.channels, &l, a.dtype, whole);
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            int64_t t = t0 + i, done = t - a.taps + 1;
            int position = position_of(a.positions, t, a.tokens);
            tsr_raw_widen(x, bits[i], a.dtype);
            tsr_raw_widen(d, d_bits[i], a.dtype);
            push<MOST>(held, x);
            convolve<MOST>(x, held, &l, position);
            slope(d, x);
            if (t < first)
                tsr_zero8(d);
            spread<MOST>(sum, d, &l, position);
            if (done < first || done >= end)
                continue;
#pragma unroll
            for (int back = 0; back < MOST; back++)
                if (back == l.taps - 1)
                    tsr_raw_store(a.dy, done * a.channels + l.column, l.count, sum[back], a.dtype,
                                  whole);
        }
    }
}

static dim3 grid_of(int64_t tokens, int64_t channels)
{
    return dim3(tsr_blocks(channels, THREADS * TSR_VECTOR), tsr_blocks(tokens, TOKENS));
}

/* The grid's second side is at most 65535. */
static tsr_status check_tokens(const char *op, int64_t tokens)
{
    return tokens <= 65535 * (int64_t)TOKENS
               ? TSR_OK
               : tsr_fail(TSR_EUNSUPPORTED, "%s: %lld tokens, at most %lld at once", op,
                          (long long)tokens, 65535 * (long long)TOKENS);
}

extern "C" tsr_status tsr_convolution_cuda(tsr_stream *stream, const tsr_convolution_args *args)
{
    TSR_TRY(tsr_convolution_check(args));
    TSR_TRY(check_tokens("convolution", args->tokens));
    if (args->tokens == 0 || args->channels == 0)
        return TSR_OK;
    auto kernel = args->taps <= 4 ? forward_tokens<4> : forward_tokens<TSR_CONVOLUTION_MOST>;
    TSR_LAUNCH(kernel, grid_of(args->tokens, args->channels), THREADS, stream, *args,
               tsr_vectors(args->channels, args->z, args->out));
    return tsr_launched("convolution");
}

extern "C" tsr_status tsr_convolution_backward_cuda(tsr_stream *stream,
                                                    const tsr_convolution_backward_args *args)
{
    TSR_TRY(tsr_convolution_backward_check(args));
    TSR_TRY(check_tokens("convolution_backward", args->tokens));
    if (args->tokens == 0 || args->channels == 0)
        return TSR_OK;
    auto kernel = args->taps <= 4 ? backward_tokens<4> : backward_tokens<TSR_CONVOLUTION_MOST>;
    TSR_LAUNCH(kernel, grid_of(args->tokens, args->channels), THREADS, stream, *args,
               tsr_vectors(args->channels, args->z, args->dout, args->dy));
    return tsr_launched("convolution_backward");
}
