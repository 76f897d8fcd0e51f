/*
 * test_cuda_matmul.c: gemm on a GPU against the C reference; the table of algorithms; and, with the
 * argument "time", how fast it is at the shapes of an 8B model before and after tuning.
 */
#include "cuda_time.h"

#include "base/clock.h"

/* Tensor cores cut off where fp32 rounds: bf16 operands, fp32 result. */
#define WIDE_TOLERANCE 5e-5

/* ---- gemm ---- */

typedef struct {
    int64_t m, n, k, pad;
    float alpha, beta;
} gemm_case;

static const gemm_case gemm_cases[] = {
    {1, 1, 1, 0, 1, 0},          {3, 5, 7, 2, 1.5f, 0},      {17, 33, 9, 0, 1, 1},
    {64, 64, 64, 0, 1, 0},       {129, 250, 31, 5, 1, 0.5f}, {300, 8, 256, 0, 2, 0},
    {8, 256, 1024, 0, 1, 1},     {704, 16, 511, 0, 1, 0},    {256, 704, 256, 0, -1, 1},
    {300, 70, 600, 3, 1.5f, 1},  {200, 24, 300, 8, 1, 0},    {40, 9, 2100, 0, 1, 0.5f},
    {16, 512, 8192, 0, 1, 0},    {1, 4096, 4096, 0, 1, 0},   {1000, 512, 16, 0, 0.25f, 1},
    {384, 640, 1003, 16, 1, 0},  {1, 1, 4099, 0, 1, 0},      {515, 1, 77, 0, 1, 1},
    {1111, 1024, 512, 64, 2, 0}, {5, 4, 0, 0, 1, 0.5f},      {5, 4, 0, 3, 1, 0},
    {0, 4, 3, 0, 1, 0},          {4, 0, 3, 0, 1, 0},         {63, 65, 128, 1, 1, 1},
};

typedef struct {
    tsr_gemm_args args; /* of the device */
    float *want;
    int64_t count; /* elements of C as stored */
} gemm_fixture;

/* C's padding must stay; with beta 0 the rest is NaN before, so that reading it shows. */
static void make_gemm(gemm_fixture *f, const gemm_case *c, int trans, tsr_dtype dtype,
                      tsr_dtype c_dtype)
{
    bool trans_a = trans & 1, trans_b = trans & 2;
    int64_t a_rows = trans_a ? c->k : c->m, lda = (trans_a ? c->m : c->k) + c->pad;
    int64_t b_rows = trans_b ? c->n : c->k, ldb = (trans_b ? c->k : c->n) + c->pad;
    int64_t ldc = c->n + c->pad;
    float *a = new_random(a_rows * lda, 1, 1), *b = new_random(b_rows * ldb, 2, 1);
    f->count = c->m * ldc;
    f->want = new_random(f->count, 3, 1);
    f->args = (tsr_gemm_args){.m = c->m,
                              .n = c->n,
                              .k = c->k,
                              .lda = c->pad ? lda : 0,
                              .ldb = c->pad ? ldb : 0,
                              .ldc = c->pad ? ldc : 0,
                              .trans_a = trans_a,
                              .trans_b = trans_b,
                              .alpha = c->alpha,
                              .beta = c->beta,
                              .dtype = dtype,
                              .c_dtype = c_dtype};
    f->args.a = cuda_values(a, a_rows * lda, dtype);
    f->args.b = cuda_values(b, b_rows * ldb, dtype);
    for (int64_t i = 0; i < f->count && c->beta == 0; i++)
        if (i % ldc < c->n)
            f->want[i] = NAN;
    f->args.c = cuda_values(f->want, f->count, c_dtype);
    tsr_gemm_args ref = f->args;
    ref.a = a;
    ref.b = b;
    ref.c = f->want;
    ref.dtype = ref.c_dtype = TSR_F32;
    RUN(tsr_gemm_ref(&ref, rig.pool));
    free(a), free(b);
}

static void one_gemm(const gemm_case *c, int trans, tsr_dtype dtype, tsr_dtype c_dtype)
{
    char what[128];
    gemm_fixture f;
    make_gemm(&f, c, trans, dtype, c_dtype);
    snprintf(what, sizeof what, "gemm %lldx%lldx%lld pad %lld trans %d %s to %s", (long long)c->m,
             (long long)c->n, (long long)c->k, (long long)c->pad, trans, tsr_dtype_name(dtype),
             tsr_dtype_name(c_dtype));
    /* The error of a long sum in fp32 grows with its square root. */
    double tolerance = tolerance_gemm.f32 * fmax(1, sqrt((double)c->k / 1024));
    if (dtype == TSR_BF16)
        tolerance = WIDE_TOLERANCE;
    if (c_dtype == TSR_BF16)
        tolerance += tolerance_gemm.bf16;
    if (rig.kernels->gemm(rig.stream, &f.args) != TSR_OK)
        fail_msg("%s: %s", what, tsr_last_error());
    cuda_expect(what, f.args.c, f.want, f.count, c_dtype, tolerance, 1e-30);
    free(f.want);
    cuda_free_all();
}

