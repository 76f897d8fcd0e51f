/*
 * test_cuda_experts.c: expert_weight, expert_low_rank and its backward on a GPU: against the C references, and an
 * expert's weight bit by bit as nf4_dequant makes it there. With the argument "time", how fast
 * they are for a mixture of 128 experts.
 */
#include "kernels/kernels_cuda.h"

#include "cuda_experts.h"
#include "cuda_stack.h"
#include "cuda_time.h"

/* ---- expert_weight ---- */

static void name_stack(char out[160], const stack *s, tsr_dtype dtype)
{
    snprintf(out, 160, "experts [%lld, +%lld) of %lld, %lld part(s), %lld x %lld, %s, %s",
             (long long)s->first, (long long)s->count, (long long)s->experts, (long long)s->parts,
             (long long)s->rows, (long long)s->columns, s->nested ? "nested" : "fp32 scales",
             tsr_dtype_name(dtype));
}

/* Matrix i of the stack by nf4_dequant on the device. */
static void expect_matrix(const char *what, const stack_data *d, int64_t i, const uint8_t *got)
{
    const tsr_expert_weight_args *a = &d->device;
    int64_t count = a->rows / a->parts * a->columns;
    uint64_t bytes = (uint64_t)count * tsr_dtype_bytes(a->dtype);
    tsr_nf4_dequant_args w = {.out = cuda_copy(NULL, bytes),
                              .codes = a->codes + i * d->granules * 512,
                              .absmax =
                                  (const char *)a->absmax + i * d->granules * (a->nested ? 16 : 64),
                              .nested_absmax = a->nested_absmax + i * d->groups,
                              .nested_map = a->nested_map,
                              .level = a->level,
                              .count = count,
                              .columns = a->columns,
                              .offset = d->offset[i],
                              .nested = a->nested,
                              .dtype = a->dtype};
    RUN(rig.kernels->nf4_dequant(rig.stream, &w));
    uint8_t *want = malloc(bytes + 1);
    assert_non_null(want);
    cuda_read(want, w.out, bytes);
    if (memcmp(got, want, bytes) != 0)
        fail_msg("%s: matrix %lld has other bits than nf4_dequant gives it", what, (long long)i);
    free(want);
}

static void one_stack(const stack *s, tsr_dtype dtype)
{
    if (!cuda_turn())
        return;
    stack_data d = new_stack(s, dtype);
    int64_t each = s->rows / s->parts * s->columns, elements = s->count * s->rows * s->columns;
    char what[160];
    name_stack(what, s, dtype);
    output out = blank(elements, dtype);
    d.device.out = out.device;
    for (int settled = 0; settled < 2; settled++) {
        d.device.settled = settled;
        if (elements)
            RUN(tsr_stream_fill(rig.stream, out.device, 0xff,
                                (uint64_t)elements * tsr_dtype_bytes(dtype)));
        RUN(rig.kernels->expert_weight(rig.stream, &d.device));
        RUN(tsr_expert_weight_ref(&d.host, rig.pool));
        expect(what, out, d.host.out, 0);
        uint8_t *got = malloc((uint64_t)elements * tsr_dtype_bytes(dtype) + 1);
        assert_non_null(got);
        cuda_read(got, out.device, (uint64_t)elements * tsr_dtype_bytes(dtype));
        for (int64_t i = 0; i < s->count * s->parts && i < 24; i++)
            expect_matrix(what, &d, s->first * s->parts + i,
                          got + (uint64_t)(i * each) * tsr_dtype_bytes(dtype));
        free(got);
    }
    free(d.codes), free(d.q);
    end_case();
}

