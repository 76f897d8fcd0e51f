/*
 * A model directory out: shards and index, config.json of both generations, what is copied, and what
 * is there after a failure.
 */
#include "support/folder.h"

#include "io/checkpoint.h"
#include "io/json.h"
#include "io/model_write.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MODEL TSR_SOURCE_DIR "/examples/tiny-llama"

static char directory[600];
static tsr_folder *folder;

/* A new empty directory for each test. */
static int begin(void **state)
{
    scratch_setup(state);
    snprintf(directory, sizeof directory, "%s", scratch_path("out"));
    if (mkdir(directory, 0777) != 0)
        return -1;
    folder = open_folder(directory);
    return 0;
}

static int end(void **state)
{
    tsr_folder_close(folder);
    return scratch_teardown(state);
}

static const char *in(const char *name)
{
    static char paths[8][700];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", directory, name);
    return path;
}

static void succeed(tsr_status status)
{
    if (status < 0)
        fail_msg("%s", tsr_last_error());
}

/* Tensors of `bytes` U8 elements each, numbered, whose bytes are their number. */
typedef struct {
    uint64_t bytes, fail_at;
    uint8_t value, piece[64];
} made;

static tsr_status next_piece(const void **data, uint64_t *bytes, void *user, uint64_t offset)
{
    made *m = user;
    if (offset >= m->fail_at)
        return tsr_fail(TSR_EDATA, "made to fail at %d", (int)offset);
    memset(m->piece, m->value, sizeof m->piece);
    *data = m->piece;
    *bytes = m->bytes - offset < sizeof m->piece ? m->bytes - offset : sizeof m->piece;
    return TSR_OK;
}

static tsr_tensor_source source(const char *name, made *m, uint64_t bytes, uint8_t value)
{
    *m = (made){.bytes = bytes, .fail_at = UINT64_MAX, .value = value};
    return (tsr_tensor_source){
        .name = name, .dtype = TSR_U8, .ndim = 1, .shape = {bytes}, .next = next_piece, .user = m};
}

static void check_values(const char *name, uint64_t bytes, uint8_t value)
{
    tsr_checkpoint *checkpoint;
    uint8_t data[2000];
    succeed(tsr_checkpoint_open(&checkpoint, directory));
    const tsr_tensor *tensor = tsr_checkpoint_find(checkpoint, name);
    assert_non_null(tensor);
    assert_int_equal(tensor->bytes, bytes);
    succeed(tsr_safetensors_read(data, tensor, 0, bytes));
    for (uint64_t i = 0; i < bytes; i++)
        assert_int_equal(data[i], value);
    tsr_checkpoint_close(checkpoint);
}

static const char *shard_of(const json_t *index, const char *tensor)
{
    return json_string_value(json_object_get(json_object_get(index, "weight_map"), tensor));
}

static void test_shards(void **state)
{
    (void)state;
    made m[6];
    const tsr_tensor_source tensors[] = {
        source("a", &m[0], 600, 1),  source("b", &m[1], 300, 2),   source("b.part", &m[2], 90, 3),
        source("b.x", &m[3], 10, 4), source("bb", &m[4], 1500, 5), source("c", &m[5], 1, 6)};
    const tsr_model_output output = {.folder = folder,
                                     .source = MODEL,
                                     .dtype = TSR_BF16,
                                     .tensors = tensors,
                                     .count = 6,
                                     .parameter_count = 77,
                                     .most_shard_bytes = 1000};
    tsr_model_written written;
    json_t *index;
    succeed(tsr_model_write(&written, &output));
    assert_int_equal(written.shard_count, 3);
    assert_int_equal(written.total_bytes, 2501);
    succeed(tsr_json_load_object(&index, in("model.safetensors.index.json")));
    /* exactly full: a, b and its parts; larger than a shard: alone; the rest */
    assert_string_equal(shard_of(index, "a"), "model-00001-of-00003.safetensors");
    assert_string_equal(shard_of(index, "b.part"), "model-00001-of-00003.safetensors");
    assert_string_equal(shard_of(index, "b.x"), "model-00001-of-00003.safetensors");
    assert_string_equal(shard_of(index, "bb"), "model-00002-of-00003.safetensors");
    assert_string_equal(shard_of(index, "c"), "model-00003-of-00003.safetensors");
    const json_t *metadata = json_object_get(index, "metadata");
    assert_int_equal(json_integer_value(json_object_get(metadata, "total_size")), 2501);
    assert_int_equal(json_integer_value(json_object_get(metadata, "total_parameters")), 77);
    json_decref(index);
    check_values("a", 600, 1);
    check_values("b.part", 90, 3);
    check_values("bb", 1500, 5);
    check_values("c", 1, 6);
    /* three shards, index, config.json, and of the source: tokenizer (2), template, generation */
    assert_int_equal(count_entries(directory), 9);
}

