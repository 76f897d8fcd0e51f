/*
 * ops_fp8.c: see ops_fp8.h.
 */
#include "ops_fp8.h"

#include "ops_memory.h"
#include "ops_report.h"

#include <stdio.h>

#define T             8192
#define SETS          4
#define SCRATCH_BYTES ((uint64_t)2 << 30)

static tsr_device *device;
static tsr_stream *stream;
static const tsr_kernels *kernels;

#define RUN_OP(op)                                                                                 \
    static tsr_status run_##op(const void *args)                                                   \
    {                                                                                              \
        return kernels->op(stream, args);                                                          \
    }
RUN_OP(fp8_quantize)
RUN_OP(fp8_decode)
RUN_OP(fp8_gemm)
RUN_OP(nf4_merge)
RUN_OP(gemm)
RUN_OP(rms_norm)
RUN_OP(rms_norm_backward)
RUN_OP(swiglu)
RUN_OP(swiglu_backward)

static void quantize(int64_t d, bool factor)
{
    ops_forget();
    tsr_fp8_quantize_args args[SETS];
    char shape[32];
    snprintf(shape, sizeof shape, "%dx%lld", T, (long long)d);
    for (int i = 0; i < SETS; i++)
        args[i] = (tsr_fp8_quantize_args){.out = ops_take((uint64_t)(T * d)),
                                          .scale = ops_take(T * sizeof(float)),
                                          .x = ops_bf16(T * d),
                                          .column_factor = factor ? ops_f32(d) : NULL,
                                          .tokens = T,
                                          .d = d,
                                          .dtype = TSR_BF16};
    ops_report(factor ? "fp8_quantize with factor" : "fp8_quantize", shape, 3.0 * (double)(T * d),
               0, run_fp8_quantize, args, sizeof *args, SETS);
}

static tsr_fp8_rows target(int64_t d, const float *factor)
{
    return (tsr_fp8_rows){ops_take((uint64_t)(T * d)), ops_take(T * sizeof(float)), factor};
}

/* Rows that go into e4m3 while they are made. */
static void norms(int64_t d)
{
    ops_forget();
    double count = (double)(T * d);
    tsr_rms_norm_args args = {.x = ops_bf16(T * d),
                              .w = {ops_bf16(d), TSR_BF16},
                              .h = ops_take((uint64_t)(T * d) * 2),
                              .rstd = ops_take(T * sizeof(float)),
                              .tokens = T,
                              .d = d,
                              .eps = 1e-5f,
                              .dtype = TSR_BF16,
                              .h8 = target(d, NULL)};
    ops_report("rms_norm with fp8", "8192x4096, no residual", 5 * count, 0, run_rms_norm, &args,
               sizeof args, 1);
    args.z = ops_bf16(T * d);
    args.x_out = ops_take((uint64_t)(T * d) * 2);
    ops_report("rms_norm with fp8", "8192x4096", 9 * count, 0, run_rms_norm, &args, sizeof args, 1);
    tsr_rms_norm_backward_args back = {.dh = args.h,
                                       .x = args.x,
                                       .rstd = args.rstd,
                                       .w = args.w,
                                       .dx = ops_bf16(T * d),
                                       .tokens = T,
                                       .d = d,
                                       .dtype = TSR_BF16,
                                       .dx8 = target(d, ops_f32(d))};
    ops_report("rms_norm_backward with fp8", "8192x4096", 9 * count, 0, run_rms_norm_backward,
               &back, sizeof back, 1);
}

static void mlp(int64_t f, bool dora)
{
    ops_forget();
    double count = (double)(T * f);
    tsr_swiglu_args forward = {.z_gate = ops_bf16(T * f),
                               .z_up = ops_bf16(T * f),
                               .g_gate = dora ? ops_f32(f) : NULL,
                               .g_up = dora ? ops_f32(f) : NULL,
                               .act = ops_take((uint64_t)(T * f) * 2),
                               .tokens = T,
                               .f = f,
                               .dtype = TSR_BF16,
                               .act8 = target(f, NULL)};
    tsr_swiglu_backward_args back = {.dact = ops_bf16(T * f),
                                     .z_gate = forward.z_gate,
                                     .z_up = forward.z_up,
                                     .dz_gate = forward.act,
                                     .dz_up = ops_take((uint64_t)(T * f) * 2),
                                     .tokens = T,
                                     .f = f,
                                     .dtype = TSR_BF16,
                                     .dz_gate8 = target(f, ops_f32(f)),
                                     .dz_up8 = target(f, ops_f32(f))};
    ops_report(dora ? "swiglu with g and fp8" : "swiglu with fp8", "8192x14336", 7 * count, 0,
               run_swiglu, &forward, sizeof forward, 1);
    if (dora) {
        back.g_gate = back.n_gate = forward.g_gate;
        back.g_up = back.n_up = forward.g_up;
        back.dm_gate = ops_f32(f);
        back.dm_up = ops_f32(f);
        back.partials = ops_take((uint64_t)(kernels->partial_rows * 2 * f) * sizeof(float));
    }
    ops_report(dora ? "swiglu_backward with dm and fp8" : "swiglu_backward with fp8", "8192x14336",
               12 * count, 0, run_swiglu_backward, &back, sizeof back, 1);
}

