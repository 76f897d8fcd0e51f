/*
 * advise.c: what would fit: for a job that does not, and the largest that does.
 */
#include "base/log.h"
#include "inputs/shared.h"
#include "planner/parts.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* As many units of a base in host memory stay on the device as it holds. */
static tsr_status fill_device(tsr_decision *d, const tsr_inputs *inputs,
                              const tsr_topology_view *view, tsr_choice *c)
{
    if (c->offload == TSR_CONFIG_OFFLOAD_NONE || inputs->config.resident_units >= 0)
        return TSR_OK;
    return tsr_decide_fill(d, inputs, view, c, d->budget);
}

/* The choice that needs the least of all that the configuration allows: of the device, or of those that fit it of the
 * host. Host memory is not always it: the slots that it needs may be larger than the shard on the device. */
static tsr_status most_frugal(tsr_decision *d, const tsr_inputs *inputs,
                              const tsr_topology_view *view)
{
    tsr_choice c = {.bounds = inputs->bounds, .resident = tsr_decide_residents(inputs)}, best = c;
    tsr_allowance allowed = tsr_decide_allowed(&inputs->config);
    uint64_t least = UINT64_MAX, least_host = UINT64_MAX;
    for (int i = 0; i < TSR_WAYS; i++) {
        if (!tsr_decide_way(&c, i, &allowed))
            continue;
        c.steps = tsr_decide_least(d, allowed.recompute, c.offloaded);
        c.resident = tsr_decide_residents(inputs);
        TSR_TRY(tsr_decide_try(d, inputs, view, &c));
        uint64_t device = tsr_decide_bytes(d);
        if (device <= d->budget && !tsr_decide_is_within(d)) {
            if (c.some)
                TSR_TRY(tsr_decide_offload_fewer(d, inputs, view, &c));
            TSR_TRY(fill_device(d, inputs, view, &c));
            device = d->budget; /* as good as any other that fits */
        }
        uint64_t host = tsr_decide_host_bytes(d);
        if (device > least || (device == least && host >= least_host))
            continue;
        least = device;
        least_host = host;
        best = c;
    }
    return tsr_decide_try(d, inputs, view, &best);
}

void tsr_decide_put_bytes(tsr_text *out, uint64_t bytes)
{
    if (bytes >= 1ull << 30)
        tsr_text_printf(out, "%.2f GiB", (double)bytes / (double)(1ull << 30));
    else
        tsr_text_printf(out, "%.2f MiB", (double)bytes / (double)(1ull << 20));
}

/* The three largest uses of a place, and the rest. */
static tsr_status print_largest(tsr_text *out, const tsr_decision *d, tsr_place place)
{
    tsr_share *shares = calloc((size_t)d->memory.count + 1, sizeof *shares);
    if (!shares)
        return tsr_fail(TSR_ENOMEM, "out of memory for the plan");
    int count = tsr_decide_shares(shares, d, place);
    for (int i = 0; i < count && i < 3; i++) {
        tsr_text_printf(out, "%s%s (", i ? ", " : "", shares[i].words);
        tsr_decide_put_bytes(out, shares[i].bytes);
        tsr_text_puts(out, ")");
    }
    tsr_text_puts(out, count > 3 ? ", and more" : "");
    free(shares);
    return TSR_OK;
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
    if (inputs->layout.scores)
        b.label_rows = b.documents;
    b.longest = b.longest < tokens ? b.longest : tokens;
    b.tokens = tokens;
    return b;
}

/* A micro-batch of one row. */
static tsr_batch_bounds one_row(const tsr_inputs *inputs, int64_t tokens)
{
    tsr_batch_bounds b = bounds_of(inputs, tokens);
    b.documents = 1;
    b.longest = tokens;
    return b;
}

/* ---- the largest that fits ---- */

typedef struct {
    tsr_decision *d;
    const tsr_inputs *inputs;
    const tsr_topology_view *view;
    const tsr_speeds *speeds;
    enum { OF_TOKENS, OF_SEQUENCE, OF_LAYERS } of;
    uint64_t parameters; /* of the deepest model that fitted */
} question;

