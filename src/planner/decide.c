#include "inputs/experts.h"
#include "inputs/shared.h"
#include "model/factors.h"
#include "planner/expect.h"
#include "planner/parts.h"
#include "planner/rungs.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(TSR_CONFIG_MAX_SLOTS == TSR_SLOTS_MAX, "what the key takes, a plan can have");
_Static_assert(TSR_CONFIG_MAX_RANK == TSR_ADAPTER_MAX_RANK, "and an adapter");

tsr_array tsr_host_table(const tsr_tensor *table)
{
    tsr_dtype kept = table->dtype == TSR_BF16 ? TSR_BF16 : TSR_F32;
    return (tsr_array){kept, table->shape[0], table->shape[1]};
}

/* ---- buffers ---- */

static tsr_status walk_run(const tsr_decision *d, const tsr_topology_view *view, tsr_taker *taker,
                           const tsr_inputs *inputs, tsr_run_buffers *buffers)
{
    const tsr_layout *layout = &inputs->layout;
    uint64_t first =
        tsr_train_adapter_is_principal(&inputs->adapter) ? tsr_factors_count(layout) : 0;
    tsr_run_buffers unused = {0};
    tsr_run_buffers *b = buffers ? buffers : &unused;
    void *out = NULL;
    uint64_t widest = 0;
    for (int i = 0; i < layout->plan_unit_count; i++) {
        uint64_t count = d->units[i].trainable.gradient_count * (uint64_t)d->group;
        widest = count > widest ? count : widest;
    }
    uint64_t sums = TSR_RUN_SUMS_BYTES * (uint64_t)(layout->mixed_count + !layout->mixed_count);
    TSR_TRY(tsr_taker_take(taker, &b->sums, TSR_PLACE_DEVICE, "step sums",
                           "loss and tokens of a step", tsr_array_of_bytes(sums)));
    if (d->train && !layout->mixed_count) {
        TSR_TRY(tsr_taker_take(taker, &out, TSR_PLACE_HOST, "gathered adapter of a unit",
                               "for saving", (tsr_array){TSR_F32, widest, 1}));
        b->unit = out;
        uint64_t whole = view->rank == 0 ? layout->trainable_count + first : 0;
        out = NULL;
        TSR_TRY(tsr_taker_take(taker, &out, TSR_PLACE_HOST, "whole adapter",
                               "for saving, on rank 0", (tsr_array){TSR_F32, whole, 1}));
        b->adapter = out;
    }
    if (first)
        TSR_TRY(tsr_taker_take(taker, &out, TSR_PLACE_NODE, "first A and B",
                               "what the base is without (pissa), one copy a node",
                               (tsr_array){TSR_F32, first, 1}));
    static const char why[] = "rows are looked up by the host, one copy a node";
    if (layout->layer_rows)
        TSR_TRY(tsr_taker_take(taker, &out, TSR_PLACE_NODE, "embedding of all layers", why,
                               tsr_host_table(layout->layer_rows)));
    if (layout->embedding_whole) /* it is trained, in units */
        return TSR_OK;
    return tsr_taker_take(taker, &out, TSR_PLACE_NODE, "embedding", why,
                          tsr_host_table(layout->embedding));
}

tsr_status tsr_decision_walk(tsr_decision *decision, const tsr_inputs *inputs,
                             const tsr_topology_view *view, tsr_taker *taker, tsr_model *model,
                             tsr_run_buffers *buffers)
{
    TSR_TRY(tsr_store_walk(&decision->store, taker));
    taker->use = TSR_BUFFER_BASE;
    TSR_TRY(tsr_model_walk_base(model, &decision->model, tsr_taker_device, taker));
    taker->use = TSR_BUFFER_OWN;
    TSR_TRY(tsr_model_walk(model, &decision->model, tsr_taker_device, tsr_taker_host, taker));
    taker->use = TSR_BUFFER_SCRATCH;
    TSR_TRY(
        tsr_model_walk_scratch(model, &decision->model, tsr_taker_device, tsr_taker_host, taker));
    taker->use = TSR_BUFFER_OWN;
    return walk_run(decision, view, taker, inputs, buffers);
}

/* ---- one choice ---- */

/* All but the units, whose layout is the same for every choice. */
static void forget(tsr_decision *d)
{
    tsr_memory_plan_free(&d->memory);
    tsr_store_free(&d->store);
    tsr_plan_destroy(d->plan);
    tsr_layer_programs_free(d->programs);
    free(d->uses);
    d->programs = NULL;
    d->uses = NULL;
    d->plan = NULL;
}

