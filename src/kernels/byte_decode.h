/*
 * kernels/byte_decode.h: a weight with one byte per element, in the compute dtype.
 *
 *     I8       LLM.int8: out[i, j] = RN(RN(code[i, j] scale[i]) / 127), in fp32. bitsandbytes' int8_vectorwise_dequant, whose
 *              scale is the row's largest magnitude (SCB).
 *     F8_E4M3  blocks of 128 x 128, as DeepSeek-V3 is published: out[i, j] = RN_bf16(RN(code[i, j] scale[i / 128, j / 128])),
 *              the values of DeepSeek's fp8_cast_bf16.py (io/fp8_blocks.h). A base in e4m3 therefore has the bits of its
 *              BF16 copy.
 *
 * Either is then rounded to the dtype once.
 *
 * Cost     rows columns bytes read, and as many elements of the dtype written.
 */
#ifndef TSR_KERNELS_BYTE_DECODE_H
#define TSR_KERNELS_BYTE_DECODE_H

#include "kernels/fp8.h"
#include "kernels/types.h"

#define TSR_INT8_MOST  127.0f
#define TSR_E4M3_BLOCK 128

typedef struct {
    void *out;          /* [rows, columns] of the dtype */
    const void *code;   /* [rows, columns] of code_dtype */
    const float *scale; /* I8: [rows]; F8_E4M3: [ceil(rows / 128), ceil(columns / 128)] */
    int64_t rows, columns;
    tsr_dtype code_dtype; /* I8 or F8_E4M3 */
    tsr_dtype dtype;      /* F32, BF16 or F16 */
} tsr_byte_decode_args;

/* Where the scale of an element in e4m3 is. */
TSR_FP8_INLINE int64_t tsr_e4m3_block(int64_t columns, int64_t row, int64_t column)
{
    int64_t across = (columns + TSR_E4M3_BLOCK - 1) / TSR_E4M3_BLOCK;
    return row / TSR_E4M3_BLOCK * across + column / TSR_E4M3_BLOCK;
}

tsr_status tsr_byte_decode_check(const tsr_byte_decode_args *args);
tsr_status tsr_byte_decode_ref(const tsr_byte_decode_args *args, tsr_pool *pool);

#endif
