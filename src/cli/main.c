/*
 * main.c: the program: a command line around libtessera. It alone prints, handles signals and
 * exits.
 */
#include "base/auto.h"
#include "base/called.h"
#include "base/clock.h"
#include "base/escape.h"
#include "base/log.h"
#include "cli/run.h"
#include "cli/watchdog.h"
#include "comm/launcher.h"
#include "config/config.h"
#include "device/device.h"
#include "inputs/earlier.h"
#include "inputs/objective.h"
#include "io/file.h"
#include "io/json.h"
#include "job/peers.h"
#include "model/arch/config.h"
#include "report/metrics.h"
#include "report/summary.h"
#include "tessera.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATIENCE 300 /* seconds for the other ranks, where no configuration says it */

static void write_stderr(void *user, const char *text, size_t bytes)
{
    (void)user;
    while (bytes > 0) {
        ssize_t written = write(STDERR_FILENO, text, bytes);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return;
        text += written;
        bytes -= (size_t)written;
    }
}

static volatile int stop_requested;

/* What a signal is answered with, at once, by the rank that talks; NULL: nothing. */
static const char *volatile stop_answer;

static const char stops[] = "stopping; a second time stops at once\n";
static const char stops_at_first[] =
    "stopping after the first step, with a checkpoint; a second time stops at once\n";
static const char clears[] = "\r\033[K"; /* the bar's line */
static volatile sig_atomic_t bar_is_there;

/* A step may take minutes: who asks for a stop sees that it was heard. */
static void on_signal(int number)
{
    int before = errno;
    const char *text = stop_answer;
    if (text && !stop_requested) {
        if (bar_is_there)
            write_stderr(NULL, clears, sizeof clears - 1);
        write_stderr(NULL, text, strlen(text));
    }
    stop_requested = 1;
    signal(number, SIG_DFL); /* a second one ends the program at once */
    errno = before;
}

void tsr_run_answer(const char *text)
{
    stop_answer = text;
}

/* All that is printed comes here, but for the progress bar: what a terminal would obey, of names, paths and rows in
 * `text`, is escaped. */
static void put(int to, const char *text, tsr_escape_form form)
{
    char part[4096];
    for (size_t taken, left = strlen(text); left > 0; text += taken, left -= taken) {
        taken = tsr_escape(part, sizeof part, text, left, form);
        if (to == STDERR_FILENO)
            write_stderr(NULL, part, strlen(part));
        else
            fputs(part, stdout);
    }
}

void tsr_run_say(const char *text)
{
    put(STDERR_FILENO, text, TSR_ESCAPE_LINES);
}

static void answer(const char *text, bool json)
{
    put(STDOUT_FILENO, text, json ? TSR_ESCAPE_JSON : TSR_ESCAPE_LINES);
}

/* Both come on rank 0 only. */
static void on_log(void *user, int severity, const char *line)
{
    const tsr_run *r = user;
    char text[4400];
    if (severity == TSR_JOB_INFO && !r->details)
        return;
    snprintf(text, sizeof text, "%s%s", severity == TSR_JOB_WARNING ? "warning: " : "", line);
    tsr_progress_line(r->progress, text);
}

static void on_progress(void *user, const char *phase, double done, double total)
{
    const tsr_run *r = user;
    if (!strcmp(phase, TSR_JOB_TRAINING))
        return; /* steps have their own lines */
    tsr_progress_phase(r->progress, phase, done, total, tsr_now());
}

static int report_failure(int status)
{
    if (tsr_job_reports()) {
        tsr_run_say("tessera: ");
        tsr_run_say(tsr_last_error());
        tsr_run_say("\n");
    }
    return tsr_job_exit_code(status);
}

