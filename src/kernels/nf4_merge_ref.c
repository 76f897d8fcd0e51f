/*
 * nf4_merge_ref.c: contract nf4_merge.h.
 */
#include "kernels/nf4_merge.h"

#include "kernels/loops.h"

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

tsr_status tsr_nf4_merge_ref(const tsr_nf4_merge_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_nf4_merge_check(args));
    TSR_TRY(tsr_nf4_dequant_ref(&args->weight, pool));
    if (args->weight.count == 0)
        return TSR_OK;
    tsr_gemm_args product = tsr_nf4_merge_product(args);
    return tsr_gemm_ref(&product, pool);
}
