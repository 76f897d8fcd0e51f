/*
 * kernels/head.h: output projection, cross entropy and the gradient of its input in one pass over
 * the vocabulary, by an online softmax (Milakov and Gimelshein 2018) that never holds the logits.
 *
 * For R label rows h [R, d] (the final norm's output, ignored rows already dropped) and chunks
 * W_c [count, d] of the vocabulary, in any order, each row once:
 *     head_begin     m = -inf, sum = 0, acc = 0
 *     head_chunk     l = h W_c^T, with a softcap c: c tanh(l / c), whose slope 1 - (l / c)^2 then goes with each W in
 *                    acc and wy; where the label is in the chunk: label_logit = l[label], wy = W_c[label], and
 *                    from here on l[label] = -inf; where the maximum grows to m', sum and acc are multiplied
 *                    by exp(m - m'); sum += sum of exp(l - m'); acc += exp(l - m') W_c
 *     head_finish    e = exp(label_logit - m);  nll = log((sum + e) / e);
 *                    dh = scale (acc - sum wy) / (sum + e);
 *                    *loss += RN(2^32 * sum of nll), the sum over rows in fp64 in a fixed order
 * Labels may be smoothed (Szegedy et al. 2016, as Transformers' LabelSmoother): of the loss nll a share s goes to the mean
 * of -log p over the V rows of the vocabulary. The mean logit is h w, of the mean row w of W, so W's rows are summed
 * once and nothing is done a logit; without a softcap, whose mean slope differs by row:
 *     head_chunk     with row_parts: row_parts[v mod TSR_HEAD_PARTS] += W[v]
 *     head_finish    with row_parts: mean_row = sum of row_parts / V;
 *                    nll += s (label_logit - h mean_row);  dh += scale s (wy - mean_row)
 * The label stays out of sum and acc, so that 1 - p of a label that is predicted well, which is all that its
 * gradient is made of, is never the difference of two numbers near 1, nor p a weight rounded to bf16.
 * With acc and wy NULL (evaluation) only the loss is computed.
 *
 * In the same pass, unless rival and spread are NULL, what is reported of a row beside its loss:
 *     head_chunk     spread += sum of exp(l - m) (l - m), moved to m' where the maximum grows;
 *                    rival = the largest other logit, raised to the next number where it comes before the label's
 *     head_finish    with lead = label_logit - m, e = exp(lead), S = sum + e:
 *                    *entropy += RN(2^32 * sum over rows of log S - (spread + e lead) / S);
 *                    *correct += rows whose label_logit >= rival: the label is the argmax, of equal logits the first
 *
 * And with squares, the log of the sum of all p^2, how sure a row is of itself:
 *     head_chunk     squares += sum of exp(2 (l - m)), multiplied by exp(2 (m - m')) where the maximum grows
 *     head_finish    log_squares = log((squares + e^2) / S^2)
 *
 * A label that no chunk had gives a NaN nll, which the fixed-point sum takes as TSR_EINTERNAL: an
 * infinite or NaN loss sets *loss_overflow instead and adds nothing.
 *
 * Cost     2 R V d FLOPs for the loss, as many for the gradient; W once for every call.
 */
#ifndef TSR_KERNELS_HEAD_H
#define TSR_KERNELS_HEAD_H

#include "kernels/types.h"

#define TSR_LOSS_SHIFT 32 /* the loss word counts 2^-32 */
#define TSR_HEAD_PARTS                                                                             \
    64 /* sums that W's rows go to, so that each is short and they are made side by side */

/* What is carried from chunk to chunk; borrowed buffers, all fp32 but wy. */
typedef struct {
    float *max, *sum, *label_logit; /* [rows] each */
    float *acc;                     /* [rows, d]; NULL with wy: the loss only */
    void *wy;                       /* [rows, d] of wy_dtype */
    float *rival, *spread;          /* [rows] each; both NULL: neither accuracy nor entropy */
    float *squares;                 /* [rows]; NULL: log_squares is not wanted */
    float *row_parts;               /* [TSR_HEAD_PARTS, d]; NULL: W's rows are not summed */
    tsr_dtype wy_dtype; /* F32; without a softcap also the calls' dtype, of which W is multiplied */
} tsr_head_state;

typedef struct {
    tsr_head_state state;
    int64_t rows, d;
} tsr_head_begin_args;

typedef struct {
    tsr_head_state state;
    const void *h;         /* [rows, d] of dtype */
    tsr_frozen w;          /* [count, d]: vocabulary rows [first, first + count) */
    const int32_t *labels; /* [rows], of the whole vocabulary */
    void *workspace;
    uint64_t workspace_bytes;
    int64_t rows, d;
    int64_t first, count;
    /* [skip_count], of the whole vocabulary: rows that do not count, and are nobody's label: others, of another chunk,
     * are in their place. */
    const int32_t *skip;
    int64_t skip_count;
    float softcap; /* 0: none */
    tsr_dtype dtype;
} tsr_head_chunk_args;

typedef struct {
    tsr_head_state state;
    void *dh;               /* [rows, d] of dtype; NULL with acc NULL; may be acc or wy */
    double *nll;            /* [rows], written; the fp64 sum reads it */
    int64_t *loss;          /* one word, added to */
    int32_t *loss_overflow; /* one word, set to 1 where the loss is not finite or above 2^29 */
    int64_t *correct;       /* one word, added to where the loss is; NULL without rival */
    int64_t *entropy;       /* likewise, TSR_LOSS_SHIFT */
    float *log_squares;     /* [rows], written; NULL without squares */
    /* [rows] each, written: a row's entropy, 1 where its label is the argmax and else 0 (both need rival), and the mean of its
     * logits over the vocabulary (needs h and mean_row, no softcap); NULL: not wanted. */
    float *row_entropy, *row_correct, *row_logit;
    int64_t rows, d;
    float scale;
    tsr_dtype dtype;
    double
        smoothing;   /* the share s; 0: none, and without row_logit what follows is not looked at */
    const void *h;   /* as head_chunk's; dh may be it */
    float *mean_row; /* [d]; read, and with row_parts written first */
    int64_t vocabulary; /* V */
} tsr_head_finish_args;

/* The largest call of a run. */
typedef struct {
    int64_t rows, d, chunk; /* chunk: the most vocabulary rows of one head_chunk */
    tsr_dtype dtype;
    bool train;
} tsr_head_bounds;

/* What the CPU needs in head_chunk; a fixed figure for a width d. */
uint64_t tsr_head_workspace_bytes(const tsr_head_bounds *bounds);

tsr_status tsr_head_begin_check(const tsr_head_begin_args *args);
tsr_status tsr_head_begin_ref(const tsr_head_begin_args *args, tsr_pool *pool);
tsr_status tsr_head_chunk_check(const tsr_head_chunk_args *args);
tsr_status tsr_head_chunk_ref(const tsr_head_chunk_args *args, tsr_pool *pool);
tsr_status tsr_head_finish_check(const tsr_head_finish_args *args);
tsr_status tsr_head_finish_ref(const tsr_head_finish_args *args, tsr_pool *pool);

#endif
