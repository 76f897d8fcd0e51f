#include "job/mixer_parts.h"

#include "base/clock.h"

/* ---- an adapter's steps ---- */

void tsr_mixer_begin_step(tsr_mixer *mixer, int adapter)
{
    tsr_job *job = mixer->job[adapter];
    mixer->begins[adapter] = true;
    mixer->left[adapter] =
        job->issued < job->last_step ? tsr_batch_rows(job->inputs.batch, job->issued) : 0;
}

/* Neighbouring tensors that lie in both places as far apart are one piece. */
typedef struct {
    char *to;
    const char *from;
    uint64_t bytes;
} piece_of_work;

static tsr_status copy_piece(tsr_stream *stream, const piece_of_work *piece)
{
    return piece->bytes ? tsr_stream_copy(stream, piece->to, piece->from, piece->bytes) : TSR_OK;
}

/* An adapter's tensors of a unit follow one another in both plans (model/layout.c), so that a unit is one copy: each on its own
 * they would be hundreds of launches a step. */
static tsr_status take_unit(const tsr_mixer *mixer, int adapter, int unit)
{
    const tsr_trainable *to = &mixer->own->decision.store.trainable;
    const tsr_trainable *from = &mixer->job[adapter]->decision.store.trainable;
    tsr_stream *stream = mixer->own->streams.stream[TSR_STREAM_OPTIM];
    piece_of_work piece = {0};
    for (int i = 0, number = 0; i < to->units[unit].trainable.segment_count; i++) {
        if (to->units[unit].trainable.segment[i].adapter != adapter)
            continue;
        tsr_trainable_span own = tsr_trainable_at(to, unit, i);
        tsr_trainable_span its = tsr_trainable_at(from, unit, number++);
        char *at = own.work;
        const char *at_its = its.work;
        if (!piece.bytes || at - piece.to != at_its - piece.from) {
            TSR_TRY(copy_piece(stream, &piece));
            piece = (piece_of_work){.to = at, .from = at_its};
        }
        piece.bytes = (uint64_t)(at - piece.to) + own.segment->shard_bytes;
    }
    return copy_piece(stream, &piece);
}

tsr_status tsr_mixer_take_work(tsr_mixer *mixer, int adapter)
{
    for (int u = 0; u < mixer->own->decision.store.trainable.unit_count; u++)
        TSR_TRY(take_unit(mixer, adapter, u));
    return TSR_OK;
}

tsr_run_sums *tsr_mixer_sums(const tsr_mixer *mixer, int adapter)
{
    return (tsr_run_sums *)((char *)mixer->own->sums + (size_t)adapter * TSR_RUN_SUMS_BYTES);
}

/* What a step has summed becomes the job's, whose update reads it. */
static tsr_status move_sums(const tsr_mixer *mixer, int adapter)
{
    const uint64_t bytes =
        offsetof(tsr_run_sums, aux); /* and what follows is not of a micro-batch */
    tsr_run_sums *sums = tsr_mixer_sums(mixer, adapter);
    tsr_stream *stream = mixer->own->streams.stream[TSR_STREAM_OPTIM];
    TSR_TRY(tsr_stream_copy(stream, mixer->job[adapter]->sums, sums, bytes));
    return tsr_stream_fill(stream, sums, 0, bytes);
}

/* All rows of its step are in its sums. */
static tsr_status update(tsr_mixer *mixer, int adapter)
{
    tsr_job *job = mixer->job[adapter];
    if (job->issued > job->done)
        return tsr_fail(TSR_EINVAL,
                        "adapter %s has a step that tsr_job_step was not called for; of jobs that "
                        "share micro-batches step the one with the fewest steps",
                        job->inputs.config.adapter_name);
    TSR_TRY(tsr_job_base_enter(job));
    TSR_TRY(move_sums(mixer, adapter));
    tsr_executor_name_step(job->executor, (uint64_t)job->issued + 1);
    TSR_TRY(tsr_job_end_micro_batches(job));
    TSR_TRY(tsr_mixer_take_work(mixer, adapter));
    tsr_mixer_begin_step(mixer, adapter);
    return TSR_OK;
}

