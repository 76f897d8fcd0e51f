/*
 * test_cuda_grouped.c: grouped_gemm on a GPU against the C reference: every kernel, direction, load and ragged
 * edge; what is not of the range; a row's bits, wherever it lies. With the argument "time", how fast it is
 * at the shapes of a mixture of 128 experts.
 */
#include "kernels/kernels_cuda.h"

#include "cuda_experts.h"
#include "cuda_time.h"

typedef struct {
    int64_t tokens, k, experts, out, in, first, count;
    expert_load load;
    int64_t r; /* with LOW */
} shape;

/* Bits of a way. */
enum { BACKWARD = 1, GATHER = 2, LOW = 4, BIAS_F32 = 8, BIAS_BF16 = 16, WAYS = 32 };

static bool is_way(int way)
{
    int bias = way & (BIAS_F32 | BIAS_BF16);
    return !bias || (!(way & BACKWARD) && bias != (BIAS_F32 | BIAS_BF16));
}

static void name_case(char out[160], const shape *s, int way, tsr_dtype dtype)
{
    snprintf(out, 160,
             "%lld x %lld rows of %lld experts, %s, [%lld, +%lld), %lld x %lld, r %lld, way %d, %s",
             (long long)s->tokens, (long long)s->k, (long long)s->experts,
             expert_load_name[s->load], (long long)s->first, (long long)s->count, (long long)s->out,
             (long long)s->in, way & LOW ? (long long)s->r : 0, way, tsr_dtype_name(dtype));
}

/* Rows of no expert of the range have the bits that they had. */
static void expect_others_untouched(const char *what, const expert_case *c, const shape *s,
                                    output z, const void *before, int64_t outer)
{
    uint64_t each = (uint64_t)outer * tsr_dtype_bytes(z.dtype), all = (uint64_t)c->rows.most * each;
    uint64_t first = (uint64_t)c->offset[s->first] * each;
    uint64_t end = (uint64_t)c->offset[s->first + s->count] * each;
    char *got = malloc(all + 1), *had = malloc(all + 1);
    assert_true(got && had);
    cuda_read(got, z.device, all);
    cuda_read(had, before, all);
    if (memcmp(got, had, first) != 0 || memcmp(got + end, had + end, all - end) != 0)
        fail_msg("%s: a row of another expert was touched", what);
    free(got), free(had);
}

static void one_case(const shape *s, int way, tsr_dtype dtype)
{
    if (!is_way(way) || !cuda_turn())
        return;
    expert_case c = new_expert_case(s->tokens, s->k, s->experts, s->load);
    bool backward = way & BACKWARD, gather = way & GATHER;
    int64_t outer = backward ? s->in : s->out, inner = backward ? s->out : s->in;
    int64_t most = c.rows.most, x_rows = gather ? s->tokens : most;
    tsr_dtype bias_dtype = way & BIAS_F32 ? TSR_F32 : TSR_BF16;
    input x = random_input(x_rows * inner, 1, 1, dtype);
    input w = random_input(s->count * s->out * s->in, 2, 1, dtype);
    input bias = random_input(s->experts * s->out, 3, 1, bias_dtype);
    input low = random_input(most * s->r, 5, 1, dtype);
    input factor = random_input(s->experts * s->r * outer, 6, 1, dtype);
    input old = random_input(most * outer, 4, 1, dtype);
    input before = random_input(most * outer, 4, 1, dtype);
    output z = over(old, most * outer, dtype);
    tsr_grouped_gemm_args ref = {.z = copy_of(old.host, most * outer),
                                 .x = x.host,
                                 .w = w.host,
                                 .rows = host_rows(&c, gather),
                                 .first = s->first,
                                 .count = s->count,
                                 .out = s->out,
                                 .in = s->in,
                                 .low = low.host,
                                 .factor = factor.host,
                                 .r = way & LOW ? s->r : 0,
                                 .backward = backward};
    tsr_grouped_gemm_args args = ref;
    args.rows = device_rows(&c, gather);
    args.z = z.device, args.x = x.device, args.w = w.device;
    args.low = low.device, args.factor = factor.device;
    args.dtype = dtype;
    if (way & (BIAS_F32 | BIAS_BF16)) {
        ref.bias = on_host(bias);
        args.bias = on_device(bias, bias_dtype);
    }
    char what[160];
    name_case(what, s, way, dtype);
    RUN(tsr_grouped_gemm_ref(&ref, rig.pool));
    RUN(rig.kernels->grouped_gemm(rig.stream, &args));
    expect(what, z, ref.z, tolerance_of(tolerance_grouped, dtype));
    expect_others_untouched(what, &c, s, z, before.device, outer);
    free_expert_case(&c);
    end_case();
}

