#include "io/peft.h"

#include "io/json.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_LAYER 65535
#define MOST_ALPHA 1e9

/* Every field that is not acted on, as it is written: PEFT 0.21's default but for inference_mode
 * and task_type. */
static const struct {
    const char *key, *value;
    bool ignored; /* read with any value: it changes nothing about a stored adapter */
} fixed[] = {
    {"alora_invocation_tokens", "null"},
    {"arrow_config", "null"},
    {"auto_mapping", "null", true},
    {"bias", "\"none\""},
    {"corda_config", "null"},
    {"ensure_weight_tying", "false"},
    {"eva_config", "null"},
    {"fan_in_fan_out", "false"},
    {"inference_mode", "true", true},
    {"init_lora_weights", "true"},
    {"kasa_config", "null"},
    {"layer_replication", "null"},
    {"layers_pattern", "null"},
    {"loftq_config", "{}"},
    {"lora_bias", "false"},
    {"lora_ga_config", "null"},
    {"megatron_config", "null"},
    {"megatron_core", "\"megatron.core\"", true},
    {"monteclora_config", "null"},
    {"peft_type", "\"LORA\""},
    {"peft_version", "\"0.21.0\"", true},
    {"qalora_group_size", "16", true},
    {"revision", "null", true},
    {"task_type", "\"CAUSAL_LM\""},
    {"use_bdlora", "null"},
    {"use_qalora", "false"},
    {"velora_config", "null"},
};

static const char scored_task[] = "SEQ_CLS"; /* task_type of a reward model */

/* Read into tsr_peft_config. */
static const char *const acted_on[] = {
    "alpha_pattern",     "base_model_name_or_path",
    "exclude_modules",   "layers_to_transform",
    "lora_alpha",        "lora_dropout",
    "modules_to_save",   "r",
    "rank_pattern",      "target_modules",
    "target_parameters", "trainable_token_indices",
    "use_dora",          "use_rslora",
};

#define FIXED_COUNT    (sizeof fixed / sizeof *fixed)
#define ACTED_ON_COUNT (sizeof acted_on / sizeof *acted_on)

