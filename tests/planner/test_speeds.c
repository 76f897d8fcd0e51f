/*
 * Figures of a machine from files: those of bench_roofs and of env, what is missing from what is there, and what is refused.
 */
#include "planner/speeds.h"
#include "support/scratch.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void expect_refused(const char *text, const char *said)
{
    tsr_speeds speeds;
    write_text(scratch_path("roofs.json"), text);
    assert_int_equal(tsr_speeds_read(&speeds, scratch_path("roofs.json"), true, TSR_BF16),
                     TSR_EDATA);
    if (!strstr(tsr_last_error(), said) || !strstr(tsr_last_error(), "roofs.json"))
        fail_msg("'%s' does not say '%s'", tsr_last_error(), said);
}

static void test_files_of_figures(void **state)
{
    (void)state;
    tsr_speeds s;
    assert_int_equal(
        tsr_speeds_read(&s, TSR_SOURCE_DIR "/bench/results/h200_one_gpu.json", true, TSR_BF16),
        TSR_OK);
    assert_true(s.measured && s.value[TSR_SPEED_MATMUL] == 684.5e12);
    assert_true(s.value[TSR_SPEED_TO_HOST] == 55.2e9);
    assert_true(s.known[TSR_SPEED_COPY] && !s.known[TSR_SPEED_NETWORK]);
    assert_string_equal(s.device, "NVIDIA H200, 132 SMs, 139.8 GiB, CUDA 13.0");
    /* What is not there keeps its ratio to what is. */
    assert_true(fabs(s.value[TSR_SPEED_ATTENTION_FORWARD] / 440.5e12 - 1) < 1e-9);

    /* As env prints them: the CPU's, then a GPU's. */
    static const char both[] =
        "{\"roofs\":[{\"device\":\"CPU\",\"copy_bytes_per_s\":1e10,"
        "\"matmul_float32_flops_per_s\":2e11},{\"device\":\"card\",\"memory_bytes\":5,"
        "\"copy_bytes_per_s\":1e12,\"matmul_bfloat16_flops_per_s\":1e14,"
        "\"matmul_float32_flops_per_s\":2e13,\"network_bytes_per_s\":1e9}]}";
    write_text(scratch_path("roofs.json"), both);
    assert_int_equal(tsr_speeds_read(&s, scratch_path("roofs.json"), true, TSR_BF16), TSR_OK);
    assert_true(s.value[TSR_SPEED_MATMUL] == 1e14 && s.memory_bytes == 5);
    assert_true(s.value[TSR_SPEED_NETWORK] == 1e9 && s.known[TSR_SPEED_NETWORK]);
    assert_int_equal(tsr_speeds_read(&s, scratch_path("roofs.json"), true, TSR_F32), TSR_OK);
    assert_true(s.value[TSR_SPEED_MATMUL] == 2e13);
    assert_int_equal(tsr_speeds_read(&s, scratch_path("roofs.json"), false, TSR_F32), TSR_OK);
    assert_true(s.value[TSR_SPEED_MATMUL] == 2e11);

    expect_refused("{", "roofs.json");
    expect_refused("{\"copy_bytes_per_s\":1e12,\"matmul_bfloat16_flops_per_s\":1e14,"
                   "\"attention_forward_flops_per_s\":5e-324}",
                   "attention_forward_flops_per_s is of no machine");
    expect_refused("{\"copy_gb_s\":1e300,\"gemm_tflop_s\":1}", "copy_gb_s is of no machine");
    expect_refused("{\"copy_bytes_per_s\":1e12,\"matmul_bfloat16_flops_per_s\":1e14,"
                   "\"link_latency_s\":1e9}",
                   "link_latency_s is of no machine");
    expect_refused("{\"copy_bytes_per_s\":1e12,\"matmul_bfloat16_flops_per_s\":1e14,"
                   "\"memory_bytes\":1e300}",
                   "memory_bytes is of no machine");
    expect_refused("{\"roofs\":{}}", "no figures of a GPU");
    expect_refused("{\"copy_bytes_per_s\":1e12}", "matmul_bfloat16_flops_per_s");
    expect_refused("{\"roofs\":[{\"copy_bytes_per_s\":1e10,\"matmul_bfloat16_flops_per_s\":1}]}",
                   "no figures of a GPU");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_files_of_figures)};
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
