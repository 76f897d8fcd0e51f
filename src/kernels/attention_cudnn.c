/*
 * attention_cudnn.c: contract attention.h through cuDNN's graph API: causal attention over packed
 * documents (ragged tensors), forward and backward, in BF16 on sm_90.
 *
 * A graph is written as matmuls, pointwise operations and reductions; cuDNN knows the pattern and
 * gives its fused kernel for it, compiled when the plan is finalized, for one number of documents and
 * one longest length. Lengths are data: lists on the device, made from cu_seqlens before each call.
 *
 * The deterministic backward writes dq without atomics, for which cuDNN keeps dS whole: documents x
 * heads x longest^2 x 2 bytes. tsr_sdpa_cut_for cuts that into launches by documents, then by heads.
 * Where it is faster, or documents are too long for either, attention_wgmma.h's backward runs instead, and over long
 * documents its forward too; over documents too long attention_own.cu's for narrow heads, and for wide ones they are cut
 * into tiles.
 *
 * Cost     4 D FLOPs forward, 10 D backward for each visible pair and query head, on tensor cores.
 */
#include "kernels/attention_cudnn.h"

#include "base/checked.h"
#include "base/dtype.h"
#include "base/log.h"
#include "kernels/attention_cudnn_tiles.h"
#include "kernels/attention_wgmma.h"

#include <stdlib.h>
#include <string.h>

#define ROUND       128 /* tokens: cuDNN's tiles */
#define SLACK_BYTES (1u << 20)
#define MAX_PLANS   (16 * TSR_KERNELS_TURNS)

/* From where on the own backward is faster, and then the own forward: tokens of the longest document; of one in the mean. */
#define LEAST_LONGEST 1024
#define LEAST_OF_128  512 /* of heads that fill its tiles */
#define LEAST_MEAN    4096

/* Heads up to which attention_own.cu's backward is faster over long documents than tiles. */
#define NARROW 64

/* Of a backward that is not wider. Each takes some 27 us, however short its documents are (one of 2048
 * tokens with 60 of 102: 1.4 ms in 16, 1.8 in 31); over the own kernel a document of 4096 tokens saves 2 ms,
 * one of 8192 7 ms (h200_attention.json). */
#define MAX_LAUNCHES 128

struct tsr_sdpa_plans {
    tsr_attention_bounds bounds;
    tsr_sdpa_cut cut;
    tsr_sdpa_graph *forward, *backward; /* forward NULL: refused */
    tsr_sdpa_graph *past;               /* of tiles before the diagonal, where there are tiles */
    tsr_sdpa_graph *parts;              /* the forward of own spans; NULL: the whole one */
    int job;                            /* whose turn it was */
};

struct tsr_sdpa {
    cudnnHandle_t handle;
    tsr_sdpa_plans plans[MAX_PLANS];
    int plan_count, turn;
    bool wgmma; /* attention_wgmma.h runs on this card */
};

/* ---- cutting: known without a device ---- */

bool tsr_sdpa_cut_heads(tsr_sdpa_cut *cut, const tsr_attention_bounds *b, int64_t heads)
{
    int32_t group = b->q_heads / b->kv_heads, kv = b->kv_heads;
    if (heads < b->q_heads) /* the statistics of a group of heads begin on 16 bytes */
        while (kv > 0 && (b->kv_heads % kv || kv * group > heads || kv * group % 4))
            kv--;
    if (kv == 0)
        return false;
    cut->kv_heads = kv;
    cut->heads = kv * group;
    cut->groups = b->kv_heads / kv;
    return true;
}

/* Documents and heads of a launch, from how many pairs of them fit. The query heads of a key head
 * stay together, even where that takes twice the cap. */
static bool cut_pairs(tsr_sdpa_cut *cut, const tsr_attention_bounds *b, int64_t pairs)
{
    int32_t group = b->q_heads / b->kv_heads;
    if (pairs < group && group <= 2 * pairs)
        pairs = group;
    cut->documents = 1;
    if (pairs >= b->q_heads)
        cut->documents = pairs / b->q_heads < b->documents ? pairs / b->q_heads : b->documents;
    if (!tsr_sdpa_cut_heads(cut, b, pairs))
        return false;
    cut->pieces = (b->documents + cut->documents - 1) / cut->documents;
    cut->documents = (b->documents + cut->pieces - 1) / cut->pieces;
    return true;
}

