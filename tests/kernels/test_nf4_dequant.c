/*
 * test_nf4_dequant.c: bit for bit bitsandbytes' dequantization (golden/nf4_dq, every case that has
 * an fp32 result), with nested and with fp32 scales, ragged tails, rows that blocks cross, and the
 * row factor.
 */
#include "kernels/fp8.h"
#include "kernels/fp8_decode.h"
#include "kernels/nf4_dequant.h"
#include "kernels/nf4_merge.h"

#include "kernels/kernel_test.h"
#include "support/golden_plain.h"

#define F32_TOLERANCE 1e-6 /* of the largest element */

static tsr_status run(void *context, tsr_pool *pool)
{
    return tsr_nf4_dequant_ref(context, pool);
}

static void *find(const golden_file *file, const char *name, const char *tensor, uint64_t *bytes)
{
    char key[256];
    snprintf(key, sizeof key, "%s.%s", name, tensor);
    return golden_find(file, key).data ? golden_copy(file, key, bytes) : NULL;
}

/* 1 if the case was compared. */
static int one_case(const golden_file *file, const char *name, const float *level, const float *map)
{
    uint64_t out_bytes = 0;
    float *want = find(file, name, "out_f32", &out_bytes);
    if (!want)
        return 0;
    uint8_t *codes = find(file, name, "codes", NULL), *q = find(file, name, "absmax", NULL);
    float *absmax = find(file, name, "absmax_f32", NULL);
    float *nested = find(file, name, "nested_absmax", NULL);
    float *offset = find(file, name, "nested_offset", NULL);
    int64_t count = (int64_t)(out_bytes / sizeof(float));
    float *out = new_floats(count);
    tsr_nf4_dequant_args args = {.out = out,
                                 .codes = codes,
                                 .absmax = q ? (void *)q : (void *)absmax,
                                 .nested_absmax = nested,
                                 .nested_map = map,
                                 .level = level,
                                 .count = count,
                                 .offset = offset ? *offset : 0,
                                 .nested = q != NULL};
    run_on_pools(run, &args, out, count);
    if (memcmp(out, want, out_bytes) != 0)
        fail_msg("%s differs", name);
    free(want), free(codes), free(q), free(absmax), free(nested), free(offset), free(out);
    return 1;
}

static void every_golden_case(void **state)
{
    (void)state;
    golden_file file = golden_open(TSR_SOURCE_DIR "/tests/golden/nf4_dq.safetensors");
    float *level = golden_copy(&file, "quant_map", NULL);
    float *map = golden_copy(&file, "nested_quant_map", NULL);
    int compared = 0;
    const char *key;
    json_t *entry;
    json_object_foreach(file.header, key, entry)
    {
        const char *end = strstr(key, ".out_f32");
        if (!end)
            continue;
        char name[256];
        snprintf(name, sizeof name, "%.*s", (int)(end - key), key);
        compared += one_case(&file, name, level, map);
    }
    assert_true(compared >= 20);
    free(level), free(map);
    golden_close(&file);
}

static const float levels[16] = {-1.0f, -0.7f, -0.53f, -0.4f, -0.28f, -0.18f, -0.09f, 0,
                                 0.08f, 0.16f, 0.25f,  0.34f, 0.44f,  0.56f,  0.72f,  1};

static void row_factor_is_multiplied_before_rounding(void **state)
{
    (void)state;
    const int64_t columns[] = {1, 7, 48, 64, 100, 128, 704};
    for (size_t c = 0; c < sizeof columns / sizeof *columns; c++) {
        int64_t rows = 33, count = rows * columns[c], blocks = (count + 63) / 64;
        float *absmax = new_gain(blocks, 1), *factor = new_gain(rows, 2), *out = new_floats(count);
        uint8_t *codes = malloc((size_t)(count + 1) / 2);
        for (int64_t i = 0; i < (count + 1) / 2; i++)
            codes[i] = (uint8_t)tsr_mix((uint64_t)i);
        tsr_nf4_dequant_args args = {.out = out,
                                     .codes = codes,
                                     .absmax = absmax,
                                     .level = levels,
                                     .row_factor = factor,
                                     .count = count,
                                     .columns = columns[c]};
        run_on_pools(run, &args, out, count);
        for (int64_t e = 0; e < count; e++) {
            int code = e % 2 ? codes[e / 2] & 15 : codes[e / 2] >> 4;
            volatile float product = levels[code] * absmax[e / 64];
            float want = product * factor[e / columns[c]];
            assert_memory_equal(&want, &out[e], sizeof want);
        }
        free(absmax), free(factor), free(out), free(codes);
    }
}

