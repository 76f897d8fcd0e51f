#include "inputs/adapter_experts.h"

#include "inputs/adapter_linears.h"

#include "base/auto.h"
#include "base/log.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WRAPPED ".base_layer"

/* ---- a linear an expert ---- */

/* The path of a part of an expert: "model.layers.0.mlp.experts.3.up_proj". */
static char *linear_path(const tsr_adapter_module *module, uint64_t expert, int part)
{
    const char *format = module->linears[part], *hole = strstr(format, "%d");
    int above = (int)(tsr_adapter_below_layer(module->path) - module->path);
    char *out;
    if (asprintf(&out, "%.*s%.*s%" PRIu64 "%s", above, module->path, (int)(hole - format), format,
                 expert, hole + 2) < 0)
        return NULL;
    return out;
}

static tsr_status check_linear(const tsr_peft *init, const tsr_adapter_module *module,
                               const char *path, const char *directory)
{
    const tsr_peft_module *found = tsr_peft_module_find(init, path);
    uint64_t r = tsr_peft_config_of(init)->r;
    uint64_t out = module->out_features / (uint64_t)module->parts;
    if (!found || !found->a)
        return tsr_fail(
            TSR_EDATA,
            "%s: " TSR_PEFT_WEIGHTS_FILE
            " has adapters on some linears of experts, but none on %s; all experts of a "
            "layer have one, and gate and up both or neither",
            directory, path);
    if (found->r == r && found->in_features == module->in_features && found->out_features == out)
        return TSR_OK;
    return tsr_fail(TSR_EDATA,
                    "%s: %s is stored with rank %" PRIu64 " for [%" PRIu64 ", %" PRIu64
                    "]; its configuration and the model say rank %" PRIu64 " for [%" PRIu64
                    ", %" PRIu64 "]",
                    directory, path, found->r, found->out_features, found->in_features, r, out,
                    module->in_features);
}

/* All linears of one parameter; *joined: there are such. */
static tsr_status join_module(bool *joined, tsr_peft *init, const tsr_adapter_module *module,
                              const char *directory)
{
    uint64_t parts = (uint64_t)module->parts, count = module->experts * parts;
    TSR_AUTO_FREE char **paths = calloc(count, sizeof *paths);
    tsr_status status = TSR_OK;
    *joined = false;
    for (uint64_t i = 0; paths && i < count; i++) {
        paths[i] = linear_path(module, i / parts, (int)(i % parts));
        *joined |= paths[i] && tsr_peft_module_find(init, paths[i]);
    }
    if (!paths || !paths[count - 1])
        status = tsr_fail(TSR_ENOMEM, "out of memory for the adapter of %s", module->path);
    for (uint64_t i = 0; i < count && *joined && status == TSR_OK; i++)
        status = paths[i] ? check_linear(init, module, paths[i], directory)
                          : tsr_fail(TSR_ENOMEM, "out of memory for names of experts");
    if (status == TSR_OK && *joined)
        status = tsr_peft_join(
            init, &(tsr_peft_joint){module->path, paths, module->experts, module->parts});
    for (uint64_t i = 0; paths && i < count; i++)
        free(paths[i]);
    return status;
}

/* target_modules without the names that were of experts alone. */
static void drop_targets(tsr_peft *init, const tsr_adapter_module *modules, uint64_t module_count)
{
    const tsr_peft_match *target = &tsr_peft_config_of(init)->target;
    for (uint64_t i = target->count; i-- > 0;) {
        bool of_experts = false, of_linears = false;
        for (uint64_t j = 0; j < module_count; j++) {
            of_linears |=
                !modules[j].experts && tsr_adapter_path_ends_in(modules[j].path, target->names[i]);
            for (int p = 0; modules[j].linears && p < modules[j].parts; p++)
                of_experts |= tsr_adapter_path_ends_in(modules[j].linears[p], target->names[i]);
        }
        if (of_experts && !of_linears)
            tsr_peft_drop_target(init, i);
    }
}

/* What target_parameters says of a parameter: its name below the layer where those of all layers are joined. */
static const char *joined_name(const tsr_adapter_module *modules, uint64_t module_count,
                               const bool *joined, uint64_t index)
{
    const char *path = modules[index].path, *below = tsr_adapter_below_layer(path);
    for (uint64_t i = 0; i < module_count; i++)
        if (modules[i].experts && !joined[i] && tsr_adapter_path_ends_in(modules[i].path, below))
            return path;
    return below;
}

static tsr_status add_parameter(tsr_peft *init, const char *name, int parts)
{
    const tsr_peft_config *config = tsr_peft_config_of(init);
    for (uint64_t i = 0; i < config->parameter.count; i++)
        if (!strcmp(config->parameter.names[i], name))
            return TSR_OK;
    /* The scale stays: alpha / r, or alpha / sqrt(r). */
    return tsr_peft_add_parameter(init, name, config->r * (uint64_t)parts,
                                  config->lora_alpha * (config->use_rslora ? sqrt(parts) : parts));
}

tsr_status tsr_adapter_experts_join(tsr_peft *init, const tsr_adapter_module *modules,
                                    uint64_t module_count, const char *directory)
{
    TSR_AUTO_FREE bool *joined = calloc(module_count + 1, sizeof *joined);
    bool any = false;
    if (!joined)
        return tsr_fail(TSR_ENOMEM, "out of memory for names of experts");
    for (uint64_t i = 0; i < module_count; i++) {
        if (modules[i].linears)
            TSR_TRY(join_module(&joined[i], init, &modules[i], directory));
        any |= joined[i];
    }
    for (uint64_t i = 0; i < module_count; i++)
        if (joined[i])
            TSR_TRY(add_parameter(init, joined_name(modules, module_count, joined, i),
                                  modules[i].parts));
    if (any)
        drop_targets(init, modules, module_count);
    return TSR_OK;
}

