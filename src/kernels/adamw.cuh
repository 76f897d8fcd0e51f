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
