/*
 * The measuring of roofs on the CPU: rates are in a machine's range, the best is no slower than the
 * median, and operands that do not fit are refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/roofs.h"

#include <math.h>
#include <string.h>

static tsr_roofs *open_roofs(tsr_device **device, uint64_t bytes)
{
    const tsr_kernels *kernels;
    tsr_roofs *roofs;
    assert_int_equal(tsr_device_create_cpu(device, &(tsr_device_options){.thread_count = 2}),
                     TSR_OK);
    assert_int_equal(tsr_kernels_open(&kernels, *device), TSR_OK);
    assert_int_equal(tsr_roofs_open(&roofs, kernels, *device, bytes), TSR_OK);
    return roofs;
}

static void check(const tsr_roof *roof)
{
    assert_true(isfinite(roof->rate) && isfinite(roof->best));
    assert_true(roof->rate > 1e6 && roof->rate < 1e16);
    assert_true(roof->best >= roof->rate);
}

static void test_rates(void **state)
{
    (void)state;
    const tsr_roofs_matmul_shape shapes[] = {
        {64, 48, 80, true, TSR_F32}, {33, 65, 17, false, TSR_F32}, {64, 48, 80, true, TSR_F8_E4M3}};
    tsr_device *device;
    tsr_roofs *roofs = open_roofs(&device, 1 << 20);
    tsr_roof roof;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(tsr_roofs_matmul(&roof, roofs, &shapes[i], 0.02), TSR_OK);
        check(&roof);
    }
    for (int kind = TSR_ROOF_COPY_OP; kind <= TSR_ROOF_DEVICE_TO_HOST; kind++) {
        assert_int_equal(tsr_roofs_copy(&roof, roofs, (tsr_roof_copy)kind, 0.02), TSR_OK);
        check(&roof);
    }
    tsr_roofs_close(roofs);
    tsr_device_destroy(device);
}

static void test_room(void **state)
{
    (void)state;
    const tsr_roofs_matmul_shape shape = {64, 64, 64, true, TSR_F32};
    tsr_device *device;
    tsr_roof roof;
    assert_int_equal(tsr_roofs_matmul_bytes(&shape), 3 * 64 * 64 * 4);
    tsr_roofs *roofs = open_roofs(&device, tsr_roofs_matmul_bytes(&shape));
    assert_int_equal(tsr_roofs_matmul(&roof, roofs, &shape, 0.01), TSR_OK);
    tsr_roofs_close(roofs);
    tsr_device_destroy(device);
    roofs = open_roofs(&device, tsr_roofs_matmul_bytes(&shape) - TSR_ALIGNMENT);
    assert_int_equal(tsr_roofs_matmul(&roof, roofs, &shape, 0.01), TSR_EINVAL);
    assert_non_null(strstr(tsr_last_error(), "64 x 64 x 64"));
    tsr_roofs_close(roofs);
    tsr_device_destroy(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rates), cmocka_unit_test(test_room)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
