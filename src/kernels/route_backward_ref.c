/*
 * route_backward_ref.c: contract route.h, the gradient and the statistics. A task of the gradient is a
 * block of tokens: dlogits token by token, then dx by strips of columns, so that W is widened once. The
 * statistics are sums of integers.
 */
#include "kernels/route.h"

#include "kernels/route_scores.h"

#include <math.h>

#define BLOCK_TOKENS 16
#define MOST         TSR_ROUTE_MOST_EXPERTS
#define CHOSEN       TSR_ROUTE_MOST_CHOSEN

tsr_status tsr_route_backward_check(const tsr_route_backward_args *args)
{
    TSR_TRY(tsr_expect_dtype("route_backward", args->dtype));
    TSR_TRY(tsr_routing_check("route_backward", &args->how));
    TSR_EXPECT(args->tokens >= 0 && args->h > 0, "route_backward", "tokens < 0 or h < 1");
    TSR_EXPECT(tsr_frozen_valid(args->weight), "route_backward", "weight is not F32 or BF16");
    TSR_EXPECT(args->tokens == 0 ||
                   (args->dp && args->logits && args->id && args->dlogits && args->dx),
               "route_backward", "dp, logits, id, dlogits or dx is NULL");
    TSR_EXPECT(args->weight.data || args->h == args->how.experts, "route_backward",
               "without a weight h is not the number of experts");
    return TSR_OK;
}

/* dq -> the gradient of the k chosen logits of a softmax over them, or of the chosen sigmoids; in place.
 * q: the chosen logits. */
TSR_INLINE void chosen_gradient(float *dq, float *q, const tsr_routing *how)
{
    float dot = 0, total = 0;
    if (tsr_route_over_chosen(how)) {
        tsr_route_softmax(q, q, how->k);
        for (int64_t j = 0; j < how->k; j++)
            dot += dq[j] * q[j];
        for (int64_t j = 0; j < how->k; j++)
            dq[j] = q[j] * (dq[j] - dot);
        return;
    }
    tsr_route_sigmoid(q, q, how->k);
    for (int64_t j = 0; j < how->k && how->normalise; j++)
        total += q[j];
    total = how->normalise ? total + 1e-20f : 1.0f;
    for (int64_t j = 0; j < how->k && how->normalise; j++)
        dot += dq[j] * (q[j] / total);
    for (int64_t j = 0; j < how->k; j++)
        dq[j] = (dq[j] - dot) / total * q[j] * (1.0f - q[j]);
}

TSR_INLINE void token_dlogits(const tsr_route_backward_args *args, int64_t t)
{
    const tsr_routing *how = &args->how;
    int64_t experts = how->experts, k = how->k;
    const float *s = args->logits + t * experts, *dp = args->dp + t * k;
    const int32_t *id = args->id + t * k;
    float dq[CHOSEN], q[CHOSEN], a[MOST], *ds = args->dlogits + t * experts;
    bool over_all = how->scoring == TSR_ROUTE_SOFTMAX && !how->normalise;
    for (int64_t j = 0; j < k; j++) {
        dq[j] = dp[j] * tsr_route_factor(how, id[j]);
        q[j] = s[id[j]];
    }
    if (over_all || args->aux)
        tsr_route_softmax(a, s, experts);
    if (!over_all)
        chosen_gradient(dq, q, how);

    /* From here on s, which ds may be, is not read. */
    float dot = 0;
    for (int64_t e = 0; e < experts; e++)
        ds[e] = args->aux ? args->aux[e] : 0;
    for (int64_t j = 0; j < k && over_all; j++)
        ds[id[j]] += dq[j];
    for (int64_t e = 0; e < experts && (over_all || args->aux); e++)
        dot += a[e] * ds[e];
    for (int64_t e = 0; e < experts && (over_all || args->aux); e++)
        ds[e] = a[e] * (ds[e] - dot);
    for (int64_t j = 0; j < k && !over_all; j++)
        ds[id[j]] += dq[j];
}

