/* Streams and events of the CPU device: order, poison, deadlines. */
#define RIG_CREATE tsr_device_create_cpu
#include "stream_rig.h"

/* A wait binds to its generation: a later record, not yet complete, does not hold it up; and an
 * event recorded by two streams completes each generation by itself. */
static void test_generations(void **state)
{
    (void)state;
    tsr_device *device = make_device(20, 0);
    tsr_stream *slow, *fast;
    tsr_event *event;
    struct gate gate = {false};
    OK(tsr_stream_create(&slow, device, "slow"));
    OK(tsr_stream_create(&fast, device, "fast"));
    OK(tsr_event_create(&event, device));
    assert_int_equal(tsr_event_recorded(event), 0);
    assert_true(tsr_event_time(event) == 0);

    assert_int_equal(tsr_stream_wait(fast, event, 0), TSR_EINTERNAL);
    assert_int_equal(tsr_stream_wait(fast, event, 1), TSR_EINTERNAL);
    assert_non_null(strstr(tsr_last_error(), "fast would wait for record 1"));
    assert_int_equal(tsr_event_wait_host(event, 1), TSR_EINTERNAL);

    OK(tsr_event_record(event, slow)); /* 1 */
    OK(tsr_event_wait_host(event, 1));
    close_stream(slow, &gate);
    OK(tsr_event_record(event, slow)); /* 2, behind the gate */
    OK(tsr_event_record(event, fast)); /* 3 */
    assert_int_equal(tsr_event_recorded(event), 3);
    OK(tsr_stream_wait(fast, event, 1));
    OK(tsr_stream_wait(fast, event, 3));
    OK(tsr_stream_synchronize(fast)); /* 1 and 3 are complete although 2 is not */
    OK(tsr_event_wait_host(event, 3));
    assert_int_equal(tsr_stream_wait(fast, event, 4), TSR_EINTERNAL);
    atomic_store(&gate.open, true);
    OK(tsr_event_wait_host(event, 2));
    OK(tsr_device_check(device));

    tsr_stream_destroy(slow);
    tsr_stream_destroy(fast);
    tsr_event_destroy(event);
    tsr_device_destroy(device);
}

/* The first failure skips all other work on all streams, completes all events, and is what every
 * later call returns. */
static void test_poison(void **state)
{
    (void)state;
    static struct log log;
    char bytes[4] = {1, 1, 1, 1};
    tsr_device *device = make_device(20, 0);
    tsr_stream *a, *b;
    tsr_event *event, *after;
    struct gate gate = {false};
    log.count = 0;
    OK(tsr_stream_create(&a, device, "a"));
    OK(tsr_stream_create(&b, device, "b"));
    OK(tsr_event_create(&event, device));
    OK(tsr_event_create(&after, device));
    close_stream(a, &gate);
    OK(tsr_stream_call(a, fail_row, NULL, 0));
    put(a, &log, 1);
    OK(tsr_stream_fill(a, bytes, 0, 4));
    OK(tsr_event_record(event, a));
    OK(tsr_stream_wait(b, event, 1));
    put(b, &log, 2);
    OK(tsr_event_record(after, b));
    atomic_store(&gate.open, true);
    assert_int_equal(tsr_event_wait_host(after, 1), TSR_EDATA);
    assert_string_equal(tsr_last_error(), "row 7 is bad");
    assert_int_equal(log.count, 0);
    assert_int_equal(bytes[3], 1);
    tsr_device_poison(device, TSR_ECOMM, "too late");
    tsr_fail(TSR_EINVAL, "something else");
    assert_int_equal(tsr_device_check(device), TSR_EDATA);
    assert_string_equal(tsr_last_error(), "row 7 is bad");
    assert_int_equal(tsr_stream_call(a, append, NULL, 0), TSR_EDATA);
    assert_int_equal(tsr_event_record(event, a), TSR_EDATA);
    assert_int_equal(tsr_stream_wait(b, event, 1), TSR_EDATA);
    assert_int_equal(tsr_stream_copy(b, bytes, bytes + 2, 2), TSR_EDATA);
    assert_int_equal(tsr_stream_synchronize(b), TSR_EDATA);
    assert_true(tsr_event_time(after) > 0);
    tsr_stream_destroy(a);
    tsr_stream_destroy(b);
    tsr_event_destroy(event);
    tsr_event_destroy(after);
    tsr_device_destroy(device);
}

/* Poison from outside wakes a stream that waits. */
static void test_poison_wakes(void **state)
{
    (void)state;
    tsr_device *device = make_device(20, 0);
    tsr_stream *slow, *fast;
    tsr_event *event;
    struct gate gate = {false};
    OK(tsr_stream_create(&slow, device, "slow"));
    OK(tsr_stream_create(&fast, device, "fast"));
    OK(tsr_event_create(&event, device));
    close_stream(slow, &gate);
    OK(tsr_event_record(event, slow));
    OK(tsr_stream_wait(fast, event, 1));
    usleep(20000);
    double start = tsr_now();
    tsr_device_poison(device, TSR_ESTOPPED, "stopped");
    assert_int_equal(tsr_stream_synchronize(fast), TSR_ESTOPPED);
    assert_true(tsr_now() - start < 5);
    atomic_store(&gate.open, true);
    tsr_stream_destroy(slow);
    tsr_stream_destroy(fast);
    tsr_event_destroy(event);
    tsr_device_destroy(device);
}

/* Work that a failure elsewhere has let go is not taken for done: nobody has poisoned the device, but
 * the wait that has just ended asks. */
static _Atomic bool failed_outside;

