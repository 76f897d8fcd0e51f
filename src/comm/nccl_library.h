/*
 * comm/nccl_library.h: NCCL's functions, of the library that is loaded when the first communicator of
 * several GPUs is made.
 */
#ifndef TSR_COMM_NCCL_LIBRARY_H
#define TSR_COMM_NCCL_LIBRARY_H

#include "base/library.h"

#include <nccl.h>

#define TSR_NCCL_FUNCTIONS(X)                                                                      \
    X(GetVersion)                                                                                  \
    X(GetUniqueId)                                                                                 \
    X(GetErrorString)                                                                              \
    X(GetLastError)                                                                                \
    X(CommInitRankConfig)                                                                          \
    X(CommGetAsyncError)                                                                           \
    X(CommFinalize)                                                                                \
    X(CommDestroy)                                                                                 \
    X(CommAbort)                                                                                   \
    X(GroupStart)                                                                                  \
    X(GroupEnd)                                                                                    \
    X(AllGather)                                                                                   \
    X(AllReduce)                                                                                   \
    X(Broadcast)                                                                                   \
    X(Send)                                                                                        \
    X(Recv)

typedef struct {
#define TSR_NCCL_FIELD(name) __typeof__(nccl##name) *name;
    TSR_NCCL_FUNCTIONS(TSR_NCCL_FIELD)
#undef TSR_NCCL_FIELD
} tsr_nccl_functions;

/* Valid from the first tsr_nccl_load that succeeds. */
extern tsr_nccl_functions tsr_nccl_lib;

/* tsr_library_load. */
tsr_status tsr_nccl_load(tsr_library_version *found);

#endif
