/*
 * Adapters on experts in whole jobs: the same bits on any number of ranks and after a stop, the file that is read is the one
 * that is written, adapters on linears that experts once were, and what is refused. What the numbers must be is
 * tests/model/test_families.c.
 *
 *     test_job_expert_adapters [cuda DTYPE RANKS]
 */
#include "job/fixture.h"

#include "io/peft.h"
#include "support/folder.h"
#include "support/golden.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FAMILIES TSR_SOURCE_DIR "/tests/golden/families/"

/* A run of `family` on its rows; more: further lines. */
static void configure(char config[4096], const char *family, const char *adapter, const char *more)
{
    snprintf(config, 4096,
             "model_name_or_path: " FAMILIES "%s/checkpoint\ndataset: " FAMILIES
             "%s/train.jsonl\nper_device_train_batch_size: 1\ntotal_batch_size: 4\nshuffle: false\n"
             "%s%s%s\n%s",
             family, family, strstr(more, "max_steps") ? "" : "learning_rate: 2e-3\nmax_steps: 3\n",
             adapter ? "init_adapter: " : "", adapter ? adapter : "", more);
}

static void run_well(job_result *out, int ranks, const char *config, const char *output,
                     const job_event *event)
{
    job_run_in(out, ranks, config, output, event);
    if (out->status != 0)
        fail_msg("%s", out->message);
}

static void resume_family(const char *family, const char *keys)
{
    char config[4096], output[64], more[512];
    job_result whole, first, second;
    snprintf(more, sizeof more, "%ssave_strategy: steps\nsave_steps: 1\nlora_r: 4\n", keys);
    configure(config, family, NULL, more);
    snprintf(output, sizeof output, "%s_whole", family);
    run_well(&whole, 1, config, output, NULL);
    snprintf(output, sizeof output, "%s_parts", family);
    run_well(&first, job_ranks(3), config, output, &(job_event){.stop_after = 1});
    assert_true(first.stopped);
    run_well(&second, job_ranks(2), strcat(config, "resume_from_checkpoint: true\n"), output, NULL);
    assert_true(second.resumed > 0);
    job_assert_part(&whole, &second, (int)second.resumed, true, family);
    job_result_free(&whole);
    job_result_free(&first);
    job_result_free(&second);
}

static void test_resume(void **state)
{
    (void)state;
    resume_family("qwen3_moe", "expert_lora_r: 3\nexpert_lora_alpha: 9\n");
    resume_family("gpt_oss", "lora_target_modules: all-linear\n");
    resume_family("mixtral", "lora_target_modules: all-linear-peft\n");
}

static float *tensor(uint64_t *count, const char *folder, const char *name)
{
    char path[600];
    snprintf(path, sizeof path, "%s/" TSR_PEFT_WEIGHTS_FILE, folder);
    tsr_safetensors *file = golden_open(path);
    float *out = golden_f32(count, file, "base_model.model.%s", name);
    tsr_safetensors_close(file);
    return out;
}

/* Every tensor of one adapter is in the other. */
static void same_tensors(const char *want, const char *got)
{
    char path[600];
    snprintf(path, sizeof path, "%s/" TSR_PEFT_WEIGHTS_FILE, want);
    tsr_safetensors *file = golden_open(path);
    for (uint64_t i = 0; i < tsr_safetensors_count(file); i++) {
        const char *name = tsr_safetensors_at(file, i)->name + strlen("base_model.model.");
        uint64_t count, other;
        float *x = tensor(&count, want, name), *y = tensor(&other, got, name);
        assert_int_equal(count, other);
        for (uint64_t j = 0; j < count; j++)
            if (!(fabsf(x[j] - y[j]) < 1e-20f))
                fail_msg("%s[%llu] is %g, expected %g", name, (unsigned long long)j, (double)y[j],
                         (double)x[j]);
        free(x);
        free(y);
    }
    tsr_safetensors_close(file);
}

#define STILL "learning_rate: 1e-30\nmax_steps: 1\n"

/* B is not 0 in these. */
static void test_round_trip(void **state)
{
    (void)state;
    static const char *const families[] = {"qwen3_moe", "mixtral", "gpt_oss", "gemma4_moe"};
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        char config[4096], adapter[512];
        job_result result;
        snprintf(adapter, sizeof adapter, FAMILIES "%s/b_lora_experts/init", families[i]);
        configure(config, families[i], adapter, STILL);
        run_well(&result, job_ranks(3), config, families[i], NULL);
        same_tensors(adapter, scratch_path(families[i]));
        job_result_free(&result);
    }
}

/* ---- a linear an expert ---- */

