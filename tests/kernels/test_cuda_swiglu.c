/*
 * test_cuda_swiglu.c: SwiGLU, GeGLU and gpt-oss's clamped SwiGLU on the GPU against the C reference: shapes that fit vectors and that do not, buffers
 * off their alignment, gate and up as halves of one row and with columns behind them, every optional pointer, every alias
 * that the contract allows.
 */
#include "cuda_case.h"

static tsr_activation activation; /* of the cases */
static int64_t gap;               /* columns behind gate and up in one row; -1: two buffers */

/* What random inputs are multiplied by: so that half of them are clamped. */
static float wide(void)
{
    return activation == TSR_SILU_CLAMPED ? 10 : 1;
}

typedef struct {
    input z_gate, z_up, dact, g_gate, g_up, bias_gate, bias_up, n_gate, n_up;
    input wide, old; /* gate and up in one row; what the gradients are written over there */
    int64_t stride, wide_count;
} swiglu_inputs;

static swiglu_inputs make_swiglu(int64_t tokens, int64_t f, tsr_dtype dtype, bool vectors)
{
    swiglu_inputs in = {
        .dact = random_input(tokens * f, 3, 1, dtype), .n_gate = gain(f, 4), .n_up = gain(f, 5)};
    if (gap < 0) {
        in.z_gate = random_input(tokens * f, 1, 6 * wide(), dtype);
        in.z_up = random_input(tokens * f, 2, 2 * wide() - 1, dtype);
    } else {
        in.stride = 2 * f + gap;
        in.wide_count = tokens * in.stride + PAD;
        in.wide = random_input(in.wide_count, 1, 3 * wide(), dtype);
        in.old = random_input(in.wide_count, 10, 1, dtype);
        in.z_gate = in.wide;
        in.z_up = columns_of(in.wide, f, dtype);
    }
    if (vectors) {
        in.g_gate = gain(f, 6);
        in.g_up = gain(f, 7);
        in.bias_gate = random_input(f, 8, 1, TSR_BF16);
        in.bias_up = random_input(f, 9, 1, TSR_F32);
    }
    return in;
}

static void swiglu_case(int64_t tokens, int64_t f, tsr_dtype dtype, bool vectors, bool alias)
{
    int64_t count = tokens * f;
    swiglu_inputs in = make_swiglu(tokens, f, dtype, vectors);
    float *act = want_of(count);
    tsr_swiglu_args ref = {.z_gate = in.z_gate.host,
                           .z_up = in.z_up.host,
                           .g_gate = in.g_gate.host,
                           .g_up = in.g_up.host,
                           .bias_gate = on_host(in.bias_gate),
                           .bias_up = on_host(in.bias_up),
                           .act = act,
                           .tokens = tokens,
                           .f = f,
                           .stride = in.stride,
                           .activation = activation};
    RUN(tsr_swiglu_ref(&ref, rig.pool));
    output out = alias && gap < 0 ? over(tokens % 2 ? in.z_gate : in.z_up, count, dtype)
                                  : blank(count, dtype);
    tsr_swiglu_args args = ref;
    args.z_gate = in.z_gate.device, args.g_gate = device_floats(in.g_gate);
    args.z_up = in.z_up.device, args.g_up = device_floats(in.g_up);
    args.bias_gate = on_device(in.bias_gate, TSR_BF16);
    args.bias_up = on_device(in.bias_up, TSR_F32);
    args.act = out.device, args.dtype = dtype;
    RUN(rig.kernels->swiglu(rig.stream, &args));
    expect("act", out, act, tolerance_swiglu.f32);
}

/* Where the gradients go, on both sides: two buffers, or over one of wider rows, of which all is compared. */
typedef struct {
    float *want_gate, *want_up, *want_wide;
    output gate, up, wide;
} swiglu_gradients;