/* Without an output. */
static tsr_nf4_dequant_args nf4_codes(int64_t rows, int64_t columns, tsr_dtype dtype)
{
    int64_t count = rows * columns;
    return (tsr_nf4_dequant_args){.codes = ops_bf16(count / 4),
                                  .absmax = ops_bf16(count / 128),
                                  .nested_absmax = ops_f32(count / 64 / 256 + 1),
                                  .nested_map = ops_f32(256),
                                  .level = ops_host_copy(tsr_nf4_level, sizeof tsr_nf4_level),
                                  .count = count,
                                  .columns = columns,
                                  .offset = 0.05f,
                                  .nested = true,
                                  .dtype = dtype};
}

static void decode(int64_t rows, int64_t columns, bool transposed)
{
    ops_forget();
    int64_t count = rows * columns;
    tsr_fp8_decode_args args[SETS];
    char shape[32];
    snprintf(shape, sizeof shape, "%lldx%lld", (long long)rows, (long long)columns);
    for (int i = 0; i < SETS; i++) {
        args[i] = (tsr_fp8_decode_args){.weight = nf4_codes(rows, columns, TSR_F8_E4M3),
                                        .scale = ops_take((uint64_t)rows * sizeof(float)),
                                        .transposed = transposed};
        args[i].weight.out = ops_take((uint64_t)count);
    }
    ops_report(transposed ? "fp8_decode transposed" : "fp8_decode", shape,
               (double)count * (1.5 + 1.0 / 64), 0, run_fp8_decode, args, sizeof *args, SETS);
    for (int i = 0; i < SETS && transposed; i++)
        args[i].weight.out = NULL;
    if (transposed)
        ops_report("fp8_decode, scales alone", shape, (double)count / 64, 0, run_fp8_decode, args,
                   sizeof *args, SETS);
}

/* DoRA's norms of W in e4m3. */
static void norms_alone(int64_t rows, int64_t columns, int64_t r)
{
    ops_forget();
    double count = (double)(rows * columns);
    tsr_nf4_merge_args args[SETS];
    char shape[48];
    snprintf(shape, sizeof shape, "%lldx%lldx%lld", (long long)rows, (long long)columns,
             (long long)r);
    for (int i = 0; i < SETS; i++)
        args[i] = (tsr_nf4_merge_args){
            .weight = nf4_codes(rows, columns, TSR_BF16),
            .a = ops_bf16(r * columns),
            .b = ops_bf16(rows * r),
            .r = r,
            .scale = 2,
            .norms = {.n = ops_f32(rows),
                      .g = ops_f32(rows),
                      .m = ops_f32(rows),
                      .partials = ops_f32(tsr_nf4_merge_partials(rows, columns))},
            .e4m3_scale = ops_f32(rows)};
    ops_report("nf4_merge norms alone, e4m3", shape,
               count * (0.5 + 1.0 / 64) + 2.0 * (double)(r * (rows + columns)),
               2.0 * count * (double)r, run_nf4_merge, args, sizeof *args, SETS);
}

/* Codes of N(0, 1) and their scales. */
static const uint8_t *codes_of(int64_t rows, int64_t columns, const float **scale)
{
    uint8_t *out = ops_take((uint64_t)(rows * columns));
    float *scales = ops_take((uint64_t)rows * sizeof(float));
    tsr_fp8_quantize_args args = {.out = out,
                                  .scale = scales,
                                  .x = ops_bf16(rows * columns),
                                  .tokens = rows,
                                  .d = columns,
                                  .dtype = TSR_BF16};
    ops_must(kernels->fp8_quantize(stream, &args), "fp8_quantize");
    *scale = scales;
    return out;
}

