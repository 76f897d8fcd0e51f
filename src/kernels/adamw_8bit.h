/*
 * kernels/adamw_8bit.h: AdamW in the arithmetic of bitsandbytes' blockwise AdamW8bit, as its CUDA kernels
 * have it (csrc/kernels.cu, kOptimizerStatic8bit2StateBlockwise and kOptimizer32bit2State).
 *
 * Spans are those of adamw.h. Where one has `absmax`, its moments are codes of 8 bits, in blocks of
 * TSR_ADAMW_BLOCK elements; else they are fp32, and the arithmetic is the same. With f() rounding a double to
 * fp32 and every operation rounded once:
 *     g = RN(acc 2^-shift) * clip
 *     m = signed[code] * absmax, v = unsigned[code] * absmax             (of a block of zeros: 0)
 *     v = v * f(b2) + ((1 - f(b2)) * g) * g
 *     m = m * f(b1) + (1 - f(b1)) * g
 *     p = (p + -f(lr c2 / c1) * (m / (sqrt(v) + f(c2) * f(eps)))) * f(1 - lr wd)
 *         c1 = 1 - b1^t, c2 = sqrt(1 - b2^t)
 *     absmax = the largest magnitude of the block; code = the map's entry nearest to m / absmax, the lower one of a tie
 * If the sign bits of that entry and m differ, the next entry on m's side of 0 is taken: a small negative m never becomes
 * 0, a small positive one may. The parameter moves by the moments before they are encoded, and weight decay follows the
 * update, unlike in adamw.h.
 *
 * Codes and absmax start as zeros. Cutting a block would change its bits, so the count of a span with absmax is a multiple
 * of TSR_ADAMW_BLOCK.
 */
#ifndef TSR_KERNELS_ADAMW_8BIT_H
#define TSR_KERNELS_ADAMW_8BIT_H

#include "kernels/adamw.h"
#include "kernels/nf4_quantize.h"

#define TSR_ADAMW_BLOCK 256

/* Tensors of fewer elements keep fp32 moments (bitsandbytes' min_8bit_size). */
#define TSR_ADAMW_CODED_LEAST 4096

/* The maps of bitsandbytes' create_dynamic_map(signed), ascending: of m, and of v. */
#define tsr_dynamic_signed tsr_nf4_nested_map
extern const float tsr_dynamic_unsigned[256];

/* Half way between the entries of a map, in fp32: a value's code is the number of those below it. */
static inline void tsr_dynamic_midpoints(float out[255], const float map[256])
{
    for (int i = 0; i < 255; i++)
        out[i] = (map[i] + map[i + 1]) * 0.5f;
}

typedef tsr_adamw_args tsr_adamw_8bit_args;

/* Cost: 22.1 bytes moved for each element with codes and a bf16 working copy. */
tsr_status tsr_adamw_8bit_check(const tsr_adamw_8bit_args *args);
tsr_status tsr_adamw_8bit_ref(const tsr_adamw_8bit_args *args, tsr_pool *pool);

#endif
