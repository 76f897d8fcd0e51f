#include "io/file.h"

#include "base/log.h"
#include "io/lfs.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_PER_CALL (1u << 30) /* Linux moves at most 2 GiB - 4 KiB a call */
#define NAME_ATTEMPTS 100

static tsr_status read_all(char *buffer, uint64_t *used, uint64_t total, int fd, const char *path)
{
    for (*used = 0; *used < total;) {
        uint64_t want = total - *used < MOST_PER_CALL ? total - *used : MOST_PER_CALL;
        ssize_t got = read(fd, buffer + *used, want);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return tsr_fail(TSR_EIO, "%s: reading failed: %s", path, strerror(errno));
        if (got == 0)
            break; /* it became shorter: what is there is judged as it is */
        *used += (uint64_t)got;
    }
    buffer[*used] = 0;
    return TSR_OK;
}

static tsr_status read_file(char **data, uint64_t *bytes, const tsr_folder *folder,
                            const char *name, uint64_t most_bytes)
{
    int fd;
    uint64_t total, used = 0;
    char *buffer = NULL, path[PATH_MAX];
    tsr_status status;
    TSR_TRY(tsr_folder_open_read(&fd, &total, folder, name));
    tsr_folder_show(path, folder, name);
    if (total > most_bytes)
        status =
            tsr_fail(TSR_EDATA, "%s: the file has %" PRIu64 " bytes, at most %" PRIu64 " are read",
                     path, total, most_bytes);
    else if (!(buffer = malloc(total + 1)))
        status = tsr_fail(TSR_ENOMEM, "%s: no memory for %" PRIu64 " bytes", path, total);
    else
        status = read_all(buffer, &used, total, fd, path);
    if (status == TSR_OK)
        status = tsr_lfs_refuse(path, buffer, used);
    close(fd);
    if (status < 0) {
        free(buffer);
        return status;
    }
    *data = buffer;
    *bytes = used;
    return TSR_OK;
}

tsr_status tsr_file_read(char **data, uint64_t *bytes, const char *path, uint64_t most_bytes)
{
    return read_file(data, bytes, NULL, path, most_bytes);
}

tsr_status tsr_file_read_in(char **data, uint64_t *bytes, const tsr_folder *folder,
                            const char *name, uint64_t most_bytes)
{
    return read_file(data, bytes, folder, name, most_bytes);
}

/* All memory that writing it takes. */
struct tsr_file {
    const tsr_folder *folder;
    bool staged;   /* `temporary` is there */
    bool finished; /* but still open, for the lock */
    int fd;        /* -1: not open */
    size_t temporary_bytes;
    char *name, *temporary;
    char text[]; /* of both */
};

tsr_status tsr_file_prepare(tsr_file **out, const tsr_folder *folder, const char *name)
{
    char path[PATH_MAX];
    size_t bytes = strlen(name) + 1, more = bytes + sizeof ".-9223372036854775808.-2147483648.tmp";
    tsr_file *file = calloc(1, sizeof *file + bytes + more);
    if (!file)
        return tsr_fail(TSR_ENOMEM, "%s: no memory to write it",
                        tsr_folder_show(path, folder, name));
    *file = (tsr_file){.folder = folder, .fd = -1, .temporary_bytes = more};
    file->name = file->text;
    file->temporary = file->text + bytes;
    memcpy(file->name, name, bytes);
    *out = file;
    return TSR_OK;
}

static tsr_status failed(const tsr_file *file, const char *name, const char *what, int error)
{
    char path[PATH_MAX];
    return tsr_fail(TSR_EIO, "%s: %s: %s", tsr_folder_show(path, file->folder, name), what,
                    strerror(error));
}

