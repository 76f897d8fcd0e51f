#include "data/batch.h"

#include "base/auto.h"
#include "base/checked.h"
#include "base/hash.h"
#include "base/phase.h"
#include "data/batch_bucket.h"
#include "data/batch_order.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct tsr_batch {
    tsr_batch_options options;
    tsr_batch_run run;
    tsr_order_source source;
    tsr_order
        order[2]; /* of an even and an odd epoch: a prefetch may run ahead into the next one */
    int32_t *memory, *dealing;
};

/* Units [first, end) of an epoch. */
typedef struct {
    const tsr_order *order;
    int64_t first, end;
} unit_range;

static const tsr_order *order_of(tsr_batch *batch, int64_t epoch)
{
    tsr_order *order = &batch->order[epoch & 1];
    if (order->epoch != epoch)
        tsr_order_fill(order, &batch->source, epoch);
    return order;
}

static unit_range step_units(tsr_batch *batch, int64_t step)
{
    const tsr_batch_run *run = &batch->run;
    int64_t units = run->step_micro * batch->options.per_device;
    unit_range range = {order_of(batch, step / run->steps_per_epoch)};
    range.first = step % run->steps_per_epoch * units;
    range.end = range.first + units < run->units ? range.first + units : run->units;
    return range;
}

/* Micro-batch `index` of a step's units; empty past the last. */
static unit_range micro_units(const tsr_batch *batch, unit_range step, int64_t index)
{
    int64_t per = batch->options.per_device;
    const int32_t *micro_first = step.order->micro_first;
    if (index >= (int64_t)tsr_ceil_div((uint64_t)(step.end - step.first), (uint64_t)per)) {
        step.first = step.end;
    } else if (micro_first) {
        int64_t micro = step.first / per + index;
        return (unit_range){step.order, micro_first[micro], micro_first[micro + 1]};
    } else
        step.first += index * per;
    if (step.end - step.first > per)
        step.end = step.first + per;
    return step;
}

typedef struct {
    int64_t tokens, labels, documents, samples, longest;
} totals;

/* Labels of an answer. */
static int32_t answer_labels(const tsr_sample *sample, int32_t document)
{
    int32_t offset = document ? sample->lengths[0] : 0, count = 0;
    for (int32_t t = 1; t < sample->lengths[document]; t++)
        count += sample->labels[offset + t] != TSR_LABEL_IGNORED;
    return count;
}

/* Tokens of the chosen document's prompt, where they are trained too: all but the first one and the labels. */
static int32_t prompt_labels(const tsr_batch *batch, const tsr_sample *sample)
{
    return batch->options.whole_chosen ? sample->lengths[0] - 1 - answer_labels(sample, 0) : 0;
}

static totals count_units(const tsr_batch *batch, unit_range range)
{
    totals sum = {0};
    int32_t first = range.order->unit_first[range.first], end = range.order->unit_first[range.end];
    for (int32_t i = first; i < end; i++) {
        tsr_sample sample = tsr_dataset_sample(batch->options.dataset, range.order->samples[i]);
        sum.tokens += sample.token_count;
        sum.labels += sample.label_count + prompt_labels(batch, &sample);
        sum.documents += sample.document_count;
        for (int32_t d = 0; d < sample.document_count; d++)
            if (sample.lengths[d] > sum.longest)
                sum.longest = sample.lengths[d];
    }
    sum.samples = end - first;
    return sum;
}

/* "a.jsonl:3, a.jsonl:9 and 4 more" */
static void name_rows(tsr_text *text, const tsr_batch *batch, unit_range range)
{
    int32_t first = range.order->unit_first[range.first], end = range.order->unit_first[range.end];
    for (int32_t i = first; i < end && i < first + 8; i++) {
        tsr_sample sample = tsr_dataset_sample(batch->options.dataset, range.order->samples[i]);
        tsr_text_printf(text, "%s%s:%lld", i > first ? ", " : "",
                        tsr_dataset_file(batch->options.dataset, sample.file),
                        (long long)sample.line);
    }
    if (end - first > 8)
        tsr_text_printf(text, " and %d more", end - first - 8);
}

static tsr_status no_label(const tsr_batch *batch, unit_range range, int64_t step)
{
    tsr_auto_text text = {0};
    name_rows(&text, batch, range);
    return tsr_fail(
        TSR_EDATA,
        "%s: step %lld (epoch %lld) has no token to train: %s have no label; remove these rows, "
        "use another data_seed or more rows a step (gradient_accumulation_steps, total_batch_size)",
        batch->options.name, (long long)step + 1,
        (long long)(step / batch->run.steps_per_epoch) + 1, tsr_text_string(&text));
}

