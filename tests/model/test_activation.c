/*
 * Which x A^T a layer keeps for its backward, and where: of the linears whose forward makes it whatever graph it
 * takes; of its own, or shared by the layers that recompute in full. Of several adapters as wide as they are together, up to a
 * stack, in 16 bits alone; and what a stack needs.
 */
#include "model/activation.h"

#include "model/arch/decoder.h"
#include "support/llama.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { LAYERS = 4, TOKENS = 40, D = 128, F = 192, KV = 64, R = 16, MOST = 256 };

typedef struct {
    tsr_block block;
    tsr_layout_linear linear[LAYERS][LLAMA_LINEARS];
    tsr_layout_unit unit[LAYERS];
    tsr_layout layout;
    tsr_keep keep[LAYERS];
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
    assert_int_equal(tsr_decoder_block(&m->block, &m->layout.config, 0), TSR_OK);
    for (int i = 0; i < LAYERS; i++) {
        m->keep[i] = TSR_KEEP_ALL;
        m->unit[i] = (tsr_layout_unit){.block = &m->block, .linear = m->linear[i], .dora = dora};
        for (int kind = 0; kind < LLAMA_LINEARS; kind++)
            m->linear[i][kind] = (tsr_layout_linear){.in = m->block.matrix[kind].in,
                                                     .out = m->block.matrix[kind].out,
                                                     .quantized = true,
                                                     .r = R,
                                                     .dora = dora};
    }
    m->options = (tsr_activation_options){.layout = &m->layout,
                                          .bounds = {TOKENS, 1, TOKENS, TOKENS},
                                          .kernels = tsr_kernels_cpu(),
                                          .dtype = TSR_F32,
                                          .keep = m->keep,
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

static tsr_status take(void *user, void **out, const char *name, const char *why, tsr_array array)
{
    assert_true(*why);
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

static uint64_t low_of(const taken *t, int layer, int kind)
{
    char name[96];
    snprintf(name, sizeof name, "layer %d low %s", layer, llama_linear[kind]);
    return columns_of(t, name);
}

/* Where x A^T of each linear of each layer lies in the backward. */
static tsr_place_kind place[LAYERS][LLAMA_LINEARS];

static taken walk(const model *m)
{
    static void *kept[LAYERS * TSR_BLOCK_VALUES];
    taken t = {0};
    tsr_activations out = {.kept = kept};
    tsr_layer_programs *programs;
    assert_int_equal(tsr_layer_programs_make(&programs, &m->options), TSR_OK);
    assert_int_equal(tsr_activations_walk(&out, &m->options, programs, take, &t), TSR_OK);
    for (int i = 0; i < LAYERS * LLAMA_LINEARS; i++) {
        int layer = i / LLAMA_LINEARS, kind = i % LLAMA_LINEARS;
        place[layer][kind] =
            tsr_layer_program_of(programs, layer)->in_backward[m->block.matrix[kind].low].kind;
    }
    tsr_layer_programs_free(programs);
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
        for (int i = 0; i < LAYERS * LLAMA_LINEARS; i++)
            m.linear[i / LLAMA_LINEARS][i % LLAMA_LINEARS].quantized = nf4;
        bool merges = nf4 && !fp8 && m.options.dtype == TSR_BF16;
        taken t = walk(&m);
        for (int kind = 0; kind < LLAMA_LINEARS; kind++) {
            bool none = merges && !dropout;
            assert_int_equal(low_of(&t, 1, kind), none ? 0 : R);
            assert_int_equal(place[1][kind], none ? TSR_PLACE_NOWHERE : TSR_PLACE_KEPT);
        }
    }
}

/* A layer's own where it is kept; with full recomputation in the scratch, but for that of down_proj, which
 * is made again only for dm. What does not train keeps none, nor does an evaluation. */
static void test_where(void **state)
{
    (void)state;
    for (int dora = 0; dora < 2; dora++) {
        model m;
        make(&m, dora);
        m.layout.first_trained = 1;
        m.keep[1] = m.keep[3] = TSR_KEEP_NONE;
        taken t = walk(&m);
        for (int kind = 0; kind < LLAMA_LINEARS; kind++) {
            tsr_place_kind again =
                kind != LLAMA_DOWN || dora ? TSR_PLACE_SCRATCH : TSR_PLACE_NOWHERE;
            assert_int_equal(low_of(&t, 2, kind), R);
            assert_int_equal(low_of(&t, 0, kind) + low_of(&t, 1, kind) + low_of(&t, 3, kind), 0);
            assert_true(place[0][kind] == TSR_PLACE_NOWHERE && place[2][kind] == TSR_PLACE_KEPT);
            assert_true(place[1][kind] == again && place[3][kind] == again);
        }
        m.options.train = false;
        t = walk(&m);
        for (int kind = 0; kind < LLAMA_LINEARS; kind++)
            assert_true(place[2][kind] == TSR_PLACE_NOWHERE && !low_of(&t, 2, kind));
    }
}

/* As wide as each layer needs; none of what has no adapter or is merged. */
static void test_ranks(void **state)
{
    (void)state;
    model m;
    make(&m, false);
    m.options.dtype = TSR_BF16;
    for (int i = 0; i < LAYERS; i++) {
        m.linear[i][LLAMA_Q].quantized = false;
        m.linear[i][LLAMA_Q].r = (uint64_t)(8 * (i + 1));
    }
    m.linear[1][LLAMA_O].quantized = m.linear[3][LLAMA_O].quantized = false;
    m.linear[3][LLAMA_O].r = 0;
    m.layout.largest_r = 8 * LAYERS;
    taken t = walk(&m);
    for (int i = 0; i < LAYERS; i++) {
        assert_int_equal(low_of(&t, i, LLAMA_Q), 8 * (i + 1));
        assert_int_equal(low_of(&t, i, LLAMA_O), i == 1 ? R : 0);
        assert_int_equal(low_of(&t, i, LLAMA_GATE), 0);
    }
}

static tsr_array array_of(const taken *t, const char *name)
{
    for (int i = 0; i < t->count; i++)
        if (!strcmp(t->name[i], name))
            return t->array[i];
    return (tsr_array){0};
}

static void expect_array(const taken *t, const char *name, tsr_dtype dtype, uint64_t rows,
                         uint64_t columns)
{
    tsr_array array = array_of(t, name);
    if (rows)
        assert_int_equal(array.dtype, dtype);
    if (array.rows != rows || array.columns != columns)
        fail_msg("%s is %d x %d, expected %d x %d", name, (int)array.rows, (int)array.columns,
                 (int)rows, (int)columns);
}

static void test_stacks(void **state)
{
    (void)state;
    static const struct {
        uint64_t r[3], columns;
    } cases[] = {{{16, 8, 0}, 24}, {{64, 48, 40}, TSR_LINEAR_STACK}, {{8, 256, 8}, 256}};
    for (int n = 0; n < 6; n++) {
        bool stacks = n % 2;
        tsr_layout_mixed mixed[3] = {{0}};
        uint64_t r = 0, columns = cases[n / 2].columns;
        model m;
        make(&m, false);
        for (int k = 0; k < 3; k++) {
            mixed[k].r = cases[n / 2].r[k];
            r = mixed[k].r > r ? mixed[k].r : r;
        }
        for (int i = 0; i < LAYERS * LLAMA_LINEARS; i++) {
            m.linear[i / LLAMA_LINEARS][i % LLAMA_LINEARS].r = r;
            m.linear[i / LLAMA_LINEARS][i % LLAMA_LINEARS].mixed = mixed;
        }
        m.layout.mixed_count = 3;
        m.layout.largest_r = r;
        m.options.dtype = stacks ? TSR_BF16 : TSR_F32;
        taken t = walk(&m);
        for (int kind = 0; kind < LLAMA_LINEARS; kind++)
            assert_int_equal(low_of(&t, 1, kind), stacks ? columns : r);
        assert_int_equal(columns_of(&t, "scratch low"), stacks ? columns : r);
        assert_int_equal(columns_of(&t, "scratch d_low"), stacks ? columns : r);
        expect_array(&t, "scratch stacked A", TSR_BF16, stacks ? columns : 0, stacks ? F : 0);
        expect_array(&t, "scratch stacked B", TSR_BF16, stacks ? F : 0, stacks ? columns : 0);
        expect_array(&t, "scratch stacked dA", TSR_F32, stacks ? columns : 0, stacks ? F : 0);
        expect_array(&t, "scratch stacked dB", TSR_F32, stacks ? F : 0, stacks ? columns : 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_which), cmocka_unit_test(test_where),
                                       cmocka_unit_test(test_ranks), cmocka_unit_test(test_stacks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