/* Columns of the terminal that stderr is; 0: it is none, or does not say. */
int tsr_run_columns(void)
{
    struct winsize size = {0};
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

/* mpirun gives its ranks pipes, behind which there may be a terminal: launch/run says so, and how wide it is. */
static tsr_status make_progress(tsr_run *r)
{
    const char *behind = getenv("TESSERA_TERMINAL");
    bool terminal = isatty(STDERR_FILENO);
    tsr_progress_options options = {.write = write_stderr,
                                    .mode = r->config.progress,
                                    .label = r->config.adapter_name,
                                    .terminal = terminal || (behind && *behind),
                                    .columns =
                                        terminal || !behind ? tsr_run_columns() : atoi(behind)};
    TSR_TRY(tsr_progress_create(&r->progress, &options));
    bar_is_there = tsr_progress_is_bar(r->progress);
    return TSR_OK;
}

/* JSON has no number that is not finite. */
static const char *json_number(char out[32], double value)
{
    if (!isfinite(value))
        return "null";
    snprintf(out, 32, "%.9g", value);
    return out;
}

/* What is evaluated, before it takes its time. */
static void say_evaluated(const tsr_run *r, const tsr_config *config)
{
    tsr_auto_text line = {0};
    if (config->init_adapter)
        tsr_text_printf(&line, "evaluating the adapter %s on %s", config->init_adapter,
                        config->model_name_or_path);
    else
        tsr_text_printf(&line, "evaluating %s without an adapter", config->model_name_or_path);
    tsr_progress_line(r->progress, tsr_text_string(&line));
}

static void put_preference(tsr_text *out, const tsr_job_preference *preference)
{
    tsr_metrics_value values[TSR_METRICS_PREFERENCE];
    int count = tsr_metrics_preference(values, preference);
    char number[32];
    for (int i = 0; i < count; i++)
        tsr_text_printf(out, "\"eval_%s\":%s,", values[i].name,
                        json_number(number, values[i].value));
}

static int print_evaluation(const tsr_run *r, const tsr_config *config, const tsr_job_evaluation *e)
{
    char loss[32], perplexity[32], accuracy[32], entropy[32];
    TSR_AUTO_FREE char *model = NULL, *adapter = NULL;
    tsr_auto_text text = {0}, preference = {0};
    put_preference(&preference, &e->preference);
    int status = tsr_json_quote(&model, config->model_name_or_path, "model_name_or_path");
    if (status == 0 && config->init_adapter)
        status = tsr_json_quote(&adapter, config->init_adapter, "init_adapter");
    if (status == 0 && r->usage->json)
        tsr_text_printf(&text,
                        "{\"eval_loss\":%s,\"perplexity\":%s,\"eval_label_tokens\":%lld,"
                        "\"rows\":%lld,\"eval_mean_token_accuracy\":%s,\"eval_entropy\":%s,"
                        "%s\"model\":%s,\"adapter\":%s}\n",
                        json_number(loss, e->loss), json_number(perplexity, e->perplexity),
                        (long long)e->label_tokens, (long long)e->rows,
                        json_number(accuracy, e->mean_token_accuracy),
                        json_number(entropy, e->entropy), tsr_text_string(&preference), model,
                        adapter ? adapter : "null");
    else if (status == 0 && e->preference.present)
        tsr_text_printf(
            &text, "eval_loss %.6f  margin %.4f  %s %.4f  label tokens %lld  rows %lld\n", e->loss,
            e->preference.reward_margin, isnan(e->preference.kl) ? "accuracy" : "kl",
            isnan(e->preference.kl) ? e->preference.reward_accuracy : e->preference.kl,
            (long long)e->label_tokens, (long long)e->rows);
    else if (status == 0)
        tsr_text_printf(&text, "eval_loss %.6f  perplexity %.4f  label tokens %lld  rows %lld\n",
                        e->loss, e->perplexity, (long long)e->label_tokens, (long long)e->rows);
    answer(tsr_text_string(&text), r->usage->json);
    return status;
}

static int evaluate_only(tsr_run *r, const tsr_config *config)
{
    tsr_job_evaluation e = TSR_JOB_EVALUATION_INIT;
    int status = tsr_job_start(r->job);
    if (status == 0 && r->first)
        say_evaluated(r, config);
    if (status == 0)
        status = tsr_job_evaluate(r->job, &e);
    return status == 0 && r->first ? print_evaluation(r, config, &e) : status;
}

static int plan_form(const tsr_usage *usage)
{
    return usage->json ? TSR_PLAN_JSON : usage->all ? TSR_PLAN_BUFFERS : TSR_PLAN_SCREEN;
}

static int plan_one(tsr_run *r)
{
    TSR_AUTO_FREE char *text = NULL;
    int status = tsr_job_print_plan(r->job, plan_form(r->usage), &text);
    if (status == 0)
        answer(text, r->usage->json);
    else if (text) /* it does not fit: nothing on stdout, as of any refusal */
        tsr_run_say(text);
    return status;
}

/* What a command says of each adapter, one after the other; as JSON a list. */
static int print_each(tsr_run *runs, int count, int (*print)(tsr_run *))
{
    bool json = runs->usage->json;
    int status = 0;
    for (int i = 0; i < count && status == 0; i++) {
        tsr_auto_text line = {0};
        if (count > 1 && json)
            tsr_text_puts(&line, i ? "," : "[");
        else if (count > 1)
            tsr_text_printf(&line, "%sadapter %s\n", i ? "\n" : "", runs[i].config.adapter_name);
        answer(tsr_text_string(&line), json);
        status = print(&runs[i]);
    }
    if (count > 1 && json && status == 0)
        answer("]\n", true);
    return status;
}

static void put_seconds(tsr_text *out, double seconds)
{
    tsr_text_printf(out, "about %.3g %s", seconds < 120 ? seconds : seconds / 60,
                    seconds < 120 ? "s" : "min");
}

void tsr_run_put_mixed(tsr_text *out, const tsr_job_plan_info *info)
{
    tsr_text_printf(out,
                    "%" PRId64 " mixed micro-batches of at most %" PRId64
                    " tokens, %.1f %% full (packed in %.2f s)",
                    info->mixed_count, info->mixed_capacity, 100 * info->mixed_fill,
                    info->mixed_packing_s);
}

/* The steps of all, and their time one after the other; 0: it is not known. */
static int sum_up(int64_t *steps, double *seconds, tsr_run *runs, int count)
{
    bool known = true;
    *steps = 0;
    *seconds = 0;
    for (int i = 0; i < count; i++) {
        tsr_job_plan_info info = TSR_JOB_PLAN_INFO_INIT;
        int status = tsr_job_plan(runs[i].job, &info);
        int64_t own = tsr_job_total_steps(runs[i].job);
        if (status != 0)
            return status;
        known &= info.expected_step_s > 0 && own > 0;
        *seconds += info.expected_step_s * (double)own;
        *steps += own;
    }
    *seconds = known ? *seconds : 0;
    return 0;
}

/* In turns a step of one follows a step of another, which takes what one after the other does. */
static void put_turns(tsr_text *out, int64_t steps, double seconds, int count)
{
    tsr_text_printf(out, "                %" PRId64 " steps in turns, ", steps);
    put_seconds(out, seconds);
    tsr_text_printf(out, "; one after the other takes as long, and loads the base %d times\n",
                    count);
}

static void put_mixed(tsr_text *out, const tsr_job_plan_info *info, double seconds)
{
    tsr_text_puts(out, "                ");
    tsr_run_put_mixed(out, info);
    if (info->mixed_expected_s > 0 && seconds > 0) {
        tsr_text_puts(out, ", ");
        put_seconds(out, info->mixed_expected_s);
        tsr_text_puts(out, "\n                one after the other takes ");
        put_seconds(out, seconds);
    }
    tsr_text_puts(out, "\n");
}

/* And what they need together. */
static int plan(tsr_run *runs, int count)
{
    tsr_job_plan_info info = TSR_JOB_PLAN_INFO_INIT;
    int status = print_each(runs, count, plan_one);
    if (count == 1 || runs->usage->json || status != 0 ||
        (status = tsr_job_plan(runs->job, &info)) != 0)
        return status;
    tsr_auto_text line = {0};
    tsr_text_printf(
        &line, "\nall %d adapters  %.1f MiB of device memory, %.1f MiB of host memory\n", count,
        (double)info.device_peak_bytes / 0x1p20, (double)info.host_peak_bytes / 0x1p20);
    int64_t steps;
    double seconds;
    status = sum_up(&steps, &seconds, runs, count);
    if (info.mixed_count)
        put_mixed(&line, &info, seconds);
    else if (seconds > 0)
        put_turns(&line, steps, seconds, count);
    answer(tsr_text_string(&line), false);
    return status;
}

#define PAGE_SAMPLES 5

/* The page beside what is printed. */
static int write_page(tsr_run *r)
{
    TSR_AUTO_FREE char *page = NULL;
    int64_t show = r->usage->show ? r->usage->show : PAGE_SAMPLES;
    int status = tsr_job_print_data(r->job, show, TSR_JOB_HTML, &page);
    return status == 0 ? (int)tsr_file_write(r->usage->html, page, strlen(page)) : status;
}

/* Colour is for people: on a terminal, unless NO_COLOR (no-color.org) is set. */
static bool wants_colour(void)
{
    const char *no = getenv("NO_COLOR");
    return isatty(STDOUT_FILENO) && !(no && *no);
}

static int data(tsr_run *r)
{
    TSR_AUTO_FREE char *text = NULL;
    int form = r->usage->json ? TSR_JOB_JSON : wants_colour() ? TSR_JOB_COLOUR : TSR_JOB_PLAIN;
    if (r->usage->html && r->first) {
        int written = write_page(r);
        if (written != 0)
            return written;
    }
    int status = tsr_job_print_data(r->job, r->usage->show, form, &text);
    if (status == 0 && form == TSR_JOB_COLOUR)
        put(STDOUT_FILENO, text, TSR_ESCAPE_COLOUR);
    else if (status == 0)
        answer(text, r->usage->json);
    if (status == 0 && r->usage->html && r->first) {
        tsr_auto_text line = {0};
        tsr_text_printf(&line, "page     %s", r->usage->html);
        tsr_progress_line(r->progress, tsr_text_string(&line));
    }
    return status;
}

/* The program's own view of the configuration: how to show progress. The library reads it again, and is the one to say
 * what is wrong with it. */
static int read_config(tsr_config *config, const tsr_usage *usage, int entry)
{
    static const tsr_config_use uses[] = {
        [TSR_COMMAND_TRAIN] = TSR_CONFIG_TRAIN, [TSR_COMMAND_EVAL] = TSR_CONFIG_EVAL,
        [TSR_COMMAND_PLAN] = TSR_CONFIG_PLAN,   [TSR_COMMAND_DATA] = TSR_CONFIG_DATA,
        [TSR_COMMAND_MERGE] = TSR_CONFIG_MERGE, [TSR_COMMAND_QUANTIZE] = TSR_CONFIG_QUANTIZE};
    tsr_config_source source = {.path = usage->job_path,
                                .overrides = usage->overrides,
                                .override_count = usage->override_count,
                                .use = uses[usage->command],
                                .has_cuda = tsr_device_cuda_built(),
                                .entry = entry};
    return tsr_earlier_config(config, &source);
}

/* What all jobs of a command have of it. */
static tsr_job_options options_of(const tsr_usage *usage)
{
    static const int purposes[] = {[TSR_COMMAND_TRAIN] = TSR_JOB_TRAIN,
                                   [TSR_COMMAND_EVAL] = TSR_JOB_EVALUATE,
                                   [TSR_COMMAND_PLAN] = TSR_JOB_PLAN,
                                   [TSR_COMMAND_DATA] = TSR_JOB_DATA};
    return (tsr_job_options){.size = sizeof(tsr_job_options),
                             .config_path = usage->job_path,
                             .overrides = usage->overrides,
                             .override_count = usage->override_count,
                             .purpose = purposes[usage->command],
                             .plan_ranks = usage->ranks[0],
                             .plan_node = (int)usage->node,
                             .plan_roofs = usage->roofs,
                             .use_mpi = usage->command == TSR_COMMAND_TRAIN ||
                                        usage->command == TSR_COMMAND_EVAL,
                             .log = on_log,
                             .progress = on_progress,
                             .stop = &stop_requested};
}

/* Its configuration, its lines and its job, on the base of the first that has one. */
static int create(tsr_run *runs, int index, double *patience)
{
    tsr_run *r = &runs[index];
    const tsr_usage *usage = r->usage;
    tsr_job_options options = options_of(usage);
    options.user = r;
    options.entry = index;
    for (int i = index - 1; i >= 0 && usage->command != TSR_COMMAND_DATA; i--)
        options.base = runs[i].job ? runs[i].job : options.base;
    int readable = read_config(&r->config, usage, index);
    if (index == 0)
        *patience = readable == 0 ? (double)r->config.ddp_timeout : PATIENCE;
    tsr_watchdog *watchdog =
        options.use_mpi && !options.base ? tsr_watchdog_start(*patience) : NULL;
    int status = make_progress(r);
    r->details = usage->verbose || usage->all || usage->command == TSR_COMMAND_DATA ||
                 (usage->command == TSR_COMMAND_PLAN && usage->json) ||
                 r->config.log_level == TSR_LOG_DEBUG;
    stop_answer = tsr_launcher_look().rank <= 0 ? stops_at_first : NULL;
    if (status == 0)
        status = tsr_job_create(&r->job, &options);
    tsr_watchdog_stop(watchdog);
    if (status == 0)
        status = readable;
    if (status != 0)
        return status;
    r->first = tsr_job_rank(r->job) == 0;
    bool refers = tsr_inputs_has_reference(&r->config);
    stop_answer = !r->first ? NULL : refers ? stops : stops_at_first;
    if (usage->command != TSR_COMMAND_TRAIN || !tsr_job_finished(r->job))
        return 0;
    if (r->first)
        tsr_run_print_finished(r);
    tsr_job_destroy(r->job);
    r->job = NULL;
    r->ended = true;
    return 0;
}

static int run_command(tsr_run *runs, int count)
{
    const tsr_usage *usage = runs->usage;
    if (usage->command == TSR_COMMAND_TRAIN)
        return tsr_run_train(runs, count);
    if (usage->command == TSR_COMMAND_PLAN)
        return plan(runs, count);
    if (usage->command == TSR_COMMAND_EVAL)
        return evaluate_only(runs, &runs->config);
    if (count > 1 && usage->html)
        return tsr_fail(TSR_EUSAGE, "adapters: --html is for one adapter; give it that adapter's "
                                    "own job.yaml");
    return print_each(runs, count, data);
}

static void end_run(tsr_run *r)
{
    if (r->progress)
        tsr_progress_finish(r->progress);
    tsr_progress_destroy(r->progress);
    tsr_config_free(&r->config);
}

/* One job, or one of each entry of `adapters:`. */
static int run_jobs(double *patience, const tsr_usage *usage, const char *program)
{
    static tsr_run runs[TSR_CONFIG_MAX_ADAPTERS];
    int count = 1, status = 0;
    bool stopped = false;
    tsr_peers_take_common();
    for (int i = 0; i < count && status == 0; i++) {
        runs[i] =
            (tsr_run){.usage = usage, .program = program, .first_loss = NAN, .last_loss = NAN};
        status = create(runs, i, patience);
        if (status == 0 && runs->config.adapter_count > 1)
            count = runs->config.adapter_count;
    }
    if (status == 0)
        status = run_command(runs, count);
    stop_answer = NULL;
    int code = status < 0 ? report_failure(status) : 0;
    for (int i = 0; i < count; i++)
        stopped |= runs[i].stopped;
    if (status == 0 && stopped) {
        code = tsr_job_exit_code(TSR_ESTOPPED);
        if (runs->first)
            tsr_run_print_stopped(runs, count);
    }
    for (int i = 0; i < count; i++)
        tsr_job_destroy(runs[i].job);
    for (int i = 0; i < count; i++)
        end_run(&runs[i]);
    return code;
}

/* ---- commands of one process ---- */

static bool is_tool(const tsr_usage *usage)
{
    return usage->command == TSR_COMMAND_MERGE || usage->command == TSR_COMMAND_QUANTIZE ||
           usage->command == TSR_COMMAND_INSPECT || usage->command == TSR_COMMAND_ENV;
}

static int call_tool(const tsr_usage *usage, const tsr_job_options *options, char **text)
{
    int json = usage->json;
    if (usage->command == TSR_COMMAND_MERGE)
        return tsr_merge(options, json, text);
    if (usage->command == TSR_COMMAND_QUANTIZE)
        return tsr_quantize(options, json, text);
    if (usage->longest)
        return tsr_plan_longest(options, plan_form(usage), text);
    if (usage->command == TSR_COMMAND_PLAN) /* for several numbers of ranks, side by side */
        return tsr_plan_scale(options, usage->ranks, usage->rank_count, json, text);
    if (usage->command == TSR_COMMAND_ENV)
        return tsr_environment(options, usage->measure, json, text);
    int status = usage->plot ? tsr_plot(usage->job_path, usage->plot) : 0;
    if (status == 0 && usage->other)
        return tsr_inspect_traces(usage->job_path, usage->other, options, json, text);
    return status < 0 ? status : tsr_inspect(usage->job_path, options, json, text);
}

static int run_tool(const tsr_usage *usage)
{
    tsr_run r = {.usage = usage, .details = !usage->longest || usage->verbose || usage->all};
    const tsr_job_options options = {.size = sizeof(tsr_job_options),
                                     .config_path = usage->job_path,
                                     .overrides = usage->overrides,
                                     .override_count = usage->override_count,
                                     .purpose = TSR_JOB_PLAN,
                                     .plan_ranks = usage->ranks[0],
                                     .plan_node = (int)usage->node,
                                     .plan_roofs = usage->roofs,
                                     .log = on_log,
                                     .progress = on_progress,
                                     .user = &r,
                                     .stop = &stop_requested};
    TSR_AUTO_FREE char *text = NULL;
    if (usage->command == TSR_COMMAND_MERGE || usage->command == TSR_COMMAND_QUANTIZE ||
        usage->command == TSR_COMMAND_PLAN)
        read_config(&r.config, usage, 0);
    int status = make_progress(&r);
    stop_answer = stops;
    if (status == 0)
        status = call_tool(usage, &options, &text);
    tsr_progress_destroy(r.progress);
    tsr_config_free(&r.config);
    if (status == 0)
        answer(text, usage->json);
    return status < 0 ? report_failure(status) : 0;
}

static int translate(const tsr_usage *usage)
{
    tsr_text text = {0};
    const tsr_config_source source = {.path = usage->job_path,
                                      .overrides = usage->overrides,
                                      .override_count = usage->override_count};
    int status = tsr_config_translate(&text, &source);
    if (status == 0)
        answer(tsr_text_string(&text), false);
    tsr_text_free(&text);
    return status < 0 ? report_failure(status) : 0;
}

/* MPI is not up yet. Mostly every rank was given the same line: then the first one speaks, and
 * mpirun ends the others while they hold back. */
static int report_usage(void)
{
    int rank = tsr_launcher_look().rank;
    char name[48] = "tessera: ";
    if (rank > 0) {
        sleep(3);
        snprintf(name, sizeof name, "tessera: rank %d: ", rank);
    }
    tsr_run_say(name);
    tsr_run_say(tsr_last_error());
    tsr_run_say("\n");
    return tsr_job_exit_code(TSR_EUSAGE);
}

/* Several processes that write the same files would be in each other's way. */
static tsr_status check_alone(const tsr_usage *usage)
{
    const tsr_launched launched = tsr_launcher_look();
    if (!is_tool(usage) || !launched.claims)
        return TSR_OK;
    return tsr_fail(TSR_EUSAGE,
                    "started as several ranks (%s=%d), but this command is a single process that "
                    "uses all cores: run it without mpirun or srun",
                    launched.claims, launched.claimed);
}

/* The program reads the file, and then each rank's library does: a pipe is empty the second time. */
static tsr_status check_file(const tsr_usage *usage)
{
    struct stat info;
    if (!usage->job_path || usage->command == TSR_COMMAND_INSPECT ||
        stat(usage->job_path, &info) != 0 || !S_ISFIFO(info.st_mode))
        return TSR_OK;
    return tsr_fail(TSR_EUSAGE, "%s: a pipe cannot be read several times; write it to a file",
                    usage->job_path);
}

/* What looks at the flag ends in order; all else as signals end a program. Who reads what is printed may be gone
 * before the checkpoint is written: Ctrl-C ends the tee behind a pipe too. Under nohup SIGHUP stays ignored. */
static void catch_signals(tsr_command command)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGUSR1, SIGHUP};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, before;
    if (command != TSR_COMMAND_TRAIN && command != TSR_COMMAND_MERGE &&
        command != TSR_COMMAND_QUANTIZE)
        return;
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        if (signals[i] != SIGHUP ||
            (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN))
            sigaction(signals[i], &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a write beyond `ulimit -f` fails instead */
}

