/*
 * cuBLASLt and cuDNN as this machine has them: test_kernels_cuda_libraries loads them, and 77 says
 * that one is not here. With an argument the loader finds files first that are none (CMakeLists.txt):
 * then a GPU's kernels cannot be opened for want of cuBLASLt, but for want of cuDNN they can.
 */
#include "base/log.h"
#include "kernels/kernels_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what)                                                                                \
    ((what) ? (void)0                                                                              \
            : (fprintf(stderr, "%d: %s: %s\n", __LINE__, #what, tsr_last_error()), exit(1)))

/* A card, in the place of the device's: nothing is asked of it before the libraries are there. */
const tsr_cuda_properties *__wrap_tsr_device_cuda_properties(const tsr_device *device);
const tsr_cuda_properties *__wrap_tsr_device_cuda_properties(const tsr_device *device)
{
    static const tsr_cuda_properties card = {.sm_count = 132, .major = 9};
    (void)device;
    return &card;
}

static void keep(void *user, tsr_log_level level, const char *line)
{
    (void)level;
    snprintf(user, 1024, "%s", line);
}

static int without(void)
{
    char line[1024] = "";
    tsr_library_version v;
    tsr_blas *blas = NULL;
    tsr_sdpa *sdpa = NULL;
    tsr_log_set(keep, line, TSR_LOG_INFO);
    CHECK(tsr_kernels_cublaslt_version(&v) == TSR_EDEVICE);
    CHECK(tsr_blas_open(&blas, NULL) == TSR_EDEVICE && !blas);
    CHECK(strstr(tsr_last_error(), "file too short") &&
          strstr(tsr_last_error(), "libcublasLt.so."));
    CHECK(strstr(tsr_last_error(), "backend: cpu"));
    printf("%s\n", tsr_last_error());
    CHECK(tsr_sdpa_open(&sdpa, NULL) == TSR_OK && !sdpa);
#ifdef TSR_CUDNN
    CHECK(tsr_kernels_cudnn_version(&v) == TSR_EDEVICE);
    CHECK(strstr(line, "the own kernel") && strstr(line, "libcudnn.so."));
    printf("%s\n", line);
#endif
    return 0;
}

int main(int argc, char **argv)
{
    tsr_library_version v;
    (void)argv;
    if (argc > 1)
        return without();
    if (tsr_kernels_cublaslt_version(&v) < 0) {
        printf("%s\n", tsr_last_error());
        return 77;
    }
    printf("cuBLASLt %d.%d.%d\n", v.major, v.minor, v.patch);
    CHECK(v.major >= 12);
#ifdef TSR_CUDNN
    if (tsr_kernels_cudnn_version(&v) < 0) {
        printf("%s\n", tsr_last_error());
        return 77;
    }
    printf("cuDNN %d.%d.%d\n", v.major, v.minor, v.patch);
    CHECK(v.major >= 9);
#endif
    return 0;
}
