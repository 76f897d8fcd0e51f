#include "inputs/adapter.h"

#include "inputs/adapter_experts.h"
#include "inputs/adapter_linears.h"
#include "inputs/adapter_tables.h"

#include "base/auto.h"
#include "config/config_store.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- comparing explicit keys with init_adapter ---- */

static tsr_status differs(const tsr_config *config, const char *key, const char *adapter_value)
{
    tsr_auto_text own = {0};
    tsr_config_value_text(&own, config, key);
    return tsr_fail(TSR_ECONFIG,
                    "%s: %s is %s, but init_adapter %s was made with %s; leave the key out to take "
                    "the adapter's",
                    tsr_config_where(config, key), key, tsr_text_string(&own), config->init_adapter,
                    adapter_value);
}

/* What a run with the keys of the configuration has made of a rank, or of an alpha, in the adapter that it
 * saved, where that is another (tsr_train_adapter_config). */
static double saved_factor(const tsr_config *config, bool rank)
{
    tsr_adapter_start start;
    int64_t rounds;
    bool known = tsr_config_start(&start, &rounds, NULL, config->init_lora_weights);
    if (!known || start != TSR_START_PRINCIPAL)
        return 1;
    return rank || !config->use_rslora ? 2 : sqrt(2);
}

static bool same_number(double own, double other, double factor)
{
    return own == other || own * factor == other;
}

static tsr_status check_number(const tsr_config *config, const char *key, double own, double other,
                               double factor)
{
    char text[48];
    if (!tsr_config_is_set(config, key) || same_number(own, other, factor))
        return TSR_OK;
    snprintf(text, sizeof text, "%.9g", other);
    return differs(config, key, text);
}

static bool same_names(const tsr_config_strings *own, char *const *names, uint64_t count)
{
    if ((uint64_t)own->count != count)
        return false;
    for (uint64_t i = 0; i < count; i++) {
        bool found = false;
        for (int j = 0; j < own->count && !found; j++)
            found = !strcmp(own->items[j], names[i]);
        if (!found)
            return false;
    }
    return true;
}

/* The modules of the model, as init_adapter spells them. */
typedef struct {
    const tsr_adapter_module *item;
    uint64_t count;
    const tsr_composite *composite;
} model_modules;

/* Whether a name is a linear's, or the last part of it. */
static bool names_linear(const char *name, const char *path)
{
    return !strcmp(name, strrchr(path, '.') + 1) || !strcmp(name, path);
}

/* Whether a list is the names of all linears, whole or their last parts. */
static bool is_all_linear(char *const *names, uint64_t count, const model_modules *of)
{
    uint64_t named = 0, last = 0;
    TSR_AUTO_FREE bool *used = calloc(count + 1, sizeof *used);
    bool all = used != NULL;
    for (uint64_t i = 0; i < of->count && all; i++) {
        uint64_t j = 0;
        if (!of->item[i].linear)
            continue;
        /* Whole names mostly stand in the model's order. */
        if (last < count && names_linear(names[last], of->item[i].path))
            j = last;
        while (j < count && !names_linear(names[j], of->item[i].path))
            j++;
        all = j < count;
        named += all && !used[j];
        used[j] = true;
        last = j + 1;
    }
    return all && named == count;
}

/* Whatever words its file has for it. */
static bool targets_all_linear(const tsr_peft_config *peft, const model_modules *of)
{
    const tsr_peft_match *target = &peft->target;
    return peft->all_linear || (!target->regex && !target->count && !peft->parameter.count) ||
           (!target->regex && is_all_linear(target->names, target->count, of));
}

static bool same_modules(const tsr_config_modules *own, const tsr_peft_match *other,
                         bool all_linear)
{
    switch (own->kind) {
    case TSR_CONFIG_MODULES_ALL_LINEAR:
    case TSR_CONFIG_MODULES_ALL_LINEAR_PEFT:
        return all_linear;
    case TSR_CONFIG_MODULES_REGEX:
        return other->regex && !strcmp(own->names.items[0], other->regex);
    case TSR_CONFIG_MODULES_LIST:
        return !other->regex && same_names(&own->names, other->names, other->count);
    case TSR_CONFIG_MODULES_NONE:
        break;
    }
    return !other->regex && !other->count;
}

