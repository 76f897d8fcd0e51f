/*
 * test_cuda_nf4_quantize.c: nf4_quantize and nf4_nest on a GPU give the C references' bytes: values of
 * every dtype and magnitude, on thresholds and beside them, ragged and off their alignment, all inputs
 * of golden/nf4_dq; the first value that is not finite is named. No tolerance.
 */
#include "cuda_test.h"

#include "kernels/nf4_values.h"

#define GUARD 64 /* bytes after an output that must stay as they were */

/* ---- nf4_quantize ---- */

/* The bytes of `want`, and the guard behind them. */
static void expect_bytes(const char *what, const void *device, const void *want, int64_t bytes)
{
    uint8_t *raw = malloc((size_t)bytes + GUARD);
    assert_non_null(raw);
    cuda_read(raw, device, (uint64_t)bytes + GUARD);
    for (int64_t i = 0; i < bytes; i++)
        if (raw[i] != ((const uint8_t *)want)[i])
            fail_msg("%s: byte %lld of %lld is %02x, want %02x", what, (long long)i,
                     (long long)bytes, raw[i], ((const uint8_t *)want)[i]);
    for (int i = 0; i < GUARD; i++)
        if (raw[bytes + i] != 0xff)
            fail_msg("%s: byte %d behind the output was written", what, i);
    free(raw);
}

static void *output(int64_t bytes)
{
    return cuda_copy(NULL, (uint64_t)bytes + GUARD);
}

/* offset: elements that values, and bytes that codes are off their alignment. */
static void one_quantize(const char *name, const void *values, tsr_dtype dtype, int64_t count,
                         int offset)
{
    if (!cuda_turn())
        return;
    uint64_t each = tsr_dtype_bytes(dtype);
    int64_t blocks = (count + 63) / 64, bytes = (count + 1) / 2;
    uint8_t *codes = malloc((size_t)bytes);
    float *absmax = new_floats(blocks);
    uint64_t bad = UINT64_MAX;
    assert_non_null(codes);
    tsr_nf4_quantize_args args = {.codes = codes,
                                  .absmax = absmax,
                                  .bad = &bad,
                                  .values = values,
                                  .count = count,
                                  .dtype = dtype};
    RUN(tsr_nf4_quantize_ref(&args, rig.pool));
    char *device = (char *)cuda_copy(NULL, ((uint64_t)count + 8) * each) + (uint32_t)offset * each;
    RUN(tsr_device_write(rig.device, device, values, (uint64_t)count * each));
    args.values = device;
    args.codes = (uint8_t *)output(bytes + 8) + offset;
    args.absmax = output(blocks * 4);
    args.bad = cuda_copy(NULL, sizeof bad);
    RUN(rig.kernels->nf4_quantize(rig.stream, &args));
    char what[160];
    snprintf(what, sizeof what, "nf4_quantize %s, %lld of %s, offset %d", name, (long long)count,
             tsr_dtype_name(dtype), offset);
    expect_bytes(what, args.codes, codes, bytes);
    expect_bytes(what, args.absmax, absmax, blocks * 4);
    cuda_read(&bad, args.bad, sizeof bad);
    assert_true(bad == UINT64_MAX);
    free(codes), free(absmax);
    cuda_free_all();
}

static void nf4_quantize_gives_the_references_bits(void **state)
{
    static const int64_t counts[] = {1,    2,    7,    8,    63,   64,    65,    127,
                                     1023, 4095, 4096, 4097, 8191, 40000, 70003, 1 << 20};
    (void)state;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (tsr_dtype dtype = TSR_F32; dtype <= TSR_F16; dtype++) {
            void *values = nf4_new_values(counts[i], dtype, i);
            one_quantize("random", values, dtype, counts[i], 0);
            if (counts[i] < 10000)
                one_quantize("random", values, dtype, counts[i], 1 + (int)i % 3);
            free(values);
        }
    void *values = nf4_new_values(4096 * 4096, TSR_BF16, 99);
    one_quantize("random", values, TSR_BF16, 4096 * 4096, 0);
    free(values);
}

/* Every bf16 and fp16 value that is finite, beside its neighbours and among others of any size. */
static void nf4_quantize_of_every_narrow_value(void **state)
{
    (void)state;
    for (tsr_dtype dtype = TSR_BF16; dtype <= TSR_F16; dtype++) {
        uint16_t infinity = dtype == TSR_BF16 ? 0x7f80 : 0x7c00, *x = malloc(65536 * 128);
        assert_non_null(x);
        for (uint32_t i = 0; i < 65536; i++)
            x[i] = (uint16_t)((i & infinity) == infinity ? 0 : i);
        for (uint32_t block = 0; block < 1023; block++)
            for (uint32_t i = 0; i < 64; i++) {
                uint16_t bits = (uint16_t)(i ? tsr_mix(64 * block + i) : 64 * block);
                x[65536 + 64 * block + i] = (bits & infinity) == infinity ? 0 : bits;
            }
        one_quantize("every value", x, dtype, 65536 + 64 * 1023, 0);
        free(x);
    }
}

