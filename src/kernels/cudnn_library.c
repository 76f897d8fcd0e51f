#include "kernels/cudnn_library.h"

tsr_cudnn_functions tsr_cudnn_lib;

#define NAME(name) "cudnn" #name,
static const char *const names[] = {TSR_CUDNN_FUNCTIONS(NAME)};

static tsr_library_version version(void)
{
    int code = (int)tsr_cudnn_lib.GetVersion();
    return (tsr_library_version){code / 10000, code / 100 % 100, code % 100};
}

static tsr_library library = {
    .name = "cuDNN",
    .soname = TSR_LIBRARY_NAME("libcudnn.so.", CUDNN_MAJOR),
    .install = TSR_LIBRARY_NAME("cuDNN ", CUDNN_MAJOR),
    .instead = "do without",
    .oldest = {9, 14, 0}, /* older ones were not tried; some give wrong results */
    .built = {CUDNN_MAJOR, CUDNN_MINOR, CUDNN_PATCHLEVEL},
    .names = names,
    .count = sizeof names / sizeof *names,
    .functions = &tsr_cudnn_lib,
    .version = version,
    .lock = PTHREAD_MUTEX_INITIALIZER,
};

tsr_status tsr_cudnn_load(tsr_library_version *found)
{
    return tsr_library_load(found, &library);
}
