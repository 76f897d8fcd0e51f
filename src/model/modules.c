/*
 * modules.c: the modules of a model as Transformers names them: what a target of an adapter can mean.
 */
#include "model/arch/arch.h"
#include "model/layout.h"
#include "model/node.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of the model, besides its layers and the head; none may have an adapter. */
static const char *const model_modules[] = {"embed_tokens", "layers", "norm", "rotary_emb"};
enum { MODEL_MODULES = sizeof model_modules / sizeof *model_modules };

typedef struct {
    tsr_adapter_module *module;
    uint64_t count, room;
    const char *prefix; /* "model." */
} list;

static tsr_status add(list *to, char *path, const tsr_matrix *matrix)
{
    if (path && to->count == to->room) {
        uint64_t room = 2 * to->room + 64;
        tsr_adapter_module *grown = realloc(to->module, room * sizeof *grown);
        if (grown) {
            to->module = grown;
            to->room = room;
        }
    }
    if (!path || to->count == to->room) {
        free(path);
        return tsr_fail(TSR_ENOMEM, "out of memory for module names");
    }
    to->module[to->count++] = (tsr_adapter_module){.path = path,
                                                   .linear = matrix && !matrix->router,
                                                   .router = matrix && matrix->router,
                                                   .in_features = matrix ? matrix->in : 0,
                                                   .out_features = matrix ? matrix->out : 0};
    return TSR_OK;
}

char *tsr_module_path(const char *prefix, int layer, bool of_model, const char *name)
{
    char *path;
    int length = of_model ? asprintf(&path, "%s%s", prefix, name)
                          : asprintf(&path, "%slayers.%d.%s", prefix, layer, name);
    return length < 0 ? NULL : path;
}

/* `length` characters of a name below a layer; of none: the layer itself. */
static tsr_status add_below(list *to, uint64_t layer, const char *name, size_t length,
                            const tsr_matrix *matrix)
{
    char *path;
    if (asprintf(&path, "%slayers.%" PRIu64 "%s%.*s", to->prefix, layer, length ? "." : "",
                 (int)length, name) < 0)
        path = NULL;
    return add(to, path, matrix);
}

/* The stacks of a layer's experts, which are parameters and no modules. */
static tsr_status add_stacks(list *to, const tsr_block *block, uint64_t layer)
{
    for (int i = 0; i < block->stack_count; i++) {
        const tsr_stack *s = &block->stack[i];
        TSR_TRY(add(to, tsr_module_path(to->prefix, (int)layer, false, s->name), NULL));
        tsr_adapter_module *last = &to->module[to->count - 1];
        last->experts = s->experts;
        last->parts = s->parts;
        last->linears = s->files->fused ? NULL : s->files->one;
        last->in_features = s->in;
        last->out_features = s->out;
    }
    return TSR_OK;
}

static tsr_status add_linears(list *to, const tsr_block *block, uint64_t layer)
{
    for (int i = 0; i < block->matrix_count; i++) {
        const tsr_matrix *m = &block->matrix[i];
        TSR_TRY(add(to, tsr_module_path(to->prefix, (int)layer, m->of_model, m->name), m));
    }
    return TSR_OK;
}

/* Whether the parent "self_attn" of "self_attn.q_proj" is the parent of an earlier matrix too. */
static bool is_listed(const tsr_block *block, int matrix, size_t length)
{
    for (int i = 0; i < matrix; i++)
        if (!strncmp(block->matrix[i].name, block->matrix[matrix].name, length + 1))
            return true;
    return false;
}

/* The matrix whose product a value is; NULL: of none. */
static const tsr_matrix *matrix_of(const tsr_block *block, int16_t value)
{
    for (int i = 0; i < block->node_count; i++)
        for (int port = 0; port < TSR_NODE_PORTS; port++)
            if (block->node[i].kind == &tsr_node_linear && block->node[i].out[port] == value)
                return &block->matrix[block->node[i].weight[port]];
    return NULL;
}

/* The function between gate and up: a module beside them. */
static tsr_status add_activations(list *to, const tsr_block *block, uint64_t layer)
{
    for (int i = 0; i < block->node_count; i++) {
        const tsr_node *node = &block->node[i];
        const tsr_matrix *gate = node->kind == &tsr_node_glu ? matrix_of(block, node->in[0]) : NULL;
        char name[128];
        if (!gate)
            continue;
        const char *dot = strrchr(gate->name, '.');
        int length = dot ? (int)(dot - gate->name) + 1 : 0;
        snprintf(name, sizeof name, "%.*sact_fn", length, gate->name);
        TSR_TRY(add_below(to, layer, name, strlen(name), NULL));
    }
    return TSR_OK;
}

