/*
 * modules_to_save, trainable_token_indices and LoRAs of the embedding and the head: losses, gradient norms and values of
 * PEFT (tools/make_peft_golden.py), the same bits on any number of ranks, across a stop, and what is merged.
 *
 *     test_job_saved_modules                        on the CPU
 *     test_job_saved_modules BACKEND DTYPE RANKS    on the ranks that a machine has GPUs for
 */
#include "job/fixture.h"

#include "support/golden.h"
#include "tessera.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#define GOLDEN  TSR_SOURCE_DIR "/tests/golden"
#define BASE    GOLDEN "/prequantized-tiny-llama"
#define TENSORS 16

/* Of tables where a case targets them. */
static const char *const trained[] = {
    "model.layers.0.self_attn.q_proj.lora_A",
    "model.layers.0.self_attn.q_proj.lora_B",
    "model.layers.0.self_attn.v_proj.lora_A",
    "model.layers.0.self_attn.v_proj.lora_B",
    "model.layers.1.self_attn.q_proj.lora_A",
    "model.layers.1.self_attn.q_proj.lora_B",
    "model.layers.1.self_attn.v_proj.lora_A",
    "model.layers.1.self_attn.v_proj.lora_B",
    "lm_head.lora_A",
    "lm_head.lora_B",
    "model.embed_tokens.lora_embedding_A",
    "model.embed_tokens.lora_embedding_B",
};

#define TRAINED (sizeof trained / sizeof *trained)

/* A golden file, and its base and adapter in the scratch directory. */
typedef struct {
    json_t *golden;
    uint64_t spread;
    bool tied;
    char model[512], adapter[512], rows[512];
} scene;

static float scale_of_tables = 1; /* the adapter's, of the base's */

static json_t *load(const char *name)
{
    char path[512];
    json_error_t error;
    snprintf(path, sizeof path, GOLDEN "/peft/%s.json", name);
    json_t *root = json_load_file(path, 0, &error);
    if (!root)
        fail_msg("%s: %s", path, error.text);
    return root;
}

/* The rows of a tensor, spread as tools/make_peft_golden.py has it; the caller frees. */
static float *spread_rows(uint64_t shape[2], const scene *s, const char *path, const char *name)
{
    tsr_safetensors *file = golden_open(path);
    const tsr_tensor *tensor = tsr_safetensors_find(file, name);
    uint64_t d = tensor->shape[1];
    shape[0] = tensor->shape[0] * s->spread;
    shape[1] = d;
    float *rows = golden_f32(NULL, file, "%s", name);
    float *out = calloc(shape[0] * d, sizeof *out);
    for (uint64_t v = 0; v < shape[0]; v++)
        for (uint64_t i = 0, k = v % s->spread; i < d; i++)
            out[v * d + (i + k) % d] = rows[v / s->spread * d + i] * (k ? 0.5f : 1);
    free(rows);
    tsr_safetensors_close(file);
    return out;
}

static bool saves(const scene *s, const char *module)
{
    size_t i;
    json_t *name;
    json_array_foreach(json_object_get(s->golden, "modules_to_save"), i, name)
    {
        if (!strcmp(json_string_value(name), module))
            return true;
    }
    return false;
}

static void add(tsr_peft_tensor *tensors, uint64_t *count, const char *name, float *data,
                const uint64_t shape[2])
{
    tensors[(*count)++] =
        (tsr_peft_tensor){.name = name, .ndim = 2, .shape = {shape[0], shape[1]}, .data = data};
}

/* Of a table of the base. */
static float *table(uint64_t shape[2], const scene *s, const char *name)
{
    return spread_rows(shape, s, BASE "/model.safetensors",
                       s->tied ? "model.embed_tokens.weight" : name);
}

