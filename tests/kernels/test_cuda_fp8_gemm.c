/*
 * test_cuda_fp8_gemm.c: fp8_gemm on a GPU against the C reference, by every algorithm that may be chosen; and
 * its choices beside those of gemm. A card that has no fp8_gemm refuses it. The kernel of other cards than Hopper, too.
 */
#include "cuda_test.h"

#include "kernels/fp8.h"
#include "kernels/gemm_cublaslt.h"
#include "kernels/kernels_cuda.h"

typedef struct {
    int64_t m, n, k;
    float alpha, beta;
    bool scale_b;
} gemm_case;

static const gemm_case gemm_cases[] = {
    {1, 16, 16, 1, 0, true},       {7, 32, 48, 1.5f, 0, true},    {129, 256, 128, 1, 1, true},
    {300, 64, 512, 1, 0, false},   {33, 16, 4096, 1, 1, false},   {1000, 512, 1024, 1, 0, true},
    {64, 1024, 4096, -1, 1, true}, {257, 4096, 336, 1, 0, false}, {5, 16, 0, 1, 1, true},
    {5, 16, 0, 1, 0, true},        {0, 16, 32, 1, 0, true},       {333, 4096, 14336, 1, 0, true},
};

/* Any but NaN. */
static uint8_t *new_codes(int64_t count, uint64_t seed)
{
    uint8_t *out = malloc((size_t)count + 8);
    assert_non_null(out);
    for (int64_t i = 0; i < count; i += 8) {
        uint64_t word = tsr_mix((uint64_t)i * 0x9E3779B97F4A7C15u + seed);
        memcpy(out + i, &word, 8);
    }
    for (int64_t i = 0; i < count; i++)
        out[i] = (out[i] & 0x7f) == TSR_E4M3_NAN ? 0 : out[i];
    return out;
}

typedef struct {
    tsr_fp8_gemm_args args; /* of the device */
    float *want, *before;
    int64_t count;
} gemm_fixture;

/* With beta 0, C is NaN before. */
static void make_gemm(gemm_fixture *f, const gemm_case *c, tsr_dtype c_dtype, bool fast)
{
    uint8_t *a = new_codes(c->m * c->k, 1), *b = new_codes(c->n * c->k, 2);
    float *scale_a = new_gain(c->m, 3), *scale_b = new_gain(c->n, 4);
    f->count = c->m * c->n;
    f->want = new_random(f->count, 5, 1e5f);
    f->args = (tsr_fp8_gemm_args){.m = c->m,
                                  .n = c->n,
                                  .k = c->k,
                                  .a = a,
                                  .b = b,
                                  .scale_a = scale_a,
                                  .scale_b = c->scale_b ? scale_b : NULL,
                                  .alpha = c->alpha,
                                  .beta = c->beta,
                                  .fast = fast};
    void *device_c = c->beta == 0 ? cuda_copy(NULL, (uint64_t)f->count * tsr_dtype_bytes(c_dtype))
                                  : cuda_values(f->want, f->count, c_dtype);
    f->before = new_floats(f->count);
    memcpy(f->before, f->want, (size_t)f->count * sizeof(float));
    f->args.c = f->want;
    RUN(tsr_fp8_gemm_ref(&f->args, rig.pool));
    f->args.c = device_c;
    f->args.c_dtype = c_dtype;
    f->args.a = cuda_copy(a, (uint64_t)(c->m * c->k));
    f->args.b = cuda_copy(b, (uint64_t)(c->n * c->k));
    f->args.scale_a = cuda_copy(scale_a, (uint64_t)c->m * 4);
    f->args.scale_b = c->scale_b ? cuda_copy(scale_b, (uint64_t)c->n * 4) : NULL;
    free(a), free(b), free(scale_a), free(scale_b);
}

static void free_gemm(gemm_fixture *f)
{
    free(f->want), free(f->before);
    cuda_free_all();
}

static double largest(const float *x, int64_t count)
{
    double most = 1e-30;
    for (int64_t i = 0; i < count; i++)
        most = fmax(most, fabs((double)x[i]));
    return most;
}

/* Of the sum; roundings to bf16, of the product and of C, come on top. Gives the worst of a matmul without
 * them. */
