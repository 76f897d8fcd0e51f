/*
 * reference.c: the adapter that ref_adapter names. Its values replace those of the trained adapter during one pass, so both have
 * the same modules, ranks and scales.
 */
#include "inputs/objective.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>

/* As init_adapter of a configuration with no other key. */
static tsr_status open_adapter(tsr_train_adapter *out, const tsr_inputs *inputs)
{
    static const char required[] = "model_name_or_path: model\ndataset: data\noutput_dir: output\n";
    tsr_config alone;
    TSR_TRY(tsr_config_load(&alone, &(tsr_config_source){.text = required}));
    alone.init_adapter = inputs->config.ref_adapter;
    tsr_status status =
        tsr_train_adapter_open(out, &alone, true, inputs->modules, inputs->module_count,
                               inputs->model.composite, inputs->model.tie_word_embeddings);
    tsr_config_free(&alone);
    return status;
}

static tsr_status differs(const tsr_inputs *inputs, const char *what)
{
    const tsr_config *config = &inputs->config;
    return tsr_fail(TSR_ECONFIG,
                    "%s: ref_adapter: %s %s; a reference adapter needs the same modules, "
                    "ranks, scales and use_dora as the trained one. Train an adapter of that "
                    "shape, or merge the reference into the base and leave ref_adapter out",
                    tsr_config_where(config, "ref_adapter"), config->ref_adapter, what);
}

static tsr_status compare(const tsr_inputs *inputs)
{
    const tsr_adapter_set *own = &inputs->adapter.set, *other = &inputs->reference.set;
    char what[512];
    for (uint64_t i = 0; i < own->count || i < other->count; i++) {
        const tsr_adapter *a = i < own->count ? &own->adapter[i] : NULL;
        const tsr_adapter *b = i < other->count ? &other->adapter[i] : NULL;
        bool more = b && (!a || b->module < a->module);
        if (!a || !b || a->module != b->module)
            snprintf(what, sizeof what,
                     more ? "has an adapter for %s, which is not trained" : "has no adapter for %s",
                     inputs->modules[more ? b->module : a->module].path);
        else if (a->r != b->r || a->scale != b->scale || a->dora != b->dora)
            snprintf(what, sizeof what,
                     "has rank %" PRIu64 ", scale %g and %s magnitude for %s; the trained one "
                     "has rank %" PRIu64 ", scale %g and %s",
                     b->r, b->scale, b->dora ? "a" : "no", inputs->modules[b->module].path, a->r,
                     a->scale, a->dora ? "a" : "none");
        else
            continue;
        return differs(inputs, what);
    }
    if (inputs->reference.trains_head || inputs->reference.trains_embedding ||
        inputs->reference.embedding_rows.count || inputs->reference.head_rows.count)
        return differs(inputs, "trains rows of the embedding or the head");
    return TSR_OK;
}

/* A reward model's adapter has no log-probabilities. */
static tsr_status check_task(const tsr_config *config)
{
    char path[PATH_MAX + sizeof TSR_PEFT_CONFIG_FILE];
    tsr_peft_config its;
    snprintf(path, sizeof path, "%s/%s", config->ref_adapter, TSR_PEFT_CONFIG_FILE);
    TSR_TRY(tsr_peft_config_load(&its, path));
    bool scores = its.scores;
    tsr_peft_config_free(&its);
    return !scores
               ? TSR_OK
               : tsr_fail(TSR_ECONFIG,
                          "%s: ref_adapter: %s is a reward model's adapter (task_type SEQ_CLS), "
                          "which predicts no tokens; name an adapter of a text model",
                          tsr_config_where(config, "ref_adapter"), config->ref_adapter);
}

tsr_status tsr_inputs_open_reference(tsr_inputs *inputs)
{
    const tsr_config *config = &inputs->config;
    if (!tsr_config_reference(config) || !inputs->adapter.present)
        return TSR_OK;
    TSR_TRY(check_task(config));
    TSR_TRY(open_adapter(&inputs->reference, inputs));
    if (tsr_train_adapter_is_principal(&inputs->adapter))
        return tsr_fail(TSR_ECONFIG,
                        "%s: ref_adapter: %s was trained on the unchanged base, but "
                        "init_lora_weights: %s subtracts the first adapter from it; remove one of "
                        "the two keys",
                        tsr_config_where(config, "ref_adapter"), config->ref_adapter,
                        config->init_lora_weights);
    return compare(inputs);
}