static tsr_adapter_match match(const tsr_config_modules *modules)
{
    if (modules->kind == TSR_CONFIG_MODULES_REGEX)
        return (tsr_adapter_match){.regex = modules->names.items[0]};
    return (tsr_adapter_match){modules->names.items, (uint64_t)modules->names.count, NULL};
}

/* What of an adapter_config.json chooses modules; rank and alpha are any. */
static tsr_adapter_spec choice_of(const tsr_peft_config *peft)
{
    return (tsr_adapter_spec){
        .r = peft->r,
        .alpha = peft->lora_alpha,
        .all_linear = peft->all_linear,
        .target = {(const char *const *)peft->target.names, peft->target.count, peft->target.regex},
        .exclude = {(const char *const *)peft->exclude.names, peft->exclude.count,
                    peft->exclude.regex},
        .parameter = (const char *const *)peft->parameter.names,
        .parameter_count = peft->parameter.count,
        .parameters_given = true,
        .layers = peft->layers_to_transform,
        .layer_count = peft->layer_count};
}

/* Whether lora_target_modules means the adapter's modules in other words: of a text decoder beside towers each is
 * written with its whole name. */
static bool same_choice(const tsr_config *config, const tsr_peft_config *peft,
                        const model_modules *of)
{
    const tsr_config_modules *own = &config->lora_target_modules;
    tsr_adapter_spec theirs = choice_of(peft), ours = theirs;
    tsr_adapter_set a = {0}, b = {0};
    ours.all_linear = own->kind == TSR_CONFIG_MODULES_ALL_LINEAR;
    ours.all_linear_peft = own->kind == TSR_CONFIG_MODULES_ALL_LINEAR_PEFT;
    ours.target = ours.all_linear || ours.all_linear_peft ? (tsr_adapter_match){0} : match(own);
    ours.parameters_given = config->lora_target_parameters.items != NULL;
    if ((ours.all_linear || ours.all_linear_peft) && !ours.parameters_given)
        ours.parameter_count = 0;
    bool same = tsr_adapter_set_make(&a, &theirs, of->item, of->count) == TSR_OK &&
                tsr_adapter_set_make(&b, &ours, of->item, of->count) == TSR_OK &&
                a.count == b.count;
    for (uint64_t i = 0; same && i < a.count; i++)
        same = a.adapter[i].module == b.adapter[i].module;
    tsr_adapter_set_free(&a);
    tsr_adapter_set_free(&b);
    return same;
}

/* Those of the file that are of experts may stand in expert_lora_r and expert_lora_alpha instead. */
static bool same_patterns(const tsr_config_patterns *own, const tsr_peft_pattern *other,
                          uint64_t count, double factor, const tsr_peft_match *parameter)
{
    int found = 0;
    for (uint64_t i = 0; i < count; i++) {
        int j = 0;
        while (j < own->count && (strcmp(own->items[j].name, other[i].key) != 0 ||
                                  !same_number(own->items[j].value, other[i].value, factor)))
            j++;
        found += j < own->count;
        if (j == own->count && !tsr_adapter_experts_has(parameter, other[i].key))
            return false;
    }
    return found == own->count;
}

static bool has_experts(const model_modules *of)
{
    for (uint64_t i = 0; i < of->count; i++)
        if (of->item[i].experts)
            return true;
    return false;
}

/* Whether lora_target_modules means the modules of the adapter. */
static bool same_targets(const tsr_config *config, const tsr_peft_config *peft,
                         const model_modules *of)
{
    const tsr_config_modules *own = &config->lora_target_modules;
    bool peft_word = own->kind == TSR_CONFIG_MODULES_ALL_LINEAR_PEFT;
    bool all = targets_all_linear(peft, of) &&
               (config->lora_target_parameters.items || peft->use_dora ||
                tsr_adapter_experts_all(&peft->parameter, of->item, of->count));
    if (!tsr_config_is_set(config, "lora_target_modules"))
        return true;
    return (!peft_word && same_modules(own, &peft->target, all)) ||
           ((of->composite || has_experts(of)) && same_choice(config, peft, of));
}

