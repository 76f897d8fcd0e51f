/*
 * Text decoders beside other towers, against the same decoder alone: losses, the adapter, what merge and quantize write,
 * all bit for bit, with the names of every spelling. The checkpoints are those of tests/golden/families and random
 * ones, with other names and two tensors of a tower.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/log.h"
#include "io/json.h"
#include "model/family.h"
#include "model/layout.h"
#include "support/golden.h"
#include "support/job.h"
#include "support/scratch.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define ROWS  FAMILY_GOLDEN "/gemma3/train.jsonl"
#define STEPS 3
#define TODAY "model.language_model."

typedef struct {
    const char *name, *plain; /* a family */
    const char *type, *architecture, *text;
    const char *prefix, *head, *tower; /* on the disk */
    const char *rope;                  /* rope_scaling; NULL: as it is */
    bool flat;
} composite_case;

static const composite_case cases[] = {
    {"gemma3-before-4.52", "gemma3", "gemma3", "Gemma3ForConditionalGeneration", "gemma3_text",
     "language_model.model.", "language_model.lm_head.", "vision_tower.vision_model", NULL, false},
    {"gemma3", "gemma3", "gemma3", "Gemma3ForConditionalGeneration", "gemma3_text", TODAY,
     "lm_head.", "model.vision_tower", NULL, false},
    {"gemma4", "gemma4", "gemma4", "Gemma4ForConditionalGeneration", "gemma4_text", TODAY,
     "lm_head.", "model.audio_tower", NULL, false},
    {"gemma4-experts", "gemma4_moe", "gemma4", "Gemma4ForConditionalGeneration", "gemma4_text",
     TODAY, "lm_head.", "model.vision_tower", NULL, false},
    {"mistral3-before-4.52", "ministral3", "mistral3", "Mistral3ForConditionalGeneration",
     "ministral3", "language_model.model.", "language_model.lm_head.", "multi_modal_projector",
     NULL, false},
    {"mistral3", "mistral", "mistral3", "Mistral3ForConditionalGeneration", "mistral", TODAY,
     "lm_head.", "model.vision_tower", NULL, false},
    {"qwen2_5_vl-published", "qwen2", "qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", NULL,
     "model.", "lm_head.", "visual", "{\"type\": \"mrope\", \"mrope_section\": [2, 3, 3]}", true},
    {"qwen2_5_vl", "qwen2", "qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl_text",
     TODAY, "lm_head.", "model.visual",
     "{\"type\": \"default\", \"rope_type\": \"default\", \"mrope_section\": [2, 3, 3]}", false},
    {"qwen3_vl", "qwen3", "qwen3_vl", "Qwen3VLForConditionalGeneration", "qwen3_vl_text", TODAY,
     "lm_head.", "model.visual",
     "{\"rope_type\": \"default\", \"mrope_interleaved\": true, \"mrope_section\": [4, 2, 2]}",
     false},
};
enum { CASES = sizeof cases / sizeof *cases, MOST_TENSORS = 400 };

/* ---- checkpoints ---- */

static const char *renamed(char out[256], const char *name, const char *from, const char *to)
{
    const char *at = strstr(name, from);
    if (at)
        snprintf(out, 256, "%.*s%s%s", (int)(at - name), name, to, at + strlen(from));
    else
        snprintf(out, 256, "%s", name);
    return out;
}

typedef struct {
    char name[MOST_TENSORS][256];
    tsr_tensor_source source[MOST_TENSORS];
    uint64_t count;
} renaming;

static void add_tensor(renaming *all, const char *name, tsr_dtype dtype, int ndim,
                       const uint64_t *shape, const void *data)
{
    uint64_t i = all->count++;
    assert_true(all->count <= MOST_TENSORS);
    snprintf(all->name[i], sizeof all->name[i], "%s", name);
    all->source[i] = (tsr_tensor_source){
        .name = all->name[i], .dtype = dtype, .ndim = ndim, .data = data, .shape = {shape[0]}};
    for (int d = 0; d < ndim; d++)
        all->source[i].shape[d] = shape[d];
}