static void keep_most(int32_t *most, int64_t value)
{
    if (value > *most)
        *most = (int32_t)value;
}

/* Adds step `step`, which is run `times` times with the same content, to the run's figures. */
static tsr_status walk_step(tsr_batch *batch, int64_t step, int64_t times,
                            tsr_bucket_histogram *histogram)
{
    tsr_batch_run *run = &batch->run;
    unit_range units = step_units(batch, step);
    int64_t labels = 0;
    for (int64_t k = 0;; k++) {
        unit_range range = micro_units(batch, units, k);
        if (range.first == range.end)
            break;
        totals sum = count_units(batch, range);
        if (sum.tokens > INT32_MAX)
            return tsr_fail(TSR_ECONFIG,
                            "%s: a micro-batch of %lld rows has %lld tokens, more than 2^31 - 1; "
                            "lower per_device_train_batch_size",
                            batch->options.name, (long long)(range.end - range.first),
                            (long long)sum.tokens);
        tsr_bucket_add(histogram, (int32_t)sum.tokens, (int32_t)sum.labels);
        keep_most(&run->most_tokens, sum.tokens);
        keep_most(&run->most_label_rows, sum.labels);
        keep_most(&run->most_documents, sum.documents);
        keep_most(&run->longest_document, sum.longest);
        labels += sum.labels;
        run->input_tokens += times * sum.tokens;
    }
    run->label_tokens += times * labels;
    if (labels > run->most_step_labels)
        run->most_step_labels = labels;
    return labels ? TSR_OK : no_label(batch, units, step);
}

/* Every step once; in file order all epochs are alike, so the first and a cut last one stand for
 * all. */
static tsr_status walk(tsr_batch *batch)
{
    tsr_batch_run *run = &batch->run;
    int64_t per_epoch = run->steps_per_epoch, steps = run->steps;
    TSR_AUTO_FREE tsr_bucket_histogram *histogram = calloc(1, sizeof *histogram);
    if (!histogram)
        return tsr_fail(TSR_ENOMEM, "%s: no memory to count its batches", batch->options.name);
    histogram->width = 1;
    tsr_status status = TSR_OK;
    if (batch->options.shuffle) {
        for (int64_t step = 0; step < steps && status >= 0; step++) {
            status = walk_step(batch, step, 1, histogram);
            tsr_phase_at("counting steps", (double)step + 1, (double)steps);
        }
    } else {
        int64_t whole = steps / per_epoch, rest = steps % per_epoch;
        for (int64_t i = 0; i < per_epoch && i < steps && status >= 0; i++)
            status = walk_step(batch, i, whole + (i < rest), histogram);
    }
    if (status >= 0)
        status = tsr_bucket_choose(run, histogram);
    return status;
}

static tsr_status set_defaults(tsr_batch_options *o)
{
    if (!o->dataset)
        return tsr_fail(TSR_EINVAL, "batches: no dataset");
    o->name = o->name ? o->name : "dataset";
    o->per_device = o->per_device ? o->per_device : 1;
    o->accumulation = o->accumulation ? o->accumulation : 1;
    o->ranks = o->ranks ? o->ranks : 1;
    o->epochs = o->epochs > 0 ? o->epochs : 1;
    if (o->evaluation) {
        o->shuffle = o->drop_last = o->group_by_length = false;
        o->epochs = 1;
        o->max_steps = 0;
    }
    if (o->per_device < 1 || o->accumulation < 1 || o->ranks < 1 || o->total_batch < 0)
        return tsr_fail(TSR_EINVAL, "%s: a negative batch size or number of ranks", o->name);
    if (o->total_batch % o->per_device)
        return tsr_fail(TSR_ECONFIG,
                        "total_batch_size %lld is not a multiple of per_device_train_batch_size "
                        "%lld",
                        (long long)o->total_batch, (long long)o->per_device);
    if (o->pairs != TSR_PAIRS_NONE) /* a row has room for a pair of the longest documents */
        o->max_length *= 2;
    if (o->packing && o->max_length < 1)
        return tsr_fail(TSR_ECONFIG, "%s: packing needs a max_length", o->name);
    return TSR_OK;
}

