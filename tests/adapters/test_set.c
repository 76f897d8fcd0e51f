/*
 * Which modules get which adapter: PEFT's matching rules, and every refusal by its words.
 */
#include "adapters/set.h"
#include "base/log.h"
#include "model/arch/families.h"
#include "model/layout.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LAYERS  12
#define KINDS   7
#define MODULES (LAYERS * (KINDS + 1) + 3)

static char paths[MODULES][64];
static tsr_adapter_module modules[MODULES];
static char warnings[4096];

static void add_warning(void *user, tsr_log_level level, const char *line)
{
    (void)user;
    assert_int_equal(level, TSR_LOG_WARNING);
    strncat(warnings, line, sizeof warnings - strlen(warnings) - 2);
    strcat(warnings, "\n");
}

static int make_modules(void **state)
{
    (void)state;
    static const char *const kind[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                                       "self_attn.o_proj", "mlp.gate_proj",    "mlp.up_proj",
                                       "mlp.down_proj",    "input_layernorm"};
    uint64_t n = 0;
    snprintf(paths[n++], 64, "model.embed_tokens");
    for (int layer = 0; layer < LAYERS; layer++)
        for (int k = 0; k < KINDS + 1; k++) {
            snprintf(paths[n], 64, "model.layers.%d.%s", layer, kind[k]);
            modules[n++] = (tsr_adapter_module){NULL, 256, 704, k < KINDS};
        }
    snprintf(paths[n++], 64, "model.norm");
    snprintf(paths[n++], 64, "lm_head");
    assert_int_equal(n, MODULES);
    for (uint64_t i = 0; i < n; i++)
        modules[i].path = paths[i];
    tsr_log_set(add_warning, NULL, TSR_LOG_WARNING);
    return 0;
}

static tsr_adapter_spec plain(void)
{
    warnings[0] = 0;
    return (tsr_adapter_spec){.r = 8, .alpha = 16};
}

static tsr_adapter_set make(const tsr_adapter_spec *spec)
{
    tsr_adapter_set set;
    if (tsr_adapter_set_make(&set, spec, modules, MODULES) < 0)
        fail_msg("%s", tsr_last_error());
    return set;
}

static const tsr_adapter *find(const tsr_adapter_set *set, const char *path)
{
    for (uint64_t i = 0; i < set->count; i++)
        if (!strcmp(modules[set->adapter[i].module].path, path))
            return &set->adapter[i];
    return NULL;
}

static void expect_targets(const tsr_adapter_set *set, const char *joined)
{
    char found[512] = "";
    for (uint64_t i = 0; i < set->target_count; i++) {
        strcat(found, i ? "," : "");
        strcat(found, set->target[i]);
    }
    assert_string_equal(found, joined);
}

static void refuse(const tsr_adapter_spec *spec, const char *words)
{
    tsr_adapter_set set = {.count = 77};
    assert_int_equal(tsr_adapter_set_make(&set, spec, modules, MODULES), TSR_ECONFIG);
    assert_int_equal(set.count, 77);
    if (!strstr(tsr_last_error(), words))
        fail_msg("\"%s\" is not in: %s", words, tsr_last_error());
}

#define NAMES(...)                                                                                 \
    {                                                                                              \
        .names = (const char *const[]){__VA_ARGS__},                                               \
        .count = sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)                       \
    }

static void test_all_linear(void **state)
{
    (void)state;
    tsr_adapter_spec spec = plain();
    tsr_adapter_set set = make(&spec);
    assert_int_equal(set.count, LAYERS * KINDS);
    expect_targets(&set, "down_proj,gate_proj,k_proj,o_proj,q_proj,up_proj,v_proj");
    for (uint64_t i = 0; i < set.count; i++) {
        assert_true(modules[set.adapter[i].module].linear);
        assert_true(set.adapter[i].r == 8 && set.adapter[i].scale == 2 && !set.adapter[i].dora);
        assert_true(i == 0 || set.adapter[i].module > set.adapter[i - 1].module);
    }
    tsr_adapter_set_free(&set);
    spec.all_linear = true;
    spec.rslora = spec.dora = true;
    spec.r = 10;
    set = make(&spec);
    assert_true(set.adapter[5].scale == 16 / sqrt(10) && set.adapter[5].dora);
    assert_string_equal(warnings, "");
    tsr_adapter_set_free(&set);
    tsr_adapter_set_free(&set);
    tsr_adapter_set_free(NULL);
}

