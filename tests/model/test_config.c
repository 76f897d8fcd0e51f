#include "io/file.h"
#include "model/arch/arch.h"
#include "model/layout.h"

#include "support/scratch.h"

#include <stdio.h>
#include <string.h>

#define TINY         TSR_SOURCE_DIR "/examples/tiny-llama"
#define PREQUANTIZED TSR_SOURCE_DIR "/tests/golden/prequantized-tiny-llama"

static void test_tiny_llama(void **state)
{
    (void)state;
    tsr_model_config c;
    assert_int_equal(tsr_model_config_load(&c, TINY), TSR_OK);
    assert_string_equal(c.arch->model_type, "llama");
    assert_int_equal(c.vocab_size, 4096);
    assert_int_equal(c.hidden_size, 256);
    assert_int_equal(c.intermediate_size, 704);
    assert_int_equal(c.layer_count, 6);
    assert_int_equal(c.head_count, 4);
    assert_int_equal(c.kv_head_count, 2);
    assert_int_equal(c.head_dim, 64);
    assert_int_equal(c.max_position_embeddings, 2048);
    assert_true(c.rms_norm_eps == 1e-5);
    assert_int_equal(c.rope[0].type, TSR_ROPE_DEFAULT);
    assert_true(c.rope[0].theta == 500000 && c.rope[0].factor == 1);
    assert_false(c.q_bias || c.k_bias || c.v_bias || c.o_bias || c.mlp_bias || c.head_norms);
    assert_false(c.tie_word_embeddings || c.prequantized);
    assert_int_equal(tsr_model_config_window(&c, c.layer_count - 1), 0);
    assert_int_equal(c.dtype, TSR_BF16);
    assert_int_equal(c.bos_token_id, 0);
    assert_int_equal(c.eos_count, 1);
    assert_int_equal(c.eos_token_id[0], 1);
    assert_int_equal(c.pad_token_id, 5);
    assert_int_equal(tsr_model_config_load(&c, PREQUANTIZED), TSR_OK);
    assert_true(c.prequantized && c.double_quant);
    assert_int_equal(c.layer_count, 2);
}

static tsr_status parse(tsr_model_config *out, const char *text)
{
    return tsr_model_config_parse(out, text, strlen(text), "config.json");
}

/* Llama 3.1 8B as published, in the older form. */
static void test_llama3(void **state)
{
    (void)state;
    tsr_model_config c;
    assert_int_equal(
        parse(
            &c,
            "{\"architectures\":[\"LlamaForCausalLM\"],\"attention_bias\":false,"
            "\"attention_dropout\":0.0,\"bos_token_id\":128000,"
            "\"eos_token_id\":[128001,128008,128009],\"hidden_act\":\"silu\",\"hidden_size\":4096,"
            "\"initializer_range\":0.02,\"intermediate_size\":14336,"
            "\"max_position_embeddings\":131072,\"mlp_bias\":false,\"model_type\":\"llama\","
            "\"num_attention_heads\":32,\"num_hidden_layers\":32,\"num_key_value_heads\":8,"
            "\"pretraining_tp\":1,\"rms_norm_eps\":1e-05,\"rope_scaling\":{\"factor\":8.0,"
            "\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
            "\"original_max_position_embeddings\":8192,\"rope_type\":\"llama3\"},"
            "\"rope_theta\":500000.0,\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\","
            "\"transformers_version\":\"4.43.0.dev0\",\"use_cache\":true,\"vocab_size\":128256}"),
        TSR_OK);
    assert_int_equal(c.rope[0].type, TSR_ROPE_LLAMA3);
    assert_true(c.rope[0].theta == 500000 && c.rope[0].factor == 8 &&
                c.rope[0].low_frequency_factor == 1 && c.rope[0].high_frequency_factor == 4);
    assert_int_equal(c.rope[0].original_max_positions, 8192);
    const char *key;
    assert_int_equal(tsr_model_positions(&key, &c), 131072); /* which 8 x 8192 does not reach */
    assert_int_equal(c.head_dim, 128);
    assert_int_equal(c.eos_count, 3);
    assert_int_equal(c.eos_token_id[2], 128009);
    assert_int_equal(c.pad_token_id, -1);
    assert_int_equal(c.dtype, TSR_BF16);
}

