/*
 * model/router.c: what the routers of a model do in a step, over its layers.
 */
#include "model/model_parts.h"

/* Whether a layer chooses experts: the layers that do number their routers. */
static bool has_router(const tsr_layout_unit *unit)
{
    return tsr_layout_stacks(unit) > 0;
}

uint64_t tsr_model_load_count(const tsr_layout *layout)
{
    uint64_t routers = 0;
    for (int i = 0; i < layout->layer_count; i++)
        routers += has_router(&layout->unit[i]);
    return routers * layout->config.experts.count;
}

int64_t *tsr_model_loads(const tsr_model *model)
{
    return model->routers.load;
}

void tsr_model_number_routers(tsr_model *model)
{
    const tsr_layout *layout = model->options.layout;
    router_state *routers = &model->routers;
    routers->experts = (int64_t)layout->config.experts.count;
    for (int i = 0; i < layout->layer_count; i++)
        model->unit[i].router = has_router(&layout->unit[i]) ? routers->routers++ : -1;
}

tsr_status tsr_model_start_routers(tsr_model *model, tsr_device *device)
{
    bool moves = model->routers.bias && model->options.train;
    return moves ? tsr_event_create(&model->routers.moved, device) : TSR_OK;
}

void tsr_model_end_routers(tsr_model *model)
{
    tsr_event_destroy(model->routers.moved);
}

float *tsr_model_router_bias(const tsr_model *model)
{
    return model->routers.bias;
}

const float *tsr_model_correction(const tsr_model *model, int unit)
{
    const router_state *routers = &model->routers;
    int router = model->unit[unit].router;
    return routers->bias && router >= 0 ? routers->bias + router * routers->experts : NULL;
}

tsr_status tsr_model_move_bias(tsr_model *model, tsr_stream *stream, const int64_t *load,
                               const uint32_t *skip, float rate)
{
    const router_state *routers = &model->routers;
    TSR_TRY(model->options.kernels->balance_bias(
        stream, &(tsr_balance_bias_args){.bias = routers->bias,
                                         .load = load,
                                         .skip = skip,
                                         .layers = routers->routers,
                                         .experts = routers->experts,
                                         .rate = rate}));
    return tsr_event_record(routers->moved, stream);
}

/* Of the layers below the first adapter nothing else waits for the update. */
tsr_status tsr_model_await_bias(const tsr_model *model)
{
    tsr_event *moved = model->routers.moved;
    uint64_t updates = moved ? tsr_event_recorded(moved) : 0;
    return updates ? tsr_stream_wait(model->compute, moved, updates) : TSR_OK;
}

/* Where the router of a layer counts. */
tsr_router_counts tsr_model_router_counts(const tsr_model *model, int unit)
{
    const router_state *routers = &model->routers;
    int64_t *prob = routers->count + routers->routers * routers->experts;
    return (tsr_router_counts){.count =
                                   routers->count + model->unit[unit].router * routers->experts,
                               .prob = routers->aux ? prob : NULL,
                               .dropped = model->sums.dropped};
}

/* Before the first layer of a micro-batch that trains. */
tsr_status tsr_model_clear_counts(const tsr_model *model)
{
    const router_state *routers = &model->routers;
    uint64_t count = (uint64_t)((routers->routers + 1) * routers->experts);
    return tsr_stream_fill(model->compute, routers->count, 0, count * sizeof *routers->count);
}

/* After its last one. The auxiliary loss is of all ranks' tokens: the first one that shares the micro-batch adds what is
 * of all. */
tsr_status tsr_model_balance(const tsr_model *model)
{
    const stage *s = tsr_model_current(model);
    const router_state *routers = &model->routers;
    bool weighs = s->batch.aux_weight > 0;
    bool pooled = weighs && tsr_model_is_shared(model);
    bool adds = !pooled || model->options.spans.rank == 0;
    if (pooled)
        TSR_TRY(tsr_context_sum(model->shared, routers->count,
                                (uint64_t)((routers->routers + 1) * routers->experts)));
    return model->options.kernels->balance(
        model->compute,
        &(tsr_balance_args){.count = routers->count,
                            .prob = routers->count + routers->routers * routers->experts,
                            .load = adds ? routers->load : NULL,
                            .gradient = weighs ? routers->aux : NULL,
                            .loss = adds ? model->sums.aux : NULL,
                            .tokens = s->all_tokens,
                            .layers = routers->routers,
                            .experts = routers->experts,
                            .weight = s->batch.aux_weight});
}