static bool has_few_launches(const tsr_sdpa_cut *cut)
{
    return cut->pieces * cut->groups <= MAX_LAUNCHES;
}

static int64_t pairs_within(uint64_t cap, uint64_t pair)
{
    return pair ? (int64_t)(cap / pair) : INT64_MAX / 2;
}

static uint64_t list_bytes(int64_t documents, int32_t lists, int64_t pieces)
{
    return tsr_align_up((uint64_t)TSR_SDPA_LIST_AT(documents, lists, pieces, 0) * sizeof(int32_t),
                        TSR_ALIGNMENT);
}

static int32_t v_dim_of(const tsr_attention_bounds *b)
{
    return tsr_attention_v_dim(b->v_dim, b->head_dim);
}

uint64_t tsr_sdpa_head_bytes(const tsr_attention_bounds *b, int64_t length, bool atomics)
{
    int64_t columns =
        (atomics ? 0 : length) + (b->kv_heads < b->q_heads ? b->head_dim + v_dim_of(b) : 0);
    return (uint64_t)length * (uint64_t)columns * sizeof(uint16_t);
}

/* Part p of a shared micro-batch is what document d has in the rank's own span j, d + j = p: as a row goes on, one of them
 * or both rise. As many on every rank. Heads of 128 alone: with those of 64 some rows of a part have had other bits than in
 * the whole document. */
static int64_t parts_of(const tsr_attention_bounds *b)
{
    if (!tsr_spans_shared(&b->spans) || b->head_dim != 128 || v_dim_of(b) != 128)
        return 0;
    int64_t spans = (b->tokens + b->spans.rows - 1) / b->spans.rows;
    return b->documents + (spans + b->spans.ranks - 1) / b->spans.ranks - 1;
}

/* Heads of one size, or DeepSeek-V3's. */
static bool has_heads(const tsr_attention_bounds *b)
{
    int32_t dim = b->head_dim, v_dim = v_dim_of(b);
    return (v_dim == dim && (dim == 64 || dim == 96 || dim == 128)) || (dim == 192 && v_dim == 128);
}

/* Whether attention_wgmma.h's backward takes less time than cuDNN's deterministic one, as measured on an H200
 * (docs/performance.md, "What the same bits cost"): heads of 96 and 128, from two of its blocks for each multiprocessor on. */
static bool is_faster(const tsr_attention_bounds *b)
{
    int64_t blocks = b->tokens / TSR_WGMMA_KEYS * b->kv_heads;
    return blocks >= TSR_WGMMA_BLOCKS &&
           b->longest >= (b->head_dim == TSR_WGMMA_DIM ? LEAST_OF_128 : LEAST_LONGEST);
}

/* What the forward needs. */
static tsr_sdpa_cut cut_forward(const tsr_attention_bounds *b)
{
    tsr_sdpa_cut cut = {.longest = (b->longest + ROUND - 1) / ROUND * ROUND,
                        .documents = b->documents,
                        .pieces = 1,
                        .heads = b->q_heads,
                        .kv_heads = b->kv_heads,
                        .groups = 1,
                        .lists = v_dim_of(b) == b->head_dim ? TSR_SDPA_SAME_LISTS : TSR_SDPA_LISTS,
                        .parts = parts_of(b),
                        .plan_bytes = SLACK_BYTES + (uint64_t)(b->documents + parts_of(b)) * 64};
    cut.list_bytes = cut.parts ? list_bytes(cut.parts, cut.lists + 1, 1)
                               : list_bytes(b->documents, cut.lists, 1);
    return cut;
}

/* lse, or delta, of all rows. */
static uint64_t rows_bytes(const tsr_attention_bounds *b)
{
    return tsr_align_up((uint64_t)b->tokens * (uint64_t)b->q_heads * sizeof(float), TSR_ALIGNMENT);
}

