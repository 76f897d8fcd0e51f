/*
 * `quantize` and `merge` as the library offers them, against what the real libraries computed: the NF4
 * base of tests/golden/base_nf4_tiny_llama (CRC-32 of codes, scales and values; nested scales and
 * offset exactly), the layout and state of a checkpoint that Transformers wrote
 * (prequantized-tiny-llama), and PEFT's merge_and_unload (merged.* of two traces). Where there is no
 * golden merge (a bf16 base, rsLoRA, patterns, layers), the oracle is the formula in double, from
 * files read by golden_plain.h.
 * Tolerances: bytes exact; merged rows in fp32 2e-6 (measured 2e-7), and then what is written is
 * exactly their rounding to bf16; norms and column sums 2e-6 relative and 1e-5.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/dtype.h"
#include "commands/merger.h"
#include "support/crc32.h"
#include "support/golden_plain.h"
#include "support/llama.h"
#include "support/scratch.h"
#include "tessera.h"

#include <math.h>
#include <stdbool.h>
#include <unistd.h>

#define MODEL     TSR_SOURCE_DIR "/examples/tiny-llama"
#define GOLDEN    TSR_SOURCE_DIR "/tests/golden"
#define TOLERANCE 2e-6

static char quantized[600]; /* tiny-llama by `quantize` */

/* Runs the call and returns the status; *text is its report. */
static int convert(int (*call)(const tsr_job_options *, int, char **), const char *const *overrides,
                   tsr_job_options *extra, char **text)
{
    tsr_job_options options = extra ? *extra : (tsr_job_options)TSR_JOB_OPTIONS_INIT;
    options.overrides = overrides;
    for (options.override_count = 0; overrides[options.override_count];)
        options.override_count++;
    return call(&options, 1, text);
}

static const char *key(const char *name, const char *value)
{
    static char texts[16][1300];
    static int next;
    char *text = texts[next++ % 16];
    snprintf(text, sizeof texts[0], "%s=%s", name, value);
    return text;
}

static void succeed(int status)
{
    if (status < 0)
        fail_msg("%s", tsr_last_error());
}

static int setup(void **state)
{
    (void)state;
    char *text;
    scratch_make();
    snprintf(quantized, sizeof quantized, "%s", scratch_path("nf4"));
    const char *const overrides[] = {key("model_name_or_path", MODEL), key("output_dir", quantized),
                                     NULL};
    if (convert(tsr_quantize, overrides, NULL, &text) < 0) {
        fprintf(stderr, "%s\n", tsr_last_error());
        return -1;
    }
    free(text);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    scratch_remove();
    return 0;
}

/* ---- quantize ---- */

static void same_tensor(const golden_file *a, const char *a_name, const golden_file *b,
                        const char *b_name)
{
    golden_tensor x = golden_find(a, a_name), y = golden_find(b, b_name);
    if (!x.data || !y.data || x.bytes != y.bytes || strcmp(x.dtype, y.dtype) != 0 ||
        memcmp(x.data, y.data, x.bytes) != 0)
        fail_msg("%s and %s differ", a_name, b_name);
}

static const char *join(const char *a, const char *b)
{
    static char texts[16][700];
    static int next;
    char *text = texts[next++ % 16];
    assert_true(strlen(a) + strlen(b) < sizeof texts[0]);
    stpcpy(stpcpy(text, a), b);
    return text;
}

static double state_offset(const golden_file *file, const char *weight)
{
    golden_tensor t = golden_find(file, join(weight, ".quant_state.bitsandbytes__nf4"));
    json_error_t error;
    json_t *state = json_loadb(t.data, t.bytes, 0, &error);
    assert_non_null(state);
    double offset = json_number_value(json_object_get(state, "nested_offset"));
    json_decref(state);
    return offset;
}

