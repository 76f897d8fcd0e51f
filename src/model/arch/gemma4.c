/*
 * gemma4.c: Gemma 4, text: norms as in Gemma 3, but by plain w; heads of another size in layers that see all;
 * values normed without a weight; the last layers read keys and values of layers below; every layer takes an input of
 * its own from the tokens, behind the MLP, and ends with a factor.
 */
#include "kernels/layer_inputs.h"
#include "model/arch/config_parts.h"
#include "model/arch/decoder.h"
#include "model/arch/experts.h"
#include "model/arch/families.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* Slots of what layers share. */
enum { INPUTS, KEYS, VALUES, KEYS_OF_FULL, VALUES_OF_FULL };

static const char *const keys[] = {"hidden_activation",
                                   "attention_bias",
                                   "sliding_window",
                                   "layer_types",
                                   "final_logit_softcapping",
                                   "global_head_dim",
                                   "num_global_key_value_heads",
                                   "per_layer_config",
                                   "attention_k_eq_v",
                                   "num_kv_shared_layers",
                                   "use_double_wide_mlp",
                                   "hidden_size_per_layer_input",
                                   "vocab_size_per_layer_input",
                                   "enable_moe_block",
                                   "num_experts",
                                   "top_k_experts",
                                   "moe_intermediate_size",
                                   "use_bidirectional_attention",
                                   NULL};

/* ---- config.json ---- */

static bool is_full(const tsr_model_config *c, uint64_t layer)
{
    return !tsr_layer_is_in(&c->sliding, layer);
}

/* The layer that the shared layers of its type read keys and values of: the last one below them. -1: none. */
static int source_of(const tsr_model_config *c, bool full)
{
    int layer = (int)(c->layer_count - c->shared_layer_count) - 1;
    while (layer >= 0 && is_full(c, (uint64_t)layer) != full)
        layer--;
    return layer;
}

static bool is_shared(const tsr_model_config *c, int layer)
{
    return (uint64_t)layer >= c->layer_count - c->shared_layer_count;
}

/* A size, 0 where the key is missing or null. */
static tsr_status read_size(uint64_t *out, const json_t *root, const char *key, int64_t most,
                            const char *place)
{
    int64_t value = 0;
    if (tsr_json_has(root, key))
        TSR_TRY(tsr_json_int(&value, root, key, 0, most, place));
    *out = (uint64_t)value;
    return TSR_OK;
}

/* Every `6`th layer sees all, and the last one whatever the list says. */
static tsr_status read_layers(tsr_model_config *out, const json_t *root, const char *place)
{
    TSR_TRY(tsr_model_config_slide(out, root, 512, 6, place));
    TSR_TRY(tsr_model_config_layer_types(out, root, place));
    tsr_layer_take_out(&out->sliding, out->layer_count - 1);
    out->second_rope = out->sliding;
    return TSR_OK;
}

/* One entry of per_layer_config, which holds what a layer has of its own: only layers that see all, all the same. */
static tsr_status read_entry(tsr_model_config *out, const char *layer, const json_t *entry,
                             const char *place)
{
    static const char *const known[] = {"head_dim", "num_key_value_heads"};
    uint64_t head_dim = out->head_dim, kv_heads = out->kv_head_count;
    const char *key;
    json_t *value;
    char *end;
    unsigned long index = strtoul(layer, &end, 10);
    if (*end || index >= out->layer_count || !is_full(out, index))
        return tsr_fail(TSR_EDATA,
                        "%s: per_layer_config has an entry for layer '%s', expected layers with "
                        "full_attention only",
                        place, layer);
    json_object_foreach((json_t *)entry, key, value)
    {
        if (strcmp(key, known[0]) && strcmp(key, known[1]))
            return tsr_fail(TSR_EDATA, "%s: per_layer_config: key '%s' is not understood", place,
                            key);
    }
    if (tsr_json_has(entry, known[0]))
        TSR_TRY(tsr_model_config_size(&head_dim, entry, known[0], TSR_MODEL_MOST_HEAD_DIM, place));
    if (tsr_json_has(entry, known[1]))
        TSR_TRY(tsr_model_config_size(&kv_heads, entry, known[1], INT32_MAX, place));
    if (out->full_head_dim &&
        (out->full_head_dim != head_dim || out->full_kv_head_count != kv_heads))
        return tsr_fail(TSR_EDATA,
                        "%s: per_layer_config: layer %s has other heads than the layers "
                        "before it with full_attention",
                        place, layer);
    out->full_head_dim = head_dim;
    out->full_kv_head_count = kv_heads;
    return TSR_OK;
}

