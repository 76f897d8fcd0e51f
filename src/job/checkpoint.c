/*
 * checkpoint.c: writes a checkpoint (io/snapshot.h has the directory's rules):
 *
 *     adapter_model.safetensors, adapter_config.json, README.md     rank 0; as at the end of a run
 *     state-00001-of-00003.safetensors ...     each rank of the first shard group: what it owns of
 *                                              each tensor's master, exp_avg and exp_avg_sq, fp32;
 *                                              8-bit moments as codes and absmax
 *     router_bias.safetensors                  rank 0, where routers have biases of their own
 *     reference.safetensors                    rank 0, of an objective with a reference: its sums
 *     matmuls.txt                              rank 0, where matmuls are chosen
 *     manifest.json                            rank 0; its "state" is written here and read by
 *                                              resume.c
 *
 * What randomness there is follows from keys (seed, data_seed) and positions, so the step and the
 * keys are all of its state.
 */
#include "job/parts.h"

#include "base/clock.h"
#include "config/keys.h"
#include "io/file.h"

#include <inttypes.h>
#include <stdlib.h>

void tsr_job_state_file(char out[TSR_SNAPSHOT_NAME_BYTES], int rank, int ranks)
{
    snprintf(out, TSR_SNAPSHOT_NAME_BYTES, "state-%05d-of-%05d.safetensors", rank + 1, ranks);
}

tsr_status tsr_job_state_name(char out[TSR_JOB_NAME_BYTES], const tsr_job_part *part,
                              const tsr_state_buffer *buffer)
{
    char *name, chunk[16] = "";
    TSR_TRY(tsr_peft_tensor_name(&name, part->path, part->part));
    if (part->part == TSR_PEFT_WHOLE || part->chunk > 0)
        snprintf(chunk, sizeof chunk, ".%d", part->chunk);
    int length = snprintf(out, TSR_JOB_NAME_BYTES, "%s%s.%s", name, chunk, buffer->name);
    if (length >= TSR_JOB_NAME_BYTES) {
        tsr_status status =
            tsr_fail(TSR_EUNSUPPORTED, "%s: a name too long for a checkpoint", name);
        free(name);
        return status;
    }
    free(name);
    return TSR_OK;
}

tsr_status tsr_job_check_finite(const tsr_job *job, const char *tensor, const float *values,
                                uint64_t first, uint64_t count)
{
    uint64_t bad = tsr_first_not_finite(values, TSR_F32, count);
    if (bad == count)
        return TSR_OK;
    return tsr_fail(TSR_EDEVICE,
                    "step %" PRId64 ": %s: element %" PRIu64
                    " is %f, although no step is taken with a gradient that is not finite; nothing "
                    "was saved, and the checkpoints of before are as they were: lower "
                    "learning_rate, or test the memory of this machine, and go on from one of them",
                    job->done, tensor, first + bad, (double)values[bad]);
}

/* ---- this rank's file ---- */

/* One tensor of it. */
typedef struct {
    tsr_job *job;
    tsr_state_buffer buffer;
    uint64_t first; /* element of it */
    uint64_t count;
    char name[TSR_JOB_NAME_BYTES];
} owned;

typedef struct {
    tsr_job *job;
    owned *owned;
    tsr_tensor_source *source;
    uint64_t count;
} own_file;

/* All of it at once. */
static tsr_status next(const void **data, uint64_t *bytes, void *user, uint64_t offset)
{
    const owned *o = user;
    float *values = o->job->buffers.unit;
    (void)offset;
    *data = values;
    *bytes = o->count * tsr_dtype_bytes(o->buffer.dtype);
    TSR_TRY(tsr_device_read(o->job->device, values, o->buffer.data, *bytes));
    if (o->buffer.dtype == TSR_U8)
        return TSR_OK;
    return tsr_job_check_finite(o->job, o->name, values, o->first, o->count);
}

static tsr_status add_part(void *user, const tsr_job_part *part)
{
    own_file *file = user;
    const tsr_trainable *trainable = &file->job->decision.store.trainable;
    tsr_trainable_span span = tsr_job_trainable(file->job, part->unit, part->segment);
    tsr_state_buffer buffer[TSR_TRAINABLE_STATE_MOST];
    int count = tsr_trainable_state(buffer, trainable, &span);
    for (int b = 0; b < count; b++) {
        owned *o = &file->owned[file->count];
        TSR_TRY(tsr_job_state_name(o->name, part, &buffer[b]));
        o->job = file->job;
        o->buffer = buffer[b];
        o->first = span.first / TSR_GRANULE_ELEMENTS * buffer[b].each;
        o->count = span.real / TSR_GRANULE_ELEMENTS * buffer[b].each;
        file->source[file->count++] = (tsr_tensor_source){.name = o->name,
                                                          .dtype = buffer[b].dtype,
                                                          .ndim = 1,
                                                          .shape = {o->count},
                                                          .next = next,
                                                          .user = o};
    }
    return TSR_OK;
}

