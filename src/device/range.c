#include "device/range.h"

#if defined(TSR_CUDA) && __has_include(<nvtx3/nvToolsExt.h>)

#include <nvtx3/nvToolsExt.h>

bool tsr_ranges_built(void)
{
    return true;
}

void tsr_range_begin(const char *name)
{
    nvtxRangePushA(name);
}

void tsr_range_end(void)
{
    nvtxRangePop();
}

#else

bool tsr_ranges_built(void)
{
    return false;
}

void tsr_range_begin(const char *name)
{
    (void)name;
}

void tsr_range_end(void)
{
}

#endif
