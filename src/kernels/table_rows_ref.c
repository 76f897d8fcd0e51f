/*
 * table_rows_ref.c: contract table_rows.h.
 */
#include "kernels/table_rows.h"

#include "kernels/loops.h"

static tsr_status check_sizes(const char *op, int64_t tokens, int64_t d, int64_t first,
                              int64_t count, tsr_dtype dtype)
{
    TSR_TRY(tsr_expect_dtype(op, dtype));
    if (tokens < 0 || d < 1 || first < 0 || count < 1)
        return tsr_fail(TSR_EINVAL, "%s: %lld tokens, width %lld, rows %lld + %lld", op,
                        (long long)tokens, (long long)d, (long long)first, (long long)count);
    return TSR_OK;
}

tsr_status tsr_table_rows_check(const tsr_table_rows_args *args)
{
    TSR_TRY(
        check_sizes("table_rows", args->tokens, args->d, args->first, args->count, args->dtype));
    TSR_EXPECT(args->tokens == 0 || (args->out && args->table && args->ids), "table_rows",
               "out, table or ids is NULL");
    return TSR_OK;
}

tsr_status tsr_table_sum_check(const tsr_table_sum_args *args)
{
    TSR_TRY(check_sizes("table_sum", args->tokens, args->d, args->first, args->count, args->dtype));
    TSR_EXPECT(args->dtable, "table_sum", "dtable is NULL");
    TSR_EXPECT(args->lead_count >= 0 && args->lead_count <= args->tokens, "table_sum",
               "lead_count is not between 0 and tokens");
    TSR_EXPECT(args->tokens == 0 || (args->dout && args->ids && args->next && args->leads),
               "table_sum", "dout, ids, next or leads is NULL");
    return TSR_OK;
}

static void copy_block(void *context, int index)
{
    const tsr_table_rows_args *args = context;
    int64_t rows = tsr_block_rows(args->d), d = args->d;
    int64_t row_stride = args->row_stride ? args->row_stride : d;
    int64_t column_stride = args->row_stride ? args->column_stride : 1;
    int64_t last = tsr_min(args->tokens, (index + 1) * rows);
    for (int64_t t = index * rows; t < last; t++) {
        int64_t row = args->ids[t] - args->first;
        float *out = (float *)args->out + t * d;
        if (row < 0 || row >= args->count)
            continue;
        const float *in = (const float *)args->table + row * row_stride;
        for (int64_t i = 0; i < d; i++)
            out[i] = args->scale * in[i * column_stride];
    }
}

tsr_status tsr_table_rows_ref(const tsr_table_rows_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_table_rows_check(args));
    return tsr_run_f32("table_rows", args->dtype, pool,
                       tsr_block_count(args->tokens, tsr_block_rows(args->d)), copy_block, args);
}

static void begin_block(void *context, int index)
{
    const tsr_table_sum_args *args = context;
    int64_t rows = tsr_block_rows(args->d), first = index * rows;
    int64_t count = tsr_min(rows, args->count - first);
    size_t bytes = (size_t)(count * args->d) * sizeof(float);
    if (args->plus)
        memcpy(args->dtable + first * args->d, args->plus + first * args->d, bytes);
    else
        memset(args->dtable + first * args->d, 0, bytes);
}

static void sum_block(void *context, int index)
{
    const tsr_table_sum_args *args = context;
    int64_t leads = tsr_block_rows(args->d), d = args->d;
    int64_t row_stride = args->row_stride ? args->row_stride : d;
    int64_t column_stride = args->row_stride ? args->column_stride : 1;
    int64_t last = tsr_min(args->lead_count, (index + 1) * leads);
    for (int64_t i = index * leads; i < last; i++) {
        int64_t row = args->ids[args->leads[i]] - args->first;
        float *sum = args->dtable + row * row_stride;
        if (row < 0 || row >= args->count)
            continue;
        for (int64_t j = 0; j < d; j++) {
            float of_id = 0;
            for (int64_t t = args->leads[i]; t >= 0; t = args->next[t])
                of_id += ((const float *)args->dout)[t * d + j];
            sum[j * column_stride] += args->scale * of_id;
        }
    }
}

tsr_status tsr_table_sum_ref(const tsr_table_sum_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_table_sum_check(args));
    TSR_TRY(tsr_expect_f32("table_sum", args->dtype));
    int64_t rows = tsr_block_rows(args->d);
    tsr_pool_run(pool, tsr_block_count(args->count, rows), begin_block, (void *)args);
    tsr_pool_run(pool, tsr_block_count(args->lead_count, rows), sum_block, (void *)args);
    return TSR_OK;
}
