/*
 * Jobs on a model with experts: the same bits and exactly the planned memory for every recomputation, home and
 * unit_policy, with what is offloaded, on 1 to 4 ranks, which may share long micro-batches; with adapters on attention alone, on everything and on experts
 * alone; with an fp8 base; with experts that stay decoded.
 *
 *     test_job_experts                        on the CPU
 *     test_job_experts BACKEND DTYPE RANKS    on the ranks that a machine has GPUs for
 */
#include "job/fixture.h"
#include "model/model_parts.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

#define FAMILIES TSR_SOURCE_DIR "/tests/golden/families"

/* Of 3 layers, the second of which is dense, and 1 chunk of the head. */
#define MODEL FAMILIES "/qwen3_moe/checkpoint"

/* Its widths are multiples of 16, as a GPU's fp8 base wants them; of 2 layers. */
#define WIDE_MODEL FAMILIES "/gpt_oss/checkpoint"

static const struct {
    int ranks;
    const char *config;
    int units; /* 0: by the adapter */
} uses[] = {
    {3, "gradient_checkpointing: none\noffload: none\ndecoded_layers: 1\n", 4},
    {1, "gradient_checkpointing: full\noffload: sharded\n", 4},
    {3,
     "gradient_checkpointing: selective\noffload: sharded\nresident_units: 2\n"
     "activation_offloading: true\noptimizer_offload: true\n",
     4},
    {1, "gradient_checkpointing: sqrt\noffload: full\nslots: 3\ndecoded_layers: 2\n", 4},
    {3, "gradient_checkpointing: sqrt\nunit_policy: 2\n", 3},
    {3, "gradient_checkpointing: selective\nunit_policy: [self_attn, mlp.experts]\n", 7},
    {1, "gradient_checkpointing: none\nunit_policy: [mlp.experts.down_proj]\noffload: sharded\n",
     0},
    {3,
     "gradient_checkpointing: full\nunit_policy: [experts]\nactivation_offloading: true\n"
     "decoded_layers: 3\n",
     0},
    {3, "gradient_checkpointing: full\nunit_policy: fine\noffload: full\n", 0},
    {4,
     "gradient_checkpointing: selective\nunit_policy: fine\noffload: sharded\n"
     "shard_group_size: 2\nactivation_offloading: true\n",
     0},
    {3, "gradient_checkpointing: none\nmemory_budget: 4GiB\n", 4},
};

/* fine: a size of units that cuts layers. */
static void configure(char out[4096], const char *model, const char *keys, const char *use,
                      const char *fine)
{
    char text[1024];
    const char *hole = strstr(use, "fine");
    snprintf(text, sizeof text, "%.*s%s%s", hole ? (int)(hole - use) : (int)strlen(use), use,
             hole ? fine : "", hole ? hole + strlen("fine") : "");
    snprintf(out, 4096,
             "max_steps: 3\nlearning_rate: 1e-2\ntotal_batch_size: 4\nmodel_name_or_path: %s\n"
             "dataset: %s\nlora_r: 4\n%s%s",
             model, scratch_path("train.jsonl"), keys, text);
}

static void run_adapter(const char *name, const char *model, const char *keys, const char *fine)
{
    const bool counted = !strcmp(model, MODEL);
    char config[4096], what[512];
    job_result reference, result;
    configure(config, model, keys, "", fine);
    job_run(&reference, 1, config);
    if (reference.status != 0)
        fail_msg("%s: %s", name, reference.message);
    assert_true(reference.step[0].loss != reference.step[1].loss);
    job_assert_plan(&reference, 1, name);
    for (size_t u = 0; u < COUNT(uses); u++) {
        int ranks = uses[u].ranks;
        if (job_ranks(ranks) != ranks)
            continue;
        configure(config, model, keys, uses[u].config, fine);
        snprintf(what, sizeof what, "%s on %d ranks with {%s}", name, ranks, uses[u].config);
        job_run(&result, ranks, config);
        if (result.status != 0)
            fail_msg("%s: %s", what, result.message);
        job_assert_plan(&result, ranks, what);
        job_assert_same(&reference, &result, what);
        if (counted && uses[u].units)
            assert_int_equal(result.memory[0].info.unit_count, uses[u].units);
        else if (counted)
            assert_true(result.memory[0].info.unit_count > 4);
        job_result_free(&result);
    }
    job_result_free(&reference);
}

