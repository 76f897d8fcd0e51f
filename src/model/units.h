/*
 * model/units.h: unit_policy: which tensors of a model are gathered and released together, as FSDP's wrapping
 * policies choose it.
 *
 *     layers    so many whole layers are a unit; with 1, the default, every layer is one
 *     bytes     as many whole layers as fit; a layer that does not is cut between its nodes
 *     modules   each named module of a layer is a unit, and so is what lies between them
 *
 * A layer can be cut (into parts, of consecutive nodes) wherever no node behind the cut reads the result of a linear
 * before it: that still lacks the linear's magnitude and bias, and its gradient is written by whoever reads it. So
 * linears of one input stay together, with what reads them first; a norm of the residual stream is in the unit of
 * what was added. Chunks of the head are units of their own under every policy.
 *
 * A use of a unit by a layer runs those steps of the layer's program (model/program.h) that follow each other in
 * it. The same steps run in the same order under every policy, so the bits do not depend on it.
 */
#ifndef TSR_MODEL_UNITS_H
#define TSR_MODEL_UNITS_H

#include "model/layout.h"
#include "model/program.h"
#include "shard/plan.h"

typedef enum { TSR_UNITS_LAYERS, TSR_UNITS_BYTES, TSR_UNITS_MODULES } tsr_unit_policy_kind;

/* Zero: every layer is a unit. */
typedef struct {
    tsr_unit_policy_kind kind;
    int64_t layers; /* LAYERS: of a unit; 0: 1 */
    uint64_t bytes; /* BYTES: of a unit's tensors, gathered, at most */
    /* MODULES: names or their ends, below the layer: "mlp", "self_attn", "self_attn.o_proj". Borrowed. */
    const char *const *module;
    int module_count;
    const char *where; /* the key's place, for messages: "job.yaml:7" */
} tsr_unit_policy;

/* Groups the tensors of a whole layout, again if need be. TSR_ECONFIG: what cannot be cut is larger than `bytes`, or a
 * name is of no module. */
tsr_status tsr_layout_group(tsr_layout *layout, const tsr_unit_policy *policy);

/* Steps [first, end) of a pass of a layer, on one unit; of a backward those that make values again come first. */
typedef struct {
    int unit, first, end;
    bool trains; /* some are of the backward proper */
} tsr_layer_run;

#define TSR_LAYER_RUNS (2 * TSR_BLOCK_NODES + 2)

/* All of a pass. */
#define TSR_WHOLE_LAYER ((tsr_layer_run){.end = 2 * TSR_BLOCK_NODES, .trains = true})

/* The runs of a layer's forward, or backward; how many. What a backward begins with may be a run without steps: on
 * the unit of the final norm, whose gradient comes first, or with `enters` on that of the root, which is made from
 * what the layer below left. */
int tsr_layer_runs(tsr_layer_run out[TSR_LAYER_RUNS], const tsr_layout *layout, int layer,
                   const tsr_layer_program *program, bool backward, bool enters);

/* Chunks of a trained embedding and a trained head (model/layout.h) are used by the first and the last layer: before the
 * forward of the first and after its backward, before the backward of the last. How many of those uses come before and
 * after a layer's runs. */
int tsr_layer_chunks_before(const tsr_layout *layout, int layer, bool backward);
int tsr_layer_chunks_after(const tsr_layout *layout, int layer, bool backward);

/* The chunk of use `number`, of a layer whose own runs are `runs`, as a unit of the layout; -1: the use is a run. */
int tsr_layer_chunk(const tsr_layout *layout, int layer, bool backward, int number, int runs);

#endif
