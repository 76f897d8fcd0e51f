/*
 * job.c: a job's life: ranks, inputs, the decision about memory, the end.
 */
#include "job/parts.h"

#include "base/log.h"
#include "base/phase.h"
#include "base/version.h"
#include "inputs/adapter_experts.h"
#include "inputs/same.h"
#include "inputs/shared.h"
#include "job/peers.h"
#include "job/sized.h"
#include "model/arch/arch.h"
#include "report/data_report.h"
#include "report/summary.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static _Thread_local int reports = 1;

int tsr_job_reports(void)
{
    return reports;
}

tsr_status tsr_job_agree(tsr_job *job, tsr_status status)
{
    int first = -1;
    reports = 1;
    if (!job->world)
        return status;
    status = tsr_comm_agree(job->world, job->control, status, &first);
    if (status < 0) {
        reports = first < 0 || first == tsr_comm_rank(job->world);
        job->state = TSR_JOB_FAILED;
    }
    return status;
}

static void log_line(void *user, tsr_log_level level, const char *line)
{
    tsr_job *job = user;
    static const int severities[] = {
        [TSR_LOG_ERROR] = TSR_JOB_ERROR,
        [TSR_LOG_WARNING] = TSR_JOB_WARNING,
        [TSR_LOG_INFO] = TSR_JOB_INFO,
        [TSR_LOG_DEBUG] = TSR_JOB_DEBUG,
    };
    if (job->view.rank == 0)
        job->options.log(job->options.user, severities[level], line);
}

static void tell_phase(void *user, const char *phase, double done, double total)
{
    tsr_job *job = user;
    if (job->view.rank == 0)
        job->options.progress(job->options.user, phase, done, total);
}

void tsr_job_listen(tsr_job *job, bool begins)
{
    if (begins)
        tsr_aside_begin(&job->aside);
    else
        tsr_aside_end(&job->aside);
    if (begins && !job->listens) {
        job->former_log = tsr_log_get();
        job->former_phase = tsr_phase_get();
    }
    if (begins) {
        tsr_phase_set(job->options.progress ? tell_phase : NULL, job);
        tsr_log_set(job->options.log ? log_line : NULL, job, job->log_level);
    } else if (job->listens) {
        tsr_phase_set(job->former_phase.sink, job->former_phase.user);
        tsr_log_set(job->former_log.sink, job->former_log.user, job->former_log.level);
    }
    job->listens = begins;
}

/* Ranks and host. */
static tsr_status connect(tsr_job *job, tsr_comm *world)
{
    const tsr_job_options *o = &job->options;
    if (o->base) {
        tsr_job_base_join(job, o->base);
        return TSR_OK;
    }
    tsr_bootstrap bootstrap = {o->bootstrap.rank, o->bootstrap.size, o->bootstrap.all_gather,
                               o->bootstrap.user};
    if (world)
        job->world = world;
    else if (o->use_mpi)
        TSR_TRY(tsr_comm_create_mpi(&job->world, o->timeout_seconds));
    else if (bootstrap.size > 1)
        TSR_TRY(tsr_comm_create_callback(&job->world, &bootstrap, o->timeout_seconds));
    else
        TSR_TRY(tsr_comm_create_self(&job->world));
    /* A collective's own deadline comes first: its message names the rank that is missing. */
    double deadline = o->timeout_seconds + 30;
    tsr_device_options device = {.thread_count = o->threads,
                                 .local_rank = tsr_comm_local_rank(job->world),
                                 .local_rank_count = tsr_comm_local_size(job->world),
                                 .timeout_seconds = deadline};
    TSR_TRY(tsr_device_create_cpu(&job->host, &device));
    TSR_TRY(tsr_stream_create(&job->control, job->host, "comm"));
    job->view = (tsr_topology_view){tsr_comm_size(job->world), tsr_comm_rank(job->world),
                                    tsr_comm_local_size(job->world)};
    return TSR_OK;
}

