/*
 * attention_cudnn_tiles.c: contract attention_cudnn_tiles.h: how a backward is cut into tiles, and their launches.
 */
#include "kernels/attention_cudnn_tiles.h"

/* One launch of 8192 queries and keys and 8 heads of 128 takes some 1.6 ms. */
#define SPAN  8192
#define LEAST 128 /* cuDNN's tiles */

/* Launches without a tile, of some 30 us each, that more documents than one may make. */
#define MAX_EMPTY 1024

/* ---- cutting: known without a device ---- */

static uint64_t rounded(uint64_t bytes)
{
    return (bytes + TSR_ALIGNMENT - 1) / TSR_ALIGNMENT * TSR_ALIGNMENT;
}

/* dS, and where heads share keys dk and dv of each, in bf16. */
static uint64_t head_bytes(const tsr_attention_bounds *b, int64_t span)
{
    int32_t v_dim = tsr_attention_v_dim(b->v_dim, b->head_dim);
    int64_t columns = span + (b->kv_heads < b->q_heads ? b->head_dim + v_dim : 0);
    return (uint64_t)span * (uint64_t)columns * 2;
}

/* As many key heads as fit with their query heads. */
static bool cut_heads(tsr_sdpa_cut *cut, const tsr_attention_bounds *b, uint64_t cap)
{
    int32_t group = b->q_heads / b->kv_heads, kv = b->kv_heads;
    uint64_t heads = cap / head_bytes(b, cut->span);
    /* The statistics of a group of heads begin on 16 bytes. */
    while (kv > 0 &&
           (b->kv_heads % kv || (uint64_t)kv * (uint64_t)group > heads || kv * group % 4))
        kv--;
    if (kv == 0)
        return false;
    cut->kv_heads = kv;
    cut->heads = kv * group;
    cut->groups = b->kv_heads / kv;
    return true;
}

static uint64_t shares_bytes(const tsr_sdpa_cut *cut, const tsr_attention_bounds *b, uint64_t rows)
{
    uint64_t kv = (uint64_t)cut->kv_heads * sizeof(uint16_t);
    uint64_t v_dim = (uint64_t)tsr_attention_v_dim(b->v_dim, b->head_dim);
    return rounded(rows * (uint64_t)cut->heads * (uint64_t)b->head_dim * sizeof(uint16_t)) +
           rounded(rows * kv * (uint64_t)b->head_dim) + rounded(rows * kv * v_dim);
}

static uint64_t sums_bytes(const tsr_sdpa_cut *cut, const tsr_attention_bounds *b)
{
    uint64_t tokens = (uint64_t)b->tokens, kv = (uint64_t)cut->kv_heads * sizeof(float);
    uint64_t v_dim = (uint64_t)tsr_attention_v_dim(b->v_dim, b->head_dim);
    return rounded((uint64_t)cut->span * (uint64_t)cut->heads * (uint64_t)b->head_dim *
                   sizeof(float)) +
           rounded(tokens * kv * (uint64_t)b->head_dim) + rounded(tokens * kv * v_dim);
}

static uint64_t list_bytes(const tsr_sdpa_cut *cut)
{
    return rounded((uint64_t)cut->rows * (uint64_t)cut->columns * sizeof(tsr_sdpa_tile));
}

bool tsr_sdpa_cut_tiles(tsr_sdpa_cut *cut, const tsr_attention_bounds *b, uint64_t cap)
{
    for (cut->span = SPAN; cut->span >= b->longest || !cut_heads(cut, b, cap); cut->span /= 2)
        if (cut->span == LEAST)
            return false;
    cut->columns = (b->longest + cut->span - 1) / cut->span;
    cut->rows = (b->tokens + b->documents * (cut->span - 1)) / cut->span;
    cut->documents = cut->pieces = 1;
    if (cut->rows * cut->columns > INT32_MAX ||
        (b->documents - 1) * cut->columns * cut->groups > MAX_EMPTY)
        return false;
    cut->tile_bytes =
        list_bytes(cut) + shares_bytes(cut, b, (uint64_t)cut->span) + sums_bytes(cut, b);
    cut->plan_bytes += (uint64_t)cut->heads * head_bytes(b, cut->span);
    return true;
}