static void test_quantized_bytes(void **state)
{
    (void)state;
    golden_file own = golden_open(join(quantized, "/model.safetensors"));
    golden_file base = golden_open(GOLDEN "/base_nf4_tiny_llama.safetensors");
    json_t *root = golden_json(GOLDEN "/base_nf4_tiny_llama.json");
    const char *module;
    json_t *expected;
    int count = 0;
    json_object_foreach(json_object_get(root, "modules"), module, expected)
    {
        const char *weight = join(module, ".weight");
        golden_tensor codes = golden_find(&own, weight);
        golden_tensor absmax = golden_find(&own, join(weight, ".absmax"));
        assert_non_null(codes.data);
        assert_int_equal(crc32_of(codes.data, codes.bytes),
                         json_integer_value(json_object_get(expected, "codes_crc32")));
        assert_int_equal(crc32_of(absmax.data, absmax.bytes),
                         json_integer_value(json_object_get(expected, "absmax_crc32")));
        same_tensor(&own, join(weight, ".absmax"), &base, join(weight, ".absmax"));
        same_tensor(&own, join(weight, ".nested_absmax"), &base, join(weight, ".nested_absmax"));
        float offset;
        memcpy(&offset, golden_find(&base, join(weight, ".nested_offset")).data, sizeof offset);
        assert_true(state_offset(&own, weight) == (double)offset);
        count++;
    }
    assert_int_equal(count, 42);
    json_decref(root);
    golden_close(&base);
    golden_close(&own);
}

/* Names, dtypes, shapes and the state's very bytes of a checkpoint that Transformers wrote; maps and
 * everything that is not quantized too. Its absmax codes are those of another rule (FORMATS 1). */
static void test_quantized_layout(void **state)
{
    (void)state;
    golden_file own = golden_open(join(quantized, "/model.safetensors"));
    golden_file peer = golden_open(GOLDEN "/prequantized-tiny-llama/model.safetensors");
    const char *name;
    json_t *entry;
    int states = 0;
    json_object_foreach(peer.header, name, entry)
    {
        if (!strncmp(name, "__", 2))
            continue;
        json_t *mine = json_object_get(own.header, name);
        if (!mine)
            fail_msg("%s is missing", name);
        assert_string_equal(json_string_value(json_object_get(mine, "dtype")),
                            json_string_value(json_object_get(entry, "dtype")));
        bool cut = !strncmp(name, "lm_head", 7) || strstr(name, "embed"); /* 384 rows of 4096 */
        if (!cut && !json_equal(json_object_get(mine, "shape"), json_object_get(entry, "shape")))
            fail_msg("%s has another shape", name);
        bool codes = strstr(name, "proj.weight") && !strstr(name, "proj.weight.");
        bool whole = codes || strstr(name, "quant_map") || strstr(name, "quant_state") ||
                     strstr(name, "norm");
        if (whole)
            same_tensor(&own, name, &peer, name);
        states += strstr(name, "quant_state") != NULL;
    }
    assert_int_equal(states, 14);
    assert_int_equal(json_object_size(own.header), 42 * 6 + 15 + 1);
    golden_close(&peer);
    golden_close(&own);
    json_t *a = golden_json(join(quantized, "/config.json"));
    json_t *b = golden_json(GOLDEN "/prequantized-tiny-llama/config.json");
    assert_true(json_equal(json_object_get(a, "quantization_config"),
                           json_object_get(b, "quantization_config")));
    json_decref(a);
    json_decref(b);
}

/* ---- merge ---- */

/* The merged rows in fp32, [out, in] of a linear, from the same code as `merge`; freed by the caller. */
typedef struct {
    tsr_inputs inputs;
    tsr_device *device;
    tsr_merger *merger;
} merge_rig;

/* chunk 0: as the command does. */
static void open_rig(merge_rig *rig, const char *model, const char *adapter, uint64_t chunk)
{
    const char *const overrides[] = {key("model_name_or_path", model), key("init_adapter", adapter),
                                     "output_dir=unused"};
    const tsr_config_source source = {
        .overrides = overrides, .override_count = 3, .use = TSR_CONFIG_MERGE};
    memset(rig, 0, sizeof *rig);
    rig->inputs.compute = TSR_F32;
    succeed(tsr_inputs_read_config(&rig->inputs, &source));
    succeed(tsr_inputs_read_model(&rig->inputs, false, false));
    succeed(tsr_device_create_cpu(&rig->device, &(tsr_device_options){0}));
    succeed(tsr_merger_create(&rig->merger, &rig->inputs, tsr_device_pool(rig->device), chunk));
}

