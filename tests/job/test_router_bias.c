/*
 * router_bias_update_rate: the routers' correction biases move exactly as a plain reference says, from loads that the test
 * counts itself; a step that is skipped leaves them; every forward, of training and evaluation, chooses by them. The same
 * bits on any number of ranks, with recomputation, across a stop and of the best evaluation; and what becomes of their file:
 * a start from it, an evaluation, a merge, and files that are refused.
 *
 * The op of the router is caught by the linker: --wrap=tsr_route_ref.
 *
 *     test_job_router_bias                        on the CPU
 *     test_job_router_bias BACKEND DTYPE RANKS    on the ranks that a machine has GPUs for: the bits
 */
#include "job/fixture.h"

#include "kernels/route.h"
#include "support/golden.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FAMILIES  TSR_SOURCE_DIR "/tests/golden/families/"
#define MODEL     FAMILIES "glm4_moe/checkpoint"
#define BIAS_FILE "router_bias.safetensors"
#define RATE      0.03125 /* large: choices change within a few steps */
#define STEPS     6

enum { ROUTERS = 2, EXPERTS = 8, VALUES = ROUTERS * EXPERTS };

static const char *backend = "cpu", *dtype = "auto";

static const char *const names[ROUTERS] = {"model.layers.1.mlp.gate.e_score_correction_bias",
                                           "model.layers.2.mlp.gate.e_score_correction_bias"};

/* ---- what routers did ---- */

/* Of one rank without recomputation, whose calls are those of the routers by turns. */
static struct {
    bool on;
    int64_t calls, wrong, load[ROUTERS][EXPERTS];
    float expected[VALUES];
} seen;

tsr_status __real_tsr_route_ref(const tsr_route_args *args, tsr_pool *pool);
tsr_status __wrap_tsr_route_ref(const tsr_route_args *args, tsr_pool *pool);

tsr_status __wrap_tsr_route_ref(const tsr_route_args *args, tsr_pool *pool)
{
    tsr_status status = __real_tsr_route_ref(args, pool);
    if (!seen.on)
        return status;
    int router = (int)(seen.calls++ % ROUTERS);
    for (int64_t i = 0; i < args->tokens * args->how.k; i++)
        seen.load[router][args->id[i]]++;
    seen.wrong += memcmp(args->how.correction, seen.expected + router * EXPERTS,
                         EXPERTS * sizeof(float)) != 0;
    return status;
}

static void forget(void)
{
    seen.calls = 0;
    memset(seen.load, 0, sizeof seen.load);
}

/* As Wang et al. have it: less than the mean goes up, more goes down. */
static void move_reference(float rate)
{
    for (int r = 0; r < ROUTERS; r++) {
        int64_t sum = 0;
        for (int e = 0; e < EXPERTS; e++)
            sum += seen.load[r][e];
        double mean = (double)sum / EXPERTS;
        for (int e = 0; e < EXPERTS; e++) {
            double load = (double)seen.load[r][e];
            if (load < mean)
                seen.expected[r * EXPERTS + e] += rate;
            else if (load > mean)
                seen.expected[r * EXPERTS + e] -= rate;
        }
    }
}

/* ---- files ---- */

static void read_biases(float out[VALUES], const char *path)
{
    tsr_safetensors *file = golden_open(path);
    for (int r = 0; r < ROUTERS; r++) {
        uint64_t count;
        float *values = golden_f32(&count, file, "%s", names[r]);
        assert_int_equal(count, EXPERTS);
        memcpy(out + r * EXPERTS, values, EXPERTS * sizeof *out);
        free(values);
    }
    tsr_safetensors_close(file);
}

static void biases_of(float out[VALUES], const char *directory)
{
    char name[256];
    snprintf(name, sizeof name, "%s/" BIAS_FILE, directory);
    read_biases(out, scratch_path(name));
}

static void assert_same_file(const char *a, const char *b, bool same)
{
    char name[256];
    uint64_t bytes[2];
    snprintf(name, sizeof name, "%s/" BIAS_FILE, a);
    char *x = read_whole(&bytes[0], scratch_path(name));
    snprintf(name, sizeof name, "%s/" BIAS_FILE, b);
    char *y = read_whole(&bytes[1], scratch_path(name));
    bool are = bytes[0] == bytes[1] && !memcmp(x, y, bytes[0]);
    if (are != same)
        fail_msg("%s and %s: their biases %s", a, b, are ? "are the same" : "differ");
    free(x);
    free(y);
}