static tsr_status write_own(tsr_job *job, const tsr_folder *folder)
{
    int group = job->decision.group, rank = job->view.rank;
    tsr_snapshot_file *own = &job->files[rank];
    *own = (tsr_snapshot_file){0};
    if (rank >= group) /* replicas own the same */
        return TSR_OK;
    char name[TSR_SNAPSHOT_NAME_BYTES];
    tsr_job_state_file(name, rank, group);
    uint64_t most = TSR_TRAINABLE_STATE_MOST * tsr_job_part_count(job);
    own_file file = {.job = job,
                     .owned = calloc(most + 1, sizeof *file.owned),
                     .source = calloc(most + 1, sizeof *file.source)};
    tsr_status status = TSR_OK;
    if (!file.owned || !file.source)
        status = tsr_fail(TSR_ENOMEM, "%s: no memory to write it", name);
    if (status == TSR_OK)
        status = tsr_job_each_part(job, NULL, add_part, &file);
    if (status == TSR_OK)
        status = tsr_safetensors_write_in(folder, name, file.source, file.count);
    if (status == TSR_OK)
        status = tsr_snapshot_measure(own, folder, name);
    free(file.owned);
    free(file.source);
    return status;
}

/* ---- the manifest ---- */

static int put_hash(json_t *object, const char *key, uint64_t hash)
{
    char text[24];
    snprintf(text, sizeof text, "%016" PRIx64, hash);
    return json_object_set_new(object, key, json_string(text));
}

/* Keys whose values a resumed run must share. */
static json_t *describe_config(const tsr_job *job)
{
    json_t *object = json_object();
    tsr_auto_text text = {0};
    int failed = 0;
    for (int i = 0; i < tsr_keys_count(); i++) {
        const tsr_key *key = tsr_keys_at(i);
        if (!(key->flags & TSR_KEY_RESULT))
            continue;
        tsr_text_clear(&text);
        tsr_job_key_text(&text, job, key);
        failed |= json_object_set_new(object, key->name, json_string(tsr_text_string(&text)));
    }
    if (text.failed || failed) {
        json_decref(object);
        object = NULL;
    }
    return object;
}

/* As resume.c reads it. */
static tsr_status describe(json_t **out, tsr_job *job)
{
    tsr_batch_step_info last = {0};
    tsr_adamw_control control;
    uint64_t metrics_bytes = 0;
    if (job->done > 0)
        TSR_TRY(tsr_batch_step(job->inputs.batch, job->done - 1, &last));
    TSR_TRY(tsr_device_read(job->device, &control, &job->sums->control, sizeof control));
    TSR_TRY(tsr_metrics_sync(&metrics_bytes, job->metrics));
    json_t *config = describe_config(job);
    json_t *state = json_pack(
        "{s:i, s:i, s:{s:I, s:I, s:I, s:i}, s:{s:I, s:I, s:I, s:I}, s:b, s:I, s:s, s:o, s:o}",
        "ranks", job->decision.group, "granule_elements", TSR_GRANULE_ELEMENTS, "optimizer",
        "updates", (json_int_t)control.step, "skipped_in_a_row", (json_int_t)job->skipped,
        "skipped_steps", (json_int_t)job->skipped_steps, "gradient_shift", TSR_FIXED_SHIFT, "data",
        "epoch", (json_int_t)last.epoch, "samples_seen", (json_int_t)last.samples_seen,
        "step_samples", (json_int_t)tsr_job_step_samples(job), "total_steps",
        (json_int_t)job->total_steps, "evaluated", job->evaluated, "metrics_bytes",
        (json_int_t)metrics_bytes, "device", tsr_job_bits_device(job), "config", config, "best",
        tsr_job_describe_best(job));
    int failed = !state || !config ||
                 put_hash(state, "model", tsr_inputs_model_hash(&job->inputs)) |
                     put_hash(state, "weights", job->inputs.weights) |
                     put_hash(state, "dataset", tsr_dataset_hash(job->inputs.dataset)) |
                     put_hash(state, "plan", job->decision.plan->hash);
    if (state && tsr_mixer_hash(job))
        failed |= put_hash(state, "adapter_schedule", tsr_mixer_hash(job));
    if (failed) {
        json_decref(state);
        return tsr_fail(TSR_ENOMEM, "out of memory for a checkpoint's manifest");
    }
    *out = state;
    return TSR_OK;
}