static bool same_ids(const tsr_config_ints *own, const int64_t *other, uint64_t count)
{
    if ((uint64_t)own->count != count)
        return false;
    for (int i = 0; i < own->count; i++)
        if (own->items[i] != other[i])
            return false;
    return true;
}

static tsr_status check_explicit(const tsr_config *config, const tsr_peft_config *peft,
                                 const model_modules *of)
{
    double by_rank = saved_factor(config, true), by_alpha = saved_factor(config, false);
    const struct {
        const char *key;
        bool same;
    } keys[] = {
        {"use_rslora", config->use_rslora == peft->use_rslora},
        {"use_dora", config->use_dora || !peft->use_dora}, /* may add magnitudes, not drop them */
        {"lora_target_modules", same_targets(config, peft, of)},
        {"lora_target_parameters",
         !config->lora_target_parameters.items ||
             tsr_adapter_experts_same(&config->lora_target_parameters, &peft->parameter, of->item,
                                      of->count)},
        {"exclude_modules", same_modules(&config->exclude_modules, &peft->exclude, false)},
        {"rank_pattern", same_patterns(&config->rank_pattern, peft->rank_pattern,
                                       peft->rank_pattern_count, by_rank, &peft->parameter)},
        {"alpha_pattern", same_patterns(&config->alpha_pattern, peft->alpha_pattern,
                                        peft->alpha_pattern_count, by_alpha, &peft->parameter)},
        {"layers_to_transform",
         same_ids(&config->layers_to_transform, peft->layers_to_transform, peft->layer_count)},
        {"trainable_token_indices", same_ids(&config->trainable_token_indices.embedding,
                                             peft->embedding_tokens, peft->embedding_token_count) &&
                                        same_ids(&config->trainable_token_indices.head,
                                                 peft->head_tokens, peft->head_token_count)},
        {"modules_to_save",
         peft->scores || config->objective.kind == TSR_OBJECTIVE_REWARD ||
             same_names(&config->modules_to_save, peft->save.names, peft->save.count)},
    };
    TSR_TRY(check_number(config, "lora_r", (double)config->lora_r, (double)peft->r, by_rank));
    TSR_TRY(check_number(config, "lora_alpha", config->lora_alpha, peft->lora_alpha, by_alpha));
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (tsr_config_is_set(config, keys[i].key) && !keys[i].same)
            return differs(config, keys[i].key, "another value");
    return TSR_OK;
}

/* ---- what init_adapter decides, as keys ---- */

/* In all of these a lack of memory is remembered in the store. */
static tsr_config_modules modules_of(struct tsr_config_store *store, const tsr_peft_match *match)
{
    tsr_config_modules out = {.kind = match->regex   ? TSR_CONFIG_MODULES_REGEX
                                      : match->count ? TSR_CONFIG_MODULES_LIST
                                                     : TSR_CONFIG_MODULES_NONE};
    uint64_t count = match->regex ? 1 : match->count;
    out.names.items = tsr_config_store_allocate(store, (count + 1) * sizeof *out.names.items);
    for (uint64_t i = 0; out.names.items && i < count; i++)
        out.names.items[i] =
            tsr_config_store_copy(store, match->regex ? match->regex : match->names[i]);
    out.names.count = (int)count;
    return out;
}

static tsr_config_patterns patterns_of(struct tsr_config_store *store, const tsr_peft_pattern *from,
                                       uint64_t count)
{
    tsr_config_patterns out = {tsr_config_store_allocate(store, count * sizeof(tsr_config_pattern)),
                               (int)count};
    for (uint64_t i = 0; out.items && i < count; i++)
        out.items[i] =
            (tsr_config_pattern){tsr_config_store_copy(store, from[i].key), from[i].value};
    return out;
}