static void gemm_matches_the_reference(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof gemm_cases / sizeof *gemm_cases; i++)
        for (int trans = 0; trans < 4; trans++) {
            one_gemm(&gemm_cases[i], trans, TSR_F32, TSR_F32);
            one_gemm(&gemm_cases[i], trans, TSR_BF16, TSR_BF16);
            one_gemm(&gemm_cases[i], trans, TSR_BF16, TSR_F32);
        }
}

/* Operands that begin in the middle of a buffer: 2, 4 and 8 bytes off. */
static void gemm_takes_any_alignment(void **state)
{
    (void)state;
    enum { M = 33, N = 40, K = 24, ROOM = 64 };
    for (int64_t shift = 1; shift <= 4; shift *= 2)
        for (int trans = 0; trans < 4; trans++) {
            float *a = new_random(M * K + ROOM, 1, 1), *b = new_random(N * K + ROOM, 2, 1);
            float *want = new_random(M * N + ROOM, 3, 1);
            uint16_t *da = cuda_values(a, M * K + ROOM, TSR_BF16);
            uint16_t *db = cuda_values(b, N * K + ROOM, TSR_BF16);
            uint16_t *dc = cuda_values(want, M * N + ROOM, TSR_BF16);
            tsr_gemm_args args = {.m = M,
                                  .n = N,
                                  .k = K,
                                  .a = da + shift,
                                  .b = db + shift,
                                  .c = dc + shift,
                                  .trans_a = trans & 1,
                                  .trans_b = trans & 2,
                                  .alpha = 1,
                                  .beta = 1,
                                  .dtype = TSR_BF16,
                                  .c_dtype = TSR_BF16};
            RUN(rig.kernels->gemm(rig.stream, &args));
            args.a = a + shift;
            args.b = b + shift;
            args.c = want + shift;
            args.dtype = args.c_dtype = TSR_F32;
            RUN(tsr_gemm_ref(&args, rig.pool));
            cuda_expect("unaligned gemm", dc, want, M * N + ROOM, TSR_BF16, tolerance_gemm.bf16,
                        1e-30);
            free(a), free(b), free(want);
            cuda_free_all();
        }
}

/* What was multiplied before, another stream and tuning in between do not change a shape's bits. */
static void gemm_gives_the_same_bits(void **state)
{
    (void)state;
    static const gemm_case shape = {1000, 384, 2048, 0, 1, 0};
    tsr_blas *blas = tsr_kernels_kept(rig.stream)->blas;
    tsr_stream *other;
    gemm_fixture f;
    make_gemm(&f, &shape, 2, TSR_BF16, TSR_F32);
    uint64_t bytes = (uint64_t)f.count * sizeof(float);
    float *first = new_floats(f.count), *again = new_floats(f.count);
    RUN(rig.kernels->gemm(rig.stream, &f.args));
    cuda_read(first, f.args.c, bytes);
    tsr_gemm_args fewer = f.args;
    for (fewer.m = 1; fewer.m < 1000; fewer.m = fewer.m * 3 + 1)
        RUN(rig.kernels->gemm(rig.stream, &fewer));
    RUN(tsr_stream_create(&other, rig.device, "other"));
    for (int i = 0; i < 5; i++) {
        RUN(rig.kernels->gemm(i & 1 ? other : rig.stream, &f.args));
        RUN(tsr_stream_synchronize(other));
        cuda_read(again, f.args.c, bytes);
        assert_memory_equal(first, again, bytes);
    }
    tsr_stream_destroy(other);
    assert_non_null(blas);
    free(first), free(again), free(f.want);
    cuda_free_all();
}

