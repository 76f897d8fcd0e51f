/*
 * model/attention_shared.h: attention of a micro-batch that several ranks share (shard/context.h). Inside src/model only.
 *
 * Before it the ranks give each other their rows of k and v, and before its backward those of q, d_o, delta = <d_o, o> and
 * lse too (o instead of delta for kernels that take no other). Each then computes what its own rows get (kernels/attention.h). While it does, all rows of what attention reads and makes lie
 * in the node's workspace.
 */
#ifndef TSR_MODEL_ATTENTION_SHARED_H
#define TSR_MODEL_ATTENTION_SHARED_H

#include "model/node.h"

/* Beside what the kernels need: all rows. 0: nothing is shared. */
uint64_t tsr_attention_shared_bytes(const tsr_kernels *kernels, const tsr_attention_bounds *bounds);

/* args: of this rank's rows, but for the shape, which is that of all; its workspace has room for both. */
tsr_status tsr_attention_shared(const tsr_pass *pass, const tsr_node *node,
                                const tsr_attention_args *args);
tsr_status tsr_attention_shared_backward(const tsr_pass *pass, const tsr_node *node,
                                         const tsr_attention_backward_args *args);

#endif
