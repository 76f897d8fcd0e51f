/*
 * kernels/cudnn_library.h: cuDNN's functions, of the library that is loaded, where it is, when the
 * kernels of the first GPU that it is used on are opened.
 */
#ifndef TSR_KERNELS_CUDNN_LIBRARY_H
#define TSR_KERNELS_CUDNN_LIBRARY_H

#include "base/library.h"

#include <cudnn.h>

#define TSR_CUDNN_FUNCTIONS(X)                                                                     \
    X(GetVersion)                                                                                  \
    X(GetErrorString)                                                                              \
    X(GetLastErrorString)                                                                          \
    X(Create)                                                                                      \
    X(Destroy)                                                                                     \
    X(SetStream)                                                                                   \
    X(BackendCreateDescriptor)                                                                     \
    X(BackendDestroyDescriptor)                                                                    \
    X(BackendSetAttribute)                                                                         \
    X(BackendGetAttribute)                                                                         \
    X(BackendFinalize)                                                                             \
    X(BackendExecute)

typedef struct {
#define TSR_CUDNN_FIELD(name) __typeof__(cudnn##name) *name;
    TSR_CUDNN_FUNCTIONS(TSR_CUDNN_FIELD)
#undef TSR_CUDNN_FIELD
} tsr_cudnn_functions;

/* Valid from the first tsr_cudnn_load that succeeds. */
extern tsr_cudnn_functions tsr_cudnn_lib;

/* tsr_library_load. */
tsr_status tsr_cudnn_load(tsr_library_version *found);

#endif