/* A process that tidies up may have taken it before it was locked: then it is another one. */
static int create_held(const tsr_folder *folder, const char *name)
{
    int fd = tsr_folder_create(folder, name);
    if (fd < 0)
        return -1;
    tsr_hold hold = tsr_folder_hold(folder, name, fd);
    if (hold == TSR_HELD || hold == TSR_UNLOCKED)
        return fd;
    close(fd);
    errno = EEXIST;
    return -1;
}

/* ".<name>.<process>.<attempt>.tmp" */
tsr_status tsr_file_open(tsr_file *file)
{
    int reason = EEXIST;
    for (int attempt = 0; reason == EEXIST && attempt < NAME_ATTEMPTS; attempt++) {
        snprintf(file->temporary, file->temporary_bytes, ".%s.%ld.%d.tmp", file->name,
                 (long)getpid(), attempt);
        file->fd = create_held(file->folder, file->temporary);
        reason = file->fd >= 0 ? 0 : errno;
    }
    file->staged = reason == 0;
    return reason == 0
               ? TSR_OK
               : failed(file, file->name, "a temporary file beside it cannot be created", reason);
}

tsr_status tsr_file_stage(tsr_file **out, const tsr_folder *folder, const char *name)
{
    TSR_TRY(tsr_file_prepare(out, folder, name));
    tsr_status status = tsr_file_open(*out);
    if (status < 0) {
        tsr_file_discard(*out);
        *out = NULL;
    }
    return status;
}

tsr_status tsr_file_append(tsr_file *file, const void *data, uint64_t bytes)
{
    const char *next = data;
    if (file->fd < 0 || file->finished)
        return tsr_fail(TSR_EINVAL, "%s: written to after it was finished", file->name);
    while (bytes > 0) {
        ssize_t put = write(file->fd, next, bytes < MOST_PER_CALL ? bytes : MOST_PER_CALL);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return failed(file, file->temporary, "writing failed", put < 0 ? errno : ENOSPC);
        next += put;
        bytes -= (uint64_t)put;
    }
    return TSR_OK;
}

int tsr_file_descriptor(const tsr_file *file)
{
    return file->fd;
}

tsr_status tsr_file_finish(tsr_file *file)
{
    if (file->fd < 0 || file->finished)
        return TSR_OK;
    if (fsync(file->fd) < 0)
        return failed(file, file->temporary, "flushing it to disk failed", errno);
    file->finished = true;
    return TSR_OK;
}

tsr_status tsr_file_publish(tsr_file *file)
{
    TSR_TRY(tsr_file_finish(file));
    if (!file->staged)
        return TSR_OK;
    TSR_TRY(tsr_folder_rename(file->folder, file->temporary, file->name));
    file->staged = false;
    TSR_TRY(tsr_folder_sync(file->folder)); /* after this a crash does not undo it */
    int fd = file->fd;
    file->fd = -1;
    return close(fd) == 0 ? TSR_OK : failed(file, file->name, "closing it failed", errno);
}

void tsr_file_discard(tsr_file *file)
{
    if (!file)
        return;
    if (file->staged) {
        tsr_error error; /* what failed before is told, not the cleaning */
        tsr_error_take(&error, TSR_EIO);
        (void)tsr_folder_remove(file->folder, file->temporary);
        (void)tsr_error_put(&error);
    }
    if (file->fd >= 0)
        close(file->fd);
    free(file);
}

tsr_status tsr_file_write_in(const tsr_folder *folder, const char *name, const void *data,
                             uint64_t bytes)
{
    tsr_file *file = NULL;
    TSR_TRY(tsr_file_stage(&file, folder, name));
    tsr_status status = tsr_file_append(file, data, bytes);
    if (status == TSR_OK)
        status = tsr_file_publish(file);
    tsr_file_discard(file);
    return status;
}

/* ---- a program's names ---- */

