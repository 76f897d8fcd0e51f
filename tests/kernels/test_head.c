/*
 * test_head.c: the one-pass head against logits in fp64: loss, per-row nll, the gradient of h, entropy and whether the
 * label is the argmax, with chunks of any size, bf16 weights, large logits and rows without a label.
 */
#include "kernels/head.h"

#include "kernels/head_rows.h"
#include "kernels/kernel_test.h"

#define F32_NLL_TOLERANCE      2e-6 /* of the largest element */
#define F32_GRADIENT_TOLERANCE 3e-6
#define LOSS_TOLERANCE         1e-6 /* of the sum */
#define ENTROPY_TOLERANCE                                                                          \
    3e-6 /* of a row; of logits of 500 that are rounded to 3e-5, 50 times that */
#define KNOWN_TOLERANCE                                                                            \
    5e-5 /* of a row: a logit of 40 is rounded to 4e-6, and its sum of 64 several times */

typedef struct {
    int64_t rows, d, vocabulary, chunk;
    float size; /* of h */
    bool bf16;
} head_case;

static const head_case cases[] = {
    {1, 1, 1, 1, 1, false},         {1, 8, 5, 2, 1, false},         {7, 16, 100, 33, 1, true},
    {70, 24, 700, 700, 3, false},   {129, 32, 1300, 1030, 1, true}, {300, 16, 600, 512, 1, false},
    {40, 16, 900, 128, 500, false}, {0, 8, 16, 16, 1, false},       {2100, 8, 530, 530, 1, true},
};

typedef struct {
    const head_case *c;
    float *h, *w, *state, *out; /* out: dh */
    double *nll;
    uint16_t *w16;
    int32_t *labels, overflow;
    int64_t loss, correct, entropy;
    void *workspace;
    bool forward_only, backwards, loss_alone;
    float scale;
    double smoothing;
    float *row_parts; /* and behind them mean_row */
    bool summed;      /* mean_row is known */
    float *
        squares; /* and behind them log_squares, entropies, hits and mean logits; NULL: not wanted */
} fixture;

static tsr_head_state state_of(const fixture *f)
{
    int64_t rows = f->c->rows;
    tsr_head_state s = {
        .max = f->state, .sum = f->state + rows, .label_logit = f->state + 2 * rows};
    if (!f->loss_alone) {
        s.rival = f->state + 3 * rows;
        s.spread = f->state + 4 * rows;
    }
    s.squares = f->squares;
    if ((f->smoothing > 0 || f->squares) && !f->summed)
        s.row_parts = f->row_parts;
    if (!f->forward_only) {
        s.acc = f->state + 5 * rows;
        s.wy = s.acc + rows * f->c->d;
    }
    return s;
}

static tsr_status run(void *context, tsr_pool *pool)
{
    fixture *f = context;
    const head_case *c = f->c;
    tsr_head_state s = state_of(f);
    tsr_head_begin_args begin = {s, c->rows, c->d};
    TSR_TRY(tsr_head_begin_ref(&begin, pool));
    int64_t chunks = (c->vocabulary + c->chunk - 1) / c->chunk;
    for (int64_t i = 0; i < chunks; i++) {
        int64_t first = (f->backwards ? chunks - 1 - i : i) * c->chunk;
        int64_t count = first + c->chunk > c->vocabulary ? c->vocabulary - first : c->chunk;
        tsr_head_chunk_args chunk = {.state = s,
                                     .h = f->h,
                                     .labels = f->labels,
                                     .workspace = f->workspace,
                                     .workspace_bytes =
                                         tsr_head_workspace_bytes(&(tsr_head_bounds){.d = c->d}),
                                     .rows = c->rows,
                                     .d = c->d,
                                     .first = first,
                                     .count = count};
        if (c->bf16)
            chunk.w = (tsr_frozen){f->w16 + first * c->d, TSR_BF16};
        else
            chunk.w = (tsr_frozen){f->w + first * c->d, TSR_F32};
        TSR_TRY(tsr_head_chunk_ref(&chunk, pool));
    }
    f->loss = f->correct = f->entropy = 100;
    tsr_head_finish_args finish = {.state = s,
                                   .dh = f->forward_only ? NULL : f->out,
                                   .nll = f->nll,
                                   .loss = &f->loss,
                                   .loss_overflow = &f->overflow,
                                   .correct = f->loss_alone ? NULL : &f->correct,
                                   .entropy = f->loss_alone ? NULL : &f->entropy,
                                   .log_squares = f->squares ? f->squares + c->rows : NULL,
                                   .row_entropy = f->squares ? f->squares + 2 * c->rows : NULL,
                                   .row_correct = f->squares ? f->squares + 3 * c->rows : NULL,
                                   .row_logit = f->squares ? f->squares + 4 * c->rows : NULL,
                                   .rows = c->rows,
                                   .d = c->d,
                                   .scale = f->scale,
                                   .smoothing = f->smoothing,
                                   .h = f->h,
                                   .mean_row = f->row_parts + TSR_HEAD_PARTS * c->d,
                                   .vocabulary = c->vocabulary};
    return tsr_head_finish_ref(&finish, pool);
}

