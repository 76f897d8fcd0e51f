#include "report/data_parts.h"

#include "base/auto.h"
#include "data/pack.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int ascending(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* Rows that the samples are packed into: their number does not depend on the order. */
static tsr_status count_rows(tsr_data_figures *f, const int32_t *lengths, int64_t count)
{
    tsr_pack *pack;
    int32_t most = (int32_t)f->config->max_length;
    TSR_AUTO_FREE int32_t *order = malloc(2 * (size_t)count * sizeof *order);
    if (!order)
        return tsr_fail(TSR_ENOMEM, "out of memory: packing");
    tsr_status status = tsr_pack_create(&pack, count, most);
    for (int64_t i = 0; i < count; i++)
        order[i] = (int32_t)i;
    if (status >= 0) {
        f->rows = tsr_pack_run(order + count, pack, lengths, order);
        f->fill = (double)f->stats->tokens / ((double)f->rows * most);
        tsr_pack_destroy(pack);
    }
    return status;
}

/* Puts a sample among the longest, if it is one. */
static void note_long(tsr_data_figures *f, const int32_t *lengths, int64_t index)
{
    int at = f->longest_count;
    while (at > 0 && lengths[f->longest_samples[at - 1]] < lengths[index])
        at--;
    if (at == TSR_DATA_LONGEST)
        return;
    f->longest_count += f->longest_count < TSR_DATA_LONGEST;
    for (int i = f->longest_count - 1; i > at; i--)
        f->longest_samples[i] = f->longest_samples[i - 1];
    f->longest_samples[at] = index;
}

static void count_lengths(tsr_data_figures *f, int32_t *lengths, int64_t count)
{
    qsort(lengths, (size_t)count, sizeof *lengths, ascending);
    f->shortest = lengths[0];
    f->median = lengths[count / 2];
    f->longest = lengths[count - 1];
    f->mean = (double)f->stats->tokens / (double)count;
    f->bin_width = (f->longest - f->shortest) / TSR_DATA_BINS + 1;
    f->bin_count = (f->longest - f->shortest) / f->bin_width + 1;
    for (int64_t i = 0; i < count; i++)
        f->bins[(lengths[i] - f->shortest) / f->bin_width]++;
}

tsr_status tsr_data_measure(tsr_data_figures *f, bool packing)
{
    int64_t count = f->stats->samples;
    TSR_AUTO_FREE int32_t *lengths = malloc((size_t)count * sizeof *lengths);
    f->by_file = calloc((size_t)tsr_dataset_file_count(f->data), sizeof *f->by_file);
    if (!lengths || !f->by_file)
        return tsr_fail(TSR_ENOMEM, "out of memory: lengths of samples");
    for (int64_t i = 0; i < count; i++) {
        tsr_sample s = tsr_dataset_sample(f->data, i);
        tsr_data_file *file = &f->by_file[s.file];
        file->samples++;
        file->tokens += s.token_count;
        file->trained += s.label_count;
        lengths[i] = s.token_count;
        note_long(f, lengths, i);
    }
    if (packing)
        TSR_TRY(count_rows(f, lengths, count));
    count_lengths(f, lengths, count);
    return tsr_duplicates_find(&f->duplicates, f->data, 0);
}

void tsr_data_figures_free(tsr_data_figures *f)
{
    free(f->by_file);
    f->by_file = NULL;
}

void tsr_data_put_formats(tsr_text *out, const tsr_data_figures *f)
{
    unsigned said = 0;
    for (int i = 0; i < tsr_dataset_file_count(f->data); i++) {
        tsr_data_format format = tsr_dataset_file_format(f->data, i);
        if (said & 1u << format)
            continue;
        tsr_text_printf(out, "%s%s", said ? ", " : "", tsr_data_format_name(format));
        said |= 1u << format;
    }
}

int32_t tsr_data_run_end(bool *trained, const tsr_sample *s, int32_t from, int32_t document_end)
{
    int32_t at = from;
    *trained = s->labels[from] != TSR_LABEL_IGNORED;
    while (at < document_end && (s->labels[at] != TSR_LABEL_IGNORED) == *trained)
        at++;
    return at;
}

tsr_status tsr_data_run_text(tsr_text *out, const tsr_data_figures *f, const tsr_sample *s,
                             int32_t begin, int32_t end)
{
    tsr_text_clear(out);
    if (f->tokenizer)
        return tsr_tokenizer_decode(out, f->tokenizer, s->ids + begin, (size_t)(end - begin),
                                    false);
    for (int32_t i = begin; i < end; i++)
        tsr_text_printf(out, "%d ", s->ids[i]);
    return TSR_OK;
}

const char *tsr_data_document_name(char out[24], const tsr_data_figures *f, const tsr_sample *s,
                                   int32_t document)
{
    tsr_data_format format = tsr_dataset_file_format(f->data, s->file);
    if (format == TSR_DATA_PREFERENCE || format == TSR_DATA_PREFERENCE_IDS)
        return document ? "rejected" : "chosen";
    if (format == TSR_DATA_UNPAIRED)
        return s->desirable ? "good" : "bad";
    if (!document)
        return NULL;
    snprintf(out, 24, "document %d", document + 1);
    return out;
}
