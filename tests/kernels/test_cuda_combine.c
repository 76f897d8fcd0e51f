/*
 * test_cuda_combine.c: rows sorted by expert on the GPU are the reference's, to the last integer; the sum
 * over a token's experts and its backward against the C reference, on even loads, Zipf's, and all on few
 * experts, with and without a capacity, off the alignment, in place.
 */
#include "cuda_case.h"
#include "kernels/route_sort.h"
#include "route_case.h"

/* ---- sorting ---- */

static const int64_t sorts[][3] = {/* tokens, k, experts */
                                   {0, 8, 128},    {1, 1, 1},       {1, 8, 128},
                                   {31, 1, 2},     {33, 3, 5},      {100, 4, 4},
                                   {700, 8, 64},   {257, 32, 1024}, {4096, 1, 8},
                                   {4100, 2, 8},   {9000, 4, 32},   {8192, 8, 128},
                                   {3000, 8, 384}, {20000, 8, 256}, {40000, 1, 1000}};
#define SORTS (int)(sizeof sorts / sizeof *sorts)

/* Twice, so that nothing is left over from a call. */
static void sort_one(const int64_t *shape, route_load load, int64_t capacity)
{
    int64_t tokens = shape[0], k = shape[1], experts = shape[2], slots = tokens * k;
    tsr_routes want = new_routes(tokens, k, experts, load);
    tsr_route_sort_args args = {
        .routes = want, .tokens = tokens, .k = k, .experts = experts, .capacity = capacity};
    RUN(tsr_route_sort_ref(&args, rig.pool));
    uint64_t count = (uint64_t)(3 * slots + experts + 1);
    uint64_t bytes = tsr_routes_bytes(tokens, k, experts);
    uint8_t *device = cuda_copy(NULL, bytes + PAD);
    if (slots)
        RUN(tsr_device_write(rig.device, device, want.id, (uint64_t)slots * sizeof(int32_t)));
    args.routes = tsr_routes_at(device, tokens, k, experts);
    int32_t *got = malloc(count * sizeof *got);
    assert_non_null(got);
    for (int turn = 0; turn < 2; turn++) {
        RUN(rig.kernels->route_sort(rig.stream, &args));
        cuda_read(got, device, count * sizeof *got);
        for (uint64_t i = 0; i < count; i++)
            if (got[i] != want.id[i])
                fail_msg("%lld tokens, %lld of %lld experts, load %d, capacity %lld: integer %llu "
                         "is %d, "
                         "want %d",
                         (long long)tokens, (long long)k, (long long)experts, (int)load,
                         (long long)capacity, (unsigned long long)i, got[i], want.id[i]);
        expect_untouched("behind the routes", device + bytes, PAD);
    }
    free(got), free(want.id);
    end_case();
}

static void rows_are_the_references(void **state)
{
    (void)state;
    for (int i = 0; i < SORTS * LOADS * 4; i++) {
        const int64_t *shape = sorts[i / (LOADS * 4)];
        int64_t mean = shape[0] * shape[1] / shape[2];
        const int64_t capacities[] = {0, 1, mean + 1, 1ll << 40};
        if (cuda_turn())
            sort_one(shape, (route_load)(i / 4 % LOADS), capacities[i % 4]);
    }
}

/* ---- the sum and its backward ---- */

static const int64_t sums[][4] = {/* tokens, k, experts, width */
                                  {0, 2, 8, 40},      {1, 1, 1, 1},       {3, 2, 8, 5},
                                  {21, 4, 4, 67},     {50, 8, 128, 8},    {33, 9, 16, 264},
                                  {64, 32, 64, 96},   {300, 8, 64, 768},  {128, 2, 8, 4096},
                                  {200, 4, 32, 2880}, {700, 8, 128, 2048}};
#define SUMS (int)(sizeof sums / sizeof *sums)

/* Sorted routes on the host, and ids and rows on the device. */
typedef struct {
    tsr_routes host;
    int32_t *id, *row;
    int64_t rows; /* that have a slot */
} placed;

static placed place(const int64_t *shape, route_load load, int64_t capacity)
{
    int64_t tokens = shape[0], k = shape[1], experts = shape[2];
    placed p = {.host = new_routes(tokens, k, experts, load)};
    tsr_route_sort_args args = {
        .routes = p.host, .tokens = tokens, .k = k, .experts = experts, .capacity = capacity};
    RUN(tsr_route_sort_ref(&args, rig.pool));
    uint64_t bytes = (uint64_t)(tokens * k) * sizeof(int32_t);
    p.id = cuda_copy(p.host.id, bytes);
    p.row = cuda_copy(p.host.row, bytes);
    p.rows = p.host.offset[experts];
    return p;
}

