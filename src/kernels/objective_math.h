/*
 * kernels/objective_math.h: the formulas of objective.h, in double precision, once for the CPU and for GPUs. Private to
 * objective_ref.c and objective.cu, and to score's files (score_math.h).
 *
 * Pairs are independent except for what is pooled over the micro-batch: the chosen tokens' nll, KTO's z, AOT's order.
 */
#ifndef TSR_KERNELS_OBJECTIVE_MATH_H
#define TSR_KERNELS_OBJECTIVE_MATH_H

#include "kernels/head.h"
#include "kernels/objective.h"

#include <math.h>

#define TSR_PREFER_LIMIT 536870912.0 /* of a loss or a metric, as of head_finish's loss */

#ifdef __CUDACC__
#define TSR_PREFER_INLINE static __device__ __forceinline__
#else
#define TSR_PREFER_INLINE static inline
#endif

/* A micro-batch; `o` is readable where the math runs. */
typedef struct {
    const tsr_objective *o;
    const int32_t *part;
    const double *sums, *reference; /* reference NULL: none */
    const int32_t *desirable;
    const double *confidence; /* [documents], q; NULL: there is no weighting */
    const double *tokens;     /* [documents, TSR_OF_DOCUMENT] */
    int64_t documents;
} tsr_prefer_batch;

/* Of all pairs together. */
typedef struct {
    double chosen_rows; /* completion rows of all chosen documents, or of ORPO all of them */
    double chosen_nll;  /* their mean */
    double confidence;  /* the mean weight of a pair */
    double shift;       /* KTO's z */
} tsr_prefer_pool;

/* Numbers of one pair, summed later in the order of the pairs. */
typedef enum {
    TSR_OF_PAIR_LOSS,
    TSR_OF_PAIR_REWARD_CHOSEN,
    TSR_OF_PAIR_REWARD_REJECTED,
    TSR_OF_PAIR_LOGP_CHOSEN,
    TSR_OF_PAIR_LOGP_REJECTED,
    TSR_OF_PAIR_ODDS,    /* log s(o) of ORPO; KTO: 1: the row is a chosen one */
    TSR_OF_PAIR_LOG_ODDS /* o */
} tsr_of_pair;

/* log s(x) and s(x), for any x. */
TSR_PREFER_INLINE double tsr_log_sigmoid(double x)
{
    return x < 0 ? x - log1p(exp(x)) : -log1p(exp(-x));
}

TSR_PREFER_INLINE double tsr_sigmoid(double x)
{
    double e = exp(x < 0 ? x : -x);
    return x < 0 ? e / (1 + e) : 1 / (1 + e);
}

/* s(x) s(-x), the slope of s. */
TSR_PREFER_INLINE double tsr_sigmoid_slope(double x)
{
    return tsr_sigmoid(x) * tsr_sigmoid(-x);
}

/* ---- documents ---- */

TSR_PREFER_INLINE double tsr_rows_in(const tsr_prefer_batch *b, int64_t document, int part)
{
    const int32_t *at = b->part + TSR_PARTS * document + part;
    return (double)(at[1] - at[0]);
}

/* n: tokens of the completion. */
TSR_PREFER_INLINE double tsr_completion_rows(const tsr_prefer_batch *b, int64_t document)
{
    return tsr_rows_in(b, document, TSR_PART_COMPLETION) +
           tsr_rows_in(b, document, TSR_PART_BEYOND);
}

TSR_PREFER_INLINE double tsr_weighed_sum(const tsr_prefer_batch *b, const double *sums,
                                         int64_t document)
{
    const double *s = sums + TSR_PARTS * document;
    return s[TSR_PART_COMPLETION] + b->o->ld_alpha * s[TSR_PART_BEYOND];
}

/* L. */
TSR_PREFER_INLINE double tsr_logp(const tsr_prefer_batch *b, int64_t document)
{
    return tsr_weighed_sum(b, b->sums, document);
}

