/*
 * model/layout.h: which tensors a model is made of, and which layer or chunk of the head each belongs to.
 * These are the units of the plan too, unless unit_policy says otherwise (model/units.h).
 *
 * Unit l, 0 <= l < layers, is layer l: the linears of its block (model/block.h), their biases and its
 * vectors; the last one holds the final norm too. Units layers .. layers + chunks - 1 are the head: chunks of at
 * most TSR_HEAD_CHUNK_ROWS vocabulary rows, whatever the number of ranks. The embedding is no unit:
 * it stays in host memory, one copy a node.
 *
 * modules_to_save trains the head or the embedding whole. A chunk of the head then has a trainable part and no frozen
 * one, and chunks of the embedding are units layers + chunks .. of the same kind; the plan has them before the layers.
 * A LoRA of the embedding is such a unit too; one of the head trains parts of its chunks.
 * A reward model has a score in the head's place, one chunk of one row, which is trained (layout_score.c).
 * trainable_token_indices trains rows of either: all of them are one such unit. The head's replace its own, and where
 * head and embedding are one, with the same tokens or none named for the head, it takes the embedding's.
 *
 * A unit's frozen part and its trainable part (A and B of its adapters, then magnitudes) are lists of
 * segments, in the order of this file. An NF4 weight has two segments, codes and absmax, cut in
 * granules of 1024 elements; everything else has one, cut in granules of 64.
 *
 * Several adapters that are trained in the same micro-batches (adapter_mixing: tokens) are in one layout, each with A and B of
 * its own: tsr_layout_mixed. Which sums and which optimizer a trainable segment belongs to is its `adapter`.
 *
 * An adapter's rank is rounded up to TSR_RANK_STEP in memory: matmuls and vector loads want rows on 16
 * bytes. What A has of rows and B of columns beyond the rank is zero and stays zero: the gradient of
 * the one is a product with the other's zeros, and AdamW leaves a zero with zero gradients alone. So
 * no kernel knows of it; files, the drawing of A, the scale and counts of parameters have the true
 * rank (tsr_stored_next).
 */
#ifndef TSR_MODEL_LAYOUT_H
#define TSR_MODEL_LAYOUT_H

#include "adapters/set.h"
#include "base/text.h"
#include "io/checkpoint.h"
#include "model/arch/config.h"
#include "model/block.h"
#include "quant/mxfp4_stack.h"
#include "quant/nf4_tensor.h"
#include "shard/unit.h"

#define TSR_HEAD_CHUNK_ROWS 16384 /* of the embedding's too */
#define TSR_NO_SEGMENT      (-1)
#define TSR_RANK_STEP       8

/* INT8: codes of LLM.int8, in granules like plain numbers, and INT8_SCALE the scales of their rows. FP8: codes in e4m3 as a
 * checkpoint has them, likewise, and FP8_SCALE those of their blocks. */
typedef enum {
    TSR_SEGMENT_PLAIN,
    TSR_SEGMENT_CODES,
    TSR_SEGMENT_ABSMAX,
    TSR_SEGMENT_INT8,
    TSR_SEGMENT_INT8_SCALE,
    TSR_SEGMENT_FP8,
    TSR_SEGMENT_FP8_SCALE
} tsr_segment_kind;

typedef struct {
    const char *name;         /* of the tensor, or of the adapter's module; borrowed */
    const tsr_tensor *source; /* of a plain frozen segment */
    tsr_segment_kind kind;
    int linear;    /* of its unit, or -1 */
    bool of_stack; /* it is of this stack of its unit: */
    int stack_index;
    tsr_dtype dtype;        /* of what is stored: U8 for codes */
    uint64_t element_count; /* of the whole tensor, in memory */
    uint64_t first_element; /* in the tensor of the file: a chunk of the head begins inside it */
    /* What is kept of a frozen vector is (w + plus) / divisor; divisor 0: w. one: of its only element, repeated. */
    float plus, divisor;
    bool one;
    uint64_t
        turns; /* rows of so many columns hold two halves by turns, which are kept one behind the other; 0: no */
    uint64_t granule_count, granule_bytes;
    int unit, at; /* its unit of the plan, and its number there (tsr_layout_group) */
    /* Of a trainable one: columns in memory, and the shape that files have, which is its top left. stack: it is so many
     * such matrices, one behind the other, each of element_count / stack; 0: 1. */
    uint64_t columns, stored_rows, stored_columns, stack;
    bool coded;  /* of a trainable one: its moments are codes of 8 bits */
    int adapter; /* of a trainable one: of which of several adapters; else 0 */
    const char
        *module; /* of what is trained of a table, its module's path; of an adapter's part NULL */
} tsr_layout_segment;