/* What an own backward needs. */
static void cut_own(tsr_sdpa_cut *cut, const tsr_attention_bounds *b, bool by_head)
{
    cut->by_head = by_head;
    cut->stats_bytes = by_head ? rows_bytes(b) : 0;
    cut->own_bytes = by_head ? tsr_align_up(tsr_attention_own_workspace_bytes(b), TSR_ALIGNMENT)
                             : tsr_attention_wgmma_workspace_bytes(b);
}

static bool cut_all(tsr_sdpa_cut *cut, const tsr_attention_bounds *b, uint64_t cap)
{
    bool fits = b->dtype == TSR_BF16 && b->softcap == 0 && has_heads(b) && b->tokens > 0 &&
                b->documents > 0 && b->longest > 0 &&
                b->documents <= INT32_MAX / (2 * TSR_SDPA_LISTS) && b->longest < INT32_MAX / 2 &&
                b->tokens <= INT32_MAX / ((int64_t)b->q_heads * b->head_dim); /* offsets */
    if (!fits)
        return false;
    *cut = cut_forward(b);
    if (!b->train)
        return true;
    uint64_t pair = tsr_sdpa_head_bytes(b, cut->longest, b->atomics);
    /* The narrow cut says whether at all and how, so that which kernel runs, and with it the bits, does not depend on
     * how much memory is left. */
    bool tiles = !cut_pairs(cut, b, pairs_within(cap >> b->wider, pair));
    bool wgmma = (tiles || is_faster(b)) && !b->atomics && tsr_attention_wgmma_fits(b);
    if (wgmma || (tiles && b->head_dim <= NARROW)) {
        cut_own(cut, b, !wgmma);
        cut->own_forward = wgmma && b->tokens / b->documents >= LEAST_MEAN;
        return true;
    }
    if (tiles ? !tsr_sdpa_cut_tiles(cut, b, cap >> b->wider) : !has_few_launches(cut))
        return false;
    if (!tiles)
        cut_pairs(cut, b, pairs_within(cap, pair));
    uint64_t lists = list_bytes(cut->documents, cut->lists, cut->pieces);
    cut->list_bytes = lists > cut->list_bytes ? lists : cut->list_bytes;
    cut->stats_bytes = cut->groups > 1 && !tiles ? rows_bytes(b) : 0;
    cut->delta_bytes = tiles ? 0 : rows_bytes(b);
    cut->sum_bytes = b->atomics && !tiles ? rows_bytes(b) * (uint64_t)b->head_dim : 0;
    if (!tiles)
        cut->plan_bytes += (uint64_t)cut->documents * (uint64_t)cut->heads * pair;
    return true;
}

bool tsr_sdpa_cut_for(tsr_sdpa_cut *cut, const tsr_attention_bounds *bounds, uint64_t cap)
{
    const tsr_attention_bounds all = tsr_attention_all_heads(*bounds);
    if (!cut_all(cut, &all, cap))
        return false;
    if (all.kv_heads == bounds->kv_heads)
        return true;
    bool own = cut->own_bytes, by_head = cut->by_head, own_forward = cut->own_forward;
    *cut = cut_forward(bounds);
    if (bounds->train && own)
        cut_own(cut, bounds, by_head);
    cut->own_forward = own_forward;
    return own || !bounds->train;
}

uint64_t tsr_sdpa_workspace_bytes(const tsr_sdpa_cut *cut)
{
    return cut->list_bytes + cut->stats_bytes + cut->delta_bytes + cut->sum_bytes +
           cut->tile_bytes + cut->own_bytes + cut->plan_bytes;
}

/* ---- plans ---- */

static void free_graph(tsr_sdpa_graph *g)
{
    if (!g)
        return;
    tsr_sdpa_graph_clear(g);
    free(g);
}

typedef enum { FORWARD, FORWARD_PARTS, BACKWARD, BACKWARD_PAST } direction;