static tsr_status read_entries(tsr_model_config *out, const json_t *root, const char *place)
{
    json_t *all, *entry;
    const char *layer;
    uint64_t full = 0;
    TSR_TRY(tsr_json_object(&all, root, "per_layer_config", place));
    json_object_foreach(all, layer, entry) TSR_TRY(read_entry(out, layer, entry, place));
    for (uint64_t i = 0; i < out->layer_count; i++)
        full += is_full(out, i);
    if (json_object_size(all) != 0 && json_object_size(all) != full)
        return tsr_fail(TSR_EDATA,
                        "%s: per_layer_config has %zu entries, expected one for each of %" PRIu64
                        " layers with full_attention",
                        place, json_object_size(all), full);
    if (out->full_head_dim)
        return TSR_OK;
    out->full_head_dim = out->head_dim;
    out->full_kv_head_count = out->kv_head_count;
    return TSR_OK;
}

/* Heads of layers that see all: in one of two spellings. */
static tsr_status read_heads(tsr_model_config *out, const json_t *root, const char *place)
{
    uint64_t kv_heads = 0;
    if (tsr_json_has(root, "per_layer_config"))
        return read_entries(out, root, place);
    out->full_head_dim = 512;
    if (tsr_json_has(root, "global_head_dim"))
        TSR_TRY(tsr_model_config_size(&out->full_head_dim, root, "global_head_dim",
                                      TSR_MODEL_MOST_HEAD_DIM, place));
    TSR_TRY(read_size(&kv_heads, root, "num_global_key_value_heads", INT32_MAX, place));
    out->full_kv_head_count = out->values_are_keys && kv_heads ? kv_heads : out->kv_head_count;
    return TSR_OK;
}

static tsr_status check_heads(const tsr_model_config *out, const char *place)
{
    if (out->full_head_dim % 2 || out->head_count % out->full_kv_head_count)
        return tsr_fail(TSR_EDATA,
                        "%s: layers with full_attention have %" PRIu64 " key heads of %" PRIu64
                        ", expected a divisor of num_attention_heads %" PRIu64
                        ", and an even head_dim",
                        place, out->full_kv_head_count, out->full_head_dim, out->head_count);
    return TSR_OK;
}

static tsr_status read_shared(tsr_model_config *out, const json_t *root, const char *place)
{
    TSR_TRY(read_size(&out->shared_layer_count, root, "num_kv_shared_layers",
                      (int64_t)out->layer_count - 1, place));
    TSR_TRY(tsr_model_config_flag(&out->double_shared_mlp, root, "use_double_wide_mlp", place));
    for (int i = 0; i < (int)out->layer_count; i++)
        if (is_shared(out, i) && source_of(out, is_full(out, (uint64_t)i)) < 0)
            return tsr_fail(TSR_EDATA,
                            "%s: num_kv_shared_layers %" PRIu64 " leaves no layer whose keys and "
                            "values layer %d, with %s, could read",
                            place, out->shared_layer_count, i,
                            is_full(out, (uint64_t)i) ? "full_attention" : "sliding_attention");
    return TSR_OK;
}

static tsr_status read_inputs(tsr_model_config *out, const json_t *root, const char *place)
{
    uint64_t vocabulary = 262144;
    out->layer_input_width = 256;
    if (json_object_get(root, "hidden_size_per_layer_input"))
        TSR_TRY(read_size(&out->layer_input_width, root, "hidden_size_per_layer_input",
                          TSR_LAYER_INPUTS_MOST, place));
    if (tsr_json_has(root, "vocab_size_per_layer_input"))
        TSR_TRY(read_size(&vocabulary, root, "vocab_size_per_layer_input", INT32_MAX, place));
    if (out->layer_input_width && vocabulary != out->vocab_size)
        return tsr_fail(TSR_EDATA,
                        "%s: vocab_size_per_layer_input is %" PRIu64
                        ", expected vocab_size %" PRIu64,
                        place, vocabulary, out->vocab_size);
    return TSR_OK;
}

