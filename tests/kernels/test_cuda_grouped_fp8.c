/*
 * test_cuda_grouped_fp8.c: grouped_fp8 on a GPU against the C reference: every kernel, direction, load and ragged edge; what
 * is not of the range; stored weights as both ops, one after the other; a row's bits, wherever it lies. With the argument
 * "time", how fast it is at the shapes of a mixture of 128 experts, beside bf16.
 */
#include "kernels/fp8.h"
#include "kernels/kernels_cuda.h"

#include "cuda_experts.h"
#include "cuda_stack.h"
#include "cuda_time.h"

typedef struct {
    int64_t tokens, k, experts, out, in, first, count;
    expert_load load;
    int64_t r; /* with LOW */
} shape;

/* Bits of a way. */
enum { BACKWARD = 1, GATHER = 2, LOW = 4, BIAS = 8, FAST = 16, WAYS = 32 };

/* Codes that are no NaN, on both sides. */
typedef struct {
    uint8_t *host;
    void *device;
} codes;

static codes new_codes(int64_t count, uint64_t seed)
{
    codes c = {.host = new_bytes(count, seed)};
    for (int64_t i = 0; i < count; i++)
        if ((c.host[i] & 0x7f) == TSR_E4M3_NAN)
            c.host[i] = 0;
    c.device = cuda_copy(c.host, (uint64_t)count);
    return c;
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

/* plainly: by the kernel that adds in fp32. */
static void one_case(const shape *s, int way, tsr_dtype dtype, bool plainly)
{
    if ((way & BACKWARD && way & BIAS) || !cuda_turn())
        return;
    expert_case c = new_expert_case(s->tokens, s->k, s->experts, s->load);
    bool backward = way & BACKWARD, gather = way & GATHER, fast = way & FAST;
    int64_t outer = backward ? s->in : s->out, inner = backward ? s->out : s->in;
    int64_t most = c.rows.most, x_rows = gather ? s->tokens : most;
    codes x = new_codes(x_rows * inner, 1), w = new_codes(s->count * s->out * s->in, 2);
    float *x_scale = keep(new_gain(x_rows, 7)), *w_scale = keep(new_gain(s->count, 8));
    input bias = random_input(s->experts * s->out, 3, 1e3f, TSR_F32);
    input low = random_input(most * s->r, 5, 30, dtype);
    input factor = random_input(s->experts * s->r * outer, 6, 30, dtype);
    input old = random_input(most * outer, 4, 1, dtype);
    input before = random_input(most * outer, 4, 1, dtype);
    output z = over(old, most * outer, dtype);
    tsr_grouped_fp8_args ref = {.gemm = {.z = copy_of(old.host, most * outer),
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
                                         .backward = backward},
                                .x_scale = x_scale,
                                .w_scale = w_scale,
                                .fast = fast};
    if (way & BIAS)
        ref.gemm.bias = on_host(bias);
    tsr_grouped_fp8_args args = ref;
    args.gemm.rows = device_rows(&c, gather);
    args.gemm.z = z.device, args.gemm.x = x.device, args.gemm.w = w.device;
    args.gemm.low = low.device, args.gemm.factor = factor.device;
    args.gemm.dtype = dtype;
    args.x_scale = cuda_copy(x_scale, (uint64_t)x_rows * sizeof(float));
    args.w_scale = cuda_copy(w_scale, (uint64_t)s->count * sizeof(float));
    if (way & BIAS)
        args.gemm.bias = on_device(bias, TSR_F32);
    char what[160];
    snprintf(what, sizeof what, "%lld x %lld rows, %s, %lld x %lld of [%lld, +%lld), way %d, %s",
             (long long)s->tokens, (long long)s->k, expert_load_name[s->load], (long long)s->out,
             (long long)s->in, (long long)s->first, (long long)s->count, way,
             tsr_dtype_name(dtype));
    RUN(tsr_grouped_fp8_ref(&ref, rig.pool));
    RUN(rig.kernels->grouped_fp8(rig.stream, &args));
    expect(what, z, ref.gemm.z,
           plainly ? tolerance_of(tolerance_grouped, dtype)
           : fast  ? tolerance_fp8_gemm.bf16
                   : tolerance_fp8_gemm.f32);
    expect_others_untouched(what, &c, s, z, before.device, outer);
    free(x.host), free(w.host);
    free_expert_case(&c);
    end_case();
}

static const shape small[] = {
    {1, 1, 1, 16, 16, 0, 1, LOAD_EVEN, 8},       {7, 2, 5, 48, 80, 0, 5, LOAD_EVEN, 16},
    {90, 4, 9, 272, 144, 0, 9, LOAD_ZIPF, 24},   {90, 4, 9, 144, 272, 2, 4, LOAD_ZIPF, 32},
    {130, 3, 6, 32, 64, 0, 6, LOAD_ONE, 40},     {130, 3, 6, 512, 528, 4, 1, LOAD_ONE, 48},
    {200, 2, 10, 320, 16, 1, 9, LOAD_HOLES, 56}, {300, 4, 7, 256, 192, 0, 7, LOAD_DROPPED, 64},
    {0, 2, 4, 16, 16, 0, 4, LOAD_EVEN, 72},      {9, 2, 4, 16, 16, 2, 0, LOAD_EVEN, 128},
    {64, 1, 1, 192, 128, 0, 1, LOAD_EVEN, 16},   {65, 1, 1, 208, 256, 0, 1, LOAD_EVEN, 8},
    {129, 1, 1, 384, 1040, 0, 1, LOAD_EVEN, 80},
};

/* On a card without e4m3 by the plain kernel. */
static void all_small(void)
{
    for (size_t i = 0; i < sizeof small / sizeof *small; i++)
        for (int way = 0; way < WAYS; way++)
            one_case(&small[i], way, TSR_BF16, false);
}

static void vectors_match(void **state)
{
    (void)state;
    all_small();
    without_boxes(all_small);
}

static void other_shapes_and_dtypes_match(void **state)
{
    (void)state;
    static const shape ragged[] = {
        {7, 2, 5, 33, 71, 0, 5, LOAD_EVEN, 8},
        {90, 4, 9, 65, 129, 2, 6, LOAD_ZIPF, 3},
    };
    for (size_t i = 0; i < sizeof ragged / sizeof *ragged; i++)
        for (int way = 0; way < FAST; way++) {
            one_case(&ragged[i], way, TSR_BF16, true);
            one_case(&ragged[i], way, TSR_F32, true);
        }
    for (int way = 0; way < FAST; way++)
        one_case(&small[3], way, TSR_F32, true);
}

/* Many tiles for each block that stays; more experts than threads. */
static void large_ones(void)
{
    static const shape large[] = {
        {1000, 8, 128, 512, 512, 0, 128, LOAD_ZIPF, 16},
        {2048, 8, 64, 1536, 512, 0, 64, LOAD_EVEN, 8},
        {2048, 4, 16, 2048, 768, 3, 10, LOAD_DROPPED, 64},
        {4096, 2, 600, 256, 128, 0, 600, LOAD_HOLES, 32},
        {3000, 4, 8, 1008, 208, 0, 8, LOAD_ONE, 72},
    };
    static const int ways[] = {0,
                               GATHER,
                               BACKWARD,
                               BACKWARD | GATHER | LOW,
                               LOW | GATHER | BIAS,
                               FAST,
                               FAST | LOW,
                               BACKWARD | FAST | LOW};
    for (size_t i = 0; i < sizeof large / sizeof *large; i++)
        for (size_t j = 0; j < sizeof ways / sizeof *ways; j++)
            one_case(&large[i], ways[j], TSR_BF16, false);
}

static void large_shapes_match(void **state)
{
    (void)state;
    large_ones();
    without_boxes(large_ones);
}

/* ---- bits ---- */

static void *read_all(const void *device, int64_t bytes)
{
    void *host = malloc((size_t)bytes + 1);
    assert_non_null(host);
    cuda_read(host, device, (uint64_t)bytes);
    return host;
}

/* Two experts at a time: the bits of all of them made before. */
static void one_stored(const stack *s, int way)
{
    expert_case c = new_expert_case(200, 2, s->experts, LOAD_ZIPF);
    stack_data d = new_stack(s, TSR_BF16);
    bool backward = way & BACKWARD;
    int64_t outer = backward ? s->columns : s->rows, inner = backward ? s->rows : s->columns;
    int64_t most = c.rows.most, elements = s->rows * s->columns;
    output z[2] = {over(random_input(most * outer, 4, 1, TSR_BF16), most * outer, TSR_BF16),
                   over(random_input(most * outer, 4, 1, TSR_BF16), most * outer, TSR_BF16)};
    codes x = new_codes(200 * inner, 1);
    float *x_scale = keep(new_gain(200, 7));
    tsr_grouped_fp8_args args = {.gemm = {.z = z[0].device,
                                          .x = x.device,
                                          .stored = d.device,
                                          .scratch = cuda_copy(NULL, (uint64_t)(2 * elements)),
                                          .held = 2,
                                          .rows = device_rows(&c, true),
                                          .first = s->first,
                                          .count = s->count,
                                          .out = s->rows,
                                          .in = s->columns,
                                          .backward = backward,
                                          .dtype = TSR_BF16},
                                 .x_scale = cuda_copy(x_scale, 200 * sizeof(float)),
                                 .w_scale = cuda_copy(NULL, 2 * sizeof(float))};
    RUN(rig.kernels->grouped_fp8(rig.stream, &args));
    tsr_expert_fp8_args make = {.weight = d.device,
                                .scale = cuda_copy(NULL, (uint64_t)s->count * sizeof(float)),
                                .transposed = backward};
    make.weight.out = cuda_copy(NULL, (uint64_t)(s->count * elements));
    make.weight.first = s->first, make.weight.count = s->count, make.weight.dtype = TSR_F8_E4M3;
    RUN(rig.kernels->expert_fp8(rig.stream, &make));
    args.gemm.z = z[1].device, args.gemm.w = make.weight.out, args.w_scale = make.scale;
    RUN(rig.kernels->grouped_fp8(rig.stream, &args));
    void *got = read_all(z[0].device, most * outer * 2);
    void *want = read_all(z[1].device, most * outer * 2);
    assert_memory_equal(got, want, (size_t)(most * outer * 2));
    free(got), free(want), free(d.codes), free(d.q), free(x.host);
    free_expert_case(&c);
    end_case();
}

static void stored_weights_are_made_first(void **state)
{
    (void)state;
    static const stack stacks[] = {
        {5, 1, 64, 256, 0, 5, true}, {9, 2, 256, 128, 2, 6, true}, {7, 2, 96, 80, 0, 7, false}};
    for (size_t i = 0; i < sizeof stacks / sizeof *stacks; i++)
        for (int way = 0; way <= BACKWARD; way++)
            one_stored(&stacks[i], way);
}

/* Rows [37, n) of the only expert, and the same rows of a later expert that has no others. */
static void a_rows_bits(bool gather, bool fast)
{
    enum { N = 300, AWAY = 37 };
    const int64_t out = 512, in = 320, r = 24;
    codes x = new_codes(N * in, 1), w = new_codes(3 * out * in, 2);
    float *x_scale = keep(new_gain(N, 7)), *w_scale = keep(new_gain(1, 8));
    input low = random_input(N * r, 3, 1, TSR_BF16), factor = random_input(r * out, 4, 1, TSR_BF16);
    int32_t alone[4] = {0, 0, N, N}, later[4] = {0, 0, 0, N - AWAY}, slot[N], moved[N];
    output z[2] = {blank(N * out, TSR_BF16), blank(N * out, TSR_BF16)};
    for (int i = 0; i < N; i++) {
        slot[i] = i;
        moved[i] = i + AWAY < N ? i + AWAY : -1;
    }
    float *scales = cuda_copy(x_scale, N * sizeof(float));
    tsr_grouped_fp8_args args = {
        .gemm = {.z = z[0].device,
                 .x = x.device,
                 .w = w.device,
                 .rows = {.offset = cuda_copy(alone, sizeof alone),
                          .slot = gather ? cuda_copy(slot, sizeof slot) : NULL,
                          .most = N,
                          .k = 1,
                          .experts = 3},
                 .first = 1,
                 .count = 1,
                 .out = out,
                 .in = in,
                 .low = low.device,
                 .factor = (uint16_t *)factor.device - r * out,
                 .r = r,
                 .dtype = TSR_BF16},
        .x_scale = scales,
        .w_scale = cuda_copy(w_scale, sizeof(float)),
        .fast = fast};
    RUN(rig.kernels->grouped_fp8(rig.stream, &args));
    args.gemm.z = z[1].device;
    args.gemm.low = (char *)low.device + AWAY * r * 2;
    args.gemm.factor = (uint16_t *)factor.device - 2 * r * out;
    args.gemm.rows.offset = cuda_copy(later, sizeof later);
    args.gemm.rows.slot = gather ? cuda_copy(moved, sizeof moved) : NULL;
    args.gemm.x = gather ? x.device : (char *)x.device + AWAY * in;
    args.x_scale = gather ? scales : scales + AWAY;
    args.gemm.rows.most = gather ? N : N - AWAY;
    args.gemm.first = 2;
    RUN(rig.kernels->grouped_fp8(rig.stream, &args));
    char *got[2] = {read_all(z[0].device, N * out * 2), read_all(z[1].device, N * out * 2)};
    assert_memory_equal(got[0] + AWAY * out * 2, got[1], (size_t)((N - AWAY) * out * 2));
    free(got[0]), free(got[1]), free(x.host), free(w.host);
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

/* ---- time ---- */

#define TIMES 20

static void call(void *context)
{
    RUN(rig.kernels->grouped_fp8(rig.stream, context));
}

static void call_bf16(void *context)
{
    RUN(rig.kernels->grouped_gemm(rig.stream, context));
}

static void one_time(const char *name, const stack *s, int64_t r, int way, expert_load load)
{
    const int64_t tokens = 8192, k = 8;
    expert_case c = new_expert_case(tokens, k, s->experts, load);
    stack_data d = new_stack(s, TSR_BF16);
    bool backward = way & BACKWARD, gather = way & GATHER;
    int64_t most = c.rows.most, elements = s->rows * s->columns;
    int64_t outer = backward ? s->columns : s->rows, inner = backward ? s->rows : s->columns;
    int64_t x_rows = gather ? tokens : most;
    tsr_grouped_fp8_args args = {
        .gemm = {.z = random_array(most * outer, TSR_BF16),
                 .x = random_array(x_rows * inner, TSR_BF16),
                 .stored = d.device,
                 .scratch = cuda_copy(NULL, (uint64_t)(s->experts * elements * 2)),
                 .held = s->experts,
                 .rows = device_rows(&c, gather),
                 .count = s->experts,
                 .out = s->rows,
                 .in = s->columns,
                 .low = random_array(most * r, TSR_BF16),
                 .factor = random_array(s->experts * r * outer, TSR_BF16),
                 .r = r,
                 .backward = backward,
                 .dtype = TSR_BF16},
        .x_scale = random_array(x_rows, TSR_F32),
        .w_scale = random_array(s->experts, TSR_F32)};
    double bf16_ms = median_ms(call_bf16, &args.gemm, TIMES), ms = median_ms(call, &args, TIMES);
    args.gemm.w = args.gemm.scratch;
    double alone = median_ms(call, &args, TIMES);
    args.fast = true;
    double fast = median_ms(call, &args, TIMES);
    printf("%-26s r %2lld %-7s with decoding %8.3f ms, bf16 %8.3f; alone %8.3f ms %7.1f TFLOP/s, "
           "fast %8.3f ms %7.1f\n",
           name, (long long)r, expert_load_name[load], ms, bf16_ms, alone,
           2e-9 * (double)(c.used * elements) / alone, fast,
           2e-9 * (double)(c.used * elements) / fast);
    free(d.codes), free(d.q);
    free_expert_case(&c);
    cuda_free_all();
}

static void times(void **state)
{
    (void)state;
    const stack gate_up = {128, 2, 1536, 2048, 0, 1, true}, down = {128, 1, 2048, 768, 0, 1, true};
    for (int load = LOAD_EVEN; load <= LOAD_ZIPF; load++)
        for (int r = 0; r <= 16; r += 16) {
            one_time("gate_up, gathered", &gate_up, r, GATHER, load);
            one_time("gate_up backward", &gate_up, r, BACKWARD, load);
            one_time("down", &down, r, 0, load);
            one_time("down backward, gathered", &down, r, BACKWARD | GATHER, load);
        }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors_match),
        cmocka_unit_test(other_shapes_and_dtypes_match),
        cmocka_unit_test(large_shapes_match),
        cmocka_unit_test(stored_weights_are_made_first),
        cmocka_unit_test(a_row_has_its_bits_anywhere),
    };
    const struct CMUnitTest timings[] = {cmocka_unit_test(times)};
    if (argc < 2 || strcmp(argv[1], "time") != 0)
        return cmocka_run_group_tests(tests, cuda_setup, cuda_teardown);
    return cmocka_run_group_tests(timings, cuda_setup, cuda_teardown);
}
