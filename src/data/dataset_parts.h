/*
 * data/dataset_parts.h: what the files of data/dataset.h share.
 *
 * dataset.c       reading: files, rows, what is wrong with them; questions
 * dataset_make.c  a data set from its rows, or from a cache: figures, hash, warnings
 * dataset_view.c  data sets of the samples of others
 * dataset_pairs.c  those of KTO
 */
#ifndef TSR_DATA_DATASET_PARTS_H
#define TSR_DATA_DATASET_PARTS_H

#include "data/token_cache.h"

typedef struct {
    uint64_t first_word;
    int32_t token_count, document_count, label_count, desirable;
    int64_t line;
    int32_t file, part;
    float margin;
} tsr_sample_entry;

struct tsr_dataset {
    const int32_t *words; /* ids, labels and lengths of a sample, one sample behind the other */
    const tsr_sample_entry *samples;
    int32_t *own_words; /* what is not the cache's */
    tsr_sample_entry *own_samples;
    uint64_t word_count, word_capacity;
    uint64_t sample_count, sample_capacity;
    tsr_token_cache *cache; /* NULL: without */
    bool cache_failed;      /* writing it did */
    uint64_t bytes;
    char **files;
    tsr_data_format *file_formats; /* of data sets of others, [file_count]; NULL: `format` */
    int file_count;
    tsr_sample
        *view; /* [sample_count], in the place of all of the above: samples of other data sets */
    tsr_dataset **parts; /* that these are in, owned; NULL: all but `view` is another's */
    int part_count;
    tsr_data_format format;
    tsr_dataset_stats stats;
    tsr_text unread_keys;
    uint64_t hash;
};

/* What messages call the data set. */
const char *tsr_dataset_key(const tsr_dataset_options *options);

/* Appends all rows: to data->cache, or to own_words; the samples to own_samples. */
tsr_status tsr_dataset_read_files(tsr_dataset *data, const tsr_dataset_options *options);

/* Everything else of a data set that knows its files and its format. */
tsr_status tsr_dataset_make(tsr_dataset *data, const tsr_dataset_options *options);

/* Logs what is to be known of a data set that was made. */
void tsr_dataset_warn(const tsr_dataset *data, const tsr_dataset_options *options);

/* Notes whether a call of the cache failed, which is no failure of the data; returns its status. */
tsr_status tsr_dataset_kept(tsr_dataset *data, tsr_status status);

/* Figures of the samples, and their hash. */
void tsr_dataset_measure(tsr_dataset *data);

#endif