static void test_list(void **state)
{
    (void)state;
    tsr_adapter_spec spec = plain();
    spec.target = (tsr_adapter_match)NAMES("v_proj", "self_attn.q_proj", "v_proj", "proj", "c_attn",
                                           "model.layers.3.mlp.up_proj");
    tsr_adapter_set set = make(&spec);
    assert_int_equal(set.count, 2 * LAYERS + 1);
    assert_non_null(find(&set, "model.layers.3.mlp.up_proj"));
    assert_null(find(&set, "model.layers.4.mlp.up_proj"));
    expect_targets(&set, "c_attn,model.layers.3.mlp.up_proj,proj,self_attn.q_proj,v_proj");
    assert_non_null(strstr(warnings, "\"c_attn\" matches no module; candidates: down_proj, "));
    assert_non_null(strstr(warnings, "\"proj\" matches no module")); /* not a substring's end */
    tsr_adapter_set_free(&set);
}

static void test_regex_and_exclude(void **state)
{
    (void)state;
    tsr_adapter_spec spec = plain();
    spec.target.regex = "model\\.layers\\.(1|11)\\..*(q|v)_proj";
    tsr_adapter_set set = make(&spec);
    assert_int_equal(set.count, 4);
    assert_int_equal(set.target_count, 0);
    tsr_adapter_set_free(&set);
    spec.target.regex =
        "model\\.layers\\.1|.*\\.1\\.mlp\\.up_proj"; /* alternatives: all must match */
    set = make(&spec);
    assert_int_equal(set.count, 1);
    tsr_adapter_set_free(&set);
    spec.target.regex = ".*";
    spec.exclude = (tsr_adapter_match)NAMES("lm_head", "embed_tokens", "norm", "input_layernorm",
                                            "layers.0.mlp.up_proj");
    set = make(&spec);
    assert_int_equal(set.count, LAYERS * KINDS - 1);
    tsr_adapter_set_free(&set);
    spec = plain();
    spec.exclude.regex = ".*mlp.*";
    set = make(&spec);
    assert_int_equal(set.count, LAYERS * 4);
    assert_string_equal(warnings, "");
    tsr_adapter_set_free(&set);
}

/* Who excludes a module that holds linears, and no linear, does not leave them out; one that could be no
 * target is left out anyway. */
static void test_idle_exclude(void **state)
{
    (void)state;
    tsr_adapter_module *all;
    uint64_t count;
    tsr_model_config config = {.arch = &tsr_arch_llama,
                               .hidden_size = 32,
                               .intermediate_size = 64,
                               .layer_count = 3,
                               .head_count = 4,
                               .kv_head_count = 2,
                               .head_dim = 8,
                               .vocab_size = 100};
    static const struct {
        const char *name, *regex, *warning; /* NULL: none */
    } cases[] = {
        {"k_proj", NULL, NULL},
        {"lm_head", NULL, NULL},
        {"input_layernorm", NULL, NULL},
        {"k_porj", NULL, "exclude_modules: \"k_porj\" matches no module; candidates: down_proj, "},
        {"mlp", NULL, "\"mlp\" matches no module"},
        {"model", NULL, "\"model\" matches no module"},
        {NULL, ".*layers\\.0\\..*", NULL},
        {NULL, "mlp", "exclude_modules: \"mlp\" matches no module"},
        {NULL, "layers\\.0.*", "matches no module"},
    };
    assert_int_equal(tsr_layout_modules(&all, &count, &config), TSR_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsr_adapter_set set;
        tsr_adapter_spec spec = plain();
        spec.exclude = (tsr_adapter_match){&cases[i].name, cases[i].name != NULL, cases[i].regex};
        assert_int_equal(tsr_adapter_set_make(&set, &spec, all, count), TSR_OK);
        if (cases[i].warning ? !strstr(warnings, cases[i].warning) : *warnings)
            fail_msg("%s%s: %s", cases[i].name, cases[i].regex, warnings);
        tsr_adapter_set_free(&set);
    }
    /* a target that holds linears is taken away */
    tsr_adapter_set set;
    tsr_adapter_spec spec = plain();
    spec.target = (tsr_adapter_match)NAMES("q_proj", "mlp");
    spec.exclude = (tsr_adapter_match)NAMES("mlp");
    assert_int_equal(tsr_adapter_set_make(&set, &spec, all, count), TSR_OK);
    assert_string_equal(warnings, "");
    tsr_adapter_set_free(&set);
    tsr_layout_modules_free(all, count);
}

