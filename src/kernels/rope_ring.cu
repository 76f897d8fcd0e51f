/*
 * rope_ring.cu: rope_qkv.h for bf16 heads of 128 without bias, with or without the heads' norm: what a step
 * of most models has. The same bits as rope_qkv.cu, which has the rest.
 *
 * Split    The tiles of column_sum.cuh: a warp keeps a strip of four heads, with g and the sums in
 *          registers, and goes through the tokens of a chunk.
 * Ring     A warp's next tokens are on their way into shared memory while it works on one, by copies that
 *          no register waits for: each lane fetches its own 16 bytes, the lanes together the tables'
 *          row, whose position was read up to 32 turns before. So no load hangs on another one, and
 *          loads and stores are mixed all the time. Nothing but a warp's own lanes waits for a stage.
 * Cost     as rope_qkv.cu; a row of the tables (512 bytes) from L2 for each strip of a token.
 */
#include "kernels/mma.cuh"
#include "kernels/rope_parts.cuh"

#define HALF        64
#define GROUP       8                  /* lanes of a head */
#define PIECE       16                 /* bytes */
#define LANES_BYTES (TSR_WARP * PIECE) /* a piece of each lane */
#define INPUT_BYTES (2 * LANES_BYTES)  /* low and high */
#define TABLE_LANES (HALF / 4)         /* that fetch a row of cosine; the others one of sine */
#define TABLE_BYTES (TSR_WARP * PIECE)

/* Of a ring: one is worked on, the others are under way. With the sums' 8 KB neither takes more shared
 * memory than a kernel has without asking. */
#define STAGES      3
#define STAGES_BACK 2

extern __shared__ __align__(16) char memory[];

/* A lane's place. Turn n is token `first` + TSR_TILE_WARPS n. */
typedef struct {
    const rope_shape *shape;
    rope_lane lane;
    const uint16_t *in[2]; /* in the first token */
    int64_t first, end;
    int turns;
    char *ring;
    int held;    /* this lane's position, of the 32 turns that are fetched now */
    bool turned; /* the warp has heads that are */
} ring_place;

/* Where the lane is; begin_ring, once `in` is there, does the rest. */
static __device__ __forceinline__ ring_place ring_place_of(const rope_shape *shape,
                                                           const tsr_place *place)
{
    ring_place p = {};
    p.shape = shape;
    p.lane = lane_of(shape, place->strip, threadIdx.x % TSR_WARP);
    p.first = place->token;
    p.end = place->end;
    return p;
}

static __device__ __forceinline__ void hold_positions(ring_place *p, int turn)
{
    int64_t token = p->first + (turn + (int)(threadIdx.x % TSR_WARP)) * (int64_t)TSR_TILE_WARPS;
    p->held = token < p->end ? (int)tsr_load_common_word(p->shape->positions + token) : 0;
}

template <int INPUTS, int COUNT>
static __device__ __forceinline__ char *stage_of(const ring_place *p, int turn)
{
    return p->ring + turn % COUNT * (INPUTS * INPUT_BYTES + TABLE_BYTES);
}

static __device__ __forceinline__ void fetch(char *to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(tsr_shared_address(to)),
                 "l"(from)
                 : "memory");
}

/* Each lane its own pieces. */
template <int INPUTS, int COUNT>
static __device__ __forceinline__ void fetch_heads(const ring_place *p, int turn)
{
    char *to = stage_of<INPUTS, COUNT>(p, turn) + threadIdx.x % TSR_WARP * PIECE;
    int64_t at = (int64_t)turn * TSR_TILE_WARPS * p->lane.stride;
    if (turn >= p->turns || p->lane.count == 0)
        return;
#pragma unroll
    for (int i = 0; i < INPUTS; i++) {
        fetch(to + i * INPUT_BYTES, p->in[i] + at);
        fetch(to + i * INPUT_BYTES + LANES_BYTES, p->in[i] + at + HALF);
    }
}

/* All lanes call. */
template <int INPUTS, int COUNT>
static __device__ __forceinline__ void fetch_angles(const ring_place *p, int turn)
{
    int lane = threadIdx.x % TSR_WARP;
    if (turn >= p->turns || !p->turned)
        return;
    int64_t position = __shfl_sync(0xffffffffu, p->held, turn % TSR_WARP);
    const float *table = lane < TABLE_LANES ? p->shape->cosine : p->shape->sine;
    fetch(stage_of<INPUTS, COUNT>(p, turn) + INPUTS * INPUT_BYTES + lane * PIECE,
          table + position * HALF + lane % TABLE_LANES * 4);
}

/* The lane's pointers are there: asks for what the first turns need. */
template <int INPUTS, int COUNT> static __device__ __forceinline__ void begin_ring(ring_place *p)
{
    p->turns =
        p->first < p->end ? (int)((p->end - p->first + TSR_TILE_WARPS - 1) / TSR_TILE_WARPS) : 0;
    p->turned = __any_sync(0xffffffffu, p->lane.count && p->lane.part != 2);
    p->ring = memory + threadIdx.x / TSR_WARP * (COUNT * (INPUTS * INPUT_BYTES + TABLE_BYTES));
    hold_positions(p, 0);
#pragma unroll
    for (int turn = 0; turn < COUNT - 1; turn++)
        fetch_heads<INPUTS, COUNT>(p, turn);
#pragma unroll
    for (int turn = 0; turn < COUNT - 1; turn++) {
        fetch_angles<INPUTS, COUNT>(p, turn);
        tsr_copy_commit();
    }
}

