#include "support/scratch.h"

#include "io/safetensors.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GOLDEN TSR_SOURCE_DIR "/tests/golden/"

/* One entry, "t", of these fields. */
#define ENTRY(dtype, shape, begin, end)                                                            \
    "{\"t\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" begin "," end "]}}"
#define F32_AT(name, begin, end)                                                                   \
    "\"" name "\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[" begin "," end "]}"

static const struct {
    const char *what, *header;
    uint64_t header_length, data_bytes;
    const char *const words[MOST_WORDS];
} broken[] = {
    {"header above 100 MB", "{}", 100000001, 0, {"100000001", "100000000"}},
    {"header length all ones", "{}", UINT64_MAX - 1, 0, {"18446744073709551614"}},
    {"header beyond the file", "{}", 3, 0, {"3 bytes", "cut off", "10"}},
    {"empty header", "", TRUE_LENGTH, 0, {"header", "line 1"}},
    {"header is not JSON", "hello", TRUE_LENGTH, 0, {"0x68", "'{'"}},
    {"header is a list", "[1]", TRUE_LENGTH, 0, {"0x5b", "'{'"}},
    {"header cut", "{\"t\":{\"dtype\":\"F32\"", TRUE_LENGTH, 0, {"header", "line 1"}},
    {"not UTF-8", "{\"\xff\xfe\":1}", TRUE_LENGTH, 0, {"header", "UTF-8", "0xff"}},
    {"two tensors of one name",
     "{" F32_AT("t", "0", "4") "," F32_AT("t", "4", "8") "}",
     TRUE_LENGTH,
     8,
     {"header", "duplicate", "t"}},
    {"a key twice in an entry",
     "{\"t\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}",
     TRUE_LENGTH,
     4,
     {"duplicate", "dtype"}},
    {"entry is a number", "{\"t\":5}", TRUE_LENGTH, 0, {"'t'", "an integer", "an object"}},
    {"unknown dtype", ENTRY("F31", "1", "0", "4"), TRUE_LENGTH, 4, {"'t'", "unknown dtype", "F31"}},
    {"dtype missing",
     "{\"t\":{\"shape\":[1],\"data_offsets\":[0,4]}}",
     TRUE_LENGTH,
     4,
     {"'t'", "'dtype'", "missing"}},
    {"unknown key in an entry",
     "{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"offset\":1}}",
     TRUE_LENGTH,
     4,
     {"'t'", "'offset'"}},
    {"shape overflow",
     ENTRY("F32", "4294967296,4294967296,4294967296", "0", "4"),
     TRUE_LENGTH,
     4,
     {"'t'", "overflow", "4294967296"}},
    {"byte overflow",
     ENTRY("F32", "9223372036854775807", "0", "4"),
     TRUE_LENGTH,
     4,
     {"'t'", "overflow", "9223372036854775807"}},
    {"negative shape", ENTRY("F32", "-1", "0", "4"), TRUE_LENGTH, 4, {"'t'", "shape", "-1"}},
    {"shape of a word", ENTRY("F32", "\"1\"", "0", "4"), TRUE_LENGTH, 4, {"'t'", "shape", "\"1\""}},
    {"nine dimensions",
     ENTRY("U8", "1,1,1,1,1,1,1,1,1", "0", "1"),
     TRUE_LENGTH,
     1,
     {"'t'", "9 dimensions", "8"}},
    {"end before begin", ENTRY("F32", "1", "4", "0"), TRUE_LENGTH, 4, {"'t'", "end 0", "at 4"}},
    {"one offset",
     "{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}",
     TRUE_LENGTH,
     4,
     {"'t'", "data_offsets", "1 entries"}},
    {"negative offset",
     ENTRY("F32", "1", "-4", "0"),
     TRUE_LENGTH,
     4,
     {"'t'", "data_offsets", "-4"}},
    {"size differs from the shape",
     ENTRY("F32", "2", "0", "4"),
     TRUE_LENGTH,
     4,
     {"'t'", "4 bytes", "[2] of F32", "8"}},
    {"data cut off", ENTRY("F32", "4", "0", "16"), TRUE_LENGTH, 15, {"'t'", "16", "15", "cut off"}},
    {"overlap",
     "{" F32_AT("a", "0", "4") "," F32_AT("b", "2", "6") "}",
     TRUE_LENGTH,
     6,
     {"'b'", "byte 2", "'a'", "4"}},
    {"hole at the start",
     ENTRY("F32", "1", "4", "8"),
     TRUE_LENGTH,
     8,
     {"'t'", "hole", "byte 4", "0"}},
    {"hole inside",
     "{" F32_AT("a", "0", "4") "," F32_AT("b", "8", "12") "}",
     TRUE_LENGTH,
     12,
     {"'b'", "hole", "byte 8", "4"}},
    {"data after the last tensor",
     ENTRY("F32", "1", "0", "4"),
     TRUE_LENGTH,
     7,
     {"cover 4", "holds 7", "3 bytes"}},
    {"data without a tensor", "{}", TRUE_LENGTH, 1, {"cover 0", "holds 1"}},
    {"metadata is not an object",
     "{\"__metadata__\":[\"pt\"]}",
     TRUE_LENGTH,
     0,
     {"__metadata__", "a list"}},
    {"metadata of a number",
     "{\"__metadata__\":{\"format\":1}}",
     TRUE_LENGTH,
     0,
     {"__metadata__", "'format'", "an integer"}},
};

