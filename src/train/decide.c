#include "train/decide.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

uint64_t tsr_embedding_bytes(const tsr_layout *layout)
{
    uint64_t element = layout->embedding->dtype == TSR_BF16 ? 2 : 4;
    return layout->config.vocab_size * layout->config.hidden_size * element;
}

/* ---- buffers ---- */

static tsr_status walk_run(const tsr_decision *d, const tsr_topology_view *view, tsr_taker *taker,
                           const tsr_layout *layout, tsr_run_buffers *buffers)
{
    tsr_run_buffers unused = {0};
    tsr_run_buffers *b = buffers ? buffers : &unused;
    void *out = NULL;
    uint64_t widest = 0;
    for (int i = 0; i < layout->unit_count; i++) {
        uint64_t count = d->units[i].trainable.gradient_count * (uint64_t)d->group;
        widest = count > widest ? count : widest;
    }
    TSR_TRY(
        tsr_taker_take(taker, &b->sums, TSR_PLACE_DEVICE, "step sums", TSR_RUN_SUMS_BYTES, NULL));
    if (d->train) {
        TSR_TRY(tsr_taker_take(taker, &out, TSR_PLACE_HOST, "gathered adapter of a unit",
                               widest * sizeof(float), "for saving"));
        b->unit = out;
        uint64_t whole = view->rank == 0 ? layout->trainable_count * sizeof(float) : 0;
        out = NULL;
        TSR_TRY(tsr_taker_take(taker, &out, TSR_PLACE_HOST, "whole adapter", whole, "for saving"));
        b->adapter = out;
    }
    return tsr_taker_take(taker, &out, TSR_PLACE_NODE, "embedding", tsr_embedding_bytes(layout),
                          "one copy a node");
}

tsr_status tsr_decision_walk(tsr_decision *decision, const tsr_inputs *inputs,
                             const tsr_topology_view *view, tsr_taker *taker, tsr_model *model,
                             tsr_run_buffers *buffers)
{
    TSR_TRY(tsr_store_walk(&decision->store, taker));
    TSR_TRY(tsr_model_walk(model, &decision->model, tsr_taker_device, tsr_taker_host, taker));
    return walk_run(decision, view, taker, &inputs->layout, buffers);
}

/* ---- one choice ---- */

/* What of a configuration is being tried. */
typedef struct {
    tsr_config_offload offload;
    int degrade;      /* layers made selective, then full: 0 .. 2 * layers */
    int64_t resident; /* units that stay on the device whole */
    bool activations; /* of layers are offloaded */
    bool state;       /* of the optimizer is */
    tsr_batch_bounds bounds;
} choice;

static void clear_choice(tsr_decision *d, const tsr_layout *layout)
{
    tsr_memory_plan_free(&d->memory);
    tsr_store_free(&d->store);
    tsr_plan_destroy(d->plan);
    tsr_layout_units_free(d->units, layout->unit_count);
    d->plan = NULL;
    d->units = NULL;
}

static void set_homes(tsr_decision *d, const tsr_inputs *inputs, const choice *c)
{
    static const tsr_home homes[] = {[TSR_CONFIG_OFFLOAD_NONE] = TSR_HOME_SHARDED,
                                     [TSR_CONFIG_OFFLOAD_SHARDED] = TSR_HOME_HOST_SHARDED,
                                     [TSR_CONFIG_OFFLOAD_FULL] = TSR_HOME_HOST_FULL};
    int64_t units = inputs->layout.unit_count;
    d->resident_count = 0;
    for (int64_t i = 0; i < units; i++) {
        /* Evenly spread: while a resident unit computes, the others' copies catch up. */
        bool stays = (i + 1) * c->resident / units > i * c->resident / units;
        d->home[i] = stays ? TSR_HOME_RESIDENT : homes[c->offload];
        d->resident_count += stays;
    }
}

static void set_recompute(tsr_decision *d, const tsr_inputs *inputs, int degrade)
{
    int layers = inputs->layout.layer_count;
    d->selective_count = d->full_count = 0;
    for (int i = 0; i < layers; i++) {
        tsr_recompute mode = degrade > layers + i ? TSR_RECOMPUTE_FULL
                             : degrade > i        ? TSR_RECOMPUTE_SELECTIVE
                                                  : TSR_RECOMPUTE_NONE;
        d->recompute[i] = mode;
        d->selective_count += mode == TSR_RECOMPUTE_SELECTIVE;
        d->full_count += mode == TSR_RECOMPUTE_FULL;
    }
}

