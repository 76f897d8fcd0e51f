/*
 * objective: reward in whole jobs: TRL's golden traces, losses, norms, metrics and trained values; beside other features and in
 * several families the same bits on one to three ranks, and across a stop; what is saved is PEFT's; evaluations; and what is refused.
 *
 *     test_job_reward [cuda DTYPE RANKS]
 */
#include "job/fixture.h"

#include "base/text.h"
#include "io/json.h"
#include "support/golden.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define OBJECTIVES TSR_SOURCE_DIR "/tests/golden/objectives"
#define FAMILIES   TSR_SOURCE_DIR "/tests/golden/families/"
#define SCORE      "base_model.model.score.weight"
#define SAMPLES    4 /* of each tensor */
#define INIT       OBJECTIVES "/init/reward_r8_b"

static json_t *golden, *names; /* the names of a LoRA's tensors */
static tsr_safetensors *golden_file;

/* Appends keys, "key: value" lines, to `out`, in the place of those that it has of the same names. */
static void put_keys(tsr_text *out, const char *keys)
{
    tsr_auto_text kept = {0};
    char *copy = strdup(keys), *rest = copy, *line, name[64];
    assert_non_null(copy);
    while ((line = strtok_r(rest, "\n", &rest))) {
        snprintf(name, sizeof name, "\n%.*s:", (int)strcspn(line, ":"), line);
        char *found = strstr(tsr_text_string(out), name);
        if (found) {
            tsr_text_clear(&kept);
            tsr_text_append(&kept, out->data, (size_t)(found - out->data));
            tsr_text_puts(&kept, found + 1 + strcspn(found + 1, "\n"));
            tsr_text_clear(out);
            tsr_text_puts(out, tsr_text_string(&kept));
        }
        tsr_text_printf(out, "%s\n", line);
    }
    free(copy);
    assert_false(out->failed || kept.failed);
}

/* ---- traces ---- */

/* The rows of a trace, each with its margin. */
static const char *write_margins(const char *path, const json_t *margins)
{
    uint64_t bytes;
    char *text = read_whole(&bytes, path), *rest = text, *line;
    tsr_auto_text out = {0};
    for (size_t i = 0; (line = strtok_r(rest, "\n", &rest)); i++)
        tsr_text_printf(&out, "%.*s,\"margin\":%.9g}\n", (int)strlen(line) - 1, line,
                        json_number_value(json_array_get(margins, i)));
    assert_false(out.failed);
    write_text(scratch_path("margins.jsonl"), tsr_text_string(&out));
    free(text);
    return scratch_path("margins.jsonl");
}

static void configure(tsr_text *out, const json_t *trace, const char *more)
{
    const json_t *center =
        json_object_get(json_object_get(trace, "config"), "center_rewards_coefficient");
    const json_t *margins = json_object_get(trace, "margin");
    char path[512];
    snprintf(path, sizeof path, OBJECTIVES "/data/%s.jsonl",
             json_string_value(json_object_get(trace, "data")));
    tsr_text_printf(out,
                    "\nmodel_name_or_path: " JOB_MODEL "\ndataset: %s\nobjective: reward\n"
                    "init_adapter: " INIT "\nshuffle: false\ndtype: float32\n"
                    "per_device_train_batch_size: %d\ntotal_batch_size: %d\nmax_steps: %zu\n"
                    "learning_rate: %.9g\nlr_scheduler_type: constant\nmax_grad_norm: 1e9\n"
                    "overwrite_output_dir: true\n",
                    margins ? write_margins(path, margins) : path,
                    (int)json_integer_value(json_object_get(trace, "batch")),
                    (int)json_integer_value(json_object_get(trace, "batch")),
                    json_array_size(json_object_get(trace, "steps")),
                    json_number_value(json_object_get(trace, "lr")));
    if (center)
        tsr_text_printf(out, "center_rewards_coefficient: %.9g\n", json_number_value(center));
    put_keys(out, more);
}