/* What messages call the program: a name that was found in PATH, or where it is. */
static void name_program(const char *called)
{
    static tsr_text name;
    char path[PATH_MAX];
    tsr_shell_quote(&name, strchr(called, '/') && realpath(called, path) ? path : called);
    tsr_called_set(tsr_text_string(&name));
}

int main(int argc, char **argv)
{
    tsr_usage usage;
    if (argc > 0)
        name_program(argv[0]);
    if (tsr_usage_parse(&usage, argc, argv) < 0)
        return report_usage();
    if (check_alone(&usage) < 0 || check_file(&usage) < 0) {
        tsr_usage_free(&usage);
        return report_usage();
    }
    catch_signals(usage.command);
    int code = 0;
    double patience = PATIENCE;
    if (usage.command == TSR_COMMAND_TEXT)
        answer(tsr_text_string(&usage.text), false);
    else if (usage.command == TSR_COMMAND_TRANSLATE)
        code = translate(&usage);
    else if (is_tool(&usage) || usage.rank_count > 1 || usage.longest)
        code = run_tool(&usage);
    else
        code = run_jobs(&patience, &usage, argv[0]);
    tsr_usage_free(&usage);
    /* What was more than the buffer has failed before, and left it empty. */
    if ((ferror(stdout) | fflush(stdout)) != 0 && code == 0) {
        tsr_run_say("tessera: cannot write to standard output\n");
        code = 71;
    }
    tsr_watchdog_end(patience, code);
    return code;
}