static void set_model(tsr_decision *d, const tsr_inputs *inputs, const choice *c)
{
    const tsr_config *config = &inputs->config;
    d->model = (tsr_model_options){.layout = &inputs->layout,
                                   .units = d->units,
                                   .ranks = d->group,
                                   .kernels = inputs->cuda ? tsr_kernels_cuda() : tsr_kernels_cpu(),
                                   .dtype = inputs->compute,
                                   .bounds = c->bounds,
                                   .recompute = d->recompute,
                                   .train = d->train,
                                   .dropout = d->train ? config->lora_dropout : 0,
                                   .seed = (uint64_t)config->seed};
}

/* A sixty-fourth of what this rank owns, so that the buffers are a 32nd of the state however large it
 * is, and a step has at most 64 chunks; never so small that issuing them is all that takes time. */
static uint64_t chunk_elements(const tsr_decision *d, const tsr_layout *layout)
{
    uint64_t owned = 0, least = 1 << 14;
    for (int i = 0; i < layout->unit_count; i++)
        owned += d->units[i].trainable.gradient_count;
    uint64_t chunk = tsr_align_up((owned + 63) / 64, TSR_GRANULE_ELEMENTS);
    return chunk > least ? chunk : least;
}

/* Compiles the plan and writes every buffer down. */
static tsr_status try_choice(tsr_decision *d, const tsr_inputs *inputs,
                             const tsr_topology_view *view, const choice *c)
{
    const tsr_layout *layout = &inputs->layout;
    clear_choice(d, layout);
    set_homes(d, inputs, c);
    set_recompute(d, inputs, c->degrade);
    d->activations_offloaded = d->train && c->activations;
    d->state_offloaded = d->train && c->state;
    TSR_TRY(tsr_layout_units(&d->units, layout, d->home, d->group));
    set_model(d, inputs, c);
    for (int i = 0; d->activations_offloaded && i < layout->layer_count; i++)
        d->units[i].saved_bytes = tsr_model_kept_bytes(&d->model, i);
    tsr_plan_options options = {.units = d->units,
                                .unit_count = layout->unit_count,
                                .layer_count = layout->layer_count,
                                .ranks = d->group,
                                .replicas = d->replicas,
                                .slots = (int)inputs->config.slots,
                                .train = d->train};
    if (d->state_offloaded)
        options.chunk_elements = chunk_elements(d, layout);
    TSR_TRY(tsr_plan_compile(&d->plan, &options));
    TSR_TRY(tsr_store_make(&d->store, d->plan, view->rank % d->group));
    tsr_taker taker = {.plan = &d->memory};
    return tsr_decision_walk(d, inputs, view, &taker, NULL, NULL);
}

static uint64_t device_bytes(const tsr_decision *d)
{
    return d->memory.total[TSR_PLACE_DEVICE] + d->reserve;
}

/* ---- choosing ---- */

/* The range of `degrade` that gradient_checkpointing allows. What is offloaded is as little as it may
 * be: computing a layer again takes a fifth of the time that a card's link takes for all that it
 * saves, while its input alone travels unseen. */
static void degrade_range(int *first, int *last, const tsr_decision *d, tsr_config_recompute mode,
                          int layers, bool offloaded)
{
    *first = mode == TSR_CONFIG_RECOMPUTE_FULL        ? 2 * layers
             : mode == TSR_CONFIG_RECOMPUTE_SELECTIVE ? layers
                                                      : 0;
    *last = mode == TSR_CONFIG_RECOMPUTE_AUTO ? 2 * layers : *first;
    if (offloaded)
        *first = *last;
    if (!d->train)
        *first = *last = 0;
}

/* Memory falls as `degrade` grows: the smallest one that fits, by bisection. *fits tells whether
 * any does; the decision then holds it, otherwise it holds the most frugal one. */
static tsr_status search(bool *fits, tsr_decision *d, const tsr_inputs *inputs,
                         const tsr_topology_view *view, choice *c, tsr_config_recompute mode)
{
    int low, high;
    degrade_range(&low, &high, d, mode, inputs->layout.layer_count, c->activations);
    c->degrade = high;
    TSR_TRY(try_choice(d, inputs, view, c));
    *fits = device_bytes(d) <= d->budget;
    if (!*fits)
        return TSR_OK;
    while (low < high) {
        int middle = (low + high) / 2;
        c->degrade = middle;
        TSR_TRY(try_choice(d, inputs, view, c));
        if (device_bytes(d) <= d->budget)
            high = middle;
        else
            low = middle + 1;
    }
    c->degrade = high;
    return try_choice(d, inputs, view, c);
}

