/*
 * What merge, quantize, inspect and env refuse.
 */
#include "multi/cli.h"
#include "multi/cli_bad.h"

#include <stdint.h>
#include <sys/stat.h>

#define SHARD   "model/model-00001-of-00004.safetensors"
#define WEIGHTS "adapter/adapter_model.safetensors"
#define MERGE   "merge job.yaml lora_r=8 init_adapter=adapter"
#define INFINITE                                                                                   \
    &(const uint16_t)                                                                              \
    {                                                                                              \
        0x7f80                                                                                     \
    }

static void adapter(void)
{
    cli_link_all(CLI_TRACES "/c1_dora/final", "adapter");
}

#define BREAK(function, call)                                                                      \
    static void function(void)                                                                     \
    {                                                                                              \
        adapter();                                                                                 \
        call;                                                                                      \
    }

BREAK(cut_adapter, cli_cut(WEIGHTS, -8))
BREAK(other_shape, cli_edit("adapter/adapter_config.json", "\"r\": 8", "\"r\": 4"))
BREAK(other_model,
      cli_edit("model/config.json", "\"num_hidden_layers\": 6", "\"num_hidden_layers\": 5"))
BREAK(no_config, cli_remove("model/config.json"))
BREAK(cut_shard, cli_cut(SHARD, -8))
BREAK(not_finite, cli_poke(SHARD, 3000000, INFINITE, 2))
BREAK(norm_not_finite, cli_poke(SHARD, 2098688, INFINITE, 2)) /* layers.0.input_layernorm */
BREAK(holds_run, (mkdir("out", 0777), cli_write("out/metrics.jsonl", "{}\n")))
BREAK(holds_adapter, (mkdir("out", 0777), cli_write("out/adapter_config.json", "{}\n")))
BREAK(holds_model, (mkdir("out", 0777), cli_write("out/model-00001-of-00002.safetensors", "")))
BREAK(holds_file, cli_write("out", ""))
BREAK(holds_directory, (mkdir("out", 0777), mkdir("out/tokenizer.json", 0777)))
BREAK(no_trace, cli_write("trace.json", "{\"traceEvents\": []}"))
BREAK(cut_trace, cli_write("trace.json", "[{\"name\":"))
BREAK(text_file, cli_write("notes.safetensors", "hello, world"))
BREAK(run_without_steps, (mkdir("run", 0777), cli_write("run/metrics.jsonl", "")))
BREAK(wrong_metrics,
      (mkdir("run", 0777), cli_write("run/metrics.jsonl", "{\"event\":\"start\"}\n3\n")))

