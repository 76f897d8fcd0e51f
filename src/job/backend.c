/*
 * backend.c: where the model is computed: on the host itself, or on a GPU.
 */
#include "job/parts.h"

#include "device/topology.h"

#include <stdio.h>
#include <stdlib.h>

/* Whether there is a GPU for this rank. `why` it is wanted decides what a missing driver means. */
static tsr_status find_gpu(bool *found, tsr_config_backend backend)
{
    int count = 0;
    tsr_status status = tsr_device_cuda_count(&count);
    *found = status == TSR_OK && count > 0;
    if (*found || backend == TSR_CONFIG_BACKEND_AUTO)
        return TSR_OK;
    if (status < 0)
        return status;
    return tsr_fail(TSR_EDEVICE, "backend: cuda was asked for, but no GPU is visible; look at "
                                 "nvidia-smi and CUDA_VISIBLE_DEVICES, or write backend: cpu");
}

static tsr_status choose(tsr_job *job)
{
    tsr_inputs *inputs = &job->inputs;
    const tsr_config *config = &inputs->config;
    bool planned = job->options.purpose == TSR_JOB_PLAN;
    inputs->cuda = false;
    if (config->backend == TSR_CONFIG_BACKEND_CUDA && planned)
        inputs->cuda = true; /* a plan needs no GPU */
    else if (config->backend != TSR_CONFIG_BACKEND_CPU && tsr_device_cuda_built())
        TSR_TRY(find_gpu(&inputs->cuda, config->backend));
    if (!inputs->cuda && config->dtype == TSR_CONFIG_DTYPE_BFLOAT16)
        return tsr_fail(TSR_ECONFIG,
                        "%s: dtype: bfloat16 was asked for, but no GPU is visible and the CPU "
                        "backend computes in float32; write dtype: float32 or auto",
                        tsr_config_where(config, "dtype"));
    inputs->compute =
        inputs->cuda && config->dtype != TSR_CONFIG_DTYPE_FLOAT32 ? TSR_BF16 : TSR_F32;
    return TSR_OK;
}

tsr_status tsr_job_backend_choose(tsr_job *job)
{
    TSR_TRY(tsr_job_agree(job, choose(job)));
    return tsr_comm_check_same(job->world, job->control, job->inputs.cuda, "whether a GPU is used",
                               "give every rank a GPU, or write backend: cpu");
}

/* What an fp8 base needs of the card and of its library. */
static tsr_status check_fp8(const tsr_job *job)
{
    const tsr_config *config = &job->inputs.config;
    char why[512];
    if (config->base_compute == TSR_CONFIG_BASE_COMPUTE_DTYPE)
        return TSR_OK;
    if (tsr_kernels_fp8_supported(job->device) == TSR_OK)
        return TSR_OK;
    snprintf(why, sizeof why, "%s", tsr_last_error());
    return tsr_fail(
        TSR_EDEVICE, "%s: base_compute: fp8 was asked for on %s, and %s; write base_compute: dtype",
        tsr_config_where(config, "base_compute"), tsr_device_description(job->device), why);
}

tsr_status tsr_job_backend_open(tsr_job *job)
{
    if (job->base) {
        job->device = job->base->device;
        job->streams = job->base->streams;
        job->kernels = job->base->kernels;
        return TSR_OK;
    }
    if (!job->inputs.cuda || job->options.purpose == TSR_JOB_PLAN) {
        job->device = job->host;
        TSR_TRY(tsr_streams_create(&job->streams, job->host, job->control));
        return tsr_kernels_open(&job->kernels, job->host);
    }
    tsr_device_options options = {.thread_count = job->options.threads,
                                  .local_rank = tsr_comm_local_rank(job->world),
                                  .local_rank_count = tsr_comm_local_size(job->world),
                                  .first_card = job->options.first_gpu,
                                  .timeout_seconds = tsr_device_timeout(job->host)};
    TSR_TRY(tsr_device_create_cuda(&job->device, &options));
    TSR_TRY(tsr_streams_create(&job->streams, job->device, NULL));
    TSR_TRY(tsr_kernels_open(&job->kernels, job->device));
    return check_fp8(job);
}