static void home_range(tsr_config_offload *first, tsr_config_offload *last,
                       tsr_config_offload offload)
{
    bool automatic = offload == TSR_CONFIG_OFFLOAD_AUTO;
    *first = automatic ? TSR_CONFIG_OFFLOAD_NONE : offload;
    *last = automatic ? TSR_CONFIG_OFFLOAD_SHARDED : offload;
}

/* The most units that may stay on the device, as the configuration says; auto: none. */
static int64_t fixed_residents(const tsr_inputs *inputs)
{
    int64_t units = inputs->layout.unit_count, wanted = inputs->config.resident_units;
    return wanted < 0 ? 0 : wanted < units ? wanted : units;
}

/* resident_units auto: what a memory_budget that was given leaves free is used for units that need
 * no copy and no gather any more. */
static tsr_status add_residents(tsr_decision *d, const tsr_inputs *inputs,
                                const tsr_topology_view *view, choice c)
{
    bool moved = c.offload != TSR_CONFIG_OFFLOAD_NONE || d->group > 1;
    int64_t low = 0, high = inputs->layout.unit_count;
    if (inputs->config.resident_units >= 0 || !inputs->config.memory_budget || !moved)
        return TSR_OK;
    while (low < high) {
        c.resident = (low + high + 1) / 2;
        TSR_TRY(try_choice(d, inputs, view, &c));
        if (device_bytes(d) <= d->budget)
            low = c.resident;
        else
            high = c.resident - 1;
    }
    c.resident = low;
    return try_choice(d, inputs, view, &c);
}

/* What the keys of memory allow. */
typedef struct {
    tsr_config_offload offload;
    tsr_config_recompute recompute;
    tsr_config_choice activations, state;
} allowance;

static allowance allowed_by(const tsr_config *config)
{
    return (allowance){.offload = config->offload,
                       .recompute = config->gradient_checkpointing,
                       .activations = config->activation_offloading,
                       .state = config->optimizer_offload};
}

/* The ways to use host memory, the cheapest first: the base, which hides behind the layers; the
 * activations of layers, which hide as well where only their inputs are kept, but go both ways; the
 * optimizer's state, for which the end of every step waits. */
#define WAYS 8

/* Sets way number `i`; whether it is allowed. */
static bool set_way(choice *c, int i, const allowance *allowed)
{
    tsr_config_offload first, last;
    home_range(&first, &last, allowed->offload);
    c->offload = i & 1 ? last : first;
    c->activations = i & 2;
    c->state = i & 4;
    return (first != last || !(i & 1)) &&
           (allowed->activations == TSR_CONFIG_CHOICE_AUTO ||
            c->activations == (allowed->activations == TSR_CONFIG_CHOICE_YES)) &&
           (allowed->state == TSR_CONFIG_CHOICE_AUTO ||
            c->state == (allowed->state == TSR_CONFIG_CHOICE_YES));
}

static tsr_status search_ways(bool *fits, tsr_decision *d, const tsr_inputs *inputs,
                              const tsr_topology_view *view, const tsr_batch_bounds *bounds,
                              const allowance *allowed)
{
    choice c = {.bounds = *bounds, .resident = fixed_residents(inputs)};
    *fits = false;
    for (int i = 0; i < WAYS; i++) {
        if (!set_way(&c, i, allowed))
            continue;
        TSR_TRY(search(fits, d, inputs, view, &c, allowed->recompute));
        if (*fits)
            return add_residents(d, inputs, view, c);
    }
    return TSR_OK;
}

/* The choice that needs the least of all that the configuration allows. Host memory is not always
 * it: the slots that it needs may be larger than the shard on the device. */
static tsr_status most_frugal(tsr_decision *d, const tsr_inputs *inputs,
                              const tsr_topology_view *view)
{
    choice c = {.bounds = inputs->bounds, .resident = fixed_residents(inputs)}, best = c;
    allowance allowed = allowed_by(&inputs->config);
    int low;
    uint64_t least = UINT64_MAX;
    degrade_range(&low, &c.degrade, d, allowed.recompute, inputs->layout.layer_count, true);
    for (int i = 0; i < WAYS; i++) {
        if (!set_way(&c, i, &allowed))
            continue;
        TSR_TRY(try_choice(d, inputs, view, &c));
        if (device_bytes(d) >= least)
            continue;
        least = device_bytes(d);
        best = c;
    }
    return try_choice(d, inputs, view, &best);
}

