/*
 * golden_lines.h: the objects of a jsonl file of tests/golden, or of any file below the tree's
 * root.
 */
#ifndef TSR_TESTS_GOLDEN_LINES_H
#define TSR_TESTS_GOLDEN_LINES_H

#include <jansson.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>

#include <cmocka.h>

/* An array of the lines; fails the test if the file cannot be read. */
static inline json_t *golden_lines(const char *path)
{
    char full[1024];
    snprintf(full, sizeof full, "%s/%s", TSR_SOURCE_DIR, path);
    FILE *file = fopen(full, "r");
    if (!file)
        fail_msg("%s cannot be opened", full);
    json_t *lines = json_array();
    char *line = NULL;
    size_t capacity = 0;
    while (getline(&line, &capacity, file) > 0) {
        json_t *row = json_loads(line, JSON_ALLOW_NUL, NULL);
        assert_non_null(row);
        json_array_append_new(lines, row);
    }
    free(line);
    fclose(file);
    return lines;
}

static inline const char *golden_text(const json_t *row, const char *key, size_t *bytes)
{
    const json_t *value = json_object_get(row, key);
    assert_true(json_is_string(value));
    *bytes = json_string_length(value);
    return json_string_value(value);
}

static inline char *golden_file(const char *path, size_t *bytes)
{
    char full[1024];
    snprintf(full, sizeof full, "%s/%s", TSR_SOURCE_DIR, path);
    FILE *file = fopen(full, "rb");
    if (!file)
        fail_msg("%s cannot be opened", full);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *bytes = (size_t)ftell(file);
    rewind(file);
    char *text = malloc(*bytes + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, *bytes, file), *bytes);
    text[*bytes] = 0;
    fclose(file);
    return text;
}

#endif
