/*
 * tests/kernels/route_case.h: routers of all families on random data, and their formulas in fp64, written
 * here a second time.
 */
#ifndef TSR_TESTS_KERNELS_ROUTE_CASE_H
#define TSR_TESTS_KERNELS_ROUTE_CASE_H

#include "kernel_test.h"

#include "kernels/route.h"
#include "kernels/routes.h"

#define RUN_OK(call)                                                                               \
    do {                                                                                           \
        if ((call) != TSR_OK)                                                                      \
            fail_msg("%s: %s", #call, tsr_last_error());                                           \
    } while (0)

typedef struct {
    const char *name;
    int64_t tokens, h;
    tsr_routing how; /* its pointers are filled in where `corrected` and `expert_scaled` say so */
    bool corrected, expert_scaled, bias, bf16;
} route_case;

/* clang-format off */
static const route_case route_cases[] = {
    {"qwen3_moe", 37, 48, {.experts = 16, .k = 4, .scoring = TSR_ROUTE_SOFTMAX}, .bf16 = true},
    {"mixtral", 20, 33, {.experts = 8, .k = 2, .scoring = TSR_ROUTE_SOFTMAX, .normalise = true}},
    {"gpt_oss", 33, 64, {.experts = 32, .k = 4, .scoring = TSR_ROUTE_CHOSEN}, .bias = true, .bf16 = true},
    {"deepseek_v3", 50, 100, {.experts = 32, .k = 4, .scoring = TSR_ROUTE_SIGMOID, .normalise = true, .scale = 2.5f,
                              .n_group = 8, .topk_group = 3}, .corrected = true},
    {"glm4_moe", 17, 40, {.experts = 12, .k = 3, .scoring = TSR_ROUTE_SIGMOID, .n_group = 1, .topk_group = 1}, .corrected = true},
    {"gemma4", 16, 70, {.experts = 24, .k = 8, .scoring = TSR_ROUTE_SOFTMAX, .normalise = true}, .expert_scaled = true},
    {"softmax, corrected", 31, 24, {.experts = 16, .k = 3, .scoring = TSR_ROUTE_SOFTMAX, .n_group = 4, .topk_group = 2},
     .corrected = true, .expert_scaled = true},
    {"sigmoid alone", 9, 16, {.experts = 5, .k = 2, .scoring = TSR_ROUTE_SIGMOID, .scale = 0.5f}, .bias = true},
    {"one token", 1, 7, {.experts = 128, .k = 8, .scoring = TSR_ROUTE_CHOSEN}},
    {"no token", 0, 7, {.experts = 4, .k = 2, .scoring = TSR_ROUTE_CHOSEN}},
    {"all experts", 11, 20, {.experts = 6, .k = 6, .scoring = TSR_ROUTE_SOFTMAX}},
    {"one expert", 5, 20, {.experts = 1, .k = 1, .scoring = TSR_ROUTE_SOFTMAX}},
    {"many experts", 18, 30, {.experts = 1024, .k = 32, .scoring = TSR_ROUTE_SOFTMAX}},
};
/* clang-format on */
#define ROUTE_CASES (sizeof route_cases / sizeof *route_cases)

typedef struct {
    route_case c;
    tsr_route_args args;
    float *x, *weight, *bias, *correction, *expert_scale;
    uint16_t *weight16, *bias16;
} route_data;

static inline route_data new_route(const route_case *c, uint64_t seed)
{
    int64_t experts = c->how.experts;
    route_data d = {.c = *c};
    d.x = new_random(c->tokens * c->h, seed, 1);
    d.weight = new_random(experts * c->h, seed + 1, 4 / sqrtf((float)c->h));
    d.bias = new_random(experts, seed + 2, 1);
    d.correction = new_random(experts, seed + 3, 0.4f);
    d.expert_scale = new_gain(experts, seed + 4);
    d.weight16 = c->bf16 ? new_bf16(d.weight, experts * c->h) : NULL;
    d.bias16 = c->bf16 ? new_bf16(d.bias, experts) : NULL;
    d.args = (tsr_route_args){.x = d.x,
                              .how = c->how,
                              .logits = new_floats(c->tokens * experts),
                              .p = new_floats(c->tokens * c->how.k),
                              .id = (int32_t *)new_floats(c->tokens * c->how.k),
                              .tokens = c->tokens,
                              .h = c->h};
    d.args.weight = c->bf16 ? (tsr_frozen){d.weight16, TSR_BF16} : (tsr_frozen){d.weight, TSR_F32};
    if (c->bias)
        d.args.bias = c->bf16 ? (tsr_frozen){d.bias16, TSR_BF16} : (tsr_frozen){d.bias, TSR_F32};
    if (c->corrected)
        d.args.how.correction = d.correction;
    if (c->expert_scaled)
        d.args.how.expert_scale = (tsr_frozen){d.expert_scale, TSR_F32};
    return d;
}

static inline void free_route(route_data *d)
{
    free(d->x), free(d->weight), free(d->bias), free(d->correction), free(d->expert_scale);
    free(d->weight16), free(d->bias16);
    free(d->args.logits), free(d->args.p), free(d->args.id);
}

/* ---- the formulas, in fp64 ---- */

static inline void route_softmax(double *out, const double *s, int64_t count)
{
    double total = 0, most = s[0];
    for (int64_t e = 0; e < count; e++)
        most = fmax(most, s[e]);
    for (int64_t e = 0; e < count; e++)
        total += exp(s[e] - most);
    for (int64_t e = 0; e < count; e++)
        out[e] = exp(s[e] - most) / total;
}

/* What experts are chosen by, and the weights' score, of all E. */
static inline void route_scores(double *a, double *c, const tsr_routing *how, const double *s)
{
    for (int64_t e = 0; e < how->experts; e++)
        a[e] = how->scoring == TSR_ROUTE_SIGMOID ? 1 / (1 + exp(-s[e])) : s[e];
    if (how->scoring == TSR_ROUTE_SOFTMAX)
        route_softmax(a, s, how->experts);
    for (int64_t e = 0; e < how->experts; e++)
        c[e] = a[e] + (how->correction ? (double)how->correction[e] : 0);
}

static inline int64_t route_largest(const double *c, const bool *out, int64_t count)
{
    int64_t best = -1;
    for (int64_t e = 0; e < count; e++)
        if (!out[e] && (best < 0 || c[e] > c[best]))
            best = e;
    return best;
}

static inline void route_choose(int32_t *id, const tsr_routing *how, const double *s)
{
    double a[1024], c[1024], group[1024];
    bool out[1024] = {0}, taken[1024] = {0};
    route_scores(a, c, how, s);
    int64_t groups = how->n_group > 1 ? how->n_group : 1, width = how->experts / groups;
    for (int64_t g = 0; g < groups && groups > 1; g++) {
        int64_t first = route_largest(c + g * width, out + g * width, width);
        out[g * width + first] = true;
        int64_t second = route_largest(c + g * width, out + g * width, width);
        group[g] = c[g * width + first] + c[g * width + second];
    }
    for (int64_t g = 0; g < how->topk_group && groups > 1; g++)
        taken[route_largest(group, taken, groups)] = true;
    for (int64_t e = 0; e < how->experts; e++)
        out[e] = groups > 1 && !taken[e / width];
    for (int64_t j = 0; j < how->k; j++) {
        id[j] = (int32_t)route_largest(c, out, how->experts);
        out[id[j]] = true;
    }
}

static inline void route_weights(double *p, const tsr_routing *how, const double *s,
                                 const int32_t *id)
{
    double a[1024], c[1024], chosen[32] = {0}, total = 0;
    route_scores(a, c, how, s);
    for (int64_t j = 0; j < how->k; j++) {
        p[j] = a[id[j]];
        chosen[j] = s[id[j]];
        total += p[j];
    }
    if (how->scoring == TSR_ROUTE_CHOSEN)
        route_softmax(p, chosen, how->k);
    for (int64_t j = 0; j < how->k; j++) {
        if (how->normalise && how->scoring != TSR_ROUTE_CHOSEN)
            p[j] /= total + (how->scoring == TSR_ROUTE_SIGMOID ? 1e-20 : 0);
        p[j] *= how->scale != 0 ? (double)how->scale : 1;
        if (how->expert_scale.data)
            p[j] *= (double)((const float *)how->expert_scale.data)[id[j]];
    }
}

static inline void route_logits(double *s, const route_data *d, const double *x)
{
    for (int64_t e = 0; e < d->c.how.experts; e++) {
        s[e] = d->c.bias ? (double)d->bias[e] : 0;
        for (int64_t i = 0; i < d->c.h; i++)
            s[e] += x[i] * (double)d->weight[e * d->c.h + i];
    }
}

/* ---- who goes where ---- */

typedef enum { LOAD_EVEN, LOAD_ZIPF, LOAD_ONE_EXPERT, LOADS } route_load;

/* k different experts of a token, by load. */
static inline void draw_ids(int32_t *id, int64_t t, int64_t k, int64_t experts, route_load kind,
                            uint64_t seed)
{
    bool taken[1024] = {0};
    for (int64_t j = 0; j < k; j++) {
        float u = tsr_philox_uniform(tsr_philox_at(seed, 3, (uint64_t)(t * k + j)).word[0]);
        int64_t e =
            (int64_t)((double)experts * (kind == LOAD_ZIPF ? pow((double)u, 6) : (double)u));
        e = kind == LOAD_ONE_EXPERT ? experts - 1 : e < experts ? e : experts - 1;
        while (taken[e])
            e = (e + 1) % experts;
        taken[e] = true;
        id[j] = (int32_t)e;
    }
}

static inline tsr_routes new_routes(int64_t tokens, int64_t k, int64_t experts, route_load kind)
{
    void *memory = malloc(tsr_routes_bytes(tokens, k, experts));
    assert_non_null(memory);
    tsr_routes r = tsr_routes_at(memory, tokens, k, experts);
    for (int64_t t = 0; t < tokens; t++)
        draw_ids(r.id + t * k, t, k, experts, kind, (uint64_t)(experts + k));
    return r;
}

#endif
