/*
 * rope_qkv.cu: contract rope_qkv.h; reference rope_qkv_ref.c. Positions are trusted to be in the
 * tables: whoever made them has checked.
 *
 * Lanes    rope_parts.cuh. bf16 heads of 128 without bias have rope_ring.cu. v that is only to be put where it is
 *          already is left out.
 * Split    Without sums over tokens a warp has one token and STEPS strips, all asked for at once,
 *          which share one row of the tables; g and bias come from L1. With dm (and in the backward
 *          of the heads' norm) a warp keeps one strip and goes through the tokens of a chunk, two
 *          at a time, with g and the sums in registers: the tiles of column_sum.cuh. There the
 *          positions are read ahead, 32 a time, so that the tables' rows are asked for together with
 *          the activations and not after them.
 * Cost     tokens (Hq + 2 Hkv) D elements in and out, z once more where dm or a norm needs it; and
 *          rows of the tables (4 D bytes) from L1 and L2, one for STEPS strips or for one.
 */
#include "kernels/rope_parts.cuh"

#define STEPS 4 /* 16 heads of 128, 2 blocks of 8 warps: 65 KB under way on a multiprocessor */

/* ---- token by token: the forward, and the backward without sums and norms ---- */

/* y = g z + bias of eight columns. */
static __device__ __forceinline__ void affine8(float *y, const tsr_rope_part *part, int64_t column,
                                               int count, bool whole)
{
    float g[8], bias[8];
    if (!part->g && !part->bias.data)
        return;
    tsr_float8(g, part->g, column, count, 1, whole);
    tsr_frozen8(bias, part->bias, column, count, 0, whole);
#pragma unroll
    for (int j = 0; j < 8; j++)
        y[j] = g[j] * y[j] + bias[j];
}

/* One head's columns of a lane. All lanes of the warp call where heads are normalized. */
static __device__ __forceinline__ void turn_pair(const rope_forward_args *a, const rope_lane *l,
                                                 int64_t token, const raw_pair *z,
                                                 const raw_angles *angles, bool normalized,
                                                 bool back, tsr_dtype dtype, bool whole)
{
    const rope_shape *s = &a->shape;
    const tsr_rope_part *part = &a->part[l->part];
    int64_t at = token * l->stride + l->column;
    pair8 y;
    if (normalized && l->count == 0)
        zero_pair(&y);
    else if (l->count == 0)
        return;
    else
        widen_pair(&y, z, dtype);
    if ((!normalized || l->count) && !back) {
        affine8(y.low, part, l->column, l->count, whole);
        affine8(y.high, part, l->column + s->half, l->count, whole);
    }
    float rstd = normalized ? head_rstd(&y, s->half, s->group, s->eps) : 1;
    if (normalized && l->count == 0)
        return;
    if (normalized && part->norm.data) {
        pair8 norm;
        frozen_pair(&norm, part->norm, l->i, s->half, l->count, 1, whole);
        scale_pair(&y, &norm, rstd);
    }
    if (l->part != 2)
        rotate(&y, angles, back);
    if (back && part->g) {
        pair8 g;
        float_pair(&g, part->g, l->column, s->half, l->count, 1, whole);
        scale_pair(&y, &g, 1);
    }
    store_pair(part->out, at, s->half, l->count, &y, dtype, whole);
}

/* A strip of the tiling is STEPS strips of heads, a chunk is a token a warp. */
template <bool NORMALIZED, bool BACK>
static __device__ __forceinline__ void
steps_tile(const rope_forward_args *a, const tsr_tiling *tiling, tsr_dtype dtype, bool whole)
{
    tsr_place place = tsr_place_of(tiling);
    const rope_shape *s = &a->shape;
    rope_lane l[STEPS];
    raw_pair z[STEPS];
    raw_angles angles;
    if (place.token >= place.end)
        return;
    int position = (int)tsr_load_common_word(s->positions + place.token);
#pragma unroll
    for (int u = 0; u < STEPS; u++) {
        l[u] = lane_of(s, place.strip * STEPS + u, threadIdx.x % TSR_WARP);
        if (l[u].count)
            z[u] = load_pair_once(a->part[l[u].part].z, place.token * l[u].stride + l[u].column,
                                  s->half, l[u].count, dtype, whole);
    }
    /* What hangs on the position is asked for last: ptxas would put it in the middle, where the position is
     * waited for before most loads are under way. It moves none past this. */
    __syncwarp();
    if (l[0].count && l[0].part != 2)
        angles = load_angles(s, position, l[0].i, l[0].count, whole);
#pragma unroll
    for (int u = 0; u < STEPS; u++)
        turn_pair(a, &l[u], place.token, &z[u], &angles, NORMALIZED, BACK, dtype, whole);
}