/* Units of a full step; 0: too many. */
static int64_t units_of_step(const tsr_batch_options *o)
{
    uint64_t units;
    if (o->total_batch)
        return o->total_batch;
    if (!tsr_mul_u64(&units, (uint64_t)o->accumulation, (uint64_t)o->ranks) ||
        !tsr_mul_u64(&units, units, (uint64_t)o->per_device) || units > INT32_MAX)
        return 0;
    return (int64_t)units;
}

/* transformers sorts 50 steps together, or a quarter of a small data set. */
static tsr_status prepare_groups(tsr_batch *batch)
{
    tsr_order_source *source = &batch->source;
    int64_t step = units_of_step(&batch->options), steps;
    if (!step || step > source->sample_count)
        step = source->sample_count;
    steps = source->sample_count / (4 * step);
    source->group = step * (steps > 50 ? 50 : steps > 1 ? steps : 1);
    uint64_t bytes = (uint64_t)source->sample_count * sizeof *source->keys;
    source->keys = malloc(bytes);
    if (!source->keys)
        return tsr_fail(TSR_ENOMEM, "%s: no memory to order %lld samples", batch->options.name,
                        (long long)source->sample_count);
    return TSR_OK;
}

/* Scratch, and where micro-batches begin, behind it. */
static tsr_status prepare_dealing(tsr_batch *batch)
{
    tsr_order_source *source = &batch->source;
    uint64_t n = (uint64_t)source->sample_count;
    int64_t step = units_of_step(&batch->options);
    source->per = batch->options.per_device;
    source->step = step && step < source->sample_count ? step : source->sample_count;
    uint64_t micros = tsr_ceil_div((uint64_t)source->step, (uint64_t)source->per);
    if (!source->keys)
        source->keys = malloc(n * sizeof *source->keys);
    source->load = malloc(micros * sizeof *source->load);
    batch->dealing = malloc((n + 2 * (n + 1)) * sizeof *batch->dealing);
    if (!source->keys || !source->load || !batch->dealing)
        return tsr_fail(TSR_ENOMEM, "%s: no memory to order %lld samples", batch->options.name,
                        (long long)source->sample_count);
    source->dealt = batch->dealing;
    for (int i = 0; i < 2; i++)
        batch->order[i].micro_first = batch->dealing + n + (uint64_t)i * (n + 1);
    return TSR_OK;
}

/* Memory for the orders of two epochs and for packing. */
static tsr_status allocate(tsr_batch *batch)
{
    const tsr_batch_options *o = &batch->options;
    int64_t n = tsr_dataset_sample_count(o->dataset);
    if (n < 1 || n >= INT32_MAX)
        return tsr_fail(TSR_EDATA, "%s: %lld samples, expected 1 to 2^31 - 2", o->name,
                        (long long)n);
    bool groups = o->group_by_length && !o->packing;
    bool deals = o->balance && !o->packing && !o->evaluation;
    uint64_t more = o->packing ? 4 : groups || deals ? 1 : 0;
    uint64_t count = 2 * (2 * (uint64_t)n + 1) + more * (uint64_t)n;
    batch->memory = malloc(count * sizeof(int32_t));
    if (!batch->memory)
        return tsr_fail(TSR_ENOMEM, "%s: no memory to order %lld samples", o->name, (long long)n);
    int32_t *at = batch->memory;
    for (int i = 0; i < 2; i++, at += 2 * n + 1)
        batch->order[i] = (tsr_order){.epoch = -1, .samples = at, .unit_first = at + n};
    batch->source = (tsr_order_source){n, NULL, o->shuffle, o->seed};
    if (!o->packing && !groups && !deals)
        return TSR_OK;
    int32_t *lengths = at;
    for (int64_t i = 0; i < n; i++) {
        tsr_sample sample = tsr_dataset_sample(o->dataset, i);
        lengths[i] = sample.token_count;
        if (o->packing && sample.token_count > o->max_length)
            return tsr_fail(TSR_EDATA,
                            "%s:%lld: %d tokens do not fit into a packed row of max_length %lld; "
                            "raise it, or set truncation to split, right or drop",
                            tsr_dataset_file(o->dataset, sample.file), (long long)sample.line,
                            sample.token_count, (long long)o->max_length);
    }
    batch->source.lengths = lengths;
    if (groups)
        TSR_TRY(prepare_groups(batch));
    if (deals)
        return prepare_dealing(batch);
    if (groups)
        return TSR_OK;
    /* A row never holds more than all samples. */
    int64_t most = tsr_dataset_stats_of(o->dataset)->tokens;
    most = most < o->max_length ? most : o->max_length;
    if (most >= INT32_MAX)
        return tsr_fail(TSR_ECONFIG, "%s: max_length %lld is too long for packing", o->name,
                        (long long)o->max_length);
    batch->source.order = at + n;
    batch->source.row_of = at + 2 * n;
    batch->source.row_at = at + 3 * n;
    return tsr_pack_create(&batch->source.pack, n, (int32_t)most);
}