static const shape small[] = {
    {1, 1, 1, 8, 8, 0, 1, LOAD_EVEN, 8},
    {7, 2, 5, 40, 72, 0, 5, LOAD_EVEN, 16},
    {90, 4, 9, 264, 136, 0, 9, LOAD_ZIPF, 24},
    {90, 4, 9, 136, 264, 2, 4, LOAD_ZIPF, 32},
    {130, 3, 6, 24, 64, 0, 6, LOAD_ONE, 40},
    {130, 3, 6, 512, 520, 4, 1, LOAD_ONE, 48},
    {200, 2, 10, 320, 8, 1, 9, LOAD_HOLES, 56},
    {300, 4, 7, 256, 192, 0, 7, LOAD_DROPPED, 64},
    {0, 2, 4, 8, 8, 0, 4, LOAD_EVEN, 72},
    {9, 2, 4, 8, 8, 2, 0, LOAD_EVEN, 128},
    {64, 1, 1, 256, 64, 0, 1, LOAD_EVEN, 16},
    {65, 1, 1, 256, 128, 0, 1, LOAD_EVEN, 8},
    {128, 1, 1, 512, 256, 0, 1, LOAD_EVEN, 80},
    {129, 1, 1, 264, 320, 0, 1, LOAD_EVEN, 16},
    {200, 4, 10, 16, 264, 0, 10, LOAD_HOLES, 32},
    {200, 4, 10, 264, 16, 0, 10, LOAD_ZIPF, 24}, /* ranks */
};

static const shape ragged[] = {
    {7, 2, 5, 33, 71, 0, 5, LOAD_EVEN, 8},
    {90, 4, 9, 65, 129, 2, 6, LOAD_ZIPF, 3},
    {70, 3, 6, 24, 31, 0, 6, LOAD_HOLES, 17},
};

static void all_small(void)
{
    for (size_t i = 0; i < sizeof small / sizeof *small; i++)
        for (int way = 0; way < WAYS; way++)
            one_case(&small[i], way, TSR_BF16);
}

static void vectors_match(void **state)
{
    (void)state;
    all_small();
}

static void vectors_match_on_any_card(void **state)
{
    (void)state;
    without_boxes(all_small);
}

static void other_shapes_and_dtypes_match(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof ragged / sizeof *ragged; i++)
        for (int way = 0; way < WAYS; way++)
            for (int k = 0; k < 3; k++)
                one_case(&ragged[i], way, all_dtypes[k]);
    shift = 1; /* off the alignment */
    for (int way = 0; way < WAYS; way++)
        one_case(&small[2], way, TSR_BF16);
    shift = 0;
    for (int way = 0; way < WAYS; way++)
        for (int k = 0; k < 3; k++)
            one_case(&small[3], way, all_dtypes[k]);
}

/* Many tiles for each block that stays; more experts than threads. */
static void large_ones(void)
{
    static const shape large[] = {
        {1000, 8, 128, 512, 512, 0, 128, LOAD_ZIPF, 16},
        {2048, 8, 64, 1536, 512, 0, 64, LOAD_EVEN, 8},
        {2048, 4, 16, 2048, 768, 3, 10, LOAD_DROPPED, 64},
        {4096, 2, 600, 256, 128, 0, 600, LOAD_HOLES, 32},
        {3000, 4, 8, 1000, 200, 0, 8, LOAD_ONE, 72},
    };
    for (size_t i = 0; i < sizeof large / sizeof *large; i++)
        for (int way = 0; way < WAYS; way++)
            if (way <= GATHER + BACKWARD || way == LOW + BACKWARD ||
                way == LOW + BACKWARD + GATHER || way == LOW + GATHER + BIAS_F32)
                one_case(&large[i], way, TSR_BF16);
}

