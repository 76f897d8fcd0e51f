/*
 * latent_qkv.cu: contract latent_qkv.h; reference latent_qkv_ref.c.
 *
 * Split    A block a token: columns that do not turn in vectors of 8 where all rows are on 16 bytes, those that do by
 *          pairs. The shared part is turned once and written to every head; back, each warp adds up every eighth head
 *          in order, then the warps' sums are added in order.
 * Cost     as the contract says; a token's tables are read once.
 */
#include "kernels/cuda.cuh"

#define WARPS   8
#define THREADS (WARPS * TSR_WARP)
#define MOST    TSR_LATENT_MOST_ROPE

/* Some columns of every head, in rows of a token. */
typedef struct {
    int64_t first; /* of the token's first head */
    int stride;    /* from head to head */
} columns;

/* What a linear left out: magnitude and bias, from column `first` of theirs on. */
typedef struct {
    const float *g;
    tsr_frozen bias;
    int first;
} missing;

static __device__ __forceinline__ missing missing_of(const float *g, tsr_frozen bias, int first)
{
    missing m = {g, bias, first};
    return m;
}

static __device__ __forceinline__ missing nothing(void)
{
    missing none = {NULL, {NULL, TSR_F32}, 0};
    return none;
}

static __device__ __forceinline__ float settled(float value, const missing *m, int64_t column)
{
    if (m->g)
        value *= m->g[m->first + column];
    if (m->bias.data)
        value += tsr_load(m->bias.data, m->first + column, m->bias.dtype);
    return value;
}

/* `count` columns of every head; what is missing lies as `from` does. */
static __device__ __forceinline__ void copy_heads(const tsr_latent_shape *s, void *out, columns to,
                                                  const void *in, columns from, int count,
                                                  missing m, bool vectors)
{
    int each = vectors ? count / TSR_VECTOR : count;
    for (int i = threadIdx.x; i < s->heads * each; i += THREADS) {
        int head = i / each, x = i % each * (vectors ? TSR_VECTOR : 1);
        int64_t column = (int64_t)head * from.stride + x, source = from.first + column;
        int64_t target = to.first + (int64_t)head * to.stride + x;
        if (!vectors) {
            tsr_store(out, target, settled(tsr_load(in, source, s->dtype), &m, column), s->dtype);
            continue;
        }
        float value[TSR_VECTOR];
        tsr_load8(value, in, source, s->dtype);
#pragma unroll
        for (int j = 0; j < TSR_VECTOR; j++)
            value[j] = settled(value[j], &m, column + j);
        tsr_store8(out, target, value, s->dtype);
    }
}

/* Where pair i is, and how it turns. */
typedef struct {
    int low, high;
    float cosine, sine;
} pair_place;

static __device__ __forceinline__ pair_place pair_of(const tsr_latent_shape *s, int64_t position,
                                                     int i, bool back)
{
    int pairs = s->rope_dim / 2;
    float sine = s->sine[position * pairs + i];
    pair_place p = {s->neighbours ? 2 * i : i, s->neighbours ? 2 * i + 1 : i + pairs,
                    s->cosine[position * pairs + i], back ? -sine : sine};
    return p;
}

/* The turning columns of every head of q; out may be in. */
static __device__ __forceinline__ void turn_heads(const tsr_latent_shape *s, int64_t position,
                                                  void *out, const void *in, int64_t first,
                                                  missing m, bool back)
{
    int pairs = s->rope_dim / 2, wide = s->nope_dim + s->rope_dim;
    for (int i = threadIdx.x; i < s->heads * pairs; i += THREADS) {
        pair_place p = pair_of(s, position, i % pairs, back);
        int column = i / pairs * wide + s->nope_dim, low = column + p.low, high = column + p.high;
        float a = settled(tsr_load(in, first + low, s->dtype), &m, low);
        float b = settled(tsr_load(in, first + high, s->dtype), &m, high);
        tsr_store(out, first + low, a * p.cosine - b * p.sine, s->dtype);
        tsr_store(out, first + high, b * p.cosine + a * p.sine, s->dtype);
    }
}

