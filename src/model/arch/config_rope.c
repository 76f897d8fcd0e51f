#include "base/auto.h"
#include "model/arch/config_parts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static tsr_status read_type(tsr_rope_type *out, const json_t *rope, const tsr_arch *arch,
                            const char *place)
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
    static const struct {
        const char *name;
        tsr_rope_type type;
    } known[] = {{"default", TSR_ROPE_DEFAULT}, {"dynamic", TSR_ROPE_DEFAULT},
                 {"linear", TSR_ROPE_LINEAR},   {"llama3", TSR_ROPE_LLAMA3},
                 {"yarn", TSR_ROPE_YARN},       {"proportional", TSR_ROPE_PROPORTIONAL}};
    /* Of text all three positions of a token are the same, so its sections, interleaved or not, turn as one. */
    if (arch->mrope && !strcmp(name, "mrope"))
        name = "default";
    if (arch->long_rope && (!strcmp(name, "su") || !strcmp(name, "yarn")))
        name = "longrope";
    if (arch->long_rope && !strcmp(name, "longrope")) {
        *out = TSR_ROPE_LONG;
        return TSR_OK;
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(name, known[i].name)) {
            *out = known[i].type;
            return TSR_OK;
        }
    return tsr_fail(
        TSR_EDATA,
        "%s: rope_type '%s' is not supported, expected default, dynamic, linear, llama3, yarn or "
        "proportional",
        place, name);
}

static bool is_in(const char *const *list, const char *key)
{
    for (; *list; list++)
        if (!strcmp(*list, key))
            return true;
    return false;
}

/* Up to max_position_embeddings Transformers' dynamic NTK turns as default does. Beyond, theta depends on the longest
 * row of the batch, so that a row would mean another thing beside another: longer ones are refused. */
static bool is_dynamic(const json_t *rope)
{
    const char *name = json_string_value(json_object_get(rope, "rope_type"));
    const char *older = json_string_value(json_object_get(rope, "type"));
    return (name && !strcmp(name, "dynamic")) || (older && !strcmp(older, "dynamic"));
}

static tsr_status check_keys(const json_t *rope, tsr_rope_type type, const tsr_arch *arch,
                             const char *place)
{
    static const char *const known[][10] = {
        [TSR_ROPE_DEFAULT] = {NULL},
        [TSR_ROPE_LINEAR] = {"factor", NULL},
        [TSR_ROPE_LLAMA3] = {"factor", "low_freq_factor", "high_freq_factor",
                             "original_max_position_embeddings", NULL},
        [TSR_ROPE_YARN] = {"factor", "original_max_position_embeddings", "beta_fast", "beta_slow",
                           "attention_factor", "mscale", "mscale_all_dim", "truncate", NULL},
        [TSR_ROPE_LONG] = {"factor", "original_max_position_embeddings", "attention_factor",
                           "short_factor", "long_factor", NULL},
        [TSR_ROPE_PROPORTIONAL] = {"factor", "partial_rotary_factor", NULL},
    };
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)rope, key, value)
    {
        bool fine = json_is_null(value) || !strcmp(key, "rope_type") || !strcmp(key, "type") ||
                    !strcmp(key, "rope_theta") || is_in(known[type], key) ||
                    (!strcmp(key, "partial_rotary_factor") &&
                     (arch->partial > 0 || json_number_value(value) == 1.0)) ||
                    (!strcmp(key, "llama_4_scaling_beta") && arch->query_beta) ||
                    (!strncmp(key, "mrope_", 6) && arch->mrope) ||
                    (!strcmp(key, "factor") && is_dynamic(rope));
        char found[TSR_JSON_SHOW_BYTES];
        if (!fine)
            return tsr_fail(TSR_EDATA, "%s: key '%s' (%s) is not understood", place, key,
                            tsr_json_show(found, value));
    }
    return TSR_OK;
}

/* A number; *out stays where the key is missing. */
static tsr_status read_number(double *out, const json_t *rope, const char *key, double least,
                              const char *place)
{
    return tsr_json_has(rope, key) ? tsr_json_number(out, rope, key, least, 1e15, place) : TSR_OK;
}