bool tsr_file_is_temporary(char final[NAME_MAX + 1], const char *name)
{
    static const char end[] = ".tmp";
    size_t length = strlen(name);
    if (*name != '.' || length > NAME_MAX || length <= sizeof end ||
        strcmp(name + length - (sizeof end - 1), end))
        return false;
    strcpy(final, name + 1);
    final[length - sizeof end] = 0;
    for (int number = 0; number < 2; number++) {
        char *dot = strrchr(final, '.');
        if (!dot || !dot[1] || dot[1 + strspn(dot + 1, "0123456789")])
            return false;
        *dot = 0;
    }
    return *final;
}

/* The type that what has the name must be of; 0: it is somebody else's. */
static mode_t type_needed(const char *name, tsr_file_types *type_of)
{
    char final[NAME_MAX + 1];
    if (tsr_file_is_temporary(final, name))
        return type_of(final) == S_IFREG ? S_IFREG : 0;
    return type_of(name);
}

tsr_status tsr_file_check_names(const tsr_folder *folder, tsr_file_types *type_of)
{
    tsr_status status = TSR_OK;
    tsr_auto_dir *entries = NULL;
    TSR_TRY(tsr_folder_list(&entries, folder));
    for (const char *name; status == TSR_OK && (name = tsr_folder_next(entries));) {
        mode_t type = type_needed(name, type_of);
        if (type)
            status = tsr_folder_expect(folder, name, type, TSR_ECONFIG);
    }
    return status;
}

static tsr_status remove_left(const tsr_folder *folder, const char *name)
{
    char path[PATH_MAX];
    tsr_status status = TSR_OK;
    int fd = tsr_folder_reach(folder, name);
    tsr_hold hold = fd < 0 ? TSR_LOST : tsr_folder_hold(folder, name, fd);
    if (hold == TSR_HELD)
        status = tsr_folder_remove(folder, name);
    else if (hold == TSR_UNLOCKED)
        tsr_log(TSR_LOG_WARNING,
                "%s: perhaps left by a process that was killed; this file system has no locks to "
                "tell, so it stays: remove it when nothing else writes here",
                tsr_folder_show(path, folder, name));
    if (fd >= 0)
        close(fd);
    return status;
}

/* Of the names of a program's, or of one. */
static tsr_status tidy(const tsr_folder *folder, tsr_file_types *type_of, const char *one)
{
    char final[NAME_MAX + 1];
    tsr_auto_dir *entries = NULL;
    TSR_TRY(tsr_folder_list(&entries, folder));
    for (const char *name; (name = tsr_folder_next(entries));)
        if (tsr_file_is_temporary(final, name) &&
            (one ? !strcmp(final, one) : type_of(final) == S_IFREG))
            TSR_TRY(remove_left(folder, name));
    return TSR_OK;
}

tsr_status tsr_file_tidy(const tsr_folder *folder, tsr_file_types *type_of)
{
    return tidy(folder, type_of, NULL);
}

tsr_status tsr_file_tidy_one(const tsr_folder *folder, const char *name)
{
    return tidy(folder, NULL, name);
}

/* ---- paths ---- */

bool tsr_file_replaceable(const char *path)
{
    static const char process[] = "/proc/"; /* /dev/stdout leads there, whatever it is today */
    char target[sizeof process];
    struct stat about;
    ssize_t length = readlink(path, target, sizeof process - 1);
    if (length == sizeof process - 1 && !memcmp(target, process, sizeof process - 1))
        return false;
    return stat(path, &about) != 0 || S_ISREG(about.st_mode) || S_ISDIR(about.st_mode);
}

tsr_status tsr_file_write(const char *path, const void *data, uint64_t bytes)
{
    tsr_auto_folder *folder = NULL;
    const char *name;
    if (!tsr_file_replaceable(path))
        return tsr_fail(TSR_ECONFIG,
                        "%s is a device, a pipe or a socket, which a file would replace; name a "
                        "file",
                        path);
    TSR_TRY(tsr_folder_open_parent(&folder, &name, path));
    (void)tsr_file_tidy_one(folder, name); /* no reason not to write */
    return tsr_file_write_in(folder, name, data, bytes);
}
