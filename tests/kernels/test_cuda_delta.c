/*
 * test_cuda_delta.c: linear attention on the GPU against the C reference: the gated delta rule over documents shorter and
 * longer than a chunk, empty ones and padding, heads that fill their tiles and that do not, buffers off their alignment; the
 * convolution, the gated norm, gates, halves of heads. With the argument "time", how fast they are for Qwen 3.5.
 */
#include "cuda_case.h"
#include "cuda_time.h"

static const cuda_tolerance tolerance_delta = {1e-5, 1.5e-2};
static const cuda_tolerance tolerance_delta_backward = {5e-5, 3e-2};

/* ---- the delta rule ---- */

typedef struct {
    int32_t lengths[4], documents, padding, key_heads, group, dk, dv;
    float decay; /* added to dt_bias */
} delta_shape;

typedef struct {
    input mixed, b, a, g_b, g_a, a_log, dt_bias, d_o;
    int32_t cu_seqlens[5];
    int64_t tokens, columns, heads;
    tsr_delta_rule_shape shape;
} delta_case;

static void make_case(delta_case *c, const delta_shape *s, tsr_dtype dtype, bool vectors)
{
    memset(c, 0, sizeof *c);
    c->heads = s->key_heads * s->group;
    for (int32_t i = 0; i < s->documents; i++)
        c->cu_seqlens[i + 1] = c->cu_seqlens[i] + s->lengths[i];
    c->tokens = c->cu_seqlens[s->documents] + s->padding;
    c->shape = (tsr_delta_rule_shape){.cu_seqlens = c->cu_seqlens,
                                      .tokens = c->tokens,
                                      .documents = s->documents,
                                      .key_heads = s->key_heads,
                                      .value_heads = (int32_t)c->heads,
                                      .key_dim = s->dk,
                                      .value_dim = s->dv,
                                      .dtype = TSR_F32};
    c->columns = tsr_delta_rule_columns(&c->shape);
    float *shifts = new_random(c->heads + shift, 7, 1);
    for (int64_t i = 0; i < c->heads + shift; i++)
        shifts[i] += s->decay;
    c->mixed = random_input(c->tokens * c->columns, 1, 1.5f, dtype);
    c->b = random_input(c->tokens * c->heads, 2, 3, dtype);
    c->a = random_input(c->tokens * c->heads, 3, 2, dtype);
    c->g_b = vectors ? gain(c->heads, 4) : no_input();
    c->g_a = vectors ? gain(c->heads, 5) : no_input();
    c->a_log = random_input(c->heads, 6, 1, TSR_BF16);
    c->dt_bias = upload(shifts, c->heads, TSR_F32);
    c->d_o = random_input(c->tokens * c->heads * s->dv, 8, 1, dtype);
}

static tsr_delta_rule_inputs inputs_of(const delta_case *c, bool host)
{
    return (tsr_delta_rule_inputs){
        .mixed = host ? c->mixed.host : c->mixed.device,
        .b = host ? c->b.host : c->b.device,
        .a = host ? c->a.host : c->a.device,
        .g_b = host ? c->g_b.host : c->g_b.device,
        .g_a = host ? c->g_a.host : c->g_a.device,
        .a_log = host ? on_host(c->a_log) : on_device(c->a_log, TSR_BF16),
        .dt_bias = host ? on_host(c->dt_bias) : on_device(c->dt_bias, TSR_F32)};
}

static tsr_delta_rule_bounds bounds_of(const delta_case *c, tsr_dtype dtype, bool train)
{
    return (tsr_delta_rule_bounds){.tokens = c->tokens,
                                   .documents = c->shape.documents,
                                   .longest = c->tokens,
                                   .key_heads = c->shape.key_heads,
                                   .value_heads = c->shape.value_heads,
                                   .key_dim = c->shape.key_dim,
                                   .value_dim = c->shape.value_dim,
                                   .dtype = dtype,
                                   .train = train};
}

static tsr_delta_rule_shape shape_on_host(const delta_case *c)
{
    tsr_delta_rule_shape s = c->shape;
    tsr_delta_rule_bounds bounds = bounds_of(c, TSR_F32, true);
    s.workspace_bytes = tsr_delta_rule_workspace_bytes(&bounds);
    s.workspace = want_of((int64_t)(s.workspace_bytes / sizeof(float)));
    return s;
}

