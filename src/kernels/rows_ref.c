/*
 * rows_ref.c: contract rows.h.
 */
#include "kernels/rows.h"

#include "kernels/loops.h"

static tsr_status check_rows(const char *op, int64_t rows, int64_t tokens, int64_t d)
{
    if (rows < 0 || tokens < rows || d < 1)
        return tsr_fail(TSR_EINVAL, "%s: %lld rows of %lld tokens, width %lld", op, (long long)rows,
                        (long long)tokens, (long long)d);
    return TSR_OK;
}

static tsr_status check_index(const char *op, const int32_t *index, int64_t rows, int64_t tokens)
{
    for (int64_t i = 0; i < rows; i++)
        if (index[i] < 0 || index[i] >= tokens || (i > 0 && index[i] <= index[i - 1]))
            return tsr_fail(TSR_EINTERNAL,
                            "%s: index[%lld] = %d is not increasing or not below %lld tokens", op,
                            (long long)i, index[i], (long long)tokens);
    return TSR_OK;
}

tsr_status tsr_gather_rows_check(const tsr_gather_rows_args *args)
{
    TSR_TRY(tsr_expect_dtype("gather_rows", args->dtype));
    TSR_TRY(check_rows("gather_rows", args->rows, args->tokens, args->d));
    TSR_EXPECT(args->rows == 0 || (args->out && args->in && args->index), "gather_rows",
               "out, in or index is NULL");
    return TSR_OK;
}

tsr_status tsr_scatter_rows_check(const tsr_scatter_rows_args *args)
{
    TSR_TRY(tsr_expect_dtype("scatter_rows", args->dtype));
    TSR_TRY(check_rows("scatter_rows", args->rows, args->tokens, args->d));
    TSR_EXPECT(args->tokens == 0 || args->out, "scatter_rows", "out is NULL");
    TSR_EXPECT(args->rows == 0 || (args->in && args->index), "scatter_rows", "in or index is NULL");
    return TSR_OK;
}

static void gather_block(void *context, int index)
{
    const tsr_gather_rows_args *args = context;
    int64_t rows = tsr_block_rows(args->d), d = args->d;
    int64_t last = tsr_min(args->rows, (index + 1) * rows);
    for (int64_t i = index * rows; i < last; i++)
        memcpy((float *)args->out + i * d, (const float *)args->in + args->index[i] * d,
               (size_t)d * sizeof(float));
}

static void scatter_block(void *context, int index)
{
    const tsr_scatter_rows_args *args = context;
    int64_t rows = tsr_block_rows(args->d), d = args->d;
    int64_t first = index * rows, last = tsr_min(args->tokens, first + rows);
    int64_t low = 0, high = args->rows; /* the first index that is not below `first` */
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (args->index[middle] < first)
            low = middle + 1;
        else
            high = middle;
    }
    for (int64_t t = first; t < last; t++) {
        float *out = (float *)args->out + t * d;
        if (low < args->rows && args->index[low] == t)
            memcpy(out, (const float *)args->in + low++ * d, (size_t)d * sizeof(float));
        else
            memset(out, 0, (size_t)d * sizeof(float));
    }
}

tsr_status tsr_gather_rows_ref(const tsr_gather_rows_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_gather_rows_check(args));
    TSR_TRY(tsr_expect_f32("gather_rows", args->dtype));
    TSR_TRY(check_index("gather_rows", args->index, args->rows, args->tokens));
    tsr_pool_run(pool, tsr_block_count(args->rows, tsr_block_rows(args->d)), gather_block,
                 (void *)args);
    return TSR_OK;
}

tsr_status tsr_scatter_rows_ref(const tsr_scatter_rows_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_scatter_rows_check(args));
    TSR_TRY(tsr_expect_f32("scatter_rows", args->dtype));
    TSR_TRY(check_index("scatter_rows", args->index, args->rows, args->tokens));
    tsr_pool_run(pool, tsr_block_count(args->tokens, tsr_block_rows(args->d)), scatter_block,
                 (void *)args);
    return TSR_OK;
}
