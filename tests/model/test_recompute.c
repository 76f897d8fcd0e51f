/*
 * What is computed again, and where a base and activations live, never changes a bit: losses, hidden
 * states and gradients with gradient_checkpointing none, selective, full, sqrt and whatever a budget leaves, on every
 * home, with activations that stay and that travel.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "model/fixture.h"
#include "support/scratch.h"

#include <stdlib.h>
#include <string.h>

#define BUDGETS 6

static void assert_same(const fixture *f, const fixture_result *got, const fixture_result *want)
{
    const test_rows *a = &got->evaluated.rows, *b = &want->evaluated.rows;
    assert_true(a->count == f->labels && b->count == f->labels);
    assert_memory_equal(a->nll, b->nll, (size_t)a->count * sizeof *a->nll);
    assert_memory_equal(a->rows, b->rows,
                        (size_t)a->count * (size_t)f->model.spec.d * sizeof *a->rows);
    assert_memory_equal(got->nll, want->nll, (size_t)got->labels * sizeof *got->nll);
    for (int layer = 0; layer < f->model.spec.layers; layer++)
        for (int kind = 0; kind < LLAMA_LINEARS; kind++)
            for (int part = 0; part < 3; part++)
                if (want->gradient[layer][kind][part])
                    assert_memory_equal(got->gradient[layer][kind][part],
                                        want->gradient[layer][kind][part],
                                        want->count[layer][kind][part] * sizeof(double));
}

/* The device peak of a job with these settings, for a budget between two of them. */
static tsr_status take_peak(tsr_job *job, void *user)
{
    tsr_job_plan_info info = TSR_JOB_PLAN_INFO_INIT;
    TSR_TRY(tsr_job_plan(job, &info));
    *(uint64_t *)user = info.device_peak_bytes;
    return TSR_OK;
}

static uint64_t peak(const fixture *f, const char *recompute)
{
    uint64_t bytes = 0;
    job_spec job = fixture_job(f, "peak");
    job_set(&job, "gradient_checkpointing=%s", recompute);
    job_set(&job, "overwrite_output_dir=true");
    job_run(&job, take_peak, &bytes);
    return bytes;
}

/* An evaluation by a job of its own: the same bits as between two steps of a training. */
static void check_evaluation(const fixture *f, const fixture_result *want)
{
    test_evaluated got = {0};
    job_spec job = {.purpose = TSR_JOB_EVALUATE};
    job_set(&job, "model_name_or_path=%s", f->checkpoint);
    job_set(&job, "load_in_4bit=false");
    job_set(&job, "dtype=float32");
    job_set(&job, "eval_dataset=%s", f->data);
    job_set(&job, "init_adapter=%s", f->adapter);
    job_set(&job, "per_device_eval_batch_size=2");
    job_run(&job, test_evaluate, &got);
    assert_int_equal(got.rows.count, f->labels);
    assert_memory_equal(got.rows.nll, want->evaluated.rows.nll,
                        (size_t)f->labels * sizeof *got.rows.nll);
    assert_true(got.evaluation.loss == want->evaluated.evaluation.loss);
    test_rows_free(&got.rows);
}

/* As much memory as lies between that of full recomputation and that of none: layers are on one rung or another. */
static void check_budgets(const fixture *f, const fixture_result *want, uint64_t full,
                          uint64_t none)
{
    for (uint64_t i = 0; i < BUDGETS; i++) {
        fixture_result got = {0};
        job_spec job = fixture_job(f, "budget");
        job_set(&job, "overwrite_output_dir=true");
        job_set(&job, "gradient_checkpointing=auto");
        job_set(&job, "offload=none");
        job_set(&job, "activation_offloading=false");
        job_set(&job, "optimizer_offload=false");
        job_set(&job, "memory_budget=%lluB",
                (unsigned long long)(full + (none - full) * i / BUDGETS));
        job_run(&job, fixture_compute, &got);
        print_message("    budget %d of %d: %d layers recompute in full, %d in part\n", (int)i,
                      BUDGETS, got.recompute_full, got.recompute_selective);
        assert_same(f, &got, want);
        assert_true(i == 0 ? got.recompute_full > 0 : got.recompute_selective > 0);
        fixture_result_free(&got);
    }
}

static void check_model(const char *name, const model_spec *spec, double dropout)
{
    static const char *const modes[][3] = {
        {"selective", "none", "auto"},    {"full", "none", "auto"},
        {"none", "sharded", "auto"},      {"none", "full", "auto"},
        {"full", "sharded", "auto"},      {"none", "none", "true"},
        {"auto", "none", "true"},         {"full", "full", "true"},
        {"selective", "sharded", "true"}, {"sqrt", "none", "auto"},
        {"sqrt", "full", "auto"}};
    fixture f;
    fixture_result want = {0};
    fixture_make(&f, name, spec, dropout);
    job_spec job = fixture_job(&f, "none");
    job_set(&job, "offload=none");
    job_run(&job, fixture_compute, &want);
    assert_true(want.recompute_full == 0 && want.recompute_selective == 0);
    check_evaluation(&f, &want);
    uint64_t none = peak(&f, "none"), selective = peak(&f, "selective"), full = peak(&f, "full"),
             root = peak(&f, "sqrt");
    /* Of three layers that train, as many inputs: 1, 2 and the top one's. */
    assert_true(root < full || (spec->first_layer == 1 && root == full));
    assert_true(full < selective && selective < none);
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        fixture_result got = {0};
        job = fixture_job(&f, "mode");
        job_set(&job, "overwrite_output_dir=true");
        job_set(&job, "gradient_checkpointing=%s", modes[i][0]);
        job_set(&job, "offload=%s", modes[i][1]);
        job_set(&job, "activation_offloading=%s", modes[i][2]);
        job_run(&job, fixture_compute, &got);
        print_message("    %s: recompute %s (%d full, %d selective), offload %s, "
                      "activations %s\n",
                      name, modes[i][0], got.recompute_full, got.recompute_selective, modes[i][1],
                      modes[i][2]);
        assert_same(&f, &got, &want);
        fixture_result_free(&got);
    }
    check_budgets(&f, &want, full, none);
    fixture_result_free(&want);
    fixture_free(&f);
}

static const model_spec base = {.type = "qwen3",
                                .d = 64,
                                .f = 96,
                                .layers = 4,
                                .heads = 4,
                                .kv_heads = 2,
                                .head_dim = 16,
                                .vocab = 300,
                                .theta = 10000,
                                .eps = 1e-6,
                                .dtype = TSR_BF16,
                                .r = 4,
                                .alpha = 8,
                                .targets = 127,
                                .seed = 31};

static void test_lora(void **state)
{
    (void)state;
    model_spec spec = base;
    spec.type = "qwen2";
    check_model("lora", &spec, 0);
}

static void test_lora_dropout(void **state)
{
    (void)state;
    model_spec spec = base;
    spec.first_layer = 1;
    check_model("lora-dropout", &spec, 0.2);
}

static void test_dora(void **state)
{
    (void)state;
    model_spec spec = base;
    spec.dora = true;
    check_model("dora", &spec, 0);
}

static void test_dora_dropout(void **state)
{
    (void)state;
    model_spec spec = base;
    spec.dora = true;
    spec.targets = 127 & ~(1u << LLAMA_K | 1u << LLAMA_UP);
    check_model("dora-dropout", &spec, 0.2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lora),
        cmocka_unit_test(test_lora_dropout),
        cmocka_unit_test(test_dora),
        cmocka_unit_test(test_dora_dropout),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
