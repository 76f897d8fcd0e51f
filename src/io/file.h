/*
 * io/file.h: whole files in, and files out that appear under their names only when complete.
 *
 * Order    tsr_file_stage (or tsr_file_prepare, tsr_file_open), tsr_file_append ..., tsr_file_finish,
 *          tsr_file_publish; tsr_file_discard in any state frees the handle and removes what was not
 *          published.
 * Locks    A temporary file is locked (flock) from its creation until it has its final name or is gone, so
 *          one that nobody holds was left by a process that was killed: tsr_file_tidy removes it.
 */
#ifndef TSR_IO_FILE_H
#define TSR_IO_FILE_H

#include "io/folder.h"

#include <stdint.h>

/* Reads a regular file of at most most_bytes, more are TSR_EDATA, and so is a pointer of Git LFS; *data has a
 * zero after its *bytes and is the caller's (free). What cannot be opened fails as tsr_status_of_open says. */
tsr_status tsr_file_read(char **data, uint64_t *bytes, const char *path, uint64_t most_bytes);
tsr_status tsr_file_read_in(char **data, uint64_t *bytes, const tsr_folder *folder,
                            const char *name, uint64_t most_bytes);

/* A file being written under a temporary name beside its final one. */
typedef struct tsr_file tsr_file;

/* `folder` is borrowed until the file is discarded. On success *out is the caller's. */
tsr_status tsr_file_stage(tsr_file **out, const tsr_folder *folder, const char *name);
/* The same in two: what allocates, and does not look at the disk; and what creates the temporary file.
 * Nothing after tsr_file_prepare allocates. */
tsr_status tsr_file_prepare(tsr_file **out, const tsr_folder *folder, const char *name);
tsr_status tsr_file_open(tsr_file *file);
tsr_status tsr_file_append(tsr_file *file, const void *data, uint64_t bytes);
/* What it is written to, to be mapped; borrowed until it is published. */
int tsr_file_descriptor(const tsr_file *file);
/* Everything is on the disk (fsync); nothing can be appended any more. */
tsr_status tsr_file_finish(tsr_file *file);
/* Renames to the final name, replacing what had it, and syncs the folder. */
tsr_status tsr_file_publish(tsr_file *file);
void tsr_file_discard(tsr_file *file);

/* ---- a program's names in a folder ---- */

/* What the program makes of a name: S_IFREG, S_IFDIR, or 0: nothing. */
typedef mode_t tsr_file_types(const char *name);

/* TSR_ECONFIG: something in the folder has a name of the program's, or a temporary file's of such a one,
 * and is a link or of another type. */
tsr_status tsr_file_check_names(const tsr_folder *folder, tsr_file_types *type_of);

/* Removes the temporary files of such names, or of one name, that nobody holds. Where the file system has
 * no locks they are left alone, with a warning. */
tsr_status tsr_file_tidy(const tsr_folder *folder, tsr_file_types *type_of);
tsr_status tsr_file_tidy_one(const tsr_folder *folder, const char *name);

/* Whether a name is a temporary file's; `final` is then the one that the file was to have. */
bool tsr_file_is_temporary(char final[NAME_MAX + 1], const char *name);

/* ---- paths ---- */

/* False of a device, a pipe or a socket, which a rename would take away; and of what leads to one. */
bool tsr_file_replaceable(const char *path);

/* Stage, append, finish, publish. Of a path TSR_ECONFIG: it is not replaceable; what was left of it by
 * earlier writers is removed. */
tsr_status tsr_file_write(const char *path, const void *data, uint64_t bytes);
tsr_status tsr_file_write_in(const tsr_folder *folder, const char *name, const void *data,
                             uint64_t bytes);

#endif