static const stack stacks[] = {
    {5, 1, 6, 64, 0, 5, false},    {5, 2, 14, 104, 0, 5, true},  {5, 2, 32, 64, 1, 3, true},
    {4, 1, 300, 64, 3, 1, true},   {4, 2, 256, 128, 1, 3, true}, {4, 2, 512, 256, 1, 2, true},
    {4, 2, 512, 256, 1, 3, false}, {3, 1, 256, 512, 1, 2, true}, {3, 1, 256, 320, 0, 3, true},
    {3, 2, 768, 192, 0, 3, false}, {5, 2, 14, 104, 1, 3, true},  {5, 1, 8, 64, 2, 0, true},
    {3, 2, 10, 37, 0, 3, true},    {3, 2, 64, 1024, 0, 3, true},
};

static void all_stacks(void)
{
    for (size_t i = 0; i < sizeof stacks / sizeof *stacks; i++)
        for (int k = 0; k < 3; k++)
            one_stack(&stacks[i], all_dtypes[k]);
}

static void experts_have_the_bits_of_their_matrices(void **state)
{
    (void)state;
    all_stacks();
    without_boxes(all_stacks);
}

static void experts_of_a_model(void **state)
{
    (void)state;
    static const stack large[] = {{16, 2, 1536, 2048, 4, 8, true}, {16, 1, 2048, 768, 0, 12, true}};
    for (size_t i = 0; i < sizeof large / sizeof *large; i++)
        one_stack(&large[i], TSR_BF16);
}

static void one_plain(tsr_dtype from, tsr_dtype dtype, int64_t columns)
{
    if (!cuda_turn())
        return;
    const int64_t rows = 48, experts = 5, first = 1, count = 3, each = rows * columns;
    input w = random_input(experts * each, 1, 1, from);
    output out = blank(count * each, dtype);
    tsr_expert_weight_args ref = {.out = want_of(count * each),
                                  .plain = on_host(w),
                                  .first = first,
                                  .count = count,
                                  .parts = 2,
                                  .rows = rows,
                                  .columns = columns,
                                  .format = TSR_EXPERTS_PLAIN};
    tsr_expert_weight_args args = ref;
    args.out = out.device, args.plain = on_device(w, from);
    args.dtype = dtype;
    RUN(tsr_expert_weight_ref(&ref, rig.pool));
    RUN(rig.kernels->expert_weight(rig.stream, &args));
    expect("plain experts", out, ref.out, tolerance_of(tolerance_grouped, dtype));
    end_case();
}

static void plain_experts_match(void **state)
{
    (void)state;
    for (int k = 0; k < 3; k++)
        for (int from = 0; from < 2; from++) {
            one_plain(from ? TSR_BF16 : TSR_F32, all_dtypes[k], 128);
            one_plain(from ? TSR_BF16 : TSR_F32, all_dtypes[k], 37);
        }
}

/* ---- expert_low_rank and expert_low_rank_backward ---- */

typedef struct {
    int64_t tokens, k, experts, out, in, r;
    expert_load load;
} low_shape;

static void run_twice(const tsr_expert_low_rank_backward_args *args, output da, output db)
{
    uint64_t bytes[2] = {(uint64_t)da.count * 4, (uint64_t)db.count * 4};
    char *got[2] = {malloc(bytes[0] + bytes[1]), malloc(bytes[0] + bytes[1])};
    assert_true(got[0] && got[1]);
    for (int i = 0; i < 2; i++) {
        RUN(tsr_stream_fill(rig.stream, da.device, 0xff, bytes[0]));
        RUN(tsr_stream_fill(rig.stream, db.device, 0xff, bytes[1]));
        RUN(rig.kernels->expert_low_rank_backward(rig.stream, args));
        cuda_read(got[i], da.device, bytes[0]);
        cuda_read(got[i] + bytes[0], db.device, bytes[1]);
    }
    assert_memory_equal(got[0], got[1], bytes[0] + bytes[1]);
    free(got[0]), free(got[1]);
}

enum { IN_ORDER, X_GATHERED, SPREAD, LOW_WAYS };

