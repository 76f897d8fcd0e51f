#include "support/folder.h"

#include "io/json.h"
#include "io/peft.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* Into a directory that is made if need be. */
static tsr_status write_peft(const char *directory, const tsr_peft_config *config,
                             const tsr_peft_tensor *tensors, uint64_t count)
{
    mkdir(directory, 0777);
    tsr_folder *folder = open_folder(directory);
    tsr_status status = tsr_peft_write(folder, config, tensors, count);
    tsr_folder_close(folder);
    return status;
}

#define TRACES TSR_SOURCE_DIR "/tests/golden/traces/"

static void test_patterns(void **state)
{
    (void)state;
    tsr_peft *peft;
    assert_int_equal(tsr_peft_open(&peft, TRACES "init/dora_patterns"), TSR_OK);
    const tsr_peft_config *c = tsr_peft_config_of(peft);
    assert_string_equal(c->base_model_name_or_path, "tiny-llama");
    assert_int_equal(c->r, 16);
    assert_true(c->lora_alpha == 32 && c->lora_dropout == 0);
    assert_true(c->use_dora && !c->use_rslora && !c->all_linear);
    assert_int_equal(c->target.count, 4);
    assert_string_equal(c->target.names[0], "up_proj");
    assert_null(c->target.regex);
    assert_int_equal(c->exclude.count, 0);
    assert_int_equal(c->rank_pattern_count, 3);
    assert_string_equal(c->rank_pattern[0].key, "down_proj");
    assert_true(c->rank_pattern[1].value == 32);
    assert_int_equal(c->alpha_pattern_count, 2);
    assert_string_equal(c->alpha_pattern[1].key, "up_proj");
    assert_null(c->layers_to_transform);
    assert_int_equal(tsr_peft_module_count(peft), 24);
    const tsr_peft_module *m = tsr_peft_module_find(peft, "model.layers.0.self_attn.q_proj");
    assert_non_null(m);
    assert_int_equal(m->r, 32);
    assert_int_equal(m->in_features, 256);
    assert_int_equal(m->out_features, 256);
    assert_int_equal(m->a->dtype, TSR_BF16);
    assert_int_equal(m->magnitude->dtype, TSR_F32);
    assert_null(tsr_peft_module_find(peft, "model.layers.0.self_attn.k_proj"));
    assert_null(tsr_peft_module_at(peft, 24));
    tsr_peft_close(peft);
    tsr_peft_close(NULL);
}

static const char *const directories[] = {
    "init/dora_patterns", "init/dora_r8",        "init/lora_r4_attention",
    "init/lora_r8",       "init/rslora_r16",     "a_lora/final",
    "c1_dora/final",      "g_lora_packed/final", "../families/qwen3_moe/b_lora_experts/init",
};

/* Reads what PEFT wrote and writes it again: the configuration must be the same text, and the
 * weights the same bytes where PEFT saved F32. */