/* The tolerances of the golden results' README. */
static void judge_steps(const json_t *steps, const job_result *got)
{
    double loss = 0, rewards = 0, norm[2] = {0};
    for (size_t i = 0; i < json_array_size(steps); i++) {
        const json_t *step = json_array_get(steps, i);
        const tsr_job_preference *p = &got->step[i].preference;
        const struct {
            const char *name;
            double got;
        } metrics[] = {{"min_reward", p->min_reward},
                       {"mean_reward", p->mean_reward},
                       {"max_reward", p->max_reward},
                       {"margin", p->reward_margin}};
        double want = json_number_value(json_object_get(step, "grad_norm"));
        norm[i > 0] = worse(fabs(got->step[i].grad_norm - want) / want, norm[i > 0]);
        loss =
            worse(fabs(got->step[i].loss - json_number_value(json_object_get(step, "loss"))), loss);
        for (int m = 0; m < 4; m++)
            rewards = worse(
                fabs(metrics[m].got - json_number_value(json_object_get(step, metrics[m].name))),
                rewards);
        assert_true(p->reward_accuracy == json_number_value(json_object_get(step, "accuracy")));
        assert_true(isnan(p->kl) && isnan(p->logp_chosen) && isnan(got->step[i].entropy));
    }
    judge("loss", loss, 2e-4);
    judge("rewards", rewards, 1e-4);
    judge("grad_norm / norm at step 1", norm[0], 3e-5);
    judge("grad_norm / norm later", norm[1], 1e-3);
}

static void judge_final(const char *name, const char *output)
{
    uint64_t tensors = json_array_size(names) + 1, count;
    double square = 0, single = 0, norm = 0;
    char path[256];
    float *want = golden_f32(NULL, golden_file, "%s.final_samples", name);
    float *norms = golden_f32(NULL, golden_file, "%s.final_l2", name);
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", output);
    tsr_safetensors *file = golden_open(scratch_path(path));
    for (uint64_t t = 0; t < tensors; t++) {
        const char *tensor = t + 1 < tensors ? json_string_value(json_array_get(names, t)) : SCORE;
        float *got = golden_f32(&count, file, "%s", tensor);
        double sum = 0;
        for (uint64_t i = 0; i < count; i++)
            sum += (double)got[i] * (double)got[i];
        for (uint64_t i = 0; i < SAMPLES; i++) {
            double difference = (double)got[i * count / SAMPLES] - (double)want[t * SAMPLES + i];
            square += difference * difference;
            single = worse(fabs(difference), single);
        }
        norm = worse(fabs(sqrt(sum) - (double)norms[t]) / (double)norms[t], norm);
        free(got);
    }
    judge("final samples, rms", sqrt(square / (double)(tensors * SAMPLES)), 1e-5);
    judge("final samples, single", single, 1e-4);
    judge("final norm / norm", norm, 2e-4);
    tsr_safetensors_close(file);
    free(want), free(norms);
}

static void judge_score(const char *name, const char *output)
{
    char path[256];
    uint64_t count;
    double most = 0;
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", output);
    tsr_safetensors *file = golden_open(scratch_path(path));
    float *got = golden_f32(&count, file, "%s", SCORE);
    float *want = golden_f32(NULL, golden_file, "%s.final_score", name);
    for (uint64_t i = 0; i < count; i++)
        most = worse(fabs((double)got[i] - (double)want[i]), most);
    judge("all of the score", most, 1e-4);
    tsr_safetensors_close(file);
    free(got), free(want);
}

static void test_traces(void **state)
{
    (void)state;
    const char *name;
    json_t *trace;
    json_object_foreach(json_object_get(golden, "traces"), name, trace)
    {
        job_result one, three;
        tsr_auto_text config = {0};
        print_message("%s\n", name);
        configure(&config, trace, "");
        job_run_in(&one, 1, tsr_text_string(&config), "trace", NULL);
        if (one.status != 0)
            fail_msg("%s", one.message);
        judge_steps(json_object_get(trace, "steps"), &one);
        judge_final(name, "trace");
        if (!strcmp(name, "reward"))
            judge_score(name, "trace");
        job_run_in(&three, job_ranks(3), tsr_text_string(&config), "three", NULL);
        job_assert_same(&one, &three, name);
        job_result_free(&one);
        job_result_free(&three);
    }
}

