#include "cli/usage.h"

#include "base/called.h"
#include "base/near.h"
#include "base/version.h"
#include "cli/directory.h"
#include "cli/key_option.h"
#include "config/config.h"
#include "config/config_number.h"
#include "config/keys.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

typedef tsr_usage_verb command_row;

#define VERBOSE "    -v          also say how formats, plan and graphs were decided\n"

static const command_row commands[] = {
    {"train", TSR_COMMAND_TRAIN, "mpirun -n N tessera train job.yaml [key=value ...] [-v]",
     "fine-tune; one rank needs no mpirun", VERBOSE,
     "    tessera train job.yaml lora_r=8 learning_rate=1e-3\n"
     "    tessera train --config job.yaml --lora_r 8 --output_dir runs/r8\n",
     "sft"},
    {"resume", TSR_COMMAND_TRAIN, "mpirun -n N tessera resume RUN [key=value ...] [-v]",
     "continue a run from its newest checkpoint, or from the checkpoint that is named", VERBOSE,
     "    tessera resume runs/first\n"
     "    tessera resume runs/first/checkpoint-200 max_steps=400\n",
     .resumes = true},
    {"plan", TSR_COMMAND_PLAN,
     "tessera plan job.yaml [key=value ...] [--ranks N] [--node N] [--roofs FILE] "
     "[--longest] [--all] [--json]",
     "whether it fits, what needs the memory, and the expected time of a step; reads no weights",
     "    --ranks N   plan for N ranks; N,N,...: compare them, and shard groups of a node with "
     "one\n"
     "    --node N    ranks of a node [all]\n"
     "    --roofs FILE   what the machines sustain: of tessera env --measure --json, or of\n"
     "                bench/results [what tessera env --measure saved on this machine]\n"
     "    --longest   the longest row (max_length) that fits, and its plan; reads no data\n"
     "    --all       every buffer with its shape, what was compared, and how it was decided\n"
     "    --json      all of it as JSON on stdout\n",
     "    tessera plan job.yaml --ranks 8 memory_budget=22GiB\n"
     "    tessera plan job.yaml --ranks 8,64,1024 --node 8 --roofs h200.json\n"
     "    tessera plan job.yaml --longest memory_budget=80GiB\n"},
    {"eval", TSR_COMMAND_EVAL, "mpirun -n N tessera eval job.yaml [key=value ...] [--json]",
     "mean loss and perplexity over eval_dataset or validation_split, with or without an adapter",
     "    --json      the result as JSON on stdout\n\n"
     "The adapter is init_adapter; of a run's own job.yaml that run's; init_adapter=none: none\n",
     "    tessera eval runs/first/job.yaml\n", "evaluate"},
    {"translate", TSR_COMMAND_TRANSLATE, "tessera translate FILE.yaml [key=value ...]",
     "write a file of axolotl, LLaMA-Factory or TRL as a job.yaml, on stdout; train reads them too",
     NULL, "    tessera translate qlora.yml > job.yaml\n"},
    {"data", TSR_COMMAND_DATA,
     "tessera data job.yaml [key=value ...] [--show N] [--html FILE] [--json]",
     "statistics of the tokenised data; reads no weights",
     "    --show N     the first N samples with their trained tokens marked\n"
     "    --html FILE  a page with figures, lengths and the first samples (5, or N), which loads "
     "nothing\n"
     "    --json       statistics and samples as JSON on stdout\n",
     "    tessera data job.yaml --show 2\n"
     "    tessera data job.yaml dataset=train.jsonl packing=true --json\n"
     "    tessera data job.yaml --html data.html\n"},
    {"merge", TSR_COMMAND_MERGE, "tessera merge job.yaml [key=value ...] [--json]",
     "merge the adapter into the base: a bf16 checkpoint that Transformers loads",
     "    --json      what was written, as JSON on stdout\n\n"
     "Keys, of job.yaml or after it; a training's other keys are allowed and not used:\n"
     "    model_name_or_path    the unquantized base; a 4-bit one is dequantized, with a warning\n"
     "    init_adapter          the PEFT directory to merge: LoRA, rsLoRA or DoRA [of a run's own\n"
     "                          job.yaml the run's adapter]\n"
     "    output_dir            where the model is written, complete or not at all\n"
     "    overwrite_output_dir  true: replace a model that is there\n",
     "    tessera merge runs/first/job.yaml output_dir=merged\n"},
    {"quantize", TSR_COMMAND_QUANTIZE, "tessera quantize job.yaml [key=value ...] [--json]",
     "write an NF4 checkpoint as bitsandbytes does, which loads without quantizing again",
     "    --json      what was written, as JSON on stdout\n\n"
     "Keys, of job.yaml or after it; a training's other keys are allowed and not used:\n"
     "    model_name_or_path    the unquantized base\n"
     "    use_bnb_nested_quant  [true] scales in 8 bits too (double quantization)\n"
     "    output_dir            where the model is written, complete or not at all\n"
     "    overwrite_output_dir  true: replace a model that is there\n",
     "    tessera quantize job.yaml model_name_or_path=Llama-3.2-1B output_dir=Llama-3.2-1B-nf4\n"},
    {"inspect", TSR_COMMAND_INSPECT, "tessera inspect PATH [OTHER] [--json] [--plot FILE.svg]",
     "show what a run, checkpoint, adapter, model, safetensors file or trace holds; list the runs "
     "in a directory; compare two",
     "    OTHER       show what differs between two runs, or two traces\n"
     "    --json      as JSON on stdout\n"
     "    --plot FILE.svg   of a run: loss, evaluation loss and learning rate over the steps\n",
     "    tessera inspect runs/first --plot loss.svg\n"
     "    tessera inspect runs\n"
     "    tessera inspect runs/first runs/r8\n"
     "    tessera inspect before.json after.json\n"},
    {"env", TSR_COMMAND_ENV, "tessera env [--measure] [--json]",
     "backends, processor, GPUs, topology, library versions, limits, and what is missing",
     "    --measure   also what this machine sustains: copies and matmuls, a few seconds each\n"
     "    --json      as JSON on stdout\n",
     "    tessera env --measure --json > machine.json\n"},
};

