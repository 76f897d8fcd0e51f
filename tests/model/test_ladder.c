/*
 * What a layer may keep: the rungs of random blocks, of nodes in orders that no model has, against all sets of values
 * that there are, each accounted for by the program that it makes; and those of a Llama's layer, of which
 * attention's output is kept last where rows are long.
 */
#include "model/ladder.h"
#include "model/random_block.h"

#include "base/philox.h"
#include "llama_layer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { BLOCKS = 400, MOST_VALUES = 13, TOKENS = 64 };

#define EXACT 1e-9

/* A random block with a cost. Every operation is bound by its bytes, at a rate of its kind, and loses nothing at its
 * ends; so what two linears of one input cost together is what they cost one by one. */
typedef struct {
    tsr_block block;
    tsr_matrix_traits traits[TSR_BLOCK_WEIGHTS];
    tsr_layer_program all, other;
    tsr_work_layer layer;
    tsr_work_rates rates;
    bool below;
} rig;

static double fraction(uint64_t seed, uint64_t i)
{
    return 0.05 + 0.95 * (double)(tsr_mix(tsr_mix(seed) ^ i) >> 11) * 0x1p-53;
}

static void make_program(tsr_layer_program *out, const rig *r, tsr_keep keep)
{
    tsr_layer_program_make(out, &(tsr_layer_program_options){.block = &r->block,
                                                             .traits = r->traits,
                                                             .trains = true,
                                                             .below = r->below,
                                                             .keep = keep});
}

static void make_rig(rig *r, uint64_t seed)
{
    memset(r, 0, sizeof *r);
    random_block(&r->block, seed);
    random_traits(r->traits, &r->block, seed, seed % 3 == 0);
    r->below = seed % 4 > 0;
    r->layer = (tsr_work_layer){.program = &r->all, .element = 4, .tokens = TOKENS};
    r->layer.pairs = TOKENS * 10 * fraction(seed, 100);
    for (int i = 0; i < r->block.matrix_count; i++) {
        const tsr_matrix *m = &r->block.matrix[i];
        const tsr_matrix_traits *t = &r->traits[i];
        r->layer.linear[i] = (tsr_work_linear){.in = (double)m->in,
                                               .out = (double)m->out,
                                               .r = (double)t->r,
                                               .dora = t->dora,
                                               .nf4 = seed & 1,
                                               .drops = t->r && seed % 3 == 0};
        r->traits[i] = tsr_work_traits(&r->layer, i);
    }
    for (int i = 0; i < r->block.stack_count; i++)
        r->layer.stack[i].r = (double)r->traits[tsr_stack_weight(i)].r;
    r->rates = (tsr_work_rates){1e30, 1, fraction(seed, 101), 1, 1};
    for (int i = 0; i < TSR_WORK_KINDS; i++)
        r->rates.reached[i] = fraction(seed, (uint64_t)i);
    make_program(&r->all, r, TSR_KEEP_ALL);
}

typedef struct {
    const tsr_work_rates *rates;
    double seconds;
} sum;

static void add(void *user, const tsr_work_op *op)
{
    sum *s = user;
    s->seconds += tsr_work_seconds(s->rates, op);
}

static double backward_seconds(const rig *r, const tsr_layer_program *program)
{
    tsr_work_layer layer = r->layer;
    sum s = {&r->rates, 0};
    layer.program = program;
    tsr_work_backward(&layer, add, &s);
    return s.seconds;
}

/* What a set comes to: the bytes of what its program keeps beside the first sum, and what its backward takes more. */
static tsr_rung account(rig *r, tsr_keep keep)
{
    tsr_rung out = {.keep = keep};
    make_program(&r->other, r, keep);
    for (int v = 0; v < r->block.value_count; v++)
        if (r->other.kept[v] && v != r->block.root)
            out.bytes += (double)tsr_value_width(&r->other, v) * 4 * TOKENS;
    out.seconds = backward_seconds(r, &r->other) - backward_seconds(r, &r->all);
    return out;
}

static double weigh(const tsr_rung *rung, double price)
{
    return rung->seconds + price * rung->bytes;
}

/* Rungs are what they say; bytes fall and seconds grow, by more and more for each; what is given up stays so. */
static void check_ladder(rig *r, const tsr_ladder *ladder, uint64_t seed)
{
    double scale = ladder->rung[ladder->count - 1].seconds + backward_seconds(r, &r->all);
    double before = 0;
    for (int i = 0; i < ladder->count; i++) {
        const tsr_rung *rung = &ladder->rung[i], *last = rung - 1;
        tsr_rung real = account(r, rung->keep);
        if (fabs(real.bytes - rung->bytes) > 0.5 ||
            fabs(real.seconds - rung->seconds) > EXACT * scale)
            fail_msg("block %d, rung %d: %g bytes and %g s, %g and %g by its program", (int)seed, i,
                     rung->bytes, rung->seconds, real.bytes, real.seconds);
        if (i == 0)
            continue;
        double price = (rung->seconds - last->seconds) / (last->bytes - rung->bytes);
        assert_true(rung->bytes < last->bytes && rung->seconds > last->seconds && price > before);
        for (int v = 0; v < r->block.value_count; v++)
            assert_true(tsr_keep_has(&last->keep, v) || !tsr_keep_has(&rung->keep, v));
        before = price;
    }
    make_program(&r->other, r, ladder->rung[0].keep);
    assert_int_equal(r->other.remade.count, 0);
    assert_true(ladder->rung[ladder->count - 1].bytes == 0);
}