static bool is_empty(const json_t *value)
{
    return !value || json_is_null(value) || json_is_false(value) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

/* Other values of a fixed field that mean the same for a stored adapter. */
static bool means_default(const char *key, const json_t *value)
{
    const char *word = json_string_value(value);
    if (!strcmp(key, "init_lora_weights")) /* the base weights stay as they are */
        return json_is_boolean(value) ||
               (word && (!strcmp(word, "gaussian") || !strcmp(word, "orthogonal")));
    if (!strcmp(key, "layers_pattern")) { /* what PEFT guesses for this model family */
        if (json_is_array(value) && json_array_size(value) == 1)
            word = json_string_value(json_array_get(value, 0));
        if (word && !strcmp(word, "layers"))
            return true;
    }
    if (!strcmp(key, "task_type"))
        return json_is_null(value) || (word && !strcmp(word, scored_task));
    return is_empty(value) && strcmp(key, "bias") && strcmp(key, "peft_type");
}

/* Of `fixed`. A string is taken as it stands: where memory runs out in the middle of a long one,
 * jansson's parser drops a byte and reads past the end. */
static json_t *fixed_value(const char *text)
{
    if (*text == '"')
        return json_stringn(text + 1, strlen(text) - 2);
    return json_loads(text, JSON_DECODE_ANY, NULL);
}

static tsr_status check_field(const char *key, const json_t *value, const char *place)
{
    char found[TSR_JSON_SHOW_BYTES];
    for (size_t i = 0; i < ACTED_ON_COUNT; i++)
        if (!strcmp(key, acted_on[i]))
            return TSR_OK;
    for (size_t i = 0; i < FIXED_COUNT; i++) {
        if (strcmp(key, fixed[i].key))
            continue;
        if (fixed[i].ignored || means_default(key, value))
            return TSR_OK;
        json_t *wanted = fixed_value(fixed[i].value);
        bool same = wanted && json_equal(wanted, value);
        json_decref(wanted);
        if (same)
            return TSR_OK;
        return tsr_fail(TSR_EDATA, "%s: key '%s' is %s, only PEFT's default %s%s is supported",
                        place, key, tsr_json_show(found, value), fixed[i].value,
                        strcmp(key, "task_type") ? "" : ", or of a reward model \"SEQ_CLS\",");
    }
    if (json_is_null(value))
        return TSR_OK;
    return tsr_fail(TSR_EDATA,
                    "%s: key '%s' (%s) is not a field of a LoRA adapter in PEFT 0.21, nor null",
                    place, key, tsr_json_show(found, value));
}

static tsr_status no_memory(const char *place)
{
    return tsr_fail(TSR_ENOMEM, "%s: no memory to read it", place);
}

static tsr_status read_match(tsr_peft_match *out, const json_t *root, const char *key,
                             const char *place)
{
    const json_t *value = json_object_get(root, key);
    char found[TSR_JSON_SHOW_BYTES];
    if (!value || json_is_null(value))
        return TSR_OK;
    if (json_is_string(value)) {
        out->regex = strdup(json_string_value(value));
        return out->regex ? TSR_OK : no_memory(place);
    }
    if (!json_is_array(value))
        return tsr_fail(TSR_EDATA,
                        "%s: key '%s' is %s, expected a list of names or a regular expression",
                        place, key, tsr_json_show(found, value));
    out->names = calloc(json_array_size(value) + 1, sizeof *out->names);
    if (!out->names)
        return no_memory(place);
    for (size_t i = 0; i < json_array_size(value); i++) {
        const char *name = json_string_value(json_array_get(value, i));
        if (!name || !name[0])
            return tsr_fail(TSR_EDATA, "%s: key '%s' holds %s, expected modules' names", place, key,
                            tsr_json_show(found, json_array_get(value, i)));
        out->names[out->count] = strdup(name);
        if (!out->names[out->count])
            return no_memory(place);
        out->count++;
    }
    return TSR_OK;
}

/* A list of names, and nothing else. */
static tsr_status read_list(tsr_peft_match *out, const json_t *root, const char *key,
                            const char *place)
{
    TSR_TRY(read_match(out, root, key, place));
    return !out->regex ? TSR_OK
                       : tsr_fail(TSR_EDATA, "%s: key '%s' is \"%s\", expected a list of names",
                                  place, key, out->regex);
}

static tsr_status read_pattern(tsr_peft_pattern **out, uint64_t *count, const json_t *root,
                               const char *key, const char *place)
{
    json_t *object, *value;
    const char *name;
    bool ranks = !strcmp(key, "rank_pattern");
    char found[TSR_JSON_SHOW_BYTES];
    if (!tsr_json_has(root, key))
        return TSR_OK;
    TSR_TRY(tsr_json_object(&object, root, key, place));
    if (json_object_size(object) == 0)
        return TSR_OK;
    *out = calloc(json_object_size(object), sizeof **out);
    if (!*out)
        return no_memory(place);
    json_object_foreach(object, name, value)
    {
        double number = json_number_value(value);
        bool fits = ranks ? json_is_integer(value) && number >= 1 && number <= TSR_PEFT_MAX_RANK
                          : json_is_number(value) && number > 0 && number <= MOST_ALPHA;
        if (!fits)
            return tsr_fail(TSR_EDATA, "%s: %s: key '%s' is %s, expected %s", place, key, name,
                            tsr_json_show(found, value),
                            ranks ? "a rank from 1 to 8192" : "a number above 0");
        (*out)[*count] = (tsr_peft_pattern){.key = strdup(name), .value = number};
        if (!(*out)[*count].key)
            return no_memory(place);
        ++*count;
    }
    return TSR_OK;
}

static tsr_status read_layers(tsr_peft_config *out, const json_t *root, const char *place)
{
    const json_t *value = json_object_get(root, "layers_to_transform");
    char found[TSR_JSON_SHOW_BYTES];
    bool list = json_is_array(value);
    uint64_t count = list ? json_array_size(value) : 1;
    if (!value || json_is_null(value) || count == 0) /* for PEFT, no layer named is all layers */
        return TSR_OK;
    out->layers_to_transform = calloc(count + 1, sizeof *out->layers_to_transform);
    if (!out->layers_to_transform)
        return no_memory(place);
    for (uint64_t i = 0; i < count; i++) {
        const json_t *layer = list ? json_array_get(value, i) : value;
        if (!json_is_integer(layer) || json_integer_value(layer) < 0 ||
            json_integer_value(layer) > MOST_LAYER)
            return tsr_fail(TSR_EDATA,
                            "%s: key 'layers_to_transform' holds %s, expected layer numbers", place,
                            tsr_json_show(found, layer));
        out->layers_to_transform[out->layer_count++] = json_integer_value(layer);
    }
    if (out->layer_count && out->target.regex)
        return tsr_fail(TSR_EDATA,
                        "%s: layers_to_transform cannot be used with a regular expression as "
                        "target_modules: '%s'",
                        place, out->target.regex);
    return TSR_OK;
}

static tsr_status read_ids(int64_t **out, uint64_t *count, const json_t *list, const char *place)
{
    char found[TSR_JSON_SHOW_BYTES];
    *out = calloc(json_array_size(list) + 1, sizeof **out);
    if (!*out)
        return no_memory(place);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *id = json_array_get(list, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) > INT32_MAX)
            return tsr_fail(TSR_EDATA,
                            "%s: key 'trainable_token_indices' holds %s, expected tokens", place,
                            tsr_json_show(found, id));
        for (uint64_t j = 0; j < *count; j++)
            if ((*out)[j] == json_integer_value(id))
                return tsr_fail(TSR_EDATA, "%s: key 'trainable_token_indices' holds %s twice",
                                place, tsr_json_show(found, id));
        (*out)[(*count)++] = json_integer_value(id);
    }
    return TSR_OK;
}