/* Lref; 0: there is no reference. */
TSR_PREFER_INLINE double tsr_reference_logp(const tsr_prefer_batch *b, int64_t document)
{
    return b->reference ? tsr_weighed_sum(b, b->reference, document) : 0;
}

/* a of a chosen document, b of a rejected one. */
TSR_PREFER_INLINE double tsr_log_ratio(const tsr_prefer_batch *b, int64_t document)
{
    return tsr_logp(b, document) - tsr_reference_logp(b, document);
}

/* ---- scores ---- */

typedef struct {
    double value, slope;
} tsr_prefer_score;

#define TSR_MOST_EXPONENT 80.0 /* of the divergence alpha, as in TRL */

/* f(x) of f_divergence_type, and its slope. */
TSR_PREFER_INLINE tsr_prefer_score tsr_divergence_score(const tsr_objective *o, double x)
{
    double k = o->f_alpha_divergence_coef - 1, e;
    tsr_prefer_score score = {x, 1};
    switch (o->divergence) {
    case TSR_DIVERGENCE_FORWARD_KL:
        score.slope = exp(-x);
        score.value = 1 - score.slope;
        break;
    case TSR_DIVERGENCE_JS:
        score.value = log(2.0) + tsr_log_sigmoid(x);
        score.slope = tsr_sigmoid(-x);
        break;
    case TSR_DIVERGENCE_ALPHA:
        e = exp(k * x < TSR_MOST_EXPONENT ? k * x : TSR_MOST_EXPONENT);
        score.value = (e - 1) / k;
        score.slope = k * x < TSR_MOST_EXPONENT ? e : 0;
        break;
    default:
        break;
    }
    return score;
}

/* A loss of one pair: its value, and its slopes by two numbers. */
typedef struct {
    double loss, by_first, by_second;
} tsr_prefer_slopes;

/* -(1 - e) log s(beta x) - e log s(-beta x), and its slope by x. */
TSR_PREFER_INLINE tsr_prefer_score tsr_smoothed(double beta, double x, double e)
{
    tsr_prefer_score score;
    score.value = -(1 - e) * tsr_log_sigmoid(beta * x) - e * tsr_log_sigmoid(-beta * x);
    score.slope = beta * (e * tsr_sigmoid(beta * x) - (1 - e) * tsr_sigmoid(-beta * x));
    return score;
}

/* exp(-x) s(x / tau), where the first may be infinite. */
TSR_PREFER_INLINE double tsr_discopop_tail(double x, double tau)
{
    return exp(-x + tsr_log_sigmoid(x / tau));
}

/* Losses of x = beta d alone: value and slope by x. */
TSR_PREFER_INLINE tsr_prefer_score tsr_loss_of_distance(const tsr_objective *o, tsr_prefer loss,
                                                        double x)
{
    double e = o->label_smoothing, s, tail, tau = o->discopop_tau;
    tsr_prefer_score score = {-tsr_log_sigmoid(x), -tsr_sigmoid(-x)};
    switch (loss) {
    case TSR_PREFER_HINGE:
        score.value = x < 1 ? 1 - x : 0;
        score.slope = x < 1 ? -1 : 0;
        break;
    case TSR_PREFER_ROBUST:
        score.value = (-(1 - e) * tsr_log_sigmoid(x) + e * tsr_log_sigmoid(-x)) / (1 - 2 * e);
        score.slope = (-(1 - e) * tsr_sigmoid(-x) - e * tsr_sigmoid(x)) / (1 - 2 * e);
        break;
    case TSR_PREFER_EXO_PAIR:
        score.value = tsr_sigmoid(x) * (tsr_log_sigmoid(x) - log1p(-e)) +
                      tsr_sigmoid(-x) * (tsr_log_sigmoid(-x) - log(e));
        score.slope = tsr_sigmoid_slope(x) * (x - log1p(-e) + log(e));
        break;
    case TSR_PREFER_DISCOPOP:
        s = tsr_sigmoid(x / tau);
        tail = tsr_discopop_tail(x, tau);
        score.value = -tsr_log_sigmoid(x) * tsr_sigmoid(-x / tau) + tail;
        score.slope = -tsr_sigmoid(-x) * tsr_sigmoid(-x / tau) +
                      tsr_log_sigmoid(x) * tsr_sigmoid_slope(x / tau) / tau - tail +
                      tail * (1 - s) / tau;
        break;
    default:
        break;
    }
    return score;
}