static tsr_config_ints ints_of(struct tsr_config_store *store, const int64_t *values,
                               uint64_t count)
{
    tsr_config_ints out = {tsr_config_store_allocate(store, count * sizeof *out.items), (int)count};
    for (uint64_t i = 0; out.items && i < count; i++)
        out.items[i] = values[i];
    return out;
}

/* Which modules are trained, into the keys that nobody set: the summary, job.yaml and checkpoints
 * must say what the adapter is. */
static tsr_status take_modules(tsr_config *config, const tsr_peft_config *peft,
                               const model_modules *of)
{
    struct tsr_config_store *store = config->store;
    if (!tsr_config_is_set(config, "lora_target_modules"))
        config->lora_target_modules =
            targets_all_linear(peft, of)
                ? (tsr_config_modules){.kind = TSR_CONFIG_MODULES_ALL_LINEAR}
                : modules_of(store, &peft->target);
    if (!config->lora_target_parameters.items && has_experts(of)) /* none is an empty list */
        config->lora_target_parameters = modules_of(store, &peft->parameter).names;
    if (!tsr_config_is_set(config, "exclude_modules"))
        config->exclude_modules = modules_of(store, &peft->exclude);
    if (!tsr_config_is_set(config, "rank_pattern"))
        config->rank_pattern = patterns_of(store, peft->rank_pattern, peft->rank_pattern_count);
    if (!tsr_config_is_set(config, "alpha_pattern"))
        config->alpha_pattern = patterns_of(store, peft->alpha_pattern, peft->alpha_pattern_count);
    if (!tsr_config_is_set(config, "layers_to_transform"))
        config->layers_to_transform = ints_of(store, peft->layers_to_transform, peft->layer_count);
    if (!tsr_config_is_set(config, "modules_to_save"))
        config->modules_to_save = peft->save.count && !peft->scores
                                      ? modules_of(store, &peft->save).names
                                      : (tsr_config_strings){0};
    if (!tsr_config_is_set(config, "trainable_token_indices"))
        config->trainable_token_indices =
            (tsr_config_tokens){ints_of(store, peft->embedding_tokens, peft->embedding_token_count),
                                ints_of(store, peft->head_tokens, peft->head_token_count)};
    return store->failed ? tsr_fail(TSR_ENOMEM, "out of memory for the adapter's keys") : TSR_OK;
}

/* ---- the specification ---- */

static tsr_status from_peft(tsr_train_adapter *adapter, tsr_config *config, const model_modules *of)
{
    const tsr_peft_config *peft = tsr_peft_config_of(adapter->init);
    TSR_TRY(tsr_adapter_tables_task(config, peft));
    TSR_TRY(check_explicit(config, peft, of));
    bool dora = peft->use_dora || (tsr_config_is_set(config, "use_dora") && config->use_dora);
    adapter->fresh_magnitudes = dora && !peft->use_dora;
    uint64_t count = peft->rank_pattern_count + peft->alpha_pattern_count;
    adapter->patterns = calloc(count + 1, sizeof *adapter->patterns);
    if (!adapter->patterns)
        return tsr_fail(TSR_ENOMEM, "out of memory for the adapter's patterns");
    for (uint64_t i = 0; i < count; i++) {
        const tsr_peft_pattern *p = i < peft->rank_pattern_count
                                        ? &peft->rank_pattern[i]
                                        : &peft->alpha_pattern[i - peft->rank_pattern_count];
        adapter->patterns[i] = (tsr_adapter_pattern){p->key, p->value};
    }
    adapter->spec = choice_of(peft);
    adapter->spec.rslora = peft->use_rslora;
    adapter->spec.dora = dora;
    adapter->spec.dropout = config->lora_dropout;
    adapter->spec.rank_pattern = adapter->patterns;
    adapter->spec.rank_pattern_count = peft->rank_pattern_count;
    adapter->spec.alpha_pattern = adapter->patterns + peft->rank_pattern_count;
    adapter->spec.alpha_pattern_count = peft->alpha_pattern_count;
    config->lora_r = (int64_t)peft->r;
    config->lora_alpha = peft->lora_alpha;
    config->use_rslora = peft->use_rslora;
    config->use_dora = dora;
    config->init_lora_weights = "true"; /* as the adapter is */
    return take_modules(config, peft, of);
}

