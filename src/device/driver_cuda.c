/*
 * driver_cuda.c: the driver's functions, which nothing here is linked with.
 */
#include "device/cuda.h"

void *tsr_cuda_driver(const char *name)
{
    void *found = NULL;
    enum cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 12050
    cudaError_t error =
        cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result);
#else
    cudaError_t error = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result);
#endif
    cudaGetLastError(); /* what is not there is no error */
    return error == cudaSuccess && result == cudaDriverEntryPointSuccess ? found : NULL;
}
