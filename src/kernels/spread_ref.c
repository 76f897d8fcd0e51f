/*
 * spread_ref.c: contract spread.h. A task is a block of rows.
 */
#include "kernels/spread.h"

#include "kernels/loops.h"

tsr_status tsr_spread_check(const tsr_spread_args *args)
{
    static const char op[] = "spread";
    TSR_TRY(tsr_expect_dtype(op, args->dtype));
    TSR_EXPECT(args->tokens >= 0 && args->k >= 1 && args->h >= 1, op,
               "tokens is negative, or k or h is less than 1");
    TSR_EXPECT(args->tokens == 0 || (args->z && args->x && args->p && args->slot), op,
               "z, x, p or slot is NULL");
    return TSR_OK;
}

static void spread_block(void *context, int index)
{
    const tsr_spread_args *args = context;
    int64_t rows = tsr_block_rows(args->h), h = args->h;
    int64_t last = tsr_min(args->tokens * args->k, (index + 1) * rows);
    for (int64_t i = index * rows; i < last; i++) {
        int64_t slot = args->slot[i];
        if (slot < 0)
            continue;
        float *z = (float *)args->z + i * h, p = args->p[slot];
        const float *x = (const float *)args->x + slot / args->k * h;
        for (int64_t j = 0; j < h; j++)
            z[j] = p * x[j];
    }
}

tsr_status tsr_spread_ref(const tsr_spread_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_spread_check(args));
    return tsr_run_f32("spread", args->dtype, pool,
                       tsr_block_count(args->tokens * args->k, tsr_block_rows(args->h)),
                       spread_block, args);
}