void tsr_decide_clear(tsr_decision *d, const tsr_layout *layout)
{
    forget(d);
    tsr_layout_units_free(d->units, layout->plan_unit_count);
    d->units = NULL;
}

/* Whether number i of `all` is one of `some` that are evenly spread among them. */
static bool is_among(int64_t i, int64_t some, int64_t all)
{
    return (i + 1) * some / all > i * some / all;
}

static void set_homes(tsr_decision *d, const tsr_inputs *inputs, const tsr_choice *c)
{
    static const tsr_home homes[] = {[TSR_CONFIG_OFFLOAD_NONE] = TSR_HOME_SHARDED,
                                     [TSR_CONFIG_OFFLOAD_SHARDED] = TSR_HOME_HOST_SHARDED,
                                     [TSR_CONFIG_OFFLOAD_FULL] = TSR_HOME_HOST_FULL};
    int64_t units = inputs->layout.plan_unit_count;
    if (d->room.base) {
        memcpy(d->home, d->room.base->home, (size_t)units * sizeof *d->home);
        d->resident_count = d->room.base->resident_count;
        return;
    }
    d->resident_count = 0;
    for (int64_t i = 0; i < units; i++) {
        /* Evenly spread: while a resident unit computes, the others' copies catch up. */
        bool stays = is_among(i, c->resident, units);
        d->home[i] = stays ? TSR_HOME_RESIDENT : homes[c->offload];
        d->resident_count += stays;
    }
}

static void set_kept(tsr_decision *d, const tsr_inputs *inputs, const tsr_choice *c)
{
    int layers = inputs->layout.layer_count;
    int stride = (int)lround(sqrt(layers - inputs->layout.first_trained));
    d->selective_count = d->full_count = 0;
    d->stride = c->steps > d->rungs->step_count && stride > 1 ? stride : 0;
    tsr_rungs_after(d->rung, d->rungs, c->steps, c->partly);
    for (int i = 0; i < layers; i++) {
        tsr_again again = tsr_rungs_again(d->rungs, i, d->rung[i]);
        d->keep[i] = d->rungs->ladder[d->rungs->of_layer[i]].rung[d->rung[i]].keep;
        d->selective_count += again == TSR_AGAIN_PART;
        d->full_count += again == TSR_AGAIN_ALL;
    }
}

static tsr_graph_rule graph_rule(const tsr_config *config)
{
    static const tsr_graph_rule rule[] = {[TSR_CONFIG_GRAPH_AUTO] = TSR_GRAPHS_AUTO,
                                          [TSR_CONFIG_GRAPH_FIXED] = TSR_GRAPHS_PLAIN,
                                          [TSR_CONFIG_GRAPH_FLOPS] = TSR_GRAPHS_PRICED,
                                          [TSR_CONFIG_GRAPH_TIME] = TSR_GRAPHS_TIMED};
    return rule[config->lora_graph];
}

static void set_decoded(tsr_decision *d, const tsr_inputs *inputs, const tsr_choice *c)
{
    int64_t wanted = inputs->config.decoded_layers < 0 ? c->decoded : inputs->config.decoded_layers;
    int layers = inputs->layout.layer_count;
    if (d->room.base)
        wanted = d->room.base->decoded_count;
    d->model.decoded_layers = wanted < layers ? (int)wanted : layers;
    d->decoded_count = 0;
    for (int i = tsr_model_first_decoded(&d->model); i < layers; i++)
        d->decoded_count += tsr_model_decoded_bytes(&d->model, i) > 0;
}

