/*
 * adapters/linear_fp8.h: the base's matmuls of a linear in e4m3, in the memory of context->fp8. Inside
 * src/adapters only.
 */
#ifndef TSR_ADAPTERS_LINEAR_FP8_H
#define TSR_ADAPTERS_LINEAR_FP8_H

#include "adapters/linear.h"

/* Makes the weight of these codes: [out, in], or [in, out] for the backward; its scales are of W's rows
 * both times. With `made`, of the backward, those are there already. */
tsr_status tsr_linear_fp8_weight(const tsr_linear_context *context,
                                 const tsr_nf4_dequant_args *codes, bool transposed,
                                 tsr_fp8_rows made);

/* z = W x + beta z, of the x that was put into context->fp8 last. */
tsr_status tsr_linear_fp8_forward(const tsr_linear_context *context, const tsr_linear *linear,
                                  void *z, float beta);

/* dx = W^T dz + beta dx; the weight is transposed. Multiplied is what was made of dz; without (out NULL) it
 * is made here, over what was quantized before. */
tsr_status tsr_linear_fp8_backward(const tsr_linear_context *context, const tsr_linear *linear,
                                   void *dx, const void *dz, float beta, tsr_fp8_rows made);

/* The scales of W's rows alone. */
tsr_status tsr_linear_fp8_scales(const tsr_linear_context *context, float *out,
                                 const tsr_nf4_dequant_args *codes);

/* Makes the weight, [out, in], and its values without the scales, exact, where the codes are to be
 * decoded to. */
tsr_status tsr_linear_fp8_values(const tsr_linear_context *context,
                                 const tsr_nf4_dequant_args *codes);

#endif