/* With a workspace of just what the run in this direction needs. */
static tsr_delta_rule_shape shape_on_device(const delta_case *c, tsr_dtype dtype, bool train)
{
    tsr_delta_rule_shape s = c->shape;
    tsr_delta_rule_bounds bounds = bounds_of(c, dtype, train);
    s.workspace_bytes = rig.kernels->delta_rule_workspace_bytes(&bounds);
    s.workspace = cuda_copy(NULL, s.workspace_bytes);
    s.cu_seqlens = cuda_copy(c->cu_seqlens, sizeof c->cu_seqlens);
    s.dtype = dtype;
    return s;
}

static void forward_matches(const delta_case *c, tsr_dtype dtype)
{
    int64_t count = c->tokens * c->heads * c->shape.value_dim;
    tsr_delta_rule_args ref = {.in = inputs_of(c, true), .o = want_of(count)};
    output o = blank(count, dtype);
    ref.shape = shape_on_host(c);
    RUN(tsr_delta_rule_ref(&ref, rig.pool));
    const tsr_delta_rule_args args = {
        .in = inputs_of(c, false), .o = o.device, .shape = shape_on_device(c, dtype, false)};
    RUN(rig.kernels->delta_rule(rig.stream, &args));
    expect("o", o, ref.o, dtype == TSR_BF16 ? tolerance_delta.bf16 : tolerance_delta.f32);
}

static void backward_matches(const delta_case *c, tsr_dtype dtype)
{
    int64_t mixed = c->tokens * c->columns, gates = c->tokens * c->heads;
    double tolerance =
        dtype == TSR_BF16 ? tolerance_delta_backward.bf16 : tolerance_delta_backward.f32;
    tsr_delta_rule_backward_args ref = {.in = inputs_of(c, true),
                                        .d_o = c->d_o.host,
                                        .d_mixed = want_of(mixed),
                                        .d_b = want_of(gates),
                                        .d_a = want_of(gates)};
    output d_mixed = blank(mixed, dtype), d_b = blank(gates, dtype), d_a = blank(gates, dtype);
    ref.shape = shape_on_host(c);
    RUN(tsr_delta_rule_backward_ref(&ref, rig.pool));
    const tsr_delta_rule_backward_args args = {.in = inputs_of(c, false),
                                               .d_o = c->d_o.device,
                                               .d_mixed = d_mixed.device,
                                               .d_b = d_b.device,
                                               .d_a = d_a.device,
                                               .shape = shape_on_device(c, dtype, true)};
    RUN(rig.kernels->delta_rule_backward(rig.stream, &args));
    expect("d_mixed", d_mixed, ref.d_mixed, tolerance);
    expect("d_b", d_b, ref.d_b, tolerance);
    expect("d_a", d_a, ref.d_a, tolerance);
    /* The same again: its bits do not depend on what happens to be in the workspace. */
    float *first = cuda_floats(d_mixed.device, mixed, dtype);
    RUN(rig.kernels->delta_rule_backward(rig.stream, &args));
    float *second = cuda_floats(d_mixed.device, mixed, dtype);
    assert_memory_equal(first, second, (size_t)mixed * sizeof *first);
    free(first);
    free(second);
}

static const delta_shape shapes[] = {
    {{5}, 1, 0, 1, 1, 16, 24, 0},           {{5, 0, 64, 3}, 4, 2, 1, 2, 16, 24, 0},
    {{70, 150}, 2, 3, 2, 2, 5, 7, -3},      {{200}, 1, 0, 1, 2, 64, 64, -4},
    {{130}, 1, 0, 1, 1, 128, 128, -4},      {{200, 65, 1}, 3, 70, 2, 3, 128, 128, -2},
    {{300, 41}, 2, 0, 1, 2, 96, 40, 3},     {{33, 700, 64}, 3, 1, 4, 2, 128, 128, -6},
    {{1500, 500}, 2, 0, 2, 2, 128, 128, -5}};

static void delta_rule_matches(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int k = 0; k < 3; k++)
            for (int variant = 0; variant < 2; variant++) {
                delta_case c;
                if (!cuda_turn() || (i + 1 == sizeof shapes / sizeof *shapes && k == 2))
                    continue;
                shift = variant;
                make_case(&c, &shapes[i], all_dtypes[k], variant);
                forward_matches(&c, all_dtypes[k]);
                backward_matches(&c, all_dtypes[k]);
                end_case();
            }
    shift = 0;
}