static void test_mistral(void **state)
{
    (void)state;
    static const char nemo[] =
        "{\"architectures\":[\"MistralForCausalLM\"],\"model_type\":\"mistral\",\"vocab_size\":"
        "131072,"
        "\"hidden_size\":5120,\"intermediate_size\":14336,\"num_hidden_layers\":40,"
        "\"num_attention_heads\":32,\"head_dim\":128,\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-5,"
        "\"rope_theta\":1000000.0,\"torch_dtype\":\"bfloat16\"%s}";
    char text[1024];
    tsr_model_config c;
    snprintf(text, sizeof text, nemo, ",\"sliding_window\":null,\"num_key_value_heads\":8");
    assert_int_equal(parse(&c, text), TSR_OK);
    assert_int_equal(c.head_dim, 128);
    assert_int_equal(tsr_model_config_window(&c, c.layer_count - 1), 0);
    assert_int_equal(c.bos_token_id, 1);
    snprintf(text, sizeof text, nemo, ",\"sliding_window\":4096");
    assert_int_equal(parse(&c, text), TSR_OK);
    assert_int_equal(tsr_model_config_window(&c, 0), 4096);
    assert_int_equal(c.kv_head_count, 8); /* Transformers' default for mistral */
    snprintf(text, sizeof text, nemo, ",\"attention_bias\":false");
    assert_int_equal(parse(&c, text), TSR_OK);
    assert_int_equal(tsr_model_config_window(&c, 0), 4096); /* missing: the class's default */
}

#define QWEN2                                                                                      \
    "{\"architectures\":[\"Qwen2ForCausalLM\"],\"model_type\":\"qwen2\",\"vocab_size\":151936,"    \
    "\"hidden_size\":896,\"intermediate_size\":4864,\"num_hidden_layers\":24,"                     \
    "\"num_attention_heads\":14,\"num_key_value_heads\":2,\"hidden_act\":\"silu\","                \
    "\"rms_norm_eps\":1e-6,\"tie_word_embeddings\":true,\"attention_dropout\":0.0,"                \
    "\"use_mrope\":false,\"bos_token_id\":151643,\"eos_token_id\":151645"

static void test_qwen2(void **state)
{
    (void)state;
    tsr_model_config c;
    assert_int_equal(parse(&c, QWEN2 ",\"max_window_layers\":21,\"sliding_window\":32768,"
                                     "\"use_sliding_window\":false,\"rope_theta\":1000000.0}"),
                     TSR_OK);
    assert_true(c.q_bias && c.k_bias && c.v_bias && !c.o_bias && !c.head_norms);
    assert_true(c.tie_word_embeddings);
    assert_int_equal(c.head_dim, 64);
    assert_int_equal(tsr_model_config_window(&c, c.layer_count - 1), 0);
    assert_true(c.rope[0].theta == 1e6);
    assert_int_equal(c.dtype, TSR_F32);
    assert_int_equal(parse(&c, QWEN2 ",\"max_window_layers\":24,\"sliding_window\":32768,"
                                     "\"use_sliding_window\":true}"),
                     TSR_OK);
    assert_int_equal(tsr_model_config_window(&c, c.layer_count - 1),
                     0); /* no layer is at or after 24 */
    assert_int_equal(parse(&c, QWEN2 ",\"max_window_layers\":0,\"sliding_window\":512,"
                                     "\"use_sliding_window\":true}"),
                     TSR_OK);
    assert_int_equal(tsr_model_config_window(&c, 0), 512);
}

static void test_qwen3(void **state)
{
    (void)state;
    tsr_model_config c;
    assert_int_equal(
        parse(&c, "{\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\","
                  "\"vocab_size\":151936,\"hidden_size\":1024,\"intermediate_size\":3072,"
                  "\"num_hidden_layers\":2,\"num_attention_heads\":16,\"num_key_value_heads\":8,"
                  "\"head_dim\":128,\"attention_bias\":false,\"hidden_act\":\"silu\","
                  "\"rms_norm_eps\":1e-6,\"tie_word_embeddings\":true,\"dtype\":\"bfloat16\","
                  "\"layer_types\":[\"full_attention\",\"full_attention\"],"
                  "\"max_window_layers\":28,\"sliding_window\":null,\"use_sliding_window\":false,"
                  "\"rope_parameters\":{\"rope_theta\":1000000,\"rope_type\":\"linear\","
                  "\"factor\":2}}"),
        TSR_OK);
    assert_true(c.head_norms && !c.q_bias && !c.o_bias);
    assert_int_equal(c.head_dim, 128);
    assert_int_equal(c.rope[0].type, TSR_ROPE_LINEAR);
    assert_true(c.rope[0].factor == 2 && c.rope[0].theta == 1e6);
    assert_int_equal(c.bos_token_id, -1);
    assert_int_equal(c.eos_count, 0);
}