/* Before the ranks meet, since it says how long they may wait for each other; what is wrong with it they hear together,
 * afterwards. */
static void read_config(tsr_error *error, tsr_job *job)
{
    static const tsr_config_use uses[] = {[TSR_JOB_TRAIN] = TSR_CONFIG_TRAIN,
                                          [TSR_JOB_EVALUATE] = TSR_CONFIG_EVAL,
                                          [TSR_JOB_PLAN] = TSR_CONFIG_PLAN,
                                          [TSR_JOB_DATA] = TSR_CONFIG_DATA};
    const tsr_job_options *o = &job->options;
    tsr_config_source source = {.path = o->config_path,
                                .text = o->config_text,
                                .overrides = o->overrides,
                                .override_count = o->override_count,
                                .use = uses[o->purpose],
                                .rows_given = o->row,
                                .has_cuda = tsr_device_cuda_built(),
                                .entry = o->entry};
    tsr_error_take(error, tsr_inputs_read_config(&job->inputs, &source));
    if (job->options.timeout_seconds == 0)
        job->options.timeout_seconds =
            error->status == TSR_OK ? (double)job->inputs.config.ddp_timeout : 300;
}

static void take_config(tsr_job *job)
{
    job->log_level = (tsr_log_level)job->inputs.config.log_level;
    tsr_job_listen(job, true); /* with that level from here on */
    for (int i = 0; i < job->inputs.config.notes.count; i++)
        tsr_log(TSR_LOG_INFO, "%s", job->inputs.config.notes.items[i]);
}

/* That the run's files can be written. */
static tsr_status open_outputs(tsr_job *job)
{
    if (job->options.purpose == TSR_JOB_TRAIN)
        TSR_TRY(tsr_job_open_output(job));
    if (job->options.purpose != TSR_JOB_PLAN && job->inputs.config.trace)
        TSR_TRY(tsr_trace_check(&job->inputs.config));
    return TSR_OK;
}

/* Rank 0's day, in UTC: the others' may be another. */
static tsr_status choose_date(tsr_job *job)
{
    int64_t *today = &job->inputs.today;
    *today = (int64_t)time(NULL) / 86400 * 86400;
    TSR_TRY(tsr_comm_broadcast(job->world, job->control, today, sizeof *today, 0));
    return tsr_stream_synchronize(job->control);
}

/* Each phase ends with an agreement: what fails on one rank fails on all. */
static tsr_status read_inputs(tsr_job *job, const tsr_error *config)
{
    tsr_stream *stream = job->control;
    TSR_TRY(tsr_job_agree(job, tsr_peers_check_program(job->world, stream)));
    TSR_TRY(tsr_job_agree(job, tsr_error_put(config)));
    take_config(job);
    TSR_TRY(tsr_job_agree(job, tsr_same_config(&job->inputs.config, job->world, stream)));
    TSR_TRY(tsr_job_agree(job, tsr_job_base_check_config(job)));
    TSR_TRY(choose_date(job));
    if (job->options.purpose == TSR_JOB_DATA)
        return tsr_job_read_data(job);
    TSR_TRY(tsr_job_agree(job, tsr_job_backend_choose(job)));
    TSR_TRY(tsr_job_agree(job, tsr_job_backend_open(job)));
    if (job->options.purpose != TSR_JOB_PLAN)
        TSR_TRY(tsr_job_agree(
            job, tsr_peers_check_kernels(job->kernels, job->device, job->world, stream)));
    TSR_TRY(tsr_job_backend_speeds(job));
    /* Before what may take minutes. */
    bool first = job->view.rank == 0;
    TSR_TRY(tsr_job_agree(job, first ? open_outputs(job) : TSR_OK));
    TSR_TRY(tsr_job_find_resume(job));
    TSR_TRY(tsr_job_agree(job, first && !job->ended_steps ? tsr_job_check_output(job) : TSR_OK));
    bool planned = job->options.purpose == TSR_JOB_PLAN;
    TSR_TRY(tsr_job_agree(job, tsr_inputs_read_model(&job->inputs, job->train, planned)));
    TSR_TRY(tsr_job_agree(job, tsr_inputs_check_shared(&job->inputs, job->view.ranks)));
    bool data = !job->without_data && (!planned || job->inputs.config.dataset.count);
    if (data)
        TSR_TRY(tsr_job_read_data(job));
    else
        tsr_inputs_assume_data(&job->inputs);
    if (job->options.purpose == TSR_JOB_EVALUATE && *job->inputs.date)
        tsr_log(TSR_LOG_WARNING,
                "the chat template asks for the date and gets today's, %s; set chat_template_date "
                "for another",
                job->inputs.date);
    TSR_TRY(tsr_job_agree(job, tsr_same_inputs(&job->inputs, job->world, stream)));
    TSR_TRY(tsr_job_agree(job, tsr_job_base_check_inputs(job)));
    return tsr_job_agree(job, tsr_job_check_resume(job));
}