static void close_rig(merge_rig *rig)
{
    tsr_merger_destroy(rig->merger);
    tsr_device_destroy(rig->device);
    tsr_inputs_close(&rig->inputs);
}

static float *merged(merge_rig *rig, const tsr_layout_linear *linear)
{
    float *all = malloc(linear->out * linear->in * sizeof *all);
    assert_non_null(all);
    for (uint64_t first = 0, count; first < linear->out; first += count) {
        const float *rows;
        succeed(tsr_merger_rows(&rows, &count, rig->merger, linear, first));
        memcpy(all + first * linear->in, rows, count * linear->in * sizeof *all);
    }
    return all;
}

static double worst(double a, double b)
{
    return !(a >= b) ? b : a; /* a NaN stays */
}

static void check_golden(const tsr_layout_linear *l, const float *w, const golden_file *trace)
{
    char name[200];
    double rows = 0, norms = 0, sums = 0;
    snprintf(name, sizeof name, "merged.%s.rows", l->path);
    float *eight = golden_copy(trace, name, NULL);
    snprintf(name, sizeof name, "merged.%s.row_l2", l->path);
    double *l2 = golden_copy(trace, name, NULL);
    snprintf(name, sizeof name, "merged.%s.column_sum", l->path);
    double *column = golden_copy(trace, name, NULL);
    for (uint64_t i = 0; i < 8 * l->in; i++)
        rows = worst(rows, fabs((double)w[i] - (double)eight[i]));
    for (uint64_t j = 0; j < l->out; j++) {
        double sum = 0;
        for (uint64_t i = 0; i < l->in; i++)
            sum += (double)w[j * l->in + i] * (double)w[j * l->in + i];
        norms = worst(norms, fabs(sqrt(sum) / l2[j] - 1));
    }
    for (uint64_t i = 0; i < l->in; i++) {
        double sum = 0;
        for (uint64_t j = 0; j < l->out; j++)
            sum += (double)w[j * l->in + i];
        sums = worst(sums, fabs(sum - column[i]));
    }
    printf("%-36s rows %.1e  norms %.1e  column sums %.1e\n", l->path, rows, norms, sums);
    if (!(rows <= TOLERANCE) || !(norms <= TOLERANCE) || !(sums <= 1e-5))
        fail_msg("%s is not PEFT's merge", l->path);
    free(eight);
    free(l2);
    free(column);
}

/* PEFT merged into the NF4 base, dequantized: here `quantize` has written it. */
static void check_trace(const char *name)
{
    char adapter[300], file[300];
    merge_rig rig;
    snprintf(adapter, sizeof adapter, GOLDEN "/traces/%s/final", name);
    snprintf(file, sizeof file, GOLDEN "/traces/%s/trace.safetensors", name);
    golden_file trace = golden_open(file);
    open_rig(&rig, quantized, adapter, 10007);
    for (int kind = 0; kind < LLAMA_LINEARS; kind++) {
        const tsr_layout_linear *linear = &rig.inputs.layout.unit[0].linear[kind];
        float *w = merged(&rig, linear);
        check_golden(linear, w, &trace);
        free(w);
    }
    close_rig(&rig);
    golden_close(&trace);
}

static void test_merged_golden(void **state)
{
    (void)state;
    check_trace("a_lora");
    check_trace("c1_dora");
}

/* ---- merge against the formula in double ---- */

static double *widened(const golden_file *file, const char *name)
{
    golden_tensor t = golden_find(file, name);
    if (!t.data)
        return NULL;
    bool narrow = !strcmp(t.dtype, "BF16");
    uint64_t count = t.bytes / (narrow ? 2 : 4);
    double *out = malloc(count * sizeof *out);
    assert_non_null(out);
    for (uint64_t i = 0; i < count; i++) {
        uint16_t half;
        float whole;
        if (narrow)
            memcpy(&half, (const char *)t.data + 2 * i, 2);
        else
            memcpy(&whole, (const char *)t.data + 4 * i, 4);
        out[i] = (double)(narrow ? tsr_bf16_to_f32(half) : whole);
    }
    return out;
}

