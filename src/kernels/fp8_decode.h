/*
 * kernels/fp8_decode.h: a weight in NF4 to e4m3, with a scale for each row (kernels/fp8.h), as it lies or
 * transposed, which is what dX = dY W multiplies by.
 *
 * v = RN_fp32(level[code] * absmax), as nf4_dequant gives it (nf4_dequant.h has the format). A row's amax
 * is bounded without looking at its codes: the largest |absmax| of the blocks that it touches times the
 * largest |level|. It is exact where a block's own largest value lies in the row, as it nearly always
 * does; e4m3 is a floating point, so a scale that is somewhat larger costs no precision. Both layouts
 * have the same scales and the same codes. A row with an absmax that is not finite is NaN.
 *
 * The scales alone come first where rows are quantized with them before the weight is needed
 * (fp8_quantize.h, column_factor).
 *
 * A weight that is not quantized is a matter of fp8_quantize; there is no transposed form of that.
 *
 * Cost     per element: 1/2 + 1/64 bytes read (1/2 + 1/16 with fp32 scales), 1 written; transposed the
 *          scales are read twice, or by each of two calls.
 */
#ifndef TSR_KERNELS_FP8_DECODE_H
#define TSR_KERNELS_FP8_DECODE_H

#include "kernels/nf4_dequant.h"

typedef struct {
    /* count is rows * columns, out uint8_t [rows, columns] or [columns, rows], NULL: only the scales are
     * made; row_factor is NULL, and dtype is TSR_F8_E4M3. */
    tsr_nf4_dequant_args weight;
    float *scale; /* [rows] */
    bool transposed;
    bool scaled; /* transposed: scale has what was made of these codes before, and is only read */
} tsr_fp8_decode_args;

tsr_status tsr_fp8_decode_check(const tsr_fp8_decode_args *args);
tsr_status tsr_fp8_decode_ref(const tsr_fp8_decode_args *args, tsr_pool *pool);

/* The bits of the largest |absmax| of blocks [first, end), a NaN's above all; and the scale of what has that. */
uint32_t tsr_fp8_decode_most(const tsr_nf4_dequant_args *w, int64_t first, int64_t end);
float tsr_fp8_decode_scale(uint32_t most, const float level[16]);

/* Row `row` with this scale: element j goes to out[j * stride]. */
void tsr_fp8_decode_row(uint8_t *out, int64_t stride, const tsr_nf4_dequant_args *w, int64_t row,
                        float scale);

/* The e4m3 code of each of a block's 16 NF4 codes, in a row of this scale. */
void tsr_fp8_decode_block(uint8_t out[16], const tsr_nf4_dequant_args *w, int64_t block,
                          float scale);

#endif