/* Of a linear, one of several adapters. */
typedef struct {
    uint64_t r; /* in memory; 0: it has none here */
    double scale;
    int a, b; /* trainable segments of its unit */
} tsr_layout_mixed;

/* One linear of one layer. */
typedef struct {
    char *path; /* of the module in Transformers: "model.layers.3.mlp.up_proj" */
    uint64_t out, in;
    tsr_weight source; /* where it is in the checkpoint */
    bool quantized;    /* NF4 in memory */
    bool nested;
    int codes, absmax, plain, bias; /* frozen segments of its unit */
    int code_scale; /* likewise: of LLM.int8 or e4m3 in memory, whose codes are `plain`; else TSR_NO_SEGMENT */
    /* The adapter; r, in memory, is 0 where there is none. */
    uint64_t r;
    double alpha, scale;
    bool dora;
    int a, b, m; /* trainable segments of its unit */
    uint64_t module_key;
    /* [layout->mixed_count], NULL without several adapters. What is above of an adapter is then that of the largest rank. */
    tsr_layout_mixed *mixed;
} tsr_layout_linear;

/* One stack of one layer. In memory every matrix of a quantized one begins with a granule of its own. */
typedef struct {
    char *path; /* of the parameter: "model.layers.3.mlp.experts.gate_up_proj" */
    uint64_t experts, out, in;
    int parts;
    const tsr_stack_names *files;
    tsr_weight
        *source; /* of each matrix [out / parts, in]; or of a fused tensor all are that one */
    bool fused, transposed;
    bool quantized, nested;
    bool mxfp4; /* codes and absmax are its codes and scales, as the checkpoint has them: */
    tsr_mxfp4_stack stored;
    int codes, absmax, plain, bias; /* frozen segments of its unit */
    uint64_t r;                     /* of each expert's adapter, in memory; 0: none */
    double alpha, scale;
    int a, b; /* trainable segments of its unit: [experts, r, in], [experts, out, r] */
    uint64_t module_key;
} tsr_layout_stack;

/* Whether base_compute: fp8 multiplies it in e4m3, which is made of NF4. */
static inline bool tsr_layout_stack_fp8(const tsr_layout_stack *stack)
{
    return stack->quantized && !stack->mxfp4;
}

static inline uint64_t tsr_layout_stack_matrices(const tsr_layout_stack *stack)
{
    return stack->experts * (uint64_t)stack->parts;
}

/* Whether files have rows of its two parts by turns. */
static inline bool tsr_layout_stack_by_turns(const tsr_layout_stack *stack)
{
    return stack->files->transposed && stack->parts == 2;
}

/* The module of one part of an expert, below the layer: "mlp.experts.7.up_proj". */
void tsr_stack_expert_name(char out[256], const tsr_stack_names *names, uint64_t expert, int part);

/* Elements of one matrix, and the granules that it takes. */
static inline uint64_t tsr_layout_stack_elements(const tsr_layout_stack *stack)
{
    return stack->out / (uint64_t)stack->parts * stack->in;
}

static inline uint64_t tsr_layout_stack_granules(const tsr_layout_stack *stack)
{
    return (tsr_layout_stack_elements(stack) + TSR_NF4_GRANULE - 1) / TSR_NF4_GRANULE;
}