tsr_status tsr_job_backend_connect(tsr_job *job)
{
    if (job->base) {
        job->shard = job->base->shard;
        job->replica = job->base->replica;
        job->node = job->base->node;
        job->sharers = job->base->sharers;
        job->device_sharers = job->base->device_sharers;
        job->device_world = job->base->device_world;
        job->device_shard = job->base->device_shard;
        job->device_replica = job->base->device_replica;
        return TSR_OK;
    }
    if (job->device == job->host) {
        job->device_world = job->world;
        job->device_shard = job->shard;
        job->device_replica = job->replica;
        job->device_sharers = job->sharers;
        return TSR_OK;
    }
    TSR_TRY(tsr_comm_create_nccl(&job->device_world, job->world, job->control, job->device));
    if (job->decision.replicas == 1) /* the same ranks: a communicator takes memory of the card */
        job->device_shard = job->device_world;
    else
        TSR_TRY(tsr_comm_create_nccl(&job->device_shard, job->shard, job->control, job->device));
    if (job->replica)
        TSR_TRY(
            tsr_comm_create_nccl(&job->device_replica, job->replica, job->control, job->device));
    if (job->sharers && tsr_comm_size(job->sharers) == job->view.ranks)
        job->device_sharers = job->device_world;
    else if (job->sharers)
        TSR_TRY(
            tsr_comm_create_nccl(&job->device_sharers, job->sharers, job->control, job->device));
    return TSR_OK;
}

/* All that is gathered or exchanged inside the shard group. */
tsr_status tsr_job_backend_expose(tsr_job *job)
{
    const tsr_store *store = &job->decision.store;
    const tsr_trainable *t = &store->trainable;
    tsr_comm *shard = job->device_shard;
    if (store->node_bytes)
        TSR_TRY(tsr_device_pin(job->device, store->node_base, store->node_bytes));
    TSR_TRY(tsr_comm_expose(shard, job->control, store->shards, store->shard_bytes));
    TSR_TRY(tsr_comm_expose(shard, job->control, t->work, t->work_bytes));
    for (int i = 0; i < store->plan->options.stages; i++)
        TSR_TRY(tsr_comm_expose(shard, job->control, store->stage[i], store->plan->stage_bytes));
    return tsr_comm_expose(shard, job->control, store->gradient,
                           (uint64_t)store->plan->gradient_buffers * store->plan->gradient_bytes);
}

void tsr_job_backend_disconnect(tsr_job *job)
{
    if (!job->device || job->device == job->host)
        return;
    if (job->device_sharers != job->device_world)
        tsr_comm_destroy(job->device_sharers);
    tsr_comm_destroy(job->device_replica);
    if (job->device_shard != job->device_world)
        tsr_comm_destroy(job->device_shard);
    tsr_comm_destroy(job->device_world);
    if (job->decision.store.node_base)
        tsr_device_unpin(job->device, job->decision.store.node_base);
}

void tsr_job_backend_close(tsr_job *job)
{
    tsr_streams_destroy(&job->streams);
    if (job->device != job->host)
        tsr_device_destroy(job->device);
}

/* A plan looks at a GPU, if there is one, only to know which it is. */
static tsr_status find_speeds(tsr_job *job)
{
    const tsr_job_options *o = &job->options;
    tsr_device *gpu = NULL;
    int count = 0;
    bool cuda = job->inputs.cuda, elsewhere = cuda && job->device == job->host;
    tsr_dtype compute = job->inputs.compute;
    if (o->plan_roofs)
        return tsr_speeds_read(&job->speeds, o->plan_roofs, cuda, compute);
    tsr_speeds_default(&job->speeds, cuda, compute);
    if (!elsewhere)
        tsr_speeds_find(&job->speeds, job->device, compute);
    else if (tsr_device_cuda_count(&count) == TSR_OK && count > 0 &&
             tsr_device_create_cuda(&gpu, &(tsr_device_options){.local_rank_count = count}) ==
                 TSR_OK)
        tsr_speeds_find(&job->speeds, gpu, compute);
    tsr_device_destroy(gpu);
    return TSR_OK;
}

tsr_status tsr_job_backend_speeds(tsr_job *job)
{
    TSR_TRY(tsr_job_agree(job, job->view.rank == 0 ? find_speeds(job) : TSR_OK));
    TSR_TRY(tsr_job_agree(
        job, tsr_comm_broadcast(job->world, job->control, &job->speeds, sizeof job->speeds, 0)));
    return tsr_stream_synchronize(job->control);
}

/* ---- memory ---- */

/* What a rank's control groups say. */
typedef struct {
    int node;
    tsr_cgroup cgroup;
} rank_limits;

static bool has_level(const rank_limits *limits, uint64_t id)
{
    for (int i = 0; i < limits->cgroup.memory_count; i++)
        if (limits->cgroup.memory[i].id == id)
            return true;
    return false;
}

/* Of a rank, in bytes. */
typedef struct {
    uint64_t machine, groups; /* UINT64_MAX: no control group limits it */
} share;

/* Four fifths of this rank's share of the machine's memory, and of what its control groups leave. planned: the ranks
 * of a node are not there, and are taken to be in the groups of this process. */
