/*
 * test_cuda_matmul.c: gemm on a GPU against the C reference; the table of algorithms; and, with the
 * argument "time", how fast it is at the shapes of an 8B model before and after tuning.
 */
#include "cuda_time.h"

#include "base/clock.h"

/* Tensor cores cut off where fp32 rounds: bf16 operands, fp32 result. */
#define WIDE_TOLERANCE 5e-5

static tsr_blas *test_blas(void)
{
    return tsr_kernels_kept(rig.stream)->blas;
}

/* ---- gemm ---- */

#define BF16_GEMM(m_, n_, k_, a_, b_, beta_, c_)                                                   \
    {                                                                                              \
        .m = m_, .n = n_, .k = k_, .trans_a = a_, .trans_b = b_, .alpha = 1, .beta = beta_,        \
        .dtype = TSR_BF16, .c_dtype = c_                                                           \
    }

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
    float *before;      /* C */
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
    f->before = new_floats(f->count);
    memcpy(f->before, f->want, (size_t)f->count * sizeof(float));
    tsr_gemm_args ref = f->args;
    ref.a = a;
    ref.b = b;
    ref.c = f->want;
    ref.dtype = ref.c_dtype = TSR_F32;
    RUN(tsr_gemm_ref(&ref, rig.pool));
    free(a), free(b);
}

static void free_gemm(gemm_fixture *f)
{
    free(f->before);
    free(f->want);
    cuda_free_all();
}

/* Half of a bf16's last place, at x. */
static double half_place(double x)
{
    return x == 0 ? 0 : ldexp(1, ilogb(x) - 8);
}

/* How far an element may be off. A bf16 C is its sum, rounded once: sums in bf16 parts fail in every
 * tenth element. With beta, cuBLASLt's kernels may round alpha AB before they add (gemm.h). */
static double allowed(const gemm_fixture *f, int64_t i, double slack)
{
    double want = fabs((double)f->want[i]), beta = (double)f->args.beta;
    if (f->args.c_dtype != TSR_BF16)
        return slack;
    if (beta != 0) {
        double product = fabs((double)f->want[i] - beta * (double)f->before[i]);
        slack += half_place(product + slack);
    }
    return slack + half_place(want + slack);
}

/* Which algorithm it was is printed where it fails. */
static void expect_gemm(const char *what, const gemm_fixture *f)
{
    const tsr_gemm_args *a = &f->args;
    float *got = cuda_floats(a->c, f->count, a->c_dtype);
    double most = 1e-30;
    /* The error of a long sum in fp32 grows with its square root. */
    double tolerance = a->dtype == TSR_BF16
                           ? WIDE_TOLERANCE
                           : tolerance_gemm.f32 * fmax(1, sqrt((double)a->k / 1024));
    for (int64_t i = 0; i < f->count; i++)
        most = fmax(most, fabs((double)f->want[i]));
    int64_t wrong = 0, first = -1;
    for (int64_t i = 0; i < f->count; i++) {
        if (fabs((double)got[i] - (double)f->want[i]) <= allowed(f, i, tolerance * most))
            continue;
        first = first < 0 ? i : first;
        wrong++;
    }
    if (wrong) {
        char algorithm[512];
        tsr_blas_describe(algorithm, sizeof algorithm, test_blas(), a);
        fail_msg("%s: %lld of %lld elements; [%lld] = %.9g, want %.9g +- %.3g, C before %.9g, "
                 "largest %.3g; alpha %g, beta %g, %s",
                 what, (long long)wrong, (long long)f->count, (long long)first, (double)got[first],
                 (double)f->want[first], allowed(f, first, tolerance * most),
                 (double)f->before[first], most, (double)a->alpha, (double)a->beta, algorithm);
    }
    free(got);
}

