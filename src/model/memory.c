/*
 * model/memory.c: every buffer of a model, walked in one order by the plan and by the run.
 */
#include "base/text.h"
#include "model/model_parts.h"

#include <stdio.h>

_Static_assert(TSR_MODEL_ONES >= TSR_MODEL_MOST_HEAD_DIM,
               "the weight of a norm of the widest head");

static tsr_status take_floats(float **out, tsr_take_buffer *device, void *user, const char *path,
                              const char *what, const char *why, uint64_t rows, uint64_t columns)
{
    char name[160];
    void *address = NULL;
    tsr_text_join(name, sizeof name, path, what);
    TSR_TRY(device(user, &address, name, why, (tsr_array){TSR_F32, rows, columns}));
    if (out)
        *out = address;
    return TSR_OK;
}

/* Double quantization's state of a stack. */
static tsr_status walk_stack(tsr_model_stack_state *state, const tsr_layout_stack *stack,
                             tsr_take_buffer *device, void *user)
{
    if (!stack->quantized || !stack->nested)
        return TSR_OK;
    uint64_t matrices = tsr_layout_stack_matrices(stack);
    TSR_TRY(take_floats(state ? &state->nested_absmax : NULL, device, user, stack->path,
                        " nested absmax", "double quantization: scales of the scales", matrices,
                        tsr_layout_stack_nested(stack)));
    TSR_TRY(take_floats(state ? &state->nested_map : NULL, device, user, stack->path, " nested map",
                        "double quantization: the 256 values of a scale", 256, 1));
    return take_floats(state ? &state->offset : NULL, device, user, stack->path, " offsets",
                       "double quantization: what is added to each expert's scales", matrices, 1);
}

/* Those of an fp8 base lie in another order for each direction. */
static int decoded_orders(const tsr_model_options *options, const tsr_layout_stack *stack)
{
    bool by_direction = options->train && options->fp8 && tsr_layout_stack_fp8(stack);
    return !stack->quantized ? 0 : by_direction ? 2 : 1;
}

static tsr_array decoded_array(const tsr_model_options *options, const tsr_layout_stack *stack)
{
    tsr_dtype dtype = options->fp8 && tsr_layout_stack_fp8(stack) ? TSR_F8_E4M3 : options->dtype;
    return (tsr_array){dtype, stack->experts * stack->out, stack->in};
}

uint64_t tsr_model_decoded_bytes(const tsr_model_options *options, int layer)
{
    const tsr_layout_unit *unit = &options->layout->unit[layer];
    uint64_t bytes = 0;
    for (int i = 0; i < tsr_layout_stacks(unit); i++)
        bytes += (uint64_t)decoded_orders(options, &unit->stack[i]) *
                 tsr_array_bytes(decoded_array(options, &unit->stack[i]));
    return bytes;
}

/* Layers below the lowest adapter have no backward, so they would save less. */
int tsr_model_first_decoded(const tsr_model_options *options)
{
    int layer = options->layout->layer_count;
    for (int left = options->decoded_layers; layer > 0 && left > 0; layer--)
        left -= tsr_model_decoded_bytes(options, layer - 1) > 0;
    return layer;
}

static tsr_status walk_decoded(tsr_decoded_stack *state, const tsr_model_options *options,
                               const tsr_layout_stack *stack, tsr_take_buffer *device, void *user)
{
    static const char *const names[] = {" decoded", " decoded, transposed"};
    static const char why[] = "experts in 4 bits as matmuls read them";
    int orders = decoded_orders(options, stack);
    for (int i = 0; i < orders; i++) {
        char name[160];
        void *address = NULL;
        tsr_text_join(name, sizeof name, stack->path, names[i]);
        TSR_TRY(device(user, &address, name, why, decoded_array(options, stack)));
        if (state)
            state->whole[i] = address;
    }
    if (!orders || !options->fp8 || !tsr_layout_stack_fp8(stack))
        return TSR_OK;
    return take_floats(state ? &state->scale : NULL, device, user, stack->path, " decoded scales",
                       why, stack->experts, 1);
}

