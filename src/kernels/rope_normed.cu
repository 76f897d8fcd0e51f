/*
 * rope_normed.cu: contract rope_qkv.h, for heads with a norm that rope_qkv.cu does not take: those of which only a part
 * turns (Qwen 3.5, GLM 4.5), and the other odd forms of rope_odd.cu.
 *
 * Split    A warp has a head of a token, a lane every 32nd column of it in registers, so that all is read before anything is
 *          written; partners come through shared memory. A block has a head, its warps the tokens of a chunk in turn.
 * Sums     A lane adds up its columns over its tokens, the block its warps in order.
 * Cost     tokens (Hq + 2 Hkv) D elements in and out, z once more in the backward of q and k; 2 or 4 bytes at a time,
 *          neighbours in a warp side by side.
 */
#include "kernels/rope_parts.cuh"

#define WARPS       8
#define MOST        512 /* columns of a head */
#define EACH        (MOST / TSR_WARP)
#define WARP_TOKENS 1 /* of a chunk, without sums */

/* How the work is split: the tokens of a block, and the columns of the partials, a row a chunk. */
typedef struct {
    int64_t chunk, columns;
    int pairs; /* of a head, that turn */
} normed_split;

/* The head of a block. */
typedef struct {
    int part, head,
        column;        /* head: counted over the three parts; column: of the head in its part */
    int64_t own, wide; /* stride of the rows of out and dout, and of z and dz */
    const float *cosine, *sine;
    int lane, warp;
} normed_head;

static __device__ __forceinline__ normed_head head_of(const tsr_rope_shape *s)
{
    normed_head h;
    h.head = (int)blockIdx.x;
    h.part = h.head < s->q_heads ? 0 : h.head < s->q_heads + s->kv_heads ? 1 : 2;
    int before = h.part == 0 ? 0 : h.part == 1 ? s->q_heads : s->q_heads + s->kv_heads;
    h.column = (h.head - before) * s->head_dim;
    h.own = (int64_t)(h.part == 0 ? s->q_heads : s->kv_heads) * s->head_dim;
    h.wide = s->stride ? s->stride : h.own;
    bool queries = h.part == 0 && s->q_cosine;
    h.cosine = queries ? s->q_cosine : s->cosine;
    h.sine = queries ? s->q_sine : s->sine;
    h.lane = (int)threadIdx.x % TSR_WARP;
    h.warp = (int)threadIdx.x / TSR_WARP;
    return h;
}

/* y = g z + bias; z as it is to `raw`. Zeros beyond the head. */
static __device__ __forceinline__ void load_linear(float y[EACH], float raw[EACH], const void *z,
                                                   int64_t at, const float *g, tsr_frozen bias,
                                                   const normed_head *h, const tsr_rope_shape *s)
{
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        int column = j * TSR_WARP + h->lane, of_part = h->column + column;
        bool there = column < s->head_dim;
        raw[j] = there ? tsr_load(z, at + of_part, s->dtype) : 0;
        y[j] = there && g ? g[of_part] * raw[j] : raw[j];
        if (there && bias.data)
            y[j] += tsr_load(bias.data, of_part, bias.dtype);
    }
}

static __device__ __forceinline__ float rstd_of(const float y[EACH], const tsr_rope_shape *s)
{
    float squares = 0;
#pragma unroll
    for (int j = 0; j < EACH; j++)
        squares += y[j] * y[j];
    return 1.0f / sqrtf(tsr_warp_sum(squares) / (float)s->head_dim + s->norm_eps);
}

static __device__ __forceinline__ float weight_at(tsr_frozen norm, int column, int dim)
{
    return column < dim ? tsr_load(norm.data, column, norm.dtype) : 0;
}