/* Values that a layer could keep. */
static int list_values(int16_t out[TSR_BLOCK_VALUES], const rig *r)
{
    int count = 0;
    for (int16_t v = 0; v < r->block.value_count; v++)
        if (r->block.value[v].node != TSR_NONE && v != r->block.root &&
            tsr_value_width(&r->all, v) > 0)
            out[count++] = v;
    return count;
}

/* Every set of values lies on or above the lines from rung to rung; returns how many there are. */
static int check_all_sets(rig *r, const tsr_ladder *ladder, uint64_t seed)
{
    int16_t value[TSR_BLOCK_VALUES];
    int count = list_values(value, r);
    if (count > MOST_VALUES)
        return 0;
    for (uint32_t set = 0; set < 1u << count; set++) {
        tsr_keep keep = {{0}};
        for (int i = 0; i < count; i++)
            if (set >> i & 1)
                tsr_keep_add(&keep, value[i]);
        tsr_rung one = account(r, keep);
        for (int i = 1; i < ladder->count; i++) {
            const tsr_rung *to = &ladder->rung[i], *from = to - 1;
            double price = (to->seconds - from->seconds) / (from->bytes - to->bytes);
            if (weigh(&one, price) < (1 - EXACT) * weigh(to, price))
                fail_msg("block %d: a set of %g bytes takes %g s: less than rungs %d and %d",
                         (int)seed, one.bytes, one.seconds, i - 1, i);
        }
    }
    return 1 << count;
}

static void test_all_sets(void **state)
{
    int sets = 0, blocks = 0, rungs = 0;
    (void)state;
    for (uint64_t seed = 0; seed < BLOCKS; seed++) {
        static rig r;
        static tsr_ladder ladder;
        make_rig(&r, seed);
        assert_int_equal(tsr_ladder_make(&ladder, &r.layer, &r.rates), TSR_OK);
        check_ladder(&r, &ladder, seed);
        int here = check_all_sets(&r, &ladder, seed);
        sets += here;
        blocks += here > 0;
        rungs += ladder.count;
    }
    print_message("    %d rungs of %d blocks; %d sets of %d of them\n", rungs, BLOCKS, sets,
                  blocks);
    assert_true(blocks > 50 && rungs > 4 * BLOCKS);
}

/* ---- a Llama's layer on a card ---- */

static const char *names_of(const tsr_layer_program *p)
{
    static char text[512];
    size_t used = 0;
    text[0] = 0;
    for (int v = 0; v < p->block->value_count; v++)
        if (p->kept[v])
            used +=
                (size_t)snprintf(text + used, sizeof text - used, "%s ", p->block->value[v].name);
    return text;
}

/* What the rung before the last keeps of rows of `length`. */
static const char *kept_last(double length, bool dora)
{
    static llama_layer l;
    static tsr_ladder ladder;
    const tsr_model_config config = {.hidden_size = 4096,
                                     .intermediate_size = 14336,
                                     .head_count = 32,
                                     .kv_head_count = 8,
                                     .head_dim = 128};
    const tsr_work_rates card = {684.5e12, 4192e9, 440.5e12, 324.1e12, 1218e12};
    assert_int_equal(llama_layer_make(&l, &config, 0,
                                      (tsr_work_linear){.r = 16, .dora = dora, .nf4 = true}, 2,
                                      false),
                     TSR_OK);
    l.layer.tokens = 32768;
    l.layer.pairs = 32768 * (length + 1) / 2;
    llama_layer_program(&l, false, TSR_KEEP_ALL);
    assert_int_equal(tsr_ladder_make(&ladder, &l.layer, &card), TSR_OK);
    assert_true(ladder.count > 4);
    llama_layer_program(&l, false, ladder.rung[ladder.count - 2].keep);
    return names_of(&l.program);
}

static void test_attention_of_long_rows(void **state)
{
    (void)state;
    assert_string_equal(kept_last(8192, false), "x lse o ");
    assert_string_equal(kept_last(32768, true), "x lse o ");
    assert_string_equal(kept_last(8192, true),
                        "x z "); /* of down_proj, for dm: 14336 columns go into each of its */
    assert_null(strstr(kept_last(256, false), "lse"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_sets),
                                       cmocka_unit_test(test_attention_of_long_rows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
