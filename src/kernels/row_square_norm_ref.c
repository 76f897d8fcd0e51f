/*
 * row_square_norm_ref.c: contract row_square_norm.h. Eight lanes of fp64, the tail one by one.
 */
#include "kernels/row_square_norm.h"

#include "kernels/loops.h"

#define LANES 8
#define TILE  64 /* columns widened at a time */

tsr_status tsr_row_square_norm_check(const tsr_row_square_norm_args *args)
{
    TSR_EXPECT(args->rows >= 0 && args->columns >= 0, "row_square_norm", "a negative shape");
    TSR_TRY(tsr_expect_dtype("row_square_norm", args->dtype));
    TSR_EXPECT(args->rows == 0 || args->out, "row_square_norm", "out is NULL");
    TSR_EXPECT(args->rows == 0 || args->columns == 0 || args->w, "row_square_norm", "w is NULL");
    return TSR_OK;
}

TSR_INLINE double squares(tsr_frozen w, int64_t first, int64_t columns)
{
    double lane[LANES] = {0};
    float buffer[TILE];
    for (int64_t k = 0; k < columns; k += TILE) {
        int64_t count = tsr_min(TILE, columns - k), i = 0;
        const float *x = tsr_frozen_load(buffer, w, first + k, count, 0);
        for (; i + LANES <= count; i += LANES)
            for (int l = 0; l < LANES; l++)
                lane[l] += (double)x[i + l] * (double)x[i + l];
        for (; i < count; i++)
            lane[0] += (double)x[i] * (double)x[i];
    }
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
           ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

TSR_CLONES static void square_block(void *context, int index)
{
    const tsr_row_square_norm_args *args = context;
    int64_t rows = tsr_block_rows(args->columns), last = tsr_min(args->rows, (index + 1) * rows);
    tsr_frozen w = {args->w, args->dtype};
    for (int64_t j = index * rows; j < last; j++)
        args->out[j] = (float)squares(w, j * args->columns, args->columns);
}

tsr_status tsr_row_square_norm_ref(const tsr_row_square_norm_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_row_square_norm_check(args));
    if (args->dtype != TSR_BF16)
        TSR_TRY(tsr_expect_f32("row_square_norm", args->dtype));
    tsr_pool_run(pool, tsr_block_count(args->rows, tsr_block_rows(args->columns)), square_block,
                 (void *)args);
    return TSR_OK;
}
