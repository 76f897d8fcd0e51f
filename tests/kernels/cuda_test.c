#include "cuda_test.h"

#define MAX_ARRAYS 256

cuda_rig rig;

static tsr_arena *array[MAX_ARRAYS];
static int array_count;

int cuda_setup(void **state)
{
    int count = 0;
    (void)state;
    if (tsr_device_cuda_count(&count) != TSR_OK || count == 0) {
        printf("skipped: %s\n", count ? "" : tsr_last_error());
        exit(77);
    }
    RUN(tsr_device_create_cuda(&rig.device, &(tsr_device_options){.no_pinning = true}));
    RUN(tsr_stream_create(&rig.stream, rig.device, "test"));
    RUN(tsr_kernels_open(&rig.kernels, rig.device));
    rig.pool = tsr_device_pool(rig.device);
    return 0;
}

int cuda_teardown(void **state)
{
    (void)state;
    cuda_free_all();
    tsr_stream_destroy(rig.stream);
    tsr_device_destroy(rig.device);
    return 0;
}

bool cuda_turn(void)
{
    static uint64_t turn;
    const char *given = getenv("TESSERA_PART");
    unsigned part, parts;
    char end;
    if (!given)
        return true;
    if (sscanf(given, "%u/%u%c", &part, &parts, &end) != 2 || part >= parts)
        fail_msg("TESSERA_PART is \"%s\", not 0/N to N-1/N", given);
    return turn++ % parts == part;
}

void *cuda_copy(const void *host, uint64_t bytes)
{
    void *out = NULL;
    if (array_count == MAX_ARRAYS)
        fail_msg("more than %d arrays: cuda_free_all is missing", MAX_ARRAYS);
    RUN(tsr_arena_create(&array[array_count], rig.device, TSR_MEMORY_DEVICE, bytes + 256));
    RUN(tsr_arena_take(&out, array[array_count++], "array", bytes ? bytes : 1));
    if (host) {
        RUN(tsr_device_write(rig.device, out, host, bytes));
    } else {
        RUN(tsr_stream_fill(rig.stream, out, 0xff, bytes));
        cuda_wait();
    }
    return out;
}

void cuda_free_all(void)
{
    if (rig.stream)
        tsr_stream_synchronize(rig.stream);
    while (array_count > 0)
        tsr_arena_destroy(array[--array_count]);
}

static void narrow(void *out, float *values, int64_t count, tsr_dtype dtype)
{
    for (int64_t i = 0; i < count; i++) {
        uint16_t bits = dtype == TSR_BF16 ? tsr_f32_to_bf16(values[i]) : tsr_f32_to_f16(values[i]);
        ((uint16_t *)out)[i] = bits;
        values[i] = dtype == TSR_BF16 ? tsr_bf16_to_f32(bits) : tsr_f16_to_f32(bits);
    }
}

void *cuda_values(float *values, int64_t count, tsr_dtype dtype)
{
    uint64_t bytes = (uint64_t)count * tsr_dtype_bytes(dtype);
    if (!values)
        return NULL;
    if (dtype == TSR_F32)
        return cuda_copy(values, bytes);
    void *host = malloc(bytes + 1);
    assert_non_null(host);
    narrow(host, values, count, dtype);
    void *out = cuda_copy(host, bytes);
    free(host);
    return out;
}

void cuda_wait(void)
{
    RUN(tsr_stream_synchronize(rig.stream));
}

void cuda_read(void *host, const void *device, uint64_t bytes)
{
    cuda_wait();
    RUN(tsr_device_read(rig.device, host, device, bytes));
}

float *cuda_floats(const void *device, int64_t count, tsr_dtype dtype)
{
    void *raw = malloc((size_t)count * tsr_dtype_bytes(dtype) + 1);
    float *out = new_floats(count);
    assert_non_null(raw);
    cuda_read(raw, device, (uint64_t)count * tsr_dtype_bytes(dtype));
    assert_true(tsr_widen_f32(out, raw, dtype, (uint64_t)count));
    free(raw);
    return out;
}

void cuda_expect(const char *what, const void *device, const float *want, int64_t count,
                 tsr_dtype dtype, double tolerance, double least)
{
    float *got = cuda_floats(device, count, dtype);
    double *exact = new_doubles(want, count);
    expect_near(what, got, exact, count, tolerance, least);
    free(got);
    free(exact);
}