static double expect_gemm(const char *what, const gemm_fixture *f)
{
    const tsr_fp8_gemm_args *a = &f->args;
    float *got = cuda_floats(a->c, f->count, a->c_dtype);
    double most = largest(f->want, f->count), worst = 0;
    double tolerance = a->fast ? tolerance_fp8_gemm.bf16 : tolerance_fp8_gemm.f32;
    for (int64_t i = 0; i < f->count; i++) {
        double want = (double)f->want[i], off = fabs((double)got[i] - want), rounding = 0;
        double product = want - (a->beta != 0 ? (double)f->before[i] : 0);
        if (a->c_dtype == TSR_BF16)
            rounding = ldexp(fabs(want) + (a->beta != 0 ? fabs(product) : 0), -8);
        if (!(off <= tolerance * most + rounding))
            fail_msg("%s: [%lld] is %.9g, want %.9g, largest %.3g", what, (long long)i,
                     (double)got[i], want, most);
        worst = fmax(worst, off / most);
    }
    free(got);
    return worst;
}

/* Whether this card has it; one that has not refuses, and says why. */
static void only_where_it_is(void)
{
    tsr_status status = tsr_kernels_fp8_supported(rig.device);
    if (status == TSR_OK)
        return;
    assert_int_equal(status, TSR_EUNSUPPORTED);
    print_message("%s\n", tsr_last_error());
    gemm_fixture f;
    make_gemm(&f, &gemm_cases[0], TSR_BF16, false);
    assert_int_equal(rig.kernels->fp8_gemm(rig.stream, &f.args), TSR_EUNSUPPORTED);
    free_gemm(&f);
    skip();
}

typedef tsr_status multiply(tsr_stream *stream, const tsr_fp8_gemm_args *args);

static void one_gemm(const gemm_case *c, tsr_dtype c_dtype, bool fast, multiply *op)
{
    char what[128];
    gemm_fixture f;
    if (!cuda_turn())
        return;
    snprintf(what, sizeof what, "fp8_gemm %lldx%lldx%lld into %s%s%s", (long long)c->m,
             (long long)c->n, (long long)c->k, tsr_dtype_name(c_dtype), fast ? ", fast" : "",
             op == tsr_fp8_gemm_mma ? ", by mma.sync" : "");
    make_gemm(&f, c, c_dtype, fast);
    if (op(rig.stream, &f.args) != TSR_OK)
        fail_msg("%s: %s", what, tsr_last_error());
    double worst = expect_gemm(what, &f);
    if (c_dtype == TSR_F32)
        print_message("%s: within %.2e of the largest\n", what, worst);
    free_gemm(&f);
}

static void gemm_matches_the_reference(void **state)
{
    (void)state;
    only_where_it_is();
    for (size_t i = 0; i < sizeof gemm_cases / sizeof *gemm_cases; i++)
        for (int way = 0; way < 4; way++)
            one_gemm(&gemm_cases[i], way % 2 ? TSR_BF16 : TSR_F32, way / 2, rig.kernels->fp8_gemm);
}

static void mma_matches_the_reference(void **state)
{
    (void)state;
    if (!tsr_fp8_mma_here(rig.device))
        skip();
    for (size_t i = 0; i < sizeof gemm_cases / sizeof *gemm_cases; i++)
        for (int way = 0; gemm_cases[i].m && gemm_cases[i].k && way < 4; way++)
            one_gemm(&gemm_cases[i], way % 2 ? TSR_BF16 : TSR_F32, way / 2, tsr_fp8_gemm_mma);
}

static void a_nan_shows_in_its_row(void **state)
{
    (void)state;
    only_where_it_is();
    enum { M = 40, N = 32, K = 64 };
    float scale[M], *got;
    uint8_t *a = new_codes(M * K, 1), *b = new_codes(N * K, 2);
    for (int i = 0; i < M; i++)
        scale[i] = i == 3 ? NAN : 1;
    a[7 * K + 5] = TSR_E4M3_NAN;
    tsr_fp8_gemm_args args = {.m = M,
                              .n = N,
                              .k = K,
                              .a = cuda_copy(a, M * K),
                              .b = cuda_copy(b, N * K),
                              .scale_a = cuda_copy(scale, sizeof scale),
                              .c = cuda_copy(NULL, M * N * 2),
                              .alpha = 1,
                              .c_dtype = TSR_BF16};
    RUN(rig.kernels->fp8_gemm(rig.stream, &args));
    got = cuda_floats(args.c, M * N, TSR_BF16);
    for (int i = 0; i < M * N; i++)
        assert_int_equal(isnan(got[i]) != 0, i / N == 3 || i / N == 7);
    free(a), free(b), free(got);
    cuda_free_all();
}

