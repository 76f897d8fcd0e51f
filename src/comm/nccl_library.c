#include "comm/nccl_library.h"

tsr_nccl_functions tsr_nccl_lib;

#define NAME(name) "nccl" #name,
static const char *const names[] = {TSR_NCCL_FUNCTIONS(NAME)};

static tsr_library_version version(void)
{
    int code = 0;
    tsr_nccl_lib.GetVersion(&code);
    return (tsr_library_version){code / 10000, code / 100 % 100, code % 100};
}

static tsr_library library = {
    .name = "NCCL",
    .soname = TSR_LIBRARY_NAME("libnccl.so.", NCCL_MAJOR),
    .install = TSR_LIBRARY_NAME("package libnccl", NCCL_MAJOR),
    .instead = "use one rank or write backend: cpu",
    .oldest = {2, 18, 1}, /* nonblocking communicators work */
    .built = {NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH},
    .names = names,
    .count = sizeof names / sizeof *names,
    .functions = &tsr_nccl_lib,
    .version = version,
    .lock = PTHREAD_MUTEX_INITIALIZER,
};

tsr_status tsr_nccl_load(tsr_library_version *found)
{
    return tsr_library_load(found, &library);
}
