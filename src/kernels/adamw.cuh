/*
 * kernels/adamw.cuh: what the passes of adamw.cu and adamw_8bit.cu share.
 */
#ifndef TSR_KERNELS_ADAMW_CUH
#define TSR_KERNELS_ADAMW_CUH

#include "kernels/cuda.cuh"

/* ---- b^t ---- */

/* Two doubles whose sum is meant: 2^-104. */
typedef struct {
    double high, low;
} tsr_two_double;

static __device__ tsr_two_double tsr_multiply(tsr_two_double a, tsr_two_double b)
{
    double high = __dmul_rn(a.high, b.high);
    double low = __fma_rn(a.high, b.high, -high);
    low = __fma_rn(a.high, b.low, __fma_rn(a.low, b.high, low));
    tsr_two_double product;
    product.high = __dadd_rn(high, low);
    product.low = __dsub_rn(low, __dsub_rn(product.high, high));
    return product;
}

/* By squaring, in twice the precision and rounded once, as a good pow() of the host gives: the
 * device's own pow() may be two ulps away, which 1 - b^t makes larger. */
static __device__ double tsr_power(double base, uint64_t exponent)
{
    tsr_two_double square = {base, 0}, result = {1, 0};
    for (; exponent; exponent >>= 1) {
        if (exponent & 1)
            result = tsr_multiply(result, square);
        square = tsr_multiply(square, square);
    }
    return result.high;
}

/* ---- four elements ---- */

static __device__ __forceinline__ void tsr_load_floats(float *out, const float *p)
{
    float4 value = __ldcs((const float4 *)p);
    out[0] = value.x, out[1] = value.y, out[2] = value.z, out[3] = value.w;
}

static __device__ __forceinline__ float4 tsr_quad(const float *x)
{
    return make_float4(x[0], x[1], x[2], x[3]);
}

/* ---- gradients ---- */

/* As they lie: a sum, or the bits of a rounded one. */
static __device__ __forceinline__ int64_t tsr_load_gradient(const tsr_adamw_span *span, uint64_t i)
{
    return span->rounded ? __float_as_int(span->rounded[i]) : span->gradient[i];
}

/* Four of them. */
static __device__ __forceinline__ void tsr_load_gradients(int64_t *out, const tsr_adamw_span *span,
                                                          uint64_t i)
{
    if (span->rounded) {
        int4 bits = __ldcs((const int4 *)(span->rounded + i));
        out[0] = bits.x, out[1] = bits.y, out[2] = bits.z, out[3] = bits.w;
        return;
    }
    longlong2 low = __ldcs((const longlong2 *)(span->gradient + i));
    longlong2 high = __ldcs((const longlong2 *)(span->gradient + i + 2));
    out[0] = low.x, out[1] = low.y, out[2] = high.x, out[3] = high.y;
}

/* The gradient, clipped. */
static __device__ __forceinline__ float tsr_gradient_of(int64_t loaded, const tsr_adamw_span *span,
                                                        float unit, float clip)
{
    float rounded =
        span->rounded ? __int_as_float((int)loaded) : __fmul_rn(__ll2float_rn(loaded), unit);
    return __fmul_rn(rounded, clip);
}

/* ---- launches ---- */

/* Enough blocks to fill the device, `each` on a multiprocessor, and no more: they stride. */
static inline unsigned tsr_filling_blocks(const tsr_stream *stream, uint64_t count,
                                          uint64_t per_block, int each)
{
    uint64_t most = (count + per_block - 1) / per_block;
    const tsr_device *device = tsr_stream_device((tsr_stream *)stream);
    uint64_t full = (uint64_t)tsr_device_cuda_properties(device)->sm_count * (uint64_t)each;
    return (unsigned)(most < full ? most : full);
}

#endif