static void test_attention(void **state)
{
    (void)state;
    run_adapter("LoRA on attention", MODEL,
                "lora_target_modules: [q_proj, k_proj, v_proj, o_proj]\nlora_dropout: 0.1\n",
                "32KiB");
    run_adapter("DoRA on attention", MODEL,
                "lora_target_modules: [q_proj, v_proj]\nuse_dora: true\nload_in_4bit: false\n",
                "80KiB");
}

static void test_all(void **state)
{
    (void)state;
    run_adapter("LoRA on all linears and experts", MODEL, "lora_target_modules: all-linear\n",
                "80KiB");
}

static void test_experts_alone(void **state)
{
    (void)state;
    run_adapter("LoRA on experts alone", MODEL,
                "lora_target_modules: null\nlora_target_parameters: [mlp.experts.gate_up_proj, "
                "mlp.experts.down_proj]\n",
                "80KiB");
    run_adapter("LoRA on down", MODEL,
                "lora_target_modules: null\nlora_target_parameters: [mlp.experts.down_proj]\n",
                "40KiB");
}

/* Micro-batches longer than a tile, which one rank has or several share. */
static void run_tiles(const char *model, const char *more)
{
    static const struct {
        int ranks;
        const char *config;
    } ways[] = {
        {1, "gradient_checkpointing: sqrt\nunit_policy: [self_attn, mlp.experts]\n"},
        {2, "context_parallel_size: 2\ngradient_checkpointing: none\ndecoded_layers: 1\n"},
        {3, "context_parallel_size: 3\ngradient_checkpointing: full\nactivation_offloading: true\n"
            "unit_policy: [experts]\n"},
        {4, "context_parallel_size: 2\ngradient_checkpointing: selective\noffload: sharded\n"},
    };
    char config[4096], keys[256];
    job_result reference, result;
    snprintf(keys, sizeof keys,
             "context_span: %d\nper_device_train_batch_size: 2\nlora_target_modules: all-linear\n"
             "router_aux_loss_coef: 0.1\nmoe_capacity_factor: 1.5\n%s",
             job_tokens(16), more);
    configure(config, model, keys, "", "");
    job_run(&reference, 1, config);
    if (reference.status != 0)
        fail_msg("%s", reference.message);
    for (size_t i = 0; i < COUNT(ways); i++) {
        if (job_ranks(ways[i].ranks) != ways[i].ranks)
            continue;
        configure(config, model, keys, ways[i].config, "");
        job_run(&result, ways[i].ranks, config);
        if (result.status != 0)
            fail_msg("{%s}: %s", ways[i].config, result.message);
        job_assert_plan(&result, ways[i].ranks, ways[i].config);
        job_assert_same(&reference, &result, ways[i].config);
        job_result_free(&result);
    }
    job_result_free(&reference);
}

static void test_tiles(void **state)
{
    (void)state;
    run_tiles(MODEL, "");
    if (job_has_fp8())
        run_tiles(WIDE_MODEL, "base_compute: fp8\n");
}

/* ---- an fp8 base ---- */

static struct {
    int in_dtype, in_e4m3, whole, decoded;
} multiplied;

static tsr_status count_gemm(tsr_stream *stream, const tsr_grouped_gemm_args *args)
{
    multiplied.in_dtype++;
    multiplied.whole += args->w && args->count == args->rows.experts;
    return tsr_kernels_cpu()->grouped_gemm(stream, args);
}

