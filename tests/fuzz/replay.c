/*
 * replay.c: PROGRAM CORPUS LEAST: runs the target once on every input of its corpus. Fails if there are fewer than
 * LEAST, so that a corpus that went missing is no success.
 */
#include "fuzz/corpus.h"
#include "fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>

static void once(void *user, const uint8_t *data, size_t bytes, int number)
{
    int *last = user;
    *last = number;
    LLVMFuzzerTestOneInput(data, bytes);
}

static int last;

static void say_which(void)
{
    fprintf(stderr, "input %d of the corpus\n", last);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 64;
    atexit(say_which); /* a sanitizer's end too */
    int count = fuzz_corpus_read(argv[1], once, &last);
    return count < atoi(argv[2]);
}