/* A right llama config, to which a case adds or in which it replaces (json later than the rest). */
#define SIZES                                                                                      \
    "\"vocab_size\":100,\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":2,"
#define LLAMA_WITH(more)                                                                           \
    "{\"model_type\":\"llama\"," SIZES "\"num_attention_heads\":4,\"num_key_value_heads\":2" more  \
    "}"

#define QWEN3_5_WITH(more)                                                                         \
    "{\"model_type\":\"qwen3_5_text\"," SIZES "\"num_attention_heads\":4" more "}"
#define QWEN3_5_MOE_WITH(more)                                                                     \
    "{\"model_type\":\"qwen3_5_moe_text\",\"vocab_size\":100,\"hidden_size\":64,"                  \
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_experts\":8" more "}"

static const struct {
    const char *what, *text;
    const char *const words[MOST_WORDS];
} broken[] = {
    {"not JSON", "{\"model_type\":", {"config.json", "line 1"}},
    {"a list", "[]", {"config.json", "a list"}},
    {"no model_type", "{}", {"'model_type'", "missing"}},
    {"other model", "{\"model_type\":\"gpt2\"}", {"model_type", "'gpt2'", "qwen3", "qwen3_vl"}},
    {"llama4",
     "{\"model_type\":\"llama4\",\"text_config\":{\"model_type\":\"llama4_text\"}}",
     {"model_type", "'llama4'", "chunked attention"}},
    {"other head",
     "{\"model_type\":\"llama\",\"architectures\":[\"LlamaForSequenceClassification\"]}",
     {"architectures", "LlamaForSequenceClassification", "LlamaForCausalLM"}},
    {"size missing", "{\"model_type\":\"llama\"}", {"'vocab_size'", "missing"}},
    {"zero layers",
     "{\"model_type\":\"llama\",\"vocab_size\":100,\"hidden_size\":64,\"intermediate_size\":96,"
     "\"num_hidden_layers\":0,\"num_attention_heads\":4}",
     {"'num_hidden_layers'", "0", "from 1"}},
    {"huge vocabulary",
     "{\"model_type\":\"llama\",\"vocab_size\":4611686018427387904}",
     {"'vocab_size'", "4611686018427387904", "4194304"}},
    {"size as text",
     "{\"model_type\":\"llama\",\"vocab_size\":\"100\"}",
     {"'vocab_size'", "\"100\"", "integer"}},
    {"heads and kv heads",
     "{\"model_type\":\"llama\"," SIZES "\"num_attention_heads\":4,\"num_key_value_heads\":3}",
     {"num_attention_heads 4", "num_key_value_heads 3"}},
    {"heads and hidden",
     "{\"model_type\":\"llama\"," SIZES "\"num_attention_heads\":5,\"num_key_value_heads\":5}",
     {"hidden_size 64", "num_attention_heads 5", "head_dim"}},
    {"odd head_dim", LLAMA_WITH(",\"head_dim\":15"), {"head_dim", "15", "even"}},
    {"wide head_dim", LLAMA_WITH(",\"head_dim\":1024"), {"head_dim", "1024", "512"}},
    {"activation", LLAMA_WITH(",\"hidden_act\":\"gelu\""), {"hidden_act", "'gelu'", "silu"}},
    {"epsilon", LLAMA_WITH(",\"rms_norm_eps\":-1"), {"'rms_norm_eps'", "-1"}},
    {"attention dropout",
     LLAMA_WITH(",\"attention_dropout\":0.1"),
     {"'attention_dropout'", "0.1", "0"}},
    {"pretraining_tp", LLAMA_WITH(",\"pretraining_tp\":2"), {"'pretraining_tp'", "2", "1"}},
    {"sliding window of llama",
     LLAMA_WITH(",\"sliding_window\":128"),
     {"'sliding_window'", "128", "llama"}},
    {"unknown key",
     LLAMA_WITH(",\"logit_softcap\":30.0"),
     {"'logit_softcap'", "30.0", "not understood"}},
    {"experts", LLAMA_WITH(",\"num_local_experts\":8"), {"'num_local_experts'", "8"}},
    {"remote code", LLAMA_WITH(",\"auto_map\":{\"AutoConfig\":\"x.Y\"}"), {"'auto_map'", "x.Y"}},
    {"bias as number",
     LLAMA_WITH(",\"attention_bias\":1"),
     {"'attention_bias'", "1", "true or false"}},
    {"dtype", LLAMA_WITH(",\"torch_dtype\":\"float8_e4m3fn\""), {"torch_dtype", "'float8_e4m3fn'"}},
    {"unknown rope",
     LLAMA_WITH(",\"rope_scaling\":{\"type\":\"spiral\",\"factor\":2}"),
     {"rope_scaling", "'spiral'", "llama3"}},
    {"dynamic without factor",
     LLAMA_WITH(",\"rope_scaling\":{\"type\":\"dynamic\"}"),
     {"rope_scaling", "factor", "missing"}},
    {"mrope of plain text",
     LLAMA_WITH(",\"rope_scaling\":{\"type\":\"default\",\"mrope_section\":[2,3,3]}"),
     {"rope_scaling", "mrope_section"}},
    {"yarn",
     LLAMA_WITH(",\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":2,\"beta_fast\":0.5}"),
     {"rope_parameters", "beta_fast 0.5", "beta_slow 1"}},
    {"yarn without a spread",
     LLAMA_WITH(",\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":2,\"rope_theta\":1}"),
     {"rope_parameters", "rope_theta is 1", "above 1"}},
    {"longrope",
     LLAMA_WITH(",\"rope_scaling\":{\"rope_type\":\"longrope\"}"),
     {"rope_scaling", "'longrope'"}},
    {"two types",
     LLAMA_WITH(",\"rope_scaling\":{\"rope_type\":\"linear\",\"type\":\"llama3\"}"),
     {"'linear'", "'llama3'"}},
    {"linear without factor",
     LLAMA_WITH(",\"rope_scaling\":{\"type\":\"linear\"}"),
     {"rope_scaling", "'factor'", "missing"}},
    {"llama3 without low",
     LLAMA_WITH(",\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8}"),
     {"'low_freq_factor'", "missing"}},
    {"llama3 low above high",
     LLAMA_WITH(",\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,"
                "\"high_freq_factor\":1,\"original_max_position_embeddings\":10}"),
     {"high_freq_factor 1", "low_freq_factor 4"}},
    {"rope key",
     LLAMA_WITH(",\"rope_parameters\":{\"rope_type\":\"default\",\"mscale\":2}"),
     {"rope_parameters", "'mscale'", "2"}},
    {"rope per layer type",
     LLAMA_WITH(",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"}}"),
     {"rope_parameters", "'full_attention'"}},
    {"partial rotary",
     LLAMA_WITH(",\"partial_rotary_factor\":0.5"),
     {"'partial_rotary_factor'", "0.5"}},
    {"two thetas",
     LLAMA_WITH(",\"rope_theta\":10000,\"rope_parameters\":{\"rope_theta\":500000}"),
     {"rope_theta", "10000", "500000"}},
    {"scaling and parameters differ",
     LLAMA_WITH(",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2},\"rope_parameters\":{\"rope_"
                "theta\":1e4}"),
     {"rope_parameters", "rope_scaling", "differ"}},
    {"gptq",
     LLAMA_WITH(",\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4}"),
     {"quant_method", "'gptq'", "nf4"}},
    {"8 bit, with a key of its own",
     LLAMA_WITH(",\"quantization_config\":{\"quant_method\":\"bitsandbytes\",\"load_in_8bit\":true,"
                "\"int8_extra\":1}"),
     {"quantization_config", "int8_extra"}},
    {"fp4",
     LLAMA_WITH(",\"quantization_config\":{\"load_in_4bit\":true,\"bnb_4bit_quant_type\":\"fp4\"}"),
     {"bnb_4bit_quant_type", "'fp4'", "nf4"}},
    {"fp4 by default",
     LLAMA_WITH(",\"quantization_config\":{\"load_in_4bit\":true}"),
     {"bnb_4bit_quant_type", "'fp4'"}},
    {"quantization key",
     LLAMA_WITH(",\"quantization_config\":{\"load_in_4bit\":true,\"bnb_4bit_quant_type\":\"nf4\","
                "\"group\":8}"),
     {"quantization_config", "'group'", "8"}},
    {"eos as text", LLAMA_WITH(",\"eos_token_id\":[\"x\"]"), {"eos_token_id", "\"x\""}},
    {"duplicate key", LLAMA_WITH(",\"vocab_size\":5"), {"duplicate", "vocab_size"}},
    {"qwen2 layer_types length",
     QWEN2 ",\"layer_types\":[\"full_attention\"]}",
     {"layer_types", "1 entries", "24"}},
    {"qwen3.5 layer_types length",
     QWEN3_5_WITH(",\"layer_types\":[\"linear_attention\"]"),
     {"layer_types", "1 entries", "2 layers"}},
    {"qwen3.5 layer type",
     QWEN3_5_WITH(",\"layer_types\":[\"linear_attention\",\"sliding_attention\"]"),
     {"layer_types", "\"sliding_attention\"", "full_attention or linear_attention"}},
    {"qwen3.5 value heads",
     QWEN3_5_WITH(",\"linear_num_value_heads\":24"),
     {"linear_num_value_heads 24", "linear_num_key_heads 16"}},
    {"qwen3.5 taps",
     QWEN3_5_WITH(",\"linear_conv_kernel_dim\":9"),
     {"'linear_conv_kernel_dim'", "9", "8"}},
    {"qwen3.5 wide heads",
     QWEN3_5_WITH(",\"linear_key_head_dim\":512"),
     {"'linear_key_head_dim'", "512", "128"}},
    {"qwen3.5 interval",
     QWEN3_5_WITH(",\"full_attention_interval\":0"),
     {"'full_attention_interval'", "0", "from 1"}},
    {"qwen3.5 without a gate",
     QWEN3_5_WITH(",\"attn_output_gate\":false"),
     {"attn_output_gate", "false", "true"}},
    {"qwen3.5 other gate",
     QWEN3_5_WITH(",\"output_gate_type\":\"sigmoid\""),
     {"output_gate_type", "'sigmoid'", "swish"}},
    {"qwen3.5 without experts' width",
     QWEN3_5_MOE_WITH(",\"num_experts_per_tok\":2,\"moe_intermediate_size\":16"),
     {"'shared_expert_intermediate_size'", "missing"}},
    {"qwen3.5 more than all experts",
     QWEN3_5_MOE_WITH(",\"num_experts_per_tok\":9,\"moe_intermediate_size\":16"),
     {"num_experts_per_tok is 9", "num_experts is 8"}},
    {"qwen3.5 window",
     QWEN3_5_WITH(",\"sliding_window\":64"),
     {"'sliding_window'", "64", "qwen3_5_text"}},
    {"qwen2 attention_bias",
     QWEN2 ",\"attention_bias\":true}",
     {"'attention_bias'", "true", "qwen2"}},
};

