/*
 * The CUDA device: finding it, its memory and its clock. Without a GPU (or in a build without CUDA) only
 * the errors are tested, and the program ends with 77: skipped.
 */
#define RIG_CREATE tsr_device_create_cuda
#include "rig.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>

/* ---- what a device is ---- */

static void test_description(void **state)
{
    (void)state;
    int count = 0, destroyed = 0;
    uint64_t left, total;
    OK(tsr_device_cuda_count(&count));
    assert_true(count > 0);
    tsr_device *device = make_device(20, 0);
    printf("%s\n", tsr_device_description(device));
    assert_int_equal(tsr_device_kind_of(device), TSR_DEVICE_CUDA);
    assert_non_null(strstr(tsr_device_description(device), " SMs, "));
    assert_non_null(strstr(tsr_device_description(device), ", CUDA "));
    assert_int_equal(tsr_pool_thread_count(tsr_device_pool(device)), 2);
    OK(tsr_device_memory(&left, &total, device));
    assert_true(left > 0 && left <= total);
    assert_null(tsr_device_kept(device));
    tsr_device_keep(device, &destroyed, note_destroyed);
    assert_ptr_equal(tsr_device_kept(device), &destroyed);
    tsr_device_destroy(device);
    assert_int_equal(destroyed, 1);
    assert_int_equal(tsr_device_create_cuda(&device, &(tsr_device_options){.local_rank = 1}),
                     TSR_EINVAL);
}

/* More ranks than cards share them; a thread that never saw CUDA may enqueue on any. */
struct filling {
    tsr_stream *stream;
    struct buffer on_device, on_host;
};

static void *fill_from_thread(void *argument)
{
    struct filling *f = argument;
    tsr_status status = tsr_stream_fill(f->stream, f->on_device.at, 5, 1000);
    if (status == TSR_OK)
        status = tsr_stream_copy(f->stream, f->on_host.at, f->on_device.at, 1000);
    if (status == TSR_OK)
        status = tsr_stream_synchronize(f->stream);
    return status == TSR_OK ? argument : NULL;
}

static void test_every_card(void **state)
{
    (void)state;
    int count = 0;
    OK(tsr_device_cuda_count(&count));
    for (int rank = count; rank >= 0; rank--) {
        tsr_device *device;
        struct filling f;
        pthread_t thread;
        void *done;
        OK(tsr_device_create_cuda(&device, &(tsr_device_options){.local_rank = rank,
                                                                 .local_rank_count = count + 1,
                                                                 .thread_count = 1}));
        OK(tsr_stream_create(&f.stream, device, "compute"));
        f.on_device = make_buffer(device, TSR_MEMORY_DEVICE, 1000);
        f.on_host = make_buffer(device, TSR_MEMORY_HOST, 1000);
        assert_int_equal(pthread_create(&thread, NULL, fill_from_thread, &f), 0);
        assert_int_equal(pthread_join(thread, &done), 0);
        assert_non_null(done);
        assert_int_equal(f.on_host.at[999], 5);
        tsr_arena_destroy(f.on_device.arena);
        tsr_arena_destroy(f.on_host.arena);
        tsr_stream_destroy(f.stream);
        tsr_device_destroy(device);
    }
}

/* ---- memory ---- */