static void name_low(char out[160], const low_shape *s, int way, tsr_dtype dtype)
{
    snprintf(out, 160, "%lld x %lld rows of %lld experts, %s, %lld x %lld, r %lld, way %d, %s",
             (long long)s->tokens, (long long)s->k, (long long)s->experts,
             expert_load_name[s->load], (long long)s->out, (long long)s->in, (long long)s->r, way,
             tsr_dtype_name(dtype));
}

static void one_sum(const low_shape *s, int way, tsr_dtype dtype)
{
    if (!cuda_turn())
        return;
    expert_case c = new_expert_case(s->tokens, s->k, s->experts, s->load);
    bool gather = way == X_GATHERED, spread = way == SPREAD;
    int64_t most = c.rows.most, da_count = s->experts * s->r * s->in;
    int64_t db_count = s->experts * s->out * s->r;
    input x = random_input((gather ? s->tokens : most) * s->in, 1, 1, dtype);
    input dz = random_input((spread ? s->tokens : most) * s->out, 2, 1, dtype);
    input low = random_input(most * s->r, 3, 1, dtype),
          d_low = random_input(most * s->r, 4, 1, dtype);
    output da = blank(da_count, TSR_F32), db = blank(db_count, TSR_F32);
    tsr_expert_low_rank_backward_args ref = {.x = x.host,
                                             .dz = dz.host,
                                             .low = low.host,
                                             .d_low = d_low.host,
                                             .da = want_of(da_count),
                                             .db = want_of(db_count),
                                             .rows = host_rows(&c, way != IN_ORDER),
                                             .out = s->out,
                                             .in = s->in,
                                             .r = s->r,
                                             .spread = spread};
    tsr_expert_low_rank_backward_args args = ref;
    args.x = x.device, args.dz = dz.device, args.low = low.device, args.d_low = d_low.device;
    args.da = da.device, args.db = db.device, args.rows = device_rows(&c, way != IN_ORDER);
    args.dtype = dtype;
    char what[160];
    name_low(what, s, way, dtype);
    RUN(tsr_expert_low_rank_backward_ref(&ref, rig.pool));
    run_twice(&args, da, db);
    double tolerance = tolerance_of(tolerance_low_rank, dtype);
    expect(what, da, ref.da, tolerance);
    expect(what, db, ref.db, tolerance);
    free_expert_case(&c);
    end_case();
}

/* Of s->in columns: by row or by column, of rows in order or gathered, one of the results or both. */
static void one_low(const low_shape *s, int way, tsr_dtype dtype)
{
    if (!cuda_turn())
        return;
    expert_case c = new_expert_case(s->tokens, s->k, s->experts, s->load);
    bool gather = way & 1, by_column = way & 2;
    int results = 1 + way / 4;
    int64_t most = c.rows.most, count = most * s->r;
    input x = random_input((gather ? s->tokens : most) * s->in, 1, 1, dtype);
    input factor = random_input(s->experts * s->r * s->in, 2, 1, dtype);
    input p = random_input(most, 3, 1, TSR_F32);
    input old = random_input(count, 4, 1, dtype), older = random_input(count, 5, 1, dtype);
    output low = over(old, count, dtype), weighted = over(older, count, dtype);
    tsr_expert_low_rank_args ref = {.low = results & 1 ? copy_of(old.host, count) : NULL,
                                    .weighted = results & 2 ? copy_of(older.host, count) : NULL,
                                    .x = x.host,
                                    .factor = factor.host,
                                    .p = p.host,
                                    .rows = host_rows(&c, true),
                                    .width = s->in,
                                    .r = s->r,
                                    .scale = 1.75f,
                                    .in_order = !gather,
                                    .by_column = by_column};
    tsr_expert_low_rank_args args = ref;
    args.low = results & 1 ? low.device : NULL;
    args.weighted = results & 2 ? weighted.device : NULL;
    args.x = x.device, args.factor = factor.device, args.p = p.device;
    args.rows = device_rows(&c, true);
    args.dtype = dtype;
    char what[160];
    name_low(what, s, way, dtype);
    RUN(tsr_expert_low_rank_ref(&ref, rig.pool));
    RUN(rig.kernels->expert_low_rank(rig.stream, &args));
    expect(what, low, results & 1 ? ref.low : old.host, tolerance_of(tolerance_grouped, dtype));
    expect(what, weighted, results & 2 ? ref.weighted : older.host,
           tolerance_of(tolerance_grouped, dtype));
    free_expert_case(&c);
    end_case();
}

