/*
 * config.json of models with other towers, as published and as Transformers 5 writes it.
 */
#include "model/arch/arch.h"
#include "model/layout.h"

#include "support/scratch.h"

#include <string.h>

#define VISION ",\"vision_config\":{\"hidden_size\":1152,\"model_type\":\"siglip_vision_model\"}}"

static tsr_model_config parsed(const char *text)
{
    tsr_model_config config;
    if (tsr_model_config_parse(&config, text, strlen(text), "config.json") < 0)
        fail_msg("%s", tsr_last_error());
    return config;
}

/* The published file of 4B leaves out what is as in Gemma3TextConfig; 27B says more. */
static void test_published_gemma(void **state)
{
    (void)state;
    tsr_model_config c;
    assert_int_equal(tsr_model_config_load(&c, TSR_SOURCE_DIR "/examples/shapes/gemma-3-4b"),
                     TSR_OK);
    assert_string_equal(c.composite->model_type, "gemma3");
    assert_string_equal(c.arch->model_type, "gemma3_text");
    assert_int_equal(c.vocab_size, 262208);
    assert_true(c.head_count == 8 && c.kv_head_count == 4 && c.head_dim == 256);
    assert_true(c.attention_scale == 1 / 16.0 && c.norm_plus_one && c.tie_word_embeddings);
    assert_true(c.rope[0].type == TSR_ROPE_LINEAR && c.rope[0].factor == 8);
    assert_true(c.rope[0].theta == 1e6 && c.rope[1].theta == 1e4);
    assert_int_equal(c.max_position_embeddings, 131072);
    assert_true(tsr_model_config_window(&c, 4) == 1024 && tsr_model_config_window(&c, 5) == 0);
    assert_int_equal(c.dtype, TSR_BF16);
    assert_true(c.bos_token_id == 2 && c.eos_count == 2 && c.eos_token_id[1] == 106);
    tsr_checkpoint *described;
    assert_int_equal(tsr_model_describe(&described, "gemma-3-4b", &c), TSR_OK);
    /* 34 layers of 94,382,592, 262,208 rows of 2,560, a norm; in bf16 */
    assert_int_equal(tsr_checkpoint_total_bytes(described), 2 * 3880263168ull);
    assert_non_null(
        tsr_checkpoint_find(described, "model.language_model.layers.33.mlp.up_proj.weight"));
    tsr_checkpoint_close(described);
    c = parsed("{\"architectures\":[\"Gemma3ForConditionalGeneration\"],\"model_type\":\"gemma3\","
               "\"boi_token_index\":255999,\"eos_token_id\":[1,106],\"text_config\":{"
               "\"head_dim\":128,\"hidden_size\":5376,\"intermediate_size\":21504,\"model_type\":"
               "\"gemma3_text\",\"num_attention_heads\":32,\"num_hidden_layers\":62,"
               "\"num_key_value_heads\":16,\"query_pre_attn_scalar\":168,\"rope_scaling\":{"
               "\"factor\":8.0,\"rope_type\":\"linear\"},\"sliding_window\":1024}" VISION);
    assert_true(c.head_count == 32 && c.kv_head_count == 16 && c.head_dim == 128);
    assert_true(c.layer_count == 62 && c.vocab_size == 262208);
}

static void test_published_mistral(void **state)
{
    (void)state;
    tsr_model_config c = parsed(
        "{\"architectures\":[\"Mistral3ForConditionalGeneration\"],\"image_token_index\":10,"
        "\"model_type\":\"mistral3\",\"multimodal_projector_bias\":false,"
        "\"projector_hidden_act\":\"gelu\",\"spatial_merge_size\":2,\"text_config\":{"
        "\"attention_dropout\":0.0,\"head_dim\":128,\"hidden_act\":\"silu\",\"hidden_size\":5120,"
        "\"initializer_range\":0.02,\"intermediate_size\":32768,\"max_position_embeddings\":"
        "131072,\"model_type\":\"mistral\",\"num_attention_heads\":32,\"num_hidden_layers\":40,"
        "\"num_key_value_heads\":8,\"rms_norm_eps\":1e-05,\"rope_theta\":1000000000.0,"
        "\"sliding_window\":null,\"use_cache\":true,\"vocab_size\":131072},\"torch_dtype\":"
        "\"bfloat16\",\"vision_feature_layer\":-1" VISION);
    assert_string_equal(c.arch->model_type, "mistral");
    assert_true(c.rope[0].theta == 1e9 && !c.tie_word_embeddings && c.head_dim == 128);
    assert_int_equal(tsr_model_config_window(&c, 0), 0);
    assert_int_equal(c.dtype, TSR_BF16);
}

