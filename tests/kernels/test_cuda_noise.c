/*
 * test_cuda_noise.c: NEFTune's noise on a GPU against the C reference, bit for bit, rounded once to the dtype.
 */
#include "cuda_test.h"

#include "kernels/kernels_cuda.h"
#include "kernels/noise.h"

static void one_noise(int64_t tokens, int64_t columns, tsr_dtype dtype)
{
    if (!cuda_turn())
        return;
    int64_t count = tokens * columns;
    float *x = new_random(count, 1, 3);
    int64_t *samples = malloc((size_t)tokens * 8);
    int32_t *positions = malloc((size_t)tokens * 4);
    assert_true(samples && positions);
    for (int64_t t = 0; t < tokens; t++) {
        samples[t] = (int64_t)(tsr_mix((uint64_t)t) >> 2);
        positions[t] = (int32_t)(t * 7);
    }
    void *device_x = cuda_values(x, count, dtype); /* x is rounded to dtype */
    tsr_noise_args args = {.x = x,
                           .samples = samples,
                           .positions = positions,
                           .key = tsr_noise_key(3, 1),
                           .size = 0.37f,
                           .tokens = tokens,
                           .columns = columns};
    RUN(tsr_noise_ref(&args, rig.pool));
    args.x = device_x;
    args.samples = cuda_copy(samples, (uint64_t)tokens * 8);
    args.positions = cuda_copy(positions, (uint64_t)tokens * 4);
    args.dtype = dtype;
    RUN(rig.kernels->noise(rig.stream, &args));
    float *got = cuda_floats(device_x, count, dtype);
    for (int64_t i = 0; i < count; i++)
        if (bits_of(got[i], dtype) != bits_of(x[i], dtype))
            fail_msg("noise on %lld x %lld, %s: [%lld] is %a, want %a", (long long)tokens,
                     (long long)columns, tsr_dtype_name(dtype), (long long)i, (double)got[i],
                     (double)x[i]);
    free(x), free(got), free(samples), free(positions);
    cuda_free_all();
}

static void noise_gives_the_references_bits(void **state)
{
    (void)state;
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16};
    static const int64_t shapes[][2] = {{1, 1}, {3, 7}, {37, 611}, {129, 4096}, {1, 100003}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t j = 0; j < 3; j++)
            one_noise(shapes[i][0], shapes[i][1], dtypes[j]);
}

static void nothing_is_nothing(void **state)
{
    (void)state;
    RUN(rig.kernels->noise(rig.stream, &(tsr_noise_args){.columns = 8, .dtype = TSR_BF16}));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(noise_gives_the_references_bits),
        cmocka_unit_test(nothing_is_nothing),
    };
    return cmocka_run_group_tests(tests, cuda_setup, cuda_teardown);
}
