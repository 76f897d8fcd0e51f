#include "model/arch/config_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_THETA 10000.0 /* Transformers' default_theta */

static tsr_status read_type(tsr_model_rope_type *out, const json_t *rope, const char *place)
{
    const char *name = "default", *older = NULL;
    if (tsr_json_has(rope, "rope_type"))
        TSR_TRY(tsr_json_string(&name, rope, "rope_type", place));
    if (tsr_json_has(rope, "type")) {
        TSR_TRY(tsr_json_string(&older, rope, "type", place));
        if (tsr_json_has(rope, "rope_type") && strcmp(name, older))
            return tsr_fail(TSR_EDATA, "%s: rope_type is '%s', but type is '%s'", place, name,
                            older);
        name = older;
    }
    if (!strcmp(name, "default"))
        *out = TSR_MODEL_ROPE_DEFAULT;
    else if (!strcmp(name, "linear"))
        *out = TSR_MODEL_ROPE_LINEAR;
    else if (!strcmp(name, "llama3"))
        *out = TSR_MODEL_ROPE_LLAMA3;
    else
        return tsr_fail(TSR_EDATA,
                        "%s: rope_type '%s' is not supported, expected default, linear or llama3",
                        place, name);
    return TSR_OK;
}

static tsr_status check_keys(const json_t *rope, tsr_model_rope_type type, const char *place)
{
    static const struct {
        const char *key;
        bool linear, llama3;
    } known[] = {{"factor", true, true},
                 {"low_freq_factor", false, true},
                 {"high_freq_factor", false, true},
                 {"original_max_position_embeddings", false, true}};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)rope, key, value)
    {
        bool fine = json_is_null(value) || !strcmp(key, "rope_type") || !strcmp(key, "type") ||
                    !strcmp(key, "rope_theta") ||
                    (!strcmp(key, "partial_rotary_factor") && json_number_value(value) == 1.0);
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            if (!strcmp(key, known[i].key) && ((type == TSR_MODEL_ROPE_LINEAR && known[i].linear) ||
                                               (type == TSR_MODEL_ROPE_LLAMA3 && known[i].llama3)))
                fine = true;
        char found[TSR_JSON_SHOW_BYTES];
        if (!fine)
            return tsr_fail(TSR_EDATA, "%s: key '%s' (%s) is not understood", place, key,
                            tsr_json_show(found, value));
    }
    return TSR_OK;
}

static tsr_status read_llama3(tsr_rope_config *out, const json_t *rope, const char *place)
{
    int64_t original;
    TSR_TRY(tsr_json_number(&out->low_freq_factor, rope, "low_freq_factor", 1e-3, 1e6, place));
    TSR_TRY(tsr_json_number(&out->high_freq_factor, rope, "high_freq_factor", 1e-3, 1e6, place));
    if (out->high_freq_factor <= out->low_freq_factor)
        return tsr_fail(TSR_EDATA, "%s: high_freq_factor %g is not above low_freq_factor %g", place,
                        out->high_freq_factor, out->low_freq_factor);
    TSR_TRY(tsr_json_int(&original, rope, "original_max_position_embeddings", 1, INT32_MAX, place));
    out->original_max_position = (uint64_t)original;
    return TSR_OK;
}

static tsr_status read_parameters(tsr_rope_config *out, const json_t *rope, const char *place)
{
    TSR_TRY(read_type(&out->type, rope, place));
    TSR_TRY(check_keys(rope, out->type, place));
    if (tsr_json_has(rope, "rope_theta"))
        TSR_TRY(tsr_json_number(&out->theta, rope, "rope_theta", 1, 1e15, place));
    if (out->type != TSR_MODEL_ROPE_DEFAULT)
        TSR_TRY(tsr_json_number(&out->factor, rope, "factor", 1, 1e6, place));
    return out->type == TSR_MODEL_ROPE_LLAMA3 ? read_llama3(out, rope, place) : TSR_OK;
}

tsr_status tsr_model_config_rope(tsr_rope_config *out, const json_t *root, const char *place)
{
    static const char *const keys[] = {"rope_parameters", "rope_scaling"};
    bool theta_at_top = tsr_json_has(root, "rope_theta");
    *out = (tsr_rope_config){.theta = DEFAULT_THETA, .factor = 1};
    if (theta_at_top)
        TSR_TRY(tsr_json_number(&out->theta, root, "rope_theta", 1, 1e15, place));
    double top = out->theta;
    if (tsr_json_has(root, keys[0]) && tsr_json_has(root, keys[1]) &&
        !json_equal(json_object_get(root, keys[0]), json_object_get(root, keys[1])))
        return tsr_fail(TSR_EDATA, "%s: rope_parameters and rope_scaling are both there and differ",
                        place);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        json_t *rope;
        char *inner;
        if (!tsr_json_has(root, keys[i]))
            continue;
        TSR_TRY(tsr_json_object(&rope, root, keys[i], place));
        if (asprintf(&inner, "%s: %s", place, keys[i]) < 0)
            return tsr_fail(TSR_ENOMEM, "%s: no memory to read it", place);
        tsr_status status = read_parameters(out, rope, inner);
        free(inner);
        TSR_TRY(status);
        if (theta_at_top && out->theta != top)
            return tsr_fail(TSR_EDATA, "%s: rope_theta is %g, but %s has %g", place, top, keys[i],
                            out->theta);
    }
    return TSR_OK;
}
