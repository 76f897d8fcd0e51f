/*
 * tests/commands/merged_experts.h: merged experts against W + s B A, in double, from the files alone: each expert's
 * matrices whichever way a checkpoint has them, and PEFT's A and B of a parameter of all experts.
 */
#ifndef TSR_TESTS_COMMANDS_MERGED_EXPERTS_H
#define TSR_TESTS_COMMANDS_MERGED_EXPERTS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    const char *base; /* a directory; in NF4 or not */
    const char
        *dequantized; /* a file with what some layers of the base hold in another way; NULL */
    const char *merged, *adapter; /* directories */
    bool turned; /* tensors of all experts are transposed, with gate and up by turns */
} merged_experts;

/* The share of elements that are not W + s B A rounded to bf16; fails where one is farther from it than such a rounding.
 * Both parameters of every layer with experts have an adapter. */
double merged_experts_others(const merged_experts *m);

#endif
