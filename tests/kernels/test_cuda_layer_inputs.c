/*
 * test_cuda_layer_inputs.c: what every layer takes of a token, on the GPU against the C reference: widths that fit
 * vectors and that do not, buffers off their alignment, with and without magnitude and bias.
 */
#include "cuda_case.h"

typedef struct {
    int64_t tokens, layers, width;
} shape;

static tsr_frozen frozen(input in, bool host, tsr_dtype dtype)
{
    return host ? (tsr_frozen){in.host, TSR_F32} : (tsr_frozen){in.device, dtype};
}

static void one_case(const shape *s, tsr_dtype dtype, tsr_dtype rows_dtype, bool vectors)
{
    int64_t columns = s->layers * s->width, count = s->tokens * columns;
    input z = random_input(count, 1, 2, dtype), rows = random_input(count, 2, 1, rows_dtype);
    input dout = random_input(count, 3, 1, dtype), w = random_input(s->width, 4, 1, TSR_BF16);
    input g = vectors ? gain(columns, 5) : no_input();
    input bias = vectors ? random_input(columns, 6, 1, TSR_BF16) : no_input();
    tsr_layer_inputs_args ref = {.z = z.host,
                                 .g = g.host,
                                 .bias = frozen(bias, true, TSR_F32),
                                 .w = frozen(w, true, TSR_F32),
                                 .rows = rows.host,
                                 .out = want_of(count),
                                 .tokens = s->tokens,
                                 .width = s->width,
                                 .layers = (int32_t)s->layers,
                                 .eps = 1e-6f,
                                 .scale = 0.125f,
                                 .row_scale = 3,
                                 .sum_scale = 0.75f};
    RUN(tsr_layer_inputs_ref(&ref, rig.pool));
    output out = blank(count, dtype), dy = blank(count, dtype);
    tsr_layer_inputs_args args = ref;
    args.z = z.device, args.g = g.device, args.rows = rows.device, args.out = out.device;
    args.bias = frozen(bias, false, TSR_BF16), args.w = frozen(w, false, TSR_BF16);
    args.dtype = dtype, args.rows_dtype = rows_dtype;
    RUN(rig.kernels->layer_inputs(rig.stream, &args));
    expect("out", out, ref.out, tolerance_rms_norm.f32);
    tsr_layer_inputs_backward_args back = {.dout = dout.host,
                                           .z = z.host,
                                           .g = g.host,
                                           .bias = ref.bias,
                                           .w = ref.w,
                                           .dy = want_of(count),
                                           .tokens = s->tokens,
                                           .width = s->width,
                                           .layers = (int32_t)s->layers,
                                           .eps = 1e-6f,
                                           .scale = 0.125f,
                                           .sum_scale = 0.75f};
    RUN(tsr_layer_inputs_backward_ref(&back, rig.pool));
    tsr_layer_inputs_backward_args on_device = back;
    on_device.dout = dout.device, on_device.z = z.device, on_device.g = g.device;
    on_device.bias = args.bias, on_device.w = args.w;
    on_device.dy = dy.device, on_device.dtype = dtype;
    RUN(rig.kernels->layer_inputs_backward(rig.stream, &on_device));
    expect("dy", dy, back.dy, 2 * tolerance_rms_norm.f32);
    end_case();
}

static void layer_inputs_match(void **state)
{
    (void)state;
    const shape shapes[] = {{1, 1, 2},      {37, 4, 16}, {5, 3, 7},
                            {300, 30, 256}, {9, 2, 512}, {0, 2, 8}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int k = 0; k < 2; k++)
            for (int variant = 0; variant < 3; variant++) {
                if (!cuda_turn())
                    continue;
                shift = variant == 2;
                one_case(&shapes[i], all_dtypes[k], variant ? TSR_BF16 : all_dtypes[k], variant);
            }
    shift = 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(layer_inputs_match)};
    return cmocka_run_group_tests(tests, cuda_setup, cuda_teardown);
}