static void a_small_workspace_is_refused(void **state)
{
    (void)state;
    delta_case c;
    make_case(&c, &shapes[1], TSR_BF16, false);
    output o = blank(c.tokens * c.heads * c.shape.value_dim, TSR_BF16);
    tsr_delta_rule_args args = {
        .in = inputs_of(&c, false), .o = o.device, .shape = shape_on_device(&c, TSR_BF16, false)};
    args.shape.workspace_bytes--;
    assert_int_equal(rig.kernels->delta_rule(rig.stream, &args), TSR_EINVAL);
    end_case();
}

/* ---- the convolution ---- */

static void one_convolution(int64_t tokens, int64_t channels, tsr_dtype dtype, bool vectors,
                            int32_t taps)
{
    int64_t count = tokens * channels;
    int32_t *positions = malloc((size_t)(tokens + 1) * sizeof *positions);
    assert_non_null(positions);
    for (int32_t t = 0; t < tokens; t++) /* documents of 2, 20, then of 100 */
        positions[t] = t < 2 ? t : t < 22 ? t - 2 : (t - 22) % 100;
    input z = random_input(count, 1, 2, dtype), dout = random_input(count, 2, 1, dtype);
    input w = random_input(channels * taps, 3, 1, TSR_BF16);
    input g = vectors ? gain(channels, 4) : no_input();
    tsr_convolution_args ref = {.z = z.host,
                                .g = g.host,
                                .w = on_host(w),
                                .positions = positions,
                                .out = want_of(count),
                                .tokens = tokens,
                                .channels = channels,
                                .taps = taps};
    RUN(tsr_convolution_ref(&ref, rig.pool));
    output out = blank(count, dtype), dy = blank(count, dtype);
    tsr_convolution_args args = ref;
    args.z = z.device, args.g = g.device, args.w = on_device(w, TSR_BF16);
    args.positions = cuda_copy(positions, (uint64_t)(tokens + 1) * sizeof *positions);
    args.out = out.device, args.dtype = dtype;
    RUN(rig.kernels->convolution(rig.stream, &args));
    expect("out", out, ref.out, 3e-6);
    tsr_convolution_backward_args back = {.dout = dout.host,
                                          .z = z.host,
                                          .g = g.host,
                                          .w = ref.w,
                                          .positions = positions,
                                          .dy = want_of(count),
                                          .tokens = tokens,
                                          .channels = channels,
                                          .taps = taps};
    RUN(tsr_convolution_backward_ref(&back, rig.pool));
    tsr_convolution_backward_args on_gpu = back;
    on_gpu.dout = dout.device, on_gpu.z = z.device, on_gpu.g = g.device, on_gpu.w = args.w;
    on_gpu.positions = args.positions, on_gpu.dy = dy.device, on_gpu.dtype = dtype;
    RUN(rig.kernels->convolution_backward(rig.stream, &on_gpu));
    expect("dy", dy, back.dy, 4e-6);
    free(positions);
}

