/*
 * A weight packed as bitsandbytes stores it and read back: against the plain functions of quant/nf4.h
 * over the whole weight at once, for shapes with ragged blocks, rows that share blocks, and more than
 * one chunk; all dtypes; with and without double quantization. Exact.
 */
#include "support/scratch.h"

#include "base/philox.h"
#include "quant/nf4_pack.h"
#include "quant/nf4_stored.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tsr_device *device;

static int setup(void **state)
{
    (void)state;
    scratch_make();
    return tsr_device_create_cpu(&device, &(tsr_device_options){.thread_count = 2});
}

static int teardown(void **state)
{
    (void)state;
    tsr_device_destroy(device);
    scratch_remove();
    return 0;
}

static void succeed(tsr_status status)
{
    if (status < 0)
        fail_msg("%s", tsr_last_error());
}

/* About normal; a block of zeros at the start. */
static void *random_values(uint64_t count, tsr_dtype dtype)
{
    char *out = malloc(count * 4);
    assert_non_null(out);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t bits = tsr_mix(i + 17);
        float value =
            i < 64 ? 0 : ((float)(bits & 0xffff) + (float)(bits >> 48)) * 0x1p-20f - 0.0625f;
        if (dtype == TSR_F32)
            ((float *)(void *)out)[i] = value;
        else
            ((uint16_t *)(void *)out)[i] =
                dtype == TSR_BF16 ? tsr_f32_to_bf16(value) : tsr_f32_to_f16(value);
    }
    return out;
}

typedef struct {
    tsr_dtype dtype;
    uint64_t rows, columns;
    bool nested;
} shape;

static uint64_t ticked;

static tsr_status tick(void *user, uint64_t bytes)
{
    (void)user;
    ticked += bytes;
    return TSR_OK;
}

/* Writes in.safetensors with two weights and packs both into model.safetensors. */
static void pack(const shape *s, const void *values)
{
    const tsr_tensor_source plain[2] = {
        {.name = "a.weight",
         .dtype = s->dtype,
         .ndim = 2,
         .shape = {s->rows, s->columns},
         .data = values},
        {.name = "b.weight", .dtype = s->dtype, .ndim = 2, .shape = {1, 64}, .data = values}};
    tsr_safetensors *in;
    tsr_nf4_packer *packer;
    const tsr_nf4_packed *packed;
    tsr_tensor_source sources[2 * TSR_NF4_PACKED_TENSORS];
    int count = 0;
    succeed(tsr_safetensors_write(scratch_path("in.safetensors"), plain, 2));
    succeed(tsr_safetensors_open(&in, scratch_path("in.safetensors")));
    const tsr_nf4_pack_options options = {
        .pool = tsr_device_pool(device), .nested = s->nested, .tick = tick};
    succeed(tsr_nf4_packer_create(&packer, &options));
    ticked = 0;
    for (uint64_t i = 0; i < 2; i++) {
        succeed(tsr_nf4_packer_add(&packed, packer, tsr_safetensors_at(in, i)));
        count += tsr_nf4_packed_sources(&sources[count], packed);
    }
    assert_int_equal(count, s->nested ? 12 : 8);
    succeed(tsr_safetensors_write(scratch_path("model.safetensors"), sources, (uint64_t)count));
    uint64_t read = tsr_safetensors_at(in, 0)->bytes + tsr_safetensors_at(in, 1)->bytes;
    assert_int_equal(ticked, (s->nested ? 2 : 3) * read);
    tsr_nf4_packer_destroy(packer);
    tsr_safetensors_close(in);
}

static void check_read(const tsr_weight *stored, const float *expected)
{
    tsr_nf4_stored *reader;
    uint64_t n = stored->element_count;
    float *out = malloc(n * sizeof *out);
    succeed(tsr_nf4_stored_open(&reader, stored));
    succeed(tsr_nf4_stored_read(out, reader, 0, n));
    assert_memory_equal(out, expected, n * sizeof *out);
    /* any range, from the middle of a block and of a byte */
    const uint64_t firsts[] = {1, 63, 64, 65, n / 2, n - 1};
    for (int i = 0; i < 6; i++) {
        uint64_t first = firsts[i] < n ? firsts[i] : n - 1, count = (n - first + 1) / 2;
        memset(out, 0xff, n * sizeof *out);
        succeed(tsr_nf4_stored_read(out, reader, first, count));
        assert_memory_equal(out, expected + first, count * sizeof *out);
    }
    tsr_nf4_stored_close(reader);
    free(out);
}

