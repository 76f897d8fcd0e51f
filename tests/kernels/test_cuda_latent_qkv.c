/*
 * test_cuda_latent_qkv.c: q, k and v of latent attention on the GPU against the C reference: DeepSeek-V3's heads and others
 * that do not fit vectors, both ways of pairing, buffers off their alignment, q in place, with and without magnitude and
 * bias.
 */
#include "cuda_case.h"

#define POSITIONS 512

typedef struct {
    int64_t tokens;
    int32_t heads, nope, rope, v;
} shape;

static const shape shapes[] = {{1, 1, 0, 2, 1},         {37, 4, 16, 8, 16},     {5, 3, 7, 6, 5},
                               {130, 16, 128, 64, 128}, {9, 128, 128, 64, 128}, {3, 2, 8, 512, 24},
                               {0, 2, 8, 8, 8}};

typedef struct {
    input cosine, sine, q_z, kv_z, shared, q_g, kv_g, q_bias, kv_bias, dq, dk, dv;
    int64_t q, kv, v, r;
    tsr_latent_shape host, device;
} inputs;

static inputs make(const shape *s, tsr_dtype dtype, bool vectors, bool neighbours)
{
    const tsr_rope_scaling scaling = {.type = TSR_ROPE_DEFAULT, .theta = 10000};
    int64_t rows = s->tokens * s->heads, wide = s->nope + s->rope, both = s->nope + s->v;
    int64_t angles = POSITIONS * (int64_t)(s->rope / 2);
    inputs in = {.q = rows * wide, .kv = rows * both, .v = rows * s->v, .r = s->tokens * s->rope};
    float *cosine = new_floats(angles + shift), *sine = new_floats(angles + shift);
    cosine[0] = sine[0] = 0;
    RUN(tsr_rope_tables(cosine + shift, sine + shift, POSITIONS, s->rope, &scaling,
                        TSR_ROPE_TABLE));
    in.cosine = upload(cosine, angles, TSR_F32);
    in.sine = upload(sine, angles, TSR_F32);
    in.q_z = random_input(in.q, 1, 1, dtype);
    in.kv_z = random_input(in.kv, 2, 1, dtype);
    in.shared = random_input(in.r, 3, 1, dtype);
    in.q_g = vectors ? gain(s->heads * wide, 4) : no_input();
    in.kv_g = vectors ? gain(s->heads * both, 5) : no_input();
    in.q_bias = vectors ? random_input(s->heads * wide, 6, 1, TSR_BF16) : no_input();
    in.kv_bias = vectors ? random_input(s->heads * both, 7, 1, TSR_BF16) : no_input();
    in.dq = random_input(in.q, 8, 1, dtype);
    in.dk = random_input(in.q, 9, 1, dtype);
    in.dv = random_input(in.v, 10, 1, dtype);
    int32_t *positions = (int32_t *)want_of(s->tokens); /* of the same size */
    for (int64_t t = 0; t < s->tokens; t++)
        positions[t] = (int32_t)(t * 97 % POSITIONS);
    in.host = (tsr_latent_shape){.cosine = in.cosine.host,
                                 .sine = in.sine.host,
                                 .positions = positions,
                                 .tokens = s->tokens,
                                 .heads = s->heads,
                                 .nope_dim = s->nope,
                                 .rope_dim = s->rope,
                                 .v_dim = s->v,
                                 .position_count = POSITIONS,
                                 .neighbours = neighbours};
    in.device = in.host;
    in.device.cosine = in.cosine.device, in.device.sine = in.sine.device;
    in.device.positions = cuda_copy(positions, (uint64_t)s->tokens * sizeof *positions);
    in.device.dtype = dtype;
    return in;
}