/* ---- jobs ---- */

static const char *config_text(const char *more)
{
    static char text[2048];
    snprintf(text, sizeof text,
             "model_name_or_path: " MODEL "\ndataset: %s\ntotal_batch_size: 6\nlora_r: 4\n"
             "max_steps: %d\nlearning_rate: 0.005\nlr_scheduler_type: constant\n"
             "router_bias_update_rate: %g\n%s",
             scratch_path("data.jsonl"), STEPS, RATE, more);
    return text;
}

static void run(job_result *out, int ranks, const char *more, const char *output,
                const job_event *event)
{
    job_run_in(out, job_ranks(ranks), config_text(more), output, event);
    if (out->status != 0)
        fail_msg("%s: %s", output, out->message);
}

/* One that a test drives; NULL: refused. */
static tsr_job *begin(int purpose, const char *config, const char *output)
{
    char place[600], where[40], in[40];
    snprintf(place, sizeof place, "output_dir=%s", scratch_path(output));
    snprintf(where, sizeof where, "backend=%s", backend);
    snprintf(in, sizeof in, "dtype=%s", dtype);
    const char *overrides[] = {place, where, in, "defaults=tessera"};
    const tsr_job_options options = {.size = sizeof options,
                                     .config_text = config,
                                     .overrides = overrides,
                                     .override_count = 4,
                                     .purpose = purpose,
                                     .threads = 1};
    tsr_job *job = NULL;
    if (tsr_job_create(&job, &options) < 0)
        return NULL;
    return job;
}

static void device_biases(float out[VALUES], const tsr_job *job)
{
    assert_non_null(tsr_model_router_bias(job->model));
    assert_int_equal(tsr_streams_synchronize(tsr_job_streams(job)), TSR_OK);
    assert_int_equal(
        tsr_device_read(job->device, out, tsr_model_router_bias(job->model), VALUES * sizeof *out),
        TSR_OK);
}

/* ---- the update ---- */

static void take_step(tsr_job *job, bool skipped)
{
    float before[VALUES], after[VALUES];
    tsr_job_report report = TSR_JOB_REPORT_INIT;
    device_biases(before, job);
    forget();
    job->sums->gradient_overflow = skipped;
    assert_int_equal(tsr_job_step(job, &report), TSR_OK);
    assert_int_equal(report.skipped, skipped);
    device_biases(after, job);
    assert_true(seen.calls == 6 * ROUTERS && seen.wrong == 0);
    if (!skipped)
        move_reference((float)RATE);
    assert_memory_equal(after, seen.expected, sizeof after);
    assert_true((memcmp(before, after, sizeof after) != 0) == !skipped);
}

static void test_moves(void **state)
{
    (void)state;
    char more[700];
    tsr_job_evaluation evaluation = TSR_JOB_EVALUATION_INIT;
    snprintf(more, sizeof more, "eval_dataset: %s\ngradient_checkpointing: none\n",
             scratch_path("eval.jsonl"));
    tsr_job *job = begin(TSR_JOB_TRAIN, config_text(more), "moves");
    assert_true(job && tsr_job_start(job) == TSR_OK);
    read_biases(seen.expected, MODEL "/model.safetensors");
    seen.wrong = 0;
    seen.on = true;
    for (int step = 0; step < STEPS; step++) {
        take_step(job, step == 2);
        forget();
        assert_int_equal(tsr_job_evaluate(job, &evaluation), TSR_OK);
        assert_true(seen.calls > 0 && seen.wrong == 0);
    }
    seen.on = false;
    assert_int_equal(tsr_job_save(job), TSR_OK);
    tsr_job_destroy(job);
    float saved[VALUES];
    biases_of(saved, "moves");
    assert_memory_equal(saved, seen.expected, sizeof saved);
}

/* ---- the same bits ---- */

