#include "model/random_block.h"

#include "base/philox.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

/* Numbers below `most`, one after the other. */
typedef struct {
    uint64_t seed, count;
} dice;

static uint64_t roll(dice *d, uint64_t most)
{
    return tsr_mix(tsr_mix(d->seed) ^ ++d->count) % most;
}

static const char *const q_names[] = {"a.q_proj", "b.q_proj", "c.q_proj"};
static const char *const k_names[] = {"a.k_proj", "b.k_proj", "c.k_proj"};
static const char *const v_names[] = {"a.v_proj", "b.v_proj", "c.v_proj"};
static const char *const o_names[] = {"a.o_proj", "b.o_proj", "c.o_proj"};
static const char *const q_norms[] = {"a.q_norm", "b.q_norm", "c.q_norm"};
static const char *const k_norms[] = {"a.k_norm", "b.k_norm", "c.k_norm"};
static const char *const q_latents[] = {"a.q_a_proj", "b.q_a_proj", "c.q_a_proj"};
static const char *const latents[] = {"a.kv_a_proj", "b.kv_a_proj", "c.kv_a_proj"};
static const char *const kv_names[] = {"a.kv_b_proj", "b.kv_b_proj", "c.kv_b_proj"};
static const char *const sinks[] = {"a.sinks", "b.sinks", "c.sinks"};
static const char *const gates[] = {"a.gate_proj", "b.gate_proj", "c.gate_proj"};
static const char *const ups[] = {"a.up_proj", "b.up_proj", "c.up_proj"};
static const char *const downs[] = {"a.down_proj", "b.down_proj", "c.down_proj"};
static const char *const norms[] = {"norm_a", "norm_b", "norm_c"};
static const char *const after[] = {"after_a", "after_b", "after_c"};

static const char *const gate_names[] = {"a.gate", "b.gate", "c.gate"};
static const char *const convolutions[] = {"a.conv1d", "b.conv1d", "c.conv1d"};
static const char *const a_logs[] = {"a.A_log", "b.A_log", "c.A_log"};
static const char *const dt_biases[] = {"a.dt_bias", "b.dt_bias", "c.dt_bias"};
static const char *const gated_norms[] = {"a.norm", "b.norm", "c.norm"};

static int16_t linear_attention(tsr_block *b, dice *d, int part, int16_t h)
{
    tsr_delta_rule_spec heads = {.key_heads = 1 + (int32_t)roll(d, 2)};
    heads.value_heads = heads.key_heads * (1 + (int32_t)roll(d, 2));
    heads.key_dim = 2 + (int32_t)roll(d, 7);
    heads.value_dim = 2 + (int32_t)roll(d, 7);
    uint64_t values = (uint64_t)(heads.value_heads * heads.value_dim);
    uint64_t mixed = 2 * (uint64_t)(heads.key_heads * heads.key_dim) + values;
    const tsr_matrix matrix[4] = {
        {.name = q_names[part], .out = mixed, .in = b->width},
        {.name = k_names[part], .out = values, .in = b->width},
        {.name = v_names[part], .out = (uint64_t)heads.value_heads, .in = b->width},
        {.name = gates[part], .out = (uint64_t)heads.value_heads, .in = b->width}};
    int16_t value[TSR_NODE_PORTS];
    tsr_block_linears(b, value, h, matrix, 4);
    const int16_t in[3] = {
        tsr_block_convolution(b, value[0], convolutions[part], 1 + (int32_t)roll(d, 5)), value[2],
        value[3]};
    int16_t o = tsr_block_delta_rule(b, in, a_logs[part], dt_biases[part], &heads);
    int16_t y = tsr_block_gated_norm(b, o, value[1], gated_norms[part],
                                     &(tsr_gated_norm_spec){1e-3f, heads.value_dim});
    return tsr_block_linear(b, y, o_names[part], b->width, roll(d, 3) == 0);
}

/* What gates the output of attention: each of its columns, with queries that become the first half of theirs, or each
 * head; or nothing. */
enum { NO_GATE, GATE_OF_COLUMNS, GATE_OF_HEADS, GATE_KINDS };