static tsr_status ask_outside(const void *user, int rank)
{
    return atomic_load((const _Atomic bool *)user) ? tsr_fail(TSR_ECOMM, "rank %d has failed", rank)
                                                   : TSR_OK;
}

static tsr_status fail_outside(void *args, tsr_pool *pool)
{
    (void)args;
    (void)pool;
    atomic_store(&failed_outside, true);
    return TSR_OK;
}

static void test_outside(void **state)
{
    (void)state;
    tsr_device *device = make_device(20, 0);
    tsr_stream *stream;
    OK(tsr_stream_create(&stream, device, "s"));
    tsr_device_set_outside(device, ask_outside, &failed_outside, 3);
    OK(tsr_stream_synchronize(stream));
    OK(tsr_stream_call(stream, fail_outside, NULL, 0));
    assert_int_equal(tsr_stream_synchronize(stream), TSR_ECOMM);
    assert_string_equal(tsr_last_error(), "rank 3 has failed");
    tsr_device_set_outside(device, NULL, NULL, 0);
    assert_int_equal(tsr_device_check(device), TSR_ECOMM); /* poisoned for good */
    tsr_stream_destroy(stream);
    tsr_device_destroy(device);
}

static void test_deadlines(void **state)
{
    (void)state;
    tsr_device *device = make_device(0.2, 0);
    tsr_stream *slow, *fast;
    tsr_event *event;
    struct gate gate = {false};
    assert_true(tsr_device_timeout(device) == 0.2);
    OK(tsr_stream_create(&slow, device, "slow"));
    OK(tsr_stream_create(&fast, device, "fast"));
    OK(tsr_event_create(&event, device));
    close_stream(slow, &gate);
    OK(tsr_event_record(event, slow));
    assert_int_equal(tsr_event_wait_host(event, 1), TSR_ETIMEOUT);
    assert_int_equal(tsr_stream_synchronize(slow), TSR_ETIMEOUT);
    OK(tsr_device_check(device)); /* the caller's wait ended, the device is well */
    for (int i = 0; i < 1022; i++)
        OK(tsr_event_record(event, slow));
    assert_int_equal(tsr_event_record(event, slow), TSR_ETIMEOUT);
    assert_non_null(strstr(tsr_last_error(), "slow is full"));
    OK(tsr_stream_wait(fast, event, 1));
    assert_int_equal(tsr_stream_synchronize(fast), TSR_ETIMEOUT);
    atomic_store(&gate.open, true);
    for (int i = 0; i < 500 && tsr_device_check(device) == TSR_OK; i++)
        usleep(1000);
    tsr_stream_destroy(slow);
    tsr_stream_destroy(fast);
    tsr_event_destroy(event);
    tsr_device_destroy(device);
}

static void test_copies(void **state)
{
    (void)state;
    char from[100], to[100], args[TSR_CALL_BYTES + 1] = {0};
    tsr_device *device = make_device(20, 9);
    tsr_stream *stream;
    memset(from, 7, sizeof from);
    memset(to, 1, sizeof to);
    OK(tsr_stream_create(&stream, device, "a name longer than fifteen"));
    assert_ptr_equal(tsr_stream_device(stream), device);
    OK(tsr_stream_copy(stream, to, from, 50));
    OK(tsr_stream_fill(stream, to + 10, 0, 5));
    OK(tsr_stream_fill(stream, to + 60, 0x7f, 1));
    OK(tsr_stream_copy(stream, NULL, NULL, 0));
    OK(tsr_stream_fill(stream, NULL, 0, 0));
    OK(tsr_stream_synchronize(stream));
    assert_int_equal(to[60], 0x7f);
    to[60] = 1;
    for (int i = 0; i < 100; i++)
        assert_int_equal(to[i], i >= 50 ? 1 : i >= 10 && i < 15 ? 0 : 7);
    assert_int_equal(tsr_stream_call(stream, append, args, sizeof args), TSR_EINVAL);
    tsr_stream_destroy(stream);
    tsr_device_destroy(device);
}

static void test_times(void **state)
{
    (void)state;
    tsr_device *device = make_device(20, 0);
    tsr_stream *stream;
    tsr_event *event;
    OK(tsr_stream_create(&stream, device, "compute"));
    OK(tsr_event_create_timed(&event, device));
    assert_true(tsr_event_time(event) == 0);
    double before = tsr_now();
    OK(tsr_event_record(event, stream));
    OK(tsr_event_wait_host(event, 1));
    assert_true(tsr_event_time(event) >= before && tsr_event_time(event) <= tsr_now());
    tsr_stream_destroy(stream);
    tsr_event_destroy(event);
    tsr_device_destroy(device);
}

/* Work that is enqueued runs before its stream is destroyed. */
static void test_destroy_drains(void **state)
{
    (void)state;
    static struct log log;
    tsr_device *device = make_device(20, 3);
    tsr_stream *stream;
    log.count = 0;
    OK(tsr_stream_create(&stream, device, "compute"));
    for (int i = 0; i < 50; i++)
        put(stream, &log, i);
    tsr_stream_destroy(stream);
    assert_int_equal(log.count, 50);
    tsr_device_destroy(device);
    tsr_stream_destroy(NULL);
    tsr_event_destroy(NULL);
    tsr_device_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),       cmocka_unit_test(test_cross_stream_events),
        cmocka_unit_test(test_generations), cmocka_unit_test(test_poison),
        cmocka_unit_test(test_deadlines),   cmocka_unit_test(test_poison_wakes),
        cmocka_unit_test(test_copies),      cmocka_unit_test(test_destroy_drains),
        cmocka_unit_test(test_times),       cmocka_unit_test(test_outside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
