/*
 * device/probe.h: whether this build has code that the current CUDA device can run.
 */
#ifndef TSR_DEVICE_PROBE_H
#define TSR_DEVICE_PROBE_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* cudaSuccess, or why not. */
cudaError_t tsr_cuda_probe(void);

#ifdef __cplusplus
}
#endif

#endif
