/*
 * job_start.c: all memory is taken, the weights are read, the adapter gets its first values.
 */
#include "train/job_parts.h"

#include "base/clock.h"

#include <string.h>

static tsr_status split(tsr_job *job)
{
    const tsr_decision *d = &job->decision;
    tsr_stream *stream = tsr_job_comm_stream(job);
    int rank = job->view.rank;
    TSR_TRY(tsr_comm_split(&job->shard, job->world, stream, rank / d->group));
    TSR_TRY(tsr_comm_split(&job->node, job->world, stream, tsr_comm_node(job->world)));
    if (d->replicas == 1)
        return TSR_OK;
    return tsr_comm_split(&job->replica, job->world, stream, rank % d->group);
}

static tsr_status take_memory(tsr_job *job)
{
    tsr_decision *d = &job->decision;
    const tsr_memory_plan *memory = &d->memory;
    TSR_TRY(tsr_arena_create(&job->device_arena, job->device, TSR_MEMORY_DEVICE,
                             memory->total[TSR_PLACE_DEVICE]));
    TSR_TRY(tsr_arena_create(&job->host_arena, job->device, TSR_MEMORY_HOST,
                             memory->total[TSR_PLACE_HOST]));
    TSR_TRY(tsr_model_create(&job->model, &d->model));
    tsr_taker taker = {.plan = &d->memory, .device = job->device_arena, .host = job->host_arena};
    TSR_TRY(tsr_decision_walk(d, &job->inputs, &job->view, &taker, job->model, &job->buffers));
    TSR_TRY(tsr_taker_finish(&taker));
    job->sums = job->buffers.sums;
    if (job->inputs.batch)
        TSR_TRY(tsr_micro_batch_create(&job->micro, tsr_batch_run_of(job->inputs.batch)));
    if (job->inputs.eval_batch)
        TSR_TRY(tsr_micro_batch_create(&job->eval_micro, tsr_batch_run_of(job->inputs.eval_batch)));
    return TSR_OK;
}

/* ---- weights ---- */

static char *frozen_place(void *user, int unit, int segment)
{
    tsr_job *job = user;
    return tsr_load_at(&job->decision.store, job->world, unit, segment).data;
}

/* The fp32 values that are loaded: the masters, or in an evaluation, which has none, the working
 * copy. */
static float *trainable_place(void *user, int unit, int segment)
{
    const tsr_trainable *trainable = &((tsr_job *)user)->decision.store.trainable;
    tsr_trainable_span span = tsr_trainable_at(trainable, unit, segment);
    return trainable->master ? trainable->master + span.begin : span.work;
}

static void report_progress(void *user, int unit)
{
    tsr_job *job = user;
    if (job->options.progress && job->view.rank == 0)
        job->options.progress(job->options.user, "reading and quantizing", unit + 1,
                              job->inputs.layout.unit_count);
}

/* The ranks of a node read a share of the embedding each. */
static tsr_status load_embedding(tsr_job *job)
{
    const tsr_layout *layout = &job->inputs.layout;
    uint64_t rows = layout->config.vocab_size;
    uint64_t ranks = (uint64_t)job->view.local_ranks;
    uint64_t rank = (uint64_t)tsr_comm_local_rank(job->world);
    uint64_t first = rows * rank / ranks, end = rows * (rank + 1) / ranks;
    return tsr_model_load_embedding(job->embedding, layout, first, end - first);
}

static tsr_status load_weights(tsr_job *job)
{
    const tsr_decision *d = &job->decision;
    const tsr_layout *layout = &job->inputs.layout;
    tsr_model_loader loader = {.stream = tsr_job_comm_stream(job),
                               .frozen = frozen_place,
                               .trainable = trainable_place,
                               .progress = report_progress,
                               .user = job};
    for (int unit = 0; unit < layout->unit_count; unit++) {
        loader.comm = d->home[unit] == TSR_HOME_HOST_FULL ? job->node : job->shard;
        TSR_TRY(tsr_model_load_unit(job->model, unit, &loader));
    }
    TSR_TRY(tsr_job_agree(job, load_embedding(job)));
    return tsr_load_finish(&d->store, job->world, job->shard, loader.stream);
}

/* ---- the adapter ---- */

