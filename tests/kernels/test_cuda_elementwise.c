/*
 * test_cuda_elementwise.c: RMSNorm, rotary embedding, SwiGLU, the backward of a magnitude, and compose
 * on the GPU against the C references: shapes that fit vectors and that do not, buffers off their
 * alignment, every optional pointer, every alias that the contracts allow.
 */
#include "cuda_case.h"

/* Every kind of case: plain, without any vector, and off the alignment. */
typedef void shape_case(int64_t tokens, int64_t columns, tsr_dtype dtype, bool vectors, bool alias);

static void over_shapes(shape_case *run, const int64_t (*shape)[2], int count)
{
    for (int i = 0; i < count; i++)
        for (int k = 0; k < 3; k++)
            for (int variant = 0; variant < 4; variant++) {
                bool large = shape[i][0] * shape[i][1] > 1000000;
                if (large && (k == 2 || variant == 2 || (k == 0 && variant)))
                    continue;
                if (!cuda_turn())
                    continue;
                shift = variant == 3;
                run(shape[i][0], shape[i][1], all_dtypes[k], variant != 1, variant == 2);
                end_case();
            }
    shift = 0;
}

/* ---- swiglu ---- */

typedef struct {
    input z_gate, z_up, dact, g_gate, g_up, bias_gate, bias_up, n_gate, n_up;
} swiglu_inputs;

static swiglu_inputs make_swiglu(int64_t tokens, int64_t f, tsr_dtype dtype, bool vectors)
{
    swiglu_inputs in = {.z_gate = random_input(tokens * f, 1, 6, dtype),
                        .z_up = random_input(tokens * f, 2, 1, dtype),
                        .dact = random_input(tokens * f, 3, 1, dtype),
                        .n_gate = gain(f, 4),
                        .n_up = gain(f, 5)};
    if (vectors) {
        in.g_gate = gain(f, 6);
        in.g_up = gain(f, 7);
        in.bias_gate = random_input(f, 8, 1, TSR_BF16);
        in.bias_up = random_input(f, 9, 1, TSR_F32);
    }
    return in;
}

static tsr_activation activation; /* of the cases */

static void swiglu_case(int64_t tokens, int64_t f, tsr_dtype dtype, bool vectors, bool alias)
{
    int64_t count = tokens * f;
    swiglu_inputs in = make_swiglu(tokens, f, dtype, vectors);
    float *act = want_of(count);
    tsr_swiglu_args ref = {.act = act, .tokens = tokens, .f = f, .activation = activation};
    ref.z_gate = in.z_gate.host, ref.g_gate = in.g_gate.host;
    ref.z_up = in.z_up.host, ref.g_up = in.g_up.host;
    ref.bias_gate = on_host(in.bias_gate), ref.bias_up = on_host(in.bias_up);
    ref.dtype = TSR_F32;
    RUN(tsr_swiglu_ref(&ref, rig.pool));
    output out = alias ? over(tokens % 2 ? in.z_gate : in.z_up, count, dtype) : blank(count, dtype);
    tsr_swiglu_args args = ref;
    args.z_gate = in.z_gate.device, args.g_gate = device_floats(in.g_gate);
    args.z_up = in.z_up.device, args.g_up = device_floats(in.g_up);
    args.bias_gate = on_device(in.bias_gate, TSR_BF16),
    args.bias_up = on_device(in.bias_up, TSR_F32);
    args.act = out.device, args.dtype = dtype;
    RUN(rig.kernels->swiglu(rig.stream, &args));
    expect("act", out, act, tolerance_swiglu.f32);
}