static __global__ void __launch_bounds__(THREADS)
    forward_token(const __grid_constant__ tsr_latent_qkv_args a, bool vectors)
{
    tsr_kernel_begin();
    __shared__ float turned[MOST];
    const tsr_latent_shape *s = &a.shape;
    int nope = s->nope_dim, rope = s->rope_dim, wide = nope + rope, both = nope + s->v_dim;
    int64_t token = blockIdx.x, position = s->positions[token], row = token * s->heads;
    columns heads = {row * wide, wide}, inner = {row * both, both};
    columns values = {row * s->v_dim, s->v_dim}, rest = {row * both + nope, both};
    missing of_q = missing_of(a.q_g, a.q_bias, 0), of_kv = missing_of(a.kv_g, a.kv_bias, 0);
    for (int i = threadIdx.x; i < rope / 2; i += THREADS) {
        pair_place p = pair_of(s, position, i, false);
        float low = tsr_load(a.shared, token * rope + p.low, s->dtype);
        float high = tsr_load(a.shared, token * rope + p.high, s->dtype);
        turned[p.low] = low * p.cosine - high * p.sine;
        turned[p.high] = high * p.cosine + low * p.sine;
    }
    if (a.q != a.q_z || a.q_g || a.q_bias.data)
        copy_heads(s, a.q, heads, a.q_z, heads, nope, of_q, vectors);
    turn_heads(s, position, a.q, a.q_z, row * wide, of_q, false);
    copy_heads(s, a.k, heads, a.kv_z, inner, nope, of_kv, vectors);
    copy_heads(s, a.v, values, a.kv_z, rest, s->v_dim, missing_of(a.kv_g, a.kv_bias, nope),
               vectors);
    __syncthreads();
    for (int i = threadIdx.x; i < s->heads * rope; i += THREADS)
        tsr_store(a.k, row * wide + i / rope * wide + nope + i % rope, turned[i % rope], s->dtype);
}

/* sum[i] of column i of the turning part of dk, over all heads. */
static __device__ __forceinline__ void
add_heads(float *sum, float (*part)[MOST], const tsr_latent_shape *s, const void *dk, int64_t first)
{
    int lane = threadIdx.x % TSR_WARP, warp = threadIdx.x / TSR_WARP;
    int wide = s->nope_dim + s->rope_dim;
    for (int x = lane; x < s->rope_dim; x += TSR_WARP) {
        float total = 0;
        for (int head = warp; head < s->heads; head += WARPS)
            total += tsr_load(dk, first + (int64_t)head * wide + s->nope_dim + x, s->dtype);
        part[warp][x] = total;
    }
    __syncthreads();
    for (int x = threadIdx.x; x < s->rope_dim; x += THREADS) {
        float total = 0;
        for (int i = 0; i < WARPS; i++)
            total += part[i][x];
        sum[x] = total;
    }
    __syncthreads();
}

static __global__ void __launch_bounds__(THREADS)
    back_token(const __grid_constant__ tsr_latent_qkv_backward_args a, bool vectors)
{
    tsr_kernel_begin();
    __shared__ float part[WARPS][MOST], sum[MOST];
    const tsr_latent_shape *s = &a.shape;
    int nope = s->nope_dim, rope = s->rope_dim, wide = nope + rope, both = nope + s->v_dim;
    int64_t token = blockIdx.x, position = s->positions[token], row = token * s->heads;
    columns heads = {row * wide, wide}, inner = {row * both, both};
    columns values = {row * s->v_dim, s->v_dim}, rest = {row * both + nope, both};
    if (a.q_dy != a.dq)
        copy_heads(s, a.q_dy, heads, a.dq, heads, nope, nothing(), vectors);
    turn_heads(s, position, a.q_dy, a.dq, row * wide, nothing(), true);
    copy_heads(s, a.kv_dy, inner, a.dk, heads, nope, nothing(), vectors);
    copy_heads(s, a.kv_dy, rest, a.dv, values, s->v_dim, nothing(), vectors);
    add_heads(sum, part, s, a.dk, row * wide);
    for (int i = threadIdx.x; i < rope / 2; i += THREADS) {
        pair_place p = pair_of(s, position, i, true);
        float low = sum[p.low], high = sum[p.high];
        tsr_store(a.d_shared, token * rope + p.low, low * p.cosine - high * p.sine, s->dtype);
        tsr_store(a.d_shared, token * rope + p.high, high * p.cosine + low * p.sine, s->dtype);
    }
}

/* ---- host ---- */

static bool even_columns(const tsr_latent_shape *s)
{
    return s->nope_dim % TSR_VECTOR == 0 && s->rope_dim % TSR_VECTOR == 0 &&
           s->v_dim % TSR_VECTOR == 0;
}

extern "C" tsr_status tsr_latent_qkv_cuda(tsr_stream *stream, const tsr_latent_qkv_args *args)
{
    TSR_TRY(tsr_latent_qkv_check(args));
    bool vectors = even_columns(&args->shape) &&
                   tsr_vectors(0, args->q_z, args->kv_z, args->q, args->k, args->v);
    if (args->shape.tokens == 0)
        return TSR_OK;
    TSR_LAUNCH(forward_token, (unsigned)args->shape.tokens, THREADS, stream, *args, vectors);
    return tsr_launched("latent_qkv");
}

extern "C" tsr_status tsr_latent_qkv_backward_cuda(tsr_stream *stream,
                                                   const tsr_latent_qkv_backward_args *args)
{
    TSR_TRY(tsr_latent_qkv_backward_check(args));
    bool vectors = even_columns(&args->shape) &&
                   tsr_vectors(0, args->dq, args->dk, args->dv, args->q_dy, args->kv_dy);
    if (args->shape.tokens == 0)
        return TSR_OK;
    TSR_LAUNCH(back_token, (unsigned)args->shape.tokens, THREADS, stream, *args, vectors);
    return tsr_launched("latent_qkv_backward");
}
