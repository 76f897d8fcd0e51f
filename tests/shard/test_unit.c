/*
 * Granules, layouts of units, the memory plan and the trainable state.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "shard/memory_plan.h"
#include "shard/trainable.h"

#include <string.h>

static void test_granules(void **state)
{
    (void)state;
    for (uint64_t granules = 0; granules <= 40; granules++)
        for (uint64_t ranks = 1; ranks <= 9; ranks++) {
            uint64_t c = tsr_granule_per_rank(granules, ranks), next = 0;
            assert_true(c * ranks >= granules);
            for (uint64_t rank = 0; rank < ranks; rank++) {
                uint64_t first, count;
                tsr_granule_range(&first, &count, granules, ranks, rank);
                assert_int_equal(first, next);
                assert_true(count <= c);
                if (count > 0)
                    assert_int_equal(first, rank * c);
                next = first + count;
            }
            assert_int_equal(next, granules);
        }
}

static tsr_segment frozen[3], trainable[2];

static tsr_unit make_unit(tsr_home home)
{
    frozen[0] =
        (tsr_segment){.name = "codes", .dtype = TSR_U8, .granule_bytes = 512, .granule_count = 7};
    frozen[1] =
        (tsr_segment){.name = "absmax", .dtype = TSR_U8, .granule_bytes = 16, .granule_count = 7};
    frozen[2] =
        (tsr_segment){.name = "norm", .dtype = TSR_BF16, .granule_bytes = 128, .granule_count = 1};
    trainable[0] = (tsr_segment){.name = "A",
                                 .dtype = TSR_BF16,
                                 .granule_bytes = 2 * TSR_GRANULE_ELEMENTS,
                                 .granule_count = 5};
    trainable[1] = (tsr_segment){.name = "m",
                                 .dtype = TSR_F32,
                                 .granule_bytes = 4 * TSR_GRANULE_ELEMENTS,
                                 .granule_count = 2};
    return (tsr_unit){.home = home,
                      .frozen = {.segment = frozen, .segment_count = 3},
                      .trainable = {.segment = trainable, .segment_count = 2}};
}

static void test_layout(void **state)
{
    (void)state;
    tsr_unit unit = make_unit(TSR_HOME_SHARDED);
    assert_int_equal(tsr_unit_lay_out(&unit, 3), TSR_OK);
    assert_int_equal(frozen[0].per_rank, 3);
    assert_int_equal(frozen[0].shard_bytes, 3 * 512);
    assert_int_equal(frozen[0].gathered_bytes, 9 * 512);
    assert_int_equal(frozen[1].gathered_offset, 9 * 512);
    assert_int_equal(frozen[1].gathered_bytes, 9 * 16);
    assert_int_equal(frozen[2].gathered_offset, 9 * 512 + 256);
    assert_int_equal(frozen[2].shard_offset, 3 * 512 + 256);
    assert_int_equal(frozen[2].gathered_bytes, 3 * 128);
    assert_int_equal(unit.frozen.gathered_bytes, 9 * 512 + 256 + 512);
    assert_int_equal(unit.frozen.gradient_count, 0);
    assert_int_equal(trainable[0].gradient_count, 2 * TSR_GRANULE_ELEMENTS);
    assert_int_equal(trainable[1].gradient_offset, 2 * TSR_GRANULE_ELEMENTS);
    assert_int_equal(unit.trainable.gradient_count, 3 * TSR_GRANULE_ELEMENTS);
    assert_int_equal(tsr_unit_slot_trainable(&unit, 3), unit.frozen.gathered_bytes);
    assert_int_equal(tsr_unit_slot_bytes(&unit, 3),
                     unit.frozen.gathered_bytes + unit.trainable.gathered_bytes);
    unit.home = TSR_HOME_RESIDENT;
    assert_int_equal(tsr_unit_slot_bytes(&unit, 3), unit.trainable.gathered_bytes);
}

/* One rank: the shard is what would be gathered, so nothing passes through a slot. */
static void test_one_rank(void **state)
{
    (void)state;
    tsr_unit unit = make_unit(TSR_HOME_SHARDED);
    assert_int_equal(tsr_unit_lay_out(&unit, 1), TSR_OK);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(frozen[i].shard_offset, frozen[i].gathered_offset);
        assert_int_equal(frozen[i].shard_bytes, frozen[i].gathered_bytes);
    }
    assert_int_equal(tsr_unit_slot_bytes(&unit, 1), 0);
    unit.home = TSR_HOME_HOST_SHARDED;
    assert_int_equal(tsr_unit_slot_bytes(&unit, 1), unit.frozen.gathered_bytes);
}