/* False, and said: the library has no algorithm for it. */
static bool tune(const char *name, const tsr_gemm_args *shape)
{
    ops_forget();
    tsr_prepare_args args = {.gemm = shape,
                             .gemm_count = 1,
                             .stream = stream,
                             .scratch = ops_take(SCRATCH_BYTES),
                             .scratch_bytes = SCRATCH_BYTES};
    if (kernels->prepare(device, &args) == TSR_OK)
        return true;
    fprintf(stderr, "%s: %s\n", name, tsr_last_error());
    return false;
}

static void matmul_bf16(int64_t n, int64_t k, bool adds, const char *shape, double flops)
{
    tsr_gemm_args args = {.m = T,
                          .n = n,
                          .k = k,
                          .trans_b = true,
                          .alpha = 1e-3f,
                          .beta = adds,
                          .dtype = TSR_BF16,
                          .c_dtype = TSR_BF16};
    const char *name = adds ? "gemm beside fp8, added" : "gemm beside fp8";
    if (!tune(name, &args))
        return;
    ops_forget();
    args.a = ops_bf16(T * k);
    args.b = ops_bf16(n * k);
    args.c = ops_bf16(T * n);
    double bytes = 2.0 * (double)(T * k + k * n) + (adds ? 4.0 : 2.0) * (double)(T * n);
    ops_report(name, shape, bytes, flops, run_gemm, &args, sizeof args, 1);
}

static void matmul_fp8(int64_t n, int64_t k, bool adds, bool fast, const char *shape, double flops)
{
    static const char *const names[] = {"fp8_gemm", "fp8_gemm fast", "fp8_gemm added",
                                        "fp8_gemm added, fast"};
    tsr_fp8_gemm_args args = {.m = T,
                              .n = n,
                              .k = k,
                              .alpha = 1e-3f, /* what is added to again and again stays finite */
                              .beta = adds,
                              .c_dtype = TSR_BF16,
                              .fast = fast};
    tsr_gemm_args plain = tsr_fp8_gemm_shape(&args);
    const char *name = names[2 * adds + fast];
    if (!tune(name, &plain))
        return;
    ops_forget();
    args.a = codes_of(T, k, &args.scale_a);
    args.b = codes_of(n, k, &args.scale_b);
    args.c = ops_bf16(T * n);
    double bytes = (double)(T * k + k * n) + (adds ? 4.0 : 2.0) * (double)(T * n);
    ops_report_fp8(name, shape, bytes, flops, run_fp8_gemm, &args, sizeof args, 1);
    if (!adds)
        ops_fp8_tiles(stream, &args, shape);
}

static void matmuls(int64_t n, int64_t k)
{
    double flops = 2.0 * T * (double)n * (double)k;
    char shape[48];
    snprintf(shape, sizeof shape, "%dx%lldx%lld", T, (long long)n, (long long)k);
    for (int adds = 0; adds < 2; adds++) {
        matmul_bf16(n, k, adds, shape, flops);
        for (int fast = 0; fast < 2; fast++)
            matmul_fp8(n, k, adds, fast, shape, flops);
    }
}

/* A layer's weights, and dX of the thin one. */
static const int64_t weights[][2] = {
    {4096, 4096}, {1024, 4096}, {14336, 4096}, {4096, 14336}, {4096, 1024}};

void ops_fp8(tsr_device *on, tsr_stream *in, const tsr_kernels *table)
{
    device = on;
    stream = in;
    kernels = table;
    for (int factor = 0; factor < 2; factor++) {
        quantize(4096, factor);
        quantize(14336, factor);
    }
    norms(4096);
    mlp(14336, false);
    mlp(14336, true);
    for (int i = 0; i < 4; i++)
        for (int transposed = 0; transposed < 2; transposed++)
            decode(weights[i][0], weights[i][1], transposed);
    for (int i = 0; i < 4; i++)
        for (int64_t r = 16; r <= 384; r += 368)
            norms_alone(weights[i][0], weights[i][1], r);
    if (tsr_kernels_fp8_supported(device) < 0) {
        fprintf(stderr, "%s\n", tsr_last_error());
        return;
    }
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++)
        matmuls(weights[i][0], weights[i][1]);
}
