/*
 * start.c: all memory is taken, the weights are read, the adapter gets its first values.
 */
#include "base/auto.h"
#include "job/parts.h"

#include "base/clock.h"
#include "base/phase.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Through a caller's all-gather all ranks make the same calls; groups of ranks exchange what their rows are long. */
static tsr_status check_sharers(const tsr_job *job, int shared_by)
{
    int ranks = job->view.ranks;
    if (shared_by == ranks || job->device != job->host ||
        strcmp(tsr_comm_name(job->world), "callback") != 0)
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG,
                    "%s: context_parallel_size is %d, but the %d ranks meet through the caller's "
                    "all_gather, and on the CPU groups of them cannot share rows then: write %d "
                    "or 1, or start the ranks with mpirun",
                    tsr_config_where(&job->inputs.config, "context_parallel_size"), shared_by,
                    ranks, ranks);
}

static tsr_status split(tsr_job *job)
{
    const tsr_decision *d = &job->decision;
    tsr_stream *stream = job->control;
    int rank = job->view.rank;
    TSR_TRY(tsr_comm_split(&job->shard, job->world, stream, rank / d->group));
    TSR_TRY(tsr_comm_split(&job->node, job->world, stream, tsr_comm_node(job->world)));
    int shared_by = (int)job->inputs.config.context_parallel_size;
    if (shared_by > 1)
        TSR_TRY(check_sharers(job, shared_by));
    if (shared_by > 1)
        TSR_TRY(tsr_comm_split(&job->sharers, job->world, stream, rank / shared_by));
    if (d->replicas == 1)
        return TSR_OK;
    return tsr_comm_split(&job->replica, job->world, stream, rank % d->group);
}

/* Of jobs that share a base, the first takes the base and the scratch of all. */
static tsr_status take_arenas(tsr_taker *taker, tsr_job *job)
{
    const tsr_memory_plan *plan = &job->decision.memory;
    tsr_job *base = tsr_job_base_of(job);
    bool shared = tsr_job_is_shared(job);
    const tsr_memory kind[] = {TSR_MEMORY_DEVICE, TSR_MEMORY_HOST};
    const tsr_place place[] = {TSR_PLACE_DEVICE, TSR_PLACE_HOST};
    tsr_arena **own[] = {&job->device_arena, &job->host_arena};
    tsr_arena **scratch[] = {&base->scratch_device, &base->scratch_host};
    for (int i = 0; i < 2; i++) {
        uint64_t bytes = plan->total[place[i]];
        bytes -= shared ? plan->of_use[TSR_BUFFER_SCRATCH][place[i]] : 0;
        bytes -= job->base ? plan->of_use[TSR_BUFFER_BASE][place[i]] : 0;
        TSR_TRY(tsr_arena_create(own[i], job->device, kind[i], bytes));
        if (shared && job == base)
            TSR_TRY(tsr_arena_create(scratch[i], job->device, kind[i],
                                     tsr_job_base_scratch(base, place[i])));
        if (job->base)
            tsr_arena_rewind(*scratch[i]);
    }
    *taker = (tsr_taker){.plan = &job->decision.memory,
                         .device = job->device_arena,
                         .host = job->host_arena,
                         .scratch_device = base->scratch_device,
                         .scratch_host = base->scratch_host,
                         .has_base = job->base != NULL};
    return TSR_OK;
}

static tsr_status take_memory(tsr_job *job)
{
    tsr_decision *d = &job->decision;
    tsr_taker taker;
    TSR_TRY(take_arenas(&taker, job));
    TSR_TRY(tsr_model_create(&job->model, &d->model));
    TSR_TRY(tsr_decision_walk(d, &job->inputs, &job->view, &taker, job->model, &job->buffers));
    TSR_TRY(tsr_taker_finish(&taker));
    if (job->base)
        TSR_TRY(tsr_store_borrow(&d->store, &job->base->decision.store));
    job->sums = job->buffers.sums;
    job->files = calloc((size_t)job->view.ranks + 6, sizeof *job->files);
    job->word = calloc(tsr_store_words(&job->decision.store), sizeof *job->word);
    job->eval_word = calloc(tsr_store_words(&job->decision.store), sizeof *job->eval_word);
    if (!job->files || !job->word || !job->eval_word)
        return tsr_fail(TSR_ENOMEM, "out of memory for what a job keeps on the host");
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
    const tsr_layout_segment *s = &job->inputs.layout.unit[unit].frozen[segment];
    return tsr_load_at(&job->decision.store, job->world, s->unit, s->at).data;
}

