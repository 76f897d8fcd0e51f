/*
 * print.c: the memory plan as text and as JSON.
 */
#include "planner/parts.h"
#include "planner/rungs.h"

#include "base/called.h"
#include "base/escape.h"

#include <inttypes.h>
#include <string.h>

/* ---- what layers keep ---- */

static void print_names(tsr_text *out, const tsr_layer_program *p, const char *quote)
{
    for (int i = 0; i < p->kept_count; i++) {
        char name[96];
        tsr_value_print(name, sizeof name, p->block, p->kept_buffer[i]);
        tsr_text_printf(out, "%s%s%s%s", i ? ", " : "", quote, name, quote);
    }
}

static tsr_again again_of(const tsr_decision *d, int layer)
{
    return tsr_rungs_again(d->rungs, layer, d->rung[layer]);
}

static void print_json_kept(tsr_text *out, const tsr_decision *d, int layer)
{
    static const char *const names[] = {"none", "selective", "full"};
    tsr_text_printf(out, ",\"recompute\":\"%s\",\"saved_bytes\":%" PRIu64 ",\"keeps\":[",
                    names[again_of(d, layer)], d->saved_bytes[layer]);
    print_names(out, tsr_layer_program_of(d->programs, layer), "\"");
    tsr_text_puts(out, "]");
}

static bool keep_alike(const tsr_layer_program *a, const tsr_layer_program *b)
{
    return a->block == b->block && !memcmp(a->kept, b->kept, sizeof a->kept);
}

/* A line for all layers that make a part again and keep the same. */
static void print_kept(tsr_text *out, const tsr_decision *d, int layers)
{
    const tsr_layer_program *p = d->programs->program;
    for (int i = 0; i < d->programs->count; i++) {
        int count = 0, first = 0;
        while (!keep_alike(&p[first], &p[i]))
            first++;
        for (int layer = 0; layer < layers && first == i; layer++)
            count += again_of(d, layer) == TSR_AGAIN_PART &&
                     keep_alike(&p[d->programs->of_layer[layer]], &p[i]);
        if (count == 0)
            continue;
        tsr_text_printf(out, "%d layer%s ", count, count == 1 ? " keeps" : "s keep");
        print_names(out, &p[i], "");
        tsr_text_puts(out, "\n");
    }
}

/* ---- shapes ---- */

/* The shapes that the micro-batches of a run come in, ascending: [[tokens,label rows],...]. Without
 * a data set the assumed one. */
static void print_shapes(tsr_text *out, const tsr_inputs *inputs, const tsr_batch *batch)
{
    const tsr_batch_bounds *bounds = &inputs->bounds;
    const tsr_batch_run *run = batch ? tsr_batch_run_of(batch) : NULL;
    if (!run)
        tsr_text_printf(out, "[[%" PRId64 ",%" PRId64 "]]", bounds->tokens, bounds->label_rows);
    for (int i = 0; run && i < run->bucket_count; i++)
        tsr_text_printf(out, "%s[%d,%d]%s", i ? "," : "[", run->bucket[i].tokens,
                        run->bucket[i].label_rows, i + 1 == run->bucket_count ? "]" : "");
}

/* ---- time ---- */

/* The waits of a step by cause; the last one is not for a transfer. */
static const char *cause_name(tsr_wait_cause cause)
{
    return cause == TSR_CAUSE_OTHER ? "update" : tsr_cause_name(cause);
}

static double waits(const tsr_simulation *s)
{
    double sum = 0;
    for (int i = 0; i < TSR_CAUSE_COUNT; i++)
        sum += s->exposed[i];
    return sum;
}

/* What is not known of the machine and counts for this job: the next one from `speed` on. */
static tsr_speed next_built_in(tsr_speed speed, const tsr_decision *d, const tsr_speeds *speeds)
{
    while (speed < TSR_SPEED_COUNT &&
           (speeds->known[speed] || (speed == TSR_SPEED_MATMUL_FP8 && !d->model.fp8)))
        speed++;
    return speed;
}