static tsr_status from_config(tsr_train_adapter *adapter, const tsr_config *config)
{
    int ranks = config->rank_pattern.count, alphas = config->alpha_pattern.count;
    adapter->patterns = calloc((size_t)(ranks + alphas) + 1, sizeof *adapter->patterns);
    if (!adapter->patterns)
        return tsr_fail(TSR_ENOMEM, "out of memory for the adapter's patterns");
    for (int i = 0; i < ranks + alphas; i++) {
        const tsr_config_pattern *p =
            i < ranks ? &config->rank_pattern.items[i] : &config->alpha_pattern.items[i - ranks];
        adapter->patterns[i] = (tsr_adapter_pattern){p->name, p->value};
    }
    adapter->fresh_magnitudes = config->use_dora;
    if (!tsr_config_start(&adapter->start, &adapter->start_rounds, NULL, config->init_lora_weights))
        return tsr_fail(TSR_EINTERNAL, "init_lora_weights: %s", config->init_lora_weights);
    adapter->spec = (tsr_adapter_spec){
        .r = (uint64_t)config->lora_r,
        .alpha = config->lora_alpha,
        .rslora = config->use_rslora,
        .dora = config->use_dora,
        .dropout = config->lora_dropout,
        .all_linear = config->lora_target_modules.kind == TSR_CONFIG_MODULES_ALL_LINEAR,
        .rank_pattern = adapter->patterns,
        .rank_pattern_count = (uint64_t)ranks,
        .alpha_pattern = adapter->patterns + ranks,
        .alpha_pattern_count = (uint64_t)alphas,
        .layers = config->layers_to_transform.count ? config->layers_to_transform.items : NULL,
        .layer_count = (uint64_t)config->layers_to_transform.count,
        .all_linear_peft = config->lora_target_modules.kind == TSR_CONFIG_MODULES_ALL_LINEAR_PEFT,
        .parameter = (const char *const *)config->lora_target_parameters.items,
        .parameter_count = (uint64_t)config->lora_target_parameters.count,
        .parameters_given = config->lora_target_parameters.items != NULL,
        .expert_r = (uint64_t)config->expert_lora_r,
        .expert_alpha = config->expert_lora_alpha};
    if (!adapter->spec.all_linear && !adapter->spec.all_linear_peft)
        adapter->spec.target = match(&config->lora_target_modules);
    if (config->exclude_modules.kind != TSR_CONFIG_MODULES_NONE)
        adapter->spec.exclude = match(&config->exclude_modules);
    return TSR_OK;
}