static void make_fixture(fixture *f, const head_case *c)
{
    *f = (fixture){.c = c, .scale = 0.125f};
    f->h = new_random(c->rows * c->d, 1, c->size);
    f->w = new_random(c->vocabulary * c->d, 2, 1);
    f->w16 = new_bf16(f->w, c->vocabulary * c->d);
    f->state = new_floats(5 * c->rows + 2 * c->rows * c->d);
    f->out = new_floats(c->rows * c->d);
    f->row_parts = new_floats((TSR_HEAD_PARTS + 1) * c->d);
    f->nll = new_doubles(NULL, c->rows);
    f->labels = malloc((size_t)(c->rows + 1) * sizeof(int32_t));
    for (int64_t i = 0; i < c->rows; i++)
        f->labels[i] = (int32_t)(tsr_mix((uint64_t)i) % (uint64_t)c->vocabulary);
    f->workspace = malloc(tsr_head_workspace_bytes(&(tsr_head_bounds){.d = c->d}));
    assert_non_null(f->workspace);
}

static void free_fixture(fixture *f)
{
    free(f->h), free(f->w), free(f->w16), free(f->state), free(f->out), free(f->nll);
    free(f->labels), free(f->workspace), free(f->row_parts);
}

static void exact(const fixture *f, double *nll, double *dh)
{
    const head_case *c = f->c;
    double *p = new_doubles(NULL, c->vocabulary);
    for (int64_t i = 0; i < c->rows; i++) {
        double max = -INFINITY, sum = 0, mean = 0, s = f->smoothing;
        for (int64_t v = 0; v < c->vocabulary; v++) {
            p[v] = 0;
            for (int64_t j = 0; j < c->d; j++)
                p[v] += (double)f->h[i * c->d + j] * (double)f->w[v * c->d + j];
            max = p[v] > max ? p[v] : max;
            mean += p[v] / (double)c->vocabulary;
        }
        double label = p[f->labels[i]];
        for (int64_t v = 0; v < c->vocabulary; v++)
            sum += p[v] = exp(p[v] - max);
        nll[i] = log(sum) + max - (1 - s) * label - s * mean;
        for (int64_t j = 0; j < c->d; j++)
            dh[i * c->d + j] = -(1 - s) * (double)f->w[f->labels[i] * c->d + j];
        for (int64_t v = 0; v < c->vocabulary; v++)
            for (int64_t j = 0; j < c->d; j++)
                dh[i * c->d + j] +=
                    (p[v] / sum - s / (double)c->vocabulary) * (double)f->w[v * c->d + j];
        for (int64_t j = 0; j < c->d; j++)
            dh[i * c->d + j] *= (double)f->scale;
    }
    free(p);
}

static void check_loss(const fixture *f, const double *nll)
{
    float *got = new_floats(f->c->rows);
    double sum = 0, loose = f->c->size > 100 ? 20 : 1;
    for (int64_t i = 0; i < f->c->rows; i++) {
        sum += nll[i];
        got[i] = (float)f->nll[i];
    }
    expect_close("nll", got, nll, f->c->rows, F32_NLL_TOLERANCE * loose);
    double loss = ldexp((double)(f->loss - 100), -TSR_LOSS_SHIFT);
    assert_true(fabs(loss - sum) <= LOSS_TOLERANCE * loose * sum);
    assert_int_equal(f->overflow, 0);
    free(got);
}

