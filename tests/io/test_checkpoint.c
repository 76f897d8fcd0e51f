#include "support/scratch.h"

#include "io/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TINY         TSR_SOURCE_DIR "/examples/tiny-llama"
#define PREQUANTIZED TSR_SOURCE_DIR "/tests/golden/prequantized-tiny-llama"
#define INDEX        "model.safetensors.index.json"

static void test_tiny_llama(void **state)
{
    (void)state;
    tsr_checkpoint *checkpoint;
    tsr_weight weight;
    uint16_t row[256];
    assert_int_equal(tsr_checkpoint_open(&checkpoint, TINY), TSR_OK);
    assert_int_equal(tsr_checkpoint_count(checkpoint), 2 + 1 + 6 * 9);
    assert_string_equal(tsr_checkpoint_directory(checkpoint), TINY);
    assert_int_equal(tsr_checkpoint_bytes_read(checkpoint), 0);
    uint64_t total = 0;
    for (uint64_t i = 0; i < tsr_checkpoint_count(checkpoint); i++) {
        const tsr_tensor *tensor = tsr_checkpoint_at(checkpoint, i);
        assert_ptr_equal(tsr_checkpoint_find(checkpoint, tensor->name), tensor);
        assert_int_equal(tensor->dtype, TSR_BF16);
        total += tensor->bytes;
    }
    assert_int_equal(tsr_checkpoint_total_bytes(checkpoint), total);
    assert_int_equal(total, 13048320); /* the index's total_size */
    assert_null(tsr_checkpoint_at(checkpoint, 57));
    assert_int_equal(
        tsr_checkpoint_weight(&weight, checkpoint, "model.layers.5.mlp.down_proj.weight"), TSR_OK);
    assert_false(weight.prequantized);
    assert_int_equal(weight.dtype, TSR_BF16);
    assert_int_equal(weight.ndim, 2);
    assert_int_equal(weight.shape[0], 256);
    assert_int_equal(weight.shape[1], 704);
    assert_int_equal(weight.element_count, 256 * 704);
    const tsr_tensor *head = tsr_checkpoint_find(checkpoint, "lm_head.weight");
    const tsr_tensor *embedding = tsr_checkpoint_find(checkpoint, "model.embed_tokens.weight");
    assert_int_equal(tsr_safetensors_read(row, head, 512, sizeof row), TSR_OK);
    assert_int_equal(tsr_safetensors_read(row, embedding, 512, 100), TSR_OK);
    assert_int_equal(tsr_checkpoint_bytes_read(checkpoint), sizeof row + 100);
    check_error(
        "missing", tsr_checkpoint_weight(&weight, checkpoint, "model.layers.6.mlp.x.weight"),
        TSR_EDATA,
        (const char *const[MOST_WORDS]){"tiny-llama", "'model.layers.6.mlp.x.weight'", "missing"});
    tsr_checkpoint_close(checkpoint);
    tsr_checkpoint_close(NULL);
}

static void test_prequantized(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint64_t rows, columns;
    } linears[] = {{"self_attn.q_proj", 256, 256}, {"self_attn.k_proj", 128, 256},
                   {"self_attn.v_proj", 128, 256}, {"self_attn.o_proj", 256, 256},
                   {"mlp.gate_proj", 704, 256},    {"mlp.up_proj", 704, 256},
                   {"mlp.down_proj", 256, 704}};
    tsr_checkpoint *checkpoint;
    tsr_weight weight;
    assert_int_equal(tsr_checkpoint_open(&checkpoint, PREQUANTIZED), TSR_OK);
    for (int layer = 0; layer < 2; layer++)
        for (size_t i = 0; i < sizeof linears / sizeof *linears; i++) {
            char name[128];
            float map[256];
            snprintf(name, sizeof name, "model.layers.%d.%s.weight", layer, linears[i].name);
            assert_int_equal(tsr_checkpoint_weight(&weight, checkpoint, name), TSR_OK);
            assert_true(weight.prequantized && weight.nested);
            assert_int_equal(weight.shape[0], linears[i].rows);
            assert_int_equal(weight.shape[1], linears[i].columns);
            assert_int_equal(weight.dtype, TSR_BF16);
            uint64_t elements = linears[i].rows * linears[i].columns;
            assert_int_equal(weight.element_count, elements);
            assert_int_equal(weight.code_bytes, elements / 2);
            assert_int_equal(weight.blocksize, 64);
            assert_int_equal(weight.block_count, elements / 64);
            assert_int_equal(weight.nested_blocksize, 256);
            assert_int_equal(weight.nested_count, (elements / 64 + 255) / 256);
            assert_int_equal(weight.absmax->dtype, TSR_U8);
            assert_true(weight.nested_offset > 0.01 && weight.nested_offset < 1);
            assert_int_equal(tsr_safetensors_read_f32(map, weight.quant_map, 0, 16), TSR_OK);
            assert_true(map[0] == -1 && map[7] == 0 && map[15] == 1);
            assert_int_equal(tsr_safetensors_read_f32(map, weight.nested_quant_map, 0, 256),
                             TSR_OK);
            assert_true(map[127] == 0 && map[255] == 1);
        }
    assert_int_equal(tsr_checkpoint_weight(&weight, checkpoint, "model.embed_tokens.weight"),
                     TSR_OK);
    assert_false(weight.prequantized);
    tsr_checkpoint_close(checkpoint);
}

