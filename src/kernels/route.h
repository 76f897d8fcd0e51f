/*
 * kernels/route.h: the router of Mixture of Experts: logits, the choice of k of E experts for each
 * token, their weights p; the gradient through p; and how evenly experts are used.
 *
 *     s[t, e] = <x[t, :], W[e, :]> + bias[e]          logits: fp32 sums in a fixed order
 *                                                     W NULL: s = x + bias, h is E
 *     a = score(s)                                    softmax over all E, s itself, or sigmoid
 *     c = a + correction                              where there is neither correction nor group,
 *                                                     softmax is chosen by s, whose order it has
 *     groups     E experts in n_group equal runs; a group's score is the sum of its two largest c;
 *                experts outside of the topk_group best groups are not chosen
 *     id[t, :]   the k experts of the largest c, best first; of equals the lower index. A NaN is
 *                above all numbers, so that ids are always k different experts
 *     q          a of the chosen (of TSR_ROUTE_CHOSEN their softmax); `normalise`: divided by their
 *                sum (+ 1e-20 of sigmoid). Softmax that is normalised is computed as TSR_ROUTE_CHOSEN
 *     p[t, j] = scale expert_scale[id] q
 *
 * route_backward: the choice has no gradient, p has: dp -> dlogits -> dx = dlogits W. It computes a
 * from the logits again, so p is not needed. With `aux` the gradient of the load-balancing loss is
 * added: of L = sum over t and e of aux[e] softmax(s[t, :])[e]; so
 *     dlogits[t, e] += softmax(s)_e (aux[e] - sum over e' of aux[e'] softmax(s)_e')
 *
 * route_stats: integers, so that sums over micro-batches, layers and ranks are exact and do not depend
 * on their order: slots of each expert, and the softmax over all E summed over tokens, in units of
 * 2^-TSR_ROUTE_PROB_SHIFT, each token's rounded to nearest even (not finite: 0). 2^26 tokens and layers fit.
 *
 * Source   transformers 5.17: Qwen3MoeTopKRouter, GptOssTopKRouter, Glm4MoeTopkRouter, Gemma4TextRouter,
 *          load_balancing_loss_func; Wang et al. 2024 (correction).
 * Cost     route T h elements of x and E h of W read, 4 T E bytes of logits and 8 T k written, 2 T E h
 *          FLOPs; route_backward the logits read, dlogits written and read, dx written (and read with
 *          `add`), 2 T E h FLOPs; route_stats 4 T (E + 2 k) bytes read.
 */
#ifndef TSR_KERNELS_ROUTE_H
#define TSR_KERNELS_ROUTE_H

#include "kernels/types.h"

#define TSR_ROUTE_MOST_EXPERTS 1024
#define TSR_ROUTE_MOST_CHOSEN  32
#define TSR_ROUTE_MOST_GROUPS  32
#define TSR_ROUTE_PROB_SHIFT   36

typedef enum {
    TSR_ROUTE_SOFTMAX, /* over all experts, then taken at the chosen */
    TSR_ROUTE_CHOSEN,  /* softmax over the chosen logits */
    TSR_ROUTE_SIGMOID
} tsr_route_scoring;

/* How logits become weights, the same in both directions. */
typedef struct {
    int64_t experts, k; /* 1 <= k <= experts */
    tsr_route_scoring scoring;
    bool normalise;          /* the chosen sum to 1; of TSR_ROUTE_CHOSEN they always do */
    float scale;             /* 0: 1 */
    tsr_frozen expert_scale; /* [E], optional */
    const float *correction; /* [E], optional: of the choice alone */
    int n_group, topk_group; /* n_group 0 or 1: none. Groups have at least 2 experts, and the
                                 topk_group that stay at least k */
} tsr_routing;

typedef struct {
    const void *x;           /* [T, h] of dtype */
    tsr_frozen weight, bias; /* [E, h], or NULL; [E], optional */
    tsr_routing how;
    float *logits; /* [T, E] */
    float *p;      /* [T, k] */
    int32_t *id;   /* [T, k] */
    int64_t tokens, h;
    tsr_dtype dtype;
} tsr_route_args;

typedef struct {
    const float *dp;     /* [T, k]; 0 where a slot was left out */
    const float *logits; /* [T, E] */
    const int32_t *id;   /* [T, k] */
    const float *aux;    /* [E], optional */
    tsr_frozen weight;   /* [E, h]; NULL: dx is dlogits */
    tsr_routing how;     /* correction and groups are not used */
    float *dlogits;      /* [T, E], written; may be logits */
    void *dx;            /* [T, h] of dtype */
    int64_t tokens, h;
    bool add; /* dx is added to */
    tsr_dtype dtype;
} tsr_route_backward_args;

typedef struct {
    const int32_t *id, *row; /* [T, k]; row: optional, with dropped */
    const float *logits;     /* [T, E]; optional, with prob */
    int64_t *count;          /* [E] slots of each expert, those left out too */
    int64_t *prob;           /* [E], optional */
    int64_t *dropped;        /* [1] slots that were left out, optional */
    int64_t tokens, k, experts;
    bool begin; /* written, not added to */
} tsr_route_stats_args;

tsr_status tsr_route_check(const tsr_route_args *args);
tsr_status tsr_route_ref(const tsr_route_args *args, tsr_pool *pool);
tsr_status tsr_route_backward_check(const tsr_route_backward_args *args);
tsr_status tsr_route_backward_ref(const tsr_route_backward_args *args, tsr_pool *pool);
tsr_status tsr_route_stats_check(const tsr_route_stats_args *args);
tsr_status tsr_route_stats_ref(const tsr_route_stats_args *args, tsr_pool *pool);

#endif