static const float tower_bias[] = {1.00001f, -2, 0.3f, 4};
static const uint16_t tower_weight[8] = {1, 0x3f80, 3, 0x4000, 5, 6, 7, 8};

/* A file of tensors with the first of `from` that a name has put in place of by `to`, and of a tower two. */
static void rename_file(const char *out, const char *in, const char *const (*names)[2],
                        const char *tower)
{
    renaming *all = calloc(1, sizeof *all);
    void *data[MOST_TENSORS];
    char name[256];
    tsr_safetensors *file = golden_open(in);
    assert_non_null(all);
    for (uint64_t i = 0; i < tsr_safetensors_count(file); i++) {
        const tsr_tensor *t = tsr_safetensors_at(file, i);
        data[i] = malloc(t->bytes);
        assert_non_null(data[i]);
        assert_int_equal(tsr_safetensors_read(data[i], t, 0, t->bytes), TSR_OK);
        snprintf(name, sizeof name, "%s", t->name);
        for (int j = 0; names[j][0]; j++)
            if (strstr(t->name, names[j][0])) {
                renamed(name, t->name, names[j][0], names[j][1]);
                break;
            }
        add_tensor(all, name, t->dtype, t->ndim, t->shape, data[i]);
    }
    uint64_t read = all->count;
    if (tower) {
        snprintf(name, sizeof name, "%s.encoder.layers.0.self_attn.q_proj.weight", tower);
        add_tensor(all, name, TSR_BF16, 2, (const uint64_t[]){2, 4}, tower_weight);
        snprintf(name, sizeof name, "%s.patch_embedding.bias", tower);
        add_tensor(all, name, TSR_F32, 1, (const uint64_t[]){4}, tower_bias);
    }
    if (tsr_safetensors_write(out, all->source, all->count) < 0)
        fail_msg("%s", tsr_last_error());
    for (uint64_t i = 0; i < read; i++)
        free(data[i]);
    tsr_safetensors_close(file);
    free(all);
}

static json_t *load(const char *directory, const char *name)
{
    char path[800];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    json_t *root = json_load_file(path, 0, NULL);
    if (!root)
        fail_msg("no %s", path);
    return root;
}

static void store(json_t *root, const char *directory, const char *name)
{
    char path[800];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    assert_int_equal(json_dump_file(root, path, JSON_INDENT(1)), 0);
    json_decref(root);
}

/* What is of the whole model goes out of the decoder's keys. */
static void write_config(const composite_case *c, const char *directory, const char *plain)
{
    static const char *const outer[] = {"dtype", "torch_dtype", "tie_word_embeddings"};
    json_t *text = load(plain, "config.json");
    json_t *root =
        json_pack("{ss s[s] s{si} si}", "model_type", c->type, "architectures", c->architecture,
                  "vision_config", "hidden_size", 4, "image_token_id", 7);
    json_object_del(text, "architectures");
    json_object_del(text, "model_type");
    for (int i = 0; i < 3; i++)
        if (json_object_get(text, outer[i])) {
            json_object_set(root, outer[i], json_object_get(text, outer[i]));
            json_object_del(text, outer[i]);
        }
    if (c->rope)
        json_object_set_new(text, "rope_scaling", json_loads(c->rope, 0, NULL));
    if (c->flat)
        assert_int_equal(json_object_update(root, text), 0);
    else
        json_object_set_new(text, "model_type", json_string(c->text));
    if (!c->flat)
        json_object_set(root, "text_config", text);
    json_decref(text);
    store(root, directory, "config.json");
}

/* The decoder alone and the same beside a tower. */
static void make_pair(char plain[512], char composite[512], const composite_case *c)
{
    char from[600], to[600];
    const char *const names[][2] = {{"model.", c->prefix}, {"lm_head.", c->head}, {NULL, NULL}};
    family_checkpoint(plain, c->plain);
    snprintf(composite, 512, "%s", scratch_path("composite"));
    assert_int_equal(mkdir(composite, 0700), 0);
    snprintf(from, sizeof from, "%s/model.safetensors", plain);
    snprintf(to, sizeof to, "%s/model.safetensors", composite);
    rename_file(to, from, names, c->tower);
    write_config(c, composite, plain);
}

