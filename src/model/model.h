/*
 * model/model.h: the model of one rank at run time: what the executor calls for each use of a unit.
 *
 *     tsr_model_stage      a micro-batch and its embedding rows, copied ahead on the h2d stream
 *     tsr_model_norm       NORM(u): DoRA's n and g from the gathered W, A, B, m; those of linears that
 *                          can be merged come of the forward that follows, if the micro-batch has one
 *     tsr_model_compute    F(u), H(c), B(u): the layer's ops on the compute stream
 *     tsr_model_release    the micro-batch's staging may be filled again
 *
 * Every call enqueues and returns. A micro-batch without tokens or without labels computes nothing:
 * its gradients are zeros and it only takes part in collectives.
 *
 * Order    create, walk with the arenas, start, prepare; then stage, norm and compute, release.
 * Threads  One thread issues.
 */
#ifndef TSR_MODEL_MODEL_H
#define TSR_MODEL_MODEL_H

#include "model/activation.h"
#include "shard/plan.h"

typedef struct tsr_model tsr_model;

/* Of a micro-batch with documents of several adapters (tsr_layout_mixed) what is one adapter's: tokens, and label rows, that
 * follow each other. */
typedef struct {
    int adapter;
    int64_t first, tokens;           /* of the micro-batch's tokens */
    int64_t first_label, label_rows; /* of its label rows */
    double label_tokens;             /* as tsr_model_batch's, of the adapter's step */
    uint64_t epoch;
} tsr_model_range;

/* One micro-batch, on the host, the whole of one that several ranks share; everything is copied during tsr_model_stage. */
typedef struct {
    int64_t tokens, documents, label_rows;
    const int32_t *ids, *positions; /* [tokens] */
    const int32_t *cu_seqlens;      /* [documents + 1] */
    const int32_t *label_row;       /* [label_rows]: tokens that predict a label, increasing */
    const int32_t *label;           /* [label_rows]: what they predict */
    const int64_t *sample;          /* [documents]: which sample of the data set, for dropout */
    const int32_t *first_position;  /* [documents]: of the document in its sample */
    uint64_t epoch;
    double label_tokens; /* of the whole step over all ranks: the loss is divided by it */
    double aux_weight;   /* of the micro-batch's auxiliary loss in the step's loss; 0: none */
    double noise;        /* on what the embedding gives, uniform in [-noise, noise); 0: none */
    /* Of an objective (kernels/objective.h): where the parts of documents begin in the label rows, sums of the reference
     * (NULL: none), KTO's labels; and the share of the micro-batch's loss in the step's. */
    const int32_t *part;      /* [TSR_PARTS documents + 1] */
    const double *reference;  /* [TSR_PARTS documents] */
    const int32_t *desirable; /* [documents / 2] */
    const float *margin;      /* [documents / 2], of a reward model, which has no parts */
    double share;
    /* [range_count], all tokens in their order, at most one of an adapter; with one adapter NULL. Theirs are label_tokens
     * and epoch then. */
    const tsr_model_range *range;
    int range_count;
    bool sums_alone; /* no loss: tsr_model_document_sums is all that is wanted */
    bool train;
} tsr_model_batch;

/* Where the model adds what a step sums; device memory, borrowed. */
typedef struct {
    int64_t *loss;          /* fixed point, TSR_LOSS_SHIFT */
    int32_t *loss_overflow; /* set to 1: a loss is not finite */
    int64_t *correct;       /* labels that are the argmax */
    int64_t *entropy;       /* fixed point, TSR_LOSS_SHIFT */
    int64_t *aux;           /* auxiliary losses, fixed point, TSR_BALANCE_SHIFT */
    int64_t *dropped;       /* slots of experts beyond their capacity */
} tsr_model_sums;

/* One of several adapters. */
typedef struct tsr_model_adapter {
    double dropout;
    uint64_t seed;
} tsr_model_adapter;

typedef struct {
    const tsr_layout *layout;
    const tsr_unit *units;       /* [layout->plan_unit_count]: offsets of every segment */
    const uint64_t *saved_bytes; /* [layers]: of offloaded activations (shard/unit.h); NULL: none */
    int ranks;                   /* of the shard group */
    const tsr_kernels *kernels;
    tsr_dtype dtype; /* of activations and of the working copies of A and B */
    bool fp8;        /* the base's matmuls run in e4m3 */
    bool fp8_fast;   /* with the sums of tensor cores alone (kernels/fp8_gemm.h) */
    tsr_batch_bounds bounds;
    int64_t step_micro;   /* micro-batches of a step, of all ranks */
    const tsr_keep *keep; /* [layers]: what they may keep */
    int64_t tile_rows;    /* rows of a tile of row-wise nodes (model/program.h) */
    tsr_spans
        spans;  /* of tile_rows: which rows of a micro-batch are this rank's; bounds are theirs */
    int stride; /* of the layers that keep their input (shard/stride.h) */
    const tsr_layer_programs *programs; /* of tsr_model_programs; must outlive the model */
    bool train;
    double dropout;                   /* of several adapters the largest */
    const tsr_model_adapter *adapter; /* [layout->mixed_count]; borrowed */
    double label_smoothing;           /* 0: none; of evaluations too */
    const tsr_objective *objective;   /* NULL: the loss is the mean over labels */
    uint64_t seed;
    tsr_graph_rule graph_rule;
    int decoded_layers;     /* the last so many whose experts stay decoded, as far as they can */
    double capacity_factor; /* of experts (node.h); 0: none is left out */
    bool auxiliary;         /* micro-batches may have an aux_weight */
    bool router_bias;       /* routers have corrections of their own, beside those of the layers */
    bool atomics;           /* attention's gradients need not have the same bits in every run */
    int wider;              /* launches of attention's backward (kernels/attention.h) */
    uint64_t contributions; /* to a gradient of a step, of all ranks, at most */
} tsr_model_options;