/* ---- DPO ---- */

/* What AOT sorts the pairs by: 0 L(c) - L(r), 1 the same of the reference; unpaired: 2 a, 3 b. */
TSR_PREFER_INLINE double tsr_aot_key(const tsr_prefer_batch *b, int64_t pair, int which)
{
    int64_t c = 2 * pair, r = c + 1;
    switch (which) {
    case 0:
        return tsr_logp(b, c) - tsr_logp(b, r);
    case 1:
        return tsr_reference_logp(b, c) - tsr_reference_logp(b, r);
    case 2:
        return tsr_log_ratio(b, c);
    default:
        return tsr_log_ratio(b, r);
    }
}

/* The place of a pair in order `which`; of equal ones the first comes first. */
TSR_PREFER_INLINE int64_t tsr_aot_rank(const tsr_prefer_batch *b, int64_t pair, int which)
{
    double own = tsr_aot_key(b, pair, which);
    int64_t rank = 0;
    for (int64_t other = 0; other < b->documents / 2; other++) {
        double x = tsr_aot_key(b, other, which);
        rank += x < own || (x == own && other < pair);
    }
    return rank;
}

/* The element of order `other` that has the rank of `pair` in order `which`. */
TSR_PREFER_INLINE double tsr_aot_partner(const tsr_prefer_batch *b, int64_t pair, int which,
                                         int other)
{
    int64_t rank = tsr_aot_rank(b, pair, which);
    for (int64_t i = 0; i < b->documents / 2; i++)
        if (tsr_aot_rank(b, i, other) == rank)
            return tsr_aot_key(b, i, other);
    return NAN; /* some are no numbers */
}

/* By L of the chosen and of the rejected document. */
TSR_PREFER_INLINE tsr_prefer_slopes tsr_aot_loss(const tsr_prefer_batch *b, tsr_prefer loss,
                                                 int64_t pair)
{
    const tsr_objective *o = b->o;
    double beta = o->beta, e = o->label_smoothing;
    tsr_prefer_slopes out;
    if (loss == TSR_PREFER_AOT) {
        tsr_prefer_score score =
            tsr_smoothed(beta, tsr_aot_key(b, pair, 0) - tsr_aot_partner(b, pair, 0, 1), e);
        out.loss = score.value;
        out.by_first = score.slope;
        out.by_second = -score.slope;
        return out;
    }
    tsr_prefer_score first =
        tsr_smoothed(beta, tsr_aot_key(b, pair, 2) - tsr_aot_partner(b, pair, 2, 3), e);
    tsr_prefer_score second =
        tsr_smoothed(beta, tsr_aot_partner(b, pair, 3, 2) - tsr_aot_key(b, pair, 3), e);
    out.loss = first.value;
    out.by_first = first.slope;
    out.by_second = -second.slope;
    return out;
}

