/*
 * model/attention_shared.h: attention of a micro-batch that several ranks share (shard/context.h). Inside src/model only.
 *
 * Before it the ranks give each other their rows of k and v, and before its backward those of q, d_o, delta = <d_o, o> and
 * lse too (o instead of delta for kernels that need it). Each then computes what its own rows get
 * (kernels/attention.h).
 *
 * Some key heads with their query heads go at a time (tsr_attention_sharing): a group. While one is computed the rows of the
 * next one arrive, and the sums of dq of the one before are added up; so two groups of most values lie in the node's
 * workspace. Heads are independent, so groups give the same bits as all heads at once.
 *
 *     comm       rows of 0 | rows of 1              | dq of 0, rows of 2 | dq of 1 ..
 *     compute                group 0                | group 1            | group 2 ..
 */
#ifndef TSR_MODEL_ATTENTION_SHARED_H
#define TSR_MODEL_ATTENTION_SHARED_H

#include "model/node.h"

/* Of both directions, with what the kernels need for a group. 0: nothing is shared. */
uint64_t tsr_attention_shared_bytes(const tsr_kernels *kernels, const tsr_attention_bounds *bounds);

/* args: of this rank's rows, but for the shape, which is that of all; its workspace is as large as above. */
tsr_status tsr_attention_shared(const tsr_pass *pass, const tsr_node *node,
                                const tsr_attention_args *args);
tsr_status tsr_attention_shared_backward(const tsr_pass *pass, const tsr_node *node,
                                         const tsr_attention_backward_args *args);

#endif
