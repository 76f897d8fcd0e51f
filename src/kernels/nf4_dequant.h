/*
 * kernels/nf4_dequant.h: NF4 codes and their scales to values, bit for bit as bitsandbytes
 * (docs: FORMATS 1).
 *
 * The tensor is flat, in blocks of 64 elements that may cross rows; the last may be short. Element
 * 2j is the high nibble of byte j. out[e] = RN_dtype(level[code] * absmax), the product in fp32;
 * nested scales are absmax = RN(RN(map[q] * nested_absmax[block / 256]) + offset). With row_factor,
 * element e is multiplied in fp32 by row_factor[e / columns] before the rounding to dtype.
 *
 * Cost     per element: 1/2 + 1/64 bytes read (1/2 + 1/16 with fp32 scales), one element written.
 */
#ifndef TSR_KERNELS_NF4_DEQUANT_H
#define TSR_KERNELS_NF4_DEQUANT_H

#include "kernels/types.h"

typedef struct {
    void *out;                  /* [count] */
    const uint8_t *codes;       /* [(count + 1) / 2] */
    const void *absmax;         /* [ceil(count / 64)]: uint8_t if nested, else float */
    const float *nested_absmax; /* [ceil(blocks / 256)], if nested */
    const float *nested_map;    /* [256], if nested */
    const float *level;         /* [16] */
    const float *row_factor;    /* [rows], optional */
    int64_t count;
    int64_t columns; /* of a row; used with row_factor only */
    float offset;
    bool nested;
    /* No kernel of the stream has written codes, scales or their maps since its last copy, fill or event: they may
     * be read while the kernel before this one ends (cuda.cuh). */
    bool settled;
    tsr_dtype dtype; /* of out */
} tsr_nf4_dequant_args;

tsr_status tsr_nf4_dequant_check(const tsr_nf4_dequant_args *args);
tsr_status tsr_nf4_dequant_ref(const tsr_nf4_dequant_args *args, tsr_pool *pool);

#endif
