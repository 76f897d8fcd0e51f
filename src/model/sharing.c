/*
 * model/sharing.c: what a model says and does of micro-batches that ranks share, but for the nodes' own part: which heads of
 * an attention go together, and for which kernels are prepared.
 */
#include "model/model_parts.h"

/* ---- heads ---- */

tsr_head_sharing tsr_model_head_sharing(const tsr_model_options *options,
                                        const tsr_layer_program *program)
{
    const tsr_activation_options activation = tsr_model_activation(options);
    tsr_head_sharing out = {.groups = 1};
    for (int j = 0; j < program->block->node_count; j++) {
        if (program->block->node[j].kind != &tsr_node_attention)
            continue;
        const tsr_attention_bounds bounds = tsr_attention_bounds_of(
            &program->block->node[j], tsr_activation_attention(&activation));
        if (!tsr_attention_is_shared(&bounds))
            continue;
        const tsr_attention_sharing sharing = options->kernels->attention_sharing(&bounds);
        out = (tsr_head_sharing){tsr_attention_calls(&bounds, &sharing), sharing.by_heads};
    }
    return out;
}

tsr_head_sharing tsr_model_most_sharing(const tsr_model_options *options,
                                        const tsr_layer_programs *programs)
{
    tsr_head_sharing most = {.groups = 1};
    for (int i = 0; i < programs->count; i++) {
        tsr_head_sharing one = tsr_model_head_sharing(options, &programs->program[i]);
        most.groups = one.groups > most.groups ? one.groups : most.groups;
        most.by_heads |= one.by_heads;
    }
    return most;
}

tsr_status tsr_model_prepare_attention(const tsr_model *model, tsr_device *device)
{
    const tsr_kernels *kernels = model->options.kernels;
    tsr_activation_options options = tsr_model_activation(&model->options);
    for (int i = 0; i < model->options.programs->count; i++) {
        const tsr_block *block = model->options.programs->program[i].block;
        for (int j = 0; j < block->node_count; j++) {
            if (block->node[j].kind != &tsr_node_attention)
                continue;
            tsr_attention_bounds bounds =
                tsr_attention_bounds_of(&block->node[j], tsr_activation_attention(&options));
            if (tsr_attention_is_shared(&bounds)) {
                const tsr_attention_sharing sharing = kernels->attention_sharing(&bounds);
                const tsr_attention_bounds call = tsr_attention_call(&bounds, &sharing);
                TSR_TRY(kernels->prepare(device, &(tsr_prepare_args){.attention = &call}));
                if (sharing.by_heads)
                    bounds.spans = call.spans;
            }
            TSR_TRY(kernels->prepare(device, &(tsr_prepare_args){.attention = &bounds}));
        }
    }
    return TSR_OK;
}

/* ---- who shares ---- */

void tsr_model_share(tsr_model *model, tsr_context *context)
{
    model->shared = context;
    model->options.spans = tsr_context_spans(context);
}

void *tsr_model_scratch(const tsr_model *model, uint64_t *bytes)
{
    *bytes = model->activations.scratch_bytes;
    return model->activations.scratch;
}