#define COMMANDS (int)(sizeof commands / sizeof *commands)

const tsr_usage_verb *tsr_usage_verb_at(int index)
{
    return index < COMMANDS ? &commands[index] : NULL;
}

static void put_overview(tsr_text *out)
{
    tsr_text_printf(out, "tessera %s: distributed QLoRA and DoRA fine-tuning\n\n",
                    tsr_build_version());
    for (int i = 0; i < COMMANDS; i++)
        tsr_text_printf(out, "  %s\n      %s\n", commands[i].line, commands[i].what);
    tsr_text_printf(
        out,
        "  tessera version | --help | COMMAND --help\n"
        "\nAll keys of job.yaml: %s train --help; one: --help KEY, as in --help lora_r\n",
        tsr_called());
}

/* Lines to type, with the program as it is called here. */
static void put_example(tsr_text *out, const char *lines)
{
    static const char indent[] = "    ", name[] = "tessera";
    for (const char *end; *lines; lines = end) {
        size_t skip = sizeof indent - 1 + sizeof name - 1;
        end = strchr(lines, '\n') + 1;
        tsr_text_printf(out, "%s%s", indent, tsr_called());
        tsr_text_append(out, lines + skip, (size_t)(end - lines) - skip);
    }
}

static void put_command_help(tsr_text *out, const command_row *row)
{
    bool all = row->command == TSR_COMMAND_TRAIN && !row->resumes;
    tsr_text_printf(out, "%s\n    %s\n%s\nExample:\n", row->line, row->what,
                    row->options ? row->options : "");
    put_example(out, row->example);
    if (row->command == TSR_COMMAND_TRAIN || row->command == TSR_COMMAND_PLAN ||
        row->command == TSR_COMMAND_EVAL || row->command == TSR_COMMAND_DATA)
        tsr_text_printf(
            out,
            "\nKeys of job.yaml, and of key=value or --key value after it, which wins%s; "
            "lists and maps in YAML flow:\n    lora_target_modules=[q_proj,v_proj]\n",
            all ? "" : ": see `tessera train --help`");
    if (!all)
        return;
    tsr_text_puts(out, "One key in full: --help KEY. [default; TRL's where it differs]\n\n");
    tsr_config_help(out);
}

