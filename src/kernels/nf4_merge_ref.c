/*
 * nf4_merge_ref.c: contract nf4_merge.h.
 */
#include "kernels/nf4_merge.h"

#include "kernels/fp8.h"
#include "kernels/fp8_decode.h"
#include "kernels/loops.h"

#include <math.h>

tsr_status tsr_nf4_merge_check(const tsr_nf4_merge_args *args)
{
    const tsr_nf4_dequant_args *w = &args->weight;
    tsr_nf4_dequant_args codes = *w;
    if (args->e4m3_scale)
        codes.out = args->norms.n; /* is checked only */
    TSR_TRY(tsr_nf4_dequant_check(&codes));
    TSR_EXPECT(!w->row_factor, "nf4_merge", "row_factor is not for merging");
    TSR_EXPECT(w->columns > 0 && w->count % w->columns == 0, "nf4_merge",
               "count is not whole rows of columns");
    TSR_EXPECT(args->r >= 0, "nf4_merge", "r is negative");
    TSR_EXPECT(w->count == 0 || args->r == 0 || (args->a && args->b), "nf4_merge",
               "a or b is NULL");
    TSR_EXPECT(!args->norms.n || args->norms.g, "nf4_merge", "norms without g");
    TSR_EXPECT(!args->apart || args->norms.n, "nf4_merge", "W apart is for norms");
    TSR_EXPECT(!args->e4m3_scale || (args->norms.n && !w->out && !args->apart), "nf4_merge",
               "e4m3_scale is for norms alone");
    return TSR_OK;
}

tsr_gemm_args tsr_nf4_merge_product(const tsr_nf4_merge_args *args)
{
    const tsr_nf4_dequant_args *w = &args->weight;
    return (tsr_gemm_args){.m = w->count / w->columns,
                           .n = w->columns,
                           .k = args->r,
                           .a = args->b,
                           .b = args->a,
                           .c = w->out,
                           .alpha = args->scale,
                           .beta = 1,
                           .dtype = w->dtype,
                           .c_dtype = w->dtype};
}

/* ---- norms ---- */

#define ROWS_PER_BLOCK 32

static float row_norm(const float *row, int64_t columns)
{
    double sum = 0;
    for (int64_t j = 0; j < columns; j++)
        sum += (double)row[j] * (double)row[j];
    return sqrtf((float)sum);
}

/* Elements from `first` on, which lie in one block of codes, as e4m3 has them with this scale. */
static void values_in_e4m3(float *out, const tsr_nf4_dequant_args *w, int64_t first, int64_t count,
                           float scale)
{
    uint8_t table[16];
    tsr_fp8_decode_block(table, w, first / TSR_NF4_BLOCK, scale);
    for (int64_t e = first; e < first + count; e++) {
        uint8_t byte = w->codes[e / 2];
        out[e - first] = tsr_e4m3_to_f32(table[e % 2 ? byte & 15 : byte >> 4]) * scale;
    }
}

/* Of row i of W in e4m3, + scale B A, a block of codes at a time. */
static float row_norm_alone(const tsr_nf4_merge_args *args, int64_t i)
{
    const tsr_nf4_dequant_args *w = &args->weight;
    const float *b = (const float *)args->b + i * args->r;
    int64_t end = (i + 1) * w->columns, next;
    double sum = 0;
    for (int64_t e = i * w->columns; e < end; e = next) {
        float value[TSR_NF4_BLOCK], low[TSR_NF4_BLOCK] = {0};
        next = tsr_min(end, (e / TSR_NF4_BLOCK + 1) * TSR_NF4_BLOCK);
        values_in_e4m3(value, w, e, next - e, args->e4m3_scale[i]);
        for (int64_t k = 0; k < args->r; k++) {
            const float *a = (const float *)args->a + k * w->columns + e - i * w->columns;
            for (int64_t j = 0; j < next - e; j++)
                low[j] += b[k] * a[j];
        }
        for (int64_t j = 0; j < next - e; j++) {
            double x = (double)(value[j] + args->scale * low[j]);
            sum += x * x;
        }
    }
    return sqrtf((float)sum);
}

static void norm_block(void *context, int index)
{
    const tsr_nf4_merge_args *args = context;
    const tsr_nf4_merge_norms *norms = &args->norms;
    int64_t columns = args->weight.columns, rows = args->weight.count / columns;
    int64_t last = tsr_min(rows, (int64_t)(index + 1) * ROWS_PER_BLOCK);
    for (int64_t i = (int64_t)index * ROWS_PER_BLOCK; i < last; i++) {
        const float *row = (const float *)args->weight.out + i * columns;
        norms->n[i] = args->e4m3_scale ? row_norm_alone(args, i) : row_norm(row, columns);
        norms->g[i] = norms->m ? norms->m[i] / norms->n[i] : 1;
    }
}

tsr_status tsr_nf4_merge_ref(const tsr_nf4_merge_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_nf4_merge_check(args));
    TSR_TRY(tsr_expect_f32("nf4_merge", args->weight.dtype));
    if (args->weight.count == 0)
        return TSR_OK;
    tsr_gemm_args product = tsr_nf4_merge_product(args);
    if (!args->e4m3_scale) {
        TSR_TRY(tsr_nf4_dequant_ref(&args->weight, pool));
        TSR_TRY(tsr_gemm_ref(&product, pool));
    }
    if (args->norms.n)
        tsr_pool_run(pool, tsr_block_count(product.m, ROWS_PER_BLOCK), norm_block, (void *)args);
    return args->apart ? tsr_nf4_dequant_ref(&args->weight, pool) : TSR_OK;
}