/* A part never leaves its weight, even where the weight alone would have fit. */
static void test_parts_stay(void **state)
{
    (void)state;
    made m[3];
    const tsr_tensor_source tensors[] = {source("a", &m[0], 600, 1), source("b", &m[1], 400, 2),
                                         source("b.part", &m[2], 1, 3)};
    const tsr_model_output output = {.folder = folder,
                                     .source = MODEL,
                                     .dtype = TSR_BF16,
                                     .tensors = tensors,
                                     .count = 3,
                                     .most_shard_bytes = 1000};
    json_t *index;
    succeed(tsr_model_write(NULL, &output));
    succeed(tsr_json_load_object(&index, in("model.safetensors.index.json")));
    assert_string_equal(shard_of(index, "a"), "model-00001-of-00002.safetensors");
    assert_string_equal(shard_of(index, "b"), "model-00002-of-00002.safetensors");
    assert_string_equal(shard_of(index, "b.part"), "model-00002-of-00002.safetensors");
    json_decref(index);
}

static void write_one(bool nf4, uint64_t fail_at, uint64_t most, tsr_status expected)
{
    made m[2];
    const tsr_tensor_source tensors[] = {source("a", &m[0], 600, 1), source("b", &m[1], 600, 2)};
    const tsr_model_output output = {.folder = folder,
                                     .source = MODEL,
                                     .dtype = TSR_BF16,
                                     .nf4 = nf4,
                                     .double_quant = true,
                                     .compute_dtype = TSR_BF16,
                                     .tensors = tensors,
                                     .count = 2,
                                     .most_shard_bytes = most};
    m[1].fail_at = fail_at;
    tsr_status status = tsr_model_write(NULL, &output);
    if (status != expected)
        fail_msg("%d: %s", status, tsr_last_error());
}

/* After a failure what was there is there still, and nothing else; what replaces it leaves nothing of
 * it behind. */
static void test_replaced(void **state)
{
    (void)state;
    write_one(false, UINT64_MAX, 700, TSR_OK); /* two shards */
    write_text(in("notes.txt"), "mine");
    assert_int_equal(count_entries(directory), 9);
    write_one(false, 64, 700, TSR_EDATA);
    assert_non_null(strstr(tsr_last_error(), "made to fail at 64"));
    assert_int_equal(count_entries(directory), 9);
    check_values("b", 600, 2);
    write_one(true, UINT64_MAX, 0, TSR_OK); /* one file: shards and index are gone */
    assert_int_equal(count_entries(directory), 7);
    assert_int_equal(access(in("notes.txt"), F_OK), 0);
    assert_int_equal(access(in("model-00001-of-00002.safetensors"), F_OK), -1);
    check_values("a", 600, 1);
    /* a directory under a file's name is found before anything is replaced */
    unlink(in("tokenizer.json"));
    assert_int_equal(mkdir(in("tokenizer.json"), 0777), 0);
    write_one(false, UINT64_MAX, 700, TSR_EIO);
    assert_non_null(strstr(tsr_last_error(), "tokenizer.json is a directory where"));
    check_values("a", 600, 1);
    assert_int_equal(count_entries(directory), 7);
}

/* Of the earlier model's tokenizer and license nothing stays that the new one does not replace; and
 * where a directory is in the way nothing has gone. */
static void test_replaced_tokenizer(void **state)
{
    (void)state;
    write_text(in("added_tokens.json"), "{}"); /* no model is there: somebody's own */
    write_one(false, UINT64_MAX, 700, TSR_OK);
    assert_int_equal(access(in("added_tokens.json"), F_OK), 0);
    write_text(in("LICENSE"), "the earlier model's");
    assert_int_equal(mkdir(in("model-old.safetensors"), 0777), 0);
    write_one(false, UINT64_MAX, 0, TSR_EIO);
    assert_non_null(strstr(tsr_last_error(), "model-old.safetensors is a directory where"));
    check_values("b", 600, 2);
    assert_int_equal(access(in("LICENSE"), F_OK), 0);
    assert_int_equal(count_entries(directory), 11);
    assert_int_equal(rmdir(in("model-old.safetensors")), 0);
    write_one(false, UINT64_MAX, 0, TSR_OK);
    assert_int_equal(access(in("added_tokens.json"), F_OK), -1);
    assert_int_equal(access(in("LICENSE"), F_OK), -1);
    assert_int_equal(access(in("tokenizer.json"), F_OK), 0);
    assert_int_equal(count_entries(directory), 6);
}