static void test_arenas(void **state)
{
    (void)state;
    enum { BYTES = (40 << 20) + 17 };
    tsr_device *device = make_device(20, 0);
    uint64_t before, after, total;
    tsr_arena *arena;
    void *buffer;
    unsigned char *copy = malloc(BYTES);
    assert_non_null(copy);
    OK(tsr_arena_create(&arena, device, TSR_MEMORY_DEVICE, 0));
    assert_int_equal(tsr_arena_take(&buffer, arena, "x", 1), TSR_EINTERNAL);
    tsr_arena_destroy(arena);
    OK(tsr_device_memory(&before, &total, device));
    for (int kind = 0; kind < 2; kind++) {
        memset(copy, 1, BYTES);
        OK(tsr_arena_create(&arena, device, kind ? TSR_MEMORY_HOST : TSR_MEMORY_DEVICE, BYTES));
        OK(tsr_arena_take(&buffer, arena, "x", BYTES));
        assert_int_equal((uintptr_t)buffer % TSR_ALIGNMENT, 0);
        OK(tsr_device_read(device, copy, buffer, BYTES));
        for (int i = 0; i < BYTES; i++)
            if (copy[i] != 0)
                fail_msg("byte %d of an arena is %d", i, copy[i]);
        assert_int_equal(tsr_arena_take(&buffer, arena, "z", 1), TSR_EINTERNAL);
        tsr_arena_destroy(arena);
    }
    OK(tsr_device_memory(&after, &total, device));
    assert_true(after + (8 << 20) >= before);
    assert_int_equal(tsr_arena_create(&arena, device, TSR_MEMORY_DEVICE, 2 * total), TSR_ENOMEM);
    print_message("%s\n", tsr_last_error());
    assert_non_null(strstr(tsr_last_error(), "memory_budget"));
    OK(tsr_device_check(device)); /* which has not harmed the device */
    OK(tsr_arena_create(&arena, device, TSR_MEMORY_DEVICE, 1000));
    tsr_arena_destroy(arena);
    assert_int_equal(tsr_arena_create(&arena, device, TSR_MEMORY_HOST, (uint64_t)1000000000000000),
                     TSR_ENOMEM);
    OK(tsr_device_check(device));
    free(copy);
    tsr_device_destroy(device);
}

/* Host to device, device to device at odd places, back; filled in between. */
static void test_copies(void **state)
{
    (void)state;
    enum { BYTES = 100003 };
    tsr_device *device = make_device(20, 0);
    tsr_stream *stream;
    struct buffer from = make_buffer(device, TSR_MEMORY_HOST, BYTES);
    struct buffer to = make_buffer(device, TSR_MEMORY_HOST, BYTES);
    struct buffer a = make_buffer(device, TSR_MEMORY_DEVICE, BYTES);
    struct buffer b = make_buffer(device, TSR_MEMORY_DEVICE, BYTES + 3);
    OK(tsr_stream_create(&stream, device, "h2d"));
    for (int i = 0; i < BYTES; i++)
        from.at[i] = (unsigned char)(i * 7 + i / 251);
    OK(tsr_stream_copy(stream, a.at, from.at, BYTES));
    OK(tsr_stream_copy(stream, b.at + 3, a.at, BYTES));
    OK(tsr_stream_fill(stream, b.at + 3 + 10, 0xa5, 1001));
    OK(tsr_stream_fill(stream, b.at + 3 + 5000, 0, 1));
    OK(tsr_stream_copy(stream, to.at, b.at + 3, BYTES));
    OK(tsr_stream_copy(stream, NULL, NULL, 0));
    OK(tsr_stream_fill(stream, NULL, 0, 0));
    OK(tsr_stream_synchronize(stream));
    for (int i = 0; i < BYTES; i++) {
        unsigned char want = (unsigned char)(i * 7 + i / 251);
        assert_int_equal(to.at[i], i >= 10 && i < 1011 ? 0xa5 : i == 5000 ? 0 : want);
    }
    tsr_stream_destroy(stream);
    tsr_arena_destroy(from.arena);
    tsr_arena_destroy(to.arena);
    tsr_arena_destroy(a.arena);
    tsr_arena_destroy(b.arena);
    tsr_device_destroy(device);
}

/* Any host memory, and more than is moved at a time. */
static void test_write_read(void **state)
{
    (void)state;
    uint64_t bytes = ((uint64_t)300 << 20) + 13;
    tsr_device *device = make_device(60, 0);
    struct buffer on_device = make_buffer(device, TSR_MEMORY_DEVICE, bytes);
    uint32_t *from = malloc(bytes + 8), *to = calloc(1, bytes + 8);
    assert_true(from && to);
    for (uint64_t i = 0; i < bytes / 4 + 1; i++)
        from[i] = (uint32_t)i * 2654435761u;
    double start = tsr_now();
    OK(tsr_device_write(device, on_device.at, from, bytes));
    OK(tsr_device_read(device, to, on_device.at, bytes));
    print_message("written and read: %.1f GB/s\n", 2e-9 * (double)bytes / (tsr_now() - start));
    assert_memory_equal(from, to, bytes);
    OK(tsr_device_write(device, NULL, NULL, 0));
    OK(tsr_device_read(device, NULL, NULL, 0));
    free(from);
    free(to);
    tsr_arena_destroy(on_device.arena);
    tsr_device_destroy(device);
}

