#include "adapters/set_parts.h"

#include "base/auto.h"
#include "base/log.h"
#include "base/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *last_part(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

/* The layer of "model.layers.3.mlp": the last number between dots behind two names; -1 if none. */
static int64_t layer_of(const char *path)
{
    int64_t layer = -1;
    int dots = 0;
    for (const char *p = path; *p; p++) {
        if (*p != '.' || ++dots < 2)
            continue;
        char *end;
        if (p[1] < '0' || p[1] > '9')
            continue;
        long value = strtol(p + 1, &end, 10);
        if (*end == '.')
            layer = value;
    }
    return layer;
}

static tsr_status check_rank(const char *key, const char *pattern, double r)
{
    if (r >= 1 && r <= TSR_ADAPTER_MAX_RANK && r == floor(r))
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG, "%s%s%s is %g; expected a whole number from 1 to %d", key,
                    pattern ? " " : "", pattern ? pattern : "", r, TSR_ADAPTER_MAX_RANK);
}

static tsr_status check_alpha(const char *key, const char *pattern, double alpha)
{
    if (alpha > 0 && isfinite(alpha))
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG, "%s%s%s is %g; expected a number above 0", key, pattern ? " " : "",
                    pattern ? pattern : "", alpha);
}

static tsr_status check_layers(const selection *s)
{
    int64_t last = -1;
    for (uint64_t i = 0; i < s->module_count; i++)
        if (s->module[i].linear && layer_of(s->module[i].path) > last)
            last = layer_of(s->module[i].path);
    for (uint64_t i = 0; i < s->spec->layer_count; i++)
        if (s->spec->layers[i] < 0 || s->spec->layers[i] > last)
            return tsr_fail(TSR_ECONFIG,
                            "layers_to_transform: layer %lld is not in the model, whose layers are "
                            "0 to %lld",
                            (long long)s->spec->layers[i], (long long)last);
    return TSR_OK;
}

static tsr_status check_spec(const selection *s)
{
    const tsr_adapter_spec *spec = s->spec;
    TSR_TRY(check_rank("lora_r", NULL, (double)spec->r));
    TSR_TRY(check_alpha("lora_alpha", NULL, spec->alpha));
    if (spec->expert_r)
        TSR_TRY(check_rank(EXPERT_RANK_KEY, NULL, (double)spec->expert_r));
    if (!(spec->dropout >= 0 && spec->dropout < 1))
        return tsr_fail(TSR_ECONFIG, "lora_dropout is %g; expected 0 or more and below 1",
                        spec->dropout);
    for (uint64_t i = 0; i < spec->rank_pattern_count; i++)
        TSR_TRY(check_rank("rank_pattern", spec->rank_pattern[i].key, spec->rank_pattern[i].value));
    for (uint64_t i = 0; i < spec->alpha_pattern_count; i++)
        TSR_TRY(
            check_alpha("alpha_pattern", spec->alpha_pattern[i].key, spec->alpha_pattern[i].value));
    if (spec->target.regex && spec->target.count)
        return tsr_fail(TSR_EINVAL, "%s: both a list and a regular expression", TARGET_KEY);
    if (!spec->layers)
        return TSR_OK;
    if (spec->target.regex)
        return tsr_fail(TSR_ECONFIG,
                        "layers_to_transform cannot be combined with a regular expression as %s "
                        "(\"%s\"): give a list of names, or put the layers into the expression",
                        TARGET_KEY, spec->target.regex);
    return check_layers(s);
}

/* Whether the module holds linears: to exclude it leaves them where they are. */
static bool holds_linears(const selection *s, uint64_t index)
{
    const char *path = s->module[index].path;
    size_t length = strlen(path);
    for (uint64_t i = 0; i < s->module_count; i++)
        if (s->module[i].linear && !strncmp(s->module[i].path, path, length) &&
            s->module[i].path[length] == '.')
            return true;
    return false;
}

/* Whether the module is excluded. What would have been no target anyway counts as taken away, unless
 * who excludes it means what it holds. */
static tsr_status is_excluded(bool *out, selection *s, uint64_t index, bool target)
{
    const char *path = s->module[index].path;
    *out = false;
    if (s->exclude)
        TSR_TRY(tsr_path_regex_match(out, s->exclude, s->budget, path));
    for (uint64_t i = 0; i < s->spec->exclude.count; i++)
        *out |= tsr_adapter_path_ends_in(path, s->spec->exclude.names[i]);
    if (!*out || (!target && holds_linears(s, index)))
        return TSR_OK;
    s->excludes[0] |= s->exclude != NULL;
    for (uint64_t i = 0; i < s->spec->exclude.count; i++)
        s->excludes[i] |= tsr_adapter_path_ends_in(path, s->spec->exclude.names[i]);
    return TSR_OK;
}

