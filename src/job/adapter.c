/*
 * adapter.c: the adapter as PEFT's files; all ranks bring their part, rank 0 writes.
 */
#include "job/parts.h"

#include "base/phase.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

uint64_t tsr_job_part_count(const tsr_job *job)
{
    const tsr_layout *layout = &job->inputs.layout;
    uint64_t chunks = (uint64_t)(layout->unit_count - layout->layer_count);
    return 3 * job->inputs.adapter.set.count + 4 * chunks; /* those of experts have two */
}

/* What a trainable segment of a table is. */
static tsr_peft_part table_part(const tsr_layout *layout, int unit, int segment)
{
    const tsr_layout_table_lora *lora = &layout->embedding_lora;
    const tsr_layout_unit *u = &layout->unit[unit];
    if (unit < tsr_layout_head_end(layout) && layout->head_lora.r)
        return segment == u->trainable_count - 1 ? TSR_PEFT_B : TSR_PEFT_A;
    if (unit < tsr_layout_head_end(layout) || layout->embedding_whole)
        return TSR_PEFT_WHOLE;
    if (lora->r && segment == lora->a)
        return TSR_PEFT_EMBEDDING_A;
    return lora->r && segment == lora->b ? TSR_PEFT_EMBEDDING_B : TSR_PEFT_ROWS;
}

/* A and B of the adapters on experts, named as PEFT nests its wrappers (inputs/adapter_experts.h). */
static tsr_status each_of_stacks(const tsr_layout *layout, int unit, tsr_job_part_call *call,
                                 void *user)
{
    const tsr_layout_unit *u = &layout->unit[unit];
    for (int i = 0; i < tsr_layout_stacks(u); i++) {
        const tsr_layout_stack *stack = &u->stack[i];
        tsr_auto_text path = {0};
        if (!stack->r)
            continue;
        tsr_layout_stack_module(&path, u, i);
        if (path.failed)
            return tsr_fail(TSR_ENOMEM, "out of memory for the name of the adapter of %s",
                            stack->path);
        TSR_TRY(call(user, &(tsr_job_part){unit, stack->a, TSR_PEFT_A, path.data, 0}));
        TSR_TRY(call(user, &(tsr_job_part){unit, stack->b, TSR_PEFT_B, path.data, 0}));
    }
    return TSR_OK;
}

static tsr_status each_part_of(const tsr_layout *layout, int unit, tsr_job_part_call *call,
                               void *user)
{
    const tsr_layout_unit *u = &layout->unit[unit];
    int chunk = (int)(u->first_row / TSR_HEAD_CHUNK_ROWS);
    for (int i = 0; !u->block && i < u->trainable_count; i++)
        TSR_TRY(call(user, &(tsr_job_part){unit, i, table_part(layout, unit, i),
                                           u->trainable[i].module, chunk}));
    for (int i = 0; i < tsr_layout_linears(&layout->unit[unit]); i++) {
        const tsr_layout_linear *linear = &layout->unit[unit].linear[i];
        if (!linear->r)
            continue;
        TSR_TRY(call(user, &(tsr_job_part){unit, linear->a, TSR_PEFT_A, linear->path, 0}));
        TSR_TRY(call(user, &(tsr_job_part){unit, linear->b, TSR_PEFT_B, linear->path, 0}));
        if (linear->dora)
            TSR_TRY(
                call(user, &(tsr_job_part){unit, linear->m, TSR_PEFT_MAGNITUDE, linear->path, 0}));
    }
    return each_of_stacks(layout, unit, call, user);
}

tsr_status tsr_job_each_part(tsr_job *job, const char *phase, tsr_job_part_call *call, void *user)
{
    const tsr_layout *layout = &job->inputs.layout;
    for (int unit = 0; unit < layout->unit_count; unit++) {
        TSR_TRY(each_part_of(layout, unit, call, user));
        if (phase)
            tsr_phase_at(phase, unit + 1, layout->unit_count);
    }
    return TSR_OK;
}

typedef struct {
    tsr_job *job;
    tsr_peft_tensor *tensor;
    uint64_t count;
    uint64_t used;    /* floats of the adapter buffer */
    tsr_status local; /* what went wrong on this rank alone: the collectives go on */
} collected;

/* With PiSSA, what is trained beside what it began with, for a base that has all of its weights: [A; A0]
 * and [B, -B0]. */