static void print_bytes(tsr_text *out, uint64_t bytes)
{
    if (bytes >= 1ull << 30)
        tsr_text_printf(out, "%.2f GiB", (double)bytes / (double)(1ull << 30));
    else
        tsr_text_printf(out, "%.2f MiB", (double)bytes / (double)(1ull << 20));
}

static void print_largest(tsr_text *out, const tsr_memory_plan *memory)
{
    uint64_t below = UINT64_MAX;
    for (int shown = 0; shown < 3; shown++) {
        const tsr_buffer *best = NULL;
        for (int i = 0; i < memory->count; i++) {
            const tsr_buffer *b = &memory->buffer[i];
            if (b->place == TSR_PLACE_DEVICE && b->bytes < below &&
                (!best || b->bytes > best->bytes))
                best = b;
        }
        if (!best)
            return;
        tsr_text_printf(out, "%s%s (", shown ? ", " : "", best->name);
        print_bytes(out, best->bytes);
        tsr_text_puts(out, ")");
        below = best->bytes;
    }
}

/* The job's bounds with micro-batches of another size. What is added may be labels, and rows of the
 * longest that there are. */
static tsr_batch_bounds bounds_of(const tsr_inputs *inputs, int64_t tokens)
{
    tsr_batch_bounds b = inputs->bounds;
    int64_t more = tokens > b.tokens ? tokens - b.tokens : 0;
    b.documents += (more + b.longest - 1) / b.longest;
    b.label_rows += more;
    b.label_rows = b.label_rows < tokens ? b.label_rows : tokens;
    b.longest = b.longest < tokens ? b.longest : tokens;
    b.tokens = tokens;
    return b;
}

/* The largest micro-batch, in tokens, that fits: `low` does or is 0, `high` does not. */
static tsr_status largest_tokens(int64_t *out, tsr_decision *d, const tsr_inputs *inputs,
                                 const tsr_topology_view *view, int64_t low, int64_t high)
{
    allowance allowed = allowed_by(&inputs->config);
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        tsr_batch_bounds bounds = bounds_of(inputs, middle);
        bool fits;
        TSR_TRY(search_ways(&fits, d, inputs, view, &bounds, &allowed));
        if (fits)
            low = middle;
        else
            high = middle;
    }
    *out = low;
    return TSR_OK;
}

/* Keys that may be set to auto, each with those before it. */
static const char *const widening[] = {
    "gradient_checkpointing: auto",
    "offload: auto with gradient_checkpointing: auto",
    "activation_offloading: auto with offload: auto and gradient_checkpointing: auto",
    "optimizer_offload: auto with offload, activation_offloading and gradient_checkpointing: auto",
};
#define WIDENINGS (int)(sizeof widening / sizeof *widening)

/* Whether widening number `i` allows more than the one before. */
static bool widen(allowance *allowed, int i)
{
    allowance before = *allowed;
    if (i == 0)
        allowed->recompute = TSR_CONFIG_RECOMPUTE_AUTO;
    if (i == 1 && allowed->offload != TSR_CONFIG_OFFLOAD_SHARDED)
        allowed->offload = TSR_CONFIG_OFFLOAD_AUTO;
    if (i == 2 && allowed->activations == TSR_CONFIG_CHOICE_NO)
        allowed->activations = TSR_CONFIG_CHOICE_AUTO;
    if (i == 3 && allowed->state == TSR_CONFIG_CHOICE_NO)
        allowed->state = TSR_CONFIG_CHOICE_AUTO;
    return memcmp(&before, allowed, sizeof before) != 0;
}

