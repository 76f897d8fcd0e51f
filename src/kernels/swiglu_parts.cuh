/*
 * kernels/swiglu_parts.cuh: the gated unit element by element (swiglu.h), as its kernels share it.
 */
#ifndef TSR_KERNELS_SWIGLU_PARTS_CUH
#define TSR_KERNELS_SWIGLU_PARTS_CUH

#include "kernels/cuda.cuh" /* first: it says that the C headers are C */

#include "kernels/activation.h"

/* 1 / (1 + e^-x). The reciprocal is within an ulp; of what overflows it is 0, as it should be. */
static __device__ __forceinline__ float swiglu_sigmoid(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(1.0f + expf(-x)));
    return y;
}

/* 1 + tanh(u) of GELU's argument x. */
static __device__ __forceinline__ float swiglu_gelu_gate(float x)
{
    float u = TSR_GELU_SLOPE * (x + TSR_GELU_CUBIC * x * x * x);
    return 2 * swiglu_sigmoid(2 * u);
}

/* What of up f is multiplied with, and into *kept whether up has a gradient. */
template <tsr_activation F>
static __device__ __forceinline__ float swiglu_up_factor(float up, bool *kept)
{
    *kept = true;
    if (F != TSR_SILU_CLAMPED)
        return up;
    *kept = !(up > TSR_CLAMPED_LIMIT || up < -TSR_CLAMPED_LIMIT);
    return (*kept ? up : copysignf(TSR_CLAMPED_LIMIT, up)) + 1.0f;
}

/* f(x), and into *slope f'(x). */
template <tsr_activation F>
static __device__ __forceinline__ float swiglu_activate(float x, float *slope)
{
    if (F == TSR_SILU) {
        float s = swiglu_sigmoid(x);
        *slope = s * (1.0f + x * (1.0f - s));
        return x * s;
    }
    if (F == TSR_SILU_CLAMPED) {
        float g = x > TSR_CLAMPED_LIMIT ? TSR_CLAMPED_LIMIT : x,
              s = swiglu_sigmoid(TSR_CLAMPED_SLOPE * g);
        *slope = x > TSR_CLAMPED_LIMIT ? 0 : s * (1.0f + TSR_CLAMPED_SLOPE * g * (1.0f - s));
        return g * s;
    }
    float gate = swiglu_gelu_gate(x);
    *slope = 0.5f * gate +
             0.5f * x * gate * (2 - gate) * TSR_GELU_SLOPE * (1.0f + 3.0f * TSR_GELU_CUBIC * x * x);
    return 0.5f * x * gate;
}

#endif