static void swiglu_backward_case(int64_t tokens, int64_t f, tsr_dtype dtype, bool vectors,
                                 bool alias)
{
    int64_t count = tokens * f;
    swiglu_inputs in = make_swiglu(tokens, f, dtype, vectors);
    float *dz_gate = want_of(count), *dz_up = want_of(count), *dm = want_of(2 * f);
    tsr_swiglu_backward_args ref = {.dact = in.dact.host,
                                    .z_gate = in.z_gate.host,
                                    .z_up = in.z_up.host,
                                    .g_gate = in.g_gate.host,
                                    .g_up = in.g_up.host,
                                    .bias_gate = on_host(in.bias_gate),
                                    .bias_up = on_host(in.bias_up),
                                    .dz_gate = dz_gate,
                                    .dz_up = dz_up,
                                    .n_gate = in.n_gate.host,
                                    .n_up = in.n_up.host,
                                    .dm_gate = dm,
                                    .dm_up = dm + f,
                                    .tokens = tokens,
                                    .f = f,
                                    .activation = activation};
    RUN(tsr_swiglu_backward_ref(&ref, rig.pool));
    output gate = alias ? over(in.z_up, count, dtype) : blank(count, dtype);
    output up = alias ? over(tokens % 2 ? in.dact : in.z_gate, count, dtype) : blank(count, dtype);
    output dm_gate = blank(f, TSR_F32), dm_up = blank(f, TSR_F32);
    bool sums = vectors || tokens % 2; /* with neither dm, too, and with one */
    bool both = tokens % 3 != 1;
    tsr_swiglu_backward_args args = {.dact = in.dact.device,
                                     .z_gate = in.z_gate.device,
                                     .z_up = in.z_up.device,
                                     .g_gate = in.g_gate.device,
                                     .g_up = in.g_up.device,
                                     .bias_gate = on_device(in.bias_gate, TSR_BF16),
                                     .bias_up = on_device(in.bias_up, TSR_F32),
                                     .dz_gate = gate.device,
                                     .dz_up = up.device,
                                     .n_gate = in.n_gate.device,
                                     .n_up = in.n_up.device,
                                     .dm_gate = sums && both ? dm_gate.device : NULL,
                                     .dm_up = sums ? dm_up.device : NULL,
                                     .tokens = tokens,
                                     .f = f,
                                     .activation = activation,
                                     .dtype = dtype,
                                     .partials = sums ? new_partials(2 * f) : NULL};
    RUN(rig.kernels->swiglu_backward(rig.stream, &args));
    expect("dz_gate", gate, dz_gate, tolerance_swiglu.f32);
    expect("dz_up", up, dz_up, tolerance_swiglu.f32);
    if (args.dm_gate)
        expect("dm_gate", dm_gate, dm, tolerance_column_sum.f32);
    if (args.dm_up)
        expect("dm_up", dm_up, dm + f, tolerance_column_sum.f32);
}

static const int64_t flat_shapes[][2] = {{1, 1},     {3, 5},     {2, 67},    {21, 16},
                                         {7, 256},   {9, 264},   {130, 520}, {128, 1024},
                                         {1031, 72}, {4100, 24}, {0, 40},    {515, 4096}};
#define FLAT_SHAPES (int)(sizeof flat_shapes / sizeof flat_shapes[0])

static void swiglu_matches(void **state)
{
    (void)state;
    for (activation = TSR_GELU_TANH;; activation--) {
        over_shapes(swiglu_case, flat_shapes, FLAT_SHAPES);
        over_shapes(swiglu_backward_case, flat_shapes, FLAT_SHAPES);
        if (activation == TSR_SILU)
            return;
    }
}

static void swiglu_extremes_stay_finite(void **state)
{
    (void)state;
    const float gates[16] = {-1e4f, -104, -100, -89, -88.5f, -87, -30, -1e-30f,
                             1e4f,  104,  100,  89,  88.5f,  87,  30,  1e-30f};
    float *gate = new_floats(16), *one = new_floats(16), act[16], dz[32];
    for (int i = 0; i < 16; i++) {
        gate[i] = gates[i];
        one[i] = 1;
    }
    input z = upload(gate, 16, TSR_F32), ones = upload(one, 16, TSR_F32);
    tsr_swiglu_args ref = {.z_gate = gate, .z_up = one, .act = act, .tokens = 2, .f = 8};
    RUN(tsr_swiglu_ref(&ref, rig.pool));
    tsr_swiglu_backward_args ref_back = {.dact = one,
                                         .z_gate = gate,
                                         .z_up = one,
                                         .dz_gate = dz,
                                         .dz_up = dz + 16,
                                         .tokens = 2,
                                         .f = 8};
    RUN(tsr_swiglu_backward_ref(&ref_back, rig.pool));
    output out = blank(16, TSR_F32), d_gate = blank(16, TSR_F32), d_up = blank(16, TSR_F32);
    tsr_swiglu_args args = ref;
    args.z_gate = z.device, args.z_up = ones.device, args.act = out.device;
    RUN(rig.kernels->swiglu(rig.stream, &args));
    tsr_swiglu_backward_args back = ref_back;
    back.dact = ones.device, back.z_gate = z.device, back.z_up = ones.device;
    back.dz_gate = d_gate.device, back.dz_up = d_up.device;
    RUN(rig.kernels->swiglu_backward(rig.stream, &back));
    float *got[3] = {cuda_floats(out.device, 16, TSR_F32), cuda_floats(d_gate.device, 16, TSR_F32),
                     cuda_floats(d_up.device, 16, TSR_F32)};
    const float *want[3] = {act, dz, dz + 16};
    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < 16; i++)
            if (!(fabsf(got[k][i] - want[k][i]) <= 2e-6f * fabsf(want[k][i]) + 1e-35f))
                fail_msg("output %d, gate %g: %g, want %g", k, (double)gates[i], (double)got[k][i],
                         (double)want[k][i]);
        free(got[k]);
    }
    end_case();
}