static tsr_status run_merge(void *context, tsr_pool *pool)
{
    return tsr_nf4_merge_ref(context, pool);
}

/* Row norms of `want` and m / n, with the merged weight and with W apart, which is left in out. */
static void expect_norms(tsr_nf4_merge_args *args, const double *want, float *n, float *g,
                         const float *m)
{
    int64_t columns = args->weight.columns, rows = args->weight.count / columns;
    for (int turn = 0; turn < 3; turn++) {
        args->norms = (tsr_nf4_merge_norms){.n = n, .g = g, .m = turn == 1 ? NULL : m};
        args->apart = turn == 2;
        run_on_pools(run_merge, args, n, rows);
        for (int64_t i = 0; i < rows; i++) {
            double sum = 0;
            for (int64_t j = i * columns; j < (i + 1) * columns; j++)
                sum += want[j] * want[j];
            volatile float gain = args->norms.m ? m[i] / n[i] : 1;
            assert_true(fabs((double)n[i] - sqrt(sum)) <= 1e-6 * sqrt(sum));
            assert_true(g[i] == gain);
        }
    }
}

/* W + s B A against sums in fp64 of the same W, and its norms. */
static void low_rank_parts_are_merged(void **state)
{
    (void)state;
    const int64_t shape[][3] = {{33, 100, 5}, {20, 64, 16}, {3, 7, 1}, {8, 128, 0}};
    for (size_t c = 0; c < sizeof shape / sizeof *shape; c++) {
        int64_t rows = shape[c][0], columns = shape[c][1], r = shape[c][2], count = rows * columns;
        float *absmax = new_gain((count + 63) / 64, 1), *out = new_floats(count);
        float *a = new_random(r * columns, 2, 0.1f), *b = new_random(rows * r, 3, 0.1f);
        double *want = malloc((size_t)count * sizeof *want);
        float *alone = new_floats(count), *n = new_floats(rows), *g = new_floats(rows);
        float *m = new_gain(rows, 4);
        uint8_t *codes = malloc((size_t)(count + 1) / 2);
        assert_true(want && codes);
        for (int64_t i = 0; i < (count + 1) / 2; i++)
            codes[i] = (uint8_t)tsr_mix((uint64_t)i);
        tsr_nf4_merge_args args = {.weight = {.out = out,
                                              .codes = codes,
                                              .absmax = absmax,
                                              .level = levels,
                                              .count = count,
                                              .columns = columns},
                                   .a = a,
                                   .b = b,
                                   .r = r,
                                   .scale = 2.5f};
        assert_int_equal(tsr_nf4_dequant_ref(&args.weight, test_pool(0)), TSR_OK);
        for (int64_t e = 0; e < count; e++) {
            double sum = 0;
            for (int64_t k = 0; k < r; k++)
                sum += (double)b[e / columns * r + k] * (double)a[k * columns + e % columns];
            want[e] = (double)out[e] + 2.5 * sum;
        }
        memcpy(alone, out, (size_t)count * sizeof *out);
        run_on_pools(run_merge, &args, out, count);
        expect_close("merged", out, want, count, F32_TOLERANCE);
        expect_norms(&args, want, n, g, m);
        assert_memory_equal(out, alone, (size_t)count * sizeof *out);
        free(absmax), free(out), free(a), free(b), free(want), free(codes);
        free(alone), free(n), free(g), free(m);
    }
}