static void convolution_matches(void **state)
{
    (void)state;
    const int64_t cases[][3] = {{1, 3, 4},  {70, 16, 4}, {100, 1030, 3}, {33, 24, 8},
                                {40, 7, 1}, {0, 8, 4},   {1000, 520, 4}, {65, 2056, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int k = 0; k < 3; k++)
            for (int variant = 0; variant < 3; variant++) {
                if (!cuda_turn())
                    continue;
                shift = variant == 2;
                one_convolution(cases[i][0], cases[i][1], all_dtypes[k], variant,
                                (int32_t)cases[i][2]);
                end_case();
            }
    shift = 0;
}

/* ---- the gated norm ---- */

static void one_norm(int64_t tokens, int32_t heads, int32_t width, tsr_dtype dtype, bool vectors,
                     bool alias)
{
    int64_t count = tokens * heads * width;
    input x = random_input(count, 1, 2, dtype), z = random_input(count, 2, 3, dtype);
    input dout = random_input(count, 3, 1, dtype), w = random_input(width, 4, 1, TSR_BF16);
    input g = vectors ? gain((int64_t)heads * width, 5) : no_input();
    tsr_gated_norm_args ref = {.x = x.host,
                               .z = z.host,
                               .g = g.host,
                               .w = on_host(w),
                               .out = want_of(count),
                               .tokens = tokens,
                               .heads = heads,
                               .width = width,
                               .eps = 1e-3f};
    RUN(tsr_gated_norm_ref(&ref, rig.pool));
    output out = blank(count, dtype);
    tsr_gated_norm_args args = ref;
    args.x = x.device, args.z = z.device, args.g = g.device, args.w = on_device(w, TSR_BF16);
    args.out = out.device, args.dtype = dtype;
    RUN(rig.kernels->gated_norm(rig.stream, &args));
    expect("out", out, ref.out, tolerance_rms_norm.f32);
    tsr_gated_norm_backward_args back = {.dout = dout.host,
                                         .x = x.host,
                                         .z = z.host,
                                         .g = g.host,
                                         .w = ref.w,
                                         .dx = want_of(count),
                                         .dy = want_of(count),
                                         .tokens = tokens,
                                         .heads = heads,
                                         .width = width,
                                         .eps = 1e-3f};
    RUN(tsr_gated_norm_backward_ref(&back, rig.pool));
    output dx = alias ? over(dout, count, dtype) : blank(count, dtype);
    output dy = alias ? over(z, count, dtype) : blank(count, dtype);
    tsr_gated_norm_backward_args on_gpu = back;
    on_gpu.dout = dout.device, on_gpu.x = x.device, on_gpu.z = z.device, on_gpu.g = g.device;
    on_gpu.w = args.w, on_gpu.dx = dx.device, on_gpu.dy = dy.device, on_gpu.dtype = dtype;
    RUN(rig.kernels->gated_norm_backward(rig.stream, &on_gpu));
    expect("dx", dx, back.dx, 2 * tolerance_rms_norm.f32);
    expect("dy", dy, back.dy, 2 * tolerance_rms_norm.f32);
}

static void gated_norm_matches(void **state)
{
    (void)state;
    const int32_t cases[][3] = {{1, 1, 3},      {37, 4, 24}, {5, 3, 7},
                                {300, 32, 128}, {9, 2, 512}, {0, 2, 8}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int k = 0; k < 3; k++)
            for (int variant = 0; variant < 4; variant++) {
                if (!cuda_turn())
                    continue;
                shift = variant == 3;
                one_norm(cases[i][0], cases[i][1], cases[i][2], all_dtypes[k], variant,
                         variant == 2);
                end_case();
            }
    shift = 0;
}

/* ---- gates ---- */

static void one_gate(int64_t tokens, int64_t gates, int64_t group, tsr_dtype dtype, bool vectors)
{
    int64_t all = tokens * gates, count = all * group;
    input x = random_input(count, 1, 2, dtype), z = random_input(all, 2, 3, dtype);
    input dout = random_input(count, 3, 1, dtype);
    input g = vectors ? gain(gates, 4) : no_input();
    input bias = vectors ? random_input(gates, 5, 1, TSR_BF16) : no_input();
    tsr_gate_args ref = {.x = x.host,
                         .z = z.host,
                         .g = g.host,
                         .bias = on_host(bias),
                         .out = want_of(count),
                         .tokens = tokens,
                         .gates = gates,
                         .group = group};
    RUN(tsr_gate_ref(&ref, rig.pool));
    output out = blank(count, dtype), dx = blank(count, dtype), dy = blank(all, dtype);
    tsr_gate_args args = ref;
    args.x = x.device, args.z = z.device, args.g = g.device;
    args.bias = on_device(bias, TSR_BF16), args.out = out.device, args.dtype = dtype;
    RUN(rig.kernels->gate(rig.stream, &args));
    expect("out", out, ref.out, tolerance_elementwise.f32);
    tsr_gate_backward_args back = {.dout = dout.host,
                                   .x = x.host,
                                   .z = z.host,
                                   .g = g.host,
                                   .bias = ref.bias,
                                   .dx = want_of(count),
                                   .dy = want_of(all),
                                   .tokens = tokens,
                                   .gates = gates,
                                   .group = group};
    RUN(tsr_gate_backward_ref(&back, rig.pool));
    tsr_gate_backward_args on_gpu = back;
    on_gpu.dout = dout.device, on_gpu.x = x.device, on_gpu.z = z.device, on_gpu.g = g.device;
    on_gpu.bias = args.bias, on_gpu.dx = dx.device, on_gpu.dy = dy.device, on_gpu.dtype = dtype;
    RUN(rig.kernels->gate_backward(rig.stream, &on_gpu));
    expect("dx", dx, back.dx, tolerance_elementwise.f32);
    expect("dy", dy, back.dy, 4 * tolerance_elementwise.f32);
}

static void one_split(int64_t tokens, int64_t heads, int64_t width, tsr_dtype dtype, bool vectors)
{
    int64_t columns = 2 * heads * width, half = tokens * heads * width;
    input z = random_input(tokens * columns, 1, 2, dtype);
    input g = vectors ? gain(columns, 2) : no_input();
    input bias = vectors ? random_input(columns, 3, 1, TSR_BF16) : no_input();
    tsr_split_heads_args ref = {.z = z.host,
                                .g = g.host,
                                .bias = on_host(bias),
                                .first = want_of(half),
                                .second = want_of(half),
                                .tokens = tokens,
                                .heads = heads,
                                .width = width};
    RUN(tsr_split_heads_ref(&ref, rig.pool));
    output first = blank(half, dtype), second = blank(half, dtype);
    output dy = blank(tokens * columns, dtype);
    tsr_split_heads_args args = ref;
    args.z = z.device, args.g = g.device, args.bias = on_device(bias, TSR_BF16);
    args.first = first.device, args.second = second.device, args.dtype = dtype;
    RUN(rig.kernels->split_heads(rig.stream, &args));
    expect("first half", first, ref.first, tolerance_elementwise.f32);
    expect("second half", second, ref.second, tolerance_elementwise.f32);
    if (vectors)
        return;
    RUN(rig.kernels->split_heads_backward(rig.stream,
                                          &(tsr_split_heads_backward_args){.first = first.device,
                                                                           .second = second.device,
                                                                           .dy = dy.device,
                                                                           .tokens = tokens,
                                                                           .heads = heads,
                                                                           .width = width,
                                                                           .dtype = dtype}));
    expect("both halves", dy, z.host, 0);
}

static void gates_match(void **state)
{
    (void)state;
    const int64_t cases[][3] = {{1, 1, 1},      {7, 16, 1}, {5, 3, 1},      {30, 2, 264}, {9, 5, 7},
                                {1000, 512, 1}, {0, 3, 1},  {300, 1, 2048}, {11, 24, 8}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int k = 0; k < 3; k++)
            for (int variant = 0; variant < 3; variant++) {
                if (!cuda_turn())
                    continue;
                shift = variant == 2;
                one_gate(cases[i][0], cases[i][1], cases[i][2], all_dtypes[k], variant);
                one_split(cases[i][0], cases[i][1], cases[i][2], all_dtypes[k], variant);
                end_case();
            }
    shift = 0;
}

/* ---- time ---- */

enum { TOKENS = 8192, DOCUMENTS = 4, KEY_HEADS = 16, DIM = 128 };

typedef struct {
    tsr_delta_rule_args forward;
    tsr_delta_rule_backward_args backward;
    tsr_convolution_args convolution;
    tsr_convolution_backward_args convolution_backward;
    tsr_gated_norm_args norm;
    tsr_gated_norm_backward_args norm_backward;
} timed_layer;

static void run_forward(void *context)
{
    RUN(rig.kernels->delta_rule(rig.stream, &((timed_layer *)context)->forward));
}

static void run_backward(void *context)
{
    RUN(rig.kernels->delta_rule_backward(rig.stream, &((timed_layer *)context)->backward));
}

static void run_convolution(void *context)
{
    RUN(rig.kernels->convolution(rig.stream, &((timed_layer *)context)->convolution));
}

static void run_convolution_backward(void *context)
{
    RUN(rig.kernels->convolution_backward(rig.stream,
                                          &((timed_layer *)context)->convolution_backward));
}

static void run_norm(void *context)
{
    RUN(rig.kernels->gated_norm(rig.stream, &((timed_layer *)context)->norm));
}

static void run_norm_backward(void *context)
{
    RUN(rig.kernels->gated_norm_backward(rig.stream, &((timed_layer *)context)->norm_backward));
}

static void print_bytes(const char *what, double ms, double elements)
{
    printf("  %-22s %7.3f ms, %5.0f GB/s\n", what, ms, elements * 2 * 1e-6 / ms);
}

static void time_layer(int32_t documents, int32_t value_heads)
{
    const tsr_dtype dtype = TSR_BF16;
    int32_t cu_seqlens[TOKENS + 1] = {0}, positions[TOKENS];
    int64_t columns = 2 * KEY_HEADS * DIM + value_heads * DIM, values = TOKENS * value_heads * DIM;
    timed_layer l = {0};
    for (int32_t t = 0; t < TOKENS; t++)
        positions[t] = t % (TOKENS / documents);
    for (int32_t i = 0; i <= documents; i++)
        cu_seqlens[i] = i * (TOKENS / documents);
    tsr_delta_rule_bounds bounds = {TOKENS, documents, TOKENS, KEY_HEADS, value_heads,
                                    DIM,    DIM,       dtype,  true};
    tsr_delta_rule_shape shape = {
        .cu_seqlens = cuda_copy(cu_seqlens, (uint64_t)(documents + 1) * 4),
        .workspace_bytes = rig.kernels->delta_rule_workspace_bytes(&bounds),
        .tokens = TOKENS,
        .documents = documents,
        .key_heads = KEY_HEADS,
        .value_heads = value_heads,
        .key_dim = DIM,
        .value_dim = DIM,
        .dtype = dtype};
    shape.workspace = cuda_copy(NULL, shape.workspace_bytes);
    tsr_delta_rule_inputs in = {.mixed = random_array(TOKENS * columns, dtype),
                                .b = random_array(TOKENS * value_heads, dtype),
                                .a = random_array(TOKENS * value_heads, dtype),
                                .a_log = {random_array(value_heads, TSR_F32), TSR_F32},
                                .dt_bias = {random_array(value_heads, TSR_F32), TSR_F32}};
    void *d_o = random_array(values, dtype), *z = random_array(values, dtype);
    void *o = cuda_copy(NULL, (uint64_t)values * 2), *y = cuda_copy(NULL, (uint64_t)values * 2);
    void *d_mixed = cuda_copy(NULL, (uint64_t)(TOKENS * columns) * 2);
    l.forward = (tsr_delta_rule_args){in, o, shape};
    l.backward =
        (tsr_delta_rule_backward_args){in,
                                       d_o,
                                       d_mixed,
                                       cuda_copy(NULL, (uint64_t)(TOKENS * value_heads) * 2),
                                       cuda_copy(NULL, (uint64_t)(TOKENS * value_heads) * 2),
                                       shape};
    tsr_frozen w = {random_array(columns * 4, TSR_BF16), TSR_BF16};
    int32_t *at = cuda_copy(positions, sizeof positions);
    l.convolution =
        (tsr_convolution_args){in.mixed, NULL, w, at, d_mixed, TOKENS, columns, 4, dtype};
    l.convolution_backward = (tsr_convolution_backward_args){
        d_mixed, in.mixed, NULL, w,    at, random_array(TOKENS * columns, dtype),
        TOKENS,  columns,  4,    dtype};
    w.data = random_array(DIM, TSR_BF16);
    l.norm = (tsr_gated_norm_args){o, z, NULL, w, y, TOKENS, value_heads, DIM, 1e-6f, dtype};
    l.norm_backward = (tsr_gated_norm_backward_args){d_o, o,      z,           NULL, w,     y,
                                                     z,   TOKENS, value_heads, DIM,  1e-6f, dtype};
    double flops = (double)TOKENS * value_heads * (6.0 * DIM * DIM + 64.0 * 4 * DIM);
    printf("%d tokens in %d documents, %d key and %d value heads of %d, workspace %.0f MiB\n",
           TOKENS, documents, KEY_HEADS, value_heads, DIM, (double)shape.workspace_bytes / MIB);
    double forward = median_ms(run_forward, &l, 7), backward = median_ms(run_backward, &l, 7);
    printf("  %-22s %7.3f ms, %5.0f TFLOP/s\n", "delta rule", forward, flops * 1e-9 / forward);
    printf("  %-22s %7.3f ms, %5.0f TFLOP/s\n", "its backward", backward,
           3 * flops * 1e-9 / backward);
    print_bytes("convolution", median_ms(run_convolution, &l, 7), 2.0 * TOKENS * (double)columns);
    print_bytes("its backward", median_ms(run_convolution_backward, &l, 7),
                3.0 * TOKENS * (double)columns);
    print_bytes("gated norm", median_ms(run_norm, &l, 7), 3.0 * (double)values);
    print_bytes("its backward", median_ms(run_norm_backward, &l, 7), 5.0 * (double)values);
    cuda_free_all();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(delta_rule_matches), cmocka_unit_test(a_small_workspace_is_refused),
        cmocka_unit_test(convolution_matches), cmocka_unit_test(gated_norm_matches),
        cmocka_unit_test(gates_match)};
    if (argc < 2 || strcmp(argv[1], "time") != 0)
        return cmocka_run_group_tests(tests, cuda_setup, cuda_teardown);
    cuda_setup(NULL);
    printf("%s\n", tsr_device_description(rig.device));
    time_layer(4, 32);
    time_layer(1, 32);
    time_layer(64, 32);
    time_layer(4, 48);
    return cuda_teardown(NULL);
}