/* Losses of a and b that are not functions of their difference. By a and b. */
TSR_PREFER_INLINE tsr_prefer_slopes tsr_loss_of_ratios(const tsr_objective *o, tsr_prefer loss,
                                                       double a, double b)
{
    double beta = o->beta;
    tsr_prefer_slopes out = {0, 0, 0};
    switch (loss) {
    case TSR_PREFER_NCA_PAIR:
        out.loss = -tsr_log_sigmoid(beta * a) - 0.5 * tsr_log_sigmoid(-beta * a) -
                   0.5 * tsr_log_sigmoid(-beta * b);
        out.by_first = beta * (0.5 * tsr_sigmoid(beta * a) - tsr_sigmoid(-beta * a));
        out.by_second = 0.5 * beta * tsr_sigmoid(beta * b);
        break;
    case TSR_PREFER_BCO_PAIR:
        out.loss = -tsr_log_sigmoid(beta * a) - tsr_log_sigmoid(-beta * b);
        out.by_first = -beta * tsr_sigmoid(-beta * a);
        out.by_second = beta * tsr_sigmoid(beta * b);
        break;
    case TSR_PREFER_SPPO_HARD:
        out.loss = (a - 0.5 / beta) * (a - 0.5 / beta) + (b + 0.5 / beta) * (b + 0.5 / beta);
        out.by_first = 2 * (a - 0.5 / beta);
        out.by_second = 2 * (b + 0.5 / beta);
        break;
    case TSR_PREFER_APO_ZERO:
        out.loss = tsr_sigmoid(-beta * a) + tsr_sigmoid(beta * b);
        out.by_first = -beta * tsr_sigmoid_slope(beta * a);
        out.by_second = beta * tsr_sigmoid_slope(beta * b);
        break;
    case TSR_PREFER_APO_DOWN:
        out.loss = tsr_sigmoid(beta * a) + tsr_sigmoid(-beta * (a - b));
        out.by_second = beta * tsr_sigmoid_slope(beta * (a - b));
        out.by_first = beta * tsr_sigmoid_slope(beta * a) - out.by_second;
        break;
    default:
        break;
    }
    return out;
}

/* Losses of distances between scores: by a and b. */
TSR_PREFER_INLINE tsr_prefer_slopes tsr_loss_of_scores(const tsr_prefer_batch *b, tsr_prefer loss,
                                                       int64_t pair)
{
    const tsr_objective *o = b->o;
    int64_t c = 2 * pair, r = c + 1;
    tsr_prefer_score first = tsr_divergence_score(o, tsr_log_ratio(b, c));
    tsr_prefer_score second = tsr_divergence_score(o, tsr_log_ratio(b, r)), score;
    double nc = 1, nr = 1, factor = o->beta;
    if (loss == TSR_PREFER_IPO || loss == TSR_PREFER_SIGMOID_NORM) {
        nc = tsr_completion_rows(b, c);
        nr = tsr_completion_rows(b, r);
    }
    double distance = first.value / nc - second.value / nr;
    tsr_prefer_slopes out;
    if (loss == TSR_PREFER_IPO) {
        distance -= 0.5 / o->beta;
        score.value = distance * distance;
        score.slope = 2 * distance;
        factor = 1;
    } else {
        score = tsr_loss_of_distance(o, loss, o->beta * distance);
    }
    out.loss = score.value;
    out.by_first = factor * score.slope * first.slope / nc;
    out.by_second = -factor * score.slope * second.slope / nr;
    return out;
}

TSR_PREFER_INLINE tsr_prefer_slopes tsr_dpo_loss(const tsr_prefer_batch *b, tsr_prefer loss,
                                                 int64_t pair)
{
    switch (loss) {
    case TSR_PREFER_AOT:
    case TSR_PREFER_AOT_UNPAIRED:
        return tsr_aot_loss(b, loss, pair);
    case TSR_PREFER_NCA_PAIR:
    case TSR_PREFER_BCO_PAIR:
    case TSR_PREFER_SPPO_HARD:
    case TSR_PREFER_APO_ZERO:
    case TSR_PREFER_APO_DOWN:
        return tsr_loss_of_ratios(b->o, loss, tsr_log_ratio(b, 2 * pair),
                                  tsr_log_ratio(b, 2 * pair + 1));
    default:
        return tsr_loss_of_scores(b, loss, pair);
    }
}

/* ---- a pair ---- */

/* exp(q(c) + q(r)). */
TSR_PREFER_INLINE double tsr_pair_confidence(const tsr_prefer_batch *b, int64_t pair)
{
    return b->confidence ? exp(b->confidence[2 * pair] + b->confidence[2 * pair + 1]) : 1;
}