static void large_shapes_match(void **state)
{
    (void)state;
    large_ones();
    without_boxes(large_ones);
}

/* Rows [37, n) of the only expert, and the same rows of a later expert that has no others. */
static void a_rows_bits(bool backward, bool gather)
{
    const int64_t n = 300, out = 512, in = 320, away = 37, most = n, r = 24;
    int64_t outer = backward ? in : out, inner = backward ? out : in;
    input x = random_input(n * inner, 1, 1, TSR_BF16),
          w = random_input(3 * out * in, 2, 1, TSR_BF16);
    input low = random_input(n * r, 3, 1, TSR_BF16),
          factor = random_input(r * outer, 4, 1, TSR_BF16);
    int32_t alone[4] = {0, 0, 300, 300}, later[4] = {0, 0, 0, 263}, slot[300], moved[300];
    output z[2] = {blank(n * outer, TSR_BF16), blank(n * outer, TSR_BF16)};
    uint64_t each = (uint64_t)outer * 2;
    for (int i = 0; i < 300; i++) {
        slot[i] = i;
        moved[i] = i + 37 < 300 ? i + 37 : -1;
    }
    tsr_grouped_gemm_args args = {.z = z[0].device,
                                  .x = x.device,
                                  .w = w.device,
                                  .rows = {.offset = cuda_copy(alone, sizeof alone),
                                           .slot = gather ? cuda_copy(slot, sizeof slot) : NULL,
                                           .most = most,
                                           .k = 1,
                                           .experts = 3},
                                  .first = 1,
                                  .count = 1,
                                  .out = out,
                                  .in = in,
                                  .low = low.device,
                                  .factor = (uint16_t *)factor.device - r * outer,
                                  .r = r,
                                  .backward = backward,
                                  .dtype = TSR_BF16};
    RUN(rig.kernels->grouped_gemm(rig.stream, &args));
    args.z = z[1].device;
    args.low = (char *)low.device + away * r * 2;
    args.factor = (uint16_t *)factor.device - 2 * r * outer;
    args.rows.offset = cuda_copy(later, sizeof later);
    args.rows.slot = gather ? cuda_copy(moved, sizeof moved) : NULL;
    args.x = gather ? x.device : (char *)x.device + away * inner * 2;
    args.rows.most = gather ? most : most - away;
    args.first = 2;
    RUN(rig.kernels->grouped_gemm(rig.stream, &args));
    char *got[2] = {malloc(n * each), malloc(n * each)};
    assert_true(got[0] && got[1]);
    for (int i = 0; i < 2; i++)
        cuda_read(got[i], z[i].device, (uint64_t)n * each);
    assert_memory_equal(got[0] + (uint64_t)away * each, got[1], (uint64_t)(n - away) * each);
    free(got[0]), free(got[1]);
    end_case();
}

static void each_way_of_bits(void)
{
    for (int i = 0; i < 4; i++)
        a_rows_bits(i & 1, i & 2);
}

static void a_row_has_its_bits_anywhere(void **state)
{
    (void)state;
    each_way_of_bits();
    without_boxes(each_way_of_bits);
}

static void what_a_gpu_cannot_do(void **state)
{
    (void)state;
    tsr_grouped_gemm_args bad = {.first = -1, .dtype = TSR_BF16};
    assert_int_equal(rig.kernels->grouped_gemm(rig.stream, &bad), TSR_EINVAL);
    int32_t offset[1] = {0};
    bad = (tsr_grouped_gemm_args){.rows = {.offset = offset, .experts = 2000},
                                  .count = 2000,
                                  .out = 8,
                                  .in = 8,
                                  .dtype = TSR_BF16};
    assert_int_equal(rig.kernels->grouped_gemm(rig.stream, &bad), TSR_EUNSUPPORTED);
}

/* ---- time ---- */

#define TIMES 20

static void call(void *context)
{
    RUN(rig.kernels->grouped_gemm(rig.stream, context));
}