/* NULL, with a line in the log: cuDNN does not take it. */
static tsr_sdpa_graph *new_graph(const tsr_sdpa *sdpa, const tsr_sdpa_plans *plans, direction way)
{
    const tsr_attention_bounds *b = &plans->bounds;
    const tsr_sdpa_cut *cut = &plans->cut;
    bool backward = way == BACKWARD || way == BACKWARD_PAST;
    tsr_sdpa_graph *g = calloc(1, sizeof *g);
    if (!g)
        return NULL;
    g->documents = backward ? cut->documents : b->documents;
    g->heads = backward ? cut->heads : b->q_heads;
    g->kv_heads = backward ? cut->kv_heads : b->kv_heads;
    g->longest = backward && cut->span ? cut->span : cut->longest;
    g->past = way == BACKWARD_PAST;
    if (way == FORWARD_PARTS) {
        g->documents = cut->parts;
        g->longest_kv = cut->longest;
        g->longest = b->spans.rows < cut->longest ? b->spans.rows : cut->longest;
    }
    g->dim = b->head_dim;
    bool copied = backward && cut->span; /* rows are of the heads of a launch alone */
    int64_t row_heads = copied ? g->heads : b->q_heads;
    int64_t row_kv_heads = copied ? g->kv_heads : b->kv_heads;
    g->q_row = row_heads * b->head_dim;
    g->kv_row = row_kv_heads * b->head_dim;
    g->v_dim = v_dim_of(b);
    g->o_row = row_heads * g->v_dim;
    g->v_row = row_kv_heads * g->v_dim;
    g->stats_row = g->heads;
    g->atomics = b->atomics && !cut->span;
    if (backward)
        tsr_sdpa_graph_backward(g);
    else
        tsr_sdpa_graph_forward(g);
    tsr_sdpa_graph_plan(g, sdpa->handle, cut->plan_bytes);
    if (g->status == CUDNN_STATUS_SUCCESS) {
        tsr_log(
            TSR_LOG_DEBUG,
            "attention's %s: cuDNN, at most %lld documents of %lld tokens and %lld heads a launch, "
            "workspace %lld bytes",
            backward ? "backward" : "forward", (long long)g->documents, (long long)g->longest,
            (long long)g->heads, (long long)g->workspace_bytes);
        return g;
    }
    char reason[512] = "";
    tsr_cudnn_lib.GetLastErrorString(reason, sizeof reason);
    tsr_log(
        TSR_LOG_INFO,
        "cuDNN %zu does not take the attention's %s (%lld documents of %lld tokens, %lld / %lld "
        "heads of %lld and %lld): %s: %s %s; %s runs it",
        tsr_cudnn_lib.GetVersion(), backward ? "backward" : "forward", (long long)g->documents,
        (long long)g->longest, (long long)g->heads, (long long)g->kv_heads, (long long)g->dim,
        (long long)g->v_dim, g->failed, tsr_cudnn_lib.GetErrorString(g->status), reason,
        way == FORWARD_PARTS ? "that of whole micro-batches" : "the own kernel");
    free_graph(g);
    return NULL;
}

static void free_graphs(tsr_sdpa_plans *plans)
{
    free_graph(plans->forward);
    free_graph(plans->backward);
    free_graph(plans->past);
    free_graph(plans->parts);
    plans->forward = plans->backward = plans->past = plans->parts = NULL;
}

static void free_plans(tsr_sdpa_plans *plans)
{
    free_graphs(plans);
    *plans = (tsr_sdpa_plans){0};
}

static bool same_spans(const tsr_spans *a, const tsr_spans *b)
{
    return a->rows == b->rows && a->ranks == b->ranks && a->rank == b->rank;
}

static bool same_bounds(const tsr_attention_bounds *a, const tsr_attention_bounds *b)
{
    return a->tokens == b->tokens && a->documents == b->documents && a->longest == b->longest &&
           a->q_heads == b->q_heads && a->kv_heads == b->kv_heads && a->head_dim == b->head_dim &&
           a->all_kv_heads == b->all_kv_heads && a->v_dim == b->v_dim && a->dtype == b->dtype &&
           a->train == b->train && a->atomics == b->atomics && a->wider == b->wider &&
           same_spans(&a->spans, &b->spans);
}

