/*
 * Fixed-point gradients: the conversion by values, and the property it exists for: any number of
 * ranks and any split into micro-batches give the same bits.
 */
#include "base/philox.h"
#include "kernels/fixed_point.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SHIFT TSR_FIXED_SHIFT

static void test_values(void **state)
{
    (void)state;
    const float g[] = {0,          -0.0f,      1,           -1,        0x1p-44f,   0x1p-45f,
                       0x1.8p-44f, 0x1.4p-43f, -0x1.8p-44f, 0x1p-149f, 3.1415927f, 1000};
    const int64_t expected[] = {
        0,           0, 1ll << 44, -(1ll << 44), 1, 0, 2, 2, -2, 0, (int64_t)(3.1415927f * 0x1p44),
        1000ll << 44};
    enum { n = sizeof g / sizeof *g };
    int64_t out[n];
    assert_true(tsr_fixed_from_f32(out, g, n, SHIFT, tsr_fixed_limit(SHIFT, 1)));
    for (int i = 0; i < n; i++)
        assert_int_equal(out[i], expected[i]);
    /* Against the double computation, many magnitudes. */
    for (uint32_t i = 0; i < 20000; i++) {
        tsr_philox r = tsr_philox_at(1, 2, i);
        float x = ldexpf(tsr_philox_uniform(r.word[0]) - 0.5f, (int)(r.word[1] % 70) - 55);
        assert_true(tsr_fixed_from_f32(out, &x, 1, SHIFT, tsr_fixed_limit(SHIFT, 1)));
        assert_int_equal(out[0], (int64_t)rint((double)x * 0x1p44));
    }
}

static void test_refused(void **state)
{
    (void)state;
    float limit = tsr_fixed_limit(SHIFT, 1024);
    assert_true(limit < 256 && limit > 255.99f);
    const float bad[] = {NAN, INFINITY, -INFINITY, 256, -1e30f};
    for (int k = 0; k < 5; k++) {
        float g[70];
        int64_t out[70];
        for (int i = 0; i < 70; i++)
            g[i] = 1;
        g[67] = bad[k];
        assert_false(tsr_fixed_from_f32(out, g, 70, SHIFT, limit));
        for (int i = 0; i < 70; i++)
            assert_int_equal(out[i], i == 67 ? 0 : 1ll << 44);
    }
    /* The largest sum that the limit allows does not overflow. */
    for (uint64_t n = 1; n < 5000; n = n * 3 + 1) {
        float top = tsr_fixed_limit(SHIFT, n);
        int64_t one;
        assert_true(tsr_fixed_from_f32(&one, &top, 1, SHIFT, top));
        assert_true((__int128)one * (__int128)n <= (__int128)1 << TSR_FIXED_SUM_LOG);
    }
}

static void test_widen_rounds_once(void **state)
{
    (void)state;
    const int64_t acc[] = {0, 1, -1, (1ll << 24) + 1, (1ll << 25) + 3, INT64_MAX / 2, -12345678901};
    enum { n = sizeof acc / sizeof *acc };
    float g[n];
    tsr_fixed_to_f32(g, acc, n, SHIFT);
    for (int i = 0; i < n; i++)
        assert_true(g[i] == ldexpf((float)acc[i], -SHIFT));
    assert_true(g[3] == 0x1p-20f); /* a tie goes to even */
}

#define TENSORS 4
static const uint64_t counts[TENSORS] = {64 * 9, 1, 1000, 64 * 16 + 7};
#define MICRO_BATCHES 7
#define MOST_RANKS    20

static float *gradient(uint64_t tensor, uint64_t micro_batch)
{
    float *g = malloc(counts[tensor] * 4);
    assert_non_null(g);
    for (uint64_t i = 0; i < counts[tensor]; i++) {
        tsr_philox r = tsr_philox_at(tensor, micro_batch, i);
        g[i] = ldexpf(tsr_philox_uniform(r.word[0]) - 0.5f, (int)(r.word[1] % 40) - 35);
    }
    return g;
}

/* One unit of all tensors on several ranks. */
typedef struct {
    uint64_t ranks, stride; /* elements of an owner's part of all tensors */
    tsr_fixed_part part[TENSORS];
    float *gradient[MOST_RANKS]; /* [ranks * stride] of each rank */
    float *received;             /* [(ranks - 1) * stride] */
    int64_t *sum[MOST_RANKS];    /* [stride] of each owner */
    int64_t overflow;
} group;

static void make_group(group *g, uint64_t ranks)
{
    *g = (group){.ranks = ranks};
    for (int t = 0; t < TENSORS; t++) {
        uint64_t part = tsr_fixed_part_count(counts[t], ranks);
        g->part[t] = (tsr_fixed_part){.offset = g->stride, .count = part, .mark = 10 - t};
        g->stride += part;
    }
    for (uint64_t r = 0; r < ranks; r++) {
        g->gradient[r] = malloc(ranks * g->stride * 4);
        g->sum[r] = malloc(g->stride * 8);
        assert_true(g->gradient[r] && g->sum[r]);
        memset(g->sum[r], 0xa5, g->stride * 8); /* the first sum stores */
    }
    g->received = malloc(ranks * g->stride * 4);
    assert_non_null(g->received);
}

static void free_group(group *g)
{
    for (uint64_t r = 0; r < g->ranks; r++)
        free(g->gradient[r]), free(g->sum[r]);
    free(g->received);
}

