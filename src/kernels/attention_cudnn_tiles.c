/*
 * attention_cudnn_tiles.c: contract attention_cudnn_tiles.h: how a backward is cut into tiles, and their launches.
 */
#include "kernels/attention_cudnn_tiles.h"

#include "base/checked.h"

/* One launch of 8192 queries and keys and 8 heads of 128 takes some 1.6 ms. */
#define SPAN  8192
#define LEAST 128 /* cuDNN's tiles */

/* Launches without a tile that more documents than one may make, for each span of tokens. Some 35 us each: as long as the own
 * kernel takes for short documents, should there be no others in a micro-batch. */
#define MAX_EMPTY 40

/* ---- the workspace ---- */

/* The rows of a tile for the heads of a group, its shares, and their sums. */
typedef struct {
    tsr_sdpa_tile *tile;
    void *q, *o, *d_o, *k, *v;
    float *stats, *delta;
    tsr_sdpa_share dq, dk, dv;
    uint64_t bytes;
} places;

/* Takes the next bytes; begin NULL: they are only counted. */
static void *take(places *p, char *begin, int64_t rows, int64_t columns, uint64_t element)
{
    char *taken = begin ? begin + p->bytes : NULL;
    p->bytes += tsr_align_up((uint64_t)rows * (uint64_t)columns * element, TSR_ALIGNMENT);
    return taken;
}

static places lay_out(char *begin, const tsr_sdpa_cut *cut, const tsr_attention_bounds *b)
{
    int32_t dim = b->head_dim, v_dim = tsr_attention_v_dim(b->v_dim, dim);
    int32_t q = cut->heads * dim, k = cut->kv_heads * dim, v = cut->kv_heads * v_dim;
    int64_t span = cut->span, tokens = b->tokens;
    places p = {.dq = {.width = q, .out_row = b->q_heads * dim},
                .dk = {.width = k, .out_row = b->kv_heads * dim},
                .dv = {.width = v, .out_row = b->kv_heads * v_dim}};
    p.tile = take(&p, begin, cut->rows, cut->columns, sizeof *p.tile);
    p.q = take(&p, begin, span, q, sizeof(uint16_t));
    p.o = take(&p, begin, span, cut->heads * v_dim, sizeof(uint16_t));
    p.d_o = take(&p, begin, span, cut->heads * v_dim, sizeof(uint16_t));
    p.k = take(&p, begin, span, k, sizeof(uint16_t));
    p.v = take(&p, begin, span, v, sizeof(uint16_t));
    p.stats = take(&p, begin, span, cut->heads, sizeof(float));
    p.delta = take(&p, begin, span, cut->heads, sizeof(float));
    p.dq.share = take(&p, begin, span, q, sizeof(uint16_t));
    p.dk.share = take(&p, begin, span, k, sizeof(uint16_t));
    p.dv.share = take(&p, begin, span, v, sizeof(uint16_t));
    p.dq.sum = take(&p, begin, span, q, sizeof(float));
    p.dk.sum = take(&p, begin, tokens, k, sizeof(float));
    p.dv.sum = take(&p, begin, tokens, v, sizeof(float));
    return p;
}

/* ---- cutting: known without a device ---- */

/* Whether launches of tiles of cut->span fit; rows of statistics are copied 16 bytes at a time. */
static bool fits(tsr_sdpa_cut *cut, const tsr_attention_bounds *b, uint64_t cap)
{
    uint64_t heads = cap / tsr_sdpa_head_bytes(b, cut->span, false);
    return cut->span < b->longest && tsr_sdpa_cut_heads(cut, b, (int64_t)heads) &&
           cut->heads % 4 == 0;
}