static tsr_status ask_of_layers(bool *fits, question *q, int64_t layers)
{
    tsr_inputs like;
    tsr_decision d;
    tsr_allowance allowed = tsr_decide_allowed(&q->inputs->config);
    if (allowed.offload == TSR_CONFIG_OFFLOAD_AUTO)
        allowed.offload =
            TSR_CONFIG_OFFLOAD_NONE; /* else any model fits that the host has room for */
    *fits = false;
    tsr_status status = tsr_inputs_like(&like, q->inputs, (uint64_t)layers);
    if (status == TSR_ECONFIG) /* the adapter is on layers that it does not have */
        return TSR_OK;
    TSR_TRY(status);
    status = tsr_decide_begin(&d, &like, q->view, true, &q->d->room, q->speeds);
    if (status == TSR_OK)
        status = tsr_decide_fits(fits, &d, &like, q->view, &like.bounds, &allowed);
    if (status == TSR_OK && *fits)
        q->parameters = like.layout.parameter_count;
    tsr_decide_clear(&d, &like.layout);
    tsr_decision_free(&d);
    tsr_inputs_like_close(&like);
    return status;
}

static tsr_status ask(bool *fits, question *q, int64_t size)
{
    tsr_allowance allowed = tsr_decide_allowed(&q->inputs->config);
    if (q->of == OF_LAYERS)
        return ask_of_layers(fits, q, size);
    tsr_batch_bounds bounds = (q->of == OF_TOKENS ? bounds_of : one_row)(q->inputs, size);
    return tsr_decide_fits(fits, q->d, q->inputs, q->view, &bounds, &allowed);
}

/* Between `low`, which fits or is 0, and `high`, which does not. */
static tsr_status largest_below(int64_t *out, question *q, int64_t low, int64_t high)
{
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        bool fits;
        TSR_TRY(ask(&fits, q, middle));
        if (fits)
            low = middle;
        else
            high = middle;
    }
    *out = low;
    return TSR_OK;
}