/* Whether a case has a LoRA of a module. */
static bool targets(const scene *s, const char *module)
{
    size_t i;
    json_t *name;
    json_array_foreach(json_object_get(s->golden, "targets"), i, name)
    {
        if (strstr(module, json_string_value(name)))
            return true;
    }
    return strstr(module, "layers") != NULL;
}

/* The tokens of a table; NULL: none. */
static const json_t *tokens_of(const scene *s, bool head)
{
    const json_t *value = json_object_get(s->golden, "trainable_token_indices");
    if (json_is_array(value))
        return head ? NULL : value;
    return json_object_get(value, head ? "lm_head" : "embed_tokens");
}

/* Rows of a table of the base; the caller frees both. */
static float *token_rows(int64_t **ids, uint64_t shape[2], const scene *s, const char *name,
                         const json_t *tokens)
{
    float *all = table(shape, s, name), *out = calloc(json_array_size(tokens) * shape[1], 4);
    *ids = calloc(json_array_size(tokens), sizeof **ids);
    shape[0] = json_array_size(tokens);
    for (uint64_t i = 0; i < shape[0]; i++) {
        (*ids)[i] = json_integer_value(json_array_get(tokens, i));
        memcpy(out + i * shape[1], all + (uint64_t)(*ids)[i] * shape[1], shape[1] * sizeof *out);
    }
    free(all);
    return out;
}

/* The common start. */
static void write_adapter(const scene *s)
{
    static const char *const saved[] = {"lm_head", "embed_tokens"};
    char *modules[2], *names_of[4] = {(char *)"q_proj", (char *)"v_proj"};
    tsr_peft_config config = {.r = 4, .lora_alpha = 6, .target = {names_of, 2, NULL}};
    for (int i = 0; i < 2; i++)
        if (targets(s, saved[i]))
            names_of[config.target.count++] = (char *)saved[i];
    tsr_peft_tensor tensors[TENSORS];
    char names[TENSORS][128];
    uint64_t count = 0, shape[2];
    tsr_safetensors *lora = golden_open(GOLDEN "/peft/lora.safetensors");
    config.save.names = modules;
    for (size_t i = 0; i < TRAINED; i++) {
        bool head_b = !strcmp(trained[i], "lm_head.lora_B");
        if (!targets(s, trained[i]))
            continue;
        snprintf(names[count], sizeof *names, "base_model.model.%s%s", trained[i],
                 strstr(trained[i], "embedding") ? "" : ".weight");
        const tsr_tensor *tensor = tsr_safetensors_find(lora, names[count]);
        memcpy(shape, tensor->shape, sizeof shape);
        float *data = head_b ? spread_rows(shape, s, GOLDEN "/peft/lora.safetensors", names[count])
                             : golden_f32(NULL, lora, "%s", names[count]);
        add(tensors, &count, names[count], data, shape);
    }
    uint64_t parts = count;
    for (int i = 0; i < 2; i++) {
        const char *path = i ? "model.embed_tokens" : "lm_head";
        const json_t *tokens = tokens_of(s, !i);
        if (tokens) {
            int64_t **ids = i ? &config.embedding_tokens : &config.head_tokens;
            snprintf(names[count], sizeof *names, "%s.weight", path);
            float *data = token_rows(ids, shape, s, names[count], tokens);
            *(i ? &config.embedding_token_count : &config.head_token_count) = shape[0];
            snprintf(names[count], sizeof *names,
                     "base_model.model.%s.token_adapter.trainable_tokens_delta", path);
            add(tensors, &count, names[count], data, shape);
        }
        if (!saves(s, saved[i]))
            continue;
        modules[config.save.count++] = (char *)saved[i];
        snprintf(names[count], sizeof *names, "%s.weight", path);
        float *data = table(shape, s, names[count]);
        snprintf(names[count], sizeof *names, "base_model.model.%s.weight", path);
        add(tensors, &count, names[count], data, shape);
    }
    for (uint64_t i = parts; i < count; i++)
        for (uint64_t k = 0; k < tensors[i].shape[0] * tensors[i].shape[1]; k++)
            ((float *)(uintptr_t)tensors[i].data)[k] *= scale_of_tables;
    tsr_folder *folder;
    mkdir(s->adapter, 0777);
    assert_int_equal(tsr_folder_open(&folder, s->adapter), TSR_OK);
    assert_int_equal(tsr_peft_write(folder, &config, tensors, count), TSR_OK);
    tsr_folder_close(folder);
    for (uint64_t i = 0; i < count; i++)
        free((void *)tensors[i].data);
    free(config.embedding_tokens);
    free(config.head_tokens);
    tsr_safetensors_close(lora);
}

