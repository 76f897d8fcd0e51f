/*
 * Command lines and configurations that are refused, and outputs that are not to be touched.
 */
#include "multi/cli.h"
#include "multi/cli_bad.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static void yaml_syntax(void)
{
    cli_write("job.yaml", "model_name_or_path: model\ndataset: [data.jsonl\noutput_dir: out\n");
}

static void yaml_twice(void)
{
    cli_edit("job.yaml", "lora_r: 2\n", "lora_r: 2\nlora_r: 4\n");
}

static void yaml_misspelt(void)
{
    cli_edit("job.yaml", "max_steps: 2\n", "max_step: 2\nlerning_rate: 1e-3\n");
}

static void yaml_not_a_map(void)
{
    cli_write("job.yaml", "- model\n- data.jsonl\n");
}

static void no_job(void)
{
    cli_remove("job.yaml");
}

static void output_is_a_file(void)
{
    cli_write("out", "mine\n");
}

static void output_holds_a_run(void)
{
    mkdir("out", 0777);
    cli_write("out/metrics.jsonl", "{}\n");
    cli_write("data.jsonl", "not read before\n");
}

static void output_holds_an_adapter(void)
{
    mkdir("out", 0777);
    cli_write("out/adapter_config.json", "{}\n");
}

/* What is killed while it writes a checkpoint leaves such a directory; this one is somebody's. */
static void output_has_a_link(void)
{
    mkdir("out", 0777);
    mkdir("victim", 0777);
    cli_write("victim/precious", "");
    if (symlink("../victim", "out/.checkpoint-7.tmp") != 0)
        cli_fail("no link");
}

static void output_leads_nowhere(void)
{
    if (symlink("nowhere", "out") != 0)
        cli_fail("no link");
}

static void model_has_another_name(void)
{
    if (symlink("model", "alias") != 0)
        cli_fail("no link");
}

static void model_by_its_whole_path(void)
{
    char here[4096], line[4200];
    if (!getcwd(here, sizeof here))
        cli_fail("no working directory");
    snprintf(line, sizeof line, "output_dir: %s/model\n", here);
    cli_edit("job.yaml", "output_dir: out\n", line);
}

static void adapter_is_there(void)
{
    cli_edit("job.yaml", "lora_r: 2\n", "init_adapter: adapter\noverwrite_output_dir: true\n");
    cli_link_all(CLI_TRACES "/init/lora_r8", "adapter");
}

static void adapter_is_a_checkpoint(void)
{
    mkdir("out", 0777);
    cli_edit("job.yaml", "lora_r: 2\n",
             "init_adapter: out/checkpoint-6\noverwrite_output_dir: true\n");
    cli_link_all(CLI_TRACES "/init/lora_r8", "out/checkpoint-6");
}

static void two_adapters(void)
{
    cli_edit("job.yaml", "lora_r: 2\n",
             "lora_r: 2\ncontext_parallel_size: 2\nadapter_mixing: tokens\n"
             "adapters: [{name: a}, {name: b}]\n");
}

static void min_lr_of_linear(void)
{
    cli_edit("job.yaml", "max_steps: 2\n", "lr_scheduler_kwargs: {min_lr: 1e-5}\n");
}

static void bad_pattern(void)
{
    cli_edit("job.yaml", "max_steps: 2\n", "rank_pattern: {q_proj: 0}\n");
}

static void long_rows(void)
{
    cli_write("data.jsonl", "{\"input_ids\": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]}\n");
}

#define HIDE_GPUS "CUDA_VISIBLE_DEVICES= exec \"$@\""

#define USAGE(title, line, ...)                                                                    \
    {                                                                                              \
        title, NULL, "", 64, {__VA_ARGS__}, .command = line                                        \
    }

/* A process that its environment says is one of several, without an MPI that knows the others. */
#define ALONE(title, variables, word)                                                              \
    {                                                                                              \
        title, NULL, NULL, 78, {"one of several ranks", "unset", word},                            \
            .wrapper = "export " variables "; exec \"$@\""                                         \
    }

/* What does not go with ranks that share micro-batches, which a plan knows too. */
#define SHARED(title, keys, checkpoint, found, fix)                                                \
    {                                                                                              \
        title, NULL, keys, 78, {found, fix}, .model = checkpoint,                                  \
                                             .command = "plan job.yaml --ranks 2"                  \
    }