static void call_dense(void *context)
{
    RUN(rig.kernels->gemm(rig.stream, context));
}

static void one_time(const char *name, int64_t tokens, int64_t k, int64_t experts, int64_t out,
                     int64_t in, int64_t r, int way, expert_load load)
{
    expert_case c = new_expert_case(tokens, k, experts, load);
    bool backward = way & BACKWARD;
    int64_t most = c.rows.most, outer = backward ? in : out, inner = backward ? out : in;
    tsr_grouped_gemm_args args = {
        .z = random_array(most * outer, TSR_BF16),
        .x = random_array((way & GATHER ? tokens : most) * inner, TSR_BF16),
        .w = random_array(experts * out * in, TSR_BF16),
        .rows = device_rows(&c, way & GATHER),
        .count = experts,
        .out = out,
        .in = in,
        .low = random_array(most * r, TSR_BF16),
        .factor = random_array(experts * r * outer, TSR_BF16),
        .r = r,
        .backward = backward,
        .dtype = TSR_BF16};
    double ms = median_ms(call, &args, TIMES);
    printf("%-34s r %2lld %-7s %8.3f ms %7.1f TFLOP/s\n", name, (long long)r,
           expert_load_name[load], ms, 2e-9 * (double)(c.used * out * in) / ms);
    free_expert_case(&c);
    cuda_free_all();
}

static void dense_time(const char *name, int64_t m, int64_t n, int64_t k, bool backward)
{
    tsr_gemm_args args = {.m = m,
                          .n = n,
                          .k = k,
                          .a = random_array(m * k, TSR_BF16),
                          .b = random_array(n * k, TSR_BF16),
                          .c = random_array(m * n, TSR_BF16),
                          .trans_b = !backward,
                          .alpha = 1,
                          .dtype = TSR_BF16,
                          .c_dtype = TSR_BF16};
    double ms = median_ms(call_dense, &args, TIMES);
    printf("%-34s %-7s %8.3f ms %7.1f TFLOP/s\n", name, "dense", ms,
           2e-9 * (double)(m * n * k) / ms);
    cuda_free_all();
}

static void all_times(void)
{
    const int64_t tokens = 8192, k = 8, experts = 128, h = 2048, i = 768;
    dense_time("gate_up as one matmul", tokens * k, 2 * i, h, false);
    dense_time("down as one matmul", tokens * k, h, i, false);
    for (int load = LOAD_EVEN; load <= LOAD_ZIPF; load++)
        for (int r = 0; r <= 16; r += 16) {
            one_time("gate_up", tokens, k, experts, 2 * i, h, r, 0, load);
            one_time("gate_up, gathered", tokens, k, experts, 2 * i, h, r, GATHER, load);
            one_time("gate_up backward", tokens, k, experts, 2 * i, h, r, BACKWARD, load);
            one_time("down", tokens, k, experts, h, i, r, 0, load);
            one_time("down backward", tokens, k, experts, h, i, r, BACKWARD, load);
            one_time("down backward, gathered", tokens, k, experts, h, i, r, BACKWARD | GATHER,
                     load);
        }
    one_time("8 experts of 14336 x 4096, gathered", 4096, 2, 8, 14336, 4096, 0, GATHER, LOAD_EVEN);
    one_time("gate_up of 1024 tokens, gathered", 1024, k, experts, 2 * i, h, 0, GATHER, LOAD_EVEN);
}

static void times(void **state)
{
    (void)state;
    all_times();
    puts("without boxes:");
    without_boxes(all_times);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors_match),
        cmocka_unit_test(vectors_match_on_any_card),
        cmocka_unit_test(other_shapes_and_dtypes_match),
        cmocka_unit_test(large_shapes_match),
        cmocka_unit_test(a_row_has_its_bits_anywhere),
        cmocka_unit_test(what_a_gpu_cannot_do),
    };
    const struct CMUnitTest timings[] = {cmocka_unit_test(times)};
    if (argc < 2 || strcmp(argv[1], "time") != 0)
        return cmocka_run_group_tests(tests, cuda_setup, cuda_teardown);
    return cmocka_run_group_tests(timings, cuda_setup, cuda_teardown);
}
