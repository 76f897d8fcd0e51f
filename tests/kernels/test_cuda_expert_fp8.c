/*
 * test_cuda_expert_fp8.c: expert_fp8 on a GPU gives the reference's bytes and scales. With the argument "time", how fast it is
 * for a mixture of 128 experts.
 */
#include "kernels/kernels_cuda.h"

#include "cuda_stack.h"
#include "cuda_time.h"

static void expect_bytes(const char *what, const uint8_t *device, const void *want, int64_t count)
{
    uint8_t *got = malloc((size_t)count + GUARD);
    assert_non_null(got);
    cuda_read(got, device, (uint64_t)count + GUARD);
    for (int64_t i = 0; i < count; i++)
        if (got[i] != ((const uint8_t *)want)[i])
            fail_msg("%s: byte %lld of %lld is 0x%02x, want 0x%02x", what, (long long)i,
                     (long long)count, got[i], ((const uint8_t *)want)[i]);
    for (int64_t i = count; i < count + GUARD; i++)
        if (got[i] != 0xff)
            fail_msg("%s: byte %lld behind the output was written", what, (long long)(i - count));
    free(got);
}

/* The same bits, any NaN for a NaN. */
static void expect_scales(const char *what, const float *device, const float *want, int64_t count)
{
    float *got = cuda_floats(device, count, TSR_F32);
    for (int64_t i = 0; i < count; i++)
        if (memcmp(&got[i], &want[i], 4) != 0 && !(isnan(got[i]) && isnan(want[i])))
            fail_msg("%s: scale[%lld] is %a, want %a", what, (long long)i, (double)got[i],
                     (double)want[i]);
    free(got);
    expect_untouched(what, (const uint8_t *)(device + count), GUARD);
}

/* `off`: bytes by which codes and output are off their vectors. */
static void one_way(const stack_data *d, bool transposed, int off)
{
    const stack *s = &d->s;
    int64_t elements = s->count * s->rows * s->columns;
    tsr_expert_fp8_args ref = {
        .weight = d->host, .scale = want_of(s->count), .transposed = transposed};
    tsr_expert_fp8_args args = {.weight = d->device, .transposed = transposed};
    uint64_t bytes = (uint64_t)(s->experts * s->parts * d->granules) * 512;
    uint8_t *codes = cuda_copy(NULL, bytes + (uint64_t)off);
    char what[160];
    snprintf(what, sizeof what,
             "experts [%lld, +%lld) of %lld, %lld part(s), %lld x %lld, %s%s, off by %d",
             (long long)s->first, (long long)s->count, (long long)s->experts, (long long)s->parts,
             (long long)s->rows, (long long)s->columns, s->nested ? "nested" : "fp32 scales",
             transposed ? ", transposed" : "", off);
    RUN(tsr_stream_copy(rig.stream, codes + off, d->device.codes, bytes));
    args.weight.codes = codes + off;
    args.weight.out = new_output(elements, TSR_U8, off);
    args.scale = new_output(s->count, TSR_F32, 0);
    ref.weight.dtype = args.weight.dtype = TSR_F8_E4M3;
    RUN(tsr_expert_fp8_ref(&ref, rig.pool));
    RUN(tsr_expert_fp8_cuda(rig.stream, &args));
    expect_scales(what, args.scale, ref.scale, s->count);
    expect_bytes(what, args.weight.out, ref.weight.out, elements);
}

/* `odd`: among the absmax of fp32 are extremes, which make some experts NaN. */
static void one_stack(const stack *s, bool odd)
{
    if (!cuda_turn())
        return;
    stack_data d = new_stack(s, TSR_F8_E4M3);
    int64_t blocks = s->experts * s->parts * d.granules * 16;
    for (int64_t i = 0; odd && i < EXTREMES; i++)
        d.absmax[(7 * i + 3) * 16 % blocks] = extreme[i];
    if (!s->nested)
        d.device.absmax = cuda_copy(d.absmax, (uint64_t)blocks * 4);
    for (int transposed = 0; transposed < 2; transposed++)
        for (int off = 0; off <= 8; off += 4)
            one_way(&d, transposed, off);
    free(d.codes), free(d.q);
    end_case();
}

