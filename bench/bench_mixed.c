/*
 * bench_mixed.c: a linear on a plain base whose tokens are of four adapters (adapters/linear_mixed.c), forward and backward
 * with dX, beside the base's matmuls alone.
 *
 *     bench_mixed [cpu]     a line of JSON a shape on stdout; medians by the host's clock over many launches
 *
 * On a GPU 4 x 2048 tokens of r 16 in bf16: the shapes at which LoRAFusion's kernels are published. cpu: small ones in fp32, to
 * try the program.
 */
#include "adapters/linear.h"
#include "base/clock.h"
#include "base/philox.h"
#include "matmuls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ADAPTERS      4
#define R             16
#define ROUNDS        7
#define PATTERN_BYTES ((uint64_t)4 << 20)

static tsr_device *device;
static tsr_stream *stream;
static const tsr_kernels *kernels;
static tsr_arena *arena;

static void must(tsr_status status, const char *what)
{
    if (status < 0) {
        fprintf(stderr, "bench_mixed: %s: %s\n", what, tsr_last_error());
        exit(71);
    }
}

/* ---- operands ---- */

/* Uniform in [-1, 1): a matmul of zeros takes less power, and less time. */
static void fill(char *to, uint64_t bytes, tsr_dtype dtype)
{
    char *pattern = malloc(PATTERN_BYTES);
    if (!pattern)
        exit(71);
    for (uint64_t i = 0; i < PATTERN_BYTES / tsr_dtype_bytes(dtype); i++) {
        float value = (float)(int32_t)(tsr_mix(i) >> 32) * 0x1p-31f;
        uint16_t low = tsr_f32_to_bf16(value);
        memcpy(pattern + i * tsr_dtype_bytes(dtype), dtype == TSR_F32 ? (void *)&value : &low,
               tsr_dtype_bytes(dtype));
    }
    for (uint64_t at = 0; at < bytes; at += PATTERN_BYTES)
        must(tsr_device_write(device, to + at, pattern,
                              bytes - at < PATTERN_BYTES ? bytes - at : PATTERN_BYTES),
             "operands");
    free(pattern);
}

static void *take(uint64_t elements, tsr_dtype dtype)
{
    void *out = NULL;
    uint64_t bytes = elements * tsr_dtype_bytes(dtype);
    must(tsr_arena_take(&out, arena, "operand", bytes), "memory");
    fill(out, bytes, dtype);
    return out;
}

typedef struct {
    tsr_linear_context context;
    tsr_linear linear;
    tsr_linear_range range[ADAPTERS];
    tsr_linear_gradients gradients;
    void *z;
} job;

static void make(job *j, int64_t tokens, uint64_t in, uint64_t out, tsr_dtype dtype)
{
    uint64_t t = (uint64_t)tokens, columns = ADAPTERS * R;
    tsr_linear *linear = &j->linear;
    *linear = (tsr_linear){
        .out = out, .in = in, .r = R, .range = j->range, .range_count = ADAPTERS, .low = columns};
    linear->weight = (tsr_base_weight){.data = take(in * out, dtype), .dtype = dtype};
    for (int k = 0; k < ADAPTERS; k++)
        j->range[k] = (tsr_linear_range){.first = tokens / ADAPTERS * k,
                                         .tokens = tokens / ADAPTERS,
                                         .r = R,
                                         .scale = 2,
                                         .a = take(R * in, dtype),
                                         .b = take(out * R, dtype),
                                         .da = take(R * in, TSR_F32),
                                         .db = take(out * R, TSR_F32)};
    j->context = (tsr_linear_context){.kernels = kernels,
                                      .stream = stream,
                                      .dtype = dtype,
                                      .tokens = tokens,
                                      .step_micro = 1,
                                      .weight = take(in * out, dtype),
                                      .low = take(t * columns, dtype),
                                      .d_low = take(t * columns, dtype)};
    if (tsr_linear_stacks(dtype))
        j->context.stack = (tsr_linear_stack){.a = take(columns * in, dtype),
                                              .b = take(columns * out, dtype),
                                              .da = take(columns * in, TSR_F32),
                                              .db = take(columns * out, TSR_F32)};
    j->z = take(t * out, dtype);
    j->gradients = (tsr_linear_gradients){.x = take(t * in, dtype),
                                          .low = j->context.low,
                                          .dz = take(t * out, dtype),
                                          .dx = take(t * in, dtype)};
}

