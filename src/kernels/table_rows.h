/*
 * kernels/table_rows.h: rows of a table that is trained, as the embedding can be, a chunk of it at a time.
 *
 * For T tokens with ids, and table rows [first, first + count):
 *     table_rows    out[t, :] = scale table[id[t] - first, :] of the tokens whose id is in the chunk; others stay
 *     table_sum     dtable[i, :] = plus[i, :] + scale (the sum of dout[t, :] over the tokens with id first + i, 0 where
 *                   there are none): its backward
 * Element (i, j) of a table is at i row_stride + j column_stride, so that a table may be stored by columns.
 * Tokens of one id are a chain: leads[0 .. lead_count) are the first token of each id, next[t] the token after t that
 * has its id, -1 at the end. A sum follows its chain, so its order is that of the tokens.
 *
 * Cost     table_rows 2 T d elements at most; table_sum T d read and count d fp32 written.
 */
#ifndef TSR_KERNELS_TABLE_ROWS_H
#define TSR_KERNELS_TABLE_ROWS_H

#include "kernels/types.h"

typedef struct {
    void *out;          /* [tokens, d] of dtype */
    const void *table;  /* [count, d] of dtype */
    const int32_t *ids; /* [tokens] */
    int64_t tokens, d, first, count;
    int64_t row_stride, column_stride; /* of the table; 0, 0: d, 1 */
    float scale;
    tsr_dtype dtype;
} tsr_table_rows_args;

typedef struct {
    float *dtable;             /* [count, d], written */
    const float *plus;         /* [count, d]; NULL: 0 */
    const void *dout;          /* [tokens, d] of dtype */
    const int32_t *ids, *next; /* [tokens] */
    const int32_t *leads;      /* [lead_count] */
    int64_t tokens, lead_count, d, first, count;
    int64_t row_stride, column_stride; /* of dtable; 0, 0: d, 1 */
    float scale;
    tsr_dtype dtype;
} tsr_table_sum_args;

tsr_status tsr_table_rows_check(const tsr_table_rows_args *args);
tsr_status tsr_table_rows_ref(const tsr_table_rows_args *args, tsr_pool *pool);
tsr_status tsr_table_sum_check(const tsr_table_sum_args *args);
tsr_status tsr_table_sum_ref(const tsr_table_sum_args *args, tsr_pool *pool);

#endif