static int16_t gate_of(tsr_block *b, int16_t *queries, int part, int how, int16_t h, int32_t heads)
{
    static const tsr_value_name called[2] = {{"q raw", "queries"}, {"gate", "their gate"}};
    int16_t half[2];
    if (how == GATE_OF_HEADS)
        return tsr_block_linear(b, h, gate_names[part], (uint64_t)heads, true);
    if (how == NO_GATE)
        return TSR_NONE;
    tsr_block_split(b, half, *queries, heads, called);
    *queries = half[0];
    return half[1];
}

static int16_t attention(tsr_block *b, dice *d, int part, int32_t head_dim, int16_t h)
{
    int32_t kv_heads = 1 + (int32_t)roll(d, 2), q_heads = kv_heads * (1 + (int32_t)roll(d, 3));
    uint64_t q = (uint64_t)(q_heads * head_dim), kv = (uint64_t)(kv_heads * head_dim);
    bool bias = roll(d, 3) == 0, heads_norm = roll(d, 2), apart = roll(d, 2);
    int gated = (int)roll(d, GATE_KINDS);
    uint64_t q_out = gated == GATE_OF_COLUMNS ? 2 * q : q;
    const tsr_matrix qkv[3] = {{.name = q_names[part], .out = q_out, .in = b->width, .bias = bias},
                               {.name = k_names[part], .out = kv, .in = b->width, .bias = bias},
                               {.name = v_names[part], .out = kv, .in = b->width, .bias = bias}};
    int16_t value[TSR_NODE_PORTS];
    if (apart)
        for (int i = 0; i < 3; i++)
            tsr_block_linears(b, &value[i], h, &qkv[i], 1);
    else
        tsr_block_linears(b, value, h, qkv, 3);
    int16_t gate = gate_of(b, &value[0], part, gated, h, q_heads);
    if (heads_norm && roll(d, 2)) { /* of all heads at once */
        const char *const names[2] = {q_norms[part], k_norms[part]};
        for (int i = 0; i < 2; i++)
            value[i] = tsr_block_norm_of(b, value[i], names[i], 1e-6f,
                                         (tsr_value_name){"all", "normed over all heads"});
        heads_norm = false;
    }
    int16_t apart_v = TSR_NONE;
    if (roll(d, 3) == 0) { /* values normed on their own, of v or of the keys as they are */
        int from = 2 - (int)roll(d, 2);
        if (b->value[value[from]].matrix != TSR_NONE) {
            int16_t raw = tsr_block_scale(b, value[from], 1);
            apart_v = tsr_block_norm_heads(b, raw, (uint64_t)head_dim, 1e-6f,
                                           (tsr_value_name){"v", "values"});
            value[from] = from == 1 ? raw : TSR_NONE;
            value[2] = TSR_NONE;
        }
    }
    tsr_block_rope(b, value, heads_norm ? q_norms[part] : NULL, heads_norm ? k_norms[part] : NULL,
                   &(tsr_rope_spec){q_heads, kv_heads, head_dim, 1e-6f});
    value[2] = apart_v == TSR_NONE ? value[2] : apart_v;
    int16_t o = tsr_block_attention(
        b, value, &(tsr_attention_spec){q_heads, kv_heads, head_dim, (int32_t)roll(d, 4)});
    if (roll(d, 3) == 0)
        tsr_block_sinks(b, o, sinks[part]);
    if (gate != TSR_NONE)
        o = tsr_block_gate(b, o, gate, (tsr_value_name){"o gated", "attention, gated"});
    return tsr_block_linear(b, o, o_names[part], b->width, bias);
}

