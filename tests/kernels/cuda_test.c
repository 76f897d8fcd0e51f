#include "cuda_test.h"

#define MAX_ARRAYS     256
#define TOGETHER_BYTES (2ull << 30)

cuda_rig rig;

static tsr_arena *array[MAX_ARRAYS];
static int array_count;
static char *together; /* the first array, where there is only that */
static uint64_t together_used;

int cuda_setup(void **state)
{
    int count = 0;
    (void)state;
    if (tsr_device_cuda_count(&count) != TSR_OK || count == 0) {
        printf("skipped: %s\n", count ? "" : tsr_last_error());
        exit(77);
    }
    /* Parts run side by side: one core is enough for each one's references. */
    int threads = getenv("TESSERA_PART") ? 1 : 0;
    RUN(tsr_device_create_cuda(&rig.device,
                               &(tsr_device_options){.no_pinning = true, .thread_count = threads}));
    RUN(tsr_stream_create(&rig.stream, rig.device, "test"));
    RUN(tsr_kernels_open(&rig.kernels, rig.device));
    rig.pool = tsr_device_pool(rig.device);
    return 0;
}

int cuda_teardown(void **state)
{
    (void)state;
    cuda_free_all();
    if (together)
        tsr_arena_destroy(array[0]);
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

/* An allocation of its own, so that memcheck sees what goes beyond it. */
static void *allocate_apart(uint64_t bytes)
{
    void *out = NULL;
    if (array_count == MAX_ARRAYS)
        fail_msg("more than %d arrays: cuda_free_all is missing", MAX_ARRAYS);
    RUN(tsr_arena_create(&array[array_count], rig.device, TSR_MEMORY_DEVICE, bytes + 256));
    RUN(tsr_arena_take(&out, array[array_count++], "array", bytes ? bytes : 1));
    return out;
}

/* From one allocation for the whole program: thousands of cudaMalloc under a sanitizer take minutes. */
static void *allocate_together(uint64_t bytes)
{
    if (!together)
        together = allocate_apart(TOGETHER_BYTES);
    void *out = together + together_used;
    together_used += (bytes / 256 + 1) * 256;
    if (together_used > TOGETHER_BYTES)
        fail_msg("arrays of more than %llu bytes", TOGETHER_BYTES);
    return out;
}

void *cuda_copy(const void *host, uint64_t bytes)
{
    bool apart = !getenv("TESSERA_ONE_ALLOCATION");
    void *out = apart ? allocate_apart(bytes) : allocate_together(bytes);
    if (host) {
        RUN(tsr_device_write(rig.device, out, host, bytes));
    } else {
        RUN(tsr_stream_fill(rig.stream, out, 0xff, bytes));
        cuda_wait();
    }
    return out;
}

cuda_mark cuda_arrays(void)
{
    return (cuda_mark){array_count, together_used};
}

void cuda_free_since(cuda_mark mark)
{
    if (rig.stream)
        tsr_stream_synchronize(rig.stream);
    together_used = mark.used;
    while (array_count > mark.count && array_count > (together ? 1 : 0))
        tsr_arena_destroy(array[--array_count]);
}

void cuda_free_all(void)
{
    cuda_free_since((cuda_mark){0, 0});
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