static tsr_status take_text(tsr_usage *out, tsr_text *text)
{
    if (text->failed) {
        tsr_text_free(text);
        return tsr_fail(TSR_ENOMEM, "out of memory: help text");
    }
    *out = (tsr_usage){.command = TSR_COMMAND_TEXT, .text = *text};
    return TSR_OK;
}

static bool is_help(const char *arg)
{
    return !strcmp(arg, "--help") || !strncmp(arg, "--help=", 7) || !strcmp(arg, "-h") ||
           !strcmp(arg, "help");
}

static tsr_status unknown_command(const char *name)
{
    const char *best = NULL;
    int distance = 3;
    struct stat info;
    if (stat(name, &info) == 0)
        return tsr_fail(TSR_EUSAGE, "'%.200s' is a %s, and a command is missing: %s %s %.200s",
                        name, S_ISDIR(info.st_mode) ? "directory" : "file", tsr_called(),
                        S_ISDIR(info.st_mode) ? "inspect" : "train", name);
    for (int i = 0; i < COMMANDS; i++) {
        tsr_keys_consider(&best, &distance, name, commands[i].name);
        if (commands[i].also)
            tsr_keys_consider(&best, &distance, name, commands[i].also);
    }
    tsr_keys_consider(&best, &distance, name, "version");
    return tsr_fail(TSR_EUSAGE, "no command '%.60s'%s%s%s; `%s --help` lists the commands", name,
                    best ? "; did you mean '" : "", best ? best : "", best ? "'?" : "",
                    tsr_called());
}

/* "--rank": the option of the line, "[--ranks N]", that is nearest; false if none is near. */
static bool find_option(char out[32], const command_row *row, const char *arg)
{
    int distance = 3;
    char name[32];
    for (const char *p = row->line; (p = strstr(p, "[--")) != NULL; p++) {
        snprintf(name, sizeof name, "%.*s", (int)strcspn(p + 1, " ]"), p + 1);
        int d = tsr_near_distance(arg, name, distance - 1);
        if (d < distance) {
            distance = d;
            strcpy(out, name);
        }
    }
    return distance < 3;
}

/* --lerning_rate 1e-3: shows --learning_rate. */
static tsr_status wrong_option(const command_row *row, const char *arg)
{
    const char *p = arg + strspn(arg, "-");
    tsr_auto_text key = {0};
    for (size_t i = 0; p[i] && p[i] != '='; i++)
        tsr_text_append(&key, p[i] == '-' ? "_" : &p[i], 1);
    const char *near = tsr_keys_nearest(tsr_text_string(&key));
    return near ? tsr_fail(TSR_EUSAGE, "%s: no such option; did you mean --%s?", arg, near)
                : tsr_fail(TSR_EUSAGE,
                           "%s: no such option; keys are written key=value or --key value, such "
                           "as lora_r=8; usage: %s",
                           arg, row->line);
}

static tsr_status read_file(const char **out, const char *name, const char *text,
                            const char *example)
{
    if (!text || !*text || *text == '-')
        return tsr_fail(TSR_EUSAGE, "%s: the file is missing, such as %s %s", name, name, example);
    *out = text;
    return TSR_OK;
}

static bool ends_in(const char *file, const char *end)
{
    size_t length = strlen(file), bytes = strlen(end);
    return length > bytes && !strcasecmp(file + length - bytes, end);
}

/* What is in loss.png, and is no PNG, opens nowhere. */
static tsr_status check_svg(const char *file)
{
    if (ends_in(file, ".svg"))
        return TSR_OK;
    return tsr_fail(TSR_EUSAGE,
                    "--plot: found %s; the plot is an SVG: expected a name that ends in .svg, such "
                    "as loss.svg",
                    file);
}