enum { EXPERTS = 8, HIDDEN = 64, WIDTH = 24, RANK = 3, LAYERS = 3 };

/* Of a part of an expert: a number for each element of A (k, i) and B (i, k). */
static float value(int layer, int expert, int part, int is_b, uint64_t i, int k)
{
    int number = (layer + 1) * 1000000 + expert * 100000 + part * 20000 + is_b * 10000;
    return 0x1p-30f * (float)(number + (int)i * 4 + k);
}

/* As PEFT wrote mixtral's: w1, w3 and w2; but for `missing` of the last layer. */
static void write_linears(const char *folder, const char *missing)
{
    static const char *const parts[] = {"w1", "w3", "w2"};
    enum { MOST = LAYERS * EXPERTS * 3 * 2 };
    static float data[MOST][RANK * HIDDEN];
    static char names[MOST][160];
    tsr_peft_tensor tensors[MOST];
    char *targets[] = {"w1", "w2", "w3"};
    const tsr_peft_config config = {.r = RANK, .lora_alpha = 6, .target = {targets, 3, NULL}};
    uint64_t count = 0;
    for (int layer = 0; layer < LAYERS; layer++)
        for (int e = 0; e < EXPERTS; e++)
            for (int j = 0; j < 6; j++) {
                int part = j / 2, is_b = j % 2;
                uint64_t rows = is_b ? part == 2 ? HIDDEN : WIDTH : RANK;
                uint64_t columns = is_b ? RANK : part == 2 ? WIDTH : HIDDEN;
                snprintf(names[count], sizeof names[0],
                         "base_model.model.model.layers.%d.block_sparse_moe.experts.%d.%s.lora_%c."
                         "weight",
                         layer, e, parts[part], "AB"[is_b]);
                for (uint64_t x = 0; x < rows * columns; x++)
                    data[count][x] =
                        is_b ? value(layer, e, part, 1, x / columns, (int)(x % columns))
                             : value(layer, e, part, 0, x % columns, (int)(x / columns));
                if (missing && strstr(names[count], missing))
                    continue;
                tensors[count] = (tsr_peft_tensor){names[count], 2, {rows, columns}, data[count]};
                count++;
            }
    mkdir(folder, 0777);
    tsr_folder *out = open_folder(folder);
    assert_int_equal(tsr_peft_write(out, &config, tensors, count), TSR_OK);
    tsr_folder_close(out);
}

/* Both A, one behind the other, and B on the diagonal; of a parameter of `parts` parts, the first of which is `first`. */
static void judge_joined(const char *folder, int layer, const char *module, int parts, int first)
{
    char name[160];
    uint64_t count, in = parts == 2 ? HIDDEN : WIDTH, rows = parts == 2 ? WIDTH : HIDDEN;
    uint64_t r = (uint64_t)parts * RANK;
    snprintf(name, sizeof name, "model.layers.%d.mlp.experts%s.lora_A.weight", layer, module);
    float *a = tensor(&count, folder, name);
    assert_int_equal(count, EXPERTS * r * in);
    for (uint64_t x = 0; x < count; x++) {
        uint64_t row = x / in, e = row / r, k = row % r;
        assert_true(a[x] ==
                    value(layer, (int)e, first + (int)(k / RANK), 0, x % in, (int)(k % RANK)));
    }
    snprintf(name, sizeof name, "model.layers.%d.mlp.experts%s.lora_B.weight", layer, module);
    float *b = tensor(&count, folder, name);
    assert_int_equal(count, (uint64_t)parts * rows * r * EXPERTS);
    for (uint64_t x = 0; x < count; x++) {
        uint64_t row = x / (r * EXPERTS), column = x % (r * EXPERTS);
        uint64_t k = column / EXPERTS, e = column % EXPERTS;
        bool own = row / rows == k / RANK;
        float want =
            own ? value(layer, (int)e, first + (int)(k / RANK), 1, row % rows, (int)(k % RANK)) : 0;
        assert_true(fabsf(b[x] - want) < 1e-20f);
    }
    free(a);
    free(b);
}

/* The bytes of the merged model. */
static char *merged(uint64_t *bytes, const char *adapter)
{
    char keys[3][600];
    const char *overrides[] = {keys[0], keys[1], keys[2], "overwrite_output_dir=true"};
    tsr_job_options options = TSR_JOB_OPTIONS_INIT;
    char *text = NULL;
    snprintf(keys[0], sizeof keys[0], "model_name_or_path=" FAMILIES "mixtral/checkpoint");
    snprintf(keys[1], sizeof keys[1], "init_adapter=%s", adapter);
    snprintf(keys[2], sizeof keys[2], "output_dir=%s", scratch_path("merged"));
    options.overrides = overrides;
    options.override_count = 4;
    if (tsr_merge(&options, 0, &text) < 0)
        fail_msg("%s", tsr_last_error());
    tsr_free(text);
    return read_whole(bytes, scratch_path("merged/model.safetensors"));
}