tsr_trainable_span tsr_job_trainable(const tsr_job *job, int unit, int segment)
{
    const tsr_layout_segment *s = &job->inputs.layout.unit[unit].trainable[segment];
    return tsr_trainable_at(&job->decision.store.trainable, s->unit, s->at);
}

tsr_status tsr_job_put_work(tsr_job *job, int unit, int segment, const float *values)
{
    tsr_trainable_span span = tsr_job_trainable(job, unit, segment);
    tsr_dtype dtype = span.segment->dtype;
    uint64_t bytes = span.count * sizeof *values;
    if (dtype == TSR_F32)
        return tsr_device_write(job->device, span.work, values, bytes);
    TSR_AUTO_FREE void *work = malloc(bytes + 1);
    if (!work)
        return tsr_fail(TSR_ENOMEM, "out of memory for an adapter's first values");
    TSR_TRY(tsr_adamw_copy_work(work, dtype, values, span.count));
    return tsr_device_write(job->device, span.work, work, span.count * tsr_dtype_bytes(dtype));
}

tsr_status tsr_job_put_trainable(tsr_job *job, int unit, int segment, const float *values)
{
    const tsr_trainable *trainable = &job->decision.store.trainable;
    tsr_trainable_span span = tsr_job_trainable(job, unit, segment);
    if (trainable->master)
        TSR_TRY(tsr_device_write(job->device, trainable->master + span.begin, values,
                                 span.count * sizeof *values));
    return tsr_job_put_work(job, unit, segment, values);
}

static tsr_status put_trainable(void *user, int unit, int segment, const float *values)
{
    return tsr_job_put_trainable(user, unit, segment, values);
}

/* The ranks of a node read a share of a table each. */
static tsr_status load_table(tsr_job *job, char *table, const tsr_tensor *tensor)
{
    uint64_t rows = tensor->shape[0];
    uint64_t ranks = (uint64_t)job->view.local_ranks;
    uint64_t rank = (uint64_t)tsr_comm_local_rank(job->world);
    uint64_t first = rows * rank / ranks, end = rows * (rank + 1) / ranks;
    return tsr_model_load_table(table, tensor, first, end - first, tsr_device_pool(job->device));
}

static tsr_status load_tables(tsr_job *job)
{
    const tsr_layout *layout = &job->inputs.layout;
    if (!layout->embedding_whole)
        TSR_TRY(load_table(job, job->embedding, layout->embedding));
    return layout->layer_rows ? load_table(job, job->layer_rows, layout->layer_rows) : TSR_OK;
}

static tsr_status load_weights(tsr_job *job)
{
    const tsr_decision *d = &job->decision;
    const tsr_layout *layout = &job->inputs.layout;
    tsr_model_loader loader = {.stream = job->control,
                               .device = job->device,
                               .frozen = frozen_place,
                               .trainable = put_trainable,
                               .factors = job->factors,
                               .user = job};
    for (int unit = 0; unit < layout->unit_count; unit++)
        for (int part = 0; part < layout->unit[unit].part_count; part++) {
            tsr_home home = d->home[layout->unit[unit].first_unit + part];
            loader.comm = home == TSR_HOME_HOST_FULL ? job->node : job->shard;
            TSR_TRY(tsr_model_load_unit(job->model, unit, part, &loader));
        }
    return tsr_job_agree(job, load_tables(job));
}

/* What the job's model keeps of a base that another has read. */
static tsr_status take_base(tsr_job *job)
{
    return tsr_job_agree(job, tsr_model_take_base(job->model, job->base->model));
}

/* ---- the adapter ---- */

static tsr_status load_adapter(tsr_job *job)
{
    const tsr_layout *layout = &job->inputs.layout;
    tsr_model_loader loader = {.comm = job->shard,
                               .device = job->device,
                               .trainable = put_trainable,
                               .start = job->inputs.adapter.start,
                               .factors = job->factors,
                               .user = job};
    for (int unit = 0; unit < layout->unit_count; unit++) {
        TSR_TRY(tsr_model_load_trainable(layout, unit, job->inputs.adapter.init,
                                         (uint64_t)job->inputs.config.seed, &loader));
        tsr_phase_at("making the adapter", unit + 1, layout->unit_count);
    }
    return TSR_OK;
}