static tsr_status count_steps(tsr_batch *batch)
{
    const tsr_batch_options *o = &batch->options;
    tsr_batch_run *run = &batch->run;
    run->samples = batch->source.sample_count;
    run->units = order_of(batch, 0)->units;
    uint64_t micro = tsr_ceil_div((uint64_t)run->units, (uint64_t)o->per_device), step;
    if (o->evaluation)
        run->step_micro = (int64_t)micro;
    else if (o->total_batch)
        run->step_micro = o->total_batch / o->per_device;
    else if (tsr_mul_u64(&step, (uint64_t)o->accumulation, (uint64_t)o->ranks) && step <= INT32_MAX)
        run->step_micro = (int64_t)step;
    else
        return tsr_fail(TSR_ECONFIG, "gradient_accumulation_steps %lld on %lld ranks is too much",
                        (long long)o->accumulation, (long long)o->ranks);
    if (o->per_device > INT32_MAX || run->step_micro > INT32_MAX)
        return tsr_fail(TSR_ECONFIG, "%s: batches of %lld rows, %lld of them a step, are too many",
                        o->name, (long long)o->per_device, (long long)run->step_micro);
    int64_t units = run->step_micro * o->per_device;
    run->steps_per_epoch = o->drop_last
                               ? run->units / units
                               : (int64_t)tsr_ceil_div((uint64_t)run->units, (uint64_t)units);
    if (!run->steps_per_epoch)
        return tsr_fail(TSR_ECONFIG,
                        "%s: %lld rows are fewer than the %lld of a step, and "
                        "dataloader_drop_last drops a smaller step: nothing is left",
                        o->name, (long long)run->units, (long long)units);
    double steps = ceil(o->epochs * (double)run->steps_per_epoch);
    if (o->max_steps <= 0 && !(steps < 0x1p53))
        return tsr_fail(TSR_ECONFIG, "num_train_epochs %g is too many", o->epochs);
    run->steps = o->max_steps > 0 ? o->max_steps : (int64_t)steps;
    run->epochs = (int64_t)tsr_ceil_div((uint64_t)run->steps, (uint64_t)run->steps_per_epoch);
    run->rounds = (int64_t)tsr_ceil_div(
        (uint64_t)run->step_micro < micro ? (uint64_t)run->step_micro : micro, (uint64_t)o->ranks);
    return TSR_OK;
}

static void hash_run(tsr_batch *batch)
{
    const tsr_order *order = order_of(batch, 0);
    tsr_batch_run *run = &batch->run;
    int64_t count[] = {run->steps,        run->steps_per_epoch, run->units, run->step_micro,
                       run->label_tokens, run->input_tokens,    run->rounds};
    uint64_t hash = tsr_hash(TSR_HASH_START, count, sizeof count);
    hash = tsr_hash(hash, order->samples, (uint64_t)run->samples * sizeof *order->samples);
    run->hash =
        tsr_hash(hash, order->unit_first, (uint64_t)(run->units + 1) * sizeof *order->unit_first);
}

tsr_status tsr_batch_create(tsr_batch **out, const tsr_batch_options *options)
{
    tsr_batch *batch = calloc(1, sizeof *batch);
    if (!batch)
        return tsr_fail(TSR_ENOMEM, "batches: out of memory");
    batch->options = *options;
    tsr_status status = set_defaults(&batch->options);
    if (status >= 0)
        status = allocate(batch);
    if (status >= 0)
        status = count_steps(batch);
    if (status >= 0)
        status = walk(batch);
    if (status < 0) {
        tsr_batch_destroy(batch);
        return status;
    }
    hash_run(batch);
    *out = batch;
    return TSR_OK;
}

void tsr_batch_destroy(tsr_batch *batch)
{
    if (!batch)
        return;
    tsr_pack_destroy(batch->source.pack);
    free(batch->source.keys);
    free(batch->source.load);
    free(batch->dealing);
    free(batch->memory);
    free(batch);
}

const tsr_batch_run *tsr_batch_run_of(const tsr_batch *batch)
{
    return &batch->run;
}

