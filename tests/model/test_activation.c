/*
 * Which x A^T a layer keeps for its backward, and where: of the linears whose forward makes it whatever graph it
 * takes; of its own, or shared by the layers that recompute in full.
 */
#include "model/activation.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { LAYERS = 4, TOKENS = 40, D = 128, F = 192, KV = 64, R = 16, MOST = 256 };

static const uint64_t sides[TSR_LINEAR_COUNT][2] = {{D, D}, {D, KV}, {D, KV}, {D, D},
                                                    {D, F}, {D, F},  {F, D}};

typedef struct {
    tsr_layout_linear linear[LAYERS][TSR_LINEAR_COUNT];
    tsr_layout_unit unit[LAYERS];
    tsr_layout layout;
    tsr_recompute recompute[LAYERS];
    tsr_activation_options options;
} model;

static void make(model *m, bool dora)
{
    *m = (model){.layout = {.layer_count = LAYERS, .unit = m->unit, .largest_r = R}};
    m->layout.config = (tsr_model_config){.hidden_size = D,
                                          .intermediate_size = F,
                                          .head_count = 2,
                                          .kv_head_count = 1,
                                          .head_dim = KV};
    for (int i = 0; i < LAYERS; i++) {
        m->unit[i] = (tsr_layout_unit){.linear = m->linear[i], .dora = dora};
        for (int kind = 0; kind < TSR_LINEAR_COUNT; kind++)
            m->linear[i][kind] = (tsr_layout_linear){.in = sides[kind][0],
                                                     .out = sides[kind][1],
                                                     .quantized = true,
                                                     .r = R,
                                                     .dora = dora};
    }
    m->options = (tsr_activation_options){.layout = &m->layout,
                                          .bounds = {TOKENS, 1, TOKENS, TOKENS},
                                          .kernels = tsr_kernels_cpu(),
                                          .dtype = TSR_F32,
                                          .recompute = m->recompute,
                                          .train = true};
}

/* What a walk asks for; each buffer gets memory that none has. */
typedef struct {
    char name[MOST][96];
    tsr_array array[MOST];
    int count;
    uint64_t used;
} taken;

static char memory[1 << 24];

static tsr_status take(void *user, void **out, const char *name, tsr_array array)
{
    taken *t = user;
    assert_true(t->count < MOST);
    snprintf(t->name[t->count], sizeof t->name[0], "%s", name);
    t->array[t->count++] = array;
    *out = memory + t->used;
    t->used += tsr_array_bytes(array);
    assert_true(t->used <= sizeof memory);
    return TSR_OK;
}

/* The columns of a buffer; 0: there is none. */
static uint64_t columns_of(const taken *t, const char *name)
{
    for (int i = 0; i < t->count; i++)
        if (!strcmp(t->name[i], name)) {
            assert_int_equal(t->array[i].rows, TOKENS);
            return t->array[i].columns;
        }
    return 0;
}

static uint64_t low_of(const taken *t, int layer, tsr_linear_kind kind)
{
    char name[96];
    if (layer < 0)
        snprintf(name, sizeof name, "scratch low %s", tsr_linear_name[kind]);
    else
        snprintf(name, sizeof name, "layer %d low %s", layer, tsr_linear_name[kind]);
    return columns_of(t, name);
}

static tsr_layer_buffers kept[LAYERS];

static taken walk(const model *m)
{
    taken t = {0};
    tsr_activations out = {.kept = kept};
    assert_int_equal(tsr_activations_walk(&out, &m->options, take, &t), TSR_OK);
    return t;
}

/* Where nothing can be merged, or there is dropout; and only there. */
static void test_which(void **state)
{
    (void)state;
    for (int way = 0; way < 16; way++) {
        model m;
        make(&m, false);
        bool nf4 = way & 1, dropout = way & 4, fp8 = nf4 && way & 8;
        m.options.dtype = way & 2 ? TSR_BF16 : TSR_F32;
        m.options.dropout = dropout;
        m.options.fp8 = fp8;
        for (int i = 0; i < LAYERS * TSR_LINEAR_COUNT; i++)
            m.linear[i / TSR_LINEAR_COUNT][i % TSR_LINEAR_COUNT].quantized = nf4;
        bool merges = nf4 && !fp8 && m.options.dtype == TSR_BF16;
        taken t = walk(&m);
        for (tsr_linear_kind kind = 0; kind < TSR_LINEAR_COUNT; kind++) {
            assert_int_equal(low_of(&t, 1, kind), merges && !dropout ? 0 : R);
            assert_int_equal(kept[1].low[kind] == NULL, merges && !dropout);
            assert_int_equal(low_of(&t, -1, kind), 0);
        }
    }
}

/* A layer's own without recomputation and with some; with all of it the layers share one, but for that of
 * down_proj, which is made again only for dm. What does not train keeps none, nor does an evaluation. */
static void test_where(void **state)
{
    (void)state;
    for (int dora = 0; dora < 2; dora++) {
        model m;
        make(&m, dora);
        m.layout.first_trained = 1;
        m.recompute[1] = m.recompute[3] = TSR_RECOMPUTE_FULL;
        m.recompute[2] = TSR_RECOMPUTE_SELECTIVE;
        taken t = walk(&m);
        for (tsr_linear_kind kind = 0; kind < TSR_LINEAR_COUNT; kind++) {
            bool shared = kind != TSR_DOWN || dora;
            assert_int_equal(low_of(&t, -1, kind), shared ? R : 0);
            assert_int_equal(low_of(&t, 2, kind), R);
            assert_int_equal(low_of(&t, 0, kind) + low_of(&t, 1, kind) + low_of(&t, 3, kind), 0);
            assert_true(!kept[0].low[kind] && kept[2].low[kind]);
            assert_true(kept[1].low[kind] == kept[3].low[kind] && !kept[1].low[kind] == !shared);
            assert_true(kept[1].low[kind] != kept[2].low[kind]);
        }
        m.options.train = false;
        t = walk(&m);
        for (tsr_linear_kind kind = 0; kind < TSR_LINEAR_COUNT; kind++)
            assert_true(!kept[2].low[kind] && !low_of(&t, -1, kind) && !low_of(&t, 2, kind));
    }
}

/* As wide as each layer needs, or the widest of those that share; none of what has no adapter or is merged. */
static void test_ranks(void **state)
{
    (void)state;
    model m;
    make(&m, false);
    m.options.dtype = TSR_BF16;
    m.recompute[1] = m.recompute[2] = TSR_RECOMPUTE_FULL;
    for (int i = 0; i < LAYERS; i++) {
        m.linear[i][TSR_Q].quantized = false;
        m.linear[i][TSR_Q].r = (uint64_t)(8 * (i + 1));
    }
    m.linear[1][TSR_O].quantized = m.linear[3][TSR_O].quantized = false;
    m.linear[3][TSR_O].r = 0;
    m.layout.largest_r = 8 * LAYERS;
    taken t = walk(&m);
    assert_int_equal(low_of(&t, 0, TSR_Q), 8);
    assert_int_equal(low_of(&t, 3, TSR_Q), 32);
    assert_int_equal(low_of(&t, -1, TSR_Q), 24);
    assert_int_equal(low_of(&t, -1, TSR_O), R);
    assert_true(kept[1].low[TSR_O] && !kept[2].low[TSR_O] && !kept[3].low[TSR_O]);
    assert_true(!low_of(&t, 3, TSR_O) && !low_of(&t, 0, TSR_O) && !low_of(&t, -1, TSR_GATE));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_which), cmocka_unit_test(test_where),
                                       cmocka_unit_test(test_ranks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
