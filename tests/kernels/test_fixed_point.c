/*
 * Fixed-point gradients: the conversion by values, and the property it exists for: any number of
 * ranks and any split into micro-batches give the same bits, whether gradients go to their owners as
 * fp32 or as sums.
 */
#include "kernels/fixed_point.h"

#include "kernels/kernel_test.h"

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
    bool wide;
    uint64_t each; /* bytes of an element of a gradient */
    tsr_fixed_part part[TENSORS];
    char *gradient[MOST_RANKS]; /* [ranks * stride] of each rank */
    char *received;             /* [(ranks - 1) * stride] */
    int64_t *sum[MOST_RANKS];   /* [stride] of each owner */
    int64_t overflow;
} group;

static void make_group(group *g, uint64_t ranks, bool wide)
{
    *g = (group){.ranks = ranks, .wide = wide, .each = wide ? 8 : 4};
    for (int t = 0; t < TENSORS; t++) {
        uint64_t part = tsr_fixed_part_count(counts[t], ranks);
        g->part[t] = (tsr_fixed_part){.offset = g->stride, .count = part, .mark = 10 - t};
        g->stride += part;
    }
    for (uint64_t r = 0; r < ranks; r++) {
        g->gradient[r] = malloc(ranks * g->stride * g->each);
        g->sum[r] = malloc(g->stride * 8);
        assert_true(g->gradient[r] && g->sum[r]);
        memset(g->sum[r], 0xa5, g->stride * 8); /* the first sum stores */
    }
    g->received = malloc(ranks * g->stride * g->each);
    assert_non_null(g->received);
}

static void free_group(group *g)
{
    for (uint64_t r = 0; r < g->ranks; r++)
        free(g->gradient[r]), free(g->sum[r]);
    free(g->received);
}

/* A tensor's gradients of a rank, or one more contribution to them. */
static void put(const group *g, uint64_t rank, int tensor, const float *values, bool store)
{
    char *at = g->gradient[rank] + g->ranks * g->part[tensor].offset * g->each;
    tsr_fixed_accumulate_args args = {.sum = (int64_t *)at,
                                      .g = values,
                                      .count = counts[tensor],
                                      .shift = SHIFT,
                                      .limit = tsr_fixed_limit(SHIFT, 2 * MICRO_BATCHES),
                                      .store = store};
    if (g->wide)
        assert_int_equal(tsr_fixed_accumulate_ref(&args, NULL), TSR_OK);
    else
        memcpy(at, values, counts[tensor] * 4);
}

/* A rank's gradients of a micro-batch, of none zeros; padding is not a number. */
static void fill(const group *g, uint64_t rank, uint64_t micro_batch)
{
    const int64_t lost = TSR_FIXED_LOST;
    memset(g->gradient[rank], 0xff, g->ranks * g->stride * g->each);
    for (uint64_t i = 0; g->wide && i < g->ranks * g->stride; i++)
        memcpy(g->gradient[rank] + i * 8, &lost, 8);
    for (int t = 0; t < TENSORS; t++) {
        float *one = micro_batch < MICRO_BATCHES ? gradient((uint64_t)t, micro_batch)
                                                 : calloc(counts[t], sizeof *one);
        put(g, rank, t, one, true);
        free(one);
    }
}

/* The same sums, rounded, where they are stored; alone: the only ones that `overflow` is of. */
static void check_rounded(tsr_fixed_sum_args args, uint64_t count, bool alone)
{
    float *rounded = malloc(count * sizeof *rounded), *want = malloc(count * sizeof *want);
    int64_t overflow = 0;
    assert_true(rounded && want);
    tsr_fixed_to_f32(want, args.accumulator, count, args.shift);
    args.accumulator = NULL;
    args.rounded = rounded;
    const int64_t *seen = args.overflow;
    args.overflow = &overflow;
    assert_int_equal(tsr_fixed_sum_ref(&args, NULL), TSR_OK);
    assert_memory_equal(rounded, want, count * sizeof *want);
    if (alone)
        assert_int_equal(overflow, *seen);
    args.store = false;
    assert_int_equal(tsr_fixed_sum_ref(&args, NULL), TSR_EINVAL);
    free(rounded), free(want);
}

/* What the owner's exchange brings, and its sum. */
static void sum_of(group *g, uint64_t owner, bool store)
{
    bool alone = g->overflow == 0;
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
                               .wide = g->wide,
                               .store = store};
    for (int t = 0; t < TENSORS; t++) {
        tsr_fixed_part *p = &g->part[t];
        uint64_t first = owner * p->count, left = counts[t] > first ? counts[t] - first : 0;
        char *to = g->received + (g->ranks - 1) * p->offset * g->each;
        p->real = left < p->count ? left : p->count;
        for (uint64_t r = 0; r < g->ranks; r++)
            if (r != owner) {
                memcpy(to, g->gradient[r] + (g->ranks * p->offset + first) * g->each,
                       p->count * g->each);
                to += p->count * g->each;
            }
    }
    assert_int_equal(tsr_fixed_sum_ref(&args, NULL), TSR_OK);
    if (store)
        check_rounded(args, g->stride, alone);
}