static void widen(tsr_peft_tensor *tensor, float *data, const tsr_job *job, const tsr_job_part *p)
{
    const tsr_layout *layout = &job->inputs.layout;
    int linear = layout->unit[p->unit].trainable[p->segment].linear;
    tsr_factors first = tsr_factors_at(job->factors, layout, p->unit, linear);
    uint64_t rows = tensor->shape[0], columns = tensor->shape[1];
    if (p->part == TSR_PEFT_A) {
        memcpy(data + rows * columns, first.a, rows * columns * sizeof *data);
        tensor->shape[0] *= 2;
        return;
    }
    for (uint64_t i = rows; i-- > 0;) /* from the end: in place */
        for (uint64_t k = columns; k-- > 0;) {
            data[i * 2 * columns + k] = data[i * columns + k];
            data[i * 2 * columns + columns + k] = -first.b[i * columns + k];
        }
    tensor->shape[1] *= 2;
}

/* A gathered tensor in the order of files; the number of its elements. */
static uint64_t put_stored(float *data, const tsr_job *job, const tsr_job_part *p)
{
    const tsr_layout_unit *unit = &job->inputs.layout.unit[p->unit];
    const tsr_layout_segment *s = &unit->trainable[p->segment];
    const tsr_layout_stack *stack = s->of_stack ? &unit->stack[s->stack_index] : NULL;
    tsr_peft_expert_b shape = {s->stack, s->stored_rows, s->stored_columns,
                               stack && tsr_layout_stack_by_turns(stack)};
    for (tsr_stored_run run = {0}; tsr_stored_next(&run, s, 0, s->element_count);) {
        const float *values = job->buffers.unit + run.memory;
        if (stack && p->part == TSR_PEFT_B)
            tsr_peft_put_expert_b(data, values, &shape, run.stored, run.count);
        else
            memcpy(data + run.stored, values, run.count * sizeof *data);
    }
    return (s->stack ? s->stack : 1) * s->stored_rows * s->stored_columns;
}

/* A gathered tensor, to be written. Rank 0. */
static tsr_status keep(collected *c, const tsr_job_part *p)
{
    const tsr_job *job = c->job;
    const tsr_layout_segment *segment = &job->inputs.layout.unit[p->unit].trainable[p->segment];
    float *data = job->buffers.adapter + c->used;
    char *name = NULL;
    TSR_TRY(tsr_peft_tensor_name(&name, p->path, p->part));
    uint64_t count = put_stored(data, job, p);
    tsr_status status = tsr_job_check_finite(job, name, data, 0, count);
    if (status < 0) {
        free(name);
        return status;
    }
    if (p->chunk > 0) { /* it goes on where the chunk before has ended */
        free(name);
        c->used += count;
        c->tensor[c->count - 1].shape[0] += segment->stored_rows;
        return TSR_OK;
    }
    tsr_peft_tensor *tensor = &c->tensor[c->count++];
    *tensor = (tsr_peft_tensor){.name = name,
                                .ndim = p->part == TSR_PEFT_MAGNITUDE ? 1 : 2,
                                .data = data,
                                .shape = {segment->stored_rows, segment->stored_columns}};
    if (segment->stack) /* A: one behind the other; B: side by side */
        tensor->shape[p->part == TSR_PEFT_B] *= segment->stack;
    bool low = p->part == TSR_PEFT_A || p->part == TSR_PEFT_B;
    bool wide = job->factors && low && !segment->stack && job->inputs.layout.unit[p->unit].block;
    if (wide)
        widen(tensor, data, job, p);
    c->used += wide ? 2 * count : count;
    return TSR_OK;
}

/* Gathers the masters of one trainable segment. */
static tsr_status collect(void *user, const tsr_job_part *p)
{
    collected *c = user;
    tsr_job *job = c->job;
    const tsr_trainable *trainable = &job->decision.store.trainable;
    tsr_trainable_span span = tsr_job_trainable(job, p->unit, p->segment);
    uint64_t bytes = span.count * sizeof(float);
    float *own = job->buffers.unit + (uint64_t)tsr_comm_rank(job->shard) * span.count;
    TSR_TRY(tsr_device_read(job->device, own, trainable->master + span.begin, bytes));
    tsr_gather_range range = {own, job->buffers.unit, bytes};
    TSR_TRY(tsr_comm_all_gather(job->shard, job->control, &range, 1));
    TSR_TRY(tsr_stream_synchronize(job->control));
    if (job->view.rank == 0 && c->local == TSR_OK)
        c->local = keep(c, p);
    return TSR_OK;
}