/* The gradient of a document's sums: `by` with respect to L, `plain` with respect to the unweighted sum of log p. */
TSR_PREFER_INLINE void tsr_put_weights(double *weights, const tsr_prefer_batch *b, int64_t document,
                                       double by, double plain, bool prompt)
{
    double *w = weights + TSR_PARTS * document;
    w[TSR_PART_PROMPT] = prompt ? plain : 0;
    w[TSR_PART_COMPLETION] = by + plain;
    w[TSR_PART_BEYOND] = b->o->ld_alpha * by + plain;
}

TSR_PREFER_INLINE void tsr_dpo_pair(double *of, double *weights, const tsr_prefer_batch *b,
                                    const tsr_prefer_pool *pool, int64_t pair)
{
    const tsr_objective *o = b->o;
    double pairs = (double)(b->documents / 2), confidence = tsr_pair_confidence(b, pair);
    double loss = 0, by_chosen = 0, by_rejected = 0, plain = 0;
    int64_t c = 2 * pair, r = c + 1;
    for (int i = 0; i < o->count; i++) {
        double weight = o->loss_weight[i];
        if (o->loss[i] == TSR_PREFER_SFT) {
            loss += weight * confidence * pool->chosen_nll;
            plain -= weight * pool->confidence / pool->chosen_rows;
            continue;
        }
        tsr_prefer_slopes one = tsr_dpo_loss(b, o->loss[i], pair);
        loss += weight * confidence * one.loss;
        by_chosen += weight * confidence * one.by_first / pairs;
        by_rejected += weight * confidence * one.by_second / pairs;
    }
    tsr_put_weights(weights, b, c, by_chosen, plain, false);
    tsr_put_weights(weights, b, r, by_rejected, 0, false);
    of[TSR_OF_PAIR_LOSS] = loss;
    of[TSR_OF_PAIR_LOGP_CHOSEN] = tsr_logp(b, c);
    of[TSR_OF_PAIR_LOGP_REJECTED] = tsr_logp(b, r);
    of[TSR_OF_PAIR_REWARD_CHOSEN] = o->beta * tsr_log_ratio(b, c);
    of[TSR_OF_PAIR_REWARD_REJECTED] = o->beta * tsr_log_ratio(b, r);
}

/* Metrics of objectives without a reference. */
TSR_PREFER_INLINE void tsr_put_logps(double *of, const tsr_objective *o, double chosen,
                                     double rejected)
{
    of[TSR_OF_PAIR_LOGP_CHOSEN] = chosen;
    of[TSR_OF_PAIR_LOGP_REJECTED] = rejected;
    of[TSR_OF_PAIR_REWARD_CHOSEN] = o->beta * chosen;
    of[TSR_OF_PAIR_REWARD_REJECTED] = o->beta * rejected;
}

TSR_PREFER_INLINE void tsr_orpo_pair(double *of, double *weights, const tsr_prefer_batch *b,
                                     const tsr_prefer_pool *pool, int64_t pair)
{
    double pairs = (double)(b->documents / 2), beta = b->o->beta;
    int64_t c = 2 * pair, r = c + 1;
    double nc = tsr_completion_rows(b, c), nr = tsr_completion_rows(b, r);
    double u = tsr_logp(b, c) / nc, v = tsr_logp(b, r) / nr;
    double odds = (u - v) - (log(-expm1(u)) - log(-expm1(v)));
    double slope = -beta * tsr_sigmoid(-odds) / pairs;
    tsr_put_weights(weights, b, c, slope / (-expm1(u) * nc), -1 / pool->chosen_rows, true);
    tsr_put_weights(weights, b, r, -slope / (-expm1(v) * nr), 0, false);
    tsr_put_logps(of, b->o, u, v);
    of[TSR_OF_PAIR_ODDS] = tsr_log_sigmoid(odds);
    of[TSR_OF_PAIR_LOG_ODDS] = odds;
    of[TSR_OF_PAIR_LOSS] = pool->chosen_nll - beta * of[TSR_OF_PAIR_ODDS];
}