/* Tuned on one handle, exported, taken by another: both multiply right, and the text is the same. */
static void choices_are_kept(void **state)
{
    (void)state;
    tsr_gemm_args shape[4] = {
        {.m = 777,
         .n = 512,
         .k = 640,
         .trans_b = true,
         .alpha = 1,
         .dtype = TSR_BF16,
         .c_dtype = TSR_BF16},
        {.m = 16,
         .n = 640,
         .k = 777,
         .trans_a = true,
         .alpha = 1,
         .beta = 1,
         .dtype = TSR_BF16,
         .c_dtype = TSR_F32},
        {.m = 777, .n = 33, .k = 47, .alpha = 1, .dtype = TSR_F32, .c_dtype = TSR_F32},
        {.m = 0, .n = 33, .k = 47, .alpha = 1, .dtype = TSR_F32, .c_dtype = TSR_F32},
    };
    tsr_blas *blas = tsr_kernels_kept(rig.stream)->blas, *other;
    uint64_t bytes = tsr_blas_tune_bytes(shape, 4);
    assert_true(bytes > 777 * (512 + 640) * 2 && bytes < 8 << 20);
    void *scratch = cuda_copy(NULL, bytes);
    assert_int_equal(tsr_blas_tune(blas, rig.stream, shape, 4, scratch, bytes - 1), TSR_EINVAL);
    RUN(tsr_blas_tune(blas, rig.stream, shape, 4, scratch, bytes));
    static const gemm_case same[3] = {
        {777, 512, 640, 0, 1, 0}, {16, 640, 777, 0, 1, 1}, {777, 33, 47, 0, 1, 0}};
    one_gemm(&same[0], 2, TSR_BF16, TSR_BF16);
    one_gemm(&same[1], 1, TSR_BF16, TSR_F32);
    one_gemm(&same[2], 0, TSR_F32, TSR_F32);
    uint64_t length = tsr_blas_export(blas, NULL, 0);
    char *text = malloc(length), *text2 = malloc(length);
    assert_true(text && text2);
    assert_int_equal(tsr_blas_export(blas, text, length), length);
    assert_int_equal(strlen(text) + 1, length);
    int lines = 0;
    for (const char *p = text; *p; p++)
        lines += *p == '\n';
    assert_int_equal(lines, 4);
    RUN(tsr_blas_open(&other, rig.device));
    RUN(tsr_blas_import(other, text));
    assert_int_equal(tsr_blas_export(other, text2, length), length);
    assert_int_equal(strlen(text2) + 1, length);
    text[length - 3] = 'x';
    assert_int_equal(tsr_blas_import(other, text), TSR_EDATA);
    text[0] = 'T';
    assert_int_equal(tsr_blas_import(other, text), TSR_EDATA);
    assert_int_equal(tsr_blas_import(other, ""), TSR_EDATA);
    tsr_blas_close(other);
    free(text), free(text2);
    cuda_free_all();
}

static void bad_gemms_are_refused(void **state)
{
    (void)state;
    tsr_gemm_args bad = {.m = 2, .n = 2, .k = 2, .alpha = 1};
    assert_int_equal(rig.kernels->gemm(rig.stream, &bad), TSR_EINVAL);
    bad.m = -1;
    assert_int_equal(rig.kernels->gemm(rig.stream, &bad), TSR_EINVAL);
}

/* ---- speed ---- */

static void run_gemm(void *context)
{
    RUN(rig.kernels->gemm(rig.stream, context));
}

#define BF16_GEMM(m_, n_, k_, a_, b_, beta_, c_)                                                   \
    {                                                                                              \
        .m = m_, .n = n_, .k = k_, .trans_a = a_, .trans_b = b_, .alpha = 1, .beta = beta_,        \
        .dtype = TSR_BF16, .c_dtype = c_                                                           \
    }