static void print_json_expected(tsr_text *out, const tsr_decision *d, const tsr_speeds *speeds)
{
    const tsr_expectation *e = &d->expected;
    const tsr_simulation *s = &e->simulation;
    tsr_text_printf(out,
                    ",\n\"expected\":{\"steps\":%" PRId64 ",\"rounds\":%" PRId64
                    ",\"step_tokens\":%.9g,\"step_flops\":%.9g,\"measured\":%s",
                    e->steps, e->rounds, e->step_tokens, e->step_flops,
                    e->known ? "true" : "false");
    if (e->known) {
        tsr_text_printf(out, ",\"step_s\":%.6g,\"tokens_per_s\":%.6g,\"slowed_s\":%.6g", s->step,
                        e->step_tokens / s->step, s->slowed);
        for (tsr_wait_cause i = 0; i < TSR_CAUSE_COUNT; i++)
            tsr_text_printf(out, "%s\"%s\":%.6g", i ? "," : ",\"exposed_s\":{", cause_name(i),
                            s->exposed[i]);
        tsr_text_puts(out, "}");
    }
    for (tsr_speed i = 0; i < TSR_SPEED_COUNT; i++)
        tsr_text_printf(out, "%s\"%s\":%.6g", i ? "," : ",\n\"roofs\":{",
                        tsr_speed_name(i, speeds->compute), speeds->value[i]);
    tsr_text_puts(out, ",\"built_in\":[");
    tsr_speed first = next_built_in(0, d, speeds);
    for (tsr_speed i = first; i < TSR_SPEED_COUNT; i = next_built_in(i + 1, d, speeds))
        tsr_text_printf(out, "%s\"%s\"", i == first ? "" : ",", tsr_speed_name(i, speeds->compute));
    tsr_text_puts(out, "]}}");
}

static const char *const offload_names[] = {[TSR_CONFIG_OFFLOAD_NONE] = "none",
                                            [TSR_CONFIG_OFFLOAD_SHARDED] = "sharded",
                                            [TSR_CONFIG_OFFLOAD_FULL] = "full"};

static double chosen_seconds(const tsr_decision *d)
{
    for (int i = 0; i < d->alternative_count; i++)
        if (d->alternative[i].chosen)
            return d->alternative[i].seconds;
    return 1;
}

static void print_json_alternatives(tsr_text *out, const tsr_decision *d)
{
    tsr_text_puts(out, ",\n\"alternatives\":[");
    for (int i = 0; i < d->alternative_count; i++) {
        const tsr_alternative *a = &d->alternative[i];
        tsr_text_printf(out,
                        "%s\n{\"offload\":\"%s\",\"resident_units\":%d,\"selective_layers\":%d,"
                        "\"full_layers\":%d,\"stride\":%d,\"activation_offloading\":%s,"
                        "\"offloaded_layers\":%d,\"optimizer_offload\":%s,"
                        "\"device_bytes\":%" PRIu64 ",\"host_bytes\":%" PRIu64 ",\"fits\":%s",
                        i ? "," : "", offload_names[a->offload], a->resident_count,
                        a->selective_count, a->full_count, a->stride ? a->stride : 1,
                        a->offloaded_count > 0 ? "true" : "false", a->offloaded_count,
                        a->state ? "true" : "false", a->device_bytes, a->host_bytes,
                        a->fits ? "true" : "false");
        if (a->fits)
            tsr_text_printf(out, ",\"relative_time\":%.6g", a->seconds / chosen_seconds(d));
        if (a->fits && d->expected.known)
            tsr_text_printf(out, ",\"step_s\":%.6g", a->seconds);
        tsr_text_printf(out, ",\"chosen\":%s}", a->chosen ? "true" : "false");
    }
    tsr_text_puts(out, "]");
}

static void print_built_in(tsr_text *out, const tsr_decision *d, const tsr_speeds *speeds)
{
    tsr_speed first = next_built_in(0, d, speeds);
    for (tsr_speed i = first; i < TSR_SPEED_COUNT; i = next_built_in(i + 1, d, speeds))
        tsr_text_printf(out, "%s%s", i == first ? "; built in, as not measured there: " : ", ",
                        tsr_speed_name(i, speeds->compute));
}

