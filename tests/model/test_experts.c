/*
 * The reference of Mixture of Experts that other tests trust: which experts the golden families' tokens go to and with
 * which weights, from their logits, in every way of scoring; rows and capacity; experts that are all the same, which are
 * one linear; the auxiliary loss where it is known.
 */
#include "model/reference_experts.h"
#include "support/golden.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define FAMILIES         TSR_SOURCE_DIR "/tests/golden/families/"
#define WEIGHT_TOLERANCE 1e-6 /* measured: 1.2e-7 */
#define FIRST_TOKEN      6    /* golden logits are of tokens 6, 13, 20, .. */
#define TOKEN_STRIDE     7

enum { MOST_SLOTS = 512, MOST_EXPERTS = 16, MOST_VALUES = 4096 };

/* Room for the routes of a few tokens. */
typedef struct {
    int32_t id[MOST_SLOTS], row[MOST_SLOTS], slot[MOST_SLOTS], offset[MOST_EXPERTS + 1];
    double p[MOST_SLOTS];
} room;

static reference_routes in_room(room *r)
{
    return (reference_routes){r->id, r->row, r->slot, r->offset, r->p};
}

/* ---- golden ---- */

/* How a family routes, beside what its config.json says. */
typedef struct {
    const char *name;
    reference_scoring scoring;
    bool normalise;
    const char *correction, *expert_scale; /* tensors beside the router's logits */
} family;

static const family families[] = {
    {"qwen3_moe", REFERENCE_SOFTMAX, true},
    {"mixtral", REFERENCE_SOFTMAX, true},
    {"qwen3_5_moe", REFERENCE_SOFTMAX, true},
    {"gpt_oss", REFERENCE_CHOSEN, false},
    {"glm4_moe", REFERENCE_SIGMOID, true, .correction = "e_score_correction_bias"},
    {"deepseek_v3", REFERENCE_SIGMOID, true, .correction = "e_score_correction_bias"},
    {"gemma4_moe", REFERENCE_SOFTMAX, true, .expert_scale = "per_expert_scale"},
};

static double number(const json_t *config, const char *key, double otherwise)
{
    const json_t *value = json_object_get(config, key);
    return json_is_number(value) ? json_number_value(value) : otherwise;
}

static reference_routing routing_of(const family *f)
{
    char path[300];
    snprintf(path, sizeof path, FAMILIES "%s/checkpoint/config.json", f->name);
    json_t *config = json_load_file(path, 0, NULL);
    assert_non_null(config);
    reference_routing out = {.scoring = f->scoring,
                             .normalise = f->normalise,
                             .scale = number(config, "routed_scaling_factor", 0),
                             .n_group = (int)number(config, "n_group", 0),
                             .topk_group = (int)number(config, "topk_group", 0)};
    json_decref(config);
    return out;
}

/* [E] of the checkpoint: <module>.<name>, or NULL. */
static double *vector_of(const family *f, const char *module, const char *name, int experts)
{
    char path[300];
    uint64_t count;
    if (!name)
        return NULL;
    snprintf(path, sizeof path, FAMILIES "%s/checkpoint/model.safetensors", f->name);
    tsr_safetensors *file = golden_open(path);
    float *values = golden_f32(&count, file, "%s.%s", module, name);
    double *out = malloc((size_t)experts * sizeof *out);
    assert_non_null(out);
    assert_int_equal(count, experts);
    for (int e = 0; e < experts; e++)
        out[e] = (double)values[e];
    free(values);
    tsr_safetensors_close(file);
    return out;
}

static void sort_chosen(int32_t *id, double *p, int k)
{
    for (int i = 1; i < k; i++)
        for (int j = i; j > 0 && id[j] < id[j - 1]; j--) {
            int32_t other = id[j];
            double weight = p[j];
            id[j] = id[j - 1], id[j - 1] = other;
            p[j] = p[j - 1], p[j - 1] = weight;
        }
}

