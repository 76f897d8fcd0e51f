/*
 * corpus.h: the inputs of a target, out of the text file that keeps them (see corpus.c).
 */
#ifndef TESTS_FUZZ_CORPUS_H
#define TESTS_FUZZ_CORPUS_H

#include <stddef.h>
#include <stdint.h>

/* Calls `use` for each input in order, numbered from 1, with its exact bytes on the heap. Returns how many. */
int fuzz_corpus_read(const char *path,
                     void (*use)(void *user, const uint8_t *data, size_t bytes, int number),
                     void *user);

#endif
