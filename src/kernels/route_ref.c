/*
 * route_ref.c: contract route.h, the forward. A task is a block of tokens: the logits expert by expert,
 * so that a row of W is widened once, then token by token choice and weights.
 */
#include "kernels/route.h"

#include "kernels/route_scores.h"

#define BLOCK_TOKENS 16
#define TILE         TSR_STRIP
#define MOST         TSR_ROUTE_MOST_EXPERTS

static tsr_status check_groups(const char *op, const tsr_routing *how)
{
    if (how->n_group == 0 || how->n_group == 1)
        return TSR_OK;
    int64_t width = how->n_group > 1 ? how->experts / how->n_group : 0;
    if (width < 2 || how->n_group > TSR_ROUTE_MOST_GROUPS || how->experts % how->n_group ||
        how->topk_group < 1 || how->topk_group > how->n_group || how->topk_group * width < how->k)
        return tsr_fail(
            TSR_EINVAL,
            "%s: %lld experts in %d groups of which %d stay, %lld chosen; groups are of "
            "equal size, at least 2, and those that stay hold what is chosen",
            op, (long long)how->experts, how->n_group, how->topk_group, (long long)how->k);
    return TSR_OK;
}

tsr_status tsr_routing_check(const char *op, const tsr_routing *how)
{
    if (how->k < 1 || how->k > how->experts || how->k > TSR_ROUTE_MOST_CHOSEN ||
        how->experts > TSR_ROUTE_MOST_EXPERTS)
        return tsr_fail(TSR_EINVAL, "%s: %lld of %lld experts; at most %d of %d", op,
                        (long long)how->k, (long long)how->experts, TSR_ROUTE_MOST_CHOSEN,
                        TSR_ROUTE_MOST_EXPERTS);
    TSR_EXPECT(how->scoring >= TSR_ROUTE_SOFTMAX && how->scoring <= TSR_ROUTE_SIGMOID, op,
               "unknown scoring");
    TSR_EXPECT(tsr_frozen_valid(how->expert_scale), op, "expert_scale is not F32 or BF16");
    return check_groups(op, how);
}

tsr_status tsr_route_check(const tsr_route_args *args)
{
    TSR_TRY(tsr_expect_dtype("route", args->dtype));
    TSR_TRY(tsr_routing_check("route", &args->how));
    TSR_EXPECT(args->tokens >= 0 && args->h > 0, "route", "tokens < 0 or h < 1");
    TSR_EXPECT(tsr_frozen_valid(args->weight) && tsr_frozen_valid(args->bias), "route",
               "weight or bias is not F32 or BF16");
    TSR_EXPECT(args->tokens == 0 || (args->x && args->logits && args->p && args->id), "route",
               "x, logits, p or id is NULL");
    TSR_EXPECT(args->weight.data || args->h == args->how.experts, "route",
               "without a weight h is not the number of experts");
    return TSR_OK;
}

/* The logits of expert e for `count` tokens from `first` on. */
TSR_INLINE void expert_logits(const tsr_route_args *args, int64_t first, int64_t count, int64_t e)
{
    tsr_lanes lane[BLOCK_TOKENS] = {0};
    float buffer[TILE];
    int64_t h = args->h;
    for (int64_t t = 0; t < count && !args->weight.data; t++)
        lane[t][0] = ((const float *)args->x)[(first + t) * h + e];
    for (int64_t column = 0; column < h && args->weight.data; column += TILE) {
        int64_t width = tsr_min(TILE, h - column);
        const float *w = tsr_frozen_load(buffer, args->weight, e * h + column, width, 0);
        for (int64_t t = 0; t < count; t++) {
            const float *x = (const float *)args->x + (first + t) * h + column;
            tsr_lanes sum = lane[t];
            int64_t i = 0;
            for (; i + TSR_LANES <= width; i += TSR_LANES)
                sum += *(const tsr_lanes *)(x + i) * *(const tsr_lanes *)(w + i);
            for (; i < width; i++)
                sum[i % TSR_LANES] += x[i] * w[i];
            lane[t] = sum;
        }
    }
    float bias;
    float plus = *tsr_frozen_load(&bias, args->bias, args->bias.data ? e : 0, 1, 0);
    for (int64_t t = 0; t < count; t++) {
        float sum[TSR_LANES];
        memcpy(sum, &lane[t], sizeof sum);
        args->logits[(first + t) * args->how.experts + e] = tsr_lanes_sum(sum) + plus;
    }
}