/* The base with its vocabulary spread, or its head tied. */
static void write_model(const scene *s)
{
    tsr_safetensors *file = golden_open(BASE "/model.safetensors");
    uint64_t count = tsr_safetensors_count(file);
    tsr_tensor_source *sources = calloc(count, sizeof *sources);
    void **data = calloc(count, sizeof *data);
    tsr_folder *folder;
    json_error_t error;
    uint64_t all = count;
    count = 0;
    for (uint64_t j = 0; j < all; j++) {
        const tsr_tensor *t = tsr_safetensors_at(file, j);
        bool head = strstr(t->name, "lm_head"), spread = head || strstr(t->name, "embed_tokens");
        if (head && s->tied)
            continue;
        uint64_t i = count++;
        sources[i] = (tsr_tensor_source){.name = t->name, .dtype = t->dtype, .ndim = t->ndim};
        memcpy(sources[i].shape, t->shape, (size_t)t->ndim * sizeof *t->shape);
        if (spread) {
            sources[i].dtype = TSR_F32;
            data[i] = table(sources[i].shape, s, t->name);
        } else {
            data[i] = malloc(t->bytes + 1);
            assert_int_equal(tsr_safetensors_read(data[i], t, 0, t->bytes), TSR_OK);
        }
        sources[i].data = data[i];
    }
    mkdir(s->model, 0777);
    assert_int_equal(tsr_folder_open(&folder, s->model), TSR_OK);
    assert_int_equal(tsr_safetensors_write_in(folder, "model.safetensors", sources, count), TSR_OK);
    tsr_folder_close(folder);
    json_t *config = json_load_file(BASE "/config.json", 0, &error);
    json_t *vocabulary = json_object_get(config, "vocab_size");
    json_integer_set(vocabulary, json_integer_value(vocabulary) * (json_int_t)s->spread);
    json_object_set_new(config, "tie_word_embeddings", json_boolean(s->tied));
    char path[600];
    snprintf(path, sizeof path, "%s/config.json", s->model);
    assert_int_equal(json_dump_file(config, path, 0), 0);
    json_decref(config);
    for (uint64_t i = 0; i < count; i++)
        free(data[i]);
    free(data);
    free(sources);
    tsr_safetensors_close(file);
}

static void write_rows(const scene *s)
{
    FILE *file = fopen(s->rows, "w");
    size_t i;
    json_t *ids;
    json_array_foreach(json_object_get(s->golden, "input_ids"), i, ids)
    {
        json_t *row = json_pack("{sO}", "input_ids", ids);
        json_dumpf(row, file, 0);
        fputc('\n', file);
        json_decref(row);
    }
    fclose(file);
}

static void make(scene *s, const char *name)
{
    s->golden = load(name);
    s->spread = (uint64_t)json_integer_value(json_object_get(s->golden, "spread"));
    s->tied = json_is_true(json_object_get(s->golden, "tied"));
    bool own = s->spread > 1 || s->tied;
    snprintf(s->model, sizeof s->model, "%s", own ? scratch_path("model") : BASE);
    snprintf(s->adapter, sizeof s->adapter, "%s", scratch_path(name));
    snprintf(s->rows, sizeof s->rows, "%s", scratch_path("rows.jsonl"));
    if (own)
        write_model(s);
    write_adapter(s);
    write_rows(s);
}