/* The caller's mistakes, which no rank can make alone. */
static tsr_status check_options(tsr_job **out, const tsr_job_options *o)
{
    if (!out)
        return tsr_fail(TSR_EINVAL, "tsr_job_create: out is NULL");
    if (o->purpose < TSR_JOB_TRAIN || o->purpose > TSR_JOB_DATA)
        return tsr_fail(TSR_EINVAL, "tsr_job_options: purpose %d is not one of TSR_JOB_...",
                        o->purpose);
    if (o->config_path && o->config_text)
        return tsr_fail(TSR_EINVAL, "tsr_job_options: config_path and config_text are both set");
    if (o->override_count < 0 || (o->override_count > 0 && !o->overrides))
        return tsr_fail(TSR_EINVAL, "tsr_job_options: override_count %d with overrides %s",
                        o->override_count, o->overrides ? "set" : "NULL");
    if (o->threads < 0 || o->plan_ranks < 0 || o->plan_node < 0 || o->first_gpu < 0 ||
        !(o->timeout_seconds >= 0))
        return tsr_fail(TSR_EINVAL,
                        "tsr_job_options: threads %d, plan_ranks %d, plan_node %d, first_gpu %d, "
                        "timeout_seconds %g; none may be negative",
                        o->threads, o->plan_ranks, o->plan_node, o->first_gpu, o->timeout_seconds);
    if (o->entry < 0)
        return tsr_fail(TSR_EINVAL, "tsr_job_options: entry %d is negative", o->entry);
    if (o->base)
        TSR_TRY(tsr_job_base_check(o->base, o->purpose));
    if (o->plan_node > 0 && o->plan_ranks > o->plan_node && o->plan_ranks % o->plan_node)
        return tsr_fail(TSR_EUSAGE, "%d ranks in nodes of %d: all nodes must be full",
                        o->plan_ranks, o->plan_node);
    return TSR_OK;
}

static tsr_status create(tsr_job **out, const tsr_job_options *options, tsr_comm *world,
                         bool without_data)
{
    tsr_job_options taken;
    TSR_TRY(tsr_job_options_take(&taken, options));
    options = &taken;
    TSR_TRY(check_options(out, options));
    tsr_job *job = calloc(1, sizeof *job);
    if (!job)
        return tsr_fail(TSR_ENOMEM, "out of memory for a job");
    reports = 1;
    job->options = *options;
    job->saved = job->output_lock = -1;
    job->inputs.rows = (tsr_row_source){options->row, options->user};
    job->train = options->purpose != TSR_JOB_EVALUATE;
    job->without_data = without_data;
    job->log_level = TSR_LOG_INFO; /* until the configuration says another */
    tsr_job_listen(job, true);
    tsr_error config;
    read_config(&config, job);
    tsr_status status = tsr_job_agree(job, connect(job, world));
    if (status == TSR_OK && options->purpose == TSR_JOB_PLAN) {
        int ranks = options->plan_ranks > 0 ? options->plan_ranks : 1, node = options->plan_node;
        job->view = (tsr_topology_view){ranks, 0, node > 0 && node < ranks ? node : ranks};
    }
    if (status == TSR_OK)
        status = read_inputs(job, &config);
    tsr_job_listen(job, false);
    if (status < 0) {
        tsr_job_destroy(job);
        return status;
    }
    *out = job;
    return TSR_OK;
}

