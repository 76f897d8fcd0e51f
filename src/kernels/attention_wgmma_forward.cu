/*
 * attention_wgmma_forward.cu: contract attention_wgmma.h: the forward, for what cuDNN does not take.
 *
 * Split    An item is 128 queries of one head, and goes through tiles of 128 keys, of heads wider than 128 of 64: from the first
 *          key that its first query sees to its last query. Two groups of four warps have 64 queries each; scores, weights and
 *          sums stay in registers, and weights are the left operand of the values' products as they lie there. One thread of a
 *          third group fetches, two tiles ahead.
 * Items    Of one document, or of windows, where they are much alike, a multiprocessor has one block, which goes through every so
 *          many items. Of several documents each item is a block, given to whichever multiprocessor is free.
 * Overlap  While scores of a tile become weights, values of the tile before are multiplied; while results of an item are
 *          stored, the next one's queries and keys come. Items of heads that share keys lie beside each other, for L2, and those
 *          of the last queries, which see most, come first.
 * Tiles    A group leaves tiles out that none of its queries sees, and hides keys only where some query does not see one. The
 *          tiles of an item depend on its documents alone, and so its bits do not on what other items there are.
 * Padding  May be anything. Rows of no document see nothing and become 0; values there become 0 in shared memory, where they
 *          would meet weights of 0.
 * Cost     4 D FLOPs a visible pair and query head, in tiles of 128 x 128 or 128 x 64 pairs; what L2 gives is 64 KB a tile.
 */
#include "kernels/attention_softmax.cuh"
#include "kernels/attention_wgmma.cuh"
#include "kernels/boxes.cuh"

#define GROUPS    TSR_WGMMA_GROUPS
#define THREADS   ((GROUPS + 1) * TSR_WARPGROUP)
#define ROWS      64 /* of a group */
#define QUERIES   (GROUPS * ROWS)
#define STAGES    2
#define ALIGNMENT 1024
/* Of heads of more than 128 those that fill what is multiplied; narrower ones are attention_mma.cu's, and windows of few tiles,
 * which wait for their first one. */
#define LEAST_WIDE   200
#define LEAST_WINDOW 512

/* Shared memory, for heads of WIDTH: queries, keys, values. A matrix is strips of 64 columns, 128 bytes a row. */
#define STRIPS(width)           ((width) / 64)
#define QUERY_STRIP             (QUERIES * 128)
#define QUERY_BYTES(width)      (STRIPS(width) * QUERY_STRIP)
#define TILE_BYTES(width, keys) (STRIPS(width) * (keys)*128)
#define BYTES(width, keys)      (QUERY_BYTES(width) + 2 * STAGES * TILE_BYTES(width, keys) + ALIGNMENT)

typedef struct {
    CUtensorMap q, k, v;
} forward_maps;

/* Where a block's things are, and the item that it is at. */
typedef struct {
    const attention_call *call;
    uint32_t q, k, v, full_q, empty_q, full_k, full_v, empty_k, empty_v; /* shared */
    int used;
    int head, kv_head, first, end; /* queries [first, end) */
    int start, count;              /* tiles of keys from `start` on */
    int items, tiles;              /* that the block had before, with keys */
} forward_block;

/* A thread of the groups. Its queries are two rows of scores, row and row + 8, which see keys from low on. */
typedef struct {
    int group, row, low[2];
    int from, to;   /* tiles [from, to) have a key that a query of its group sees */
    int whole_from; /* keys from here to */
    int whole_to;   /* here are seen by all of them */
    float scale;    /* of scores, in base 2 */
} forward_thread;

/* Of the item's tile `tile`. */
static __device__ __forceinline__ uint32_t stage_of(const forward_block *b, int tile)
{
    return (uint32_t)(b->tiles + tile) % STAGES;
}

static __device__ __forceinline__ unsigned parity_of(const forward_block *b, int tile)
{
    return (uint32_t)(b->tiles + tile) / STAGES % 2;
}

/* ---- copies: one thread ---- */

template <int WIDTH>
static __device__ __forceinline__ void
fetch_rows(uint32_t to, uint32_t strip, const CUtensorMap *map, int head, int row, uint32_t barrier)
{
    tsr_barrier_expect(barrier, STRIPS(WIDTH) * strip);
#pragma unroll
    for (int i = 0; i < STRIPS(WIDTH); i++)
        tsr_box_copy_of(to + i * strip, map, i * 64, row, head, barrier);
}

