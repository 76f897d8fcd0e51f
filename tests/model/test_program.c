/*
 * What a layer runs and where its values lie, for hundreds of random blocks: a memory in which every byte knows what
 * was written there last is taken through a forward, whatever other layers do in between, the nodes that are run
 * again, and the backward, whole or in tiles of rows. Whoever reads a value or a gradient must find it whole.
 */
#include "model/random_block.h"

#include "base/philox.h"
#include "model/node_parts.h"
#include "model/program.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { BLOCKS = 400, TOKENS = 5, MOST = 2048 };

/* A value, or the gradient of one; or of a node, gradients in e4m3. */
typedef struct {
    int16_t value;
    enum { VALUE, GRADIENT, CODES } kind;
} thing;

/* What lies in a stretch of memory, the rows of one tile; a space is the scratch, a kept buffer, or what lies between
 * layers. */
typedef struct {
    thing what;
    int tile, space;
    uint64_t begin, end;
} held;

typedef struct {
    const tsr_layer_program *program;
    const char *about;
    held held[MOST];
    int count;
    int tile; /* whose rows are at work; ALL */
} memory;

enum { ALL = -1, SCRATCH = -1, CARRIED_X = -2, CARRIED_Z = -3, DX = -4 };

static int space_of(tsr_value_place place)
{
    static const int spaces[] = {[TSR_PLACE_SCRATCH] = SCRATCH,
                                 [TSR_PLACE_CARRIED_X] = CARRIED_X,
                                 [TSR_PLACE_CARRIED_Z] = CARRIED_Z,
                                 [TSR_PLACE_DX] = DX};
    return place.kind == TSR_PLACE_KEPT ? (int)place.at : spaces[place.kind];
}

static int tile_count(const memory *m)
{
    int tile_rows = (int)m->program->tile_rows;
    return tile_rows ? (TOKENS + tile_rows - 1) / tile_rows : 1;
}

/* The bytes of `rows` rows. */
static uint64_t bytes_of(const memory *m, thing what, int64_t rows)
{
    const tsr_block *b = m->program->block;
    int matrix = b->value[what.value].matrix;
    bool inner =
        what.kind == GRADIENT && matrix != TSR_NONE && b->matrix[matrix].inner == what.value;
    int value = inner ? b->matrix[matrix].result : what.value;
    return tsr_value_width(m->program, value) * (uint64_t)rows * sizeof(float);
}

/* The rows of one tile, of those that are all there, or of which there is one tile only. */
static held stretch(const memory *m, thing what, tsr_value_place place, int tile)
{
    const tsr_value *value = &m->program->block->value[what.value];
    int64_t tile_rows = m->program->tile_rows ? m->program->tile_rows : TOKENS,
            first = tile * tile_rows;
    bool last = tile == tile_count(m) - 1;
    uint64_t at = place.kind == TSR_PLACE_SCRATCH ? place.at : 0;
    assert_int_equal(at % TSR_ALIGNMENT, 0); /* some kernels are for rows on 16 bytes: other bits */
    uint64_t begin = place.of_tile ? 0 : bytes_of(m, what, first);
    uint64_t end = begin + bytes_of(m, what, last ? TOKENS - first : tile_rows);
    if (last && !place.of_tile)
        end += value->fixed * sizeof(float);
    if (place.kind == TSR_PLACE_NOWHERE)
        fail_msg("%s: %s%s has no place", m->about, what.kind == GRADIENT ? "the gradient of " : "",
                 value->name);
    if (place.of_tile && m->tile == ALL)
        fail_msg("%s: %s is there for a tile only", m->about, value->name);
    held h = {what, tile, space_of(place), at + begin, at + end};
    assert_true(h.space != SCRATCH || h.end <= m->program->scratch_bytes);
    return h;
}

