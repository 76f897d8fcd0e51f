#include "data/held_out.h"

#include "base/auto.h"
#include "base/philox.h"
#include "data/batch_order.h"

#include <math.h>
#include <stdlib.h>

/* A sample and the place of its row. */
typedef struct {
    int32_t file;
    int64_t line, sample;
} place;

static int by_place(const void *left, const void *right)
{
    const place *a = left, *b = right;
    if (a->file != b->file)
        return a->file < b->file ? -1 : 1;
    if (a->line != b->line)
        return a->line < b->line ? -1 : 1;
    return a->sample < b->sample ? -1 : a->sample > b->sample;
}

static bool any_parts(const tsr_dataset *data, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (tsr_dataset_sample(data, i).part)
            return true;
    return false;
}

/* The texts: what a sample is alone, or with the other parts of its row, which need not be neighbours where data sets are
 * interleaved. text[i] is that of sample i; they are numbered in the order of their first samples. */
static void number_texts(int32_t *text, int64_t *texts, place *places, const tsr_dataset *data,
                         int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        tsr_sample s = tsr_dataset_sample(data, i);
        places[i] = (place){s.file, s.line, i};
    }
    qsort(places, (size_t)count, sizeof *places, by_place);
    for (int64_t i = 0; i < count; i++) {
        tsr_sample s = tsr_dataset_sample(data, places[i].sample);
        bool same = i && s.part && places[i - 1].file == s.file && places[i - 1].line == s.line;
        text[places[i].sample] = same ? text[places[i - 1].sample] : (int32_t)places[i].sample;
    }
    *texts = 0;
    for (int64_t i = 0; i < count; i++) /* from the first sample of a text to its number */
        text[i] = text[i] == i ? (int32_t)(*texts)++ : text[text[i]];
}

/* text[0..count): each sample's own, or as number_texts has them. */
static tsr_status find_texts(int32_t *text, int64_t *texts, const tsr_dataset *data, int64_t count)
{
    *texts = count;
    for (int64_t i = 0; i < count; i++)
        text[i] = (int32_t)i;
    if (!any_parts(data, count))
        return TSR_OK;
    place *places = malloc((size_t)count * sizeof *places);
    if (!places)
        return tsr_fail(TSR_ENOMEM, "no memory for the rows of %lld samples", (long long)count);
    number_texts(text, texts, places, data, count);
    free(places);
    return TSR_OK;
}

/* Marks the samples of the first `held` of a permutation of all texts. */
static tsr_status choose(bool *leaves, const int32_t *text, int64_t texts, int64_t count,
                         int64_t held, uint64_t seed)
{
    int32_t *order = malloc((size_t)texts * sizeof *order);
    bool *chosen = calloc((size_t)texts, sizeof *chosen);
    tsr_status status = TSR_OK;
    if (!order || !chosen)
        status = tsr_fail(TSR_ENOMEM, "no memory for the order of %lld samples", (long long)count);
    for (int64_t i = 0; i < texts && status >= 0; i++)
        order[i] = (int32_t)i;
    if (status >= 0)
        tsr_permute(order, texts, tsr_mix(seed), TSR_PERMUTE_HELD_OUT);
    for (int64_t i = 0; i < held && status >= 0; i++)
        chosen[order[i]] = true;
    for (int64_t i = 0; i < count && status >= 0; i++)
        leaves[i] = chosen[text[i]];
    free(order);
    free(chosen);
    return status;
}

static tsr_status check_labels(const tsr_dataset *part, const char *what,
                               const tsr_held_out_options *options)
{
    const tsr_dataset_stats *stats = tsr_dataset_stats_of(part);
    if (stats->label_tokens)
        return TSR_OK;
    return tsr_fail(TSR_EDATA,
                    "%s: validation_split: the %lld samples %s have no token to train; choose "
                    "another data_seed or validation_split",
                    options->where, (long long)stats->samples, what);
}

/* Of the held-out samples only the first. */
static tsr_status limit(tsr_dataset **held, int64_t most)
{
    int64_t count = tsr_dataset_sample_count(*held), rows = 0;
    tsr_dataset *first;
    if (!most || most >= count)
        return TSR_OK;
    TSR_AUTO_FREE bool *leaves = calloc((size_t)count, sizeof *leaves);
    TSR_AUTO_FREE int32_t *text = malloc((size_t)count * sizeof *text);
    if (!leaves || !text)
        return tsr_fail(TSR_ENOMEM, "no memory for %lld samples", (long long)count);
    TSR_TRY(find_texts(text, &rows, *held, count));
    rows = 0;
    for (int64_t i = 0; i < most; i++) {
        leaves[i] = true;
        rows = text[i] < rows ? rows : text[i] + 1; /* numbered as they come */
    }
    TSR_TRY(tsr_dataset_divide(&first, *held, leaves, rows));
    tsr_dataset_destroy(*held);
    *held = first;
    return TSR_OK;
}

/* Marks what is held out, of *rows rows. */
static tsr_status mark(bool *leaves, int64_t *rows, int32_t *text, const tsr_dataset *data,
                       int64_t count, const tsr_held_out_options *options)
{
    int64_t texts;
    TSR_TRY(find_texts(text, &texts, data, count));
    double wanted = options->split < 1 ? ceil(options->split * (double)texts) : options->split;
    if (wanted >= (double)texts)
        return tsr_fail(TSR_ECONFIG,
                        "%s: validation_split: %g would leave nothing to train: the data has %lld "
                        "%s%s; write fewer, or a share below 1",
                        options->where, options->split, (long long)texts,
                        texts < count ? "row" : "sample", texts == 1 ? "" : "s");
    *rows = (int64_t)wanted;
    return choose(leaves, text, texts, count, *rows, options->seed);
}

tsr_status tsr_dataset_hold_out(tsr_dataset **out, tsr_dataset *data,
                                const tsr_held_out_options *options)
{
    int64_t count = tsr_dataset_sample_count(data);
    if (count > INT32_MAX)
        return tsr_fail(TSR_EDATA, "%s: validation_split: %lld samples are more than 2^31 - 1",
                        options->where, (long long)count);
    bool *leaves = calloc((size_t)count, sizeof *leaves);
    int32_t *text = malloc((size_t)count * sizeof *text);
    tsr_dataset *held = NULL;
    int64_t rows = 0;
    tsr_status status = leaves && text
                            ? mark(leaves, &rows, text, data, count, options)
                            : tsr_fail(TSR_ENOMEM, "no memory for %lld samples", (long long)count);
    free(text);
    if (status >= 0)
        status = tsr_dataset_divide(&held, data, leaves, rows);
    if (status >= 0)
        status = limit(&held, options->most);
    if (status >= 0)
        status = check_labels(data, "that are left", options);
    if (status >= 0)
        status = check_labels(held, "that are held out", options);
    free(leaves);
    if (status < 0) {
        tsr_dataset_destroy(held);
        return status;
    }
    *out = held;
    return TSR_OK;
}
