/*
 * kernels/attention_wgmma.cuh: what both files of attention_wgmma.h share: its workspace, and how sums of dq lie in it.
 */
#ifndef TSR_KERNELS_ATTENTION_WGMMA_CUH
#define TSR_KERNELS_ATTENTION_WGMMA_CUH

#include "kernels/attention_own.cuh"
#include "kernels/attention_wgmma.h"

#define TSR_WGMMA_DIM      128
#define TSR_WGMMA_KEYS     128 /* of a block */
#define TSR_WGMMA_QUERIES  64  /* of a tile */
#define TSR_WGMMA_TILE     (TSR_WGMMA_QUERIES * TSR_WGMMA_DIM)
#define TSR_WGMMA_BOUNDERS 64 /* blocks that look for the largest keys of a head */

/*
 * A tile of sums is [half of the columns][16 queries][8 columns][lane][4]: as the fragments of a product have it, lane 4 g + t
 * has columns 2t and 2t + 1 of query g, then of query g + 8.
 */
typedef struct {
    attention_call call;
    int padded;             /* tokens, up to whole blocks of keys */
    int first_kv, kv_count; /* key heads of this launch */
    bool by_token;          /* lse is [tokens, Hq] */
    float *lse, *delta,
        *row_unit;   /* [Hq, padded]; lse in base 2, of no document inf; row_unit: of dq's sums */
    uint32_t *bound; /* [bounders, Hkv, 128 + 1]: bits of max |k_c|, of max v v */
    float *column_unit; /* [Hkv, 128] */
    float *v_square;    /* [Hkv]: max v v */
    int32_t *sum;       /* [heads of a launch, padded / 64, tile] */
} attention_wgmma_work;

/* attention_wgmma_ends.cu: once for a call; before and after each launch. */
tsr_status attention_wgmma_bound(tsr_stream *stream, const attention_wgmma_work *w, const void *k,
                                 const void *v);
tsr_status attention_wgmma_begin(tsr_stream *stream, const attention_wgmma_work *w, const void *o,
                                 const void *d_o, const float *lse);
tsr_status attention_wgmma_end(tsr_stream *stream, const attention_wgmma_work *w, void *dq);

#endif
