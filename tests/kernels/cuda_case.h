/*
 * tests/kernels/cuda_case.h: the inputs and outputs of one case of a CUDA op: random data on both
 * sides, also off the alignment, outputs with guards behind them, and their end.
 */
#ifndef TSR_TESTS_KERNELS_CUDA_CASE_H
#define TSR_TESTS_KERNELS_CUDA_CASE_H

#include "cuda_test.h"

#define MAX_HOST 128
#define PAD      16 /* elements behind an output that must stay as they are */

static const tsr_dtype all_dtypes[3] = {TSR_F32, TSR_BF16, TSR_F16};

static float *host_array[MAX_HOST];
static int host_count;
static int64_t shift; /* elements by which every buffer is off its alignment: 0 or 1 */

/* An input, on both sides. */
typedef struct {
    float *host;
    void *device;
} input;

/* An output; NaN before it is written. */
typedef struct {
    uint8_t *base;
    void *device;
    int64_t count;
    tsr_dtype dtype;
} output;

static inline float *keep(float *data)
{
    assert_true(host_count < MAX_HOST);
    return host_array[host_count++] = data;
}

static inline void end_case(void)
{
    while (host_count > 0)
        free(host_array[--host_count]);
    cuda_free_all();
}

static inline input upload(float *values, int64_t count, tsr_dtype dtype)
{
    uint8_t *device = cuda_values(keep(values), count + shift, dtype);
    return (input){values + shift, device + (uint64_t)shift * tsr_dtype_bytes(dtype)};
}

static inline input random_input(int64_t count, uint64_t seed, float scale, tsr_dtype dtype)
{
    return upload(new_random(count + shift, seed, scale), count, dtype);
}

static inline input gain(int64_t count, uint64_t seed)
{
    return upload(new_gain(count + shift, seed), count, TSR_F32);
}

/* The columns from `first` on of an input of wider rows. */
static inline input columns_of(input wide, int64_t first, tsr_dtype dtype)
{
    uint8_t *device = wide.device;
    return (input){wide.host + first, device + (uint64_t)first * tsr_dtype_bytes(dtype)};
}

static inline input no_input(void)
{
    return (input){NULL, NULL};
}

static inline output blank(int64_t count, tsr_dtype dtype)
{
    uint8_t *base = cuda_copy(NULL, (uint64_t)(count + shift + PAD) * tsr_dtype_bytes(dtype));
    return (output){base, base + (uint64_t)shift * tsr_dtype_bytes(dtype), count, dtype};
}

static inline output over(input in, int64_t count, tsr_dtype dtype)
{
    return (output){NULL, in.device, count, dtype};
}

static inline float *want_of(int64_t count)
{
    return keep(new_floats(count));
}

static inline float *copy_of(const float *from, int64_t count)
{
    float *copy = want_of(count);
    memcpy(copy, from, (size_t)count * sizeof(float));
    return copy;
}

static inline void expect_untouched(const char *what, const uint8_t *device, uint64_t bytes)
{
    uint8_t *raw = malloc(bytes + 1);
    assert_non_null(raw);
    cuda_read(raw, device, bytes);
    for (uint64_t i = 0; i < bytes; i++)
        if (raw[i] != 0xff)
            fail_msg("%s: byte %llu beside the output was written", what, (unsigned long long)i);
    free(raw);
}

/* The one rounding of a value of this dtype: relative, and of what is subnormal absolute. */
static inline double rounding_of(double value, tsr_dtype dtype)
{
    return dtype == TSR_BF16  ? ldexp(fabs(value), -8)
           : dtype == TSR_F16 ? fmax(ldexp(fabs(value), -11), ldexp(1, -25))
                              : 0;
}

/* Every element within `tolerance` of the largest |want| (of `least`, where all are smaller) and the
 * rounding of its own; and nothing beside the output was written. */
static inline void expect_least(const char *what, output out, const float *want, double tolerance,
                                double least)
{
    float *got = cuda_floats(out.device, out.count, out.dtype);
    double most = least;
    for (int64_t i = 0; i < out.count; i++)
        most = fmax(most, fabs((double)want[i]));
    for (int64_t i = 0; i < out.count; i++)
        if (!(fabs((double)got[i] - (double)want[i]) <=
              tolerance * most + 1.001 * rounding_of((double)want[i], out.dtype)))
            fail_msg("%s[%lld] of %lld %s = %.9g, want %.9g, largest %.3g", what, (long long)i,
                     (long long)out.count, tsr_dtype_name(out.dtype), (double)got[i],
                     (double)want[i], most);
    free(got);
    if (!out.base)
        return;
    uint64_t bytes = tsr_dtype_bytes(out.dtype);
    expect_untouched(what, out.base, (uint64_t)shift * bytes);
    expect_untouched(what, (uint8_t *)out.device + (uint64_t)out.count * bytes, PAD * bytes);
}

static inline void expect(const char *what, output out, const float *want, double tolerance)
{
    expect_least(what, out, want, tolerance, 1e-30);
}

/* NaN: a row that is read but was not written shows. */
static inline float *new_partials(int64_t columns)
{
    assert_true(rig.kernels->partial_rows > 0);
    return cuda_copy(NULL, (uint64_t)(rig.kernels->partial_rows * columns) * sizeof(float));
}

static inline float *device_floats(input in)
{
    return in.device;
}

static inline tsr_frozen on_host(input in)
{
    return (tsr_frozen){in.host, TSR_F32};
}

static inline tsr_frozen on_device(input in, tsr_dtype dtype)
{
    return (tsr_frozen){in.device, dtype};
}

/* Every kind of case: plain, without any vector, and off the alignment. */
typedef void shape_case(int64_t tokens, int64_t columns, tsr_dtype dtype, bool vectors, bool alias);

static inline void over_shapes(shape_case *run, const int64_t (*shape)[2], int count)
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

static const int64_t flat_shapes[][2] = {{1, 1},     {3, 5},     {2, 67},    {21, 16},
                                         {7, 256},   {9, 264},   {130, 520}, {128, 1024},
                                         {1031, 72}, {4100, 24}, {0, 40},    {515, 4096}};
#define FLAT_SHAPES (int)(sizeof flat_shapes / sizeof flat_shapes[0])

#endif