static void loss_and_gradient_match_fp64(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fixture f;
        make_fixture(&f, &cases[i]);
        const head_case *c = f.c;
        double *nll = new_doubles(NULL, c->rows), *dh = new_doubles(NULL, c->rows * c->d);
        exact(&f, nll, dh);
        /* Logits of 500 are rounded to 3e-5: a weight near 1/2 moves by as much. */
        double loose = c->size > 100 ? 50 : 1;
        for (int order = 0; order < 2; order++) {
            f.backwards = order;
            run_on_pools(run, &f, f.out, c->rows * c->d);
            expect_close("dh", f.out, dh, c->rows * c->d, F32_GRADIENT_TOLERANCE * loose);
            check_loss(&f, nll);
        }
        f.forward_only = true;
        assert_int_equal(run(&f, test_pool(1)), TSR_OK);
        check_loss(&f, nll);
        free(nll), free(dh);
        free_fixture(&f);
    }
}

/* The log of the sum of all p^2 of a row, and the mean of its logits. */
static double exact_squares(double *mean, const fixture *f, int64_t row)
{
    const head_case *c = f->c;
    double *l = new_doubles(NULL, c->vocabulary), max = -INFINITY, sum = 0, squares = 0;
    *mean = 0;
    for (int64_t v = 0; v < c->vocabulary; v++) {
        l[v] = 0;
        for (int64_t j = 0; j < c->d; j++)
            l[v] += (double)f->h[row * c->d + j] * (double)f->w[v * c->d + j];
        max = l[v] > max ? l[v] : max;
        *mean += l[v] / (double)c->vocabulary;
    }
    for (int64_t v = 0; v < c->vocabulary; v++) {
        sum += exp(l[v] - max);
        squares += exp(2 * (l[v] - max));
    }
    free(l);
    return log(squares) - 2 * log(sum);
}

static void how_sure_a_row_is_matches_fp64(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fixture f;
        make_fixture(&f, &cases[i]);
        int64_t rows = f.c->rows;
        f.squares = new_floats(5 * rows);
        if (rows) /* a label that leads by far */
            put_along(f.h, f.w + f.labels[0] * f.c->d, f.c->d, 30);
        for (int order = 0; order < 2; order++) {
            f.backwards = order;
            assert_int_equal(run(&f, test_pool(order)), TSR_OK);
            double entropy = 0, correct = 0;
            for (int64_t r = 0; r < rows; r++) {
                double mean, want = exact_squares(&mean, &f, r);
                double got = (double)f.squares[rows + r];
                double logit = (double)f.squares[4 * rows + r];
                entropy += (double)f.squares[2 * rows + r];
                correct += (double)f.squares[3 * rows + r];
                if (!(fabs(logit - mean) <= 2e-6 * (1 + fabs(mean)) * (double)f.c->size))
                    fail_msg("row %lld of %lld: mean logit %.9g, want %.9g", (long long)r,
                             (long long)rows, logit, mean);
                if (!(fabs(got - want) <= 2e-5 + 2e-6 * fabs(want) * (double)f.c->size))
                    fail_msg("row %lld of %lld: %.9g, want %.9g", (long long)r, (long long)rows,
                             got, want);
            }
            double all = ldexp((double)(f.entropy - 100), -TSR_LOSS_SHIFT);
            assert_true(fabs(entropy - all) <= 1e-6 * (1 + all));
            assert_true(correct == (double)(f.correct - 100));
        }
        free(f.squares);
        free_fixture(&f);
    }
}

/* h along W[label], so that the label's logit is 12 to 40 and p up to 1 - 1e-6: the gradient, 1 - p times W[label]
 * less little of the others, row by row, and the loss, as exact as those of a label that is not known. */