tsr_status tsr_job_create_on(tsr_job **out, const tsr_job_options *options, tsr_comm *world)
{
    return create(out, options, world, false);
}

tsr_status tsr_job_create(tsr_job **out, const tsr_job_options *options)
{
    return tsr_job_create_on(out, options, NULL);
}

tsr_status tsr_job_create_without_data(tsr_job **out, const tsr_job_options *options)
{
    return create(out, options, NULL, true);
}

/* ---- memory ---- */

tsr_status tsr_job_decide(tsr_job *job)
{
    tsr_room room;
    if (job->options.purpose == TSR_JOB_DATA)
        return tsr_fail(TSR_EINVAL, "a job created for its data cannot be planned or started");
    if (job->state != TSR_JOB_CREATED)
        return job->state == TSR_JOB_FAILED ? tsr_fail(TSR_EINVAL, "the job has failed") : TSR_OK;
    TSR_TRY(tsr_job_agree(job, tsr_job_backend_room(&room, job)));
    if (tsr_job_is_shared(job))
        return tsr_job_base_decide(job, &room);
    TSR_TRY(tsr_job_agree(job, tsr_decide(&job->decision, &job->inputs, &job->view, job->train,
                                          &room, &job->speeds)));
    if (job->options.purpose != TSR_JOB_PLAN)
        TSR_TRY(
            tsr_job_agree(job, tsr_plan_check_ranks(job->decision.plan, job->world, job->control)));
    job->state = TSR_JOB_PLANNED;
    return TSR_OK;
}

tsr_status tsr_job_plan(tsr_job *job, tsr_job_plan_info *info)
{
    TSR_TRY(tsr_sized_check(&tsr_sized_plan_info, info));
    tsr_job_listen(job, true);
    tsr_status status = tsr_job_decide(job);
    tsr_job_listen(job, false);
    TSR_TRY(status);
    const tsr_decision *d = &job->decision;
    tsr_job_plan_info own = {
        .device_peak_bytes = tsr_job_base_bytes(job, TSR_PLACE_DEVICE),
        .host_peak_bytes =
            tsr_job_base_bytes(job, TSR_PLACE_HOST) + tsr_job_base_bytes(job, TSR_PLACE_NODE),
        .parameter_count = job->inputs.layout.parameter_count,
        .trainable_count = job->inputs.layout.trainable_count,
        .plan_hash = d->plan->hash,
        .unit_count = job->inputs.layout.plan_unit_count,
        .resident_count = d->resident_count,
        .recompute_full_count = d->full_count,
        .recompute_selective_count = d->selective_count,
        .activations_offloaded = d->offloaded_count > 0,
        .optimizer_offloaded = d->state_offloaded,
        .shard_group_size = d->group,
        .rounds = d->expected.rounds,
        .expected_step_s = d->expected.known ? d->expected.simulation.step : 0,
        .expected_tokens_per_s =
            d->expected.known ? d->expected.step_tokens / d->expected.simulation.step : 0};
    for (int i = 0; d->expected.known && i < TSR_CAUSE_COUNT; i++)
        own.expected_exposed_s += d->expected.simulation.exposed[i];
    tsr_mixer_tell(&own, job);
    tsr_sized_fill(&tsr_sized_plan_info, info, &own);
    return TSR_OK;
}

