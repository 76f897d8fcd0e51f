/*
 * kernels/nf4_stack.cuh: the kernels of nf4_dequant over many matrices in one launch: matrices of
 * one shape below each other are one tall matrix, where their codes and scales leave no gaps and no tile has rows
 * of two (expert_weight.cu says when). What each has for itself is found from the row.
 */
#ifndef TSR_KERNELS_NF4_STACK_CUH
#define TSR_KERNELS_NF4_STACK_CUH

#include "kernels/nf4_scale.cuh"

typedef struct {
    const float *offset; /* of nested scales, of each matrix */
    int matrix_rows;
} tsr_nf4_stack;

/* Where args->nested; of a kernel that is for stacks. */
static __device__ __forceinline__ float
tsr_nf4_stack_offset(const tsr_nf4_stack *stack, const tsr_nf4_dequant_args *a, int64_t row)
{
    return a->nested ? stack->offset[(uint32_t)row / (uint32_t)stack->matrix_rows] : 0;
}

/* nf4_dequant.cu */
void tsr_nf4_dequant_stack(tsr_stream *stream, const tsr_nf4_dequant_args *args,
                           const tsr_nf4_stack *stack);

#endif
