/*
 * kernels/score.h: a reward model's head: one number a document, the loss of pairs of them, and its gradients.
 *
 * Rows h [rows, d] are the final norm's output at the last token of each document, chosen and rejected by turns; c and r stand
 * for them, in a micro-batch of n = rows / 2 pairs. The loss is that of TRL 1.16's RewardTrainer:
 *     reward[i]  = h[i] w, products and sum in fp64, in a fixed order
 *     loss       = mean of -log s(reward[c] - reward[r] - margin) + center * mean of (reward[c] + reward[r])^2
 *     *loss     += RN(2^32 * loss)
 *     slope[i]   = scale * d loss / d reward[i]
 *     dh[i, :]   = slope[i] w, in fp32, rounded to dtype
 *     dw         = sum of slope[i] h[i, :], in fp64, in the order of the rows, rounded to fp32
 * A reward that is not finite sets *loss_overflow and adds nothing; the slopes are then 0.
 *
 * Cost     h read twice, dh written; 6 rows d FLOPs.
 */
#ifndef TSR_KERNELS_SCORE_H
#define TSR_KERNELS_SCORE_H

#include "kernels/types.h"

/* What is reported: sums over the micro-batches of a step, each term rounded to TSR_LOSS_SHIFT (head.h). */
typedef enum {
    TSR_SCORE_ACCURACY, /* share of pairs whose chosen reward is larger */
    TSR_SCORE_MARGIN,   /* mean of reward[c] - reward[r] */
    TSR_SCORE_MIN,      /* of the micro-batch's rewards */
    TSR_SCORE_MEAN,
    TSR_SCORE_MAX,
    TSR_SCORE_WORDS
} tsr_score_word;

typedef struct {
    const void *h;          /* [rows, d] of dtype */
    tsr_frozen w;           /* [d] */
    const float *margin;    /* [rows / 2]; NULL: 0 */
    const int32_t *tie;     /* [rows / 2]: 1: both documents have the same tokens, which is a tie
                                 whatever rounding makes of it; NULL: none has */
    double *reward, *slope; /* [rows] each, written */
    void *dh;               /* [rows, d] of dtype, may be h; NULL: an evaluation */
    float *dw;              /* [d], written; NULL with dh */
    int64_t rows, d;        /* rows is even */
    double center;          /* center_rewards_coefficient; 0: none */
    double scale;           /* of the micro-batch's loss in the step's */
    int64_t *loss;          /* one word, added to */
    int32_t *loss_overflow; /* one word, set to 1 where a number is not finite or above 2^29 */
    int64_t *words;         /* [TSR_SCORE_WORDS], added to */
    tsr_dtype dtype;
} tsr_score_args;

tsr_status tsr_score_check(const tsr_score_args *args);
tsr_status tsr_score_ref(const tsr_score_args *args, tsr_pool *pool);

#endif