static tsr_status count_fp8(tsr_stream *stream, const tsr_grouped_fp8_args *args)
{
    multiplied.in_e4m3++;
    multiplied.whole += args->gemm.w != NULL;
    assert_false(args->fast);
    return tsr_kernels_cpu()->grouped_fp8(stream, args);
}

static tsr_status count_nf4(tsr_stream *stream, const tsr_expert_weight_args *args)
{
    multiplied.decoded++;
    return tsr_kernels_cpu()->expert_weight(stream, args);
}

static tsr_status count_e4m3(tsr_stream *stream, const tsr_expert_fp8_args *args)
{
    multiplied.decoded++;
    return tsr_kernels_cpu()->expert_fp8(stream, args);
}

static tsr_status count_mxfp4(tsr_stream *stream, const tsr_mxfp4_dequant_args *args)
{
    multiplied.decoded++;
    return tsr_kernels_cpu()->mxfp4_dequant(stream, args);
}

/* The loss of a step on one CPU, and how its experts were multiplied. */
static double loss_of(const char *model, const char *keys)
{
    tsr_kernels counting = *tsr_kernels_cpu();
    tsr_job_report report = TSR_JOB_REPORT_INIT;
    tsr_job *job;
    char text[2048];
    snprintf(text, sizeof text,
             "model_name_or_path: " TSR_SOURCE_DIR "/tests/golden/families/%s/checkpoint\n"
             "dataset: %s\ntotal_batch_size: 4\nmax_steps: 1\nbackend: cpu\ndtype: float32\n"
             "output_dir: %s\noverwrite_output_dir: true\n%s",
             model, scratch_path("train.jsonl"), scratch_path("output"), keys);
    const tsr_job_options options = {
        .size = sizeof options, .config_text = text, .purpose = TSR_JOB_TRAIN};
    if (tsr_job_create(&job, &options) < 0 || tsr_job_start(job) < 0)
        fail_msg("%s", tsr_last_error());
    memset(&multiplied, 0, sizeof multiplied);
    counting.grouped_gemm = count_gemm;
    counting.grouped_fp8 = count_fp8;
    counting.expert_weight = count_nf4;
    counting.expert_fp8 = count_e4m3;
    counting.mxfp4_dequant = count_mxfp4;
    job->model->options.kernels = &counting;
    assert_int_equal(tsr_job_step(job, &report), 0);
    tsr_job_destroy(job);
    return report.loss;
}

/* With an fp8 base all that is multiplied in the compute dtype otherwise is multiplied in e4m3; but MXFP4 stays. */
static void test_what_is_multiplied(void **state)
{
    static const char fp8[] = "base_compute: fp8\n";
    (void)state;
    double without = loss_of("qwen3_moe", "");
    int all = multiplied.in_dtype;
    assert_true(all > 0 && multiplied.in_e4m3 == 0);
    double with = loss_of("qwen3_moe", fp8);
    assert_int_equal(multiplied.in_e4m3, all);
    assert_int_equal(multiplied.in_dtype, 0);
    assert_true(with != without && fabs(with / without - 1) < 1e-2);
    without = loss_of("gpt_oss_mxfp4", "");
    all = multiplied.in_dtype;
    with = loss_of("gpt_oss_mxfp4", fp8);
    assert_int_equal(multiplied.in_dtype, all);
    assert_int_equal(multiplied.in_e4m3, 0);
    assert_true(with != without && fabs(with / without - 1) < 1e-2);
}

