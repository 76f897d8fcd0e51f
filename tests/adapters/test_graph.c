/*
 * test_graph.c: the table of graphs against FORMATS 4 as written there, the choice against all that is
 * allowed, where each graph is the least over the shapes that this tool meets, and choices as text.
 */
#include "adapters/graph_book.h"

#include "kernels/nf4_merge.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const int64_t sides[][2] = {{4096, 4096}, {4096, 1024}, {4096, 14336}, {14336, 4096},
                                   {8192, 8192}, {8192, 1024}, {8192, 28672}, {28672, 8192}};
#define SIDES ((int)(sizeof sides / sizeof *sides))

/* Calls `each` for ranks 8 to 1024, 128 to 16384 tokens and the linears of 8B and 70B models. */
static void over_the_grid(tsr_dtype dtype, bool backward, bool merges, bool drops,
                          void (*each)(const tsr_graph_shape *shape))
{
    for (int side = 0; side < SIDES; side++)
        for (int64_t tokens = 128; tokens <= 16384; tokens += tokens < 1024 ? 128 : 1024)
            for (int64_t r = 8; r <= 1024; r += 8)
                each(&(tsr_graph_shape){.tokens = tokens,
                                        .in = sides[side][0],
                                        .out = sides[side][1],
                                        .r = r,
                                        .dtype = dtype,
                                        .backward = backward,
                                        .merges = merges,
                                        .drops = drops});
}

/* ---- the table ---- */

/* FORMATS 4, as it stands there; less X A' of the backward, where that is kept. */
static void formula(double out[TSR_GRAPHS], const tsr_graph_shape *shape)
{
    double T = (double)shape->tokens, i = (double)shape->in, o = (double)shape->out,
           r = (double)shape->r;
    double f[TSR_GRAPHS] = {2 * T * (i * o + i * r + o * r),
                            2 * (i * o * r + T * i * o),
                            2 * T * (2 * o * r + 3 * i * r + o * i),
                            2 * T * (o * r + 2 * i * r + 2 * i * o) + 2 * i * o * r,
                            2 * T * (2 * i * o + o * r + i * r) + 4 * i * o * r,
                            2 * (2 * T * i * o + 3 * i * o * r),
                            2 * T * (2 * o * r + 2 * i * r + o * i) + 2 * i * o * r};
    if (!shape->merges || shape->drops)
        for (tsr_graph_id graph = TSR_B1; graph <= TSR_B5; graph++)
            f[graph] -= tsr_graph_table[graph].outer_db ? 0 : 2 * T * i * r;
    memcpy(out, f, sizeof f);
}

static void expect_formulas(const tsr_graph_shape *shape)
{
    double want[TSR_GRAPHS];
    formula(want, shape);
    for (int i = 0; i < TSR_GRAPH_CHOICES; i++) {
        tsr_graph_choice choice = tsr_graph_choice_at(i);
        const tsr_graph *graph = &tsr_graph_table[choice.graph];
        if (!choice.once || (graph->backward && !graph->outer_db))
            assert_true(tsr_graph_cost_of(shape, choice).flops == want[choice.graph]);
    }
}

static void test_formulas(void **state)
{
    (void)state;
    over_the_grid(TSR_F32, false, true, false, expect_formulas);
    for (int i = 0; i < 4; i++)
        expect_formulas(&(tsr_graph_shape){.tokens = 3,
                                           .in = 5,
                                           .out = 7,
                                           .r = 2,
                                           .dtype = TSR_BF16,
                                           .merges = i & 1,
                                           .drops = i & 2});
}

/* ---- the choice ---- */

static int met[TSR_GRAPH_CHOICES];

static void expect_cheapest(const tsr_graph_shape *shape)
{
    tsr_graph_choice chosen = tsr_graph_cheapest(shape);
    double price = tsr_graph_cost_of(shape, chosen).price;
    assert_true(tsr_graph_allowed(shape, chosen));
    for (int i = 0; i < TSR_GRAPH_CHOICES; i++) {
        tsr_graph_choice other = tsr_graph_choice_at(i);
        if (tsr_graph_allowed(shape, other) && price > tsr_graph_cost_of(shape, other).price)
            fail_msg("%lld tokens, %lld to %lld, r %lld: choice %d is cheaper",
                     (long long)shape->tokens, (long long)shape->in, (long long)shape->out,
                     (long long)shape->r, i);
        met[i] += tsr_graph_same_choice(other, chosen);
    }
}

