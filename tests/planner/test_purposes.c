/*
 * Buffers by what they are for: their names, sums, and which buffers go together.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "planner/purposes.h"

static void test_purposes(void **state)
{
    static const struct {
        tsr_place place;
        const char *name, *why;
        uint64_t bytes;
        int purpose;
    } buffers[] = {
        {TSR_PLACE_DEVICE, "slot[0]", "one unit", 100, 0},
        {TSR_PLACE_DEVICE, "frozen.shards", "a part", 7, 1},
        {TSR_PLACE_DEVICE, "slot[1]", "one unit", 100, 0},
        {TSR_PLACE_DEVICE, "layer 0 z q_proj", "output", 10, 2},
        {TSR_PLACE_DEVICE, "layer 0 z k_proj", "output", 5, 2},
        {TSR_PLACE_DEVICE, "layer 1 z q_proj", "output", 10, 2},
        {TSR_PLACE_DEVICE, "scratch z", "output", 3, 3},      /* kept by nobody */
        {TSR_PLACE_HOST, "layer 0 z q_proj", "output", 2, 4}, /* elsewhere */
        {TSR_PLACE_DEVICE, "slot[2]", "one unit", 100, 0},
        {TSR_PLACE_HOST, "layer 1 z q_proj", "output", 2, 4},
    };
    static const struct {
        const char *name;
        uint64_t bytes;
    } purposes[] = {{"device slot[*]: one unit", 300},
                    {"device frozen.shards: a part", 7},
                    {"device output, kept for the backward", 25},
                    {"device scratch z: output", 3},
                    {"host layer * z q_proj: output", 4}};
    int count = sizeof buffers / sizeof *buffers;
    tsr_memory_plan memory = {0};
    tsr_purposes found;
    (void)state;
    for (int i = 0; i < count; i++)
        assert_int_equal(tsr_memory_plan_add(&memory, buffers[i].place, TSR_BUFFER_OWN,
                                             buffers[i].name, buffers[i].why,
                                             tsr_array_of_bytes(buffers[i].bytes)),
                         TSR_OK);
    assert_int_equal(tsr_purposes_make(&found, &memory), TSR_OK);
    assert_int_equal(found.count, 5);
    for (int i = 0; i < found.count; i++) {
        assert_string_equal(found.purpose[i].name, purposes[i].name);
        assert_int_equal(found.purpose[i].bytes, purposes[i].bytes);
    }
    for (int i = 0; i < count; i++)
        assert_int_equal(found.of[i], buffers[i].purpose);
    tsr_purposes_free(&found);
    tsr_memory_plan_free(&memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_purposes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
