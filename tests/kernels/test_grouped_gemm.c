/*
 * test_grouped_gemm.c: each row times the matrix of its expert, against sums in fp64: both directions,
 * gathered or not, with an adapter or not, with a bias, for ranges of experts and every load; what is not of the
 * range stays as it was.
 */
#include "kernels/grouped_gemm.h"

#include "kernels/expert_rows_test.h"

typedef struct {
    tsr_grouped_gemm_args args;
    const float *before; /* of z */
    float *z;
    int64_t elements;
} fixture;

static tsr_status run(void *context, tsr_pool *pool)
{
    fixture *f = context;
    memcpy(f->z, f->before, (size_t)f->elements * sizeof(float));
    return tsr_grouped_gemm_ref(&f->args, pool);
}

static double product(const tsr_grouped_gemm_args *a, int64_t e, int64_t i, int64_t j)
{
    int64_t inner = a->backward ? a->out : a->in;
    const float *x = (const float *)a->x + tsr_expert_row_from(&a->rows, i) * inner;
    const float *w = (const float *)a->w + (e - a->first) * a->out * a->in;
    double sum = 0;
    for (int64_t k = 0; k < inner; k++)
        sum += (double)x[k] * (double)(a->backward ? w[k * a->in + j] : w[j * a->in + k]);
    return sum;
}

static double low_product(const tsr_grouped_gemm_args *a, int64_t e, int64_t i, int64_t j)
{
    const float *low = (const float *)a->low + i * a->r;
    const float *factor = (const float *)a->factor + e * a->r * (a->backward ? a->in : a->out);
    double sum = 0;
    for (int64_t k = 0; k < a->r; k++)
        sum +=
            (double)low[k] * (double)(a->backward ? factor[k * a->in + j] : factor[j * a->r + k]);
    return sum;
}

static float bias_at(const tsr_grouped_gemm_args *a, int64_t e, int64_t j)
{
    if (!a->bias.data)
        return 0;
    int64_t i = e * a->out + j;
    return a->bias.dtype == TSR_F32 ? ((const float *)a->bias.data)[i]
                                    : tsr_bf16_to_f32(((const uint16_t *)a->bias.data)[i]);
}

static double *new_want(const fixture *f)
{
    const tsr_grouped_gemm_args *a = &f->args;
    int64_t outer = a->backward ? a->in : a->out;
    double *want = new_doubles(f->before, f->elements);
    for (int64_t e = a->first; e < a->first + a->count; e++)
        for (int64_t i = a->rows.offset[e]; i < a->rows.offset[e + 1]; i++)
            for (int64_t j = 0; j < outer; j++)
                want[i * outer + j] =
                    product(a, e, i, j) + low_product(a, e, i, j) + (double)bias_at(a, e, j);
    return want;
}

static void expect_untouched(const fixture *f)
{
    const tsr_grouped_gemm_args *a = &f->args;
    int64_t outer = a->backward ? a->in : a->out;
    int64_t first = a->rows.offset[a->first] * outer;
    int64_t end = a->rows.offset[a->first + a->count] * outer;
    assert_memory_equal(f->z, f->before, (size_t)first * sizeof(float));
    assert_memory_equal(f->z + end, f->before + end, (size_t)(f->elements - end) * sizeof(float));
}

typedef struct {
    int64_t tokens, k, experts, out, in, first, count;
    expert_load load;
    int64_t r;
} shape;

