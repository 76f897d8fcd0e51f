/*
 * resume.c: finds the checkpoint that a run goes on from, refuses one that is damaged or of
 * another job, and brings its state into memory, on any number of ranks.
 */
#include "job/parts.h"
#include "job/sized.h"

#include "base/escape.h"
#include "base/log.h"
#include "config/config_store.h"
#include "config/keys.h"
#include "inputs/earlier.h"
#include "io/missing.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

int64_t tsr_job_step_samples(const tsr_job *job)
{
    return tsr_batch_run_of(job->inputs.batch)->step_micro *
           job->inputs.config.per_device_train_batch_size;
}

/* As it was resolved. */
void tsr_job_key_text(tsr_text *out, const tsr_job *job, const tsr_key *key)
{
    tsr_config config = job->inputs.config; /* its store is only read */
    config.dtype =
        job->inputs.compute == TSR_BF16 ? TSR_CONFIG_DTYPE_BFLOAT16 : TSR_CONFIG_DTYPE_FLOAT32;
    tsr_config_put(out, &config, key);
}

const char *tsr_job_bits_device(const tsr_job *job)
{
    return job->inputs.cuda ? tsr_device_description(job->device) : tsr_kernels_cpu_set();
}

/* ---- which one ---- */

/* What rank 0 tells the others. */
typedef struct {
    int32_t found, in_output; /* in_output: it is one of output_dir's */
    int64_t ended_steps;      /* as in tsr_job */
    char path[PATH_MAX];      /* or its name there */
} choice;

static tsr_status find_newest(choice *out, const tsr_job *job)
{
    const tsr_config *config = &job->inputs.config;
    const char *where = tsr_config_where(config, "resume_from_checkpoint");
    out->in_output = 1;
    if (config->overwrite_output_dir)
        return tsr_fail(TSR_ECONFIG,
                        "%s: resume_from_checkpoint: true continues the run in output_dir, but "
                        "overwrite_output_dir: true would empty it; remove one of them",
                        where);
    TSR_TRY(tsr_earlier_done(&out->ended_steps, config->output_dir));
    out->found = job->newest >= 0;
    if (out->found)
        tsr_snapshot_name(out->path, job->newest);
    return TSR_OK;
}

static tsr_status find_named(choice *out, const tsr_job *job)
{
    const tsr_config *config = &job->inputs.config;
    const char *where = tsr_config_where(config, "resume_from_checkpoint");
    const char *directory = config->resume_from_checkpoint;
    char full[PATH_MAX], output[PATH_MAX];
    if (strlen(directory) >= sizeof out->path)
        return tsr_fail(TSR_ECONFIG, "%s: resume_from_checkpoint: the path is too long", where);
    if (!realpath(directory, full)) {
        char hint[TSR_MISSING_BYTES];
        int error = errno;
        return tsr_fail(TSR_ECONFIG,
                        "%s: resume_from_checkpoint: %s: %s; write true for the newest of "
                        "output_dir, or the directory of a checkpoint%s",
                        where, directory, strerror(error),
                        tsr_missing_hint(hint, directory, error));
    }
    char *slash = strrchr(full, '/'), *name = slash + 1;
    *slash = 0;
    out->found = 1;
    out->in_output = realpath(config->output_dir, output) && !strcmp(output, *full ? full : "/");
    strcpy(out->path, out->in_output ? name : directory);
    if (out->in_output && config->overwrite_output_dir)
        return tsr_fail(TSR_ECONFIG,
                        "%s: resume_from_checkpoint: %s is in output_dir, which "
                        "overwrite_output_dir: true would empty; remove one of them",
                        where, directory);
    return TSR_OK;
}

static tsr_status open_snapshot(tsr_job *job, const choice *found)
{
    if (!found->in_output)
        return tsr_snapshot_open(&job->resume, found->path);
    TSR_TRY(tsr_job_follow_output(job));
    return tsr_snapshot_open_in(&job->resume, job->output, found->path);
}

/* ---- whether it fits ---- */

#define EARLIER_GRANULE 64 /* elements of a trainable tensor's granule, once */

/* Older checkpoints have the default of these keys where init_adapter had
 * decided them. The model's hash knows how much is trained. */
static bool left_to_adapter(const tsr_config *config, const tsr_key *key, const char *was)
{
    static const char *const keys[] = {"lora_target_modules", "exclude_modules", "rank_pattern",
                                       "alpha_pattern", "layers_to_transform"};
    bool decided = false;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        decided |= !strcmp(keys[i], key->name);
    return decided && config->init_adapter && !tsr_config_is_set(config, key->name) &&
           !strcmp(was, key->initial);
}

