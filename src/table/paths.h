/*
 * table/paths.h: the files that paths of a job name: files, directories, and patterns (glob(7)).
 *
 * Directory  Its files of known kinds (.parquet, .jsonl, .ndjson, .json, .csv, .tsv, .txt, also with .gz or .zst), or, where
 *            it has none, those of its folder data, as a data set of the Hugging Face Hub is laid out. Files whose names
 *            begin with . or _, and dataset_info(s).json, are passed over.
 * Split      The Hub's conventions, of directories only: "train-00000-of-00002.parquet" belongs to the split before the
 *            numbers; other names begin with the split ("train.jsonl") or another word for it (validation: valid, val, dev;
 *            test: eval). Where no file has a split, all are the split train.
 * Order      As the paths were given; files of a directory or pattern by the bytes of their names.
 */
#ifndef TSR_TABLE_PATHS_H
#define TSR_TABLE_PATHS_H

#include "base/status.h"

typedef struct {
    char **items;
    int count;
} tsr_paths;

/* A path that is nothing of these stays as it is: opening it says why. What a directory or a pattern gave is logged, a
 * line each; `key` begins it, and messages. On success the caller frees *out. TSR_EDATA: a directory without files of
 * known kinds, or of the split, which then lists those that it has; a pattern that no file matches. */
tsr_status tsr_paths_expand(tsr_paths *out, const char *const *given, int count, const char *split,
                            const char *key);
/* The paths as they are. On success the caller frees *out. */
tsr_status tsr_paths_copy(tsr_paths *out, const char *const *given, int count, const char *key);
void tsr_paths_free(tsr_paths *paths);

#endif