/* Every module of the set is in the file with the right shapes, and the other way round. */
static tsr_status check_tensors(const tsr_train_adapter *adapter, const tsr_config *config,
                                const tsr_adapter_module *modules, uint64_t module_count,
                                const tsr_composite *composite, bool tied)
{
    const char *directory = config->init_adapter;
    uint64_t saved = 0;
    TSR_TRY(tsr_adapter_tables_count(&saved, adapter, config, tied));
    for (uint64_t i = 0; i < adapter->set.count; i++) {
        const tsr_adapter *a = &adapter->set.adapter[i];
        const tsr_adapter_module *module = &modules[a->module];
        const tsr_peft_module *stored = tsr_peft_module_find(adapter->init, module->path);
        if (!stored)
            return tsr_fail(TSR_EDATA,
                            "%s: adapter_config.json names %s, but " TSR_PEFT_WEIGHTS_FILE
                            " has no tensors for it",
                            directory, module->path);
        if (a->experts) {
            TSR_TRY(tsr_adapter_experts_check(stored, a, module, directory));
            continue;
        }
        if (stored->r != a->r || stored->in_features != module->in_features ||
            stored->out_features != module->out_features)
            return tsr_fail(TSR_EDATA,
                            "%s: %s is stored with rank %" PRIu64 " for [%" PRIu64 ", %" PRIu64
                            "]; its configuration and the model say rank %" PRIu64 " for [%" PRIu64
                            ", %" PRIu64 "]",
                            directory, module->path, stored->r, stored->out_features,
                            stored->in_features, a->r, module->out_features, module->in_features);
    }
    if (tsr_peft_module_count(adapter->init) == adapter->set.count + saved)
        return TSR_OK;
    for (uint64_t i = 0; i < tsr_peft_module_count(adapter->init); i++) {
        const char *path = tsr_peft_module_at(adapter->init, i)->path, *tower;
        bool known = false;
        if (tsr_composite_is_tower(&tower, composite, path))
            return tsr_fail(TSR_EDATA,
                            "%s: " TSR_PEFT_WEIGHTS_FILE
                            " has an adapter for %s, of %s; only adapters of the text decoder are "
                            "read",
                            directory, path, tower);
        known = tsr_adapter_tables_has(adapter, tsr_peft_module_at(adapter->init, i));
        for (uint64_t j = 0; j < adapter->set.count && !known; j++)
            known = !strcmp(modules[adapter->set.adapter[j].module].path, path);
        if (!known)
            TSR_TRY(tsr_adapter_experts_unknown(adapter, path, modules, module_count, directory));
        if (!known)
            return tsr_fail(TSR_EDATA,
                            "%s: " TSR_PEFT_WEIGHTS_FILE
                            " has an adapter for %s, which its adapter_config.json does not "
                            "select in this model",
                            directory, path);
    }
    return TSR_OK;
}

/* ---- text decoders beside towers ---- */

/* How init_adapter begins the names of the decoder's modules; NULL: as Transformers 5, or in no known way. */
static const char *older_spelling(const tsr_peft *init, const tsr_composite *composite)
{
    const char *prefix;
    for (int i = 0; (prefix = tsr_composite_spelling(composite, i)); i++)
        for (uint64_t j = 0; j < tsr_peft_module_count(init); j++) {
            const char *path = tsr_peft_module_at(init, j)->path;
            size_t length = strlen(prefix);
            if (!strncmp(path, prefix, length) && !strncmp(path + length, "layers.", 7))
                return i ? prefix : NULL;
        }
    return NULL;
}

/* init_adapter's modules get the names they have today; what its adapter_config.json says of names is of those they
 * had, which *of then lists, copied: the caller frees them with tsr_layout_modules_free. */
static tsr_status respell(model_modules *of, tsr_peft *init)
{
    const char *today = tsr_composite_prefix(of->composite);
    const char *older = older_spelling(init, of->composite);
    size_t length = strlen(today);
    if (!older)
        return TSR_OK;
    tsr_adapter_module *modules = calloc(of->count + 1, sizeof *modules);
    for (uint64_t i = 0; modules && i < of->count; i++) {
        const char *path = of->item[i].path;
        bool within = !strncmp(path, today, length);
        char *name;
        if (asprintf(&name, "%s%s", within ? older : "", within ? path + length : path) < 0) {
            tsr_layout_modules_free(modules, i);
            modules = NULL;
            break;
        }
        modules[i] = of->item[i];
        modules[i].path = name;
    }
    if (!modules)
        return tsr_fail(TSR_ENOMEM, "out of memory for module names");
    of->item = modules;
    return tsr_peft_rename(init, older, today);
}

/* adapter_config.json names the modules one by one: q_proj would mean a vision tower's too where PEFT loads it. */
static tsr_status name_each(tsr_train_adapter *adapter, const tsr_adapter_module *modules)
{
    tsr_adapter_set *set = &adapter->set;
    for (uint64_t i = 0; i < set->target_count; i++)
        free(set->target[i]);
    free(set->target);
    set->target_count = 0;
    set->target = calloc(set->count + 1, sizeof *set->target);
    for (uint64_t i = 0; set->target && i < set->count; i++) {
        if (set->adapter[i].experts) /* no tower has such parameters */
            continue;
        char *name = strdup(modules[set->adapter[i].module].path);
        if (!name)
            return tsr_fail(TSR_ENOMEM, "out of memory for target names");
        set->target[set->target_count++] = name;
    }
    adapter->each_named = true;
    return set->target ? TSR_OK : tsr_fail(TSR_ENOMEM, "out of memory for target names");
}

