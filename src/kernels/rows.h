/*
 * kernels/rows.h: moving label rows.
 *
 *     gather_rows    out[i, :] = in[index[i], :]           the rows that have a label
 *     scatter_rows   out[index[i], :] = in[i, :], every other row of out 0: its backward
 *
 * index is strictly increasing and below `tokens` (TSR_EINTERNAL when it runs, otherwise).
 *
 * Cost     gather 2 rows d elements, scatter (rows + tokens) d.
 */
#ifndef TSR_KERNELS_ROWS_H
#define TSR_KERNELS_ROWS_H

#include "kernels/types.h"

typedef struct {
    void *out;            /* [rows, d] */
    const void *in;       /* [tokens, d] */
    const int32_t *index; /* [rows] */
    int64_t rows, tokens, d;
    tsr_dtype dtype;
} tsr_gather_rows_args;

typedef struct {
    void *out;            /* [tokens, d] */
    const void *in;       /* [rows, d] */
    const int32_t *index; /* [rows] */
    int64_t rows, tokens, d;
    tsr_dtype dtype;
} tsr_scatter_rows_args;

tsr_status tsr_gather_rows_check(const tsr_gather_rows_args *args);
tsr_status tsr_gather_rows_ref(const tsr_gather_rows_args *args, tsr_pool *pool);
tsr_status tsr_scatter_rows_check(const tsr_scatter_rows_args *args);
tsr_status tsr_scatter_rows_ref(const tsr_scatter_rows_args *args, tsr_pool *pool);

#endif
