/*
 * model/program.h: what a layer does in a run: which nodes its forward, its recomputation and its backward run,
 * which values it keeps in between, and where every value and gradient lies.
 *
 * All of it follows from the block, from what its linears have beside their weights, and from which values the layer
 * may keep (`keep`). Of these it keeps what its backward reads, or what that is made again from; the first sum of the
 * residual stream always, since all of the block can be made from it. With every value allowed nothing is made again;
 * with none, everything that the backward reads. Which sets are worth it: model/ladder.h.
 *
 * A backward computes what leads to an adapter and nothing else.
 *
 * Memory. Values that are kept have memory of the layer's own. Everything else lies in one scratch that all
 * layers share, at an offset for as long as it is read: values of the forward; then, in the backward, values
 * made again, gradients and workspaces. What one layer leaves to the next lies outside of it (`carried`), and so
 * does the gradient of the residual stream, which every layer changes in place (`dx`), and what is shared with layers
 * further up, with its gradient (`shared`). The same nodes run on the same values wherever these lie, so the bits do
 * not depend on any of it.
 *
 * Tiles. Row-wise nodes (all but attention, say) have `tile_rows` rows of a longer micro-batch at a time: those that
 * follow each other in a pass run for the first rows, then for the next. What nobody else reads exists for one tile only.
 * Gradients of adapters are rounded to fixed point for each tile and added up as integers. Which values are kept and in how
 * many units a layer is changes what exists for a tile, and nothing that is computed; and who computes which tile does not
 * matter either: so the bits depend on the tokens and on `tile_rows` alone.
 */
#ifndef TSR_MODEL_PROGRAM_H
#define TSR_MODEL_PROGRAM_H

#include "kernels/kernels.h"
#include "model/node.h"

/* A set of a block's values, a bit each. */
typedef struct {
    uint64_t bit[TSR_BLOCK_VALUES / 64];
} tsr_keep;

#define TSR_KEEP_ALL  ((tsr_keep){{UINT64_MAX, UINT64_MAX}})
#define TSR_KEEP_NONE ((tsr_keep){{0}})

static inline bool tsr_keep_has(const tsr_keep *keep, int value)
{
    return keep->bit[value / 64] >> value % 64 & 1;
}

static inline void tsr_keep_add(tsr_keep *keep, int value)
{
    keep->bit[value / 64] |= UINT64_C(1) << value % 64;
}

typedef struct {
    const tsr_block *block;
    const tsr_matrix_traits *traits; /* [TSR_BLOCK_WEIGHTS] */
    bool trains;                     /* it has a backward */
    bool below;                      /* and what enters it has a gradient too */
    bool fp8;
    tsr_keep keep;     /* what it may keep */
    int64_t tile_rows; /* rows of a tile; 0: no micro-batch has more */
    const uint8_t *
        part; /* [node_count]: the part of the layer that a node is in (model/layout.h); NULL: there is one */
    /* Of shared slots, a bit each: whose gradient a layer below wants, and of which a layer above has left one. */
    uint8_t wanted_slots, begun_slots;
} tsr_layer_program_options;

/* The largest micro-batch, for the sizes. */
typedef struct {
    const tsr_kernels *kernels;
    tsr_attention_bounds attention; /* but for the heads */
    tsr_dtype dtype;
} tsr_layer_program_sizes;

typedef enum {
    TSR_PLACE_NOWHERE,
    TSR_PLACE_KEPT,    /* at: which of the kept buffers */
    TSR_PLACE_SCRATCH, /* at: offset in bytes */
    TSR_PLACE_CARRIED_X,
    TSR_PLACE_CARRIED_Z,
    TSR_PLACE_DX,
    TSR_PLACE_SHARED,         /* at: slot */
    TSR_PLACE_SHARED_GRADIENT /* of the slot */
} tsr_place_kind;

typedef struct {
    uint64_t at;
    tsr_place_kind kind;
    bool of_tile; /* only the rows of a tile lie there, in the scratch */
} tsr_value_place;

