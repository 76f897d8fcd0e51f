/*
 * tests/kernels/cuda_time.h: how long a CUDA op takes, for the mode "time" of the tests.
 */
#ifndef TSR_TESTS_KERNELS_CUDA_TIME_H
#define TSR_TESTS_KERNELS_CUDA_TIME_H

#include "cuda_test.h"

#include "kernels/kernels_cuda.h"

#define MIB (1024.0 * 1024.0)

#define MOST_TIMES 64

typedef void timed(void *context);

static inline int compare_times(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Median milliseconds of a call. */
static inline double median_ms(timed *run, void *context, int times)
{
    cudaEvent_t event[MOST_TIMES + 1];
    float ms[MOST_TIMES];
    for (int i = 0; i <= times; i++)
        RUN(tsr_cuda_status(cudaEventCreate(&event[i]), "event"));
    run(context);
    run(context);
    for (int i = 0; i <= times; i++) {
        if (i)
            run(context);
        RUN(tsr_cuda_status(cudaEventRecord(event[i], tsr_stream_cuda(rig.stream)), "event"));
    }
    cuda_wait();
    for (int i = 0; i < times; i++)
        RUN(tsr_cuda_status(cudaEventElapsedTime(&ms[i], event[i], event[i + 1]), "event"));
    for (int i = 0; i <= times; i++)
        cudaEventDestroy(event[i]);
    qsort(ms, (size_t)times, sizeof *ms, compare_times);
    return (double)ms[times / 2];
}

/* Of the device, until cuda_free_all. */
static inline void *random_array(int64_t count, tsr_dtype dtype)
{
    void *out = cuda_copy(NULL, (uint64_t)count * tsr_dtype_bytes(dtype));
    RUN(tsr_gemm_randomize(rig.stream, out, count, dtype, (uint32_t)count));
    return out;
}

#endif
