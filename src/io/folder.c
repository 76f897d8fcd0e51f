#include "io/folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define DIRECTORY (O_RDONLY | O_DIRECTORY | O_CLOEXEC)
#define FILE_MODE 0666

struct tsr_folder {
    int fd;
    char path[];
};

const char *tsr_folder_show(char out[PATH_MAX], const tsr_folder *folder, const char *name)
{
    const char *path = folder ? folder->path : "";
    const char *slash = *path && *name && path[strlen(path) - 1] != '/' ? "/" : "";
    snprintf(out, PATH_MAX, "%s%s%s", path, slash, name);
    return out;
}

static tsr_status failed(tsr_status code, const tsr_folder *folder, const char *name,
                         const char *what)
{
    char path[PATH_MAX];
    int error = errno;
    return tsr_fail(code, "%s: cannot be %s: %s", tsr_folder_show(path, folder, name), what,
                    strerror(error));
}

static const char *type_name(mode_t mode)
{
    return S_ISLNK(mode)   ? "a link"
           : S_ISREG(mode) ? "a file"
           : S_ISDIR(mode) ? "a directory"
                           : "a pipe, a socket or a device";
}

/* ---- life ---- */

static tsr_status hold(tsr_folder **out, int fd, const tsr_folder *parent, const char *name)
{
    char path[PATH_MAX];
    tsr_folder_show(path, parent, name);
    tsr_folder *folder = malloc(sizeof *folder + strlen(path) + 1);
    if (!folder) {
        close(fd);
        return tsr_fail(TSR_ENOMEM, "%s: no memory to open it", path);
    }
    folder->fd = fd;
    strcpy(folder->path, path);
    *out = folder;
    return TSR_OK;
}

tsr_status tsr_folder_open(tsr_folder **out, const char *path)
{
    *out = NULL;
    int fd = open(path, DIRECTORY);
    if (fd >= 0)
        return hold(out, fd, NULL, path);
    return errno == ENOENT ? TSR_OK : failed(tsr_status_of_open(errno), NULL, path, "opened");
}

tsr_status tsr_folder_enter(tsr_folder **out, const tsr_folder *parent, const char *name)
{
    char path[PATH_MAX];
    struct stat info;
    *out = NULL;
    int fd = openat(parent->fd, name, DIRECTORY | O_NOFOLLOW);
    if (fd >= 0)
        return hold(out, fd, parent, name);
    if (errno == ENOENT)
        return TSR_OK;
    tsr_status status = failed(tsr_status_of_open(errno), parent, name, "opened");
    if (!tsr_folder_stat(&info, parent, name) || S_ISDIR(info.st_mode))
        return status;
    return tsr_fail(TSR_EDATA, "%s is %s, expected a directory; a link is not followed here",
                    tsr_folder_show(path, parent, name), type_name(info.st_mode));
}

tsr_status tsr_folder_open_parent(tsr_folder **out, const char **name, const char *path)
{
    char directory[PATH_MAX] = "";
    const char *slash = strrchr(path, '/');
    size_t length = slash ? (size_t)(slash - path) : 0;
    if (length >= sizeof directory)
        return tsr_fail(TSR_ECONFIG, "%.80s...: the path is too long", path);
    memcpy(directory, path, slash == path ? 1 : length);
    *name = slash ? slash + 1 : path;
    int fd = open(slash ? directory : ".", DIRECTORY);
    if (fd < 0)
        return tsr_fail(TSR_EIO, "%s: cannot be made, its directory cannot be opened: %s", path,
                        strerror(errno));
    return hold(out, fd, NULL, directory); /* "": shown as the path that was given */
}

tsr_status tsr_folder_make(tsr_folder **out, const tsr_folder *parent, const char *name)
{
    char path[PATH_MAX];
    *out = NULL;
    if (mkdirat(parent->fd, name, 0777) != 0 && errno != EEXIST)
        return failed(TSR_EIO, parent, name, "made");
    TSR_TRY(tsr_folder_enter(out, parent, name));
    return *out ? TSR_OK
                : tsr_fail(TSR_EIO, "%s: something removed it while this program used it",
                           tsr_folder_show(path, parent, name));
}

void tsr_folder_close(tsr_folder *folder)
{
    if (!folder)
        return;
    close(folder->fd);
    free(folder);
}

const char *tsr_folder_path(const tsr_folder *folder)
{
    return folder->path;
}

bool tsr_folder_in_place(const tsr_folder *folder)
{
    struct stat held, found;
    return fstat(folder->fd, &held) == 0 && stat(folder->path, &found) == 0 &&
           held.st_dev == found.st_dev && held.st_ino == found.st_ino;
}

/* ---- what is in it ---- */

bool tsr_folder_stat(struct stat *out, const tsr_folder *folder, const char *name)
{
    return fstatat(folder->fd, name, out, AT_SYMLINK_NOFOLLOW) == 0;
}