#define QWEN2_5_VL_7B                                                                              \
    "\"hidden_act\":\"silu\",\"hidden_size\":3584,\"initializer_range\":0.02,"                     \
    "\"intermediate_size\":18944,\"max_position_embeddings\":128000,\"max_window_layers\":28,"     \
    "\"num_attention_heads\":28,\"num_hidden_layers\":28,\"num_key_value_heads\":4,"               \
    "\"rms_norm_eps\":1e-06,\"sliding_window\":32768,\"use_cache\":true,"                          \
    "\"use_sliding_window\":false,\"vocab_size\":152064,"

/* Flat as published, and as Transformers 5 writes it. */
static void test_published_qwen(void **state)
{
    (void)state;
    tsr_model_config flat = parsed(
        "{\"architectures\":[\"Qwen2_5_VLForConditionalGeneration\"],\"attention_dropout\":0.0,"
        "\"bos_token_id\":151643,\"eos_token_id\":151645,\"vision_start_token_id\":151652,"
        "\"vision_end_token_id\":151653,\"vision_token_id\":151654,\"image_token_id\":151655,"
        "\"video_token_id\":151656," QWEN2_5_VL_7B "\"model_type\":\"qwen2_5_vl\",\"rope_theta\":"
        "1000000.0,\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\",\"rope_scaling\":{"
        "\"type\":\"mrope\",\"mrope_section\":[16,24,24]}" VISION);
    tsr_model_config nested = parsed(
        "{\"architectures\":[\"Qwen2_5_VLForConditionalGeneration\"],\"dtype\":\"bfloat16\","
        "\"image_token_id\":151655,\"model_type\":\"qwen2_5_vl\",\"tie_word_embeddings\":false,"
        "\"text_config\":{" QWEN2_5_VL_7B "\"bos_token_id\":151643,\"eos_token_id\":151645,"
        "\"model_type\":\"qwen2_5_vl_text\",\"rope_parameters\":{\"mrope_section\":[16,24,24],"
        "\"rope_theta\":1000000.0,\"rope_type\":\"default\",\"type\":\"default\"}}" VISION);
    assert_memory_equal(&flat, &nested, sizeof flat);
    assert_true(flat.q_bias && flat.v_bias && !flat.o_bias && flat.rope[0].theta == 1e6);
    assert_int_equal(flat.rope[0].type, TSR_ROPE_DEFAULT);
    assert_int_equal(flat.head_dim, 128);
    tsr_model_config c = parsed(
        "{\"architectures\":[\"Qwen3VLForConditionalGeneration\"],\"image_token_id\":151655,"
        "\"model_type\":\"qwen3_vl\",\"text_config\":{\"attention_bias\":false,"
        "\"attention_dropout\":0.0,\"bos_token_id\":151643,\"dtype\":\"bfloat16\",\"eos_token_id\":"
        "151645,\"head_dim\":128,\"hidden_act\":\"silu\",\"hidden_size\":2560,"
        "\"intermediate_size\":9728,\"max_position_embeddings\":262144,\"model_type\":"
        "\"qwen3_vl_text\",\"num_attention_heads\":32,\"num_hidden_layers\":36,"
        "\"num_key_value_heads\":8,\"rms_norm_eps\":1e-06,\"rope_scaling\":{\"mrope_interleaved\":"
        "true,\"mrope_section\":[24,20,20],\"rope_type\":\"default\"},\"rope_theta\":5000000,"
        "\"tie_word_embeddings\":true,\"use_cache\":true,\"vocab_size\":151936},"
        "\"video_token_id\":151656,\"vision_end_token_id\":151653,\"vision_start_token_id\":"
        "151652" VISION);
    assert_true(c.head_norms == TSR_HEAD_NORMS_EACH && !c.q_bias && c.tie_word_embeddings);
    assert_true(c.rope[0].theta == 5e6 && c.dtype == TSR_BF16 && c.eos_token_id[0] == 151645);
}

