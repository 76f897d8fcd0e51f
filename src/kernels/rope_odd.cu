/*
 * rope_odd.cu: contract rope_qkv.h, for what rope_qkv.cu does not take: heads of which only a part turns, pairs of
 * neighbours, tables of the queries' own, and q, k and v as columns of wider rows. With norms of heads: rope_normed.cu.
 *
 * Split    A thread has one pair of columns of a head, or one column that does not turn, and the tokens of a chunk,
 *          so that it may write where it has read and that sums over tokens need nobody else.
 * Cost     tokens (Hq + 2 Hkv) D elements in and out, z once more with dm; 2 or 4 bytes at a time, neighbours in a
 *          warp side by side.
 */
#include "kernels/rope_parts.cuh"

#define THREADS      128
#define CHUNK_TOKENS 8 /* without sums */

/* How the work is split. */
typedef struct {
    int64_t chunk;   /* tokens of a block */
    int64_t columns; /* of the partials: one row a chunk */
    int pairs;       /* of a head, that turn */
    int slots;       /* threads that have work */
} odd_split;

/* Where a thread works: columns a and b of its part, of which both turn by angle `pair`, or a alone. */
typedef struct {
    int part, a, b;
    int pair;          /* -1: a alone */
    int head;          /* counted over the three parts */
    int column;        /* of the head in its part */
    int64_t own, wide; /* stride of the rows of out and dout, and of z and dz */
    const float *cosine, *sine;
} odd_place;

static __device__ __forceinline__ odd_place place_of(const tsr_rope_shape *s,
                                                     const odd_split *split, int slot)
{
    odd_place p;
    int slots = s->head_dim - split->pairs, i = slot % slots;
    p.head = slot / slots;
    p.part = p.head < s->q_heads ? 0 : p.head < s->q_heads + s->kv_heads ? 1 : 2;
    int before = p.part == 0 ? 0 : p.part == 1 ? s->q_heads : s->q_heads + s->kv_heads;
    p.column = (p.head - before) * s->head_dim;
    p.own = (int64_t)(p.part == 0 ? s->q_heads : s->kv_heads) * s->head_dim;
    p.wide = s->stride ? s->stride : p.own;
    p.pair = i < split->pairs ? i : -1;
    p.a = p.pair < 0 ? i + split->pairs : s->neighbours ? 2 * i : i;
    p.b = p.pair < 0 ? p.a : s->neighbours ? 2 * i + 1 : i + split->pairs;
    bool queries = p.part == 0 && s->q_cosine;
    p.cosine = queries ? s->q_cosine : s->cosine;
    p.sine = queries ? s->q_sine : s->sine;
    return p;
}

/* Turns (u, v) by the pair's angle at a position; back: by its negative. */
static __device__ __forceinline__ void turn(float *u, float *v, const tsr_rope_shape *s, int pairs,
                                            const odd_place *p, int64_t token, bool back)
{
    int64_t at = (int64_t)s->positions[token] * pairs + p->pair;
    float cosine = p->cosine[at], sine = back ? -p->sine[at] : p->sine[at], a = *u, b = *v;
    *u = a * cosine - b * sine;
    *v = b * cosine + a * sine;
}

static __device__ __forceinline__ float gain(const float *g, int column)
{
    return g ? g[column] : 1;
}

static __device__ __forceinline__ float bias_at(tsr_frozen bias, int column)
{
    return bias.data ? tsr_load(bias.data, column, bias.dtype) : 0;
}

static __global__ void __launch_bounds__(THREADS)
    forward_odd(const __grid_constant__ tsr_rope_qkv_args args,
                const __grid_constant__ odd_split split)
{
    tsr_kernel_begin();
    const tsr_rope_shape *s = &args.shape;
    int slot = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (slot >= split.slots)
        return;
    odd_place p = place_of(s, &split, slot);
    const tsr_rope_part *part = &args.part[p.part];
    int a = p.column + p.a, b = p.column + p.b;
    float g_a = gain(part->g, a), g_b = gain(part->g, b);
    float bias_a = bias_at(part->bias, a), bias_b = bias_at(part->bias, b);
    int64_t first = (int64_t)blockIdx.y * split.chunk, end = min(s->tokens, first + split.chunk);
#pragma unroll 1 /* a store may be what the next token reads */
    for (int64_t t = first; t < end; t++) {
        int64_t from = t * p.wide, to = t * p.own;
        float u = g_a * tsr_load(part->z, from + a, s->dtype) + bias_a;
        float v = p.pair < 0 ? 0 : g_b * tsr_load(part->z, from + b, s->dtype) + bias_b;
        if (p.pair >= 0 && p.part != 2)
            turn(&u, &v, s, split.pairs, &p, t, false);
        tsr_store(part->out, to + a, u, s->dtype);
        if (p.pair >= 0)
            tsr_store(part->out, to + b, v, s->dtype);
    }
}

