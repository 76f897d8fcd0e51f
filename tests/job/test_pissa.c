/*
 * test_pissa.c: runs that start from the principal parts of the weights. PEFT's three steps on a plain
 * fp32 base; the same bits on any number of ranks, resumed too; the adapter that is saved is the run's on
 * the untouched base; an NF4 base keeps more of the weights. And the other ways to start.
 *
 *     test_job_pissa                        on the CPU
 *     test_job_pissa BACKEND DTYPE RANKS    on at most RANKS ranks
 */
#include "base/auto.h"
#include "io/checkpoint.h"
#include "job/fixture.h"
#include "model/factors.h"
#include "support/golden.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define GOLDEN       TSR_SOURCE_DIR "/tests/golden/pissa_tiny_llama"
#define PREQUANTIZED TSR_SOURCE_DIR "/tests/golden/prequantized-tiny-llama"
#define R            4
#define IN           256
#define SCALE        1.5

/* ---- a model in fp32 ---- */

/* A tensor of the quantized checkpoint as plain numbers: what belongs to a code is none of its own. */
static bool is_part(const char *name)
{
    return strstr(name, ".weight.") != NULL;
}

static void write_config(const char *name)
{
    char path[256];
    json_t *config = json_load_file(PREQUANTIZED "/config.json", 0, NULL);
    assert_non_null(config);
    json_object_del(config, "quantization_config");
    json_object_set_new(config, "dtype", json_string("float32"));
    snprintf(path, sizeof path, "%s/config.json", name);
    assert_int_equal(json_dump_file(config, scratch_path(path), 0), 0);
    json_decref(config);
}

static void write_plain_model(const char *name)
{
    enum { MOST = 64 };
    static tsr_tensor_source sources[MOST];
    char path[256];
    uint64_t count = 0;
    tsr_checkpoint *from;
    tsr_device *device;
    const tsr_device_options options = {.thread_count = 1, .no_pinning = true};
    assert_int_equal(tsr_device_create_cpu(&device, &options), TSR_OK);
    assert_int_equal(mkdir(scratch_path(name), 0777), 0);
    write_config(name);
    assert_int_equal(tsr_checkpoint_open(&from, PREQUANTIZED), TSR_OK);
    for (uint64_t i = 0; i < tsr_checkpoint_count(from); i++) {
        tsr_weight weight;
        tsr_weight_reader *reader;
        const char *tensor = tsr_checkpoint_at(from, i)->name;
        if (is_part(tensor))
            continue;
        assert_int_equal(tsr_checkpoint_weight(&weight, from, tensor), TSR_OK);
        float *data = malloc(weight.element_count * sizeof *data);
        assert_int_equal(tsr_weight_reader_open(&reader, &weight), TSR_OK);
        assert_int_equal(
            tsr_weight_reader_read(data, reader, 0, weight.element_count, tsr_device_pool(device)),
            TSR_OK);
        tsr_weight_reader_close(reader);
        assert_true(count < MOST);
        sources[count] = (tsr_tensor_source){
            .name = tensor, .dtype = TSR_F32, .ndim = weight.ndim, .data = data};
        memcpy(sources[count].shape, weight.shape, sizeof weight.shape);
        count++;
    }
    snprintf(path, sizeof path, "%s/model.safetensors", name);
    assert_int_equal(tsr_safetensors_write(scratch_path(path), sources, count), TSR_OK);
    for (uint64_t i = 0; i < count; i++)
        free((void *)sources[i].data);
    tsr_checkpoint_close(from);
    tsr_device_destroy(device);
}

/* ---- runs ---- */

