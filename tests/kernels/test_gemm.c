/*
 * test_gemm.c: every combination of transposes, leading dimensions, alpha and beta against fp64;
 * and many threads at once, which a serial OpenBLAS does not survive without gemm_block.c's lock.
 */
#include "kernels/gemm.h"

#include "kernels/gemm_block.h"
#include "kernels/gemm_core.h"
#include "kernels/kernel_test.h"

#include <pthread.h>

#define F32_TOLERANCE 2e-6 /* of the largest element; k reaches 1024 */

typedef struct {
    int64_t m, n, k, pad;
    float alpha, beta;
} gemm_case;

static const gemm_case cases[] = {
    {1, 1, 1, 0, 1, 0},         {3, 5, 7, 2, 1.5f, 0},      {17, 33, 9, 0, 1, 1},
    {64, 64, 64, 0, 1, 0},      {129, 250, 31, 5, 1, 0.5f}, {300, 8, 256, 0, 2, 0},
    {8, 256, 1024, 0, 1, 1},    {704, 16, 511, 0, 1, 0},    {256, 704, 256, 0, 1, 0},
    {300, 70, 600, 3, 1.5f, 1}, {200, 24, 300, 1, 1, 0},    {40, 9, 2100, 0, 1, 0.5f},
    {5, 4, 0, 0, 1, 0.5f},      {5, 4, 0, 0, 1, 0},         {0, 4, 3, 0, 1, 0},
};

typedef struct {
    tsr_gemm_args args;
    const float *start;
    int64_t count;
} gemm_run;

static tsr_status run(void *context, tsr_pool *pool)
{
    gemm_run *r = context;
    if (r->args.beta != 0) /* otherwise C stays NaN: it must not be read */
        memcpy(r->args.c, r->start, (size_t)r->count * sizeof(float));
    return tsr_gemm_ref(&r->args, pool);
}

static void one_case(const gemm_case *c, bool trans_a, bool trans_b)
{
    int64_t a_rows = trans_a ? c->k : c->m, a_columns = trans_a ? c->m : c->k;
    int64_t b_rows = trans_b ? c->n : c->k, b_columns = trans_b ? c->k : c->n;
    int64_t lda = a_columns + c->pad, ldb = b_columns + c->pad, ldc = c->n + c->pad;
    float *a = new_random(a_rows * lda, 1, 1), *b = new_random(b_rows * ldb, 2, 1);
    float *start = new_random(c->m * ldc, 3, 1), *out = new_floats(c->m * ldc);
    gemm_run r = {.args = {.m = c->m,
                           .n = c->n,
                           .k = c->k,
                           .a = a,
                           .b = b,
                           .c = out,
                           .lda = c->pad ? lda : 0,
                           .ldb = c->pad ? ldb : 0,
                           .ldc = c->pad ? ldc : 0,
                           .trans_a = trans_a,
                           .trans_b = trans_b,
                           .alpha = c->alpha,
                           .beta = c->beta},
                  .start = start,
                  .count = c->m * ldc};
    run_on_pools(run, &r, out, c->m * ldc);
    double *want = new_doubles(NULL, c->m * c->n);
    float *got = new_floats(c->m * c->n);
    for (int64_t i = 0; i < c->m; i++)
        for (int64_t j = 0; j < c->n; j++) {
            double sum = 0;
            for (int64_t l = 0; l < c->k; l++)
                sum += (double)a[trans_a ? l * lda + i : i * lda + l] *
                       (double)b[trans_b ? j * ldb + l : l * ldb + j];
            want[i * c->n + j] = (double)c->alpha * sum;
            if (c->beta != 0)
                want[i * c->n + j] += (double)c->beta * (double)start[i * ldc + j];
            got[i * c->n + j] = out[i * ldc + j];
        }
    expect_close("c", got, want, c->m * c->n, F32_TOLERANCE);
    free(a), free(b), free(start), free(out), free(want), free(got);
}

static void gemm_matches_fp64(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int trans = 0; trans < 4; trans++)
            one_case(&cases[i], trans & 1, trans & 2);
}

/* ---- many threads ---- */

#define STRESS_THREADS 8
#define STRESS_CALLS   1500

typedef struct {
    const float *a, *b, *want[3];
    uint64_t seed;
    int wrong;
} stress;

static const int64_t stress_m[3] = {13, 64, 33}, stress_n[3] = {17, 64, 65},
                     stress_k[3] = {31, 64, 96};

static void stress_block(const float *a, const float *b, float *c, int i)
{
    tsr_gemm_block(&(tsr_gemm_block_args){stress_m[i], stress_n[i], stress_k[i], false, true, a,
                                          stress_k[i], b, stress_k[i], c, stress_n[i], 1, 0});
}

static void *stress_thread(void *opaque)
{
    stress *s = opaque;
    float *c = malloc(64 * 65 * sizeof(float));
    for (int call = 0; c && call < STRESS_CALLS; call++) {
        s->seed = tsr_mix(s->seed);
        int i = (int)(s->seed % 3);
        stress_block(s->a, s->b, c, i);
        s->wrong += memcmp(c, s->want[i], (size_t)(stress_m[i] * stress_n[i]) * sizeof(float)) != 0;
    }
    free(c);
    return NULL;
}

