#include "adapters/merge.h"

#include "kernels/gemm.h"

#include <math.h>

typedef struct {
    float *w;
    const tsr_adapter_merge_args *args;
} scaling;

/* The norm's sum is double: its error is then below that of the products it is made of. */
static void scale_row(void *context, int index)
{
    const scaling *s = context;
    float *row = s->w + (uint64_t)index * s->args->in;
    double sum = 0;
    for (uint64_t i = 0; i < s->args->in; i++)
        sum += (double)row[i] * (double)row[i];
    float factor = s->args->m[index] / (float)sqrt(sum);
    for (uint64_t i = 0; i < s->args->in; i++)
        row[i] *= factor;
}

tsr_status tsr_adapter_merge(float *w, const tsr_adapter_merge_args *args, tsr_pool *pool)
{
    const tsr_gemm_args product = {.m = (int64_t)args->rows,
                                   .n = (int64_t)args->in,
                                   .k = (int64_t)args->r,
                                   .a = args->b,
                                   .b = args->a,
                                   .c = w,
                                   .alpha = (float)args->scale,
                                   .beta = 1,
                                   .dtype = TSR_F32,
                                   .c_dtype = TSR_F32};
    TSR_TRY(tsr_gemm_ref(&product, pool));
    scaling s = {w, args};
    if (args->m)
        tsr_pool_run(pool, (int)args->rows, scale_row, &s);
    return TSR_OK;
}