tsr_status tsr_model_walk_base(tsr_model *model, const tsr_model_options *options,
                               tsr_take_buffer *device, void *user)
{
    for (int u = tsr_model_first_decoded(options); u < options->layout->layer_count; u++) {
        const tsr_layout_unit *unit = &options->layout->unit[u];
        for (int i = 0; i < tsr_layout_stacks(unit); i++)
            TSR_TRY(walk_decoded(model ? &model->unit[u].stack[i].decoded : NULL, options,
                                 &unit->stack[i], device, user));
    }
    return TSR_OK;
}

/* What stays for good: nested scales, DoRA's vectors, tables. */
static tsr_status walk_unit(unit_state *state, const tsr_model_options *options, int index,
                            tsr_take_buffer *device, void *user)
{
    const tsr_layout_unit *unit = &options->layout->unit[index];
    for (int i = 0; i < unit->block->matrix_count; i++) {
        const tsr_layout_linear *linear = &unit->linear[i];
        norm_vectors *norm = state ? &state->norm[i] : NULL;
        nested_state *nested = state ? &state->nested[i] : NULL;
        if (linear->quantized && linear->nested) {
            TSR_TRY(take_floats(nested ? &nested->nested_absmax : NULL, device, user, linear->path,
                                " nested absmax", "double quantization: scales of the scales",
                                tsr_layout_nested_scales(linear->out * linear->in), 1));
            TSR_TRY(take_floats(nested ? &nested->nested_map : NULL, device, user, linear->path,
                                " nested map", "double quantization: the 256 values of a scale",
                                256, 1));
        }
        if (!linear->dora)
            continue;
        if (!tsr_linear_norm_merges(options->dtype, linear->quantized, linear->in, linear->r))
            TSR_TRY(take_floats(norm ? &norm->squares : NULL, device, user, linear->path,
                                " squares", "DoRA: |W|^2 of each row, which never changes",
                                linear->out, 1));
        TSR_TRY(take_floats(norm ? &norm->n : NULL, device, user, linear->path, " n",
                            "DoRA: |W + s B A| of each row", linear->out, 1));
        TSR_TRY(take_floats(norm ? &norm->g : NULL, device, user, linear->path, " g", "DoRA: m / n",
                            linear->out, 1));
    }
    for (int i = 0; i < unit->block->stack_count; i++)
        TSR_TRY(walk_stack(state ? &state->stack[i] : NULL, &unit->stack[i], device, user));
    return TSR_OK;
}

/* Takes from the arena and marks how far it got: the buffers of an arena follow each other. */
typedef struct {
    tsr_take_buffer *take;
    void *user;
    char *begin, *end;
} stretch;

static tsr_status take_marked(void *user, void **out, const char *name, const char *why,
                              tsr_array array)
{
    stretch *s = user;
    void *address = NULL;
    TSR_TRY(s->take(s->user, &address, name, why, array));
    if (out)
        *out = address;
    if (!address)
        return TSR_OK;
    if (!s->begin)
        s->begin = address;
    s->end = (char *)address + tsr_array_bytes(array);
    return TSR_OK;
}

tsr_activation_options tsr_model_activation(const tsr_model_options *options)
{
    return (tsr_activation_options){.layout = options->layout,
                                    .bounds = options->bounds,
                                    .kernels = options->kernels,
                                    .keep = options->keep,
                                    .tile_rows = options->tile_rows,
                                    .spans = options->spans,
                                    .stride = options->stride,
                                    .saved_bytes = options->saved_bytes,
                                    .dtype = options->dtype,
                                    .fp8 = options->fp8,
                                    .train = options->train,
                                    .dropout = options->train && options->dropout > 0,
                                    .atomics = options->atomics,
                                    .wider = options->wider};
}

bool tsr_model_tiles(const tsr_model_options *options)
{
    tsr_activation_options activation = tsr_model_activation(options);
    return tsr_activation_tile_rows(&activation) > 0;
}

tsr_status tsr_model_programs(tsr_layer_programs **out, const tsr_model_options *options)
{
    tsr_activation_options activation = tsr_model_activation(options);
    return tsr_layer_programs_make(out, &activation);
}

uint64_t tsr_model_kept_bytes(const tsr_model_options *options, int layer)
{
    tsr_activation_options activation = tsr_model_activation(options);
    return tsr_activations_kept_bytes(&activation, options->programs, layer,
                                      options->bounds.tokens);
}

