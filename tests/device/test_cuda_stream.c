/*
 * Streams and events of the CUDA device: order, poison, deadlines. Without a GPU it ends with 77:
 * skipped.
 */
#define RIG_CREATE tsr_device_create_cuda
#include "stream_rig.h"

#include <pthread.h>

/* ---- order ---- */

/* Copies and fills alone, no calls: what a stream reads was written by the other before. A wait that
 * did not wait would read an older value, since the writer has more to do. */
static void test_memory_order(void **state)
{
    (void)state;
    enum { BYTES = 64 << 20, ROUNDS = 20 };
    tsr_device *device = make_device(20, 0);
    tsr_stream *writer, *reader;
    tsr_event *written, *was_read;
    struct buffer on_device = make_buffer(device, TSR_MEMORY_DEVICE, BYTES);
    struct buffer on_host = make_buffer(device, TSR_MEMORY_HOST, ROUNDS);
    OK(tsr_stream_create(&writer, device, "compute"));
    OK(tsr_stream_create(&reader, device, "d2h"));
    OK(tsr_event_create(&written, device));
    OK(tsr_event_create(&was_read, device));
    for (int i = 0; i < ROUNDS; i++) {
        if (i > 0)
            OK(tsr_stream_wait(writer, was_read, (uint64_t)i));
        for (int again = 0; again < 4; again++)
            OK(tsr_stream_fill(writer, on_device.at, (uint8_t)(again == 3 ? i + 1 : 0), BYTES));
        OK(tsr_event_record(written, writer));
        OK(tsr_stream_wait(reader, written, (uint64_t)i + 1));
        OK(tsr_stream_copy(reader, on_host.at + i, on_device.at + BYTES - 1, 1));
        OK(tsr_event_record(was_read, reader));
    }
    OK(tsr_event_wait_host(was_read, ROUNDS));
    for (int i = 0; i < ROUNDS; i++)
        assert_int_equal(on_host.at[i], i + 1);
    tsr_arena_destroy(on_device.arena);
    tsr_arena_destroy(on_host.arena);
    tsr_event_destroy(written);
    tsr_event_destroy(was_read);
    tsr_stream_destroy(writer);
    tsr_stream_destroy(reader);
    tsr_device_destroy(device);
}

/* A wait binds to its generation; the records of one event by two streams are in order. */
static void test_generations(void **state)
{
    (void)state;
    tsr_device *device = make_device(0.3, 0);
    tsr_stream *slow, *fast;
    tsr_event *event;
    struct gate gate = {false};
    OK(tsr_stream_create(&slow, device, "slow"));
    OK(tsr_stream_create(&fast, device, "fast"));
    OK(tsr_event_create(&event, device));
    assert_int_equal(tsr_event_recorded(event), 0);
    assert_int_equal(tsr_stream_wait(fast, event, 0), TSR_EINTERNAL);
    assert_int_equal(tsr_stream_wait(fast, event, 1), TSR_EINTERNAL);
    assert_non_null(strstr(tsr_last_error(), "fast would wait for record 1"));
    assert_int_equal(tsr_event_wait_host(event, 1), TSR_EINTERNAL);

    OK(tsr_event_record(event, slow)); /* 1 */
    OK(tsr_event_wait_host(event, 1));
    close_stream(slow, &gate);
    OK(tsr_event_record(event, slow)); /* 2, behind the gate */
    assert_int_equal(tsr_event_recorded(event), 2);
    OK(tsr_event_wait_host(event, 1));
    OK(tsr_stream_wait(fast, event, 1));
    OK(tsr_stream_synchronize(fast)); /* 1 is complete although 2 is not */
    assert_int_equal(tsr_event_wait_host(event, 2), TSR_ETIMEOUT);
    OK(tsr_event_record(event, fast)); /* 3, on another stream, comes after 2 */
    assert_int_equal(tsr_event_wait_host(event, 3), TSR_ETIMEOUT);
    assert_int_equal(tsr_stream_wait(fast, event, 4), TSR_EINTERNAL);
    atomic_store(&gate.open, true);
    OK(tsr_event_wait_host(event, 3));
    OK(tsr_event_wait_host(event, 2));
    OK(tsr_event_wait_host(event, 1)); /* by what is recorded there now */
    OK(tsr_stream_wait(slow, event, 1));
    OK(tsr_stream_synchronize(slow));

    tsr_event_destroy(event);
    tsr_stream_destroy(slow);
    tsr_stream_destroy(fast);
    tsr_device_destroy(device);
}