static void every_low(const low_shape *s, tsr_dtype dtype)
{
    for (int way = 0; way < LOW_WAYS; way++)
        one_sum(s, way, dtype);
    for (int way = 0; way < 12; way++)
        one_low(s, way, dtype);
}

static void low_ranks_match(void **state)
{
    (void)state;
    static const low_shape shapes[] = {
        {90, 4, 7, 40, 152, 8, LOAD_ZIPF},    {130, 2, 6, 136, 72, 16, LOAD_HOLES},
        {300, 4, 5, 264, 520, 16, LOAD_ONE},  {300, 4, 9, 512, 256, 24, LOAD_DROPPED},
        {300, 4, 9, 256, 384, 64, LOAD_EVEN}, {200, 4, 6, 128, 256, 72, LOAD_ZIPF},
        {1, 1, 1, 8, 8, 8, LOAD_EVEN},        {0, 2, 3, 16, 8, 8, LOAD_EVEN},
        {50, 2, 6, 131, 33, 3, LOAD_ZIPF},    {129, 1, 1, 64, 64, 32, LOAD_EVEN},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int k = 0; k < 3; k++)
            every_low(&shapes[i], all_dtypes[k]);
    shift = 1; /* off the alignment */
    every_low(&shapes[1], TSR_BF16);
    shift = 0;
}

static void low_ranks_of_a_model(void **state)
{
    (void)state;
    static const low_shape large[] = {{2048, 8, 64, 1536, 2048, 16, LOAD_ZIPF},
                                      {2048, 8, 128, 2048, 768, 8, LOAD_EVEN},
                                      {1024, 4, 300, 256, 128, 32, LOAD_HOLES}};
    for (size_t i = 0; i < sizeof large / sizeof *large; i++)
        every_low(&large[i], TSR_BF16);
}

/* ---- time ---- */

#define TIMES 20

static void call_weight(void *context)
{
    RUN(rig.kernels->expert_weight(rig.stream, context));
}

static void call_low(void *context)
{
    RUN(rig.kernels->expert_low_rank(rig.stream, context));
}

static void call_sums(void *context)
{
    RUN(rig.kernels->expert_low_rank_backward(rig.stream, context));
}

static void weight_time(const char *name, int64_t experts, int64_t parts, int64_t rows,
                        int64_t columns)
{
    int64_t elements = experts * rows * columns;
    int64_t groups = tsr_expert_groups(rows / parts, columns) * parts * experts;
    tsr_expert_weight_args args = {.out = cuda_copy(NULL, (uint64_t)elements * 2),
                                   .codes = cuda_copy(NULL, (uint64_t)elements / 2),
                                   .absmax = cuda_copy(NULL, (uint64_t)elements / 64),
                                   .nested_absmax = random_array(groups, TSR_F32),
                                   .nested_map = random_array(256, TSR_F32),
                                   .offset = random_array(experts * parts, TSR_F32),
                                   .level = cuda_copy(nf4_level, 64),
                                   .count = experts,
                                   .parts = parts,
                                   .rows = rows,
                                   .columns = columns,
                                   .nested = true,
                                   .settled = true,
                                   .dtype = TSR_BF16};
    double ms = median_ms(call_weight, &args, TIMES);
    double bytes = (double)elements * (2 + 0.5 + 1.0 / 64) + (double)(groups * 4);
    printf("%-30s %8.3f ms %7.0f GB/s\n", name, ms, 1e-6 * bytes / ms);
    cuda_free_all();
}