static void test_bits(void **state)
{
    (void)state;
    /* Of the last nothing but the routers waits for an update: layers 0 and 1 have no adapter. */
    static const char *const cases[] = {
        "gradient_checkpointing: none\n",
        "gradient_checkpointing: full\n",
        "offload: sharded\n",
        "gradient_checkpointing: full\nunit_policy: [self_attn, mlp.experts]\noffload: full\n"
        "optimizer_offload: true\nactivation_offloading: true\n",
        "gradient_checkpointing: none\nlayers_to_transform: [2]\n",
        "gradient_checkpointing: full\nlayers_to_transform: [2]\n"};
    for (int i = 0; i < 6; i++) {
        job_result one, three;
        char first[40], second[40], base[40];
        snprintf(first, sizeof first, "bits_%d_1", i);
        snprintf(second, sizeof second, "bits_%d_3", i);
        snprintf(base, sizeof base, "bits_%d_1", i < 4 ? 0 : 4);
        run(&one, 1, cases[i], first, NULL);
        run(&three, 3, cases[i], second, NULL);
        job_assert_same(&one, &three, cases[i]);
        job_assert_plan(&three, job_ranks(3), cases[i]);
        assert_same_file(first, second, true);
        assert_same_file(first, base, true);
        job_result_free(&one);
        job_result_free(&three);
    }
}

static void test_resume(void **state)
{
    (void)state;
    job_result whole, part, rest;
    run(&whole, 1, "save_steps: 2\n", "whole", NULL);
    run(&part, 3, "save_steps: 2\n", "part", &(job_event){.stop_after = 3});
    assert_true(part.stopped && part.step_count < STEPS);
    run(&rest, 1, "save_steps: 2\nresume_from_checkpoint: true\n", "part", NULL);
    assert_int_equal(rest.resumed, part.step_count);
    job_assert_part(&whole, &rest, part.step_count, true, "resumed");
    assert_same_file("whole", "part", true);
    assert_same_file("whole/checkpoint-2", "part/checkpoint-2", true);
    assert_same_file("whole/checkpoint-2", "whole", false);
    job_result_free(&whole);
    job_result_free(&part);
    job_result_free(&rest);
    /* A checkpoint without them is none to go on from. */
    remove(scratch_path("part/checkpoint-6/" BIAS_FILE));
    job_run_in(&rest, 1, config_text("resume_from_checkpoint: true\n"), "part",
               &(job_event){.override = "max_steps=8"});
    assert_int_equal(rest.status, TSR_EDATA);
    assert_non_null(strstr(rest.message, BIAS_FILE));
}

static void test_best(void **state)
{
    (void)state;
    job_result got;
    char more[700], name[40], last[40];
    snprintf(more, sizeof more,
             "eval_dataset: %s\neval_steps: 1\nload_best_model_at_end: true\nsave_steps: 1\n",
             scratch_path("eval.jsonl"));
    run(&got, 1, more, "best", &(job_event){.override = "learning_rate=0.1"});
    int best = 1;
    for (int i = 2; i < got.eval_count; i++)
        if (got.eval[i].loss < got.eval[best].loss)
            best = i;
    print_message("step %d of %d is the best\n", best, STEPS);
    if (job_on_gpu() && best == STEPS) /* its dtype is another */
        return job_result_free(&got);
    assert_true(best < STEPS);
    snprintf(name, sizeof name, "best/checkpoint-%d", best);
    snprintf(last, sizeof last, "best/checkpoint-%d", STEPS);
    assert_same_file("best", name, true);
    assert_same_file("best", last, false);
    job_result_free(&got);
}

/* ---- the file ---- */

static double loss_of(const char *more)
{
    char text[2048];
    tsr_job_evaluation evaluation = TSR_JOB_EVALUATION_INIT;
    snprintf(text, sizeof text, "eval_dataset: %s\n%s", scratch_path("eval.jsonl"), more);
    tsr_job *job = begin(TSR_JOB_EVALUATE, text, "none");
    if (!job || tsr_job_start(job) < 0 || tsr_job_evaluate(job, &evaluation) < 0)
        fail_msg("%s", tsr_last_error());
    tsr_job_destroy(job);
    return evaluation.loss;
}

static bool card_has(const char *directory, const char *what)
{
    char name[256];
    uint64_t bytes;
    snprintf(name, sizeof name, "%s/README.md", directory);
    char *card = read_whole(&bytes, scratch_path(name));
    bool has = strstr(card, what) != NULL;
    free(card);
    return has;
}