/* A list is the embedding's. */
static tsr_status read_tokens(tsr_peft_config *out, const json_t *root, const char *place)
{
    static const char key[] = "trainable_token_indices";
    json_t *value = json_object_get(root, key), *list;
    const char *name;
    char found[TSR_JSON_SHOW_BYTES];
    if (json_is_array(value))
        return read_ids(&out->embedding_tokens, &out->embedding_token_count, value, place);
    if (is_empty(value))
        return TSR_OK;
    if (!json_is_object(value))
        return tsr_fail(TSR_EDATA, "%s: key '%s' is %s, expected a list of tokens or a map to them",
                        place, key, tsr_json_show(found, value));
    json_object_foreach(value, name, list)
    {
        const char *dot = strrchr(name, '.'), *last = dot ? dot + 1 : name;
        bool head = !strcmp(last, "lm_head");
        if ((!head && strcmp(last, "embed_tokens") != 0) || !json_is_array(list))
            return tsr_fail(TSR_EDATA,
                            "%s: key '%s' has %s: %s, expected embed_tokens or lm_head and a list",
                            place, key, name, tsr_json_show(found, list));
        TSR_TRY(head ? read_ids(&out->head_tokens, &out->head_token_count, list, place)
                     : read_ids(&out->embedding_tokens, &out->embedding_token_count, list, place));
    }
    return TSR_OK;
}

static tsr_status read_scalars(tsr_peft_config *out, const json_t *root, const char *place)
{
    int64_t r = 8; /* PEFT's defaults, where a key is missing */
    const char *base, *task = json_string_value(json_object_get(root, "task_type"));
    out->lora_alpha = 8;
    out->scores = task && !strcmp(task, scored_task);
    if (tsr_json_has(root, "r"))
        TSR_TRY(tsr_json_int(&r, root, "r", 1, TSR_PEFT_MAX_RANK, place));
    out->r = (uint64_t)r;
    if (tsr_json_has(root, "lora_alpha"))
        TSR_TRY(
            tsr_json_number(&out->lora_alpha, root, "lora_alpha", DBL_TRUE_MIN, MOST_ALPHA, place));
    if (tsr_json_has(root, "lora_dropout"))
        TSR_TRY(
            tsr_json_number(&out->lora_dropout, root, "lora_dropout", 0, nextafter(1, 0), place));
    if (tsr_json_has(root, "use_rslora"))
        TSR_TRY(tsr_json_bool(&out->use_rslora, root, "use_rslora", place));
    if (tsr_json_has(root, "use_dora"))
        TSR_TRY(tsr_json_bool(&out->use_dora, root, "use_dora", place));
    if (!tsr_json_has(root, "base_model_name_or_path"))
        return TSR_OK;
    TSR_TRY(tsr_json_string(&base, root, "base_model_name_or_path", place));
    out->base_model_name_or_path = strdup(base);
    return out->base_model_name_or_path ? TSR_OK : no_memory(place);
}