/* All keys that differ, a line each. */
static tsr_status check_keys(const tsr_job *job, const json_t *state, const char *directory)
{
    const json_t *stored = json_object_get(state, "config");
    const tsr_config *config = &job->inputs.config;
    tsr_auto_text lines = {0}, line = {0}, text = {0};
    for (int i = 0; i < tsr_keys_count(); i++) {
        const tsr_key *key = tsr_keys_at(i);
        const char *was = json_string_value(json_object_get(stored, key->name));
        if (!was && !strcmp(key->name, "optim"))
            was = key->initial; /* earlier versions had one optimizer */
        if (!(key->flags & TSR_KEY_RESULT) || !was || left_to_adapter(config, key, was))
            continue;
        tsr_text_clear(&text);
        tsr_job_key_text(&text, job, key);
        if (tsr_config_same_text(config, key, was, tsr_text_string(&text)))
            continue;
        tsr_text_clear(&line);
        tsr_text_printf(&line, "%s: %s: found %s, the checkpoint was made with %s",
                        tsr_config_where(config, key->name), key->name, tsr_text_string(&text),
                        was);
        tsr_text_name(&lines, tsr_text_string(&line));
        tsr_text_puts(&lines, "\n");
    }
    tsr_status status = TSR_OK;
    if (lines.length)
        status =
            tsr_fail_lines(TSR_ECONFIG,
                           "%sA resumed run keeps the keys it began with; only its length may grow "
                           "(max_steps, num_train_epochs). To change other keys, start a new run "
                           "in another output_dir. With init_adapter=%s it begins with this "
                           "adapter, whose rank, alpha and modules it keeps, and with the first "
                           "rows, in another order with another data_seed",
                           tsr_text_string(&lines), directory);
    return status;
}

static tsr_status check_hash(const json_t *state, const char *key, uint64_t hash, const char *what,
                             const char *directory)
{
    char own[24];
    const char *was = json_string_value(json_object_get(state, key));
    snprintf(own, sizeof own, "%016" PRIx64, hash);
    if (was && !strcmp(was, own))
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG,
                    "resume_from_checkpoint: %s was made with %s of other content (hash %s, now "
                    "%s); give the run the same files, or start a new one in another output_dir",
                    directory, what, was ? was : "missing", own);
}

static tsr_status check_weights(const tsr_job *job, const json_t *state, const char *directory)
{
    if (json_object_get(state, "weights"))
        return check_hash(state, "weights", job->inputs.weights, "a model (model_name_or_path)",
                          directory);
    tsr_log(TSR_LOG_WARNING,
            "%s was written by a version that does not record the model's weights: make sure that "
            "those of %s are the same",
            directory, job->inputs.config.model_name_or_path);
    return TSR_OK;
}

static tsr_status check_position(const tsr_job *job, const json_t *state, int64_t step,
                                 const char *directory)
{
    json_t *data;
    int64_t samples, seen, total = tsr_batch_run_of(job->inputs.batch)->steps, stored;
    tsr_batch_step_info last = {0};
    TSR_TRY(tsr_json_object(&data, state, "data", directory));
    TSR_TRY(tsr_json_int(&samples, data, "step_samples", 1, INT64_MAX, directory));
    TSR_TRY(tsr_json_int(&seen, data, "samples_seen", 0, INT64_MAX, directory));
    TSR_TRY(tsr_json_int(&stored, data, "total_steps", 1, INT64_MAX, directory));
    if (samples != tsr_job_step_samples(job))
        return tsr_fail(TSR_ECONFIG,
                        "total_batch_size: a step of this run has %" PRId64 " samples on %d ranks, "
                        "the one of %s had %" PRId64 "; write total_batch_size: %" PRId64
                        " and leave out gradient_accumulation_steps",
                        tsr_job_step_samples(job), job->view.ranks, directory, samples, samples);
    const char *length = job->inputs.config.max_steps > 0 ? "max_steps" : "num_train_epochs";
    if (total < stored)
        return tsr_fail(
            TSR_ECONFIG,
            "%s: %s: this run ends at step %" PRId64 ", the one of %s at %" PRId64
            ": a resumed run may become longer, not shorter; the adapter of that step is in %s",
            tsr_config_where(&job->inputs.config, length), length, total, directory, stored,
            directory);
    if (step > 0 && step <= total)
        TSR_TRY(tsr_batch_step(job->inputs.batch, step - 1, &last));
    if (step > total || last.samples_seen != seen)
        return tsr_fail(TSR_EDATA,
                        "%s: the checkpoint is at step %" PRId64 " of %" PRId64 ", after %" PRId64
                        " samples, and this run of %" PRId64 " steps would be after %" PRId64
                        "; resume with the data and batch size that it was made with",
                        directory, step, stored, seen, total, last.samples_seen);
    return TSR_OK;
}

