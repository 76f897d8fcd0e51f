/*
 * fp8_gemm_ref.c: contract fp8_gemm.h. Tiles of C, each summed in fp32 over pieces of k that are widened
 * on the stack.
 */
#include "kernels/fp8_gemm.h"

#include "kernels/fp8.h"
#include "kernels/gemm_block.h"
#include "kernels/loops.h"

#define TILE  64  /* rows and columns of C */
#define PIECE 128 /* of k */

tsr_status tsr_fp8_gemm_check(const tsr_fp8_gemm_args *args)
{
    if (args->c_dtype != TSR_F32 && args->c_dtype != TSR_BF16)
        return tsr_fail(TSR_EINVAL, "fp8_gemm: dtype %d of C is not F32 or BF16",
                        (int)args->c_dtype);
    if (args->m < 0 || args->n < 0 || args->k < 0 || args->m > INT32_MAX || args->n > INT32_MAX ||
        args->k > INT32_MAX)
        return tsr_fail(TSR_EINVAL, "fp8_gemm: m %lld, n %lld, k %lld", (long long)args->m,
                        (long long)args->n, (long long)args->k);
    TSR_EXPECT(args->beta == 0 || args->beta == 1, "fp8_gemm", "beta is neither 0 nor 1");
    if (args->m && args->n)
        TSR_EXPECT(args->c && (args->k == 0 || (args->a && args->b && args->scale_a)), "fp8_gemm",
                   "a matrix or scale_a is NULL");
    return TSR_OK;
}

tsr_gemm_args tsr_fp8_gemm_shape(const tsr_fp8_gemm_args *args)
{
    return (tsr_gemm_args){.m = args->m,
                           .n = args->n,
                           .k = args->k,
                           .a = args->a,
                           .b = args->b,
                           .c = args->c,
                           .trans_b = true,
                           .alpha = args->alpha,
                           .beta = args->beta,
                           .dtype = TSR_F8_E4M3,
                           .c_dtype = args->c_dtype,
                           .fast = args->fast};
}

TSR_CLONES static void widen(float *out, const uint8_t *codes, int64_t rows, int64_t columns,
                             int64_t ld)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            out[i * PIECE + j] = tsr_e4m3_to_f32(codes[i * ld + j]);
}

/* sum[rows, columns], rows TILE apart. */
static void sum_tile(float *sum, const tsr_fp8_gemm_args *args, int64_t row, int64_t rows,
                     int64_t column, int64_t columns)
{
    float a[TILE * PIECE], b[TILE * PIECE];
    for (int64_t k = 0; k < args->k; k += PIECE) {
        int64_t count = tsr_min(PIECE, args->k - k);
        widen(a, args->a + row * args->k + k, rows, count, args->k);
        widen(b, args->b + column * args->k + k, columns, count, args->k);
        tsr_gemm_block(&(tsr_gemm_block_args){.m = rows,
                                              .n = columns,
                                              .k = count,
                                              .trans_b = true,
                                              .a = a,
                                              .lda = PIECE,
                                              .b = b,
                                              .ldb = PIECE,
                                              .c = sum,
                                              .ldc = TILE,
                                              .alpha = 1,
                                              .beta = 1});
    }
}

static void multiply_tile(void *context, int index)
{
    const tsr_fp8_gemm_args *args = context;
    int across = tsr_block_count(args->n, TILE);
    int64_t row = (int64_t)(index / across) * TILE, column = (int64_t)(index % across) * TILE;
    int64_t rows = tsr_min(TILE, args->m - row), columns = tsr_min(TILE, args->n - column);
    float sum[TILE * TILE] = {0};
    sum_tile(sum, args, row, rows, column, columns);
    for (int64_t i = 0; i < rows; i++) {
        float *c = (float *)args->c + (row + i) * args->n + column;
        for (int64_t j = 0; j < columns; j++) {
            float scale_b = args->scale_b ? args->scale_b[column + j] : 1;
            float product = 0;
            if (args->k)
                product = args->alpha * (args->scale_a[row + i] * scale_b) * sum[i * TILE + j];
            c[j] = args->beta == 0 ? product : product + c[j];
        }
    }
}

tsr_status tsr_fp8_gemm_ref(const tsr_fp8_gemm_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_fp8_gemm_check(args));
    TSR_TRY(tsr_expect_f32("fp8_gemm", args->c_dtype));
    tsr_pool_run(pool, tsr_block_count(args->m, TILE) * tsr_block_count(args->n, TILE),
                 multiply_tile, (void *)args);
    return TSR_OK;
}
