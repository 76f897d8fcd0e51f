/*
 * kernels/swiglu_parts.h: the gated unit element by element (swiglu.h), as its references share it.
 */
#ifndef TSR_KERNELS_SWIGLU_PARTS_H
#define TSR_KERNELS_SWIGLU_PARTS_H

#include "kernels/activation.h"
#include "kernels/vector_math.h"

#include <stdbool.h>

/* 1 + tanh(u) of GELU's argument, without a difference of numbers near 1. */
TSR_INLINE float swiglu_gelu_gate(float x)
{
    float u = TSR_GELU_SLOPE * (x + TSR_GELU_CUBIC * x * x * x);
    return 2.0f / (1.0f + tsr_expf(-2.0f * u));
}

/* What of up, and of its gradient, f(gate) is multiplied with. */
TSR_INLINE float swiglu_up_factor(float up, tsr_activation activation)
{
    if (activation != TSR_SILU_CLAMPED)
        return up;
    up = up > TSR_CLAMPED_LIMIT ? TSR_CLAMPED_LIMIT : up;
    return (up < -TSR_CLAMPED_LIMIT ? -TSR_CLAMPED_LIMIT : up) + 1.0f;
}

TSR_INLINE float swiglu_up_gradient(float f, float up, tsr_activation activation)
{
    bool beyond = up > TSR_CLAMPED_LIMIT || up < -TSR_CLAMPED_LIMIT;
    return activation == TSR_SILU_CLAMPED && beyond ? 0.0f : f;
}

/* f(gate) */
TSR_INLINE float swiglu_activate(float gate, tsr_activation activation)
{
    if (activation == TSR_SILU)
        return gate / (1.0f + tsr_expf(-gate));
    if (activation == TSR_SILU_CLAMPED) {
        float g = gate > TSR_CLAMPED_LIMIT ? TSR_CLAMPED_LIMIT : gate;
        return g / (1.0f + tsr_expf(-TSR_CLAMPED_SLOPE * g));
    }
    return 0.5f * gate * swiglu_gelu_gate(gate);
}

/* f'(gate), and f. */
TSR_INLINE float swiglu_slope(float *f, float gate, tsr_activation activation)
{
    if (activation == TSR_SILU) {
        float sigmoid = 1.0f / (1.0f + tsr_expf(-gate));
        *f = gate * sigmoid;
        return sigmoid * (1.0f + gate * (1.0f - sigmoid));
    }
    if (activation == TSR_SILU_CLAMPED) {
        float g = gate > TSR_CLAMPED_LIMIT ? TSR_CLAMPED_LIMIT : gate;
        float sigmoid = 1.0f / (1.0f + tsr_expf(-TSR_CLAMPED_SLOPE * g));
        *f = g * sigmoid;
        return gate > TSR_CLAMPED_LIMIT
                   ? 0.0f
                   : sigmoid * (1.0f + TSR_CLAMPED_SLOPE * g * (1.0f - sigmoid));
    }
    float both = swiglu_gelu_gate(gate);
    *f = 0.5f * gate * both;
    return 0.5f * both + 0.5f * gate * both * (2.0f - both) * TSR_GELU_SLOPE *
                             (1.0f + 3.0f * TSR_GELU_CUBIC * gate * gate);
}

#endif
