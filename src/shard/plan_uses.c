/*
 * plan_uses.c: the order in which a micro-batch uses the units, and what a program asks of each.
 */
#include "shard/plan_builder.h"

#include <stdlib.h>

/* Appends a layer's uses in a phase to the `n` that are listed. */
static int add_layer(const tsr_plan *plan, tsr_plan_use *uses, int n, tsr_use_phase phase,
                     int layer)
{
    const tsr_layer_uses *own = plan->options.layers ? &plan->options.layers[layer] : NULL;
    bool backward = phase == TSR_USE_BACKWARD;
    tsr_layer_use whole = {(int16_t)layer, backward}; /* layer l is unit l */
    const tsr_layer_use *use = !own ? &whole : backward ? own->backward : own->forward;
    int count = !own ? 1 : backward ? own->backward_count : own->forward_count;
    for (int i = 0; i < count; i++) {
        bool trains = use[i].trains && plan->options.units[use[i].unit].trainable.gradient_count;
        uses[n++] = (tsr_plan_use){.phase = (uint8_t)phase,
                                   .trains = backward && trains,
                                   .ends = i == count - 1,
                                   .number = (int16_t)i,
                                   .unit = use[i].unit,
                                   .layer = layer};
    }
    return n;
}

/* F0 .. F(L-1), H0 ..: how every micro-batch begins. */
static int add_forward(const tsr_plan *plan, tsr_plan_use *uses, int n)
{
    const tsr_plan_options *o = &plan->options;
    for (int l = 0; l < o->layer_count; l++)
        n = add_layer(plan, uses, n, TSR_USE_FORWARD, l);
    for (int u = o->head_unit; u < o->unit_count; u++)
        uses[n++] = (tsr_plan_use){.phase = TSR_USE_HEAD,
                                   .ends = true,
                                   .unit = u,
                                   .layer = o->layer_count + u - o->head_unit};
    return n;
}

/* B(L-1) .. B(lowest), before each span what makes its inputs again. */
static int add_backward(const tsr_plan *plan, tsr_plan_use *uses, int n)
{
    for (int l = plan->options.layer_count - 1; l >= plan->lowest_backward; l--) {
        bool again = tsr_stride_ends(plan->stride, l);
        for (int below = l - plan->stride.stride + 1; again && below < l; below++)
            n = add_layer(plan, uses, n, TSR_USE_AGAIN, below);
        n = add_layer(plan, uses, n, TSR_USE_BACKWARD, l);
    }
    return n;
}

/* Room for the uses of a micro-batch and the forward of the next. */
static size_t most_uses(const tsr_plan_options *o)
{
    size_t count = (size_t)(o->unit_count - o->head_unit) * 2 + 1;
    for (int l = 0; l < o->layer_count; l++)
        count += o->layers
                     ? 3 * (size_t)o->layers[l].forward_count + (size_t)o->layers[l].backward_count
                     : 4;
    return count;
}

/* From the last use to the first, which leaves in each unit's part its first one. */
static void link_uses(tsr_builder *b)
{
    tsr_plan_use *end = &b->use[b->horizon];
    end->wanting = b->horizon;
    for (int p = b->horizon - 1; p >= 0; p--) {
        tsr_plan_use *use = &b->use[p];
        tsr_plan_part *part = &b->part[use->unit];
        bool wants = tsr_unit_slot_bytes(&b->unit[use->unit], b->ranks) > 0;
        use->again = part->first_use;
        use->wanting = wants ? p : use[1].wanting;
        part->first_use = p;
    }
}

static void fill_parts(tsr_builder *b)
{
    int kept = 0;
    for (int u = 0; u < b->plan->options.unit_count; u++) {
        b->part[u] = (tsr_plan_part){.first_use = b->horizon, .kept_turn = kept % TSR_KEPT_TURNS};
        kept += tsr_unit_trainable_kept(&b->unit[u], b->ranks);
    }
}

/* As tsr_saved_region and tsr_saved_travels have it, of all layers at once. */
static tsr_status fill_saved(tsr_builder *b)
{
    const tsr_plan_options *o = &b->plan->options;
    int count = 0, left = 0;
    if (!o->saved_bytes)
        return TSR_OK;
    b->saved = calloc((size_t)o->layer_count, sizeof *b->saved);
    if (!b->saved)
        return tsr_fail(TSR_ENOMEM, "no memory for what %d layers save", o->layer_count);
    for (int l = 0; l < o->layer_count; l++)
        b->saved[l].region = o->saved_bytes[l] > 0 ? count++ % TSR_REGIONS : -1;
    for (int l = o->layer_count - 1; l >= 0; l--) {
        b->saved[l].travels = o->saved_bytes[l] > 0 && left >= TSR_REGIONS;
        left += o->saved_bytes[l] > 0;
    }
    return TSR_OK;
}

tsr_status tsr_builder_list_uses(tsr_builder *b)
{
    const tsr_plan_options *o = &b->plan->options;
    bool train = b->kind == TSR_PROGRAM_TRAIN_FIRST || b->kind == TSR_PROGRAM_TRAIN_NEXT;
    b->use = calloc(most_uses(o), sizeof *b->use);
    b->part = calloc((size_t)o->unit_count, sizeof *b->part);
    if (!b->use || !b->part)
        return tsr_fail(TSR_ENOMEM, "no memory for the uses of %d units", o->unit_count);
    b->use_count = add_forward(b->plan, b->use, 0);
    if (train)
        b->use_count = add_backward(b->plan, b->use, b->use_count);
    b->horizon = add_forward(b->plan, b->use, b->use_count);
    fill_parts(b);
    link_uses(b);
    return fill_saved(b);
}