/* Whether layers run in tiles: their units then are wide (shard/unit.h), with a contribution for each tile. */
bool tsr_model_tiles(const tsr_model_options *options);

/* Whether mean logits are reported of an objective: not of capped ones, whose mean is not that of h and the mean row. */
bool tsr_model_reports_logits(const tsr_model_options *options);

/* What the layers run and keep, of all other options. On success *out is the caller's (tsr_layer_programs_free). */
tsr_status tsr_model_programs(tsr_layer_programs **out, const tsr_model_options *options);

/* What a layer keeps for its backward, of the largest micro-batch: its saved_bytes if that is to be
 * offloaded. 0: it has no backward. */
uint64_t tsr_model_kept_bytes(const tsr_model_options *options, int layer);

/* Bytes of the experts of a layer if they stay decoded. 0: it has none that could. */
uint64_t tsr_model_decoded_bytes(const tsr_model_options *options, int layer);

/* The first layer whose experts stay decoded, if it has such; layer_count: none do. */
int tsr_model_first_decoded(const tsr_model_options *options);

/* Walks over the model's buffers in a fixed order: device memory through `device`, host memory
 * (staging) through `host`. With `model` NULL they are only told. First what belongs to the base, which models of one base
 * have once. */
tsr_status tsr_model_walk_base(tsr_model *model, const tsr_model_options *options,
                               tsr_take_buffer *device, void *user);
/* What is a model's own, next. */
tsr_status tsr_model_walk(tsr_model *model, const tsr_model_options *options,
                          tsr_take_buffer *device, tsr_take_buffer *host, void *user);
/* The rest, next: what is in these buffers lasts for a micro-batch at most. */
tsr_status tsr_model_walk_scratch(tsr_model *model, const tsr_model_options *options,
                                  tsr_take_buffer *device, tsr_take_buffer *host, void *user);

/* The same options as in the walks. The caller owns *out; memory comes from the walks, called
 * next. */
tsr_status tsr_model_create(tsr_model **out, const tsr_model_options *options);
void tsr_model_destroy(tsr_model *model);

/* Whole tables in host memory of which tokens' rows are looked up: the embedding, and what every layer takes of a
 * token (data NULL: the model has none). */
typedef struct {
    tsr_frozen embedding, layer_rows;
} tsr_host_tables;

/* After the walk: streams and where sums go. Fills
 * the constant tables. */
tsr_status tsr_model_start(tsr_model *model, tsr_stream *compute, tsr_stream *h2d,
                           const tsr_host_tables *tables, tsr_model_sums sums);

/* How ranks that share micro-batches go about the attention of a layer (model/attention_shared.h). */
typedef struct {
    int groups; /* in which a rank's key heads go, one after the other. 1: all at once, or nothing is shared */
    bool by_heads; /* each has heads of its own */
} tsr_head_sharing;
tsr_head_sharing tsr_model_head_sharing(const tsr_model_options *options,
                                        const tsr_layer_program *program);

/* The most groups of any layer, and whether the ranks have heads of their own in any. */
tsr_head_sharing tsr_model_most_sharing(const tsr_model_options *options,
                                        const tsr_layer_programs *programs);

/* After the start: who shares micro-batches, as the options' spans say. Borrowed. What they send to each other lies in the scratch. */
void tsr_model_share(tsr_model *model, tsr_context *context);
void *tsr_model_scratch(const tsr_model *model, uint64_t *bytes);

/* Of one of several adapters, after the start. */
void tsr_model_set_sums(tsr_model *model, int adapter, tsr_model_sums sums);

/* After the start, instead of tsr_model_load_unit: what a model keeps of its base beside the gathered parts, as `from` has it,
 * a model of the same base on the same device. */
tsr_status tsr_model_take_base(tsr_model *model, const tsr_model *from);

/* A shape that micro-batches come in. */
typedef struct {
    int64_t tokens, label_rows;
    bool train; /* false: evaluation */
} tsr_batch_shape;

