#include "device/device.h"
#include "device/topology.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define OK(call) assert_int_equal((call), TSR_OK)

/* The shares of all ranks together are no more than the cores, and each has at least one. */
static void test_shares(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 8; ranks++)
        for (int rank = 0; rank < ranks; rank++) {
            tsr_topology *topology;
            OK(tsr_topology_create(&topology, rank, ranks, NULL));
            int cores = tsr_topology_core_count(topology);
            int share = tsr_topology_share_count(topology);
            assert_true(cores >= 1);
            assert_int_equal(share, cores / ranks > 1 ? cores / ranks : 1);
            tsr_topology_destroy(topology);
        }
}

/* A launcher that bound each rank to cores of its own is not shared out again. */
static void test_bound_by_launcher(void **state)
{
    (void)state;
    tsr_topology *topology;
    setenv("OMPI_MCA_orte_bound_at_launch", "1", 1);
    OK(tsr_topology_create(&topology, 1, 2, NULL));
    assert_int_equal(tsr_topology_share_count(topology), tsr_topology_core_count(topology));
    tsr_topology_destroy(topology);
    unsetenv("OMPI_MCA_orte_bound_at_launch");
}

static tsr_status read_affinity(void *args, tsr_pool *pool)
{
    (void)pool;
    cpu_set_t *set = *(cpu_set_t **)args;
    return sched_getaffinity(0, sizeof *set, set) ? tsr_fail(TSR_EIO, "no affinity") : TSR_OK;
}

static void get_affinity(cpu_set_t *set, tsr_device_options options)
{
    tsr_device *device;
    tsr_stream *stream;
    OK(tsr_device_create_cpu(&device, &options));
    OK(tsr_stream_create(&stream, device, "compute"));
    OK(tsr_stream_call(stream, read_affinity, &set, sizeof set));
    OK(tsr_stream_synchronize(stream));
    tsr_stream_destroy(stream);
    tsr_device_destroy(device);
}

/* Two ranks' threads stay on different cores where there are two. */
static void test_binding(void **state)
{
    (void)state;
    cpu_set_t first, second, both, all;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    if (CPU_COUNT(&all) < 2)
        skip();
    get_affinity(&first, (tsr_device_options){.local_rank = 0, .local_rank_count = 2});
    get_affinity(&second, (tsr_device_options){.local_rank = 1, .local_rank_count = 2});
    CPU_AND(&both, &first, &second);
    assert_true(CPU_COUNT(&first) >= 1 && CPU_COUNT(&second) >= 1);
    if (CPU_COUNT(&first) < CPU_COUNT(&all)) /* else: one core with several hardware threads */
        assert_int_equal(CPU_COUNT(&both), 0);
    get_affinity(&first, (tsr_device_options){.local_rank_count = 2, .no_pinning = true});
    assert_true(CPU_EQUAL(&first, &all));
    get_affinity(&first, (tsr_device_options){.local_rank_count = 4096});
    assert_true(CPU_EQUAL(&first, &all));
}

static void test_description(void **state)
{
    (void)state;
    tsr_device *device;
    OK(tsr_device_create_cpu(&device, &(tsr_device_options){.thread_count = 3}));
    assert_int_equal(tsr_device_kind_of(device), TSR_DEVICE_CPU);
    assert_int_equal(strncmp(tsr_device_description(device), "CPU (", 5), 0);
    assert_non_null(strstr(tsr_device_description(device), "3 threads"));
    assert_true(tsr_device_timeout(device) == 300);
    tsr_device_destroy(device);
}

static void note_destroyed(void *context)
{
    ++*(int *)context;
}

/* What a layer above keeps goes with the device, once. */
static void test_keep(void **state)
{
    (void)state;
    int destroyed = 0;
    tsr_device *device;
    OK(tsr_device_create_cpu(&device, NULL));
    assert_null(tsr_device_kept(device));
    tsr_device_keep(device, &destroyed, note_destroyed);
    assert_ptr_equal(tsr_device_kept(device), &destroyed);
    assert_int_equal(destroyed, 0);
    tsr_device_destroy(device);
    assert_int_equal(destroyed, 1);
}

/* A card that is not there changes nothing. */
static void test_no_card(void **state)
{
    (void)state;
    static const char *const ids[] = {"0000:ff:1f.7", "nonsense"};
    tsr_topology *plain, *topology;
    OK(tsr_topology_create(&plain, 0, 1, NULL));
    for (int i = 0; i < 2; i++) {
        OK(tsr_topology_create(&topology, 0, 1, ids[i]));
        assert_int_equal(tsr_topology_core_count(topology), tsr_topology_core_count(plain));
        tsr_topology_destroy(topology);
    }
    tsr_topology_destroy(plain);
}

static void test_bad_options(void **state)
{
    (void)state;
    tsr_device *device;
    assert_int_equal(tsr_device_create_cpu(&device, &(tsr_device_options){.thread_count = -1}),
                     TSR_EINVAL);
    assert_int_equal(tsr_device_create_cpu(&device, &(tsr_device_options){.local_rank = 1}),
                     TSR_EINVAL);
    assert_int_equal(tsr_device_create_cpu(&device, &(tsr_device_options){.timeout_seconds = -1}),
                     TSR_EINVAL);
}

int main(void)
{
    unsetenv("OMPI_MCA_orte_bound_at_launch");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shares),      cmocka_unit_test(test_bound_by_launcher),
        cmocka_unit_test(test_binding),     cmocka_unit_test(test_description),
        cmocka_unit_test(test_bad_options), cmocka_unit_test(test_keep),
        cmocka_unit_test(test_no_card),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