static void check_shape(const shape *s)
{
    uint64_t n = s->rows * s->columns, blocks = (n + 63) / 64, groups = (blocks + 255) / 256;
    void *values = random_values(n < 64 ? 64 : n, s->dtype);
    uint8_t *codes = malloc(n / 2 + 1), *q = malloc(blocks), *found = malloc(n + 4 * blocks);
    float *absmax = malloc(blocks * 4), *nested = malloc(groups * 4), *expected = malloc(n * 4);
    float offset = 0;
    pack(s, values);
    succeed(tsr_nf4_quantize(codes, absmax, values, s->dtype, n));
    if (s->nested)
        succeed(tsr_nf4_quantize_absmax(q, nested, &offset, absmax, blocks, 0, blocks));
    tsr_checkpoint *checkpoint;
    tsr_weight w;
    succeed(tsr_checkpoint_open(&checkpoint, scratch_path(".")));
    succeed(tsr_checkpoint_weight(&w, checkpoint, "a.weight"));
    assert_true(w.prequantized && w.nested == s->nested && w.dtype == s->dtype && w.ndim == 2);
    assert_int_equal(w.shape[0], s->rows);
    assert_int_equal(w.shape[1], s->columns);
    succeed(tsr_safetensors_read(found, w.weight, 0, w.weight->bytes));
    assert_int_equal(w.weight->bytes, (n + 1) / 2);
    assert_memory_equal(found, codes, (n + 1) / 2);
    succeed(tsr_safetensors_read(found, w.absmax, 0, w.absmax->bytes));
    assert_int_equal(w.absmax->bytes, s->nested ? blocks : 4 * blocks);
    assert_memory_equal(found, s->nested ? (void *)q : (void *)absmax, w.absmax->bytes);
    if (s->nested) {
        succeed(tsr_safetensors_read(found, w.nested_absmax, 0, w.nested_absmax->bytes));
        assert_int_equal(w.nested_absmax->bytes, 4 * groups);
        assert_memory_equal(found, nested, 4 * groups);
        assert_true(w.nested_offset == (double)offset);
    }
    const tsr_nf4_scales scales = {.nested = s->nested, .offset = offset, .nested_absmax = nested};
    const tsr_nf4_view view = {codes, s->nested ? (void *)q : (void *)absmax, &scales};
    succeed(tsr_nf4_dequantize(expected, TSR_F32, &view, 0, n, NULL, 0));
    check_read(&w, expected);
    tsr_checkpoint_close(checkpoint);
    void *all[] = {values, codes, q, found, absmax, nested, expected};
    for (int i = 0; i < 7; i++)
        free(all[i]);
}

static void test_shapes(void **state)
{
    (void)state;
    static const shape shapes[] = {
        {TSR_BF16, 256, 704, true},   {TSR_BF16, 256, 704, false}, {TSR_F32, 7, 33, true},
        {TSR_F16, 3, 21, false},      {TSR_F32, 1, 1, true},       {TSR_F16, 129, 128, true},
        {TSR_BF16, 2049, 2053, true}, /* two chunks, the last one odd */
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        check_shape(&shapes[i]);
}

static void test_not_finite(void **state)
{
    (void)state;
    float values[200] = {0};
    const tsr_tensor_source plain = {
        .name = "a.weight", .dtype = TSR_F32, .ndim = 1, .shape = {200}, .data = values};
    tsr_safetensors *in;
    tsr_nf4_packer *packer;
    const tsr_nf4_packed *packed;
    values[131] = INFINITY;
    succeed(tsr_safetensors_write(scratch_path("bad.safetensors"), &plain, 1));
    succeed(tsr_safetensors_open(&in, scratch_path("bad.safetensors")));
    const tsr_nf4_pack_options options = {.pool = tsr_device_pool(device), .nested = true};
    succeed(tsr_nf4_packer_create(&packer, &options));
    assert_int_equal(tsr_nf4_packer_add(&packed, packer, tsr_safetensors_at(in, 0)), TSR_EDATA);
    assert_non_null(strstr(tsr_last_error(), "a.weight"));
    assert_non_null(strstr(tsr_last_error(), "element 131 is inf"));
    tsr_nf4_packer_destroy(packer);
    tsr_safetensors_close(in);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shapes),
                                       cmocka_unit_test(test_not_finite)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
