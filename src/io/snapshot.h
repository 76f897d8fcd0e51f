/*
 * io/snapshot.h: checkpoints of a run on disk, complete or absent. (io/checkpoint.h reads a model's
 * checkpoint; in the sources what a run saves of itself is a snapshot, for its user a checkpoint.)
 *
 *     <output_dir>/checkpoint-<step>/     the files of all ranks, and manifest.json
 *
 * It is built in <output_dir>/.checkpoint-<step>.tmp: each rank writes its files there and brings
 * them to the disk; then one rank writes the manifest (step, every file's name, bytes and hash, and
 * what the caller calls the state; a hash of the manifest itself), syncs the directory, renames it
 * and syncs the parent. A directory of the final name is therefore complete, unless something else
 * damaged it: sizes and hashes tell. One that is removed is renamed away first.
 *
 * Both are folders: nothing in them is reached by a path, and no link under a name of theirs is followed.
 *
 * Order    begin (one rank), enter, files, measure (all, each its own), commit (one); discard after a
 *          failure. Then prune.
 * Errors   TSR_EIO: the system failed, with path and reason; whatever was complete before still is.
 *          TSR_EDATA: damaged, with the file and the check that failed.
 * Memory   Nothing here is large: files are hashed through a buffer of fixed size.
 */
#ifndef TSR_IO_SNAPSHOT_H
#define TSR_IO_SNAPSHOT_H

#include "io/folder.h"
#include "io/json.h"

#define TSR_SNAPSHOT_MANIFEST   "manifest.json"
#define TSR_SNAPSHOT_NAME_BYTES 64

/* One file: bytes and hash (base/hash.h) of its content. */
typedef struct {
    char name[TSR_SNAPSHOT_NAME_BYTES];
    uint64_t bytes, hash;
} tsr_snapshot_file;

/* "checkpoint-<step>", and ".checkpoint-<step>.tmp". */
void tsr_snapshot_name(char out[TSR_SNAPSHOT_NAME_BYTES], int64_t step);
void tsr_snapshot_staged_name(char out[TSR_SNAPSHOT_NAME_BYTES], int64_t step);

/* Whether a name is a checkpoint's: finished, being written, or being removed. */
bool tsr_snapshot_is_name(const char *name);

/* ---- writing ---- */

/* Makes the directory for the files of `step`, without files. */
tsr_status tsr_snapshot_begin(const tsr_folder *parent, int64_t step);

/* That directory; *out is the caller's. */
tsr_status tsr_snapshot_enter(tsr_folder **out, const tsr_folder *parent, int64_t step);

/* A written file's bytes and hash, read back. */
tsr_status tsr_snapshot_measure(tsr_snapshot_file *out, const tsr_folder *folder, const char *name);

/* Makes the directory the checkpoint of `step`. `state` is borrowed. A failure after the rename
 * (the parent could not be brought to the disk) leaves it in place, complete. */
tsr_status tsr_snapshot_commit(const tsr_folder *parent, int64_t step, const json_t *state,
                               const tsr_snapshot_file *files, int count);

/* Removes the remains of an attempt; says nothing. */
void tsr_snapshot_discard(const tsr_folder *parent, int64_t step);

/* ---- removing ---- */

/* A checkpoint is a directory of files: a directory in it, and what is none but has its name, is somebody's
 * and is never removed. */

/* Removes the checkpoints before `before` but the newest `keep` of them, that of step `spared` (-1: none), and those
 * with something of somebody's: a warning names it. */
tsr_status tsr_snapshot_prune(const tsr_folder *parent, int64_t before, int64_t keep,
                              int64_t spared);

/* Removes those after `step`; TSR_ECONFIG, before any is removed: there is something of somebody's in one. */
tsr_status tsr_snapshot_drop_after(const tsr_folder *parent, int64_t step);

/* What that and tsr_snapshot_tidy would free, and how many checkpoints would stay. */
tsr_status tsr_snapshot_bytes(uint64_t *freed, int64_t *kept, const tsr_folder *parent,
                              int64_t step);

/* Removes what was left by processes that were killed while they wrote or removed; a directory stays,
 * with a warning. */
tsr_status tsr_snapshot_tidy(const tsr_folder *parent);

/* ---- reading ---- */

typedef struct tsr_snapshot tsr_snapshot;

/* The newest checkpoint-<step> in `parent`; -1: none. */
tsr_status tsr_snapshot_newest(int64_t *step, const tsr_folder *parent);

/* Reads the manifest and compares the sizes of all files: of the directory `path`, or of `name` in a
 * folder. On success *out is the caller's. */
tsr_status tsr_snapshot_open(tsr_snapshot **out, const char *path);
tsr_status tsr_snapshot_open_in(tsr_snapshot **out, const tsr_folder *parent, const char *name);
void tsr_snapshot_close(tsr_snapshot *snapshot);

/* Where it is: held until it is closed. */
const tsr_folder *tsr_snapshot_folder(const tsr_snapshot *snapshot);
const char *tsr_snapshot_directory(const tsr_snapshot *snapshot);
int64_t tsr_snapshot_step(const tsr_snapshot *snapshot);
const json_t *tsr_snapshot_state(const tsr_snapshot *snapshot);
int tsr_snapshot_file_count(const tsr_snapshot *snapshot);
const tsr_snapshot_file *tsr_snapshot_file_at(const tsr_snapshot *snapshot, int index);

/* Compares the hash of one file. */
tsr_status tsr_snapshot_verify(const tsr_snapshot *snapshot, int index);

#endif
