/*
 * test_cuda_objective.c: objective on a GPU against the C reference, which takes the same formulas but sums rows in another
 * order; twice the same bits; and scale_rows.
 */
#include "cuda_test.h"

#include "kernels/head.h"
#include "objective_case.h"

#define EXACT                                                                                      \
    1e-11 /* of fp64 sums in another order, and a few transcendental functions of theirs */

static void expect_number(const char *what, double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance * (1 + fabs(want))))
        fail_msg("%s: %.17g, want %.17g", what, got, want);
}

/* The reference's arguments with what a GPU reads. */
typedef struct {
    tsr_objective_args args;
    double *sums;
    float *weight;
    int64_t *words; /* loss, then words, then the flag */
} on_device;

static on_device copy(const objective_run *r)
{
    int64_t parts = TSR_PARTS * r->args.documents;
    int64_t zeros[TSR_PREFERENCE_WORDS + 2] = {0};
    on_device d = {.args = r->args};
    d.sums = cuda_copy(NULL, (uint64_t)tsr_objective_doubles(r->args.documents) * sizeof(double));
    d.weight = cuda_copy(NULL, (uint64_t)r->args.rows * sizeof(float));
    d.words = cuda_copy(zeros, sizeof zeros);
    d.args.nll = cuda_copy(r->nll, (uint64_t)r->args.rows * sizeof(double));
    d.args.part = cuda_copy(r->part, (uint64_t)(parts + 1) * sizeof(int32_t));
    d.args.desirable = cuda_copy(r->desirable, (uint64_t)r->args.documents / 2 * sizeof(int32_t));
    d.args.log_squares = cuda_copy(r->log_squares, (uint64_t)r->args.rows * sizeof(float));
    if (r->args.reference)
        d.args.reference = cuda_copy(r->reference, (uint64_t)parts * sizeof(double));
    d.args.sums = d.sums;
    d.args.weight = r->args.weight ? d.weight : NULL;
    d.args.loss = d.words;
    d.args.words = d.words + 1;
    d.args.loss_overflow = (int32_t *)(d.words + 1 + TSR_PREFERENCE_WORDS);
    return d;
}

static void compare(const char *name, const objective_run *r, const on_device *d)
{
    int64_t words[TSR_PREFERENCE_WORDS + 2], rows = r->args.rows;
    double *sums = malloc((size_t)(TSR_PARTS * r->args.documents) * sizeof *sums);
    float *weight = malloc((size_t)rows * sizeof *weight);
    assert_true(sums && weight);
    cuda_read(words, d->words, sizeof words);
    cuda_read(sums, d->sums, (uint64_t)(TSR_PARTS * r->args.documents) * sizeof *sums);
    cuda_read(weight, d->weight, (uint64_t)rows * sizeof *weight);
    for (int64_t p = 0; p < TSR_PARTS * r->args.documents; p++)
        expect_number(name, sums[p], r->sums[p], EXACT);
    expect_number(name, ldexp((double)words[0], -TSR_LOSS_SHIFT),
                  ldexp((double)r->loss, -TSR_LOSS_SHIFT), 1e-9);
    for (int w = 0; w < TSR_PREFERENCE_WORDS; w++)
        expect_number(name, ldexp((double)words[1 + w], -TSR_LOSS_SHIFT),
                      ldexp((double)r->words[w], -TSR_LOSS_SHIFT), 1e-9);
    for (int64_t i = 0; i < rows; i++)
        expect_number(name, (double)weight[i], (double)r->weight[i], 1e-6);
    assert_int_equal((int32_t)words[1 + TSR_PREFERENCE_WORDS], r->overflow);
    free(sums), free(weight);
}

static void one(const objective_case *c, int64_t documents, int times, bool spoilt)
{
    objective_run r;
    objective_begin(&r, c, documents, times);
    if (spoilt) /* a row of a first document: KTO's second ones may not count */
        r.nll[r.part[documents / 4 * 2 * TSR_PARTS + TSR_PART_COMPLETION]] = NAN;
    RUN(tsr_objective_ref(&r.args, rig.pool));
    on_device first = copy(&r), second = copy(&r);
    RUN(rig.kernels->objective(rig.stream, &first.args));
    RUN(rig.kernels->objective(rig.stream, &second.args));
    if (!spoilt)
        compare(c->name, &r, &first);
    int64_t words[2][TSR_PREFERENCE_WORDS + 2];
    cuda_read(words[0], first.words, sizeof words[0]);
    cuda_read(words[1], second.words, sizeof words[1]);
    assert_memory_equal(words[0], words[1], sizeof words[0]);
    if (spoilt) {
        assert_int_equal(words[0][0], 0);
        assert_int_equal((int32_t)words[0][1 + TSR_PREFERENCE_WORDS], 1);
        float *weight = cuda_floats(first.weight, r.args.rows, TSR_F32);
        for (int64_t i = 0; i < r.args.rows; i++)
            assert_true(weight[i] == 0);
        free(weight);
    }
    objective_end(&r);
    cuda_free_all();
}

static void objectives(void **state)
{
    static const int64_t documents[] = {2, 8, 66, 1400};
    (void)state;
    for (int i = 0; i < OBJECTIVE_CASES; i++)
        for (size_t n = 0; n < sizeof documents / sizeof *documents; n++) {
            if (cuda_turn())
                one(&objective_cases[i], documents[n], documents[n] == 8 ? 100 : 1, false);
            if (cuda_turn())
                one(&objective_cases[i], documents[n], 1, true);
        }
}

/* Sums alone, as a reference is made. */
static void sums_alone(void **state)
{
    (void)state;
    objective_run r;
    objective_begin(&r, &objective_cases[0], 12, 20);
    r.args.weight = NULL;
    r.args.objective = NULL;
    RUN(tsr_objective_ref(&r.args, rig.pool));
    on_device d = copy(&r);
    RUN(rig.kernels->objective(rig.stream, &d.args));
    double sums[TSR_PARTS * 12];
    cuda_read(sums, d.sums, sizeof sums);
    for (int p = 0; p < TSR_PARTS * 12; p++)
        expect_number("sums alone", sums[p], r.sums[p], EXACT);
    objective_end(&r);
    cuda_free_all();
}

static void rows_are_scaled(void **state)
{
    static const int64_t shapes[][2] = {{0, 8}, {1, 1}, {5, 7}, {37, 64}, {300, 100}, {60, 4096}};
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16};
    (void)state;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int t = 0; t < 3; t++) {
            int64_t rows = shapes[s][0], d = shapes[s][1];
            float *x = new_random(rows * d, 3, 2), *weight = new_random(rows, 4, 1);
            void *device = cuda_values(x, rows * d, dtypes[t]);
            tsr_scale_rows_args args = {
                .x = x, .weight = weight, .rows = rows, .d = d, .dtype = TSR_F32};
            RUN(tsr_scale_rows_ref(&args, rig.pool));
            args = (tsr_scale_rows_args){.x = device,
                                         .weight = cuda_copy(weight, (uint64_t)rows * 4),
                                         .rows = rows,
                                         .d = d,
                                         .dtype = dtypes[t]};
            RUN(rig.kernels->scale_rows(rig.stream, &args));
            cuda_expect_bits("scale_rows", device, x, rows, d, dtypes[t]);
            free(x), free(weight);
            cuda_free_all();
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(objectives), cmocka_unit_test(sums_alone),
                                       cmocka_unit_test(rows_are_scaled)};
    return cmocka_run_group_tests(tests, cuda_setup, cuda_teardown);
}
