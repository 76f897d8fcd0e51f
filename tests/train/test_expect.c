/*
 * The expected time of a step against every step of a model's shape that bench/results has, on 1 and 2
 * H200, from the roofs of the same file. A table of all goes to stdout (docs/time.md).
 *
 * Efficiencies and slowdowns come from other measurements (speeds.c), but for two: what a copy from the
 * host costs the computation beside it (row 8 of the first file), and what a gather does (bench
 * two_slots).
 */
#include "support/scratch.h"
#include "train/expect.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define RESULTS TSR_SOURCE_DIR "/bench/results/"
#define MOST_ERROR 0.06 /* of any row */
#define MOST_MEAN  0.03 /* of all, without their signs */

static const struct {
    const char *name;
    int d, f, heads, kv_heads, vocabulary;
} shapes[] = {{"llama3-8b", 4096, 14336, 32, 8, 128256},
              {"llama2-7b", 4096, 11008, 32, 32, 32000},
              {"llama3-70b", 8192, 28672, 64, 8, 128256}};

static double number(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

static const char *word(const json_t *object, const char *key)
{
    const char *found = json_string_value(json_object_get(object, key));
    return found ? found : "";
}

static void write_model(const char *shape, int layers)
{
    char text[1024];
    int k = 0;
    while (strcmp(shapes[k].name, shape) != 0)
        k++;
    snprintf(text, sizeof text,
             "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":%d,"
             "\"intermediate_size\":%d,\"num_hidden_layers\":%d,\"num_attention_heads\":%d,"
             "\"num_key_value_heads\":%d,\"head_dim\":128,\"vocab_size\":%d,"
             "\"max_position_embeddings\":8192,\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-5,"
             "\"rope_theta\":500000.0,\"tie_word_embeddings\":false,\"attention_bias\":false,"
             "\"torch_dtype\":\"bfloat16\"}",
             shapes[k].d, shapes[k].f, layers, shapes[k].heads, shapes[k].kv_heads,
             shapes[k].vocabulary);
    write_text(scratch_path("config.json"), text);
}

/* The decision of a job of this text for bf16 and `ranks`, and its expectation. */
static void expect(tsr_expectation *out, const char *text, int ranks, int node,
                   const tsr_speeds *speeds)
{
    tsr_inputs inputs = {.compute = TSR_BF16};
    tsr_decision decision;
    const tsr_topology_view view = {ranks, 0, node};
    const tsr_config_source source = {.text = text, .use = TSR_CONFIG_PLAN};
    if (tsr_inputs_read_config(&inputs, &source) < 0 ||
        tsr_inputs_read_model(&inputs, true, true) < 0)
        fail_msg("%s", tsr_last_error());
    tsr_inputs_assume_data(&inputs);
    if (tsr_decide(&decision, &inputs, &view, true, TSR_BUDGET_UNKNOWN, speeds) < 0)
        fail_msg("%s", tsr_last_error());
    *out = decision.expected;
    tsr_decision_free(&decision);
    tsr_inputs_close(&inputs);
}

static double expect_run(const json_t *run, const tsr_speeds *speeds)
{
    char text[1024];
    const char *recompute = word(run, "recompute");
    tsr_expectation e;
    int ranks = (int)number(run, "ranks");
    write_model(word(run, "shape"), (int)number(run, "layers"));
    snprintf(text, sizeof text,
             "model_name_or_path: %s\noutput_dir: out\nbackend: cpu\nlora_r: %d\nuse_dora: %s\n"
             "per_device_train_batch_size: %d\nmax_length: %d\ngradient_checkpointing: %s\n"
             "offload: %s\nresident_units: %d\nactivation_offloading: false\n"
             "optimizer_offload: false\n",
             scratch_path(""), (int)number(run, "r"),
             strcmp(word(run, "adapter"), "dora") ? "false" : "true", (int)number(run, "batch"),
             (int)number(run, "length"),
             !strcmp(recompute, "none")   ? "false"
             : !strcmp(recompute, "full") ? "true"
                                          : recompute,
             word(run, "offload"), (int)number(json_object_get(run, "plan"), "resident_units"));
    expect(&e, text, ranks, ranks, speeds);
    return 1e3 * e.simulation.step;
}

static int check_file(double *sum, const char *path)
{
    json_error_t error;
    json_t *file = json_load_file(path, 0, &error);
    const json_t *runs = json_object_get(file, "runs");
    tsr_speeds speeds;
    int count = 0, wrong = 0;
    if (tsr_speeds_read(&speeds, path, true, TSR_BF16) < 0)
        fail_msg("%s", tsr_last_error());
    printf("%s\n", strrchr(path, '/') + 1);
    for (size_t i = 0; i < json_array_size(runs); i++) {
        const json_t *run = json_object_get(json_array_get(runs, i), "result");
        if (!json_object_get(run, "step_ms"))
            continue;
        double found = expect_run(run, &speeds), measured = number(run, "step_ms");
        double off = found / measured - 1;
        printf("| %d | %s, %d layers | %d x %d | %s r %d | %s | %s | %.1f | %.1f | %+.1f %% |\n",
               (int)number(run, "ranks"), word(run, "shape"), (int)number(run, "layers"),
               (int)number(run, "batch"), (int)number(run, "length"), word(run, "adapter"),
               (int)number(run, "r"), word(run, "recompute"), word(run, "offload"), measured, found,
               100 * off);
        wrong += !(fabs(off) < MOST_ERROR);
        *sum += fabs(off);
        count++;
    }
    json_decref(file);
    assert_int_equal(wrong, 0);
    return count;
}

static void test_measured_steps(void **state)
{
    (void)state;
    double sum = 0;
    int count = check_file(&sum, RESULTS "h200_one_gpu.json");
    assert_int_equal(count, 10);
    count += check_file(&sum, RESULTS "h200x2_scale_llama2.json");
    assert_int_equal(count, 19);
    printf("mean error %.1f %%\n", 100 * sum / count);
    assert_true(sum / count < MOST_MEAN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_measured_steps)};
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
