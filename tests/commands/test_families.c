/*
 * What the commands make of each family (docs/models.md; the classes with towers: tests/model/test_composite).
 *
 * quantize   every NF4 weight has the golden CRC-32 of codes, scales and values, and nothing else is quantized;
 *            training and evaluating on what was written has the bits of quantizing on load
 * save       the adapter of step 2, loaded again, evaluates and goes on with the bits of the run that saved it
 * merge      weights with an adapter are those of the formula in double, rounded to bf16, and everything else is copied
 *            bit for bit; the loss of each token on the merged model is that of base and adapter, but for this rounding
 *            (which may send a token to another expert, and change those after it, 5 % in all): measured, of the largest change that the adapter makes to a token's loss, 0.1 % to 0.6 %
 *
 *     test_commands_families FAMILY
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/dtype.h"
#include "commands/merged_experts.h"
#include "io/peft.h"
#include "model/family.h"
#include "quant/nf4_stored.h"
#include "support/crc32.h"
#include "support/golden.h"
#include "support/head.h"
#include "support/scratch.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MERGE_TOLERANCE 0.015
#define STEPS           3
#define MXFP4           "_mxfp4" /* the end of a family's name */
#define SAVED           2        /* steps before the adapter is saved: all rows once */

static const char *family;
static char model[512], rows[512];
static bool golden;

/* A model of which only a forward is golden, whose experts are not quantized again. */
static bool in_mxfp4(void)
{
    return strstr(family, MXFP4) != NULL;
}

static int setup(void **state)
{
    (void)state;
    scratch_make();
    golden = family_checkpoint(model, family);
    int length = (int)(strlen(family) - (in_mxfp4() ? strlen(MXFP4) : 0)); /* rows are bf16's */
    snprintf(rows, sizeof rows, "%s/%.*s/train.jsonl", FAMILY_GOLDEN, golden ? length : 6,
             golden ? family : "gemma3");
    return 0;
}

static bool has_experts(void)
{
    tsr_model_config config;
    assert_int_equal(tsr_model_config_load(&config, model), TSR_OK);
    return config.experts.count > 0;
}

/* ---- jobs ---- */

typedef struct {
    double loss[STEPS], grad_norm[STEPS];
    double eval_loss; /* after SAVED steps */
} trace;

static tsr_status train(tsr_job *job, void *user)
{
    trace others, *out = tsr_comm_rank(job->world) == 0 ? user : &others;
    for (int i = 0; i < STEPS; i++) {
        tsr_job_report report = TSR_JOB_REPORT_INIT;
        tsr_job_evaluation evaluation = TSR_JOB_EVALUATION_INIT;
        TSR_TRY(tsr_job_step(job, &report));
        out->loss[i] = report.loss;
        out->grad_norm[i] = report.grad_norm;
        if (i + 1 != SAVED)
            continue;
        TSR_TRY(tsr_job_save(job));
        TSR_TRY(tsr_job_evaluate(job, &evaluation));
        out->eval_loss = evaluation.loss;
    }
    return TSR_OK;
}

static job_spec on(const char *checkpoint, int purpose)
{
    job_spec spec = {.purpose = purpose};
    job_set(&spec, "model_name_or_path=%s", checkpoint);
    job_set(&spec, "eval_dataset=%s", rows);
    job_set(&spec, "per_device_eval_batch_size=2");
    job_set(&spec, "dtype=float32");
    return spec;
}

/* The third step has the rows of the first. */
static job_spec training(const char *checkpoint, const char *output)
{
    job_spec spec = on(checkpoint, TSR_JOB_TRAIN);
    job_set(&spec, "dataset=%s", rows);
    job_set(&spec, "output_dir=%s", output);
    job_set(&spec, "shuffle=false");
    job_set(&spec, "per_device_train_batch_size=2");
    job_set(&spec, "total_batch_size=4");
    job_set(&spec, "max_steps=%d", STEPS);
    job_set(&spec, "learning_rate=2e-2");
    job_set(&spec, "lr_scheduler_type=constant");
    return spec;
}