/* Rows without a slot are NaN: they must not be read. */
static input rows_of(const placed *p, int64_t slots, int64_t width, uint64_t seed, tsr_dtype dtype)
{
    float *values = new_random(slots * width + shift, seed, 1);
    for (int64_t i = p->rows * width; i < slots * width; i++)
        values[i + shift] = NAN;
    return upload(values, slots * width, dtype);
}

static void combine_one(const int64_t *shape, tsr_dtype dtype, route_load load, int64_t capacity,
                        bool with_p, bool add)
{
    int64_t tokens = shape[0], k = shape[1], h = shape[3];
    placed r = place(shape, load, capacity);
    input z = rows_of(&r, tokens * k, h, 1, dtype), old = random_input(tokens * h, 3, 1, dtype);
    input p = random_input(tokens * k, 2, 1, TSR_F32);
    tsr_combine_args ref = {.y = copy_of(old.host, tokens * h),
                            .z = z.host,
                            .p = with_p ? p.host : NULL,
                            .row = r.host.row,
                            .tokens = tokens,
                            .k = k,
                            .h = h,
                            .add = add};
    RUN(tsr_combine_ref(&ref, rig.pool));
    output y = add ? over(old, tokens * h, dtype) : blank(tokens * h, dtype);
    tsr_combine_args args = ref;
    args.y = y.device, args.z = z.device, args.p = with_p ? device_floats(p) : NULL;
    args.row = r.row, args.dtype = dtype;
    RUN(rig.kernels->combine(rig.stream, &args));
    expect("y", y, ref.y, tolerance_combine.f32);
    free(r.host.id);
    end_case();
}

/* What biases make of dp. */
static void combine_backward_one(const int64_t *shape, tsr_dtype dtype, route_load load,
                                 int64_t capacity, tsr_dtype bias_dtype)
{
    int64_t tokens = shape[0], k = shape[1], experts = shape[2], h = shape[3], slots = tokens * k;
    placed r = place(shape, load, capacity);
    input dy = random_input(tokens * h, 4, 1, dtype);
    input bias = random_input(experts * h, 5, 1, bias_dtype);
    tsr_combine_backward_args ref = {.dp = want_of(slots),
                                     .id = r.host.id,
                                     .row = r.host.row,
                                     .bias = on_host(bias),
                                     .dy = dy.host,
                                     .tokens = tokens,
                                     .k = k,
                                     .h = h};
    RUN(tsr_combine_backward_ref(&ref, rig.pool));
    output dp = blank(slots, TSR_F32);
    tsr_combine_backward_args args = ref;
    args.dp = dp.device, args.id = r.id, args.row = r.row, args.dy = dy.device, args.dtype = dtype;
    args.bias = on_device(bias, bias_dtype);
    RUN(rig.kernels->combine_backward(rig.stream, &args));
    expect("dp", dp, ref.dp, 4 * tolerance_combine.f32);
    free(r.host.id);
    end_case();
}

typedef struct {
    bool add, in_place;
    tsr_activation activation;
} glu_kind;

static void glu_backward_one(const int64_t *shape, tsr_dtype dtype, route_load load,
                             int64_t capacity, const glu_kind *kind)
{
    int64_t tokens = shape[0], k = shape[1], f = shape[3], slots = tokens * k;
    placed r = place(shape, load, capacity);
    input z = rows_of(&r, slots, 2 * f, 1, dtype), dact = rows_of(&r, slots, f, 2, dtype);
    input p = random_input(slots, 3, 1, TSR_F32), old = random_input(slots, 4, 1, TSR_F32);
    tsr_routed_glu_backward_args ref = {.dp = copy_of(old.host, slots),
                                        .dz = want_of(slots * 2 * f),
                                        .z = z.host,
                                        .dact = dact.host,
                                        .p = p.host,
                                        .row = r.host.row,
                                        .tokens = tokens,
                                        .k = k,
                                        .f = f,
                                        .add = kind->add,
                                        .activation = kind->activation};
    RUN(tsr_routed_glu_backward_ref(&ref, rig.pool));
    output out = kind->in_place ? over(z, r.rows * 2 * f, dtype) : blank(slots * 2 * f, dtype);
    output dp = kind->add ? over(old, slots, TSR_F32) : blank(slots, TSR_F32);
    tsr_routed_glu_backward_args args = ref;
    args.dp = dp.device, args.dz = out.device, args.z = z.device, args.dact = dact.device;
    args.p = device_floats(p), args.row = r.row, args.dtype = dtype;
    RUN(rig.kernels->routed_glu_backward(rig.stream, &args));
    expect("dp", dp, ref.dp, 4 * tolerance_combine.f32);
    uint64_t bytes = tsr_dtype_bytes(dtype), first = (uint64_t)(r.rows * 2 * f) * bytes;
    if (!kind->in_place)
        expect_untouched("rows without a slot", (uint8_t *)out.device + first,
                         (uint64_t)((slots - r.rows) * 2 * f + PAD) * bytes);
    out.count = r.rows * 2 * f, out.base = NULL;
    expect("dz", out, ref.dz, 2 * tolerance_combine.f32);
    free(r.host.id);
    end_case();
}