/* ---- failures ---- */

/* The first failure skips all later calls on all streams, and is what every later call returns. */
static void test_poison(void **state)
{
    (void)state;
    static struct log log;
    tsr_device *device = make_device(20, 0);
    tsr_stream *a, *b;
    tsr_event *event, *after;
    void *bytes;
    tsr_arena *arena;
    struct gate gate = {false};
    log.count = 0;
    OK(tsr_arena_create(&arena, device, TSR_MEMORY_DEVICE, 16));
    OK(tsr_arena_take(&bytes, arena, "bytes", 16));
    OK(tsr_stream_create(&a, device, "a"));
    OK(tsr_stream_create(&b, device, "b"));
    OK(tsr_event_create(&event, device));
    OK(tsr_event_create(&after, device));
    close_stream(a, &gate);
    OK(tsr_stream_call(a, fail_row, NULL, 0));
    put(a, &log, 1);
    OK(tsr_event_record(event, a));
    OK(tsr_stream_wait(b, event, 1));
    put(b, &log, 2);
    OK(tsr_event_record(after, b));
    atomic_store(&gate.open, true);
    assert_int_equal(tsr_event_wait_host(after, 1), TSR_EDATA);
    assert_string_equal(tsr_last_error(), "row 7 is bad");
    tsr_device_poison(device, TSR_ECOMM, "too late");
    tsr_fail(TSR_EINVAL, "something else");
    assert_int_equal(tsr_device_check(device), TSR_EDATA);
    assert_string_equal(tsr_last_error(), "row 7 is bad");
    assert_int_equal(tsr_stream_call(a, append, NULL, 0), TSR_EDATA);
    assert_int_equal(tsr_event_record(event, a), TSR_EDATA);
    assert_int_equal(tsr_stream_wait(b, event, 1), TSR_EDATA);
    assert_int_equal(tsr_stream_fill(b, bytes, 1, 2), TSR_EDATA);
    assert_int_equal(tsr_stream_copy(b, bytes, (char *)bytes + 8, 2), TSR_EDATA);
    assert_int_equal(tsr_stream_synchronize(b), TSR_EDATA);
    tsr_stream_destroy(a);
    tsr_stream_destroy(b); /* which waits */
    assert_int_equal(log.count, 0);
    tsr_event_destroy(event);
    tsr_event_destroy(after);
    tsr_arena_destroy(arena);
    tsr_device_destroy(device);
}

static void *poison_soon(void *device)
{
    usleep(50000);
    tsr_device_poison(device, TSR_ESTOPPED, "stopped");
    return NULL;
}

/* Poison from outside ends the waits of the host, though not the work. */
static void test_poison_wakes(void **state)
{
    (void)state;
    tsr_device *device = make_device(20, 0);
    tsr_stream *slow, *fast;
    tsr_event *event;
    pthread_t thread;
    struct gate gate = {false};
    OK(tsr_stream_create(&slow, device, "slow"));
    OK(tsr_stream_create(&fast, device, "fast"));
    OK(tsr_event_create(&event, device));
    close_stream(slow, &gate);
    OK(tsr_event_record(event, slow));
    OK(tsr_stream_wait(fast, event, 1));
    double start = tsr_now();
    assert_int_equal(pthread_create(&thread, NULL, poison_soon, device), 0);
    assert_int_equal(tsr_event_wait_host(event, 1), TSR_ESTOPPED);
    assert_int_equal(tsr_stream_synchronize(fast), TSR_ESTOPPED);
    assert_string_equal(tsr_last_error(), "stopped");
    assert_true(tsr_now() - start < 5);
    pthread_join(thread, NULL);
    atomic_store(&gate.open, true);
    tsr_stream_destroy(slow);
    tsr_stream_destroy(fast);
    tsr_event_destroy(event);
    tsr_device_destroy(device);
}

