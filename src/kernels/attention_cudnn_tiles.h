/*
 * kernels/attention_cudnn_tiles.h: the backward over documents too long for one launch of cuDNN's deterministic kernel, whose
 * workspace grows with the square of what it is given. Inside src/kernels only.
 *
 * A document is cut into spans, and the pairs of its tokens into tiles: queries of one span, keys of the same or of an earlier
 * one. lse and <do, o> belong to the whole row of scores, so that each tile's launch gives its share of dq, dk and dv exactly.
 * Shares are in bf16 and are added up in fp32: dq over the spans of keys and dk, dv over those of queries, from the first on.
 * The sums depend on the length of a span and on nothing else: the bits are the same in any micro-batch and on any rank.
 *
 * Which tokens a tile has is known on the device alone (cu_seqlens). What the host launches follows from the bounds: for each
 * span of queries of a micro-batch as many tiles as it can have at most. Those that it has not are empty.
 *
 * A tile's rows are copied together before its launch. cuDNN could read them where they lie, but where there are as many key
 * heads as query heads its dq is wrong (9.14) if the offsets of queries and of keys differ.
 */
#ifndef TSR_KERNELS_ATTENTION_CUDNN_TILES_H
#define TSR_KERNELS_ATTENTION_CUDNN_TILES_H

#include "kernels/attention_cudnn.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    TSR_TILE_LENGTH_Q,
    TSR_TILE_LENGTH_KV,
    TSR_TILE_Q,
    TSR_TILE_KV,
    TSR_TILE_STATS,
    TSR_TILE_O,
    TSR_TILE_V,
    TSR_TILE_LISTS
} tsr_tile_list;

/* On the device. Lists as cuDNN reads them, each on 16 bytes: a length, or two offsets in elements. */
typedef struct {
    int32_t list[TSR_TILE_LISTS][4];
    int32_t first_q, first_kv; /* tokens of the micro-batch */
    int16_t begins_q;          /* no tile of these queries comes before it */
    int16_t diagonal;          /* none of these queries comes after it, of these keys before it */
    int16_t ends_kv;           /* none of these keys comes after it */
    int16_t padding;
} tsr_sdpa_tile;

/* ---- kernels: attention_tiles.cu ---- */

/* Tile `back` of query span `row`, back spans of keys before its own, is [row * columns + back]. */
typedef struct {
    tsr_sdpa_tile *tile; /* [rows * columns] */
    const int32_t *cu_seqlens;
    int32_t documents;
    int32_t span, rows, columns;
    int32_t q_row, kv_row, stats_row, o_row, v_row; /* elements of a token, copied together */
} tsr_sdpa_tiling;

tsr_status tsr_sdpa_tiling_cuda(tsr_stream *stream, const tsr_sdpa_tiling *tiling);

/* `width` bytes of each row, a multiple of 16. */
typedef struct {
    const void *from; /* rows of from_row bytes */
    void *to;         /* [span, width] */
    int32_t width, from_row;
} tsr_sdpa_rows;

#define TSR_SDPA_COPIES 4

/* The rows of a tile's queries, or of its keys. */
typedef struct {
    const tsr_sdpa_tile *tile;
    tsr_sdpa_rows rows[TSR_SDPA_COPIES];
    int32_t count, span;
    bool keys;
} tsr_sdpa_copy;

tsr_status tsr_sdpa_copy_cuda(tsr_stream *stream, const tsr_sdpa_copy *copy);

/* One of dq, dk, dv: a tile's share, the sums, and the tensor that they become. */
typedef struct {
    const void *share; /* BF16 [span, width] */
    float *sum;        /* [span, width] of dq, [tokens, width] of dk and dv */
    void *out;         /* BF16, rows of out_row */
    int32_t width, out_row;
} tsr_sdpa_share;

/* A tile's shares go into the sums, and those that are complete out. */
typedef struct {
    const tsr_sdpa_tile *tile;
    tsr_sdpa_share dq, dk, dv;
    int32_t span;
} tsr_sdpa_add;

tsr_status tsr_sdpa_add_cuda(tsr_stream *stream, const tsr_sdpa_add *add);

#ifdef __cplusplus
}
#endif

/* ---- tiles with cuDNN: attention_cudnn_tiles.c ---- */

#ifndef __cplusplus
#include "kernels/attention_cudnn_graph.h"

/* Cuts the backward of `bounds` into tiles of launches within `cap`. False: it cannot be, or too many documents would make too
 * many empty launches. */
bool tsr_sdpa_cut_tiles(tsr_sdpa_cut *cut, const tsr_attention_bounds *bounds, uint64_t cap);

/* What is run: the plans of tiles on the diagonal and before it, for the heads of a group. */
typedef struct {
    cudnnHandle_t handle;
    const tsr_sdpa_graph *diagonal, *past;
    const tsr_sdpa_cut *cut;
    void *tiles, *plan; /* tile_bytes, plan_bytes of the cut */
} tsr_sdpa_tiles;

/* A call within the bounds of the cut. What is of no document is cleared by the caller. */
tsr_status tsr_sdpa_backward_tiles(const tsr_sdpa_tiles *tiles, tsr_stream *stream,
                                   const tsr_attention_backward_args *args,
                                   const tsr_attention_bounds *bounds);
#endif

#endif