static void print_expected(tsr_text *out, const tsr_decision *d, const tsr_speeds *speeds)
{
    const tsr_expectation *e = &d->expected;
    const tsr_simulation *s = &e->simulation;
    const char *before = ": ";
    if (e->steps)
        tsr_text_printf(out, "%" PRId64 " steps of ", e->steps);
    else
        tsr_text_puts(out, "a step of ");
    tsr_text_printf(out, "%.0f tokens and %.4g GFLOP", e->step_tokens, e->step_flops * 1e-9);
    if (!e->known) {
        tsr_text_printf(out,
                        "; expected time: unknown. Run `%s env --measure` once on such a machine, "
                        "or give its figures with --roofs FILE\n",
                        tsr_called());
        return;
    }
    tsr_text_printf(out, "; expected %.4g ms each, %.4g tokens/s", 1e3 * s->step,
                    e->step_tokens / s->step);
    if (e->steps)
        tsr_text_printf(out, ", %.3g s in all", s->step * (double)e->steps);
    tsr_text_printf(out, "\n  of it compute waits %.3g ms", 1e3 * waits(s));
    for (tsr_wait_cause i = 0; i < TSR_CAUSE_COUNT; i++) {
        if (s->exposed[i] < 1e-6)
            continue;
        tsr_text_printf(out, "%s%s %.3g", before, cause_name(i), 1e3 * s->exposed[i]);
        before = ", ";
    }
    tsr_text_printf(out, "; transfers beside it slow it by %.3g ms\n  roofs of ", 1e3 * s->slowed);
    tsr_text_name(out, speeds->device);
    tsr_text_puts(out, ", ");
    tsr_text_name(out, speeds->source);
    print_built_in(out, d, speeds);
    tsr_text_puts(out, "\n");
}

/* What was compared; times only as shares where nothing was measured. */
static void print_alternatives(tsr_text *out, const tsr_decision *d)
{
    double unit = d->expected.known ? 1e-3 : chosen_seconds(d);
    if (d->alternative_count < 2)
        return;
    tsr_text_printf(out, "\n  %-13s %8s %12s %11s %9s %11s %9s  %s\n", "base", "resident",
                    "recompute", "activations", "optimizer", "device GiB", "host GiB",
                    d->expected.known ? "ms" : "time");
    for (int i = 0; i < d->alternative_count; i++) {
        const tsr_alternative *a = &d->alternative[i];
        char activations[24] = "device";
        if (a->offloaded_count)
            snprintf(activations, sizeof activations, "host %d", a->offloaded_count);
        tsr_text_printf(out, "%s %-13s %8d %6d /%4d %11s %9s %11.2f %9.2f  ", a->chosen ? "*" : " ",
                        a->offload == TSR_CONFIG_OFFLOAD_NONE      ? "device"
                        : a->offload == TSR_CONFIG_OFFLOAD_SHARDED ? "host, sharded"
                                                                   : "host, full",
                        a->resident_count, a->selective_count, a->full_count, activations,
                        a->state ? "host" : "device", (double)a->device_bytes / 0x1p30,
                        (double)a->host_bytes / 0x1p30);
        if (a->fits)
            tsr_text_printf(out, d->expected.known ? "%.1f\n" : "%.2f\n", a->seconds / unit);
        else
            tsr_text_printf(out, "does not fit %.2f GiB\n", (double)d->budget / 0x1p30);
    }
    tsr_text_puts(out, "recompute: layers that repeat part / all of their forward; "
                       "activations: layers whose activations go to host memory\n");
}

static const char *base_compute(const tsr_decision *d)
{
    return d->model.fp8_fast ? "fp8_fast" : d->model.fp8 ? "fp8" : "dtype";
}

static tsr_status print_graphs(tsr_text *out, const tsr_decision *d, const tsr_inputs *inputs,
                               bool json)
{
    tsr_batch_shape shapes[TSR_DECIDE_SHAPES];
    int count = tsr_decide_shapes(shapes, inputs, d->train);
    return tsr_model_print_graphs(out, &d->model, NULL, shapes, count, json);
}

/* Where layers are not units: each with the units that it is in. */
static void print_json_layers(tsr_text *out, const tsr_decision *d, const tsr_layout *layout)
{
    tsr_text_puts(out, "],\n\"layers\":[");
    for (int l = 0; l < layout->layer_count; l++) {
        const tsr_layout_unit *own = &layout->unit[l];
        tsr_text_printf(out, "%s\n{\"layer\":%d,\"first_unit\":%d,\"last_unit\":%d", l ? "," : "",
                        l, own->first_unit, own->first_unit + own->part_count - 1);
        print_json_kept(out, d, l);
        tsr_text_puts(out, "}");
    }
}

