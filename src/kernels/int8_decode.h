/*
 * kernels/int8_decode.h: a weight of LLM.int8 in the compute dtype: out[i, j] = RN(RN(code[i, j] scale[i]) / 127), in fp32, then
 * rounded to the dtype once. bitsandbytes' int8_vectorwise_dequant, whose scale is the row's largest magnitude (SCB).
 *
 * Cost     rows columns bytes read, and as many elements of the dtype written.
 */
#ifndef TSR_KERNELS_INT8_DECODE_H
#define TSR_KERNELS_INT8_DECODE_H

#include "kernels/types.h"

#define TSR_INT8_MOST 127.0f

typedef struct {
    void *out;          /* [rows, columns] of the dtype */
    const int8_t *code; /* [rows, columns] */
    const float *scale; /* [rows] */
    int64_t rows, columns;
    tsr_dtype dtype; /* F32, BF16 or F16 */
} tsr_int8_decode_args;

tsr_status tsr_int8_decode_check(const tsr_int8_decode_args *args);
tsr_status tsr_int8_decode_ref(const tsr_int8_decode_args *args, tsr_pool *pool);

#endif