/* The stage of a turn, when it is there; the one COUNT - 1 turns on is asked for. */
template <int INPUTS, int COUNT>
static __device__ __forceinline__ const char *next_stage(ring_place *p, int turn)
{
    int ahead = turn + COUNT - 1;
    if (ahead % TSR_WARP == 0)
        hold_positions(p, ahead);
    fetch_heads<INPUTS, COUNT>(p, ahead);
    fetch_angles<INPUTS, COUNT>(p, ahead);
    tsr_copy_commit();
    asm volatile("cp.async.wait_group %0;" ::"n"(COUNT - 1) : "memory");
    __syncwarp(); /* the tables' row is of all lanes */
    return stage_of<INPUTS, COUNT>(p, turn);
}

static __device__ __forceinline__ void staged_pair(pair8 *out, const char *stage)
{
    raw_pair raw;
    const char *own = stage + threadIdx.x % TSR_WARP * PIECE;
    tsr_raw_quad(raw.low.word, *(const uint4 *)own);
    tsr_raw_quad(raw.high.word, *(const uint4 *)(own + LANES_BYTES));
    widen_pair(out, &raw, TSR_BF16);
}

static __device__ __forceinline__ void rotate_staged(pair8 *y, const char *table, int i, bool back)
{
    const uint4 *cosine = (const uint4 *)table + i / 4, *sine = cosine + TABLE_LANES;
    raw_angles angles;
    tsr_raw_quad(angles.cosine.word, cosine[0]);
    tsr_raw_quad(angles.cosine.word + 4, cosine[1]);
    tsr_raw_quad(angles.sine.word, sine[0]);
    tsr_raw_quad(angles.sine.word + 4, sine[1]);
    rotate(y, &angles, back);
}

static __device__ __forceinline__ void store_bf16(uint16_t *out, const pair8 *y)
{
    store_pair(out, 0, HALF, TSR_VECTOR, y, TSR_BF16, true);
}

/* ---- forward, and backward without sums ---- */

/* As many turns are unrolled as the ring has stages, whose places are constants then. It takes 72 to 80
 * registers, so that three blocks are on a multiprocessor: four, which read from more places at a time, are
 * slower. With g and norm it takes more. Where heads are normalized, lanes behind the last one add up what lies
 * there, among themselves. */
#define FORWARD_BLOCKS(scaled, normed) ((scaled) && (normed) ? 2 : 3)

template <bool SCALED, bool NORMED, bool BACK>
static __global__ void __launch_bounds__(TSR_TILE_THREADS, FORWARD_BLOCKS(SCALED, NORMED))
    ring_forward(const __grid_constant__ rope_forward_args a,
                 const __grid_constant__ tsr_tiling tiling)
{
    tsr_kernel_begin();
    tsr_place place = tsr_place_of(&tiling);
    ring_place p = ring_place_of(&a.shape, &place);
    const rope_lane *l = &p.lane;
    tsr_rope_part part = l->part == 0 ? a.part[0] : l->part == 1 ? a.part[1] : a.part[2];
    p.in[0] = (const uint16_t *)part.z + p.first * l->stride + l->column;
    uint16_t *out = (uint16_t *)part.out + p.first * l->stride + l->column;
    begin_ring<1, STAGES>(&p);
    pair8 g, norm, none;
    zero_pair(&none);
    if (SCALED)
        float_pair(&g, l->count ? part.g : NULL, l->column, HALF, TSR_VECTOR, 1, true);
    if (NORMED)
        frozen_pair(&norm, part.norm, l->i, HALF, TSR_VECTOR, 1, true);
#pragma unroll 3
    for (int turn = 0; turn < p.turns; turn++) {
        const char *stage = next_stage<1, STAGES>(&p, turn);
        if (NORMED || l->count) {
            pair8 y;
            staged_pair(&y, stage);
            if (SCALED)
                affine(&y, &g, &none);
            if (NORMED) {
                float rstd = head_rstd(&y, HALF, GROUP, a.shape.eps);
                if (part.norm.data)
                    scale_pair(&y, &norm, rstd);
            }
            if (l->part != 2)
                rotate_staged(&y, stage + INPUT_BYTES, l->i, BACK);
            if (l->count)
                store_bf16(out + (int64_t)turn * TSR_TILE_WARPS * l->stride, &y);
        }
        __syncwarp(); /* all have read what is overwritten next */
    }
}

/* ---- backward with sums or norms ---- */