static void test_linears(void **state)
{
    (void)state;
    char config[4096];
    job_result result;
    tsr_peft *peft;
    write_linears(scratch_path("linears"), NULL);
    configure(config, "mixtral", scratch_path("linears"), STILL);
    run_well(&result, job_ranks(2), config, "joined", NULL);
    job_result_free(&result);
    for (int layer = 0; layer < LAYERS; layer++) {
        judge_joined(scratch_path("joined"), layer, ".base_layer", 2, 0);
        judge_joined(scratch_path("joined"), layer, "", 1, 2);
    }
    assert_int_equal(tsr_peft_open(&peft, scratch_path("joined")), TSR_OK);
    const tsr_peft_config *c = tsr_peft_config_of(peft);
    assert_true(c->r == RANK && c->lora_alpha == 6 && c->target.count == 0);
    assert_int_equal(c->parameter.count, 2);
    assert_string_equal(c->parameter.names[1], "mlp.experts.gate_up_proj");
    assert_int_equal(c->rank_pattern_count, 1);
    assert_string_equal(c->rank_pattern[0].key, "mlp.experts.gate_up_proj");
    assert_true(c->rank_pattern[0].value == 6 && c->alpha_pattern[0].value == 12);
    tsr_peft_close(peft);
    uint64_t bytes, other_bytes;
    char *whole = merged(&bytes, scratch_path("joined"));
    char *each = merged(&other_bytes, scratch_path("linears"));
    assert_int_equal(bytes, other_bytes);
    assert_memory_equal(whole, each, bytes);
    free(whole);
    free(each);
}

/* ---- linears beside the experts ---- */

#define PATTERNS                                                                                   \
    "lora_r: 4\nrank_pattern: {gate_proj: 2}\nalpha_pattern: {shared_experts.up_proj: 5}\n"

static void same_file(const char *x, const char *y)
{
    uint64_t bytes, other_bytes;
    char *one = read_whole(&bytes, x), *other = read_whole(&other_bytes, y);
    assert_int_equal(bytes, other_bytes);
    assert_memory_equal(one, other, bytes);
    free(one);
    free(other);
}

/* PEFT takes gate_proj, up_proj and down_proj for the experts': these are named by their weights, in and out. */
static void test_beside(void **state)
{
    (void)state;
    static const char *const names[] = {
        "mlp.down_proj.weight",
        "mlp.experts.down_proj",
        "mlp.experts.gate_up_proj",
        "mlp.gate_proj.weight",
        "mlp.shared_experts.down_proj.weight",
        "mlp.shared_experts.gate_proj.weight",
        "mlp.shared_experts.up_proj.weight",
        "mlp.up_proj.weight",
    };
    char config[4096];
    job_result result;
    tsr_peft *peft;
    configure(config, "glm4_moe", NULL, PATTERNS);
    run_well(&result, 1, config, "beside", NULL);
    job_result_free(&result);
    assert_int_equal(tsr_peft_open(&peft, scratch_path("beside")), TSR_OK);
    const tsr_peft_config *c = tsr_peft_config_of(peft);
    assert_int_equal(c->target.count, 4); /* attention's */
    assert_int_equal(c->parameter.count, 8);
    for (int i = 0; i < 8; i++)
        assert_string_equal(c->parameter.names[i], names[i]);
    assert_int_equal(c->rank_pattern_count, 4); /* as given, and of each linear */
    assert_string_equal(c->rank_pattern[1].key, "model.layers.0.mlp.gate_proj.weight");
    assert_true(c->rank_pattern[1].value == 2);
    tsr_peft_close(peft);
    /* It is read back with the job's own keys beside it, and without. */
    static const char *const keys[] = {STILL PATTERNS, STILL "overwrite_output_dir: true\n"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        configure(config, "glm4_moe", scratch_path("beside"), keys[i]);
        run_well(&result, job_ranks(2), config, "again", NULL);
        job_result_free(&result);
        same_tensors(scratch_path("beside"), scratch_path("again"));
        same_file(scratch_path("beside/adapter_config.json"),
                  scratch_path("again/adapter_config.json"));
    }
    configure(config, "glm4_moe", scratch_path("beside"), STILL "rank_pattern: {gate_proj: 3}\n");
    job_run(&result, 1, config);
    assert_int_equal(result.status, TSR_ECONFIG);
    assert_non_null(strstr(result.message, "rank_pattern"));
    job_result_free(&result);
}