TSR_TILE_KERNELS(forward_plain, (steps_tile<false, false>), rope_forward_args, 2)
TSR_TILE_KERNELS(forward_normalized, (steps_tile<true, false>), rope_forward_args, 2)
TSR_TILE_KERNELS(back_plain, (steps_tile<false, true>), rope_forward_args, 2)

/* The shape as the kernels take it, with the lanes of a head; `v` is v's out or dz. */
static rope_shape shape_of(const tsr_rope_shape *given, const void *v)
{
    int64_t vectors = (given->head_dim / 2 + TSR_VECTOR - 1) / TSR_VECTOR;
    rope_shape s = {};
    s.cosine = given->cosine;
    s.sine = given->sine;
    s.positions = given->positions;
    s.half = given->head_dim / 2;
    s.q_heads = given->q_heads;
    s.kv_heads = given->kv_heads;
    s.heads = tsr_rope_heads(given, v);
    s.eps = given->norm_eps;
    s.group = 1;
    while (s.group < vectors)
        s.group *= 2, s.shift++;
    return s;
}

/* Strips of the heads of a warp. */
static int64_t strips_of(const rope_shape *s)
{
    return tsr_blocks(s->heads, TSR_WARP / s->group);
}

static tsr_tiling steps_tiling(int64_t tokens, int64_t strips, bool whole)
{
    tsr_tiling tiling = tsr_tiling_make(tokens, tsr_blocks(strips, STEPS), false, whole);
    tiling.chunk = TSR_TILE_WARPS;
    tiling.chunks = tsr_blocks(tokens, TSR_TILE_WARPS);
    return tiling;
}

static bool whole_tables(const rope_shape *s)
{
    return tsr_vectors(s->half, s->cosine, s->sine);
}

extern "C" tsr_status tsr_rope_qkv_cuda(tsr_stream *stream, const tsr_rope_qkv_args *args)
{
    TSR_TRY(tsr_rope_qkv_check(args));
    if (args->shape.tokens == 0)
        return TSR_OK;
    if (tsr_rope_is_odd(&args->shape))
        return tsr_rope_odd(stream, args);
    rope_forward_args a = {};
    const tsr_rope_part *v = &args->part[2];
    bool v_stays = v->out == v->z && !v->g && !v->bias.data;
    a.shape = shape_of(&args->shape, v_stays ? NULL : v->out);
    a.dtype = args->shape.dtype;
    int64_t tokens = args->shape.tokens, strips = strips_of(&a.shape), half = a.shape.half;
    bool whole = whole_tables(&a.shape), normalized = false;
    for (int p = 0; p < (v_stays ? 2 : 3); p++) {
        const tsr_rope_part *part = &args->part[p];
        a.part[p] = *part;
        normalized |= part->norm.data != NULL;
        whole &= tsr_vectors(half, part->z, part->out, part->g, part->bias.data, part->norm.data);
    }
    tsr_tiling tiling = steps_tiling(tokens, strips, whole);
    if (tsr_rope_ring_takes(&a, whole))
        tsr_rope_ring(stream, &a, tokens, strips, false);
    else if (normalized)
        TSR_TILE_LAUNCH(forward_normalized, &a, tiling, stream);
    else
        TSR_TILE_LAUNCH(forward_plain, &a, tiling, stream);
    return tsr_launched("rope_qkv");
}

/* ---- backward with sums or norms ---- */

/* What a lane keeps while it goes through the tokens. */
typedef struct {
    rope_lane lane;
    tsr_rope_backward_part part;
    pair8 g, bias, norm, sum;
} backward_lane;