/* Turns a head by its position; back: by the negative. `shared` has a head's columns. */
static __device__ __forceinline__ void turn(float y[EACH], float *shared, const tsr_rope_shape *s,
                                            const normed_head *h, int pairs, int64_t token,
                                            bool back)
{
    int64_t row = (int64_t)s->positions[token] * pairs;
    __syncwarp();
#pragma unroll
    for (int j = 0; j < EACH; j++)
        shared[j * TSR_WARP + h->lane] = y[j];
    __syncwarp();
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        int column = j * TSR_WARP + h->lane;
        if (column >= 2 * pairs)
            continue;
        bool first = s->neighbours ? column % 2 == 0 : column < pairs;
        int away = s->neighbours ? 1 : pairs;
        int pair = s->neighbours ? column / 2 : first ? column : column - pairs;
        float other = shared[first ? column + away : column - away];
        float cosine = h->cosine[row + pair], sine = h->sine[row + pair];
        y[j] = y[j] * cosine + (first != back ? -other : other) * sine;
    }
}

static __device__ __forceinline__ void store_head(void *p, int64_t at, const float y[EACH],
                                                  const normed_head *h, const tsr_rope_shape *s)
{
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        int column = j * TSR_WARP + h->lane;
        if (column < s->head_dim)
            tsr_store(p, at + h->column + column, y[j], s->dtype);
    }
}

static __global__ void __launch_bounds__(WARPS *TSR_WARP)
    forward_normed(const __grid_constant__ tsr_rope_qkv_args args,
                   const __grid_constant__ normed_split split)
{
    tsr_kernel_begin();
    __shared__ float turned[WARPS][MOST];
    const tsr_rope_shape *s = &args.shape;
    normed_head h = head_of(s);
    const tsr_rope_part *part = &args.part[h.part];
    int64_t first = (int64_t)blockIdx.y * split.chunk, end = min(s->tokens, first + split.chunk);
    for (int64_t t = first + h.warp; t < end; t += WARPS) {
        float y[EACH], raw[EACH];
        load_linear(y, raw, part->z, t * h.wide, part->g, part->bias, &h, s);
        if (part->norm.data && h.part < 2) {
            float rstd = rstd_of(y, s);
#pragma unroll
            for (int j = 0; j < EACH; j++)
                y[j] *= rstd * weight_at(part->norm, j * TSR_WARP + h.lane, s->head_dim);
        }
        if (h.part < 2)
            turn(y, turned[h.warp], s, &h, split.pairs, t, false);
        store_head(part->out, t * h.own, y, &h, s);
    }
}

/* d of what is normed becomes that of y, of which rstd is known. */
static __device__ __forceinline__ void back_norm(float d[EACH], const float y[EACH], float rstd,
                                                 tsr_frozen norm, const normed_head *h,
                                                 const tsr_rope_shape *s)
{
    float dot = 0;
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        d[j] *= weight_at(norm, j * TSR_WARP + h->lane, s->head_dim);
        dot += d[j] * y[j];
    }
    float shift = tsr_warp_sum(dot) / (float)s->head_dim * rstd * rstd;
#pragma unroll
    for (int j = 0; j < EACH; j++)
        d[j] = rstd * (d[j] - y[j] * shift);
}

/* The sums of a block's warps to its row of the partials. */
static __device__ __forceinline__ void put_sums(float *row, float shared[WARPS][MOST],
                                                const float sum[EACH], const normed_head *h,
                                                int dim)
{
    __syncthreads();
#pragma unroll
    for (int j = 0; j < EACH; j++)
        shared[h->warp][j * TSR_WARP + h->lane] = sum[j];
    __syncthreads();
    for (int column = (int)threadIdx.x; column < dim; column += WARPS * TSR_WARP) {
        float all = 0;
        for (int warp = 0; warp < WARPS; warp++)
            all += shared[warp][column];
        row[column] = all;
    }
}