static swiglu_gradients make_gradients(const swiglu_inputs *in, int64_t tokens, int64_t f,
                                       tsr_dtype dtype, bool alias)
{
    int64_t count = tokens * f;
    swiglu_gradients out = {.want_wide = NULL};
    if (gap < 0) {
        out.want_gate = want_of(count), out.want_up = want_of(count);
        out.gate = alias ? over(in->z_up, count, dtype) : blank(count, dtype);
        out.up =
            alias ? over(tokens % 2 ? in->dact : in->z_gate, count, dtype) : blank(count, dtype);
        return out;
    }
    input target = alias ? in->wide : in->old;
    int64_t up = alias && tokens % 2 ? 0 : f, gate = f - up; /* each over its own, or the other's */
    out.want_wide = copy_of(target.host, in->wide_count);
    out.want_gate = out.want_wide + gate, out.want_up = out.want_wide + up;
    out.wide = over(target, in->wide_count, dtype);
    out.gate = over(columns_of(target, gate, dtype), 0, dtype);
    out.up = over(columns_of(target, up, dtype), 0, dtype);
    return out;
}

static void expect_gradients(const swiglu_gradients *out)
{
    if (out->want_wide) {
        expect("dz_gate and dz_up", out->wide, out->want_wide, tolerance_swiglu.f32);
        return;
    }
    expect("dz_gate", out->gate, out->want_gate, tolerance_swiglu.f32);
    expect("dz_up", out->up, out->want_up, tolerance_swiglu.f32);
}

static void swiglu_backward_case(int64_t tokens, int64_t f, tsr_dtype dtype, bool vectors,
                                 bool alias)
{
    swiglu_inputs in = make_swiglu(tokens, f, dtype, vectors);
    swiglu_gradients out = make_gradients(&in, tokens, f, dtype, alias);
    float *dm = want_of(2 * f);
    tsr_swiglu_backward_args ref = {.dact = in.dact.host,
                                    .z_gate = in.z_gate.host,
                                    .z_up = in.z_up.host,
                                    .g_gate = in.g_gate.host,
                                    .g_up = in.g_up.host,
                                    .bias_gate = on_host(in.bias_gate),
                                    .bias_up = on_host(in.bias_up),
                                    .dz_gate = out.want_gate,
                                    .dz_up = out.want_up,
                                    .n_gate = in.n_gate.host,
                                    .n_up = in.n_up.host,
                                    .dm_gate = dm,
                                    .dm_up = dm + f,
                                    .tokens = tokens,
                                    .f = f,
                                    .stride = in.stride,
                                    .activation = activation};
    RUN(tsr_swiglu_backward_ref(&ref, rig.pool));
    output dm_gate = blank(f, TSR_F32), dm_up = blank(f, TSR_F32);
    bool sums = vectors || tokens % 2; /* with neither dm, too, and with one */
    bool both = tokens % 3 != 1;
    tsr_swiglu_backward_args args = ref;
    args.dact = in.dact.device, args.z_gate = in.z_gate.device, args.z_up = in.z_up.device;
    args.g_gate = device_floats(in.g_gate), args.g_up = device_floats(in.g_up);
    args.bias_gate = on_device(in.bias_gate, TSR_BF16);
    args.bias_up = on_device(in.bias_up, TSR_F32);
    args.dz_gate = out.gate.device, args.dz_up = out.up.device;
    args.n_gate = in.n_gate.device, args.n_up = in.n_up.device;
    args.dm_gate = sums && both ? dm_gate.device : NULL;
    args.dm_up = sums ? dm_up.device : NULL;
    args.partials = sums ? new_partials(2 * f) : NULL;
    args.dtype = dtype;
    RUN(rig.kernels->swiglu_backward(rig.stream, &args));
    expect_gradients(&out);
    if (args.dm_gate)
        expect("dm_gate", dm_gate, dm, tolerance_column_sum.f32);
    if (args.dm_up)
        expect("dm_up", dm_up, dm + f, tolerance_column_sum.f32);
}

static void swiglu_matches(void **state)
{
    (void)state;
    static const int64_t gaps[] = {-1, 0, 3, 8};
    static const tsr_activation activations[] = {TSR_GELU_TANH, TSR_SILU_CLAMPED, TSR_SILU};
    for (int i = 0; i < 12; i++) {
        activation = activations[i % 3], gap = gaps[i / 3];
        over_shapes(swiglu_case, flat_shapes, FLAT_SHAPES);
        over_shapes(swiglu_backward_case, flat_shapes, FLAT_SHAPES);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(swiglu_matches),
        cmocka_unit_test(swiglu_extremes_stay_finite),
    };
    return cmocka_run_group_tests(tests, cuda_setup, cuda_teardown);
}
