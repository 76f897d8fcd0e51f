/*
 * quant/int8.h: weights as bitsandbytes' LLM.int8 stores them: a row's codes and its scale SCB. The rule is that of
 * Linear8bitLt on the CPU (bitsandbytes 0.50): through fp16 first.
 *
 *     w16 = fp16(w), SCB = max |w16| of the row, scale = RN(127 RN(1 / SCB)), code = round to even(RN(w16 scale))
 *
 * The weight is code SCB / 127 (kernels/byte_decode.h). A row of zeros has SCB 0 and codes 0.
 */
#ifndef TSR_QUANT_INT8_H
#define TSR_QUANT_INT8_H

#include "base/status.h"
#include "io/checkpoint.h"

#include <stdbool.h>
#include <stdint.h>

/* One row; codes may be NULL. False: a value is not finite, or too large for fp16; nothing is to be relied on. */
bool tsr_int8_quantize_row(int8_t *codes, float *scale, const float *row, uint64_t columns);

/* Elements [first, first + count) of an int8 weight as a checkpoint has it. TSR_EDATA: a scale is not finite. */
tsr_status tsr_int8_stored_read(float *out, const tsr_weight *source, uint64_t first,
                                uint64_t count);

#endif
