/*
 * Two families with experts that nobody publishes, whose checkpoints have all experts of a layer in one tensor: as it is in
 * memory, or transposed with gate and up by turns (gpt-oss's way). The same weights in these two ways, and one tensor an
 * expert, are the same model, bit for bit: they train alike, are quantized to the same bytes on any number of ranks, and
 * merged into tensors of the checkpoint's own shape.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/philox.h"
#include "model/arch/arch.h"
#include "model/arch/experts.h"
#include "support/golden.h"
#include "support/head.h"
#include "support/job.h"
#include "support/rows.h"
#include "support/scratch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { LAYERS = 2, HIDDEN = 48, WIDTH = 40, EXPERTS = 5, MOST_TENSORS = 128, STEPS = 2 };

/* ---- the families ---- */

#define NAMES(is_transposed)                                                                       \
    {                                                                                              \
        .router = {.weight = "mlp.gate"}, .gate_up = "mlp.experts.gate_up_proj",                   \
        .down = "mlp.experts.down_proj",                                                           \
        .gate_up_files = {.one = {"mlp.experts.%d.gate_proj", "mlp.experts.%d.up_proj"},           \
                          .fused = "mlp.experts.gate_up_proj",                                     \
                          .transposed = is_transposed,                                             \
                          .bias = "mlp.experts.gate_up_proj_bias"},                                \
        .down_files = {.one = {"mlp.experts.%d.down_proj"},                                        \
                       .fused = "mlp.experts.down_proj",                                           \
                       .transposed = is_transposed,                                                \
                       .bias = "mlp.experts.down_proj_bias"},                                      \
    }

static const tsr_expert_names fused_names = NAMES(false), turned_names = NAMES(true);

static tsr_status read(tsr_model_config *out, const json_t *root, const char *place)
{
    static const char *const counts[] = {"num_experts", NULL};
    static const tsr_expert_keys sizes = {counts, "num_experts_per_tok", "moe_intermediate_size"};
    TSR_TRY(tsr_model_config_experts(out, root, &sizes, place));
    out->experts.scoring = TSR_ROUTE_SOFTMAX;
    out->experts.normalise = true;
    out->experts.bias = true;
    return TSR_OK;
}

static tsr_status fused_block(tsr_block *out, const tsr_model_config *config, int layer)
{
    return tsr_decoder_sparse_block(out, config, layer, &fused_names);
}

static tsr_status turned_block(tsr_block *out, const tsr_model_config *config, int layer)
{
    return tsr_decoder_sparse_block(out, config, layer, &turned_names);
}

static const char *const keys[] = {"num_experts", "num_experts_per_tok", "moe_intermediate_size",
                                   NULL};

#define ARCH(type, of_block)                                                                       \
    {                                                                                              \
        .model_type = type, .architecture = "MadeUpForCausalLM", .models = "none",                 \
        .max_position = 256, .bos = -1, .eos = -1, .eps = 1e-5, .theta = 10000,                    \
        .activation = TSR_SILU, .keys = keys, .read = read, .block = of_block                      \
    }

static const tsr_arch archs[] = {ARCH("made_up_fused", fused_block),
                                 ARCH("made_up_turned", turned_block)};

tsr_status __wrap_tsr_arch_find(const tsr_arch **out, const char *model_type, const char *place);
tsr_status __real_tsr_arch_find(const tsr_arch **out, const char *model_type, const char *place);
tsr_status __wrap_tsr_arch_find(const tsr_arch **out, const char *model_type, const char *place)
{
    for (int i = 0; i < 2; i++)
        if (!strcmp(model_type, archs[i].model_type)) {
            *out = &archs[i];
            return TSR_OK;
        }
    return __real_tsr_arch_find(out, model_type, place);
}

/* ---- models ---- */

/* Four checkpoints of the same weights. */
enum { FUSED, FUSED_ONES, TURNED, TURNED_ONES, WAYS };

static const char *const way_names[WAYS] = {"fused", "fused-ones", "turned", "turned-ones"};

static char checkpoints[WAYS][512], rows[512];

/* Of what the layer has for each expert: gate 0, up 1, down 2, and behind them the biases, which have column 0. */
typedef struct {
    int layer, part;
    uint64_t expert, row, column;
} place;

static uint16_t element(const place *p)
{
    uint64_t at = (p->expert * 1000 + p->row) * 1000 + p->column;
    float uniform = 2 * tsr_philox_uniform(
                            tsr_philox_at(77 + (uint64_t)p->layer, (uint64_t)p->part, at).word[0]) -
                    1;
    return tsr_f32_to_bf16(0.3f * uniform);
}