/* ---- running ---- */

typedef struct {
    const tsr_sdpa_tiles *t;
    const tsr_attention_backward_args *a;
    tsr_sdpa_tile *tile;
    tsr_sdpa_share dq, dk, dv;
} work;

/* Takes the next bytes. */
static void *take(char **at, int64_t count, uint64_t element)
{
    void *taken = *at;
    *at += rounded((uint64_t)count * element);
    return taken;
}

static int32_t v_dim_of(const tsr_attention_shape *s)
{
    return tsr_attention_v_dim(s->v_dim, s->head_dim);
}

static work begin(const tsr_sdpa_tiles *t, const tsr_attention_backward_args *a,
                  const tsr_attention_bounds *bounds)
{
    const tsr_sdpa_cut *cut = t->cut;
    const tsr_attention_shape *s = &a->shape;
    int32_t v_dim = v_dim_of(s);
    char *at = t->tiles;
    work w = {.t = t,
              .a = a,
              .dq = {.width = cut->heads * s->head_dim, .out_row = s->q_heads * s->head_dim},
              .dk = {.width = cut->kv_heads * s->head_dim, .out_row = s->kv_heads * s->head_dim},
              .dv = {.width = cut->kv_heads * v_dim, .out_row = s->kv_heads * v_dim}};
    w.tile = take(&at, cut->rows * cut->columns, sizeof *w.tile);
    w.dq.share = take(&at, cut->span * w.dq.width, sizeof(uint16_t));
    w.dk.share = take(&at, cut->span * w.dk.width, sizeof(uint16_t));
    w.dv.share = take(&at, cut->span * w.dv.width, sizeof(uint16_t));
    w.dq.sum = take(&at, cut->span * w.dq.width, sizeof(float));
    w.dk.sum = take(&at, bounds->tokens * w.dk.width, sizeof(float));
    w.dv.sum = take(&at, bounds->tokens * w.dv.width, sizeof(float));
    return w;
}

static tsr_status write_tiles(const work *w, tsr_stream *stream)
{
    const tsr_sdpa_cut *cut = w->t->cut;
    const tsr_attention_shape *s = &w->a->shape;
    return tsr_sdpa_tiling_cuda(stream, &(tsr_sdpa_tiling){.tile = w->tile,
                                                           .cu_seqlens = s->cu_seqlens,
                                                           .documents = s->documents,
                                                           .span = (int32_t)cut->span,
                                                           .rows = (int32_t)cut->rows,
                                                           .columns = (int32_t)cut->columns,
                                                           .q_row = w->dq.out_row,
                                                           .kv_row = w->dk.out_row,
                                                           .stats_row = cut->heads,
                                                           .o_row = s->q_heads * v_dim_of(s),
                                                           .v_row = w->dv.out_row,
                                                           .dq_row = w->dq.width,
                                                           .dk_row = w->dk.width,
                                                           .dv_row = w->dv.width});
}

static void give_lists(tsr_sdpa_pack *p, const tsr_sdpa_cut *cut, const tsr_sdpa_tile *tile)
{
    static const struct {
        int64_t uid;
        tsr_tile_list list;
    } lists[] = {{TSR_UID_LENGTH_Q, TSR_TILE_LENGTH_Q},   {TSR_UID_LENGTH_KV, TSR_TILE_LENGTH_KV},
                 {TSR_UID_OFFSET_Q, TSR_TILE_Q},          {TSR_UID_OFFSET_KV, TSR_TILE_KV},
                 {TSR_UID_OFFSET_STATS, TSR_TILE_STATS},  {TSR_UID_OFFSET_DQ, TSR_TILE_DQ},
                 {TSR_UID_OFFSET_DK, TSR_TILE_DK},        {TSR_UID_OFFSET_DV, TSR_TILE_DV},
                 {TSR_UID_OFFSET_O, TSR_TILE_O},          {TSR_UID_OFFSET_V, TSR_TILE_V}};
    int count = (int)(sizeof lists / sizeof *lists) - (cut->lists == TSR_SDPA_SAME_LISTS ? 2 : 0);
    for (int i = 0; i < count; i++)
        tsr_sdpa_give(p, lists[i].uid, tile->list[lists[i].list]);
}

