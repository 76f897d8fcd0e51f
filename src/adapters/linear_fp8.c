#include "adapters/linear_fp8.h"

tsr_status tsr_linear_fp8_weight(const tsr_linear_context *context,
                                 const tsr_nf4_dequant_args *codes, bool transposed,
                                 tsr_fp8_rows made)
{
    tsr_fp8_decode_args args = {.weight = *codes,
                                .scale = context->fp8.weight_scale,
                                .transposed = transposed,
                                .scaled = made.out != NULL};
    if (made.out)
        args.scale = (float *)made.column_factor;
    args.weight.out = context->fp8.weight;
    args.weight.dtype = TSR_F8_E4M3;
    return context->kernels->fp8_decode(context->stream, &args);
}

tsr_status tsr_linear_fp8_scales(const tsr_linear_context *context, float *out,
                                 const tsr_nf4_dequant_args *codes)
{
    tsr_fp8_decode_args args = {.weight = *codes, .scale = out};
    args.weight.out = NULL;
    args.weight.dtype = TSR_F8_E4M3;
    return context->kernels->fp8_decode(context->stream, &args);
}

static tsr_status quantize(const tsr_linear_context *context, tsr_fp8_rows rows, const void *x,
                           int64_t width)
{
    tsr_fp8_quantize_args args = tsr_fp8_rows_pass(rows, x, context->tokens, width, context->dtype);
    return context->kernels->fp8_quantize(context->stream, &args);
}

tsr_fp8_rows tsr_linear_rows(const tsr_linear_context *context)
{
    return (tsr_fp8_rows){.out = context->fp8.on ? context->fp8.rows : NULL,
                          .scale = context->fp8.row_scale};
}

tsr_status tsr_linear_input(const tsr_linear_context *context, const void *x, int64_t in)
{
    return context->fp8.on ? quantize(context, tsr_linear_rows(context), x, in) : TSR_OK;
}

/* c [T, n] = rows weight^T + beta c, over k columns of both. */
static tsr_status multiply(const tsr_linear_context *context, void *c, uint64_t n, uint64_t k,
                           tsr_fp8_rows rows, const float *weight_scale, float beta)
{
    return context->kernels->fp8_gemm(context->stream,
                                      &(tsr_fp8_gemm_args){.m = context->tokens,
                                                           .n = (int64_t)n,
                                                           .k = (int64_t)k,
                                                           .a = rows.out,
                                                           .b = context->fp8.weight,
                                                           .c = c,
                                                           .scale_a = rows.scale,
                                                           .scale_b = weight_scale,
                                                           .alpha = 1,
                                                           .beta = beta,
                                                           .c_dtype = context->dtype,
                                                           .fast = context->fp8.fast});
}

tsr_status tsr_linear_fp8_forward(const tsr_linear_context *context, const tsr_linear *linear,
                                  void *z, float beta)
{
    return multiply(context, z, linear->out, linear->in, tsr_linear_rows(context),
                    context->fp8.weight_scale, beta);
}

/* A scale of W's rows is one of dz's columns: a factor before dz is quantized, for the sum runs over
 * them. */
tsr_status tsr_linear_fp8_backward(const tsr_linear_context *context, const tsr_linear *linear,
                                   void *dx, const void *dz, float beta, tsr_fp8_rows made)
{
    if (!made.out) {
        made = tsr_linear_rows(context);
        made.column_factor = context->fp8.weight_scale;
        TSR_TRY(quantize(context, made, dz, (int64_t)linear->out));
    }
    return multiply(context, dx, linear->in, linear->out, made, NULL, beta);
}

tsr_status tsr_linear_fp8_values(const tsr_linear_context *context,
                                 const tsr_nf4_dequant_args *codes)
{
    TSR_TRY(tsr_linear_fp8_weight(context, codes, false, (tsr_fp8_rows){NULL}));
    return context->kernels->widen(context->stream, &(tsr_widen_args){.out = codes->out,
                                                                      .in = context->fp8.weight,
                                                                      .count = codes->count,
                                                                      .in_dtype = TSR_F8_E4M3,
                                                                      .dtype = codes->dtype});
}
