/*
 * embed_rows_ref.c: contract embed_rows.h.
 */
#include "kernels/embed_rows.h"

#include "kernels/loops.h"

tsr_status tsr_embed_rows_check(const tsr_embed_rows_args *args)
{
    TSR_TRY(tsr_expect_dtype("embed_rows", args->dtype));
    TSR_EXPECT(args->tokens >= 0 && args->d > 0 && args->vocabulary > 0, "embed_rows",
               "tokens < 0, or d or vocabulary < 1");
    TSR_EXPECT(args->tokens == 0 || (args->out && args->ids && args->table.data), "embed_rows",
               "out, ids or table is NULL");
    TSR_EXPECT(tsr_frozen_valid(args->table), "embed_rows", "the table is not F32 or BF16");
    return TSR_OK;
}

TSR_HOT static void embed_block(void *context, int index)
{
    const tsr_embed_rows_args *args = context;
    int64_t rows = tsr_block_rows(args->d), d = args->d;
    int64_t last = tsr_min(args->tokens, (index + 1) * rows);
    for (int64_t t = index * rows; t < last; t++)
        tsr_frozen_copy((float *)args->out + t * d, args->table, args->ids[t] * d, d);
}

tsr_status tsr_embed_rows_ref(const tsr_embed_rows_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_embed_rows_check(args));
    TSR_TRY(tsr_expect_f32("embed_rows", args->dtype));
    for (int64_t t = 0; t < args->tokens; t++)
        if (args->ids[t] < 0 || args->ids[t] >= args->vocabulary)
            return tsr_fail(TSR_EINTERNAL, "embed_rows: token %lld has id %d of %lld rows",
                            (long long)t, args->ids[t], (long long)args->vocabulary);
    tsr_pool_run(pool, tsr_block_count(args->tokens, tsr_block_rows(args->d)), embed_block,
                 (void *)args);
    return TSR_OK;
}
