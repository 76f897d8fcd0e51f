/*
 * screen.c: a plan on one screen: whether it fits, what needs the memory in a user's words, how long a step takes and
 * what was chosen. At most 24 lines of 80 columns.
 */
#include "planner/parts.h"

#include "base/escape.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COLUMNS 80
#define LABEL   9  /* columns before a line's text */
#define SHOWN   10 /* purposes on the device */

/* ---- purposes in a user's words ---- */

/* A buffer is the first row's whose `name` its own begins with and whose `why` its purpose begins with. */
static const struct {
    const char *name, *why, *words;
} rows[] = {
    {"frozen.resident", "", "base weights, gathered once and kept"},
    {"frozen.", "", "base weights"},
    {"", "experts in 4 bits", "experts, decoded once and kept"},
    {"", "double quantization", "base weights"},
    {"NF4 levels", "", "base weights"},
    {"trainable.m", "AdamW", "optimizer states"},
    {"trainable.v", "AdamW", "optimizer states"},
    {"trainable.absmax", "", "optimizer states"},
    {"optimizer state", "", "optimizer states, on their way from the host"},
    {"trainable.gradient", "", "gradients of the adapter"},
    {"gradient of shared", "", "values that layers share"},
    {"gradient", "", "gradients of the adapter"},
    {"trainable.", "", "adapter"},
    {"gathered adapter", "", "adapter for saving"},
    {"whole adapter", "", "adapter for saving"},
    {"layer ", "", "activations kept for the backward"},
    {"saved activations", "", "activations, on their way to the host"},
    {"shared ", "", "values that layers share"},
    {"scratch layer at work", "", "one layer's values and gradients, or the logits"},
    {"scratch weight", "", "decoded weight of the linear at work"},
    {"scratch norm", "", "DoRA's norms"},
    {"", "DoRA", "DoRA's norms"},
    {"scratch ", "", "values between layers and of a linear at work"},
    {"head ", "", "loss of each label"},
    {"slot", "", "gather slots"},
    {"stage", "", "shards of the base, on their way from the host"},
    {"micro-batch", "", "micro-batches of tokens"},
    {"RoPE", "", "RoPE tables"},
    {"embedding", "", "embedding"},
    {"control", "", "sums and decisions of a step"},
    {"step sums", "", "sums and decisions of a step"},
};

const char *tsr_decide_words(const tsr_buffer *buffer)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (!strncmp(buffer->name, rows[i].name, strlen(rows[i].name)) &&
            !strncmp(buffer->why, rows[i].why, strlen(rows[i].why)))
            return rows[i].words;
    return buffer->why;
}

static int by_size(const void *left, const void *right)
{
    const tsr_share *a = left, *b = right;
    if (a->bytes != b->bytes)
        return a->bytes > b->bytes ? -1 : 1;
    return strcmp(a->words, b->words);
}

static void add(tsr_share *shares, int *count, const char *words, uint64_t bytes)
{
    int at = 0;
    while (at < *count && strcmp(shares[at].words, words) != 0)
        at++;
    if (at == *count)
        shares[(*count)++] = (tsr_share){words, 0};
    shares[at].bytes += bytes;
}

int tsr_decide_shares(tsr_share *shares, const tsr_decision *d, tsr_place place)
{
    int count = 0;
    for (int i = 0; i < d->memory.count; i++) {
        const tsr_buffer *b = &d->memory.buffer[i];
        if (b->place == place && b->bytes)
            add(shares, &count, tsr_decide_words(b), b->bytes);
    }
    if (place == TSR_PLACE_DEVICE && d->reserve)
        add(shares, &count, "CUDA's context, modules and libraries", d->reserve);
    qsort(shares, (size_t)count, sizeof *shares, by_size);
    return count;
}

/* ---- lines ---- */

void tsr_decide_put_line(tsr_text *out, const char *label, const char *text)
{
    tsr_text_printf(out, "%-*s", LABEL, label);
    tsr_text_wrap(out, text, LABEL, COLUMNS);
    tsr_text_puts(out, "\n");
}

static void put_device(tsr_text *out, const tsr_inputs *inputs, const tsr_speeds *speeds)
{
    if (!inputs->cuda) {
        tsr_text_puts(out, "the CPU");
        return;
    }
    tsr_text_puts(out, speeds->measured && *speeds->device ? "" : "a GPU");
    if (speeds->measured)
        tsr_text_name(out, speeds->device);
}

