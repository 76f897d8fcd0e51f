/*
 * corpus_read.c: see corpus.h.
 */
#include "fuzz/corpus.h"
#include "fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

/* A line's bytes; the caller's, no byte longer than they are, so that a read past the end is seen. */
static uint8_t *decode(const char *line, size_t length, size_t *bytes)
{
    uint8_t *wide = malloc(length + 1);
    fuzz_check(wide);
    *bytes = 0;
    for (size_t i = 0; i < length; i++) {
        if (line[i] != '\\') {
            wide[(*bytes)++] = (uint8_t)line[i];
            continue;
        }
        char digits[3] = {0}, *end;
        fuzz_check(i + 3 < length + 1 && line[i + 1] == 'x');
        memcpy(digits, line + i + 2, 2);
        wide[(*bytes)++] = (uint8_t)strtoul(digits, &end, 16);
        fuzz_check(end == digits + 2);
        i += 3;
    }
    uint8_t *exact = realloc(wide, *bytes ? *bytes : 1);
    fuzz_check(exact);
    return exact;
}

int fuzz_corpus_read(const char *path,
                     void (*use)(void *user, const uint8_t *data, size_t bytes, int number),
                     void *user)
{
    size_t total, bytes;
    int count = 0;
    char *text = fuzz_read(path, &total);
    for (char *line = text, *end; line < text + total; line = end + 1) {
        end = memchr(line, '\n', total - (size_t)(line - text));
        fuzz_check(end); /* the last line has an end too */
        if (*line == '#')
            continue;
        uint8_t *data = decode(line, (size_t)(end - line), &bytes);
        use(user, data, bytes, ++count);
        free(data);
    }
    free(text);
    return count;
}
