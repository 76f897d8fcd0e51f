#include "io/model_config.h"

#include "io/file.h"
#include "io/model_config_parts.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Limits: beyond any known model, and products of two or three sizes stay below 2^62. */
#define MOST_VOCABULARY   (1 << 22)
#define MOST_INTERMEDIATE (1 << 20)
#define MOST_HIDDEN       (1 << 18)
#define MOST_LAYERS       (1 << 14)
#define MOST_HEADS        (1 << 12)
#define MOST_HEAD_DIM     (1 << 12)
#define MOST_CONFIG_BYTES (16u << 20)

/* What Transformers' configuration classes take where a key is missing. */
static const struct {
    const char *name, *architecture;
    int64_t kv_head_count, head_dim; /* 0: as heads; hidden / heads */
    int64_t max_position, sliding_window, bos, eos;
} families[] = {
    [TSR_MODEL_LLAMA] = {"llama", "LlamaForCausalLM", 0, 0, 2048, 0, 1, 2},
    [TSR_MODEL_MISTRAL] = {"mistral", "MistralForCausalLM", 8, 0, 131072, 4096, 1, 2},
    [TSR_MODEL_QWEN2] = {"qwen2", "Qwen2ForCausalLM", 32, 0, 32768, 4096, -1, -1},
    [TSR_MODEL_QWEN3] = {"qwen3", "Qwen3ForCausalLM", 32, 128, 32768, 4096, -1, -1},
};

#define FAMILY_COUNT (sizeof families / sizeof *families)

const char *tsr_model_type_name(tsr_model_type type)
{
    return (size_t)type < FAMILY_COUNT ? families[type].name : "unknown";
}

static tsr_status read_model_type(tsr_model_type *out, const json_t *root, const char *place)
{
    const char *name;
    TSR_TRY(tsr_json_string(&name, root, "model_type", place));
    size_t type = 0;
    while (type < FAMILY_COUNT && strcmp(name, families[type].name))
        type++;
    if (type == FAMILY_COUNT)
        return tsr_fail(TSR_EDATA,
                        "%s: model_type '%s' is not supported, expected llama, mistral, qwen2 or "
                        "qwen3",
                        place, name);
    *out = (tsr_model_type)type;
    if (!tsr_json_has(root, "architectures"))
        return TSR_OK;
    json_t *list;
    char found[TSR_JSON_SHOW_BYTES];
    TSR_TRY(tsr_json_array(&list, root, "architectures", place));
    const char *architecture = json_string_value(json_array_get(list, 0));
    if (!architecture || json_array_size(list) != 1 ||
        strcmp(architecture, families[type].architecture))
        return tsr_fail(TSR_EDATA, "%s: architectures is %s, expected [\"%s\"]", place,
                        tsr_json_show(found, list), families[type].architecture);
    return TSR_OK;
}

static tsr_status read_size(uint64_t *out, const json_t *root, const char *key, int64_t most,
                            const char *place)
{
    int64_t value;
    TSR_TRY(tsr_json_int(&value, root, key, 1, most, place));
    *out = (uint64_t)value;
    return TSR_OK;
}

static tsr_status read_heads(tsr_model_config *out, const json_t *root, const char *place)
{
    TSR_TRY(read_size(&out->head_count, root, "num_attention_heads", MOST_HEADS, place));
    out->kv_head_count = out->head_count;
    if (tsr_json_has(root, "num_key_value_heads"))
        TSR_TRY(read_size(&out->kv_head_count, root, "num_key_value_heads", MOST_HEADS, place));
    else if (!json_object_get(root, "num_key_value_heads") &&
             families[out->model_type].kv_head_count)
        out->kv_head_count = (uint64_t)families[out->model_type].kv_head_count;
    if (out->head_count % out->kv_head_count)
        return tsr_fail(TSR_EDATA,
                        "%s: num_attention_heads %" PRIu64
                        " is not a multiple of num_key_value_heads "
                        "%" PRIu64,
                        place, out->head_count, out->kv_head_count);
    if (tsr_json_has(root, "head_dim")) {
        TSR_TRY(read_size(&out->head_dim, root, "head_dim", MOST_HEAD_DIM, place));
    } else if (families[out->model_type].head_dim) {
        out->head_dim = (uint64_t)families[out->model_type].head_dim;
    } else {
        if (out->hidden_size % out->head_count)
            return tsr_fail(TSR_EDATA,
                            "%s: hidden_size %" PRIu64 " is not a multiple of num_attention_heads "
                            "%" PRIu64 ", and there is no head_dim",
                            place, out->hidden_size, out->head_count);
        out->head_dim = out->hidden_size / out->head_count;
    }
    if (out->head_dim % 2 || out->head_dim > MOST_HEAD_DIM)
        return tsr_fail(TSR_EDATA,
                        "%s: head_dim is %" PRIu64 ", expected an even number up to %d (RoPE turns "
                        "pairs)",
                        place, out->head_dim, MOST_HEAD_DIM);
    return TSR_OK;
}

