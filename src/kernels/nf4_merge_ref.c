/*
 * nf4_merge_ref.c: contract nf4_merge.h.
 */
#include "kernels/nf4_merge.h"

#include "kernels/loops.h"

#include <math.h>

tsr_status tsr_nf4_merge_check(const tsr_nf4_merge_args *args)
{
    const tsr_nf4_dequant_args *w = &args->weight;
    TSR_TRY(tsr_nf4_dequant_check(w));
    TSR_EXPECT(!w->row_factor, "nf4_merge", "row_factor is not for merging");
    TSR_EXPECT(w->columns > 0 && w->count % w->columns == 0, "nf4_merge",
               "count is not whole rows of columns");
    TSR_EXPECT(args->r >= 0, "nf4_merge", "r is negative");
    TSR_EXPECT(w->count == 0 || args->r == 0 || (args->a && args->b), "nf4_merge",
               "a or b is NULL");
    TSR_EXPECT(!args->norms.n || args->norms.g, "nf4_merge", "norms without g");
    TSR_EXPECT(!args->apart || args->norms.n, "nf4_merge", "W apart is for norms");
    return TSR_OK;
}

tsr_gemm_args tsr_nf4_merge_product(const tsr_nf4_merge_args *args)
{
    const tsr_nf4_dequant_args *w = &args->weight;
    return (tsr_gemm_args){.m = w->count / w->columns,
                           .n = w->columns,
                           .k = args->r,
                           .a = args->b,
                           .b = args->a,
                           .c = w->out,
                           .alpha = args->scale,
                           .beta = 1,
                           .dtype = w->dtype,
                           .c_dtype = w->dtype};
}

/* ---- norms ---- */

#define ROWS_PER_BLOCK 32

static float row_norm(const float *row, int64_t columns)
{
    double sum = 0;
    for (int64_t j = 0; j < columns; j++)
        sum += (double)row[j] * (double)row[j];
    return sqrtf((float)sum);
}

static void norm_block(void *context, int index)
{
    const tsr_nf4_merge_args *args = context;
    const tsr_nf4_merge_norms *norms = &args->norms;
    int64_t columns = args->weight.columns, rows = args->weight.count / columns;
    int64_t last = tsr_min(rows, (int64_t)(index + 1) * ROWS_PER_BLOCK);
    for (int64_t i = (int64_t)index * ROWS_PER_BLOCK; i < last; i++) {
        norms->n[i] = row_norm((const float *)args->weight.out + i * columns, columns);
        norms->g[i] = norms->m ? norms->m[i] / norms->n[i] : 1;
    }
}

tsr_status tsr_nf4_merge_ref(const tsr_nf4_merge_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_nf4_merge_check(args));
    TSR_TRY(tsr_nf4_dequant_ref(&args->weight, pool));
    if (args->weight.count == 0)
        return TSR_OK;
    tsr_gemm_args product = tsr_nf4_merge_product(args);
    TSR_TRY(tsr_gemm_ref(&product, pool));
    if (args->norms.n)
        tsr_pool_run(pool, tsr_block_count(product.m, ROWS_PER_BLOCK), norm_block, (void *)args);
    return args->apart ? tsr_nf4_dequant_ref(&args->weight, pool) : TSR_OK;
}
