/*
 * The command line: what is parsed, what is refused and what the refusal shows; and how the program
 * ends where its output or its input is no file, and by signals.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/version.h"
#include "cli/options.h"
#include "cli/usage.h"
#include "config/keys.h"
#include "support/scratch.h"

#define MAX_ARGS 10

static tsr_status parse(tsr_usage *out, const char *const *args)
{
    char *argv[MAX_ARGS + 1] = {(char *)"tessera"};
    int argc = 1;
    while (argc < MAX_ARGS && args[argc - 1]) {
        argv[argc] = (char *)args[argc - 1];
        argc++;
    }
    return tsr_usage_parse(out, argc, argv);
}

#define ARGS(...) ((const char *const[MAX_ARGS]){__VA_ARGS__})

static void test_commands(void **state)
{
    (void)state;
    tsr_usage u;
    assert_int_equal(parse(&u, ARGS("train", "job.yaml", "lora_r=8", "output_dir=a=b")), TSR_OK);
    assert_int_equal(u.command, TSR_COMMAND_TRAIN);
    assert_string_equal(u.job_path, "job.yaml");
    assert_int_equal(u.override_count, 2);
    assert_string_equal(u.overrides[1], "output_dir=a=b");
    assert_false(u.json);
    tsr_usage_free(&u);
    assert_int_equal(parse(&u, ARGS("plan", "--json", "--ranks", "4", "job.yaml")), TSR_OK);
    assert_int_equal(u.command, TSR_COMMAND_PLAN);
    assert_int_equal(u.ranks[0], 4);
    assert_true(u.json);
    assert_int_equal(u.override_count, 0);
    tsr_usage_free(&u);
    assert_int_equal(parse(&u, ARGS("plan", "job.yaml", "--ranks=8")), TSR_OK);
    assert_int_equal(u.ranks[0], 8);
    assert_int_equal(u.rank_count, 1);
    tsr_usage_free(&u);
    assert_int_equal(parse(&u, ARGS("plan", "job.yaml", "--ranks", "8,64,1024", "--node=8",
                                    "--roofs", "r.json")),
                     TSR_OK);
    assert_int_equal(u.rank_count, 3);
    assert_int_equal(u.ranks[2], 1024);
    assert_int_equal(u.node, 8);
    assert_string_equal(u.roofs, "r.json");
    tsr_usage_free(&u);
    assert_int_equal(parse(&u, ARGS("plan", "job.yaml", "--longest", "--all", "--ranks", "2")),
                     TSR_OK);
    assert_true(u.longest && u.all && u.ranks[0] == 2);
    tsr_usage_free(&u);
    assert_int_equal(parse(&u, ARGS("data", "job.yaml", "--show", "3", "--json")), TSR_OK);
    assert_int_equal(u.command, TSR_COMMAND_DATA);
    assert_int_equal(u.show, 3);
    assert_null(u.html);
    assert_true(u.json);
    tsr_usage_free(&u);
    assert_int_equal(parse(&u, ARGS("data", "job.yaml", "--html=page.html")), TSR_OK);
    assert_string_equal(u.html, "page.html");
    tsr_usage_free(&u);
    assert_int_equal(parse(&u, ARGS("eval", "x=1", "job.yaml")), TSR_OK);
    assert_int_equal(u.command, TSR_COMMAND_EVAL);
    assert_int_equal(u.ranks[0], 0);
    tsr_usage_free(&u);
    /* a path may hold '=', as a value may hold '/' */
    assert_int_equal(parse(&u, ARGS("eval", "runs/lr=1e-3/job.yaml", "init_adapter=a/lr=1.5")),
                     TSR_OK);
    assert_string_equal(u.job_path, "runs/lr=1e-3/job.yaml");
    assert_int_equal(u.override_count, 1);
    assert_string_equal(u.overrides[0], "init_adapter=a/lr=1.5");
    tsr_usage_free(&u);
    assert_int_equal(parse(&u, ARGS("train", "./r=8.yaml", "lora_r=8")), TSR_OK);
    assert_string_equal(u.job_path, "./r=8.yaml");
    tsr_usage_free(&u);
}