static void gemm_gives_the_same_bits(void **state)
{
    (void)state;
    only_where_it_is();
    gemm_fixture f;
    make_gemm(&f, &(gemm_case){1000, 384, 2048, 1, 0, true}, TSR_F32, false);
    uint64_t bytes = (uint64_t)f.count * sizeof(float);
    float *first = new_floats(f.count), *again = new_floats(f.count);
    RUN(rig.kernels->fp8_gemm(rig.stream, &f.args));
    cuda_read(first, f.args.c, bytes);
    for (int i = 0; i < 5; i++) {
        RUN(rig.kernels->fp8_gemm(rig.stream, &f.args));
        cuda_read(again, f.args.c, bytes);
        assert_memory_equal(first, again, bytes);
    }
    free(first), free(again);
    free_gemm(&f);
}

static void what_does_not_fit_is_refused(void **state)
{
    (void)state;
    only_where_it_is();
    gemm_fixture f;
    make_gemm(&f, &(gemm_case){32, 32, 32, 1, 0, true}, TSR_BF16, false);
    tsr_fp8_gemm_args args = f.args;
    args.k = 24;
    assert_int_equal(rig.kernels->fp8_gemm(rig.stream, &args), TSR_EUNSUPPORTED);
    args = f.args;
    args.n = 24;
    assert_int_equal(rig.kernels->fp8_gemm(rig.stream, &args), TSR_EUNSUPPORTED);
    args = f.args;
    args.a++;
    assert_int_equal(rig.kernels->fp8_gemm(rig.stream, &args), TSR_EUNSUPPORTED);
    args = f.args;
    args.beta = 0.5f;
    assert_int_equal(rig.kernels->fp8_gemm(rig.stream, &args), TSR_EINVAL);
    free_gemm(&f);
}

/* ---- every algorithm that may be chosen, at the shapes of an 8B model ---- */

enum { TOKENS = 8192, STRIP = 24, STRIPS = 3 };

static const int64_t strip_row[STRIPS] = {0, TOKENS / 2 + 7, TOKENS - STRIP};

typedef struct {
    tsr_fp8_gemm_args args; /* of the device; adds to C */
    void *before;           /* C, on the device: rows that are all the same */
    float *want;            /* [STRIPS, STRIP, n] */
} large_fixture;

static void want_strip(large_fixture *f, int strip, const uint8_t *a, const uint8_t *b,
                       const float *scale_a, const float *scale_b, const float *row)
{
    tsr_fp8_gemm_args ref = f->args;
    ref.m = STRIP;
    ref.a = a + strip_row[strip] * ref.k;
    ref.b = b;
    ref.scale_a = scale_a + strip_row[strip];
    ref.scale_b = scale_b;
    ref.c = f->want + strip * STRIP * ref.n;
    ref.c_dtype = TSR_F32;
    for (int64_t i = 0; i < STRIP; i++)
        memcpy((float *)ref.c + i * ref.n, row, (size_t)ref.n * sizeof(float));
    RUN(tsr_fp8_gemm_ref(&ref, rig.pool));
}

static void make_large(large_fixture *f, int64_t n, int64_t k, bool scales, bool fast)
{
    uint8_t *a = new_codes(TOKENS * k, 1), *b = new_codes(n * k, 2);
    float *scale_a = new_gain(TOKENS, 3), *scale_b = new_gain(n, 4), *row = new_random(n, 5, 1e5f);
    uint16_t *narrow = new_bf16(row, n), *c = malloc((size_t)(TOKENS * n) * 2);
    assert_non_null(c);
    for (int64_t i = 0; i < TOKENS; i++)
        memcpy(c + i * n, narrow, (size_t)n * 2);
    f->args = (tsr_fp8_gemm_args){.m = TOKENS,
                                  .n = n,
                                  .k = k,
                                  .a = cuda_copy(a, (uint64_t)(TOKENS * k)),
                                  .b = cuda_copy(b, (uint64_t)(n * k)),
                                  .scale_a = cuda_copy(scale_a, TOKENS * 4),
                                  .scale_b = scales ? cuda_copy(scale_b, (uint64_t)n * 4) : NULL,
                                  .c = cuda_copy(NULL, (uint64_t)(TOKENS * n) * 2),
                                  .alpha = 1,
                                  .beta = 1,
                                  .c_dtype = TSR_BF16,
                                  .fast = fast};
    f->before = cuda_copy(c, (uint64_t)(TOKENS * n) * 2);
    f->want = new_floats(STRIPS * STRIP * n);
    for (int strip = 0; strip < STRIPS; strip++)
        want_strip(f, strip, a, b, scale_a, scales ? scale_b : NULL, row);
    free(a), free(b), free(scale_a), free(scale_b), free(row), free(narrow), free(c);
}