/* Bit by bit of `way`: backward, gathered, an adapter, bias in fp32, bias in bf16 (both: none). */
static void one_way(const shape *s, int way)
{
    expert_case c = new_expert_case(s->tokens, s->k, s->experts, s->load);
    bool backward = way & 1, gather = way & 2;
    int64_t outer = backward ? s->in : s->out, inner = backward ? s->out : s->in;
    int64_t x_rows = gather ? s->tokens : c.rows.most;
    float *x = new_random(x_rows * inner, 1, 1), *w = new_random(s->count * s->out * s->in, 2, 1);
    float *bias = new_random(s->experts * s->out, 3, 1);
    uint16_t *half = new_bf16(bias, s->experts * s->out);
    float *low = new_random(c.rows.most * s->r, 5, 1);
    float *factor = new_random(s->experts * s->r * outer, 6, 1);
    float *before = new_random(c.rows.most * outer, 4, 1);
    fixture f = {.args = {.x = x,
                          .w = w,
                          .rows = c.rows,
                          .first = s->first,
                          .count = s->count,
                          .out = s->out,
                          .in = s->in,
                          .low = low,
                          .factor = factor,
                          .r = way & 4 ? s->r : 0,
                          .backward = backward},
                 .before = before,
                 .elements = c.rows.most * outer};
    if (!gather)
        f.args.rows.slot = NULL;
    if (!backward && (way & 24) != 24 && way & 24)
        f.args.bias = way & 8 ? (tsr_frozen){bias, TSR_F32} : (tsr_frozen){half, TSR_BF16};
    f.args.z = f.z = new_floats(f.elements);
    double *want = new_want(&f);
    run_on_pools(run, &f, f.z, f.elements);
    expect_close(expert_load_name[s->load], f.z, want, f.elements, 2e-6);
    expect_untouched(&f);
    free(x), free(w), free(bias), free(half), free(low), free(factor), free(before), free(want);
    free(f.z);
    free_expert_case(&c);
}

static void every_way_and_load(void **state)
{
    (void)state;
    static const shape shapes[] = {
        {1, 1, 1, 1, 1, 0, 1, LOAD_EVEN, 1},        {7, 2, 5, 33, 70, 0, 5, LOAD_EVEN, 8},
        {90, 4, 9, 40, 129, 0, 9, LOAD_ZIPF, 16},   {90, 4, 9, 40, 129, 2, 4, LOAD_ZIPF, 24},
        {70, 3, 6, 24, 31, 0, 6, LOAD_ONE, 3},      {70, 3, 6, 24, 31, 5, 1, LOAD_ONE, 72},
        {50, 2, 10, 17, 300, 1, 9, LOAD_HOLES, 40}, {60, 4, 7, 530, 20, 0, 7, LOAD_DROPPED, 16},
        {0, 2, 4, 8, 8, 0, 4, LOAD_EVEN, 8},        {9, 2, 4, 8, 8, 2, 0, LOAD_EVEN, 8},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int way = 0; way < 24; way++)
            if (!(way & 1) || way < 8)
                one_way(&shapes[i], way);
}

/* Two experts at a time, of five: the bits of all of them made before. */
static void stored_weights_are_made_first(void **state)
{
    (void)state;
    enum { OUT = 20, IN = 33, EXPERTS = 5 };
    expert_case c = new_expert_case(40, 2, EXPERTS, LOAD_ZIPF);
    float *x = new_random(80 * IN, 1, 1), *w = new_random(EXPERTS * OUT * IN, 2, 1);
    float *want = new_random(80 * OUT, 3, 1), *z = new_random(80 * OUT, 3, 1);
    float *scratch = new_random(2 * OUT * IN, 4, 1);
    float *low = new_random(80 * 8, 5, 1), *factor = new_random(EXPERTS * OUT * 8, 6, 1);
    const tsr_expert_weight_args stored = {.plain = {w, TSR_F32},
                                           .parts = 2,
                                           .rows = OUT,
                                           .columns = IN,
                                           .format = TSR_EXPERTS_PLAIN,
                                           .dtype = TSR_F32};
    tsr_grouped_gemm_args args = {.z = want,
                                  .x = x,
                                  .w = w + OUT * IN,
                                  .rows = c.rows,
                                  .first = 1,
                                  .count = 4,
                                  .out = OUT,
                                  .in = IN,
                                  .low = low,
                                  .factor = factor,
                                  .r = 8,
                                  .dtype = TSR_F32};
    assert_int_equal(tsr_grouped_gemm_ref(&args, test_pool(2)), TSR_OK);
    args.z = z, args.w = NULL, args.stored = stored, args.scratch = scratch;
    assert_int_equal(tsr_grouped_gemm_check(&args), TSR_EINVAL); /* none held */
    args.held = 2;
    assert_int_equal(tsr_grouped_gemm_ref(&args, test_pool(2)), TSR_OK);
    assert_memory_equal(z, want, 80 * OUT * sizeof *z);
    args.stored.columns = IN + 1;
    assert_int_equal(tsr_grouped_gemm_check(&args), TSR_EINVAL);
    free(x), free(w), free(want), free(z), free(scratch), free(low), free(factor);
    free_expert_case(&c);
}

