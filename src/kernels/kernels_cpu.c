/*
 * kernels_cpu.c: the CPU's table: every op judges its arguments, is copied to the stream, and runs
 * as its reference.
 */
#include "kernels/kernels.h"

#include "kernels/gemm_block.h"

#include <stdio.h>

#define CPU_OP(op)                                                                                 \
    static tsr_status op##_call(void *args, tsr_pool *pool)                                        \
    {                                                                                              \
        return tsr_##op##_ref(args, pool);                                                         \
    }                                                                                              \
    static tsr_status op##_cpu(tsr_stream *stream, const tsr_##op##_args *args)                    \
    {                                                                                              \
        _Static_assert(sizeof(*args) <= TSR_CALL_BYTES, "too large for a stream's call");          \
        TSR_TRY(tsr_##op##_check(args));                                                           \
        return tsr_stream_call(stream, op##_call, args, sizeof(*args));                            \
    }

CPU_OP(gemm)
CPU_OP(nf4_dequant)
CPU_OP(widen)
CPU_OP(rms_norm)
CPU_OP(rms_norm_backward)
CPU_OP(rope_qkv)
CPU_OP(rope_qkv_backward)
CPU_OP(attention)
CPU_OP(attention_backward)
CPU_OP(swiglu)
CPU_OP(swiglu_backward)
CPU_OP(scale_backward)
CPU_OP(head_begin)
CPU_OP(head_chunk)
CPU_OP(head_finish)
CPU_OP(gather_rows)
CPU_OP(scatter_rows)
CPU_OP(compose)
CPU_OP(compose_backward)
CPU_OP(row_square_norm)
CPU_OP(dora_norm)
CPU_OP(dropout)
CPU_OP(fixed_scatter)
CPU_OP(grad_norm)
CPU_OP(adamw)
CPU_OP(step_sums)
CPU_OP(step_control)

const char *tsr_kernels_cpu_set(void)
{
    static _Thread_local char text[96];
    const char *set = "scalar";
#if defined(__x86_64__)
    set = "x86-64";
#if !defined(TSR_SANITIZED)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("x86-64-v4"))
        set = "x86-64-v4";
    else if (__builtin_cpu_supports("x86-64-v3"))
        set = "x86-64-v3";
#endif
#endif
    snprintf(text, sizeof text, "%s, OpenBLAS %s", set, tsr_gemm_block_core());
    return text;
}

static const tsr_kernels cpu_kernels = {
    .name = "cpu",
    .gemm = gemm_cpu,
    .nf4_dequant = nf4_dequant_cpu,
    .widen = widen_cpu,
    .rms_norm = rms_norm_cpu,
    .rms_norm_backward = rms_norm_backward_cpu,
    .rope_qkv = rope_qkv_cpu,
    .rope_qkv_backward = rope_qkv_backward_cpu,
    .attention = attention_cpu,
    .attention_backward = attention_backward_cpu,
    .swiglu = swiglu_cpu,
    .swiglu_backward = swiglu_backward_cpu,
    .scale_backward = scale_backward_cpu,
    .head_begin = head_begin_cpu,
    .head_chunk = head_chunk_cpu,
    .head_finish = head_finish_cpu,
    .gather_rows = gather_rows_cpu,
    .scatter_rows = scatter_rows_cpu,
    .compose = compose_cpu,
    .compose_backward = compose_backward_cpu,
    .row_square_norm = row_square_norm_cpu,
    .dora_norm = dora_norm_cpu,
    .dropout = dropout_cpu,
    .fixed_scatter = fixed_scatter_cpu,
    .grad_norm = grad_norm_cpu,
    .adamw = adamw_cpu,
    .step_sums = step_sums_cpu,
    .step_control = step_control_cpu,
};

const tsr_kernels *tsr_kernels_cpu(void)
{
    return &cpu_kernels;
}
