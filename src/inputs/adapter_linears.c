#include "inputs/adapter_linears.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WEIGHT ".weight"

static bool is_concerned(const tsr_adapter *a, const tsr_adapter_module *modules,
                         uint64_t module_count)
{
    return !a->experts && !a->table &&
           tsr_adapter_peft_takes(modules[a->module].path, modules, module_count);
}

const char *tsr_adapter_linears_unread(const tsr_train_adapter *adapter,
                                       const tsr_adapter_module *modules, uint64_t module_count)
{
    const tsr_adapter_set *set = &adapter->set;
    if (!adapter->spec.dora && adapter->spec.dropout == 0)
        return NULL;
    for (uint64_t i = 0; i < set->count; i++)
        if (is_concerned(&set->adapter[i], modules, module_count))
            return modules[set->adapter[i].module].path;
    return NULL;
}

/* ---- in ---- */

/* `name` without its last part, if that is a weight: in `path`, or only its end. */
static bool names_weight(const char *name, const char *path)
{
    size_t length = strlen(name), last = strlen(WEIGHT), rest = strlen(path);
    if (length <= last || strcmp(name + length - last, WEIGHT))
        return false;
    length -= last;
    return length <= rest && !strncmp(path + rest - length, name, length) &&
           (length == rest || path[rest - length - 1] == '.');
}

/* The linear that a pattern's key names by its weight; NULL: none. */
static const char *linear_of(const char *key, const tsr_adapter_module *modules,
                             uint64_t module_count)
{
    for (uint64_t i = 0; i < module_count; i++)
        if (modules[i].linear && names_weight(key, modules[i].path))
            return modules[i].path;
    return NULL;
}

/* A key is dropped where another says the same of its linear. */
static tsr_status take_keys(tsr_peft *init, bool alpha, const tsr_adapter_module *modules,
                            uint64_t module_count)
{
    const tsr_peft_config *c = tsr_peft_config_of(init);
    const char *name = alpha ? "alpha_pattern" : "rank_pattern";
    for (uint64_t i = alpha ? c->alpha_pattern_count : c->rank_pattern_count; i-- > 0;) {
        const tsr_peft_pattern *pattern = alpha ? c->alpha_pattern : c->rank_pattern;
        uint64_t count = alpha ? c->alpha_pattern_count : c->rank_pattern_count;
        const char *path = linear_of(pattern[i].key, modules, module_count);
        bool said = false;
        for (uint64_t j = 0; path && j < count && !said; j++)
            if (pattern[j].value == pattern[i].value)
                TSR_TRY(tsr_adapter_key_matches(&said, name, pattern[j].key, path));
        if (path)
            TSR_TRY(tsr_peft_rename_key(init, alpha, i, said ? NULL : path));
    }
    return TSR_OK;
}

tsr_status tsr_adapter_linears_take(tsr_peft *init, const tsr_adapter_module *modules,
                                    uint64_t module_count)
{
    const tsr_peft_config *config = tsr_peft_config_of(init);
    const tsr_peft_match *parameter = &config->parameter;
    bool any = false;
    if (config->all_linear ||
        config->target.regex) /* such a file has no list that could name them */
        return TSR_OK;
    for (uint64_t i = parameter->count; i-- > 0;) {
        bool of_linears = false;
        for (uint64_t j = 0; j < module_count; j++) {
            if (!modules[j].linear || !names_weight(parameter->names[i], modules[j].path))
                continue;
            TSR_TRY(tsr_peft_add_target(init, modules[j].path));
            of_linears = true;
        }
        if (of_linears)
            tsr_peft_drop_parameter(init, i);
        any |= of_linears;
    }
    if (!any)
        return TSR_OK;
    TSR_TRY(take_keys(init, false, modules, module_count));
    return take_keys(init, true, modules, module_count);
}

/* ---- out ---- */

/* Whether every linear whose path ends so has an adapter. */
static bool all_have(const tsr_adapter_set *set, const char *name,
                     const tsr_adapter_module *modules, uint64_t module_count)
{
    uint64_t have = 0, linears = 0;
    for (uint64_t i = 0; i < set->count; i++)
        have += tsr_adapter_path_ends_in(modules[set->adapter[i].module].path, name);
    for (uint64_t i = 0; i < module_count; i++)
        linears += modules[i].linear && tsr_adapter_path_ends_in(modules[i].path, name);
    return have == linears;
}

