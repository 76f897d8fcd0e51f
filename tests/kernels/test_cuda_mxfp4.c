/*
 * test_cuda_mxfp4.c: mxfp4_dequant on a GPU against the C reference: its bits, rounded once to the dtype of the output.
 * Every code and every scale but 255, infinite and subnormal values among them; matrices that pad their granules, any
 * range of a stack, rows by turns. What is around the output stays.
 */
#include "cuda_nf4.h"

#include "kernels/kernels_cuda.h"

static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16};

typedef struct {
    int64_t matrices, rows, columns, first, count;
    bool by_turns;
} mxfp4_case;

static void one_case(const mxfp4_case *c, tsr_dtype dtype)
{
    if (!cuda_turn())
        return;
    int64_t all = c->matrices * tsr_mxfp4_granules(c->rows, c->columns);
    int64_t elements = c->count * c->rows * c->columns;
    uint32_t each = tsr_dtype_bytes(dtype);
    uint8_t *codes = malloc((size_t)all * 512 + 1), *scales = malloc((size_t)all * 32 + 1);
    float *want = new_floats(elements);
    assert_true(codes && scales);
    for (int64_t i = 0; i < all * 512; i++)
        codes[i] = (uint8_t)random_bits((uint64_t)i);
    for (int64_t i = 0; i < all * 32; i++)
        scales[i] = (uint8_t)(random_bits((uint64_t)i + 5) % 255);
    tsr_mxfp4_dequant_args args = {want,    codes,      scales,      c->first, c->count,
                                   c->rows, c->columns, c->by_turns, TSR_F32};
    RUN(tsr_mxfp4_dequant_ref(&args, rig.pool));
    args.codes = cuda_copy(codes, (uint64_t)all * 512);
    args.scales = cuda_copy(scales, (uint64_t)all * 32);
    args.out = new_output(elements, dtype, 0);
    args.dtype = dtype;
    RUN(rig.kernels->mxfp4_dequant(rig.stream, &args));
    uint8_t *got = malloc((size_t)elements * each + GUARD);
    assert_non_null(got);
    cuda_read(got, args.out, (uint64_t)elements * each + GUARD);
    for (int64_t i = 0; i < elements; i++) {
        uint32_t bits = dtype == TSR_F32 ? ((const uint32_t *)(void *)got)[i]
                                         : ((const uint16_t *)(void *)got)[i];
        if (bits != bits_of(want[i], dtype))
            fail_msg("%lld x %lld, %s: [%lld] is 0x%x, want 0x%x (%a)", (long long)c->rows,
                     (long long)c->columns, tsr_dtype_name(dtype), (long long)i, bits,
                     bits_of(want[i], dtype), (double)want[i]);
    }
    for (int i = 0; i < GUARD; i++)
        assert_int_equal(got[(uint64_t)elements * each + (uint64_t)i], 0xff);
    free(got), free(codes), free(scales), free(want);
    cuda_free_all();
}

static void mxfp4_dequant_gives_the_references_bits(void **state)
{
    (void)state;
    static const mxfp4_case cases[] = {
        {1, 1, 32, 0, 1, false},    {3, 6, 96, 1, 2, true},      {4, 7, 160, 3, 1, false},
        {2, 64, 64, 0, 2, true},    {5, 33, 352, 2, 3, false},   {3, 2, 2880, 0, 3, true},
        {2, 128, 2880, 1, 1, true}, {4, 720, 2880, 1, 3, false}, {2, 1, 64, 2, 0, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int d = 0; d < 3; d++)
            one_case(&cases[i], dtypes[d]);
}

static void odd_places_are_refused(void **state)
{
    (void)state;
    uint8_t *codes = cuda_copy(NULL, 1024), *scales = cuda_copy(NULL, 64);
    float *out = cuda_copy(NULL, 1024);
    const tsr_mxfp4_dequant_args good = {out, codes, scales, 0, 1, 1, 32, false, TSR_F32};
    tsr_mxfp4_dequant_args args = good;
    RUN(rig.kernels->mxfp4_dequant(rig.stream, &args));
    args.out = out + 1;
    assert_int_equal(rig.kernels->mxfp4_dequant(rig.stream, &args), TSR_EINVAL);
    args = good, args.codes = codes + 1;
    assert_int_equal(rig.kernels->mxfp4_dequant(rig.stream, &args), TSR_EINVAL);
    args = good, args.columns = 31;
    assert_int_equal(rig.kernels->mxfp4_dequant(rig.stream, &args), TSR_EINVAL);
    args = good, args.count = 65536, args.first = 0;
    assert_int_equal(rig.kernels->mxfp4_dequant(rig.stream, &args), TSR_EUNSUPPORTED);
    cuda_wait();
    cuda_free_all();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mxfp4_dequant_gives_the_references_bits),
        cmocka_unit_test(odd_places_are_refused),
    };
    return cmocka_run_group_tests(tests, cuda_setup, cuda_teardown);
}