/* alphapo's (1 - exp(-alpha x)) / alpha. */
TSR_PREFER_INLINE tsr_prefer_score tsr_alpha_score(double alpha, double x)
{
    tsr_prefer_score score = {x, 1};
    if (alpha != 0) {
        score.slope = exp(-alpha * x);
        score.value = -expm1(-alpha * x) / alpha;
    }
    return score;
}

TSR_PREFER_INLINE void tsr_cpo_pair(double *of, double *weights, const tsr_prefer_batch *b,
                                    const tsr_prefer_pool *pool, int64_t pair)
{
    const tsr_objective *o = b->o;
    double pairs = (double)(b->documents / 2), beta = o->beta, nc = 1, nr = 1;
    int64_t c = 2 * pair, r = c + 1;
    tsr_prefer loss = o->loss[0];
    if (loss == TSR_PREFER_IPO || loss == TSR_PREFER_SIMPO) {
        nc = tsr_completion_rows(b, c);
        nr = tsr_completion_rows(b, r);
    }
    tsr_prefer_score first = tsr_alpha_score(o->alpha, tsr_logp(b, c) / nc);
    tsr_prefer_score second = tsr_alpha_score(o->alpha, tsr_logp(b, r) / nr), score;
    double x = first.value - second.value;
    if (loss == TSR_PREFER_HINGE) {
        score = tsr_loss_of_distance(o, loss, beta * x);
        score.slope *= beta;
    } else if (loss == TSR_PREFER_IPO) {
        score.value = (x - 0.5 / beta) * (x - 0.5 / beta);
        score.slope = 2 * (x - 0.5 / beta);
    } else {
        double margin = loss == TSR_PREFER_SIMPO ? o->simpo_gamma / beta : 0;
        score = tsr_smoothed(beta, x - margin, o->label_smoothing);
    }
    double plain = o->cpo_alpha != 0 ? -o->cpo_alpha / pool->chosen_rows : 0;
    tsr_put_weights(weights, b, c, score.slope * first.slope / (nc * pairs), plain, false);
    tsr_put_weights(weights, b, r, -score.slope * second.slope / (nr * pairs), 0, false);
    tsr_put_logps(of, o, tsr_logp(b, c) / nc, tsr_logp(b, r) / nr);
    of[TSR_OF_PAIR_REWARD_CHOSEN] = beta * first.value;
    of[TSR_OF_PAIR_REWARD_REJECTED] = beta * second.value;
    of[TSR_OF_PAIR_LOSS] = score.value + (plain != 0 ? o->cpo_alpha * pool->chosen_nll : 0);
}

/* The row's own document, and the mismatched one, which has no gradient. */
TSR_PREFER_INLINE void tsr_kto_pair(double *of, double *weights, const tsr_prefer_batch *b,
                                    const tsr_prefer_pool *pool, int64_t pair)
{
    const tsr_objective *o = b->o;
    double pairs = (double)(b->documents / 2), beta = o->beta;
    int64_t own = 2 * pair;
    bool good = b->desirable[pair] != 0;
    double a = tsr_log_ratio(b, own), x = beta * (a - pool->shift);
    double weight = good ? o->desirable_weight : o->undesirable_weight;
    double slope = (good ? -1 : 1) * weight * beta * tsr_sigmoid_slope(x) / pairs;
    tsr_put_weights(weights, b, own, slope, 0, false);
    tsr_put_weights(weights, b, own + 1, 0, 0, false);
    of[TSR_OF_PAIR_LOSS] = weight * tsr_sigmoid(good ? -x : x);
    of[TSR_OF_PAIR_REWARD_CHOSEN] = of[TSR_OF_PAIR_REWARD_REJECTED] = beta * a;
    of[TSR_OF_PAIR_LOGP_CHOSEN] = of[TSR_OF_PAIR_LOGP_REJECTED] = tsr_logp(b, own);
    of[TSR_OF_PAIR_ODDS] = good;
}

/* of [TSR_PREFERENCE_OF_PAIR]: the pair's numbers. weights [TSR_PARTS documents]: the gradient of the micro-batch's loss with respect to
 * the sums of its documents. */