/* Experts, beside the MLP of every layer. */
static tsr_status read_experts(tsr_model_config *out, const json_t *root, const char *place)
{
    static const char *const counts[] = {"num_experts", NULL};
    static const tsr_expert_keys names = {counts, "top_k_experts", "moe_intermediate_size"};
    bool experts = false;
    TSR_TRY(tsr_model_config_flag(&experts, root, "enable_moe_block", place));
    if (!experts)
        return TSR_OK;
    TSR_TRY(tsr_model_config_experts(out, root, &names, place));
    out->experts.scoring = TSR_ROUTE_CHOSEN;
    return TSR_OK;
}

/* What a text decoder does not have. */
static tsr_status check_absent(const json_t *root, const char *place)
{
    const char *both = NULL;
    if (tsr_json_has(root, "use_bidirectional_attention"))
        TSR_TRY(tsr_json_string(&both, root, "use_bidirectional_attention", place));
    if (both && strcmp(both, "vision"))
        return tsr_fail(TSR_EDATA,
                        "%s: use_bidirectional_attention is '%s', expected null or vision, which "
                        "leaves text causal",
                        place, both);
    return TSR_OK;
}

static tsr_status read(tsr_model_config *out, const json_t *root, const char *place)
{
    TSR_TRY(check_absent(root, place));
    TSR_TRY(read_experts(out, root, place));
    TSR_TRY(tsr_model_config_attention_bias(out, root, place));
    out->attention_scale = 1;
    out->embedding_scale = sqrt((double)out->hidden_size);
    out->head_norms = TSR_HEAD_NORMS_EACH;
    if (tsr_json_has(root, "final_logit_softcapping"))
        TSR_TRY(tsr_json_number(&out->logits_softcap, root, "final_logit_softcapping", 1e-6, 1e9,
                                place));
    TSR_TRY(tsr_model_config_flag(&out->values_are_keys, root, "attention_k_eq_v", place));
    TSR_TRY(read_layers(out, root, place));
    TSR_TRY(read_heads(out, root, place));
    TSR_TRY(check_heads(out, place));
    TSR_TRY(read_shared(out, root, place));
    if (!tsr_json_has(root, "rope_parameters")) {
        out->rope[0].type = TSR_ROPE_PROPORTIONAL;
        out->rope[0].share = 0.25;
    }
    out->rope[0].rotary_dim = out->full_head_dim;
    return read_inputs(out, root, place);
}

/* ---- a layer ---- */

/* What every layer takes of the tokens, made once, with the first layer. */
static void give_inputs(tsr_block *b, int16_t x, const tsr_model_config *c)
{
    const tsr_matrix projection = {.name = "per_layer_model_projection",
                                   .out = c->layer_count * c->layer_input_width,
                                   .in = c->hidden_size,
                                   .of_model = true};
    const tsr_inputs_spec spec = {.layers = (int32_t)c->layer_count,
                                  .eps = (float)c->rms_norm_eps,
                                  .scale = (float)(1 / sqrt((double)c->hidden_size)),
                                  .row_scale = (float)sqrt((double)c->layer_input_width),
                                  .sum_scale = (float)sqrt(0.5)};
    int16_t z;
    tsr_block_linears(b, &z, x, &projection, 1);
    tsr_block_give(b, tsr_block_layer_inputs(b, z, "per_layer_projection_norm", &spec), INPUTS);
}

/* Values: normed over each head, without a weight and without a rotation. `raw` are theirs, or the keys'. */
static int16_t values_of(tsr_block *b, int16_t raw, uint64_t head_dim, const tsr_model_config *c)
{
    return tsr_block_norm_heads(b, raw, head_dim, (float)c->rms_norm_eps,
                                (tsr_value_name){"v", "values"});
}