/* Whether the owned part of a segment, in its working copy, is 0. */
static tsr_status is_zero(bool *out, tsr_job *job, const tsr_trainable_span *span)
{
    tsr_dtype dtype = span->segment->dtype;
    uint64_t bytes = span->count * tsr_dtype_bytes(dtype);
    TSR_AUTO_FREE float *values = malloc(span->count * sizeof *values + 1);
    TSR_AUTO_FREE void *work = malloc(bytes + 1);
    tsr_status status = TSR_OK;
    if (!values || !work)
        status = tsr_fail(TSR_ENOMEM, "out of memory while looking at an adapter");
    else
        status = tsr_device_read(job->device, work, span->work, bytes);
    *out = status == TSR_OK && tsr_widen_f32(values, work, dtype, span->count);
    for (uint64_t i = 0; *out && i < span->real; i++)
        *out = values[i] == 0;
    return status;
}

/* B of an adapter to which magnitudes are added: they start as norms of W, which is g = 1 only
 * where B is 0. */
static tsr_status check_zero_b(tsr_job *job)
{
    const tsr_layout *layout = &job->inputs.layout;
    if (!job->inputs.adapter.init)
        return TSR_OK;
    for (int unit = 0; unit < layout->layer_count; unit++)
        for (int i = 0; i < tsr_layout_linears(&layout->unit[unit]); i++) {
            const tsr_layout_linear *linear = &layout->unit[unit].linear[i];
            if (!linear->dora)
                continue;
            tsr_trainable_span span = tsr_job_trainable(job, unit, linear->b);
            bool zero;
            TSR_TRY(is_zero(&zero, job, &span));
            if (!zero)
                return tsr_fail(TSR_ECONFIG,
                                "use_dora: init_adapter %s has no magnitudes and its lora_B of "
                                "%s is not 0, so there is no magnitude that leaves it as it "
                                "is; start from an adapter with magnitudes, or use_dora: false",
                                job->inputs.config.init_adapter, linear->path);
        }
    return TSR_OK;
}

/* DoRA's gradients are divided by row norms: with a row of zeros, as padding to a width is, no step would
 * have a finite one. m: norms of rows `first` and on. */
static tsr_status check_norms(const tsr_job *job, const tsr_layout_linear *linear, const float *m,
                              uint64_t first, uint64_t count)
{
    const char *name = strrchr(linear->path, '.') + 1;
    for (uint64_t i = 0; i < count; i++)
        if (m[i] == 0 || !isfinite(m[i]))
            return tsr_fail(TSR_EDATA,
                            "%s: row %llu of %s.weight is %s, and DoRA divides by the norm of each "
                            "row, as PEFT does; write exclude_modules: [%s], or use_dora: false",
                            job->inputs.config.model_name_or_path, (unsigned long long)(first + i),
                            linear->path,
                            m[i] == 0 ? "all zeros" : "so large that its norm is not finite", name);
    return TSR_OK;
}

/* The owned range of a linear's row norms becomes its magnitude. */
static tsr_status take_norms(tsr_job *job, int unit, int index)
{
    const tsr_layout_linear *linear = &job->inputs.layout.unit[unit].linear[index];
    tsr_trainable_span span = tsr_job_trainable(job, unit, linear->m);
    uint64_t left = span.first < linear->out ? linear->out - span.first : 0;
    uint64_t count = span.real < left ? span.real : left;
    TSR_AUTO_FREE float *m = calloc(span.count + 1, sizeof *m);
    if (!m)
        return tsr_fail(TSR_ENOMEM, "out of memory for the magnitudes of %s", linear->path);
    tsr_status status = TSR_OK;
    if (count)
        status =
            tsr_device_read(job->device, m, tsr_model_norms(job->model, unit, index) + span.first,
                            count * sizeof *m);
    if (status == TSR_OK)
        status = check_norms(job, linear, m, span.first, count);
    if (status == TSR_OK)
        status = tsr_job_put_trainable(job, unit, linear->m, m);
    return status;
}

