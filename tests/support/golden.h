/*
 * tests/support/golden.h: tensors of golden files, and deviations that are printed and judged.
 */
#ifndef TSR_TESTS_SUPPORT_GOLDEN_H
#define TSR_TESTS_SUPPORT_GOLDEN_H

#include "io/safetensors.h"

#include <stdbool.h>

/* Fails the test if the file cannot be opened. */
tsr_safetensors *golden_open(const char *path);

/* A whole tensor by its name (as printf), which must be there; *count may be NULL. The caller
 * frees. */
__attribute__((format(printf, 3, 4))) float *golden_f32(uint64_t *count, tsr_safetensors *file,
                                                        const char *format, ...);
__attribute__((format(printf, 3, 4))) int32_t *golden_i32(uint64_t *count, tsr_safetensors *file,
                                                          const char *format, ...);

#define GOLDEN_NAME_BYTES 320

/* The name of a module or tensor as golden files have it: of a decoder beside towers without "language_model.". */
const char *golden_name(char out[GOLDEN_NAME_BYTES], const char *name);

/* The larger of the two; NaN if one is. */
double worse(double a, double b);

/* Prints "what: measured (allowed)" and fails where measured is larger, or NaN. */
void judge(const char *what, double measured, double allowed);

#endif