/* Nested scales of a matrix of so many elements. */
static inline uint64_t tsr_layout_nested_scales(uint64_t elements)
{
    uint64_t blocks = (elements + TSR_NF4_BLOCK - 1) / TSR_NF4_BLOCK;
    return (blocks + TSR_NF4_NESTED_BLOCK - 1) / TSR_NF4_NESTED_BLOCK;
}

/* Of one matrix of a stack. */
static inline uint64_t tsr_layout_stack_nested(const tsr_layout_stack *stack)
{
    return tsr_layout_nested_scales(tsr_layout_stack_elements(stack));
}

typedef struct {
    tsr_layout_segment *frozen, *trainable;
    int frozen_count, trainable_count;
    const tsr_block *block;    /* the layer; NULL: a chunk of the head or the embedding */
    tsr_layout_linear *linear; /* [tsr_layout_linears(unit)], of the block's matrices */
    tsr_layout_stack *stack;   /* [tsr_layout_stacks(unit)] */
    int *vector;               /* [block->vector_count]: frozen segments */
    int final_norm;
    uint64_t first_row, row_count; /* of the chunk of the head or the embedding */
    bool dora;                     /* some adapter of it has a magnitude */
    /* Its units of the plan: first_unit + part[node], of each node (tsr_layout_group). */
    int first_unit, part_count;
    uint8_t part[TSR_BLOCK_NODES];
} tsr_layout_unit;

/* Linears of a unit. */
static inline int tsr_layout_linears(const tsr_layout_unit *unit)
{
    return unit->block ? unit->block->matrix_count : 0;
}

static inline int tsr_layout_stacks(const tsr_layout_unit *unit)
{
    return unit->block ? unit->block->stack_count : 0;
}

/* The module that PEFT's files call the adapter of a stack of a unit by: that of the parameter, wrapped once for each
 * later stack of it that has an adapter too. */
void tsr_layout_stack_module(tsr_text *out, const tsr_layout_unit *unit, int stack);

/* Rows of a table that are trained alone, as trainable_token_indices has them: a trainable segment of the embedding's
 * only chunk. */
typedef struct {
    const int64_t *id; /* [count], the configuration's; 0: none */
    int count, segment;
} tsr_layout_rows;

/* A LoRA of a table. Of the embedding: rows E[id] + scale B A[:, id], with A [r, vocabulary] and B [d, r] segments of its
 * only chunk. Of the head: A [r, d] is the first segment of its first chunk, each chunk's rows of B the last of its own. */
typedef struct {
    uint64_t r; /* in memory; 0: none */
    double scale;
    int a, b; /* of the embedding */
    uint64_t key;
} tsr_layout_table_lora;

typedef struct {
    tsr_model_config config;
    tsr_layout_unit *unit;
    tsr_block **block; /* [block_count]: layers that are alike share one */
    int block_count;
    int layer_count, chunk_count, unit_count;
    int embedding_count;  /* chunks of an embedding that is trained; 0: it is frozen */
    bool embedding_whole; /* all of it; else the only chunk has rows: */
    tsr_layout_rows embedding_rows, head_rows;
    tsr_layout_table_lora embedding_lora, head_lora;
    bool rows_tied;                      /* the head has the embedding's */
    char *embedding_path;                /* of its module, where something of it is trained */
    bool head_trained;                   /* the head's chunks have a trainable part */
    bool head_whole;                     /* and no other */
    bool scores;                         /* the head is a reward model's score; head is NULL */
    int plan_unit_count, plan_head_unit; /* units of the plan; the first chunk of the head */
    bool grouped;                        /* these are others than the layout's */
    const tsr_tensor *embedding, *head;  /* the same where they are tied */
    const tsr_tensor *layer_rows;        /* a table of what every layer takes of a token, or NULL */
    int mixed_count;                     /* adapters, if they are several; else 0 */
    int first_trained;                   /* lowest layer with an adapter; layer_count if none has */
    uint64_t largest_r, parameter_count, trainable_count;
    uint64_t idle_count;     /* parameters of the experts that a token does not go to */
    uint64_t tower_elements; /* of tensors beside the text decoder, which nothing reads */
} tsr_layout;