static void test_cheapest(void **state)
{
    (void)state;
    const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16};
    for (int i = 0; i < 16; i++)
        over_the_grid(dtypes[i % 2], i & 2, i & 4, i & 8, expect_cheapest);
    for (int i = 0; i < TSR_GRAPH_CHOICES; i++) { /* it is each of them somewhere, but for B2 */
        tsr_graph_choice choice = tsr_graph_choice_at(i);
        bool possible =
            choice.once ? choice.graph == TSR_B1 || choice.graph == TSR_B5 : choice.graph != TSR_B2;
        assert_int_equal(met[i] > 0, possible);
    }
}

/* ---- where each is the least by its FLOPs, any of the five allowed ---- */

static struct {
    int shapes, least[TSR_GRAPHS];
    int64_t least_r[TSR_GRAPHS];
} found;

static void find_least(const tsr_graph_shape *shape)
{
    bool merge_allowed = shape->merges && !shape->drops;
    tsr_graph_id least = shape->backward ? TSR_B1 : TSR_F1;
    double flops = INFINITY;
    for (tsr_graph_id i = 0; i < TSR_GRAPHS; i++) {
        double other = tsr_graph_cost_of(shape, (tsr_graph_choice){i, false}).flops;
        if (tsr_graph_table[i].backward != shape->backward ||
            (tsr_graph_table[i].merged && !merge_allowed) || other >= flops)
            continue;
        least = i;
        flops = other;
    }
    found.shapes++;
    found.least[least]++;
    if (!found.least_r[least] || shape->r < found.least_r[least])
        found.least_r[least] = shape->r;
    /* dY' X first never pays where the rank is small: 2 T in out FLOPs more against at most these. */
    int64_t saved = shape->r * (2 * shape->in + (merge_allowed ? 2 : 1) * shape->out);
    if (saved < shape->in * shape->out)
        assert_false(tsr_graph_table[least].outer_db);
    /* As docs/gpu.md says. */
    if (merge_allowed && !shape->backward)
        assert_int_equal(least == TSR_F2,
                         shape->tokens * (shape->in + shape->out) > shape->in * shape->out);
    if (merge_allowed && least == TSR_B5)
        assert_true(shape->tokens > shape->out);
    if (tsr_graph_table[least].outer_db)
        assert_int_equal(shape->out, 1024);
}

static void find(bool backward, bool merges, bool drops)
{
    memset(&found, 0, sizeof found);
    over_the_grid(TSR_F32, backward, merges, drops, find_least);
    for (int i = 0; i < TSR_GRAPHS; i++)
        if (tsr_graph_table[i].backward == backward)
            print_message("%s%s %s: least for %d of %d shapes, from r %lld on\n",
                          merges ? "merges" : "-", drops ? " drops" : "", tsr_graph_table[i].name,
                          found.least[i], found.shapes, (long long)found.least_r[i]);
}

static void test_where_each_wins(void **state)
{
    (void)state;
    find(false, true, false);
    assert_true(found.least[TSR_F1] > 0 && found.least[TSR_F2] > 0);
    find(true, true, false);
    assert_true(found.least[TSR_B1] > 0 && found.least[TSR_B5] > 0);
    assert_int_equal(found.least[TSR_B2] + found.least[TSR_B3], 0);
    assert_int_equal(found.least_r[TSR_B4], 432);
    for (int drops = 0; drops < 2; drops++) { /* a plain base; dropout */
        find(true, drops, drops);
        assert_true(found.least[TSR_B1] > 0);
        assert_int_equal(found.least[TSR_B2] + found.least[TSR_B4] + found.least[TSR_B5], 0);
        assert_int_equal(found.least_r[TSR_B3], 912);
    }
}

/* ---- what may not be chosen ---- */

static bool allowed(const tsr_graph_shape *shape, tsr_graph_id graph, bool once)
{
    return tsr_graph_allowed(shape, (tsr_graph_choice){graph, once});
}