TSR_PREFER_INLINE void tsr_prefer_pair(double *of, double *weights, const tsr_prefer_batch *b,
                                       const tsr_prefer_pool *pool, int64_t pair)
{
    for (int i = 0; i < TSR_PREFERENCE_OF_PAIR; i++)
        of[i] = 0;
    switch (b->o->kind) {
    case TSR_OBJECTIVE_ORPO:
        tsr_orpo_pair(of, weights, b, pool, pair);
        break;
    case TSR_OBJECTIVE_CPO:
        tsr_cpo_pair(of, weights, b, pool, pair);
        break;
    case TSR_OBJECTIVE_KTO:
        tsr_kto_pair(of, weights, b, pool, pair);
        break;
    default:
        tsr_dpo_pair(of, weights, b, pool, pair);
    }
}

/* ---- all pairs, in their order: by one thread ---- */

TSR_PREFER_INLINE tsr_prefer_pool tsr_prefer_pooled(const tsr_prefer_batch *b)
{
    tsr_prefer_pool pool = {0, 0, 0, 0};
    double pairs = (double)(b->documents / 2), mismatched = 0, logp = 0;
    bool prompts = b->o->kind == TSR_OBJECTIVE_ORPO;
    for (int64_t c = 0; c < b->documents; c += 2) {
        const double *sums = b->sums + TSR_PARTS * c;
        pool.chosen_rows +=
            tsr_completion_rows(b, c) + (prompts ? tsr_rows_in(b, c, TSR_PART_PROMPT) : 0);
        logp += sums[TSR_PART_COMPLETION] + sums[TSR_PART_BEYOND] +
                (prompts ? sums[TSR_PART_PROMPT] : 0);
        mismatched += tsr_log_ratio(b, c + 1);
        pool.confidence += tsr_pair_confidence(b, c / 2) / pairs;
    }
    pool.chosen_nll = -logp / pool.chosen_rows;
    if (b->o->kind == TSR_OBJECTIVE_KTO && b->o->loss[0] == TSR_PREFER_KTO)
        pool.shift = mismatched > 0 ? mismatched / pairs : mismatched < 0 ? 0 : mismatched;
    return pool;
}

/* Means over the tokens of completions, those of KTO's mismatched documents left out. */
TSR_PREFER_INLINE void tsr_token_words(double *word, const tsr_prefer_batch *b)
{
    bool kto = b->o->kind == TSR_OBJECTIVE_KTO;
    double rows[2] = {0, 0}, logit[2] = {0, 0}, correct[2] = {0, 0}, entropy = 0;
    for (int64_t d = 0; d < b->documents; d += kto ? 2 : 1) {
        int side = kto ? !b->desirable[d / 2] : d % 2;
        const double *of = b->tokens + TSR_OF_DOCUMENT * d;
        rows[side] += tsr_completion_rows(b, d);
        logit[side] += of[TSR_DOCUMENT_LOGIT];
        correct[side] += of[TSR_DOCUMENT_CORRECT];
        entropy += of[TSR_DOCUMENT_ENTROPY];
    }
    word[TSR_PREFERENCE_ENTROPY] = entropy / (rows[0] + rows[1]);
    word[TSR_PREFERENCE_TOKEN_ACCURACY] = rows[0] > 0 ? correct[0] / rows[0] : 0;
    word[TSR_PREFERENCE_LOGIT_CHOSEN] = rows[0] > 0 ? logit[0] / rows[0] : 0;
    word[TSR_PREFERENCE_LOGIT_REJECTED] = rows[1] > 0 ? logit[1] / rows[1] : 0;
}

/* The words of a micro-batch followed by its loss, [TSR_PREFERENCE_WORDS + 1]: means, 0 for a class without rows. `of`: the numbers
 * of all pairs. */
