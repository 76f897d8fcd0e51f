#include "model/arch/composite.h"

#include "model/arch/config_parts.h"

#include <string.h>

/* Every class's. */
static const char *const common_keys[] = {"text_config", "vision_config", "audio_config",
                                          "image_token_id", NULL};

static const char *const llava_towers[] = {"vision_tower", "multi_modal_projector", NULL};
static const char *const qwen_towers[] = {"visual", NULL};
static const char *const qwen3_5_towers[] = {"visual", "mtp", NULL};

static const char *const gemma3_text[] = {"gemma3_text", NULL};
static const char *const gemma3_keys[] = {"mm_tokens_per_image",
                                          "boi_token_index",
                                          "eoi_token_index",
                                          "image_token_index",
                                          "boi_token_id",
                                          "eoi_token_id",
                                          NULL};

static const char *const gemma4_text[] = {"gemma4_text", NULL};
static const char *const gemma4_towers[] = {"vision_tower", "embed_vision", "audio_tower",
                                            "embed_audio", NULL};
static const char *const gemma4_keys[] = {
    "boi_token_id", "eoi_token_id",    "video_token_id", "boa_token_id",
    "eoa_token_id", "eoa_token_index", "audio_token_id", NULL};

static const char *const mistral3_text[] = {"mistral", "ministral3", NULL};
static const char *const mistral3_keys[] = {"image_token_index",         "projector_hidden_act",
                                            "vision_feature_layer",      "spatial_merge_size",
                                            "multimodal_projector_bias", NULL};

static const char *const qwen2_5_vl_text[] = {"qwen2_5_vl_text", NULL};
static const char *const qwen3_5_text[] = {"qwen3_5_text", NULL};
static const char *const qwen3_5_moe_text[] = {"qwen3_5_moe_text", NULL};
static const char *const qwen3_vl_text[] = {"qwen3_vl_text", NULL};
static const char *const qwen_keys[] = {"video_token_id", "vision_start_token_id",
                                        "vision_end_token_id", "vision_token_id", NULL};

static const tsr_composite classes[] = {
    {.model_type = "gemma3",
     .architecture = "Gemma3ForConditionalGeneration",
     .models = "Gemma 3 4B, 12B and 27B",
     .text = gemma3_text,
     .towers = llava_towers,
     .keys = gemma3_keys,
     /* Gemma3TextConfig's: the published files leave out what is as in it. */
     .defaults = "{\"vocab_size\": 262208, \"hidden_size\": 2304, \"intermediate_size\": 9216, "
                 "\"num_hidden_layers\": 26, \"num_attention_heads\": 8}"},
    {.model_type = "gemma4",
     .architecture = "Gemma4ForConditionalGeneration",
     .models = "Gemma 4",
     .text = gemma4_text,
     .towers = gemma4_towers,
     .keys = gemma4_keys},
    {.model_type = "mistral3",
     .architecture = "Mistral3ForConditionalGeneration",
     .models = "Mistral Small 3.1 and 3.2, Ministral 3",
     .text = mistral3_text,
     .towers = llava_towers,
     .keys = mistral3_keys},
    {.model_type = "qwen2_5_vl",
     .architecture = "Qwen2_5_VLForConditionalGeneration",
     .models = "Qwen 2.5 VL",
     .text = qwen2_5_vl_text,
     .towers = qwen_towers,
     .keys = qwen_keys,
     .defaults = "{\"max_window_layers\": 80}", /* Qwen2_5_VLTextConfig's */
     .flat = true,
     .text_ties = true},
    {.model_type = "qwen3_5",
     .architecture = "Qwen3_5ForConditionalGeneration",
     .models = "Qwen 3.5, dense",
     .text = qwen3_5_text,
     .towers = qwen3_5_towers,
     .keys = qwen_keys},
    {.model_type = "qwen3_5_moe",
     .architecture = "Qwen3_5MoeForConditionalGeneration",
     .models = "Qwen 3.5, experts",
     .text = qwen3_5_moe_text,
     .towers = qwen3_5_towers,
     .keys = qwen_keys},
    {.model_type = "qwen3_vl",
     .architecture = "Qwen3VLForConditionalGeneration",
     .models = "Qwen 3 VL, dense",
     .text = qwen3_vl_text,
     .towers = qwen_towers,
     .keys = qwen_keys},
};
enum { CLASSES = sizeof classes / sizeof *classes };

const tsr_composite *tsr_composite_at(int index)
{
    return index < CLASSES ? &classes[index] : NULL;
}

/* ---- config.json ---- */

static void drop(json_t *from, const char *const *keys)
{
    for (; *keys; keys++)
        json_object_del(from, *keys);
}