static void experts_have_the_references_bytes(void **state)
{
    (void)state;
    static const stack stacks[] = {
        {3, 2, 2 * 96, 256, 0, 3, true},   {4, 2, 2 * 96, 256, 1, 3, true},
        {5, 1, 6, 64, 0, 5, true},         {5, 2, 2 * 16, 64, 1, 3, true},
        {3, 2, 2 * 144, 192, 1, 2, true},  {3, 1, 272, 320, 0, 3, true},
        {4, 1, 128, 128, 3, 1, true},      {4, 2, 2 * 256, 512, 1, 2, true},
        {3, 2, 2 * 15, 128, 0, 3, true},   {5, 2, 2 * 7, 104, 1, 3, true},
        {3, 2, 2 * 16, 100, 0, 3, true},   {3, 2, 2 * 5, 37, 0, 3, true},
        {5, 1, 8, 64, 2, 0, true},         {3, 3, 3 * 48, 64, 0, 3, true},
        {140, 2, 2 * 16, 64, 3, 135, true}};
    for (size_t i = 0; i < sizeof stacks / sizeof *stacks; i++)
        for (int way = 0; way < 3; way++) {
            stack s = stacks[i];
            s.nested = way == 0;
            one_stack(&s, way == 2);
        }
}

/* The second has several blocks of threads for the scale of an expert. */
static void experts_of_a_model(void **state)
{
    (void)state;
    static const stack large[] = {{16, 2, 1536, 2048, 4, 8, true},
                                  {4, 1, 2048, 768, 0, 3, true},
                                  {2, 2, 2 * 1100, 1000, 0, 2, false}};
    for (size_t i = 0; i < sizeof large / sizeof *large; i++)
        one_stack(&large[i], false);
}

static void bad_arguments_are_refused(void **state)
{
    (void)state;
    tsr_expert_fp8_args args = {
        .weight = {.parts = 1, .rows = 16, .columns = 64, .dtype = TSR_F8_E4M3}};
    RUN(tsr_expert_fp8_cuda(rig.stream, &args)); /* none */
    args.weight.count = 1;
    assert_int_equal(tsr_expert_fp8_cuda(rig.stream, &args), TSR_EINVAL);
}

/* ---- time ---- */

#define TIMES 20

static void call(void *context)
{
    RUN(tsr_expert_fp8_cuda(rig.stream, context));
}

static void one_time(const char *name, int64_t experts, int64_t parts, int64_t rows,
                     int64_t columns)
{
    int64_t elements = experts * rows * columns;
    int64_t groups = tsr_expert_groups(rows / parts, columns) * parts * experts;
    tsr_expert_fp8_args args = {.weight = {.out = cuda_copy(NULL, (uint64_t)elements),
                                           .codes = cuda_copy(NULL, (uint64_t)elements / 2),
                                           .absmax = cuda_copy(NULL, (uint64_t)elements / 64),
                                           .nested_absmax = random_array(groups, TSR_F32),
                                           .nested_map = random_array(256, TSR_F32),
                                           .offset = random_array(experts * parts, TSR_F32),
                                           .level = cuda_copy(nf4_level, 64),
                                           .count = experts,
                                           .parts = parts,
                                           .rows = rows,
                                           .columns = columns,
                                           .nested = true,
                                           .dtype = TSR_F8_E4M3},
                                .scale = cuda_copy(NULL, (uint64_t)experts * 4)};
    double bytes = (double)elements * (1 + 0.5 + 2.0 / 64) + (double)(groups * 4);
    for (int transposed = 0; transposed < 2; transposed++) {
        args.transposed = transposed;
        double ms = median_ms(call, &args, TIMES);
        printf("%-30s%-12s %8.3f ms %7.0f GB/s\n", name, transposed ? " transposed" : "", ms,
               1e-6 * bytes / ms);
    }
    cuda_free_all();
}

static void times(void **state)
{
    (void)state;
    one_time("gate_up 128 x 1536 x 2048", 128, 2, 1536, 2048);
    one_time("down 128 x 2048 x 768", 128, 1, 2048, 768);
    one_time("gate_up 16 x 1536 x 2048", 16, 2, 1536, 2048);
    one_time("gate_up 8 x 28672 x 4096", 8, 2, 28672, 4096);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_have_the_references_bytes),
        cmocka_unit_test(experts_of_a_model),
        cmocka_unit_test(bad_arguments_are_refused),
    };
    const struct CMUnitTest timings[] = {cmocka_unit_test(times)};
    if (argc < 2 || strcmp(argv[1], "time") != 0)
        return cmocka_run_group_tests(tests, cuda_setup, cuda_teardown);
    return cmocka_run_group_tests(timings, cuda_setup, cuda_teardown);
}
