/*
 * test_library_abi.c: what a program that was built with tessera.h 0.2 relies on: where every member of every struct lies, and
 * the value of every constant. tsr_job_options may get more members behind the others, for it says how large it is; beyond
 * that nothing may move and no value may change before the library's soname does. For machines of 8-byte pointers.
 */
#include <tessera.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

typedef struct {
    const char *name;
    int64_t found, expected;
} fact;

#define AT(type, name, expected)                                                                   \
    {                                                                                              \
#type "." #name, offsetof(type, name), expected                                            \
    }
#define SIZE(type, expected)                                                                       \
    {                                                                                              \
        "the size of " #type, sizeof(type), expected                                               \
    }
#define VALUE(name, expected)                                                                      \
    {                                                                                              \
#name, name, expected                                                                      \
    }

static const fact members[] = {
    AT(tsr_job_bootstrap, rank, 0),
    AT(tsr_job_bootstrap, size, 4),
    AT(tsr_job_bootstrap, all_gather, 8),
    AT(tsr_job_bootstrap, user, 16),
    AT(tsr_job_report, size, 0),
    AT(tsr_job_report, step, 8),
    AT(tsr_job_report, total_steps, 16),
    AT(tsr_job_report, epoch, 24),
    AT(tsr_job_report, loss, 32),
    AT(tsr_job_report, grad_norm, 40),
    AT(tsr_job_report, learning_rate, 48),
    AT(tsr_job_report, label_tokens, 56),
    AT(tsr_job_report, input_tokens, 64),
    AT(tsr_job_report, step_s, 72),
    AT(tsr_job_report, tokens_per_s, 80),
    AT(tsr_job_report, device_bytes, 88),
    AT(tsr_job_report, exposed_s, 96),
    AT(tsr_job_report, skipped, 104),
    AT(tsr_job_report, skipped_steps, 112),
    AT(tsr_job_report, last, 120),
    AT(tsr_job_report, stopped, 124),
    AT(tsr_job_report, evaluate, 128),
    AT(tsr_job_report, save, 132),
    AT(tsr_job_evaluation, size, 0),
    AT(tsr_job_evaluation, loss, 8),
    AT(tsr_job_evaluation, perplexity, 16),
    AT(tsr_job_evaluation, label_tokens, 24),
    AT(tsr_job_evaluation, rows, 32),
    AT(tsr_job_evaluation, stopped, 40),
    AT(tsr_job_plan_info, size, 0),
    AT(tsr_job_plan_info, device_peak_bytes, 8),
    AT(tsr_job_plan_info, host_peak_bytes, 16),
    AT(tsr_job_plan_info, parameter_count, 24),
    AT(tsr_job_plan_info, trainable_count, 32),
    AT(tsr_job_plan_info, plan_hash, 40),
    AT(tsr_job_plan_info, unit_count, 48),
    AT(tsr_job_plan_info, resident_count, 52),
    AT(tsr_job_plan_info, recompute_full_count, 56),
    AT(tsr_job_plan_info, recompute_selective_count, 60),
    AT(tsr_job_plan_info, activations_offloaded, 64),
    AT(tsr_job_plan_info, optimizer_offloaded, 68),
    AT(tsr_job_plan_info, shard_group_size, 72),
    AT(tsr_job_plan_info, rounds, 80),
    AT(tsr_job_plan_info, expected_step_s, 88),
    AT(tsr_job_plan_info, expected_exposed_s, 96),
    AT(tsr_job_plan_info, expected_tokens_per_s, 104),
    AT(tsr_job_options, size, 0),
    AT(tsr_job_options, config_path, 8),
    AT(tsr_job_options, config_text, 16),
    AT(tsr_job_options, overrides, 24),
    AT(tsr_job_options, override_count, 32),
    AT(tsr_job_options, purpose, 36),
    AT(tsr_job_options, plan_ranks, 40),
    AT(tsr_job_options, plan_node, 44),
    AT(tsr_job_options, plan_roofs, 48),
    AT(tsr_job_options, use_mpi, 56),
    AT(tsr_job_options, bootstrap, 64),
    AT(tsr_job_options, threads, 88),
    AT(tsr_job_options, timeout_seconds, 96),
    AT(tsr_job_options, log, 104),
    AT(tsr_job_options, progress, 112),
    AT(tsr_job_options, user, 120),
    AT(tsr_job_options, stop, 128),
    AT(tsr_job_options, row, 136),
    AT(tsr_job_options, adapter, 144),
};

/* The library writes them into memory of the caller. */
static const fact sizes[] = {
    SIZE(tsr_job_bootstrap, 24),
    SIZE(tsr_job_report, 136),
    SIZE(tsr_job_evaluation, 48),
    SIZE(tsr_job_plan_info, 112),
};

static const fact values[] = {
    VALUE(TSR_OK, 0),        VALUE(TSR_JOB_DONE, 1),
    VALUE(TSR_EINVAL, -1),   VALUE(TSR_EUNSUPPORTED, -2),
    VALUE(TSR_EUSAGE, -3),   VALUE(TSR_ECONFIG, -4),
    VALUE(TSR_EDATA, -5),    VALUE(TSR_EIO, -6),
    VALUE(TSR_ENOMEM, -7),   VALUE(TSR_EINTERNAL, -8),
    VALUE(TSR_ESTOPPED, -9), VALUE(TSR_ESTOPPED_UNSAVED, -10),
    VALUE(TSR_ECOMM, -11),   VALUE(TSR_ETIMEOUT, -12),
    VALUE(TSR_ERANKS, -13),  VALUE(TSR_EDEVICE, -14),
    VALUE(TSR_JOB_TRAIN, 0), VALUE(TSR_JOB_EVALUATE, 1),
    VALUE(TSR_JOB_PLAN, 2),  VALUE(TSR_JOB_DATA, 3),
    VALUE(TSR_JOB_ERROR, 0), VALUE(TSR_JOB_WARNING, 1),
    VALUE(TSR_JOB_INFO, 2),  VALUE(TSR_JOB_DEBUG, 3),
    VALUE(TSR_JOB_PLAIN, 0), VALUE(TSR_JOB_COLOUR, 1),
    VALUE(TSR_JOB_JSON, 2),
};

static void check(const fact *list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (list[i].found != list[i].expected)
            fail_msg("%s is %lld; programs that are there rely on %lld", list[i].name,
                     (long long)list[i].found, (long long)list[i].expected);
}

static void nothing_moved(void **state)
{
    (void)state;
    if (sizeof(void *) != 8)
        skip();
    check(members, sizeof members / sizeof *members);
    check(sizes, sizeof sizes / sizeof *sizes);
    check(values, sizeof values / sizeof *values);
    assert_true(sizeof(tsr_job_options) >= 136);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_moved)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
