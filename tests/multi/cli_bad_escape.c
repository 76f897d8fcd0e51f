/*
 * Broken inputs whose names hold what a terminal obeys (ESC [ 2 J clears it, C1's CSI does, too) or a reader does not see (a
 * line of their own, text from right to left): a case for each way that such a name comes in.
 */
#include "multi/cli.h"
#include "multi/cli_bad.h"

#include <stdio.h>
#include <sys/stat.h>

#define RAW     "\033[2J\302\233\342\200\256" /* bytes */
#define JSON    "\\u001b[2J\\u009b\\u202e\\n" /* in a JSON string */
#define SHOWN   "\\x1b[2J\\u{009b}\\u{202e}"
#define SHOWN_N SHOWN "\\x0a"

#define HOSTILE(function, call)                                                                    \
    static void function(void)                                                                     \
    {                                                                                              \
        call;                                                                                      \
    }

HOSTILE(yaml_key, cli_edit("job.yaml", "lora_r: 2\n", "\"lora\\e[2J\\x9b\\u202e\\n_r\": 2\n"))
HOSTILE(yaml_value, cli_edit("job.yaml", "lora_r: 2\n", "lora_r: \"\\e[2J\\x9b\\u202e\\n\"\n"))
HOSTILE(row_keys, cli_write("data.jsonl", "{\"" JSON "\": 1}\n"))
HOSTILE(role,
        cli_write("data.jsonl",
                  "{\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}, {\"from\": \"" JSON
                  "\", \"value\": \"a\"}]}\n"))
HOSTILE(config_key, cli_edit("model/config.json", "\"mlp_bias\": false", "\"" JSON "\": 0.22"))
HOSTILE(config_value, cli_edit("model/config.json", "\"llama\"", "\"" JSON "\""))
HOSTILE(tensor, cli_edit_header("model/model-00001-of-00004.safetensors",
                                "\"model.embed_tokens.weight\"", "\"" JSON "\""))
HOSTILE(index_file,
        cli_edit("model/model.safetensors.index.json", "model-00004-of-00004", "../" JSON))
HOSTILE(token, cli_edit("model/tokenizer_config.json", "\"<|eot_id|>\"", "\"" JSON "\"");
        cli_write("data.jsonl", "{\"text\": \"a b c\"}\n"))
HOSTILE(tokenizer_type,
        cli_edit("model/tokenizer.json", "\"type\": \"BPE\"", "\"type\": \"" JSON "\"");
        cli_write("data.jsonl", "{\"text\": \"a b c\"}\n"))

#define CHAT                                                                                       \
    "{\"messages\": [{\"role\": \"user\", \"content\": \"2 + 2?\"}, {\"role\": \"assistant\", "    \
    "\"content\": \"4\"}]}\n"

HOSTILE(raises, cli_write("data.jsonl", CHAT);
        cli_write("own.jinja", "{{ raise_exception('" RAW "\n') }}"))
HOSTILE(construct, cli_write("data.jsonl", CHAT); cli_write("own.jinja", "{% " RAW " %}"))

static void adapter_key(void)
{
    cli_edit("job.yaml", "lora_r: 2\n", "init_adapter: adapter\n");
    cli_link_all(CLI_TRACES "/init/lora_r8", "adapter");
    cli_edit("adapter/adapter_config.json", "\"use_dora\"", "\"" JSON "\"");
}

static void output_is_a_file(void)
{
    cli_write("out" RAW, "mine\n");
}

const cli_bad_case cli_bad_escape[] = {
    {"escape_command", NULL, "", 64, {SHOWN}, .command = "tr" RAW "ian job.yaml"},
    {"escape_job", NULL, "", 78, {"no" SHOWN ".yaml"}, .command = "train no" RAW ".yaml"},
    {"escape_inspected", NULL, "", 65, {"no" SHOWN}, .command = "inspect no" RAW},
    {"escape_override", NULL, "lora" RAW "=8", 78, {SHOWN}},
    {"escape_path", NULL, "dataset=no" RAW ".jsonl", 65, {"no" SHOWN ".jsonl"}},
    {"escape_path_n2", NULL, "dataset=no" RAW ".jsonl", 65, {"no" SHOWN ".jsonl"}, 2},
    {"escape_output", output_is_a_file, "output_dir=out" RAW, 78, {"out" SHOWN}},
    {"escape_yaml_key", yaml_key, NULL, 78, {"job.yaml:4", SHOWN_N}},
    {"escape_yaml_value", yaml_value, NULL, 78, {"job.yaml:4", "lora_r", SHOWN_N}},
    {"escape_row_keys", row_keys, NULL, 65, {"data.jsonl:1", SHOWN_N}},
    {"escape_role", role, NULL, 65, {"data.jsonl:1", "\\u001B[2J\\u{009b}\\u{202e}\\n"}},
    {"escape_config_key", config_key, NULL, 65, {"config.json", SHOWN_N}},
    {"escape_config_value", config_value, NULL, 65, {"config.json", SHOWN_N}},
    {"escape_tensor", tensor, NULL, 65, {"model-00001-of-00004.safetensors", "embed_tokens"}},
    {"escape_index_file", index_file, NULL, 65, {"model.safetensors.index.json", SHOWN_N}},
    {"escape_token", token, NULL, 78, {"eos_token", SHOWN_N}},
    {"escape_tokenizer_type", tokenizer_type, NULL, 65, {"tokenizer.json", SHOWN_N}},
    {"escape_raises", raises, "chat_template_path=own.jinja", 65, {"data.jsonl:1", SHOWN_N}},
    {"escape_construct", construct, "chat_template_path=own.jinja", 65, {"own.jinja:1", "\\x1b"}},
    {"escape_adapter_key", adapter_key, NULL, 65, {"adapter_config.json", SHOWN_N}},
};
const size_t cli_bad_escape_count = sizeof cli_bad_escape / sizeof *cli_bad_escape;