static tsr_status check_html(const char *file)
{
    if (ends_in(file, ".html") || ends_in(file, ".htm"))
        return TSR_OK;
    return tsr_fail(TSR_EUSAGE,
                    "--html: found %s; expected a name that ends in .html, such as data.html",
                    file);
}

/* --NAME N or --NAME=N. */
static bool is_option(const char *arg, const char *name)
{
    size_t length = strlen(name);
    return !strncmp(arg, name, length) && (!arg[length] || arg[length] == '=');
}

static tsr_status read_count(int64_t *out, const char *name, const char *arg, const char *next,
                             int *index)
{
    bool apart = !arg[strlen(name)];
    const char *text = apart ? next : arg + strlen(name) + 1;
    if (!text || !tsr_number_parse_whole(out, text) || *out < 1 || *out > 65536)
        return tsr_fail(TSR_EUSAGE,
                        "%s: found %s%s%s; expected a whole number from 1 to 65536, such as %s 4",
                        name, text ? "'" : "", text ? text : "nothing", text ? "'" : "", name);
    *index += apart;
    return TSR_OK;
}

/* --ranks N or --ranks N,N,... */
static tsr_status read_ranks(tsr_usage *usage, const char *arg, const char *next, int *index)
{
    bool apart = !arg[strlen("--ranks")];
    const char *text = apart ? next : arg + strlen("--ranks=");
    char number[16];
    usage->rank_count = 0;
    for (const char *p = text; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL) {
        int64_t value;
        int unused = 0;
        size_t length = strcspn(p, ",");
        snprintf(number, sizeof number, "%.*s", (int)length, p);
        TSR_TRY(
            read_count(&value, "--ranks", "--ranks", length < sizeof number ? number : p, &unused));
        if (usage->rank_count == TSR_USAGE_RANKS)
            return tsr_fail(TSR_EUSAGE, "--ranks: at most %d numbers can be compared",
                            TSR_USAGE_RANKS);
        usage->ranks[usage->rank_count++] = (int)value;
    }
    *index += apart;
    int64_t none;
    return text ? TSR_OK : read_count(&none, "--ranks", "--ranks", NULL, index);
}

/* Whether the line names a job.yaml, with keys after it. */
bool tsr_usage_takes_job(const command_row *row)
{
    return row->command != TSR_COMMAND_INSPECT && row->command != TSR_COMMAND_ENV;
}

/* No key has a slash or a dot: runs/lr=1e-3/job.yaml is a path. So is lr=1/job.yaml, where it is a file. */
static bool is_override(const tsr_usage *usage, const char *arg)
{
    struct stat info;
    size_t key = strcspn(arg, "=");
    if (!key || !arg[key] || strcspn(arg, "/.") < key)
        return false;
    return usage->job_path || stat(arg, &info) != 0 || !S_ISREG(info.st_mode);
}

static tsr_status set_path(tsr_usage *usage, const char *path)
{
    free(usage->job_path);
    usage->job_path = strdup(path);
    return usage->job_path ? TSR_OK : tsr_fail(TSR_ENOMEM, "out of memory: command line");
}

static tsr_status add_override(tsr_usage *usage, const char *text)
{
    usage->overrides[usage->override_count] = strdup(text);
    if (!usage->overrides[usage->override_count])
        return tsr_fail(TSR_ENOMEM, "out of memory: command line");
    usage->override_count++;
    return TSR_OK;
}

static tsr_status add_option(tsr_usage *usage, char *const *args, int count, int *index)
{
    tsr_text override = {0};
    tsr_status status =
        tsr_key_option_parse(&override, args, count, index, usage->job_path != NULL);
    if (status == TSR_OK)
        status = add_override(usage, tsr_text_string(&override));
    tsr_text_free(&override);
    return status;
}

/* TRL's --config job.yaml. */
static tsr_status read_job(tsr_usage *usage, const char *arg, const char *next, int *index)
{
    bool apart = !arg[sizeof "--config" - 1];
    if (usage->job_path)
        return tsr_fail(TSR_EUSAGE, "%s: the job.yaml is %s already", arg, usage->job_path);
    *index += apart;
    const char *path = NULL;
    TSR_TRY(read_file(&path, "--config", apart ? next : arg + sizeof "--config", "job.yaml"));
    return set_path(usage, path);
}