static tsr_status copy_work(const tsr_trainable *trainable)
{
    if (!trainable->master)
        return TSR_OK;
    return tsr_adamw_copy_work(trainable->work, TSR_F32, trainable->master, trainable->count);
}

static tsr_status load_adapter(tsr_job *job)
{
    tsr_trainable *trainable = &job->decision.store.trainable;
    const tsr_layout *layout = &job->inputs.layout;
    tsr_model_loader loader = {.comm = job->shard, .trainable = trainable_place, .user = job};
    for (int unit = 0; unit < layout->unit_count; unit++)
        TSR_TRY(tsr_model_load_trainable(layout, unit, job->inputs.adapter.init,
                                         (uint64_t)job->inputs.config.seed, &loader));
    return copy_work(trainable);
}

/* B of an adapter to which magnitudes are added: they start as norms of W, which is g = 1 only
 * where B is 0. */
static tsr_status check_zero_b(tsr_job *job)
{
    const tsr_trainable *trainable = &job->decision.store.trainable;
    const tsr_layout *layout = &job->inputs.layout;
    if (!job->inputs.adapter.init)
        return TSR_OK;
    for (int unit = 0; unit < layout->layer_count; unit++)
        for (int kind = 0; kind < TSR_LINEAR_COUNT; kind++) {
            const tsr_layout_linear *linear = &layout->unit[unit].linear[kind];
            if (!linear->dora)
                continue;
            tsr_trainable_span span = tsr_trainable_at(trainable, unit, linear->b);
            const float *b = trainable_place(job, unit, linear->b);
            for (uint64_t i = 0; i < span.real; i++)
                if (b[i] != 0)
                    return tsr_fail(TSR_ECONFIG,
                                    "use_dora: init_adapter %s has no magnitudes and its lora_B of "
                                    "%s is not 0, so there is no magnitude that leaves it as it "
                                    "is; start from an adapter with magnitudes, or use_dora: false",
                                    job->inputs.config.init_adapter, linear->path);
        }
    return TSR_OK;
}

/* Fresh magnitudes are the row norms of the dequantized W: one forward-only pass over the units
 * computes them where the weights are gathered, and each owner takes its range. */
static tsr_status fresh_magnitudes(tsr_job *job)
{
    tsr_trainable *trainable = &job->decision.store.trainable;
    const tsr_layout *layout = &job->inputs.layout;
    int64_t word[TSR_WORD_COUNT];
    TSR_TRY(tsr_job_agree(job, check_zero_b(job)));
    tsr_model_set_fresh(job->model, true);
    TSR_TRY(tsr_model_stage(job->model, &(tsr_model_batch){0}));
    TSR_TRY(tsr_executor_micro_batch(job->executor, false, true));
    TSR_TRY(tsr_model_release(job->model));
    TSR_TRY(tsr_executor_eval_end(job->executor, &(tsr_host_flags){0}));
    TSR_TRY(tsr_executor_wait_word(job->executor, word));
    TSR_TRY(tsr_streams_synchronize(&job->streams));
    tsr_model_set_fresh(job->model, false);
    for (int unit = 0; unit < layout->layer_count; unit++)
        for (tsr_linear_kind kind = 0; kind < TSR_LINEAR_COUNT; kind++) {
            const tsr_layout_linear *linear = &layout->unit[unit].linear[kind];
            if (!linear->dora)
                continue;
            tsr_trainable_span span = tsr_trainable_at(trainable, unit, linear->m);
            const float *n = tsr_model_norms(job->model, unit, kind);
            float *m = trainable_place(job, unit, linear->m);
            for (uint64_t i = 0; i < span.real && span.first + i < linear->out; i++)
                m[i] = n[span.first + i];
        }
    TSR_TRY(copy_work(trainable));
    return tsr_executor_prologue(job->executor);
}

/* ---- the optimizer ---- */