__attribute__((format(printf, 1, 2))) static const char *config_text(const char *format, ...)
{
    static char text[4096];
    va_list arguments;
    va_start(arguments, format);
    int used = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (!strstr(text, "resume_from_checkpoint"))
        used += snprintf(text + used, sizeof text - (size_t)used, "overwrite_output_dir: true\n");
    if (!strstr(text, "dataset: "))
        used += snprintf(text + used, sizeof text - (size_t)used, "dataset: %s\neval_dataset: %s\n",
                         scratch_path("train.jsonl"), scratch_path("eval.jsonl"));
    if (!strstr(text, "total_batch_size"))
        snprintf(text + used, sizeof text - (size_t)used,
                 "total_batch_size: 4\nlearning_rate: 2e-3\nmax_steps: 4\n");
    return text;
}

static void run(job_result *out, int ranks, const char *config, const char *output)
{
    job_run_in(out, ranks, config, output, NULL);
    if (out->status != 0)
        fail_msg("%s on %d ranks: %s", output, ranks, out->message);
}

/* ---- PEFT's ---- */

static double relative(const double *got, const double *want, uint64_t count)
{
    double apart = 0, whole = 0;
    for (uint64_t i = 0; i < count; i++) {
        apart += (got[i] - want[i]) * (got[i] - want[i]);
        whole += want[i] * want[i];
    }
    return sqrt(apart / whole);
}

/* B A; a [.., IN] from row `first` on, b [out, columns] from column `first` on. */
static double *product(const float *a, const float *b, uint64_t out, uint64_t columns,
                       uint64_t first)
{
    double *sum = calloc(out * IN, sizeof *sum);
    assert_non_null(sum);
    for (uint64_t i = 0; i < out; i++)
        for (uint64_t k = 0; k < R; k++)
            for (uint64_t j = 0; j < IN; j++)
                sum[i * IN + j] +=
                    (double)b[i * columns + first + k] * (double)a[(first + k) * IN + j];
    return sum;
}

/* Whatever the signs of the components: the first half of what was saved is A and B after the run. */
static double samples_apart(const float *values, const float *want, uint64_t rows, uint64_t columns,
                            uint64_t stride)
{
    double apart = 0;
    for (uint64_t i = 0; i < 256; i++) {
        uint64_t at = i * rows * columns / 256;
        double got = fabs((double)values[at / columns * stride + at % columns]);
        apart = worse(apart, fabs(got - fabs((double)want[i])));
    }
    return apart;
}

/* The first rows of W - scale B A. */
static double rows_apart(const double *first, const float *want)
{
    static const char weight[] = "model.layers.0.self_attn.v_proj.weight";
    tsr_checkpoint *plain;
    float values[8 * IN];
    double apart = 0;
    assert_int_equal(tsr_checkpoint_open(&plain, scratch_path("plain")), TSR_OK);
    assert_int_equal(
        tsr_safetensors_read_f32(values, tsr_checkpoint_find(plain, weight), 0, 8 * IN), TSR_OK);
    for (int i = 0; i < 8 * IN; i++)
        apart = worse(apart, fabs((double)values[i] + SCALE * first[i] - (double)want[i]));
    tsr_checkpoint_close(plain);
    return apart;
}

