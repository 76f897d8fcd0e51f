/*
 * test_cuda_trained_tables.c: head_weight on the GPU against fp64; table_rows and table_sum against the C reference, the
 * same bits in fp32.
 */
#include "cuda_case.h"
#include "cuda_tolerance.h"
#include "kernels/trained_tables.h"

static int32_t *device_ids(int32_t *ids, int64_t count)
{
    return cuda_copy(ids, (uint64_t)(count + 1) * sizeof *ids);
}

static void one_weight(const weight_case *c, tsr_dtype dtype)
{
    int64_t count = c->vocabulary * c->d;
    input h = random_input(c->rows * c->d, 1, 1, dtype), w = random_input(count, 2, 1, dtype);
    int32_t *labels = new_ids(c->rows, c->vocabulary);
    float *kept = want_of(3 * c->rows), *want = want_of(count);
    double *exact = new_doubles(NULL, count);
    exact_weight(exact, kept, c, h.host, w.host, labels, 0.25);
    for (int64_t i = 0; i < count; i++)
        want[i] = (float)exact[i];
    const float *state = cuda_copy(kept, (uint64_t)(3 * c->rows + 1) * sizeof(float));
    tsr_head_bounds bounds = {c->rows, c->d, c->chunk, dtype, true};
    uint64_t bytes = rig.kernels->head_workspace_bytes(&bounds);
    output dw = blank(count, TSR_F32);
    tsr_head_weight_args args = {.max = state,
                                 .sum = state + c->rows,
                                 .label_logit = state + 2 * c->rows,
                                 .h = h.device,
                                 .labels = device_ids(labels, c->rows),
                                 .workspace = cuda_copy(NULL, bytes + 16),
                                 .workspace_bytes = bytes,
                                 .rows = c->rows,
                                 .d = c->d,
                                 .scale = 0.25f,
                                 .softcap = c->softcap,
                                 .dtype = dtype};
    for (int64_t first = 0; first < c->vocabulary; first += c->chunk) {
        int64_t left = c->vocabulary - first;
        args.first = first;
        args.count = left < c->chunk ? left : c->chunk;
        args.w = (const char *)w.device + first * c->d * tsr_dtype_bytes(dtype);
        args.dw = (float *)dw.device + first * c->d;
        RUN(rig.kernels->head_weight(rig.stream, &args));
    }
    expect("dw", dw, want, tolerance_of(tolerance_head, dtype));
    free(labels);
    free(exact);
    end_case();
}

static void head_weight_matches(void **state)
{
    (void)state;
    for (size_t i = 0; i < WEIGHT_CASES; i++)
        for (int k = 0; k < 2; k++)
            if (cuda_turn())
                one_weight(&weight_cases[i], all_dtypes[k]);
}

static void one_table(int64_t tokens, int64_t d, int64_t vocabulary, tsr_dtype dtype)
{
    int64_t moved = tokens * d, whole = vocabulary * d;
    input table = random_input(whole, 3, 1, dtype), dout = random_input(moved, 4, 1, dtype);
    int32_t *ids = new_ids(tokens, vocabulary), *next = new_ids(tokens, 1),
            *leads = new_ids(tokens, 1);
    int64_t lead_count = chain(next, leads, ids, tokens);
    tsr_table_rows_args rows = {.out = want_of(moved),
                                .table = table.host,
                                .ids = ids,
                                .tokens = tokens,
                                .d = d,
                                .count = vocabulary,
                                .scale = 2};
    tsr_table_sum_args sum = {.dtable = want_of(whole),
                              .dout = dout.host,
                              .ids = ids,
                              .next = next,
                              .leads = leads,
                              .tokens = tokens,
                              .lead_count = lead_count,
                              .d = d,
                              .count = vocabulary,
                              .scale = 2};
    RUN(tsr_table_rows_ref(&rows, rig.pool));
    RUN(tsr_table_sum_ref(&sum, rig.pool));
    output out = blank(moved, dtype), dtable = blank(whole, TSR_F32);
    const float *want_rows = rows.out, *want_sum = sum.dtable;
    rows.out = out.device, rows.table = table.device, rows.dtype = sum.dtype = dtype;
    sum.dtable = dtable.device, sum.dout = dout.device;
    rows.ids = sum.ids = device_ids(ids, tokens);
    sum.next = device_ids(next, tokens), sum.leads = device_ids(leads, tokens);
    RUN(rig.kernels->table_rows(rig.stream, &rows));
    RUN(rig.kernels->table_sum(rig.stream, &sum));
    expect("rows", out, want_rows, 0);
    expect("dtable", dtable, want_sum, 0);
    free(ids), free(next), free(leads);
    end_case();
}

static void tables_match(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {{1, 1, 1},     {40, 7, 12}, {300, 64, 100},
                                        {3, 16, 4000}, {0, 8, 3},   {515, 1030, 700}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int k = 0; k < 3; k++)
            if (cuda_turn())
                one_table(shapes[i][0], shapes[i][1], shapes[i][2], all_dtypes[k]);
}

static void columns_match(void **state)
{
    (void)state;
    static const int64_t shapes[][4] = {{1, 1, 1, 1},         {37, 5, 12, 9},
                                        {300, 64, 72, 96},    {9, 1030, 1031, 1100},
                                        {70, 512, 512, 4096}, {33, 24, 72, 24}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int k = 0; k < 8; k++) {
            int64_t rows = shapes[i][0], in_count = rows * shapes[i][3],
                    out_count = rows * shapes[i][2];
            tsr_dtype from = all_dtypes[k % 2], to = all_dtypes[k / 2 % 2];
            if (!cuda_turn())
                continue;
            input in = random_input(in_count, 6, 1, from);
            output out = blank(out_count, to);
            tsr_copy_columns_args args = {.out = want_of(out_count),
                                          .in = in.host,
                                          .rows = rows,
                                          .columns = shapes[i][1],
                                          .out_stride = shapes[i][2],
                                          .in_stride = shapes[i][3],
                                          .scale = 2};
            input g = k < 4 ? no_input() : gain(shapes[i][1], 7);
            input bias = k < 4 ? no_input() : random_input(shapes[i][1], 8, 1, TSR_BF16);
            args.g = g.host, args.bias = on_host(bias);
            float *want = args.out;
            memset(want, 0, (size_t)out_count * sizeof *want);
            RUN(tsr_device_write(rig.device, out.device, want,
                                 (uint64_t)out_count * tsr_dtype_bytes(to)));
            RUN(tsr_copy_columns_ref(&args, rig.pool));
            args.out = out.device, args.in = in.device, args.in_dtype = from, args.dtype = to;
            args.g = g.device, args.bias = on_device(bias, TSR_BF16);
            RUN(rig.kernels->copy_columns(rig.stream, &args));
            expect("columns", out, want, k < 4 ? 0 : tolerance_elementwise.f32);
            end_case();
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(head_weight_matches),
                                       cmocka_unit_test(tables_match),
                                       cmocka_unit_test(columns_match)};
    return cmocka_run_group_tests(tests, cuda_setup, cuda_teardown);
}
