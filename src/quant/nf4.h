/*
 * quant/nf4.h: NF4 codes with double-quantized scales, bit for bit as bitsandbytes stores them
 * (docs: FORMATS 1). Plain functions over arrays: the rules of kernels/nf4_quantize.h with judged
 * arguments, and the scalar way back. The cut over ranks is quant/nf4_tensor.h.
 *
 * A tensor is flat and row-major, in blocks of 64 elements with one scale (absmax) each; the last
 * block may be short. Element 2j is the HIGH nibble of byte j. Scales are fp32, or 8-bit codes of
 * (absmax - offset) in nested blocks of 256 scales.
 *
 * Threads  Everything here is pure: any thread, any range.
 */
#ifndef TSR_QUANT_NF4_H
#define TSR_QUANT_NF4_H

#include "kernels/nf4_quantize.h"

#include <stdint.h>

/* How the scales of one tensor are decoded. All pointers are borrowed. */
typedef struct {
    bool nested;                /* false: the scales are fp32 and nothing below is used */
    float offset;               /* RN_fp32 of the mean of all absmax */
    const float *nested_absmax; /* [ceil(blocks / 256)] of the whole tensor */
    const float *nested_map;    /* [256]; NULL: tsr_nf4_nested_map */
} tsr_nf4_scales;

/* Codes and fp32 absmax of `count` elements that start on a block boundary. `values` is F32, BF16
 * or F16. codes: [(count + 1) / 2] bytes, a missing last element is code 7; absmax:
 * [ceil(count / 64)]. Rule: absmax is the largest |x|; code = thresholds below x * (1 / absmax),
 * the reciprocal correctly rounded; a block of zeros has code 7 and absmax 0. TSR_EDATA: a NaN or
 * an infinity, with its index counted from `values` (codes and absmax are then unspecified);
 * TSR_EINVAL: another dtype. */
tsr_status tsr_nf4_quantize(uint8_t *codes, float *absmax, const void *values, tsr_dtype dtype,
                            uint64_t count);

/* Double quantization of the absmax of a whole tensor, [blocks]: *offset = RN_fp32(exact sum /
 * blocks), nested_absmax [ceil(blocks / 256)], and the 8-bit codes of blocks [first, first + count)
 * into q [count]. At most 2^29 blocks (the exact sum). TSR_EDATA: an absmax is not finite. */
tsr_status tsr_nf4_quantize_absmax(uint8_t *q, float *nested_absmax, float *offset,
                                   const float *absmax, uint64_t blocks, uint64_t first,
                                   uint64_t count);

/* The same with a given offset (a checkpoint's): codes and nested_absmax only. */
void tsr_nf4_nest_absmax(uint8_t *q, float *nested_absmax, const float *absmax, uint64_t blocks,
                         uint64_t first, uint64_t count, float offset);

/* RN(RN(map[q[i]] * nested_absmax[(first + i) / 256]) + offset): fp32 scales of blocks
 * [first, first + count) of the tensor; q points at block `first`. */
void tsr_nf4_decode_absmax(float *out, const uint8_t *q, uint64_t first, uint64_t count,
                           const tsr_nf4_scales *scales);

/* Elements [first, first + count) of a tensor whose codes and scales start at element 0, block 0:
 * RN_dtype(level[code] * absmax), the product in fp32. `absmax` is uint8_t or float as
 * scales->nested says. `dtype` is F32, BF16 or F16 (else TSR_EINVAL). With row_factor not NULL,
 * element e is multiplied in fp32 by row_factor[e / columns] before the rounding to dtype. The
 * scalar reference. */
typedef struct {
    const uint8_t *codes;
    const void *absmax;
    const tsr_nf4_scales *scales;
} tsr_nf4_view;

tsr_status tsr_nf4_dequantize(void *out, tsr_dtype dtype, const tsr_nf4_view *view, uint64_t first,
                              uint64_t count, const float *row_factor, uint64_t columns);

#endif
