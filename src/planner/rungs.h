/*
 * planner/rungs.h: what all layers of a model may keep for their backward, and in which order they give it up.
 *
 * Layers that run the same share a ladder (model/ladder.h). A step takes one layer from a rung to the next. Steps go
 * by the seconds that each byte costs, those of like layers from the lowest up: so whichever memory there is, the
 * first steps that fit it cost the least time, in which at most two rungs of each ladder are in use.
 */
#ifndef TSR_PLANNER_RUNGS_H
#define TSR_PLANNER_RUNGS_H

#include "model/ladder.h"
#include "planner/decide.h"

struct tsr_rungs {
    tsr_ladder *ladder; /* [ladder_count] */
    int *ease;          /* [ladder_count]: the lowest rung of `selective` */
    int *of_layer;      /* [layers] */
    struct {
        int layer, rung;
    } * step;
    int *
        end; /* [end_count], ascending: steps after which like layers are on one rung; the first is 0 */
    int ladder_count, step_count, end_count, layer_count;
};

/* decision->programs keep everything. On success *out is the caller's. */
tsr_status tsr_rungs_make(tsr_rungs **out, const tsr_inputs *inputs, const tsr_decision *decision,
                          const tsr_topology_view *view, const tsr_speeds *speeds);
void tsr_rungs_free(tsr_rungs *rungs);

/* The rung of each layer after so many steps; with `partly` none keeps everything, and none its input alone, as far
 * as its ladder has rungs between. */
void tsr_rungs_after(int *rung, const tsr_rungs *rungs, int steps, bool partly);

/* What a layer on a rung makes again: nothing, a part of its forward, or all but its input. */
typedef enum { TSR_AGAIN_NONE, TSR_AGAIN_PART, TSR_AGAIN_ALL } tsr_again;

tsr_again tsr_rungs_again(const tsr_rungs *rungs, int layer, int rung);

#endif
