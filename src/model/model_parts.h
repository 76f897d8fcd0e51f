/*
 * model/model_parts.h: what the files of a model share. Inside src/model only.
 */
#ifndef TSR_MODEL_MODEL_PARTS_H
#define TSR_MODEL_MODEL_PARTS_H

#include "adapters/graph_time.h"
#include "model/model.h"

#define STAGES 2 /* micro-batches staged at a time: one computed, one being copied */

/* The memory of one micro-batch on one side (host or device), in this order, each part aligned. */
typedef struct {
    int32_t *positions, *cu_seqlens, *label, *sample_position;
    int32_t *label_row;        /* counted from the first token of its span */
    int32_t *part, *desirable; /* of an objective */
    double *reference;
    float *margin; /* of a reward model */
    int64_t *sample;
    char
        *embedding; /* [tokens, d] rows of the table as they are stored; NULL where it is trained */
    int32_t *ids, *next, *leads; /* then: kernels/table_rows.h */
    char *layer_rows;            /* [tokens, layers width]: the same of what every layer takes */
} stage_view;

/* What the head and a trained embedding take by itself of a micro-batch: tokens that follow each other, and their label
 * rows. */
typedef struct {
    int64_t first, tokens;
    int64_t first_label, label_rows; /* these may be none */
    int64_t first_of_all;            /* the first of these among those of all ranks that share */
    int64_t lead_count;              /* of its chains, whose tokens are counted from the first */
} token_span;

typedef struct {
    char *host, *device;
    tsr_event *staged, *released; /* on h2d; on compute */
    tsr_model_batch
        batch; /* what this rank has of it: counts; the arrays are in `view` and `range` */
    int64_t all_tokens, all_label_rows; /* of all ranks that share it */
    bool active;            /* something is computed here: a rank without rows passes on others' */
    tsr_model_range *range; /* [mixed_count] */
    token_span *span;       /* [span_count]: all tokens in their order */
    int span_count;
    stage_view view; /* on the device */
} stage;

/* DoRA's persistent vectors of one linear, fp32 [out] each; squares where the norms are factored. */
typedef struct {
    float *squares, *n, *g;
    bool squares_known;
    bool due; /* it comes of W + s B A, in the next forward */
} norm_vectors;

/* What the routers do, device memory. */
typedef struct {
    int64_t *
        count; /* [routers, experts], then [experts] of probabilities: of the micro-batch at work */
    int64_t *load;    /* [routers, experts] of the step so far */
    float *aux;       /* [experts]: the auxiliary loss's gradient by probabilities */
    float *bias;      /* [routers, experts]: in the place of the layers' corrections; NULL: these */
    tsr_event *moved; /* of a step */
    int routers;
    int64_t experts;
} router_state;

/* What the head says of label rows, [label rows] each. NULL: not wanted. */
enum { LABEL_ENTROPY, LABEL_CORRECT, LABEL_LOGIT, LABEL_LOG_SQUARES, LABEL_FLOATS };
typedef struct {
    double *nll;
    float *of[LABEL_FLOATS];
} label_values;

/* Of an objective, device memory; all NULL: there is none. */
typedef struct {
    double *sums;     /* [TSR_PARTS documents] */
    float *weight;    /* [label rows of all ranks that share the micro-batch] */
    float *squares;   /* [label rows], of the head; NULL: pairs are not weighted */
    label_values own; /* but nll, which is the activations' */
    void *all;        /* what own rows are part of, of all ranks that share it; NULL: none do */
    double *rewards;  /* [label rows of all, 2], of a reward model, which has all and words too */
    int64_t *words;   /* [TSR_PREFERENCE_WORDS] */
    /* [TSR_PREFERENCE_WORDS + 1], which nobody reads: the plain loss, and before it what ranks of a shared micro-batch
     * would say once more. */
    int64_t *discarded;
} preference_state;

/* The replicated NF4 state of one linear. */
typedef struct {
    float *nested_absmax, *nested_map;
    float offset;
} nested_state;

typedef struct {
    norm_vectors *norm;           /* of each linear */
    nested_state *nested;         /* of each linear */
    tsr_model_stack_state *stack; /* of each stack */
    int router;                   /* its number; -1: the layer has none */
    char *saved;                  /* host memory of its activations, if they travel */
} unit_state;

