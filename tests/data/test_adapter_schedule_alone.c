/*
 * test_adapter_schedule_alone.c: what greedy makes of a window where best fit of all rows takes more micro-batches than each adapter
 * alone.
 */
#include "adapter_schedule_case.h"

/* Four adapters in one window: never more micro-batches than each would have alone, and mixed where these are no fewer. */
static void sharing_never_costs_a_micro_batch(void **state)
{
    (void)state;
    static input in;
    int apart = 0, mixed = 0;
    for (uint64_t seed = 0; seed < 300; seed++) {
        uint64_t random = seed;
        int32_t tokens[4][ROWS / 4], all[ROWS];
        int64_t load[ROWS], capacity = 8192, alone = 0;
        int count = 0;
        in.count = 0;
        in.capacity = capacity;
        for (int a = 0; a < 4; a++) {
            /* Full micro-batches, in order; for every second seed the last one is not. */
            int64_t left = capacity * (1 + below(&random, 2));
            int64_t open = seed % 2 ? below(&random, capacity / 2) : 0;
            int rows = 0;
            begin_adapter(&in);
            begin_step(&in);
            while (left > open) {
                int64_t room = left % capacity ? left % capacity : capacity;
                int64_t length = 200 + below(&random, 1849);
                length = length < room && room - length >= 200 ? length : room;
                add_row(&in, tokens[a][rows++] = all[count++] = (int32_t)length);
                left -= length;
            }
            alone += plain(load, tokens[a], rows, capacity);
        }
        tsr_adapter_schedule s;
        make(&s, &in, TSR_ADAPTER_SCHEDULE_GREEDY);
        int64_t together = best_fit(load, all, count, capacity);
        assert_int_equal(s.count, together <= alone ? together : alone);
        assert_true(seed % 2 || s.fill == 1);
        follows_the_rules(&s, &in);
        apart += together > alone;
        mixed += together <= alone;
        tsr_adapter_schedule_free(&s);
    }
    assert_true(apart > 0 && mixed > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(sharing_never_costs_a_micro_batch)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
