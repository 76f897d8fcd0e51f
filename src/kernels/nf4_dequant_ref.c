/*
 * nf4_dequant_ref.c: contract nf4_dequant.h. A block's 16 products level * absmax are made once and
 * looked up: the same rounding as one product per element, and a permutation or two for eight
 * elements.
 */
#include "kernels/nf4_dequant.h"

#include "kernels/loops.h"

#define BLOCK        64
#define NESTED_BLOCK 256
#define TASK_BLOCKS  512 /* 32768 elements */

tsr_status tsr_nf4_dequant_check(const tsr_nf4_dequant_args *args)
{
    TSR_TRY(tsr_expect_dtype("nf4_dequant", args->dtype));
    TSR_EXPECT(args->count >= 0, "nf4_dequant", "count is negative");
    TSR_EXPECT(!args->row_factor || args->columns > 0, "nf4_dequant",
               "row_factor needs columns > 0");
    if (args->count == 0)
        return TSR_OK;
    TSR_EXPECT(args->out && args->codes && args->absmax && args->level, "nf4_dequant",
               "out, codes, absmax or level is NULL");
    TSR_EXPECT(!args->nested || (args->nested_absmax && args->nested_map), "nf4_dequant",
               "nested scales need nested_absmax and nested_map");
    return TSR_OK;
}

static float block_scale(const tsr_nf4_dequant_args *args, int64_t block)
{
    if (!args->nested)
        return ((const float *)args->absmax)[block];
    uint8_t q = ((const uint8_t *)args->absmax)[block];
    float residual = args->nested_map[q] * args->nested_absmax[block / NESTED_BLOCK];
    return residual + args->offset;
}

/* Eight elements are four bytes, the first of two the higher nibble. */
TSR_INLINE void lookup_64(float *out, const uint8_t *codes, const float *product)
{
    const tsr_half_mask shift = {4, 0, 12, 8, 20, 16, 28, 24};
    for (int i = 0; i < BLOCK / 8; i++) {
        uint32_t word;
        memcpy(&word, codes + 4 * i, sizeof word);
        tsr_look_up_8(out + 8 * i, product, word, shift);
    }
}

/* A block that is short or crosses a row. */
static void any_block(const tsr_nf4_dequant_args *args, int64_t start, int64_t count,
                      const float *product)
{
    float *out = args->out;
    for (int64_t e = start; e < start + count; e++) {
        uint8_t byte = args->codes[e / 2];
        float value = product[e % 2 ? byte & 15 : byte >> 4];
        out[e] = args->row_factor ? value * args->row_factor[e / args->columns] : value;
    }
}

TSR_CLONES static void run_blocks(void *context, int index)
{
    const tsr_nf4_dequant_args *args = context;
    int64_t blocks = (args->count + BLOCK - 1) / BLOCK;
    int64_t last = tsr_min(blocks, (int64_t)(index + 1) * TASK_BLOCKS);
    for (int64_t block = (int64_t)index * TASK_BLOCKS; block < last; block++) {
        int64_t start = block * BLOCK, count = tsr_min(BLOCK, args->count - start);
        float scale = block_scale(args, block), product[16];
        for (int i = 0; i < 16; i++)
            product[i] = args->level[i] * scale;
        int64_t row = args->row_factor ? start / args->columns : 0;
        bool one_row = !args->row_factor || (start + BLOCK - 1) / args->columns == row;
        if (count < BLOCK || !one_row) {
            any_block(args, start, count, product);
            continue;
        }
        if (args->row_factor)
            for (int i = 0; i < 16; i++)
                product[i] = product[i] * args->row_factor[row];
        lookup_64((float *)args->out + start, args->codes + start / 2, product);
    }
}

tsr_status tsr_nf4_dequant_ref(const tsr_nf4_dequant_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_nf4_dequant_check(args));
    TSR_TRY(tsr_expect_f32("nf4_dequant", args->dtype));
    int64_t blocks = (args->count + BLOCK - 1) / BLOCK;
    tsr_pool_run(pool, tsr_block_count(blocks, TASK_BLOCKS), run_blocks, (void *)args);
    return TSR_OK;
}
