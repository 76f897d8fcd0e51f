/*
 * kernels/compose.h: DoRA's output from its terms in the stable form (docs: FORMATS 2 and 3), for
 * the case that the consumer's y = g z + bias cannot express: dropout is active, so the base term
 * inside the (g - 1) product uses the dropped input xd.
 *
 *     base = W x, base_dropped = W xd, lora = B A xd (without s)
 *     y     = (base + bias) + ((g - 1) base_dropped + g (s lora))      s lora first, all in fp32
 *     inner = s lora + base_dropped                                    kept for dm
 *
 * Backward: d_base_dropped = (g - 1) dy, d_lora = (g s) dy, dm[j] = (sum over t of dy inner) / n[j]
 * (the sum rounded once, then divided in fp32), and dy itself is the gradient of base. So
 *     dx = W^T dy + drop(W^T d_base_dropped + A^T (B^T d_lora)), drop the forward's mask / (1 - p).
 *
 * Where W + s B A is one weight (nf4_merge.h) that is multiplied with xd, W with what of x is not in xd:
 *     base = W (x - xd), inner = (W + s B A) xd
 *     y    = (base + bias) + g inner
 * whose backward is that of y = g inner + bias, with dy the gradient of base. That of y = g z + bias is d_lora with s 1:
 * of the linears whose consumer is the residual (o_proj, down_proj), and of all that are merged.
 *
 * Cost     forward 5 tokens d elements (4 without inner), backward 4 (3 without dm, and with d_lora alone); merged 3.
 */
#ifndef TSR_KERNELS_COMPOSE_H
#define TSR_KERNELS_COMPOSE_H

#include "kernels/types.h"

typedef struct {
    const void *base;         /* [tokens, d] */
    const void *base_dropped; /* [tokens, d]; NULL: base (no dropout) */
    const void *lora;         /* [tokens, d] */
    const float *g;           /* [d] */
    tsr_frozen bias;          /* [d], optional */
    void *y;                  /* [tokens, d]; may be any of the three inputs */
    void *inner;              /* [tokens, d]; may be one of them that y is not; optional */
    int64_t tokens, d;
    float scale; /* s */
    tsr_dtype dtype;
} tsr_compose_args;

typedef struct {
    const void *base;  /* [tokens, d] */
    const void *inner; /* [tokens, d] */
    const float *g;    /* [d] */
    tsr_frozen bias;   /* [d], optional */
    void *y;           /* [tokens, d]; may be base or inner */
    int64_t tokens, d;
    tsr_dtype dtype;
} tsr_compose_merged_args;

typedef struct {
    const void *dy;       /* [tokens, d] */
    const void *inner;    /* [tokens, d], with dm */
    const float *g;       /* [d]; NULL, without d_base_dropped: 1 */
    const float *n;       /* [d], with dm */
    void *d_base_dropped; /* [tokens, d]; may be inner; optional */
    void *d_lora;         /* [tokens, d]; may be inner, or dy without d_base_dropped; optional */
    float *dm;            /* [d], written; optional */
    int64_t tokens, d;
    float scale;
    tsr_dtype dtype;
    float *partials; /* scratch of dm (types.h) */
} tsr_compose_backward_args;

tsr_status tsr_compose_check(const tsr_compose_args *args);
tsr_status tsr_compose_ref(const tsr_compose_args *args, tsr_pool *pool);
tsr_status tsr_compose_merged_check(const tsr_compose_merged_args *args);
tsr_status tsr_compose_merged_ref(const tsr_compose_merged_args *args, tsr_pool *pool);
tsr_status tsr_compose_backward_check(const tsr_compose_backward_args *args);
tsr_status tsr_compose_backward_ref(const tsr_compose_backward_args *args, tsr_pool *pool);

#endif
