/*
 * model/stack_reader.h: reads the values of a stack of experts, matrix by matrix, whatever layout the checkpoint has.
 *
 * Matrix i of a stack is part i % parts of expert i / parts, [out / parts, in]. If one tensor holds all experts, only the
 * elements asked for are read; if it is transposed, one expert at a time.
 */
#ifndef TSR_MODEL_STACK_READER_H
#define TSR_MODEL_STACK_READER_H

#include "model/layout.h"

typedef struct {
    const tsr_layout_stack *stack;
    tsr_dtype
        dtype; /* of what is read: the checkpoint's, or of an NF4 one what it was quantized from */
    char *expert; /* of a transposed tensor the expert that was read last, as it is stored */
    uint64_t expert_at;
} tsr_stack_reader;

tsr_status tsr_stack_reader_open(tsr_stack_reader *out, const tsr_layout_stack *stack);
void tsr_stack_reader_close(tsr_stack_reader *reader);

/* Elements [first, first + count) of a matrix that is not prequantized, of reader->dtype. Values that are not finite are
 * passed on. */
tsr_status tsr_stack_reader_read(void *out, tsr_stack_reader *reader, uint64_t matrix,
                                 uint64_t first, uint64_t count, tsr_pool *pool);

/* The same as fp32; TSR_EDATA names the first that is not finite. */
tsr_status tsr_stack_reader_read_f32(float *out, tsr_stack_reader *reader, uint64_t matrix,
                                     uint64_t first, uint64_t count, tsr_pool *pool);

/* The tensor that a matrix is in. */
const tsr_tensor *tsr_stack_tensor(const tsr_layout_stack *stack, uint64_t matrix);

#endif
