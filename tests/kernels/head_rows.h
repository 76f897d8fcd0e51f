/*
 * tests/kernels/head_rows.h: rows of h whose label is known, and how far a row of dh is off.
 */
#ifndef TSR_TESTS_HEAD_ROWS_H
#define TSR_TESTS_HEAD_ROWS_H

#include <math.h>
#include <stdint.h>

/* h along w, so that h w' = logit: the softmax of a vocabulary of V gives it about 1 - V exp(-logit). */
static inline void put_along(float *h, const float *w, int64_t d, double logit)
{
    double square = 0;
    for (int64_t j = 0; j < d; j++)
        square += (double)w[j] * (double)w[j];
    for (int64_t j = 0; j < d; j++)
        h[j] = (float)((double)w[j] * logit / square);
}

/* |got - want| / |want| of a row. */
static inline double row_distance(const float *got, const double *want, int64_t d)
{
    double off = 0, all = 0;
    for (int64_t j = 0; j < d; j++) {
        off += ((double)got[j] - want[j]) * ((double)got[j] - want[j]);
        all += want[j] * want[j];
    }
    return sqrt(off / all);
}

#endif