/* The template of chats with tools goes along, and does not stay behind another model's. */
static void test_tool_template(void **state)
{
    (void)state;
    made m;
    const tsr_tensor_source tensor = source("a", &m, 600, 1);
    tsr_model_output output = {.folder = folder,
                               .source = scratch_path("with_tools"),
                               .dtype = TSR_BF16,
                               .tensors = &tensor,
                               .count = 1,
                               .most_shard_bytes = 1000};
    uint64_t bytes;
    tsr_model_written written;
    char *config = read_whole(&bytes, MODEL "/config.json");
    assert_int_equal(mkdir(output.source, 0777), 0);
    assert_int_equal(mkdir(scratch_path("with_tools/additional_chat_templates"), 0777), 0);
    write_bytes(scratch_path("with_tools/config.json"), config, bytes);
    write_text(scratch_path("with_tools/additional_chat_templates/tool_use.jinja"), "{{ tools }}");
    free(config);
    succeed(tsr_model_write(&written, &output));
    char *copied = read_whole(&bytes, in("additional_chat_templates/tool_use.jinja"));
    assert_int_equal(bytes, strlen("{{ tools }}"));
    assert_memory_equal(copied, "{{ tools }}", bytes);
    free(copied);
    output.source = MODEL;
    succeed(tsr_model_write(&written, &output));
    assert_int_equal(access(in("additional_chat_templates/tool_use.jinja"), F_OK), -1);
}

static void is_text(const char *path, const char *expected)
{
    uint64_t bytes;
    char *text = read_whole(&bytes, path);
    if (bytes != strlen(expected) || memcmp(text, expected, bytes) != 0)
        fail_msg("%s: %.*s, expected %s", path, (int)bytes, text, expected);
    free(text);
}

/* A template that takes the place of the source's is the only one of what is written, of an earlier model in the
 * same place too. */
static void test_given_template(void **state)
{
    (void)state;
    made m;
    const tsr_tensor_source tensor = source("a", &m, 600, 1);
    tsr_model_output output = {.folder = folder,
                               .source = scratch_path("three"),
                               .dtype = TSR_BF16,
                               .tensors = &tensor,
                               .count = 1,
                               .most_shard_bytes = 1000};
    uint64_t bytes;
    char *config = read_whole(&bytes, MODEL "/config.json");
    assert_int_equal(mkdir(output.source, 0777), 0);
    assert_int_equal(mkdir(scratch_path("three/additional_chat_templates"), 0777), 0);
    write_bytes(scratch_path("three/config.json"), config, bytes);
    write_text(scratch_path("three/additional_chat_templates/tool_use.jinja"), "{{ tools }}");
    write_text(scratch_path("three/chat_template.json"), "{\"chat_template\": \"c\"}");
    write_text(scratch_path("three/tokenizer_config.json"),
               "{\n  \"chat_template\": \"b\",\n  \"model_max_length\": 1e30\n}\n");
    free(config);
    succeed(tsr_model_write(NULL, &output));
    is_text(in("chat_template.json"), "{\"chat_template\": \"c\"}");
    output.chat_template = "given\n";
    output.template_bytes = strlen(output.chat_template);
    succeed(tsr_model_write(NULL, &output));
    is_text(in("chat_template.jinja"), "given\n");
    is_text(in("tokenizer_config.json"), "{\n  \"model_max_length\": 1e30\n}\n");
    assert_int_equal(access(in("chat_template.json"), F_OK), -1);
    assert_int_equal(access(in("additional_chat_templates/tool_use.jinja"), F_OK), -1);
}

static json_t *config_of(const char *source_directory, bool nf4, tsr_dtype dtype)
{
    const tsr_model_output output = {.source = source_directory,
                                     .dtype = dtype,
                                     .nf4 = nf4,
                                     .double_quant = false,
                                     .compute_dtype = TSR_F32};
    char *text;
    json_t *root;
    succeed(tsr_model_config_format(&text, &output));
    succeed(tsr_json_parse(&root, text, strlen(text), "config.json"));
    free(text);
    return root;
}

