/*
 * test_cuda_low_rank.c: low_rank_backward on a GPU against the C reference: one pass over dy, at every
 * tiling and ragged edge, its bits, and what it leaves to two matmuls.
 */
#include "cuda_case.h"

#define SCALE 1.75f

/* Two runs from scratch that is NaN; the second's bits are the first's. */
static void run_twice(const tsr_low_rank_backward_args *args, output db, output d_low)
{
    uint64_t db_bytes = (uint64_t)db.count * sizeof(float);
    uint64_t low_bytes = (uint64_t)d_low.count * tsr_dtype_bytes(d_low.dtype);
    uint8_t *first = malloc(db_bytes + low_bytes + 1), *again = malloc(db_bytes + low_bytes + 1);
    assert_true(first && again);
    RUN(rig.kernels->low_rank_backward(rig.stream, args));
    cuda_read(first, db.device, db_bytes);
    cuda_read(first + db_bytes, d_low.device, low_bytes);
    if (args->scratch)
        RUN(tsr_stream_fill(rig.stream, args->scratch, 0xff, args->scratch_bytes));
    RUN(tsr_stream_fill(rig.stream, db.device, 0xff, db_bytes));
    RUN(tsr_stream_fill(rig.stream, d_low.device, 0xff, low_bytes));
    RUN(rig.kernels->low_rank_backward(rig.stream, args));
    cuda_read(again, db.device, db_bytes);
    cuda_read(again + db_bytes, d_low.device, low_bytes);
    assert_memory_equal(first, again, db_bytes + low_bytes);
    free(first), free(again);
}

/* `scratch`: as much as one kernel needs, or none. */
static void one_case(int64_t tokens, int64_t out, int64_t r, tsr_dtype dtype, bool scratch)
{
    if (!cuda_turn())
        return;
    uint64_t bytes = scratch ? tsr_low_rank_backward_bytes(dtype, tokens, out, r) : 0;
    input dy = random_input(tokens * out, 1, 1, dtype), low = random_input(tokens * r, 2, 1, dtype);
    input b = random_input(out * r, 3, 1, dtype);
    output db = blank(out * r, TSR_F32), d_low = blank(tokens * r, dtype);
    uint8_t *memory = bytes ? cuda_copy(NULL, bytes + PAD) : NULL;
    float *want_db = want_of(out * r), *want_low = want_of(tokens * r);
    tsr_low_rank_backward_args ref = {.dy = dy.host,
                                      .low = low.host,
                                      .b = b.host,
                                      .db = want_db,
                                      .d_low = want_low,
                                      .tokens = tokens,
                                      .out = out,
                                      .r = r,
                                      .scale = SCALE};
    RUN(tsr_low_rank_backward_ref(&ref, rig.pool));
    tsr_low_rank_backward_args args = {.dy = dy.device,
                                       .low = low.device,
                                       .b = b.device,
                                       .db = db.device,
                                       .d_low = d_low.device,
                                       .scratch = memory,
                                       .scratch_bytes = bytes,
                                       .tokens = tokens,
                                       .out = out,
                                       .r = r,
                                       .scale = SCALE,
                                       .dtype = dtype};
    char what[96];
    snprintf(what, sizeof what, "%lld x %lld, r %lld, %s, %s", (long long)tokens, (long long)out,
             (long long)r, tsr_dtype_name(dtype), bytes ? "one pass" : "two matmuls");
    double tolerance = tolerance_of(tolerance_low_rank, dtype);
    run_twice(&args, db, d_low);
    expect(what, db, want_db, tolerance);
    expect(what, d_low, want_low, tolerance);
    if (memory)
        expect_untouched(what, memory + bytes, PAD);
    end_case();
}

static void one_pass_matches(void **state)
{
    static const int64_t tokens[] = {1, 15, 16, 17, 64, 200, 1031};
    static const int64_t columns[] = {8, 24, 128, 136, 256, 1000, 1024, 2056};
    static const int64_t ranks[] = {8, 16, 24, 32};
    (void)state;
    for (size_t t = 0; t < sizeof tokens / sizeof *tokens; t++)
        for (size_t c = 0; c < sizeof columns / sizeof *columns; c++)
            for (size_t k = 0; k < sizeof ranks / sizeof *ranks; k++)
                one_case(tokens[t], columns[c], ranks[k], TSR_BF16, true);
}

/* Of an 8B model, all tilings of both kernels: columns of a strip of either. */
static void one_pass_matches_at_large_shapes(void **state)
{
    static const struct {
        int64_t tokens, out, r, columns, boxes;
    } large[] = {{8192, 1024, 16, 256, 256},  {8191, 4096, 16, 512, 512},
                 {2048, 14336, 16, 512, 512}, {8191, 14336, 16, 1024, 1024},
                 {4097, 14336, 8, 1024, 512}, {40, 150000, 8, 256, 512},
                 {3001, 1000, 32, 0, 256},    {8191, 4096, 24, 0, 512}};
    (void)state;
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
        int64_t tokens = large[i].tokens, out = large[i].out, r = large[i].r;
        if (large[i].columns)
            assert_int_equal(tsr_low_rank_tiling_make(tokens, out, r).columns, large[i].columns);
        assert_int_equal(tsr_low_rank_boxes_make(tokens, out, r).columns, large[i].boxes);
        one_case(tokens, out, r, TSR_BF16, true);
    }
}

static void the_rest_is_two_matmuls(void **state)
{
    (void)state;
    one_case(200, 256, 16, TSR_BF16, false);
    one_case(200, 256, 40, TSR_BF16, true);
    one_case(200, 256, 12, TSR_BF16, true);
    one_case(200, 100, 16, TSR_BF16, true);
    one_case(200, 256, 16, TSR_F32, true);
    one_case(200, 256, 16, TSR_F16, true);
    one_case(0, 256, 16, TSR_BF16, true);
    one_case(200, 0, 16, TSR_BF16, true);
    shift = 1; /* off the alignment */
    one_case(200, 256, 16, TSR_BF16, true);
    shift = 0;
    tsr_low_rank_backward_args bad = {.tokens = -1, .dtype = TSR_BF16};
    assert_int_equal(rig.kernels->low_rank_backward(rig.stream, &bad), TSR_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_pass_matches),
        cmocka_unit_test(one_pass_matches_at_large_shapes),
        cmocka_unit_test(the_rest_is_two_matmuls),
    };
    return cmocka_run_group_tests(tests, cuda_setup, cuda_teardown);
}