/* ---- scale_backward, compose ---- */

static void scale_case(int64_t tokens, int64_t d, tsr_dtype dtype, bool vectors, bool alias)
{
    int64_t count = tokens * d;
    input dy = random_input(count, 1, 1, dtype), z = random_input(count, 2, 1, dtype);
    input g = vectors ? gain(d, 3) : no_input(), n = gain(d, 4);
    float *dz = want_of(count), *dm = want_of(d);
    tsr_scale_backward_args ref = {.dy = dy.host,
                                   .z = z.host,
                                   .g = g.host,
                                   .n = n.host,
                                   .dz = dz,
                                   .dm = dm,
                                   .tokens = tokens,
                                   .d = d};
    RUN(tsr_scale_backward_ref(&ref, rig.pool));
    for (int outputs = alias ? 3 : 1; outputs <= 3; outputs++) { /* dz, dm, both */
        output scaled = alias ? over(tokens % 2 ? dy : z, count, dtype) : blank(count, dtype);
        output sum = blank(d, TSR_F32);
        tsr_scale_backward_args args = {.dy = dy.device,
                                        .z = outputs == 1 ? NULL : z.device,
                                        .g = g.device,
                                        .n = n.device,
                                        .dz = outputs == 2 ? NULL : scaled.device,
                                        .dm = outputs == 1 ? NULL : sum.device,
                                        .tokens = tokens,
                                        .d = d,
                                        .dtype = dtype,
                                        .partials = outputs == 1 ? NULL : new_partials(d)};
        RUN(rig.kernels->scale_backward(rig.stream, &args));
        if (args.dz)
            expect("dz", scaled, dz, tolerance_elementwise.f32);
        if (args.dm)
            expect("dm", sum, dm, tolerance_column_sum.f32);
    }
}

static void compose_case(int64_t tokens, int64_t d, tsr_dtype dtype, bool vectors, bool alias)
{
    int64_t count = tokens * d;
    bool dropped = vectors || alias;
    input base = random_input(count, 1, 1, dtype), lora = random_input(count, 3, 1, dtype);
    input base_dropped = dropped ? random_input(count, 2, 1, dtype) : no_input();
    input g = gain(d, 4), bias = vectors ? random_input(d, 5, 1, TSR_BF16) : no_input();
    float *y = want_of(count), *inner = want_of(count);
    tsr_compose_args ref = {
        base.host, base_dropped.host, lora.host, g.host, on_host(bias), y, inner, tokens, d, 0.5f,
        TSR_F32};
    RUN(tsr_compose_ref(&ref, rig.pool));
    output out = alias ? over(tokens % 2 ? base : base_dropped, count, dtype) : blank(count, dtype);
    output kept = alias ? over(lora, count, dtype) : blank(count, dtype);
    tsr_compose_args args = {
        base.device, base_dropped.device,          lora.device, g.device, on_device(bias, TSR_BF16),
        out.device,  dropped ? kept.device : NULL, tokens,      d,        0.5f,
        dtype};
    RUN(rig.kernels->compose(rig.stream, &args));
    expect("y", out, y, tolerance_elementwise.f32);
    if (dropped)
        expect("inner", kept, inner, tolerance_elementwise.f32);
}