static void test_deadlines(void **state)
{
    (void)state;
    static struct log log;
    tsr_device *device = make_device(0.2, 0);
    tsr_stream *slow, *fast;
    tsr_event *event;
    struct gate gate = {false};
    log.count = 0;
    OK(tsr_stream_create(&slow, device, "slow"));
    OK(tsr_stream_create(&fast, device, "fast"));
    OK(tsr_event_create(&event, device));
    close_stream(slow, &gate);
    OK(tsr_event_record(event, slow));
    double start = tsr_now();
    assert_int_equal(tsr_event_wait_host(event, 1), TSR_ETIMEOUT);
    assert_non_null(strstr(tsr_last_error(), "stream slow"));
    assert_true(tsr_now() - start >= 0.2 && tsr_now() - start < 2);
    assert_int_equal(tsr_stream_synchronize(slow), TSR_ETIMEOUT);
    assert_non_null(strstr(tsr_last_error(), "stream slow"));
    OK(tsr_stream_wait(fast, event, 1));
    assert_int_equal(tsr_stream_synchronize(fast), TSR_ETIMEOUT);
    OK(tsr_device_check(device)); /* the caller's wait ended, the device is well */
    for (int i = 0; i < 63; i++)
        put(slow, &log, i);
    assert_int_equal(tsr_stream_call(slow, append, NULL, 0), TSR_ETIMEOUT);
    assert_non_null(strstr(tsr_last_error(), "slow is full"));
    atomic_store(&gate.open, true);
    OK(tsr_stream_synchronize(slow));
    OK(tsr_stream_synchronize(fast));
    check_log(&log, 63);
    tsr_stream_destroy(slow);
    tsr_stream_destroy(fast);
    tsr_event_destroy(event);
    tsr_device_destroy(device);
}

/* Work that never ends: destroying waits for one deadline in all, then leaves things as they are,
 * what is kept with the device too. */
static void test_destroy_is_bounded(void **state)
{
    (void)state;
    static struct gate gate; /* the call reads it when all is over */
    static int destroyed;
    atomic_store(&gate.open, false);
    tsr_device *device = make_device(0.5, 0);
    tsr_stream *slow, *behind;
    tsr_event *event;
    struct buffer host = make_buffer(device, TSR_MEMORY_HOST, 1 << 20);
    struct buffer on_device = make_buffer(device, TSR_MEMORY_DEVICE, 1 << 20);
    OK(tsr_stream_create(&slow, device, "slow"));
    OK(tsr_stream_create(&behind, device, "behind"));
    OK(tsr_event_create(&event, device));
    tsr_device_keep(device, &destroyed, note_destroyed);
    close_stream(slow, &gate);
    OK(tsr_event_record(event, slow));
    OK(tsr_stream_wait(behind, event, 1));
    OK(tsr_stream_copy(behind, on_device.at, host.at, 1 << 20));
    double start = tsr_now();
    tsr_arena_destroy(on_device.arena);
    tsr_arena_destroy(host.arena);
    tsr_stream_destroy(behind);
    tsr_stream_destroy(slow);
    tsr_event_destroy(event);
    tsr_device_destroy(device);
    double took = tsr_now() - start;
    assert_true(took > 0.4 && took < 3);
    assert_int_equal(destroyed, 0);
    atomic_store(&gate.open, true);
    usleep(100000);
    device = make_device(20, 0); /* the card is well */
    tsr_device_destroy(device);
}

int main(void)
{
    int count;
    if (tsr_device_cuda_count(&count) != TSR_OK) {
        print_message("skipped: %s\n", tsr_last_error());
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),        cmocka_unit_test(test_cross_stream_events),
        cmocka_unit_test(test_memory_order), cmocka_unit_test(test_generations),
        cmocka_unit_test(test_poison),       cmocka_unit_test(test_poison_wakes),
        cmocka_unit_test(test_deadlines),    cmocka_unit_test(test_destroy_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
