#include "io/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_PER_CALL (1u << 30) /* Linux moves at most 2 GiB - 4 KiB a call */
#define NAME_ATTEMPTS 100

tsr_status tsr_file_open_read(int *fd, uint64_t *bytes, const char *path)
{
    struct stat info;
    tsr_status status = TSR_OK;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not block */
    if (file < 0)
        return tsr_fail(tsr_status_of_open(errno), "%s: cannot be opened: %s", path,
                        strerror(errno));
    if (fstat(file, &info) < 0)
        status = tsr_fail(TSR_EIO, "%s: fstat failed: %s", path, strerror(errno));
    else if (!S_ISREG(info.st_mode))
        status = tsr_fail(TSR_EDATA, "%s: not a regular file", path);
    if (status < 0) {
        close(file);
        return status;
    }
    *fd = file;
    *bytes = (uint64_t)info.st_size;
    return TSR_OK;
}

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

tsr_status tsr_file_read(char **data, uint64_t *bytes, const char *path, uint64_t most_bytes)
{
    int fd;
    uint64_t total, used = 0;
    char *buffer = NULL;
    tsr_status status;
    TSR_TRY(tsr_file_open_read(&fd, &total, path));
    if (total > most_bytes)
        status =
            tsr_fail(TSR_EDATA, "%s: the file has %" PRIu64 " bytes, at most %" PRIu64 " are taken",
                     path, total, most_bytes);
    else if (!(buffer = malloc(total + 1)))
        status = tsr_fail(TSR_ENOMEM, "%s: no memory for %" PRIu64 " bytes", path, total);
    else
        status = read_all(buffer, &used, total, fd, path);
    close(fd);
    if (status < 0) {
        free(buffer);
        return status;
    }
    *data = buffer;
    *bytes = used;
    return TSR_OK;
}

/* All memory that writing it takes. */
struct tsr_file {
    bool staged; /* `temporary` is there */
    int fd;      /* -1: before, and once finished */
    char *path, *temporary, *directory;
    size_t temporary_bytes;
    char text[]; /* of the three */
};

tsr_status tsr_file_prepare(tsr_file **out, const char *path)
{
    size_t bytes = strlen(path) + 1, more = bytes + sizeof ".-9223372036854775808.-2147483648.tmp";
    tsr_file *file = calloc(1, sizeof *file + bytes + more + bytes + 1);
    if (!file)
        return tsr_fail(TSR_ENOMEM, "%s: no memory to write it", path);
    file->fd = -1;
    file->path = file->text;
    file->temporary = file->path + bytes;
    file->temporary_bytes = more;
    file->directory = file->temporary + more;
    const char *slash = strrchr(path, '/');
    memcpy(file->path, path, bytes);
    if (slash)
        memcpy(file->directory, path, slash == path ? 1 : (size_t)(slash - path));
    else
        file->directory[0] = '.';
    *out = file;
    return TSR_OK;
}

/* "<directory>/.<name>.<process>.<attempt>.tmp" */
static void name_temporary(tsr_file *file, int attempt)
{
    const char *slash = strrchr(file->path, '/');
    size_t directory_length = slash ? (size_t)(slash - file->path) + 1 : 0;
    snprintf(file->temporary, file->temporary_bytes, "%.*s.%s.%ld.%d.tmp", (int)directory_length,
             file->path, file->path + directory_length, (long)getpid(), attempt);
}

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

tsr_status tsr_file_open(tsr_file *file)
{
    int reason = EEXIST;
    if (!tsr_file_replaceable(file->path))
        return tsr_fail(TSR_ECONFIG,
                        "%s is a device, a pipe or a socket, which a file would replace; name a "
                        "file",
                        file->path);
    for (int attempt = 0; reason == EEXIST && attempt < NAME_ATTEMPTS; attempt++) {
        name_temporary(file, attempt);
        file->fd = open(file->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        reason = file->fd >= 0 ? 0 : errno;
    }
    file->staged = reason == 0;
    if (reason == 0)
        return TSR_OK;
    return tsr_fail(TSR_EIO, "%s: a temporary file beside it cannot be created: %s", file->path,
                    strerror(reason));
}

tsr_status tsr_file_stage(tsr_file **out, const char *path)
{
    TSR_TRY(tsr_file_prepare(out, path));
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
    if (file->fd < 0)
        return tsr_fail(TSR_EINVAL, "%s: written to after it was finished", file->path);
    while (bytes > 0) {
        ssize_t put = write(file->fd, next, bytes < MOST_PER_CALL ? bytes : MOST_PER_CALL);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return tsr_fail(TSR_EIO, "%s: writing failed: %s", file->temporary,
                            put < 0 ? strerror(errno) : "nothing was written");
        next += put;
        bytes -= (uint64_t)put;
    }
    return TSR_OK;
}

tsr_status tsr_file_finish(tsr_file *file)
{
    if (file->fd < 0)
        return TSR_OK;
    int failed = fsync(file->fd) < 0 ? errno : 0;
    if (close(file->fd) < 0 && !failed)
        failed = errno;
    file->fd = -1;
    if (failed)
        return tsr_fail(TSR_EIO, "%s: bringing it to the disk failed: %s", file->temporary,
                        strerror(failed));
    return TSR_OK;
}

tsr_status tsr_directory_sync(const char *directory)
{
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int failed = fd < 0 || fsync(fd) != 0 ? errno : 0;
    if (fd >= 0)
        close(fd);
    if (failed == 0 || (fd >= 0 && (failed == EINVAL || failed == ENOTSUP)))
        return TSR_OK;
    return tsr_fail(TSR_EIO, "%s: bringing the directory to the disk failed: %s", directory,
                    strerror(failed));
}

tsr_status tsr_file_publish(tsr_file *file)
{
    TSR_TRY(tsr_file_finish(file));
    if (!file->staged)
        return TSR_OK;
    if (rename(file->temporary, file->path) < 0)
        return tsr_fail(TSR_EIO, "%s: renaming the complete file %s failed: %s", file->path,
                        file->temporary, strerror(errno));
    file->staged = false;
    return tsr_directory_sync(file->directory); /* after this a crash does not undo it */
}

void tsr_file_discard(tsr_file *file)
{
    if (!file)
        return;
    if (file->fd >= 0)
        close(file->fd);
    if (file->staged)
        (void)unlink(file->temporary);
    free(file);
}

tsr_status tsr_file_write(const char *path, const void *data, uint64_t bytes)
{
    tsr_file *file;
    TSR_TRY(tsr_file_stage(&file, path));
    tsr_status status = tsr_file_append(file, data, bytes);
    if (status == TSR_OK)
        status = tsr_file_publish(file);
    tsr_file_discard(file);
    return status;
}
