#include "kernels/kernels.h"

#define DO_NOTHING(op)                                                                             \
    static tsr_status ignore_##op(tsr_stream *stream, const tsr_##op##_args *args)                 \
    {                                                                                              \
        (void)stream;                                                                              \
        (void)args;                                                                                \
        return TSR_OK;                                                                             \
    }
TSR_KERNEL_OPS(DO_NOTHING)

#define SLOT(op) .op = ignore_##op,
const tsr_kernels tsr_kernels_none = {.name = "none", TSR_KERNEL_OPS(SLOT)};