/* ---- jobs ---- */

typedef struct {
    double loss[STEPS], grad_norm[STEPS];
} trace;

static tsr_status train_steps(tsr_job *job, void *user)
{
    trace *out = user;
    for (int i = 0; i < STEPS; i++) {
        tsr_job_report report = TSR_JOB_REPORT_INIT;
        TSR_TRY(tsr_job_step(job, &report));
        out->loss[i] = report.loss;
        out->grad_norm[i] = report.grad_norm;
    }
    return tsr_job_save(job);
}

/* key: one more "key=value", or NULL. */
static trace train(const char *model, const char *output, const char *init, const char *key)
{
    job_spec spec = {.purpose = TSR_JOB_TRAIN};
    trace out;
    job_set(&spec, "model_name_or_path=%s", model);
    job_set(&spec, "dataset=%s", ROWS);
    job_set(&spec, "output_dir=%s", output);
    job_set(&spec, "dtype=float32");
    job_set(&spec, "shuffle=false");
    job_set(&spec, "per_device_train_batch_size=4");
    job_set(&spec, "gradient_accumulation_steps=1");
    job_set(&spec, "max_steps=%d", STEPS);
    job_set(&spec, "learning_rate=2e-3");
    if (init)
        job_set(&spec, "init_adapter=%s", init);
    else
        job_set(&spec, "lora_r=4");
    if (key)
        job_set(&spec, "%s", key);
    job_run(&spec, train_steps, &out);
    return out;
}

static void expect_same_trace(const char *what, const trace *a, const trace *b)
{
    for (int i = 0; i < STEPS; i++)
        if (a->loss[i] != b->loss[i] || a->grad_norm[i] != b->grad_norm[i])
            fail_msg("%s: step %d: loss %.17g and %.17g, gradient %.17g and %.17g", what, i + 1,
                     a->loss[i], b->loss[i], a->grad_norm[i], b->grad_norm[i]);
}

/* Every tensor of the plain model's file is in the other with another name and the same bytes; `more` others are. */
static void expect_same_tensors(const char *plain, const char *other, const char *file,
                                const char *const (*names)[2], uint64_t more)
{
    char path[2][700], name[256], data[2][1 << 18];
    snprintf(path[0], sizeof path[0], "%s/%s", plain, file);
    snprintf(path[1], sizeof path[1], "%s/%s", other, file);
    tsr_safetensors *a = golden_open(path[0]), *b = golden_open(path[1]);
    assert_int_equal(tsr_safetensors_count(a) + more, tsr_safetensors_count(b));
    for (uint64_t i = 0; i < tsr_safetensors_count(a); i++) {
        const tsr_tensor *x = tsr_safetensors_at(a, i), *y;
        int j = 0;
        while (names[j][0] && !strstr(x->name, names[j][0]))
            j++;
        renamed(name, x->name, names[j][0] ? names[j][0] : "", names[j][0] ? names[j][1] : "");
        y = tsr_safetensors_find(b, name);
        if (!y)
            fail_msg("%s has no %s", path[1], name);
        assert_int_equal(x->dtype, y->dtype);
        assert_int_equal(x->bytes, y->bytes);
        assert_true(x->bytes <= sizeof data[0]);
        assert_int_equal(tsr_safetensors_read(data[0], x, 0, x->bytes), TSR_OK);
        assert_int_equal(tsr_safetensors_read(data[1], y, 0, y->bytes), TSR_OK);
        assert_memory_equal(data[0], data[1], x->bytes);
    }
    tsr_safetensors_close(a);
    tsr_safetensors_close(b);
}

static void expect_tower(const char *directory, const composite_case *c)
{
    char path[700], data[16];
    snprintf(path, sizeof path, "%s/model.safetensors", directory);
    tsr_safetensors *file = golden_open(path);
    char name[256];
    snprintf(name, sizeof name, "%s.patch_embedding.bias", c->tower);
    const tsr_tensor *bias = tsr_safetensors_find(file, name);
    assert_non_null(bias);
    assert_int_equal(bias->dtype, TSR_F32);
    assert_int_equal(tsr_safetensors_read(data, bias, 0, 16), TSR_OK);
    assert_memory_equal(data, tower_bias, 16);
    snprintf(name, sizeof name, "%s.encoder.layers.0.self_attn.q_proj.weight", c->tower);
    const tsr_tensor *weight = tsr_safetensors_find(file, name);
    assert_non_null(weight);
    assert_int_equal(tsr_safetensors_read(data, weight, 0, 16), TSR_OK);
    assert_memory_equal(data, tower_weight, 16);
    tsr_safetensors_close(file);
}