/* Chunks of the head are units [layer_count, tsr_layout_head_end), those of the embedding the rest. */
static inline int tsr_layout_head_end(const tsr_layout *layout)
{
    return layout->layer_count + layout->chunk_count;
}

/* Of the largest chunk. */
static inline uint64_t tsr_layout_chunk_rows(const tsr_layout *layout)
{
    uint64_t rows = layout->config.vocab_size;
    return rows < TSR_HEAD_CHUNK_ROWS ? rows : TSR_HEAD_CHUNK_ROWS;
}

typedef struct {
    bool load_in_4bit, load_in_8bit, nested;
    bool keeps_fp8;    /* neither: weights that the checkpoint has in e4m3 stay in it */
    tsr_dtype compute; /* dtype of the working copies of A and B; m is fp32 always */
    bool train_head, train_embedding;          /* whole, as modules_to_save has it */
    bool train_score;                          /* and no head */
    bool coded_moments;                        /* of large trainable tensors, for adamw_8bit */
    tsr_layout_rows embedding_rows, head_rows; /* trained alone; not with these */
    /* [mixed_count]: several adapters, LoRA of linears alone; there is no other. */
    const tsr_adapter_set *const *mixed;
    int mixed_count;
} tsr_layout_options;

/* The name of a module of a layer, or of the model; the caller's. NULL: no memory. */
char *tsr_module_path(const char *prefix, int layer, bool of_model, const char *name);

/* The modules of a model as Transformers names them, for tsr_adapter_set_make: the linears in the
 * order of layers and of their blocks, then the experts' stacks likewise, then what else a target could mean. The caller frees *out and each path
 * with tsr_layout_modules_free. */
tsr_status tsr_layout_modules(tsr_adapter_module **out, uint64_t *count,
                              const tsr_model_config *config);
void tsr_layout_modules_free(tsr_adapter_module *modules, uint64_t count);

/* A checkpoint whose weights are not there: the tensors that config.json describes, all of its dtype. TSR_EDATA: of
 * a 4-bit checkpoint too little is known. */
tsr_status tsr_model_describe(tsr_checkpoint **out, const char *directory,
                              const tsr_model_config *config);

/* `set` was made from tsr_layout_modules of the same config; NULL: no adapter. TSR_EDATA: a tensor
 * is missing from the checkpoint, has another shape than config.json says or a dtype that is not
 * understood. */
tsr_status tsr_layout_make(tsr_layout *out, const tsr_model_config *config,
                           const tsr_checkpoint *checkpoint, const tsr_adapter_set *set,
                           const tsr_layout_options *options);
void tsr_layout_free(tsr_layout *layout);

/* layout_unused.c: a warning where the checkpoint has tensors that the model does not, as the biases of a
 * configuration without them; a line for those of other towers, which are counted. */
tsr_status tsr_layout_warn_unused(tsr_layout *layout, const tsr_checkpoint *checkpoint);

/* Consecutive elements of a trainable tensor: from `memory` on as it is kept, from `stored` on as a
 * file has it. */
typedef struct {
    uint64_t memory, stored, count;
} tsr_stored_run;

/* The next run within elements [first, end) as kept, after *run, which begins as zero; false: there
 * is none. What no run has is padding. */
bool tsr_stored_next(tsr_stored_run *run, const tsr_layout_segment *segment, uint64_t first,
                     uint64_t end);

/* The units that the plan and the store work on, [layout->plan_unit_count], laid out for a shard group
 * of `ranks`. home: [plan_unit_count]. Borrows names from the layout. The caller frees *out with
 * tsr_layout_units_free. */
tsr_status tsr_layout_units(tsr_unit **out, const tsr_layout *layout, const tsr_home *home,
                            int ranks);
void tsr_layout_units_free(tsr_unit *units, int unit_count);

#endif
