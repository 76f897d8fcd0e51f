#include "device/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>

#include <cmocka.h>

#define OK(call) assert_int_equal((call), TSR_OK)
#define MOST     300

struct counts {
    tsr_pool *pool;
    _Atomic int seen[MOST];
    _Atomic int inner;
};

static void count(void *context, int index)
{
    struct counts *counts = context;
    atomic_fetch_add(&counts->seen[index], 1);
}

static void count_inner(void *context, int index)
{
    (void)index;
    atomic_fetch_add((_Atomic int *)context, 1);
}

static void count_nested(void *context, int index)
{
    struct counts *counts = context;
    atomic_fetch_add(&counts->seen[index], 1);
    tsr_pool_run(counts->pool, 3, count_inner, &counts->inner);
}

static void check_once(const struct counts *counts, int n)
{
    for (int i = 0; i < MOST; i++)
        assert_int_equal(atomic_load(&counts->seen[i]), i < n);
}

static void test_every_index_once(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 5; threads++) {
        tsr_device *device;
        OK(tsr_device_create_cpu(&device, &(tsr_device_options){.thread_count = threads}));
        tsr_pool *pool = tsr_device_pool(device);
        assert_int_equal(tsr_pool_thread_count(pool), threads);
        for (int round = 0; round < 400; round++) {
            struct counts counts = {.pool = pool};
            int n = round % 20 == 0 ? MOST : round % 7;
            tsr_pool_run(pool, n, count, &counts);
            check_once(&counts, n);
        }
        tsr_device_destroy(device);
    }
}

static void test_nested(void **state)
{
    (void)state;
    tsr_device *device;
    OK(tsr_device_create_cpu(&device, &(tsr_device_options){.thread_count = 3}));
    struct counts counts = {.pool = tsr_device_pool(device)};
    tsr_pool_run(counts.pool, 100, count_nested, &counts);
    check_once(&counts, 100);
    assert_int_equal(counts.inner, 300);
    tsr_device_destroy(device);
}

static tsr_status run_on_stream(void *args, tsr_pool *pool)
{
    struct counts *counts = *(struct counts **)args;
    for (int round = 0; round < 100; round++)
        tsr_pool_run(pool, MOST, count, counts);
    return TSR_OK;
}

/* Several streams at once: whoever finds the pool busy does its own work alone. */
static void test_concurrent_streams(void **state)
{
    (void)state;
    tsr_device *device;
    tsr_stream *streams[4];
    static struct counts counts[4];
    OK(tsr_device_create_cpu(&device, &(tsr_device_options){.thread_count = 3}));
    for (int i = 0; i < 4; i++) {
        struct counts *mine = &counts[i];
        OK(tsr_stream_create(&streams[i], device, "stream"));
        OK(tsr_stream_call(streams[i], run_on_stream, &mine, sizeof mine));
    }
    for (int i = 0; i < 4; i++) {
        OK(tsr_stream_synchronize(streams[i]));
        for (int k = 0; k < MOST; k++)
            assert_int_equal(atomic_load(&counts[i].seen[k]), 100);
        tsr_stream_destroy(streams[i]);
    }
    tsr_device_destroy(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_index_once),
        cmocka_unit_test(test_nested),
        cmocka_unit_test(test_concurrent_streams),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
