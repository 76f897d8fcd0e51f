/*
 * Every call of CUDA fails once, on a made-up runtime: when memory runs out anywhere between opening
 * the device and the last event, a message says how much was asked for and is free and what to do;
 * whatever fails, nothing hangs, and nothing is left behind. Cards that cannot be used, and which one is.
 */
#include "base/clock.h"
#include "device/cuda.h"
#include "fake_runtime.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define DEVICE_BYTES 1048583
#define HOST_BYTES   2097169
#define PINNED_BYTES 4096

/* All that a job makes of a device, as far as it comes. */
typedef struct {
    tsr_device *device;
    tsr_arena *on_device, *on_host;
    tsr_stream *compute, *comm;
    tsr_event *event, *timed;
    char *shared;
    bool pinned;
} rig;

static tsr_status build(rig *r)
{
    void *to, *from;
    tsr_device_options options = {.thread_count = 1, .no_pinning = true, .timeout_seconds = 0.5};
    TSR_TRY(tsr_device_create_cuda(&r->device, &options));
    TSR_TRY(tsr_arena_create(&r->on_device, r->device, TSR_MEMORY_DEVICE, DEVICE_BYTES));
    TSR_TRY(tsr_arena_create(&r->on_host, r->device, TSR_MEMORY_HOST, HOST_BYTES));
    TSR_TRY(tsr_stream_create(&r->compute, r->device, "compute"));
    TSR_TRY(tsr_stream_create(&r->comm, r->device, "comm"));
    TSR_TRY(tsr_event_create(&r->event, r->device));
    TSR_TRY(tsr_event_create_timed(&r->timed, r->device));
    TSR_TRY(tsr_device_pin(r->device, r->shared, PINNED_BYTES));
    r->pinned = true;
    TSR_TRY(tsr_arena_take(&to, r->on_device, "to", 1000));
    TSR_TRY(tsr_arena_take(&from, r->on_host, "from", 1000));
    TSR_TRY(tsr_stream_copy(r->compute, to, from, 1000));
    TSR_TRY(tsr_event_record(r->event, r->compute));
    TSR_TRY(tsr_stream_wait(r->comm, r->event, 1));
    TSR_TRY(tsr_stream_fill(r->comm, to, 1, 1000));
    TSR_TRY(tsr_event_record(r->timed, r->comm));
    TSR_TRY(tsr_event_wait_host(r->timed, 1));
    TSR_TRY(tsr_stream_synchronize(r->compute));
    return tsr_device_read(r->device, from, to, 1000);
}

static void take_down(rig *r)
{
    if (r->pinned)
        tsr_device_unpin(r->device, r->shared);
    tsr_event_destroy(r->timed);
    tsr_event_destroy(r->event);
    tsr_stream_destroy(r->comm);
    tsr_stream_destroy(r->compute);
    tsr_arena_destroy(r->on_host);
    tsr_arena_destroy(r->on_device);
    tsr_device_destroy(r->device);
    free(r->shared);
}

static tsr_status attempt(enum fake_calls fails, int fail_at, cudaError_t error)
{
    rig r = {.shared = malloc(PINNED_BYTES)};
    double start = tsr_now();
    assert_non_null(r.shared);
    fake = (struct fake_runtime){.fails = fails, .fail_at = fail_at, .error = error};
    tsr_status status = build(&r);
    take_down(&r);
    if (fake.live != 0)
        fail_msg("call %d fails: %d things are left; %s", fail_at, fake.live, tsr_last_error());
    assert_true(tsr_now() - start < 5);
    return status;
}

static void check_message(const char *const *words)
{
    for (; *words; words++)
        if (!strstr(tsr_last_error(), *words))
            fail_msg("\"%s\" is not in: %s", *words, tsr_last_error());
}