/* One F32 element called `name` in `file` of the scratch directory. */
static void write_shard(const char *file, const char *name)
{
    char header[256];
    snprintf(header, sizeof header,
             "{\"%s\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", name);
    write_safetensors(scratch_path(file), header, TRUE_LENGTH, 4);
}

#define BIG  20000
#define TAIL 7

static uint64_t sample_of(const char *directory)
{
    tsr_checkpoint *checkpoint;
    uint64_t hash;
    assert_int_equal(tsr_checkpoint_open(&checkpoint, directory), TSR_OK);
    assert_int_equal(tsr_checkpoint_sample(&hash, checkpoint), TSR_OK);
    assert_int_equal(tsr_checkpoint_bytes_read(checkpoint), 0);
    tsr_checkpoint_close(checkpoint);
    return hash;
}

/* The begin, the middle and the end of each tensor, small ones whole; whichever files they are in. */
static void test_sample(void **state)
{
    static const struct {
        uint64_t at;
        bool seen;
    } places[] = {{0, true},           {4095, true},          {4096, false}, {BIG / 2, true},
                  {BIG - 4097, false}, {BIG - 4096, true},    {BIG, true},   {BIG + 3, true},
                  {BIG + 4, true},     {BIG + TAIL - 1, true}};
    const char *path = scratch_path("model.safetensors");
    uint64_t bytes;
    write_safetensors(path,
                      "{\"a\":{\"dtype\":\"U8\",\"shape\":[20000],\"data_offsets\":[0,20000]},"
                      "\"b\":{\"dtype\":\"U8\",\"shape\":[7],\"data_offsets\":[20000,20007]}}",
                      TRUE_LENGTH, BIG + TAIL);
    uint64_t hash = sample_of(*state);
    char *data = read_whole(&bytes, path);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        uint64_t at = bytes - BIG - TAIL + places[i].at;
        data[at] ^= 1;
        write_bytes(path, data, bytes);
        assert_int_equal(sample_of(*state) != hash, places[i].seen);
        data[at] ^= 1;
    }
    free(data);
    assert_true(sample_of(TINY) != sample_of(PREQUANTIZED));
}

static const struct {
    const char *what, *index;
    const char *const words[MOST_WORDS];
} broken_indexes[] = {
    {"no weight_map", "{}", {INDEX, "'weight_map'", "missing"}},
    {"weight_map is a list", "{\"weight_map\":[]}", {INDEX, "'weight_map'", "an object"}},
    {"empty weight_map", "{\"weight_map\":{}}", {INDEX, "no tensor"}},
    {"not JSON", "{\"weight_map\":", {INDEX, "line 1"}},
    {"a list", "[]", {INDEX, "a list", "an object"}},
    {"duplicate",
     "{\"weight_map\":{\"a\":\"1.safetensors\",\"a\":\"2.safetensors\"}}",
     {INDEX, "duplicate", "a"}},
    {"file is a number", "{\"weight_map\":{\"a\":1}}", {INDEX, "'a'", "1", "a file's name"}},
    {"absolute",
     "{\"weight_map\":{\"a\":\"/etc/1.safetensors\"}}",
     {INDEX, "'a'", "/etc", "absolute"}},
    {"..", "{\"weight_map\":{\"a\":\"../1.safetensors\"}}", {INDEX, "'a'", "'..'"}},
    {".. inside", "{\"weight_map\":{\"a\":\"x/../../1.safetensors\"}}", {INDEX, "'a'", "'..'"}},
    {"not safetensors", "{\"weight_map\":{\"a\":\"1.bin\"}}", {INDEX, "'a'", "1.bin"}},
    {"shard missing",
     "{\"weight_map\":{\"a\":\"9.safetensors\"}}",
     {"9.safetensors: it is missing, and model.safetensors.index.json lists it",
      "the download is not complete"}},
    {"tensor not in the shard",
     "{\"weight_map\":{\"b\":\"1.safetensors\"}}",
     {INDEX, "'b'", "'1.safetensors'", "does not have it"}},
    {"in two shards",
     "{\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"2.safetensors\",\"c\":\"3.safetensors\"}}",
     {"'a'", "two shards", "1.safetensors", "3.safetensors"}},
};