/* Two roundings to bf16, as fp8_gemm.h allows; C is small beside the product. */
static void expect_strips(const char *what, const large_fixture *f)
{
    int64_t n = f->args.n, count = STRIP * n;
    double most = largest(f->want, STRIPS * count);
    double tolerance = f->args.fast ? tolerance_fp8_gemm.bf16 : tolerance_fp8_gemm.f32;
    for (int strip = 0; strip < STRIPS; strip++) {
        const float *want = f->want + strip * count;
        float *got = cuda_floats((uint16_t *)f->args.c + strip_row[strip] * n, count, TSR_BF16);
        for (int64_t i = 0; i < count; i++) {
            double off = fabs((double)got[i] - (double)want[i]);
            if (!(off <= tolerance * most + ldexp(fabs((double)want[i]) + 1e5, -7)))
                fail_msg("%s: [%lld, %lld] is %.9g, want %.9g, largest %.3g", what,
                         (long long)(strip_row[strip] + i / n), (long long)(i % n), (double)got[i],
                         (double)want[i], most);
        }
        free(got);
    }
}

static void one_large(int64_t n, int64_t k, bool scales, bool fast)
{
    cublasLtMatmulAlgo_t algo[TSR_BLAS_CANDIDATES];
    int count;
    large_fixture f;
    if (!cuda_turn())
        return;
    make_large(&f, n, k, scales, fast);
    tsr_blas *blas = tsr_kernels_kept(rig.stream)->blas;
    tsr_gemm_args shape = tsr_fp8_gemm_shape(&f.args);
    tsr_matmul_key key = tsr_matmul_bucket(&shape);
    RUN(tsr_matmul_ask(algo, &count, blas, &key, TSR_BLAS_CANDIDATES));
    for (int i = 0; i < count; i++) {
        char what[128];
        snprintf(what, sizeof what, "candidate %d of %d for [8192, %lld] by %lld%s, added", i,
                 count, (long long)n, (long long)k, fast ? ", fast" : "");
        tsr_matmul_keep(blas, &key, &algo[i], TSR_MATMUL_TIMED);
        RUN(tsr_stream_copy(rig.stream, f.args.c, f.before, (uint64_t)(TOKENS * n) * 2));
        RUN(rig.kernels->fp8_gemm(rig.stream, &f.args));
        expect_strips(what, &f);
    }
    free(f.want);
    cuda_free_all();
}

static void every_candidate_is_right(void **state)
{
    (void)state;
    if (getenv("TESSERA_PART")) /* under a sanitizer: hours, for a library's kernels */
        skip();
    only_where_it_is();
    one_large(4096, 14336, false, false); /* dx of gate and up */
    one_large(14336, 4096, false, false); /* of down */
    one_large(4096, 1024, false, false);  /* of k and v */
    one_large(4096, 4096, true, false);   /* z of q and o */
    one_large(4096, 14336, true, true);
}

/* Three matmuls that differ in nothing but type and way of adding: three choices, on any handle. */
static void choices_are_kept(void **state)
{
    (void)state;
    only_where_it_is();
    tsr_fp8_gemm_args args = {.m = 777, .n = 512, .k = 640, .alpha = 1, .c_dtype = TSR_BF16};
    tsr_gemm_args shape[3];
    shape[0] = tsr_fp8_gemm_shape(&args);
    args.fast = true;
    shape[1] = tsr_fp8_gemm_shape(&args);
    shape[2] = shape[0];
    shape[2].dtype = TSR_BF16;
    tsr_blas *blas, *other;
    RUN(tsr_blas_open(&blas, rig.device));
    RUN(tsr_blas_open(&other, rig.device));
    uint64_t bytes = tsr_blas_tune_bytes(shape, 3);
    RUN(tsr_blas_tune(blas, rig.stream, shape, 3, cuda_copy(NULL, bytes), bytes));
    tsr_text text = {0}, again = {0};
    tsr_blas_export(&text, blas);
    int lines = 0;
    for (const char *p = tsr_text_string(&text); *p; p++)
        lines += *p == '\n';
    assert_int_equal(lines, 4);
    RUN(tsr_blas_import(other, text.data));
    tsr_blas_export(&again, other);
    assert_string_equal(again.data, text.data);
    tsr_blas_close(blas), tsr_blas_close(other);
    tsr_text_free(&text), tsr_text_free(&again);
    cuda_free_all();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gemm_matches_the_reference),   cmocka_unit_test(mma_matches_the_reference),
        cmocka_unit_test(a_nan_shows_in_its_row),       cmocka_unit_test(gemm_gives_the_same_bits),
        cmocka_unit_test(what_does_not_fit_is_refused), cmocka_unit_test(choices_are_kept),
        cmocka_unit_test(every_candidate_is_right),
    };
    return cmocka_run_group_tests(tests, cuda_setup, cuda_teardown);
}