static void set_model(tsr_decision *d, const tsr_inputs *inputs, const tsr_choice *c)
{
    const tsr_config *config = &inputs->config;
    d->model = (tsr_model_options){
        .layout = &inputs->layout,
        .units = d->units,
        .saved_bytes = d->saved_bytes,
        .ranks = d->group,
        .kernels = inputs->cuda ? tsr_kernels_cuda() : tsr_kernels_cpu(),
        .dtype = inputs->compute,
        .fp8 = config->base_compute != TSR_CONFIG_BASE_COMPUTE_DTYPE,
        .fp8_fast = config->base_compute == TSR_CONFIG_BASE_COMPUTE_FP8_FAST,
        .bounds = tsr_inputs_own_bounds(config, &c->bounds),
        .step_micro = tsr_inputs_step_micro(inputs, d->group * d->replicas),
        .keep = d->keep,
        .stride = d->stride,
        .tile_rows = config->context_span,
        .spans = tsr_inputs_spans(config),
        .train = d->train,
        .dropout = d->train ? config->lora_dropout : 0,
        .adapter = inputs->mixed,
        .label_smoothing = config->label_smoothing_factor,
        .objective = config->objective.kind == TSR_OBJECTIVE_SFT ? NULL : &config->objective,
        .capacity_factor = config->moe_capacity_factor,
        .auxiliary = config->router_aux_loss_coef > 0,
        .router_bias = tsr_inputs_has_router_bias(inputs, d->train),
        .seed = (uint64_t)config->seed,
        .graph_rule = graph_rule(config),
        .atomics = !config->deterministic,
        .wider = c->wider,
        .contributions = tsr_inputs_contributions(inputs, &c->bounds)};
    set_decoded(d, inputs, c);
}

/* Evenly spread: a copy then hides behind several layers, and the links are at work during the whole forward and the whole
 * backward. Of Qwen3-30B-A3B's 48 layers, attention's adapters alone, 8192 tokens in 24 GiB, 15 take 340 ms a step; the best
 * number of the first layers 351, of the last ones 356. Which layer is the first hardly matters. */
static void set_saved(tsr_decision *d, const tsr_layout *layout, int offloaded)
{
    int first = layout->first_trained, layers = layout->layer_count - first;
    d->offloaded_count = !d->train ? 0 : offloaded < layers ? offloaded : layers;
    for (int i = 0; i < layers; i++)
        if (is_among(i, d->offloaded_count, layers))
            d->saved_bytes[first + i] = tsr_model_kept_bytes(&d->model, first + i);
}

static tsr_status set_units(tsr_decision *d, const tsr_inputs *inputs, const tsr_choice *c)
{
    const tsr_layout *layout = &inputs->layout;
    if (!d->units)
        TSR_TRY(tsr_layout_units(&d->units, layout, d->home, d->group));
    for (int i = 0; i < layout->plan_unit_count; i++) {
        d->units[i].home = d->home[i];
        d->units[i].keeps_trainable =
            c->keeps && i >= layout->embedding_count && i < layout->plan_head_unit;
    }
    memset(d->saved_bytes, 0, (size_t)layout->layer_count * sizeof *d->saved_bytes);
    set_model(d, inputs, c);
    for (int i = 0; i < layout->plan_unit_count; i++)
        d->units[i].wide = d->train && tsr_model_tiles(&d->model);
    TSR_TRY(tsr_model_programs(&d->programs, &d->model));
    d->model.programs = d->programs;
    set_saved(d, layout, c->offloaded);
    return tsr_model_uses(&d->uses, &d->model);
}

uint64_t tsr_decision_loads(const tsr_decision *decision, const tsr_layout *layout)
{
    return decision->train ? tsr_model_load_count(layout) : 0;
}

/* Never where adapters share micro-batches: an adapter's rows of a step may be in several of them. total_batch_size makes more
 * micro-batches of smaller ones, so the answer is no for any but the job's own size. */
static bool has_one_round(const tsr_decision *d, const tsr_inputs *inputs, const tsr_choice *c)
{
    int ranks = d->group * d->replicas;
    bool others = inputs->config.total_batch_size && c->bounds.tokens != inputs->bounds.tokens;
    return d->train && !tsr_inputs_mixes(inputs) && !others &&
           tsr_inputs_step_micro(inputs, ranks) <= tsr_inputs_groups(inputs, ranks);
}

