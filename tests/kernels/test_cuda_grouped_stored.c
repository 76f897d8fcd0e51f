/*
 * test_cuda_grouped_stored.c: grouped_gemm of stored weights on a GPU: bit for bit expert_weight and then grouped_gemm,
 * in every direction and load, whether codes are decoded as they are multiplied with or before. With the argument
 * "time", how fast it is at the shapes of a mixture of 128 experts.
 */
#include "kernels/kernels_cuda.h"

#include "cuda_experts.h"
#include "cuda_stack.h"
#include "cuda_time.h"

typedef struct {
    int64_t tokens, k;
    stack s; /* first and count: those that are multiplied with */
    int64_t held;
    expert_load load;
} shape;

/* Bits of a way. */
enum { BACKWARD = 1, GATHER = 2, LOW = 4, WAYS = 8 };

#define RANK 24 /* with LOW */

static void *read_all(const void *device, int64_t bytes)
{
    void *host = malloc((size_t)bytes + 1);
    assert_non_null(host);
    cuda_read(host, device, (uint64_t)bytes);
    return host;
}

static void one_case(const shape *s, int way, tsr_dtype dtype)
{
    if (!cuda_turn())
        return;
    const stack *w = &s->s;
    expert_case c = new_expert_case(s->tokens, s->k, w->experts, s->load);
    stack_data d = new_stack(w, dtype);
    bool backward = way & BACKWARD, gather = way & GATHER;
    int64_t outer = backward ? w->columns : w->rows, inner = backward ? w->rows : w->columns;
    int64_t most = c.rows.most, elements = w->rows * w->columns;
    int64_t each = (int64_t)tsr_dtype_bytes(dtype);
    output z[2] = {over(random_input(most * outer, 4, 1, dtype), most * outer, dtype),
                   over(random_input(most * outer, 4, 1, dtype), most * outer, dtype)};
    tsr_grouped_gemm_args args = {
        .z = z[0].device,
        .x = random_input((gather ? s->tokens : most) * inner, 1, 1, dtype).device,
        .stored = d.device,
        .scratch = cuda_copy(NULL, (uint64_t)(s->held * elements * each)),
        .held = s->held,
        .rows = device_rows(&c, gather),
        .first = w->first,
        .count = w->count,
        .out = w->rows,
        .in = w->columns,
        .low = random_input(most * RANK, 5, 1, dtype).device,
        .factor = random_input(w->experts * RANK * outer, 6, 1, dtype).device,
        .r = way & LOW ? RANK : 0,
        .backward = backward,
        .dtype = dtype};
    RUN(rig.kernels->grouped_gemm(rig.stream, &args));
    d.device.out = cuda_copy(NULL, (uint64_t)(w->count * elements * each));
    d.device.first = w->first, d.device.count = w->count;
    RUN(rig.kernels->expert_weight(rig.stream, &d.device));
    args.z = z[1].device, args.w = d.device.out;
    RUN(rig.kernels->grouped_gemm(rig.stream, &args));
    void *got = read_all(z[0].device, most * outer * each);
    void *want = read_all(z[1].device, most * outer * each);
    if (memcmp(got, want, (size_t)(most * outer * each)) != 0)
        fail_msg(
            "%lld x %lld rows, %s, %lld x %lld of [%lld, +%lld), %lld held, way %d, %s: other bits",
            (long long)s->tokens, (long long)s->k, expert_load_name[s->load], (long long)w->rows,
            (long long)w->columns, (long long)w->first, (long long)w->count, (long long)s->held,
            way, tsr_dtype_name(dtype));
    free(got), free(want), free(d.codes), free(d.q);
    free_expert_case(&c);
    end_case();
}

static const shape shapes[] = {
    {7, 2, {5, 1, 64, 256, 0, 5, true}, 2, LOAD_EVEN},
    {90, 4, {9, 2, 256, 128, 0, 9, true}, 9, LOAD_ZIPF},
    {90, 4, {9, 2, 512, 192, 2, 4, false}, 3, LOAD_ZIPF},
    {130, 3, {6, 1, 320, 1024, 0, 6, true}, 4, LOAD_ONE},
    {130, 3, {6, 2, 384, 64, 4, 1, false}, 1, LOAD_ONE},
    {200, 2, {10, 3, 768, 64, 1, 9, true}, 4, LOAD_HOLES},
    {300, 4, {7, 1, 1024, 320, 0, 7, true}, 2, LOAD_DROPPED},
    {65, 1, {1, 1, 256, 128, 0, 1, false}, 1, LOAD_EVEN},
    {0, 2, {4, 1, 64, 256, 0, 4, true}, 4, LOAD_EVEN},
    /* not decoded as they are multiplied with: gaps, rows */
    {90, 4, {9, 2, 28, 72, 0, 9, true}, 4, LOAD_EVEN},
    {90, 4, {5, 1, 32, 512, 1, 4, true}, 3, LOAD_ZIPF},
};

