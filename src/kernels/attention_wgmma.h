/*
 * kernels/attention_wgmma.h: attention on sm_90a, for bf16. Inside src/kernels and its tests only.
 *
 * Both directions where they are faster than cuDNN's (attention_cudnn.c), for documents too long for one launch of that, and
 * for what that does not take: windows above all, and soft caps.
 *
 * Forward: heads of up to 128 and of 200 to 256. lse is [Hq, tokens]. No workspace.
 *
 * The deterministic backward: heads of 72 to 128, whose tiles are 128 wide.
 *
 * With P = exp(scale q k - lse), dP = do v and delta = <do, o>, sums over queries i and keys j:
 *
 *     dS = P (dP - delta)    dv_j = sum P_ij do_i    dk_j = scale sum dS_ij q_i    dq_i = scale sum dS_ij k_j
 *
 * Scores with a soft cap are c tanh(scale q k / c), with dS times 1 - tanh^2, which only makes it smaller.
 *
 * A block owns 128 keys, and keeps their dk and dv. Every block adds its share of dq to sums in memory, in any order. The
 * sums are integers, for which the order does not matter: the same bits on every run and every card.
 *
 * The unit of a sum is a power of two of its row and column, such that no sum passes 2^31, since the weights of a row add up
 * to 1 at most:
 *
 *     |dq_ic| <= scale max_j |dP_ij - delta_i| max_j |k_jc| <= scale (|do_i| max_j |v_j| + |delta_i|) max_j |k_jc|
 *
 * Lengths of do and v are of vectors; maxima are over the tokens of the micro-batch, for each key head. Against fp64 dq of
 * normal values has an rms error of 0.25 % with these sums and with sums in fp32, which is that of P, dS and dq in bf16: 0.2497 % of
 * 1024 tokens, 0.2373 % and 0.2374 % of 16384; with one key 100 times as long 0.9638 % both, with one such row of v 0.2288 %.
 */
#ifndef TSR_KERNELS_ATTENTION_WGMMA_H
#define TSR_KERNELS_ATTENTION_WGMMA_H

#include "kernels/kernels_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether this build and this card have it, and it takes such a call. */
bool tsr_attention_wgmma_takes_forward(const tsr_stream *stream, const tsr_attention_args *args);

/* A call that it takes. */
tsr_status tsr_attention_forward_wgmma(tsr_stream *stream, const tsr_attention_args *args);

/* ---- the backward ---- */

/* Whether it is meant for such heads; needs no device. */
bool tsr_attention_wgmma_fits(const tsr_attention_bounds *bounds);

#define TSR_WGMMA_DIM 128 /* columns of a tile: what narrower heads cost too */

/* Keys of a block; and how many blocks keep a card busy, about two for each multiprocessor of an H200. */
#define TSR_WGMMA_KEYS   128
#define TSR_WGMMA_BLOCKS 256

/* What it needs within the bounds: 512 bytes a token and query head, at most TSR_WGMMA_SUM_BYTES of them or what the query
 * heads of one key head take (key heads then go one group after the other); 12 bytes a token and query head; and 4 a block of keys. */
#define TSR_WGMMA_SUM_BYTES ((uint64_t)1280 << 20)
uint64_t tsr_attention_wgmma_workspace_bytes(const tsr_attention_bounds *bounds);

/* Whether this build and this card have it, and it takes such a call. */
bool tsr_attention_wgmma_takes(const tsr_stream *stream, const tsr_attention_backward_args *args);

/* A call that it takes. by_token: lse is [tokens, Hq], as cuDNN's forward leaves it. More workspace than `bounds` say makes
 * fewer launches and changes no bit. */
tsr_status tsr_attention_backward_wgmma(tsr_stream *stream, const tsr_attention_backward_args *args,
                                        bool by_token);

#ifdef __cplusplus
}
#endif

#endif