/* What it has of a token. */
typedef struct {
    raw_pair dout, z;
    raw_angles angles;
} backward_input;

static __device__ __forceinline__ void load_input(backward_input *in, const backward_lane *b,
                                                  const rope_shape *s, int64_t token, int position,
                                                  tsr_dtype dtype, bool whole)
{
    const rope_lane *l = &b->lane;
    int64_t at = token * l->stride + l->column;
    if (l->count == 0)
        return;
    in->dout = load_pair(b->part.dout, at, s->half, l->count, dtype, whole);
    if (b->part.z)
        in->z = load_pair(b->part.z, at, s->half, l->count, dtype, whole);
    if (l->part != 2)
        in->angles = load_angles(s, position, l->i, l->count, whole);
}

/* One token: all lanes of the warp call. */
static __device__ __forceinline__ void back_pair(backward_lane *b, const rope_shape *s,
                                                 const backward_input *in, int64_t token,
                                                 bool normalized, tsr_dtype dtype, bool whole)
{
    const rope_lane *l = &b->lane;
    pair8 dy, z;
    zero_pair(&dy);
    zero_pair(&z);
    if (l->count) {
        widen_pair(&dy, &in->dout, dtype);
        if (l->part != 2)
            rotate(&dy, &in->angles, true);
        if (b->part.z)
            widen_pair(&z, &in->z, dtype);
    }
    if (normalized) {
        pair8 y = z;
        if (l->count)
            affine(&y, &b->g, &b->bias);
        norm_backward(&dy, &y, &b->norm, b->part.norm.data != NULL, s->half, s->group, s->eps);
    }
    if (l->count == 0)
        return;
    add_products(&b->sum, &dy, &z);
    if (normalized) {
        scale_pair(&dy, &b->g, 1);
    } else if (b->part.g) {
        float_pair(&z, b->part.g, l->column, s->half, l->count, 1, whole);
        scale_pair(&dy, &z, 1);
    }
    store_pair(b->part.dz, token * l->stride + l->column, s->half, l->count, &dy, dtype, whole);
}

/* TURNS, of tokens under way, divides TSR_WARP. */
template <bool NORMALIZED, int TURNS>
static __device__ __forceinline__ void
back_tile(const rope_backward_args *a, const tsr_tiling *tiling, tsr_dtype dtype, bool whole)
{
    tsr_place place = tsr_place_of(tiling);
    const rope_shape *s = &a->shape;
    int lane = threadIdx.x % TSR_WARP, held = 0;
    backward_lane b;
    b.lane = lane_of(s, place.strip, lane);
    b.part = b.lane.part == 0 ? a->part[0] : b.lane.part == 1 ? a->part[1] : a->part[2];
    zero_pair(&b.sum);
    zero_pair(&b.norm);
    if (NORMALIZED && b.lane.count) {
        float_pair(&b.g, b.part.g, b.lane.column, s->half, b.lane.count, 1, whole);
        frozen_pair(&b.bias, b.part.bias, b.lane.column, s->half, b.lane.count, 0, whole);
        frozen_pair(&b.norm, b.part.norm, b.lane.i, s->half, b.lane.count, 1, whole);
    }
    int64_t t = place.token;
    for (int turn = 0; t < place.end; turn += TURNS, t += TSR_TILE_WARPS * TURNS) {
        backward_input in[TURNS];
        if (turn % TSR_WARP == 0) {
            int64_t ahead = t + lane * TSR_TILE_WARPS;
            held = ahead < place.end ? (int)tsr_load_common_word(s->positions + ahead) : 0;
        }
#pragma unroll
        for (int u = 0; u < TURNS; u++) {
            int64_t token = t + u * TSR_TILE_WARPS;
            int position = __shfl_sync(0xffffffffu, held, (turn + u) % TSR_WARP);
            if (token < place.end)
                load_input(&in[u], &b, s, token, position, dtype, whole);
        }
#pragma unroll
        for (int u = 0; u < TURNS; u++) {
            int64_t token = t + u * TSR_TILE_WARPS;
            if (token < place.end)
                back_pair(&b, s, &in[u], token, NORMALIZED, dtype, whole);
        }
    }
    if (a->partials)
        write_partials(a, &place, &b.sum);
}