/* ---- what is refused ---- */

static void refuse(const char *config, tsr_status status, const char *const *words)
{
    job_result result;
    job_run(&result, 1, config);
    if (result.status != status)
        fail_msg("status %d, expected %d: %s", result.status, status, result.message);
    for (int w = 0; w < MOST_WORDS && words[w]; w++)
        if (!strstr(result.message, words[w]))
            fail_msg("'%s' is not in: %s", words[w], result.message);
    job_result_free(&result);
}

static void test_refused_keys(void **state)
{
    (void)state;
    static const struct {
        const char *keys, *words[MOST_WORDS];
    } cases[] = {
        {"lora_dropout: 0.05\n", {"lora_dropout", "0.05", "experts", "lora_target_parameters: []"}},
        {"use_dora: true\nlora_target_parameters: [down_proj]\n",
         {"use_dora", "mlp.experts.down_proj", "DoRA"}},
        {"init_lora_weights: pissa\n", {"init_lora_weights", "pissa", "mlp.experts"}},
        {"lora_target_modules: [q_proj, gate]\n",
         {"lora_target_modules", "\"gate\"", "mlp.gate", "router"}},
        {"lora_target_parameters: [gate.weight]\n",
         {"lora_target_parameters", "\"gate.weight\"", "router"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char config[4096];
        configure(config, "qwen3_moe", NULL, cases[i].keys);
        refuse(config, TSR_ECONFIG, cases[i].words);
    }
}

/* init_adapter of qwen3_moe with another adapter_config.json. */
static const char *edited(const char *targets, const char *more)
{
    char text[2048], command[2048];
    const char *folder = scratch_path("edited");
    snprintf(command, sizeof command,
             "mkdir -p %s && cp " FAMILIES "qwen3_moe/b_lora_experts/init/*.safetensors %s", folder,
             folder);
    assert_int_equal(system(command), 0);
    snprintf(text, sizeof text,
             "{\"peft_type\":\"LORA\",\"target_modules\":[\"q_proj\",\"k_proj\",\"v_proj\","
             "\"o_proj\"],\"lora_alpha\":8,\"target_parameters\":%s%s}",
             targets, more);
    write_text(scratch_path("edited/adapter_config.json"), text);
    return folder;
}

static void test_refused_files(void **state)
{
    (void)state;
#define BOTH "[\"mlp.experts.gate_up_proj\",\"mlp.experts.down_proj\"]"
    static const struct {
        const char *targets, *more;
        tsr_status status;
        const char *words[MOST_WORDS];
    } cases[] = {
        {"null",
         ",\"r\":4",
         TSR_EDATA,
         {"model.layers.0.mlp.experts", "no target_parameters", "gate_up_proj, down_proj"}},
        {"[\"mlp.experts.gate_up_proj\"]",
         ",\"r\":4",
         TSR_EDATA,
         {"gate_up_proj is stored as lora_A [32, 24]", "8 experts with rank 4"}},
        {BOTH,
         ",\"r\":4,\"rank_pattern\":{\"down_proj\":2}",
         TSR_EDATA,
         {"down_proj is stored as lora_A [32, 24]", "[64, 32]", "rank 2"}},
        {"[\"mlp.experts.gate_up_proj\",\"mlp.experts.down_proj\",\"gate.weight\"]",
         ",\"r\":4",
         TSR_ECONFIG,
         {"gate.weight", "router"}},
        {"\"mlp.experts.gate_up_proj\"", ",\"r\":4", TSR_EDATA, {"target_parameters", "list"}},
    };
    char config[4096];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        configure(config, "qwen3_moe", edited(cases[i].targets, cases[i].more), "");
        refuse(config, cases[i].status, cases[i].words);
    }
    configure(config, "qwen3_moe", FAMILIES "qwen3_moe/b_lora_experts/init", "expert_lora_r: 5\n");
    refuse(config, TSR_ECONFIG, (const char *const[MOST_WORDS]){"expert_lora_r", "5", "has 4"});
    write_linears(scratch_path("some"), "layers.2.block_sparse_moe.experts.5.w3");
    configure(config, "mixtral", scratch_path("some"), "");
    refuse(config, TSR_EDATA,
           (const char *const[MOST_WORDS]){"layers.2.block_sparse_moe.experts.5.w3"});
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_resume, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_round_trip, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_linears, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_beside, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_refused_keys, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_refused_files, scratch_setup, scratch_teardown),
    };
    job_choose_backend(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