/* Latent attention: queries with a latent of their own or without, rope_dim columns of a head that turn. */
static int16_t latent(tsr_block *b, dice *d, int part, int32_t rope_dim, int16_t h)
{
    static const tsr_value_name called[2] = {{"c", "the latent"}, {"kr", "the keys' shared part"}};
    int32_t heads = 1 + (int32_t)roll(d, 3), nope = 4 * (int32_t)roll(d, 4);
    int32_t v_dim = 1 + (int32_t)roll(d, 12), dim = nope + rope_dim;
    uint64_t rank = 1 + roll(d, 16);
    bool bias = roll(d, 3) == 0;
    int16_t q = h, parts[2];
    if (roll(d, 2)) {
        q = tsr_block_linear(b, h, q_latents[part], 8, bias);
        q = tsr_block_norm_of(b, q, q_norms[part], 1e-6f, (tsr_value_name){"q_a", "normed"});
    }
    q = tsr_block_linear(b, q, q_names[part], (uint64_t)(heads * dim), bias);
    int16_t a = tsr_block_linear(b, h, latents[part], rank + (uint64_t)rope_dim, bias);
    tsr_block_columns(b, parts, a, rank, called);
    int16_t c = tsr_block_norm_of(b, parts[0], k_norms[part], 1e-6f, (tsr_value_name){"c", "it"});
    int16_t kv = tsr_block_linear(b, c, kv_names[part], (uint64_t)(heads * (nope + v_dim)), bias);
    int16_t value[3] = {q, parts[1], kv};
    tsr_block_latent(b, value,
                     &(tsr_latent_spec){.heads = heads,
                                        .nope_dim = nope,
                                        .rope_dim = rope_dim,
                                        .v_dim = v_dim,
                                        .neighbours = roll(d, 2)});
    int16_t o = tsr_block_attention(
        b, value,
        &(tsr_attention_spec){
            .q_heads = heads, .kv_heads = heads, .head_dim = dim, .v_dim = v_dim});
    return tsr_block_linear(b, o, o_names[part], b->width, bias);
}

static const tsr_activation activations[] = {TSR_SILU, TSR_GELU_TANH, TSR_SILU_CLAMPED};

static int16_t mlp(tsr_block *b, dice *d, int part, int16_t h)
{
    uint64_t f = 8 * (1 + roll(d, 6));
    bool bias = roll(d, 3) == 0;
    const tsr_matrix gate_up[2] = {{.name = gates[part], .out = f, .in = b->width, .bias = bias},
                                   {.name = ups[part], .out = f, .in = b->width, .bias = bias}};
    int16_t value[TSR_NODE_PORTS];
    const tsr_matrix both = {.name = gates[part], .out = 2 * f, .in = b->width, .bias = bias};
    bool one = roll(d, 3) == 0;
    tsr_block_linears(b, value, h, one ? &both : gate_up, one ? 1 : 2);
    int16_t act = tsr_block_glu(b, value[0], one ? TSR_NONE : value[1], activations[roll(d, 3)]);
    return tsr_block_linear(b, act, downs[part], b->width, bias);
}

static const char *const routers[] = {"a.gate", "b.gate", "c.gate"};
static const char *const biases[] = {"a.gate.bias", "b.gate.bias", "c.gate.bias"};
static const char *const corrections[] = {"a.correction", "b.correction", "c.correction"};
static const char *const factors[] = {"a.scale", "b.scale", "c.scale"};
static const char *const gate_ups[] = {"a.experts.gate_up", "b.experts.gate_up",
                                       "c.experts.gate_up"};
static const char *const expert_downs[] = {"a.experts.down", "b.experts.down", "c.experts.down"};

static tsr_block_routes route(tsr_block *b, dice *d, int part, int16_t h, int32_t *experts)
{
    int32_t size = 2 + (int32_t)roll(d, 3), groups = 1 + (int32_t)roll(d, 3);
    int32_t count = *experts = size * groups;
    int32_t k = 1 + (int32_t)roll(d, count < 4 ? (uint64_t)count : 4);
    int32_t least = (k + size - 1) / size; /* groups that have so many */
    bool grouped = roll(d, 2), linear = roll(d, 4) == 0;
    const tsr_route_spec spec = {
        .experts = count,
        .chosen = k,
        .scoring = (tsr_route_scoring)roll(d, 3),
        .normalise = roll(d, 2),
        .groups = grouped ? groups : 0,
        .chosen_groups = grouped ? least + (int32_t)roll(d, (uint64_t)(groups - least + 1)) : 0,
        .scale = roll(d, 2) ? 1.5f : 0};
    tsr_router_names names = {.weight = linear ? NULL : routers[part],
                              .bias = roll(d, 2) && !linear ? biases[part] : NULL,
                              .correction = roll(d, 2) ? corrections[part] : NULL,
                              .expert_scale = roll(d, 2) ? factors[part] : NULL};
    const tsr_matrix router = {
        .name = routers[part], .out = (uint64_t)count, .in = b->width, .router = true};
    if (linear)
        tsr_block_linears(b, &h, h, &router, 1);
    return tsr_block_route(b, h, &names, &spec);
}