/* One router in one row; `module` is in the names of the tensors. Returns the farthest weight. */
static double judge_router(const family *f, tsr_safetensors *file, int row, const char *module)
{
    uint64_t logit_count, id_count, weight_count;
    float *logits = golden_f32(&logit_count, file, "plain.row%d.%s.logits", row, module);
    float *weights = golden_f32(&weight_count, file, "plain.row%d.%s.weights", row, module);
    int32_t *ids = golden_i32(&id_count, file, "plain.row%d.%s.ids", row, module);
    reference_routing how = routing_of(f);
    room own;
    reference_routes routes = in_room(&own);
    char name[100];
    snprintf(name, sizeof name, "plain.row%d.%s.ids", row, module);
    const tsr_tensor *chosen = tsr_safetensors_find(file, name);
    int tokens = (int)chosen->shape[0], kept = (tokens - FIRST_TOKEN + TOKEN_STRIDE - 1) / 7;
    double wide[MOST_VALUES], worst = 0;
    how.k = (int)chosen->shape[1];
    how.experts = (int)(logit_count / (uint64_t)kept);
    assert_true(id_count == weight_count && logit_count <= MOST_VALUES && kept > 0);
    how.correction = vector_of(f, module, f->correction, how.experts);
    how.expert_scale = vector_of(f, module, f->expert_scale, how.experts);
    for (uint64_t i = 0; i < logit_count; i++)
        wide[i] = (double)logits[i];
    reference_route(&routes, wide, &how, kept);
    for (int i = 0; i < kept; i++) {
        int from = (FIRST_TOKEN + i * TOKEN_STRIDE) * how.k;
        sort_chosen(own.id + i * how.k, own.p + i * how.k, how.k);
        assert_memory_equal(own.id + i * how.k, ids + from, (size_t)how.k * sizeof *ids);
        for (int j = 0; j < how.k; j++)
            worst = worse(fabs(own.p[i * how.k + j] - (double)weights[from + j]), worst);
    }
    free((double *)how.correction);
    free((double *)how.expert_scale);
    free(logits);
    free(weights);
    free(ids);
    return worst;
}

static void test_golden(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        char path[300], module[100];
        int routers = 0;
        double worst = 0;
        snprintf(path, sizeof path, FAMILIES "%s/forward.safetensors", families[i].name);
        tsr_safetensors *file = golden_open(path);
        for (uint64_t j = 0; j < tsr_safetensors_count(file); j++) {
            const char *name = tsr_safetensors_at(file, j)->name, *end = strstr(name, ".weights");
            int length = (int)(end - name) - (int)strlen("plain.row0.");
            if (!end)
                continue;
            snprintf(module, sizeof module, "%.*s", length, name + strlen("plain.row0."));
            worst = worse(judge_router(&families[i], file, name[strlen("plain.row")] - '0', module),
                          worst);
            routers++;
        }
        assert_true(routers > 0);
        judge(families[i].name, worst, WEIGHT_TOLERANCE);
        tsr_safetensors_close(file);
    }
}

/* ---- rows ---- */

/* Expert 1 has three slots, expert 0 two, expert 2 one. */
static const double three[] = {0, 2, 1, /**/ 3, 1, 0, /**/ 1, 2, 0};

static void test_rows(void **state)
{
    (void)state;
    reference_routing how = {.experts = 3, .k = 2};
    const int32_t row[] = {2, 5, 0, 3, 4, 1}, slot[] = {2, 5, 0, 3, 4, 1}, offset[] = {0, 2, 5, 6};
    const int32_t fewer[] = {2, 4, 0, 3, -1, 1}, fewer_slot[] = {2, 5, 0, 3, 1, -1};
    const int32_t fewer_offset[] = {0, 2, 4, 5};
    room own;
    reference_routes routes = in_room(&own);
    reference_route(&routes, three, &how, 3);
    assert_memory_equal(own.row, row, sizeof row);
    assert_memory_equal(own.slot, slot, sizeof slot);
    assert_memory_equal(own.offset, offset, sizeof offset);
    how.capacity = 2;
    reference_route(&routes, three, &how, 3);
    assert_memory_equal(own.row, fewer, sizeof fewer);
    assert_memory_equal(own.slot, fewer_slot, sizeof fewer_slot);
    assert_memory_equal(own.offset, fewer_offset, sizeof fewer_offset);
}