static void test_allowed(void **state)
{
    (void)state;
    tsr_graph_shape shape = {.tokens = 8192, .in = 4096, .out = 4096, .r = 16, .dtype = TSR_BF16};
    for (int i = 0; i < 16; i++) {
        shape.merges = i & 1;
        shape.composes = i & 8;
        shape.drops = shape.composes || i & 2;
        shape.backward = i & 4;
        bool merged = shape.merges && (!shape.drops || shape.composes);
        assert_int_equal(allowed(&shape, TSR_F1, false), !shape.backward);
        assert_int_equal(allowed(&shape, TSR_F2, false), !shape.backward && merged);
        assert_int_equal(allowed(&shape, TSR_B1, false), shape.backward);
        assert_false(allowed(&shape, TSR_B2, false));
        assert_int_equal(allowed(&shape, TSR_B3, false), shape.backward);
        merged &= !shape.composes; /* both products are rounded before they are subtracted */
        assert_int_equal(allowed(&shape, TSR_B4, false), shape.backward && merged);
        assert_int_equal(allowed(&shape, TSR_B5, false), shape.backward && merged);
        assert_int_equal(allowed(&shape, TSR_B1, true), shape.backward);
        assert_int_equal(allowed(&shape, TSR_B5, true), shape.backward && merged);
        assert_false(allowed(&shape, TSR_F1, true) || allowed(&shape, TSR_F2, true) ||
                     allowed(&shape, TSR_B3, true) || allowed(&shape, TSR_B4, true));
    }
    shape.in = 16; /* the weight's memory is too small for the partial sums */
    assert_false(allowed(&shape, TSR_B1, true));
    shape.in = 4096;
    shape.r = 2048;
    assert_false(allowed(&shape, TSR_B1, true));
    shape.r = 16;
    shape.dtype = TSR_F32;
    assert_false(allowed(&shape, TSR_B1, true));
}

/* ---- DoRA's norms ---- */

/* They come with a merged weight for nothing, so with them it is taken for fewer tokens; the less, the more
 * micro-batches share them. */
static void test_norms(void **state)
{
    (void)state;
    const tsr_graph_choice apart = {TSR_F1, false}, merged = {TSR_F2, false};
    tsr_graph_shape shape = {
        .tokens = 2048, .in = 4096, .out = 14336, .r = 384, .dtype = TSR_BF16, .merges = true};
    tsr_graph_cost without = tsr_graph_cost_of(&shape, apart);
    assert_true(tsr_graph_norms_price(&shape, apart) == 0);
    assert_int_equal(tsr_graph_cheapest(&shape).graph, TSR_F1);
    shape.norms_every = 1;
    double norms = tsr_graph_norms_price(&shape, apart);
    assert_true(norms > 1e-5 && tsr_graph_norms_price(&shape, merged) == 0);
    tsr_graph_cost with = tsr_graph_cost_of(&shape, apart);
    assert_true(with.price == without.price + norms && with.flops == without.flops);
    assert_int_equal(tsr_graph_cheapest(&shape).graph, TSR_F2);
    shape.norms_every = 16;
    assert_true(tsr_graph_norms_price(&shape, apart) == norms / 16);
    assert_int_equal(tsr_graph_cheapest(&shape).graph, TSR_F1);
}

/* ---- DoRA with dropout ---- */

/* Composed, the base is multiplied twice. Forward W + s B A spares passes over the tokens and costs the weight's
 * being decoded once more: it is taken where there are many tokens. */
static void test_composed(void **state)
{
    (void)state;
    for (int backward = 0; backward < 2; backward++) {
        tsr_graph_shape shape = {.tokens = 8192,
                                 .in = 4096,
                                 .out = 14336,
                                 .r = 16,
                                 .dtype = TSR_BF16,
                                 .backward = backward,
                                 .merges = true};
        const tsr_graph_choice apart = {backward ? TSR_B1 : TSR_F1, false};
        double product = 2.0 * 8192 * 4096 * 14336;
        tsr_graph_cost once = tsr_graph_cost_of(&shape, apart);
        shape.drops = shape.composes = true;
        tsr_graph_cost twice = tsr_graph_cost_of(&shape, apart);
        assert_true(twice.flops == once.flops + product);
        assert_true(twice.bytes > once.bytes && twice.price > 1.8 * once.price);
        assert_int_equal(tsr_graph_table[tsr_graph_cheapest(&shape).graph].merged, !backward);
        shape.tokens = 128;
        assert_false(tsr_graph_table[tsr_graph_cheapest(&shape).graph].merged);
    }
}

/* ---- as text ---- */

#define LINE "graph BF16 merges - 8192 4096 14336 16 B5.once\n"