tsr_status tsr_decide_try(tsr_decision *d, const tsr_inputs *inputs, const tsr_topology_view *view,
                          const tsr_choice *c)
{
    const tsr_layout *layout = &inputs->layout;
    forget(d);
    set_homes(d, inputs, c);
    set_kept(d, inputs, c);
    d->state_offloaded = d->train && c->state;
    TSR_TRY(set_units(d, inputs, c));
    tsr_plan_options options = {.units = d->units,
                                .unit_count = layout->plan_unit_count,
                                .layer_count = layout->layer_count,
                                .layers = d->uses,
                                .head_unit = layout->plan_head_unit,
                                .saved_bytes = d->saved_bytes,
                                .ranks = d->group,
                                .replicas = d->replicas,
                                .slots = (int)inputs->config.slots,
                                .train = d->train,
                                .one_round = has_one_round(d, inputs, c),
                                .stride = d->stride,
                                .mixed = layout->mixed_count > 0,
                                .ends_alone = tsr_inputs_mixes(inputs) && !layout->mixed_count,
                                .more_words = tsr_decision_loads(d, layout) +
                                              (d->model.objective ? TSR_PREFERENCE_WORDS : 0)};
    if (d->state_offloaded)
        tsr_decide_chunks(&options, d, layout, inputs->config.optim == TSR_CONFIG_OPTIM_ADAMW_8BIT);
    TSR_TRY(tsr_plan_outline(&d->plan, &options));
    TSR_TRY(tsr_store_make(&d->store, d->plan, view->rank % d->group));
    tsr_taker taker = {.plan = &d->memory};
    return tsr_decision_walk(d, inputs, view, &taker, NULL, NULL);
}

uint64_t tsr_decide_bytes(const tsr_decision *d)
{
    return d->memory.total[TSR_PLACE_DEVICE] + d->reserve;
}

/* ---- choosing ---- */

void tsr_decide_steps(int *first, int *last, const tsr_decision *d, tsr_config_recompute mode)
{
    int all = d->rungs->step_count;
    bool some = mode == TSR_CONFIG_RECOMPUTE_AUTO || mode == TSR_CONFIG_RECOMPUTE_SELECTIVE;
    *first = mode == TSR_CONFIG_RECOMPUTE_SQRT && d->train ? all + 1
             : mode == TSR_CONFIG_RECOMPUTE_FULL           ? all
                                                           : 0;
    *last = some ? all : *first;
}

/* A stride, which costs another forward, is for what does not fit otherwise. */
int tsr_decide_least(const tsr_decision *d, tsr_config_recompute mode, bool offloaded)
{
    int first, last;
    tsr_decide_steps(&first, &last, d, mode);
    return mode == TSR_CONFIG_RECOMPUTE_AUTO && d->train && !offloaded ? last + 1 : last;
}

tsr_status tsr_decide_offload_fewer(tsr_decision *d, const tsr_inputs *inputs,
                                    const tsr_topology_view *view, tsr_choice *c)
{
    int low = 0, high = d->offloaded_count;
    while (low < high) {
        c->offloaded = (low + high) / 2;
        TSR_TRY(tsr_decide_try(d, inputs, view, c));
        if (tsr_decide_bytes(d) <= d->budget)
            high = c->offloaded;
        else
            low = c->offloaded + 1;
    }
    c->offloaded = high;
    return tsr_decide_try(d, inputs, view, c);
}

static tsr_status try_steps(bool *fits, tsr_decision *d, const tsr_inputs *inputs,
                            const tsr_topology_view *view, tsr_choice *c, int steps)
{
    c->steps = steps;
    TSR_TRY(tsr_decide_try(d, inputs, view, c));
    if (c->some && tsr_decide_bytes(d) <= d->budget && !tsr_decide_may_fit(d, inputs, c))
        TSR_TRY(tsr_decide_offload_fewer(d, inputs, view, c));
    *fits = tsr_decide_may_fit(d, inputs, c);
    return TSR_OK;
}

/* Between *low, which does not fit, and *high, which does, until they are neighbours. of: the steps that numbers stand
 * for; NULL: themselves. */
static tsr_status narrow(int *low, int *high, const int *of, tsr_decision *d,
                         const tsr_inputs *inputs, const tsr_topology_view *view, tsr_choice *c)
{
    while (*high - *low > 1) {
        int middle = (*low + *high) / 2;
        bool enough;
        TSR_TRY(try_steps(&enough, d, inputs, view, c, of ? of[middle] : middle));
        *(enough ? high : low) = middle;
    }
    return TSR_OK;
}

tsr_status tsr_decide_raise(bool *fits, tsr_decision *d, const tsr_inputs *inputs,
                            const tsr_topology_view *view, tsr_choice *c, int high)
{
    int low = c->steps;
    TSR_TRY(try_steps(fits, d, inputs, view, c, low));
    if (*fits || low >= high)
        return TSR_OK;
    TSR_TRY(try_steps(fits, d, inputs, view, c, high));
    if (!*fits)
        return TSR_OK;
    TSR_TRY(narrow(&low, &high, NULL, d, inputs, view, c));
    return try_steps(fits, d, inputs, view, c, high);
}

