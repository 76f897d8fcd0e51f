/*
 * moe_capacity_factor: which slots stay, as a plain reference has it; losses and gradients are those of a run without it in
 * which the experts that are left out have the weight 0, and no other weight changes; how many are left out is reported.
 * The same bits on any number of ranks and with recomputation.
 *
 * The routers' ops are caught by the linker: --wrap=tsr_route_ref, _route_sort_ref and _route_backward_ref.
 *
 *     test_job_capacity                        on the CPU
 *     test_job_capacity BACKEND DTYPE RANKS    on the ranks that a machine has GPUs for: the bits
 */
#include "job/fixture.h"

#include "kernels/route.h"
#include "kernels/route_sort.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL  TSR_SOURCE_DIR "/tests/golden/families/glm4_moe/checkpoint"
#define FACTOR 0.75
#define STEPS  4

enum { CHOSEN = 3, EXPERTS = 8, MOST_SLOTS = CHOSEN * 1024 };

/* Of a run with a capacity; of one without; of one that imitates the former. */
static enum { WATCH, WATCH_ALL, IMITATE } mode;
static bool evaluates = true;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int64_t left_out, sorts, wrong; /* of all ranks */

/* Of slots in their order the first of each expert stay, as many as the factor says; how many do not. */
static int64_t leave_out(bool out[MOST_SLOTS], const int32_t *id, int64_t tokens)
{
    int64_t taken[EXPERTS] = {0}, count = 0;
    double most = ceil(FACTOR * (double)(tokens * CHOSEN) / EXPERTS);
    for (int64_t slot = 0; slot < tokens * CHOSEN; slot++) {
        out[slot] = (double)taken[id[slot]]++ >= fmax(most, 1);
        count += out[slot];
    }
    return count;
}

tsr_status __real_tsr_route_sort_ref(const tsr_route_sort_args *args, tsr_pool *pool);
tsr_status __wrap_tsr_route_sort_ref(const tsr_route_sort_args *args, tsr_pool *pool);
tsr_status __real_tsr_route_ref(const tsr_route_args *args, tsr_pool *pool);
tsr_status __wrap_tsr_route_ref(const tsr_route_args *args, tsr_pool *pool);
tsr_status __real_tsr_route_backward_ref(const tsr_route_backward_args *args, tsr_pool *pool);
tsr_status __wrap_tsr_route_backward_ref(const tsr_route_backward_args *args, tsr_pool *pool);

/* Every slot has a row of its own, in the rows of its expert, or it is left out. */
tsr_status __wrap_tsr_route_sort_ref(const tsr_route_sort_args *args, tsr_pool *pool)
{
    tsr_status status = __real_tsr_route_sort_ref(args, pool);
    bool out[MOST_SLOTS];
    int64_t bad = 0, count = leave_out(out, args->routes.id, args->tokens);
    for (int64_t slot = 0; slot < args->tokens * CHOSEN; slot++) {
        int32_t row = args->routes.row[slot], expert = args->routes.id[slot];
        const int32_t *offset = args->routes.offset;
        if (mode == WATCH && out[slot])
            bad += row != -1;
        else
            bad +=
                row < offset[expert] || row >= offset[expert + 1] || args->routes.slot[row] != slot;
    }
    pthread_mutex_lock(&lock);
    sorts++;
    left_out += count;
    wrong += bad;
    pthread_mutex_unlock(&lock);
    return status;
}

/* What is left out has the weight 0 .. */
tsr_status __wrap_tsr_route_ref(const tsr_route_args *args, tsr_pool *pool)
{
    tsr_status status = __real_tsr_route_ref(args, pool);
    bool out[MOST_SLOTS];
    if (mode != IMITATE)
        return status;
    leave_out(out, args->id, args->tokens);
    for (int64_t slot = 0; slot < args->tokens * CHOSEN; slot++)
        args->p[slot] *= out[slot] ? 0.0f : 1.0f;
    return status;
}

/* .. which does not depend on anything. */
tsr_status __wrap_tsr_route_backward_ref(const tsr_route_backward_args *args, tsr_pool *pool)
{
    bool out[MOST_SLOTS];
    leave_out(out, args->id, args->tokens);
    for (int64_t slot = 0; slot < args->tokens * CHOSEN && mode == IMITATE; slot++)
        if (out[slot])
            ((float *)args->dp)[slot] = 0;
    return __real_tsr_route_backward_ref(args, pool);
}

/* ---- runs ---- */

