/*
 * expert_low_rank_ref.c: contract expert_low_rank.h. Blocks of an expert's rows; those that are gathered come in panels,
 * whose sums are added in order.
 */
#include "kernels/expert_low_rank.h"

#include "kernels/gemm_block.h"
#include "kernels/loops.h"

#define BLOCK_ROWS 128
#define PANEL      128 /* columns of gathered rows: 64 KiB on the stack */

tsr_status tsr_expert_low_rank_check(const tsr_expert_low_rank_args *args)
{
    const char *op = "expert_low_rank";
    TSR_TRY(tsr_expect_dtype(op, args->dtype));
    TSR_TRY(tsr_expert_rows_check(op, &args->rows));
    TSR_EXPECT(args->width > 0 && args->r > 0 && args->width <= INT32_MAX && args->r <= INT32_MAX,
               op, "width or r is no width");
    TSR_EXPECT(!args->weighted || (args->p && args->rows.slot), op, "weighted needs p and slots");
    if (args->rows.most == 0)
        return TSR_OK;
    TSR_EXPECT(args->low || args->weighted, op, "nothing is wanted");
    TSR_EXPECT(args->x && args->factor, op, "x or factor is NULL");
    return TSR_OK;
}

/* sum[i] = scale F_e x_i for a block's rows. */
static void multiply(float *sum, const tsr_expert_low_rank_args *args, const tsr_expert_block *rows)
{
    _Alignas(64) float panel[BLOCK_ROWS * PANEL];
    bool gather = args->rows.slot && !args->in_order;
    int64_t r = args->r, width = args->width, step = args->by_column ? r : 1;
    const float *factor = (const float *)args->factor + rows->expert * width * r;
    tsr_gemm_block_args block = {.m = rows->row_end - rows->row,
                                 .n = r,
                                 .k = width,
                                 .trans_b = !args->by_column,
                                 .a = (const float *)args->x + rows->row * width,
                                 .lda = width,
                                 .b = factor,
                                 .ldb = args->by_column ? r : width,
                                 .c = sum,
                                 .ldc = r,
                                 .alpha = args->scale};
    if (!gather) {
        tsr_gemm_block(&block);
        return;
    }
    for (int64_t first = 0; first < width; first += PANEL) {
        block.k = block.lda = tsr_min(PANEL, width - first);
        tsr_expert_rows_gather(panel, &args->rows, rows->row, rows->row_end, args->x, width, first,
                               block.k);
        block.a = panel;
        block.b = factor + first * step;
        tsr_gemm_block(&block);
        block.beta = 1;
    }
}

static void run_block(void *context, int index)
{
    const tsr_expert_low_rank_args *args = context;
    int64_t at = index, r = args->r;
    tsr_expert_block rows;
    if (!tsr_expert_block_at(&rows, &args->rows, 0, args->rows.experts, BLOCK_ROWS, &at))
        return;
    float *sum = (float *)(args->low ? args->low : args->weighted) + rows.row * r;
    multiply(sum, args, &rows);
    for (int64_t i = rows.row; args->weighted && i < rows.row_end; i++) {
        float p = args->p[args->rows.slot[i]], *out = (float *)args->weighted + i * r;
        for (int64_t k = 0; k < r; k++)
            out[k] = p * sum[(i - rows.row) * r + k];
    }
}

tsr_status tsr_expert_low_rank_ref(const tsr_expert_low_rank_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_expert_low_rank_check(args));
    TSR_TRY(tsr_expect_f32("expert_low_rank", args->dtype));
    TSR_TRY(tsr_expert_rows_read("expert_low_rank", &args->rows));
    int64_t blocks = 0;
    for (int64_t e = 0; e < args->rows.experts; e++)
        blocks += tsr_block_count(args->rows.offset[e + 1] - args->rows.offset[e], BLOCK_ROWS);
    tsr_pool_run(pool, (int)blocks, run_block, (void *)args);
    return TSR_OK;
}