template <int WIDTH, int KEYS>
static __device__ __forceinline__ void fetch(const forward_block *b, const forward_maps *maps)
{
    if (b->count == 0)
        return;
    tsr_barrier_wait(b->empty_q, b->items % 2 ^ 1);
    fetch_rows<WIDTH>(b->q, QUERY_STRIP, &maps->q, b->head, b->first, b->full_q);
    for (int tile = 0; tile < b->count; tile++) {
        const uint32_t place = stage_of(b, tile) * TILE_BYTES(WIDTH, KEYS);
        const int key = b->start + tile * KEYS;
        tsr_barrier_wait(b->empty_k + 8 * stage_of(b, tile), parity_of(b, tile) ^ 1);
        fetch_rows<WIDTH>(b->k + place, KEYS * 128, &maps->k, b->kv_head, key,
                          b->full_k + 8 * stage_of(b, tile));
        tsr_barrier_wait(b->empty_v + 8 * stage_of(b, tile), parity_of(b, tile) ^ 1);
        fetch_rows<WIDTH>(b->v + place, KEYS * 128, &maps->v, b->kv_head, key,
                          b->full_v + 8 * stage_of(b, tile));
    }
}

/* ---- products ---- */

/* Q K^T of a tile, once that has come. */
template <int WIDTH, int KEYS>
static __device__ __forceinline__ void ask_scores(float score[KEYS / 8][4], const forward_block *b,
                                                  const forward_thread *t, int tile)
{
    const uint64_t queries = tsr_wgmma_rows(b->q + t->group * ROWS * 128);
    const uint64_t keys = tsr_wgmma_rows(b->k + stage_of(b, tile) * TILE_BYTES(WIDTH, KEYS));
    tsr_barrier_wait(b->full_k + 8 * stage_of(b, tile), parity_of(b, tile));
    tsr_wgmma_begin();
#pragma unroll
    for (int i = 0; i < WIDTH / 16; i++) {
        uint64_t left = queries + (i / 4 * QUERY_STRIP + i % 4 * 32) / 16;
        uint64_t right = keys + (i / 4 * KEYS * 128 + i % 4 * 32) / 16;
        if (KEYS == 128)
            tsr_wgmma_128<0>(score, left, right, i);
        else
            tsr_wgmma_64<0, 0>(score, left, right, i);
    }
    tsr_wgmma_commit();
}

/* A tile's values have come, and those of no document are 0. All threads of both groups. */
template <int WIDTH, int KEYS>
static __device__ __forceinline__ uint32_t take_values(const forward_block *b, int tile)
{
    const uint32_t v = b->v + stage_of(b, tile) * TILE_BYTES(WIDTH, KEYS);
    tsr_barrier_wait(b->full_v + 8 * stage_of(b, tile), parity_of(b, tile));
    attention_clear_rows<STRIPS(WIDTH)>(v, KEYS * 128, b->used - b->start - tile * KEYS, KEYS);
    return v;
}

/* sum += P V */
template <int WIDTH, int KEYS>
static __device__ __forceinline__ void ask_values(float sum[WIDTH / 8][4],
                                                  const uint32_t weight[KEYS / 16][4],
                                                  const forward_block *b, int tile)
{
    const uint32_t v = take_values<WIDTH, KEYS>(b, tile);
    tsr_wgmma_begin();
#pragma unroll
    for (int n = 0; n < KEYS / 16; n++) {
        if (WIDTH == 64)
            tsr_wgmma_64_of<1>(sum, weight[n], tsr_wgmma_columns(v, 0) + n * 2048 / 16);
        else
#pragma unroll
            for (int i = 0; i < WIDTH / 128; i++)
                tsr_wgmma_128_of<1>(sum + 16 * i, weight[n],
                                    tsr_wgmma_columns(v + i * 2 * KEYS * 128, KEYS * 128) +
                                        n * 2048 / 16);
    }
    tsr_wgmma_commit();
}

/* Scores become weights. Returns whether sums so far shrink, by `shrink`. */
template <int KEYS, bool CAPPED>
static __device__ __forceinline__ bool weigh(float score[KEYS / 8][4], float shrink[2],
                                             query_state state[2], const forward_block *b,
                                             const forward_thread *t, int tile)
{
    const int key = b->start + tile * KEYS;
    if (CAPPED)
        cap_scores<KEYS>(score, b->call->share_factor);
    if (key < t->whole_from || key + KEYS > t->whole_to)
        hide<KEYS>(score, t->low[0], t->low[1], t->row, key);
#pragma unroll
    for (int half = 0; half < 2; half++)
        shrink[half] = softmax_row<KEYS>(score, &state[half], half, t->scale);
    return __any_sync(0xffffffffu, shrink[0] != 1 || shrink[1] != 1);
}