/* The model says that a line of keys alone is a whole job. */
static bool names_model(const tsr_usage *usage)
{
    static const char *const keys[] = {"model_name_or_path=", "base_model="};
    for (int i = 0; i < usage->override_count; i++)
        for (int k = 0; k < 2; k++)
            if (!strncmp(usage->overrides[i], keys[k], strlen(keys[k])))
                return true;
    return false;
}

/* A word that is no key=value: of lora_r = 8 or lora_r: 8, say. */
static tsr_status wrong_word(const tsr_usage *usage, const command_row *row, const char *arg)
{
    tsr_auto_text name = {0};
    tsr_text_append(&name, arg, strcspn(arg, ":="));
    bool known = tsr_keys_known(tsr_text_string(&name));
    tsr_text_puts(&name, "=VALUE");
    return tsr_fail(TSR_EUSAGE,
                    "'%.200s': expected key=value after %s, without spaces, such as %s; usage: %s",
                    arg, usage->job_path, known ? tsr_text_string(&name) : "lora_r=8", row->line);
}

/* What an option without a value sets; NULL: `arg` is none of this command's. */
static bool *flag_of(tsr_usage *usage, const command_row *row, const char *arg)
{
    bool plans = row->command == TSR_COMMAND_PLAN, job = tsr_usage_takes_job(row);
    const struct {
        const char *name;
        bool known;
        bool *set;
    } flags[] = {{"--json", row->command != TSR_COMMAND_TRAIN, &usage->json},
                 {"-v", job, &usage->verbose},
                 {"--verbose", job, &usage->verbose},
                 {"--measure", row->command == TSR_COMMAND_ENV, &usage->measure},
                 {"--all", plans, &usage->all},
                 {"--longest", plans, &usage->longest}};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (flags[i].known && !strcmp(arg, flags[i].name))
            return flags[i].set;
    return NULL;
}

/* One argument; *index moves over a value that belongs to it. */
static tsr_status parse_argument(tsr_usage *usage, const command_row *row, char *const *args,
                                 int count, int *index)
{
    const char *arg = args[*index], *next = *index + 1 < count ? args[*index + 1] : NULL;
    bool *flag = flag_of(usage, row, arg);
    if (flag) {
        *flag = true;
        return TSR_OK;
    }
    if (row->command == TSR_COMMAND_INSPECT && is_option(arg, "--plot")) {
        *index += !arg[6];
        TSR_TRY(read_file(&usage->plot, "--plot", arg[6] ? arg + 7 : next, "loss.svg"));
        return check_svg(usage->plot);
    }
    if (row->command == TSR_COMMAND_PLAN && is_option(arg, "--roofs")) {
        *index += !arg[7];
        return read_file(&usage->roofs, "--roofs", arg[7] ? arg + 8 : next, "machine.json");
    }
    if (row->command == TSR_COMMAND_PLAN && is_option(arg, "--ranks"))
        return read_ranks(usage, arg, next, index);
    if (row->command == TSR_COMMAND_PLAN && is_option(arg, "--node"))
        return read_count(&usage->node, "--node", arg, next, index);
    if (row->command == TSR_COMMAND_DATA && is_option(arg, "--html")) {
        *index += !arg[6];
        TSR_TRY(read_file(&usage->html, "--html", arg[6] ? arg + 7 : next, "data.html"));
        return check_html(usage->html);
    }
    if (row->command == TSR_COMMAND_DATA && is_option(arg, "--show"))
        return read_count(&usage->show, "--show", arg, next, index);
    bool job = tsr_usage_takes_job(row);
    char option[32];
    if (job && is_option(arg, "--config"))
        return read_job(usage, arg, next, index);
    if (job && tsr_key_option_known(arg))
        return add_option(usage, args, count, index);
    if (*arg == '-' && find_option(option, row, arg))
        return tsr_fail(TSR_EUSAGE, "%s: no such option; did you mean %s? Usage: %s", arg, option,
                        row->line);
    if (*arg == '-' && !job)
        return tsr_fail(TSR_EUSAGE, "%s: no such option; usage: %s", arg, row->line);
    if (*arg == '-')
        return wrong_option(row, arg);
    if (job && is_override(usage, arg))
        return add_override(usage, arg);
    if (!usage->job_path && row->command != TSR_COMMAND_ENV)
        return set_path(usage, arg);
    if (row->command == TSR_COMMAND_INSPECT && !usage->other) {
        usage->other = arg;
        return TSR_OK;
    }
    if (!job)
        return tsr_fail(TSR_EUSAGE, "'%.200s': unexpected argument; usage: %s", arg, row->line);
    return wrong_word(usage, row, arg);
}