static tsr_status read_all(tsr_peft_config *out, const json_t *root, const char *place)
{
    const char *key;
    json_t *value;
    if (!json_is_object(root))
        return tsr_fail(TSR_EDATA, "%s: the file holds %s, expected an object {...}", place,
                        tsr_json_kind(root));
    TSR_TRY(tsr_json_string(&key, root, "peft_type", place)); /* it must be there */
    json_object_foreach((json_t *)root, key, value) TSR_TRY(check_field(key, value, place));
    TSR_TRY(read_scalars(out, root, place));
    TSR_TRY(read_match(&out->target, root, "target_modules", place));
    TSR_TRY(read_match(&out->exclude, root, "exclude_modules", place));
    TSR_TRY(read_list(&out->save, root, "modules_to_save", place));
    TSR_TRY(read_list(&out->parameter, root, "target_parameters", place));
    if (out->target.regex && !strcmp(out->target.regex, "all-linear")) {
        out->all_linear = true;
        free(out->target.regex);
        out->target.regex = NULL;
    }
    if (!out->all_linear && !out->target.regex && !out->target.count && !out->parameter.count)
        return tsr_fail(TSR_EDATA, "%s: key 'target_modules' names no module", place);
    TSR_TRY(
        read_pattern(&out->rank_pattern, &out->rank_pattern_count, root, "rank_pattern", place));
    TSR_TRY(
        read_pattern(&out->alpha_pattern, &out->alpha_pattern_count, root, "alpha_pattern", place));
    TSR_TRY(read_tokens(out, root, place));
    return read_layers(out, root, place);
}

static tsr_status read_root(tsr_peft_config *out, const json_t *root, const char *place)
{
    tsr_peft_config config = {0};
    tsr_status status = read_all(&config, root, place);
    if (status == TSR_OK)
        *out = config;
    else
        tsr_peft_config_free(&config);
    return status;
}

tsr_status tsr_peft_config_parse(tsr_peft_config *out, const char *text, uint64_t bytes,
                                 const char *place)
{
    json_auto_t *root = NULL;
    TSR_TRY(tsr_json_parse(&root, text, bytes, place));
    return read_root(out, root, place);
}

tsr_status tsr_peft_config_load(tsr_peft_config *out, const char *path)
{
    json_auto_t *root = NULL;
    TSR_TRY(tsr_json_load(&root, path));
    return read_root(out, root, path);
}

static void free_match(tsr_peft_match *match)
{
    for (uint64_t i = 0; i < match->count; i++)
        free(match->names[i]);
    free(match->names);
    free(match->regex);
}

void tsr_peft_config_free(tsr_peft_config *config)
{
    if (!config)
        return;
    free(config->base_model_name_or_path);
    free_match(&config->target);
    free_match(&config->exclude);
    free_match(&config->save);
    free_match(&config->parameter);
    for (uint64_t i = 0; i < config->rank_pattern_count; i++)
        free(config->rank_pattern[i].key);
    free(config->rank_pattern);
    for (uint64_t i = 0; i < config->alpha_pattern_count; i++)
        free(config->alpha_pattern[i].key);
    free(config->alpha_pattern);
    free(config->layers_to_transform);
    free(config->embedding_tokens);
    free(config->head_tokens);
    *config = (tsr_peft_config){0};
}

/* A whole number is written as one, as PEFT keeps Python's int. */
static bool is_whole(double value)
{
    return value == floor(value) && fabs(value) < 1e15;
}

static json_t *number(double value)
{
    if (is_whole(value))
        return json_integer((json_int_t)value);
    return json_real(value);
}

/* Drops and replaces by NULL a container of which an entry could not be made. */
static json_t *whole(json_t *container, int failed)
{
    if (!failed)
        return container;
    json_decref(container);
    return NULL;
}

static json_t *match_value(const tsr_peft_match *match)
{
    if (match->regex)
        return json_string(match->regex);
    if (!match->count)
        return json_null();
    json_t *list = json_array();
    int failed = 0;
    for (uint64_t i = 0; i < match->count; i++)
        failed = failed || json_array_append_new(list, json_string(match->names[i]));
    return whole(list, failed);
}

static json_t *pattern_value(const tsr_peft_pattern *pattern, uint64_t count)
{
    json_t *object = json_object();
    int failed = 0;
    for (uint64_t i = 0; i < count; i++)
        failed = failed || json_object_set_new(object, pattern[i].key, number(pattern[i].value));
    return whole(object, failed);
}

static json_t *ints_value(const int64_t *values, uint64_t count)
{
    json_t *list = json_array();
    int failed = 0;
    for (uint64_t i = 0; i < count; i++)
        failed = failed || json_array_append_new(list, json_integer(values[i]));
    return whole(list, failed);
}

