/*
 * adapters/principal.h: PiSSA (Meng, Wang and Zhang, "PiSSA: Principal Singular Values and Singular
 * Vectors Adaptation", 2024): an adapter that starts from the principal part of its weight. With
 * W = U S V^T and the r largest singular values,
 *
 *     A = sqrt(S_r / scale) V_r^T    B = U_r sqrt(S_r / scale)
 *
 * so that scale B A is the best approximation of rank r; the base keeps W - scale B A
 * (kernels/low_rank_residual.h). Signs of the columns are free.
 *
 * Exact: the eigenvectors of W^T W or W W^T, the smaller one, in fp64. Otherwise after Halko,
 * Martinsson and Tropp, "Finding structure with randomness", 2011, as torch.svd_lowrank: r random
 * directions and `rounds` rounds of power iteration, without oversampling.
 *
 * Memory   Exact: n^2 doubles, n the smaller side, and a panel; else some vectors of each side a rank.
 */
#ifndef TSR_ADAPTERS_PRINCIPAL_H
#define TSR_ADAPTERS_PRINCIPAL_H

#include "base/dtype.h"
#include "device/device.h"

#include <stdint.h>

#define TSR_PRINCIPAL_EXACT (-1)

typedef struct {
    const float *w; /* [out, in] */
    uint64_t out, in, r;
    double scale;
    int64_t rounds; /* or TSR_PRINCIPAL_EXACT */
    uint64_t seed, module_key;
    tsr_dtype dtype; /* to which A and B are rounded: that in which they will be used */
} tsr_principal_args;

/* a [r, in], b [out, r]; zeros beyond the smaller side of W. The same bits on any number of threads.
 * TSR_ENOMEM. */
tsr_status tsr_principal_factors(float *a, float *b, const tsr_principal_args *args,
                                 tsr_pool *pool);

#endif
