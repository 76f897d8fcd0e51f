/*
 * What a layer runs and where its values lie, for hundreds of random blocks: a memory in which every byte knows what
 * was written there last is taken through a forward, whatever other layers do in between, the nodes that are run
 * again, and the backward. Whoever reads a value or a gradient must find it whole.
 */
#include "model/random_block.h"

#include "model/node_parts.h"
#include "model/program.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { BLOCKS = 400, TOKENS = 5, MOST = 512 };

/* A value, or the gradient of one. */
typedef struct {
    int16_t value;
    bool gradient;
} thing;

/* What lies in a stretch of memory; a space is the scratch, a kept buffer, or what lies between layers. */
typedef struct {
    thing what;
    int space;
    uint64_t begin, end;
} held;

typedef struct {
    const tsr_layer_program *program;
    const char *about;
    held held[MOST];
    int count;
} memory;

enum { SCRATCH = -1, CARRIED_X = -2, CARRIED_Z = -3, DX = -4 };

static int space_of(tsr_value_place place)
{
    static const int spaces[] = {[TSR_PLACE_SCRATCH] = SCRATCH,
                                 [TSR_PLACE_CARRIED_X] = CARRIED_X,
                                 [TSR_PLACE_CARRIED_Z] = CARRIED_Z,
                                 [TSR_PLACE_DX] = DX};
    return place.kind == TSR_PLACE_KEPT ? (int)place.at : spaces[place.kind];
}

static uint64_t bytes_of(const memory *m, thing what)
{
    const tsr_block *b = m->program->block;
    int matrix = b->value[what.value].matrix;
    if (what.gradient && matrix != TSR_NONE && b->matrix[matrix].inner == what.value)
        return tsr_value_bytes(m->program, b->matrix[matrix].result, TOKENS, TSR_F32);
    return tsr_value_bytes(m->program, what.value, TOKENS, TSR_F32);
}

static held stretch(const memory *m, thing what, tsr_value_place place)
{
    uint64_t at = place.kind == TSR_PLACE_SCRATCH ? place.at : 0;
    held h = {what, space_of(place), at, at + bytes_of(m, what)};
    if (place.kind == TSR_PLACE_NOWHERE)
        fail_msg("%s: %s%s has no place", m->about, what.gradient ? "the gradient of " : "",
                 m->program->block->value[what.value].name);
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

static void put(memory *m, thing what, tsr_value_place place)
{
    held h = stretch(m, what, place);
    clear(m, h);
    assert_true(m->count < MOST);
    m->held[m->count++] = h;
}

static void need(const memory *m, thing what, tsr_value_place place)
{
    held h = stretch(m, what, place);
    for (int i = 0; i < m->count; i++) {
        const held *at = &m->held[i];
        if (at->what.value == what.value && at->what.gradient == what.gradient &&
            at->space == h.space && at->begin == h.begin && at->end == h.end)
            return;
    }
    fail_msg("%s: %s%s is read, and is not there", m->about,
             what.gradient ? "the gradient of " : "", m->program->block->value[what.value].name);
}

static void need_value(const memory *m, int16_t value, const tsr_value_place *places)
{
    need(m, (thing){value, false}, places[value]);
}

/* ---- forward, and what is run again ---- */

static void run_forward(memory *m, const tsr_steps *steps, const tsr_value_place *places,
                        bool again)
{
    const tsr_block *b = m->program->block;
    for (int i = 0; i < steps->count; i++) {
        const tsr_step *step = &steps->step[i];
        const tsr_node *node = &b->node[step->node];
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
                    put(m, (thing){x->low, false}, places[x->low]);
                if (tsr_value_width(m->program, x->inner))
                    put(m, (thing){x->inner, false}, places[x->inner]);
            }
            put(m, (thing){node->out[port], false}, places[node->out[port]]);
        }
    }
}

/* Other layers and the head have run: what is not this layer's own is gone. */
static void forget(memory *m)
{
    for (int space = DX; space <= SCRATCH; space++)
        clear(m, (held){.space = space, .end = UINT64_MAX});
}

/* ---- backward ---- */

/* x A^T of a linear that is not run again, which makes it itself. */
static bool may_lack(const memory *m, int16_t value)
{
    const tsr_layer_program *p = m->program;
    int matrix = p->block->value[value].matrix;
    return matrix != TSR_NONE && p->block->matrix[matrix].low == value && !p->kept[value] &&
           p->in_backward[value].kind == TSR_PLACE_NOWHERE;
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
            need(m, (thing){node->out[port], true}, p->gradient[node->out[port]]);
}

