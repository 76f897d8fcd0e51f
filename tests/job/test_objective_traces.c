/*
 * Objectives over preferences: every golden trace of TRL (tests/golden/objectives), and the same bits on any number of ranks,
 * with recomputation and offloading.
 *
 *     test_job_objective_traces [cuda DTYPE RANKS]
 */
#include "job/fixture.h"

#include "io/json.h"
#include "report/metrics.h"
#include "support/folder.h"
#include "support/golden.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define OBJECTIVES TSR_SOURCE_DIR "/tests/golden/objectives"
#define SAMPLES    4 /* of each tensor */

static json_t *golden;
static tsr_safetensors *golden_file;

/* ---- a trace ---- */

static void put_value(tsr_text *out, const json_t *value)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY);
    assert_non_null(text);
    tsr_text_puts(out, text);
    free(text);
}

/* The job that a trace is, of `steps` steps (0: all); what TRL calls its keys we do. */
static void configure(tsr_text *out, const json_t *trace, size_t steps, const char *more)
{
    const json_t *config = json_object_get(trace, "config"), *value;
    const char *key, *data = json_string_value(json_object_get(trace, "data"));
    const char *init = json_string_value(json_object_get(trace, "init"));
    const char *reference = json_string_value(json_object_get(trace, "reference"));
    const char *trainer = json_string_value(json_object_get(trace, "trainer"));
    int batch = (int)json_integer_value(json_object_get(trace, "batch"));
    int accumulate = (int)json_integer_value(json_object_get(trace, "accumulate"));
    size_t rows = json_array_size(json_object_get(trace, "rows"));
    steps = steps ? steps : json_array_size(json_object_get(trace, "steps"));
    bool fresh = strcmp(init, "lora_r8_b") != 0, has_reference = *trainer == 'd' || *trainer == 'k';
    tsr_text_printf(
        out,
        "model_name_or_path: " JOB_MODEL "\ndataset: " OBJECTIVES "/data/%s.jsonl\nobjective: %s\n"
        "init_adapter: %s\nshuffle: false\ndtype: float32\nper_device_train_batch_size: %d\n"
        "total_batch_size: %d\nmax_steps: %zu\nlearning_rate: %.9g\nlr_scheduler_type: constant\n"
        "max_grad_norm: %.9g\ntruncation: right\noverwrite_output_dir: true\n",
        data, trainer, fresh ? JOB_TRACES "/init/lora_r8" : OBJECTIVES "/init/lora_r8_b", batch,
        batch * accumulate, steps, json_number_value(json_object_get(trace, "lr")),
        json_number_value(json_object_get(trace, "clip")));
    if (has_reference && strcmp(reference, "initial_adapter") != 0)
        tsr_text_puts(out, "ref_adapter: base\n");
    if (rows)
        tsr_text_printf(out, "max_train_samples: %zu\n", rows);
    json_object_foreach((json_t *)(uintptr_t)config, key, value)
    {
        tsr_text_printf(out, "%s: ", key);
        put_value(out, value);
        tsr_text_puts(out, "\n");
    }
    tsr_text_puts(out, more);
    assert_false(out->failed);
}

typedef struct {
    const char *name;    /* what a metric's name begins with */
    double first, later; /* of step 1 and of later ones, from the golden results' README */
} tolerance;

static const tolerance tolerances[] = {
    {"loss", 2e-4, 2e-4},         {"rewards", 1e-4, 1e-3},
    {"logps", 2e-4, 5e-3},        {"kl", 1e-3, 1e-3},
    {"nll_loss", 1e-4, 1e-4},     {"log_odds", 1e-4, 1e-4},
    {"rewards/accuracies", 0, 0}, {"logits", 1e-4, 1e-4},
    {"entropy", 1e-4, 1e-4},      {"mean_token_accuracy", 1e-6, 1e-6},
};

#define TOLERANCES (sizeof tolerances / sizeof *tolerances)

/* The last one whose name a metric begins with; NULL: it is not reported here. */
static const tolerance *tolerance_of(const char *metric)
{
    const tolerance *found = NULL;
    for (size_t i = 0; i < TOLERANCES; i++)
        if (!strncmp(metric, tolerances[i].name, strlen(tolerances[i].name)))
            found = &tolerances[i];
    return found;
}

static double reported(const tsr_job_report *step, const char *metric)
{
    tsr_metrics_value values[TSR_METRICS_PREFERENCE + 3];
    int count = tsr_metrics_preference(values, &step->preference);
    values[count++] = (tsr_metrics_value){"loss", step->loss};
    values[count++] = (tsr_metrics_value){"mean_token_accuracy", step->mean_token_accuracy};
    values[count++] = (tsr_metrics_value){"entropy", step->entropy};
    for (int i = 0; i < count; i++)
        if (!strcmp(values[i].name, metric))
            return values[i].value;
    fail_msg("%s is not reported", metric);
    return NAN;
}

/* The README's 2e-2 for losses that are exponentials or, with sppo_hard, in the hundreds. */
static double widened(const char *name, const char *metric)
{
    bool exponential = strstr(name, "forward_kl") || !strcmp(name, "dpo_alpha");
    if (!strcmp(metric, "loss"))
        return exponential || strstr(name, "sppo") ? 100 : 1;
    return 1;
}