/* Of a tensor of all experts in memory's order: what row `row` of an expert is. */
static void put_row(place *p, bool gate_up, uint64_t row)
{
    p->part = !gate_up ? 2 : row < WIDTH ? 0 : 1;
    p->row = gate_up ? row % WIDTH : row;
}

/* The same where rows of gate and up take turns. */
static void put_turn(place *p, bool gate_up, uint64_t row)
{
    p->part = !gate_up ? 2 : (int)(row % 2);
    p->row = gate_up ? row / 2 : row;
}

static int layer_of(const char *name)
{
    const char *found = strstr(name, "layers.");
    return found ? atoi(found + strlen("layers.")) : -1;
}

static uint16_t *fill_fused(const tsr_tensor *t, bool turned)
{
    bool gate_up = strstr(t->name, "gate_up"), bias = t->ndim == 2;
    uint64_t out = t->shape[turned && !bias ? 2 : 1], in = bias ? 1 : t->shape[turned ? 1 : 2];
    uint16_t *data = malloc(t->element_count * sizeof *data);
    assert_non_null(data);
    for (uint64_t e = 0; e < EXPERTS; e++)
        for (uint64_t i = 0; i < out; i++)
            for (uint64_t j = 0; j < in; j++) {
                place p = {.layer = layer_of(t->name), .expert = e, .column = j};
                (turned ? put_turn : put_row)(&p, gate_up, i);
                p.part += bias ? 3 : 0;
                data[e * out * in + (turned && !bias ? j * out + i : i * in + j)] = element(&p);
            }
    return data;
}

static uint16_t *fill_other(const tsr_tensor *t)
{
    uint64_t seed = 0;
    uint16_t *data = malloc(t->element_count * sizeof *data);
    assert_non_null(data);
    for (const char *c = t->name; *c; c++)
        seed = seed * 31 + (uint64_t)*c;
    for (uint64_t i = 0; i < t->element_count; i++) {
        float uniform = 2 * tsr_philox_uniform(tsr_philox_at(seed, 7, i).word[0]) - 1;
        data[i] = tsr_f32_to_bf16(t->ndim == 2 ? 0.2f * uniform : 1 + 0.2f * uniform);
    }
    return data;
}

typedef struct {
    tsr_tensor_source source[MOST_TENSORS];
    char names[MOST_TENSORS][160];
    uint64_t count;
} model_file;

static void add(model_file *file, const tsr_tensor_source *source, const char *name)
{
    assert_in_range(file->count, 0, MOST_TENSORS - 1);
    snprintf(file->names[file->count], sizeof file->names[0], "%s", name);
    file->source[file->count] = *source;
    file->source[file->count].name = file->names[file->count];
    file->count++;
}

/* One tensor for each part of each expert. */
static void add_ones(model_file *file, const tsr_tensor *fused)
{
    static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
    bool gate_up = strstr(fused->name, "gate_up");
    uint64_t out = gate_up ? WIDTH : HIDDEN, in = gate_up ? HIDDEN : WIDTH;
    for (uint64_t e = 0; e < EXPERTS; e++)
        for (int part = gate_up ? 0 : 2; part < (gate_up ? 2 : 3); part++) {
            char name[160];
            uint16_t *data = malloc(out * in * sizeof *data);
            assert_non_null(data);
            for (uint64_t i = 0; i < out * in; i++)
                data[i] = element(&(place){layer_of(fused->name), part, e, i / in, i % in});
            snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.%s.weight",
                     layer_of(fused->name), (int)e, parts[part]);
            add(file,
                &(tsr_tensor_source){
                    .dtype = TSR_BF16, .ndim = 2, .shape = {out, in}, .data = data},
                name);
        }
}

static void write_config(const char *directory, const char *type)
{
    char path[600], text[800];
    assert_int_equal(mkdir(directory, 0700), 0);
    snprintf(path, sizeof path, "%s/config.json", directory);
    snprintf(text, sizeof text,
             "{\"model_type\": \"%s\", \"architectures\": [\"MadeUpForCausalLM\"],\n"
             " \"vocab_size\": 128, \"hidden_size\": %d, \"intermediate_size\": 96,\n"
             " \"moe_intermediate_size\": %d, \"num_experts\": %d, \"num_experts_per_tok\": 2,\n"
             " \"num_hidden_layers\": %d, \"num_attention_heads\": 3, \"head_dim\": 16,\n"
             " \"num_key_value_heads\": 3, \"torch_dtype\": \"bfloat16\"}\n",
             type, HIDDEN, WIDTH, EXPERTS, LAYERS);
    write_text(path, text);
}

