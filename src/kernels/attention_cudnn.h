/*
 * kernels/attention_cudnn.h: what the files of the CUDA attention share: which kernel runs a call, and
 * the entry points behind the dispatch of attention.cu. Inside src/kernels and its tests only.
 *
 *     own      attention_own.cu: any dtype, head_dim up to 512, window; attention_mma.cu and
 *              attention_mma_backward.cu: its BF16 on tensor cores; attention_wgmma.h: on sm_90a; lse as attention.h says
 *     cuDNN    attention_cudnn.c: a call within bounds that tsr_sdpa_prepare got and cuDNN planned;
 *              lse is then [tokens, Hq], which the backward alone reads back; sinks are put in after
 *              its forward (attention.cu)
 *
 * Both directions of a call have the same shape, and so choose alike.
 */
#ifndef TSR_KERNELS_ATTENTION_CUDNN_H
#define TSR_KERNELS_ATTENTION_CUDNN_H

#include "kernels/kernels_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the own kernel, whatever was prepared ---- */

uint64_t tsr_attention_own_workspace_bytes(const tsr_attention_bounds *bounds);
tsr_status tsr_attention_own(tsr_stream *stream, const tsr_attention_args *args);
tsr_status tsr_attention_backward_own(tsr_stream *stream, const tsr_attention_backward_args *args);

/* What its kernels are chosen by. */
typedef struct {
    int64_t shared_bytes; /* that a block may have */
    int32_t sm_count;
} tsr_attention_card;

/* The same, as on another card. */
tsr_status tsr_attention_own_as(tsr_stream *stream, const tsr_attention_args *args,
                                const tsr_attention_card *card);
tsr_status tsr_attention_backward_own_as(tsr_stream *stream,
                                         const tsr_attention_backward_args *args,
                                         const tsr_attention_card *card);

/* ---- cuDNN ---- */

/* How a run's attention is cut into launches. The forward is one; the backward keeps every score of
 * its launch in bf16 (that is what makes it deterministic), and so is cut into `pieces` of at most
 * `documents` documents, and `groups` of `heads` query heads. With atomics it keeps dq in fp32 instead,
 * and is cut only where dk and dv of each query head need more than the cap. For a document too long for
 * that the backward is attention_wgmma.h's, of narrow heads that of above, or, of wide ones, cut into tiles of `span`
 * tokens (attention_cudnn_tiles.h). */
typedef struct {
    int64_t longest; /* tokens of a document, rounded up */
    int64_t documents, pieces;
    int32_t heads, kv_heads, groups;
    int32_t lists; /* of each piece */
    int64_t parts; /* most parts of documents in own spans, of shared micro-batches; 0: none */
    uint64_t list_bytes;  /* of the workspace: lengths and offsets of documents */
    uint64_t stats_bytes; /* lse by groups or heads, where it is wanted so */
    uint64_t delta_bytes;
    uint64_t sum_bytes;  /* dq in fp32, with atomics */
    uint64_t plan_bytes; /* what cuDNN may ask for */
    int64_t span, rows,
        columns; /* of tiles: spans of queries, of keys for each; span 0: no tiles */
    uint64_t tile_bytes;
    uint64_t own_bytes; /* of an own backward; 0: cuDNN's */
    bool by_head;       /* that backward is not attention_wgmma.h's, and reads lse by heads */
    bool own_forward;   /* attention_wgmma.h runs both directions */
} tsr_sdpa_cut;

/* What one launch may keep: 4 documents of 2048 tokens, 32 heads of 128; more where bounds are wider. */
#define TSR_SDPA_CAP_BYTES   ((uint64_t)1280 << 20)
#define TSR_SDPA_CAP(bounds) (TSR_SDPA_CAP_BYTES << (bounds)->wider)

/* Whether cuDNN may run these bounds within `cap` bytes a launch; fills *cut. Needs no device. A group of heads is run as all
 * of them are, where the backward is an own one, and otherwise by no cuDNN. Where the cap without
 * `wider` holds a group of heads of the longest document, the answer is the same for any. */
bool tsr_sdpa_cut_for(tsr_sdpa_cut *cut, const tsr_attention_bounds *bounds, uint64_t cap);
uint64_t tsr_sdpa_workspace_bytes(const tsr_sdpa_cut *cut);

/* Parts of cutting. What a query head of a document keeps: dS but with atomics, and where heads share keys dk and dv of each,
 * in bf16. And a group of at most `heads` query heads, with their key heads; false: none. */
uint64_t tsr_sdpa_head_bytes(const tsr_attention_bounds *bounds, int64_t length, bool atomics);
bool tsr_sdpa_cut_heads(tsr_sdpa_cut *cut, const tsr_attention_bounds *bounds, int64_t heads);

/* tsr_sdpa_prepare with another cap. */
tsr_status tsr_sdpa_prepare_within(tsr_sdpa *sdpa, const tsr_attention_bounds *bounds,
                                   uint64_t cap);

/* The plans of a call; NULL: the own kernel runs it. `sdpa` may be NULL. */
typedef struct tsr_sdpa_plans tsr_sdpa_plans;
const tsr_sdpa_plans *tsr_sdpa_find(const tsr_sdpa *sdpa, const tsr_attention_shape *shape);
tsr_status tsr_sdpa_forward(const tsr_sdpa *sdpa, const tsr_sdpa_plans *plans, tsr_stream *stream,
                            const tsr_attention_args *args);
tsr_status tsr_sdpa_backward(const tsr_sdpa *sdpa, const tsr_sdpa_plans *plans, tsr_stream *stream,
                             const tsr_attention_backward_args *args);

/* ---- what cuDNN needs of a kernel before its own: attention.cu ---- */

typedef enum {
    TSR_SDPA_LENGTH,
    TSR_SDPA_Q,
    TSR_SDPA_KV,
    TSR_SDPA_STATS,
    TSR_SDPA_SAME_LISTS, /* so many where heads of v and o have the size of those of q and k */
    TSR_SDPA_O = TSR_SDPA_SAME_LISTS,
    TSR_SDPA_V,
    TSR_SDPA_LISTS
} tsr_sdpa_list;
/* Of parts one more comes last: the lengths of keys. */

/* Where a list of a piece begins in `lists`, in elements: on 16 bytes. */
#define TSR_SDPA_LIST_AT(documents, lists, piece, list)                                            \
    (((int64_t)(piece) * (lists) + (list)) * (((int64_t)(documents) + 4) / 4 * 4))

typedef struct {
    const int32_t *cu_seqlens;
    int32_t *lists; /* of each piece: lengths [documents], offsets [documents + 1] in elements */
    int64_t tokens;
    int32_t document_count;           /* in cu_seqlens; lists go on with length 0 */
    tsr_spans spans;                  /* shared: `documents` is of parts, and kinds one more */
    int32_t documents, pieces, kinds; /* of the lists; kinds: of each piece */
    int32_t q_row, kv_row, stats_row; /* elements of a token */
    int32_t o_row, v_row;
    void *clear[3];         /* tokens in no document become 0; NULL: none */
    int64_t clear_bytes[3]; /* of a token, a multiple of 4 */
    const float *stats;     /* [tokens, q_heads] */
    float *grouped;         /* [q_heads / heads, tokens, heads]; NULL: not wanted */
    int32_t q_heads, heads;
} tsr_sdpa_lists;

tsr_status tsr_sdpa_lists_cuda(tsr_stream *stream, const tsr_sdpa_lists *lists);

#ifdef __cplusplus
}
#endif

#endif
