/*
 * io/file.h: whole files in, and files out that appear under their names only when complete.
 *
 * Order    tsr_file_stage (or tsr_file_prepare, tsr_file_open), tsr_file_append ..., tsr_file_finish,
 *          tsr_file_publish; tsr_file_discard in any state frees the handle and removes what was not
 *          published.
 */
#ifndef TSR_IO_FILE_H
#define TSR_IO_FILE_H

#include "base/status.h"

#include <stdint.h>

/* Opens a regular file of *bytes bytes for reading; the caller closes. What is no file is TSR_EDATA,
 * what else fails as tsr_status_of_open says. */
tsr_status tsr_file_open_read(int *fd, uint64_t *bytes, const char *path);

/* Reads a regular file of at most most_bytes, more are TSR_EDATA; *data has a zero after its *bytes and
 * is the caller's (free). */
tsr_status tsr_file_read(char **data, uint64_t *bytes, const char *path, uint64_t most_bytes);

/* A file being written under a temporary name in the directory of its final one. */
typedef struct tsr_file tsr_file;

/* The directory must exist. On success *out is the caller's. TSR_ECONFIG: a device, a pipe or a socket
 * has the name. */
tsr_status tsr_file_stage(tsr_file **out, const char *path);
/* The same in two: what allocates, and does not look at the disk; and what creates the temporary file.
 * Nothing after tsr_file_prepare allocates. */
tsr_status tsr_file_prepare(tsr_file **out, const char *path);
tsr_status tsr_file_open(tsr_file *file);
tsr_status tsr_file_append(tsr_file *file, const void *data, uint64_t bytes);
/* Everything is on the disk (fsync); nothing can be appended any more. */
tsr_status tsr_file_finish(tsr_file *file);
/* Renames to the final name, replacing what had it, and syncs the directory. */
tsr_status tsr_file_publish(tsr_file *file);
void tsr_file_discard(tsr_file *file);

/* A rename, a new or a removed name in it is on the disk (fsync). A file system that cannot do that
 * is left alone. */
tsr_status tsr_directory_sync(const char *directory);

/* False of a device, a pipe or a socket, which a rename would take away. */
bool tsr_file_replaceable(const char *path);

/* Stage, append, finish, publish. */
tsr_status tsr_file_write(const char *path, const void *data, uint64_t bytes);

#endif
