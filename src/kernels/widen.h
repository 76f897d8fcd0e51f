/*
 * kernels/widen.h: out[i] = scale in[i], converted; BF16 or F16 or F32 to the compute dtype (a base that
 * is not quantized, an adapter's working copy); or e4m3 to it (an fp8 base, for DoRA's norm), exact.
 *
 * Cost     count elements read and written.
 */
#ifndef TSR_KERNELS_WIDEN_H
#define TSR_KERNELS_WIDEN_H

#include "kernels/types.h"

typedef struct {
    void *out;
    const void *in; /* may be out, of one dtype */
    int64_t count;
    tsr_dtype in_dtype; /* F32, BF16, F16 or F8_E4M3 */
    tsr_dtype dtype;    /* of out */
    float scale;        /* 0: 1 */
} tsr_widen_args;

tsr_status tsr_widen_check(const tsr_widen_args *args);
tsr_status tsr_widen_ref(const tsr_widen_args *args, tsr_pool *pool);

#endif