/* A LoRA on experts and one linear, in NF4. */
static void run_lora(const char *output)
{
    trace out = {0};
    job_spec spec = training(model, output);
    job_set(&spec, "lora_r=4");
    job_set(&spec, "lora_target_modules=[o_proj]");
    job_set(&spec, "lora_target_parameters=[experts.gate_up_proj, experts.down_proj]");
    job_run(&spec, train, &out);
}

/* A DoRA on all linears, in NF4; init: where it begins, or NULL. */
static trace run_on(int ranks, const char *checkpoint, const char *output, const char *init)
{
    trace out = {0};
    job_spec spec = training(checkpoint, output);
    spec.ranks = ranks;
    if (init)
        job_set(&spec, "init_adapter=%s", init);
    else
        job_set(&spec, "use_dora=true");
    job_run(&spec, train, &out);
    return out;
}

static trace run(const char *checkpoint, const char *output, const char *init)
{
    return run_on(1, checkpoint, output, init);
}

static test_evaluated evaluate(const char *checkpoint, const char *adapter, bool in_4bit)
{
    test_evaluated out = {0};
    job_spec spec = on(checkpoint, TSR_JOB_EVALUATE);
    job_set(&spec, "load_in_4bit=%s", in_4bit ? "true" : "false");
    if (adapter)
        job_set(&spec, "init_adapter=%s", adapter);
    job_run(&spec, test_evaluate, &out);
    return out;
}

static double loss_of(const char *checkpoint, const char *adapter, bool in_4bit)
{
    test_evaluated got = evaluate(checkpoint, adapter, in_4bit);
    test_rows_free(&got.rows);
    return got.evaluation.loss;
}

/* The new directory of a converted model. */
static const char *convert_from(const char *from, job_command *call, const char *output,
                                const char *adapter)
{
    const char *directory = scratch_path(output);
    job_spec spec = {0};
    job_set(&spec, "model_name_or_path=%s", from);
    job_set(&spec, "output_dir=%s", directory);
    if (adapter)
        job_set(&spec, "init_adapter=%s", adapter);
    job_convert(call, &spec);
    return directory;
}

static const char *convert(job_command *call, const char *output, const char *adapter)
{
    return convert_from(model, call, output, adapter);
}

/* ---- quantize ---- */

static uint32_t crc32_of_tensor(const tsr_tensor *tensor)
{
    void *data = malloc(tensor->bytes);
    assert_non_null(data);
    assert_int_equal(tsr_safetensors_read(data, tensor, 0, tensor->bytes), TSR_OK);
    uint32_t crc = crc32_of(data, tensor->bytes);
    free(data);
    return crc;
}

static uint32_t crc32_of_values(const tsr_weight *weight)
{
    tsr_nf4_stored *stored;
    float *values = malloc(weight->element_count * sizeof *values);
    assert_non_null(values);
    assert_int_equal(tsr_nf4_stored_open(&stored, weight), TSR_OK);
    assert_int_equal(tsr_nf4_stored_read(values, stored, 0, weight->element_count), TSR_OK);
    uint32_t crc = crc32_of(values, weight->element_count * sizeof *values);
    tsr_nf4_stored_close(stored);
    free(values);
    return crc;
}

/* The tensor of a matrix that nf4.json names as Transformers does: Mixtral's files have other names. */
static void put_name(char out[160], const char *module)
{
    static const char experts[] = ".mlp.experts.";
    static const char *const part[][2] = {
        {"gate_proj", "w1"}, {"down_proj", "w2"}, {"up_proj", "w3"}};
    const char *found = strstr(module, experts);
    snprintf(out, 160, "%s.weight", module);
    for (int i = 0; i < 3 && found && !strcmp(family, "mixtral"); i++) {
        const char *number = found + strlen(experts), *end = strchr(number, '.') + 1;
        if (!strcmp(end, part[i][0]))
            snprintf(out, 160, "%.*s.block_sparse_moe.experts.%.*s%s.weight", (int)(found - module),
                     module, (int)(end - number), number, part[i][1]);
    }
}