static const tsr_gemm_args speed_shapes[] = {
    BF16_GEMM(8192, 8192, 8192, false, true, 0, TSR_BF16), /* the roof */
    /* y = x W^T */
    BF16_GEMM(8192, 4096, 4096, false, true, 0, TSR_BF16),
    BF16_GEMM(8192, 6144, 4096, false, true, 0, TSR_BF16),
    BF16_GEMM(8192, 1024, 4096, false, true, 0, TSR_BF16),
    BF16_GEMM(8192, 14336, 4096, false, true, 0, TSR_BF16),
    BF16_GEMM(8192, 4096, 14336, false, true, 0, TSR_BF16),
    /* dx = dy W, written and added to */
    BF16_GEMM(8192, 4096, 4096, false, false, 0, TSR_BF16),
    BF16_GEMM(8192, 4096, 1024, false, false, 1, TSR_BF16),
    BF16_GEMM(8192, 4096, 14336, false, false, 1, TSR_BF16),
    BF16_GEMM(8192, 14336, 4096, false, false, 0, TSR_BF16),
    /* low = x A^T; y += low B^T */
    BF16_GEMM(8192, 16, 4096, false, true, 0, TSR_BF16),
    BF16_GEMM(8192, 384, 4096, false, true, 0, TSR_BF16),
    BF16_GEMM(8192, 16, 14336, false, true, 0, TSR_BF16),
    BF16_GEMM(8192, 384, 14336, false, true, 0, TSR_BF16),
    BF16_GEMM(8192, 4096, 16, false, true, 1, TSR_BF16),
    BF16_GEMM(8192, 14336, 16, false, true, 1, TSR_BF16),
    BF16_GEMM(8192, 4096, 384, false, true, 1, TSR_BF16),
    BF16_GEMM(8192, 14336, 384, false, true, 1, TSR_BF16),
    /* dlow = dy B; dx += dlow A */
    BF16_GEMM(8192, 16, 4096, false, false, 0, TSR_BF16),
    BF16_GEMM(8192, 384, 14336, false, false, 0, TSR_BF16),
    BF16_GEMM(8192, 4096, 16, false, false, 1, TSR_BF16),
    BF16_GEMM(8192, 4096, 384, false, false, 1, TSR_BF16),
    /* dA = dlow^T x, dB = dy^T low, added in fp32 */
    BF16_GEMM(16, 4096, 8192, true, false, 1, TSR_F32),
    BF16_GEMM(16, 14336, 8192, true, false, 1, TSR_F32),
    BF16_GEMM(384, 4096, 8192, true, false, 1, TSR_F32),
    BF16_GEMM(384, 14336, 8192, true, false, 1, TSR_F32),
    BF16_GEMM(4096, 16, 8192, true, false, 1, TSR_F32),
    BF16_GEMM(14336, 16, 8192, true, false, 1, TSR_F32),
    BF16_GEMM(4096, 384, 8192, true, false, 1, TSR_F32),
    BF16_GEMM(14336, 384, 8192, true, false, 1, TSR_F32),
    /* the norm of DoRA: U = W A^T */
    BF16_GEMM(4096, 16, 4096, false, true, 0, TSR_F32),
    BF16_GEMM(14336, 384, 4096, false, true, 0, TSR_F32),
    /* the head */
    BF16_GEMM(2048, 16384, 4096, false, true, 0, TSR_F32),
    BF16_GEMM(2048, 4096, 16384, false, false, 1, TSR_F32),
};

#define SPEED_SHAPES ((int)(sizeof speed_shapes / sizeof *speed_shapes))

static double time_gemm(const tsr_gemm_args *shape)
{
    tsr_gemm_args args = *shape;
    args.a = random_array(args.m * args.k, args.dtype);
    args.b = random_array(args.n * args.k, args.dtype);
    args.c = random_array(args.m * args.n, args.c_dtype);
    args.alpha = 1e-3f; /* what is added to again and again stays finite */
    double ms = median_ms(run_gemm, &args, 21);
    cuda_free_all();
    return ms;
}

static void time_gemms(void)
{
    static double first[sizeof speed_shapes / sizeof *speed_shapes];
    tsr_blas *blas = tsr_kernels_kept(rig.stream)->blas;
    for (int i = 0; i < SPEED_SHAPES; i++)
        first[i] = time_gemm(&speed_shapes[i]);
    uint64_t bytes = 2 * tsr_blas_tune_bytes(speed_shapes, SPEED_SHAPES);
    void *scratch = cuda_copy(NULL, bytes);
    double start = tsr_now();
    RUN(tsr_blas_tune(blas, rig.stream, speed_shapes, SPEED_SHAPES, scratch, bytes));
    printf("tuned %d shapes in %.2f s, %.0f MiB of scratch\n", SPEED_SHAPES, tsr_now() - start,
           (double)bytes / MIB);
    cuda_free_all();
    printf("    m     n     k  op beta C     first us  tuned us  TFLOP/s  GB/s\n");
    for (int i = 0; i < SPEED_SHAPES; i++) {
        const tsr_gemm_args *s = &speed_shapes[i];
        double ms = time_gemm(s), m = (double)s->m, n = (double)s->n, k = (double)s->k;
        double moved = 2 * (m * k + k * n) +
                       (s->beta != 0 ? 2 : 1) * m * n * (double)tsr_dtype_bytes(s->c_dtype);
        printf("%5.0f %5.0f %5.0f  %c%c %4g %-4s %9.1f %9.1f %8.0f %5.0f\n", m, n, k,
               s->trans_a ? 'T' : 'N', s->trans_b ? 'T' : 'N', (double)s->beta,
               tsr_dtype_name(s->c_dtype), first[i] * 1e3, ms * 1e3, 2e-9 * m * n * k / ms,
               moved * 1e-6 / ms);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gemm_matches_the_reference), cmocka_unit_test(gemm_takes_any_alignment),
        cmocka_unit_test(gemm_gives_the_same_bits),   cmocka_unit_test(choices_are_kept),
        cmocka_unit_test(bad_gemms_are_refused),
    };
    if (argc < 2 || strcmp(argv[1], "time") != 0)
        return cmocka_run_group_tests(tests, cuda_setup, cuda_teardown);
    cuda_setup(NULL);
    printf("%s\n", tsr_device_description(rig.device));
    time_gemms();
    return cuda_teardown(NULL);
}
