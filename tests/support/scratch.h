/*
 * tests/support/scratch.h: a scratch directory, files of any bytes, and the check that an error
 * names what it should.
 */
#ifndef TSR_TESTS_SUPPORT_SCRATCH_H
#define TSR_TESTS_SUPPORT_SCRATCH_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/status.h"

#include <stdbool.h>

#define MOST_WORDS 4

/* A new empty directory; removed with all in it by scratch_remove. */
const char *scratch_make(void);
void scratch_remove(void);

/* The same as fixtures of CMocka; *state is the path. */
int scratch_setup(void **state);
int scratch_teardown(void **state);

/* "<scratch>/<name>", valid until the thread's sixteenth call after it. */
const char *scratch_path(const char *name);

void write_bytes(const char *path, const void *data, uint64_t bytes);
void write_text(const char *path, const char *text);

/* A safetensors file: header (its true length unless header_length is given) and data_bytes bytes
 * of data, 0, 1, 2, ... */
#define TRUE_LENGTH UINT64_MAX
void write_safetensors(const char *path, const char *header, uint64_t header_length,
                       uint64_t data_bytes);

/* The whole file; *bytes is its length. The caller frees. */
char *read_whole(uint64_t *bytes, const char *path);

/* Asserts that the call failed with `code` and that its message has every word (up to a NULL). */
void check_error(const char *what, tsr_status status, tsr_status code,
                 const char *const words[MOST_WORDS]);

/* The number of entries of a directory, "." and ".." left out. */
int count_entries(const char *directory);

#endif
