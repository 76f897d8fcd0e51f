/*
 * model/describe.c: the tensors that config.json describes, for a plan made before the weights are there.
 */
#include "model/arch/arch.h"
#include "model/layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    tsr_tensor *tensor; /* owns its names */
    uint64_t count, room;
    tsr_dtype dtype;
    const char *prefix; /* "model." */
    bool mxfp4;         /* experts are blocks and scales (quant/mxfp4_stack.h) */
} list;

/* [rows, columns], or [rows] where columns is 0. `name` becomes the list's. */
static tsr_status add(list *to, char *name, uint64_t rows, uint64_t columns)
{
    if (name && to->count == to->room) {
        uint64_t room = 2 * to->room + 64;
        tsr_tensor *grown = realloc(to->tensor, room * sizeof *grown);
        if (grown) {
            to->tensor = grown;
            to->room = room;
        }
    }
    if (!name || to->count == to->room) {
        free(name);
        return tsr_fail(TSR_ENOMEM, "out of memory for the tensors of a model");
    }
    to->tensor[to->count++] = (tsr_tensor){
        .name = name, .dtype = to->dtype, .ndim = columns ? 2 : 1, .shape = {rows, columns}};
    return TSR_OK;
}

/* Of a module of a layer, below it. */
static char *below(const list *to, uint64_t layer, const char *name)
{
    return tsr_module_path(to->prefix, (int)layer, false, name);
}

/* "<module><what>" */
static tsr_status add_of(list *to, char *module, const char *what, uint64_t rows, uint64_t columns)
{
    char *name;
    if (!module || asprintf(&name, "%s%s", module, what) < 0)
        name = NULL;
    free(module);
    return add(to, name, rows, columns);
}

/* "<prefix><name>" */
static tsr_status add_in_model(list *to, const char *name, uint64_t rows, uint64_t columns)
{
    return add_of(to, strdup(to->prefix), name, rows, columns);
}

static tsr_status add_mxfp4(list *to, const tsr_stack *stack, uint64_t layer)
{
    static const char *const what[2] = {"_blocks", "_scales"};
    for (int i = 0; i < 2; i++) {
        TSR_TRY(add_of(to, below(to, layer, stack->files->fused), what[i], stack->experts, 0));
        tsr_tensor *last = &to->tensor[to->count - 1];
        last->dtype = TSR_U8;
        last->ndim = i ? 3 : 4;
        last->shape[1] = stack->out;
        last->shape[2] = stack->in / TSR_MXFP4_BLOCK;
        last->shape[3] = i ? 0 : TSR_MXFP4_BLOCK_BYTES;
    }
    return TSR_OK;
}

/* As published files have it: one tensor for each expert, else one for all. */
static tsr_status add_stack(list *to, const tsr_stack *stack, uint64_t layer)
{
    const tsr_stack_names *names = stack->files;
    uint64_t parts = (uint64_t)stack->parts;
    for (uint64_t i = 0; names->one[0] && !names->fused && i < tsr_stack_matrices(stack); i++) {
        char name[256];
        tsr_stack_expert_name(name, names, i / parts, (int)(i % parts));
        TSR_TRY(add_of(to, below(to, layer, name), ".weight", stack->out / parts, stack->in));
    }
    if (names->fused && to->mxfp4)
        TSR_TRY(add_mxfp4(to, stack, layer));
    else if (names->fused) {
        bool turned = names->transposed;
        TSR_TRY(add(to, below(to, layer, names->fused), stack->experts, 0));
        tsr_tensor *last = &to->tensor[to->count - 1];
        last->ndim = 3;
        last->shape[1] = turned ? stack->in : stack->out;
        last->shape[2] = turned ? stack->out : stack->in;
    }
    return stack->bias ? add(to, below(to, layer, names->bias), stack->experts, stack->out)
                       : TSR_OK;
}

static tsr_status add_layer(list *to, const tsr_model_config *config, uint64_t layer)
{
    tsr_block block;
    TSR_TRY(tsr_arch_block(&block, config, (int)layer));
    for (int i = 0; i < block.matrix_count; i++) {
        const tsr_matrix *m = &block.matrix[i];
        TSR_TRY(add_of(to, tsr_module_path(to->prefix, (int)layer, m->of_model, m->name), ".weight",
                       m->out, m->in));
        if (m->bias)
            TSR_TRY(add_of(to, tsr_module_path(to->prefix, (int)layer, m->of_model, m->name),
                           ".bias", m->out, 0));
    }
    for (int i = 0; i < block.vector_count; i++) {
        const tsr_vector *v = &block.vector[i];
        TSR_TRY(add_of(to, tsr_module_path(to->prefix, (int)layer, v->of_model, v->name),
                       v->one || v->bare ? "" : ".weight",
                       v->one    ? 1
                       : v->rows ? v->rows
                                 : v->count,
                       v->rows ? v->count : 0));
        tsr_tensor *last = &to->tensor[to->count - 1];
        if (v->taps) {
            last->ndim = 3;
            last->shape[0] = v->count / v->taps;
            last->shape[1] = 1;
            last->shape[2] = v->taps;
        }
    }
    for (int i = 0; i < block.stack_count; i++)
        TSR_TRY(add_stack(to, &block.stack[i], layer));
    return TSR_OK;
}

static tsr_status add_all(list *to, const tsr_model_config *config)
{
    uint64_t vocabulary = config->vocab_size, d = config->hidden_size;
    TSR_TRY(add_in_model(to, "embed_tokens.weight", vocabulary, d));
    if (config->layer_input_width)
        TSR_TRY(add_of(to, tsr_module_path(to->prefix, 0, true, config->arch->layer_table),
                       ".weight", vocabulary, config->layer_count * config->layer_input_width));
    for (uint64_t layer = 0; layer < config->layer_count; layer++)
        TSR_TRY(add_layer(to, config, layer));
    TSR_TRY(add_in_model(to, "norm.weight", d, 0));
    return config->tie_word_embeddings ? TSR_OK : add(to, strdup("lm_head.weight"), vocabulary, d);
}

tsr_status tsr_model_describe(tsr_checkpoint **out, const char *directory,
                              const tsr_model_config *config)
{
    if (config->prequantized)
        return tsr_fail(
            TSR_EDATA,
            "%s: its weights are missing, and a 4-bit checkpoint cannot be planned without their "
            "headers; download them, or plan with the model that it was quantized from",
            directory);
    list tensors = {.dtype = config->dtype,
                    .prefix = tsr_composite_prefix(config->composite),
                    .mxfp4 = config->mxfp4};
    tsr_status status = add_all(&tensors, config);
    if (status == TSR_OK)
        status = tsr_checkpoint_describe(out, directory, tensors.tensor, tensors.count);
    for (uint64_t i = 0; i < tensors.count; i++)
        free((char *)tensors.tensor[i].name);
    free(tensors.tensor);
    return status;
}