static void what_is_left_of_a_known_label_is_exact(void **state)
{
    (void)state;
    static const head_case c = {8, 64, 5000, 1700, 1, false};
    fixture f;
    make_fixture(&f, &c);
    double nll[8], *dh = new_doubles(NULL, c.rows * c.d);
    for (int64_t i = 0; i < c.rows; i++)
        put_along(f.h + i * c.d, f.w + f.labels[i] * c.d, c.d, 12 + 4 * (double)i);
    exact(&f, nll, dh);
    assert_true(nll[0] < 0.3 && nll[7] < 1e-5);
    for (int order = 0; order < 2; order++) {
        f.backwards = order;
        assert_int_equal(run(&f, test_pool(0)), TSR_OK);
        for (int64_t i = 0; i < c.rows; i++) {
            double off = row_distance(f.out + i * c.d, dh + i * c.d, c.d);
            if (!(off <= KNOWN_TOLERANCE) || !(fabs(f.nll[i] / nll[i] - 1) <= KNOWN_TOLERANCE))
                fail_msg("nll %g: dh is %g off, nll %g", nll[i], off, f.nll[i] / nll[i] - 1);
        }
    }
    free(dh);
    free_fixture(&f);
}

/* Central differences of the loss that the kernel itself computes would be too coarse in fp32: the
 * fp64 gradient is checked instead. */
static void the_exact_gradient_is_a_gradient(void **state)
{
    (void)state;
    fixture f;
    make_fixture(&f, &cases[2]);
    int64_t count = f.c->rows * f.c->d;
    double *nll = new_doubles(NULL, f.c->rows), *dh = new_doubles(NULL, count);
    double *other = new_doubles(NULL, count);
    exact(&f, nll, dh);
    for (int64_t i = 0; i < count; i += 5) {
        float old = f.h[i];
        double change[2];
        for (int side = 0; side < 2; side++) {
            f.h[i] = old + (side ? 0x1p-12f : -0x1p-12f);
            exact(&f, nll, other);
            change[side] = nll[i / f.c->d];
        }
        double width = (double)(old + 0x1p-12f) - (double)(old - 0x1p-12f);
        assert_true(fabs((change[1] - change[0]) / width * (double)f.scale - dh[i]) < 1e-6);
        f.h[i] = old;
    }
    free(nll), free(dh), free(other);
    free_fixture(&f);
}

static void a_loss_that_is_not_finite_is_flagged(void **state)
{
    (void)state;
    fixture f;
    make_fixture(&f, &cases[2]);
    f.labels[3] = (int32_t)f.c->vocabulary; /* no chunk has it */
    assert_int_equal(run(&f, test_pool(0)), TSR_OK);
    assert_int_equal(f.overflow, 1);
    assert_true(f.loss == 100);
    free_fixture(&f);
    make_fixture(&f, &cases[2]);
    f.h[0] = INFINITY;
    assert_int_equal(run(&f, test_pool(0)), TSR_OK);
    assert_int_equal(f.overflow, 1);
    free_fixture(&f);
}

/* Of every row the entropy and whether its label is the first of the largest logits, in fp64. */
static void exact_report(const fixture *f, double *entropy, int64_t *correct)
{
    const head_case *c = f->c;
    double *logit = new_doubles(NULL, c->vocabulary);
    *entropy = 0;
    *correct = 0;
    for (int64_t i = 0; i < c->rows; i++) {
        int64_t best = 0;
        double sum = 0, product = 0;
        for (int64_t v = 0; v < c->vocabulary; v++) {
            logit[v] = 0;
            for (int64_t j = 0; j < c->d; j++)
                logit[v] += (double)f->h[i * c->d + j] * (double)f->w[v * c->d + j];
            best = logit[v] > logit[best] ? v : best;
        }
        for (int64_t v = 0; v < c->vocabulary; v++) {
            double p = exp(logit[v] - logit[best]);
            sum += p;
            product += p * (logit[v] - logit[best]);
        }
        *entropy += log(sum) - product / sum;
        *correct += best == f->labels[i];
    }
    free(logit);
}

static double entropy_of(const fixture *f)
{
    return ldexp((double)(f->entropy - 100), -TSR_LOSS_SHIFT);
}