static void test_broken(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        tsr_model_config c = {.vocab_size = 77};
        check_error(broken[i].what, parse(&c, broken[i].text), TSR_EDATA, broken[i].words);
        assert_non_null(strstr(tsr_last_error(), "config.json"));
        assert_int_equal(c.vocab_size, 77); /* untouched */
    }
    tsr_model_config c;
    assert_int_equal(parse(&c, LLAMA_WITH("")), TSR_OK); /* what the cases start from */
    check_error("absent", tsr_model_config_load(&c, "/nonexistent"), TSR_EDATA,
                (const char *const[MOST_WORDS]){"/nonexistent/config.json", "No such file"});
}

/* What config.json describes is what the files have; norms of heads and biases too. */
static void test_described(void **state)
{
    (void)state;
    tsr_checkpoint *real, *described;
    tsr_model_config model;
    assert_int_equal(tsr_model_config_load(&model, TINY), TSR_OK);
    assert_int_equal(tsr_checkpoint_open(&real, TINY), TSR_OK);
    assert_int_equal(tsr_model_describe(&described, TINY, &model), TSR_OK);
    assert_int_equal(tsr_checkpoint_count(described), tsr_checkpoint_count(real));
    assert_int_equal(tsr_checkpoint_total_bytes(described), tsr_checkpoint_total_bytes(real));
    for (uint64_t i = 0; i < tsr_checkpoint_count(real); i++) {
        const tsr_tensor *a = tsr_checkpoint_at(real, i), *b = tsr_checkpoint_at(described, i);
        assert_string_equal(a->name, b->name);
        assert_int_equal(a->dtype, b->dtype);
        assert_int_equal(a->ndim, b->ndim);
        assert_memory_equal(a->shape, b->shape, sizeof a->shape);
        assert_int_equal(a->bytes, b->bytes);
    }
    tsr_weight weight;
    assert_int_equal(
        tsr_checkpoint_weight(&weight, described, "model.layers.5.mlp.down_proj.weight"), TSR_OK);
    assert_int_equal(weight.shape[1], 704);
    tsr_checkpoint_close(real);
    tsr_checkpoint_close(described);

    model.head_norms = TSR_HEAD_NORMS_EACH;
    model.q_bias = model.k_bias = model.v_bias = model.tie_word_embeddings = true;
    assert_int_equal(tsr_model_describe(&described, TINY, &model), TSR_OK);
    assert_int_equal(tsr_checkpoint_count(described), 2 + 6 * (9 + 3 + 2));
    assert_non_null(tsr_checkpoint_find(described, "model.layers.5.self_attn.k_norm.weight"));
    assert_null(tsr_checkpoint_find(described, "lm_head.weight"));
    tsr_checkpoint_close(described);

    assert_int_equal(tsr_model_config_load(&model, PREQUANTIZED), TSR_OK);
    check_error("4-bit", tsr_model_describe(&described, PREQUANTIZED, &model), TSR_EDATA,
                (const char *const[MOST_WORDS]){"prequantized", "download"});
}