/* ---- a round ---- */

/* What is still to be trained of micro-batch `index`: a run that was resumed had some of it before, and one that was stopped
 * has no more. */
static bool is_due(const tsr_mixer *mixer, const tsr_schedule_piece *piece)
{
    const tsr_job *job = mixer->job[piece->adapter];
    return piece->step >= job->resumed && piece->step < job->last_step;
}

static const tsr_schedule_piece *pieces_of(const tsr_mixer *mixer, int64_t index, int64_t *count)
{
    const tsr_schedule_micro *micro = &mixer->schedule.micro[index];
    *count = micro[1].first_piece - micro->first_piece;
    return mixer->schedule.pieces + micro->first_piece;
}

/* Whether rows come after an update that cannot be made before the one before it is read. */
static bool must_wait(const tsr_mixer *mixer, const tsr_schedule_piece *piece)
{
    const tsr_job *job = mixer->job[piece->adapter];
    return piece->step > job->issued && job->issued > job->done;
}

/* Takes a micro-batch into the round; false: it has another step of an adapter, or what has time until the next round. *empty:
 * nothing of it is due. */
static bool join(tsr_mixer *mixer, int64_t index, bool begun, bool *empty)
{
    int64_t count;
    const tsr_schedule_piece *piece = pieces_of(mixer, index, &count);
    *empty = true;
    for (int64_t i = 0; i < count; i++) {
        int64_t step = mixer->step[piece[i].adapter];
        if (is_due(mixer, &piece[i]) &&
            ((step >= 0 && step != piece[i].step) || (begun && must_wait(mixer, &piece[i]))))
            return false;
    }
    for (int64_t i = 0; i < count; i++)
        if (is_due(mixer, &piece[i])) {
            mixer->step[piece[i].adapter] = piece[i].step;
            *empty = false;
        }
    return true;
}

/* The next micro-batches, of which this rank's is *mine; -1: it has none. False: none is left. */
static bool next_round(tsr_mixer *mixer, int64_t *mine)
{
    int members = 0, ranks = mixer->own->view.ranks;
    *mine = -1;
    for (int k = 0; k < mixer->count; k++)
        mixer->step[k] = -1;
    for (; mixer->next < mixer->schedule.count && members < ranks; mixer->next++) {
        bool empty;
        if (!join(mixer, mixer->next, members > 0, &empty))
            break;
        if (!empty && members++ == mixer->own->view.rank)
            *mine = mixer->next;
    }
    return members > 0;
}

/* Updates that the rows of a round come after. */
static tsr_status prepare(tsr_mixer *mixer)
{
    for (int k = 0; k < mixer->count; k++) {
        tsr_job *job = mixer->job[k];
        if (mixer->step[k] < 0 || mixer->step[k] == job->issued)
            continue;
        if (mixer->step[k] != job->issued + 1 || mixer->left[k])
            return tsr_fail(TSR_EINTERNAL, "adapter %s: rows of step %lld after step %lld",
                            job->inputs.config.adapter_name, (long long)mixer->step[k],
                            (long long)job->issued);
        TSR_TRY(update(mixer, k));
    }
    return TSR_OK;
}

/* Rows of this rank's micro-batch, and whose they are. */
static tsr_status fill(tsr_mixer *mixer, tsr_model_batch *batch, int64_t index)
{
    int64_t count = 0;
    const tsr_schedule_piece *piece = index < 0 ? NULL : pieces_of(mixer, index, &count);
    tsr_micro_batch *micro = &mixer->micro;
    tsr_model_range *range = mixer->range - 1;
    tsr_micro_batch_clear(micro);
    for (int64_t i = 0; i < count; i++) {
        tsr_job *job = mixer->job[piece[i].adapter];
        if (!is_due(mixer, &piece[i]))
            continue;
        if (range < mixer->range || range->adapter != piece[i].adapter) {
            tsr_batch_step_info info;
            TSR_TRY(tsr_batch_step(job->inputs.batch, piece[i].step, &info));
            *++range = (tsr_model_range){.adapter = piece[i].adapter,
                                         .first = micro->token_count,
                                         .first_label = micro->label_count,
                                         .label_tokens = (double)info.label_tokens,
                                         .epoch = (uint64_t)info.epoch};
        }
        tsr_batch_append(micro, job->inputs.batch, piece[i].step, piece[i].row);
        range->tokens = micro->token_count - range->first;
        range->label_rows = micro->label_count - range->first_label;
    }
    *batch = tsr_job_rows_of(micro);
    batch->range = mixer->range;
    batch->range_count = (int)(range + 1 - mixer->range);
    batch->train = true;
    return TSR_OK;
}