/* dx of a block of tokens, 64 columns from `column` on: a sum over the experts in their order. */
TSR_INLINE void block_dx(const tsr_route_backward_args *args, int64_t first, int64_t count,
                         int64_t column)
{
    int64_t h = args->h, experts = args->how.experts, width = tsr_min(TSR_STRIP, h - column);
    float sum[BLOCK_TOKENS][TSR_STRIP] = {0}, buffer[TSR_STRIP];
    for (int64_t e = 0; e < experts; e++) {
        const float *w = tsr_frozen_load(buffer, args->weight, e * h + column, width, 0);
        for (int64_t t = 0; t < count; t++) {
            float ds = args->dlogits[(first + t) * experts + e];
            if (ds == 0) /* of most experts */
                continue;
            for (int64_t i = 0; i < width; i++)
                sum[t][i] += ds * w[i];
        }
    }
    for (int64_t t = 0; t < count; t++) {
        float *dx = (float *)args->dx + (first + t) * h + column;
        for (int64_t i = 0; i < width; i++)
            dx[i] = args->add ? dx[i] + sum[t][i] : sum[t][i];
    }
}

TSR_CLONES static void backward_block(void *context, int index)
{
    const tsr_route_backward_args *args = context;
    int64_t first = (int64_t)index * BLOCK_TOKENS;
    int64_t count = tsr_min(BLOCK_TOKENS, args->tokens - first);
    for (int64_t t = first; t < first + count; t++)
        token_dlogits(args, t);
    for (int64_t i = first * args->h; i < (first + count) * args->h && !args->weight.data; i++)
        ((float *)args->dx)[i] = (args->add ? ((float *)args->dx)[i] : 0) + args->dlogits[i];
    for (int64_t column = 0; column < args->h && args->weight.data; column += TSR_STRIP)
        block_dx(args, first, count, column);
}

tsr_status tsr_route_backward_ref(const tsr_route_backward_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_route_backward_check(args));
    return tsr_run_f32("route_backward", args->dtype, pool,
                       tsr_block_count(args->tokens, BLOCK_TOKENS), backward_block, args);
}

/* ---- statistics ---- */

tsr_status tsr_route_stats_check(const tsr_route_stats_args *args)
{
    TSR_EXPECT(args->tokens >= 0, "route_stats", "tokens < 0");
    TSR_TRY(
        tsr_routing_check("route_stats", &(tsr_routing){.experts = args->experts, .k = args->k}));
    TSR_EXPECT(args->count, "route_stats", "count is NULL");
    TSR_EXPECT(args->tokens == 0 || args->id, "route_stats", "id is NULL");
    TSR_EXPECT(args->tokens == 0 || !args->prob || args->logits, "route_stats",
               "prob needs logits");
    TSR_EXPECT(args->tokens == 0 || !args->dropped || args->row, "route_stats",
               "dropped needs row");
    return TSR_OK;
}

static void count_slots(const tsr_route_stats_args *args)
{
    int64_t dropped = 0;
    for (int64_t s = 0; s < args->tokens * args->k; s++) {
        args->count[args->id[s]]++;
        dropped += args->dropped && args->row[s] < 0;
    }
    if (args->dropped)
        *args->dropped += dropped;
}

TSR_CLONES static void add_probabilities(const tsr_route_stats_args *args)
{
    float a[MOST];
    for (int64_t t = 0; t < args->tokens; t++) {
        tsr_route_softmax(a, args->logits + t * args->experts, args->experts);
        for (int64_t e = 0; e < args->experts; e++)
            if (isfinite(a[e]))
                args->prob[e] += llrint((double)a[e] * (double)(1ll << TSR_ROUTE_PROB_SHIFT));
    }
}

/* The tokens are few and the work is small: on one thread. */
tsr_status tsr_route_stats_ref(const tsr_route_stats_args *args, tsr_pool *pool)
{
    (void)pool;
    TSR_TRY(tsr_route_stats_check(args));
    size_t bytes = (size_t)args->experts * sizeof(int64_t);
    if (args->begin) {
        memset(args->count, 0, bytes);
        if (args->prob)
            memset(args->prob, 0, bytes);
        if (args->dropped)
            *args->dropped = 0;
    }
    count_slots(args);
    if (args->prob)
        add_probabilities(args);
    return TSR_OK;
}