/* Rank 0, when all files are there but its own small ones. */
static tsr_status commit(tsr_job *job, const tsr_folder *folder)
{
    static const char *const names[] = {TSR_PEFT_WEIGHTS_FILE,     TSR_PEFT_CONFIG_FILE,
                                        TSR_PEFT_CARD_FILE,        TSR_MATMULS_FILE,
                                        TSR_PEFT_ROUTER_BIAS_FILE, TSR_JOB_REFERENCE_FILE};
    const bool written[] = {true,
                            true,
                            true,
                            job->matmuls.length > 0,
                            tsr_model_router_bias(job->model) != NULL,
                            job->reference[0] != NULL};
    json_auto_t *state = NULL;
    int count = job->decision.group;
    if (job->reference[0])
        TSR_TRY(tsr_job_write_reference(job, folder));
    if (job->matmuls.length > 0)
        TSR_TRY(tsr_file_write_in(folder, TSR_MATMULS_FILE, tsr_text_string(&job->matmuls),
                                  job->matmuls.length));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (written[i])
            TSR_TRY(tsr_snapshot_measure(&job->files[count++], folder, names[i]));
    TSR_TRY(describe(&state, job));
    return tsr_snapshot_commit(job->output, job->done, state, job->files, count);
}

/* ---- saving ---- */

static tsr_status write_files(tsr_job *job, const tsr_folder *folder)
{
    TSR_TRY(tsr_job_agree(job, write_own(job, folder)));
    TSR_TRY(tsr_job_write_adapter(job, folder));
    tsr_gather_range range = {&job->files[job->view.rank], job->files, sizeof *job->files};
    tsr_status status = tsr_comm_all_gather(job->world, job->control, &range, 1);
    if (status == TSR_OK)
        status = tsr_stream_synchronize(job->control);
    TSR_TRY(tsr_job_agree(job, status));
    return tsr_job_agree(job, job->view.rank == 0 ? commit(job, folder) : TSR_OK);
}

static tsr_status write_all(tsr_job *job)
{
    tsr_auto_folder *folder = NULL;
    bool first = job->view.rank == 0;
    TSR_TRY(tsr_job_agree(job, first ? tsr_snapshot_begin(job->output, job->done) : TSR_OK));
    TSR_TRY(tsr_job_agree(job, tsr_snapshot_enter(&folder, job->output, job->done)));
    return write_files(job, folder);
}

tsr_status tsr_job_quiet(tsr_job *job)
{
    tsr_status status = tsr_streams_synchronize(tsr_job_streams(job));
    if (status < 0)
        tsr_executor_fail(job->executor, status); /* the others wait in a collective */
    return tsr_job_agree(job, status);
}

/* The old ones go when the new one is durable. */
static tsr_status end_checkpoint(tsr_job *job)
{
    const tsr_config *config = &job->inputs.config;
    bool best = config->load_best_model_at_end;
    int64_t limit = config->save_total_limit, spared = best ? job->best.step : -1;
    if (!limit && best && config->save_strategy == TSR_CONFIG_EVERY_NO)
        limit = 1; /* what was the best once has no use any more */
    if (limit > 0)
        TSR_TRY(tsr_snapshot_prune(job->output, job->done, limit - 1, spared));
    return job->stopped ? tsr_job_end(job, TSR_METRICS_SAVED) : TSR_OK;
}

tsr_status tsr_job_checkpoint(tsr_job *job)
{
    if (job->state != TSR_JOB_STARTED || job->options.purpose != TSR_JOB_TRAIN)
        return tsr_fail(TSR_EINVAL, "tsr_job_checkpoint needs a training job that was started");
    TSR_TRY(tsr_job_check_stepped(job, "tsr_job_checkpoint"));
    if (job->saved == job->done)
        return TSR_OK;
    double before = tsr_now();
    TSR_TRY(tsr_job_quiet(job)); /* the last update may still be running */
    tsr_job_listen(job, true);
    tsr_status status = write_all(job);
    bool first = job->view.rank == 0;
    if (status < 0) {
        tsr_job_listen(job, false);
        if (first)
            tsr_snapshot_discard(job->output, job->done);
        return status;
    }
    job->saved = job->done;
    status = tsr_job_agree(job, first ? end_checkpoint(job) : TSR_OK);
    tsr_job_listen(job, false);
    TSR_TRY(status);
    tsr_mixer_pause(job, tsr_now() - before);
    return TSR_OK;
}