static tsr_status write_files(const collected *c, const tsr_folder *folder)
{
    const tsr_job *job = c->job;
    tsr_peft_config config;
    tsr_job_router_bias bias;
    if (job->view.rank != 0)
        return TSR_OK;
    TSR_TRY(tsr_job_take_router_bias(&bias, job));
    tsr_status status =
        tsr_train_adapter_config(&config, &job->inputs.adapter, &job->inputs.config);
    if (status == TSR_OK) {
        status = tsr_peft_write_with(folder, &config, c->tensor, c->count, &bias.beside);
        free(config.rank_pattern); /* one array: alpha_pattern is its second part */
    }
    tsr_job_router_bias_free(&bias);
    return status;
}

tsr_status tsr_job_write_adapter(tsr_job *job, const tsr_folder *folder)
{
    collected c = {.job = job};
    c.tensor = calloc(tsr_job_part_count(job) + 1, sizeof *c.tensor);
    if (!c.tensor)
        c.local = tsr_fail(TSR_ENOMEM, "out of memory while saving the adapter");
    tsr_status status = tsr_job_each_part(job, "gathering the adapter", collect, &c);
    if (status < 0)
        tsr_executor_fail(job->executor, status); /* the others wait in a collective */
    else
        status = c.local == TSR_OK ? write_files(&c, folder) : c.local;
    for (uint64_t i = 0; i < c.count; i++)
        free((char *)c.tensor[i].name);
    free(c.tensor);
    return tsr_job_agree(job, status);
}

#define PIECE_BYTES 65536

/* A file as it was written, to the caller. */
static tsr_status give_file(const tsr_job *job, const char *name)
{
    const tsr_job_options *o = &job->options;
    char piece[PIECE_BYTES];
    uint64_t bytes;
    int fd, refused = 0;
    ssize_t got = 0;
    TSR_TRY(tsr_folder_open_read(&fd, &bytes, job->output, name));
    for (uint64_t done = 0; done < bytes && !refused; done += (uint64_t)got) {
        do
            got = read(fd, piece, sizeof piece);
        while (got < 0 && errno == EINTR);
        if (got <= 0)
            break;
        refused = o->adapter(o->user, name, piece, (size_t)got, done + (uint64_t)got >= bytes);
    }
    int error = got < 0 ? errno : EIO;
    close(fd);
    if (refused)
        return tsr_fail(TSR_EIO, "%s: the adapter callback failed (%d)", name, refused);
    return got > 0 ? TSR_OK
                   : tsr_fail(TSR_EIO, "%s: reading what was written failed: %s", name,
                              strerror(error));
}

/* The weights last: who has them has the rest too. */
static tsr_status give_files(const tsr_job *job)
{
    static const char *const names[] = {TSR_PEFT_CARD_FILE, TSR_PEFT_ROUTER_BIAS_FILE,
                                        TSR_PEFT_CONFIG_FILE, TSR_PEFT_WEIGHTS_FILE};
    bool biases = tsr_model_router_bias(job->model) != NULL;
    if (job->view.rank != 0 || !job->options.adapter)
        return TSR_OK;
    for (int i = tsr_peft_card_is_foreign(job->output); i < 4; i++)
        if (biases || i != 1)
            TSR_TRY(give_file(job, names[i]));
    return TSR_OK;
}

tsr_status tsr_job_save(tsr_job *job)
{
    TSR_TRY(tsr_job_check_stepped(job, "tsr_job_save"));
    if (job->state != TSR_JOB_STARTED || !job->train)
        return tsr_fail(TSR_EINVAL, "tsr_job_save needs a training job that was started");
    TSR_TRY(tsr_job_quiet(job));
    if (job->done == job->total_steps && job->done > 0 && job->skipped_steps == job->done)
        return tsr_job_agree(job, tsr_job_give_up(job)); /* the adapter is as it came in */
    tsr_job_listen(job, true);
    tsr_status status = tsr_job_take_best(job);
    if (status == TSR_OK)
        status = tsr_job_write_adapter(job, job->output);
    if (status == TSR_OK)
        status = tsr_job_agree(job, give_files(job));
    tsr_job_listen(job, false);
    TSR_TRY(status);
    if (job->issued < job->last_step) /* an adapter on the way: the run goes on */
        return TSR_OK;
    bool saved = job->stopped && job->saved == job->done;
    return tsr_job_agree(job, tsr_job_end(job, saved ? TSR_METRICS_SAVED : TSR_METRICS_DONE));
}