static tsr_status check_step(const tsr_batch *batch, int64_t step)
{
    if (step < 0 || step >= batch->run.steps)
        return tsr_fail(TSR_EINVAL, "%s: step %lld of %lld", batch->options.name, (long long)step,
                        (long long)batch->run.steps);
    return TSR_OK;
}

tsr_status tsr_batch_step(tsr_batch *batch, int64_t step, tsr_batch_step_info *info)
{
    TSR_TRY(check_step(batch, step));
    const tsr_batch_run *run = &batch->run;
    unit_range units = step_units(batch, step);
    totals sum = count_units(batch, units);
    int64_t epoch = step / run->steps_per_epoch;
    int64_t per = batch->options.per_device, count = units.end - units.first;
    bool ends_epoch = step % run->steps_per_epoch == run->steps_per_epoch - 1;
    /* What drop_last leaves out counts as seen: an epoch ends at a whole number. */
    int64_t seen = ends_epoch ? run->samples : units.order->unit_first[units.end];
    *info = (tsr_batch_step_info){
        .epoch = epoch,
        .micro_count = (int64_t)tsr_ceil_div((uint64_t)count, (uint64_t)per),
        .first_micro = units.first / per,
        .label_tokens = sum.labels,
        .input_tokens = sum.tokens,
        .samples_seen = epoch * run->samples + seen,
        .progress = (double)epoch + (double)seen / (double)run->samples,
        .ends_epoch = ends_epoch,
    };
    info->rounds =
        (int64_t)tsr_ceil_div((uint64_t)info->micro_count, (uint64_t)batch->options.ranks);
    return TSR_OK;
}

static bool is_tie(const tsr_sample *pair)
{
    return pair->lengths[0] == pair->lengths[1] &&
           !memcmp(pair->ids, pair->ids + pair->lengths[0],
                   (size_t)pair->lengths[0] * sizeof *pair->ids);
}

/* Where the parts of the last two documents begin, whose label rows are from `first` on. */
static void append_parts(tsr_micro_batch *out, const tsr_batch *batch, const tsr_sample *sample,
                         int32_t first)
{
    int32_t labels[2] = {answer_labels(sample, 0), answer_labels(sample, 1)};
    int32_t shorter = labels[0] < labels[1] ? labels[0] : labels[1];
    int32_t *part = out->part + 3 * (out->document_count - 2);
    for (int d = 0; d < 2; d++, part += 3) {
        int32_t prompt = d ? 0 : prompt_labels(batch, sample);
        part[0] = first;
        part[1] = first + prompt;
        part[2] = part[1] + (batch->options.split_beyond ? shorter : labels[d]);
        first = part[1] + labels[d];
    }
    *part = first;
    out->desirable[out->document_count / 2 - 1] =
        batch->options.marks_ties ? is_tie(sample) : sample->desirable;
}

/* What token t of a document is trained to predict; a document is scored at its last token. */
static int32_t label_at(const tsr_batch *batch, const tsr_sample *sample, int32_t document,
                        int32_t offset, int32_t t)
{
    bool whole = batch->options.whole_chosen && document == 0;
    if (batch->options.pairs == TSR_PAIRS_REWARD)
        return sample->labels[offset + t];
    if (t + 1 == sample->lengths[document])
        return TSR_LABEL_IGNORED;
    return (whole ? sample->ids : sample->labels)[offset + t + 1];
}

/* Of a pair whose documents are scored. */
static void append_margin(tsr_micro_batch *out, const tsr_sample *sample)
{
    int32_t pair = out->document_count / 2 - 1;
    out->margin[pair] = sample->margin;
    out->desirable[pair] = is_tie(sample);
}

/* One sample behind what *out holds so far. */
static void append_sample(tsr_micro_batch *out, const tsr_batch *batch, const tsr_sample *sample,
                          int64_t index)
{
    int32_t first = out->label_count;
    for (int32_t d = 0, offset = 0; d < sample->document_count; offset += sample->lengths[d++]) {
        int32_t length = sample->lengths[d], base = out->token_count;
        out->sample[out->document_count] = index;
        out->first_position[out->document_count] = offset;
        for (int32_t t = 0; t < length; t++) {
            int32_t label = label_at(batch, sample, d, offset, t);
            out->ids[base + t] = sample->ids[offset + t];
            out->positions[base + t] = t;
            out->targets[base + t] = label;
            if (label != TSR_LABEL_IGNORED) {
                out->label_rows[out->label_count] = base + t;
                out->labels[out->label_count++] = label;
            }
        }
        out->token_count += length;
        out->cu_seqlens[++out->document_count] = out->token_count;
    }
    if (batch->options.pairs == TSR_PAIRS_REWARD)
        append_margin(out, sample);
    else if (batch->options.pairs != TSR_PAIRS_NONE)
        append_parts(out, batch, sample, first);
}