/* q, k and v as attention reads them, of a layer that has its own. */
static void make_qkv(int16_t qkv[3], tsr_block *b, int16_t x, const tsr_rope_spec *rope,
                     const tsr_model_config *c, bool full)
{
    uint64_t q = (uint64_t)(rope->q_heads * rope->head_dim);
    uint64_t kv = (uint64_t)(rope->kv_heads * rope->head_dim);
    const tsr_matrix matrix[3] = {
        {.name = "self_attn.q_proj", .out = q, .in = c->hidden_size, .bias = c->q_bias},
        {.name = "self_attn.k_proj", .out = kv, .in = c->hidden_size, .bias = c->k_bias},
        {.name = "self_attn.v_proj", .out = kv, .in = c->hidden_size, .bias = c->v_bias}};
    bool one = full && c->values_are_keys;
    int16_t value[TSR_NODE_PORTS] = {TSR_NONE, TSR_NONE, TSR_NONE, TSR_NONE};
    tsr_block_linears(b, value, x, matrix, one ? 2 : 3);
    int16_t raw = tsr_block_scale(b, value[one ? 1 : 2], 1);
    int16_t v = values_of(b, raw, (uint64_t)rope->head_dim, c);
    qkv[0] = value[0];
    qkv[1] = one ? raw : value[1];
    qkv[2] = TSR_NONE;
    tsr_block_rope(b, qkv, "self_attn.q_norm", "self_attn.k_norm", rope);
    qkv[2] = v;
}

/* The same of a layer that has queries alone. */
static void take_qkv(int16_t qkv[3], tsr_block *b, int16_t x, tsr_rope_spec rope,
                     const tsr_model_config *c, bool full)
{
    uint64_t kv = (uint64_t)(rope.kv_heads * rope.head_dim);
    const tsr_matrix q = {.name = "self_attn.q_proj",
                          .out = (uint64_t)(rope.q_heads * rope.head_dim),
                          .in = c->hidden_size,
                          .bias = c->q_bias};
    rope.kv_heads = 0;
    tsr_block_linears(b, qkv, x, &q, 1);
    qkv[1] = qkv[2] = TSR_NONE;
    tsr_block_rope(b, qkv, "self_attn.q_norm", NULL, &rope);
    qkv[1] = tsr_block_take(b, full ? KEYS_OF_FULL : KEYS, kv, false,
                            (tsr_value_name){"k below", "keys of a layer below"});
    qkv[2] = tsr_block_take(b, full ? VALUES_OF_FULL : VALUES, kv, false,
                            (tsr_value_name){"v below", "values of a layer below"});
}

static int16_t attention(tsr_block *b, int16_t x, const tsr_model_config *c, int layer)
{
    bool full = is_full(c, (uint64_t)layer);
    tsr_rope_spec rope = tsr_decoder_rope(c, layer);
    tsr_attention_spec spec = tsr_decoder_attention_spec(c, layer);
    int16_t qkv[3];
    if (full) {
        rope.head_dim = spec.head_dim = (int32_t)c->full_head_dim;
        rope.kv_heads = spec.kv_heads = (int32_t)c->full_kv_head_count;
    }
    if (is_shared(c, layer))
        take_qkv(qkv, b, x, rope, c, full);
    else
        make_qkv(qkv, b, x, &rope, c, full);
    if (c->shared_layer_count && source_of(c, full) == layer) {
        tsr_block_give(b, qkv[1], full ? KEYS_OF_FULL : KEYS);
        tsr_block_give(b, qkv[2], full ? VALUES_OF_FULL : VALUES);
    }
    int16_t o = tsr_block_attention(b, qkv, &spec);
    return tsr_block_linear(b, o, "self_attn.o_proj", c->hidden_size, c->o_bias);
}

/* The residual stream, gated by what the layer takes of the tokens. */
static void add_input(tsr_block *b, tsr_residual *r, const tsr_model_config *c)
{
    int16_t x = tsr_block_sum(b, r, (tsr_value_name){"x_mlp", "the residual after the MLP"});
    int16_t gate = tsr_block_linear(b, x, "per_layer_input_gate", c->layer_input_width, false);
    int16_t taken = tsr_block_take(b, INPUTS, c->layer_input_width, true,
                                   (tsr_value_name){"e", "the layer's input of the tokens"});
    int16_t act = tsr_block_glu(b, gate, taken, c->activation);
    int16_t y = tsr_block_linear(b, act, "per_layer_projection", c->hidden_size, false);
    tsr_block_add(b, r,
                  tsr_block_norm_of(b, y, "post_per_layer_input_norm", (float)c->rms_norm_eps,
                                    (tsr_value_name){"p", "the layer's input, normed"}));
}

