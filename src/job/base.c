/*
 * base.c: jobs that share a base. The first one has the ranks, the device and the base; the others join it before it is
 * planned. Each has an adapter, data and files of its own, and they step in turns: what is in the slots and what a
 * micro-batch needs meanwhile is the same memory for all (shard/memory_plan.h).
 */
#include "job/parts.h"

#include "base/clock.h"

#include <string.h>

tsr_job *tsr_job_base_of(const tsr_job *job)
{
    return job->base ? job->base : (tsr_job *)job;
}

tsr_streams *tsr_job_streams(const tsr_job *job)
{
    return &tsr_job_base_of(job)->streams;
}

bool tsr_job_is_shared(const tsr_job *job)
{
    return job->base || job->sharer;
}

/* ---- joining ---- */

tsr_status tsr_job_base_check(const tsr_job *base, int purpose)
{
    if (base->base)
        return tsr_fail(TSR_EINVAL, "tsr_job_options: base shares another job's base itself; name "
                                    "that one");
    if (base->turns + 1 == TSR_KERNELS_TURNS)
        return tsr_fail(TSR_EINVAL, "tsr_job_options: %d jobs share base already",
                        TSR_KERNELS_TURNS);
    if (base->state != TSR_JOB_CREATED)
        return tsr_fail(TSR_EINVAL,
                        "tsr_job_options: base was planned or started already, or has failed; "
                        "create all jobs that share it before");
    if (purpose != base->options.purpose || (purpose != TSR_JOB_TRAIN && purpose != TSR_JOB_PLAN))
        return tsr_fail(TSR_EINVAL, "tsr_job_options: jobs share a base to be trained, or planned");
    return TSR_OK;
}

void tsr_job_base_join(tsr_job *job, tsr_job *base)
{
    tsr_job **end = &base->sharer;
    job->base = base;
    job->host = base->host;
    job->control = base->control;
    job->world = base->world;
    job->view = base->view;
    job->options.threads = base->options.threads;
    job->options.first_gpu = base->options.first_gpu;
    while (*end)
        end = &(*end)->sharer;
    *end = job;
    job->turn = ++base->turns;
}

void tsr_job_base_leave(tsr_job *job)
{
    tsr_job *base = job->base, **at = &base->sharer;
    while (*at != job)
        at = &(*at)->sharer;
    *at = job->sharer;
    if (base->active == job)
        base->active = NULL;
    if (base->orphaned && !base->sharer)
        tsr_job_destroy(base);
}

/* What all have in common. */
static tsr_status check_keys(const tsr_config *own, const tsr_config *base)
{
    for (int i = 0; i < tsr_keys_count(); i++) {
        const tsr_key *key = tsr_keys_at(i);
        tsr_auto_text mine = {0}, its = {0};
        if (!(key->flags & TSR_KEY_OF_BASE))
            continue;
        TSR_TRY(tsr_config_value_text(&mine, own, key->name));
        TSR_TRY(tsr_config_value_text(&its, base, key->name));
        if (strcmp(tsr_text_string(&mine), tsr_text_string(&its)) != 0)
            return tsr_fail(TSR_ECONFIG, "%s: %s is %s, but the job whose base is shared has %s",
                            tsr_config_where(own, key->name), key->name, tsr_text_string(&mine),
                            tsr_text_string(&its));
    }
    return TSR_OK;
}

/* Two of them that would write over each other. */
static tsr_status check_output(const tsr_job *job)
{
    const tsr_config *own = &job->inputs.config;
    for (const tsr_job *other = job->base; other != job; other = other->sharer)
        if (own->output_dir && other->inputs.config.output_dir &&
            !strcmp(own->output_dir, other->inputs.config.output_dir))
            return tsr_fail(TSR_ECONFIG, "%s: output_dir: %s is the directory of %s too",
                            tsr_config_where(own, "output_dir"), own->output_dir,
                            other->inputs.config.adapter_name ? other->inputs.config.adapter_name
                                                              : "another job on this base");
    return TSR_OK;
}

tsr_status tsr_job_base_check_config(const tsr_job *job)
{
    const tsr_config *config = &job->inputs.config;
    if (config->trace && (job->base || config->adapter_count > 1))
        return tsr_fail(TSR_ECONFIG,
                        "%s: a trace is of one adapter; leave trace out, or the others",
                        tsr_config_where(config, "trace"));
    if (!job->base)
        return TSR_OK;
    TSR_TRY(check_keys(config, &job->base->inputs.config));
    return check_output(job);
}

static const char *name_of(const tsr_job *job)
{
    const char *name = job->inputs.config.adapter_name;
    return name ? name : job->inputs.config.output_dir;
}

/* PiSSA takes the adapter's first values out of the base. */
static bool changes_base(const tsr_job *job)
{
    return tsr_train_adapter_is_principal(&job->inputs.adapter);
}

tsr_status tsr_job_base_check_inputs(const tsr_job *job)
{
    const tsr_config *config = &job->inputs.config;
    const tsr_layout *own = &job->inputs.layout;
    const tsr_job *changes = changes_base(job)                      ? job
                             : job->base && changes_base(job->base) ? job->base
                                                                    : NULL;
    if (changes && (job->base || config->adapter_count > 1))
        return tsr_fail(TSR_ECONFIG,
                        "%s: adapter %s: init_lora_weights: pissa changes the base, which the "
                        "other adapters share; write true, or train it in a run of its own",
                        tsr_config_where(&changes->inputs.config, "init_lora_weights"),
                        name_of(changes));
    if (!job->base)
        return TSR_OK;
    const tsr_layout *its = &job->base->inputs.layout;
    bool same = own->plan_unit_count == its->plan_unit_count &&
                own->unit_count == its->unit_count && own->plan_head_unit == its->plan_head_unit &&
                own->embedding_whole == its->embedding_whole && own->scores == its->scores;
    if (same)
        return TSR_OK;
    return tsr_fail(
        TSR_ECONFIG,
        "adapters %s and %s: their base does not have the same units, since one trains "
        "tables (modules_to_save, trainable_token_indices, embed_tokens or lm_head, or the score "
        "of objective: reward) that "
        "the other does not, or by the bytes of unit_policy; train them in runs of their "
        "own",
        name_of(job->base), name_of(job));
}

