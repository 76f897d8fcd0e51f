/*
 * gemm_ref.c: contract gemm.h. Blocks fixed by the shape, each one serial matmul.
 */
#include "kernels/gemm.h"

#include "kernels/gemm_block.h"
#include "kernels/loops.h"

#define BLOCK_ROWS    256
#define BLOCK_COLUMNS 1024
#define WANTED_BLOCKS 4         /* a small matmul is cut until it has as many ... */
#define SMALLEST_WORK (1 << 19) /* ... or a block is below so many multiply-adds */
#define SMALLEST_SIDE 32
#define THIN_SIDE     32     /* up to this side (an adapter's rank) ... */
#define THIN_WORK     900000 /* ... OpenBLAS is twice as fast below 100^3: it does not pack */

tsr_status tsr_gemm_check(const tsr_gemm_args *args)
{
    TSR_TRY(tsr_expect_dtype("gemm", args->dtype));
    TSR_TRY(tsr_expect_dtype("gemm", args->c_dtype));
    if (args->m < 0 || args->n < 0 || args->k < 0 || args->m > INT32_MAX || args->n > INT32_MAX ||
        args->k > INT32_MAX)
        return tsr_fail(TSR_EINVAL, "gemm: m %lld, n %lld, k %lld", (long long)args->m,
                        (long long)args->n, (long long)args->k);
    int64_t a_columns = args->trans_a ? args->m : args->k;
    int64_t b_columns = args->trans_b ? args->k : args->n;
    if ((args->lda && args->lda < a_columns) || (args->ldb && args->ldb < b_columns) ||
        (args->ldc && args->ldc < args->n) || args->lda > INT32_MAX || args->ldb > INT32_MAX ||
        args->ldc > INT32_MAX)
        return tsr_fail(TSR_EINVAL,
                        "gemm: leading dimensions %lld, %lld, %lld for rows of %lld, %lld, %lld",
                        (long long)args->lda, (long long)args->ldb, (long long)args->ldc,
                        (long long)a_columns, (long long)b_columns, (long long)args->n);
    if (args->m && args->n)
        TSR_EXPECT(args->c && (args->k == 0 || (args->a && args->b)), "gemm", "a matrix is NULL");
    return TSR_OK;
}

typedef struct {
    tsr_gemm_block_args whole;
    int64_t rows, columns; /* of a block */
    int column_blocks;
} gemm_split;

static void run_block(void *context, int index)
{
    const gemm_split *split = context;
    tsr_gemm_block_args b = split->whole;
    int64_t row = index / split->column_blocks * split->rows;
    int64_t column = index % split->column_blocks * split->columns;
    b.m = tsr_min(split->rows, b.m - row);
    b.n = tsr_min(split->columns, b.n - column);
    b.a += b.trans_a ? row : row * b.lda;
    b.b += b.trans_b ? column * b.ldb : column;
    b.c += row * b.ldc + column;
    tsr_gemm_block(&b);
}

/* Even blocks of at most `most`, a multiple of 16 (the micro-kernel's side). */
static int64_t even_block(int64_t total, int64_t most)
{
    return tsr_even_block(total, most, 16);
}

/* The long side of a thin matmul in blocks that OpenBLAS does not pack. */
static int64_t thin_block(int64_t total, int64_t side, int64_t k, int64_t most)
{
    int64_t block = THIN_WORK / (side * k) / 16 * 16;
    return block < SMALLEST_SIDE ? even_block(total, most)
                                 : even_block(total, tsr_min(block, most));
}

static void choose_blocks(gemm_split *split)
{
    const tsr_gemm_block_args *w = &split->whole;
    int64_t k = w->k ? w->k : 1;
    bool few_rows = w->m <= THIN_SIDE, few_columns = w->n <= THIN_SIDE;
    split->rows =
        few_columns ? thin_block(w->m, w->n, k, BLOCK_ROWS) : even_block(w->m, BLOCK_ROWS);
    split->columns = few_rows && !few_columns ? thin_block(w->n, w->m, k, BLOCK_COLUMNS)
                                              : even_block(w->n, BLOCK_COLUMNS);
    for (;;) {
        int64_t blocks =
            (int64_t)tsr_block_count(w->m, split->rows) * tsr_block_count(w->n, split->columns);
        int64_t rows = tsr_min(split->rows, w->m), columns = tsr_min(split->columns, w->n);
        if (blocks >= WANTED_BLOCKS || rows * columns * k < 2 * SMALLEST_WORK)
            break;
        /* The longer side, so that packing both operands costs least. */
        if (columns >= rows && columns >= 2 * SMALLEST_SIDE)
            split->columns = even_block(w->n, (columns + 1) / 2);
        else if (rows >= 2 * SMALLEST_SIDE)
            split->rows = even_block(w->m, (rows + 1) / 2);
        else
            break;
    }
    split->column_blocks = tsr_block_count(w->n, split->columns);
}

tsr_status tsr_gemm_ref(const tsr_gemm_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_gemm_check(args));
    TSR_TRY(tsr_expect_f32("gemm", args->dtype));
    TSR_TRY(tsr_expect_f32("gemm", args->c_dtype));
    if (args->m == 0 || args->n == 0)
        return TSR_OK;
    gemm_split split = {.whole = {.m = args->m,
                                  .n = args->n,
                                  .k = args->k,
                                  .trans_a = args->trans_a,
                                  .trans_b = args->trans_b,
                                  .a = args->a,
                                  .b = args->b,
                                  .c = args->c,
                                  .alpha = args->alpha,
                                  .beta = args->beta}};
    tsr_gemm_block_args *w = &split.whole;
    w->lda = args->lda ? args->lda : tsr_min(INT32_MAX, args->trans_a ? args->m : args->k);
    w->ldb = args->ldb ? args->ldb : tsr_min(INT32_MAX, args->trans_b ? args->k : args->n);
    w->ldc = args->ldc ? args->ldc : args->n;
    w->lda = w->lda ? w->lda : 1; /* k = 0: BLAS wants at least 1 */
    w->ldb = w->ldb ? w->ldb : 1;
    choose_blocks(&split);
    int row_blocks = tsr_block_count(w->m, split.rows);
    tsr_pool_run(pool, row_blocks * split.column_blocks, run_block, &split);
    return TSR_OK;
}
