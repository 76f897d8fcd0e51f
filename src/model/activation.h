/*
 * model/activation.h: the memory of a micro-batch: what each layer keeps for its backward, and the scratch that all
 * layers and the head share.
 *
 * Sizes are those of the largest micro-batch of the run (tokens, documents, label rows). Every buffer is named, so
 * that the plan prints it and the run takes exactly the same from its arena. What a layer keeps, and where in the
 * scratch everything else lies, is its program's (model/program.h); layers that are alike share one.
 *
 * Layers below the lowest one that trains keep nothing, nor does a run that only evaluates. (An evaluation during
 * training runs in the layers' own buffers.)
 *
 * A layer whose activations are offloaded (it has saved_bytes) keeps the same, but in one of two regions that
 * these layers share (shard/unit.h). There its buffers lie without gaps for the tokens that the micro-batch has, so
 * that one copy moves what is really used.
 */
#ifndef TSR_MODEL_ACTIVATION_H
#define TSR_MODEL_ACTIVATION_H

#include "kernels/kernels.h"
#include "model/layer.h"
#include "model/layout.h"
#include "shard/memory_plan.h"
#include "shard/stride.h"

/* The largest micro-batch; all exact. */
typedef struct {
    int64_t tokens, documents, label_rows;
    int64_t longest; /* tokens of one document */
    /* Of all ranks that share a micro-batch, the others' too; both 0: tokens and label_rows. */
    int64_t all_tokens, all_label_rows;
} tsr_batch_bounds;

static inline int64_t tsr_batch_all_tokens(const tsr_batch_bounds *bounds)
{
    return bounds->all_tokens ? bounds->all_tokens : bounds->tokens;
}

static inline int64_t tsr_batch_all_label_rows(const tsr_batch_bounds *bounds)
{
    return bounds->all_tokens ? bounds->all_label_rows : bounds->label_rows;
}

/* Called once per buffer, in a fixed order; `out` is where its address is to be put (NULL while planning), `why`,
 * for people, what it is for. */
typedef tsr_status tsr_take_buffer(void *user, void **out, const char *name, const char *why,
                                   tsr_array array);

typedef struct {
    const tsr_layout *layout;
    tsr_batch_bounds bounds;
    const tsr_kernels *kernels;  /* for their scratch */
    const uint64_t *saved_bytes; /* [layers]: of those that are offloaded; NULL: none */
    tsr_dtype dtype;             /* of activations */
    bool fp8;                    /* the base's matmuls run in e4m3 */
    const tsr_keep *keep;        /* [layers]: what they may keep */
    int64_t tile_rows; /* of row-wise nodes (model/program.h); 0: micro-batches are whole */
    tsr_spans spans;   /* of a micro-batch that several ranks share; its rank does not matter */
    int stride; /* of the layers that keep their input (shard/stride.h); the others share buffers */
    bool train; /* false: evaluation only */
    bool dropout;
    bool atomics; /* of attention, as in tsr_attention_bounds */
    int wider;
} tsr_activation_options;

/* What a linear of a layer has beside its weight in such a run. */
tsr_matrix_traits tsr_activation_traits(const tsr_activation_options *options,
                                        const tsr_layout_linear *linear);

/* The rows of a tile in the largest micro-batches, of which the head takes the label rows by themselves; 0: these are not
 * divided, for they have no more, or of several adapters. */
int64_t tsr_activation_tile_rows(const tsr_activation_options *options);

/* The largest attention of a run, but for the heads, which differ by node. */
tsr_attention_bounds tsr_activation_attention(const tsr_activation_options *options);

/* ---- programs ---- */

/* Which layers of such a run keep their input. */
tsr_stride tsr_activation_stride(const tsr_activation_options *options);

/* The programs of all layers. */
typedef struct {
    tsr_layer_program *program;
    int count;
    int *of_layer; /* [layers] */
    uint8_t *
        begun; /* [layers]: shared slots whose gradient has begun when the backward comes to a layer */
} tsr_layer_programs;

/* On success *out is the caller's; it borrows the layout's blocks. */
tsr_status tsr_layer_programs_make(tsr_layer_programs **out, const tsr_activation_options *options);
void tsr_layer_programs_free(tsr_layer_programs *programs);

static inline const tsr_layer_program *tsr_layer_program_of(const tsr_layer_programs *programs,
                                                            int layer)
{
    return &programs->program[programs->of_layer[layer]];
}

/* ---- memory ---- */

/* All activation memory of a model. */
typedef struct {
    void **kept; /* [layers, TSR_BLOCK_VALUES]: of each layer the buffers of its program */
    void *region[TSR_REGIONS];
    char *scratch; /* the layer at work, or the head */
    uint64_t scratch_bytes;
    void *carried_x, *carried_z; /* [T, d]: from layer to layer, where it is not kept */
    tsr_linear_context context;  /* its scratch pointers */
    void *dx;                    /* [T, d]: the gradient of the residual stream */
    void *shared[TSR_SHARED_SLOTS], *shared_gradient[TSR_SHARED_SLOTS]; /* [T, the slot's width] */
    /* In the scratch, but for x, what the final norm reads, which is dx until the head's backward makes dx of it; NULL: the
     * model only evaluates. h is what the norm makes, d_h its gradient, both of one span's tokens at a time. h_whole: h is of
     * all tokens, for gradients of the head's own rows read it again. */
    struct {
        void *x, *h, *d_h;
        bool h_whole;
        float *rstd;
        void *rows; /* [R, d]: label rows of h; then their gradient */
        /* With a LoRA of the head, d + r columns wide: [rows, scale low] is `rows` then, with the gradient of it, a chunk
         * [W, B], and label rows of h alone, then their gradient. */
        void *d_rows, *joined, *label_h;
        float *score_gradient; /* [d], of a reward model, which has rows and part alone beside it */
        float *part; /* of a table's gradient, of one span; NULL: micro-batches are not divided */
        tsr_head_state state;
        void *workspace;
        uint64_t workspace_bytes;
    } head;
    double *nll;                                                  /* [R] */
    float *norm_partials, *norm_u, *norm_gram, *norm_b, *norm_bg; /* of the DoRA norm */
} tsr_activations;

/* Bytes that a layer keeps of a micro-batch of `tokens`. */
uint64_t tsr_activations_kept_bytes(const tsr_activation_options *options,
                                    const tsr_layer_programs *programs, int layer, int64_t tokens);

/* Where the kept buffers of a layer are: its own, or, of an offloaded one in a micro-batch of `tokens`, in its
 * region. */
void tsr_activations_kept(void *out[TSR_BLOCK_VALUES], const tsr_activations *activations,
                          const tsr_activation_options *options, const tsr_layer_programs *programs,
                          int layer, int64_t tokens);

/* Walks over all buffers in order. With `out` NULL only names and bytes are told. Names are valid
 * during the call of `take` only. out->kept is the caller's. */
tsr_status tsr_activations_walk(tsr_activations *out, const tsr_activation_options *options,
                                const tsr_layer_programs *programs, tsr_take_buffer *take,
                                void *user);

#endif
