/*
 * low_rank_residual.c: contract low_rank_residual.h.
 */
#include "kernels/low_rank_residual.h"

#include "kernels/loops.h"

typedef struct {
    const tsr_low_rank_residual_args *args;
    float *values;
    int64_t first, count;
} range;

/* values[count <= TSR_STRIP]: of one row, from `column` on. */
TSR_INLINE void take_strip(float *values, const tsr_low_rank_residual_args *args, const float *b,
                           int64_t column, int64_t count)
{
    float sum[TSR_STRIP] = {0};
    for (int64_t k = 0; k < args->r; k++) {
        const float *a = args->a + k * args->in + column;
        for (int64_t i = 0; i < count; i++)
            sum[i] += b[k] * a[i];
    }
    for (int64_t i = 0; i < count; i++)
        values[i] -= args->scale * sum[i];
}

TSR_CLONES static void take_block(void *context, int index)
{
    const range *r = context;
    const tsr_low_rank_residual_args *args = r->args;
    int64_t at = (int64_t)index * TSR_BLOCK_WORK, end = tsr_min(at + TSR_BLOCK_WORK, r->count);
    while (at < end) {
        int64_t row = (r->first + at) / args->in, column = (r->first + at) % args->in;
        int64_t left = tsr_min(args->in - column, end - at);
        const float *b = args->b + row * args->r;
        for (; left >= TSR_STRIP; left -= TSR_STRIP) {
            take_strip(r->values + at, args, b, column, TSR_STRIP);
            at += TSR_STRIP;
            column += TSR_STRIP;
        }
        take_strip(r->values + at, args, b, column, left);
        at += left;
    }
}

void tsr_low_rank_residual(float *values, const tsr_low_rank_residual_args *args, int64_t first,
                           int64_t count, tsr_pool *pool)
{
    range r = {args, values, first, count};
    tsr_pool_run(pool, tsr_block_count(count, TSR_BLOCK_WORK), take_block, &r);
}
