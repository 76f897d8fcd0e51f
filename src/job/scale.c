/*
 * scale.c: the plan of one job for several numbers of ranks side by side: `tessera plan --ranks 8,64`.
 *
 * The first row is one rank, or as many as share a micro-batch (context_parallel_size), and lost is what a micro-batch takes
 * longer than there: (t_N - t_1) / t_N with the same tokens on every rank. Where shard_group_size is left out, groups of a node (the default) and
 * one group of all ranks are compared.
 */
#include "base/called.h"
#include "job/parts.h"
#include "job/sized.h"
#include "report/report.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct {
    const tsr_job_options *options;
    json_t *rows;
    double alone; /* seconds of a micro-batch in the first row */
    bool grouped; /* the job says shard_group_size itself */
} scaling;

/* Of `ranks` ranks; group 0: as the job says. */
static tsr_status plan_one(tsr_job_plan_info *info, scaling *s, int ranks, int group)
{
    tsr_job_options options = *s->options;
    const char **overrides = calloc((size_t)options.override_count + 1, sizeof *overrides);
    char text[48];
    tsr_job *job = NULL;
    if (!overrides)
        return tsr_fail(TSR_ENOMEM, "out of memory for a plan's overrides");
    for (int i = 0; i < options.override_count; i++)
        overrides[i] = options.overrides[i];
    snprintf(text, sizeof text, "shard_group_size=%d", group);
    overrides[options.override_count] = text;
    options.overrides = overrides;
    options.override_count += group > 0;
    options.plan_ranks = ranks;
    if (s->alone > 0) /* what it says of the configuration was said */
        options.log = NULL;
    tsr_status status = (tsr_status)tsr_job_create(&job, &options);
    if (status == TSR_OK && tsr_job_adapters(job) > 1)
        status = tsr_fail(TSR_ECONFIG, "adapters: --ranks with several numbers is for one adapter; "
                                       "give one number, or leave the list out");
    if (status == TSR_OK)
        status = (tsr_status)tsr_job_plan(job, info);
    if (status == TSR_OK && info->expected_step_s <= 0)
        status = tsr_fail(TSR_ECONFIG,
                          "--ranks with several numbers compares expected times, and nothing was "
                          "measured on this machine: run `%s env --measure` on such a one, or "
                          "give its figures with --roofs FILE",
                          tsr_called());
    if (status == TSR_OK && group == 0)
        s->grouped = tsr_config_is_set(&job->inputs.config, "shard_group_size");
    tsr_job_destroy(job);
    free(overrides);
    return status;
}

static tsr_status add_row(scaling *s, int ranks, int group)
{
    tsr_job_plan_info info = TSR_JOB_PLAN_INFO_INIT;
    TSR_TRY(plan_one(&info, s, ranks, group));
    double micro = info.expected_step_s / (double)info.rounds;
    if (s->alone <= 0)
        s->alone = micro;
    json_t *row = tsr_report_row(s->rows);
    tsr_report_int(row, "ranks", (uint64_t)ranks);
    tsr_report_int(row, "shard_group_size", (uint64_t)info.shard_group_size);
    tsr_report_int(row, "resident_units", (uint64_t)info.resident_count);
    tsr_report_int(row, "device_peak_bytes", info.device_peak_bytes);
    tsr_report_int(row, "host_peak_bytes", info.host_peak_bytes);
    tsr_report_real(row, "step_ms", 1e3 * info.expected_step_s);
    tsr_report_real(row, "exposed_ms", 1e3 * info.expected_exposed_s);
    tsr_report_real(row, "lost", 1 - s->alone / micro);
    tsr_report_real(row, "tokens_per_s", info.expected_tokens_per_s);
    return TSR_OK;
}

/* How many ranks share a micro-batch: fewer have no plan. ranks: which have one. */
static tsr_status sharers(int *out, const tsr_job_options *given, int ranks)
{
    tsr_job_options options = *given;
    tsr_job *job;
    options.plan_ranks = ranks;
    options.log = NULL;
    TSR_TRY(tsr_job_create_without_data(&job, &options));
    *out = (int)job->inputs.config.context_parallel_size;
    tsr_job_destroy(job);
    return TSR_OK;
}

static tsr_status add_ranks(scaling *s, int ranks)
{
    int node = s->options->plan_node;
    TSR_TRY(add_row(s, ranks, 0));
    return !s->grouped && node > 0 && ranks > node ? add_row(s, ranks, ranks) : TSR_OK;
}

tsr_status tsr_plan_scale(const tsr_job_options *options, const int *ranks, int count, int json,
                          char **text)
{
    tsr_job_options taken;
    tsr_aside aside = {0};
    TSR_TRY(tsr_job_options_take(&taken, options));
    tsr_aside_begin(&aside);
    json_t *root = json_object();
    scaling s = {.options = &taken, .rows = tsr_report_array(root, "scale")};
    int least = 1;
    tsr_status status = sharers(&least, &taken, ranks[0]);
    if (status == TSR_OK)
        status = add_row(&s, least, least > 1 ? 0 : 1);
    for (int i = 0; i < count && status == TSR_OK; i++)
        if (ranks[i] != least)
            status = add_ranks(&s, ranks[i]);
    if (status < 0)
        json_decref(root);
    else
        status = tsr_report_print(text, root, json);
    tsr_aside_end(&aside);
    return status;
}