bool tsr_sdpa_cut_tiles(tsr_sdpa_cut *cut, const tsr_attention_bounds *b, uint64_t cap)
{
    for (cut->span = SPAN; !fits(cut, b, cap); cut->span /= 2)
        if (cut->span == LEAST)
            return false;
    cut->columns = (b->longest + cut->span - 1) / cut->span;
    cut->rows = (b->tokens + b->documents * (cut->span - 1)) / cut->span;
    cut->documents = cut->pieces = 1;
    if (cut->rows * cut->columns > INT32_MAX ||
        (b->documents - 1) * cut->columns * cut->groups > MAX_EMPTY * b->tokens / cut->span)
        return false;
    cut->tile_bytes = lay_out(NULL, cut, b).bytes;
    cut->plan_bytes += (uint64_t)cut->heads * tsr_sdpa_head_bytes(b, cut->span, false);
    return true;
}

/* ---- running ---- */

typedef struct {
    const tsr_sdpa_tiles *t;
    const tsr_attention_backward_args *a;
    places at;
    int32_t v_dim;
} work;

static tsr_status write_tiles(const work *w, tsr_stream *stream)
{
    const tsr_sdpa_cut *cut = w->t->cut;
    return tsr_sdpa_tiling_cuda(stream, &(tsr_sdpa_tiling){.tile = w->at.tile,
                                                           .cu_seqlens = w->a->shape.cu_seqlens,
                                                           .documents = w->a->shape.documents,
                                                           .span = (int32_t)cut->span,
                                                           .rows = (int32_t)cut->rows,
                                                           .columns = (int32_t)cut->columns,
                                                           .q_row = w->at.dq.width,
                                                           .kv_row = w->at.dk.width,
                                                           .stats_row = cut->heads,
                                                           .o_row = cut->heads * w->v_dim,
                                                           .v_row = w->at.dv.width});
}

/* The group's columns of `from`, `columns` of `all`. */
static tsr_sdpa_rows rows_of(void *to, const void *from, int32_t group, int32_t columns,
                             int32_t all, int32_t element)
{
    return (tsr_sdpa_rows){.from = (const char *)from + (int64_t)group * columns * element,
                           .to = to,
                           .width = columns * element,
                           .from_row = all * element};
}

static tsr_status copy_queries(const work *w, tsr_stream *stream, const tsr_sdpa_tile *tile,
                               int32_t group)
{
    const tsr_attention_backward_args *a = w->a;
    const places *at = &w->at;
    int32_t heads = w->t->cut->heads, all = a->shape.q_heads, o = heads * w->v_dim;
    return tsr_sdpa_copy_cuda(
        stream,
        &(tsr_sdpa_copy){.tile = tile,
                         .rows = {rows_of(at->q, a->q, group, at->dq.width, at->dq.out_row, 2),
                                  rows_of(at->o, a->o, group, o, all * w->v_dim, 2),
                                  rows_of(at->d_o, a->d_o, group, o, all * w->v_dim, 2),
                                  rows_of(at->stats, a->lse, group, heads, all, sizeof(float))},
                         .count = 4,
                         .span = (int32_t)w->t->cut->span});
}

static tsr_status copy_keys(const work *w, tsr_stream *stream, const tsr_sdpa_tile *tile,
                            int32_t group)
{
    const tsr_attention_backward_args *a = w->a;
    const places *at = &w->at;
    return tsr_sdpa_copy_cuda(
        stream,
        &(tsr_sdpa_copy){.tile = tile,
                         .rows = {rows_of(at->k, a->k, group, at->dk.width, at->dk.out_row, 2),
                                  rows_of(at->v, a->v, group, at->dv.width, at->dv.out_row, 2)},
                         .count = 2,
                         .span = (int32_t)w->t->cut->span,
                         .keys = true});
}

static void give_lists(tsr_sdpa_pack *p, const tsr_sdpa_cut *cut, const tsr_sdpa_tile *tile)
{
    static const int64_t uid[] = {TSR_UID_LENGTH_Q,  TSR_UID_LENGTH_KV,    TSR_UID_OFFSET_Q,
                                  TSR_UID_OFFSET_KV, TSR_UID_OFFSET_STATS, TSR_UID_OFFSET_O,
                                  TSR_UID_OFFSET_V};
    int count = cut->lists == TSR_SDPA_SAME_LISTS ? TSR_TILE_O : TSR_TILE_LISTS;
    for (int i = 0; i < count; i++)
        tsr_sdpa_give(p, uid[i], tile->list[i]);
}

