/*
 * fp8_quantize_ref.c: contract fp8_quantize.h.
 */
#include "kernels/fp8_quantize.h"

#include "kernels/fp8.h"
#include "kernels/loops.h"

tsr_status tsr_fp8_quantize_check(const tsr_fp8_quantize_args *args)
{
    if (args->dtype != TSR_F32 && args->dtype != TSR_BF16)
        return tsr_fail(TSR_EINVAL, "fp8_quantize: dtype %d is not F32 or BF16", (int)args->dtype);
    TSR_EXPECT(args->tokens >= 0 && args->d > 0, "fp8_quantize", "tokens < 0 or d < 1");
    TSR_EXPECT(args->tokens == 0 || (args->out && args->scale && args->x), "fp8_quantize",
               "out, scale or x is NULL");
    return TSR_OK;
}

TSR_INLINE float value_at(const tsr_fp8_quantize_args *args, const float *x, int64_t j)
{
    return args->column_factor ? x[j] * args->column_factor[j] : x[j];
}

/* Compared as bits, a NaN is the largest. */
TSR_INLINE float largest(const tsr_fp8_quantize_args *args, const float *x)
{
    uint32_t most = 0;
    for (int64_t j = 0; j < args->d; j++) {
        float value = value_at(args, x, j);
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        bits &= 0x7fffffffu;
        most = bits > most ? bits : most;
    }
    float amax;
    memcpy(&amax, &most, sizeof amax);
    return amax;
}

TSR_CLONES static void quantize_rows(void *context, int index)
{
    const tsr_fp8_quantize_args *args = context;
    int64_t rows = tsr_block_rows(args->d), end = tsr_min(args->tokens, (index + 1) * rows);
    for (int64_t t = index * rows; t < end; t++) {
        const float *x = (const float *)args->x + t * args->d;
        uint8_t *out = args->out + t * args->d;
        float scale = tsr_e4m3_scale(largest(args, x)), inverse = 1 / scale;
        args->scale[t] = scale;
        if (isnan(scale)) {
            memset(out, TSR_E4M3_NAN, (size_t)args->d);
            continue;
        }
        for (int64_t j = 0; j < args->d; j++)
            out[j] = tsr_f32_to_e4m3(value_at(args, x, j) * inverse);
    }
}

tsr_status tsr_fp8_quantize_ref(const tsr_fp8_quantize_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_fp8_quantize_check(args));
    return tsr_run_f32("fp8_quantize", args->dtype, pool,
                       tsr_block_count(args->tokens, tsr_block_rows(args->d)), quantize_rows, args);
}

tsr_status tsr_fp8_rows_check(const char *op, tsr_fp8_rows rows, tsr_dtype dtype)
{
    if (!rows.out)
        return TSR_OK;
    TSR_EXPECT(dtype == TSR_F32 || dtype == TSR_BF16, op, "e4m3 of rows that are not F32 or BF16");
    TSR_EXPECT(rows.scale, op, "e4m3 without its scale");
    return TSR_OK;
}

tsr_fp8_quantize_args tsr_fp8_rows_pass(tsr_fp8_rows rows, const void *x, int64_t tokens, int64_t d,
                                        tsr_dtype dtype)
{
    return (tsr_fp8_quantize_args){rows.out, rows.scale, x, rows.column_factor, tokens, d, dtype};
}

tsr_status tsr_fp8_rows_ref(tsr_fp8_rows rows, const void *x, int64_t tokens, int64_t d,
                            tsr_pool *pool)
{
    tsr_fp8_quantize_args args = tsr_fp8_rows_pass(rows, x, tokens, d, TSR_F32);
    return rows.out ? tsr_fp8_quantize_ref(&args, pool) : TSR_OK;
}