/* What fits the device, but not its host. */
static void put_host_verdict(tsr_text *out, const tsr_decision *d, const tsr_inputs *inputs,
                             const tsr_topology_view *view)
{
    tsr_auto_text line = {0};
    tsr_text_puts(&line, "needs at least ");
    tsr_decide_put_bytes(&line, tsr_decide_host_bytes(d));
    tsr_text_puts(&line, " of host memory; there are ");
    tsr_decide_put_bytes(&line, d->host_budget);
    tsr_text_puts(&line, inputs->config.host_memory_budget ? " of host_memory_budget"
                                                           : " that a rank may use");
    if (view->ranks > 1)
        tsr_text_printf(&line, ", for each of %d ranks", view->ranks);
    tsr_decide_put_line(out, "too big", tsr_text_string(&line));
    out->failed |= line.failed;
}

static void put_verdict(tsr_text *out, const tsr_decision *d, const tsr_inputs *inputs,
                        const tsr_topology_view *view, const tsr_speeds *speeds)
{
    uint64_t needed = tsr_decide_bytes(d), asked = inputs->config.memory_budget;
    bool fits = needed <= d->budget, unknown = d->budget == TSR_BUDGET_UNKNOWN;
    tsr_auto_text line = {0};
    if (fits && !tsr_decide_is_within(d)) {
        put_host_verdict(out, d, inputs, view);
        return;
    }
    tsr_text_puts(&line, unknown ? "needs " : fits ? "peak " : "needs at least ");
    tsr_decide_put_bytes(&line, needed);
    if (unknown) {
        tsr_text_puts(&line, " of ");
        put_device(&line, inputs, speeds);
        tsr_text_puts(&line, "; none is here and memory_budget is not set: whether it fits is "
                             "not known");
    } else {
        tsr_text_puts(&line, fits ? " of the " : " on ");
        if (!fits)
            put_device(&line, inputs, speeds);
        tsr_text_puts(&line, fits ? "" : "; there are ");
        tsr_decide_put_bytes(&line, d->budget);
        tsr_text_puts(&line, d->budget == asked ? " of memory_budget" : " that are free");
        tsr_text_puts(&line, fits ? " on " : "");
        if (fits)
            put_device(&line, inputs, speeds);
    }
    if (view->ranks > 1)
        tsr_text_printf(&line, ", for each of %d ranks", view->ranks);
    tsr_decide_put_line(out, unknown ? "plan" : fits ? "fits" : "too big", tsr_text_string(&line));
    out->failed |= line.failed;
}

void tsr_decide_put_experts(tsr_text *out, const tsr_layout *layout)
{
    const tsr_model_experts *e = &layout->config.experts;
    uint64_t all = layout->parameter_count;
    double unit = all < 1000000000 ? 1e-6 : 1e-9;
    tsr_text_printf(
        out, "%" PRIu64 " a layer, %" PRIu64 " of a token: %.4g of %.4g %s parameters are active",
        e->count, e->chosen, unit * (double)(all - layout->idle_count), unit * (double)all,
        unit < 1e-6 ? "billion" : "million");
}

static void put_experts(tsr_text *out, const tsr_layout *layout)
{
    tsr_auto_text line = {0};
    if (!layout->idle_count)
        return;
    tsr_decide_put_experts(&line, layout);
    tsr_decide_put_line(out, "experts", tsr_text_string(&line));
    out->failed |= line.failed;
}

/* At most `most` and the rest. */
static void put_purposes(tsr_text *out, const tsr_decision *d, tsr_share *shares, int most)
{
    int count = tsr_decide_shares(shares, d, TSR_PLACE_DEVICE),
        shown = count <= most + 1 ? count : most;
    uint64_t all = tsr_decide_bytes(d), left = all;
    for (int i = 0; i < shown || (i == shown && left); i++) {
        tsr_auto_text bytes = {0};
        uint64_t some = i < shown ? shares[i].bytes : left;
        tsr_decide_put_bytes(&bytes, some);
        tsr_text_printf(out, "%-*s%11s %5.1f %%  %s\n", LABEL, i ? "" : "memory",
                        tsr_text_string(&bytes), 100.0 * (double)some / (double)all,
                        i < shown ? shares[i].words : "everything else");
        out->failed |= bytes.failed;
        left -= some;
    }
}