/* cuDNN's launch of a tile. */
static tsr_status launch(const work *w, const tsr_sdpa_tile *tile, bool diagonal)
{
    const places *at = &w->at;
    tsr_sdpa_pack p;
    tsr_sdpa_pack_begin(&p, &w->a->shape);
    tsr_sdpa_give(&p, TSR_UID_Q, at->q);
    tsr_sdpa_give(&p, TSR_UID_K, at->k);
    tsr_sdpa_give(&p, TSR_UID_V, at->v);
    tsr_sdpa_give(&p, TSR_UID_O, at->o);
    tsr_sdpa_give(&p, TSR_UID_D_O, at->d_o);
    tsr_sdpa_give(&p, TSR_UID_STATS, at->stats);
    tsr_sdpa_give(&p, TSR_UID_DELTA, at->delta);
    tsr_sdpa_give(&p, TSR_UID_DQ, at->dq.share);
    tsr_sdpa_give(&p, TSR_UID_DK, at->dk.share);
    tsr_sdpa_give(&p, TSR_UID_DV, at->dv.share);
    tsr_sdpa_give(&p, TSR_UID_ONE, &p.one);
    give_lists(&p, w->t->cut, tile);
    return tsr_sdpa_execute(w->t->handle, diagonal ? w->t->diagonal : w->t->past, &p, w->t->plan);
}

/* A share of `group`: its columns of what goes out. */
static tsr_sdpa_share of_group(tsr_sdpa_share share, void *out, int32_t group)
{
    share.out = (uint16_t *)out + (int64_t)group * share.width;
    return share;
}

static tsr_status run_tile(const work *w, tsr_stream *stream, const tsr_sdpa_tile *tile,
                           bool diagonal, int32_t group)
{
    TSR_TRY(copy_keys(w, stream, tile, group));
    TSR_TRY(launch(w, tile, diagonal));
    return tsr_sdpa_add_cuda(stream, &(tsr_sdpa_add){.tile = tile,
                                                     .dq = of_group(w->at.dq, w->a->dq, group),
                                                     .dk = of_group(w->at.dk, w->a->dk, group),
                                                     .dv = of_group(w->at.dv, w->a->dv, group),
                                                     .span = (int32_t)w->t->cut->span});
}

/* A span of queries has at most those spans of keys before it that the micro-batch has. */
static tsr_status run_row(const work *w, tsr_stream *stream, int64_t row, int32_t group)
{
    const tsr_sdpa_cut *cut = w->t->cut;
    const tsr_sdpa_tile *tile = w->at.tile + row * cut->columns;
    TSR_TRY(copy_queries(w, stream, tile, group));
    for (int64_t back = row < cut->columns ? row : cut->columns - 1; back >= 0; back--)
        TSR_TRY(run_tile(w, stream, tile + back, back == 0, group));
    return TSR_OK;
}

tsr_status tsr_sdpa_backward_tiles(const tsr_sdpa_tiles *tiles, tsr_stream *stream,
                                   const tsr_attention_backward_args *args,
                                   const tsr_attention_bounds *bounds)
{
    const tsr_sdpa_cut *cut = tiles->cut;
    work w = {.t = tiles,
              .a = args,
              .at = lay_out(tiles->tiles, cut, bounds),
              .v_dim = tsr_attention_v_dim(bounds->v_dim, bounds->head_dim)};
    TSR_TRY(write_tiles(&w, stream));
    for (int32_t group = 0; group < cut->groups; group++)
        for (int64_t row = 0; row < cut->rows; row++)
            TSR_TRY(run_row(&w, stream, row, group));
    return TSR_OK;
}