static void compose_merged_case(int64_t tokens, int64_t d, tsr_dtype dtype, bool vectors,
                                bool alias)
{
    int64_t count = tokens * d;
    input base = random_input(count, 1, 1, dtype), inner = random_input(count, 2, 1, dtype);
    input g = gain(d, 3), bias = vectors ? random_input(d, 4, 1, TSR_BF16) : no_input();
    float *y = want_of(count);
    tsr_compose_merged_args ref = {.base = base.host,
                                   .inner = inner.host,
                                   .g = g.host,
                                   .bias = on_host(bias),
                                   .y = y,
                                   .tokens = tokens,
                                   .d = d};
    RUN(tsr_compose_merged_ref(&ref, rig.pool));
    output out = alias ? over(tokens % 2 ? base : inner, count, dtype) : blank(count, dtype);
    tsr_compose_merged_args args = ref;
    args.base = base.device;
    args.inner = inner.device;
    args.g = g.device;
    args.bias = on_device(bias, TSR_BF16);
    args.y = out.device;
    args.dtype = dtype;
    RUN(rig.kernels->compose_merged(rig.stream, &args));
    expect("y of merged", out, y, tolerance_elementwise.f32);
}

static void compose_backward_case(int64_t tokens, int64_t d, tsr_dtype dtype, bool vectors,
                                  bool alias)
{
    int64_t count = tokens * d;
    input dy = random_input(count, 1, 1, dtype), inner = random_input(count, 2, 1, dtype);
    input g = gain(d, 3), n = gain(d, 4);
    float *d_base = want_of(count), *d_lora = want_of(count), *dm = want_of(d);
    tsr_compose_backward_args ref = {.dy = dy.host,
                                     .inner = inner.host,
                                     .g = g.host,
                                     .n = n.host,
                                     .d_base_dropped = d_base,
                                     .d_lora = d_lora,
                                     .dm = dm,
                                     .tokens = tokens,
                                     .d = d,
                                     .scale = 0.75f};
    RUN(tsr_compose_backward_ref(&ref, rig.pool));
    bool first_over = alias && tokens % 2, second_over = alias && !first_over;
    output base = first_over ? over(inner, count, dtype) : blank(count, dtype);
    output lora = second_over ? over(inner, count, dtype) : blank(count, dtype);
    output sum = blank(d, TSR_F32);
    bool sums = vectors || alias;
    tsr_compose_backward_args args = {.dy = dy.device,
                                      .inner = sums ? inner.device : NULL,
                                      .g = g.device,
                                      .n = n.device,
                                      .d_base_dropped = tokens % 3 == 2 ? NULL : base.device,
                                      .d_lora = tokens % 5 == 1 && sums ? NULL : lora.device,
                                      .dm = sums ? sum.device : NULL,
                                      .tokens = tokens,
                                      .d = d,
                                      .scale = 0.75f,
                                      .dtype = dtype,
                                      .partials = sums ? new_partials(d) : NULL};
    RUN(rig.kernels->compose_backward(rig.stream, &args));
    if (args.d_base_dropped)
        expect("d_base_dropped", base, d_base, tolerance_elementwise.f32);
    if (args.d_lora)
        expect("d_lora", lora, d_lora, tolerance_elementwise.f32);
    if (args.dm)
        expect("dm", sum, dm, tolerance_column_sum.f32);
}

static void scale_and_compose_match(void **state)
{
    (void)state;
    over_shapes(scale_case, flat_shapes, FLAT_SHAPES);
    over_shapes(compose_case, flat_shapes, FLAT_SHAPES);
    over_shapes(compose_merged_case, flat_shapes, FLAT_SHAPES);
    over_shapes(compose_backward_case, flat_shapes, FLAT_SHAPES);
}

/* The same bits again, and no sums without scratch. */
static void sums_are_reproducible(void **state)
{
    (void)state;
    int64_t tokens = 2055, d = 1024;
    input dy = random_input(tokens * d, 1, 1, TSR_BF16), n = gain(d, 3);
    input z = random_input(tokens * d, 2, 1, TSR_BF16);
    output sum = blank(d, TSR_F32);
    tsr_scale_backward_args args = {.dy = dy.device,
                                    .z = z.device,
                                    .n = n.device,
                                    .dm = sum.device,
                                    .tokens = tokens,
                                    .d = d,
                                    .dtype = TSR_BF16,
                                    .partials = new_partials(d)};
    float *first = NULL;
    for (int i = 0; i < 20; i++) {
        RUN(tsr_stream_fill(rig.stream, args.partials, 0xff,
                            (uint64_t)(rig.kernels->partial_rows * d) * sizeof(float)));
        RUN(rig.kernels->scale_backward(rig.stream, &args));
        float *got = cuda_floats(sum.device, d, TSR_F32);
        if (first)
            assert_memory_equal(got, first, (size_t)d * sizeof(float));
        free(first);
        first = got;
    }
    free(first);
    args.partials = NULL;
    assert_int_equal(rig.kernels->scale_backward(rig.stream, &args), TSR_EINVAL);
    end_case();
}