static void check_matrix(const tsr_checkpoint *checkpoint, const char *module, const json_t *facts)
{
    char name[160];
    tsr_weight weight;
    const json_t *shape = json_object_get(facts, "shape");
    put_name(name, module);
    if (!tsr_checkpoint_find(checkpoint, name)) /* a decoder beside towers */
        snprintf(name, sizeof name, "model.language_model.%s.weight", module + strlen("model."));
    if (tsr_checkpoint_weight(&weight, checkpoint, name) < 0)
        fail_msg("%s", tsr_last_error());
    const struct {
        const char *what;
        uint32_t got;
    } crc[] = {{"codes_crc32", crc32_of_tensor(weight.weight)},
               {"absmax_crc32", crc32_of_tensor(weight.absmax)},
               {"dequantized_f32_crc32", crc32_of_values(&weight)}};
    assert_true(weight.prequantized && weight.nested);
    for (int d = 0; d < 2; d++)
        assert_int_equal(weight.shape[d], json_integer_value(json_array_get(shape, (size_t)d)));
    for (int i = 0; i < 3; i++)
        if (crc[i].got != json_integer_value(json_object_get(facts, crc[i].what)))
            fail_msg("%s: %s is %lu", name, crc[i].what, (unsigned long)crc[i].got);
}

static void check_matrices(const char *directory)
{
    char path[600];
    const char *module;
    json_t *facts;
    size_t quantized = 0;
    tsr_checkpoint *checkpoint;
    snprintf(path, sizeof path, "%s/%s/nf4.json", FAMILY_GOLDEN, family);
    json_t *root = json_load_file(path, 0, NULL), *matrices = json_object_get(root, "matrices");
    assert_true(json_object_size(matrices) > 0);
    assert_int_equal(tsr_checkpoint_open(&checkpoint, directory), TSR_OK);
    json_object_foreach(matrices, module, facts) check_matrix(checkpoint, module, facts);
    for (uint64_t i = 0; i < tsr_checkpoint_count(checkpoint); i++)
        quantized += strstr(tsr_checkpoint_at(checkpoint, i)->name, TSR_WEIGHT_STATE) != NULL;
    assert_int_equal(quantized, json_object_size(matrices));
    tsr_checkpoint_close(checkpoint);
    json_decref(root);
}

static void expect_same_files(const char *a, const char *b)
{
    uint64_t bytes[2];
    char *data[2] = {read_whole(&bytes[0], a), read_whole(&bytes[1], b)};
    assert_int_equal(bytes[0], bytes[1]);
    assert_memory_equal(data[0], data[1], bytes[0]);
    free(data[0]);
    free(data[1]);
}

static void refuse_to_quantize(void)
{
    char *text = NULL, keys[2][700];
    const char *overrides[2] = {keys[0], keys[1]};
    const tsr_job_options options = {
        .size = sizeof options, .overrides = overrides, .override_count = 2};
    snprintf(keys[0], sizeof keys[0], "model_name_or_path=%s", model);
    snprintf(keys[1], sizeof keys[1], "output_dir=%s", scratch_path("nf4"));
    check_error("quantize", tsr_quantize(&options, 1, &text), TSR_EDATA,
                (const char *const[MOST_WORDS]){model, "MXFP4 already"});
}

static void test_quantized(void **state)
{
    (void)state;
    if (in_mxfp4()) {
        refuse_to_quantize();
        return;
    }
    const char *nf4 = convert(tsr_quantize, "nf4", NULL);
    if (golden)
        check_matrices(nf4);
    trace here = run(model, scratch_path("here"), NULL),
          there = run(nf4, scratch_path("there"), NULL);
    assert_memory_equal(&here, &there, sizeof here);
    expect_same_files(scratch_path("here/adapter_model.safetensors"),
                      scratch_path("there/adapter_model.safetensors"));
    if (has_experts()) { /* which ranks cut in the middle */
        trace three = run_on(3, nf4, scratch_path("three"), NULL);
        assert_memory_equal(&here, &three, sizeof here);
    }
    double loss = loss_of(nf4, NULL, true);
    assert_true(loss == loss_of(model, NULL, true));
    assert_true(loss != loss_of(model, NULL, false));
}

/* ---- save ---- */

