/*
 * test_fp8_blocks.c: weights in e4m3 with a scale for each block of 128 x 128 as the BF16 tensors that torch makes of them
 * (tests/golden/fp8_blocks.safetensors, tools/make_fp8_golden.py), whole and in any part; and files that are refused.
 */
#include "base/philox.h"
#include "io/checkpoint.h"
#include "io/fp8_blocks.h"
#include "support/scratch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GOLDEN TSR_SOURCE_DIR "/tests/golden/fp8_blocks.safetensors"

/* ---- against torch ---- */

/* The golden file as a checkpoint. */
static tsr_checkpoint *open_golden(void)
{
    tsr_checkpoint *checkpoint;
    uint64_t bytes;
    char *data = read_whole(&bytes, GOLDEN);
    write_bytes(scratch_path("model.safetensors"), data, bytes);
    free(data);
    if (tsr_checkpoint_open(&checkpoint, scratch_path("")) < 0)
        fail_msg("%s", tsr_last_error());
    return checkpoint;
}

static void check_parts(const tsr_tensor *view, const uint16_t *want)
{
    uint64_t count = view->element_count;
    uint16_t *got = malloc(count * sizeof *got);
    float *wide = malloc(count * sizeof *wide);
    assert_true(got && wide);
    for (uint64_t i = 0; i < 200; i++) {
        uint64_t first = i ? tsr_mix(2 * i) % count : 0;
        uint64_t some = i ? 1 + tsr_mix(2 * i + 1) % (count - first) : count;
        assert_int_equal(tsr_safetensors_read(got, view, 2 * first, 2 * some), TSR_OK);
        assert_memory_equal(got, want + first, some * sizeof *got);
        assert_int_equal(tsr_safetensors_read_f32(wide, view, first, some), TSR_OK);
        for (uint64_t j = 0; j < some; j++)
            assert_true(wide[j] == tsr_bf16_to_f32(want[first + j]));
    }
    assert_int_equal(tsr_safetensors_read(got, view, 1, 2), TSR_EINVAL);
    assert_int_equal(tsr_safetensors_read(got, view, 0, view->bytes + 2), TSR_EINVAL);
    free(got);
    free(wide);
}

static void test_values(void **state)
{
    static const char *const names[] = {"ragged", "tall", "small"};
    (void)state;
    tsr_checkpoint *checkpoint = open_golden();
    assert_int_equal(tsr_checkpoint_count(checkpoint), 6); /* scales are no tensors of their own */
    for (int i = 0; i < 3; i++) {
        char name[64];
        tsr_weight weight;
        snprintf(name, sizeof name, "%s.bf16", names[i]);
        const tsr_tensor *want = tsr_checkpoint_find(checkpoint, name);
        snprintf(name, sizeof name, "%s.weight", names[i]);
        assert_int_equal(tsr_checkpoint_weight(&weight, checkpoint, name), TSR_OK);
        assert_false(weight.prequantized);
        assert_int_equal(weight.dtype, TSR_BF16);
        assert_int_equal(weight.weight->bytes, want->bytes);
        uint16_t *values = malloc(want->bytes);
        assert_non_null(values);
        assert_int_equal(tsr_safetensors_read(values, want, 0, want->bytes), TSR_OK);
        check_parts(weight.weight, values);
        free(values);
    }
    uint64_t hash;
    assert_int_equal(tsr_checkpoint_sample(&hash, checkpoint), TSR_OK);
    tsr_checkpoint_close(checkpoint);
}

/* ---- what is refused ---- */

/* How a file differs from a good one; 0: not at all. */
typedef struct {
    tsr_dtype dtype, scale_dtype;
    uint64_t shape[3], scale_shape[2];
    bool no_scales;
    int code, at; /* of one element */
    float scale;  /* of the second block */
} bad_file;