/* ---- RMSNorm ---- */

typedef struct {
    bool z, g, bias, w32; /* what there is; w and bias as F32 */
    float scale;          /* of x; 0: 2 */
    enum { OUT_OTHER, OUT_X, OUT_NONE, H_OVER_Z, H_OVER_X, H_NONE } outputs;
} norm_kind;

/* x + (g z + bias) as the device stores it, once it is near `sum`: what is normalized. */
static float *stored_sum(tsr_rms_norm_args args, const float *sum)
{
    int64_t count = args.tokens * args.d;
    output stored = blank(count, args.dtype);
    args.x_out = stored.device;
    args.h = NULL, args.rstd = NULL, args.w.data = NULL;
    RUN(rig.kernels->rms_norm(rig.stream, &args));
    expect("the sum alone", stored, sum, tolerance_rms_norm.f32);
    return keep(cuda_floats(stored.device, count, args.dtype));
}

static void norm_case(int64_t tokens, int64_t d, tsr_dtype dtype, norm_kind k)
{
    if (!cuda_turn())
        return;
    int64_t count = tokens * d;
    tsr_dtype w_dtype = k.w32 ? TSR_F32 : TSR_BF16;
    float *values = new_random(count + shift, 1, k.scale > 0 ? k.scale : 2);
    if (tokens > 2 && !k.z) /* a row of zeros */
        memset(values + shift + d, 0, (size_t)d * sizeof(float));
    input x = upload(values, count, dtype);
    input z = k.z ? random_input(count, 2, 1, dtype) : no_input();
    input g = k.g ? gain(d, 3) : no_input();
    input bias = k.bias ? random_input(d, 4, 1, w_dtype) : no_input();
    input w = random_input(d, 5, 2, w_dtype);
    float *sum = want_of(count), *h = want_of(count), *rstd = want_of(tokens);
    tsr_rms_norm_args ref = {x.host, z.host, g.host, on_host(bias), on_host(w), 0, sum, h,
                             rstd,   tokens, d,      1e-5f,         TSR_F32};
    RUN(tsr_rms_norm_ref(&ref, rig.pool));
    output x_out = k.outputs == OUT_X ? over(x, count, dtype) : blank(count, dtype);
    output h_out = k.outputs == H_OVER_Z   ? over(z, count, dtype)
                   : k.outputs == H_OVER_X ? over(x, count, dtype)
                                           : blank(count, dtype);
    output rstd_out = blank(tokens, TSR_F32);
    bool normed = k.outputs != H_NONE;
    tsr_rms_norm_args args = {.x = x.device,
                              .z = z.device,
                              .g = g.device,
                              .bias = on_device(bias, w_dtype),
                              .w = {normed ? w.device : NULL, w_dtype},
                              .x_out = k.outputs == OUT_NONE ? NULL : x_out.device,
                              .h = normed ? h_out.device : NULL,
                              .rstd = k.outputs == H_OVER_X ? NULL : rstd_out.device,
                              .tokens = tokens,
                              .d = d,
                              .eps = 1e-5f,
                              .dtype = dtype};
    ref.x = stored_sum(args, sum);
    ref.z = NULL, ref.g = NULL, ref.bias.data = NULL, ref.x_out = NULL;
    RUN(tsr_rms_norm_ref(&ref, rig.pool));
    RUN(rig.kernels->rms_norm(rig.stream, &args));
    if (args.x_out)
        expect("x_out", x_out, sum, tolerance_rms_norm.f32);
    if (normed)
        expect("h", h_out, h, tolerance_rms_norm.f32);
    if (normed && args.rstd)
        expect("rstd", rstd_out, rstd, tolerance_rms_norm.f32);
    if (!normed)
        expect_untouched("rstd", rstd_out.base, (uint64_t)tokens * sizeof(float));
    end_case();
}