/* Of 2 layers with experts, which have 2 stacks each; in e4m3 these are decoded for each direction. */
static void test_decoded_once(void **state)
{
    static const struct {
        const char *model, *keys;
        int all; /* that are decoded */
    } cases[] = {
        {"qwen3_moe", "", 4}, {"gpt_oss_mxfp4", "", 4}, {"qwen3_moe", "base_compute: fp8\n", 8}};
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        const char *model = cases[i].model;
        char one[64], every[64];
        snprintf(one, sizeof one, "%sdecoded_layers: 1\n", cases[i].keys);
        snprintf(every, sizeof every, "%sdecoded_layers: 9\n", cases[i].keys);
        double loss = loss_of(model, cases[i].keys); /* on a CPU they are decoded for each use, */
        int all = multiplied.in_dtype + multiplied.in_e4m3, each_time = multiplied.decoded;
        assert_int_equal(each_time, i == 1 ? all : 0); /* NF4 by the matmul itself */
        assert_float_equal(loss_of(model, one), loss, 0);
        assert_int_equal(multiplied.in_dtype + multiplied.in_e4m3, all);
        assert_int_equal(multiplied.decoded, (each_time + cases[i].all) / 2);
        assert_float_equal(loss_of(model, every), loss, 0);
        assert_int_equal(multiplied.in_dtype + multiplied.in_e4m3, all);
        assert_int_equal(multiplied.whole, all);
        assert_int_equal(multiplied.decoded, cases[i].all);
    }
}

/* Layers whose experts are stored otherwise have a program of their own. */
static void test_a_layer_left_out(void **state)
{
    char text[1024];
    const tsr_job_options options = {
        .size = sizeof options, .config_text = text, .purpose = TSR_JOB_TRAIN};
    tsr_job *job;
    tsr_layer_programs *programs;
    tsr_keep keep[3] = {TSR_KEEP_ALL, TSR_KEEP_ALL, TSR_KEEP_ALL};
    (void)state;
    snprintf(
        text, sizeof text,
        "model_name_or_path: " TSR_SOURCE_DIR
        "/tests/golden/families/mixtral/checkpoint\ndataset: %s\nbackend: cpu\nbase_compute: fp8\n"
        "output_dir: %s\noverwrite_output_dir: true\n",
        scratch_path("train.jsonl"), scratch_path("output"));
    if (tsr_job_create(&job, &options) < 0 || tsr_job_start(job) < 0)
        fail_msg("%s", tsr_last_error());
    tsr_model_options model = job->model->options;
    model.keep = keep;
    for (int left_out = 1; left_out <= 2; left_out++) {
        tsr_layout_stack *stack = job->inputs.layout.unit[left_out].stack;
        const int at = tsr_stack_weight(0);
        stack[0].quantized = false;
        assert_int_equal(tsr_model_programs(&programs, &model), TSR_OK);
        assert_false(tsr_layer_program_of(programs, left_out)->traits[at].fp8);
        assert_true(tsr_layer_program_of(programs, left_out)->traits[at + 1].fp8);
        assert_true(tsr_layer_program_of(programs, 3 - left_out)->traits[at].fp8);
        tsr_layer_programs_free(programs);
        stack[0].quantized = true;
    }
    tsr_job_destroy(job);
}

static void test_fp8(void **state)
{
    (void)state;
    if (!job_has_fp8())
        skip();
    run_adapter("LoRA on everything, fp8 base", WIDE_MODEL,
                "lora_target_modules: all-linear\nbase_compute: fp8\n", "80KiB");
}

/* ---- what is learned, and gone on with ---- */

/* The largest |value| of a tensor of the last run, or of its difference to `other`, which is replaced by it. */
static float largest(const char *name, float other[4096])
{
    float values[4096], most = 0;
    tsr_safetensors *file;
    assert_int_equal(tsr_safetensors_open(&file, scratch_path("output/adapter_model.safetensors")),
                     TSR_OK);
    const tsr_tensor *tensor = tsr_safetensors_find(file, name);
    if (!tensor)
        fail_msg("no %s", name);
    assert_in_range(tensor->element_count, 1, 4096);
    assert_int_equal(tsr_safetensors_read_f32(values, tensor, 0, tensor->element_count), TSR_OK);
    for (uint64_t i = 0; i < tensor->element_count; i++)
        most = fmaxf(most, fabsf(values[i] - other[i]));
    memcpy(other, values, tensor->element_count * sizeof *values);
    tsr_safetensors_close(file);
    return most;
}

