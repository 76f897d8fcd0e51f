/*
 * kernels/fp8_blocks.h: a weight in e4m3 with one scale for each block of 128 x 128, as DeepSeek-V3 is published, in the compute
 * dtype: out[i, j] = RN_bf16(RN(code[i, j] scale[i / 128, j / 128])), then in the dtype. These are the values that DeepSeek's
 * fp8_cast_bf16.py makes (io/fp8_blocks.h), so a base that stays in e4m3 has the bits of its BF16 copy.
 *
 * Cost     rows columns bytes read, and as many elements of the dtype written.
 */
#ifndef TSR_KERNELS_FP8_BLOCKS_H
#define TSR_KERNELS_FP8_BLOCKS_H

#include "kernels/fp8.h"
#include "kernels/types.h"

#define TSR_FP8_BLOCK_SIZE 128

typedef struct {
    void *out;           /* [rows, columns] of the dtype */
    const uint8_t *code; /* [rows, columns] */
    const float *scale;  /* [ceil(rows / 128), ceil(columns / 128)] */
    int64_t rows, columns;
    tsr_dtype dtype; /* F32, BF16 or F16 */
} tsr_fp8_blocks_args;

TSR_FP8_INLINE int64_t tsr_fp8_blocks_across(int64_t columns)
{
    return (columns + TSR_FP8_BLOCK_SIZE - 1) / TSR_FP8_BLOCK_SIZE;
}

tsr_status tsr_fp8_blocks_check(const tsr_fp8_blocks_args *args);
tsr_status tsr_fp8_blocks_ref(const tsr_fp8_blocks_args *args, tsr_pool *pool);

#endif