static void judge_steps(const char *name, const json_t *steps, const job_result *got)
{
    double most[TOLERANCES][2] = {{0}}, norm[2] = {0};
    bool exponential = strstr(name, "forward_kl") || !strcmp(name, "dpo_alpha");
    for (size_t i = 0; i < json_array_size(steps); i++) {
        json_t *step = json_array_get(steps, i);
        const char *metric;
        json_t *value;
        double want = json_number_value(json_object_get(step, "grad_norm"));
        double difference = fabs(got->step[i].grad_norm - want);
        norm[i > 0] = worse(want > 0 ? difference / want : difference, norm[i > 0]);
        json_object_foreach(step, metric, value)
        {
            const tolerance *t = tolerance_of(metric);
            /* ORPO's and CPO's means of logits are over padding too. */
            if (!t || (!strncmp(metric, "logits", 6) && *name != 'd' && *name != 'k'))
                continue;
            double *of = &most[t - tolerances][i > 0];
            *of = worse(fabs(reported(&got->step[i], metric) - json_number_value(value)) /
                            widened(name, metric),
                        *of);
        }
    }
    for (size_t t = 0; t < TOLERANCES; t++) {
        judge(tolerances[t].name, most[t][0], tolerances[t].first);
        judge(tolerances[t].name, most[t][1], tolerances[t].later);
    }
    judge("grad_norm / norm at step 1", norm[0], exponential ? 5e-4 : 3e-5);
    judge("grad_norm / norm later", norm[1], exponential ? 3e-3 : 1e-3);
}

static double l2(const float *values, uint64_t count)
{
    double sum = 0;
    for (uint64_t i = 0; i < count; i++)
        sum += (double)values[i] * (double)values[i];
    return sqrt(sum);
}

static void judge_final(const char *name, const char *output)
{
    const json_t *names = json_object_get(golden, "tensors");
    uint64_t tensors = json_array_size(names), count;
    double square = 0, single = 0, norm = 0;
    char path[256];
    float *want = golden_f32(NULL, golden_file, "%s.final_samples", name);
    float *norms = golden_f32(NULL, golden_file, "%s.final_l2", name);
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", output);
    tsr_safetensors *file = golden_open(scratch_path(path));
    for (uint64_t t = 0; t < tensors; t++) {
        float *got = golden_f32(&count, file, "%s", json_string_value(json_array_get(names, t)));
        for (uint64_t i = 0; i < SAMPLES; i++) {
            double difference = (double)got[i * count / SAMPLES] - (double)want[t * SAMPLES + i];
            square += difference * difference;
            single = worse(fabs(difference), single);
        }
        norm = worse(fabs(l2(got, count) - (double)norms[t]) / (double)norms[t], norm);
        free(got);
    }
    judge("final samples, rms", sqrt(square / (double)(tensors * SAMPLES)), 1e-5);
    judge("final samples, single", single, 1e-4);
    judge("final norm / norm", norm, 2e-4);
    tsr_safetensors_close(file);
    free(want);
    free(norms);
}

static void run(job_result *out, int ranks, const json_t *trace, size_t steps, const char *more,
                const char *output)
{
    tsr_auto_text config = {0};
    configure(&config, trace, steps, more);
    job_run_in(out, ranks, tsr_text_string(&config), output, NULL);
    if (out->status != 0)
        fail_msg("%s", out->message);
}

static const json_t *trace_of(const char *name)
{
    const json_t *trace = json_object_get(json_object_get(golden, "traces"), name);
    if (!trace)
        fail_msg("no trace is called %s", name);
    return trace;
}

/* ---- tests ---- */

static void test_traces(void **state)
{
    (void)state;
    const char *name;
    json_t *trace;
    int judged = 0;
    json_object_foreach(json_object_get(golden, "traces"), name, trace)
    {
        job_result got;
        print_message("%s\n", name);
        run(&got, 1, trace, 0, "", "trace");
        assert_int_equal(got.step_count, json_array_size(json_object_get(trace, "steps")));
        judge_steps(name, json_object_get(trace, "steps"), &got);
        judge_final(name, "trace");
        job_result_free(&got);
        judged++;
    }
    assert_int_equal(judged, 39);
}

/* One of each objective, and those whose losses pool a micro-batch. */
static const char *const few[] = {
    "dpo_sigmoid_sft_accumulated", "dpo_aot", "dpo_ld", "orpo_accumulated", "simpo", "kto"};

/* The same bits however it is run. */
static void test_same_bits(void **state)
{
    (void)state;
    static const char *const ways[] = {
        "gradient_checkpointing: full\nactivation_offloading: true\n",
        "offload: sharded\ngradient_checkpointing: selective\noptimizer_offload: true\n"};
    for (size_t i = 0; i < sizeof few / sizeof *few; i++) {
        job_result one, other;
        const json_t *trace = trace_of(few[i]);
        run(&one, 1, trace, 2, "", "one");
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
            run(&other, job_ranks(w == 1 ? 3 : 2), trace, 2, ways[w], "other");
            job_assert_same(&one, &other, few[i]);
            job_result_free(&other);
        }
        job_result_free(&one);
    }
}

static int set_up(void **state)
{
    if (tsr_json_load_object(&golden, OBJECTIVES "/traces.json") < 0)
        return -1;
    golden_file = golden_open(OBJECTIVES "/traces.safetensors");
    return scratch_setup(state);
}

static int tear_down(void **state)
{
    json_decref(golden);
    tsr_safetensors_close(golden_file);
    return scratch_teardown(state);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_traces),
                                       cmocka_unit_test(test_same_bits)};
    job_choose_backend(argc, argv);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