/* Keys that a directory stands for come first: those of the command line win. */
static tsr_status put_first(tsr_usage *usage, char *const *keys, int count)
{
    int given = usage->override_count;
    for (int i = 0; i < count; i++)
        TSR_TRY(add_override(usage, keys[i]));
    for (int i = 0; i < given; i++) { /* the first to the end, one after the other */
        const char *first = usage->overrides[0];
        memmove(usage->overrides, usage->overrides + 1,
                (size_t)(usage->override_count - 1) * sizeof *usage->overrides);
        usage->overrides[usage->override_count - 1] = first;
    }
    return TSR_OK;
}

/* Rows in place of the job.yaml that names them. */
static tsr_status check_job(const char *path)
{
    static const char *const ends[] = {".parquet", ".jsonl", ".ndjson", ".csv",
                                       ".tsv",     ".gz",    ".zst"};
    size_t length = strlen(path);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (length > strlen(ends[i]) && !strcmp(path + length - strlen(ends[i]), ends[i]))
            return tsr_fail(TSR_EUSAGE,
                            "%s: a file of rows, expected a job.yaml; name it there, dataset: %s",
                            path, path);
    return TSR_OK;
}

/* A run's directory, say, instead of a job.yaml. */
static tsr_status take_directory(tsr_usage *usage, const command_row *row)
{
    static char *const resumed[] = {"resume_from_checkpoint=true", "overwrite_output_dir=false"};
    struct stat info;
    tsr_directory_job job;
    if (usage->job_path && tsr_usage_takes_job(row))
        TSR_TRY(check_job(usage->job_path));
    if (!usage->job_path || !tsr_usage_takes_job(row) || stat(usage->job_path, &info) != 0 ||
        !S_ISDIR(info.st_mode))
        return row->resumes && usage->job_path ? put_first(usage, resumed, 2) : TSR_OK;
    TSR_TRY(tsr_directory_job_find(&job, usage->job_path, row->command, row->resumes));
    free(usage->job_path);
    usage->job_path = job.job;
    job.job = NULL;
    tsr_status status = put_first(usage, job.keys, job.key_count);
    tsr_directory_job_free(&job);
    return status;
}

/* TRL has a command for each objective; here it is train with this key. NULL: `name` is no objective. */
static char *objective_key(const char *name)
{
    static char keys[][20] = {"objective=dpo", "objective=orpo", "objective=cpo", "objective=kto",
                              "objective=reward"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!strcmp(name, strchr(keys[i], '=') + 1))
            return keys[i];
    return NULL;
}