/* LoRA+, of which two groups differ from the others. */
static const char *loraplus_keys(const scene *s)
{
    static const char keys[] = "weight_decay: 0.01\nloraplus_lr_ratio: 16\n"
                               "loraplus_lr_embedding: 1e-4\n";
    return json_is_object(json_object_get(s->golden, "loraplus")) ? keys : "";
}

/* from: the adapter to begin with, or NULL. */
static void configure(char out[4096], const scene *s, const char *from, const char *more)
{
    snprintf(out, 4096,
             "model_name_or_path: %s\n%s%s\ndataset: %s\nlearning_rate: %s\n%s"
             "lr_scheduler_type: constant\nmax_grad_norm: 0\nshuffle: false\nmax_steps: 3\n"
             "total_batch_size: 2\nper_device_train_batch_size: 2\n%s",
             s->model, from ? "init_adapter: " : "", from ? from : "", s->rows,
             *loraplus_keys(s) ? "5e-4" : "2e-3", loraplus_keys(s), more);
}

/* Sums of other orders, of tensor cores' fp32 and of AdamW's signs of small gradients. */
static double of_backend(void)
{
    return job_on_gpu() ? 10 : 1;
}

static void judge_steps(const scene *s, const job_result *got, const char *name)
{
    size_t i;
    json_t *step;
    double loss = 0, norm = 0;
    char what[128];
    json_array_foreach(json_object_get(s->golden, "steps"), i, step)
    {
        double wanted = json_real_value(json_object_get(step, "grad_norm"));
        loss =
            worse(loss, fabs(got->step[i].loss - json_real_value(json_object_get(step, "loss"))));
        norm = worse(norm, fabs(got->step[i].grad_norm / wanted - 1));
    }
    snprintf(what, sizeof what, "%s: loss", name);
    judge(what, loss, 1e-4 * of_backend());
    snprintf(what, sizeof what, "%s: gradient norm", name);
    judge(what, norm, 3e-5 * of_backend());
}

static void judge_adapter(const scene *s, const job_result *got, const char *name)
{
    const char *key;
    json_t *samples;
    char what[256];
    write_bytes(scratch_path("adapter.safetensors"), got->adapter, got->adapter_bytes);
    tsr_safetensors *file = golden_open(scratch_path("adapter.safetensors"));
    assert_int_equal(tsr_safetensors_count(file),
                     json_object_size(json_object_get(s->golden, "samples")));
    json_object_foreach(json_object_get(s->golden, "samples"), key, samples)
    {
        uint64_t count, number = json_array_size(samples);
        float *values = golden_f32(&count, file, "%s", key);
        double most = 0;
        for (uint64_t i = 0; i < number; i++)
            most = worse(most, fabs((double)values[i * count / number] -
                                    json_real_value(json_array_get(samples, i))));
        snprintf(what, sizeof what, "%s: %s", name, key);
        judge(what, most, 2e-5 * of_backend());
        free(values);
    }
    tsr_safetensors_close(file);
}

typedef struct {
    int ranks;
    const char *keys;
} way;

/* Sanitizers are slow: there a case has one of its three other ways, the next one the next. */
#ifdef TSR_SANITIZED
#define EVERY 3
#else
#define EVERY 1
#endif

/* As PEFT on one rank, and the same bits in other ways. */
static void run_ways(const scene *s, const char *name, const char *keys, const way *others,
                     size_t count)
{
    static size_t turn;
    char config[4096], more[512];
    job_result one, other;
    configure(config, s, s->adapter, keys);
    job_run(&one, 1, config);
    if (one.status != 0)
        fail_msg("%s: %s", name, one.message);
    judge_steps(s, &one, name);
    judge_adapter(s, &one, name);
    for (size_t i = turn++ % EVERY; i < count; i += EVERY) {
        if (job_ranks(others[i].ranks) != others[i].ranks)
            continue;
        snprintf(more, sizeof more, "%s%s", keys, others[i].keys);
        configure(config, s, s->adapter, more);
        job_run(&other, others[i].ranks, config);
        if (other.status != 0)
            fail_msg("%s: %s", name, other.message);
        job_assert_plan(&other, others[i].ranks, name);
        job_assert_same(&one, &other, name);
        job_result_free(&other);
    }
    job_result_free(&one);
}