static void low_time(const char *name, int64_t width, int64_t r, bool gather, bool by_column,
                     expert_load load)
{
    const int64_t tokens = 8192, k = 8, experts = 128;
    expert_case c = new_expert_case(tokens, k, experts, load);
    int64_t most = c.rows.most;
    tsr_expert_low_rank_args args = {.low = random_array(most * r, TSR_BF16),
                                     .x = random_array((gather ? tokens : most) * width, TSR_BF16),
                                     .factor = random_array(experts * r * width, TSR_BF16),
                                     .rows = device_rows(&c, true),
                                     .width = width,
                                     .r = r,
                                     .scale = 1,
                                     .in_order = !gather,
                                     .by_column = by_column,
                                     .dtype = TSR_BF16};
    double ms = median_ms(call_low, &args, TIMES);
    printf("%-26s %-5s r %2d %8.3f ms %7.0f GB/s of rows\n", name, expert_load_name[load], (int)r,
           ms, 1e-6 * 2.0 * (double)(most * width) / ms);
    free_expert_case(&c);
    cuda_free_all();
}

static void sum_time(const char *name, int64_t out, int64_t in, int64_t r, bool spread,
                     expert_load load)
{
    const int64_t tokens = 8192, k = 8, experts = 128;
    expert_case c = new_expert_case(tokens, k, experts, load);
    int64_t most = c.rows.most;
    tsr_expert_low_rank_backward_args args = {
        .x = random_array((spread ? most : tokens) * in, TSR_BF16),
        .dz = random_array((spread ? tokens : most) * out, TSR_BF16),
        .low = random_array(most * r, TSR_BF16),
        .d_low = random_array(most * r, TSR_BF16),
        .da = random_array(experts * r * in, TSR_F32),
        .db = random_array(experts * r * out, TSR_F32),
        .rows = device_rows(&c, true),
        .out = out,
        .in = in,
        .r = r,
        .spread = spread,
        .dtype = TSR_BF16};
    double ms = median_ms(call_sums, &args, TIMES);
    printf("%-26s %-5s r %2d %8.3f ms %7.0f GB/s of x and dz\n", name, expert_load_name[load],
           (int)r, ms, 1e-6 * 2.0 * (double)(most * (out + in)) / ms);
    free_expert_case(&c);
    cuda_free_all();
}

static void all_times(void)
{
    weight_time("gate_up 128 x 1536 x 2048", 128, 2, 1536, 2048);
    weight_time("down 128 x 2048 x 768", 128, 1, 2048, 768);
    weight_time("gate_up 8 x 28672 x 4096", 8, 2, 28672, 4096);
    for (int load = LOAD_EVEN; load <= LOAD_ZIPF; load++)
        for (int r = 8; r <= 32; r *= 2) {
            low_time("gate_up, x gathered", 2048, r, true, false, load);
            low_time("gate_up, dz", 1536, r, false, true, load);
            low_time("down, x", 768, r, false, false, load);
            low_time("down, dy gathered", 2048, r, true, true, load);
            sum_time("gate_up", 1536, 2048, r, false, load);
            sum_time("down", 2048, 768, r, true, load);
        }
}

static void times(void **state)
{
    (void)state;
    all_times();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_have_the_bits_of_their_matrices),
        cmocka_unit_test(experts_of_a_model),
        cmocka_unit_test(plain_experts_match),
        cmocka_unit_test(low_ranks_match),
        cmocka_unit_test(low_ranks_of_a_model),
    };
    const struct CMUnitTest timings[] = {cmocka_unit_test(times)};
    if (argc < 2 || strcmp(argv[1], "time") != 0)
        return cmocka_run_group_tests(tests, cuda_setup, cuda_teardown);
    return cmocka_run_group_tests(timings, cuda_setup, cuda_teardown);
}