tsr_status tsr_folder_expect(const tsr_folder *folder, const char *name, mode_t type,
                             tsr_status code)
{
    char path[PATH_MAX];
    struct stat info;
    if (!tsr_folder_stat(&info, folder, name) || (info.st_mode & S_IFMT) == type)
        return TSR_OK;
    return tsr_fail(code,
                    "%s is %s where the program keeps %s of its own; it is neither followed nor "
                    "replaced: move it elsewhere, or name another directory",
                    tsr_folder_show(path, folder, name), type_name(info.st_mode), type_name(type));
}

tsr_status tsr_folder_list(DIR **out, const tsr_folder *folder)
{
    int fd = openat(folder->fd, ".", DIRECTORY); /* a position of its own */
    *out = fd >= 0 ? fdopendir(fd) : NULL;
    if (*out)
        return TSR_OK;
    tsr_status status = failed(TSR_EIO, folder, "", "listed");
    if (fd >= 0)
        close(fd);
    return status;
}

const char *tsr_folder_next(DIR *entries)
{
    for (struct dirent *entry; (entry = readdir(entries));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            return entry->d_name;
    return NULL;
}

/* ---- files ---- */

/* A pipe must not block, nor a terminal become the program's. */
#define CAREFUL (O_CLOEXEC | O_NONBLOCK | O_NOCTTY)

tsr_status tsr_folder_open_read(int *fd, uint64_t *bytes, const tsr_folder *folder,
                                const char *name)
{
    char path[PATH_MAX];
    struct stat info;
    tsr_status status = TSR_OK;
    int file = openat(folder ? folder->fd : AT_FDCWD, name,
                      O_RDONLY | CAREFUL | (folder ? O_NOFOLLOW : 0));
    if (file < 0)
        return failed(tsr_status_of_open(errno), folder, name, "opened");
    if (fstat(file, &info) < 0)
        status = failed(TSR_EIO, folder, name, "looked at");
    else if (!S_ISREG(info.st_mode))
        status = tsr_fail(TSR_EDATA, "%s: not a regular file", tsr_folder_show(path, folder, name));
    if (status < 0) {
        close(file);
        return status;
    }
    *fd = file;
    *bytes = (uint64_t)info.st_size;
    return TSR_OK;
}

tsr_status tsr_folder_open_append(int *fd, const tsr_folder *folder, const char *name, bool fresh)
{
    char path[PATH_MAX];
    struct stat info;
    int file = openat(folder->fd, name,
                      O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | CAREFUL | (fresh ? O_EXCL : 0),
                      FILE_MODE);
    if (file < 0)
        return failed(TSR_EIO, folder, name, fresh ? "created" : "opened");
    if (fstat(file, &info) == 0 && S_ISREG(info.st_mode) && info.st_nlink == 1) {
        *fd = file;
        return TSR_OK;
    }
    close(file);
    return tsr_fail(TSR_EIO,
                    "%s is not a file of its own (a hard link, or no file); move it elsewhere",
                    tsr_folder_show(path, folder, name));
}

int tsr_folder_create(const tsr_folder *folder, const char *name)
{
    return openat(folder->fd, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, FILE_MODE);
}

int tsr_folder_reach(const tsr_folder *folder, const char *name)
{
    return openat(folder->fd, name, O_RDWR | O_NOFOLLOW | CAREFUL);
}

tsr_hold tsr_folder_hold(const tsr_folder *folder, const char *name, int fd)
{
    struct stat held, named;
    bool locked = flock(fd, LOCK_EX | LOCK_NB) == 0;
    if (!locked && errno == EWOULDBLOCK)
        return TSR_BUSY;
    if (fstat(fd, &held) != 0 || !tsr_folder_stat(&named, folder, name) ||
        held.st_dev != named.st_dev || held.st_ino != named.st_ino)
        return TSR_LOST;
    return locked ? TSR_HELD : TSR_UNLOCKED;
}

/* ---- names ---- */

tsr_status tsr_folder_rename(const tsr_folder *folder, const char *from, const char *to)
{
    char path[PATH_MAX];
    if (renameat(folder->fd, from, folder->fd, to) == 0)
        return TSR_OK;
    int error = errno;
    return tsr_fail(TSR_EIO, "%s: renaming %s to it failed: %s", tsr_folder_show(path, folder, to),
                    from, strerror(error));
}

tsr_status tsr_folder_remove(const tsr_folder *folder, const char *name)
{
    if (unlinkat(folder->fd, name, 0) == 0 || errno == ENOENT)
        return TSR_OK;
    return failed(TSR_EIO, folder, name, "removed");
}

tsr_status tsr_folder_remove_folder(const tsr_folder *folder, const char *name)
{
    if (unlinkat(folder->fd, name, AT_REMOVEDIR) == 0)
        return TSR_OK;
    return failed(TSR_EIO, folder, name, "removed");
}

tsr_status tsr_folder_sync(const tsr_folder *folder)
{
    if (fsync(folder->fd) == 0 || errno == EINVAL || errno == ENOTSUP)
        return TSR_OK;
    return failed(TSR_EIO, folder, "", "brought to the disk");
}
