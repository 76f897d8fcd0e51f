/*
 * shard/stride.h: which layers keep their input from the forward to the backward (gradient_checkpointing: sqrt).
 *
 * With a stride of k, of the L layers that have a backward every k-th keeps its input, from the lowest one up. They
 * are the first of spans of k layers (the top one may be shorter). The inputs of the others in a span are in buffers
 * that all spans share, so the ones of the top span are there when the backward begins. Before the backward of
 * another span these are made again, by the forward of all its layers but the last.
 *
 * So ceil(L / k) + k - 1 inputs are kept, 2 sqrt(L) - 1 with k = sqrt(L), for one more forward of almost all layers:
 * Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016, https://arxiv.org/abs/1604.06174, section 3.2,
 * with a span's own backward recomputing layer by layer, since all that one layer computes takes more memory than
 * the inputs of many.
 */
#ifndef TSR_SHARD_STRIDE_H
#define TSR_SHARD_STRIDE_H

#include <stdbool.h>

/* Layers [lowest, layers) have a backward. stride 0 or 1: all of them keep their input. */
typedef struct {
    int lowest, layers, stride;
} tsr_stride;

/* The place of a layer in its span; 0: it keeps its input, or has no backward. */
static inline int tsr_stride_place(tsr_stride s, int layer)
{
    bool inside = s.stride > 1 && layer >= s.lowest && layer < s.layers;
    return inside ? (layer - s.lowest) % s.stride : 0;
}

/* The first layer of the top span. */
static inline int tsr_stride_top(tsr_stride s)
{
    return s.layers - 1 - tsr_stride_place(s, s.layers - 1);
}

/* The last of a span whose inputs are made again. */
static inline bool tsr_stride_ends(tsr_stride s, int layer)
{
    return s.stride > 1 && layer < tsr_stride_top(s) && tsr_stride_place(s, layer) == s.stride - 1;
}

/* Whether its forward runs again. */
static inline bool tsr_stride_again(tsr_stride s, int layer)
{
    return s.stride > 1 && layer >= s.lowest && layer < tsr_stride_top(s) &&
           !tsr_stride_ends(s, layer);
}

#endif
