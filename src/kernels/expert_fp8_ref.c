/*
 * expert_fp8_ref.c: contract expert_fp8.h. The scales first, an expert a task; then a row a task, by
 * the reference of fp8_decode.
 */
#include "kernels/expert_fp8.h"

#include "kernels/fp8_decode.h"
#include "kernels/loops.h"

tsr_status tsr_expert_fp8_check(const tsr_expert_fp8_args *args)
{
    tsr_expert_weight_args codes = args->weight;
    TSR_EXPECT(codes.format == TSR_EXPERTS_NF4, "expert_fp8", "the experts are not in NF4");
    TSR_EXPECT(codes.dtype == TSR_F8_E4M3, "expert_fp8", "dtype is not F8_E4M3");
    codes.dtype = TSR_F32;
    TSR_TRY(tsr_expert_weight_check(&codes));
    TSR_EXPECT(codes.count == 0 || args->scale, "expert_fp8", "scale is NULL");
    return TSR_OK;
}

static void scale_expert(void *context, int index)
{
    const tsr_expert_fp8_args *args = context;
    const tsr_expert_weight_args *a = &args->weight;
    int64_t rows = a->rows / a->parts, matrix = (a->first + index) * a->parts;
    uint32_t most = 0;
    for (int64_t part = 0; part < a->parts; part++) {
        tsr_nf4_dequant_args w = tsr_expert_weight_matrix(a, matrix + part, rows);
        int64_t blocks = (w.count + TSR_NF4_BLOCK - 1) / TSR_NF4_BLOCK;
        uint32_t bits = tsr_fp8_decode_most(&w, 0, blocks);
        most = bits > most ? bits : most;
    }
    args->scale[index] = tsr_fp8_decode_scale(most, a->level);
}

static void decode_row(void *context, int index)
{
    const tsr_expert_fp8_args *args = context;
    const tsr_expert_weight_args *a = &args->weight;
    int64_t expert = index / a->rows, row = index % a->rows; /* of the range; of the expert */
    int64_t rows = a->rows / a->parts, matrix = (a->first + expert) * a->parts + row / rows;
    tsr_nf4_dequant_args w = tsr_expert_weight_matrix(a, matrix, rows);
    uint8_t *out = (uint8_t *)a->out + expert * a->rows * a->columns;
    tsr_fp8_decode_row(out + (args->transposed ? row : row * a->columns),
                       args->transposed ? a->rows : 1, &w, row % rows, args->scale[expert]);
}

tsr_status tsr_expert_fp8_ref(const tsr_expert_fp8_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_expert_fp8_check(args));
    tsr_pool_run(pool, (int)args->weight.count, scale_expert, (void *)args);
    tsr_pool_run(pool, (int)(args->weight.count * args->weight.rows), decode_row, (void *)args);
    return TSR_OK;
}
