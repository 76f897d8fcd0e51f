/*
 * kernels/rope_parts.cuh: what the kernels of rope_qkv.h share.
 *
 * Lanes    Heads of q, k and v are counted through, so that one launch has all three. A lane has the
 *          columns i .. i + 7 of a head and their partners from i + D / 2 on; a head is 1 to 32 lanes
 *          (the power of two that covers D / 16), a strip is as many heads as fit into a warp. The
 *          heads' RMSNorm sums over its lanes.
 */
#ifndef TSR_KERNELS_ROPE_PARTS_CUH
#define TSR_KERNELS_ROPE_PARTS_CUH

#include "kernels/column_sum.cuh"

/* What both directions need of the shape. */
typedef struct {
    const float *cosine, *sine;
    const int32_t *positions;
    int64_t half;
    int q_heads, kv_heads;
    int heads;        /* of all parts */
    int group, shift; /* lanes of a head: 1 << shift */
    float eps;
} rope_shape;

/* A lane's head. Inactive lanes (behind the last head or column) have count 0. */
typedef struct {
    int part; /* 0 q, 1 k, 2 v */
    int count;
    int all;    /* the first column of the lane, counted over the three parts */
    int column; /* and in its part */
    int stride; /* of a token in its part */
    int i;      /* and in its head */
} rope_lane;

static __device__ __forceinline__ rope_lane lane_of(const rope_shape *s, int64_t strip, int lane)
{
    rope_lane l;
    int head = (int)strip * (TSR_WARP >> s->shift) + (lane >> s->shift);
    int dim = 2 * (int)s->half;
    l.i = (lane & (s->group - 1)) * TSR_VECTOR;
    l.count = head < s->heads ? tsr_column_count(l.i, s->half) : 0;
    l.all = head * dim + l.i;
    l.part = head < s->q_heads ? 0 : head < s->q_heads + s->kv_heads ? 1 : 2;
    int before = l.part == 0 ? 0 : l.part == 1 ? s->q_heads : s->q_heads + s->kv_heads;
    l.column = (head - before) * dim + l.i;
    l.stride = (l.part == 0 ? s->q_heads : s->kv_heads) * dim;
    return l;
}

/* The lane's two halves. */
typedef struct {
    float low[8], high[8];
} pair8;

typedef struct {
    tsr_raw8 low, high;
} raw_pair;

static __device__ __forceinline__ raw_pair load_pair(const void *p, int64_t at, int64_t half,
                                                     int count, tsr_dtype dtype, bool whole)
{
    raw_pair raw;
    raw.low = tsr_raw_load(p, at, count, dtype, whole);
    raw.high = tsr_raw_load(p, at + half, count, dtype, whole);
    return raw;
}

/* Where L1 shall keep the tables, g and bias. */
static __device__ __forceinline__ raw_pair load_pair_once(const void *p, int64_t at, int64_t half,
                                                          int count, tsr_dtype dtype, bool whole)
{
    raw_pair raw;
    raw.low = tsr_raw_once(p, at, count, dtype, whole);
    raw.high = tsr_raw_once(p, at + half, count, dtype, whole);
    return raw;
}

static __device__ __forceinline__ void widen_pair(pair8 *out, const raw_pair *raw, tsr_dtype dtype)
{
    tsr_raw_widen(out->low, raw->low, dtype);
    tsr_raw_widen(out->high, raw->high, dtype);
}

static __device__ __forceinline__ void store_pair(void *p, int64_t at, int64_t half, int count,
                                                  const pair8 *in, tsr_dtype dtype, bool whole)
{
    tsr_raw_store(p, at, count, in->low, dtype, whole);
    tsr_raw_store(p, at + half, count, in->high, dtype, whole);
}

static __device__ __forceinline__ void frozen_pair(pair8 *out, tsr_frozen f, int64_t at,
                                                   int64_t half, int count, float fill, bool whole)
{
    tsr_frozen8(out->low, f, at, count, fill, whole);
    tsr_frozen8(out->high, f, at + half, count, fill, whole);
}

static __device__ __forceinline__ void float_pair(pair8 *out, const float *p, int64_t at,
                                                  int64_t half, int count, float fill, bool whole)
{
    tsr_frozen f = {p, TSR_F32};
    frozen_pair(out, f, at, half, count, fill, whole);
}

/* Eight columns of the tables' row of a position. */
typedef struct {
    tsr_raw8 cosine, sine;
} raw_angles;

static __device__ __forceinline__ raw_angles load_angles(const rope_shape *s, int position,
                                                         int64_t i, int count, bool whole)
{
    raw_angles angles;
    angles.cosine = tsr_raw_load(s->cosine, position * s->half + i, count, TSR_F32, whole);
    angles.sine = tsr_raw_load(s->sine, position * s->half + i, count, TSR_F32, whole);
    return angles;
}

/* Rotates by the angles; back: by their negatives. */
static __device__ __forceinline__ void rotate(pair8 *y, const raw_angles *angles, bool back)
{
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float cosine = __uint_as_float(angles->cosine.word[j]);
        float sine = __uint_as_float(angles->sine.word[j]);
        float a = y->low[j], b = y->high[j];
        sine = back ? -sine : sine;
        y->low[j] = a * cosine - b * sine;
        y->high[j] = b * cosine + a * sine;
    }
}

