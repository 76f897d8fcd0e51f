/*
 * kernels/grouped_ref.h: what the references of grouped_gemm and grouped_fp8 share. Inside src/kernels only.
 */
#ifndef TSR_KERNELS_GROUPED_REF_H
#define TSR_KERNELS_GROUPED_REF_H

#include "kernels/gemm_block.h"
#include "kernels/grouped_gemm.h"

/* Blocks of `height` rows and `width` columns of all experts of the call. */
int tsr_grouped_blocks(const tsr_grouped_gemm_args *args, int64_t height, int64_t width);

/* Adds low and the factor of such a block; of `block` m, n, c, ldc and alpha count. */
void tsr_grouped_add_low(const tsr_grouped_gemm_args *args, const tsr_expert_block *rows,
                         tsr_gemm_block_args block, int64_t column);

#endif