static void convert(job_command *call, const char *model, const char *adapter, const char *output)
{
    job_spec spec = {0};
    job_set(&spec, "model_name_or_path=%s", model);
    job_set(&spec, "output_dir=%s", output);
    if (adapter)
        job_set(&spec, "init_adapter=%s", adapter);
    job_convert(call, &spec);
}

/* ---- the tests ---- */

/* An adapter as an older Transformers left it: other names, and a target that says them. */
static void respell_adapter(const char *out, const char *in, const char *older)
{
    char from[700], to[700], target[128];
    const char *const names[][2] = {{TODAY, older}, {NULL, NULL}};
    assert_int_equal(mkdir(out, 0700), 0);
    snprintf(from, sizeof from, "%s/adapter_model.safetensors", in);
    snprintf(to, sizeof to, "%s/adapter_model.safetensors", out);
    rename_file(to, from, names, NULL);
    json_t *config = load(in, "adapter_config.json");
    snprintf(target, sizeof target, "%s.*(_proj|_gate|_projection)", older);
    json_object_set_new(config, "target_modules", json_string(target));
    store(config, out, "adapter_config.json");
}

static void expect_targets(const char *adapter, uint64_t modules)
{
    json_t *config = load(adapter, "adapter_config.json"), *targets, *name;
    size_t i;
    targets = json_object_get(config, "target_modules");
    assert_int_equal(json_array_size(targets), modules);
    json_array_foreach(targets, i, name)
        assert_int_equal(strncmp(json_string_value(name), TODAY, strlen(TODAY)), 0);
    json_decref(config);
}

/* That a LoRA is on; experts are target_parameters, which are no modules. */
static uint64_t modules_of(const char *adapter)
{
    char path[700];
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", adapter);
    tsr_safetensors *file = golden_open(path);
    uint64_t tensors = 0;
    for (uint64_t i = 0; i < tsr_safetensors_count(file); i++)
        tensors += !strstr(tsr_safetensors_at(file, i)->name, ".experts.");
    tsr_safetensors_close(file);
    return tensors / 2;
}

static void judge_training(const char *plain, const char *composite)
{
    static const char *const names[][2] = {{"base_model.model.model.", "base_model.model." TODAY},
                                           {NULL, NULL}};
    char a[512], b[512], next[512], older[512];
    snprintf(a, sizeof a, "%s", scratch_path("adapter-plain"));
    snprintf(b, sizeof b, "%s", scratch_path("adapter"));
    trace first = train(plain, a, NULL, NULL), second = train(composite, b, NULL, NULL);
    assert_true(first.loss[0] > 1);
    expect_same_trace("from nothing", &first, &second);
    expect_same_tensors(a, b, "adapter_model.safetensors", names, 0);
    expect_targets(b, modules_of(a));

    snprintf(next, sizeof next, "%s", scratch_path("next"));
    first = train(plain, next, a, NULL);
    snprintf(next, sizeof next, "%s", scratch_path("next-own"));
    second = train(composite, next, b, "lora_target_modules=all-linear");
    expect_same_trace("from its adapter", &first, &second);
    expect_targets(next, modules_of(a));
    snprintf(next, sizeof next, "%s", scratch_path("next-plain"));
    second = train(composite, next, a, NULL);
    expect_same_trace("from the plain model's", &first, &second);
    expect_targets(next, modules_of(a));
    snprintf(older, sizeof older, "%s", scratch_path("adapter-older"));
    respell_adapter(older, b, "language_model.model.");
    snprintf(next, sizeof next, "%s", scratch_path("next-older"));
    second = train(composite, next, older, NULL);
    expect_same_trace("from an older one", &first, &second);
    expect_targets(next, modules_of(a));
}