static tsr_status read_llama3(tsr_rope_scaling *out, const json_t *rope, const char *place)
{
    TSR_TRY(tsr_json_number(&out->low_frequency_factor, rope, "low_freq_factor", 1e-3, 1e6, place));
    TSR_TRY(
        tsr_json_number(&out->high_frequency_factor, rope, "high_freq_factor", 1e-3, 1e6, place));
    if (out->high_frequency_factor <= out->low_frequency_factor)
        return tsr_fail(TSR_EDATA, "%s: high_freq_factor %g is not above low_freq_factor %g", place,
                        out->high_frequency_factor, out->low_frequency_factor);
    return tsr_json_number(&out->original_max_positions, rope, "original_max_position_embeddings",
                           1, INT32_MAX, place);
}

/* Transformers' get_mscale. */
static double magnitude(double factor, double scale)
{
    return factor <= 1 ? 1 : 0.1 * scale * log(factor) + 1;
}

static tsr_status read_yarn(tsr_rope_scaling *out, const json_t *rope, const char *place)
{
    double scale = 0, all = 0;
    bool truncate = true;
    out->beta_fast = 32;
    out->beta_slow = 1;
    TSR_TRY(read_number(&out->beta_fast, rope, "beta_fast", 1e-3, place));
    TSR_TRY(read_number(&out->beta_slow, rope, "beta_slow", 1e-3, place));
    TSR_TRY(read_number(&scale, rope, "mscale", 0, place));
    TSR_TRY(read_number(&all, rope, "mscale_all_dim", 0, place));
    TSR_TRY(tsr_model_config_flag(&truncate, rope, "truncate", place));
    out->exact_ends = !truncate;
    out->attention_factor = scale != 0 && all != 0
                                ? magnitude(out->factor, scale) / magnitude(out->factor, all)
                                : magnitude(out->factor, 1);
    out->all_magnitude = all != 0 ? magnitude(out->factor, all) : 0;
    TSR_TRY(read_number(&out->attention_factor, rope, "attention_factor", 1e-3, place));
    TSR_TRY(read_number(&out->original_max_positions, rope, "original_max_position_embeddings", 1,
                        place));
    if (out->theta <= 1)
        return tsr_fail(TSR_EDATA, "%s: rope_theta is %g, yarn expects a number above 1", place,
                        out->theta);
    if (out->beta_fast < out->beta_slow)
        return tsr_fail(TSR_EDATA, "%s: beta_fast %g is below beta_slow %g", place, out->beta_fast,
                        out->beta_slow);
    return TSR_OK;
}

/* short_factor or long_factor: one for each pair that turns. */
static tsr_status read_factors(float *out, const json_t *rope, const char *key, const char *place)
{
    json_t *list;
    TSR_TRY(tsr_json_array(&list, rope, key, place));
    if (json_array_size(list) == 0 || json_array_size(list) > TSR_ROPE_MOST_PAIRS)
        return tsr_fail(TSR_EDATA, "%s: %s has %zu entries, expected 1 to %d", place, key,
                        json_array_size(list), TSR_ROPE_MOST_PAIRS);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *factor = json_array_get(list, i);
        char found[TSR_JSON_SHOW_BYTES];
        if (!(json_number_value(factor) >= 1e-3 && json_number_value(factor) <= 1e6))
            return tsr_fail(TSR_EDATA, "%s: %s holds %s, expected factors of 0.001 to 1e6", place,
                            key, tsr_json_show(found, factor));
        out[i] = (float)json_number_value(factor);
    }
    return TSR_OK;
}

static tsr_status read_long(tsr_rope_scaling *out, const json_t *rope, const char *place)
{
    TSR_TRY(read_factors(out->short_factor, rope, "short_factor", place));
    TSR_TRY(read_factors(out->long_factor, rope, "long_factor", place));
    if (json_array_size(json_object_get(rope, "short_factor")) !=
        json_array_size(json_object_get(rope, "long_factor")))
        return tsr_fail(TSR_EDATA, "%s: short_factor and long_factor have different lengths",
                        place);
    out->factor = 0; /* max_position_embeddings / the original */
    TSR_TRY(read_number(&out->factor, rope, "factor", 1e-3, place));
    TSR_TRY(read_number(&out->attention_factor, rope, "attention_factor", 1e-3, place));
    return read_number(&out->original_max_positions, rope, "original_max_position_embeddings", 1,
                       place);
}