const cli_bad_case cli_bad_config[] = {
    USAGE("no_command", "", "train"),
    USAGE("unknown_command", "trian job.yaml", "trian"),
    USAGE("no_job_named", "train", "job.yaml"),
    USAGE("misspelt_option", "train job.yaml --lerning_rate 1", "--learning_rate?"),
    USAGE("unknown_option", "plan job.yaml --rank 2", "--rank"),
    ALONE("alone_openmpi", "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_SIZE=2"),
    ALONE("alone_pmix", "PMIX_RANK=1", "PMIX_RANK=1"),
    ALONE("alone_pmi", "PMI_SIZE=4 PMI_RANK=0", "PMI_SIZE=4"),
    ALONE("alone_slurm", "SLURM_JOB_ID=7 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=3", "srun --mpi=pmix"),
    {"misspelt_option_n3",
     NULL,
     "",
     64,
     {"--learning_rate?"},
     3,
     .command = "train job.yaml --lerning_rate 1"},
    {"no_job", no_job, NULL, 78, {"job.yaml"}},
    {"yaml_syntax", yaml_syntax, NULL, 78, {"job.yaml:"}},
    {"yaml_twice", yaml_twice, NULL, 78, {"lora_r", "job.yaml:5"}},
    {"yaml_misspelt", yaml_misspelt, NULL, 78, {"job.yaml:5", "max_steps", "learning_rate"}},
    {"yaml_misspelt_n3", yaml_misspelt, NULL, 78, {"job.yaml:5", "max_steps", "learning_rate"}, 3},
    {"yaml_not_a_map", yaml_not_a_map, NULL, 78, {"job.yaml"}},
    {"unknown_key", NULL, "lora_rank=8", 78, {"lora_rank"}},
    {"wrong_type", NULL, "lora_r=eight", 78, {"'eight'", "lora_r"}},
    {"fraction", NULL, "lora_r=2.5", 78, {"2.5", "lora_r"}},
    {"out_of_range", NULL, "lora_dropout=1.5", 78, {"1.5", "lora_dropout"}},
    {"unknown_word", NULL, "lr_scheduler_type=greedy", 78, {"greedy", "cosine"}},
    {"optimizer_8bit", NULL, "optim=lion_8bit", 78, {"lion_8bit", "adamw_torch"}},
    {"fp4", NULL, "bnb_4bit_quant_type=fp4", 78, {"fp4", "nf4"}},
    {"fp16", NULL, "fp16=true", 78, {"fp16"}},
    {"fp8_without_nf4",
     NULL,
     "base_compute=fp8 load_in_4bit=false",
     78,
     {"base_compute: fp8", "layers.0.self_attn.q_proj", "load_in_4bit: true"}},
    {"bfloat16_on_cpu",
     NULL,
     "bf16=true",
     78,
     {"bfloat16", "dtype: float32"},
     .wrapper = HIDE_GPUS},
#ifdef TSR_CUDA /* built with the CUDA backend: the machine, not the configuration, lacks a GPU */
    {"no_gpu", NULL, "backend=cuda", 71, {"backend: cpu"}, .wrapper = HIDE_GPUS},
    {"no_gpu_n2", NULL, "backend=cuda", 71, {"backend: cpu"}, 2, .wrapper = HIDE_GPUS},
#else
    {"no_cuda", NULL, "backend=cuda", 78, {"no CUDA backend"}},
#endif
    {"deepspeed", NULL, "deepspeed=zero3.json", 78, {"deepspeed"}},
    {"resume_from_nothing",
     NULL,
     "resume_from_checkpoint=nowhere",
     78,
     {"resume_from_checkpoint: nowhere", "No such file"}},
    {"resume_from_a_directory",
     NULL,
     "resume_from_checkpoint=model",
     65,
     {"model/manifest.json", "No such file", "checkpoint-<step>"}},
    {"resume_and_overwrite",
     NULL,
     "resume_from_checkpoint=true overwrite_output_dir=true",
     78,
     {"overwrite_output_dir", "remove one of them"},
     3},
    {"trace_nowhere", NULL, "trace=nowhere/t.json", 78, {"trace", "no directory nowhere"}},
    {"trace_nowhere_n3", NULL, "trace=nowhere/t.json", 78, {"no directory nowhere"}, 3},
    {"trace_directory", NULL, "trace=.", 78, {"trace", "is a directory"}},
    {"trace_device", NULL, "trace=/dev/null", 78, {"trace: /dev/null", "is a device"}},
    {"trace_in_a_file", NULL, "trace=job.yaml/t.json", 78, {"job.yaml", "trace"}},
    {"two_sizes_of_a_step",
     NULL,
     "gradient_accumulation_steps=2",
     78,
     {"both give the size of a step", "total_batch_size"}},
    {"batch_not_a_multiple", NULL, "per_device_train_batch_size=3", 78, {"not a multiple"}},
    {"packing_without_length", NULL, "packing=true max_length=null", 78, {"needs a max_length"}},
    {"eval_without_data", NULL, "eval_strategy=steps", 78, {"needs an eval_dataset"}},
    {"layers_with_regex",
     NULL,
     "layers_to_transform=[0] lora_target_modules=.*q_proj",
     78,
     {"does not go with a regular expression"}},
    {"min_lr_of_linear",
     min_lr_of_linear,
     NULL,
     78,
     {"linear takes no min_lr; these do: cosine_with_min_lr"}},
    {"no_output", NULL, "output_dir=null", 78, {"output_dir: required"}},
    {"hub_model",
     NULL,
     "model_name_or_path=meta-llama/Llama-3.2-1B",
     78,
     {"hf download meta-llama/Llama-3.2-1B"}},
    {"hub_model_n2",
     NULL,
     "model_name_or_path=meta-llama/Llama-3.2-1B",
     78,
     {"hf download meta-llama/Llama-3.2-1B"},
     2},
    {"hub_data",
     NULL,
     "dataset=openai/gsm8k",
     78,
     {"hf download --repo-type dataset openai/gsm8k"}},
    {"output_is_a_file", output_is_a_file, NULL, 78, {"output_dir out: out is a file"}},
    {"output_holds_a_run",
     output_holds_a_run,
     NULL,
     78,
     {"already holds a run", "overwrite_output_dir"}},
    {"output_holds_a_run_n3",
     output_holds_a_run,
     NULL,
     78,
     {"already holds a run", "overwrite_output_dir"},
     3},
    {"output_holds_an_adapter", output_holds_an_adapter, NULL, 78, {"already holds a run"}},
    {"output_has_a_link", output_has_a_link, NULL, 78, {"out/.checkpoint-7.tmp is a link"}, 2},
    {"output_leads_nowhere",
     output_leads_nowhere,
     "output_dir=out/run",
     78,
     {"output_dir out/run: out is a link that leads nowhere"},
     2},
    {"merge_leads_nowhere",
     output_leads_nowhere,
     NULL,
     78,
     {"output_dir out: out is a link that leads nowhere"},
     .command = "quantize job.yaml"},
    {"output_is_the_model", NULL, "output_dir=model", 78, {"output_dir: 'model' is also"}},
    {"output_is_the_model_1",
     NULL,
     "output_dir=model/",
     78,
     {"output_dir: 'model/' is also model_name_or_path"}},
    {"output_is_the_model_2",
     NULL,
     "output_dir=./model",
     78,
     {"output_dir: './model' is also model_name_or_path"}},
    {"output_is_the_model_3",
     NULL,
     "output_dir=model/.",
     78,
     {"output_dir: 'model/.' is also model_name_or_path"}},
    {"output_is_the_model_4",
     NULL,
     "output_dir=model//",
     78,
     {"output_dir: 'model//' is also model_name_or_path"}},
    {"output_is_the_model_5",
     NULL,
     "output_dir=model/../model",
     78,
     {"output_dir: 'model/../model' is also model_name_or_path"}},
    {"output_links_to_the_model",
     model_has_another_name,
     "output_dir=alias",
     78,
     {"output_dir: 'alias' is also model_name_or_path"}},
    {"output_is_the_model_in_full",
     model_by_its_whole_path,
     NULL,
     78,
     {"/model' is also model_name_or_path"}},
    {"output_is_the_model_by_a_detour",
     NULL,
     "output_dir=model/new/..",
     78,
     {"model/new is not there"}},
    {"quantize_into_the_model_by_a_detour",
     NULL,
     NULL,
     78,
     {"model/new is not there"},
     .command = "quantize job.yaml output_dir=model/new/more/../.."},
    {"quantize_into_the_model",
     NULL,
     NULL,
     78,
     {"output_dir: './model' is also"},
     .command = "quantize job.yaml output_dir=./model overwrite_output_dir=true"},
    {"merge_into_the_model",
     adapter_is_there,
     NULL,
     78,
     {"output_dir: 'model/.' is also"},
     .command = "merge job.yaml output_dir=model/."},
    {"merge_into_the_adapter",
     adapter_is_there,
     NULL,
     78,
     {"output_dir: 'adapter/' is also init_adapter"},
     .command = "merge job.yaml output_dir=adapter/"},
    {"output_is_the_adapter",
     adapter_is_there,
     "output_dir=./adapter",
     78,
     {"output_dir: './adapter' is also init_adapter"}},
    {"output_holds_the_adapter",
     adapter_is_a_checkpoint,
     NULL,
     78,
     {"removes the checkpoints in 'out', and init_adapter"}},
    {"output_below_a_file",
     output_is_a_file,
     "output_dir=out/deep",
     78,
     {"output_dir out/deep: out is a file"}},
    {"too_little_memory",
     NULL,
     "memory_budget=4MiB",
     78,
     {"memory_budget allows", "one layer's values and gradients", "smallest change that fits: "}},
    {"too_little_memory_n2",
     long_rows,
     "memory_budget=1MiB",
     78,
     {"memory_budget allows", "one layer's values and gradients", "smallest change that fits: "},
     2},
    {"group_does_not_divide",
     NULL,
     "shard_group_size=2",
     78,
     {"shard_group_size is 2, but the job has 3 ranks"},
     3},
    {"sharers_do_not_divide",
     NULL,
     "context_parallel_size=2",
     78,
     {"context_parallel_size is 2, but the job has 3 ranks",
      "it must divide them: start another number (mpirun -n"},
     3},
    SHARED("sharers_of_one_rank", "context_parallel_size=3", NULL,
           "context_parallel_size is 3, but the job has 2 ranks",
           "or --ranks of a plan), or write 1"),
    SHARED("shared_delta_rule", "context_parallel_size=2", CLI_FAMILIES "/qwen3_5/checkpoint",
           "what model_name_or_path names: ", "write context_parallel_size: 1"),
    SHARED("sharers_none", "context_parallel_size=0", NULL, "context_parallel_size: found '0'",
           "from 1 to 1024"),
    {"shared_adapters",
     two_adapters,
     NULL,
     78,
     {"what adapter_mixing names", "write context_parallel_size: 1"},
     .command = "plan job.yaml --ranks 2"},
#ifdef TSR_CUDA
    SHARED(
        "shared_in_odd_spans",
        "context_parallel_size=2 context_span=8208 backend=cuda memory_budget=8GiB", NULL,
        "context_span is 8208; with context_parallel_size 2 on GPUs it must be a multiple of 128",
        "override context_span=8208"),
#endif
    {"no_such_module",
     NULL,
     "lora_target_modules=[qq_proj]",
     78,
     {"lora_target_modules [qq_proj] matches no linear", "candidates: down_proj"}},
    {"no_such_layer", NULL, "layers_to_transform=[0,9]", 78, {"layer 9 is not in the model"}},
    {"bad_pattern", bad_pattern, NULL, 78, {"job.yaml:5: rank_pattern: found '0'"}},
    {"other_key_on_one_rank",
     NULL,
     "learning_rate=1e-3",
     76,
     {"lora_alpha differs between the ranks", "same job.yaml"},
     3,
     NULL,
     "if [ $RANK = 1 ]; then exec \"$@\" lora_alpha=7; fi; exec \"$@\""},
    {"bad_key_on_one_rank",
     NULL,
     NULL,
     78,
     {"lora_alpha"},
     3,
     NULL,
     "if [ $RANK = 2 ]; then exec \"$@\" lora_alpha=-7; fi; exec \"$@\""},
    {"bad_line_on_one_rank",
     NULL,
     NULL,
     64,
     {"--learning_rate?"},
     2,
     NULL,
     "if [ $RANK = 1 ]; then exec \"$@\" --lerning_rate 1; fi; exec \"$@\""},
};
const size_t cli_bad_config_count = sizeof cli_bad_config / sizeof *cli_bad_config;
