/*
 * kernels/objective.h: from the log-probabilities of a micro-batch's documents to the loss of a preference objective, the
 * weight of each label row's gradient, and the metrics.
 *
 * Documents come in pairs: chosen and rejected; for KTO the row's own document and its prompt with another row's completion. A
 * document's label rows are in up to three parts, in this order: the prompt, the completion, and the completion beyond the length
 * of the pair's shorter one, which is separate only with ld_alpha. L is the sum of log p over the last two parts, the last one
 * times ld_alpha; n is their number of rows; c and r stand for chosen and rejected; a = L(c) - Lref(c) and b = L(r) - Lref(r).
 * The losses are those of TRL 1.16; docs/objectives.md has each formula.
 *
 *     sums[p]   = - sum of nll over the rows of part p, in fp64, in a fixed order
 *     q(y)      = mean over the completion's rows of log p - log sum p^2; with weighting a pair's loss is multiplied by
 *                 exp(q(c) + q(r)), which is not differentiated
 *     *loss    += RN(2^32 * loss), loss the mean over the micro-batch's pairs
 *     weight[i] = scale * d loss / d nll[i]
 *
 * Cost     8 bytes read and 4 written per label row; a few transcendental functions per pair.
 */
#ifndef TSR_KERNELS_OBJECTIVE_H
#define TSR_KERNELS_OBJECTIVE_H

#include "kernels/types.h"

typedef enum {
    TSR_OBJECTIVE_SFT, /* no objective of this file */
    TSR_OBJECTIVE_DPO,
    TSR_OBJECTIVE_ORPO,
    TSR_OBJECTIVE_CPO,
    TSR_OBJECTIVE_KTO,
    TSR_OBJECTIVE_REWARD /* score.h */
} tsr_objective_kind;

/* loss_type. */
typedef enum {
    TSR_PREFER_SIGMOID, /* DPO, CPO */
    TSR_PREFER_HINGE,   /* DPO, CPO */
    TSR_PREFER_IPO,     /* DPO, CPO */
    TSR_PREFER_ROBUST,  /* this and what follows: DPO */
    TSR_PREFER_EXO_PAIR,
    TSR_PREFER_NCA_PAIR,
    TSR_PREFER_BCO_PAIR,
    TSR_PREFER_SPPO_HARD,
    TSR_PREFER_APO_ZERO,
    TSR_PREFER_APO_DOWN,
    TSR_PREFER_AOT,
    TSR_PREFER_AOT_UNPAIRED,
    TSR_PREFER_DISCOPOP,
    TSR_PREFER_SIGMOID_NORM,
    TSR_PREFER_SFT,
    TSR_PREFER_SIMPO,            /* CPO; alphapo is this with cpo_alpha 0 */
    TSR_PREFER_KTO,              /* KTO */
    TSR_PREFER_APO_ZERO_UNPAIRED /* KTO */
} tsr_prefer;

/* f_divergence_type. */
typedef enum {
    TSR_DIVERGENCE_REVERSE_KL,
    TSR_DIVERGENCE_FORWARD_KL,
    TSR_DIVERGENCE_JS,
    TSR_DIVERGENCE_ALPHA
} tsr_divergence;

#define TSR_PREFER_LOSSES 8 /* of one objective at most */

/* TRL's keys of these names. */
typedef struct {
    tsr_objective_kind kind;
    int count; /* of losses; more than 1 for DPO only */
    tsr_prefer loss[TSR_PREFER_LOSSES];
    double loss_weight[TSR_PREFER_LOSSES];
    double beta, label_smoothing;
    double ld_alpha; /* 1: no difference */
    double discopop_tau;
    tsr_divergence divergence;
    double f_alpha_divergence_coef;
    bool weighting;                       /* use_weighting, of DPO */
    double cpo_alpha, simpo_gamma, alpha; /* of CPO */
    double desirable_weight, undesirable_weight;
    double center; /* center_rewards_coefficient, of a reward model; 0: none */
} tsr_objective;

/* Sums over a document's completion, for metrics. */
enum { TSR_DOCUMENT_ENTROPY, TSR_DOCUMENT_CORRECT, TSR_DOCUMENT_LOGIT, TSR_OF_DOCUMENT };