static void test_broken_indexes(void **state)
{
    write_shard("1.safetensors", "a");
    write_shard("2.safetensors", "b");
    write_safetensors(scratch_path("3.safetensors"),
                      "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                      "\"c\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
                      TRUE_LENGTH, 2);
    for (size_t i = 0; i < sizeof broken_indexes / sizeof *broken_indexes; i++) {
        tsr_checkpoint *checkpoint = NULL;
        write_text(scratch_path(INDEX), broken_indexes[i].index);
        check_error(broken_indexes[i].what, tsr_checkpoint_open(&checkpoint, *state), TSR_EDATA,
                    broken_indexes[i].words);
        assert_null(checkpoint);
    }
}

static void test_directories(void **state)
{
    tsr_checkpoint *checkpoint = NULL;
    check_error(
        "empty", tsr_checkpoint_open(&checkpoint, *state), TSR_EDATA,
        (const char *const[MOST_WORDS]){"neither model.safetensors nor", INDEX, "download them"});
    write_text(scratch_path("pytorch_model.bin"), "");
    check_error("pickle", tsr_checkpoint_open(&checkpoint, *state), TSR_EDATA,
                (const char *const[MOST_WORDS]){"pytorch_model.bin", "save_pretrained"});
    check_error("absent", tsr_checkpoint_open(&checkpoint, scratch_path("none")), TSR_EDATA,
                (const char *const[MOST_WORDS]){"/none", "No such file"});
    check_error("file", tsr_checkpoint_open(&checkpoint, scratch_path("pytorch_model.bin")),
                TSR_EDATA, (const char *const[MOST_WORDS]){"not a directory"});

    /* A shard in a folder of the directory, and a tensor that the index forgets, are fine. */
    assert_int_equal(mkdir(scratch_path("sub"), 0777), 0);
    write_safetensors(scratch_path("sub/1..safetensors"),
                      "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                      "\"c\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
                      TRUE_LENGTH, 2);
    write_text(scratch_path(INDEX), "{\"metadata\":{},\"weight_map\":{\"a\":\"sub/1..safetensors\","
                                    "\"c\":\"./sub/1..safetensors\"}}");
    assert_int_equal(tsr_checkpoint_open(&checkpoint, *state), TSR_OK);
    assert_int_equal(tsr_checkpoint_count(checkpoint), 2);
    tsr_checkpoint_close(checkpoint);
    write_text(scratch_path(INDEX),
               "{\"metadata\":{},\"weight_map\":{\"a\":\"sub/1..safetensors\"}}");
    assert_int_equal(tsr_checkpoint_open(&checkpoint, *state), TSR_OK);
    assert_int_equal(tsr_checkpoint_count(checkpoint), 2);
    tsr_checkpoint_close(checkpoint);
}

/* A 4-bit weight [6, 32] = 192 elements, 96 bytes, 3 blocks; cases change one thing. */
#define STATE                                                                                      \
    "{\"quant_type\":\"nf4\",\"blocksize\":64,\"dtype\":\"bfloat16\",\"shape\":[6,32],"            \
    "\"nested_blocksize\":256,\"nested_dtype\":\"float32\",\"nested_offset\":0.25}"

typedef struct {
    const char *what;
    const char *state;                  /* NULL: STATE */
    const char *drop;                   /* leave out the part of this suffix */
    const char *state_name;             /* NULL: .quant_state.bitsandbytes__nf4 */
    const char *extra;                  /* one more U8 tensor */
    uint64_t code_bytes, absmax_count;  /* 0: 96, 3 */
    tsr_dtype code_dtype, absmax_dtype; /* 0 (F32): U8 */
    const char *words[MOST_WORDS];
} set_case;

static uint64_t or (uint64_t value, uint64_t fallback)
{
    return value ? value : fallback;
}

