/*
 * balance_ref.c: contract balance.h. A few thousand numbers: on one thread.
 */
#include "kernels/balance.h"

#include "kernels/loops.h"
#include "kernels/route.h"

#include <math.h>

tsr_status tsr_balance_check(const tsr_balance_args *args)
{
    static const char op[] = "balance";
    TSR_EXPECT(args->layers > 0 && args->experts > 0 && args->experts <= TSR_ROUTE_MOST_EXPERTS &&
                   args->tokens >= 0,
               op, "layers, experts or tokens is out of range");
    TSR_EXPECT(args->count, op, "count is NULL");
    TSR_EXPECT(!args->gradient || args->prob, op, "the auxiliary loss needs prob");
    return TSR_OK;
}

tsr_status tsr_balance_ref(const tsr_balance_args *args, tsr_pool *pool)
{
    (void)pool;
    TSR_TRY(tsr_balance_check(args));
    int64_t experts = args->experts, all = args->layers * args->tokens;
    double aux = 0;
    for (int64_t i = 0; i < args->layers * experts && args->load; i++)
        args->load[i] += args->count[i];
    if (!args->gradient)
        return TSR_OK;
    for (int64_t e = 0; e < experts; e++) {
        int64_t count = 0;
        for (int64_t m = 0; m < args->layers; m++)
            count += args->count[m * experts + e];
        double f = all ? (double)count / (double)all : 0;
        double sum = ldexp((double)args->prob[e], -TSR_ROUTE_PROB_SHIFT);
        args->gradient[e] = all ? (float)(args->weight * (double)experts * f / (double)all) : 0;
        aux += all ? f * (sum / (double)all) : 0;
    }
    if (args->loss)
        *args->loss += llrint(ldexp((double)experts * aux, TSR_BALANCE_SHIFT));
    return TSR_OK;
}

tsr_status tsr_balance_bias_check(const tsr_balance_bias_args *args)
{
    static const char op[] = "balance_bias";
    TSR_EXPECT(args->layers > 0 && args->experts > 0 && args->experts <= TSR_ROUTE_MOST_EXPERTS, op,
               "layers or experts is out of range");
    TSR_EXPECT(args->bias && args->load && args->skip, op, "bias, load or skip is NULL");
    return TSR_OK;
}

tsr_status tsr_balance_bias_ref(const tsr_balance_bias_args *args, tsr_pool *pool)
{
    (void)pool;
    TSR_TRY(tsr_balance_bias_check(args));
    for (int64_t m = 0; m < args->layers && !*args->skip; m++) {
        const int64_t *load = args->load + m * args->experts;
        float *bias = args->bias + m * args->experts;
        int64_t total = 0;
        for (int64_t e = 0; e < args->experts; e++)
            total += load[e];
        for (int64_t e = 0; e < args->experts; e++) {
            int64_t own = load[e] * args->experts;
            bias[e] += own < total ? args->rate : own > total ? -args->rate : 0;
        }
    }
    return TSR_OK;
}