static void write_model(int way)
{
    static model_file file;
    bool turned = way == TURNED || way == TURNED_ONES,
         ones = way == FUSED_ONES || way == TURNED_ONES;
    tsr_model_config config;
    tsr_checkpoint *described;
    char path[600];
    file.count = 0;
    write_config(checkpoints[way], archs[turned].model_type);
    assert_int_equal(tsr_model_config_load(&config, checkpoints[way]), TSR_OK);
    assert_int_equal(tsr_model_describe(&described, checkpoints[way], &config), TSR_OK);
    for (uint64_t i = 0; i < tsr_checkpoint_count(described); i++) {
        const tsr_tensor *t = tsr_checkpoint_at(described, i);
        bool experts = strstr(t->name, "mlp.experts.") != NULL;
        if (ones && t->ndim == 3) {
            add_ones(&file, t);
            continue;
        }
        tsr_tensor_source source = {.dtype = TSR_BF16, .ndim = t->ndim};
        memcpy(source.shape, t->shape, sizeof source.shape);
        source.data = experts ? fill_fused(t, turned) : fill_other(t);
        add(&file, &source, t->name);
    }
    snprintf(path, sizeof path, "%s/model.safetensors", checkpoints[way]);
    assert_int_equal(tsr_safetensors_write(path, file.source, file.count), TSR_OK);
    for (uint64_t i = 0; i < file.count; i++)
        free((void *)file.source[i].data);
    tsr_checkpoint_close(described);
}

static int setup(void **state)
{
    test_data data;
    (void)state;
    scratch_make();
    snprintf(rows, sizeof rows, "%s", scratch_path("rows.jsonl"));
    test_data_begin(&data, rows);
    for (int i = 0; i < 8; i++) {
        int32_t ids[40], length = 12 + 3 * i;
        for (int32_t t = 0; t < length; t++)
            ids[t] = (int32_t)(tsr_philox_at(9, (uint64_t)i, (uint64_t)t).word[0] % 128);
        test_data_row(&data, ids, NULL, &length, 1, false);
    }
    test_data_end(&data);
    for (int way = 0; way < WAYS; way++) {
        snprintf(checkpoints[way], sizeof checkpoints[way], "%s", scratch_path(way_names[way]));
        write_model(way);
    }
    return 0;
}

/* ---- jobs ---- */

typedef struct {
    double loss[STEPS], grad_norm[STEPS];
} trace;

static tsr_status train(tsr_job *job, void *user)
{
    trace *out = user;
    for (int i = 0; i < STEPS; i++) {
        tsr_job_report report = TSR_JOB_REPORT_INIT;
        TSR_TRY(tsr_job_step(job, &report));
        if (job->view.rank == 0) {
            out->loss[i] = report.loss;
            out->grad_norm[i] = report.grad_norm;
        }
    }
    return TSR_OK;
}

/* Attention has the adapter. */
static trace run(const char *model, int ranks, bool in_4bit)
{
    static int number;
    char output[32];
    trace out = {0};
    job_spec spec = {.purpose = TSR_JOB_TRAIN, .ranks = ranks};
    snprintf(output, sizeof output, "run-%d", number++);
    job_set(&spec, "model_name_or_path=%s", model);
    job_set(&spec, "dataset=%s", rows);
    job_set(&spec, "output_dir=%s", scratch_path(output));
    job_set(&spec, "dtype=float32");
    job_set(&spec, "load_in_4bit=%s", in_4bit ? "true" : "false");
    job_set(&spec, "lora_target_modules=[q_proj, v_proj]");
    job_set(&spec, "per_device_train_batch_size=2");
    job_set(&spec, "total_batch_size=4");
    job_set(&spec, "max_steps=%d", STEPS);
    job_set(&spec, "learning_rate=2e-2");
    job_run(&spec, train, &out);
    return out;
}

static const char *convert(job_command *call, const char *model, const char *output,
                           const char *adapter)
{
    const char *directory = scratch_path(output);
    job_spec spec = {0};
    job_set(&spec, "model_name_or_path=%s", model);
    job_set(&spec, "output_dir=%s", directory);
    job_set(&spec, "dtype=float32");
    if (adapter)
        job_set(&spec, "init_adapter=%s", adapter);
    job_convert(call, &spec);
    return directory;
}

/* ---- the same model ---- */

static void test_ways(void **state)
{
    (void)state;
    for (int in_4bit = 0; in_4bit < 2; in_4bit++) {
        trace first = run(checkpoints[FUSED], 1, in_4bit);
        assert_true(first.loss[0] != first.loss[1] && first.grad_norm[0] > 0);
        for (int way = 0; way < WAYS; way++) {
            trace got = run(checkpoints[way], way == FUSED ? 3 : 1 + way % 3, in_4bit);
            if (memcmp(&got, &first, sizeof got) != 0)
                fail_msg("%s, in 4 bits %d: other bits", way_names[way], in_4bit);
        }
    }
}