static void threads_do_not_disturb_each_other(void **state)
{
    (void)state;
    float *a = new_random(64 * 96, 1, 1), *b = new_random(65 * 96, 2, 1);
    float *want[3];
    for (int i = 0; i < 3; i++) {
        want[i] = new_floats(stress_m[i] * stress_n[i]);
        stress_block(a, b, want[i], i);
    }
    pthread_t thread[STRESS_THREADS];
    stress work[STRESS_THREADS];
    for (int i = 0; i < STRESS_THREADS; i++) {
        work[i] = (stress){a, b, {want[0], want[1], want[2]}, (uint64_t)i, 0};
        assert_int_equal(pthread_create(&thread[i], NULL, stress_thread, &work[i]), 0);
    }
    int wrong = 0;
    for (int i = 0; i < STRESS_THREADS; i++) {
        pthread_join(thread[i], NULL);
        wrong += work[i].wrong;
    }
    assert_int_equal(wrong, 0);
    for (int i = 0; i < 3; i++)
        free(want[i]);
    free(a), free(b);
}

static void bad_arguments_are_refused(void **state)
{
    (void)state;
    float x[16] = {0};
    tsr_gemm_args good = {
        .m = 2, .n = 2, .k = 2, .a = x, .b = x + 4, .c = x + 8, .alpha = 1, .beta = 0};
    assert_int_equal(tsr_gemm_check(&good), TSR_OK);
    tsr_gemm_args bad = good;
    bad.m = -1;
    assert_int_equal(tsr_gemm_check(&bad), TSR_EINVAL);
    bad = good;
    bad.lda = 1;
    assert_int_equal(tsr_gemm_check(&bad), TSR_EINVAL);
    bad = good;
    bad.b = NULL;
    assert_int_equal(tsr_gemm_check(&bad), TSR_EINVAL);
    bad = good;
    bad.dtype = TSR_I32;
    assert_int_equal(tsr_gemm_check(&bad), TSR_EINVAL);
    bad = good;
    bad.dtype = TSR_BF16;
    assert_int_equal(tsr_gemm_ref(&bad, test_pool(0)), TSR_EUNSUPPORTED);
}

/* OpenBLAS takes SSE3 kernels for a processor that it does not know. */
static void a_new_processor_gets_its_kernels(void **state)
{
    (void)state;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("x86-64-v3") && !getenv("OPENBLAS_CORETYPE"))
        assert_string_not_equal(tsr_gemm_core(), "Prescott");
    else
        print_message("not a processor to ask: %s\n", tsr_gemm_core());
#endif
}

static void processors_have_kernels_in_common(void **state)
{
    (void)state;
    static const char *const pairs[][3] = {{"Zen", "Zen", "Zen"},
                                           {"Zen", "Haswell", "Haswell"},
                                           {"Zen", "Cooperlake", "Haswell"},
                                           {"SapphireRapids", "SkylakeX", "SkylakeX"},
                                           {"SapphireRapids", "Cooperlake", "Cooperlake"},
                                           {"Excavator", "Piledriver", "Sandybridge"},
                                           {"Nehalem", "Zen", "Nehalem"},
                                           {"Penryn", "Nehalem", "Prescott"},
                                           {"Zen", "NEOVERSEN1", NULL},
                                           {"NEOVERSEN1", "NEOVERSEN1", "NEOVERSEN1"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        for (int turn = 0; turn < 2; turn++) {
            const char *common = tsr_gemm_core_common(pairs[i][turn], pairs[i][1 - turn]);
            assert_int_equal(common != NULL, pairs[i][2] != NULL);
            if (common)
                assert_string_equal(common, pairs[i][2]);
        }
}

/* Without a word of it in the environment, and with all that hangs on it: the matmuls are right. */
static void kernels_are_changed(void **state)
{
    static const char *const cores[] = {"Nehalem", "Prescott"};
    char before[32];
    snprintf(before, sizeof before, "%s", tsr_gemm_core());
    if (!strcmp(before, "Prescott") || tsr_gemm_core_take("Nehalem") < 0)
        skip(); /* not an x86 with several kinds */
    for (size_t i = 0; i < sizeof cores / sizeof *cores; i++) {
        assert_int_equal(tsr_gemm_core_take(cores[i]), TSR_OK);
        assert_string_equal(tsr_gemm_core(), cores[i]);
        assert_non_null(strstr(tsr_gemm_block_library(), cores[i]));
        assert_false(tsr_gemm_core_is_small());
        gemm_matches_fp64(state);
    }
    assert_int_equal(tsr_gemm_core_take("no such"), TSR_EUNSUPPORTED);
    assert_int_equal(tsr_gemm_core_take(before), TSR_OK);
    assert_string_equal(tsr_gemm_core(), before);
    assert_null(getenv("OPENBLAS_CORETYPE"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gemm_matches_fp64),
        cmocka_unit_test(threads_do_not_disturb_each_other),
        cmocka_unit_test(bad_arguments_are_refused),
        cmocka_unit_test(a_new_processor_gets_its_kernels),
        cmocka_unit_test(processors_have_kernels_in_common),
        cmocka_unit_test(kernels_are_changed),
    };
    return cmocka_run_group_tests(tests, NULL, pools_teardown);
}
