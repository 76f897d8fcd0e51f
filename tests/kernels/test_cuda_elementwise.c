/*
 * test_cuda_elementwise.c: RMSNorm, the backward of a magnitude, and compose on the GPU against the C references: shapes
 * that fit vectors and that do not, buffers off their alignment, every optional pointer, every alias that the contracts
 * allow.
 */
#include "cuda_case.h"

/* ---- compose ---- */

static void scale_case(int64_t tokens, int64_t d, tsr_dtype dtype, bool vectors, bool alias)
{
    int64_t count = tokens * d;
    input dy = random_input(count, 1, 1, dtype), z = random_input(count, 2, 1, dtype);
    input g = vectors ? gain(d, 3) : no_input(), n = gain(d, 4);
    float *dz = want_of(count), *dm = want_of(d);
    tsr_compose_backward_args ref = {.dy = dy.host,
                                     .inner = z.host,
                                     .g = g.host,
                                     .n = n.host,
                                     .d_lora = dz,
                                     .scale = 1,
                                     .dm = dm,
                                     .tokens = tokens,
                                     .d = d};
    RUN(tsr_compose_backward_ref(&ref, rig.pool));
    for (int outputs = alias ? 3 : 1; outputs <= 3; outputs++) { /* dz, dm, both */
        output scaled = alias ? over(tokens % 2 ? dy : z, count, dtype) : blank(count, dtype);
        output sum = blank(d, TSR_F32);
        tsr_compose_backward_args args = {.dy = dy.device,
                                          .inner = outputs == 1 ? NULL : z.device,
                                          .g = g.device,
                                          .n = n.device,
                                          .d_lora = outputs == 2 ? NULL : scaled.device,
                                          .scale = 1,
                                          .dm = outputs == 1 ? NULL : sum.device,
                                          .tokens = tokens,
                                          .d = d,
                                          .dtype = dtype,
                                          .partials = outputs == 1 ? NULL : new_partials(d)};
        RUN(rig.kernels->compose_backward(rig.stream, &args));
        if (args.d_lora)
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
    tsr_compose_backward_args args = {.dy = dy.device,
                                      .inner = z.device,
                                      .n = n.device,
                                      .scale = 1,
                                      .dm = sum.device,
                                      .tokens = tokens,
                                      .d = d,
                                      .dtype = TSR_BF16,
                                      .partials = new_partials(d)};
    float *first = NULL;
    for (int i = 0; i < 20; i++) {
        RUN(tsr_stream_fill(rig.stream, args.partials, 0xff,
                            (uint64_t)(rig.kernels->partial_rows * d) * sizeof(float)));
        RUN(rig.kernels->compose_backward(rig.stream, &args));
        float *got = cuda_floats(sum.device, d, TSR_F32);
        if (first)
            assert_memory_equal(got, first, (size_t)d * sizeof(float));
        free(first);
        first = got;
    }
    free(first);
    args.partials = NULL;
    assert_int_equal(rig.kernels->compose_backward(rig.stream, &args), TSR_EINVAL);
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

typedef enum { OVER_NONE, OVER_DH, OVER_X } dx_place;

static void norm_backward_case(int64_t tokens, int64_t d, tsr_dtype dtype, bool overwrite,
                               dx_place place)
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
    output out = over(place == OVER_DH ? dh : place == OVER_X ? x : old, count, dtype);
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
                norm_backward_case(tokens, d, all_dtypes[k], true, OVER_NONE);
                norm_backward_case(tokens, d, all_dtypes[k], true, OVER_DH);
                norm_backward_case(tokens, d, all_dtypes[k], true, OVER_X);
                norm_backward_case(tokens, d, all_dtypes[k], false, OVER_NONE);
            }
    shift = 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scale_and_compose_match),
        cmocka_unit_test(sums_are_reproducible),
        cmocka_unit_test(norms_match),
    };
    return cmocka_run_group_tests(tests, cuda_setup, cuda_teardown);
}