/* Counts the rows of micro-batches [first, mixer->next), which the ranks have had. */
static void count_rows(tsr_mixer *mixer, int64_t first)
{
    for (int64_t index = first; index < mixer->next; index++) {
        int64_t count;
        const tsr_schedule_piece *piece = pieces_of(mixer, index, &count);
        for (int64_t i = 0; i < count; i++)
            if (is_due(mixer, &piece[i])) {
                mixer->left[piece[i].adapter]--;
                mixer->begins[piece[i].adapter] = false;
            }
    }
}

static tsr_status run_round(tsr_mixer *mixer)
{
    tsr_job *own = mixer->own;
    tsr_model_batch batch;
    int64_t first = mixer->next, mine;
    if (!next_round(mixer, &mine))
        return tsr_fail(TSR_EINTERNAL, "the schedule ends before its steps do");
    TSR_TRY(prepare(mixer));
    tsr_comm_publish(own->world, (uint64_t)mixer->rounds + 1, "mixed micro-batch", (int)first);
    TSR_TRY(tsr_job_base_enter(own));
    TSR_TRY(fill(mixer, &batch, mine));
    own->staged_empty = batch.tokens == 0;
    TSR_TRY(tsr_model_stage(own->model, &batch));
    tsr_executor_name_step(own->executor, (uint64_t)++mixer->rounds);
    TSR_TRY(tsr_job_issue_micro(own, true));
    count_rows(mixer, first);
    return TSR_OK;
}

/* What the rounds of one adapter's step have completed of others is updated along with it: its own steps would each begin while
 * the device has nothing to do. */
static tsr_status update_complete(tsr_mixer *mixer)
{
    for (int k = 0; k < mixer->count; k++) {
        const tsr_job *job = mixer->job[k];
        if (!mixer->left[k] && job->issued == job->done && job->issued < job->last_step)
            TSR_TRY(update(mixer, k));
    }
    return TSR_OK;
}

tsr_status tsr_mixer_check(const tsr_job *job)
{
    const tsr_mixer *mixer = tsr_job_base_of(job)->mixer;
    if (!mixer || (mixer->started && !mixer->over))
        return TSR_OK;
    return tsr_fail(TSR_EINVAL, mixer->over
                                    ? "a job that shares its micro-batches was destroyed"
                                    : "start all jobs that share their micro-batches first");
}

tsr_status tsr_mixer_step(tsr_job *job)
{
    tsr_mixer *mixer = tsr_job_base_of(job)->mixer;
    int k = 0;
    while (mixer->job[k] != job)
        k++;
    if (job->issued > job->done)
        return TSR_OK;
    double before = tsr_now();
    while (mixer->left[k])
        TSR_TRY(run_round(mixer));
    TSR_TRY(update_complete(mixer));
    job->issue_s = tsr_now() - before;
    return TSR_OK;
}

const tsr_executor *tsr_mixer_executor(const tsr_job *job)
{
    const tsr_mixer *mixer = tsr_job_base_of(job)->mixer;
    return mixer && mixer->started && !mixer->over ? mixer->own->executor : NULL;
}

void tsr_mixer_pause(tsr_job *job, double seconds)
{
    const tsr_mixer *mixer = tsr_job_base_of(job)->mixer;
    int count = mixer && mixer->started && !mixer->over ? mixer->count : 0;
    for (int k = 0; k < count; k++)
        mixer->job[k]->word_time += seconds;
    if (!count)
        job->word_time += seconds;
}