/* 256 x 704 each. */
static void test_too_much_rank(void **state)
{
    (void)state;
    tsr_adapter_spec spec = plain();
    const tsr_adapter_pattern rank[] = {{"layers.3.mlp.up_proj", 257}};
    spec.r = 256;
    tsr_adapter_set set = make(&spec);
    assert_string_equal(warnings, "");
    tsr_adapter_set_free(&set);
    spec.rank_pattern = rank, spec.rank_pattern_count = 1;
    set = make(&spec);
    assert_string_equal(warnings,
                        "lora_r: a rank of 257 is more than the smaller side of 1 linear, "
                        "model.layers.3.mlp.up_proj (704 x 256), and no update of a matrix has "
                        "more: the rest only takes memory\n");
    tsr_adapter_set_free(&set);
    spec = plain();
    spec.r = 300;
    set = make(&spec);
    assert_non_null(
        strstr(warnings, "of 84 linears, such as model.layers.0.self_attn.q_proj (704"));
    tsr_adapter_set_free(&set);
}

static void test_layers(void **state)
{
    (void)state;
    tsr_adapter_spec spec = plain();
    const int64_t layers[] = {1, 4, 11};
    spec.layers = layers;
    spec.layer_count = 3;
    tsr_adapter_set set = make(&spec);
    assert_int_equal(set.count, 3 * KINDS);
    assert_non_null(find(&set, "model.layers.11.mlp.up_proj"));
    assert_null(find(&set, "model.layers.10.mlp.up_proj"));
    tsr_adapter_set_free(&set);
    const int64_t beyond[] = {1, 12}, below[] = {-1};
    spec.layers = beyond, spec.layer_count = 2;
    refuse(&spec, "layer 12 is not in the model, whose layers are 0 to 11");
    spec.layers = below, spec.layer_count = 1;
    refuse(&spec, "layer -1");
    spec.layers = layers, spec.layer_count = 0;
    refuse(&spec, "matches no linear of the model (after ");
    spec.layer_count = 3;
    spec.target.regex = ".*q_proj";
    refuse(&spec, "layers_to_transform cannot be combined with a regular expression");
}

static void test_patterns(void **state)
{
    (void)state;
    tsr_adapter_spec spec = plain();
    const tsr_adapter_pattern rank[] = {{"q_proj", 4},
                                        {"layers\\.1\\.mlp\\.(up|down)_proj", 32},
                                        {"model.layers.1.mlp.up_proj", 32},
                                        {"proj", 3},
                                        {"layers.1", 7}};
    const tsr_adapter_pattern alpha[] = {{".*\\.v_proj", 8.5}};
    spec.rank_pattern = rank, spec.rank_pattern_count = 5;
    spec.alpha_pattern = alpha, spec.alpha_pattern_count = 1;
    tsr_adapter_set set = make(&spec);
    assert_int_equal(find(&set, "model.layers.7.self_attn.q_proj")->r, 4);
    assert_true(find(&set, "model.layers.7.self_attn.q_proj")->scale == 4);
    assert_int_equal(find(&set, "model.layers.1.mlp.up_proj")->r, 32);
    assert_int_equal(find(&set, "model.layers.11.mlp.up_proj")->r, 8);
    assert_true(find(&set, "model.layers.2.self_attn.v_proj")->alpha == 8.5);
    assert_true(find(&set, "model.layers.2.self_attn.v_proj")->scale == 8.5 / 8);
    assert_non_null(strstr(warnings, "rank_pattern: the key \"proj\" matches no module"));
    assert_non_null(strstr(warnings, "rank_pattern: the key \"layers.1\" matches no module"));
    tsr_adapter_set_free(&set);
    const tsr_adapter_pattern conflict[] = {{"q_proj", 4}, {"layers\\.3\\.self_attn\\..*", 6}};
    spec.rank_pattern = conflict, spec.rank_pattern_count = 2;
    refuse(&spec, "\"q_proj\" (4) and \"layers\\.3\\.self_attn\\..*\" (6) both match "
                  "model.layers.3.self_attn.q_proj");
    spec.rank_pattern_count = 1;
    spec.alpha_pattern = conflict, spec.alpha_pattern_count = 2;
    refuse(&spec, "alpha_pattern: the keys");
    /* Keys that only meet on modules without an adapter do not conflict. */
    spec.target = (tsr_adapter_match)NAMES("up_proj", "q_proj");
    spec.exclude.regex = "model\\.layers\\.3\\..*";
    set = make(&spec);
    tsr_adapter_set_free(&set);
}

