/*
 * kernels/double_vectors.h: vectors in fp64, on the host, for the decompositions at start-up. Sums are
 * in a fixed order.
 */
#ifndef TSR_KERNELS_DOUBLE_VECTORS_H
#define TSR_KERNELS_DOUBLE_VECTORS_H

#include "kernels/types.h"

double tsr_double_dot(const double *a, const double *b, int64_t count);

/* y += factor x. */
void tsr_double_add(double *y, double factor, const double *x, int64_t count);

/* Length 1; a vector of zeros stays one. */
void tsr_double_normalize(double *x, int64_t count);

/* Makes rows [count, n] orthonormal, each in the space of itself and those before it (modified
 * Gram-Schmidt, twice). What is left of one that depends on others is any vector, or zeros. */
void tsr_double_orthonormalize(double *rows, int64_t count, int64_t n, tsr_pool *pool);

#endif