tsr_status tsr_job_resumed_total(int64_t *out, const tsr_job *job)
{
    const char *directory = tsr_snapshot_directory(job->resume);
    json_t *data;
    TSR_TRY(tsr_json_object(&data, tsr_snapshot_state(job->resume), "data", directory));
    return tsr_json_int(out, data, "total_steps", 1, INT64_MAX, directory);
}

/* Of the same job; nothing is read but the manifest. */
static tsr_status check_job(const tsr_job *job, const tsr_snapshot *snapshot)
{
    const char *directory = tsr_snapshot_directory(snapshot);
    const json_t *state = tsr_snapshot_state(snapshot);
    json_t *optimizer;
    int64_t granule, shift;
    TSR_TRY(check_keys(job, state, directory));
    TSR_TRY(check_hash(state, "model", tsr_inputs_model_hash(&job->inputs),
                       "a model (model_name_or_path) or adapter", directory));
    TSR_TRY(check_weights(job, state, directory));
    TSR_TRY(check_hash(state, "dataset", tsr_dataset_hash(job->inputs.dataset), "a dataset",
                       directory));
    TSR_TRY(check_position(job, state, tsr_snapshot_step(snapshot), directory));
    TSR_TRY(tsr_json_int(&granule, state, "granule_elements", 1, INT32_MAX, directory));
    TSR_TRY(tsr_json_object(&optimizer, state, "optimizer", directory));
    TSR_TRY(tsr_json_int(&shift, optimizer, "gradient_shift", 0, 62, directory));
    bool known = granule == TSR_GRANULE_ELEMENTS || granule == EARLIER_GRANULE;
    if (!known || shift != TSR_FIXED_SHIFT)
        return tsr_fail(
            TSR_EDATA,
            "%s: another version of this program made the checkpoint, with shards of %" PRId64
            " elements and gradients in units of 2^-%" PRId64
            ", here %d and %d; resume with that version, or start a new run with init_adapter",
            directory, granule, shift, TSR_GRANULE_ELEMENTS, TSR_FIXED_SHIFT);
    const char *device = json_string_value(json_object_get(state, "device"));
    if (device && strcmp(device, tsr_job_bits_device(job)) != 0)
        tsr_log(TSR_LOG_WARNING,
                "the checkpoint was made on another device (%s): the same bits are promised on one "
                "kind of device only",
                device);
    return TSR_OK;
}

/* The ranks share the hashing. */
tsr_status tsr_job_verify(const tsr_job *job, const tsr_snapshot *snapshot)
{
    for (int i = job->view.rank; i < tsr_snapshot_file_count(snapshot); i += job->view.ranks)
        TSR_TRY(tsr_snapshot_verify(snapshot, i));
    return TSR_OK;
}

/* A run that goes on reads its chats as of the day it began. */
static void resume_date(tsr_job *job)
{
    const json_t *config = json_object_get(tsr_snapshot_state(job->resume), "config");
    const char *was = json_string_value(json_object_get(config, "chat_template_date"));
    char *date = job->inputs.date;
    int64_t day;
    if (!was || job->inputs.config.chat_template_date)
        return;
    was += *was == '"'; /* with a time it is quoted */
    snprintf(date, sizeof job->inputs.date, "%.*s", (int)strcspn(was, "\""), was);
    if (tsr_config_date(&day, date))
        job->inputs.config.chat_template_date = date;
}

tsr_status tsr_job_find_resume(tsr_job *job)
{
    const char *wanted = job->inputs.config.resume_from_checkpoint;
    choice found = {0};
    if (!wanted || job->options.purpose != TSR_JOB_TRAIN)
        return TSR_OK;
    bool newest = !strcmp(wanted, "true");
    tsr_status status = TSR_OK;
    if (job->view.rank == 0)
        status = newest ? find_newest(&found, job) : find_named(&found, job);
    TSR_TRY(tsr_job_agree(job, status));
    TSR_TRY(tsr_comm_broadcast(job->world, job->control, &found, sizeof found, 0));
    TSR_TRY(tsr_stream_synchronize(job->control));
    job->continues = found.in_output;
    job->ended_steps = found.ended_steps;
    if (!found.found)
        return TSR_OK;
    TSR_TRY(tsr_job_agree(job, open_snapshot(job, &found)));
    resume_date(job);
    return tsr_job_agree(job, tsr_job_verify(job, job->resume));
}