/* ---- memory ---- */

uint64_t tsr_job_base_scratch(const tsr_job *base, tsr_place place)
{
    uint64_t most = 0;
    for (const tsr_job *j = base; j; j = j->sharer) {
        uint64_t bytes = j->decision.memory.of_use[TSR_BUFFER_SCRATCH][place];
        most = bytes > most ? bytes : most;
    }
    return most;
}

uint64_t tsr_job_base_bytes(const tsr_job *job, tsr_place place)
{
    const tsr_job *base = job->base ? job->base : job;
    uint64_t sum = base->decision.memory.of_use[TSR_BUFFER_BASE][place];
    for (const tsr_job *j = base; j; j = j->sharer)
        sum += j->decision.memory.of_use[TSR_BUFFER_OWN][place];
    return sum + tsr_job_base_scratch(base, place);
}

uint64_t tsr_job_base_taken(const tsr_job *job)
{
    const tsr_job *base = job->base ? job->base : job;
    uint64_t sum = base->scratch_device ? tsr_arena_bytes(base->scratch_device) : 0;
    for (const tsr_job *j = base; j; j = j->sharer)
        sum += j->device_arena ? tsr_arena_high_water(j->device_arena) : 0;
    return sum;
}

static uint64_t own_bytes(const tsr_job *job, tsr_place place)
{
    return job->decision.memory.of_use[TSR_BUFFER_OWN][place];
}

/* Whose plan failed. */
static tsr_status named(const tsr_job *job, tsr_status status)
{
    const char *name = job->inputs.config.adapter_name;
    if (status < 0 && job->inputs.layout.mixed_count)
        return tsr_fail_lines(status, "mixed micro-batches: %s", tsr_last_error());
    return status < 0 && name ? tsr_fail_lines(status, "adapter %s: %s", name, tsr_last_error())
                              : status;
}

/* Beside what the others own, and where `of` has the base. */
static tsr_status decide_again(tsr_job *job, tsr_job *base, const tsr_room *room, const tsr_job *of)
{
    tsr_room left = *room;
    for (const tsr_job *j = base; j; j = j->sharer) {
        left.others += j == job ? 0 : own_bytes(j, TSR_PLACE_DEVICE);
        left.others_host += j == job ? 0 : own_bytes(j, TSR_PLACE_HOST);
    }
    left.base = of == job ? NULL : &of->decision;
    tsr_decision_free(&job->decision);
    return named(
        job, tsr_decide(&job->decision, &job->inputs, &job->view, job->train, &left, &job->speeds));
}

static tsr_status decide_all(tsr_job *base, const tsr_room *room)
{
    tsr_job *largest = base;
    for (tsr_job *j = base; j; j = j->sharer) {
        TSR_TRY(
            named(j, tsr_decide(&j->decision, &j->inputs, &j->view, j->train, room, &j->speeds)));
        if (j->decision.memory.of_use[TSR_BUFFER_SCRATCH][TSR_PLACE_DEVICE] >
            largest->decision.memory.of_use[TSR_BUFFER_SCRATCH][TSR_PLACE_DEVICE])
            largest = j;
    }
    TSR_TRY(decide_again(largest, base, room, largest));
    for (tsr_job *j = base; j; j = j->sharer)
        if (j != largest)
            TSR_TRY(decide_again(j, base, room, largest));
    uint64_t bytes = tsr_job_base_bytes(base, TSR_PLACE_DEVICE) + largest->decision.reserve;
    uint64_t budget = tsr_room_budget(&base->inputs.config, room);
    if (bytes <= budget)
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG,
                    "the adapters need %llu bytes of device memory together, and %llu are allowed; "
                    "train fewer of them at a time, write optimizer_offload: true, or give "
                    "memory_budget more",
                    (unsigned long long)bytes, (unsigned long long)budget);
}

tsr_status tsr_job_base_decide(tsr_job *job, const tsr_room *room)
{
    tsr_job *base = tsr_job_base_of(job);
    if (tsr_inputs_mixes(&base->inputs))
        TSR_TRY(tsr_mixer_create(base));
    TSR_TRY(tsr_job_agree(job, decide_all(base, room)));
    for (tsr_job *j = base; j; j = j->sharer) {
        if (j->options.purpose != TSR_JOB_PLAN)
            TSR_TRY(tsr_job_agree(j, tsr_plan_check_ranks(j->decision.plan, j->world, j->control)));
        j->state = TSR_JOB_PLANNED;
    }
    return TSR_OK;
}

/* ---- running ---- */

tsr_status tsr_job_base_enter(tsr_job *job)
{
    tsr_job *base = tsr_job_base_of(job);
    if (base->active == job)
        return TSR_OK;
    base->active = job;
    TSR_TRY(job->kernels->turn(job->device, job->turn));
    TSR_TRY(tsr_executor_prologue(job->executor));
    if (!base->mixer) /* the others' time is no part of its next step's */
        job->word_time = tsr_now();
    job->exposed_before = tsr_job_exposed(job);
    return TSR_OK;
}