#define TSR_PREFERENCE_OF_PAIR 7 /* numbers per pair: objective_math.h */

enum { TSR_PART_PROMPT, TSR_PART_COMPLETION, TSR_PART_BEYOND, TSR_PARTS };

/* Sums over the micro-batches of a step, each term rounded to TSR_LOSS_SHIFT. Those that end in _IN count the micro-batches that
 * have such rows (KTO's may lack chosen or rejected ones). */
typedef enum {
    TSR_PREFERENCE_REWARD_CHOSEN, /* means: beta a; of ORPO and CPO beta times what logps is of */
    TSR_PREFERENCE_REWARD_REJECTED,
    TSR_PREFERENCE_LOGP_CHOSEN, /* of L; of ORPO, and CPO's ipo and simpo, of L / n */
    TSR_PREFERENCE_LOGP_REJECTED,
    TSR_PREFERENCE_ACCURACY, /* share of pairs whose chosen reward is above the rejected one */
    TSR_PREFERENCE_NLL,      /* ORPO, CPO */
    TSR_PREFERENCE_LOG_ODDS_RATIO,
    TSR_PREFERENCE_LOG_ODDS_CHOSEN, /* ORPO */
    TSR_PREFERENCE_KL,              /* KTO */
    TSR_PREFERENCE_ENTROPY,         /* DPO, KTO: of the completions' tokens, both */
    TSR_PREFERENCE_TOKEN_ACCURACY,  /* DPO: of the chosen ones' */
    TSR_PREFERENCE_LOGIT_CHOSEN,    /* DPO, KTO: the mean logit of the completions' tokens */
    TSR_PREFERENCE_LOGIT_REJECTED,
    TSR_PREFERENCE_MARGIN, /* of rewards; KTO: of those micro-batches that have both */
    TSR_PREFERENCE_CHOSEN_IN,
    TSR_PREFERENCE_REJECTED_IN,
    TSR_PREFERENCE_BOTH_IN,
    TSR_PREFERENCE_WORDS
} tsr_preference_word;

typedef struct {
    const tsr_objective *objective; /* on the host; unused if weight is NULL */
    int64_t rows, documents;        /* label rows; documents is even */
    const double *nll;              /* [rows], -log p of each label */
    const int32_t *part;     /* [TSR_PARTS documents + 1]: the first row of each part, then rows */
    const double *reference; /* [TSR_PARTS documents], sums as below of the reference; NULL: none */
    const int32_t *
        desirable; /* [documents / 2], 0 or 1: KTO's label; else whether the pair is of the same tokens, a tie
                                 whatever rounding makes of it. NULL: none is (never of KTO) */
    const float *log_squares; /* [rows], log of the sum of all p^2 (head.h); for weighting */
    const float *row_entropy, *row_correct, *row_logit; /* [rows] of head.h; NULL: not reported */
    double *sums;  /* [tsr_objective_doubles(documents)]: first the sums, [TSR_PARTS documents] */
    float *weight; /* [rows], written; NULL: sums alone */
    double scale;  /* of the micro-batch's loss in the step's */
    int64_t *loss; /* one word, added to */
    int32_t *loss_overflow; /* one word, set to 1 where a number is not finite or above 2^29 */
    int64_t *words;         /* [TSR_PREFERENCE_WORDS], added to */
} tsr_objective_args;

/* Doubles in args.sums: sums, their gradients, each pair's and document's numbers, and q. */
static inline int64_t tsr_objective_doubles(int64_t documents)
{
    return (2 * TSR_PARTS + 1 + TSR_OF_DOCUMENT) * documents +
           TSR_PREFERENCE_OF_PAIR * (documents / 2);
}

/* x[i, :] *= weight[i], in fp32, rounded to dtype. */
typedef struct {
    void *x;             /* [rows, d] of dtype */
    const float *weight; /* [rows] */
    int64_t rows, d;
    tsr_dtype dtype;
} tsr_scale_rows_args;

tsr_status tsr_objective_check(const tsr_objective_args *args);
tsr_status tsr_objective_ref(const tsr_objective_args *args, tsr_pool *pool);
tsr_status tsr_scale_rows_check(const tsr_scale_rows_args *args);
tsr_status tsr_scale_rows_ref(const tsr_scale_rows_args *args, tsr_pool *pool);

#endif