/* h of every second row along W[label], so that labels are correct, at chance and beyond doubt. */
static void entropy_and_accuracy_match_fp64(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fixture f;
        make_fixture(&f, &cases[i]);
        const head_case *c = f.c;
        for (int64_t r = 0; r < c->rows; r += 2)
            put_along(f.h + r * c->d, f.w + f.labels[r] * c->d, c->d, 2 + (double)(r % 50));
        double want, loose = c->size > 100 ? 50 : 1;
        int64_t correct;
        exact_report(&f, &want, &correct);
        assert_true(c->rows < 4 || (correct >= c->rows / 4 && correct < c->rows));
        for (int way = 0; way < 4; way++) {
            f.backwards = way & 1;
            f.forward_only = way & 2;
            assert_int_equal(run(&f, test_pool(way)), TSR_OK);
            assert_int_equal(f.correct - 100, correct);
            double off = fabs(entropy_of(&f) - want) / (double)(c->rows + 1);
            if (!(off <= ENTROPY_TOLERANCE * loose))
                fail_msg("case %zu: entropy %.9g, want %.9g", i, entropy_of(&f), want);
        }
        free_fixture(&f);
    }
}

/* Of several shares, with W's rows summed and with the mean row of an earlier pass, the gradient over h, acc or wy. */
static void smoothed_labels_match_fp64(void **state)
{
    (void)state;
    for (size_t i = 0; i < 3 * sizeof cases / sizeof *cases; i++) {
        static const double shares[] = {0.1, 0.6, 1};
        fixture f;
        if (cases[i / 3].vocabulary == 1) /* a loss of 0, and its rounding */
            continue;
        make_fixture(&f, &cases[i / 3]);
        const head_case *c = f.c;
        int64_t count = c->rows * c->d;
        double *nll = new_doubles(NULL, c->rows), *dh = new_doubles(NULL, count);
        float *own[2] = {f.out, f.h}, *h = new_floats(count);
        f.smoothing = shares[i % 3];
        exact(&f, nll, dh);
        memcpy(h, f.h, (size_t)count * sizeof *h);
        double loose = c->size > 100 ? 50 : 1;
        for (int way = 0; way < 5; way++) {
            float *over[] = {f.out, f.h, state_of(&f).acc, state_of(&f).wy};
            f.backwards = way & 1;
            f.summed = way == 4 && c->rows > 0;
            memcpy(f.h, h, (size_t)count * sizeof *h);
            f.out = over[way % 4];
            assert_int_equal(run(&f, test_pool(way % POOL_COUNT)), TSR_OK);
            expect_close("dh", f.out, dh, count, F32_GRADIENT_TOLERANCE * loose);
            check_loss(&f, nll);
            f.out = own[0];
        }
        memcpy(f.h, h, (size_t)count * sizeof *h);
        f.forward_only = true;
        assert_int_equal(run(&f, test_pool(1)), TSR_OK);
        check_loss(&f, nll);
        free(nll), free(dh), free(h);
        free_fixture(&f);
    }
}

/* Label rows of W in 16 bits are those that are multiplied, which those times a slope are not. */
static void label_rows_are_not_rounded(void **state)
{
    (void)state;
    fixture f;
    make_fixture(&f, &cases[2]);
    tsr_head_chunk_args chunk = {.state = state_of(&f),
                                 .h = f.h,
                                 .w = {f.w, TSR_F32},
                                 .labels = f.labels,
                                 .workspace = f.workspace,
                                 .rows = 7,
                                 .d = 16,
                                 .count = 100,
                                 .dtype = TSR_BF16};
    chunk.state.wy_dtype = TSR_BF16;
    assert_int_equal(tsr_head_chunk_check(&chunk), TSR_OK);
    chunk.softcap = 30;
    assert_int_equal(tsr_head_chunk_check(&chunk), TSR_EINVAL);
    chunk.softcap = 0;
    chunk.dtype = TSR_F16;
    assert_int_equal(tsr_head_chunk_check(&chunk), TSR_EINVAL);
    free_fixture(&f);
}

