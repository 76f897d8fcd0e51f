/*
 * tests/support/golden_plain.h: reads a well-formed safetensors or JSON file of the tests, in a few
 * lines of its own, so that a fault in src/io cannot hide in these tests. Anything odd ends the
 * program.
 */
#ifndef TSR_TESTS_SUPPORT_GOLDEN_PLAIN_H
#define TSR_TESTS_SUPPORT_GOLDEN_PLAIN_H

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    char *bytes;
    json_t *header;
    uint64_t data; /* where the tensors begin */
} golden_file;

typedef struct {
    const void *data;
    uint64_t bytes;
    const char *dtype;
} golden_tensor;

static inline void golden_die(const char *what, const char *name)
{
    fprintf(stderr, "golden file: %s %s\n", what, name);
    exit(1);
}

static inline char *golden_read(const char *path, uint64_t *bytes)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        golden_die("cannot open", path);
    fseek(file, 0, SEEK_END);
    long length = ftell(file);
    rewind(file);
    char *data = malloc((size_t)length + 1);
    if (!data || fread(data, 1, (size_t)length, file) != (size_t)length)
        golden_die("cannot read", path);
    fclose(file);
    data[length] = 0;
    *bytes = (uint64_t)length;
    return data;
}

static inline json_t *golden_json(const char *path)
{
    json_error_t error;
    json_t *json = json_load_file(path, 0, &error);
    if (!json)
        golden_die(error.text, path);
    return json;
}

static inline golden_file golden_open(const char *path)
{
    golden_file file;
    uint64_t bytes, header_bytes;
    file.bytes = golden_read(path, &bytes);
    memcpy(&header_bytes, file.bytes, 8);
    json_error_t error;
    file.header = json_loadb(file.bytes + 8, header_bytes, 0, &error);
    if (!file.header)
        golden_die(error.text, path);
    file.data = 8 + header_bytes;
    return file;
}

static inline void golden_close(golden_file *file)
{
    json_decref(file->header);
    free(file->bytes);
}

/* data NULL where the file has no such tensor. The data is aligned as the format gives it: read
 * floats of any file through memcpy (golden_copy). */
static inline golden_tensor golden_find(const golden_file *file, const char *name)
{
    golden_tensor t = {0};
    json_t *entry = json_object_get(file->header, name);
    if (!entry)
        return t;
    json_t *offsets = json_object_get(entry, "data_offsets");
    uint64_t begin = (uint64_t)json_integer_value(json_array_get(offsets, 0));
    t.bytes = (uint64_t)json_integer_value(json_array_get(offsets, 1)) - begin;
    t.data = file->bytes + file->data + begin;
    t.dtype = json_string_value(json_object_get(entry, "dtype"));
    return t;
}

/* A malloc'd copy of a tensor that must be there. */
static inline void *golden_copy(const golden_file *file, const char *name, uint64_t *bytes)
{
    golden_tensor t = golden_find(file, name);
    if (!t.data)
        golden_die("no tensor", name);
    void *copy = malloc(t.bytes ? t.bytes : 1);
    if (!copy)
        golden_die("no memory for", name);
    memcpy(copy, t.data, t.bytes);
    if (bytes)
        *bytes = t.bytes;
    return copy;
}

#endif