/* ---- beside other features ---- */

/* In the scratch directory: pairs of tokens below 250, of unequal length, some with a margin. */
static const char *write_pairs(int times)
{
    tsr_auto_text text = {0};
    unsigned seed = 7;
    for (int row = 0; row < 9; row++) {
        for (int k = 0; k < 2; k++) {
            tsr_text_printf(&text, "%s[", k ? ",\"rejected_ids\":" : "{\"chosen_ids\":");
            for (int t = 0; t < times * (1 + (5 * row + 7 * k) % 11); t++) {
                seed = seed * 1664525u + 1013904223u;
                tsr_text_printf(&text, "%s%u", t ? "," : "", (seed >> 8) % 250);
            }
            tsr_text_puts(&text, "]");
        }
        if (row % 2)
            tsr_text_printf(&text, ",\"margin\":%d.5", row - 4);
        tsr_text_puts(&text, "}\n");
    }
    assert_false(text.failed);
    write_text(scratch_path("pairs.jsonl"), tsr_text_string(&text));
    return scratch_path("pairs.jsonl");
}

static const struct {
    const char *name, *model, *keys;
} kinds[] = {
    {"plain", JOB_SHALLOW, ""},
    {"DoRA, rsLoRA", JOB_SHALLOW, "use_dora: true\nuse_rslora: true\n"},
    {"packed, centered", JOB_SHALLOW,
     "packing: true\nmax_length: 30\ncenter_rewards_coefficient: 0.1\n"},
    {"fp8", JOB_SHALLOW, "base_compute: fp8\n"},
    {"dropout, LoRA+", JOB_SHALLOW,
     "disable_dropout: false\nlora_dropout: 0.1\nloraplus_lr_ratio: 4\n"},
    {"8-bit moments", JOB_SHALLOW, "optim: adamw_8bit\n"},
    {"PiSSA", JOB_SHALLOW, "init_lora_weights: pissa\n"},
    {"trained tokens", JOB_SHALLOW, "trainable_token_indices: [3, 17, 101]\n"},
    {"a tied model, few targets", JOB_SHALLOW,
     "lora_target_modules: [q_proj]\nload_in_4bit: false\n"},
    {"experts", FAMILIES "mixtral/checkpoint", "router_aux_loss_coef: 0.01\n"},
    {"capped logits, tied", FAMILIES "gemma2/checkpoint", ""},
    {"a divisor of logits", FAMILIES "granite/checkpoint", ""},
};

#define KINDS (sizeof kinds / sizeof *kinds)

/* Documents are so many times as long as on the CPU. */
static void configure_kind(tsr_text *out, size_t kind, const char *more, int times)
{
    tsr_text_printf(out,
                    "\nmodel_name_or_path: %s\ndataset: %s\nobjective: reward\ndtype: float32\n"
                    "lora_r: 4\nlearning_rate: 2e-3\nmax_steps: 4\n"
                    "per_device_train_batch_size: 2\ntotal_batch_size: 6\n",
                    kinds[kind].model, write_pairs(times));
    put_keys(out, kinds[kind].keys);
    put_keys(out, more);
}

static void run_long_kind(job_result *out, int ranks, size_t kind, const char *more,
                          const char *output, const job_event *event, int times)
{
    tsr_auto_text config = {0};
    char directory[64];
    configure_kind(&config, kind, more, times);
    snprintf(directory, sizeof directory, "%zu_%s", kind, output);
    job_run_in(out, ranks, tsr_text_string(&config), directory, event);
    if (out->status != 0)
        fail_msg("%s: %s", kinds[kind].name, out->message);
}