static void test_start(void **state)
{
    (void)state;
    job_result from, on;
    char more[1024];
    static const char key[] = "model_name_or_path: " MODEL "\n";
    snprintf(more, sizeof more, "eval_dataset: %s\neval_strategy: epoch\n",
             scratch_path("eval.jsonl"));
    run(&from, 1, more, "from", NULL);
    assert_true(card_has("from", BIAS_FILE) && card_has("from", "tessera merge"));
    /* Evaluated, as the run would have gone on; without the file it is another model. */
    snprintf(more, sizeof more, "%sinit_adapter: %s\n", key, scratch_path("from"));
    double with = loss_of(more);
    assert_int_equal(rename(scratch_path("from/" BIAS_FILE), scratch_path("aside")), 0);
    double without = loss_of(more);
    assert_int_equal(rename(scratch_path("aside"), scratch_path("from/" BIAS_FILE)), 0);
    assert_true(with < without || with > without);
    /* Begun with; where they are not moved they stay as they are. */
    snprintf(more, sizeof more,
             "model_name_or_path: " MODEL "\ndataset: %s\neval_dataset: %s\neval_strategy: epoch\n"
             "max_steps: 2\nlearning_rate: 0.005\ninit_adapter: %s\n",
             scratch_path("data.jsonl"), scratch_path("eval.jsonl"), scratch_path("from"));
    for (int ranks = 1; ranks <= 3; ranks += 2) {
        char output[16];
        snprintf(output, sizeof output, "on_%d", ranks);
        job_run_in(&on, job_ranks(ranks), more, output, NULL);
        if (on.status != 0)
            fail_msg("%s", on.message);
        assert_true(memcmp(&on.eval[0].loss, &with, sizeof with) == 0);
        assert_same_file("from", output, true);
        job_result_free(&on);
    }
    job_result_free(&from);
}

/* What was there is no run's that has none. */
static void test_replaced(void **state)
{
    (void)state;
    job_result got;
    char text[2048];
    run(&got, 1, "", "replaced", NULL);
    job_result_free(&got);
    snprintf(text, sizeof text,
             "model_name_or_path: " MODEL
             "\ndataset: %s\nmax_steps: 1\noverwrite_output_dir: true\n",
             scratch_path("data.jsonl"));
    job_run_in(&got, 1, text, "replaced", NULL);
    if (got.status != 0)
        fail_msg("%s", got.message);
    job_result_free(&got);
    assert_int_not_equal(access(scratch_path("replaced/" BIAS_FILE), F_OK), 0);
    assert_false(card_has("replaced", BIAS_FILE));
}

static void test_merge(void **state)
{
    (void)state;
    job_result got;
    char text[2048], *report = NULL;
    float saved[VALUES], merged[VALUES];
    run(&got, 1, "lora_target_modules: [q_proj, o_proj]\nload_in_4bit: false\n", "adapter", NULL);
    job_result_free(&got);
    snprintf(text, sizeof text, "model_name_or_path: " MODEL "\ninit_adapter: %s\noutput_dir: %s\n",
             scratch_path("adapter"), scratch_path("merged"));
    const tsr_job_options options = {.size = sizeof options, .config_text = text, .threads = 1};
    if (tsr_merge(&options, 1, &report) < 0)
        fail_msg("%s", tsr_last_error());
    tsr_free(report);
    biases_of(saved, "adapter");
    read_biases(merged, scratch_path("merged/model.safetensors"));
    assert_memory_equal(saved, merged, sizeof saved);
    snprintf(text, sizeof text, "model_name_or_path: " MODEL "\ninit_adapter: %s\n",
             scratch_path("adapter"));
    strcat(text, "load_in_4bit: false\n");
    double with = loss_of(text);
    snprintf(text, sizeof text, "model_name_or_path: %s\nload_in_4bit: false\n",
             scratch_path("merged"));
    double of_merged = loss_of(text);
    print_message("with the adapter %.6f, merged %.6f\n", with, of_merged);
    assert_true(with - of_merged < 2e-2 && of_merged - with < 2e-2);
}

/* ---- files that are refused ---- */

