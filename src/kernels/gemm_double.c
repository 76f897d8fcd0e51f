/*
 * gemm_double.c: contract gemm_double.h. Blocks fixed by the shape, each one serial matmul.
 */
#include "kernels/gemm_double.h"

#include "kernels/gemm_block.h"
#include "kernels/loops.h"

#define BLOCK_ROWS    256
#define BLOCK_COLUMNS 512

typedef struct {
    tsr_gemm_block_double_args whole;
    int64_t rows, columns; /* of a block */
    int column_blocks;
} split;

static void run_block(void *context, int index)
{
    const split *s = context;
    tsr_gemm_block_double_args b = s->whole;
    int64_t row = index / s->column_blocks * s->rows;
    int64_t column = index % s->column_blocks * s->columns;
    b.m = tsr_min(s->rows, b.m - row);
    b.n = tsr_min(s->columns, b.n - column);
    b.a += b.trans_a ? row : row * b.lda;
    b.b += b.trans_b ? column * b.ldb : column;
    b.c += row * b.ldc + column;
    tsr_gemm_block_double(&b);
}

void tsr_gemm_double(const tsr_gemm_double_args *args, tsr_pool *pool)
{
    split s = {.whole = {.m = args->m,
                         .n = args->n,
                         .k = args->k,
                         .trans_a = args->trans_a,
                         .trans_b = args->trans_b,
                         .a = args->a,
                         .b = args->b,
                         .c = args->c,
                         .alpha = args->alpha,
                         .beta = args->beta}};
    tsr_gemm_block_double_args *w = &s.whole;
    if (w->m == 0 || w->n == 0)
        return;
    w->lda = args->lda ? args->lda : w->trans_a ? w->m : w->k;
    w->ldb = args->ldb ? args->ldb : w->trans_b ? w->k : w->n;
    w->ldc = args->ldc ? args->ldc : w->n;
    s.rows = tsr_even_block(w->m, BLOCK_ROWS, 16);
    s.columns = tsr_even_block(w->n, BLOCK_COLUMNS, 16);
    s.column_blocks = tsr_block_count(w->n, s.columns);
    tsr_pool_run(pool, tsr_block_count(w->m, s.rows) * s.column_blocks, run_block, &s);
}