static __global__ void __launch_bounds__(WARPS *TSR_WARP)
    back_normed(const __grid_constant__ tsr_rope_qkv_backward_args args,
                const __grid_constant__ normed_split split)
{
    tsr_kernel_begin();
    __shared__ float turned[WARPS][MOST];
    const tsr_rope_shape *s = &args.shape;
    normed_head h = head_of(s);
    const tsr_rope_backward_part *part = &args.part[h.part];
    bool normed = part->norm.data && h.part < 2;
    int64_t first = (int64_t)blockIdx.y * split.chunk, end = min(s->tokens, first + split.chunk);
    float sum[EACH] = {};
    for (int64_t t = first + h.warp; t < end; t += WARPS) {
        float d[EACH], y[EACH], raw[EACH] = {};
        const tsr_frozen none = {NULL, TSR_F32};
        load_linear(d, d, part->dout, t * h.own, NULL, none, &h, s);
        if (normed || part->dm)
            load_linear(y, raw, part->z, t * h.wide, part->g, part->bias, &h, s);
        if (h.part < 2)
            turn(d, turned[h.warp], s, &h, split.pairs, t, true);
        if (normed)
            back_norm(d, y, rstd_of(y, s), part->norm, &h, s);
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            int column = j * TSR_WARP + h.lane;
            sum[j] += d[j] * raw[j];
            d[j] *= part->g && column < s->head_dim ? part->g[h.column + column] : 1;
        }
        store_head(part->dz, t * h.wide, d, &h, s);
    }
    if (part->dm)
        put_sums(args.partials + blockIdx.y * split.columns + (int64_t)h.head * s->head_dim, turned,
                 sum, &h, s->head_dim);
}

/* ---- launching ---- */

static tsr_status check_head(const char *op, const tsr_rope_shape *s)
{
    if (s->head_dim <= MOST)
        return TSR_OK;
    return tsr_fail(TSR_EUNSUPPORTED, "%s: heads of %d columns with a norm, at most %d", op,
                    s->head_dim, MOST);
}

static normed_split split_of(const tsr_rope_shape *s, int64_t chunk, int64_t columns)
{
    normed_split split = {chunk, columns, (s->rotary_dim ? s->rotary_dim : s->head_dim) / 2};
    return split;
}

static dim3 blocks_of(const tsr_rope_shape *s, const void *v, const normed_split *split)
{
    return dim3((unsigned)tsr_rope_heads(s, v), tsr_blocks(s->tokens, split->chunk));
}

tsr_status tsr_rope_normed(tsr_stream *stream, const tsr_rope_qkv_args *args)
{
    const tsr_rope_shape *s = &args->shape;
    /* The grid's second side is at most 65535. */
    int64_t chunk = max((int64_t)WARPS * WARP_TOKENS, s->tokens / 65535 + 1);
    normed_split split = split_of(s, chunk, 0);
    TSR_TRY(check_head("rope_qkv", s));
    TSR_LAUNCH(forward_normed, blocks_of(s, args->part[2].out, &split), WARPS * TSR_WARP, stream,
               *args, split);
    return tsr_launched("rope_qkv");
}

tsr_status tsr_rope_normed_back(tsr_stream *stream, const tsr_rope_qkv_backward_args *args,
                                tsr_column_sums *sums)
{
    const tsr_rope_shape *s = &args->shape;
    tsr_tiling tiling = tsr_tiling_make(s->tokens, 1, true, false);
    int64_t chunk = max((int64_t)WARPS * WARP_TOKENS, s->tokens / 65535 + 1);
    normed_split split =
        split_of(s, tsr_column_sums_wanted(sums) ? tiling.chunk : chunk, sums->columns);
    TSR_TRY(check_head("rope_qkv_backward", s));
    if (s->tokens) {
        TSR_LAUNCH(back_normed, blocks_of(s, args->part[2].dz, &split), WARPS * TSR_WARP, stream,
                   *args, split);
        TSR_TRY(tsr_launched("rope_qkv_backward"));
    }
    return tsr_column_sums_finish(sums, args->partials, tiling.chunks, stream);
}
