/*
 * expert_low_rank_backward_ref.c: contract expert_low_rank_backward.h. Strips of columns of db and da.
 */
#include "kernels/expert_low_rank_backward.h"

#include "kernels/gemm_block.h"
#include "kernels/loops.h"

#define BLOCK_ROWS 128
#define STRIP      128 /* columns; of gathered rows 64 KiB on the stack */

tsr_status tsr_expert_low_rank_backward_check(const tsr_expert_low_rank_backward_args *args)
{
    const char *op = "expert_low_rank_backward";
    TSR_TRY(tsr_expect_dtype(op, args->dtype));
    TSR_TRY(tsr_expert_rows_check(op, &args->rows));
    TSR_EXPECT(args->out > 0 && args->in > 0 && args->r > 0, op, "out, in or r is no width");
    TSR_EXPECT(args->da && args->db, op, "da or db is NULL");
    TSR_EXPECT(!args->spread || args->rows.slot, op, "what is spread needs slots");
    if (args->rows.most == 0)
        return TSR_OK;
    TSR_EXPECT(args->x && args->dz && args->low && args->d_low, op, "x, dz, low or d_low is NULL");
    return TSR_OK;
}

/* A matrix whose rows the op's rows take: x, or dz. */
typedef struct {
    const float *data;
    int64_t width;
    bool gathered;
} taken;

static taken x_of(const tsr_expert_low_rank_backward_args *args)
{
    return (taken){args->x, args->in, args->rows.slot && !args->spread};
}

static taken dz_of(const tsr_expert_low_rank_backward_args *args)
{
    return (taken){args->dz, args->out, args->spread};
}

/* Rows [row, row_end) from `column` on: where they lie, or copied to `panel`. */
static const float *take_rows(float *panel, int64_t *stride,
                              const tsr_expert_low_rank_backward_args *args, taken from,
                              int64_t row, int64_t row_end, int64_t column, int64_t width)
{
    if (!from.gathered) {
        *stride = from.width;
        return from.data + row * from.width + column;
    }
    tsr_expert_rows_gather(panel, &args->rows, row, row_end, from.data, from.width, column, width);
    *stride = width;
    return panel;
}

static void db_strip(const tsr_expert_low_rank_backward_args *args, int64_t e, int64_t column)
{
    _Alignas(64) float panel[BLOCK_ROWS * STRIP];
    int64_t row = args->rows.offset[e], end = args->rows.offset[e + 1], r = args->r, last;
    tsr_gemm_block_args db = {.m = tsr_min(STRIP, args->out - column),
                              .n = r,
                              .trans_a = true,
                              .ldb = r,
                              .c = args->db + (e * args->out + column) * r,
                              .ldc = r,
                              .alpha = 1};
    for (; row < end; row = last) {
        last = tsr_min(end, row + BLOCK_ROWS);
        db.k = last - row;
        db.a = take_rows(panel, &db.lda, args, dz_of(args), row, last, column, db.m);
        db.b = (const float *)args->low + row * r;
        tsr_gemm_block(&db);
        db.beta = 1;
    }
}

static void da_strip(const tsr_expert_low_rank_backward_args *args, int64_t e, int64_t column)
{
    _Alignas(64) float panel[BLOCK_ROWS * STRIP];
    int64_t row = args->rows.offset[e], end = args->rows.offset[e + 1], r = args->r, last;
    tsr_gemm_block_args da = {.m = r,
                              .n = tsr_min(STRIP, args->in - column),
                              .trans_a = true,
                              .lda = r,
                              .c = args->da + e * r * args->in + column,
                              .ldc = args->in,
                              .alpha = 1};
    for (; row < end; row = last) {
        last = tsr_min(end, row + BLOCK_ROWS);
        da.k = last - row;
        da.a = (const float *)args->d_low + row * r;
        da.b = take_rows(panel, &da.ldb, args, x_of(args), row, last, column, da.n);
        tsr_gemm_block(&da);
        da.beta = 1;
    }
}

static void zero_strip(float *c, int64_t rows, int64_t columns, int64_t stride)
{
    for (int64_t i = 0; i < rows; i++)
        memset(c + i * stride, 0, (size_t)columns * sizeof(float));
}

/* A strip of db or, beyond those, of da, of one expert. */
static void strip(void *context, int index)
{
    const tsr_expert_low_rank_backward_args *args = context;
    int64_t out_strips = tsr_block_count(args->out, STRIP), r = args->r, in = args->in;
    int64_t strips = out_strips + tsr_block_count(in, STRIP), e = index / strips;
    int64_t at = index % strips, column = (at < out_strips ? at : at - out_strips) * STRIP;
    bool none = args->rows.offset[e] == args->rows.offset[e + 1];
    if (at < out_strips && none)
        zero_strip(args->db + (e * args->out + column) * r, tsr_min(STRIP, args->out - column), r,
                   r);
    else if (at < out_strips)
        db_strip(args, e, column);
    else if (none)
        zero_strip(args->da + e * r * in + column, r, tsr_min(STRIP, in - column), in);
    else
        da_strip(args, e, column);
}

tsr_status tsr_expert_low_rank_backward_ref(const tsr_expert_low_rank_backward_args *args,
                                            tsr_pool *pool)
{
    TSR_TRY(tsr_expert_low_rank_backward_check(args));
    TSR_TRY(tsr_expect_f32("expert_low_rank_backward", args->dtype));
    TSR_TRY(tsr_expert_rows_read("expert_low_rank_backward", &args->rows));
    int strips = tsr_block_count(args->out, STRIP) + tsr_block_count(args->in, STRIP);
    tsr_pool_run(pool, (int)args->rows.experts * strips, strip, (void *)args);
    return TSR_OK;
}
