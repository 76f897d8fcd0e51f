/*
 * AdamW against torch.optim.AdamW (golden adamw): m and v bit for bit, p in all but 4 of 10,007
 * elements of each recorded step (an ulp). The gradient's norm, the clip factor, the skip flag.
 */
#include "kernels/adamw.h"
#include "kernels/fixed_point.h"

#include "support/golden_plain.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define COUNT          10007
#define STEPS          10
#define P_OFF_ELEMENTS 4 /* torch's own vector and scalar tails differ in them */
/* What those may differ by: an ulp of p, or of the update, which is about lr and the larger one
 * where p crosses zero. */
#define UPDATE_ULP 0x1p-33f

static const char *const path = TSR_SOURCE_DIR "/tests/golden/adamw.safetensors";

static tsr_adamw_step step_of(uint64_t t, double decay)
{
    return (tsr_adamw_step){.learning_rate = 1e-3,
                            .beta1 = 0.9,
                            .beta2 = 0.999,
                            .epsilon = 1e-8,
                            .weight_decay = decay,
                            .step = t};
}

static int64_t ulps(float a, float b)
{
    int32_t x, y;
    memcpy(&x, &a, 4);
    memcpy(&y, &b, 4);
    return llabs((int64_t)x - y);
}

static void check_step(const golden_file *file, const char *label, uint64_t t, const float *p)
{
    char key[64];
    snprintf(key, sizeof key, "%s.param.step%d", label, (int)t);
    if (!golden_find(file, key).data)
        return;
    float *expected = golden_copy(file, key, NULL);
    int off = 0;
    for (int i = 0; i < COUNT; i++) {
        if (p[i] == expected[i])
            continue;
        if (fabsf(p[i] - expected[i]) > UPDATE_ULP && ulps(p[i], expected[i]) > 1)
            fail_msg("%s[%d] is %a, expected %a", key, i, (double)p[i], (double)expected[i]);
        off++;
    }
    if (off > P_OFF_ELEMENTS)
        fail_msg("%s: %d elements differ", key, off);
    print_message("%s: %d of %d elements differ by an ulp\n", key, off, COUNT);
    free(expected);
}

static void run_decay(const golden_file *file, const char *label, double decay)
{
    float *p = golden_copy(file, "param.step0", NULL), *g = malloc(COUNT * 4);
    float *m = calloc(COUNT, 4), *v = calloc(COUNT, 4);
    uint16_t *grad = golden_copy(file, "grad", NULL);
    for (uint64_t t = 1; t <= STEPS; t++) {
        for (int i = 0; i < COUNT; i++)
            g[i] = tsr_bf16_to_f32(grad[(t - 1) * COUNT + (uint64_t)i]);
        tsr_adamw_step step = step_of(t, decay);
        assert_int_equal(tsr_adamw_run_f32(p, m, v, g, COUNT, &step), TSR_OK);
        check_step(file, label, t, p);
    }
    float *m_expected = golden_copy(file, "m.step10", NULL);
    float *v_expected = golden_copy(file, "v.step10", NULL);
    assert_memory_equal(m, m_expected, COUNT * 4);
    assert_memory_equal(v, v_expected, COUNT * 4);
    free(p), free(g), free(m), free(v), free(grad), free(m_expected), free(v_expected);
}

static void test_torch(void **state)
{
    (void)state;
    golden_file file = golden_open(path);
    run_decay(&file, "decay0", 0);
    run_decay(&file, "decay0p1", 0.1);
    golden_close(&file);
}

/* m of torch.optim.AdamW where b1 is 1/2 at most: with b1 = 0 it is g, however large m was. */
static void test_small_beta1(void **state)
{
    (void)state;
    static const struct {
        double beta1;
        float m[5];
    } torch[] = {
        {0, {1e-6f, 0.5f, -3, 1.0f / 3, 1e4f}},
        {0.3, {300, 0x1.199998p-2f, 0x1p-23f, 0x1.dddf72p-3f, 0x1.b5807ap+12f}},
        {0.5, {500, 0x1p-3f, 2, 0x1.5557f6p-3f, 0x1.3880ccp+12f}},
    };
    const float g[] = {1e-6f, 0.5f, -3, 1.0f / 3, 1e4f};
    for (size_t i = 0; i < sizeof torch / sizeof *torch; i++) {
        float p[5] = {0}, m[] = {1000, -0.25f, 7, 1e-5f, 0.1f}, v[5] = {0};
        tsr_adamw_step step = step_of(2, 0);
        step.beta1 = torch[i].beta1;
        assert_int_equal(tsr_adamw_run_f32(p, m, v, g, 5, &step), TSR_OK);
        assert_memory_equal(m, torch[i].m, sizeof m);
    }
}