static bool is_router(const tsr_block *block, int vector)
{
    for (int i = 0; i < block->node_count; i++)
        if (block->node[i].kind == &tsr_node_route &&
            block->node[i].weight[TSR_ROUTE_WEIGHT] == vector)
            return true;
    return false;
}

static tsr_status add_others(list *to, const tsr_block *block, uint64_t layer)
{
    TSR_TRY(add_below(to, layer, "", 0, NULL));
    for (int i = 0; i < block->matrix_count; i++) {
        const char *name = block->matrix[i].name, *dot = strrchr(name, '.');
        if (dot && !is_listed(block, i, (size_t)(dot - name)))
            TSR_TRY(add_below(to, layer, name, (size_t)(dot - name), NULL));
    }
    TSR_TRY(add_activations(to, block, layer));
    for (int i = 0; i < block->vector_count; i++) {
        const tsr_vector *v = &block->vector[i];
        if (v->one || v->bare) /* no module: a buffer of the layer, a parameter of one */
            continue;
        TSR_TRY(add(to, tsr_module_path(to->prefix, (int)layer, v->of_model, v->name), NULL));
        to->module[to->count - 1].router = is_router(block, i);
    }
    return TSR_OK;
}

/* The module that was added last. */
static void set_table(list *to, tsr_adapter_table table, uint64_t in, uint64_t out)
{
    tsr_adapter_module *last = &to->module[to->count - 1];
    last->table = table;
    last->in_features = in;
    last->out_features = out;
}

/* The head, what holds the layers ("model", "model.language_model"), and what it holds beside them. */
static tsr_status add_of_model(list *to, const tsr_model_config *config)
{
    TSR_TRY(add(to, strdup("lm_head"), NULL));
    set_table(to, TSR_TABLE_HEAD, config->hidden_size, config->vocab_size);
    for (const char *dot = strchr(to->prefix, '.'); dot; dot = strchr(dot + 1, '.'))
        TSR_TRY(add(to, strndup(to->prefix, (size_t)(dot - to->prefix)), NULL));
    for (int i = 0; i < MODEL_MODULES; i++) {
        char *path;
        if (asprintf(&path, "%s%s", to->prefix, model_modules[i]) < 0)
            path = NULL;
        TSR_TRY(add(to, path, NULL));
        if (!strcmp(model_modules[i], "embed_tokens"))
            set_table(to, TSR_TABLE_EMBEDDING, config->vocab_size, config->hidden_size);
    }
    return TSR_OK;
}

static tsr_status add_all(list *to, const tsr_model_config *config)
{
    tsr_block block;
    for (uint64_t layer = 0; layer < config->layer_count; layer++) {
        TSR_TRY(tsr_arch_block(&block, config, (int)layer));
        TSR_TRY(add_linears(to, &block, layer));
    }
    for (uint64_t layer = 0; layer < config->layer_count; layer++) {
        TSR_TRY(tsr_arch_block(&block, config, (int)layer));
        TSR_TRY(add_stacks(to, &block, layer));
    }
    TSR_TRY(add_of_model(to, config));
    if (config->layer_input_width)
        TSR_TRY(add(to, tsr_module_path(to->prefix, 0, true, config->arch->layer_table), NULL));
    for (uint64_t layer = 0; layer < config->layer_count; layer++) {
        TSR_TRY(tsr_arch_block(&block, config, (int)layer));
        TSR_TRY(add_others(to, &block, layer));
    }
    return TSR_OK;
}

tsr_status tsr_layout_modules(tsr_adapter_module **out, uint64_t *count,
                              const tsr_model_config *config)
{
    list all = {.prefix = tsr_composite_prefix(config->composite)};
    tsr_status status = add_all(&all, config);
    if (status < 0) {
        tsr_layout_modules_free(all.module, all.count);
        return status;
    }
    *out = all.module;
    *count = all.count;
    return TSR_OK;
}

void tsr_layout_modules_free(tsr_adapter_module *modules, uint64_t count)
{
    for (uint64_t i = 0; modules && i < count; i++)
        free((char *)modules[i].path);
    free(modules);
}