/* y = g z + bias */
static __device__ __forceinline__ void affine(pair8 *y, const pair8 *g, const pair8 *bias)
{
#pragma unroll
    for (int j = 0; j < 8; j++) {
        y->low[j] = g->low[j] * y->low[j] + bias->low[j];
        y->high[j] = g->high[j] * y->high[j] + bias->high[j];
    }
}

/* The sum over the head of a b: all lanes of the warp call, inactive ones with zeros-> */
static __device__ __forceinline__ float head_dot(const pair8 *a, const pair8 *b, int group)
{
    float sum = 0;
#pragma unroll
    for (int j = 0; j < 8; j++)
        sum += a->low[j] * b->low[j] + a->high[j] * b->high[j];
    for (int offset = group / 2; offset; offset /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    return sum;
}

/* Of heads of 2 half columns. */
static __device__ __forceinline__ float head_rstd(const pair8 *y, int64_t half, int group,
                                                  float eps)
{
    return 1.0f / sqrtf(head_dot(y, y, group) / (float)(2 * half) + eps);
}

static __device__ __forceinline__ void scale_pair(pair8 *y, const pair8 *by, float factor)
{
#pragma unroll
    for (int j = 0; j < 8; j++) {
        y->low[j] = y->low[j] * factor * by->low[j];
        y->high[j] = y->high[j] * factor * by->high[j];
    }
}

/* The derivative of y rstd(y) norm: dy -> rstd (norm dy - y rstd^2 mean(norm dy y)). All lanes of the
 * warp call; of heads without a norm, where that is 1, dy stays. */
static __device__ __forceinline__ void norm_backward(pair8 *dy, const pair8 *y, const pair8 *norm,
                                                     bool has_norm, int64_t half, int group,
                                                     float eps)
{
    scale_pair(dy, norm, 1);
    float rstd = head_rstd(y, half, group, eps);
    float shift = head_dot(dy, y, group) / (float)(2 * half) * rstd * rstd;
    if (!has_norm)
        return;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        dy->low[j] = rstd * (dy->low[j] - y->low[j] * shift);
        dy->high[j] = rstd * (dy->high[j] - y->high[j] * shift);
    }
}

static __device__ __forceinline__ void zero_pair(pair8 *y)
{
    tsr_zero8(y->low);
    tsr_zero8(y->high);
}

/* ---- what a kernel is given ---- */

typedef struct {
    rope_shape shape;
    tsr_rope_part part[3]; /* of the backward: z is dout, out is dz */
    tsr_dtype dtype;
} rope_forward_args;

typedef struct {
    rope_shape shape;
    tsr_rope_backward_part part[3];
    float *partials; /* NULL: no dm */
    int64_t columns; /* of partials */
    tsr_dtype dtype;
} rope_backward_args;

/* ---- sums over tokens ---- */

static __device__ __forceinline__ void add_products(pair8 *sum, const pair8 *dy, const pair8 *z)
{
#pragma unroll
    for (int j = 0; j < 8; j++) {
        sum->low[j] += dy->low[j] * z->low[j];
        sum->high[j] += dy->high[j] * z->high[j];
    }
}

/* The block's sums into its row of the partials. A thread gets one column of one lane. */
static __device__ __forceinline__ void write_partials(const rope_backward_args *a,
                                                      const tsr_place *place, const pair8 *sum)
{
    rope_lane l = lane_of(&a->shape, place->strip, threadIdx.x / TSR_VECTOR);
    int j = threadIdx.x % TSR_VECTOR;
    float *row = a->partials + place->chunk * a->columns + l.all + j;
    float low = tsr_column_total(sum->low), high = tsr_column_total(sum->high);
    if (j >= l.count)
        return;
    row[0] = low;
    row[a->shape.half] = high;
}

/* ---- rope_odd.cu: what the lanes above do not take; with norms of heads, rope_normed.cu ---- */

bool tsr_rope_is_odd(const tsr_rope_shape *shape);
tsr_status tsr_rope_odd(tsr_stream *stream, const tsr_rope_qkv_args *args);
tsr_status tsr_rope_odd_back(tsr_stream *stream, const tsr_rope_qkv_backward_args *args,
                             tsr_column_sums *sums);
tsr_status tsr_rope_normed(tsr_stream *stream, const tsr_rope_qkv_args *args);
tsr_status tsr_rope_normed_back(tsr_stream *stream, const tsr_rope_qkv_backward_args *args,
                                tsr_column_sums *sums);

/* ---- rope_ring.cu: bf16 heads of 128 without bias ---- */

/* Whether it takes the shape, and all of the parts. With `whole` all rows can be read in vectors. */
bool tsr_rope_ring_takes(const rope_forward_args *args, bool whole);
bool tsr_rope_ring_takes_back(const rope_backward_args *args, bool whole);

/* back: args are of the backward, without g. */
void tsr_rope_ring(tsr_stream *stream, const rope_forward_args *args, int64_t tokens,
                   int64_t strips, bool back);
/* With sums or norms. */
void tsr_rope_ring_back(tsr_stream *stream, const rope_backward_args *args, tsr_tiling tiling,
                        bool normalized);

#endif