static void test_broken(void **state)
{
    (void)state;
    const char *path = scratch_path("broken.safetensors");
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        tsr_safetensors *file = NULL;
        write_safetensors(path, broken[i].header, broken[i].header_length, broken[i].data_bytes);
        check_error(broken[i].what, tsr_safetensors_open(&file, path), TSR_EDATA, broken[i].words);
        assert_non_null(strstr(tsr_last_error(), "broken.safetensors"));
        assert_null(file);
    }
}

static void test_not_a_file(void **state)
{
    tsr_safetensors *file = NULL;
    check_error("directory", tsr_safetensors_open(&file, *state), TSR_EDATA,
                (const char *const[MOST_WORDS]){"not a regular file"});
    check_error("absent", tsr_safetensors_open(&file, scratch_path("x")), TSR_EDATA,
                (const char *const[MOST_WORDS]){"/x", "No such file"});
    write_bytes(scratch_path("x"), "1234567", 7);
    check_error("short", tsr_safetensors_open(&file, scratch_path("x")), TSR_EDATA,
                (const char *const[MOST_WORDS]){"7 bytes", "too few"});
    write_text(scratch_path("x"), "{\"event\":\"start\"}\n");
    check_error("metrics", tsr_safetensors_open(&file, scratch_path("x")), TSR_EDATA,
                (const char *const[MOST_WORDS]){"not a safetensors file: it starts with "
                                                "'{\"event\"'"});
    write_text(scratch_path("x"),
               "version https://git-lfs.github.com/spec/v1\noid sha256:01\nsize 9\n");
    check_error("pointer", tsr_safetensors_open(&file, scratch_path("x")), TSR_EDATA,
                (const char *const[MOST_WORDS]){"/x: this is a Git LFS pointer", "hf download"});
    assert_null(file);
}

static void test_unusual_but_right(void **state)
{
    (void)state;
    const char *path = scratch_path("fine.safetensors");
    tsr_safetensors *file;
    float scalar;
    /* A scalar, empty tensors between others, no tensor at all. */
    write_safetensors(path,
                      "{\"s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
                      "\"e\":{\"dtype\":\"F32\",\"shape\":[0,3],\"data_offsets\":[0,0]},"
                      "\"f\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[4,4]},"
                      "\"__metadata__\":{\"k\":\"v\"}}   ",
                      TRUE_LENGTH, 4);
    assert_int_equal(tsr_safetensors_open(&file, path), TSR_OK);
    assert_int_equal(tsr_safetensors_count(file), 3);
    assert_string_equal(tsr_safetensors_metadata(file, "k"), "v");
    assert_null(tsr_safetensors_metadata(file, "j"));
    assert_int_equal(tsr_safetensors_find(file, "s")->ndim, 0);
    assert_int_equal(tsr_safetensors_read_f32(&scalar, tsr_safetensors_find(file, "s"), 0, 1),
                     TSR_OK);
    assert_memory_equal(&scalar, "\0\1\2\3", 4);
    assert_int_equal(tsr_safetensors_read(&scalar, tsr_safetensors_find(file, "e"), 0, 0), TSR_OK);
    assert_null(tsr_safetensors_find(file, "nothing"));
    assert_null(tsr_safetensors_at(file, 3));
    tsr_safetensors_close(file);
    write_safetensors(path, "{}", TRUE_LENGTH, 0);
    assert_int_equal(tsr_safetensors_open(&file, path), TSR_OK);
    assert_int_equal(tsr_safetensors_count(file), 0);
    assert_null(tsr_safetensors_metadata(file, "format"));
    tsr_safetensors_close(file);
    tsr_safetensors_close(NULL);
}