/* Micro-batches whole and, but for ranks of GPUs, for whose spans they are too short, divided and shared. */
static void run_case(const char *name)
{
    static const way whole[] = {{3, "offload: sharded\n"},
                                {1, "gradient_checkpointing: true\noptimizer_offload: true\n"},
                                {2, "gradient_checkpointing: sqrt\nunit_policy: \"2\"\n"}};
    static const way divided[] = {{2, "offload: sharded\ngradient_checkpointing: true\n"},
                                  {2, "context_parallel_size: 2\nunit_policy: \"2\"\n"},
                                  {3, "context_parallel_size: 3\noffload: sharded\n"}};
    scene s;
    make(&s, name);
    run_ways(&s, name, "", whole, sizeof whole / sizeof *whole);
    if (!job_on_gpu())
        run_ways(&s, name, "context_span: 16\n", divided, sizeof divided / sizeof *divided);
    json_decref(s.golden);
}

static void test_lora(void **state)
{
    (void)state;
    run_case("lora");
}

static void test_head(void **state)
{
    (void)state;
    run_case("head");
}

static void test_embedding(void **state)
{
    (void)state;
    run_case("embedding");
}

static void test_both(void **state)
{
    (void)state;
    run_case("head_and_embedding");
}

static void test_tokens(void **state)
{
    (void)state;
    run_case("tokens");
    run_case("tokens_both");
    run_case("tokens_head");
}

/* One table, which is no longer one where its uses are trained apart. */
static void test_tied(void **state)
{
    (void)state;
    run_case("tokens_tied");
    run_case("tokens_untied");
    run_case("head_of_tied");
    run_case("embedding_of_tied");
}

static void test_table_lora(void **state)
{
    (void)state;
    run_case("embedding_lora");
    run_case("head_lora");
    run_case("head_lora_of_tied");
}

static void test_chunks(void **state)
{
    (void)state;
    run_case("chunks");
}

static void resume_with(const char *key, const char *output)
{
    char config[4096], keys[512];
    job_result whole, first, second;
    scene s;
    snprintf(keys, sizeof keys, "%slora_r: 4\nsave_steps: 1\n%s", key,
             strstr(key, "lora_target") ? "" : "lora_target_modules: [q_proj, v_proj]\n");
    make(&s, "head_and_embedding");
    configure(config, &s, NULL, keys);
    job_run(&whole, 1, config);
    if (whole.status != 0)
        fail_msg("%s", whole.message);
    job_run_in(&first, job_ranks(2), config, output, &(job_event){.stop_after = 1});
    if (first.status != 0 || !first.stopped)
        fail_msg("not stopped: %s", first.message);
    job_run_in(&second, job_ranks(3), strcat(config, "resume_from_checkpoint: true\n"), output,
               NULL);
    if (second.status != 0)
        fail_msg("%s", second.message);
    assert_true(second.resumed > 0);
    job_assert_part(&whole, &second, (int)second.resumed, true, "resumed");
    job_result_free(&whole);
    job_result_free(&first);
    job_result_free(&second);
    json_decref(s.golden);
}