/* Of fp32 sums; what is only moved has no more than its rounding. */
static void forward(const inputs *in, tsr_dtype dtype, bool alias)
{
    tsr_latent_qkv_args ref = {.q_z = in->q_z.host,
                               .kv_z = in->kv_z.host,
                               .shared = in->shared.host,
                               .q_g = in->q_g.host,
                               .kv_g = in->kv_g.host,
                               .q_bias = on_host(in->q_bias),
                               .kv_bias = on_host(in->kv_bias),
                               .q = want_of(in->q),
                               .k = want_of(in->q),
                               .v = want_of(in->v),
                               .shape = in->host};
    RUN(tsr_latent_qkv_ref(&ref, rig.pool));
    output q = alias ? over(in->q_z, in->q, dtype) : blank(in->q, dtype);
    output k = blank(in->q, dtype), v = blank(in->v, dtype);
    tsr_latent_qkv_args args = {.q_z = in->q_z.device,
                                .kv_z = in->kv_z.device,
                                .shared = in->shared.device,
                                .q_g = in->q_g.device,
                                .kv_g = in->kv_g.device,
                                .q_bias = on_device(in->q_bias, TSR_BF16),
                                .kv_bias = on_device(in->kv_bias, TSR_BF16),
                                .q = q.device,
                                .k = k.device,
                                .v = v.device,
                                .shape = in->device};
    RUN(rig.kernels->latent_qkv(rig.stream, &args));
    expect("q", q, ref.q, tolerance_rope.f32);
    expect("k", k, ref.k, tolerance_rope.f32);
    expect("v", v, ref.v, tolerance_rope.f32);
}

static void backward(const inputs *in, tsr_dtype dtype, bool alias)
{
    tsr_latent_qkv_backward_args ref = {.dq = in->dq.host,
                                        .dk = in->dk.host,
                                        .dv = in->dv.host,
                                        .q_dy = want_of(in->q),
                                        .kv_dy = want_of(in->kv),
                                        .d_shared = want_of(in->r),
                                        .shape = in->host};
    RUN(tsr_latent_qkv_backward_ref(&ref, rig.pool));
    output q = alias ? over(in->dq, in->q, dtype) : blank(in->q, dtype);
    output kv = blank(in->kv, dtype), shared = blank(in->r, dtype);
    tsr_latent_qkv_backward_args args = {.dq = in->dq.device,
                                         .dk = in->dk.device,
                                         .dv = in->dv.device,
                                         .q_dy = q.device,
                                         .kv_dy = kv.device,
                                         .d_shared = shared.device,
                                         .shape = in->device};
    RUN(rig.kernels->latent_qkv_backward(rig.stream, &args));
    expect("dq", q, ref.q_dy, tolerance_rope.f32);
    expect("dkv", kv, ref.kv_dy, 0);
    expect("the shared gradient", shared, ref.d_shared, tolerance_rope.f32);
    /* The same bits once more. */
    uint64_t bytes = (uint64_t)in->r * tsr_dtype_bytes(dtype);
    uint8_t *first = malloc(bytes + 1), *again = malloc(bytes + 1);
    assert_true(first && again);
    cuda_read(first, shared.device, bytes);
    args.dq = in->dq.device, args.q_dy = blank(in->q, dtype).device;
    RUN(rig.kernels->latent_qkv_backward(rig.stream, &args));
    cuda_read(again, shared.device, bytes);
    assert_memory_equal(first, again, bytes);
    free(first), free(again);
}

static void latent_matches(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int k = 0; k < 3; k++)
            for (int variant = 0; variant < 8; variant++) {
                bool alias = variant & 2, neighbours = variant & 1;
                if (!cuda_turn())
                    continue;
                shift = variant / 4;
                inputs in = make(&shapes[i], all_dtypes[k], (variant & 3) != 1, neighbours);
                forward(&in, all_dtypes[k], alias);
                backward(&in, all_dtypes[k], alias);
                end_case();
            }
    shift = 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(latent_matches)};
    return cmocka_run_group_tests(tests, cuda_setup, cuda_teardown);
}
