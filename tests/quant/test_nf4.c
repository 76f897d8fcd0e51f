/*
 * NF4 against bitsandbytes' results (golden nf4_dq, 44 cases) and by properties. No tolerance but
 * one: our own offset may differ from the stored one by one ulp (bitsandbytes sums in fp32).
 */
#include "base/dtype.h"
#include "quant/nf4.h"

#include "support/golden_plain.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define GOLDEN TSR_SOURCE_DIR "/tests/golden/nf4_dq"

/* A tensor of the case, NULL if absent; *count elements. Freed by the caller. */
static void *get(const golden_file *file, const char *name, const char *what, uint64_t *bytes,
                 tsr_dtype *dtype)
{
    char key[128];
    snprintf(key, sizeof key, "%s.%s", name, what);
    golden_tensor t = golden_find(file, key);
    if (!t.data)
        return NULL;
    if (dtype)
        assert_true(tsr_dtype_parse(dtype, t.dtype));
    return golden_copy(file, key, bytes);
}

static void check_bytes(const char *name, const char *what, const void *found, const void *expected,
                        uint64_t bytes)
{
    const uint8_t *a = found, *b = expected;
    for (uint64_t i = 0; i < bytes; i++)
        if (a[i] != b[i])
            fail_msg("%s.%s: byte %llu is %02x, expected %02x", name, what, (unsigned long long)i,
                     a[i], b[i]);
}

static void check_codes(const golden_file *file, const char *name, uint64_t *count)
{
    tsr_dtype dtype;
    uint64_t bytes = 0, code_bytes = 0, absmax_bytes = 0;
    void *input = get(file, name, "input", &bytes, &dtype);
    *count = bytes / tsr_dtype_bytes(dtype);
    uint8_t *expected = get(file, name, "codes_rule", &code_bytes, NULL);
    if (!expected)
        expected = get(file, name, "codes", &code_bytes, NULL);
    float *absmax_expected = get(file, name, "absmax_f32", &absmax_bytes, NULL);
    assert_int_equal(code_bytes, (*count + 1) / 2);
    uint8_t *codes = malloc(code_bytes);
    float *absmax = malloc(absmax_bytes);
    assert_int_equal(tsr_nf4_quantize(codes, absmax, input, dtype, *count), TSR_OK);
    check_bytes(name, "codes", codes, expected, code_bytes);
    for (uint64_t i = 0; i < absmax_bytes / 4; i++) /* bitsandbytes' CPU stores 1e-38 for zeros */
        if (absmax[i] != absmax_expected[i] && !(absmax[i] == 0 && absmax_expected[i] == 1e-38f))
            fail_msg("%s.absmax_f32[%llu]: %a, expected %a", name, (unsigned long long)i,
                     (double)absmax[i], (double)absmax_expected[i]);
    free(input), free(expected), free(absmax_expected), free(codes), free(absmax);
}

static int64_t ulps(float a, float b)
{
    int32_t x, y;
    memcpy(&x, &a, 4);
    memcpy(&y, &b, 4);
    return llabs((int64_t)x - y);
}

static void check_nested(const golden_file *file, const char *name)
{
    uint64_t bytes = 0, blocks;
    float *absmax = get(file, name, "absmax_f32", &bytes, NULL);
    blocks = bytes / 4;
    float *nested = get(file, name, "nested_absmax", &bytes, NULL);
    float *offset = get(file, name, "nested_offset", NULL, NULL);
    uint8_t *expected = get(file, name, "absmax_nearest", NULL, NULL);
    uint8_t *stored = get(file, name, "absmax", NULL, NULL);
    float *decoded = get(file, name, "absmax_decoded", NULL, NULL);
    uint8_t *q = malloc(blocks);
    float *own_nested = malloc(bytes), *out = malloc(4 * blocks), own_offset;
    tsr_nf4_nest_absmax(q, own_nested, absmax, blocks, 0, blocks, *offset);
    check_bytes(name, "absmax codes", q, expected ? expected : stored, blocks);
    check_bytes(name, "nested_absmax", own_nested, nested, bytes);
    tsr_nf4_scales scales = {.nested = true, .offset = *offset, .nested_absmax = nested};
    tsr_nf4_decode_absmax(out, stored, 0, blocks, &scales);
    check_bytes(name, "absmax_decoded", out, decoded, 4 * blocks);
    assert_int_equal(tsr_nf4_quantize_absmax(q, own_nested, &own_offset, absmax, blocks, 0, blocks),
                     TSR_OK);
    if (ulps(own_offset, *offset) > 1)
        fail_msg("%s: offset %a, stored %a", name, (double)own_offset, (double)*offset);
    free(absmax), free(nested), free(offset), free(expected), free(stored), free(decoded);
    free(q), free(own_nested), free(out);
}