tsr_status tsr_train_adapter_open(tsr_train_adapter *out, tsr_config *config, bool needed,
                                  const tsr_adapter_module *modules, uint64_t module_count,
                                  const tsr_composite *composite, bool tied)
{
    tsr_train_adapter adapter = {0};
    model_modules of = {modules, module_count, composite};
    tsr_status status = TSR_OK;
    if (config->init_adapter) {
        status = tsr_peft_open(&adapter.init, config->init_adapter);
        if (status == TSR_OK && composite)
            status = respell(&of, adapter.init);
        if (status == TSR_OK)
            status =
                tsr_adapter_experts_join(adapter.init, modules, module_count, config->init_adapter);
        if (status == TSR_OK)
            status = tsr_adapter_linears_take(adapter.init, of.item, module_count);
        if (status == TSR_OK)
            status = from_peft(&adapter, config, &of);
    } else if (needed) {
        status = from_config(&adapter, config);
    }
    adapter.present = needed || config->init_adapter;
    if (status == TSR_OK && adapter.present)
        status = tsr_adapter_tables_choose(&adapter, config);
    if (status == TSR_OK && adapter.present)
        status = tsr_adapter_set_make(&adapter.set, &adapter.spec, of.item, module_count);
    if (status == TSR_OK && adapter.present)
        status = tsr_adapter_tables_check(&adapter, config);
    if (status == TSR_OK && adapter.present)
        status = tsr_adapter_experts_agree(&adapter, config, of.item, module_count);
    if (status == TSR_OK && adapter.present && composite)
        status = name_each(&adapter, modules);
    if (status == TSR_OK && adapter.present)
        status = tsr_adapter_linears_name(&adapter, modules, module_count);
    if (status == TSR_OK && adapter.init)
        status = tsr_adapter_experts_name(&adapter, modules);
    if (status == TSR_OK && adapter.init)
        status = check_tensors(&adapter, config, modules, module_count, composite, tied);
    if (of.item != modules)
        tsr_layout_modules_free((tsr_adapter_module *)of.item, module_count);
    if (status < 0) {
        tsr_train_adapter_close(&adapter);
        return status;
    }
    *out = adapter;
    return TSR_OK;
}

/* Names that are whole mean no further layers: their last parts do. */
static tsr_status last_parts(tsr_adapter_match *out, const tsr_adapter_set *set)
{
    const char **names = malloc((set->target_count + 1) * sizeof *names);
    uint64_t count = 0;
    if (!names)
        return tsr_fail(TSR_ENOMEM, "out of memory for target names");
    for (uint64_t i = 0; i < set->target_count; i++) {
        const char *name = strrchr(set->target[i], '.') + 1;
        uint64_t j = 0;
        while (j < count && strcmp(names[j], name))
            j++;
        names[j] = name;
        count += j == count;
    }
    *out = (tsr_adapter_match){names, count, NULL};
    return TSR_OK;
}

tsr_status tsr_train_adapter_like(tsr_adapter_set *out, const tsr_train_adapter *adapter,
                                  const tsr_adapter_module *modules, uint64_t module_count)
{
    tsr_adapter_spec spec = adapter->spec;
    if (!adapter->each_named || spec.all_linear || spec.all_linear_peft)
        return tsr_adapter_set_make(out, &spec, modules, module_count);
    TSR_TRY(last_parts(&spec.target, &adapter->set));
    tsr_status status = tsr_adapter_set_make(out, &spec, modules, module_count);
    free((void *)spec.target.names);
    return status;
}

void tsr_train_adapter_close(tsr_train_adapter *adapter)
{
    tsr_peft_close(adapter->init);
    tsr_adapter_set_free(&adapter->set);
    tsr_adapter_linears_free(adapter);
    free(adapter->patterns);
    *adapter = (tsr_train_adapter){0};
}

