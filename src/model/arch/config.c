#include "model/arch/config.h"

#include "base/auto.h"
#include "io/file.h"
#include "model/arch/config_parts.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Limits: beyond any known model, and products of two or three sizes stay below 2^62. */
#define MOST_VOCABULARY   (1 << 22)
#define MOST_INTERMEDIATE (1 << 20)
#define MOST_HIDDEN       (1 << 18)
#define MOST_HEADS        (1 << 12)
#define MOST_CONFIG_BYTES (16u << 20)

tsr_status tsr_model_config_class(const json_t *root, const char *wanted, const char *place)
{
    json_t *list;
    char found[TSR_JSON_SHOW_BYTES];
    if (!tsr_json_has(root, "architectures"))
        return TSR_OK;
    TSR_TRY(tsr_json_array(&list, root, "architectures", place));
    const char *architecture = json_string_value(json_array_get(list, 0));
    if (!architecture || json_array_size(list) != 1 || strcmp(architecture, wanted))
        return tsr_fail(TSR_EDATA, "%s: architectures is %s, expected [\"%s\"]", place,
                        tsr_json_show(found, list), wanted);
    return TSR_OK;
}

/* The family, and that architectures is its. */
static tsr_status read_arch(tsr_model_config *out, const json_t *root, const char *place)
{
    const char *name;
    TSR_TRY(tsr_json_string(&name, root, "model_type", place));
    TSR_TRY(tsr_arch_find(&out->arch, name, place));
    if (out->composite)
        return TSR_OK;
    return out->arch->architecture ? tsr_model_config_class(root, out->arch->architecture, place)
                                   : tsr_fail(TSR_EDATA,
                                              "%s: model_type '%s' is that of a text_config alone; "
                                              "expected the config.json of the whole model",
                                              place, name);
}

tsr_status tsr_model_config_size(uint64_t *out, const json_t *root, const char *key, int64_t most,
                                 const char *place)
{
    int64_t value;
    TSR_TRY(tsr_json_int(&value, root, key, 1, most, place));
    *out = (uint64_t)value;
    return TSR_OK;
}

static tsr_status read_heads(tsr_model_config *out, const json_t *root, const char *place)
{
    TSR_TRY(
        tsr_model_config_size(&out->head_count, root, "num_attention_heads", MOST_HEADS, place));
    out->kv_head_count = out->head_count;
    if (tsr_json_has(root, "num_key_value_heads"))
        TSR_TRY(tsr_model_config_size(&out->kv_head_count, root, "num_key_value_heads", MOST_HEADS,
                                      place));
    else if (!json_object_get(root, "num_key_value_heads") && out->arch->kv_head_count)
        out->kv_head_count = (uint64_t)out->arch->kv_head_count;
    if (out->head_count % out->kv_head_count)
        return tsr_fail(TSR_EDATA,
                        "%s: num_attention_heads %" PRIu64
                        " is not a multiple of num_key_value_heads "
                        "%" PRIu64,
                        place, out->head_count, out->kv_head_count);
    if (tsr_json_has(root, "head_dim")) {
        TSR_TRY(tsr_model_config_size(&out->head_dim, root, "head_dim", TSR_MODEL_MOST_HEAD_DIM,
                                      place));
    } else if (out->arch->head_dim) {
        out->head_dim = (uint64_t)out->arch->head_dim;
    } else {
        if (out->hidden_size % out->head_count)
            return tsr_fail(TSR_EDATA,
                            "%s: hidden_size %" PRIu64 " is not a multiple of num_attention_heads "
                            "%" PRIu64 ", and there is no head_dim",
                            place, out->hidden_size, out->head_count);
        out->head_dim = out->hidden_size / out->head_count;
    }
    if (out->head_dim % 2 || out->head_dim > TSR_MODEL_MOST_HEAD_DIM)
        return tsr_fail(TSR_EDATA,
                        "%s: head_dim is %" PRIu64 ", expected an even number up to %d (RoPE turns "
                        "pairs)",
                        place, out->head_dim, TSR_MODEL_MOST_HEAD_DIM);
    return TSR_OK;
}

