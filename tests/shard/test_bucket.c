#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "shard/bucket.h"

static void test_sizes(void **state)
{
    (void)state;
    for (int64_t largest = 1; largest <= 2100; largest += 13)
        for (int64_t step = 1; step <= 128 && step <= largest; step *= 4) {
            tsr_buckets b;
            assert_int_equal(tsr_buckets_make(&b, largest, step), TSR_OK);
            assert_in_range(b.count, 1, TSR_BUCKET_MAX);
            assert_int_equal(b.size[b.count - 1], largest);
            for (int i = 0; i < b.count; i++) {
                assert_true(i == 0 || b.size[i] > b.size[i - 1]);
                assert_true(i == b.count - 1 || b.size[i] % step == 0);
            }
            for (int64_t count = 0; count <= largest; count++) {
                int at = tsr_bucket_of(&b, count);
                assert_in_range(at, 0, b.count - 1);
                assert_true(b.size[at] >= count && (at == 0 || b.size[at - 1] < count));
                assert_true(b.size[at] - count <= largest / TSR_BUCKET_MAX + step + 1);
            }
            assert_int_equal(tsr_bucket_of(&b, largest + 1), -1);
        }
}

static void test_refused(void **state)
{
    (void)state;
    tsr_buckets b;
    assert_int_equal(tsr_buckets_make(&b, 0, 1), TSR_EINVAL);
    assert_int_equal(tsr_buckets_make(&b, 8, 0), TSR_EINVAL);
    assert_int_equal(tsr_buckets_make(&b, INT64_MAX, 8), TSR_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sizes),
                                       cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