static void test_saved(void **state)
{
    (void)state;
    const char *saved = scratch_path("saved");
    trace first = run(model, saved, NULL), next = run(model, scratch_path("next"), saved);
    assert_true(first.eval_loss == loss_of(model, saved, true));
    assert_true(first.eval_loss != loss_of(model, NULL, true));
    assert_true(first.loss[SAVED] == next.loss[0] && first.loss[0] != next.loss[0]);
    assert_true(first.grad_norm[SAVED] == next.grad_norm[0]);
}

/* ---- merge ---- */

/* Elements of a merged weight that are not the bf16 of (m / |V|) V, V = W + s B A by rows, in double. */
static uint64_t count_others(const tsr_tensor *base, const tsr_tensor *merged,
                             const tsr_peft_module *module, double scale)
{
    uint64_t out = module->out_features, in = module->in_features, r = module->r, others = 0;
    const tsr_tensor *tensor[] = {base, merged, module->a, module->b, module->magnitude};
    float *value[5];
    double *row = malloc(in * sizeof *row);
    assert_non_null(row);
    assert_int_equal(base->element_count, out * in);
    for (int i = 0; i < 5; i++) {
        value[i] = malloc(tensor[i]->element_count * sizeof **value);
        assert_non_null(value[i]);
        assert_int_equal(tsr_safetensors_read_f32(value[i], tensor[i], 0, tensor[i]->element_count),
                         TSR_OK);
    }
    for (uint64_t j = 0; j < out; j++) {
        double squares = 0;
        for (uint64_t i = 0; i < in; i++) {
            row[i] = (double)value[0][j * in + i];
            for (uint64_t k = 0; k < r; k++)
                row[i] += scale * (double)value[3][j * r + k] * (double)value[2][k * in + i];
            squares += row[i] * row[i];
        }
        for (uint64_t i = 0; i < in; i++) {
            float want = (float)((double)value[4][j] / sqrt(squares) * row[i]);
            others += tsr_bf16_to_f32(tsr_f32_to_bf16(want)) != value[1][j * in + i];
        }
    }
    for (int i = 0; i < 5; i++)
        free(value[i]);
    free(row);
    return others;
}

/* Every weight with an adapter is merged, everything else a copy. */
static void check_tensors(const char *merged, const char *adapter)
{
    char path[2][640], name[256];
    uint64_t changed = 0, others = 0, elements = 0;
    tsr_peft *peft;
    snprintf(path[0], sizeof path[0], "%s/model.safetensors", model);
    snprintf(path[1], sizeof path[1], "%s/model.safetensors", merged);
    tsr_safetensors *a = golden_open(path[0]), *b = golden_open(path[1]);
    assert_int_equal(tsr_peft_open(&peft, adapter), TSR_OK);
    const tsr_peft_config *config = tsr_peft_config_of(peft);
    assert_int_equal(tsr_safetensors_count(a), tsr_safetensors_count(b));
    for (uint64_t i = 0; i < tsr_safetensors_count(a); i++) {
        const tsr_tensor *from = tsr_safetensors_at(a, i),
                         *to = tsr_safetensors_find(b, from->name);
        if (!to || from->dtype != to->dtype || from->bytes != to->bytes)
            fail_msg("%s has another %s", path[1], from->name);
        snprintf(name, sizeof name, "%.*s", (int)(strlen(from->name) - strlen(".weight")),
                 from->name);
        const tsr_peft_module *module = tsr_peft_module_find(peft, name);
        if (!module && crc32_of_tensor(from) != crc32_of_tensor(to))
            fail_msg("%s was changed", from->name);
        if (!module)
            continue;
        others += count_others(from, to, module, config->lora_alpha / (double)config->r);
        elements += from->element_count;
        changed++;
    }
    assert_true(changed > 0 && changed == tsr_peft_module_count(peft));
    judge("elements that fp32 rounds to another bf16", (double)others / (double)elements, 1e-3);
    tsr_peft_close(peft);
    tsr_safetensors_close(a);
    tsr_safetensors_close(b);
}