static void norm_backward_case(int64_t tokens, int64_t d, tsr_dtype dtype, bool overwrite,
                               bool alias)
{
    if (!cuda_turn())
        return;
    int64_t count = tokens * d;
    input dh = random_input(count, 1, 1, dtype), x = random_input(count, 2, 2, dtype);
    input w = random_input(d, 3, 2, overwrite ? TSR_F32 : TSR_BF16), rstd = gain(tokens, 4);
    input old = random_input(count, 5, 1, dtype);
    float *dx = copy_of(old.host, count);
    tsr_rms_norm_backward_args ref = {dh.host, x.host, rstd.host, on_host(w), dx,
                                      tokens,  d,      overwrite, TSR_F32};
    RUN(tsr_rms_norm_backward_ref(&ref, rig.pool));
    output out = alias ? over(dh, count, dtype) : over(old, count, dtype);
    tsr_rms_norm_backward_args args = {
        dh.device,  x.device, rstd.device, on_device(w, overwrite ? TSR_F32 : TSR_BF16),
        out.device, tokens,   d,           overwrite,
        dtype};
    RUN(rig.kernels->rms_norm_backward(rig.stream, &args));
    expect("dx", out, dx, tolerance_rms_norm.f32);
    end_case();
}

static const int64_t norm_shapes[][2] = {{1, 1},     {3, 5},    {5, 8},    {4, 67},    {7, 256},
                                         {130, 64},  {33, 896}, {9, 5120}, {6, 8192},  {5, 16384},
                                         {3, 16392}, {0, 16},   {2, 4100}, {300, 4096}};
#define NORM_SHAPES (int)(sizeof norm_shapes / sizeof norm_shapes[0])

static void norms_match(void **state)
{
    (void)state;
    static const norm_kind kinds[] = {
        {.outputs = OUT_OTHER},
        {.outputs = H_OVER_X, .w32 = true},
        {.outputs = OUT_NONE},
        {.z = true, .outputs = OUT_X},
        {.z = true, .g = true, .bias = true, .outputs = OUT_X},
        {.z = true, .g = true, .w32 = true, .bias = true, .outputs = H_OVER_Z},
        {.z = true, .bias = true, .outputs = H_OVER_X},
        {.z = true, .g = true, .outputs = OUT_NONE},
        {.z = true, .g = true, .outputs = H_NONE},
        {.z = true, .scale = 1e15f, .outputs = OUT_X},
        {.scale = 1e-15f, .outputs = OUT_OTHER},
    };
    for (int i = 0; i < NORM_SHAPES; i++)
        for (int k = 0; k < 3; k++)
            for (shift = 0; shift < 2; shift++) {
                int64_t tokens = norm_shapes[i][0], d = norm_shapes[i][1];
                for (size_t j = 0; j < sizeof kinds / sizeof kinds[0]; j++)
                    if ((tokens * d < 200000 || j == 4 || j == 1) &&
                        (all_dtypes[k] != TSR_F16 || kinds[j].scale == 0))
                        norm_case(tokens, d, all_dtypes[k], kinds[j]);
                norm_backward_case(tokens, d, all_dtypes[k], true, false);
                norm_backward_case(tokens, d, all_dtypes[k], true, true);
                norm_backward_case(tokens, d, all_dtypes[k], false, false);
            }
    shift = 0;
}

/* ---- rotary embedding ---- */

#define POSITIONS 4096

typedef struct {
    int64_t tokens;
    int32_t q_heads, kv_heads, dim;
    bool norm, vectors, alias;
    bool scaled; /* all parts have a g, and no bias */
    int sums;    /* bits: which parts have a dm */
    tsr_dtype dtype;
} rope_kind;

typedef struct {
    input cosine, sine, z[3], dout[3], g[3], n[3], bias[3], norm[3];
    int32_t *host_positions;
    const int32_t *positions;
    int64_t width[3], columns;
} rope_inputs;

