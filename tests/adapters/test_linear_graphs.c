/*
 * test_linear_graphs.c: a linear with its adapter by each of its graphs, and DoRA's norms of an fp8 base,
 * against sums in double; which graphs are timed, and that one of them is taken.
 *
 *     test_adapters_linear_graphs        on the CPU, fp32
 *     test_adapters_linear_graphs cuda   on a GPU, bf16 and fp32; 77 without one
 */
#include "linear_case.h"

#include "kernels/fp8.h"

/* Of DoRA's norms, which are fp32 in both; tensor cores cut off what they add. */
static double norm_tolerance(tsr_dtype dtype)
{
    return dtype == TSR_F32 ? 1e-6 : 4e-6;
}

/* ---- every graph ---- */

/* n, and g, which is 1 while m is n. */
static void expect_norms(linear_case *c, double most)
{
    float g;
    RUN(tsr_stream_synchronize(rig.stream));
    double apart = distance(c->norm.n, c->n, c->spec.out, TSR_F32, 1);
    if (!(apart < most))
        fail_msg("norms are %.2g away, at most %.2g", apart, most);
    for (int64_t i = 0; i < c->spec.out; i++) {
        RUN(tsr_device_read(rig.device, &g, c->norm.g + i, sizeof g));
        assert_true(g == 1);
    }
    if (c->fresh)
        RUN(tsr_stream_copy(rig.stream, c->magnitude, c->norm.n, c->linear.out * sizeof(float)));
    RUN(tsr_stream_fill(rig.stream, c->norm.n, 0xff, c->linear.out * sizeof(float)));
    RUN(tsr_stream_fill(rig.stream, c->norm.g, 0xff, c->linear.out * sizeof(float)));
    RUN(tsr_stream_synchronize(rig.stream));
    c->fresh = false;
}

static double run_once(linear_case *c)
{
    RUN(tsr_linear_forward(&c->context, &c->linear, c->gradients.x, c->d_z, NULL, NULL));
    RUN(tsr_stream_synchronize(rig.stream));
    return distance(c->d_z, c->z, c->spec.t * c->spec.out, c->spec.dtype, 1);
}

/* With DoRA's norms, where they can come of it, z is the same; and g is 1 exactly where m was fresh, whichever
 * graph made it. */
static double run_forward(linear_case *c)
{
    double apart = run_once(c);
    if (on_gpu && !tsr_nf4_merge_fused(c->spec.dtype, c->spec.in, c->spec.r))
        return apart; /* factored then: in fp32, too, which the CPU makes both ways */
    c->fresh = !c->norm.m;
    c->linear.norm = &c->norm;
    assert_true(run_once(c) == apart);
    expect_norms(c, norm_tolerance(c->spec.dtype));
    c->linear.norm = NULL;
    c->norm.m = c->magnitude;
    return apart;
}

/* Worst of dA and dB; *dx: of dx. */
static double run_backward(linear_case *c, double *dx)
{
    const spec *s = &c->spec;
    tsr_linear_gradients *g = &c->gradients;
    double apart[3];
    RUN(tsr_linear_backward(&c->context, &c->linear, g));
    RUN(tsr_stream_synchronize(rig.stream));
    *dx = distance(g->dx, c->dx, s->t * s->in, s->dtype, 1);
    apart[0] = distance(g->da, c->da, s->r * s->in, TSR_F32, 1);
    apart[1] = distance(g->db, c->db, s->out * s->r, TSR_F32, 1);
    tsr_linear_gradients more = *g; /* onto what is there; and without, which is not touched then */
    more.add = true;
    RUN(tsr_linear_backward(&c->context, &c->linear, &more));
    RUN(tsr_stream_synchronize(rig.stream));
    apart[2] = distance(g->dx, c->dx, s->t * s->in, s->dtype, 2);
    assert_true(apart[2] < tolerance(s->dtype));
    RUN(tsr_stream_fill(rig.stream, g->da, 0xff, (uint64_t)(s->r * s->in) * sizeof(float)));
    RUN(tsr_stream_fill(rig.stream, g->db, 0xff, (uint64_t)(s->out * s->r) * sizeof(float)));
    more.dx = NULL;
    RUN(tsr_linear_backward(&c->context, &c->linear, &more));
    RUN(tsr_stream_synchronize(rig.stream));
    assert_true(distance(g->da, c->da, s->r * s->in, TSR_F32, 1) == apart[0]);
    assert_true(distance(g->db, c->db, s->out * s->r, TSR_F32, 1) == apart[1]);
    return fmax(apart[0], apart[1]);
}