static tsr_status read_sizes(tsr_model_config *out, const json_t *root, const char *place)
{
    out->max_position_embeddings = (uint64_t)out->arch->max_position;
    out->rms_norm_eps = out->arch->eps;
    TSR_TRY(tsr_model_config_size(&out->vocab_size, root, "vocab_size", MOST_VOCABULARY, place));
    TSR_TRY(tsr_model_config_size(&out->hidden_size, root, "hidden_size", MOST_HIDDEN, place));
    if (!out->arch->experts_alone || tsr_json_has(root, "intermediate_size"))
        TSR_TRY(tsr_model_config_size(&out->intermediate_size, root, "intermediate_size",
                                      MOST_INTERMEDIATE, place));
    TSR_TRY(tsr_model_config_size(&out->layer_count, root, "num_hidden_layers",
                                  TSR_MODEL_MOST_LAYERS, place));
    TSR_TRY(read_heads(out, root, place));
    if (tsr_json_has(root, "max_position_embeddings"))
        TSR_TRY(tsr_model_config_size(&out->max_position_embeddings, root,
                                      "max_position_embeddings", INT32_MAX, place));
    if (tsr_json_has(root, "rms_norm_eps"))
        TSR_TRY(tsr_json_number(&out->rms_norm_eps, root, "rms_norm_eps", 1e-12, 0.1, place));
    return TSR_OK;
}

tsr_status tsr_model_config_flag(bool *out, const json_t *root, const char *key, const char *place)
{
    return tsr_json_has(root, key) ? tsr_json_bool(out, root, key, place) : TSR_OK;
}

static tsr_status read_activation(tsr_model_config *out, const json_t *root, const char *place)
{
    /* gpt-oss clamps whatever it says. */
    static const char *const names[] = {
        [TSR_SILU] = "silu", [TSR_GELU_TANH] = "gelu_pytorch_tanh", [TSR_SILU_CLAMPED] = "silu"};
    static const char *const keys[] = {"hidden_act", "hidden_activation"};
    out->activation = out->arch->activation;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *found;
        if (!tsr_json_has(root, keys[i]))
            continue;
        TSR_TRY(tsr_json_string(&found, root, keys[i], place));
        if (strcmp(found, names[out->activation]))
            return tsr_fail(TSR_EDATA, "%s: %s '%s' is not supported for %s, only %s", place,
                            keys[i], found, out->arch->model_type, names[out->activation]);
    }
    return TSR_OK;
}

tsr_status tsr_model_config_attention_bias(tsr_model_config *out, const json_t *root,
                                           const char *place)
{
    bool bias = false;
    TSR_TRY(tsr_model_config_flag(&bias, root, "attention_bias", place));
    out->q_bias = out->k_bias = out->v_bias = out->o_bias = bias;
    return TSR_OK;
}

/* ---- windows ---- */

tsr_status tsr_model_config_sliding_window(uint64_t *out, const json_t *root, uint64_t missing,
                                           const char *place)
{
    *out = json_object_get(root, "sliding_window") ? 0 : missing;
    return tsr_json_has(root, "sliding_window")
               ? tsr_model_config_size(out, root, "sliding_window", INT32_MAX, place)
               : TSR_OK;
}

tsr_status tsr_model_config_slide(tsr_model_config *out, const json_t *root, uint64_t missing,
                                  uint64_t every, const char *place)
{
    TSR_TRY(tsr_model_config_sliding_window(&out->sliding_window, root, missing, place));
    for (uint64_t i = 0; i < out->layer_count; i++)
        if (every ? (i + 1) % every : out->sliding_window)
            tsr_layer_put_in(&out->sliding, i);
    return TSR_OK;
}

tsr_status tsr_model_config_layer_types(tsr_model_config *out, const json_t *root,
                                        const char *place)
{
    json_t *types;
    if (!tsr_json_has(root, "layer_types"))
        return TSR_OK;
    out->sliding = (tsr_layer_set){0};
    TSR_TRY(tsr_json_array(&types, root, "layer_types", place));
    if (json_array_size(types) != out->layer_count)
        return tsr_fail(TSR_EDATA,
                        "%s: layer_types has %zu entries, expected one for each of %" PRIu64
                        " layers",
                        place, json_array_size(types), out->layer_count);
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *type = json_string_value(json_array_get(types, i));
        char found[TSR_JSON_SHOW_BYTES];
        if (type && !strcmp(type, "sliding_attention"))
            tsr_layer_put_in(&out->sliding, i);
        else if (!type || strcmp(type, "full_attention"))
            return tsr_fail(
                TSR_EDATA, "%s: layer_types holds %s, expected full_attention or sliding_attention",
                place, tsr_json_show(found, json_array_get(types, i)));
    }
    return TSR_OK;
}

