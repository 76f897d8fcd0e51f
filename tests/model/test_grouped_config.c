/*
 * What DeepSeek-V3 and GLM 4.5 are by the config.json of published models (examples/shapes): layers, heads, latents,
 * experts; defaults where a key is missing; and what is refused, by the key's name.
 */
#include "support/scratch.h"

#include "model/arch/arch.h"
#include "model/node.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

#define SHAPES TSR_SOURCE_DIR "/examples/shapes/"

static tsr_model_config load(const char *name)
{
    tsr_model_config config;
    if (tsr_model_config_load(&config, name) < 0)
        fail_msg("%s", tsr_last_error());
    return config;
}

/* The published file with one key at another value (as JSON), or without it (NULL). */
static tsr_status load_changed(tsr_model_config *out, const char *model, const char *key,
                               const char *value)
{
    char path[640];
    snprintf(path, sizeof path, "%s%s/config.json", SHAPES, model);
    json_t *root = json_load_file(path, 0, NULL);
    assert_non_null(root);
    if (value) {
        json_t *changed = json_loads(value, JSON_DECODE_ANY, NULL);
        assert_non_null(changed);
        json_object_set_new(root, key, changed);
    } else {
        json_object_del(root, key);
    }
    char *text = json_dumps(root, 0);
    assert_non_null(text);
    tsr_status status = tsr_model_config_parse(out, text, strlen(text), "config.json");
    free(text);
    json_decref(root);
    return status;
}

static const tsr_node *find(const tsr_block *block, const tsr_node_kind *kind)
{
    for (int i = 0; i < block->node_count; i++)
        if (block->node[i].kind == kind)
            return &block->node[i];
    return NULL;
}

static void test_deepseek(void **state)
{
    (void)state;
    tsr_model_config c = load(SHAPES "deepseek-v3");
    tsr_block block;
    assert_true(c.fp8 && !c.prequantized);
    assert_int_equal(c.dtype, TSR_BF16);
    assert_int_equal(c.head_dim, 192);
    assert_int_equal(c.experts.count, 256);
    assert_int_equal(c.experts.shared_width, 2048);
    assert_int_equal(c.experts.groups, 8);
    assert_int_equal(c.experts.chosen_groups, 4);
    assert_true(c.experts.normalise && c.experts.scale == 2.5);
    assert_true(!tsr_layer_is_in(&c.experts.sparse, 2) && tsr_layer_is_in(&c.experts.sparse, 3));
    /* 192^-0.5 m^2, m = 1 + 0.1 ln 40; on cosines and sines m(1) / m(1) */
    double m = 1 + 0.1 * log(40);
    assert_true(fabs(c.attention_scale - m * m / sqrt(192)) < 1e-12);
    assert_true(c.rope[0].attention_factor == 1 && c.rope[0].neighbours);
    assert_int_equal(c.rope[0].rotary_dim, 64);
    for (int layer = 2; layer < 4; layer++) {
        assert_int_equal(tsr_arch_block(&block, &c, layer), TSR_OK);
        const tsr_attention_spec *s = &find(&block, &tsr_node_attention)->spec.attention;
        assert_int_equal(s->head_dim, 192);
        assert_int_equal(s->v_dim, 128);
        assert_int_equal(s->kv_heads, 128);
        assert_true((find(&block, &tsr_node_route) != NULL) == (layer == 3));
        assert_int_equal(block.matrix_count, 8); /* 5 of attention, 3 of an MLP, shared or not */
    }
}

static void test_glm(void **state)
{
    (void)state;
    tsr_model_config c = load(SHAPES "glm-4.5-air");
    tsr_block block;
    assert_int_equal(c.rope[0].rotary_dim, 64);
    assert_true(c.q_bias && c.k_bias && c.v_bias && !c.o_bias && !c.rope[0].neighbours);
    assert_int_equal(c.head_norms, TSR_HEAD_NORMS_NONE);
    assert_int_equal(c.experts.groups, 1);
    assert_true(!tsr_layer_is_in(&c.experts.sparse, 0) && tsr_layer_is_in(&c.experts.sparse, 1));
    assert_int_equal(tsr_arch_block(&block, &c, 1), TSR_OK);
    assert_true(block.vector_count == 4); /* two norms, the router, its correction */
    assert_int_equal(load_changed(&c, "glm-4.5-air", "use_qk_norm", "true"), TSR_OK);
    assert_int_equal(c.head_norms, TSR_HEAD_NORMS_EACH);
}