/* The screen of a job that was refused: what it needs, and what would fit. The refusal stays the last error. */
static tsr_status print_refused(tsr_text *out, tsr_job *job, tsr_status refused)
{
    tsr_error error;
    tsr_room room;
    tsr_decision d = {0};
    tsr_auto_text change = {0};
    const tsr_largest none = {0};
    tsr_error_take(&error, refused);
    tsr_log_mute(true); /* what is amiss with the adapter was said */
    tsr_status status = tsr_job_backend_room(&room, job);
    if (status == TSR_OK)
        status = tsr_decide_frugal(&d, &change, &job->inputs, &job->view, job->train, &room,
                                   &job->speeds);
    tsr_log_mute(false);
    if (status == TSR_OK && change.length)
        (void)tsr_decision_screen(out, &d, &job->inputs, &job->view, &job->speeds, &none,
                                  tsr_text_string(&change));
    if (status == TSR_OK)
        tsr_decision_free(&d);
    return tsr_error_put(&error);
}

static tsr_status print_plan(tsr_text *out, tsr_job *job, int form)
{
    if (form < TSR_PLAN_BUFFERS || form > TSR_PLAN_SCREEN)
        return tsr_fail(TSR_EINVAL, "tsr_job_print_plan: form %d", form);
    tsr_status status = tsr_job_decide(job);
    if (status == TSR_ECONFIG && form == TSR_PLAN_SCREEN && job->options.purpose == TSR_JOB_PLAN)
        return print_refused(out, job, status);
    TSR_TRY(status);
    const tsr_decision *d = &job->decision;
    tsr_largest largest = {0};
    tsr_room room = d->room;
    room.base = NULL; /* of models with other layers */
    if (d->train &&
        d->budget != TSR_BUDGET_UNKNOWN) /* of a card that is not here it is not known */
        TSR_TRY(tsr_decide_largest(&largest, &job->inputs, &job->view, &room, &job->speeds));
    if (form == TSR_PLAN_SCREEN)
        return tsr_decision_screen(out, d, &job->inputs, &job->view, &job->speeds, &largest, NULL);
    return tsr_decision_print(out, d, &job->inputs, &job->view, &job->speeds, &largest,
                              form == TSR_PLAN_JSON);
}

tsr_status tsr_job_print_plan(tsr_job *job, int form, char **text)
{
    tsr_text out = {0};
    tsr_job_listen(job, true);
    tsr_status status = print_plan(&out, job, form);
    tsr_job_listen(job, false);
    if (status < 0 && form != TSR_PLAN_SCREEN)
        tsr_text_free(&out);
    if (status == TSR_OK || form == TSR_PLAN_SCREEN)
        *text = out.data;
    return status;
}

tsr_status tsr_job_print_data(tsr_job *job, int64_t show, int form, char **text)
{
    static const tsr_report_form forms[] = {[TSR_JOB_PLAIN] = TSR_REPORT_PLAIN,
                                            [TSR_JOB_COLOUR] = TSR_REPORT_COLOUR,
                                            [TSR_JOB_JSON] = TSR_REPORT_JSON,
                                            [TSR_JOB_HTML] = TSR_REPORT_PAGE};
    tsr_text out = {0};
    if (job->options.purpose != TSR_JOB_DATA)
        return tsr_fail(TSR_EINVAL, "the job was not created for its data (TSR_JOB_DATA)");
    if (show < 0 || form < TSR_JOB_PLAIN || form > TSR_JOB_HTML)
        return tsr_fail(TSR_EINVAL, "tsr_job_print_data: show %lld, form %d", (long long)show,
                        form);
    tsr_aside_begin(&job->aside);
    tsr_status status = tsr_data_report(&out, &job->inputs, show, forms[form]);
    tsr_aside_end(&job->aside);
    if (status < 0)
        tsr_text_free(&out);
    else
        *text = out.data;
    return status;
}

/* ---- what it is ---- */

int tsr_job_rank(const tsr_job *job)
{
    return tsr_comm_rank(job->world);
}

int tsr_job_ranks(const tsr_job *job)
{
    return tsr_comm_size(job->world);
}

int tsr_job_adapters(const tsr_job *job)
{
    return job->inputs.config.adapter_count;
}

const char *tsr_job_adapter_name(const tsr_job *job)
{
    return job->inputs.config.adapter_name;
}

