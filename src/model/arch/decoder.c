#include "model/arch/decoder.h"

#include "model/arch/arch.h"

tsr_rope_spec tsr_decoder_rope(const tsr_model_config *c, int layer)
{
    bool turned = !tsr_layer_is_in(&c->unturned, (uint64_t)layer);
    bool own = c->arch->sliding_theta > 0 && tsr_layer_is_in(&c->sliding, (uint64_t)layer);
    return (tsr_rope_spec){.q_heads = (int32_t)c->head_count,
                           .kv_heads = (int32_t)c->kv_head_count,
                           .head_dim = (int32_t)c->head_dim,
                           .head_norm_eps = (float)c->rms_norm_eps,
                           .table = own || !turned};
}

tsr_attention_spec tsr_decoder_attention_spec(const tsr_model_config *c, int layer)
{
    return (tsr_attention_spec){.q_heads = (int32_t)c->head_count,
                                .kv_heads = (int32_t)c->kv_head_count,
                                .head_dim = (int32_t)c->head_dim,
                                .window = (int32_t)tsr_model_config_window(c, (uint64_t)layer),
                                .scale = (float)c->attention_scale};
}

void tsr_decoder_attention(tsr_block *b, tsr_residual *r, int16_t h, const tsr_model_config *c,
                           int layer)
{
    uint64_t q = c->head_count * c->head_dim, kv = c->kv_head_count * c->head_dim;
    const tsr_matrix qkv[3] = {
        {.name = "self_attn.q_proj", .out = q, .in = c->hidden_size, .bias = c->q_bias},
        {.name = "self_attn.k_proj", .out = kv, .in = c->hidden_size, .bias = c->k_bias},
        {.name = "self_attn.v_proj", .out = kv, .in = c->hidden_size, .bias = c->v_bias}};
    tsr_rope_spec rope = tsr_decoder_rope(c, layer);
    tsr_attention_spec attention = tsr_decoder_attention_spec(c, layer);
    int16_t value[TSR_NODE_PORTS];
    tsr_block_linears(b, value, h, qkv, 3);
    tsr_block_rope(b, value, c->qk_norm ? "self_attn.q_norm" : NULL,
                   c->qk_norm ? "self_attn.k_norm" : NULL, &rope);
    int16_t o = tsr_block_attention(b, value, &attention);
    tsr_block_add(b, r, tsr_block_linear(b, o, "self_attn.o_proj", c->hidden_size, c->o_bias));
}

void tsr_decoder_mlp(tsr_block *b, tsr_residual *r, int16_t h, const tsr_model_config *c)
{
    const tsr_matrix gate_up[2] = {{.name = "mlp.gate_proj",
                                    .out = c->intermediate_size,
                                    .in = c->hidden_size,
                                    .bias = c->mlp_bias},
                                   {.name = "mlp.up_proj",
                                    .out = c->intermediate_size,
                                    .in = c->hidden_size,
                                    .bias = c->mlp_bias}};
    int16_t value[TSR_NODE_PORTS];
    tsr_block_linears(b, value, h, gate_up, 2);
    int16_t act = tsr_block_glu(b, value[0], value[1]);
    tsr_block_add(b, r, tsr_block_linear(b, act, "mlp.down_proj", c->hidden_size, c->mlp_bias));
}

tsr_status tsr_decoder_block(tsr_block *out, const tsr_model_config *c, int layer)
{
    float eps = (float)c->rms_norm_eps;
    tsr_residual r = tsr_block_begin(out, c->hidden_size);
    int16_t h =
        tsr_block_norm(out, &r, "input_layernorm", eps, (tsr_value_name){"x", "input of the layer"},
                       (tsr_value_name){"h", "the normed input of attention"});
    tsr_decoder_attention(out, &r, h, c, layer);
    h = tsr_block_norm(out, &r, "post_attention_layernorm", eps,
                       (tsr_value_name){"x_mid", "the residual after attention"},
                       (tsr_value_name){"h2", "the normed input of the MLP"});
    tsr_decoder_mlp(out, &r, h, c);
    return tsr_block_end(out, r, "a decoder's layer");
}
