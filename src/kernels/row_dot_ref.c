/*
 * row_dot_ref.c: contract row_dot.h. Eight lanes of fp64, the tail one by one.
 */
#include "kernels/row_dot.h"

#include "kernels/loops.h"

#define LANES 8
#define TILE  64 /* columns widened at a time */

tsr_status tsr_row_dot_check(const tsr_row_dot_args *args)
{
    TSR_EXPECT(args->rows >= 0 && args->columns >= 0, "row_dot", "a negative shape");
    TSR_EXPECT((!args->lda || args->lda >= args->columns) &&
                   (!args->ldb || args->ldb >= args->columns),
               "row_dot", "a leading dimension is below the columns");
    TSR_TRY(tsr_expect_dtype("row_dot", args->a_dtype));
    TSR_TRY(tsr_expect_dtype("row_dot", args->b_dtype));
    TSR_EXPECT(args->rows == 0 || args->out, "row_dot", "out is NULL");
    TSR_EXPECT(args->rows == 0 || args->columns == 0 || (args->a && args->b), "row_dot",
               "a or b is NULL");
    return TSR_OK;
}

tsr_status tsr_row_square_norm_check(const tsr_row_square_norm_args *args)
{
    TSR_EXPECT(args->rows >= 0 && args->columns >= 0, "row_square_norm", "a negative shape");
    TSR_TRY(tsr_expect_dtype("row_square_norm", args->dtype));
    TSR_EXPECT(args->rows == 0 || args->out, "row_square_norm", "out is NULL");
    TSR_EXPECT(args->rows == 0 || args->columns == 0 || args->w, "row_square_norm", "w is NULL");
    return TSR_OK;
}

TSR_INLINE double dot(tsr_frozen a, tsr_frozen b, int64_t a_first, int64_t b_first, int64_t columns)
{
    double lane[LANES] = {0};
    float a_buffer[TILE], b_buffer[TILE];
    for (int64_t k = 0; k < columns; k += TILE) {
        int64_t count = tsr_min(TILE, columns - k), i = 0;
        const float *x = tsr_frozen_load(a_buffer, a, a_first + k, count, 0);
        const float *y = tsr_frozen_load(b_buffer, b, b_first + k, count, 0);
        for (; i + LANES <= count; i += LANES)
            for (int l = 0; l < LANES; l++)
                lane[l] += (double)x[i + l] * (double)y[i + l];
        for (; i < count; i++)
            lane[0] += (double)x[i] * (double)y[i];
    }
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
           ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

TSR_HOT static void dot_block(void *context, int index)
{
    const tsr_row_dot_args *args = context;
    int64_t rows = tsr_block_rows(args->columns), last = tsr_min(args->rows, (index + 1) * rows);
    int64_t lda = args->lda ? args->lda : args->columns;
    int64_t ldb = args->ldb ? args->ldb : args->columns;
    tsr_frozen a = {args->a, args->a_dtype}, b = {args->b, args->b_dtype};
    for (int64_t j = index * rows; j < last; j++)
        args->out[j] = (float)dot(a, b, j * lda, j * ldb, args->columns);
}

static tsr_status expect_readable(const char *op, tsr_dtype dtype)
{
    return dtype == TSR_BF16 ? TSR_OK : tsr_expect_f32(op, dtype);
}

tsr_status tsr_row_dot_ref(const tsr_row_dot_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_row_dot_check(args));
    TSR_TRY(expect_readable("row_dot", args->a_dtype));
    TSR_TRY(expect_readable("row_dot", args->b_dtype));
    tsr_pool_run(pool, tsr_block_count(args->rows, tsr_block_rows(args->columns)), dot_block,
                 (void *)args);
    return TSR_OK;
}

tsr_status tsr_row_square_norm_ref(const tsr_row_square_norm_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_row_square_norm_check(args));
    TSR_TRY(expect_readable("row_square_norm", args->dtype));
    tsr_row_dot_args same = {.out = args->out,
                             .a = args->w,
                             .b = args->w,
                             .rows = args->rows,
                             .columns = args->columns,
                             .a_dtype = args->dtype,
                             .b_dtype = args->dtype};
    tsr_pool_run(pool, tsr_block_count(args->rows, tsr_block_rows(args->columns)), dot_block,
                 &same);
    return TSR_OK;
}