/* All micro-batches, dealt to `ranks` ranks; returns the sums as flat tensors. */
static void reduce(int64_t *sum[TENSORS], uint64_t ranks, bool backwards, bool wide)
{
    group g;
    make_group(&g, ranks, wide);
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

/* The first element of a rank's tensor; a wide one has another contribution to it before and after. */
static void spoil(const group *g, uint64_t rank, int tensor, float bad)
{
    float *values = calloc(counts[tensor], sizeof *values);
    assert_non_null(values);
    for (int turn = 0; turn < 3; turn++) {
        values[0] = turn == 1 ? bad : 1;
        if (g->wide)
            put(g, rank, tensor, values, false);
        else if (turn == 1)
            memcpy(g->gradient[rank] + g->ranks * g->part[tensor].offset * 4, values, 4);
    }
    free(values);
}

/* Rank `from` has a first element of tensor 3 that does not fit. */
static void refuse(uint64_t ranks, uint64_t from, float bad, bool wide)
{
    group g;
    make_group(&g, ranks, wide);
    for (uint64_t r = 0; r < ranks; r++)
        fill(&g, r, r);
    spoil(&g, from, 3, bad);
    sum_of(&g, 0, true);
    assert_int_equal(g.overflow, g.part[3].mark);
    int64_t others[2] = {0}; /* of this element, and of the next */
    for (uint64_t r = 0; r < ranks; r++) {
        float *one = gradient(3, r);
        others[0] += r == from ? 0 : (int64_t)rint((double)one[0] * 0x1p44);
        others[1] += (int64_t)rint((double)one[1] * 0x1p44);
        free(one);
    }
    assert_memory_equal(g.sum[0] + g.part[3].offset, others, sizeof others);
    spoil(&g, 0, 0, NAN);
    sum_of(&g, 0, true);
    assert_int_equal(g.overflow, g.part[3].mark); /* of the two marks the smaller */
    free_group(&g);
}

/* Whoever has it, the owner sees it: the smallest mark of all tensors that were refused. */
static void test_the_owner_refuses(void **state)
{
    (void)state;
    const float bad[] = {NAN, INFINITY, 1e30f};
    for (uint64_t ranks = 1; ranks <= 3; ranks++)
        for (uint64_t k = 0; k < 6 * ranks; k++)
            refuse(ranks, k / 6, bad[k % 3], k / 3 % 2);
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
    for (uint64_t way = 2; way <= 2 * MOST_RANKS + 1; way++) {
        uint64_t ranks = way / 2;
        reduce(found, ranks, ranks % 2, way % 2);
        for (int t = 0; t < TENSORS; t++)
            assert_memory_equal(found[t], expected[t], counts[t] * 8);
    }
    for (int t = 0; t < TENSORS; t++)
        free(expected[t]), free(found[t]);
}

/* Contributions of all sizes, a few of which do not fit, in blocks of several threads. */
static void test_contributions_are_rounded_one_by_one(void **state)
{
    (void)state;
    enum { COUNT = 4096 * 2 + 77, TURNS = 5 };
    int64_t *sum = malloc(COUNT * 8), *expected = calloc(COUNT, 8);
    float *g = malloc(COUNT * 4), limit = tsr_fixed_limit(SHIFT, TURNS);
    assert_true(sum && expected && g);
    memset(sum, 0x80, COUNT * 8); /* the first one stores, whatever is there */
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        for (uint32_t i = 0; i < COUNT; i++) {
            tsr_philox r = tsr_philox_at(turn, 5, i);
            g[i] = ldexpf(tsr_philox_uniform(r.word[0]) - 0.5f, (int)(r.word[1] % 60) - 45);
            if (r.word[2] % 500 == 0)
                g[i] = r.word[3] % 3 == 0 ? NAN : r.word[3] % 3 == 1 ? -INFINITY : 1.01f * limit;
            if (r.word[2] % 500 == 1)
                g[i] = -limit;
            if (!(fabsf(g[i]) <= limit) || expected[i] == INT64_MIN)
                expected[i] = INT64_MIN;
            else
                expected[i] += (int64_t)rint((double)g[i] * 0x1p44);
        }
        tsr_fixed_accumulate_args args = {sum, g, COUNT, SHIFT, limit, turn == 0};
        assert_int_equal(tsr_fixed_accumulate_ref(&args, test_pool(1)), TSR_OK);
    }
    assert_memory_equal(sum, expected, COUNT * 8);
    assert_int_equal(tsr_fixed_accumulate_ref(&(tsr_fixed_accumulate_args){.count = 1}, NULL),
                     TSR_EINVAL);
    free(sum), free(expected), free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_widen_rounds_once),
        cmocka_unit_test(test_any_split_gives_the_same_bits),
        cmocka_unit_test(test_the_owner_refuses),
        cmocka_unit_test(test_contributions_are_rounded_one_by_one),
    };
    return cmocka_run_group_tests(tests, NULL, pools_teardown);
}