/* Adds `name`, with ".weight", unless it is there. */
static tsr_status add_parameter(tsr_adapter_set *set, const char *name)
{
    char *whole;
    if (asprintf(&whole, "%s" WEIGHT, name) < 0)
        return tsr_fail(TSR_ENOMEM, "out of memory for names of parameters");
    uint64_t i = 0;
    while (i < set->parameter_count && strcmp(set->parameter[i], whole) < 0)
        i++;
    if (i < set->parameter_count && !strcmp(set->parameter[i], whole)) {
        free(whole);
        return TSR_OK;
    }
    memmove(set->parameter + i + 1, set->parameter + i,
            (set->parameter_count - i) * sizeof *set->parameter);
    set->parameter[i] = whole;
    set->parameter_count++;
    return TSR_OK;
}

static void drop_targets(tsr_adapter_set *set, const tsr_adapter_module *modules,
                         uint64_t module_count)
{
    uint64_t kept = 0;
    for (uint64_t i = 0; i < set->target_count; i++)
        if (tsr_adapter_peft_takes(set->target[i], modules, module_count))
            free(set->target[i]);
        else
            set->target[kept++] = set->target[i];
    set->target_count = kept;
}

/* PEFT looks a parameter up in the patterns by its own name. */
static tsr_status add_patterns(tsr_train_adapter *adapter, const tsr_adapter *a, const char *path)
{
    const struct {
        tsr_adapter_pattern *to;
        uint64_t *count;
        double value, usual;
    } both[] = {
        {adapter->linear_r, &adapter->linear_r_count, (double)a->r, (double)adapter->spec.r},
        {adapter->linear_alpha, &adapter->linear_alpha_count, a->alpha, adapter->spec.alpha}};
    for (size_t i = 0; i < sizeof both / sizeof *both; i++) {
        char *key;
        if (both[i].value == both[i].usual)
            continue;
        if (asprintf(&key, "%s" WEIGHT, path) < 0)
            return tsr_fail(TSR_ENOMEM, "out of memory for names of parameters");
        both[i].to[(*both[i].count)++] = (tsr_adapter_pattern){key, both[i].value};
    }
    return TSR_OK;
}

/* Room for a parameter and two patterns of each adapter. */
static tsr_status make_room(tsr_train_adapter *adapter)
{
    tsr_adapter_set *set = &adapter->set;
    char **grown = realloc(set->parameter, (set->parameter_count + set->count + 1) * sizeof *grown);
    if (grown)
        set->parameter = grown;
    adapter->linear_r = calloc(set->count + 1, sizeof *adapter->linear_r);
    adapter->linear_alpha = calloc(set->count + 1, sizeof *adapter->linear_alpha);
    return grown && adapter->linear_r && adapter->linear_alpha
               ? TSR_OK
               : tsr_fail(TSR_ENOMEM, "out of memory for names of parameters");
}

tsr_status tsr_adapter_linears_name(tsr_train_adapter *adapter, const tsr_adapter_module *modules,
                                    uint64_t module_count)
{
    tsr_adapter_set *set = &adapter->set;
    if (adapter->spec.dora || adapter->spec.dropout > 0)
        return TSR_OK;
    TSR_TRY(make_room(adapter));
    bool any = false;
    for (uint64_t i = 0; i < set->count; i++) {
        const tsr_adapter *a = &set->adapter[i];
        if (!is_concerned(a, modules, module_count))
            continue;
        const char *path = modules[a->module].path, *below = tsr_adapter_below_layer(path);
        TSR_TRY(add_parameter(set, all_have(set, below, modules, module_count) ? below : path));
        TSR_TRY(add_patterns(adapter, a, path));
        any = true;
    }
    if (any)
        drop_targets(set, modules, module_count);
    return TSR_OK;
}

void tsr_adapter_linears_free(tsr_train_adapter *adapter)
{
    for (uint64_t i = 0; i < adapter->linear_r_count; i++)
        free((char *)adapter->linear_r[i].key);
    for (uint64_t i = 0; i < adapter->linear_alpha_count; i++)
        free((char *)adapter->linear_alpha[i].key);
    free(adapter->linear_r);
    free(adapter->linear_alpha);
}