template <int KEYS>
static __device__ __forceinline__ void round_weights(uint32_t weight[KEYS / 16][4],
                                                     const float score[KEYS / 8][4])
{
#pragma unroll
    for (int n = 0; n < KEYS / 16; n++)
        as_left(weight[n], score[2 * n], score[2 * n + 1]);
}

/* A tile that the group does not need, which the block fetches all the same. */
template <int WIDTH, int KEYS>
static __device__ __forceinline__ void pass(const forward_block *b, int tile)
{
    tsr_barrier_wait(b->full_k + 8 * stage_of(b, tile), parity_of(b, tile));
    attention_release(b->empty_k + 8 * stage_of(b, tile));
    take_values<WIDTH, KEYS>(b, tile);
    attention_release(b->empty_v + 8 * stage_of(b, tile));
}

/* The tiles that the group needs, of which there are some. */
template <int WIDTH, int KEYS, bool CAPPED>
static __device__ __forceinline__ void multiply(float sum[WIDTH / 8][4], query_state state[2],
                                                const forward_block *b, const forward_thread *t)
{
    float score[KEYS / 8][4], shrink[2];
    uint32_t weight[KEYS / 16][4];
    int tile = t->from;
    tsr_barrier_wait(b->full_q, b->items % 2);
    ask_scores<WIDTH, KEYS>(score, b, t, tile);
    tsr_wgmma_wait_but<0>();
    tsr_wgmma_sums<KEYS / 8>(score);
    attention_release(b->empty_k + 8 * stage_of(b, tile));
    weigh<KEYS, CAPPED>(score, shrink, state, b, t, tile); /* of sums of 0 */
    round_weights<KEYS>(weight, score);
    for (tile++; tile < t->to; tile++) {
        ask_scores<WIDTH, KEYS>(score, b, t, tile);
        ask_values<WIDTH, KEYS>(sum, weight, b, tile - 1);
        tsr_wgmma_wait_but<1>();
        tsr_wgmma_sums<KEYS / 8>(score);
        attention_release(b->empty_k + 8 * stage_of(b, tile));
        bool shrinks = weigh<KEYS, CAPPED>(score, shrink, state, b, t, tile);
        tsr_wgmma_wait_but<0>();
        tsr_wgmma_sums<WIDTH / 8>(sum);
        attention_release(b->empty_v + 8 * stage_of(b, tile - 1));
        if (shrinks)
#pragma unroll
            for (int i = 0; i < WIDTH / 8; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    sum[i][j] *= shrink[j / 2];
        round_weights<KEYS>(weight, score);
    }
    attention_release(b->empty_q);
    ask_values<WIDTH, KEYS>(sum, weight, b, tile - 1);
    tsr_wgmma_wait_but<0>();
    tsr_wgmma_sums<WIDTH / 8>(sum);
    attention_release(b->empty_v + 8 * stage_of(b, tile - 1));
}

/* ---- the kernel ---- */

template <int WIDTH, int KEYS>
static __device__ __forceinline__ forward_block block_of(const attention_call *c, uint32_t memory,
                                                         uint32_t barriers)
{
    forward_block b = {c, (memory + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT};
    b.k = b.q + QUERY_BYTES(WIDTH);
    b.v = b.k + STAGES * TILE_BYTES(WIDTH, KEYS);
    b.full_q = barriers;
    b.empty_q = b.full_q + 8;
    b.full_k = b.empty_q + 8;
    b.full_v = b.full_k + 8 * STAGES;
    b.empty_k = b.full_v + 8 * STAGES;
    b.empty_v = b.empty_k + 8 * STAGES;
    b.used = used_tokens(c);
    return b;
}

static __device__ __forceinline__ void begin_block(const forward_block *b)
{
    const unsigned warps = GROUPS * TSR_WARPGROUP / TSR_WARP;
    if (threadIdx.x == 0) {
        tsr_barrier_init(b->full_q, 1);
        tsr_barrier_init(b->empty_q, warps);
        for (int i = 0; i < STAGES; i++) {
            tsr_barrier_init(b->full_k + 8 * i, 1);
            tsr_barrier_init(b->full_v + 8 * i, 1);
            tsr_barrier_init(b->empty_k + 8 * i, warps);
            tsr_barrier_init(b->empty_v + 8 * i, warps);
        }
        tsr_barrier_made();
    }
    __syncthreads();
}

/* The block's next item of round `round`, after those that it had; false: there is none. One that is another rank's, or has
 * no keys, has no tiles. Every second round is dealt out from the other end, so that blocks end together. */
template <int KEYS> static __device__ __forceinline__ bool next_item(forward_block *b, int round)
{
    const attention_call *c = b->call;
    const int blocks = (c->tokens + QUERIES - 1) / QUERIES, all = (int)gridDim.x;
    const int item = round * all + (round % 2 ? all - 1 - (int)blockIdx.x : (int)blockIdx.x);
    b->items += b->count > 0, b->tiles += b->count;
    b->head = item % c->q_heads;
    b->kv_head = b->head / (c->q_heads / c->kv_heads);
    b->first = (blocks - 1 - item / c->q_heads) * QUERIES;
    b->end = min(b->first + QUERIES, b->used);
    b->start = b->count = 0;
    if (b->first < 0)
        return false;
    if (b->first < b->end && is_own(c, b->first)) {
        b->start = first_key(c, b->first);
        b->count = (b->end - b->start + KEYS - 1) / KEYS;
    }
    return true;
}

template <int KEYS, bool CAPPED>
static __device__ __forceinline__ forward_thread thread_of(const forward_block *b)
{
    const attention_call *c = b->call;
    const int warp = (int)threadIdx.x % TSR_WARPGROUP / TSR_WARP;
    const int lane = (int)threadIdx.x % TSR_WARP;
    forward_thread t = {};
    t.group = __shfl_sync(0xffffffffu, (int)threadIdx.x / TSR_WARPGROUP, 0);
    t.scale = scale_of<CAPPED>(c) * LOG2_E;
    const int own = b->first + t.group * ROWS, last = own + ROWS - 1;
    t.row = own + warp * 16 + lane / 4;
#pragma unroll
    for (int half = 0; half < 2; half++)
        t.low[half] = t.row + 8 * half < b->end ? first_key(c, t.row + 8 * half) : c->tokens;
    t.whole_from = last < b->end ? first_key(c, last) : c->tokens;
    t.whole_to = own + 1;
    if (own < b->end) {
        t.from = (first_key(c, own) - b->start) / KEYS;
        t.to = (min(last, b->end - 1) - b->start) / KEYS + 1;
    }
    return t;
}

/* An item's results, of the groups. */
template <int WIDTH, int KEYS, bool CAPPED>
static __device__ __forceinline__ void do_item(const forward_block *b, void *o, float *lse)
{
    const forward_thread t = thread_of<KEYS, CAPPED>(b);
    const query_state before = before_keys(b->call, b->head);
    query_state state[1][2] = {{before, before}};
    float sum[1][WIDTH / 8][4] = {};
    for (int tile = 0; tile < t.from; tile++)
        pass<WIDTH, KEYS>(b, tile);
    if (t.from < t.to)
        multiply<WIDTH, KEYS, CAPPED>(sum[0], state[0], b, &t);
    for (int tile = t.to; tile < b->count; tile++)
        pass<WIDTH, KEYS>(b, tile);
    if (b->count && t.from >= t.to)
        attention_release(b->empty_q); /* after it has waited for a tile: it is this item's turn */
    store_outputs<WIDTH, 1>(b->call, o, lse, sum, state, b->head, t.row, b->end);
}

template <int WIDTH, int KEYS, bool CAPPED>
static __device__ __forceinline__ void run(const attention_call *c, const forward_maps *maps,
                                           void *o, float *lse)
{
    extern __shared__ __align__(16) char memory[];
    __shared__ __align__(8) uint64_t barriers[2 + 4 * STAGES];
    forward_block b =
        block_of<WIDTH, KEYS>(c, tsr_shared_address(memory), tsr_shared_address(barriers));
    begin_block(&b);
    if (threadIdx.x >= GROUPS * TSR_WARPGROUP) {
        TSR_REGISTERS_DOWN(24);
        if (threadIdx.x == GROUPS * TSR_WARPGROUP)
            for (int round = 0; next_item<KEYS>(&b, round); round++)
                fetch<WIDTH, KEYS>(&b, maps);
    } else {
        TSR_REGISTERS_UP(240);
        for (int round = 0; next_item<KEYS>(&b, round); round++)
            if (is_own(c, b.first))
                do_item<WIDTH, KEYS, CAPPED>(&b, o, lse);
    }
}

/* Never called: a template that has no instance on other cards would leave what it uses without a user there. */
static __device__ __forceinline__ __attribute__((unused)) void
use_all(const attention_call *c, const forward_maps *maps, void *o, float *lse)
{
    run<64, 128, false>(c, maps, o, lse);
    run<128, 128, true>(c, maps, o, lse);
    run<256, 64, true>(c, maps, o, lse);
}

template <int WIDTH, int KEYS, bool CAPPED>
static __global__ void TSR_SM90_BOUNDS(THREADS)
    forward_blocks(const __grid_constant__ attention_call c,
                   const __grid_constant__ forward_maps maps, void *o, float *lse)
{
    tsr_kernel_begin();
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    run<WIDTH, KEYS, CAPPED>(&c, &maps, o, lse);
#endif
}

/* ---- host ---- */

typedef void forward_kernel(const attention_call, const forward_maps, void *, float *);

typedef struct {
    int width, keys, bytes;
    forward_kernel *kernel, *capped; /* capped NULL: as attention_mma.cu has it */
} forward_shape;

static const forward_shape shapes[] = {
    {64, 128, BYTES(64, 128), forward_blocks<64, 128, false>, NULL},
    {128, 128, BYTES(128, 128), forward_blocks<128, 128, false>, forward_blocks<128, 128, true>},
    {256, 64, BYTES(256, 64), forward_blocks<256, 64, false>, forward_blocks<256, 64, true>},
};

static const forward_shape *shape_for(const tsr_attention_shape *s)
{
    int dim = s->head_dim, v_dim = tsr_attention_v_dim(s->v_dim, s->head_dim);
    if (dim % TSR_VECTOR || v_dim % TSR_VECTOR || (dim > 128 && v_dim < LEAST_WIDE) ||
        (v_dim > 128 && dim < LEAST_WIDE))
        return NULL;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (dim <= shapes[i].width && v_dim <= shapes[i].width &&
            (s->softcap == 0 || shapes[i].capped))
            return &shapes[i];
    return NULL;
}

bool tsr_attention_wgmma_takes_forward(const tsr_stream *stream, const tsr_attention_args *a)
{
    const tsr_attention_shape *s = &a->shape;
    const tsr_kernels_context *context = tsr_kernels_kept(stream);
    return context && context->boxes && s->dtype == TSR_BF16 && attention_takes_cap(s->softcap) &&
           (!s->window || s->window >= LEAST_WINDOW) && tsr_attention_scale(s) > 0 &&
           s->tokens > 0 && s->tokens <= INT32_MAX / s->q_heads && shape_for(s) &&
           tsr_vectors(0, a->q, a->k, a->v, a->o);
}

tsr_status tsr_attention_forward_wgmma(tsr_stream *stream, const tsr_attention_args *a)
{
    const char *op = "attention";
    const tsr_attention_shape *s = &a->shape;
    const forward_shape *shape = shape_for(s);
    const attention_call c = attention_call_of(s, true);
    void *boxes = tsr_kernels_kept(stream)->boxes;
    forward_kernel *kernel = s->softcap > 0 ? shape->capped : shape->kernel;
    forward_maps maps = {};
    if (!tsr_map_heads(&maps.q, boxes, a->q, c.q_heads, c.tokens, c.dim, QUERIES) ||
        !tsr_map_heads(&maps.k, boxes, a->k, c.kv_heads, c.tokens, c.dim, shape->keys) ||
        !tsr_map_heads(&maps.v, boxes, a->v, c.kv_heads, c.tokens, c.v_dim, shape->keys))
        return tsr_fail(TSR_EDEVICE, "%s: the driver maps no boxes of its operands", op);
    TSR_TRY(tsr_allow_shared(stream, (const void *)kernel, shape->bytes, op));
    int64_t items = (c.tokens + QUERIES - 1) / QUERIES * (int64_t)c.q_heads;
    int64_t blocks = tsr_device_cuda_properties(tsr_stream_device(stream))->sm_count;
    if (blocks > items || (s->documents > 1 && !s->window))
        blocks = items;
    TSR_LAUNCH_SHARED(kernel, (unsigned)blocks, THREADS, shape->bytes, stream, c, maps, a->o,
                      a->lse);
    return tsr_launched(op);
}