/* From a layer on, or as layer_types says. */
static void test_mixed_windows(void **state)
{
    (void)state;
    tsr_model_config c;
    assert_int_equal(parse(&c, QWEN2 ",\"max_window_layers\":20,\"sliding_window\":512,"
                                     "\"use_sliding_window\":true}"),
                     TSR_OK);
    for (uint64_t i = 0; i < c.layer_count; i++)
        assert_int_equal(tsr_model_config_window(&c, i), i < 20 ? 0 : 512);
    assert_int_equal(c.layer_count, 24);
}

/* docs/models.md has a line for each family and each class around one. */
static void test_documented(void **state)
{
    (void)state;
    char *page = NULL, line[512];
    uint64_t bytes;
    int missing = 0;
    assert_int_equal(tsr_file_read(&page, &bytes, TSR_SOURCE_DIR "/docs/models.md", 1 << 20),
                     TSR_OK);
    for (int i = 0; tsr_arch_at(i); i++) {
        const tsr_arch *arch = tsr_arch_at(i);
        if (!arch->architecture)
            continue; /* in composite models alone */
        snprintf(line, sizeof line, "| `%s` | `%s` | %s |\n", arch->model_type, arch->architecture,
                 arch->models);
        if (!strstr(page, line)) {
            missing++;
            printf("docs/models.md lacks: %s", line);
        }
    }
    for (int i = 0; tsr_composite_at(i); i++) {
        const tsr_composite *class = tsr_composite_at(i);
        int used =
            snprintf(line, sizeof line, "| `%s` | `%s` |", class->model_type, class->architecture);
        for (int j = 0; class->text[j]; j++)
            used += snprintf(line + used, sizeof line - (size_t)used, "%s `%s`", j ? " or" : "",
                             class->text[j]);
        snprintf(line + used, sizeof line - (size_t)used, " | %s |\n", class->models);
        if (!strstr(page, line)) {
            missing++;
            printf("docs/models.md lacks: %s", line);
        }
    }
    free(page);
    assert_int_equal(missing, 0);
}