static void run_kind(job_result *out, int ranks, size_t kind, const char *more, const char *output,
                     const job_event *event)
{
    run_long_kind(out, ranks, kind, more, output, event, 1);
}

static void run_long(job_result *out, int ranks, size_t kind, const char *more)
{
    run_long_kind(out, ranks, kind, more, "long", NULL, job_tokens(1));
}

static void spread_kind(const job_result *whole, size_t kind)
{
    job_result three;
    run_kind(&three, job_ranks(3), kind,
             kind % 2 ? "gradient_checkpointing: full\n"
                      : "gradient_checkpointing: full\noffload: sharded\n"
                        "activation_offloading: true\noptimizer_offload: true\n",
             "three", NULL);
    job_assert_same(whole, &three, kinds[kind].name);
    job_assert_plan(&three, job_ranks(3), kinds[kind].name);
    job_result_free(&three);
}

/* The bits of one rank on three, with layers recomputed and the state elsewhere, and of no stop after one on two. */
static void test_kinds(void **state)
{
    (void)state;
    for (size_t kind = 0; kind < KINDS; kind++) {
        job_result one;
        if (strstr(kinds[kind].keys, "fp8") && !job_has_fp8())
            continue;
        run_kind(&one, 1, kind, "", "one", NULL);
        assert_true(one.step[0].preference.present);
        assert_true(isfinite(one.step[0].preference.mean_reward));
        assert_true(one.step[3].loss != one.step[0].loss);
        job_assert_plan(&one, 1, kinds[kind].name);
        if (HAS_HALF(kind / 2, 0))
            spread_kind(&one, kind);
        if (HAS_HALF(kind / 2, 1))
            job_check_resumed(&one, kind, kinds[kind].name, run_kind);
        job_result_free(&one);
    }
}

/* ---- the score ---- */

static float *saved_score(uint64_t *count, const char *output)
{
    char path[256];
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", output);
    tsr_safetensors *file = golden_open(scratch_path(path));
    float *score = golden_f32(count, file, "%s", SCORE);
    tsr_safetensors_close(file);
    return score;
}

/* A fresh one is normal, with config.json's initializer_range, and another seed's is another. */
static void test_fresh(void **state)
{
    (void)state;
    job_result result;
    uint64_t count;
    double square = 0;
    run_kind(&result, 1, 0, "learning_rate: 0\n", "fresh", NULL);
    job_result_free(&result);
    run_kind(&result, 1, 0, "learning_rate: 0\nseed: 7\n", "other", NULL);
    job_result_free(&result);
    float *score = saved_score(&count, "0_fresh"), *other = saved_score(NULL, "0_other");
    assert_int_equal(count, 256);
    assert_true(memcmp(score, other, count * sizeof *score) != 0);
    for (uint64_t i = 0; i < count; i++)
        square += (double)score[i] * (double)score[i] / (double)count;
    judge("distance from 0.02", fabs(sqrt(square) - 0.02), 0.003);
    free(score), free(other);
}

static bool same_sets(const json_t *a, const json_t *b)
{
    size_t found = 0;
    for (size_t i = 0; i < json_array_size(a); i++)
        for (size_t j = 0; j < json_array_size(b); j++)
            found += json_equal(json_array_get(a, i), json_array_get(b, j)) != 0;
    return found == json_array_size(a) && found == json_array_size(b);
}

