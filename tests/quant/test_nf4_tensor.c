/*
 * An NF4 tensor cut over ranks: the 42 linears of tiny-llama have bitsandbytes' bytes on any number
 * of ranks (CRC-32 of codes, absmax and dequantized values), ragged shapes do not depend on the
 * ranks, and a pre-quantized checkpoint is taken as it is or refused by name. No tolerance.
 */
#include "base/dtype.h"
#include "quant/nf4_tensor.h"

#include "support/crc32.h"
#include "support/golden_plain.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define MODEL    TSR_SOURCE_DIR "/examples/tiny-llama/"
#define GOLDEN   TSR_SOURCE_DIR "/tests/golden/"
#define PREQUANT GOLDEN "prequantized-tiny-llama/model.safetensors"

static const uint64_t rank_counts[] = {1, 2, 3, 4, 5, 8};
#define RANK_COUNTS (sizeof rank_counts / sizeof *rank_counts)

static void *need(uint64_t bytes)
{
    void *p = malloc(bytes ? bytes : 1);
    assert_non_null(p);
    memset(p, 0xa5, bytes); /* so that forgotten padding shows */
    return p;
}

/* As places are before they are filled. */
static void *zeros(uint64_t bytes)
{
    return memset(need(bytes), 0, bytes);
}

/* All ranks' parts of one tensor, one after the other, as a gather leaves them. */
typedef struct {
    tsr_nf4_layout layout;
    uint8_t *codes;
    void *absmax;
    float *nested_absmax;
    tsr_nf4_scales scales;
} whole;

static void whole_free(whole *w)
{
    free(w->codes), free(w->absmax), free(w->nested_absmax);
}

static whole quantize(const void *values, tsr_dtype dtype, uint64_t count, uint64_t ranks,
                      bool nested)
{
    whole w = {.scales.nested = nested};
    assert_int_equal(tsr_nf4_layout_make(&w.layout, count, ranks, nested), TSR_OK);
    const tsr_nf4_layout *l = &w.layout;
    w.codes = zeros(ranks * l->code_bytes);
    w.absmax = zeros(ranks * l->absmax_bytes);
    w.nested_absmax = need(l->nested_count * 4);
    float *all = zeros(ranks * l->blocks_per_rank * 4);
    for (uint64_t rank = 0; rank < ranks; rank++) {
        tsr_nf4_range r = tsr_nf4_rank_range(l, rank);
        uint64_t width = tsr_dtype_bytes(dtype), piece = r.element_count / 3 / 64 * 64;
        for (uint64_t first = 0; first < r.element_count; first += piece) {
            uint64_t left = r.element_count - first;
            piece = piece && piece < left ? piece : left;
            const char *own = (const char *)values + (r.first_element + first) * width;
            assert_int_equal(tsr_nf4_quantize(w.codes + rank * l->code_bytes + first / 2,
                                              all + rank * l->blocks_per_rank + first / 64, own,
                                              dtype, piece),
                             TSR_OK);
        }
    }
    if (!nested)
        memcpy(w.absmax, all, ranks * l->absmax_bytes);
    for (uint64_t rank = 0; nested && rank < ranks; rank++) {
        float offset;
        float *replica = need(l->nested_count * 4);
        tsr_nf4_range r = tsr_nf4_rank_range(l, rank);
        assert_int_equal(tsr_nf4_quantize_absmax((uint8_t *)w.absmax + rank * l->absmax_bytes,
                                                 replica, &offset, all, l->block_count,
                                                 r.first_block, r.block_count),
                         TSR_OK);
        if (rank > 0) {
            assert_memory_equal(replica, w.nested_absmax, l->nested_count * 4);
            assert_memory_equal(&offset, &w.scales.offset, 4);
        }
        memcpy(w.nested_absmax, replica, l->nested_count * 4);
        w.scales.offset = offset;
        free(replica);
    }
    w.scales.nested_absmax = w.nested_absmax;
    free(all);
    return w;
}

/* Only zeros from the tensor's end to the end of the last rank's part. */
static void check_padding(const whole *w)
{
    const tsr_nf4_layout *l = &w->layout;
    for (uint64_t i = (l->element_count + 1) / 2; i < l->rank_count * l->code_bytes; i++)
        assert_int_equal(w->codes[i], 0);
    uint64_t width = l->nested ? 1 : 4;
    for (uint64_t i = l->block_count * width; i < l->rank_count * l->absmax_bytes; i++)
        assert_int_equal(((uint8_t *)w->absmax)[i], 0);
}