static void check_module(tsr_safetensors *golden, tsr_safetensors *saved, int layer,
                         const char *linear, uint64_t out)
{
    char name[96], what[128];
    uint64_t count_a, count_b;
    snprintf(name, sizeof name, "model.layers.%d.self_attn.%s", layer, linear);
    TSR_AUTO_FREE float *a = golden_f32(&count_a, saved, "base_model.model.%s.lora_A.weight", name);
    TSR_AUTO_FREE float *b = golden_f32(&count_b, saved, "base_model.model.%s.lora_B.weight", name);
    TSR_AUTO_FREE float *init_a = golden_f32(NULL, golden, "init.%s.lora_A.weight", name);
    TSR_AUTO_FREE float *init_b = golden_f32(NULL, golden, "init.%s.lora_B.weight", name);
    TSR_AUTO_FREE float *end_a = golden_f32(NULL, golden, "final_samples.%s.lora_A.weight", name);
    TSR_AUTO_FREE float *end_b = golden_f32(NULL, golden, "final_samples.%s.lora_B.weight", name);
    assert_int_equal(count_a, 2 * R * IN);
    assert_int_equal(count_b, 2 * R * out);
    TSR_AUTO_FREE double *first = product(a, b, out, 2 * R, R); /* with the minus of B */
    TSR_AUTO_FREE double *want = product(init_a, init_b, out, R, 0);
    for (uint64_t i = 0; i < out * IN; i++)
        want[i] = -want[i];
    snprintf(what, sizeof what, "%s: first B A", name);
    judge(what, relative(first, want, out * IN), 1e-4);
    snprintf(what, sizeof what, "%s: A after three steps", name);
    judge(what, samples_apart(a, end_a, R, IN, IN), 1e-4);
    snprintf(what, sizeof what, "%s: B after three steps", name);
    judge(what, samples_apart(b, end_b, out, R, 2 * R), 1e-4);
    if (layer == 0 && !strcmp(linear, "v_proj")) {
        TSR_AUTO_FREE float *rows = golden_f32(NULL, golden, "residual_rows.%s.weight", name);
        judge("rows of the base", rows_apart(first, rows), 1e-6);
    }
}

static void write_golden_rows(tsr_safetensors *golden)
{
    uint64_t count;
    TSR_AUTO_FREE int32_t *ids = golden_i32(&count, golden, "input_ids");
    FILE *file = fopen(scratch_path("golden.jsonl"), "w");
    assert_non_null(file);
    for (uint64_t i = 0; i < count; i++)
        fprintf(file, "%s%d%s", i % 12 ? ", " : "{\"input_ids\": [", (int)ids[i],
                i % 12 == 11 ? "]}\n" : "");
    fclose(file);
}

static void check_steps(const job_result *result)
{
    json_t *golden = json_load_file(GOLDEN ".json", 0, NULL);
    const json_t *steps = json_object_get(golden, "steps");
    assert_int_equal(result->step_count, 3);
    for (int i = 0; i < 3; i++) {
        const json_t *step = json_array_get(steps, (size_t)i);
        double loss = json_real_value(json_object_get(step, "loss"));
        double norm = json_real_value(json_object_get(step, "grad_norm"));
        judge("loss", fabs(result->step[i].loss - loss), 2e-4);
        judge("gradient norm, relative", fabs(result->step[i].grad_norm / norm - 1),
              i ? 1e-3 : 3e-5);
    }
    json_decref(golden);
}

static void test_golden(void **state)
{
    (void)state;
    job_result first, result;
    tsr_safetensors *golden = golden_open(GOLDEN ".safetensors"), *saved;
    write_golden_rows(golden);
    for (int i = 0, ranks = 1; i < 2; i++, ranks = job_ranks(3)) {
        char output[32], path[64];
        snprintf(output, sizeof output, "golden-%d", i);
        run(&result, ranks,
            config_text("model_name_or_path: %s\nload_in_4bit: false\ndataset: %s\n"
                        "init_lora_weights: pissa\nlora_r: 4\nlora_alpha: 6\n"
                        "lora_target_modules: [q_proj, v_proj]\ntotal_batch_size: 2\n"
                        "per_device_train_batch_size: 1\nmax_steps: 3\nlearning_rate: 2e-3\n"
                        "lr_scheduler_type: constant\nmax_grad_norm: null\n",
                        scratch_path("plain"), scratch_path("golden.jsonl")),
            output);
        check_steps(&result);
        snprintf(path, sizeof path, "%s/adapter_model.safetensors", output);
        saved = golden_open(scratch_path(path));
        for (int layer = 0; layer < 2; layer++) {
            check_module(golden, saved, layer, "q_proj", 256);
            check_module(golden, saved, layer, "v_proj", 128);
        }
        tsr_safetensors_close(saved);
        if (i == 0)
            first = result;
        else
            job_assert_same(&first, &result, "several ranks");
    }
    job_result_free(&first);
    job_result_free(&result);
    tsr_safetensors_close(golden);
}

