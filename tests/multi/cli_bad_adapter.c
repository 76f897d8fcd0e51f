/*
 * Adapters that cannot be started from, and evaluations of nothing.
 */
#include "multi/cli.h"
#include "multi/cli_bad.h"

#define CONFIG  "adapter/adapter_config.json"
#define WEIGHTS "adapter/adapter_model.safetensors"
/* In bf16, and of fp32 the upper half. */
#define NOT_A_NUMBER "\xc0\x7f"

static void start(const char *name)
{
    char path[512];
    const char *from = CLI_TRACES "/init/";
    char *end = path;
    while (*from)
        *end++ = *from++;
    while (*name)
        *end++ = *name++;
    *end = 0;
    cli_link_all(path, "adapter");
    cli_edit("job.yaml", "lora_r: 2\n", "init_adapter: adapter\n");
}

#define ADAPTER(function, from, call)                                                              \
    static void function(void)                                                                     \
    {                                                                                              \
        start(from);                                                                               \
        call;                                                                                      \
    }

ADAPTER(lora, "lora_r8", (void)0)
ADAPTER(dora, "dora_r8", (void)0)
ADAPTER(no_config, "lora_r8", cli_remove(CONFIG))
ADAPTER(no_tensors, "lora_r8", cli_remove(WEIGHTS))
ADAPTER(cut_tensors, "lora_r8", cli_cut(WEIGHTS, -8))
ADAPTER(bad_config, "lora_r8", cli_cut(CONFIG, 90))
ADAPTER(other_rank, "lora_r8", cli_edit(CONFIG, "\"r\": 8", "\"r\": 4"))
ADAPTER(unknown_field, "lora_r8", cli_edit(CONFIG, "\"use_qalora\": false", "\"use_qalora\": true"))
ADAPTER(future_field, "lora_r8",
        cli_edit(CONFIG, "\"bias\": \"none\"", "\"bias\": \"none\", \"lora_gamma\": 3"))
ADAPTER(trained_biases, "lora_r8", cli_edit(CONFIG, "\"bias\": \"none\"", "\"bias\": \"all\""))
ADAPTER(saved_modules, "lora_r8",
        cli_edit(CONFIG, "\"modules_to_save\": null", "\"modules_to_save\": [\"lm_head\"]"))
ADAPTER(not_lora, "lora_r8", cli_edit(CONFIG, "\"LORA\"", "\"IA3\""))
ADAPTER(fewer_targets, "lora_r8", cli_edit(CONFIG, "\"q_proj\"", "\"qq_proj\""))
ADAPTER(a_not_finite, "dora_r8", cli_poke(WEIGHTS, 74568 + 2 * 5631, NOT_A_NUMBER, 2))
ADAPTER(b_not_finite, "dora_r8", cli_poke(WEIGHTS, 333640 + 2 * 3000, NOT_A_NUMBER, 2))
ADAPTER(magnitude_not_finite, "dora_r8", cli_poke(WEIGHTS, 49224 + 4 * 703 + 2, NOT_A_NUMBER, 2))
ADAPTER(no_magnitudes, "lora_r8", cli_edit(CONFIG, "\"use_dora\": false", "\"use_dora\": true"))
ADAPTER(no_b, "lora_r8",
        cli_edit_header(WEIGHTS, "layers.2.mlp.up_proj.lora_B.weight",
                        "layers.2.mlp.up_proj.lora_C.weight"))

/* The adapter of a finished run: its B is not 0. */
static void trained(void)
{
    cli_link_all(CLI_TRACES "/a_lora/final", "adapter");
    cli_edit("job.yaml", "lora_r: 2\n", "init_adapter: adapter\n");
}

static void adapter_apart(void)
{
    static const float other = 3;
    start("lora_r8");
    cli_link_all(".", "apart");
    cli_remove("apart/adapter");
    cli_link_all(CLI_TRACES "/init/lora_r8", "apart/adapter");
    cli_poke("apart/" WEIGHTS, 459224 - (long)sizeof other, &other, sizeof other);
}

const cli_bad_case cli_bad_adapter[] = {
    {"no_adapter", NULL, "init_adapter=nowhere", 65, {"nowhere"}},
    {"explicit_rank", lora, "lora_r=4", 78, {"lora_r is 4", "made with 8"}},
    {"explicit_rank_n3", lora, "lora_r=4", 78, {"lora_r is 4", "made with 8"}, 3},
    {"explicit_alpha", lora, "lora_alpha=3", 78, {"lora_alpha is 3"}},
    {"explicit_targets", lora, "lora_target_modules=[q_proj]", 78, {"lora_target_modules is"}},
    {"explicit_lora", dora, "use_dora=false", 78, {"use_dora is false"}},
    {"adapter_without_config", no_config, NULL, 65, {"adapter_config.json"}},
    {"adapter_without_tensors", no_tensors, NULL, 65, {"adapter_model.safetensors"}},
    {"adapter_cut", cut_tensors, NULL, 65, {"adapter_model.safetensors"}},
    {"adapter_config_cut", bad_config, NULL, 65, {"adapter_config.json"}},
    {"adapter_of_another_rank", other_rank, NULL, 65, {"rank 8"}},
    {"adapter_field", unknown_field, NULL, 65, {"use_qalora"}},
    {"adapter_future_field", future_field, NULL, 65, {"lora_gamma"}},
    {"adapter_biases", trained_biases, NULL, 65, {"bias"}},
    {"adapter_saved_modules", saved_modules, NULL, 65, {"modules_to_save"}},
    {"adapter_not_lora", not_lora, NULL, 65, {"IA3"}},
    {"adapter_targets", fewer_targets, NULL, 65, {"model.layers.0.self_attn.q_proj"}},
    {"adapter_a_not_finite",
     a_not_finite,
     NULL,
     65,
     {WEIGHTS ": tensor 'base_model.model.model.layers.0.mlp.down_proj.lora_A.weight': element "
              "5631 is nan"}},
    {"adapter_b_not_finite_n2",
     b_not_finite,
     NULL,
     65,
     {WEIGHTS, "layers.3.mlp.up_proj.lora_B.weight': element 3000 is nan"},
     2},
    {"adapter_magnitude_not_finite",
     magnitude_not_finite,
     NULL,
     65,
     {WEIGHTS, "layers.3.mlp.up_proj.lora_magnitude_vector': element 703 is nan"}},
    {"adapter_magnitudes", no_magnitudes, NULL, 65, {"magnitude"}},
    {"adapter_without_b", no_b, NULL, 65, {"layers.2.mlp.up_proj"}},
    {"dora_over_trained", trained, "use_dora=true", 78, {"lora_B", "magnitudes"}},
    {"dora_over_trained_n2", trained, "use_dora=true", 78, {"lora_B", "magnitudes"}, 2},
    {"other_adapter_on_one_rank",
     adapter_apart,
     NULL,
     76,
     {"the content of init_adapter differs", "same files"},
     2,
     NULL,
     "if [ $RANK = 1 ]; then cd apart; fi; exec \"$@\""},
    {"eval_of_nothing", NULL, NULL, 78, {"eval_dataset"}, .command = "eval job.yaml"},
    {"plan_too_small",
     NULL,
     "memory_budget=1MiB",
     78,
     {"memory_budget allows", "smallest change that fits: "},
     .command = "plan job.yaml --ranks 4"},
};
const size_t cli_bad_adapter_count = sizeof cli_bad_adapter / sizeof *cli_bad_adapter;