static void test_refusals(void **state)
{
    (void)state;
    tsr_adapter_spec spec = plain();
    spec.target = (tsr_adapter_match)NAMES("query", "value");
    refuse(&spec, "candidates: down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj");
    spec.target = (tsr_adapter_match)NAMES("q_proj", "lm_head");
    refuse(&spec, "\"lm_head\" means lm_head, which is not a linear of a decoder layer");
    spec.target = (tsr_adapter_match)NAMES("embed_tokens");
    refuse(&spec, "embed_tokens");
    spec.target = (tsr_adapter_match)NAMES("input_layernorm");
    refuse(&spec, "model.layers.0.input_layernorm");
    spec = plain(), spec.target.regex = ".*(q_proj|norm)";
    refuse(&spec, "norm, which is not a linear");
    spec = plain(), spec.target.regex = "(q_proj";
    refuse(&spec, "\"(q_proj\" is not a regular expression");
    spec = plain(), spec.exclude.regex = "[";
    refuse(&spec, "exclude_modules: \"[\"");
    spec = plain(), spec.target.regex = "((\\w|\\.)+)+#";
    refuse(&spec, "lora_target_modules: matching \"((\\w|\\.)+)+#\" against "
                  "model.layers.0.self_attn.q_proj was "
                  "given up, since it goes back in the text too often");
    spec = plain(), spec.target.regex = "q_proj"; /* a full match, so nothing */
    refuse(&spec,
           "\"q_proj\" (a regular expression of whole names; a list is written [a, b]) matches no");
    spec = plain(), spec.exclude.regex = ".*";
    refuse(&spec, "matches no linear");
    spec = plain(), spec.r = 0;
    refuse(&spec, "lora_r is 0");
    spec = plain(), spec.r = TSR_ADAPTER_MAX_RANK + 1;
    refuse(&spec, "lora_r is 8193");
    spec = plain(), spec.alpha = NAN;
    refuse(&spec, "lora_alpha");
    spec = plain(), spec.alpha = 0;
    refuse(&spec, "lora_alpha is 0");
    spec = plain(), spec.dropout = 1;
    refuse(&spec, "lora_dropout is 1");
    const tsr_adapter_pattern bad[] = {{"q_proj", 2.5}, {"(", 4}};
    spec = plain(), spec.rank_pattern = bad, spec.rank_pattern_count = 1;
    refuse(&spec, "rank_pattern q_proj is 2.5");
    spec.rank_pattern = bad + 1;
    refuse(&spec, "rank_pattern: \"(\" is not a regular expression");
}

#define Q "model.layers.2.self_attn.q_proj"

/* A name that is a module's whole path means it in whatever layer; the layers are for the others. */
static void test_layers_and_whole_paths(void **state)
{
    (void)state;
    tsr_adapter_spec spec = plain();
    const int64_t layers[] = {1};
    spec.layers = layers, spec.layer_count = 1;
    spec.target = (tsr_adapter_match)NAMES("v_proj", Q, "layers.3.self_attn.q_proj");
    tsr_adapter_set set = make(&spec);
    assert_int_equal(set.count, 2);
    assert_non_null(find(&set, "model.layers.1.self_attn.v_proj"));
    assert_non_null(find(&set, Q));
    tsr_adapter_set_free(&set);
    spec.target = (tsr_adapter_match)NAMES("v_proj", "embed_tokens", "norm");
    set = make(&spec); /* neither is in a layer */
    assert_int_equal(set.count, 1);
    tsr_adapter_set_free(&set);
    spec.target = (tsr_adapter_match)NAMES("v_proj", "lm_head");
    refuse(&spec, "\"lm_head\" means lm_head");
}

static const tsr_adapter_module *model_modules;
static uint64_t model_module_count;

static void take(tsr_adapter_match target, uint64_t count)
{
    tsr_adapter_spec spec = plain();
    tsr_adapter_set set;
    spec.target = target;
    if (tsr_adapter_set_make(&set, &spec, model_modules, model_module_count) < 0)
        fail_msg("%s", tsr_last_error());
    assert_int_equal(set.count, count);
    for (uint64_t i = 0; i < set.count; i++)
        assert_true(set.adapter[i].module < 3 * KINDS);
    tsr_adapter_set_free(&set);
}