static void round_trip(const char *directory)
{
    char path[512];
    tsr_peft *peft;
    uint64_t count = 0, bytes, expected_bytes;
    snprintf(path, sizeof path, TRACES "%s", directory);
    assert_int_equal(tsr_peft_open(&peft, path), TSR_OK);
    uint64_t modules = tsr_peft_module_count(peft);
    tsr_peft_tensor *tensors = calloc(3 * modules, sizeof *tensors);
    assert_non_null(tensors);
    for (uint64_t i = 0; i < modules; i++) {
        const tsr_peft_module *m = tsr_peft_module_at(peft, i);
        const tsr_tensor *parts[] = {m->a, m->b, m->magnitude};
        for (int part = 0; part < 3 && parts[part]; part++) {
            char *name;
            float *data = malloc(parts[part]->element_count * sizeof *data);
            assert_non_null(data);
            assert_int_equal(tsr_peft_tensor_name(&name, m->path, (tsr_peft_part)part), TSR_OK);
            assert_string_equal(name, parts[part]->name);
            assert_int_equal(
                tsr_safetensors_read_f32(data, parts[part], 0, parts[part]->element_count), TSR_OK);
            tensors[count++] = (tsr_peft_tensor){
                name, parts[part]->ndim, {parts[part]->shape[0], parts[part]->shape[1]}, data};
        }
    }
    assert_int_equal(write_peft(scratch_path("out"), tsr_peft_config_of(peft), tensors, count),
                     TSR_OK);
    assert_int_equal(count_entries(scratch_path("out")), 3);

    snprintf(path, sizeof path, TRACES "%s/adapter_config.json", directory);
    char *expected = read_whole(&expected_bytes, path);
    char *got = read_whole(&bytes, scratch_path("out/adapter_config.json"));
    assert_string_equal(got, expected);
    free(expected);
    free(got);
    snprintf(path, sizeof path, TRACES "%s/adapter_model.safetensors", directory);
    if (strstr(directory, "final")) {
        expected = read_whole(&expected_bytes, path);
        got = read_whole(&bytes, scratch_path("out/adapter_model.safetensors"));
        assert_int_equal(bytes, expected_bytes);
        assert_memory_equal(got, expected, bytes);
        free(expected);
        free(got);
    }
    tsr_peft *again;
    assert_int_equal(tsr_peft_open(&again, scratch_path("out")), TSR_OK);
    assert_int_equal(tsr_peft_module_count(again), modules);
    assert_int_equal(tsr_peft_module_at(again, 0)->a->dtype, TSR_F32);
    tsr_peft_close(again);
    for (uint64_t i = 0; i < count; i++) {
        free((void *)tensors[i].name);
        free((void *)tensors[i].data);
    }
    free(tensors);
    tsr_peft_close(peft);
}

static void test_round_trips(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof directories / sizeof *directories; i++)
        round_trip(directories[i]);
}

static tsr_status parse(tsr_peft_config *out, const char *text)
{
    return tsr_peft_config_parse(out, text, strlen(text), "adapter_config.json");
}

static void test_other_forms(void **state)
{
    (void)state;
    tsr_peft_config c;
    assert_int_equal(parse(&c, "{\"peft_type\":\"LORA\",\"target_modules\":\"all-linear\",\"r\":4,"
                               "\"layers_to_transform\":2,\"layers_pattern\":\"layers\","
                               "\"future_field\":null,\"task_type\":null,\"inference_mode\":false,"
                               "\"init_lora_weights\":\"gaussian\",\"modules_to_save\":[],"
                               "\"peft_version\":\"0.9.0\",\"lora_alpha\":0.5}"),
                     TSR_OK);
    assert_true(c.all_linear && !c.target.regex && c.lora_alpha == 0.5);
    assert_int_equal(c.layer_count, 1);
    assert_int_equal(c.layers_to_transform[0], 2);
    tsr_peft_config_free(&c);
    assert_int_equal(parse(&c, "{\"peft_type\":\"LORA\",\"target_modules\":[\"q_proj\"],"
                               "\"layers_to_transform\":[]}"),
                     TSR_OK);
    assert_true(!c.layers_to_transform && c.layer_count == 0); /* all layers */
    tsr_peft_config_free(&c);
    assert_int_equal(parse(&c, "{\"peft_type\":\"LORA\",\"target_modules\":\".*\\\\.q_proj\","
                               "\"exclude_modules\":[\"layers.0.self_attn.q_proj\"]}"),
                     TSR_OK);
    assert_string_equal(c.target.regex, ".*\\.q_proj");
    assert_int_equal(c.r, 8);
    assert_true(c.lora_alpha == 8);
    assert_int_equal(c.exclude.count, 1);
    tsr_peft_config_free(&c);
    assert_int_equal(parse(&c, "{\"peft_type\":\"LORA\",\"target_modules\":null,"
                               "\"target_parameters\":[\"experts.up\",\"experts.down\"]}"),
                     TSR_OK);
    assert_true(!c.all_linear && !c.target.count && c.parameter.count == 2);
    assert_string_equal(c.parameter.names[1], "experts.down");
    char *text;
    assert_int_equal(tsr_peft_config_format(&text, &c), TSR_OK);
    assert_non_null(
        strstr(text, "\"target_parameters\": [\n    \"experts.up\",\n    \"experts.down\"\n  ]"));
    free(text);
    tsr_peft_config_free(&c);
    tsr_peft_config_free(NULL);
}