static void judge_files(const composite_case *c, const char *plain, const char *composite)
{
    const char *const names[][2] = {{"model.", c->prefix}, {"lm_head.", c->head}, {NULL, NULL}};
    char a[512], b[512], older[512];
    snprintf(older, sizeof older, "%s", scratch_path("adapter-older"));
    snprintf(a, sizeof a, "%s", scratch_path("merged-plain"));
    snprintf(b, sizeof b, "%s", scratch_path("merged"));
    convert(tsr_merge, plain, scratch_path("adapter-plain"), a);
    convert(tsr_merge, composite, older, b);
    expect_same_tensors(a, b, "model.safetensors", names, 2);
    expect_tower(b, c);
    json_t *before = load(composite, "config.json"), *after = load(b, "config.json");
    assert_true(json_equal(before, after));
    json_decref(after);

    snprintf(a, sizeof a, "%s", scratch_path("nf4-plain"));
    snprintf(b, sizeof b, "%s", scratch_path("nf4"));
    convert(tsr_quantize, plain, NULL, a);
    convert(tsr_quantize, composite, NULL, b);
    expect_same_tensors(a, b, "model.safetensors", names, 2);
    expect_tower(b, c);
    after = load(b, "config.json");
    json_t *skipped =
        json_object_get(json_object_get(after, "quantization_config"), "llm_int8_skip_modules");
    assert_string_equal(json_string_value(json_array_get(skipped, 0)), "lm_head");
    assert_true(json_array_size(skipped) >= 3);
    json_object_del(after, "quantization_config");
    assert_true(json_equal(before, after));
    json_decref(after);
    json_decref(before);
    trace first = train(a, scratch_path("next-nf4-plain"), NULL, NULL);
    trace second = train(b, scratch_path("next-nf4"), NULL, NULL);
    expect_same_trace("on the quantized model", &first, &second);
}

static char lines[4096];

static void add_line(void *user, tsr_log_level level, const char *line)
{
    (void)user;
    (void)level;
    strncat(lines, line, sizeof lines - strlen(lines) - 2);
    strcat(lines, "\n");
}

static tsr_status make_layout(const char *directory)
{
    tsr_model_config config;
    tsr_checkpoint *checkpoint;
    tsr_layout layout;
    const tsr_layout_options options = {.compute = TSR_F32};
    lines[0] = 0;
    TSR_TRY(tsr_model_config_load(&config, directory));
    TSR_TRY(tsr_checkpoint_open(&checkpoint, directory));
    tsr_log_set(add_line, NULL, TSR_LOG_INFO);
    tsr_status status = tsr_layout_make(&layout, &config, checkpoint, NULL, &options);
    tsr_log_set(NULL, NULL, TSR_LOG_ERROR);
    if (status == TSR_OK)
        assert_int_equal(layout.tower_elements, 12);
    if (status == TSR_OK)
        tsr_layout_free(&layout);
    tsr_checkpoint_close(checkpoint);
    return status;
}

static void judge_log(const composite_case *c, const char *composite)
{
    char wanted[800];
    const char *tower = strncmp(c->tower, "model.", 6) ? c->tower : c->tower + 6;
    assert_int_equal(make_layout(composite), TSR_OK);
    snprintf(wanted, sizeof wanted,
             "%s: only its text decoder is used, and 2 tensors beside it are not: %.*s\n",
             composite, (int)strcspn(tower, "."), tower);
    assert_string_equal(lines, wanted);
}

static void test_case(void **state)
{
    const composite_case *c = *state;
    char plain[512], composite[512];
    scratch_make();
    make_pair(plain, composite, c);
    judge_log(c, composite);
    judge_training(plain, composite);
    judge_files(c, plain, composite);
    scratch_remove();
}

