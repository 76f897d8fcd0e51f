#include "model/work_parts.h"

#include <math.h>

const char *tsr_work_term_name(tsr_work_term term)
{
    static const char *const names[TSR_WORK_TERMS] = {
        "linears forward",   "linears backward",  "adapters forward",
        "adapters backward", "attention forward", "attention backward",
        "memory forward",    "memory backward",   "nf4",
        "fp8 quantization",  "dora norms and dm", "head and loss",
        "recomputation",     "optimizer"};
    return names[term];
}

double tsr_work_seconds(const tsr_work_rates *rates, const tsr_work_op *op)
{
    double reached = rates->reached[op->kind], rate = rates->matmul;
    const tsr_work_amount *work = reached > 0 ? &op->here : &op->least;
    if (reached > 0 && op->least_only)
        return 0;
    if (op->kind == TSR_WORK_MATMUL_FP8 || op->kind == TSR_WORK_GROUPED_FP8)
        rate = rates->matmul_fp8;
    if (op->kind == TSR_WORK_ATTEND)
        rate = rates->attention_forward;
    if (op->kind == TSR_WORK_ATTEND_BACK)
        rate = rates->attention_backward;
    double bytes = op->kind == TSR_WORK_EXCHANGE ? rates->exchange : rates->copy;
    double copy = work->bytes / bytes, compute = work->flops / rate;
    double seconds = (copy > compute ? copy : compute) / (reached > 0 ? reached : 1);
    seconds = hypot(seconds, fmax(op->calls, 1) * rates->ends_s[op->kind]);
    if (!op->beside)
        return seconds;
    double first = seconds / op->parts, rest = 1 - 1.0 / op->parts;
    return first + fmax(0, rest * (seconds - tsr_work_seconds(rates, op->beside)));
}

/* ---- operations ---- */

void tsr_cost_both(const tsr_costing *c, tsr_work_term term, tsr_work_kind kind,
                   tsr_work_amount least, tsr_work_amount here)
{
    const tsr_work_amount nothing = {0, 0};
    double calls = fmax(c->calls, 1);
    const tsr_work_op op = {
        .term = c->again ? TSR_WORK_RECOMPUTE : term,
        .kind = kind,
        .least = c->calls > 0 ? nothing : least,
        .here = c->least_only ? nothing : (tsr_work_amount){calls * here.flops, calls * here.bytes},
        .calls = calls,
        .least_only = c->least_only};
    c->call(c->user, &op);
}

void tsr_cost_bytes(const tsr_costing *c, tsr_work_term term, double bytes)
{
    const tsr_work_amount work = {0, bytes};
    tsr_cost_both(c, term, TSR_WORK_STREAM, work, work);
}

void tsr_cost_quantize(const tsr_costing *c, double width, bool made)
{
    double bytes = c->layer->tokens * width, read = made ? 0 : bytes * c->layer->element;
    if (c->layer->fp8)
        tsr_cost_both(c, TSR_WORK_QUANTIZE, TSR_WORK_STREAM, (tsr_work_amount){0, bytes},
                      (tsr_work_amount){0, bytes + read});
}

/* ---- tiles ---- */

/* Gradients of adapters are rounded and added up: one is read with the sum of the tiles before it, and the sum written. */
static void cost_sums(const tsr_costing *c, const tsr_step *step, double tiles)
{
    tsr_step_gradient written[TSR_STEP_GRADIENTS];
    int count = tsr_step_gradients(written, c->layer->program, step);
    double bytes = 0;
    for (int i = 0; i < count; i++)
        bytes += (tiles * (sizeof(float) + 2 * sizeof(int64_t)) - sizeof(int64_t)) *
                 (double)(written[i].rows * written[i].columns);
    if (count)
        tsr_cost_both(c, TSR_WORK_ADAPTERS_BACKWARD, TSR_WORK_STREAM, (tsr_work_amount){0, 0},
                      (tsr_work_amount){0, bytes});
}

/* At least, all rows are done at once: each weight is decoded, and read, for all of them. */
void tsr_cost_step(const tsr_costing *c, const tsr_step *step, tsr_pass_kind pass)
{
    const tsr_node *node = &c->layer->program->block->node[step->node];
    tsr_tile_kind kinds[2];
    int count = tsr_tile_kinds(kinds, c->layer->program, step->node, (int64_t)c->layer->tokens);
    double tiles = 0;
    tsr_costing part = *c;
    part.least_only = count > 1 || kinds[0].count > 1;
    node->kind->cost(&part, node, step, pass);
    for (int i = 0; part.least_only && i < count; i++) {
        tsr_work_layer rows = *c->layer;
        rows.tokens = (double)kinds[i].tokens;
        node->kind->cost(&(tsr_costing){.layer = &rows,
                                        .call = c->call,
                                        .user = c->user,
                                        .again = c->again,
                                        .calls = (double)kinds[i].count},
                         node, step, pass);
        tiles += (double)kinds[i].count;
    }
    if (c->layer->program->tile_rows && pass == TSR_PASS_BACKWARD)
        cost_sums(c, step, fmax(tiles, 1));
}