enum { N = 64 * 40 };

typedef struct {
    float p[N], m[N], v[N], g[N];
    int64_t acc[N];
    uint16_t work[N];
} params;

static params *fill(void)
{
    params *x = calloc(1, sizeof *x);
    assert_non_null(x);
    for (int i = 0; i < N - 50; i++) { /* the last 50 are padding */
        x->p[i] = sinf((float)i);
        x->m[i] = 0.01f * cosf((float)i * 1.3f);
        x->v[i] = 1e-4f * (float)(i % 7);
        x->g[i] = sinf((float)i * 0.37f) * exp2f((float)(i % 30) - 25);
    }
    assert_true(
        tsr_fixed_from_f32(x->acc, x->g, N, TSR_FIXED_SHIFT, tsr_fixed_limit(TSR_FIXED_SHIFT, 1)));
    return x;
}

static tsr_adamw_span span_of(params *x, uint64_t first, uint64_t count)
{
    return (tsr_adamw_span){.master = x->p + first,
                            .m = x->m + first,
                            .v = x->v + first,
                            .gradient = x->acc + first,
                            .work = x->work + first,
                            .work_dtype = TSR_BF16,
                            .count = count};
}

/* Fixed point, clip and working copy around the same update; spans may be cut anywhere. */
static void test_spans(void **state)
{
    (void)state;
    params *a = fill(), *b = fill(), *c = fill();
    tsr_adamw_step step = step_of(3, 0.1);
    tsr_adamw_control control = {.clip = 0.37f};
    tsr_adamw_span one = span_of(a, 0, N);
    tsr_adamw_span many[] = {span_of(b, 0, 64), span_of(b, 64, 1024), span_of(b, 1088, N - 1088)};
    assert_int_equal(tsr_adamw_run(&one, 1, &step, TSR_FIXED_SHIFT, &control), TSR_OK);
    assert_int_equal(tsr_adamw_run(many, 3, &step, TSR_FIXED_SHIFT, &control), TSR_OK);
    assert_memory_equal(a, b, sizeof *a);
    float g[N];
    tsr_fixed_to_f32(g, c->acc, N, TSR_FIXED_SHIFT);
    for (int i = 0; i < N; i++)
        g[i] *= 0.37f;
    assert_int_equal(tsr_adamw_run_f32(c->p, c->m, c->v, g, N, &step), TSR_OK);
    assert_memory_equal(a->p, c->p, sizeof a->p);
    assert_memory_equal(a->m, c->m, sizeof a->m);
    assert_memory_equal(a->v, c->v, sizeof a->v);
    for (int i = 0; i < N; i++)
        assert_int_equal(a->work[i], tsr_f32_to_bf16(a->p[i]));
    for (int i = N - 50; i < N; i++)
        assert_true(a->p[i] == 0 && a->m[i] == 0 && a->v[i] == 0 && a->work[i] == 0);
    assert_int_equal(tsr_adamw_copy_work(g, TSR_F32, a->p, N), TSR_OK);
    assert_memory_equal(g, a->p, sizeof g);
    free(a), free(b), free(c);
}

/* Of rounded sums the same bits, and the same norm. */
static void test_rounded(void **state)
{
    (void)state;
    params *a = fill(), *b = fill();
    tsr_adamw_step step = step_of(3, 0.1);
    tsr_adamw_control control = {.clip = 0.37f, .step = 3};
    tsr_adamw_span sums = span_of(a, 0, N), rounded = span_of(b, 0, N);
    tsr_fixed_to_f32(b->g, b->acc, N, TSR_FIXED_SHIFT);
    memcpy(a->g, b->g, sizeof a->g);
    rounded.gradient = NULL;
    rounded.rounded = b->g;
    assert_int_equal(tsr_adamw_run(&sums, 1, &step, TSR_FIXED_SHIFT, &control), TSR_OK);
    assert_int_equal(tsr_adamw_ref(&(tsr_adamw_args){&rounded, 1, step, &control, 0}, NULL),
                     TSR_OK);
    assert_memory_equal(a, b, sizeof *a);
    tsr_exact_sum norm[2];
    tsr_exact_clear(&norm[0]), tsr_exact_clear(&norm[1]);
    tsr_grad_norm_add(&norm[0], a->acc, N, TSR_FIXED_SHIFT);
    tsr_grad_norm_args args = {.sum = &norm[1], .rounded = b->g, .count = N};
    assert_int_equal(tsr_grad_norm_ref(&args, NULL), TSR_OK);
    assert_memory_equal(&norm[0], &norm[1], sizeof norm[0]);
    free(a), free(b);
}