/* Names, shapes and the configuration are those of the adapter that PEFT saved; a run goes on from either. */
static void test_saved(void **state)
{
    (void)state;
    job_result first, second;
    tsr_auto_text config = {0}, again = {0};
    char place[600];
    const json_t *trace = json_object_get(json_object_get(golden, "traces"), "reward");
    configure(&config, trace, "max_steps: 2\n");
    job_run_in(&first, 1, tsr_text_string(&config), "saved", NULL);
    assert_int_equal(first.status, 0);
    tsr_safetensors *want = golden_open(INIT "/adapter_model.safetensors");
    tsr_safetensors *got = golden_open(scratch_path("saved/adapter_model.safetensors"));
    assert_int_equal(tsr_safetensors_count(got), tsr_safetensors_count(want));
    for (uint64_t i = 0; i < tsr_safetensors_count(want); i++) {
        const tsr_tensor *a = tsr_safetensors_at(want, i), *b = tsr_safetensors_at(got, i);
        assert_string_equal(a->name, b->name);
        assert_true(a->ndim == b->ndim && a->element_count == b->element_count);
        assert_int_equal(b->dtype, TSR_F32);
    }
    tsr_safetensors_close(want), tsr_safetensors_close(got);
    json_t *theirs = json_load_file(INIT "/adapter_config.json", 0, NULL), *value;
    json_t *ours = json_load_file(scratch_path("saved/adapter_config.json"), 0, NULL);
    const char *key;
    assert_int_equal(json_object_size(ours), json_object_size(theirs));
    json_object_foreach(theirs, key, value)
    {
        const json_t *own = json_object_get(ours, key);
        if (json_is_array(value) ? !same_sets(value, own)
                                 : strcmp(key, "base_model_name_or_path") != 0 &&
                                       !json_equal(value, (json_t *)(uintptr_t)own))
            fail_msg("adapter_config.json: %s differs", key);
    }
    json_decref(theirs), json_decref(ours);
    configure(&again, trace, "max_steps: 1\nmodules_to_save: [score]\n");
    snprintf(place, sizeof place, "init_adapter: %s\n", scratch_path("saved"));
    put_keys(&again, place);
    job_run_in(&second, job_ranks(2), tsr_text_string(&again), "second", NULL);
    if (second.status != 0)
        fail_msg("%s", second.message);
    assert_true(second.step[0].loss < first.step[0].loss);
    job_result_free(&first), job_result_free(&second);
}

/* ---- evaluations ---- */

/* That of the data that are trained, before a step, is the step's; the same on any number of ranks. */
static void test_evaluations(void **state)
{
    (void)state;
    job_result one, three;
    tsr_auto_text keys = {0};
    tsr_text_printf(&keys,
                    "eval_strategy: steps\neval_steps: 1\neval_on_start: true\neval_dataset: %s\n"
                    "shuffle: false\nper_device_eval_batch_size: 2\nlearning_rate: 5e-3\n"
                    "num_train_epochs: 4\nmax_steps: 8\n",
                    scratch_path("pairs.jsonl"));
    run_kind(&one, 1, 0, tsr_text_string(&keys), "eval", NULL);
    run_kind(&three, job_ranks(3), 0, tsr_text_string(&keys), "eval_three", NULL);
    job_assert_same(&one, &three, "evaluations");
    assert_int_equal(one.eval_count, 9);
    assert_true(one.eval[8].loss < one.eval[0].loss);
    assert_true(one.eval[8].preference.reward_margin > one.eval[0].preference.reward_margin);
    for (int i = 0; i < one.eval_count; i++) {
        const tsr_job_preference *a = &one.eval[i].preference, *b = &three.eval[i].preference;
        assert_true(a->reward_margin == b->reward_margin && a->mean_reward == b->mean_reward);
        assert_true(a->min_reward <= a->mean_reward && a->mean_reward <= a->max_reward);
        assert_true(isnan(one.eval[i].perplexity) && isnan(one.eval[i].mean_token_accuracy));
    }
    job_result_free(&one), job_result_free(&three);
}

/* Creates a job of `purpose` and says what came of it. */
static tsr_status create(tsr_job **out, int purpose, const char *text, tsr_job *base)
{
    const char *overrides[JOB_BACKEND_KEYS];
    job_backend_keys(overrides);
    const tsr_job_options options = {.size = sizeof options,
                                     .config_text = text,
                                     .overrides = overrides,
                                     .override_count = JOB_BACKEND_KEYS,
                                     .purpose = purpose,
                                     .base = base,
                                     .threads = 1};
    return tsr_job_create(out, &options);
}

