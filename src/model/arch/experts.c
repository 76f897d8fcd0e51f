#include "model/arch/experts.h"

#include "model/arch/config_parts.h"
#include "model/arch/decoder.h"

#include <inttypes.h>

#define MOST_WIDTH (1 << 20)

const tsr_expert_names tsr_expert_names_usual = {
    .router = {.weight = "mlp.gate"},
    .gate_up = "mlp.experts.gate_up_proj",
    .down = "mlp.experts.down_proj",
    .gate_up_files = {.one = {"mlp.experts.%d.gate_proj", "mlp.experts.%d.up_proj"}},
    .down_files = {.one = {"mlp.experts.%d.down_proj"}}};

const tsr_expert_names tsr_expert_names_grouped = {
    .router = {.weight = "mlp.gate", .correction = "mlp.gate.e_score_correction_bias"},
    .gate_up = "mlp.experts.gate_up_proj",
    .down = "mlp.experts.down_proj",
    .gate_up_files = {.one = {"mlp.experts.%d.gate_proj", "mlp.experts.%d.up_proj"}},
    .down_files = {.one = {"mlp.experts.%d.down_proj"}},
    .shared = {"mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj",
               "mlp.shared_experts.down_proj"}};

tsr_block_routes tsr_decoder_route(tsr_block *b, int16_t x, const tsr_model_config *c,
                                   const tsr_expert_names *names)
{
    const tsr_model_experts *e = &c->experts;
    const tsr_route_spec spec = {.experts = (int32_t)e->count,
                                 .chosen = (int32_t)e->chosen,
                                 .scoring = e->scoring,
                                 .normalise = e->normalise,
                                 .groups = (int32_t)e->groups,
                                 .chosen_groups = (int32_t)e->chosen_groups,
                                 .scale = (float)e->scale};
    return tsr_block_route(b, x, &names->router, &spec);
}

int16_t tsr_decoder_routed(tsr_block *b, int16_t input, const tsr_block_routes *routes,
                           const tsr_model_config *c, const tsr_expert_names *names)
{
    const tsr_model_experts *e = &c->experts;
    const tsr_stack gate_up = {.name = names->gate_up,
                               .files = &names->gate_up_files,
                               .experts = e->count,
                               .out = 2 * e->width,
                               .in = c->hidden_size,
                               .parts = 2,
                               .bias = e->bias};
    const tsr_stack down = {.name = names->down,
                            .files = &names->down_files,
                            .experts = e->count,
                            .out = c->hidden_size,
                            .in = e->width,
                            .parts = 1,
                            .bias = e->bias};
    int16_t rows = tsr_block_experts(b, input, routes, &gate_up);
    int16_t act = tsr_block_routed_glu(b, rows, routes, &down, e->activation);
    return tsr_block_combine(b, act, routes, &down);
}

int16_t tsr_decoder_shared_mlp(tsr_block *b, int16_t x, const tsr_model_config *c,
                               const tsr_expert_names *names)
{
    uint64_t width = c->experts.shared_width;
    const tsr_matrix gate_up[2] = {{.name = names->shared[0], .out = width, .in = c->hidden_size},
                                   {.name = names->shared[1], .out = width, .in = c->hidden_size}};
    int16_t value[TSR_NODE_PORTS];
    tsr_block_linears(b, value, x, gate_up, 2);
    int16_t act = tsr_block_glu(b, value[0], value[1], c->experts.activation);
    return tsr_block_linear(b, act, names->shared[2], c->hidden_size, false);
}

int16_t tsr_decoder_experts(tsr_block *b, int16_t x, const tsr_model_config *c,
                            const tsr_expert_names *names)
{
    tsr_block_routes routes = tsr_decoder_route(b, x, c, names);
    int16_t y = tsr_decoder_routed(b, x, &routes, c, names);
    if (!c->experts.shared_width || !names->shared[0])
        return y;
    return tsr_block_plus(b, y, tsr_decoder_shared_mlp(b, x, c, names),
                          (tsr_value_name){"mlp", "the experts and the MLP beside them"});
}

tsr_status tsr_decoder_sparse_block(tsr_block *out, const tsr_model_config *c, int layer,
                                    const tsr_expert_names *names)
{
    float eps = (float)c->rms_norm_eps;
    tsr_residual r = tsr_block_begin(out, c->hidden_size);
    int16_t h =
        tsr_block_norm(out, &r, "input_layernorm", eps, (tsr_value_name){"x", "input of the layer"},
                       (tsr_value_name){"h", "the normed input of attention"});
    tsr_decoder_add(out, &r, tsr_decoder_attention(out, h, c, layer), c);
    h = tsr_block_norm(out, &r, "post_attention_layernorm", eps,
                       (tsr_value_name){"x_mid", "the residual after attention"},
                       (tsr_value_name){"h2", "the normed input of the MLP"});
    tsr_decoder_add(out, &r,
                    tsr_decoder_is_sparse(c, layer) ? tsr_decoder_experts(out, h, c, names)
                                                    : tsr_decoder_mlp(out, h, c),
                    c);
    return tsr_block_end(out, r, "a layer of experts");
}

tsr_status tsr_model_config_experts(tsr_model_config *out, const json_t *root,
                                    const tsr_expert_keys *keys, const char *place)
{
    tsr_model_experts *e = &out->experts;
    const char *key = keys->count[0];
    for (int i = 0; keys->count[i]; i++)
        if (tsr_json_has(root, keys->count[i])) {
            key = keys->count[i];
            break;
        }
    TSR_TRY(tsr_model_config_size(&e->count, root, key, TSR_ROUTE_MOST_EXPERTS, place));
    TSR_TRY(tsr_model_config_size(&e->chosen, root, keys->chosen, TSR_ROUTE_MOST_CHOSEN, place));
    TSR_TRY(tsr_model_config_size(&e->width, root, keys->width, MOST_WIDTH, place));
    if (e->chosen > e->count)
        return tsr_fail(TSR_EDATA,
                        "%s: %s is %" PRIu64 ", but %s is %" PRIu64
                        "; a token cannot have more experts than there are",
                        place, keys->chosen, e->chosen, key, e->count);
    for (uint64_t i = 0; i < out->layer_count; i++)
        tsr_layer_put_in(&e->sparse, i);
    e->activation = out->activation;
    return TSR_OK;
}