/* Layers by their interval; a head of attention turns by a quarter; the towers are no part of it. */
static void test_published_qwen3_5(void **state)
{
    (void)state;
    tsr_model_config c;
    assert_int_equal(tsr_model_config_load(&c, TSR_SOURCE_DIR "/examples/shapes/qwen3.5-27b"),
                     TSR_OK);
    assert_string_equal(c.arch->model_type, "qwen3_5_text");
    assert_true(c.norm_plus_one && c.head_norms == TSR_HEAD_NORMS_EACH && !c.q_bias);
    assert_true(c.rope[0].theta == 1e7 && tsr_model_rotary_dim(&c, 0) == 64);
    assert_true(c.linear_key_heads == 16 && c.linear_value_heads == 48 && c.linear_taps == 4);
    assert_true(c.linear_key_dim == 128 && c.linear_value_dim == 128);
    for (uint64_t i = 0; i < c.layer_count; i++)
        assert_int_equal(tsr_layer_is_in(&c.linear, i), i % 4 != 3);
    tsr_checkpoint *described;
    assert_int_equal(tsr_model_describe(&described, "qwen3.5-27b", &c), TSR_OK);
    const tsr_tensor *taps =
        tsr_checkpoint_find(described, "model.language_model.layers.0.linear_attn.conv1d.weight");
    assert_non_null(taps);
    assert_true(taps->ndim == 3 && taps->shape[0] == 10240 && taps->shape[1] == 1 &&
                taps->shape[2] == 4);
    assert_non_null(
        tsr_checkpoint_find(described, "model.language_model.layers.2.linear_attn.A_log"));
    assert_null(tsr_checkpoint_find(described, "model.language_model.layers.3.linear_attn.A_log"));
    tsr_checkpoint_close(described);
}

/* What stands outside text_config and could be the decoder's is not passed over. */
static void test_odd_keys(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words[MOST_WORDS];
    } odd[] = {
        {"{\"model_type\":\"gemma3\",\"residual_multiplier\":2,\"text_config\":{}" VISION,
         {"config.json: key 'residual_multiplier'", "gemma3_text"}},
        {"{\"model_type\":\"gemma3\",\"text_config\":{\"residual_multiplier\":2}" VISION,
         {"config.json: text_config: key 'residual_multiplier'"}},
        {"{\"model_type\":\"gemma3\",\"text_config\":{\"hidden_size\":\"big\"}" VISION,
         {"config.json: text_config", "hidden_size", "big"}},
        {"{\"model_type\":\"gemma3\",\"architectures\":[\"Gemma3ForCausalLM\"],\"text_config\":{"
         "}" VISION,
         {"architectures", "Gemma3ForConditionalGeneration"}},
        {"{\"model_type\":\"gemma3\",\"text_config\":3" VISION, {"text_config", "3"}},
        {"{\"model_type\":\"qwen3_vl_text\"}", {"qwen3_vl_text", "of a text_config"}},
    };
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        tsr_model_config config;
        check_error(
            odd[i].text,
            tsr_model_config_parse(&config, odd[i].text, strlen(odd[i].text), "config.json"),
            TSR_EDATA, odd[i].words);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published_gemma), cmocka_unit_test(test_published_mistral),
        cmocka_unit_test(test_published_qwen), cmocka_unit_test(test_published_qwen3_5),
        cmocka_unit_test(test_odd_keys)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
