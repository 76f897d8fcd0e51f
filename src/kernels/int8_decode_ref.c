/*
 * int8_decode_ref.c: contract int8_decode.h.
 */
#include "kernels/int8_decode.h"

#include "kernels/loops.h"

tsr_status tsr_int8_decode_check(const tsr_int8_decode_args *args)
{
    TSR_TRY(tsr_expect_dtype("int8_decode", args->dtype));
    TSR_EXPECT(args->rows >= 0 && args->columns >= 0, "int8_decode", "a size is negative");
    TSR_EXPECT(args->rows == 0 || args->columns == 0 || (args->out && args->code && args->scale),
               "int8_decode", "a pointer is NULL");
    return TSR_OK;
}

TSR_CLONES static void decode_block(void *context, int index)
{
    const tsr_int8_decode_args *a = context;
    int64_t rows = tsr_block_rows(a->columns), first = index * rows;
    int64_t end = first + tsr_min(rows, a->rows - first);
    for (int64_t i = first; i < end; i++) {
        const int8_t *code = a->code + i * a->columns;
        float *out = (float *)a->out + i * a->columns, scale = a->scale[i];
        for (int64_t j = 0; j < a->columns; j++)
            out[j] = (float)code[j] * scale / TSR_INT8_MOST;
    }
}

tsr_status tsr_int8_decode_ref(const tsr_int8_decode_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_int8_decode_check(args));
    TSR_TRY(tsr_expect_f32("int8_decode", args->dtype));
    if (args->columns)
        tsr_pool_run(pool, tsr_block_count(args->rows, tsr_block_rows(args->columns)), decode_block,
                     (void *)args);
    return TSR_OK;
}