/* Whatever lay there is gone. */
static void clear(memory *m, held h)
{
    int kept = 0;
    for (int i = 0; i < m->count; i++)
        if (m->held[i].space != h.space || m->held[i].end <= h.begin || m->held[i].begin >= h.end)
            m->held[kept++] = m->held[i];
    m->count = kept;
}

static void hold(memory *m, held h)
{
    assert_true(m->count < MOST);
    m->held[m->count++] = h;
}

static void put(memory *m, thing what, tsr_value_place place)
{
    for (int tile = 0; tile < tile_count(m); tile++)
        if (m->tile == ALL || m->tile == tile) {
            held h = stretch(m, what, place, tile);
            clear(m, h);
            hold(m, h);
        }
}

static bool is_held(const memory *m, held h)
{
    for (int i = 0; i < m->count; i++) {
        const held *at = &m->held[i];
        if (at->what.value == h.what.value && at->what.kind == h.what.kind && at->tile == h.tile &&
            at->space == h.space && at->begin == h.begin && at->end == h.end)
            return true;
    }
    return false;
}

static void need(const memory *m, thing what, tsr_value_place place)
{
    for (int tile = 0; tile < tile_count(m); tile++)
        if ((m->tile == ALL || m->tile == tile) && !is_held(m, stretch(m, what, place, tile)))
            fail_msg("%s: %s%s is read, and is not there", m->about,
                     what.kind == GRADIENT ? "the gradient of " : "",
                     m->program->block->value[what.value].name);
}

static void need_value(const memory *m, int16_t value, const tsr_value_place *places)
{
    need(m, (thing){value, VALUE}, places[value]);
}

/* ---- forward, and what is run again ---- */

static void run_forward(memory *m, const tsr_step *step, bool again)
{
    const tsr_block *b = m->program->block;
    const tsr_node *node = &b->node[step->node];
    const tsr_value_place *places = again ? m->program->in_backward : m->program->in_forward;
    for (int port = 0; port < TSR_NODE_PORTS; port++) {
        int16_t in = step->has_sum ? TSR_NONE : node->in[port];
        bool entered = in == b->in.x || in == b->in.pending;
        if (entered && again)
            fail_msg("%s: what entered the block is read again", m->about);
        if (in != TSR_NONE && !entered)
            need_value(m, in, places);
    }
    if (step->has_sum)
        need_value(m, node->out[TSR_NORM_SUM], places);
    for (int port = 0; port < TSR_NODE_PORTS; port++) {
        if (!(step->outputs & 1u << port))
            continue;
        if (node->kind == &tsr_node_linear) {
            const tsr_matrix *x = &b->matrix[node->weight[port]];
            if (places[x->low].kind != TSR_PLACE_NOWHERE)
                put(m, (thing){x->low, VALUE}, places[x->low]);
            if (tsr_value_width(m->program, x->inner))
                put(m, (thing){x->inner, VALUE}, places[x->inner]);
        }
        put(m, (thing){node->out[port], VALUE}, places[node->out[port]]);
    }
    for (int n = 0; n < b->stack_count; n++)
        if (b->stack[n].node == step->node && places[b->stack[n].low].kind != TSR_PLACE_NOWHERE)
            put(m, (thing){b->stack[n].low, VALUE}, places[b->stack[n].low]);
}

/* Other layers and the head have run: what is not this layer's own is gone. */
static void forget(memory *m)
{
    for (int space = DX; space <= SCRATCH; space++)
        clear(m, (held){.space = space, .end = UINT64_MAX});
}

/* ---- backward ---- */

/* x A^T of a linear or of experts that are not run again, which make it themselves. */
static bool may_lack(const memory *m, int16_t value)
{
    const tsr_layer_program *p = m->program;
    int matrix = p->block->value[value].matrix;
    bool low = matrix != TSR_NONE ? p->block->matrix[matrix].low == value
                                  : p->block->value[value].stack != TSR_NONE;
    return low && !p->kept[value] && p->in_backward[value].kind == TSR_PLACE_NOWHERE;
}