bool tsr_train_adapter_is_principal(const tsr_train_adapter *adapter)
{
    return adapter->present && !adapter->init && adapter->start == TSR_START_PRINCIPAL;
}

static void put_patterns(tsr_peft_pattern *out, const tsr_adapter_pattern *from, uint64_t count,
                         double factor)
{
    for (uint64_t i = 0; i < count; i++)
        out[i] = (tsr_peft_pattern){(char *)from[i].key, from[i].value * factor};
}

tsr_status tsr_train_adapter_config(tsr_peft_config *out, const tsr_train_adapter *adapter,
                                    const tsr_config *config)
{
    const tsr_adapter_spec *spec = &adapter->spec;
    const tsr_adapter_set *set = &adapter->set;
    uint64_t own_ranks = spec->rank_pattern_count, own_alphas = spec->alpha_pattern_count;
    uint64_t of_ranks = own_ranks + adapter->linear_r_count;
    uint64_t of_alphas = own_alphas + adapter->linear_alpha_count;
    uint64_t ranks = of_ranks + set->expert_r_count, alphas = of_alphas + set->expert_alpha_count;
    tsr_peft_pattern *patterns = calloc(ranks + alphas + 1, sizeof *patterns);
    if (!patterns)
        return tsr_fail(TSR_ENOMEM, "out of memory for the adapter's patterns");
    /* The scale stays what it is: alpha / r, or alpha / sqrt(r). */
    bool twice = tsr_train_adapter_is_principal(adapter);
    double by_alpha = !twice ? 1 : spec->rslora ? sqrt(2) : 2, by_r = twice ? 2 : 1;
    tsr_peft_pattern *of_alpha = patterns + ranks;
    put_patterns(patterns, spec->rank_pattern, own_ranks, by_r);
    put_patterns(patterns + own_ranks, adapter->linear_r, adapter->linear_r_count, by_r);
    put_patterns(patterns + of_ranks, set->expert_r, set->expert_r_count, 1);
    put_patterns(of_alpha, spec->alpha_pattern, own_alphas, by_alpha);
    put_patterns(of_alpha + own_alphas, adapter->linear_alpha, adapter->linear_alpha_count,
                 by_alpha);
    put_patterns(of_alpha + of_alphas, set->expert_alpha, set->expert_alpha_count, 1);
    /* What PEFT writes of a sequence classifier, whatever its head is called. */
    static char *of_score[] = {"classifier", "score"};
    tsr_peft_match save = {(char **)config->modules_to_save.items,
                           (uint64_t)config->modules_to_save.count, NULL};
    *out = (tsr_peft_config){
        .scores = adapter->trains_score,
        .base_model_name_or_path = (char *)config->model_name_or_path,
        .r = twice ? 2 * spec->r : spec->r,
        .lora_alpha = spec->alpha * by_alpha,
        .lora_dropout = spec->dropout,
        .use_rslora = spec->rslora,
        .use_dora = spec->dora,
        .target = {set->target, set->target_count,
                   set->target_count ? NULL : (char *)spec->target.regex},
        .beside_towers = adapter->each_named,
        .exclude = {(char **)spec->exclude.names, spec->exclude.count, (char *)spec->exclude.regex},
        .parameter = {set->parameter, set->parameter_count, NULL},
        .save = adapter->trains_score ? (tsr_peft_match){of_score, 2, NULL} : save,
        .embedding_tokens = config->trainable_token_indices.embedding.items,
        .embedding_token_count = (uint64_t)config->trainable_token_indices.embedding.count,
        .head_tokens = config->trainable_token_indices.head.items,
        .head_token_count = (uint64_t)config->trainable_token_indices.head.count,
        .rank_pattern = patterns,
        .rank_pattern_count = ranks,
        .alpha_pattern = patterns + ranks,
        .alpha_pattern_count = alphas,
        .layers_to_transform = (int64_t *)spec->layers,
        .layer_count = spec->layer_count};
    return TSR_OK;
}