tsr_status tsr_sdpa_prepare_within(tsr_sdpa *sdpa, const tsr_attention_bounds *bounds, uint64_t cap)
{
    if (!sdpa)
        return TSR_OK;
    tsr_sdpa_plans plans = {.bounds = *bounds, .job = sdpa->turn};
    for (int i = 0; i < sdpa->plan_count; i++)
        if (sdpa->plans[i].job == sdpa->turn &&
            same_bounds(&sdpa->plans[i].bounds, bounds)) { /* the newest is the last */
            tsr_sdpa_plans again = sdpa->plans[i];
            memmove(sdpa->plans + i, sdpa->plans + i + 1,
                    (size_t)(sdpa->plan_count - i - 1) * sizeof plans);
            sdpa->plans[sdpa->plan_count - 1] = again;
            return TSR_OK;
        }
    if (tsr_sdpa_cut_for(&plans.cut, bounds, cap)) {
        bool own = plans.cut.own_bytes, past = bounds->train && plans.cut.span;
        if (!own || plans.cut.by_head || (sdpa->wgmma && !plans.cut.own_forward))
            plans.forward = new_graph(sdpa, &plans, FORWARD);
        if (plans.forward && bounds->train && !own)
            plans.backward = new_graph(sdpa, &plans, BACKWARD);
        if (plans.backward && past)
            plans.past = new_graph(sdpa, &plans, BACKWARD_PAST);
        if ((bounds->train && !own && !plans.backward) || (past && !plans.past)) /* all or none */
            free_graphs(&plans);
        if (plans.forward && plans.cut.parts)
            plans.parts = new_graph(sdpa, &plans, FORWARD_PARTS);
    } else {
        tsr_log(TSR_LOG_INFO,
                "attention of head_dim %d in %s, documents of %lld tokens: the own kernel",
                bounds->head_dim, tsr_dtype_name(bounds->dtype), (long long)bounds->longest);
    }
    if (sdpa->plan_count == MAX_PLANS) {
        free_plans(&sdpa->plans[0]);
        memmove(sdpa->plans, sdpa->plans + 1, (MAX_PLANS - 1) * sizeof plans);
        sdpa->plan_count--;
    }
    sdpa->plans[sdpa->plan_count++] = plans;
    return TSR_OK;
}

tsr_status tsr_sdpa_prepare(tsr_sdpa *sdpa, const tsr_attention_bounds *bounds)
{
    return tsr_sdpa_prepare_within(sdpa, bounds, TSR_SDPA_CAP(bounds));
}

const tsr_sdpa_plans *tsr_sdpa_find(const tsr_sdpa *sdpa, const tsr_attention_shape *s)
{
    for (int i = sdpa ? sdpa->plan_count - 1 : -1; i >= 0; i--) {
        const tsr_sdpa_plans *plans = &sdpa->plans[i];
        const tsr_attention_bounds *b = &plans->bounds;
        if (plans->job != sdpa->turn || s->softcap > 0 || b->softcap > 0 || b->dtype != s->dtype ||
            b->q_heads != s->q_heads || b->kv_heads != s->kv_heads || b->head_dim != s->head_dim ||
            b->all_kv_heads != s->all_kv_heads || b->v_dim != s->v_dim || s->tokens > b->tokens ||
            s->documents > b->documents)
            continue;
        bool narrow = s->window && s->window < b->longest;
        return plans->forward && !narrow ? plans : NULL;
    }
    return NULL;
}

/* ---- opening ---- */

/* What no cuDNN means: less speed. */
static tsr_status do_without(const char *why)
{
    tsr_log(TSR_LOG_INFO, "attention: the own kernel (%s)", why);
    return TSR_OK;
}

tsr_status tsr_sdpa_open(tsr_sdpa **out, tsr_device *device)
{
    *out = NULL;
    if (tsr_device_cuda_properties(device)->major != 9)
        return do_without("cuDNN is used on sm_90");
    if (tsr_cudnn_load(NULL) < 0)
        return do_without(tsr_last_error());
    tsr_sdpa *sdpa = calloc(1, sizeof *sdpa);
    if (!sdpa)
        return tsr_fail(TSR_ENOMEM, "out of memory for cuDNN's plans");
    sdpa->wgmma = tsr_nf4_merge_boxes(device) != NULL;
    cudnnStatus_t status = tsr_cudnn_lib.Create(&sdpa->handle);
    if (status == CUDNN_STATUS_SUCCESS) {
        *out = sdpa;
        return TSR_OK;
    }
    free(sdpa);
    tsr_sdpa_failed(status, "cudnnCreate");
    /* It is made of several files. */
    if (status == CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED ||
        status == CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH)
        return do_without(tsr_last_error());
    return TSR_EDEVICE;
}

