/*
 * attention_tiles.cu: contract attention_cudnn_tiles.h: which tokens a tile has, its rows, and the sums of the tiles' shares.
 *
 * Cost     for an element of a tile's dq, dk, dv its share in bf16 and the sum in fp32 twice: 10 bytes; of its k and v, and for
 *          a span of queries once of q, o and do, 4 bytes
 */
#include "kernels/cuda.cuh"

#include "kernels/attention_cudnn_tiles.h"

#define THREADS 256

#ifdef TSR_CUDNN

/* The document whose span of queries is the row-th of the micro-batch, and which of its spans that is; false: there is none. */
static __device__ bool find_row(int *document, int *span_at, const tsr_sdpa_tiling *t, int row)
{
    for (int d = 0; d < t->documents; d++) {
        int spans = (t->cu_seqlens[d + 1] - t->cu_seqlens[d] + t->span - 1) / t->span;
        if (row < spans) {
            *document = d, *span_at = row;
            return true;
        }
        row -= spans;
    }
    return false;
}

static __global__ void __launch_bounds__(THREADS) write_tiles(const tsr_sdpa_tiling t)
{
    tsr_kernel_begin();
    int at = (int)(blockIdx.x * THREADS + threadIdx.x);
    int row = at / t.columns, back = at % t.columns, document, query;
    if (at >= t.rows * t.columns)
        return;
    tsr_sdpa_tile tile = {};
    if (find_row(&document, &query, &t, row) && back <= query) {
        int first = t.cu_seqlens[document], end = t.cu_seqlens[document + 1], key = query - back;
        int q = first + query * t.span, kv = first + key * t.span;
        int q_count = min(t.span, end - q), kv_count = min(t.span, end - kv);
        tile.list[TSR_TILE_LENGTH_Q][0] = q_count;
        tile.list[TSR_TILE_LENGTH_KV][0] = kv_count;
        tile.list[TSR_TILE_Q][1] = q_count * t.q_row;
        tile.list[TSR_TILE_KV][1] = kv_count * t.kv_row;
        tile.list[TSR_TILE_STATS][1] = q_count * t.stats_row;
        tile.list[TSR_TILE_O][1] = q_count * t.o_row;
        tile.list[TSR_TILE_V][1] = kv_count * t.v_row;
        tile.first_q = q;
        tile.first_kv = kv;
        tile.begins_q = key == 0;
        tile.diagonal = back == 0;
        tile.ends_kv = q + q_count == end;
    }
    t.tile[at] = tile;
}

tsr_status tsr_sdpa_tiling_cuda(tsr_stream *stream, const tsr_sdpa_tiling *tiling)
{
    TSR_LAUNCH(write_tiles, tsr_blocks((int64_t)tiling->rows * tiling->columns, THREADS), THREADS,
               stream, *tiling);
    return tsr_launched("attention_backward");
}

/* A block a row. */
static __global__ void __launch_bounds__(THREADS) copy_rows(const tsr_sdpa_copy c)
{
    tsr_kernel_begin();
    const tsr_sdpa_tile *tile = c.tile;
    int64_t row = blockIdx.x, token = (c.keys ? tile->first_kv : tile->first_q) + row;
    if (row >= tile->list[c.keys ? TSR_TILE_LENGTH_KV : TSR_TILE_LENGTH_Q][0])
        return;
    for (int i = 0; i < c.count; i++) {
        const tsr_sdpa_rows *r = &c.rows[i];
        for (int at = (int)threadIdx.x * 16; at < r->width; at += THREADS * 16)
            *(uint4 *)((char *)r->to + row * r->width + at) =
                *(const uint4 *)((const char *)r->from + token * r->from_row + at);
    }
}

tsr_status tsr_sdpa_copy_cuda(tsr_stream *stream, const tsr_sdpa_copy *copy)
{
    TSR_LAUNCH(copy_rows, (unsigned)copy->span, THREADS, stream, *copy);
    return tsr_launched("attention_backward");
}

/* Eight columns of a row: of the share alone, or with what there is; on, or out. */
static __device__ __forceinline__ void add_eight(const tsr_sdpa_share *s, int64_t row,
                                                 int64_t sum_row, int64_t token, int column,
                                                 bool begins, bool ends)
{
    float value[TSR_VECTOR], sum[TSR_VECTOR];
    tsr_load8(value, s->share, row * s->width + column, TSR_BF16);
    if (!begins) {
        tsr_load8(sum, s->sum, sum_row * s->width + column, TSR_F32);
#pragma unroll
        for (int i = 0; i < TSR_VECTOR; i++)
            value[i] = __fadd_rn(sum[i], value[i]);
    }
    if (ends)
        tsr_store8(s->out, token * s->out_row + column, value, TSR_BF16);
    else
        tsr_store8(s->sum, sum_row * s->width + column, value, TSR_F32);
}

/* A block a row. */
static __global__ void __launch_bounds__(THREADS) add_shares(const tsr_sdpa_add a)
{
    tsr_kernel_begin();
    const tsr_sdpa_tile *tile = a.tile;
    int64_t row = blockIdx.x;
    int64_t q = tile->first_q + row, kv = tile->first_kv + row;
    bool has_q = row < tile->list[TSR_TILE_LENGTH_Q][0];
    bool has_kv = row < tile->list[TSR_TILE_LENGTH_KV][0];
    bool begins = tile->begins_q, diagonal = tile->diagonal, ends = tile->ends_kv;
    int first = (int)threadIdx.x * TSR_VECTOR, step = THREADS * TSR_VECTOR;
    if (has_q)
        for (int column = first; column < a.dq.width; column += step)
            add_eight(&a.dq, row, row, q, column, begins, diagonal);
    if (!has_kv)
        return;
    for (int column = first; column < a.dk.width; column += step)
        add_eight(&a.dk, row, kv, kv, column, diagonal, ends);
    for (int column = first; column < a.dv.width; column += step)
        add_eight(&a.dv, row, kv, kv, column, diagonal, ends);
}

tsr_status tsr_sdpa_add_cuda(tsr_stream *stream, const tsr_sdpa_add *add)
{
    TSR_LAUNCH(add_shares, (unsigned)add->span, THREADS, stream, *add);
    return tsr_launched("attention_backward");
}

#endif
