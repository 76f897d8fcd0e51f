/*
 * report/events.h: TensorBoard's event file, one record a value, each record written with one system call.
 *
 * A file of TFRecords (length, its checksum, bytes, theirs; checksums are CRC-32C, masked), each of them
 * an Event in protobuf's wire format: wall_time = 1 (double), step = 2 (int64), file_version = 3 (the
 * first record's), summary = 5 {value = 1 {tag = 1, simple_value = 2 (float)}}. Sources:
 * tensorflow/core/lib/io/record_writer.h, tensorboard/compat/proto/{event,summary}.proto. Tags are those
 * of Transformers' Trainer: train/loss, eval/loss and so on.
 *
 * The file has one name, so that a run that replaces or goes on with another has one curve: what lies
 * behind the step that it goes on from is cut off. Written by rank 0 alone.
 * Threads  Not locked: one thread at a time.
 */
#ifndef TSR_REPORT_EVENTS_H
#define TSR_REPORT_EVENTS_H

#include "io/folder.h"

#include <stdbool.h>
#include <stdint.h>

#define TSR_EVENTS_FOLDER "runs" /* in output_dir */
#define TSR_EVENTS_FILE   "events.out.tfevents.tessera"

typedef struct tsr_events tsr_events;

#define TSR_EVENTS_EVAL "eval/loss"

/* Creates TSR_EVENTS_FILE, or, with last_step > 0, goes on behind that step's records in the one that is
 * there (what is damaged in it is cut off too, and one with other names becomes a copy); unless
 * `evaluated`, before its TSR_EVENTS_EVAL, which comes again. Borrows nothing. TSR_EIO names the path. */
tsr_status tsr_events_create(tsr_events **out, const tsr_folder *folder, int64_t last_step,
                             bool evaluated);

/* One value at `step`; `wall_time` in seconds since 1970. */
tsr_status tsr_events_write(tsr_events *events, double wall_time, int64_t step, const char *tag,
                            double value);

/* Closes the file; NULL is fine. */
void tsr_events_destroy(tsr_events *events);

#endif