static const tsr_graph_shape gate = {.tokens = 8192,
                                     .in = 4096,
                                     .out = 14336,
                                     .r = 16,
                                     .dtype = TSR_BF16,
                                     .backward = true,
                                     .merges = true};

static void test_text(void **state)
{
    (void)state;
    tsr_graph_book book = {0}, other = {0};
    tsr_text text = {0}, again = {0};
    tsr_graph_shape shape = gate;
    tsr_graph_choice choice;
    /* Every allowed choice, each of its own shape, and with norms or not. */
    for (int i = 0; i < 4 * TSR_GRAPH_CHOICES; i++) {
        shape.norms_every = i % 3 ? 0 : i + 1;
        shape.drops = shape.composes = i / 4 % 2 && !(i & 1);
        shape.tokens = 1024 + i;
        shape.backward = i & 1;
        shape.merges = i & 2;
        if (tsr_graph_allowed(&shape, tsr_graph_choice_at(i / 4)))
            tsr_graph_keep(&book, &shape, tsr_graph_choice_at(i / 4));
    }
    assert_int_equal(book.count, (1 + 3) + (2 + 6)); /* without and with merging */
    tsr_text_puts(&text, "a device\n1 2 3\n");
    tsr_graph_export(&text, &book);
    const char *lines = tsr_graph_lines(tsr_text_string(&text));
    assert_int_equal(lines - tsr_text_string(&text), strlen("a device\n1 2 3\n"));
    assert_int_equal(tsr_graph_import(&other, lines), TSR_OK);
    assert_int_equal(other.count, book.count);
    for (int i = 0; i < book.count; i++) {
        assert_true(tsr_graph_same_choice(tsr_graph_choose(&other, &book.entry[i].shape),
                                          book.entry[i].choice));
        assert_true(tsr_graph_recall(&choice, tsr_text_string(&text), &book.entry[i].shape));
        assert_true(tsr_graph_same_choice(choice, book.entry[i].choice));
    }
    assert_false(tsr_graph_recall(&choice, tsr_text_string(&text), &gate));
    assert_false(tsr_graph_recall(&choice, NULL, &gate));
    assert_true(tsr_graph_same_choice(tsr_graph_choose(&book, &gate), tsr_graph_cheapest(&gate)));
    assert_true(tsr_graph_same_choice(tsr_graph_choose(NULL, &gate), tsr_graph_cheapest(&gate)));
    tsr_graph_export(&again, &other);
    other.plain = true;
    assert_int_equal(tsr_graph_choose(&other, &gate).graph, gate.backward ? TSR_B1 : TSR_F1);
    for (int i = 0; i < book.count; i++)
        assert_int_equal(tsr_graph_choose(&other, &book.entry[i].shape).graph,
                         book.entry[i].shape.backward ? TSR_B1 : TSR_F1);
    assert_string_equal(tsr_text_string(&again), lines);
    tsr_text_free(&text);
    tsr_text_free(&again);
}