static void expect_same_bits(const void *a, const void *b, int64_t count, tsr_dtype dtype)
{
    uint64_t bytes = (uint64_t)count * tsr_dtype_bytes(dtype);
    char *host[2] = {malloc(bytes), malloc(bytes)};
    for (int i = 0; i < 2; i++) {
        assert_non_null(host[i]);
        RUN(tsr_device_read(rig.device, host[i], i ? b : a, bytes));
    }
    assert_memory_equal(host[0], host[1], bytes);
    free(host[0]);
    free(host[1]);
}

/* What F1 leaves of X A^T gives a backward that multiplies by it the bits that its own does. */
static void check_kept(linear_case *c, tsr_graph_choice choice)
{
    const spec *s = &c->spec;
    tsr_graph_shape forward = tsr_linear_graph_shape(&c->context, &c->linear, false);
    tsr_graph_shape shape = tsr_linear_graph_shape(&c->context, &c->linear, true);
    tsr_linear_gradients kept = c->gradients;
    uint64_t element = tsr_dtype_bytes(s->dtype), floats = sizeof(float);
    kept.low = c->low;
    kept.dx = take(c, (uint64_t)(s->t * s->in) * element);
    kept.da = take(c, (uint64_t)(s->r * s->in) * floats);
    kept.db = take(c, (uint64_t)(s->out * s->r) * floats);
    tsr_graph_keep(&c->book, &forward, (tsr_graph_choice){TSR_F1, false});
    tsr_graph_keep(&c->book, &shape, choice);
    RUN(tsr_linear_backward(&c->context, &c->linear, &c->gradients));
    RUN(tsr_linear_forward(&c->context, &c->linear, kept.x, c->d_z, NULL, c->low));
    RUN(tsr_stream_fill(rig.stream, c->context.low, 0xff, (uint64_t)(s->t * s->r) * element));
    RUN(tsr_linear_backward(&c->context, &c->linear, &kept));
    RUN(tsr_stream_synchronize(rig.stream));
    expect_same_bits(kept.dx, c->gradients.dx, s->t * s->in, s->dtype);
    expect_same_bits(kept.da, c->gradients.da, s->r * s->in, TSR_F32);
    expect_same_bits(kept.db, c->gradients.db, s->out * s->r, TSR_F32);
}

static void check_graphs(spec s)
{
    linear_case *c = begin(s);
    double plain[2] = {INFINITY, INFINITY}; /* z and dx by F1 and B1, the first ones */
    int ran[2] = {0};
    for (int i = 0; i < TSR_GRAPH_CHOICES; i++) {
        tsr_graph_choice choice = tsr_graph_choice_at(i);
        bool backward = tsr_graph_table[choice.graph].backward;
        tsr_graph_shape shape = tsr_linear_graph_shape(&c->context, &c->linear, backward);
        char name[TSR_GRAPH_NAME];
        double apart, gradients = 0;
        if (!can_run(&shape, choice))
            continue;
        tsr_graph_keep(&c->book, &shape, choice);
        tsr_graph_name(name, choice);
        if (backward)
            gradients = run_backward(c, &apart);
        else
            apart = run_forward(c);
        plain[backward] = fmin(plain[backward], ran[backward]++ ? INFINITY : apart);
        print_message("[%d, %d to %d] r %d %-4s %-7s %s %.2g dA dB %.2g\n", (int)s.t, (int)s.in,
                      (int)s.out, (int)s.r, tsr_dtype_name(s.dtype), name, backward ? "dx" : "z",
                      apart, gradients);
        expect_near(&s, apart, plain[backward]);
        assert_true(gradients < tolerance(s.dtype));
        if (backward)
            check_kept(c, choice);
    }
    bool merges = s.dtype == TSR_F32 || s.in % TSR_NF4_BLOCK == 0;
    if (s.dtype ==
        TSR_F32) /* factored now; else it is merged again, or for the first time factored */
        c->norm.m = NULL;
    RUN(tsr_linear_norm(&c->context, &c->linear, &c->norm));
    expect_norms(c, merges ? norm_tolerance(s.dtype) : 1e-3);
    assert_true(ran[0] == 1 + merges && ran[1] >= 2 + 2 * merges);
    end(c);
}