static tsr_status read_sizes(tsr_model_config *out, const json_t *root, const char *place)
{
    out->max_position_embeddings = (uint64_t)families[out->model_type].max_position;
    out->rms_norm_eps = 1e-6;
    TSR_TRY(read_size(&out->vocab_size, root, "vocab_size", MOST_VOCABULARY, place));
    TSR_TRY(read_size(&out->hidden_size, root, "hidden_size", MOST_HIDDEN, place));
    TSR_TRY(
        read_size(&out->intermediate_size, root, "intermediate_size", MOST_INTERMEDIATE, place));
    TSR_TRY(read_size(&out->layer_count, root, "num_hidden_layers", MOST_LAYERS, place));
    TSR_TRY(read_heads(out, root, place));
    if (tsr_json_has(root, "max_position_embeddings"))
        TSR_TRY(read_size(&out->max_position_embeddings, root, "max_position_embeddings", INT32_MAX,
                          place));
    if (tsr_json_has(root, "rms_norm_eps"))
        TSR_TRY(tsr_json_number(&out->rms_norm_eps, root, "rms_norm_eps", 1e-12, 0.1, place));
    return TSR_OK;
}

static tsr_status read_flags(tsr_model_config *out, const json_t *root, const char *place)
{
    const char *activation = "silu";
    bool attention_bias = false;
    if (tsr_json_has(root, "hidden_act"))
        TSR_TRY(tsr_json_string(&activation, root, "hidden_act", place));
    if (strcmp(activation, "silu"))
        return tsr_fail(TSR_EDATA, "%s: hidden_act '%s' is not supported, only silu", place,
                        activation);
    if (tsr_json_has(root, "attention_bias"))
        TSR_TRY(tsr_json_bool(&attention_bias, root, "attention_bias", place));
    if (tsr_json_has(root, "mlp_bias"))
        TSR_TRY(tsr_json_bool(&out->mlp_bias, root, "mlp_bias", place));
    if (tsr_json_has(root, "tie_word_embeddings"))
        TSR_TRY(tsr_json_bool(&out->tie_word_embeddings, root, "tie_word_embeddings", place));
    bool qkv_bias = attention_bias || out->model_type == TSR_MODEL_QWEN2;
    out->q_bias = out->k_bias = out->v_bias = qkv_bias;
    out->o_bias = attention_bias;
    out->qk_norm = out->model_type == TSR_MODEL_QWEN3;
    return TSR_OK;
}

/* How many of the layers slide, by layer_types or, without it, by max_window_layers. */
static tsr_status count_sliding(uint64_t *out, const tsr_model_config *config, bool sliding,
                                const json_t *root, const char *place)
{
    uint64_t from = 28; /* Qwen2Config's max_window_layers */
    json_t *types;
    if (!tsr_json_has(root, "layer_types")) {
        int64_t layers = (int64_t)from;
        if (tsr_json_has(root, "max_window_layers"))
            TSR_TRY(tsr_json_int(&layers, root, "max_window_layers", 0, MOST_LAYERS, place));
        from = (uint64_t)layers;
        *out = sliding && from < config->layer_count ? config->layer_count - from : 0;
        return TSR_OK;
    }
    TSR_TRY(tsr_json_array(&types, root, "layer_types", place));
    if (json_array_size(types) != config->layer_count)
        return tsr_fail(TSR_EDATA,
                        "%s: layer_types has %zu entries, expected one for each of %" PRIu64
                        " layers",
                        place, json_array_size(types), config->layer_count);
    *out = 0;
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *type = json_string_value(json_array_get(types, i));
        char found[TSR_JSON_SHOW_BYTES];
        if (type && !strcmp(type, "sliding_attention"))
            ++*out;
        else if (!type || strcmp(type, "full_attention"))
            return tsr_fail(
                TSR_EDATA, "%s: layer_types holds %s, expected full_attention or sliding_attention",
                place, tsr_json_show(found, json_array_get(types, i)));
    }
    return TSR_OK;
}

static tsr_status read_window(tsr_model_config *out, const json_t *root, const char *place)
{
    uint64_t window = json_object_get(root, "sliding_window")
                          ? 0
                          : (uint64_t)families[out->model_type].sliding_window;
    uint64_t sliding_layers = 0;
    bool sliding = false;
    if (out->model_type == TSR_MODEL_LLAMA)
        return TSR_OK; /* it has no window: the key is refused */
    if (tsr_json_has(root, "sliding_window"))
        TSR_TRY(read_size(&window, root, "sliding_window", INT32_MAX, place));
    if (out->model_type == TSR_MODEL_MISTRAL) {
        out->sliding_window = window;
        return TSR_OK;
    }
    if (tsr_json_has(root, "use_sliding_window"))
        TSR_TRY(tsr_json_bool(&sliding, root, "use_sliding_window", place));
    TSR_TRY(count_sliding(&sliding_layers, out, sliding && window, root, place));
    if (sliding_layers && !(sliding && window))
        return tsr_fail(TSR_EDATA,
                        "%s: layer_types has sliding_attention, but use_sliding_window is false or "
                        "sliding_window is null",
                        place);
    if (sliding_layers && sliding_layers != out->layer_count)
        return tsr_fail(TSR_EDATA,
                        "%s: %s makes %" PRIu64 " of %" PRIu64 " layers slide: a mix of full and "
                        "sliding attention is not supported",
                        place,
                        tsr_json_has(root, "layer_types") ? "layer_types" : "max_window_layers",
                        sliding_layers, out->layer_count);
    out->sliding_window = sliding_layers ? window : 0;
    return TSR_OK;
}