static tsr_status take_all_norms(tsr_job *job)
{
    const tsr_layout *layout = &job->inputs.layout;
    for (int unit = 0; unit < layout->layer_count; unit++)
        for (int i = 0; i < tsr_layout_linears(&layout->unit[unit]); i++)
            if (layout->unit[unit].linear[i].dora)
                TSR_TRY(take_norms(job, unit, i));
    return TSR_OK;
}

/* Fresh magnitudes are the row norms of the dequantized W: one forward-only pass over the units
 * computes them where the weights are gathered, and each owner takes its range. */
static tsr_status fresh_magnitudes(tsr_job *job)
{
    TSR_TRY(tsr_job_agree(job, check_zero_b(job)));
    tsr_model_set_fresh(job->model, true);
    TSR_TRY(tsr_model_stage(job->model, &(tsr_model_batch){0}));
    TSR_TRY(tsr_executor_micro_batch(job->executor, false, true));
    TSR_TRY(tsr_model_release(job->model));
    TSR_TRY(tsr_executor_eval_end(job->executor, &(tsr_host_flags){0}));
    TSR_TRY(tsr_executor_wait_word(job->executor, job->word));
    TSR_TRY(tsr_streams_synchronize(tsr_job_streams(job)));
    tsr_model_set_fresh(job->model, false);
    TSR_TRY(tsr_job_agree(job, take_all_norms(job)));
    return tsr_executor_prologue(job->executor);
}

/* ---- the optimizer ---- */

static tsr_status schedule_of(tsr_schedule *out, const tsr_config *config, int64_t total_steps)
{
    const tsr_schedule_options options = {.kind = config->lr_scheduler_type,
                                          .warmup_steps = config->warmup_steps,
                                          .learning_rate = config->learning_rate,
                                          .arguments = config->lr_scheduler_kwargs};
    return tsr_schedule_make(out, &options, (uint64_t)total_steps);
}

/* A run that goes on longer has the longer schedule from here on, as in Transformers: its rate may jump. */
static tsr_status compare_schedules(tsr_job *job)
{
    const tsr_config *config = &job->inputs.config;
    tsr_schedule before;
    int64_t total, done = tsr_snapshot_step(job->resume);
    TSR_TRY(tsr_job_resumed_total(&total, job));
    if (total == job->total_steps)
        return TSR_OK;
    TSR_TRY(schedule_of(&before, config, total));
    double next = tsr_schedule_multiplier(&job->schedule, (uint64_t)done);
    double last = done > 0 ? tsr_schedule_multiplier(&before, (uint64_t)done - 1) : 0;
    job->longer =
        (tsr_job_longer){.total_before = total,
                         .jumps = next != tsr_schedule_multiplier(&before, (uint64_t)done),
                         .last = config->learning_rate * last,
                         .next = config->learning_rate * next};
    return TSR_OK;
}

static tsr_status make_schedule(tsr_job *job)
{
    const tsr_config *config = &job->inputs.config;
    job->total_steps = job->last_step = tsr_batch_run_of(job->inputs.batch)->steps;
    job->best.step = -1;
    job->adamw = (tsr_adamw_step){.beta1 = config->adam_beta1,
                                  .beta2 = config->adam_beta2,
                                  .epsilon = config->adam_epsilon,
                                  .weight_decay = config->weight_decay};
    TSR_TRY(schedule_of(&job->schedule, config, job->total_steps));
    return job->resume ? compare_schedules(job) : TSR_OK;
}

/* With LoRA+ a LoRA of the embedding has a rate of its own; what is trained whole has that of A. */
static double rate_of_table(const tsr_job *job, int unit, int segment)
{
    const tsr_config *config = &job->inputs.config;
    const tsr_layout *layout = &job->inputs.layout;
    const tsr_layout_table_lora *lora = &layout->embedding_lora;
    bool adapted = unit >= tsr_layout_head_end(layout) && lora->r &&
                   (segment == lora->a || segment == lora->b);
    if (unit < tsr_layout_head_end(layout) && layout->head_lora.r &&
        segment == layout->unit[unit].trainable_count - 1)
        return config->loraplus_lr_ratio; /* B */
    return adapted && config->loraplus_lr_ratio > 0 && config->learning_rate > 0
               ? config->loraplus_lr_embedding / config->learning_rate
               : 0;
}