static void test_graphs(void **state)
{
    (void)state;
    over_cases(check_graphs);
}

/* ---- the norms of an fp8 base ---- */

/* W becomes what its codes in e4m3 say, and the norms those of that. */
static void put_into_e4m3(linear_case *c)
{
    int64_t in = c->spec.in, out = c->spec.out, count = in * out;
    uint8_t *codes = malloc((size_t)count);
    float *scale = malloc((size_t)out * sizeof *scale);
    assert_true(codes && scale);
    c->context.fp8 = (tsr_linear_fp8){.on = true,
                                      .weight = take(c, (uint64_t)count),
                                      .weight_scale = take(c, (uint64_t)out * sizeof(float))};
    const tsr_base_weight *w = &c->linear.weight;
    tsr_fp8_decode_args decode = {.weight = {.out = c->context.fp8.weight,
                                             .codes = w->codes,
                                             .absmax = w->absmax,
                                             .level = w->level,
                                             .count = count,
                                             .columns = in,
                                             .dtype = TSR_F8_E4M3},
                                  .scale = c->context.fp8.weight_scale};
    RUN(rig.kernels->fp8_decode(rig.stream, &decode));
    RUN(tsr_stream_synchronize(rig.stream));
    RUN(tsr_device_read(rig.device, codes, decode.weight.out, (uint64_t)count));
    RUN(tsr_device_read(rig.device, scale, decode.scale, (uint64_t)out * sizeof(float)));
    for (int64_t i = 0; i < count; i++)
        c->w[i] = (double)(tsr_e4m3_to_f32(codes[i]) * scale[i / in]);
    double *m = zeros(count);
    memcpy(m, c->w, (size_t)count * sizeof *m);
    multiply(m, c->b, c->a, out, in, c->spec.r, false, SCALE);
    memset(c->n, 0, (size_t)out * sizeof *c->n);
    for (int64_t i = 0; i < count; i++)
        c->n[i / in] += m[i] * m[i];
    for (int64_t i = 0; i < out; i++)
        c->n[i] = sqrt(c->n[i]);
    free(m), free(codes), free(scale);
}

/* Of the weight that e4m3 can hold, whichever way they are made; g is 1 exactly where m is what n was. */
static void check_fp8_norms(spec s)
{
    linear_case *c = begin(s);
    put_into_e4m3(c);
    for (int turn = 0; turn < 2; turn++) {
        c->fresh = turn == 0;
        c->norm.known = turn == 1;
        c->norm.m = turn == 1 ? c->magnitude : NULL;
        RUN(tsr_stream_fill(rig.stream, c->context.fp8.weight_scale, 0xff,
                            c->linear.out * sizeof(float)));
        RUN(tsr_linear_norm(&c->context, &c->linear, &c->norm));
        expect_norms(c, norm_tolerance(s.dtype));
    }
    end(c);
}

