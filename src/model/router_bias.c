#include "model/router_bias.h"

#include "model/node.h"

#include <string.h>

/* The correction of the router of a layer, in the checkpoint; NULL: it has none. */
static const tsr_tensor *correction_of(const tsr_layout *layout, int layer)
{
    const tsr_layout_unit *unit = &layout->unit[layer];
    for (int i = 0; i < unit->block->node_count; i++) {
        const tsr_node *node = &unit->block->node[i];
        if (node->kind == &tsr_node_route && node->weight[TSR_ROUTE_CORRECTION] != TSR_NONE)
            return unit->frozen[unit->vector[node->weight[TSR_ROUTE_CORRECTION]]].source;
    }
    return NULL;
}

uint64_t tsr_router_bias_count(const tsr_layout *layout)
{
    uint64_t routers = 0;
    for (int i = 0; i < layout->layer_count; i++)
        routers += correction_of(layout, i) != NULL;
    return routers * layout->config.experts.count;
}

tsr_status tsr_router_bias_of_model(float *out, const tsr_layout *layout)
{
    uint64_t experts = layout->config.experts.count;
    for (int i = 0; i < layout->layer_count; i++) {
        const tsr_tensor *tensor = correction_of(layout, i);
        if (!tensor)
            continue;
        TSR_TRY(tsr_safetensors_read_f32(out, tensor, 0, experts));
        out += experts;
    }
    return TSR_OK;
}

static tsr_status check_tensor(const tsr_safetensors *file, const char *name, uint64_t experts)
{
    char found[TSR_SHAPE_TEXT_BYTES];
    const char *path = tsr_safetensors_path(file);
    const tsr_tensor *tensor = tsr_safetensors_find(file, name);
    if (!tensor)
        return tsr_fail(TSR_EDATA,
                        "%s: the tensor %s is missing, which a router of the model needs; take the "
                        "file that was saved with the adapter, or remove it to use the model's own "
                        "biases",
                        path, name);
    if (tensor->dtype != TSR_F32 || tensor->ndim != 1 || tensor->shape[0] != experts)
        return tsr_fail(TSR_EDATA,
                        "%s: %s is %s %s, but the model's routers choose among %llu experts: F32 "
                        "[%llu]; take the file that was saved with an adapter of this model",
                        path, name, tsr_dtype_name(tensor->dtype),
                        tsr_shape_text(found, tensor->shape, tensor->ndim),
                        (unsigned long long)experts, (unsigned long long)experts);
    return TSR_OK;
}

static bool is_correction(const char *name, const tsr_layout *layout)
{
    for (int i = 0; i < layout->layer_count; i++) {
        const tsr_tensor *tensor = correction_of(layout, i);
        if (tensor && !strcmp(tensor->name, name))
            return true;
    }
    return false;
}

tsr_status tsr_router_bias_check(const tsr_safetensors *file, const tsr_layout *layout)
{
    const char *path = tsr_safetensors_path(file);
    if (!tsr_router_bias_count(layout))
        return tsr_fail(
            TSR_EDATA,
            "%s: it has correction biases of routers, but those of the model have none; "
            "it belongs to another model's adapter: remove it",
            path);
    for (int i = 0; i < layout->layer_count; i++)
        if (correction_of(layout, i))
            TSR_TRY(
                check_tensor(file, correction_of(layout, i)->name, layout->config.experts.count));
    for (uint64_t i = 0; i < tsr_safetensors_count(file); i++)
        if (!is_correction(tsr_safetensors_at(file, i)->name, layout))
            return tsr_fail(TSR_EDATA,
                            "%s: %s is no correction bias of a router of the model; take the file "
                            "that was saved with an adapter of this model",
                            path, tsr_safetensors_at(file, i)->name);
    return TSR_OK;
}

tsr_status tsr_router_bias_read(float *out, const tsr_safetensors *file, const tsr_layout *layout)
{
    uint64_t experts = layout->config.experts.count;
    TSR_TRY(tsr_router_bias_check(file, layout));
    for (int i = 0; i < layout->layer_count; i++) {
        const tsr_tensor *tensor = correction_of(layout, i);
        if (!tensor)
            continue;
        TSR_TRY(
            tsr_safetensors_read_finite(out, tsr_safetensors_find(file, tensor->name), 0, experts));
        out += experts;
    }
    return TSR_OK;
}

uint64_t tsr_router_bias_sources(tsr_tensor_source *out, const float *values,
                                 const tsr_layout *layout)
{
    uint64_t count = 0, experts = layout->config.experts.count;
    for (int i = 0; i < layout->layer_count; i++) {
        const tsr_tensor *tensor = correction_of(layout, i);
        if (!tensor)
            continue;
        out[count] = (tsr_tensor_source){.name = tensor->name,
                                         .dtype = TSR_F32,
                                         .ndim = 1,
                                         .shape = {experts},
                                         .data = values + count * experts};
        count++;
    }
    return count;
}
