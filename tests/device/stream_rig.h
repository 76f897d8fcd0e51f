/*
 * tests/device/stream_rig.h: what the tests of streams share: calls that leave a trace, and the cases
 * that are the same on every device.
 */
#ifndef TSR_TESTS_DEVICE_STREAM_RIG_H
#define TSR_TESTS_DEVICE_STREAM_RIG_H

#include "rig.h"

struct log {
    int count;
    int value[4096];
};

struct append {
    struct log *log;
    int value;
};

static inline tsr_status append(void *args, tsr_pool *pool)
{
    struct append *a = args;
    a->log->value[a->log->count++] = pool ? a->value : -1;
    return TSR_OK;
}

static inline void put(tsr_stream *stream, struct log *log, int value)
{
    struct append a = {log, value};
    OK(tsr_stream_call(stream, append, &a, sizeof a));
}

static inline void check_log(const struct log *log, int count)
{
    assert_int_equal(log->count, count);
    for (int i = 0; i < count; i++)
        assert_int_equal(log->value[i], i);
}

static inline tsr_status fail_row(void *args, tsr_pool *pool)
{
    (void)args;
    (void)pool;
    return tsr_fail(TSR_EDATA, "row 7 is bad");
}

/* More calls than are kept at a time: the enqueuing thread waits, and the order stays. */
static inline void test_order(void **state)
{
    (void)state;
    static struct log log;
    char args[TSR_CALL_BYTES + 1] = {0};
    tsr_device *device = make_device(20, 0);
    tsr_stream *stream;
    log.count = 0;
    OK(tsr_stream_create(&stream, device, "a name longer than fifteen"));
    assert_ptr_equal(tsr_stream_device(stream), device);
    for (int i = 0; i < 4000; i++)
        put(stream, &log, i);
    OK(tsr_stream_synchronize(stream));
    check_log(&log, 4000);
    assert_int_equal(tsr_stream_call(stream, append, args, sizeof args), TSR_EINVAL);
    tsr_stream_destroy(stream);
    tsr_device_destroy(device);
}

/* Two streams that hand a log to and fro; random delays must not change its order. */
static inline void test_cross_stream_events(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 4; seed++) {
        static struct log log;
        tsr_device *device = make_device(20, seed);
        tsr_stream *stream[2];
        tsr_event *event[2];
        log.count = 0;
        for (int i = 0; i < 2; i++) {
            OK(tsr_stream_create(&stream[i], device, i ? "comm" : "compute"));
            OK(tsr_event_create(&event[i], device));
        }
        for (int i = 0; i < 100; i++) {
            int me = i % 2, other = 1 - me;
            if (i > 0)
                OK(tsr_stream_wait(stream[me], event[other], tsr_event_recorded(event[other])));
            put(stream[me], &log, i);
            OK(tsr_event_record(event[me], stream[me]));
        }
        OK(tsr_event_wait_host(event[1], 50));
        check_log(&log, 100);
        assert_true(tsr_event_time(event[1]) >= tsr_event_time(event[0]));
        for (int i = 0; i < 2; i++) {
            tsr_stream_destroy(stream[i]);
            tsr_event_destroy(event[i]);
        }
        tsr_device_destroy(device);
    }
}

#endif