/* Numbers keep their value with as few digits as that needs; text is escaped as Python does. */
/* A reward model's task comes back; any other is CAUSAL_LM, or none. */
static void test_tasks(void **state)
{
    (void)state;
    char *names[] = {"q"};
    for (int scores = 0; scores < 2; scores++) {
        tsr_peft_config c = {.r = 4, .lora_alpha = 8, .target = {names, 1, NULL}, .scores = scores};
        tsr_peft_config back;
        char *text;
        assert_int_equal(tsr_peft_config_format(&text, &c), TSR_OK);
        assert_non_null(
            strstr(text, scores ? "\"task_type\": \"SEQ_CLS\"" : "\"task_type\": \"CAUSAL_LM\""));
        assert_int_equal(parse(&back, text), TSR_OK);
        assert_int_equal(back.scores, scores);
        tsr_peft_config_free(&back);
        free(text);
    }
}

static void test_format_numbers(void **state)
{
    (void)state;
    tsr_peft_pattern alpha[] = {{"q", 0.1}, {"k", 1.0 / 3}};
    char *names[] = {"q", "k"};
    tsr_peft_config c = {.base_model_name_or_path = "mod\xc3\xa8le",
                         .r = 4,
                         .lora_alpha = 16,
                         .lora_dropout = 0.05,
                         .target = {names, 2, NULL},
                         .alpha_pattern = alpha,
                         .alpha_pattern_count = 1};
    char *text;
    assert_int_equal(tsr_peft_config_format(&text, &c), TSR_OK);
    assert_non_null(strstr(text, "\"lora_dropout\": 0.05,\n"));
    assert_non_null(strstr(text, "\"q\": 0.1"));
    assert_non_null(strstr(text, "\"lora_alpha\": 16,\n"));
    assert_non_null(strstr(text, "mod\\u00E8le"));
    free(text);
    c.alpha_pattern_count = 2;
    tsr_peft_config back;
    assert_int_equal(tsr_peft_config_format(&text, &c), TSR_OK);
    assert_int_equal(parse(&back, text), TSR_OK);
    assert_true(back.lora_dropout == 0.05);
    assert_string_equal(back.base_model_name_or_path, "mod\xc3\xa8le");
    assert_true(back.alpha_pattern[0].value + back.alpha_pattern[1].value == 0.1 + 1.0 / 3);
    free(text);
    tsr_peft_config_free(&back);
    /* what a job.yaml may say, to its ends */
    c.lora_alpha = 1e-300;
    c.lora_dropout = 0.9999999999;
    assert_int_equal(tsr_peft_config_format(&text, &c), TSR_OK);
    assert_int_equal(parse(&back, text), TSR_OK);
    assert_true(back.lora_alpha == 1e-300 && back.lora_dropout == 0.9999999999);
    free(text);
    tsr_peft_config_free(&back);
    names[1] = "\xff";
    assert_int_equal(tsr_peft_config_format(&text, &c), TSR_EINVAL);
}

#define WITH(more) "{\"peft_type\":\"LORA\",\"target_modules\":[\"q_proj\"]" more "}"