TSR_PREFER_INLINE void tsr_prefer_words(double *word, const tsr_prefer_batch *b,
                                        const tsr_prefer_pool *pool, const double *of)
{
    bool kto = b->o->kind == TSR_OBJECTIVE_KTO;
    double pairs = (double)(b->documents / 2), chosen = 0, rejected = 0;
    for (int i = 0; i <= TSR_PREFERENCE_WORDS; i++)
        word[i] = 0;
    for (int64_t i = 0; i < b->documents / 2; i++, of += TSR_PREFERENCE_OF_PAIR) {
        bool is_chosen = !kto || of[TSR_OF_PAIR_ODDS] != 0, is_rejected = !kto || !is_chosen;
        chosen += is_chosen;
        rejected += is_rejected;
        word[TSR_PREFERENCE_WORDS] += of[TSR_OF_PAIR_LOSS] / pairs;
        if (is_chosen) {
            word[TSR_PREFERENCE_REWARD_CHOSEN] += of[TSR_OF_PAIR_REWARD_CHOSEN];
            word[TSR_PREFERENCE_LOGP_CHOSEN] += of[TSR_OF_PAIR_LOGP_CHOSEN];
        }
        if (is_rejected) {
            word[TSR_PREFERENCE_REWARD_REJECTED] += of[TSR_OF_PAIR_REWARD_REJECTED];
            word[TSR_PREFERENCE_LOGP_REJECTED] += of[TSR_OF_PAIR_LOGP_REJECTED];
        }
        bool tie = !kto && b->desirable && b->desirable[i];
        bool right = of[TSR_OF_PAIR_REWARD_CHOSEN] > of[TSR_OF_PAIR_REWARD_REJECTED] && !tie;
        word[TSR_PREFERENCE_ACCURACY] += right / pairs;
        word[TSR_PREFERENCE_LOG_ODDS_RATIO] += of[TSR_OF_PAIR_ODDS] / pairs;
        word[TSR_PREFERENCE_LOG_ODDS_CHOSEN] += of[TSR_OF_PAIR_LOG_ODDS] / pairs;
    }
    word[TSR_PREFERENCE_REWARD_CHOSEN] /= chosen > 0 ? chosen : 1;
    word[TSR_PREFERENCE_LOGP_CHOSEN] /= chosen > 0 ? chosen : 1;
    word[TSR_PREFERENCE_REWARD_REJECTED] /= rejected > 0 ? rejected : 1;
    word[TSR_PREFERENCE_LOGP_REJECTED] /= rejected > 0 ? rejected : 1;
    if (chosen > 0 && rejected > 0)
        word[TSR_PREFERENCE_MARGIN] =
            word[TSR_PREFERENCE_REWARD_CHOSEN] - word[TSR_PREFERENCE_REWARD_REJECTED];
    word[TSR_PREFERENCE_NLL] =
        b->o->kind == TSR_OBJECTIVE_CPO && b->o->cpo_alpha == 0 ? 0 : pool->chosen_nll;
    word[TSR_PREFERENCE_KL] = pool->shift;
    tsr_token_words(word, b);
    word[TSR_PREFERENCE_CHOSEN_IN] = chosen > 0;
    word[TSR_PREFERENCE_REJECTED_IN] = rejected > 0;
    word[TSR_PREFERENCE_BOTH_IN] = chosen > 0 && rejected > 0;
}

/* Adds a micro-batch's words and loss. False if one of them is not finite or too large: then only loss_overflow is set. */
TSR_PREFER_INLINE bool tsr_prefer_add(const tsr_objective_args *a, const double *word)
{
    bool fine = true;
    for (int i = 0; i <= TSR_PREFERENCE_WORDS; i++)
        fine = fine && word[i] < TSR_PREFER_LIMIT && word[i] > -TSR_PREFER_LIMIT;
    if (!fine) {
        *a->loss_overflow = 1;
        return false;
    }
    for (int i = 0; i < TSR_PREFERENCE_WORDS; i++)
        a->words[i] += llrint(ldexp(word[i], i < TSR_PREFERENCE_CHOSEN_IN ? TSR_LOSS_SHIFT : 0));
    *a->loss += llrint(ldexp(word[TSR_PREFERENCE_WORDS], TSR_LOSS_SHIFT));
    return true;
}

#endif
