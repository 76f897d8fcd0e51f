/*
 * low_rank_stack_ref.c: contract low_rank_stack.h.
 */
#include "kernels/low_rank_stack.h"

#include "kernels/loops.h"

/* ---- stack ---- */

tsr_status tsr_low_rank_stack_check(const tsr_low_rank_stack_args *args)
{
    static const char op[] = "low_rank_stack";
    TSR_TRY(tsr_expect_dtype(op, args->dtype));
    TSR_EXPECT(args->count >= 0 && args->count <= TSR_LOW_RANK_STACK, op, "too many adapters");
    TSR_EXPECT(args->in >= 0 && args->out >= 0, op, "in or out is negative");
    for (int i = 0; i < args->count; i++) {
        const tsr_low_rank_part *part = &args->part[i];
        TSR_EXPECT(part->r >= 0, op, "a rank is negative");
        TSR_EXPECT(!part->r || !args->in || (args->a && part->a), op, "an A is NULL");
        TSR_EXPECT(!part->r || !args->out || (args->b && part->b), op, "a B is NULL");
    }
    return TSR_OK;
}

static void copy_bytes(void *stacked, void *part, uint64_t bytes, bool apart)
{
    if (bytes)
        memcpy(apart ? part : stacked, apart ? stacked : part, bytes);
}

/* Of all adapters: a task has A, the others some rows of B each. */
static void stack_task(void *context, int index)
{
    const tsr_low_rank_stack_args *a = context;
    const uint64_t element = tsr_dtype_bytes(a->dtype);
    int64_t ranks = 0, before = 0;
    for (int i = 0; i < a->count; i++)
        ranks += a->part[i].r;
    int64_t rows = tsr_block_rows(ranks), first = (index - 1) * rows;
    int64_t end = tsr_min(a->out, first + rows);
    for (int i = 0; i < a->count; before += a->part[i++].r) {
        const tsr_low_rank_part *part = &a->part[i];
        uint64_t each = (uint64_t)part->r * element;
        if (index == 0)
            copy_bytes((char *)a->a + (uint64_t)(before * a->in) * element, part->a,
                       each * (uint64_t)a->in, a->apart);
        for (int64_t j = first; index && j < end; j++)
            copy_bytes((char *)a->b + (uint64_t)(j * ranks + before) * element,
                       (char *)part->b + (uint64_t)j * each, each, a->apart);
    }
}

tsr_status tsr_low_rank_stack_ref(const tsr_low_rank_stack_args *args, tsr_pool *pool)
{
    int64_t ranks = 0;
    TSR_TRY(tsr_low_rank_stack_check(args));
    for (int i = 0; i < args->count; i++)
        ranks += args->part[i].r;
    tsr_low_rank_stack_args copy = *args;
    tsr_pool_run(pool, 1 + tsr_block_count(args->out, tsr_block_rows(ranks)), stack_task, &copy);
    return TSR_OK;
}

/* ---- mask ---- */

tsr_status tsr_low_rank_mask_check(const tsr_low_rank_mask_args *args)
{
    static const char op[] = "low_rank_mask";
    TSR_TRY(tsr_expect_dtype(op, args->dtype));
    TSR_EXPECT(args->count >= 0 && args->count <= TSR_LOW_RANK_STACK, op, "too many adapters");
    TSR_EXPECT(args->tokens >= 0 && args->columns >= 0, op, "tokens or columns is negative");
    TSR_EXPECT(!args->tokens || !args->columns || args->low, op, "low is NULL");
    for (int i = 0; i < args->count; i++) {
        const tsr_low_rank_owner *owner = &args->owner[i];
        TSR_EXPECT(owner->first >= 0 && owner->first <= owner->end && owner->end <= args->tokens,
                   op, "an adapter's tokens are not there");
        TSR_EXPECT(owner->column >= 0 && owner->columns >= 0 &&
                       (int64_t)owner->column + owner->columns <= args->columns,
                   op, "an adapter's columns are not there");
    }
    return TSR_OK;
}

static void mask_row(float *low, const tsr_low_rank_mask_args *a, int64_t token)
{
    tsr_low_rank_owner own = {0};
    for (int i = 0; i < a->count; i++)
        if (token >= a->owner[i].first && token < a->owner[i].end)
            own = a->owner[i];
    for (int64_t j = 0; j < a->columns; j++)
        low[j] = j >= own.column && j < own.column + own.columns ? own.scale * low[j] : 0;
}

static void mask_block(void *context, int index)
{
    const tsr_low_rank_mask_args *a = context;
    int64_t rows = tsr_block_rows(a->columns), end = tsr_min(a->tokens, (index + 1) * rows);
    for (int64_t t = index * rows; t < end; t++)
        mask_row((float *)a->low + t * a->columns, a, t);
}

tsr_status tsr_low_rank_mask_ref(const tsr_low_rank_mask_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_low_rank_mask_check(args));
    return tsr_run_f32("low_rank_mask", args->dtype, pool,
                       tsr_block_count(args->tokens, tsr_block_rows(args->columns)), mask_block,
                       args);
}
