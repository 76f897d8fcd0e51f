/*
 * roofs.c: what this GPU sustains (kernels/roofs.h), for the figures of the same run to be held against.
 *
 *     bench_roofs [--seconds S] [--tokens T] [--device N] [--all] > roofs.json
 *
 * bf16 and fp8 matmuls on random data at the shapes of an 8B layer and as a cube of 8192, each for S seconds
 * (2) after a warm-up; copies of 1 GiB by an op and by the copy engine (bytes read + written), pinned
 * host memory to and from the device, one direction at a time.
 *
 * gemm_tflop_s, fp8_gemm_tflop_s, copy_gb_s: the largest of each kind; the roofs of the floor (bench_model). --all: the small shapes too.
 */
#include "kernels/roofs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OPERANDS ((uint64_t)2 << 30) /* a copy of half of it is far larger than L2 */
#define COPY_S   0.5

typedef struct {
    const char *name;
    tsr_roofs_matmul_shape shape;
} named_shape;

/* Large ones first: one of them has the largest rate. */
#define LARGE_SHAPES 4
#define SHAPES       8

static _Noreturn void die(void)
{
    fprintf(stderr, "bench_roofs: %s\n", tsr_last_error());
    exit(71);
}

static void measure_matmuls(tsr_roofs *roofs, int64_t tokens, double seconds, bool all)
{
    const named_shape shapes[SHAPES] = {{"gate, up", {tokens, 14336, 4096, true, TSR_BF16}},
                                        {"down", {tokens, 4096, 14336, true, TSR_BF16}},
                                        {"dX of gate, up", {tokens, 4096, 14336, false, TSR_BF16}},
                                        {"cube", {8192, 8192, 8192, true, TSR_BF16}},
                                        {"q, o", {tokens, 4096, 4096, true, TSR_BF16}},
                                        {"k, v", {tokens, 1024, 4096, true, TSR_BF16}},
                                        {"dX of down", {tokens, 14336, 4096, false, TSR_BF16}},
                                        {"dX of q, o", {tokens, 4096, 4096, false, TSR_BF16}}};
    double most = 0;
    printf("\"gemm\":[");
    for (int i = 0; i < (all ? SHAPES : LARGE_SHAPES); i++) {
        const tsr_roofs_matmul_shape *s = &shapes[i].shape;
        double flops = 2.0 * (double)s->m * (double)s->n * (double)s->k;
        tsr_roof roof;
        if (tsr_roofs_matmul(&roof, roofs, s, seconds) < 0)
            die();
        printf("%s{\"name\":\"%s\",\"m\":%lld,\"n\":%lld,\"k\":%lld,\"ms\":%.4f,\"ms_min\":%.4f,"
               "\"tflop_s\":%.1f}",
               i ? "," : "", shapes[i].name, (long long)s->m, (long long)s->n, (long long)s->k,
               1e3 * flops / roof.rate, 1e3 * flops / roof.best, 1e-12 * roof.rate);
        fprintf(stderr, "gemm %-16s %6.1f TFLOP/s\n", shapes[i].name, 1e-12 * roof.rate);
        most = roof.rate > most ? roof.rate : most;
    }
    printf("],\"gemm_tflop_s\":%.1f,\n", 1e-12 * most);
}

/* The same of the base's matmuls in e4m3, as they are run: a row of w for each output, forward and
 * backward. Nothing where the card or the library has none. */
static void measure_fp8(tsr_roofs *roofs, int64_t tokens, double seconds)
{
    const named_shape shapes[] = {{"gate, up", {tokens, 14336, 4096, true, TSR_F8_E4M3}},
                                  {"down", {tokens, 4096, 14336, true, TSR_F8_E4M3}},
                                  {"cube", {8192, 8192, 8192, true, TSR_F8_E4M3}},
                                  {"q, o", {tokens, 4096, 4096, true, TSR_F8_E4M3}}};
    double most = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        tsr_roof roof;
        tsr_status status = tsr_roofs_matmul(&roof, roofs, &shapes[i].shape, seconds);
        if (status == TSR_EUNSUPPORTED) {
            fprintf(stderr, "fp8 gemm: %s\n", tsr_last_error());
            return;
        }
        if (status < 0)
            die();
        fprintf(stderr, "fp8 gemm %-12s %6.1f TFLOP/s\n", shapes[i].name, 1e-12 * roof.rate);
        most = roof.rate > most ? roof.rate : most;
    }
    printf("\"fp8_gemm_tflop_s\":%.1f,\n", 1e-12 * most);
}

static void measure_copies(tsr_roofs *roofs)
{
    static const tsr_roof_copy kinds[4] = {TSR_ROOF_COPY_OP, TSR_ROOF_COPY_STREAM,
                                           TSR_ROOF_HOST_TO_DEVICE, TSR_ROOF_DEVICE_TO_HOST};
    double rate[4];
    for (int i = 0; i < 4; i++) {
        tsr_roof roof;
        if (tsr_roofs_copy(&roof, roofs, kinds[i], COPY_S) < 0)
            die();
        rate[i] = 1e-9 * roof.rate;
    }
    printf("\"copy_kernel_gb_s\":%.0f,\"copy_engine_gb_s\":%.0f,\"copy_gb_s\":%.0f,"
           "\"h2d_gb_s\":%.1f,\"d2h_gb_s\":%.1f",
           rate[0], rate[1], rate[0] > rate[1] ? rate[0] : rate[1], rate[2], rate[3]);
    fprintf(stderr, "copy kernel %.0f, engine %.0f GB/s; pinned H2D %.1f, D2H %.1f GB/s\n", rate[0],
            rate[1], rate[2], rate[3]);
}

int main(int count, char **arguments)
{
    double seconds = 2;
    int64_t tokens = 8192;
    int number = 0, devices = 0;
    bool all = false;
    for (int i = 1; i < count; i++) {
        const char *value = i + 1 < count ? arguments[i + 1] : "";
        if (!strcmp(arguments[i], "--all"))
            all = true;
        else if (!strcmp(arguments[i], "--seconds") && (seconds = atof(value)) > 0)
            i++;
        else if (!strcmp(arguments[i], "--tokens") && (tokens = atoll(value)) > 0)
            i++;
        else if (!strcmp(arguments[i], "--device") && *value)
            number = atoi(arguments[++i]);
        else {
            fprintf(stderr, "usage: bench_roofs [--seconds S] [--tokens T] [--device N] [--all]\n");
            return 64;
        }
    }
    if (tsr_device_cuda_count(&devices) < 0 || number >= devices) {
        fprintf(stderr, "bench_roofs: no such GPU\n");
        return 77;
    }
    const tsr_device_options options = {.local_rank = number, .local_rank_count = devices};
    const tsr_kernels *kernels;
    tsr_device *device;
    tsr_roofs *roofs;
    if (tsr_device_create_cuda(&device, &options) < 0 || tsr_kernels_open(&kernels, device) < 0 ||
        tsr_roofs_open(&roofs, kernels, device, OPERANDS) < 0)
        die();
    printf("{\"bench\":\"roofs\",\"device\":\"%s\",\"tokens\":%lld,\"seconds\":%.1f,\n",
           tsr_device_description(device), (long long)tokens, seconds);
    measure_matmuls(roofs, tokens, seconds, all);
    measure_fp8(roofs, tokens, seconds);
    measure_copies(roofs);
    printf("}\n");
    tsr_roofs_close(roofs);
    tsr_device_destroy(device);
    return 0;
}