/* What smoothing needs, and that it is refused with a softcap. */
static void smoothing_needs_its_buffers(void **state)
{
    (void)state;
    fixture f;
    make_fixture(&f, &cases[2]);
    f.smoothing = 0.1;
    tsr_head_chunk_args chunk = {.state = state_of(&f),
                                 .h = f.h,
                                 .w = {f.w, TSR_F32},
                                 .labels = f.labels,
                                 .workspace = f.workspace,
                                 .rows = 7,
                                 .d = 16,
                                 .count = 100,
                                 .softcap = 30};
    assert_int_equal(tsr_head_chunk_check(&chunk), TSR_EINVAL);
    chunk.softcap = 0;
    assert_int_equal(tsr_head_chunk_check(&chunk), TSR_OK);
    tsr_head_finish_args finish = {.state = state_of(&f),
                                   .nll = f.nll,
                                   .loss = &f.loss,
                                   .loss_overflow = &f.overflow,
                                   .correct = &f.correct,
                                   .entropy = &f.entropy,
                                   .rows = 7,
                                   .d = 16,
                                   .smoothing = 0.1,
                                   .h = f.h,
                                   .mean_row = f.row_parts};
    assert_int_equal(tsr_head_finish_check(&finish), TSR_EINVAL);
    finish.vocabulary = 100;
    assert_int_equal(tsr_head_finish_check(&finish), TSR_OK);
    finish.mean_row = NULL;
    assert_int_equal(tsr_head_finish_check(&finish), TSR_EINVAL);
    free_fixture(&f);
}

/* Neither changes a bit of loss and gradient. */
static void a_report_changes_no_bit(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fixture f;
        make_fixture(&f, &cases[i]);
        uint64_t bytes = (uint64_t)(f.c->rows * f.c->d) * sizeof(float);
        float *dh = new_floats(f.c->rows * f.c->d);
        assert_int_equal(run(&f, test_pool(0)), TSR_OK);
        int64_t loss = f.loss;
        memcpy(dh, f.out, bytes);
        f.loss_alone = true;
        assert_int_equal(run(&f, test_pool(0)), TSR_OK);
        assert_true(f.loss == loss && f.correct == 100 && f.entropy == 100);
        assert_memory_equal(dh, f.out, bytes);
        free(dh);
        free_fixture(&f);
    }
}

/* Equal logits at either side of the label, in its tile and in others: the first is the argmax, as torch's is. */
static void of_equal_logits_the_first_is_the_argmax(void **state)
{
    (void)state;
    static const head_case c = {1, 4, 1500, 1100, 1, false};
    static const struct {
        int32_t label, other;
        bool correct;
    } ties[] = {{700, 710, true}, {700, 699, false}, {700, 1400, true},  {700, 100, false},
                {1300, 2, false}, {0, 1499, true},   {1499, 1498, false}};
    fixture f;
    make_fixture(&f, &c);
    memset(f.w, 0, (size_t)(c.vocabulary * c.d) * sizeof(float));
    for (int j = 0; j < 4; j++)
        f.h[j] = 1 + (float)j;
    for (size_t i = 0; i < sizeof ties / sizeof *ties; i++) {
        f.labels[0] = ties[i].label;
        f.w[ties[i].label * c.d + 1] = f.w[ties[i].other * c.d + 1] = 3;
        for (int way = 0; way < 2; way++) {
            f.backwards = way;
            assert_int_equal(run(&f, test_pool(0)), TSR_OK);
            assert_int_equal(f.correct - 100, ties[i].correct);
        }
        f.w[ties[i].other * c.d + 1] = 3.0000002f;
        assert_int_equal(run(&f, test_pool(0)), TSR_OK);
        assert_int_equal(f.correct - 100, 0);
        f.w[ties[i].label * c.d + 1] = f.w[ties[i].other * c.d + 1] = 0;
    }
    free_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(how_sure_a_row_is_matches_fp64),
        cmocka_unit_test(loss_and_gradient_match_fp64),
        cmocka_unit_test(what_is_left_of_a_known_label_is_exact),
        cmocka_unit_test(the_exact_gradient_is_a_gradient),
        cmocka_unit_test(a_loss_that_is_not_finite_is_flagged),
        cmocka_unit_test(entropy_and_accuracy_match_fp64),
        cmocka_unit_test(smoothed_labels_match_fp64),
        cmocka_unit_test(label_rows_are_not_rounded),
        cmocka_unit_test(smoothing_needs_its_buffers),
        cmocka_unit_test(a_report_changes_no_bit),
        cmocka_unit_test(of_equal_logits_the_first_is_the_argmax),
    };
    return cmocka_run_group_tests(tests, NULL, pools_teardown);
}
