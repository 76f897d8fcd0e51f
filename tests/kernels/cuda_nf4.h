/*
 * tests/kernels/cuda_nf4.h: NF4 codes and scales for the CUDA ops that read them: random, with extremes
 * among the fp32 scales; and outputs with guards behind them.
 */
#ifndef TSR_TESTS_KERNELS_CUDA_NF4_H
#define TSR_TESTS_KERNELS_CUDA_NF4_H

#include "cuda_test.h"

#define GUARD 64 /* bytes after an output that must stay as they were */

/* An output of `count` elements, `offset` elements off its alignment. */
static inline void *new_output(int64_t count, tsr_dtype dtype, int offset)
{
    uint32_t each = tsr_dtype_bytes(dtype);
    char *out = cuda_copy(NULL, (uint64_t)(count + offset) * each + GUARD);
    return out + (uint32_t)offset * each;
}

static inline uint64_t random_bits(uint64_t i)
{
    return tsr_mix(i * 0x9E3779B97F4A7C15u + 17);
}

typedef struct {
    int64_t count, columns; /* columns 0: no row factor */
    bool nested;
    int out_offset, code_offset; /* elements, bytes */
} nf4_case;

typedef struct {
    uint8_t *codes, *q;
    float *absmax, *nested, *map, *level, *factor, *want;
    int64_t blocks, rows;
} nf4_data;

static const float nf4_level[16] = {
    -1.0f,      -0.6961928f, -0.5250731f, -0.3949175f, -0.2844414f, -0.1847734f, -0.09105f,  0,
    0.0795803f, 0.1609302f,  0.2461123f,  0.3379152f,  0.4407098f,  0.562617f,   0.7229568f, 1};
static const float extreme[] = {0,        -0.0f, 1e-40f, -1e-38f, 3e38f,
                                INFINITY, NAN,   65504,  1e-7f,   6e-8f};
#define EXTREMES ((int64_t)(sizeof extreme / sizeof *extreme))

static inline nf4_data new_nf4(const nf4_case *c)
{
    nf4_data d = {.blocks = (c->count + 63) / 64, .rows = 1};
    int64_t bytes = (c->count + 1) / 2 + c->code_offset;
    if (c->columns)
        d.rows = (c->count + c->columns - 1) / c->columns;
    d.codes = malloc((size_t)bytes + 8);
    d.q = malloc((size_t)d.blocks);
    assert_true(d.codes && d.q);
    for (int64_t i = 0; i < bytes; i += 8) {
        uint64_t word = random_bits((uint64_t)i);
        memcpy(d.codes + i, &word, (size_t)(bytes - i < 8 ? bytes - i : 8));
    }
    for (int64_t i = 0; i < d.blocks; i++)
        d.q[i] = (uint8_t)random_bits((uint64_t)i + 1000000);
    d.absmax = new_random(d.blocks, 2, 0.1f);
    for (int64_t i = 3; i < d.blocks && i < 3 + EXTREMES; i++)
        d.absmax[i] = extreme[i - 3];
    d.nested = new_random(d.blocks / 256 + 1, 3, 0.3f);
    d.map = new_random(256, 4, 1);
    d.level = new_floats(16);
    memcpy(d.level, nf4_level, sizeof nf4_level);
    d.factor = new_gain(d.rows, 5);
    d.want = new_floats(c->count);
    return d;
}

static inline void free_nf4(nf4_data *d)
{
    free(d->codes), free(d->q), free(d->absmax), free(d->nested), free(d->map), free(d->level);
    free(d->factor), free(d->want);
}

#endif