/* Of each trainable segment, unit by unit of the plan: its rate of learning. LoRA+, as PEFT's create_loraplus_optimizer has
 * it: B and what has one dimension learn faster than A. The caller frees. */
static double *find_rates(const tsr_job *job)
{
    const tsr_layout *layout = &job->inputs.layout;
    const tsr_trainable *t = &job->decision.store.trainable;
    size_t count = 0, *first = calloc((size_t)t->unit_count + 1, sizeof *first);
    for (int unit = 0; first && unit < t->unit_count; unit++) {
        first[unit] = count;
        count += (size_t)t->units[unit].trainable.segment_count;
    }
    double *rate = first ? calloc(count + 1, sizeof *rate) : NULL;
    for (size_t i = 0; rate && i < count; i++)
        rate[i] = job->inputs.config.loraplus_lr_ratio;
    for (int unit = 0; rate && unit < layout->layer_count; unit++) {
        const tsr_layout_unit *u = &layout->unit[unit];
        for (int i = 0; i < tsr_layout_linears(u); i++)
            if (u->linear[i].r) {
                const tsr_layout_segment *a = &u->trainable[u->linear[i].a];
                rate[first[a->unit] + (size_t)a->at] = 0;
            }
        for (int i = 0; i < tsr_layout_stacks(u); i++)
            if (u->stack[i].r) {
                const tsr_layout_segment *a = &u->trainable[u->stack[i].a];
                rate[first[a->unit] + (size_t)a->at] = 0;
            }
    }
    for (int unit = layout->layer_count; rate && unit < layout->unit_count; unit++)
        for (int i = 0; i < layout->unit[unit].trainable_count; i++) {
            const tsr_layout_segment *s = &layout->unit[unit].trainable[i];
            rate[first[s->unit] + (size_t)s->at] = rate_of_table(job, unit, i);
        }
    free(first);
    return rate;
}

/* Appends what of a segment lies in `part`, to the last span of the same part where the working copy
 * goes on. */
static void add_span(tsr_job *job, uint64_t first_span, uint64_t *count, const tsr_optim_part *part,
                     const tsr_trainable_span *s, double rate)
{
    tsr_dtype dtype = s->segment->dtype;
    uint64_t begin = s->begin > part->begin ? s->begin : part->begin;
    uint64_t end = part->begin + part->count;
    end = s->begin + s->count < end ? s->begin + s->count : end;
    if (begin >= end)
        return;
    char *work = (char *)s->work + (begin - s->begin) * tsr_dtype_bytes(dtype);
    tsr_adamw_span *last = *count > first_span ? &job->spans[*count - 1] : NULL;
    if (last && last->work_dtype == dtype && last->rate == rate &&
        !last->absmax == !s->segment->coded &&
        work == (char *)last->work + last->count * tsr_dtype_bytes(dtype)) {
        last->count += end - begin;
        return;
    }
    const tsr_trainable *t = &job->decision.store.trainable;
    uint64_t width = s->segment->coded ? 1 : sizeof(float);
    uint64_t moment = s->moment + (begin - s->begin) * width - part->moment;
    job->spans[(*count)++] = (tsr_adamw_span){
        .master = part->master + (begin - part->begin),
        .m = part->m + moment,
        .v = part->v + moment,
        .absmax = s->segment->coded ? t->absmax + begin / TSR_GRANULE_ELEMENTS * 2 : NULL,
        .gradient = t->rounded ? NULL : t->accumulator + begin,
        .rounded = t->rounded ? t->rounded + begin : NULL,
        .work = work,
        .work_dtype = dtype,
        .count = end - begin,
        .rate = rate};
}

