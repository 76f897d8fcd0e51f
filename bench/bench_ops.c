/*
 * bench_ops.c: every CUDA op alone, at the shapes of an 8B layer with 8192 tokens in bf16, against the
 * roofs of the same run.
 *
 *     bench_ops [--roofs roofs.json] [--only NAME]     JSON on stdout, a table on stderr
 *
 * of_roof is floor / time, floor = max(bytes / copy roof, FLOPs / matmul roof); bytes count each
 * operand once. Random data; where one call's operands would fit into L2, several sets take turns.
 * A sample is as many launches as last two milliseconds, between two events of the stream; the median of
 * several. Where kernels start early (src/kernels/cuda.cuh) a launch comes in
 * while the one before it ends, as in a step, and reads nothing before that has ended.
 */
#include "kernels/kernels.h"
#include "model.h"
#include "ops_fp8.h"
#include "ops_memory.h"
#include "ops_report.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define T  8192
#define D  4096
#define F  14336
#define HQ 32
#define HK 8
#define HD 128

#define SETS 4 /* together larger than L2 */

static tsr_device *device;
static tsr_stream *stream;
static const tsr_kernels *kernels;
static const char *only;

#define RUN_OP(op)                                                                                 \
    static tsr_status run_##op(const void *args)                                                   \
    {                                                                                              \
        return kernels->op(stream, args);                                                          \
    }
RUN_OP(gemm)
RUN_OP(low_rank_backward)
RUN_OP(mxfp4_dequant)
RUN_OP(nf4_dequant)
RUN_OP(nf4_merge)
RUN_OP(nf4_quantize)
RUN_OP(nf4_nest)
RUN_OP(widen)
RUN_OP(rms_norm)
RUN_OP(rms_norm_backward)
RUN_OP(rope_qkv)
RUN_OP(rope_qkv_backward)
RUN_OP(swiglu)
RUN_OP(swiglu_backward)
RUN_OP(head_chunk)
RUN_OP(gather_rows)
RUN_OP(scatter_rows)
RUN_OP(compose)
RUN_OP(compose_merged)
RUN_OP(compose_backward)
RUN_OP(row_square_norm)
RUN_OP(dora_norm)
RUN_OP(dropout)
RUN_OP(fixed_sum)
RUN_OP(fixed_accumulate)
RUN_OP(fixed_add)
RUN_OP(grad_norm)
RUN_OP(adamw)
RUN_OP(adamw_8bit)

