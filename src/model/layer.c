#include "model/layer.h"

#include "model/node_parts.h"

#include <string.h>

static void *address(const tsr_layer_memory *memory, tsr_value_place place)
{
    switch (place.kind) {
    case TSR_PLACE_KEPT:
        return memory->kept[place.at];
    case TSR_PLACE_SCRATCH:
        return memory->scratch ? memory->scratch + place.at : NULL;
    case TSR_PLACE_CARRIED_X:
        return memory->carried_x;
    case TSR_PLACE_CARRIED_Z:
        return memory->carried_z;
    case TSR_PLACE_DX:
        return memory->dx;
    case TSR_PLACE_SHARED:
        return memory->shared[place.at];
    case TSR_PLACE_SHARED_GRADIENT:
        return memory->shared_gradient[place.at];
    case TSR_PLACE_NOWHERE:
        break;
    }
    return NULL;
}

/* Of what all layers take a part of: where the part of the layer at work begins. */
static uint64_t part_offset(const tsr_pass *pass, const tsr_value *value)
{
    return (uint64_t)pass->batch->layer * (uint64_t)pass->batch->tokens * value->width *
           tsr_dtype_bytes(pass->context->dtype);
}

/* From row `first` of a value on; NULL stays. */
static void *rows_at(void *address, const tsr_pass *pass, const tsr_layer_program *program,
                     int value, int64_t first)
{
    const tsr_value *v = &pass->block->value[value];
    uint64_t element = v->statistic ? sizeof(float) : tsr_dtype_bytes(pass->context->dtype);
    uint64_t count = (uint64_t)first * tsr_value_width(program, value);
    if (v->fixed && first > 0)
        count += (uint64_t)(first / program->tile_rows) * v->fixed;
    return address ? (char *)address + count * element : NULL;
}

/* From the rows on that the pass begins with, where all rows are there. */
static void resolve(void *out[TSR_BLOCK_VALUES], const tsr_pass *pass,
                    const tsr_layer_program *program, const tsr_layer_memory *memory,
                    const tsr_value_place *places, int64_t first)
{
    for (int v = 0; v < pass->block->value_count; v++) {
        const tsr_value *value = &pass->block->value[v];
        bool shared =
            places[v].kind == TSR_PLACE_SHARED || places[v].kind == TSR_PLACE_SHARED_GRADIENT;
        out[v] = address(memory, places[v]);
        if (out[v] && shared && value->of_layer)
            out[v] = (char *)out[v] + part_offset(pass, value);
        if (!places[v].of_tile)
            out[v] = rows_at(out[v], pass, program, v, first);
    }
}

static tsr_pass begin(const tsr_linear_context *context, const tsr_model_tables *tables,
                      const tsr_layer *layer, const tsr_layer_batch *batch)
{
    return (tsr_pass){.context = context,
                      .tables = tables,
                      .batch = batch,
                      .positions = batch->positions,
                      .block = layer->program->block,
                      .traits = layer->program->traits,
                      .linear = layer->linear,
                      .stack = layer->stack,
                      .vector = layer->vector};
}

/* Of rows from `first` on. A backward has no input. */
static void resolve_all(tsr_pass *pass, const tsr_layer_program *program,
                        const tsr_layer_memory *memory, int64_t first)
{
    bool backward = !pass->input;
    resolve(pass->value, pass, program, memory,
            backward ? program->in_backward : program->in_forward, first);
    if (backward) {
        resolve(pass->gradient, pass, program, memory, program->gradient, first);
        return;
    }
    int16_t x = pass->block->in.x, pending = pass->block->in.pending;
    pass->value[x] = rows_at((void *)pass->input->x, pass, program, x, first);
    pass->value[pending] = rows_at((void *)pass->input->z, pass, program, pending, first);
}