/* ---- names ---- */

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
    if ((stored->a || stored->one) && stored->r == rows &&
        stored->in_features == module->in_features && stored->out_features == module->out_features)
        return TSR_OK;
    if (!stored->a)
        return tsr_fail(TSR_EDATA,
                        "%s: %s is stored with rank %" PRIu64 " for all %" PRIu64
                        " experts, but its configuration says rank %" PRIu64 " for each",
                        directory, module->path, stored->r, a->experts, a->r);
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
                        "which would say for which parameter it is (%s)",
                        directory, path, tsr_text_string(&names));
    return tsr_fail(TSR_EDATA,
                    "%s: " TSR_PEFT_WEIGHTS_FILE
                    " has an adapter for %s, but target_parameters in its adapter_config.json name "
                    "fewer of %s",
                    directory, path, tsr_text_string(&names));
}

/* ---- the keys ---- */

static bool named(char *const *names, uint64_t count, const char *path)
{
    for (uint64_t i = 0; i < count; i++)
        if (tsr_adapter_path_ends_in(path, names[i]))
            return true;
    return false;
}

bool tsr_adapter_experts_same(const tsr_config_strings *own, const tsr_peft_match *other,
                              const tsr_adapter_module *modules, uint64_t module_count)
{
    for (uint64_t i = 0; i < module_count; i++)
        if (modules[i].experts &&
            named((char *const *)own->items, (uint64_t)own->count, modules[i].path) !=
                named(other->names, other->count, modules[i].path))
            return false;
    return true;
}

bool tsr_adapter_experts_all(const tsr_peft_match *names, const tsr_adapter_module *modules,
                             uint64_t module_count)
{
    for (uint64_t i = 0; i < module_count; i++)
        if (modules[i].experts && !named(names->names, names->count, modules[i].path))
            return false;
    return true;
}

bool tsr_adapter_experts_has(const tsr_peft_match *names, const char *key)
{
    return named(names->names, names->count, key);
}

static tsr_status check_value(const tsr_config *config, const char *key, double own, double other,
                              const char *path)
{
    if (!tsr_config_is_set(config, key) || own == 0 || own == other)
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG,
                    "%s: %s is %g, but init_adapter %s has %g for %s; leave the key out to take "
                    "the adapter's",
                    tsr_config_where(config, key), key, own, config->init_adapter, other, path);
}

/* Whether PEFT has names of linears for the experts (adapters/set_experts.c). */
static bool were_linears(const tsr_adapter_module *modules, uint64_t module_count)
{
    for (uint64_t i = 0; i < module_count; i++)
        if (modules[i].linears)
            return true;
    return false;
}

const char *tsr_adapter_experts_note(const tsr_train_adapter *adapter,
                                     const tsr_adapter_module *modules, uint64_t module_count)
{
    const tsr_adapter_spec *spec = &adapter->spec;
    bool experts = false, linears = were_linears(modules, module_count);
    for (uint64_t i = 0; i < module_count; i++)
        experts |= modules[i].experts > 0;
    if (adapter->init || !experts || spec->parameters_given)
        return NULL;
    if (spec->all_linear_peft)
        return linears ? "except the routers, which stay frozen" : NULL;
    if (!spec->all_linear)
        return NULL;
    if (spec->dora)
        return "except the experts, for which there is no DoRA";
    return linears
               ? "and all experts; PEFT's all-linear has experts, gate_up_proj with twice r and "
                 "alpha, and routers, but no other MLP (all-linear-peft)"
               : "and all experts, which PEFT's all-linear leaves out (all-linear-peft)";
}

static void warn_of_names(const tsr_train_adapter *adapter, const tsr_adapter_module *modules,
                          uint64_t module_count)
{
    const char *path = tsr_adapter_linears_unread(adapter, modules, module_count);
    if (path)
        tsr_log(TSR_LOG_WARNING,
                "PEFT 0.21 mistakes %s for a linear of experts and cannot read an adapter on it "
                "with DoRA or dropout; for an adapter that PEFT reads, name it in exclude_modules, "
                "or write use_dora: false and lora_dropout: 0",
                path);
}

tsr_status tsr_adapter_experts_agree(const tsr_train_adapter *adapter, const tsr_config *config,
                                     const tsr_adapter_module *modules, uint64_t module_count)
{
    const tsr_adapter_set *set = &adapter->set;
    if (!adapter->init)
        warn_of_names(adapter, modules, module_count);
    for (uint64_t i = 0; i < set->count; i++) {
        const tsr_adapter *a = &set->adapter[i];
        const char *path = modules[a->module].path;
        int times = config->lora_target_modules.kind == TSR_CONFIG_MODULES_ALL_LINEAR_PEFT
                        ? modules[a->module].parts
                        : 1;
        if (!a->experts)
            continue;
        if (adapter->start == TSR_START_PRINCIPAL && !adapter->init)
            return tsr_fail(TSR_ECONFIG,
                            "%s: init_lora_weights: found %s with an adapter on %s; matrices of "
                            "experts have no principal start; write init_lora_weights: true, or "
                            "take the experts out with lora_target_parameters: []",
                            tsr_config_where(config, "init_lora_weights"),
                            config->init_lora_weights, path);
        if (!adapter->init)
            continue;
        TSR_TRY(check_value(config, "expert_lora_r", (double)config->expert_lora_r * times,
                            (double)a->r, path));
        TSR_TRY(check_value(config, "expert_lora_alpha", config->expert_lora_alpha * times,
                            a->alpha, path));
    }
    return TSR_OK;
}