/* An adapter evaluated alone has the loss that its run had at the end; without one there is nothing to evaluate. */
static void test_eval_alone(void **state)
{
    (void)state;
    job_result trained;
    tsr_auto_text keys = {0}, config = {0}, without = {0}, other = {0};
    tsr_job_evaluation evaluation = TSR_JOB_EVALUATION_INIT;
    tsr_job *job = NULL;
    tsr_text_printf(&keys,
                    "eval_strategy: steps\neval_steps: 4\neval_dataset: %s\n"
                    "per_device_eval_batch_size: 2\n",
                    write_pairs(1));
    run_kind(&trained, 1, 0, tsr_text_string(&keys), "alone", NULL);
    tsr_text_printf(&without,
                    "model_name_or_path: " JOB_SHALLOW "\neval_dataset: %s\nobjective: reward\n"
                    "dtype: float32\nper_device_eval_batch_size: 2\n",
                    scratch_path("pairs.jsonl"));
    tsr_text_printf(&config, "%sinit_adapter: %s\n", tsr_text_string(&without),
                    scratch_path("0_alone"));
    if (create(&job, TSR_JOB_EVALUATE, tsr_text_string(&config), NULL) < 0 ||
        tsr_job_start(job) < 0 || tsr_job_evaluate(job, &evaluation) < 0)
        fail_msg("%s", tsr_last_error());
    tsr_job_destroy(job);
    judge("the run's last evaluation",
          fabs(evaluation.loss - trained.eval[trained.eval_count - 1].loss), 1e-6);
    job_result_free(&trained);
    check_error("no adapter", create(&job, TSR_JOB_EVALUATE, tsr_text_string(&without), NULL),
                TSR_ECONFIG,
                (const char *const[MOST_WORDS]){"evaluates a trained score", "init_adapter"});
    tsr_text_printf(&other,
                    "model_name_or_path: " JOB_MODEL "\neval_dataset: %s\nobjective: reward\n"
                    "init_adapter: " OBJECTIVES "/init/lora_r8_b\n",
                    scratch_path("pairs.jsonl"));
    check_error("another adapter", create(&job, TSR_JOB_EVALUATE, tsr_text_string(&other), NULL),
                TSR_ECONFIG, (const char *const[MOST_WORDS]){"lora_r8_b has none"});
}

/* An adapter of text without a score gets a fresh one. */
static void test_from_text(void **state)
{
    (void)state;
    job_result result;
    uint64_t count;
    tsr_auto_text config = {0};
    const json_t *trace = json_object_get(json_object_get(golden, "traces"), "reward");
    configure(&config, trace, "init_adapter: " OBJECTIVES "/init/lora_r8_b\nmax_steps: 1\n");
    job_run_in(&result, 1, tsr_text_string(&config), "from_text", NULL);
    if (result.status != 0)
        fail_msg("%s", result.message);
    free(saved_score(&count, "from_text"));
    assert_int_equal(count, 256);
    job_result_free(&result);
}

/* ---- on one base ---- */

static void configure_shared(tsr_text *out, const char *keys, const char *output)
{
    tsr_auto_text more = {0};
    tsr_text_printf(&more, "%soutput_dir: %s\n", keys, scratch_path(output));
    configure_kind(out, 0, tsr_text_string(&more), 1);
}

static void step_both(tsr_job *job[2])
{
    for (int i = 0; i < 2; i++)
        if (tsr_job_start(job[i]) < 0)
            fail_msg("%s", tsr_last_error());
    for (int i = 0, status[2] = {0}; !status[0] || !status[1]; i = !i) {
        tsr_job_report report = TSR_JOB_REPORT_INIT;
        status[i] = status[i] ? status[i] : tsr_job_step(job[i], &report);
        if (status[i] < 0)
            fail_msg("%s", tsr_last_error());
    }
}