TSR_TILE_KERNELS(back_sums, (back_tile<false, 2>), rope_backward_args, 2)
TSR_TILE_KERNELS(back_normalized, (back_tile<true, 1>), rope_backward_args, 1)

static bool v_stays(const tsr_rope_qkv_backward_args *args)
{
    const tsr_rope_backward_part *v = &args->part[2];
    return v->dz == v->dout && !v->g && !v->dm;
}

/* The parts as the kernel reads them: z only where it is needed. Returns whether all rows can be
 * read in vectors. */
static bool take_parts(rope_backward_args *a, bool *normalized,
                       const tsr_rope_qkv_backward_args *args)
{
    bool whole = whole_tables(&a->shape);
    int64_t half = a->shape.half;
    for (int p = 0; p < (v_stays(args) ? 2 : 3); p++) {
        tsr_rope_backward_part *part = &a->part[p];
        *part = args->part[p];
        if (!part->dm && !part->norm.data)
            part->z = NULL;
        *normalized |= part->norm.data != NULL;
        whole &= tsr_vectors(half, part->dout, part->z, part->dz, part->g, part->bias.data,
                             part->norm.data);
    }
    return whole;
}

/* dz = g times dout, turned back. */
static void launch_plain(tsr_stream *stream, const rope_backward_args *a, int64_t tokens,
                         int64_t strips, bool whole)
{
    rope_forward_args plain = {};
    tsr_tiling tiling = steps_tiling(tokens, strips, whole);
    bool scaled = false;
    plain.shape = a->shape;
    plain.dtype = a->dtype;
    for (int p = 0; p < 3; p++) {
        plain.part[p].z = a->part[p].dout;
        plain.part[p].out = a->part[p].dz;
        plain.part[p].g = a->part[p].g;
        scaled |= a->part[p].g != NULL;
    }
    if (!scaled && tsr_rope_ring_takes(&plain, whole))
        tsr_rope_ring(stream, &plain, tokens, strips, true);
    else
        TSR_TILE_LAUNCH(back_plain, &plain, tiling, stream);
}

extern "C" tsr_status tsr_rope_qkv_backward_cuda(tsr_stream *stream,
                                                 const tsr_rope_qkv_backward_args *args)
{
    TSR_TRY(tsr_rope_qkv_backward_check(args));
    const tsr_rope_shape *shape = &args->shape;
    tsr_column_sums sums = {};
    for (int p = 0; p < 3; p++)
        tsr_column_sums_add(&sums, p, args->part[p].dm, args->part[p].n,
                            (int64_t)(p == 0 ? shape->q_heads : shape->kv_heads) * shape->head_dim);
    TSR_TRY(tsr_column_sums_check(&sums, args->partials, "rope_qkv_backward"));
    if (tsr_rope_is_odd(shape))
        return tsr_rope_odd_back(stream, args, &sums);
    rope_backward_args a = {};
    a.shape = shape_of(shape, v_stays(args) ? NULL : args->part[2].dz);
    a.dtype = shape->dtype;
    a.columns = sums.columns;
    a.partials = tsr_column_sums_wanted(&sums) ? args->partials : NULL;
    int64_t strips = strips_of(&a.shape);
    bool normalized = false, whole = take_parts(&a, &normalized, args);
    tsr_tiling tiling = tsr_tiling_make(shape->tokens, strips, a.partials != NULL, whole);
    if (tiling.chunks) {
        if ((normalized || a.partials) && tsr_rope_ring_takes_back(&a, whole))
            tsr_rope_ring_back(stream, &a, tiling, normalized);
        else if (normalized)
            TSR_TILE_LAUNCH(back_normalized, &a, tiling, stream);
        else if (a.partials)
            TSR_TILE_LAUNCH(back_sums, &a, tiling, stream);
        else
            launch_plain(stream, &a, shape->tokens, strips, whole);
        TSR_TRY(tsr_launched("rope_qkv_backward"));
    }
    return tsr_column_sums_finish(&sums, args->partials, tiling.chunks, stream);
}
