/*
 * device/cuda.h: what CUDA code needs of a device and its streams. Included by CUDA code only.
 */
#ifndef TSR_DEVICE_CUDA_H
#define TSR_DEVICE_CUDA_H

#include "device/device.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Makes the stream's device the calling thread's, so that what is called next may launch on it. */
cudaStream_t tsr_stream_cuda(const tsr_stream *stream);

/* Borrowed. */
typedef struct {
    int index; /* among the cards that the process sees: what cudaSetDevice takes */
    int sm_count;
    int major, minor;                /* compute capability */
    int arch;                        /* that of the code which runs there, times 10 */
    uint64_t l2_bytes, shared_bytes; /* shared: the most that a block may ask for */
    bool early_kernels; /* kernels are of code that waits, and may start early (kernels/cuda.cuh) */
} tsr_cuda_properties;
const tsr_cuda_properties *tsr_device_cuda_properties(const tsr_device *device);

/* TSR_OK; else TSR_ENOMEM (out of device memory) or TSR_EDEVICE with `what` and CUDA's name and text
 * of the error. */
tsr_status tsr_cuda_status(cudaError_t error, const char *what);

/* A function of the driver; NULL: it has none of this name. */
void *tsr_cuda_driver(const char *name);

#ifdef __cplusplus
}
#endif

#endif
