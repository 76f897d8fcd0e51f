/*
 * tests/model/random_block.h: blocks of every kind of node, in orders that no model has.
 */
#ifndef TSR_TESTS_MODEL_RANDOM_BLOCK_H
#define TSR_TESTS_MODEL_RANDOM_BLOCK_H

#include "model/program.h"

/* A layer of one to three parts, each of a norm and attention, linear attention or an MLP, from `seed` alone; heads and widths are
 * small. *out is written. */
void random_block(tsr_block *out, uint64_t seed);

/* What its linears have beside their weights: some have an adapter, LoRA or DoRA, where `dropout` composed. traits:
 * [TSR_BLOCK_WEIGHTS], written. */
void random_traits(tsr_matrix_traits *traits, const tsr_block *block, uint64_t seed, bool dropout);

/* What it may keep: with `how` 0 everything, 1 any set, 2 nothing. */
tsr_keep random_keep(uint64_t seed, int how);

#endif
