/*
 * probe.cu: a kernel that does nothing. All CUDA files of a build are compiled for the same cards, so
 * a card that can load this one can load all, and takes the same kind of code of each.
 */
#include "device/probe.h"

static __global__ void nothing(void)
{
}

cudaError_t tsr_cuda_probe(int *arch)
{
    struct cudaFuncAttributes attributes;
    cudaError_t error = cudaFuncGetAttributes(&attributes, (const void *)nothing);
    *arch = error == cudaSuccess ? attributes.ptxVersion : 0;
    return error;
}
