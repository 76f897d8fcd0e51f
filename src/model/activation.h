/*
 * model/activation.h: the memory of a micro-batch: which activations each layer keeps for its
 * backward, and the scratch that all layers share.
 *
 * Sizes are those of the largest micro-batch of the run (tokens, documents, label rows). Every
 * buffer is named, so that the plan prints it and the run takes exactly the same from its arena.
 *
 *     recompute    a layer keeps
 *     none         x h q k v o x_mid h2 act, z (and y) of the linears that need it, rstd, lse; low,
 *                  x A^T, of the linears that every forward makes it of (adapters/graph.h)
 *     selective    the same without h, h2 and act
 *     full         x; low is shared scratch, which the forward that runs again fills
 *
 * Layers below the lowest one that trains keep nothing, nor does a run that only evaluates: what a
 * layer has not of its own is shared scratch. (An evaluation during training runs in the layers'
 * own buffers.)
 *
 * A layer whose activations are offloaded (its unit has saved_bytes) keeps the same, but in one of two
 * regions that these layers share (shard/unit.h). There its buffers lie without gaps for the tokens
 * that the micro-batch has, so that one copy moves what is really used.
 */
#ifndef TSR_MODEL_ACTIVATION_H
#define TSR_MODEL_ACTIVATION_H

#include "kernels/kernels.h"
#include "model/layout.h"
#include "shard/memory_plan.h"

/* The largest micro-batch; all exact. */
typedef struct {
    int64_t tokens, documents, label_rows;
    int64_t longest; /* tokens of one document */
} tsr_batch_bounds;

/* Called once per buffer, in a fixed order; `out` is where its address is to be put (NULL while
 * planning). */
typedef tsr_status tsr_take_buffer(void *user, void **out, const char *name, tsr_array array);

/* All activation memory of a model. */
typedef struct {
    /* [layers]: shared parts point into `shared`; all of an offloaded layer's do, see
     * tsr_activations_in_region. */
    tsr_layer_buffers *kept;
    void *region[TSR_REGIONS];
    tsr_layer_buffers shared; /* what recompute fills; everything, for layers that keep nothing */
    tsr_layer_scratch scratch;
    tsr_linear_context context; /* its scratch pointers */
    void *x_final, *h_final;    /* [T, d] */
    float *rstd_final;
    void *dx;     /* [T, d]: the gradient of the residual */
    void *h_rows; /* [R, d]: label rows of h_final; then their gradient */
    tsr_head_state head;
    double *nll; /* [R] */
    void *head_workspace;
    uint64_t head_workspace_bytes;
    void *attention_workspace;
    uint64_t attention_workspace_bytes;
    float *norm_partials, *norm_u, *norm_gram, *norm_b, *norm_bg; /* of the DoRA norm */
} tsr_activations;

typedef struct {
    const tsr_layout *layout;
    tsr_batch_bounds bounds;
    const tsr_kernels *kernels;     /* for their scratch */
    const tsr_unit *units;          /* which layers are offloaded; NULL: none */
    tsr_dtype dtype;                /* of activations */
    bool fp8;                       /* the base's matmuls run in e4m3 */
    const tsr_recompute *recompute; /* [layers] */
    bool train;                     /* false: evaluation only */
    bool dropout;
    bool atomics; /* of attention, as in tsr_attention_bounds */
    int wider;
} tsr_activation_options;

/* The largest attention of a run, for its workspace and plans. */
tsr_attention_bounds tsr_activation_attention(const tsr_activation_options *options);

/* Bytes that a layer keeps of a micro-batch of `tokens`. */
uint64_t tsr_activations_kept_bytes(const tsr_activation_options *options, int layer,
                                    int64_t tokens);

/* The buffers of an offloaded layer in a micro-batch of `tokens`: in its region, and the shared ones.
 */
void tsr_activations_in_region(tsr_layer_buffers *out, const tsr_activations *activations,
                               const tsr_activation_options *options, int layer, int64_t tokens);

/* Walks over all buffers in order. With `out` NULL only names and bytes are told. Names are valid
 * during the call of `take` only. out->kept has layer_count elements, the caller's. */
tsr_status tsr_activations_walk(tsr_activations *out, const tsr_activation_options *options,
                                tsr_take_buffer *take, void *user);

#endif
