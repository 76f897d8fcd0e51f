/*
 * kernels/vectors.cuh: eight elements of a row, held as they lie in memory until they are used.
 *
 * A streaming kernel must have many loads under way. tsr_load8 converts at once and so waits for each
 * load; here loading, widening, narrowing and storing are apart, and a kernel first asks for all that
 * it needs. `dtype` and `whole` are constants where a body becomes the kernel of one case
 * (TSR_KERNELS_OF), so that nothing of the other cases is left in it.
 *
 *     whole    p + i is on 16 bytes and all eight elements exist: one or two 16-byte accesses.
 *              Otherwise `count` elements (0 to 8) are touched one by one, and the rest is zero.
 */
#ifndef TSR_KERNELS_VECTORS_CUH
#define TSR_KERNELS_VECTORS_CUH

#include "kernels/cuda.cuh"

typedef struct {
    uint32_t word[8]; /* of F32 all, of the 16-bit types the first four */
} tsr_raw8;

/* One body (args, extra, dtype, whole) as four kernels, each with registers of its own: the 16-bit
 * types in vectors, with at least `blocks` blocks of `threads` on a multiprocessor; F32 in vectors;
 * and element by element, which is rare and needs no speed. */
#define TSR_KERNELS_OF(name, body, args_type, extra_type, threads, blocks)                         \
    TSR_KERNEL_OF(name##_bf16, body, args_type, extra_type, (threads, blocks), TSR_BF16, true)     \
    TSR_KERNEL_OF(name##_f16, body, args_type, extra_type, (threads, blocks), TSR_F16, true)       \
    TSR_KERNEL_OF(name##_f32, body, args_type, extra_type, (threads), TSR_F32, true)               \
    TSR_KERNEL_OF(name##_each, body, args_type, extra_type, (threads), a.dtype, false)
#define TSR_KERNEL_OF(name, body, args_type, extra_type, bounds, dtype, whole)                     \
    static __global__ void __launch_bounds__ bounds name(const __grid_constant__ args_type a,      \
                                                         const __grid_constant__ extra_type extra) \
    {                                                                                              \
        tsr_kernel_begin();                                                                        \
        body(&a, &extra, dtype, whole);                                                            \
    }

#define TSR_LAUNCH_OF(name, whole, dtype, blocks, threads, stream, ...)                            \
    do {                                                                                           \
        if (!(whole))                                                                              \
            TSR_LAUNCH(name##_each, blocks, threads, stream, __VA_ARGS__);                         \
        else if ((dtype) == TSR_BF16)                                                              \
            TSR_LAUNCH(name##_bf16, blocks, threads, stream, __VA_ARGS__);                         \
        else if ((dtype) == TSR_F16)                                                               \
            TSR_LAUNCH(name##_f16, blocks, threads, stream, __VA_ARGS__);                          \
        else                                                                                       \
            TSR_LAUNCH(name##_f32, blocks, threads, stream, __VA_ARGS__);                          \
    } while (0)

static __device__ __forceinline__ void tsr_raw_quad(uint32_t *word, uint4 quad)
{
    word[0] = quad.x, word[1] = quad.y, word[2] = quad.z, word[3] = quad.w;
}

/* One by one; tables stay in L1. */
static __device__ __forceinline__ tsr_raw8 tsr_raw_each(const void *p, int64_t i, int count,
                                                        tsr_dtype dtype)
{
    tsr_raw8 raw;
#pragma unroll
    for (int j = 0; j < 8; j++)
        raw.word[j] = 0;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        if (j < count && dtype == TSR_F32)
            raw.word[j] = ((const uint32_t *)p)[i + j];
        else if (j < count)
            raw.word[j / 2] |= (uint32_t)((const uint16_t *)p)[i + j] << (16 * (j % 2));
    }
    return raw;
}

/* A plain load, also of what is read once: with ld.global.cs a copy of 64 MB takes 36 us, so 35. */
static __device__ __forceinline__ tsr_raw8 tsr_raw_load(const void *p, int64_t i, int count,
                                                        tsr_dtype dtype, bool whole)
{
    if (!whole)
        return tsr_raw_each(p, i, count, dtype);
    tsr_raw8 raw;
    if (dtype == TSR_F32) {
        tsr_raw_quad(raw.word, tsr_load_common((const uint4 *)((const uint32_t *)p + i)));
        tsr_raw_quad(raw.word + 4, tsr_load_common((const uint4 *)((const uint32_t *)p + i) + 1));
    } else {
        tsr_raw_quad(raw.word, tsr_load_common((const uint4 *)((const uint16_t *)p + i)));
    }
    return raw;
}

/* Of what is read once, where it must not push out of L1 what is read again. */
static __device__ __forceinline__ tsr_raw8 tsr_raw_once(const void *p, int64_t i, int count,
                                                        tsr_dtype dtype, bool whole)
{
    if (!whole)
        return tsr_raw_each(p, i, count, dtype);
    tsr_raw8 raw;
    if (dtype == TSR_F32) {
        tsr_raw_quad(raw.word, __ldcs((const uint4 *)((const uint32_t *)p + i)));
        tsr_raw_quad(raw.word + 4, __ldcs((const uint4 *)((const uint32_t *)p + i) + 1));
    } else {
        tsr_raw_quad(raw.word, __ldcs((const uint4 *)((const uint16_t *)p + i)));
    }
    return raw;
}

static __device__ __forceinline__ void tsr_raw_widen(float *out, tsr_raw8 raw, tsr_dtype dtype)
{
#pragma unroll
    for (int j = 0; j < 4; j++) {
        if (dtype == TSR_BF16) {
            out[2 * j] = __uint_as_float(raw.word[j] << 16);
            out[2 * j + 1] = __uint_as_float(raw.word[j] & 0xffff0000u);
        } else if (dtype == TSR_F16) {
            float2 pair = __half22float2(*(const __half2 *)&raw.word[j]);
            out[2 * j] = pair.x, out[2 * j + 1] = pair.y;
        } else {
            out[2 * j] = __uint_as_float(raw.word[2 * j]);
            out[2 * j + 1] = __uint_as_float(raw.word[2 * j + 1]);
        }
    }
}

/* The only rounding. */
static __device__ __forceinline__ tsr_raw8 tsr_raw_narrow(const float *in, tsr_dtype dtype)
{
    tsr_raw8 raw;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        if (dtype != TSR_F32) {
            raw.word[j] = tsr_pack2(in[2 * j], in[2 * j + 1], dtype);
        } else {
            raw.word[2 * j] = __float_as_uint(in[2 * j]);
            raw.word[2 * j + 1] = __float_as_uint(in[2 * j + 1]);
        }
    }
    return raw;
}

/* __stwb is the plain store; said so, the compiler does not take the vector apart. */
static __device__ __forceinline__ void tsr_raw_store(void *p, int64_t i, int count, const float *in,
                                                     tsr_dtype dtype, bool whole)
{
    tsr_raw8 raw = tsr_raw_narrow(in, dtype);
    const uint32_t *w = raw.word;
    if (whole) {
        uint4 *out = (uint4 *)((uint8_t *)p + i * (dtype == TSR_F32 ? 4 : 2));
        __stwb(out, make_uint4(w[0], w[1], w[2], w[3]));
        if (dtype == TSR_F32)
            __stwb(out + 1, make_uint4(w[4], w[5], w[6], w[7]));
        return;
    }
#pragma unroll
    for (int j = 0; j < 8; j++) {
        if (j < count && dtype == TSR_F32)
            ((uint32_t *)p)[i + j] = w[j];
        else if (j < count)
            ((uint16_t *)p)[i + j] = (uint16_t)(w[j / 2] >> (16 * (j % 2)));
    }
}

/* Eight values of a frozen vector, or `fill` where there is none. */
static __device__ __forceinline__ void tsr_frozen8(float *out, tsr_frozen f, int64_t i, int count,
                                                   float fill, bool whole)
{
    if (f.data && f.dtype == TSR_F32) {
        tsr_raw_widen(out, tsr_raw_load(f.data, i, count, TSR_F32, whole), TSR_F32);
    } else if (f.data) {
        tsr_raw_widen(out, tsr_raw_load(f.data, i, count, TSR_BF16, whole), TSR_BF16);
    } else {
#pragma unroll
        for (int j = 0; j < 8; j++)
            out[j] = fill;
    }
}

static __device__ __forceinline__ void tsr_float8(float *out, const float *p, int64_t i, int count,
                                                  float fill, bool whole)
{
    tsr_frozen f = {p, TSR_F32};
    tsr_frozen8(out, f, i, count, fill, whole);
}

#endif
