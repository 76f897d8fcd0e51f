/*
 * kernels/route_scores.h: scores of a token's experts on the CPU, as route and route_backward compute
 * them. Inside src/kernels only.
 */
#ifndef TSR_KERNELS_ROUTE_SCORES_H
#define TSR_KERNELS_ROUTE_SCORES_H

#include "kernels/loops.h"
#include "kernels/route.h"

/* Softmax over the chosen; normalised over all is the same, without a division by a small sum. */
static inline bool tsr_route_over_chosen(const tsr_routing *how)
{
    return how->scoring == TSR_ROUTE_CHOSEN ||
           (how->scoring == TSR_ROUTE_SOFTMAX && how->normalise);
}

/* out may be s. */
TSR_INLINE void tsr_route_softmax(float *out, const float *s, int64_t count)
{
    float most = s[0];
    for (int64_t e = 1; e < count; e++)
        most = s[e] > most ? s[e] : most;
    double total = 0;
    for (int64_t e = 0; e < count; e++)
        out[e] = tsr_expf(s[e] - most);
    for (int64_t e = 0; e < count; e++)
        total += (double)out[e];
    float inverse = (float)(1 / total);
    for (int64_t e = 0; e < count; e++)
        out[e] *= inverse;
}

TSR_INLINE void tsr_route_sigmoid(float *out, const float *s, int64_t count)
{
    for (int64_t e = 0; e < count; e++)
        out[e] = 1.0f / (1.0f + tsr_expf(-s[e]));
}

/* scale expert_scale[id]. */
TSR_INLINE float tsr_route_factor(const tsr_routing *how, int32_t id)
{
    float buffer, scale = how->scale != 0 ? how->scale : 1;
    if (!how->expert_scale.data)
        return scale;
    return scale * *tsr_frozen_load(&buffer, how->expert_scale, id, 1, 1.0f);
}

tsr_status tsr_routing_check(const char *op, const tsr_routing *how);

#endif