/* ---- the same bits ---- */

#define LORA "lora_r: 6\nlora_alpha: 9\ninit_lora_weights: pissa\n"

static void same_on_ranks(const char *keys, const char *more)
{
    job_result whole, other;
    run(&whole, 1, config_text("%s", keys), "ranks-1");
    run(&other, job_ranks(3), config_text("%s%s", keys, more), "ranks-3");
    job_assert_same(&whole, &other, keys);
    job_assert_plan(&other, job_ranks(3), keys);
    job_result_free(&whole);
    job_result_free(&other);
}

static void test_ranks(void **state)
{
    (void)state;
    same_on_ranks("model_name_or_path: " JOB_SHALLOW "\n" LORA, "");
    same_on_ranks("model_name_or_path: " JOB_SHALLOW "\n" LORA "use_bnb_nested_quant: false\n",
                  "offload: full\n");
    same_on_ranks("model_name_or_path: " JOB_SHALLOW "\nlora_r: 6\nload_in_4bit: false\n"
                  "init_lora_weights: pissa_niter_2\n",
                  "offload: sharded\n");
    same_on_ranks("model_name_or_path: " PREQUANTIZED "\n" LORA, "shard_group_size: 1\n");
    same_on_ranks("model_name_or_path: " JOB_SHALLOW "\nuse_dora: true\n" LORA, "");
}

/* A and B that it began with are those of its checkpoint: another W is not looked at. */
static void test_resume(void **state)
{
    (void)state;
    static const char keys[] = "model_name_or_path: " JOB_SHALLOW "\n" LORA "use_rslora: true\n"
                               "rank_pattern: {q_proj: 3, layers.1.mlp.down_proj: 9}\n";
    job_event stop = {.stop_after = 1};
    job_result whole, first, second;
    run(&whole, job_ranks(2), config_text("%s", keys), "whole");
    job_run_in(&first, 1, config_text("%s", keys), "stopped", &stop);
    assert_true(first.stopped);
    run(&second, job_ranks(3), config_text("%sresume_from_checkpoint: true\n", keys), "stopped");
    assert_int_equal(second.resumed, 2);
    job_assert_part(&whole, &second, 2, true, "resumed");
    job_result_free(&whole);
    job_result_free(&first);
    job_result_free(&second);
}

#ifdef TSR_SANITIZED /* they are slow, and the threads of what follows are those of the above */
#pragma GCC diagnostic ignored "-Wunused-function"
#endif

/* A checkpoint of a run that began otherwise is refused. */
static void test_other_start(void **state)
{
    (void)state;
    static const char keys[] = "model_name_or_path: " JOB_SHALLOW "\nlora_r: 6\n";
    job_event stop = {.stop_after = 1};
    job_result result;
    job_run_in(&result, 1, config_text("%s", keys), "kaiming", &stop);
    assert_true(result.stopped);
    job_result_free(&result);
    job_run_in(&result, 1,
               config_text("%sinit_lora_weights: pissa\nresume_from_checkpoint: true\n", keys),
               "kaiming", NULL);
    assert_true(result.status < 0);
    assert_non_null(strstr(result.message, "init_lora_weights: found pissa, the checkpoint was "
                                           "made with true"));
    job_result_free(&result);
}

/* ---- what is saved ---- */

static void check_saved(const char *keys, double tolerance)
{
    job_result result, loaded;
    run(&result, job_ranks(2), config_text("%seval_strategy: steps\neval_steps: 4\n", keys),
        "saved");
    double loss = result.eval[result.eval_count - 1].loss;
    /* The same keys with init_adapter, as somebody has them: the rank is then the adapter's. */
    run(&loaded, 1,
        config_text("%sinit_adapter: %s\neval_on_start: true\n", keys, scratch_path("saved")),
        "loaded");
    judge("loss of the adapter that was saved, on the whole base", fabs(loaded.eval[0].loss - loss),
          tolerance);
    assert_true(fabs(result.eval[0].loss - loss) > 50 * tolerance); /* it has learned something */
    job_result_free(&result);
    job_result_free(&loaded);
}

