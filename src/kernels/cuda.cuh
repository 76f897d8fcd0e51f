/*
 * kernels/cuda.cuh: what the CUDA kernels share: elements of any activation dtype in vectors of 16
 * bytes or scalars, reductions in a fixed order, launches.
 *
 * The dtype of a buffer is an argument of the kernel, the same for all threads, so that one kernel
 * serves all of them. Arithmetic is fp32; a value is rounded once, when it is stored.
 */
#ifndef TSR_KERNELS_CUDA_CUH
#define TSR_KERNELS_CUDA_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

/* The headers of C code say nothing of C++: what they declare has C's names. */
extern "C" {
#include "kernels/kernels_cuda.h"
}

#define TSR_WARP   32
#define TSR_VECTOR 8 /* elements that one thread loads or stores at a time */

/* ---- one element ---- */

static __device__ __forceinline__ float tsr_load(const void *p, int64_t i, tsr_dtype dtype)
{
    if (dtype == TSR_BF16)
        return __bfloat162float(((const __nv_bfloat16 *)p)[i]);
    if (dtype == TSR_F16)
        return __half2float(((const __half *)p)[i]);
    return ((const float *)p)[i];
}

static __device__ __forceinline__ void tsr_store(void *p, int64_t i, float value, tsr_dtype dtype)
{
    if (dtype == TSR_BF16)
        ((__nv_bfloat16 *)p)[i] = __float2bfloat16_rn(value);
    else if (dtype == TSR_F16)
        ((__half *)p)[i] = __float2half_rn(value);
    else
        ((float *)p)[i] = value;
}

/* ---- eight elements from i on: p + i is on 16 bytes ---- */

static __device__ __forceinline__ void tsr_load8(float *out, const void *p, int64_t i,
                                                 tsr_dtype dtype)
{
    if (dtype == TSR_F32) {
        float4 low = *(const float4 *)((const float *)p + i);
        float4 high = *(const float4 *)((const float *)p + i + 4);
        out[0] = low.x, out[1] = low.y, out[2] = low.z, out[3] = low.w;
        out[4] = high.x, out[5] = high.y, out[6] = high.z, out[7] = high.w;
        return;
    }
    uint4 bits = *(const uint4 *)((const uint16_t *)p + i);
    uint32_t word[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        if (dtype == TSR_BF16) {
            out[2 * j] = __uint_as_float(word[j] << 16);
            out[2 * j + 1] = __uint_as_float(word[j] & 0xffff0000u);
        } else {
            float2 pair = __half22float2(*(const __half2 *)&word[j]);
            out[2 * j] = pair.x, out[2 * j + 1] = pair.y;
        }
    }
}

/* What many blocks read and this kernel does not write: from L1, and where the source says, which the
 * compiler may change of a plain load. Not __ldg, see tsr_kernel_begin; __ldca is a stronger load. */
static __device__ __forceinline__ uint4 tsr_load_common(const uint4 *p)
{
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

static __device__ __forceinline__ uint32_t tsr_load_common_word(const void *p)
{
    uint32_t v;
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}

/* Asks L2 for what a later block will read: `bytes` from p on, both multiples of 16. One thread of a block asks;
 * code for older cards does not. */
static __device__ __forceinline__ void tsr_fetch_ahead(const void *p, unsigned bytes)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes));
#else
    (void)p, (void)bytes;
#endif
}

/* Two values of a 16-bit type in a word, the first lower. */
static __device__ __forceinline__ uint32_t tsr_pack2(float low, float high, tsr_dtype dtype)
{
    if (dtype == TSR_BF16) {
        __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
        return *(uint32_t *)&pair;
    }
    __half2 pair = __floats2half2_rn(low, high);
    return *(uint32_t *)&pair;
}

static __device__ __forceinline__ void tsr_store8(void *p, int64_t i, const float *in,
                                                  tsr_dtype dtype)
{
    if (dtype == TSR_F32) {
        *(float4 *)((float *)p + i) = make_float4(in[0], in[1], in[2], in[3]);
        *(float4 *)((float *)p + i + 4) = make_float4(in[4], in[5], in[6], in[7]);
        return;
    }
    uint32_t word[4];
#pragma unroll
    for (int j = 0; j < 4; j++)
        word[j] = tsr_pack2(in[2 * j], in[2 * j + 1], dtype);
    *(uint4 *)((uint16_t *)p + i) = make_uint4(word[0], word[1], word[2], word[3]);
}

/* Whether rows of `width` elements from each p on can be read in vectors; NULL can. */
template <typename... P> static inline bool tsr_vectors(int64_t width, P... p)
{
    return width % TSR_VECTOR == 0 && ((uintptr_t)p | ...) % 16 == 0;
}