static void put_place(tsr_text *line, const tsr_decision *d, tsr_share *shares, tsr_place place)
{
    int count = tsr_decide_shares(shares, d, place);
    if (!d->memory.total[place])
        return;
    tsr_text_puts(line, line->length ? "; once a node " : "");
    tsr_decide_put_bytes(line, d->memory.total[place]);
    tsr_text_puts(line, ": ");
    for (int i = 0; i < count && i < 2; i++) {
        tsr_text_puts(line, i ? ", " : "");
        if (count > 1)
            tsr_decide_put_bytes(line, shares[i].bytes);
        tsr_text_printf(line, "%s%s", count > 1 ? " " : "", shares[i].words);
    }
}

static void put_host(tsr_text *out, const tsr_decision *d, tsr_share *shares)
{
    tsr_auto_text line = {0};
    put_place(&line, d, shares, TSR_PLACE_HOST);
    put_place(&line, d, shares, TSR_PLACE_NODE);
    if (line.length)
        tsr_decide_put_line(out, "host", tsr_text_string(&line));
    out->failed |= line.failed;
}

static void put_seconds(tsr_text *out, double seconds)
{
    if (seconds >= 3600)
        tsr_text_printf(out, "%.3g h", seconds / 3600);
    else if (seconds >= 60)
        tsr_text_printf(out, "%.3g minutes", seconds / 60);
    else if (seconds >= 1)
        tsr_text_printf(out, "%.3g s", seconds);
    else
        tsr_text_printf(out, "%.3g ms", 1e3 * seconds);
}

static void put_step(tsr_text *out, const tsr_decision *d)
{
    const tsr_expectation *e = &d->expected;
    tsr_auto_text line = {0};
    tsr_text_printf(&line, "%.0f tokens", e->step_tokens);
    if (e->known) {
        tsr_text_puts(&line, " in an expected ");
        put_seconds(&line, e->simulation.step);
        tsr_text_printf(&line, ", %.4g tokens/s", e->step_tokens / e->simulation.step);
        if (e->steps) {
            tsr_text_printf(&line, "; all %" PRId64 " steps in ", e->steps);
            put_seconds(&line, e->simulation.step * (double)e->steps);
        }
    } else {
        bool large = e->step_flops >= 1e13;
        tsr_text_printf(&line, ", %.4g %s", e->step_flops * (large ? 1e-12 : 1e-9),
                        large ? "TFLOP" : "GFLOP");
        if (e->steps)
            tsr_text_printf(&line, "; %" PRId64 " steps", e->steps);
        tsr_text_puts(&line, "; time unknown: run `tessera env --measure` there, or give --roofs "
                             "FILE");
    }
    tsr_decide_put_line(out, "step", tsr_text_string(&line));
    out->failed |= line.failed;
}

/* Where the base is, of the plan that was chosen. */
static tsr_home home_of(const tsr_decision *d, int units)
{
    for (int i = 0; i < units; i++)
        if (d->home[i] != TSR_HOME_RESIDENT)
            return d->home[i];
    return TSR_HOME_RESIDENT;
}

static void put_base(tsr_text *line, const tsr_decision *d, const tsr_inputs *inputs)
{
    int units = inputs->layout.plan_unit_count;
    tsr_home home = home_of(d, units);
    bool host = home == TSR_HOME_HOST_SHARDED || home == TSR_HOME_HOST_FULL;
    tsr_text_puts(line, host ? "base in host memory" : "base on the device");
    if (d->group > 1 && home != TSR_HOME_RESIDENT)
        tsr_text_printf(line, home == TSR_HOME_HOST_FULL ? ", a copy a node" : " over %d ranks",
                        d->group);
    if (d->resident_count && d->resident_count < units)
        tsr_text_printf(line, ", %d of %d units kept gathered", d->resident_count, units);
    else if (d->resident_count && d->group > 1)
        tsr_text_puts(line, ", whole on every rank");
}

int64_t tsr_decide_tile_rows(const tsr_decision *d)
{
    int64_t tile_rows = 0;
    for (int i = 0; i < d->programs->count && !tile_rows; i++)
        tile_rows = d->programs->program[i].tile_rows;
    return tile_rows;
}