/* ---- what is timed ---- */

static tsr_status forward(const job *j)
{
    return tsr_linear_forward(&j->context, &j->linear, j->gradients.x, j->z, NULL, j->context.low);
}

static tsr_status backward(const job *j)
{
    return tsr_linear_backward(&j->context, &j->linear, &j->gradients);
}

static job without_adapters(const job *j)
{
    job base = *j;
    base.linear.range = NULL;
    base.linear.range_count = 0;
    base.linear.r = 0;
    base.linear.low = 0;
    return base;
}

/* Chooses the matmuls' kernels, as a run does at start-up. */
static void prepare(const job *j, void *scratch, uint64_t bytes)
{
    job dry = *j;
    dry.context.kernels = bench_matmuls_note();
    dry.context.stream = NULL;
    must(forward(&dry), "a list of matmuls");
    must(backward(&dry), "a list of matmuls");
    must(bench_matmuls_prepare(kernels, stream, scratch, bytes), "the matmuls");
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Milliseconds of one of `repeats` in a row. */
static double time_of(tsr_status (*run)(const job *), const job *j, int repeats)
{
    double ms[ROUNDS];
    for (int round = -1; round < ROUNDS; round++) {
        double begin = tsr_now();
        for (int i = 0; i < repeats; i++)
            must(run(j), "a linear");
        must(tsr_stream_synchronize(stream), "a linear");
        if (round >= 0)
            ms[round] = 1e3 * (tsr_now() - begin) / repeats;
    }
    qsort(ms, ROUNDS, sizeof *ms, compare);
    return ms[ROUNDS / 2];
}

static void run(int64_t tokens, uint64_t in, uint64_t out, tsr_dtype dtype, int repeats)
{
    const uint64_t operands = (in + out) * (uint64_t)tokens * 12 + in * out * 12;
    const uint64_t bytes = operands < (uint64_t)64 << 20 ? (uint64_t)1 << 20 : (uint64_t)1 << 30;
    void *scratch = NULL;
    job j;
    must(tsr_arena_create(&arena, device, TSR_MEMORY_DEVICE,
                          operands + bytes + ((uint64_t)64 << 20)),
         "memory");
    must(tsr_arena_take(&scratch, arena, "scratch", bytes), "memory");
    make(&j, tokens, in, out, dtype);
    job base = without_adapters(&j);
    prepare(&j, scratch, bytes);
    prepare(&base, scratch, bytes);
    double f = time_of(forward, &j, repeats), b = time_of(backward, &j, repeats);
    double base_f = time_of(forward, &base, repeats), base_b = time_of(backward, &base, repeats);
    printf("{\"bench\":\"mixed\",\"device\":\"%s\",\"tokens\":%lld,\"in\":%llu,\"out\":%llu,"
           "\"adapters\":%d,\"r\":%d,\"forward_ms\":%.4f,\"backward_ms\":%.4f,"
           "\"base_forward_ms\":%.4f,\"base_backward_ms\":%.4f}\n",
           tsr_device_description(device), (long long)tokens, (unsigned long long)in,
           (unsigned long long)out, ADAPTERS, R, f, b, base_f, base_b);
    fflush(stdout);
    tsr_arena_destroy(arena);
}

int main(int count, char **arguments)
{
    const tsr_device_options options = {.no_pinning = true};
    bool cpu = count > 1 && !strcmp(arguments[1], "cpu");
    must(cpu ? tsr_device_create_cpu(&device, &options) : tsr_device_create_cuda(&device, &options),
         "the device");
    must(tsr_stream_create(&stream, device, "compute"), "a stream");
    must(tsr_kernels_open(&kernels, device), "the kernels");
    if (cpu) {
        run(64, 96, 160, TSR_F32, 2);
    } else {
        run(8192, 4096, 4096, TSR_BF16, 40);
        run(8192, 4096, 14336, TSR_BF16, 20);
    }
    tsr_stream_destroy(stream);
    tsr_device_destroy(device);
    return 0;
}