/* The family's name, of those that the class has. */
static tsr_status find_text(const char **out, const tsr_composite *composite, const json_t *text,
                            const char *place)
{
    tsr_text names = {0};
    *out = composite->text[0];
    if (!tsr_json_has(text, "model_type"))
        return TSR_OK;
    TSR_TRY(tsr_json_string(out, text, "model_type", place));
    for (int i = 0; composite->text[i]; i++) {
        if (!strcmp(*out, composite->text[i])) {
            *out = composite->text[i];
            tsr_text_free(&names);
            return TSR_OK;
        }
        tsr_text_printf(&names, "%s%s", i ? " or " : "", composite->text[i]);
    }
    tsr_status status =
        tsr_fail(TSR_EDATA, "%s: text_config: model_type '%s' is not supported in %s, expected %s",
                 place, *out, composite->model_type, tsr_text_string(&names));
    tsr_text_free(&names);
    return status;
}

/* Puts in what the whole model says; 0: no memory was lacking. */
static int take_outer(json_t *text, const json_t *root, const tsr_composite *composite)
{
    static const char *const keys[] = {"bos_token_id",
                                       "eos_token_id",
                                       "pad_token_id",
                                       "dtype",
                                       "torch_dtype",
                                       "quantization_config",
                                       NULL};
    static const char tie[] = "tie_word_embeddings";
    int failed = 0;
    if (tsr_json_has(root, "dtype") || tsr_json_has(root, "torch_dtype"))
        drop(text, (const char *const[]){"dtype", "torch_dtype", NULL});
    for (int i = 0; keys[i]; i++)
        if (tsr_json_has(root, keys[i]))
            failed |= json_object_set(text, keys[i], json_object_get(root, keys[i]));
    if (tsr_json_has(root, tie) &&
        !(composite->text_ties && json_is_true(json_object_get(text, tie))))
        failed |= json_object_set(text, tie, json_object_get(root, tie));
    return failed;
}

static tsr_status no_memory(const char *place)
{
    return tsr_fail(TSR_ENOMEM, "%s: no memory to read it", place);
}

/* *text is a copy of the decoder's keys; what else stands in it goes. */
static tsr_status take_text(json_t *text, const tsr_composite *composite, const json_t *root,
                            const char *place)
{
    const tsr_arch *arch;
    const char *type;
    json_error_t error;
    TSR_TRY(find_text(&type, composite, text, place));
    TSR_TRY(tsr_arch_find(&arch, type, place));
    json_t *outer = json_copy((json_t *)root);
    json_t *missing =
        composite->defaults ? json_loads(composite->defaults, 0, &error) : json_object();
    int failed = !outer || !missing;
    if (!failed) {
        drop(text, (const char *const[]){"architectures", NULL});
        drop(text, common_keys);
        drop(text, composite->keys);
        drop(outer, common_keys);
        drop(outer, composite->keys);
        failed |= json_object_set_new(text, "model_type", json_string(type));
        failed |= json_object_update_missing(text, missing);
        failed |= take_outer(text, root, composite);
    }
    tsr_status status = failed ? no_memory(place) : tsr_model_config_check_keys(outer, arch, place);
    json_decref(outer);
    json_decref(missing);
    return status;
}

tsr_status tsr_composite_read(const tsr_composite **out, json_t **text, bool *nested,
                              const json_t *root, const char *place)
{
    const char *type = json_string_value(json_object_get(root, "model_type"));
    const tsr_composite *found = NULL;
    for (int i = 0; i < CLASSES && type; i++)
        if (!strcmp(type, classes[i].model_type))
            found = &classes[i];
    *out = found;
    *text = NULL;
    if (!found)
        return TSR_OK;
    *nested = tsr_json_has(root, "text_config") || !found->flat;
    TSR_TRY(tsr_model_config_class(root, found->architecture, place));
    json_t *inner = (json_t *)root;
    if (*nested && !tsr_json_has(root, "text_config"))
        return tsr_fail(
            TSR_EDATA,
            "%s: text_config is missing, which holds the text decoder of model_type '%s'", place,
            found->model_type);
    if (*nested)
        TSR_TRY(tsr_json_object(&inner, root, "text_config", place));
    json_t *copy = json_copy(inner);
    if (!copy)
        return no_memory(place);
    if (!*nested)
        json_object_del(copy, "model_type"); /* the class's, not the decoder's */
    tsr_status status = take_text(copy, found, root, place);
    if (status < 0) {
        json_decref(copy);
        return status;
    }
    *text = copy;
    return TSR_OK;
}

/* ---- names ---- */

const char *tsr_composite_prefix(const tsr_composite *composite)
{
    return tsr_composite_spelling(composite, 0);
}

/* Before Transformers 4.52 a decoder was a whole model of its own, or the towers stood in the model. */
const char *tsr_composite_spelling(const tsr_composite *composite, int index)
{
    static const char *const spellings[] = {"model.language_model.", "language_model.model.",
                                            "model.", NULL};
    return spellings[composite ? index : index + 2];
}

bool tsr_composite_is_tower(const char **tower, const tsr_composite *composite, const char *tensor)
{
    static const char model[] = "model.";
    if (!composite)
        return false;
    if (!strncmp(tensor, model, sizeof model - 1))
        tensor += sizeof model - 1;
    for (int i = 0; composite->towers[i]; i++) {
        size_t length = strlen(composite->towers[i]);
        if (!strncmp(tensor, composite->towers[i], length) && tensor[length] == '.') {
            *tower = composite->towers[i];
            return true;
        }
    }
    return false;
}