/* The largest unit of [first, end), gathered. */
static uint64_t largest_unit(const tsr_decision *d, int first, int end)
{
    uint64_t most = 0;
    for (int u = first; u < end; u++) {
        uint64_t bytes = d->units[u].frozen.gathered_bytes + d->units[u].trainable.gathered_bytes;
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* Of a model that has them. */
static void print_json_experts(tsr_text *out, const tsr_decision *d, const tsr_layout *layout)
{
    const tsr_model_experts *e = &layout->config.experts;
    if (layout->idle_count)
        tsr_text_printf(out,
                        ",\"experts\":%" PRIu64 ",\"experts_of_a_token\":%" PRIu64
                        ",\"active_parameters\":%" PRIu64 ",\"decoded_layers\":%d",
                        e->count, e->chosen, layout->parameter_count - layout->idle_count,
                        d->decoded_count);
}

static tsr_status print_json(tsr_text *out, const tsr_decision *d, const tsr_inputs *inputs,
                             const tsr_topology_view *view, const tsr_speeds *speeds,
                             const tsr_largest *largest)
{
    const tsr_layout *layout = &inputs->layout;
    const tsr_memory_plan *memory = &d->memory;
    const tsr_head_sharing heads = tsr_model_most_sharing(&d->model, d->programs);
    tsr_text_printf(
        out,
        "{\"ranks\":%d,\"shard_group_size\":%d,\"replicas\":%d,"
        "\"plan_hash\":\"%016" PRIx64 "\",\"device_peak_bytes\":%" PRIu64
        ",\"host_peak_bytes\":%" PRIu64 ",\"node_bytes\":%" PRIu64
        ",\"device_reserve_bytes\":%" PRIu64 ",\"memory_budget\":%" PRIu64
        ",\"host_memory_budget\":%" PRIu64 ",\"parameters\":%" PRIu64
        ",\"trainable_parameters\":%" PRIu64
        ",\"base_compute\":\"%s\",\"slots\":%d,\"activation_offloading\":%s,"
        "\"offloaded_layers\":%d,\"optimizer_offload\":%s,"
        "\"optimizer_chunks\":%d,\"keeps_adapter\":%s,\"stride\":%d,\"tile_rows\":%" PRId64
        ",\"context_parallel_size\":%d,\"rank_tokens\":%" PRId64
        ",\"head_groups\":%d,\"heads_of_ranks\":%s",
        view->ranks, d->group, d->replicas, d->plan->hash, memory->total[TSR_PLACE_DEVICE],
        memory->total[TSR_PLACE_HOST], memory->total[TSR_PLACE_NODE], d->reserve, d->budget,
        d->host_budget, layout->parameter_count, layout->trainable_count, base_compute(d),
        d->plan->options.slots, d->offloaded_count > 0 ? "true" : "false", d->offloaded_count,
        d->state_offloaded ? "true" : "false", d->plan->chunk_count,
        d->plan->reduces_late ? "true" : "false", d->stride ? d->stride : 1,
        tsr_decide_tile_rows(d), d->model.spans.ranks, d->model.bounds.tokens, heads.groups,
        heads.by_heads ? "true" : "false");
    print_json_experts(out, d, layout);
    tsr_text_puts(out, ",\n\"units\":[");
    for (int i = 0; i < layout->plan_unit_count; i++) {
        const tsr_unit *unit = &d->units[i];
        tsr_text_printf(out,
                        "%s\n{\"unit\":%d,\"home\":\"%s\",\"frozen_bytes\":%" PRIu64
                        ",\"frozen_shard_bytes\":%" PRIu64 ",\"trainable_bytes\":%" PRIu64,
                        i ? "," : "", i, tsr_home_name(unit->home), unit->frozen.gathered_bytes,
                        unit->frozen.shard_bytes, unit->trainable.gathered_bytes);
        if (i < layout->layer_count && !layout->grouped)
            print_json_kept(out, d, i);
        tsr_text_puts(out, "}");
    }
    if (layout->grouped)
        print_json_layers(out, d, layout);
    tsr_text_puts(out, "],\n\"buffers\":[");
    TSR_TRY(tsr_decide_print_buffers(out, memory, true));
    tsr_text_puts(out, "],\n\"shapes\":");
    print_shapes(out, inputs, inputs->batch ? inputs->batch : inputs->eval_batch);
    if (inputs->batch && inputs->eval_batch) {
        tsr_text_puts(out, ",\n\"eval_shapes\":");
        print_shapes(out, inputs, inputs->eval_batch);
    }
    tsr_text_puts(out, ",\n\"graphs\":[");
    TSR_TRY(print_graphs(out, d, inputs, true));
    tsr_text_puts(out, "]");
    if (largest->tokens)
        tsr_text_printf(out,
                        ",\n\"largest\":{\"micro_batch_tokens\":%" PRId64
                        ",\"sequence_tokens\":%" PRId64 ",\"layers\":%" PRId64
                        ",\"parameters\":%" PRIu64 "}",
                        largest->tokens, largest->sequence, largest->layers, largest->parameters);
    print_json_expected(out, d, speeds);
    print_json_alternatives(out, d);
    tsr_text_puts(out, "}\n");
    return TSR_OK;
}

static void print_shape_range(tsr_text *out, const char *what, const tsr_batch_run *run)
{
    const tsr_batch_bucket *first = run->bucket, *last = run->bucket + run->bucket_count - 1;
    tsr_text_printf(
        out, "micro-batches of %s in %d shapes: %d to %d tokens, %d to %d of them labels\n", what,
        run->bucket_count, first->tokens, last->tokens, first->label_rows, last->label_rows);
}

int tsr_decide_shapes(tsr_batch_shape out[TSR_DECIDE_SHAPES], const tsr_inputs *inputs, bool train)
{
    const tsr_batch *batches[2] = {inputs->batch, inputs->eval_batch};
    int count = 0;
    for (int i = 0; i < 2; i++) {
        const tsr_batch_run *run = batches[i] ? tsr_batch_run_of(batches[i]) : NULL;
        for (int j = run ? run->bucket_count - 1 : -1; j >= 0; j--)
            out[count++] = (tsr_batch_shape){run->bucket[j].tokens, run->bucket[j].label_rows,
                                             train && i == 0};
    }
    if (!inputs->batch && !inputs->eval_batch)
        out[count++] = (tsr_batch_shape){inputs->bounds.tokens, inputs->bounds.label_rows, train};
    return count;
}

static const char *or_more(int64_t found, int64_t limit)
{
    return found == limit ? " or more" : "";
}

static void print_largest(tsr_text *out, const tsr_decision *d, const tsr_inputs *inputs,
                          const tsr_largest *l)
{
    int64_t longest = inputs->bounds.longest;
    tsr_text_printf(out,
                    "memory_budget %.2f GiB: micro-batches of up to %" PRId64
                    "%s tokens fit (this job's: %" PRId64 "), %" PRId64 " rows of %" PRId64
                    "; or one row of up to %" PRId64 "%s tokens\n",
                    (double)d->budget / 0x1p30, l->tokens, or_more(l->tokens, TSR_MOST_TOKENS),
                    inputs->bounds.tokens, l->tokens / longest, longest, l->sequence,
                    or_more(l->sequence, TSR_MOST_TOKENS));
    if (l->layers == 0)
        return;
    tsr_text_printf(
        out,
        "or this job's micro-batches on a model of up to %" PRId64 "%s such layers "
        "(this one: %d), %.4g billion parameters%s\n",
        l->layers, or_more(l->layers, TSR_MOST_LAYERS), inputs->layout.layer_count,
        1e-9 * (double)l->parameters,
        inputs->config.offload == TSR_CONFIG_OFFLOAD_AUTO ? ", with its base on the device" : "");
}

/* What unit_policy made. */
static void print_units(tsr_text *out, const tsr_decision *d, const tsr_layout *layout)
{
    int head = layout->plan_head_unit, all = layout->plan_unit_count;
    tsr_text_printf(out,
                    "units: %d of %d layers, of at most %" PRIu64
                    " bytes gathered, and %d of the head, of at most %" PRIu64
                    "; a slot has %" PRIu64 "\n",
                    head, layout->layer_count, largest_unit(d, 0, head), all - head,
                    largest_unit(d, head, all), d->plan->slot_bytes);
}

static void print_context(tsr_text *out, const tsr_decision *d, const tsr_inputs *inputs)
{
    size_t before = out->length;
    tsr_decide_put_context(out, d, inputs);
    if (out->length == before)
        return;
    tsr_text_puts(out, " (context_parallel_size)\n");
    tsr_head_sharing heads = tsr_model_most_sharing(&d->model, d->programs);
    if (heads.by_heads)
        tsr_text_puts(out, "for attention each rank has all rows of key heads of its own\n");
    if (heads.groups > 1)
        tsr_text_printf(
            out,
            "attention runs in %d groups of key heads; ranks exchange the rows of the next group "
            "meanwhile\n",
            heads.groups);
}

static tsr_status print_people(tsr_text *out, const tsr_decision *d, const tsr_inputs *inputs,
                               const tsr_topology_view *view, const tsr_speeds *speeds,
                               const tsr_largest *largest)
{
    const tsr_memory_plan *memory = &d->memory;
    TSR_TRY(tsr_decide_print_buffers(out, memory, false));
    tsr_text_printf(out,
                    "\nrank 0 of %d, shard groups of %d: device peak %" PRIu64
                    " bytes, host peak %" PRIu64 " bytes, once a node %" PRIu64 " bytes\n",
                    view->ranks, d->group, memory->total[TSR_PLACE_DEVICE],
                    memory->total[TSR_PLACE_HOST], memory->total[TSR_PLACE_NODE]);
    if (d->reserve)
        tsr_text_printf(out,
                        "beside it %" PRIu64 " bytes of device memory are left to CUDA's context, "
                        "modules and libraries\n",
                        d->reserve);
    tsr_text_printf(out,
                    "%d units (%d resident), %d slots; of %d layers %d recompute selectively, %d "
                    "fully; plan %016" PRIx64 "\n",
                    inputs->layout.plan_unit_count, d->resident_count, d->plan->options.slots,
                    inputs->layout.layer_count, d->selective_count, d->full_count, d->plan->hash);
    if (inputs->layout.idle_count) {
        tsr_text_puts(out, "experts: ");
        tsr_decide_put_experts(out, &inputs->layout);
        tsr_text_puts(out, "\n");
    }
    if (d->decoded_count)
        tsr_text_printf(out, "those of %d layers are decoded once and stay so (decoded_layers)\n",
                        d->decoded_count);
    print_units(out, d, &inputs->layout);
    print_kept(out, d, inputs->layout.layer_count);
    if (d->stride)
        tsr_text_printf(out,
                        "of every %d layers one keeps its input; those of the others are made "
                        "again, in one more forward\n",
                        d->stride);
    if (tsr_decide_tile_rows(d))
        tsr_text_printf(out,
                        "a layer's linears, norms and what else makes each row by itself run on "
                        "%" PRId64 " tokens at a time (context_span)\n",
                        tsr_decide_tile_rows(d));
    print_context(out, d, inputs);
    if (d->plan->reduces_late)
        tsr_text_puts(out, "every rank keeps the whole adapter gathered for a step, and "
                           "gradients are reduced at the end of the backward\n");
    if (inputs->cuda && d->budget == TSR_BUDGET_UNKNOWN && d->group > 1 &&
        inputs->config.resident_units < 0)
        tsr_text_puts(
            out,
            "the card's memory is unknown here: set memory_budget to keep units that fit on it\n");
    if (d->model.fp8)
        tsr_text_printf(out, "the base's matmuls run in e4m3 (base_compute: %s)\n",
                        base_compute(d));
    if (inputs->cuda && d->model.atomics)
        tsr_text_puts(out, "attention may sum dq by atomics, so another run may have other bits "
                           "(deterministic: false)\n");
    if (d->offloaded_count > 0)
        tsr_text_printf(out,
                        "activations of %d layers are offloaded to host memory, through the memory "
                        "of two on the device (activation_offloading)\n",
                        d->offloaded_count);
    if (d->state_offloaded)
        tsr_text_printf(out,
                        "optimizer state lives in host memory and is updated in %d chunks "
                        "(optimizer_offload)\n",
                        d->plan->chunk_count);
    if (inputs->batch)
        print_shape_range(out, "training", tsr_batch_run_of(inputs->batch));
    if (inputs->eval_batch)
        print_shape_range(out, "evaluation", tsr_batch_run_of(inputs->eval_batch));
    TSR_TRY(print_graphs(out, d, inputs, false));
    if (largest->tokens)
        print_largest(out, d, inputs, largest);
    print_expected(out, d, speeds);
    print_alternatives(out, d);
    return TSR_OK;
}

tsr_status tsr_decision_print(tsr_text *out, const tsr_decision *decision, const tsr_inputs *inputs,
                              const tsr_topology_view *view, const tsr_speeds *speeds,
                              const tsr_largest *largest, bool json)
{
    TSR_TRY((json ? print_json : print_people)(out, decision, inputs, view, speeds, largest));
    return out->failed ? tsr_fail(TSR_ENOMEM, "out of memory while printing the plan") : TSR_OK;
}
