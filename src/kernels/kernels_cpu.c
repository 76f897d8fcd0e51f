/*
 * kernels_cpu.c: the CPU's table: every op judges its arguments, is copied to the stream, and runs
 * as its reference.
 */
#include "kernels/kernels.h"

#include "kernels/gemm_core.h"

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

TSR_KERNEL_OPS(CPU_OP)

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
    snprintf(text, sizeof text, "%s, OpenBLAS %s", set, tsr_gemm_core());
    return text;
}

static tsr_status prepare_nothing(tsr_device *device, const tsr_prepare_args *args)
{
    (void)device;
    (void)args;
    return TSR_OK;
}

static tsr_status turn_nothing(tsr_device *device, int job)
{
    (void)device;
    (void)job;
    return TSR_OK;
}

static bool is_by_head(const tsr_stream *stream, const tsr_attention_shape *shape)
{
    (void)stream;
    (void)shape;
    return false;
}

#define CPU_SLOT(op) .op = op##_cpu,

static const tsr_kernels cpu_kernels = {
    .name = "cpu",
    TSR_KERNEL_OPS(CPU_SLOT).attention_workspace_bytes = tsr_attention_workspace_bytes,
    .delta_rule_workspace_bytes = tsr_delta_rule_workspace_bytes,
    .head_workspace_bytes = tsr_head_workspace_bytes,
    .attention_lse_by_token = is_by_head,
    .attention_sharing = tsr_attention_sharing_of,
    .prepare = prepare_nothing,
    .turn = turn_nothing,
};

const tsr_kernels *tsr_kernels_cpu(void)
{
    return &cpu_kernels;
}