/* The reference's codes are bitsandbytes' (tests/quant): here it and the GPU are given its inputs. */
static void quantize_golden(void *context, const char *name, const nf4_golden *golden)
{
    one_quantize(name, golden->values, golden->dtype, golden->count, 0);
    ++*(int *)context;
}

static void nf4_quantize_of_bitsandbytes_cases(void **state)
{
    int cases = 0;
    (void)state;
    nf4_each_golden(quantize_golden, &cases);
    assert_int_equal(cases, 44);
}

static void nf4_quantize_names_the_first_bad_value(void **state)
{
    enum { count = 100000 };
    static const int64_t at[] = {99999, 70000, 40001, 131, 128, 0};
    (void)state;
    for (tsr_dtype dtype = TSR_F32; dtype <= TSR_F16; dtype++) {
        float *x = new_random(count, 3, 1);
        for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
            uint64_t bad;
            x[at[i]] = i % 3 == 0 ? NAN : i % 3 == 1 ? INFINITY : -INFINITY;
            tsr_nf4_quantize_args args = {.codes = output(count),
                                          .absmax = output(count / 16 + 4),
                                          .bad = cuda_copy(NULL, sizeof bad),
                                          .values = cuda_values(x, count, dtype),
                                          .first = 7,
                                          .count = count,
                                          .dtype = dtype};
            RUN(rig.kernels->nf4_quantize(rig.stream, &args));
            cuda_read(&bad, args.bad, sizeof bad);
            assert_true(bad == (uint64_t)at[i] + 7);
            cuda_free_all();
        }
        free(x);
    }
    RUN(rig.kernels->nf4_quantize(rig.stream, &(tsr_nf4_quantize_args){0}));
}

/* ---- nf4_nest ---- */

static void one_nest(int64_t blocks, int kind, int64_t first, int64_t count)
{
    if (!cuda_turn())
        return;
    int64_t groups = (blocks + 255) / 256;
    float *absmax = nf4_new_absmax(blocks, kind), *nested = new_floats(groups), offset;
    uint8_t *q = malloc((size_t)count + 1);
    assert_non_null(q);
    tsr_nf4_nest_args args = {.q = q,
                              .nested_absmax = nested,
                              .offset = &offset,
                              .absmax = absmax,
                              .map = tsr_nf4_nested_map,
                              .blocks = blocks,
                              .first = first,
                              .count = count};
    RUN(tsr_nf4_nest_ref(&args, rig.pool));
    args.q = output(count);
    args.nested_absmax = output(groups * 4);
    args.offset = output(4);
    args.absmax = cuda_copy(absmax, (uint64_t)blocks * sizeof *absmax);
    args.map = cuda_copy(tsr_nf4_nested_map, sizeof tsr_nf4_nested_map);
    args.scratch = cuda_copy(NULL, TSR_NF4_NEST_WORDS * sizeof *args.scratch);
    RUN(rig.kernels->nf4_nest(rig.stream, &args));
    char what[128];
    snprintf(what, sizeof what, "nf4_nest of %lld scales of kind %d, %lld from %lld",
             (long long)blocks, kind, (long long)count, (long long)first);
    expect_bytes(what, args.offset, &offset, 4);
    expect_bytes(what, args.nested_absmax, nested, groups * 4);
    expect_bytes(what, args.q, q, count);
    free(absmax), free(nested), free(q);
    cuda_free_all();
}

static void nf4_nest_gives_the_references_bits(void **state)
{
    static const int64_t blocks[] = {1, 2, 31, 255, 256, 257, 1000, 2049, 65536, 300001};
    (void)state;
    for (size_t b = 0; b < sizeof blocks / sizeof *blocks; b++)
        for (int kind = 0; kind < NF4_ABSMAX_KINDS; kind++) {
            one_nest(blocks[b], kind, 0, blocks[b]);
            one_nest(blocks[b], kind, blocks[b] / 3, blocks[b] / 2);
        }
    one_nest(14336 * 64, 0, 14336 * 32, 14336 * 16);
    one_nest(7, 0, 7, 0);
    assert_int_equal(rig.kernels->nf4_nest(rig.stream, &(tsr_nf4_nest_args){.blocks = 1}),
                     TSR_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nf4_quantize_gives_the_references_bits),
        cmocka_unit_test(nf4_quantize_of_every_narrow_value),
        cmocka_unit_test(nf4_quantize_of_bitsandbytes_cases),
        cmocka_unit_test(nf4_quantize_names_the_first_bad_value),
        cmocka_unit_test(nf4_nest_gives_the_references_bits),
    };
    return cmocka_run_group_tests(tests, cuda_setup, cuda_teardown);
}
