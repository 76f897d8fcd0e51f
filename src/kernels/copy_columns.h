/*
 * kernels/copy_columns.h: out[i, j] = scale (g[j] in[i, j] + bias[j]), converted, of rows that lie in wider ones: what is
 * put beside other columns, or taken out of them.
 *
 * Cost     rows columns elements read and written.
 */
#ifndef TSR_KERNELS_COPY_COLUMNS_H
#define TSR_KERNELS_COPY_COLUMNS_H

#include "kernels/types.h"

typedef struct {
    void *out;
    const void *in;                               /* not over out */
    int64_t rows, columns, out_stride, in_stride; /* strides: elements from row to row */
    tsr_dtype in_dtype;                           /* F32 or BF16 */
    tsr_dtype dtype;                              /* of out */
    float scale;
    const float *g;  /* [columns], optional: 1 */
    tsr_frozen bias; /* [columns], optional: 0 */
} tsr_copy_columns_args;

tsr_status tsr_copy_columns_check(const tsr_copy_columns_args *args);
tsr_status tsr_copy_columns_ref(const tsr_copy_columns_args *args, tsr_pool *pool);

#endif