static const tsr_expert_names expert_names = {
    .router = {.expert_scale = "router.per_expert_scale"},
    .gate_up = "experts.gate_up_proj",
    .down = "experts.down_proj",
    .gate_up_files = {.one = {"experts.%d.gate_proj", "experts.%d.up_proj"},
                      .fused = "experts.gate_up_proj"},
    .down_files = {.one = {"experts.%d.down_proj"}, .fused = "experts.down_proj"}};

/* What the experts make of the residual stream: its norm without a weight, times a vector and 1 / sqrt(d), goes to the
 * router, another norm of it to the experts. */
static int16_t experts(tsr_block *b, tsr_residual *r, const tsr_model_config *c)
{
    float eps = (float)c->rms_norm_eps;
    const tsr_matrix router = {
        .name = "router.proj", .out = c->experts.count, .in = c->hidden_size, .router = true};
    tsr_value_name x = {"x_mid", "the residual after attention"};
    int16_t logits;
    int16_t h = tsr_block_norm(b, r, "router.scale", eps, x,
                               (tsr_value_name){"h3", "the normed input of the router"});
    tsr_vector *scale = &b->vector[b->vector_count - 1];
    scale->bare = true;
    scale->divisor = (float)sqrt((double)c->hidden_size);
    tsr_block_linears(b, &logits, h, &router, 1);
    tsr_block_routes routes = tsr_decoder_route(b, logits, c, &expert_names);
    h = tsr_block_norm(b, r, "pre_feedforward_layernorm_2", eps, x,
                       (tsr_value_name){"h4", "the normed input of the experts"});
    int16_t y = tsr_decoder_routed(b, h, &routes, c, &expert_names);
    return tsr_block_norm_of(b, y, "post_feedforward_layernorm_2", eps,
                             (tsr_value_name){"e", "the experts' output, normed"});
}

static tsr_status block(tsr_block *out, const tsr_model_config *c, int layer)
{
    float eps = (float)c->rms_norm_eps;
    tsr_model_config sized = *c;
    tsr_residual r = tsr_block_begin(out, c->hidden_size);
    int16_t h =
        tsr_block_norm(out, &r, "input_layernorm", eps, (tsr_value_name){"x", "input of the layer"},
                       (tsr_value_name){"h", "the normed input of attention"});
    if (layer == 0 && c->layer_input_width)
        give_inputs(out, r.x, c);
    int16_t y = attention(out, h, c, layer);
    tsr_block_add(out, &r,
                  tsr_block_norm_of(out, y, "post_attention_layernorm", eps,
                                    (tsr_value_name){"a", "attention's output, normed"}));
    h = tsr_block_norm(out, &r, "pre_feedforward_layernorm", eps,
                       (tsr_value_name){"x_mid", "the residual after attention"},
                       (tsr_value_name){"h2", "the normed input of the MLP"});
    if (c->double_shared_mlp && is_shared(c, layer))
        sized.intermediate_size *= 2;
    y = tsr_decoder_mlp(out, h, &sized);
    if (c->experts.count) {
        int16_t m = tsr_block_norm_of(out, y, "post_feedforward_layernorm_1", eps,
                                      (tsr_value_name){"m", "the MLP's output, normed"});
        y = tsr_block_plus(out, m, experts(out, &r, c),
                           (tsr_value_name){"me", "both outputs, normed and added up"});
    }
    tsr_block_add(out, &r,
                  tsr_block_norm_of(out, y, "post_feedforward_layernorm", eps,
                                    (tsr_value_name){"m", "the MLP's output, normed"}));
    if (c->layer_input_width)
        add_input(out, &r, c);
    tsr_block_gain(out, &r, "layer_scalar");
    return tsr_block_end(out, r, "a layer of Gemma 4");
}

const tsr_arch tsr_arch_gemma4 = {.model_type = "gemma4_text",
                                  .architecture = "Gemma4ForCausalLM",
                                  .models = "Gemma 4 E2B, E4B, 26B-A4B and 31B, text",
                                  .kv_head_count = 4,
                                  .head_dim = 256,
                                  .max_position = 131072,
                                  .bos = 2,
                                  .eos = 1,
                                  .eps = 1e-6,
                                  .theta = 1000000,
                                  .sliding_theta = 10000,
                                  .tied = true,
                                  .activation = TSR_GELU_TANH,
                                  .layer_table = "embed_tokens_per_layer",
                                  .keys = keys,
                                  .read = read,
                                  .block = block};
