/*
 * plan_uses.c: the order in which a micro-batch uses the units, and what a program asks of each.
 */
#include "shard/plan_builder.h"

#include <stdlib.h>

/* F0 .. F(L-1), H0 ..: how every micro-batch begins. */
static int add_forward(const tsr_plan *plan, tsr_plan_use *uses)
{
    for (int u = 0; u < plan->options.unit_count; u++)
        uses[u] = (tsr_plan_use){
            .phase = u < plan->options.layer_count ? TSR_USE_FORWARD : TSR_USE_HEAD, .unit = u};
    return plan->options.unit_count;
}

/* B(L-1) .. B(lowest), before each span what makes its inputs again. */
static int add_backward(const tsr_plan *plan, tsr_plan_use *uses)
{
    int n = 0;
    for (int u = plan->options.layer_count - 1; u >= plan->lowest_backward; u--) {
        bool again = tsr_stride_ends(plan->stride, u);
        for (int below = u - plan->stride.stride + 1; again && below < u; below++)
            uses[n++] = (tsr_plan_use){.phase = TSR_USE_AGAIN, .unit = below};
        uses[n++] = (tsr_plan_use){.phase = TSR_USE_BACKWARD, .unit = u};
    }
    return n;
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
    int kept = 0, saved = 0;
    for (int u = 0; u < b->plan->options.unit_count; u++) {
        bool saves = b->unit[u].saved_bytes > 0;
        b->part[u] = (tsr_plan_part){.first_use = b->horizon,
                                     .region = saves ? saved % TSR_REGIONS : -1,
                                     .kept_turn = kept % TSR_KEPT_TURNS};
        saved += saves;
        kept += tsr_unit_trainable_kept(&b->unit[u], b->ranks);
    }
}

tsr_status tsr_builder_list_uses(tsr_builder *b)
{
    const tsr_plan_options *o = &b->plan->options;
    bool train = b->kind == TSR_PROGRAM_TRAIN_FIRST || b->kind == TSR_PROGRAM_TRAIN_NEXT;
    b->use = calloc((size_t)o->unit_count * 4 + 1, sizeof *b->use);
    b->part = calloc((size_t)o->unit_count, sizeof *b->part);
    if (!b->use || !b->part)
        return tsr_fail(TSR_ENOMEM, "no memory for the uses of %d units", o->unit_count);
    int n = add_forward(b->plan, b->use);
    if (train)
        n += add_backward(b->plan, b->use + n);
    b->use_count = n;
    b->horizon = n + add_forward(b->plan, b->use + n);
    fill_parts(b);
    link_uses(b);
    return TSR_OK;
}