static void write_set(const set_case *c)
{
    static const unsigned char zeros[4096];
    const char *state = c->state ? c->state : STATE;
    const char *state_name = c->state_name ? c->state_name : ".quant_state.bitsandbytes__nf4";
    tsr_dtype code_dtype = c->code_dtype ? c->code_dtype : TSR_U8;
    const struct {
        const char *suffix;
        tsr_dtype dtype;
        uint64_t count;
        const void *data;
    } parts[] = {
        {"", code_dtype, or (c->code_bytes, 96) / tsr_dtype_bytes(code_dtype), zeros},
        {".absmax", c->absmax_dtype ? c->absmax_dtype : TSR_U8, or (c->absmax_count, 3), zeros},
        {".quant_map", TSR_F32, 16, zeros},
        {".nested_absmax", TSR_F32, 1, zeros},
        {".nested_quant_map", TSR_F32, 256, zeros},
        {state_name, TSR_U8, strlen(state), state},
    };
    enum { PARTS = sizeof parts / sizeof *parts };
    tsr_tensor_source sources[PARTS + 1];
    char names[PARTS][96];
    uint64_t count = 0;
    for (int i = 0; i < PARTS; i++) {
        if (c->drop && !strcmp(c->drop, parts[i].suffix))
            continue;
        snprintf(names[i], sizeof names[i], "m.weight%s", parts[i].suffix);
        sources[count++] = (tsr_tensor_source){.name = names[i],
                                               .dtype = parts[i].dtype,
                                               .ndim = 1,
                                               .shape = {parts[i].count},
                                               .data = parts[i].data};
    }
    if (c->extra)
        sources[count++] = (tsr_tensor_source){
            .name = c->extra, .dtype = TSR_U8, .ndim = 1, .shape = {1}, .data = zeros};
    assert_int_equal(tsr_safetensors_write(scratch_path("model.safetensors"), sources, count),
                     TSR_OK);
}

#define NF4_STATE ".quant_state.bitsandbytes__nf4"

static const set_case broken_sets[] = {
    {"no absmax", .drop = ".absmax", .words = {"'m.weight'", "'m.weight.absmax'", "missing"}},
    {"no map", .drop = ".quant_map", .words = {"'m.weight.quant_map'", "missing"}},
    {"no nested scales", .drop = ".nested_absmax",
     .words = {"'m.weight.nested_absmax'", "missing"}},
    {"no nested map", .drop = ".nested_quant_map",
     .words = {"'m.weight.nested_quant_map'", "missing"}},
    {"no state", .drop = NF4_STATE, .words = {"'m.weight'", "absmax", NF4_STATE, "missing"}},
    {"fp4", .state_name = ".quant_state.bitsandbytes__fp4", .words = {"'m.weight'", "fp4", "nf4"}},
    {"fp4 in the state",
     .state = "{\"quant_type\":\"fp4\",\"blocksize\":64,\"dtype\":\"bfloat16\",\"shape\":[6,32]}",
     .words = {"m.weight" NF4_STATE, "'fp4'", "nf4"}},
    {"int8", .drop = NF4_STATE, .extra = "m.SCB", .words = {"'m.weight'", "m.SCB", "expected I8"}},
    {"too few codes", .code_bytes = 95, .words = {"'m.weight'", "95 bytes", "[6, 32]", "96"}},
    {"too few scales", .absmax_count = 2, .words = {"'m.weight.absmax'", "[2]", "3 elements"}},
    {"scales not U8", .absmax_dtype = TSR_BF16, .words = {"'m.weight.absmax'", "BF16", "U8"}},
    {"scales not F32 without nesting",
     .state = "{\"quant_type\":\"nf4\",\"blocksize\":64,\"dtype\":\"float16\",\"shape\":[191]}",
     .words = {"'m.weight.absmax'", "U8", "F32"}},
    {"state is not JSON", .state = "{\"quant_type\":", .words = {"m.weight" NF4_STATE, "line 1"}},
    {"state is a list", .state = "[]", .words = {"m.weight" NF4_STATE, "a list"}},
    {"unknown key", .state = "{\"quant_type\":\"nf4\",\"zero\":1}",
     .words = {"unknown key 'zero'"}},
    {"no shape", .state = "{\"quant_type\":\"nf4\",\"blocksize\":64,\"dtype\":\"bfloat16\"}",
     .words = {"'shape'", "missing"}},
    {"shape overflow",
     .state = "{\"quant_type\":\"nf4\",\"blocksize\":64,\"dtype\":\"bfloat16\","
              "\"shape\":[4294967296,4294967296]}",
     .words = {"'shape'", "4294967296", "2^56"}},
    {"dtype",
     .state = "{\"quant_type\":\"nf4\",\"blocksize\":64,\"dtype\":\"int8\",\"shape\":[6,32]}",
     .words = {"'dtype'", "'int8'", "bfloat16"}},
    {"block size",
     .state = "{\"quant_type\":\"nf4\",\"blocksize\":48,\"dtype\":\"bfloat16\",\"shape\":[6,32]}",
     .words = {"'blocksize'", "48", "power of two"}},
};

