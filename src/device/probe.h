/*
 * device/probe.h: whether this build has code that the current CUDA device can run.
 */
#ifndef TSR_DEVICE_PROBE_H
#define TSR_DEVICE_PROBE_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* cudaSuccess, or why not. arch: what the code was made for, 90 of sm_90 and of what the driver makes of
 * PTX for it; not the card. */
cudaError_t tsr_cuda_probe(int *arch);

#ifdef __cplusplus
}
#endif

#endif
