/*
 * decide_print.c: the memory plan as text and as JSON.
 */
#include "train/decide.h"

#include <inttypes.h>

static const char *const recompute_names[] = {"none", "selective", "full"};
static const char *const place_names[] = {"device", "host", "node"};

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

static void print_json(tsr_text *out, const tsr_decision *d, const tsr_inputs *inputs,
                       const tsr_topology_view *view, const tsr_expectation *expected,
                       int64_t most_tokens)
{
    const tsr_layout *layout = &inputs->layout;
    const tsr_memory_plan *memory = &d->memory;
    tsr_text_printf(out,
                    "{\"ranks\":%d,\"shard_group_size\":%d,\"replicas\":%d,"
                    "\"plan_hash\":\"%016" PRIx64 "\",\"device_peak_bytes\":%" PRIu64
                    ",\"host_peak_bytes\":%" PRIu64 ",\"node_bytes\":%" PRIu64
                    ",\"device_reserve_bytes\":%" PRIu64 ",\"memory_budget\":%" PRIu64
                    ",\"parameters\":%" PRIu64 ",\"trainable_parameters\":%" PRIu64
                    ",\"slots\":%d,\"activation_offloading\":%s,\"optimizer_offload\":%s,"
                    "\"optimizer_chunks\":%d,\n\"units\":[",
                    view->ranks, d->group, d->replicas, d->plan->hash,
                    memory->total[TSR_PLACE_DEVICE], memory->total[TSR_PLACE_HOST],
                    memory->total[TSR_PLACE_NODE], d->reserve, d->budget, layout->parameter_count,
                    layout->trainable_count, d->plan->options.slots,
                    d->activations_offloaded ? "true" : "false",
                    d->state_offloaded ? "true" : "false", d->plan->chunk_count);
    for (int i = 0; i < layout->unit_count; i++) {
        const tsr_unit *unit = &d->units[i];
        tsr_text_printf(out,
                        "%s\n{\"unit\":%d,\"home\":\"%s\",\"frozen_bytes\":%" PRIu64
                        ",\"frozen_shard_bytes\":%" PRIu64 ",\"trainable_bytes\":%" PRIu64,
                        i ? "," : "", i, tsr_home_name(unit->home), unit->frozen.gathered_bytes,
                        unit->frozen.shard_bytes, unit->trainable.gathered_bytes);
        if (i < layout->layer_count)
            tsr_text_printf(out, ",\"recompute\":\"%s\",\"saved_bytes\":%" PRIu64,
                            recompute_names[d->recompute[i]], unit->saved_bytes);
        tsr_text_puts(out, "}");
    }
    tsr_text_puts(out, "],\n\"buffers\":[");
    for (int i = 0; i < memory->count; i++)
        tsr_text_printf(out, "%s\n{\"name\":\"%s\",\"place\":\"%s\",\"bytes\":%" PRIu64 "}",
                        i ? "," : "", memory->buffer[i].name, place_names[memory->buffer[i].place],
                        memory->buffer[i].bytes);
    tsr_text_puts(out, "],\n\"shapes\":");
    print_shapes(out, inputs, inputs->batch ? inputs->batch : inputs->eval_batch);
    if (inputs->batch && inputs->eval_batch) {
        tsr_text_puts(out, ",\n\"eval_shapes\":");
        print_shapes(out, inputs, inputs->eval_batch);
    }
    if (most_tokens)
        tsr_text_printf(out, ",\n\"most_tokens\":%" PRId64, most_tokens);
    if (expected)
        tsr_text_printf(out,
                        ",\n\"expected\":{\"steps\":%" PRId64
                        ",\"step_flops\":%.9g,\"rank_flops_per_s\":%.9g,\"step_s\":%.9g}",
                        expected->steps, expected->step_flops, expected->rank_flops_s,
                        expected->step_seconds);
    tsr_text_puts(out, "}\n");
}

static void print_shape_range(tsr_text *out, const char *what, const tsr_batch_run *run)
{
    const tsr_batch_bucket *first = run->bucket, *last = run->bucket + run->bucket_count - 1;
    tsr_text_printf(
        out, "micro-batches of %s in %d shapes: %d to %d tokens, %d to %d of them labels\n", what,
        run->bucket_count, first->tokens, last->tokens, first->label_rows, last->label_rows);
}

static void print_most_tokens(tsr_text *out, const tsr_decision *d, const tsr_inputs *inputs,
                              int64_t most)
{
    int64_t longest = inputs->bounds.longest;
    tsr_text_printf(out,
                    "memory_budget %.2f GiB: micro-batches of up to %" PRId64
                    "%s tokens fit (this job's: %" PRId64 "), %" PRId64 " rows of %" PRId64 "\n",
                    (double)d->budget / 0x1p30, most, most == TSR_MOST_TOKENS ? " or more" : "",
                    inputs->bounds.tokens, most / longest, longest);
}

static void print_people(tsr_text *out, const tsr_decision *d, const tsr_inputs *inputs,
                         const tsr_topology_view *view, const tsr_expectation *expected,
                         int64_t most_tokens)
{
    const tsr_memory_plan *memory = &d->memory;
    tsr_text_printf(out, "%-7s %15s  %s\n", "place", "bytes", "buffer");
    for (int i = 0; i < memory->count; i++)
        tsr_text_printf(out, "%-7s %15" PRIu64 "  %s%s%s%s\n", place_names[memory->buffer[i].place],
                        memory->buffer[i].bytes, memory->buffer[i].name,
                        memory->buffer[i].note[0] ? " (" : "", memory->buffer[i].note,
                        memory->buffer[i].note[0] ? ")" : "");
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
                    inputs->layout.unit_count, d->resident_count, d->plan->options.slots,
                    inputs->layout.layer_count, d->selective_count, d->full_count, d->plan->hash);
    if (d->activations_offloaded)
        tsr_text_printf(out,
                        "activations go to host memory through two layers' worth of the device "
                        "(activation_offloading)\n");
    if (d->state_offloaded)
        tsr_text_printf(out,
                        "optimizer state lives in host memory and is updated in %d chunks "
                        "(optimizer_offload)\n",
                        d->plan->chunk_count);
    if (inputs->batch)
        print_shape_range(out, "training", tsr_batch_run_of(inputs->batch));
    if (inputs->eval_batch)
        print_shape_range(out, "evaluation", tsr_batch_run_of(inputs->eval_batch));
    if (most_tokens)
        print_most_tokens(out, d, inputs, most_tokens);
    if (!expected || !expected->steps)
        return;
    tsr_text_printf(out,
                    "%" PRId64 " steps of %.4g GFLOP; at %.4g GFLOP/s a rank (a matmul on this "
                    "machine) at least %.3g s each, %.3g s in all\n",
                    expected->steps, expected->step_flops * 1e-9, expected->rank_flops_s * 1e-9,
                    expected->step_seconds, expected->step_seconds * (double)expected->steps);
}

tsr_status tsr_decision_print(tsr_text *out, const tsr_decision *decision, const tsr_inputs *inputs,
                              const tsr_topology_view *view, const tsr_expectation *expected,
                              int64_t most_tokens, bool json)
{
    if (json)
        print_json(out, decision, inputs, view, expected, most_tokens);
    else
        print_people(out, decision, inputs, view, expected, most_tokens);
    return out->failed ? tsr_fail(TSR_ENOMEM, "out of memory while printing the plan") : TSR_OK;
}