/* LoRA+: B of experts learns faster, A does not. */
static void test_faster(void **state)
{
#define DOWN "base_model.model.model.layers.0.mlp.experts.lora_"
    static const char targets[] =
        "lora_target_modules: null\nlora_target_parameters: [mlp.experts.down_proj]\n"
        "learning_rate: 1e-3\nmax_steps: 2\nlr_scheduler_type: constant\n";
    static float a[4096], b[4096];
    char config[4096], keys[600];
    job_result result;
    (void)state;
    for (int faster = 0; faster < 2; faster++) {
        snprintf(keys, sizeof keys, "%s%s", targets, faster ? "loraplus_lr_ratio: 16\n" : "");
        snprintf(config, sizeof config,
                 "total_batch_size: 4\nmodel_name_or_path: " MODEL "\ndataset: %s\nlora_r: 4\n%s",
                 scratch_path("train.jsonl"), keys);
        job_run(&result, 1, config);
        if (result.status != 0)
            fail_msg("%s", result.message);
        job_result_free(&result);
        float of_a = largest(DOWN "A.weight", a), of_b = largest(DOWN "B.weight", b);
        if (faster)
            assert_true(of_a < 3e-3f && of_b > 10e-3f);
        else
            assert_true(of_a > 3e-3f && of_b > 0 && of_b < 3e-3f);
    }
}

/* Stopped under one policy on some ranks, gone on with under another on others. */
static void test_resume(void **state)
{
    (void)state;
    char config[4096];
    job_result whole, first, second;
    int ranks = job_ranks(3);
    const job_event stop = {.rank = ranks - 1, .stop_after = 1};
    configure(config, MODEL, "", "", "");
    job_run(&whole, 1, config);
    configure(config, MODEL, "", "unit_policy: [self_attn, mlp.experts]\n", "");
    job_run_in(&first, ranks, config, "stopped", &stop);
    if (first.status != 0)
        fail_msg("%s", first.message);
    assert_true(first.stopped);
    configure(config, MODEL, "", "resume_from_checkpoint: true\ngradient_checkpointing: full\n",
              "");
    job_run_in(&second, job_ranks(2), config, "stopped", NULL);
    if (second.status != 0)
        fail_msg("%s", second.message);
    assert_int_equal(second.resumed, first.step_count);
    job_assert_part(&whole, &first, 0, false, "until it was stopped");
    job_assert_part(&whole, &second, first.step_count, true, "resumed");
    job_result_free(&whole);
    job_result_free(&first);
    job_result_free(&second);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *keys, *message[2];
    } refused[] = {
        {"unit_policy: 16KiB\n",
         {"16384 bytes are too few", "mlp.experts.gate_up_proj of layer 0"}},
        {"lora_target_modules: [moe]\n",
         {"embed_tokens, mlp.experts.down_proj, mlp.experts.gate_up_proj", "moe"}},
        {"unit_policy: self_attn, moe\n", {"moe is of no module", "mlp.experts.down_proj"}},
    };
    for (size_t i = 0; i < COUNT(refused); i++) {
        char config[4096];
        job_result result;
        configure(config, MODEL, "", refused[i].keys, "");
        job_run(&result, 1, config);
        assert_int_equal(result.status, TSR_ECONFIG);
        for (int j = 0; j < 2; j++)
            if (!strstr(result.message, refused[i].message[j]))
                fail_msg("%s: not in '%s'", refused[i].message[j], result.message);
        job_result_free(&result);
    }
}

static int set_up(void **state)
{
    (void)state;
    scratch_make();
    job_write_documents("train.jsonl", 10, 256, 1);
    return 0;
}

int main(int argc, char **argv)
{
    job_choose_backend(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_all),
        cmocka_unit_test(test_experts_alone),
        cmocka_unit_test(test_tiles),
        cmocka_unit_test(test_what_is_multiplied),
        cmocka_unit_test(test_decoded_once),
        cmocka_unit_test(test_a_layer_left_out),
        cmocka_unit_test(test_fp8),
        cmocka_unit_test(test_faster),
        cmocka_unit_test(test_resume),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_teardown);
}