/* Step `index` of a forward, or of a backward with what is made again before it. */
static tsr_status run_step(tsr_pass *pass, const tsr_layer_program *program,
                           const tsr_layer_memory *memory, int index)
{
    bool backward = !pass->input, again = backward && index < program->remade.count;
    const tsr_step *step = tsr_step_at(program, backward, index);
    const tsr_node_kind *node = pass->block->node[step->node].kind;
    tsr_pass_kind kind = again ? TSR_PASS_REMADE : backward ? TSR_PASS_BACKWARD : TSR_PASS_FORWARD;
    pass->workspace = address(memory, program->workspace[kind][step->node]);
    pass->workspace_bytes = program->workspace_bytes[step->node];
    pass->codes = address(memory, program->codes[step->node]);
    return kind == TSR_PASS_BACKWARD ? node->backward(pass, step) : node->forward(pass, step);
}

/* ---- tiles ---- */

static void **gradient_of(tsr_layer_gradients *of, const tsr_step_gradient *which)
{
    tsr_layer_gradients *g = &of[which->matrix];
    return which->kind == TSR_GRADIENT_A ? &g->a : which->kind == TSR_GRADIENT_B ? &g->b : &g->m;
}

/* A step of a backward, whose gradients of adapters are added to the sums of the tiles before; `first`: there are none. */
static tsr_status run_adding(const tsr_pass *whole, const tsr_layer_program *program,
                             const tsr_layer_memory *memory, int index, bool first)
{
    const tsr_step *step = tsr_step_at(program, true, index);
    const tsr_linear_context *context = whole->context;
    tsr_pass pass = *whole;
    tsr_layer_gradients own[TSR_BLOCK_WEIGHTS];
    tsr_step_gradient written[TSR_STEP_GRADIENTS];
    tsr_fixed_accumulate_args args[TSR_STEP_GRADIENTS];
    int count = tsr_step_gradients(written, program, step);
    char *at = address(memory, program->sums[step->node]);
    memcpy(own, whole->gradients, sizeof own);
    for (int i = 0; i < count; i++) {
        void **to = gradient_of(own, &written[i]);
        args[i] = (tsr_fixed_accumulate_args){.sum = *to,
                                              .g = (const float *)(const void *)at,
                                              .count = written[i].rows * written[i].columns,
                                              .shift = TSR_FIXED_SHIFT,
                                              .limit = whole->batch->gradient_limit,
                                              .store = first};
        *to = at;
        at += tsr_step_gradient_bytes(&written[i]);
    }
    pass.gradients = own;
    TSR_TRY(run_step(&pass, program, memory, index));
    for (int i = 0; i < count; i++)
        TSR_TRY(context->kernels->fixed_accumulate(context->stream, &args[i]));
    return TSR_OK;
}

/* Any step, of rows from `first` on. A rank that has no rows of a shared micro-batch passes on those of others. */
static tsr_status run_rows(tsr_pass *pass, const tsr_layer_program *program,
                           const tsr_layer_memory *memory, int index, int64_t first)
{
    bool trains = !pass->input && index >= program->remade.count;
    const tsr_step *step = tsr_step_at(program, !pass->input, index);
    if (pass->context->tokens == 0 && pass->block->node[step->node].kind != &tsr_node_attention)
        return TSR_OK;
    return trains && program->tile_rows ? run_adding(pass, program, memory, index, first == 0)
                                        : run_step(pass, program, memory, index);
}

/* The norms of DoRA were made with the first tile. */
static void forget_norms(tsr_linear out[TSR_BLOCK_MATRICES], const tsr_pass *pass)
{
    for (int i = 0; i < pass->block->matrix_count; i++) {
        out[i] = pass->linear[i];
        out[i].norm = NULL;
    }
}

