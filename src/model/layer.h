/*
 * model/layer.h: forward, recomputation and backward of one layer on a gathered unit, or of the run (model/units.h)
 * that is on it: loops over the nodes of its program (model/program.h).
 */
#ifndef TSR_MODEL_LAYER_H
#define TSR_MODEL_LAYER_H

#include "model/units.h"

/* A gathered unit: every pointer resolved. */
typedef struct {
    const tsr_layer_program *program;
    tsr_linear linear[TSR_BLOCK_MATRICES];
    tsr_expert_stack stack[TSR_BLOCK_STACKS];
    tsr_frozen vector[TSR_BLOCK_VECTORS];
    tsr_frozen final_norm; /* of the model; in the last layer's unit, else NULL data */
    tsr_fp8_rows *made8;   /* [matrix_count]: what one run of a backward leaves to the next */
} tsr_layer;

/* Where the values of a layer are in this run: the bases of its program's places. */
typedef struct {
    void *const *kept; /* [program->kept_count] */
    char *scratch;
    void *carried_x, *carried_z, *dx;
    void *const *shared, *const *shared_gradient; /* [TSR_SHARED_SLOTS] */
} tsr_layer_memory;

/* Where the sum that a layer begins with is put: the embedding goes there. */
void *tsr_layer_first(const tsr_layer_program *program, const tsr_layer_memory *memory);

/* *input: what the layer before left; with the last run it becomes what this one leaves. */
tsr_status tsr_layer_forward(const tsr_linear_context *context, const tsr_model_tables *tables,
                             const tsr_layer *layer, const tsr_layer_batch *batch,
                             const tsr_layer_memory *memory, tsr_layer_input *input,
                             const tsr_layer_run *run);

/* Of the forward only what makes the root of the block, for a backward that begins with it. */
tsr_status tsr_layer_enter(const tsr_linear_context *context, const tsr_model_tables *tables,
                           const tsr_layer *layer, const tsr_layer_batch *batch,
                           const tsr_layer_memory *memory, const tsr_layer_input *input);

/* In its runs, what is not kept is made again; then memory->dx [T, d], the gradient of what the layer left, becomes that of
 * what entered it. What is kept is consumed. gradients:
 * [TSR_BLOCK_WEIGHTS]. */
tsr_status tsr_layer_backward(const tsr_linear_context *context, const tsr_model_tables *tables,
                              const tsr_layer *layer, const tsr_layer_batch *batch,
                              const tsr_layer_memory *memory, const tsr_layer_gradients *gradients,
                              const tsr_layer_run *run);

#endif