static rope_inputs make_rope(rope_kind k)
{
    rope_inputs in = {.columns = 0};
    int64_t half = k.dim / 2;
    tsr_rope_scaling scaling = {.theta = 10000};
    float *cosine = new_floats(POSITIONS * half + shift);
    float *sine = new_floats(POSITIONS * half + shift);
    cosine[0] = sine[0] = 0;
    RUN(tsr_rope_tables(cosine + shift, sine + shift, POSITIONS, k.dim, &scaling, TSR_ROPE_TABLE));
    in.cosine = upload(cosine, POSITIONS * half, TSR_F32);
    in.sine = upload(sine, POSITIONS * half, TSR_F32);
    in.host_positions = (int32_t *)want_of(k.tokens); /* of the same size */
    for (int64_t t = 0; t < k.tokens; t++)
        in.host_positions[t] = (int32_t)(t * 997 % POSITIONS);
    in.positions = cuda_copy(in.host_positions, (uint64_t)k.tokens * sizeof(int32_t));
    for (int p = 0; p < 3; p++) {
        uint64_t seed = 10 * (uint64_t)p;
        int64_t width = (p == 0 ? k.q_heads : k.kv_heads) * (int64_t)k.dim;
        in.width[p] = width;
        in.columns += width;
        in.z[p] = random_input(k.tokens * width, seed + 1, 1, k.dtype);
        in.dout[p] = random_input(k.tokens * width, seed + 2, 1, k.dtype);
        in.n[p] = gain(width, seed + 3);
        in.g[p] = k.scaled || (k.vectors && p != 1) ? gain(width, seed + 4) : no_input();
        in.bias[p] = k.vectors ? random_input(width, seed + 5, 1, TSR_BF16) : no_input();
        if (k.norm && p < 2)
            in.norm[p] = random_input(k.dim, seed + 6, 2, TSR_BF16);
    }
    return in;
}

static void rope_forward(rope_kind k, const rope_inputs *in)
{
    tsr_rope_qkv_args ref = {.cosine = in->cosine.host,
                             .sine = in->sine.host,
                             .positions = in->host_positions,
                             .tokens = k.tokens,
                             .q_heads = k.q_heads,
                             .kv_heads = k.kv_heads,
                             .head_dim = k.dim,
                             .position_count = POSITIONS,
                             .norm_eps = 1e-6f};
    tsr_rope_qkv_args args = ref;
    output out[3];
    args.cosine = in->cosine.device, args.sine = in->sine.device;
    args.positions = in->positions, args.dtype = k.dtype;
    for (int p = 0; p < 3; p++) {
        int64_t count = k.tokens * in->width[p];
        out[p] = k.alias ? over(in->z[p], count, k.dtype) : blank(count, k.dtype);
        ref.part[p] = (tsr_rope_part){in->z[p].host, want_of(count), in->g[p].host,
                                      on_host(in->bias[p]), on_host(in->norm[p])};
        args.part[p] =
            (tsr_rope_part){in->z[p].device, out[p].device, in->g[p].device,
                            on_device(in->bias[p], TSR_BF16), on_device(in->norm[p], TSR_BF16)};
    }
    RUN(tsr_rope_qkv_ref(&ref, rig.pool));
    RUN(rig.kernels->rope_qkv(rig.stream, &args));
    for (int p = 0; p < 3; p++)
        expect("rotated", out[p], ref.part[p].out, tolerance_rope.f32);
}

static void rope_backward(rope_kind k, const rope_inputs *in)
{
    tsr_rope_qkv_backward_args ref = {.cosine = in->cosine.host,
                                      .sine = in->sine.host,
                                      .positions = in->host_positions,
                                      .tokens = k.tokens,
                                      .q_heads = k.q_heads,
                                      .kv_heads = k.kv_heads,
                                      .head_dim = k.dim,
                                      .position_count = POSITIONS,
                                      .norm_eps = 1e-6f};
    tsr_rope_qkv_backward_args args = ref;
    output dz[3], dm[3];
    args.cosine = in->cosine.device, args.sine = in->sine.device;
    args.positions = in->positions, args.dtype = k.dtype;
    args.partials = k.sums ? new_partials(in->columns) : NULL;
    for (int p = 0; p < 3; p++) {
        int64_t count = k.tokens * in->width[p];
        bool summed = k.sums >> p & 1, with_z = summed || in->norm[p].host;
        dz[p] = !k.alias ? blank(count, k.dtype)
                         : over(p == 1 ? in->z[p] : in->dout[p], count, k.dtype);
        dm[p] = blank(in->width[p], TSR_F32);
        ref.part[p] = (tsr_rope_backward_part){.dout = in->dout[p].host,
                                               .z = in->z[p].host,
                                               .dz = want_of(count),
                                               .g = in->g[p].host,
                                               .n = in->n[p].host,
                                               .dm = want_of(in->width[p]),
                                               .bias = on_host(in->bias[p]),
                                               .norm = on_host(in->norm[p])};
        args.part[p] = (tsr_rope_backward_part){.dout = in->dout[p].device,
                                                .z = with_z ? in->z[p].device : NULL,
                                                .dz = dz[p].device,
                                                .g = in->g[p].device,
                                                .n = in->n[p].device,
                                                .dm = summed ? dm[p].device : NULL,
                                                .bias = on_device(in->bias[p], TSR_BF16),
                                                .norm = on_device(in->norm[p], TSR_BF16)};
    }
    RUN(tsr_rope_qkv_backward_ref(&ref, rig.pool));
    RUN(rig.kernels->rope_qkv_backward(rig.stream, &args));
    for (int p = 0; p < 3; p++) {
        expect("dz", dz[p], ref.part[p].dz, tolerance_rope.f32);
        if (k.sums >> p & 1)
            expect("dm", dm[p], ref.part[p].dm, tolerance_column_sum.f32);
    }
}