/* Keys as HfArgumentParser takes them, and other names of commands. */
static void test_key_options(void **state)
{
    (void)state;
    static const struct {
        const char *args[MAX_ARGS];
        const char *path, *overrides[5];
    } cases[] = {
        {{"sft", "--config", "a.yaml", "--learning_rate", "2e-4"},
         "a.yaml",
         {"learning_rate=2e-4"}},
        {{"train", "--config=a.yaml", "--learning_rate=2e-4"}, "a.yaml", {"learning_rate=2e-4"}},
        {{"evaluate", "a.yaml", "--learning-rate", "1"}, "a.yaml", {"learning_rate=1"}},
        {{"train", "a.yaml", "--packing", "--no_shuffle"},
         "a.yaml",
         {"packing=true", "shuffle=false"}},
        {{"dpo", "a.yaml", "--no_remove_unused_columns", "--lora_r", "8"},
         "a.yaml",
         {"objective=dpo", "remove_unused_columns=false", "lora_r=8"}},
        {{"train", "--packing", "a.yaml"}, "a.yaml", {"packing=true"}},
        {{"train", "--packing", "0", "a.yaml"}, "a.yaml", {"packing=false"}},
        {{"train", "--packing=no", "a.yaml"}, "a.yaml", {"packing=false"}},
        {{"train", "--packing", "lora_r=8", "a.yaml"}, "a.yaml", {"packing=true", "lora_r=8"}},
        {{"train", "a.yaml", "--gradient_checkpointing", "full", "--bf16"},
         "a.yaml",
         {"gradient_checkpointing=full", "bf16=true"}},
        {{"train", "a.yaml", "--max_steps", "-1", "--output_dir", "a=b"},
         "a.yaml",
         {"max_steps=-1", "output_dir=a=b"}},
        {{"train", "a.yaml", "--resume_from_checkpoint", "o/checkpoint-2"},
         "a.yaml",
         {"resume_from_checkpoint=o/checkpoint-2"}},
        {{"train", "--resume_from_checkpoint", "a.yaml"},
         "a.yaml",
         {"resume_from_checkpoint=true"}},
        {{"train", "--lora_target_modules", "q_proj", "v_proj", "a.yaml"},
         "a.yaml",
         {"lora_target_modules=[\"q_proj\", \"v_proj\"]"}},
        {{"train", "a.yaml", "--dataset", "a.jsonl", "b\"c.jsonl", "lora_r=4"},
         "a.yaml",
         {"dataset=[\"a.jsonl\", \"b\\\"c.jsonl\"]", "lora_r=4"}},
        {{"train", "--do_train", "--plot_loss", "a.yaml"},
         "a.yaml",
         {"do_train=true", "plot_loss=true"}},
        {{"train", "--stage", "sft", "--no_packing", "--lora_rank", "8", "a.yaml"},
         "a.yaml",
         {"stage=sft", "packing=false", "lora_rank=8"}},
        {{"sft", "--model_name_or_path", "m", "--dataset_name", "d.jsonl"},
         NULL,
         {"model_name_or_path=m", "dataset_name=d.jsonl"}},
        {{"train", "a.yaml", "--lr_scheduler_kwargs", "{\"min_lr\": 1}"},
         "a.yaml",
         {"lr_scheduler_kwargs={\"min_lr\": 1}"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsr_usage u;
        int count = 0;
        if (parse(&u, cases[i].args) < 0)
            fail_msg("case %zu: %s", i, tsr_last_error());
        assert_int_equal(u.command, strcmp(cases[i].args[0], "evaluate") ? TSR_COMMAND_TRAIN
                                                                         : TSR_COMMAND_EVAL);
        if (cases[i].path)
            assert_string_equal(u.job_path, cases[i].path);
        else
            assert_null(u.job_path);
        for (; count < 5 && cases[i].overrides[count]; count++)
            if (count >= u.override_count ||
                strcmp(u.overrides[count], cases[i].overrides[count]) != 0)
                fail_msg("case %zu: no %s but %s", i, cases[i].overrides[count],
                         count < u.override_count ? u.overrides[count] : "nothing");
        assert_int_equal(u.override_count, count);
        tsr_usage_free(&u);
    }
}

/* output_dir: lora_r=8 makes lora_r=8/job.yaml, which the run's last lines name. */
static void test_path_with_equals(void **state)
{
    (void)state;
    tsr_usage u;
    char directory[] = "/tmp/tessera-usage-XXXXXX", back[4096];
    assert_non_null(mkdtemp(directory));
    assert_non_null(getcwd(back, sizeof back));
    assert_int_equal(chdir(directory), 0);
    assert_int_equal(mkdir("lora_r=8", 0777), 0);
    FILE *file = fopen("lora_r=8/job.yaml", "w");
    assert_non_null(file);
    fclose(file);
    assert_int_equal(parse(&u, ARGS("eval", "lora_r=8/job.yaml", "init_adapter=lora_r=8")), TSR_OK);
    assert_string_equal(u.job_path, "lora_r=8/job.yaml");
    assert_int_equal(u.override_count, 1);
    tsr_usage_free(&u);
    /* a key whose value names a file after the job.yaml, and a directory of that name */
    assert_int_equal(parse(&u, ARGS("train", "a.yaml", "lora_r=8/job.yaml")), TSR_OK);
    assert_int_equal(u.override_count, 1);
    tsr_usage_free(&u);
    assert_int_equal(parse(&u, ARGS("train", "lora_r=8", "a.yaml")), TSR_OK);
    assert_string_equal(u.job_path, "a.yaml");
    assert_int_equal(u.override_count, 1);
    tsr_usage_free(&u);
    assert_int_equal(unlink("lora_r=8/job.yaml") | rmdir("lora_r=8"), 0);
    assert_int_equal(chdir(back) | rmdir(directory), 0);
}

static void test_tools(void **state)
{
    (void)state;
    tsr_usage u;
    assert_int_equal(parse(&u, ARGS("merge", "job.yaml", "init_adapter=a", "--json")), TSR_OK);
    assert_int_equal(u.command, TSR_COMMAND_MERGE);
    assert_string_equal(u.job_path, "job.yaml");
    assert_string_equal(u.overrides[0], "init_adapter=a");
    assert_true(u.json);
    tsr_usage_free(&u);
    assert_int_equal(parse(&u, ARGS("quantize", "job.yaml")), TSR_OK);
    assert_int_equal(u.command, TSR_COMMAND_QUANTIZE);
    tsr_usage_free(&u);
    /* a path may hold '=' */
    assert_int_equal(parse(&u, ARGS("inspect", "runs/lr=1", "--plot", "a.svg")), TSR_OK);
    assert_int_equal(u.command, TSR_COMMAND_INSPECT);
    assert_string_equal(u.job_path, "runs/lr=1");
    assert_string_equal(u.plot, "a.svg");
    assert_false(u.json);
    tsr_usage_free(&u);
    assert_int_equal(parse(&u, ARGS("inspect", "--plot=b.svg", "--json", "x")), TSR_OK);
    assert_string_equal(u.plot, "b.svg");
    assert_true(u.json);
    tsr_usage_free(&u);
    assert_int_equal(parse(&u, ARGS("inspect", "a.json", "b.json")), TSR_OK);
    assert_string_equal(u.job_path, "a.json");
    assert_string_equal(u.other, "b.json");
    tsr_usage_free(&u);
    assert_int_equal(parse(&u, ARGS("env", "--measure", "--json")), TSR_OK);
    assert_int_equal(u.command, TSR_COMMAND_ENV);
    assert_true(u.measure && u.json);
    assert_null(u.job_path);
    tsr_usage_free(&u);
}

static void make(const char *directory, const char *const *names, const char *text)
{
    char path[256];
    assert_int_equal(mkdir(scratch_path(directory), 0777), 0);
    for (int i = 0; names[i]; i++) {
        snprintf(path, sizeof path, "%s/%s", directory, names[i]);
        write_text(scratch_path(path), text);
    }
}

/* '@' is the scratch directory. */
static void scratch_named(char *out, size_t room, const char *text)
{
    char base[256];
    const char *at = strchr(text, '@');
    snprintf(base, sizeof base, "%s", scratch_path("x"));
    base[strlen(base) - 2] = 0;
    if (at)
        snprintf(out, room, "%.*s%s%s", (int)(at - text), text, base, at + 1);
    else
        snprintf(out, room, "%s", text);
}

#define NAMES(...) ((const char *const[]){__VA_ARGS__, NULL})

/* Directories of every kind, where a job.yaml is expected: the file that is read, and the keys before those that were
 * given. '@' is the scratch directory. */
static void test_directories(void **state)
{
    (void)state;
    static const struct {
        const char *args[4], *job, *keys[5];
    } cases[] = {
        {{"eval", "@/runs/x"}, "@/runs/x/job.yaml", {NULL}},
        {{"train", "@/runs/x/", "lora_r=2"}, "@/runs/x/job.yaml", {"lora_r=2"}},
        {{"resume", "@/runs/x/", "max_steps=9"},
         "@/runs/x/job.yaml",
         {"resume_from_checkpoint=true", "overwrite_output_dir=false", "output_dir=@/runs/x",
          "max_steps=9"}},
        {{"resume", "@/runs/x/checkpoint-2"},
         "@/runs/x/job.yaml",
         {"resume_from_checkpoint=@/runs/x/checkpoint-2", "overwrite_output_dir=false",
          "output_dir=@/runs/x"}},
        {{"resume", "a.yaml"},
         "a.yaml",
         {"resume_from_checkpoint=true", "overwrite_output_dir=false"}},
        {{"merge", "@/runs/x/checkpoint-2"},
         "@/runs/x/job.yaml",
         {"init_adapter=@/runs/x/checkpoint-2"}},
        {{"plan", "@/runs/x/checkpoint-2"}, "@/runs/x/job.yaml", {NULL}},
        {{"merge", "@/adapter", "output_dir=m"},
         NULL,
         {"init_adapter=@/adapter", "model_name_or_path=base", "output_dir=@/adapter-merged",
          "output_dir=m"}},
        {{"plan", "@/model"}, NULL, {"model_name_or_path=@/model"}},
    };
    static const char config[] =
        "{\"peft_type\":\"LORA\",\"base_model_name_or_path\":\"base\",\"r\":2,"
        "\"target_modules\":[\"q_proj\"]}";
    char path[512], text[512];
    make("runs", NAMES("notes.txt"), "");
    make("runs/x", NAMES("job.yaml", "metrics.jsonl"), "");
    make("runs/x/checkpoint-2", NAMES("manifest.json", "adapter_config.json"), config);
    make("runs/second", NAMES("metrics.jsonl"), "");
    make("adapter", NAMES("adapter_config.json"), config);
    make("model", NAMES("config.json"), "{}");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsr_usage u;
        const char *args[MAX_ARGS] = {cases[i].args[0], cases[i].args[1], cases[i].args[2]};
        scratch_named(path, sizeof path, args[1]);
        args[1] = path;
        if (parse(&u, args) < 0)
            fail_msg("%s %s: %s", args[0], path, tsr_last_error());
        scratch_named(text, sizeof text, cases[i].job ? cases[i].job : "");
        assert_string_equal(u.job_path ? u.job_path : "", text);
        for (int k = 0; k < u.override_count; k++) {
            scratch_named(text, sizeof text, cases[i].keys[k] ? cases[i].keys[k] : "");
            assert_string_equal(u.overrides[k], text);
        }
        assert_null(cases[i].keys[u.override_count]);
        tsr_usage_free(&u);
    }
}

static void test_wrong_directories(void **state)
{
    (void)state;
    static const struct {
        const char *command, *directory, *words;
    } cases[] = {
        {"eval", "@/runs",
         "is not a run, checkpoint, adapter or model; it contains the runs "
         "second, x"},
        {"eval", "@/runs/second", "a run without its job.yaml"},
        {"train", "@/runs/x/checkpoint-2", "resume @"},
        {"resume", "@/adapter", "an adapter, not a run; resume takes a run's output_dir"},
        {"resume", "@/model", "a model, not a run"},
    };
    char path[512];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsr_usage u;
        scratch_named(path, sizeof path, cases[i].directory);
        assert_int_equal(parse(&u, ARGS(cases[i].command, path)), TSR_EUSAGE);
        char words[512];
        scratch_named(words, sizeof words, cases[i].words);
        if (!strstr(tsr_last_error(), words))
            fail_msg("'%s' is not in: %s", words, tsr_last_error());
    }
}

