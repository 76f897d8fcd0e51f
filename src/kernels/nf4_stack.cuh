/*
 * kernels/nf4_stack.cuh: the kernels of nf4_dequant and nf4_merge over many matrices in one launch: matrices of
 * one shape below each other are one tall matrix, where their codes and scales leave no gaps and no tile has rows
 * of two (expert_weight.cu says when). What each has for itself is found from the row.
 */
#ifndef TSR_KERNELS_NF4_STACK_CUH
#define TSR_KERNELS_NF4_STACK_CUH

#include "kernels/nf4_scale.cuh"

typedef struct {
    const float *offset; /* of nested scales, of each matrix */
    int matrix_rows;
    int expert_rows; /* rows that have an A of their own */
} tsr_nf4_stack;

/* Where args->nested; of a kernel that is for stacks. */
static __device__ __forceinline__ float
tsr_nf4_stack_offset(const tsr_nf4_stack *stack, const tsr_nf4_dequant_args *a, int64_t row)
{
    return a->nested ? stack->offset[(uint32_t)row / (uint32_t)stack->matrix_rows] : 0;
}

/* nf4_dequant.cu, nf4_merge_low.cu, nf4_merge.cu and nf4_merge_wgmma.cu, as nf4_merge chooses among them; false:
 * not on this card. */
void tsr_nf4_dequant_stack(tsr_stream *stream, const tsr_nf4_dequant_args *args,
                           const tsr_nf4_stack *stack);
void tsr_nf4_merge_stack_low(tsr_stream *stream, const tsr_nf4_merge_args *args,
                             const tsr_nf4_stack *stack);
bool tsr_nf4_merge_stack_wgmma(tsr_stream *stream, const tsr_nf4_merge_args *args,
                               const tsr_nf4_stack *stack);
tsr_status tsr_nf4_merge_stack(tsr_stream *stream, const tsr_nf4_merge_args *args,
                               const tsr_nf4_stack *stack);

#endif
