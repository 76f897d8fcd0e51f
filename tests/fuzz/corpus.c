/*
 * corpus.c: the inputs of a target as one text file, a line each: bytes as they are where they can be printed,
 * the others, and backslashes, as \xNN; `#` begins a remark.
 *
 *   test_fuzz_corpus unpack FILE DIRECTORY     a file each, numbered
 *   test_fuzz_corpus pack DIRECTORY            to standard output, shortest first
 */
#include "fuzz/corpus.h"
#include "fuzz/fuzz.h"

#include <dirent.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    char *text;
    size_t bytes;
} input;

static void unpack(void *directory, const uint8_t *data, size_t bytes, int number)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/corpus-%04d", (const char *)directory, number);
    FILE *file = fopen(path, "wb");
    fuzz_check(file && fwrite(data, 1, bytes, file) == bytes && fclose(file) == 0);
}

static int by_length(const void *a, const void *b)
{
    const input *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? -1 : 1;
    return memcmp(x->text, y->text, x->bytes);
}

static void print(const input *in)
{
    for (size_t i = 0; i < in->bytes; i++) {
        unsigned char c = (unsigned char)in->text[i];
        bool plain = c >= 0x20 && c < 0x7F && c != '\\' && !(c == '#' && i == 0);
        printf(plain ? "%c" : "\\x%02x", c);
    }
    putchar('\n');
}

static void pack(const char *directory)
{
    static input inputs[1 << 16];
    size_t count = 0;
    DIR *open = opendir(directory);
    fuzz_check(open);
    for (struct dirent *entry; (entry = readdir(open)) && count < sizeof inputs / sizeof *inputs;) {
        char path[PATH_MAX];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
        inputs[count].text = fuzz_read(path, &inputs[count].bytes);
        count++;
    }
    closedir(open);
    qsort(inputs, count, sizeof *inputs, by_length);
    for (size_t i = 0; i < count; i++) {
        print(&inputs[i]);
        free(inputs[i].text);
    }
}

int main(int argc, char **argv)
{
    if (argc == 4 && !strcmp(argv[1], "unpack"))
        fuzz_corpus_read(argv[2], unpack, argv[3]);
    else if (argc == 3 && !strcmp(argv[1], "pack"))
        pack(argv[2]);
    else
        return 64;
    return 0;
}