static void test_wrong_lines(void **state)
{
    (void)state;
    static const struct {
        const char *args[6];
        const char *words[3];
    } cases[] = {
        {{NULL}, {"a command is missing", "tessera train job.yaml"}},
        {{"trian"}, {"no command 'trian'", "did you mean 'train'?"}},
        {{"xyzzy"}, {"no command 'xyzzy'", "--help"}},
        {{"/dev/null"}, {"'/dev/null' is a file, and a command is missing", " train /dev/null"}},
        {{"/"}, {"'/' is a directory, and a command is missing", " inspect /"}},
        {{"train", "a/rows.jsonl"},
         {"a/rows.jsonl: a file of rows, expected a job.yaml", "dataset: a/rows.jsonl"}},
        {{"data", "rows.parquet", "--json"}, {"rows.parquet: a file of rows"}},
        {{"train", "job.yaml", "lora_r", "=", "8"},
         {"'lora_r'", "without spaces, such as lora_r=VALUE;"}},
        {{"train", "job.yaml", "lora_r:", "8"},
         {"'lora_r:'", "without spaces, such as lora_r=VALUE;"}},
        {{"train"}, {"the job.yaml is missing", "tessera train job.yaml [key=value ...]"}},
        {{"train", "lora_r=8"}, {"the job.yaml is missing"}},
        {{"train", "job.yaml", "extra"}, {"'extra'", "expected key=value", "such as lora_r=8;"}},
        {{"train", "job.yaml", "=8"}, {"'=8'", "expected key=value"}},
        {{"train", "job.yaml", "--lora_r"}, {"--lora_r: the value is missing", "lora_r=VALUE"}},
        {{"train", "job.yaml", "--lora_r", "--packing"}, {"--lora_r: the value is missing"}},
        {{"train", "job.yaml", "--learning_rat", "1e-3"}, {"did you mean --learning_rate?"}},
        {{"train", "job.yaml", "--no_lora_r"}, {"--no_lora_r: no such option"}},
        {{"train", "job.yaml", "--config", "b.yaml"}, {"the job.yaml is job.yaml already"}},
        {{"train", "--config"}, {"--config: the file is missing"}},
        {{"translate"}, {"the job.yaml is missing", "tessera translate FILE.yaml"}},
        {{"sftt"}, {"no command 'sftt'", "did you mean 'sft'?"}},
        {{"env", "--lora_r", "8"}, {"--lora_r: no such option"}},
        {{"train", "job.yaml", "--json"}, {"--json: no such option"}},
        {{"train", "job.yaml", "--ranks", "2"}, {"--ranks: no such option", "mpirun -n N"}},
        {{"plan", "job.yaml", "--rank", "2"}, {"did you mean --ranks?", "[--ranks N]"}},
        {{"data", "job.yaml", "--html"}, {"--html: the file is missing", "data.html"}},
        {{"data", "job.yaml", "--html", "job.yaml"}, {"--html: found job.yaml", "ends in .html"}},
        {{"plan", "job.yaml", "--html", "a.html"}, {"--html: no such option"}},
        {{"data", "job.yaml", "-show"}, {"did you mean --show?"}},
        {{"env", "--mesure"}, {"did you mean --measure?"}},
        {{"train", "job.yaml", "--jsn"}, {"--jsn: no such option", "such as lora_r=8"}},
        {{"train", "job.yaml", "-x"}, {"-x: no such option"}},
        {{"plan", "job.yaml", "--ranks", "8,,2"}, {"--ranks: found ''"}},
        {{"plan", "job.yaml", "--ranks", "8,x"}, {"--ranks: found 'x'"}},
        {{"plan", "job.yaml", "--node", "0"}, {"--node: found '0'"}},
        {{"plan", "job.yaml", "--roofs"}, {"--roofs: the file is missing"}},
        {{"plan", "job.yaml", "--ranks", "1,2", "--longest"},
         {"--longest is for one number of ranks", "--ranks has 2"}},
        {{"data", "job.yaml", "--longest"}, {"--longest: no such option"}},
        {{"plan", "job.yaml", "--ranks"}, {"--ranks: found nothing", "--ranks 4"}},
        {{"plan", "job.yaml", "--ranks", "zero"}, {"--ranks: found 'zero'"}},
        {{"plan", "job.yaml", "--ranks", "0"}, {"--ranks: found '0'", "from 1 to 65536"}},
        {{"data"}, {"the job.yaml is missing", "--show N"}},
        {{"data", "job.yaml", "--show"}, {"--show: found nothing", "--show 4"}},
        {{"data", "job.yaml", "--show=x"}, {"--show: found 'x'"}},
        {{"eval", "job.yaml", "--show", "2"}, {"--show: no such option"}},
        {{"merge"}, {"the job.yaml is missing", "tessera merge job.yaml [key=value ...]"}},
        {{"quantize", "job.yaml", "b"}, {"'b'", "expected key=value"}},
        {{"quantize", "job.yaml", "--measure"}, {"--measure: no such option"}},
        {{"merge", "job.yaml", "--init-adapter"}, {"init_adapter=VALUE"}},
        {{"inspect"}, {"the path to inspect is missing", "tessera inspect PATH"}},
        {{"inspect", "a", "b", "c"}, {"'c'", "unexpected argument", "tessera inspect PATH"}},
        {{"inspect", "a", "b", "--plot", "c.svg"}, {"--plot draws a run", "'b'"}},
        {{"inspect", "a", "--plot"}, {"--plot", "--plot: the file is missing", "loss.svg"}},
        {{"inspect", "a", "--plot", "--json"}, {"--plot: the file is missing"}},
        {{"inspect", "a", "--plot", "loss.png"}, {"found loss.png", "ends in .svg"}},
        {{"inspect", "a", "--plot=loss"}, {"found loss;", "loss.svg"}},
        {{"inspect", "a", "--plot", ".svg"}, {"found .svg", "loss.svg"}},
        {{"inspect", "a", "--measure"}, {"--measure: no such option", "tessera inspect PATH"}},
        {{"env", "x"}, {"'x'", "tessera env [--measure] [--json]"}},
        {{"env", "--plot", "x"}, {"--plot: no such option"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsr_usage u;
        assert_int_equal(parse(&u, cases[i].args), TSR_EUSAGE);
        assert_int_equal(tsr_status_exit_code(TSR_EUSAGE), 64);
        for (int w = 0; w < 3 && cases[i].words[w]; w++)
            if (!strstr(tsr_last_error(), cases[i].words[w]))
                fail_msg("'%s' is not in: %s", cases[i].words[w], tsr_last_error());
    }
}

static void expect_text(const char *const *args, const char *word)
{
    tsr_usage u;
    assert_int_equal(parse(&u, args), TSR_OK);
    assert_int_equal(u.command, TSR_COMMAND_TEXT);
    if (!strstr(tsr_text_string(&u.text), word))
        fail_msg("'%s' is not in: %s", word, tsr_text_string(&u.text));
    tsr_usage_free(&u);
}

static void test_texts(void **state)
{
    (void)state;
    expect_text(ARGS("--version"), tsr_build_version());
    expect_text(ARGS("version"), tsr_build_commit());
    expect_text(ARGS("--help"), "tessera plan job.yaml [key=value ...] [--ranks N] [--node N] "
                                "[--roofs FILE] [--longest] [--all] [--json]");
    expect_text(ARGS("--help"), "tessera inspect PATH [OTHER] [--json] [--plot FILE.svg]");
    const char *const tools[] = {"merge", "quantize", "inspect", "env"};
    for (int i = 0; i < 4; i++) {
        char example[64];
        snprintf(example, sizeof example, "Example:\n    tessera %s ", tools[i]);
        expect_text(ARGS(tools[i], "--help"), example);
        expect_text(ARGS(tools[i], "--help"), "--json");
    }
    expect_text(ARGS("plan", "--help"), "--ranks N");
    expect_text(ARGS("train", "job.yaml", "--help"), "lora_target_modules=[q_proj,v_proj]");
    expect_text(ARGS("data", "--help"), "tessera data job.yaml --show 2");
    for (int i = 0; i < tsr_keys_count(); i++) /* every key, with its default */
        expect_text(ARGS("train", "--help"), tsr_keys_at(i)->name);
    const char *const short_ones[] = {"plan", "eval", "data"};
    for (int i = 0; i < 3; i++) { /* so that what they alone have is not lost among the keys */
        tsr_usage u;
        expect_text(ARGS(short_ones[i], "--help"), ": see `tessera train --help`");
        assert_int_equal(parse(&u, ARGS(short_ones[i], "--help")), TSR_OK);
        assert_true(u.text.length < 1200);
        tsr_usage_free(&u);
    }
    expect_text(ARGS("train", "--help"), "lora_r [16]");
    for (int i = 0; i < tsr_keys_count(); i++)
        expect_text(ARGS("data", "--help", tsr_keys_at(i)->name), tsr_keys_at(i)->group);
    assert_true(strlen(tsr_build_version()) > 0 && strlen(tsr_build_commit()) > 0);
}

/* One key: what it is, takes and is called elsewhere; however it is asked for. */
static void test_key_help(void **state)
{
    (void)state;
    static const char head[] = "learning_rate (optimizer)\n  ";
    expect_text(ARGS("train", "--help", "learning_rate"), head);
    expect_text(ARGS("train", "job.yaml", "--help", "learning-rate"), head);
    expect_text(ARGS("plan", "--help=--learning_rate"), head);
    expect_text(ARGS("--help", "learning_rate"), head);
    expect_text(ARGS("help", "--learning-rate"), head);
    expect_text(ARGS("env", "-h", "learning_rate"), head);
    expect_text(ARGS("train", "--help", "learning_rate"), "\n  type      number\n");
    expect_text(ARGS("train", "--help", "learning_rate"), "\n  default   2e-4; TRL's is 2e-5\n");
    expect_text(ARGS("train", "--help", "seed"), "\n  accepts   a whole number");
    expect_text(ARGS("train", "--help", "bnb_4bit_quant_type"), "\n  refuses   fp4 is not supp");
    expect_text(ARGS("train", "--help", "per_device_train_batch_size"),
                "axolotl: micro_batch_size");
    expect_text(ARGS("train", "--help", "micro_batch_size"),
                "here it is per_device_train_batch_size:");
    expect_text(ARGS("train", "--help", "fp16"), "only false: float16 needs loss scaling");
    expect_text(ARGS("train", "--help", "dataloader_num_workers"), "without effect");
    expect_text(ARGS("train", "--help", "rl"), "here it is objective:");
    expect_text(ARGS("train", "--help", "dpo_norm_loss"), "only null: write dpo_loss_type:");
    expect_text(ARGS("help", "plan"), "--roofs FILE");
    expect_text(ARGS("train", "--help", "job.yaml"), "lora_target_modules=[q_proj,v_proj]");
    tsr_usage u;
    assert_int_equal(parse(&u, ARGS("train", "--help", "lerning_rate")), TSR_EUSAGE);
    assert_string_equal(tsr_last_error(), "no key 'lerning_rate'; did you mean learning_rate?");
    assert_int_equal(parse(&u, ARGS("train", "--help=zzzzzzzz")), TSR_EUSAGE);
    assert_string_equal(tsr_last_error(), "no key 'zzzzzzzz'");
    for (int i = 0; i < tsr_keys_count(); i++) { /* 80 columns, but for a word that is longer */
        assert_int_equal(parse(&u, ARGS("train", "--help", tsr_keys_at(i)->name)), TSR_OK);
        for (const char *line = u.text.data, *end; *line; line = end + 1) {
            end = strchr(line, '\n');
            if (end - line > 80 && memchr(line + 12, ' ', (size_t)(end - line - 12)))
                fail_msg("%.*s", (int)(end - line), line);
        }
        tsr_usage_free(&u);
    }
}

/* Each option of a command's line is one of its help, which man pages and completions are made of. */
static void test_options(void **state)
{
    (void)state;
    const tsr_usage_verb *verb;
    for (int i = 0; (verb = tsr_usage_verb_at(i)) != NULL; i++) {
        char found[512] = " ";
        const char *line = verb->options;
        tsr_option option;
        while (tsr_option_next(&option, &line)) {
            assert_true(strlen(tsr_text_string(&option.what)) > 5);
            strcat(strcat(found, option.name), *option.argument ? " " : "");
            strcat(strcat(found, option.argument), " ");
            tsr_text_free(&option.what);
        }
        for (const char *p = verb->line; (p = strstr(p, "[-")) != NULL; p++) {
            char name[64];
            snprintf(name, sizeof name, " %.*s ", (int)strcspn(p + 1, "]"), p + 1);
            if (!strstr(found, name))
                fail_msg("%s: no help of%s", verb->name, name);
        }
    }
    const char *plan = tsr_usage_verb_at(2)->options;
    tsr_option option;
    assert_true(tsr_option_next(&option, &plan));
    assert_string_equal(option.name, "--ranks");
    assert_string_equal(option.argument, "N");
    assert_memory_equal(option.what.data, "plan for N ranks; ", 18);
    tsr_text_free(&option.what);
}

/* ---- the program ---- */

#ifndef __SANITIZE_THREAD__ /* for which it is not built */

#define MODEL TSR_SOURCE_DIR "/examples/tiny-llama"

static int code_of(const char *command)
{
    int status = system(command);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* What does not fit is on stderr, before the refusal, and nothing on stdout; notes come with -v alone. */
static void test_plan_that_does_not_fit(void **state)
{
    (void)state;
    static const struct {
        const char *words, *begins;
        int code;
    } cases[] = {{"memory_budget=1MiB", "too big  needs at least ", 78},
                 {"memory_budget=1MiB -v", "defaults that differ ", 78},
                 {"memory_budget=1GiB", "", 0},
                 {"memory_budget=1GiB --all", "defaults that differ ", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char line[4096], said[4096] = "", shown[64] = "";
        snprintf(line, sizeof line,
                 "'%s' plan /dev/null model_name_or_path=" MODEL " max_length=64 backend=cpu %s "
                 ">'%s' 2>'%s'",
                 TSR_PROGRAM, cases[i].words, scratch_path("out"), scratch_path("err"));
        assert_int_equal(code_of(line), cases[i].code);
        FILE *out = fopen(scratch_path("out"), "r"), *err = fopen(scratch_path("err"), "r");
        assert_true(out && err);
        said[fread(said, 1, sizeof said - 1, err)] = 0;
        shown[fread(shown, 1, sizeof shown - 1, out)] = 0;
        fclose(out);
        fclose(err);
        if (strncmp(said, cases[i].begins, strlen(cases[i].begins)) != 0 ||
            (*said != 0) != (*cases[i].begins != 0))
            fail_msg("%s: %s", cases[i].words, said);
        assert_int_equal(*shown == 0, cases[i].code != 0);
        if (cases[i].code &&
            !strstr(said, "\ntessera: override memory_budget=1MiB: memory_budget "))
            fail_msg("%s", said);
    }
}

/* Output that is lost is said, be it more than a buffer or less. */
static void test_full_disk(void **state)
{
    (void)state;
    static const char *const lines[] = {"--version", "train --help", "inspect " MODEL " --json"};
    for (int i = 0; i < 3; i++) {
        char command[1000];
        snprintf(command, sizeof command, "'%s' %s >/dev/full 2>/dev/null", TSR_PROGRAM, lines[i]);
        if (code_of(command) != 71)
            fail_msg("%s: not 71", command);
    }
}

static void test_pipe(void **state)
{
    (void)state;
    assert_int_equal(code_of("echo 'model_name_or_path: " MODEL "' | '" TSR_PROGRAM
                             "' plan /dev/stdin dataset=none 2>&1 | grep -q 'a pipe cannot'"),
                     0);
}

/* A child that writes into a pipe that nobody empties. */
static pid_t start_blocked(int *out, const char *const *args)
{
    int ends[2], waiting = 0, bytes;
    assert_int_equal(pipe(ends), 0);
    bytes = fcntl(ends[1], F_SETPIPE_SZ, 4096);
    assert_true(bytes >= 4096 && bytes < 9000); /* less than is written */
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        execv(TSR_PROGRAM, (char *const *)args);
        _exit(127);
    }
    close(ends[1]);
    for (int i = 0; i < 3000 && waiting < bytes; i++) {
        usleep(10000);
        assert_int_equal(ioctl(ends[0], FIONREAD, &waiting), 0);
    }
    assert_int_equal(waiting, bytes);
    *out = ends[0];
    return child;
}

/* A command that has nothing to finish ends by the first signal. */
static void test_signals(void **state)
{
    (void)state;
    static const char *const lines[][5] = {{"tessera", "train", "--help"},
                                           {"tessera", "inspect", MODEL, "--json"}};
    static const int signals[] = {SIGINT, SIGTERM};
    for (int i = 0; i < 4; i++) {
        int out, status = 0, ended = 0;
        pid_t child = start_blocked(&out, lines[i / 2]);
        assert_int_equal(kill(child, signals[i % 2]), 0);
        for (int n = 0; n < 1000 && !ended; n++) {
            usleep(10000);
            ended = waitpid(child, &status, WNOHANG) == child;
        }
        if (!ended) {
            kill(child, SIGKILL);
            waitpid(child, &status, 0);
        }
        close(out);
        assert_true(WIFSIGNALED(status));
        assert_int_equal(WTERMSIG(status), signals[i % 2]);
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_key_options),
        cmocka_unit_test(test_commands),
        cmocka_unit_test(test_path_with_equals),
        cmocka_unit_test(test_tools),
        cmocka_unit_test(test_wrong_lines),
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_key_help),
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_directories),
        cmocka_unit_test(test_wrong_directories),
#ifndef __SANITIZE_THREAD__
        cmocka_unit_test(test_plan_that_does_not_fit),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_pipe),
        cmocka_unit_test(test_signals),
#endif
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
