/*
 * inspect_checkpoint.c: a checkpoint of a run: where the run was, whether all of it is there and as it was
 * written.
 */
#include "commands/inspect.h"

#include "io/snapshot.h"

static void copy_int(json_t *report, const json_t *from, const char *key)
{
    const json_t *value = json_object_get(from, key);
    if (json_is_integer(value))
        tsr_report_int(report, key, (uint64_t)json_integer_value(value));
}

static void add_position(json_t *report, const tsr_snapshot *snapshot)
{
    const json_t *state = tsr_snapshot_state(snapshot), *data = json_object_get(state, "data");
    const json_t *optimizer = json_object_get(state, "optimizer");
    tsr_report_int(report, "step", (uint64_t)tsr_snapshot_step(snapshot));
    copy_int(report, data, "total_steps");
    copy_int(report, data, "epoch");
    copy_int(report, data, "samples_seen");
    copy_int(report, data, "step_samples");
    copy_int(report, optimizer, "updates");
    copy_int(report, optimizer, "skipped_steps");
    copy_int(report, state, "ranks");
    tsr_report_string(report, "device", json_string_value(json_object_get(state, "device")));
}

/* Sizes were compared when it was opened; hashes are now. */
static tsr_status add_files(json_t *report, const tsr_snapshot *snapshot)
{
    json_t *rows = tsr_report_array(report, "files");
    for (int i = 0; i < tsr_snapshot_file_count(snapshot); i++) {
        const tsr_snapshot_file *file = tsr_snapshot_file_at(snapshot, i);
        TSR_TRY(tsr_snapshot_verify(snapshot, i));
        json_t *row = tsr_report_row(rows);
        tsr_report_string(row, "name", file->name);
        tsr_report_int(row, "bytes", file->bytes);
        tsr_report_bool(row, "as_written", true);
    }
    return TSR_OK;
}

tsr_status tsr_inspect_checkpoint(json_t *report, const char *directory)
{
    tsr_snapshot *snapshot;
    TSR_TRY(tsr_snapshot_open(&snapshot, directory));
    add_position(report, snapshot);
    tsr_status status = add_files(report, snapshot);
    json_t *keys = json_object_get(tsr_snapshot_state(snapshot), "config");
    if (status == TSR_OK && json_is_object(keys))
        json_object_set(report, "keys_that_must_agree", keys);
    tsr_snapshot_close(snapshot);
    TSR_TRY(status);
    return tsr_inspect_adapter_within(report, directory);
}
