/*
 * test_cuda_score.c: a reward model's head on a GPU against the C reference, which sums a row in another order; twice the same
 * bits; in the place of h and without gradients the same.
 */
#include "cuda_test.h"

#include "score_case.h"

typedef struct {
    tsr_score_args args;
    int64_t *words; /* loss, then words, then the flag */
} on_device;

static on_device copy(const score_run *r, void *h, tsr_frozen w)
{
    int64_t zeros[TSR_SCORE_WORDS + 2] = {0}, rows = r->args.rows, d = r->args.d;
    on_device out = {.args = r->args, .words = cuda_copy(zeros, sizeof zeros)};
    out.args.h = h;
    out.args.w = w;
    out.args.margin = cuda_copy(r->margin, (uint64_t)rows / 2 * sizeof(float));
    out.args.tie = cuda_copy(r->tie, (uint64_t)rows / 2 * sizeof(int32_t));
    out.args.reward = cuda_copy(NULL, (uint64_t)rows * sizeof(double));
    out.args.slope = cuda_copy(NULL, (uint64_t)rows * sizeof(double));
    out.args.dh = cuda_copy(NULL, (uint64_t)(rows * d) * sizeof(float));
    out.args.dw = cuda_copy(NULL, (uint64_t)d * sizeof(float));
    out.args.loss = out.words;
    out.args.words = out.words + 1;
    out.args.loss_overflow = (int32_t *)(out.words + 1 + TSR_SCORE_WORDS);
    return out;
}

static void expect_word(const char *what, int64_t got, int64_t want)
{
    if (llabs(got - want) > 8 + llabs(want) / 1000000000)
        fail_msg("%s: %.12g, want %.12g", what, ldexp((double)got, -TSR_LOSS_SHIFT),
                 ldexp((double)want, -TSR_LOSS_SHIFT));
}

static void compare(const score_run *r, const on_device *device)
{
    int64_t words[TSR_SCORE_WORDS + 2], rows = r->args.rows, d = r->args.d;
    cuda_read(words, device->words, sizeof words);
    expect_word("loss", words[0], r->loss);
    for (int w = 0; w < TSR_SCORE_WORDS; w++)
        expect_word("word", words[1 + w], r->words[w]);
    assert_int_equal((int32_t)words[1 + TSR_SCORE_WORDS], r->overflow);
    double tolerance = r->args.dtype == TSR_F32 ? 1e-6 : r->args.dtype == TSR_BF16 ? 5e-3 : 1e-3;
    cuda_expect("dh", device->args.dh, r->dh, rows * d, device->args.dtype, tolerance, 1e-30);
    cuda_expect("dw", device->args.dw, r->dw, d, TSR_F32, 1e-6, 1e-30);
}

static void one(int64_t rows, int64_t d, tsr_dtype dtype, tsr_dtype of_w)
{
    score_run r;
    score_begin(&r, rows, d, 0.1);
    void *h = cuda_values(r.h, rows * d, dtype);
    tsr_frozen w = {cuda_values(r.w, d, of_w), of_w};
    RUN(tsr_score_ref(&r.args, rig.pool));
    r.args.dtype = dtype;
    on_device first = copy(&r, h, w), second = copy(&r, h, w), alone = copy(&r, h, w);
    alone.args.dh = NULL;
    alone.args.dw = NULL;
    RUN(rig.kernels->score(rig.stream, &first.args));
    RUN(rig.kernels->score(rig.stream, &alone.args));
    second.args.dh = h;
    RUN(rig.kernels->score(rig.stream, &second.args));
    compare(&r, &first);
    compare(&r, &second);
    int64_t words[3][TSR_SCORE_WORDS + 2];
    cuda_read(words[0], first.words, sizeof words[0]);
    cuda_read(words[1], second.words, sizeof words[1]);
    cuda_read(words[2], alone.words, sizeof words[2]);
    assert_memory_equal(words[0], words[1], sizeof words[0]);
    assert_memory_equal(words[0], words[2], sizeof words[0]);
    float *a = cuda_floats(first.args.dw, d, TSR_F32), *b = cuda_floats(second.args.dw, d, TSR_F32);
    assert_memory_equal(a, b, (size_t)d * sizeof *a);
    free(a), free(b);
    score_end(&r);
    cuda_free_all();
}

static void scores(void **state)
{
    static const int64_t shapes[][2] = {{2, 1}, {2, 4096}, {8, 100}, {66, 257}, {600, 64}};
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16};
    (void)state;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int t = 0; t < 3; t++) {
            if (cuda_turn())
                one(shapes[s][0], shapes[s][1], dtypes[t], TSR_F32);
            if (cuda_turn())
                one(shapes[s][0], shapes[s][1], dtypes[t], TSR_BF16);
        }
}

static void what_is_not_finite(void **state)
{
    (void)state;
    score_run r;
    score_begin(&r, 8, 50, 0);
    r.h[77] = NAN;
    on_device d = copy(&r, cuda_values(r.h, 400, TSR_F32),
                       (tsr_frozen){cuda_values(r.w, 50, TSR_F32), TSR_F32});
    RUN(rig.kernels->score(rig.stream, &d.args));
    int64_t words[TSR_SCORE_WORDS + 2];
    cuda_read(words, d.words, sizeof words);
    for (int w = 0; w <= TSR_SCORE_WORDS; w++)
        assert_int_equal(words[w], 0);
    assert_int_equal((int32_t)words[1 + TSR_SCORE_WORDS], 1);
    float *dh = cuda_floats(d.args.dh, 400, TSR_F32);
    for (int i = 0; i < 400; i++)
        assert_true(dh[i] == 0);
    free(dh);
    score_end(&r);
    cuda_free_all();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(scores),
                                       cmocka_unit_test(what_is_not_finite)};
    return cmocka_run_group_tests(tests, cuda_setup, cuda_teardown);
}
