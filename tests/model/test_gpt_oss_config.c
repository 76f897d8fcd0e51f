/*
 * test_gpt_oss_config.c: what the family of gpt-oss reads of config.json: every key of the published ones, which layers
 * slide, what is refused; and its attention's sinks.
 */
#include "model/arch/arch.h"
#include "model/arch/decoder.h"
#include "model/layout.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* openai/gpt-oss-20b, with fewer layers. */
#define SIZES                                                                                      \
    "\"vocab_size\":201088,\"hidden_size\":2880,\"intermediate_size\":2880,\"head_dim\":64,"       \
    "\"num_attention_heads\":64,\"num_key_value_heads\":8,\"num_hidden_layers\":4,"
#define ROPE                                                                                       \
    "\"rope_theta\":150000,\"rope_scaling\":{\"beta_fast\":32.0,\"beta_slow\":1.0,"                \
    "\"factor\":32.0,\"original_max_position_embeddings\":4096,\"rope_type\":\"yarn\","            \
    "\"truncate\":false}"
#define OWN                                                                                        \
    "\"experts_per_token\":4,\"num_experts_per_tok\":4,\"num_local_experts\":32,"                  \
    "\"initial_context_length\":4096,\"output_router_logits\":false,"                              \
    "\"router_aux_loss_coef\":0.9,\"sliding_window\":128,\"swiglu_limit\":7.0,"                    \
    "\"attention_bias\":true,"
#define REST                                                                                       \
    "\"architectures\":[\"GptOssForCausalLM\"],\"attention_dropout\":0.0,"                         \
    "\"eos_token_id\":200002,\"pad_token_id\":199999,\"hidden_act\":\"silu\","                     \
    "\"initializer_range\":0.02,\"max_position_embeddings\":131072,\"rms_norm_eps\":1e-05,"        \
    "\"tie_word_embeddings\":false,\"transformers_version\":\"4.55.0.dev0\",\"use_cache\":true,"
#define MXFP4                                                                                      \
    "\"quantization_config\":{\"modules_to_not_convert\":[\"model.layers.*.self_attn\","           \
    "\"model.layers.*.mlp.router\",\"model.embed_tokens\",\"lm_head\"],"                           \
    "\"quant_method\":\"mxfp4\"}"
#define MODEL "{\"model_type\":\"gpt_oss\","

static tsr_status parse(tsr_model_config *out, const char *text)
{
    return tsr_model_config_parse(out, text, strlen(text), "config.json");
}

static tsr_model_config good(const char *text)
{
    tsr_model_config c;
    if (parse(&c, text) < 0)
        fail_msg("%s", tsr_last_error());
    return c;
}

static void published_files_are_read(void **state)
{
    (void)state;
    tsr_model_config c = good(MODEL SIZES OWN REST ROPE "," MXFP4 "}");
    assert_true(c.q_bias && c.k_bias && c.v_bias && c.o_bias && c.sinks && c.mxfp4);
    assert_false(c.prequantized);
    assert_int_equal(c.experts.count, 32);
    assert_int_equal(c.experts.chosen, 4);
    assert_int_equal(c.experts.width, 2880);
    assert_int_equal(c.experts.activation, TSR_SILU_CLAMPED);
    assert_int_equal(c.experts.scoring, TSR_ROUTE_CHOSEN);
    assert_true(c.experts.bias);
    for (uint64_t i = 0; i < 4; i++)
        assert_int_equal(tsr_model_config_window(&c, i), i % 2 ? 0 : 128);
    const tsr_rope_scaling *rope = &c.rope[0];
    assert_true(rope->type == TSR_ROPE_YARN && rope->exact_ends && rope->factor == 32);
    assert_true(rope->theta == 150000 && rope->original_max_positions == 4096);
    assert_true(rope->attention_factor > 1.34657 && rope->attention_factor < 1.34658);
}

#define EXPERTS ",\"num_local_experts\":8,\"num_experts_per_tok\":3"

static void missing_keys_are_transformers(void **state)
{
    (void)state;
    tsr_model_config c = good(MODEL SIZES REST ROPE EXPERTS "}");
    assert_true(c.q_bias && c.o_bias && c.sinks && !c.mxfp4);
    assert_int_equal(tsr_model_config_window(&c, 2), 128);
    c = good(MODEL SIZES ROPE EXPERTS ",\"attention_bias\":false,\"sliding_window\":null}");
    assert_true(!c.q_bias && !c.o_bias && c.sinks);
    assert_int_equal(tsr_model_config_window(&c, 0), 0);
    c = good(MODEL SIZES ROPE EXPERTS ",\"layer_types\":[\"full_attention\",\"full_attention\","
                                      "\"sliding_attention\",\"full_attention\"]}");
    assert_int_equal(tsr_model_config_window(&c, 0), 0);
    assert_int_equal(tsr_model_config_window(&c, 2), 128);
}