/* Where the activations of layers go that do not stay. */
static tsr_status walk_saved(tsr_model *model, const tsr_model_options *options,
                             tsr_take_buffer *host, void *user)
{
    const tsr_layout *layout = options->layout;
    for (int i = 0; i < layout->layer_count; i++) {
        char name[48];
        void *address = NULL;
        if (!tsr_saved_travels(options->saved_bytes, layout->layer_count, i))
            continue;
        snprintf(name, sizeof name, "layer %d saved activations", i);
        TSR_TRY(host(user, &address, name, "what the layer keeps for its backward, meanwhile",
                     tsr_array_of_bytes(options->saved_bytes[i])));
        if (model)
            model->unit[i].saved = address;
    }
    return TSR_OK;
}

/* Whether some norm has no weight. */
static bool norms_heads(const tsr_layout *layout)
{
    for (int i = 0; i < layout->block_count; i++)
        for (int j = 0; j < layout->block[i]->node_count; j++) {
            const tsr_node *node = &layout->block[i]->node[j];
            if (node->kind == &tsr_node_norm && node->spec.norm.head_dim)
                return true;
        }
    return false;
}

/* What the routers do in a step. */
static tsr_status walk_routers(tsr_model *model, const tsr_model_options *options,
                               tsr_take_buffer *device, void *user)
{
    uint64_t loads = tsr_model_load_count(options->layout);
    uint64_t experts = options->layout->config.experts.count;
    void *count = NULL, *load = NULL;
    if (loads && options->router_bias)
        TSR_TRY(take_floats(model ? &model->routers.bias : NULL, device, user, "router", " biases",
                            "correction biases of the routers, as they were moved", loads / experts,
                            experts));
    if (!loads || !options->train)
        return TSR_OK;
    TSR_TRY(device(user, &count, "router counts", "slots of each expert in the micro-batch at work",
                   (tsr_array){TSR_I64, loads + experts, 1}));
    TSR_TRY(device(user, &load, "router loads", "slots of each expert in the step",
                   (tsr_array){TSR_I64, loads, 1}));
    if (options->auxiliary)
        TSR_TRY(take_floats(model ? &model->routers.aux : NULL, device, user, "router", " aux",
                            "gradient of the auxiliary loss", experts, 1));
    if (!model)
        return TSR_OK;
    model->routers.count = count;
    model->routers.load = load;
    return TSR_OK;
}

/* What the head has of rows of tokens that are trained. */
static tsr_status walk_rows(tsr_model *model, const tsr_model_options *options,
                            tsr_take_buffer *device, void *user)
{
    uint64_t count = (uint64_t)options->layout->head_rows.count;
    uint64_t r = options->layout->embedding_lora.r;
    static const char *const low[] = {"embedding low", "embedding low gradient"};
    for (int i = 0; r && i < (options->train ? 2 : 1); i++) {
        void *address = NULL;
        TSR_TRY(device(user, &address, low[i], "of the embedding's adapter",
                       (tsr_array){options->dtype, (uint64_t)options->bounds.tokens, r}));
        if (model)
            model->embedding_low[i] = address;
    }
    uint64_t d = options->layout->config.hidden_size;
    void *rows = NULL, *ids = NULL, *gradient = NULL;
    if (!count)
        return TSR_OK;
    TSR_TRY(device(user, &ids, "trained tokens", "of the head, whose own rows do not count",
                   tsr_array_of_bytes(count * sizeof(int32_t))));
    TSR_TRY(device(user, &rows, "rows of trained tokens", "the head's, of this step",
                   (tsr_array){options->dtype, count, d}));
    if (options->train)
        TSR_TRY(device(user, &gradient, "gradient of trained tokens", "of the head's rows",
                       (tsr_array){tsr_model_tiles(options) ? TSR_I64 : TSR_F32, count, d}));
    if (!model)
        return TSR_OK;
    model->head_ids = ids;
    model->head_rows = rows;
    model->head_gradient = gradient;
    return TSR_OK;
}

