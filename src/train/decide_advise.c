/*
 * decide_advise.c: what would fit: for a job that does not, and for a larger micro-batch.
 */
#include "train/decide_parts.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The choice that needs the least of all that the configuration allows. Host memory is not always
 * it: the slots that it needs may be larger than the shard on the device. */
static tsr_status most_frugal(tsr_decision *d, const tsr_inputs *inputs,
                              const tsr_topology_view *view)
{
    tsr_choice c = {.bounds = inputs->bounds, .resident = tsr_decide_residents(inputs)}, best = c;
    tsr_allowance allowed = tsr_decide_allowed(&inputs->config);
    int low;
    uint64_t least = UINT64_MAX;
    tsr_decide_degrade(&low, &c.degrade, d, allowed.recompute, inputs->layout.layer_count, true);
    for (int i = 0; i < TSR_WAYS; i++) {
        if (!tsr_decide_way(&c, i, &allowed))
            continue;
        TSR_TRY(tsr_decide_try(d, inputs, view, &c));
        if (tsr_decide_bytes(d) >= least)
            continue;
        least = tsr_decide_bytes(d);
        best = c;
    }
    return tsr_decide_try(d, inputs, view, &best);
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
    tsr_allowance allowed = tsr_decide_allowed(&inputs->config);
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        tsr_batch_bounds bounds = bounds_of(inputs, middle);
        bool fits;
        TSR_TRY(tsr_decide_search(&fits, d, inputs, view, &bounds, &allowed));
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
static bool widen(tsr_allowance *allowed, int i)
{
    tsr_allowance before = *allowed;
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
    tsr_allowance wider = tsr_decide_allowed(&inputs->config);
    bool fits = false;
    for (int i = 0; i < WIDENINGS && !fits; i++) {
        if (!widen(&wider, i))
            continue;
        TSR_TRY(tsr_decide_search(&fits, d, inputs, view, &inputs->bounds, &wider));
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

tsr_status tsr_decide_refuse(tsr_decision *d, const tsr_inputs *inputs,
                             const tsr_topology_view *view)
{
    tsr_text text = {0};
    TSR_TRY(most_frugal(d, inputs, view));
    uint64_t needed = tsr_decide_bytes(d);
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

tsr_status tsr_decide_most_tokens(int64_t *out, const tsr_inputs *inputs,
                                  const tsr_topology_view *view, bool train, uint64_t budget)
{
    tsr_decision d;
    tsr_allowance allowed = tsr_decide_allowed(&inputs->config);
    bool fits = true;
    int64_t low = 0, high = inputs->bounds.tokens;
    tsr_status status = tsr_decide_begin(&d, inputs, view, train, budget);
    while (status == TSR_OK && fits && low < TSR_MOST_TOKENS) {
        tsr_batch_bounds bounds = bounds_of(inputs, high);
        status = tsr_decide_search(&fits, &d, inputs, view, &bounds, &allowed);
        if (fits) {
            low = high;
            high *= 2;
        }
    }
    if (status == TSR_OK)
        status = fits ? (*out = TSR_MOST_TOKENS, TSR_OK)
                      : largest_tokens(out, &d, inputs, view, low, high);
    tsr_decide_clear(&d, &inputs->layout);
    tsr_decision_free(&d);
    return status;
}
