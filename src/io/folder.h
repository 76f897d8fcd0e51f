/*
 * io/folder.h: an open directory, and what is done in it by name.
 *
 * A folder is held by its descriptor, so it stays the same directory whatever is moved or linked meanwhile.
 * What is in it is reached by name from there, and a link under such a name is never followed: nothing outside
 * is read, changed or removed. Only the path that a folder is opened by may lead through links, once.
 *
 * Names    have no '/'. Messages show <path>/<name>.
 * Errors   TSR_EIO where something is made, renamed or removed; where it is opened, as tsr_status_of_open
 *          says, and TSR_EDATA for a link or another kind of file than was asked for.
 * Threads  A folder does not change: any number of threads.
 */
#ifndef TSR_IO_FOLDER_H
#define TSR_IO_FOLDER_H

#include "base/status.h"

#include <dirent.h>
#include <limits.h>
#include <stdint.h>
#include <sys/stat.h>

typedef struct tsr_folder tsr_folder;

/* *out is the caller's, to be closed. *out NULL with TSR_OK: nothing is there. */
tsr_status tsr_folder_open(tsr_folder **out, const char *path);
tsr_status tsr_folder_enter(tsr_folder **out, const tsr_folder *parent, const char *name);

/* The folder that the file `path` is in, which must be there, and the file's name: a part of `path`. */
tsr_status tsr_folder_open_parent(tsr_folder **out, const char **name, const char *path);

/* Enters `name`; makes it first if nothing is there. */
tsr_status tsr_folder_make(tsr_folder **out, const tsr_folder *parent, const char *name);

void tsr_folder_close(tsr_folder *folder);

/* A local of this type is closed where its scope ends. */
#define tsr_auto_folder __attribute__((cleanup(tsr_folder_close_local))) tsr_folder
static inline void tsr_folder_close_local(tsr_folder **folder)
{
    tsr_folder_close(*folder);
}

/* As it was opened. Borrowed. */
const char *tsr_folder_path(const tsr_folder *folder);

/* "<path>/<name>", cut where it is too long; returned. */
const char *tsr_folder_show(char out[PATH_MAX], const tsr_folder *folder, const char *name);

/* Whether its path still leads to it. */
bool tsr_folder_in_place(const tsr_folder *folder);

/* ---- what is in it ---- */

/* Of a link the link's. False: nothing has the name. */
bool tsr_folder_stat(struct stat *out, const tsr_folder *folder, const char *name);

/* Refuses with `code` what has the name and is not of the type (S_IFREG, S_IFDIR). */
tsr_status tsr_folder_expect(const tsr_folder *folder, const char *name, mode_t type,
                             tsr_status code);

/* for (const char *name; (name = tsr_folder_next(entries));) ...; closedir(entries); */
tsr_status tsr_folder_list(DIR **out, const tsr_folder *folder);
const char *tsr_folder_next(DIR *entries);
#define tsr_auto_dir __attribute__((cleanup(tsr_dir_close_local))) DIR
static inline void tsr_dir_close_local(DIR **entries)
{
    if (*entries)
        closedir(*entries);
}

/* ---- files; the caller closes ---- */

/* For reading: a regular file of *bytes bytes. `folder` NULL: `name` is a path, which is followed. */
tsr_status tsr_folder_open_read(int *fd, uint64_t *bytes, const tsr_folder *folder,
                                const char *name);

/* For writing at its end: a new one, where nothing may have the name, or one that may be there and has
 * no other name. */
tsr_status tsr_folder_open_append(int *fd, const tsr_folder *folder, const char *name, bool fresh);

/* A new one, and one that may be there; both for writing. errno is EEXIST where something has the name of
 * the new one; nothing is said. -1: failed. */
int tsr_folder_create(const tsr_folder *folder, const char *name);
int tsr_folder_reach(const tsr_folder *folder, const char *name);

/* Locks an open file (flock) that the name is still to lead to afterwards. */
typedef enum {
    TSR_HELD,     /* until it is closed, by whoever has it open */
    TSR_BUSY,     /* another has it */
    TSR_LOST,     /* the name leads elsewhere, or nowhere */
    TSR_UNLOCKED, /* the file system has no locks */
} tsr_hold;
tsr_hold tsr_folder_hold(const tsr_folder *folder, const char *name, int fd);

/* ---- names ---- */

tsr_status tsr_folder_rename(const tsr_folder *folder, const char *from, const char *to);
/* What is no directory, and may be gone already. */
tsr_status tsr_folder_remove(const tsr_folder *folder, const char *name);
/* An empty directory. */
tsr_status tsr_folder_remove_folder(const tsr_folder *folder, const char *name);

/* Names that came and went are on the disk (fsync). A file system that cannot do that is left alone. */
tsr_status tsr_folder_sync(const tsr_folder *folder);

#endif