/* Keys and an adapter that mean the same modules in other words, and those that do not. */
static void test_targets(void **state)
{
    (void)state;
    char plain[512], composite[512], adapter[512], other[512];
    scratch_make();
    make_pair(plain, composite, &cases[1]);
    snprintf(adapter, sizeof adapter, "%s", scratch_path("regex"));
    train(composite, adapter, NULL,
          "lora_target_modules=model\\.language_model\\.layers\\.[02]\\..*\\.(q|v)_proj");
    expect_targets(adapter, 4);
    train(composite, scratch_path("same"), adapter,
          "lora_target_modules=.*layers\\.(0|2)\\.self_attn\\.[qv]_proj");
    expect_targets(scratch_path("same"), 4);

    snprintf(other, sizeof other, "lora_target_modules=[q_proj, v_proj]");
    char keys[5][700];
    const char *overrides[] = {"backend=cpu", keys[0], keys[1], keys[2], keys[3], other};
    snprintf(keys[0], sizeof keys[0], "model_name_or_path=%s", composite);
    snprintf(keys[1], sizeof keys[1], "dataset=%s", ROWS);
    snprintf(keys[2], sizeof keys[2], "init_adapter=%s", adapter);
    snprintf(keys[3], sizeof keys[3], "output_dir=%s", scratch_path("other"));
    tsr_job_options options = {.size = sizeof(tsr_job_options),
                               .overrides = overrides,
                               .override_count = 6,
                               .purpose = TSR_JOB_TRAIN,
                               .threads = 1};
    tsr_job *job = NULL;
    check_error("other modules", tsr_job_create(&job, &options), TSR_ECONFIG,
                (const char *const[MOST_WORDS]){"lora_target_modules", "leave the key out"});
    /* An adapter on the tower too: without its entry the other three are as before. */
    const char *const names[][2] = {
        {TODAY "layers.0.self_attn.q_proj", "model.vision_tower.q_proj"}, {NULL, NULL}};
    char from[700];
    snprintf(from, sizeof from, "%s/adapter_model.safetensors", adapter);
    rename_file(from, from, names, NULL);
    options.override_count = 5;
    check_error("a missing adapter", tsr_job_create(&job, &options), TSR_EDATA,
                (const char *const[MOST_WORDS]){"layers.0.self_attn.q_proj", "no tensors"});
    json_t *config = load(adapter, "adapter_config.json");
    json_array_remove(json_object_get(config, "target_modules"), 0);
    store(config, adapter, "adapter_config.json");
    check_error("a tower's adapter", tsr_job_create(&job, &options), TSR_EDATA,
                (const char *const[MOST_WORDS]){"model.vision_tower.q_proj", "of vision_tower",
                                                "text decoder"});
    scratch_remove();
}

/* Towers alone; an unknown head of a text_config; towers of no class. */
static void test_refused(void **state)
{
    (void)state;
    static const char *const without[][2] = {
        {"layers.", "blocks."}, {"embed_tokens.", "embed."}, {NULL, NULL}};
    char plain[512], composite[512], from[600];
    scratch_make();
    make_pair(plain, composite, &cases[0]);
    snprintf(from, sizeof from, "%s/model.safetensors", composite);
    rename_file(from, from, without, NULL);
    check_error("no decoder", make_layout(composite), TSR_EDATA,
                (const char *const[MOST_WORDS]){composite, "no text decoder", "gemma3",
                                                "language_model.model.layers."});
    assert_int_equal(tsr_job_exit_code(TSR_EDATA), 65);

    json_t *config = load(composite, "config.json");
    json_object_set_new(json_object_get(config, "text_config"), "model_type", json_string("bert"));
    store(config, composite, "config.json");
    check_error("unknown text", make_layout(composite), TSR_EDATA,
                (const char *const[MOST_WORDS]){"text_config", "'bert'", "gemma3_text"});
    config = load(composite, "config.json");
    json_object_del(config, "text_config");
    store(config, composite, "config.json");
    check_error("no text_config", make_layout(composite), TSR_EDATA,
                (const char *const[MOST_WORDS]){"config.json", "text_config is missing", "gemma3"});
    scratch_remove();
}

int main(void)
{
    struct CMUnitTest tests[CASES + 2] = {cmocka_unit_test(test_targets),
                                          cmocka_unit_test(test_refused)};
    for (int i = 0; i < CASES; i++)
        tests[2 + i] = (struct CMUnitTest){
            .name = cases[i].name, .test_func = test_case, .initial_state = (void *)&cases[i]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
