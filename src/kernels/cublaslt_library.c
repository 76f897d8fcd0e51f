#include "kernels/cublaslt_library.h"

tsr_cublaslt_functions tsr_cublaslt_lib;

#define NAME(name) "cublasLt" #name,
static const char *const names[] = {TSR_CUBLASLT_FUNCTIONS(NAME)};

static tsr_library_version version(void)
{
    int code = (int)tsr_cublaslt_lib.GetVersion();
    return (tsr_library_version){code / 10000, code / 100 % 100, code % 100};
}

static tsr_library library = {
    .name = "cuBLASLt",
    .soname = TSR_LIBRARY_NAME("libcublasLt.so.", CUBLAS_VER_MAJOR),
    .install = TSR_LIBRARY_NAME("cuBLAS of CUDA ", CUBLAS_VER_MAJOR),
    .instead = "write backend: cpu",
    .oldest = {CUBLAS_VER_MAJOR, CUBLAS_VER_MAJOR == 12 ? 4 : 0, 0}, /* CUDA 12.4 */
    .built = {CUBLAS_VER_MAJOR, CUBLAS_VER_MINOR, CUBLAS_VER_PATCH},
    .names = names,
    .count = sizeof names / sizeof *names,
    .functions = &tsr_cublaslt_lib,
    .version = version,
    .lock = PTHREAD_MUTEX_INITIALIZER,
};

tsr_status tsr_cublaslt_load(tsr_library_version *found)
{
    return tsr_library_load(found, &library);
}