/* The shard of tiny-llama that has the tensor. */
static double *base_weight(const char *name)
{
    double *out = NULL;
    for (int i = 1; i <= 4 && !out; i++) {
        char path[300];
        snprintf(path, sizeof path, MODEL "/model-%05d-of-00004.safetensors", i);
        golden_file file = golden_open(path);
        out = widened(&file, name);
        golden_close(&file);
    }
    return out;
}

/* scale by PEFT's rules, written out for each adapter by the caller. */
static void check_formula(const tsr_layout_linear *l, const float *w, const golden_file *adapter,
                          double scale)
{
    char name[200];
    double most = 0, *base = base_weight(join(l->path, ".weight"));
    assert_non_null(base);
    snprintf(name, sizeof name, "base_model.model.%s.lora_A.weight", l->path);
    double *a = widened(adapter, name);
    uint64_t r = golden_find(adapter, name).bytes / l->in /
                 (strcmp(golden_find(adapter, name).dtype, "BF16") ? 4 : 2);
    snprintf(name, sizeof name, "base_model.model.%s.lora_B.weight", l->path);
    double *b = widened(adapter, name);
    snprintf(name, sizeof name, "base_model.model.%s.lora_magnitude_vector", l->path);
    double *m = widened(adapter, name);
    for (uint64_t j = 0; j < l->out; j++) {
        double norm = 0, *row = base + j * l->in;
        for (uint64_t i = 0; i < l->in; i++) {
            for (uint64_t k = 0; k < r; k++)
                row[i] += scale * b[j * r + k] * a[k * l->in + i];
            norm += row[i] * row[i];
        }
        for (uint64_t i = 0; i < l->in; i++)
            most =
                worst(most, fabs((m ? m[j] / sqrt(norm) : 1) * row[i] - (double)w[j * l->in + i]));
    }
    if (!(most <= TOLERANCE))
        fail_msg("%s, rank %d, scale %g: %g", l->path, (int)r, scale, most);
    free(base);
    free(a);
    free(b);
    free(m);
}

static void check_adapter(const char *directory, int (*selects)(int layer, int kind),
                          double (*scale)(int layer, int kind))
{
    merge_rig rig;
    golden_file adapter = golden_open(join(directory, "/adapter_model.safetensors"));
    open_rig(&rig, MODEL, directory, 5000);
    for (int layer = 0; layer < 6; layer++)
        for (int kind = 0; kind < LLAMA_LINEARS; kind++) {
            const tsr_layout_linear *linear = &rig.inputs.layout.unit[layer].linear[kind];
            assert_int_equal(linear->r != 0, selects(layer, kind));
            if (!linear->r)
                continue;
            float *w = merged(&rig, linear);
            check_formula(linear, w, &adapter, scale(layer, kind));
            free(w);
        }
    close_rig(&rig);
    golden_close(&adapter);
}

static int all_of_layers_1_and_4(int layer, int kind)
{
    (void)kind;
    return layer == 1 || layer == 4;
}

static double rslora_scale(int layer, int kind)
{
    (void)layer, (void)kind;
    return 16 / sqrt(16);
}

static int q_v_up_down(int layer, int kind)
{
    (void)layer;
    return kind == LLAMA_Q || kind == LLAMA_V || kind == LLAMA_UP || kind == LLAMA_DOWN;
}

/* Its adapter_config.json: r 16, alpha 32; rank_pattern down_proj 8, up_proj 4, layers.0's q_proj 32;
 * alpha_pattern up_proj 4, layers.3's down_proj 64. */
static double pattern_scale(int layer, int kind)
{
    if (kind == LLAMA_UP)
        return 4.0 / 4;
    if (kind == LLAMA_DOWN)
        return (layer == 3 ? 64.0 : 32.0) / 8;
    return kind == LLAMA_Q && layer == 0 ? 32.0 / 32 : 32.0 / 16;
}

static void test_merged_formula(void **state)
{
    (void)state;
    check_adapter(GOLDEN "/traces/init/dora_patterns", q_v_up_down, pattern_scale);
    check_adapter(GOLDEN "/traces/init/rslora_r16", all_of_layers_1_and_4, rslora_scale);
}

/* ---- what is written ---- */

static bool warned;