static void test_layout_refused(void **state)
{
    (void)state;
    tsr_unit unit = make_unit(TSR_HOME_SHARDED);
    trainable[0].granule_bytes = 256;
    assert_int_equal(tsr_unit_lay_out(&unit, 2), TSR_EINVAL);
    assert_non_null(strstr(tsr_last_error(), "A: granules of 256 bytes"));
    unit = make_unit(TSR_HOME_SHARDED);
    trainable[1].dtype = TSR_F16;
    assert_int_equal(tsr_unit_lay_out(&unit, 2), TSR_EINVAL);
    unit = make_unit(TSR_HOME_SHARDED);
    frozen[1].granule_count = UINT64_MAX / 8;
    assert_int_equal(tsr_unit_lay_out(&unit, 2), TSR_EINVAL);
    assert_non_null(strstr(tsr_last_error(), "absmax"));
    unit = make_unit(TSR_HOME_SHARDED);
    frozen[2].granule_bytes = 0;
    assert_int_equal(tsr_unit_lay_out(&unit, 2), TSR_EINVAL);
    assert_int_equal(tsr_unit_lay_out(&unit, 0), TSR_EINVAL);
}

static void test_trainable(void **state)
{
    (void)state;
    tsr_unit unit = make_unit(TSR_HOME_SHARDED);
    assert_int_equal(tsr_unit_lay_out(&unit, 3), TSR_OK);
    tsr_unit units[2] = {unit, unit};
    tsr_trainable t;
    assert_int_equal(tsr_trainable_make(&t, units, 2, 3, 2), TSR_OK);
    assert_int_equal(t.count, 2 * 3 * TSR_GRANULE_ELEMENTS);
    assert_int_equal(t.work_bytes, 2 * unit.trainable.shard_bytes);
    tsr_memory_plan plan = {0};
    tsr_taker taker = {.plan = &plan};
    assert_int_equal(tsr_trainable_walk(&t, &taker, true, false, TSR_PLACE_DEVICE), TSR_OK);
    assert_int_equal(plan.count, 5);
    assert_int_equal(plan.total[TSR_PLACE_DEVICE],
                     tsr_align_up(t.work_bytes, 256) + t.count * (3 * 4 + 8));
    /* Five granules over three ranks, two each: the last rank has one and one of padding. */
    tsr_trainable_span span = tsr_trainable_at(&t, 1, 0);
    assert_int_equal(span.begin, 3 * TSR_GRANULE_ELEMENTS);
    assert_int_equal(span.count, 2 * TSR_GRANULE_ELEMENTS);
    assert_int_equal(span.first, 4 * TSR_GRANULE_ELEMENTS);
    assert_int_equal(span.real, TSR_GRANULE_ELEMENTS);
    span = tsr_trainable_at(&t, 0, 1);
    assert_int_equal(span.begin, 2 * TSR_GRANULE_ELEMENTS);
    assert_int_equal(span.real, 0);
    tsr_state_buffer buffer[TSR_TRAINABLE_STATE_MOST];
    assert_int_equal(tsr_trainable_state(buffer, &t, &span), 3);
    assert_string_equal(buffer[0].name, "master");
    assert_int_equal(buffer[2].dtype, TSR_F32);
    tsr_memory_plan_free(&plan);
    tsr_trainable_free(&t);
}