/* A span's rate is a learning rate of its own, decay included. */
static void test_rate(void **state)
{
    (void)state;
    params *a = fill(), *b = fill();
    tsr_adamw_step step = step_of(3, 0.1), faster = step;
    tsr_adamw_control control = {.clip = 0.37f};
    faster.learning_rate *= 16;
    tsr_adamw_span parts[] = {span_of(a, 0, 640), span_of(a, 640, N - 640)};
    tsr_adamw_span first = span_of(b, 0, 640), second = span_of(b, 640, N - 640);
    parts[1].rate = 16;
    assert_int_equal(tsr_adamw_run(parts, 2, &step, TSR_FIXED_SHIFT, &control), TSR_OK);
    assert_int_equal(tsr_adamw_run(&first, 1, &step, TSR_FIXED_SHIFT, &control), TSR_OK);
    assert_int_equal(tsr_adamw_run(&second, 1, &faster, TSR_FIXED_SHIFT, &control), TSR_OK);
    assert_memory_equal(a, b, sizeof *a);
    free(a), free(b);
}

static void test_skip_and_refusals(void **state)
{
    (void)state;
    params *a = fill(), *b = fill();
    tsr_adamw_control skip = {.clip = 1, .skip = 1}, go = {.clip = 1};
    tsr_adamw_step good = step_of(1, 0);
    tsr_adamw_span span = span_of(a, 0, N);
    assert_int_equal(tsr_adamw_run(&span, 1, &good, TSR_FIXED_SHIFT, &skip), TSR_OK);
    tsr_adamw_step bad[] = {good, good, good, good, good};
    bad[0].step = 0, bad[1].beta1 = 1, bad[2].epsilon = 0, bad[3].learning_rate = NAN;
    bad[4].weight_decay = INFINITY;
    for (int i = 0; i < 5; i++)
        assert_int_equal(tsr_adamw_run(&span, 1, &bad[i], TSR_FIXED_SHIFT, &go), TSR_EINVAL);
    span.work_dtype = TSR_F16;
    assert_int_equal(tsr_adamw_run(&span, 1, &good, TSR_FIXED_SHIFT, &go), TSR_EINVAL);
    assert_memory_equal(a, b, sizeof *a);
    free(a), free(b);
}

/* The same bits for any number of ranks, and right to fp64. */
static void test_norm(void **state)
{
    (void)state;
    params *x = fill();
    tsr_exact_sum whole;
    tsr_exact_clear(&whole);
    tsr_grad_norm_add(&whole, x->acc, N, TSR_FIXED_SHIFT);
    double expected = 0;
    for (int i = 0; i < N; i++) {
        double g = ldexp((double)x->acc[i], -TSR_FIXED_SHIFT);
        expected += g * g;
    }
    assert_true(fabs(tsr_grad_norm(&whole) / sqrt(expected) - 1) < 1e-7);
    for (uint64_t ranks = 1; ranks <= 9; ranks++) {
        tsr_exact_sum merged;
        tsr_exact_clear(&merged);
        uint64_t part = tsr_fixed_part_count(N, ranks);
        for (uint64_t rank = ranks; rank-- > 0;) {
            tsr_exact_sum own;
            tsr_exact_clear(&own);
            uint64_t first = rank * part < N ? rank * part : N;
            tsr_grad_norm_add(&own, x->acc + first, N - first < part ? N - first : part,
                              TSR_FIXED_SHIFT);
            tsr_exact_merge(&merged, &own);
        }
        double a = tsr_grad_norm(&merged), b = tsr_grad_norm(&whole);
        assert_memory_equal(&a, &b, sizeof a);
    }
    free(x);
}

static void test_clip(void **state)
{
    (void)state;
    assert_true(tsr_clip_factor(2, 1) == (float)(1 / (2 + 1e-6)));
    assert_true(tsr_clip_factor(0.5, 1) == 1);
    assert_true(tsr_clip_factor(1, 1) == (float)(1 / (1 + 1e-6)));
    assert_true(tsr_clip_factor(100, 0) == 1);
    assert_true(tsr_clip_factor(100, NAN) == 1);
    assert_true(tsr_clip_factor(0, 1) == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_torch), cmocka_unit_test(test_small_beta1),
        cmocka_unit_test(test_spans), cmocka_unit_test(test_rounded),
        cmocka_unit_test(test_rate),  cmocka_unit_test(test_norm),
        cmocka_unit_test(test_clip),  cmocka_unit_test(test_skip_and_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