/* Integers in the order of the values: -0 is 0, and a NaN above all. */
TSR_INLINE int32_t order_of(float value)
{
    if (value != value)
        return INT32_MAX;
    int32_t bits;
    value += 0.0f;
    memcpy(&bits, &value, sizeof bits);
    return bits < 0 ? (int32_t)(~(uint32_t)bits ^ 0x80000000u) : bits;
}

/* The first of the largest; what was taken is INT32_MIN, which no value is. */
TSR_INLINE int64_t take_largest(int32_t *order, int64_t count)
{
    int64_t best = 0;
    for (int64_t e = 1; e < count; e++)
        best = order[e] > order[best] ? e : best;
    order[best] = INT32_MIN;
    return best;
}

/* Experts outside of the best groups become INT32_MIN. */
TSR_INLINE void keep_groups(int32_t *order, const float *c, const tsr_routing *how)
{
    int32_t group[TSR_ROUTE_MOST_GROUPS];
    bool stays[TSR_ROUTE_MOST_GROUPS] = {0};
    int64_t width = how->experts / how->n_group;
    for (int64_t g = 0; g < how->n_group; g++) {
        int32_t copy[MOST];
        memcpy(copy, order + g * width, (size_t)width * sizeof *copy);
        int64_t first = take_largest(copy, width), second = take_largest(copy, width);
        group[g] = order_of(c[g * width + first] + c[g * width + second]);
    }
    for (int g = 0; g < how->topk_group; g++)
        stays[take_largest(group, how->n_group)] = true;
    for (int64_t e = 0; e < how->experts; e++)
        if (!stays[e / width])
            order[e] = INT32_MIN;
}

TSR_INLINE void choose(int32_t *id, const float *c, const tsr_routing *how)
{
    int32_t order[MOST];
    for (int64_t e = 0; e < how->experts; e++)
        order[e] = order_of(c[e]);
    if (how->n_group > 1)
        keep_groups(order, c, how);
    for (int64_t j = 0; j < how->k; j++)
        id[j] = (int32_t)take_largest(order, how->experts);
}

/* p of one token. `a`: its scores; of softmax over the chosen, its logits. */
TSR_INLINE void weigh(float *p, const int32_t *id, const float *a, const tsr_routing *how)
{
    for (int64_t j = 0; j < how->k; j++)
        p[j] = a[id[j]];
    if (tsr_route_over_chosen(how)) {
        tsr_route_softmax(p, p, how->k);
    } else if (how->normalise) {
        float total = 0;
        for (int64_t j = 0; j < how->k; j++)
            total += p[j];
        for (int64_t j = 0; j < how->k; j++)
            p[j] /= total + 1e-20f;
    }
    for (int64_t j = 0; j < how->k; j++)
        p[j] *= tsr_route_factor(how, id[j]);
}

TSR_INLINE void route_token(const tsr_route_args *args, int64_t t)
{
    const tsr_routing *how = &args->how;
    const float *s = args->logits + t * how->experts, *c = s;
    float a[MOST], corrected[MOST];
    bool by_score = how->correction || how->n_group > 1;
    if (how->scoring == TSR_ROUTE_SIGMOID) {
        tsr_route_sigmoid(a, s, how->experts);
        c = a;
    } else if (how->scoring == TSR_ROUTE_SOFTMAX && (by_score || !how->normalise)) {
        tsr_route_softmax(a, s, how->experts);
        c = by_score ? a : s;
    }
    if (how->correction) {
        for (int64_t e = 0; e < how->experts; e++)
            corrected[e] = c[e] + how->correction[e];
        c = corrected;
    }
    int32_t *id = args->id + t * how->k;
    choose(id, c, how);
    weigh(args->p + t * how->k, id, tsr_route_over_chosen(how) ? s : a, how);
}

TSR_CLONES static void route_block(void *context, int index)
{
    const tsr_route_args *args = context;
    int64_t first = (int64_t)index * BLOCK_TOKENS;
    int64_t count = tsr_min(BLOCK_TOKENS, args->tokens - first);
    for (int64_t e = 0; e < args->how.experts; e++)
        expert_logits(args, first, count, e);
    for (int64_t t = first; t < first + count; t++)
        route_token(args, t);
}

tsr_status tsr_route_ref(const tsr_route_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_route_check(args));
    return tsr_run_f32("route", args->dtype, pool, tsr_block_count(args->tokens, BLOCK_TOKENS),
                       route_block, args);
}