/* Of what lengths a model is, with and without scaling. */
static void test_positions(void **state)
{
    (void)state;
    static const struct {
        const char *config;
        uint64_t positions;
    } cases[] = {
        {LLAMA_WITH(""), 2048},
        {LLAMA_WITH(",\"max_position_embeddings\":1000"), 1000},
        {LLAMA_WITH(",\"max_position_embeddings\":1000,\"rope_scaling\":{\"type\":\"linear\","
                    "\"factor\":2.5}"),
         2500},
        {LLAMA_WITH(",\"max_position_embeddings\":1000,\"rope_scaling\":{\"rope_type\":\"yarn\","
                    "\"factor\":4}"),
         4000},
        {LLAMA_WITH(",\"max_position_embeddings\":1000,\"rope_scaling\":{\"rope_type\":\"yarn\","
                    "\"factor\":4,\"original_max_position_embeddings\":500}"),
         2000},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsr_model_config c;
        const char *key;
        assert_int_equal(parse(&c, cases[i].config), TSR_OK);
        assert_int_equal(tsr_model_positions(&key, &c), cases[i].positions);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_positions),  cmocka_unit_test(test_documented),
        cmocka_unit_test(test_tiny_llama), cmocka_unit_test(test_llama3),
        cmocka_unit_test(test_mistral),    cmocka_unit_test(test_qwen2),
        cmocka_unit_test(test_qwen3),      cmocka_unit_test(test_broken),
        cmocka_unit_test(test_described),  cmocka_unit_test(test_mixed_windows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