static const struct {
    const char *what, *text;
    const char *const words[MOST_WORDS];
} broken[] = {
    {"not JSON", "{\"r\": 8,", {"line 1"}},
    {"a list", "[]", {"a list", "an object"}},
    {"no peft_type", "{\"target_modules\":[\"q\"]}", {"'peft_type'", "missing"}},
    {"other method",
     "{\"peft_type\":\"IA3\",\"target_modules\":[\"q\"]}",
     {"'peft_type'", "IA3", "LORA"}},
    {"no targets", "{\"peft_type\":\"LORA\"}", {"'target_modules'"}},
    {"empty targets", "{\"peft_type\":\"LORA\",\"target_modules\":[]}", {"'target_modules'"}},
    {"targets of numbers",
     "{\"peft_type\":\"LORA\",\"target_modules\":[1]}",
     {"'target_modules'", "1"}},
    {"rank 0", WITH(",\"r\":0"), {"'r'", "0", "from 1"}},
    {"rank as text", WITH(",\"r\":\"8\""), {"'r'", "\"8\"", "integer"}},
    {"alpha", WITH(",\"lora_alpha\":-1"), {"'lora_alpha'", "-1"}},
    {"dropout", WITH(",\"lora_dropout\":1.0"), {"'lora_dropout'", "1.0"}},
    {"bias", WITH(",\"bias\":\"all\""), {"'bias'", "\"all\"", "\"none\""}},
    {"lora_bias", WITH(",\"lora_bias\":true"), {"'lora_bias'", "true", "false"}},
    {"fan_in_fan_out", WITH(",\"fan_in_fan_out\":true"), {"'fan_in_fan_out'", "true"}},
    {"a token twice",
     WITH(",\"trainable_token_indices\":[3,5,3]"),
     {"trainable_token_indices", "3 twice"}},
    {"tokens of another table",
     WITH(",\"trainable_token_indices\":{\"norm\":[3]}"),
     {"trainable_token_indices", "norm", "embed_tokens or lm_head"}},
    {"modules_to_save",
     WITH(",\"modules_to_save\":\"lm_head\""),
     {"'modules_to_save'", "lm_head", "list"}},
    {"pissa", WITH(",\"init_lora_weights\":\"pissa\""), {"'init_lora_weights'", "pissa"}},
    {"qalora", WITH(",\"use_qalora\":true"), {"'use_qalora'", "true"}},
    {"target_parameters",
     WITH(",\"target_parameters\":\"w\""),
     {"'target_parameters'", "\"w\"", "list"}},
    {"parameters of numbers", WITH(",\"target_parameters\":[1]"), {"'target_parameters'", "1"}},
    {"other task",
     WITH(",\"task_type\":\"TOKEN_CLS\""),
     {"'task_type'", "TOKEN_CLS", "CAUSAL_LM", "SEQ_CLS"}},
    {"layers_pattern", WITH(",\"layers_pattern\":\"h\""), {"'layers_pattern'", "\"h\""}},
    {"unknown field", WITH(",\"use_magic\":true"), {"'use_magic'", "true", "0.21"}},
    {"rank pattern",
     WITH(",\"rank_pattern\":{\"q_proj\":2.5}"),
     {"rank_pattern", "'q_proj'", "2.5"}},
    {"alpha pattern",
     WITH(",\"alpha_pattern\":{\"q_proj\":0}"),
     {"alpha_pattern", "'q_proj'", "0"}},
    {"duplicate pattern", WITH(",\"rank_pattern\":{\"q\":2,\"q\":4}"), {"duplicate", "q"}},
    {"layers", WITH(",\"layers_to_transform\":[-1]"), {"'layers_to_transform'", "-1"}},
    {"layers with a regex",
     "{\"peft_type\":\"LORA\",\"target_modules\":\".*q\",\"layers_to_transform\":[1]}",
     {"layers_to_transform", "regular expression", ".*q"}},
};

static void test_broken_configs(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        tsr_peft_config c = {.r = 77};
        check_error(broken[i].what, parse(&c, broken[i].text), TSR_EDATA, broken[i].words);
        assert_non_null(strstr(tsr_last_error(), "adapter_config.json"));
        assert_int_equal(c.r, 77); /* untouched */
    }
}

#define P "base_model.model.m.q_proj"
#define T(name, dtype, shape, begin, end)                                                          \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" #begin        \
    "," #end "]}"

