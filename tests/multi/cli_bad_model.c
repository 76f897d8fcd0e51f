/*
 * Checkpoints that are broken, or not what they say.
 */
#include "multi/cli.h"
#include "multi/cli_bad.h"

#include <stdint.h>
#include <sys/stat.h>
#include <unistd.h>

#define SHARD "model/model-00001-of-00004.safetensors"
#define INDEX "model/model.safetensors.index.json"
#define WHOLE "model/model.safetensors"

static void link_to(const char *target, const char *path)
{
    cli_remove(path);
    if (symlink(target, path) != 0)
        cli_fail("no link %s", path);
}

#define BREAK(function, call)                                                                      \
    static void function(void)                                                                     \
    {                                                                                              \
        call;                                                                                      \
    }

BREAK(no_config, cli_remove("model/config.json"))
BREAK(bad_config, cli_cut("model/config.json", 200))
BREAK(other_model, cli_edit("model/config.json", "\"llama\"", "\"gpt2\""))
BREAK(odd_activation, cli_edit("model/config.json", "\"silu\"", "\"gelu\""))
BREAK(odd_rope, cli_edit("model/config.json", "\"default\"", "\"spiral\""))
BREAK(dynamic_rope, cli_edit("model/config.json", "\"default\"", "\"dynamic\", \"factor\": 2.0");
      cli_edit("model/config.json", "\"max_position_embeddings\": 2048",
               "\"max_position_embeddings\": 4"))
BREAK(size_is_text,
      cli_edit("model/config.json", "\"hidden_size\": 256", "\"hidden_size\": \"256\""))
BREAK(heads_do_not_divide,
      cli_edit("model/config.json", "\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3"))
BREAK(other_shape,
      cli_edit("model/config.json", "\"intermediate_size\": 704", "\"intermediate_size\": 705"))
BREAK(more_layers,
      cli_edit("model/config.json", "\"num_hidden_layers\": 6", "\"num_hidden_layers\": 7"))
BREAK(unknown_field,
      cli_edit("model/config.json", "\"mlp_bias\": false", "\"residual_multiplier\": 0.22"))
BREAK(no_shard, cli_remove(SHARD))
BREAK(looping_shard, link_to("model-00001-of-00004.safetensors", SHARD))
BREAK(dangling_weights, link_to("../blobs/none", WHOLE))
BREAK(cut_data, cli_cut(SHARD, -100))
BREAK(cut_header, cli_cut(SHARD, 50))
BREAK(cut_length, cli_cut(SHARD, 5))
BREAK(empty_shard, cli_write(SHARD, ""))
BREAK(not_json, cli_poke(SHARD, 8, "xx", 2))
BREAK(lying_shape, cli_edit_header(SHARD, "[4096,256]", "[4095,256]"))
BREAK(lying_dtype, cli_edit_header(SHARD, "\"BF16\"", "\"F8_E4M3\""))
BREAK(missing_tensor,
      cli_edit_header(SHARD, "\"model.embed_tokens.weight\"", "\"model.embed_tokens.wait\""))
BREAK(index_bad_json, cli_cut(INDEX, 1000))
BREAK(index_names_no_file, cli_edit(INDEX, "model-00004-of-00004", "model-00005-of-00004"))
BREAK(index_leaves, cli_edit(INDEX, "model-00004-of-00004", "../model-00004-of-00004"))
BREAK(index_misses_tensor, cli_edit(INDEX, "\"model.norm.weight\"", "\"model.norm.wait\""))
BREAK(gguf, cli_remove("model/config.json"); cli_write("model/model-q4.gguf", "GGUF"))
BREAK(adapter, cli_remove("model/config.json"); cli_write("model/adapter_config.json", "{}"))
BREAK(no_weights, cli_remove(INDEX))
BREAK(pickle, cli_remove(INDEX); cli_write("model/pytorch_model.bin", "PK"))
BREAK(prequantized_fp4, cli_edit("model/config.json", "\"nf4\"", "\"fp4\""))
BREAK(prequantized_8bit,
      cli_edit("model/config.json", "\"load_in_8bit\": false", "\"load_in_8bit\": true");
      cli_edit("model/config.json", "\"load_in_4bit\": true", "\"load_in_4bit\": false"))
BREAK(prequantized_gptq, cli_edit("model/config.json", "\"bitsandbytes\"", "\"gptq\""))
BREAK(no_absmax, cli_edit_header(WHOLE, "layers.1.mlp.down_proj.weight.absmax",
                                 "layers.1.mlp.down_proj.weight.abs"))
BREAK(cut_prequantized, cli_cut(WHOLE, -1))

/* The length of the header is that of a file of 2^60 bytes. */
static void lying_length(void)
{
    uint64_t length = 1ull << 60;
    cli_poke(SHARD, 0, &length, sizeof length);
}