/* Between the start and the first micro-batch: chooses the graphs of the adapters and the kernels of the
 * matmuls of these shapes, the most important first. The caller fills in what args says about choices
 * made before and where to put these (kernels.h); the rest is filled in here. What is chosen is timed
 * only where args->chosen asks for it; the activations' memory is the scratch. */
tsr_status tsr_model_prepare(tsr_model *model, const tsr_batch_shape *shapes, int count,
                             tsr_prepare_args *args);

/* Takes all of another rank's `chosen`. TSR_EDATA: it is wrong, or of another kind of device. */
tsr_status tsr_model_agree(tsr_model *model, const char *chosen);

/* The graphs of the adapters for these shapes, a line for each that is taken, or as JSON the elements of an
 * array: as the model has chosen them, or, with NULL, as they are by price, before a GPU has timed them. */
tsr_status tsr_model_print_graphs(tsr_text *out, const tsr_model_options *options,
                                  const tsr_model *model, const tsr_batch_shape *shapes, int count,
                                  bool json);

const tsr_layout *tsr_model_layout(const tsr_model *model);

/* The replicated part of an NF4 weight's state: [nested_count] floats to be filled at load, and its
 * offset. */
float *tsr_model_nested_absmax(tsr_model *model, int unit, int linear);
float *tsr_model_nested_map(tsr_model *model, int unit, int linear);
void tsr_model_set_offset(tsr_model *model, int unit, int linear, float offset);

/* The same of a stack: [matrices, nested scales of one], [256], [matrices]; and its weights where they stay decoded. */
typedef struct {
    float *nested_absmax, *nested_map, *offset;
    tsr_decoded_stack decoded;
} tsr_model_stack_state;

const tsr_model_stack_state *tsr_model_stack(const tsr_model *model, int unit, int stack);

/* The row norms n of a DoRA linear, [out], as the last NORM left them. */
const float *tsr_model_norms(const tsr_model *model, int unit, int linear);

/* While on, NORM takes m to be n (g = 1): the pass that gives fresh magnitudes their values. */
void tsr_model_set_fresh(tsr_model *model, bool fresh);

/* Stages the next micro-batch that will be computed; at most two may be under way, a third call
 * waits. */
tsr_status tsr_model_stage(tsr_model *model, const tsr_model_batch *batch);

/* Forgets the micro-batch that was staged last and not computed. */
tsr_status tsr_model_unstage(tsr_model *model);

/* The uses of the layers' units, for the plan; NULL: layer l is unit l, all of it in one use. On success the caller
 * frees *out, which is one block. */
tsr_status tsr_model_uses(tsr_layer_uses **out, const tsr_model_options *options);

/* Of the linears of a layer that are in the gathered unit. */
tsr_status tsr_model_norm(tsr_model *model, int layer, const tsr_unit_view *view);

/* Use `number` of those of a layer (or chunk of the head) in a phase. gradient: of B(u), written in the gradient layout
 * (shard/unit.h) but for its padding, int64_t of a wide unit; NULL otherwise. */
tsr_status tsr_model_compute(tsr_model *model, tsr_use_phase phase, int unit, int number,
                             const tsr_unit_view *view, void *gradient);

/* Of a model with experts that trains, [routers, experts]: slots of each since the caller cleared them, device memory;
 * NULL: none. And how many there are. */
int64_t *tsr_model_loads(const tsr_model *model);
uint64_t tsr_model_load_count(const tsr_layout *layout);

/* Of an objective: what micro-batches add to since the caller cleared it, [TSR_PREFERENCE_WORDS]; and of the micro-batch
 * computed last the sums of its documents, [TSR_PARTS documents] (an empty one leaves them). Device memory; NULL: there is
 * no objective. */
int64_t *tsr_model_preference_words(const tsr_model *model);
const double *tsr_model_document_sums(const tsr_model *model);

/* The corrections of the routers, [routers, experts], device memory that the caller fills after the start; NULL: those of
 * the layers' vectors are used. */
float *tsr_model_router_bias(const tsr_model *model);
/* Moves them towards even loads (kernels/balance.h), on `stream`; micro-batches that are issued later wait for that. */
tsr_status tsr_model_move_bias(tsr_model *model, tsr_stream *stream, const int64_t *load,
                               const uint32_t *skip, float rate);

/* What an offloaded layer has saved of the micro-batch that is computed now. */
tsr_saved tsr_model_saved(const tsr_model *model, int unit);

/* After the last use of a micro-batch: its staging may be used again. */
tsr_status tsr_model_release(tsr_model *model);

/* Host pointers into device memory, for tests on the CPU: the label rows of the final norm's
 * output, [R, d] (of an evaluation, until the next micro-batch), and their nll [R]. */
const void *tsr_model_label_rows(const tsr_model *model);
const double *tsr_model_nll(const tsr_model *model);
/* The residual stream as the layer got it, [T, d], of the micro-batch that is computed; one that trains keeps it. */
const void *tsr_model_layer_input(const tsr_model *model, int layer);

#endif