/* From what the job has on, which need not fit in another way of counting. */
static tsr_status largest(int64_t *out, question *q, int64_t first, int64_t most)
{
    int64_t low = 0, high = first < most ? first : most;
    for (;;) {
        bool fits;
        TSR_TRY(ask(&fits, q, high));
        if (!fits)
            return largest_below(out, q, low, high);
        *out = low = high;
        if (high == most)
            return TSR_OK;
        high = 2 * high < most ? 2 * high : most;
    }
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

/* ---- a refusal ---- */

/* Who has what of the card, where that and not the configuration sets the limit. */
static void print_holder(tsr_text *out, const tsr_decision *d, const tsr_inputs *inputs)
{
    uint64_t held = tsr_room_held(&d->room);
    if (!d->room.total || d->budget == inputs->config.memory_budget)
        return;
    tsr_text_puts(out, held ? " (other processes and this one's CUDA context hold " : " (");
    if (held)
        tsr_decide_put_bytes(out, held);
    tsr_text_puts(out, held ? " of the " : "of the ");
    tsr_decide_put_bytes(out, d->room.total);
    tsr_text_printf(out, " of rank %d's GPU %d)", d->room.rank, d->room.card);
}

/* Some virtual machines show more memory once it is used: it may be there. */
static void warn_of_host(const tsr_decision *d, const tsr_inputs *inputs, uint64_t shown)
{
    tsr_auto_text text = {0};
    tsr_text_puts(&text, "this job needs ");
    tsr_decide_put_bytes(&text, tsr_decide_host_bytes(d));
    tsr_text_puts(&text, " of host memory a rank, more than four fifths of the machine's (");
    tsr_decide_put_bytes(&text, shown);
    tsr_log(TSR_LOG_WARNING, "%s: %s a rank); if the memory is not there, it fails at the start",
            tsr_config_where(&inputs->config, "host_memory_budget"), tsr_text_string(&text));
}

/* Ranks that are to share what is too short to be shared have nothing to do. */
static void warn_of_sharing(const tsr_decision *d, const tsr_inputs *inputs)
{
    const tsr_config *config = &inputs->config;
    if (!tsr_spans_shared(&d->model.spans) || inputs->bounds.tokens > config->context_span)
        return;
    tsr_log(
        TSR_LOG_WARNING,
        "%s: context_parallel_size is %" PRId64 ", but no micro-batch has more than context_span "
        "tokens, %" PRId64 ": of each %" PRId64 " ranks one computes and the others wait; write "
        "context_parallel_size: 1",
        tsr_config_where(config, "context_parallel_size"), config->context_parallel_size,
        config->context_span, config->context_parallel_size);
}

tsr_status tsr_decide_warn(const tsr_decision *d, const tsr_inputs *inputs, uint64_t shown)
{
    tsr_text text = {0};
    warn_of_sharing(d, inputs);
    if (tsr_decide_host_bytes(d) + d->room.others_host > shown && shown)
        warn_of_host(d, inputs, shown);
    if (d->budget + d->room.others >= inputs->config.memory_budget)
        return TSR_OK;
    tsr_decide_put_bytes(&text, d->budget);
    print_holder(&text, d, inputs);
    tsr_log(TSR_LOG_WARNING, "%s: memory_budget is more than there is: the plan has %s",
            tsr_config_where(&inputs->config, "memory_budget"), tsr_text_string(&text));
    tsr_text_free(&text);
    return TSR_OK;
}

/* With the job as it is. */
static void suggest_memory(tsr_text *out, const tsr_room *room, uint64_t needed)
{
    uint64_t mib = (needed + (1 << 20) - 1) >> 20;
    if (mib << 20 <= tsr_room_most(room))
        tsr_text_printf(out, "memory_budget: %" PRIu64 "MiB", mib);
    else if (tsr_room_held(room) && (mib << 20) + TSR_CUDA_RESERVE_BYTES <= room->total)
        tsr_text_printf(out,
                        "end what else runs on rank %d's GPU %d (nvidia-smi): with %" PRIu64
                        " MiB free there nothing else has to change",
                        room->rank, room->card, mib);
    else
        tsr_text_printf(out, "a GPU with %" PRIu64 " MiB free", mib);
}

static void suggest_host_memory(tsr_text *out, const tsr_decision *d, uint64_t needed)
{
    uint64_t mib = (needed + (1 << 20) - 1) >> 20;
    tsr_text_printf(out, "host_memory_budget: %" PRIu64 "MiB", mib);
    if (d->room.host && mib << 20 > d->room.host)
        tsr_text_puts(out, ", on a machine with that much for each rank");
}

/* The fewest ranks that have to share each micro-batch; 0: more than do so now do not help. */
static tsr_status least_sharers(int *out, tsr_decision *d, const tsr_inputs *inputs,
                                const tsr_topology_view *view)
{
    tsr_inputs like = *inputs;
    const tsr_allowance allowed = tsr_decide_allowed(&inputs->config);
    int64_t *size = &like.config.context_parallel_size;
    bool fits = false;
    like.batch = NULL; /* whose steps are those of as many groups as there are now */
    *out = 0;
    if (inputs->bounds.tokens <= inputs->config.context_span)
        return TSR_OK;
    for (++*size; *size <= view->ranks && !fits; ++*size) {
        if (view->ranks % *size || tsr_inputs_check_shared(&like, view->ranks) < 0)
            continue;
        TSR_TRY(tsr_decide_fits(&fits, d, &like, view, &like.bounds, &allowed));
        *out = fits ? (int)*size : 0;
    }
    return TSR_OK;
}

/* Whether nothing else has to change if no expert has to stay decoded. */
static tsr_status fits_decoded_later(bool *out, tsr_decision *d, const tsr_inputs *inputs,
                                     const tsr_topology_view *view)
{
    tsr_inputs like = *inputs;
    const tsr_allowance allowed = tsr_decide_allowed(&inputs->config);
    like.config.decoded_layers = -1;
    *out = false;
    if (inputs->config.decoded_layers <= 0 || d->room.base)
        return TSR_OK;
    return tsr_decide_fits(out, d, &like, view, &like.bounds, &allowed);
}

/* What to change, cheapest first. */
static tsr_status suggest(tsr_text *out, tsr_decision *d, const tsr_inputs *inputs,
                          const tsr_topology_view *view)
{
    bool of_host = tsr_decide_bytes(d) <= d->budget;
    uint64_t needed = of_host ? tsr_decide_host_bytes(d) : tsr_decide_bytes(d);
    tsr_allowance wider = tsr_decide_allowed(&inputs->config);
    bool fits;
    TSR_TRY(fits_decoded_later(&fits, d, inputs, view));
    if (fits) {
        tsr_text_puts(out, "decoded_layers: auto");
        return TSR_OK;
    }
    for (int i = 0; i < WIDENINGS && !fits; i++) {
        if (!widen(&wider, i))
            continue;
        TSR_TRY(tsr_decide_fits(&fits, d, inputs, view, &inputs->bounds, &wider));
        if (fits) {
            tsr_text_puts(out, widening[i]);
            return TSR_OK;
        }
    }
    int sharers;
    TSR_TRY(least_sharers(&sharers, d, inputs, view));
    if (sharers) {
        tsr_text_printf(out, "context_parallel_size: %d (%d ranks then share each micro-batch)",
                        sharers, sharers);
        return TSR_OK;
    }
    int64_t tokens = 0;
    question q = {d, inputs, view, NULL, OF_TOKENS, 0};
    TSR_TRY(largest_below(&tokens, &q, 0, inputs->bounds.tokens));
    if (tokens > 0)
        tsr_text_printf(out,
                        "micro-batches of at most %" PRId64 " tokens (the largest has %" PRId64
                        "): lower %s; or ",
                        tokens, inputs->bounds.tokens,
                        inputs->layout.mixed_count ? "adapter_capacity or max_length"
                                                   : "per_device_train_batch_size or max_length");
    if (of_host)
        suggest_host_memory(out, d, needed + d->room.others_host);
    else
        suggest_memory(out, &d->room, needed + d->room.others);
    return TSR_OK;
}

/* "memory_budget allows 22.00 GiB a rank beside the 1.00 GiB that the other adapters have" */
static void print_allowed(tsr_text *out, const tsr_inputs *inputs, const char *key, uint64_t budget,
                          uint64_t others)
{
    tsr_text_printf(out, "%s: %s allows ", tsr_config_where(&inputs->config, key), key);
    tsr_decide_put_bytes(out, budget);
    tsr_text_puts(out, " a rank");
    if (!others)
        return;
    tsr_text_puts(out, " beside the ");
    tsr_decide_put_bytes(out, others);
    tsr_text_puts(out, " that the other adapters have");
}

tsr_status tsr_decide_refuse(tsr_decision *d, const tsr_inputs *inputs,
                             const tsr_topology_view *view)
{
    tsr_text text = {0};
    TSR_TRY(most_frugal(d, inputs, view));
    bool of_host = tsr_decide_bytes(d) <= d->budget;
    if (of_host) {
        print_allowed(&text, inputs, "host_memory_budget", d->host_budget, d->room.others_host);
    } else {
        print_allowed(&text, inputs, "memory_budget", d->budget, d->room.others);
        print_holder(&text, d, inputs);
    }
    tsr_text_puts(&text, ", but this job needs at least ");
    tsr_decide_put_bytes(&text, of_host ? tsr_decide_host_bytes(d) : tsr_decide_bytes(d));
    tsr_text_puts(&text, of_host ? " of host memory: " : ": ");
    tsr_status status = print_largest(&text, d, of_host ? TSR_PLACE_HOST : TSR_PLACE_DEVICE);
    tsr_text_puts(&text, "; smallest change that fits: ");
    if (status == TSR_OK)
        status = suggest(&text, d, inputs, view);
    if (status == TSR_OK)
        status = tsr_fail(TSR_ECONFIG, "%s", tsr_text_string(&text));
    tsr_text_free(&text);
    return status;
}

tsr_status tsr_decide_frugal(tsr_decision *out, tsr_text *change, const tsr_inputs *inputs,
                             const tsr_topology_view *view, bool train, const tsr_room *room,
                             const tsr_speeds *speeds)
{
    tsr_decision d;
    tsr_status status = tsr_decide_begin(&d, inputs, view, train, room, speeds);
    if (status == TSR_OK)
        status = most_frugal(&d, inputs, view);
    if (status == TSR_OK && !tsr_decide_is_within(&d))
        status = suggest(change, &d, inputs, view);
    if (status == TSR_OK) /* what was tried for the advice is in it */
        status = most_frugal(&d, inputs, view);
    if (status < 0) {
        tsr_decide_clear(&d, &inputs->layout);
        tsr_decision_free(&d);
        return status;
    }
    *out = d;
    return TSR_OK;
}

tsr_status tsr_decide_largest(tsr_largest *out, const tsr_inputs *inputs,
                              const tsr_topology_view *view, const tsr_room *room,
                              const tsr_speeds *speeds)
{
    tsr_decision d;
    question q = {&d, inputs, view, speeds, OF_TOKENS, 0};
    tsr_status status = tsr_decide_begin(&d, inputs, view, true, room, speeds);
    tsr_log_mute(true); /* what is amiss with the adapter was said of the job itself */
    if (status == TSR_OK)
        status = largest(&out->tokens, &q, inputs->bounds.tokens, TSR_MOST_TOKENS);
    q.of = OF_SEQUENCE;
    if (status == TSR_OK)
        status = largest(&out->sequence, &q, inputs->bounds.longest, TSR_MOST_TOKENS);
    q.of = OF_LAYERS;
    if (status == TSR_OK)
        status = largest(&out->layers, &q, inputs->layout.layer_count, TSR_MOST_LAYERS);
    tsr_log_mute(false);
    out->parameters = q.parameters;
    tsr_decide_clear(&d, &inputs->layout);
    tsr_decision_free(&d);
    return status;
}
