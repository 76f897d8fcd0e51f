/*
 * fp8_blocks_ref.c: contract fp8_blocks.h.
 */
#include "kernels/fp8_blocks.h"

#include "kernels/loops.h"

tsr_status tsr_fp8_blocks_check(const tsr_fp8_blocks_args *args)
{
    TSR_TRY(tsr_expect_dtype("fp8_blocks", args->dtype));
    TSR_EXPECT(args->rows >= 0 && args->columns >= 0, "fp8_blocks", "a size is negative");
    TSR_EXPECT(args->rows == 0 || args->columns == 0 || (args->out && args->code && args->scale),
               "fp8_blocks", "a pointer is NULL");
    return TSR_OK;
}

typedef struct {
    const tsr_fp8_blocks_args *args;
    float value[256]; /* of each code */
} decoding;

static void decode_row(const decoding *d, int64_t row)
{
    const tsr_fp8_blocks_args *a = d->args;
    const uint8_t *code = a->code + row * a->columns;
    const float *scale = a->scale + row / TSR_FP8_BLOCK_SIZE * tsr_fp8_blocks_across(a->columns);
    float *out = (float *)a->out + row * a->columns;
    for (int64_t j = 0; j < a->columns; j++)
        out[j] =
            tsr_bf16_to_f32(tsr_f32_to_bf16(d->value[code[j]] * scale[j / TSR_FP8_BLOCK_SIZE]));
}

static void decode_block(void *context, int index)
{
    const decoding *d = context;
    int64_t rows = tsr_block_rows(d->args->columns), first = index * rows;
    int64_t end = first + tsr_min(rows, d->args->rows - first);
    for (int64_t i = first; i < end; i++)
        decode_row(d, i);
}

tsr_status tsr_fp8_blocks_ref(const tsr_fp8_blocks_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_fp8_blocks_check(args));
    TSR_TRY(tsr_expect_f32("fp8_blocks", args->dtype));
    decoding d = {.args = args};
    for (int i = 0; i < 256; i++)
        d.value[i] = tsr_e4m3_to_f32((uint8_t)i);
    if (args->columns)
        tsr_pool_run(pool, tsr_block_count(args->rows, tsr_block_rows(args->columns)), decode_block,
                     &d);
    return TSR_OK;
}