static void put_chosen(tsr_text *out, const tsr_decision *d, const tsr_inputs *inputs)
{
    tsr_auto_text line = {0};
    int layers = inputs->layout.layer_count, again = d->selective_count + d->full_count;
    if (!d->train)
        tsr_text_puts(&line, "forward only");
    else if (!again)
        tsr_text_puts(&line, "no recomputation");
    else if (again == layers && (!d->selective_count || !d->full_count))
        tsr_text_printf(&line, "all %d layers recompute %s of their forward", layers,
                        d->full_count ? "all" : "a part");
    else if (!d->selective_count || !d->full_count)
        tsr_text_printf(&line, "%d of %d layers recompute %s of their forward", again, layers,
                        d->full_count ? "all" : "a part");
    else
        tsr_text_printf(&line, "of %d layers %d recompute all of their forward, %d a part", layers,
                        d->full_count, d->selective_count);
    if (d->stride)
        tsr_text_printf(&line, ", one of every %d keeps its input", d->stride);
    if (tsr_decide_tile_rows(d))
        tsr_text_printf(&line, "; layers in tiles of %" PRId64 " tokens", tsr_decide_tile_rows(d));
    tsr_text_puts(&line, "; ");
    put_base(&line, d, inputs);
    if (d->decoded_count)
        tsr_text_printf(&line, "; experts of %d layers stay decoded", d->decoded_count);
    if (d->offloaded_count > 0)
        tsr_text_printf(&line, "; activations of %d layers in host memory", d->offloaded_count);
    if (d->state_offloaded)
        tsr_text_puts(&line, "; optimizer states in host memory");
    if (d->alternative_count > 1)
        tsr_text_printf(&line, "; the fastest of %d plans", d->alternative_count);
    tsr_decide_put_line(out, "chosen", tsr_text_string(&line));
    out->failed |= line.failed;
}

void tsr_decide_put_context(tsr_text *out, const tsr_decision *d, const tsr_inputs *inputs)
{
    const tsr_spans *spans = &d->model.spans;
    int64_t whole = inputs->bounds.tokens;
    if (!tsr_spans_shared(spans))
        return;
    tsr_text_printf(out, "%d ranks share each micro-batch of more than %" PRId64 " tokens",
                    spans->ranks, spans->rows);
    if (whole <= spans->rows)
        tsr_text_printf(out, ", but none has more than %" PRId64, whole);
    else
        tsr_text_printf(out, ", span by span: of %" PRId64 " tokens each has at most %" PRId64,
                        whole, d->model.bounds.tokens);
}

static void put_context(tsr_text *out, const tsr_decision *d, const tsr_inputs *inputs)
{
    tsr_auto_text line = {0};
    tsr_decide_put_context(&line, d, inputs);
    if (line.length)
        tsr_decide_put_line(out, "context", tsr_text_string(&line));
    out->failed |= line.failed;
}

static void put_room(tsr_text *out, const tsr_inputs *inputs, const tsr_largest *l)
{
    tsr_auto_text line = {0};
    if (l->tokens >= TSR_MOST_TOKENS)
        tsr_text_puts(&line, "micro-batches of any size");
    else
        tsr_text_printf(&line, "micro-batches of up to %" PRId64 " tokens", l->tokens);
    tsr_text_printf(&line, " would fit; this job's have up to %" PRId64 ", a row up to %" PRId64,
                    inputs->bounds.tokens, inputs->bounds.longest);
    tsr_decide_put_line(out, "room", tsr_text_string(&line));
    out->failed |= line.failed;
}

tsr_status tsr_decision_screen(tsr_text *out, const tsr_decision *d, const tsr_inputs *inputs,
                               const tsr_topology_view *view, const tsr_speeds *speeds,
                               const tsr_largest *largest, const char *change)
{
    tsr_share *shares = calloc((size_t)d->memory.count + 1, sizeof *shares);
    if (!shares)
        return tsr_fail(TSR_ENOMEM, "out of memory while printing the plan");
    put_verdict(out, d, inputs, view, speeds);
    if (change)
        tsr_decide_put_line(out, "change", change);
    put_experts(out, &inputs->layout);
    put_purposes(out, d, shares, inputs->layout.idle_count ? SHOWN - 1 : SHOWN);
    put_host(out, d, shares);
    free(shares);
    if (!change) {
        put_step(out, d);
        put_chosen(out, d, inputs);
        put_context(out, d, inputs);
    }
    if (largest->tokens)
        put_room(out, inputs, largest);
    if (!change)
        tsr_decide_put_line(out, "more",
                            "--all: every buffer, what was compared, and why; --json: all of it");
    return out->failed ? tsr_fail(TSR_ENOMEM, "out of memory while printing the plan") : TSR_OK;
}