tsr_status tsr_model_config_qwen_window(tsr_model_config *out, const json_t *root,
                                        const char *place)
{
    bool slides = false, any = false;
    int64_t from = 28; /* Qwen2Config's and Qwen3Config's max_window_layers */
    TSR_TRY(tsr_model_config_sliding_window(&out->sliding_window, root, 4096, place));
    TSR_TRY(tsr_model_config_flag(&slides, root, "use_sliding_window", place));
    slides = slides && out->sliding_window;
    if (tsr_json_has(root, "max_window_layers"))
        TSR_TRY(tsr_json_int(&from, root, "max_window_layers", 0, TSR_MODEL_MOST_LAYERS, place));
    TSR_TRY(tsr_model_config_layer_types(out, root, place));
    for (uint64_t i = 0; i < out->layer_count; i++) {
        if (!tsr_json_has(root, "layer_types") && slides && i >= (uint64_t)from)
            tsr_layer_put_in(&out->sliding, i);
        any |= tsr_layer_is_in(&out->sliding, i);
    }
    if (any && !slides)
        return tsr_fail(TSR_EDATA,
                        "%s: layer_types has sliding_attention, but use_sliding_window is false or "
                        "sliding_window is null",
                        place);
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
    TSR_TRY(read_token(&out->bos_token_id, root, "bos_token_id", out->arch->bos, place));
    TSR_TRY(read_token(&out->pad_token_id, root, "pad_token_id", -1, place));
    if (!json_is_array(eos)) {
        TSR_TRY(read_token(&out->eos_token_id[0], root, "eos_token_id", out->arch->eos, place));
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
    TSR_TRY(read_arch(out, root, place));
    TSR_TRY(tsr_model_config_check_keys(root, out->arch, place));
    TSR_TRY(read_sizes(out, root, place));
    TSR_TRY(read_activation(out, root, place));
    out->tie_word_embeddings = out->arch->tied;
    TSR_TRY(tsr_model_config_flag(&out->tie_word_embeddings, root, "tie_word_embeddings", place));
    out->initializer_range = 0.02;
    if (tsr_json_has(root, "initializer_range"))
        TSR_TRY(tsr_json_number(&out->initializer_range, root, "initializer_range", 0, 1, place));
    TSR_TRY(tsr_model_config_rope(out, root, place));
    TSR_TRY(read_dtype(&out->dtype, root, place));
    TSR_TRY(read_tokens(out, root, place));
    TSR_TRY(out->arch->read(out, root, place));
    return tsr_model_config_quantization(out, root, place);
}

/* The model, or the text decoder of one. */
static tsr_status read_decoder(tsr_model_config *out, const json_t *root, const char *place)
{
    json_auto_t *text = NULL;
    bool nested = false;
    TSR_AUTO_FREE char *where = NULL;
    TSR_TRY(tsr_composite_read(&out->composite, &text, &nested, root, place));
    if (!text)
        return read_all(out, root, place);
    if (asprintf(&where, "%s%s", place, nested ? ": text_config" : "") < 0)
        where = NULL;
    return where ? read_all(out, text, where)
                 : tsr_fail(TSR_ENOMEM, "%s: no memory to read it", place);
}

tsr_status tsr_model_config_parse(tsr_model_config *out, const char *text, uint64_t bytes,
                                  const char *place)
{
    json_t *root;
    tsr_model_config config = {0};
    TSR_TRY(tsr_json_parse(&root, text, bytes, place));
    tsr_status status = json_is_object(root)
                            ? read_decoder(&config, root, place)
                            : tsr_fail(TSR_EDATA, "%s: the file holds %s, expected an object {...}",
                                       place, tsr_json_kind(root));
    json_decref(root);
    if (status == TSR_OK)
        *out = config;
    return status;
}

tsr_status tsr_model_config_load(tsr_model_config *out, const char *directory)
{
    TSR_AUTO_FREE char *path = NULL, *text = NULL;
    uint64_t bytes;
    if (asprintf(&path, "%s/config.json", directory) < 0)
        return tsr_fail(TSR_ENOMEM, "%s: no memory to read config.json", directory);
    TSR_TRY(tsr_file_read(&text, &bytes, path, MOST_CONFIG_BYTES));
    return tsr_model_config_parse(out, text, bytes, path);
}