#define REPORT(op, name, shape, bytes, flops, args)                                                \
    ops_report(name, shape, bytes, flops, run_##op, &(args), sizeof(args), 1)

static const char *shape_text(int64_t a, int64_t b, int64_t c)
{
    static char text[64];
    if (c)
        snprintf(text, sizeof text, "%lldx%lldx%lld", (long long)a, (long long)b, (long long)c);
    else
        snprintf(text, sizeof text, "%lldx%lld", (long long)a, (long long)b);
    return text;
}

/* ---- the ops ---- */

static float *partials(int64_t columns)
{
    int64_t rows = kernels->partial_rows;
    return rows ? ops_take((uint64_t)(rows * columns) * sizeof(float)) : NULL;
}

static tsr_nf4_dequant_args nf4_codes(int64_t rows, int64_t columns)
{
    static const float level[16] = {-1,      -.6962f, -.5251f, -.3949f, -.2844f, -.1848f,
                                    -.0911f, 0,       .0796f,  .1609f,  .2461f,  .3379f,
                                    .4407f,  .5626f,  .7230f,  1};
    int64_t count = rows * columns;
    return (tsr_nf4_dequant_args){.out = ops_take((uint64_t)count * 2),
                                  .codes = ops_bf16(count / 4),
                                  .absmax = ops_bf16(count / 128),
                                  .nested_absmax = ops_f32(count / 64 / 256 + 1),
                                  .nested_map = ops_f32(256),
                                  .level = ops_host_copy(level, sizeof level),
                                  .count = count,
                                  .columns = columns,
                                  .offset = 0.05f,
                                  .nested = true,
                                  .settled = true,
                                  .dtype = TSR_BF16};
}

static void nf4(int64_t rows, int64_t columns, bool factor)
{
    ops_forget();
    tsr_nf4_dequant_args args[SETS];
    for (int i = 0; i < SETS; i++) {
        args[i] = nf4_codes(rows, columns);
        args[i].row_factor = factor ? ops_f32(rows) : NULL;
    }
    ops_report(factor ? "nf4_dequant with factor" : "nf4_dequant", shape_text(rows, columns, 0),
               (double)(rows * columns) * (2.5 + 1.0 / 64), 0, run_nf4_dequant, args, sizeof *args,
               SETS);
}

/* Experts' matrices; what the bits of codes and scales say makes no difference. */
static void mxfp4(int64_t matrices, int64_t rows, int64_t columns)
{
    ops_forget();
    tsr_mxfp4_dequant_args args[SETS];
    int64_t count = matrices * rows * columns;
    for (int i = 0; i < SETS; i++)
        args[i] = (tsr_mxfp4_dequant_args){.out = ops_take((uint64_t)count * 2),
                                           .codes = ops_bf16(count / 4),
                                           .scales = ops_bf16(count / 64),
                                           .count = matrices,
                                           .rows = rows,
                                           .columns = columns,
                                           .dtype = TSR_BF16};
    ops_report("mxfp4_dequant", shape_text(matrices, rows, columns),
               (double)count * (2 + 17.0 / 32), 0, run_mxfp4_dequant, args, sizeof *args, SETS);
}

static void nf4_merged(int64_t rows, int64_t columns, int64_t r, bool norms)
{
    ops_forget();
    tsr_nf4_merge_args args[SETS];
    for (int i = 0; i < SETS; i++)
        args[i] = (tsr_nf4_merge_args){
            .weight = nf4_codes(rows, columns),
            .a = ops_bf16(r * columns),
            .b = ops_bf16(rows * r),
            .r = r,
            .scale = 2,
            .norms = {.n = norms ? ops_f32(rows) : NULL,
                      .g = ops_f32(rows),
                      .m = ops_f32(rows),
                      .partials = ops_f32(tsr_nf4_merge_partials(rows, columns))}};
    ops_report(norms ? "nf4_merge with norms" : "nf4_merge", shape_text(rows, columns, r),
               (double)(rows * columns) * (2.5 + 1.0 / 64) + 2.0 * (double)(r * (rows + columns)),
               2.0 * (double)(rows * columns * r), run_nf4_merge, args, sizeof *args, SETS);
}

/* Loading: a weight of bf16 values, and its scales. */
static void nf4_loading(int64_t rows, int64_t columns)
{
    ops_forget();
    int64_t count = rows * columns, blocks = count / TSR_NF4_BLOCK;
    float *absmax = ops_take((uint64_t)blocks * sizeof(float));
    tsr_nf4_quantize_args args[SETS];
    for (int i = 0; i < SETS; i++)
        args[i] = (tsr_nf4_quantize_args){.codes = ops_take((uint64_t)count / 2),
                                          .absmax = absmax,
                                          .bad = ops_take(sizeof(uint64_t)),
                                          .values = ops_bf16(count),
                                          .count = count,
                                          .dtype = TSR_BF16};
    ops_report("nf4_quantize", shape_text(rows, columns, 0), (double)count * (2.5 + 4.0 / 64), 0,
               run_nf4_quantize, args, sizeof *args, SETS);
    tsr_nf4_nest_args nest = {.q = ops_take((uint64_t)blocks),
                              .nested_absmax = ops_take((uint64_t)blocks / 256 * sizeof(float) + 4),
                              .offset = ops_take(sizeof(float)),
                              .absmax = absmax,
                              .map = ops_host_copy(tsr_nf4_nested_map, sizeof tsr_nf4_nested_map),
                              .scratch = ops_take(TSR_NF4_NEST_WORDS * sizeof(int64_t)),
                              .blocks = blocks,
                              .count = blocks};
    ops_report("nf4_nest", shape_text(rows, columns, 0), (double)blocks * (9 + 4.0 / 256), 0,
               run_nf4_nest, &nest, sizeof nest, 1);
}

static void norms(void)
{
    ops_forget();
    double count = (double)T * D;
    tsr_frozen w = {ops_bf16(D), TSR_BF16};
    tsr_rms_norm_args norm = {.x = ops_bf16((int64_t)T * D),
                              .z = ops_bf16((int64_t)T * D),
                              .g = ops_f32(D),
                              .w = w,
                              .x_out = ops_take((uint64_t)T * D * 2),
                              .h = ops_take((uint64_t)T * D * 2),
                              .rstd = ops_f32(T),
                              .tokens = T,
                              .d = D,
                              .eps = 1e-5f,
                              .dtype = TSR_BF16};
    tsr_rms_norm_args plain = norm;
    plain.z = plain.x_out = NULL;
    plain.g = NULL;
    tsr_rms_norm_backward_args back = {.dh = norm.z,
                                       .x = norm.x,
                                       .rstd = norm.rstd,
                                       .w = w,
                                       .dx = norm.h,
                                       .tokens = T,
                                       .d = D,
                                       .dtype = TSR_BF16};
    REPORT(rms_norm, "rms_norm", "8192x4096", 8 * count, 0, norm);
    REPORT(rms_norm, "rms_norm, no residual", "8192x4096", 4 * count, 0, plain);
    REPORT(rms_norm_backward, "rms_norm_backward", "8192x4096", 8 * count, 0, back);
    tsr_widen_args widen = {norm.x_out, norm.x, T * D / 2, TSR_BF16, TSR_F32};
    REPORT(widen, "widen to fp32", "8192x2048", 3 * count, 0, widen);
    int32_t *index = ops_integers(T, T, false);
    tsr_gather_rows_args gather = {norm.h, norm.x, index, T, T, D, TSR_BF16};
    tsr_scatter_rows_args scatter = {norm.h, norm.x, index, T, T, D, TSR_BF16};
    REPORT(gather_rows, "gather_rows", "8192x4096", 4 * count, 0, gather);
    REPORT(scatter_rows, "scatter_rows", "8192x4096", 4 * count, 0, scatter);
}

/* normed: heads have a norm, and v that is not changed stays where it is, as in a step. */
static void rope(int32_t kv_heads, bool dora, bool normed)
{
    ops_forget();
    int32_t *positions = ops_integers(T, 2048, false);
    tsr_rope_shape heads = {.cosine = ops_f32(2048 * HD / 2),
                            .sine = ops_f32(2048 * HD / 2),
                            .positions = positions,
                            .tokens = T,
                            .q_heads = HQ,
                            .kv_heads = kv_heads,
                            .head_dim = HD,
                            .position_count = 2048,
                            .norm_eps = 1e-6f,
                            .dtype = TSR_BF16};
    tsr_rope_qkv_args args = {.shape = heads};
    tsr_rope_qkv_backward_args back = {.shape = heads,
                                       .partials = partials((HQ + 2 * kv_heads) * HD)};
    for (int p = 0; p < 3; p++) {
        int64_t width = (p ? kv_heads : HQ) * HD;
        float *g = dora ? ops_f32(width) : NULL;
        void *z = ops_bf16(T * width), *dout = ops_bf16(T * width);
        bool stays = normed && !dora && p == 2;
        tsr_frozen norm = {normed && p < 2 ? ops_bf16(HD) : NULL, TSR_BF16};
        args.part[p] = (tsr_rope_part){.z = z, .g = g, .norm = norm};
        args.part[p].out = stays ? z : ops_take((uint64_t)(T * width) * 2);
        back.part[p] = (tsr_rope_backward_part){.dout = dout,
                                                .z = z,
                                                .dz = stays ? dout : args.part[p].out,
                                                .g = g,
                                                .n = dora ? ops_f32(width) : NULL,
                                                .dm = dora ? ops_f32(width) : NULL,
                                                .norm = norm};
    }
    double count = (double)T * (HQ + (normed && !dora ? 1 : 2) * kv_heads) * HD;
    char shape[64], name[64];
    snprintf(shape, sizeof shape, "8192, %d+2x%d of 128", HQ, (int)kv_heads);
    snprintf(name, sizeof name, "rope_qkv%s%s", normed ? " with norm" : "",
             !dora    ? ""
             : normed ? ", g"
                      : " with g");
    REPORT(rope_qkv, name, shape, 4 * count, 0, args);
    snprintf(name, sizeof name, "rope_qkv_backward%s%s", normed ? " with norm" : "",
             !dora    ? ""
             : normed ? ", dm"
                      : " with dm");
    REPORT(rope_qkv_backward, name, shape, (dora || normed ? 6 : 4) * count, 0, back);
}

static void mlp(bool dora)
{
    ops_forget();
    int64_t elements = (int64_t)T * F;
    double count = (double)elements;
    float *g = dora ? ops_f32(F) : NULL, *n = dora ? ops_f32(F) : NULL;
    tsr_swiglu_args forward = {.z_gate = ops_bf16(elements),
                               .z_up = ops_bf16(elements),
                               .g_gate = g,
                               .g_up = g,
                               .act = ops_take((uint64_t)elements * 2),
                               .tokens = T,
                               .f = F,
                               .dtype = TSR_BF16};
    tsr_swiglu_backward_args back = {.dact = ops_bf16(elements),
                                     .z_gate = forward.z_gate,
                                     .z_up = forward.z_up,
                                     .g_gate = g,
                                     .g_up = g,
                                     .dz_gate = ops_take((uint64_t)elements * 2),
                                     .dz_up = ops_take((uint64_t)elements * 2),
                                     .n_gate = n,
                                     .n_up = n,
                                     .dm_gate = dora ? ops_f32(F) : NULL,
                                     .dm_up = dora ? ops_f32(F) : NULL,
                                     .tokens = T,
                                     .f = F,
                                     .dtype = TSR_BF16,
                                     .partials = partials(2 * F)};
    REPORT(swiglu, dora ? "swiglu with g" : "swiglu", "8192x14336", 6 * count, 0, forward);
    REPORT(swiglu_backward, dora ? "swiglu_backward with dm" : "swiglu_backward", "8192x14336",
           10 * count, 0, back);
}

static void composes(int64_t tokens, int64_t width)
{
    ops_forget();
    int64_t elements = tokens * width;
    double count = (double)elements;
    tsr_compose_args args = {.base = ops_bf16(elements),
                             .base_dropped = ops_bf16(elements),
                             .lora = ops_bf16(elements),
                             .g = ops_f32(width),
                             .y = ops_take((uint64_t)elements * 2),
                             .inner = ops_take((uint64_t)elements * 2),
                             .tokens = tokens,
                             .d = width,
                             .scale = 2,
                             .dtype = TSR_BF16};
    char shape[64];
    snprintf(shape, sizeof shape, "%s", shape_text(tokens, width, 0));
    REPORT(compose, "compose, dropout", shape, 10 * count, 0, args);
    args.base_dropped = NULL;
    REPORT(compose, "compose with inner", shape, 8 * count, 0, args);
    args.inner = NULL;
    REPORT(compose, "compose", shape, 6 * count, 0, args);
    tsr_compose_merged_args merged = {.base = args.base,
                                      .inner = args.lora,
                                      .g = args.g,
                                      .y = args.y,
                                      .tokens = tokens,
                                      .d = width,
                                      .dtype = TSR_BF16};
    REPORT(compose_merged, "compose_merged", shape, 6 * count, 0, merged);
    tsr_compose_backward_args back = {.dy = args.base,
                                      .inner = args.lora,
                                      .g = args.g,
                                      .n = args.g,
                                      .d_base_dropped = args.y,
                                      .d_lora = ops_take((uint64_t)elements * 2),
                                      .dm = ops_f32(width),
                                      .tokens = tokens,
                                      .d = width,
                                      .scale = 2,
                                      .dtype = TSR_BF16,
                                      .partials = partials(width)};
    REPORT(compose_backward, "compose_backward", shape, 8 * count, 0, back);
    back.d_base_dropped = NULL;
    back.scale = 1;
    REPORT(compose_backward, "g dy and dm", shape, 6 * count, 0, back);
    tsr_dropout_args drop = {.out = args.y,
                             .x = args.lora,
                             .samples = ops_take((uint64_t)tokens * sizeof(int64_t)),
                             .positions = ops_integers(tokens, 2048, false),
                             .dropout = tsr_dropout_make(0.05, 1, 1, 1),
                             .tokens = tokens,
                             .columns = width,
                             .dtype = TSR_BF16};
    REPORT(dropout, "dropout", shape, 4 * count, 0, drop);
    drop.add = true;
    REPORT(dropout, "dropout, added", shape, 6 * count, 0, drop);
    drop.add = false;
    drop.left = back.d_lora;
    REPORT(dropout, "dropout with what is left", shape, 6 * count, 0, drop);
}

static void dora(int64_t r)
{
    ops_forget();
    tsr_row_square_norm_args square = {ops_f32(F), ops_bf16((int64_t)F * D), F, D, TSR_BF16};
    if (r == 16)
        REPORT(row_square_norm, "row_square_norm", "14336x4096", 2.0 * F * D, 0, square);
    tsr_dora_norm_args args = {.n = ops_f32(F),
                               .g = ops_f32(F),
                               .m = ops_f32(F),
                               .squares = square.out,
                               .u = ops_f32(F * r),
                               .bg = ops_f32(F * r),
                               .b = ops_bf16(F * r),
                               .rows = F,
                               .r = r,
                               .scale = 2,
                               .dtype = TSR_BF16};
    REPORT(dora_norm, "dora_norm", shape_text(F, r, 0), 10.0 * F * (double)r, 0, args);
}

/* The optimizer's side, over `count` owned parameters. */
static void optimizer(int64_t count)
{
    ops_forget();
    static tsr_adamw_span span;
    const tsr_adamw_control control = {1, 0, 1};
    double elements = (double)count;
    uint64_t wide = (uint64_t)count * 8;
    int64_t *gradient = ops_take(wide), *part = ops_take(wide), *overflow = ops_take(8);
    ops_must(tsr_stream_fill(stream, gradient, 1, wide), "fill");
    ops_must(tsr_stream_fill(stream, part, 0, wide), "fill");
    float *g = ops_f32(count), *g2 = ops_f32(2 * count);
    char shape[32];
    snprintf(shape, sizeof shape, "%.0f M", 1e-6 * elements);
    static tsr_fixed_part whole; /* of one rank, and of two */
    whole = (tsr_fixed_part){.count = (uint64_t)count, .real = (uint64_t)count, .mark = 1};
    tsr_fixed_sum_args sum = {.accumulator = gradient,
                              .gradient = g,
                              .part = &whole,
                              .overflow = overflow,
                              .ranks = 1,
                              .part_count = 1,
                              .shift = TSR_FIXED_SHIFT,
                              .limit = 256,
                              .store = true};
    tsr_fixed_accumulate_args more = {part, g, (uint64_t)count, TSR_FIXED_SHIFT, 256, true};
    tsr_fixed_add_args add = {.accumulator = gradient, .part = part, .count = (uint64_t)count};
    tsr_grad_norm_args norm = {.sum = ops_take(sizeof(tsr_exact_sum)),
                               .gradient = gradient,
                               .count = (uint64_t)count,
                               .shift = TSR_FIXED_SHIFT};
    ops_must(tsr_stream_fill(stream, norm.sum, 0, sizeof(tsr_exact_sum)), "fill");
    REPORT(fixed_sum, "fixed_sum, store", shape, 12 * elements, 0, sum);
    sum.rounded = g2;
    REPORT(fixed_sum, "fixed_sum, rounded", shape, 8 * elements, 0, sum);
    sum.rounded = NULL;
    sum.store = false;
    REPORT(fixed_sum, "fixed_sum", shape, 20 * elements, 0, sum);
    sum.ranks = 2;
    sum.gradient = g2;
    sum.received = g;
    REPORT(fixed_sum, "fixed_sum of 2 ranks", shape, 24 * elements, 0, sum);
    sum.ranks = 1;
    sum.gradient = part;
    sum.wide = true;
    REPORT(fixed_sum, "fixed_sum of sums", shape, 24 * elements, 0, sum);
    REPORT(fixed_accumulate, "fixed_accumulate, store", shape, 12 * elements, 0, more);
    more.store = false;
    REPORT(fixed_accumulate, "fixed_accumulate", shape, 20 * elements, 0, more);
    REPORT(fixed_add, "fixed_add", shape, 24 * elements, 0, add);
    add.store = true;
    REPORT(fixed_add, "fixed_add, store", shape, 16 * elements, 0, add);
    ops_must(tsr_stream_fill(stream, gradient, 1, wide), "fill");
    REPORT(grad_norm, "grad_norm", shape, 8 * elements, 0, norm);
    norm.rounded = g2;
    REPORT(grad_norm, "grad_norm, rounded", shape, 4 * elements, 0, norm);
    span = (tsr_adamw_span){.master = ops_f32(count),
                            .m = ops_take((uint64_t)count * 4),
                            .v = ops_take((uint64_t)count * 4),
                            .gradient = gradient,
                            .work = ops_take((uint64_t)count * 2),
                            .work_dtype = TSR_BF16,
                            .count = (uint64_t)count};
    ops_must(tsr_stream_fill(stream, span.m, 0, (uint64_t)count * 4), "fill");
    ops_must(tsr_stream_fill(stream, span.v, 0, (uint64_t)count * 4), "fill");
    tsr_adamw_args adamw = {.spans = &span,
                            .span_count = 1,
                            .step = {1e-4, 0.9, 0.999, 1e-8, 0, 1},
                            .control = ops_host_copy(&control, sizeof control),
                            .shift = TSR_FIXED_SHIFT};
    REPORT(adamw, "adamw", shape, 34 * elements, 0, adamw);
    span.rounded = g2;
    REPORT(adamw, "adamw, rounded", shape, 30 * elements, 0, adamw);
    span.rounded = NULL;
    span.absmax = ops_take((uint64_t)count / TSR_ADAMW_BLOCK * 8);
    ops_must(tsr_stream_fill(stream, span.absmax, 0, (uint64_t)count / TSR_ADAMW_BLOCK * 8),
             "fill");
    REPORT(adamw_8bit, "adamw_8bit", shape, 22.1 * elements, 0, adamw);
}

static double gemm(const char *name, int64_t m, int64_t n, int64_t k, int transposes, float beta)
{
    ops_forget();
    bool wide = transposes == 1; /* a gradient of A or B: fp32 */
    tsr_gemm_args args[SETS];
    int sets = (m * k + k * n + m * n) * 2 > (256 << 20) ? 1 : SETS;
    for (int i = 0; i < sets; i++)
        args[i] = (tsr_gemm_args){.m = m,
                                  .n = n,
                                  .k = k,
                                  .a = ops_bf16(m * k),
                                  .b = ops_bf16(k * n),
                                  .c = wide ? (void *)ops_f32(m * n) : ops_bf16(m * n),
                                  .trans_a = transposes == 1,
                                  .trans_b = transposes == 2,
                                  .alpha = 1,
                                  .beta = beta,
                                  .dtype = TSR_BF16,
                                  .c_dtype = wide ? TSR_F32 : TSR_BF16};
    double out = (wide ? 4.0 : 2.0) * (beta != 0 ? 2 : 1) * (double)m * (double)n;
    return ops_report(name, shape_text(m, n, k), 2.0 * (double)(m * k + k * n) + out,
                      2.0 * (double)m * (double)n * (double)k, run_gemm, args, sizeof *args, sets);
}

/* One pass over dY for dB and dS, and beside it the two matmuls, which are held against the same bytes. */
static void low_rank_backward(int64_t out, int64_t r)
{
    ops_forget();
    tsr_low_rank_backward_args args[SETS];
    uint64_t bytes = tsr_low_rank_backward_bytes(TSR_BF16, T, out, r);
    for (int i = 0; i < SETS; i++)
        args[i] = (tsr_low_rank_backward_args){.dy = ops_bf16(T * out),
                                               .low = ops_bf16(T * r),
                                               .b = ops_bf16(out * r),
                                               .db = ops_f32(out * r),
                                               .d_low = ops_bf16(T * r),
                                               .scratch = ops_take(bytes),
                                               .scratch_bytes = bytes,
                                               .tokens = T,
                                               .out = out,
                                               .r = r,
                                               .scale = 2,
                                               .dtype = TSR_BF16};
    double moved = 2.0 * (double)(T * out + 2 * T * r + out * r) + 4.0 * (double)(out * r);
    double flops = 4.0 * (double)T * (double)(out * r);
    ops_report("low_rank_backward", shape_text(T, out, r), moved, flops, run_low_rank_backward,
               args, sizeof *args, SETS);
    for (int i = 0; i < SETS; i++)
        args[i].scratch_bytes = 0;
    ops_report("low_rank_backward in two", shape_text(T, out, r), moved, flops,
               run_low_rank_backward, args, sizeof *args, SETS);
}

static void matmuls(void)
{
    gemm("gemm x W^T, gate", T, F, D, 2, 0);
    gemm("gemm x W^T, down", T, D, F, 2, 0);
    gemm("gemm x W^T, q", T, D, D, 2, 0);
    gemm("gemm x W^T, k", T, HK * HD, D, 2, 0);
    gemm("gemm dY W, gate", T, D, F, 0, 0);
    gemm("gemm dY W, down", T, F, D, 0, 0);
    gemm("gemm dY W added, q", T, D, D, 0, 1);
    for (int64_t r = 16; r <= 384; r *= 24) {
        gemm("gemm [x h] [W B]^T, gate", T, F, D + r, 2, 0);
        gemm("gemm [dY dS] [W; A], gate", T, D, F + r, 0, 0);
        gemm("gemm x A^T", T, r, D, 2, 0);
        gemm("gemm h B^T added", T, F, r, 2, 1);
        gemm("gemm dY B", T, r, F, 0, 0);
        gemm("gemm dB", F, r, T, 1, 0);
        gemm("gemm dA", r, D, T, 1, 0);
        gemm("gemm dS A added", T, D, r, 0, 1);
        gemm("gemm W A^T", F, r, D, 2, 0);
    }
}

static void head(int64_t rows, int64_t count)
{
    ops_forget();
    tsr_head_bounds bounds = {rows, D, count, TSR_BF16, true};
    uint64_t bytes = kernels->head_workspace_bytes(&bounds);
    tsr_head_state state = {ops_f32(rows), ops_f32(rows), ops_f32(rows), ops_f32(rows * D),
                            ops_f32(rows * D)};
    tsr_head_chunk_args args = {.state = state,
                                .h = ops_bf16(rows * D),
                                .w = {ops_bf16(count * D), TSR_BF16},
                                .labels = ops_integers(rows, count, true),
                                .workspace = ops_take(bytes),
                                .workspace_bytes = bytes,
                                .rows = rows,
                                .d = D,
                                .count = count,
                                .dtype = TSR_BF16};
    ops_must(kernels->head_begin(stream, &(tsr_head_begin_args){state, rows, D}), "head_begin");
    double all = REPORT(head_chunk, "head_chunk", shape_text(rows, count, D),
                        2.0 * (double)count * D, 4.0 * (double)rows * (double)count * D, args);
    double products = gemm("gemm of head_chunk, logits", rows, count, D, 2, 0);
    products += gemm("gemm of head_chunk, dh", rows, D, count, 0, 0);
    if (products <= 0)
        return;
    ops_report_share("head_chunk, of its matmuls", shape_text(rows, count, D), products / all);
}

static void attention(json_t *ops)
{
    const int64_t lengths[] = {2048, 4096, 8192};
    for (int i = 0; i < 3 && (!only || strstr("attention", only)); i++) {
        bench_run run = {
            .shape = *bench_shape_find("llama3-8b"), .batch = T / lengths[i], .length = lengths[i]};
        double forward, backward;
        ops_must(
            bench_attention_roof(&forward, &backward, &run, &(bench_attention){.dtype = TSR_BF16}),
            "attention");
        fprintf(stderr, "%-26s %-22s %37.1f and %.1f TFLOP/s\n", "attention, backward",
                shape_text(run.batch, run.length, 0), 1e-12 * forward, 1e-12 * backward);
        json_array_append_new(ops,
                              json_pack("{ss ss sf sf}", "op", "attention", "shape",
                                        shape_text(run.batch, run.length, 0), "forward_tflop_s",
                                        1e-12 * forward, "backward_tflop_s", 1e-12 * backward));
    }
}

static void run_all(void)
{
    nf4(4096, 4096, false);
    nf4(14336, 4096, false);
    nf4(4096, 14336, false);
    nf4(14336, 4096, true);
    mxfp4(8, 2880, 2880); /* of gpt-oss: gate and up of four experts */
    for (int64_t r = 16; r <= 384; r *= r == 128 ? 3 : 2) {
        nf4_merged(4096, 4096, r, false);
        nf4_merged(4096, 4096, r, true);
        nf4_merged(14336, 4096, r, false);
        nf4_merged(14336, 4096, r, true);
        nf4_merged(4096, 14336, r, false);
        nf4_merged(4096, 14336, r, true);
    }
    nf4_loading(14336, 4096);
    norms();
    rope(HK, false, false);
    rope(HK, true, false);
    rope(4, false, true);
    rope(4, true, true);
    mlp(false);
    mlp(true);
    composes(T, D);
    composes(T, F);
    composes(4 * T, 2 * D);
    dora(16);
    dora(384);
    optimizer(42 << 20);
    optimizer(252 << 20);
    low_rank_backward(HK * HD, 16);
    low_rank_backward(D, 16);
    low_rank_backward(F, 16);
    matmuls();
    ops_fp8(device, stream, kernels);
    head(T, 16384);
}

static void measure(json_t *ops, ops_roofs roof)
{
    ops_open(&device, &stream);
    ops_report_into(ops, stream, roof, only);
    ops_must(tsr_kernels_open(&kernels, device), "the kernels");
    run_all();
    ops_report_end();
    ops_close();
}

int main(int count, char **arguments)
{
    ops_roofs roof = {700e12, 4.1e12};
    json_t *ops = json_array();
    for (int i = 1; i + 1 < count; i += 2) {
        json_t *roofs = NULL;
        if (!strcmp(arguments[i], "--only"))
            only = arguments[i + 1];
        else if (!strcmp(arguments[i], "--roofs"))
            roofs = json_load_file(arguments[i + 1], 0, NULL);
        double gemm_rate = json_number_value(json_object_get(roofs, "gemm_tflop_s"));
        double copy_rate = json_number_value(json_object_get(roofs, "copy_gb_s"));
        roof.gemm = gemm_rate > 0 ? 1e12 * gemm_rate : roof.gemm;
        roof.copy = copy_rate > 0 ? 1e9 * copy_rate : roof.copy;
        json_decref(roofs);
    }
    measure(ops, roof);
    attention(ops);
    json_t *all =
        json_pack("{ss ss sf sf so}", "bench", "ops", "device", tsr_device_description(device),
                  "gemm_tflop_s", 1e-12 * roof.gemm, "copy_gb_s", 1e-9 * roof.copy, "ops", ops);
    char *line = json_dumps(all, JSON_COMPACT | JSON_REAL_PRECISION(6));
    puts(line);
    free(line);
    json_decref(all);
    tsr_device_destroy(device);
    return 0;
}