int64_t tsr_job_total_steps(const tsr_job *job)
{
    return job->inputs.batch ? tsr_batch_run_of(job->inputs.batch)->steps : 0;
}

/* The base as it is: of a 4-bit checkpoint the keys decide nothing. */
static void set_stored(tsr_config *config, const tsr_layout *layout)
{
    config->load_in_4bit = config->use_bnb_nested_quant = false;
    for (int unit = 0; unit < layout->layer_count; unit++)
        for (int i = 0; i < tsr_layout_linears(&layout->unit[unit]); i++) {
            const tsr_layout_linear *linear = &layout->unit[unit].linear[i];
            config->load_in_4bit |= linear->quantized;
            config->use_bnb_nested_quant |= linear->quantized && linear->nested;
        }
    for (int unit = 0; unit < layout->layer_count; unit++)
        for (int i = 0; i < tsr_layout_stacks(&layout->unit[unit]); i++) {
            const tsr_layout_stack *stack = &layout->unit[unit].stack[i];
            config->load_in_4bit |= stack->quantized;
            config->use_bnb_nested_quant |= stack->quantized && stack->nested;
        }
}

/* What the decision says. */
static tsr_summary summary_of_plan(const tsr_job *job)
{
    const tsr_inputs *in = &job->inputs;
    const tsr_decision *d = &job->decision;
    return (tsr_summary){.parameter_count = in->layout.parameter_count,
                         .active_count = in->layout.parameter_count - in->layout.idle_count,
                         .trainable_count = in->layout.trainable_count,
                         .ranks = job->view.ranks,
                         .device_peak_bytes = tsr_job_base_bytes(job, TSR_PLACE_DEVICE),
                         .host_peak_bytes = tsr_job_base_bytes(job, TSR_PLACE_HOST) +
                                            tsr_job_base_bytes(job, TSR_PLACE_NODE),
                         .unit_count = in->layout.plan_unit_count,
                         .resident_count = d->resident_count,
                         .recompute_full_count = d->full_count,
                         .recompute_selective_count = d->selective_count,
                         .offloaded_count = d->offloaded_count,
                         .state_offloaded = d->state_offloaded,
                         .base_read_bytes = tsr_checkpoint_bytes_read(in->checkpoint)};
}

void tsr_job_log_plan(const tsr_job *job)
{
    tsr_auto_text line = {0};
    const tsr_summary summary = summary_of_plan(job);
    tsr_summary_plan(&line, &summary);
    if (!job->inputs.cuda)
        tsr_text_printf(&line, "; kernels: %s", tsr_kernels_cpu_set());
    tsr_log(TSR_LOG_INFO, "%s", tsr_text_string(&line));
}

static tsr_status print_summary(tsr_job *job, char **text)
{
    const tsr_inputs *in = &job->inputs;
    tsr_config config = in->config; /* its store is only read */
    tsr_text out = {0}, notes = {0};
    char architecture[64], device[256];
    if (job->options.purpose == TSR_JOB_DATA)
        return tsr_fail(TSR_EINVAL, "a job created for its data has no summary");
    snprintf(architecture, sizeof architecture, "%s, %d layers", in->model.arch->model_type,
             in->layout.layer_count);
    snprintf(device, sizeof device, "%s%s%s%s", tsr_device_description(job->device),
             in->cuda ? ", " : "", in->cuda ? tsr_dtype_name(in->compute) : "",
             job->decision.model.fp8 ? ", the base's matmuls in e4m3" : "");
    tsr_summary summary = summary_of_plan(job);
    summary.architecture = architecture;
    summary.device = device;
    summary.adapter_note = tsr_adapter_experts_note(&in->adapter, in->modules, in->module_count);
    summary.resumed_step = job->resumed;
    summary.total_before = job->longer.total_before;
    summary.last_rate = job->longer.jumps ? job->longer.last : 0;
    summary.rate = job->longer.jumps ? job->longer.next : 0;
    if (in->batch) {
        const tsr_batch_run *run = tsr_batch_run_of(in->batch);
        const tsr_dataset_stats *stats = tsr_dataset_stats_of(in->dataset);
        summary.sample_count = stats->samples;
        summary.row_count = run->units;
        summary.token_count = stats->tokens;
        summary.label_count = stats->label_tokens;
        tsr_inputs_put_chat(&notes, in);
        tsr_findings_put(&notes, in->dataset);
        summary.notes = tsr_text_string(&notes);
        summary.total_steps = run->steps;
        summary.step_samples = run->step_micro * in->config.per_device_train_batch_size;
    }
    if (in->eval_dataset)
        summary.eval_sample_count = tsr_dataset_sample_count(in->eval_dataset);
    set_stored(&config, &in->layout);
    tsr_summary_start(&out, &config, &summary);
    out.failed |= notes.failed;
    tsr_text_free(&notes);
    if (out.failed)
        return tsr_fail(TSR_ENOMEM, "out of memory for the summary");
    *text = out.data;
    return TSR_OK;
}

