#include "adapters/dora_norm.h"

#include "adapters/clones.h"

#include <math.h>

#define LANES 16 /* partial sums of a dot product: fixed, so that every instruction set agrees */

/* A tree over the lanes: 16 -> 8 -> 4 -> 2 -> 1. */
static inline __attribute__((always_inline)) float sum_lanes(float lane[LANES])
{
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
}

static inline __attribute__((always_inline)) float dot(const float *x, const float *y, uint64_t n)
{
    float lane[LANES] = {0};
    uint64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] += x[i + (uint64_t)l] * y[i + (uint64_t)l];
    for (int l = 0; i < n; i++, l++)
        lane[l] += x[i] * y[i];
    return sum_lanes(lane);
}

TSR_CLONES void tsr_dora_row_squares(float *squares, const float *w, uint64_t rows,
                                     uint64_t columns)
{
    for (uint64_t j = 0; j < rows; j++) {
        const float *row = w + j * columns;
        double lane[LANES] = {0};
        uint64_t i = 0;
        for (; i + LANES <= columns; i += LANES)
            for (int l = 0; l < LANES; l++)
                lane[l] += (double)row[i + (uint64_t)l] * (double)row[i + (uint64_t)l];
        for (int l = 0; i < columns; i++, l++)
            lane[l] += (double)row[i] * (double)row[i];
        for (int half = LANES / 2; half; half /= 2)
            for (int l = 0; l < half; l++)
                lane[l] += lane[l + half];
        squares[j] = (float)lane[0];
    }
}

/* b G b^T for one row: each row of the symmetric G is dotted with b as it is read. */
static inline __attribute__((always_inline)) float quadratic(const float *b, const float *gram,
                                                             uint64_t r)
{
    float lane[LANES] = {0};
    for (uint64_t k = 0; k < r; k++)
        lane[k % LANES] += dot(gram + k * r, b, r) * b[k];
    return sum_lanes(lane);
}

TSR_CLONES void tsr_dora_norm(float *n, const float *squares, const float *u, const float *gram,
                              const float *b, uint64_t rows, uint64_t r, double s)
{
    float twice = (float)(2 * s), square = (float)(s * s);
    for (uint64_t j = 0; j < rows; j++) {
        float cross = dot(b + j * r, u + j * r, r);
        float ba = quadratic(b + j * r, gram, r);
        float value = (squares[j] + twice * cross) + square * ba;
        n[j] = sqrtf(value < 0 ? 0 : value); /* a NaN is not below 0 and stays */
    }
}

TSR_CLONES void tsr_dora_gain(float *g, const float *m, const float *n, uint64_t rows)
{
    for (uint64_t j = 0; j < rows; j++)
        g[j] = m[j] / n[j];
}