static int check_outputs(const golden_file *file, const char *name, bool nested, uint64_t count)
{
    static const char *const label[] = {"out_f32", "out_bf16", "out_f16"};
    static const tsr_dtype dtype[] = {TSR_F32, TSR_BF16, TSR_F16};
    tsr_nf4_scales scales = {.nested = nested};
    uint8_t *codes = get(file, name, "codes", NULL, NULL);
    void *absmax = get(file, name, nested ? "absmax" : "absmax_f32", NULL, NULL);
    float *nested_absmax = get(file, name, "nested_absmax", NULL, NULL);
    float *offset = get(file, name, "nested_offset", NULL, NULL);
    scales.nested_absmax = nested_absmax;
    scales.offset = offset ? *offset : 0;
    tsr_nf4_view view = {codes, absmax, &scales};
    int checked = 0;
    for (int k = 0; k < 3; k++) {
        uint64_t bytes;
        void *expected = get(file, name, label[k], &bytes, NULL);
        if (!expected)
            continue;
        char *out = malloc(bytes);
        /* In two pieces that meet inside a block. */
        uint64_t cut = count * 3 / 7, width = tsr_dtype_bytes(dtype[k]);
        assert_int_equal(tsr_nf4_dequantize(out, dtype[k], &view, 0, cut, NULL, 0), TSR_OK);
        assert_int_equal(
            tsr_nf4_dequantize(out + cut * width, dtype[k], &view, cut, count - cut, NULL, 0),
            TSR_OK);
        check_bytes(name, label[k], out, expected, bytes);
        free(expected), free(out);
        checked++;
    }
    free(codes), free(absmax), free(nested_absmax), free(offset);
    return checked;
}

static void test_bitsandbytes_cases(void **state)
{
    (void)state;
    golden_file file = golden_open(GOLDEN ".safetensors");
    json_t *table = golden_json(GOLDEN ".json"), *entry;
    size_t index, outputs = 0;
    json_array_foreach(json_object_get(table, "cases"), index, entry)
    {
        const char *name = json_string_value(json_object_get(entry, "name"));
        bool nested = json_is_true(json_object_get(entry, "double_quantization"));
        uint64_t count;
        check_codes(&file, name, &count);
        if (nested)
            check_nested(&file, name);
        outputs += (size_t)check_outputs(&file, name, nested, count);
    }
    assert_int_equal(index, 44);
    assert_true(outputs > 100);
    json_decref(table);
    golden_close(&file);
}

static void test_constants(void **state)
{
    (void)state;
    golden_file file = golden_open(GOLDEN ".safetensors");
    uint64_t bytes;
    float *levels = golden_copy(&file, "quant_map", &bytes);
    assert_int_equal(bytes, sizeof tsr_nf4_level);
    check_bytes("quant_map", "", tsr_nf4_level, levels, bytes);
    float *map = golden_copy(&file, "nested_quant_map", &bytes);
    assert_int_equal(bytes, sizeof tsr_nf4_nested_map);
    check_bytes("nested_quant_map", "", tsr_nf4_nested_map, map, bytes);
    for (int i = 0; i < 15; i++)
        assert_true(tsr_nf4_threshold[i] == (levels[i] + levels[i + 1]) / 2);
    free(levels), free(map);
    golden_close(&file);
}

static void test_zero_and_odd(void **state)
{
    (void)state;
    float x[65] = {0}, absmax[2];
    uint8_t codes[33];
    x[64] = -2;
    assert_int_equal(tsr_nf4_quantize(codes, absmax, x, TSR_F32, 65), TSR_OK);
    for (int i = 0; i < 32; i++)
        assert_int_equal(codes[i], 0x77);
    assert_int_equal(codes[32], 0x07); /* -2 is code 0, high; the missing element code 7, low */
    assert_true(absmax[0] == 0 && absmax[1] == 2);
}

