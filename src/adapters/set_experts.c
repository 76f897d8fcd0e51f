/*
 * set_experts.c: which parameters of experts get an adapter, and what adapter_config.json says of them.
 *
 * PEFT 0.21 still takes names of the linears that the experts of some families once were (gate_proj, up_proj, down_proj,
 * or w1, w3, w2): it makes target_parameters of them, with twice the rank and alpha for gate_up_proj, and no linear that
 * is called so gets an adapter. Its all-linear has those names too.
 */
#include "adapters/set_parts.h"

#include "base/auto.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool tsr_adapter_path_ends_in(const char *path, const char *name)
{
    size_t path_length = strlen(path), length = strlen(name);
    if (length > path_length || strcmp(path + path_length - length, name))
        return false;
    return length == path_length || path[path_length - length - 1] == '.';
}

const char *tsr_adapter_below_layer(const char *path)
{
    const char *at = strstr(path, "layers.");
    const char *dot = at ? strchr(at + strlen("layers."), '.') : NULL;
    return dot ? dot + 1 : path;
}

void tsr_set_look_for_linears(selection *s)
{
    for (uint64_t i = 0; i < s->module_count; i++)
        s->were_linears |= s->module[i].linears != NULL;
}

bool tsr_adapter_peft_takes(const char *path, const tsr_adapter_module *modules,
                            uint64_t module_count)
{
    for (uint64_t i = 0; i < module_count; i++)
        for (int part = 0; modules[i].linears && part < modules[i].parts; part++)
            if (tsr_adapter_path_ends_in(path, strrchr(modules[i].linears[part], '.') + 1))
                return true;
    return false;
}

bool tsr_set_peft_leaves_out(const selection *s, const tsr_adapter_module *module)
{
    return s->spec->all_linear_peft && s->were_linears &&
           tsr_adapter_peft_takes(module->path, s->module, s->module_count);
}

bool tsr_set_names_parameter(const selection *s, const tsr_adapter_module *module)
{
    bool named = false;
    for (uint64_t i = 0; i < s->spec->parameter_count; i++) {
        bool same = tsr_adapter_path_ends_in(module->path, s->spec->parameter[i]);
        s->parameter_used[i] |= same;
        named |= same;
    }
    return named;
}

/* Whether all-linear means the experts as well. */
static bool with_experts(const selection *s)
{
    const tsr_adapter_spec *spec = s->spec;
    if (!s->all_linear || spec->parameters_given)
        return false;
    return spec->all_linear_peft ? s->were_linears : !spec->dora;
}

tsr_status tsr_set_is_parameter(bool *out, const selection *s, const tsr_adapter_module *module)
{
    *out = tsr_set_names_parameter(s, module) || with_experts(s);
    return TSR_OK;
}

tsr_status tsr_set_check_parameter(const selection *s, const tsr_adapter_module *module)
{
    if (s->spec->dora)
        return tsr_fail(TSR_ECONFIG,
                        "use_dora: %s has a matrix for each expert, and neither PEFT nor this "
                        "program has DoRA for those; write use_dora: false, or take the experts "
                        "out with " PARAMETER_KEY ": []",
                        module->path);
    if (s->spec->dropout > 0)
        return tsr_fail(TSR_ECONFIG,
                        "lora_dropout: found %g with an adapter on %s, which has a matrix for each "
                        "expert; neither PEFT nor this program has dropout for those; write "
                        "lora_dropout: 0, or take the experts out with " PARAMETER_KEY ": []",
                        s->spec->dropout, module->path);
    return TSR_OK;
}

tsr_status tsr_set_check_routers(const selection *s)
{
    for (uint64_t i = 0; i < s->module_count; i++)
        for (uint64_t j = 0; s->module[i].router && j < s->spec->parameter_count; j++) {
            const char *path = s->module[i].path, *name = s->spec->parameter[j];
            const char *dot = strrchr(name, '.');
            char parent[256];
            snprintf(parent, sizeof parent, "%.*s", dot ? (int)(dot - name) : 0, name);
            if (dot && !strcmp(dot, ".weight") && tsr_adapter_path_ends_in(path, parent))
                return tsr_fail(TSR_ECONFIG,
                                PARAMETER_KEY
                                ": \"%s\" means %s, a router, which is never trained; "
                                "take it out",
                                name, path);
        }
    return TSR_OK;
}

double tsr_set_factor(const selection *s, const tsr_adapter_module *module)
{
    return s->spec->all_linear_peft && with_experts(s) ? module->parts : 1;
}

/* Whether all parameters of this name have an adapter. */
static bool all_chosen(const selection *s, const char *name)
{
    for (uint64_t i = 0; i < s->module_count; i++)
        if (s->module[i].experts && !s->chosen[i] &&
            !strcmp(tsr_adapter_below_layer(s->module[i].path), name))
            return false;
    return true;
}

/* The parameter without its layer, where those of all layers have an adapter and the same to be said; else its path. */
static const char *shared_name(const selection *s, uint64_t index, const double *value,
                               const bool *said)
{
    const char *path = s->module[index].path, *below = tsr_adapter_below_layer(path);
    for (uint64_t i = 0; i < s->module_count; i++)
        if (s->module[i].experts && s->chosen[i] &&
            !strcmp(tsr_adapter_below_layer(s->module[i].path), below) &&
            (said[i] || value[i] != value[index]))
            return path;
    return below;
}

tsr_status tsr_set_build_patterns(tsr_adapter_pattern **out, uint64_t *count, const selection *s,
                                  const double *value, const bool *said)
{
    *out = calloc(s->module_count + 1, sizeof **out);
    for (uint64_t i = 0; *out && i < s->module_count; i++) {
        uint64_t j = 0;
        if (!s->module[i].experts || !s->chosen[i] || said[i])
            continue;
        const char *name = shared_name(s, i, value, said);
        while (j < *count && strcmp((*out)[j].key, name) != 0)
            j++;
        if (j < *count)
            continue;
        char *key = strdup(name);
        if (!key)
            return tsr_fail(TSR_ENOMEM, "no memory for names of parameters");
        (*out)[(*count)++] = (tsr_adapter_pattern){key, value[i]};
    }
    return *out ? TSR_OK : tsr_fail(TSR_ENOMEM, "no memory for names of parameters");
}

/* As given, or of all-linear what the layers have; where not all layers do, whole names. */
tsr_status tsr_set_build_parameters(tsr_adapter_set *set, const selection *s)
{
    const tsr_adapter_spec *spec = s->spec;
    bool all = with_experts(s);
    TSR_AUTO_FREE const char **names =
        malloc((spec->parameter_count + s->module_count + 1) * sizeof *names);
    uint64_t count = 0;
    if (!names)
        return tsr_fail(TSR_ENOMEM, "no memory for names of parameters");
    for (uint64_t i = 0; !all && i < spec->parameter_count; i++)
        names[count++] = spec->parameter[i];
    for (uint64_t i = 0; all && i < s->module_count; i++) {
        const char *path = s->module[i].path, *below = tsr_adapter_below_layer(path);
        if (s->chosen[i] && s->module[i].experts)
            names[count++] = all_chosen(s, below) ? below : path;
    }
    count = tsr_set_sort_names(names, count);
    set->parameter = calloc(count + 1, sizeof *set->parameter);
    for (uint64_t i = 0; set->parameter && i < count; i++) {
        set->parameter[i] = strdup(names[i]);
        if (!set->parameter[i])
            break;
        set->parameter_count++;
    }
    return set->parameter_count == count && set->parameter
               ? TSR_OK
               : tsr_fail(TSR_ENOMEM, "no memory for names of parameters");
}