/* What to write in the configuration, cheapest first. */
static tsr_status suggest(tsr_text *out, tsr_decision *d, const tsr_inputs *inputs,
                          const tsr_topology_view *view, uint64_t needed)
{
    allowance wider = allowed_by(&inputs->config);
    bool fits = false;
    for (int i = 0; i < WIDENINGS && !fits; i++) {
        if (!widen(&wider, i))
            continue;
        TSR_TRY(search_ways(&fits, d, inputs, view, &inputs->bounds, &wider));
        if (fits) {
            tsr_text_printf(out, "%s fits", widening[i]);
            return TSR_OK;
        }
    }
    int64_t tokens = 0;
    TSR_TRY(largest_tokens(&tokens, d, inputs, view, 0, inputs->bounds.tokens));
    if (tokens > 0)
        tsr_text_printf(out,
                        "micro-batches of at most %" PRId64 " tokens would fit (the largest has "
                        "%" PRId64 "): lower per_device_train_batch_size or max_length; or ",
                        tokens, inputs->bounds.tokens);
    tsr_text_printf(out, "memory_budget: %" PRIu64 "MiB fits as it is",
                    (needed + (1 << 20) - 1) >> 20);
    return TSR_OK;
}

static tsr_status refuse(tsr_decision *d, const tsr_inputs *inputs, const tsr_topology_view *view)
{
    tsr_text text = {0};
    TSR_TRY(most_frugal(d, inputs, view));
    uint64_t needed = device_bytes(d);
    tsr_text_printf(&text, "%s: memory_budget allows ",
                    tsr_config_where(&inputs->config, "memory_budget"));
    print_bytes(&text, d->budget);
    tsr_text_puts(&text, " a rank, but this job needs at least ");
    print_bytes(&text, needed);
    tsr_text_puts(&text, "; its largest buffers are ");
    print_largest(&text, &d->memory);
    tsr_text_puts(&text, ". Smallest change: ");
    tsr_status status = suggest(&text, d, inputs, view, needed);
    if (status == TSR_OK)
        status = tsr_fail(TSR_ECONFIG, "%s", tsr_text_string(&text));
    tsr_text_free(&text);
    return status;
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

/* A decision with nothing decided; freed by tsr_decision_free whether or not this fails. */
static tsr_status begin(tsr_decision *d, const tsr_inputs *inputs, const tsr_topology_view *view,
                        bool train, uint64_t budget)
{
    const tsr_config *config = &inputs->config;
    *d = (tsr_decision){.train = train,
                        .budget = config->memory_budget ? config->memory_budget : budget,
                        .reserve = inputs->cuda ? TSR_CUDA_RESERVE_BYTES : 0,
                        .home = calloc((size_t)inputs->layout.unit_count, sizeof *d->home),
                        .recompute =
                            calloc((size_t)inputs->layout.layer_count, sizeof *d->recompute)};
    if (!d->home || !d->recompute)
        return tsr_fail(TSR_ENOMEM, "out of memory for the plan");
    return set_groups(d, config, view);
}

tsr_status tsr_decide(tsr_decision *out, const tsr_inputs *inputs, const tsr_topology_view *view,
                      bool train, uint64_t budget)
{
    tsr_decision d;
    allowance allowed = allowed_by(&inputs->config);
    bool fits = false;
    tsr_status status = begin(&d, inputs, view, train, budget);
    if (status == TSR_OK)
        status = search_ways(&fits, &d, inputs, view, &inputs->bounds, &allowed);
    if (status == TSR_OK && !fits)
        status = refuse(&d, inputs, view);
    if (status < 0) {
        clear_choice(&d, &inputs->layout);
        tsr_decision_free(&d);
        return status;
    }
    *out = d;
    return TSR_OK;
}

tsr_status tsr_decide_most_tokens(int64_t *out, const tsr_inputs *inputs,
                                  const tsr_topology_view *view, bool train, uint64_t budget)
{
    tsr_decision d;
    allowance allowed = allowed_by(&inputs->config);
    bool fits = true;
    int64_t low = 0, high = inputs->bounds.tokens;
    tsr_status status = begin(&d, inputs, view, train, budget);
    while (status == TSR_OK && fits && low < TSR_MOST_TOKENS) {
        tsr_batch_bounds bounds = bounds_of(inputs, high);
        status = search_ways(&fits, &d, inputs, view, &bounds, &allowed);
        if (fits) {
            low = high;
            high *= 2;
        }
    }
    if (status == TSR_OK)
        status = fits ? (*out = TSR_MOST_TOKENS, TSR_OK)
                      : largest_tokens(out, &d, inputs, view, low, high);
    clear_choice(&d, &inputs->layout);
    tsr_decision_free(&d);
    return status;
}

void tsr_decision_free(tsr_decision *decision)
{
    if (decision->units)
        clear_choice(decision, decision->model.layout);
    free(decision->home);
    free(decision->recompute);
    *decision = (tsr_decision){0};
}
