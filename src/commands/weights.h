/*
 * commands/weights.h: tells which weight of the layers a tensor of the checkpoint is: a linear's, one matrix of a stack of
 * experts, or a whole stack.
 */
#ifndef TSR_COMMANDS_WEIGHTS_H
#define TSR_COMMANDS_WEIGHTS_H

#include "model/layout.h"

/* linear or stack; both NULL: the tensor is no such weight. */
typedef struct {
    const tsr_layout_linear *linear;
    const tsr_layout_stack *stack;
    uint64_t matrix; /* of a stack that is not fused */
    bool part;       /* beside a 4-bit weight or one in MXFP4, as its scales */
} tsr_weight_use;

typedef struct tsr_weight_uses tsr_weight_uses;

/* Of all layers of the layout, which is borrowed. */
tsr_status tsr_weight_uses_make(tsr_weight_uses **out, const tsr_layout *layout);
void tsr_weight_uses_free(tsr_weight_uses *uses);

tsr_weight_use tsr_weight_use_of(const tsr_weight_uses *uses, const char *tensor);

/* Bytes of all of these weights; for 4-bit ones those of the codes. */
uint64_t tsr_weight_uses_bytes(const tsr_weight_uses *uses);

/* A weight that is stored in 4 bits, or NULL: none. As in training, the tensors decide and not config.json. */
const tsr_tensor *tsr_weight_uses_4bit(const tsr_weight_uses *uses);

/* The tensor of one matrix, or of all in one, as this checkpoint would spell it. The caller's (free); NULL: no memory. */
char *tsr_stack_one_name(const tsr_layout_stack *stack, uint64_t matrix);
char *tsr_stack_fused_name(const tsr_layout_stack *stack);

#endif
