/* kernels.c: the table of a device; and of a build without CUDA, what it says. */
#include "kernels/kernels.h"

#ifdef TSR_CUDA
#include "kernels/kernels_cuda.h"
#else
const tsr_kernels *tsr_kernels_cuda(void)
{
    return NULL;
}

static tsr_status no_cuda(void)
{
    return tsr_fail(TSR_EUNSUPPORTED, "this build has no CUDA kernels");
}

tsr_status tsr_kernels_cublaslt_version(tsr_library_version *out)
{
    (void)out;
    return no_cuda();
}

tsr_status tsr_kernels_cudnn_version(tsr_library_version *out)
{
    (void)out;
    return no_cuda();
}
#endif

tsr_status tsr_kernels_open(const tsr_kernels **out, tsr_device *device)
{
    if (tsr_device_kind_of(device) == TSR_DEVICE_CPU) {
        *out = tsr_kernels_cpu();
        return TSR_OK;
    }
#ifdef TSR_CUDA
    TSR_TRY(tsr_kernels_open_cuda(device));
    *out = tsr_kernels_cuda();
    return TSR_OK;
#else
    return no_cuda();
#endif
}

tsr_status tsr_kernels_fp8_supported(tsr_device *device)
{
    if (tsr_device_kind_of(device) == TSR_DEVICE_CPU)
        return TSR_OK;
#ifdef TSR_CUDA
    return tsr_fp8_gemm_supported(device);
#else
    return no_cuda();
#endif
}
