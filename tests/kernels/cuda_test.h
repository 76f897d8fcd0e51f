/*
 * tests/kernels/cuda_test.h: the CUDA ops against the C reference.
 *
 * A case makes random host data rounded to the dtype under test, runs tsr_X_ref on it in fp32 and the
 * CUDA op on the same values, and compares with the tolerance of cuda_tolerance.h. Without a GPU the
 * program ends with 77: skipped.
 */
#ifndef TSR_TESTS_KERNELS_CUDA_TEST_H
#define TSR_TESTS_KERNELS_CUDA_TEST_H

#include "kernel_test.h"

#include "cuda_tolerance.h"
#include "kernels/kernels.h"

typedef struct {
    tsr_device *device;
    tsr_stream *stream;
    const tsr_kernels *kernels;
    tsr_pool *pool; /* for the references */
} cuda_rig;

extern cuda_rig rig;

/* cmocka group setup and teardown. */
int cuda_setup(void **state);
int cuda_teardown(void **state);

/* Device memory until cuda_free_all; filled with 0xff, which is NaN, where `host` is NULL. An allocation of
 * its own, unless TESSERA_ONE_ALLOCATION is set. */
void *cuda_copy(const void *host, uint64_t bytes);
void cuda_free_all(void);

/* What has been allocated so far, and the end of what came later. */
typedef struct {
    int count;
    uint64_t used;
} cuda_mark;
cuda_mark cuda_arrays(void);
void cuda_free_since(cuda_mark mark);

/* Rounds `values` to dtype, in place, and copies them to the device as dtype. NULL gives NULL. */
void *cuda_values(float *values, int64_t count, tsr_dtype dtype);

/* The stream is idle; fails the test with the device's error. */
void cuda_wait(void);
void cuda_read(void *host, const void *device, uint64_t bytes);

/* malloc'd floats of a device array of dtype. */
float *cuda_floats(const void *device, int64_t count, tsr_dtype dtype);

/* Every element within `tolerance` of the largest |want| (of `least`, where all are smaller). */
void cuda_expect(const char *what, const void *device, const float *want, int64_t count,
                 tsr_dtype dtype, double tolerance, double least);

/* Whether the next case is this process's: TESSERA_PART=2/5 makes it the third of five that share the
 * cases out in turn. Without it all are. */
bool cuda_turn(void);

#define RUN(call)                                                                                  \
    do {                                                                                           \
        if ((call) != TSR_OK)                                                                      \
            fail_msg("%s: %s", #call, tsr_last_error());                                           \
    } while (0)

/* The bits of a value in dtype. */
static inline uint32_t bits_of(float value, tsr_dtype dtype)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (dtype == TSR_BF16)
        return tsr_f32_to_bf16(value);
    return dtype == TSR_F16 ? tsr_f32_to_f16(value) : bits;
}

/* Every element [rows, columns] of a device array is `want`, rounded to dtype. */
static inline void cuda_expect_bits(const char *what, const void *device, const float *want,
                                    int64_t rows, int64_t columns, tsr_dtype dtype)
{
    float *got = cuda_floats(device, rows * columns, dtype);
    for (int64_t i = 0; i < rows * columns; i++)
        if (bits_of(got[i], dtype) != bits_of(want[i], dtype))
            fail_msg("%s %lldx%lld, %s: [%lld] is %a, want %a", what, (long long)rows,
                     (long long)columns, tsr_dtype_name(dtype), (long long)i, (double)got[i],
                     (double)want[i]);
    free(got);
}

#endif
