/*
 * test_mxfp4.c: every code with every scale against ldexp; a stack of experts read from files by any cut, its rows by
 * turns, against a second reading of the format; Transformers' values of gpt-oss's tensors, bit for bit; what is refused.
 */
#include "support/scratch.h"

#include "base/philox.h"
#include "io/checkpoint.h"
#include "quant/mxfp4_stack.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GOLDEN TSR_SOURCE_DIR "/tests/golden/families/gpt_oss_mxfp4"

static const double levels[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

static void succeed(tsr_status status)
{
    if (status < 0)
        fail_msg("%s", tsr_last_error());
}

static void expect_words(tsr_status status, tsr_status wanted, const char *const *words)
{
    assert_int_equal(status, wanted);
    for (; *words; words++)
        if (!strstr(tsr_last_error(), *words))
            fail_msg("'%s' is not in: %s", *words, tsr_last_error());
}

/* ---- the format ---- */

static void every_code_with_every_scale(void **state)
{
    (void)state;
    uint8_t codes[16], scale;
    float out[32];
    uint16_t bf16[32], f16[32];
    for (int i = 0; i < 16; i++)
        codes[i] = (uint8_t)(2 * i % 16 + (2 * i + 1) % 16 * 16);
    for (int s = 0; s < 255; s++) {
        scale = (uint8_t)s;
        succeed(tsr_mxfp4_dequantize(out, TSR_F32, codes, &scale, 0, 32));
        succeed(tsr_mxfp4_dequantize(bf16, TSR_BF16, codes, &scale, 0, 32));
        succeed(tsr_mxfp4_dequantize(f16, TSR_F16, codes, &scale, 0, 32));
        for (int i = 0; i < 32; i++) {
            double exact = ldexp(levels[i % 8], s - 127);
            float want = i % 16 < 8 ? (float)exact : -(float)exact;
            assert_memory_equal(&out[i], &want, sizeof want);
            want = tsr_bf16_to_f32(bf16[i]);
            assert_memory_equal(&out[i], &want, sizeof want); /* none is rounded */
            assert_int_equal(f16[i], tsr_f32_to_f16(out[i]));
        }
        float part[3]; /* from the middle of a byte */
        succeed(tsr_mxfp4_dequantize(part, TSR_F32, codes, &scale, 7, 3));
        assert_memory_equal(part, out + 7, sizeof part);
    }
    scale = 255;
    succeed(tsr_mxfp4_dequantize(out, TSR_F32, codes, &scale, 0, 1));
    assert_true(isnan(out[0]));
    assert_int_equal(tsr_mxfp4_dequantize(out, TSR_U8, codes, &scale, 0, 1), TSR_EINVAL);
}

static void what_is_not_finite_is_found(void **state)
{
    (void)state;
    uint8_t codes[4 * 16] = {0}, scales[4] = {0, 252, 254, 252};
    memset(codes, 0x77, 32);      /* 6 everywhere */
    memset(codes + 32, 0x33, 16); /* 1.5 */
    assert_int_equal(tsr_mxfp4_first_bad(codes, scales, 4), 4);
    codes[40] = 0x34; /* a 2 */
    assert_int_equal(tsr_mxfp4_first_bad(codes, scales, 4), 2);
    scales[2] = 253;
    assert_int_equal(tsr_mxfp4_first_bad(codes, scales, 4), 4);
    codes[40] = 0x36; /* a 4 */
    assert_int_equal(tsr_mxfp4_first_bad(codes, scales, 4), 2);
    codes[40] = 0x3d; /* -3 */
    assert_int_equal(tsr_mxfp4_first_bad(codes, scales, 4), 4);
    scales[1] = 255;
    assert_int_equal(tsr_mxfp4_first_bad(codes, scales, 4), 1);
    assert_int_equal(tsr_mxfp4_first_bad(codes, scales, 1), 1);
}

/* ---- stacks ---- */

typedef struct {
    uint64_t experts, out, in;
    int parts;
    uint64_t blocks; /* in all */
    uint8_t *codes, *scales;
    tsr_safetensors *file;
    tsr_mxfp4_stack stack;
} fixture;

static void write_file(const fixture *f)
{
    uint64_t row_blocks = f->in / 32;
    const tsr_tensor_source sources[2] = {{.name = "e.gate_up_proj_blocks",
                                           .dtype = TSR_U8,
                                           .ndim = 4,
                                           .shape = {f->experts, f->out, row_blocks, 16},
                                           .data = f->codes},
                                          {.name = "e.gate_up_proj_scales",
                                           .dtype = TSR_U8,
                                           .ndim = 3,
                                           .shape = {f->experts, f->out, row_blocks},
                                           .data = f->scales}};
    succeed(tsr_safetensors_write(scratch_path("e.safetensors"), sources, 2));
}

static void open_file(fixture *f)
{
    write_file(f);
    succeed(tsr_safetensors_open(&f->file, scratch_path("e.safetensors")));
    succeed(tsr_mxfp4_stack_make(&f->stack, tsr_safetensors_find(f->file, "e.gate_up_proj_blocks"),
                                 tsr_safetensors_find(f->file, "e.gate_up_proj_scales"), f->experts,
                                 f->out, f->in, f->parts));
}

static fixture make_fixture(uint64_t experts, uint64_t out, uint64_t in, int parts)
{
    fixture f = {experts, out, in, parts, experts * out * in / 32, NULL, NULL, NULL, {0}};
    f.codes = malloc(f.blocks * 16);
    f.scales = malloc(f.blocks);
    assert_true(f.codes && f.scales);
    for (uint64_t i = 0; i < f.blocks * 16; i++)
        f.codes[i] = (uint8_t)tsr_mix(i + 3);
    for (uint64_t i = 0; i < f.blocks; i++)
        f.scales[i] = (uint8_t)(tsr_mix(i + 77) % 253);
    open_file(&f);
    return f;
}

static void free_fixture(fixture *f)
{
    tsr_safetensors_close(f->file);
    free(f->codes);
    free(f->scales);
}

/* The whole stack, block by block. */
static void expected(uint8_t *codes, uint8_t *scales, const fixture *f)
{
    uint64_t parts = (uint64_t)f->parts, rows = f->out / parts, row_blocks = f->in / 32;
    uint64_t padded = (rows * row_blocks + 31) / 32 * 32;
    memset(codes, 0, f->experts * parts * padded * 16);
    memset(scales, 0, f->experts * parts * padded);
    for (uint64_t e = 0; e < f->experts; e++)
        for (uint64_t row = 0; row < f->out; row++)
            for (uint64_t b = 0; b < row_blocks; b++) {
                uint64_t from = (e * f->out + row) * row_blocks + b;
                uint64_t to = (e * parts + row % parts) * padded + row / parts * row_blocks + b;
                memcpy(codes + to * 16, f->codes + from * 16, 16);
                scales[to] = f->scales[from];
            }
}

static void any_cut_is_the_same_stack(void **state)
{
    (void)state;
    static const struct {
        uint64_t experts, out, in;
        int parts;
    } shapes[] = {{1, 1, 32, 1},   {3, 6, 96, 2},      {2, 64, 64, 2},     {5, 10, 160, 1},
                  {4, 22, 320, 2}, {2, 1400, 2080, 2}, {1, 1100, 2080, 1}, {2, 2, 1024, 2}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        fixture f = make_fixture(shapes[i].experts, shapes[i].out, shapes[i].in, shapes[i].parts);
        uint64_t all = tsr_mxfp4_stack_granules(&f.stack);
        uint64_t matrix = f.out / (uint64_t)f.parts * f.in;
        assert_int_equal(all, f.experts * (uint64_t)f.parts * ((matrix + 1023) / 1024));
        uint8_t *codes = malloc(all * 512), *scales = malloc(all * 32);
        uint8_t *part = malloc(all * 544 + 1);
        assert_true(codes && scales && part);
        expected(codes, scales, &f);
        for (int cut = 0; cut < 40; cut++) {
            uint64_t first = cut ? tsr_mix((uint64_t)cut) % all : 0;
            uint64_t count = cut ? tsr_mix((uint64_t)cut + 100) % (all - first + 1) : all;
            memset(part, 0xaa, all * 544 + 1);
            succeed(tsr_mxfp4_stack_read(part, part + count * 512, &f.stack, first, count));
            assert_memory_equal(part, codes + first * 512, count * 512);
            assert_memory_equal(part + count * 512, scales + first * 32, count * 32);
            assert_int_equal(part[count * 544], 0xaa);
        }
        assert_int_equal(tsr_mxfp4_stack_read(part, part, &f.stack, all, 1), TSR_EINVAL);
        free(codes), free(scales), free(part);
        free_fixture(&f);
    }
}

/* ---- golden ---- */

static const tsr_tensor *find(const tsr_safetensors *file, const char *what, const char *suffix)
{
    char name[128];
    snprintf(name, sizeof name, "model.layers.0.mlp.experts.%s%s", what, suffix);
    const tsr_tensor *tensor = tsr_safetensors_find(file, name);
    if (!tensor)
        fail_msg("%s is missing", name);
    return tensor;
}

/* Transformers' are [experts, in, out], gate and up in columns by turns. */
static void one_golden(const tsr_safetensors *model, const tsr_safetensors *golden,
                       const char *what, int parts)
{
    const tsr_tensor *want = find(golden, what, "");
    uint64_t experts = want->shape[0], in = want->shape[1], out = want->shape[2];
    uint64_t rows = out / (uint64_t)parts;
    tsr_mxfp4_stack stack;
    succeed(tsr_mxfp4_stack_make(&stack, find(model, what, "_blocks"), find(model, what, "_scales"),
                                 experts, out, in, parts));
    uint64_t all = tsr_mxfp4_stack_granules(&stack);
    uint8_t *codes = malloc(all * 512), *scales = malloc(all * 32);
    uint16_t *got = malloc(all * 2048), *wanted = malloc(want->bytes);
    assert_true(codes && scales && got && wanted);
    succeed(tsr_safetensors_read(wanted, want, 0, want->bytes));
    succeed(tsr_mxfp4_stack_read(codes, scales, &stack, 0, all));
    succeed(tsr_mxfp4_dequantize(got, TSR_BF16, codes, scales, 0, all * 1024));
    for (uint64_t e = 0; e < experts; e++)
        for (uint64_t row = 0; row < out; row++)
            for (uint64_t i = 0; i < in; i++) {
                uint64_t matrix = e * (uint64_t)parts + row % (uint64_t)parts;
                uint64_t at = matrix * stack.granules * 1024 + row / (uint64_t)parts * in + i;
                assert_true(row / (uint64_t)parts < rows);
                assert_int_equal(got[at], wanted[(e * in + i) * out + row]);
            }
    free(codes), free(scales), free(got), free(wanted);
}

static void values_are_transformers(void **state)
{
    (void)state;
    tsr_safetensors *model, *golden;
    succeed(tsr_safetensors_open(&model, GOLDEN "/checkpoint/model.safetensors"));
    succeed(tsr_safetensors_open(&golden, GOLDEN "/dequantized.safetensors"));
    one_golden(model, golden, "gate_up_proj", 2);
    one_golden(model, golden, "down_proj", 1);
    tsr_safetensors_close(model);
    tsr_safetensors_close(golden);
}

/* ---- refusals ---- */

/* A bad block is refused by whoever reads it, with its place in the file, and by nobody else. */
static void bad_blocks_are_refused(void **state)
{
    (void)state;
    fixture f = make_fixture(3, 64, 128, 2);
    uint8_t codes[512 * 24], scales[32 * 24];
    uint64_t block = (2 * 64 + 35) * 4 + 1; /* expert 2, up's row 17 */
    f.scales[block] = 255;
    tsr_safetensors_close(f.file);
    open_file(&f);
    uint64_t granule = 5 * f.stack.granules + (17 * 4 + 1) / 32;
    expect_words(tsr_mxfp4_stack_read(codes, scales, &f.stack, granule, 1), TSR_EDATA,
                 (const char *const[]){"e.safetensors", "'e.gate_up_proj_scales'", "[2, 35, 1]",
                                       "255", NULL});
    expect_words(tsr_mxfp4_stack_read(codes, scales, &f.stack, 0, 24), TSR_EDATA,
                 (const char *const[]){"[2, 35, 1]", NULL});
    succeed(tsr_mxfp4_stack_read(codes, scales, &f.stack, 0, granule));
    succeed(tsr_mxfp4_stack_read(codes, scales, &f.stack, granule + 1, 24 - granule - 1));
    f.scales[block] = 254;
    memset(f.codes + block * 16, 0x07, 16);
    tsr_safetensors_close(f.file);
    open_file(&f);
    expect_words(
        tsr_mxfp4_stack_read(codes, scales, &f.stack, granule, 1), TSR_EDATA,
        (const char *const[]){"'e.gate_up_proj_blocks'", "[2, 35, 1]", "beyond fp32", NULL});
    free_fixture(&f);
}

static void other_tensors_are_refused(void **state)
{
    (void)state;
    fixture f = make_fixture(3, 64, 128, 2);
    const tsr_tensor *blocks = f.stack.blocks, *scales = f.stack.scales;
    tsr_mxfp4_stack s;
    tsr_tensor other = *scales;
    expect_words(tsr_mxfp4_stack_make(&s, blocks, scales, 4, 64, 128, 2), TSR_EDATA,
                 (const char *const[]){"e.safetensors", "'e.gate_up_proj_blocks'", "3, 64, 4, 16",
                                       "4, 64, 4, 16", NULL});
    expect_words(tsr_mxfp4_stack_make(&s, blocks, blocks, 3, 64, 128, 2), TSR_EDATA,
                 (const char *const[]){"3, 64, 4, 16", "3, 64, 4]", NULL});
    other.dtype = TSR_BF16;
    expect_words(tsr_mxfp4_stack_make(&s, blocks, &other, 3, 64, 128, 2), TSR_EDATA,
                 (const char *const[]){"'e.gate_up_proj_scales'", "BF16", "U8", NULL});
    assert_int_equal(tsr_mxfp4_stack_make(&s, blocks, scales, 3, 64, 100, 2), TSR_EINVAL);
    assert_int_equal(tsr_mxfp4_stack_make(&s, blocks, scales, 3, 63, 128, 2), TSR_EINVAL);
    assert_int_equal(tsr_mxfp4_stack_make(&s, blocks, scales, 3, 64, 128, 3), TSR_EINVAL);
    free_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_with_every_scale),
        cmocka_unit_test(what_is_not_finite_is_found),
        cmocka_unit_test(any_cut_is_the_same_stack),
        cmocka_unit_test(values_are_transformers),
        cmocka_unit_test(bad_blocks_are_refused),
        cmocka_unit_test(other_tensors_are_refused),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