static void test_broken_sets(void **state)
{
    for (size_t i = 0; i < sizeof broken_sets / sizeof *broken_sets; i++) {
        tsr_checkpoint *checkpoint;
        tsr_weight weight = {.blocksize = 77};
        write_set(&broken_sets[i]);
        assert_int_equal(tsr_checkpoint_open(&checkpoint, *state), TSR_OK);
        check_error(broken_sets[i].what, tsr_checkpoint_weight(&weight, checkpoint, "m.weight"),
                    TSR_EDATA, broken_sets[i].words);
        assert_non_null(strstr(tsr_last_error(), "model.safetensors"));
        assert_int_equal(weight.blocksize, 77); /* untouched */
        tsr_checkpoint_close(checkpoint);
    }
}

static void test_good_sets(void **state)
{
    static const set_case good[] = {
        {"nested"},
        {"stored as bf16", .code_dtype = TSR_BF16},
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        tsr_checkpoint *checkpoint;
        tsr_weight weight;
        write_set(&good[i]);
        assert_int_equal(tsr_checkpoint_open(&checkpoint, *state), TSR_OK);
        assert_int_equal(tsr_checkpoint_weight(&weight, checkpoint, "m.weight"), TSR_OK);
        assert_true(weight.prequantized && weight.nested);
        assert_int_equal(weight.code_bytes, 96);
        assert_int_equal(weight.block_count, 3);
        assert_true(weight.nested_offset == 0.25);
        tsr_checkpoint_close(checkpoint);
    }
}

static void test_set_without_nesting(void **state)
{
    static const char text[] =
        "{\"quant_type\":\"nf4\",\"blocksize\":64,\"dtype\":\"float16\",\"shape\":[191]}";
    static const float zeros[16];
    static const unsigned char codes[96];
    const tsr_tensor_source sources[] = {
        {"m.weight", TSR_U8, 2, {96, 1}, codes},
        {"m.weight.absmax", TSR_F32, 1, {3}, zeros},
        {"m.weight.quant_map", TSR_F32, 1, {16}, zeros},
        {"m.weight" NF4_STATE, TSR_U8, 1, {sizeof text - 1}, text},
    };
    tsr_checkpoint *checkpoint;
    tsr_weight weight;
    assert_int_equal(tsr_safetensors_write(scratch_path("model.safetensors"), sources, 4), TSR_OK);
    assert_int_equal(tsr_checkpoint_open(&checkpoint, *state), TSR_OK);
    assert_int_equal(tsr_checkpoint_weight(&weight, checkpoint, "m.weight"), TSR_OK);
    assert_true(weight.prequantized && !weight.nested);
    assert_null(weight.nested_absmax);
    assert_int_equal(weight.element_count, 191);
    assert_int_equal(weight.code_bytes, 96);
    assert_int_equal(weight.block_count, 3);
    assert_int_equal(weight.dtype, TSR_F16);
    tsr_checkpoint_close(checkpoint);

    /* Bytes without a state are no weight. */
    assert_int_equal(tsr_safetensors_write(scratch_path("model.safetensors"), sources, 1), TSR_OK);
    assert_int_equal(tsr_checkpoint_open(&checkpoint, *state), TSR_OK);
    check_error("bytes", tsr_checkpoint_weight(&weight, checkpoint, "m.weight"), TSR_EDATA,
                (const char *const[MOST_WORDS]){"'m.weight'", "U8", "BF16"});
    tsr_checkpoint_close(checkpoint);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiny_llama),
        cmocka_unit_test_setup_teardown(test_sample, scratch_setup, scratch_teardown),
        cmocka_unit_test(test_prequantized),
        cmocka_unit_test_setup_teardown(test_broken_indexes, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_directories, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_broken_sets, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_good_sets, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_set_without_nesting, scratch_setup, scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
