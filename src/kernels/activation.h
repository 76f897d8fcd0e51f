/*
 * kernels/activation.h: the functions of gated MLPs (swiglu.h).
 */
#ifndef TSR_KERNELS_ACTIVATION_H
#define TSR_KERNELS_ACTIVATION_H

typedef enum {
    TSR_SILU, /* x / (1 + e^-x) */
    TSR_GELU_TANH, /* x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))): Transformers' gelu_pytorch_tanh */
    TSR_SILU_CLAMPED /* gpt-oss: g / (1 + e^-1.702 g), times u + 1; g = min(gate, 7), u = up in [-7, 7] */
} tsr_activation;

/* sqrt(2 / pi) and Hendrycks' cubic term. */
#define TSR_GELU_SLOPE 0.797884560802865356f
#define TSR_GELU_CUBIC 0.044715f

/* Of TSR_SILU_CLAMPED. */
#define TSR_CLAMPED_SLOPE 1.702f
#define TSR_CLAMPED_LIMIT 7.0f

#endif