static void test_ranges(void **state)
{
    (void)state;
    const char *path = scratch_path("r.safetensors");
    tsr_safetensors *file;
    unsigned char part[16];
    write_safetensors(path, ENTRY("U8", "200", "0", "200"), TRUE_LENGTH, 200);
    assert_int_equal(tsr_safetensors_open(&file, path), TSR_OK);
    const tsr_tensor *t = tsr_safetensors_find(file, "t");
    assert_int_equal(tsr_safetensors_bytes_read(file), 0);
    assert_int_equal(tsr_safetensors_read(part, t, 100, 16), TSR_OK);
    for (int i = 0; i < 16; i++)
        assert_int_equal(part[i], 100 + i);
    assert_int_equal(tsr_safetensors_bytes_read(file), 16);
    assert_int_equal(tsr_safetensors_read(part, t, 200, 0), TSR_OK);
    check_error("beyond", tsr_safetensors_read(part, t, 190, 11), TSR_EINVAL,
                (const char *const[MOST_WORDS]){"'t'", "200", "11 at 190"});
    assert_int_equal(tsr_safetensors_read(part, t, UINT64_MAX, 2), TSR_EINVAL);
    float f;
    check_error("widen U8", tsr_safetensors_read_f32(&f, t, 0, 1), TSR_EDATA,
                (const char *const[MOST_WORDS]){"'t'", "U8", "BF16"});
    assert_int_equal(tsr_safetensors_bytes_read(file), 16);

    /* A file that shrinks under us is an error, not a signal. */
    assert_int_equal(truncate(path, 8 + (off_t)strlen(ENTRY("U8", "200", "0", "200")) + 50), 0);
    check_error("shrunk", tsr_safetensors_read(part, t, 48, 16), TSR_EDATA,
                (const char *const[MOST_WORDS]){"r.safetensors", "ends at byte", "14"});
    tsr_safetensors_close(file);
}

/* The Python library wrote these files; ours must be the same bytes. */
static void test_written_as_python_does(void **state)
{
    (void)state;
    static const char *const paths[] = {
        GOLDEN "traces/a_lora/final/adapter_model.safetensors",       /* F32 */
        GOLDEN "traces/c0_dora/trace.safetensors",                    /* F32, F64 */
        GOLDEN "traces/init/dora_patterns/adapter_model.safetensors", /* BF16, F32 */
        GOLDEN "traces/batches.safetensors",                          /* I32 */
        GOLDEN "prequantized-tiny-llama/model.safetensors",           /* BF16, F32, U8 */
    };
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        tsr_safetensors *file;
        uint64_t expected_bytes, bytes;
        assert_int_equal(tsr_safetensors_open(&file, paths[i]), TSR_OK);
        assert_string_equal(tsr_safetensors_metadata(file, "format"), "pt");
        uint64_t count = tsr_safetensors_count(file);
        tsr_tensor_source *sources = calloc(count, sizeof *sources);
        assert_non_null(sources);
        for (uint64_t t = 0; t < count; t++) {
            const tsr_tensor *tensor = tsr_safetensors_at(file, count - 1 - t);
            void *data = malloc(tensor->bytes + 1);
            assert_non_null(data);
            assert_int_equal(tsr_safetensors_read(data, tensor, 0, tensor->bytes), TSR_OK);
            sources[t] = (tsr_tensor_source){
                .name = tensor->name, .dtype = tensor->dtype, .ndim = tensor->ndim, .data = data};
            memcpy(sources[t].shape, tensor->shape, sizeof tensor->shape);
        }
        assert_int_equal(tsr_safetensors_write(scratch_path("copy"), sources, count), TSR_OK);
        char *expected = read_whole(&expected_bytes, paths[i]);
        char *got = read_whole(&bytes, scratch_path("copy"));
        assert_int_equal(bytes, expected_bytes);
        assert_memory_equal(got, expected, bytes);
        free(expected);
        free(got);
        for (uint64_t t = 0; t < count; t++)
            free((void *)sources[t].data);
        free(sources);
        tsr_safetensors_close(file);
    }
    assert_int_equal(count_entries(*state), 1);
}

static void test_writer_refuses(void **state)
{
    float one = 1;
    tsr_tensor_source two[2] = {
        {.name = "a", .dtype = TSR_F32, .ndim = 1, .shape = {1}, .data = &one},
        {.name = "a", .dtype = TSR_F32, .ndim = 1, .shape = {1}, .data = &one}};
    check_error("two names", tsr_safetensors_write(scratch_path("w"), two, 2), TSR_EINVAL,
                (const char *const[MOST_WORDS]){"/w", "'a'"});
    two[1].name = "b";
    two[1].data = NULL;
    check_error("no data", tsr_safetensors_write(scratch_path("w"), two, 2), TSR_EINVAL,
                (const char *const[MOST_WORDS]){"'b'", "no data"});
    two[1].ndim = 9;
    assert_int_equal(tsr_safetensors_write(scratch_path("w"), two, 2), TSR_EINVAL);
    two[0].name = "\xff";
    check_error("name", tsr_safetensors_write(scratch_path("w"), two, 1), TSR_EINVAL,
                (const char *const[MOST_WORDS]){"UTF-8"});
    assert_int_equal(count_entries(*state), 0);
}