static void test_config(void **state)
{
    (void)state;
    json_t *before, *after = config_of(MODEL, true, TSR_F16);
    succeed(tsr_json_load_object(&before, MODEL "/config.json"));
    assert_string_equal(json_string_value(json_object_get(after, "dtype")), "float16");
    const json_t *q = json_object_get(after, "quantization_config");
    assert_true(json_is_false(json_object_get(q, "bnb_4bit_use_double_quant")));
    assert_string_equal(json_string_value(json_object_get(q, "bnb_4bit_compute_dtype")), "float32");
    assert_string_equal(json_string_value(json_object_get(q, "quant_method")), "bitsandbytes");
    /* and nothing else is changed */
    json_object_del(after, "quantization_config");
    json_object_set(after, "dtype", json_object_get(before, "dtype"));
    assert_true(json_equal(before, after));
    json_decref(before);
    json_decref(after);
    /* the older generation's name stays, and what was quantized is not any more */
    write_text(in("config.json"),
               "{\"torch_dtype\": \"float16\", \"rope_theta\": 1e6, \"eps\": 1e-06, "
               "\"quantization_config\": {\"quant_method\": \"bitsandbytes\"}}");
    after = config_of(directory, false, TSR_BF16);
    assert_string_equal(json_string_value(json_object_get(after, "torch_dtype")), "bfloat16");
    assert_null(json_object_get(after, "dtype"));
    assert_null(json_object_get(after, "quantization_config"));
    json_decref(after);
    write_text(in("config.json"),
               "{\"torch_dtype\": \"float16\", \"dtype\": \"float16\", \"eps\": 1e-06}");
    after = config_of(directory, false, TSR_BF16);
    assert_string_equal(json_string_value(json_object_get(after, "torch_dtype")), "bfloat16");
    assert_string_equal(json_string_value(json_object_get(after, "dtype")), "bfloat16");
    assert_true(json_real_value(json_object_get(after, "eps")) == 1e-06);
    json_decref(after);
}

static void test_names(void **state)
{
    (void)state;
    assert_true(tsr_model_write_replaces("config.json"));
    assert_true(tsr_model_write_replaces("model.safetensors"));
    assert_true(tsr_model_write_replaces("model-00001-of-00003.safetensors"));
    assert_true(tsr_model_write_replaces("model.safetensors.index.json"));
    assert_false(tsr_model_write_replaces("tokenizer.json"));
    assert_false(tsr_model_write_replaces("adapter_model.safetensors"));
    assert_false(tsr_model_write_replaces("model-card.md"));
}

/* A generator that stops short or gives too much is a bug that is named, not a damaged file. */
static tsr_status nothing_next(const void **data, uint64_t *bytes, void *user, uint64_t offset)
{
    (void)offset;
    *data = "";
    *bytes = *(uint64_t *)user;
    return TSR_OK;
}

static void test_generators(void **state)
{
    (void)state;
    uint64_t amounts[] = {0, 5};
    for (int i = 0; i < 2; i++) {
        const tsr_tensor_source bad = {.name = "t",
                                       .dtype = TSR_U8,
                                       .ndim = 1,
                                       .shape = {4},
                                       .next = nothing_next,
                                       .user = &amounts[i]};
        assert_int_equal(tsr_safetensors_write(in("x.safetensors"), &bad, 1), TSR_EINTERNAL);
        assert_non_null(strstr(tsr_last_error(), "tensor 't'"));
        assert_int_equal(count_entries(directory), 0);
    }
}

/* bitsandbytes writes Python's shortest floats. */
static void test_state(void **state)
{
    (void)state;
    static const struct {
        double value;
        const char *text;
    } cases[] = {
        {0.13597774505615234, "0.13597774505615234"}, {0.1, "0.10000000149011612"}, {0.25, "0.25"}};
    for (int i = 0; i < 3; i++) {
        const tsr_weight weight = {.dtype = TSR_F16,
                                   .ndim = 2,
                                   .shape = {3, 5},
                                   .blocksize = 64,
                                   .nested = true,
                                   .nested_blocksize = 256,
                                   .nested_offset = (double)(float)cases[i].value};
        char *text, expected[300];
        snprintf(expected, sizeof expected,
                 "{\"quant_type\": \"nf4\", \"blocksize\": 64, \"dtype\": \"float16\", \"shape\": "
                 "[3, 5], \"nested_blocksize\": 256, \"nested_dtype\": \"float32\", "
                 "\"nested_offset\": %s}",
                 cases[i].text);
        succeed(tsr_weight_state_format(&text, &weight));
        assert_string_equal(text, expected);
        free(text);
    }
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, end)
    const struct CMUnitTest tests[] = {TEST(test_shards),        TEST(test_parts_stay),
                                       TEST(test_replaced),      TEST(test_replaced_tokenizer),
                                       TEST(test_tool_template), TEST(test_given_template),
                                       TEST(test_config),        TEST(test_names),
                                       TEST(test_generators),    TEST(test_state)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