/* A pass over the layer, in the order in which it runs. */
typedef struct {
    tsr_step step[TSR_BLOCK_NODES];
    int count;
} tsr_steps;

typedef struct {
    tsr_block const *block;
    tsr_matrix_traits traits[TSR_BLOCK_WEIGHTS];
    bool trains;
    tsr_keep keep;
    uint8_t wanted_slots; /* those of the options and of what it gives itself */
    tsr_steps forward, remade, backward;
    int64_t tile_rows;
    bool tiled[TSR_BLOCK_NODES];                           /* nodes that go through tiles */
    uint8_t part[TSR_BLOCK_NODES];                         /* as in the options */
    bool needed[TSR_BLOCK_VALUES], kept[TSR_BLOCK_VALUES]; /* by the backward; until then */
    /* From here on after tsr_layer_program_place. */
    tsr_value_place in_forward[TSR_BLOCK_VALUES], in_backward[TSR_BLOCK_VALUES],
        gradient[TSR_BLOCK_VALUES];
    /* Of nodes: their workspace in each pass, gradients in e4m3, and those of adapters until they are added. */
    tsr_value_place workspace[TSR_PASSES][TSR_BLOCK_NODES], codes[TSR_BLOCK_NODES],
        sums[TSR_BLOCK_NODES];
    uint64_t workspace_bytes[TSR_BLOCK_NODES];
    int16_t
        kept_buffer[TSR_BLOCK_VALUES]; /* [kept_count]: a value for each, the one that names it */
    int kept_count;
    uint64_t scratch_bytes;
} tsr_layer_program;

/* What is run; *out is written, and borrows the block. */
void tsr_layer_program_make(tsr_layer_program *out, const tsr_layer_program_options *options);

/* Where everything lies. Sizes are of micro-batches with more than tile_rows tokens. TSR_EINTERNAL: the block asks for
 * something that no pass can do. */
tsr_status tsr_layer_program_place(tsr_layer_program *program,
                                   const tsr_layer_program_sizes *sizes);

/* ---- tiles ---- */

/* The steps of a forward, or those of a backward: what is made again, then the backward proper. */
int tsr_step_count(const tsr_layer_program *program, bool backward);
const tsr_step *tsr_step_at(const tsr_layer_program *program, bool backward, int index);

/* Of such steps, where those end that go through a tile together from `first` on, at most at `end`; `first`: this one does
 * not go through tiles. */
int tsr_tile_end(const tsr_layer_program *program, bool backward, int first, int end);

/* Into how many calls of how many tokens each a node's work on a micro-batch is divided; returns 1 or 2 kinds. */
typedef struct {
    int64_t tokens, count;
} tsr_tile_kind;

int tsr_tile_kinds(tsr_tile_kind out[2], const tsr_layer_program *program, int node,
                   int64_t tokens);

/* A gradient of an adapter that a step of a backward writes; returns how many. */
typedef enum { TSR_GRADIENT_A, TSR_GRADIENT_B, TSR_GRADIENT_M } tsr_gradient_kind;

typedef struct {
    int16_t matrix; /* or a stack, as tsr_stack_weight numbers it */
    tsr_gradient_kind kind;
    uint64_t rows, columns; /* of as many elements */
} tsr_step_gradient;

#define TSR_STEP_GRADIENTS (3 * TSR_NODE_PORTS)
int tsr_step_gradients(tsr_step_gradient out[TSR_STEP_GRADIENTS], const tsr_layer_program *program,
                       const tsr_step *step);
uint64_t tsr_step_gradient_bytes(const tsr_step_gradient *gradient); /* aligned */

/* Elements of a value for each token; 0: the layer does not have it. Bytes in a micro-batch of `tokens`. */
uint64_t tsr_value_width(const tsr_layer_program *program, int value);
uint64_t tsr_value_bytes(const tsr_layer_program *program, int value, int64_t tokens,
                         tsr_dtype dtype);

#endif
