/* kernels.c: the table of a device; and of a build without CUDA, what it says. */
#include "kernels/kernels.h"

#ifdef TSR_CUDA
#include "kernels/kernels_cuda.h"
#else
const tsr_kernels *tsr_kernels_cuda(void)
{
    return NULL;
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
    return tsr_fail(TSR_EUNSUPPORTED, "this build has no CUDA kernels");
#endif
}