static int ascending(const void *a, const void *b)
{
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

/* What is copied in MXFP4 is said to be so; nothing else is quantized. */
static void check_quantization(const char *merged)
{
    char path[2][640];
    json_t *root[2], *of[2];
    for (int i = 0; i < 2; i++) {
        snprintf(path[i], sizeof path[i], "%s/config.json", i ? merged : model);
        root[i] = json_load_file(path[i], 0, NULL);
        assert_non_null(root[i]);
        of[i] = json_object_get(root[i], "quantization_config");
    }
    assert_true(in_mxfp4() ? of[0] && json_equal(of[0], of[1]) : !of[1]);
    json_decref(root[0]);
    json_decref(root[1]);
}

/* The losses of a merged model and of base and adapter. */
static void compare_losses(const char *base_model, const char *adapter, const char *merged,
                           bool in_4bit)
{
    test_evaluated base = evaluate(base_model, NULL, in_4bit),
                   with = evaluate(base_model, adapter, in_4bit),
                   got = evaluate(merged, NULL, false);
    double change = 0, *apart = calloc((size_t)with.rows.count, sizeof *apart);
    assert_non_null(apart);
    assert_true(with.rows.count > 0 && with.rows.count == got.rows.count);
    for (int64_t i = 0; i < with.rows.count; i++) {
        apart[i] = fabs(with.rows.nll[i] - got.rows.nll[i]);
        assert_true(isfinite(apart[i]));
        change = worse(fabs(with.rows.nll[i] - base.rows.nll[i]), change);
    }
    assert_true(change > 0.1);
    qsort(apart, (size_t)with.rows.count, sizeof *apart, ascending);
    /* rounding can send a token to another expert, whose loss may then be another, and of those that see it */
    int64_t flipped = has_experts() ? with.rows.count / 20 : 0;
    judge("the merged model's losses, of what the adapter changes",
          apart[with.rows.count - 1 - flipped] / change, MERGE_TOLERANCE);
    free(apart);
    test_rows_free(&base.rows);
    test_rows_free(&with.rows);
    test_rows_free(&got.rows);
}

static void test_merged(void **state)
{
    (void)state;
    const char *adapter = scratch_path("trained");
    run(model, adapter, NULL);
    const char *merged = convert(tsr_merge, "merged", adapter);
    check_tensors(merged, adapter);
    check_quantization(merged);
    compare_losses(model, adapter, merged, false);
}

/* Of a LoRA on experts too, from the model as it is and from what is quantized of it. */
static void test_merged_experts(void **state)
{
    (void)state;
    char dequantized[600], nf4[600];
    bool turned = strstr(family, "gpt_oss") != NULL;
    const char *adapter = scratch_path("lora");
    if (!has_experts())
        skip();
    snprintf(dequantized, sizeof dequantized, "%s/%s/dequantized.safetensors", FAMILY_GOLDEN,
             family);
    run_lora(adapter);
    const char *merged = convert(tsr_merge, "merged-lora", adapter);
    const merged_experts plain = {model, in_mxfp4() ? dequantized : NULL, merged, adapter, turned};
    judge("experts that fp32 rounds to another bf16", merged_experts_others(&plain), 1e-3);
    if (in_mxfp4()) {
        char config[700];
        snprintf(config, sizeof config, "%s/config.json", merged);
        json_t *root = json_load_file(config, 0, NULL);
        assert_null(json_object_get(root, "quantization_config"));
        json_decref(root);
    }
    compare_losses(model, adapter, merged, false);
    if (in_mxfp4())
        return;
    snprintf(nf4, sizeof nf4, "%s", convert(tsr_quantize, "nf4", NULL));
    const char *merged4 = convert_from(nf4, tsr_merge, "merged-nf4", adapter);
    const merged_experts quantized = {nf4, NULL, merged4, adapter, turned};
    judge("the same of NF4", merged_experts_others(&quantized), 1e-3);
    compare_losses(nf4, adapter, merged4, true);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_quantized, setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_saved, setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_merged, setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_merged_experts, setup, scratch_teardown)};
    if (argc != 2) {
        fprintf(stderr, "test_commands_families FAMILY\n");
        return 64;
    }
    family = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