/* A rank's gradients of a micro-batch, of none zeros; padding is not a number. */
static void fill(const group *g, uint64_t rank, uint64_t micro_batch)
{
    memset(g->gradient[rank], 0xff, g->ranks * g->stride * 4);
    for (uint64_t t = 0; t < TENSORS; t++) {
        float *at = g->gradient[rank] + g->ranks * g->part[t].offset;
        memset(at, 0, counts[t] * 4);
        if (micro_batch >= MICRO_BATCHES)
            continue;
        float *one = gradient(t, micro_batch);
        memcpy(at, one, counts[t] * 4);
        free(one);
    }
}

/* What the owner's exchange brings, and its sum. */
static void sum_of(group *g, uint64_t owner, bool store)
{
    tsr_fixed_sum_args args = {.accumulator = g->sum[owner],
                               .gradient = g->gradient[owner],
                               .received = g->ranks > 1 ? g->received : NULL,
                               .part = g->part,
                               .overflow = &g->overflow,
                               .ranks = g->ranks,
                               .rank = owner,
                               .part_count = TENSORS,
                               .shift = SHIFT,
                               .limit = tsr_fixed_limit(SHIFT, MICRO_BATCHES),
                               .store = store};
    for (int t = 0; t < TENSORS; t++) {
        tsr_fixed_part *p = &g->part[t];
        uint64_t first = owner * p->count, left = counts[t] > first ? counts[t] - first : 0;
        float *to = g->received + (g->ranks - 1) * p->offset;
        p->real = left < p->count ? left : p->count;
        for (uint64_t r = 0; r < g->ranks; r++)
            if (r != owner) {
                memcpy(to, g->gradient[r] + g->ranks * p->offset + first, p->count * 4);
                to += p->count;
            }
    }
    assert_int_equal(tsr_fixed_sum_ref(&args, NULL), TSR_OK);
}

/* All micro-batches, dealt to `ranks` ranks; returns the sums as flat tensors. */
static void reduce(int64_t *sum[TENSORS], uint64_t ranks, bool backwards)
{
    group g;
    make_group(&g, ranks);
    for (uint64_t first = 0; first < MICRO_BATCHES; first += ranks) {
        for (uint64_t r = 0; r < ranks; r++) {
            uint64_t k = first + r;
            fill(&g, r, k < MICRO_BATCHES && backwards ? MICRO_BATCHES - 1 - k : k);
        }
        for (uint64_t owner = 0; owner < ranks; owner++)
            sum_of(&g, owner, first == 0);
    }
    assert_int_equal(g.overflow, 0);
    for (int t = 0; t < TENSORS; t++) {
        uint64_t part = g.part[t].count;
        for (uint64_t i = 0; i < ranks * part; i++) {
            int64_t value = g.sum[i / part][g.part[t].offset + i % part];
            if (i < counts[t])
                sum[t][i] = value;
            else
                assert_int_equal(value, 0);
        }
    }
    free_group(&g);
}

/* Whoever has it, the owner sees it: the smallest mark of all tensors that were refused. */
static void test_the_owner_refuses(void **state)
{
    (void)state;
    const float bad[] = {NAN, INFINITY, 1e30f};
    for (uint64_t ranks = 1; ranks <= 3; ranks++)
        for (uint64_t k = 0; k < 3 * ranks; k++) {
            group g;
            make_group(&g, ranks);
            for (uint64_t r = 0; r < ranks; r++)
                fill(&g, r, r);
            float *three = g.gradient[k / 3] + ranks * g.part[3].offset;
            three[0] = bad[k % 3];
            sum_of(&g, 0, true);
            assert_int_equal(g.overflow, g.part[3].mark);
            int64_t others = 0;
            for (uint64_t r = 0; r < ranks; r++) {
                float *one = gradient(3, r);
                others += r == k / 3 ? 0 : (int64_t)rint((double)one[0] * 0x1p44);
                free(one);
            }
            assert_int_equal(g.sum[0][g.part[3].offset], others);
            g.gradient[0][ranks * g.part[0].offset] = NAN;
            sum_of(&g, 0, true);
            assert_int_equal(g.overflow, g.part[3].mark); /* of the two marks the smaller */
            free_group(&g);
        }
}

static void test_any_split_gives_the_same_bits(void **state)
{
    (void)state;
    int64_t *expected[TENSORS], *found[TENSORS];
    for (int t = 0; t < TENSORS; t++) {
        expected[t] = calloc(counts[t], 8);
        found[t] = malloc(counts[t] * 8);
        for (uint64_t k = 0; k < MICRO_BATCHES; k++) { /* the definition */
            float *g = gradient((uint64_t)t, k);
            for (uint64_t i = 0; i < counts[t]; i++)
                expected[t][i] += (int64_t)rint((double)g[i] * 0x1p44);
            free(g);
        }
    }
    for (uint64_t ranks = 1; ranks <= MOST_RANKS; ranks++) {
        reduce(found, ranks, ranks % 2);
        for (int t = 0; t < TENSORS; t++)
            assert_memory_equal(found[t], expected[t], counts[t] * 8);
    }
    for (int t = 0; t < TENSORS; t++)
        free(expected[t]), free(found[t]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_widen_rounds_once),
        cmocka_unit_test(test_any_split_gives_the_same_bits),
        cmocka_unit_test(test_the_owner_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