static void one_gemm(const gemm_case *c, int trans, tsr_dtype dtype, tsr_dtype c_dtype)
{
    if (!cuda_turn())
        return;
    char what[128];
    gemm_fixture f;
    make_gemm(&f, c, trans, dtype, c_dtype);
    snprintf(what, sizeof what, "gemm %lldx%lldx%lld pad %lld trans %d %s to %s", (long long)c->m,
             (long long)c->n, (long long)c->k, (long long)c->pad, trans, tsr_dtype_name(dtype),
             tsr_dtype_name(c_dtype));
    if (rig.kernels->gemm(rig.stream, &f.args) != TSR_OK)
        fail_msg("%s: %s", what, tsr_last_error());
    expect_gemm(what, &f);
    free_gemm(&f);
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
            if (!cuda_turn())
                continue;
            float *a = new_random(M * K + ROOM, 1, 1), *b = new_random(N * K + ROOM, 2, 1);
            float *want = new_random(M * N + ROOM, 3, 1);
            uint16_t *da = cuda_values(a, M * K + ROOM, TSR_BF16);
            uint16_t *db = cuda_values(b, N * K + ROOM, TSR_BF16);
            uint16_t *dc = cuda_values(want, M * N + ROOM, TSR_BF16);
            gemm_fixture f = {.want = want, .count = M * N};
            f.args = (tsr_gemm_args){.m = M,
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
            tsr_gemm_args args = f.args;
            float *before = new_floats(M * N + ROOM);
            memcpy(before, want, (M * N + ROOM) * sizeof *before);
            RUN(rig.kernels->gemm(rig.stream, &args));
            args.a = a + shift;
            args.b = b + shift;
            args.c = want + shift;
            args.dtype = args.c_dtype = TSR_F32;
            RUN(tsr_gemm_ref(&args, rig.pool));
            f.want = want + shift;
            f.before = before + shift;
            expect_gemm("unaligned gemm", &f);
            cuda_expect("before an unaligned C", dc, before, shift, TSR_BF16, 0, 1);
            cuda_expect("after an unaligned C", dc + shift + M * N, before + shift + M * N,
                        ROOM - shift, TSR_BF16, 0, 1);
            free(a), free(b), free(want), free(before);
            cuda_free_all();
        }
}

/* What was multiplied before, another stream and tuning in between do not change a shape's bits. */
static void gemm_gives_the_same_bits(void **state)
{
    (void)state;
    static const gemm_case shape = {1000, 384, 2048, 0, 1, 0};
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
    free(first), free(again);
    free_gemm(&f);
}

static int lines_of(const tsr_text *text)
{
    int lines = 0;
    for (const char *p = tsr_text_string(text); *p; p++)
        lines += *p == '\n';
    return lines;
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
    tsr_blas *blas = test_blas(), *other;
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
    tsr_text text = {0}, again = {0}, merged = {0};
    tsr_blas_export(&text, blas);
    assert_int_equal(lines_of(&text), 4);
    RUN(tsr_blas_open(&other, rig.device));
    RUN(tsr_blas_import(other, text.data));
    tsr_blas_export(&again, other);
    assert_string_equal(again.data, text.data);
    /* Only what is wanted is recalled; the rest of a cache stays in it. */
    tsr_blas_close(other);
    RUN(tsr_blas_open(&other, rig.device));
    tsr_blas_recall(other, NULL, shape, 4, true);
    tsr_blas_recall(other, "something else\n1 2 3\n", shape, 4, true);
    tsr_blas_recall(other, text.data, shape + 1, 1, true);
    tsr_text_clear(&again);
    tsr_blas_export(&again, other);
    assert_int_equal(lines_of(&again), 2);
    tsr_blas_merge(&merged, other, text.data);
    assert_int_equal(lines_of(&merged), 4);
    tsr_text_clear(&merged);
    tsr_blas_merge(&merged, other, "something else\n1 2 3\n");
    assert_string_equal(merged.data, again.data);
    text.data[text.length - 2] = 'x';
    assert_int_equal(tsr_blas_import(other, text.data), TSR_EDATA);
    text.data[0] = 'T';
    assert_int_equal(tsr_blas_import(other, text.data), TSR_EDATA);
    assert_int_equal(tsr_blas_import(other, ""), TSR_EDATA);
    tsr_blas_close(other);
    tsr_text_free(&text), tsr_text_free(&again), tsr_text_free(&merged);
    cuda_free_all();
}

