/*
 * model_floor.c: the least that a step takes at the roofs of the same run, and what it is of that.
 */
#include "llama_layer.h"
#include "model.h"

#include <stdio.h>
#include <string.h>

static double roof(const json_t *roofs, const char *key)
{
    return json_number_value(json_object_get(roofs, key));
}

typedef struct {
    double bytes, flops, seconds;
} term_sum;

typedef struct {
    tsr_work_rates rates;
    term_sum term[TSR_WORK_TERMS];
    double seconds;
} floor_sum;

static void add_operation(void *user, const tsr_work_op *op)
{
    floor_sum *sum = user;
    double seconds = tsr_work_seconds(&sum->rates, op);
    sum->term[op->term].bytes += op->least.bytes;
    sum->term[op->term].flops += op->least.flops;
    sum->term[op->term].seconds += seconds;
    sum->seconds += seconds;
}

/* Tokens, and pairs of them that see each other, over all documents; window 0: all before a token. */
static double count_pairs(double *tokens, const bench_run *run, double window)
{
    double pairs = 0;
    *tokens = 0;
    for (int64_t i = 0; i < run->row_count; i++) {
        double length = (double)run->row[i];
        double most = window > 0 && window < length ? window : length;
        pairs += most * (most + 1) / 2 + (length - most) * most;
        *tokens += length;
    }
    return pairs;
}

static double window_of(const tsr_block *block)
{
    for (int i = 0; i < block->node_count; i++)
        if (block->node[i].kind == &tsr_node_attention)
            return block->node[i].spec.attention.window;
    return 0;
}

/* Whether the command line names what has adapters: linears, and no experts. */
static bool names_targets(const bench_run *run)
{
    static const char key[] = "lora_target_modules=[";
    for (int i = 0; i < run->override_count; i++)
        if (!strncmp(run->overrides[i], key, sizeof key - 1))
            return true;
    return false;
}

/* Layer `index` of the shape; returns the elements that are trained in it. */
static double set_layer(llama_layer *layer, const tsr_model_config *config, int index,
                        const bench_run *run, const bench_result *r)
{
    const tsr_work_linear like = {.r = (double)run->r,
                                  .dora = run->dora,
                                  .nf4 = r->nf4,
                                  .in_8bit = r->int8,
                                  .drops = r->dropout > 0};
    double elements = 0;
    if (llama_layer_make(layer, config, index, like, 2, r->fp8) < 0)
        return 0; /* a shape that runs can be described */
    for (int i = 0; i < layer->block.stack_count; i++) {
        const tsr_stack *x = &layer->block.stack[i];
        tsr_work_stack *work = &layer->layer.stack[i];
        work->nf4 |= config->mxfp4;
        work->fp8 &= !config->mxfp4;
        work->r = names_targets(run) ? 0 : work->r;
        elements += (double)x->experts * work->r * (double)(x->in + x->out);
    }
    for (int i = 0; i < layer->block.matrix_count; i++) {
        const tsr_work_linear *x = &layer->layer.linear[i];
        elements += x->r * (x->in + x->out) + (run->dora ? x->out : 0);
    }
    return elements;
}

/* What was summed for one micro-batch, for so many. */
static void scale_sum(floor_sum *sum, double micro)
{
    for (int i = 0; i < TSR_WORK_TERMS; i++) {
        sum->term[i].bytes *= micro;
        sum->term[i].flops *= micro;
        sum->term[i].seconds *= micro;
    }
    sum->seconds *= micro;
}

/* The least work of a step on one rank, every token a label: of one micro-batch, or of its part of those that it shares, whose
 * weights are decoded once for all. */