/* The spans of the update, chunk after chunk. */
static tsr_status make_spans(tsr_job *job)
{
    const tsr_store *store = &job->decision.store;
    const tsr_trainable *t = &store->trainable;
    int chunks = job->decision.plan->chunk_count, parts = chunks > 0 ? chunks : 1;
    uint64_t most = (uint64_t)parts, count = 0;
    for (int unit = 0; unit < t->unit_count; unit++)
        most += (uint64_t)t->units[unit].trainable.segment_count;
    job->spans = calloc(most, sizeof *job->spans);
    job->chunk_spans = calloc((size_t)parts + 1, sizeof *job->chunk_spans);
    double *rates = find_rates(job);
    if (!job->spans || !job->chunk_spans || !rates) {
        free(rates);
        return tsr_fail(TSR_ENOMEM, "out of memory for the optimizer's spans");
    }
    for (int i = 0; i < parts; i++) {
        tsr_optim_part part = tsr_store_part(store, chunks > 0 ? i : -1);
        const double *rate = rates;
        for (int unit = 0; unit < t->unit_count; unit++)
            for (int segment = 0; segment < t->units[unit].trainable.segment_count; segment++) {
                tsr_trainable_span s = tsr_trainable_at(t, unit, segment);
                add_span(job, job->chunk_spans[i], &count, &part, &s, *rate++);
            }
        job->chunk_spans[i + 1] = count;
    }
    free(rates);
    return TSR_OK;
}

tsr_model_sums tsr_job_model_sums(tsr_run_sums *sums)
{
    return (tsr_model_sums){.loss = &sums->loss,
                            .loss_overflow = &sums->loss_overflow,
                            .correct = &sums->correct,
                            .entropy = &sums->entropy,
                            .aux = &sums->aux,
                            .dropped = &sums->dropped};
}

/* *out not NULL: it is shared already. */
static tsr_status share_table(char **out, tsr_frozen *table, tsr_job *job, const tsr_tensor *tensor)
{
    void *address = NULL;
    tsr_array array = tsr_host_table(tensor);
    if (!*out)
        TSR_TRY(tsr_comm_share(&address, job->world, job->control, tsr_array_bytes(array)));
    else
        address = *out;
    *table = (tsr_frozen){address, array.dtype};
    *out = address;
    return TSR_OK;
}

static tsr_status share_tables(tsr_host_tables *out, tsr_job *job)
{
    const tsr_layout *layout = &job->inputs.layout;
    if (job->base) {
        job->embedding = job->base->embedding;
        job->layer_rows = job->base->layer_rows;
    }
    if (!layout->embedding_whole)
        TSR_TRY(share_table(&job->embedding, &out->embedding, job, layout->embedding));
    return layout->layer_rows
               ? share_table(&job->layer_rows, &out->layer_rows, job, layout->layer_rows)
               : TSR_OK;
}

static tsr_status share_micro_batches(tsr_job *job)
{
    tsr_stream *const *stream = tsr_job_streams(job)->stream;
    uint64_t bytes;
    if (!job->device_sharers)
        return TSR_OK;
    void *scratch = tsr_model_scratch(job->model, &bytes);
    TSR_TRY(tsr_comm_expose(job->device_sharers, job->control, scratch, bytes));
    TSR_TRY(tsr_context_create(&job->context, job->device_sharers, stream[TSR_STREAM_COMPUTE],
                               stream[TSR_STREAM_COMM], job->inputs.config.context_span));
    tsr_model_share(job->model, job->context);
    return TSR_OK;
}

/* What may fail on one rank alone ends with an agreement: the others would wait for it, in the
 * collective that comes next. */
tsr_status tsr_job_start_model(tsr_job *job)
{
    tsr_decision *d = &job->decision;
    tsr_stream *const *stream = job->streams.stream;
    tsr_host_tables tables = {0};
    TSR_TRY(tsr_job_agree(job, job->kernels->turn(job->device, job->turn)));
    if (!job->base)
        TSR_TRY(split(job));
    TSR_TRY(tsr_job_agree(job, tsr_job_backend_connect(job)));
    if (d->plan->chunk_count > 0)
        TSR_TRY(tsr_job_agree(job, tsr_streams_add_state(tsr_job_streams(job))));
    if (job->inputs.config.trace)
        TSR_TRY(tsr_job_agree(job, tsr_trace_create(&job->trace, job)));
    TSR_TRY(tsr_job_agree(job, take_memory(job)));
    TSR_TRY(tsr_store_share(&d->store, job->world, job->control));
    TSR_TRY(share_tables(&tables, job));
    TSR_TRY(tsr_job_agree(job, tsr_job_backend_expose(job)));
    tsr_model_sums sums = tsr_job_model_sums(job->sums);
    TSR_TRY(tsr_job_agree(job, tsr_model_start(job->model, stream[TSR_STREAM_COMPUTE],
                                               stream[TSR_STREAM_H2D], &tables, sums)));
    TSR_TRY(tsr_job_agree(job, share_micro_batches(job)));
    TSR_TRY(tsr_job_choose_matmuls(job));
    return job->base ? take_base(job) : TSR_OK;
}

