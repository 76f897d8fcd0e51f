/*
 * quant/mxfp4.h: MXFP4, in which gpt-oss's experts are published: blocks of 32 elements with a power of two each. The
 * format is in kernels/mxfp4_dequant.h; here are the scalar way back, and what a file may hold.
 *
 * Threads  Everything here is pure: any thread, any range.
 */
#ifndef TSR_QUANT_MXFP4_H
#define TSR_QUANT_MXFP4_H

#include "kernels/mxfp4_dequant.h"

#include <stdint.h>

/* Elements [first, first + count) of rows whose codes and scales start at element 0, block 0; `dtype` is F32, BF16 or
 * F16 (else TSR_EINVAL). Exact but for F16, which is rounded. The scalar reference. */
tsr_status tsr_mxfp4_dequantize(void *out, tsr_dtype dtype, const uint8_t *codes,
                                const uint8_t *scales, uint64_t first, uint64_t count);

/* The first of `blocks` blocks that holds something else than finite numbers: by a scale of 255, or by a power so large
 * that a value of the block is beyond fp32. `blocks`: none does. */
uint64_t tsr_mxfp4_first_bad(const uint8_t *codes, const uint8_t *scales, uint64_t blocks);

#endif