static void read_backward(const memory *m, const tsr_step *step)
{
    const tsr_layer_program *p = m->program;
    const tsr_node *node = &p->block->node[step->node];
    tsr_needs needs;
    tsr_needs_of(&needs, p->block, p->traits, step);
    for (int i = 0; i < needs.read_count; i++)
        if (!may_lack(m, needs.read[i]))
            need_value(m, needs.read[i], p->in_backward);
    for (int port = 0; port < TSR_NODE_PORTS; port++)
        if (step->outputs & 1u << port)
            need(m, (thing){node->out[port], GRADIENT}, p->gradient[node->out[port]]);
}

/* A gradient that another one is as well, where that lies. */
static void hold_gradient(memory *m, int16_t value)
{
    for (int tile = 0; tile < tile_count(m); tile++)
        if (m->tile == ALL || m->tile == tile)
            hold(m, stretch(m, (thing){value, GRADIENT}, m->program->gradient[value], tile));
}

/* The gradient of the sum is changed in place, and is then that of both that were added. */
static void norm_backward(memory *m, const tsr_node *node, const tsr_step *step)
{
    const tsr_value_place *places = m->program->gradient;
    if (node->in[TSR_NORM_X] == TSR_NONE) { /* its own, of what is not added to anything yet */
        int16_t alone = node->in[TSR_NORM_PENDING];
        put(m, (thing){alone, GRADIENT}, places[alone]);
        return;
    }
    if (step->outputs & 1u << TSR_NORM_H)
        put(m, (thing){node->in[TSR_NORM_X], GRADIENT}, places[node->in[TSR_NORM_X]]);
    for (int port = 0; port < 2; port++) {
        if (node->in[port] == TSR_NONE)
            continue;
        assert_int_equal(space_of(places[node->in[port]]), DX);
        hold_gradient(m, node->in[port]);
    }
}

/* Both terms have the gradient of the sum, where it lies. */
static void sum_backward(memory *m, const tsr_node *node, const tsr_step *step)
{
    const tsr_value_place *places = m->program->gradient, *sum = &places[node->out[0]];
    for (int port = 0; port < 2; port++) {
        if (!(step->inputs & 1u << port))
            continue;
        const tsr_value_place *own = &places[node->in[port]];
        assert_true(own->kind == sum->kind && own->at == sum->at && own->of_tile == sum->of_tile);
        assert_false(step->adds & 1u << port);
        hold_gradient(m, node->in[port]);
    }
}

/* Where gradients in e4m3 lie; they are read by the next step. */
static held codes_of(const memory *m, int node)
{
    const tsr_layer_program *p = m->program;
    tsr_value_place place = p->codes[node];
    int64_t tile_rows = p->tile_rows ? p->tile_rows : TOKENS, left = TOKENS - m->tile * tile_rows;
    int64_t rows = m->tile == ALL ? TOKENS : left < tile_rows ? left : tile_rows;
    uint64_t bytes = 0, at = place.kind == TSR_PLACE_SCRATCH ? place.at : 0;
    for (int port = 0; port < TSR_NODE_PORTS; port++)
        if (p->block->node[node].in[port] != TSR_NONE)
            bytes += p->block->value[p->block->node[node].in[port]].width * (uint64_t)rows;
    assert_true(m->tile == ALL || place.of_tile);
    return (held){{(int16_t)node, CODES}, m->tile, space_of(place), at, at + bytes};
}

/* What a tile's gradients of adapters lie in is of no other use. */
static void use_sums(memory *m, const tsr_step *step)
{
    tsr_step_gradient written[TSR_STEP_GRADIENTS];
    int count = tsr_step_gradients(written, m->program, step);
    tsr_value_place place = m->program->sums[step->node];
    uint64_t end = place.at;
    for (int i = 0; i < count; i++)
        end += tsr_step_gradient_bytes(&written[i]);
    if (m->tile == ALL || !count)
        return;
    assert_true(place.kind == TSR_PLACE_SCRATCH && end <= m->program->scratch_bytes);
    clear(m, (held){.space = SCRATCH, .begin = place.at, .end = end});
}

