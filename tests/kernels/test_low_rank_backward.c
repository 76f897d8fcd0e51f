/*
 * test_low_rank_backward.c: the reference against sums in double and against the matmuls that it stands
 * for, bit by bit; and how a GPU cuts it, for any shape.
 */
#include "kernels/low_rank_backward.h"

#include "kernels/gemm.h"
#include "kernels/kernel_test.h"

typedef struct {
    tsr_low_rank_backward_args args;
    int64_t weights, lows;
    float *results; /* db, then d_low */
} fixture;

static tsr_status run(void *context, tsr_pool *pool)
{
    fixture *f = context;
    f->args.db = f->results;
    f->args.d_low = f->results + f->weights;
    return tsr_low_rank_backward_ref(&f->args, pool);
}

static void one_shape(int64_t tokens, int64_t out, int64_t r)
{
    const double scale = 1.75;
    float *dy = new_random(tokens * out, 1, 1), *low = new_random(tokens * r, 2, 1);
    float *b = new_random(out * r, 3, 1);
    fixture f = {.args = {.dy = dy,
                          .low = low,
                          .b = b,
                          .tokens = tokens,
                          .out = out,
                          .r = r,
                          .scale = (float)scale},
                 .weights = out * r,
                 .lows = tokens * r};
    f.results = new_floats(f.weights + f.lows);
    double *db = new_doubles(NULL, f.weights), *d_low = new_doubles(NULL, f.lows);
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t j = 0; j < out; j++)
            for (int64_t k = 0; k < r; k++) {
                double x = scale * (double)dy[t * out + j];
                db[j * r + k] += x * (double)low[t * r + k];
                d_low[t * r + k] += x * (double)b[j * r + k];
            }
    run_on_pools(run, &f, f.results, f.weights + f.lows);
    expect_close("db", f.results, db, f.weights, 2e-6);
    expect_close("d_low", f.results + f.weights, d_low, f.lows, 2e-6);

    tsr_gemm_args product[2];
    float *plain = new_floats(f.weights + f.lows);
    tsr_low_rank_backward_products(product, &f.args);
    product[0].c = plain;
    product[1].c = plain + f.weights;
    for (int i = 0; i < 2; i++)
        assert_int_equal(tsr_gemm_ref(&product[i], test_pool(1)), TSR_OK);
    assert_memory_equal(plain, f.results, (size_t)(f.weights + f.lows) * sizeof(float));
    free(dy), free(low), free(b), free(db), free(d_low), free(plain), free(f.results);
}

static void the_reference_is_right(void **state)
{
    (void)state;
    one_shape(1, 1, 1);
    one_shape(33, 70, 4);
    one_shape(300, 128, 16);
    one_shape(0, 5, 3); /* db is zero */
}

static void bad_arguments_are_refused(void **state)
{
    (void)state;
    float x[4] = {0};
    const tsr_low_rank_backward_args good = {
        .dy = x, .low = x, .b = x, .db = x, .d_low = x, .tokens = 1, .out = 1, .r = 1};
    assert_int_equal(tsr_low_rank_backward_check(&good), TSR_OK);
    tsr_low_rank_backward_args bad = good;
    bad.r = -1;
    assert_int_equal(tsr_low_rank_backward_check(&bad), TSR_EINVAL);
    bad = good;
    bad.d_low = NULL;
    assert_int_equal(tsr_low_rank_backward_check(&bad), TSR_EINVAL);
    bad = good;
    bad.b = NULL;
    assert_int_equal(tsr_low_rank_backward_check(&bad), TSR_EINVAL);
    bad = good;
    bad.dy = NULL;
    assert_int_equal(tsr_low_rank_backward_check(&bad), TSR_EINVAL);
    bad.tokens = 0;
    assert_int_equal(tsr_low_rank_backward_check(&bad), TSR_OK);
    bad = good;
    bad.dtype = TSR_BF16;
    assert_int_equal(tsr_low_rank_backward_ref(&bad, test_pool(0)), TSR_EUNSUPPORTED);
}

/* Every token and column is in one block, none is empty, and the partial sums fit into what was said. */
static void expect_cover(const tsr_low_rank_tiling *t, int64_t tokens, int64_t out, int64_t r)
{
    uint64_t sums = (uint64_t)(4 * r * (t->splits * out + t->strips * tokens));
    assert_true(t->strips * t->columns >= out && (t->strips - 1) * t->columns < out);
    assert_true(t->splits * t->chunk >= tokens && (t->splits - 1) * t->chunk < tokens);
    assert_true(tsr_low_rank_backward_bytes(TSR_BF16, tokens, out, r) >= sums);
}

static void the_tilings_cover_any_shape(void **state)
{
    static const int64_t counts[] = {1, 8, 16, 24, 129, 1000, 1024, 4096, 8192, 14336, 300000};
    const int n = sizeof counts / sizeof *counts;
    (void)state;
    for (int i = 0; i < n * n * 4; i++) {
        int64_t tokens = counts[i / 4 / n],
                out = counts[i / 4 % n] + 7 - (counts[i / 4 % n] + 7) % 8;
        int64_t r = 8 * (i % 4 + 1);
        tsr_low_rank_tiling t = tsr_low_rank_boxes_make(tokens, out, r);
        int64_t pieces = t.columns / TSR_LOW_RANK_PIECE;
        expect_cover(&t, tokens, out, r);
        assert_true(t.columns == pieces * TSR_LOW_RANK_PIECE);
        assert_true(pieces == 1 || pieces == 2 || (pieces == 4 && r <= TSR_LOW_RANK_MMA));
        assert_int_equal(t.chunk % TSR_LOW_RANK_TURN, 0);
        if (r > TSR_LOW_RANK_MMA)
            continue;
        t = tsr_low_rank_tiling_make(tokens, out, r);
        int64_t warps = t.columns / TSR_LOW_RANK_STRIP;
        expect_cover(&t, tokens, out, r);
        assert_true(t.columns == warps * TSR_LOW_RANK_STRIP && TSR_LOW_RANK_WARPS % warps == 0);
        assert_int_equal(t.chunk % (TSR_LOW_RANK_WARPS / warps * TSR_LOW_RANK_TILE), 0);
    }
}

static void one_kernel_is_for_some(void **state)
{
    (void)state;
    assert_int_equal(tsr_low_rank_backward_bytes(TSR_F32, 64, 64, 16), 0);
    assert_int_equal(tsr_low_rank_backward_bytes(TSR_BF16, 64, 60, 16), 0);
    assert_int_equal(tsr_low_rank_backward_bytes(TSR_BF16, 64, 64, 12), 0);
    assert_int_equal(tsr_low_rank_backward_bytes(TSR_BF16, 64, 64, 40), 0);
    assert_int_equal(tsr_low_rank_backward_bytes(TSR_BF16, 0, 64, 16), 0);
    tsr_low_rank_backward_args args = {.tokens = 64, .out = 64, .r = 16, .dtype = TSR_BF16};
    args.scratch_bytes = tsr_low_rank_backward_bytes(TSR_BF16, 64, 64, 16);
    assert_true(tsr_low_rank_backward_fused(&args));
    args.scratch_bytes--;
    assert_false(tsr_low_rank_backward_fused(&args));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_reference_is_right),
        cmocka_unit_test(bad_arguments_are_refused),
        cmocka_unit_test(the_tilings_cover_any_shape),
        cmocka_unit_test(one_kernel_is_for_some),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