static void on_log(void *user, int severity, const char *line)
{
    (void)user;
    if (severity == TSR_JOB_WARNING && strstr(line, "is quantized to 4 bits"))
        warned = true;
}

/* Every tensor of the written model: the merged ones are the rows rounded once, the others as before. */
static void check_written(const char *model, const char *adapter, const char *name, bool four_bit)
{
    char *text, directory[600];
    merge_rig rig;
    tsr_job_options extra = {.size = sizeof(tsr_job_options), .log = on_log};
    snprintf(directory, sizeof directory, "%s", scratch_path(name));
    const char *const overrides[] = {key("model_name_or_path", model), key("init_adapter", adapter),
                                     key("output_dir", directory), NULL};
    warned = false;
    succeed(convert(tsr_merge, overrides, &extra, &text));
    free(text);
    assert_int_equal(warned, four_bit);
    golden_file out = golden_open(join(directory, "/model.safetensors"));
    open_rig(&rig, model, adapter, 0);
    assert_int_equal(json_object_size(out.header), 57 + 1);
    for (int layer = 0; layer < 6; layer++)
        for (int kind = 0; kind < LLAMA_LINEARS; kind++) {
            const tsr_layout_linear *l = &rig.inputs.layout.unit[layer].linear[kind];
            float *w = merged(&rig, l);
            golden_tensor t = golden_find(&out, join(l->path, ".weight"));
            assert_string_equal(t.dtype, "BF16");
            assert_int_equal(t.bytes, l->out * l->in * 2);
            for (uint64_t i = 0; i < l->out * l->in; i++) {
                uint16_t half;
                memcpy(&half, (const char *)t.data + 2 * i, 2);
                if (half != tsr_f32_to_bf16(w[i]))
                    fail_msg("%s: element %d", l->path, (int)i);
            }
            free(w);
        }
    close_rig(&rig);
    golden_file head = golden_open(MODEL "/model-00004-of-00004.safetensors");
    same_tensor(&out, "lm_head.weight", &head, "lm_head.weight");
    golden_close(&head);
    golden_close(&out);
    json_t *config = golden_json(join(directory, "/config.json"));
    assert_string_equal(json_string_value(json_object_get(config, "dtype")), "bfloat16");
    assert_null(json_object_get(config, "quantization_config"));
    json_decref(config);
    assert_int_equal(access(join(directory, "/tokenizer.json"), F_OK), 0);
    assert_int_equal(access(join(directory, "/chat_template.jinja"), F_OK), 0);
}

static void test_written(void **state)
{
    (void)state;
    check_written(MODEL, GOLDEN "/traces/c1_dora/final", "merged", false);
    check_written(quantized, GOLDEN "/traces/a_lora/final", "merged-4bit", true);
    check_written(MODEL, GOLDEN "/traces/init/rslora_r16", "merged-some", false);
}

/* ---- what config.json says and what the tensors are ---- */

/* The tensors of one model, the config.json of another. */
static const char *make_mixed(const char *name, const char *model, const char *other)
{
    char command[3000];
    const char *to = join(scratch_path(name), "");
    snprintf(command, sizeof command,
             "mkdir '%s' && ln -s '%s'/* '%s' && ln -sf '%s/config.json' '%s'", to, model, to,
             other, to);
    assert_int_equal(system(command), 0);
    return to;
}

/* With the overrides of a merge, the first of which is its adapter. */
static int quantize_same(const char *const *overrides, char **text)
{
    return convert(tsr_quantize, overrides + 1, NULL, text);
}