static void test_pin(void **state)
{
    (void)state;
    enum { BYTES = 8 << 20 };
    tsr_device *device = make_device(20, 0);
    tsr_stream *stream;
    struct buffer on_device = make_buffer(device, TSR_MEMORY_DEVICE, BYTES);
    struct gate gate = {false};
    unsigned char *shared =
        mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(shared != MAP_FAILED);
    memset(shared, 3, BYTES);
    OK(tsr_stream_create(&stream, device, "h2d"));
    OK(tsr_device_pin(device, shared, BYTES));
    close_stream(stream, &gate);
    OK(tsr_stream_copy(stream, on_device.at, shared, BYTES)); /* returns, since it is pinned */
    OK(tsr_stream_fill(stream, on_device.at, 4, BYTES / 2));
    OK(tsr_stream_copy(stream, shared, on_device.at, BYTES));
    assert_int_equal(shared[0], 3);
    atomic_store(&gate.open, true);
    OK(tsr_stream_synchronize(stream));
    assert_int_equal(shared[BYTES / 2 - 1], 4);
    assert_int_equal(shared[BYTES / 2], 3);
    tsr_device_unpin(device, shared);
    tsr_device_unpin(device, NULL);
    munmap(shared, BYTES);
    assert_true(tsr_device_pin(device, shared, BYTES) < 0); /* not mapped any more */
    print_message("%s\n", tsr_last_error());
    OK(tsr_device_check(device));
    tsr_stream_destroy(stream);
    tsr_arena_destroy(on_device.arena);
    tsr_device_destroy(device);
}

/* ---- time ---- */

static tsr_status sleep_20_ms(void *args, tsr_pool *pool)
{
    (void)args;
    (void)pool;
    usleep(20000);
    return TSR_OK;
}

/* Times lie between the enqueuing and the wait, on the host's clock, also after new marks. */
static void test_times(void **state)
{
    (void)state;
    tsr_device *device = make_device(20, 0);
    tsr_stream *stream;
    tsr_event *first, *second, *plain;
    OK(tsr_stream_create(&stream, device, "compute"));
    OK(tsr_event_create_timed(&first, device));
    OK(tsr_event_create_timed(&second, device));
    OK(tsr_event_create(&plain, device));
    assert_true(tsr_event_time(first) == 0);
    for (uint64_t i = 1; i <= 12; i++) {
        double before = tsr_now();
        OK(tsr_event_record(first, stream));
        OK(tsr_stream_call(stream, sleep_20_ms, NULL, 0));
        OK(tsr_event_record(second, stream));
        OK(tsr_event_record(plain, stream));
        OK(tsr_event_wait_host(second, i));
        double after = tsr_now(), t1 = tsr_event_time(first), t2 = tsr_event_time(second);
        assert_true(t1 > before - 2e-4 && t2 < after + 2e-4);
        assert_true(t2 - t1 > 0.0198 && t2 - t1 < 0.2);
        assert_true(tsr_event_time(plain) == 0);
        usleep(i % 4 == 0 ? 2100000 : 1000);
    }
    struct gate gate = {false};
    double last = tsr_event_time(second);
    close_stream(stream, &gate);
    OK(tsr_event_record(second, stream));
    double still = tsr_event_time(second); /* of the last complete record */
    assert_true(still > last - 2e-4 && still < last + 2e-4);
    atomic_store(&gate.open, true);
    tsr_stream_destroy(stream);
    assert_true(tsr_event_time(second) > last + 1e-3);
    tsr_event_destroy(first);
    tsr_event_destroy(second);
    tsr_event_destroy(plain);
    tsr_device_destroy(device);
}