/* Norms alone, of the values that fp8_decode's codes and scales stand for, with an infinity in the third row. */
static void norms_alone_are_of_e4m3(void **state)
{
    (void)state;
    const int64_t shape[][3] = {{33, 100, 5}, {20, 64, 16}, {3, 7, 1}, {8, 320, 0}};
    for (size_t c = 0; c < sizeof shape / sizeof *shape; c++) {
        int64_t rows = shape[c][0], columns = shape[c][1], r = shape[c][2], count = rows * columns;
        float *absmax = new_gain((count + 63) / 64, 1), *scale = new_floats(rows);
        float *a = new_random(r * columns, 2, 0.1f), *b = new_random(rows * r, 3, 0.1f);
        float *n = new_floats(rows), *g = new_floats(rows), *m = new_gain(rows, 4);
        uint8_t *codes = malloc((size_t)(count + 1) / 2), *bytes = malloc((size_t)count);
        assert_true(codes && bytes);
        for (int64_t i = 0; i < (count + 1) / 2; i++)
            codes[i] = (uint8_t)tsr_mix((uint64_t)i);
        absmax[0] = 0;
        int64_t bad = (2 * columns + 63) / 64; /* the first block that begins in the third row */
        if (bad * 64 < 3 * columns)
            absmax[bad] = INFINITY;
        tsr_fp8_decode_args decode = {.weight = {.out = bytes,
                                                 .codes = codes,
                                                 .absmax = absmax,
                                                 .level = levels,
                                                 .count = count,
                                                 .columns = columns,
                                                 .dtype = TSR_F8_E4M3},
                                      .scale = scale};
        assert_int_equal(tsr_fp8_decode_ref(&decode, test_pool(0)), TSR_OK);
        tsr_nf4_merge_args args = {.weight = decode.weight,
                                   .a = a,
                                   .b = b,
                                   .r = r,
                                   .scale = 2.5f,
                                   .norms = {.n = n, .g = g, .m = m},
                                   .e4m3_scale = scale};
        args.weight.out = NULL;
        args.weight.dtype = TSR_F32;
        for (int fresh = 0; fresh < 2; fresh++) {
            args.norms.m = fresh ? NULL : m;
            run_on_pools(run_merge, &args, n, rows);
            for (int64_t i = 0; i < rows; i++) {
                double sum = 0;
                for (int64_t j = 0; j < columns; j++) {
                    double x = (double)tsr_e4m3_to_f32(bytes[i * columns + j]) * (double)scale[i];
                    for (int64_t k = 0; k < r; k++)
                        x += 2.5 * (double)b[i * r + k] * (double)a[k * columns + j];
                    sum += x * x;
                }
                volatile float gain = fresh ? 1 : m[i] / n[i];
                assert_true(isnan(sum) ? isnan(n[i])
                                       : fabs((double)n[i] - sqrt(sum)) <= 1e-6 * sqrt(sum));
                assert_true(isnan(gain) ? isnan(g[i]) : g[i] == gain);
                assert_true(i != 2 || isnan(n[i]) || bad * 64 >= 3 * columns);
            }
        }
        free(absmax), free(scale), free(a), free(b), free(n), free(g), free(m);
        free(codes), free(bytes);
    }
}

static void nothing_and_nonsense(void **state)
{
    (void)state;
    tsr_nf4_dequant_args args = {.count = 0};
    assert_int_equal(tsr_nf4_dequant_ref(&args, test_pool(0)), TSR_OK);
    args.count = 1;
    assert_int_equal(tsr_nf4_dequant_ref(&args, test_pool(0)), TSR_EINVAL);
    args.count = -1;
    assert_int_equal(tsr_nf4_dequant_ref(&args, test_pool(0)), TSR_EINVAL);
    tsr_nf4_merge_args merge = {.weight = {.columns = 64}, .r = 8};
    assert_int_equal(tsr_nf4_merge_ref(&merge, test_pool(0)), TSR_OK);
    merge.apart = true;
    assert_int_equal(tsr_nf4_merge_ref(&merge, test_pool(0)), TSR_EINVAL);
    merge.apart = false;
    float some[4] = {1};
    merge.e4m3_scale = some; /* norms that nobody wants */
    assert_int_equal(tsr_nf4_merge_ref(&merge, test_pool(0)), TSR_EINVAL);
    merge.norms = (tsr_nf4_merge_norms){.n = some, .g = some};
    assert_int_equal(tsr_nf4_merge_ref(&merge, test_pool(0)), TSR_OK);
    merge.weight.out = some; /* and a weight with them */
    assert_int_equal(tsr_nf4_merge_ref(&merge, test_pool(0)), TSR_EINVAL);
    merge.e4m3_scale = NULL;
    merge.weight.columns = 0;
    assert_int_equal(tsr_nf4_merge_ref(&merge, test_pool(0)), TSR_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_golden_case),
        cmocka_unit_test(row_factor_is_multiplied_before_rounding),
        cmocka_unit_test(low_rank_parts_are_merged),
        cmocka_unit_test(norms_alone_are_of_e4m3),
        cmocka_unit_test(nothing_and_nonsense),
    };
    return cmocka_run_group_tests(tests, NULL, pools_teardown);
}
