/*
 * copy_columns_ref.c: contract copy_columns.h.
 */
#include "kernels/copy_columns.h"

#include "kernels/loops.h"

tsr_status tsr_copy_columns_check(const tsr_copy_columns_args *args)
{
    static const char op[] = "copy_columns";
    TSR_TRY(tsr_expect_dtype(op, args->dtype));
    TSR_EXPECT(args->in_dtype == TSR_F32 || args->in_dtype == TSR_BF16, op,
               "in is not F32 or BF16");
    TSR_EXPECT(args->rows >= 0 && args->columns >= 0, op, "rows or columns is negative");
    TSR_EXPECT(args->out_stride >= args->columns && args->in_stride >= args->columns, op,
               "a stride is less than columns");
    TSR_EXPECT(tsr_frozen_valid(args->bias), op, "bias is not F32 or BF16");
    TSR_EXPECT(args->rows == 0 || args->columns == 0 || (args->out && args->in), op,
               "out or in is NULL");
    return TSR_OK;
}

static void add_bias(float *out, tsr_frozen bias, int64_t columns)
{
    for (int64_t j = 0; j < columns; j++)
        out[j] += bias.dtype == TSR_F32 ? ((const float *)bias.data)[j]
                                        : tsr_bf16_to_f32(((const uint16_t *)bias.data)[j]);
}

static void copy_block(void *context, int index)
{
    const tsr_copy_columns_args *args = context;
    int64_t rows = tsr_block_rows(args->columns);
    int64_t last = tsr_min(args->rows, (index + 1) * rows);
    for (int64_t i = index * rows; i < last; i++) {
        float *out = (float *)args->out + i * args->out_stride;
        tsr_frozen_copy(out, (tsr_frozen){args->in, args->in_dtype}, i * args->in_stride,
                        args->columns);
        for (int64_t j = 0; j < args->columns && args->g; j++)
            out[j] *= args->g[j];
        if (args->bias.data)
            add_bias(out, args->bias, args->columns);
        for (int64_t j = 0; j < args->columns; j++)
            out[j] *= args->scale;
    }
}

tsr_status tsr_copy_columns_ref(const tsr_copy_columns_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_copy_columns_check(args));
    return tsr_run_f32("copy_columns", args->dtype, pool,
                       tsr_block_count(args->rows, tsr_block_rows(args->columns)), copy_block,
                       args);
}