/* The first segment's moments are codes, the second's are not: a byte an element and four. */
static void test_coded_moments(void **state)
{
    (void)state;
    enum { G = TSR_GRANULE_ELEMENTS };
    tsr_unit unit = make_unit(TSR_HOME_SHARDED);
    unit.trainable.segment[0].coded = true;
    assert_int_equal(tsr_unit_lay_out(&unit, 3), TSR_OK);
    const tsr_unit units[2] = {unit, unit};
    tsr_trainable t;
    assert_int_equal(tsr_trainable_make(&t, units, 2, 3, 0), TSR_OK);
    assert_true(t.coded);
    assert_int_equal(t.moment_bytes, 2 * (2 * G + 4 * G));
    assert_int_equal(tsr_unit_moment_bytes(units, 2, G), G);
    assert_int_equal(tsr_unit_moment_bytes(units, 2, 3 * G), 6 * G);
    assert_int_equal(tsr_unit_moment_bytes(units, 2, 4 * G), 7 * G);
    tsr_memory_plan plan = {0};
    tsr_taker taker = {.plan = &plan};
    assert_int_equal(tsr_trainable_walk(&t, &taker, true, false, TSR_PLACE_HOST), TSR_OK);
    assert_int_equal(plan.total[TSR_PLACE_HOST], t.count * 4 + 2 * t.moment_bytes);
    static char m[12 * G], v[12 * G];
    static float absmax[12];
    t.m = m, t.v = v, t.absmax = absmax;
    tsr_trainable_span codes = tsr_trainable_at(&t, 1, 0), floats = tsr_trainable_at(&t, 1, 1);
    tsr_state_buffer buffer[TSR_TRAINABLE_STATE_MOST];
    assert_int_equal(tsr_trainable_state(buffer, &t, &codes), 4);
    assert_true(buffer[1].dtype == TSR_U8 && buffer[1].data == m + 6 * G);
    assert_true(buffer[3].each == 2 && buffer[3].data == (char *)(absmax + 2 * 3));
    assert_int_equal(tsr_trainable_state(buffer, &t, &floats), 3);
    assert_true(buffer[2].dtype == TSR_F32 && buffer[2].data == v + 8 * G);
    tsr_memory_plan_free(&plan);
    tsr_trainable_free(&t);
}

/* Masters and moments may live on the host. */
static void test_trainable_on_host(void **state)
{
    (void)state;
    tsr_unit unit = make_unit(TSR_HOME_SHARDED);
    assert_int_equal(tsr_unit_lay_out(&unit, 3), TSR_OK);
    tsr_trainable t;
    assert_int_equal(tsr_trainable_make(&t, &unit, 1, 3, 0), TSR_OK);
    tsr_memory_plan plan = {0};
    tsr_taker taker = {.plan = &plan};
    assert_int_equal(tsr_trainable_walk(&t, &taker, true, false, TSR_PLACE_HOST), TSR_OK);
    assert_int_equal(plan.total[TSR_PLACE_HOST], 3 * t.count * sizeof(float));
    assert_int_equal(plan.total[TSR_PLACE_DEVICE],
                     tsr_align_up(t.work_bytes, 256) + t.count * sizeof(int64_t));
    tsr_memory_plan_free(&plan);
    assert_int_equal(tsr_trainable_walk(&t, &taker, true, true, TSR_PLACE_HOST), TSR_OK);
    assert_int_equal(plan.total[TSR_PLACE_DEVICE],
                     tsr_align_up(t.work_bytes, 256) + t.count * sizeof(float));
    tsr_memory_plan_free(&plan);
    tsr_trainable_free(&t);
}

