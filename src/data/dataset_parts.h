/*
 * data/dataset_parts.h: what dataset.c and dataset_view.c share.
 */
#ifndef TSR_DATA_DATASET_PARTS_H
#define TSR_DATA_DATASET_PARTS_H

#include "data/dataset.h"

typedef struct {
    uint64_t first_token, first_document;
    int32_t token_count, document_count, label_count, file;
    int64_t line;
} tsr_sample_entry;

struct tsr_dataset {
    int32_t *ids, *labels, *lengths;
    tsr_sample_entry *samples;
    uint64_t token_count, token_capacity;
    uint64_t document_count, document_capacity;
    uint64_t sample_count, sample_capacity;
    char **files;
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

/* Figures of the samples, and their hash. */
void tsr_dataset_measure(tsr_dataset *data);

#endif
