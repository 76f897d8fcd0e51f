/*
 * tests/device/rig.h: what the tests of a device share; RIG_CREATE, defined before, makes it. Calls of
 * all streams of a GPU may share one thread of CUDA's, so a closed gate on one stream holds up the
 * calls of the others too: they only copy meanwhile.
 */
#ifndef TSR_TESTS_DEVICE_RIG_H
#define TSR_TESTS_DEVICE_RIG_H

#include "base/clock.h"
#include "device/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define OK(call) assert_int_equal(or_say(call), TSR_OK)

static inline tsr_status or_say(tsr_status status)
{
    if (status < 0)
        print_error("%s\n", tsr_last_error());
    return status;
}

static inline tsr_device *make_device(double timeout_seconds, uint64_t seed)
{
    tsr_device *device = NULL;
    OK(RIG_CREATE(&device, &(tsr_device_options){.thread_count = 2,
                                                 .timeout_seconds = timeout_seconds,
                                                 .delay_seed = seed,
                                                 .delay_max_us = 300}));
    return device;
}

/* A buffer that is an arena of its own. */
struct buffer {
    tsr_arena *arena;
    unsigned char *at;
};

static inline struct buffer make_buffer(tsr_device *device, tsr_memory memory, uint64_t bytes)
{
    struct buffer b;
    void *at;
    OK(tsr_arena_create(&b.arena, device, memory, bytes));
    OK(tsr_arena_take(&at, b.arena, "buffer", bytes));
    b.at = at;
    return b;
}

struct gate {
    _Atomic bool open;
    _Atomic bool reached;
};

static inline tsr_status wait_gate(void *args, tsr_pool *pool)
{
    (void)pool;
    struct gate *gate = *(struct gate **)args;
    atomic_store(&gate->reached, true);
    while (!atomic_load(&gate->open))
        usleep(200);
    return TSR_OK;
}

/* Returns when the stream stands at the gate. */
static inline void close_stream(tsr_stream *stream, struct gate *gate)
{
    OK(tsr_stream_call(stream, wait_gate, &gate, sizeof gate));
    while (!atomic_load(&gate->reached))
        usleep(200);
}

static inline void note_destroyed(void *context)
{
    ++*(int *)context;
}

#endif