static void what_would_differ_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words[3];
    } broken[] = {
        {MODEL SIZES ROPE EXPERTS ",\"swiglu_limit\":8.5}", {"swiglu_limit", "8.5", "7"}},
        {MODEL SIZES ROPE
         ",\"num_local_experts\":8,\"experts_per_token\":4,\"num_experts_per_tok\":2}",
         {"experts_per_token is 4", "num_experts_per_tok is 2"}},
        {MODEL SIZES ROPE ",\"num_local_experts\":8,\"num_experts_per_tok\":9}",
         {"num_experts_per_tok", "9", "8"}},
        {MODEL SIZES ROPE ",\"num_local_experts\":0}", {"num_local_experts", "0"}},
        {MODEL SIZES "\"swiglu_limit\":7}", {"rope_scaling", "missing"}},
        {MODEL SIZES ROPE EXPERTS ",\"quantization_config\":{\"quant_method\":\"awq\"}}",
         {"quant_method", "'awq'"}},
        {MODEL SIZES ROPE EXPERTS
         ",\"quantization_config\":{\"quant_method\":\"mxfp4\",\"bits\":4}}",
         {"quantization_config", "'bits'", "4"}},
        {MODEL SIZES ROPE EXPERTS ",\"router_jitter_noise\":0.5}",
         {"'router_jitter_noise'", "0.5"}},
    };
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        tsr_model_config c;
        assert_int_equal(parse(&c, broken[i].text), TSR_EDATA);
        for (int j = 0; j < 3 && broken[i].words[j]; j++)
            if (!strstr(tsr_last_error(), broken[i].words[j]))
                fail_msg("'%s' is not in: %s", broken[i].words[j], tsr_last_error());
    }
}

/* One for each head, as the tensor self_attn.sinks, without 1 + w. */
static void attention_has_sinks(void **state)
{
    (void)state;
    tsr_model_config c = good(MODEL SIZES OWN REST ROPE "}");
    tsr_block block;
    int16_t x = tsr_block_begin(&block, c.hidden_size).x, y;
    y = tsr_decoder_attention(&block, x, &c, 0);
    int found = 0;
    for (int i = 0; i < block.vector_count; i++) {
        const tsr_vector *v = &block.vector[i];
        if (strcmp(v->name, "self_attn.sinks") == 0) {
            assert_true(v->bare && !v->plus_one && !v->one && !v->of_model);
            assert_int_equal(v->count, 64);
            found++;
        }
    }
    assert_int_equal(found, 1);
    assert_int_equal(block.value[y].width, 2880);
    c.sinks = false;
    tsr_block_begin(&block, c.hidden_size);
    tsr_decoder_attention(&block, x, &c, 0);
    assert_int_equal(block.vector_count, 0);
}

/* The tensors that config.json describes are those of the file, in bf16 and in MXFP4. */
static void described_tensors_are_the_files(void **state)
{
    (void)state;
    static const char *const names[] = {"gpt_oss", "gpt_oss_mxfp4"};
    for (int i = 0; i < 2; i++) {
        char directory[512];
        tsr_checkpoint *real, *described;
        tsr_model_config c;
        snprintf(directory, sizeof directory, TSR_SOURCE_DIR "/tests/golden/families/%s/checkpoint",
                 names[i]);
        assert_int_equal(tsr_model_config_load(&c, directory), TSR_OK);
        assert_int_equal(c.mxfp4, i);
        assert_int_equal(tsr_checkpoint_open(&real, directory), TSR_OK);
        assert_int_equal(tsr_model_describe(&described, directory, &c), TSR_OK);
        assert_int_equal(tsr_checkpoint_count(described), tsr_checkpoint_count(real));
        for (uint64_t j = 0; j < tsr_checkpoint_count(real); j++) {
            const tsr_tensor *a = tsr_checkpoint_at(real, j), *b = tsr_checkpoint_at(described, j);
            assert_string_equal(a->name, b->name);
            assert_int_equal(a->dtype, b->dtype);
            assert_int_equal(a->ndim, b->ndim);
            assert_memory_equal(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape);
            assert_int_equal(a->bytes, b->bytes);
        }
        tsr_checkpoint_close(real);
        tsr_checkpoint_close(described);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_files_are_read),
        cmocka_unit_test(missing_keys_are_transformers),
        cmocka_unit_test(what_would_differ_is_refused),
        cmocka_unit_test(attention_has_sinks),
        cmocka_unit_test(described_tensors_are_the_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
