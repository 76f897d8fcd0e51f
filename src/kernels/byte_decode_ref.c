/*
 * byte_decode_ref.c: contract byte_decode.h.
 */
#include "kernels/byte_decode.h"

#include "kernels/loops.h"

tsr_status tsr_byte_decode_check(const tsr_byte_decode_args *args)
{
    TSR_TRY(tsr_expect_dtype("byte_decode", args->dtype));
    TSR_EXPECT(args->code_dtype == TSR_I8 || args->code_dtype == TSR_F8_E4M3, "byte_decode",
               "codes are neither I8 nor F8_E4M3");
    TSR_EXPECT(args->rows >= 0 && args->columns >= 0, "byte_decode", "a size is negative");
    TSR_EXPECT(args->rows == 0 || args->columns == 0 || (args->out && args->code && args->scale),
               "byte_decode", "a pointer is NULL");
    return TSR_OK;
}

TSR_CLONES static void decode_int8(float *restrict out, const int8_t *restrict code, float scale,
                                   int64_t count)
{
    for (int64_t j = 0; j < count; j++)
        out[j] = (float)code[j] * scale / TSR_INT8_MOST;
}

TSR_CLONES static void decode_e4m3(float *restrict out, const uint8_t *restrict code, float scale,
                                   int64_t count)
{
    for (int64_t j = 0; j < count; j++)
        out[j] = tsr_bf16_to_f32(tsr_f32_to_bf16(tsr_e4m3_to_f32(code[j]) * scale));
}

/* Elements of one scale at a time. */
static void decode_row(const tsr_byte_decode_args *a, int64_t row)
{
    bool int8 = a->code_dtype == TSR_I8;
    int64_t at = row * a->columns, most = int8 ? a->columns : TSR_E4M3_BLOCK;
    float *out = (float *)a->out + at;
    for (int64_t j = 0; j < a->columns; j += most) {
        int64_t count = tsr_min(most, a->columns - j);
        if (int8)
            decode_int8(out + j, (const int8_t *)a->code + at + j, a->scale[row], count);
        else
            decode_e4m3(out + j, (const uint8_t *)a->code + at + j,
                        a->scale[tsr_e4m3_block(a->columns, row, j)], count);
    }
}

static void decode_block(void *context, int index)
{
    const tsr_byte_decode_args *a = context;
    int64_t rows = tsr_block_rows(a->columns), first = index * rows;
    int64_t end = first + tsr_min(rows, a->rows - first);
    for (int64_t i = first; i < end; i++)
        decode_row(a, i);
}

tsr_status tsr_byte_decode_ref(const tsr_byte_decode_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_byte_decode_check(args));
    TSR_TRY(tsr_expect_f32("byte_decode", args->dtype));
    if (args->columns)
        tsr_pool_run(pool, tsr_block_count(args->rows, tsr_block_rows(args->columns)), decode_block,
                     (void *)args);
    return TSR_OK;
}