/* The experts' MLPs, and perhaps one beside them. */
static int16_t sparse_mlp(tsr_block *b, dice *d, int part, int16_t h)
{
    static const tsr_stack_names files = {.fused = "experts"};
    uint64_t f = 8 * (1 + roll(d, 3));
    bool bias = roll(d, 2);
    int32_t count;
    tsr_block_routes routes = route(b, d, part, h, &count);
    const tsr_stack gate_up = {.name = gate_ups[part],
                               .files = &files,
                               .experts = (uint64_t)count,
                               .out = 2 * f,
                               .in = b->width,
                               .parts = 2,
                               .bias = bias};
    const tsr_stack down = {.name = expert_downs[part],
                            .files = &files,
                            .experts = (uint64_t)count,
                            .out = b->width,
                            .in = f,
                            .parts = 1,
                            .bias = bias};
    int16_t rows = tsr_block_experts(b, h, &routes, &gate_up);
    int16_t act = tsr_block_routed_glu(b, rows, &routes, &down, activations[roll(d, 3)]);
    int16_t y = tsr_block_combine(b, act, &routes, &down);
    if (roll(d, 2))
        y = tsr_block_plus(b, y, mlp(b, d, part, h), (tsr_value_name){"mlp", "both"});
    return y;
}

/* What a part is added as: as it is, normed, or scaled. */
static int16_t settled(tsr_block *b, dice *d, int part, int16_t value)
{
    switch (roll(d, 3)) {
    case 0:
        return tsr_block_norm_of(b, value, after[part], 1e-5f, (tsr_value_name){"a", "normed"});
    case 1:
        return tsr_block_scale(b, value, 0.25f * (float)(1 + roll(d, 3)));
    default:
        return value;
    }
}

void random_block(tsr_block *out, uint64_t seed)
{
    dice d = {seed, 0};
    tsr_residual r = tsr_block_begin(out, 8 * (1 + roll(&d, 6)));
    int parts = 1 + (int)roll(&d, 3);
    int32_t head_dim = 4 * (1 + (int32_t)roll(&d, 3)); /* of all: one table turns them */
    for (int part = 0; part < parts; part++) {
        int16_t h = tsr_block_norm(out, &r, norms[part], 1e-5f, (tsr_value_name){"x", "a sum"},
                                   (tsr_value_name){"h", "its norm"});
        uint64_t kind = roll(&d, 16);
        bool sparse = kind >= 12 && !out->stack_count;
        int16_t y = sparse      ? sparse_mlp(out, &d, part, h)
                    : kind < 4  ? attention(out, &d, part, head_dim, h)
                    : kind < 8  ? mlp(out, &d, part, h)
                    : kind < 11 ? linear_attention(out, &d, part, h)
                                : latent(out, &d, part, head_dim, h);
        tsr_block_add(out, &r, settled(out, &d, part, y));
    }
    if (roll(&d, 3) == 0)
        tsr_block_gain(out, &r, "gain");
    assert_int_equal(tsr_block_end(out, r, "a random block"), TSR_OK);
}

void random_traits(tsr_matrix_traits *traits, const tsr_block *block, uint64_t seed, bool dropout)
{
    dice d = {seed ^ 0x5eed, 0};
    uint64_t share = 1 + roll(&d, 4); /* of the linears have an adapter */
    memset(traits, 0, TSR_BLOCK_WEIGHTS * sizeof *traits);
    for (int i = 0; i < block->matrix_count; i++) {
        bool adapted = roll(&d, 4) < share, dora = roll(&d, 2), low = roll(&d, 2);
        if (adapted && !block->matrix[i].router)
            traits[i] = (tsr_matrix_traits){
                .r = 8 * (1 + roll(&d, 2)), .dora = dora, .composes = dora && dropout};
        traits[i].low = low ? traits[i].r : 0;
    }
    for (int i = 0; i < block->stack_count; i++)
        if (roll(&d, 4) < share)
            traits[tsr_stack_weight(i)] = tsr_stack_traits(block, i, 8 * (1 + roll(&d, 2)), false);
}

tsr_keep random_keep(uint64_t seed, int how)
{
    dice d = {seed ^ 0x4ee9, 0};
    tsr_keep keep = {{0}};
    uint64_t share = 1 + roll(&d, 7);
    if (how == 0)
        return TSR_KEEP_ALL;
    for (int v = 0; v < TSR_BLOCK_VALUES && how == 1; v++)
        if (roll(&d, 8) < share)
            tsr_keep_add(&keep, v);
    return keep;
}