static tsr_status read_dtype(tsr_dtype *out, const json_t *root, const char *place)
{
    const char *key = tsr_json_has(root, "dtype") ? "dtype" : "torch_dtype", *name;
    *out = TSR_F32;
    if (!tsr_json_has(root, key))
        return TSR_OK;
    TSR_TRY(tsr_json_string(&name, root, key, place));
    if (!strcmp(name, "bfloat16"))
        *out = TSR_BF16;
    else if (!strcmp(name, "float16"))
        *out = TSR_F16;
    else if (strcmp(name, "float32"))
        return tsr_fail(TSR_EDATA,
                        "%s: %s '%s' is not supported, expected bfloat16, float16 or float32",
                        place, key, name);
    return TSR_OK;
}

/* One id, or null. -1 in an older config means none too. */
static tsr_status read_token(int64_t *out, const json_t *root, const char *key, int64_t missing,
                             const char *place)
{
    *out = json_object_get(root, key) ? -1 : missing;
    if (tsr_json_has(root, key))
        TSR_TRY(tsr_json_int(out, root, key, -1, INT32_MAX, place));
    return TSR_OK;
}

static tsr_status read_tokens(tsr_model_config *out, const json_t *root, const char *place)
{
    const json_t *eos = json_object_get(root, "eos_token_id");
    TSR_TRY(
        read_token(&out->bos_token_id, root, "bos_token_id", families[out->model_type].bos, place));
    TSR_TRY(read_token(&out->pad_token_id, root, "pad_token_id", -1, place));
    if (!json_is_array(eos)) {
        TSR_TRY(read_token(&out->eos_token_id[0], root, "eos_token_id",
                           families[out->model_type].eos, place));
        out->eos_count = out->eos_token_id[0] >= 0;
        return TSR_OK;
    }
    if (json_array_size(eos) > TSR_MODEL_MAX_EOS)
        return tsr_fail(TSR_EDATA, "%s: eos_token_id has %zu entries, at most %d are supported",
                        place, json_array_size(eos), TSR_MODEL_MAX_EOS);
    for (size_t i = 0; i < json_array_size(eos); i++) {
        const json_t *value = json_array_get(eos, i);
        char found[TSR_JSON_SHOW_BYTES];
        if (!json_is_integer(value) || json_integer_value(value) < 0 ||
            json_integer_value(value) > INT32_MAX)
            return tsr_fail(TSR_EDATA, "%s: eos_token_id holds %s, expected token ids", place,
                            tsr_json_show(found, value));
        out->eos_token_id[out->eos_count++] = json_integer_value(value);
    }
    return TSR_OK;
}

static tsr_status read_all(tsr_model_config *out, const json_t *root, const char *place)
{
    TSR_TRY(read_model_type(&out->model_type, root, place));
    TSR_TRY(tsr_model_config_quantization(out, root, place));
    TSR_TRY(tsr_model_config_check_keys(root, out->model_type, place));
    TSR_TRY(read_sizes(out, root, place));
    TSR_TRY(read_flags(out, root, place));
    TSR_TRY(tsr_model_config_rope(&out->rope, root, place));
    TSR_TRY(read_window(out, root, place));
    TSR_TRY(read_dtype(&out->dtype, root, place));
    return read_tokens(out, root, place);
}

tsr_status tsr_model_config_parse(tsr_model_config *out, const char *text, uint64_t bytes,
                                  const char *place)
{
    json_t *root;
    tsr_model_config config = {0};
    TSR_TRY(tsr_json_parse(&root, text, bytes, place));
    tsr_status status = json_is_object(root)
                            ? read_all(&config, root, place)
                            : tsr_fail(TSR_EDATA, "%s: the file holds %s, expected an object {...}",
                                       place, tsr_json_kind(root));
    json_decref(root);
    if (status == TSR_OK)
        *out = config;
    return status;
}

tsr_status tsr_model_config_load(tsr_model_config *out, const char *directory)
{
    char *path, *text;
    uint64_t bytes;
    if (asprintf(&path, "%s/config.json", directory) < 0)
        return tsr_fail(TSR_ENOMEM, "%s: no memory to read config.json", directory);
    tsr_status status = tsr_file_read(&text, &bytes, path, MOST_CONFIG_BYTES);
    if (status == TSR_OK) {
        status = tsr_model_config_parse(out, text, bytes, path);
        free(text);
    }
    free(path);
    return status;
}
