/*
 * kernels/layer_inputs.h: what every layer takes of a token beside the residual stream: Gemma's per-layer inputs
 * (Transformers' Gemma4TextModel.project_per_layer_inputs), of all layers at once; and its backward.
 *
 * Forward, for token t and layer l, over the columns of the layer:
 *     y   = scale (g z + bias)                  g NULL: 1; bias NULL: 0
 *     out = sum_scale (y rstd(y) w + row_scale row)
 * rstd(y) = 1 / sqrt(mean(y^2) + eps). z and rows have the layers side by side; out has them one behind the other, so
 * that a layer's part is [tokens, width].
 *
 * Backward: dout -> dy, the gradient of g z + bias. w and the rows are frozen.
 *
 * Cost     3 tokens layers width elements each way.
 */
#ifndef TSR_KERNELS_LAYER_INPUTS_H
#define TSR_KERNELS_LAYER_INPUTS_H

#include "kernels/types.h"

#define TSR_LAYER_INPUTS_MOST 512 /* columns of a layer */

typedef struct {
    const void *z;    /* [tokens, layers, width] */
    const float *g;   /* [layers, width], optional */
    tsr_frozen bias;  /* [layers, width], optional */
    tsr_frozen w;     /* [width] */
    const void *rows; /* [tokens, layers, width] of rows_dtype, BF16 or F32 */
    void *out;        /* [layers, tokens, width] */
    int64_t tokens, width;
    int32_t layers;
    float eps, scale, row_scale, sum_scale;
    tsr_dtype rows_dtype, dtype;
} tsr_layer_inputs_args;

typedef struct {
    const void *dout; /* [layers, tokens, width] */
    const void *z;    /* as in the forward */
    const float *g;
    tsr_frozen bias, w;
    void *dy; /* [tokens, layers, width] */
    int64_t tokens, width;
    int32_t layers;
    float eps, scale, sum_scale;
    tsr_dtype dtype;
} tsr_layer_inputs_backward_args;

tsr_status tsr_layer_inputs_check(const tsr_layer_inputs_args *args);
tsr_status tsr_layer_inputs_ref(const tsr_layer_inputs_args *args, tsr_pool *pool);
tsr_status tsr_layer_inputs_backward_check(const tsr_layer_inputs_backward_args *args);
tsr_status tsr_layer_inputs_backward_ref(const tsr_layer_inputs_backward_args *args,
                                         tsr_pool *pool);

#endif