static share share_of_memory(const rank_limits *all, int ranks, int rank, int local_ranks,
                             bool planned)
{
    const rank_limits *own = &all[rank];
    uint64_t machine = tsr_topology_memory(&(tsr_cgroup){0});
    share out = {machine / 5 * 4 / (uint64_t)local_ranks, UINT64_MAX};
    for (int i = 0; i < own->cgroup.memory_count; i++) {
        const tsr_cgroup_memory *level = &own->cgroup.memory[i];
        uint64_t sharers = planned ? (uint64_t)local_ranks : 0;
        for (int j = 0; j < ranks && !planned; j++)
            sharers += all[j].node == own->node && has_level(&all[j], level->id);
        uint64_t least = level->free / 5 * 4 / sharers;
        out.groups = least < out.groups ? least : out.groups;
    }
    return out;
}

static tsr_status find_share_of_memory(share *out, tsr_job *job)
{
    int ranks = tsr_comm_size(job->world), rank = tsr_comm_rank(job->world);
    rank_limits *all = calloc((size_t)ranks, sizeof *all);
    tsr_status status = all ? TSR_OK : tsr_fail(TSR_ENOMEM, "out of memory for the ranks' limits");
    status = tsr_job_agree(job, status);
    if (status == TSR_OK) {
        all[rank].node = tsr_comm_node(job->world);
        tsr_cgroup_read(&all[rank].cgroup, "");
        tsr_gather_range range = {&all[rank], all, sizeof *all};
        status = tsr_comm_all_gather(job->world, job->control, &range, 1);
        if (status == TSR_OK) /* within the range's life */
            status = tsr_stream_synchronize(job->control);
    }
    if (status == TSR_OK)
        *out = share_of_memory(all, ranks, rank, job->view.local_ranks,
                               job->options.purpose == TSR_JOB_PLAN);
    free(all);
    return status;
}

/* Of a GPU what is free; of one that is not here (a plan) all that it has, if that is known, and of its machine's host
 * memory nothing is known. */
static tsr_status find_room(tsr_room *out, tsr_job *job)
{
    int count = 1;
    if (job->device != job->host) {
        TSR_TRY(tsr_device_cuda_count(&count));
        out->card = tsr_device_card(job->options.first_gpu, tsr_comm_local_rank(job->world), count);
        return tsr_device_memory(&out->free, &out->total, job->device);
    }
    if (job->inputs.cuda) {
        out->free = job->speeds.memory_bytes ? job->speeds.memory_bytes : TSR_BUDGET_UNKNOWN;
        if (tsr_device_cuda_count(&count) < 0 || count == 0 || job->options.plan_roofs)
            out->host = out->host_shown = 0;
    }
    return TSR_OK;
}

/* Of host memory the least that a rank may have; where nothing limits it, that is much. */
static tsr_status least_of_host(tsr_room *room, tsr_job *job)
{
    uint64_t *bytes[] = {&room->host, &room->host_shown};
    for (int i = 0; i < 2; i++) {
        int64_t least = *bytes[i] ? (int64_t)*bytes[i] : INT64_MAX;
        TSR_TRY(tsr_comm_all_reduce(job->world, job->control, &least, 1, TSR_MIN));
        TSR_TRY(tsr_stream_synchronize(job->control));
        *bytes[i] = least == INT64_MAX ? 0 : (uint64_t)least;
    }
    return TSR_OK;
}

/* The rank with the least room counts. */
tsr_status tsr_job_backend_room(tsr_room *out, tsr_job *job)
{
    int rank = tsr_comm_rank(job->world);
    share of_host;
    *out = (tsr_room){.rank = rank};
    TSR_TRY(find_share_of_memory(&of_host, job));
    out->free = of_host.groups < of_host.machine ? of_host.groups : of_host.machine;
    if (job->inputs.cuda) {
        out->host = of_host.groups == UINT64_MAX ? 0 : of_host.groups;
        out->host_shown = of_host.machine;
    }
    TSR_TRY(tsr_job_agree(job, find_room(out, job)));
    TSR_TRY(least_of_host(out, job));
    int64_t least = (int64_t)out->free;
    TSR_TRY(tsr_comm_all_reduce(job->world, job->control, &least, 1, TSR_MIN));
    TSR_TRY(tsr_stream_synchronize(job->control));
    int64_t fullest = (int64_t)out->free == least ? rank : INT64_MAX;
    TSR_TRY(tsr_comm_all_reduce(job->world, job->control, &fullest, 1, TSR_MIN));
    TSR_TRY(tsr_stream_synchronize(job->control));
    TSR_TRY(tsr_comm_broadcast(job->world, job->control, out, sizeof *out, (int)fullest));
    return tsr_stream_synchronize(job->control);
}