tsr_status tsr_job_print_summary(tsr_job *job, char **text)
{
    tsr_aside_begin(&job->aside);
    tsr_status status = print_summary(job, text);
    tsr_aside_end(&job->aside);
    return status;
}

const char *tsr_version(void)
{
    return tsr_build_version();
}

int tsr_job_exit_code(int status)
{
    return status > 0 ? 0 : tsr_status_exit_code((tsr_status)status); /* TSR_JOB_DONE: no failure */
}

void tsr_job_request_stop(tsr_job *job)
{
    atomic_store(&job->asked, 1);
}

void tsr_free(void *text)
{
    free(text);
}

static void end_ranks(tsr_job *job)
{
    tsr_job_backend_close(job);
    tsr_comm_destroy(job->sharers);
    tsr_comm_destroy(job->replica);
    tsr_comm_destroy(job->node);
    tsr_comm_destroy(job->shard);
    if (job->control)
        tsr_stream_destroy(job->control);
    tsr_device_destroy(job->host);
    tsr_comm_destroy(job->world);
}

void tsr_job_destroy(tsr_job *job)
{
    tsr_error error;
    if (!job)
        return;
    tsr_mixer_end(job); /* it has no micro-batch without this one */
    job->orphaned = job->sharer && !job->base;
    if (job->orphaned) /* until the last that shares its base has gone */
        return;
    tsr_error_take(&error, TSR_EINTERNAL); /* the caller may ask why the job failed afterwards */
    if (job->state == TSR_JOB_FAILED)
        tsr_job_end(job, TSR_METRICS_FAILED);
    tsr_metrics_destroy(job->metrics);
    tsr_events_destroy(job->events);
    tsr_executor_destroy(job->executor);
    if (job->streams.stream[0]) /* none if the ranks never met */
        tsr_streams_synchronize(tsr_job_streams(job));
    tsr_model_destroy(job->model);
    tsr_context_destroy(job->context);
    tsr_micro_batch_free(&job->micro);
    tsr_micro_batch_free(&job->eval_micro);
    if (!job->base)
        tsr_job_backend_disconnect(job);
    tsr_trace_destroy(job->trace);
    tsr_job_close_output(job);
    free(job->spans);
    free(job->chunk_spans);
    free(job->files);
    free(job->word);
    free(job->eval_word);
    free(job->reference[0]);
    free(job->reference[1]);
    free(job->staged_reference);
    tsr_snapshot_close(job->resume);
    tsr_text_free(&job->matmuls);
    tsr_arena_destroy(job->device_arena);
    tsr_arena_destroy(job->host_arena);
    tsr_arena_destroy(job->scratch_device);
    tsr_arena_destroy(job->scratch_host);
    tsr_decision_free(&job->decision);
    tsr_inputs_close(&job->inputs);
    free(job->mixer);
    if (job->base)
        tsr_job_base_leave(job);
    else
        end_ranks(job);
    free(job);
    tsr_error_put(&error);
}
