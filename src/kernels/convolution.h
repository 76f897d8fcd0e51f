/*
 * kernels/convolution.h: the depthwise causal convolution over time of linear attention, with SiLU (Gu and Dao 2023; as
 * Transformers' torch_chunk_gated_delta_rule is given it, without a bias), and its backward.
 *
 * Forward, for token t and channel c of y = g z (g NULL: 1):
 *     pre = sum over j < taps of w[c, j] y[t - (taps - 1) + j, c]
 *     out = pre sigmoid(pre)
 * The last tap is the token itself. Before the start of a document there are zeros: a tap counts where positions[t], the
 * token's place in its document, is at least its distance.
 *
 * Backward: dout -> dy, the gradient of g z; pre is computed again. w is frozen.
 *
 * Cost     2 tokens channels elements forward, 3 backward.
 */
#ifndef TSR_KERNELS_CONVOLUTION_H
#define TSR_KERNELS_CONVOLUTION_H

#include "kernels/types.h"

#define TSR_CONVOLUTION_MOST 8 /* taps */

typedef struct {
    const void *z;            /* [tokens, channels] */
    const float *g;           /* [channels], optional */
    tsr_frozen w;             /* [channels, taps] */
    const int32_t *positions; /* [tokens] */
    void *out;                /* [tokens, channels] */
    int64_t tokens, channels;
    int32_t taps;
    tsr_dtype dtype;
} tsr_convolution_args;

typedef struct {
    const void *dout;         /* [tokens, channels] */
    const void *z;            /* as in the forward */
    const float *g;           /* */
    tsr_frozen w;             /* */
    const int32_t *positions; /* */
    void *dy;                 /* [tokens, channels] */
    int64_t tokens, channels;
    int32_t taps;
    tsr_dtype dtype;
} tsr_convolution_backward_args;

tsr_status tsr_convolution_check(const tsr_convolution_args *args);
tsr_status tsr_convolution_ref(const tsr_convolution_args *args, tsr_pool *pool);
tsr_status tsr_convolution_backward_check(const tsr_convolution_backward_args *args);
tsr_status tsr_convolution_backward_ref(const tsr_convolution_backward_args *args, tsr_pool *pool);

#endif