static void all_shapes(void)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int way = 0; way < WAYS; way++)
            one_case(&shapes[i], way, TSR_BF16);
    one_case(&shapes[1], 0, TSR_F32);
    one_case(&shapes[2], GATHER, TSR_F16);
}

static void bits_are_those_of_both_ops(void **state)
{
    (void)state;
    all_shapes();
    without_boxes(all_shapes);
}

/* Many tiles for each block that stays, of a model's shapes. */
static void large_ones(void **state)
{
    (void)state;
    static const shape large[] = {
        {1000, 8, {128, 2, 1536, 512, 0, 128, true}, 40, LOAD_ZIPF},
        {2048, 8, {64, 1, 512, 768, 0, 64, true}, 64, LOAD_EVEN},
        {2800, 4, {48, 1, 2048, 768, 3, 45, false}, 20, LOAD_ZIPF},
        {4096, 2, {8, 1, 512, 768, 0, 8, true}, 3, LOAD_DROPPED}, /* too many rows */
    };
    for (size_t i = 0; i < sizeof large / sizeof *large; i++)
        for (int way = 0; way < WAYS; way++)
            one_case(&large[i], way, TSR_BF16);
}

/* ---- time ---- */

#define TIMES 20

static void call(void *context)
{
    RUN(rig.kernels->grouped_gemm(rig.stream, context));
}

static void one_time(const char *name, int64_t tokens, int64_t k, const stack *s, int64_t r,
                     int way, expert_load load)
{
    expert_case c = new_expert_case(tokens, k, s->experts, load);
    stack_data d = new_stack(s, TSR_BF16);
    bool backward = way & BACKWARD, gather = way & GATHER;
    int64_t most = c.rows.most, elements = s->rows * s->columns;
    int64_t outer = backward ? s->columns : s->rows, inner = backward ? s->rows : s->columns;
    tsr_grouped_gemm_args args = {.z = random_array(most * outer, TSR_BF16),
                                  .x = random_array((gather ? tokens : most) * inner, TSR_BF16),
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
                                  .dtype = TSR_BF16};
    double ms = median_ms(call, &args, TIMES);
    d.device.count = s->experts, d.device.out = args.scratch;
    RUN(rig.kernels->expert_weight(rig.stream, &d.device));
    args.w = args.scratch;
    double alone = median_ms(call, &args, TIMES);
    printf("%-34s r %2lld %-7s %8.3f ms %7.1f TFLOP/s, of decoded weights %8.3f ms\n", name,
           (long long)r, expert_load_name[load], ms, 2e-9 * (double)(c.used * elements) / ms,
           alone);
    free(d.codes), free(d.q);
    free_expert_case(&c);
    cuda_free_all();
}

static void times(void **state)
{
    (void)state;
    const stack gate_up = {128, 2, 1536, 2048, 0, 1, true}, down = {128, 1, 2048, 768, 0, 1, true};
    const stack large = {8, 2, 28672, 4096, 0, 1, true};
    for (int load = LOAD_EVEN; load <= LOAD_ZIPF; load++)
        for (int r = 0; r <= 16; r += 16) {
            one_time("gate_up, gathered", 8192, 8, &gate_up, r, GATHER, load);
            one_time("gate_up", 8192, 8, &gate_up, r, 0, load);
            one_time("gate_up backward", 8192, 8, &gate_up, r, BACKWARD, load);
            one_time("down", 8192, 8, &down, r, 0, load);
            one_time("down backward, gathered", 8192, 8, &down, r, BACKWARD | GATHER, load);
        }
    one_time("gate_up of 1024 tokens, gathered", 1024, 8, &gate_up, 0, GATHER, LOAD_EVEN);
    one_time("8 experts of 28672 x 4096", 4096, 2, &large, 0, GATHER, LOAD_EVEN);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_are_those_of_both_ops),
        cmocka_unit_test(large_ones),
    };
    const struct CMUnitTest timings[] = {cmocka_unit_test(times)};
    if (argc < 2 || strcmp(argv[1], "time") != 0)
        return cmocka_run_group_tests(tests, cuda_setup, cuda_teardown);
    return cmocka_run_group_tests(timings, cuda_setup, cuda_teardown);
}