static void run(job_result *out, int ranks, const char *more, double factor)
{
    char text[2048], evaluated[600], capacity[64] = "";
    snprintf(evaluated, sizeof evaluated, "eval_dataset: %s\neval_steps: 2\n",
             scratch_path("eval.jsonl"));
    if (factor > 0)
        snprintf(capacity, sizeof capacity, "moe_capacity_factor: %g\n", factor);
    snprintf(text, sizeof text,
             "model_name_or_path: " MODEL "\ndataset: %s\n%s"
             "total_batch_size: 6\nlora_r: 4\nmax_steps: %d\nlearning_rate: 0.005\n%s%s",
             scratch_path("data.jsonl"), evaluates ? evaluated : "", STEPS, capacity, more);
    left_out = sorts = wrong = 0;
    job_run(out, job_ranks(ranks), text);
    if (out->status != 0)
        fail_msg("%s%s: %s", capacity, more, out->message);
    assert_int_equal(wrong, 0);
    assert_true(sorts > 0 || job_on_gpu());
}

static double apart(double a, double b)
{
    return fabs(a - b) / fabs(b);
}

static void assert_close(const job_result *a, const job_result *b, double allowed)
{
    double worst = 0;
    assert_int_equal(a->step_count, b->step_count);
    assert_int_equal(a->eval_count, b->eval_count);
    for (int i = 0; i < a->step_count; i++) {
        worst = fmax(worst, apart(a->step[i].loss, b->step[i].loss));
        worst = fmax(worst, apart(a->step[i].grad_norm, b->step[i].grad_norm));
    }
    for (int i = 0; i < a->eval_count; i++)
        worst = fmax(worst, apart(a->eval[i].loss, b->eval[i].loss));
    print_message("losses and norms are %.2g apart (%.2g)\n", worst, allowed);
    assert_true(worst <= allowed);
}

static int64_t reported(const job_result *r)
{
    int64_t sum = 0;
    for (int i = 0; i < r->step_count; i++)
        sum += r->step[i].expert_dropped;
    return sum;
}

/* Of adapters on attention alone, and of those on experts too, whose gradients are sums over rows. */
static void test_weights(void **state)
{
    (void)state;
    static const char *const cases[] = {"lora_target_modules: [q_proj, v_proj, o_proj]\n",
                                        "lora_target_modules: all-linear\nexpert_lora_r: 2\n"};
    for (int i = 0; i < 2; i++) {
        job_result capped, imitated, whole;
        mode = WATCH;
        run(&capped, 1, cases[i], FACTOR);
        assert_true(reported(&capped) > 0);
        mode = IMITATE;
        run(&imitated, 1, cases[i], 0);
        assert_int_equal(reported(&imitated), 0);
        assert_close(&capped, &imitated, 1e-6);
        /* And it makes a difference. */
        mode = WATCH_ALL;
        run(&whole, 1, cases[i], 0);
        assert_true(apart(whole.step[0].loss, capped.step[0].loss) > 1e-4);
        job_result_free(&capped);
        job_result_free(&imitated);
        job_result_free(&whole);
    }
}

/* Nothing else routes: every micro-batch of the steps once, with no evaluation between. */
static void test_reported(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 3; ranks += 2) {
        job_result got;
        mode = WATCH;
        evaluates = false;
        run(&got, ranks, "gradient_checkpointing: none\n", FACTOR);
        assert_int_equal(reported(&got), left_out);
        evaluates = true;
        job_result_free(&got);
    }
}

static void test_bits(void **state)
{
    (void)state;
    job_result one, other;
    static const char *const cases[] = {"gradient_checkpointing: none\n",
                                        "gradient_checkpointing: full\n",
                                        "gradient_checkpointing: sqrt\n"};
    mode = WATCH;
    run(&one, 1, cases[0], FACTOR);
    assert_true(reported(&one) > 0);
    for (int i = 0; i < 3; i++)
        for (int ranks = 1; ranks <= 3; ranks += 2) {
            run(&other, ranks, cases[i], FACTOR);
            job_assert_same(&one, &other, cases[i]);
            job_assert_plan(&other, job_ranks(ranks), cases[i]);
            job_result_free(&other);
        }
    job_result_free(&one);
}

static int setup(void **state)
{
    (void)state;
    scratch_make();
    job_write_documents("data.jsonl", 24, 256, 5);
    job_write_documents("eval.jsonl", 8, 256, 77);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bits), cmocka_unit_test(test_weights),
                                       cmocka_unit_test(test_reported)};
    job_choose_backend(argc, argv);
    if (argc < 4)
        return cmocka_run_group_tests(tests, setup, scratch_teardown);
    const struct CMUnitTest bits[] = {tests[0]};
    return cmocka_run_group_tests(bits, setup, scratch_teardown);
}
