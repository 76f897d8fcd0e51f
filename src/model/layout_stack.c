/*
 * layout_stack.c: the stacks of experts: where a checkpoint has them, one tensor an expert or all in one, their segments,
 * and their adapters.
 */
#include "adapters/init.h"
#include "base/checked.h"
#include "model/layout_parts.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tsr_status refuse_dtype(const tsr_layout_builder *b, const char *name, tsr_dtype dtype)
{
    return tsr_fail(TSR_EDATA, "%s: %s has the dtype %s; BF16, F16 and F32 are read",
                    tsr_checkpoint_directory(b->checkpoint), name, tsr_dtype_name(dtype));
}

static bool is_read(tsr_dtype dtype)
{
    return dtype == TSR_BF16 || dtype == TSR_F16 || dtype == TSR_F32;
}

/* The tensor of part `part` of an expert: "model.layers.3.mlp.experts.7.up_proj.weight". */
static void put_one(char out[TSR_LAYOUT_NAME_BYTES], const tsr_layout_builder *b, int layer,
                    const tsr_stack_names *names, uint64_t expert, int part)
{
    char module[TSR_LAYOUT_NAME_BYTES];
    tsr_stack_expert_name(module, names, expert, part);
    tsr_layout_put_name(out, b->prefix, layer, false, module, ".weight");
}

void tsr_stack_expert_name(char out[TSR_LAYOUT_NAME_BYTES], const tsr_stack_names *names,
                           uint64_t expert, int part)
{
    const char *format = names->one[part], *hole = strstr(format, "%d");
    snprintf(out, TSR_LAYOUT_NAME_BYTES, "%.*s%" PRIu64 "%s", (int)(hole - format), format, expert,
             hole + 2);
}

static tsr_status one_source(const tsr_layout_builder *b, tsr_layout_stack *stack, int layer,
                             uint64_t matrix)
{
    char name[TSR_LAYOUT_NAME_BYTES], found[TSR_SHAPE_TEXT_BYTES];
    tsr_weight *source = &stack->source[matrix];
    uint64_t parts = (uint64_t)stack->parts, out = stack->out / parts;
    put_one(name, b, layer, stack->files, matrix / parts, (int)(matrix % parts));
    TSR_TRY(tsr_checkpoint_weight(source, b->checkpoint, name));
    if (source->ndim != 2 || source->shape[0] != out || source->shape[1] != stack->in)
        return tsr_fail(TSR_EDATA,
                        "%s: %s has the shape %s, but config.json needs [%" PRIu64 ", %" PRIu64 "]",
                        tsr_checkpoint_directory(b->checkpoint), name,
                        tsr_shape_text(found, source->shape, source->ndim), out, stack->in);
    if (!is_read(source->dtype))
        return refuse_dtype(b, name, source->dtype);
    if (b->options.load_in_8bit)
        return tsr_fail(TSR_ECONFIG,
                        "%s: %s is of experts, which are stored in NF4 or as in the checkpoint; "
                        "write load_in_8bit: false",
                        tsr_checkpoint_directory(b->checkpoint), name);
    if (source->prequantized && !b->options.load_in_4bit)
        return tsr_fail(TSR_ECONFIG,
                        "%s: %s is stored as NF4; load_in_4bit: false needs a checkpoint that is "
                        "not quantized",
                        tsr_checkpoint_directory(b->checkpoint), name);
    const tsr_weight *first = stack->source;
    if (source->prequantized != first->prequantized || source->nested != first->nested ||
        source->dtype != first->dtype)
        return tsr_fail(TSR_EDATA,
                        "%s: %s is not stored like %s: the experts of a layer must have one dtype, "
                        "and all or none must be NF4",
                        tsr_checkpoint_directory(b->checkpoint), name, first->weight->name);
    return TSR_OK;
}

/* A tensor of one expert more than config.json has. */
static tsr_status check_count(const tsr_layout_builder *b, const tsr_layout_stack *stack, int layer)
{
    char name[TSR_LAYOUT_NAME_BYTES];
    put_one(name, b, layer, stack->files, stack->experts, 0);
    if (!tsr_checkpoint_find(b->checkpoint, name))
        return TSR_OK;
    return tsr_fail(TSR_EDATA,
                    "%s: %s is one expert too many: config.json says %" PRIu64
                    " experts; make the two agree",
                    tsr_checkpoint_directory(b->checkpoint), name, stack->experts);
}

static tsr_status fused_source(const tsr_layout_builder *b, tsr_layout_stack *stack,
                               const char *name)
{
    tsr_weight *source = &stack->source[0];
    uint64_t shape[3] = {stack->experts, stack->out, stack->in};
    tsr_dtype dtype;
    if (stack->files->transposed) {
        shape[1] = stack->in;
        shape[2] = stack->out;
    }
    TSR_TRY(tsr_layout_plain_tensor(&source->weight, &dtype, b, name, 3, shape));
    source->dtype = source->weight->dtype;
    stack->fused = true;
    stack->transposed = stack->files->transposed;
    return TSR_OK;
}