static void test_ties(void **state)
{
    (void)state;
    const double same[] = {1, 1, 1, 1}, correction[] = {0, 0, 0, 0.5};
    reference_routing how = {.experts = 4, .k = 2, .scoring = REFERENCE_SIGMOID};
    room own;
    reference_routes routes = in_room(&own);
    reference_route(&routes, same, &how, 1);
    assert_true(own.id[0] == 0 && own.id[1] == 1);
    /* The correction chooses and does not weigh; groups {0, 1} and {2, 3}. */
    how.correction = correction;
    how.n_group = 2;
    how.topk_group = 1;
    reference_route(&routes, same, &how, 1);
    assert_true(own.id[0] == 3 && own.id[1] == 2);
    assert_true(own.p[0] == own.p[1] && fabs(own.p[0] - 1 / (1 + exp(-1))) < 1e-15);
}

/* ---- experts ---- */

static double wave(int i)
{
    return sin(i * 1.7 + 0.3);
}

/* Experts with the same weights are one linear; what is left out is missing. */
static void test_same_experts(void **state)
{
    (void)state;
    enum { E = 3, OUT = 2, IN = 4, R = 2, T = 3, K = 2 };
    double w[E * OUT * IN], bias[E * OUT], a[E * R * IN], b[E * OUT * R], x[T * IN];
    double z[T * K * OUT], y[T * OUT], want[OUT];
    room own;
    reference_routes routes = in_room(&own);
    for (int i = 0; i < E * OUT * IN; i++)
        w[i] = wave(i % (OUT * IN));
    for (int i = 0; i < E * OUT; i++)
        bias[i] = wave(20 + i % OUT);
    for (int i = 0; i < E * R * IN; i++)
        a[i] = wave(30 + i % (R * IN));
    for (int i = 0; i < E * OUT * R; i++)
        b[i] = wave(50 + i % (OUT * R));
    for (int i = 0; i < T * IN; i++)
        x[i] = wave(70 + i);
    const reference_expert_linear l = {w, bias, a, b, 0.5, R, OUT, IN};
    for (int capacity = 0; capacity < 3; capacity += 2) {
        reference_routing how = {
            .experts = E, .k = K, .normalise = true, .capacity = capacity, .scale = 2};
        reference_route(&routes, three, &how, T);
        reference_experts(z, x, true, &l, &routes, &how, T);
        reference_combine(y, z, &routes, &how, T, OUT);
        for (int t = 0; t < T; t++) {
            /* Of token 2 the first choice, expert 1, is beyond a capacity of 2. */
            double share = capacity && t == 2 ? own.p[2 * K + 1] : 2;
            for (int o = 0; o < OUT; o++) {
                want[o] = bias[o];
                for (int i = 0; i < IN; i++) {
                    double merged = w[o * IN + i];
                    for (int j = 0; j < R; j++)
                        merged += 0.5 * b[o * R + j] * a[j * IN + i];
                    want[o] += merged * x[t * IN + i];
                }
                assert_true(fabs(y[t * OUT + o] - share * want[o]) < 1e-12);
            }
        }
    }
}

static void test_auxiliary(void **state)
{
    (void)state;
    const int32_t even[] = {0, 1, 2, 3}, one[] = {0, 1, 0, 1};
    const double flat[8] = {0}, peaked[] = {50, 50, 0, 0, 50, 50, 0, 0};
    assert_true(fabs(reference_auxiliary(even, flat, 2, 2, 4) - 2) < 1e-12);
    assert_true(fabs(reference_auxiliary(one, flat, 2, 2, 4) - 2) < 1e-12);
    assert_true(fabs(reference_auxiliary(one, peaked, 2, 2, 4) - 4) < 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),    cmocka_unit_test(test_rows),
        cmocka_unit_test(test_ties),      cmocka_unit_test(test_same_experts),
        cmocka_unit_test(test_auxiliary),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
