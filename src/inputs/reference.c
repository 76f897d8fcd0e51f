/*
 * reference.c: the adapter of ref_adapter, whose model an objective compares with. It takes the places of the trained
 * adapter for one pass, so it has the same modules, ranks and scales.
 */
#include "inputs/objective.h"

#include "base/escape.h"
#include "base/text.h"

#include <inttypes.h>
#include <string.h>

bool tsr_inputs_reference_is_adapter(const tsr_config *config)
{
    return config->ref_adapter && strcmp(config->ref_adapter, "base") != 0;
}

/* Opened as init_adapter is, of a configuration that says nothing more. */
static tsr_status open_adapter(tsr_train_adapter *out, const tsr_inputs *inputs)
{
    const tsr_config *config = &inputs->config;
    tsr_config alone;
    tsr_auto_text init = {0}, model = {0};
    tsr_text_printf(&init, "init_adapter=%s", config->ref_adapter);
    tsr_text_printf(&model, "model_name_or_path=%s", config->model_name_or_path);
    const char *overrides[] = {tsr_text_string(&init), tsr_text_string(&model), "dataset=none",
                               "output_dir=none"};
    TSR_TRY(tsr_config_load(
        &alone, &(tsr_config_source){.text = "", .overrides = overrides, .override_count = 4}));
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
                    "%s: ref_adapter: %s %s; a reference has the modules, ranks, scales and "
                    "use_dora of the adapter that is trained. Train one of its shape "
                    "(init_adapter begins with it), or merge it into the base and leave "
                    "ref_adapter out",
                    tsr_config_where(config, "ref_adapter"), config->ref_adapter, what);
}

static tsr_status compare(const tsr_inputs *inputs)
{
    const tsr_adapter_set *own = &inputs->adapter.set, *other = &inputs->reference.set;
    char what[512];
    for (uint64_t i = 0, j = 0; i < own->count || j < other->count; i++, j++) {
        const tsr_adapter *a = i < own->count ? &own->adapter[i] : NULL;
        const tsr_adapter *b = j < other->count ? &other->adapter[j] : NULL;
        bool more = b && (!a || b->module < a->module);
        if (!a || !b || a->module != b->module)
            snprintf(what, sizeof what,
                     more ? "has an adapter for %s, which is not trained" : "has no adapter for %s",
                     inputs->modules[more ? b->module : a->module].path);
        else if (a->r != b->r || a->scale != b->scale || a->dora != b->dora)
            snprintf(what, sizeof what,
                     "has rank %" PRIu64 ", scale %g and %s magnitude for %s, the trained one "
                     "rank %" PRIu64 ", scale %g and %s",
                     b->r, b->scale, b->dora ? "a" : "no", inputs->modules[b->module].path, a->r,
                     a->scale, a->dora ? "a" : "none");
        else
            continue;
        return differs(inputs, what);
    }
    if (inputs->reference.trains_head || inputs->reference.trains_embedding ||
        inputs->reference.embedding_rows.count || inputs->reference.head_rows.count)
        return differs(inputs, "has a table that was trained");
    return TSR_OK;
}

tsr_status tsr_inputs_open_reference(tsr_inputs *inputs)
{
    const tsr_config *config = &inputs->config;
    if (!tsr_inputs_reference_is_adapter(config) || !inputs->adapter.present)
        return TSR_OK;
    TSR_TRY(open_adapter(&inputs->reference, inputs));
    if (tsr_train_adapter_is_principal(&inputs->adapter))
        return tsr_fail(TSR_ECONFIG,
                        "%s: ref_adapter: %s is of the whole base, but init_lora_weights: %s takes "
                        "the adapter out of it; leave one of them out",
                        tsr_config_where(config, "ref_adapter"), config->ref_adapter,
                        config->init_lora_weights);
    return compare(inputs);
}
