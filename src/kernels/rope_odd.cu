/*
 * rope_odd.cu: contract rope_qkv.h, for what rope_qkv.cu does not take: heads of which only a part turns, pairs of
 * neighbours, tables of the queries' own, and q, k and v as columns of wider rows. No norms of heads.
 *
 * Split    A thread has one pair of columns of a head, or one column that does not turn, and the tokens of a chunk,
 *          so that it may write where it has read and that sums over tokens need nobody else.
 * Cost     tokens (Hq + 2 Hkv) D elements in and out, z once more with dm; 2 or 4 bytes at a time, neighbours in a
 *          warp side by side.
 */
#include "kernels/rope_odd.cuh"

#define THREADS      128
#define CHUNK_TOKENS 8 /* without sums */

/* Where a thread works: columns a and b of its part, of which both turn by angle `pair`, or a alone. */
typedef struct {
    int part, head, a, b;
    int pair;    /* -1: a alone */
    int64_t all; /* column a, counted over the three parts */
} odd_place;

static __device__ __forceinline__ int slots_of_head(const rope_odd_args *s)
{
    return s->dim - s->pairs;
}

static __device__ __forceinline__ odd_place place_of(const rope_odd_args *s, int slot)
{
    odd_place p;
    int slots = slots_of_head(s), head = slot / slots, i = slot % slots;
    p.part = head < s->q_heads ? 0 : head < s->q_heads + s->kv_heads ? 1 : 2;
    p.head = head - (p.part == 0 ? 0 : p.part == 1 ? s->q_heads : s->q_heads + s->kv_heads);
    p.pair = i < s->pairs ? i : -1;
    p.a = i < s->pairs ? (s->neighbours ? 2 * i : i) : i + s->pairs;
    p.b = i < s->pairs ? (s->neighbours ? 2 * i + 1 : i + s->pairs) : p.a;
    p.all = (int64_t)head * s->dim + p.a;
    return p;
}

/* Element of a row of z or dz, and of out or dout. */
static __device__ __forceinline__ int64_t wide_at(const rope_odd_args *s, const odd_place *p,
                                                  int64_t token)
{
    int64_t heads = p->part == 0 ? s->q_heads : s->kv_heads;
    return token * (s->stride ? s->stride : heads * s->dim) + (int64_t)p->head * s->dim;
}

static __device__ __forceinline__ int64_t own_at(const rope_odd_args *s, const odd_place *p,
                                                 int64_t token)
{
    int64_t heads = p->part == 0 ? s->q_heads : s->kv_heads;
    return (token * heads + p->head) * s->dim;
}

/* Turns (u, v) by the pair's angle at a position; back: by its negative. */
static __device__ __forceinline__ void turn(float *u, float *v, const rope_odd_args *s,
                                            const odd_place *p, int64_t token, bool back)
{
    bool own = p->part == 0 && s->q_cosine;
    int64_t at = (int64_t)s->positions[token] * s->pairs + p->pair;
    float cosine = (own ? s->q_cosine : s->cosine)[at], sine = (own ? s->q_sine : s->sine)[at];
    float a = *u, b = *v;
    sine = back ? -sine : sine;
    *u = a * cosine - b * sine;
    *v = b * cosine + a * sine;
}

static __device__ __forceinline__ float gain(const float *g, const odd_place *p, int dim,
                                             int column)
{
    return g ? g[p->head * dim + column] : 1;
}

static __device__ __forceinline__ float bias_at(tsr_frozen bias, const odd_place *p, int dim,
                                                int column)
{
    return bias.data ? tsr_load(bias.data, p->head * dim + column, bias.dtype) : 0;
}

static __global__ void __launch_bounds__(THREADS)
    forward_odd(const __grid_constant__ rope_odd_args s)
{
    tsr_kernel_begin();
    int slot = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (slot >= s.slots)
        return;
    odd_place p = place_of(&s, slot);
    const rope_odd_part *part = &s.part[p.part];
    float g_a = gain(part->g, &p, s.dim, p.a), g_b = gain(part->g, &p, s.dim, p.b);
    float bias_a = bias_at(part->bias, &p, s.dim, p.a);
    float bias_b = bias_at(part->bias, &p, s.dim, p.b);
    int64_t first = (int64_t)blockIdx.y * s.chunk, end = min(s.tokens, first + s.chunk);
    for (int64_t t = first; t < end; t++) {
        int64_t from = wide_at(&s, &p, t), to = own_at(&s, &p, t);
        float u = g_a * tsr_load(part->z, from + p.a, s.dtype) + bias_a;
        float v = p.pair < 0 ? 0 : g_b * tsr_load(part->z, from + p.b, s.dtype) + bias_b;
        if (p.pair >= 0 && p.part != 2)
            turn(&u, &v, &s, &p, t, false);
        tsr_store(part->out, to + p.a, u, s.dtype);
        if (p.pair >= 0)
            tsr_store(part->out, to + p.b, v, s.dtype);
    }
}

/* part.z is z, part.in dout, part.out dz. */
static __global__ void __launch_bounds__(THREADS) back_odd(const __grid_constant__ rope_odd_args s)
{
    tsr_kernel_begin();
    int slot = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (slot >= s.slots)
        return;
    odd_place p = place_of(&s, slot);
    const rope_odd_part *part = &s.part[p.part];
    float g_a = gain(part->g, &p, s.dim, p.a), g_b = gain(part->g, &p, s.dim, p.b);
    float sum_a = 0, sum_b = 0;
    int64_t first = (int64_t)blockIdx.y * s.chunk, end = min(s.tokens, first + s.chunk);
    for (int64_t t = first; t < end; t++) {
        int64_t wide = wide_at(&s, &p, t), own = own_at(&s, &p, t);
        float u = tsr_load(part->in, own + p.a, s.dtype);
        float v = p.pair < 0 ? 0 : tsr_load(part->in, own + p.b, s.dtype);
        if (p.pair >= 0 && p.part != 2)
            turn(&u, &v, &s, &p, t, true);
        if (part->sums) {
            sum_a += u * tsr_load(part->z, wide + p.a, s.dtype);
            sum_b += p.pair < 0 ? 0 : v * tsr_load(part->z, wide + p.b, s.dtype);
        }
        tsr_store(part->out, wide + p.a, g_a * u, s.dtype);
        if (p.pair >= 0)
            tsr_store(part->out, wide + p.b, g_b * v, s.dtype);
    }
    if (!part->sums)
        return;
    float *row = s.partials + blockIdx.y * s.columns + p.all;
    row[0] = sum_a;
    if (p.pair >= 0)
        row[p.b - p.a] = sum_b;
}

static void launch(tsr_stream *stream, rope_odd_args *s, bool back)
{
    s->slots = s->heads * (s->dim - s->pairs);
    if (!s->chunk)
        s->chunk = CHUNK_TOKENS;
    dim3 grid(tsr_blocks(s->slots, THREADS), tsr_blocks(s->tokens, s->chunk));
    if (back)
        TSR_LAUNCH(back_odd, grid, THREADS, stream, *s);
    else
        TSR_LAUNCH(forward_odd, grid, THREADS, stream, *s);
}

void tsr_rope_odd(tsr_stream *stream, rope_odd_args *args)
{
    launch(stream, args, false);
}

void tsr_rope_odd_back(tsr_stream *stream, rope_odd_args *args)
{
    launch(stream, args, true);
}