/* The fewest steps that fit. Memory falls from one end to the next, but for a model of a few small layers, whose
 * recomputation may need more scratch than it saves; and from step to step between two, but for the first, which
 * brings the scratch that a lower rung needs. *fits tells
 * whether any does; the decision then holds it, otherwise it holds the most frugal one. */
tsr_status tsr_decide_search(bool *fits, tsr_decision *d, const tsr_inputs *inputs,
                             const tsr_topology_view *view, tsr_choice *c,
                             tsr_config_recompute mode)
{
    int low, high, least = tsr_decide_least(d, mode, c->offloaded);
    tsr_decide_steps(&low, &high, d, mode);
    if (c->offloaded)
        low = high;
    TSR_TRY(try_steps(fits, d, inputs, view, c, low));
    if (*fits || low == high)
        return TSR_OK;
    TSR_TRY(try_steps(fits, d, inputs, view, c, high));
    if (!*fits && least > high)
        return try_steps(fits, d, inputs, view, c, least);
    if (!*fits)
        return TSR_OK;
    int first = 0, last = d->rungs->end_count - 1;
    TSR_TRY(narrow(&first, &last, d->rungs->end, d, inputs, view, c));
    low = d->rungs->end[first];
    high = d->rungs->end[last];
    TSR_TRY(narrow(&low, &high, NULL, d, inputs, view, c));
    return try_steps(fits, d, inputs, view, c, high);
}

/* *number of `c`: the most up to `high` whose plan is within `room` bytes of the device. */
static tsr_status fill(tsr_decision *d, const tsr_inputs *inputs, const tsr_topology_view *view,
                       tsr_choice *c, int64_t *number, int64_t high, uint64_t room)
{
    int64_t low = 0;
    while (low < high) {
        *number = (low + high + 1) / 2;
        TSR_TRY(tsr_decide_try(d, inputs, view, c));
        if (tsr_decide_bytes(d) <= room)
            low = *number;
        else
            high = *number - 1;
    }
    *number = low;
    return tsr_decide_try(d, inputs, view, c);
}

tsr_status tsr_decide_fill(tsr_decision *d, const tsr_inputs *inputs, const tsr_topology_view *view,
                           tsr_choice *c, uint64_t room)
{
    return fill(d, inputs, view, c, &c->resident, inputs->layout.plan_unit_count, room);
}

tsr_status tsr_decide_fill_decoded(tsr_decision *d, const tsr_inputs *inputs,
                                   const tsr_topology_view *view, tsr_choice *c, uint64_t room)
{
    return fill(d, inputs, view, c, &c->decoded, inputs->layout.layer_count, room);
}

static void home_range(tsr_config_offload *first, tsr_config_offload *last,
                       tsr_config_offload offload)
{
    bool automatic = offload == TSR_CONFIG_OFFLOAD_AUTO;
    *first = automatic ? TSR_CONFIG_OFFLOAD_NONE : offload;
    *last = automatic ? TSR_CONFIG_OFFLOAD_SHARDED : offload;
}

int64_t tsr_decide_residents(const tsr_inputs *inputs)
{
    int64_t units = inputs->layout.plan_unit_count, wanted = inputs->config.resident_units;
    return wanted < 0 ? 0 : wanted < units ? wanted : units;
}

tsr_allowance tsr_decide_allowed(const tsr_config *config)
{
    return (tsr_allowance){.offload = config->offload,
                           .recompute = config->gradient_checkpointing,
                           .activations = config->activation_offloading,
                           .state = config->optimizer_offload};
}

bool tsr_decide_way(tsr_choice *c, int i, const tsr_allowance *allowed)
{
    tsr_config_offload first, last;
    home_range(&first, &last, allowed->offload);
    c->partly = allowed->recompute == TSR_CONFIG_RECOMPUTE_SELECTIVE;
    c->offload = i & 1 ? last : first;
    c->offloaded = i & 2 ? TSR_EVERY_LAYER : 0;
    c->some = c->offloaded && allowed->activations == TSR_CONFIG_CHOICE_AUTO;
    c->state = i & 4;
    return (first != last || !(i & 1)) &&
           !(c->offloaded && allowed->recompute == TSR_CONFIG_RECOMPUTE_SQRT) &&
           (allowed->activations == TSR_CONFIG_CHOICE_AUTO ||
            (c->offloaded > 0) == (allowed->activations == TSR_CONFIG_CHOICE_YES)) &&
           (allowed->state == TSR_CONFIG_CHOICE_AUTO ||
            c->state == (allowed->state == TSR_CONFIG_CHOICE_YES));
}