/* The tensors count: 4-bit ones without quantization_config, and plain ones with what was left of one. */
static void test_contradiction(void **state)
{
    (void)state;
    char *text;
    const char *to = join(scratch_path("left-over-out"), "");
    const char *const unsaid[] = {key("init_adapter", GOLDEN "/traces/a_lora/final"),
                                  key("model_name_or_path", make_mixed("unsaid", quantized, MODEL)),
                                  key("output_dir", scratch_path("unsaid-out")), NULL};
    assert_int_equal(quantize_same(unsaid, &text), TSR_EDATA);
    assert_non_null(strstr(tsr_last_error(), "is quantized to nf4 already (model.layers.0."));
    succeed(convert(tsr_merge, unsaid, NULL, &text));
    assert_non_null(strstr(text, "\"model_4bit\": true"));
    free(text);
    const char *const plain[] = {
        key("init_adapter", GOLDEN "/traces/a_lora/final"),
        key("model_name_or_path", make_mixed("left-over", MODEL, quantized)), key("output_dir", to),
        "overwrite_output_dir=true", NULL};
    succeed(convert(tsr_merge, plain, NULL, &text));
    assert_non_null(strstr(text, "\"model_4bit\": false"));
    free(text);
    succeed(quantize_same(plain, &text));
    free(text);
    golden_file a = golden_open(join(quantized, "/model.safetensors"));
    golden_file b = golden_open(join(to, "/model.safetensors"));
    same_tensor(&a, "model.layers.0.mlp.up_proj.weight", &b, "model.layers.0.mlp.up_proj.weight");
    golden_close(&a);
    golden_close(&b);
}

/* A key of GPUs in a GPU run's job.yaml is none of these commands' business. */
static void test_graph_key(void **state)
{
    (void)state;
    char *text;
    const char *const overrides[] = {key("init_adapter", GOLDEN "/traces/a_lora/final"),
                                     key("model_name_or_path", MODEL),
                                     "lora_graph=time",
                                     key("output_dir", scratch_path("graph-out")),
                                     "overwrite_output_dir=true",
                                     NULL};
    succeed(convert(tsr_merge, overrides, NULL, &text));
    free(text);
    succeed(quantize_same(overrides, &text));
    free(text);
}

/* ---- stopped ---- */

static volatile int stop;
static double last_done;
static int calls, stop_at;

static void on_progress(void *user, const char *phase, double done, double total)
{
    (void)user, (void)phase;
    assert_true(done >= last_done && done <= total);
    last_done = done;
    if (++calls == stop_at)
        stop = 1;
}

/* Before a file is made and in the middle of one: nothing is left. Then to its end, and again over it. */
static void check_stops(int (*tool)(const tsr_job_options *, int, char **), const char *adapter,
                        const char *name)
{
    char *text = NULL, directory[600];
    snprintf(directory, sizeof directory, "%s", scratch_path(name));
    const char *const overrides[] = {key("model_name_or_path", MODEL), key("output_dir", directory),
                                     key("init_adapter", adapter), NULL};
    const char *const over[] = {overrides[0], overrides[1], overrides[2],
                                "overwrite_output_dir=true", NULL};
    tsr_job_options extra = {
        .size = sizeof(tsr_job_options), .progress = on_progress, .stop = &stop};
    const int stops[] = {2, 50, 0};
    for (int i = 0; i < 3; i++) {
        stop = 0;
        calls = 0;
        stop_at = stops[i];
        last_done = 0;
        int status = convert(tool, overrides, &extra, &text);
        if (!stop_at) {
            succeed(status);
            break;
        }
        assert_int_equal(tsr_job_exit_code(status), 71);
        assert_non_null(strstr(tsr_last_error(), "stopped; nothing was written"));
        assert_int_equal(access(directory, F_OK) == 0 ? count_entries(directory) : 0, 0);
    }
    free(text);
    int entries = count_entries(directory);
    assert_int_equal(entries, 6);
    assert_int_equal(tsr_job_exit_code(convert(tool, overrides, NULL, &text)), 78);
    assert_non_null(strstr(tsr_last_error(), "already holds a model"));
    succeed(convert(tool, over, NULL, &text));
    free(text);
    assert_int_equal(count_entries(directory), entries);
}

static void test_stop(void **state)
{
    (void)state;
    check_stops(tsr_quantize, "null", "stopped-quantize");
    check_stops(tsr_merge, GOLDEN "/traces/c1_dora/final", "stopped-merge");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quantized_bytes), cmocka_unit_test(test_quantized_layout),
        cmocka_unit_test(test_merged_golden),   cmocka_unit_test(test_merged_formula),
        cmocka_unit_test(test_written),         cmocka_unit_test(test_contradiction),
        cmocka_unit_test(test_graph_key),       cmocka_unit_test(test_stop)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