/* ---- reductions: every thread gets the sum; the order depends on blockDim alone ---- */

static __device__ __forceinline__ float tsr_warp_sum(float value)
{
#pragma unroll
    for (int offset = TSR_WARP / 2; offset; offset /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

/* The same in fp64. */
static __device__ __forceinline__ double tsr_warp_sum_double(double value)
{
#pragma unroll
    for (int offset = TSR_WARP / 2; offset; offset /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

/* blockDim.x is a multiple of 32, at most 1024; `shared` has 33 floats. Ends with a barrier, so that
 * it may be called again at once. */
static __device__ __forceinline__ float tsr_block_sum(float value, float *shared)
{
    int lane = threadIdx.x % TSR_WARP, warp = threadIdx.x / TSR_WARP;
    int warps = (int)blockDim.x / TSR_WARP;
    value = tsr_warp_sum(value);
    if (lane == 0)
        shared[warp] = value;
    __syncthreads();
    if (warp == 0) {
        value = tsr_warp_sum(lane < warps ? shared[lane] : 0);
        if (lane == 0)
            shared[TSR_WARP] = value;
    }
    __syncthreads();
    value = shared[TSR_WARP];
    __syncthreads();
    return value;
}

/* ---- launching ---- */

/*
 * Between the end of a kernel and the start of the next lie some microseconds in which a card does
 * nothing. So where kernels are of code for sm_90 or later, the next one may come as soon as all blocks of
 * this one have ("programmatic dependent launch"): its blocks take the room that the last of this one
 * leave, and wait there until this one has ended.
 *
 * Every kernel calls this, once, in all threads, before anything else. What touched global memory before
 * would race with the kernel before it; a kernel that ended without having waited would let the one after
 * it overtake the one before it. As it is, whoever has waited knows that all that is earlier in the stream
 * has ended: the kernel before it has waited too. And since a kernel runs while it waits, none may read
 * what an earlier one writes by ways that take memory for constant while a kernel runs: no __ldg, no
 * ld.global.nc, no __restrict__ (tests/check_kernels.sh looks after both).
 *
 * A kernel whose name ends with "_ahead" may read something before it calls this: what no kernel of the stream
 * has written since the stream's last copy, fill or event, such as a frozen weight's codes. That comes while
 * the kernel before it ends. It lets the next one in by tsr_kernel_next, where that is worth it earlier.
 */
static __device__ __forceinline__ void tsr_kernel_begin(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

static __device__ __forceinline__ void tsr_kernel_next(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/* Code for older cards does not wait, so the device says which it runs. After a copy, a fill or an event
 * nothing starts early, after a library's kernel only if that one lets it. */
static inline cudaLaunchConfig_t tsr_launch_config(cudaLaunchAttribute *early, dim3 blocks,
                                                   dim3 threads, size_t shared_bytes,
                                                   tsr_stream *stream)
{
    cudaLaunchConfig_t config = {};
    early->id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early->val.programmaticStreamSerializationAllowed = 1;
    config.attrs = early;
    config.numAttrs = tsr_device_cuda_properties(tsr_stream_device(stream))->early_kernels;
    config.gridDim = blocks;
    config.blockDim = threads;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = tsr_stream_cuda(stream);
    return config;
}

/* The one way to launch a kernel. cudaLaunchKernelEx turns what is passed into the types of the kernel's
 * parameters, as <<<>>> does and the C function below it would not. */
#define TSR_LAUNCH_SHARED(kernel, blocks, threads, shared_bytes, stream, ...)                      \
    do {                                                                                           \
        cudaLaunchAttribute early_ = {};                                                           \
        cudaLaunchConfig_t config_ =                                                               \
            tsr_launch_config(&early_, blocks, threads, shared_bytes, stream);                     \
        (void)cudaLaunchKernelEx(&config_, kernel, __VA_ARGS__);                                   \
    } while (0)
#define TSR_LAUNCH(kernel, blocks, threads, stream, ...)                                           \
    TSR_LAUNCH_SHARED(kernel, blocks, threads, 0, stream, __VA_ARGS__)

/* So that `kernel` may ask for so much shared memory at a launch, which may be more than every card has. */
static inline tsr_status tsr_allow_shared(tsr_stream *stream, const void *kernel, int64_t bytes,
                                          const char *op)
{
    tsr_stream_cuda(stream); /* its device becomes this thread's */
    return tsr_cuda_status(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes), op);
}

/* After TSR_LAUNCH: what the launch said. */
static inline tsr_status tsr_launched(const char *op)
{
    return tsr_cuda_status(cudaGetLastError(), op);
}

static inline unsigned tsr_blocks(int64_t total, int64_t per_block)
{
    return (unsigned)((total + per_block - 1) / per_block);
}

#endif