static void write_bad(const bad_file *f)
{
    static uint8_t codes[2 * 130 * 140];
    float scales[8];
    uint16_t narrow[8];
    uint64_t shape[3] = {130, 140}, scale_shape[2] = {2, 2};
    memset(codes, 0x38, sizeof codes); /* 1 */
    if (f->code)
        codes[f->at] = (uint8_t)f->code;
    for (int i = 0; i < 8; i++) {
        scales[i] = i == 1 && f->scale != 0 ? f->scale : 0.5f;
        narrow[i] = tsr_f32_to_bf16(scales[i]);
    }
    if (f->shape[0])
        memcpy(shape, f->shape, sizeof shape);
    if (f->scale_shape[0])
        memcpy(scale_shape, f->scale_shape, sizeof scale_shape);
    const tsr_tensor_source all[2] = {
        {.name = "a.weight",
         .dtype = f->dtype ? f->dtype : TSR_F8_E4M3,
         .ndim = shape[2] ? 3 : 2,
         .shape = {shape[0], shape[1], shape[2]},
         .data = codes},
        {.name = "a.weight_scale_inv",
         .dtype = f->scale_dtype,
         .ndim = 2,
         .shape = {scale_shape[0], scale_shape[1]},
         .data = f->scale_dtype == TSR_BF16 ? (const void *)narrow : (const void *)scales}};
    if (tsr_safetensors_write(scratch_path("model.safetensors"), all, f->no_scales ? 1 : 2) < 0)
        fail_msg("%s", tsr_last_error());
}

/* Opens it and reads the weight. */
static tsr_status read_bad(const bad_file *f)
{
    static float values[130 * 140];
    tsr_checkpoint *checkpoint;
    tsr_weight weight;
    write_bad(f);
    TSR_TRY(tsr_checkpoint_open(&checkpoint, scratch_path("")));
    tsr_status status = tsr_checkpoint_weight(&weight, checkpoint, "a.weight");
    if (status == TSR_OK)
        status = tsr_safetensors_read_f32(values, weight.weight, 0, 130 * 140);
    tsr_checkpoint_close(checkpoint);
    return status;
}

static void test_refused(void **state)
{
    static const struct {
        const char *what;
        bad_file file;
        const char *words[MOST_WORDS];
    } cases[] = {
        {"no scales", {.no_scales = true}, {"a.weight", "a.weight_scale_inv", "missing"}},
        {"too few scales",
         {.scale_shape = {1, 2}},
         {"a.weight_scale_inv", "[1, 2]", "[2, 2]", "a.weight"}},
        {"too many scales", {.scale_shape = {2, 3}}, {"a.weight_scale_inv", "[2, 3]"}},
        {"scales in I32", {.scale_dtype = TSR_I32}, {"a.weight_scale_inv", "I32", "F32"}},
        {"a stack", {.shape = {1, 130, 140}}, {"a.weight", "[1, 130, 140]"}},
        {"scales of BF16",
         {.dtype = TSR_BF16, .shape = {65, 140}},
         {"a.weight_scale_inv", "BF16", "F8_E4M3"}},
        {"e5m2", {.dtype = TSR_F8_E5M2}, {"a.weight_scale_inv", "F8_E5M2", "F8_E4M3"}},
        {"a code that is no number", {.code = 0x7f, .at = 5}, {"a.weight'", "element 5", "nan"}},
        {"an infinite scale", {.scale = INFINITY}, {"a.weight_scale_inv", "element 1", "inf"}},
        {"a scale that is no number", {.scale = NAN}, {"a.weight_scale_inv", "nan"}},
        {"a product beyond bf16",
         {.code = 0xfe, .at = 135, .scale = 3.3e38f},
         {"a.weight'", "element 135", "-inf"}},
    };
    (void)state;
    const bad_file good = {0};
    if (read_bad(&good) < 0)
        fail_msg("%s", tsr_last_error());
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_error(cases[i].what, read_bad(&cases[i].file), TSR_EDATA, cases[i].words);
}

/* Scales in BF16, which some write. */
static void test_narrow_scales(void **state)
{
    (void)state;
    const bad_file file = {.scale_dtype = TSR_BF16};
    if (read_bad(&file) < 0)
        fail_msg("%s", tsr_last_error());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_values, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_refused, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_narrow_scales, scratch_setup, scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
