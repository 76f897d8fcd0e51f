/*
 * quant/mxfp4_stack.h: the weights of all experts in a checkpoint's MXFP4 tensors, as a stack of matrices cut into
 * granules (kernels/mxfp4_dequant.h): what each rank keeps of them.
 *
 * A file has `blocks` [experts, parts rows, columns / 32, 16] and `scales` [experts, parts rows, columns / 32]. With two
 * parts, gate and up, their rows lie there by turns: 2i is gate i, 2i + 1 up i. In the stack each part is a matrix of
 * its own: matrix parts e + p has the rows of part p of expert e, from a whole granule on. What pads the last granule of
 * a matrix is 0.
 *
 * Threads  A made stack is read-only: any thread reads any range.
 */
#ifndef TSR_QUANT_MXFP4_STACK_H
#define TSR_QUANT_MXFP4_STACK_H

#include "io/safetensors.h"
#include "quant/mxfp4.h"

typedef struct {
    const tsr_tensor *blocks, *scales; /* borrowed */
    uint64_t experts, rows, columns;   /* rows: of a matrix */
    int parts;                         /* 1 or 2 */
    uint64_t granules;                 /* of a matrix */
} tsr_mxfp4_stack;

/* Of experts' weights [out, in]. TSR_EDATA: a tensor has another dtype or shape; it is named. TSR_EINVAL: in is no
 * multiple of 32, or out none of parts. */
tsr_status tsr_mxfp4_stack_make(tsr_mxfp4_stack *stack, const tsr_tensor *blocks,
                                const tsr_tensor *scales, uint64_t experts, uint64_t out,
                                uint64_t in, int parts);

static inline uint64_t tsr_mxfp4_stack_granules(const tsr_mxfp4_stack *stack)
{
    return stack->experts * (uint64_t)stack->parts * stack->granules;
}

/* Granules [first, first + count) of the stack from the file: 512 bytes of codes and 32 scales each. TSR_EDATA: a block
 * that is not made of finite numbers, by its tensor and its place there, or a file that has become shorter. */
tsr_status tsr_mxfp4_stack_read(uint8_t *codes, uint8_t *scales, const tsr_mxfp4_stack *stack,
                                uint64_t first, uint64_t count);

#endif