static __global__ void __launch_bounds__(THREADS)
    back_odd(const __grid_constant__ tsr_rope_qkv_backward_args args,
             const __grid_constant__ odd_split split)
{
    tsr_kernel_begin();
    const tsr_rope_shape *s = &args.shape;
    int slot = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (slot >= split.slots)
        return;
    odd_place p = place_of(s, &split, slot);
    const tsr_rope_backward_part *part = &args.part[p.part];
    int a = p.column + p.a, b = p.column + p.b;
    float g_a = gain(part->g, a), g_b = gain(part->g, b), sum_a = 0, sum_b = 0;
    int64_t first = (int64_t)blockIdx.y * split.chunk, end = min(s->tokens, first + split.chunk);
    for (int64_t t = first; t < end; t++) {
        int64_t from = t * p.own, to = t * p.wide;
        float u = tsr_load(part->dout, from + a, s->dtype);
        float v = p.pair < 0 ? 0 : tsr_load(part->dout, from + b, s->dtype);
        if (p.pair >= 0 && p.part != 2)
            turn(&u, &v, s, split.pairs, &p, t, true);
        if (part->dm) {
            sum_a += u * tsr_load(part->z, to + a, s->dtype);
            sum_b += p.pair < 0 ? 0 : v * tsr_load(part->z, to + b, s->dtype);
        }
        tsr_store(part->dz, to + a, g_a * u, s->dtype);
        if (p.pair >= 0)
            tsr_store(part->dz, to + b, g_b * v, s->dtype);
    }
    if (!part->dm)
        return;
    float *row = args.partials + blockIdx.y * split.columns + (int64_t)p.head * s->head_dim;
    row[p.a] = sum_a;
    if (p.pair >= 0)
        row[p.b] = sum_b;
}

/* ---- launching ---- */

bool tsr_rope_is_odd(const tsr_rope_shape *s)
{
    return s->neighbours || s->stride || s->q_cosine ||
           (s->rotary_dim && s->rotary_dim != s->head_dim);
}

static odd_split split_of(const tsr_rope_shape *s, const void *v, int64_t chunk, int64_t columns)
{
    int pairs = (s->rotary_dim ? s->rotary_dim : s->head_dim) / 2;
    odd_split split = {chunk, columns, pairs, tsr_rope_heads(s, v) * (s->head_dim - pairs)};
    return split;
}

static dim3 blocks_of(const odd_split *split, int64_t tokens)
{
    return dim3(tsr_blocks(split->slots, THREADS), tsr_blocks(tokens, split->chunk));
}

tsr_status tsr_rope_odd(tsr_stream *stream, const tsr_rope_qkv_args *args)
{
    if (args->part[0].norm.data || args->part[1].norm.data)
        return tsr_rope_normed(stream, args);
    odd_split split = split_of(&args->shape, args->part[2].out, CHUNK_TOKENS, 0);
    TSR_LAUNCH(forward_odd, blocks_of(&split, args->shape.tokens), THREADS, stream, *args, split);
    return tsr_launched("rope_qkv");
}

tsr_status tsr_rope_odd_back(tsr_stream *stream, const tsr_rope_qkv_backward_args *args,
                             tsr_column_sums *sums)
{
    tsr_tiling tiling = tsr_tiling_make(args->shape.tokens, 1, true, false);
    if (args->part[0].norm.data || args->part[1].norm.data)
        return tsr_rope_normed_back(stream, args, sums);
    odd_split split =
        split_of(&args->shape, args->part[2].dz,
                 tsr_column_sums_wanted(sums) ? tiling.chunk : CHUNK_TOKENS, sums->columns);
    if (args->shape.tokens) {
        TSR_LAUNCH(back_odd, blocks_of(&split, args->shape.tokens), THREADS, stream, *args, split);
        TSR_TRY(tsr_launched("rope_qkv_backward"));
    }
    return tsr_column_sums_finish(sums, args->partials, tiling.chunks, stream);
}