void tsr_sdpa_close(tsr_sdpa *sdpa)
{
    if (!sdpa)
        return;
    for (int i = 0; i < sdpa->plan_count; i++)
        free_plans(&sdpa->plans[i]);
    tsr_cudnn_lib.Destroy(sdpa->handle);
    free(sdpa);
}

void tsr_sdpa_turn(tsr_sdpa *sdpa, int job)
{
    if (sdpa)
        sdpa->turn = job;
}

/* ---- running ---- */

/* Where the parts of the workspace are. */
typedef struct {
    int32_t *lists;
    float *stats, *delta, *sum;
    void *tiles, *plan; /* tiles: or the own backward's */
} parts;

static tsr_status split_workspace(parts *out, const char *op, const tsr_sdpa_plans *plans,
                                  void *memory, uint64_t bytes)
{
    const tsr_sdpa_cut *cut = &plans->cut;
    uint64_t need = tsr_sdpa_workspace_bytes(cut);
    if (!memory || bytes < need || (uintptr_t)memory % TSR_ALIGNMENT)
        return tsr_fail(TSR_EINVAL, "%s: a workspace of %llu bytes at %p, %llu are needed", op,
                        (unsigned long long)bytes, memory, (unsigned long long)need);
    char *at = memory;
    out->lists = (int32_t *)at;
    out->stats = (float *)(at += cut->list_bytes);
    out->delta = (float *)(at += cut->stats_bytes);
    out->sum = (float *)(at += cut->delta_bytes);
    out->tiles = at += cut->sum_bytes;
    out->plan = at + cut->tile_bytes + cut->own_bytes;
    return TSR_OK;
}

/* by_parts: of documents in own spans, and then there is one piece. */
static void give_lists(tsr_sdpa_pack *p, const tsr_sdpa_cut *cut, const int32_t *lists,
                       int64_t documents, int64_t piece, bool by_parts)
{
    const int32_t *list = lists + TSR_SDPA_LIST_AT(documents, cut->lists, piece, 0);
    int64_t next = TSR_SDPA_LIST_AT(documents, cut->lists, 0, 1);
    tsr_sdpa_give(p, TSR_UID_LENGTH_Q, list + TSR_SDPA_LENGTH * next);
    tsr_sdpa_give(p, TSR_UID_LENGTH_KV, list + (by_parts ? cut->lists : TSR_SDPA_LENGTH) * next);
    tsr_sdpa_give(p, TSR_UID_OFFSET_Q, list + TSR_SDPA_Q * next);
    tsr_sdpa_give(p, TSR_UID_OFFSET_KV, list + TSR_SDPA_KV * next);
    tsr_sdpa_give(p, TSR_UID_OFFSET_STATS, list + TSR_SDPA_STATS * next);
    if (cut->lists > TSR_SDPA_SAME_LISTS) {
        tsr_sdpa_give(p, TSR_UID_OFFSET_O, list + TSR_SDPA_O * next);
        tsr_sdpa_give(p, TSR_UID_OFFSET_V, list + TSR_SDPA_V * next);
    }
}

static tsr_status use_stream(const tsr_sdpa *sdpa, const tsr_stream *stream)
{
    cudnnStatus_t status = tsr_cudnn_lib.SetStream(sdpa->handle, tsr_stream_cuda(stream));
    return status == CUDNN_STATUS_SUCCESS ? TSR_OK : tsr_sdpa_failed(status, "cudnnSetStream");
}