struct tsr_model {
    tsr_model_options options;
    unit_state *unit; /* [layers] */
    tsr_activations activations;
    char *activation_begin, *activation_end; /* all of them: free until the first micro-batch */
    tsr_model_tables tables;
    tsr_graph_book graphs; /* of the adapters, chosen at start-up */
    float *cosine, *sine, *level, *ones;
    tsr_stream *compute, *h2d;
    tsr_host_tables host;
    tsr_model_sums sums;
    router_state routers;
    preference_state preference;
    stage stage[STAGES];
    /* Rows of tokens that are trained (tsr_layout_rows): of each id its row, -1: none (NULL: no rows); the head's ids, its
     * rows of the compute dtype, as the first use of the micro-batch had them, and their gradient. */
    void *embedding_low[2]; /* [T, r] of the embedding's LoRA: A[:, id], and its gradient */
    int32_t *embedding_row, *head_row; /* [vocabulary], of the host */
    int32_t *head_ids;
    void *head_rows;
    void *head_gradient; /* fp32, or of wide units int64 */
    int32_t *
        last_of; /* [vocabulary]: while chains are made, the token of an id that was last seen, else -1 */
    uint64_t staged_count, released_count; /* micro-batches so far */
    tsr_context *shared;                   /* NULL: no rank shares a micro-batch */
    tsr_layer_input carried;               /* what the layer below left */
    /* Of several adapters: the ranges of the linears of the layer at work, [TSR_BLOCK_MATRICES, mixed_count], and where
     * each one's sums go. */
    tsr_linear_range *mixed_range;
    tsr_model_sums *mixed_sums;
    tsr_fp8_rows made8[TSR_BLOCK_MATRICES]; /* of the backward at work */
    bool fresh;
    /* Of the head's sums (kernels/head.h), and behind them mean_row, known from the first micro-batch on; NULL: not wanted. */
    float *row_parts;
    bool mean_row_known;
};

/* The options of the activations of a model. */
tsr_activation_options tsr_model_activation(const tsr_model_options *options);

/* Memory for the spans of both stages; false: there is none. */
bool tsr_model_allocate_spans(tsr_model *model);

/* Bytes of one stage for the largest micro-batch. */
uint64_t tsr_model_stage_bytes(const tsr_model_options *options);

/* The micro-batch that is computed now: staged, not yet released. */
const stage *tsr_model_current(const tsr_model *model);

/* A micro-batch, of all ranks that share it, that computes something. */
static inline bool tsr_model_active(const tsr_model_batch *batch)
{
    return batch->tokens > 0 && batch->label_rows > 0;
}

/* Of the shapes that the graphs of the adapters are chosen for: those in doubt that there is time for, found
 * or not, fitting this run's memory or not; and of these those that are still to be timed. */
typedef struct {
    tsr_graph_shape doubted[TSR_GRAPH_PLACES], timed[TSR_GRAPH_PLACES];
    int doubted_count, timed_count;
} tsr_graph_search;

/* Of all shapes takes what an earlier run chose; what is in doubt, not found and not to be timed keeps the
 * cheapest, in the book, so that the next run finds that. */
void tsr_model_recall_graphs(tsr_graph_search *out, tsr_model *model, const tsr_batch_shape *shapes,
                             int count, const tsr_prepare_args *args, const char *device);

/* Times those in the activations' memory, which is zero again afterwards. */
tsr_status tsr_model_time_graphs(tsr_model *model, const tsr_graph_search *search);

/* Resolves the pointers of a gathered layer. `train`: dropout is active. */
void tsr_model_resolve(tsr_layer *layer, tsr_model *model, int unit, const tsr_unit_view *view,
                       bool train, uint64_t epoch);

/* Where a trainable segment of a unit is, and where its gradient goes; NULL: it is in another unit than the view's, or the
 * gradient goes nowhere. */
const void *tsr_model_trainable_at(const tsr_model *model, int unit, const tsr_unit_view *view,
                                   int index);
void *tsr_model_gradient_at(const tsr_model *model, int unit, const tsr_unit_view *view,
                            void *gradient, int index);

/* mixed.c: memory for what a model of several adapters has; false: there is none. The adapters of a linear that has several, whose base is resolved: ranges, or if the micro-batch is all one
 * adapter's that one. And where the gradients go, of the resolved linears of a layer; those of the adapters that the
 * micro-batch has nothing of are zeros. */
bool tsr_model_allocate_mixed(tsr_model *model);
void tsr_model_resolve_mixed(tsr_linear *out, const tsr_model *model, int unit,
                             const tsr_unit_view *view, int index);
tsr_status tsr_model_place_mixed(tsr_layer_gradients *out, const tsr_model *model, int unit,
                                 const tsr_unit_view *view, float *gradient);

/* Brings rows of own label rows to their places among those of all ranks that share the micro-batch, `all` zeros before
 * the first; then tsr_context_sum of all does the rest, for nobody else has anything but zeros there. And back. */
tsr_status tsr_model_place_labels(const tsr_model *model, void *all, const void *own,
                                  uint64_t row_bytes);