/* A wrong line is refused where all of a text is taken, and not seen where one is looked for. */
static void test_wrong_lines(void **state)
{
    (void)state;
    static const char *const wrong[] = {
        "graph BF16 merges - 8192 4096 14336 16 B2\n",      /* not allowed */
        "graph BF16 merges - 8192 4096 14336 16 B4.once\n", /* dB is not from dY */
        "graph BF16 merges - 8192 4096 14336 16 F3\n",      /* no such graph */
        "graph BF16 merges - 8192 4096 14336 B1\n",         /* too few */
        "graph BF16 merges - 8192 4096 14336 16 B1 x\n",    /* too many */
        "graph BF16 merges - 8192 4096 14336 0 B1\n",       /* no rank */
        "graph BF16 merges - -8192 4096 14336 16 B1\n",
        "graph BF16 merges - 81920000000000000 4096 14336 16 B1\n",
        "graph XF16 merges - 8192 4096 14336 16 B1\n",
        "graph BF16 merge - 8192 4096 14336 16 B1\n",
        "graph BF16 merges drops 8192 4096 14336 16 B5\n", /* A has another X than W */
        "graph BF16 merges compose 8192 4096 14336 16 B5\n",
        "graph BF16 merges - 8192 4096 14336 16 norms/0 F2\n",
        "graph BF16 merges - 8192 4096 14336 16 norms/4\n",
        "graph BF16 merges - 8192 4096 14336 16 norms/4F2\n",
        "graph BF16 merges - 8192 4096 14336 16 norms/x F2\n",
        "graph BF16 merges - 8192 4096 14336 16 F2 norms/4\n",
        "graph BF16 merges - 8192 4096 14336 16 B5.once", /* no end */
        "graph \n",
        "8192 4096\n",
    };
    tsr_graph_choice choice;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        tsr_graph_book book = {0};
        char text[200];
        snprintf(text, sizeof text, LINE "%s", wrong[i]);
        assert_int_equal(tsr_graph_import(&book, text), TSR_EDATA);
        assert_int_equal(book.count, 0);
        assert_false(tsr_graph_recall(&choice, wrong[i], &gate));
        snprintf(text, sizeof text, "%s" LINE, wrong[i]);
        assert_int_equal(tsr_graph_recall(&choice, text, &gate), strchr(wrong[i], '\n') != NULL);
    }
    tsr_graph_shape drops = gate,
                    plain = gate; /* what is allowed for one shape is not for another */
    drops.drops = true;
    plain.merges = false;
    tsr_graph_shape norms = gate;
    norms.backward = false;
    norms.norms_every = 4;
    assert_true(
        tsr_graph_recall(&choice, "graph BF16 merges - 8192 4096 14336 16 norms/4 F2\n", &norms));
    assert_int_equal(choice.graph, TSR_F2);
    assert_false(
        tsr_graph_recall(&choice, "graph BF16 merges - 8192 4096 14336 16 norms/3 F2\n", &norms));
    assert_false(tsr_graph_recall(&choice, "graph BF16 merges - 8192 4096 14336 16 F2\n", &norms));
    assert_false(
        tsr_graph_recall(&choice, "graph BF16 merges drops 8192 4096 14336 16 B5\n", &drops));
    assert_false(tsr_graph_recall(&choice, "graph BF16 - - 8192 4096 14336 16 B5\n", &plain));
}

/* The cache keeps what others timed, and takes what this run timed; what it did not time is its own. */
static void test_merged_text(void **state)
{
    (void)state;
    tsr_graph_book book = {0};
    tsr_text text = {0};
    const char *old = "head\n1 2\n" LINE "graph broken\n"
                      "graph F32 - drops 7 5 3 8 B3\n";
    tsr_graph_keep_timed(&book, &gate, (tsr_graph_choice){TSR_B1, false});
    tsr_graph_merge(&text, &book, old);
    assert_string_equal(tsr_text_string(&text), "graph F32 - drops 7 5 3 8 B3\n"
                                                "graph BF16 merges - 8192 4096 14336 16 B1\n");
    tsr_graph_keep(&book, &gate, (tsr_graph_choice){TSR_B1, false});
    tsr_text_clear(&text);
    tsr_graph_merge(&text, &book, old);
    assert_string_equal(tsr_text_string(&text), LINE "graph F32 - drops 7 5 3 8 B3\n");
    tsr_text_clear(&text);
    tsr_graph_export(&text, &book);
    assert_string_equal(tsr_text_string(&text), "graph BF16 merges - 8192 4096 14336 16 B1\n");
    tsr_text_free(&text);
}

/* A book that is full keeps what it has. */
static void test_full(void **state)
{
    (void)state;
    static tsr_graph_book book;
    tsr_graph_shape shape = gate;
    const tsr_graph_choice unlikely = {TSR_B4, false};
    for (int i = 0; i < TSR_GRAPH_PLACES + 3; i++) {
        shape.tokens = 1000 + i;
        tsr_graph_keep(&book, &shape, unlikely);
    }
    assert_int_equal(book.count, TSR_GRAPH_PLACES);
    assert_true(tsr_graph_same_choice(tsr_graph_choose(&book, &shape), tsr_graph_cheapest(&shape)));
    shape.tokens = 1000;
    assert_true(tsr_graph_same_choice(tsr_graph_choose(&book, &shape), unlikely));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formulas),
        cmocka_unit_test(test_cheapest),
        cmocka_unit_test(test_where_each_wins),
        cmocka_unit_test(test_allowed),
        cmocka_unit_test(test_composed),
        cmocka_unit_test(test_norms),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_wrong_lines),
        cmocka_unit_test(test_merged_text),
        cmocka_unit_test(test_full),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