static void run_backward(memory *m, const tsr_step *step, const tsr_step *before)
{
    const tsr_layer_program *p = m->program;
    const tsr_block *b = p->block;
    const tsr_node *node = &b->node[step->node];
    use_sums(m, step);
    read_backward(m, step);
    if (before && before->makes_rows && b->node[before->node].kind->scales)
        assert_true(is_held(m, codes_of(m, before->node)));
    for (int port = 0; port < TSR_NODE_PORTS && node->kind == &tsr_node_linear; port++)
        if (step->outputs & 1u << port &&
            tsr_matrix_scales_back(b, p->traits, node->weight[port])) {
            int16_t inner = b->matrix[node->weight[port]].inner;
            put(m, (thing){inner, GRADIENT}, p->gradient[inner]);
            read_backward(m, step); /* what it reads is still there beside it */
        }
    if (node->kind == &tsr_node_norm) {
        norm_backward(m, node, step);
        return;
    }
    if (node->kind == &tsr_node_sum) {
        sum_backward(m, node, step);
        return;
    }
    for (int port = 0; port < TSR_NODE_PORTS; port++)
        if (step->inputs & 1u << port) {
            thing gradient = {node->in[port], GRADIENT};
            if (step->adds & 1u << port)
                need(m, gradient, p->gradient[node->in[port]]);
            put(m, gradient, p->gradient[node->in[port]]);
        }
    if (step->makes_rows && node->kind->scales) {
        held codes = codes_of(m, step->node);
        clear(m, codes);
        hold(m, codes);
        for (int port = 0; port < TSR_NODE_PORTS; port++) /* which lie beside them */
            if (step->inputs & 1u << port)
                need(m, (thing){node->in[port], GRADIENT}, p->gradient[node->in[port]]);
    }
}

static void run_step(memory *m, bool backward, int index)
{
    const tsr_layer_program *p = m->program;
    const tsr_step *step = tsr_step_at(p, backward, index);
    if (!backward || index < p->remade.count)
        run_forward(m, step, backward);
    else
        run_backward(m, step, index > p->remade.count ? step - 1 : NULL);
}

/* All steps, those that go through tiles together for one tile after the other. */
static void run(memory *m, bool backward)
{
    int count = tsr_step_count(m->program, backward);
    for (int i = 0, end; i < count; i = end) {
        end = tsr_tile_end(m->program, backward, i, count);
        for (m->tile = 0; end > i && m->tile < tile_count(m); m->tile++)
            for (int j = i; j < end; j++)
                run_step(m, backward, j);
        m->tile = ALL;
        if (end == i)
            run_step(m, backward, end++);
    }
}

/* ---- blocks ---- */

/* As a GPU's may be: no multiple of what values begin on, and larger than they, so that they lie behind it. */
static uint64_t odd_workspace(const tsr_attention_bounds *bounds)
{
    return 100007 * (uint64_t)bounds->q_heads;
}

static void check(const tsr_block *b, const tsr_layer_program_options *options, const char *about)
{
    static tsr_layer_program program;
    static memory m;
    tsr_kernels kernels = *tsr_kernels_cpu();
    kernels.attention_workspace_bytes = odd_workspace;
    const tsr_layer_program_sizes sizes = {
        &kernels, {.tokens = TOKENS, .documents = 1, .longest = TOKENS, .dtype = TSR_F32}, TSR_F32};
    tsr_layer_program_make(&program, options);
    if (tsr_layer_program_place(&program, &sizes) < 0)
        fail_msg("%s: %s", about, tsr_last_error());
    m = (memory){.program = &program, .about = about, .tile = ALL};
    run(&m, false);
    need_value(&m, b->out.x, program.in_forward);
    if (b->out.pending != TSR_NONE)
        need_value(&m, b->out.pending, program.in_forward);
    if (!options->trains) {
        assert_int_equal(program.kept_count, 0);
        return;
    }
    forget(&m);
    put(&m, (thing){b->out.x, GRADIENT}, program.gradient[b->out.x]);
    if (b->out.pending != TSR_NONE)
        hold_gradient(&m, b->out.pending);
    run(&m, true);
    if (options->below)
        need(&m, (thing){b->in.x, GRADIENT}, (tsr_value_place){.kind = TSR_PLACE_DX});
}