/* Two reward models have the bits of runs of their own; an adapter of text cannot be beside one. */
static void test_shared(void **state)
{
    (void)state;
    static const char *const keys[] = {"", "lora_r: 8\nseed: 7\nmax_steps: 3\n"};
    tsr_job *job[2] = {NULL}, *third = NULL;
    tsr_auto_text text = {0};
    for (int i = 0; i < 2; i++) {
        tsr_auto_text config = {0};
        configure_shared(&config, keys[i], i ? "shared_1" : "shared_0");
        if (create(&job[i], TSR_JOB_TRAIN, tsr_text_string(&config), job[0]) < 0)
            fail_msg("%s", tsr_last_error());
    }
    configure_shared(&text, "objective: dpo\n", "shared_2");
    check_error("text", create(&third, TSR_JOB_TRAIN, tsr_text_string(&text), job[0]), TSR_ECONFIG,
                (const char *const[MOST_WORDS]){"the score of objective: reward"});
    step_both(job);
    for (int i = 0; i < 2; i++)
        assert_int_equal(tsr_job_save(job[i]), TSR_OK);
    for (int i = 1; i >= 0; i--)
        tsr_job_destroy(job[i]);
    for (int i = 0; i < 2; i++) {
        job_result alone;
        uint64_t bytes;
        run_kind(&alone, 1, 0, keys[i], i ? "alone_1" : "alone_0", NULL);
        char *saved = read_whole(&bytes, scratch_path(i ? "shared_1/adapter_model.safetensors"
                                                        : "shared_0/adapter_model.safetensors"));
        assert_int_equal(bytes, alone.adapter_bytes);
        assert_memory_equal(saved, alone.adapter, bytes);
        free(saved);
        job_result_free(&alone);
    }
}

/* ---- what is refused ---- */

/* Whether the objective is named or not. */
static void test_no_merge(void **state)
{
    (void)state;
    static const char *const objectives[] = {"", "objective: reward\n"};
    static const char *const words[][MOST_WORDS] = {{"SEQ_CLS", "cannot be merged"},
                                                    {"score has no place in a merged model"}};
    for (int i = 0; i < 2; i++) {
        tsr_auto_text config = {0};
        char *text = NULL;
        tsr_text_printf(&config,
                        "model_name_or_path: " JOB_MODEL "\ninit_adapter: " INIT
                        "\noutput_dir: %s\n%s",
                        scratch_path("merged"), objectives[i]);
        const tsr_job_options options = {.size = sizeof options,
                                         .config_text = tsr_text_string(&config)};
        check_error("merge", tsr_merge(&options, 0, &text), TSR_ECONFIG, words[i]);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *keys, *words[3];
    } wrong[] = {
        {"modules_to_save: [lm_head]\n", {"modules_to_save: found lm_head", "objective: reward"}},
        {"modules_to_save: [score, embed_tokens]\n", {"modules_to_save: found embed_tokens"}},
        {"lora_target_modules: [q_proj, lm_head]\n", {"objective: reward does not train lm_head"}},
        {"trainable_token_indices: {lm_head: [3]}\n", {"does not train lm_head"}},
        {"truncation: right\n", {"truncation: found right", "write drop"}},
        {"beta: 0.2\n", {"beta: found 0.2", "objective is reward", "belongs to dpo"}},
        {"loss_type: sigmoid\n", {"loss_type: found", "objective is reward"}},
        {"ref_adapter: base\n", {"ref_adapter: found base", "belongs to dpo, kto"}},
        {"adapter_mixing: tokens\n", {"adapter_mixing"}},
        {"balance: tokens\n", {"balance: tokens", "objective: reward"}},
        {"train_on_inputs: true\n", {"train_on_inputs does not go with objective: reward"}},
        {"neftune_noise_alpha: 5\n", {"neftune_noise_alpha does not go with objective: reward"}},
        {"objective: sft\nmodules_to_save: [score]\n",
         {"modules_to_save: found score", "objective: reward"}},
        {"objective: dpo\ncenter_rewards_coefficient: 0.1\n",
         {"center_rewards_coefficient: found 0.1", "belongs to reward"}},
        {"objective: dpo\ninit_adapter: " INIT "\n", {"SEQ_CLS", "found objective: dpo"}},
        {"objective: dpo\nref_adapter: " INIT "\n", {"ref_adapter: ", "SEQ_CLS", "text model"}},
        {"label_smoothing_factor: 0.1\n", {"label_smoothing_factor", "objective: reward"}},
        {"model_name_or_path: " FAMILIES "qwen3_5/checkpoint\n",
         {"models of text alone", "qwen3_5"}},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        tsr_auto_text config = {0};
        job_result got;
        configure_kind(&config, 0, wrong[i].keys, 1);
        job_run_in(&got, 1, tsr_text_string(&config), "wrong", NULL);
        if (got.status != TSR_ECONFIG)
            fail_msg("%s: %d, %s", wrong[i].keys, got.status, got.message);
        for (int w = 0; w < 3 && wrong[i].words[w]; w++)
            if (!strstr(got.message, wrong[i].words[w]))
                fail_msg("'%s' is not in: %s", wrong[i].words[w], got.message);
        job_result_free(&got);
    }
}