static uint32_t expected_crc(json_t *entry, const char *key)
{
    return (uint32_t)json_integer_value(json_object_get(entry, key));
}

static void check_module(const golden_file *base, const char *module, json_t *entry,
                         const void *values, uint64_t count)
{
    char key[160];
    uint64_t bytes;
    snprintf(key, sizeof key, "%s.weight.nested_absmax", module);
    float *nested = golden_copy(base, key, &bytes);
    snprintf(key, sizeof key, "%s.weight.nested_offset", module);
    float *offset = golden_copy(base, key, NULL), *out = need(count * 4);
    for (size_t k = 0; k < RANK_COUNTS; k++) {
        whole w = quantize(values, TSR_BF16, count, rank_counts[k], true);
        check_padding(&w);
        assert_int_equal(bytes, w.layout.nested_count * 4);
        assert_memory_equal(nested, w.nested_absmax, bytes);
        assert_memory_equal(offset, &w.scales.offset, 4);
        tsr_nf4_view view = {w.codes, w.absmax, &w.scales};
        assert_int_equal(tsr_nf4_dequantize(out, TSR_F32, &view, 0, count, NULL, 0), TSR_OK);
        assert_int_equal(crc32_of(out, count * 4), expected_crc(entry, "dequantized_f32_crc32"));
        assert_int_equal(crc32_of(w.codes, count / 2), expected_crc(entry, "codes_crc32"));
        assert_int_equal(crc32_of(w.absmax, w.layout.block_count),
                         expected_crc(entry, "absmax_crc32"));
        whole_free(&w);
    }
    free(nested), free(offset), free(out);
}

static void test_tiny_llama(void **state)
{
    (void)state;
    json_t *table = golden_json(GOLDEN "base_nf4_tiny_llama.json"), *entry;
    json_t *index = golden_json(MODEL "model.safetensors.index.json");
    golden_file base = golden_open(GOLDEN "base_nf4_tiny_llama.safetensors");
    const char *module;
    int modules = 0;
    json_object_foreach(json_object_get(table, "modules"), module, entry)
    {
        char key[160], path[512];
        snprintf(key, sizeof key, "%s.weight", module);
        const char *name =
            json_string_value(json_object_get(json_object_get(index, "weight_map"), key));
        assert_non_null(name);
        snprintf(path, sizeof path, MODEL "%s", name);
        golden_file file = golden_open(path);
        uint64_t bytes = 0;
        void *values = golden_copy(&file, key, &bytes);
        golden_close(&file);
        check_module(&base, module, entry, values, bytes / 2);
        free(values);
        modules++;
    }
    assert_int_equal(modules, 42);
    golden_close(&base);
    json_decref(index);
    json_decref(table);
}

/* Shapes with ragged tails, fewer granules than ranks, odd counts: the same bytes on any number of
 * ranks as in one flat call. */
static void test_ragged(void **state)
{
    (void)state;
    static const uint64_t counts[] = {
        1, 63, 65, 1023, 1024, 1025, 4097, 33 * 7, 16 * 1024 * 17 + 5};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        uint64_t n = counts[c], blocks = (n + 63) / 64;
        float *x = need(n * 4), *absmax = need(blocks * 4),
              *nested = need((blocks + 255) / 256 * 4);
        uint8_t *codes = need((n + 1) / 2), *q = need(blocks);
        for (uint64_t i = 0; i < n; i++)
            x[i] = sinf((float)i * 0.7f) * (1 + (float)(i / 64 % 13));
        float offset;
        assert_int_equal(tsr_nf4_quantize(codes, absmax, x, TSR_F32, n), TSR_OK);
        assert_int_equal(tsr_nf4_quantize_absmax(q, nested, &offset, absmax, blocks, 0, blocks),
                         TSR_OK);
        for (size_t k = 0; k < RANK_COUNTS; k++)
            for (int is_nested = 0; is_nested < 2; is_nested++) {
                whole w = quantize(x, TSR_F32, n, rank_counts[k], is_nested);
                check_padding(&w);
                assert_memory_equal(w.codes, codes, (n + 1) / 2);
                assert_memory_equal(w.absmax, is_nested ? (void *)q : (void *)absmax,
                                    is_nested ? blocks : blocks * 4);
                if (is_nested)
                    assert_memory_equal(&w.scales.offset, &offset, 4);
                whole_free(&w);
            }
        free(x), free(absmax), free(nested), free(codes), free(q);
    }
}