static json_t *layers_value(const tsr_peft_config *config)
{
    return config->layers_to_transform
               ? ints_value(config->layers_to_transform, config->layer_count)
               : json_null();
}

static json_t *tokens_value(const tsr_peft_config *config)
{
    json_t *embedding = config->embedding_token_count
                            ? ints_value(config->embedding_tokens, config->embedding_token_count)
                            : json_null();
    if (!config->head_token_count)
        return embedding;
    json_t *map = json_object();
    int failed = 0;
    if (config->embedding_token_count)
        failed = json_object_set_new(map, "embed_tokens", embedding);
    failed =
        failed || json_object_set_new(map, "lm_head",
                                      ints_value(config->head_tokens, config->head_token_count));
    return whole(map, failed);
}

/* NULL: no memory (errno says so: nothing more is tried), or a string is not UTF-8. */
static json_t *config_value(const tsr_peft_config *config)
{
    const char *base = config->base_model_name_or_path;
    json_t *root = json_object();
    int failed = root == NULL;
    for (size_t i = 0; i < FIXED_COUNT; i++)
        failed = failed || json_object_set_new(root, fixed[i].key, fixed_value(fixed[i].value));
    if (config->scores)
        failed = failed || json_object_set_new(root, "task_type", json_string(scored_task));
    failed = failed || json_object_set_new(root, "base_model_name_or_path",
                                           base ? json_string(base) : json_null());
    failed = failed || json_object_set_new(root, "r", json_integer((json_int_t)config->r));
    failed = failed || json_object_set_new(root, "lora_alpha", number(config->lora_alpha));
    failed = failed || json_object_set_new(root, "lora_dropout", json_real(config->lora_dropout));
    failed = failed || json_object_set_new(root, "use_rslora", json_boolean(config->use_rslora));
    failed = failed || json_object_set_new(root, "use_dora", json_boolean(config->use_dora));
    failed = failed || json_object_set_new(root, "target_modules",
                                           config->all_linear ? json_string("all-linear")
                                                              : match_value(&config->target));
    failed = failed || json_object_set_new(root, "exclude_modules", match_value(&config->exclude));
    failed = failed || json_object_set_new(root, "modules_to_save", match_value(&config->save));
    failed =
        failed || json_object_set_new(root, "target_parameters", match_value(&config->parameter));
    failed = failed || json_object_set_new(root, "trainable_token_indices", tokens_value(config));
    failed = failed ||
             json_object_set_new(root, "rank_pattern",
                                 pattern_value(config->rank_pattern, config->rank_pattern_count));
    failed = failed ||
             json_object_set_new(root, "alpha_pattern",
                                 pattern_value(config->alpha_pattern, config->alpha_pattern_count));
    failed = failed || json_object_set_new(root, "layers_to_transform", layers_value(config));
    if (!failed)
        return root;
    json_decref(root);
    return NULL;
}

/* The fewest digits, at least `least`, that bring a number back: 0.05 and not 0.050000000000000003.
 * (Parsing the text again would tell as well, but jansson's parser does not survive a lack of memory.) */
static int digits_of(double value, int least)
{
    char text[40];
    int digits = least;
    for (; !is_whole(value) && digits < 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    return digits;
}

/* Of all numbers of the file, as JSON_REAL_PRECISION is for all of them. */
static int fewest_digits(const tsr_peft_config *config)
{
    int digits = digits_of(config->lora_dropout, digits_of(config->lora_alpha, 1));
    for (uint64_t i = 0; i < config->rank_pattern_count; i++)
        digits = digits_of(config->rank_pattern[i].value, digits);
    for (uint64_t i = 0; i < config->alpha_pattern_count; i++)
        digits = digits_of(config->alpha_pattern[i].value, digits);
    return digits;
}

tsr_status tsr_peft_config_format(char **out, const tsr_peft_config *config)
{
    const size_t style = JSON_INDENT(2) | JSON_SORT_KEYS | JSON_ENSURE_ASCII;
    errno = 0;
    json_t *root = config_value(config);
    if (!root)
        return tsr_json_not_made(TSR_PEFT_CONFIG_FILE ": a string of it");
    tsr_text text = {0};
    size_t precision = JSON_REAL_PRECISION((size_t)fewest_digits(config));
    tsr_status status = tsr_json_put(&text, root, style | precision, TSR_PEFT_CONFIG_FILE);
    json_decref(root);
    if (status < 0) {
        tsr_text_free(&text);
        return status;
    }
    *out = text.data;
    return TSR_OK;
}