/* ---- quantized ---- */

static void *read_tensor(uint64_t *bytes, const tsr_safetensors *file, const char *name)
{
    const tsr_tensor *t = tsr_safetensors_find(file, name);
    if (!t)
        fail_msg("no %s", name);
    void *data = malloc(t->bytes + 1);
    assert_non_null(data);
    assert_int_equal(tsr_safetensors_read(data, t, 0, t->bytes), TSR_OK);
    *bytes = t->bytes;
    return data;
}

/* Every tensor of `a`, but for those with `but` in their names, is in `b` and the same. */
static void expect_same(const char *a, const char *b, const char *but)
{
    char path[2][600];
    snprintf(path[0], sizeof path[0], "%s/model.safetensors", a);
    snprintf(path[1], sizeof path[1], "%s/model.safetensors", b);
    tsr_safetensors *from = golden_open(path[0]), *to = golden_open(path[1]);
    assert_int_equal(tsr_safetensors_count(from), tsr_safetensors_count(to));
    for (uint64_t i = 0; i < tsr_safetensors_count(from); i++) {
        const char *name = tsr_safetensors_at(from, i)->name;
        uint64_t bytes[2];
        if (but && strstr(name, but))
            continue;
        void *data[2] = {read_tensor(&bytes[0], from, name), read_tensor(&bytes[1], to, name)};
        if (bytes[0] != bytes[1] || memcmp(data[0], data[1], bytes[0]) != 0)
            fail_msg("%s is another one in %s", name, b);
        free(data[0]);
        free(data[1]);
    }
    tsr_safetensors_close(from);
    tsr_safetensors_close(to);
}

static void test_quantized(void **state)
{
    char nf4[WAYS][512];
    (void)state;
    for (int way = 0; way < WAYS; way++) {
        char output[40];
        snprintf(output, sizeof output, "nf4-%s", way_names[way]);
        snprintf(nf4[way], sizeof nf4[way], "%s",
                 convert(tsr_quantize, checkpoints[way], output, NULL));
    }
    expect_same(nf4[FUSED], nf4[FUSED_ONES], NULL);
    expect_same(nf4[TURNED], nf4[TURNED_ONES], NULL);
    expect_same(nf4[FUSED], nf4[TURNED], "_bias"); /* which are copied as they are, by turns */
    trace here = run(checkpoints[FUSED], 1, true);
    for (int ranks = 1; ranks <= 3; ranks += 2)
        for (int way = FUSED; way <= TURNED; way += TURNED) {
            trace there = run(nf4[way], ranks, true);
            assert_memory_equal(&here, &there, sizeof here);
        }
}

/* What is not finite is named where the file has it, and nothing is written. */
static void test_not_finite(void **state)
{
    static const struct {
        int way;
        uint64_t at; /* in the gate and up of layer 1 */
    } bad[] = {{FUSED, (2 * 2 * WIDTH + WIDTH + 3) * HIDDEN + 5},
               {TURNED, (2 * HIDDEN + 5) * 2 * WIDTH + 7}};
    (void)state;
    for (int i = 0; i < 2; i++) {
        char path[600], output[600], model[600], *text = NULL;
        snprintf(path, sizeof path, "%s/model.safetensors", checkpoints[bad[i].way]);
        tsr_safetensors *file = golden_open(path);
        uint64_t begin =
            tsr_safetensors_find(file, "model.layers.1.mlp.experts.gate_up_proj")->file_offset;
        tsr_safetensors_close(file);
        FILE *raw = fopen(path, "r+b");
        const uint16_t nan = 0x7fc0;
        assert_true(raw && fseek(raw, (long)(begin + 2 * bad[i].at), SEEK_SET) == 0);
        assert_int_equal(fwrite(&nan, sizeof nan, 1, raw), 1);
        fclose(raw);
        snprintf(model, sizeof model, "model_name_or_path=%s", checkpoints[bad[i].way]);
        snprintf(output, sizeof output, "output_dir=%s", scratch_path("refused"));
        const char *const overrides[] = {model, output};
        const tsr_job_options options = {
            .size = sizeof(tsr_job_options), .overrides = overrides, .override_count = 2};
        assert_int_equal(tsr_quantize(&options, 0, &text), TSR_EDATA);
        if (!strstr(tsr_last_error(), "model.layers.1.mlp.experts.gate_up_proj") ||
            !strstr(tsr_last_error(), "nan"))
            fail_msg("%s", tsr_last_error());
        struct stat info;
        assert_int_not_equal(stat(scratch_path("refused"), &info), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_ways, setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_quantized, setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_not_finite, setup, scratch_teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