static void memory_runs_out(void **state)
{
    (void)state;
    int failures = 0, of_arena = 0, of_pinning = 0;
    tsr_status status;
    while ((status = attempt(FAKE_ALLOCATIONS, failures + 1, cudaErrorMemoryAllocation)) != 0) {
        print_message("%s\n", tsr_last_error());
        assert_int_equal(tsr_status_exit_code(status), 71);
        assert_int_equal(status, TSR_ENOMEM);
        if (strstr(tsr_last_error(), "pinned"))
            check_message((const char *[]){of_pinning++ ? "4096 bytes" : "2097169 bytes",
                                           "out of memory", "ulimit -l", NULL});
        else if (strstr(tsr_last_error(), "arena"))
            check_message((const char *[]){"arena of 1048583 bytes", "12345678 of its 98765432",
                                           "nvidia-smi", NULL}),
                of_arena++;
        else
            check_message((const char *[]){"CUDA: ",
                                           "12345678 of the GPU's 98765432 bytes are "
                                           "free",
                                           "nvidia-smi", NULL});
        failures++;
    }
    assert_int_equal(of_arena, 1);
    assert_int_equal(of_pinning, 2);
    assert_int_equal(failures, fake.count[FAKE_ALLOCATIONS]);
    assert_int_equal(failures, 13); /* context; 3 streams; 4 events, 2 of the clock; 3 memories */
}

static void anything_fails(void **state)
{
    (void)state;
    int noticed = 0;
    assert_int_equal(attempt(FAKE_ANY, 0, cudaSuccess), TSR_OK);
    for (int n = 1, calls = fake.count[FAKE_ANY]; n <= calls; n++) {
        tsr_status status = attempt(FAKE_ANY, n, cudaErrorUnknown);
        /* What only looks (a priority, a time, a stream before it goes) may be done without. */
        if (status == TSR_OK)
            continue;
        noticed++;
        if (tsr_status_exit_code(status) != 71)
            fail_msg("call %d: %s: %s", n, tsr_status_name(status), tsr_last_error());
        check_message((const char *[]){"unknown error", NULL});
    }
    assert_true(noticed > 20);
}

/* Cards and drivers that cannot be used. */
static void cards_are_refused(void **state)
{
    (void)state;
    static const struct {
        struct fake_runtime fake;
        const char *words[4];
    } cases[] = {
        {{.major = 7}, {"a made-up GPU", "compute capability 7.0", "expected 8.0"}},
        {{.probe = cudaErrorNoKernelImageForDevice},
         {"compute capability 9.0", "TSR_CUDA_ARCHS=90"}},
        {{.cards = cudaErrorInsufficientDriver}, {"no NVIDIA driver", "libcuda.so.1"}},
        {{.cards = cudaErrorInsufficientDriver, .driver = 11080}, {"knows CUDA 11.8", "update"}},
        {{.cards = cudaErrorNoDevice, .driver = 13000}, {"no GPU", "CUDA_VISIBLE_DEVICES"}},
        {{.cards = cudaErrorStubLibrary}, {"stub", "LD_LIBRARY_PATH"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsr_device *device = NULL;
        fake = cases[i].fake;
        tsr_status status = tsr_device_create_cuda(&device, NULL);
        assert_int_equal(tsr_status_exit_code(status), 71);
        assert_int_equal(status, TSR_EDEVICE);
        assert_null(device);
        check_message(cases[i].words);
        check_message((const char *[]){"backend: cpu", NULL});
        assert_int_equal(fake.live, 0);
    }
}

/* Kernels may start early where they are of code that waits, whatever the card. */
static void old_code_does_not_start_early(void **state)
{
    (void)state;
    static const int archs[] = {80, 89, 90, 100};
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
        tsr_device *device = NULL;
        fake = (struct fake_runtime){.arch = archs[i]};
        assert_int_equal(tsr_device_create_cuda(&device, NULL), TSR_OK);
        assert_int_equal(tsr_device_cuda_properties(device)->early_kernels,
                         TSR_CUDA_EARLY && archs[i] >= 90);
        tsr_device_destroy(device);
    }
}

/* Jobs of one process have cards of their own. */
static void the_first_card_is_named(void **state)
{
    (void)state;
    for (int first = 0; first < 5; first++)
        for (int rank = 0; rank < 2; rank++) {
            tsr_device *device = NULL;
            tsr_device_options options = {
                .first_card = first, .local_rank = rank, .local_rank_count = 2};
            fake = (struct fake_runtime){.more_cards = 2};
            assert_int_equal(tsr_device_create_cuda(&device, &options), TSR_OK);
            assert_int_equal(tsr_device_cuda_properties(device)->index, (first + rank) % 3);
            tsr_device_destroy(device);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_runs_out),         cmocka_unit_test(anything_fails),
        cmocka_unit_test(cards_are_refused),       cmocka_unit_test(old_code_does_not_start_early),
        cmocka_unit_test(the_first_card_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