static void test_not_finite(void **state)
{
    (void)state;
    float absmax[4], nested[1], offset;
    uint8_t codes[128], q[4];
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int k = 0; k < 3; k++) {
        float x[200] = {0};
        x[131] = bad[k];
        assert_int_equal(tsr_nf4_quantize(codes, absmax, x, TSR_F32, 200), TSR_EDATA);
        assert_non_null(strstr(tsr_last_error(), "element 131 "));
        float scale[4] = {1, 2, fabsf(bad[k]), 3};
        assert_int_equal(tsr_nf4_quantize_absmax(q, nested, &offset, scale, 4, 0, 4), TSR_EDATA);
        assert_non_null(strstr(tsr_last_error(), "elements 128 to 191"));
    }
    assert_int_equal(tsr_nf4_quantize(codes, absmax, bad, TSR_I32, 3), TSR_EINVAL);
}

/* Nearest by brute force: every code, the lower one on a tie of midpoints. */
static void test_nearest_by_brute_force(void **state)
{
    (void)state;
    enum { blocks = 700 };
    static float absmax[blocks];
    uint32_t seed = 12345;
    for (int i = 0; i < blocks; i++) {
        seed = seed * 1664525u + 1013904223u;
        absmax[i] = (float)(seed >> 8) * 0x1p-24f * (i % 5 ? 0.1f : 3);
    }
    uint8_t q[blocks];
    float nested[3], offset;
    assert_int_equal(tsr_nf4_quantize_absmax(q, nested, &offset, absmax, blocks, 0, blocks),
                     TSR_OK);
    for (int i = 0; i < blocks; i++) {
        float v = (absmax[i] - offset) * (1.0f / nested[i / 256]);
        int best = 0;
        for (int c = 1; c < 256; c++)
            if (v > (tsr_nf4_nested_map[c - 1] + tsr_nf4_nested_map[c]) / 2)
                best = c;
        assert_int_equal(q[i], best);
    }
    /* A slice of the codes is the same as the whole. */
    uint8_t part[blocks];
    float nested_again[3], offset_again;
    assert_int_equal(
        tsr_nf4_quantize_absmax(part, nested_again, &offset_again, absmax, blocks, 240, 300),
        TSR_OK);
    assert_memory_equal(part, q + 240, 300);
    assert_memory_equal(nested_again, nested, sizeof nested);
}

static void test_row_factor(void **state)
{
    (void)state;
    float x[6 * 50], absmax[5], factor[6], plain[6 * 50];
    uint16_t out[6 * 50];
    uint8_t codes[150];
    for (int i = 0; i < 300; i++)
        x[i] = sinf((float)i * 1.7f);
    for (int r = 0; r < 6; r++)
        factor[r] = 0.9f + 0.037f * (float)r;
    assert_int_equal(tsr_nf4_quantize(codes, absmax, x, TSR_F32, 300), TSR_OK);
    tsr_nf4_scales scales = {.nested = false};
    tsr_nf4_view view = {codes, absmax, &scales};
    assert_int_equal(tsr_nf4_dequantize(plain, TSR_F32, &view, 0, 300, NULL, 0), TSR_OK);
    assert_int_equal(tsr_nf4_dequantize(out, TSR_BF16, &view, 20, 280, factor, 50), TSR_OK);
    for (int i = 20; i < 300; i++)
        assert_int_equal(out[i - 20], tsr_f32_to_bf16(plain[i] * factor[i / 50]));
    assert_int_equal(tsr_nf4_dequantize(out, TSR_BF16, &view, 0, 1, factor, 0), TSR_EINVAL);
    assert_int_equal(tsr_nf4_dequantize(out, TSR_U8, &view, 0, 1, NULL, 0), TSR_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_constants),
        cmocka_unit_test(test_bitsandbytes_cases),
        cmocka_unit_test(test_zero_and_odd),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_nearest_by_brute_force),
        cmocka_unit_test(test_row_factor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