static void refuse(const char *model, const char *adapter, const tsr_tensor_source *tensors,
                   uint64_t count, const char *const words[MOST_WORDS])
{
    static const char *const files[] = {"adapter_config.json", "adapter_model.safetensors"};
    static int made;
    char directory[40], name[100], text[2048];
    snprintf(directory, sizeof directory, "bad_%d", made++);
    assert_int_equal(mkdir(scratch_path(directory), 0777), 0);
    for (int i = 0; i < 2; i++) {
        snprintf(text, sizeof text, "%s/%s", adapter, files[i]);
        snprintf(name, sizeof name, "%s/%s", directory, files[i]);
        assert_int_equal(symlink(text, scratch_path(name)), 0);
    }
    snprintf(name, sizeof name, "%s/" BIAS_FILE, directory);
    assert_int_equal(tsr_safetensors_write(scratch_path(name), tensors, count), TSR_OK);
    snprintf(text, sizeof text,
             "model_name_or_path: %s\ndataset: %s\nmax_steps: 1\ninit_adapter: %s\n", model,
             scratch_path("data.jsonl"), scratch_path(directory));
    tsr_job *job = begin(TSR_JOB_TRAIN, text, "refused");
    tsr_status status = job ? tsr_job_start(job) : TSR_EDATA;
    check_error(directory, status, TSR_EDATA, words);
    tsr_job_destroy(job);
    assert_int_not_equal(access(scratch_path("refused"), F_OK), 0);
}

static void test_refused(void **state)
{
    (void)state;
    static const char own[] = FAMILIES "glm4_moe/a_lora_attention/init";
    static const float few[EXPERTS + 1] = {0};
    const float nan[EXPERTS] = {0, NAN};
    const tsr_tensor_source good[] = {
        {.name = names[0], .dtype = TSR_F32, .ndim = 1, .shape = {EXPERTS}, .data = few},
        {.name = names[1], .dtype = TSR_F32, .ndim = 1, .shape = {EXPERTS}, .data = few},
        {.name = "model.layers.7.mlp.gate.e_score_correction_bias",
         .dtype = TSR_F32,
         .ndim = 1,
         .shape = {EXPERTS},
         .data = few}};
    tsr_tensor_source bad[3];
    memcpy(bad, good, sizeof bad);
    refuse(MODEL, own, good, 1, (const char *[MOST_WORDS]){BIAS_FILE, names[1], "missing"});
    refuse(MODEL, own, good, 3, (const char *[MOST_WORDS]){BIAS_FILE, good[2].name, "is no"});
    bad[1].shape[0] = EXPERTS + 1;
    refuse(MODEL, own, bad, 2, (const char *[MOST_WORDS]){BIAS_FILE, names[1], "[9]", "[8]"});
    bad[1] = good[1];
    bad[1].dtype = TSR_BF16;
    refuse(MODEL, own, bad, 2, (const char *[MOST_WORDS]){BIAS_FILE, names[1], "BF16", "F32"});
    bad[1] = good[1];
    bad[1].data = nan;
    refuse(MODEL, own, bad, 2, (const char *[MOST_WORDS]){BIAS_FILE, names[1], "nan"});
    refuse(FAMILIES "qwen3_moe/checkpoint", FAMILIES "qwen3_moe/a_lora_attention/init", good, 2,
           (const char *[MOST_WORDS]){BIAS_FILE, "have none", "remove it"});
}

static int setup(void **state)
{
    (void)state;
    scratch_make();
    job_write_documents("data.jsonl", 40, 256, 5);
    job_write_documents("eval.jsonl", 8, 256, 77);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_moves),   cmocka_unit_test(test_merge),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_bits),
        cmocka_unit_test(test_resume),  cmocka_unit_test(test_best),
        cmocka_unit_test(test_start),   cmocka_unit_test(test_replaced),
    };
    const struct CMUnitTest bits[] = {
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_resume),
        cmocka_unit_test(test_best),
        cmocka_unit_test(test_start),
    };
    job_choose_backend(argc, argv);
    if (argc < 4)
        return cmocka_run_group_tests(tests, setup, scratch_teardown);
    backend = argv[1];
    dtype = argv[2];
    return cmocka_run_group_tests(bits, setup, scratch_teardown);
}
