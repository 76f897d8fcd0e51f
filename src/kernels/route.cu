/*
 * route.cu: contracts route.h, route_sort.h, combine.h. Not there yet.
 */
#include "kernels/cuda.cuh"

#define NOT_YET(op)                                                                                \
    extern "C" tsr_status tsr_##op##_cuda(tsr_stream *stream, const tsr_##op##_args *args)         \
    {                                                                                              \
        (void)stream;                                                                              \
        TSR_TRY(tsr_##op##_check(args));                                                           \
        return tsr_fail(TSR_EUNSUPPORTED, #op ": not on a GPU yet");                               \
    }
NOT_YET(route)
NOT_YET(route_sort)
NOT_YET(route_backward)
NOT_YET(route_stats)
NOT_YET(combine)
NOT_YET(combine_backward)
