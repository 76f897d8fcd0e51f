/*
 * kernels/attention_cudnn_graph.h: one launch of attention as a graph of cuDNN's operations, its plan,
 * and its execution. Inside attention_cudnn*.c only.
 */
#ifndef TSR_KERNELS_ATTENTION_CUDNN_GRAPH_H
#define TSR_KERNELS_ATTENTION_CUDNN_GRAPH_H

#include "kernels/cudnn_library.h"

#include <stdbool.h>
#include <stdint.h>

#include "kernels/attention.h"

/* Unique ids of what an execution gives pointers to; of the last three, host pointers to a float. */
enum {
    TSR_UID_Q = 1,
    TSR_UID_K,
    TSR_UID_V,
    TSR_UID_O,
    TSR_UID_STATS,
    TSR_UID_D_O,
    TSR_UID_DQ,
    TSR_UID_DK,
    TSR_UID_DV,
    TSR_UID_DELTA,
    TSR_UID_DQ_SUM,
    TSR_UID_LENGTH_Q,
    TSR_UID_LENGTH_KV,
    TSR_UID_OFFSET_Q,
    TSR_UID_OFFSET_KV,
    TSR_UID_OFFSET_STATS,
    TSR_UID_OFFSET_O,
    TSR_UID_OFFSET_V,
    TSR_UID_SCALE,
    TSR_UID_ONE,
    TSR_UID_HIDDEN, /* the score of a pair that is not seen */
    TSR_UID_INSIDE  /* from here on: tensors inside the graph */
};

#define TSR_SDPA_DESCRIPTORS 192
#define TSR_SDPA_OPERATIONS  40

/* Zero-initialise and fill the first three lines; v_dim: of heads of v and o. The first failure is kept; what follows does nothing. */
typedef struct {
    int64_t documents, heads, kv_heads, longest, dim, v_dim; /* of one launch */
    int64_t longest_kv; /* 0: longest; else queries are the last of so many tokens */
    int64_t q_row, kv_row, stats_row, o_row, v_row; /* elements from token to token */
    bool atomics;                                   /* dq is added up in fp32, in any order */
    bool past; /* every key is one of an earlier token than every query's: nothing is hidden */

    cudnnBackendDescriptor_t plan;
    int64_t workspace_bytes;
    cudnnStatus_t status;
    const char *failed;

    cudnnBackendDescriptor_t made[TSR_SDPA_DESCRIPTORS], operation[TSR_SDPA_OPERATIONS];
    int made_count, operation_count;
    int64_t next_uid;
    cudnnBackendDescriptor_t length_q, length_kv, offset_q, offset_kv, offset_stats;
    cudnnBackendDescriptor_t offset_o, offset_v; /* those of q and kv, where heads have one size */
} tsr_sdpa_graph;

void tsr_sdpa_graph_forward(tsr_sdpa_graph *g);
void tsr_sdpa_graph_backward(tsr_sdpa_graph *g);

/* The plan of cuDNN's first engine that makes one and asks for at most `most` bytes. */
void tsr_sdpa_graph_plan(tsr_sdpa_graph *g, cudnnHandle_t handle, uint64_t most);

/* Frees descriptors and plan; not *g. */
void tsr_sdpa_graph_clear(tsr_sdpa_graph *g);

/* ---- execution ---- */

/* What an execution gets, by unique id. */
typedef struct {
    int64_t uid[TSR_UID_INSIDE];
    void *pointer[TSR_UID_INSIDE];
    int count;
    float scale, one, hidden;
} tsr_sdpa_pack;

/* The scalars are given with their pack's address, so a pack stays where it is. */
void tsr_sdpa_pack_begin(tsr_sdpa_pack *pack, const tsr_attention_shape *shape);
void tsr_sdpa_give(tsr_sdpa_pack *pack, int64_t uid, const void *pointer);

/* TSR_EINVAL: a tensor that is not on 16 bytes. */
tsr_status tsr_sdpa_execute(cudnnHandle_t handle, const tsr_sdpa_graph *g,
                            const tsr_sdpa_pack *pack, void *workspace);

/* TSR_EDEVICE, with what cuDNN says of it. */
tsr_status tsr_sdpa_failed(cudnnStatus_t status, const char *what);

#endif