static void leave(tsr_adapter_match target, const char *path)
{
    tsr_adapter_spec spec = plain();
    tsr_adapter_set set;
    char words[128];
    spec.target = target;
    assert_int_equal(tsr_adapter_set_make(&set, &spec, model_modules, model_module_count),
                     TSR_ECONFIG);
    snprintf(words, sizeof words, " means %s, which is not a linear", path);
    if (!strstr(tsr_last_error(), words))
        fail_msg("\"%s\" is not in: %s", words, tsr_last_error());
}

/* Beside the linears a table can have one, which all-linear never means; DoRA is for linears. */
static void take_table(const char *name, tsr_adapter_table table, uint64_t in, uint64_t out)
{
    tsr_adapter_spec spec = plain();
    tsr_adapter_set set;
    const char *names[] = {"q_proj", name};
    spec.target = (tsr_adapter_match){names, 2, NULL};
    assert_int_equal(tsr_adapter_set_make(&set, &spec, model_modules, model_module_count), TSR_OK);
    assert_int_equal(set.count, 3 + 1);
    assert_int_equal(set.adapter[3].table, table);
    assert_int_equal(model_modules[set.adapter[3].module].in_features, in);
    assert_int_equal(model_modules[set.adapter[3].module].out_features, out);
    tsr_adapter_set_free(&set);
    spec.dora = true;
    assert_int_equal(tsr_adapter_set_make(&set, &spec, model_modules, model_module_count),
                     TSR_ECONFIG);
    assert_non_null(strstr(tsr_last_error(), name));
    assert_non_null(strstr(tsr_last_error(), "use_dora"));
}

#define REGEX(expression) ((tsr_adapter_match){.regex = expression})
#define LIST(...)         ((tsr_adapter_match)NAMES(__VA_ARGS__))

/* PEFT cannot load an adapter whose targets mean a module that is no linear: all modules of a real
 * model are known. */
static void test_modules_of_a_model(void **state)
{
    (void)state;
    tsr_adapter_module *all;
    tsr_model_config config = {.arch = &tsr_arch_llama,
                               .hidden_size = 32,
                               .intermediate_size = 64,
                               .layer_count = 3,
                               .head_count = 4,
                               .kv_head_count = 2,
                               .head_dim = 8,
                               .vocab_size = 100};
    assert_int_equal(tsr_layout_modules(&all, &model_module_count, &config), TSR_OK);
    assert_int_equal(model_module_count, 3 * (7 + 6) + 6);
    model_modules = all;
    take((tsr_adapter_match){0}, 3 * KINDS);
    take(LIST("q_proj", "v_proj"), 6);
    take(LIST("model.layers.1.mlp.up_proj", "self_attn.o_proj"), 4);
    take(REGEX(".*\\.(q|v)_proj"), 6);
    take(REGEX(".*proj"), 3 * KINDS);
    take(REGEX("model\\.layers\\.[01]\\.mlp\\..*_proj"), 6);
    take(REGEX(".*self_attn\\..*"), 12);
    leave(REGEX(".*layers\\.[0-2]\\..*"), "model.layers.0.self_attn");
    leave(REGEX(".*layers\\.[0-2].*"), "model.layers.0");
    leave(REGEX(".*mlp.*"), "model.layers.0.mlp");
    leave(REGEX(".*mlp\\..*"), "model.layers.0.mlp.act_fn");
    leave(LIST("q_proj", "mlp"), "model.layers.0.mlp");
    leave(LIST("q_proj", "input_layernorm"), "model.layers.0.input_layernorm");
    leave(LIST("q_proj", "post_attention_layernorm"), "model.layers.0.post_attention_layernorm");
    leave(LIST("q_proj", "2"), "model.layers.2");
    leave(LIST("q_proj", "layers"), "model.layers");
    leave(LIST("q_proj", "model"), "model");
    leave(LIST("q_proj", "norm"), "model.norm");
    leave(LIST("q_proj", "rotary_emb"), "model.rotary_emb");
    take_table("embed_tokens", TSR_TABLE_EMBEDDING, 100, 32);
    take_table("lm_head", TSR_TABLE_HEAD, 32, 100);
    tsr_layout_modules_free(all, model_module_count);
    config.head_norms = TSR_HEAD_NORMS_EACH;
    assert_int_equal(tsr_layout_modules(&all, &model_module_count, &config), TSR_OK);
    model_modules = all;
    leave(REGEX(".*self_attn\\..*"), "model.layers.0.self_attn.q_norm");
    leave(LIST("k_norm"), "model.layers.0.self_attn.k_norm");
    tsr_layout_modules_free(all, model_module_count);
}