static tsr_status read_parameters(tsr_rope_scaling *out, const json_t *rope, const tsr_arch *arch,
                                  const char *place)
{
    double factor;
    TSR_TRY(read_type(&out->type, rope, arch, place));
    TSR_TRY(check_keys(rope, out->type, arch, place));
    TSR_TRY(read_number(&out->theta, rope, "rope_theta", 1, place));
    TSR_TRY(read_number(&out->query_beta, rope, "llama_4_scaling_beta", 0, place));
    if (out->type == TSR_ROPE_LONG)
        return read_long(out, rope, place);
    if (out->type == TSR_ROPE_PROPORTIONAL) {
        out->share = 1;
        TSR_TRY(read_number(&out->factor, rope, "factor", 1, place));
        return tsr_json_has(rope, "partial_rotary_factor")
                   ? tsr_json_number(&out->share, rope, "partial_rotary_factor", 0, 1, place)
                   : TSR_OK;
    }
    if (is_dynamic(rope)) /* which acts on longer rows alone */
        return tsr_json_number(&factor, rope, "factor", 1, 1e6, place);
    if (out->type != TSR_ROPE_DEFAULT)
        TSR_TRY(tsr_json_number(&out->factor, rope, "factor", 1, 1e6, place));
    if (out->type == TSR_ROPE_YARN)
        return read_yarn(out, rope, place);
    return out->type == TSR_ROPE_LLAMA3 ? read_llama3(out, rope, place) : TSR_OK;
}

/* One object with its settings, below `inner` of the file. */
static tsr_status read_object(tsr_rope_scaling *out, const json_t *rope, const tsr_arch *arch,
                              const char *inner, const char *place)
{
    TSR_AUTO_FREE char *where = NULL;
    if (asprintf(&where, "%s: %s", place, inner) < 0)
        return tsr_fail(TSR_ENOMEM, "%s: no memory to read it", place);
    return read_parameters(out, rope, arch, where);
}

/* rope_parameters of the layers of one type; false: they are not said for each type. */
static tsr_status read_of_type(bool *found, tsr_rope_scaling *out, const json_t *root,
                               const tsr_arch *arch, const char *type, const char *place)
{
    const json_t *all = json_object_get(root, "rope_parameters");
    char inner[96];
    json_t *rope;
    *found = type && json_is_object(json_object_get(all, type));
    if (!*found)
        return TSR_OK;
    snprintf(inner, sizeof inner, "rope_parameters: %s", type);
    TSR_TRY(tsr_json_object(&rope, all, type, place));
    return read_object(out, rope, arch, inner, place);
}

static tsr_status read_of_model(tsr_rope_scaling *out, const json_t *root, const tsr_arch *arch,
                                const char *place)
{
    static const char *const keys[] = {"rope_parameters", "rope_scaling"};
    bool theta_at_top = tsr_json_has(root, "rope_theta");
    TSR_TRY(read_number(&out->theta, root, "rope_theta", 1, place));
    double top = out->theta;
    if (tsr_json_has(root, keys[0]) && tsr_json_has(root, keys[1]) &&
        !json_equal(json_object_get(root, keys[0]), json_object_get(root, keys[1])))
        return tsr_fail(TSR_EDATA, "%s: rope_parameters and rope_scaling are both there and differ",
                        place);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        json_t *rope;
        if (!tsr_json_has(root, keys[i]))
            continue;
        TSR_TRY(tsr_json_object(&rope, root, keys[i], place));
        TSR_TRY(read_object(out, rope, arch, keys[i], place));
        if (theta_at_top && out->theta != top)
            return tsr_fail(TSR_EDATA, "%s: rope_theta is %g, but %s has %g", place, top, keys[i],
                            out->theta);
    }
    return TSR_OK;
}

/* How many columns turn: a share of the head, said at the top or beside the rest. */
static tsr_status read_partial(tsr_model_config *out, const json_t *root, const char *place)
{
    double share = out->arch->partial;
    const json_t *rope = json_object_get(root, "rope_parameters");
    if (tsr_json_has(root, "partial_rotary_factor"))
        TSR_TRY(tsr_json_number(&share, root, "partial_rotary_factor", 1e-3, 1, place));
    if (json_is_object(rope) && tsr_json_has(rope, "partial_rotary_factor"))
        TSR_TRY(tsr_json_number(&share, rope, "partial_rotary_factor", 1e-3, 1, place));
    uint64_t turned = (uint64_t)((double)out->head_dim * share);
    if (turned < 2 || turned % 2)
        return tsr_fail(TSR_EDATA,
                        "%s: partial_rotary_factor %g of head_dim %llu is %llu, expected an even "
                        "number",
                        place, share, (unsigned long long)out->head_dim,
                        (unsigned long long)turned);
    out->rope[0].rotary_dim = turned < out->head_dim ? turned : 0;
    return TSR_OK;
}