static void test_saved(void **state)
{
    char keys[512];
    (void)state;
    snprintf(keys, sizeof keys, "model_name_or_path: %s\nload_in_4bit: false\n" LORA,
             scratch_path("plain"));
    check_saved(keys, 2e-5);
    snprintf(keys, sizeof keys,
             "model_name_or_path: %s\nload_in_4bit: false\nuse_rslora: true\nlora_r: 6\n"
             "rank_pattern: {q_proj: 3}\nalpha_pattern: {v_proj: 5}\nlora_alpha: 6\n"
             "init_lora_weights: pissa_niter_4\n",
             scratch_path("plain"));
    check_saved(keys, 2e-5);
    snprintf(keys, sizeof keys,
             "model_name_or_path: %s\nload_in_4bit: false\nuse_dora: true\n" LORA,
             scratch_path("plain"));
    check_saved(keys, 2e-5);
    /* Quantizing what is left and quantizing the whole are not the same. */
    check_saved("model_name_or_path: " JOB_MODEL "\n" LORA "learning_rate: 2e-2\n"
                "total_batch_size: 4\nmax_steps: 4\n",
                5e-2);
}

/* ---- NF4 ---- */

static double first_loss(const char *keys)
{
    job_result result;
    run(&result, 1,
        config_text("model_name_or_path: " JOB_SHALLOW "\neval_on_start: true\n%s", keys), "first");
    double loss = result.eval[0].loss;
    job_result_free(&result);
    return loss;
}

/* The larger part of these weights in A and B, little is left to be quantized badly. Said by the loss of rows that do not
 * depend on the backend: of a model that has learned nothing, what an error does to a loss is no rule. */
static void test_nf4(void **state)
{
    (void)state;
    if (job_on_gpu()) /* whose rows are longer, and whose weights and residuals other tests compare with the CPU's */
        return;
    double exact = first_loss("load_in_4bit: false\n"), plain = first_loss("");
    double least = first_loss("lora_r: 200\nlora_alpha: 100\ninit_lora_weights: pissa\n");
    printf("loss %.6f, with NF4 %.6f, with NF4 of what PiSSA leaves %.6f\n", exact, plain, least);
    assert_true(fabs(least - exact) < 0.5 * fabs(plain - exact));
    judge("what is left in bf16", fabs(first_loss("load_in_4bit: false\n" LORA) - exact), 1e-2);
}

/* ---- other ways ---- */

static void test_ways(void **state)
{
    (void)state;
    double kaiming = first_loss("");
    assert_true(first_loss("init_lora_weights: gaussian\n") == kaiming); /* B is 0 */
    assert_true(first_loss("init_lora_weights: false\n") != kaiming);
    same_on_ranks("model_name_or_path: " JOB_SHALLOW "\nlora_r: 6\ninit_lora_weights: gaussian\n",
                  "");
    same_on_ranks("model_name_or_path: " JOB_SHALLOW "\nlora_r: 6\ninit_lora_weights: false\n", "");
}

static int setup(void **state)
{
    if (scratch_setup(state) != 0)
        return -1;
    job_write_documents("train.jsonl", 24, 384, 1);
    job_write_documents("eval.jsonl", 10, 384, 2);
    write_plain_model("plain");
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),      cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_resume),
#ifndef __SANITIZE_THREAD__
        cmocka_unit_test(test_other_start), cmocka_unit_test(test_saved),
        cmocka_unit_test(test_ways),
#endif
#ifndef TSR_SANITIZED /* losses, in the ways of the others */
        cmocka_unit_test(test_nf4),
#endif
    };
    job_choose_backend(argc, argv);
    return cmocka_run_group_tests(tests, setup, scratch_teardown);
}
