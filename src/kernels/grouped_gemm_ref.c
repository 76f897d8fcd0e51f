/*
 * grouped_gemm_ref.c: contract grouped_gemm.h. Blocks of an expert's rows and of columns, each one serial
 * matmul; rows that are gathered come in panels, whose sums are added in order.
 */
#include "kernels/grouped_ref.h"

#include "kernels/loops.h"

#define BLOCK_ROWS    128
#define BLOCK_COLUMNS 512
#define PANEL         128 /* columns of gathered rows: 64 KiB on the stack */

tsr_status tsr_grouped_gemm_check(const tsr_grouped_gemm_args *args)
{
    const char *op = "grouped_gemm";
    TSR_TRY(tsr_expect_dtype(op, args->dtype));
    TSR_TRY(tsr_expert_rows_check(op, &args->rows));
    TSR_EXPECT(args->first >= 0 && args->count >= 0 &&
                   args->first <= args->rows.experts - args->count,
               op, "first and count are not among the experts");
    TSR_EXPECT(args->out > 0 && args->in > 0 && args->out <= INT32_MAX && args->in <= INT32_MAX, op,
               "out or in is no width");
    TSR_EXPECT(args->r >= 0 && args->r <= INT32_MAX, op, "r is no width");
    TSR_EXPECT(tsr_frozen_valid(args->bias), op, "the bias is neither BF16 nor F32");
    TSR_EXPECT(!args->backward || !args->bias.data, op, "a bias is for forward");
    if (args->rows.most == 0 || args->count == 0)
        return TSR_OK;
    TSR_EXPECT(args->z && args->x, op, "z or x is NULL");
    TSR_EXPECT(args->r == 0 || (args->low && args->factor), op, "low or factor is NULL");
    if (args->w)
        return TSR_OK;
    tsr_expert_weight_args weight;
    TSR_EXPECT(args->scratch && args->held > 0, op, "w is NULL, and stored weights need scratch");
    tsr_grouped_gemm_part(&weight, args, args->first);
    TSR_EXPECT(weight.rows == args->out && weight.columns == args->in &&
                   weight.dtype == args->dtype,
               op, "the stored weights have another shape or dtype");
    return tsr_expert_weight_check(&weight);
}

tsr_grouped_gemm_args tsr_grouped_gemm_part(tsr_expert_weight_args *weight,
                                            const tsr_grouped_gemm_args *args, int64_t first)
{
    tsr_grouped_gemm_args part = *args;
    part.first = first;
    part.count = tsr_min(args->held, args->first + args->count - first);
    part.w = args->scratch;
    *weight = args->stored;
    weight->out = args->scratch;
    weight->first = first;
    weight->count = part.count;
    return part;
}

/* What the sum is added to: the bias, or nothing. Returns beta. */
static float begin_block(const tsr_grouped_gemm_args *args, const tsr_expert_block *rows,
                         int64_t column, int64_t width)
{
    float buffer[BLOCK_COLUMNS];
    if (!args->bias.data)
        return 0;
    const float *bias =
        tsr_frozen_load(buffer, args->bias, rows->expert * args->out + column, width, 0);
    for (int64_t i = rows->row; i < rows->row_end; i++)
        memcpy((float *)args->z + i * args->out + column, bias, (size_t)width * sizeof(float));
    return 1;
}

static void multiply(const tsr_grouped_gemm_args *args, const tsr_expert_block *rows,
                     tsr_gemm_block_args block)
{
    _Alignas(64) float panel[BLOCK_ROWS * PANEL];
    int64_t inner = block.k, w_step = args->backward ? args->in : 1;
    const float *w = block.b;
    if (!args->rows.slot) {
        block.a = (const float *)args->x + rows->row * inner;
        block.lda = inner;
        tsr_gemm_block(&block);
        return;
    }
    for (int64_t first = 0; first < inner; first += PANEL) {
        int64_t width = tsr_min(PANEL, inner - first);
        tsr_expert_rows_gather(panel, &args->rows, rows->row, rows->row_end, args->x, inner, first,
                               width);
        block.a = panel;
        block.lda = block.k = width;
        block.b = w + first * w_step;
        tsr_gemm_block(&block);
        block.beta = 1;
    }
}

void tsr_grouped_add_low(const tsr_grouped_gemm_args *args, const tsr_expert_block *rows,
                         tsr_gemm_block_args block, int64_t column)
{
    int64_t r = args->r, outer = args->backward ? args->in : args->out;
    const float *factor = (const float *)args->factor + rows->expert * outer * r;
    block.k = block.lda = r;
    block.trans_b = !args->backward;
    block.a = (const float *)args->low + rows->row * r;
    block.b = factor + column * (args->backward ? 1 : r);
    block.ldb = args->backward ? outer : r;
    block.beta = 1;
    tsr_gemm_block(&block);
}

static void run_block(void *context, int index)
{
    const tsr_grouped_gemm_args *args = context;
    int64_t outer = args->backward ? args->in : args->out;
    int64_t strips = tsr_block_count(outer, BLOCK_COLUMNS), at = index / strips;
    int64_t column = index % strips * BLOCK_COLUMNS;
    tsr_expert_block rows;
    if (!tsr_expert_block_at(&rows, &args->rows, args->first, args->count, BLOCK_ROWS, &at))
        return;
    const float *w = (const float *)args->w + (rows.expert - args->first) * args->out * args->in;
    tsr_gemm_block_args block = {.m = rows.row_end - rows.row,
                                 .n = tsr_min(BLOCK_COLUMNS, outer - column),
                                 .k = args->backward ? args->out : args->in,
                                 .trans_b = !args->backward,
                                 .b = args->backward ? w + column : w + column * args->in,
                                 .ldb = args->in,
                                 .c = (float *)args->z + rows.row * outer + column,
                                 .ldc = outer,
                                 .alpha = 1};
    block.beta = begin_block(args, &rows, column, block.n);
    multiply(args, &rows, block);
    if (args->r)
        tsr_grouped_add_low(args, &rows, block, column);
}

int tsr_grouped_blocks(const tsr_grouped_gemm_args *args, int64_t height, int64_t width)
{
    const int32_t *offset = args->rows.offset;
    int64_t blocks = 0, outer = args->backward ? args->in : args->out;
    for (int64_t e = args->first; e < args->first + args->count; e++)
        blocks += tsr_block_count(offset[e + 1] - offset[e], height);
    return (int)(blocks * tsr_block_count(outer, width));
}

static tsr_status stored_ref(const tsr_grouped_gemm_args *args, tsr_pool *pool)
{
    for (int64_t first = args->first; first < args->first + args->count; first += args->held) {
        tsr_expert_weight_args weight;
        tsr_grouped_gemm_args part = tsr_grouped_gemm_part(&weight, args, first);
        TSR_TRY(tsr_expert_weight_ref(&weight, pool));
        TSR_TRY(tsr_grouped_gemm_ref(&part, pool));
    }
    return TSR_OK;
}

tsr_status tsr_grouped_gemm_ref(const tsr_grouped_gemm_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_grouped_gemm_check(args));
    TSR_TRY(tsr_expect_f32("grouped_gemm", args->dtype));
    if (!args->w)
        return stored_ref(args, pool);
    TSR_TRY(tsr_expert_rows_read("grouped_gemm", &args->rows));
    tsr_pool_run(pool, tsr_grouped_blocks(args, BLOCK_ROWS, BLOCK_COLUMNS), run_block,
                 (void *)args);
    return TSR_OK;
}
