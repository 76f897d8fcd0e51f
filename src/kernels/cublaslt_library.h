/*
 * kernels/cublaslt_library.h: cuBLASLt's functions, of the library that is loaded when the kernels of
 * the first GPU are opened. Those that end in _internal are behind the header's inline functions.
 */
#ifndef TSR_KERNELS_CUBLASLT_LIBRARY_H
#define TSR_KERNELS_CUBLASLT_LIBRARY_H

#include "base/library.h"

#include <cublasLt.h>

#define TSR_CUBLASLT_FUNCTIONS(X)                                                                  \
    X(GetVersion)                                                                                  \
    X(GetStatusName)                                                                               \
    X(GetStatusString)                                                                             \
    X(Create)                                                                                      \
    X(Destroy)                                                                                     \
    X(Matmul)                                                                                      \
    X(MatmulAlgoCapGetAttribute)                                                                   \
    X(MatmulAlgoCheck)                                                                             \
    X(MatmulAlgoConfigGetAttribute)                                                                \
    X(MatmulAlgoGetHeuristic)                                                                      \
    X(MatmulDescInit_internal)                                                                     \
    X(MatmulDescSetAttribute)                                                                      \
    X(MatmulPreferenceInit_internal)                                                               \
    X(MatmulPreferenceSetAttribute)                                                                \
    X(MatrixLayoutInit_internal)

typedef struct {
#define TSR_CUBLASLT_FIELD(name) __typeof__(cublasLt##name) *name;
    TSR_CUBLASLT_FUNCTIONS(TSR_CUBLASLT_FIELD)
#undef TSR_CUBLASLT_FIELD
} tsr_cublaslt_functions;

/* Valid from the first tsr_cublaslt_load that succeeds. */
extern tsr_cublaslt_functions tsr_cublaslt_lib;

/* tsr_library_load. */
tsr_status tsr_cublaslt_load(tsr_library_version *found);

#endif