/* Blocks and scales beside the name of the tensor of all experts; false: the checkpoint has none. */
static tsr_status mxfp4_source(bool *found, const tsr_layout_builder *b, tsr_layout_stack *stack,
                               const char *name)
{
    char blocks[TSR_LAYOUT_NAME_BYTES + 8], scales[TSR_LAYOUT_NAME_BYTES + 8];
    snprintf(blocks, sizeof blocks, "%s_blocks", name);
    snprintf(scales, sizeof scales, "%s_scales", name);
    const tsr_tensor *codes = tsr_checkpoint_find(b->checkpoint, blocks);
    const tsr_tensor *powers = tsr_checkpoint_find(b->checkpoint, scales);
    *found = codes || powers;
    if (!*found)
        return TSR_OK;
    if (!codes || !powers)
        return tsr_fail(TSR_EDATA, "%s: %s is there without %s; is the checkpoint complete?",
                        tsr_checkpoint_directory(b->checkpoint), codes ? blocks : scales,
                        codes ? scales : blocks);
    stack->source[0] = (tsr_weight){.weight = codes, .dtype = TSR_BF16};
    stack->fused = stack->mxfp4 = true;
    return tsr_mxfp4_stack_make(&stack->stored, codes, powers, stack->experts, stack->out,
                                stack->in, stack->parts);
}

/* One tensor for each expert where the checkpoint has the first one, else one for all. */
static tsr_status find_sources(const tsr_layout_builder *b, tsr_layout_stack *stack, int layer)
{
    char one[TSR_LAYOUT_NAME_BYTES] = "", fused[TSR_LAYOUT_NAME_BYTES] = "";
    uint64_t count = tsr_layout_stack_matrices(stack);
    if (stack->files->one[0])
        put_one(one, b, layer, stack->files, 0, 0);
    if (stack->files->fused)
        tsr_layout_put_name(fused, b->prefix, layer, false, stack->files->fused, "");
    bool has_fused = stack->files->fused && tsr_checkpoint_find(b->checkpoint, fused);
    stack->source = calloc(has_fused ? 1 : count, sizeof *stack->source);
    if (!stack->source)
        return tsr_fail(TSR_ENOMEM, "out of memory for the experts of layer %d", layer);
    if (has_fused)
        return fused_source(b, stack, fused);
    bool mxfp4 = false;
    if (stack->files->fused)
        TSR_TRY(mxfp4_source(&mxfp4, b, stack, fused));
    if (mxfp4)
        return TSR_OK;
    if (!*one || !tsr_checkpoint_find(b->checkpoint, one))
        return tsr_fail(TSR_EDATA,
                        "%s: the experts of layer %d are missing: neither %s nor %s is there; is "
                        "the checkpoint complete?",
                        tsr_checkpoint_directory(b->checkpoint), layer,
                        *one ? one : "one tensor of each expert",
                        *fused ? fused : "one tensor of all experts");
    for (uint64_t i = 0; i < count; i++)
        TSR_TRY(one_source(b, stack, layer, i));
    return check_count(b, stack, layer);
}

static void add_weights(const tsr_layout_builder *b, tsr_layout_unit *unit, int index)
{
    tsr_layout_stack *stack = &unit->stack[index];
    const tsr_weight *source = stack->source;
    tsr_layout_segment segment = {.name = stack->path,
                                  .source = source->weight,
                                  .linear = -1,
                                  .of_stack = true,
                                  .stack_index = index,
                                  .element_count = stack->experts * stack->out * stack->in};
    stack->quantized =
        stack->mxfp4 || (b->options.load_in_4bit && (source->prequantized || !b->in_4bit));
    stack->nested = source->prequantized ? source->nested : b->options.nested && !stack->mxfp4;
    if (!stack->quantized) {
        segment.dtype = source->dtype == TSR_BF16 ? TSR_BF16 : TSR_F32;
        stack->plain = tsr_layout_add_frozen(unit, segment);
        return;
    }
    segment.element_count =
        tsr_layout_stack_matrices(stack) * tsr_layout_stack_granules(stack) * TSR_NF4_GRANULE;
    segment.kind = TSR_SEGMENT_CODES;
    segment.dtype = TSR_U8;
    segment.granule_bytes = TSR_NF4_GRANULE_CODE_BYTES;
    stack->codes = tsr_layout_add_frozen(unit, segment);
    segment.kind = TSR_SEGMENT_ABSMAX;
    if (stack->mxfp4) {
        segment.source = stack->stored.scales;
        segment.granule_bytes = TSR_MXFP4_GRANULE_SCALE_BYTES;
        stack->absmax = tsr_layout_add_frozen(unit, segment);
        return;
    }
    segment.dtype = stack->nested ? TSR_U8 : TSR_F32;
    segment.granule_bytes = stack->nested ? TSR_NF4_GRANULE_ABSMAX_BYTES
                                          : TSR_NF4_GRANULE_BLOCKS * (uint64_t)sizeof(float);
    stack->absmax = tsr_layout_add_frozen(unit, segment);
}

