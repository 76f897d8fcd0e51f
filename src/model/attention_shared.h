/*
 * model/attention_shared.h: attention of a micro-batch that several ranks share (shard/context.h). Inside src/model only.
 *
 * Each rank has own rows of all values. Where the key heads can be divided among the ranks, each computes all rows of its own
 * heads (attention_heads.c): rows become heads before a call and heads rows after it, least is sent, and the calls are those of a
 * micro-batch that is not shared. Else, and where a kernel wants all heads, each computes what its own rows get
 * (attention_rows.c): keys, and for the backward queries and their gradients, go to every rank, and dq is added up over them.
 * Heads are independent, so both have the bits of one call that has everything. Which way, and how many heads go at once,
 * follows from the bounds of a run alone (tsr_attention_sharing).
 */
#ifndef TSR_MODEL_ATTENTION_SHARED_H
#define TSR_MODEL_ATTENTION_SHARED_H

#include "model/node.h"

/* Of both directions, with what the kernels need for a call. 0: nothing is shared. */
uint64_t tsr_attention_shared_bytes(const tsr_kernels *kernels, const tsr_attention_bounds *bounds);

/* args: of this rank's rows, but for the shape, which is that of all; its workspace is as large as above. lse is for the backward
 * alone, in what order it likes, and as long as of the rank that has most rows. */
tsr_status tsr_attention_shared(const tsr_pass *pass, const tsr_node *node,
                                const tsr_attention_args *args);
tsr_status tsr_attention_shared_backward(const tsr_pass *pass, const tsr_node *node,
                                         const tsr_attention_backward_args *args);

#endif
