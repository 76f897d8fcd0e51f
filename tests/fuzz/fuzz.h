/*
 * fuzz.h: what every fuzz target has. A target is a program with LLVMFuzzerTestOneInput: built with clang's
 * libFuzzer it looks for inputs (tests/fuzz/run), built without it replays those of tests/fuzz/corpus.
 *
 * Whatever the input, a reader of this tree answers TSR_OK or refuses with a message; it never crashes, hangs
 * or reads out of place. What it accepts must hold together.
 */
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Ends the program unless `status` is TSR_OK, or `refusal` with a message set since fuzz_begin(). */
void fuzz_begin(void);
void fuzz_answer(tsr_status status, tsr_status refusal);

/* Ends the program unless `holds`. */
#define fuzz_check(holds) ((holds) ? (void)0 : fuzz_fail(__FILE__, __LINE__, #holds))
_Noreturn void fuzz_fail(const char *file, int line, const char *what);

/* The path of a file that holds these bytes, until the next call. */
const char *fuzz_file(const uint8_t *data, size_t bytes);

/* A file of the tree, with a zero behind it; the caller's. */
char *fuzz_read(const char *path, size_t *bytes);

#endif