static void test_fp8_norms(void **state)
{
    static const spec specs[] = {{1, 64, 8, 8, TSR_F32, 0.1},    {1, 192, 320, 16, TSR_F32, 0.1},
                                 {1, 128, 1040, 24, TSR_F32, 1}, {1, 96, 200, 16, TSR_F32, 0.1},
                                 {1, 128, 100, 12, TSR_F32, 1},  {1, 512, 768, 256, TSR_F32, 0.1},
                                 {1, 128, 64, 128, TSR_F32, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++)
        over_dtypes(check_fp8_norms, specs[i]);
}

/* ---- timing ---- */

static void check_timing_of(const tsr_graph_shape *shape)
{
    tsr_graph_choice choice, doubt[TSR_GRAPH_CHOICES];
    double seconds[TSR_GRAPH_CHOICES];
    void *scratch = NULL, *guard = NULL;
    tsr_arena *arena = NULL;
    uint64_t bytes = tsr_graph_time_bytes(shape);
    uint8_t end[TSR_ALIGNMENT], zero[TSR_ALIGNMENT] = {0};
    int count = tsr_graph_doubts(doubt, shape);
    RUN(tsr_arena_create(&arena, rig.device, TSR_MEMORY_DEVICE, bytes + 2 * TSR_ALIGNMENT));
    RUN(tsr_arena_take(&scratch, arena, "scratch", bytes));
    RUN(tsr_arena_take(&guard, arena, "guard", TSR_ALIGNMENT));
    const tsr_graph_bench bench = {rig.kernels, rig.stream, scratch, bytes};
    assert_true(count >= 1 && tsr_graph_same_choice(doubt[0], tsr_graph_cheapest(shape)));
    RUN(tsr_graph_measure(seconds, &bench, shape, doubt, count));
    for (int i = 0; i < count; i++) {
        assert_true(tsr_graph_allowed(shape, doubt[i]));
        assert_true(seconds[i] > 0 && seconds[i] < 10);
    }
    RUN(tsr_graph_time(&choice, &bench, shape));
    assert_true(tsr_graph_allowed(shape, choice));
    RUN(tsr_device_read(rig.device, end, guard, sizeof end));
    assert_memory_equal(end, zero, sizeof end); /* what lies behind is untouched */
    const tsr_graph_bench little = {rig.kernels, rig.stream, scratch, bytes - 1};
    assert_int_equal(tsr_graph_measure(seconds, &little, shape, doubt, 1), TSR_EINVAL);
    assert_int_equal(tsr_graph_time_seconds(shape) > 0, count > 1);
    tsr_arena_destroy(arena);
}

static void check_timing(spec s)
{
    for (int i = 0; i < 16; i++)
        check_timing_of(&(tsr_graph_shape){.tokens = s.t,
                                           .in = s.in,
                                           .out = s.out,
                                           .r = s.r,
                                           .dtype = s.dtype,
                                           .backward = i & 4,
                                           .merges = i & 2 && s.dtype == TSR_BF16,
                                           .drops = i & 9,
                                           .composes = i & 8});
}

/* The first stays unless another is clearly faster. */
static void test_fastest(void **state)
{
    (void)state;
    assert_int_equal(tsr_graph_fastest((const double[]){1.00, 0.99, 1.50}, 3), 0);
    assert_int_equal(tsr_graph_fastest((const double[]){1.00, 0.97, 0.96}, 3), 2);
    assert_int_equal(tsr_graph_fastest((const double[]){1.00, 0.90, 0.96}, 3), 1);
    assert_int_equal(tsr_graph_fastest((const double[]){1.00}, 1), 0);
}

/* Of the small test model all linears at a few hundred tokens; of an 8B model none. */
static void test_small(void **state)
{
    (void)state;
    tsr_graph_shape shape = {.r = 8, .dtype = TSR_BF16, .merges = true};
    for (int backward = 0; backward < 2; backward++) {
        shape.backward = backward;
        shape.tokens = 512, shape.in = 256, shape.out = 704;
        assert_true(tsr_graph_is_small(&shape));
        shape.tokens = 8192;
        assert_false(tsr_graph_is_small(&shape));
        shape.tokens = 128, shape.in = 4096, shape.out = 1024;
        assert_false(tsr_graph_is_small(&shape));
    }
}

static void test_timing(void **state)
{
    static const spec specs[] = {{32, 64, 48, 8, TSR_F32, 0}, {200, 128, 64, 64, TSR_F32, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++)
        over_dtypes(check_timing, specs[i]);
}

int main(int argc, char **argv)
{
    if (case_is_skipped(argc, argv))
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_graphs), cmocka_unit_test(test_fp8_norms),
        cmocka_unit_test(test_timing), cmocka_unit_test(test_fastest),
        cmocka_unit_test(test_small),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