/* One that has ended: at this run's end, or with something to go on from. */
static tsr_status check_ended(const tsr_job *job)
{
    const tsr_config *config = &job->inputs.config;
    if (tsr_job_finished(job)) {
        if (job->resume)
            tsr_log(TSR_LOG_INFO, "raise max_steps or num_train_epochs to train on from %s",
                    tsr_snapshot_directory(job->resume));
        return TSR_OK;
    }
    if (!job->ended_steps || job->resume)
        return TSR_OK;
    return tsr_fail(TSR_ECONFIG,
                    "%s: output_dir %s holds a run that has ended after %" PRId64
                    " steps, and no checkpoint to continue from up to %" PRId64
                    "; name another directory (init_adapter=%s begins with its adapter, and with "
                    "the first rows), or leave out resume_from_checkpoint and set "
                    "overwrite_output_dir: true to replace it",
                    tsr_config_where(config, "output_dir"), config->output_dir, job->ended_steps,
                    tsr_job_total_steps(job), config->output_dir);
}

tsr_status tsr_job_check_resume(const tsr_job *job)
{
    if (job->resume)
        TSR_TRY(check_job(job, job->resume));
    return check_ended(job);
}

int tsr_job_finished(const tsr_job *job)
{
    return job->ended_steps > 0 && job->ended_steps == tsr_job_total_steps(job);
}

/* ---- the state ---- */

typedef struct {
    tsr_job *job;
    int ranks;              /* that wrote it */
    uint64_t granule;       /* elements, when it was written */
    tsr_safetensors **file; /* [ranks] */
} reader;

/* Of a tensor whose state was written in granules of r->granule elements: the part that `rank` had, in values of
 * `buffer`, of which each granule of now has buffer->each. */
static void range_of(uint64_t *begin, uint64_t *end, const reader *r, const tsr_segment *segment,
                     const tsr_state_buffer *buffer, int rank)
{
    uint64_t granules = tsr_ceil_div(segment->element_count, r->granule), count;
    uint64_t each = buffer->each * r->granule / TSR_GRANULE_ELEMENTS;
    tsr_granule_range(begin, &count, granules, (uint64_t)r->ranks, (uint64_t)rank);
    *begin *= each;
    *end = *begin + count * each;
}

/* Values [first, first + count) of a padded tensor, from the ranks that had them. */
static tsr_status read_range(void *out, const reader *r, const char *name,
                             const tsr_segment *segment, const tsr_state_buffer *buffer,
                             uint64_t first, uint64_t count)
{
    uint64_t width = tsr_dtype_bytes(buffer->dtype);
    for (int rank = 0; rank < r->ranks; rank++) {
        uint64_t begin, end;
        range_of(&begin, &end, r, segment, buffer, rank);
        const tsr_tensor *tensor = tsr_safetensors_find(r->file[rank], name);
        if (!tensor || tensor->dtype != buffer->dtype || tensor->element_count != end - begin)
            return tsr_fail(
                TSR_EDATA,
                "%s: tensor '%s' has %" PRIu64 " elements of %s, expected %" PRIu64 " of %s",
                tsr_safetensors_path(r->file[rank]), name, tensor ? tensor->element_count : 0,
                tensor ? tsr_dtype_name(tensor->dtype) : "nothing", end - begin,
                tsr_dtype_name(buffer->dtype));
        uint64_t from = begin > first ? begin : first;
        uint64_t to = end < first + count ? end : first + count;
        if (from < to)
            TSR_TRY(tsr_safetensors_read((char *)out + (from - first) * width, tensor,
                                         (from - begin) * width, (to - from) * width));
    }
    return TSR_OK;
}

static tsr_status restore_part(void *user, const tsr_job_part *part)
{
    const reader *r = user;
    tsr_job *job = r->job;
    tsr_trainable_span span = tsr_job_trainable(job, part->unit, part->segment);
    tsr_state_buffer buffer[TSR_TRAINABLE_STATE_MOST];
    int count = tsr_trainable_state(buffer, &job->decision.store.trainable, &span);
    float *values = job->buffers.unit;
    for (int b = 0; b < count; b++) {
        char name[TSR_JOB_NAME_BYTES];
        uint64_t each = buffer[b].each, granules = span.count / TSR_GRANULE_ELEMENTS;
        uint64_t bytes = granules * each * tsr_dtype_bytes(buffer[b].dtype);
        TSR_TRY(tsr_job_state_name(name, part, &buffer[b]));
        memset(values, 0, bytes); /* the padding */
        TSR_TRY(read_range(values, r, name, span.segment, &buffer[b],
                           span.first / TSR_GRANULE_ELEMENTS * each,
                           span.real / TSR_GRANULE_ELEMENTS * each));
        if (b == 0)
            TSR_TRY(tsr_job_put_trainable(job, part->unit, part->segment, values));
        else
            TSR_TRY(tsr_device_write(job->device, buffer[b].data, values, bytes));
    }
    return TSR_OK;
}