/* SCALED: with g and sums. A part without sums and norm has no z; what is read in its place goes nowhere. */
template <bool SCALED, bool NORMED>
static __global__ void __launch_bounds__(TSR_TILE_THREADS, SCALED ? 2 : 3)
    ring_back(const __grid_constant__ rope_backward_args a,
              const __grid_constant__ tsr_tiling tiling)
{
    tsr_kernel_begin();
    tsr_place place = tsr_place_of(&tiling);
    ring_place p = ring_place_of(&a.shape, &place);
    const rope_lane *l = &p.lane;
    tsr_rope_backward_part part = l->part == 0 ? a.part[0] : l->part == 1 ? a.part[1] : a.part[2];
    int64_t at = p.first * l->stride + l->column;
    p.in[0] = (const uint16_t *)part.dout + at;
    p.in[1] = (const uint16_t *)(part.z ? part.z : part.dout) + at;
    uint16_t *out = (uint16_t *)part.dz + at;
    begin_ring<2, STAGES_BACK>(&p);
    pair8 g, norm, none, sum;
    zero_pair(&none);
    zero_pair(&sum);
    if (SCALED)
        float_pair(&g, l->count ? part.g : NULL, l->column, HALF, TSR_VECTOR, 1, true);
    if (NORMED)
        frozen_pair(&norm, part.norm, l->i, HALF, TSR_VECTOR, 1, true);
    for (int turn = 0; turn < p.turns; turn++) {
        const char *stage = next_stage<2, STAGES_BACK>(&p, turn);
        if (NORMED || l->count) {
            pair8 dy, z;
            staged_pair(&dy, stage);
            if (l->part != 2)
                rotate_staged(&dy, stage + 2 * INPUT_BYTES, l->i, true);
            staged_pair(&z, stage + INPUT_BYTES);
            if (NORMED) {
                if (SCALED)
                    affine(&z, &g, &none);
                norm_backward(&dy, &z, &norm, part.norm.data != NULL, HALF, GROUP, a.shape.eps);
                if (SCALED)
                    staged_pair(&z, stage + INPUT_BYTES);
            }
            if (SCALED) {
                add_products(&sum, &dy, &z);
                scale_pair(&dy, &g, 1);
            }
            if (l->count)
                store_bf16(out + (int64_t)turn * TSR_TILE_WARPS * l->stride, &dy);
        }
        __syncwarp(); /* all have read what is overwritten next */
    }
    if (SCALED && a.partials)
        write_partials(&a, &place, &sum);
}

/* ---- which, and launching ---- */

static bool takes_shape(const rope_shape *s, tsr_dtype dtype, bool whole)
{
    return whole && dtype == TSR_BF16 && s->half == HALF;
}

/* A part without g beside one that has one would have its negative zeros changed. */
bool tsr_rope_ring_takes(const rope_forward_args *args, bool whole)
{
    const tsr_rope_part *p = args->part;
    bool scaled = p[0].g != NULL, takes = takes_shape(&args->shape, args->dtype, whole);
    for (int i = 0; i < 3; i++)
        if (p[i].out)
            takes = takes && (p[i].g != NULL) == scaled && !p[i].bias.data;
    return takes;
}

bool tsr_rope_ring_takes_back(const rope_backward_args *args, bool whole)
{
    bool takes = takes_shape(&args->shape, args->dtype, whole);
    for (int i = 0; i < 3; i++)
        takes = takes && !(args->part[i].norm.data && args->part[i].bias.data);
    return takes;
}

#define LAUNCH(kernel, bytes, args, tiling)                                                        \
    TSR_LAUNCH_SHARED((kernel), tsr_tiling_blocks(&(tiling)), TSR_TILE_THREADS, bytes, stream,     \
                      *(args), tiling)

void tsr_rope_ring(tsr_stream *stream, const rope_forward_args *args, int64_t tokens,
                   int64_t strips, bool back)
{
    tsr_tiling tiling = tsr_tiling_make(tokens, strips, false, true);
    size_t bytes = TSR_TILE_WARPS * STAGES * (INPUT_BYTES + TABLE_BYTES);
    bool scaled = args->part[0].g, normed = args->part[0].norm.data || args->part[1].norm.data;
    if (back)
        LAUNCH((ring_forward<false, false, true>), bytes, args, tiling);
    else if (scaled && normed)
        LAUNCH((ring_forward<true, true, false>), bytes, args, tiling);
    else if (normed)
        LAUNCH((ring_forward<false, true, false>), bytes, args, tiling);
    else if (scaled)
        LAUNCH((ring_forward<true, false, false>), bytes, args, tiling);
    else
        LAUNCH((ring_forward<false, false, false>), bytes, args, tiling);
}

void tsr_rope_ring_back(tsr_stream *stream, const rope_backward_args *args, tsr_tiling tiling,
                        bool normalized)
{
    size_t bytes = TSR_TILE_WARPS * STAGES_BACK * (2 * INPUT_BYTES + TABLE_BYTES);
    bool scaled = args->partials != NULL;
    for (int i = 0; i < 3; i++)
        scaled = scaled || args->part[i].g;
    if (!normalized)
        LAUNCH((ring_back<true, false>), bytes, args, tiling);
    else if (scaled)
        LAUNCH((ring_back<true, true>), bytes, args, tiling);
    else
        LAUNCH((ring_back<false, true>), bytes, args, tiling);
}