tsr_status tsr_decide_fits(bool *fits, tsr_decision *d, const tsr_inputs *inputs,
                           const tsr_topology_view *view, const tsr_batch_bounds *bounds,
                           const tsr_allowance *allowed)
{
    tsr_choice c = {.bounds = *bounds, .resident = tsr_decide_residents(inputs)};
    *fits = false;
    for (int i = 0; i < TSR_WAYS && !*fits; i++) {
        if (!tsr_decide_way(&c, i, allowed))
            continue;
        int low, high, least = tsr_decide_least(d, allowed->recompute, c.offloaded);
        tsr_decide_steps(&low, &high, d, allowed->recompute);
        TSR_TRY(try_steps(fits, d, inputs, view, &c, least));
        if (!*fits && low < high && !c.offloaded)
            TSR_TRY(try_steps(fits, d, inputs, view, &c, low));
        if (!*fits && high < least) /* a stride of few layers saves nothing */
            TSR_TRY(try_steps(fits, d, inputs, view, &c, high));
    }
    return TSR_OK;
}

static tsr_status set_groups(tsr_decision *d, const tsr_config *config,
                             const tsr_topology_view *view)
{
    d->group = config->shard_group_size ? (int)config->shard_group_size : view->local_ranks;
    if (d->group > view->ranks || view->ranks % d->group)
        return tsr_fail(TSR_ECONFIG,
                        "%s: shard_group_size is %d, but the job has %d ranks; it must divide them",
                        tsr_config_where(config, "shard_group_size"), d->group, view->ranks);
    d->replicas = view->ranks / d->group;
    return TSR_OK;
}

/* With everything kept, to see what that and what less costs. */
static tsr_status make_rungs(tsr_decision *d, const tsr_inputs *inputs,
                             const tsr_topology_view *view, const tsr_speeds *speeds)
{
    const tsr_choice c = {.bounds = inputs->bounds};
    for (int i = 0; i < inputs->layout.layer_count; i++)
        d->keep[i] = TSR_KEEP_ALL;
    set_model(d, inputs, &c);
    TSR_TRY(tsr_model_programs(&d->programs, &d->model));
    return tsr_rungs_make(&d->rungs, inputs, d, view, speeds);
}

tsr_status tsr_decide_begin(tsr_decision *d, const tsr_inputs *inputs,
                            const tsr_topology_view *view, bool train, const tsr_room *room,
                            const tsr_speeds *speeds)
{
    const tsr_config *config = &inputs->config;
    size_t layers = (size_t)inputs->layout.layer_count;
    *d = (tsr_decision){.train = train,
                        .room = *room,
                        .budget = tsr_room_left(config, room),
                        .local_ranks = view->local_ranks,
                        .reserve = inputs->cuda ? TSR_CUDA_RESERVE_BYTES : 0,
                        .home = calloc((size_t)inputs->layout.plan_unit_count, sizeof *d->home),
                        .saved_bytes = calloc(layers, sizeof *d->saved_bytes),
                        .rung = calloc(layers, sizeof *d->rung),
                        .keep = calloc(layers, sizeof *d->keep)};
    if (!d->home || !d->rung || !d->keep || !d->saved_bytes)
        return tsr_fail(TSR_ENOMEM, "out of memory for the plan");
    if (config->gradient_checkpointing == TSR_CONFIG_RECOMPUTE_SQRT &&
        config->activation_offloading == TSR_CONFIG_CHOICE_YES)
        return tsr_fail(
            TSR_ECONFIG,
            "%s: activation_offloading moves the input of every layer to host memory, but "
            "with gradient_checkpointing: sqrt most have none; set it to full or auto",
            tsr_config_where(config, "gradient_checkpointing"));
    TSR_TRY(tsr_room_host(&d->host_budget, inputs, room));
    TSR_TRY(set_groups(d, config, view));
    return make_rungs(d, inputs, view, speeds);
}

void tsr_decision_free(tsr_decision *decision)
{
    if (decision->units)
        tsr_decide_clear(decision, decision->model.layout);
    free(decision->home);
    free(decision->rung);
    free(decision->keep);
    tsr_rungs_free(decision->rungs);
    free(decision->saved_bytes);
    *decision = (tsr_decision){0};
}
