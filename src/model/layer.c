#include "model/layer.h"

#include "model/node_parts.h"

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

static void resolve(void *out[TSR_BLOCK_VALUES], const tsr_pass *pass,
                    const tsr_layer_memory *memory, const tsr_value_place *places)
{
    for (int v = 0; v < pass->block->value_count; v++) {
        const tsr_value *value = &pass->block->value[v];
        bool shared =
            places[v].kind == TSR_PLACE_SHARED || places[v].kind == TSR_PLACE_SHARED_GRADIENT;
        out[v] = address(memory, places[v]);
        if (out[v] && shared && value->of_layer)
            out[v] = (char *)out[v] + part_offset(pass, value);
    }
}

static tsr_pass begin(const tsr_linear_context *context, const tsr_model_tables *tables,
                      const tsr_layer *layer, const tsr_layer_batch *batch)
{
    return (tsr_pass){.context = context,
                      .tables = tables,
                      .batch = batch,
                      .block = layer->program->block,
                      .traits = layer->program->traits,
                      .linear = layer->linear,
                      .stack = layer->stack,
                      .vector = layer->vector};
}

/* Steps [first, end). */
static tsr_status run(tsr_pass *pass, const tsr_layer_program *program,
                      const tsr_layer_memory *memory, tsr_pass_kind kind, int first, int end)
{
    const tsr_steps *steps = kind == TSR_PASS_FORWARD  ? &program->forward
                             : kind == TSR_PASS_REMADE ? &program->remade
                                                       : &program->backward;
    for (int i = first; i < end && i < steps->count; i++) {
        const tsr_step *step = &steps->step[i];
        const tsr_node_kind *node = pass->block->node[step->node].kind;
        pass->workspace = address(memory, program->workspace[kind][step->node]);
        pass->workspace_bytes = program->workspace_bytes[step->node];
        pass->codes = address(memory, program->codes[step->node]);
        TSR_TRY(kind == TSR_PASS_BACKWARD ? node->backward(pass, step) : node->forward(pass, step));
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
    resolve(pass.value, &pass, memory, layer->program->in_forward);
    pass.value[pass.block->in.x] = (void *)input->x;
    pass.value[pass.block->in.pending] = (void *)input->z;
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
    return run(&pass, program, memory, TSR_PASS_FORWARD, 0, count);
}

tsr_status tsr_layer_forward(const tsr_linear_context *context, const tsr_model_tables *tables,
                             const tsr_layer *layer, const tsr_layer_batch *batch,
                             const tsr_layer_memory *memory, tsr_layer_input *input,
                             const tsr_layer_run *part)
{
    const tsr_layer_program *program = layer->program;
    const tsr_residual *out = &program->block->out;
    tsr_pass pass = enter(context, tables, layer, batch, memory, input);
    TSR_TRY(run(&pass, program, memory, TSR_PASS_FORWARD, part->first, part->end));
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
    int remade = program->remade.count, first = part->first - remade;
    tsr_pass pass = begin(context, tables, layer, batch);
    pass.gradients = gradients;
    pass.made8 = layer->made8;
    resolve(pass.value, &pass, memory, program->in_backward);
    resolve(pass.gradient, &pass, memory, program->gradient);
    TSR_TRY(run(&pass, program, memory, TSR_PASS_REMADE, part->first, part->end));
    return run(&pass, program, memory, TSR_PASS_BACKWARD, first > 0 ? first : 0,
               part->end - remade);
}