/* No bound: a figure to read. */
static void test_costs(void **state)
{
    (void)state;
    enum { ROUNDS = 5000 };
    tsr_device *device = make_device(20, 0);
    tsr_stream *a, *b;
    tsr_event *event;
    double us[5] = {0};
    struct buffer on_device = make_buffer(device, TSR_MEMORY_DEVICE, 256);
    OK(tsr_stream_create(&a, device, "compute"));
    OK(tsr_stream_create(&b, device, "comm"));
    OK(tsr_event_create(&event, device));
    for (int i = 0; i < ROUNDS; i++) {
        double t[5];
        t[0] = tsr_now();
        OK(tsr_event_record(event, a));
        t[1] = tsr_now();
        OK(tsr_stream_wait(b, event, (uint64_t)i + 1));
        t[2] = tsr_now();
        OK(tsr_stream_wait(a, event, (uint64_t)i + 1)); /* the same stream */
        t[3] = tsr_now();
        OK(tsr_stream_fill(b, on_device.at, 1, 256));
        t[4] = tsr_now();
        for (int k = 0; k < 4; k++)
            us[k] += 1e6 * (t[k + 1] - t[k]) / ROUNDS;
        if (i % 64 == 0)
            OK(tsr_stream_synchronize(b));
    }
    OK(tsr_stream_synchronize(b));
    double start = tsr_now();
    for (int i = 0; i < ROUNDS; i++)
        OK(tsr_event_wait_host(event, ROUNDS));
    us[4] = 1e6 * (tsr_now() - start) / ROUNDS;
    print_message(
        "us: record %.2f, wait %.2f, wait on its own stream %.2f, fill %.2f, host wait for "
        "a complete record %.2f\n",
        us[0], us[1], us[2], us[3], us[4]);
    tsr_event_destroy(event);
    tsr_stream_destroy(a);
    tsr_stream_destroy(b);
    tsr_arena_destroy(on_device.arena);
    tsr_device_destroy(device);
}

/* ---- without a GPU ---- */

static bool expect_failure(tsr_status status, const char *text)
{
    tsr_status want = tsr_device_cuda_built() ? TSR_EDEVICE : TSR_EUNSUPPORTED;
    printf("%s: %s\n", tsr_status_name(status), tsr_last_error());
    if (status == want && strstr(tsr_last_error(), text))
        return true;
    printf("expected %s and a message with \"%s\"\n", tsr_status_name(want), text);
    return false;
}

/* In a process that sees no GPU; returns its exit status. */
static int check_without_gpu(void)
{
    tsr_device *device;
    int count = 7;
    const char *text = tsr_device_cuda_built() ? "backend: cpu" : "nvcc 12.4";
    bool good = expect_failure(tsr_device_cuda_count(&count), text);
    good &= count == 0;
    good &= expect_failure(tsr_device_create_cuda(&device, NULL), text);
    if (tsr_device_cuda_built())
        good &= tsr_device_create_cuda(&device, &(tsr_device_options){.timeout_seconds = -1}) ==
                TSR_EINVAL;
    return good ? 0 : 1;
}

/* A fork, since CUDA looks for cards once in a process. */
static bool without_gpu_is_well(void)
{
    int status = 0;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        setenv("CUDA_VISIBLE_DEVICES", "-1", 1);
        status = check_without_gpu();
        fflush(stdout);
        _exit(status);
    }
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) &&
           WEXITSTATUS(status) == 0;
}

int main(void)
{
    int count;
    if (!without_gpu_is_well())
        return 1;
    if (tsr_device_cuda_count(&count) != TSR_OK)
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_description), cmocka_unit_test(test_every_card),
        cmocka_unit_test(test_arenas),      cmocka_unit_test(test_copies),
        cmocka_unit_test(test_write_read),  cmocka_unit_test(test_pin),
        cmocka_unit_test(test_times),       cmocka_unit_test(test_costs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
