#include "adapters/linear_fp8.h"

tsr_status tsr_linear_fp8_weight(const tsr_linear_context *context,
                                 const tsr_nf4_dequant_args *codes, bool transposed)
{
    tsr_fp8_decode_args args = {
        .weight = *codes, .scale = context->fp8.weight_scale, .transposed = transposed};
    args.weight.out = context->fp8.weight;
    args.weight.dtype = TSR_F8_E4M3;
    return context->kernels->fp8_decode(context->stream, &args);
}

static tsr_status quantize(const tsr_linear_context *context, const void *x, int64_t width,
                           const float *column_factor)
{
    return context->kernels->fp8_quantize(context->stream,
                                          &(tsr_fp8_quantize_args){.out = context->fp8.rows,
                                                                   .scale = context->fp8.row_scale,
                                                                   .x = x,
                                                                   .column_factor = column_factor,
                                                                   .tokens = context->tokens,
                                                                   .d = width,
                                                                   .dtype = context->dtype});
}

tsr_fp8_rows tsr_linear_rows(const tsr_linear_context *context)
{
    return (tsr_fp8_rows){.out = context->fp8.on ? context->fp8.rows : NULL,
                          .scale = context->fp8.row_scale};
}

tsr_status tsr_linear_input(const tsr_linear_context *context, const void *x, int64_t in)
{
    return context->fp8.on ? quantize(context, x, in, NULL) : TSR_OK;
}

/* c [T, n] = rows weight^T + beta c, over k columns of both. */
static tsr_status multiply(const tsr_linear_context *context, void *c, uint64_t n, uint64_t k,
                           const float *weight_scale, float beta)
{
    return context->kernels->fp8_gemm(context->stream,
                                      &(tsr_fp8_gemm_args){.m = context->tokens,
                                                           .n = (int64_t)n,
                                                           .k = (int64_t)k,
                                                           .a = context->fp8.rows,
                                                           .b = context->fp8.weight,
                                                           .c = c,
                                                           .scale_a = context->fp8.row_scale,
                                                           .scale_b = weight_scale,
                                                           .alpha = 1,
                                                           .beta = beta,
                                                           .c_dtype = context->dtype,
                                                           .fast = context->fp8.fast});
}

tsr_status tsr_linear_fp8_forward(const tsr_linear_context *context, const tsr_linear *linear,
                                  void *z, float beta)
{
    return multiply(context, z, linear->out, linear->in, context->fp8.weight_scale, beta);
}

/* A scale of W's rows is one of dz's columns: a factor before dz is quantized, for the sum runs over
 * them. */
tsr_status tsr_linear_fp8_backward(const tsr_linear_context *context, const tsr_linear *linear,
                                   void *dx, const void *dz, float beta)
{
    TSR_TRY(quantize(context, dz, (int64_t)linear->out, context->fp8.weight_scale));
    return multiply(context, dx, linear->in, linear->out, NULL, beta);
}

tsr_status tsr_linear_fp8_values(const tsr_linear_context *context,
                                 const tsr_nf4_dequant_args *codes)
{
    TSR_TRY(tsr_linear_fp8_weight(context, codes, false));
    return context->kernels->widen(context->stream, &(tsr_widen_args){.out = codes->out,
                                                                      .in = context->fp8.weight,
                                                                      .count = codes->count,
                                                                      .in_dtype = TSR_F8_E4M3,
                                                                      .dtype = codes->dtype});
}
