#include "inputs/adapter_experts.h"

#include "base/auto.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WRAPPED ".base_layer"

/* Length of the path of the module that a parameter is of. */
static size_t parent_length(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot ? (size_t)(dot - path) : 0;
}

static bool same_parent(const char *x, const char *y)
{
    size_t length = parent_length(x);
    return length == parent_length(y) && !strncmp(x, y, length);
}

/* Adapters [first, the result) of the set are of one module's parameters. */
static uint64_t end_of_module(const tsr_adapter_set *set, uint64_t first,
                              const tsr_adapter_module *modules)
{
    const char *path = modules[set->adapter[first].module].path;
    uint64_t end = first + 1;
    while (end < set->count && set->adapter[end].experts &&
           same_parent(path, modules[set->adapter[end].module].path))
        end++;
    return end;
}

/* The first parameter is the innermost, behind as many wrappers as there are others. */
static tsr_status name_module(tsr_peft *init, const char *path, uint64_t wrappers)
{
    tsr_auto_text stored = {0};
    tsr_text_printf(&stored, "%.*s", (int)parent_length(path), path);
    for (uint64_t i = 0; i < wrappers; i++)
        tsr_text_puts(&stored, WRAPPED);
    if (stored.failed)
        return tsr_fail(TSR_ENOMEM, "out of memory for the name of the adapter of %s", path);
    return tsr_peft_rename_module(init, stored.data, path);
}

tsr_status tsr_adapter_experts_name(tsr_train_adapter *adapter, const tsr_adapter_module *modules)
{
    const tsr_adapter_set *set = &adapter->set;
    for (uint64_t i = 0, end; i < set->count; i = end) {
        end = i + 1;
        if (!set->adapter[i].experts)
            continue;
        end = end_of_module(set, i, modules);
        for (uint64_t j = i; j < end; j++)
            TSR_TRY(name_module(adapter->init, modules[set->adapter[j].module].path, end - 1 - j));
    }
    return TSR_OK;
}

tsr_status tsr_adapter_experts_check(const tsr_peft_module *stored, const tsr_adapter *a,
                                     const tsr_adapter_module *module, const char *directory)
{
    uint64_t rows = a->experts * a->r;
    char shown_a[TSR_SHAPE_TEXT_BYTES], shown_b[TSR_SHAPE_TEXT_BYTES];
    if (stored->a && stored->r == rows && stored->in_features == module->in_features &&
        stored->out_features == module->out_features)
        return TSR_OK;
    if (!stored->a)
        return tsr_fail(TSR_EDATA, "%s: %s has no lora_A.weight", directory, module->path);
    return tsr_fail(TSR_EDATA,
                    "%s: %s is stored as lora_A %s and lora_B %s; %" PRIu64
                    " experts with rank %" PRIu64 " for [%" PRIu64 ", %" PRIu64
                    "] each, as its configuration and the model say, are lora_A [%" PRIu64
                    ", %" PRIu64 "] and lora_B [%" PRIu64 ", %" PRIu64 "]",
                    directory, module->path, tsr_shape_text(shown_a, stored->a->shape, 2),
                    tsr_shape_text(shown_b, stored->b->shape, 2), a->experts, a->r,
                    module->out_features, module->in_features, rows, module->in_features,
                    module->out_features, rows);
}

/* Whether a path is of the module that has a parameter, wrapped or not. */
static bool is_wrapper(const char *path, const char *parameter)
{
    size_t length = parent_length(parameter), wrapped = strlen(WRAPPED);
    if (strncmp(path, parameter, length) != 0)
        return false;
    for (path += length; !strncmp(path, WRAPPED, wrapped); path += wrapped)
        ;
    return !*path;
}

tsr_status tsr_adapter_experts_unknown(const tsr_train_adapter *adapter, const char *path,
                                       const tsr_adapter_module *modules, uint64_t module_count,
                                       const char *directory)
{
    tsr_auto_text names = {0};
    for (uint64_t i = 0; i < module_count; i++)
        if (modules[i].experts && is_wrapper(path, modules[i].path))
            tsr_text_printf(&names, "%s%s", names.length ? ", " : "",
                            modules[i].path + parent_length(modules[i].path) + 1);
    if (!names.length)
        return TSR_OK;
    if (!tsr_peft_config_of(adapter->init)->parameter.count)
        return tsr_fail(TSR_EDATA,
                        "%s: " TSR_PEFT_WEIGHTS_FILE
                        " has an adapter for %s, but adapter_config.json has no target_parameters, "
                        "which say of which parameter it is (%s)",
                        directory, path, tsr_text_string(&names));
    return tsr_fail(TSR_EDATA,
                    "%s: " TSR_PEFT_WEIGHTS_FILE
                    " has an adapter for %s, but target_parameters of its adapter_config.json name "
                    "fewer of %s",
                    directory, path, tsr_text_string(&names));
}
