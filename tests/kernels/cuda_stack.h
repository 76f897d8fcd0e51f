/*
 * tests/kernels/cuda_stack.h: the stored weights of experts (kernels/expert_weight.h), random, on both sides.
 */
#ifndef TSR_TESTS_KERNELS_CUDA_STACK_H
#define TSR_TESTS_KERNELS_CUDA_STACK_H

#include "cuda_case.h"
#include "cuda_nf4.h"

typedef struct {
    int64_t experts, parts, rows, columns, first, count;
    bool nested;
} stack;

typedef struct {
    stack s;
    uint8_t *codes, *q;
    float *absmax, *nested_absmax, *map, *offset;
    int64_t granules, groups; /* of a matrix */
    tsr_expert_weight_args host, device;
} stack_data;

static inline uint8_t *new_bytes(int64_t count, uint64_t seed)
{
    uint8_t *bytes = malloc((size_t)count + 8);
    assert_non_null(bytes);
    for (int64_t i = 0; i < count; i++)
        bytes[i] = (uint8_t)random_bits((uint64_t)i + seed);
    return bytes;
}

static inline stack_data new_stack(const stack *s, tsr_dtype dtype)
{
    int64_t matrices = s->experts * s->parts, elements = s->count * s->rows * s->columns;
    stack_data d = {.s = *s,
                    .granules = tsr_expert_granules(s->rows / s->parts, s->columns),
                    .groups = tsr_expert_groups(s->rows / s->parts, s->columns)};
    int64_t blocks = matrices * d.granules * 16;
    d.codes = new_bytes(blocks * 32, 1), d.q = new_bytes(blocks, 7);
    d.absmax = keep(new_random(blocks, 2, 0.1f));
    d.nested_absmax = keep(new_random(matrices * d.groups, 3, 0.3f));
    d.map = keep(new_random(256, 4, 1)), d.offset = keep(new_random(matrices, 5, 0.1f));
    d.host = (tsr_expert_weight_args){.out = want_of(elements),
                                      .codes = d.codes,
                                      .absmax = s->nested ? (void *)d.q : (void *)d.absmax,
                                      .nested_absmax = d.nested_absmax,
                                      .nested_map = d.map,
                                      .offset = d.offset,
                                      .level = nf4_level,
                                      .first = s->first,
                                      .count = s->count,
                                      .parts = s->parts,
                                      .rows = s->rows,
                                      .columns = s->columns,
                                      .nested = s->nested};
    d.device = d.host;
    d.device.dtype = dtype;
    d.device.codes = cuda_copy(d.codes, (uint64_t)blocks * 32);
    d.device.absmax =
        s->nested ? cuda_copy(d.q, (uint64_t)blocks) : cuda_copy(d.absmax, (uint64_t)blocks * 4);
    d.device.nested_absmax = cuda_copy(d.nested_absmax, (uint64_t)(matrices * d.groups) * 4);
    d.device.nested_map = cuda_copy(d.map, 1024);
    d.device.offset = cuda_copy(d.offset, (uint64_t)matrices * 4);
    d.device.level = cuda_copy(nf4_level, 64);
    return d;
}

#endif