static void sums_match(void **state)
{
    (void)state;
    const int64_t capacities[] = {0, 2};
    for (int i = 0; i < SUMS * 24; i++) {
        if (!cuda_turn())
            continue;
        shift = i % 8 == 7;
        combine_one(sums[i / 24], all_dtypes[i % 3], (route_load)(i / 3 % LOADS),
                    capacities[i / 2 % 2], i % 5 != 0, i / 12 % 2);
    }
    shift = 0;
}

static void backwards_match(void **state)
{
    (void)state;
    const int64_t capacities[] = {0, 2};
    for (int i = 0; i < SUMS * 24; i++) {
        if (!cuda_turn())
            continue;
        shift = i % 8 == 7;
        const int64_t *shape = sums[i / 24], capacity = capacities[i / 6 % 2];
        route_load load = (route_load)(i / 3 % LOADS);
        glu_kind kind = {
            .add = i % 5 != 0, .in_place = i / 2 % 2, .activation = (tsr_activation)(i / 4 % 3)};
        combine_backward_one(shape, all_dtypes[i % 3], load, capacity, i % 2 ? TSR_F32 : TSR_BF16);
        glu_backward_one(shape, all_dtypes[i % 3], load, capacity, &kind);
    }
    shift = 0;
}

/* ---- all ops, one after the other ---- */

/* Loads by a router: the rows that route_sort makes of its choice are where combine finds them. What the
 * experts do is to multiply by 1, so that y is x times the sum of p, which is 1. */
static void a_layer_of_equal_experts_is_the_identity(void **state)
{
    (void)state;
    int64_t tokens = 500, h = 256, experts = 64, k = 6, slots = tokens * k;
    input x = random_input(tokens * h, 1, 1, TSR_BF16);
    input w = random_input(experts * h, 2, 0.2f, TSR_BF16);
    tsr_routes r =
        tsr_routes_at(cuda_copy(NULL, tsr_routes_bytes(tokens, k, experts)), tokens, k, experts);
    float *p = cuda_copy(NULL, (uint64_t)slots * 4);
    tsr_route_args route = {.x = x.device,
                            .weight = {w.device, TSR_BF16},
                            .how = {.experts = experts, .k = k, .scoring = TSR_ROUTE_CHOSEN},
                            .logits = cuda_copy(NULL, (uint64_t)(tokens * experts) * 4),
                            .p = p,
                            .id = r.id,
                            .tokens = tokens,
                            .h = h,
                            .dtype = TSR_BF16};
    tsr_route_sort_args sort = {.routes = r, .tokens = tokens, .k = k, .experts = experts};
    RUN(rig.kernels->route(rig.stream, &route));
    RUN(rig.kernels->route_sort(rig.stream, &sort));
    int32_t *slot = malloc((size_t)slots * sizeof *slot);
    uint16_t *in = malloc((size_t)(tokens * h) * 2), *z = malloc((size_t)(slots * h) * 2);
    assert_true(slot && in && z);
    cuda_read(slot, r.slot, (uint64_t)slots * sizeof *slot);
    cuda_read(in, x.device, (uint64_t)(tokens * h) * 2);
    for (int64_t i = 0; i < slots; i++) {
        assert_true(slot[i] >= 0 && slot[i] < slots);
        memcpy(z + i * h, in + slot[i] / k * h, (size_t)h * 2);
    }
    output y = blank(tokens * h, TSR_BF16);
    tsr_combine_args combine = {.y = y.device,
                                .z = cuda_copy(z, (uint64_t)(slots * h) * 2),
                                .p = p,
                                .row = r.row,
                                .tokens = tokens,
                                .k = k,
                                .h = h,
                                .dtype = TSR_BF16};
    RUN(rig.kernels->combine(rig.stream, &combine));
    expect("y", y, x.host, 2e-6);
    free(slot), free(in), free(z);
    end_case();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_the_references),
        cmocka_unit_test(sums_match),
        cmocka_unit_test(backwards_match),
        cmocka_unit_test(a_layer_of_equal_experts_is_the_identity),
    };
    return cmocka_run_group_tests(tests, cuda_setup, cuda_teardown);
}