/* At start-up, as a run does it: timed once, and then taken from what was said. */
static void a_run_prepares_its_matmuls(void **state)
{
    (void)state;
    tsr_gemm_args shape[3] = {BF16_GEMM(4000, 4096, 1024, false, true, 0, TSR_BF16),
                              BF16_GEMM(4090, 4096, 1024, false, true, 0, TSR_BF16),
                              BF16_GEMM(8, 8, 8, false, true, 0, TSR_BF16)};
    tsr_head_bounds head = {.rows = 1000, .d = 1024, .chunk = 4096, .dtype = TSR_BF16, true};
    uint64_t bytes = 64 << 20;
    uint8_t *zero = calloc(bytes, 1), *after = malloc(bytes);
    assert_true(zero && after);
    tsr_text chosen = {0}, again = {0}, cache = {0}, named = {0};
    tsr_prepare_args args = {.gemm = shape,
                             .gemm_count = 3,
                             .head = &head,
                             .head_count = 1,
                             .stream = rig.stream,
                             .scratch = cuda_copy(zero, bytes),
                             .scratch_bytes = bytes,
                             .chosen = &chosen,
                             .cache = &cache};
    tsr_device *device;
    const tsr_kernels *kernels;
    RUN(tsr_device_create_cuda(&device, &(tsr_device_options){.no_pinning = true}));
    RUN(tsr_kernels_open(&kernels, device));
    RUN(kernels->prepare(device, &(tsr_prepare_args){.chosen = &named}));
    assert_int_equal(lines_of(&named), 1);
    RUN(tsr_stream_create(&args.stream, device, "test"));
    RUN(kernels->prepare(device, &args));
    cuda_read(after, args.scratch, bytes);
    assert_memory_equal(zero, after, bytes);
    /* 4000 and 4090 tokens are one bucket; 8 x 8 x 8 is not worth it. */
    assert_in_range(lines_of(&chosen), 2, 4);
    assert_string_equal(cache.data, chosen.data);
    assert_memory_equal(named.data, chosen.data, named.length);
    RUN(kernels->prepare(device, &(tsr_prepare_args){.agreed = chosen.data, .chosen = &again}));
    assert_string_equal(again.data, chosen.data);
    assert_int_equal(kernels->prepare(device, &(tsr_prepare_args){.agreed = "no such text\n"}),
                     TSR_EDATA);
    tsr_stream_destroy(args.stream);
    tsr_device_destroy(device);
    tsr_text_free(&chosen), tsr_text_free(&again), tsr_text_free(&cache), tsr_text_free(&named);
    free(zero), free(after);
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

/* Ranks whose rows are 8, 16 and 24 bytes apart. */
#define LOW_RANK(r)                                                                                \
    BF16_GEMM(8192, r, 4096, false, true, 0, TSR_BF16),                                            \
        BF16_GEMM(8192, 14336, r, false, true, 1, TSR_BF16),                                       \
        BF16_GEMM(8192, r, 14336, false, false, 0, TSR_BF16),                                      \
        BF16_GEMM(8192, 4096, r, false, false, 1, TSR_BF16),                                       \
        BF16_GEMM(14336, r, 8192, true, false, 0, TSR_F32),                                        \
        BF16_GEMM(r, 4096, 8192, true, false, 0, TSR_F32)

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
    /* dA = dlow^T x, dB = dy^T low, in fp32 */
    BF16_GEMM(16, 4096, 8192, true, false, 0, TSR_F32),
    BF16_GEMM(16, 14336, 8192, true, false, 0, TSR_F32),
    BF16_GEMM(384, 4096, 8192, true, false, 0, TSR_F32),
    BF16_GEMM(384, 14336, 8192, true, false, 0, TSR_F32),
    BF16_GEMM(4096, 16, 8192, true, false, 0, TSR_F32),
    BF16_GEMM(14336, 16, 8192, true, false, 0, TSR_F32),
    BF16_GEMM(4096, 384, 8192, true, false, 0, TSR_F32),
    BF16_GEMM(14336, 384, 8192, true, false, 0, TSR_F32),
    /* the norm of DoRA: U = W A^T */
    BF16_GEMM(4096, 16, 4096, false, true, 0, TSR_F32),
    BF16_GEMM(14336, 384, 4096, false, true, 0, TSR_F32),
    /* the head */
    BF16_GEMM(2048, 16384, 4096, false, true, 0, TSR_F32),
    BF16_GEMM(2048, 4096, 16384, false, false, 1, TSR_F32),
    LOW_RANK(4),
    LOW_RANK(8),
    LOW_RANK(12),
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

/* 1 + 2^-9 and C = -1: 0 is left if alpha AB is rounded to bf16 before C is added. */
static bool rounds_twice(const tsr_gemm_args *shape)
{
    tsr_gemm_args args = *shape;
    uint16_t result, *a = calloc((size_t)(args.m * args.k), 2),
                     *b = calloc((size_t)(args.n * args.k), 2),
                     *c = malloc((size_t)(args.m * args.n) * 2);
    assert_true(a && b && c);
    for (int64_t i = 0; i < args.m; i++)
        for (int64_t k = 0; k < 2; k++)
            a[args.trans_a ? k * args.m + i : i * args.k + k] = tsr_f32_to_bf16(k ? 0x1p-9f : 1);
    for (int64_t j = 0; j < args.n; j++)
        for (int64_t k = 0; k < 2; k++)
            b[args.trans_b ? j * args.k + k : k * args.n + j] = tsr_f32_to_bf16(1);
    for (int64_t i = 0; i < args.m * args.n; i++)
        c[i] = tsr_f32_to_bf16(-1);
    args.a = cuda_copy(a, (uint64_t)(args.m * args.k) * 2);
    args.b = cuda_copy(b, (uint64_t)(args.n * args.k) * 2);
    args.c = cuda_copy(c, (uint64_t)(args.m * args.n) * 2);
    RUN(rig.kernels->gemm(rig.stream, &args));
    cuda_read(&result, args.c, sizeof result);
    free(a), free(b), free(c);
    cuda_free_all();
    return result == 0;
}

static void print_speed(const tsr_gemm_args *s, double first_ms)
{
    double ms = time_gemm(s), m = (double)s->m, n = (double)s->n, k = (double)s->k;
    double moved =
        2 * (m * k + k * n) + (s->beta != 0 ? 2 : 1) * m * n * (double)tsr_dtype_bytes(s->c_dtype);
    bool adds = s->beta != 0 && s->c_dtype == TSR_BF16;
    char algorithm[512];
    tsr_blas_describe(algorithm, sizeof algorithm, test_blas(), s);
    printf("%5.0f %5.0f %5.0f  %c%c %4g %-4s %9.1f %9.1f %8.0f %5.0f  %-7s %s\n", m, n, k,
           s->trans_a ? 'T' : 'N', s->trans_b ? 'T' : 'N', (double)s->beta,
           tsr_dtype_name(s->c_dtype), first_ms * 1e3, ms * 1e3, 2e-9 * m * n * k / ms,
           moved * 1e-6 / ms,
           !adds             ? ""
           : rounds_twice(s) ? "twice"
                             : "once",
           algorithm);
}

static void time_gemms(void)
{
    static double first[sizeof speed_shapes / sizeof *speed_shapes];
    for (int i = 0; i < SPEED_SHAPES; i++)
        first[i] = time_gemm(&speed_shapes[i]);
    uint64_t bytes = 2 * tsr_blas_tune_bytes(speed_shapes, SPEED_SHAPES);
    void *scratch = cuda_copy(NULL, bytes);
    double start = tsr_now();
    RUN(tsr_blas_tune(test_blas(), rig.stream, speed_shapes, SPEED_SHAPES, scratch, bytes));
    printf("tuned %d shapes in %.2f s, %.0f MiB of scratch\n", SPEED_SHAPES, tsr_now() - start,
           (double)bytes / MIB);
    cuda_free_all();
    printf("    m     n     k  op beta C     first us  tuned us  TFLOP/s  GB/s  rounded\n");
    for (int i = 0; i < SPEED_SHAPES; i++)
        print_speed(&speed_shapes[i], first[i]);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gemm_matches_the_reference), cmocka_unit_test(gemm_takes_any_alignment),
        cmocka_unit_test(gemm_gives_the_same_bits),   cmocka_unit_test(choices_are_kept),
        cmocka_unit_test(a_run_prepares_its_matmuls), cmocka_unit_test(bad_gemms_are_refused),
    };
    if (argc < 2 || strcmp(argv[1], "time") != 0)
        return cmocka_run_group_tests(tests, cuda_setup, cuda_teardown);
    cuda_setup(NULL);
    printf("%s\n", tsr_device_description(rig.device));
    time_gemms();
    return cuda_teardown(NULL);
}
