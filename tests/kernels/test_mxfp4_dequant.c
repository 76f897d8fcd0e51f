/*
 * test_mxfp4_dequant.c: MXFP4 to fp32 against the format written down element by element: matrices that fill their
 * granules and that do not, any range of a stack, rows by turns, every scale. The same bits.
 */
#include "kernels/mxfp4_dequant.h"

#include "kernels/kernel_test.h"

static tsr_status run(void *context, tsr_pool *pool)
{
    return tsr_mxfp4_dequant_ref(context, pool);
}

static float value_of(uint8_t code, uint8_t scale)
{
    static const double level[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    double value = ldexp(level[code & 7], scale - 127);
    return (float)(code & 8 ? -value : value);
}

static void one_case(int64_t matrices, int64_t rows, int64_t columns, bool by_turns)
{
    int64_t granules = (rows * columns + 1023) / 1024, all = matrices * granules;
    uint8_t *codes = malloc((size_t)all * 512 + 1), *scales = malloc((size_t)all * 32 + 1);
    assert_true(codes && scales);
    for (int64_t i = 0; i < all * 512; i++)
        codes[i] = (uint8_t)tsr_mix((uint64_t)i);
    for (int64_t i = 0; i < all * 32; i++)
        scales[i] = (uint8_t)(tsr_mix((uint64_t)i + 5) % 255);
    for (int64_t first = 0; first <= matrices; first += 1 + first / 2) {
        int64_t count = (matrices - first + 1) / (1 + first % 2), each = rows * columns;
        count = first + count > matrices ? matrices - first : count;
        float *out = new_floats(count * each);
        tsr_mxfp4_dequant_args args = {out,  codes,   scales,   first,  count,
                                       rows, columns, by_turns, TSR_F32};
        run_on_pools(run, &args, out, count * each);
        for (int64_t i = 0; i < count * each; i++) {
            int64_t matrix = i / each, row = i % each / columns, x = i % columns;
            int64_t from = by_turns ? row % (rows / 2) * 2 + row / (rows / 2) : row;
            int64_t at = (first + matrix) * granules * 1024 + from * columns + x;
            float want =
                value_of(at % 2 ? codes[at / 2] >> 4 : codes[at / 2] & 15, scales[at / 32]);
            assert_memory_equal(&out[i], &want, sizeof want);
        }
        free(out);
    }
    free(codes), free(scales);
}

static void shapes_match_the_format(void **state)
{
    (void)state;
    one_case(0, 4, 32, false);
    one_case(3, 0, 32, false);
    one_case(1, 1, 32, false);
    one_case(3, 6, 96, true);
    one_case(4, 7, 160, false);
    one_case(2, 32, 32, true);
    one_case(2, 64, 64, false);
    one_case(2, 300, 2880, true);
}

static void bad_arguments_are_refused(void **state)
{
    (void)state;
    float out[64];
    uint8_t codes[512] = {0}, scales[32] = {0};
    const tsr_mxfp4_dequant_args good = {out, codes, scales, 0, 1, 2, 32, false, TSR_F32};
    tsr_mxfp4_dequant_args args = good;
    assert_int_equal(tsr_mxfp4_dequant_ref(&args, test_pool(0)), TSR_OK);
    args.columns = 33;
    assert_int_equal(tsr_mxfp4_dequant_ref(&args, test_pool(0)), TSR_EINVAL);
    args = good, args.rows = 1, args.by_turns = true;
    assert_int_equal(tsr_mxfp4_dequant_ref(&args, test_pool(0)), TSR_EINVAL);
    args = good, args.scales = NULL;
    assert_int_equal(tsr_mxfp4_dequant_ref(&args, test_pool(0)), TSR_EINVAL);
    args = good, args.first = -1;
    assert_int_equal(tsr_mxfp4_dequant_ref(&args, test_pool(0)), TSR_EINVAL);
    args = good, args.dtype = TSR_BF16;
    assert_int_equal(tsr_mxfp4_dequant_ref(&args, test_pool(0)), TSR_EUNSUPPORTED);
    args = good, args.dtype = TSR_U8;
    assert_int_equal(tsr_mxfp4_dequant_ref(&args, test_pool(0)), TSR_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_match_the_format),
        cmocka_unit_test(bad_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, pools_teardown);
}
