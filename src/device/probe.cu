/*
 * probe.cu: a kernel that does nothing. All CUDA files of a build are compiled for the same cards, so
 * a card that can load this one can load all.
 */
#include "device/probe.h"

static __global__ void nothing(void)
{
}

cudaError_t tsr_cuda_probe(void)
{
    struct cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes, (const void *)nothing);
}