tsr_status tsr_sdpa_forward(const tsr_sdpa *sdpa, const tsr_sdpa_plans *plans, tsr_stream *stream,
                            const tsr_attention_args *a)
{
    parts w = {0};
    const tsr_attention_shape *s = &a->shape;
    const tsr_attention_bounds *b = &plans->bounds;
    if (s->tokens == 0)
        return TSR_OK;
    TSR_TRY(split_workspace(&w, "attention", plans, s->workspace, s->workspace_bytes));
    TSR_TRY(use_stream(sdpa, stream));
    int32_t q_row = s->q_heads * s->head_dim;
    int32_t v_dim = tsr_attention_v_dim(s->v_dim, s->head_dim), o_row = s->q_heads * v_dim;
    bool by_parts = plans->parts && same_spans(&s->spans, &b->spans);
    int64_t documents = by_parts ? plans->cut.parts : b->documents;
    TSR_TRY(
        tsr_sdpa_lists_cuda(stream, &(tsr_sdpa_lists){.cu_seqlens = s->cu_seqlens,
                                                      .lists = w.lists,
                                                      .tokens = s->tokens,
                                                      .document_count = s->documents,
                                                      .spans = by_parts ? s->spans : (tsr_spans){0},
                                                      .documents = (int32_t)documents,
                                                      .pieces = 1,
                                                      .kinds = plans->cut.lists + by_parts,
                                                      .q_row = q_row,
                                                      .kv_row = s->kv_heads * s->head_dim,
                                                      .stats_row = s->q_heads,
                                                      .o_row = o_row,
                                                      .v_row = s->kv_heads * v_dim,
                                                      .clear = {a->o, a->lse},
                                                      .clear_bytes = {o_row * 2, s->q_heads * 4}}));
    if (s->documents == 0)
        return TSR_OK;
    tsr_sdpa_pack p;
    tsr_sdpa_pack_begin(&p, s);
    tsr_sdpa_give(&p, TSR_UID_Q, a->q);
    tsr_sdpa_give(&p, TSR_UID_K, a->k);
    tsr_sdpa_give(&p, TSR_UID_V, a->v);
    tsr_sdpa_give(&p, TSR_UID_O, a->o);
    tsr_sdpa_give(&p, TSR_UID_STATS, a->lse);
    give_lists(&p, &plans->cut, w.lists, documents, 0, by_parts);
    return tsr_sdpa_execute(sdpa->handle, by_parts ? plans->parts : plans->forward, &p, w.plan);
}

/* One launch: documents of the piece, heads of the group. */
static tsr_status backward_launch(const tsr_sdpa *sdpa, const tsr_sdpa_plans *plans, const parts *w,
                                  const tsr_attention_backward_args *a, int64_t piece,
                                  int32_t group)
{
    const tsr_sdpa_cut *cut = &plans->cut;
    const tsr_attention_shape *s = &a->shape;
    int32_t v_dim = tsr_attention_v_dim(s->v_dim, s->head_dim);
    int64_t q = (int64_t)group * cut->heads * s->head_dim,
            k = (int64_t)group * cut->kv_heads * s->head_dim;
    int64_t o = (int64_t)group * cut->heads * v_dim, v = (int64_t)group * cut->kv_heads * v_dim;
    tsr_sdpa_pack p;
    tsr_sdpa_pack_begin(&p, s);
    tsr_sdpa_give(&p, TSR_UID_Q, (const uint16_t *)a->q + q);
    tsr_sdpa_give(&p, TSR_UID_K, (const uint16_t *)a->k + k);
    tsr_sdpa_give(&p, TSR_UID_V, (const uint16_t *)a->v + v);
    tsr_sdpa_give(&p, TSR_UID_O, (const uint16_t *)a->o + o);
    tsr_sdpa_give(&p, TSR_UID_D_O, (const uint16_t *)a->d_o + o);
    tsr_sdpa_give(&p, TSR_UID_DQ, (uint16_t *)a->dq + q);
    tsr_sdpa_give(&p, TSR_UID_DK, (uint16_t *)a->dk + k);
    tsr_sdpa_give(&p, TSR_UID_DV, (uint16_t *)a->dv + v);
    tsr_sdpa_give(&p, TSR_UID_STATS,
                  cut->groups > 1 ? w->stats + (int64_t)group * s->tokens * cut->heads : a->lse);
    tsr_sdpa_give(&p, TSR_UID_DELTA, w->delta);
    tsr_sdpa_give(&p, TSR_UID_ONE, &p.one);
    if (plans->bounds.atomics)
        tsr_sdpa_give(&p, TSR_UID_DQ_SUM, w->sum + q);
    give_lists(&p, cut, w->lists, cut->documents, piece, false);
    return tsr_sdpa_execute(sdpa->handle, plans->backward, &p, w->plan);
}