/* cuDNN's launch of a tile, for a group of heads. */
static tsr_status launch(const work *w, const tsr_sdpa_tile *tile, bool diagonal, int32_t group)
{
    const tsr_sdpa_cut *cut = w->t->cut;
    const tsr_attention_backward_args *a = w->a;
    int64_t q = (int64_t)group * w->dq.width, k = (int64_t)group * w->dk.width;
    int64_t o = (int64_t)group * cut->heads * v_dim_of(&a->shape), v = (int64_t)group * w->dv.width;
    tsr_sdpa_pack p;
    tsr_sdpa_pack_begin(&p, &a->shape);
    tsr_sdpa_give(&p, TSR_UID_Q, (const uint16_t *)a->q + q);
    tsr_sdpa_give(&p, TSR_UID_K, (const uint16_t *)a->k + k);
    tsr_sdpa_give(&p, TSR_UID_V, (const uint16_t *)a->v + v);
    tsr_sdpa_give(&p, TSR_UID_O, (const uint16_t *)a->o + o);
    tsr_sdpa_give(&p, TSR_UID_D_O, (const uint16_t *)a->d_o + o);
    tsr_sdpa_give(&p, TSR_UID_DQ, w->dq.share);
    tsr_sdpa_give(&p, TSR_UID_DK, w->dk.share);
    tsr_sdpa_give(&p, TSR_UID_DV, w->dv.share);
    tsr_sdpa_give(&p, TSR_UID_STATS,
                  w->t->stats + (int64_t)group * a->shape.tokens * cut->heads);
    tsr_sdpa_give(&p, TSR_UID_DELTA, w->t->delta);
    tsr_sdpa_give(&p, TSR_UID_ONE, &p.one);
    give_lists(&p, cut, tile);
    return tsr_sdpa_execute(w->t->handle, diagonal ? w->t->diagonal : w->t->past, &p, w->t->plan);
}

/* A share of `group`: its columns of what goes out. */
static tsr_sdpa_share of_group(tsr_sdpa_share share, void *out, int32_t group)
{
    share.out = (uint16_t *)out + (int64_t)group * share.width;
    return share;
}

static tsr_status run_tile(const work *w, tsr_stream *stream, int64_t row, int64_t back,
                           int32_t group)
{
    const tsr_sdpa_tile *tile = w->tile + row * w->t->cut->columns + back;
    TSR_TRY(launch(w, tile, back == 0, group));
    return tsr_sdpa_add_cuda(stream, &(tsr_sdpa_add){.tile = tile,
                                                     .dq = of_group(w->dq, w->a->dq, group),
                                                     .dk = of_group(w->dk, w->a->dk, group),
                                                     .dv = of_group(w->dv, w->a->dv, group),
                                                     .span = (int32_t)w->t->cut->span});
}

tsr_status tsr_sdpa_backward_tiles(const tsr_sdpa_tiles *tiles, tsr_stream *stream,
                                   const tsr_attention_backward_args *args,
                                   const tsr_attention_bounds *bounds)
{
    const tsr_sdpa_cut *cut = tiles->cut;
    work w = begin(tiles, args, bounds);
    TSR_TRY(write_tiles(&w, stream));
    /* A span of queries has at most those keys before it that the micro-batch has. */
    for (int32_t group = 0; group < cut->groups; group++)
        for (int64_t row = 0; row < cut->rows; row++)
            for (int64_t back = row < cut->columns ? row : cut->columns - 1; back >= 0; back--)
                TSR_TRY(run_tile(&w, stream, row, back, group));
    return TSR_OK;
}