static const struct {
    const char *what, *header;
    uint64_t data_bytes;
    bool dora;
    const char *const words[MOST_WORDS];
} broken_weights[] = {
    {"no tensor", "{}", 0, false, {"no tensor"}},
    {"no prefix",
     "{" T("m.q_proj.lora_A.weight", "F32", "2,4", 0, 32) "}",
     32,
     false,
     {"'m.q_proj.lora_A.weight'", "base_model.model."}},
    {"embedding",
     "{" T("base_model.model.m.lora_embedding_A", "F32", "2,4", 0, 32) "}",
     32,
     false,
     {"'m'", "lora_B"}},
    {"other part",
     "{" T("base_model.model.m.lora_gate", "F32", "2,4", 0, 32) "}",
     32,
     false,
     {"lora_gate", "not understood"}},
    {"no B",
     "{" T(P ".lora_A.weight", "F32", "2,4", 0, 32) "}",
     32,
     false,
     {"'m.q_proj'", "lora_B"}},
    {"no A",
     "{" T(P ".lora_B.weight", "F32", "4,2", 0, 32) "}",
     32,
     false,
     {"'m.q_proj'", "lora_A"}},
    {"dtype",
     "{" T(P ".lora_A.weight", "I32", "2,4", 0, 32) "}",
     32,
     false,
     {"lora_A", "I32", "BF16"}},
    {"dimensions",
     "{" T(P ".lora_A.weight", "F32", "8", 0, 32) "}",
     32,
     false,
     {"lora_A", "[8]", "[r, in]"}},
    {"empty", "{" T(P ".lora_A.weight", "F32", "0,8", 0, 0) "}", 0, false, {"lora_A", "[0, 8]"}},
    {"two ranks",
     "{" T(P ".lora_A.weight", "F32", "2,4", 0, 32) "," T(P ".lora_B.weight", "F32", "3,4", 32,
                                                          80) "}",
     80,
     false,
     {"'m.q_proj'", "[2, 4]", "[3, 4]", "rank"}},
    {"magnitude without use_dora",
     "{" T(P ".lora_A.weight", "F32", "2,4", 0, 32) "," T(P ".lora_B.weight", "F32", "3,2", 32,
                                                          56) "," T(P ".lora_magnitude_vector",
                                                                    "F32", "3", 56, 68) "}",
     68,
     false,
     {"'m.q_proj'", "lora_magnitude_vector", "use_dora is false"}},
    {"use_dora without magnitude",
     "{" T(P ".lora_A.weight", "F32", "2,4", 0, 32) "," T(P ".lora_B.weight", "F32", "3,2", 32,
                                                          56) "}",
     56,
     true,
     {"'m.q_proj'", "lora_magnitude_vector", "use_dora is true"}},
    {"magnitude of another length",
     "{" T(P ".lora_A.weight", "F32", "2,4", 0, 32) "," T(P ".lora_B.weight", "F32", "3,2", 32,
                                                          56) "," T(P ".lora_magnitude_vector",
                                                                    "F32", "4", 56, 72) "}",
     72,
     true,
     {"'m.q_proj'", "4 elements", "[3, 2]"}},
};

static void test_broken_weights(void **state)
{
    for (size_t i = 0; i < sizeof broken_weights / sizeof *broken_weights; i++) {
        tsr_peft *peft = NULL;
        write_text(scratch_path("adapter_config.json"),
                   broken_weights[i].dora ? WITH(",\"use_dora\":true") : WITH(""));
        write_safetensors(scratch_path("adapter_model.safetensors"), broken_weights[i].header,
                          TRUE_LENGTH, broken_weights[i].data_bytes);
        check_error(broken_weights[i].what, tsr_peft_open(&peft, *state), TSR_EDATA,
                    broken_weights[i].words);
        assert_non_null(strstr(tsr_last_error(), "adapter_model.safetensors"));
        assert_null(peft);
    }
}

static void test_directories(void **state)
{
    tsr_peft *peft = NULL;
    check_error("empty", tsr_peft_open(&peft, *state), TSR_EDATA,
                (const char *const[MOST_WORDS]){"adapter_config.json", "No such file"});
    check_error("absent", tsr_peft_open(&peft, scratch_path("none")), TSR_EDATA,
                (const char *const[MOST_WORDS]){"/none", "No such file"});
    write_text(scratch_path("adapter_model.bin"), "");
    check_error("pickle", tsr_peft_open(&peft, *state), TSR_EDATA,
                (const char *const[MOST_WORDS]){"adapter_model.bin", "save_pretrained"});
    check_error("file", tsr_peft_open(&peft, scratch_path("adapter_model.bin")), TSR_EDATA,
                (const char *const[MOST_WORDS]){"not a directory"});
}