tsr_status tsr_job_start_executor(tsr_job *job, const tsr_executor_owner *owner, int owner_count)
{
    tsr_executor_options options = {.store = &job->decision.store,
                                    .owner = owner,
                                    .owner_count = owner_count,
                                    .device = job->device,
                                    .streams = tsr_job_streams(job),
                                    .world = job->device_world,
                                    .shard = job->device_shard,
                                    .replica = job->device_replica,
                                    .kernels = job->kernels,
                                    .gradient_shift = TSR_FIXED_SHIFT,
                                    .contributions = job->decision.model.contributions,
                                    .gradient_overflow = &job->sums->gradient_overflow,
                                    .callbacks = tsr_job_callbacks,
                                    .log_count = job->trace ? tsr_trace_records(job->trace) : 0};
    options.callbacks.user = job;
    TSR_TRY(tsr_job_agree(job, tsr_executor_create(&job->executor, &options)));
    if (job->context)
        tsr_context_watch(job->context, tsr_executor_exchange, job->executor);
    TSR_TRY(tsr_executor_prologue(job->executor));
    tsr_job_base_of(job)->active = job;
    return TSR_OK;
}

static tsr_status start(tsr_job *job)
{
    if (job->train)
        TSR_TRY(tsr_job_agree(job, make_schedule(job)));
    TSR_TRY(tsr_job_start_model(job));
    if (job->train)
        TSR_TRY(tsr_job_agree(job, make_spans(job)));
    TSR_TRY(tsr_job_make_factors(job));
    if (!job->base) {
        TSR_TRY(job->fill ? job->fill(job) : load_weights(job));
        TSR_TRY(tsr_load_finish(&job->decision.store, job->device_world, job->device_shard,
                                job->streams.stream[TSR_STREAM_COMM]));
    }
    if (!job->resume)
        TSR_TRY(tsr_job_agree(job, tsr_job_load_router_bias(job)));
    if (job->inputs.adapter.present)
        TSR_TRY(tsr_job_agree(job, job->resume ? tsr_job_restore(job) : load_adapter(job)));
    TSR_TRY(tsr_job_start_executor(job, NULL, 0));
    if (job->inputs.adapter.present && job->inputs.adapter.fresh_magnitudes && !job->resume)
        TSR_TRY(fresh_magnitudes(job));
    return tsr_job_make_reference(job);
}

static tsr_status decide_and_start(tsr_job *job)
{
    TSR_TRY(tsr_job_decide(job));
    if (job->state != TSR_JOB_PLANNED)
        return tsr_fail(TSR_EINVAL, "the job has been started before");
    if (job->base && job->base->state != TSR_JOB_STARTED)
        return tsr_fail(TSR_EINVAL, "start the job whose base is shared first");
    bool first = job->view.rank == 0, trains = job->options.purpose == TSR_JOB_TRAIN;
    TSR_TRY(tsr_job_agree(job, first && trains ? tsr_job_check_space(job) : TSR_OK));
    TSR_TRY(tsr_job_agree(job, start(job)));
    if (trains) {
        TSR_TRY(tsr_job_agree(job, first ? tsr_job_write_output(job) : TSR_OK));
        TSR_TRY(tsr_job_agree(job, first ? TSR_OK : tsr_job_follow_output(job)));
    }
    return tsr_job_agree(job, first ? tsr_trace_place(job->trace) : TSR_OK);
}

tsr_status tsr_job_start(tsr_job *job)
{
    if (job->options.purpose == TSR_JOB_PLAN)
        return tsr_fail(TSR_EINVAL, "a job created to be planned cannot be started");
    tsr_job_listen(job, true);
    tsr_status status = decide_and_start(job);
    if (status == TSR_OK)
        tsr_job_log_plan(job);
    tsr_job_listen(job, false);
    TSR_TRY(status);
    job->state = TSR_JOB_STARTED;
    job->started_at = job->word_time = tsr_now();
    job->exposed_before = tsr_job_exposed(job); /* of the pass over the norms */
    return tsr_mixer_start(job);
}