/* Steps [from, end) for rows [first, first + rows) of the micro-batch. */
static tsr_status run_tile(const tsr_pass *whole, const tsr_layer_program *program,
                           const tsr_layer_memory *memory, int from, int end, int64_t first,
                           int64_t rows)
{
    tsr_pass pass = *whole;
    tsr_linear_context context = *whole->context;
    tsr_linear linear[TSR_BLOCK_MATRICES];
    context.tokens = rows;
    context.samples = context.samples ? context.samples + first : NULL;
    context.positions = context.positions ? context.positions + first : NULL;
    pass.context = &context;
    pass.positions = whole->positions + first;
    if (first > 0) {
        forget_norms(linear, whole);
        pass.linear = linear;
    }
    resolve_all(&pass, program, memory, first);
    for (int i = from; i < end; i++)
        TSR_TRY(run_rows(&pass, program, memory, i, first));
    return TSR_OK;
}

/* Steps [first, end). */
static tsr_status run(tsr_pass *pass, const tsr_layer_program *program,
                      const tsr_layer_memory *memory, int first, int end)
{
    int64_t tokens = pass->context->tokens;
    int count = tsr_step_count(program, !pass->input);
    end = end < count ? end : count;
    while (first < end) {
        int last = tsr_tile_end(program, !pass->input, first, end);
        int64_t tile_rows = program->tile_rows ? program->tile_rows : tokens;
        for (int64_t row = 0; first < last && row < tokens; row += tile_rows) {
            int64_t rows = tokens - row < tile_rows ? tokens - row : tile_rows;
            TSR_TRY(run_tile(pass, program, memory, first, last, row, rows));
        }
        if (last == first)
            TSR_TRY(run_rows(pass, program, memory, last++, 0));
        first = last;
    }
    return TSR_OK;
}

void *tsr_layer_first(const tsr_layer_program *program, const tsr_layer_memory *memory)
{
    return address(memory, program->in_forward[program->block->root]);
}

static tsr_pass enter(const tsr_linear_context *context, const tsr_model_tables *tables,
                      const tsr_layer *layer, const tsr_layer_batch *batch,
                      const tsr_layer_memory *memory, const tsr_layer_input *input)
{
    tsr_pass pass = begin(context, tables, layer, batch);
    pass.input = input;
    resolve_all(&pass, layer->program, memory, 0);
    return pass;
}

tsr_status tsr_layer_enter(const tsr_linear_context *context, const tsr_model_tables *tables,
                           const tsr_layer *layer, const tsr_layer_batch *batch,
                           const tsr_layer_memory *memory, const tsr_layer_input *input)
{
    const tsr_layer_program *program = layer->program;
    tsr_pass pass = enter(context, tables, layer, batch, memory, input);
    int count = 1;
    while (program->forward.step[count - 1].node !=
           program->block->value[program->block->root].node)
        count++;
    return run(&pass, program, memory, 0, count);
}

tsr_status tsr_layer_forward(const tsr_linear_context *context, const tsr_model_tables *tables,
                             const tsr_layer *layer, const tsr_layer_batch *batch,
                             const tsr_layer_memory *memory, tsr_layer_input *input,
                             const tsr_layer_run *part)
{
    const tsr_layer_program *program = layer->program;
    const tsr_residual *out = &program->block->out;
    tsr_pass pass = enter(context, tables, layer, batch, memory, input);
    TSR_TRY(run(&pass, program, memory, part->first, part->end));
    if (part->end < program->forward.count)
        return TSR_OK;
    *input = (tsr_layer_input){pass.value[out->x], NULL, NULL};
    if (out->pending != TSR_NONE) {
        tsr_output pending = tsr_pass_output(&pass, out->pending);
        input->z = pending.z;
        input->g = pending.g;
    }
    return TSR_OK;
}

tsr_status tsr_layer_backward(const tsr_linear_context *context, const tsr_model_tables *tables,
                              const tsr_layer *layer, const tsr_layer_batch *batch,
                              const tsr_layer_memory *memory, const tsr_layer_gradients *gradients,
                              const tsr_layer_run *part)
{
    const tsr_layer_program *program = layer->program;
    tsr_pass pass = begin(context, tables, layer, batch);
    pass.gradients = gradients;
    pass.made8 = layer->made8;
    resolve_all(&pass, program, memory, 0);
    return run(&pass, program, memory, part->first, part->end);
}
