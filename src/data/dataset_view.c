/*
 * dataset_view.c: data sets made of the samples of others.
 */
#include "data/dataset_parts.h"

#include <stdlib.h>
#include <string.h>

static void add_found(tsr_found *sum, const tsr_found *more, int shift)
{
    if (more->rows && !sum->rows)
        *sum = (tsr_found){0, more->line, more->file + shift};
    sum->rows += more->rows;
}

/* Adds what was read and found in `part`, whose first file is file `shift` of the whole. */
static void add_stats(tsr_dataset *whole, const tsr_dataset *part, int shift)
{
    tsr_dataset_stats *sum = &whole->stats;
    const tsr_dataset_stats *more = &part->stats;
    sum->rows += more->rows;
    sum->truncated += more->truncated;
    sum->too_long += more->too_long;
    sum->emptied += more->emptied;
    sum->split += more->split;
    sum->parts += more->parts;
    sum->empty_parts += more->empty_parts;
    add_found(&sum->first_cut, &more->first_cut, shift);
    add_found(&sum->first_split, &more->first_split, shift);
    add_found(&sum->first_too_long, &more->first_too_long, shift);
    add_found(&sum->first_emptied, &more->first_emptied, shift);
    for (int i = 0; i < TSR_FINDING_COUNT; i++)
        add_found(&sum->found[i], &more->found[i], shift);
    tsr_text_printf(&whole->unread_keys, "%s%s",
                    whole->unread_keys.length && part->unread_keys.length ? ", " : "",
                    tsr_text_string(&part->unread_keys));
}

/* The parts' files one behind the other; the names are theirs. */
static void take_parts(tsr_dataset *whole, tsr_dataset *const *parts, const tsr_sample_ref *refs)
{
    for (int p = 0; p < whole->part_count; p++) {
        whole->parts[p] = parts[p];
        add_stats(whole, parts[p], whole->file_count);
        for (int f = 0; f < parts[p]->file_count; f++) {
            whole->file_formats[whole->file_count] = tsr_dataset_file_format(parts[p], f);
            whole->files[whole->file_count++] = parts[p]->files[f];
        }
    }
    for (uint64_t i = 0; i < whole->sample_count; i++) {
        whole->view[i] = tsr_dataset_sample(parts[refs[i].part], refs[i].sample);
        for (int p = 0; p < refs[i].part; p++)
            whole->view[i].file += parts[p]->file_count;
    }
}

tsr_status tsr_dataset_join(tsr_dataset **out, tsr_dataset *const *parts, int part_count,
                            const tsr_sample_ref *refs, int64_t count)
{
    size_t files = 0;
    for (int p = 0; p < part_count; p++)
        files += (size_t)parts[p]->file_count;
    tsr_dataset *whole = calloc(1, sizeof *whole);
    if (whole) {
        whole->view = malloc((size_t)count * sizeof *whole->view);
        whole->parts = calloc((size_t)part_count, sizeof *whole->parts);
        whole->files = calloc(files, sizeof *whole->files);
        whole->file_formats = calloc(files, sizeof *whole->file_formats);
    }
    if (!whole || !whole->view || !whole->parts || !whole->files || !whole->file_formats) {
        if (whole)
            whole->part_count = 0;
        tsr_dataset_destroy(whole);
        return tsr_fail(TSR_ENOMEM, "no memory for %lld samples", (long long)count);
    }
    whole->sample_count = (uint64_t)count;
    whole->part_count = part_count;
    whole->format = parts[0]->format;
    take_parts(whole, parts, refs);
    tsr_dataset_measure(whole);
    *out = whole;
    return TSR_OK;
}

/* Entries that may be changed, instead of a cache's. */
static bool own_samples(tsr_dataset *data)
{
    uint64_t bytes = data->sample_count * sizeof *data->own_samples;
    data->own_samples = malloc(bytes);
    if (!data->own_samples)
        return false;
    memcpy(data->own_samples, data->samples, bytes);
    data->samples = data->own_samples;
    data->bytes += bytes;
    return true;
}

tsr_status tsr_dataset_divide(tsr_dataset **out, tsr_dataset *data, const bool *leaves,
                              int64_t rows)
{
    tsr_dataset *part = calloc(1, sizeof *part);
    tsr_sample *taken = malloc(data->sample_count * sizeof *taken);
    if (!part || !taken) {
        free(part);
        free(taken);
        return tsr_fail(TSR_ENOMEM, "no memory for %llu samples",
                        (unsigned long long)data->sample_count);
    }
    if (!data->view && data->samples != data->own_samples && !own_samples(data)) {
        free(part);
        free(taken);
        return tsr_fail(TSR_ENOMEM, "no memory for %llu samples",
                        (unsigned long long)data->sample_count);
    }
    uint64_t count = 0, kept = 0;
    for (uint64_t i = 0; i < data->sample_count; i++)
        if (leaves[i])
            taken[count++] = tsr_dataset_sample(data, (int64_t)i);
        else if (data->view)
            data->view[kept++] = data->view[i];
        else
            data->own_samples[kept++] = data->own_samples[i];
    *part = (tsr_dataset){.view = taken,
                          .sample_count = count,
                          .files = data->files,
                          .file_count = data->file_count,
                          .file_formats = data->file_formats,
                          .format = data->format,
                          .stats.rows = rows};
    data->sample_count = kept;
    data->stats.rows -= rows;
    tsr_dataset_measure(data);
    tsr_dataset_measure(part);
    *out = part;
    return TSR_OK;
}