tsr_status tsr_model_take_labels(const tsr_model *model, void *own, const void *all,
                                 uint64_t row_bytes);

/* The context of the linears for a micro-batch. */
tsr_linear_context tsr_model_context(const tsr_model *model);

/* Whether several ranks have rows of the micro-batch that is computed. */
static inline bool tsr_model_is_shared(const tsr_model *model)
{
    return tsr_spans_shared(&model->options.spans) &&
           tsr_model_current(model)->all_tokens > model->options.spans.rows;
}

/* sharing.c: at the start, for the heads of every attention, and for a group of them where ranks share micro-batches. */
tsr_status tsr_model_prepare_attention(const tsr_model *model, tsr_device *device);

/* router.c: numbers them; what has a life of its own; where the router of a layer counts, and its correction (NULL: that of
 * its vectors); before the first layer of any micro-batch; before that of one that trains, and after its last one. */
void tsr_model_number_routers(tsr_model *model);
tsr_status tsr_model_start_routers(tsr_model *model, tsr_device *device);
void tsr_model_end_routers(tsr_model *model);
tsr_router_counts tsr_model_router_counts(const tsr_model *model, int unit);
const float *tsr_model_correction(const tsr_model *model, int unit);
tsr_status tsr_model_await_bias(const tsr_model *model);
tsr_status tsr_model_clear_counts(const tsr_model *model);
tsr_status tsr_model_balance(const tsr_model *model);

/* table_gradient.c: the gradient of a table, or of a part of one. What is made of a span goes to `part` and is then added;
 * after the last one zeros stand for none. */
typedef struct {
    void *to;    /* [count] of fp32, or int64 of a wide unit */
    float *part; /* [count]; `to`, unless divided */
    uint64_t count;
    bool divided; /* `to` is of a wide unit */
    bool begun;
} tsr_table_gradient;

tsr_table_gradient tsr_model_table_gradient(const tsr_model *model, void *to, uint64_t count);
tsr_status tsr_model_add_part(const tsr_model *model, tsr_table_gradient *gradient);
tsr_status tsr_model_end_parts(const tsr_model *model, const tsr_table_gradient *gradient);

/* Of a part that is added (kernels/fixed_point.h). */
static inline float tsr_model_gradient_limit(const tsr_model *model)
{
    return tsr_fixed_limit(TSR_FIXED_SHIFT, model->options.contributions);
}

/* Rows of `columns` columns of the compute dtype, from a row on. */
static inline void *tsr_model_rows_at(const tsr_model *model, const void *rows, int64_t first,
                                      int64_t columns)
{
    return (char *)rows + (uint64_t)(first * columns) * tsr_dtype_bytes(model->options.dtype);
}

/* embed.c: x, the input of the first layer, of a frozen embedding; what a chunk of a trained one has of it; and the chunk's
 * gradient. */
tsr_status tsr_model_embed_tokens(tsr_model *model, void *x);
tsr_status tsr_model_embed(tsr_model *model, int chunk, const tsr_unit_view *view, void *x);
tsr_status tsr_model_embed_backward(tsr_model *model, int chunk, const tsr_unit_view *view,
                                    void *gradient);

/* preference.c: its buffers; of the micro-batch whose nll is known, the loss, and the weight of each label row in the
 * gradient that is in their place; where the head adds the plain loss; whether this rank is the one of those that share the
 * micro-batch that says what is said once of it. */
tsr_status tsr_model_walk_preference(tsr_model *model, const tsr_model_options *options,
                                     tsr_take_buffer *device, void *user);
tsr_status tsr_model_prefer(tsr_model *model);
int64_t *tsr_model_loss_word(const tsr_model *model);
bool tsr_model_is_first_sharer(const tsr_model *model);

/* score.c: the same of a reward model: its buffers; in the place of a chunk of the vocabulary; and its gradient. */
tsr_status tsr_model_walk_score(tsr_model *model, const tsr_model_options *options,
                                tsr_take_buffer *device, void *user);
tsr_status tsr_model_score(tsr_model *model, int unit, const tsr_unit_view *view);
tsr_status tsr_model_score_weight(tsr_model *model, int unit, const tsr_unit_view *view,
                                  void *gradient);

tsr_status tsr_model_head_begin(tsr_model *model, const tsr_layer *layer);
tsr_status tsr_model_head_chunk(tsr_model *model, int unit, const tsr_unit_view *view);
/* The gradient of a trained chunk, in the order of the last one to the first. */
tsr_status tsr_model_head_weight(tsr_model *model, int unit, const tsr_unit_view *view,
                                 void *gradient);
tsr_status tsr_model_head_backward(tsr_model *model, const tsr_layer *layer);

#endif