/* ---- experts ---- */

/* Two layers, the second sparse: a dense MLP, a router and two parameters; were: PEFT has names of linears for these. */
static tsr_adapter_module sparse[9];

static void make_sparse(bool were)
{
    static const char *const names[] = {"mlp.experts.%d.gate_proj", "mlp.experts.%d.up_proj",
                                        "mlp.experts.%d.down_proj"};
    const char *const *gate_up = were ? names : NULL, *const *down = were ? names + 2 : NULL;
    const tsr_adapter_module all[] = {
        {"model.layers.0.self_attn.q_proj", 64, 64, .linear = true},
        {"model.layers.0.mlp.down_proj", 96, 64, .linear = true},
        {"model.layers.1.self_attn.q_proj", 64, 64, .linear = true},
        {"model.layers.2.self_attn.q_proj", 64, 64, .linear = true},
        {"model.layers.1.mlp.experts.gate_up_proj", 64, 48, .experts = 8, .parts = 2,
         .linears = gate_up},
        {"model.layers.1.mlp.experts.down_proj", 24, 64, .experts = 8, .parts = 1, .linears = down},
        {"model.layers.2.mlp.experts.gate_up_proj", 64, 48, .experts = 8, .parts = 2,
         .linears = gate_up},
        {"model.layers.2.mlp.experts.down_proj", 24, 64, .experts = 8, .parts = 1, .linears = down},
        {.path = "model.layers.1.mlp.gate", .router = true},
    };
    memcpy(sparse, all, sizeof sparse);
}

/* What the set of a specification is: "rank:alpha" of each parameter that has an adapter, in the order above, "-" of the
 * others; then target_modules, target_parameters, and the patterns that are added. */
static void expect_sparse(const tsr_adapter_spec *spec, const char *want)
{
    tsr_adapter_set set;
    tsr_auto_text got = {0};
    if (tsr_adapter_set_make(&set, spec, sparse, 9) < 0)
        fail_msg("%s", tsr_last_error());
    for (uint64_t i = 4; i < 8; i++) {
        const tsr_adapter *found = NULL;
        for (uint64_t j = 0; j < set.count; j++)
            found = set.adapter[j].module == i ? &set.adapter[j] : found;
        assert_true(!found || (found->experts == 8 && !found->dora));
        tsr_text_printf(&got, found ? "%d:%g " : "- ", found ? (int)found->r : 0,
                        found ? found->alpha : 0);
    }
    for (uint64_t i = 0; i < set.target_count; i++)
        tsr_text_printf(&got, "%s%s", i ? "," : "| ", set.target[i]);
    for (uint64_t i = 0; i < set.parameter_count; i++)
        tsr_text_printf(&got, "%s%s", i ? "," : " | ", set.parameter[i]);
    for (uint64_t i = 0; i < set.expert_r_count; i++)
        tsr_text_printf(&got, " r %s=%g", set.expert_r[i].key, set.expert_r[i].value);
    for (uint64_t i = 0; i < set.expert_alpha_count; i++)
        tsr_text_printf(&got, " a %s=%g", set.expert_alpha[i].key, set.expert_alpha[i].value);
    assert_string_equal(tsr_text_string(&got), want);
    tsr_adapter_set_free(&set);
}

#define BOTH " | mlp.experts.down_proj,mlp.experts.gate_up_proj"

