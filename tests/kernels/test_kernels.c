/*
 * test_kernels.c: the table: every slot is there, an op is judged when it is enqueued, runs in the
 * stream's order, and what fails on the stream poisons the device.
 */
#include "kernels/kernels.h"

#include "kernels/kernel_test.h"

static void every_slot_is_filled(void **state)
{
    (void)state;
    const tsr_kernels *table = tsr_kernels_cpu();
    assert_string_equal(table->name, "cpu");
    assert_non_null(strstr(tsr_kernels_cpu_set(), "OpenBLAS"));
#define EXPECT_SLOT(op) assert_true(table->op != NULL);
    TSR_KERNEL_OPS(EXPECT_SLOT)
    assert_true(table->attention_workspace_bytes && table->head_workspace_bytes);
    assert_false(table->attention_lse_by_token(NULL, NULL));
}

static void ops_run_in_order_on_a_stream(void **state)
{
    (void)state;
    tsr_device *device;
    tsr_stream *stream;
    tsr_device_options options = {.thread_count = 2, .no_pinning = true};
    assert_int_equal(tsr_device_create_cpu(&device, &options), TSR_OK);
    assert_int_equal(tsr_stream_create(&stream, device, "compute"), TSR_OK);
    const tsr_kernels *k = tsr_kernels_cpu();
    float a[4] = {1, 2, 3, 4}, b[4] = {1, 0, 0, 1}, c[4];
    tsr_gemm_args gemm = {.m = 2, .n = 2, .k = 2, .a = a, .b = b, .c = c, .alpha = 1};
    assert_int_equal(k->gemm(stream, &gemm), TSR_OK);
    gemm.beta = 1;
    assert_int_equal(k->gemm(stream, &gemm), TSR_OK);
    assert_int_equal(k->gemm(stream, &gemm), TSR_OK);
    gemm.c = NULL; /* the arguments were copied */
    assert_int_equal(k->gemm(stream, &gemm), TSR_EINVAL);
    assert_int_equal(tsr_stream_synchronize(stream), TSR_OK);
    for (int i = 0; i < 4; i++)
        assert_true(c[i] == 3 * a[i]);
    tsr_stream_destroy(stream);
    tsr_device_destroy(device);
}

static void a_failure_on_the_stream_is_reported(void **state)
{
    (void)state;
    tsr_device *device;
    tsr_stream *stream;
    tsr_device_options options = {.thread_count = 1, .no_pinning = true};
    assert_int_equal(tsr_device_create_cpu(&device, &options), TSR_OK);
    assert_int_equal(tsr_stream_create(&stream, device, "compute"), TSR_OK);
    float in[2] = {1, 2}, out[1];
    int32_t index = 7;
    tsr_gather_rows_args args = {
        .out = out, .in = in, .index = &index, .rows = 1, .tokens = 2, .d = 1};
    assert_int_equal(tsr_kernels_cpu()->gather_rows(stream, &args), TSR_OK);
    assert_int_equal(tsr_stream_synchronize(stream), TSR_EINTERNAL);
    assert_non_null(strstr(tsr_last_error(), "index[0] = 7"));
    tsr_stream_destroy(stream);
    tsr_device_destroy(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_slot_is_filled),
        cmocka_unit_test(ops_run_in_order_on_a_stream),
        cmocka_unit_test(a_failure_on_the_stream_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