/* Layers that save take turns, whoever lies between them; the last two of them stay. */
static void test_regions(void **state)
{
    (void)state;
    static const uint64_t saved[6] = {0, 8, 16, 0, 24, 0};
    static const int region[6] = {-1, 0, 1, -1, 0, -1};
    for (int u = 0; u < 6; u++) {
        assert_int_equal(tsr_saved_region(saved, u), region[u]);
        assert_int_equal(tsr_saved_travels(saved, 6, u), u == 1);
    }
}

static void test_memory_plan(void **state)
{
    (void)state;
    tsr_device *device;
    assert_int_equal(tsr_device_create_cpu(
                         &device, &(tsr_device_options){.thread_count = 1, .no_pinning = true}),
                     TSR_OK);
    tsr_memory_plan plan = {0};
    tsr_taker planning = {.plan = &plan};
    void *at;
    assert_int_equal(tsr_taker_device(&planning, &at, "a", "why", tsr_array_of_bytes(100)), TSR_OK);
    assert_null(at);
    assert_int_equal(tsr_taker_device(&planning, &at, "nothing", "why", tsr_array_of_bytes(0)),
                     TSR_OK);
    assert_int_equal(tsr_taker_host(&planning, &at, "b", "why", tsr_array_of_bytes(257)), TSR_OK);
    assert_int_equal(
        tsr_taker_take(&planning, &at, TSR_PLACE_NODE, "c", "why", (tsr_array){TSR_F32, 25, 10}),
        TSR_OK);
    assert_int_equal(plan.count, 3);
    assert_int_equal(plan.total[TSR_PLACE_DEVICE], 256);
    assert_int_equal(plan.total[TSR_PLACE_HOST], 512);
    assert_int_equal(plan.total[TSR_PLACE_NODE], 1024);

    tsr_arena *memory, *host;
    assert_int_equal(tsr_arena_create(&memory, device, TSR_MEMORY_DEVICE, 256), TSR_OK);
    assert_int_equal(tsr_arena_create(&host, device, TSR_MEMORY_HOST, 512), TSR_OK);
    tsr_taker running = {.plan = &plan, .device = memory, .host = host};
    assert_int_equal(tsr_taker_device(&running, &at, "b", "why", tsr_array_of_bytes(100)),
                     TSR_EINTERNAL);
    running.cursor = 0;
    assert_int_equal(tsr_taker_device(&running, &at, "a", "why", tsr_array_of_bytes(101)),
                     TSR_EINTERNAL);
    running.cursor = 0;
    assert_int_equal(tsr_taker_device(&running, &at, "a", "why", tsr_array_of_bytes(100)), TSR_OK);
    assert_non_null(at);
    assert_int_equal(tsr_taker_finish(&running), TSR_EINTERNAL);
    assert_int_equal(tsr_taker_host(&running, &at, "b", "why", tsr_array_of_bytes(257)), TSR_OK);
    assert_int_equal(
        tsr_taker_take(&running, &at, TSR_PLACE_NODE, "c", "why", (tsr_array){TSR_F32, 25, 10}),
        TSR_OK);
    assert_int_equal(tsr_taker_finish(&running), TSR_OK);
    assert_int_equal(tsr_taker_host(&running, &at, "d", "why", tsr_array_of_bytes(1)),
                     TSR_EINTERNAL);
    tsr_arena_destroy(memory);
    tsr_arena_destroy(host);
    tsr_device_destroy(device);
    assert_int_equal(tsr_memory_plan_add(&plan, TSR_PLACE_HOST, TSR_BUFFER_OWN, "huge", "why",
                                         tsr_array_of_bytes(UINT64_MAX - 5)),
                     TSR_EINVAL);
    tsr_memory_plan_free(&plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_granules),      cmocka_unit_test(test_layout),
        cmocka_unit_test(test_one_rank),      cmocka_unit_test(test_layout_refused),
        cmocka_unit_test(test_trainable),     cmocka_unit_test(test_trainable_on_host),
        cmocka_unit_test(test_coded_moments), cmocka_unit_test(test_regions),
        cmocka_unit_test(test_memory_plan)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