static tsr_status make_schedule(tsr_job *job)
{
    const tsr_config *config = &job->inputs.config;
    static const char *const names[] = {[TSR_CONFIG_LR_LINEAR] = "linear",
                                        [TSR_CONFIG_LR_COSINE] = "cosine",
                                        [TSR_CONFIG_LR_CONSTANT] = "constant",
                                        [TSR_CONFIG_LR_CONSTANT_WITH_WARMUP] =
                                            "constant_with_warmup",
                                        [TSR_CONFIG_LR_COSINE_WITH_MIN_LR] = "cosine_with_min_lr"};
    const tsr_config_lr_kwargs *k = &config->lr_scheduler_kwargs;
    tsr_schedule_options options = {.name = names[config->lr_scheduler_type],
                                    .warmup_steps = config->warmup_steps,
                                    .learning_rate = config->learning_rate,
                                    .num_cycles = k->num_cycles,
                                    .min_lr = k->min_lr,
                                    .min_lr_rate = k->min_lr_rate,
                                    .num_cycles_set = k->num_cycles == k->num_cycles,
                                    .min_lr_set = k->min_lr == k->min_lr,
                                    .min_lr_rate_set = k->min_lr_rate == k->min_lr_rate};
    const tsr_trainable *trainable = &job->decision.store.trainable;
    job->total_steps = job->last_step = tsr_batch_run_of(job->inputs.batch)->steps;
    job->adamw = (tsr_adamw_step){.beta1 = config->adam_beta1,
                                  .beta2 = config->adam_beta2,
                                  .epsilon = config->adam_epsilon,
                                  .weight_decay = config->weight_decay};
    job->span = (tsr_adamw_span){.master = trainable->master,
                                 .m = trainable->m,
                                 .v = trainable->v,
                                 .gradient = trainable->accumulator,
                                 .work = trainable->work,
                                 .work_dtype = TSR_F32,
                                 .count = trainable->count};
    return tsr_schedule_make(&job->schedule, &options, (uint64_t)job->total_steps);
}

static tsr_status start(tsr_job *job)
{
    tsr_decision *d = &job->decision;
    tsr_stream *const *stream = job->streams.stream;
    void *embedding = NULL;
    if (job->train)
        TSR_TRY(tsr_job_agree(job, make_schedule(job)));
    TSR_TRY(split(job));
    TSR_TRY(tsr_job_agree(job, take_memory(job)));
    if (job->train)
        TSR_TRY(tsr_job_agree(job, make_schedule(job))); /* the arrays have addresses now */
    TSR_TRY(tsr_store_share(&d->store, job->world, tsr_job_comm_stream(job)));
    TSR_TRY(tsr_comm_share(&embedding, job->world, tsr_job_comm_stream(job),
                           tsr_embedding_bytes(&job->inputs.layout)));
    job->embedding = embedding;
    tsr_frozen table = {embedding,
                        job->inputs.layout.embedding->dtype == TSR_BF16 ? TSR_BF16 : TSR_F32};
    tsr_model_sums sums = {&job->sums->loss, &job->sums->loss_overflow,
                           &job->sums->gradient_overflow};
    TSR_TRY(tsr_model_start(job->model, stream[TSR_STREAM_COMPUTE], stream[TSR_STREAM_H2D], table,
                            sums));
    TSR_TRY(load_weights(job));
    if (job->inputs.adapter.present)
        TSR_TRY(tsr_job_agree(job, load_adapter(job)));
    tsr_executor_options options = {.store = &d->store,
                                    .device = job->device,
                                    .streams = &job->streams,
                                    .world = job->world,
                                    .shard = job->shard,
                                    .replica = job->replica,
                                    .callbacks = tsr_job_callbacks};
    options.callbacks.user = job;
    TSR_TRY(tsr_executor_create(&job->executor, &options));
    TSR_TRY(tsr_executor_prologue(job->executor));
    if (job->inputs.adapter.present && job->inputs.adapter.fresh_magnitudes)
        TSR_TRY(fresh_magnitudes(job));
    return TSR_OK;
}

int tsr_job_start(tsr_job *job)
{
    if (job->options.purpose == TSR_JOB_PLAN)
        return tsr_fail(TSR_EINVAL, "a job created to be planned cannot be started");
    TSR_TRY(tsr_job_decide(job));
    if (job->state != TSR_JOB_PLANNED)
        return tsr_fail(TSR_EINVAL, "the job has been started before");
    TSR_TRY(tsr_job_agree(job, start(job)));
    if (job->options.purpose == TSR_JOB_TRAIN)
        TSR_TRY(tsr_job_agree(job, job->view.rank == 0 ? tsr_job_write_output(job) : TSR_OK));
    job->state = TSR_JOB_STARTED;
    job->started_at = job->word_time = tsr_now();
    return TSR_OK;
}
