/* The config.json of a model that is written: its source's, with dtype, tie_word_embeddings and quantization_config. */
#include "io/json.h"
#include "io/model_write.h"

#include <stdio.h>
#include <stdlib.h>

static const char *dtype_word(tsr_dtype dtype)
{
    return dtype == TSR_BF16 ? "bfloat16" : dtype == TSR_F16 ? "float16" : "float32";
}

/* llm_int8_skip_modules. null leaves out the head, a list leaves out its entries alone: modules of Transformers 5,
 * and as older ones name them. */
static json_t *skipped(const char *const *modules)
{
    if (!modules || !*modules)
        return json_null();
    json_t *list = json_pack("[s]", "lm_head");
    for (; list && *modules; modules++)
        if (json_array_append_new(list, json_string(*modules)) ||
            json_array_append_new(list, json_sprintf("model.%s", *modules))) {
            json_decref(list);
            return NULL;
        }
    return list;
}

/* Field by field what Transformers writes for BitsAndBytesConfig. */
static json_t *quantization(const tsr_model_output *output)
{
    return json_pack(
        "{sb sb ss ss ss sb sb sb so sf sb sb ss}", "_load_in_4bit", 1, "_load_in_8bit", 0,
        "bnb_4bit_compute_dtype", dtype_word(output->compute_dtype), "bnb_4bit_quant_storage",
        "uint8", "bnb_4bit_quant_type", "nf4", "bnb_4bit_use_double_quant", output->double_quant,
        "llm_int8_enable_fp32_cpu_offload", 0, "llm_int8_has_fp16_weight", 0,
        "llm_int8_skip_modules", skipped(output->plain_modules), "llm_int8_threshold", 6.0,
        "load_in_4bit", 1, "load_in_8bit", 0, "quant_method", "bitsandbytes");
}

/* The older generation's name where the object has it; where it has both, both are read by some. 0: done. */
static int set_dtype(json_t *object, tsr_dtype dtype)
{
    const char *word = dtype_word(dtype);
    bool old = json_object_get(object, "torch_dtype"),
         both = old && json_object_get(object, "dtype");
    int failed = old ? json_object_set_new(object, "torch_dtype", json_string(word)) : 0;
    if (!old || both)
        failed |= json_object_set_new(object, "dtype", json_string(word));
    return failed;
}

tsr_status tsr_model_config_format(char **out, const tsr_model_output *output)
{
    char *path = NULL;
    json_auto_t *root = NULL;
    if (asprintf(&path, "%s/%s", output->source, TSR_MODEL_CONFIG_FILE) < 0)
        return tsr_fail(TSR_ENOMEM, "%s: no memory to read its config.json", output->source);
    tsr_status status = tsr_json_load_object(&root, path);
    free(path);
    TSR_TRY(status);
    json_t *text =
        json_object_get(root, "text_config"); /* of a composite model, which may repeat them */
    int failed = set_dtype(root, output->dtype);
    if (json_object_get(text, "dtype") || json_object_get(text, "torch_dtype"))
        failed |= set_dtype(text, output->dtype);
    if (output->untied)
        failed |= json_object_set_new(root, "tie_word_embeddings", json_false());
    if (output->untied && json_object_get(text, "tie_word_embeddings"))
        failed |= json_object_set_new(text, "tie_word_embeddings", json_false());
    if (!output->mxfp4) {
        json_object_del(text, "quantization_config");
        json_object_del(root, "quantization_config");
    }
    if (output->nf4)
        failed |= json_object_set_new(root, "quantization_config", quantization(output)) != 0;
    status = failed ? tsr_fail(TSR_ENOMEM, "no memory for a config.json")
                    : tsr_json_format(out, root, 2);
    return status;
}