/* The gradient of the sum is changed in place, and is then that of both that were added. */
static void norm_backward(memory *m, const tsr_node *node, const tsr_step *step)
{
    const tsr_value_place *places = m->program->gradient;
    if (node->in[TSR_NORM_X] == TSR_NONE) { /* its own, of what is not added to anything yet */
        int16_t alone = node->in[TSR_NORM_PENDING];
        put(m, (thing){alone, true}, places[alone]);
        return;
    }
    if (step->outputs & 1u << TSR_NORM_H)
        put(m, (thing){node->in[TSR_NORM_X], true}, places[node->in[TSR_NORM_X]]);
    for (int port = 0; port < 2; port++) {
        if (node->in[port] == TSR_NONE)
            continue;
        held h = stretch(m, (thing){node->in[port], true}, places[node->in[port]]);
        assert_true(h.space == DX && m->count < MOST);
        m->held[m->count++] = h;
    }
}

/* Both terms have the gradient of the sum, where it lies. */
static void sum_backward(memory *m, const tsr_node *node, const tsr_step *step)
{
    held sum = stretch(m, (thing){node->out[0], true}, m->program->gradient[node->out[0]]);
    for (int port = 0; port < 2; port++) {
        if (!(step->inputs & 1u << port))
            continue;
        thing gradient = {node->in[port], true};
        held h = stretch(m, gradient, m->program->gradient[node->in[port]]);
        assert_true(h.space == sum.space && h.begin == sum.begin && h.end == sum.end);
        assert_true(m->count < MOST && !(step->adds & 1u << port));
        m->held[m->count++] = h;
    }
}

static void run_backward(memory *m)
{
    const tsr_layer_program *p = m->program;
    const tsr_block *b = p->block;
    for (int i = 0; i < p->backward.count; i++) {
        const tsr_step *step = &p->backward.step[i];
        const tsr_node *node = &b->node[step->node];
        read_backward(m, step);
        for (int port = 0; port < TSR_NODE_PORTS && node->kind == &tsr_node_linear; port++)
            if (step->outputs & 1u << port &&
                tsr_matrix_scales_back(b, p->traits, node->weight[port])) {
                int16_t inner = b->matrix[node->weight[port]].inner;
                put(m, (thing){inner, true}, p->gradient[inner]);
                read_backward(m, step); /* what it reads is still there beside it */
            }
        if (node->kind == &tsr_node_norm) {
            norm_backward(m, node, step);
            continue;
        }
        if (node->kind == &tsr_node_sum) {
            sum_backward(m, node, step);
            continue;
        }
        for (int port = 0; port < TSR_NODE_PORTS; port++)
            if (step->inputs & 1u << port) {
                thing gradient = {node->in[port], true};
                if (step->adds & 1u << port)
                    need(m, gradient, p->gradient[node->in[port]]);
                put(m, gradient, p->gradient[node->in[port]]);
            }
    }
}

/* ---- blocks ---- */

static void check(const tsr_block *b, const tsr_layer_program_options *options, const char *about)
{
    static tsr_layer_program program;
    static memory m;
    const tsr_layer_program_sizes sizes = {
        tsr_kernels_cpu(),
        {.tokens = TOKENS, .documents = 1, .longest = TOKENS, .dtype = TSR_F32},
        TSR_F32};
    tsr_layer_program_make(&program, options);
    if (tsr_layer_program_place(&program, &sizes) < 0)
        fail_msg("%s: %s", about, tsr_last_error());
    m = (memory){.program = &program, .about = about};
    run_forward(&m, &program.forward, program.in_forward, false);
    need_value(&m, b->out.x, program.in_forward);
    if (b->out.pending != TSR_NONE)
        need_value(&m, b->out.pending, program.in_forward);
    if (!options->trains) {
        assert_int_equal(program.kept_count, 0);
        return;
    }
    forget(&m);
    put(&m, (thing){b->out.x, true}, program.gradient[b->out.x]);
    if (b->out.pending != TSR_NONE)
        m.held[m.count++] =
            stretch(&m, (thing){b->out.pending, true}, program.gradient[b->out.pending]);
    run_forward(&m, &program.remade, program.in_backward, true);
    run_backward(&m);
    if (options->below)
        need(&m, (thing){b->in.x, true}, (tsr_value_place){0, TSR_PLACE_DX});
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
            char about[96];
            tsr_layer_program_options options = {
                .block = &block,
                .traits = traits,
                .trains = way < 40,
                .below = way & 1,
                .fp8 = way & 2,
                .keep = random_keep(seed + (uint64_t)way, hows[way / 8 % 5])};
            random_traits(traits, &block, seed, way & 4);
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