tsr_status tsr_job_restore_trainable(tsr_job *job, const tsr_snapshot *snapshot)
{
    const char *directory = tsr_snapshot_directory(snapshot);
    const json_t *state = tsr_snapshot_state(snapshot);
    int64_t ranks, granule;
    TSR_TRY(tsr_json_int(&ranks, state, "ranks", 1, 1 << 20, directory));
    TSR_TRY(tsr_json_int(&granule, state, "granule_elements", 1, TSR_GRANULE_ELEMENTS, directory));
    reader r = {.job = job,
                .ranks = (int)ranks,
                .granule = (uint64_t)granule,
                .file = calloc((size_t)ranks, sizeof *r.file)};
    tsr_status status = TSR_OK;
    if (!r.file)
        return tsr_fail(TSR_ENOMEM, "%s: no memory to read it", directory);
    for (int i = 0; i < r.ranks && status == TSR_OK; i++) {
        char name[TSR_SNAPSHOT_NAME_BYTES];
        tsr_job_state_file(name, i, r.ranks);
        status = tsr_safetensors_open_in(&r.file[i], tsr_snapshot_folder(snapshot), name);
    }
    if (status == TSR_OK)
        status = tsr_job_each_part(job, "reading the checkpoint", restore_part, &r);
    if (status == TSR_OK)
        status = tsr_job_restore_router_bias(job, snapshot);
    for (int i = 0; i < r.ranks; i++)
        tsr_safetensors_close(r.file[i]);
    free(r.file);
    return status;
}

tsr_status tsr_job_restore(tsr_job *job)
{
    const char *directory = tsr_snapshot_directory(job->resume);
    const json_t *state = tsr_snapshot_state(job->resume);
    json_t *optimizer;
    int64_t updates, metrics_bytes;
    bool evaluated;
    TSR_TRY(tsr_json_object(&optimizer, state, "optimizer", directory));
    TSR_TRY(tsr_json_int(&updates, optimizer, "updates", 0, INT64_MAX, directory));
    TSR_TRY(tsr_json_int(&job->skipped, optimizer, "skipped_in_a_row", 0, INT64_MAX, directory));
    TSR_TRY(tsr_json_int(&job->skipped_steps, optimizer, "skipped_steps", 0, INT64_MAX, directory));
    TSR_TRY(tsr_json_int(&metrics_bytes, state, "metrics_bytes", 0, INT64_MAX, directory));
    TSR_TRY(tsr_json_bool(&evaluated, state, "evaluated", directory));
    TSR_TRY(tsr_job_restore_trainable(job, job->resume));
    tsr_adamw_control control = {.step = (uint64_t)updates};
    TSR_TRY(tsr_device_write(job->device, &job->sums->control, &control, sizeof control));
    job->issued = job->done = job->resumed = tsr_snapshot_step(job->resume);
    job->evaluated = evaluated;
    job->metrics_bytes = (uint64_t)metrics_bytes;
    if (job->continues)
        job->saved = job->done;
    TSR_TRY(tsr_job_read_reference(job, job->resume));
    return tsr_job_resume_best(job);
}

int tsr_job_resumed(tsr_job *job, tsr_job_report *report)
{
    TSR_TRY(tsr_sized_check(&tsr_sized_report, report));
    if (job->state != TSR_JOB_STARTED || !job->resume)
        return 0;
    tsr_batch_step_info info = {0};
    if (job->done > 0)
        TSR_TRY(tsr_batch_step(job->inputs.batch, job->done - 1, &info));
    bool last = job->done == job->last_step;
    const tsr_job_report own = {
        .step = job->done,
        .total_steps = job->total_steps,
        .epoch = info.progress,
        .last = last,
        .skipped_steps = job->skipped_steps,
        .evaluate = !job->evaluated && (last || tsr_job_evaluation_due(job, &info)),
    };
    tsr_sized_fill(&tsr_sized_report, report, &own);
    return 1;
}