static void pad(tsr_micro_batch *out, const tsr_batch_bucket *bucket)
{
    for (int32_t t = out->token_count; t < bucket->tokens; t++) {
        out->ids[t] = out->positions[t] = 0;
        out->targets[t] = TSR_LABEL_IGNORED;
    }
    for (int32_t i = out->label_count; i < bucket->label_rows; i++)
        out->label_rows[i] = out->labels[i] = 0;
}

static void append_units(tsr_micro_batch *out, const tsr_batch *batch, unit_range range)
{
    int32_t first = range.order->unit_first[range.first], end = range.order->unit_first[range.end];
    for (int32_t i = first; i < end; i++) {
        int32_t at = range.order->samples[i];
        tsr_sample sample = tsr_dataset_sample(batch->options.dataset, at);
        append_sample(out, batch, &sample, at);
    }
}

void tsr_micro_batch_clear(tsr_micro_batch *out)
{
    out->token_count = out->document_count = out->label_count = out->bucket = 0;
    out->cu_seqlens[0] = out->part[0] = 0;
}

tsr_status tsr_batch_fill(tsr_micro_batch *out, tsr_batch *batch, int64_t step, int64_t index)
{
    TSR_TRY(check_step(batch, step));
    if (index < 0)
        return tsr_fail(TSR_EINVAL, "%s: micro-batch %lld", batch->options.name, (long long)index);
    unit_range range = micro_units(batch, step_units(batch, step), index);
    tsr_micro_batch_clear(out);
    out->epoch = range.order->epoch;
    append_units(out, batch, range);
    if (out->token_count)
        out->bucket = tsr_batch_bucket_of(&batch->run, out->token_count);
    pad(out, &batch->run.bucket[out->bucket]);
    return TSR_OK;
}

/* ---- rows ---- */

int64_t tsr_batch_rows(tsr_batch *batch, int64_t step)
{
    if (step < 0 || step >= batch->run.steps)
        return 0;
    unit_range units = step_units(batch, step);
    return units.end - units.first;
}

static unit_range row_units(tsr_batch *batch, int64_t step, int64_t row)
{
    unit_range units = step_units(batch, step);
    units.first += row;
    units.end = units.first + 1;
    return units;
}

tsr_batch_row tsr_batch_row_of(tsr_batch *batch, int64_t step, int64_t row)
{
    totals sum = count_units(batch, row_units(batch, step, row));
    return (tsr_batch_row){(int32_t)sum.tokens, (int32_t)sum.documents, (int32_t)sum.labels};
}

void tsr_batch_append(tsr_micro_batch *out, tsr_batch *batch, int64_t step, int64_t row)
{
    append_units(out, batch, row_units(batch, step, row));
}

/* The arrays one behind the other; the 8-byte ones first. */
static uint64_t micro_batch_bytes(const tsr_batch_run *run)
{
    return 8 * (uint64_t)run->most_documents +
           4 * (3 * (uint64_t)run->most_tokens + 2 * (uint64_t)run->most_label_rows +
                6 * (uint64_t)run->most_documents + 2);
}

tsr_status tsr_micro_batch_create(tsr_micro_batch *out, const tsr_batch_run *run)
{
    char *memory = calloc(1, micro_batch_bytes(run));
    if (!memory)
        return tsr_fail(TSR_ENOMEM, "no memory for a micro-batch of %d tokens", run->most_tokens);
    *out = (tsr_micro_batch){.memory = memory};
    out->sample = (int64_t *)memory;
    out->ids = (int32_t *)(out->sample + run->most_documents);
    out->positions = out->ids + run->most_tokens;
    out->targets = out->positions + run->most_tokens;
    out->label_rows = out->targets + run->most_tokens;
    out->labels = out->label_rows + run->most_label_rows;
    out->cu_seqlens = out->labels + run->most_label_rows;
    out->first_position = out->cu_seqlens + run->most_documents + 1;
    out->part = out->first_position + run->most_documents;
    out->desirable = out->part + 3 * (int64_t)run->most_documents + 1;
    out->margin = (float *)(void *)(out->desirable + run->most_documents / 2);
    return TSR_OK;
}

void tsr_micro_batch_free(tsr_micro_batch *micro)
{
    free(micro->memory);
    *micro = (tsr_micro_batch){0};
}