const cli_bad_case cli_bad_tools[] = {
    {"merge_no_adapter",
     NULL,
     NULL,
     78,
     {"job.yaml: init_adapter", "required"},
     .command = "merge job.yaml"},
    {"merge_no_such_adapter", NULL, NULL, 65, {"adapter", "No such file"}, .command = MERGE},
    {"merge_cut_adapter", cut_adapter, NULL, 65, {"adapter_model.safetensors"}, .command = MERGE},
    {"merge_other_shape", other_shape, "lora_r=4", 65, {"rank 8", "rank 4"}, .command = MERGE},
    {"merge_other_model", other_model, NULL, 65, {"layers.5", "does not select"}, .command = MERGE},
    {"merge_other_key", adapter, "lora_r=4", 78, {"lora_r is 4", "made with 8"}, .command = MERGE},
    {"merge_no_config", no_config, NULL, 65, {"model holds no config.json"}, .command = MERGE},
    {"merge_cut_shard",
     cut_shard,
     NULL,
     65,
     {"model-00001-of-00004.safetensors"},
     .command = MERGE},
    {"merge_not_finite",
     not_finite,
     NULL,
     65,
     {SHARD ": tensor 'model.layers.0.mlp", "element", "inf"},
     .command = MERGE},
    {"merge_norm_not_finite",
     norm_not_finite,
     NULL,
     65,
     {SHARD ": tensor 'model.layers.0.input_layernorm.weight': element 0 is inf"},
     .command = MERGE},
    {"merge_no_output", adapter, "output_dir=null", 78, {"output_dir: required"}, .command = MERGE},
    {"merge_over_model",
     adapter,
     "output_dir=model",
     78,
     {"output_dir: 'model'", "model_name_or_path"},
     .command = MERGE},
    {"merge_over_adapter", adapter, "output_dir=adapter", 78, {"init_adapter"}, .command = MERGE},
    {"merge_holds_run",
     holds_run,
     "overwrite_output_dir=true",
     78,
     {"a training run (metrics.jsonl)", "output_dir=out-model"},
     .command = MERGE},
    {"merge_holds_adapter",
     holds_adapter,
     "overwrite_output_dir=true",
     78,
     {"an adapter"},
     .command = MERGE},
    {"merge_holds_model",
     holds_model,
     NULL,
     78,
     {"job.yaml:3", "already holds a model", "overwrite_output_dir"},
     .command = MERGE},
    {"merge_holds_file", holds_file, NULL, 78, {"out is a file"}, .command = MERGE},
    {"merge_holds_directory",
     holds_directory,
     NULL,
     78,
     {"out/tokenizer.json is a directory"},
     .command = MERGE},
    {"merge_magnitudes",
     NULL,
     "lora_r=8 init_adapter=" CLI_TRACES "/a_lora/final use_dora=true",
     78,
     {"use_dora", "no magnitudes"},
     .command = "merge job.yaml"},
    {"merge_n2",
     adapter,
     NULL,
     64,
     {"several ranks (OMPI_COMM_WORLD_SIZE=2)", "without mpirun"},
     2,
     .command = MERGE},
    {"merge_slurm",
     adapter,
     NULL,
     64,
     {"several ranks (SLURM_STEP_NUM_TASKS=2)", "srun"},
     .wrapper = "export SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=0; exec \"$@\"",
     .command = MERGE},
    {"merge_option", adapter, "--output-dri out", 64, {"--output_dir?"}, .command = MERGE},
    {"quantize_adapter",
     adapter,
     "init_adapter=adapter",
     78,
     {"quantize writes the base alone"},
     .command = "quantize job.yaml"},
    {"quantize_16_bits",
     NULL,
     "load_in_4bit=false",
     78,
     {"load_in_4bit"},
     .command = "quantize job.yaml"},
    {"quantize_again",
     NULL,
     NULL,
     65,
     {"quantized to nf4 already"},
     .model = CLI_PREQUANTIZED,
     .command = "quantize job.yaml"},
    {"quantize_not_finite",
     not_finite,
     NULL,
     65,
     {SHARD ": tensor 'model.layers.0.mlp", "element", "inf"},
     .command = "quantize job.yaml"},
    {"quantize_norm_not_finite",
     norm_not_finite,
     NULL,
     65,
     {SHARD ": tensor 'model.layers.0.input_layernorm.weight': element 0 is inf"},
     .command = "quantize job.yaml"},
    {"quantize_cut_shard",
     cut_shard,
     NULL,
     65,
     {"model-00001-of-00004.safetensors"},
     .command = "quantize job.yaml"},
    {"quantize_holds_model",
     holds_model,
     NULL,
     78,
     {"already holds a model"},
     .command = "quantize job.yaml"},
    {"quantize_no_job", NULL, NULL, 78, {"nowhere.yaml"}, .command = "quantize nowhere.yaml"},
    {"inspect_nothing", NULL, NULL, 65, {"nowhere", "No such file"}, .command = "inspect nowhere"},
    {"inspect_near", NULL, NULL, 65, {"did you mean model?"}, .command = "inspect modle"},
    {"inspect_rows",
     NULL,
     NULL,
     65,
     {"this is rows", "tessera data job.yaml --show 2 dataset=data.jsonl"},
     .command = "inspect data.jsonl"},
    {"inspect_job", NULL, NULL, 65, {"tessera plan job.yaml"}, .command = "inspect job.yaml"},
    {"inspect_unknown",
     NULL,
     NULL,
     65,
     {"metrics.jsonl", "config.json", "contains no runs"},
     .command = "inspect ."},
    {"inspect_text",
     text_file,
     NULL,
     65,
     {"notes.safetensors: not a safetensors file: it starts with"},
     .command = "inspect notes.safetensors"},
    {"inspect_cut_model",
     cut_shard,
     NULL,
     65,
     {"model-00001-of-00004.safetensors"},
     .command = "inspect model"},
    {"inspect_cut_adapter",
     cut_adapter,
     NULL,
     65,
     {"adapter_model.safetensors"},
     .command = "inspect adapter --json"},
    {"inspect_wrong_metrics",
     wrong_metrics,
     NULL,
     65,
     {"run/metrics.jsonl:2"},
     .command = "inspect run"},
    {"inspect_plot_of_no_directory",
     NULL,
     NULL,
     65,
     {"nowhere", "No such file or directory"},
     .command = "inspect nowhere --plot a.svg"},
    {"inspect_plot_nothing",
     run_without_steps,
     NULL,
     65,
     {"no step to draw"},
     .command = "inspect run --plot a.svg"},
    {"inspect_plot_model",
     NULL,
     NULL,
     65,
     {"model", "no metrics.jsonl", "output_dir"},
     .command = "inspect model --plot a.svg"},
    {"inspect_three", NULL, NULL, 64, {"unexpected argument"}, .command = "inspect a b c"},
    {"inspect_two",
     NULL,
     NULL,
     65,
     {"model is a directory", "both must be runs, or both traces"},
     .command = "inspect model adapter"},
    {"inspect_no_trace",
     no_trace,
     NULL,
     65,
     {"trace.json", "no trace of this program", "key trace"},
     .command = "inspect trace.json"},
    {"inspect_cut_traces",
     cut_trace,
     NULL,
     65,
     {"trace.json", "line 1"},
     .command = "inspect trace.json trace.json --json"},
    {"env_word", NULL, NULL, 64, {"tessera env [--measure] [--json]"}, .command = "env cpu"},
};
const size_t cli_bad_tools_count = sizeof cli_bad_tools / sizeof *cli_bad_tools;