/* Transformers' defaults. */
static void test_defaults(void **state)
{
    static const char *const keys[] = {"kv_lora_rank",
                                       "q_lora_rank",
                                       "v_head_dim",
                                       "qk_rope_head_dim",
                                       "qk_nope_head_dim",
                                       "n_group",
                                       "topk_group",
                                       "norm_topk_prob",
                                       "first_k_dense_replace",
                                       "routed_scaling_factor",
                                       "n_shared_experts",
                                       "attention_bias"};
    (void)state;
    tsr_model_config whole = load(SHAPES "deepseek-v3"), c;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        if (load_changed(&c, "deepseek-v3", keys[i], NULL) < 0)
            fail_msg("%s", tsr_last_error());
        if (memcmp(&c, &whole, sizeof c) != 0)
            fail_msg("%s: its default is another than the published value", keys[i]);
    }
    assert_int_equal(load_changed(&c, "deepseek-v3", "q_lora_rank", "null"), TSR_OK);
    assert_int_equal(c.q_lora_rank, 0);
    assert_int_equal(load_changed(&c, "deepseek-v3", "rope_interleave", "false"), TSR_OK);
    assert_false(c.rope[0].neighbours);
    assert_int_equal(load_changed(&c, "deepseek-v3", "first_k_dense_replace", "61"), TSR_OK);
    assert_int_equal(c.experts.count, 0);
    assert_int_equal(load_changed(&c, "deepseek-v3", "seq_aux", "true"), TSR_OK);
    assert_int_equal(load_changed(&c, "deepseek-v3", "rope_scaling", "null"), TSR_OK);
    assert_true(fabs(c.attention_scale - 1 / sqrt(192)) < 1e-12);
}

static void test_refused(void **state)
{
    static const struct {
        const char *model, *key, *value;
        const char *words[MOST_WORDS];
    } cases[] = {
        {"deepseek-v3", "scoring_func", "\"softmax\"", {"scoring_func", "softmax", "sigmoid"}},
        {"deepseek-v3", "topk_method", "\"greedy\"", {"topk_method", "greedy", "noaux_tc"}},
        {"deepseek-v3", "moe_layer_freq", "2", {"moe_layer_freq", "2"}},
        {"deepseek-v3", "n_group", "7", {"n_routed_experts", "256", "n_group", "7"}},
        {"deepseek-v3", "n_group", "256", {"n_group", "256", "two or more"}},
        {"deepseek-v3", "topk_group", "9", {"topk_group", "9", "n_group", "8"}},
        {"deepseek-v3", "num_experts_per_tok", "300", {"num_experts_per_tok", "300"}},
        {"deepseek-v3", "qk_rope_head_dim", "63", {"qk_rope_head_dim", "63", "even"}},
        {"deepseek-v3", "qk_nope_head_dim", "500", {"qk_nope_head_dim", "500", "512"}},
        {"deepseek-v3", "qk_head_dim", "128", {"qk_head_dim", "128", "192"}},
        {"deepseek-v3", "head_dim", "56", {"head_dim", "56", "64"}},
        {"deepseek-v3", "num_key_value_heads", "64", {"num_key_value_heads", "64", "128"}},
        {"deepseek-v3", "kv_lora_rank", "0", {"kv_lora_rank", "0"}},
        {"deepseek-v3", "sliding_window", "4096", {"sliding_window", "4096", "deepseek_v3"}},
        {"deepseek-v3",
         "quantization_config",
         "{\"quant_method\": \"fp8\"}",
         {"weight_block_size", "missing", "[128, 128]"}},
        {"deepseek-v3",
         "quantization_config",
         "{\"quant_method\": \"fp8\", \"weight_block_size\": [64, 128]}",
         {"weight_block_size", "[64,128]", "[128, 128]"}},
        {"deepseek-v3",
         "quantization_config",
         "{\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128], \"fmt\": \"e5m2\"}",
         {"fmt", "e5m2", "e4m3"}},
        {"deepseek-v3",
         "quantization_config",
         "{\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128], \"bits\": 4}",
         {"quantization_config", "bits", "not understood"}},
        {"deepseek-v3",
         "quantization_config",
         "{\"quant_method\": \"gptq\"}",
         {"quant_method", "gptq", "fp8"}},
        {"glm-4.5-air", "partial_rotary_factor", "0.51", {"partial_rotary_factor"}},
        {"glm-4.5-air", "n_routed_experts", "2000", {"n_routed_experts", "2000"}},
        {"glm-4.5-air", "scoring_func", "\"sigmoid\"", {"scoring_func", "not understood"}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsr_model_config c;
        char what[200];
        snprintf(what, sizeof what, "%s %s", cases[i].key, cases[i].value);
        check_error(what, load_changed(&c, cases[i].model, cases[i].key, cases[i].value), TSR_EDATA,
                    cases[i].words);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_deepseek),
        cmocka_unit_test(test_glm),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