/* Without init_adapter tables begin as the base has them; a stopped run goes on with the same bits on other ranks. */
static void test_resume(void **state)
{
    (void)state;
    static const char *const trained_too[] = {
        "modules_to_save: [lm_head, embed_tokens]\n",
        "trainable_token_indices: {embed_tokens: [300, 17], lm_head: [5, 300, 101]}\n",
        "lora_target_modules: [q_proj, v_proj, embed_tokens]\n"
        "trainable_token_indices: {lm_head: [5]}\n",
        "lora_target_modules: [q_proj, v_proj, embed_tokens, lm_head]\n"};
    static const char *const outputs[] = {"tables", "tokens", "adapted", "both"};
    for (int i = 0; i < 4; i++)
        resume_with(trained_too[i], outputs[i]);
}
/* Elements of a merged tensor are those of `want`, rounded; slack: of an element. */
static void check_merged(const char *name, const float *want, uint64_t count, float slack)
{
    char path[600];
    snprintf(path, sizeof path, "%s/model.safetensors", scratch_path("merged"));
    tsr_safetensors *file = golden_open(path);
    float *got = golden_f32(NULL, file, "%s", name);
    for (uint64_t i = 0; i < count; i++)
        if (!(fabsf(got[i] - tsr_bf16_to_f32(tsr_f32_to_bf16(want[i]))) <= slack * fabsf(want[i])))
            fail_msg("%s[%llu] is %g, expected %g", name, (unsigned long long)i, (double)got[i],
                     (double)want[i]);
    free(got);
    tsr_safetensors_close(file);
}

/* A LoRA's s B A onto a table [rows, d]; of the embedding A [r, rows] and B [d, r]. */
static void add_lora(float *rows, const uint64_t shape[2], const scene *s, bool head)
{
    char path[600];
    snprintf(path, sizeof path, "%s/" TSR_PEFT_WEIGHTS_FILE, s->adapter);
    tsr_safetensors *file = golden_open(path);
    float *a = golden_f32(NULL, file, "base_model.model.%s",
                          head ? "lm_head.lora_A.weight" : "model.embed_tokens.lora_embedding_A");
    float *b = golden_f32(NULL, file, "base_model.model.%s",
                          head ? "lm_head.lora_B.weight" : "model.embed_tokens.lora_embedding_B");
    for (uint64_t v = 0; v < shape[0]; v++)
        for (uint64_t k = 0; k < shape[1]; k++)
            for (uint64_t j = 0; j < 4; j++)
                rows[v * shape[1] + k] += 1.5f * (head ? b[v * 4 + j] * a[j * shape[1] + k]
                                                       : a[j * shape[0] + v] * b[k * 4 + j]);
    free(a);
    free(b);
    tsr_safetensors_close(file);
}

static bool merged_tie(void)
{
    char path[600];
    json_error_t error;
    snprintf(path, sizeof path, "%s/config.json", scratch_path("merged"));
    json_t *config = json_load_file(path, 0, &error);
    assert_non_null(config);
    bool tied = json_is_true(json_object_get(config, "tie_word_embeddings"));
    json_decref(config);
    return tied;
}

/* An adapter as it begins, but for its tables, which are doubled: what is merged is the adapter's, and the rest the
 * base's; a head that is no longer the embedding is written. */