/* Element 150001 of layers.0.mlp.gate_proj, which begins at byte 2459648 of the file, becomes an
 * infinity; rank 1 of 2 begins at element 90112. */
static void not_finite(void)
{
    uint16_t infinity = 0x7f80;
    cli_poke(SHARD, 2459648 + 2 * 150001, &infinity, sizeof infinity);
}

/* The embedding begins at byte 1536; of 4096 rows of 256, element 777000 is rank 1's of 2. */
static void embedding_not_finite(void)
{
    static const uint16_t nan = 0x7fc0, infinity = 0xff80;
    cli_poke(SHARD, 1536 + 2 * 777000, &nan, sizeof nan);
    cli_poke(SHARD, 1536 + 2 * 777003, &infinity, sizeof infinity);
}

/* Element 5 of layers.0.input_layernorm. */
static void norm_not_finite(void)
{
    static const uint16_t infinity = 0xff80;
    cli_poke(SHARD, 2098688 + 2 * 5, &infinity, sizeof infinity);
}

/* Element 10 of the scales of layers.1.mlp.down_proj's scales. */
static void scale_not_finite(void)
{
    static const uint32_t nan = 0x7fc00000;
    cli_poke(WHOLE, 17924 + 4 * 10, &nan, sizeof nan);
}

/* Rows of layers.0.mlp.gate_proj, of 256 numbers: one of rank 0, one of rank 1 of 2. */
static void zero_row_of(long row)
{
    static const char zeros[512];
    cli_poke(SHARD, 2459648 + row * 512, zeros, sizeof zeros);
}

BREAK(zero_row, zero_row_of(37))
BREAK(zero_row_of_rank_1, zero_row_of(600))

static void model_apart(void)
{
    cli_link_all(".", "apart");
    cli_remove("apart/model");
    cli_link_all(CLI_TINY_LLAMA, "apart/model");
    cli_edit("apart/model/config.json", "1e-05", "1e-06");
}

/* As where a model was trained further in one node's copy of the folder. */
static void weights_apart(void)
{
    static const char shard[] = "apart/model/model-00003-of-00004.safetensors";
    static const char other[] = "weights of another training"; /* the last of the last tensor */
    struct stat info;
    cli_link_all(".", "apart");
    cli_remove("apart/model");
    cli_link_all(CLI_TINY_LLAMA, "apart/model");
    if (stat(shard, &info) != 0)
        cli_fail("%s is not there", shard);
    else
        cli_poke(shard, (long)info.st_size - (long)sizeof other, other, sizeof other);
}

#define RANK_1_APART "if [ $RANK = 1 ]; then cd apart; fi; exec \"$@\""