static void bad_arguments_are_refused(void **state)
{
    (void)state;
    float x[4] = {0};
    int32_t offset[3] = {0, 1, 1}, slot[1] = {0};
    const tsr_grouped_gemm_args good = {
        .z = x,
        .x = x,
        .w = x,
        .rows = {.offset = offset, .slot = slot, .most = 1, .k = 1, .experts = 2},
        .count = 2,
        .out = 1,
        .in = 1};
    assert_int_equal(tsr_grouped_gemm_ref(&good, test_pool(0)), TSR_OK);
    tsr_grouped_gemm_args bad = good;
    bad.first = 1;
    assert_int_equal(tsr_grouped_gemm_check(&bad), TSR_EINVAL);
    bad = good;
    bad.w = NULL;
    assert_int_equal(tsr_grouped_gemm_check(&bad), TSR_EINVAL);
    bad = good;
    bad.in = 0;
    assert_int_equal(tsr_grouped_gemm_check(&bad), TSR_EINVAL);
    bad = good;
    bad.bias = (tsr_frozen){x, TSR_F32};
    assert_int_equal(tsr_grouped_gemm_check(&bad), TSR_OK);
    bad.backward = true;
    assert_int_equal(tsr_grouped_gemm_check(&bad), TSR_EINVAL);
    bad = good;
    bad.r = 8;
    assert_int_equal(tsr_grouped_gemm_check(&bad), TSR_EINVAL); /* no factor */
    bad = good;
    bad.r = -1;
    assert_int_equal(tsr_grouped_gemm_check(&bad), TSR_EINVAL);
    bad = good;
    bad.rows.k = 2;
    assert_int_equal(tsr_grouped_gemm_check(&bad), TSR_EINVAL);
    bad = good;
    bad.rows.offset = NULL;
    assert_int_equal(tsr_grouped_gemm_check(&bad), TSR_EINVAL);
    bad = good;
    bad.dtype = TSR_BF16;
    assert_int_equal(tsr_grouped_gemm_ref(&bad, test_pool(0)), TSR_EUNSUPPORTED);
}

static void rows_that_point_elsewhere_are_found(void **state)
{
    (void)state;
    float x[4] = {0};
    int32_t offset[3] = {0, 2, 1}, slot[2] = {0, 1};
    tsr_grouped_gemm_args args = {
        .z = x,
        .x = x,
        .w = x,
        .rows = {.offset = offset, .slot = slot, .most = 2, .k = 1, .experts = 2},
        .count = 2,
        .out = 1,
        .in = 1};
    assert_int_equal(tsr_grouped_gemm_ref(&args, test_pool(0)), TSR_EINTERNAL);
    assert_non_null(strstr(tsr_last_error(), "expert 1 has rows [2, 1)"));
    offset[2] = 3;
    assert_int_equal(tsr_grouped_gemm_ref(&args, test_pool(0)), TSR_EINTERNAL);
    offset[2] = 2;
    assert_int_equal(tsr_grouped_gemm_ref(&args, test_pool(0)), TSR_OK);
    slot[1] = 2;
    assert_int_equal(tsr_grouped_gemm_ref(&args, test_pool(0)), TSR_EINTERNAL);
    assert_non_null(strstr(tsr_last_error(), "slot[1] = 2"));
    slot[1] = -1;
    assert_int_equal(tsr_grouped_gemm_ref(&args, test_pool(0)), TSR_EINTERNAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_way_and_load),
        cmocka_unit_test(stored_weights_are_made_first),
        cmocka_unit_test(bad_arguments_are_refused),
        cmocka_unit_test(rows_that_point_elsewhere_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, pools_teardown);
}