static void merge_case(const char *name)
{
    static const char *const paths[] = {"lm_head", "model.embed_tokens"};
    char model[600], adapter[600], output[600];
    scene s;
    make(&s, name);
    snprintf(model, sizeof model, "model_name_or_path=%s", s.model);
    snprintf(adapter, sizeof adapter, "init_adapter=%s", s.adapter);
    snprintf(output, sizeof output, "output_dir=%s", scratch_path("merged"));
    const char *keys[] = {model, adapter, output, "overwrite_output_dir=true"};
    tsr_job_options options = TSR_JOB_OPTIONS_INIT;
    options.overrides = keys;
    options.override_count = 4;
    char *text = NULL;
    if (tsr_merge(&options, 0, &text) < 0)
        fail_msg("%s: %s", name, tsr_last_error());
    tsr_free(text);
    bool shared = s.tied && !strcmp(name, "tokens_tied");
    assert_int_equal(merged_tie(), shared);
    for (int i = 0; i < 2; i++) {
        char tensor[64];
        uint64_t shape[2];
        if (i == 0 && shared)
            continue;
        snprintf(tensor, sizeof tensor, "%s.weight", paths[i]);
        float *base = table(shape, &s, tensor);
        const json_t *tokens = tokens_of(&s, i == 0);
        float by = scale_of_tables;
        for (uint64_t k = 0; saves(&s, i ? "embed_tokens" : "lm_head") && k < shape[0] * shape[1];
             k++)
            base[k] *= by;
        for (size_t t = 0; t < json_array_size(tokens); t++)
            for (uint64_t k = 0; k < shape[1]; k++)
                base[(uint64_t)json_integer_value(json_array_get(tokens, t)) * shape[1] + k] *= by;
        bool adapted = targets(&s, paths[i]);
        if (adapted)
            add_lora(base, shape, &s, i == 0);
        /* Sums of another order may round to the next number. */
        check_merged(tensor, base, shape[0] * shape[1], adapted ? 0x1p-7f : 0);
        free(base);
    }
    json_decref(s.golden);
}

static void test_merge(void **state)
{
    (void)state;
    static const char *const cases[] = {
        "head_and_embedding", "tokens_both",       "tokens_tied", "tokens_untied",
        "head_of_tied",       "embedding_of_tied", "chunks",      "embedding_lora",
        "head_lora",          "head_lora_of_tied"};
    scale_of_tables = 2;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        merge_case(cases[i]);
    scale_of_tables = 1;
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        bool fresh;
        const char *key, *words[MOST_WORDS];
    } cases[] = {
        {true,
         "modules_to_save: [score]\n",
         {"modules_to_save: found score", "lm_head", "embed_tokens"}},
        {false, "modules_to_save: [embed_tokens]\n", {"modules_to_save", "init_adapter"}},
        {true,
         "trainable_token_indices: [384]\n",
         {"trainable_token_indices: found 384", "0 to 383"}},
        {true,
         "trainable_token_indices: {norm: [1]}\n",
         {"trainable_token_indices", "'norm'", "embed_tokens or lm_head"}},
        {true,
         "lora_target_modules: [embed_tokens]\nuse_dora: true\n",
         {"lora_target_modules", "embed_tokens", "use_dora"}},
        {true,
         "lora_target_modules: [embed_tokens]\nmodules_to_save: [embed_tokens]\n",
         {"lora_target_modules", "embed_tokens", "modules_to_save"}},
        {true,
         "lora_target_modules: [lm_head]\n",
         {"lora_target_modules", "lm_head", "no linear of a layer"}},
        {true,
         "lora_target_modules: [lm_head, q_proj]\nlora_dropout: 0.1\n",
         {"lora_target_modules", "lm_head", "lora_dropout"}},
        {true, "trainable_token_indices: [3, 3]\n", {"trainable_token_indices", "3", "twice"}},
        {true,
         "trainable_token_indices: [3]\nmodules_to_save: [lm_head]\n",
         {"trainable_token_indices", "modules_to_save"}},
    };
    scene s;
    make(&s, "head");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char config[4096];
        job_result result;
        configure(config, &s, cases[i].fresh ? NULL : s.adapter, cases[i].key);
        job_run(&result, 1, config);
        assert_int_equal(result.status, TSR_ECONFIG);
        for (int w = 0; w < MOST_WORDS && cases[i].words[w]; w++)
            if (!strstr(result.message, cases[i].words[w]))
                fail_msg("'%s' is not in: %s", cases[i].words[w], result.message);
        job_result_free(&result);
    }
    json_decref(s.golden);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_lora, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_head, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_embedding, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_both, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_tokens, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_tied, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_table_lora, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_chunks, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_resume, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_merge, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_refused, scratch_setup, scratch_teardown),
    };
    job_choose_backend(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
