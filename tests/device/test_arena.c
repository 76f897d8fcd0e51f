#include "device/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define OK(call) assert_int_equal((call), TSR_OK)

static tsr_device *device;

static int set_up(void **state)
{
    (void)state;
    return tsr_device_create_cpu(&device, NULL);
}

static int tear_down(void **state)
{
    (void)state;
    tsr_device_destroy(device);
    return 0;
}

static void test_take(void **state)
{
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        tsr_arena *arena;
        void *a, *b, *none, *rest;
        OK(tsr_arena_create(&arena, device, kind ? TSR_MEMORY_HOST : TSR_MEMORY_DEVICE, 4096));
        assert_int_equal(tsr_arena_bytes(arena), 4096);
        assert_int_equal(tsr_arena_high_water(arena), 0);
        OK(tsr_arena_take(&a, arena, "a", 1));
        OK(tsr_arena_take(&none, arena, "none", 0));
        assert_null(none);
        OK(tsr_arena_take(&b, arena, "b", 257));
        assert_int_equal((char *)b - (char *)a, 256);
        assert_int_equal((uintptr_t)a % TSR_ALIGNMENT, 0);
        assert_int_equal(tsr_arena_high_water(arena), 768);
        assert_int_equal(tsr_arena_take(&rest, arena, "the rest", 3329), TSR_EINTERNAL);
        assert_non_null(strstr(tsr_last_error(), "the rest of 3329 bytes"));
        assert_non_null(strstr(tsr_last_error(), "3328 of its 4096"));
        assert_int_equal(tsr_arena_take(&rest, arena, "wraps", UINT64_MAX - 5), TSR_EINTERNAL);
        OK(tsr_arena_take(&rest, arena, "the rest", 3328));
        for (int i = 0; i < 3328; i++)
            assert_int_equal(((char *)rest)[i], 0);
        memset(rest, 1, 3328);
        assert_int_equal(tsr_arena_high_water(arena), 4096);
        tsr_arena_destroy(arena);
    }
}

static void test_empty(void **state)
{
    (void)state;
    tsr_arena *arena;
    void *buffer;
    OK(tsr_arena_create(&arena, device, TSR_MEMORY_DEVICE, 0));
    assert_int_equal(tsr_arena_take(&buffer, arena, "x", 1), TSR_EINTERNAL);
    tsr_arena_destroy(arena);
    tsr_arena_destroy(NULL);
}

/* The last buffer need not be a multiple of the alignment. */
static void test_odd_size(void **state)
{
    (void)state;
    tsr_arena *arena;
    void *buffer;
    OK(tsr_arena_create(&arena, device, TSR_MEMORY_DEVICE, 300));
    OK(tsr_arena_take(&buffer, arena, "x", 300));
    assert_int_equal(tsr_arena_take(&buffer, arena, "y", 1), TSR_EINTERNAL);
    assert_non_null(strstr(tsr_last_error(), "0 of its 300"));
    tsr_arena_destroy(arena);
}

static void test_large_is_touched(void **state)
{
    (void)state;
    tsr_arena *arena;
    void *buffer;
    uint64_t bytes = (40u << 20) + 17;
    OK(tsr_arena_create(&arena, device, TSR_MEMORY_HOST, bytes));
    OK(tsr_arena_take(&buffer, arena, "x", bytes));
    for (uint64_t i = 0; i < bytes; i += 4096)
        assert_int_equal(((char *)buffer)[i], 0);
    tsr_arena_destroy(arena);
}

static void test_too_much(void **state)
{
    (void)state;
    tsr_arena *arena;
    assert_int_equal(
        tsr_arena_create(&arena, device, TSR_MEMORY_DEVICE, (uint64_t)1000000000000000),
        TSR_ENOMEM);
    assert_non_null(strstr(tsr_last_error(), "1000000000000000 bytes"));
}

/* Of the CPU device memory is host memory: writing, reading and pinning are plain. */
static void test_host_and_device(void **state)
{
    (void)state;
    uint64_t left = 0, total = 0;
    char from[300], to[300] = {0};
    tsr_arena *arena;
    void *buffer;
    memset(from, 9, sizeof from);
    OK(tsr_device_memory(&left, &total, device));
    assert_true(total > 0 && left == total);
    OK(tsr_arena_create(&arena, device, TSR_MEMORY_DEVICE, sizeof from));
    OK(tsr_arena_take(&buffer, arena, "x", sizeof from));
    OK(tsr_device_write(device, buffer, from, sizeof from));
    OK(tsr_device_read(device, to, buffer, sizeof to));
    assert_memory_equal(from, to, sizeof from);
    OK(tsr_device_write(device, NULL, NULL, 0));
    OK(tsr_device_read(device, NULL, NULL, 0));
    OK(tsr_device_pin(device, from, sizeof from));
    tsr_device_unpin(device, from);
    tsr_arena_destroy(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_take),     cmocka_unit_test(test_empty),
        cmocka_unit_test(test_odd_size), cmocka_unit_test(test_large_is_touched),
        cmocka_unit_test(test_too_much), cmocka_unit_test(test_host_and_device),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