static tsr_status add_bias(const tsr_layout_builder *b, tsr_layout_unit *unit, int layer, int index)
{
    tsr_layout_stack *stack = &unit->stack[index];
    const uint64_t shape[2] = {stack->experts, stack->out};
    char name[TSR_LAYOUT_NAME_BYTES];
    const tsr_tensor *tensor;
    tsr_dtype dtype;
    tsr_layout_put_name(name, b->prefix, layer, false, stack->files->bias, "");
    TSR_TRY(tsr_layout_plain_tensor(&tensor, &dtype, b, name, 2, shape));
    stack->bias = tsr_layout_add_frozen(
        unit, (tsr_layout_segment){
                  .name = tensor->name,
                  .source = tensor,
                  .linear = -1,
                  .of_stack = true,
                  .stack_index = index,
                  .dtype = dtype,
                  .element_count = shape[0] * shape[1],
                  .turns = stack->files->transposed && stack->parts == 2 ? stack->out : 0});
    b->layout->parameter_count += shape[0] * shape[1];
    return TSR_OK;
}

tsr_status tsr_layout_make_stack(const tsr_layout_builder *b, tsr_layout_unit *unit, int layer,
                                 int index)
{
    const tsr_stack *described = &unit->block->stack[index];
    tsr_layout_stack *stack = &unit->stack[index];
    const char *prefix = tsr_composite_prefix(b->layout->config.composite);
    char name[TSR_LAYOUT_NAME_BYTES];
    *stack = (tsr_layout_stack){.experts = described->experts,
                                .out = described->out,
                                .in = described->in,
                                .parts = described->parts,
                                .files = described->files,
                                .codes = TSR_NO_SEGMENT,
                                .absmax = TSR_NO_SEGMENT,
                                .plain = TSR_NO_SEGMENT,
                                .bias = TSR_NO_SEGMENT,
                                .a = TSR_NO_SEGMENT,
                                .b = TSR_NO_SEGMENT};
    stack->path = tsr_module_path(prefix, layer, false, described->name);
    if (!stack->path)
        return tsr_fail(TSR_ENOMEM, "out of memory for module names");
    tsr_layout_put_name(name, tsr_composite_prefix(NULL), layer, false, described->name, "");
    stack->module_key = tsr_adapter_module_key(name);
    TSR_TRY(find_sources(b, stack, layer));
    add_weights(b, unit, index);
    b->layout->parameter_count += stack->experts * stack->out * stack->in;
    return described->bias ? add_bias(b, unit, layer, index) : TSR_OK;
}

void tsr_layout_free_stack(tsr_layout_stack *stack)
{
    free(stack->path);
    free(stack->source);
}

/* ---- adapters ---- */

/* The stack that a module of tsr_layout_modules is: they follow all linears, in the order of layers. */
static tsr_layout_stack *find_stack(int *layer, int *index, const tsr_layout *layout,
                                    uint64_t module)
{
    for (int i = 0; i < layout->layer_count; i++)
        module -= (uint64_t)tsr_layout_linears(&layout->unit[i]);
    for (*layer = 0; module >= (uint64_t)tsr_layout_stacks(&layout->unit[*layer]); ++*layer)
        module -= (uint64_t)tsr_layout_stacks(&layout->unit[*layer]);
    *index = (int)module;
    return &layout->unit[*layer].stack[module];
}

void tsr_layout_adapt_stack(const tsr_layout_builder *b, const tsr_adapter *adapter)
{
    tsr_layout *layout = b->layout;
    int layer, index;
    tsr_layout_stack *stack = find_stack(&layer, &index, layout, adapter->module);
    tsr_layout_unit *unit = &layout->unit[layer];
    tsr_layout_segment segment = {.name = stack->path,
                                  .linear = -1,
                                  .of_stack = true,
                                  .stack_index = index,
                                  .stack = stack->experts,
                                  .dtype = b->options.compute};
    stack->r = tsr_ceil_div(adapter->r, TSR_RANK_STEP) * TSR_RANK_STEP;
    stack->alpha = adapter->alpha;
    stack->scale = adapter->scale;
    segment.stored_rows = adapter->r;
    segment.stored_columns = stack->in;
    stack->a = tsr_layout_add_trainable(layout, unit, stack->r, stack->in, segment);
    segment.stored_rows = stack->out;
    segment.stored_columns = adapter->r;
    stack->b = tsr_layout_add_trainable(layout, unit, stack->out, stack->r, segment);
    if (layer < layout->first_trained)
        layout->first_trained = layer;
}

void tsr_layout_stack_module(tsr_text *out, const tsr_layout_unit *unit, int stack)
{
    const char *path = unit->stack[stack].path;
    int length = (int)(strrchr(path, '.') - path);
    tsr_text_printf(out, "%.*s", length, path);
    for (int i = stack + 1; i < tsr_layout_stacks(unit); i++)
        if (unit->stack[i].r && !strncmp(unit->stack[i].path, path, (size_t)length + 1) &&
            !strchr(unit->stack[i].path + length + 1, '.'))
            tsr_text_puts(out, ".base_layer");
}