/* A failed write leaves what was there, and nothing else. */
static void test_failed_writes(void **state)
{
    (void)state;
    static const float data[4096];
    char *names[] = {"q_proj"};
    const tsr_peft_config c = {.r = 2, .lora_alpha = 4, .target = {names, 1, NULL}};
    tsr_peft_tensor tensors[] = {{P ".lora_A.weight", 2, {2, 4}, data},
                                 {P ".lora_B.weight", 2, {4, 2}, data}};
    const char *out = scratch_path("out");
    uint64_t bytes;
    assert_int_equal(write_peft(out, &c, tensors, 2), TSR_OK);
    char *before = read_whole(&bytes, scratch_path("out/adapter_model.safetensors"));
    free(before);

    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 4096;
    signal(SIGXFSZ, SIG_IGN);
    tensors[0].shape[1] = 2048;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    tsr_status status = write_peft(out, &c, tensors, 2);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    check_error("disk full", status, TSR_EIO,
                (const char *const[MOST_WORDS]){"adapter_model.safetensors", "writing failed"});
    assert_int_equal(count_entries(out), 3);
    uint64_t after_bytes;
    char *after = read_whole(&after_bytes, scratch_path("out/adapter_model.safetensors"));
    assert_int_equal(after_bytes, bytes);
    free(after);

    tensors[0].ndim = 3;
    check_error("dimensions", write_peft(out, &c, tensors, 2), TSR_EINVAL,
                (const char *const[MOST_WORDS]){P ".lora_A.weight", "3 dimensions"});
    assert_int_equal(count_entries(out), 3);

    /* The last name cannot be taken: then none appears. */
    tensors[0].ndim = 2;
    assert_int_equal(mkdir(scratch_path("blocked"), 0777), 0);
    assert_int_equal(mkdir(scratch_path("blocked/adapter_model.safetensors"), 0777), 0);
    check_error("blocked", write_peft(scratch_path("blocked"), &c, tensors, 2), TSR_EIO,
                (const char *const[MOST_WORDS]){"adapter_model.safetensors", "directory"});
    assert_int_equal(count_entries(scratch_path("blocked")), 1);
}

static void test_card(void **state)
{
    (void)state;
    static const float data[8];
    char *names[] = {"q_proj"};
    tsr_peft_config c = {.r = 2,
                         .lora_alpha = 4,
                         .use_dora = true,
                         .base_model_name_or_path = "models/a \"b\"",
                         .target = {names, 1, NULL}};
    const tsr_peft_tensor tensors[] = {{P ".lora_A.weight", 2, {2, 4}, data},
                                       {P ".lora_B.weight", 2, {4, 2}, data},
                                       {P ".lora_magnitude_vector", 1, {4}, data}};
    uint64_t bytes;
    assert_int_equal(write_peft(scratch_path("out"), &c, tensors, 3), TSR_OK);
    char *card = read_whole(&bytes, scratch_path("out/README.md"));
    assert_ptr_equal(strstr(card, "---\nbase_model: \"models/a \\\"b\\\"\"\nlibrary_name: peft\n"),
                     card);
    assert_non_null(strstr(card, "- \"base_model:adapter:models/a \\\"b\\\"\"\n- dora\n- lora\n"));
    assert_non_null(strstr(card, "PeftModel.from_pretrained"));
    free(card);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_patterns),
        cmocka_unit_test_setup_teardown(test_round_trips, scratch_setup, scratch_teardown),
        cmocka_unit_test(test_other_forms),
        cmocka_unit_test(test_tasks),
        cmocka_unit_test(test_format_numbers),
        cmocka_unit_test(test_broken_configs),
        cmocka_unit_test_setup_teardown(test_broken_weights, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_directories, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_failed_writes, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_card, scratch_setup, scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
