/*
 * inputs/kind.h: what a directory is: a run, a run's checkpoint, an adapter or a model, by the first of
 * metrics.jsonl, manifest.json, adapter_config.json and config.json that it has; and the runs in one.
 */
#ifndef TSR_INPUTS_KIND_H
#define TSR_INPUTS_KIND_H

#include "base/status.h"
#include "base/text.h"

typedef enum {
    TSR_KIND_RUN,
    TSR_KIND_CHECKPOINT, /* of a run */
    TSR_KIND_ADAPTER,
    TSR_KIND_MODEL,
    TSR_KIND_UNKNOWN
} tsr_kind;

/* "run", "checkpoint", "adapter", "model", "unknown". Static. */
const char *tsr_kind_name(tsr_kind kind);

tsr_kind tsr_kind_of(const char *directory);

/* Names of the directories in `directory` that are runs, sorted. */
typedef struct {
    char **names;
    int count;
} tsr_kind_runs;

/* On success free *out with tsr_kind_runs_free. TSR_EIO, TSR_ENOMEM. */
tsr_status tsr_kind_runs_find(tsr_kind_runs *out, const char *directory);
void tsr_kind_runs_free(tsr_kind_runs *runs);

/* Fails with `code`: the directory is none of the kinds; what it contains instead. */
tsr_status tsr_kind_refuse(tsr_status code, const char *directory);

#endif