/* Parts at random; whether a layer may be cut there does not matter here. */
static void random_parts(uint8_t part[TSR_BLOCK_NODES], uint64_t seed)
{
    part[0] = 0;
    for (int i = 1; i < TSR_BLOCK_NODES; i++)
        part[i] = (uint8_t)(part[i - 1] + (tsr_mix(seed + (uint64_t)i) % 4 == 0));
}

static void test_places(void **state)
{
    static const int hows[] = {0, 2, 1, 1, 1};
    (void)state;
    for (uint64_t seed = 0; seed < BLOCKS; seed++) {
        static tsr_block block;
        tsr_matrix_traits traits[TSR_BLOCK_WEIGHTS];
        random_block(&block, seed);
        for (int way = 0; way < 42; way++) {
            uint8_t part[TSR_BLOCK_NODES];
            char about[96];
            tsr_layer_program_options options = {
                .block = &block,
                .traits = traits,
                .trains = way < 40,
                .below = way & 1,
                .fp8 = way & 2,
                .tile_rows = (way / 3 + (int)seed) % 5, /* 0: whole */
                .part = way % 3 ? part : NULL,
                .keep = random_keep(seed + (uint64_t)way, hows[way / 8 % 5])};
            random_traits(traits, &block, seed, way & 4);
            random_parts(part, seed + (uint64_t)way);
            snprintf(about, sizeof about, "block %d, way %d", (int)seed, way);
            check(&block, &options, about);
        }
    }
}

/* With everything allowed what the backward reads is kept, and nothing is made again; with nothing the first sum
 * alone. Of any set what is of no use is not kept, and what is kept is not made again. */
static void test_what_is_kept(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < BLOCKS; seed++) {
        static tsr_block block;
        static tsr_layer_program p[3];
        tsr_matrix_traits traits[TSR_BLOCK_WEIGHTS];
        random_block(&block, seed);
        random_traits(traits, &block, seed, false);
        for (int how = 0; how < 3; how++)
            tsr_layer_program_make(&p[how],
                                   &(tsr_layer_program_options){.block = &block,
                                                                .traits = traits,
                                                                .trains = true,
                                                                .below = true,
                                                                .keep = random_keep(seed, how)});
        assert_int_equal(p[0].remade.count, 0);
        for (int16_t v = 0; v < block.value_count; v++) {
            assert_true(p[0].kept[v] == (p[0].needed[v] || v == block.root));
            assert_true(p[2].kept[v] == (v == block.root));
            assert_true(!p[1].kept[v] || v == block.root || tsr_keep_has(&p[1].keep, v));
            bool used = p[1].needed[v] || v == block.root;
            for (int i = 0; i < p[1].remade.count; i++) {
                const tsr_step *step = &p[1].remade.step[i];
                const tsr_node *node = &block.node[step->node];
                for (int port = 0; port < TSR_NODE_PORTS; port++) {
                    used |= !step->has_sum && node->in[port] == v;
                    used |= step->has_sum && node->out[TSR_NORM_SUM] == v;
                    bool made = step->outputs & 1u << port && node->out[port] == v;
                    assert_true(!made || node->kind != &tsr_node_linear || !p[1].kept[v] ||
                                p[1].needed[block.matrix[node->weight[port]].inner]);
                }
            }
            assert_true(!p[1].kept[v] || used);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_places),
                                       cmocka_unit_test(test_what_is_kept)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
