/*
 * model/attention_ways.h: the two ways of attention_shared.h, and what both need. Inside src/model only.
 */
#ifndef TSR_MODEL_ATTENTION_WAYS_H
#define TSR_MODEL_ATTENTION_WAYS_H

#include "model/attention_shared.h"

/* What lies in a node's workspace, from base on; base NULL: it is measured alone. */
typedef struct {
    char *base;
    uint64_t bytes; /* so far */
} tsr_attention_room;

void *tsr_attention_take(tsr_attention_room *room, uint64_t bytes);

/* Columns of rows, whose strides are in elements, on compute. */
typedef struct {
    void *out;
    const void *in;
    int64_t rows, columns, out_stride, in_stride;
    tsr_dtype dtype;
} tsr_attention_columns;
tsr_status tsr_attention_move(const tsr_pass *pass, const tsr_attention_columns *columns);

/* Delta of own rows and all heads. */
tsr_status tsr_attention_own_delta(const tsr_pass *pass, const tsr_attention_backward_args *args,
                                   float *out);

/* What a direction lays out fits, and the heads of a call in a shape that has had all of them. */
tsr_status tsr_attention_fits(const tsr_attention_room *room, const tsr_attention_shape *shape);
void tsr_attention_give_heads(tsr_attention_shape *shape, const tsr_attention_bounds *call);

/* The sinks of `heads` query heads from the first on. */
tsr_frozen tsr_attention_sinks(tsr_frozen all, int64_t first);

/* Own rows of all heads: the heads of a call have one group after the other. */
uint64_t tsr_attention_rows_bytes(const tsr_kernels *kernels, const tsr_attention_bounds *bounds,
                                  bool backward);
tsr_status tsr_attention_rows(const tsr_pass *pass, const tsr_node *node,
                              const tsr_attention_args *args);
tsr_status tsr_attention_rows_backward(const tsr_pass *pass, const tsr_node *node,
                                       const tsr_attention_backward_args *args);

/* All rows of own heads. */
uint64_t tsr_attention_heads_bytes(const tsr_kernels *kernels, const tsr_attention_bounds *bounds,
                                   bool backward);
tsr_status tsr_attention_heads(const tsr_pass *pass, const tsr_node *node,
                               const tsr_attention_args *args);
tsr_status tsr_attention_heads_backward(const tsr_pass *pass, const tsr_node *node,
                                        const tsr_attention_backward_args *args);

#endif