static tsr_status own_backward(tsr_stream *stream, const tsr_attention_backward_args *args,
                               const parts *w, const tsr_sdpa_cut *cut)
{
    tsr_attention_backward_args own = *args;
    const tsr_attention_shape *s = &args->shape;
    own.shape.workspace = w->tiles;
    own.shape.workspace_bytes = cut->own_bytes;
    if (!cut->by_head)
        return tsr_attention_backward_wgmma(stream, &own, true);
    own.lse = w->stats;
    TSR_TRY(tsr_sdpa_lists_cuda(stream, &(tsr_sdpa_lists){.cu_seqlens = s->cu_seqlens,
                                                          .tokens = s->tokens,
                                                          .document_count = s->documents,
                                                          .stats = args->lse,
                                                          .grouped = w->stats,
                                                          .q_heads = s->q_heads,
                                                          .heads = 1}));
    return tsr_attention_backward_own(stream, &own);
}

tsr_status tsr_sdpa_backward(const tsr_sdpa *sdpa, const tsr_sdpa_plans *plans, tsr_stream *stream,
                             const tsr_attention_backward_args *a)
{
    parts w = {0};
    const tsr_sdpa_cut *cut = &plans->cut;
    const tsr_attention_shape *s = &a->shape;
    if (s->tokens == 0)
        return TSR_OK;
    if (!plans->backward && !cut->own_bytes)
        return tsr_fail(TSR_EINVAL, "attention_backward: its plans are an evaluation's");
    TSR_TRY(split_workspace(&w, "attention_backward", plans, s->workspace, s->workspace_bytes));
    if (cut->own_bytes)
        return own_backward(stream, a, &w, cut);
    if (!a->o)
        return tsr_fail(TSR_EINVAL, "attention_backward: cuDNN's needs o, not delta");
    TSR_TRY(use_stream(sdpa, stream));
    int32_t q_row = s->q_heads * s->head_dim, kv_row = s->kv_heads * s->head_dim;
    int32_t v_dim = tsr_attention_v_dim(s->v_dim, s->head_dim), v_row = s->kv_heads * v_dim;
    TSR_TRY(tsr_sdpa_lists_cuda(stream,
                                &(tsr_sdpa_lists){.cu_seqlens = s->cu_seqlens,
                                                  .lists = w.lists,
                                                  .tokens = s->tokens,
                                                  .document_count = s->documents,
                                                  .documents = (int32_t)cut->documents,
                                                  .pieces = cut->span ? 0 : (int32_t)cut->pieces,
                                                  .kinds = cut->lists,
                                                  .q_row = q_row,
                                                  .kv_row = kv_row,
                                                  .stats_row = cut->heads,
                                                  .o_row = s->q_heads * v_dim,
                                                  .v_row = v_row,
                                                  .clear = {a->dq, a->dk, a->dv},
                                                  .clear_bytes = {q_row * 2, kv_row * 2, v_row * 2},
                                                  .stats = a->lse,
                                                  .grouped = cut->stats_bytes ? w.stats : NULL,
                                                  .q_heads = s->q_heads,
                                                  .heads = cut->heads}));
    if (cut->span && s->documents > 0)
        return tsr_sdpa_backward_tiles(&(tsr_sdpa_tiles){.handle = sdpa->handle,
                                                         .diagonal = plans->backward,
                                                         .past = plans->past,
                                                         .cut = cut,
                                                         .tiles = w.tiles,
                                                         .plan = w.plan},
                                       stream, a, &plans->bounds);
    for (int64_t piece = 0; piece * cut->documents < s->documents; piece++)
        for (int32_t group = 0; group < cut->groups; group++)
            TSR_TRY(backward_launch(sdpa, plans, &w, a, piece, group));
    return TSR_OK;
}

tsr_status tsr_kernels_cudnn_version(tsr_library_version *out)
{
    return tsr_cudnn_load(out);
}