/* ---- the uses of a unit ---- */

/* Steps [first, end). */
static void run(const tsr_costing *c, const tsr_steps *steps, tsr_pass_kind pass, int first,
                int end)
{
    for (int i = first > 0 ? first : 0; i < end && i < steps->count; i++)
        tsr_cost_step(c, &steps->step[i], pass);
}

/* x + z and its norm read two and write two; the backward reads dh, x and dx and writes dx. */
static double final_norm_bytes(const tsr_costing *c)
{
    return 4 * tsr_cost_column(c) * (double)c->layer->program->block->width;
}

static tsr_layer_run run_of(const tsr_work_layer *layer)
{
    return layer->run ? *layer->run : TSR_WHOLE_LAYER;
}

void tsr_work_forward(const tsr_work_layer *layer, tsr_work_call *call, void *user)
{
    const tsr_layer_run part = run_of(layer);
    const tsr_costing c = {.layer = layer, .call = call, .user = user};
    run(&c, &layer->program->forward, TSR_PASS_FORWARD, part.first, part.end);
    if (layer->last && part.end >= layer->program->forward.count)
        tsr_cost_bytes(&c, TSR_WORK_MEMORY_FORWARD, final_norm_bytes(&c));
}

void tsr_work_backward(const tsr_work_layer *layer, tsr_work_call *call, void *user)
{
    const tsr_layer_run part = run_of(layer);
    const tsr_costing c = {.layer = layer, .call = call, .user = user},
                      again = {.layer = layer, .call = call, .user = user, .again = true};
    const tsr_steps *remade = &layer->program->remade, *backward = &layer->program->backward;
    run(&again, remade, TSR_PASS_REMADE, part.first, part.end);
    run(&c, backward, TSR_PASS_BACKWARD, part.first - remade->count, part.end - remade->count);
    if (layer->last && part.end >= remade->count + backward->count)
        tsr_cost_bytes(&c, TSR_WORK_MEMORY_BACKWARD, final_norm_bytes(&c));
}

void tsr_work_norm(const tsr_work_layer *layer, tsr_work_call *call, void *user)
{
    const tsr_layer_run part = run_of(layer);
    const tsr_costing c = {.layer = layer, .call = call, .user = user};
    const tsr_block *block = layer->program->block;
    for (int i = 0; i < block->matrix_count; i++)
        if (layer->linear[i].dora && block->matrix[i].node >= part.first &&
            block->matrix[i].node < part.end)
            tsr_cost_norm(&c, &layer->linear[i]);
}

/* ---- the head, the update ---- */

/* Logits, and the gradient of the rows from them; between the two the logits are read for their
 * sum, then read and replaced by their gradient. */
void tsr_work_chunk(const tsr_work_head *head, tsr_work_call *call, void *user)
{
    const tsr_work_layer shape = {.element = head->element};
    const tsr_costing c = {.layer = &shape, .call = call, .user = user};
    double logits = head->element * head->rows * head->vocabulary;
    const tsr_work_amount matmul = {
        2 * head->rows * head->vocabulary * head->d,
        head->element *
            (head->rows * head->d + head->d * head->vocabulary + head->rows * head->vocabulary)};
    tsr_cost_both(&c, TSR_WORK_HEAD, TSR_WORK_MATMUL, matmul, matmul);
    tsr_cost_bytes(&c, TSR_WORK_HEAD, head->train ? 3 * logits : logits);
    if (head->train)
        tsr_cost_both(&c, TSR_WORK_HEAD, TSR_WORK_MATMUL, matmul, matmul);
}

void tsr_work_update(double elements, double state, double gradient, double element,
                     tsr_work_call *call, void *user)
{
    const tsr_work_layer shape = {.element = element};
    const tsr_costing c = {.layer = &shape, .call = call, .user = user};
    tsr_cost_bytes(&c, TSR_WORK_OPTIMIZER, 2 * state + (2 * gradient + element) * elements);
}

void tsr_work_layer_of(tsr_work_layer *out, const tsr_layout *layout, int unit)
{
    for (int i = 0; i < tsr_layout_linears(&layout->unit[unit]); i++) {
        const tsr_layout_linear *linear = &layout->unit[unit].linear[i];
        out->linear[i] = (tsr_work_linear){.in = (double)linear->in,
                                           .out = (double)linear->out,
                                           .r = (double)linear->r,
                                           .dora = linear->r && linear->dora,
                                           .nf4 = linear->quantized,
                                           .in_8bit = linear->code_scale != TSR_NO_SEGMENT};
    }
    for (int i = 0; i < tsr_layout_stacks(&layout->unit[unit]); i++) {
        const tsr_layout_stack *stack = &layout->unit[unit].stack[i];
        out->stack[i] = (tsr_work_stack){.r = (double)stack->r,
                                         .nf4 = stack->quantized,
                                         .fp8 = out->fp8 && tsr_layout_stack_fp8(stack)};
    }
    out->last = unit == layout->layer_count - 1;
}