/* What LongRoPE takes from the model: both lengths, and with them the factor of its tables. */
static tsr_status finish_long(tsr_model_config *out, const json_t *root, const char *place)
{
    static const char key[] = "original_max_position_embeddings";
    tsr_rope_scaling *rope = &out->rope[0];
    uint64_t pairs = tsr_model_rotary_dim(out, 0) / 2, counted = 0;
    while (counted < TSR_ROPE_MOST_PAIRS && rope->short_factor[counted] != 0)
        counted++;
    if (counted != pairs)
        return tsr_fail(TSR_EDATA, "%s: short_factor has %llu entries, expected %llu", place,
                        (unsigned long long)counted, (unsigned long long)pairs);
    TSR_TRY(read_number(&rope->original_max_positions, root, key, 1, place));
    if (rope->original_max_positions == 0)
        rope->original_max_positions = (double)out->max_position_embeddings;
    double longer = rope->factor != 0
                        ? rope->factor
                        : (double)out->max_position_embeddings / rope->original_max_positions;
    rope->factor = longer;
    if (rope->attention_factor == 0)
        rope->attention_factor =
            longer <= 1 ? 1 : sqrt(1 + log(longer) / log(rope->original_max_positions));
    return TSR_OK;
}

/* Of the whole model, or of some of its layers. */
static bool any_dynamic(const json_t *root)
{
    const json_t *all = json_object_get(root, "rope_parameters");
    return is_dynamic(all) || is_dynamic(json_object_get(root, "rope_scaling")) ||
           is_dynamic(json_object_get(all, "full_attention")) ||
           is_dynamic(json_object_get(all, "sliding_attention"));
}

tsr_status tsr_model_config_rope(tsr_model_config *out, const json_t *root, const char *place)
{
    const tsr_arch *arch = out->arch;
    double positions = (double)out->max_position_embeddings;
    bool full = false, sliding = false;
    for (int i = 0; i < TSR_MODEL_ROPES; i++)
        out->rope[i] = (tsr_rope_scaling){.theta = i ? arch->sliding_theta : arch->theta,
                                          .factor = 1,
                                          .original_max_positions = 0};
    out->rope_count = arch->sliding_theta > 0 ? 2 : 1;
    if (out->rope_count > 1) {
        TSR_TRY(read_of_type(&full, &out->rope[0], root, arch, "full_attention", place));
        TSR_TRY(read_of_type(&sliding, &out->rope[1], root, arch, "sliding_attention", place));
    }
    if (!full && !sliding)
        TSR_TRY(read_of_model(&out->rope[0], root, arch, place));
    for (int i = 0; i < out->rope_count; i++)
        if (out->rope[i].type == TSR_ROPE_YARN && out->rope[i].original_max_positions == 0)
            out->rope[i].original_max_positions = positions;
    out->longest_document = any_dynamic(root) ? out->max_position_embeddings : 0;
    for (int i = 0; i < out->rope_count; i++)
        out->rope[i].neighbours = arch->neighbours;
    if (arch->partial > 0)
        TSR_TRY(read_partial(out, root, place));
    return out->rope[0].type == TSR_ROPE_LONG ? finish_long(out, root, place) : TSR_OK;
}

uint64_t tsr_model_positions(const char **key, const tsr_model_config *config)
{
    uint64_t positions = config->max_position_embeddings;
    *key = "max_position_embeddings";
    if (config->longest_document) /* rope_type 'dynamic' is not computed beyond it */
        return config->longest_document;
    for (int i = 0; i < config->rope_count; i++) {
        double original = config->rope[i].original_max_positions;
        double scaled = config->rope[i].factor *
                        (original > 0 ? original : (double)config->max_position_embeddings);
        if (scaled <= (double)positions || scaled > INT32_MAX)
            continue;
        positions = (uint64_t)scaled;
        *key = "rope_scaling";
    }
    return positions;
}