static int set_up(void **state)
{
    json_t *all = NULL;
    if (tsr_json_load_object(&golden, OBJECTIVES "/reward.json") < 0 ||
        tsr_json_load_object(&all, OBJECTIVES "/traces.json") < 0 || scratch_setup(state) != 0)
        return -1;
    names = json_incref(json_object_get(all, "tensors"));
    json_decref(all);
    golden_file = golden_open(OBJECTIVES "/reward.safetensors");
    return 0;
}

static int tear_down(void **state)
{
    json_decref(golden);
    json_decref(names);
    tsr_safetensors_close(golden_file);
    return scratch_teardown(state);
}

/* Micro-batches longer than context_span, on one rank and on those that share each of them. */
static void test_context(void **state)
{
    (void)state;
    static const struct {
        int ranks;
        const char *keys;
    } ways[] = {
        {2, "context_parallel_size: 2\n"},
        {3, "context_parallel_size: 3\ngradient_checkpointing: full\noffload: sharded\n"},
        {4, "context_parallel_size: 2\n"},
    };
    for (size_t kind = 0; kind < KINDS; kind++) {
        tsr_auto_text keys = {0};
        job_result alone, shared;
        if (strcmp(kinds[kind].name, "DoRA, rsLoRA") && strcmp(kinds[kind].name, "experts"))
            continue;
        tsr_text_printf(&keys,
                        "context_span: %d\nper_device_train_batch_size: 3\nmax_steps: 2\n"
                        "overwrite_output_dir: true\n"
                        "center_rewards_coefficient: 0.1\neval_strategy: steps\neval_steps: 1\n"
                        "per_device_eval_batch_size: 3\neval_dataset: %s\n",
                        job_tokens(16), scratch_path("pairs.jsonl"));
        run_long(&alone, 1, kind, tsr_text_string(&keys));
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
            tsr_auto_text more = {0};
            if (job_ranks(ways[w].ranks) != ways[w].ranks)
                continue;
            tsr_text_printf(&more, "%s%s", tsr_text_string(&keys), ways[w].keys);
            run_long(&shared, ways[w].ranks, kind, tsr_text_string(&more));
            job_assert_same(&alone, &shared, kinds[kind].name);
            job_assert_plan(&shared, ways[w].ranks, kinds[kind].name);
            job_result_free(&shared);
        }
        job_result_free(&alone);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_traces),      cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_fresh),       cmocka_unit_test(test_saved),
        cmocka_unit_test(test_evaluations), cmocka_unit_test(test_eval_alone),
        cmocka_unit_test(test_from_text),   cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_shared),      cmocka_unit_test(test_no_merge),
        cmocka_unit_test(test_context)};
    job_choose_backend(argc, argv);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