static void rope_matches(void **state)
{
    (void)state;
    static const int64_t shape[][4] = {
        {1, 1, 1, 2},   {3, 3, 1, 6},      {5, 2, 1, 20},  {9, 4, 2, 64},     {40, 5, 3, 64},
        {33, 4, 4, 80}, {17, 6, 2, 96},    {0, 2, 1, 64},  {130, 8, 2, 128},  {12, 3, 1, 256},
        {4, 1, 1, 512}, {260, 32, 8, 128}, {7, 2, 1, 100}, {1100, 2, 1, 128}, {33000, 1, 1, 16}};
    for (size_t i = 0; i < sizeof shape / sizeof shape[0]; i++)
        for (int variant = 0; variant < 18; variant++) {
            rope_kind k = {.tokens = shape[i][0],
                           .q_heads = (int32_t)shape[i][1],
                           .kv_heads = (int32_t)shape[i][2],
                           .dim = (int32_t)shape[i][3],
                           .norm = variant % 2,
                           .vectors = variant / 3 % 2,
                           .alias = variant % 5 == 1,
                           .sums = variant % 6 == 4  ? 0
                                   : variant % 9 < 3 ? 7
                                                     : variant % 8,
                           .dtype = all_dtypes[variant / 6]};
            if (k.tokens * (k.q_heads + 2 * k.kv_heads) * k.dim > 500000 && variant % 4)
                continue;
            if (!cuda_turn())
                continue;
            shift = variant % 7 == 3;
            rope_inputs in = make_rope(k);
            rope_forward(k, &in);
            end_case();
            in = make_rope(k);
            rope_backward(k, &in);
            end_case();
        }
    shift = 0;
}

/* What has a kernel of its own: all g or none, all dm or none. Strips that are not full, with heads of two
 * parts; chunks that are not full, and of more than 32 turns. */
static void rope_heads_of_128_match(void **state)
{
    (void)state;
    static const int64_t shape[][3] = {{1, 1, 1},    {7, 3, 1},    {33, 5, 3},   {130, 8, 2},
                                       {260, 32, 8}, {1100, 2, 1}, {17000, 1, 1}};
    for (size_t i = 0; i < sizeof shape / sizeof shape[0]; i++)
        for (int variant = 0; variant < 8; variant++) {
            rope_kind k = {.tokens = shape[i][0],
                           .q_heads = (int32_t)shape[i][1],
                           .kv_heads = (int32_t)shape[i][2],
                           .dim = 128,
                           .scaled = variant % 2,
                           .sums = variant / 2 % 2 ? 7 : 0,
                           .alias = variant / 4,
                           .dtype = TSR_BF16};
            if (!cuda_turn())
                continue;
            rope_inputs in = make_rope(k);
            rope_forward(k, &in);
            end_case();
            in = make_rope(k);
            rope_backward(k, &in);
            end_case();
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(swiglu_matches),
        cmocka_unit_test(swiglu_extremes_stay_finite),
        cmocka_unit_test(scale_and_compose_match),
        cmocka_unit_test(sums_are_reproducible),
        cmocka_unit_test(norms_match),
        cmocka_unit_test(rope_matches),
        cmocka_unit_test(rope_heads_of_128_match),
    };
    return cmocka_run_group_tests(tests, cuda_setup, cuda_teardown);
}
