/*
 * Which experts every token goes to, and with which weights: what the op of the router computes in an evaluation of
 * each row, one call for each layer with experts, against the golden ids, weights and logits.
 *
 * The op is caught by the linker: --wrap=tsr_route_ref.
 */
#include "model/family_runs.h"

#include "kernels/route.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define WEIGHT_TOLERANCE 3e-5
#define ROUTER_TOLERANCE 2e-4 /* of its logits */
#define MOST_ROUTERS     8
#define MOST_EXPERTS     64
#define MOST_CHOSEN      8

/* What a call computed. */
typedef struct {
    int64_t tokens, k, experts;
    int32_t id[MOST_TOKENS * MOST_CHOSEN];
    float p[MOST_TOKENS * MOST_CHOSEN], logits[MOST_TOKENS * MOST_EXPERTS];
} routing;

static routing caught[MOST_ROUTERS];
static int caught_count;

tsr_status __real_tsr_route_ref(const tsr_route_args *args, tsr_pool *pool);
tsr_status __wrap_tsr_route_ref(const tsr_route_args *args, tsr_pool *pool);

tsr_status __wrap_tsr_route_ref(const tsr_route_args *args, tsr_pool *pool)
{
    tsr_status status = __real_tsr_route_ref(args, pool);
    int64_t t = args->tokens, k = args->how.k, experts = args->how.experts;
    if (caught_count < MOST_ROUTERS && t <= MOST_TOKENS && k <= MOST_CHOSEN &&
        experts <= MOST_EXPERTS) {
        routing *r = &caught[caught_count];
        *r = (routing){.tokens = t, .k = k, .experts = experts};
        memcpy(r->id, args->id, (size_t)(t * k) * sizeof *r->id);
        memcpy(r->p, args->p, (size_t)(t * k) * sizeof *r->p);
        memcpy(r->logits, args->logits, (size_t)(t * experts) * sizeof *r->logits);
    }
    caught_count++;
    return status;
}

/* Ids ascending, with their weights. */
static void sort_chosen(int32_t *id, float *p, int64_t k)
{
    for (int64_t i = 1; i < k; i++)
        for (int64_t j = i; j > 0 && id[j] < id[j - 1]; j--) {
            int32_t other = id[j];
            float weight = p[j];
            id[j] = id[j - 1], id[j - 1] = other;
            p[j] = p[j - 1], p[j - 1] = weight;
        }
}

/* ln of the sum of exp: 0 of log-probabilities. */
static double log_sum(const float *s, int64_t count)
{
    double sum = 0;
    for (int64_t e = 0; e < count; e++)
        sum += exp((double)s[e]);
    return log(sum);
}

/* The tensor's name is <base>.row<i>.<router>.ids; those of the same router are there too. */
static void judge_router(routing *got, tsr_safetensors *file, const char *name, bool plain)
{
    uint64_t count;
    int stem = (int)(strlen(name) - strlen(".ids"));
    int32_t *ids = golden_i32(&count, file, "%s", name);
    assert_int_equal(count, (uint64_t)(got->tokens * got->k));
    for (int64_t t = 0; t < got->tokens; t++)
        sort_chosen(got->id + t * got->k, got->p + t * got->k, got->k);
    assert_memory_equal(got->id, ids, count * sizeof *ids);
    free(ids);
    if (!plain || !tsr_safetensors_find(file, "plain.row0.hidden"))
        return;
    double worst = 0;
    float *weights = golden_f32(&count, file, "%.*s.weights", stem, name);
    for (uint64_t i = 0; i < count; i++)
        worst = worse(fabs((double)got->p[i] - (double)weights[i]), worst);
    judge("weights of experts", worst, WEIGHT_TOLERANCE);
    free(weights);
    float *logits = golden_f32(&count, file, "%.*s.logits", stem, name);
    assert_int_equal(count, golden_tokens((int32_t)got->tokens) * (uint64_t)got->experts);
    /* Of Gemma 4 the golden ones are log-probabilities. */
    bool logs = fabs(log_sum(logits, got->experts)) < 1e-5;
    worst = 0;
    for (int64_t t = FIRST_TOKEN, i = 0; t < got->tokens; t += TOKEN_STRIDE) {
        const float *own = got->logits + t * got->experts;
        double less = logs ? log_sum(own, got->experts) : 0;
        for (int64_t e = 0; e < got->experts; e++, i++)
            worst = worse(fabs((double)own[e] - less - (double)logits[i]), worst);
    }
    judge("logits of experts", worst, ROUTER_TOLERANCE);
    free(logits);
}

/* The routers' tensors have the order of the layers, of which there are fewer than ten. */
static void judge_base(const char *base)
{
    row rows[ROWS];
    tsr_safetensors *file = golden_open(golden("forward.safetensors"));
    read_rows(rows);
    for (int i = 0; i < ROWS; i++) {
        char prefix[40];
        int router = 0;
        caught_count = 0;
        test_evaluated got = evaluate(&rows[i], 1, base, golden("checkpoint"));
        test_rows_free(&got.rows);
        assert_in_range(caught_count, 1, MOST_ROUTERS);
        snprintf(prefix, sizeof prefix, "%s.row%d.", base, i);
        for (uint64_t j = 0; j < tsr_safetensors_count(file); j++) {
            const char *name = tsr_safetensors_at(file, j)->name, *end = strstr(name, ".ids");
            if (strncmp(name, prefix, strlen(prefix)) != 0 || !end || end[strlen(".ids")])
                continue;
            assert_true(router < caught_count);
            assert_int_equal(caught[router].tokens, rows[i].length);
            judge_router(&caught[router++], file, name, !strcmp(base, "plain"));
        }
        assert_int_equal(caught_count, 2 * router); /* test_evaluate goes over the rows twice */
    }
    tsr_safetensors_close(file);
}

void test_routes(void **state)
{
    (void)state;
    judge_base("plain");
    if (golden_has("nf4.json"))
        judge_base("nf4");
}
