/*
 * commands/inspect.h: what `tessera inspect` says of a path, kind by kind, as parts of a report.
 *
 * A file is a trace by its first characters or its name's end (.json), else safetensors.
 * A kind of directory is known by a file in it (inputs/kind.h).
 */
#ifndef TSR_COMMANDS_INSPECT_H
#define TSR_COMMANDS_INSPECT_H

#include "io/safetensors.h"
#include "report/metrics_read.h"
#include "report/report.h"

/* Each fills `report` with what the path holds. TSR_EDATA: it is broken, and how. */
tsr_status tsr_inspect_safetensors(json_t *report, const char *path);
tsr_status tsr_inspect_model(json_t *report, const char *directory);
tsr_status tsr_inspect_adapter(json_t *report, const char *directory);
/* The adapter of a run or checkpoint, as an object of its own; without a list of tensors. */
tsr_status tsr_inspect_adapter_within(json_t *report, const char *directory);
tsr_status tsr_inspect_run(json_t *report, const char *directory);
tsr_status tsr_inspect_runs(json_t *report, const char *directory);
tsr_status tsr_inspect_two_runs(json_t *report, const char *directory, const char *other);
tsr_status tsr_inspect_checkpoint(json_t *report, const char *directory); /* of a run */

tsr_status tsr_inspect_trace(json_t *report, const char *path); /* of the key `trace` */
tsr_status tsr_inspect_two_traces(json_t *report, const char *path, const char *other);
bool tsr_inspect_is_trace(const char *path);

/* What a run's directory has logged. TSR_EDATA: it is no run's. Free with tsr_run_metrics_free. */
tsr_status tsr_inspect_metrics(tsr_run_metrics *out, const char *directory);

/* The state of a run without an end. */
#define TSR_INSPECT_OPEN "running, or ended abruptly"

/* One tensor as a row of a table: name, dtype, shape, bytes. Returns the row. */
json_t *tsr_inspect_tensor(json_t *rows, const tsr_tensor *tensor);

/* "{dtype: bytes}" of tensors, added up one at a time. */
void tsr_inspect_count_dtype(json_t *dtypes, const tsr_tensor *tensor);

/* "<directory>/<name>" in `path`. TSR_EDATA: too long. */
#define TSR_INSPECT_PATH_BYTES 4096
tsr_status tsr_inspect_join(char path[TSR_INSPECT_PATH_BYTES], const char *directory,
                            const char *name);

#endif
