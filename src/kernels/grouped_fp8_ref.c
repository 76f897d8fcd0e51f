/*
 * grouped_fp8_ref.c: contract grouped_fp8.h. Blocks of an expert's rows and of columns; both operands are widened on the
 * stack, a panel of the sum at a time, and the sums scaled where they lie before the adapter's are added.
 */
#include "kernels/grouped_fp8.h"

#include "kernels/fp8.h"
#include "kernels/grouped_ref.h"
#include "kernels/loops.h"

#define BLOCK_ROWS    64
#define BLOCK_COLUMNS 64
#define PANEL         128 /* of the sum */

tsr_status tsr_grouped_fp8_check(const tsr_grouped_fp8_args *args)
{
    const tsr_grouped_gemm_args *gemm = &args->gemm;
    TSR_TRY(tsr_grouped_gemm_check(gemm));
    TSR_EXPECT(gemm->dtype == TSR_F32 || gemm->dtype == TSR_BF16, "grouped_fp8",
               "z is neither F32 nor BF16");
    if (gemm->rows.most == 0 || gemm->count == 0)
        return TSR_OK;
    TSR_EXPECT(args->x_scale && args->w_scale, "grouped_fp8", "x_scale or w_scale is NULL");
    TSR_EXPECT(gemm->w || gemm->stored.format == TSR_EXPERTS_NF4, "grouped_fp8",
               "the stored weights are not in NF4");
    return TSR_OK;
}

tsr_grouped_fp8_args tsr_grouped_fp8_part(tsr_expert_fp8_args *weight,
                                          const tsr_grouped_fp8_args *args, int64_t first)
{
    tsr_grouped_fp8_args part = *args;
    part.gemm = tsr_grouped_gemm_part(&weight->weight, &args->gemm, first);
    weight->weight.dtype = TSR_F8_E4M3;
    weight->scale = args->w_scale;
    weight->transposed = args->gemm.backward;
    return part;
}

static void widen(float *out, const uint8_t *codes, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        out[i] = tsr_e4m3_to_f32(codes[i]);
}

/* The sums of a block, without their scales. */
static void sum_block(const tsr_grouped_gemm_args *args, const tsr_expert_block *rows,
                      tsr_gemm_block_args block, const uint8_t *w, int64_t inner)
{
    _Alignas(64) float a[BLOCK_ROWS * PANEL], b[BLOCK_COLUMNS * PANEL];
    block.a = a, block.b = b;
    block.lda = block.ldb = PANEL;
    block.trans_b = true;
    for (int64_t k = 0; k < inner; k += PANEL) {
        block.k = tsr_min(PANEL, inner - k);
        for (int64_t i = 0; i < block.m; i++) {
            int64_t from = tsr_expert_row_from(&args->rows, rows->row + i);
            widen(a + i * PANEL, (const uint8_t *)args->x + from * inner + k, block.k);
        }
        for (int64_t j = 0; j < block.n; j++)
            widen(b + j * PANEL, w + j * inner + k, block.k);
        block.beta = k > 0;
        tsr_gemm_block(&block);
    }
}

static void scale_block(const tsr_grouped_fp8_args *args, const tsr_expert_block *rows,
                        const tsr_gemm_block_args *block, float w_scale, int64_t column)
{
    const tsr_grouped_gemm_args *gemm = &args->gemm;
    float buffer[BLOCK_COLUMNS] = {0};
    const float *bias = buffer;
    if (gemm->bias.data)
        bias = tsr_frozen_load(buffer, gemm->bias, rows->expert * gemm->out + column, block->n, 0);
    for (int64_t i = 0; i < block->m; i++) {
        float scale = args->x_scale[tsr_expert_row_from(&gemm->rows, rows->row + i)] * w_scale;
        for (int64_t j = 0; j < block->n; j++)
            block->c[i * block->ldc + j] = block->c[i * block->ldc + j] * scale + bias[j];
    }
}

static void run_block(void *context, int index)
{
    const tsr_grouped_fp8_args *args = context;
    const tsr_grouped_gemm_args *gemm = &args->gemm;
    int64_t outer = gemm->backward ? gemm->in : gemm->out;
    int64_t inner = gemm->backward ? gemm->out : gemm->in;
    int64_t strips = tsr_block_count(outer, BLOCK_COLUMNS), at = index / strips;
    int64_t column = index % strips * BLOCK_COLUMNS;
    tsr_expert_block rows;
    if (!tsr_expert_block_at(&rows, &gemm->rows, gemm->first, gemm->count, BLOCK_ROWS, &at))
        return;
    int64_t expert = rows.expert - gemm->first;
    const uint8_t *w = (const uint8_t *)gemm->w + (expert * outer + column) * inner;
    tsr_gemm_block_args block = {.m = rows.row_end - rows.row,
                                 .n = tsr_min(BLOCK_COLUMNS, outer - column),
                                 .c = (float *)gemm->z + rows.row * outer + column,
                                 .ldc = outer,
                                 .alpha = 1};
    sum_block(gemm, &rows, block, w, inner);
    scale_block(args, &rows, &block, args->w_scale[expert], column);
    if (gemm->r)
        tsr_grouped_add_low(gemm, &rows, block, column);
}

static tsr_status stored_ref(const tsr_grouped_fp8_args *args, tsr_pool *pool)
{
    const tsr_grouped_gemm_args *gemm = &args->gemm;
    for (int64_t first = gemm->first; first < gemm->first + gemm->count; first += gemm->held) {
        tsr_expert_fp8_args weight;
        tsr_grouped_fp8_args part = tsr_grouped_fp8_part(&weight, args, first);
        TSR_TRY(tsr_expert_fp8_ref(&weight, pool));
        TSR_TRY(tsr_grouped_fp8_ref(&part, pool));
    }
    return TSR_OK;
}

tsr_status tsr_grouped_fp8_ref(const tsr_grouped_fp8_args *args, tsr_pool *pool)
{
    const tsr_grouped_gemm_args *gemm = &args->gemm;
    TSR_TRY(tsr_grouped_fp8_check(args));
    TSR_TRY(tsr_expect_f32("grouped_fp8", gemm->dtype));
    if (!gemm->w)
        return stored_ref(args, pool);
    TSR_TRY(tsr_expert_rows_read("grouped_fp8", &gemm->rows));
    tsr_pool_run(pool, tsr_grouped_blocks(gemm, BLOCK_ROWS, BLOCK_COLUMNS), run_block,
                 (void *)args);
    return TSR_OK;
}
