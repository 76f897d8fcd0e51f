/*
 * test_trained_tables.c: head_weight against fp64, with labels, soft caps and chunks; table_rows and table_sum against
 * plain loops; the same bits on any number of threads.
 */
#include "kernels/trained_tables.h"

#define WEIGHT_TOLERANCE 3e-6 /* of the largest element */
#define SUM_TOLERANCE    1e-6

typedef struct {
    const weight_case *c;
    tsr_head_weight_args args;
    float *w, *out;
} weight_run;

static tsr_status run_weight(void *context, tsr_pool *pool)
{
    weight_run *run = context;
    for (int64_t first = 0; first < run->c->vocabulary; first += run->c->chunk) {
        tsr_head_weight_args args = run->args;
        int64_t left = run->c->vocabulary - first;
        args.first = first;
        args.count = left < run->c->chunk ? left : run->c->chunk;
        args.w = run->w + first * args.d;
        args.dw = run->out + first * args.d;
        TSR_TRY(tsr_head_weight_ref(&args, pool));
    }
    return TSR_OK;
}

static void test_head_weight(void **state)
{
    (void)state;
    for (size_t i = 0; i < WEIGHT_CASES; i++) {
        const weight_case *c = &weight_cases[i];
        int64_t count = c->vocabulary * c->d;
        float *h = new_random(c->rows * c->d, 1, 1), *kept = new_floats(3 * c->rows);
        int32_t *labels = new_ids(c->rows, c->vocabulary);
        double *want = new_doubles(NULL, count);
        uint64_t bytes = tsr_head_workspace_bytes(&(tsr_head_bounds){.d = c->d});
        weight_run run = {c, {0}, new_random(count, 2, 1), new_floats(count)};
        exact_weight(want, kept, c, h, run.w, labels, 0.25);
        run.args = (tsr_head_weight_args){.max = kept,
                                          .sum = kept + c->rows,
                                          .label_logit = kept + 2 * c->rows,
                                          .h = h,
                                          .labels = labels,
                                          .workspace = malloc(bytes),
                                          .workspace_bytes = bytes,
                                          .rows = c->rows,
                                          .d = c->d,
                                          .scale = 0.25f,
                                          .softcap = c->softcap};
        run_on_pools(run_weight, &run, run.out, count);
        expect_close("dw", run.out, want, count, WEIGHT_TOLERANCE);
        run.args.workspace_bytes--;
        if (c->rows)
            assert_int_equal(run_weight(&run, test_pool(0)), TSR_EINVAL);
        free(run.args.workspace);
        free(run.w), free(run.out), free(h), free(kept), free(labels), free(want);
    }
}

typedef struct {
    int64_t tokens, d, vocabulary, chunk;
    float *table, *dout, *out, *sum;
    int32_t *ids, *next, *leads;
    int64_t lead_count;
} table_run;

static tsr_status run_table(void *context, tsr_pool *pool)
{
    table_run *r = context;
    for (int64_t first = 0; first < r->vocabulary; first += r->chunk) {
        int64_t left = r->vocabulary - first, count = left < r->chunk ? left : r->chunk;
        TSR_TRY(tsr_table_rows_ref(&(tsr_table_rows_args){.out = r->out,
                                                          .table = r->table + first * r->d,
                                                          .ids = r->ids,
                                                          .tokens = r->tokens,
                                                          .d = r->d,
                                                          .first = first,
                                                          .count = count,
                                                          .scale = 2},
                                   pool));
        TSR_TRY(tsr_table_sum_ref(&(tsr_table_sum_args){.dtable = r->sum + first * r->d,
                                                        .dout = r->dout,
                                                        .ids = r->ids,
                                                        .next = r->next,
                                                        .leads = r->leads,
                                                        .tokens = r->tokens,
                                                        .lead_count = r->lead_count,
                                                        .d = r->d,
                                                        .first = first,
                                                        .count = count,
                                                        .scale = 2},
                                  pool));
    }
    return TSR_OK;
}

static void test_tables(void **state)
{
    (void)state;
    static const int64_t shapes[][4] = {
        {1, 1, 1, 1}, {40, 7, 12, 5}, {300, 64, 100, 100}, {3, 16, 4000, 999}, {0, 8, 3, 3}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        table_run r = {shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3]};
        int64_t moved = r.tokens * r.d, whole = r.vocabulary * r.d;
        double *want = new_doubles(NULL, whole);
        r.table = new_random(whole, 3, 1);
        r.dout = new_random(moved, 4, 1);
        r.sum = new_floats(moved + whole); /* then out, so that both are compared */
        r.out = r.sum + whole;
        r.ids = new_ids(r.tokens, r.vocabulary);
        r.next = new_ids(r.tokens, 1);
        r.leads = new_ids(r.tokens, 1);
        r.lead_count = chain(r.next, r.leads, r.ids, r.tokens);
        run_on_pools(run_table, &r, r.sum, moved + whole);
        for (int64_t t = 0; t < moved; t++) {
            int64_t at = r.ids[t / r.d] * r.d + t % r.d;
            assert_true(r.out[t] == 2 * r.table[at]);
            want[at] += 2 * (double)r.dout[t];
        }
        expect_close("dtable", r.sum, want, whole, SUM_TOLERANCE);
        free(want), free(r.table), free(r.dout), free(r.sum);
        free(r.ids), free(r.next), free(r.leads);
    }
}

/* Columns beside others, out of wider rows and into them; of bf16 too, and with magnitude and bias. */
static void test_copy_columns(void **state)
{
    (void)state;
    const int64_t rows = 37, columns = 5, in_stride = 9, out_stride = 12;
    float *in = new_random(rows * in_stride, 5, 1), *out = new_floats(rows * out_stride);
    uint16_t *narrow = new_bf16(in, rows * in_stride);
    for (int k = 0; k < 2; k++) {
        tsr_copy_columns_args args = {.out = out + 3,
                                      .in = k ? (void *)(narrow + 2) : (void *)(in + 2),
                                      .rows = rows,
                                      .columns = columns,
                                      .out_stride = out_stride,
                                      .in_stride = in_stride,
                                      .in_dtype = k ? TSR_BF16 : TSR_F32,
                                      .scale = 2};
        for (int64_t i = 0; i < rows * out_stride; i++)
            out[i] = 7;
        assert_int_equal(tsr_copy_columns_ref(&args, test_pool(k)), TSR_OK);
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < out_stride; j++) {
                bool written = j >= 3 && j < 3 + columns;
                assert_true(out[i * out_stride + j] ==
                            (written ? 2 * in[i * in_stride + j - 1] : 7));
            }
        float g[5] = {1, 2, -1, 0.5f, 4};
        uint16_t bias[5];
        for (int64_t j = 0; j < columns; j++)
            bias[j] = tsr_f32_to_bf16(0.25f * (float)j);
        args.g = g;
        args.bias = (tsr_frozen){bias, TSR_BF16};
        assert_int_equal(tsr_copy_columns_ref(&args, test_pool(k)), TSR_OK);
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < columns; j++)
                assert_true(out[i * out_stride + j + 3] ==
                            2 * (g[j] * in[i * in_stride + j + 2] + 0.25f * (float)j));
        args.out_stride = columns - 1;
        assert_int_equal(tsr_copy_columns_ref(&args, test_pool(0)), TSR_EINVAL);
    }
    free(in), free(out), free(narrow);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_head_weight),
        cmocka_unit_test(test_tables),
        cmocka_unit_test(test_copy_columns),
    };
    return cmocka_run_group_tests(tests, NULL, pools_teardown);
}
