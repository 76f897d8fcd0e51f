/*
 * widen.cu: contract widen.h; reference widen_ref.c, the same bits (a NaN stays a NaN).
 *
 * Split    A thread takes 4 elements at a time, so that the wider side's accesses are 16 bytes and
 *          the narrower side's 8 (of e4m3 4), both without gaps over a warp; 4 turns, all loads first. The same
 *          dtype on both sides is a copy. Unaligned buffers and the tail: element by element.
 * Cost     count elements read and written.
 */
#include "kernels/cuda.cuh"
#include "kernels/fp8.h"

#define THREADS 256
#define QUAD    4 /* elements of a thread in a turn */
#define TURNS   4

/* Of a 16-bit type the first two words, of an 8-bit one the first. */
static __device__ __forceinline__ uint4 load4(const void *p, int64_t i, tsr_dtype dtype)
{
    if (dtype == TSR_F32)
        return *(const uint4 *)((const uint32_t *)p + i);
    if (dtype == TSR_F8_E4M3)
        return make_uint4(*(const uint32_t *)((const uint8_t *)p + i), 0, 0, 0);
    uint2 bits = *(const uint2 *)((const uint16_t *)p + i);
    return make_uint4(bits.x, bits.y, 0, 0);
}

static __device__ __forceinline__ void widen4(float *out, uint4 raw, tsr_dtype dtype)
{
    uint32_t word[QUAD] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < QUAD; i++) {
        uint32_t half = i % 2 ? word[i / 2] >> 16 : word[i / 2] & 0xffffu;
        if (dtype == TSR_F32)
            out[i] = __uint_as_float(word[i]);
        else if (dtype == TSR_BF16)
            out[i] = __uint_as_float(half << 16);
        else if (dtype == TSR_F8_E4M3)
            out[i] = tsr_e4m3_to_f32((uint8_t)(raw.x >> 8 * i));
        else
            out[i] = __half2float(__ushort_as_half((uint16_t)half));
    }
}

static __device__ __forceinline__ void store4(void *p, int64_t i, const float *in, tsr_dtype dtype)
{
    if (dtype == TSR_F32) {
        *(float4 *)((float *)p + i) = make_float4(in[0], in[1], in[2], in[3]);
        return;
    }
    *(uint2 *)((uint16_t *)p + i) =
        make_uint2(tsr_pack2(in[0], in[1], dtype), tsr_pack2(in[2], in[3], dtype));
}

static __device__ __forceinline__ void widen_quads(const tsr_widen_args *a, int64_t quads,
                                                   tsr_dtype from, tsr_dtype to)
{
    int64_t first = (int64_t)blockIdx.x * THREADS * TURNS + threadIdx.x;
    uint4 raw[TURNS];
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++)
        if (first + turn * THREADS < quads)
            raw[turn] = load4(a->in, (first + turn * THREADS) * QUAD, from);
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        float value[QUAD];
        widen4(value, raw[turn], from);
        if (first + turn * THREADS < quads)
            store4(a->out, (first + turn * THREADS) * QUAD, value, to);
    }
}

/* One body, a kernel for each pair: with run-time dtypes every load would be waited for. */
#define WIDEN_KERNEL(name, from, to)                                                               \
    static __global__ void __launch_bounds__(THREADS)                                              \
        name(const __grid_constant__ tsr_widen_args a, int64_t quads)                              \
    {                                                                                              \
        tsr_kernel_begin();                                                                        \
        widen_quads(&a, quads, from, to);                                                          \
    }

WIDEN_KERNEL(f32_to_bf16, TSR_F32, TSR_BF16)
WIDEN_KERNEL(f32_to_f16, TSR_F32, TSR_F16)
WIDEN_KERNEL(bf16_to_f32, TSR_BF16, TSR_F32)
WIDEN_KERNEL(bf16_to_f16, TSR_BF16, TSR_F16)
WIDEN_KERNEL(f16_to_f32, TSR_F16, TSR_F32)
WIDEN_KERNEL(f16_to_bf16, TSR_F16, TSR_BF16)
WIDEN_KERNEL(e4m3_to_f32, TSR_F8_E4M3, TSR_F32)
WIDEN_KERNEL(e4m3_to_bf16, TSR_F8_E4M3, TSR_BF16)
WIDEN_KERNEL(e4m3_to_f16, TSR_F8_E4M3, TSR_F16)

typedef void widen_kernel(const tsr_widen_args a, int64_t quads);

static widen_kernel *kernel_of(tsr_dtype from, tsr_dtype to)
{
    if (from == TSR_F8_E4M3)
        return to == TSR_F32 ? e4m3_to_f32 : to == TSR_BF16 ? e4m3_to_bf16 : e4m3_to_f16;
    if (from == TSR_F32)
        return to == TSR_BF16 ? f32_to_bf16 : f32_to_f16;
    if (from == TSR_BF16)
        return to == TSR_F32 ? bf16_to_f32 : bf16_to_f16;
    return to == TSR_F32 ? f16_to_f32 : f16_to_bf16;
}

static __global__ void __launch_bounds__(THREADS) widen_each(const tsr_widen_args a, int64_t first)
{
    tsr_kernel_begin();
    int64_t i = first + (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= a.count)
        return;
    float value = a.in_dtype == TSR_F8_E4M3 ? tsr_e4m3_to_f32(((const uint8_t *)a.in)[i])
                                            : tsr_load(a.in, i, a.in_dtype);
    tsr_store(a.out, i, value * a.scale, a.dtype);
}

extern "C" tsr_status tsr_widen_cuda(tsr_stream *stream, const tsr_widen_args *args)
{
    TSR_TRY(tsr_widen_check(args));
    if (args->count == 0)
        return TSR_OK;
    tsr_widen_args all = *args;
    all.scale = args->scale != 0 ? args->scale : 1;
    if (all.scale != 1) {
        TSR_LAUNCH(widen_each, tsr_blocks(args->count, THREADS), THREADS, stream, all, (int64_t)0);
        return tsr_launched("widen");
    }
    if (args->in_dtype == args->dtype)
        return tsr_stream_copy(stream, args->out, args->in,
                               (uint64_t)args->count * tsr_dtype_bytes(args->dtype));
    bool aligned = (uintptr_t)args->in % 16 == 0 && (uintptr_t)args->out % 16 == 0;
    int64_t quads = aligned ? args->count / QUAD : 0, left = args->count - quads * QUAD;
    widen_kernel *widen = kernel_of(args->in_dtype, args->dtype);
    if (quads)
        TSR_LAUNCH(widen, tsr_blocks(quads, THREADS * TURNS), THREADS, stream, *args, quads);
    if (left)
        TSR_LAUNCH(widen_each, tsr_blocks(left, THREADS), THREADS, stream, all, quads * QUAD);
    return tsr_launched("widen");
}