/* Whether the target means the module, layers and exclusion aside; *name is the entry that does. */
static tsr_status is_target(bool *out, const char **name, const selection *s,
                            const tsr_adapter_module *module)
{
    *out = false;
    *name = s->spec->target.regex;
    if (s->all_linear)
        *out = module->linear && !tsr_set_peft_leaves_out(s, module);
    else if (s->target)
        return tsr_path_regex_match(out, s->target, s->budget, module->path);
    for (uint64_t i = 0; i < s->spec->target.count; i++)
        if (tsr_adapter_path_ends_in(module->path, s->spec->target.names[i])) {
            s->used[i] = true;
            *name = s->spec->target.names[i];
            *out = true;
        }
    return TSR_OK;
}

/* Layers limit names that are ends of paths; a name that is the whole path means that one module. */
static bool in_layers(const selection *s, const char *path)
{
    if (!s->spec->layers)
        return true;
    for (uint64_t i = 0; i < s->spec->target.count; i++)
        if (!strcmp(s->spec->target.names[i], path))
            return true;
    int64_t layer = layer_of(path);
    for (uint64_t i = 0; i < s->spec->layer_count; i++)
        if (s->spec->layers[i] == layer)
            return true;
    return false;
}

static tsr_status choose_module(selection *s, uint64_t index)
{
    const tsr_adapter_module *module = &s->module[index];
    bool target, excluded;
    const char *name = NULL;
    if (module->experts)
        TSR_TRY(tsr_set_is_parameter(&target, s, module));
    else
        TSR_TRY(is_target(&target, &name, s, module));
    TSR_TRY(is_excluded(&excluded, s, index, target));
    bool limited = !module->experts || !tsr_set_names_parameter(s, module);
    if (!target || (limited && (excluded || !in_layers(s, module->path))))
        return TSR_OK;
    if (module->table && s->spec->dora)
        return tsr_fail(
            TSR_ECONFIG,
            "%s: \"%s\" means %s, and use_dora is for linears of the layers; take one of "
            "them out",
            TARGET_KEY, name, module->path);
    if (module->experts)
        TSR_TRY(tsr_set_check_parameter(s, module));
    if (module->router)
        return tsr_fail(TSR_ECONFIG,
                        "%s: \"%s\" means %s, a router, which is never trained; take it out",
                        TARGET_KEY, name, module->path);
    if (!module->linear && !module->table && !module->experts)
        return tsr_fail(TSR_ECONFIG,
                        "%s: \"%s\" means %s, which is not a linear of a decoder layer and cannot "
                        "have an adapter; take it out, or name it in %s, or let the target end in "
                        "names of linears, as [q_proj, up_proj] and \".*(q|up)_proj\" do",
                        TARGET_KEY, name, module->path, EXCLUDE_KEY);
    s->chosen[index] = true;
    return TSR_OK;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Sorts names and drops repeated ones; returns how many are left. */
uint64_t tsr_set_sort_names(const char **names, uint64_t count)
{
    uint64_t kept = 0;
    if (count)
        qsort(names, count, sizeof *names, compare_names);
    for (uint64_t i = 0; i < count; i++)
        if (kept == 0 || strcmp(names[kept - 1], names[i]))
            names[kept++] = names[i];
    return kept;
}

static tsr_status list_candidates(tsr_text *out, const selection *s)
{
    TSR_AUTO_FREE const char **names = malloc((s->module_count + 1) * sizeof *names);
    uint64_t count = 0;
    if (!names)
        return tsr_fail(TSR_ENOMEM, "no memory for %llu module names", (ull)s->module_count);
    for (uint64_t i = 0; i < s->module_count; i++)
        if (s->module[i].linear)
            names[count++] = last_part(s->module[i].path);
    count = tsr_set_sort_names(names, count);
    for (uint64_t i = 0; i < count; i++)
        tsr_text_printf(out, "%s%s", i ? ", " : "", names[i]);
    for (uint64_t i = 0; i < s->module_count; i++)
        if (s->module[i].table)
            tsr_text_printf(out, ", %s", last_part(s->module[i].path));
    count = 0;
    for (uint64_t i = 0; i < s->module_count; i++)
        if (s->module[i].experts)
            names[count++] = tsr_adapter_below_layer(s->module[i].path);
    count = tsr_set_sort_names(names, count);
    for (uint64_t i = 0; i < count; i++)
        tsr_text_printf(out, ", %s", names[i]);
    return TSR_OK;
}

/* " [q_proj]", " "q_proj" (a regular expression of whole names; a list is written [a, b])", or "". */
static void put_target(tsr_text *out, const tsr_adapter_spec *spec)
{
    for (uint64_t i = 0; i < spec->target.count; i++)
        tsr_text_printf(out, "%s%s", i ? ", " : " [", spec->target.names[i]);
    if (spec->target.count)
        tsr_text_puts(out, "]");
    if (spec->target.regex)
        tsr_text_printf(out,
                        " \"%s\" (a regular expression of whole names; a list is written [a, b])",
                        spec->target.regex);
}

static void warn_unmatched(const char *key, const char *name, const tsr_text *candidates)
{
    tsr_log(TSR_LOG_WARNING, "%s: \"%s\" matches no module; candidates: %s", key, name,
            tsr_text_string(candidates));
}

/* Nothing chosen is an error; a name without a module is a warning. All list what there is. */
static tsr_status report_choice(const selection *s)
{
    uint64_t chosen = 0;
    tsr_auto_text candidates = {0}, target = {0};
    tsr_status status = list_candidates(&candidates, s);
    put_target(&target, s->spec);
    for (uint64_t i = 0; i < s->module_count; i++)
        chosen += s->chosen[i];
    if (status == TSR_OK && chosen == 0)
        status = tsr_fail(TSR_ECONFIG, "%s%s matches no linear of the model%s; candidates: %s",
                          TARGET_KEY, tsr_text_string(&target),
                          s->spec->exclude.count || s->exclude || s->spec->layers
                              ? " (after " EXCLUDE_KEY " and layers_to_transform)"
                              : "",
                          tsr_text_string(&candidates));
    for (uint64_t i = 0; status == TSR_OK && i < s->spec->target.count; i++)
        if (!s->used[i])
            warn_unmatched(TARGET_KEY, s->spec->target.names[i], &candidates);
    for (uint64_t i = 0; status == TSR_OK && i < s->spec->parameter_count; i++)
        if (!s->parameter_used[i])
            warn_unmatched(PARAMETER_KEY, s->spec->parameter[i], &candidates);
    for (uint64_t i = 0; status == TSR_OK && i < s->spec->exclude.count; i++)
        if (!s->excludes[i])
            warn_unmatched(EXCLUDE_KEY, s->spec->exclude.names[i], &candidates);
    if (status == TSR_OK && s->exclude && !s->excludes[0])
        warn_unmatched(EXCLUDE_KEY, s->spec->exclude.regex, &candidates);
    return status;
}

static tsr_status choose(selection *s)
{
    const tsr_adapter_spec *spec = s->spec;
    if (spec->target.regex)
        TSR_TRY(tsr_path_regex_create(&s->target, TARGET_KEY, spec->target.regex, false));
    if (spec->exclude.regex)
        TSR_TRY(tsr_path_regex_create(&s->exclude, EXCLUDE_KEY, spec->exclude.regex, false));
    TSR_TRY(tsr_set_check_routers(s));
    for (uint64_t i = 0; i < s->module_count; i++)
        TSR_TRY(choose_module(s, i));
    return report_choice(s);
}

/* Applies one key of a pattern to the chosen modules: by[i] is the key that set value[i]. */
static tsr_status apply_key(const selection *s, const char *pattern_name,
                            const tsr_adapter_pattern *key, double *value,
                            const tsr_adapter_pattern **by)
{
    tsr_path_regex *regex;
    tsr_status status = TSR_OK;
    bool used = false;
    TSR_TRY(tsr_path_regex_create(&regex, pattern_name, key->key, true));
    for (uint64_t i = 0; i < s->module_count && status == TSR_OK; i++) {
        bool match = false;
        if (!s->chosen[i])
            continue;
        status = tsr_path_regex_match(&match, regex, s->budget, s->module[i].path);
        if (!match)
            continue;
        if (by[i] && by[i]->value != key->value)
            status = tsr_fail(TSR_ECONFIG,
                              "%s: the keys \"%s\" (%g) and \"%s\" (%g) both match %s with "
                              "different values; PEFT's result would depend on their order: let "
                              "one key match it",
                              pattern_name, by[i]->key, by[i]->value, key->key, key->value,
                              s->module[i].path);
        by[i] = key;
        value[i] = key->value;
        used = true;
    }
    if (status == TSR_OK && !used)
        tsr_log(TSR_LOG_WARNING, "%s: the key \"%s\" matches no module that has an adapter",
                pattern_name, key->key);
    tsr_path_regex_free(regex);
    return status;
}

tsr_status tsr_adapter_key_matches(bool *out, const char *pattern_name, const char *key,
                                   const char *path)
{
    tsr_path_regex *regex;
    tsr_regex_budget budget;
    TSR_TRY(tsr_path_regex_create(&regex, pattern_name, key, true));
    tsr_regex_budget_begin(&budget, strlen(path), 1);
    tsr_status status = tsr_path_regex_match(out, regex, &budget, path);
    tsr_path_regex_free(regex);
    return status;
}

/* value[i] for every module: the pattern's, else `fallback`, or of_experts; said[i]: it is one of the first two. */
static tsr_status apply_pattern(double *value, bool *said, const selection *s, const char *name,
                                const tsr_adapter_pattern *pattern, uint64_t count, double fallback,
                                double of_experts)
{
    tsr_status status = TSR_OK;
    const tsr_adapter_pattern **by = calloc(s->module_count + 1, sizeof *by);
    if (!by)
        return tsr_fail(TSR_ENOMEM, "no memory for %s over %llu modules", name,
                        (ull)s->module_count);
    for (uint64_t i = 0; i < s->module_count; i++)
        value[i] = s->module[i].experts ? of_experts * tsr_set_factor(s, &s->module[i]) : fallback;
    for (uint64_t k = 0; k < count && status == TSR_OK; k++)
        status = apply_key(s, name, &pattern[k], value, by);
    for (uint64_t i = 0; i < s->module_count; i++)
        said[i] = by[i] || value[i] == fallback;
    free(by);
    return status;
}

static tsr_status build_adapters(tsr_adapter_set *set, const selection *s)
{
    const tsr_adapter_spec *spec = s->spec;
    TSR_AUTO_FREE double *rank = malloc((s->module_count + 1) * sizeof *rank);
    TSR_AUTO_FREE double *alpha = malloc((s->module_count + 1) * sizeof *alpha);
    TSR_AUTO_FREE bool *said = calloc(2 * s->module_count + 1, sizeof *said);
    bool *alpha_said = said + s->module_count;
    set->adapter = calloc(s->module_count + 1, sizeof *set->adapter);
    if (!rank || !alpha || !said || !set->adapter)
        return tsr_fail(TSR_ENOMEM, "no memory for %llu adapters", (ull)s->module_count);
    TSR_TRY(apply_pattern(rank, said, s, "rank_pattern", spec->rank_pattern,
                          spec->rank_pattern_count, (double)spec->r,
                          (double)(spec->expert_r ? spec->expert_r : spec->r)));
    TSR_TRY(apply_pattern(alpha, alpha_said, s, "alpha_pattern", spec->alpha_pattern,
                          spec->alpha_pattern_count, spec->alpha,
                          spec->expert_alpha > 0 ? spec->expert_alpha : spec->alpha));
    for (uint64_t i = 0; i < s->module_count; i++)
        if (s->chosen[i] && s->module[i].experts)
            TSR_TRY(check_rank(EXPERT_RANK_KEY, NULL, rank[i]));
    TSR_TRY(tsr_set_build_patterns(&set->expert_r, &set->expert_r_count, s, rank, said));
    TSR_TRY(
        tsr_set_build_patterns(&set->expert_alpha, &set->expert_alpha_count, s, alpha, alpha_said));
    for (uint64_t i = 0; i < s->module_count; i++)
        if (s->chosen[i])
            set->adapter[set->count++] = (tsr_adapter){
                .module = i,
                .r = (uint64_t)rank[i],
                .alpha = alpha[i],
                .scale = alpha[i] / (spec->rslora ? sqrt(rank[i]) : rank[i]),
                .dora = spec->dora && !s->module[i].experts,
                .table = s->module[i].table,
                .experts = s->module[i].experts,
            };
    return TSR_OK;
}

/* An update of more rank than its linear can have only takes memory. */
static void warn_of_rank(const tsr_adapter_set *set, const selection *s)
{
    const tsr_adapter *first = NULL;
    uint64_t count = 0;
    for (uint64_t i = 0; i < set->count; i++) {
        const tsr_adapter_module *m = &s->module[set->adapter[i].module];
        if (set->adapter[i].r <= m->in_features && set->adapter[i].r <= m->out_features)
            continue;
        first = first ? first : &set->adapter[i];
        count++;
    }
    if (!first)
        return;
    const tsr_adapter_module *m = &s->module[first->module];
    tsr_log(
        TSR_LOG_WARNING,
        "lora_r: a rank of %llu is more than the smaller side of %llu linear%s %s (%llu x %llu), "
        "and no update of a matrix has more: the rest only takes memory",
        (ull)first->r, (ull)count, count == 1 ? "," : "s, such as", m->path, (ull)m->out_features,
        (ull)m->in_features);
}

/* The names for adapter_config.json, at most one a module and a target. Where PEFT would take some of linears for those of
 * experts, those of no linear are left out, and for an expression stand the paths that it matches. */
static uint64_t list_targets(const char **names, const selection *s)
{
    const tsr_adapter_match *target = &s->spec->target;
    uint64_t count = 0;
    for (uint64_t i = 0; i < target->count; i++)
        if (s->used[i] || !s->were_linears)
            names[count++] = target->names[i];
    for (uint64_t i = 0; i < s->module_count; i++) {
        const tsr_adapter_module *m = &s->module[i];
        if (s->all_linear && m->linear && (!s->were_linears || s->chosen[i]))
            names[count++] = last_part(m->path);
        if (target->regex && s->were_linears && s->chosen[i] && !m->experts)
            names[count++] = m->path;
    }
    return tsr_set_sort_names(names, count);
}

static tsr_status build_targets(tsr_adapter_set *set, const selection *s)
{
    TSR_AUTO_FREE const char **names =
        malloc((s->spec->target.count + s->module_count + 1) * sizeof *names);
    uint64_t count = names ? list_targets(names, s) : 0;
    set->target = calloc(count + 1, sizeof *set->target);
    for (uint64_t i = 0; set->target && i < count; i++) {
        set->target[i] = strdup(names[i]);
        if (!set->target[i])
            break;
        set->target_count++;
    }
    return names && set->target && set->target_count == count
               ? TSR_OK
               : tsr_fail(TSR_ENOMEM, "no memory for %llu target names", (ull)count);
}

/* All expressions may look at all paths. */
static void begin_budget(tsr_regex_budget *budget, const selection *s)
{
    size_t longest = 0;
    uint64_t expressions = s->spec->rank_pattern_count + s->spec->alpha_pattern_count + 2;
    for (uint64_t i = 0; i < s->module_count; i++)
        if (strlen(s->module[i].path) > longest)
            longest = strlen(s->module[i].path);
    tsr_regex_budget_begin(budget, longest, expressions * s->module_count);
}

tsr_status tsr_adapter_set_make(tsr_adapter_set *out, const tsr_adapter_spec *spec,
                                const tsr_adapter_module *modules, uint64_t module_count)
{
    tsr_adapter_set set = {0};
    tsr_regex_budget budget;
    selection s = {
        .spec = spec, .module = modules, .module_count = module_count, .budget = &budget};
    begin_budget(&budget, &s);
    s.all_linear = spec->all_linear || spec->all_linear_peft ||
                   (!spec->target.regex && spec->target.count == 0 && spec->parameter_count == 0);
    tsr_set_look_for_linears(&s);
    tsr_status status = check_spec(&s);
    if (status < 0)
        return status;
    s.chosen = calloc(module_count + 1, sizeof *s.chosen);
    s.used = calloc(spec->target.count + 1, sizeof *s.used);
    s.excludes = calloc(spec->exclude.count + 1, sizeof *s.excludes);
    s.parameter_used = calloc(spec->parameter_count + 1, sizeof *s.parameter_used);
    status = s.chosen && s.used && s.excludes && s.parameter_used
                 ? choose(&s)
                 : tsr_fail(TSR_ENOMEM, "no memory for %llu modules", (ull)module_count);
    if (status == TSR_OK)
        status = build_adapters(&set, &s);
    if (status == TSR_OK)
        warn_of_rank(&set, &s);
    if (status == TSR_OK)
        status = build_targets(&set, &s);
    if (status == TSR_OK)
        status = tsr_set_build_parameters(&set, &s);
    if (status == TSR_OK)
        *out = set;
    else
        tsr_adapter_set_free(&set);
    tsr_path_regex_free(s.target);
    tsr_path_regex_free(s.exclude);
    free(s.chosen);
    free(s.used);
    free(s.parameter_used);
    free(s.excludes);
    return status;
}

void tsr_adapter_set_free(tsr_adapter_set *set)
{
    if (!set)
        return;
    for (uint64_t i = 0; i < set->target_count; i++)
        free(set->target[i]);
    for (uint64_t i = 0; i < set->parameter_count; i++)
        free(set->parameter[i]);
    free(set->target);
    free(set->parameter);
    for (uint64_t i = 0; i < set->expert_r_count; i++)
        free((char *)set->expert_r[i].key);
    for (uint64_t i = 0; i < set->expert_alpha_count; i++)
        free((char *)set->expert_alpha[i].key);
    free(set->expert_r);
    free(set->expert_alpha);
    free(set->adapter);
    *set = (tsr_adapter_set){0};
}
