/*
 * kept_gradient.h: gradients of a step as their owner keeps them, in host memory, and as AdamW reads them.
 */
#ifndef TEST_SUPPORT_KEPT_GRADIENT_H
#define TEST_SUPPORT_KEPT_GRADIENT_H

#include "shard/trainable.h"

#include <math.h>

static inline double kept_gradient(const tsr_trainable *t, uint64_t i)
{
    float g;
    if (t->rounded)
        return (double)t->rounded[i];
    tsr_fixed_to_f32(&g, &t->accumulator[i], 1, TSR_FIXED_SHIFT);
    return (double)g;
}

static inline void keep_gradient(const tsr_trainable *t, uint64_t i, double value)
{
    int64_t sum = llround(ldexp(value, TSR_FIXED_SHIFT));
    if (t->rounded)
        tsr_fixed_to_f32(&t->rounded[i], &sum, 1, TSR_FIXED_SHIFT);
    else
        t->accumulator[i] = sum;
}

#endif