tsr_status tsr_model_walk(tsr_model *model, const tsr_model_options *options,
                          tsr_take_buffer *device, tsr_take_buffer *host, void *user)
{
    const tsr_layout *layout = options->layout;
    uint64_t positions = (uint64_t)tsr_batch_all_tokens(&options->bounds);
    uint64_t angles = tsr_model_rope_angles(&layout->config);
    static const char rows[] =
        "its embedded rows, positions and targets; one is filled while the other is used";
    tsr_array micro = tsr_array_of_bytes(tsr_model_stage_bytes(options));
    for (int i = 0; i < layout->layer_count; i++)
        TSR_TRY(walk_unit(model ? &model->unit[i] : NULL, options, i, device, user));
    TSR_TRY(take_floats(model ? &model->level : NULL, device, user, "NF4", " levels",
                        "the 16 values of the code", 16, 1));
    if (norms_heads(layout))
        TSR_TRY(take_floats(model ? &model->ones : NULL, device, user, "norm", " ones",
                            "the weight of a norm without one", TSR_MODEL_ONES, 1));
    TSR_TRY(take_floats(model ? &model->cosine : NULL, device, user, "RoPE", " cosine",
                        "tables of the rotation", positions, angles));
    TSR_TRY(take_floats(model ? &model->sine : NULL, device, user, "RoPE", " sine",
                        "tables of the rotation", positions, angles));
    for (int i = 0; i < STAGES; i++) {
        char name[48];
        void *address = NULL;
        snprintf(name, sizeof name, "micro-batch %d", i);
        TSR_TRY(device(user, &address, name, rows, micro));
        if (model)
            model->stage[i].device = address;
        TSR_TRY(host(user, &address, name, rows, micro));
        if (model)
            model->stage[i].host = address;
    }
    if (options->label_smoothing > 0 || tsr_model_reports_logits(options))
        TSR_TRY(take_floats(model ? &model->row_parts : NULL, device, user, "head", " row sums",
                            "the mean row of the output matrix, and what it is summed from",
                            TSR_HEAD_PARTS + 1, layout->config.hidden_size));
    TSR_TRY(walk_rows(model, options, device, user));
    TSR_TRY(walk_routers(model, options, device, user));
    if (layout->scores)
        return tsr_model_walk_score(model, options, device, user);
    return options->objective ? tsr_model_walk_preference(model, options, device, user) : TSR_OK;
}

tsr_status tsr_model_walk_scratch(tsr_model *model, const tsr_model_options *options,
                                  tsr_take_buffer *device, tsr_take_buffer *host, void *user)
{
    TSR_TRY(walk_saved(model, options, host, user));
    tsr_activation_options activation = tsr_model_activation(options);
    if (!model)
        return tsr_activations_walk(NULL, &activation, options->programs, device, user);
    stretch all = {.take = device, .user = user};
    TSR_TRY(tsr_activations_walk(&model->activations, &activation, options->programs, take_marked,
                                 &all));
    model->activation_begin = all.begin;
    model->activation_end = all.end;
    return TSR_OK;
}

static tsr_status copy_floats(const tsr_model *model, float *to, const float *from, uint64_t count)
{
    return to ? tsr_stream_copy(model->compute, to, from, count * sizeof *to) : TSR_OK;
}

tsr_status tsr_model_take_base(tsr_model *model, const tsr_model *from)
{
    const tsr_layout *layout = model->options.layout;
    for (int u = 0; u < layout->layer_count; u++) {
        const tsr_layout_unit *unit = &layout->unit[u];
        for (int i = 0; i < tsr_layout_linears(unit); i++) {
            const tsr_layout_linear *linear = &unit->linear[i];
            nested_state *own = &model->unit[u].nested[i], *its = &from->unit[u].nested[i];
            own->offset = its->offset;
            TSR_TRY(copy_floats(model, own->nested_absmax, its->nested_absmax,
                                tsr_layout_nested_scales(linear->out * linear->in)));
            TSR_TRY(copy_floats(model, own->nested_map, its->nested_map, 256));
        }
        for (int i = 0; i < tsr_layout_stacks(unit); i++) {
            const tsr_layout_stack *stack = &unit->stack[i];
            tsr_model_stack_state *own = &model->unit[u].stack[i], *its = &from->unit[u].stack[i];
            uint64_t matrices = tsr_layout_stack_matrices(stack);
            own->decoded = its->decoded;
            TSR_TRY(copy_floats(model, own->nested_absmax, its->nested_absmax,
                                matrices * tsr_layout_stack_nested(stack)));
            TSR_TRY(copy_floats(model, own->nested_map, its->nested_map, 256));
            TSR_TRY(copy_floats(model, own->offset, its->offset, matrices));
        }
    }
    return tsr_stream_synchronize(model->compute);
}