static void test_layout(void **state)
{
    (void)state;
    tsr_nf4_layout l;
    assert_int_equal(tsr_nf4_layout_make(&l, 704 * 256, 3, true), TSR_OK);
    assert_int_equal(l.granule_count, 176);
    assert_int_equal(l.granules_per_rank, 59);
    assert_int_equal(l.code_bytes, 59 * 512);
    assert_int_equal(l.absmax_bytes, 59 * 16);
    tsr_nf4_range r = tsr_nf4_rank_range(&l, 2);
    assert_int_equal(r.first_element, 118 * 1024);
    assert_int_equal(r.element_count, 58 * 1024);
    assert_int_equal(r.first_block, 118 * 16);
    assert_int_equal(r.first_code_byte, 118 * 512);
    assert_int_equal(tsr_nf4_layout_make(&l, 2049, 8, false), TSR_OK);
    assert_int_equal(l.absmax_bytes, 64);
    r = tsr_nf4_rank_range(&l, 2);
    assert_int_equal(r.element_count, 1);
    assert_int_equal(r.code_byte_count, 1);
    assert_int_equal(r.block_count, 1);
    r = tsr_nf4_rank_range(&l, 7);
    assert_int_equal(r.element_count + r.block_count + r.code_byte_count, 0);
    assert_int_equal(tsr_nf4_layout_make(&l, 0, 1, true), TSR_EINVAL);
    assert_int_equal(tsr_nf4_layout_make(&l, 1, 0, true), TSR_EINVAL);
    assert_int_equal(tsr_nf4_layout_make(&l, UINT64_MAX, 1, true), TSR_EINVAL);
}

#define MODULE "model.layers.1.mlp.down_proj.weight"

typedef struct {
    uint8_t *codes, *absmax;
    float *quant_map, *nested_absmax, *nested_map;
    tsr_nf4_checkpoint stored;
    uint64_t count;
} stored_tensor;

static stored_tensor load_stored(void)
{
    golden_file file = golden_open(PREQUANT);
    stored_tensor t = {0};
    uint64_t codes = 0, absmax = 0, map = 0, nested = 0, nested_map = 0, json_bytes = 0;
    t.codes = golden_copy(&file, MODULE, &codes);
    t.absmax = golden_copy(&file, MODULE ".absmax", &absmax);
    t.quant_map = golden_copy(&file, MODULE ".quant_map", &map);
    t.nested_absmax = golden_copy(&file, MODULE ".nested_absmax", &nested);
    t.nested_map = golden_copy(&file, MODULE ".nested_quant_map", &nested_map);
    char *text = golden_copy(&file, MODULE ".quant_state.bitsandbytes__nf4", &json_bytes);
    json_t *json = json_loadb(text, json_bytes, 0, NULL);
    json_t *shape = json_object_get(json, "shape");
    t.count = (uint64_t)(json_integer_value(json_array_get(shape, 0)) *
                         json_integer_value(json_array_get(shape, 1)));
    t.stored = (tsr_nf4_checkpoint){
        .quant_type = "nf4",
        .blocksize = (uint64_t)json_integer_value(json_object_get(json, "blocksize")),
        .nested_blocksize = (uint64_t)json_integer_value(json_object_get(json, "nested_blocksize")),
        .quant_map = t.quant_map,
        .quant_map_count = map / 4,
        .code_byte_count = codes,
        .absmax_count = absmax,
        .nested_absmax = t.nested_absmax,
        .nested_absmax_count = nested / 4,
        .nested_map = t.nested_map,
        .nested_map_count = nested_map / 4,
        .nested_offset = json_real_value(json_object_get(json, "nested_offset")),
    };
    json_decref(json);
    free(text);
    golden_close(&file);
    return t;
}

static void free_stored(stored_tensor *t)
{
    free(t->codes), free(t->absmax), free(t->quant_map), free(t->nested_absmax);
    free(t->nested_map);
}

