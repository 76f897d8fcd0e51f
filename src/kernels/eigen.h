/*
 * kernels/eigen.h: the largest eigenvalues of a symmetric matrix and their vectors, in fp64, on the
 * host: Householder's reduction to a tridiagonal one in panels (as LAPACK's dsytrd), its eigenvalues
 * by bisection, their vectors by inverse iteration, and the reflections back (Golub and Van Loan,
 * "Matrix Computations", 8.3 and 8.4). Vectors are orthonormal to rounding, those of equal
 * eigenvalues too. The bits depend on the matrix alone, not on the number of threads.
 *
 * Cost     4/3 n^3 FLOPs, half of them memory bound: 8/3 n^3 bytes; then 2 n^2 + 2 n count a vector.
 */
#ifndef TSR_KERNELS_EIGEN_H
#define TSR_KERNELS_EIGEN_H

#include "kernels/types.h"

/* matrix [n, n], both halves given, is destroyed. values [count], the largest first; vectors
 * [count, n], one a row. 1 <= count <= n. TSR_ENOMEM. */
tsr_status tsr_eigen_largest(double *values, double *vectors, double *matrix, int64_t n,
                             int64_t count, tsr_pool *pool);

#endif