static tsr_status parse_command(tsr_usage *out, const command_row *row, const char *name, int count,
                                char *const *args)
{
    char *key = objective_key(name);
    tsr_usage usage = {.command = row->command};
    tsr_status status = TSR_OK;
    usage.overrides = calloc((size_t)count + TSR_DIRECTORY_KEYS + 2, sizeof *usage.overrides);
    if (!usage.overrides)
        return tsr_fail(TSR_ENOMEM, "out of memory: command line");
    for (int i = 0; i < count && status == TSR_OK; i++)
        status = parse_argument(&usage, row, args, count, &i);
    if (status == TSR_OK && key)
        status = put_first(&usage, &key, 1);
    if (status == TSR_OK)
        status = take_directory(&usage, row);
    if (status == TSR_OK && !usage.job_path && row->command != TSR_COMMAND_ENV &&
        !names_model(&usage))
        status = tsr_fail(TSR_EUSAGE, "%s: the %s is missing; usage: %s", row->name,
                          row->resumes               ? "run's directory"
                          : tsr_usage_takes_job(row) ? "job.yaml"
                                                     : "path to inspect",
                          row->line);
    if (status == TSR_OK && usage.plot && usage.other)
        status = tsr_fail(TSR_EUSAGE, "--plot draws a run: found '%.200s' too; usage: %s",
                          usage.other, row->line);
    if (status == TSR_OK && usage.longest && usage.rank_count > 1)
        status = tsr_fail(TSR_EUSAGE, "--longest is for one number of ranks, and --ranks has %d",
                          usage.rank_count);
    if (status < 0)
        tsr_usage_free(&usage);
    else
        *out = usage;
    return status;
}

static const command_row *find_command(const char *name)
{
    for (int i = 0; i < COMMANDS; i++)
        if (!strcmp(name, commands[i].name) ||
            (commands[i].also && !strcmp(name, commands[i].also)))
            return &commands[i];
    return objective_key(name) ? find_command("train") : NULL;
}

/* The KEY of --help KEY and --help=KEY: a word, with its dashes or without, no path; NULL: there is none. */
static const char *help_key(const char *option, const char *next)
{
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
    const char *equals = strchr(option, '=');
    if (equals)
        return equals + 1;
    return next && !next[strspn(next, letters)] && (*next != '-' || tsr_key_option_known(next))
               ? next
               : NULL;
}

static tsr_status give_key_help(tsr_usage *out, const char *key)
{
    tsr_text text = {0};
    tsr_auto_text name = {0};
    for (const char *p = key + strspn(key, "-"); *p; p++)
        tsr_text_append(&name, *p == '-' ? "_" : p, 1);
    tsr_status status = tsr_config_help_key(&text, tsr_text_string(&name));
    if (status == TSR_OK)
        return take_text(out, &text);
    tsr_text_free(&text);
    return status;
}

/* `--help [KEY]` anywhere behind a command, or instead of it; `help [COMMAND or KEY]`. */
static tsr_status give_help(tsr_usage *out, const command_row *row, const char *option,
                            const char *next)
{
    tsr_text text = {0};
    const char *key = help_key(option, next);
    if (!row && key && find_command(key)) {
        row = find_command(key);
        key = NULL;
    }
    if (key)
        return give_key_help(out, key);
    if (row)
        put_command_help(&text, row);
    else
        put_overview(&text);
    return take_text(out, &text);
}

tsr_status tsr_usage_parse(tsr_usage *out, int argc, char *const *argv)
{
    tsr_text text = {0};
    if (argc < 2) {
        put_overview(&text);
        tsr_status status =
            tsr_fail_lines(TSR_EUSAGE, "a command is missing\n\n%s", tsr_text_string(&text));
        tsr_text_free(&text);
        return status;
    }
    if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "version")) {
        tsr_text_printf(&text, "tessera %s (%s)\n", tsr_build_version(), tsr_build_commit());
        return take_text(out, &text);
    }
    const command_row *row = find_command(argv[1]);
    if (!row && !is_help(argv[1]))
        return unknown_command(argv[1]);
    for (int i = row ? 2 : 1; i < argc; i++)
        if (!row || is_option(argv[i], "--help") || !strcmp(argv[i], "-h"))
            return give_help(out, row, argv[i], i + 1 < argc ? argv[i + 1] : NULL);
    return parse_command(out, row, argv[1], argc - 2, argv + 2);
}

void tsr_usage_free(tsr_usage *usage)
{
    for (int i = 0; i < usage->override_count; i++)
        free((char *)usage->overrides[i]);
    free(usage->overrides);
    free(usage->job_path);
    tsr_text_free(&usage->text);
    *usage = (tsr_usage){0};
}