static void test_prequantized(void **state)
{
    (void)state;
    stored_tensor t = load_stored();
    for (size_t k = 0; k < RANK_COUNTS; k++) {
        tsr_nf4_layout l;
        tsr_nf4_scales scales;
        assert_int_equal(tsr_nf4_layout_make(&l, t.count, rank_counts[k], true), TSR_OK);
        assert_int_equal(tsr_nf4_check_checkpoint(&scales, &l, &t.stored, MODULE), TSR_OK);
        assert_ptr_equal(scales.nested_map, t.nested_map);
        uint8_t *codes = need(l.rank_count * l.code_bytes);
        uint8_t *absmax = need(l.rank_count * l.absmax_bytes);
        for (uint64_t rank = 0; rank < l.rank_count; rank++) {
            tsr_nf4_range r = tsr_nf4_rank_range(&l, rank);
            uint8_t *own = codes + rank * l.code_bytes; /* as read in place from the file */
            memcpy(own, t.codes + r.first_code_byte, r.code_byte_count);
            tsr_nf4_shard_codes(own, &l, rank, own);
            tsr_nf4_shard_absmax(absmax + rank * l.absmax_bytes, &l, rank,
                                 t.absmax + r.first_block);
        }
        assert_memory_equal(codes, t.codes, t.stored.code_byte_count);
        assert_memory_equal(absmax, t.absmax, t.stored.absmax_count);
        for (uint64_t i = t.stored.code_byte_count; i < l.rank_count * l.code_bytes; i++)
            assert_int_equal(codes[i], 0);
        free(codes), free(absmax);
    }
    /* Its own map is what decodes: another map gives other scales. */
    tsr_nf4_scales scales;
    tsr_nf4_layout l;
    float plain[4], doubled[4];
    assert_int_equal(tsr_nf4_layout_make(&l, t.count, 1, true), TSR_OK);
    assert_int_equal(tsr_nf4_check_checkpoint(&scales, &l, &t.stored, MODULE), TSR_OK);
    tsr_nf4_decode_absmax(plain, t.absmax, 0, 4, &scales);
    for (int i = 0; i < 256; i++)
        t.nested_map[i] *= 2;
    tsr_nf4_decode_absmax(doubled, t.absmax, 0, 4, &scales);
    assert_memory_not_equal(plain, doubled, sizeof plain);
    free_stored(&t);
}

static void refuse(const stored_tensor *t, const tsr_nf4_checkpoint *stored, const char *words)
{
    tsr_nf4_layout l;
    tsr_nf4_scales scales;
    assert_int_equal(tsr_nf4_layout_make(&l, t->count, 2, true), TSR_OK);
    assert_int_equal(tsr_nf4_check_checkpoint(&scales, &l, stored, MODULE), TSR_EDATA);
    assert_non_null(strstr(tsr_last_error(), MODULE));
    if (!strstr(tsr_last_error(), words))
        fail_msg("\"%s\" is not in: %s", words, tsr_last_error());
}

static void test_prequantized_refusals(void **state)
{
    (void)state;
    stored_tensor t = load_stored();
    tsr_nf4_checkpoint s;
    s = t.stored, s.quant_type = "fp4", refuse(&t, &s, "\"fp4\"");
    s = t.stored, s.quant_type = NULL, refuse(&t, &s, "nf4");
    s = t.stored, s.blocksize = 128, refuse(&t, &s, "blocksize is 128, expected 64");
    s = t.stored, s.nested_blocksize = 64, refuse(&t, &s, "nested_blocksize");
    s = t.stored, s.code_byte_count--, refuse(&t, &s, "code bytes");
    s = t.stored, s.absmax_count++, refuse(&t, &s, "absmax");
    s = t.stored, s.nested_absmax_count++, refuse(&t, &s, "nested_absmax");
    s = t.stored, s.nested_map_count = 255, refuse(&t, &s, "nested_quant_map");
    s = t.stored, s.quant_map_count = 15, refuse(&t, &s, "quant_map");
    s = t.stored, s.nested_offset = INFINITY, refuse(&t, &s, "nested_offset");
    float fp4[16];
    memcpy(fp4, t.quant_map, sizeof fp4);
    fp4[3] = nextafterf(fp4[3], 1);
    s = t.stored, s.quant_map = fp4, refuse(&t, &s, "entry 3");
    t.nested_absmax[0] = FLT_MAX;
    s = t.stored, s.nested_offset = FLT_MAX, refuse(&t, &s, "would not be finite");
    t.nested_absmax[0] = NAN;
    refuse(&t, &t.stored, "entry 0 of its nested_absmax");
    free_stored(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout),
        cmocka_unit_test(test_ragged),
        cmocka_unit_test(test_tiny_llama),
        cmocka_unit_test(test_prequantized),
        cmocka_unit_test(test_prequantized_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