static void test_experts(void **state)
{
    (void)state;
    tsr_adapter_spec spec = plain();
    make_sparse(true);
    spec.all_linear = true;
    expect_sparse(&spec, "8:16 8:16 8:16 8:16 | down_proj,q_proj" BOTH);
    spec.expert_r = 4;
    expect_sparse(&spec, "4:16 4:16 4:16 4:16 | down_proj,q_proj" BOTH
                         " r mlp.experts.gate_up_proj=4 r mlp.experts.down_proj=4");
    const tsr_adapter_pattern one[] = {{"layers.1.mlp.experts.down_proj", 2}};
    spec.rank_pattern = one;
    spec.rank_pattern_count = 1;
    expect_sparse(&spec, "4:16 2:16 4:16 4:16 | down_proj,q_proj" BOTH
                         " r mlp.experts.gate_up_proj=4 r model.layers.2.mlp.experts.down_proj=4");
    spec.rank_pattern_count = 0;
    spec.expert_r = 0;
    spec.layers = (const int64_t[]){2};
    spec.layer_count =
        1; /* the name of no linear that has one: PEFT would take it for the experts' */
    expect_sparse(&spec, "- - 8:16 8:16 | q_proj | model.layers.2.mlp.experts.down_proj,"
                         "model.layers.2.mlp.experts.gate_up_proj");
    make_sparse(false);
    expect_sparse(&spec, "- - 8:16 8:16 | down_proj,q_proj | model.layers.2.mlp.experts.down_proj,"
                         "model.layers.2.mlp.experts.gate_up_proj");
    spec.layers = NULL;
    spec.dora = true;
    expect_sparse(&spec, "- - - - | down_proj,q_proj");
}

static void test_experts_as_peft(void **state)
{
    (void)state;
    tsr_adapter_spec spec = plain();
    make_sparse(true);
    spec.all_linear_peft = true;
    expect_sparse(&spec, "16:32 8:16 16:32 8:16 | q_proj" BOTH
                         " r mlp.experts.gate_up_proj=16 a mlp.experts.gate_up_proj=32");
    make_sparse(false);
    expect_sparse(&spec, "- - - - | down_proj,q_proj");
}

static void test_named_parameters(void **state)
{
    (void)state;
    const char *both[] = {"gate_up_proj", "layers.1.mlp.experts.down_proj"};
    tsr_adapter_spec spec = plain();
    tsr_adapter_set set;
    make_sparse(true);
    spec.parameter = both;
    spec.parameter_count = 2;
    spec.parameters_given = true;
    expect_sparse(&spec, "8:16 8:16 8:16 -  | gate_up_proj,layers.1.mlp.experts.down_proj");
    spec.layers = (const int64_t[]){2}; /* of linears alone, and so are exclusions */
    spec.layer_count = 1;
    spec.target = (tsr_adapter_match)NAMES("q_proj", "up_proj");
    spec.exclude = (tsr_adapter_match)NAMES("experts.gate_up_proj");
    expect_sparse(&spec, "8:16 8:16 8:16 - | q_proj | gate_up_proj,layers.1.mlp.experts.down_proj");
    spec = plain();
    spec.target = (tsr_adapter_match){.regex = ".*_proj"};
    expect_sparse(&spec, "- - - - | model.layers.0.mlp.down_proj,model.layers.0.self_attn.q_proj,"
                         "model.layers.1.self_attn.q_proj,model.layers.2.self_attn.q_proj");
    spec = plain();
    spec.all_linear = spec.parameters_given = true; /* an empty list: no experts */
    expect_sparse(&spec, "- - - - | down_proj,q_proj");
    assert_string_equal(warnings, "");
    spec.parameter = (const char *const[]){"experts.w2"};
    spec.parameter_count = 1;
    expect_sparse(&spec, "- - - - | down_proj,q_proj | experts.w2");
    assert_non_null(strstr(warnings, "\"experts.w2\" matches no module"));
    assert_non_null(strstr(warnings, "mlp.experts.down_proj"));
    const struct {
        const char *name, *word;
        bool dora;
        double dropout;
    } bad[] = {{"down_proj", "use_dora", true, 0},
               {"down_proj", "lora_dropout", false, 0.1},
               {"gate.weight", "router", false, 0}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        spec.parameter = &bad[i].name;
        spec.dora = bad[i].dora;
        spec.dropout = bad[i].dropout;
        assert_int_equal(tsr_adapter_set_make(&set, &spec, sparse, 9), TSR_ECONFIG);
        assert_non_null(strstr(tsr_last_error(), bad[i].word));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_linear),
        cmocka_unit_test(test_list),
        cmocka_unit_test(test_regex_and_exclude),
        cmocka_unit_test(test_idle_exclude),
        cmocka_unit_test(test_too_much_rank),
        cmocka_unit_test(test_layers),
        cmocka_unit_test(test_patterns),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_layers_and_whole_paths),
        cmocka_unit_test(test_modules_of_a_model),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_experts_as_peft),
        cmocka_unit_test(test_named_parameters),
    };
    return cmocka_run_group_tests(tests, make_modules, NULL);
}