static void test_widening(void **state)
{
    (void)state;
    enum { COUNT = 10000 }; /* more than one round of the converter */
    uint16_t *narrow = malloc(COUNT * sizeof *narrow);
    float *wide = malloc(COUNT * sizeof *wide);
    tsr_safetensors *file;
    assert_true(narrow && wide);
    for (int i = 0; i < COUNT; i++)
        narrow[i] = tsr_f32_to_bf16((float)(i % 256));
    tsr_tensor_source source = {
        .name = "n", .dtype = TSR_BF16, .ndim = 1, .shape = {COUNT}, .data = narrow};
    assert_int_equal(tsr_safetensors_write(scratch_path("n"), &source, 1), TSR_OK);
    assert_int_equal(tsr_safetensors_open(&file, scratch_path("n")), TSR_OK);
    const tsr_tensor *tensor = tsr_safetensors_find(file, "n");
    assert_int_equal(tsr_safetensors_read_f32(wide, tensor, 5, COUNT - 5), TSR_OK);
    for (int i = 5; i < COUNT; i++)
        assert_true(wide[i - 5] == (float)(i % 256));
    assert_int_equal(tsr_safetensors_read_f32(wide, tensor, 5, COUNT), TSR_EINVAL);
    tsr_safetensors_close(file);
    free(narrow);
    free(wide);
}

/* Whoever reads numbers is told of the first that is not finite, in the part that was asked for. */
static void test_not_finite(void **state)
{
    (void)state;
    enum { COUNT = 10000 };
    static float values[COUNT], read[COUNT];
    tsr_safetensors *file;
    values[7000] = -INFINITY;
    values[7001] = NAN;
    tsr_tensor_source source = {
        .name = "n", .dtype = TSR_F32, .ndim = 1, .shape = {COUNT}, .data = values};
    assert_int_equal(tsr_safetensors_write(scratch_path("inf"), &source, 1), TSR_OK);
    assert_int_equal(tsr_safetensors_open(&file, scratch_path("inf")), TSR_OK);
    const tsr_tensor *tensor = tsr_safetensors_find(file, "n");
    assert_int_equal(tsr_safetensors_read_f32(read, tensor, 0, 7000), TSR_OK);
    assert_int_equal(tsr_safetensors_read_f32(read, tensor, 100, COUNT - 100), TSR_EDATA);
    assert_non_null(strstr(tsr_last_error(), "inf: tensor 'n': element 7000 is -inf"));
    assert_int_equal(tsr_safetensors_read_finite(read, tensor, 7001, 10), TSR_EDATA);
    assert_non_null(strstr(tsr_last_error(), "inf: tensor 'n': element 7001 is nan"));
    assert_int_equal(tsr_safetensors_read_finite(read, tensor, 7002, COUNT - 7002), TSR_OK);
    assert_int_equal(tsr_safetensors_read(read, tensor, 0, sizeof read), TSR_OK);
    tsr_safetensors_close(file);
}

static void *read_many(void *tensor)
{
    unsigned char part[7];
    for (uint64_t i = 0; i < 2000; i++)
        if (tsr_safetensors_read(part, tensor, i % 190, sizeof part) < 0 || part[0] != i % 190)
            return NULL;
    return tensor;
}

static void test_reads_at_the_same_time(void **state)
{
    (void)state;
    const char *path = scratch_path("p.safetensors");
    tsr_safetensors *file;
    pthread_t threads[3];
    write_safetensors(path, ENTRY("U8", "200", "0", "200"), TRUE_LENGTH, 200);
    assert_int_equal(tsr_safetensors_open(&file, path), TSR_OK);
    for (int i = 0; i < 3; i++)
        assert_int_equal(
            pthread_create(&threads[i], NULL, read_many, (void *)tsr_safetensors_find(file, "t")),
            0);
    for (int i = 0; i < 3; i++) {
        void *result;
        assert_int_equal(pthread_join(threads[i], &result), 0);
        assert_non_null(result);
    }
    assert_int_equal(tsr_safetensors_bytes_read(file), 3 * 2000 * 7);
    tsr_safetensors_close(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_broken, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_not_a_file, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_unusual_but_right, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_ranges, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_written_as_python_does, scratch_setup,
                                        scratch_teardown),
        cmocka_unit_test_setup_teardown(test_writer_refuses, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_widening, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_not_finite, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_reads_at_the_same_time, scratch_setup,
                                        scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