static void sum_floor(floor_sum *sum, const bench_run *run, const bench_result *r)
{
    static llama_layer l;
    const bench_shape *s = &run->shape;
    tsr_model_config config;
    double elements = 0, micro = bench_micro_batches(run, r);
    if (bench_config_make(&config, run) < 0)
        return; /* a shape that runs can be described */
    for (int i = 0; i < s->layers; i++) {
        elements += set_layer(&l, &config, i, run, r);
        l.layer.pairs = count_pairs(&l.layer.tokens, run, window_of(&l.block)) / micro;
        l.layer.tokens /= micro;
        llama_layer_program(&l, i == 0, r->keep[i]);
        l.layer.last = i == s->layers - 1;
        tsr_work_norm(&l.layer, add_operation, sum);
        tsr_work_forward(&l.layer, add_operation, sum);
        tsr_work_backward(&l.layer, add_operation, sum);
    }
    const tsr_work_head head = {l.layer.tokens, (double)s->d, (double)s->vocabulary,
                                l.layer.element, true};
    tsr_work_chunk(&head, add_operation, sum);
    scale_sum(sum, micro);
    tsr_work_update(elements, 12 * elements, 4, l.layer.element, add_operation, sum);
}

static json_t *print_terms(const term_sum *term)
{
    json_t *terms = json_object();
    for (tsr_work_term i = 0; i < TSR_WORK_TERMS; i++) {
        const char *name = tsr_work_term_name(i);
        if (term[i].seconds <= 0)
            continue;
        fprintf(stderr, "  %-20s %9.2f GB %10.1f GFLOP %9.3f ms\n", name, 1e-9 * term[i].bytes,
                1e-9 * term[i].flops, 1e3 * term[i].seconds);
        json_object_set_new(terms, name, json_real(1e3 * term[i].seconds));
    }
    return terms;
}

int bench_floor_add(json_t *all, const bench_run *run, const bench_result *r, double step_s)
{
    json_error_t error;
    json_t *roofs = json_load_file(run->roofs, 0, &error);
    double forward = 0, backward = 0;
    if (!roofs || roof(roofs, "gemm_tflop_s") <= 0 || roof(roofs, "copy_gb_s") <= 0 ||
        (r->fp8 && roof(roofs, "fp8_gemm_tflop_s") <= 0)) {
        fprintf(stderr, "bench_model: %s: %s\n", run->roofs, roofs ? "no roofs" : error.text);
        json_decref(roofs);
        return -1;
    }
    if (bench_attention_roof(&forward, &backward, run, &r->attention) < 0) {
        json_decref(roofs);
        fprintf(stderr, "bench_model: attention's roof: %s\n", tsr_last_error());
        return -1;
    }
    floor_sum sum = {.rates = {.matmul = 1e12 * roof(roofs, "gemm_tflop_s"),
                               .copy = 1e9 * roof(roofs, "copy_gb_s"),
                               .attention_forward = forward,
                               .attention_backward = backward,
                               .matmul_fp8 = 1e12 * roof(roofs, "fp8_gemm_tflop_s")}};
    sum_floor(&sum, run, r);
    double floor = sum.seconds, h2d = 1e9 * roof(roofs, "h2d_gb_s");
    double copy_s = h2d > 0 ? r->host_traffic / h2d : 0, bound = copy_s > floor ? copy_s : floor;
    json_t *terms = print_terms(sum.term);
    json_object_set_new(
        all, "floor",
        json_pack("{sf sf sf sf sf sf sf sf so}", "floor_ms", 1e3 * floor, "gemm_tflop_s",
                  roof(roofs, "gemm_tflop_s"), "fp8_gemm_tflop_s", roof(roofs, "fp8_gemm_tflop_s"),
                  "copy_gb_s", roof(roofs, "copy_gb_s"), "attention_forward_tflop_s",
                  1e-12 * forward, "attention_backward_tflop_s", 1e-12 * backward, "h2d_gb_s",
                  1e-9 * h2d, "h2d_ms", 1e3 * copy_s, "terms_ms", terms));
    json_object_set_new(all, "sol", json_real(floor / step_s));
    json_object_set_new(all, "of_bound", json_real(step_s / bound));
    fprintf(stderr, "  floor %.2f ms, host to device %.2f ms: SOL %.3f, step / bound %.3f\n",
            1e3 * floor, 1e3 * copy_s, floor / step_s, step_s / bound);
    json_decref(roofs);
    return 0;
}
