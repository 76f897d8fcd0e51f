/*
 * mxfp4_dequant_ref.c: contract mxfp4_dequant.h. A block's 16 products are made once and looked up, 16 elements by one
 * permutation.
 */
#include "kernels/mxfp4_dequant.h"

#include "kernels/loops.h"

#define TASK_ROWS(columns) (1 + (1 << 15) / (columns))

tsr_status tsr_mxfp4_dequant_check(const tsr_mxfp4_dequant_args *args)
{
    TSR_TRY(tsr_expect_dtype("mxfp4_dequant", args->dtype));
    TSR_EXPECT(args->first >= 0 && args->count >= 0 && args->rows >= 0 && args->columns >= 0,
               "mxfp4_dequant", "a count is negative");
    TSR_EXPECT(args->columns % TSR_MXFP4_BLOCK == 0, "mxfp4_dequant",
               "columns are no multiple of 32");
    TSR_EXPECT(!args->by_turns || args->rows % 2 == 0, "mxfp4_dequant",
               "rows by turns need an even number of them");
    if (args->count * args->rows * args->columns == 0)
        return TSR_OK;
    TSR_EXPECT(args->out && args->codes && args->scales, "mxfp4_dequant",
               "out, codes or scales is NULL");
    return TSR_OK;
}

/* 2^(scale - 127); of 0 a subnormal number. */
static float power_of(uint8_t scale)
{
    uint32_t bits = scale ? (uint32_t)scale << 23 : UINT32_C(1) << 22;
    float out;
    memcpy(&out, &bits, sizeof out);
    return out;
}

/* Eight elements are four bytes, the first of two the lower nibble. */
TSR_INLINE void lookup_32(float *out, const uint8_t *codes, const float *product)
{
    const tsr_half_mask shift = {0, 4, 8, 12, 16, 20, 24, 28};
    for (int i = 0; i < TSR_MXFP4_BLOCK / 8; i++) {
        uint32_t word;
        memcpy(&word, codes + 4 * i, sizeof word);
        tsr_look_up_8(out + 8 * i, product, word, shift);
    }
}

TSR_CLONES static void run_rows(void *context, int index)
{
    static const float level[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                    -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
    const tsr_mxfp4_dequant_args *args = context;
    int64_t granules = tsr_mxfp4_granules(args->rows, args->columns);
    int64_t blocks = args->columns / TSR_MXFP4_BLOCK, each = TASK_ROWS(args->columns);
    int64_t last = tsr_min(args->count * args->rows, (index + 1) * each);
    for (int64_t at = index * each; at < last; at++) {
        int64_t matrix = at / args->rows, row = at % args->rows;
        int64_t to = args->by_turns ? row % 2 * (args->rows / 2) + row / 2 : row;
        int64_t first = (args->first + matrix) * granules;
        const uint8_t *codes = args->codes + first * TSR_MXFP4_GRANULE_CODE_BYTES;
        const uint8_t *scales = args->scales + first * TSR_MXFP4_GRANULE_SCALE_BYTES;
        float *out = (float *)args->out + (matrix * args->rows + to) * args->columns;
        for (int64_t i = 0; i < blocks; i++) {
            int64_t block = row * blocks + i;
            float power = power_of(scales[block]), product[16];
            for (int j = 0; j < 16; j++)
                product[j] = level[j] * power;
            lookup_32(out + i * TSR_MXFP4_BLOCK, codes + block * TSR_MXFP4_BLOCK_BYTES, product);
        }
    }
}

tsr_status tsr_mxfp4_dequant_ref(const tsr_mxfp4_dequant_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_mxfp4_dequant_check(args));
    TSR_TRY(tsr_expect_f32("mxfp4_dequant", args->dtype));
    if (args->columns == 0)
        return TSR_OK;
    int tasks = tsr_block_count(args->count * args->rows, TASK_ROWS(args->columns));
    tsr_pool_run(pool, tasks, run_rows, (void *)args);
    return TSR_OK;
}