const cli_bad_case cli_bad_model[] = {
    {"no_model", NULL, "model_name_or_path=nowhere", 65, {"model_name_or_path: nowhere"}},
    {"model_is_a_file",
     NULL,
     "model_name_or_path=data.jsonl",
     65,
     {"model_name_or_path: data.jsonl is a file"}},
    {"gguf", gguf, NULL, 65, {"model holds GGUF files, which are not read", "original model"}},
    {"adapter_as_model",
     adapter,
     NULL,
     65,
     {"model holds an adapter and no model", "init_adapter: model"}},
    {"no_config", no_config, NULL, 65, {"model holds no config.json", "Hugging Face"}},
    {"bad_config", bad_config, NULL, 65, {"config.json"}},
    {"other_model", other_model, NULL, 65, {"gpt2"}},
    {"odd_activation", odd_activation, NULL, 65, {"gelu", "hidden_act"}},
    {"odd_rope", odd_rope, NULL, 65, {"spiral", "rope"}},
    {"dynamic_rope", dynamic_rope, NULL, 65, {"'dynamic'", "max_length: 4"}},
    {"size_is_text", size_is_text, NULL, 65, {"hidden_size"}},
    {"heads_do_not_divide", heads_do_not_divide, NULL, 65, {"num_key_value_heads"}},
    {"other_shape", other_shape, NULL, 65, {"[704, 256]", "mlp."}},
    {"more_layers", more_layers, NULL, 65, {"model.layers.6."}},
    {"unknown_field", unknown_field, NULL, 65, {"residual_multiplier"}},
    {"no_shard", no_shard, NULL, 65, {"model-00001-of-00004.safetensors"}},
    {"looping_shard",
     looping_shard,
     NULL,
     65,
     {"model-00001-of-00004.safetensors", "Too many levels of symbolic links"}},
    {"dangling_weights", dangling_weights, NULL, 65, {"model/model.safetensors", "No such file"}},
    {"cut_data", cut_data, NULL, 65, {"model-00001-of-00004.safetensors"}},
    {"cut_data_n3", cut_data, NULL, 65, {"model-00001-of-00004.safetensors"}, 3},
    {"cut_header", cut_header, NULL, 65, {"model-00001-of-00004.safetensors"}},
    {"cut_length", cut_length, NULL, 65, {"model-00001-of-00004.safetensors"}},
    {"empty_shard", empty_shard, NULL, 65, {"model-00001-of-00004.safetensors"}},
    {"not_json", not_json, NULL, 65, {"model-00001-of-00004.safetensors"}},
    {"lying_length", lying_length, NULL, 65, {"model-00001-of-00004.safetensors"}},
    {"lying_shape", lying_shape, NULL, 65, {"model.embed_tokens.weight", "4095"}},
    {"lying_dtype", lying_dtype, NULL, 65, {"F8_E4M3"}},
    {"missing_tensor", missing_tensor, NULL, 65, {"model.embed_tokens.weight"}},
    {"not_finite",
     not_finite,
     NULL,
     65,
     {SHARD, "layers.0.mlp.gate_proj", "element 150001 is inf"}},
    {"not_finite_n2",
     not_finite,
     NULL,
     65,
     {SHARD, "layers.0.mlp.gate_proj", "element 150001 is inf"},
     2},
    {"embedding_not_finite",
     embedding_not_finite,
     NULL,
     65,
     {SHARD ": tensor 'model.embed_tokens.weight': element 777000 is nan"}},
    {"embedding_not_finite_n3",
     embedding_not_finite,
     NULL,
     65,
     {SHARD ": tensor 'model.embed_tokens.weight': element 777000 is nan"},
     3},
    {"norm_not_finite",
     norm_not_finite,
     NULL,
     65,
     {SHARD ": tensor 'model.layers.0.input_layernorm.weight': element 5 is -inf"}},
    {"norm_not_finite_eval",
     norm_not_finite,
     "eval_dataset=data.jsonl",
     65,
     {SHARD ": tensor 'model.layers.0.input_layernorm.weight': element 5 is -inf"},
     2,
     .command = "eval job.yaml"},
    {"scale_not_finite_n2",
     scale_not_finite,
     NULL,
     65,
     {WHOLE ": tensor 'model.layers.1.mlp.down_proj.weight.nested_absmax': element 10 is nan"},
     2,
     .model = CLI_PREQUANTIZED},
    {"zero_row_dora",
     zero_row,
     "use_dora=true",
     65,
     {"row 37 of model.layers.0.mlp.gate_proj.weight is all zeros",
      "exclude_modules: [gate_proj]"}},
    {"zero_row_dora_n2",
     zero_row_of_rank_1,
     "use_dora=true load_in_4bit=false",
     65,
     {"row 600 of model.layers.0.mlp.gate_proj.weight is all zeros",
      "exclude_modules: [gate_proj]"},
     2},
    {"index_bad_json", index_bad_json, NULL, 65, {"model.safetensors.index.json"}},
    {"index_names_no_file", index_names_no_file, NULL, 65, {"model-00005-of-00004"}},
    {"index_leaves", index_leaves, NULL, 65, {"../model-00004-of-00004"}},
    {"index_misses_tensor", index_misses_tensor, NULL, 65, {"model.norm.wait"}},
    {"no_weights", no_weights, NULL, 65, {"model.safetensors"}},
    {"pickle", pickle, NULL, 65, {"safetensors"}},
    {"prequantized_fp4", prequantized_fp4, NULL, 65, {"fp4"}, .model = CLI_PREQUANTIZED},
    {"prequantized_8bit", prequantized_8bit, NULL, 65, {"8bit"}, .model = CLI_PREQUANTIZED},
    {"prequantized_gptq", prequantized_gptq, NULL, 65, {"gptq"}, .model = CLI_PREQUANTIZED},
    {"prequantized_to_16_bits",
     NULL,
     "load_in_4bit=false",
     78,
     {"load_in_4bit"},
     .model = CLI_PREQUANTIZED},
    {"no_absmax", no_absmax, NULL, 65, {"layers.1.mlp.down_proj"}, .model = CLI_PREQUANTIZED},
    {"no_absmax_n2", no_absmax, NULL, 65, {"layers.1.mlp.down_proj"}, 2, .model = CLI_PREQUANTIZED},
    {"cut_prequantized",
     cut_prequantized,
     NULL,
     65,
     {"model.safetensors"},
     .model = CLI_PREQUANTIZED},
    {"other_model_on_one_rank",
     model_apart,
     NULL,
     76,
     {"the model", "same files"},
     2,
     NULL,
     RANK_1_APART},
    {"other_weights_on_one_rank",
     weights_apart,
     NULL,
     76,
     {"the content of the model (model_name_or_path) differs", "same files"},
     2,
     NULL,
     RANK_1_APART},
};
const size_t cli_bad_model_count = sizeof cli_bad_model / sizeof *cli_bad_model;
