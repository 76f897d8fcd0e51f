/*
 * kernels/balance.h: adds a micro-batch's expert counts to the loads of the step, and computes the auxiliary loss that
 * evens them out, with its gradient.
 *
 * Over N tokens and M layers together, f_e the share of slots of expert e (count / (M N)) and P_e the mean of its
 * probability:
 *     aux = E sum_e f_e P_e                      k where all experts are used alike
 *     gradient[e] = weight E f_e / (M N)         of `weight` aux by the sum of the probabilities: route_backward's aux
 *     load[m, e] += count[m, e]
 * aux is added to `loss` in units of 2^-TSR_BALANCE_SHIFT, rounded to nearest even, so that the sum over micro-batches
 * and ranks does not depend on their order.
 *
 * Source   transformers 5.17: load_balancing_loss_func, whose P is over all experts for every family.
 * Cost     8 M E bytes read and written; a launch.
 */
#ifndef TSR_KERNELS_BALANCE_H
#define TSR_KERNELS_BALANCE_H

#include "kernels/types.h"

#define TSR_BALANCE_SHIFT 32

typedef struct {
    const int64_t *count; /* [layers, experts] of the micro-batch (route_stats) */
    const int64_t *prob;  /* [experts], all layers' (route_stats); with gradient or loss */
    int64_t *load;        /* [layers, experts], added to; NULL: another rank adds these counts */
    float *gradient;      /* [experts]; NULL: no auxiliary loss */
    int64_t *loss;        /* with gradient: added to; NULL likewise */
    int64_t tokens, layers, experts;
    double weight;
} tsr_balance_args;

tsr_status tsr_balance_check(const tsr_balance_args *args);
tsr_status tsr_balance_ref(const tsr_balance_args *args, tsr_pool *pool);

/* The second op moves the routers' correction biases after a step, unless it is skipped:
 *     bias[m, e] += rate sign(sum over e' of load[m, e'] - experts load[m, e])
 * so that experts with less than the mean load are chosen more often.
 * Source   Wang et al. 2024, Auxiliary-Loss-Free Load Balancing Strategy for Mixture-of-Experts. */
typedef struct {
    float *bias;          /* [layers, experts] */
    const int64_t *load;  /* [layers, experts] of the step, of all ranks */
    const uint32_t *skip; /* not 0: nothing is changed */
    int64_t layers, experts;
    float rate;
} tsr_balance_bias_args;

tsr_status tsr_balance_bias_check(const tsr_balance_bias_args *args);
tsr_status tsr_balance_bias_ref(const tsr_balance_bias_args *args, tsr_pool *pool);

#endif
